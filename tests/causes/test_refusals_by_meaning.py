"""A refusal is known by what was asked: a file that a variable names, a setting that is newer than the library."""

from __future__ import annotations

import pytest

from ncclkit.core.model import Finding
from tests.cases import judged_text

HEAD = "n1:12:13 [0] "
FAILED = "RuntimeError: NCCL error in: /opt/NCCLUtils.hpp:219, unhandled system error, NCCL version 2.21.5\n"
GRAPH = f"{HEAD}NCCL INFO NCCL_GRAPH_FILE set by environment to /opt/a/graph.xml\n"
TOPO = f"{HEAD}NCCL INFO NCCL_TOPO_FILE set by environment to /opt/a/topo.xml\n"
NO_GRAPH = f"{HEAD}graph/xml.cc:203 NCCL WARN Could not open XML graph file /opt/a/graph.xml : No such file\n"
PARSED = f"{HEAD}graph/xml.cc:60 NCCL WARN XML Parse : Unexpected value with length 300\n"
OLDER = "Last error:\nInvalid config blocking attribute value -2147483648\n"


LIBRARY = "/opt/nccl/libnccl.so.2"
NAMED = f"INFO Found nccl from environment variable VLLM_NCCL_SO_PATH={LIBRARY}\n"
UNLOADED = f"OSError: {LIBRARY}: cannot open shared object file: No such file or directory\n"
PLUGIN = f"{HEAD}NCCL INFO NCCL_NET_PLUGIN set by environment to aws-ofi\n"
NO_PLUGIN = (
    f"{HEAD}plugin/open.cc:80 NCCL WARN NET/Plugin: dlopen failed for libnccl-net-aws-ofi.so:"
    " cannot open shared object file: No such file or directory\n"
)
INTERNAL = (
    f"{HEAD}NCCL INFO NET/Plugin: Could not find: libnccl-net-aws-ofi.so. Using internal net plugin.\n"
)
CONNECTED = f"{HEAD}NCCL INFO Connected all rings\nstep 10/20 loss 2.31\nstep 20/20 loss 2.11\n"
FABRIC = "RuntimeError: cuMemCreate failed: CUDA_ERROR_NOT_{} with CU_MEM_HANDLE_TYPE_FABRIC\n"
WITHOUT = "RuntimeError: Distributed package doesn't have NCCL built in\n"
WITHOUT_ANY = "AttributeError: module 'torch.distributed' has no attribute '{}'\n"
CAPTURED = (
    "NCCL cannot be captured in a graph if either it wasn't built with CUDA runtime >= 11.3 or if the"
    " installed CUDA driver < R465."
)
NO_FAMILY = "Socket creation failed : Address family not supported by protocol"
UCX = "mm_iface.c:823  UCX  ERROR mm_iface failed to allocate receive FIFO\n"
BLOCK = f"{HEAD}NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856\n"
VERSION = f"{HEAD}NCCL INFO NCCL version {{}}+cuda12.8\n"
SUDDEN = (
    "[rank0]:[E101 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)={0}) ran for {0}"
    " milliseconds before timing out.\n"
)


def found_in(text: str, cause: str) -> Finding | None:
    return next((finding for finding in judged_text(text).findings if finding.cause == cause), None)


@pytest.mark.parametrize(
    ("text", "cause", "word"),
    [
        (GRAPH + NO_GRAPH + FAILED, "bad_env_value", "NCCL_GRAPH_FILE"),
        (NO_GRAPH + FAILED, "bad_env_value", "NCCL_GRAPH_FILE"),
        (TOPO + PARSED + FAILED, "bad_env_value", "NCCL_TOPO_FILE"),
        (FAILED + OLDER, "version_mismatch", "older"),
        (PLUGIN + NO_PLUGIN + FAILED, "bad_env_value", "NCCL_NET_PLUGIN"),
        (FABRIC.format("PERMITTED"), "nvswitch_fabric", "IMEX"),
        (FABRIC.format("SUPPORTED"), "nvswitch_fabric", "IMEX"),
        (WITHOUT, "version_mismatch", "without NCCL"),
        (VERSION.format("2.25.1") + BLOCK, "nccl_bug", "shared memory a block"),
        (SUDDEN.format(600), "timeout_too_short", "600 ms"),
        (f"{HEAD}misc/strongstream.cc:53 NCCL WARN {CAPTURED}\n" + FAILED, "driver_too_old", "driver"),
        (f"{HEAD}include/socket.h:311 WARN {NO_FAMILY}\n" + FAILED, "ifname_not_found", "no network interface"),
        (UCX + FAILED, "shm_too_small", "/dev/shm"),
        (WITHOUT_ANY.format("init_process_group"), "version_mismatch", "without NCCL"),
    ],
    ids=[
        "graph",
        "graph without its variable",
        "topology",
        "newer headers",
        "plug-in",
        "handle not permitted",
        "handle not supported",
        "torch without NCCL",
        "shared memory of a block",
        "milliseconds",
        "a capture that the driver is too old for",
        "a socket without an address",
        "UCX without shared memory",
        "torch without torch.distributed",
    ],
)
def test_a_refusal_names_what_was_refused(text: str, cause: str, word: str) -> None:
    finding = found_in(text, cause)
    assert finding is not None and finding.strength == "likely" and word in finding.say


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (GRAPH + TOPO + f"{HEAD}NCCL INFO Connected all rings\n", "bad_env_value"),
        (PARSED + FAILED, "bad_env_value"),
        (FAILED + "Last error:\nInvalid config blocking attribute value 7\n", "version_mismatch"),
        (PLUGIN + INTERNAL + CONNECTED, "bad_env_value"),
        (PLUGIN + INTERNAL + FAILED, "bad_env_value"),
        (NAMED + CONNECTED, "bad_env_value"),
        (UNLOADED, "bad_env_value"),
        ("allocated with CU_MEM_HANDLE_TYPE_FABRIC\n" + CONNECTED, "nvswitch_fabric"),
        ("test_nccl SKIPPED (Distributed package doesn't have NCCL built in)\n", "version_mismatch"),
        (VERSION.format("2.25.1") + BLOCK + CONNECTED, "nccl_bug"),
        (VERSION.format("2.27.3") + BLOCK, "nccl_bug"),
        ("Enabled peer access between GPU 0 and GPU 1\n" + CONNECTED, "p2p_broken"),
        (SUDDEN.format(600000), "timeout_too_short"),
        ("Capturing the model for CUDA graphs.\n" + CONNECTED, "driver_too_old"),
        (f"{HEAD}NCCL INFO NET/Socket : Using [0]eth0:10.0.0.2<0>\n" + CONNECTED, "ifname_not_found"),
        ("parser.c:2036 UCX  INFO  UCX_* env variable: UCX_POSIX_DIR=/dev/shm\n" + CONNECTED, "shm_too_small"),
        (WITHOUT_ANY.format("gather_logs"), "version_mismatch"),
    ],
    ids=[
        "files that were read",
        "a file of the machine",
        "a value of one's own",
        "a plug-in that NCCL did without",
        "a plug-in that did no harm to a job that failed",
        "a library of a job at work",
        "a library that nobody named",
        "fabric handles that were granted",
        "a test that was skipped",
        "a job at work with that block",
        "a release that knows the block",
        "peer access that was granted",
        "the usual timeout",
        "a capture that succeeds",
        "an interface that was found",
        "shared memory of UCX that is used",
        "a function of one's own",
    ],
)
def test_what_was_not_refused_is_left_alone(text: str, cause: str) -> None:
    finding = found_in(text, cause)
    assert finding is None or finding.strength == "possible"


def test_a_library_that_a_variable_names_is_proven_by_its_path() -> None:
    finding = found_in(NAMED + UNLOADED, "bad_env_value")
    assert finding is not None and finding.strength == "proven"
    assert "VLLM_NCCL_SO_PATH" in finding.say and "may be set in" in finding.advice[0].do


@pytest.mark.parametrize(
    "text",
    [
        "F0712 init.cu:33] Check failed: e == cudaSuccess (217 vs. 0): cudaErrorPeerAccessUnsupported\n",
        "mscclpp error: CUDA_ERROR_PEER_ACCESS_UNSUPPORTED\n",
        "[engine] ERROR: Failed to enable peer access between GPU 0 and GPU 1\n",
        "[TensorRT-LLM][ERROR] cudaDeviceEnablePeerAccess(1, 0): peer access is not supported between"
        " these two devices\n",
    ],
    ids=["glog", "driver", "words", "runtime"],
)
def test_refused_peer_access_is_known_in_any_programs_words(text: str) -> None:
    finding = found_in(text, "p2p_broken")
    assert finding is not None and finding.strength in ("likely", "proven")
    assert found_in(text, "cuda_error") is None


def test_fabric_handles_ask_for_a_channel() -> None:
    finding = found_in(FABRIC.format("PERMITTED"), "nvswitch_fabric")
    assert finding is not None and "imex-channels" in finding.advice[0].do
