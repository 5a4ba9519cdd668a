"""Attach: look at a job that hangs right now on this host, by the very command `ncclkit attach`.

The looking happens in a child process with a deadline, so that neither a stuck
target nor Cancel can hang the kernel.  Clicks may arrive on another thread (see
`ncclkit.views.live`); a handler only asks the kernel's main loop to act.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import ipywidgets as W

from ncclkit import evidence
from ncclkit.agent import processes
from ncclkit.case import Case
from ncclkit.model import NcclkitError
from ncclkit.views._base import View, main_loop, page, style
from ncclkit.views._html import Html
from ncclkit.views.stacks import stacks_view

DEADLINE = 120.0
"""Seconds after which the looking itself is ended; its parts have shorter ones."""
IDLE = "Nothing is attached; name the processes of a job that hangs right now on this host"
CANCELLED = "Cancelled; what was collected until then stays in the case folder"
ASK = "all, or process ids, or job and its Slurm id"
TARGET = re.compile(r"all|job \d{1,12}|\d{1,10}(?:[ ,]+\d{1,10})*")


def attach_form(case: Case, target: str = "") -> Attach:
    """The form that looks into running processes; ``await form.run()`` does what its Look button does.

    target: ``all`` (every process of this user with a RANK), process ids, ``job`` and a Slurm job's id (its ranks on
    this host), or nothing, and then nothing is done.  Raises NcclkitError for anything else.
    """
    return Attach(case, target)


class Attach(View):
    """See `attach_form`."""

    def __init__(self, case: Case, target: str) -> None:
        _check(target)
        super().__init__(f"The form looks at {target}" if target else "The form names nothing to look at", Html(""))
        self._case = case
        self.target = W.Text(value=target, placeholder=ASK, description="Look at", layout=W.Layout(width="30em"))
        self.look = W.Button(description="Look", icon="search", button_style="primary")
        self.cancel = W.Button(description="Cancel", icon="stop", disabled=True)
        self.result = W.HTML()
        self.look.on_click(lambda _button: self._post(self.begin))
        self.cancel.on_click(lambda _button: self._post(self.stop))
        self._loop = main_loop()
        self._task: asyncio.Future[View] | None = None
        self._asked = False
        row = W.Box([self.target, self.look, self.cancel], layout=W.Layout(flex_flow="row wrap"))
        self._box = W.VBox([W.HTML(style()), row, self.result], layout=W.Layout(width="100%"))

    def widget(self) -> W.Widget:
        """The field, the two buttons and what was seen."""
        self._loop = main_loop() or self._loop
        return self._box

    async def run(self) -> View:
        """Look now, and return what was seen; without a target nothing is done.

        Raises NcclkitError where no process can be found or looked at, and after Cancel.
        """
        _check(self.target.value)
        if not self.target.value.strip():
            return View(IDLE, Html(""))
        if self._task is not None and not self._task.done():
            raise NcclkitError("This form is looking already; wait for it, or press Cancel first.")
        pids = _pids(self.target.value)
        self._lock(True)
        self._asked = False
        self._show(page("Looking …"))
        self._task = asyncio.ensure_future(look(self._case, pids))
        try:
            seen: View = await self._task
        except asyncio.CancelledError:
            self._show(page(CANCELLED))
            if not self._asked:  # the caller itself is being stopped (Interrupt): let it stop
                raise
            raise NcclkitError(f"{CANCELLED}.") from None
        except NcclkitError as error:
            self._show(page(str(error)))
            raise
        finally:
            self._lock(False)
        self._show(seen.static())
        return seen

    def begin(self) -> None:
        """What the Look button does, on the kernel's main loop; its errors stand in the form."""
        if not self.target.value.strip():
            self._show(page(f"Say what to look at: {ASK}"))
            return
        asyncio.ensure_future(self.run()).add_done_callback(self._ended)

    def stop(self) -> None:
        """What the Cancel button does, on the kernel's main loop."""
        if self._task is not None:
            self._asked = True
            self._task.cancel()

    def _ended(self, task: asyncio.Future[View]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._show(page(str(error)))

    def _lock(self, running: bool) -> None:
        self.look.disabled = self.target.disabled = running
        self.cancel.disabled = not running

    def _show(self, html: Html) -> None:
        self.result.value = html

    def _post(self, act: Any) -> None:
        if self._loop is None:
            self._show(page("No event loop is running here, so a button cannot start anything; open this in Jupyter."))
        else:
            self._loop.call_soon_threadsafe(act)


async def look(case: Case, pids: Sequence[int] = ()) -> View:
    """Collect evidence from these processes (none: every one with a RANK) into the case; equal stacks grouped.

    The case needs a folder.  Raises NcclkitError in the words of ``ncclkit attach``, and when the deadline passes.
    """
    if case.path is None:
        raise NcclkitError("Looking at processes needs a case folder; give case_dir a name.")
    before = set(case.runs())
    words = [word for pid in pids for word in ("--pid", str(pid))]
    command = [sys.executable, "-m", "ncclkit.cli", "attach", "--case", str(case.path), "--json", *words]
    said, problems, code_ = await _child(command)
    if code_ not in (0, 1):
        raise NcclkitError(problems[-1].removeprefix("ncclkit: ") if problems else "ncclkit attach failed.")
    found = json.loads(said)["findings"]
    folder = next(run for run in reversed(case.runs()) if run not in before)
    reading = evidence.read([folder])
    case.add(reading.events)
    return stacks_view([event for event in reading.events if event.kind == "stack"], problems, found)


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
        raise NcclkitError(f"Cannot attach to {target!r}; give {ASK}, such as “job 4711”.")


def _pids(target: str) -> list[int]:
    """The processes that a target names; none means every one with a RANK."""
    words = target.strip()
    if words == "all":
        return []
    numbers = [int(number) for number in re.findall(r"\d+", words)]
    if not words.startswith("job"):
        return numbers
    job = [pid for pid in processes.parents() if processes.environ(pid).get("SLURM_JOB_ID") == str(numbers[0])]
    ours = list(processes.ranks(job).values())
    if not ours:
        raise NcclkitError(f"Slurm job {numbers[0]} has no rank of this user on this host; go to one of its nodes.")
    return ours
