"""Bytes that are no UTF-8, in names of files and folders, variables and JSON: read as they are, shown as codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ncclkit import report
from ncclkit.core.case import Case
from ncclkit.core.model import Event
from tests.packaging.project import ROOT
from tests.processes import warm

GOOD = ROOT / "tests" / "notebooks" / "data" / "good.ipynb"

PHASE = r'{"ncclkit": 1, "kind": "phase", "phase": "im\udcffport", "rank": 0, "host": "a\udcff", "pid": 3, "t": 1.0}'


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / os.fsdecode(b"logs\xfe")
    folder.mkdir()
    (folder / os.fsdecode(b"rank0\xfd.log")).write_bytes(b"RuntimeError: CUDA error: \xff\xfe unknown error\n")
    (folder / "wire.jsonl").write_text(PHASE + "\n")
    (folder / "facts.json").write_text(r'[{"name": "env.A", "value": {"\udcff": "\udcfe"}, "source": "\ud800"}]')
    return folder


@pytest.fixture
def case(tmp_path):
    return tmp_path / os.fsdecode(b"case\xff")


def ncclkit(*words):
    """What a command prints, where the variables are of another encoding, too."""
    env = {**warm(os.environ), "NCCL_SOCKET_IFNAME": os.fsdecode(b"lo\xff"), "NCCL_DEBUG": os.fsdecode(b"\xff")}
    command = [sys.executable, "-m", "ncclkit", *words]
    ended = subprocess.run(command, env=env, capture_output=True, timeout=100, check=False)
    said = ended.stderr.decode(errors="replace")
    assert "Traceback" not in said and ended.returncode in (0, 1), said[-2000:]
    return ended.stdout.decode("utf-8")


def test_diagnose(logs):
    found = json.loads(ncclkit("diagnose", "--json", logs))
    cited = {piece["path"] for finding in found["findings"] for piece in finding["evidence"]}
    assert os.fsencode(logs / os.fsdecode(b"rank0\xfd.log")) in {os.fsencode(path) for path in cited}
    assert r"logs\udcfe" in ncclkit("diagnose", logs)


def test_inspect_and_probe(case):
    facts = [json.loads(line) for line in ncclkit("inspect", "--json", "--case", case).splitlines()]
    assert {fact["value"] for fact in facts if fact["name"] == "env.NCCL_SOCKET_IFNAME"} <= {"lo\\udcff"}
    small = ("--ranks", "1", "--max-bytes", "1K", "--backend", "gloo", "--timeout", "60")
    assert r"case\udcff/runs/2-all_reduce" in ncclkit("probe", "--case", case, *small)
    kept = Case.open(case, read_only=True)
    assert kept.facts and kept.measurements


def test_report(case, logs):
    made = Case.open(case).add([Event("cuda.error", "\udcff", str(logs))])
    made.inputs = [{"path": str(logs), "bytes": 1, "lines": 1, "kind": "log", "events": 1, "errors": 0}]
    page = report.make(GOOD, made.save().path, {"ranks": 2, "name": os.fsdecode(b"\xff")})
    assert "</html>" in page.read_text("utf-8")
    json.loads(page.with_suffix(".ipynb").read_text("utf-8"))
