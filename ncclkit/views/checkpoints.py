"""Checkpoints as a table: whole or not, and whether a resume from them must read the data again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ncclkit.core.text import format_bytes, plural
from ncclkit.lab.course import checkpoints
from ncclkit.lab.course.checkpoints import Checkpoint
from ncclkit.views._base import View
from ncclkit.views._html import Markup, badge, code, el, fit, join, table

WHOLE = {
    True: ("✓", "whole", "state-done"),
    False: ("✕", "damaged", "state-failed"),
    None: ("○", "unknown", "possible"),
}


def checkpoints_view(path: str | Path) -> View:
    """Each checkpoint file at `path`, a file or a folder: size, whole or not, does it hold where the loaders stood.

    Raises NcclkitError where there is none.
    """
    found = checkpoints.look(path)
    base = os.path.commonpath([file.path.parent for file in found])
    return View(
        _summary(found), fit(table(("File", "Size", "Is it whole?", "Where the loaders stood"), _rows(found, base)))
    )


def _summary(found: Sequence[Checkpoint]) -> str:
    files, bad = plural(len(found), "file"), sum(file.whole is False for file in found)
    if bad:
        return f"{bad} of {files} cannot be used: resume from the checkpoint before"
    told, readable = sum(file.position is True for file in found), sum(file.position is not None for file in found)
    if not told:
        return f"No file of {len(found)} says where the loaders stood: whoever resumes from here reads the data again"
    return f"{told} of {readable} files that can be read say where the loaders stood"


def _rows(found: Sequence[Checkpoint], base: str) -> list[tuple[object, ...]]:
    return [
        (
            code(os.path.relpath(file.path, base)),
            el("span", format_bytes(file.bytes), cls="nk-whole"),
            join(badge(*WHOLE[file.whole]), " ", file.words),
            _position(file),
        )
        for file in found
    ]


def _position(file: Checkpoint) -> Markup:
    if file.position is None:
        return badge("○", "cannot be read", "possible")
    return badge("✓", "kept", "state-done") if file.position else badge("✕", "not kept", "likely")
