"""Attach: look at a job that hangs right now on this host, by the very command `ncclkit attach`.

The looking happens in a child process with a deadline, so that neither a stuck
target nor Cancel can hang the kernel.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

import ipywidgets as W

from ncclkit import evidence
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.views._action import Action
from ncclkit.views._base import Drawn, View
from ncclkit.views._html import el, join
from ncclkit.views.stacks import stacks_view
from ncclkit.views.telemetry import strip_view

DEADLINE = 120.0
"""Seconds after which the looking itself is ended; its parts have shorter ones."""
TARGETS = "all, or process ids, or job and its Slurm id"
TARGET = re.compile(r"all|job \d{1,12}|(?:\d{1,7}=)?\d{1,10}(?:[ ,]+(?:\d{1,7}=)?\d{1,10})*")


def attach_form(case: Case, target: str = "") -> Attach:
    """The form that looks into running processes; ``await form.run()`` does what its Look button does.

    target: ``all`` (every process of this user with a RANK), process ids (one of a rank or a launcher stands for its
    job, ``3=4711`` is rank 3), ``job`` and a Slurm job's id (its ranks on this host), or nothing, and then nothing is
    done.  Raises NcclkitError for anything else.
    """
    return Attach(case, target)


class Attach(Action):
    """See `attach_form`."""

    IDLE = "Nothing is attached; name the processes of a job that hangs right now on this host"
    ASK = f"Say what to look at: {TARGETS}"
    BUSY = "Looking …"
    CANCELLED = "Cancelled; what was collected until then stays in the case folder"

    def __init__(self, case: Case, target: str) -> None:
        _check(target)
        self._case = case
        self.target = W.Text(value=target, placeholder=TARGETS, description="Look at", layout=W.Layout(width="30em"))
        self.look = W.Button(description="Look", icon="search", button_style="primary")
        said = f"The form looks at {target}" if target else "The form names nothing to look at"
        super().__init__(said, [self.target], self.look)

    def asks(self) -> bool:
        """Whether a target is named."""
        _check(self.target.value)
        return bool(self.target.value.strip())

    def prepare(self) -> Coroutine[Any, Any, View]:
        """The looking, at the processes that the target names."""
        return look(self._case, _options(self.target.value))


async def look(case: Case, which: Sequence[str] = ()) -> View:
    """Collect evidence from the job that these options of ``ncclkit attach`` name (none: the only one here).

    Equal stacks are grouped, and a table tells how busy each rank was meanwhile.  The case needs a folder.  Raises
    NcclkitError in the words of ``ncclkit attach``, and when the deadline passes.
    """
    if case.path is None:
        raise NcclkitError("Looking at processes needs a case folder; give case_dir a name.")
    before = set(case.runs())
    command = [sys.executable, "-m", "ncclkit.cli", "attach", "--case", str(case.path), "--json", *which]
    said, problems, code_ = await _child(command)
    if code_ not in (0, 1):
        raise NcclkitError(problems[-1].removeprefix("ncclkit: ") if problems else "ncclkit attach failed.")
    found = json.loads(said)["findings"]
    folder = next(run for run in reversed(case.runs()) if run not in before)
    reading = evidence.read([folder])
    case.add(reading.events)
    where = stacks_view(reading.events, problems, found)
    strip = strip_view(folder, reading.events)
    return where if strip is None else Drawn(where.say, strip.figure, join(where.body, el("p", strip.say)))


async def _child(command: Sequence[str]) -> tuple[str, list[str], int]:
    """Output, lines of standard error and exit status of a command that is dead when this returns."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, stdin=asyncio.subprocess.DEVNULL)
    try:
        said, wrong = await asyncio.wait_for(child.communicate(), DEADLINE)
    except asyncio.TimeoutError:
        raise NcclkitError(f"Looking took more than {DEADLINE:.0f} s and was ended; name fewer processes.") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return said.decode("utf-8", "replace"), wrong.decode("utf-8", "replace").splitlines(), child.returncode or 0


def _check(target: str) -> None:
    if target.strip() and not TARGET.fullmatch(target.strip()):
        raise NcclkitError(f"Cannot attach to {target!r}; give {TARGETS}, such as “job 4711”.")


def _options(target: str) -> list[str]:
    """The options of ``ncclkit attach`` for a target; none for all."""
    option = "--job" if target.strip().startswith("job") else "--pid"
    return [word for number in re.findall(r"[\d=]+", target) for word in (option, number)]
