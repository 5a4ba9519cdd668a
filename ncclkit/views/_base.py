"""One object, two faces: static HTML for a report, a widget for a person.

The front end chooses: JupyterLab prefers the widget, a report and a file keep
the static face, a terminal prints the sentence.  Nothing asks where it runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import ipywidgets as W
import plotly.graph_objects as go

from ncclkit.views._html import Markup, el, join

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
FIGURE_SLOT = Markup('<div class="nk-figure"></div>')
"""Where a report puts the figure of a view that also has words (`ncclkit.report.page` knows it)."""

NOTHING = Markup("")


@cache
def style() -> Markup:
    """The stylesheet as one `<style>` element.

    It is equal in every view, so that a report can keep the first only.
    """
    sheet = files("ncclkit.views").joinpath("style.css").read_text(encoding="utf-8")
    return Markup('<style class="nk-style">\n{}</style>').format(Markup(sheet))


class View:
    """A sentence, its static face and, where there is one, its widget face."""

    is_drawn_again = True
    """Whether newer evidence may replace it; not where a person has typed or chosen something."""
    tells_of_now = True
    """Whether newer evidence makes it old; not where it tells of one moment of a story."""

    def __init__(self, summary: str, body: Markup, *, titled: bool = True) -> None:
        """Make the view.

        `titled` is False where the body, or the title of the figure, says the sentence itself.
        """
        self._summary = summary
        self._body = body
        self._titled = titled
        self.short_widget: W.Widget | None = None
        """A line to show in JupyterLab where a form above shows the same already.

        The static face stays whole.
        """
        self.form: Any = None
        """The form that it came out of.

        Its cell shows what that form shows by then.
        """
        self.place: Any = None
        """Where it stands on a page (`ncclkit.views._page.Place`).

        That is which run it shows, and whether it is drawn again once a form has run.
        """
        self.run_label = ""
        """The run that it shows, in words."""
        self.older = ""
        """Why what it shows is not the newest; empty while it is."""

    @property
    def summary(self) -> str:
        """The conclusion in one sentence, plain text."""
        return self._summary

    def static(self) -> Markup:
        """The static face without its stylesheet: complete markup, no script."""
        shown = join(run_line(self.run_label), self.face())
        if self.older:
            return join(older_line(self.older), el("div", shown, cls="nk-old"))
        return shown

    def face(self) -> Markup:
        """The static face without the name of its run."""
        if self._titled:
            return page_frame(self.summary, self.body)
        return el("div", self.body, cls="nk tex2jax_ignore")

    @property
    def body(self) -> Markup:
        """What stands under the sentence."""
        return self._body

    @property
    def html(self) -> str:
        """The static face with its stylesheet, as a notebook stores it."""
        return style() + self.static()

    def widget(self) -> W.Widget | None:
        """The widget face, or None for a view that has nothing to choose."""
        return self.short_widget

    def __repr__(self) -> str:
        return self.summary

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self.summary, "text/html": self.html}
        widget = self.widget()
        if self.place is not None:
            widget = self.place.widget(widget)
        if widget is not None:
            bundle[WIDGET] = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
        return bundle


class Drawn(View):
    """A sentence, a figure and the words that go with it.

    Without a figure it is a plain `View`.
    """

    def __init__(
        self,
        summary: str,
        figure: go.Figure | None,
        body: Markup,
        *,
        titled: bool = True,
        above: Markup = NOTHING,
    ) -> None:
        """above: what stands over the figure, and says the sentence in its own way."""
        titled = titled and not above
        slot = FIGURE_SLOT if figure is not None else NOTHING
        super().__init__(summary, join(above, slot, body), titled=titled)
        self._banner = above
        self._figure = figure and figure.update_layout(meta={"summary": summary})
        self._words = body
        self._box: W.Widget | None = None

    @property
    def figure(self) -> go.Figure | None:
        """The figure, where there is one."""
        return self._figure

    def widget(self) -> W.Widget | None:
        """The same three one below the other: JupyterLab shows one type of a bundle only."""
        if self.short_widget is not None:
            return self.short_widget
        if self._figure is not None and self._box is None:
            drawing = W.Output(outputs=outputs(self._figure), layout=W.Layout(width="100%"))
            above = style() + el("div", self._banner, cls="nk tex2jax_ignore")
            if self._titled:
                above = style() + page_frame(self.summary)
            below = el("div", self._words, cls="nk tex2jax_ignore")
            self._box = W.VBox(
                [W.HTML(above), drawing, W.HTML(below)], layout=W.Layout(width="100%")
            )
        return self._box

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        if self._figure is None:
            drawn = {}
        else:
            drawn = {PLOTLY: plain(self._figure)}
        return super()._repr_mimebundle_() | drawn


class Chart(Drawn):
    """A plotly figure whose own title is the sentence, and the words under it."""

    def __init__(self, figure: go.Figure, words: Markup = NOTHING) -> None:
        super().__init__(figure.layout.meta["summary"], figure, words, titled=False)


def plain(figure: go.Figure) -> dict[str, Any]:
    """A figure as plotly's own JSON."""
    # through JSON, as `to_dict` may hold arrays, which no message to the front end takes
    return dict(json.loads(figure.to_json())) | {"config": {"displaylogo": False}}


def outputs(figure: go.Figure) -> tuple[dict[str, Any], ...]:
    """A figure as the contents of an `Output` widget.

    Assign them again and JupyterLab draws again.
    """
    data = {PLOTLY: plain(figure), "text/plain": figure.layout.meta["summary"]}
    return ({"output_type": "display_data", "metadata": {}, "data": data},)


def page_frame(summary: str, *body: object) -> Markup:
    """The frame of a static face: conclusion first."""
    return el("div", el("p", summary, cls="nk-say"), *body, cls="nk tex2jax_ignore")


def run_line(label: str) -> Markup:
    """Which run a view shows."""
    if label:
        return el("div", el("p", f"{label[:1].upper()}{label[1:]}", cls="nk-dim nk-run"), cls="nk")
    return NOTHING


def older_line(why: str) -> Markup:
    """That something newer is there than what stands below, in grey."""
    return el("div", el("p", why, cls="nk-bad nk-older", role="status"), cls="nk")


@dataclass(frozen=True)
class RunSource:
    """Which runs a view can show, and how it draws one that a reader has chosen."""

    list_runs: Callable[..., list[Path]]
    draw_run: Callable[..., View]


RUN_SOURCES: dict[Callable[..., View], RunSource] = {}
"""View → the runs that it can show."""
MakeView = TypeVar("MakeView", bound=Callable[..., View])


def shows_runs(
    list_runs: Callable[..., list[Path]], draw_run: Callable[..., View] | None = None
) -> Callable[[MakeView], MakeView]:
    """A view that says which run it shows, and lets a reader choose another.

    list_runs: case → the folders of the runs that it can show, the oldest first; draw_run(case,
    folder): the view of one of them (default: of what this run alone has left in the case).
    """

    def marked(view: MakeView) -> MakeView:
        def draw_alone(case: Any, folder: Path) -> View:
            return view(case.run_alone(folder))

        RUN_SOURCES[view] = RunSource(list_runs, draw_run or draw_alone)
        return view

    return marked


def main_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs the cell, None outside a kernel."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
