"""One rhythm: a cell shows a form, the next one awaits it, and both stay true when somebody clicks afterwards."""

from __future__ import annotations

import asyncio

import ipywidgets as W
import plotly.graph_objects as go
import pytest

import ncclkit as nk
from ncclkit.core.case import Case
from ncclkit.views._base import WIDGET, Drawn, View
from ncclkit.views._form import Form
from ncclkit.views._html import Markup
from ncclkit.views.report import shown_by_now


class Counting(Form):
    """A form whose answers are told apart by a number; the third fails."""

    count = 0

    def __init__(self) -> None:
        super().__init__("Counts", [], W.Button(description="Count"))

    async def prepare(self) -> View:
        self.count += 1
        if self.count == 3:
            raise ValueError("no more")
        return View(f"answer {self.count}", Markup("<p>in full</p>"))


async def clicked(form: Form) -> None:
    form.begin()
    while not form.running:
        await asyncio.sleep(0)
    while form.running:
        await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_what_came_out_last_counts_and_stands_once_where_it_was_awaited() -> None:
    async def visited() -> None:
        form = Counting()
        assert WIDGET in form._repr_mimebundle_(), "shown"
        first = await form.run()
        cells = [form, first, "of another cell"]
        assert [shown_by_now(value, cells) for value in cells] == [None, first, "of another cell"]
        line = first.widget()
        assert line is not None and "answer 1" in line.value and "in full" not in line.value
        assert "in full" in first.html, "a report has no form above"

        await clicked(form)
        assert shown_by_now(first, cells).summary == "answer 2" and "answer 2" in line.value
        await clicked(form)
        assert "no more" in shown_by_now(first, cells).summary and "no more" in line.value

    asyncio.run(asyncio.wait_for(visited(), 20))


def test_a_form_that_no_cell_awaits_shows_what_its_buttons_brought() -> None:
    async def visited() -> None:
        form = Counting()
        await clicked(form)
        assert shown_by_now(form, [form, None, 3]) is form and "answer 1" in form.static()

    asyncio.run(asyncio.wait_for(visited(), 20))


@pytest.mark.parametrize("make", [nk.form.step, nk.form.attach, nk.form.check])
def test_what_was_asked_nothing_is_a_line_on_the_page_and_left_out_of_a_report(make: type[Form]) -> None:
    form = make(Case())
    form.widget()
    nothing = asyncio.run(form.run(False) if make is nk.form.check else form.run())
    assert nothing.summary == form.IDLE and 'class="nk-idle"' in nothing.static()
    assert form.IDLE in nothing.widget().value


def test_a_drawing_that_the_form_shows_is_a_line_below_it() -> None:
    """Else JupyterLab draws the same figure twice, one below the other."""
    curve = Drawn("a curve", go.Figure(), Markup("its words"))
    assert isinstance(curve.widget(), W.VBox)
    form = Counting()
    form.widget()
    form.finished(curve)
    assert curve.widget() is curve.short_widget is not None
