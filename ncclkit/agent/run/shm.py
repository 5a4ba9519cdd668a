"""Shared memory that a run leaves behind: what its processes had in /dev/shm, when nobody can give it back any more.

NCCL and torch remove their files themselves, but not when they are killed.  Only files that a process of the run was
seen to hold, that were not there before, and that no living process holds now are removed.
"""

import os

from . import processes

FOLDER = "/dev/shm"


def names():
    """Names of the files there."""
    try:
        return set(os.listdir(FOLDER))
    except OSError:
        return set()


def held(pids):
    """Names of those that these processes have mapped or open."""
    found = set()  # type: set[str]
    for pid in pids:
        mapped = (line.rpartition(" ")[2] for line in processes.read("/proc/%d/maps" % pid, 64 << 20).splitlines())
        for path in [*mapped, *processes.open_files(pid)]:
            folder, name = os.path.split(path)
            if folder == FOLDER:
                found.add(name)
    return found


def remove(left):
    """Remove these files, less those that a living process holds; returns the names that are gone now."""
    gone = []
    left = left & names()
    for name in sorted(left - held(processes.parents()) if left else ()):
        try:
            os.unlink(os.path.join(FOLDER, name))
            gone.append(name)
        except OSError:
            continue  # somebody else has removed it, or it is not ours
    return gone
