"""Real commands in an environment full of secrets: every byte that they leave anywhere is searched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.planted import MARK, PLANTED

ROOT = Path(__file__).parents[2]
TALE = f"""
import os
with open("/proc/self/cmdline", "rb") as own, open({{told!r}}, "ab") as out:
    command = own.read()
    out.write(command.replace(b"\\0", b" ") + b"\\n")
if b"agent.pyz" in command:
    import atexit
    planted = [value for value in os.environ.values() if {MARK!r} in value]
    atexit.register(lambda: os.write(2, "\\n".join([*planted, "told at the end\\n"]).encode()))
    os.write(2, ("\\n".join(planted) + "\\n").encode())
"""
"""Every process of ours says what stands on its command line and, to its log, the secrets of its environment."""
CELLS = (
    'case_dir: str = "case"\nvariables: str = ""',
    "import ncclkit as nk",
    "case = nk.Case.open(case_dir)\nnk.show.facts(case)",
    "nk.show.findings(nk.diagnose(case))",
    "nk.show.events(case)",
    "variables",
)
LOG = f"""
[rank0]: Traceback (most recent call last):
[rank0]:   File "/work/train.py", line 7, in <module>
[rank0]:     fetch(url, headers={{"Authorization": "Bearer {MARK}51"}})
[rank0]:   File "/work/data.py", line 3, in fetch
[rank0]:     raise IOError(f"{{url}} was refused")
[rank0]: OSError: https://me:{MARK}52@data.example.org/x?sig={MARK}53 refused --token {MARK}54 and password='{MARK}55'
node-1:7186:7190 [0] NCCL INFO NCCL_API_KEY set by environment to {MARK}56
node-1:7186:7190 [0] NCCL WARN Call to connect failed, proxy=http://u:{MARK}57@proxy:3128 is wrong
"""


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder that the commands worked in, and what each of them said on standard output and error."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(TALE.format(told=str(folder / "told")))
    cells = [new_code_cell(source, metadata={"tags": [] if n else ["parameters"]}) for n, source in enumerate(CELLS)]
    nbformat.write(new_notebook(cells=cells), folder / "page.ipynb")
    (folder / "train.log").write_text(LOG)
    bare = os.path.realpath(sys.executable)
    said = {
        "inspect": run(folder, "inspect", "--train-python", bare),
        "inspect --json": run(folder, "inspect", "--json", "--train-python", bare),
        "probe": run(folder, "probe", "--ranks", "2", "--backend", "gloo", "--max-bytes", "64"),
        "diagnose": run(folder, "diagnose", "train.log"),
        "diagnose --json": run(folder, "diagnose", "--json", "train.log", "case"),
        "report": run(folder, "report", "--notebook", "page.ipynb", "-p", "variables=export HF_TOKEN=hidden17"),
    }
    return folder, said


def run(folder: Path, *words: str) -> str:
    path = os.pathsep.join([str(ROOT), str(folder / "site")])
    env = {name: value for name, value in os.environ.items() if name != "NCCLKIT_TRAIN_PYTHON"} | PLANTED
    command = [sys.executable, "-m", "ncclkit", *words]
    done = subprocess.run(command, cwd=folder, env=env | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def leaks(raw: bytes) -> Iterator[str]:
    """Every secret in some bytes, with what stands around it."""
    at = raw.find(MARK.encode())
    while at >= 0:
        yield raw[max(0, at - 80) : at + 20].decode("utf-8", "replace")
        at = raw.find(MARK.encode(), at + 1)


def test_nothing_said(left: tuple[Path, dict[str, str]]) -> None:
    for command, text in left[1].items():
        assert list(leaks(text.encode())) == [], command


def test_nothing_written(left: tuple[Path, dict[str, str]]) -> None:
    """Facts, records, plans, logs of launcher and ranks, events, verdicts, notebook, page."""
    files = [path for path in (left[0] / "case").rglob("*") if path.is_file()]
    wanted = {"facts.jsonl", "wire.jsonl", "plan.json", "launcher.log", "rank0.log", "report-page.ipynb", "report-page.html"}
    assert wanted <= {path.name for path in files}
    assert {path.name: found for path in files if (found := list(leaks(path.read_bytes())))} == {}


def test_nothing_on_a_command_line(left: tuple[Path, dict[str, str]]) -> None:
    told = (left[0] / "told").read_bytes()
    assert all(word in told for word in (b" guard ", b" launch ", b" collective ", b"ipykernel_launcher"))
    assert list(leaks(told)) == []


def test_the_ranks_really_told_their_secrets(left: tuple[Path, dict[str, str]]) -> None:
    """Otherwise the tests above would search where there never was anything."""
    for name in ("rank0.log", "rank1.log", "launcher.log"):
        log = next((left[0] / "case").rglob(name)).read_text()
        assert "[redacted]" in log and "told at the end" in log, name


def test_what_a_diagnosis_needs_is_there(left: tuple[Path, dict[str, str]]) -> None:
    facts = {row["name"]: row for row in map(json.loads, left[1]["inspect --json"].splitlines()) if "name" in row}
    assert facts["env.SLURM_JWT"]["value"] == "[redacted]"
    assert facts["env.NCCL_NET_PLUGIN_SOURCE"]["value"] == "https://[redacted]@artifacts.example.org/libnccl-net.so"
    assert MARK not in str(facts) and facts["env.NCCL_X_REPR"]["value"] == "Namespace(hf_token='[redacted]', lr=0.1)"
    text = left[1]["diagnose --json"]
    first = json.loads(text[text.index("{\n") : text.rindex("}") + 1])["findings"][0]
    assert first["cause"] == "rank_exception"
    piece = first["evidence"][0]
    assert piece["line"] == 2 and piece["path"] == "train.log"
    assert "OSError: https://[redacted]@data.example.org/x?sig=[redacted] refused --token [redacted]" in piece["text"]


def test_a_parameter_is_no_way_out(left: tuple[Path, dict[str, str]]) -> None:
    for name in ("report-page.ipynb", "report-page.html"):
        page = (left[0] / "case" / name).read_text()
        assert "hidden17" not in page and "export HF_TOKEN=" in page, name
