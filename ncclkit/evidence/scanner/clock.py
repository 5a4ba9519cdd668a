"""Time stamps of logs, whoever wrote them: seconds since the epoch."""

from __future__ import annotations

import re
from datetime import datetime, timezone

STAMP = re.compile(r"\[?(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\]?,? ?")
GLOG = re.compile(r"(?:\[|^)[IWEF](\d{3,4}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
# [Sat Nov 21 01:02:03 2026] NVRM: …   of dmesg -T
DMESG = re.compile(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d) (\d{4})\] ?")
# 11/21/2026 01:02:03 - INFO - __main__ - …   of accelerate and transformers
SLASHED = re.compile(r"(\d\d)/(\d\d)/(\d{4}) (\d\d):(\d\d):(\d\d)\b")
MONTHS = {name: number for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}


def moment(text: str, year: datetime | None = None) -> float | None:
    """The first time stamp of a line; local time, as NCCL and torch print it; `year`: the file's last change."""
    if match := STAMP.match(text) or (STAMP.search(text) if "NCCL WARN" in text else None):
        return _seconds([int(part) for part in match.groups()[:6]], match[7])
    if match := DMESG.match(text):
        day = [int(match[6]), MONTHS.get(match[1], 0), int(match[2])]
        return _seconds([*day, *(int(part) for part in match.groups()[2:5])], None)
    if match := SLASHED.match(text):
        month, of_month, calendar, *hours = (int(part) for part in match.groups())
        return _seconds([calendar, month, of_month, *hours], None)
    if year is not None and (match := GLOG.search(text)):
        month, of_month = divmod(int(match[1]), 100)
        return _within(year, [month, of_month, *(int(part) for part in match.groups()[1:4])], match[5])
    return None


def syslog(text: str, year: datetime | None) -> float | None:
    """``Nov 21 01:02:03``, whose year is that of the file, or the one before."""
    month, day, hours = text[:3], text[4:6], text[7:]
    if year is None or month not in MONTHS:
        return None
    return _within(year, [MONTHS[month], int(day), *(int(part) for part in hours.split(":"))], None)


def iso(text: str) -> float | None:
    """``2026-11-21T01:02:03.25Z``, ``…+01:00``; without a zone it is taken for UTC."""
    fraction = re.search(r"[.,](\d{1,9})", text)
    zone = re.search(r"([+-])(\d\d):?(\d\d)$", text)
    try:
        base = datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
    shift = (int(zone[2]) * 3600 + int(zone[3]) * 60) * (-1 if zone[1] == "-" else 1) if zone else 0
    return base - shift + (float("0." + fraction[1]) if fraction else 0.0)


def _within(year: datetime, parts: list[int], fraction: str | None) -> float | None:
    """A moment without its year, not later than a day after `year`."""
    seconds = _seconds([year.year, *parts], fraction)
    if seconds is not None and seconds > year.timestamp() + 86400:
        seconds = _seconds([year.year - 1, *parts], fraction)
    return seconds


def _seconds(parts: list[int], fraction: str | None) -> float | None:
    try:
        whole = datetime(parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return whole + (float("0." + fraction) if fraction else 0.0)
