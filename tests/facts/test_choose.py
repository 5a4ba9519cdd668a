"""Interfaces are picked as NCCL 2.30.7 itself picked them, in a network namespace with these interfaces."""

import pytest

from ncclkit.agent.facts import network
from ncclkit.agent.facts.machine import Unread

UP = network.UP | network.RUNNING
IDLE = network.UP
ROWS = [  # getifaddrs gives the IPv4 addresses first
    ("lo", UP | network.LOOPBACK, 4, "127.0.0.1/8"),
    ("docker0", UP, 4, "172.17.0.1/16"),
    ("virbr0", UP, 4, "192.168.122.1/24"),
    ("eth0", UP, 4, "10.0.0.5/24"),
    ("eth1", IDLE, 4, "10.1.0.5/24"),
    ("ibs0", UP, 4, "10.2.0.5/24"),
    ("lo", UP | network.LOOPBACK, 6, "::1/128"),
    ("eth10", UP, 6, "fd00::5/64"),
    ("ibs0", UP, 6, "fe80::4829/64"),
    ("plain", UP, 0, ""),
]


def entries(without=()):
    return [
        {"name": name, "flags": flags, "family": family, "address": address}
        for name, flags, family, address in ROWS
        if name not in without
    ]


@pytest.mark.parametrize(
    "env, without, first",
    [
        ({}, (), "ibs0"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, (), "eth0"),
        ({"NCCL_SOCKET_IFNAME": "eth1"}, (), "eth10"),
        ({"NCCL_SOCKET_IFNAME": "eth0:1"}, (), "eth0"),
        ({"NCCL_SOCKET_IFNAME": "lo"}, (), "lo"),
        ({"NCCL_SOCKET_IFNAME": "=ibs0,eth0"}, (), "eth0"),
        ({"NCCL_SOCKET_IFNAME": "^ib"}, (), "lo"),
        ({"NCCL_SOCKET_IFNAME": "^=eth0,lo"}, (), "docker0"),
        ({"NCCL_SOCKET_IFNAME": "^docker,lo,ib"}, (), "virbr0"),
        ({"NCCL_SOCKET_IFNAME": "^^"}, (), "lo"),
        ({"NCCL_SOCKET_IFNAME": "e"}, (), "ibs0"),  # one character is ignored
        ({"NCCL_SOCKET_IFNAME": "^"}, (), "ibs0"),
        ({"NCCL_SOCKET_FAMILY": "AF_INET6"}, ("ibs0",), "eth10"),
        ({"NCCL_COMM_ID": "172.17.0.9:4000"}, ("ibs0",), "docker0"),  # from the source, not run
        ({}, ("ibs0",), "eth0"),
        ({}, ("ibs0", "eth0", "eth10"), "docker0"),
        ({}, ("ibs0", "eth0", "eth10", "docker0"), "lo"),
        ({}, ("ibs0", "eth0", "eth10", "docker0", "lo"), "virbr0"),
    ],
)
def test_nccl(env, without, first):
    assert network.nccl_picks(entries(without), env)[0] == first


@pytest.mark.parametrize(
    "wanted, note",
    [
        ("eth9", "matches none of lo, docker0, virbr0, eth0, ibs0, eth10"),
        ("=eth1", "; eth1 exists, but is down or has no address of the wanted family"),
        ("plain", "; plain exists, but is down or has no address"),
    ],
)
def test_nccl_finds_none(wanted, note):
    with pytest.raises(Unread, match="NCCL_SOCKET_IFNAME") as why:
        network.nccl_picks(entries(), {"NCCL_SOCKET_IFNAME": wanted})
    assert note in str(why.value)


@pytest.mark.parametrize(
    "own, name",
    [
        (["10.0.0.5"], "eth0"),
        (["127.0.1.1"], "lo"),
        ([], "lo"),
        (["203.0.113.9", "10.2.0.5"], "ibs0"),
        (["203.0.113.9"], "lo"),
    ],
)
def test_gloo_follows_the_host_name(own, name):
    assert network.gloo_picks(entries(), own) == name


def test_gloo_takes_whole_names_only():
    assert network.gloo_picks_named(entries(), "eth0,ibs0") == "eth0"
    with pytest.raises(Unread, match="GLOO_SOCKET_IFNAME=eth names eth, but"):
        network.gloo_picks_named(entries(), "eth")


def port(device, number=1, state="ACTIVE", layer="InfiniBand"):
    return {"device": device, "port": number, "state": state, "link_layer": layer}


PORTS = [
    port("mlx5_0"),
    port("mlx5_1", layer="Ethernet"),
    port("mlx5_2", state="DOWN"),
    port("mlx5_10"),
    port("mlx5_10", 2),
    port("rdmap16s27", layer="Unspecified"),  # EFA: only through its net plugin
]


@pytest.mark.parametrize(
    "environ, taken",
    [
        ({}, "mlx5_0:1 mlx5_1:1 mlx5_10:1 mlx5_10:2"),
        ({"NCCL_IB_HCA": "mlx5_1"}, "mlx5_1:1 mlx5_10:1 mlx5_10:2"),
        ({"NCCL_IB_HCA": "=mlx5_1"}, "mlx5_1:1"),
        ({"NCCL_IB_HCA": "=mlx5_10:2,mlx5_0"}, "mlx5_0:1 mlx5_10:2"),
        ({"NCCL_IB_HCA": "^mlx5_1"}, "mlx5_0:1"),
        ({"NCCL_IB_HCA": "^=mlx5_1"}, "mlx5_0:1 mlx5_10:1 mlx5_10:2"),
        ({"NCCL_IB_HCA": "mlx5_2"}, ""),
        ({"NCCL_IB_DISABLE": "1"}, ""),
        ({"NCCL_NET": "Socket"}, ""),
        ({"NCCL_NET": "ib"}, "mlx5_0:1 mlx5_1:1 mlx5_10:1 mlx5_10:2"),
    ],
)
def test_rdma_ports(environ, taken):
    assert network.hcas(PORTS, environ) == taken.split()
