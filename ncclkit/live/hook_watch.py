"""Whether the file that measures steps is loaded by the script's Python.

It is watched while the script runs.  The file (`ncclkit.agent.monitor.step_hook`) leaves a mark
beside itself in each process that loads it, and another one where torch is imported.  A process
that has torch and no mark makes no step that could be measured: ``python -I`` and ``-E`` ignore
PYTHONPATH, and wrappers reset it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ncclkit.agent import redact
from ncclkit.agent.digits import whole_numbers
from ncclkit.agent.monitor import step_hook
from ncclkit.agent.run import processes
from ncclkit.live.launch.local import TAG

PATIENCE = 10.0
"""Seconds from a process's start without the file until the run's end.

A short check of torch is over by then.
"""
LOOK = 1.0
"""Seconds between two looks."""
TORCH = "/libtorch_python."
"""What a process has mapped once it has imported torch."""
SHOWN = 200
"""Characters of a command that a sentence repeats."""
IGNORING = re.compile(r"-[bBdiOPqsuvx]*[IES][A-Za-z]*")
"""Options of Python that keep the file out."""
OPTION_WITH_VALUE = ("-W", "-X")


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """A process of the script that has imported torch without the file."""

    pid: int
    command: tuple[str, ...]
    age: float
    """Seconds since it was started."""
    why: str

    def __str__(self) -> str:
        """The process, and what keeps the file out."""
        words = redact.text(shlex.join(self.command))
        if len(words) <= SHOWN:
            short = words
        else:
            short = f"{words[:SHOWN]}…"
        return f"process {self.pid} ({short}) imported torch without ncclkit's file: {self.why}"


class HookWatch:
    """Looks for processes of a run that will make no step."""

    def __init__(self, hook_folder: Path, run_folder: Path) -> None:
        """Watch a run.

        `hook_folder` is where the file lies, and leaves its marks.
        """
        self.hook_folder = hook_folder
        self.run_folder = run_folder
        self.found: Unmeasured | None = None
        self._measured: set[int] = set()

    async def ended_by(self) -> Unmeasured:
        """Wait for a process older than `PATIENCE` that has torch without the file.

        Who calls has a deadline.
        """
        while True:
            # what was seen once stays the reason, also after its process has ended
            self.found = await asyncio.to_thread(self._find_unmeasured) or self.found
            # numbers of processes are given anew, so the command must still be the same
            if self.found is not None and self.found.age > PATIENCE and _is_there(self.found):
                return self.found
            await asyncio.sleep(LOOK)

    def why_no_step(self) -> str:
        """Why a script that has ended made no step, as far as its processes told."""
        if self.found:
            return str(self.found)
        if self._marked(step_hook.WITH_TORCH):
            return ""
        return (
            "no Python with ncclkit's file imported torch: the script does not, or it was started"
            " by python -I, -E or -S, or a wrapper reset its PYTHONPATH"
        )

    def _marked(self, kind: str) -> set[int]:
        """Processes with this mark, by their numbers in their own namespace."""
        try:
            names = os.listdir(self.hook_folder)
        except OSError:
            return set()
        return set(
            whole_numbers(name.removeprefix(kind) for name in names if name.startswith(kind))
        )

    def _find_unmeasured(self) -> Unmeasured | None:
        """A process of the run that has torch without the file.

        It is None where there is none.
        """
        parents = processes.parents()
        unknown = self._processes(parents) - self._measured
        # a process loads the file before it can have torch, so the marks are read last
        having = [pid for pid in sorted(unknown) if _has_torch(pid)]
        loaded = self._marked(step_hook.LOADED)
        armed = self._marked(step_hook.WITH_TORCH)
        for pid in having:
            if not self._is_measured(pid, parents, loaded, armed):
                return _described(pid, self.hook_folder)
            self._measured.add(pid)
        return None

    def _processes(self, parents: Mapping[int, int]) -> set[int]:
        """All processes of the run: its guard, and what that has started."""
        ours = [pid for pid, parent in parents.items() if parent == os.getpid()]
        # other runs of ours may go on beside this one
        below = {pid for pid in ours if processes.environ(pid).get(TAG) == str(self.run_folder)}
        while True:
            more = {pid for pid, parent in parents.items() if parent in below} - below
            if not more:
                return below
            below |= more

    def _is_measured(
        self, pid: int, parents: Mapping[int, int], loaded: set[int], armed: set[int]
    ) -> bool:
        """Whether the file is in this process.

        It may also be in one of the same rank that has forked or started it.
        """
        if _numbers_of(pid) & loaded:
            return True
        rank = processes.environ(pid).get("RANK")
        command = _command_of(pid)
        above = parents.get(pid, 0)
        # a worker of a data loader is forked and loads nothing itself
        while above and above != os.getpid():
            numbers = _numbers_of(above)
            same_rank = processes.environ(above).get("RANK") == rank
            if same_rank and (
                numbers & armed or (numbers & loaded and _command_of(above) == command)
            ):
                return True
            above = parents.get(above, 0)
        return False


def _has_torch(pid: int) -> bool:
    return TORCH in processes.read_text(f"/proc/{pid}/maps", 16 << 20)


def _numbers_of(pid: int) -> set[int]:
    """The numbers of a process in its namespaces.

    In a container it knows only the innermost one.
    """
    line = re.search(r"^NSpid:\s+(.+)$", processes.read_text(f"/proc/{pid}/status"), re.MULTILINE)
    return {pid, *whole_numbers(line[1].split() if line else ())}


def _command_of(pid: int) -> tuple[str, ...]:
    return tuple(processes.read_text(f"/proc/{pid}/cmdline").split("\0")[:-1])


def _described(pid: int, hook_folder: Path) -> Unmeasured | None:
    """What there is to say of a process; None where it has ended meanwhile."""
    command = _command_of(pid)
    environ = processes.environ(pid)
    if not command:
        return None
    return Unmeasured(pid, command, _age(pid), _why(command, environ, hook_folder))


def _why(command: tuple[str, ...], environ: Mapping[str, str], hook_folder: Path) -> str:
    """What keeps the file out of a Python with this command and environment."""
    ignoring = _ignoring_option(command)
    if ignoring:
        return f"its option {ignoring} ignores PYTHONPATH; start it without"
    if str(hook_folder) not in environ.get("PYTHONPATH", "").split(os.pathsep):
        return "its PYTHONPATH was reset; let the wrapper keep what is set"
    if step_hook.OPTIONS not in environ:
        return f"its environment was reset; let the wrapper keep {step_hook.OPTIONS}"
    return "another sitecustomize.py came first, or the folder is not there in its container"


def _ignoring_option(command: tuple[str, ...]) -> str:
    """The option of Python before the script by which PYTHONPATH is ignored.

    It is "" without one.
    """
    before = ""
    for word in command[1:]:
        if not word.startswith("-") and before not in OPTION_WITH_VALUE:
            break
        if word in ("-c", "-m", "--"):
            break
        if before not in OPTION_WITH_VALUE and IGNORING.fullmatch(word):
            return word
        before = word
    return ""


def _age(pid: int) -> float:
    """Seconds since a process was started; 0 where it has ended."""
    # the name of a program may hold blanks and brackets, so fields count from the last one
    fields = processes.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 20:
        return 0.0
    # the kernel counts from the boot, with the time that the host slept
    began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


def _is_there(found: Unmeasured) -> bool:
    return _command_of(found.pid) == found.command
