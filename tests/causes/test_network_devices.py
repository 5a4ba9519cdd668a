"""What NCCL's own lines say of each host's network and of each channel's interface, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cases import judged_log

from tests.evidence.jobs import started


def info(number: int, text: str, host: str = "") -> str:
    return f"{host or f'node-{number}'}:{800 + number}:{830 + number} [0] NCCL INFO {text}\n"


def both(one: str, two: str = "") -> str:
    return info(1, one) + info(2, two or one)


def warn(number: int, place: str, text: str, host: str = "") -> str:
    return f"{host or f'node-{number}'}:{800 + number}:{830 + number} [0] {place} NCCL WARN {text}\n"


INIT = "ncclCommInitRank comm 0x55d{0} rank {0} nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9a - Init START"
BEGUN = both(INIT.format(0), INIT.format(1))
HUNG = (
    "[rank0]:[E1121 00:28:00.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 "
    "milliseconds before timing out.\n"
)
WELL = both("comm 0x55d0 rank 0 nranks 2 cudaDev 0 busId 1b000 - Destroy COMPLETE") + "Training completed.\n"
NO_CARD = both("NET/IB : No device found.")
SOCKETS = NO_CARD + both("Using network Socket")
IPOIB = both("NET/Socket : Using [0]ib0:10.1.0.1<0>", "NET/Socket : Using [0]ib0:10.1.0.2<0>") + SOCKETS
INNER = both(*(f"NET/Socket : Using [0]eth0:10.0.0.{n}<0> [1]docker0:172.17.0.1<0>" for n in (1, 2)))
OVER = both(
    "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/{0}",
    "Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Socket/{0}",
)
CARDS = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/{0} [RO]; OOB eth0:10.0.0.1<0>"
MIXED = both(CARDS.format("RoCE"))
RAILS = info(1, "Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1") + info(
    2, "Channel 01/0 : 0[0] -> 1[0] [receive] via NET/IB/{0}"
)
NAMED = "".join(info(n, f"Bootstrap : Using eth0:192.168.1.1{n}<0>", "ubuntu") for n in (1, 2))
SAME_GPU = warn(1, "init.cc:943", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "ubuntu")
CLOSED = warn(2, "misc/socket.cc:58", "socketProgress: Connection closed by remote peer 10-244-1-5.trainer<43211>")

JOBS = {
    "exported": ("ib_not_used", "+ export NCCL_IB_HCA=mlx5_0,mlx5_1\n" + BEGUN + SOCKETS + HUNG),
    "mpirun": ("ib_not_used", "mpirun -x NCCL_IB_GID_INDEX=3 -np 2 python train.py\n" + BEGUN + SOCKETS + HUNG),
    "plugin": ("ib_not_used", BEGUN + both("NET/Plugin: Loaded net plugin IBext_v8 (v8)") + SOCKETS + HUNG),
    "ipoib": ("ib_not_used", BEGUN + IPOIB + HUNG),
    "verbs": (
        "ib_not_used",
        "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0\n"
        + BEGUN + SOCKETS + HUNG,
    ),
    "unopened": (
        "ib_not_used", BEGUN + warn(1, "net_ib.cc:190", "NET/IB : Unable to open device mlx5_0") + SOCKETS + HUNG
    ),
    "networks": ("net_plugin", BEGUN + both("Using network IBext", "Using network IB") + HUNG),
    "cards": ("ib_config", BEGUN + both(CARDS.format("IB"), CARDS.format("RoCE")) + both("Using network IB") + HUNG),
    "rails": ("ib_config", BEGUN + MIXED + RAILS.format(0) + HUNG),
    "channel": ("wrong_interface", BEGUN + INNER + OVER.format(1) + HUNG),
    "name": ("hostname_resolution", NAMED + SAME_GPU),
    "mesh": ("network_loss", "[istio-proxy] info Envoy proxy is ready\n" + BEGUN + CLOSED),
    "imex": (
        "nvswitch_fabric", warn(1, "mnnvl.cc:62", "MNNVL: export failed: CUDA_ERROR_NOT_PERMITTED. No IMEX channel")
    ),
    "peers": ("p2p_broken", "CUDA error 60 at p2p.cu:120: cudaErrorTooManyPeers: peer mapping resources exhausted\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_the_network_of_hosts_and_channels(name: str, tmp_path: Path) -> None:
    cause, text = JOBS[name]
    first = judged_log(tmp_path, text).findings[0]
    assert first.cause == cause and not first.say.startswith("No rule")


@pytest.mark.parametrize(
    ("cause", "text"),
    {
        "well over IPoIB": ("ib_not_used", BEGUN + IPOIB + WELL),
        "hung, nobody wanted InfiniBand": ("ib_not_used", BEGUN + SOCKETS + HUNG),
        "one network, well": ("net_plugin", BEGUN + both("Using network IBext") + HUNG),
        "equal cards": ("ib_config", BEGUN + MIXED + HUNG),
        "rails of one kind": ("ib_config", BEGUN + MIXED + RAILS.format(1) + HUNG),
        "the inner interface is not used": ("wrong_interface", BEGUN + INNER + OVER.format(0) + HUNG),
        "one machine": (
            "hostname_resolution",
            info(1, "Bootstrap : Using eth0:192.168.1.11<0>", "ubuntu") * 2 + SAME_GPU,
        ),
        "cut after Using": ("ib_not_used", BEGUN + info(1, "NET/IB : Using ") + info(1, "Using network IB") + HUNG),
        "no card and a plugin": ("ib_not_used", BEGUN + NO_CARD + both("Using network AWS Libfabric") + HUNG),
        "a mesh that passes all": ("network_loss", "[istio-proxy] Envoy proxy is ready\n" + BEGUN + WELL),
    }.values(),
)
def test_what_shows_no_fault_of_the_network(cause: str, text: str, tmp_path: Path) -> None:
    findings = judged_log(tmp_path, text).findings
    assert cause not in {f.cause for f in findings if not f.say.startswith("No rule")}


def test_sockets_of_one_host_and_infiniband_of_another_are_proven(tmp_path: Path) -> None:
    mixed = BEGUN + both("Using network Socket", "Using network IB") + HUNG
    first = judged_log(tmp_path, mixed).findings[0]
    assert (first.cause, first.strength, first.culprits["hosts"]) == ("ib_not_used", "proven", ("node-1",))
    cards = BEGUN + info(1, "NET/IB : No device found.") + info(2, "Using network IB") + HUNG
    assert [f.strength for f in judged_log(tmp_path, cards).findings if f.cause == "ib_not_used"] == ["likely"]


def test_two_machines_of_one_name_are_no_proof_of_a_shared_gpu(tmp_path: Path) -> None:
    found = {f.cause: f.strength for f in judged_log(tmp_path, NAMED + SAME_GPU).findings}
    assert found == {"hostname_resolution": "likely"}  # the other one rests on the very same line, and less firmly
    one = {f.cause: f.strength for f in judged_log(tmp_path, started("2.21.5", range(2), 2) + SAME_GPU).findings}
    assert one["duplicate_gpu"] == "proven"


def test_a_mesh_is_likely_only_where_the_ranks_had_met_at_the_store(tmp_path: Path) -> None:
    unmet = "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.\n"
    lost = "RuntimeError: NCCL error: remote process exited or there was a network error\n"
    strengths = []
    for text in (BEGUN + CLOSED, unmet + lost):
        (tmp_path / "job.log").unlink(missing_ok=True)
        found = judged_log(tmp_path, "[istio-proxy] info Envoy proxy is ready\n" + text).findings
        strengths += [finding.strength for finding in found if finding.cause == "network_loss"]
    assert strengths == ["likely", "possible"]
