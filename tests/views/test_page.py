"""Views below a form: drawn again when it has run, or grey with one line; each names the run that it shows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import ipywidgets as W
import pytest

import ncclkit as nk
from ncclkit import evidence
from ncclkit.core.case import Case
from ncclkit.core.model import Event
from ncclkit.core.runs import Plan, Run
from ncclkit.views._base import WIDGET, View
from ncclkit.views._form import Form
from ncclkit.views._html import Markup
from ncclkit.views._page import on_page
from ncclkit.views.report import shown_by_now
from tests.views.records import CURVE, measurement

PLAN = Plan("all_reduce", ("collective",), 4, "gloo", "python", 60.0)


def add_run(case: Case, busbw: float = 1.0) -> Run:
    """A run of the live test that measured so much, as its folder and its case keep it."""
    folder = case.new_run("all_reduce")
    (folder / "plan.json").write_text(json.dumps(PLAN_FIELDS))
    (folder / "wire.jsonl").write_text("")
    measured = tuple(measurement(row.bytes, busbw=busbw, run=folder.name) for row in CURVE)
    end = Event("run.end", "the end", str(folder / "wire.jsonl"), 1)
    case.add([*measured, end]).save()
    return Run(PLAN, folder, "done", 1.0, measured)


PLAN_FIELDS = {"name": "all_reduce", "argv": ["collective"], "ranks": 4, "backend": "gloo", "python": "python"}
PLAN_FIELDS |= {"deadline": 60.0, "env": {}}


class Measuring(Form):
    """A form that brings one run of the case after another; it fails where it is told to."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.fails = False
        self.log = ""
        super().__init__("Measures", [], W.Button(description="Measure"))

    async def prepare(self) -> Any:
        if self.fails:
            self._case.new_run("all_reduce")
            raise ValueError("no more")
        run = add_run(self._case, busbw=1.0 + len(self._case.runs()))
        (run.folder / "rank0.log").write_text(self.log + "\n")
        self._case.add(evidence.read([run.folder / "rank0.log"]).events)
        return run

    def finished(self, outcome: Run) -> None:
        """As the live test does: what came out is a run and no view."""
        self._answer = View(outcome.summary, Markup(""))


def text_of(widget: W.Widget) -> str:
    """All that a widget shows now, in its order."""
    if isinstance(widget, (W.VBox, W.Box)):
        return " ".join(map(text_of, widget.children))
    if isinstance(widget, W.Output):
        return str(widget.outputs)
    if isinstance(widget, W.Dropdown):
        return str(widget.label)
    return str(getattr(widget, "value", ""))


def is_grey(view: View) -> bool:
    return any("nk-old" in child._dom_classes for child in view.place.widget(None).children)


def shown(view: View) -> W.Widget:
    """The widget of a view that was displayed by its cell."""
    assert WIDGET in view._repr_mimebundle_()
    return view.place.widget(None)


def test_a_view_below_a_form_is_drawn_again_and_one_that_cannot_be_is_grey(tmp_path: Path) -> None:
    async def visited() -> None:
        case = Case.open(tmp_path / "case")
        form = on_page(Measuring)(case)
        first = await form.run()
        curve, whole, events = nk.show.curve(first), nk.show.case(case), nk.show.events(case)
        verdict = nk.diagnose(case)
        banner, cards = nk.show.banner(case, verdict), nk.show.findings(verdict, headline=False)
        every = (curve, whole, events, banner, cards)
        for view in every:
            shown(view)
        assert "Run 1, all_reduce" in text_of(shown(curve)) and "2-all_reduce" not in text_of(shown(whole))

        second = await form.run()
        assert shown_by_now(curve, [curve]).figure.data[0].y[0] == second.measurements[0].busbw
        assert "run 2, all_reduce" in text_of(shown(curve)).lower() and "2-all_reduce" in text_of(shown(whole))
        assert [is_grey(view) for view in every] == [False, False, True, False, False]
        assert "Older than run 2: run this cell again" in text_of(shown(events))
        assert "nk-old" in shown_by_now(events, [events]).static(), "a report shows what the page shows"

    asyncio.run(asyncio.wait_for(visited(), 60))


def test_a_run_that_failed_leaves_nothing_below_in_colour(tmp_path: Path) -> None:
    async def visited() -> None:
        case = Case.open(tmp_path / "case")
        form = on_page(Measuring)(case)
        views = [nk.show.curve(await form.run()), nk.show.pairs(case), nk.show.measurements(form.handed_out[-1])]
        for view in views:
            shown(view)
        form.fails = True
        with pytest.raises(ValueError, match="no more"):
            await form.run()
        assert all(map(is_grey, views)) and "Older than run 2, which brought nothing" in text_of(shown(views[0]))
        form.fails = False
        await form.run()
        assert not any(map(is_grey, views)) and "Older" not in text_of(shown(views[0]))

    asyncio.run(asyncio.wait_for(visited(), 60))


def test_what_another_case_holds_and_what_stands_below_no_form_stay_as_they_are(tmp_path: Path) -> None:
    async def visited() -> None:
        plain = nk.show.case(Case.open(tmp_path / "plain"))
        assert WIDGET not in plain._repr_mimebundle_(), "where nothing can change there is nothing to move"
        case, other = Case.open(tmp_path / "case"), Case.open(tmp_path / "other")
        form, another = on_page(Measuring)(case), on_page(Measuring)(other)
        curve, elsewhere = nk.show.curve(await form.run()), nk.show.events(other)
        shown(curve), shown(elsewhere)
        await form.run()
        assert not is_grey(elsewhere)
        before = text_of(shown(curve))
        await another.run()
        assert is_grey(elsewhere) and text_of(shown(curve)) == before

    asyncio.run(asyncio.wait_for(visited(), 60))


def test_the_check_below_follows_the_verdict_that_a_new_run_brings(tmp_path: Path) -> None:
    async def visited() -> None:
        case = Case.open(tmp_path / "case")
        form = on_page(Measuring)(case)
        await form.run()
        check = nk.form.check(case)
        assert check.start.disabled and "nothing was found" in check.notice.value
        form.log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"
        await form.run()
        assert len(check.suspect.options) > 1, "the suspects of the verdict by now"

    asyncio.run(asyncio.wait_for(visited(), 60))


def test_a_view_names_its_run_and_lets_a_reader_choose_an_earlier_one(tmp_path: Path) -> None:
    case = Case.open(tmp_path / "case")
    alone = nk.show.measurements(add_run(case, busbw=3.0))
    assert "Run 1, all_reduce, " in alone.static() and WIDGET not in alone._repr_mimebundle_()
    nk.show.case(case)
    view = nk.show.measurements(add_run(case, busbw=7.0))
    assert "Run 2, all_reduce, " in view.static() and "Run 1" not in view.static(), "a report: the newest, named"
    picker = shown(view).children[1]
    assert picker.description == "Shown run"
    assert [words.rsplit(",", 1)[0] for words, _ in picker.options] == ["run 2, all_reduce", "run 1, all_reduce"]
    assert "7.0" in text_of(shown(view)) and "3.0" not in text_of(shown(view))
    picker.value = picker.options[1][1]
    assert "3.0" in text_of(shown(view)) and "7.0" not in text_of(shown(view))
    assert "Run 1, all_reduce, " in shown_by_now(view, [view]).static(), "a report of the open page shows that one"
    picker.value = picker.options[0][1]
    assert "7.0" in text_of(shown(view))


def test_the_name_of_a_run_cannot_bring_markup_onto_the_page(tmp_path: Path) -> None:
    case = Case.open(tmp_path / "case")
    run = add_run(case)
    run.folder.rename(run.folder.with_name("1-<b>bold\x1b"))
    folder = run.folder.with_name("1-<b>bold\x1b")
    case.measurements = [measurement(row.bytes, run=folder.name) for row in CURVE]
    nk.show.case(case)
    view = nk.show.measurements(Run(PLAN, folder, "done", 1.0, tuple(case.measurements)))
    assert "Run 1, &lt;b&gt;bold?" in view.static() and "<b>bold" not in view.static()
