"""The agent: what runs on compute nodes, under the training interpreter.

In: the words of a command line.  Out: records, one line of JSON each, on standard output (`wire`).
Standard library only (``torch`` only inside the rank processes), Python >= 3.9, nothing of the
workbook.  It travels as one file, ``agent.pyz``.
Begin with `__main__.main`, which finds the verb that is asked for.
"""
