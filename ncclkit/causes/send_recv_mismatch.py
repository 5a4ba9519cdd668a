"""Sends and receives do not pair up

What you see
    A pipeline or all-to-all job hangs with watchdog lines for SEND, RECV or COALESCED, one stage waiting to send, its
    neighbour waiting to send too; "Trying to recv to self without a matching send"; wrong split sizes in
    all_to_all_single.

Why it happens
    A point-to-point call blocks until its partner makes the matching one.  With NCCL both run as kernels in a stream,
    in order: if rank 0 sends first and rank 1 sends first, neither gets to its receive.  An odd number of
    micro-batches, a schedule that differs by one, or a peer computed from the wrong group leaves a call without its
    partner.

How to be sure
    List the last send and receive of both partners (Flight Recorder shows "nccl:send 0->1"); the one without a
    counterpart is the error.

What to do
    Put sends and receives that belong together into one batch_isend_irecv (NCCL group): their order no longer
    matters.  Exchange split sizes before all_to_all.

Read more
    PyTorch docs: batch_isend_irecv.  NCCL user guide: point-to-point communication, group calls.
"""

from __future__ import annotations

from ncclkit.case import Case
from ncclkit.causes._calls import op_of
from ncclkit.causes._scene import look
from ncclkit.causes._words import family, in_order, matching, messages, name_ranks, otherwise, pick, ranks_in, start
from ncclkit.model import Advice, Event, Experiment, Finding, found

ID = "send_recv_mismatch"
explains = ("c10d.timeout", "slow_rank", "timeout_too_short", "rank_divergence", "p2p_broken", "network_loss")
POINT = ("SEND", "RECV", "COALESCED", "ALLTOALL", "ALLTOALL_BASE")


def diagnose(case: Case) -> Finding:
    """Point-to-point calls that waited in vain, or a library that says they do not match."""
    said = matching(
        [*family(case, "usage", "other"), *messages(case)], "to self without a matching", "Split sizes", "split_sizes"
    )
    scene = look(case)
    waiting = [e for e in in_order(scene.waiting.values()) if op_of(e).upper().startswith(POINT)]
    gaps = [
        e
        for e in [*case.of("flight.missing"), *case.of("flight.mismatch"), *case.of("flight.stuck")]
        if any(word in str(e.data.get("op", "")).lower() for word in ("send", "recv", "all_to_all", "coalesced"))
    ]
    if scene.dead:
        waiting = []
    if said or gaps or waiting:
        lines = said or gaps or waiting
        ranks = ranks_in(lines) or tuple(gaps[0].data.get("waiting", ())) if lines is gaps else ranks_in(lines)
        ops = sorted({op_of(e) for e in lines if op_of(e)}) or ["a send or receive"]
        say = (
            f"{start(name_ranks(ranks))} waited in {' and '.join(ops)} for a partner that never made the matching call."
        )
        return found(
            ID,
            "likely" if said or gaps or len({op_of(e) for e in waiting}) > 1 else "possible",
            say,
            pick(said, gaps, waiting),
            ranks=ranks if said else (),
            advice=_advice(),
            next=experiment(case),
        )
    calls = [e for e in case.of("nccl.op") if e.data.get("op") in ("Send", "Recv")]
    if calls and not case.of("nccl.destroy"):
        return _last(case, calls)
    went_well = [*case.of("nccl.destroy"), *case.of("c10d.timeout"), *scene.ended.values()]
    return otherwise(
        ID,
        went_well,
        "No point-to-point call waited in vain.",
        "Flight Recorder dumps, or NCCL_DEBUG_SUBSYS=COLL of both partners",
    )


def _last(case: Case, calls: list[Event]) -> Finding:
    """A log of calls that ends in sends and receives: only the symptom."""
    last = calls[-2:]
    say = (
        f"The recorded calls{f' of {name_ranks(ranks_in(last))}' if ranks_in(last) else ''} end in sends "
        "and receives; a pair that does not match blocks both sides."
    )
    return found(ID, "possible", say, pick(last), ranks=(), advice=_advice(), next=experiment(case))


def _advice() -> tuple[Advice, ...]:
    return (
        Advice(
            "Issue the sends and receives that belong together in one batch.",
            code="ops = [dist.P2POp(dist.isend, out, nxt), dist.P2POp(dist.irecv, inp, prv)]\n"
            "for work in dist.batch_isend_irecv(ops):\n    work.wait()",
            why="Inside one NCCL group the order of sends and receives does not matter.",
            check="The pipeline passes several steps with an odd and an even number of stages.",
            risk="All ranks of a pair must batch the same calls.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Record the calls of both partners."""
    return Experiment(
        "Which send or receive has no counterpart?",
        {"env": {"TORCH_FR_BUFFER_SIZE": "2000", "NCCL_DEBUG_SUBSYS": "INIT,COLL"}},
        {
            ID: "the last calls of two partners do not pair",
            "concurrent_comms": "they pair, but run on different communicators in different order",
            "slow_rank": "they pair and one partner is late",
        },
    )
