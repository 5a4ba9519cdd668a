"""What each rank of a running job waits for or is busy with.

It tells who keeps whom waiting, as events of dumps.  A rank is told from its native frames, its
Python frames, and what the kernel counted between two snapshots.  None of these alone suffices: a
rank that waits for its GPU spins like one that computes, and one that waits for a lock sleeps like
one that waits for a peer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ncclkit.agent.monitor.snapshots import was_woken
from ncclkit.analysis.awaited import awaited, without_native_frames
from ncclkit.analysis.frames import (
    Frame,
    call_within,
    in_collective,
    is_own,
    own_frame,
)
from ncclkit.analysis.once import once
from ncclkit.analysis.request_waits import SPINS_AT, reads_shared_queue, takes_requests
from ncclkit.analysis.wait_kinds import (
    BUSY,
    DEBUGGER,
    ENDED,
    FILE,
    FOR_PEERS,
    GIL,
    GPU,
    HOLDS_GIL,
    LOCK,
    NATIVE,
    PEERS,
    PROCESS,
    PYTHON,
    REQUESTS,
    SOCKET,
    STOPPED,
    STORE,
    TIMER,
    UNKNOWN,
    WORKER,
)
from ncclkit.core.case import Case
from ncclkit.core.kinds import AttachRank, Stack
from ncclkit.core.model import Event
from ncclkit.core.text import format_age, verb
from ncclkit.core.text import ranks as rank_words

SPENT = 0.3
"""Share of the time between two snapshots from which a main thread that ran was busy."""

NATIVELY = (
    # the driver waits in any call: the first launch of a kernel loads it, for which the GPU has to
    # be idle
    (
        GPU,
        r"cu(?:da)?(?:Stream|Event|Device|Ctx)Synchronize|cudaMemcpy(?!.*Async)|/libcuda\.so"
        r"|hip\w+Synchronize",
    ),
    (STORE, r"c10d::(?:\w*Store|detail::TCPClient|detail::SocketImpl|detail::\w*connect)"),
    (PEERS, r"c10d::(?:Work|\w*Work|ProcessGroup|Reducer|Logger)|gloo::|\bnccl[A-Z]|ucc_|\bP?MPI_"),
    (GIL, r"take_gil|PyEval_RestoreThread|PyGILState_Ensure"),
    (
        LOCK,
        r"\bflock\b|\block[fF]|fcntl|sem_(?:timed|clock)?wait|lock_PyThread|acquire_timed"
        r"|PyThread_acquire_lock",
    ),
    (PROCESS, r"\bwait(?:4|pid|id)\b"),
    (TIMER, r"nanosleep|\bsleep\b"),
    (
        SOCKET,
        r"\b(?:__)?(?:recv\w*|send\w*|connect|accept4?|(?:p?poll|select|epoll_wait)\w*)\b|SSL_"
        r"|sock_\w+",
    ),
    (
        FILE,
        r"\b(?:__)?(?:(?:p?read|p?write)(?:64|v)?|open(?:at)?(?:64)?|f(?:data)?sync|f?statx?|unlink"
        r"|rename)\b",
    ),
)
"""What a native frame is there for; the first that fits one of the innermost frames decides."""
IN_KERNEL = (
    (TIMER, r"nanosleep"),
    (PROCESS, r"^do_wait|pipe_read"),
    (LOCK, r"lock_inode|posix_lock|flock"),
    (
        FILE,
        r"nfs|rpc_wait|lustre|ll_|fuse|ceph|folio_wait|io_schedule|jbd2|xfs|ext4|wait_for_partner"
        r"|fifo_open",
    ),
    (SOCKET, r"sk_wait|sock|tcp_|inet_|unix_stream"),
)
"""The same by the name of the function of the kernel, where no native frames could be read."""
UNCONNECTED = "it has no connection to it"
CONNECTS = re.compile(r"TCPClient::connect|SocketConnectOp|detail::\w*connect")
"""Native functions in which a rank has no connection to the store yet."""
SYNCHRONIZES = re.compile(r"/torch/(?:cuda|accelerator)/(?:__init__|streams)\.py")
LOADERS = {"_try_get_data", "_get_data", "_next_data"}
INTERPRETER = re.compile(r"libpython|/python[\d.]*\)$")
STORE_CALLS = {
    "init_process_group",
    "_store_based_barrier",
    "store_based_barrier",
    "rendezvous",
    "_create_c10d_store",
}
NAMELESS = re.compile(r"(?:^|\.)(?:<\w+>|__(?:enter|exit|call)__)$")
"""Functions whose name does not tell what was called."""
LONGER_LINE = 80
LINE = 60
"""Characters of a line of a program that is quoted."""
COLUMNS = 64
"""Columns of the picture of all ranks at most."""
NCCL_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_(?P<op>[A-Za-z]+)")
POINT_TO_POINT = {"send": "dst", "recv": "src"}


@dataclass(frozen=True, slots=True)
class RankPosition:
    """Where one rank stands, and what for."""

    rank: int
    waits_for: str
    """One of the constants of this module; empty where nothing shows it."""
    call: str
    """``all_reduce``, ``DistributedDataParallel.forward``: the call that its own line makes."""
    place: str
    """``train.py:33``, of its own code where its stack has any; empty without a stack."""
    moved: bool
    """Whether it was elsewhere, or had done work, between the first snapshot and the last."""
    lines: tuple[Event, ...]
    """What shows it: the snapshots, and its stack."""
    condition: str = ""
    """``rank == 0``: the condition on the rank under which it came there, if there is one."""
    group: str = ""
    """The process group of the call, as the program names it."""
    peer: int | None = None
    """The other rank of a send or receive."""
    detail: str = ""
    """What more is known of what it waits for: ``/mnt/x.lock, held by rank 0``."""
    half: bool = False
    """Whether only its Python frames could be read, which do not tell what it waits for."""
    quiet: float | None = None
    """Seconds since another rank sent it anything."""
    kernel: str | None = None
    """The kernel that its GPU is in, "" where it is in none; None where it is not known."""
    launch_age: float = 0.0
    """Seconds for which its GPU was seen in one launch of that kernel; 0 if asked once."""
    moved_bytes: bool = False
    """Whether it read or wrote files between the first snapshot and the last."""
    side: str = ""
    """What started it, where no launcher did: workers of one engine, and a trainer beside them."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """What counts its steps in the last snapshot: ``{"epoch": 3, "step": 120}``."""

    @property
    def is_busy(self) -> bool:
        """Whether it works, and does not wait."""
        return self.waits_for in BUSY

    @property
    def waits_for_ranks(self) -> bool:
        """Whether only other ranks can end its wait.

        A GPU in a kernel that is not NCCL's keeps its rank to itself.
        """
        own = self.kernel is not None and not NCCL_KERNEL.search(self.kernel)
        return (
            self.waits_for in FOR_PEERS and not self.moved and not (self.waits_for == GPU and own)
        )

    def is_inside_line_of(self, other: RankPosition) -> bool:
        """Whether its stack goes through the line of the program at which another rank stands."""
        line = own_frame(list(frames_of_position(other)), innermost_first=True)
        if line is None or not is_own(line):
            return False
        at = (line.get("file"), line.get("line"))
        for frame in frames_of_position(self):
            if (frame.get("file"), frame.get("line")) == at:
                return True
        return False

    def activity(self, count: int = 1) -> str:
        """``waits for a file (/mnt/ckpt.pt) in load at train.py:33``.

        Of several ranks it is in the plural.
        """
        where = f" at {self.place}" * bool(self.place)
        # what led into a debugger is the line, not the functions of the debugger
        if self.call and self.waits_for != DEBUGGER:
            where = f" in {self.call}{where}"
        detail = ""
        if self.detail:
            detail = f" ({self.detail})"
        if self.waits_for == STOPPED:
            state = "; ".join(filter(None, ("state T", self.detail)))
            return f"{verb(range(count), 'is', 'are')} stopped ({state}){where}"
        if self.waits_for == ENDED:
            has = verb(range(count), "has", "have")
            return f"{has} ended the program ({self.detail} keeps the process)"
        if self.waits_for == TIMER and self.detail:
            # what is tried says more than the pause after each attempt
            return f"{verb(range(count), 'tries', 'try')} {self.detail}{where}"
        if self.is_busy:
            return f"{verb(range(count), 'is', 'are')} busy in {self.waits_for}{detail}{where}"
        if not self.waits_for:
            if where:
                if self.half:
                    where += " (only its Python frames could be read)"
                return f"{verb(range(count), 'stands', 'stand')}{where}"
            return "could not be read"
        if self.kernel:
            age = ""
            if self.launch_age:
                age = f" for at least {format_age(self.launch_age)}"
            where += f", and its GPU is in {self.kernel}{age}"
        return f"{verb(range(count), 'waits', 'wait')} for {self.waits_for}{detail}{where}"


@once
def positions_of_case(case: Case) -> dict[int, RankPosition]:
    """rank → where it stands, of the ranks that `ncclkit attach` has looked at."""
    return rank_positions(case.events)


def rank_positions(events: Iterable[Event]) -> dict[int, RankPosition]:
    """rank → where it stands, by the events of one look at a running job."""
    known = list(events)
    seen = {}
    for e in known:
        if e.kind == "attach.rank" and e.rank is not None and not e.data.gone:
            seen[e.rank] = e
    stacks = {}
    for e in known:
        if e.kind == "stack" and e.rank is not None:
            stacks[e.rank] = e
    rank_of_pid = {}
    for rank, event in seen.items():
        if event.data.pid:
            rank_of_pid[event.data.pid] = rank
    found = {}
    for rank, event in sorted(seen.items()):
        found[rank] = _position(rank, event, stacks.get(rank), rank_of_pid)
    return found


def _position(
    rank: int,
    event: Event[AttachRank],
    stack: Event[Stack] | None,
    rank_of_pid: Mapping[int, int],
) -> RankPosition:
    if stack is not None:
        data = stack.data
    else:
        data = Stack()
    frames: Sequence[Frame] = data.frames
    own = own_frame(frames, innermost_first=True)
    shots = event.data.snapshots
    program = event.data.program
    steps = []
    for shot in shots:
        if shot.get("steps"):
            steps.append(shot["steps"])
    moved = _has_moved(event.data, steps)
    by_stack = _waits_for(frames, data, shots, stack.text if stack is not None else "")
    if not frames and event.data.on_gpu and by_stack in (PYTHON, NATIVE, UNKNOWN):
        # a rank that waits for its GPU spins: without a line of Python that looks like work
        by_stack = UNKNOWN
    elif not data.native:
        by_stack = without_native_frames(by_stack, event.data, _is_at_one_place(shots))
    waits_for, detail = awaited(by_stack, frames, event.data, rank_of_pid)
    if waits_for == STORE and any(map(CONNECTS.search, data.native)):
        detail = UNCONNECTED
    if not detail and waits_for in (FILE, LOCK):
        detail = _file_of_snapshots(shots)
    return RankPosition(
        rank=rank,
        waits_for=waits_for,
        call=_call_words(waits_for, frames, program),
        place=(
            f"{PurePosixPath(str(own['file'])).name}:{own.get('line', '?')}"
            if own is not None
            else ""
        ),
        moved=moved or waits_for in (PYTHON, NATIVE) or _did_work(waits_for, shots),
        lines=(event, stack) if stack is not None else (event,),
        condition=next(
            (condition for row in program for condition in row.get("conditions") or ()), ""
        ),
        group=str(program[0].get("group") or "") if program else "",
        peer=next(iter((data.peer or {}).values()), program[0].get("peer") if program else None),
        detail=detail,
        half=event.data.half and waits_for == UNKNOWN,
        quiet=event.data.quiet,
        kernel=event.data.kernel,
        launch_age=_launch_age(event.data.kernels or ()),
        moved_bytes=_moved_bytes(waits_for, shots),
        side=event.data.side,
        steps=steps[-1] if steps else {},
    )


def _has_moved(about: AttachRank, steps: Sequence[Mapping[str, int]]) -> bool:
    """Whether two snapshots show a rank at two places, or something that it counts has risen."""
    shots = about.snapshots
    places = {shot["stack"] for shot in shots}
    launches = {(one["name"], one["grid"]) for one in about.kernels or ()}
    collectives = {shot.get("gloo") for shot in shots}
    if len(launches) > 1 or len(collectives) > 1:
        return True
    # a worker spins for its engine, wherever in the loop it is met
    if places and all(SPINS_AT in place for place in places):
        return False
    counted = {tuple(one.items()) for one in steps}
    return max(len(places), len(counted)) > 1 or about.counted


def _is_at_one_place(shots: Sequence[Mapping[str, Any]]) -> bool:
    return len({shot["stack"] for shot in shots}) == 1


def _file_of_snapshots(shots: Sequence[Mapping[str, Any]]) -> str:
    """The path that the last call on a file was for; "" where it has none."""
    for shot in reversed(shots):
        if str(shot["file"]).startswith("/"):
            return str(shot["file"])
    return ""


def _did_work(waits_for: str, shots: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a rank met at one place again and again did something in between."""
    if waits_for == PEERS:
        # over gloo a rank in a hang is not woken once, so one wake ends its wait
        return bool(was_woken(shots))
    return _moved_bytes(waits_for, shots)


def _moved_bytes(waits_for: str, shots: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a rank read or wrote files between the snapshots.

    A program that writes and pauses, or that waits for a slow file server, is met at either line.
    """
    if waits_for not in (FILE, TIMER):
        return False
    counts = set()
    for shot in shots:
        if shot.get("io") is not None:
            counts.add(shot["io"])
    return len(counts) > 1


def _launch_age(samples: Sequence[Mapping[str, Any]]) -> float:
    """Seconds between two samples that show a GPU in one launch of a kernel."""
    if len(samples) > 1:
        first, last = samples[0], samples[-1]
    else:
        first, last = {}, {}
    same = bool(last and last["grid"]) and (first["name"], first["grid"]) == (
        last["name"],
        last["grid"],
    )
    if same:
        return float(last["t"] - first["t"])
    return 0.0


def _call_words(
    waits_for: str, frames: Sequence[Frame], program: Sequence[Mapping[str, Any]]
) -> str:
    """The call that its own line makes; of a function without a name what it does there."""
    call = call_within(frames)
    if waits_for == GPU:
        return _line(frames, program)
    text = ""
    if program:
        text = str(program[0]["text"])
    # what a lambda does, or what is entered, stands in the line
    if NAMELESS.search(call) and 0 < len(text) <= LONGER_LINE:
        return f"`{text}`"
    return call


def _line(frames: Sequence[Frame], program: Sequence[Mapping[str, Any]]) -> str:
    """The text of its own line, where that is the innermost.

    ``.item()`` is no frame of Python.
    """
    text = ""
    if program:
        text = str(program[0]["text"])
    if frames and is_own(frames[0]) and 0 < len(text) <= LINE:
        return f"`{text}`"
    return call_within(frames)


def _waits_for(
    frames: Sequence[Frame], stack: Stack, shots: Sequence[Mapping[str, Any]], text: str
) -> str:
    native = [str(name) for name in stack.native or ()]
    if shots and shots[-1]["state"] in ("T", "t"):
        return STOPPED
    has_gil = "Has the GIL" in str(stack.state) or "+gil)" in text.partition("\n")[0]
    ran = _ran(shots)
    found = _natively(native, frames)
    # Python code that runs is in native code of some library now and then, and has the lock all the
    # time
    if (
        native
        and has_gil
        and not INTERPRETER.search(native[0])
        and found not in FOR_PEERS
        and _stays(frames, shots)
    ):
        return HOLDS_GIL
    # a main thread that waits in `.item()` spins like one that computes, so load tells nothing here
    if SYNCHRONIZES.search(str(frames[0].get("file")) if frames else ""):
        return GPU
    if any(map(_awaits_worker, frames)):
        return WORKER
    # a rank that waits for a request is a server, not a culprit; one may spin for it
    if reads_shared_queue(frames):
        return REQUESTS
    if found not in FOR_PEERS and not ran > SPENT and takes_requests(frames):
        return REQUESTS
    if found:
        return found
    if any(frame.get("func") in STORE_CALLS for frame in frames[:8]) and not ran > SPENT:
        return STORE
    if in_collective(frames):
        return PEERS
    if ran > SPENT:
        if native and not INTERPRETER.search(native[0]):
            return NATIVE
        return PYTHON
    return _in_python(frames) or _in_kernel(shots)


def _awaits_worker(frame: Frame) -> bool:
    """Whether a frame is that of a loader that waits for one of its workers."""
    func = str(frame.get("func")).rpartition(".")[2]
    return func in LOADERS and "torch/utils/data" in str(frame.get("file"))


def _stays(frames: Sequence[Frame], shots: Sequence[Mapping[str, Any]]) -> bool:
    """Whether each snapshot shows the innermost line of Python that called the native frames."""
    at = ""
    if frames:
        at = f"{PurePosixPath(str(frames[0].get('file'))).name}:{frames[0].get('line')})"
    stacks = [str(shot["stack"]).partition("\n")[0] for shot in shots]
    for line in stacks:
        if line and not line.endswith(at):
            return False
    return True


def _natively(native: Sequence[str], frames: Sequence[Frame]) -> str:
    """What the innermost native frames of the main thread are there for.

    A wait for a peer wins wherever it stands.
    """
    for wanted in (GPU, STORE, PEERS):
        pattern = dict(NATIVELY)[wanted]
        if any(re.search(pattern, name) for name in native):
            if wanted == STORE and not _is_store(frames):
                return PEERS
            return wanted
    for name in native[:4]:
        found = next(
            (kind for kind, pattern in NATIVELY if re.search(pattern, name.rpartition(" (")[0])), ""
        )
        if found:
            if found in (SOCKET, PROCESS) and _in_python(frames):
                return _in_python(frames)
            return found
    if native and not INTERPRETER.search(native[0]):
        return _in_python(frames)
    return ""


def _is_store(frames: Sequence[Frame]) -> bool:
    return not any(
        frame.get("func") in ("all_reduce", "barrier", "new_group") for frame in frames[:4]
    )


def _in_python(frames: Sequence[Frame]) -> str:
    """What Python's own library waits for, by its functions."""
    for frame in frames[:6]:
        file = str(frame.get("file"))
        func = str(frame.get("func")).rpartition(".")[2]
        if file.endswith("/subprocess.py") or (
            file.endswith("/popen_fork.py") and func in ("poll", "wait")
        ):
            return PROCESS
        if file.endswith(("/ssl.py", "/socket.py", "/http/client.py", "urllib3/connection.py")):
            return SOCKET
        if file.endswith(
            ("/threading.py", "/queue.py", "/filelock/_api.py", "torch/utils/file_baton.py")
        ):
            return LOCK
        if is_own(frame):
            break
    return ""


def _in_kernel(shots: Sequence[Mapping[str, Any]]) -> str:
    last = ""
    if shots:
        last = str(shots[-1]["waits_in"])
    return next((kind for kind, pattern in IN_KERNEL if re.search(pattern, last)), UNKNOWN)


def _ran(shots: Sequence[Mapping[str, Any]]) -> float:
    """Share of time in which the main thread ran, or waited for a core.

    The time is that between the first snapshot and the last.
    """
    known = [shot for shot in shots if shot.get("main") is not None]
    if not known:
        return 0.0
    first, last = known[0], known[-1]
    seconds = last["t"] - first["t"]
    if seconds <= 0:
        return 0.0
    return float((last["main"] - first["main"]) / seconds)


# ---------------------------------------------------------------- who keeps whom waiting


def blockages(events: Iterable[Event]) -> list[Event]:
    """What keeps a running job from going on, as events of dumps.

    There are ``flight.missing`` where ranks are outside of the call in which the others wait,
    ``flight.p2p`` where a send or receive has no counterpart, ``flight.mismatch`` where all wait,
    at different places.  There is none where the ranks move on, or one waits for a request.  Where
    dumps tell who is missing, there is only what they do not show (`_beside_dumps`).  Each has
    ``live``: sequence numbers are not known.
    """
    known = list(events)
    seen = rank_positions(known)
    if any(map(_is_decisive, known)):
        return _beside_dumps(known, seen)
    gone = []
    for event in known:
        if event.kind == "attach.rank" and event.data.gone and event.rank is not None:
            gone.append(event.rank)
    waiting = {}
    for rank, position in seen.items():
        if position.waits_for_ranks:
            waiting[rank] = position
    outside = [rank for rank in seen if rank not in waiting]
    if len({position.side for position in seen.values()}) > 1:
        return _between_sides(waiting, seen)
    if not waiting or 2 * sum(seen[rank].moved for rank in outside) > len(seen):
        return []
    # half a stack does not tell a rank that works from one that waits
    if any(seen[rank].waits_for == REQUESTS or seen[rank].half for rank in outside):
        return []
    if outside or gone:
        return [_missing(waiting, outside, gone, seen)]
    apart = _without_store(waiting)
    if apart:
        joined = {rank: position for rank, position in waiting.items() if rank not in apart}
        return [_missing(joined, apart, [], seen)]
    return _pairs(waiting) or _crossed(waiting) or _different_places(waiting)


HANDS_ON = frozenset(
    "broadcast broadcast_object_list recv recv_object_list scatter scatter_object_list".split()
)
"""Calls in which ranks wait for what one of them hands on."""


def _between_sides(
    waiting: Mapping[int, RankPosition], seen: Mapping[int, RankPosition]
) -> list[Event]:
    """Which side has not entered the call by which another one hands weights to it.

    Sides are a trainer and the workers of an engine.  Each has calls of its own as well, in which
    the other has no part: so only a whole side that waits at one place counts.
    """
    held = {position.side for position in waiting.values()}
    calls = {position.call.rpartition(".")[2] for position in waiting.values()}
    if len(held) > 1:
        return _missing_beside_both(waiting, calls, seen)
    if not held:
        return []
    own = held.pop()
    mates = []
    for rank, position in seen.items():
        if position.side == own:
            mates.append(rank)
    absent = sorted(seen.keys() - set(mates))
    apart = sorted(set(mates) - waiting.keys())
    moving = 2 * sum(seen[rank].moved for rank in apart or absent) > len(seen)
    if moving or any(seen[rank].half for rank in seen):
        return []
    if apart:
        if any(seen[rank].waits_for == REQUESTS for rank in apart):
            return []
        return [_missing(waiting, apart, [], seen)]
    if len(same_positions(waiting.values())) > 1 or not calls <= HANDS_ON:
        return []
    asked = []
    for rank in absent:
        if seen[rank].waits_for == REQUESTS:
            asked.append(rank)
    late = sorted(set(absent) - set(asked))
    if late and asked:
        # who waits for a request may have left the call already, as over gloo
        return [_missing(waiting, late, [], seen)]
    # several ranks may wait for each other while the other side has nothing to do; one does not
    if asked and len(mates) > 1:
        return []
    return [_missing(waiting, absent, [], seen)]


def _missing_beside_both(
    waiting: Mapping[int, RankPosition],
    calls: Collection[str],
    seen: Mapping[int, RankPosition],
) -> list[Event]:
    """Who has not entered the call by which weights are handed on, in which both sides wait."""
    absent = sorted(seen.keys() - waiting.keys())
    moving = any(seen[rank].moved or seen[rank].half for rank in absent)
    if len(calls) > 1 or not HANDS_ON.issuperset(calls) or not absent or moving:
        return []
    return [_missing(waiting, absent, [], seen)]


def _beside_dumps(known: Sequence[Event], seen: Mapping[int, RankPosition]) -> list[Event]:
    """What stacks tell where dumps show who is missing.

    Dumps do not record a send or receive that still makes its connection.  And they count: where
    the missing ranks wait, too, the line of code by which one side has left the common path says
    more than who is behind.
    """
    gaps = [event for event in known if event.kind == "flight.missing"]
    absent = set()
    for gap in gaps:
        absent.update(gap.data.missing)
    held = {}
    for rank, position in seen.items():
        if position.waits_for_ranks:
            held[rank] = position
    pairs = [pair for pair in _pairs(held) if absent.intersection(pair.data.waiting)]
    if pairs or not absent or len(held) < len(seen):
        return pairs
    return [place for place in _different_places(held) if place.data.branch]


def _is_decisive(event: Event) -> bool:
    """Whether dumps show who is at fault.

    Of a rank that gave no dump they show nothing.
    """
    return (
        event.kind in ("flight.mismatch", "flight.p2p")
        or event.kind == "flight.missing"
        and event.data.missing
    )


def _collective(position: RankPosition) -> str:
    """The collective that its GPU is in."""
    match = NCCL_KERNEL.search(position.kernel or "")
    if match:
        return match["op"]
    return ""


def _event(kind: str, text: str, of: Sequence[RankPosition], data: Mapping[str, Any]) -> Event:
    path = of[0].lines[0].path
    rank = None
    if len(of) == 1:
        rank = of[0].rank
    common = {"group": "", "desc": "", "root": "", "holds": [], "live": True}
    return Event(
        kind,
        text,
        path,
        0,
        of[0].lines[0].time,
        of[0].lines[0].host,
        None,
        rank,
        common | dict(data),
    )


def _missing(
    waiting: Mapping[int, RankPosition],
    outside: Sequence[int],
    gone: Sequence[int],
    seen: Mapping[int, RankPosition],
    group: str = "",
) -> Event:
    text = [group_line(held) for held in same_positions(waiting.values())]
    text += [f"rank {rank} {seen[rank].activity()}" for rank in outside]
    text += [f"{rank_words(gone)} {verb(gone, 'has', 'have')} no process any more"] if gone else []
    calls = {position.call for position in waiting.values()}
    lines = {rank: list(frames_of_position(seen[rank])) for rank in outside}
    data = {
        "seq": None,
        "op": calls.pop() if len(calls) == 1 else "",
        "missing": list(outside),
        "waiting": sorted(waiting),
        "no_dump": list(gone),
        "overwritten": [],
        "frames": [],
        "last_seq": {},
        "stacks": {str(rank): frames for rank, frames in lines.items()},
        "group": group,
    }
    return _event(
        "flight.missing",
        "\n".join(text),
        [seen[rank] for rank in outside] or list(waiting.values()),
        data,
    )


def _without_store(waiting: Mapping[int, RankPosition]) -> list[int]:
    """Ranks that have no connection to the store, at which others wait for them."""
    apart = [rank for rank, position in waiting.items() if position.detail == UNCONNECTED]
    at_store = [rank for rank, position in waiting.items() if position.waits_for == STORE]
    if len(apart) < len(at_store):
        return apart
    return []


def _pairs(waiting: Mapping[int, RankPosition]) -> list[Event]:
    """Sends and receives whose peer waits in another call."""
    found = []
    most = max(same_positions(waiting.values()), key=len, default=[])
    for rank, position in waiting.items():
        end = POINT_TO_POINT.get(position.call)
        peer = position.peer
        if peer is None and len(waiting) == 2:
            peer = next(r for r in waiting if r != rank)
        other = None
        if peer is not None:
            other = waiting.get(peer)
        meets = other is not None and other.call == {"send": "recv", "recv": "send"}.get(
            position.call
        )
        if not end or other is None or (meets and other.peer in (None, rank)):
            continue
        if end == "dst":
            src, dst = rank, other.rank
        else:
            src, dst = other.rank, rank
        data: dict[str, Any] = {
            "src": src,
            "dst": dst,
            "waiting": [rank],
            "lacking": [other.rank],
            "stacks": {},
        }
        left = outside_common_path([[position], [other]])
        common = []
        if left:
            common = [(other, position)[left[0]].rank]
        if len(most) > 1:
            common = [one.rank for one in most]
        data |= {
            "sent": int(end == "dst"),
            "received": int(end == "src"),
            "sizes": None,
            "common": common,
        }
        text = (
            f"{group_line([position])}, {'to' if end == 'dst' else 'from'} rank"
            f" {other.rank}\n{group_line([other])}"
        )
        found.append(_event("flight.p2p", text, [position], data))
    return found


def _crossed(waiting: Mapping[int, RankPosition]) -> list[Event]:
    """Ranks in the same call of two process groups.

    They make the two calls in different order.
    """
    calls = {position.call for position in waiting.values()}
    groups = {position.group for position in waiting.values()}
    if len(calls) != 1 or len(groups) != 2 or "" in groups:
        return []
    sides = []
    for group in sorted(groups):
        side = {}
        for rank, position in waiting.items():
            if position.group == group:
                side[rank] = position
        sides.append(side)
    crossed = []
    for side, other in (sides, reversed(sides)):
        group = next(iter(side.values())).group
        crossed.append(_missing(side, sorted(other), [], waiting, group))
    return crossed


def _different_places(waiting: Mapping[int, RankPosition]) -> list[Event]:
    """Ranks that all wait, at different places of their program.

    The fewest are odd, or those under a condition on the rank.
    """
    groups = same_positions(waiting.values())
    kernels = {_collective(position) for position in waiting.values()}
    if "" not in kernels and len(kernels) == 1:
        return []  # the GPUs are in one collective, wherever the lines are that wait for them
    if len(groups) < 2 or not all(any(map(is_own, frames_of_position(held[0]))) for held in groups):
        return []
    if "" in kernels and _is_one_line(waiting.values()):
        return []
    index, how = outside_common_path(groups) or (0, "")
    outside = None
    if how:
        outside = groups[index]
    groups.sort(key=lambda held: (-len(held), held is outside))
    right, odd = groups[0], groups[1:]
    text = "\n".join(group_line(held) for held in groups)
    calls = {held[0].call for held in groups}
    rows = []
    for held in odd:
        rows.append({"value": _value(held[0]), "ranks": [position.rank for position in held]})
    data = {
        "seq": None,
        "field": "op",
        "op": calls.pop() if len(calls) == 1 else "",
        "majority": {"value": _value(right[0]), "ranks": [position.rank for position in right]},
        "odd": rows,
        "sites": [held[0].place for held in groups],
        "branch": how if odd[0] is outside else "",
        "for_gpu": (
            "" in kernels and any(position.waits_for == GPU for position in waiting.values())
        ),
    }
    return [_event("flight.mismatch", text, odd[0], data)]


def _is_one_line(found: Iterable[RankPosition]) -> bool:
    """Whether one line of the user's made all calls.

    A model exchanges again and again on its way.  A framework's whole training is one line as well,
    and what is called in it tells its steps apart.
    """
    held = list(found)
    return len({one.place for one in held}) == 1 and not any(" in " in one.call for one in held)


SITE = re.compile(r"(?P<file>.+):(?P<line>\d{1,9})(?: in .*)?")
"""Where the program made a call, as a Flight Recorder's entry says."""


def outside_common_path(
    sides: Sequence[Sequence[RankPosition]], sites: Sequence[str] = ()
) -> tuple[int, str] | None:
    """The number of the one side that has left the common path, and how.

    How is said as in `inside`, or that it was after a loop.  `sites` tell where each side made its
    call, by its dumps, as `SITE`; without them it is where its ranks stand.
    """
    conditions = []
    for n, side in enumerate(sides):
        conditions.append(_common_condition(side, sites[n] if n < len(sites) else ""))
    programs = []
    for side in sides:
        programs.append(side[0].lines[0].data.program if side else [])
    return side_outside(conditions, programs)


Program = Sequence[Mapping[str, Any]]
"""Lines of a stack, as `ncclkit.agent.monitor.program` tells them, innermost first."""


def side_outside(conditions: Sequence[str], programs: Sequence[Program]) -> tuple[int, str] | None:
    """The number of the one side that has left the common path, and how.

    conditions: on the rank, under which each side came where it is; "" where there is none.
    programs: the lines of each side's stack.
    """
    # two ranks have no majority, so the one that left the common path is named
    odd = [number for number, condition in enumerate(conditions) if condition]
    if odd:
        if len(odd) == 1:
            return odd[0], inside(conditions[odd[0]])
        return None
    left: dict[int, str] = {}
    for number, one in enumerate(programs):
        loops = []
        for other in programs:
            if other is not one:
                loops.append(_loop_left(one, other))
        if any(loops):
            left[number] = next(filter(None, loops))
    return next(
        ((number, f"after the loop at {loop}") for number, loop in left.items() if len(left) == 1),
        None,
    )


def _common_condition(side: Sequence[RankPosition], site: str) -> str:
    """The condition under which all ranks of a side came where they are.

    It is a condition on the rank; "" where there is none.
    """
    found = [_condition_at(position, site) or position.condition for position in side]
    if all(found) and found:
        return found[0]
    return ""


def _condition_at(position: RankPosition, site: str) -> str:
    """The innermost condition on the rank around a line of its program."""
    # over NCCL a stack shows where a rank waits now, not the call that went wrong: the line is the
    # dump's
    match = SITE.fullmatch(site)
    rows = []
    for row in position.lines[0].data.branches or ():
        if match and row["file"] == match["file"]:
            rows.append(row)
    around = []
    for row in rows:
        if match and row["first"] <= int(match["line"]) <= row["last"]:
            around.append(row)
    if around:
        return str(max(around, key=lambda row: row["first"])["condition"])
    return ""


def _loop_left(one: Program, other: Program) -> str:
    """``train.py:40``, the loop that one side has left and another has not."""
    for mine in one:
        for theirs in other:
            if mine.get("func") and (mine["file"], mine["func"]) == (
                theirs["file"],
                theirs.get("func"),
            ):
                loop = next(
                    (first for first, last in theirs.get("loops") or () if mine["line"] > last),
                    None,
                )
                if loop is not None:
                    return f"{PurePosixPath(mine['file']).name}:{loop}"
                return ""
    return ""


def frames_of_position(position: RankPosition) -> Sequence[Frame]:
    """The frames of its stack, innermost first."""
    found = []
    for line in position.lines:
        if line.kind == "stack":
            for frame in line.data.frames:
                found.append(frame)
    return found


def _value(position: RankPosition) -> str:
    kernel = _collective(position)
    return f"{position.call} at {position.place}{f' ({kernel} on its GPU)' if kernel else ''}"


def same_positions(found: Iterable[RankPosition]) -> list[list[RankPosition]]:
    """Ranks that stand at one place for one reason, the rarest first."""
    groups: dict[tuple[str, str, str, str | None], list[RankPosition]] = {}
    for position in found:
        groups.setdefault(
            (position.waits_for, position.call, position.place, position.kernel), []
        ).append(position)
    return sorted(groups.values(), key=lambda held: (len(held), held[0].rank))


def group_line(held: Sequence[RankPosition]) -> str:
    """``ranks 0 and 1 wait for other ranks in all_reduce at train.py:33``.

    It is said of ranks at one place.
    """
    at = step_range(held)
    branch = ""
    if held[0].condition:
        branch = f", {inside(held[0].condition)}"
    who = rank_words(position.rank for position in held)
    return f"{who} {held[0].activity(len(held))}{branch}{f' ({at})' if at else ''}"


def inside(condition: str) -> str:
    """``inside `if rank == 0` ``, or ``past `if rank != 0: return` ``.

    It says how a rank came to a line of its program.
    """
    if condition.startswith("past "):
        return f"past `{condition[5:]}`"
    return f"inside `{condition if condition.startswith('while ') else f'if {condition}'}`"


def step_range(found: Iterable[RankPosition]) -> str:
    """``epoch 3, step 118 to 120``.

    It is what counts the steps of ranks; empty where nothing is known of it.
    """
    values: dict[str, set[int]] = {}
    for position in found:
        for name, number in position.steps.items():
            values.setdefault(name, set()).add(number)
    ranges = []
    for name, held in values.items():
        low = min(held)
        high = max(held)
        if low < high:
            ranges.append(f"{name} {low} to {high}")
        else:
            ranges.append(f"{name} {low}")
    return ", ".join(ranges)


def position_bars(events: Iterable[Event]) -> list[str]:
    """One line for each group of ranks at one place, the smallest first.

    It says which ranks these are, and what they do.
    """
    seen = rank_positions(events)
    lines = []
    for held in same_positions(seen.values()):
        ranks = [position.rank for position in held]
        lines.append(f"  {rank_columns(ranks, list(seen))}  {group_line(held)}")
    each = 0
    if seen:
        each = -(-len(seen) // COLUMNS)
    return [f"  {each} ranks a column, the first from rank {min(seen)} on:"] * (each > 1) + lines


def rank_columns(held: Sequence[int], of: Sequence[int]) -> str:
    """A column per rank or some, and their number.

    A column is ■ where it belongs to a group, ▪ where some of it do.
    """
    ranks = sorted(of)
    mine = set(held)
    each = max(1, -(-len(ranks) // COLUMNS))
    columns = [ranks[first : first + each] for first in range(0, len(ranks), each)]
    marks = []
    for one in columns:
        if mine.issuperset(one):
            marks.append("■")
        else:
            marks.append("▪" if mine.intersection(one) else "·")
    return f"{''.join(marks)} {len(held):>{len(str(len(ranks)))}}"


def waiting_time(found: Iterable[RankPosition]) -> str:
    """``for at least 4 min``: how long the ranks that wait have heard nothing from others.

    Where that is not known, it is how long they were looked at.  They go on waiting while it is
    read.
    """
    waiting = []
    for position in found:
        if position.waits_for in FOR_PEERS and not position.moved:
            waiting.append(position)
    ages = []
    for position in waiting:
        if position.quiet is not None:
            ages.append(position.quiet)
    shots = [position.lines[0].data.snapshots for position in waiting]
    watched_spans = []
    for rows in shots:
        if len(rows) > 1:
            watched_spans.append(rows[-1]["t"] - rows[0]["t"])
    watched = min(watched_spans, default=0.0)
    if ages and min(ages) > watched:
        return f"with no word from others for at least {format_age(min(ages))}"
    if watched:
        return f"for at least {format_age(watched)}"
    return ""


def waiting_time_of_case(case: Case) -> str:
    """`waiting_time` of the ranks of a case, with a blank before it.

    It is empty where nothing shows it.
    """
    known = waiting_time(positions_of_case(case).values())
    if known:
        return f" {known}"
    return ""


def others_wait(case: Case, ranks: Collection[int]) -> str:
    """``ranks 0 and 2 wait in all_reduce at train.py:33 for 4 min``.

    It says who of a running job waits for these ranks.
    """
    late = set(ranks)
    waiting = []
    for rank, position in positions_of_case(case).items():
        if rank not in late and position.waits_for_ranks:
            waiting.append(position)
    if not waiting:
        return ""
    who = [position.rank for position in waiting]
    places = {(position.call, position.place) for position in waiting}
    where = "for it"
    if len(places) == 1:
        where = "in {} at {}".format(*min(places))
    known = waiting_time(waiting)
    return f"{rank_words(who)} {verb(who, 'waits', 'wait')} {where}" + f" {known}" * bool(known)


def places_now(case: Case) -> str:
    """`` (rank 0 at train.py:41, ranks 1 and 2 at train.py:33)``.

    It says where the ranks of a running job stand.
    """
    held: dict[str, list[int]] = {}
    for rank, position in positions_of_case(case).items():
        held.setdefault(position.place, []).append(rank)
    known = []
    for place, ranks in held.items():
        if place:
            known.append(f"{rank_words(ranks)} at {place}")
    if known:
        return f" ({', '.join(known[:4])})"
    return ""
