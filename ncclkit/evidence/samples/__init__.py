"""Bundled recordings of real runs, as case folders.

Notebooks, tests and installed users share them.  In: the name of a recording.  Out: its case, read
only, with its events.  Each folder's ``case.json`` says where it was recorded: hardware, versions,
date and the ground truth.  They are data, made by ``tests/record/gpu.py`` and, over gloo,
``tests/record/eight.py``.

Begin with `open_sample`.
"""

from __future__ import annotations

from pathlib import Path

from ncclkit import evidence
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError

HERE = Path(__file__).parent


def list_samples() -> list[str]:
    """Names of the bundled recordings, sorted."""
    return sorted(path.parent.name for path in HERE.glob("*/case.json"))


def open_sample(name: str) -> Case:
    """Open a bundled recording, read only, with its events.

    Raises NcclkitError, which lists the names that exist.
    """
    if name not in list_samples():
        raise NcclkitError(
            f"There is no bundled run {name!r}; there are {', '.join(list_samples())}."
        )
    case = Case.open(HERE / name, read_only=True)
    reading = evidence.read([HERE / name])
    case.events, case.inputs = list(reading.events), list(reading.inputs)
    return case
