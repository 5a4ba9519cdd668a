"""What the five stories measure.

Scaling runs, staged runs, data-loader sweeps, resumes from a checkpoint.
"""
