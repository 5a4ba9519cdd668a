"""Committed outputs of the marked cells still come out, as the executed notebooks of the reports hold them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from ncclkit.report import report_file
from tests.notebooks.conventions import CHECKED, code_cells, tags
from tests.reports import DATA, ENV, NOTEBOOKS, made

GOOD = DATA / "good.ipynb"
START = next(path for path in NOTEBOOKS if path.stem == "00_start_here")


def checked(notebook: Path) -> dict[str, list[dict[str, Any]]]:
    """The cells marked for comparison, by their ids: what each has for outputs, less what differs from run to run."""
    cells = [cell for _, cell in code_cells(nbformat.read(notebook, as_version=4)) if CHECKED in tags(cell)]
    return {cell.id: [_shown(output) for output in cell.outputs] for cell in cells}


def _shown(output: nbformat.NotebookNode) -> dict[str, Any]:
    """As nbval compares it: the text; how it looks in a browser is left out of what is committed."""
    data = {"text/plain": output.data["text/plain"]} if "data" in output else {}
    return {"type": output.output_type, "text": output.get("text"), **data}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_marked_cells_give_what_is_committed(path: Path) -> None:
    case, run = made(path)
    assert run.returncode == 0, run.stderr
    assert checked(report_file(case, path).with_suffix(".ipynb")) == checked(path)


MARKED = [path for path in NOTEBOOKS if path.stem in ("00_start_here", "5_all_to_all", "guided")]


@pytest.mark.parametrize("path", MARKED, ids=lambda path: path.stem)
def test_there_is_something_to_compare(path: Path) -> None:
    assert all(output["text/plain"] for cell in checked(path).values() for output in cell) and checked(path)


@pytest.mark.parametrize(("stored", "same"), [("6", True), ("7", False), (None, False)])
def test_a_wrong_or_missing_output_is_noticed(stored: str | None, same: bool, tmp_path: Path) -> None:
    nb = nbformat.read(GOOD, as_version=4)
    cell = next(cell for _, cell in code_cells(nb) if CHECKED in tags(cell))
    cell.outputs = [output for output in cell.outputs if output.output_type != "execute_result"]
    if stored:
        cell.outputs.append(nbformat.v4.new_output("execute_result", {"text/plain": stored}, execution_count=1))
    nbformat.write(nb, tmp_path / "changed.ipynb")
    case, run = made(GOOD)
    assert run.returncode == 0, run.stderr
    assert (checked(report_file(case, GOOD).with_suffix(".ipynb")) == checked(tmp_path / "changed.ipynb")) is same


def test_nbval_itself_says_so_too(tmp_path: Path) -> None:
    """Whoever runs it over the notebooks, as others do, finds nothing wrong."""
    options = ["--nbval-lax", "--nbval-current-env", "-c", "/dev/null", "--rootdir", str(START.parent)]
    command = [sys.executable, "-m", "pytest", str(START), *options, "-p", "no:cacheprovider", "-q"]
    run = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0 and f"{len(code_cells(nbformat.read(START, as_version=4)))} passed" in run.stdout
