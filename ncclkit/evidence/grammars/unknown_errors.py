"""Lines that say that they are errors, and that no other grammar knows.

They are counted and shown, never dropped in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclkit.core.model import Event
from ncclkit.evidence.grammars.grammar import Line

KIND = "log.error"
GATE = (b"ERROR", b"FATAL", b"CRITICAL", b"rror:")
# 2026-11-21 00:28:00,123 ERROR trainer: shard 17 is unreadable      [ERROR] cannot open x
# fatal error: no disk
LEVEL = re.compile(
    r"(?<![\w.])(?:ERROR|FATAL|CRITICAL)(?![\w(])|(?<![\w.])(?:[Ff]atal )?[Ee]rror: (?!Aborted$)\S"
)
"""Not ``Fatal Python error: Aborted``: faulthandler's echo of an abort that its maker has explained
above."""

RECORDER = "Failed to update state for entry"
"""What the Flight Recorder says that is asked for its dump after the error: no error of its own."""


def read_unknown_error(line: Line) -> Iterator[Event]:
    """An event for a line that calls itself an error.

    Code that a traceback quotes is indented, and no line of its own.
    """
    if not line.body[:1].isspace() and LEVEL.search(line.body) and RECORDER not in line.body:
        yield line.event(KIND, {"message": line.body.strip()})
