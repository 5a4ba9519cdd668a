"""What the five stories measure, and what they ask.

In: a case folder of the lab.  Out: scaling runs, staged runs, data-loader sweeps, what checkpoints
hold, and the answers that a student gave.

Begin with `runs.run_stages`; `questions` has the stories' words.
"""
