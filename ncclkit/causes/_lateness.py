"""What a rank that is missing from a collective did instead, and which collective that was: the words of a finding."""

from __future__ import annotations

from ncclkit.analysis.frames import own_frame, place, stacks
from ncclkit.analysis.picks import in_order
from ncclkit.analysis.rank_states import stopped
from ncclkit.core import text
from ncclkit.core.case import Case
from ncclkit.core.model import Event


def last_words(case: Case, rank: int) -> list[Event]:
    """The last thing that a rank said of itself."""
    return in_order(e for e in case.on(rank) if e.kind in ("progress", "worker.phase", "nccl.init", "c10d.monitor"))[
        -1:
    ]


def counted(case: Case, ranks: tuple[int, ...]) -> list[Event]:
    """NCCL's own count of launches, where it says the same."""
    return [report for report in case.of("ras.communicator") if set(report.data.get("behind", ())) & set(ranks)]


def call(first: Event | None, why: list[Event]) -> str:
    """The collective, or the exchange, that the others waited in."""
    source = next((e for e in why if e.kind in ("flight.missing", "flight.late", "flight.p2p")), first)
    if source is not None and source.kind == "flight.p2p":
        return f"the exchange from rank {source.data['src']} to rank {source.data['dst']}"
    if source is None and any(e.kind in ("store.wait", "run.end") for e in why):
        return "the rendezvous"
    if source is None or not source.data.get("op"):
        return "the collective"
    seq = source.data.get("seq")
    return f"collective {seq} ({source.data['op']})" if seq is not None else f"the {source.data['op']}"


def where(case: Case, ranks: tuple[int, ...]) -> str:
    """The place in the user's own code where one of these ranks stood; empty where no stack tells."""
    seen = [stack for rank, stack in stacks(case).items() if rank in ranks]
    return next((place(own_frame(stack.data["frames"], innermost_first=True)) for stack in seen), "")


def last_line(why: list[Event]) -> str:
    """The beginning of the last progress line among the evidence."""
    return next((" ".join(e.text.split())[:60].strip() for e in why if e.kind == "progress"), "")


def load(why: list[Event], ranks: tuple[int, ...]) -> str:
    """What could be seen of these ranks from outside: ``at work 99 % of the time, while rank 0 was 1 %``."""
    told = {event.rank: event.data["main"] for event in why if event.kind == "telemetry.utilization"}
    mine = [told[rank] for rank in ranks if rank in told]
    if not mine:
        return ""
    others = {rank: share for rank, share in told.items() if rank not in ranks and rank is not None}
    low, high = min(others.values(), default=0.0), max(others.values(), default=0.0)
    share = f"{low:.0f} to {high:.0f} %" if round(high) > round(low) else f"{high:.0f} %"
    beside = f", while {text.ranks(others)} {'was' if len(others) == 1 else 'were'} {share}"
    return f"with its main thread at work {mine[0]:.0f} % of the time{beside if others else ''}"


def doing(case: Case, ranks: tuple[int, ...]) -> str:
    """How these ranks stood where their stack says."""
    return "stopped by a signal or a debugger (state T)" if stopped(case).keys() & set(ranks) else "busy"
