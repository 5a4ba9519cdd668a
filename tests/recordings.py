"""Recorded runs, each of their files read once in a test process: the bundled ones, and those on two hosts."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from unittest.mock import patch

from ncclkit import evidence
from ncclkit.core.case import Case
from ncclkit.evidence import files
from ncclkit.evidence.samples import HERE, list_samples
from ncclkit.evidence.sources import inputs

TWO_HOSTS = Path(__file__).parent / "two_hosts"
"""The faults of the bundled ones on GPUs that NCCL took for those of two hosts."""
RECORDINGS = [*(HERE / name for name in list_samples()), *sorted(TWO_HOSTS.iterdir())]


def title(folder: Path) -> str:
    return folder.name if folder.parent == HERE else f"{folder.name} on two hosts"


_parts = cache(files.read_file)


def recorded(folder: Path, *gone: str) -> Case:
    """The case of a recording, of which the files of these patterns are not read; what one file says no other changes.

    Each has a case of its own; their events are the same.
    """
    found, _ = inputs.find([folder])
    left = [path for path in found if not any(fnmatch(Path(path).name, pattern) for pattern in gone)]
    with patch.object(files, "read_file", lambda path, *_: _parts(path)):
        reading = evidence.read(left)
    case = Case.open(folder, read_only=True)
    case.events, case.inputs = list(reading.events), list(reading.inputs)
    return case


def sample(name: str) -> Case:
    """A bundled recording, as `ncclkit.evidence.samples.sample` opens it."""
    return recorded(HERE / name)
