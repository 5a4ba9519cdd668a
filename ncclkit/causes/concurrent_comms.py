"""Several communicators are used at once, in different order on different ranks

What you see
    A hang that comes and goes with timing, when tensor, data and pipeline parallelism or a user
    thread each have their own process group; watchdogs of two groups fire at the same time, each
    rank waiting in another group.

Why it happens
    An NCCL kernel occupies the GPU until its partners run theirs.  If rank 0 has launched group A's
    collective and rank 1 group B's, on different streams without any order, each may wait for a
    kernel that cannot start because the first one holds the GPU's resources.  CUDA does not promise
    that kernels on two streams make progress together.

How to be sure
    The Flight Recorder shows for two ranks that the in-flight entries of two groups were launched
    in opposite order; CUDA_DEVICE_MAX_CONNECTIONS=1 or NCCL_LAUNCH_ORDER_IMPLICIT=1 (2.26+) makes
    the hang disappear.

What to do
    Do not call collectives from several threads without a lock.

Read more
    NCCL user guide: using multiple NCCL communicators concurrently; NCCL_LAUNCH_ORDER_IMPLICIT.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from ncclkit.analysis.calls import grouped, of_several_groups, op_of
from ncclkit.analysis.picks import (
    among,
    first_finding,
    name_ranks,
    otherwise,
    pick,
    ranks_in,
    who_of,
)
from ncclkit.analysis.rank_states import rank_states
from ncclkit.analysis.waits import (
    inside,
    places_now,
    positions_of_case,
    waiting_time_of_case,
)
from ncclkit.causes import _printed
from ncclkit.causes._experiments import experiment_of
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    C10dTimeout,
    FlightEntry,
    FlightMissing,
    FlightStuck,
    NcclDestroy,
    NcclOp,
    RehearsalVerdict,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found

ID = "concurrent_comms"
PLACES = 8
"""Ranks whose lines are named at most."""
explains = (
    "c10d.timeout",
    "send_recv_mismatch",
    "slow_rank",
    "timeout_too_short",
    "rank_divergence",
)


def diagnose(case: Case) -> Finding:
    """Found where ranks wait for each other in different groups.

    It is also found where they use several communicators on several streams.
    """
    went_well = [
        *case.of(NcclDestroy),
        *rank_states(case).ended.values(),
        *case.of(C10dTimeout),
    ]
    return first_finding(
        case,
        _all_started,
        _order_in_rehearsal,
        _launched_in_other_order,
        _in_text,
        _both_everywhere,
        _two_groups,
        _point_to_point,
    ) or otherwise(
        ID, went_well, "No two groups wait for each other.", "Flight Recorder dumps of all ranks"
    )


def _states_of_ranks(event: Event) -> set[str]:
    """What the dumps say of a collective over its ranks.

    It is scheduled, started or both.
    """
    return set(map(str, (event.data.states or {"": ""}).values()))


def _order_in_rehearsal(case: Case) -> Finding | None:
    """A rehearsal saw two groups used in different orders, which passes over gloo."""
    for verdict in case.of(RehearsalVerdict, verdict="order"):
        say = (
            "Ranks call the collectives of two groups in different orders without waiting between"
            " them; over NCCL their kernels may wait for each other."
        )
        ranks = tuple(verdict.data.odd)
        return found(ID, "likely", say, [verdict], ranks=ranks, advice=_advice(), next=None)
    return None


def _launched_in_other_order(case: Case) -> Finding | None:
    """By the dumps, ranks wait for ranks that wait in another group."""
    stuck = case.of(FlightStuck)
    mixed = []
    for event in stuck:
        if {"scheduled", "started"} <= _states_of_ranks(event):
            mixed.append(event)
    crossed = _crossed_gaps(case.of(FlightMissing)) or [
        event for event in stuck if event.data.crossed
    ]
    several_groups = len({event.data.group for event in stuck}) > 1
    if not crossed and not (several_groups and mixed):
        return None
    lines = crossed or mixed
    groups = sorted({_group_name(event) for event in stuck + lines})
    say = (
        f"Ranks wait for each other in {len(groups)} groups at once ({', '.join(groups[:4])})"
        f"{waiting_time_of_case(case)}{places_now(case)}: the "
        "ranks launched the groups' collectives in different orders."
    )
    # ranks that call in different order wait for each other whatever the number of queues
    ask_it = None
    if not crossed:
        ask_it = experiment(case)
    strength: Strength = "likely"
    if crossed and crossed[0].data.rehearsed:
        strength = "proven"
    return found(
        ID,
        strength,
        say,
        pick(lines, stuck),
        ranks=_smaller_side(crossed),
        advice=(*_one_order(case), *_advice()),
        next=ask_it,
    )


def _point_to_point(case: Case) -> Finding | None:
    """A process sends and receives on several communicators, and never ended.

    It is told by NCCL's list of calls.
    """
    calls = []
    for event in case.of(NcclOp):
        if event.data.op in ("Send", "Recv"):
            calls.append(event)
    # NCCL's list of calls accuses nobody of a job that went on
    if not calls or case.of(NcclDestroy):
        return None
    # a pointer names a communicator within its process only
    by_process: dict[tuple[str, int | None], set[object]] = {}
    for event in calls:
        by_process.setdefault((event.host, event.pid), set()).add(event.data.comm)
    most = max(map(len, by_process.values()))
    # one communicator alone has one order, and its process ended by itself
    if most == 1 and rank_states(case).ended:
        return None
    on = "on one communicator"
    if most > 1:
        on = f"on {most} communicators at once"
    say = (
        f"Point-to-point calls run {on}; concurrent kernels on several streams may block each"
        " other."
    )
    strength: Strength = "possible"
    if most > 1 and case.of(C10dTimeout):
        strength = "likely"
    why = pick(_one_each(calls))
    return found(ID, strength, say, why, advice=_advice(), next=experiment(case))


def _all_started(case: Case) -> Finding | None:
    """By the dumps, calls of several groups run on all of their ranks at once."""
    stuck = []
    for event in case.of(FlightStuck):
        if _states_of_ranks(event) == {"started"}:
            stuck.append(event)
    groups = {event.data.group for event in stuck}
    if len(groups) < 2:
        return None
    names = sorted({_group_name(event) for event in stuck})
    say = (
        f"Collectives of {len(names)} groups ({', '.join(names[:4])}) have started on all of"
        " their ranks and none ends: their kernels wait for each other on the GPUs."
    )
    return found(ID, "likely", say, pick(stuck), advice=_advice(), next=experiment(case))


def _group_name(event: Event) -> str:
    """The description of a group where its program gave it one, else its number."""
    desc = str(event.data.desc or "")
    if desc not in ("", "undefined"):
        return desc
    return str(event.data.group)


def _in_text(case: Case) -> Finding | None:
    """Flight Recorder entries printed in a log.

    Two ranks launched work of the same groups in opposite order.
    """
    printed = _printed.opposite_order(case)
    if not printed:
        return None
    names = list(dict.fromkeys(str(e.data.desc or e.data.group) for e in printed))
    say = f"{who_of(printed)} have work of the groups {' and '.join(names)} in flight, "
    say += "launched in opposite order: each waits for a kernel that is queued behind the other."
    return found(ID, "likely", say, pick(printed), advice=_advice(), next=None)


def _both_everywhere(case: Case) -> Finding | None:
    """Collectives of two groups have started on all ranks, and neither ends.

    Their kernels wait.
    """
    sides = _started_everywhere(case)
    if len(sides) < 2:
        return None
    parts = []
    for name, events in sorted(sides.items()):
        parts.append(f"{op_of(events[0])} of {name}")
    say = f"Collectives of {len(sides)} groups have started on all of their ranks and none ends ("
    say += f"{', '.join(parts[:4])}): their kernels wait for each other on the GPUs."
    why = pick([events[0] for events in sides.values()], *sides.values(), limit=6)
    return found(ID, "likely", say, why, advice=_advice(), next=experiment(case))


def _started_everywhere(case: Case) -> dict[str, list[Event]]:
    """Group → the lines by which ranks are in one collective of it.

    They are the same two or more ranks, all that are known.
    """
    members = set(rank_states(case).members)
    if len(members) < 2:
        return {}
    whole = {}
    for call, events in _calls_begun(case).items():
        # a rank that is missing would be the reason by itself
        if set(ranks_in(events)) == members:
            whole[call] = events
    calls_of_name = Counter(name for name, _ in whole)
    found = {}
    for (name, _), events in whole.items():
        # a group of which two calls seem to run at once is several groups of one name
        if calls_of_name[name] == 1:
            found[name] = events
    return found


def _calls_begun(case: Case) -> dict[tuple[str, object], list[Event]]:
    """Group and number of a collective → the lines by which a rank is in it."""
    calls: dict[tuple[str, object], list[Event]] = {}
    for event, group, desc in grouped(case.events):
        name = desc or group
        if event.kind == "c10d.timeout" and name:
            lines = calls.setdefault((name, event.data.seq), [])
            lines.append(event)
    for event in case.of(FlightEntry):
        entry = event.data
        is_collective = entry.peer is None and bool(entry.group)
        if entry.state == "started" and is_collective:
            name = str(entry.desc or entry.group)
            lines = calls.setdefault((name, entry.seq), [])
            lines.append(event)
    return calls


def _two_groups(case: Case) -> Finding | None:
    """Watchdogs timed out in two groups at once.

    Some ranks did so in one group, other ranks in the other.
    """
    waits = []
    for event in rank_states(case).waiting.values():
        if event.kind == "c10d.timeout":
            waits.append(event)
    named = []
    for event, group, desc in grouped(case.events):
        if group or desc:
            named.append((event, desc or group))
    sides: dict[str, list[Event]] = {}
    is_wait = among(waits)
    for event, name in named:
        if is_wait(event):
            sides.setdefault(name, []).append(event)
    if named:
        # where groups have names, lines without one may be of any of them
        nameless = []
    else:
        nameless = waits
    if of_several_groups(nameless):
        for event in nameless:
            sides.setdefault(f"{op_of(event)} {event.data.seq}", []).append(event)
    if len(sides) < 2:
        return None
    parts = [f"{name_ranks(ranks_in(events))} in {name}" for name, events in sorted(sides.items())]
    say = (
        f"Ranks timed out in different groups at once: {'; '.join(parts[:4])}; they may wait for"
        " each other."
    )
    why = pick([events[0] for events in sides.values()], waits, limit=6)
    return found(ID, "possible", say, why, advice=_advice(), next=experiment(case))


def _crossed_gaps(gaps: list[Event]) -> list[Event]:
    """Two gaps of different groups, each missing a rank that waits in the other."""
    lacking = _places_of_ranks(gap.data.missing for gap in gaps)
    held = _places_of_ranks(gap.data.waiting for gap in gaps)
    for one in gaps:
        theirs = set()
        for rank in one.data.missing or ():
            theirs.update(held[rank])
        if theirs:
            back = set()
            for rank in one.data.waiting or ():
                back.update(lacking[rank])
        else:
            back = set()
        crossing = (gaps[place] for place in sorted(theirs & back))
        # within one group two gaps are the same wait, seen twice
        two = next((gap for gap in crossing if gap.data.group != one.data.group), None)
        if two is not None:
            return [one, two]
    return []


def _places_of_ranks(sides: Iterable[Sequence[int]]) -> dict[int, list[int]]:
    """Rank → the numbers of the sides that it is on."""
    places: dict[int, list[int]] = defaultdict(list)
    for number, ranks in enumerate(sides):
        for rank in ranks:
            places[rank].append(number)
    return places


def _smaller_side(gaps: list[Event]) -> tuple[int, ...]:
    """Ranks that wait in the smaller of the two waiting groups.

    There are none where both are equal.
    """
    # none where all have entered
    missing = []
    for gap in gaps:
        if isinstance(gap.data, FlightMissing):
            missing.append(gap.data)
    sides = sorted((tuple(gap.waiting) for gap in missing), key=len)
    if len(sides) == 2 and len(sides[0]) < len(sides[1]):
        return sides[0]
    return ()


def _one_each(calls: list[Event]) -> list[Event]:
    last = {event.data.comm: event for event in calls}
    return list(last.values())


def _one_order(case: Case) -> tuple[Advice, ...]:
    """Which lines are to be brought into one order, of ranks that were looked at as they wait."""
    positions = positions_of_case(case)
    places = []
    for rank, stand in sorted(positions.items()):
        condition = ""
        if stand.condition:
            condition = f", {inside(stand.condition)}"
        if stand.place:
            places.append(f"rank {rank} calls {stand.call} at {stand.place}{condition}")
    if not 1 < len(places) <= PLACES:
        return ()
    return (
        Advice(
            "Let all ranks call the collectives of these groups in the same order: now"
            f" {'; '.join(places)}.",
            why="Each side waits in its group for ranks that wait in the other one.",
            check="`ncclkit rehearse` passes, and the job passes these lines.",
            risk="None.",
        ),
    )


def _advice() -> tuple[Advice, ...]:
    return (
        Advice(
            "Launch the collectives of all groups in one agreed order.",
            env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
            code=(
                "torch.cuda.current_stream().wait_stream(other)  # before the second group's"
                " collective"
            ),
            why="Two NCCL kernels on one GPU may each hold what the other needs.",
            check="The job passes the point at which it hung a hundred times.",
            risk="Less overlap of communication and computation.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Run the same job with one hardware queue."""
    return experiment_of(
        "Does the hang disappear when kernels are launched in one queue?",
        {"env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_LAUNCH_ORDER_IMPLICIT": "1"}},
        {
            ID: ("works", "it disappears"),
            "send_recv_mismatch": ("same", "it stays"),
            "slow_rank": ("same", "it stays; one rank is missing"),
        },
    )


REMEDIES = _advice()
