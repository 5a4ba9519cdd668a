"""Before it runs: whether all ranks of a script agree, told on one machine without a GPU.

In: the command line of a script.  Out: a `Rehearsal`, whose sentence names ranks and lines.
What runs in the ranks is `ncclkit.agent.rehearsal`.
Begin with `rehearse.rehearse_script`, which starts the ranks and reads their verdict.
"""
