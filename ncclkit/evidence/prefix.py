"""What stands before the message: colours, launcher prefixes, time stamps, ranks."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from ncclkit.evidence.grammar import Line

ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|(?<![\w\])])\[\d{1,2}(?:;\d{1,2})*m"
)
"""Escape sequences, and colour codes whose escape character was lost in copying."""

LAUNCHER = re.compile(
    r"\s*(?:"
    # [default0]: …   [trainer3]:…   [trainer0|0]:…
    r"\[(?!rank|Rank)[A-Za-z_]+?(?P<role>\d+)(?:\|\d+)?\]:\s?"
    # [1,3]<stdout>: …   Sat Nov 21 01:02:03 2026[1,3]<stderr>:…
    r"|(?:\w{3} \w{3} [ \d]\d [\d:]{8} \d{4})?\[\d+,(?P<mpi>\d+)\]<std(?:out|err|diag)>:\s?"
    # (RayWorkerWrapper pid=13305, ip=10.0.0.7) …   (EngineCore_0 pid=77) …
    r"|\((?P<actor>\w+)(?: rank=(?P<actor_rank>\d+))? pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\d.a-f:]+))?\)\s"
    # 2026-11-21T01:02:03.123456789Z stdout F …
    r"|(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)) (?:std(?:out|err) [FP] )?"
    r")"
)
TASK = re.compile(r"\s{0,4}(\d{1,5}): ")
"""srun -l; only believed where most lines of the file look like this."""
RANK = re.compile(r"\[rank(\d{1,7})\]:? ?")
CPP = ("[I", "[W", "[E", "[F")
STAMP = re.compile(r"\[?(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\]?,? ?")
GLOG = re.compile(r"(?:\[|^)[IWEF](\d{3,4}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")


def parse(raw: str, path: str = "", number: int = 0, *, tasks: bool = False, changed: datetime | None = None) -> Line:
    """Take a raw line apart.

    tasks: ``3: `` at the line's start is a Slurm task; changed: the file's last change, which tells the year that
    c10 time stamps leave out.
    """
    text = ANSI.sub("", raw) if "\x1b" in raw or "m" in raw[:8] else raw
    line = Line(text, path=path, number=number)
    while match := LAUNCHER.match(text):
        _launcher(line, match)
        text = text[match.end() :]
    if tasks and (task := TASK.match(text)):
        line.rank, line.local, line.speaker = int(task[1]), True, line.speaker + task[0].strip()
        text = text[task.end() :]
    line.text = line.body = text
    if "[rank" in text and (own := RANK.search(text)):
        line.rank, line.local = int(own[1]), False
        if text[own.end() : own.end() + 2] not in CPP:  # C++ puts it before the first line of a message only
            line.speaker += own[0].strip()
        line.body = text[own.end() :] if not text[: own.start()].strip() else text
    line.time = line.time if line.time is not None else moment(text, changed)
    stamp = STAMP.match(line.body)
    line.body = line.body[stamp.end() :] if stamp else line.body
    return line


def _launcher(line: Line, match: re.Match[str]) -> None:
    label = match["role"] or match["mpi"] or match["actor_rank"]
    if label is not None:
        line.rank, line.local = int(label), match["mpi"] is None
    if match["pid"]:
        line.pid, line.host = int(match["pid"]), match["ip"] or ""
    if match["iso"]:
        line.time = _iso(match["iso"])
    else:
        line.speaker += match[0].strip()


def moment(text: str, year: datetime | None = None) -> float | None:
    """Seconds since the epoch of the first time stamp of a line; local time, as NCCL and torch print it."""
    if match := STAMP.match(text) or (STAMP.search(text) if "NCCL WARN" in text else None):
        return _seconds([int(part) for part in match.groups()[:6]], match[7])
    if year is not None and (match := GLOG.search(text)):
        month, day = divmod(int(match[1]), 100)
        clock = [int(part) for part in match.groups()[1:4]]
        seconds = _seconds([year.year, month, day, *clock], match[5])
        if seconds is not None and seconds > year.timestamp() + 86400:
            seconds = _seconds([year.year - 1, month, day, *clock], match[5])
        return seconds
    return None


def _seconds(parts: list[int], fraction: str | None) -> float | None:
    try:
        whole = datetime(parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return whole + (float("0." + fraction) if fraction else 0.0)


def _iso(text: str) -> float | None:
    clock, _, rest = text.partition(".")
    fraction = re.match(r"\d*", rest)
    zone = re.search(r"[+-]\d\d:?\d\d$", text)
    try:
        base = datetime.strptime(clock[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
    shift = 0
    if zone:
        sign = -1 if zone[0][0] == "-" else 1
        shift = sign * (int(zone[0][1:3]) * 3600 + int(zone[0][-2:]) * 60)
    return base - shift + (float("0." + fraction[0]) if fraction and fraction[0] else 0.0)
