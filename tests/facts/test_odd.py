"""Odd machines: files that never answer, cgroups mounted elsewhere or nowhere, IPv6 alone, devices without ports."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from ncclkit.agent.facts import cpu, limits, network, storage, variables
from ncclkit.agent.facts.machine import Answer, Hung, Machine, Unread
from ncclkit.live.launch import local

ROOT = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
CPU = "31 21 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpuacct,cpu\n"
TWO = "32 21 0:28 %s %s rw - cgroup2 cgroup2 rw\n"


def machine(folder: Path, files: dict[str, str]) -> Machine:
    """A machine that has these files alone."""
    for name, text in files.items():
        path = folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    made = Machine(str(folder))
    made.environ = {}
    return made


@pytest.mark.parametrize(
    ("groups", "mounts", "file", "text", "cpus"),
    [
        ("4:cpuacct,cpu:/job\n", CPU, "cpu,cpuacct/job/cpu.max", "max 100000", -1),
        ("0::/job/step\n", TWO % ("/", "/sys/fs/cgroup"), "job/cpu.max", "200000 100000", 2),
        ("0::/docker/abc/svc\n", TWO % ("/docker/abc", "/sys/fs/cgroup"), "svc/cpu.max", "150000 100000", 1.5),
        ("0::/job\n", TWO % ("/", "/sys/fs/cgroup") + TWO % ("/other", "/sys/fs/cgroup/x"), "x/cpu.max", "1 2", -1),
    ],
    ids=["nothing", "above", "container", "another container"],
)
def test_a_quota_is_found_where_cgroups_are_mounted(
    tmp_path: Path, groups: str, mounts: str, file: str, text: str, cpus: float
) -> None:
    files = {"/proc/self/cgroup": groups, "/proc/self/mountinfo": ROOT + mounts, "/sys/fs/cgroup/" + file: text}
    assert limits.cgroup_cpus(machine(tmp_path, files)) == cpus


def test_the_kernel_and_its_mount_may_name_the_controllers_in_another_order(tmp_path: Path) -> None:
    group = {"/proc/self/cgroup": "4:cpuacct,cpu:/job\n", "/proc/self/mountinfo": ROOT + CPU}
    quota = {f"/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_{name}_us": "100000" for name in ("quota", "period")}
    assert limits.cgroup_cpus(machine(tmp_path, group | quota)) == 1


def test_limits_that_cannot_be_seen_are_not_unlimited(tmp_path: Path) -> None:
    blind = machine(
        tmp_path, {"/proc/self/cgroup": "0::/job\n", "/proc/self/mountinfo": ROOT, "/proc/vmstat": "oom_kill 3\n"}
    )
    rows = {row["name"]: row for read in (limits.limit_facts, cpu.cpu_facts) for row in read(blind)}
    for name in ("limits.cgroup.memory", "limits.cgroup.cpus", "limits.cgroup.pids"):
        assert rows[name]["value"] is None and "no cgroup file system is mounted" in rows[name]["why"]
    assert rows["memory.oom_kills"]["value"] == 3, "what can be read elsewhere is"


def test_a_default_route_of_ipv6_alone(tmp_path: Path) -> None:
    zero = "0" * 32
    row = "%s 00 %s 00 %s %%s 00000001 00000000 %%s     %%s\n" % (zero, zero, zero)
    routes = row % ("ffffffff", "00200200", "lo") + row % ("00000400", "3", "eth1") + row % ("00000064", "3", "eth0")
    files = {"/proc/net/route": "Iface\tDestination\n", "/proc/net/ipv6_route": routes}
    assert network._default_interface(machine(tmp_path, files)) == "eth0"
    with pytest.raises(Unread, match="no default route"):
        network._default_interface(machine(tmp_path, files | {"/proc/net/ipv6_route": ""}))


def test_a_device_without_ports_costs_its_own_rows_only(tmp_path: Path) -> None:
    folder = "/sys/class/infiniband/"
    gone = machine(tmp_path, {folder + "mlx5_1/node_type": "1: CA\n"})
    with pytest.raises(Unread, match="have no port: mlx5_1"):
        network.rdma_ports(gone)
    gone.environ = {"NCCL_IB_HCA": "mlx5_1", "NCCL_BUFSIZE": "1"}
    rows = {row["name"]: row["value"] for row in variables.variable_facts(gone)}
    assert [row["name"] for row in rows["env.problems"]] == ["NCCL_BUFSIZE"], "the other variables are still checked"
    assert ("unchecked", "NCCL_IB_HCA") in [(row["kind"], row["name"]) for row in rows["env.notes"]]
    made = machine(tmp_path, {folder + "mlx5_0/ports/1/state": "4: ACTIVE\n"})
    assert [(row["device"], row["state"]) for row in network.rdma_ports(made)] == [("mlx5_0", "ACTIVE")]


def test_a_file_that_never_answers_costs_itself_only(tmp_path: Path) -> None:
    """A pipe that nobody writes to stands for a file server that is gone."""
    os.mkfifo(tmp_path / "nccl.conf")
    here = Machine()
    here.patience = 0.1
    here.environ = {"NCCL_CONF_FILE": str(tmp_path / "nccl.conf"), "NCCL_DEBUG": "INFO"}
    rows = {row["name"]: row["value"] for row in variables.variable_facts(here)}
    (note,) = rows["env.notes"]
    assert rows["env.NCCL_DEBUG"] == "INFO" and note["kind"] == "unchecked"
    assert "did not answer within" in note["problem"] and note["value"] == str(tmp_path / "nccl.conf")
    assert here.patience < 0.1, "the next wait in vain is shorter"


def test_a_folder_that_hangs_is_still_known_to_lie_on_nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mounts = ROOT + f"22 21 0:40 / {tmp_path} rw - nfs4 server:/home rw\n"
    stuck = machine(tmp_path, {"/proc/self/mountinfo": mounts})
    monkeypatch.setattr(stuck, "run", lambda *_, **__: (_ for _ in ()).throw(Hung("child disk . did not answer")))
    rows = {row["name"]: row["value"] for row in storage.storage_facts(stuck, {"work": "."})}
    assert rows == {
        "storage.work.path": str(tmp_path),
        "storage.work.type": "nfs4",
        "storage.work.free": None,
        "storage.work.latency": None,
    }


def test_an_agent_that_is_killed_midway_is_not_silent(tmp_path: Path) -> None:
    python, fact = tmp_path / "python", '{"ncclkit": 1, "kind": "fact", "name": "cpu.total", "value": 2}'
    dies = f"case $2 in facts) echo '{fact}'; kill -9 $$ ;; esac"
    python.write_text(f'#!/bin/sh\n{dies}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "run").mkdir()
    records = asyncio.run(local.read_facts_here(str(python), tmp_path / "run"))
    told = [record for record in records if record["kind"] == "fact"]
    assert told[-1]["name"] == "facts.rest" and "ended before its last fact (failed, -9)" in told[-1]["why"]


@pytest.mark.parametrize("name", ["n\ufffdde", "a..b", "-I", "x" * 300])
def test_a_host_name_that_no_resolver_takes(tmp_path: Path, name: str) -> None:
    odd = machine(tmp_path, {"/proc/sys/kernel/hostname": name + "\n"})
    odd.environ = dict(os.environ)
    with pytest.raises(Unread):
        network.own_addresses(odd)
    assert socket.gethostname() != name


def test_what_answers_slowly_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that is gone takes its 5 s: twice of them were all that the gate has for its facts."""
    slow, asked = machine(tmp_path, {"/proc/sys/kernel/hostname": "node1\n"}), []

    def gone(argv: list[str], deadline: float, name: str = "") -> Answer:
        asked.append(name)
        raise Hung(f"{name} did not answer within {deadline:g} s")

    monkeypatch.setattr(slow, "run", gone)
    monkeypatch.setattr(slow, "call", lambda *_: [{"name": "lo", "flags": network.LOOPBACK, "address": ""}])
    rows = {row["name"]: row for row in network.network_facts(slow)}
    assert asked.count("child resolve node1") == 1 and "within 5 s" in rows["net.hostname.addresses"]["why"]
    assert rows["net.gloo.interface"]["value"] == "lo"
    looked: list[Machine] = []
    monkeypatch.setattr(variables, "problems", lambda here, _: looked.append(here) or [])
    assert {row["name"] for row in variables.variable_facts(slow)} == {"env.problems", "env.notes"} and len(looked) == 1
