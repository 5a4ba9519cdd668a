"""Press Run in ``02_all_reduce`` as a front end does, for machines with GPUs and without a browser.

    python tests/record/press.py OUT [-p NAME=VALUE …]

A kernel executes the notebook's cells, and the button is pressed by the message that JupyterLab would send.  Prints
what each cell then says, and how long the test took from the button to the verdict; writes the executed notebook to
OUT/pressed.ipynb.  Exit status 1 where the test did not end well; a cell that raises ends the script with its error.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from ncclkit.report.parameters import check_values, literals, notebook  # noqa: E402

FORM, PRESSED = "\nlive", "run = await live.run()\nrun"
"""The end of the cell that shows the form; and the cell that does what the button has done already."""
WAIT = """import asyncio
while not live.state or live.running:
    await asyncio.sleep(0.2)
run = live._task.result()
assert run.reason == "done" and live.state == "done", live.summary
live"""


def main() -> None:
    """Execute, press, look."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("-p", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    out, path = options.out.absolute(), notebook("02_all_reduce")
    out.mkdir(parents=True, exist_ok=True)
    given = literals({"case_dir": str(out / "case")} | dict(pair.split("=", 1) for pair in options.p), path)
    check_values(path, given)
    cells = parameterize_notebook(load_notebook_node(str(path)), given)
    client = NotebookClient(cells, timeout=400, resources={"metadata": {"path": str(out)}})
    with client.setup_kernel():
        for place, cell in enumerate(cells.cells):
            waits = cell.source.strip() == PRESSED
            cell.source = WAIT if waits else cell.source
            begun = time.monotonic()
            client.execute_cell(cell, place)
            if cell.source.endswith(FORM) and not waits:
                press(client, "Run")
            if cell.cell_type == "code" and cell.outputs:
                seconds = f"[{time.monotonic() - begun:.1f} s from the button] " if waits else ""
                print(seconds + printed(cell)[:400].replace("\n", " / "), flush=True)
    nbformat.write(cells, out / "pressed.ipynb")


def press(client: NotebookClient, label: str) -> None:
    """Send what a front end sends when this button is clicked; it must be there once, and not be locked."""
    buttons = {
        comm: state
        for comm, state in client.widget_state.items()
        if state.get("_model_name") == "ButtonModel" and state.get("description") == label
    }
    assert client.kc is not None
    ((comm, state),) = buttons.items()
    assert not state.get("disabled"), state
    content = {"comm_id": comm, "data": {"method": "custom", "content": {"event": "click"}}}
    client.kc.shell_channel.send(client.kc.session.msg("comm_msg", content))


def printed(cell: Any) -> str:
    """The text of a cell's last output."""
    last = cell.outputs[-1]
    return str(last.get("text") or last["data"].get("text/plain", ""))


if __name__ == "__main__":
    main()
