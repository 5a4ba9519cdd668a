"""A form that does one thing at a time: fields, buttons that start a coroutine each, Cancel, and what came out.

Clicks may arrive on another thread (see `ncclkit.views.live`); a handler only
asks the kernel's main loop to act.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import ipywidgets as W

from ncclkit.core.model import NcclkitError
from ncclkit.views._base import PLOTLY, Drawn, View, main_loop, outputs, page, style
from ncclkit.views._html import Html, el

Prepare = Callable[[], Coroutine[Any, Any, View]]


class Action(View, ABC):
    """``await form.run()`` does what its first button does.  A subclass says what that is."""

    IDLE = ""
    """What `run` says when the fields name nothing."""
    ASK = ""
    """What the button says then."""
    BUSY = ""
    CANCELLED = ""

    def __init__(self, say: str, fields: Sequence[W.Widget], start: W.Button, *more: W.Button) -> None:
        """Put `fields`, the button `start` and those that the subclass binds itself in a row that wraps."""
        super().__init__(say, Html(""))
        self.cancel = W.Button(description="Cancel", icon="stop", disabled=True)
        self.result = W.HTML()
        self._fields = (*fields, start, *more)
        start.on_click(lambda _button: self._post(self.begin))
        self.cancel.on_click(lambda _button: self._post(self.stop))
        self._loop = main_loop()
        self._task: asyncio.Future[View] | None = None
        self._asked = False
        self._seen: View | None = None
        self._displayed = False
        self.drawing = W.Output(layout=W.Layout(width="100%"))
        row = W.Box([*self._fields, self.cancel], layout=W.Layout(flex_flow="row wrap"))
        self._box = W.VBox([W.HTML(style()), row, self.result, self.drawing], layout=W.Layout(width="100%"))

    @abstractmethod
    def asks(self) -> bool:
        """Whether the fields name anything; raises NcclkitError for what nobody can mean."""

    @abstractmethod
    def prepare(self) -> Coroutine[Any, Any, View]:
        """What the fields ask for; raises NcclkitError for what cannot be done."""

    def widget(self) -> W.Widget:
        """The fields, the two buttons and what came out."""
        self._loop = main_loop() or self._loop
        self._displayed = True
        return self._box

    def static(self) -> Html:
        """What it will do, or what came out."""
        return super().static() if self._seen is None else self._seen.static()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        drawn = self._seen._repr_mimebundle_() if isinstance(self._seen, Drawn) else {}
        figure = {kind: shown for kind, shown in drawn.items() if kind == PLOTLY}
        return super()._repr_mimebundle_(include, exclude) | figure

    @property
    def running(self) -> bool:
        """Whether it is at work."""
        return self._task is not None and not self._task.done()

    async def run(self) -> View:
        """Act now, and return what came out; where the fields name nothing, nothing is done.

        Raises NcclkitError where it cannot be done, and after Cancel.
        """
        return await self._act(self.prepare)

    async def _act(self, prepare: Prepare) -> View:
        if not self.asks():
            return View(self.IDLE, Html(""))
        if self.running:
            raise NcclkitError("This form is at work already; wait for it, or press Cancel first.")
        work = prepare()
        self._lock(True)
        self._asked = False
        self._show(page(self.BUSY))
        self._task = asyncio.ensure_future(work)
        try:
            seen: View = await self._task
        except asyncio.CancelledError:
            self._show(page(self.CANCELLED))
            if not self._asked:  # the caller itself is being stopped (Interrupt): let it stop
                raise
            raise NcclkitError(f"{self.CANCELLED}.") from None
        except NcclkitError as error:
            self._show(page(str(error)))
            raise
        finally:
            self._lock(False)
        self._seen = seen
        self._show(seen.static())
        self.drawing.outputs = outputs(seen.figure) if isinstance(seen, Drawn) and seen.figure is not None else ()
        if self._displayed:
            seen.above = W.HTML(style() + el("div", el("p", seen.say, cls="nk-dim"), cls="nk"))
        return seen

    def begin(self, prepare: Prepare | None = None) -> None:
        """What a button does, on the kernel's main loop; its errors stand in the form."""
        try:
            asked = self.asks()
        except NcclkitError as error:
            self._show(page(str(error)))
            return
        if asked:
            asyncio.ensure_future(self._act(prepare or self.prepare)).add_done_callback(self._ended)
        else:
            self._show(page(self.ASK))

    def stop(self) -> None:
        """What the Cancel button does, on the kernel's main loop."""
        if self._task is not None:
            self._asked = True
            self._task.cancel()

    def _ended(self, task: asyncio.Future[View]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._show(page(str(error)))

    def _lock(self, running: bool) -> None:
        for field in self._fields:
            field.disabled = running
        self.cancel.disabled = not running

    def _show(self, html: Html) -> None:
        self.result.value = html

    def _post(self, act: Any) -> None:
        if self._loop is None:
            self._show(page("No event loop is running here, so a button cannot start anything; open this in Jupyter."))
        else:
            self._loop.call_soon_threadsafe(act)
