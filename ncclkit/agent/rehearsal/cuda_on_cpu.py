"""Scripts for GPUs on a CPU: what names `cuda` means the CPU, and `torch.cuda` answers for GPUs."""

from __future__ import annotations

import functools
import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed import device_mesh, fsdp
from torch.distributed.fsdp import _flat_param
from torch.overrides import TorchFunctionMode

from . import batch_norm
from .connection import ScriptAsked

CPU = torch.device("cpu")
MEMORY = 80 << 30
"""Bytes that a GPU of the rehearsal says to have."""
NCCL = (2, 27, 5)
"""The version that torch's own logs and checks are told; a torch for CPUs has none."""

PROPERTIES = SimpleNamespace(
    name="rehearsal on a CPU",
    major=9,
    minor=0,
    total_memory=MEMORY,
    multi_processor_count=132,
)
"""What scripts read of a GPU."""


def _on_cpu(value: Any) -> Any:
    """The CPU in place of a GPU; anything else as it is."""
    if isinstance(value, torch.device) and value.type == "cuda":
        _note_gpu()
        return CPU
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        _note_gpu()
        return "cpu"
    return value


def _note_gpu() -> None:
    """Remember that a GPU was named, unless torch did that by itself (as `fork_rng` does)."""
    if ScriptAsked.for_gpu:
        return
    frame: Any = sys._getframe(1)
    while "/ncclkit/agent/" in frame.f_code.co_filename:
        frame = frame.f_back
    ScriptAsked.for_gpu = "/torch/" not in frame.f_code.co_filename


class _CpuInPlaceOfCuda(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        # both would need a driver, and neither changes a value
        if name in ("cuda", "pin_memory"):
            ScriptAsked.for_gpu = True
            return args[0]
        if name == "record_stream":
            return None
        mapped = {key: _on_cpu(value) for key, value in (kwargs or {}).items()}
        mapped.pop("pin_memory", None)
        # an integer is a GPU, too: tensor.to(0)
        if name == "to" and len(args) > 1 and type(args[1]) is int:
            ScriptAsked.for_gpu = True
            args = (args[0], CPU, *args[2:])
        return func(*[_on_cpu(value) for value in args], **mapped)


class _Stream:
    """A stream of a GPU on which everything is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = CPU

    def synchronize(self) -> None:
        """Nothing is left to be done."""

    wait_stream = wait_event = record_event = lambda self, *_: None

    def query(self) -> bool:
        """Everything is done."""
        return True

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _Event(_Stream):
    """An event, which has always come."""

    record = wait = lambda self, *_: None

    def elapsed_time(self, other: _Event) -> float:
        """Milliseconds; a rehearsal measures none."""
        return 1.0


def map_gpus(ranks: int) -> None:
    """Map GPUs to the CPU; ranks: how many GPUs the host says to have."""
    _answer_for_gpus(ranks)
    _map_modules()
    _map_autocast()
    batch_norm.map_batch_norm()
    _CpuInPlaceOfCuda().__enter__()


def _constant(value: Any) -> Any:
    def answer(*_: Any, **__: Any) -> Any:
        return value

    return answer


def _answer_for_gpus(ranks: int) -> None:
    cuda = torch.cuda
    own = int(os.environ.get("LOCAL_RANK", "0"))
    answers = {
        "is_available": True,
        "device_count": ranks,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "current_device": own,
        "get_device_name": "rehearsal on a CPU",
        "get_device_capability": (9, 0),
        "mem_get_info": (MEMORY, MEMORY),
        "get_device_properties": PROPERTIES,
        "memory_summary": "",
        "memory_stats": {},
    }
    answers.update(dict.fromkeys(ZEROS, 0))
    answers.update(dict.fromkeys(NOTHING))
    for name, value in answers.items():
        setattr(cuda, name, _constant(value))
    cuda.nccl.version = _constant(NCCL)
    if hasattr(torch, "accelerator"):
        # torch asks it for streams of the driver; a torch for CPUs has none, either
        torch.accelerator.is_available = _constant(False)
        torch.accelerator.current_accelerator = _constant(None)
        torch.accelerator.device_count = _constant(0)

    def set_device(device: Any) -> None:
        ScriptAsked.for_gpu = True

    cuda.set_device = set_device
    stream = _Stream()
    classes: dict[str, Any] = {"Stream": _Stream, "Event": _Event}
    functions = {"current_stream": _constant(stream), "default_stream": _constant(stream)}
    contexts = {"stream": _constant(nullcontext()), "device": _constant(nullcontext())}
    for name, value in {**classes, **functions, **contexts}.items():
        setattr(cuda, name, value)


ZEROS = (
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
)
NOTHING = (
    "empty_cache",
    "init",
    "ipc_collect",
    "manual_seed",
    "manual_seed_all",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "synchronize",
)
"""What a script calls of torch.cuda that does nothing here."""


def _map_modules() -> None:
    module = torch.nn.Module
    real_to = module.to

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        words = [_on_cpu(value) for value in args]
        if words and type(words[0]) is int:
            ScriptAsked.for_gpu = True
            words[0] = CPU
        return real_to(self, *words, **{key: _on_cpu(value) for key, value in kwargs.items()})

    def on_gpu(self: Any, device: Any = None) -> Any:
        ScriptAsked.for_gpu = True
        return self

    module.to, module.cuda = to, on_gpu
    parallel = torch.nn.parallel.DistributedDataParallel
    real_init = parallel.__init__

    @functools.wraps(real_init)
    def init(
        self: Any,
        module: Any,
        device_ids: Any = None,
        output_device: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        real_init(self, module, None, None, *args, **kwargs)

    parallel.__init__ = init
    _without_words(torch.utils.data.DataLoader, "pin_memory", "pin_memory_device")
    if hasattr(fsdp, "FullyShardedDataParallel"):
        _shard_on_cpu(fsdp.FullyShardedDataParallel)
    real_mesh = device_mesh.init_device_mesh

    @functools.wraps(real_mesh)
    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return real_mesh(_on_cpu(device_type), *args, **kwargs)

    device_mesh.init_device_mesh = init_device_mesh
    torch.distributed.init_device_mesh = init_device_mesh


def _shard_on_cpu(kind: Any) -> None:
    """FSDP takes a CPU only where it is named."""
    real_init = kind.__init__

    @functools.wraps(real_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        real_init(self, *args, **{**kwargs, "device_id": CPU})

    def copy_flat(self: Any, *_: Any, **__: Any) -> None:
        # a move to the CPU copies, and FSDP frees the memory that it moved from
        self.flat_param.data = self.flat_param.detach().clone()

    kind.__init__ = init
    _flat_param.FlatParamHandle.flat_param_to = copy_flat


def _without_words(kind: Any, *names: str) -> None:
    """Leave words out that name a GPU where a class is made."""
    real_init = kind.__init__

    @functools.wraps(real_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in names:
            kwargs.pop(name, None)
        real_init(self, *args, **kwargs)

    kind.__init__ = init


def _map_autocast() -> None:
    real_init = torch.autocast.__init__

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        real_init(self, _on_cpu(device_type), *args, **kwargs)

    torch.autocast.__init__ = init

    class CudaAutocast(torch.autocast):
        def __init__(
            self, enabled: bool = True, dtype: Any = torch.bfloat16, **kwargs: Any
        ) -> None:
            super().__init__("cpu", enabled=enabled, dtype=dtype, **kwargs)

    torch.cuda.amp.autocast = CudaAutocast
    real_scaler = torch.amp.GradScaler.__init__

    def init_scaler(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        real_scaler(self, _on_cpu(device), *args, **kwargs)

    torch.amp.GradScaler.__init__ = init_scaler

    class CudaGradScaler(torch.amp.GradScaler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__("cpu", *args, **kwargs)

    torch.cuda.amp.GradScaler = CudaGradScaler
