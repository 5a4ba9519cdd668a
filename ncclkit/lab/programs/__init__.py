"""The programs of the lab that run as ranks.

In: the words of a command line.  Out: records, as the agent's: they travel with it in one archive,
only for runs of the lab, and need as little.

Begin with `__main__.main`, which finds the job; `train` is the honest one.
"""
