"""A GPU had no memory left, for the model or for NCCL's own buffers

What you see
    torch.OutOfMemoryError with "CUDA out of memory. Tried to allocate ..." on one rank, or, at the
    first collective, NCCL's "Cuda failure 'out of memory'" and "Failed to CUDA calloc n bytes"
    under an "unhandled cuda error".  The other ranks time out or see the connection closed.

Why it happens
    Ranks do not use equal amounts: rank 0 often holds extra copies (evaluation, a checkpoint, a
    context created by other ranks that forgot set_device), and the longest sample lands on one
    rank.  NCCL allocates outside of PyTorch's cache: when PyTorch has reserved all memory, NCCL
    fails although the cache has room inside.  A dead job's process that still holds memory has the
    same effect.

How to be sure
    `nvidia-smi` on that GPU: are there other processes?  torch.cuda.memory_summary() before the
    failing step: how much is reserved but not allocated?

What to do
    NCCL needs 1 to 2 GiB; expandable segments help against fragmentation.

Read more
    PyTorch docs: Understanding CUDA memory usage.  NCCL user guide: NCCL_BUFFSIZE, memory of
    channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ncclkit.analysis.gpu_memory import other_processes
from ncclkit.analysis.launchers import launcher
from ncclkit.analysis.picks import (
    family,
    first_finding,
    in_order,
    matching,
    messages,
    name_hosts,
    pick,
    ranks_in,
    who_are,
)
from ncclkit.causes._experiments import minimal
from ncclkit.causes._preflight import HostFacts, Preflight, Risk, number
from ncclkit.causes._settings import BATCHES, smaller_batch
from ncclkit.core.case import Case
from ncclkit.core.kinds import CudaError, CudaOom
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found
from ncclkit.core.text import format_bytes

ID = "gpu_oom"
explains = (
    "c10d.timeout",
    "c10d.error",
    "gloo.closed",
    "nccl.peer_closed",
    "nccl.trace",
    "store.lost",
    "rank_exception",
    "slow_rank",
    "cuda_error",
    "network_loss",
    "rank_divergence",
)
MIB = 1 << 20
TAKEN, MOST = 0.25, 0.5
"""Shares of a GPU's memory in use before a job.

Above the first it is more than a desktop takes, above the second there is hardly room for a job.
"""


FULL = (
    "Cuda failure 'out of memory'",
    "Cuda failure 2 'out of memory'",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "_STATUS_ALLOC_FAILED",
    "RESOURCE_EXHAUSTED: Out of memory",
    "No available memory for the cache blocks",
    "less than desired GPU memory utilization",
    "larger than the maximum number of tokens that can be stored in KV cache",
)
"""Messages of torch, NCCL, cuDNN, cuBLAS, XLA and vLLM when GPU memory runs out."""


def diagnose(case: Case) -> Finding:
    """Found where torch or NCCL reports a failed device allocation."""
    went_well = case.of("nccl.destroy", "c10d.timeout", "progress")
    missing = "the standard error of every rank"
    return first_finding(case, _failed_allocation, CHECK.risk) or CHECK.otherwise(
        case, went_well, "No allocation on a GPU failed.", missing
    )


def _failed_allocation(case: Case) -> Finding | None:
    """A device allocation was refused to torch, to NCCL, or to another library."""
    by_torch = case.of(CudaOom)
    by_nccl = matching(
        family(case, "cuda", "memory", "other"),
        "out of memory",
        "Failed to CUDA calloc",
        "Failed to CUDA malloc",
    )
    quoted = matching([*messages(case), *case.of(CudaError)], *FULL)
    # torch's own message has the numbers, so its line comes first
    lines = in_order(by_torch) + in_order(by_nccl) + in_order(quoted)
    if not lines:
        return None
    ranks = ranks_in(lines)
    first = lines[0]
    full_gpus = set()
    for event in by_torch:
        if event.data.gpu is not None:
            full_gpus.add(str(event.data.gpu))
    gpus = tuple(sorted(full_gpus))
    gpu = ""
    if len(gpus) == 1:
        gpu = f" {gpus[0]}"
    say = f"{who_are(ranks)} ran out of memory on its GPU{gpu}: {_request_in_words(first)}"
    advice = _advice(not by_torch, smaller_batch(case))
    if launcher(case) in ENGINES or matching(lines, *OF_ENGINE):
        advice = (SERVER, *advice)
    # a rank in a container stands in torch's list under a foreign number: the sums of the line
    # decide whether another process is among them
    others = other_processes(first.text).clause
    if others:
        say += f"; {others}"
        advice = (OWN, *advice)
    return found(
        ID,
        "proven",
        f"{say}.",
        pick(lines),
        ranks=ranks,
        hosts=name_hosts(lines),
        gpus=gpus,
        advice=advice,
    )


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """GPUs whose memory is in use before the job starts."""
    for gpu, fact in host.gpus("memory.free").items():
        total = host.number(f"gpu.{gpu}.memory.total")
        free = number(fact.value)
        # a desktop takes some memory of one GPU
        if not total or free is None or free > (1 - TAKEN) * total:
            continue
        holders = host.fact(f"gpu.{gpu}.memory.holders")
        by = ""
        # in a container the list of processes stays empty
        if holders and holders.value:
            by = f" by {', '.join(map(_process_in_words, holders.value[:3]))}"
        have = f"{format_bytes(free * MIB)} of {format_bytes(total * MIB)}"
        say = (
            f"GPU {gpu} has {have} free, the rest is held{by}; a job that needs all of it would run"
            " out of memory"
        )
        strength: Strength = "possible"
        if free < (1 - MOST) * total:
            strength = "likely"
        yield Risk(say, [fact, holders if by else None], _advice(True)[0], strength, gpus=(gpu,))


def _process_in_words(row: Mapping[str, Any]) -> str:
    return f"process {row.get('pid')} ({row.get('name')})"


def _request_in_words(event: Event) -> str:
    data = event.data
    if isinstance(data, CudaOom) and data.tried:
        of = ""
        if data.total:
            of = f" of {_size_in_words(data.total)}"
        free = ""
        if data.free:
            free = f" and {_size_in_words(data.free)}{of} was free"
        return f"it asked for {_size_in_words(data.tried)}{free}"
    # NCCL allocates outside of PyTorch's cache, which holds the memory
    if event.kind.startswith(("nccl", "c10d")):
        return "NCCL could not allocate its buffers because the program had taken the memory"
    return "an allocation was refused"


def _size_in_words(value: object) -> str:
    if isinstance(value, (int, float)):
        return format_bytes(value)
    return str(value)


OWN = Advice(
    "Give each rank a GPU of its own before anything touches CUDA, and end other processes on this"
    " one.",
    code='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
    command="nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv",
    why=(
        "Without it every rank uses GPU 0, for .cuda() and for checkpoints, and the last one finds"
        " it full."
    ),
    check="nvidia-smi shows one process of the job on each GPU.",
    risk="None.",
)


def _advice(nccl: bool, code: str = BATCHES[""]) -> tuple[Advice, ...]:
    smaller = Advice(
        "Lower the micro-batch size on all ranks (keep the global batch by accumulating gradients),"
        " or shard the model more.",
        code=code,
        why="The largest rank decides; all ranks must use the same micro-batch.",
        check=(
            "max(torch.cuda.max_memory_allocated()) over the ranks stays 10 % below the GPU's"
            " memory."
        ),
        risk="More steps of accumulation are a little slower.",
    )
    room = Advice(
        "Leave room for NCCL outside of what the program takes: a smaller batch, sequence or share"
        " of the GPU, or an emptied cache before the first collective; and end other processes on"
        " it.",
        code="torch.cuda.set_per_process_memory_fraction(0.92)",
        command="nvidia-smi",
        env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        why="NCCL allocates with cudaMalloc and cannot use memory that PyTorch has reserved.",
        check=(
            "nvidia-smi shows only this job's processes, one per GPU, and some free memory before"
            " the first collective."
        ),
        risk="A smaller fraction makes PyTorch itself run out earlier.",
    )
    if nccl:
        return room, smaller
    return smaller, room


SERVER = Advice(
    "Give the inference engine a smaller share of the GPU (`--gpu-memory-utilization` of vLLM,"
    " `--mem-fraction-static` of SGLang, `free_gpu_memory_fraction` of TensorRT-LLM), or lower its"
    " longest sequence and batch; more GPUs a model (tensor parallel) leave more room.",
    command="nvidia-smi",
    why="An engine takes its share of the whole GPU at its start; what shares the GPU with it, a"
    " trainer or NCCL's buffers, finds the rest.",
    check="nvidia-smi shows some free memory once the engine has started.",
    risk="A smaller cache serves fewer requests at once.",
)
"""Where an engine took the memory, of which PyTorch's settings know nothing."""
ENGINES = ("vllm", "sglang", "tensorrt_llm")
OF_ENGINE = ("cumem_allocator.cpp", "KV cache", "cache blocks", "gpu_memory_utilization")
"""Words of an engine that is not the launcher, such as one that a trainer holds beside it."""


def experiment(case: Case) -> Experiment:
    """Run on the same GPUs without the model."""
    return minimal(
        "Does a plain all_reduce work on the same GPUs, without the model in their memory?",
        {
            ID: "it does: NCCL has room then",
            "cuda_error": "it does: a kernel of the program had failed",
        },
        {"gpu_hardware_error": "it fails too, on one GPU", "driver_too_old": "it fails too"},
    )


CHECK = Preflight(
    ID,
    reads=("gpu.*.memory.total", "gpu.*.memory.free"),
    risks=_host_risks,
    fine="The GPUs' memory is free.",
    also=("gpu.*.memory.holders",),
    next=experiment,
)
REMEDIES = (*_advice(False), SERVER, OWN)
