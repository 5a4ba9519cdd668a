"""All ranks of a script on this machine, each of whose calls is asked for before it is made.

In: the words of a script and a number of ranks.  Out: a verdict, as a file: whether all ranks
agree, or which would wait for ever.
Begin with `coordinator.Coordinator`, which decides; `ranks.main` forks the ranks and serves them.
"""
