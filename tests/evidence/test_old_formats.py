"""Lines of NCCL before it named itself, stacks of gdb with arguments, and stacks and tables in any column."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit.causes.engine import diagnose
from tests.cases import case_of, events_of


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("[3] include/shm.h:40 WARN Unable to allocate shared memory (4263936 bytes) : No space left on device",
         "shm_too_small"),
        ("[0] transport/net_socket.cu:115 WARN NET/Socket : no interface found", "ifname_not_found"),
        ("[0] misc/nvmlwrap.cu:100 WARN Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'",
         "driver_too_old"),
        ("[0] transport/p2p.cu:431 WARN failed to open CUDA IPC handle : 30 unknown error", "p2p_broken"),
        ("gpu01:1234:1300 [0] bootstrap.cu:86 WARN Connect to 10.1.2.3<40122> failed : Connection refused",
         "wrong_interface"),
        ("gpu01:12:13 [0] transport/net_ib.cu:7 WARN ibv_create_cq failed: Cannot allocate memory", "memlock_limit"),
    ],
)  # fmt: skip
def test_a_warning_that_does_not_name_nccl(line: str, cause: str, tmp_path: Path) -> None:
    events = events_of(tmp_path, line + "\n[0] INFO init.cu:200 -> 1\n")
    assert {"nccl.warn", "nccl.trace"} <= {event.kind for event in events}
    (warning,) = [event for event in events if event.kind == "nccl.warn"]
    assert (warning.host, warning.pid) == (("gpu01", int(line.split(":")[1])) if line[0] == "g" else ("", None))
    assert diagnose(case_of(events)).findings[0].cause == cause


def test_the_network_of_such_a_log(tmp_path: Path) -> None:
    text = "n1:12:13 [0] INFO NET : Using interface ib0:10.1.0.1<0>\nn1:12:13 [0] INFO Using internal Network Socket\n"
    own, network = events_of(tmp_path, text)
    assert (own.kind, own.host, own.data.interface, own.data.address) == (
        "nccl.bootstrap",
        "n1",
        "ib0",
        "10.1.0.1",
    )
    assert (network.kind, network.data.name) == ("nccl.network", "Socket")


@pytest.mark.parametrize(
    "line", ["[0] worker.py:40 WARN disk is slow", "[main.cc:40] WARN x", "12:01:02 [1] WARN a.h:3"]
)
def test_other_programs_that_warn(line: str, tmp_path: Path) -> None:
    assert not [event for event in events_of(tmp_path, line + "\n") if event.kind.startswith("nccl.")]


GDB = """\
#0  0x00007f12 in epoll_wait () from /lib/libc.so.6
#1  0x00007f13 in ncclCommInitRank (newcomm=0x7ffe, nranks=8, commId=..., myrank=0) at init.cc:1387
#2  0x00007f14 in c10d::ProcessGroupNCCL::synchronizeInternal(std::chrono::duration<long, std::ratio<1l, 1000l> >) ()
   from /opt/libtorch_cuda.so
#3  _PyEval_EvalFrameDefault (tstate=0x1, f=Frame 0x7f12, for file /app/train.py, line 70, in forward (x=1)) at x.c:41
"""
PYSPY = """\
Thread 4711 (active): "MainThread"
    wait (torch/distributed/distributed_c10d.py:900)
    main (/app/train.py:7)
"""
FAULT = """\
Current thread 0x00007f2a (most recent call first):
  File "/app/train.py", line 7 in main
"""
WANT = {
    GDB: [
        ("epoll_wait", 0),
        ("ncclCommInitRank", 1387),
        ("c10d::ProcessGroupNCCL::synchronizeInternal", 0),
        ("forward", 70),
    ],
    PYSPY: [("wait", 900), ("main", 7)],
    FAULT: [("main", 7)],
}


@pytest.mark.parametrize("lead", ["", "    ", "\t", "2026-11-21 00:28:00 dump: ", "node-1 | "])
@pytest.mark.parametrize("text", WANT, ids=["gdb", "py-spy", "faulthandler"])
def test_a_stack_in_any_column(text: str, lead: str, tmp_path: Path) -> None:
    lines = "".join(f"{lead}{line}\n" for line in text.splitlines())
    (stack,) = [event for event in events_of(tmp_path, f"epoch 0\n{lines}epoch 1\n") if event.kind == "stack"]
    assert [(frame["func"], frame["line"]) for frame in stack.data.frames] == WANT[text]


TABLES = """\
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 780.19  15.62
     1  15.30 780.00
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 780.19  0.62
     1  0.30 780.00
"""


@pytest.mark.parametrize("lead", ["", "      ", "test> "])
def test_a_table_of_copies_in_any_column(lead: str, tmp_path: Path) -> None:
    events = events_of(tmp_path, "".join(f"{lead}{line}\n" for line in TABLES.splitlines()))
    values = [event.data.values[1] for event in events if event.kind == "p2p.matrix"]
    assert values == [[15.3, 780.0], [0.3, 780.0]]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "E       torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 1 GiB free",
            "gpu_oom",
        ),
        ("E       FileNotFoundError: [Errno 2] No such file or directory: 'x.pt'", "rank_exception"),
    ],
)
def test_an_error_that_pytest_shows(line: str, cause: str, tmp_path: Path) -> None:
    assert diagnose(case_of(events_of(tmp_path, line + "\n"))).findings[0].cause == cause
