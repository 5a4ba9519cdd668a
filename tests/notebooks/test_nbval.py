"""Every notebook by nbval: committed outputs of the marked cells still come out, and those cells did run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest

from tests.notebooks.conventions import CHECKED, code_cells, tags
from tests.reports import DATA, ENV, NOTEBOOKS

DEADLINE = 240


def nbval(notebook: Path, folder: Path) -> dict[str, str]:
    """``Cell 0`` … → ``passed``, ``failure``, ``error`` or ``skipped``; prints what nbval said."""
    shutil.copy(notebook, folder / notebook.name)
    command = [
        sys.executable,
        "-m",
        "pytest",
        notebook.name,
        "--nbval-lax",
        "--nbval-current-env",
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
        "-p",
        "no:cacheprovider",
        f"--nbval-cell-timeout={DEADLINE}",
        "--junitxml=result.xml",
        "-q",
    ]
    run = subprocess.run(command, cwd=folder, env=ENV, capture_output=True, text=True, timeout=DEADLINE)
    assert (folder / "result.xml").exists(), run.stdout + run.stderr
    print(run.stdout)
    cells = ElementTree.parse(folder / "result.xml").getroot().iter("testcase")
    return {cell.attrib["name"].rpartition("::")[2]: _outcome(cell) for cell in cells}


def _outcome(cell: ElementTree.Element) -> str:
    return next((tag for tag in ("failure", "error", "skipped") if cell.find(tag) is not None), "passed")


def checked(notebook: Path) -> list[str]:
    """Names that nbval gives to the cells marked for comparison."""
    nb = nbformat.read(notebook, as_version=4)
    return [f"Cell {place}" for place, (_, cell) in enumerate(code_cells(nb)) if CHECKED in tags(cell)]


@pytest.mark.timeout(DEADLINE + 30)
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if checked(path)], ids=lambda path: path.stem)
def test_marked_cells_give_what_is_committed(path: Path, tmp_path: Path) -> None:
    outcome = nbval(path, tmp_path)
    assert set(outcome.values()) == {"passed"}
    assert len(outcome) == len(code_cells(nbformat.read(path, as_version=4)))
    assert set(checked(path)) <= set(outcome)


def test_the_guided_notebook_has_something_to_compare() -> None:
    assert checked(next(path for path in NOTEBOOKS if path.stem == "guided"))


@pytest.mark.parametrize("stored, expected", [("6", "passed"), ("7", "failure"), (None, "failure")])
def test_a_wrong_or_missing_output_is_noticed(stored: str | None, expected: str, tmp_path: Path) -> None:
    nb = nbformat.read(DATA / "good.ipynb", as_version=4)
    cell = next(cell for _, cell in code_cells(nb) if CHECKED in tags(cell))
    cell.outputs = [output for output in cell.outputs if output.output_type != "execute_result"]
    if stored:
        cell.outputs.append(nbformat.v4.new_output("execute_result", {"text/plain": stored}, execution_count=1))
    nbformat.write(nb, tmp_path / "changed.ipynb")
    (tmp_path / "run").mkdir()
    outcome = nbval(tmp_path / "changed.ipynb", tmp_path / "run")
    name = checked(DATA / "good.ipynb")[0]
    assert outcome[name] == expected
    assert {result for other, result in outcome.items() if other != name} == {"passed"}
