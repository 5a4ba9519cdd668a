"""The standard streams of the command: closed, full, or a pipe whose reader has gone.

Exit status 1 says that a cause was found, and so does Python's own after an output that could not
be written.  Here such an output is noted, and the command ends with 2 and a sentence.
"""

from __future__ import annotations

import io
import os
import sys
from types import TracebackType
from typing import Any, TextIO

from ncclkit.core.model import NcclkitError

IN, OUT, ERR = 0, 1, 2
"""Numbers of the standard streams."""


class UnwrittenError(NcclkitError):
    """Standard output cannot be written."""


class _Descriptor(io.RawIOBase):
    """A standard stream as bytes; after the first that cannot be written all are dropped."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.problem = ""

    def fileno(self) -> int:
        return self.number

    def isatty(self) -> bool:
        return os.isatty(self.number)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write all of it to the stream; raises UnwrittenError once, where an answer is lost."""
        rest = memoryview(data)
        try:
            while rest and not self.problem:
                rest = rest[os.write(self.number, rest) :]
        except OSError as error:
            self.problem = error.strerror or str(error)
            # who reads the answer has seen enough (head, less); where notes are lost the answer
            # counts
            if not isinstance(error, BrokenPipeError) and self.number != ERR:
                raise UnwrittenError(self.problem) from error
        return len(data)


class StandardStreams:
    """Ours in place of Python's, while the command runs.

    Those that somebody has replaced stay.
    """

    def __enter__(self) -> StandardStreams:
        """Take the streams.

        Those that are closed become the null device, in our children too.
        """
        self.was_closed = sys.stdout is None
        self.lost = ""
        self._earlier = sys.stdin, sys.stdout, sys.stderr
        _occupy_closed()
        if sys.stdin is None:
            sys.stdin = open(os.devnull)  # noqa: SIM115  # as long as the process
        if sys.stdout is sys.__stdout__:
            sys.stdout = _stream(OUT, sys.stdout)
        if sys.stderr is sys.__stderr__:
            sys.stderr = _stream(ERR, sys.stderr)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give Python's own streams back."""
        sys.stdin, sys.stdout, sys.stderr = self._earlier

    def exit_status(self, status: int) -> int:
        """The status of a verb that has ended, or 2 where its answer could not be written."""
        try:
            sys.stdout.flush()
        except UnwrittenError as error:
            self.lost = str(error)
        if self.lost:
            lost = (
                f"ncclkit: standard output could not be written ({self.lost}); the answer is lost."
            )
            print(lost, file=sys.stderr)
        sys.stderr.flush()
        if self.lost:
            return 2
        return status


def _occupy_closed() -> None:
    """Open the null device in place of closed streams.

    So no file of ours takes their numbers.
    """
    for number in (IN, OUT, ERR):
        try:
            os.fstat(number)
        except OSError:
            # takes the lowest free number, and is closed for children
            os.open(os.devnull, os.O_RDWR)


def _stream(number: int, python: TextIO | None) -> TextIO:
    """The stream of this number, which writes as Python's own does."""
    descriptor = _Descriptor(number)
    how: dict[str, Any] = {
        "encoding": "utf-8",
        "errors": "backslashreplace",
        "line_buffering": number == ERR,
    }
    if isinstance(python, io.TextIOWrapper):
        how = {
            name: getattr(python, name)
            for name in ("encoding", "errors", "line_buffering", "write_through")
        }
    if how.get("write_through"):  # python -u, PYTHONUNBUFFERED
        return io.TextIOWrapper(descriptor, **how)  # type: ignore[type-var]
    return io.TextIOWrapper(io.BufferedWriter(descriptor), **how)
