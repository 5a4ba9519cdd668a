"""Python tracebacks, de-interleaved by the prefix of their process, and bare exception lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ncclkit.core.model import Event
from ncclkit.evidence.grammars.grammar import Data, Line, frame
from ncclkit.evidence.grammars.victims import is_victim

GATE = (b"(most recent call", b"rror", b"xception", b"Interrupt")
LIMIT = 400
"""Longest traceback in lines."""

HEADER = "Traceback (most recent call last)"
ORIGINAL = f"Original {HEADER}"
IGNORED = "Exception ignored in"
"""How Python begins what it tells of an error in a destructor or a callback, after which it goes on."""
FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<func>[^"]*?))?\s*$')
# torch.distributed.DistBackendError: NCCL error in: …      KeyboardInterrupt
# torch.multiprocessing.spawn.ProcessExitedException: process 3 …
FINAL = re.compile(
    r"(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Iteration|Failure|[Ee]xceeded))(?:: "
    r"(?P<message>.*))?\s*$"
)
ANY = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?::(?: (?P<message>.*))?)?\s*$")
REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")
# E   ImportError: …   of pytest;   ERROR 08-27 06:25:25 worker_base.py:382]   of a logger
LOGGER = re.compile(r"^(?:E   |[\w .:,/\[\]-]{0,120}?(?:ERROR|CRITICAL|FATAL)[^\]]{0,100}\] ?)")
TIMES = re.compile(r"\d{1,4}[-/]\d{1,2}(?:[-/]\d{1,4})?|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?")


def read(line: Line) -> Iterator[Event]:
    """Events of one line: a traceback that begins here, or an exception named without its traceback."""
    place = line.body.find(HEADER)
    if place >= 0:
        yield from _traceback(line, place)
    elif IGNORED in line.body:
        yield from _ignored(line)
    else:
        yield from _bare(line)


def _ignored(line: Line) -> Iterator[Event]:
    """The error that Python goes on after, with or without its traceback."""
    for later in line.own(LIMIT):
        body = later.body
        if match := FINAL.match(body.strip()):
            yield line.event("python.ignored", {"type": match["type"], "until": later.number})
        if match or not (HEADER in body or body[:1] in (" ", "\t")):
            return


def _traceback(line: Line, place: int) -> Iterator[Event]:
    if "\\n" in line.body[place:]:
        yield from _escaped(line, place)
        return
    shape = _shape(line.body[:place])
    lines: list[Line] = []
    told = _region(_bodies(line, place, shape, lines))
    frames = _separate(told) if told else None
    if told is None or frames is None:
        return  # torn, or mixed so that nobody can tell whose line is whose: the last lines speak for themselves
    raw = [line.text, *(later.text for later in lines[: told.finals[0][0]])]
    raw = raw if len(told.finals) == 1 else list(dict.fromkeys(raw))
    for number, final in told.finals:
        yield _event(line, final, frames, [*raw, lines[number].text], lines[number].number)


def _bodies(line: Line, place: int, shape: str, lines: list[Line]) -> Iterator[str]:
    """The next lines of this process without their prefix; `lines` keeps what was looked at."""
    for later in line.own(LIMIT):
        if _shape(later.body[:place]) == shape:
            lines.append(later)
            yield REPEATED.sub("", later.body[place:])


@dataclass(slots=True)
class Region:
    """What follows a traceback's first line: frames and the last lines, of one process or of several mixed."""

    frames: list[Data]
    finals: list[tuple[int, re.Match[str]]]
    ends: int = 0
    """Frames that stood before the first last line."""


def _region(bodies: Iterable[str]) -> Region | None:
    """Frames and last lines up to the end; None for what is torn, or goes on in another traceback."""
    return _told(enumerate(bodies))


def _told(numbered: Iterator[tuple[int, str]]) -> Region | None:
    region = Region([], [])
    for number, body in numbered:
        if region.finals and body.startswith(ORIGINAL):
            return _told(numbered) or region  # what a worker raised, and its parent only passed on
        if match := FRAME.match(body):
            region.frames.append(frame(match["file"], match["line"], match["func"] or "?"))
        elif HEADER in body and not region.finals:
            return None  # the next traceback of this process began before this one ended
        elif body[:1] in (" ", "\t"):
            if body.count('File "') > 1:
                return None
        elif not body and not region.finals or not region.frames:
            continue
        elif not _finish(region, number, body):
            break
    return region if region.finals else None


def _finish(region: Region, number: int, body: str) -> bool:
    """Take a last line; False where it is none."""
    first = not region.finals
    final = (ANY if first else FINAL).match(body.strip())
    if final is None or (not first and final["type"].startswith("nccl")):
        return False
    region.ends = len(region.frames) if first else region.ends
    region.finals.append((number, final))
    return True


def _separate(region: Region) -> list[Data] | None:
    """The frames of each of the mixed tracebacks, which can be told only where all of them are the same."""
    many = len(region.finals)
    if many == 1:
        return region.frames if region.ends == len(region.frames) else None
    counts = Counter((frame["file"], frame["line"], frame["func"]) for frame in region.frames)
    if set(counts.values()) == {1} and len({final.string for _, final in region.finals}) == 1:
        del region.finals[1:]  # one traceback, whose last line somebody says again
    elif set(counts.values()) != {many}:
        return None
    return [frame(file, number, func) for file, number, func in counts]


def _event(line: Line, final: re.Match[str], frames: list[Data], raw: list[str], until: int) -> Event:
    kind, message = final["type"], final["message"] or ""
    data = {
        "type": kind,
        "message": message,
        "frames": frames[-60:],
        "until": until,
        "victim": is_victim(kind, message),
    }
    return line.event("python.exception", data, text="\n".join(raw))


def _bare(line: Line) -> Iterator[Event]:
    body = LOGGER.sub("", REPEATED.sub("", line.body)).strip()
    match = FINAL.match(body)
    if match and (match["message"] or "." in match["type"]) and not match["type"].startswith("nccl"):
        yield _event(line, match, [], [line.text], line.number)


def _escaped(line: Line, place: int) -> Iterator[Event]:
    """A traceback inside a JSON string, as torchrun's error handler logs it."""
    lines = line.body[place:].replace('\\"', '"').split("\\n")
    frames = [frame(m["file"], m["line"], m["func"] or "?") for m in map(FRAME.match, lines) if m]
    finals = [match for match in (FINAL.match(text) for text in lines[1:] if text[:1] != " ") if match]
    if frames and finals:
        last = finals[-1]
        message = (last["message"] or "").rstrip('",')
        data = {
            "type": last["type"],
            "message": message,
            "frames": frames[-60:],
            "until": line.number,
            "victim": is_victim(last["type"], message),
        }
        yield line.event("python.exception", data, text="\n".join(lines))


def _shape(prefix: str) -> str:
    """A logger's prefix with its times blanked: the clock may tick inside a traceback, a rank stays."""
    return TIMES.sub("#", prefix)
