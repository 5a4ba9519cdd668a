"""The wire: one record, one line of JSON on standard output.

Every line starts with ``{"ncclkit":`` and is written with one `os.write`, so
it can share a pipe with other programs.  Standard library only, Python >= 3.9.
"""

import contextlib
import json
import os
import sys
import time

from . import redact

MARK = b'{"ncclkit":'
VERSION = 1
LIMIT = 4000
"""Longest line in bytes that a pipe takes in one piece (PIPE_BUF is 4096); longer ones may tear on
a shared pipe."""

_out = 1


def use(fd):
    """Send records to this file descriptor from now on.

    The crash handler keeps a copy of the original stdout.
    """
    global _out
    _out = fd


def output():
    """The file descriptor that records go to."""
    return _out


def send(kind, **fields):
    """Write one record, without secrets.

    Returns False when nobody reads any more (closed pipe, full disk).
    """
    record = {"ncclkit": VERSION, "kind": kind, "t": round(time.time(), 6)}
    record.update(redact.clean(fields))
    line = (json.dumps(record, ensure_ascii=True, default=str) + "\n").encode()
    try:
        while line:
            line = line[os.write(_out, line) :]
    except OSError as error:
        # often the same broken pipe, and whoever sends has others to look after
        with contextlib.suppress(OSError):
            sys.stderr.write("ncclkit: a record of kind %s was not delivered: %s\n" % (kind, error))
        return False
    return True


def parse_record(line):
    """The record in one line of bytes, or None when the line is something else."""
    if not line.startswith(MARK):
        return None
    try:
        record = json.loads(line.decode("utf-8", "replace"))
    except ValueError:
        return None
    if isinstance(record, dict) and record.get("ncclkit") == VERSION:
        return record
    return None
