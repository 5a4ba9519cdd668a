"""The sentence of a line: what a program said, without what others wrote around it.

In: a line without colours and launcher prefix (see `scanner.prefix`).  Out: the same line without
heads of log libraries and services, quoting marks, and the fields of a record.  A line that has
none of these comes back as it is.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

MOST = 6
"""Frames around one sentence: a service's around a viewer's around a log library's."""

_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d| UTC)?"
_DAY = (
    r"(?:\d{4}[-/]\d\d[-/]\d\d|\d\d/\d\d(?:/\d{2,4})?|\d\d-\d\d|[A-Z][a-z]{2} [ \d]\d"
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d)"
)
_TIME = rf"(?:{_DAY}(?:T|,? ))?{_CLOCK}(?: \d{{4}})?"
_LEVEL = (
    r"(?:TRACE|DEBUG|INFO|NOTICE|SUCCESS|WARN(?:ING)?|ERROR|CRITICAL|FATAL"
    r"|debug|info|warning|error|critical)"
)
_NAME = r"[A-Za-z_][\w.-]{0,80}"
_PLACE = r"[\w./-]{1,120}:(?:\w{1,80}:)?\d{1,6}(?::\w{1,80})?"

# 2026-11-21 01:02:03,123 - trainer - ERROR - …       11/21/2026 01:02:03 - ERROR - __main__ - …
# 2026-11-21 01:02:03.123 | ERROR    | trainer:main:88 - …     … | ERROR | fairseq.trainer | …
# [2026-11-21 01:02:03,123][trainer][ERROR] - …       [… 01:02:03,123] [ERROR] [engine.py:88:f] …
# 2026-11-21 01:02:03 [error    ] …     [2026-11-21, 01:02:03 UTC] {subprocess.py:93} INFO - …
# [01:02:03] ERROR    …     [2026-11-21 01:02:03 TP3] …     Nov 21 01:02:03 …
TIMED = re.compile(
    rf"\[?{_TIME}(?: [A-Z]{{2}}\d{{1,4}})*\]?"
    rf"(?: - {_NAME} - {_LEVEL} - | - {_LEVEL} - {_NAME} - "
    rf"| \| {_LEVEL} {{0,9}}\| (?:{_PLACE} - |{_NAME} \| )"
    rf"|\[{_NAME}\]\[{_LEVEL}\] - | \[{_LEVEL} {{0,9}}\] (?:\[{_PLACE}\] )?"
    rf"| \{{{_PLACE}\}} {_LEVEL} - | {_LEVEL} {{1,9}}(?:{_PLACE}\] |\[{_PLACE}\] )?"
    r"|: | )(?=\S)"
)
# ERROR 11-21 01:02:03 [core.py:396] …     ERROR 11-21 01:02:03 worker.py:226] …
# [ERROR|trainer.py:88] 2026-11-21 01:02:03,123 >> …      ERROR:root:…
# ERROR\t2026-11-21 01:02:03 +0000\tworkerpool0-3\t\t…
LEVELLED = re.compile(
    rf"(?:{_LEVEL} {_TIME} (?:{_PLACE}\] |\[{_PLACE}\] )|\[{_LEVEL}\|{_PLACE}\] {_TIME} >> "
    rf"|{_LEVEL}:{_NAME}:|{_LEVEL}\t{_TIME}\t[\w.-]{{1,80}}\t{{1,3}})(?=\S)"
)
# E1121 01:02:03.123456 140213 trainer.py:88] …      [E1121 01:02:03.12 trainer.cpp:88] …
GLOG = re.compile(
    r"\[?[IWEF](?:\d{3,4} \d\d:\d\d:\d\d(?:\.\d{1,9})?)?(?: {1,9}\d{1,10})?"
    r" [\w./-]{1,160}\.\w{1,4}:\d{1,6}\] (?:\[c10d\] )?(?=\S)"
)
# <14>1 2026-11-21T01:02:03.123Z node-9 trainer 4711 - - …
SYSLOG = re.compile(rf"<\d{{1,3}}>\d {_TIME} \S{{1,255}} \S{{1,80}} \S{{1,80}} \S{{1,80}} - (?=\S)")
# train_worker.3.k2x9@node-9    | …       trainer-7d9f-worker-3 pytorch …  (stern)
# 00O …  (GitLab)     algo-3-1700000012 …     1795222923123\t…  (CloudWatch)
#          [rank3]: …        [rank: 3] …      node-9: …     srun: …
SERVICE = re.compile(
    r"(?:[\w.-]{1,200}\.\d{1,5}\.\w{1,40}@[\w.-]{1,255} {1,20}\| "
    r"|[a-z][a-z0-9]{0,60}-(?:[a-z0-9]{1,60}-){1,6}\d{1,5} [a-z][a-z0-9-]{2,60} "
    r"|\d{13}\t|\d\d[OE] |[\w.-]{1,80}-\d{9,20} |\[rank(?:: )?\d{1,7}\]:? ?"
    r"|(?=[A-Za-z._-]{0,253}\d)[A-Za-z][\w.-]{0,253}\d: "
    r"|srun: )(?=\S)"
)
# > …     E   …     12:…  (grep -n)     logs/rank3.log:12:…     12\t…  (cat -n)
VIEWER = re.compile(
    r"(?:(?:> ?)+|E {3}|\d{1,7}:(?!\d\d:| )|[\w./-]{1,200}\.(?:log|out|err|txt|stdout|stderr)"
    r":\d{1,7}:|\d{1,7}\t|::error::|##\[error\])(?=\S)"
)
# Train:  20%|##   | 375/1881 [3:40:16<16:05:32, 35.55s/it]…
BAR = re.compile(r"[^|\n]{0,80}\d{1,3}%\|[^|\n]{0,300}\| \S{1,40} \[[^\]\n]{3,80}\](?=\S)")
HEAD = re.compile(
    "|".join(head.pattern for head in (TIMED, LEVELLED, GLOG, SYSLOG, SERVICE, VIEWER, BAR))
)
"""Any of them, in one search: of a flood every line is asked."""
ENVELOPE = re.compile(r"[^\s:\[\]()<>]{1,255}:\d{1,10}:\d{1,20} \[")
"""How NCCL's own lines begin, which no frame stands before."""
FIRST = re.compile(r"[\s\[<>{\dIWEF]|[A-Z][a-z]{2} |[A-Za-z._/#-]{0,200}[\d:%\[]|[A-Z]{4,8}[ \t:]")
"""How lines begin that may have a head."""

# …  [repeated 7x across cluster] of Ray, with the sentence about Ray's deduplication behind it
REPEATED = re.compile(r"\s{0,80}\[repeated \d{1,9}x across cluster\].*$")
# …          trainer.py:88   of rich: its column of places, at the right
COLUMN = re.compile(r" {4}[\w.-]{1,80}\.py:\d{1,6}\s{0,80}$")
RICH = re.compile(rf"\[(?:\d\d/\d\d/\d\d )?\d\d:\d\d:\d\d\] {_LEVEL} ")
LOST = "[0m"
"""The end of a colour whose escape character was lost."""

# time="2026-11-21T01:02:03Z" level=error msg="…"
LOGFMT = re.compile(
    r"(?:[\w.]{1,40}=(?:\"[^\"\n]{0,80}\"|[^\s\"]{1,80}) ){1,12}(?:msg|message)="
    r"(?P<said>\"(?:[^\"\\]|\\.){1,4000}\")"
)
# stderr: b'…\n'
BYTES = re.compile(r"[\w. ]{0,40}[:=] ?(?P<said>b(?P<mark>['\"]).{1,4000}(?P=mark))\s*$")
# node-1:12:13 [0] INFO NET/Plugin : …   (NCCL 2.0 to 2.3, which did not name itself)
OLD_INFO = re.compile(r"((?<!\S)[^\s:\[\]()<>]{1,255}:\d{1,10}:\d{1,20} \[\d{1,4}\] )INFO ")
KEYS = ("message", "msg", "log", "line", "text", "textPayload", "content", "body", "data")
"""Keys under which records hold the line itself."""
INNER = ("jsonPayload", "fields", "record")
"""Keys under which records hold another record that holds it."""


def sentence_of(text: str) -> str:
    """The sentence of a line; the line itself where nothing stands around it."""
    if "[repeated " in text:
        text = REPEATED.sub("", text)
    if text.endswith(LOST):
        text = text[: -len(LOST)]
    if "] INFO " in text:
        text = OLD_INFO.sub(r"\1NCCL INFO ", text, count=1)
    for _ in range(MOST):
        shorter = _without_head(_without_record(text))
        if shorter == text:
            return text
        text = shorter
    return text


def _without_head(text: str) -> str:
    if ENVELOPE.match(text) or not FIRST.match(text):
        return text
    bare = text.lstrip()
    if RICH.match(bare):
        bare = COLUMN.sub("", bare).rstrip()
    match = HEAD.match(bare)
    if match:
        return bare[match.end() :]
    return bare


def _without_record(text: str) -> str:
    """What a record of JSON, of logfmt or a printed text of bytes holds, where that is a line."""
    said = None
    if text.startswith("{"):
        said = _message_of_json(text)
    elif 'msg="' in text or 'message="' in text:
        said = _message_of_logfmt(text)
    elif "b'" in text[:48] or 'b"' in text[:48]:
        said = _message_of_bytes(text)
    if said is None or "\n" in said:
        return text
    return said


def _message_of_json(text: str) -> str | None:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    for key in INNER:
        inner = row.get(key)
        if isinstance(inner, dict):
            return _message_of_row(inner)
    return _message_of_row(row)


def _message_of_row(row: Mapping[str, Any]) -> str | None:
    for key in KEYS:
        said = row.get(key)
        if isinstance(said, str) and said.strip():
            return said.rstrip("\r\n")
    return None


def _message_of_logfmt(text: str) -> str | None:
    match = LOGFMT.match(text)
    if match is None:
        return None
    try:
        said = json.loads(match["said"])
    except ValueError:
        return None
    return str(said).rstrip("\r\n")


def _message_of_bytes(text: str) -> str | None:
    match = BYTES.match(text)
    if match is None:
        return None
    try:
        said = ast.literal_eval(match["said"])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(said, bytes):
        return None
    return said.decode("utf-8", "replace").rstrip("\r\n")
