"""The ranks call the same collective with different sizes or types

What you see
    A hang in the same collective on all ranks whose watchdog lines differ in NumelIn, gloo's
    "op.preamble.length <= op.nbytes ... Received data size doesn't match expected size", DETAIL
    mode's "Tensor shapes: 20vs10", an NCCL error 5/10/1 over InfiniBand, or, worse, silently wrong
    numbers.

Why it happens
    A collective moves raw bytes by an agreed plan; the shape is not sent along.  If a rank's last
    batch is smaller, a buffer grew on one rank only, one checkpoint loaded partially, or one rank
    runs in float32, the ranks follow different plans: one waits for data that never comes, or adds
    numbers that do not belong together.

How to be sure
    Compare the sizes of the same sequence number: TORCH_DISTRIBUTED_DEBUG=DETAIL names both sides
    at the call, the Flight Recorder afterwards.

What to do
    Or exclude rank-local buffers from DDP (broadcast_buffers=False, or
    _ddp_params_and_buffers_to_ignore).

Read more
    PyTorch docs: TORCH_DISTRIBUTED_DEBUG, DistributedDataParallel(broadcast_buffers), Flight
    Recorder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ncclkit.analysis.alignment import cited, differing_calls, of_different_calls
from ncclkit.analysis.calls import (
    are_unlike,
    differing_timeouts_of,
    disagreeing,
    elements,
    minority,
    other_calls,
    own_calls,
    ranks_of,
    said_if_completed,
    said_undecided,
    sides,
    unlike_calls,
)
from ncclkit.analysis.frames import stacks_in_all_to_all
from ncclkit.analysis.picks import (
    ddp_ranks,
    failed,
    family,
    first_finding,
    matching,
    messages,
    model_mismatch,
    name_ranks,
    otherwise,
    pick,
    ranks_in,
    who_are,
)
from ncclkit.analysis.rank_states import rank_states
from ncclkit.causes._experiments import recorded
from ncclkit.causes._printed import differing_entries
from ncclkit.causes._settings import PRINT_CALLS, compare_calls
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    C10dMismatch,
    FlightDump,
    FlightMismatch,
    GlooClosed,
    GlooSizeMismatch,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found

ID = "shape_mismatch"
explains = (
    "c10d.timeout",
    "gloo.timeout",
    "gloo.closed",
    "nccl.peer_closed",
    "rank_divergence",
    "slow_rank",
    "rank_exception",
    "ib_link_error",
    "elastic.exit",
    "timeout_too_short",
    "network_loss",
    "p2p_broken",
)


def diagnose(case: Case) -> Finding:
    """Found where sizes or types of one sequence number differ between ranks."""
    finding = first_finding(
        case,
        _mismatch_in_dumps,
        _fingerprint_mismatch,
        _own_calls_differ,
        _printed_mismatch,
        _watchdog_mismatch,
        _logged_mismatch,
        _library_mismatch,
        _differing_models,
    )
    if finding:
        return finding
    went_well = [*case.of("flight.missing", "nccl.destroy"), *rank_states(case).ended.values()]
    went_well += case.of(FlightDump) if not case.of(FlightMismatch) else []
    return otherwise(
        ID,
        went_well,
        "Where ranks called the same collective, their sizes agree.",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL over NCCL, or the Flight Recorder dumps of all ranks",
    )


def _mismatch_in_dumps(case: Case) -> Finding | None:
    for event in case.of(FlightMismatch):
        # sizes of another call are rank_divergence
        if event.data.field in ("sizes", "dtypes") and not other_calls(event):
            odd, right = sides(event)
            if right:
                witness = None
            else:
                witness = _witness_of_size(case, odd)
            if witness is not None:
                odd = [group for group in odd if group is not witness[1]]
                right = [witness[1]]
            first, *others = [*odd, *right]
            brought = []
            for group in others:
                brought.append(
                    f"{name_ranks(ranks_of([group]))} passed {_shortened_value(group.get('value'))}"
                )
            say = (
                f"{who_are(ranks_of([first]))} called collective {event.data.seq} with"
                f" {event.data.field} "
            )
            say += f"{_shortened_value(first.get('value'))} where {' and '.join(brought)}"
            say += _lines_of_sides(event)
            if witness:
                say += f", as {witness[0]} did."
            elif right:
                say += "."
            else:
                say += f". {said_undecided(event)}"
            say += said_if_completed(event)
            return _shape_finding(case, say, [event, *case.of(GlooSizeMismatch)[:1]], ranks_of(odd))
    return None


def _lines_of_sides(event: Event[FlightMismatch]) -> str:
    """`` (rank 0 at train.py:3; rank 1 at train.py:9)``, where a rehearsal knows each line."""
    if not event.data.rehearsed:
        return ""
    sides = (event.data.majority, *event.data.odd)
    places = []
    for side, place in zip(sides, event.data.sites or (), strict=False):
        places.append(f"{name_ranks(ranks_of([side]))} at {place}")
    return f" ({'; '.join(places)})"


def _witness_of_size(
    case: Case, two: Sequence[Mapping[str, Any]]
) -> tuple[str, Mapping[str, Any]] | None:
    """Name of a rank that received another size, and the side it agrees with.

    The rank has no dump; the size is another one than that of its own call.
    """
    lines = []
    for event in case.of(GlooSizeMismatch):
        # a rank that left no dump is a third witness: it received what one of the two had sent
        if event.rank is not None and event.rank not in ranks_of(two):
            lines.append(event)
    sizes = []
    for group in two:
        size = _size_of_call(group.get("value"))
        if size is not None:
            sizes.append(size)
    if not lines or len(two) != 2 or len(sizes) != 2:
        return None
    # gloo counts bytes and a dump elements, so all that counts is which of two is larger
    small, large = two
    if sizes[1] < sizes[0]:
        large, small = two
    came, wanted = lines[0].data.a, lines[0].data.b
    if not isinstance(came, int) or not isinstance(wanted, int) or came == wanted:
        return None
    witness = name_ranks(ranks_in(lines[:1]))
    if wanted < came:
        return witness, small
    return witness, large


def _size_of_call(value: Any) -> int | None:
    """Size of a call: elements by its shapes, or bytes by its types.

    It is None where neither is known.
    """
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(shape, list) for shape in value):
        return sum(math.prod(shape) for shape in value)
    if all(name in WIDTH for name in value):
        return sum(WIDTH[name] for name in value)
    return None


LENGTH_ERROR = 1
"""Status of an InfiniBand completion with too much data.

More data arrived than the receiver's buffer holds.
"""
WIDTH = {
    "Double": 8,
    "Long": 8,
    "Float": 4,
    "Int": 4,
    "Half": 2,
    "BFloat16": 2,
    "Short": 2,
    "Char": 1,
    "Byte": 1,
}
"""Bytes of an element, by the Flight Recorder's names of types."""


def _fingerprint_mismatch(case: Case) -> Finding | None:
    for event in case.of(C10dMismatch):
        differs = set(event.data.differs or ())
        if (
            event.data.a_op == event.data.b_op
            and not differs & {"op", "seq"}
            and not other_calls(event)
        ):
            ranks = tuple(r for r in (event.data.a, event.data.b) if isinstance(r, int))
            say = (
                f"{who_are(ranks)} call {event.data.a_op} with tensors of different "
                f"{' and '.join(sorted(differs)) or 'shape'}."
            )
            return _shape_finding(case, say, [event], ranks)
    return None


def _own_calls_differ(case: Case) -> Finding | None:
    """The ranks name the same call with other shapes, each its own."""
    calls = own_calls(case)
    shapes = {call.shapes for call in calls}
    # so far apart they are of other calls (rank_divergence)
    if len(shapes) < 2 or are_unlike(calls):
        return None
    parts = [f"rank {call.rank} {call.shapes}" for call in calls[:4]]
    say = f"The ranks call {calls[0].op} with different shapes: {', '.join(parts)}."
    return _shape_finding(
        case, say, [call.line for call in calls[:4]], tuple(call.rank for call in calls)
    )


def _watchdog_mismatch(case: Case) -> Finding | None:
    """Watchdogs name different numbers of elements for one sequence number."""
    for one in differing_timeouts_of(case):
        if one.what == "size":
            parts = []
            for size, side in sorted(one.sides.items()):
                parts.append(f"{name_ranks(ranks_in(side))} {size}")
            say = (
                f"In collective {one.seq} ({one.op}) the ranks passed different numbers of"
                " elements: "
            )
            # The same place of the sequence may be another call of the program; only recorded calls
            # show which.
            strength: Strength = "likely"
            if one.of_different_calls:
                strength = "possible"
            lines = cited(*sorted(one.sides.values(), key=len))
            finding = _shape_finding(
                case, f"{say}{', '.join(parts)}.", [*lines], minority(one.sides), strength
            )
            # a program broadcasts what it has just shaped alike; DDP broadcasts buffers each step
            if one.op == "BROADCAST":
                return replace(finding, advice=(BUFFERS, *finding.advice))
            return finding
    return None


def _logged_mismatch(case: Case) -> Finding | None:
    """NCCL's own lines show the same call with other sizes or types on some ranks."""
    for one in differing_calls(case):
        if one.what in ("size", "dtype") and not of_different_calls(one):
            strength: Strength = "possible"
            if failed(case):
                strength = "likely"
            return _shape_finding(case, f"{one.summary}.", [*one.evidence], one.culprits, strength)
    return None


def _library_mismatch(case: Case) -> Finding | None:
    gloo = case.of(GlooSizeMismatch)
    nccl = []
    for event in family(case, "ib_completion"):
        if event.data.status == LENGTH_ERROR:
            nccl.append(event)
    nccl += matching(
        [
            *family(case, "size_mismatch", "ib_completion", "socket_closed", "proxy"),
            *messages(case),
        ],
        *(
            "Mismatched allreduce tensor shapes",
            "Mismatched allgather tensor shapes",
            "Mismatched data types",
        ),
        *(
            "Mismatched broadcast tensor shapes",
            "Mismatched reducescatter tensor shapes",
            "collective mismatch error",
        ),
        *("message truncated : receiving", "posted incorrect receive info"),
    )
    lines = gloo or nccl
    # dumps and fingerprints say more; sizes in an all_to_all are send_recv_mismatch
    if not lines or case.of(FlightMismatch, C10dMismatch) or stacks_in_all_to_all(case):
        return None
    if isinstance(lines[0].data, GlooSizeMismatch):
        known = lines[0].data
    else:
        known = GlooSizeMismatch()
    a, b = known.a, known.b
    sizes = ""
    if a is not None and b is not None:
        sizes = f" ({a} bytes arrived where {b} were expected)"
    ranks = ranks_in(lines)
    say = (
        f"{who_are(ranks)} received data of another size than expected{sizes}:"
        " the ranks' tensors differ, or they call different collectives."
    )
    why = pick(lines, case.of(GlooClosed), limit=4)
    return found(
        ID, "likely", say, why, ranks=ranks, advice=_advice(case), next=_recording_experiment()
    )


def _shape_finding(
    case: Case, say: str, events: list[Event], ranks: tuple[int, ...], strength: Strength = "proven"
) -> Finding:
    if strength == "proven":
        following = None
    else:
        following = _recording_experiment()
    return found(ID, strength, say, pick(events), ranks=ranks, advice=_advice(case), next=following)


def _printed_mismatch(case: Case) -> Finding | None:
    """Flight Recorder entries printed in a log show different sizes at one place."""
    events = differing_entries(case, "sizes")
    sizes = [size for e in events if (size := elements(e.data.sizes)) is not None]
    if (
        not events
        or differing_entries(case, "op")
        or (sizes and unlike_calls(events[0].data.op.upper(), sizes))
    ):
        return None
    brought = [
        f"{name_ranks(ranks_in([e]))} passed {_shortened_value(e.data.sizes)}" for e in events[:4]
    ]
    say = f"In collective {events[0].data.seq} ({events[0].data.op}) {', '.join(brought)}."
    return _shape_finding(
        case,
        say,
        events,
        minority(disagreeing(events, lambda event: event.data.sizes)),
        "likely",
    )


def _differing_models(case: Case) -> Finding | None:
    """DDP found a parameter of another size.

    It compared the models of all ranks before its first step.
    """
    # DDP compares models before any batch is read
    lines = matching(model_mismatch(case), "sizes of the same param")
    if not lines:
        return None
    ranks = tuple(sorted(rank for rank in ddp_ranks(lines) if rank)) or ranks_in(lines)
    say = (
        f"A model parameter of {name_ranks(ranks)} has another size than on rank 0: files or"
        " settings differ."
    )
    return found(
        ID,
        "likely",
        say,
        pick(lines),
        ranks=ranks,
        advice=(ONE_MODEL,),
        next=_recording_experiment(),
    )


def _shortened_value(value: Any) -> str:
    return " ".join(str(value).split())[:120]


ONE_MODEL = Advice(
    "Build the same model on all ranks: one configuration, one release of each package, one"
    " checkpoint.",
    code=(
        "print({name: tuple(p.shape) for name, p in model.named_parameters()})  # on every rank;"
        " compare two ranks"
    ),
    why=(
        "DDP compares the shapes of all parameters in its constructor; no batch has been read by"
        " then."
    ),
    check="The constructor of DistributedDataParallel returns on all ranks.",
    risk="None.",
)


def _advice(case: Case) -> tuple[Advice, ...]:
    same_shape = Advice(
        "Make all ranks bring the same shape and dtype to this call: pad an uneven batch or length"
        " to that of the others, leave the last batch out (drop_last=True), or exchange the lengths"
        " first.",
        code=(
            "lengths = [torch.empty_like(n) for _ in range(world)]\ndist.all_gather(lengths, n)"
            "  # then pad to max(lengths)"
        ),
        why="NCCL and gloo move bytes and do not check shapes.",
        check="The step runs, and the results of all ranks are equal.",
        risk="Padding must not enter the loss.",
    )
    return same_shape, compare_calls(case)


BUFFERS = Advice(
    "Keep buffers that grow or differ on each rank out of DDP's broadcast before each forward:"
    " broadcast_buffers=False, or name them in _ddp_params_and_buffers_to_ignore.",
    code="DistributedDataParallel(model, device_ids=[local_rank], broadcast_buffers=False)",
    why="DDP broadcasts all buffers of rank 0, and a cache that a rank has enlarged does not fit.",
    check="The step runs; print the shapes of model.named_buffers() on two ranks.",
    risk="Running statistics of BatchNorm then differ between the ranks.",
)
"""Where the call at fault is a broadcast during training, which carries state of the ranks."""


def experiment(case: Case) -> Experiment:
    """Run again with every call recorded with its shapes and types."""
    return _recording_experiment()


def _recording_experiment() -> Experiment:
    return recorded(
        "Do all ranks bring the same shapes and types, when each call is recorded?",
        {
            ID: "a mismatch of shape or dtype is named",
            "rank_divergence": "a mismatch of op type or sequence number is named",
            "slow_rank": "no mismatch; one rank is missing",
        },
    )


REMEDIES = (BUFFERS, *_advice(Case()), PRINT_CALLS, ONE_MODEL)
