"""Tables of what fits together, ``compatibility.json``.

They hold GPUs, CUDA, NCCL, torch and drivers, and acknowledged defects.  A row that is marked
``unsure`` was written from memory of its source: no verdict on it is ever ``proven``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ncclkit.analysis.picks import failed, family, of_job_hosts
from ncclkit.core.case import Case
from ncclkit.core.kinds import CudaDriver, NcclVersion, PrintedVersion
from ncclkit.core.model import Event, Evidence

T = TypeVar("T")

FILE = Path(__file__).parent / "compatibility.json"
RELEASE = re.compile(r"\d{1,4}")
WHEEL = re.compile(r"\+cu(\d{2})(\d)\b")
"""The CUDA in the version of a wheel of PyTorch: ``2.5.1+cu124``."""

Release = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A kind of GPU, and the releases that hold code for it."""

    name: re.Pattern[str]
    capability: str
    since: Release
    """The first CUDA that can compile for it."""
    until: Release
    """The first CUDA that cannot any more; empty where none is known."""
    nccl: Release
    """The first NCCL that supports it, where that matters."""
    source: str
    unsure: bool = False
    """True where nobody has looked the row up in its source."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A release of PyTorch as PyPI has it.

    It holds the CUDA and the NCCL that its wheel brings.
    """

    torch: Release
    cuda: Release
    nccl: Release
    source: str
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class Defect:
    """One known defect: its symptom, the versions that have it, and the source."""

    fragments: tuple[str, ...]
    what: str
    since: Release
    """First version known to be affected."""
    fixed: Release | None
    """First version known to have the fix; None = none is known."""
    instead: str
    source: str
    alone: bool = False
    """True where the message identifies this defect without the version."""
    files: tuple[str, ...] = ()
    """Source files of NCCL from which the message must come; empty for any."""


@cache
def _read_tables() -> dict[str, list[dict[str, Any]]]:
    tables: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return tables


@cache
def gpus() -> tuple[Gpu, ...]:
    """The kinds of GPUs that are known."""
    known_gpus = []
    for row in _read_tables()["gpus"]:
        known_gpus.append(
            Gpu(
                re.compile(row["name"]),
                row["capability"],
                tuple(row["since"]),
                tuple(row.get("until", ())),
                tuple(row.get("nccl", ())),
                row["source"],
                row.get("unsure", False),
            )
        )
    return tuple(known_gpus)


@cache
def wheels() -> tuple[Wheel, ...]:
    """The releases of PyTorch whose wheels the table holds."""
    known_wheels = []
    for row in _read_tables()["torch"]:
        known_wheels.append(
            Wheel(
                tuple(row["torch"]),
                tuple(row["cuda"]),
                tuple(row["nccl"]),
                row["source"],
                row.get("unsure", False),
            )
        )
    return tuple(known_wheels)


@cache
def drivers() -> dict[int, int]:
    """Major version of CUDA → the first driver branch for it.

    Older drivers of one branch serve newer CUDA.
    """
    return {row["cuda"]: row["branch"] for row in _read_tables()["drivers"]}


@cache
def defects() -> tuple[Defect, ...]:
    """Defects with sources.

    A version outside of the range clears the entry.
    """
    known_defects = []
    for row in _read_tables()["defects"]:
        known_defects.append(
            Defect(
                tuple(row["fragments"]),
                row["what"],
                tuple(row["since"]),
                tuple(row["fixed"]) if "fixed" in row else None,
                row["instead"],
                row["source"],
                row.get("alone", False),
                tuple(row.get("files", ())),
            )
        )
    return tuple(known_defects)


def release(version: object) -> Release:
    """``2.5.1+cu124`` → (2, 5, 1)."""
    return tuple(int(part) for part in RELEASE.findall(str(version).partition("+")[0])[:3])


@dataclass(frozen=True, slots=True)
class Misfit:
    """A GPU or driver that does not fit the libraries, by the tables."""

    summary: str
    why: list[Evidence]
    image: bool
    """True where the libraries hold no code for the GPU."""
    unsure: bool
    """True where it rests on a row that nobody has looked up."""


def misfit(case: Case) -> Misfit | None:
    """The first thing that does not fit in a job that failed.

    It is None where nothing is known not to.
    """
    # a job that runs shows that things fit, whatever a table says
    if not (failed(case) or case.of(CudaDriver) or family(case, "cuda", "driver")):
        return None
    models = _first_of_each(_gpu_models(case))
    built = _first_of_each(_cuda_of_build(case))
    driver = _driver_release(case)
    used = _first_of_each(_nccl_releases(case))
    for model, seen in models:
        kind = next((gpu for gpu in gpus() if gpu.name.search(model)), None)
        # a GPU that the table does not know proves nothing
        if kind is None:
            continue
        for cuda, said in built:
            if cuda < kind.since or (kind.until and cuda >= kind.until):
                say = (
                    f"the libraries were built with CUDA {_dotted_version(cuda)}, which has no"
                    f" code for {model} (capability "
                )
                if cuda < kind.since:
                    need = f"it needs {_dotted_version(kind.since)} or newer"
                else:
                    need = f"that ended with {_dotted_version(kind.until)}"
                return Misfit(f"{say}{kind.capability}); {need}", [said, seen], True, kind.unsure)
        # few GPUs need a certain NCCL; for the others the table is empty
        for nccl, said in used if kind.nccl else ():
            if nccl < kind.nccl:
                say = (
                    f"NCCL {_dotted_version(nccl)} does not support {model};"
                    f" {_dotted_version(kind.nccl)} or newer does"
                )
                return Misfit(say, [said, seen], True, kind.unsure)
    for cuda, said in built:
        branch, seen = driver or (0, said)
        if branch and branch < drivers().get(cuda[0], 0):
            say = (
                f"the libraries were built with CUDA {_dotted_version(cuda)}, which needs driver"
                f" {drivers()[cuda[0]]} or newer"
            )
            return Misfit(
                f"{say}, and the driver is of branch {branch}", [said, seen], False, unsure=True
            )
    return None


def _first_of_each(seen: list[tuple[T, Evidence]]) -> list[tuple[T, Evidence]]:
    """Each value once, with the first piece of evidence that names it.

    Every rank says the same.
    """
    return list({value: (value, said) for value, said in reversed(seen)}.values())[::-1]


def _gpu_models(case: Case) -> list[tuple[str, Evidence]]:
    facts = of_job_hosts(
        case,
        (fact for fact in case.facts_of("gpu.") if fact.name.endswith(".model") and fact.value),
    )
    notes = case.of(PrintedVersion, name="gpu")
    return [
        *((str(fact.value), fact) for fact in facts),
        *((str(event.data.version), event) for event in notes),
    ]


def _cuda_of_build(case: Case) -> list[tuple[Release, Evidence]]:
    """The CUDA that torch, or else NCCL, was built with."""
    facts = of_job_hosts(
        case, [*case.facts_of("software.torch.cuda"), *case.facts_of("software.torch")]
    )
    notes = case.of(PrintedVersion, name="torch")
    texts: Iterable[tuple[str, Evidence]] = [
        *(
            (
                (
                    f"+cu{''.join(str(fact.value).split('.')[:2])}"
                    if fact.name.endswith("cuda")
                    else str(fact.value)
                ),
                fact,
            )
            for fact in facts
        ),
        *((str(event.data.version), event) for event in notes),
    ]
    found = [
        ((int(match[1]), int(match[2])), piece)
        for text, piece in texts
        if (match := WHEEL.search(text))
    ]
    found = found or [
        ((wheel.cuda[0], wheel.cuda[1]), piece) for wheel, piece in _wheels_of_torch(case)
    ]
    # NCCL names the CUDA that it was built with itself, which a container may have changed beside
    # torch
    own: list[Event] = [event for event in case.of(NcclVersion) if event.data.cuda]
    return [*found] or [(release(event.data.cuda)[:2], event) for event in own]


def _nccl_releases(case: Case) -> list[tuple[Release, Evidence]]:
    """The NCCL that the job says it runs, or else the one that its torch brings."""
    own: list[tuple[Release, Evidence]] = []
    for event in case.of(NcclVersion):
        own.append((release(event.data.version), event))
    if own:
        return own
    brought: list[tuple[Release, Evidence]] = []
    for wheel, piece in _wheels_of_torch(case):
        brought.append((wheel.nccl, piece))
    return brought


def _wheels_of_torch(case: Case) -> list[tuple[Wheel, Evidence]]:
    """The wheels of PyPI that the job's hosts have.

    They are known by a version of torch that names no CUDA.
    """
    facts = of_job_hosts(case, [fact for fact in case.facts_of("software.torch") if fact.value])
    notes = case.of(PrintedVersion, name="torch")
    pieces: list[tuple[str, Evidence]] = [
        *((str(fact.value), fact) for fact in facts if fact.name == "software.torch"),
        *((str(event.data.version), event) for event in notes),
    ]
    known = {wheel.torch: wheel for wheel in wheels()}
    plain = []
    for text, piece in pieces:
        # a version that names its CUDA needs no table
        if "+" not in text:
            plain.append((known.get(release(text)[:2]), piece))
    rows = []
    for wheel, piece in plain:
        if wheel:
            rows.append((wheel, piece))
    return rows


def _driver_release(case: Case) -> tuple[int, Evidence] | None:
    facts = []
    for fact in of_job_hosts(case, case.facts_of("gpu.driver")):
        if release(fact.value):
            facts.append(fact)
    notes = case.of(PrintedVersion, name="driver")
    pieces: list[tuple[object, Evidence]] = [
        *((fact.value, fact) for fact in facts),
        *((event.data.version, event) for event in notes),
    ]
    return next(((release(version)[0], piece) for version, piece in pieces), None)


def _dotted_version(version: Release) -> str:
    return ".".join(map(str, version))
