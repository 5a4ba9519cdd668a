"""Records, the case folder, text, and arithmetic on plain values.

In and out: plain values and the files of a case folder.  Nothing here reads logs or starts
anything.

Begin with `case.Case`, which all rooms hand to each other, then `model.Event` and `model.Finding`,
which it holds; `kinds` lists what an event can say.
"""
