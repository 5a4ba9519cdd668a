"""The faults of the lab: the table of them, how one is injected, and how a run is recorded.

In: the name of a fault, and a case.  Out: the run of a small job with it; `recording` keeps such a
run small and without names.
Begin with `injection.inject`; `catalogue.Fault` says what each one is, and what must be found.
"""
