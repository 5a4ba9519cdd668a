"""Whether the checkpoints of a job can be used.

It tells also whether they say how far the job's loaders were.  Checkpoints are only looked at,
never unpickled: torch's files are zip archives with a checksum for each member, and of the pickle
in them only the strings are read.
"""

from __future__ import annotations

import os
import pickletools
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ncclkit.analysis.message_sizes import tensor_spans
from ncclkit.core.model import NcclkitError

NAMES = (".ckpt", ".pt", ".pth", ".bin", ".safetensors", ".distcp")
LARGEST = 64 << 20
"""Bytes of a pickle that are searched.

What it describes may be large, it is not.
"""
POSITION = re.compile(
    r"^(?:_num_yielded|_snapshot|_sampler_iter_yielded|dataset_state|samples_yielded"
    r"|num_batches_fetched"
    r"|consumed_(?:train_)?samples|loaders?|(?:train_)?data_?loaders?|data_?loader_states?"
    r"|sampler)$"
)
"""Names under which loaders keep where they stand.

They are those of torchdata, Megatron and NeMo, and what people write by hand.
"""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint file.

    It tells whether the file is whole, and whether it says how far the loaders were.
    """

    path: Path
    bytes: int
    whole: bool | None
    """None: this kind of file does not tell."""
    words: str
    """Why it is not whole, or what cannot be told."""
    position: bool | None
    """Whether it says where a loader stood; None where it cannot be read."""


def read_checkpoints(path: str | Path) -> tuple[Checkpoint, ...]:
    """Every checkpoint file at `path`, a file or a folder, sorted by name.

    All bytes are read once.  Raises NcclkitError where there is none.
    """
    given = Path(path).expanduser()
    if given.is_file():
        found = [given]
    else:
        found = sorted(_checkpoint_files(given))
    if not found:
        raise NcclkitError(
            f"There is no checkpoint at {given}; name a file, or a folder with {', '.join(NAMES)}"
            " files."
        )
    return tuple(_read_checkpoint(file) for file in found)


def _checkpoint_files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(NAMES):
                yield Path(place, name)


def _read_checkpoint(path: Path) -> Checkpoint:
    size = path.stat().st_size
    try:
        if path.suffix == ".safetensors":
            return Checkpoint(path, size, *_check_tensors(path, size), False)
        if zipfile.is_zipfile(path):
            return Checkpoint(path, size, *_check_archive(path))
        with path.open("rb") as file:
            head = file.read(4)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        return Checkpoint(path, size, False, f"cannot be read: {error}", None)
    if head.startswith(b"PK"):
        return Checkpoint(
            path, size, False, "it ends too early: the directory at its end is missing", None
        )
    if not head.strip(b"\0"):
        return Checkpoint(path, size, False, "it is empty", None)
    return Checkpoint(
        path,
        size,
        None,
        "this kind of file holds no checksum; compare its size with another's",
        None,
    )


def _check_archive(path: Path) -> tuple[bool, str, bool | None]:
    """Check every member of what torch.save wrote against its checksum.

    It reads also what stands in the pickle.
    """
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
        if damaged:
            return False, f"the checksum of {damaged} is wrong", None
        pickles = [info for info in archive.infolist() if info.filename.endswith("data.pkl")]
        small = [archive.read(info) for info in pickles if info.file_size <= LARGEST]
    return True, "", any(_names_position(data) for data in small) if small else None


def _names_position(data: bytes) -> bool:
    try:
        return any(
            isinstance(value, str) and POSITION.match(value)
            for _, value, _ in pickletools.genops(data)
        )
    except ValueError:
        return False


def _check_tensors(path: Path, size: int) -> tuple[bool, str]:
    """Check how long a safetensors file says at its start that it must be."""
    spans, start = tensor_spans(path)
    missing = start + max((end for _, end in spans), default=0) - size
    return missing <= 0, f"{missing:,} bytes are missing at its end" if missing > 0 else ""
