"""The live test as a form: the same coroutine for the cell that awaits it and for the Run button.

JupyterLab delivers a click on a thread of ipykernel's own (a subshell), so
that Cancel works while a cell awaits.  A handler therefore never touches a
task: it asks the kernel's main loop to do so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import ipywidgets as W

from ncclkit.core.case import Case
from ncclkit.core.model import Measurement, NcclkitError
from ncclkit.views import plots
from ncclkit.views._base import View, main_loop, page
from ncclkit.views._face import Face
from ncclkit.views._form import LABELS, check, lines
from ncclkit.views._html import Html, badge, code, el, fold, join, pre, table
from ncclkit.views._progress import Progress
from ncclkit.views._words import plural
from ncclkit.views.tables import measurement_table

REDRAW = 0.15
"""Seconds between two drawings: records may come by the thousand."""

OUTCOMES = {
    "done": ("✓", "finished"),
    "deadline": ("■", "stopped at its deadline"),
    "cancelled": ("■", "cancelled"),
    "failed": ("✕", "failed"),
    "running": ("▶", "running"),
    "refused": ("✕", "not started"),
}


class Run(Protocol):
    """What a finished live test is, as far as this view needs it; `ncclkit.live.probe` makes it."""

    name: str
    folder: Path
    reason: str
    """``done``, ``deadline``, ``cancelled`` or ``failed``."""
    say: str
    """The outcome in one sentence."""
    measurements: Sequence[Measurement]


Start = Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], Awaitable[Any]]
Expect = Callable[[Measurement], tuple[float | None, str]]


class LiveTest(View):
    """A form with Run and Cancel; ``run = await live.run()`` runs what the form says."""

    def __init__(self, case: Case, start: Start, defaults: Mapping[str, Any], expect: Expect) -> None:
        """Fill the form with `defaults`; raises NcclkitError where they do not fit.

        `start(values, on_record)` is the coroutine function that runs the test
        and returns a `Run`; `expect(measurement)`, asked once a run, gives the
        busbw in GB/s that is expected of such a run, or None, and the words
        that `plots.bandwidth` takes.
        """
        self.case, self._start, self._expect = case, start, expect
        self.face = Face(check(defaults))
        self.face.run.on_click(lambda _button: self._post(self.begin))
        self.face.cancel.on_click(lambda _button: self._post(self.cancel))
        self.progress = Progress(0)
        self.measurements: list[Measurement] = []
        self.state, self._outcome = "", ""
        self._limit: tuple[float | None, str] = (None, "")
        self._loop = main_loop()
        self._task: asyncio.Future[Any] | None = None
        self._drawing: asyncio.TimerHandle | None = None
        self._drawn = -1
        self._asked = False

    @property
    def values(self) -> dict[str, Any]:
        """The form, checked, named as `ncclkit.live.probe.plan` names them; NcclkitError where something is wrong."""
        return check(self.face.raw())

    @property
    def running(self) -> bool:
        """Whether a run is under way."""
        return self._task is not None and not self._task.done()

    @property
    def say(self) -> str:
        """What the form will do, or what came of it."""
        if self.state:
            _, word = OUTCOMES.get(self.state, ("", self.state))
            return f"Live test {word}: {self._outcome or self.progress.words()}"
        raw = self.face.raw()
        ranks = plural(raw["ranks"], "rank") if raw["ranks"] else "one rank per GPU, or two on the CPU"
        return f"Live test with {ranks}, ended after {raw['deadline']:g} s at the latest"

    async def run(self) -> Any:
        """Run the test as the form says and return its `Run`; progress is drawn in place.

        Raises NcclkitError for bad values, for a second run while one is under
        way, and after Cancel where the test itself had nothing to return.
        """
        self._task = self._launch()
        try:
            run = await self._task
        except asyncio.CancelledError:
            self._finish("cancelled", f"{self.progress.words()} when it was cancelled")
            if not self._asked:  # the caller itself is being stopped (Interrupt): let it stop
                raise
            raise NcclkitError(f"The live test was cancelled ({self.progress.words()}); run it again.") from None
        except Exception as error:
            kind = "" if isinstance(error, NcclkitError) else f"{type(error).__name__}: "
            self._finish("failed", f"{kind}{error}")
            raise
        self._finish(run.reason, run.summary, run.measurements)
        return run

    def begin(self) -> None:
        """What the Run button does, on the kernel's main loop: make `run` a task; its errors stand in the view."""
        asyncio.ensure_future(self.run()).add_done_callback(_seen)

    def cancel(self) -> None:
        """What the Cancel button does, on the kernel's main loop; without a run it does nothing."""
        if self._task is not None:
            self._asked = True
            self._task.cancel()

    def widget(self) -> W.Widget:
        """The form."""
        self._loop = main_loop() or self._loop
        return self.face.box

    def static(self) -> Html:
        """The chosen values, the variables that will be set, and what came of a run."""
        raw = self.face.raw()
        env = raw.pop("env")
        rows = [(LABELS[name], code(_words(name, chosen))) for name, chosen in raw.items()]
        setting = (LABELS["env"], pre(env) if env.strip() else "none; plan.json of the run lists what the kit sets")
        return page(self.say, table(("Value", "Chosen"), [*rows, setting]), self._result())

    def _launch(self) -> asyncio.Future[Any]:
        """Check, lock the form and start; a refusal is shown as well as raised."""
        try:
            if self.running:
                raise NcclkitError("A live test is already running in this form; wait for it, or press Cancel first.")
            values = self.values
        except NcclkitError as error:
            self.face.tell(str(error))
            raise
        self.progress, self.measurements, self._asked = Progress(values["ranks"]), [], False
        self.state, self._outcome, self._drawn, self._limit = "running", "", -1, (None, "")
        self._loop = asyncio.get_running_loop()
        self.face.lock(True)
        self._draw()
        return asyncio.ensure_future(self._start(values, self._observe))

    def _observe(self, record: dict[str, Any]) -> None:
        """Take one wire record; draw soon, once for all that come until then."""
        self.progress.take(record)
        if self.progress.measurements and not self.measurements:
            self._limit = self._expect(self.progress.measurements[0])
        self.measurements = self.progress.measurements
        if self._drawing is None and self.running:
            self._drawing = asyncio.get_running_loop().call_later(REDRAW, self._draw)

    def _draw(self) -> None:
        self._drawing = None
        rows = self.measurements
        figure = plots.bandwidth(rows, *self._limit) if rows and len(rows) != self._drawn else None
        self._drawn = len(rows)
        log = fold(f"Last {len(self.progress.log)} lines of the log", pre("\n".join(self.progress.log)))
        share = 1.0 if self.state == "done" else self.progress.share()
        self.face.show(share, self._status(), figure, join(log if self.progress.log else "", self._variables()))

    def _finish(self, state: str, say: str, measurements: Sequence[Measurement] = ()) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
        self.state, self._outcome = state, say
        self.measurements = list(measurements) or self.progress.measurements
        self._drawn = -1
        self.face.lock(False)
        self._draw()

    def _status(self) -> Html:
        symbol, word = OUTCOMES.get(self.state, ("•", self.state))
        says = self._outcome or self.progress.words()
        return join(el("p", badge(symbol, word, f"state-{self.state}"), " ", says), self.progress.lights())

    def _result(self) -> Html:
        if not self.state:
            return Html("")
        return join(self._status(), measurement_table(self.measurements, self._limit[0]), self._variables())

    def _variables(self) -> Html:
        """Every variable that this run set for its ranks, the form's own among them."""
        env = self.progress.env
        return fold(f"{plural(len(env), 'variable')} set for the ranks", pre(lines(env)) if env else "")

    def _post(self, act: Callable[[], None]) -> None:
        """Ask the kernel's main loop to act: clicks may arrive on another thread."""
        if self._loop is None:
            self.face.tell("No event loop is running here, so a button cannot start anything; open this in Jupyter.")
        else:
            self._loop.call_soon_threadsafe(act)


def _words(name: str, chosen: Any) -> str:
    """A value of the form in words: sizes with their unit, what is left open as ``auto``."""
    if name == "largest":
        return plots.size(chosen) if chosen else "auto"
    return str(chosen or ("the workbook's own" if name == "python" else "auto"))


def _seen(task: asyncio.Task[Any]) -> None:
    """The view shows how the task ended; asking for it keeps asyncio from printing it as never retrieved."""
    if not task.cancelled():
        task.exception()
