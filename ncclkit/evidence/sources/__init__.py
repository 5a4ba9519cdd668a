"""Where evidence comes from, as streams of bytes.

In: paths, patterns or job numbers of Slurm as a user types them; they may be files, folders or
archives.  Out: files that can be opened, unpacked within limits of size and depth.

Begin with `inputs.find`, which says what is to be read; `streams.unpack` opens it, packed or torn.
"""
