"""Files that a node sends over srun where it does not see the run folder: pieces of one archive for each node."""

from __future__ import annotations

import base64
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

LARGEST = 512 << 20
"""Bytes of one archive, and of what is unpacked of it."""
SUFFIX = ".sent"


def take(folder: Path, record: Mapping[str, Any]) -> None:
    """Keep one piece of a node's archive in the run folder; a damaged piece is left out, and the archive torn."""
    node, at, data = record.get("node"), record.get("at"), record.get("data")
    if not (isinstance(node, int) and isinstance(at, int) and isinstance(data, str) and 0 <= at <= LARGEST):
        return
    with suppress(ValueError), open(folder / f".node{node}{SUFFIX}", "r+b" if at else "wb") as archive:
        archive.seek(at)
        archive.write(base64.b64decode(data, validate=True))


def unpack(folder: Path) -> list[str]:
    """Put the files of all archives beside those of the run; returns a sentence for each archive that is torn."""
    problems = []
    for path in sorted(folder.glob(f".node*{SUFFIX}")):
        try:
            with tarfile.open(path, "r:gz") as archive:
                _extract(archive, folder)
        except (tarfile.TarError, OSError, EOFError) as error:
            node = path.name.removeprefix(".node").removesuffix(SUFFIX)
            problems.append(f"the files of node {node} came over srun incomplete ({error})")
        path.unlink()
    return problems


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Plain files without a path of their own; what is there already stays."""
    left = LARGEST
    for member in archive:
        left -= member.size
        target = folder / member.name
        file = archive.extractfile(member) if member.isreg() else None
        if file is None or left < 0 or target.parent != folder or member.name.startswith(".") or target.exists():
            continue
        target.write_bytes(file.read())
