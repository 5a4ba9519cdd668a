"""Start ranks and measure: the live test, connection tests, tuning.

In: a case, and options that command and forms share (`options`).  Out: runs in the case folder,
with their records, measurements and logs.  All that is started is dead when they return.

Begin with `probe.probe`, the live test; `attach` looks at a job of somebody else, `submit` sends a
verb to Slurm, `launch` starts the ranks.
"""
