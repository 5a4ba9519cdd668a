"""A form whose work starts ranks: their lights and the last lines of the log while it lasts."""

from __future__ import annotations

import asyncio
from abc import ABC
from typing import Any

import ipywidgets as W

from ncclkit.views._action import Action
from ncclkit.views._base import page
from ncclkit.views._html import Html, el, fold, join, pre
from ncclkit.views._progress import Progress
from ncclkit.views._words import plural

REDRAW = 0.15
"""Seconds between two drawings: records may come by the thousand."""


class Launching(Action, ABC):
    """Hand `observe` to what runs, and the form shows the progress of its ranks."""

    progress = Progress(0)
    _drawing: asyncio.TimerHandle | None = None

    def widget(self) -> W.Widget:
        """The form, which says what it will do before it does it."""
        if self._seen is None and not self.running:
            self._show(self.static())
        return super().widget()

    def observe(self, record: dict[str, Any]) -> None:
        """Take one wire record; a ``plan`` begins a new run.  Draws soon, once for all that come until then."""
        if record.get("kind") == "plan":
            self.progress = Progress(0)
        self.progress.take(record)
        if self._drawing is None:
            self._drawing = asyncio.get_running_loop().call_later(REDRAW, self._draw)

    def _draw(self) -> None:
        self._drawing = None
        if self.running:
            self._show(page(self.BUSY, el("p", self.progress.words()), trail(self.progress)))


def trail(progress: Progress) -> Html:
    """How far each rank came, and the last lines that the launcher said."""
    said = [line for line in progress.log if line.strip(" *")]
    log = pre("\n".join(said)) if said else ""
    return join(progress.lights(), fold(f"Last {plural(len(said), 'line')} of the log", log))
