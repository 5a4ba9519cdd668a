"""NCCL's RAS reports, in JSON and text."""
