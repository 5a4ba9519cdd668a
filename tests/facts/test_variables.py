"""What is wrong with a variable."""

import pytest

from ncclkit.agent.facts import checks, names, variables
from ncclkit.agent.facts.machine import Machine, Unread


@pytest.mark.parametrize(
    "name, value, kind, words",
    [
        ("NCCL_BUFSIZE", "1", "misspelt", "NCCL_BUFFSIZE"),
        ("NCCL_IB_TIMOUT", "22", "misspelt", "NCCL_IB_TIMEOUT"),
        ("NCCL_SOCKET_IFNAMES", "eth0", "misspelt", "NCCL_SOCKET_IFNAME"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLNG", "1", "misspelt", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("NCCL_ZZZ", "1", "unknown", "ignored silently"),
        ("NCCL_BLOCKING_WAIT", "1", "renamed", "TORCH_NCCL_BLOCKING_WAIT"),
        ("NCCL_P2P_DISABLE", "true", "value", "write 0 or 1"),
        ("NCCL_P2P_DISABLE", "7", "value", "write 0 or 1"),
        ("NCCL_IB_TIMEOUT", "long", "value", "whole number"),
        ("NCCL_ALGO", "Rng", "value", "RING"),
        ("NCCL_ALGO", "allreduce:tree,rng", "value", "RING"),
        ("NCCL_PROTO", "LL256", "value", "LL128"),
        ("NCCL_DEBUG", "DEBUG", "value", "INFO"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NETT", "value", "NET"),
        ("TORCH_DISTRIBUTED_DEBUG", "1", "value", "DETAIL"),
        ("MASTER_PORT", "99999", "value", "1024"),
    ],
)
def test_wrong(name, value, kind, words):
    [row] = checks.check(name, value)
    assert (row["kind"], row["name"], row["value"]) == (kind, name, value) and words in row["hint"]


@pytest.mark.parametrize(
    "name, value",
    [
        ("NCCL_ALGO", "allreduce:tree,ring;broadcast:^ring"),
        ("NCCL_ALGO", "^NVLS"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG_SUBSYS", "^INIT,ENV"),
        ("NCCL_P2P_LEVEL", "NVL"),
        ("NCCL_P2P_LEVEL", "3"),
        ("NCCL_CUMEM_ENABLE", "-2"),
        ("NCCL_IB_PKEY", "0x7fff"),
        ("NCCL_P2P_DISABLE", "01"),
        ("MASTER_PORT", "0x7000"),
        ("NCCL_GIN_TYPE", "2"),
        ("NCCL_TESTS_DEVICE", "0"),
        ("MASTER_PORT", "29500"),
        ("NCCL_VERSION", "2.28.3-1"),
        ("TORCH_CUDA_ARCH_LIST", "9.0a"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail"),
        ("GLOO_SOCKET_IFNAME", "eth0"),
        ("UCX_WHATEVER", "x"),
        ("OMP_NUM_THREADS", "4,2"),
    ],
)
def test_right(name, value):
    assert list(checks.check(name, value)) == []


def test_tables_do_not_overlap():
    tables = [names.FLAGS, names.NUMBERS, names.TEXTS, set(names.CHOICES)]
    assert sum(map(len, tables)) == len(set().union(*tables))


@pytest.mark.parametrize(
    "values, ports, kinds",
    [
        ({"NCCL_IB_HCA": "mlx5"}, ["mlx5_0"], []),
        ({"NCCL_IB_HCA": "=mlx5_0:1"}, ["mlx5_0"], []),
        ({"NCCL_IB_HCA": "^mlx5_7"}, ["mlx5_0"], []),
        ({"NCCL_IB_HCA": "mlx5_7"}, ["mlx5_0"], ["device"]),
        ({"NCCL_NET": "IB"}, [], ["device"]),
        ({"NCCL_NET": "IB"}, ["mlx5_0"], []),
        ({"NCCL_IB_DISABLE": "1"}, [], []),
        ({"NCCL_IB_DISABLE": "1"}, ["mlx5_0"], ["harmful"]),
        ({"NCCL_P2P_DISABLE": "1"}, [], ["harmful"]),
        ({"NCCL_P2P_DISABLE": "0"}, [], []),
    ],
)
def test_devices(values, ports, kinds):
    rows = checks.devices(values, [{"device": device, "state": "ACTIVE"} for device in ports])
    assert [row["kind"] for row in rows] == kinds


class Blind(Machine):
    """A machine whose interfaces cannot be read."""

    def call(self, name, function):
        raise Unread("getifaddrs: Operation not permitted")


def test_what_could_not_be_checked_is_said():
    machine = Blind("/nowhere")
    machine.environ = {"NCCL_SOCKET_IFNAME": "eth9"}
    facts = {fact["name"]: fact["value"] for fact in variables.facts(machine)}
    assert facts["env.problems"] == []
    assert [row["kind"] for row in facts["env.notes"]] == ["unchecked"]
