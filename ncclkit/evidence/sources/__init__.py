"""Where evidence comes from: files, folders, archives, Slurm jobs, as streams of bytes.

In: paths, patterns or job numbers as a user types them.  Out: files that can be opened, unpacked
within limits of size and depth.
Begin with `inputs.find`, which says what is to be read; `streams.unpack` opens it, packed or torn.
"""
