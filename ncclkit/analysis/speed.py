"""Whether the last live test was as fast as it should be.

It tells also what else used its GPUs and cores meanwhile.  `measured_speed` is what every verdict
on a live test rests on: of the command, the report and the notebook.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ncclkit.analysis.once import once
from ncclkit.core.bandwidth import Judgement, first_judgement, recorded_bound
from ncclkit.core.case import Case
from ncclkit.core.kinds import RunEnd, TelemetryOthers
from ncclkit.core.model import Event
from ncclkit.core.text import plural, start

NEEDED = 0.5
"""Share of a core that each rank needs at least for its test to say something of this host."""


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """The fastest large message of a live test beside its bound.

    It holds also what others did in the time of the test.
    """

    judgement: Judgement
    others: tuple[Event, ...] = ()
    """What processes of others used, one event for each host where they did."""

    @property
    def slow(self) -> bool:
        """Whether it is slower than it should be beyond doubt."""
        return self.judgement.slow

    @property
    def warning(self) -> str:
        """That it is slower than it should be; empty where it is not.

        It says also what else used its GPUs and cores.
        """
        if not self.slow:
            return ""
        return f"{self.judgement.warning}.{others_in_words(self.others)}"


@once
def measured_speed(case: Case) -> MeasuredSpeed | None:
    """The speed of the last live test of a case.

    It is None where the test did not succeed, or nothing is known to compare with.
    """
    run = ""
    if case.measurements:
        run = case.measurements[-1].run
    if not run or not _succeeded(case, run):
        return None
    rows = [row for row in case.measurements if row.run == run]
    known = None
    for row in rows:
        if row.op == rows[0].op and row.expected:
            known = row
            break
    judgement = None
    if known:
        judgement = first_judgement(rows, recorded_bound(known, case.facts))
    if judgement is None:
        return None
    return MeasuredSpeed(judgement, tuple(disturbing(_of_run(case.of(TelemetryOthers), run))))


def disturbing(events: Iterable[Event[TelemetryOthers]]) -> list[Event]:
    """Events of hosts whose GPUs or cores others used."""
    disturbances = []
    for event in events:
        if event.data.gpus or event.data.holders or crowded(event):
            disturbances.append(event)
    return disturbances


def crowded(event: Event[TelemetryOthers]) -> bool:
    """Whether others left a host's ranks too few cores.

    Too few are less than half of the cores that they need.
    """
    used, cores, ranks = event.data.cores_used, event.data.cores, event.data.ranks
    if used is None or cores is None or ranks is None:
        return False
    # more ranks than cores can never run at once
    needed = min(ranks, cores)
    return needed > 0 and used >= cores - NEEDED * needed


def busy_cores(events: Iterable[Event[TelemetryOthers]]) -> str:
    """``this host was busy during the test: …``; empty where none was.

    The rest is such as that others used 1.7 of its 2 cores (load 13.6).
    """
    found = next((event for event in events if crowded(event)), None)
    if found:
        return f"this host was busy during the test: others {_cores(found)}"
    return ""


def others_in_words(events: Sequence[Event[TelemetryOthers]]) -> str:
    """What others used during a test, in sentences that begin with a blank.

    It is empty where nothing is known.
    """
    said = []
    for event in events:
        where = ""
        # a host that is alone needs no name
        if event.host and len(events) > 1:
            where = f" on {event.host}"
        if crowded(event):
            said.append(f" Meanwhile other processes{where} {_cores(event)}.")
        for gpu, share in event.data.gpus.items():
            said.append(
                f" GPU {gpu}{where} was busy {share:.0f} % of the time before a rank came: others"
                " use it."
            )
        if event.data.holders:
            said.append(f" {_holders(event)} used its GPUs{where} during the test.")
    return "".join(said)


def _cores(event: Event[TelemetryOthers]) -> str:
    load = ""
    if event.data.load:
        load = f" (load {event.data.load:g})"
    cores = plural(event.data.cores or 0, "core")
    return f"used {event.data.cores_used:.1f} of its {cores}{load}"


def _holders(event: Event[TelemetryOthers]) -> str:
    holders = event.data.holders
    lines = []
    for row in holders[:3]:
        lines.append(f"{row['name']} (pid {row['pid']}, {row['memory']} MiB)")
    named = ", ".join(lines)
    return f"{start(plural(len(holders), 'other process'))}, {named},"


def _succeeded(case: Case, run: str) -> bool:
    ends = _of_run(case.of(RunEnd), run)
    return any(event.data.reason == "done" for event in ends)


def _of_run(events: Iterable[Event], run: str) -> list[Event]:
    # the path of an event may be relative
    return [event for event in events if f"/{run}/" in f"/{event.path}"]
