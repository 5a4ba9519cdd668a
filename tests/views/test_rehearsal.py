"""06_rehearsal's form and what it shows; no rank is started."""

import asyncio
import shlex

import pytest
from bs4 import BeautifulSoup

import ncclkit as nk
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.rehearsal.verdict import Rehearsal, Stand
from ncclkit.views import rehearsal
from ncclkit.views.rehearsal import RehearsalForm, lanes_of, rehearsal_view

ODD = Stand((0,), "train.py:18", "barrier", "dist.barrier()")
OTHERS = Stand((1, 2, 3), "train.py:13", "all_reduce", "loss.backward()  # <u>")


def test_who_disagrees_is_shown_with_both_lines_and_escaped():
    shown = rehearsal_view(Rehearsal("mismatch", 4, (0,), (OTHERS, ODD), ()))
    html = str(shown.static())
    assert html.index("train.py:18") < html.index("train.py:13")
    assert "dist.barrier()" in html and "<u>" not in html
    assert "would go wrong" in html and "First: let all ranks" in html


def test_ranks_that_agree_have_no_table():
    html = str(rehearsal_view(Rehearsal("agree", 4, (), (), (), figures={"calls": 3})).static())
    assert "all ranks agree" in html and "<table" not in html


LANES = [
    {"rank": 0, "calls": 3, "letters": "oR|", "waits": "  ?", "end": ""},
    {"rank": 1, "calls": 3, "letters": "oRR", "waits": "", "end": ""},
    {"rank": 2, "calls": 2, "letters": "oR", "waits": "", "end": "exited"},
]


def text_of(html):
    return BeautifulSoup(str(html), "html.parser").get_text(" ", strip=True)


def test_each_rank_has_a_line_with_a_mark_for_each_call():
    shown = text_of(lanes_of(LANES))
    assert "0 3 o R [|] waits for others" in shown
    assert "1 3 o R R runs" in shown and "2 2 o R exited" in shown
    assert "R all_reduce" in shown and "[ ] not all ranks have come" in shown
    final = Rehearsal("agree", 3, (), (), (), lanes=tuple(LANES))
    assert "1 3 o R R runs" in text_of(rehearsal_view(final).static())


@pytest.mark.parametrize("damaged", [None, "x", [{"rank": 0}], [{**LANES[0], "letters": 7}]])
def test_lanes_that_cannot_be_read_draw_nothing(damaged):
    assert not lanes_of(damaged)


def test_the_form_draws_the_lanes_while_the_ranks_run(tmp_path):
    form = RehearsalForm(Case.open(tmp_path), "python train.py")
    form.started()
    form.observe({"kind": "lanes", "lanes": LANES})
    form.draw()
    assert "0 3 o R [|] waits for others" in text_of(form.result.value)
    # a second run begins with none
    form.started()
    form.draw()
    assert "waits for others" not in form.result.value


def test_without_a_command_an_example_is_written_and_what_is_there_stays(tmp_path):
    form = nk.form.rehearse(Case.open(tmp_path))
    script = tmp_path / "train.py"
    assert shlex.split(form.command.value)[1] == str(script)
    script.write_text("mended")
    nk.form.rehearse(Case.open(tmp_path))
    assert script.read_text() == "mended"


def test_the_form_rehearses_what_its_fields_say(tmp_path, monkeypatch):
    asked = []

    async def rehearse_script(case, words, options, on_record):
        asked.append((words, options.ranks, options.steps))
        return Rehearsal("agree", options.ranks, (), (), ())

    monkeypatch.setattr(rehearsal, "rehearse_script", rehearse_script)
    form = RehearsalForm(Case.open(tmp_path), "python 'my train.py' --small", 2, 5)
    form.ranks.value = 8
    shown = asyncio.run(form.run())
    assert asked == [(["python", "my train.py", "--small"], 8, 5)]
    assert shown.summary.startswith("Rehearsal of 8 ranks: all ranks agree")


def test_a_command_that_no_shell_reads_starts_nothing(tmp_path):
    form = RehearsalForm(Case.open(tmp_path), "python 'train.py")
    assert form.start.disabled
    with pytest.raises(NcclkitError):
        form.prepare()
