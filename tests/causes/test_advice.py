"""What is advised can be done: each command as it stands, in the words of what started the job."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclkit.analysis.launchers import launcher
from ncclkit.causes import catalogue, remedies_of
from ncclkit.causes._launchers import ANY, OPTIONS
from ncclkit.core.model import Advice, Finding
from tests.cases import judged_text, read_text
from tests.causes.specimens import FOLDERS, judged
from tests.record.advice_table import GRADES, grade_of_each

SHARED = Path(__file__).parents[4] / "shared" / "cases"
GAP = re.compile(
    r"<[A-Za-z][^<>]*>|…|\.\.\.|['\"/](?:MASTER_(?:ADDR|PORT)|HOST|PID|NAME|PORT)\b"
    r"|\b(?:PID|HOST|PEER|JOB|NAME)\b|\btrain\.py\b"
)
"""What the reader would have to replace, or what only looks like a name of this job."""


def all_advice() -> Iterator[tuple[str, Advice]]:
    """Every advice of every page, and of every finding of every specimen, with its place."""
    for cause in catalogue():
        for advice in remedies_of(cause):
            yield f"page of {cause}", advice
    for folder in FOLDERS:
        for finding in judged(folder)[0].findings:
            for advice in finding.advice:
                yield f"{folder.parent.name}/{folder.name}: {finding.cause}", advice


def problem_of(advice: Advice) -> str:
    """Why what is printed cannot be copied; empty where it can."""
    command = "; ".join([*advice.exports, advice.command])
    if GAP.search(command):
        return f"a gap in {command!r}"
    parsed = subprocess.run(["sh", "-n", "-c", command], capture_output=True, timeout=30)
    if parsed.returncode:
        return f"sh does not understand {command!r}"
    return ""


def test_every_printed_command_can_be_copied() -> None:
    seen: dict[tuple[str, ...], tuple[str, Advice]] = {}
    for place, advice in all_advice():
        seen.setdefault((advice.command, *advice.exports), (place, advice))
    problems = []
    for place, advice in seen.values():
        if problem := problem_of(advice):
            problems.append(f"{place}: {problem}")
    assert len(seen) > 100 and problems == []


SETTINGS = re.compile(r"\w+(?:_\w+)*: .*|--[\w-]+ .*|\"\w+\": .*", re.DOTALL)
"""Code that is no Python: a line of YAML, of JSON, or options of Megatron."""


def test_every_block_of_code_compiles() -> None:
    blocks = {advice.code: place for place, advice in all_advice() if advice.code}
    refused = []
    for code, place in blocks.items():
        if SETTINGS.fullmatch(code):
            continue
        try:
            compile(code, place, "exec")
        except SyntaxError as error:
            refused.append(f"{place}: {error.msg} in {code!r}")
    assert len(blocks) > 10 and refused == []


IN_USE = (
    "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:29511 (errno: 98 -"
    " Address already in use).\n"
    "[E socket.cpp:472] [c10d] The server socket has failed to listen on any local network"
    " address.\n"
)
STARTED_BY = {
    "": "",
    "torchrun": "+ torchrun --nnodes 2 fit.py\n",
    "accelerate": "+ accelerate launch --num_processes 8 fit.py\n",
    "deepspeed": "[2025-01-01 00:00:00,000] [INFO] [launch.py:256:main] process 12 spawned\n",
    "lightning": "initializing ddp: GLOBAL_RANK: 1, MEMBER: 2/8\n",
    "horovod": "+ horovodrun -np 2 python fit.py\n",
    "mpi": "+ mpirun -np 8 ./all_reduce_perf\n",
    "ray": "+ ray start --address=10.0.0.9:6379\n",
    "vllm": "+ vllm serve model --tensor-parallel-size 4\n",
    "sglang": "+ python -m sglang.launch_server --tp 4\n",
    "srun": "+ srun --ntasks-per-node=4 python fit.py\n",
    "kubernetes": "+ kubectl logs job-worker-0\n",
}


def test_the_launcher_is_told_from_the_lines() -> None:
    for name, line in STARTED_BY.items():
        assert launcher(read_text(line + IN_USE)) == name


def test_what_starts_its_ranks_by_another_decides() -> None:
    assert launcher(read_text(STARTED_BY["srun"] + STARTED_BY["lightning"])) == "lightning"
    assert launcher(read_text(STARTED_BY["ray"] + STARTED_BY["vllm"])) == "vllm"


def test_prose_about_launchers_is_no_launcher() -> None:
    prose = "The lightning speed of a ray of light accelerates; vllm and deepspeed are names.\n"
    assert launcher(read_text(prose + IN_USE)) == ""


def found_in(text: str, cause: str) -> Finding:
    return next(finding for finding in judged_text(text).findings if finding.cause == cause)


@pytest.mark.parametrize("name", STARTED_BY)
def test_another_port_is_given_in_the_launchers_own_option(name: str) -> None:
    first = found_in(STARTED_BY[name] + IN_USE, "port_in_use").advice[0]
    assert first.command == "ss -ltnp 'sport = :29511'"
    assert OPTIONS.get(name, ANY).port in first.do
    # an option of torchrun helps nobody who starts a job by something else
    assert ("torchrun" in first.do) == (name in ("", "torchrun"))


def test_the_port_of_torchruns_own_rendezvous_is_moved_by_its_endpoint() -> None:
    first = found_in(STARTED_BY["torchrun"] + IN_USE.replace("29511", "29400"), "port_in_use").advice[0]
    assert "`--rdzv-endpoint` of torchrun" in first.do and "`--master-port`" not in first.do


NO_ANSWER = """node-1:70:70 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/{layer} [RO]; OOB eth0:10.1.0.1<0>
node-1:70:70 [0] NCCL INFO comm 0x55d000 rank 0 nranks 2 cudaDev 0 busId 1b000 commId 0x9a3f - Init START
node-1:70:76 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.1.0.9<38241> with status=12 \
opcode=0 len=0 vendor err 129
"""


@pytest.mark.parametrize(("layer", "choice"), [("IB", False), ("RoCE", True)])
def test_only_ports_of_ethernet_are_told_to_choose_an_address(layer: str, choice: bool) -> None:
    said = " ".join(one.do for one in found_in(NO_ANSWER.format(layer=layer), "ib_config").advice)
    assert ("GID index" in said) == choice and ("subnet manager" in said) != choice


WORLD = (
    "initializing ddp: GLOBAL_RANK: 0, MEMBER: 1/4\ninitializing ddp: GLOBAL_RANK: 1, MEMBER: 2/4\n"
) * 2
STORE = (
    "[W socket.cpp:663] [c10d] The client socket has failed to connect to [{host}]:{port}"
    " (errno: 110 - Connection timed out).\n"
    "torch.distributed.DistNetworkError: The client socket has timed out after 60s while trying to"
    " connect to ({host}, {port}).\n"
)
HOST = "RuntimeError: ValueError: host not found: Name or service not known\n"
DUPLICATE = (
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
    "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 2000\n"
)
UNUSED = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new"
    " one. Parameter indices which did not receive grad for rank 1: 3\n"
)
SHAPES = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running"
    " inconsistent collective: CollectiveFingerPrint(OpType=ALLGATHER,"
    " TensorShape=[{batch}, 256, 512, 64], TensorDtypes=Float)\n"
)
BUFFERS = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum=7219, OpType=BROADCAST, NumelIn={n}, NumelOut={n},"
    " Timeout(ms)=600000) ran for 600097 milliseconds before timing out.\n"
)
LATE = "".join(
    f"[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)={ms}) ran for"
    " {ms} milliseconds before timing out.\n"
    for rank in (1, 2, 3)
)
HANGUP = (
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 82372 got signal: {}\n"
)
FULL = "RuntimeError: cuda error: out of memory at /workspace/csrc/cumem_allocator.cpp:62\n"
SYMBOL = "ImportError: /x/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister\n"
FORKED = (
    "INFO vllm/executor/multiproc_worker_utils.py starts the workers\n"
    "(VllmWorkerProcess pid=13359) ERROR RuntimeError: Cannot re-initialize CUDA in forked"
    " subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method\n"
)
RAISED = (
    "Traceback (most recent call last):\n"
    '  File "fit.py", line 3, in main\n    run()\n'
    "ValueError: The model has code of its own. {}.\n"
)
LOST_FILE = (
    "Traceback (most recent call last):\n"
    '  File "fit.py", line 3, in main\n    run()\n'
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/index.npy'\n"
)
INDEX = (
    "../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [3,0,0], thread:"
    " [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
    "RuntimeError: CUDA error: device-side assert triggered\n"
)
NO_CARD = (
    "n1:12:13 [0] nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No"
    " data available\n"
)
TUNNEL = (
    "w:97:221 [0] NCCL INFO Bootstrap : Using [0]tun0:fe80::e866%tun0<0> [1]veth0:10.1.2.3<0>\n"
    "w:97:221 [0] NCCL WARN Connect to fe80::745d%tun0<46681> failed : Connection timed out\n"
)
HARDWARE = (
    "w:97:221 [0] NCCL INFO Bootstrap : Using [0]ens5:10.1.2.3<0> [1]veth75:fe80::1%veth75<0>\n"
    "w:97:221 [0] NCCL WARN Connect to fe80::2%veth75<46681> failed : Connection timed out\n"
)


@pytest.mark.parametrize(
    ("text", "cause", "words", "without"),
    [
        (WORLD, "world_size_mismatch", "`--ntasks-per-node` must equal", "torchrun"),
        (STORE.format(host="255.255.0.0", port=29500), "store_unreachable", "no host can", "\0"),
        (STORE.format(host="node-3", port=29500), "store_unreachable", "resolve node-3", "no host"),
        (
            "(raylet) Failed to connect to GCS at address 10.0.0.9:6379 within 5 seconds.\n"
            + STARTED_BY["vllm"],
            "store_unreachable",
            "`--address` of `ray start`",
            "torchrun",
        ),
        (STARTED_BY["kubernetes"] + HOST, "hostname_resolution", "each pod wait", "torchrun"),
        (STARTED_BY["deepspeed"] + HOST, "hostname_resolution", "hostfile", "torchrun"),
        (STARTED_BY["horovod"] + DUPLICATE, "duplicate_gpu", "hvd.local_rank()", "LOCAL_RANK"),
        (DUPLICATE, "duplicate_gpu", "no more ranks on a host than it has GPUs", "torchrun"),
        (UNUSED, "rank_divergence", "find_unused_parameters=True", "\0"),
        (
            SHAPES.format(rank=0, batch=41) + SHAPES.format(rank=1, batch=40),
            "shape_mismatch",
            "drop_last=True",
            "\0",
        ),
        (
            BUFFERS.format(rank=0, n=64) + BUFFERS.format(rank=1, n=24084544),
            "shape_mismatch",
            "broadcast_buffers=False",
            "\0",
        ),
        (LATE.format(ms=60000), "slow_rank", "Raise the timeout", "\0"),
        (LATE.format(ms=600000), "slow_rank", "Shorten or move", "Raise"),
        (HANGUP.format(1), "rank_killed", "no terminal ends it", "\0"),
        (HANGUP.format(15), "rank_killed", "who sent the signal", "terminal"),
        (FULL, "gpu_oom", "--gpu-memory-utilization", "\0"),
        (SYMBOL, "version_mismatch", "find one NCCL only", "\0"),
        (FORKED, "fork_or_init_order", "vLLM start its workers by spawn", "\0"),
        (RAISED.format("Please pass remote=True to load it"), "rank_exception", "pass remote", "\0"),
        (RAISED.format("Please report this issue"), "rank_exception", "Fix the error", "Do what"),
        (LOST_FILE, "rank_exception", "all hosts share", "\0"),
        (INDEX, "cuda_error", "index that is out of range", "\0"),
        (NO_CARD, "net_plugin", "see the cards", "\0"),
    ],
)
def test_the_first_remedy_is_that_of_the_variant(
    text: str, cause: str, words: str, without: str
) -> None:
    advice = found_in(text, cause).advice
    # of a symptom that several causes share the look comes first
    first = next(one for one in advice if not one.do.startswith("Look first"))
    assert words in first.do and without not in first.do


@pytest.mark.parametrize(
    ("text", "excluded", "kept"), [(TUNNEL, "tun0", "veth0"), (HARDWARE, "veth", "ens5")]
)
def test_the_exclusion_keeps_the_interface_that_the_log_shows(
    text: str, excluded: str, kept: str
) -> None:
    first = found_in(text, "wrong_interface").advice[0]
    prefixes = first.env["NCCL_SOCKET_IFNAME"].removeprefix("^").split(",")
    assert excluded in prefixes and not kept.startswith(tuple(prefixes)) and kept in first.do


def test_one_rank_that_names_its_call_leaves_open_which_shape_is_odd() -> None:
    text = SHAPES.format(rank=0, batch=41)
    assert found_in(text, "rank_divergence").strength == "likely"
    # a layer's weights differ in one dimension from another layer's, but by more
    apart = text + SHAPES.format(rank=1, batch=128)
    assert all(one.cause != "shape_mismatch" for one in judged_text(apart).findings)


def test_the_grades_of_first_advice_are_one_for_each_case_and_hold_no_text() -> None:
    readers = json.loads(GRADES.read_text(encoding="utf-8"))
    posted = {json.loads(path.read_text(encoding="utf-8"))["id"] for path in SHARED.glob("*.json")}
    for editions in readers.values():
        for by_grade in editions.values():
            graded = grade_of_each(by_grade)
            assert len(graded) == 236 and posted in (set(), set(graded))
            assert all(re.fullmatch(r"[\w.-]+", name) for name in graded)
