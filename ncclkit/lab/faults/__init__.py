"""The faults of the lab: the table of them, how one is injected, and how a run is recorded."""
