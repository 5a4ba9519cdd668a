"""The ranks do not make the same sequence of collective calls

What you see
    A hang at the end of an epoch, at validation, at a checkpoint or after an early stop.  The
    watchdogs name different collectives (one rank ALLREDUCE 512, another ALLGATHER 512), or one
    rank has left the loop while the others wait; DDP may say "Expected to have finished reduction
    in the prior iteration".

Why it happens
    Collectives have no names: NCCL pairs the n-th call of a rank with the n-th call of every other.
    One call more on one rank, and everything after it is paired wrongly.  Usual reasons: data of
    different length per rank, `if rank == 0:` around code that contains a collective
    (save_checkpoint, barrier, metric.compute), parameters that get a gradient on some ranks only,
    an early stop decided on local numbers.

How to be sure
    The Flight Recorder shows the same sequence number with different operations, or a rank whose
    count ended below the others' although it is not busy.  Over NCCL,
    TORCH_DISTRIBUTED_DEBUG=DETAIL stops at the first difference; over gloo it crashes.

What to do
    drop_last, a DistributedSampler or the Join context make the numbers of batches equal.  Take
    decisions such as an early stop on a value that all ranks have reduced.

Read more
    PyTorch: Join (uneven inputs), find_unused_parameters, Flight Recorder.
    torch.distributed.algorithms.join.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ncclkit.analysis.alignment import cited, differing_calls, of_different_calls
from ncclkit.analysis.branches import condition_around, departure, places_of_calls, who_left
from ncclkit.analysis.calls import (
    are_unlike,
    by_call,
    differing_timeouts_of,
    disagreeing,
    elements,
    grouped,
    minority,
    of_several_groups,
    only_point_to_point,
    op_of,
    other_calls,
    own_calls,
    ranks_of,
    said_if_completed,
    said_undecided,
    sides,
    size_of,
    unlike_calls,
)
from ncclkit.analysis.frames import (
    call_within,
    frames_of,
    in_collective,
    own_frame,
    place,
    stacks,
)
from ncclkit.analysis.last_words import ended_unseen, sides_by_tracebacks
from ncclkit.analysis.launchers import launchers
from ncclkit.analysis.launches import (
    counts_in_words,
    global_ranks,
    in_brackets,
    behind_sentence,
    places_in_words,
    stands_still,
)
from ncclkit.analysis.picks import (
    among,
    ddp_ranks,
    failed,
    first_finding,
    in_order,
    matching,
    messages,
    model_mismatch,
    name_ranks,
    otherwise,
    pick,
    ranks_in,
    who_are,
)
from ncclkit.analysis.rank_states import (
    all_waiting,
    how_they_waited,
    rank_of,
    rank_states,
    sequence_of,
)
from ncclkit.analysis.wait_kinds import PEERS, STOPPED, STORE
from ncclkit.analysis.waits import (
    outside_common_path,
    places_now,
    positions_of_case,
    waiting_time_of_case,
)
from ncclkit.causes._experiments import recorded
from ncclkit.causes._printed import differing_entries, printed_value
from ncclkit.causes._settings import PRINT_CALLS, compare_calls
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    C10dMismatch,
    DdpParams,
    FlightMismatch,
    FlightMissing,
    FlightP2p,
    FlightStuck,
    GlooBarrier,
    GlooClosed,
    HorovodStalled,
    JobAlone,
    JobShare,
    PythonException,
    RasChange,
    RasCommunicator,
    RehearsalVerdict,
    Stack,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found
from ncclkit.core.text import start, verb

ID = "rank_divergence"
explains = (
    "c10d.timeout",
    "gloo.timeout",
    "gloo.closed",
    "store.lost",
    "slow_rank",
    "timeout_too_short",
    "send_recv_mismatch",
    "network_loss",
    "rank_exception",
)


def diagnose(case: Case) -> Finding:
    """Found where ranks made different calls, or a rank left the sequence.

    The calls differ at one place of the sequence.
    """
    recorded_calls = (
        _first_use_in_rehearsal,
        _mismatch_in_dumps,
        _launched_more,
        _rank_elsewhere,
        _fingerprint_mismatch,
        _own_calls_differ,
        _printed_mismatch,
        _logged_mismatch,
        _unequal_shares,
    )
    seen_otherwise = (
        _watchdog_mismatch,
        _two_groups,
        _group_of_some,
        _rank_left,
        _rank_ended_unseen,
        _different_lines,
        _ddp_mismatch,
        _stalled_tensors,
        _crossed_by_ras,
        _few_ahead_by_ras,
        _skipped_locally,
        _timeouts_alone,
    )
    finding = first_finding(case, *recorded_calls, *seen_otherwise)
    if finding:
        return finding
    states = rank_states(case)
    went_well = [*states.ended.values(), *case.of("nccl.destroy", "flight.missing", "flight.dump")]
    return otherwise(
        ID,
        went_well,
        "The ranks made the same calls as far as they were recorded.",
        "Flight Recorder dumps of all ranks (TORCH_FR_BUFFER_SIZE=2000), or"
        " TORCH_DISTRIBUTED_DEBUG=DETAIL over NCCL",
    )


def _mismatch_in_dumps(case: Case) -> Finding | None:
    for event in case.of(FlightMismatch):
        if event.data.live:
            # a running job has no sequence numbers that agree: it is told from where ranks stand
            return _live_mismatch(case, event)
        odd, right = sides(event)
        strength: Strength = "proven"
        if event.data.field == "op":
            calls = []
            for group in (*odd, *right):
                calls.append(f"{name_ranks(ranks_of([group]))} called {group.get('value')}")
            say = f"At place {event.data.seq} of the sequence {' where '.join(calls)}"
            undecided = f". {said_undecided(event)}"
        elif event.data.field == "sizes" and other_calls(event):
            calls = []
            for group in (*odd, *right):
                calls.append(f"{name_ranks(ranks_of([group]))} with {group.get('value')}")
            say = (
                f"At place {event.data.seq} of the sequence the ranks called {event.data.op} from "
            )
            say += f"different places of the program: {', '.join(calls)}"
            known = []
            for site in event.data.sites or ():
                if site:
                    known.append(site)
            # two lines of the program are two calls; without them the size alone says so
            strength = "likely"
            if len(set(known)) > 1:
                strength = "proven"
            undecided = "."
        else:
            continue
        # with a majority it is known already who is the odd one
        if right:
            say += f".{said_if_completed(event)}"
            return _finding(case, strength, say, [event], ranks_of(odd))
        left = who_left(case, event)
        if left is None:
            say += places_of_calls(event) + undecided + said_if_completed(event)
            return _finding(case, strength, say, [event], ranks_of(odd))
        say += f"; {_left_words(left.ranks, left.how)}"
        if left.is_live:
            say += f" All of them wait{waiting_time_of_case(case)}."
        return _finding(case, strength, say, [event, *left.lines], left.ranks)
    return None


def _first_use_in_rehearsal(case: Case) -> Finding | None:
    """Only some ranks of a group began with a batch, for which NCCL needs all of them."""
    for verdict in case.of(RehearsalVerdict, verdict="first_use"):
        ranks = tuple(verdict.data.odd)
        say = (
            "batch_isend_irecv is the first call of a group, and over NCCL all of its ranks must"
            f" take part then: {name_ranks(ranks)} did not."
        )
        finding = _finding(case, "likely", say, [verdict], ranks)
        return replace(finding, advice=(FIRST_USE,), next=None)
    return None


FIRST_USE = Advice(
    "Let all ranks of the group make a collective before the batch, or name each rank's GPU when"
    " the job begins.",
    code='dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))',
    why="NCCL makes the communicator of a group at its first use, and waits there for all ranks.",
    check="`ncclkit rehearse` passes, and the job passes the first exchange.",
    risk="With device_id all communicators are made at the start, also those that are not used.",
)


def _left_words(ranks: tuple[int, ...], how: str) -> str:
    """``rank 0 left the common path: it is inside `if rank == 0` at train.py:88.``"""
    verb = "they are"
    if len(ranks) == 1:
        verb = "it is"
    return f"{name_ranks(ranks)} left the common path: {verb} {how}."


def _launched_more(case: Case) -> Finding | None:
    """All ranks of a running job wait, although NCCL has launched more on some of them."""
    seen = positions_of_case(case)
    changes = case.of(RasChange)
    if any(place.call in ("send", "recv") for place in seen.values()):
        return (
            None  # a pair lacks its counterpart, and the others have gone on to the next collective
        )
    still = set()
    for change in changes:
        if not change.data.moved:
            still.add(change.data.hash)
    # a communicator may be one of several that a rank is in
    for report in case.of(RasCommunicator):
        ranks: set[int] = set()
        for launched in report.data.counts.values():
            ranks.update(map(int, launched))
        inside = []
        for rank in ranks:
            if rank in seen and seen[rank].waits_for_ranks:
                inside.append(rank)
        more = {op: held for op, held in report.data.counts.items() if len(set(held.values())) > 1}
        # counts differ for a moment in every job: it takes all ranks waiting, in two reports alike
        if not more or len(inside) < max(2, len(ranks)) or report.data.hash not in still:
            continue
        op, held = next(iter(more.items()))
        highest = max(held.values())
        most = []
        for launcher, count in held.items():
            if count == highest:
                most.append(int(launcher))
        # the smaller side, whether it launched more or fewer
        odd = tuple(sorted(most if 2 * len(most) <= len(held) else ranks - set(most)))
        rest = sorted(ranks - set(most))
        sides = []
        for side in most, rest:
            launched_positions = []
            for rank in side:
                if rank in seen:
                    launched_positions.append(seen[rank])
            sides.append(launched_positions)
        left = outside_common_path(sides)
        if left is not None:  # counts tell who is ahead; the line of code, who left the path
            outside = []
            for stand in sides[left[0]]:
                outside.append(stand.rank)
            odd = tuple(outside)
        count = highest - min(held.values())
        fewer = name_ranks(ranks - set(most))
        say = f"{who_are(most)} launched {count} {op} more than {fewer}, by NCCL's RAS"
        say += f", and all of them wait{waiting_time_of_case(case)}{places_now(case)}"
        say += ": they made different calls"
        if left is not None:
            say += f"; {name_ranks(odd)} left the common path, {left[1]}"
        say += "."
        return _finding(case, "likely", say, [report, *changes], odd)
    return None


def _crossed_by_ras(case: Case) -> Finding | None:
    """By NCCL's RAS each rank is behind another one, in different operations.

    Where ranks timed out they say in which call, and after that counts go apart by themselves.
    """
    if rank_states(case).waiting:
        return None
    for report in case.of(RasCommunicator):
        if not report.data.crossed or not stands_still(case.events, report):
            continue
        numbers = global_ranks(case.events, report)
        say = f"{behind_sentence(case.events)[:-1]}, in two reports alike."
        changes = [one for one in case.of(RasChange) if one.data.hash == report.data.hash]
        odd = []
        if numbers is not None:
            for rank in _odd_calls(report):
                odd.append(numbers.get(rank, rank))
        return _finding(
            case,
            "likely",
            say,
            [report, *changes],
            tuple(odd),
        )
    return None


def _odd_calls(report: Event[RasCommunicator]) -> list[int]:
    """The ranks that a text lists, or that are fewer, in each operation that differs."""
    odd: set[int] = set()
    for op in report.data.spreads:
        named = report.data.counts.get(op, {})
        sides: dict[int, list[int]] = {}
        for rank, count in named.items():
            sides.setdefault(count, []).append(int(rank))
        small = min(
            sides.values(),
            key=len,
            default=[],
        )
        if 2 * len(small) < (report.data.size or 0):
            odd.update(small)
    return sorted(odd)


def _few_ahead_by_ras(case: Case) -> Finding | None:
    """A few ranks have launched more than all others, and nothing moves any more."""
    if rank_states(case).waiting:
        return None
    for report in case.of(RasCommunicator):
        data = report.data
        few = 2 * len(data.ahead) < (data.size or 0) and 2 * data.late_number > (data.size or 0)
        if not data.ahead or not few or data.crossed:
            continue
        numbers = global_ranks(case.events, report)
        if numbers is None or not stands_still(case.events, report):
            continue
        ahead = tuple(numbers.get(rank, rank) for rank in data.ahead)
        where = in_brackets(places_in_words(report, data.ahead))
        say = f"{who_are(ahead)}{where} launched more than the"
        say += f" {data.late_number} others ({counts_in_words(report)} there), by two reports of"
        say += " NCCL's RAS: they made a call that the others did not, or all others are late."
        changes = [one for one in case.of(RasChange) if one.data.hash == data.hash]
        return _finding(
            case,
            "possible",
            say,
            [report, *changes],
            ahead,
        )
    return None


def _live_mismatch(case: Case, event: Event) -> Finding:
    """All ranks wait, at different places of their program."""
    odd, right = sides(event)
    places = []
    for group in (*odd, *right):
        verb = "are"
        if len(group["ranks"]) == 1:
            verb = "is"
        branch = ""
        if event.data.branch and group is odd[0]:
            branch = f", {event.data.branch},"
        places.append(f"{name_ranks(ranks_of([group]))} {verb} in {group['value']}{branch}")
    say = (
        f"{start(' where '.join(places[:4]))}: they wait for each other in different"
        f" calls{waiting_time_of_case(case)}."
    )
    if not right:
        say += " Neither side is the larger one, so both are named."
    # kernels run long after the lines that started them
    strength: Strength = "likely"
    if event.data.for_gpu and not event.data.branch:
        strength = "possible"
    seen = positions_of_case(case)
    first_ranks: list[int] = []
    for group in odd:
        first_ranks += group["ranks"][:1]
    lines = []
    for rank in first_ranks:
        if rank in seen:
            lines.append(seen[rank].lines[-1])
    finding = _finding(case, strength, say, [event, *lines], ranks_of(odd))
    told = _advice_on_branch(event, odd)
    waits = set()
    for rank in first_ranks:
        if rank in seen:
            waits.add(seen[rank].waits_for)
    others = set()
    for rank in ranks_of(right):
        if rank in seen:
            others.add(seen[rank].waits_for)
    if waits == {STORE} and others == {PEERS}:
        told = _advice_on_store(odd)
    return replace(finding, advice=(*told, *finding.advice))


def _advice_on_store(odd: Sequence[Mapping[str, Any]]) -> tuple[Advice, ...]:
    """What is to be done where one side waits for the store, and the others for a collective."""
    call = str(odd[0]["value"])
    who = name_ranks(ranks_of(odd[:1]))
    return (
        Advice(
            f"See who should set what {who} waits for in {call}: the others have gone on to their"
            " next collective. Set the key before that call, or let all ranks make this one.",
            why="A key of the store that no rank sets is awaited until the timeout of the store.",
            check="The rank passes that line in the next run.",
            risk="None.",
        ),
    )


def _advice_on_branch(event: Event, odd: Sequence[Mapping[str, Any]]) -> tuple[Advice, ...]:
    """What is to be changed at the line by which one side has left the common path."""
    how = str(event.data.branch)
    call = str(odd[0]["value"])
    who = name_ranks(ranks_of(odd[:1]))
    does = "make"
    if len(odd[0]["ranks"]) == 1:
        does = "makes"
    if how.startswith("after the loop"):
        do = (
            f"Give all ranks the same number of passes through {how.removeprefix('after ')}: {who}"
            f" left it earlier than the others, and waits in {call}. Cut or repeat the shards, or"
            " let all ranks decide together when to leave."
        )
    elif how.startswith(("inside", "past")):
        do = (
            f"Let all ranks make the call {call}, or none: only {who} {does} it, {how}. Move what"
            " all ranks have to do together out of that branch."
        )
    else:
        return ()
    return (
        Advice(
            do,
            why="The n-th call of each rank is paired with the n-th call of all others.",
            check="All ranks pass that line in the next run.",
            risk="Work that one rank alone should do stays in the branch, without the collective.",
        ),
    )


def _rank_elsewhere(case: Case) -> Finding | None:
    """A rank is missing from a collective because it has finished, or is in another one."""
    states, seen = rank_states(case), stacks(case)
    # a rank that waits for its partner in a pair is not elsewhere: its partner is missing
    paired = set()
    for pair in case.of(FlightP2p):
        if pair.data.live:
            paired.update(pair.data.waiting)
    for gap in case.of(FlightMissing):
        # live they are told apart already
        missing: Sequence[int] = ()
        if not gap.data.live:
            missing = gap.data.missing
        ended = []
        for rank in missing:
            if rank in states.ended:
                ended.append(rank)
        inside = []
        for rank in missing:
            if rank in seen and rank not in states.waiting and rank not in paired:
                inside.append(rank)
        stuck = []
        for rank in inside:
            if in_collective(seen[rank].data.frames):
                stuck.append(rank)
        # who waits for a stopped rank is a call behind those that needed nothing of it
        if not ended and _is_any_stopped(case, stuck):
            continue
        if ended or (stuck and len(stuck) == len(missing)):
            ranks = tuple(ended or sorted(stuck))
            # a late rank may have arrived since
            why = f"{verb(ranks, 'was', 'were')} in another collective"
            sure: Strength = "likely"
            if ended:
                why = "had already left the loop"
                sure = "proven"
            say = f"{who_are(ranks)} {why} when {name_ranks(gap.data.waiting)} called collective "
            say += f"{gap.data.seq} ({gap.data.op})."
            witnesses = [gap, *[states.ended[r] for r in ended], *[seen[r] for r in stuck]]
            return _finding(case, sure, say, witnesses, ranks)
    return None


def _is_any_stopped(case: Case, ranks: Sequence[int]) -> bool:
    """Whether a look at the running job shows a stopped rank beside these."""
    for rank, stand in positions_of_case(case).items():
        if stand.waits_for == STOPPED and rank not in ranks:
            return True
    return False


def _fingerprint_mismatch(case: Case) -> Finding | None:
    for event in case.of(C10dMismatch):
        a, b = event.data.a_op, event.data.b_op
        if a != b or {"op", "seq"} & set(event.data.differs or ()):
            ranks = tuple(r for r in (event.data.a, event.data.b) if isinstance(r, int))
            say = (
                f"{who_are(ranks)} made different calls at the same place of the"
                f" sequence: {a} and {b}."
            )
            return _finding(case, "proven", say, [event], ranks)
        if other_calls(event):
            ranks = tuple(r for r in (event.data.a, event.data.b) if isinstance(r, int))
            say = (
                f"{who_are(ranks)} called {a} from different places of the program: the"
                " sizes are those of "
            )
            return _finding(case, "likely", say + "different calls.", [event], ranks)
    return None


def _own_calls_differ(case: Case) -> Finding | None:
    """torch's check says that a call differs between the ranks, each of which names its own."""
    calls = own_calls(case)
    # one operation with other shapes is shape_mismatch
    if not calls or (len(calls) > 1 and not are_unlike(calls)):
        return None
    parts = []
    for call in calls[:4]:
        parts.append(f"rank {call.rank} makes {call.op}")
    say = f"torch's check of each call found that the ranks' calls differ: {', '.join(parts)}."
    lines = [call.line for call in calls[:4]]
    return _finding(case, "likely", say, lines, tuple(call.rank for call in calls))


def _watchdog_mismatch(case: Case) -> Finding | None:
    """Watchdogs name different operations for one sequence number."""
    for one in differing_timeouts_of(case):
        lines = cited(*sorted(one.sides.values(), key=len))
        odd = minority(one.sides)
        if one.what == "op":
            parts = [f"{name_ranks(ranks_in(side))} {op}" for op, side in sorted(one.sides.items())]
            say = (
                f"At place {one.seq} of the sequence the ranks called different collectives:"
                f" {', '.join(parts)}."
            )
            # two threads racing in one group look the same
            return _finding(case, "likely", say, [*lines], odd)
        if one.of_different_calls:
            parts = []
            for size, side in sorted(one.sides.items()):
                parts.append(f"{name_ranks(ranks_in(side))} one of {size} elements")
            say = (
                f"At place {one.seq} of the sequence the ranks called {one.op} from different"
                " places of the program: "
            )
            return _finding(case, "likely", f"{say}{', '.join(parts)}.", [*lines], odd)
    groups: dict[str, list[Event]] = {}
    together = rank_states(case).waiting  # without ranks that came after the others had timed out
    for (group, _), events in by_call(case.events).items():
        groups.setdefault(group, []).extend(event for event in events if rank_of(event) in together)
    for events in groups.values():
        ops = disagreeing(events, op_of)
        seqs = disagreeing(events, lambda e: e.data.seq)
        ops = ops or disagreeing(events, size_of)
        # an exchange may be over on some ranks and not on others
        exchange = seqs and all(op_of(e).startswith("ALLTOALL") for e in seqs[min(seqs)])
        # The other ranks may have completed an exchange in which one rank still waits for data.
        if ops and seqs and not exchange and not of_several_groups(events):
            parts = [f"{name_ranks(ranks_in([e]))} in {op_of(e)} {e.data.seq}" for e in events[:4]]
            return _finding(
                case,
                "likely",
                f"The ranks wait for different collectives of one group: {', '.join(parts)}.",
                events,
                minority(seqs),
            )
    return None


def _two_groups(case: Case) -> Finding | None:
    """Ranks wait at one sequence number in different groups.

    A decision of one rank had to be that of all.
    """
    waits = rank_states(case).waiting
    is_wait = among(waits.values())
    named = []
    for event, group, desc in grouped(case.events):
        if is_wait(event):
            named.append((event, desc or group))
    names = {id(event): name for event, name in reversed(named)}
    sides = disagreeing([event for event, name in named if name], lambda e: names[id(e)])
    numbers = {event.data.seq for event, _ in named}
    # groups whose timeouts differ gave up at other times
    limits = {event.data.timeout_ms for event, _ in named}
    if len(sides) != 2 or len(numbers) != 1 or len(limits) != 1 or len(named) != len(waits):
        return None
    parts = []
    for name, events in sorted(sides.items()):
        parts.append(f"{name_ranks(ranks_in(events))} {op_of(events[0])} of {name}")
    say = (
        f"At place {numbers.pop()} of the sequence the ranks wait in different groups:"
        f" {', '.join(parts)}."
    )
    return _finding(case, "likely", say, list(waits.values()), minority(sides))


MAKES_GROUP = frozenset({"new_group", "new_subgroups", "new_subgroups_by_enumeration"})
"""Calls of torch that every rank of the job has to make."""


def _group_of_some(case: Case) -> Finding | None:
    """Some ranks timed out making a group, while the others waited in a collective."""
    states = rank_states(case)
    makers = _makers_of_group(case)
    others = states.waiting.keys() - makers.keys()
    # a rank that made the group, too, or that died, is why it did not come about
    if not makers or not others or states.waiting.keys() & makers.keys():
        return None
    if states.dead.keys() - makers.keys():
        return None
    who = tuple(sorted(makers))
    first = makers[who[0]]
    frames = first.data.frames[::-1]
    waits = in_order(states.waiting.values())
    where = place(own_frame(frames, innermost_first=True))
    awaited = op_of(waits[0]) or "a collective"
    say = (
        f"{who_are(who)} made a group in {call_within(frames)} at {where},"
        f" which every rank has to make, where {name_ranks(sorted(others))} waited in {awaited}"
    )
    branch = condition_around(case, frames)
    if branch is not None:
        say += f"; {_left_words(who, branch.how)}"
        return _finding(case, "likely", say, [first, *branch.lines, *waits], who)
    odd = list(who)
    # of two ranks either may have left the path of the other
    if len(who) >= len(others):
        odd += others
    return _finding(case, "likely", f"{say}.", [first, *waits], tuple(sorted(odd)))


def _makers_of_group(case: Case) -> dict[int, Event[PythonException]]:
    """rank → its traceback, where it ends as the rank waits for others that make the group, too."""
    makers: dict[int, Event[PythonException]] = {}
    for error in case.of(PythonException):
        if error.rank is None or error.rank in makers:
            continue
        if str(error.data.type).endswith("DistStoreError") and _makes_group(error):
            makers[error.rank] = error
    return makers


def _makes_group(error: Event[PythonException]) -> bool:
    for frame in error.data.frames:
        file = str(frame.get("file"))
        if "torch/distributed" in file and frame.get("func") in MAKES_GROUP:
            return True
    return False


def _rank_left(case: Case) -> Finding | None:
    """A rank exited normally while others still needed it.

    They waited for it, or lost the connection to it.
    """
    states = rank_states(case)
    # gloo's ranks notice a closed connection at once and then wait for nobody
    lost = {}
    for event in reversed(case.of(GlooClosed)):
        if event.rank is not None and event.rank not in states.ended:
            lost[event.rank] = event
    left = states.waiting or lost
    if not left or not states.ended or states.dead:
        return None
    ranks = tuple(sorted(states.ended))
    say = (
        f"{who_are(ranks)} finished normally while"
        f" {name_ranks(r for r in left if r >= 0)} still"
        f" {'waited' if states.waiting else 'needed it'}: they did not make the same number of"
        " calls."
    )
    return _finding(case, "likely", say, [*states.ended.values(), *in_order(left.values())], ranks)


def _rank_ended_unseen(case: Case) -> Finding | None:
    """A rank that left no dump, and that torchrun neither reports as failed nor had to stop.

    torchrun says nothing of a process that ended with status 0.
    """
    unseen = ended_unseen(case)
    states = rank_states(case)
    left = set(states.waiting) or set(ranks_in(case.of(GlooClosed)))
    if unseen is None or not left:
        return None
    # on hosts of one rank each it may run on another host, whose log is not here
    strength: Strength = "possible"
    if len(unseen.listed) > 1:
        strength = "likely"
    who = who_are([unseen.rank])
    say = (
        f"{who} left no dump, and torchrun neither reports it as failed nor had to stop"
        f" it: it had ended with status 0 while {name_ranks(left)} still waited for it."
    )
    lines = [*unseen.lines, *in_order(states.waiting.values())]
    return _finding(case, strength, say, lines, (unseen.rank,))


ROOTED = re.compile(
    r"(?:^|\.)(?:broadcast|reduce|gather|scatter)(?:_object)?(?:_list)?$"
    r"|DistributedDataParallel\.__init__$"
)
"""Calls that most ranks may have behind them although one rank is still in it."""
PAIRED = re.compile(r"(?:^|[._])i?(?:send|recv)|batch_isend_irecv")


def _different_lines(case: Case) -> Finding | None:
    """Every rank gave up in a collective of gloo, at different lines of the program."""
    sides = sides_by_tracebacks(case)
    if len(sides) < 2 or case.of(FlightStuck):
        return None
    for side in sides:
        if PAIRED.search(side.call):
            return None
    left = departure(case, [side.frames for side in sides])
    places = [side.words for side in sides[:4]]
    say = f"{start(' where '.join(places))}, and they waited for each other until the timeout"
    lines = []
    for side in sides[:4]:
        lines.append(side.lines[0])
    few, most = sides[0], sides[-1]
    if left is not None:
        ranks = sides[left.side].ranks
        say += f"; {_left_words(ranks, left.how)}"
        return _finding(case, "likely", say, [*lines, *left.lines], ranks)
    # what the network does not carry leaves ranks in two successive calls, too
    for side in sides:
        if ROOTED.search(side.call):
            return None
    if len(few.ranks) < len(most.ranks):
        odd: list[Event] = []
        for side in sides[:-1]:
            odd += side.lines
        return _finding(case, "possible", f"{say}.", lines, ranks_in(odd))
    # one call may be made at a line for each kind of rank
    if len({side.call for side in sides}) == 1:
        return _finding(case, "possible", f"{say}.", lines, ())
    both = ranks_in([*few.lines, *most.lines])
    return _finding(case, "possible", f"{say}. Neither side is the larger one.", lines, both)


def _printed_mismatch(case: Case) -> Finding | None:
    """Flight Recorder entries printed in a log show different operations at one place."""
    events, what = differing_entries(case, "op"), "op"
    if not events:
        events, what = differing_entries(case, "sizes"), "sizes"
        sizes = [size for e in events if (size := elements(e.data.sizes)) is not None]
        # the same call with another size is shape_mismatch
        if not sizes or not unlike_calls(events[0].data.op.upper(), sizes):
            return None
    calls = []
    for e in events[:4]:
        calls.append(
            f"{name_ranks(ranks_in([e]))} called {e.data.op} {e.data.sizes or ''}".rstrip()
        )
    say = f"At place {events[0].data.seq} of the sequence {' where '.join(calls)}."
    ranks = minority(disagreeing(events, lambda event: printed_value(event, what)))
    return _finding(case, "likely", say, events, ranks)


def _logged_mismatch(case: Case) -> Finding | None:
    """NCCL's own lines show that some ranks made another call where all others made one."""
    for one in differing_calls(case):
        if one.what == "op" or of_different_calls(one):
            strength: Strength = "possible"
            if failed(case):
                strength = "likely"
            return _finding(case, strength, f"{one.summary}.", [*one.evidence], one.culprits)
    return None


def _unequal_shares(case: Case) -> Finding | None:
    """The ranks log different numbers of batches or steps."""
    # numbers of batches that differ are no fault where nobody waits in the end
    shares = disagreeing(case.of(JobShare), lambda event: event.data.count)
    waits = list(rank_states(case).waiting.values())
    if not shares or not waits:
        return None
    parts = [f"{name_ranks(ranks_in(group))} {count}" for count, group in sorted(shares.items())]
    say = (
        f"The ranks have different numbers of batches: {', '.join(parts)}; a rank with more calls"
        " collectives alone."
    )
    return _finding(
        case,
        "likely",
        say,
        [group[0] for group in shares.values()] + in_order(waits)[:2],
        minority(shares),
    )


def _skipped_locally(case: Case) -> Finding | None:
    """A few ranks log that they skipped or ended something.

    After that others timed out waiting.
    """
    states = rank_states(case)
    said = case.of(JobAlone)
    ranks = ranks_in(said)
    if (
        not states.waiting
        or not ranks
        or states.dead
        or 2 * len(ranks) > len(states.members)
        or all_waiting(case, states)
    ):
        return None
    # the last one before the others began to wait
    words = " ".join(str(said[-1].data.message).split())[:80]
    waited = how_they_waited(states.waiting.values())
    say = f"{who_are(ranks)} left the common path ({words}), and then the ranks {waited}."
    return _finding(case, "likely", say, [*said[-2:], *in_order(states.waiting.values())], ranks)


def _ddp_mismatch(case: Case) -> Finding | None:
    lines = case.of(DdpParams) + matching(
        messages(case), "Expected to have finished reduction in the prior iteration"
    )
    other = model_mismatch(case)
    if other:
        # rank 0 is what DDP compares with, so it is named in each of its lines
        ranks = tuple(sorted(rank for rank in ddp_ranks(other) if rank)) or ranks_in(other)
        say = (
            f"DDP found at its start that the model of {name_ranks(ranks)} has other parameters"
            " than that of rank 0."
        )
        return _finding(case, "likely", say, other, ranks)
    # FSDP names no ranks
    order = matching(messages(case), "Forward order differs across ranks")
    if order and not lines:
        return _finding(
            case,
            "likely",
            "FSDP reports that its ranks reached their layers in different orders.",
            order,
            (),
        )
    if not lines:
        return None
    ranks = tuple(sorted(ddp_ranks(lines))) or ranks_in(lines)
    where = next(
        (p for e in lines if (p := place(own_frame(frames_of(e), innermost_first=False)))),
        "",
    )
    say = (
        f"DDP on {name_ranks(ranks)} did not get a gradient for every "
        f"parameter{' at ' + where if where else ''}, so its buckets "
    )
    finding = _finding(case, "likely", say + "do not match those of the other ranks.", lines, ranks)
    # its own message names the remedy
    return replace(finding, advice=(UNUSED, *finding.advice))


def _stalled_tensors(case: Case) -> Finding | None:
    """Horovod lists the ranks that have not submitted a tensor."""
    lines = case.of(HorovodStalled)
    if not lines:
        return None
    stalled_ranks = set()
    for event in lines:
        stalled_ranks.update(event.data.ranks)
    ranks = tuple(sorted(stalled_ranks))
    say = f"{who_are(ranks)} never submitted {len(lines)} tensors that the other ranks wait for."
    return _finding(case, "likely", say, lines, ranks)


def _timeouts_alone(case: Case) -> Finding | None:
    """The log holds only timeouts.

    Divergence is one of the few usual reasons.
    """
    states = rank_states(case)
    if (
        not states.waiting
        or states.dead
        # dumps and stacks would show a divergence; where they do not, time alone is no sign
        or case.of("flight.")
        or case.of(GlooBarrier)
        or case.of(Stack)
        or all_waiting(case, states)
        or only_point_to_point(states.waiting.values())
    ):
        return None
    first = in_order(states.waiting.values())[0]
    call = "a collective"
    number = sequence_of(first)
    if number is not None:
        call = f"collective {number} ({op_of(first)})"
    who = name_ranks(r for r in states.waiting if r >= 0)
    return _finding(
        case,
        "possible",
        f"{start(who)} waited for {call} that another rank may never call.",
        [first],
        (),
    )


def _finding(
    case: Case, strength: Strength, say: str, why: list[Event], ranks: tuple[int, ...]
) -> Finding:
    return found(
        ID,
        strength,
        say,
        pick(why),
        ranks=ranks,
        advice=_advice(case),
        next=None if strength == "proven" else _recording_experiment(),
    )


def _advice(case: Case) -> tuple[Advice, ...]:
    code = JOIN
    # Join is torch's; Horovod has a call of its own
    if "horovod" in launchers(case):
        code = "for batch in loader: ...\nhvd.join()"
    same_path = Advice(
        "Make every rank take the same path through the code that holds collectives: equal"
        " number of batches (repeat or cut the shards), every collective, save and evaluation on"
        " all ranks and none inside `if rank == 0`, and one decision for all where they branch.",
        code=code,
        why="The n-th call of each rank is paired with the n-th call of all others.",
        check="The number of steps per epoch, printed by each rank, is the same.",
        risk="drop_last leaves a few samples out.",
    )
    return same_path, compare_calls(case)


JOIN = "with Join([ddp_model]):\n    for batch in loader: ...   # or DataLoader(drop_last=True)"
"""What lets ranks have different numbers of batches."""
UNUSED = Advice(
    "Let DDP know that some parameters get no gradient in a step: find_unused_parameters=True, as"
    " its message says; or let every parameter take part in the loss on every rank.",
    code="DistributedDataParallel(model, device_ids=[local_rank], find_unused_parameters=True)",
    why="DDP waits for a gradient of each parameter, and reduces those of a bucket together.",
    check="The second step begins; TORCH_DISTRIBUTED_DEBUG=INFO names the parameters left out.",
    risk="DDP walks the graph once more in each step; with checkpointing it may refuse.",
)


def _recording_experiment() -> Experiment:
    return recorded(
        "Do all ranks make the same calls, when each call is recorded?",
        {
            ID: "a different op or sequence number is named, or a rank that has left the loop",
            "shape_mismatch": "a different shape or dtype is named",
            "slow_rank": "no difference; one rank is missing and busy",
        },
    )


def experiment(case: Case) -> Experiment:
    """Run again with every call recorded."""
    return _recording_experiment()


REMEDIES = (*_advice(Case()), UNUSED, PRINT_CALLS)
