"""What stands before the message.

That is colours, launcher prefixes, time stamps, ranks and hosts.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone

from ncclkit.core import secrets
from ncclkit.evidence.grammars.grammar import Line
from ncclkit.evidence.grammars.torchcomms import rank_in_world

STAMP = re.compile(
    r"\[?(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\]?,? ?"
)
GLOG = re.compile(r"(?:\[|^)[IWEF](\d{3,4}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
# [Sat Nov 21 01:02:03 2026] NVRM: …   of dmesg -T
DMESG = re.compile(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d) (\d{4})\] ?")
# 11/21/2026 01:02:03 - INFO - __main__ - …   of accelerate and transformers
SLASHED = re.compile(r"(\d\d)/(\d\d)/(\d{4}) (\d\d):(\d\d):(\d\d)\b")
MONTHS = {
    name: number
    for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)
}


def moment(text: str, year: datetime | None = None) -> float | None:
    """The first time stamp of a line.

    It is local time, as NCCL and torch print it; `year` is the file's last change.
    """
    match = STAMP.match(text)
    # NCCL's own stamp stands behind what a launcher wrote in front of it
    if match is None and ("NCCL WARN" in text or "NCCL ATTN" in text):
        match = STAMP.search(text)
    if match:
        return _seconds_of_parts([int(part) for part in match.groups()[:6]], match[7])
    match = DMESG.match(text)
    if match:
        day = [int(match[6]), MONTHS.get(match[1], 0), int(match[2])]
        return _seconds_of_parts([*day, *(int(part) for part in match.groups()[2:5])], None)
    match = SLASHED.match(text)
    if match:
        month, of_month, calendar, *hours = (int(part) for part in match.groups())
        return _seconds_of_parts([calendar, month, of_month, *hours], None)
    if year is not None and (match := GLOG.search(text)):
        month, of_month = divmod(int(match[1]), 100)
        return _within_year(
            year, [month, of_month, *(int(part) for part in match.groups()[1:4])], match[5]
        )
    return None


def syslog(text: str, year: datetime | None) -> float | None:
    """``Nov 21 01:02:03``, whose year is that of the file, or the one before."""
    month, day, hours = text[:3], text[4:6], text[7:]
    if year is None or month not in MONTHS:
        return None
    return _within_year(
        year, [MONTHS[month], int(day), *(int(part) for part in hours.split(":"))], None
    )


def iso(text: str) -> float | None:
    """``2026-11-21T01:02:03.25Z``, ``…+01:00``; without a zone it is taken for UTC."""
    fraction = re.search(r"[.,](\d{1,9})", text)
    zone = re.search(r"([+-])(\d\d):?(\d\d)$", text)
    try:
        base = (
            datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")
            .replace(tzinfo=timezone.utc)
            .timestamp()
        )
    except ValueError:
        return None
    shift = 0
    if zone:
        shift = (int(zone[2]) * 3600 + int(zone[3]) * 60) * (-1 if zone[1] == "-" else 1)
    return base - shift + (float("0." + fraction[1]) if fraction else 0.0)


def _within_year(year: datetime, parts: list[int], fraction: str | None) -> float | None:
    """A moment without its year, not later than a day after `year`."""
    seconds = _seconds_of_parts([year.year, *parts], fraction)
    if seconds is not None and seconds > year.timestamp() + 86400:
        seconds = _seconds_of_parts([year.year - 1, *parts], fraction)
    return seconds


def _seconds_of_parts(parts: list[int], fraction: str | None) -> float | None:
    try:
        whole = datetime(parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return whole + (float("0." + fraction) if fraction else 0.0)


ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]_][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
    r"|(?<![\w\])])\[\d{1,2}(?:;\d{1,2})*m"
)
"""Escape sequences, and colour codes whose escape character was lost in copying."""

LAUNCHER = re.compile(
    r"\s*(?:"
    # [default0]: …   [trainer3]:…
    # [trainer0|7]:…   [trainer:0|7]:…   [node-1|trainer0|7]:…   (local|global)
    r"\[(?!rank|Rank)(?:(?P<at>[\w.-]{1,255})\|)?"
    r"[A-Za-z_]+?:?(?P<role>\d{1,7})(?:\|(?P<world>\d{1,7}))?\]:\s?"
    # [1,3]<stdout>: …   Sat Nov 21 01:02:03 2026[1,3]<stderr>:…
    # [prterun-n1-77@1,3][n2:4711]<stdout>: …
    # [1,mpirank:3,algo-1]<stderr>:…   (SageMaker)
    r"|(?:\w{3} \w{3} [ \d]\d [\d:]{8} \d{4})?\[(?:[\w.-]{1,255}@)?\d+,(?:mpirank:)?"
    r"(?P<mpi>\d{1,7})(?:,(?P<algo>[\w.-]{1,255}))?\]"
    r"(?:\[(?P<node>[\w.-]{1,255}):(?P<node_pid>\d{1,10})\])?<std(?:out|err|diag)>:\s?"
    # (Worker_TP3 pid=77) …   (VllmWorker TP3 pid=77) …   (Worker_TP3_EP3 pid=77) …   (vLLM)
    r"|\((?:Vllm)?Worker[ _]TP(?P<tensor>\d{1,7})(?:[ _]EP\d{1,7})?"
    r" pid=(?P<tensor_pid>\d{1,10})\)\s"
    # (RayWorkerWrapper pid=13305, ip=10.0.0.7) …
    # (EngineCore_0 pid=77) …   (pid=77) …   (Worker(policy) pid=77) …
    r"|\((?:[^\s()=,]{1,120}(?:\(\w{1,60}\))? )?(?:rank=(?P<actor>\d{1,7}) )?pid=(?P<pid>\d{1,10})"
    r"(?:, ip=(?P<ip>[\d.a-f:]{2,45}))?\)\s"
    # (raylet, ip=10.0.0.7) …
    r"|\(raylet(?:, ip=(?P<raylet>[\d.a-f:]{2,45}))?\)\s"
    # Nov 21 01:02:03 node-1 kernel: …   (syslog)
    # 2026-11-21T01:02:03+0000 node-1 python[4711]: …   (journal)
    r"|(?:(?P<syslog>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)"
    r"|(?P<journal>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.,:Z+-]{0,16})) "
    r"(?P<machine>(?!\d\d[OE] |[\w.-]{1,80}-\d{9,20} )[\w.-]{1,255}) "
    r"(?:kernel|[\w./-]{1,80}\[(?P<unit_pid>\d{1,10})\]):\s"
    # 2026-11-21T01:02:03.123456789Z stdout F …
    r"|(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d))"
    r" (?:std(?:out|err) [FP] )?"
    # [pod/trainer-3/pytorch] …  (kubectl logs --prefix)       trainer-3  | …  (docker compose)
    r"|\[pod/(?P<pod>[\w.-]{1,253})/[\w.-]{1,253}\]\s"
    r"|(?!(?i:epoch|step|iter|iteration|batch|global|train|val|eval|loss|ep|lr)[_-])"
    r"(?P<service>[A-Za-z][\w.-]{0,200}?[_-]\d{1,5}) {1,20}\|\s"
    r")"
)
TASK = re.compile(r"\s{0,4}(\d{1,5}): ")
"""srun -l; only believed where most lines of the file look like this."""
RANK = re.compile(r"\[rank(?:: )?(\d{1,7})\]:? ?")
"""``[rank3]:`` of torch, ``[rank: 3]`` of Lightning."""
PDSH = re.compile(
    r"(?=[A-Za-z._-]{0,253}\d)(?P<host>[A-Za-z][\w.-]{0,253}): "
    r"(?=\[(?:20\d\d-|rank\d|default\d|[IWEF]\d{3,4} )"
    r"|Traceback \(most|[\w.-]{1,253}:\d{1,10}:\d{1,10} \[)"
)
"""``node-1: `` of pdsh (DeepSpeed) before something that begins a line."""
CPP = ("[I", "[W", "[E", "[F")
SGLANG = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})? TP(?P<tensor>\d{1,5})(?: EP\d{1,5})?\]"
)
"""``[2026-11-21 01:02:03 TP3]`` of SGLang, whose ranks they are where nothing else is parallel."""


def parse_prefix(
    raw: str,
    path: str = "",
    number: int = 0,
    *,
    tasks: bool = False,
    changed: datetime | None = None,
) -> Line:
    """Take a raw line apart; no grammar sees the secrets in it.

    `tasks`: ``3: `` at the line's start is a Slurm task; `changed` is the file's last change, which
    gives the year that time stamps of c10 and syslog leave out.
    """
    text = secrets.text(ANSI.sub("", raw) if "\x1b" in raw or "m" in raw[:8] else raw)
    line = Line(text, path=path, number=number)
    while match := LAUNCHER.match(text):
        _take_prefix(line, match, changed)
        text = text[match.end() :]
        # mpirun tags each piece that a program writes, and Python writes an error in four
        if match["mpi"]:
            text = text.replace(match[0].strip(), "")
    if tasks and (task := TASK.match(text)):
        line.rank, line.local, line.speaker = int(task[1]), True, line.speaker + task[0].strip()
        text = text[task.end() :]
    line.text = line.body = text
    if "[rank" in text and (own := RANK.search(text)):
        line.rank = int(own[1])
        line.local = False
        # C++ puts it before the first line of a message only
        if text[own.end() : own.end() + 2] not in CPP:
            line.speaker += own[0].strip()
        if not text[: own.start()].strip():
            line.body = text[own.end() :]
        else:
            line.body = text
    elif "[TC][rank=" in text and (line.rank is None or line.local):
        named = rank_in_world(text)
        if named is not None:
            line.rank, line.local = named, False
    elif line.rank is None and (server := SGLANG.match(text)):
        line.rank, line.local = int(server["tensor"]), True
    place = PDSH.match(text)
    if place:
        line.host = line.host or place["host"].partition(".")[0]
    if line.time is None:
        line.time = moment(text[place.end() :] if place else text, changed)
    stamp = STAMP.match(line.body)
    if stamp:
        line.body = line.body[stamp.end() :]
    return line


def _take_prefix(line: Line, match: re.Match[str], changed: datetime | None) -> None:
    """Keep what a prefix says about rank, host, process and time."""
    said = match.groupdict()
    world = said["world"] or said["mpi"]
    # of one engine without pipeline the place among tensors is the rank
    label = world or said["role"] or said["actor"] or said["tensor"]
    if label is not None:
        line.rank = int(label)
        line.local = world is None
    pid = said["pid"] or said["node_pid"] or said["unit_pid"] or said["tensor_pid"]
    if pid:
        line.pid = int(pid)
    places = (said[name] for name in ("at", "node", "algo", "machine", "pod", "service"))
    host = next(filter(None, places), None)
    line.host = said["ip"] or said["raylet"] or (host.partition(".")[0] if host else line.host)
    stamp = said["iso"] or said["journal"]
    if stamp:
        line.time = iso(stamp)
    elif said["syslog"]:
        line.time = syslog(said["syslog"], changed)
    if said["mpi"] or said["machine"]:  # a clock in the prefix ticks, the speaker stays
        line.speaker += f"{host}:{pid}:{label}"
    elif not stamp:
        line.speaker += match[0].strip()
