"""What all five stories promise: the question comes before its answer, in the notebook and in the report."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup

from ncclkit.causes import catalogue
from ncclkit.lab.course.questions import STORIES
from ncclkit.report import report_file
from tests.notebooks.conventions import code_cells
from tests.record import stories
from tests.reports import NOTEBOOKS, ROOT, made

CASES = [path for path in NOTEBOOKS if path.parent.name == "cases"]
each = pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)


def source(path: Path) -> str:
    return "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)


OF_THE_LINES = r"nk\.diagnose\(saw\)|await asked\.run"
"""Code of the cells that show what the posted lines say: the findings, the form that asks, and what it shows."""
BELOW = {
    "recbole": "puts it into the store under the key",
    "lightning": "What a checkpoint holds, and what it does not",
    "llama_recipes": "How ranks find each other, in three steps",
    "wenet": "twice the ranks start twice the workers",
    "all_to_all": "communicator of its own for each pair",
}
"""Of each story, words of the mechanism that its question is about."""


@each
def test_the_mechanism_is_explained_below_the_question(path: Path) -> None:
    name, whole = path.stem.partition("_")[2], " ".join(source(path).split())
    assert whole.index(BELOW[name]) > whole.index("nk.show.guess(") and whole.count(BELOW[name]) == 1


@each
def test_the_guess_stands_between_the_posted_lines_and_the_suspects_of_the_form(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    code = [cell.source for _, cell in code_cells(book)]
    asks = "asked = nk.form.story_ask(saw, nk.diagnose(saw), language)"
    calls = ("answers: str = ", "saw = nk.read_logs(", "nk.show.guess(", asks)
    places = [next(number for number, cell in enumerate(code) if call in cell) for call in calls]
    assert places == sorted(places) and code[places[3] + 1] == "await asked.run(answers)"


@each
def test_guess_proof_and_quiz_stand_in_this_order_and_hold_no_answer(path: Path) -> None:
    name, whole = path.stem.partition("_")[2], source(path)
    places = [whole.index(f'nk.show.{call}(case, "{name}", language)') for call in ("guess", "proof", "quiz")]
    assert places == sorted(places)
    cells = [cell.source for _, cell in code_cells(nbformat.read(path, as_version=4))]
    code = "\n".join(cell for cell in cells if not cell.startswith("saw = "))  # posted lines name ranks
    assert not any(choice in code for choice in STORIES[name].guess.choices)
    assert STORIES[name].cause not in whole[: places[0]]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_notebook_folds_text_by_hand(path: Path) -> None:
    """A blank line ends what HTML in Markdown folds, and the answer stands open; views fold."""
    assert "<details" not in source(path)


def test_the_start_page_tells_no_end_of_a_story() -> None:
    page = source(ROOT / "notebooks" / "00_start_here.ipynb")
    assert all(story.guess.right not in page and story.cause not in page for story in STORIES.values())
    assert not any(word in page for word in ("data loaders", "such interface", "not the one at fault"))


@pytest.mark.parametrize(("gpus", "hosts"), [(0, None), (1, "4"), (2, "2"), (4, None)])
def test_four_ranks_need_simulated_hosts_where_gpus_are_fewer(gpus: int, hosts: str | None) -> None:
    given = {name: stories.parameters(path, gpus).get("simulate_hosts") for name, path in stories.STORIES.items()}
    four = {"2_lightning", "4_wenet", "5_all_to_all"}
    assert given == {
        name: hosts if name in four else "2" if name == "1_recbole" and gpus == 1 else None for name in given
    }
    assert sorted(stories.LONGEST_FIRST) == sorted(given) == sorted(path.stem for path in CASES)


def test_a_story_that_is_too_slow_is_interrupted_and_its_time_counted() -> None:
    code = "import signal, sys, time\nsignal.signal(2, lambda *_: sys.exit('stopped'))\nprint('on', flush=True)\n"
    slow = stories._timed([sys.executable, "-c", code + "while True: time.sleep(0.1)"], 3.0)
    assert slow["status"] != 0 and slow["said"][-1] in ("stopped", "on") and 3 <= slow["seconds"] < 40
    busy = stories._timed([sys.executable, "-c", "while __import__('time').process_time() < 0.5: pass"], 60.0)
    assert busy["status"] == 0 and 0.4 < busy["cpu_seconds"] < 30


def test_each_story_was_whole_in_less_than_two_minutes_on_two_cores() -> None:
    measured = json.loads((ROOT / "tests" / "bench" / "results" / "stories-gloo.json").read_text(encoding="utf-8"))
    rows = {row["story"]: row for row in measured["stories"]}
    assert sorted(rows) == sorted(stories.STORIES) and (measured["cores"], measured["side_by_side"]) == (2, 1)
    assert all(row["status"] == 0 and row["seconds"] < 120 for row in rows.values())
    causes = {row["story"].partition("_")[2]: row["verdict"]["cause"] for row in rows.values()}
    assert causes == {name: story.cause for name, story in STORIES.items()}


def test_each_story_was_whole_under_nbval() -> None:
    measured = json.loads((ROOT / "tests" / "bench" / "results" / "stories-nbval.json").read_text(encoding="utf-8"))
    rows = {row["story"]: row for row in measured["stories"]}
    assert sorted(rows) == sorted(stories.STORIES) and measured["by"] == "nbval"
    assert all(row["status"] == 0 and re.search(r"^\d+ passed in", row["said"][-1]) for row in rows.values())


def test_under_nbval_a_story_is_a_copy_in_a_folder_of_its_own(tmp_path: Path) -> None:
    command = stories.validated(stories.STORIES["4_wenet"], tmp_path / "4_wenet")
    assert (tmp_path / "4_wenet" / "4_wenet.ipynb").exists() and command[-1].startswith(str(tmp_path))
    assert stories.reported(Path("a.ipynb"), tmp_path, {"ranks": "2"})[-1] == "-p=ranks=2"


def test_stories_side_by_side_have_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {4, 5, 6, 7, 9})
    assert stories.shares(2, 2) == [[4, 5], [6, 7]] and stories.shares(0, 3) == [[], [], []]
    with pytest.raises(SystemExit, match="3 stories with 2 cores each need more than the 5"):
        stories.shares(2, 3)


def test_what_each_cell_said_is_kept() -> None:
    ran, text = nbformat.v4.new_code_cell("form = 1\nform"), nbformat.v4.new_markdown_cell("# Words")
    ran.metadata["papermill"] = {"duration": 1.26}
    ran.outputs = [nbformat.v4.new_output("execute_result", data={"text/plain": "It failed."})]
    book = nbformat.v4.new_notebook(cells=[text, ran, nbformat.v4.new_code_cell("never run")])
    assert stories.said_by_cells(book) == [{"cell": "form", "seconds": 1.3, "said": "It failed."}]


@pytest.mark.timeout(300)
@each
def test_the_report_folds_every_answer_and_shows_no_verdict_before_the_question(path: Path) -> None:
    folder, run = made(path)
    assert run.returncode == 0, run.stderr
    story = STORIES[path.stem.partition("_")[2]]
    main = BeautifulSoup(report_file(folder, path).read_text(encoding="utf-8"), "html.parser").main
    assert main is not None
    folds = [one for one in main.select("details") if one.summary and one.summary.text in ("Answer", "Hints")]
    assert len(folds) == 1 + len(story.quiz) and not any(one.has_attr("open") for one in folds)
    assert all(said in folds[number].text for number, q in enumerate(story.quiz, 1) for said in q.choices.values())
    for one in main.select("details"):
        one.decompose()  # what is folded is not read by who does not ask
    of_the_lines = [step for step in main.select("section.step") if re.search(OF_THE_LINES, step.get_text())]
    # two stories show the findings of the lines, whose strength they are about
    assert len(of_the_lines) == 2 + (path.stem in ("4_wenet", "5_all_to_all"))
    suspects = of_the_lines[-1].get_text(" ")
    assert sum(cause in suspects for cause in catalogue()) >= 3 and "The question" in suspects
    for step in of_the_lines:
        step.decompose()  # the lines that were posted have suspects, which is no verdict on the job
    read = " ".join(main.get_text(" ").split())
    asked = read.index(story.guess.ask)
    assert story.cause not in read[:asked] and story.guess.right not in read[:asked]
    assert not any(said in read for question in story.quiz for said in question.choices.values())
    assert all(read.index(said) > asked for said in story.guess.choices.values())
