"""The grammar of exceptions.

It reads tracebacks of Python and ends of C++, and tells which only report another rank's failure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from ncclkit.core.kinds import Frame
from ncclkit.core.model import Event
from ncclkit.evidence.grammars.grammar import Data, Line, Rule, frame, rule

TYPES = re.compile(
    r"(?:DistBackendError|DistNetworkError|DistStoreError|ChildFailedError|SignalException"
    r"|BrokenPipeError"
    r"|ConnectionResetError"
    r"|ConnectionAbortedError|EOFError|KeyboardInterrupt|ProcessRaisedException"
    r"|ProcessExitedException|ActorDiedError|RayActorError"
    r"|WorkerCrashedError|NodeDiedError|TrainingFailedError|RayTaskError|TuneError"
    r"|HorovodInternalError|EngineDeadError"
    r"|BrokenProcessPool|CalledProcessError)$"
)
TEXT = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|[Ww]atchdog|Timed out waiting"
    r" \d+ ?ms for"
    r"|Application timeout caused pair closure"
    r"|monitoredBarrier|Socket Timeout|(?:Read|Write) error .{0,80}Connection timed out"
    r"|NCCL communicator was aborted|remote process exited|Failed to recv, got 0 bytes|Connection"
    r" was likely closed"
    r"|wait timeout after"
    r"|RPC call to \w{1,60} timed out|Horovod has been shut ?down|[Bb]ackground loop has"
    r" errored|Engine loop has died"
    r"|Worker failed with error .{0,400}check the stack trace above|WorkerProc initialization"
    r" failed"
    r"|scheduler is dead|Pin memory thread exited unexpectedly|returned non-zero exit status"
    r"|collective operation timeout|waiting for clients|in store based barrier|NCCL operation"
    r" timed out"
    r"|DataLoader worker \(pid.{0,300}(?:exited unexpectedly|killed by signal)"
)
OWN = re.compile(
    r"unhandled cuda error|invalid usage|invalid argument|internal error|unhandled system"
    r" error|Duplicate GPU"
    r"|EADDRINUSE|ddress already in use"
    r"|uda failure|out of memory|use_libuv was requested"
)


def is_victim(kind: str, message: str) -> bool:
    """True when an exception only reports that another rank failed.

    It may also report the end of the connection to that rank.
    """
    if TEXT.search(message):
        return True
    return bool(TYPES.search(kind)) and not (kind.endswith("Error") and OWN.search(message))


GATE = (b"(most recent call", b"rror", b"xception", b"Interrupt")
LIMIT = 400
"""Longest traceback in lines."""

HEADER = "Traceback (most recent call last)"
ORIGINAL = f"Original {HEADER}"
IGNORED = "Exception ignored in"
"""How Python begins its report of an error in a destructor or a callback, after which it goes
on."""
FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<func>[^"]*?))?\s*$')
# torch.distributed.DistBackendError: NCCL error in: …      KeyboardInterrupt
# torch.multiprocessing.spawn.ProcessExitedException: process 3 …
FINAL = re.compile(
    r"(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Iteration|Failure"
    r"|[Ee]xceeded))(?:: "
    r"(?P<message>.*))?\s*$"
)
ANY = re.compile(r"(?<![\w.])(?P<type>[A-Za-z_][\w.]*)(?::(?: (?P<message>.*))?)?\s*$")
REPEATED = re.compile(r"\s{0,80}\[repeated \d+x across cluster\].*$")
# E   ImportError: …   of pytest;   ERROR 08-27 06:25:25 worker_base.py:382]   of a logger
LOGGER = re.compile(r"^(?:E   |[\w .:,/\[\]-]{0,120}?(?:ERROR|CRITICAL|FATAL)[^\]]{0,100}\] ?)")
TIMES = re.compile(r"\d{1,4}[-/]\d{1,2}(?:[-/]\d{1,4})?|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?")


def read_exceptions(line: Line) -> Iterator[Event]:
    """Events of one line.

    They are a traceback that begins here, or an exception named without its traceback.
    """
    place = line.body.find(HEADER)
    if place >= 0:
        yield from _events_of_traceback(line, place)
    elif IGNORED in line.body:
        yield from _ignored_error(line)
    else:
        yield from _bare_exception(line)


def _ignored_error(line: Line) -> Iterator[Event]:
    """The error that Python goes on after, with or without its traceback."""
    for later in line.own(LIMIT):
        body = later.body
        match = FINAL.match(body.strip())
        if match:
            yield line.event("python.ignored", {"type": match["type"], "until": later.number})
        if match or not (HEADER in body or body[:1] in (" ", "\t")):
            return


def _events_of_traceback(line: Line, place: int) -> Iterator[Event]:
    if "\\n" in line.body[place:]:
        yield from _escaped_traceback(line, place)
        return
    shape = _shape_of_prefix(line.body[:place])
    lines: list[Line] = []
    region = _read_region(enumerate(_bodies_of_process(line, place, shape, lines)))
    frames = None
    if region:
        frames = _separate_frames(region)
    if region is None or frames is None:
        # torn, or mixed so that nobody can tell whose line is whose: the last lines speak for
        # themselves
        return
    raw = [line.text, *(later.text for later in lines[: region.finals[0][0]])]
    if len(region.finals) != 1:
        raw = list(dict.fromkeys(raw))
    for number, final in region.finals:
        yield _exception_event(
            line, final, frames, [*raw, lines[number].quote], lines[number].number
        )


def _bodies_of_process(line: Line, place: int, shape: str, lines: list[Line]) -> Iterator[str]:
    """The next lines of this process without their prefix.

    `lines` keeps what was looked at.
    """
    for later in line.own(LIMIT):
        if _shape_of_prefix(later.body[:place]) == shape:
            lines.append(later)
            yield REPEATED.sub("", later.body[place:])


@dataclass(slots=True)
class Region:
    """What follows a traceback's first line.

    It is frames and the last lines, of one process or of several mixed.
    """

    frames: list[Frame]
    finals: list[tuple[int, re.Match[str]]]
    ends: int = 0
    """Frames that stood before the first last line."""


def _read_region(numbered: Iterator[tuple[int, str]]) -> Region | None:
    """Frames and last lines up to the end.

    It is None for what is torn, or goes on in another traceback.
    """
    region = Region([], [])
    for number, body in numbered:
        if region.finals and body.startswith(ORIGINAL):
            # what a worker raised, and its parent only passed on
            return _read_region(numbered) or region
        match = FRAME.match(body)
        if match:
            region.frames.append(frame(match["file"], match["line"], match["func"] or "?"))
        elif HEADER in body and not region.finals:
            return None  # the next traceback of this process began before this one ended
        elif body[:1] in (" ", "\t"):
            if body.count('File "') > 1:
                return None
        elif not body and not region.finals or not region.frames:
            continue
        elif not _take_final(region, number, body):
            break
    if region.finals:
        return region
    return None


def _take_final(region: Region, number: int, body: str) -> bool:
    """Take a last line; False where it is none."""
    first = not region.finals
    final = (ANY if first else FINAL).match(body.strip())
    if final is None or (not first and final["type"].startswith("nccl")):
        return False
    if first:
        region.ends = len(region.frames)
    region.finals.append((number, final))
    return True


def _separate_frames(region: Region) -> list[Frame] | None:
    """The frames of each of the mixed tracebacks.

    They can be told only where all of them are the same.
    """
    many = len(region.finals)
    if many == 1:
        if region.ends == len(region.frames):
            return region.frames
        return None
    counts = Counter((frame["file"], frame["line"], frame["func"]) for frame in region.frames)
    if set(counts.values()) == {1} and len({final.string for _, final in region.finals}) == 1:
        del region.finals[1:]  # one traceback, whose last line somebody says again
    elif set(counts.values()) != {many}:
        return None
    return [frame(file, number, func) for file, number, func in counts]


DEBUG_SERVER = "torch/distributed/debug/_frontend.py"
"""Where torch's debug server makes its dumps, in a process of its own that goes on after errors."""


# (Worker_DP1_TP0 pid=77)      (Worker_PP1_TP0 pid=77)      (DP0_EP1 pid=77)      (Worker pid=77)
WORKER = re.compile(
    r"\((?:(?:Vllm)?Worker(?:[ _](?=[A-Zr]))?)?(?P<places>(?:[A-Z]{2,4}\d{1,7}[ _]?){0,6})"
    r"(?:rank=\d{1,7} )? ?pid=(?P<pid>\d{1,10})\)"
)
"""The head of a process of a server of models that holds a GPU; its engine's is another one."""


def _worker_in(speaker: str) -> str:
    """`DP1 TP0`, or `pid 77`: which worker of a server of models speaks; else empty."""
    head = WORKER.match(speaker)
    if head is None or not (head["places"] or "Worker" in speaker):
        return ""
    places = head["places"].replace("_", " ").strip()
    return places or f"pid {head['pid']}"


def _exception_event(
    line: Line, final: re.Match[str], frames: list[Frame], raw: list[str], until: int
) -> Event:
    kind = final["type"]
    message = final["message"] or ""
    if frames and frames[0]["file"].endswith(DEBUG_SERVER):
        return line.event("python.ignored", {"type": kind, "until": until}, text="\n".join(raw))
    data = {
        "type": kind,
        "message": message,
        "frames": frames[-60:],
        "until": until,
        "victim": is_victim(kind, message),
        "worker": _worker_in(line.speaker),
    }
    return line.event("python.exception", data, text="\n".join(raw))


def _bare_exception(line: Line) -> Iterator[Event]:
    body = LOGGER.sub("", REPEATED.sub("", line.body)).strip()
    match = FINAL.match(body)
    if (
        match
        and (match["message"] or "." in match["type"])
        and not match["type"].startswith("nccl")
    ):
        yield _exception_event(line, match, [], [line.text], line.number)


def _escaped_traceback(line: Line, place: int) -> Iterator[Event]:
    """A traceback inside a JSON string, as torchrun's error handler logs it."""
    lines = line.body[place:].replace('\\"', '"').split("\\n")
    frames = [frame(m["file"], m["line"], m["func"] or "?") for m in map(FRAME.match, lines) if m]
    finals = [
        match
        for match in (FINAL.match(text.rstrip('",')) for text in lines[1:] if text[:1] != " ")
        if match
    ]
    if frames and finals:
        yield _exception_event(line, finals[-1], frames, lines, line.number)


def _shape_of_prefix(prefix: str) -> str:
    """A logger's prefix with its times blanked.

    The clock may tick inside a traceback, a rank stays.
    """
    return TIMES.sub("#", prefix)


CPP_LINES = 160
"""Lines after the first that may belong to it."""

WHAT = re.compile(r"\s*what\(\):\s{0,4}(.*)")
# Exception raised from checkTimeout at \
#   /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call
RAISED = re.compile(
    r"Exception raised from (?P<func>\S{1,300}) at (?P<file>\S{1,400}):(?P<line>\d{1,7}) \(most"
    r" recent"
)
# frame #2: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x10c (0x7f01 in \
#   /opt/torch/lib/libtorch_cuda.so)
CPP_FRAME = re.compile(
    r"\s*frame #(?P<number>\d{1,4}): (?P<func>.{1,400}?) (?:\+ 0x\w+ )?\((?:0x\w+ in"
    r" )?(?P<lib>[^()\s]{1,400})\)\s*$"
)


def _uncaught(match: re.Match[str], data: Data, line: Line) -> Data:
    """Message and stack, which stand in the next lines of the same process.

    Of several mixed ones nothing is guessed.
    """
    lines = [
        later.body
        for later in takewhile(
            lambda later: "terminate called" not in later.body, line.own(CPP_LINES)
        )
    ]
    said = {found[1].strip() for found in map(WHAT.match, lines) if found}
    places = [found for found in map(RAISED.search, lines) if found]
    message = ""
    if len(said) == 1:
        message = said.pop()
    frames = _first_stack(lines)
    return data | {
        "message": message,
        "raised": (
            frame(places[0]["file"], places[0]["line"], places[0]["func"])
            if places and frames
            else None
        ),
        "frames": frames,
        "victim": is_victim(data["type"].rpartition("::")[2], message),
    }


def _first_stack(lines: list[str]) -> list[Frame]:
    """The first stack of these lines.

    It is empty where the numbers show that stacks of several processes are mixed.
    """
    runs: list[list[re.Match[str]]] = []
    for match in filter(None, map(CPP_FRAME.match, lines)):
        if match["number"] == "0":
            runs.append([])
        if runs:
            runs[-1].append(match)
    if not runs or not all(map(_is_whole_stack, runs)):
        return []
    return [frame(match["lib"], 0, match["func"]) for match in runs[0][:60]]


def _is_whole_stack(frames: list[re.Match[str]]) -> bool:
    """Whether frames are numbered one after the other."""
    numbers = [int(match["number"]) for match in frames]
    return len(numbers) > 1 and numbers == list(range(len(numbers)))


RULES: tuple[Rule, ...] = (
    # terminate called after throwing an instance of 'c10::DistBackendError'
    #   what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated \
    #     with exception: …
    # Exception raised from checkTimeout at /pytorch/torch/csrc/…/ProcessGroupNCCL.cpp:632 (most \
    #   recent call first):
    # frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f01 in \
    #   /opt/torch/lib/libc10.so)
    rule(
        "cpp.exception",
        "terminate called after throwing",
        r"terminate called after throwing an instance of '(?P<type>[^']{1,300})'",
        make=_uncaught,
    ),
)
