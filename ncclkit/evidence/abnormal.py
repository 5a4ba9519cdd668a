"""Lines with words of failure that no grammar knows.

A verdict by resemblance reads them besides known events.  They are no events, as rules and pictures
would have to step over them; they stand in the row of their file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ncclkit.core.kinds import PythonException, PythonIgnored
from ncclkit.core.model import Event
from ncclkit.evidence.scanner.prefix import parse_prefix
from ncclkit.evidence.sources.streams import Ends

FIRST, LAST = 64 << 10, 64 << 10
"""Bytes at the beginning and the end of a file that are read.

A failure stands where a log ends.
"""
MOST = 60
"""Lines of a file that are kept: the last ones."""
LONG = 1000
SHORT, FEW = 16 << 10, 4
"""Bytes of a log that is kept whole, and up to how many logs it is: what somebody pastes."""
WORDS = (
    """
error|fail|fatal|exception|warn|cannot|can't|could not|couldn't|unable|not found|no such|denied
refused|timeout|timed out|time out|abort|kill|signal|fault|dumped|mismatch|invalid|unexpected
unsupported|not support|closed|broken|reset by|unreachable|hang|hung|stuck|stall|deadlock|missing
exceed|insufficient|out of|too many|too old|too small|too large|too long|not permitted|expired
no space|panic|traceback|xid|corrupt|inconsisten|differ|duplicate|already in use|not available
not ready|is down|throttl|degraded|nan|wrong|incompatible|undefined|never|evict|preempt|lost
no route|quota|exhausted|not initialized|must be|expected|limit|terminated|exited|retry
retries|fehler|kein |nicht |abgelehnt|abgebrochen|erreur|échec|aucun
段错误|已杀死|错误|失败|超时|拒绝|没有空间|无法|不匹配|内存不足
impossible|refusée|délai|not match|oom
""".strip()
    .replace("\n", "|")
    .encode()
    .split(b"|")
)
"""In small letters; of a line that holds none of them nobody would say that it is about trouble."""
HARMLESS = re.compile(
    r"OMP_NUM_THREADS environment"
    r" variable|(?:Future|Deprecation|PendingDeprecation|Resource)Warning|is deprecated"
    r"|^Timeout \(\d|CANNOT Access Peer|Search for `cuda|might be asynchronously reported|For"
    r" debugging consider"
    r"|destroy_process_group\(\) was not called|No plugin found|Could not find:"
    r" lib|docs\.nvidia\.com|<N/A>"
    r"|hostname of the client socket cannot be retrieved|torch/distributed/debug/_frontend\.py:\d"
    r"|dlvsym failed|Topology detection|were not initialized from the model checkpoint"
    r"|0 (?:errors|failed|failures)\b|errors?[:=] ?0\b|^(?!.*(?:hang|hung|stuck|[dD]eadlock)).*\bno"
    r" errors?\b"
)
"""What healthy programs write."""
NUMBERS = re.compile(rb"0x[0-9a-f]+|\d+")


def lines(ends: Ends, path: str, count: int, events: Iterable[Event]) -> list[dict[str, Any]]:
    """Number, rank and text of abnormal lines that no event cites.

    They are those at both ends of a file, of `count` lines.  Of lines that differ in numbers alone
    the last one counts.
    """
    first, last = ends.head_and_tail()
    if not last and len(first) <= FIRST + LAST:
        found = dict(_lines_with_words(first, 1))
    else:
        tail = (last or first)[-LAST:]
        found = dict(_lines_with_words(tail, count - tail.count(b"\n") + tail.endswith(b"\n")))
    return _rows_of_events(found, path, events, MOST)


def other_lines(
    text: str, path: str, events: Iterable[Event], besides: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Number, rank, text and count of a short log's lines that are not abnormal.

    `besides` are those that are.
    """
    known = {row["line"] for row in besides}
    lines = text.encode().split(b"\n")
    numbered = enumerate(lines, 1)
    found = {
        number: raw
        for number, raw in numbered
        if raw.strip() and number not in known and len(raw) <= LONG
    }
    said = Counter(NUMBERS.sub(b"#", raw) for raw in lines)
    rows = _rows_of_events(found, path, events, len(found))
    return [{**row, "times": said[NUMBERS.sub(b"#", lines[row["line"] - 1])]} for row in rows]


def _rows_of_events(
    found: dict[int, bytes], path: str, events: Iterable[Event], most: int
) -> list[dict[str, Any]]:
    for event in events if found else ():
        is_python = isinstance(event.data, (PythonException, PythonIgnored))
        end = None
        if is_python:
            end = event.data.until
        for number in range(event.line, max(event.line, end or 0) + 1):
            found.pop(number, None)
    alike = {NUMBERS.sub(b"#", raw): (number, raw) for number, raw in found.items()}
    rows = []
    for number, raw in sorted(alike.values())[-most:] if most else ():
        line = parse_prefix(raw.decode("utf-8", "replace").replace("\0", ""), path, number)
        if not HARMLESS.search(line.body):
            rows.append({"line": number, "rank": line.rank, "text": line.text.strip()})
    return rows


def _lines_with_words(text: bytes, first: int) -> Iterator[tuple[int, bytes]]:
    """The lines that hold one of the words, with their numbers."""
    small = text.lower()
    starts = set()
    for word in WORDS:
        place = small.find(word)
        while place >= 0:
            starts.add(small.rfind(b"\n", 0, place) + 1)
            end = small.find(b"\n", place)
            place = -1
            if end >= 0:
                place = small.find(word, end)
    number, counted = first, 0
    for start in sorted(starts):
        number += text.count(b"\n", counted, start)
        counted = start
        end = text.find(b"\n", start)
        raw = text[start : end if end >= 0 else len(text)]
        if len(raw) <= LONG:
            yield number, raw.rstrip(b"\r")
