"""Sentences that stood word for word in logs of failures and were not read, each with a healthy twin."""

from __future__ import annotations

import pytest

from ncclkit.core.model import fields_of

FINGERPRINT = "TensorShape=[20], TensorDtypes=Float, TensorDeviceTypes=cpu)"
MISMATCH = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
    f"CollectiveFingerPrint(SequenceNumber=0OpType=ALLREDUCE, {FINGERPRINT}, but Rank 1 is running collective: "
    f"CollectiveFingerPrint(SequenceNumber=0OpType=BROADCAST, {FINGERPRINT}."
)
DUPLICATE = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5d000"
NCCL_ERROR = (
    "torch.distributed.DistBackendError: NCCL error in: /opt/NCCLUtils.cpp:94, invalid usage, NCCL version 2.27.5\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n\n"
)
RAY_OOM = (
    "Memory on the node (IP: 10.0.0.1, ID: 01ab) where the task (actor ID: 02cd, name=Worker, pid=123, memory "
    "used=50.01GB) was running was 60.11GB / 62.80GB (0.957184), which exceeds the memory usage threshold of 0.95. "
    "Ray killed this worker (ID: 03ef) because it was the most recently scheduled task"
)
SAID = [
    (MISMATCH, "c10d.mismatch", {}),
    (NCCL_ERROR + DUPLICATE, "nccl.warn", {"family": "duplicate_gpu"}),
    (NCCL_ERROR + DUPLICATE, "c10d.error", {"last_error": DUPLICATE}),
    (DUPLICATE, "nccl.warn", {"family": "duplicate_gpu", "message": DUPLICATE}),
    (f"(RayTrainWorker pid=123) {DUPLICATE}", "nccl.warn", {"family": "duplicate_gpu"}),
    (
        f"(RayTrainWorker pid=123) {DUPLICATE} [repeated 7x across cluster]",
        "nccl.warn",
        {"family": "duplicate_gpu", "message": DUPLICATE},
    ),
    (
        "[rank3]: Cuda failure 802 'system not yet initialized'",
        "nccl.warn",
        {"error": "system not yet initialized"},
    ),
    ("[rank3]: Cuda failure 802", "nccl.warn", {"family": "cuda"}),
    (
        "failures={1: ProcessFailure(local_rank=1, pid=4711, exitcode=-7, error_file='<N/A>', "
        "message='Signal 7 (SIGBUS) received by PID 4711')}",
        "elastic.exit",
        {"local_rank": 1, "exitcode": -7, "signal": 7},
    ),
    (RAY_OOM, "system.error", {"what": "oom_kill"}),
    (
        "The client socket has timed out after 60000ms while trying to connect to node-1:29500.",
        "store.connect_timeout",
        {"host": "node-1", "port": 29500, "timeout_ms": 60000},
    ),
    (
        "The client socket has failed to connect to any network address of node-1:29500.",
        "store.connect_timeout",
        {"host": "node-1", "port": 29500},
    ),
    (
        "RuntimeError: HIP error: invalid device ordinal",
        "cuda.error",
        {"error": "invalid device ordinal"},
    ),
    (
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 63.98 "
        "GiB of which 1.06 GiB is free.",
        "cuda.oom",
        {"gpu": 1, "tried": "2.00 GiB", "free": "1.06 GiB"},
    ),
    (
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/THCStorage.cu:58",
        "cuda.oom",
        {},
    ),
    (
        "RuntimeError: cuda runtime error (59) : device-side assert triggered at /pytorch/aten/x.cu:26",
        "cuda.error",
        {"error": "device-side assert triggered"},
    ),
    (
        "THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=50 error=10 : invalid device ordinal",
        "cuda.error",
        {"error": "invalid device ordinal"},
    ),
    (
        "n1:12:13 [0] INFO NCCL_SOCKET_IFNAME set by environment to eth9.",
        "nccl.env",
        {"name": "NCCL_SOCKET_IFNAME", "value": "eth9"},
    ),
    (
        "n1:12:13 [0] INFO NET/Plugin : No plugin found (libnccl-net.so).",
        "nccl.info",
        {"family": "no_plugin"},
    ),
    (
        "n1:12:13 [0] INFO Ring 00 : 2[3] -> 3[0] via direct shared memory",
        "nccl.channel",
        {"src": 2, "dst": 3, "via": "SHM"},
    ),
]
HEALTHY = [
    (
        "CollectiveFingerPrint(SequenceNumber=0OpType=ALLREDUCE, TensorShape=[20]) agrees",
        "c10d.mismatch",
    ),
    ("Last error:\n\nframe #0: c10::Error::Error() + 0x96 (0x7f01 in libc10.so)", "nccl.warn"),
    (f"Fixed in 2.19: a `{DUPLICATE}` that named the wrong rank", "nccl.warn"),
    ("No Duplicate GPU detected on node-1", "nccl.warn"),
    ("retrying after Cuda failure 802, attempt 2 went well", "nccl.warn"),
    ("class ProcessFailure(local_rank, pid, exitcode): ...", "elastic.exit"),
    ("The memory usage threshold of 0.95 is not exceeded: 31.2GB / 62.80GB", "system.error"),
    ("The client socket has connected to node-1:29500.", "store.connect_timeout"),
    ("HIP error checks are on", "cuda.error"),
    ("HIP memory: 12 GiB of 64 GiB used", "cuda.oom"),
    ("cuda runtime version 12.4", "cuda.error"),
    ("n1:12:13 [0] INFO trainer: step 12 took 3 s", "nccl.env"),
]


@pytest.mark.parametrize(("text", "kind", "fields"), SAID)
def test_a_sentence_is_read(only, text, kind, fields):
    events = only(kind, text + "\n")
    assert [
        event for event in events if {name: fields_of(event)[name] for name in fields} == fields
    ]


@pytest.mark.parametrize(("text", "kind"), HEALTHY)
def test_its_healthy_twin_is_not(only, text, kind):
    assert only(kind, text + "\n") == []


def test_a_line_of_nccl_2_3_names_host_and_process(only):
    (event,) = only(
        "nccl.env", "n1:12:13 [0] INFO NCCL_SOCKET_IFNAME set by environment to eth9.\n"
    )
    assert (event.host, event.pid) == ("n1", 12)
