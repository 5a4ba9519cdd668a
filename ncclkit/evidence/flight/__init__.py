"""The Flight Recorder: safe reading of dumps, and what all ranks' dumps say together."""
