"""The faults of the lab: how one is injected, and a run recorded.

In: the name of a fault, and a case.  Out: the run of a small job with it; `recording` keeps such a
run small and without names.

Begin with `injection.inject`; `catalogue.Fault` says what each one is, and what must be found.
"""
