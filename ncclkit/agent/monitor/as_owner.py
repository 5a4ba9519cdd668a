"""What a process names, and tools that read it, with its owner's rights.

A process of another user is looked at as root, who may read everything; its owner may not.
"""

import functools
import json
import os
import pkgutil
import subprocess
import sys

from ..run import processes

MOST_FILES = 32
"""Source files of a process that are read at most."""


def read_named_files(pid, paths, seconds):
    """({path: text}, where the process prints to, why nothing was read).

    It is read with the rights of the owner.  Only regular files are; of each path that the owner
    may not read the text is "".
    """
    asked = json.dumps(list(dict.fromkeys(paths))[:MOST_FILES])
    command = _script("read", pid)
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {}, {}, "no answer in time; a file server may be away"
    if done.returncode != 0:
        return {}, {}, (done.stderr.strip().splitlines() or ["no answer"])[-1]
    answer = json.loads(done.stdout)
    return answer["sources"], answer["output"], ""


def is_stranger(pid):
    """Whether root looks at a process of another user."""
    return os.geteuid() == 0 and processes.owner(pid) > 0


def prefix(pid):
    """The words before a command that let it read a process.

    With them it may read the process, and otherwise only what the owner may.  There are none before
    a process of our own.
    """
    if is_stranger(pid):
        return _script("run", pid)
    return []


def _script(verb, pid):
    return [sys.executable, "-I", "-S", "-c", _source(), verb, str(pid)]


@functools.lru_cache(maxsize=1)
def _source():
    return (pkgutil.get_data(__package__, "owner_script.py") or b"").decode()
