"""A verdict is about one job: what else lies in the case folder is not judged with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact

OOM = "torch.OutOfMemoryError: CUDA out of memory."


def case_with_logs_and_a_look(folder: Path, pid: int) -> Case:
    """A case into which a log of process 700 on node-1 was read before a job was looked at."""
    case = Case.open(folder)
    case.events = [
        Event("nccl.version", "NCCL version 2.28.9", "/home/me/job.log", 1, host="node-1", pid=700),
        Event("python.exception", OOM, "/home/me/job.log", 9, data={"type": "OutOfMemoryError"}),
    ]
    case.inputs = [{"path": "/home/me/job.log", "kind": "log", "bytes": 1, "lines": 9, "events": 2}]
    look = case.new_run("attach") / "attached.json"
    look.write_text("{}")
    case.add([Event("attach.rank", "rank 0 waits", str(look), rank=0, host="node-1", data={"pid": pid})])
    return case


def test_a_look_at_a_job_is_not_judged_with_logs_of_another(tmp_path: Path) -> None:
    scope = case_with_logs_and_a_look(tmp_path, pid=811).latest()
    assert {event.kind for event in scope.events} == {"attach.rank"}
    assert scope.inputs == []


def test_logs_that_name_a_process_of_the_look_are_of_its_job(tmp_path: Path) -> None:
    scope = case_with_logs_and_a_look(tmp_path, pid=700).latest()
    assert {event.kind for event in scope.events} == {"attach.rank", "nccl.version", "python.exception"}
    assert len(scope.inputs) == 1


def test_a_case_and_a_log_in_one_command_are_judged_together(tmp_path: Path) -> None:
    together = Case().add(case_with_logs_and_a_look(tmp_path, pid=811).events)
    assert len(together.latest().events) == 3


@pytest.mark.parametrize(
    "host, hosts_judged",
    [("node-1.cluster.example", {"node-1"}), ("sim-1", {"node-1", "node-9"}), ("", {"node-1", "node-9"})],
)
def test_facts_are_judged_of_the_hosts_that_the_job_had(host: str, hosts_judged: set[str]) -> None:
    """Where no host of the job was looked at (simulated ones, containers), all facts are of one machine."""
    case = Case().add([Event("nccl.version", "NCCL version 2.28.9", "a.log", 1, host=host)])
    case.facts = [Fact("memory.free", 1, host="node-1"), Fact("memory.free", 1, host="node-9")]
    assert {fact.host for fact in case.latest().facts} == hosts_judged


def test_hosts_of_a_test_of_connections_are_no_hosts_of_the_job() -> None:
    case = Case()
    case.events = [
        Event("connect.host", "misspelt is unreachable", "runs/1-connect/wire.jsonl", host="misspelt"),
        Event("nccl.version", "NCCL version 2.28.9", "a.log", 1, host="node-1"),
    ]
    assert diagnose(case).job["hosts"] == ["node-1"]


def test_facts_of_a_host_are_judged_without_the_jobs_that_ran_there(tmp_path: Path) -> None:
    case = case_with_logs_and_a_look(tmp_path, pid=811)
    case.facts = [Fact("gpu.count", 0, host="node-1")]
    machines = case.hosts_only()
    assert (machines.events, machines.facts, machines.inputs) == ([], case.facts, [])
    assert diagnose(machines).verdict == "no_job"


def test_two_looks_are_not_judged_as_one_moment(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    for rank in (0, 1):
        look = case.new_run("attach") / "attached.json"
        case.add([Event("attach.rank", "waits", str(look), rank=rank, host="node-1", data={"pid": 7})])
    assert [event.rank for event in case.latest().of("attach.rank")] == [1]
