"""The guess: a choice, what is said of each, and the same on paper."""

from __future__ import annotations

import pytest

import ncclkit as nk
from ncclkit.core.model import NcclkitError
from ncclkit.views._base import WIDGET
from tests.views.records import HOSTILE
from tests.views.test_faces import Page

CHOICES = {"rank 0, it prints the error": f"a victim {HOSTILE}", f"rank 5 {HOSTILE}": "silent when all others waited"}
RIGHT = f"rank 5 {HOSTILE}"


@pytest.mark.parametrize(("picked", "mark"), [("rank 0, it prints the error", "✕ not this"), (RIGHT, "✓ right")])
def test_a_pick_is_answered_and_another_one_too(picked: str, mark: str) -> None:
    asked = nk.guess("Who is at fault?", CHOICES, RIGHT)
    assert asked.pick.value is None and asked.told.value == ""
    for choice in (*CHOICES, picked):
        asked.pick.value = choice
    told = Page(asked.told.value)
    assert " ".join(told.words.split()).startswith(mark) and CHOICES[picked].split("\x1b")[0] in told.words
    assert not {"script", "img"} & set(told.tags)


def test_on_paper_the_answers_are_folded() -> None:
    asked = nk.guess("Who is at fault?", CHOICES, RIGHT)
    paper, _, folded = asked.static().partition("<details")
    assert asked.summary == "Who is at fault?" and WIDGET in asked._repr_mimebundle_()
    assert "rank 0, it prints the error" in paper and "victim" not in paper
    assert "a victim" in folded and folded.count("right</span>") == 1


@pytest.mark.parametrize(("choices", "right"), [({}, ""), ({"one": "x"}, "one"), ({"one": "x", "two": "y"}, "three")])
def test_a_question_without_a_choice_is_refused(choices: dict[str, str], right: str) -> None:
    with pytest.raises(NcclkitError, match="needs two choices or more"):
        nk.guess("Who?", choices, right)
