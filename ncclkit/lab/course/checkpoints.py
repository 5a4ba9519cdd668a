"""A look at checkpoints before a job is resumed from one: is it whole, and does it say where the loaders stood?

Nothing is unpickled: torch's files are zip archives with a checksum for each member, and of the pickle in them only
the strings are read.
"""

from __future__ import annotations

import json
import os
import pickletools
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ncclkit.core.model import NcclkitError

NAMES = (".ckpt", ".pt", ".pth", ".bin", ".safetensors", ".distcp")
LARGEST = 64 << 20
"""Bytes of a pickle that are searched: what it describes may be large, it is not."""
POSITION = re.compile(
    r"^(?:_num_yielded|_snapshot|_sampler_iter_yielded|dataset_state|samples_yielded|num_batches_fetched"
    r"|consumed_(?:train_)?samples|loaders?|(?:train_)?data_?loaders?|data_?loader_states?|sampler)$"
)
"""Names under which loaders keep where they stand: torchdata, Megatron, NeMo, and what people write by hand."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One file of a checkpoint."""

    path: Path
    bytes: int
    whole: bool | None
    """None: this kind of file does not tell."""
    words: str
    """Why it is not whole, or what cannot be told."""
    position: bool | None
    """Whether it says where a loader stood; None where it cannot be read."""


def look(path: str | Path) -> tuple[Checkpoint, ...]:
    """Every checkpoint file at `path`, a file or a folder, sorted by name; all bytes are read once.

    Raises NcclkitError where there is none.
    """
    given = Path(path).expanduser()
    found = [given] if given.is_file() else sorted(_files(given))
    if not found:
        raise NcclkitError(
            f"There is no checkpoint at {given}; name a file, or a folder with {', '.join(NAMES)} files."
        )
    return tuple(_one(file) for file in found)


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names if name.endswith(NAMES))


def _one(path: Path) -> Checkpoint:
    size = path.stat().st_size
    try:
        if path.suffix == ".safetensors":
            return Checkpoint(path, size, *_tensors(path, size), False)
        if zipfile.is_zipfile(path):
            return Checkpoint(path, size, *_archive(path))
        with path.open("rb") as file:
            head = file.read(4)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        return Checkpoint(path, size, False, f"cannot be read: {error}", None)
    if head.startswith(b"PK"):
        return Checkpoint(path, size, False, "it ends too early: the directory at its end is missing", None)
    if not head.strip(b"\0"):
        return Checkpoint(path, size, False, "it is empty", None)
    return Checkpoint(path, size, None, "this kind of file holds no checksum; compare its size with another's", None)


def _archive(path: Path) -> tuple[bool, str, bool | None]:
    """Every member of what torch.save wrote against its checksum, and what stands in its pickle."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
        if damaged:
            return False, f"the checksum of {damaged} is wrong", None
        pickles = [info for info in archive.infolist() if info.filename.endswith("data.pkl")]
        small = [archive.read(info) for info in pickles if info.file_size <= LARGEST]
    return True, "", any(_names_position(data) for data in small) if small else None


def _names_position(data: bytes) -> bool:
    try:
        return any(isinstance(value, str) and POSITION.match(value) for _, value, _ in pickletools.genops(data))
    except ValueError:
        return False


def _tensors(path: Path, size: int) -> tuple[bool, str]:
    """A safetensors file says at its start how long it must be."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(length, LARGEST)))
    ends = [row["data_offsets"][1] for name, row in header.items() if name != "__metadata__"]
    missing = 8 + length + max(ends, default=0) - size
    return missing <= 0, f"{missing:,} bytes are missing at its end" if missing > 0 else ""
