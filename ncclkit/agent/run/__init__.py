"""Ranks on compute nodes.

In: the command line of a run.  Out: its ranks, their records and logs, and an end of all of them,
whatever happens.

Begin with `guard.run_guarded`, which ends what it started; `collective.main` is what each rank of
the live test executes, `stages` its staged form, `crash_handler` what a rank leaves when it hangs.
"""
