"""Processes of tests: which of a run are still there, and the one that forks jobs (tests/warm)."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

RUNNER = "NCCLKIT_TEST_RUNNER"
"""Set by tests/conftest.py to a word of this test process; whatever it starts inherits it."""


def leftovers(tag: str | None = None) -> list[int]:
    """Pids of living processes of runs (of the run `tag`, or of any) that this test process started.

    Where no test process runs (tests/record), of whoever started them.
    """
    own = f"{RUNNER}={os.environ[RUNNER]}".encode() if RUNNER in os.environ else b""
    wanted = f"NCCLKIT_RUN={tag or ''}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_bytes().rsplit(b")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or another user's
        if state in (b"Z", b"X") or (own and own not in environ):
            continue
        if any(item.startswith(wanted) for item in environ):
            found.append(int(folder.name))
    return found


WARM = Path(__file__).parent / "warm"
SERVERS = {"jobs": "NCCLKIT_TESTS_SERVER", "notebooks": "NCCLKIT_TESTS_NOTEBOOKS"}
"""What each server forks → the variable that says where it listens."""


def warm(environ: Mapping[str, str], room: int = 4000) -> dict[str, str]:
    """Variables by which jobs, reports and kernels are forked (tests/warm), where their start is not what is tested.

    room: characters for the variables that are added later, in the processes that are started with these.
    """
    paths = filter(None, (str(WARM), environ.get("PYTHONPATH")))
    return {**environ, "PYTHONPATH": os.pathsep.join(paths), "NCCLKIT_TESTS_ROOM": "-" * room}


def serve() -> list[subprocess.Popen[bytes]]:
    """The servers of this test session that fork processes, which end with this one; none where there are some."""
    return [_server(kind, name) for kind, name in SERVERS.items() if name not in os.environ]


def _server(kind: str, name: str) -> subprocess.Popen[bytes]:
    folder = tempfile.mkdtemp(prefix="ncclkit-tests-")  # nobody else's
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[name] = os.path.join(folder, kind)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(os.environ[name])
        listening.listen(64)
        file = listening.fileno()
        # the words that stand last make room for those of the processes that it forks
        command = [sys.executable, str(WARM / "server.py"), str(file), kind, "-" * 32000]
        environ = warm(os.environ, 64000)
        return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[file], env=environ, start_new_session=True)
