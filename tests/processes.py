"""Which processes of a run are still there: every one carries the variable NCCLKIT_RUN."""

from __future__ import annotations

import os
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


def warm(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables by which torchrun forks its ranks (tests/warm): for tests of what ranks do, and not how they start."""
    paths = filter(None, (str(Path(__file__).parent / "warm"), environ.get("PYTHONPATH")))
    return {**environ, "PYTHONPATH": os.pathsep.join(paths), "NCCLKIT_TESTS_ROOM": "-" * 4000}
