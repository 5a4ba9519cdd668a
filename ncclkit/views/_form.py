"""The form behind every button: fields, buttons that start a coroutine each, Cancel, progress, and what came out.

JupyterLab delivers a click on a thread of ipykernel's own (a subshell), so
that Cancel works while a cell awaits.  A handler therefore never touches a
task: it asks the kernel's main loop to act.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import ipywidgets as W

from ncclkit.core.model import NcclkitError
from ncclkit.core.text import plural
from ncclkit.views._base import PLOTLY, Drawn, View, main_loop, outputs, page, style
from ncclkit.views._html import Markup, el, fold, join, pre
from ncclkit.views._progress import Progress

Prepare = Callable[[], Coroutine[Any, Any, Any]]
REDRAW = 0.15
"""Seconds between two drawings: records may come by the thousand."""


class Form(View, ABC):
    """``await form.run()`` does what its first button does.  A subclass says what that is."""

    IDLE = ""
    """What `run` says when the fields name nothing."""
    ASK = ""
    """What the button says then."""
    BUSY = ""
    CANCELLED = ""

    def __init__(self, summary: str, fields: Sequence[W.Widget], start: W.Button, *more: W.Button) -> None:
        """Lay out `fields`, the button `start` and those that the subclass binds itself."""
        super().__init__(summary, Markup(""))
        self.start, self.cancel = start, W.Button(description="Cancel", icon="stop", disabled=True)
        self.notice, self.result = W.HTML(), W.HTML()
        self.drawing = W.Output(layout=W.Layout(width="100%"))
        self.progress = Progress(0)
        self._fields, self._buttons = tuple(fields), (start, *more)
        self._loop = main_loop()
        self._task: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False
        self._seen: View | None = None
        self._displayed = False
        self._marked: dict[W.Widget, str] = {}
        start.on_click(lambda _button: self._post(self.begin))
        self.cancel.on_click(lambda _button: self._post(self.stop))
        self._box = W.VBox([W.HTML(style()), *self.layout()], layout=W.Layout(width="100%"))
        self._show(page(self.summary))
        for field in self._fields:
            field.observe(self._changed, "value")
        self.review()

    def layout(self) -> list[W.Widget]:
        """What the form shows, top down."""
        return [row(*self._fields, *self._buttons, self.cancel), self.notice, self.result, self.drawing]

    def wrong(self) -> Mapping[W.Widget, str]:
        """Field → why nobody can mean what it holds; looks at this host only, and never waits."""
        return {}

    def blocked(self) -> Mapping[W.Button, str]:
        """Button → why it can do nothing now, where no field is wrong."""
        return {} if self.asks() else {self.start: self.ASK}

    def review(self) -> None:
        """Mark the fields that are wrong, disable the buttons that can do nothing, and say why."""
        wrong = self.wrong()
        try:
            blocked = {self.start: next(iter(wrong.values()))} if wrong else self.blocked()
        except NcclkitError as error:
            blocked = {self.start: str(error)}
        for field in self._fields:
            why = wrong.get(field) or self._marked.get(field, "")
            (field.add_class if why else field.remove_class)("nk-wrong")
            field.tooltip = why or None
        for button in self._buttons:
            button.disabled, button.tooltip = button in blocked, blocked.get(button) or None
        shown = "" if self._seen is None else self._seen.summary
        if said := [why for why in (*wrong.values(), *self._marked.values()) if why != shown]:
            self._refuse("; ".join(dict.fromkeys(said)))
        else:
            self.notice.value = _dim(dict.fromkeys(blocked.values()))

    def mark(self, field: W.Widget, why: str) -> None:
        """Mark a field whose value could not be resolved, until it is changed."""
        self._marked[field] = why

    @abstractmethod
    def asks(self) -> bool:
        """Whether the fields name anything; raises NcclkitError for what nobody can mean."""

    @abstractmethod
    def prepare(self) -> Coroutine[Any, Any, Any]:
        """What the fields ask for; raises NcclkitError for what cannot be done."""

    def widget(self) -> W.Widget:
        """The fields, the buttons and what came out."""
        self._loop = main_loop() or self._loop
        self._displayed = True
        return self._box

    def static(self) -> Markup:
        """What came out; a report leaves out a form that nobody used."""
        return el("div", super().static(), cls="nk-idle") if self._seen is None else self._seen.static()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        drawn = self._seen._repr_mimebundle_() if isinstance(self._seen, Drawn) else {}
        figure = {kind: shown for kind, shown in drawn.items() if kind == PLOTLY}
        return super()._repr_mimebundle_(include, exclude) | figure

    @property
    def running(self) -> bool:
        """Whether it is at work."""
        return self._task is not None and not self._task.done()

    async def run(self) -> Any:
        """Act now, and return what came out; where the fields name nothing, nothing is done.

        Raises NcclkitError where it cannot be done, while it is running already, and after Cancel.
        """
        return await self._act(self.prepare)

    def begin(self, prepare: Prepare | None = None) -> None:
        """What a button does, on the kernel's main loop; its errors stand in the form."""
        if self._named():
            asyncio.ensure_future(self._act(prepare or self.prepare)).add_done_callback(_retrieved)

    def stop(self) -> None:
        """What the Cancel button does, on the kernel's main loop; without a run it does nothing."""
        if self._task is not None:
            self._asked = True
            self._task.cancel()

    def observe(self, record: dict[str, Any]) -> None:
        """Take one wire record of what runs; draws soon, once for all that come until then."""
        self.progress.take(record)
        if self._timer is None and self.running:
            self._timer = asyncio.get_running_loop().call_later(REDRAW, self._draw)

    def draw(self) -> None:
        """Show the state of what runs."""
        self._show(page(self.BUSY, el("p", self.progress.words()), trail(self.progress)))

    def started(self) -> None:
        """Show that it begins."""
        self._show(page(self.BUSY))

    def finished(self, outcome: Any) -> None:
        """Show what came out."""
        self._seen = outcome
        self._show(outcome.static())
        figure = outcome.figure if isinstance(outcome, Drawn) else None
        self.drawing.outputs = () if figure is None else outputs(figure)
        if self._displayed:
            outcome.above = W.HTML(style() + el("div", el("p", outcome.summary, cls="nk-dim"), cls="nk"))

    def failed(self, why: str, cancelled: bool) -> None:
        """Show why nothing came out; what came out before is gone."""
        self._seen = View(self.CANCELLED if cancelled else why, Markup(""))
        self.drawing.outputs = ()
        self._show(self._seen.static())

    def stopped(self) -> str:
        """What Cancel raises in the cell that awaits."""
        return f"{self.CANCELLED}."

    async def _act(self, prepare: Prepare) -> Any:
        try:
            if self.running:
                raise NcclkitError("This form is already running; wait for it, or press Cancel first.")
            if not self.asks():
                return View(self.IDLE, Markup(""))
            work = prepare()
        except NcclkitError as error:
            self._refuse(str(error))
            raise
        self._asked, self.progress, self._seen = False, Progress(0), None
        self.drawing.add_class("nk-old")
        self._lock(True)
        self._task = asyncio.ensure_future(work)
        self.started()
        try:
            outcome = await self._task
        except asyncio.CancelledError:
            self._end(lambda: self.failed("", cancelled=True))
            if not self._asked:  # the caller itself is being stopped (Interrupt): let it stop
                raise
            raise NcclkitError(self.stopped()) from None
        except Exception as error:
            kind = "" if isinstance(error, NcclkitError) else f"{type(error).__name__}: "
            why = f"{kind}{error}"
            self._end(lambda: self.failed(why, cancelled=False))
            raise
        self._end(lambda: self.finished(outcome))
        return outcome

    def _end(self, show: Callable[[], None]) -> None:
        """Show the last state, and unlock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.drawing.remove_class("nk-old")
        show()
        self._lock(False)

    def _draw(self) -> None:
        self._timer = None
        if self.running:
            self.draw()

    def _named(self) -> bool:
        """Whether there is anything to do; where there is not, the form says so."""
        try:
            asked = self.asks()
        except NcclkitError as error:
            self._refuse(str(error))
            return False
        if not asked:
            self._refuse(self.ASK)
        return asked

    def _changed(self, change: Mapping[str, Any]) -> None:
        """Look at the fields again; what was marked of this one is about its old value."""
        self._marked.pop(change["owner"], None)
        if not self.running:
            self.review()

    def _lock(self, running: bool) -> None:
        """While it runs, only Cancel can be pressed."""
        self.notice.value = ""
        for field in (*self._fields, *self._buttons):
            field.disabled = running
        self.cancel.disabled = not running
        if running:
            self._marked.clear()
        else:
            self.review()

    def _show(self, html: Markup) -> None:
        self.result.value = html

    def _refuse(self, sentence: str) -> None:
        """Say why nothing was started; it stays until something is."""
        self.notice.value = el("div", el("p", sentence, cls="nk-bad", role="alert"), cls="nk")

    def _post(self, act: Callable[[], None]) -> None:
        """Ask the kernel's main loop to act: clicks may arrive on another thread."""
        if self._loop is None:
            self._refuse("No event loop is running here, so a button cannot start anything; open this in Jupyter.")
        else:
            self._loop.call_soon_threadsafe(act)


def _dim(reasons: Iterable[str]) -> Markup:
    said = [el("p", why, cls="nk-dim") for why in reasons]
    return el("div", *said, cls="nk") if said else Markup("")


def row(*widgets: W.Widget) -> W.Widget:
    """Widgets side by side, which wrap."""
    return W.Box(list(widgets), layout=W.Layout(flex_flow="row wrap", align_items="center", width="100%"))


def trail(progress: Progress) -> Markup:
    """The progress of each rank, and the last lines of the launcher's log."""
    return join(progress.lights(), log_lines(progress))


def log_lines(progress: Progress) -> Markup:
    """The last lines of the launcher's log, folded; empty where there is none."""
    said = [line for line in progress.log if line.strip(" *")]
    return fold(f"Last {plural(len(said), 'line')} of the log", pre("\n".join(said)) if said else "")


def _retrieved(task: asyncio.Future[Any]) -> None:
    """The form shows how the task ended; asking for it keeps asyncio from printing it as never retrieved."""
    if not task.cancelled():
        task.exception()
