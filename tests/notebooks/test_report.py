"""report.make: what it refuses, and that whatever stops a notebook leaves a report and no process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from ncclkit import report
from ncclkit.core.model import NcclkitError
from tests.processes import leftovers
from tests.reports import DATA, ENV

GOOD = DATA / "good.ipynb"
COMMAND = [sys.executable, "-m", "ncclkit", "report"]
OLD = "what was there before"


@pytest.fixture
def tag(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark that the kernel inherits; no process may carry it afterwards."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("NCCLKIT_RUN", mark)
    yield mark
    assert leftovers(mark) == []


@pytest.fixture
def broken_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's own kernelspec `python3`, which belongs to an environment that is gone."""
    spec = tmp_path / "share" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text('{"argv": ["/bin/false", "{connection_file}"], "display_name": "broken", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share"))


@pytest.mark.usefixtures("broken_kernel")
def test_a_notebook_that_runs_through_in_this_interpreter_whatever_is_installed(tmp_path: Path, tag: str) -> None:
    out = report.make(GOOD, tmp_path / "case", {"ranks": 4}, tmp_path / "out.html")
    assert out == tmp_path / "out.html" and out.stat().st_size > 1e6
    nb = nbformat.read(tmp_path / "case" / "report-good.ipynb", as_version=4)
    assert nb.metadata.papermill.parameters == {"case_dir": str(tmp_path / "case"), "ranks": 4}
    assert "widgets" not in nb.metadata
    assert {file.name for file in (tmp_path / "case").iterdir()} == {"report-good.ipynb"}


LATE = """import zmq
kernel = get_ipython().kernel
whole = kernel.process_control
async def late(message):
    await whole(message)
    raise zmq.ZMQError(88)
kernel.process_control = late"""


def test_what_a_kernel_logs_while_it_ends_is_not_said(tmp_path: Path, tag: str) -> None:
    """It may still flush its streams when the thread that sends them is gone: nothing of the page is lost by that."""
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(LATE), nbformat.v4.new_code_cell("'the last'")])
    nbformat.write(page, tmp_path / "page.ipynb")
    command = [*COMMAND, "--notebook", "page.ipynb", "--case", "case"]
    done = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "the last" in (tmp_path / "case" / "report-page.ipynb").read_text()
    assert "Traceback" not in done.stderr and "ZMQError" not in done.stderr


@pytest.mark.parametrize(
    "values, deadline, sentence",
    [
        ({"log": "/dev/null/case"}, 60, "Cannot open the case folder /dev/null/case"),
        ({"ranks": 0}, 60, "Cell [9] of the notebook raised ZeroDivisionError: integer division or modulo by zero."),
        ({"signal": 9}, 60, "kernel died"),
        ({"seconds": 300.0}, 10, "not done after 10 s"),
    ],
)
def test_what_stops_a_notebook_leaves_a_report(
    values: dict[str, Any], deadline: float, sentence: str, tmp_path: Path, tag: str
) -> None:
    with pytest.raises(NcclkitError) as error:
        report.make(GOOD, tmp_path, values, deadline=deadline)
    assert sentence in str(error.value) and str(tmp_path / "report-good.html") in str(error.value)
    page = (tmp_path / "report-good.html").read_text()
    assert "The notebook stopped early." in page
    assert "figure-data" in page and "Where everything is" not in page
    assert not (tmp_path / ".report-good.ipynb").exists()


def test_each_notebook_has_a_report_of_its_own(tmp_path: Path) -> None:
    """The report of another notebook replaced the guided one's without a word."""
    (tmp_path / "report.html").write_text(OLD)
    made = report.keep(GOOD, tmp_path, {}, {})
    assert made == tmp_path / "report-good.html" and "</html>" in made.read_text()
    assert (tmp_path / "report.html").read_text() == OLD
    names = [report.report_file(tmp_path, report.notebook(name)).name for name in ("guided", "01_environment", "cases/1_recbole.zh")]
    assert names == ["report.html", "report-01_environment.html", "report-1_recbole.zh.html"]


def test_interrupt_ends_the_kernel_and_keeps_the_beginning(tmp_path: Path, tag: str) -> None:
    command = [*COMMAND, "--notebook", str(GOOD), "--case", str(tmp_path), "-p=seconds=300.0"]
    env = ENV | {"NCCLKIT_RUN": tag}
    run = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _wait_for_cell(tmp_path / ".report-good.ipynb", "asyncio.sleep(seconds)")
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130 and "Traceback" not in said
    page = (tmp_path / "report-good.html").read_text()
    assert "It was interrupted." in page and "figure-data" in page


def _wait_for_cell(draft: Path, source: str) -> None:
    end = time.monotonic() + 60
    while not _started(draft, source):
        assert time.monotonic() < end, f"{source} never started"
        time.sleep(0.1)


def _started(draft: Path, source: str) -> bool:
    try:
        cells = nbformat.read(draft, as_version=4).cells
    except (OSError, ValueError):
        return False  # not there yet, or half written
    return any(source in cell.source and cell.metadata.papermill.get("start_time") for cell in cells)


@pytest.mark.parametrize("size", ["32k", "1m"], ids=["in the run", "for the page"])
def test_a_full_disk_keeps_what_was_there(size: str, tmp_path: Path) -> None:
    own = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-ec"]
    if not shutil.which("unshare") or subprocess.run([*own, "mount -t tmpfs none /mnt"]).returncode:
        pytest.skip("needs the right to mount a small file system (unshare --mount)")
    script = (
        f'mount -t tmpfs -o size={size} none "$1"; printf "{OLD}" | tee "$1/report-good.html" > "$1/report-good.ipynb"; '
        'case=$1; shift; status=0; "$@" --case "$case" || status=$?; '
        'cat "$case/report-good.html"; ls -A "$case"; exit $status'
    )
    command = [*own, script, "sh", str(tmp_path), *COMMAND, "--notebook", str(GOOD)]
    run = subprocess.run(command, env=ENV, capture_output=True, text=True)
    assert run.returncode == 2, run.stderr
    assert run.stdout == f"{OLD}report-good.html\nreport-good.ipynb\n"
    assert run.stderr.startswith("ncclkit: Cannot write the report") and "no space is left" in run.stderr


@pytest.mark.parametrize(
    "values, sentence",
    [
        ({"rank": 4}, "good.ipynb has no parameter rank; did you mean ranks?"),
        ({"ranks": "4"}, "The parameter ranks of good.ipynb must be int, such as 2, but it is '4' (str)."),
        ({"ranks": True}, "must be int, such as 2, but it is True (bool)."),
        ({"seconds": "soon"}, "must be float, such as 0.0, but it is 'soon' (str)."),
        ({"case_dir": 3}, "The parameter case_dir of good.ipynb must be str, such as 'case', but it is 3 (int)."),
    ],
)
def test_wrong_parameters_are_refused_first(values: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(NcclkitError) as error:
        report.make(GOOD, tmp_path, values)
    assert sentence in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content, sentence",
    [
        (None, "Cannot read the notebook"),
        ("", "is not a Jupyter notebook"),
        ("{}", "is not a Jupyter notebook"),
        ("\0\1\2", "is not a Jupyter notebook"),
    ],
)
def test_what_is_no_notebook_is_refused(content: str | None, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "thing.ipynb"
    if content is not None:
        path.write_text(content)
    with pytest.raises(NcclkitError, match=sentence):
        report.make(path, tmp_path / "case", {})


def test_a_place_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(NcclkitError, match="not a folder you may write to"):
        report.make(GOOD, tmp_path / "case", {}, tmp_path / "nowhere" / "out.html")
    assert not (tmp_path / "case" / "report-good.ipynb").exists()


def test_text_from_the_command_line(tmp_path: Path) -> None:
    pairs = {"ranks": "4", "seconds": "0.5", "log": "4711", "name": "a b"}
    assert report.literals(pairs, GOOD) == {"ranks": 4, "seconds": 0.5, "log": "4711", "name": "a b"}
    assert report.literals({"log": "4711", "x": "[1"}) == {"log": 4711, "x": "[1"}


def test_notebooks_have_names(tmp_path: Path) -> None:
    assert report.notebook("guided").name == "guided.ipynb"
    assert report.notebook(str(GOOD)) == GOOD
    with pytest.raises(NcclkitError, match="did you mean guided?"):
        report.notebook("giuded")
