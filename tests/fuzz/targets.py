"""What is fuzzed: bytes become a file of some name, the file is read, and what comes out is checked.

Each target brings its bytes close to what its reader accepts, so that no time is lost on inputs that only the
recognition of files sees; the seeds are the files in ``corpus/<target>``.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ncclkit import evidence
from ncclkit.analysis import alignment, communicators, timeline
from ncclkit.core import secrets
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError, to_json
from ncclkit.evidence import KINDS
from tests.fuzz.guards import Broken, watched

CORPUS = Path(__file__).parent / "corpus"
LARGEST = 1 << 16
"""Bytes of one input; what its target makes of it may be longer."""
SECONDS = 10.0
"""CPU time that one input may take."""
SHARED = Path("/dev/shm")
CASE = Case()
"""Made before anything is watched, as a case asks for the name of its machine."""
secrets.text("sq0csp")  # has the library of the forms of keys imported, which makes a socket
COMMUNICATORS = (communicators.communicators, communicators.transports, communicators.rings, communicators.variables)


@dataclass(frozen=True, slots=True)
class Target:
    """One reader: the name its file gets, and how bytes become the file's content."""

    name: str
    file: str
    shape: Callable[[bytes], bytes] = bytes

    def seeds(self) -> list[bytes]:
        """The inputs to begin with."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())]


def _dump(data: bytes) -> bytes:
    return data if data[:1] in (b"\x80", b"{") else b"\x80\x02" + data


def _ras(data: bytes) -> bytes:
    return data if data[:1] == b"{" else b"NCCL version 2.28.9 compiled with CUDA 13.0\nJob summary\n" + data


def _archive(data: bytes) -> bytes:
    """An odd first byte: the rest is packed, as no fuzzer finds a checksum."""
    return gzip.compress(data[1:], 1) if data[:1] and data[0] & 1 else data[1:]


def _again(data: bytes) -> bytes:
    """The same thing over and over on one line, then on many: what is not linear shows."""
    unit = data[:256] or b" "
    return unit * (30_000 // len(unit)) + b"\n" + (unit + b"\n") * (30_000 // len(unit))


TARGETS = {
    target.name: target
    for target in (
        Target("log", "rank1.log"),
        Target("repeated", "rank1.log", _again),
        Target("stacks", "stacks_rank1.txt"),
        Target("dump", "nccl_trace_rank_1", _dump),
        Target("ras", "ras.txt", _ras),
        Target("document", "rank1.json"),
        Target("tools", "host.txt"),
        Target("archive", "logs.tar.gz", _archive),
    )
}


def check(target: Target, data: bytes) -> float:
    """Read one input; its CPU time in seconds.  Raises whatever must not be."""
    with tempfile.TemporaryDirectory(dir=SHARED if SHARED.is_dir() else None) as folder:
        path = Path(folder, target.file)
        path.write_bytes(target.shape(data))
        beside = Path(folder, "rank0.log")
        beside.write_text("ValueError: the file beside it is read all the same\n")
        reading = None
        with watched(SECONDS) as used:
            reading = evidence.read([path, beside])
            _check_events(reading)
        _judge(reading, path, beside)
        if all(row["kind"] in evidence.UNREADABLE for row in reading.inputs[:-1]):  # else it was read as it is alone
            with watched(SECONDS) as alone:
                try:
                    evidence.read([path])
                except NcclkitError as error:
                    _sentence(str(error))
            used += alone
    return max(used)


def _check_events(reading: evidence.Reading) -> None:
    """What is made of events: job, stories, disagreements, clocks, communicators."""
    evidence.job(reading.events)
    CASE.events, CASE.inputs = list(reading.events), list(reading.inputs)
    timeline.timelines(CASE)
    for tell in (alignment.align, alignment.clocks, *COMMUNICATORS):
        tell(reading.events)


def _judge(reading: evidence.Reading, path: Path, beside: Path) -> None:
    """Every file has a row, every event keeps the contract, every problem is one sentence, the file beside is read."""
    rows = [row["path"] for row in reading.inputs]
    if rows[:1] != [str(path)] or rows[-1:] != [str(beside)]:
        raise Broken(f"rows of {rows}")
    if not any(event.path == str(beside) for event in reading.events):
        raise Broken("the file beside it was not read")
    for event in reading.events:
        if not isinstance(event.data, KINDS.get(event.kind, ())) or len(event.text) > 2000:
            raise Broken(f"event {event.kind} breaks its contract: {event.data}, {len(event.text)} characters")
    for record in (*reading.events, *reading.facts, *reading.measurements):
        to_json(record)
    for problem in reading.problems:
        _sentence(problem)


def _sentence(text: str) -> None:
    if not text or len(text) > 2000 or any(character in text for character in "\n\r\x1b\0"):
        raise Broken(f"no sentence: {text!r:.300}")
