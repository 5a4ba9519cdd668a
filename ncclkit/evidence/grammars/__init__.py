"""What the lines of each program mean.

In: one line, with its time, rank and host.  Out: an event where a rule knows the line, else
nothing.  There is one program per module, and each pattern stands below a specimen of its line.

Begin with `grammar.Rule`, of which all are made, and `c10d`, which is typical.
"""
