"""Which processes of a run are still there: every one carries the variable NCCLKIT_RUN."""

from __future__ import annotations

from pathlib import Path


def leftovers(tag: str | None = None) -> list[int]:
    """Pids of living processes of runs (of the run `tag`, or of any)."""
    wanted = f"NCCLKIT_RUN={tag or ''}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_bytes().rsplit(b")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or another user's
        if state not in (b"Z", b"X") and any(item.startswith(wanted) for item in environ):
            found.append(int(folder.name))
    return found
