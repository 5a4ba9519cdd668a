"""Commands of others, bounded in time and output; what they started ends with them.

A driver that hangs, a tool that writes without end and a wrapper that ignores SIGTERM are why
people start us.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .run import processes

LARGEST = 4 << 20
"""Bytes of an answer, both outputs together: nvidia-smi -q -x writes 0.5 MB of 16 GPUs."""
GRACE = 0.4
"""Seconds in which a command may end after SIGTERM, and again after SIGKILL."""
LOOK = 0.1
"""Seconds between two looks whether a command ended while something else holds its outputs."""
DRAIN = 0.5
"""Seconds in which the outputs of a command that has ended are read."""
LATE, TOO_LONG = "late", "too long"
"""Why a command was ended."""
CANNOT_END = "cannot be ended, as it sits in the kernel"
"""What is said of a process that stays after SIGKILL."""


class Reply(NamedTuple):
    """What a command answered, or how far it came."""

    code: int | None
    """Its exit status, less than 0 where a signal ended it; None where it could not be ended."""
    out: bytes
    err: bytes
    ended: str
    """Why it was ended: `LATE`, `TOO_LONG`; empty where it ended by itself."""
    left: list[int]
    """Processes of it that could not be ended, as they sit in the kernel."""


def run_bounded(
    command: Sequence[str],
    seconds: float,
    env: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    first: int = signal.SIGTERM,
    grace: float = GRACE,
    tied: bool = True,
    most: int = LARGEST,
) -> Reply:
    """Run a command until it ends, or its time is over.

    It is also ended once it has written `most` bytes.  Raises OSError where it cannot be started.

    `first` is the signal by which it is asked to end, `grace` seconds before SIGKILL. `tied`: it
    dies with the thread that called this; not for a debugger, which must let go first. What it has
    started in its group is ended with it, also after an answer.
    """
    until = time.monotonic() + seconds
    process = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=env,
        preexec_fn=processes.die_with_parent if tied else None,
    )
    assert process.stdout is not None and process.stderr is not None
    ended = LATE
    left = [process.pid]
    try:
        with process.stdout, process.stderr:
            out, err, ended = _read_outputs(process, until, most)
        if not ended and not _has_ended(process.pid):
            ended = _wait_for_end(process, until)
    finally:  # also where somebody interrupts us
        left = end_group(process, first, grace)
    return Reply(process.returncode, out, err, ended, left)


def _read_outputs(
    process: subprocess.Popen[bytes], until: float, most: int
) -> tuple[bytes, bytes, str]:
    """(standard output, standard error, why reading was given up)."""
    parts: dict[Any, list[bytes]] = {process.stdout: [], process.stderr: []}
    size, ended, drained = 0, "", None
    with selectors.DefaultSelector() as waiting:
        for pipe in parts:
            waiting.register(pipe, selectors.EVENT_READ)
        while waiting.get_map():
            now = time.monotonic()
            if drained is None and _has_ended(process.pid):
                # what it wrote is there; somebody else may hold the pipe open for ever
                drained = now + DRAIN
            if drained is None and now >= until:
                ended = LATE
                break
            ready = waiting.select(max(0.0, min(LOOK, until - now)))
            if drained is not None and (not ready or now > drained):
                break
            for key, _ in ready:
                part = os.read(key.fd, 1 << 16)
                if part:
                    parts[key.fileobj].append(part)
                    size += len(part)
                else:
                    waiting.unregister(key.fileobj)
            if size > most:
                ended = TOO_LONG
                break
    return b"".join(parts[process.stdout]), b"".join(parts[process.stderr]), ended


def _has_ended(pid: int) -> bool:
    """Whether a child has ended; its number stays taken, so its group can be signalled safely."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True  # a guard, which is the parent of all that it started, has taken its status


def _wait_for_end(process: subprocess.Popen[bytes], until: float) -> str:
    """Wait for the end of a command that has closed its outputs.

    Returns `LATE` where the end does not come.
    """
    pause = 0.001
    while not _has_ended(process.pid):
        if time.monotonic() >= until:
            return LATE
        time.sleep(pause)
        pause = min(0.05, 2 * pause)
    return ""


def end_group(
    process: subprocess.Popen[bytes], first: int = signal.SIGTERM, grace: float = GRACE
) -> list[int]:
    """End a command that leads a group, with its group and its descendants.

    Returns who is still there.  It takes at most twice `grace`: what sits in the kernel is left
    behind rather than waited for.
    """
    known = _started_by(process)
    inside = set(processes.group(process.pid))
    # the group gets its signal at once, and nobody twice
    started = [pid for pid in known if pid not in inside]
    left: list[int] = []
    for number in (first, signal.SIGKILL):
        until = time.monotonic() + grace
        if number == signal.SIGKILL:
            # who was in the group may have left it meanwhile
            started = _with_frozen_children(known)
        _signal_group(process.pid, number)
        for pid in started:
            processes.signal_one(pid, number)
        while True:
            process.poll()
            left = _still_there(process, started)
            if not left:
                return []
            if time.monotonic() >= until:
                break
            time.sleep(0.01)
    return left


def _started_by(process: subprocess.Popen[bytes]) -> list[int]:
    """Descendants of a command; known only as long as it runs."""
    if process.returncode is not None or _has_ended(process.pid):
        return []
    return list(processes.descendants(process.pid))


def _with_frozen_children(known: list[int]) -> list[int]:
    """The same processes with all that they have started since, which start no other any more.

    A shell that ignores every request goes on starting programs until it is killed, and the last
    one would outlive it.
    """
    found: set[int] = set()
    new = set(known)
    while new:
        for pid in new:
            processes.signal_one(pid, signal.SIGSTOP)
        found |= new
        new = set()
        for pid, parent in processes.parents().items():
            if parent in found and pid not in found:
                new.add(pid)
    return sorted(found)


def _signal_group(leader: int, number: int) -> bool:
    """Send a signal to a process group; False where it has no process any more."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it belongs to another user
    return True


def _still_there(process: subprocess.Popen[bytes], started: list[int]) -> list[int]:
    """Living processes of a command: itself, its group, and those that have left the group."""
    living = {pid for pid in started if processes.is_alive(pid)}
    if process.returncode is None:
        living.add(process.pid)
    elif _signal_group(process.pid, 0):
        living.update(processes.group(process.pid))
    return sorted(living)
