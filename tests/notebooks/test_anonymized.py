"""`ncclkit report --redact`: the page names no host, address, user or home; who did what to whom is still told."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ncclkit import report
from ncclkit.agent.anonymize import Aliases
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact
from ncclkit.report import page
from ncclkit.report.page import anonymized
from tests.processes import warm
from tests.reports import ENV, ROOT

RUN = ROOT / "tests" / "specimens" / "wrong_interface"
REAL = {
    "node-1": "atlas17",
    "node-2": "atlas18",
    "10.1.0.": "172.23.9.",
    "10.77.0.": "172.23.9.",
    "172.20.0.1": "192.168.77.1",
}
"""What stands in the specimens, and what a real cluster would have there."""
TRACE = """
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/marie.curie/train.py", line 3, in <module>
[rank0]: ValueError: atlas19 is not atlas18
"""
NAMES = ("atlas", "172.23.9", "192.168.77", "curie")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The case of a report of two hosts: logs of two nodes, and what `ncclkit connect` found between them."""
    folder = tmp_path_factory.mktemp("conceal")
    (folder / "marie.curie").mkdir()
    for name in ("clear-two-nodes", "found-connect-bridge"):
        for path in (RUN / name).iterdir():
            text = path.read_text()
            for old, new in REAL.items():
                text = text.replace(old, new)
            (folder / "marie.curie" / path.name).write_text(text)
    with (folder / "marie.curie" / "rank0.log").open("a") as log:
        log.write(TRACE)
    words = ["report", "--redact", "--notebook", "03_logs", "-p", "logs=marie.curie", "--case", str(folder / "case")]
    done = subprocess.run([sys.executable, "-m", "ncclkit", *words], cwd=folder, env=warm(ENV), capture_output=True)
    assert done.returncode == 0, done.stderr
    return folder / "case"


def test_the_page_names_nobody(case: Path) -> None:
    soup = BeautifulSoup((case / "report-03_logs.html").read_text(encoding="utf-8"), "html.parser")
    for library in [script for script in soup.find_all("script") if len(script.text) > 1e6]:
        library.decompose()  # plotly.js knows an atlas
    assert [name for name in NAMES if name in str(soup)] == []
    said = soup.main.get_text(" ")
    assert all(word in said for word in ("host-1", "host-2", "10.0.0.1", "/home/user-1/train.py"))


def test_what_was_replaced_is_said_beside_the_page_alone(case: Path) -> None:
    list_of = (case / "report-03_logs.names.txt").read_text(encoding="utf-8")
    assert "atlas17 → host-1\n" in list_of and "marie.curie → user-1\n" in list_of
    assert stat.S_IMODE((case / "report-03_logs.names.txt").stat().st_mode) & 0o077 == 0


def test_a_name_given_by_hand_goes_too(tmp_path: Path) -> None:
    cells = [new_code_cell("'" + "zebrafish and pelican" + "'", metadata={"tags": ["parameters"]})]
    nbformat.write(new_notebook(cells=cells), tmp_path / "page.ipynb")
    html = report.make(tmp_path / "page.ipynb", tmp_path / "case", {}, names=["pelican"]).read_text()
    assert "zebrafish" in html and "pelican" not in html


def test_the_case_on_disk_stays(case: Path) -> None:
    assert {event.host for event in Case.open(case, read_only=True).events} >= {"atlas17", "atlas18"}


def test_every_case_tells_its_hosts_and_users() -> None:
    one = Case()
    one.about["host"] = "login.hpc"
    one.facts = [
        Fact("env.SLURM_JOB_NODELIST", "cn[001-004,009],fat-1"),
        Fact("env.SLURM_JOB_USER", "marie"),
        Fact("host.name", "cn002.hpc", host="cn002"),
        Fact("env.MASTER_ADDR", "10.0.0.9"),
    ]
    one.events = [Event("connect.pair", data={"src": "storage-a", "dst": "cn003"}), Event("nccl.env", host="viz7")]
    hidden = anonymized.other_names(one)("login cn001 cn002.hpc cn004 fat-1 fat-2 storage-a viz7 marie cn[001-004]")
    assert not any(name in hidden for name in ("login", "cn", "fat", "storage", "viz", "marie", "hpc")), hidden


def test_texts_attributes_and_figures_but_no_style_or_script() -> None:
    figure = {page.FIGURE: {"data": [{"y": [1], "name": "vm1 </script>"}], "layout": {"title": {"text": "vm1 & vm2"}}}}
    bare = {"text/html": '<style>.vm1 {}</style><b class="vm1" title="of vm1" id="x-vm1">&lt;vm1&gt;</b>'}
    outputs = [new_output("display_data", data) for data in (figure, bare)]
    cells = [new_markdown_cell("# Is vm1 [there](#vm1)?"), new_code_cell('"vm1"', outputs=outputs)]
    html = page.render(new_notebook(cells=cells), host="vm2", aliases=Aliases(["vm1", "vm2"]))
    soup = BeautifulSoup(html, "html.parser")
    bold = soup.find("b", class_="vm1")
    assert bold is not None and (bold["title"], bold["id"], bold.text) == ("of host-1", "x-host-1", "<host-1>")
    assert ".vm1 {}" in str(soup.main) and soup.title and soup.title.text.startswith("Is host-1")
    assert "host-1 </script>" in soup.find("script", class_="figure-data").text.replace("\\u003c", "<")
    assert "host-2" in soup.find(class_="page-head").text and "vm2" not in str(soup.main)


def test_the_parameter_asks_for_the_same(tmp_path: Path) -> None:
    """A notebook that declares `redact` needs no option, which a scheduled papermill run could not give."""
    cells = [new_code_cell("redact: bool = False", metadata={"tags": ["parameters"]}), new_code_cell("'/home/marie/x'")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "page.ipynb")
    for redact in (False, True):
        html = report.make(tmp_path / "page.ipynb", tmp_path / "case", {"redact": redact}).read_text()
        assert ("marie" in BeautifulSoup(html, "html.parser").main.text) is not redact
