"""The kernel's tables, its clock, the cores and the locks that a job would meet: made on purpose, read, judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclkit.agent.facts import limits
from ncclkit.agent.facts.machine import Machine
from ncclkit.causes import catalogue
from ncclkit.causes.cpu_binding import cpus
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, Finding
from tests.record.machine import machine_at

ROOT = Path(__file__).parents[2]
READ = """import json, socket, sys, time
from ncclkit.agent.facts import cpu, limits, machine
full = socket.create_server(("127.0.0.1", 0), backlog=0)
for _ in range(int(sys.argv[1])):
    call = socket.socket(); call.setblocking(False); call.connect_ex(full.getsockname()); sys.argv.append(call)
end = time.monotonic() + 20
while sys.argv[1] != "0" and not limits._queue_overflows(machine.Machine()) and time.monotonic() < end:
    time.sleep(0.01)
for reader in (cpu.cpu_facts, limits.tables):
    for fact in reader(machine.Machine()): print(json.dumps(fact))
"""
"""What the process in a place of its own runs: it calls a port that nobody serves so often, and prints its facts.

The kernel may take a call after it was made, so it is given until its counter moves.
"""


def facts(*place: str, calls: int = 0) -> list[Fact]:
    """What a process reads that the command `place` starts."""
    command = [*place, sys.executable, "-c", READ, str(calls)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return [Fact(**json.loads(line), host="here") for line in done.stdout.splitlines()]


def judged(cause: str, known: list[Fact], **more: object) -> Finding:
    case = Case()
    case.facts = known + [Fact(name.replace("__", "."), value, host="here") for name, value in more.items()]
    return catalogue()[cause].diagnose(case)


def test_a_port_that_more_ranks_call_than_may_wait() -> None:
    place = ("unshare", "--net", "sh", "-c", 'ip link set lo up && sysctl -qw net.core.somaxconn=16 && exec "$0" "$@"')
    if subprocess.run([*place, "true"], capture_output=True, timeout=30).returncode:
        pytest.skip("network namespaces are not allowed here")
    known = facts(*place, calls=6)
    lost = next(fact.value for fact in known if fact.name == "net.backlog.overflows")
    finding = judged("net_limit", known, env__WORLD_SIZE="64")
    assert lost > 0 and finding.strength == "likely"
    assert f"16 connections may wait at a port ({lost} were dropped so far) and 64 ranks" in finding.say
    assert judged("net_limit", known, env__WORLD_SIZE="8").verdict == "clear"


def test_a_step_of_slurm_with_fewer_cores_than_the_job_asked_for() -> None:
    core = str(min(os.sched_getaffinity(0)))
    known = facts("taskset", "-c", core)
    assert f"this step has 1 CPU core ({core})" in judged("cpu_binding", known, env__SLURM_CPUS_PER_TASK="8").say
    assert judged("cpu_binding", known, env__SLURM_CPUS_PER_TASK="1").verdict == "clear"


@pytest.mark.parametrize(
    ("text", "count"), [("0-3,8", 5), ("7", 1), ("", 0), ("0-", 0), ("all", 0), ("0-99999", 16385)]
)
def test_lists_of_cpus(text: str, count: int) -> None:
    assert len(cpus(text)) == count


@pytest.mark.parametrize(("status", "synced"), [(0x40, False), (0x2001, True), (0x2041, False)])
def test_a_clock_that_nobody_keeps(tmp_path: Path, status: int, synced: bool) -> None:
    (tmp_path / "machine.json").write_text(json.dumps({"calls": {"adjtimex": status}}))
    known = {fact["name"]: fact["value"] for fact in limits.tables(machine_at(str(tmp_path)))}
    assert known["host.clock.synced"] is synced


def test_the_clock_of_this_machine_can_be_asked() -> None:
    known = {fact["name"]: fact for fact in limits.tables(Machine())}
    assert known["host.clock.synced"]["value"] in (True, False)


def test_a_lock_that_a_dead_job_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, age in (("fused_adam", 7200), ("fresh", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
        os.utime(tmp_path / name / "lock", (time.time() - age,) * 2)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    rows = Machine().child("torch", deadline=90, isolated=False)["locks"]
    assert [Path(row["path"]).parent.name for row in rows] == ["fresh", "fused_adam"]
    finding = judged("stale_lock", [Fact("software.torch.locks", rows, host="here")])
    assert finding.strength == "likely" and "was made 2 h ago" in finding.say
