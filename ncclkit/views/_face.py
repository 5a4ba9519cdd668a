"""The widgets of the live test: controls, progress, curve.  Built fresh for each form; knows nothing of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as W
import plotly.graph_objects as go

from ncclkit.views import _form
from ncclkit.views._base import outputs, style
from ncclkit.views._html import Html, el


class Face:
    """Controls filled with `values`, and the places where a run shows itself."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.controls = _controls(values)
        self.run = W.Button(description="Run", icon="play", button_style="primary")
        self.cancel = W.Button(description="Cancel", icon="stop", disabled=True)
        self.bar = W.IntProgress(min=0, max=1000, layout=W.Layout(width="auto", flex="1 1 8em"))
        self.notice, self.status, self.log = W.HTML(), W.HTML(), W.HTML()
        self.chart = W.Output()
        form = W.Box(list(self.controls.values()), layout=W.Layout(flex_flow="row wrap", width="100%"))
        buttons = W.Box([self.run, self.cancel, self.bar], layout=W.Layout(flex_flow="row wrap", align_items="center"))
        parts = [W.HTML(style()), form, buttons, self.notice, self.status, self.chart, self.log]
        self.box = W.VBox(parts, layout=W.Layout(width="100%"))

    def raw(self) -> dict[str, Any]:
        """The values as the controls hold them, unchecked."""
        return {name: control.value for name, control in self.controls.items()}

    def lock(self, running: bool) -> None:
        """While a run is under way the form is fixed and only Cancel can be pressed."""
        self.notice.value = ""
        for control in (*self.controls.values(), self.run):
            control.disabled = running
        self.cancel.disabled = not running

    def tell(self, sentence: str) -> None:
        """Show why something was not done; it stays until the next run starts."""
        self.notice.value = el("div", el("p", sentence, cls="nk-bad", role="alert"), cls="nk")

    def show(self, share: float, status: Html, figure: go.Figure | None, log: Html) -> None:
        """Draw one state of a run; `share` from 0 to 1."""
        self.bar.value = round(1000 * share)
        self.status.value, self.log.value = (el("div", part, cls="nk") for part in (status, log))
        if figure is not None:
            self.chart.outputs = outputs(figure)


def _controls(values: Mapping[str, Any]) -> dict[str, W.Widget]:
    bounds = {name: {"min": low, "max": high} for name, (low, high) in _form.LIMITS.items()}
    made: dict[str, tuple[Any, dict[str, Any]]] = {
        "python": (W.Text, {"placeholder": "the workbook's own"}),
        "ranks": (W.BoundedIntText, bounds["ranks"]),
        "split": (W.BoundedIntText, bounds["split"]),
        "largest": (W.Dropdown, {"options": _form.choices(values["largest"])}),
        "repeats": (W.BoundedIntText, bounds["repeats"]),
        "deadline": (W.BoundedFloatText, bounds["deadline"]),
        **{name: (W.Dropdown, {"options": options}) for name, options in _form.CHOICES.items()},
        "ladder": (W.Checkbox, {"indent": False}),
        "env": (W.Textarea, {"rows": 3, "placeholder": "NCCL_DEBUG=INFO"}),
    }
    shown = dict(values) | {"env": _form.lines(values["env"])}
    return {
        name: kind(
            value=shown[name],
            description=_form.LABELS[name],
            style={"description_width": "8.5em"},
            layout=W.Layout(width="auto", flex="1 1 18em", max_width="38em"),
            **options,
        )
        for name, (kind, options) in made.items()
    }
