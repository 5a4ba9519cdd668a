"""One object, two faces: static HTML for a report, a widget for a person.

The front end chooses: JupyterLab prefers the widget, a report and a file keep
the static face, a terminal prints the sentence.  Nothing asks where it runs.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import ipywidgets as W
import plotly.graph_objects as go

from ncclkit.views._html import Html, el

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"


@cache
def style() -> str:
    """The stylesheet as one `<style>` element; equal in every view, so that a report can keep the first only."""
    return f'<style class="nk-style">\n{files("ncclkit").joinpath("style.css").read_text(encoding="utf-8")}</style>'


class View:
    """A sentence, its static face and, where there is one, its widget face."""

    def __init__(self, say: str, body: Html) -> None:
        self._say, self._body = say, body

    @property
    def say(self) -> str:
        """The conclusion in one sentence, plain text."""
        return self._say

    def static(self) -> Html:
        """The static face without its stylesheet: complete markup, no script."""
        return page(self.say, self._body)

    @property
    def html(self) -> str:
        """The static face with its stylesheet, as a notebook stores it."""
        return style() + self.static()

    def widget(self) -> W.Widget | None:
        """The widget face, or None for a view that has nothing to choose."""
        return None

    def __repr__(self) -> str:
        return self.say

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self.say, "text/html": self.html}
        widget = self.widget()
        if widget is not None:
            bundle[WIDGET] = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
        return bundle


class Chart(View):
    """A plotly figure that shows itself as plotly JSON, whatever renderer is set."""

    def __init__(self, figure: go.Figure) -> None:
        self.figure = figure
        super().__init__(figure.layout.meta["say"], Html(""))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        figure = json.loads(self.figure.to_json()) | {"config": {"displaylogo": False}}
        return {PLOTLY: figure, "text/plain": self.say}


def outputs(figure: go.Figure) -> tuple[dict[str, Any], ...]:
    """A figure as the contents of an `Output` widget: assign them again and JupyterLab draws again."""
    return ({"output_type": "display_data", "metadata": {}, "data": Chart(figure)._repr_mimebundle_()},)


def page(say: str, *body: object) -> Html:
    """The frame of a static face: conclusion first."""
    return el("div", el("p", say, cls="nk-say"), *body, cls="nk")
