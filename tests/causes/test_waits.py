"""What the ranks of a running job wait for, by recorded frames; and who keeps whom waiting."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from ncclkit import evidence
from ncclkit.agent.monitor import kernels, program, snapshots
from ncclkit.agent.run import processes
from ncclkit.analysis import waits
from ncclkit.analysis.motion import headline, motion
from ncclkit.analysis.waits import blockages, position_bars, rank_positions, waiting_time
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event
from ncclkit.evidence.records import from_attached

TORCH = "/env/lib/python3.11/site-packages/torch"
LIBC, TORCH_CPU, PYTHON = "/lib/libc.so.6", f"{TORCH}/lib/libtorch_cpu.so", "/usr/lib/libpython3.11.so.1.0"
ALL_REDUCE = (f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce")
WRAPPER = (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper")
MAIN = ("/app/train.py", 99, "<module>")
ON_PEERS = [f"pthread_cond_wait ({LIBC})", f"c10d::Work::wait(std::chrono::duration<long>) ({TORCH_CPU})"]
REDUCES = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
Place = tuple[str, int, str]


def own(line: int, func: str = "step") -> Place:
    return ("/app/train.py", line, func)


def rank(
    number: int,
    *frames: Place,
    native: list[str] | None = None,
    ran: float = 0.0,
    state: str = "S",
    text: str = "",
    moved: bool = False,
    wakes: int = 0,
    **data: Any,
) -> list[Event]:
    """The events of one rank: two snapshots 3 s apart, and its stack (innermost frame first)."""
    names = ("file", "line", "func")
    stack = [dict(zip(names, frame, strict=True)) for frame in frames]
    whole = [f"    {func} ({file}:{line})" for file, line, func in frames]
    kernel, file, steps = data.pop("waits_in", ""), data.pop("file", ""), data.pop("steps", ({}, {}))
    shots = [
        {"t": at, "state": state, "cpu": 0.0, "main": at * ran, "switches": 5 + wakes * int(at > 0),
         "waits_in": kernel, "file": file, "steps": steps[int(at > 0)],
         "stack": "\n".join(whole[int(moved and at > 0) :])}
        for at in (0.0, 3.0)
    ]  # fmt: skip
    conditions = [data.pop("condition")] if "condition" in data else []
    at = next(((line, func) for file, line, func in frames if file == "/app/train.py"), (1, ""))
    row = {"file": "/app/train.py", "line": at[0], "func": at[1], "text": "", "group": data.pop("group", "")}
    row |= {"conditions": conditions, "loops": data.pop("loops", [])}
    told = {"pid": 100 + number, "command": "python train.py", "launcher": "torchrun, process 9", "slurm": ""}
    told |= {"snapshots": shots, "kernel": data.pop("kernel", None), "quiet": data.pop("quiet", None)}
    told |= {"kernels": data.pop("kernels", []), "on_gpu": data.pop("on_gpu", False)}
    told |= {"program": [row], "branches": data.pop("branches", []), "gone": False, "exitcode": None}
    seen = {"pid": 100 + number, "thread": "MainThread", "frames": stack, "tool": "pystack", "native": native or []}
    seen |= {"state": data.pop("gil", ""), "threads": [], "peer": data.pop("peer", {})}
    return [
        Event("attach.rank", "", "run/attached.json", 0, None, "node-1", 100 + number, number, told),
        Event("stack", text, f"run/stacks_rank{number}.txt", 1, None, "", 100 + number, number, seen),
    ]


def waiting(number: int, line: int = 33, call: Place = ALL_REDUCE, **more: Any) -> list[Event]:
    return rank(number, call, WRAPPER, own(line), MAIN, native=ON_PEERS, **more)


def judged(*ranks: list[Event]) -> Diagnosis:
    events = [event for one in ranks for event in one]
    case = Case()
    case.events = [*events, *blockages(events)]
    return diagnose(case)


ITEM = ("/app/train.py", 67, "step")
KINDS = {
    "GPU below .item()": (["cuStreamSynchronize (/lib/libcuda.so.1)", "cudaStreamSynchronize (/lib/libcudart.so.12)"],
                          [ITEM], {"ran": 1.0}, waits.GPU),
    "GPU in the driver, which loads a kernel once it is idle": (["??? (/usr/lib/libcuda.so.580.1)"], [ITEM],
                                                                {"ran": 1.0}, waits.GPU),
    "GPU in synchronize, by its file": ([], [(f"{TORCH}/cuda/__init__.py", 1040, "synchronize"), ITEM], {"ran": 1.0},
                                        waits.GPU),
    "peers": (ON_PEERS, [ALL_REDUCE, WRAPPER, own(33)], {}, waits.PEERS),
    "store": ([f"__poll ({LIBC})", f"c10d::TCPStore::wait() ({TORCH_CPU})"], [own(3, "init_process_group")], {},
              waits.STORE),
    "worker": ([f"__poll ({LIBC})"], [(f"{TORCH}/utils/data/dataloader.py", 1200, "_try_get_data"), own(20)], {},
               waits.WORKER),
    "file": ([f"__open ({LIBC})", f"_io_open ({PYTHON})"], [(f"{TORCH}/serialization.py", 776, "__init__"), own(9)], {},
             waits.FILE),
    "file, by the kernel's function": ([], [own(9)], {"waits_in": "rpc_wait_bit_killable"}, waits.FILE),
    "lock of a file": ([f"flock ({LIBC})", "fcntl_flock (/usr/lib/fcntl.so)"], [own(9)], {}, waits.LOCK),
    "lock of a thread": ([f"sem_wait ({LIBC})", f"PyThread_acquire_lock_timed ({PYTHON})"], [own(9)], {}, waits.LOCK),
    "the GIL": ([f"pthread_cond_timedwait ({LIBC})", f"take_gil ({PYTHON})"], [own(9)], {}, waits.GIL),
    "holds the GIL": ([f"clock_nanosleep ({LIBC})", "call (/app/extension.so)"], [own(9)], {"gil": "Has the GIL"},
                      waits.HOLDS_GIL),
    "process": ([f"wait4 ({LIBC})"], [("/usr/lib/python3.11/subprocess.py", 2021, "_try_wait"), own(9)], {},
                waits.PROCESS),
    "socket": ([f"__send ({LIBC})", f"sock_sendall ({PYTHON})"], [own(9, "upload")], {}, waits.SOCKET),
    "timer": ([f"clock_nanosleep ({LIBC})", f"time_sleep ({PYTHON})"], [own(9)], {}, waits.TIMER),
    "Python": ([f"_PyEval_EvalFrameDefault ({PYTHON})"], [own(67)], {"ran": 0.99}, waits.PYTHON),
    "native code": ([f"sgemm_kernel ({TORCH_CPU})"], [own(67)], {"ran": 0.99}, waits.NATIVE),
    "stopped": (ON_PEERS, [ALL_REDUCE, own(33)], {"state": "T"}, waits.STOPPED),
    "nothing known": ([], [own(9)], {}, waits.UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_rank_waits_for(kind: str) -> None:
    native, frames, more, expected = KINDS[kind]
    assert rank_positions(rank(0, *frames, MAIN, native=native, **more))[0].waits_for == expected


def test_a_rank_without_a_stack_is_not_called_busy_on_a_gpu() -> None:
    """It may spin in a wait for its GPU, as both ranks of a hang on two H200 did."""
    on_gpu = [rank(number, ran=1.0, on_gpu=True)[0] for number in (0, 1)]
    assert [one.activity() for one in rank_positions(on_gpu).values()] == ["could not be read"] * 2
    assert motion(on_gpu) is None
    writes = [rank(1, ran=0.0, steps=({"step": 1}, {"step": 2}))[0]]
    assert motion([on_gpu[0], *writes]) is None, "one that moves, beside one that may wait for it"
    on_cpu = [rank(number, ran=1.0)[0] for number in (0, 1)]
    assert motion(on_cpu) is not None


def test_busy_is_only_said_of_a_rank_that_is() -> None:
    spins = rank(0, ITEM, MAIN, native=["cuStreamSynchronize (/lib/libcuda.so.1)"], ran=1.0)
    assert rank_positions(spins)[0].activity() == "waits for its GPU in step at train.py:67"
    spins[0].data.program[0]["text"] = "loss.item()"
    assert rank_positions(spins)[0].activity() == "waits for its GPU in `loss.item()` at train.py:67"
    assert (
        rank_positions(rank(0, own(67), MAIN, ran=1.0))[0].activity() == "is busy in Python code in step at train.py:67"
    )


def test_python_that_was_met_in_a_call_of_a_library_holds_nothing() -> None:
    """The loop of a program that skips batches: two snapshots at its line, the native frames below `Tensor.__len__`."""
    length, native = (f"{TORCH}/_tensor.py", 1150, "__len__"), [f"THPVariable_dim ({TORCH_CPU})"]
    events = rank(0, length, own(9), MAIN, native=native, ran=1.0, gil="Has the GIL")
    assert rank_positions(events)[0].waits_for == waits.HOLDS_GIL
    for shot in events[0].data.snapshots:
        shot["stack"] = shot["stack"].partition("\n")[2]
    assert rank_positions(events)[0].waits_for == waits.NATIVE


def test_library_calls_have_the_names_of_what_they_are() -> None:
    ddp = (f"{TORCH}/nn/parallel/distributed.py", 1700, "forward")
    call = (f"{TORCH}/nn/modules/module.py", 1751, "_wrapped_call_impl")
    gather = ("/env/site-packages/accelerate/accelerator.py", 2500, "gather")
    for frames, name in (((ddp, call), "DistributedDataParallel.forward"), ((WRAPPER, gather), "Accelerator.gather")):
        assert rank_positions(rank(0, ALL_REDUCE, *frames, own(33), MAIN, native=ON_PEERS))[0].call == name


def test_a_rank_outside_is_named_with_its_line_and_what_it_waits_for() -> None:
    native, frames, _, _ = KINDS["file"]
    found = judged(
        *(waiting(n, quiet=240.0) for n in (0, 1, 3)), rank(2, *frames, MAIN, native=native, file="/mnt/a.pt")
    )
    first, second = found.findings[:2]
    assert (first.cause, first.culprits["ranks"], first.strength) == ("disk_or_io", (2,), "likely")
    assert second.say == (
        "Rank 2 waits for a file (/mnt/a.pt) in __init__ at train.py:9 and has not entered all_reduce at train.py:33; "
        "ranks 0, 1 and 3 wait in it with no word from others for at least 4 min."
    )


def test_ranks_at_different_lines_have_diverged_and_the_fewest_are_odd() -> None:
    barrier = (f"{TORCH}/distributed/distributed_c10d.py", 5000, "barrier")
    found = judged(waiting(0, 41, barrier), *(waiting(n) for n in (1, 2)))
    assert (found.findings[0].cause, found.findings[0].culprits["ranks"]) == ("rank_divergence", (0,))
    assert found.findings[0].say.startswith("Rank 0 is in barrier at train.py:41 where ranks 1 and 2 are in all_reduce")


def test_of_two_ranks_the_one_under_a_condition_on_the_rank_is_odd() -> None:
    found = judged(waiting(0), waiting(1, 41, condition="rank == 1"))
    assert found.findings[0].culprits["ranks"] == (1,) and "inside `if rank == 1`" in found.findings[0].say
    found = judged(waiting(0), waiting(1, 41))
    assert found.findings[0].culprits["ranks"] == (0, 1) and "Neither side" in found.findings[0].say


def test_of_two_ranks_the_one_that_has_left_the_loop_of_the_other_is_odd() -> None:
    """As where one has less data, or breaks off: it stands after the loop, the other in it."""
    found = judged(waiting(0, loops=[[30, 35]]), waiting(1, 41))
    assert found.findings[0].culprits["ranks"] == (1,) and "after the loop at train.py:30" in found.findings[0].say
    found = judged(waiting(0, loops=[[30, 35]]), waiting(1, 32, loops=[[30, 35]]))
    assert found.findings[0].culprits["ranks"] == (0, 1)


def test_a_receive_without_a_send() -> None:
    recv = (f"{TORCH}/distributed/distributed_c10d.py", 2799, "recv")
    found = judged(waiting(0, 20, recv, peer={"src": 1}), waiting(1), waiting(2))
    assert (found.findings[0].cause, found.findings[0].culprits["ranks"]) == ("send_recv_mismatch", (0,))


def test_a_receive_without_a_send_while_ras_counts_a_barrier_more() -> None:
    recv = (f"{TORCH}/distributed/distributed_c10d.py", 2799, "recv")
    data = {"hash": "0xc5", "size": 2, "missing": [], "counts": {"AllReduce": {"0": 3, "1": 4}}, "behind": [0]}
    report = Event("ras.communicator", "", "ras.json", data=data | {"dead": [], "errors": {}})
    change = {"hash": "0xc5", "moved": {}, "still": [0, 1], "seconds": 4.0, "behind": [0]}
    seen = [waiting(0, 20, recv, peer={"src": 1}, condition="rank == 0"), waiting(1)]
    found = judged(*seen, [report, Event("ras.change", "", "ras.json", data=change)])
    assert (found.findings[0].cause, found.findings[0].culprits["ranks"]) == ("send_recv_mismatch", (0,))


def test_two_groups_in_two_orders() -> None:
    found = judged(waiting(0, 20, group="tp"), waiting(1, 21, group="dp"), waiting(2, 21, group="dp"))
    assert found.findings[0].cause == "concurrent_comms"


def test_a_rank_that_is_gone() -> None:
    gone = Event(
        "attach.rank",
        "rank 2 has no process",
        "run/attached.json",
        rank=2,
        host="node-1",
        data={"gone": True, "exitcode": None},
    )
    found = judged(waiting(0), waiting(1), [gone])
    assert (found.findings[0].cause, found.findings[0].culprits["ranks"]) == ("rank_killed", (2,))


def test_a_job_that_goes_on_is_not_accused() -> None:
    ranks = [waiting(n, moved=True) for n in range(3)] + [waiting(3)]
    events = [event for one in ranks for event in one]
    assert blockages(events) == [] and headline(events).startswith("The job goes on: ranks 0-2 moved")


def test_a_rank_that_is_woken_again_and_again_makes_steps() -> None:
    """Two snapshots may meet a healthy job at one line."""
    events = [event for number in range(3) for event in waiting(number, wakes=300)] + rank(3, own(9), MAIN, ran=1.0)
    assert blockages(events) == [] and headline(events).startswith("The job goes on")


def test_nothing_live_is_proven() -> None:
    """Without sequence numbers a rank may only be on its way."""
    native, frames, _, _ = KINDS["holds the GIL"]
    found = judged(waiting(0), waiting(1), rank(2, *frames, MAIN, native=native, gil="Has the GIL"))
    assert found.findings[0].cause == "gil_hold" and {one.strength for one in found.findings} <= {"likely", "possible"}


def test_dumps_are_believed_before_stacks() -> None:
    dump = Event("flight.missing", data={"missing": [1]})
    assert blockages([*waiting(0), *rank(1, own(9), MAIN), dump]) == []


NCCL = "ncclDevKernel_{}_RING_LL"
REDUCE = NCCL.format("AllReduce_Sum_f32")
SPIN = ["cuStreamSynchronize (/lib/libcuda.so.1)"]


@pytest.mark.parametrize(
    ("running", "cause", "ranks", "strength"),
    [
        ((REDUCE, REDUCE, "spin_forever"), "slow_rank", (2,), "likely"),
        ((REDUCE, REDUCE, NCCL.format("AllGather")), "rank_divergence", (2,), "likely"),
        ((None, None, None), "rank_divergence", (2,), "possible"),
    ],
    ids=["a kernel that is not NCCL's", "another collective", "not asked"],
)  # fmt: skip
def test_the_kernel_of_a_gpu_says_who_is_odd(running: Any, cause: str, ranks: Any, strength: str) -> None:
    lines = (67, 67, 80)
    found = judged(*(rank(n, own(lines[n]), MAIN, native=SPIN, kernel=running[n], ran=1.0) for n in range(3)))
    first = found.findings[0]
    assert (first.cause, first.culprits["ranks"], first.strength) == (cause, ranks, strength)


def test_gpus_in_one_collective_are_not_divided_by_their_lines() -> None:
    events = [e for n in range(3) for e in rank(n, own(60 + n), MAIN, native=SPIN, kernel=REDUCE, ran=1.0)]
    assert blockages(events) == []


RANK_0 = [{"file": "/app/train.py", "first": 20, "last": 22, "condition": "rank == 0"}]


@pytest.mark.parametrize(
    ("one", "two", "ranks", "how"),
    [
        ({"condition": "rank == 0"}, {}, (0,), "inside `if rank == 0`"),
        ({}, {"condition": "is_main_process"}, (1,), "inside `if is_main_process`"),
        ({}, {}, (0, 1), ""),
        ({"condition": "rank == 0"}, {"condition": "rank"}, (0, 1), ""),
        ({"branches": RANK_0}, {"branches": RANK_0}, (0,), "inside `if rank == 0`"),
        ({"loops": [[8, 9]]}, {}, (1,), "after the loop at train.py:8"),
    ],
)
def test_dumps_of_two_ranks_are_decided_by_the_program(one: Any, two: Any, ranks: tuple[int, ...], how: str) -> None:
    """Two ranks have no majority.  One has left the common path: inside `if rank == 0`, or before the other one.

    Over NCCL both may stand at a later line, waiting for their GPU: then it is the line of the call that counts.
    """
    sides = [{"value": "barrier", "ranks": [0]}, {"value": "all_reduce", "ranks": [1]}]
    data = {"seq": 4, "field": "op", "op": "", "group": "0", "majority": sides[0], "odd": sides[1:]}
    data["sites"] = ["/app/train.py:21 in step", "/app/train.py:24 in step"]
    case = Case()
    case.events = [Event("flight.mismatch", "4: barrier, all_reduce", "fr_rank_0", 0, None, "", None, None, data)]
    for number, more in enumerate((one, two)):
        case.events += rank(number, ALL_REDUCE, own(9 + number), native=ON_PEERS, **more)
    first = diagnose(case).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("rank_divergence", "proven", ranks)
    assert how in first.say and ("left the common path" in first.say, "Without a majority" in first.say) == (
        len(ranks) == 1,
        len(ranks) == 2,
    )


@pytest.mark.parametrize(("more", "ranks"), [({}, (0, 1)), ({"condition": "rank == 0"}, (0,))])
def test_a_receive_that_no_dump_records_is_seen_in_the_stack(more: Any, ranks: tuple[int, ...]) -> None:
    """The first one of a pair makes a connection before it is recorded."""
    recv = (f"{TORCH}/distributed/distributed_c10d.py", 2799, "recv")
    data = {"seq": 4, "op": "barrier", "missing": [0], "waiting": [1], "no_dump": [], "overwritten": [], "group": "0"}
    data |= {"desc": "", "frames": [], "last_seq": {}, "root": "", "holds": [], "stacks": {}}
    gap = Event("flight.missing", "4 barrier", "fr_rank_0", 0, None, "", None, 0, data)
    found = judged(waiting(0, 20, recv, peer={"src": 1}, **more), waiting(1), [gap])
    assert (found.findings[0].cause, found.findings[0].culprits["ranks"]) == ("send_recv_mismatch", ranks)


def test_a_dump_of_one_rank_does_not_hide_the_others() -> None:
    dump = Event("flight.dump", "", "fr_rank_0", rank=0, data={"version": "2.10", "entries": 3, "groups": {}})
    found = judged(waiting(0), rank(1, ALL_REDUCE, own(33), native=ON_PEERS, state="T"), [dump])
    assert (found.findings[0].cause, found.findings[0].culprits["ranks"]) == ("slow_rank", (1,))


@pytest.mark.parametrize(
    ("lines", "cause", "ranks"), [((67, 67), "rank_divergence", (0,)), ((67, 0), "slow_rank", (1,))]
)
def test_launches_that_ras_counts(lines: tuple[int, int], cause: str, ranks: tuple[int, ...]) -> None:
    """A rank that launched fewer is late where it does something else; all have diverged where it waits as well."""
    counts = {"AllReduce": {"0": 4, "1": 4}, "Broadcast": {"0": 1, "1": 0}}
    data = {"hash": "0xc5", "size": 2, "missing": [], "counts": counts, "behind": [1], "dead": [], "errors": {}}
    change = {"hash": "0xc5", "moved": {}, "still": [0, 1], "seconds": 4.0, "behind": [1]}
    report = [Event("ras.communicator", "", "ras.json", data=data), Event("ras.change", "", "ras.json", data=change)]
    native, frames, _, _ = KINDS["file"]
    seen = [rank(n, own(line), MAIN, native=SPIN, ran=1.0) for n, line in enumerate(lines) if line]
    seen += [rank(1, *frames, MAIN, native=native)] * (not lines[1])
    named = {one.cause: one.culprits["ranks"] for one in judged(*seen, report).findings}
    assert named[cause] == ranks and ("slow_rank" in named) != ("rank_divergence" in named)


@pytest.mark.parametrize(("states", "ranks"), [(("started", "scheduled"), (1,)), (("started", "started"), ())])
def test_a_gpu_that_has_not_begun_a_collective_by_the_dumps(states: tuple[str, str], ranks: tuple[int, ...]) -> None:
    """A kernel before it never ends; cuda-gdb was not asked which."""
    data = {"seq": 4, "op": "all_reduce", "ranks": [0, 1], "group": "0", "desc": "", "root": "", "holds": []}
    data["states"] = {str(number): state for number, state in enumerate(states)}
    stuck = Event("flight.stuck", "4 all_reduce", "fr_rank_0", 0, None, "", None, None, data)
    found = judged(*(rank(n, own(67), MAIN, native=SPIN, ran=1.0) for n in range(2)), [stuck])
    named = [one for one in found.findings if one.cause == "slow_rank"]
    assert [one.culprits["ranks"] for one in named] == [ranks] * bool(ranks)
    assert not ranks or "has launched collective 4 (all_reduce), which its GPU has not begun" in found.findings[0].say


def test_where_dumps_show_all_in_one_collective_the_kernels_decide() -> None:
    """A kernel before the collective that never ends looks the same without them."""
    data = {"seq": 4, "op": "all_reduce", "ranks": [0, 1], "group": "0", "desc": "", "root": "", "holds": []}
    data["states"] = {"0": "scheduled", "1": "scheduled"}
    stuck = Event("flight.stuck", "4 all_reduce", "fr_rank_0", 0, None, "", None, None, data)
    found = judged(*(rank(n, own(67), MAIN, native=SPIN, ran=1.0) for n in range(2)), [stuck])
    assert (found.findings[0].cause, found.findings[0].strength) == ("nccl_bug", "possible")
    assert "`ncclkit attach --kernels` says which" in found.findings[0].say


CUDA_GDB = """[New Thread 0x7f2 (LWP 12)]
  Kernel Parent Dev Grid Status   SMs Mask GridDim  BlockDim Invocation
*      0      -   0    7 Active 0x00ffffff (24,1,1) (512,1,1) {}(ncclDevKernelArgsStorage<4096>)
[Inferior 1 (process 11) detached]
"""
FOCUS = "[Switching focus to CUDA kernel 0, grid 7]\nncclDevKernel_AllReduce_Sum_f32_RING_LL<<<(24,1,1),(512,1,1)>>>\n"


@pytest.mark.parametrize(
    ("said", "kernel"),
    [
        (CUDA_GDB.format("ncclDevKernel_Broadcast_RING_SIMPLE"), ("ncclDevKernel_Broadcast_RING_SIMPLE", "7")),
        (FOCUS, ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "7")),
        ("spin(long)<<<(1,1,1),(1,1,1)>>> ()", ("spin", "")),
        (CUDA_GDB.format("at::cuda::(anonymous namespace)::spin_kernel"), ("at::cuda::spin_kernel", "7")),
        ("at::cuda::<unnamed>::spin_kernel(long)<<<(1,1,1),(1,1,1)>>>", ("at::cuda::spin_kernel", "")),
        ("No CUDA kernels.\n", ("", "")),
        ("ptrace: Operation not permitted.\n", None),
    ],
)
def test_what_cuda_gdb_prints(said: str, kernel: tuple[str, str] | None) -> None:
    assert kernels.kernel_of(said) == kernel


@pytest.mark.parametrize(
    ("grids", "moved", "says"),
    [
        (("7", "7"), False, "its GPU is in spin for at least 12 s"),
        (("7", "8"), True, "is in spin"),
        ((), False, "item"),
    ],
)
def test_kernels_of_two_looks_tell_slow_from_stuck(grids: tuple[str, ...], moved: bool, says: str) -> None:
    """One launch that lasts does not end; another launch is progress, and its rank is not stuck."""
    looks = [{"t": 12.0 * number, "name": "spin", "grid": grid} for number, grid in enumerate(grids)]
    events = rank(0, own(67, "item"), MAIN, native=SPIN, ran=1.0, kernel="spin" if grids else None, kernels=looks)
    (stand,) = rank_positions(events).values()
    assert (stand.moved, says in stand.activity()) == (moved, True)
    assert headline(events).startswith("The job goes on") == moved


@pytest.mark.parametrize(
    ("kernel", "dumped", "says"),
    [
        (None, False, "does not tell why; --dump or --kernels may."),
        (None, True, "does not tell why; --kernels may."),
        (REDUCES, False, f", each GPU in {REDUCES}: where they stand does not tell why; --dump may."),
        (REDUCES, True, "does not tell why."),
    ],
)
def test_what_was_already_asked_for_is_not_advised(kernel: str | None, dumped: bool, says: str) -> None:
    events = [event for number in range(2) for event in waiting(number, kernel=kernel)]
    events += [Event("flight.dump", "", "fr_0", 1, None, "node-1", 100, 0, {})] * dumped
    assert headline(events).endswith(says)


@pytest.mark.parametrize(
    ("first", "last", "moved", "said"),
    [
        ({"epoch": 3, "step": 117}, {"epoch": 3, "step": 120}, True, "moved between the snapshots (step 117 to 120)."),
        ({"step": 117}, {"step": 117}, False, ""),
        ({}, {"step": 117}, False, ""),
    ],
    ids=["goes on", "stands", "read once"],
)
def test_steps_of_two_looks_are_compared(first: Any, last: Any, moved: bool, said: str) -> None:
    """A job that makes a step a second may be met at one line twice."""
    events = [event for number in range(2) for event in waiting(number, steps=(first, last))]
    assert [stand.moved for stand in rank_positions(events).values()] == [moved] * 2 and said in headline(events)
    assert "(" + ", ".join(f"{name} {number}" for name, number in last.items()) + ")" in position_bars(events)[0]


def test_the_picture_shows_which_ranks_stand_where() -> None:
    ranks = [*(waiting(n, steps=({}, {"step": 118 + n})) for n in (0, 1, 3)), rank(2, own(9), MAIN)]
    shown = position_bars(event for one in ranks for event in one)
    assert shown[0].split("  ")[1:] == ["··■· 1", "rank 2 stands in step at train.py:9"]
    assert shown[1].startswith("  ■■·■ 3  ranks 0, 1 and 3 wait") and shown[1].endswith("(step 118 to 121)")


PROGRAM = """import torch
def step(rank, group):
    if rank == 0:
        dist.barrier()
    elif torch.ok:
        dist.recv(t, src=3)
    else:
        dist.all_reduce(t, group=group)
"""


@pytest.mark.parametrize(
    ("line", "conditions", "group", "peer"),
    [(4, ["rank == 0"], "", None), (6, ["rank != 0"], "", 3), (8, ["rank != 0"], "group", None), (2, [], "", None)],
)
def test_what_the_program_says_of_a_line(line: int, conditions: Any, group: str, peer: Any) -> None:
    texts = {"train.py": PROGRAM}
    told = program.source_line(texts, "train.py", line)
    assert (told["conditions"], told["group"], told["peer"]) == (conditions, group, peer)
    rows = program.branches(texts, "train.py")
    around = [row["condition"] for row in rows if row["first"] <= line <= row["last"]]
    assert around == conditions


CONDITIONS = """def save(rank, loss):
    gather(rank) if rank == 1 else reduce(rank)
    rank == 0 and dist.barrier()
    rank == 0 or dist.barrier()
    if rank == 0: dist.barrier()
    if check(rank): dist.barrier()
    loss.item() if rank == 0 else 0
    while rank == 0:
        poll()
    while not done(rank):
        poll()
    if rank == 5:
        poll()
    elif rank == 6:
        poll()
    else:
        poll()
    for batch in loader:
        if rank != 0:
            continue
        upload()
    if rank == 0:
        upload()
    else:
        return
    dist.barrier()
"""


@pytest.mark.parametrize(
    ("line", "called", "expected"),
    [
        (2, ["gather"], ["rank == 1"]),
        (2, ["reduce"], ["rank != 1"]),
        (2, [], []),
        (2, ["__call__"], []),
        (3, ["wrapper", "barrier"], ["rank == 0"]),
        (3, [], ["rank == 0"]),
        (4, ["barrier"], ["rank != 0"]),
        (5, [], ["rank == 0"]),
        (6, ["check"], []),
        (6, ["barrier"], ["check(rank)"]),
        (6, [], []),
        (7, [], ["rank == 0"]),
        (9, ["poll"], ["while rank == 0"]),
        (11, ["poll"], []),
        (13, ["poll"], ["rank == 5"]),
        (15, ["poll"], ["rank == 6", "rank != 5"]),
        (17, ["poll"], ["rank != 6", "rank != 5"]),
        (18, [], []),
        (21, ["upload"], ["past if rank != 0: continue"]),
        (23, ["upload"], ["rank == 0"]),
        (26, ["barrier"], ["past if rank != 0: return"]),
    ],
)
def test_the_conditions_under_which_a_line_is_reached(line: int, called: list[str], expected: list[str]) -> None:
    """What was called decides where a condition and what depends on it share a line; else nothing is claimed."""
    assert program.conditions(CONDITIONS, line, called) == expected


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("rank == 0", "inside `if rank == 0`"),
        ("while rank == 0", "inside `while rank == 0`"),
        ("past if rank != 0: return", "past `if rank != 0: return`"),
    ],
)
def test_how_a_condition_is_said(condition: str, words: str) -> None:
    found = judged(waiting(0), waiting(1, 41, condition=condition))
    assert found.findings[0].culprits["ranks"] == (1,) and words in found.findings[0].say


def test_a_dump_is_not_placed_in_a_line_of_two_branches() -> None:
    """It names a line, not what was called from it."""
    texts = {"train.py": CONDITIONS}
    rows = program.branches(texts, "train.py")
    around = {line: [row["condition"] for row in rows if row["first"] <= line <= row["last"]] for line in (2, 3, 5, 6)}
    assert around == {2: [], 3: ["rank == 0"], 5: ["rank == 0"], 6: []}


LOOPS = """for epoch in epochs:
    for batch in data:
        step(batch)
    validate()
"""


def test_the_loops_around_a_line() -> None:
    texts = {"train.py": LOOPS}
    found = [program.source_line(texts, "train.py", line)["loops"] for line in (3, 4)]
    assert found == [[[1, 4], [2, 3]], [[1, 4]]]


@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "3", "LOCAL_RANK": "1"}, [2, 3]),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, [0, 1]),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "HERE", "SLURM_NNODES": "1"}, [0, 1]),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "HERE", "SLURM_NNODES": "2"}, []),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "HERE"}, []),
        # claims that no host can be believed, and such as are no numbers
        ({"LOCAL_WORLD_SIZE": "1000000000", "RANK": "0", "LOCAL_RANK": "0"}, []),
        ({"WORLD_SIZE": "1000000000", "MASTER_ADDR": "127.0.0.1"}, []),
        ({"WORLD_SIZE": "9" * 5000, "MASTER_ADDR": "127.0.0.1"}, []),
        ({"WORLD_SIZE": "²", "MASTER_ADDR": "127.0.0.1"}, []),
        ({"LOCAL_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "1"}, []),
        ({"WORLD_SIZE": "1000", "MASTER_ADDR": "127.0.0.1"}, list(range(1000))),
    ],
)
def test_the_ranks_that_should_be_on_a_host(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], ranks: list[int]
) -> None:
    """The first host of several has the address of the store, and only its share of the ranks."""
    known = {name: value.replace("HERE", socket.gethostname()) for name, value in variables.items()}
    monkeypatch.setattr(processes, "environ", lambda pid: known)
    assert snapshots.expected_ranks([1]) == ranks


def test_a_list_of_more_ranks_than_a_host_has_accuses_none() -> None:
    """By a claim of its only process; of a list that a host can have each absent rank is one."""
    one = {"0": {"pid": 7, "snapshots": []}}
    claims = {claim: {"attached": 1, "host": "a", "expected": list(range(claim)), "ranks": one} for claim in (3, 65536)}
    gone = {claim: sum(event.data.gone for event in from_attached(said, "a")) for claim, said in claims.items()}
    assert gone == {3: 2, 65536: 0}


def test_since_when() -> None:
    assert waiting_time(rank_positions([*waiting(0, quiet=400.0), *waiting(1, quiet=300.0)]).values()) == "with no word from others for at least 5 min"
    assert waiting_time(rank_positions(waiting(0)).values()) == "for at least 3 s"


@pytest.mark.parametrize(
    ("launcher", "cause", "said"),
    [
        ("torchrun, process 9", "rank_divergence", "Rank 2 finished normally while ranks 0 and 1 still waited"),
        ("srun, process 9", "rank_killed", "Rank 2 on node-1 has no process any more"),
    ],
)
def test_how_a_rank_without_a_process_ended(tmp_path: Path, launcher: str, cause: str, said: str) -> None:
    """torchrun ends the others as soon as one fails: where it lets them wait, that one had ended well."""
    stack = "\n".join(f"    {func} ({file}:{line})" for file, line, func in (ALL_REDUCE, own(33), MAIN))
    shots = [{"t": float(t), "state": "S", "stack": stack, "main": 1.0, "switches": 4} for t in (10, 13)]
    rows = {str(one): {"pid": 100 + one, "snapshots": shots, "launcher": launcher} for one in range(2)}
    told = {"attached": 1, "host": "node-1", "expected": [0, 1, 2], "ranks": rows}
    (tmp_path / "attached.json").write_text(json.dumps(told))
    for number in range(2):
        (tmp_path / f"stacks_rank{number}.txt").write_text(f'Thread 1 (idle): "MainThread"\n{stack}\n')
    events = evidence.read([tmp_path]).events
    case = Case()
    case.events = [*events, *blockages(events)]
    first = diagnose(case).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == (cause, "likely", (2,)) and said in first.say


def test_512_ranks_on_one_screen_in_time(tmp_path: Path) -> None:
    """As 64 nodes would leave them in the run folder."""
    header = "Traceback for thread {pid} (python) [] (most recent call last):\n"
    frame = '    (Python) File "{}", line {}, in {}\n'
    native = '    (C) File "???", line 0, in c10d::Work::wait() (/env/lib/libtorch_cpu.so)\n'
    for node in range(64):
        rows = {}
        for number in range(8 * node, 8 * node + 8):
            place = own(88, "save") if number == 137 else own(33)
            frames = [MAIN, place] if number == 137 else [MAIN, place, ALL_REDUCE]
            text = header.format(pid=1000 + number) + "".join(frame.format(*one) for one in frames)
            (tmp_path / f"stacks_rank{number}.txt").write_text(text + native * (number != 137))
            stack = "\n".join(f"    {func} ({file}:{line})" for file, line, func in reversed(frames))
            shots = [{"t": float(t), "state": "S", "stack": stack, "main": 1.0, "switches": 4} for t in (10, 13)]
            rows[str(number)] = {"pid": 1000 + number, "snapshots": shots, "command": "python train.py"}
        told = {"attached": 1, "host": f"node-{node}", "expected": [], "ranks": rows}
        (tmp_path / f"attached-node{node}.json").write_text(json.dumps(told))
    begun = time.monotonic()
    events = evidence.read([tmp_path]).events
    case = Case()
    case.events = [*events, *blockages(events)]
    found, shown = diagnose(case), position_bars(events)
    assert time.monotonic() - begun < 30 and len(shown) == 3 and "8 ranks a column" in shown[0]
    assert "rank 137 stands in save at train.py:88" in shown[1] and " 511  ranks 0-136 and 138-511 wait" in shown[2]
    assert shown[1].index("▪") == shown[2].index("▪") == 2 + 137 // 8
    assert found.findings[0].culprits["ranks"] == (137,)


def a_report_of_ras(behind: list[int]) -> list[Event]:
    data = {"hash": "0x1", "size": 2, "missing": [], "counts": {}, "behind": behind, "dead": [], "errors": {}}
    return [Event("ras.communicator", "0x1", "run/ras.json", 1, data=data)]


@pytest.mark.parametrize(("behind", "causes"), [([], []), ([0], ["slow_rank"])])
def test_a_rank_at_work_is_accused_only_where_it_is_a_call_behind(behind: list[int], causes: list[str]) -> None:
    """A stage of a pipeline works while the next one waits: NCCL counts no sends."""
    works = rank(0, own(143, "work"), MAIN, ran=1.0, moved=True)
    found = judged(works, waiting(1), waiting(2), a_report_of_ras(behind))
    assert [finding.cause for finding in found.findings][:1] == causes


def test_who_waits_for_a_stopped_rank_is_not_elsewhere() -> None:
    """Seen with eight ranks: two were a call behind those that needed nothing of the stopped one."""
    data = {"group": "0", "desc": "", "seq": 21, "op": "all_reduce", "missing": [0, 2], "waiting": [3]}
    gap = Event("flight.missing", "21 all_reduce", "fr_rank_3", 0, None, "", None, 3, data)
    others = [*waiting(0), *waiting(2), *waiting(3)]
    for state, named in (("T", False), ("S", True)):
        case = Case()
        case.add([*others, *rank(1, own(20), MAIN, state=state), gap])
        causes = {finding.cause for finding in diagnose(case).findings if finding.strength == "likely"}
        assert ("rank_divergence" in causes) == named, (state, causes)
