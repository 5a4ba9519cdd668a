"""The network: who will use which interface, what is marked, hosts that are alike once."""

from __future__ import annotations

import re
from html import unescape

import pytest

from ncclkit.views.network import network_view
from tests.views.machines import captured, copies
from tests.views.test_faces import Page


def marked(html: str) -> dict[str, list[str]]:
    """Interface → who will use it, in the order of the rows."""
    rows = re.findall(r"<tr><td.*?</tr>", unescape(html))
    named = {re.findall(r"<code>(.*?)</code>", row)[0]: re.findall(r"</span> ([^<]*)</span>", row) for row in rows}
    return {name: users for name, users in named.items() if ":" not in name}


@pytest.mark.parametrize(
    ("machine", "said", "used"),
    [
        (
            "cpu-vm",
            "NCCL will use eth0, gloo will use lo, which is enough on one host and reaches no other",
            {"lo": ["gloo"], "eth0": ["NCCL"]},
        ),
        (
            "h200-x8-slurm",
            "NCCL will use ibp24s0 (400 Gb/s), gloo will use eno1 (25 Gb/s)",
            {"eno1": ["gloo"], "ibp24s0": ["NCCL"]},
        ),
        ("hung-smi", "NCCL and gloo will both use eth0 (veth, 10 Gb/s)", {"eth0": ["NCCL", "gloo"]}),
        (
            "rdma-misnamed",
            "NCCL finds no interface: NCCL_SOCKET_IFNAME=eth9 matches none of lo, eno1, tailscale0; gloo",
            {},
        ),
    ],
)
def test_what_will_be_used_stands_first_and_is_marked(machine: str, said: str, used: dict[str, list[str]]) -> None:
    view = network_view(captured(machine))
    assert view.summary.startswith(said)
    rows = marked(view.static())
    assert {name: users for name, users in rows.items() if users} == used
    assert list(rows)[: len(used)] == [name for name in rows if name in used]


@pytest.mark.parametrize(("ports", "used"), [([], ["gloo", "NCCL's data"]), (["mlx5_0:1"], ["gloo"])])
def test_interfaces_of_the_data_where_no_rdma_port_takes_it(ports: list[str], used: list[str]) -> None:
    case = copies("h200-x8-slurm", 1, {1: {"net.nccl.interfaces": ["ibp24s0", "eno1"], "net.nccl.hcas": ports}})
    assert marked(network_view(case).static())["eno1"] == used


@pytest.mark.parametrize(
    ("ports", "said"),
    [([], "takes none of 2 RDMA ports"), (["mlx5_1:1"], "takes 1 of 2"), (["mlx5_0:1", "mlx5_1:1"], "takes all 2")],
)
def test_rdma_ports_that_nccl_takes_are_counted_and_marked(ports: list[str], said: str) -> None:
    view = network_view(copies("h200-x8-slurm", 1, {1: {"net.nccl.hcas": ports}}))
    assert said in view.summary
    rows = re.findall(r"<tr><td.*?</tr>", view.static())
    assert [port for row in rows if "data</span>" in row for port in re.findall(r"mlx5_\d:1", row)] == ports


def test_rdma_ports_with_their_state_and_errors() -> None:
    words = Page(network_view(captured("rdma-misnamed")).static()).words
    for said in ("mlx5_0:1", "200 Gb/s", "Ethernet", "ens1", "local_ack_timeout_err 340", "▲", "DOWN"):
        assert said in words


def test_hosts_that_differ_in_addresses_only_are_one_kind_and_the_odd_one_comes_first() -> None:
    odd = {1: {"net.hostname.addresses": ["10.9.9.9"]}, 7: {"net.gloo.interface": "lo"}}
    view = network_view(copies("h200-x8-slurm", 40, odd))
    data = "; for its data NCCL takes all 2 RDMA ports"
    assert view.summary == (
        f"2 kinds of network. node-0007: NCCL will use ibp24s0 (400 Gb/s), gloo will use lo, "
        f"which is enough on one host and reaches no other{data}"
        f"; node-[0001-0006,0008-0040]: NCCL will use ibp24s0 (400 Gb/s), gloo will use eno1 (25 Gb/s){data}"
    )
    assert "39 hosts: node-[0001-0006,0008-0040]; addresses and errors are those of node-0001" in view.static()


def test_hosts_that_are_all_alike_are_counted() -> None:
    assert network_view(copies("hung-smi", 12, {})).summary.endswith("eth0 (veth, 10 Gb/s), on each of 12 hosts")
