"""Captured machines give the facts that are known of them."""

import json
from pathlib import Path

import pytest

from ncclkit.agent import facts
from ncclkit.agent.facts import host
from ncclkit.agent.facts.machine import Machine
from ncclkit.core.model import Fact
from tests.record.machine import machine_at

MACHINES = sorted(path.parent for path in (Path(__file__).parents[1] / "machines").glob("*/machine.json"))
KEYS = {"name", "value", "unit", "source", "why"}


def read(machine: Path) -> dict[str, dict]:
    """The facts of a recorded machine by name; each name comes once."""
    rows = list(facts.collect(machine=machine_at(str(machine)), paths={"work": "."}))
    assert len({row["name"] for row in rows}) == len(rows)
    return {row["name"]: row for row in rows}


@pytest.fixture(params=MACHINES, ids=lambda path: path.name)
def machine(request):
    return request.param


def test_facts_are_as_expected(machine):
    known = read(machine)
    for name, value in json.loads((machine / "expected.json").read_text()).items():
        assert known[name]["value"] == value, known[name]


def test_every_fact_is_complete(machine):
    for row in read(machine).values():
        assert set(row) == KEYS and Fact(**row) and json.dumps(row)
        assert row["source"], row
        assert row["value"] is not None or row["why"], row


def test_no_reader_breaks(machine):
    assert [row for name, row in read(machine).items() if name.startswith("facts.")] == []


def values(machine: str, name: str) -> list[dict]:
    return read(next(path for path in MACHINES if path.name == machine))[name]["value"]


def test_kinds_of_interfaces():
    kinds = {row["name"]: (row["kind"], row["state"]) for row in values("rdma-misnamed", "net.interfaces")}
    assert kinds == {
        "lo": ("loopback", "up"),
        "eno1": ("physical", "up"),
        "ens1": ("physical", "no carrier"),
        "virbr0": ("bridge", "no carrier"),
        "tailscale0": ("tun", "up"),
        "ens1.100": ("virtual", "down"),
        "veth1a2b": ("veth", "up"),
    }


def test_a_filter_that_matches_nothing_says_what_there_is():
    known = read(next(path for path in MACHINES if path.name == "rdma-misnamed"))
    assert known["net.nccl.interface"]["why"] == "NCCL_SOCKET_IFNAME=eth9 matches none of lo, eno1, tailscale0"


def test_wrong_settings_are_problems_and_legal_ones_notes():
    problems = {(row["kind"], row["name"]) for row in values("rdma-misnamed", "env.problems")}
    assert problems == {
        ("misspelt", "NCCL_BUFSIZE"),
        ("value", "NCCL_ALGO"),
        ("value", "NCCL_IB_DISABLE"),
        ("value", "RANK"),
        ("device", "NCCL_SOCKET_IFNAME"),
        ("device", "GLOO_SOCKET_IFNAME"),
        ("device", "NCCL_IB_HCA"),
        ("misspelt", "NCCL_DEBUG"),  # these four stand in the file that NCCL_CONF_FILE names
        ("misspelt", "NCCL_IB_TC"),
        ("value", "NCCL_SOCKET_NTHREADS"),
        ("value", "NCCL_IB_RETRY_CNT"),
    }
    notes = {(row["kind"], row["name"]) for row in values("rdma-misnamed", "env.notes")}
    assert notes == {
        ("renamed", "NCCL_ASYNC_ERROR_HANDLING"),
        ("harmful", "NCCL_P2P_DISABLE"),
        ("harmful", "NCCL_ALGO"),
    }
    shadowed = [(row["name"], row["value"]) for row in values("h200-x8-slurm", "env.notes")]
    assert shadowed == [("NCCL_DEBUG", "WARN"), ("NCCL_IB_TIMEOUT", "18")]


def test_settings_that_this_host_cannot_fulfil():
    said = {row["name"]: (row["kind"], row["problem"]) for row in values("rtx4090-x2-roce", "env.problems")}
    assert said == {
        "NCCL_IB_HCA": ("device", "no active port is left: mlx5_1:1 is DOWN"),
        "NCCL_IB_TIMEOUT": ("value", "outside 1 to 31"),
        "CUDA_VISIBLE_DEVICES": ("device", "this host has 2 GPUs, so 2 does not exist and ends the list for CUDA"),
        "NCCL_TOPO_FILE": (
            "path",
            "there is no file /opt/azure/ndv4-topo.xml, which is ignored without a warning or ends the job",
        ),
    }
    notes = [(row["kind"], row["name"]) for row in values("rtx4090-x2-roce", "env.notes")]
    assert notes == [("overruled", "NCCL_DEBUG_SUBSYS")]


def test_a_driver_mismatch_is_said_in_the_words_of_nvidia_smi():
    known = read(next(path for path in MACHINES if path.name == "driver-mismatch"))
    assert "Driver/library version mismatch NVML library version: 550.163" in known["gpu.nvidia_smi"]["why"]
    assert known["gpu.driver"]["value"] != known["gpu.library"]["value"]


ROOTS = {
    "27 1 254:0 / / rw - ext4 /dev/vda rw": False,  # a virtual machine that boots a container's image
    "27 1 0:60 / / rw - overlay overlay rw,lowerdir=/l": "docker",
    "44 43 254:0 / / rw - ext4 /dev/vda rw": "docker",  # a namespace of its own
    "44 1 254:0 /var/lib/docker/vfs/dir/a / rw - ext4 /dev/vda rw": "docker",
    "": "docker",
}


@pytest.mark.parametrize(("root", "kind"), ROOTS.items(), ids=["booted", "overlay", "namespace", "vfs", "unknown"])
def test_the_marker_of_docker_in_a_booted_image_is_no_container(tmp_path, root, kind):
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / ".dockerenv").touch()
    (tmp_path / "proc" / "self" / "mountinfo").write_text(f"22 27 0:21 / /proc rw - proc proc rw\n{root}\n")
    here = Machine(str(tmp_path))
    here.environ = {}
    assert host.container(here) == kind
