"""What strangers may send, as generators: texts, files and records that must cost little and break nothing."""
