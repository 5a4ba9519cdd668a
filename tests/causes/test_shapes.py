"""Facts of other people's files may hold anything: no cause raises, and what is well is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent import facts as agent
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact
from ncclkit.core.shapes import validated
from tests.causes.hosts import GIB, GOOD, MISSPELT, PORT
from tests.record.machine import machine_at

ROOT = Path(__file__).parents[2]
STRANGE: list[Any] = [
    *("x", "", 7, -1.5, 10**400, True, [], [1], ["a"], [None], [{}], [[1]], {}, {"a": 1}, {"a": {"b": 2}}, {"a": [1]}),
    [{"size": "x", "device": [1], "used": "y"}],
    [{"device": 1, "gids": [1], "state": 2}],
    [{"name": 1, "addresses": "x"}],
    [{"kind": "value"}],
    [{"version": 2, "how": "LD_PRELOAD"}],
]
MORE = {
    **dict.fromkeys(("memory.oom_kills", "limits.nproc", "limits.cgroup.pids", "limits.ptrace_scope"), 0),
    "host.acs": ["0:1.0"],
    "net.interfaces": [{"name": "eth0", "state": "up", "addresses": ["10.0.0.1/24"]}],
    "net.hostname.addresses": ["127.0.1.1"],
    "net.nccl.hcas": ["mlx5_0:1"],
    "env.WORLD_SIZE": "8",
    "env.NCCL_IB_GID_INDEX": "3",
    "env.NCCL_SOCKET_IFNAME": "eth0",
    "software.nccl.built": "2.27.5",
    **dict.fromkeys(("job.workers", "job.prefetch"), 2),
    **dict.fromkeys(("job.dataset", "job.batch"), GIB),
}
FAILED = [
    Event("nccl.init", "", host="node-1", rank=0, data={"rank": 0, "nranks": 2, "phase": "done"}),
    Event("c10d.timeout", "Watchdog caught", host="node-1", rank=0, data={"seq": 7, "op": "ALLREDUCE"}),
    Event("nccl.warn", "No space left on device", host="node-1", rank=0, data={"family": "shm"}),
    Event("elastic.exit", "", host="node-1", rank=1, data={"exitcode": -9}),
]
NAMES = sorted({**GOOD, **MORE})


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_cause_raises_whatever_a_fact_holds(name: str) -> None:
    for number, value in enumerate(STRANGE):
        job = Case()
        job.events = FAILED[: number % 2 * len(FAILED)]
        job.facts = [Fact(key, good, host="node-1") for key, good in {**GOOD, **MORE, name: value}.items()]
        broken = [m for f in diagnose(job).unknown for m in f.missing if "check itself failed" in m]
        assert not broken, (value, broken)


@pytest.mark.parametrize(
    "machine", sorted(path.name for path in (ROOT / "tests" / "machines").iterdir() if path.is_dir())
)
def test_what_the_agent_reads_has_the_right_shape(machine: str) -> None:
    rows = agent.collect(machine=machine_at(str(ROOT / "tests" / "machines" / machine)), paths={"work": "."})
    assert [row["name"] for row in rows if validated(Fact(**row)) != Fact(**row)] == []


def test_a_value_of_another_shape_is_unknown_with_the_reason() -> None:
    fact = validated(Fact("limits.shm.size", "64M", source="facts.jsonl", host="node-1"))
    assert fact.value is None and fact.why == "facts.jsonl holds something else there: '64M'"
    assert validated(Fact("memory.swap", [{"device": "/dev/sda2"}])).value is None
    assert validated(Fact("host.name", ["any"])).value == ["any"], "nobody judges by it"
    assert validated(Fact("net.rdma", [PORT])).value and validated(Fact("env.problems", [MISSPELT])).value
    assert validated(Fact("x", 1, host=7)).host == "7"  # type: ignore[arg-type]
