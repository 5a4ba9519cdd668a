"""The lines that the people of the five stories had: the settled cause among three, first after two or three looks."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import nbformat
import pytest

from ncclkit.causes.differential import Differential
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.evidence.logs import read_logs
from ncclkit.experiments import questions
from tests.packaging.project import ROOT

CASES = ROOT / "notebooks" / "cases"
MOST = 3
"""Questions until the settled cause stands first; "cannot tell" counts as one."""


@dataclass(frozen=True)
class Told:
    """What the article of a story tells."""

    settled: frozenset[str]
    """What it was, or might have been by the thread."""
    answers: Mapping[str, str]
    """Look → yes or no; of all others it says nothing."""


STORIES = {
    # the dataset was as large as the memory, with swap on network storage; nothing of rank 0 was logged
    "1_recbole": Told(frozenset({"host_oom", "gpu_oom"}), {"host_oom": "yes"}),
    # fresh starts and early checkpoints worked
    "2_lightning": Told(frozenset({"slow_rank"}), {"slow_rank": "yes"}),
    # it ran once the interface was named
    "3_llama_recipes": Told(frozenset({"wrong_interface"}), {"wrong_interface": "yes"}),
    # half the workers ran; memory may have run out, too
    "4_wenet": Told(frozenset({"cpu_contention", "host_oom"}), {"cpu_contention": "yes"}),
    # the device was set before init, and set-up, pairing and teardown made equal
    "5_all_to_all": Told(
        frozenset({"fork_or_init_order", "duplicate_gpu", "send_recv_mismatch", "fd_limit"}),
        {"fork_or_init_order": "yes", "duplicate_gpu": "yes", "send_recv_mismatch": "yes"},
    ),
}
each = pytest.mark.parametrize("story", STORIES)


@cache
def sources(story: str) -> tuple[str, ...]:
    book = nbformat.read(CASES / f"{story}.ipynb", as_version=4)
    return tuple(cell.source for cell in book.cells)


def lines(story: str) -> str:
    """The lines that the notebook of a story reads."""
    (cell,) = [source for source in sources(story) if source.startswith("saw = nk.read_logs(")]
    read = ast.parse(cell).body[0]
    assert isinstance(read, ast.Assign) and isinstance(read.value, ast.Call)
    return str(ast.literal_eval(read.value.args[0]))


def judged(story: str) -> tuple[Case, Diagnosis, Differential]:
    case = read_logs(lines(story))
    diagnosis = diagnose(case)
    assert diagnosis.differential is not None
    return case, diagnosis, diagnosis.differential


@each
def test_the_settled_cause_is_among_the_first_three_and_none_is_sure(story: str) -> None:
    _, diagnosis, suspects = judged(story)
    first = [one.cause for one in suspects.suspects[:3]]
    assert STORIES[story].settled & set(first), first
    named = {finding.cause: finding for finding in diagnosis.findings}
    assert {finding.strength for finding in named.values()} == {"possible"}
    shown = [named[cause] for cause in first if cause in STORIES[story].settled]
    assert all(finding.advice[0].do.startswith("Look first: ") for finding in shown)


@each
def test_questions_answered_as_the_article_tells_bring_it_first(story: str) -> None:
    case, _, suspects = judged(story)
    told, asked = STORIES[story], 0
    answered_yes = False
    while not answered_yes and suspects.question is not None:
        look = suspects.question
        answer = told.answers.get(look.cause, "unknown")
        questions.add_answer(case, *questions.parse_answers([f"{look.cause}={answer}"])[0])
        asked, answered_yes = asked + 1, answer == "yes"
        suspects = diagnose(case).differential or suspects
    assert answered_yes and asked <= MOST
    assert suspects.suspects[0].cause in told.settled


@each
def test_the_answers_that_the_notebook_gives_lead_there_and_stand_below_the_guess(
    story: str,
) -> None:
    whole = "\n".join(sources(story))
    given = r"`(\w+:(?:yes|no|unknown)(?:, \w+:(?:yes|no|unknown))*)` in the parameter"
    (told,) = re.findall(given, " ".join(whole.split()))
    assert whole.index("nk.show.guess(") < whole.index(
        told.split(",")[0] + ("," if "," in told else "`")
    )
    case, _, _ = judged(story)
    for look, answer in questions.parse_answers([told]):
        questions.add_answer(case, look, answer)
    suspects = diagnose(case).differential
    assert suspects is not None and suspects.suspects[0].cause in STORIES[story].settled


def test_of_a_resume_the_saved_loader_is_advised_before_more_time() -> None:
    _, diagnosis, _ = judged("2_lightning")
    done = [advice.do for advice in diagnosis.findings[0].advice]
    assert diagnosis.findings[0].cause == "slow_rank" and done[0].startswith("Look first: ")
    assert done[1].startswith("Do not skip batches when resuming")


def test_a_single_number_does_not_wait_for_a_slow_path() -> None:
    """With a bucket in its place sockets are a suspect as before."""
    share = {}
    for element in ("NumelIn=1, NumelOut=1", "NumelIn=26214400, NumelOut=26214400"):
        text = lines("4_wenet").replace("NumelIn=1, NumelOut=1", element)
        suspects = diagnose(read_logs(text)).differential
        assert suspects is not None
        share[element] = next(one.share for one in suspects.suspects if one.cause == "ib_not_used")
    one, bucket = share.values()
    assert bucket > 3 * one
