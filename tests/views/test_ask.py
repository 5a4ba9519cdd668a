"""The form that asks: answers before and after clicks, what moved, and text of logs that stays text."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

import ncclkit as nk
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError, fields_of
from ncclkit.evidence.logs import read_logs
from ncclkit.experiments import questions
from ncclkit.live.looking import Sight
from ncclkit.views.ask import AskForm
from ncclkit.views.start import StartForm
from tests.cli.test_ask import HEALTHY, SYMPTOM
from tests.views.records import HOSTILE
from tests.views.test_faces import Page


@pytest.fixture
def case(tmp_path: Path) -> Case:
    log = tmp_path / "train.log"
    log.write_text(SYMPTOM)
    return read_logs(str(log), tmp_path / "case")


def words(form: AskForm) -> str:
    return " ".join(Page(form.static()).words.split())


def asked(case: Case, answers: str = "") -> AskForm:
    form = nk.form.ask(case)
    asyncio.run(form.run(answers))
    return form


async def clicked(form: AskForm, button: object) -> None:
    """What happens after a click, until the form is ready again."""
    form.widget()
    button.click()  # type: ignore[attr-defined]
    while not form.running:
        await asyncio.sleep(0)
    while form.running:
        await asyncio.sleep(0.01)


def test_suspects_and_one_question_stand_in_a_report(case: Case) -> None:
    read = words(asked(case))
    assert read.startswith("This is usually one of these: ") and "settled cases like this" in read
    assert read.count("The question") == 1 and "Asked and answered" not in read


def test_answers_of_a_parameter_move_it_and_the_chain_is_shown(case: Case) -> None:
    read = words(asked(case, "host_oom:yes, p2p_broken:no"))
    assert "After 2 answers: " in read and "Asked and answered" in read
    assert "Out of memory: Killed process" in read and "(told by the user)" in read
    assert " → " in read
    again = words(asked(Case.open(case.path or "")))
    assert again == read, "the case keeps them"


def test_a_click_is_an_answer_and_can_be_taken_back(case: Case) -> None:
    form = nk.form.ask(case)
    first = form.question
    assert first is not None and not form.start.disabled and form.undo.disabled
    asyncio.run(clicked(form, form.no))
    assert fields_of(case.of("told.answer")[-1]) == {"look": first.cause, "answer": "no", "by": "user"}
    assert form.question != first and "After 1 answer: " in words(form) and not form.undo.disabled
    asyncio.run(clicked(form, form.undo))
    assert case.of("told.answer") == [] and form.question == first


def test_it_looks_for_a_person_and_says_what_it_saw(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = asked(case, "slow_rank=no")
    first = form.question
    assert first is not None
    form.look.disabled = False
    sights = [Sight("unknown", f"cannot tell: {HOSTILE}"), Sight("yes", f"on node-1: {HOSTILE}")]
    monkeypatch.setattr(questions, "look_for_me", lambda case, look: sights.pop(0))
    asyncio.run(clicked(form, form.look))
    assert form.question == first and "What was seen cannot tell: <script>" in words(form)
    form.look.disabled = False
    asyncio.run(clicked(form, form.look))
    assert form.question != first and "(checked here)" in words(form)
    assert "<script>" not in form.static()


def test_a_question_without_a_command_is_for_a_person(case: Case) -> None:
    form = nk.form.ask(case)
    while form.question is not None and form.question.now:
        asyncio.run(form.run(f"{form.question.cause}=unknown"))
    assert form.question is not None
    assert form.look.disabled and "only a person knows" in form.look.tooltip


def test_a_wrong_parameter_is_one_sentence_and_changes_nothing(case: Case) -> None:
    with pytest.raises(NcclkitError, match="did you mean host_oom"):
        asked(case, "hst_oom=yes")
    assert case.of("told.answer") == []


def test_a_healthy_job_is_asked_nothing(tmp_path: Path) -> None:
    log = tmp_path / "h.log"
    log.write_text(HEALTHY)
    form = asked(read_logs(str(log)))
    assert words(form).startswith("There is nothing to ask") and "The question" not in words(form)
    assert all(button.disabled for button in (form.start, form.no, form.unsure, form.look))


def test_text_of_logs_stays_text(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(SYMPTOM.replace("[rank1]:", "[rank1]: <script>alert(1)</script><img src=x>"))
    form = asked(read_logs(str(log)))
    assert "<script>alert(1)" in words(form)
    assert "<script>" not in form.static() and "<img" not in form.static()


def test_the_start_form_asks_below_its_answer(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(SYMPTOM)
    (tmp_path / "h.log").write_text(HEALTHY)
    form = StartForm(str(tmp_path / "case"), str(tmp_path / "logs"), str(tmp_path / "train.log"))
    asyncio.run(form.run())
    assert len(form.question.children) == 1
    form.logs.value = str(tmp_path / "h.log")
    asyncio.run(form.run())
    assert form.question.children == ()


def test_in_a_chinese_story_every_label_of_the_form_is_chinese(case: Case) -> None:
    """Causes, questions and what a host says stay English, as they are what one searches for."""
    form = nk.form.story_ask(case, nk.diagnose(case), "zh")
    for button in (form.start, form.no, form.unsure, form.look, form.undo, form.cancel):
        assert re.search("[\u4e00-\u9fff]", button.description)
    before = words(form)
    assert before.startswith("通常是其中之一") and "The question" not in before
    asyncio.run(form.run("host_oom:yes, p2p_broken:no"))
    after = words(form)
    for label in ("After ", "Suspect", "Settled cases", "Asked and answered", "Look now", "What moved"):
        assert label not in after
    assert "得到 2 个回答之后" in after and "host_oom" in after
