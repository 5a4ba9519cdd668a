"""Record the guided report on this machine: its whole case folder, names and addresses replaced.

python tests/record/report.py CASE_FOLDER [ncclkit report options]
"""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import nbformat  # noqa: E402

from ncclkit.core.model import fields_of
from ncclkit import cli
from ncclkit.agent import redact  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.core.storage import write  # noqa: E402
from ncclkit.lab.faults import recording  # noqa: E402
from ncclkit.report import page

TEXT = {".json", ".jsonl", ".log", ".txt", ".ipynb", ""}
"""What is cleaned as text; the page is made anew from the cleaned notebook, since its plotly.js must stay as it is."""


def main(folder: Path, options: list[str]) -> int:
    """Make the report, then clean every file of the case; returns the exit status of ``ncclkit report``."""
    status = cli.main(["report", "--case", str(folder), *options])
    clean = recording.cleaner(folder)
    case = Case.open(folder)
    case.events = [
        replace(e, path=clean(e.path), text=clean(e.text), host=clean(e.host), data=redact.texts(fields_of(e), clean))
        for e in case.events
    ]
    case.save()
    for path in folder.rglob("*"):
        if path.name == "agent.pyz":
            path.unlink()  # the agent itself stands in the repository
        elif path.is_file() and path.suffix in TEXT and not path.name.startswith("fr_rank_"):
            path.write_text(clean(path.read_text()))
    notebook = nbformat.read(folder / "report.ipynb", as_version=4)
    write(folder / "report.html", page.render(notebook, name="guided.ipynb", host=clean(socket.gethostname())))
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2:]))
