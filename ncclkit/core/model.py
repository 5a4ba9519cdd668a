"""The records: what is known, what happened, what was measured, and what follows.

Everything that moves between the rooms of ncclkit is one of these frozen
dataclasses.  They hold plain values, so they can be written as JSON, and they
never change after they were made.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from ncclkit.core.kinds import Fields, typed_fields

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    DataT = DefaultTypeVar("DataT", default=Any, covariant=True)
else:
    DataT = TypeVar("DataT", covariant=True)

SCHEMA = 1
"""Number of the format of ``diagnose --json``; case folders have a number of their own,
`case.SCHEMA`."""

Verdict = Literal["found", "clear", "unknown"]
Strength = Literal["proven", "likely", "possible"]

T = TypeVar("T")
ENCODER = msgspec.json.Encoder(enc_hook=str)


class NcclkitError(Exception):
    """Something the user can put right: what was wrong and what to do.

    It is one sentence.  The command line prints it without a traceback, with exit status 2.  In a
    notebook IPython asks `_render_traceback_`, so the cell shows the sentence alone.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"ncclkit: {self}"]


def from_dict(cls: type[T], data: Mapping[str, Any]) -> T:
    """Make a record from a mapping; unknown keys of newer versions are dropped."""
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    fields_given = {}
    for key, value in data.items():
        if key in known:
            fields_given[key] = value
    return cls(**fields_given)


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing known about a host or job, and where it was read."""

    name: str
    """Dotted, e.g. ``limits.nofile.soft``."""
    value: Any = None
    """Plain JSON value; None = looked, could not tell (then `why` says the reason)."""
    unit: str = ""
    source: str = ""
    """File, command or call the value was read from."""
    host: str = ""
    rank: int | None = None
    why: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name} unknown ({self.why or 'not read'})"
        return f"{self.name} = {self.value}{' ' + self.unit if self.unit else ''}"


@dataclass(frozen=True, slots=True)
class Event(Generic[DataT]):
    """One thing that happened, and the line that says so."""

    kind: str
    """Dotted name of docs/events.md, e.g. ``c10d.timeout``."""
    text: str = ""
    """The raw line (or the raw lines, newline separated), never a paraphrase."""
    path: str = ""
    line: int = 0
    """1-based line number in `path`; 0 where the source has no lines."""
    time: float | None = None
    """Seconds since the epoch where the line has date and time, else None."""
    host: str = ""
    pid: int | None = None
    rank: int | None = None
    """Global rank, where it is known."""
    data: DataT = field(default_factory=dict)  # type: ignore[assignment]
    """What the line says: the class of `core.kinds` for this kind, also where a mapping was given;
    the mapping itself for kinds that are not there."""
    count: int = 1
    """How many equal lines this event stands for."""

    def __post_init__(self) -> None:
        if not isinstance(self.data, Fields):
            given: Any = self.data
            # the record is frozen, also for itself
            object.__setattr__(self, "data", typed_fields(self.kind, given))

    def __str__(self) -> str:
        if self.line:
            where = f"{self.path}:{self.line}"
        else:
            where = self.path
        return f"{where}  {self.text.splitlines()[0] if self.text else self.kind}"


def fields_of(event: Event) -> dict[str, Any]:
    """Every field of an event by name.

    It is for code that is about no kind in particular.
    """
    if isinstance(event.data, Fields):
        return msgspec.structs.asdict(event.data)
    return dict(event.data)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One timed and checked collective, for one message size."""

    op: str
    bytes: int
    """Message size S as nccl-tests defines it for `op` (REFERENCE of nccl-tests)."""
    dtype: str
    ranks: int
    hosts: int
    backend: str
    """``nccl`` or ``gloo``."""
    time_us: float
    """Median time of one call, mean over the ranks, in microseconds."""
    p99_us: float | None
    """Time that 99 % of `singles` single calls do not exceed; None where the source gives no
    distribution."""
    spread: float | None
    """(p90 - p10) / median over the repeats, dimensionless; None as above."""
    algbw: float
    """S / time in GB/s (1e9 bytes)."""
    busbw: float | None
    """algbw times nccl-tests' factor, in GB/s; None with one rank (factor 0)."""
    wrong: int | None
    """Elements with a wrong value over all ranks; None = not checked."""
    repeats: int = 0
    run: str = ""
    """Name of the run folder it came from."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables set for this run."""
    graph_us: float | None = None
    """Time of one call inside a replayed CUDA graph, without Python and its launch; None where none
    was replayed."""
    expected: float | None = None
    """What this topology should give, busbw in GB/s; None = no derivation."""
    singles: int = 0
    """Single calls that `p99_us` speaks of, of fewer than 100 the slowest; 0: of batches of calls,
    or not told."""

    @property
    def ratio(self) -> float | None:
        """Measured / expected, where both are known."""
        if self.busbw and self.expected:
            return self.busbw / self.expected
        return None

    def __str__(self) -> str:
        known = self.ratio and self.expected and self.ratio <= 1  # what is exceeded was no maximum
        if known:
            bound = (f" of {self.expected:.2f}", f" = {100 * (self.ratio or 0):.1f} %")
        else:
            bound = ("", "")
        bus = ""
        if self.busbw is not None:
            bus = f", busbw {self.busbw:.2f}{bound[0]} GB/s{bound[1]}"
        more = {"p99": self.p99_us, "graph": self.graph_us}
        more_words = []
        for name, value in more.items():
            if value is not None:
                more_words.append(f"{name} {value:,.1f} µs")
        beside = ", ".join(more_words)
        time = f"{self.time_us:,.1f} µs{f' ({beside})' if beside else ''}"
        return f"{self.op} of {self.bytes:,} B on {self.ranks} ranks: {time}{bus}"


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do, and how to know that it worked."""

    do: str
    env: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    code: str = ""
    why: str = ""
    check: str = ""
    risk: str = ""
    change: Mapping[str, Any] = field(default_factory=dict)
    """What a machine changes to try this on a small job, in the words of `runs.changed`; `env` is
    tried by itself."""

    @property
    def exports(self) -> list[str]:
        """The lines that set its variables in a shell."""
        return [f"export {name}={shlex.quote(str(value))}" for name, value in self.env.items()]

    @property
    def to_copy(self) -> list[str]:
        """All lines that a person copies: variables, command, code."""
        lines = self.exports
        if self.command:
            lines.append(f"$ {self.command}")
        return lines + self.code.splitlines()


OUTCOMES = {
    "works": "it succeeds and every value is right",
    "same": "it fails with the same first cause as before",
    "other": "it fails, but otherwise than before",
    "fails": "it fails too, in the same way or in that of another suspect",
    "faster": "it succeeds and its bus bandwidth is at least half as much again",
    "named": "the diagnosis of the changed run proves this cause",
    "found": "the look shows it",
    "clear": "the look does not show it",
}
"""What an experiment may show of a cause.  The last two are of experiments that only look."""
MOVES = {
    "proven": "of all that were asked, it alone fits",
    "supported": "it fits, and so do others",
    "refuted": "it does not fit",
    "open": "this experiment could not tell",
}
"""What an experiment says of a cause."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One question to the machine, with the answer that each cause predicts."""

    question: str
    plan: Mapping[str, Any] = field(default_factory=dict)
    """What is changed in the same small job, in the words of `runs.changed`.

    It may also be ``{"check": "connections"}`` or ``{"check": "resources"}``: then there is no job,
    and only the connections between its hosts, or what the machine grants, are looked at.
    """
    predicts: Mapping[str, str] = field(default_factory=dict)
    """cause id → what will be seen if that cause is the right one, in words."""
    expects: Mapping[str, str] = field(default_factory=dict)
    """The same for a machine: cause id → one of `OUTCOMES`."""


Evidence = Event | Fact | Measurement


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict on one cause."""

    cause: str
    verdict: Verdict
    strength: Strength | None = None
    """proven: a line or an experiment says so; likely: indirect; possible: only the symptom
    fits."""
    say: str = ""
    """One sentence with this job's ranks, hosts and numbers."""
    culprits: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keys ``ranks``, ``hosts``, ``gpus``, ``interfaces``."""
    evidence: tuple[Evidence, ...] = ()
    missing: tuple[str, ...] = ()
    """What would settle it (verdict ``unknown``)."""
    advice: tuple[Advice, ...] = ()
    next: Experiment | None = None

    @property
    def experiment_first(self) -> bool:
        """Whether to make sure of it comes before the fix: only the symptom fits."""
        return self.next is not None and self.strength == "possible"

    def __str__(self) -> str:
        mark = {"found": "FOUND", "clear": "clear", "unknown": "unknown"}[self.verdict]
        strength = ""
        if self.strength:
            strength = f" ({self.strength})"
        return f"{mark}{strength} {self.cause}: {self.say}"


def found(
    cause: str,
    strength: Strength,
    summary: str,
    evidence: list[Evidence] | tuple[Evidence, ...],
    *,
    ranks: tuple[int, ...] = (),
    hosts: tuple[str, ...] = (),
    gpus: tuple[str, ...] = (),
    interfaces: tuple[str, ...] = (),
    advice: tuple[Advice, ...] = (),
    next: Experiment | None = None,
) -> Finding:
    """The verdict ``found``.  Without evidence it is a programming error (ValueError)."""
    if not evidence:
        raise ValueError(f"{cause}: a finding needs at least one line of evidence")
    culprits = {"ranks": ranks, "hosts": hosts, "gpus": gpus, "interfaces": interfaces}
    # two signs of one cause may share a line
    once = {tuple(cite(piece).values()): piece for piece in evidence}
    return Finding(
        cause, "found", strength, summary, culprits, tuple(once.values()), (), advice, next
    )


def clear(cause: str, summary: str = "", evidence: tuple[Evidence, ...] = ()) -> Finding:
    """The verdict ``clear``: what would show it was looked at, and is not there."""
    return Finding(cause, "clear", say=summary, evidence=evidence)


def unknown(cause: str, *missing: str, next: Experiment | None = None) -> Finding:
    """The verdict ``unknown``: `missing` names the evidence that would settle it."""
    return Finding(cause, "unknown", missing=missing, next=next)


def cite(evidence: Evidence) -> dict[str, Any]:
    """One piece of evidence as ``{path, line, text}``, the form of ``diagnose --json``."""
    if isinstance(evidence, Event):
        return {"path": evidence.path, "line": evidence.line, "text": evidence.text}
    if isinstance(evidence, Fact):
        at = ""
        if evidence.host:
            at = f" on {evidence.host}"
        return {"path": evidence.source + at, "line": 0, "text": str(evidence)}
    return {"path": evidence.run, "line": 0, "text": str(evidence)}


def to_json(record: Any) -> str:
    """One record as one JSON line (no newline).

    NaN, which JSON does not know, becomes null; a byte that is no UTF-8 (a lone surrogate) stands
    as its code.
    """
    # nearly no record has such a byte, so the slow way is taken only where the quick one fails
    try:
        return ENCODER.encode(record).decode()
    except UnicodeEncodeError:
        return ENCODER.encode(visible(msgspec.to_builtins(record, enc_hook=str))).decode()


def visible(value: Any) -> Any:
    """A plain value without bytes that are no UTF-8.

    In its texts these (lone surrogates) stand as their codes.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {visible(key): visible(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [*map(visible, value)]
    return value


def safe(text: object) -> str:
    """Text made safe for HTML, in figures and frames of pages; views use `_html`."""
    return escape(str(text), quote=True)
