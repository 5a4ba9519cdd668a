"""What was recorded here gives the same facts again, without what names this machine."""

import json
import os

from ncclkit.agent import facts
from tests.record.machine import Recorder, _hider, machine_at, record


def test_a_recording_replays(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    record(str(tmp_path / "m"), torch=False, paths={"work": "."}, about="a test")
    first, second = (
        list(facts.collect(torch=False, paths={"work": "."}, machine=machine_at(str(tmp_path / "m")))) for _ in range(2)
    )
    assert sorted(first, key=str) == sorted(second, key=str)
    live = {row["name"]: row["value"] for row in facts.collect(torch=False, paths={"work": "."})}
    replayed = {row["name"]: row["value"] for row in first}
    assert set(replayed) == set(live)
    steady = (
        "host.os",
        "limits.nofile.soft",
        "cpu.total",
        "cpu.numa",
        "memory.total",
        "env.NCCL_DEBUG",
        "gpu.count",
        "net.default",
        "net.nccl.interface",
        "net.gloo.interface",
        "software.python",
        "storage.work.type",
    )
    assert {name: replayed[name] for name in steady} == {name: live[name] for name in steady}


def hidden(text: str) -> str:
    machine = Recorder()
    machine.environ = {"HOME": "/home/alice"}
    machine.recorded["files"]["/proc/sys/kernel/hostname"] = "node-7.cluster\n"
    addresses = ("10.1.2.3/24", "127.0.0.1/8", "fd00::3/64")
    machine.recorded["calls"]["getifaddrs"] = [{"address": address} for address in addresses]
    return _hider(machine)(text)


def test_a_recording_does_not_name_the_machine():
    assert hidden("node-7.cluster 10.1.2.3/24 127.0.0.1 fd00::3 /home/alice/x") == (
        "host0 192.0.2.1/24 127.0.0.1 2001:db8::2 /home/user/x"
    )
    assert hidden("110.1.2.3 10.1.2.33 node-7.clusters") == "110.1.2.3 10.1.2.33 node-7.clusters"
    gid, address = "fe80:0000:0000:0000:5a52:8e03:0012:3456", "0000:0000:0000:0000:0000:ffff:0a01:0203"
    assert hidden(f"{gid} {address} {gid}") == (
        "fe80:0000:0000:0000:0000:00ff:fe00:0001 0000:0000:0000:0000:0000:ffff:c000:0202 "
        "fe80:0000:0000:0000:0000:00ff:fe00:0001"
    )
    gpu, none = "GPU-1b5c0e6a-0b1c-4d5e-8f90-123456789abc", "GPU-00000000-0000-0000-0000-000000000000"
    assert hidden(f"<serial>1654</serial><uuid>{gpu}</uuid> {gpu}") == f"<serial>0</serial><uuid>{none}</uuid> {none}"


def test_only_variables_in_scope_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("HISTORY_OF_ALICE", "planted")
    record(str(tmp_path), torch=False, paths={})
    said = json.loads((tmp_path / "machine.json").read_text())
    assert "planted" not in json.dumps(said) and "HOME" in said["environ"] or "HOME" not in os.environ
