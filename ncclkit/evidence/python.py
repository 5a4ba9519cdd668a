"""Python tracebacks, de-interleaved by the prefix of their process, and bare exception lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclkit.evidence.grammar import Data, Line, frame
from ncclkit.model import Event

GATE = (b"(most recent call", b"rror", b"xception", b"Interrupt")
LIMIT = 400
"""Longest traceback in lines."""

HEADER = "Traceback (most recent call last)"
FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<func>.*?))?\s*$')
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

VICTIM_TYPES = re.compile(
    r"(?:DistBackendError|DistNetworkError|DistStoreError|ChildFailedError|SignalException|BrokenPipeError"
    r"|ConnectionResetError"
    r"|ConnectionAbortedError|EOFError|KeyboardInterrupt|ProcessRaisedException"
    r"|ProcessExitedException|ActorDiedError|RayActorError"
    r"|WorkerCrashedError|BrokenProcessPool|CalledProcessError)$"
)
VICTIM_TEXT = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|[Ww]atchdog|Timed out waiting \d+ ?ms for"
    r"|monitoredBarrier|Socket Timeout"
    r"|NCCL communicator was aborted|remote process exited|Failed to recv, got 0 bytes|Connection was likely closed"
    r"|wait timeout after"
    r"|collective operation timeout|waiting for clients|NCCL operation timed out|DataLoader worker \(pid.*"
    r"(?:exited unexpectedly|killed by signal)"
)
OWN_TEXT = re.compile(
    r"unhandled cuda error|invalid usage|invalid argument|internal error|unhandled system error|Duplicate GPU"
    r"|EADDRINUSE|ddress already in use"
    r"|uda failure|out of memory"
)


def is_victim(kind: str, message: str) -> bool:
    """True when an exception only reports that another rank, or the connection to it, failed."""
    if VICTIM_TEXT.search(message):
        return True
    return bool(VICTIM_TYPES.search(kind)) and not (kind.endswith("Error") and OWN_TEXT.search(message))


def read(line: Line) -> Iterator[Event]:
    """Events of one line: a traceback that begins here, or an exception named without its traceback."""
    place = line.body.find(HEADER)
    if place >= 0:
        yield from _traceback(line, place)
    else:
        yield from _bare(line)


def _traceback(line: Line, place: int) -> Iterator[Event]:
    if "\\n" in line.body[place:]:
        yield from _escaped(line, place)
        return
    shape = _shape(line.body[:place])
    frames: list[Data] = []
    raw = [line.text]
    for later in line.own(LIMIT):
        if _shape(later.body[:place]) != shape:
            continue
        body = REPEATED.sub("", later.body[place:])
        raw.append(later.text)
        if match := FRAME.match(body):
            frames.append(frame(match["file"], match["line"], match["func"] or "?"))
        elif HEADER in body:
            return  # the next traceback of this process began before this one ended
        elif body[:1] not in (" ", "", "\t") and frames:
            if final := ANY.match(body.strip()):
                yield _event(line, final, frames, raw, later.number)
            return  # a last line of another shape: torn by another process


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
    """A logger's prefix with its digits blanked: the clock may tick inside a traceback."""
    return re.sub(r"\d", "#", prefix)
