"""What the five stories measure: scaling runs, staged runs, data-loader sweeps, resumes from a checkpoint."""
