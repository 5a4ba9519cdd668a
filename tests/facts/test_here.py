"""The readers on this very machine: real files, real processes, real hangs."""

import ast
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

from ncclkit.agent import facts
from ncclkit.agent.facts import gather
from ncclkit.agent.facts.machine import Hung, Machine, Missing, Unread, attempt, known
from tests.processes import leftovers

AGENT = Path(facts.__file__).parents[1]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    rows = facts.collect(torch=False, paths={"work": str(work), "gone": str(work / "gone")})
    return {row["name"]: row for row in rows}


def test_facts_agree_with_other_ways_to_ask(here):
    shm = os.statvfs("/dev/shm")
    expected = {
        "host.name": socket.gethostname(),
        "host.kernel": os.uname().release,
        "limits.nofile.soft": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "limits.shm.size": shm.f_blocks * shm.f_frsize,
        "memory.total": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "software.executable": sys.executable,
        "software.python": sys.version.split()[0],
    }
    assert {name: here[name]["value"] for name in expected} == expected
    assert 0 < here["cpu.usable"]["value"] <= len(os.sched_getaffinity(0))
    assert {row["name"] for row in here["net.interfaces"]["value"]} == {name for _, name in socket.if_nameindex()}


def is_measured_or_busy(row):
    """Tests beside this one may keep the cores busy; then there is no number, and a reason."""
    return "no reference: this host is busy" in row["why"] if row["value"] is None else row["value"] > 0


def test_measurements(here):
    assert is_measured_or_busy(here["net.loopback.bandwidth"]) and is_measured_or_busy(here["net.loopback.cost"])
    assert here["storage.work.latency"]["value"] > 0 and here["storage.work.free"]["value"] > 0
    assert here["storage.gone.latency"]["value"] is None and "No such file" in here["storage.gone.latency"]["why"]


def test_no_file_is_left_behind(tmp_path):
    Machine().child("disk", str(tmp_path), deadline=30)
    assert list(tmp_path.iterdir()) == []


def test_torch_is_asked_in_a_child_process(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise RuntimeError('a file of the user, not torch')")
    monkeypatch.chdir(tmp_path)
    said = Machine().child("torch", deadline=90, isolated=False)
    assert "gloo" in said["backends"] and said["version"][0].isdigit()


def test_a_hung_command_ends_at_its_deadline_with_its_children(tmp_path):
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\nsleep 600 &\nwait\n")
    command.chmod(0o755)
    machine = Machine()
    machine.environ["NCCLKIT_RUN"] = str(tmp_path)
    with pytest.raises(Hung, match="did not answer within 1 s"):
        machine.run([str(command)], 1)
    assert leftovers(str(tmp_path)) == []


def test_absent_and_refused_commands(tmp_path):
    with pytest.raises(Missing):
        Machine().run(["no-such-command"], 1)
    (tmp_path / "plain").write_text("")
    with pytest.raises(Unread, match="Permission denied"):
        Machine().run([str(tmp_path / "plain")], 1)


def test_attempt_never_raises_for_a_bad_source():
    assert attempt("x", lambda: int("many"), "files", "/proc/x")["why"].startswith("/proc/x has an unexpected form")


def test_a_broken_reader_costs_its_own_facts_only(monkeypatch):
    def broken(machine):
        yield known("cpu.total", 2, source="here")
        raise RuntimeError("defect")

    monkeypatch.setattr(gather.cpu, "cpu_facts", broken)
    rows = {row["name"]: row for row in facts.collect(torch=False, machine=Machine("/nonexistent"))}
    assert rows["cpu.total"]["value"] == 2 and "defect" in rows["facts.cpu"]["why"] and "net.rdma" in rows


def test_a_hang_in_the_kernel_is_left_behind(monkeypatch):
    def stuck(machine):
        os.read(end, 1)
        yield from ()

    end, other = os.pipe()
    monkeypatch.setattr(gather.gpu, "gpu_facts", stuck)
    rows = {row["name"]: row for row in facts.collect(torch=False, machine=Machine("/nonexistent"), deadline=3.0)}
    os.close(other)
    assert "still not read" in rows["facts.gpu"]["why"] and "host.name" in rows


def test_the_agent_runs_from_one_file_without_site_packages(tmp_path):
    source, target = tmp_path / "source", tmp_path / "agent.pyz"
    shutil.copytree(AGENT, source / "agent", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import json\nfrom agent import facts\nfor fact in facts.collect(torch=False): print(json.dumps(fact))\n"
    (source / "__main__.py").write_text(code)
    zipapp.create_archive(source, target)
    command = [sys.executable, "-I", "-S", "-E", str(target)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    rows = {row["name"]: row for row in map(json.loads, run.stdout.splitlines())}
    assert run.stderr == "" and is_measured_or_busy(rows["net.loopback.bandwidth"])
    assert not [name for name in rows if name.startswith("facts.")]


def test_the_script_of_the_children_stands_alone():
    text = (AGENT / "facts" / "children.py").read_text()
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    assert all(node.level == 0 for node in imports)
