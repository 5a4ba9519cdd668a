"""Sends and receives do not pair up

What you see
    A pipeline or all-to-all job hangs with watchdog lines for SEND, RECV or COALESCED, one stage
    waiting to send, its neighbour waiting to send too; "Trying to recv to self without a matching
    send"; wrong split sizes in all_to_all_single.

Why it happens
    A point-to-point call blocks until its peer posts the matching one.  With NCCL both run as
    kernels in a stream, in order: if rank 0 sends first and rank 1 sends first, neither gets to its
    receive.  An odd number of micro-batches, a schedule that differs by one, or a peer computed
    from the wrong group leaves a call without its counterpart.

How to be sure
    List the last send and receive of both peers (Flight Recorder shows "nccl:send 0->1"); the one
    without a counterpart is the error.

What to do
    batch_isend_irecv makes one NCCL group of them: their order no longer matters.

Read more
    PyTorch docs: batch_isend_irecv.  NCCL user guide: point-to-point communication, group calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ncclkit.analysis.calls import op_of
from ncclkit.analysis.frames import stacks_in_all_to_all, own_frame, place
from ncclkit.analysis.picks import (
    family,
    first_finding,
    in_order,
    matching,
    messages,
    name_ranks,
    otherwise,
    pick,
    ranks_in,
    who_are,
    who_of,
)
from ncclkit.analysis.rank_states import how_they_waited, rank_states, sequence_of
from ncclkit.analysis.waits import inside, positions_of_case, waiting_time_of_case
from ncclkit.causes._experiments import minimal, recorded
from ncclkit.causes._printed import blocked_pairs
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    FlightMismatch,
    FlightMissing,
    FlightP2p,
    GlooSizeMismatch,
    GlooTimeout,
    NcclDestroy,
    NcclOp,
    PrintedSplits,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, found
from ncclkit.evidence.flight.compare import outlying_splits

ID = "send_recv_mismatch"
explains = (
    "c10d.timeout",
    "slow_rank",
    "timeout_too_short",
    "rank_divergence",
    "p2p_broken",
    "network_loss",
)
POINT = ("SEND", "RECV", "COALESCED", "ALLTOALL", "ALLTOALL_BASE")


def diagnose(case: Case) -> Finding:
    """Found where split sizes differ or point-to-point calls do not match.

    A call timed out waiting, or a library reports it.
    """
    finding = first_finding(
        case,
        _splits_in_dumps,
        _unequal_splits,
        _printed_splits,
        _passed_exchange,
        _pairs_in_dumps,
        _facing_ranks,
        _unpaired_call,
        _timed_out_exchange,
        _last_calls,
    )
    if finding:
        return finding
    went_well = [*case.of("nccl.destroy", "c10d.timeout"), *rank_states(case).ended.values()]
    return otherwise(
        ID,
        went_well,
        "No point-to-point call timed out waiting.",
        "Flight Recorder dumps, or NCCL_DEBUG_SUBSYS=COLL of both peers",
    )


def _passed_exchange(case: Case) -> Finding | None:
    """A rank still waits in an exchange that the others have completed.

    It expects more than it was sent.
    """
    waits = []
    for event in rank_states(case).waiting.values():
        if sequence_of(event) is not None:
            waits.append(event)
    first = min((e.data.seq for e in waits), default=0)
    here = []
    on = []
    # an exchange may be completed on ranks that were sent all they expected
    for event in waits:
        if event.data.seq > first:
            on.append(event)
        else:
            here.append(event)
    if not on or not all(op_of(e).startswith("ALLTOALL") for e in here):
        return None
    say = f"{who_of(here)} still waited in all_to_all {first}, which {name_ranks(ranks_in(on))} "
    # the smaller side is the odd one
    if len(here) > len(on):
        return _sizes_finding(
            f"{say}had finished: too little was sent to those that wait.", on, here
        )
    return _sizes_finding(say + "had finished: it expects more than its peers sent.", here, on)


def _waiting_of(gap: Event) -> tuple[int, ...]:
    if isinstance(gap.data, FlightMissing):
        return tuple(gap.data.waiting)
    return ()


def _timed_out_exchange(case: Case) -> Finding | None:
    """Ranks timed out in a send, a receive or an exchange.

    It also counts where a library says that calls do not match.
    """
    said = matching(
        [*family(case, "usage", "other"), *messages(case)],
        "to self without a matching",
        "Split sizes",
        "split_sizes",
    )
    states = rank_states(case)
    waiting = []
    for e in in_order(states.waiting.values()):
        # a dead rank posts no matching call
        if op_of(e).upper().startswith(POINT) and not states.dead:
            waiting.append(e)
    gaps = [
        event
        for event in case.of("flight.missing", "flight.mismatch", "flight.stuck")
        if not event.data.live  # there a rank outside of all calls is the reason
        and any(
            word in str(event.data.op).lower()
            for word in ("send", "recv", "all_to_all", "coalesced")
        )
    ]
    lines = said or gaps or waiting
    if not lines:
        return None
    ranks = ranks_in(lines) or (_waiting_of(gaps[0]) if lines is gaps else ())
    waited_ops = set()
    for e in lines:
        if op_of(e):
            waited_ops.add(op_of(e))
    ops = " and ".join(sorted(waited_ops) or ["a send or receive"])
    return found(
        ID,
        "likely" if said or gaps or len({op_of(e) for e in waiting}) > 1 else "possible",
        f"{who_are(ranks)} waited in {ops} for a peer that never posted the matching call.",
        pick(said, gaps, waiting),
        ranks=ranks if said else (),
        advice=_advice(),
        next=_recording_experiment(),
    )


def _single_calls(case: Case) -> list[Event]:
    """Ranks whose stack ends in a single send or receive of torch.

    The ranks of the job must wait.
    """
    waits = rank_states(case).waiting
    if not waits:
        return []
    single_calls = []
    for event in case.of("python.exception", "stack"):
        if not event.data.frames or event.rank is None:
            continue
        if _is_single_call(_innermost_frame(event)):
            single_calls.append(event)
    return single_calls


def _is_single_call(frame: Mapping[str, Any]) -> bool:
    """Whether a frame is torch's send or recv.

    Sockets, loggers and programs have functions of these names, too.
    """
    # sockets and loggers have functions of these names, too
    return frame.get("func") in ("send", "recv") and "torch/distributed" in str(frame.get("file"))


def _innermost_frame(event: Event) -> Mapping[str, Any]:
    frames = event.data.frames
    return dict(frames[0] if event.kind == "stack" else frames[-1])


def _unpaired_call(case: Case) -> Finding | None:
    unpaired = _single_calls(case)
    if not unpaired:
        return None
    own = own_frame(unpaired[0].data.frames, innermost_first=unpaired[0].kind == "stack")
    call = _innermost_frame(unpaired[0]).get("func")
    where = place(own)
    who = who_of(unpaired)
    # of a job that runs nobody has timed out
    gave_up = how_they_waited(rank_states(case).waiting.values()) == "timed out waiting"
    until = " until the timeout" * gave_up
    say = f"{who} waited in {call} at {where}{until}; no rank posted the matching call."
    return found(
        ID,
        "likely",
        say,
        pick(unpaired),
        ranks=ranks_in(unpaired),
        advice=_advice(),
        next=experiment(case),
    )


def _unequal_splits(case: Case) -> Finding | None:
    """A rank was sent more than it expected in an all_to_all.

    Where most ranks were, it is the one that was not.
    """
    sizes = case.of(GlooSizeMismatch)
    inside = stacks_in_all_to_all(case)
    if not sizes or not inside:
        return None
    ranks, (a, b) = ranks_in(sizes), (sizes[0].data.a, sizes[0].data.b)
    # gloo reports it on the rank that received too much
    others = set(rank_states(case).members) - set(ranks)
    odd = tuple(sorted(others)) if 0 < len(others) < len(ranks) else ()
    say = f"{who_are(ranks)} expected {b} bytes from one peer in all_to_all and was sent {a}: "
    say += (
        f"{name_ranks(odd)} sends too much."
        if odd
        else "the split sizes of sender and receiver differ."
    )
    # a sender that is odd to all is noticed by all
    if not odd and len(ranks) == 1 and len(others) > 1:
        odd = ranks
    return _sizes_finding(say, sizes, inside, odd)


def _splits_in_dumps(case: Case) -> Finding | None:
    """The Flight Recorder dumps of all ranks show sizes of an all_to_all that do not fit."""
    lines = case.of(FlightMismatch, field="splits")
    if not lines:
        return None
    data = lines[0].data
    ranks = []
    for side in data.odd:
        ranks.extend(side["ranks"])
    odd = tuple(ranks)
    say = (
        f"In collective {data.seq} (all_to_all) the ranks send {data.majority['value']}"
        " elements in all and "
    )
    say += f"expect {data.odd[0]['value']}"
    say += f": the splits of {name_ranks(odd)} do not fit those of the others." if odd else "."
    finding = _sizes_finding(say, lines, case.of(FlightMissing), odd)
    if data.rehearsed:
        return replace(finding, strength="proven", next=None)
    return finding


def _printed_splits(case: Case) -> Finding | None:
    """The program printed split sizes.

    One rank sends another number of rows than its peer expects.
    """
    reported = {}
    for event in case.of(PrintedSplits):
        if event.rank is not None:
            reported[event.rank] = event
    # the ranks in the order in which they printed: the first pair is what a reader sees first
    order = {rank: place for place, rank in enumerate(reported)}
    pairs: list[list[int]] = []
    for rank, event in reported.items():
        inputs = event.data.inputs
        peers = (order.keys() & set(range(len(inputs)))) - {rank}
        for peer in sorted(peers, key=order.__getitem__):
            outputs = reported[peer].data.outputs
            if rank < len(outputs) and inputs[peer] != outputs[rank]:
                pairs.append([rank, peer, inputs[peer], outputs[rank]])
    if not pairs:
        return None
    totals = {rank: (sum(e.data.inputs), sum(e.data.outputs)) for rank, e in reported.items()}
    odd, (sender, taker, sent, expected) = tuple(outlying_splits(totals, pairs)), pairs[0]
    say = (
        f"Rank {sender} sends {sent} rows to rank {taker} in all_to_all, which expects {expected}"
        " from it"
    )
    say += (
        f"; in all pairs that do not fit stands {name_ranks(odd)}."
        if len(pairs) > 1 and len(odd) == 1
        else "."
    )
    return _sizes_finding(say, [reported[taker], reported[sender]], [], odd)


def _sizes_finding(
    say: str, faulty: list[Event], others: list[Event], ranks: tuple[int, ...] | None = None
) -> Finding:
    if ranks is None:
        odd = ranks_in(faulty)
    else:
        odd = ranks
    why = pick(faulty, others, limit=4)
    return found(ID, "likely", say, why, ranks=odd, advice=(SPLITS,), next=_recording_experiment())


SPLITS = Advice(
    "Exchange the split sizes before the data, so that every rank knows what each peer will send.",
    code=(
        "given = torch.tensor(send_splits, device=device)\nexpected = torch.empty_like(given)\n"
        "dist.all_to_all_single(expected, given)  # then output_split_sizes=expected.tolist()"
    ),
    why=(
        "Each rank's output split for a peer must equal that peer's input split for it; the"
        " libraries do not check."
    ),
    check="On every rank sum(output_split_sizes) is what the peers' input splits for it add up to.",
    risk="One more small all_to_all per call.",
)


def _pairs_in_dumps(case: Case) -> Finding | None:
    """The Flight Recorders of two ranks show calls that do not match.

    A call lacks its counterpart, or sizes differ.
    """
    pairs = case.of(FlightP2p)
    waiting = set()
    for event in pairs:
        waiting.update(event.data.waiting)
    for gap in case.of(FlightMissing):
        waiting.update(gap.data.waiting)
    wrong = []
    for e in pairs:
        if e.data.live or e.data.sizes or set(e.data.lacking) <= waiting:
            wrong.append(e)
    if not wrong or rank_states(case).dead:
        return None
    if wrong[0].data.live:
        say = _unmatched_now(case, wrong[0])
    else:
        say = _unmatched_in_words(wrong[0])
    # with dumps of two ranks alone both are named
    pair: set[int] = set()
    for event in wrong:
        pair.update((event.data.src, event.data.dst))
    most = set()
    for gap in case.of(FlightMissing):
        # a rank that waits with others is where the program is
        if len(gap.data.waiting) > 1:
            most.update(gap.data.waiting)
    for event in wrong:
        most.update(event.data.common)
    # a rank that waits with most of the others is not the odd one
    ranks = tuple(sorted(pair - most or pair))
    advice = (*_advice_on_pair(case, wrong[0]), *_advice())
    return found(ID, "proven", say, pick(wrong, pairs), ranks=ranks, advice=advice, next=None)


def _advice_on_pair(case: Case, event: Event) -> tuple[Advice, ...]:
    """Which call of a running job lacks its counterpart."""
    if not event.data.live:
        return ()
    (rank,), (other,) = event.data.waiting, event.data.lacking
    one, two = positions_of_case(case)[rank], positions_of_case(case)[other]
    # where both make the same call, it is their order that is wrong
    if two.call == one.call:
        return ()
    if one.call == "send":
        lacks = f"recv from rank {rank}"
    else:
        lacks = f"send to rank {rank}"
    return (
        Advice(
            f"Let rank {other} call the {lacks}, or take the {one.call} at {one.place} out of the"
            f" program of rank {rank}: the two have to stand in the same branch of both ranks.",
            why="A send or a receive waits until the other rank makes its counterpart.",
            check="Both ranks pass these lines in the next run.",
            risk="None.",
        ),
    )


def _unmatched_now(case: Case, event: Event) -> str:
    """Sentence on a send or receive of a running job that has no counterpart."""
    (rank,), (other,) = event.data.waiting, event.data.lacking
    one, two = positions_of_case(case)[rank], positions_of_case(case)[other]
    if one.call == "send":
        wants, lacks = "to", "recv"
    else:
        wants, lacks = "from", "send"
    branch = ""
    if one.condition:
        branch = f", {inside(one.condition)},"
    say = (
        f"Rank {rank} waits in {one.call} {wants} rank {other} at"
        f" {one.place}{branch}{waiting_time_of_case(case)}; "
    )
    if two.call == one.call:
        return f"{say}rank {other} waits in {two.call} at {two.place}, too: neither calls {lacks}."
    return f"{say}rank {other} {two.activity()} and posts no matching {lacks}."


def _unmatched_in_words(event: Event[FlightP2p]) -> str:
    """Sentence on the calls between two ranks: other sizes, or a call without its counterpart."""
    data = event.data
    sender = data.src
    receiver = data.dst
    counts = f"{data.sent} sends, {data.received} receives"
    if data.sizes:
        sent, expected = data.sizes
        return (
            f"Rank {sender} sends {sent} elements to rank {receiver}, which expects {expected}"
            f" ({counts})."
        )
    if data.sent == data.received:
        return f"Ranks {sender} and {receiver} wait for each other in different calls ({counts})."
    if data.sent < data.received:
        waits = f"Rank {receiver} waits in recv from rank {sender}, which posted no matching send"
    else:
        waits = f"Rank {sender} waits in send to rank {receiver}, which posted no matching recv"
    return f"{waits} and waits in another call ({counts})."


def _facing_ranks(case: Case) -> Finding | None:
    """Flight Recorder entries printed in a log.

    Two ranks each wait for the other's matching call.
    """
    both = blocked_pairs(case)
    if not both:
        return None
    (one, two), op = both, both[0].data.op
    does = "wait to receive from each other first"
    if op == "send":
        does = "send to each other first"
    say = f"Ranks {one.rank} and {two.rank} both {does}, so neither reaches the matching call."
    why = pick(both, rank_states(case).waiting.values())
    ranks = (one.rank or 0, two.rank or 0)
    return found(
        ID, "likely", say, why, ranks=ranks, advice=_advice(), next=_recording_experiment()
    )


def _last_calls(case: Case) -> Finding | None:
    """The log of calls ends in sends and receives, which is only the symptom."""
    calls = []
    for event in case.of(NcclOp):
        if event.data.op in ("Send", "Recv"):
            calls.append(event)
    if not calls or case.of(NcclDestroy):
        return None
    # a list of calls ends where its reader cut it: only the end is a sign
    last = calls[-2:]
    say = (
        f"The recorded calls{f' of {name_ranks(ranks_in(last))}' if ranks_in(last) else ''} end in"
        " sends and receives; a pair that does not match blocks both ranks."
    )
    return found(ID, "possible", say, pick(last), ranks=(), advice=_advice(), next=experiment(case))


def _advice() -> tuple[Advice, ...]:
    return (
        Advice(
            "Issue the sends and receives that belong together in one batch, or let one of two"
            " ranks send first where the other receives first.",
            code=(
                "ops = [dist.P2POp(dist.isend, out, nxt), dist.P2POp(dist.irecv, inp, prv)]\n"
                "for work in dist.batch_isend_irecv(ops):\n    work.wait()"
            ),
            why="Inside one NCCL group the order of sends and receives does not matter.",
            check="The job passes several steps on an odd and on an even number of ranks.",
            risk="All ranks of a pair must batch the same calls.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Run again with the calls of both peers recorded.

    Gloo records none, so there run without the program.
    """
    if not case.of(GlooTimeout):
        return _recording_experiment()
    return minimal(
        "Does a plain all_reduce work on the same ranks, without the program's own sends and"
        " receives?",
        {
            ID: "it does: calls of the program do not pair",
            "slow_rank": "it does: a rank of the program was only late",
        },
        {
            "network_loss": "it does not: connections break",
            "hostname_resolution": "it does not: addresses are wrong",
        },
    )


def _recording_experiment() -> Experiment:
    return recorded(
        "Which send or receive has no counterpart, when each call is recorded?",
        {
            ID: "the last calls of two ranks do not pair",
            "concurrent_comms": "they pair, but run on different communicators in different order",
            "slow_rank": "they pair and one of the two is late",
        },
    )


REMEDIES = (*_advice(), SPLITS)
