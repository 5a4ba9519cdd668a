"""Pickles of strangers: plain values come out, and nothing in them runs.

Flight Recorder dumps are pickles of dicts, lists, tuples, strings and numbers.  The standard library's unpickler reads
them with its doors to code locked.  What a pickle can still do is to take memory and time, or to break the unpickler:
a key of nested tuples whose hash takes 2 ** 60 steps, keys of one hash, an index of 4 G.  So it is called in a process
with limits (`processes.limited`).  A reader of our own, and a check that let only plain opcodes pass to the fast one,
took 400 lines for the same.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

from ncclkit.evidence.processes import Refused

DAMAGE = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    LookupError,
    struct.error,
    TypeError,
    OverflowError,
    ValueError,
)
"""What the unpickler raises on a damaged pickle."""


def loads(data: bytes) -> Any:
    """The plain value in a pickle; raises Refused, never runs anything."""
    try:
        # a buffer lets it read ahead
        return _Locked(io.BufferedReader(io.BytesIO(data), 1 << 18), encoding="utf-8", errors="replace").load()
    except Refused:
        raise
    except DAMAGE as error:
        raise Refused(f"is damaged ({type(error).__name__})") from error


class _Locked(pickle.Unpickler):
    """Python's unpickler without a way to code: each goes through a class or function, or an object outside."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise Refused("names code, which plain values do not need; nothing in it was executed")

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("refers to an object outside the file; nothing in it was executed")
