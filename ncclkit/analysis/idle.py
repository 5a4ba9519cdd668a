"""Whether a server has nothing to do: all its ranks wait for a request, and one can reach them.

Ranks that hang wait just as ranks that are idle do.  So a server is called idle only where each
process on the way of a request was seen: it lives, it waits for the next one, and the outermost
takes connections.  What was not seen is said, and then nothing is called idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ncclkit.agent.monitor.sockets import LISTENS
from ncclkit.analysis.frames import in_collective, is_own, own_frame, place
from ncclkit.analysis.request_waits import (
    is_between_tasks_of_ray,
    is_front_end,
    reads_shared_queue,
    takes_requests,
)
from ncclkit.analysis.wait_kinds import PEERS, REQUESTS
from ncclkit.analysis.waits import (
    HANDS_ON,
    NCCL_KERNEL,
    RankPosition,
    frames_of_position,
    group_line,
    rank_positions,
    same_positions,
)
from ncclkit.core.kinds import (
    AttachRank,
    FlightMismatch,
    FlightMissing,
    FlightP2p,
    RasCommunicator,
)
from ncclkit.core.live_waits import Engine, Wait, WaitingThread
from ncclkit.core.model import Event
from ncclkit.core.text import ranks as rank_words
from ncclkit.core.text import start, verb


@dataclass(frozen=True, slots=True)
class RequestWait:
    """What a job does in which a rank waits for a request."""

    say: str
    """``rank 0 waits for a request in accept at serve.py:9``."""
    hindrance: str
    """Why it is not known to be idle: a sentence without its end; "" where it is idle."""
    evidence: Event
    ranks: tuple[int, ...]
    """Those that wait for a request."""


def idle(events: Iterable[Event]) -> RequestWait | None:
    """What a server without a request does; None where no rank waits for one."""
    known = list(events)
    seen = rank_positions(known)
    takers = {}
    others = {}
    for rank, position in seen.items():
        if position.waits_for == REQUESTS:
            takers[rank] = position
        else:
            others[rank] = position
    if not takers:
        return None
    lines = []
    for held in same_positions(seen.values()):
        line = group_line(held)
        lines.append(line)
    first = next(iter(takers.values()))
    hindrance = (
        _unlike(takers, others)
        or _missing_ranks(known)
        or _contradiction(known, takers)
        or _first_hindrance(takers)
    )
    return RequestWait("; ".join(lines[:4]), hindrance, first.lines[0], tuple(takers))


def _unlike(takers: dict[int, RankPosition], others: dict[int, RankPosition]) -> str:
    """That ranks wait for different things, of which one may never come."""
    sides = {position.side for position in takers.values()}
    for side in sides:
        held = []
        for position in takers.values():
            if position.side == side:
                held.append(position)
        if len(same_positions(held)) > 1:
            return "the ranks that wait for a request stand at different places"
    strange = []
    for rank, position in others.items():
        # what another side waits for, these have not entered
        if position.side not in sides or not _waits_for_taker(position):
            strange.append(rank)
    if strange:
        who = rank_words(strange)
        return f"{who} {verb(strange, 'waits', 'wait')} for something else than a request"
    if len(same_positions(others.values())) > 1:
        return "the ranks that wait for what is handed on stand at different places"
    return ""


def _waits_for_taker(position: RankPosition) -> bool:
    """Whether a rank waits for what another one hands to all."""
    if not position.waits_for_ranks:
        return False
    match = NCCL_KERNEL.search(position.kernel or "")
    if match:
        return match["op"].startswith(("Broadcast", "SendRecv"))
    call = position.call.rpartition(".")[2]
    return position.waits_for == PEERS and call in HANDS_ON


def _missing_ranks(events: Sequence[Event]) -> str:
    gone = []
    for event in events:
        if isinstance(event.data, AttachRank) and event.data.gone and event.rank is not None:
            gone.append(event.rank)
    if gone:
        return f"{rank_words(gone)} {verb(gone, 'has', 'have')} no process any more"
    return ""


def _contradiction(events: Sequence[Event], takers: dict[int, RankPosition]) -> str:
    """That dumps or NCCL's RAS show more than ranks that wait for those with no request."""
    for event in events:
        data = event.data
        late: list[int] = []
        if isinstance(data, FlightMissing):
            late = data.missing
        elif isinstance(data, RasCommunicator):
            late = data.behind
        elif isinstance(data, (FlightMismatch, FlightP2p)):
            return "the ranks made different calls"
        behind = sorted(set(late).difference(takers))
        if behind:
            return f"{rank_words(behind)} {verb(behind, 'is', 'are')} behind the others"
    return ""


def _first_hindrance(takers: dict[int, RankPosition]) -> str:
    for rank, position in takers.items():
        about = position.lines[0].data
        frames = frames_of_position(position)
        busy = _busy_thread(about.threads)
        if busy:
            return f"rank {rank} has {busy}"
        if about.orphan:
            return f"the process that started rank {rank} has ended, so no request can reach it"
        if is_between_tasks_of_ray(frames) or _is_reachable(about.wait, about.threads):
            continue
        if not about.engines:
            return f"nothing shows who could hand rank {rank} one"
        broken = _broken_engine(about)
        if broken:
            return broken
    return ""


def _busy_thread(threads: Sequence[WaitingThread]) -> str:
    """``thread uploader, at train.py:9 (upload)``: one that may work on a request; else ""."""
    for thread in threads:
        frames = thread.get("frames", [])
        if takes_requests(frames) or is_front_end(frames):
            continue
        own = own_frame(frames, innermost_first=True)
        if own is None:
            continue
        if in_collective(frames) or is_own(own):
            return f"thread {thread.get('name')}, which is at {place(own)}"
    return ""


def _is_reachable(wait: Wait, threads: Sequence[WaitingThread]) -> bool:
    """Whether a process waits for clients of its own."""
    for end in wait.get("ends", []):
        if end.get("state") == LISTENS:
            return True
    for thread in threads:
        frames = thread.get("frames", [])
        if is_front_end(frames):
            return True
    return False


def _broken_engine(about: AttachRank) -> str:
    """Why no request may come through the processes above a worker; "" where one can."""
    below = about.wait
    for engine in about.engines:
        who = f"process {engine.get('pid')}, which started the workers,"
        if engine is not about.engines[0]:
            who = f"process {engine.get('pid')}, the front end,"
        if not _feeds(below, engine):
            return f"{who} has no end of the pipe for which they wait"
        broken = _state_of_engine(engine)
        if broken:
            return f"{who} {broken}"
        below = engine.get("wait", {})
    outermost = about.engines[-1]
    if outermost.get("orphan"):
        return f"what started process {outermost.get('pid')}, their engine, has ended"
    if not outermost.get("listens"):
        return f"process {outermost.get('pid')}, which started them, takes no connections"
    return ""


def _feeds(wait: Wait, engine: Engine) -> bool:
    """Whether a process may be the one that writes to the pipe for which another waits."""
    for end in wait.get("ends", []):
        if end.get("kind") == "pipe" and end.get("does") == "read":
            holders = set()
            for one in end.get("others", []):
                number = one.get("pid")
                holders.add(number)
            return engine.get("pid") in holders
    return True


def _state_of_engine(engine: Engine) -> str:
    """Why an engine does not wait for a request; "" where it does."""
    frames = engine.get("frames", [])
    if engine.get("state") in ("T", "t"):
        return "is stopped"
    if engine.get("ended"):
        ended = ", ".join(map(str, engine.get("ended", [])))
        return f"has lost what it started (process {ended})"
    if not frames:
        return "could not be read"
    at = place(own_frame(frames, innermost_first=True))
    # an engine that reads there waits for an answer of its workers
    if reads_shared_queue(frames):
        return f"waits for an answer of its workers at {at}"
    if not takes_requests(frames):
        return f"waits for no request, but is at {at}"
    busy = _busy_thread(engine.get("threads", []))
    if busy:
        return f"has {busy}"
    return ""


def doubt_of_idleness(found: RequestWait) -> str:
    """What is said of a server that is not known to be idle."""
    like = "a server that has nothing to do looks like this, and nothing shows that it hangs"
    return f"{start(found.say)}: {like}; nor that it is idle, as {found.hindrance}."
