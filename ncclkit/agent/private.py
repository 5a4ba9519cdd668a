"""Folders that only this user can write, replace or rename.

What is executed lies there and nowhere else.
"""

import os
import stat
import sys
import tempfile

PREFIX = "ncclkit-agent-"
NAME = "agent.pyz"
OWN = "--own"
"""First word of an agent whose folder is its own, and goes with it."""
NOBODY = 65534
"""Who owns, in a container, what belongs to nobody in it; only those outside can be that user."""


def parent_folder():
    """A folder below which this user can make private ones.

    Raises OSError where none of the usual ones allows it.
    """
    tried = (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"))
    for path in tried:
        if os.access(path, os.W_OK | os.X_OK) and is_safe(path):
            return path
    raise OSError(
        "others can replace what lies in %s; set TMPDIR to a folder that only you can write"
        % tried[0]
    )


def is_safe(path):
    """Whether only this user can rename or replace what he makes in a folder.

    All parents of the folder are checked.
    """
    path = os.path.realpath(path)
    while True:
        status = os.stat(path)
        ours = status.st_uid in (0, NOBODY, os.geteuid())
        if not ours or (status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX):
            return False
        if path == os.path.dirname(path):
            return True
        path = os.path.dirname(path)


def become(archive, words):
    """Write the agent's bytes to a private folder and become that program.

    It gets the words as its arguments.  Does not return.
    """
    agent = os.path.join(tempfile.mkdtemp(prefix=PREFIX, dir=parent_folder()), NAME)
    with open(agent, "wb") as out:
        out.write(archive)
    os.execv(sys.executable, [sys.executable, agent, OWN, *words])
