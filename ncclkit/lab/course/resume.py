"""A resume from a checkpoint.

Whether the checkpoint can be used, and how the job came back from it.

Checkpoints are only looked at, never unpickled: torch's files are zip archives with a checksum for
each member, and of the pickle in them only the strings are read.

A job reports its resume by wire records of the kind ``phase``, one of each per rank: ``start`` with
its ``limit`` and ``lightning``, ``replay`` (``done`` of ``of`` batches in ``seconds``), ``first``
(``seconds`` until the first step was done), and ``pace`` (``read_s`` of a batch and ``step_s`` of a
step, medians).  Times are in seconds.
"""

from __future__ import annotations

import os
import pickletools
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from ncclkit.agent.digits import whole_number
from ncclkit.analysis.message_sizes import tensor_spans
from ncclkit.core.case import Case
from ncclkit.core.experiment_records import FOLDER
from ncclkit.core.kinds import WorkerPhase
from ncclkit.core.model import Event, NcclkitError

STAGES = "stages"
"""Folder in the case that keeps the runs of its stages, so that none of them speaks into the
verdict on the case."""
NAMES = (".ckpt", ".pt", ".pth", ".bin", ".safetensors", ".distcp")
LARGEST = 64 << 20
"""Bytes of a pickle that are searched: what it describes may be large, it is not."""
POSITION = re.compile(
    r"^(?:_num_yielded|_snapshot|_sampler_iter_yielded|dataset_state|samples_yielded"
    r"|num_batches_fetched"
    r"|consumed_(?:train_)?samples|loaders?|(?:train_)?data_?loaders?|data_?loader_states?"
    r"|sampler)$"
)
"""Names under which loaders keep where they stand: torchdata, Megatron, NeMo, and what people write
by hand."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint file.

    Whether it is whole, and whether it says how far the loaders were.
    """

    path: Path
    bytes: int
    whole: bool | None
    """None: this kind of file does not tell."""
    words: str
    """Why it is not whole, or what cannot be told."""
    position: bool | None
    """Whether it says where a loader stood; None where it cannot be read."""


def checkpoints(path: str | Path) -> tuple[Checkpoint, ...]:
    """Every checkpoint file at `path`, a file or a folder, sorted by name.

    All bytes are read once.

    Raises NcclkitError where there is none.
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
        return any(
            isinstance(value, str) and POSITION.match(value)
            for _, value, _ in pickletools.genops(data)
        )
    except ValueError:
        return False


def _check_tensors(path: Path, size: int) -> tuple[bool, str]:
    """A safetensors file says at its start how long it must be."""
    spans, start = tensor_spans(path)
    missing = start + max((end for _, end in spans), default=0) - size
    return missing <= 0, f"{missing:,} bytes are missing at its end" if missing > 0 else ""


@dataclass(frozen=True, slots=True)
class Start:
    """How one rank came back from a checkpoint; times in seconds."""

    rank: int
    read: int = 0
    """Batches that it read once more, only to throw them away."""
    of: int = 0
    took: float = 0.0
    """What that took, as far as it came."""
    first: float | None = None
    """From the start to the end of its first step; None where it did none."""
    batch: float | None = None
    """Median of what reading one batch takes in training."""
    step: float | None = None
    """Median of a step, with its reading and its waiting."""

    @property
    def whole(self) -> float:
        """Seconds that the whole replay takes at the measured pace."""
        if self.read:
            return self.took * self.of / self.read
        return 0.0


@dataclass(frozen=True, slots=True)
class Resume:
    """One run that was resumed from a checkpoint."""

    limit: float
    """Seconds that a collective may take."""
    starts: tuple[Start, ...]
    lightning: str
    """Version of Lightning that trained; "" for plain torch."""

    @property
    def last(self) -> Start:
        """The rank that the others wait for."""
        return max(self.starts, key=lambda start: (start.whole, start.batch or 0.0))

    @property
    def first(self) -> float | None:
        """Seconds until every rank had done its first step; None where one did none."""
        times = [start.first for start in self.starts if start.first is not None]
        if len(times) == len(self.starts):
            return max(times)
        return None


def resumes(case: Case) -> tuple[Resume, ...]:
    """Every resumed run of the case, oldest first.

    Then those of its staged runs and of its experiments.
    """
    stages = []
    if case.path and (case.path / STAGES).is_dir():
        stages = [case.path / STAGES]
    hidden = []
    if case.path:
        hidden = [*stages, *sorted((case.path / FOLDER).glob("*/.case"))]
    known = [case, *(Case.open(folder, read_only=True) for folder in hidden)]
    found = []
    for one in known:
        for run in _resumes_of_case(one):
            found.append(run)
    return tuple(found)


def _resumes_of_case(case: Case) -> Iterator[Resume]:
    by_folder: defaultdict[PurePath, list[Event]] = defaultdict(list)
    for event in case.of("worker.phase"):
        if _is_complete(event.data) and event.rank is not None:
            by_folder[PurePath(event.path).parent].append(event)
    for folder in sorted(by_folder, key=_number_of_folder):
        events = by_folder[folder]
        ranks = {}
        for e in events:
            ranks[e.rank] = {o.data.phase: o.data for o in events if o.rank == e.rank}
        about = next((phases["start"] for phases in ranks.values() if "start" in phases), None)
        if about is not None:
            starts = tuple(
                _start_of_rank(rank, ranks[rank])
                for rank in sorted(rank for rank in ranks if rank is not None)
            )
            yield Resume(about.limit, starts, str(about.lightning or ""))


def _start_of_rank(rank: int, phases: Mapping[str, WorkerPhase]) -> Start:
    nothing = WorkerPhase()
    replay = phases.get("replay", WorkerPhase(done=0, of=0, seconds=0.0))
    first, pace = phases.get("first", nothing), phases.get("pace", nothing)
    return Start(
        rank,
        replay.done,
        replay.of,
        replay.seconds,
        first.seconds,
        pace.read_s,
        pace.step_s,
    )


def _is_complete(said: WorkerPhase) -> bool:
    """A record of ours that holds what it must: case folders come from other people, too."""
    needed = {
        "start": (said.limit,),
        "replay": (said.done, said.of, said.seconds),
        "first": (said.seconds,),
        "pace": (said.read_s, said.step_s),
    }
    numbers = needed.get(said.phase)
    return numbers is not None and all(isinstance(one, (int, float)) for one in numbers)


def _number_of_folder(folder: PurePath) -> tuple[int, str]:
    """Run folders are numbered; a tenth run stands behind the second."""
    return whole_number(folder.name.partition("-")[0]) or 0, str(folder)
