"""What NCCL's RAS counted, and where it leaves a job that hangs.

RAS counts launches by the host.  One report of a healthy job may find ranks apart, as they drift;
ranks that are apart in two reports, between which nothing was launched, stay apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ncclkit.agent.digits import is_whole
from ncclkit.analysis.communicators import communicators
from ncclkit.analysis.waits import RankPosition, rank_positions
from ncclkit.core import text
from ncclkit.core.kinds import RasChange, RasCommunicator, RasPlace, RasReport, TelemetryUtilization
from ncclkit.core.model import Event

Comm = Event[RasCommunicator]
UNCOUNTED = (
    "RAS counts no send, receive or all-to-all, and no call inside a CUDA graph, so these may"
    " stand or go on unseen"
)
AS_HEALTHY = "as ranks of a healthy job are for moments"
AGAIN = "a second report some seconds later tells whether it stays so"


def reports_of(events: Iterable[Event], kind: type) -> list[Event]:
    """The events with data of one class."""
    return [event for event in events if isinstance(event.data, kind)]


def stands_still(events: Iterable[Event], comm: Comm) -> bool:
    """Whether two reports show that nothing was launched on a communicator in between."""
    changes = []
    for event in events:
        if isinstance(event.data, RasChange) and event.data.hash == comm.data.hash:
            changes.append(event.data)
    return bool(changes) and not any(change.moved or change.unnamed for change in changes)


def global_ranks(events: Sequence[Event], comm: Comm) -> Mapping[int, int] | None:
    """Rank of the communicator → rank of the job; None where nothing tells.

    Of a communicator of the whole job they are the same.
    """
    size = min(comm.data.size or 0, 1 << 16)
    for made in communicators(events):
        if _as_number(made.id) == _as_number(comm.data.hash) and made.ranks:
            return made.ranks
    most = 0
    for event in reports_of(events, RasReport):
        most = max(most, event.data.gpus or 0)
    # where the job has more GPUs, ranks of the communicator are not those of the job
    if not size or most > size:
        return None
    return {rank: rank for rank in range(size)}


def _known_numbers(numbers: Mapping[int, int] | None, ranks: Iterable[int]) -> list[int]:
    """The ranks of the job, or those of the communicator where nothing tells them."""
    if numbers is None:
        return list(ranks)
    known = []
    for rank in ranks:
        known.append(numbers.get(rank, rank))
    return known


def _as_number(name: str) -> int | None:
    try:
        return int(name, 16)
    except ValueError:
        return None


def places_in_words(comm: Comm, ranks: Iterable[int]) -> str:
    """``GPUs 0-3 on 192.0.2.13``, of ranks of the communicator; "" where none is known."""
    gpus: dict[str, list[str]] = {}
    for rank in ranks:
        place: RasPlace | None = comm.data.places.get(str(rank))
        if place and place["host"]:
            gpus.setdefault(place["host"], []).append(place["gpu"])
    parts = []
    for host, held in list(gpus.items())[:4]:
        named = sorted({gpu for gpu in held if gpu})
        if named and all(map(is_whole, named)):
            parts.append(f"{text.numbered('GPU', sorted(map(int, named)))} on {host}")
        elif named:
            parts.append(f"GPU{'s' if len(named) > 1 else ''} {', '.join(named[:8])} on {host}")
        else:
            parts.append(host)
    if len(gpus) > 4:
        parts.append(f"{len(gpus) - 4} more nodes")
    return ", ".join(parts)


def in_brackets(where: str) -> str:
    """`` (GPUs 0-3 on node-1)``, or nothing where nothing is known."""
    if where:
        return f" ({where})"
    return ""


def hosts_of(comm: Comm, ranks: Iterable[int]) -> list[str]:
    """The hosts of ranks of the communicator, as the report names them."""
    hosts = set()
    for rank in ranks:
        place: RasPlace | None = comm.data.places.get(str(rank))
        if place and place["host"]:
            hosts.add(place["host"])
    return sorted(hosts)


def counts_in_words(comm: Comm) -> str:
    """``640 of 641 AllReduce``: the operation in which the latest ranks are furthest behind."""
    for op, (least, most) in comm.data.spreads.items():
        if most - least == count_gap(comm):
            return f"{least} of {most} {op}"
    return ""


def count_gap(comm: Comm) -> int:
    """Calls by which the lowest count of an operation is below its highest."""
    gaps = [most - least for least, most in comm.data.spreads.values()]
    return max(gaps, default=0)


def apart(events: Iterable[Event]) -> list[Comm]:
    """Communicators whose ranks have launched different numbers of calls, by the last report."""
    last: dict[str, Comm] = {}
    for event in reports_of(events, RasCommunicator):
        last[event.data.hash] = event
    return [comm for comm in last.values() if comm.data.spreads]


# ---------------------------------------------------------------- in a sentence


def launch_sentence(events: Sequence[Event]) -> str:
    """Where a job stands by RAS, GPUs and stacks, in one sentence; "" without a RAS report.

    It tells a call that was launched everywhere and ends nowhere from one that a rank has not
    launched, and both from a rank that is in its own code.
    """
    if not reports_of(events, RasReport):
        return ""
    remarks = [_gone_in_words(events), _errors_in_words(events), behind_sentence(events)]
    said = " ".join(remark for remark in remarks if remark)
    if said:
        return said
    seen = rank_positions(events)
    own = []
    waiting = []
    for rank, stand in seen.items():
        if stand.waits_for_ranks:
            waiting.append(rank)
        elif stand.is_busy:
            own.append(rank)
    if own and waiting:
        return (
            f"{text.start(text.ranks(own))} {text.verb(own, 'is', 'are')} in"
            f" {text.verb(own, 'its', 'their')} own code{_place_of(seen, own)}, and"
            f" {text.ranks(waiting)} {text.verb(waiting, 'waits', 'wait')};"
            f" by NCCL's RAS no rank is a counted call behind ({UNCOUNTED})."
        )
    return _launched_everywhere(
        events,
        waiting,
        seen,
    )


def behind_sentence(events: Sequence[Event]) -> str:
    """Which ranks have launched fewer calls, and how sure that is; "" where none has."""
    behind = apart(events)
    if not behind:
        return ""
    return _not_launched(
        events,
        behind[0],
        rank_positions(events),
    )


def _gone_in_words(events: Sequence[Event]) -> str:
    """Processes that RAS lost, as a sentence; "" where it lost none."""
    report: RasReport = reports_of(events, RasReport)[-1].data
    if report.dead_number:
        named = in_brackets(", ".join(report.dead[:8]))
        who = f"{text.plural(report.dead_number, 'process')}{named}"
        return f"{who} could not be reached by NCCL's RAS for a minute: gone, frozen or cut off."
    if report.silent_number:
        named = in_brackets(", ".join(report.silent[:8]))
        return (
            f"{text.plural(report.silent_number, 'process')}{named} did not answer NCCL's RAS in"
            " time: stopped, cut off or overloaded."
        )
    return ""


SECONDARY = ("remote", "in progress", "aborted")
"""What errors are like that ranks report because of another one."""


def _errors_in_words(events: Sequence[Event]) -> str:
    """Errors and odd states that communicators report, as a sentence; "" where there is none."""
    last: dict[str, Comm] = {}
    for event in reports_of(events, RasCommunicator):
        last[event.data.hash] = event
    parts = []
    for comm in last.values():
        held: dict[str, list[int]] = {}
        for rank, error in comm.data.errors.items():
            held.setdefault(f"reported {error}", []).append(int(rank))
        for rank, status in comm.data.statuses.items():
            # of a job that runs, whoever is in another state
            if status != "RUNNING":
                held.setdefault(f"in state {status}", []).append(int(rank))
        numbers = global_ranks(events, comm)
        of = ""
        if not numbers:
            of = f" of communicator {comm.data.hash}"
        for what, ranks in held.items():
            known = _known_numbers(numbers, ranks)
            after = ""
            if what.startswith("reported") and any(word in what.lower() for word in SECONDARY):
                after = ", which follows from another rank's trouble"
            parts.append(f"{text.ranks(known)}{of} {what}{after}")
        for error, number in comm.data.error_shares.items():
            if not held.get(f"reported {error}"):
                parts.append(f"{number} ranks{of} reported {error}")
    if not parts:
        return ""
    return f"By NCCL's RAS {'; '.join(parts[:6])}."


def _not_launched(
    events: Sequence[Event],
    comm: Comm,
    seen: Mapping[int, RankPosition],
) -> str:
    """The sentence on ranks that have launched fewer calls."""
    data = comm.data
    numbers = global_ranks(events, comm)
    late = _known_numbers(numbers, data.late)
    of = ""
    if not numbers:
        of = f" of communicator {data.hash} ({data.size} ranks)"
    if data.crossed:
        spreads = comm.data.spreads.items()
        calls = ", ".join(f"{low} to {high} {op}" for op, (low, high) in spreads)
        return f"Ranks made different calls{of} by NCCL's RAS: {calls} launched."
    if len(late) < data.late_number:
        ahead = _known_numbers(numbers, data.ahead)
        not_late = ""
        if ahead:
            not_late = f"; {text.ranks(ahead)} {text.verb(ahead, 'is', 'are')} not"
        who = f"{data.late_number} of {data.size} ranks, which the report does not name{not_late},"
        who += " have"
    else:
        where = in_brackets(places_in_words(comm, data.late))
        who = f"{text.start(text.ranks(late))}{of}{where}"
        who += f" {text.verb(late, 'has', 'have')}"
    say = f"{who} launched {counts_in_words(comm)} by NCCL's RAS"
    own = []
    for rank in late:
        if numbers and rank in seen and seen[rank].is_busy:
            own.append(rank)
    if own:
        say += f", {text.verb(own, 'and is', 'and are')} in own code{_place_of(seen, own)}"
    if stands_still(events, comm):
        return f"{say}, and nothing was launched between two reports: the others wait for that."
    return f"{say} at one moment, {AS_HEALTHY}: {AGAIN}."


def _place_of(seen: Mapping[int, RankPosition], ranks: Sequence[int]) -> str:
    places = {seen[rank].place for rank in ranks}
    if len(places) == 1:
        return in_brackets(places.pop())
    return ""


def _launched_everywhere(
    events: Sequence[Event], waiting: Sequence[int], seen: Mapping[int, RankPosition]
) -> str:
    """The sentence on a job in which no rank is a counted call behind."""
    changes = reports_of(events, RasChange)
    still = bool(changes)
    for change in changes:
        if change.data.moved or change.data.unnamed:
            still = False
    gpus = _gpus_in_words(events)
    if still and (waiting and len(waiting) == len(seen)):
        return (
            "Every rank has launched as many calls as the others by NCCL's RAS, none was launched"
            f" between two reports, and all {len(waiting)} ranks wait{gpus}: launched everywhere,"
            f" and none ends, so look at links and GPUs ({UNCOUNTED})."
        )
    if still:
        return (
            "By NCCL's RAS every rank has launched as many calls as the others, and none launched"
            f" another between two reports{gpus}: a call that does not end looks like this, and so"
            f" does a job that has nothing to do ({UNCOUNTED})."
        )
    return (
        "By NCCL's RAS no rank is a call behind, which does not say whether the calls end:"
        f" {AGAIN} ({UNCOUNTED})."
    )


def _gpus_in_words(events: Sequence[Event]) -> str:
    """``, their GPUs 100 % busy at 120 W``: what the GPUs of the ranks did meanwhile.

    A kernel that waits for a peer keeps its GPU busy at little power.
    """
    shares = []
    powers = []
    for event in reports_of(events, TelemetryUtilization):
        if event.data.gpu_busy is not None:
            shares.append(event.data.gpu_busy)
        if event.data.gpu_watts is not None:
            powers.append(event.data.gpu_watts)
    if not shares:
        return ""
    power = ""
    if powers:
        power = f" at {_span(powers)} W"
    return f", their GPUs {_span(shares)} % busy{power}"


def _span(values: Sequence[float]) -> str:
    """``98 to 100``, or ``100`` where all are alike."""
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    if low == high:
        return low
    return f"{low} to {high}"
