"""Write anew the stored outputs of the cells marked for comparison, remove all others, and do so in Chinese pairs.

python tests/notebooks/refresh.py [NOTEBOOK … | --pairs]   --pairs runs none, and only brings Chinese pairs up to date
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.notebooks.conventions import CHECKED, tags  # noqa: E402
from tests.reports import CHINESE, NOTEBOOKS  # noqa: E402


def refresh(path: Path) -> None:
    """Execute the whole notebook; keep only what marked cells show, as plain text."""
    nb = nbformat.read(path, as_version=4)
    NotebookClient(nb, timeout=300, resources={"metadata": {"path": tempfile.mkdtemp()}}).execute()
    for cell in nb.cells:
        if cell.cell_type == "code":
            marked = CHECKED in tags(cell)
            cell.outputs = [_plain(output) for output in cell.outputs] if marked else []
            cell.execution_count = cell.execution_count if marked else None  # nbval wants one beside an output
            cell.metadata.pop("execution", None)
    nb.metadata.pop("widgets", None)
    nb.metadata["language_info"] = {"name": "python"}
    nbformat.write(nb, path)


LANGUAGE = ('language: str = "en"', 'language: str = "zh"')
"""The one parameter whose default differs in a pair, as its original writes it and as its pair does."""


def in_chinese(code: str) -> str:
    """The code of an original as its Chinese pair has it."""
    return code.replace(*LANGUAGE)


def pair(chinese: Path, original: Path) -> None:
    """Give the Chinese notebook the cells of its original, and keep its own prose; a new cell comes in English."""
    nb = nbformat.read(original, as_version=4)
    words = {cell.id: cell.source for cell in nbformat.read(chinese, as_version=4).cells}
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = words.get(cell.id, cell.source)
        else:
            cell.source = in_chinese(cell.source)
    nbformat.write(nb, chinese)


def _plain(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    return nbformat.v4.new_output(
        "execute_result", {"text/plain": output["data"]["text/plain"]}, execution_count=output["execution_count"]
    )


if __name__ == "__main__":
    named = [Path(name) for name in sys.argv[1:]]
    for notebook in () if sys.argv[1:] == ["--pairs"] else named or NOTEBOOKS:
        refresh(notebook)
    for chinese, original in CHINESE.items():
        pair(chinese, original)
