"""The questions of the stories: a guess that tells no answer, the same beside the proof, and a quiz that does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import ncclkit as nk
from ncclkit.causes import catalogue
from ncclkit.core.experiment_records import ExperimentRecord
from ncclkit.core.model import NcclkitError
from ncclkit.evidence.samples import open_sample
from ncclkit.lab.course import questions
from ncclkit.lab.course.questions import STORIES, Answers
from ncclkit.lab.course.translation import texts_in
from ncclkit.lab.views import questions as shown_questions
from ncclkit.report import page
from ncclkit.views._base import WIDGET
from tests.views.records import HOSTILE
from tests.views.test_faces import Page

STORY = STORIES["wenet"]
RIGHT = STORY.guess.right
WRONG = next(choice for choice in STORY.guess.choices if choice != RIGHT)


@pytest.fixture
def case(tmp_path: Path) -> nk.Case:
    return nk.Case.open(tmp_path / "case")


@pytest.mark.parametrize("name", STORIES)
def test_every_question_has_choices_and_a_sentence_for_each(name: str) -> None:
    story = STORIES[name]
    assert story.cause in catalogue() and len(story.quiz) == 3 and len(story.hints) >= 2
    for question in (story.guess, *story.quiz):
        assert question.right in question.choices and len(question.choices) >= 3
        assert all(said.endswith((".", ".”")) and len(said) > 25 for said in question.choices.values())


def test_the_guess_tells_nobody_which_one_is_right(case: nk.Case) -> None:
    asked = nk.show.guess(case, "wenet")
    assert asked.summary == STORY.guess.ask and WIDGET in asked._repr_mimebundle_()
    assert all(choice in asked.html for choice in STORY.guess.choices)
    asked.pick.value = RIGHT
    for said in STORY.guess.choices.values():
        assert said not in asked.html and said not in asked.notice.value
    assert not re.search(r"right|✓", asked.notice.value + asked.static().replace(RIGHT, ""))


def test_choices_have_an_order_of_their_own_in_each_folder(tmp_path: Path) -> None:
    orders = {tuple(nk.show.guess(nk.Case.open(tmp_path / str(n)), "wenet").pick.options) for n in range(12)}
    assert len(orders) > 3 and len({order.index((RIGHT, RIGHT)) for order in orders}) > 1
    again = [nk.show.guess(nk.Case.open(tmp_path / "0"), "wenet").pick.options for _ in range(2)]
    assert again[0] == again[1]


def test_the_first_guess_is_kept_and_met_beside_the_proof(case: nk.Case) -> None:
    asked = nk.show.guess(case, "wenet")
    asked.pick.value = WRONG
    asked.pick.value = RIGHT
    again = nk.show.guess(nk.Case.open(case.path or ""), "wenet")
    assert again.pick.value == RIGHT and WRONG in Page(again.static()).words.partition("Your first guess:")[2]
    proof = nk.show.proof(case, "wenet")
    assert proof.summary == f"You guessed “{WRONG}”; what holds: {RIGHT}"
    assert proof.html.count("your first guess") == 1 and proof.html.count("✓") == 1
    assert all(said in Page(proof.static()).words for said in STORY.guess.choices.values())


def test_the_proof_is_the_finding_of_the_case_whatever_it_is() -> None:
    starved, other = open_sample("loader_starved"), open_sample("rank_raises")
    assert "The 33 processes of rank" in nk.show.proof(starved, "wenet").html
    assert "yours has another" in nk.show.proof(other, "wenet").html
    assert nk.show.proof(starved, "wenet").summary == f"What holds: {RIGHT}"


def test_a_quiz_answers_every_choice_and_counts_the_first(case: nk.Case) -> None:
    asked = nk.show.quiz(case, "wenet")
    for number, question in enumerate(STORY.quiz, 1):
        for choice in [one for one in question.choices if number == 1 or one == question.right]:
            asked.picks[number].value = choice
            assert question.choices[choice] in Page(asked.explanations[number].value).words
    right = Answers(case, "wenet").of(1).first == STORY.quiz[0].right
    assert f"{2 + right} of 3 questions were right at the first try." in asked.fared.value


def test_on_paper_the_answers_of_the_quiz_are_folded(case: nk.Case) -> None:
    paper = nk.show.quiz(case, "wenet").static()
    unfolded = re.sub(r"<details.*?</details>", "", paper, flags=re.DOTALL)
    for question in STORY.quiz:
        assert question.ask in Page(unfolded).words
        assert not any(said in Page(unfolded).words for said in question.choices.values())
        assert all(said in Page(paper).words for said in question.choices.values())
    assert "open" not in Page(paper).attributes and "How you fared" not in paper


def test_times_and_hints_are_kept_only_where_that_is_wanted(case: nk.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(questions.time, "time", lambda: clock[0])
    asked = nk.show.guess(case, "wenet")
    asked.more.click()
    assert STORY.hints[0] in asked.hints.value and not (case.path / questions.FILE).exists()  # type: ignore[operator]
    asked.measure.value = True
    asked.more.click()
    asked.pick.value = WRONG
    clock[0] += 75
    asked.pick.value = RIGHT
    nk.show.proof(case, "wenet")
    said = " ".join(Answers(case, "wenet").fared())
    assert said == "The first guess was wrong. Time to the right cause: 75 s. Hints used: 2 of 3."
    nk.show.guess(case, "wenet").measure.value = False
    kept = json.loads((case.path / questions.FILE).read_text())["answers"]["wenet/0"]  # type: ignore[operator]
    assert (kept["first"], kept["took"], kept["hints"]) == (WRONG, None, 0)


def test_what_is_chosen_after_the_proof_is_no_guess(case: nk.Case) -> None:
    asked = nk.show.guess(case, "wenet")
    asked.measure.value = True
    nk.show.proof(case, "wenet")
    nk.show.guess(case, "wenet").pick.value = RIGHT
    assert "The right cause was not chosen before the proof." in Answers(case, "wenet").fared()


def test_a_file_of_answers_that_somebody_else_wrote_is_only_text(case: nk.Case) -> None:
    path = (case.path or Path()) / questions.FILE
    path.write_text(json.dumps({"answers": {"wenet/0": {"first": "<script>alert(1)</script>"}}}))
    assert "alert" not in nk.show.proof(case, "wenet").html
    path.write_text('{"answers": 7}')
    with pytest.raises(NcclkitError, match="is not what is kept there"):
        nk.show.guess(case, "wenet")


def test_a_story_that_does_not_exist_is_refused() -> None:
    with pytest.raises(NcclkitError, match="did you mean wenet"):
        nk.show.guess(nk.Case(), "wennet")


SAID_IN_ENGLISH = {"rank", "worker", "launcher", "batch", "answers.json", "case", "all-reduce", "epoch"}
"""What engineers say in English in a Chinese sentence, in the story of these tests."""


def english_words(html: str) -> set[str]:
    """Words that a page shows in small Latin letters, less those."""
    return set(re.findall(r"[A-Za-z][a-z.-]+[a-z]", Page(html).words)) - SAID_IN_ENGLISH


def test_in_chinese_the_guess_the_proof_and_the_quiz_have_no_english_but_the_verdict(case: nk.Case) -> None:
    asked = nk.show.guess(case, "wenet", "zh")
    asked.measure.value = True
    asked.pick.value = WRONG
    asked.more.click()
    proof = nk.show.proof(case, "wenet", "zh")
    quiz = nk.show.quiz(case, "wenet", "zh")
    for pick in quiz.picks.values():
        pick.value = pick.options[0][1]
    shown = [asked.static(), asked.notice.value, asked.hints.value, asked.more.description, asked.measure.description]
    shown += [proof.summary, proof.static(), quiz.summary, quiz.static(), quiz.fared.value]
    shown += [told.value for told in quiz.explanations.values()]
    for html in shown:
        assert re.search("[\u4e00-\u9fff]", html) and english_words(html) == set()
    assert "最初的猜测是错的。3 个问题里，" in quiz.fared.value


def test_both_notebooks_of_a_pair_keep_the_same_answers(case: nk.Case) -> None:
    chinese = nk.show.guess(case, "wenet", "zh")
    chinese.pick.value = RIGHT
    english = nk.show.guess(case, "wenet")
    assert english.pick.value == RIGHT and Answers(case, "wenet").of().first == RIGHT
    assert [choice for _, choice in english.pick.options] == [choice for _, choice in chinese.pick.options]
    assert RIGHT not in chinese.static() and texts_in("zh")[RIGHT] in chinese.static()


def test_a_language_that_the_course_does_not_have_is_refused(case: nk.Case) -> None:
    with pytest.raises(NcclkitError, match="The course is in en and zh, not in 'fr'"):
        nk.show.guess(case, "wenet", "fr")


def told(case: nk.Case, language: str = "en") -> BeautifulSoup:
    """The report of a story: its question, its guess, and below them the proof."""
    cells = [new_markdown_cell("# Why does it crawl?"), new_markdown_cell("## Guess")]
    for view in (nk.show.guess(case, "wenet", language), nk.show.proof(case, "wenet", language)):
        bundle = json.loads(json.dumps(view._repr_mimebundle_()))
        cells.append(new_code_cell("x", outputs=[new_output("display_data", data=bundle)]))
    return BeautifulSoup(page.render(new_notebook(cells=cells)), "html.parser")


@pytest.mark.parametrize(("choice", "badge"), [(RIGHT, "guessed right"), (WRONG, "guessed otherwise")])
def test_the_report_of_a_story_begins_with_guess_and_proof(case: nk.Case, choice: str, badge: str) -> None:
    nk.show.guess(case, "wenet").pick.value = choice
    case.events = list(open_sample("loader_starved").events)
    soup = told(case)
    assert soup.select_one("main h1").text.startswith(f"You guessed “{choice}”")
    assert soup.select_one(".question").text == "Why does it crawl?"
    (banner,) = soup.select(".nk-banner")
    assert badge in banner.text and "cpu_contention" in banner.text and banner.find_next("h2").text == "Guess"
    assert f"{choice} was guessed" in " ".join(banner.select_one(".nk-strip").get_text(" ").split())
    assert STORY.guess.choices[RIGHT] in soup.main.text and not banner.select("details")


def test_a_report_without_a_guess_tells_the_end_of_the_story_to_who_opens_it(case: nk.Case) -> None:
    soup = told(case)
    assert soup.select_one("main h1").text == "Why does it crawl?" and not soup.select(".question")
    (banner,) = soup.select(".nk-banner")
    assert RIGHT in banner.details.text and not banner.details.has_attr("open")
    banner.details.decompose()
    assert "your turn" in banner.text and RIGHT not in banner.text


def test_what_was_tried_stands_in_the_strip_of_a_story(case: nk.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ExperimentRecord("fix", "cpu_contention", "?", {}, None, None, "nothing", {}, f"It helped. {HOSTILE}", 1, Path())
    monkeypatch.setattr(shown_questions, "experiments", lambda case: (record,))
    static = nk.show.proof(case, "wenet").static()
    assert "It helped." in Page(static).words and HOSTILE not in static
    assert "1  tried" in Page(static).words
