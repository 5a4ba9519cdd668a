"""The evidence that a verb is given: files, folders, Slurm jobs or standard input."""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, BinaryIO

from ncclkit.cli.terminal import Activity, show

if TYPE_CHECKING:
    from ncclkit.evidence import Reading

HOW_TO_PASTE = (
    "ncclkit: paste the log now; then press Ctrl-D on a line of its own, which ends the input."
)


def read_evidence(paths: Sequence[str], who_reads: str | None = None) -> Reading:
    """What files, folders or standard input hold.

    `who_reads` are workers of Dask in place of this host.
    """
    from ncclkit import evidence
    from ncclkit.live import workers

    stdin = None
    if "-" in paths:
        stdin = _standard_input()
    say = functools.partial(show, file=sys.stderr)
    readers = workers.started(who_reads, say) if who_reads else nullcontext()
    with readers as executor, Activity("Reading", is_long=False) as activity:
        starts_processes = executor is None
        return evidence.read(
            paths,
            stdin=stdin,
            executor=executor,
            starts_processes=starts_processes,
            on_bytes=activity.amount,
        )


def _standard_input() -> BinaryIO:
    """What comes through a pipe.

    Of a terminal it is what a person pastes until Ctrl-D.
    """
    if not sys.stdin.isatty():
        return sys.stdin.buffer
    show(HOW_TO_PASTE, sys.stderr)
    # a terminal has no end: whoever read on after Ctrl-D would wait for the next line
    return io.BytesIO(sys.stdin.buffer.read())
