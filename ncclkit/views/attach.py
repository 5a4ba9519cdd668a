"""The form of `ncclkit.live.attach`: which processes, Look and Cancel; and where the ranks stand."""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as W

from ncclkit.analysis.frames import places
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event, NcclkitError
from ncclkit.core.text import format_bytes, plural, some
from ncclkit.evidence.logs import forget, is_example
from ncclkit.live.attach import attach
from ncclkit.views._base import Drawn, View
from ncclkit.views._form import Form
from ncclkit.views._html import code, el, fit, fold, join, pre, table
from ncclkit.views._verdict import beside, of_rows
from ncclkit.views.telemetry import run_telemetry_view

TARGETS = "all, or process ids, or job and its Slurm id"
TARGET = re.compile(r"all|job \d{1,12}|(?:\d{1,7}=)?\d{1,10}(?:[ ,]+(?:\d{1,7}=)?\d{1,10})*")


def attach_form(case: Case, target: str = "") -> AttachForm:
    """The form that looks into running processes; ``await form.run()`` does what its Look button does.

    target: ``all`` (every process of this user with a RANK), process ids (one of a rank or a launcher stands for its
    job, ``3=4711`` is rank 3), ``job`` and a Slurm job's id (its ranks on this host), or nothing, and then nothing is
    done.  Raises NcclkitError for anything else.
    """
    return AttachForm(case, target)


class AttachForm(Form):
    """See `attach_form`."""

    IDLE = "Nothing is attached; name the processes of a job that hangs right now on this host"
    ASK = f"Say what to look at: {TARGETS}"
    BUSY = "Looking …"
    CANCELLED = "Cancelled; what was collected until then stays in the case folder"

    def __init__(self, case: Case, target: str) -> None:
        _check(target)
        self._case = case
        self.target = W.Text(value=target, placeholder=TARGETS, description="Look at", layout=W.Layout(width="30em"))
        look = W.Button(description="Look", icon="search", button_style="primary")
        said = f"The form looks at {target}" if target else "The form names nothing to look at"
        super().__init__(said, [self.target], look)

    def asks(self) -> bool:
        """Whether a target is named."""
        _check(self.target.value)
        return bool(self.target.value.strip())

    def wrong(self) -> Mapping[W.Widget, str]:
        """A target that nobody can mean, or a process that is not here."""
        try:
            _check(self.target.value)
        except NcclkitError as error:
            return {self.target: str(error)}
        named = "" if self.target.value.strip().startswith("job") else self.target.value
        pids = [number for number in re.findall(r"(?:\d+=)?(\d+)", named) if not Path("/proc", number).exists()]
        return {self.target: f"There is no process {some(pids)} on this host."} if pids else {}

    def failed(self, why: str, cancelled: bool) -> None:
        """Show why there is no answer, and mark what led to none."""
        super().failed(why, cancelled)
        if not cancelled:
            self.mark(self.target, why)

    def prepare(self) -> Coroutine[Any, Any, View]:
        """The looking, at the processes that the target names."""
        return look(self._case, self.target.value)


async def look(case: Case, target: str) -> View:
    """What the processes of `target` (see `attach_form`) do: equal stacks in one row, utilization of each rank."""
    if is_example(case):
        forget(case)  # what runs here must not be judged with somebody else's recording
    numbers = re.findall(r"[\d=]+", target)
    by_job = target.strip().startswith("job")
    made = await attach(case, () if by_job else numbers, int(numbers[0]) if by_job else None)
    found = diagnose(case).to_dict(made.reading.inputs)["findings"]
    where = stacks_view(made.reading.events, made.problems, found)
    strip = run_telemetry_view(made.folder, made.reading.events)
    return where if strip is None else Drawn(where.summary, strip.figure, join(where.body, el("p", strip.summary)))


def _check(target: str) -> None:
    if target.strip() and not TARGET.fullmatch(target.strip()):
        raise NcclkitError(f"Cannot attach to {target!r}; give {TARGETS}, such as “job 4711”.")


UTILIZATION = ("Rank", "CPU", "Main thread at work", "State", "Sent by TCP", "Received", "Its GPU")


def stacks_view(events: Iterable[Event], problems: Sequence[str] = (), found: Sequence[Mapping[str, Any]] = ()) -> View:
    """Equal stacks together: how many ranks stand where, the rarest first; and how busy each rank was meanwhile."""
    known = list(events)
    said = [(_ranks(held), _verb(waits, len(held)), where, pre(held[0].text)) for held, waits, where in places(known)]
    summary = "; ".join(f"{ranks} {verb} {where}" for ranks, verb, where, _ in said) or "No stack could be read"
    rows = [(ranks, f"{verb} {where}", fold("Stack of the first", stack)) for ranks, verb, where, stack in said]
    loads = [_load(event.rank, event.data) for event in known if event.kind == "telemetry.utilization"]
    cause = [(code(row["cause"]), row["say"]) for row in found]
    seen = {event.rank for event in known if event.kind == "stack" and event.rank is not None}
    headline = beside(of_rows(found), summary[:1].upper() + summary[1:], seen)
    body = join(
        table(("Cause", "What it says"), cause),
        fit(table(("Ranks", "Where they stand", "The whole stack"), rows)),
        el("h5", "How busy they were meanwhile") if loads else "",
        fit(table(UTILIZATION, loads, "nk-numbers")),
        fold(f"Could not be looked at: {len(problems):,}", pre("\n".join(problems)) if problems else "", is_open=True),
    )
    return View(headline, body)


def _load(rank: int | None, data: Mapping[str, Any]) -> tuple[object, ...]:
    traffic = ["–" if data[way] is None else f"{format_bytes(round(data[way]))}/s" for way in ("sent", "received")]
    shares = ["–" if data[name] is None else f"{data[name]:.0f} %" for name in ("cpu", "main", "gpu_busy")]
    return (rank, *shares[:2], data["states"] or "–", *traffic, shares[2])


def _verb(waits: bool, count: int) -> str:
    return ("waits in" if count == 1 else "wait in") if waits else ("is in" if count == 1 else "are in")


def _ranks(held: Sequence[Event]) -> str:
    ranks = sorted(event.rank for event in held if event.rank is not None)
    if not ranks:
        return plural(len(held), "process")
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks):,} ranks ({some(ranks)})"
