"""What an operating system refuses is understood in any program's words, by number, and in other languages."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.causes.engine import diagnose
from ncclkit.core.model import cite
from ncclkit.evidence.grammars import refusals
from tests.cases import case_of

ENVELOPE = "node-1:812:870 [0] "
LINES = {
    "ucx": ("memlock_limit", "ib_iface.c:983  UCX  ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory"),
    "ofi": (
        "memlock_limit",
        ENVELOPE + "nccl_net_ofi_rdma.c:3012 NCCL WARN NET/OFI Unable to register memory (type = 1) for device 0. "
        "RC: -12, Error: Cannot allocate memory",
    ),
    "efa": ("memlock_limit", "libfabric:4711:17:efa:mr:efa_mr_reg_impl():745<warn> Unable to register MR: -12"),
    "fabric": ("memlock_limit", "RuntimeError: fi_domain failed: -12 (Cannot allocate memory)"),
    "number": ("memlock_limit", "nvshmem: ibrc.cpp:480: ibv_reg_mr_iova2 failed: errno 12"),
    "mooncake": ("memlock_limit", "Failed to register memory 0x7f1200000000: Cannot allocate memory [12]"),
    "cm": ("memlock_limit", "ERROR: rdma_create_qp: Cannot allocate memory"),
    "pair": ("memlock_limit", "gpu12: trainer-7: ucx: mlx5_2:1: RC QP create failed: Cannot allocate memory"),
    "queue": ("memlock_limit", "rank 3: Completion queue creation failed, errno=12"),
    "openib": (
        "memlock_limit",
        "The OpenFabrics (openib) BTL failed to initialize while trying to allocate some locked memory.",
    ),
    "verbs-zh": ("memlock_limit", ENVELOPE + "ibvwrap.cc:301 NCCL WARN Call to ibv_create_qp failed with 无法分配内存"),
    "name-de": ("hostname_resolution", "socket.gaierror: [Errno -2] Der Name oder der Dienst ist nicht bekannt"),
    "name-fr": ("hostname_resolution", "socket.gaierror: [Errno -3] Échec temporaire dans la résolution du nom"),
    "ssh": ("hostname_resolution", "ssh: Could not resolve hostname worker-3: Name or service not known"),
    "go": ("hostname_resolution", "dial tcp: lookup master-0.train on 10.0.0.10:53: no such host"),
    "grpc": (
        "hostname_resolution",
        "resolver.cc:55] DNS resolution failed for trainer-0:12355: C-ares status is not 0",
    ),
    "mpich": ("hostname_resolution", "HYDU_sock_connect (sock.c:138): unable to get host address for node-7 (2)"),
    "refused-de": (
        "store_unreachable",
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
        "(10.0.0.1, 29500). The client socket has failed to connect to 10.0.0.1:29500 "
        "(errno: 111 - Verbindungsaufbau abgelehnt).",
    ),
    "family": (
        "store_unreachable",
        "RuntimeError: [errno: 97 - Address family not supported by protocol] The server socket cannot be initialized "
        "on [::]:29500",
    ),
    "port-zh": ("port_in_use", "OSError: [Errno 98] 地址已在使用"),
    "files-de": ("fd_limit", "OSError: [Errno 24] Zu viele offene Dateien: '/data/s'"),
    "files-fr": ("fd_limit", ENVELOPE + "socket.cc:700 NCCL WARN Net : socket failed : Trop de fichiers ouverts"),
    "threads-zh": ("fd_limit", "bash: fork: 重试：资源暂时不可用"),
    "threads-omp": ("fd_limit", "OMP: Error #34: System unable to allocate necessary resources for OMP thread:"),
    "threads-go": ("fd_limit", "runtime: failed to create new OS thread (have 2 already; errno=11)"),
    "disk-zh": ("disk_or_io", "OSError: [Errno 28] 设备上没有空间: '/data/ckpt/step_100.pt'"),
    "disk-fr": ("disk_or_io", "cp: error writing '/scratch/x.pt': Plus d'espace disponible sur le périphérique"),
    "disk-number": ("disk_or_io", "OSError: [Errno 28]: '/data/ckpt/step_100.pt'"),
    "quota-de": ("disk_or_io", "OSError: [Errno 122] Der zugewiesene Plattenplatz (Quota) ist überschritten"),
    "shm-zh": (
        "shm_too_small",
        ENVELOPE + "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : 设备上没有空间",
    ),
    "killed-zh": ("host_oom", "run.sh: 第 12 行：  4711 已杀死               python train.py"),
    "killed-de": ("host_oom", "run.sh: Zeile 12:  4711 Getötet                python train.py"),
    "killed-fr": ("host_oom", "run.sh : ligne 12 :  4711 Processus arrêté      python train.py"),
    "absl": ("rank_exception", "*** SIGSEGV received at time=1730000000 on cpu 31 ***"),
    "glog": ("rank_exception", "*** SIGSEGV (@0x8) received by PID 4711 (TID 0x7f12) from PID 8; stack trace: ***"),
    "slots": ("world_size_mismatch", "There are not enough slots available in the system to satisfy the 16 slots"),
    "ray": ("world_size_mismatch", "Error: No available node types can fulfill resource request {'GPU': 8.0}."),
    "memory-de": ("host_oom", "OSError: [Errno 12] Nicht genügend Hauptspeicher verfügbar"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_refusal_is_understood(name: str, tmp_path: Path) -> None:
    cause, line = LINES[name]
    (tmp_path / "job.log").write_text(f"epoch 0 begins\n{line}\n", encoding="utf-8")
    reading = evidence.read([tmp_path / "job.log"])
    first = diagnose(case_of(reading.events, reading.inputs)).findings[0]
    found = {first.cause} | ({"host_oom"} if first.cause == "rank_killed" else set())
    assert cause in found and not first.say.startswith("No rule")
    quoted = cite(first.evidence[0])
    assert quoted["line"] == 2 and line in quoted["text"]


@pytest.mark.parametrize(
    "line",
    [
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): "
        "Max retries exceeded (Caused by NameResolutionError: Temporary failure in name resolution)",
        "curl: (6) Could not resolve host: download.pytorch.org",
        "wandb: ERROR Unable to resolve hostname api.wandb.ai: Name or service not known",
        "W1121 00:28:00 socket.cpp:436] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - "
        "Address family not supported by protocol).",
        "registered memory: 12 buffers",
        "register memory pool of 12 GiB at 0x12",
    ],
)
def test_what_is_no_refusal_of_the_job_is_none(line: str, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(line + "\n", encoding="utf-8")
    case = case_of(evidence.read([tmp_path / "job.log"]).events)
    causes = {f.cause for f in diagnose(case).findings if not f.say.startswith("No rule")}
    assert not causes & {"hostname_resolution", "memlock_limit", "store_unreachable"}


@pytest.mark.parametrize(
    ("line", "cause", "strength"),
    [
        ("2026-11-21 00:28:00,123 ERROR saver: Stale file handle: /mnt/nfs/x", "disk_or_io", "likely"),
        ("[1.2] [n1:4711:0] UCX  ERROR uct_iface_open(rc_mlx5/mlx5_0:1) failed: Input/output error", "", ""),
    ],
)
def test_what_a_program_logs_as_an_error_counts_and_proves_nothing(
    line: str, cause: str, strength: str, tmp_path: Path
) -> None:
    (tmp_path / "job.log").write_text(line + "\n", encoding="utf-8")
    found = [
        f for f in diagnose(case_of(evidence.read([tmp_path / "job.log"]).events)).findings if "resemb" not in f.say
    ]
    assert [(f.cause, f.strength) for f in found] == ([(cause, strength)] if cause else [])


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("errno: 111 - Verbindungsaufbau abgelehnt", "errno: 111 - Connection refused"),
        ("failed with errno=28", "failed with errno=28 (No space left on device)"),
        ("[Errno 24] Too many open files", "[Errno 24] Too many open files"),
        ("errno 1200", "errno 1200"),
        ("a.sh: 行 5: 12345 段错误  (核心已转储) x", "a.sh: line 5: 12345 Segmentation fault  (core dumped) x"),
        ("Trop de fichiers ouverts dans le système", "Too many open files in system"),
    ],
)
def test_a_line_is_read_in_english(line: str, read: str) -> None:
    assert refusals.english(line) == read
    assert refusals.may_be(line.encode()) or line == read


def test_every_text_of_another_language_is_found_by_the_scanner() -> None:
    assert all(refusals.may_be(said.encode()) for said in refusals.FOREIGN)
    assert len(refusals.FOREIGN) > 70 and not set(refusals.FOREIGN) & set(refusals.FOREIGN.values())
