"""Where evidence comes from: files, folders, archives, Slurm jobs, as streams of bytes."""
