"""The picture of a step's time, and its form."""

import pytest
from bs4 import BeautifulSoup

import ncclkit as nk
from ncclkit.analysis.steps import SettingEffect
from ncclkit.core.case import Case
from ncclkit.core.model import Event, NcclkitError
from ncclkit.views._base import Drawn
from tests.probe.test_step import rank_event
from tests.views.records import HOSTILE
from tests.views.test_faces import Page


def case_of(*events: Event) -> Case:
    case = Case()
    case.events += events
    return case


def slow_loader(ranks: int = 2, place: str = "train.py:7 read") -> Case:
    steps = [({"data": 0.06, "computation": 0.03, "communication": 0.01}, [])] * 5
    told = {"sites": [["data", place, 0.05, 0.0, ""]], "loaders": [[0, None, 16]]}
    return case_of(*(rank_event(rank, steps, **told) for rank in range(ranks)))


def test_the_picture_stacks_the_parts_of_each_rank_under_its_conclusion() -> None:
    view = nk.show.step(slow_loader())
    assert view.summary.startswith("The ranks wait for the data loader (no workers), most at train.py:7 (read): 60.0 ms")
    assert isinstance(view, Drawn) and view.figure is not None
    bars = {bar.name: list(bar.x) for bar in view.figure.data}
    assert bars["waiting for data"] == pytest.approx([60.0, 60.0])
    assert "checkpoint" not in bars and view.figure.layout.barmode == "stack"
    assert "disk_or_io" in view.static() and "--try workers=2" in view.static()


def test_the_largest_part_is_the_banner_with_time_waiting_and_line() -> None:
    soup = BeautifulSoup(nk.show.step(slow_loader()).static(), "html.parser")
    assert soup.select_one(".nk-banner .nk-say").text.startswith("The ranks wait for the data loader")
    strip = " ".join(soup.select_one(".nk-strip").get_text(" ").split())
    assert strip == "100.0 ms a step 0 % waiting for a rank train.py:7 read most of it"
    assert len(soup.select(".nk-say")) == 1
    # of a step that nothing holds back the banner says that, and names no line
    even = [({"data": 0.0001, "computation": 0.1, "communication": 0.0001}, [])] * 5
    calm = nk.show.step(case_of(*(rank_event(rank, even) for rank in range(2)))).static()
    assert "nothing stands out" in calm and "most of it" not in calm and "Computation takes" in calm


def test_a_thousand_ranks_fit_into_the_picture() -> None:
    view = nk.show.step(slow_loader(200))
    assert isinstance(view, Drawn) and view.figure is not None
    assert len(view.figure.data[0].y) == 24 and view.figure.layout.height < 800


def test_what_was_tried_stands_beside_it_and_names_are_escaped() -> None:
    case = slow_loader(place=HOSTILE)
    row = SettingEffect("workers=4", 0.1, 0.06, 0.4, (0.31, 0.44), True, False)
    data = {name: getattr(row, name) for name in SettingEffect.__slots__}
    case.events.append(Event("step.setting", str(row), "plan.json", 0, data=data))
    view = nk.show.step(case)
    assert "workers=4 makes a step 40 % shorter (at least 31 %)" in view.summary
    assert "31.0 % to 44.0 %" in view.static()
    Page(view.static())
    assert HOSTILE not in view.static()


def test_a_case_without_steps_says_what_to_do() -> None:
    assert "ncclkit step -- python train.py" in nk.show.step(Case()).static()


def test_the_form_refuses_what_no_run_can_be_made_of() -> None:
    form = nk.form.step(Case(), "python 'train.py")
    assert "close its quotes" in next(iter(form.wrong().values()))
    form = nk.form.step(Case(), "python train.py", tries=("workers=4",))
    assert not form.wrong() and form.asks() and form.options.tries == ("workers=4",)
    form.tries.value = "worker=4"
    assert "is not a setting" in form.wrong()[form.tries]
    assert not nk.form.step(Case()).asks()
    with pytest.raises(NcclkitError, match="Steps must lie"):
        nk.form.step(Case(), steps=1)
