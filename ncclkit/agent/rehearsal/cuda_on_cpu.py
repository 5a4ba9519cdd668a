"""Scripts for GPUs on a CPU: what names `cuda` means the CPU, and `torch.cuda` answers for GPUs."""

from __future__ import annotations

import functools
import os
import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Callable

import torch
from torch._dynamo import config as dynamo_config
from torch.distributed import device_mesh, fsdp
from torch.distributed.fsdp import _flat_param
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from . import batch_norm, gpu_choice, lightning_on_cpu
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
    if isinstance(value, torch.device) and gpu_choice.number_of(value) is not None:
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
        given = kwargs or {}
        if func is torch.device:
            return _device_of(*args, **given)
        # both would need a driver, and neither changes a value
        if name in ("cuda", "pin_memory"):
            ScriptAsked.for_gpu = True
            if name == "cuda":
                gpu_choice.put_on_gpu(args[:1], _asked_gpu(*args[1:], **given))
            return args[0]
        if name == "record_stream":
            return None
        number = _named_gpu(args, given)
        mapped = {key: _on_cpu(value) for key, value in given.items()}
        mapped.pop("pin_memory", None)
        # an integer is a GPU, too: tensor.to(0)
        if name == "to" and len(args) > 1 and type(args[1]) is int:
            ScriptAsked.for_gpu = True
            number = args[1]
            args = (args[0], CPU, *args[2:])
        made = func(*[_on_cpu(value) for value in args], **mapped)
        if isinstance(made, torch.Tensor):
            if number is not None:
                gpu_choice.put_on_gpu([made], number)
            elif name in ("cpu", "to"):
                _note_copy(made, name, args, given)
        return made


def _device_of(type: Any = None, index: Any = None) -> torch.device:
    """What `torch.device` returns: of a GPU the CPU, by whose number the GPU is known."""
    if isinstance(type, int):
        type, index = "cuda", type
    if isinstance(type, str) and type.partition(":")[0] == "cuda":
        _note_gpu()
        _, _, number = type.partition(":")
        if number:
            index = int(number)
        if index is None:
            return gpu_choice.CURRENT
        return torch.device("cpu", index)
    if isinstance(type, torch.device):
        return type
    if index is None:
        made = torch.device(type)
    else:
        made = torch.device(type, index)
    if made.type == "cpu":
        return CPU
    return made


def _asked_gpu(device: Any = None, *_: Any, **__: Any) -> int:
    """The GPU that `.cuda()` means."""
    number = gpu_choice.number_of(device)
    if number is None:
        return gpu_choice.RankGpus.current.number
    return number


def _named_gpu(args: Any, given: Any) -> int | None:
    """The GPU that is named among the words of a call."""
    for value in (*args, *given.values()):
        if isinstance(value, (str, torch.device)):
            number = gpu_choice.number_of(value)
            if number is not None:
                return number
    return None


def _note_copy(tensor: Any, name: str, args: Any, given: Any) -> None:
    """Remember a copy to the CPU; `to` may also change the type alone."""
    if name == "cpu":
        gpu_choice.put_on_cpu(tensor)
        return
    for value in (*args, *given.values()):
        if isinstance(value, (str, torch.device)) and str(value).startswith("cpu"):
            gpu_choice.put_on_cpu(tensor)


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


class _CurrentDevice:
    """Within it, `cuda` means another GPU."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._before = gpu_choice.RankGpus.current

    def __enter__(self) -> None:
        self._before = gpu_choice.RankGpus.current
        gpu_choice.set_current(self._device)

    def __exit__(self, *_: object) -> None:
        gpu_choice.RankGpus.current = self._before


def map_gpus(ranks: int) -> None:
    """Map GPUs to the CPU; ranks: how many GPUs the host says to have."""
    _answer_for_gpus()
    _choose_devices(ranks)
    _map_modules()
    _map_autocast()
    # a graph would be traced for GPUs; without one the same is computed
    dynamo_config.disable = True
    batch_norm.map_batch_norm()
    lightning_on_cpu.map_lightning()
    _CpuInPlaceOfCuda().__enter__()
    map_threads(_CpuInPlaceOfCuda)


def map_threads(mode: Callable[[], TorchFunctionMode]) -> None:
    """Let every thread that begins from now on map GPUs: torch keeps a mode for one thread."""
    # classes of scripts have a `run` of their own; this one all threads go through
    begin = vars(threading.Thread)["_bootstrap_inner"]

    def begin_mapped(thread: threading.Thread) -> None:
        with mode():
            begin(thread)

    setattr(threading.Thread, "_bootstrap_inner", begin_mapped)  # noqa: B010


def _constant(value: Any) -> Any:
    def answer(*_: Any, **__: Any) -> Any:
        return value

    return answer


def _answer_for_gpus() -> None:
    cuda = torch.cuda
    answers = {
        "is_available": True,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
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
    stream = _Stream()
    classes: dict[str, Any] = {"Stream": _Stream, "Event": _Event}
    functions = {"current_stream": _constant(stream), "default_stream": _constant(stream)}
    contexts = {"stream": _constant(nullcontext()), "device": _CurrentDevice}
    for name, value in {**classes, **functions, **contexts}.items():
        setattr(cuda, name, value)


def _choose_devices(ranks: int) -> None:
    """Follow which GPU is the current one; ranks: how many GPUs the host says to have."""
    cuda = torch.cuda

    def set_device(device: Any) -> None:
        ScriptAsked.for_gpu = True
        gpu_choice.set_current(device)

    def current_device() -> int:
        return gpu_choice.RankGpus.current.number

    def device_count() -> int:
        return gpu_choice.visible_count(ranks)

    cuda.set_device = set_device
    cuda.current_device = current_device
    cuda.device_count = device_count
    if hasattr(torch, "accelerator"):
        torch.accelerator.set_device_index = torch.accelerator.set_device_idx = set_device
        torch.accelerator.current_device_index = current_device
    mesh = device_mesh.DeviceMesh
    for name in MESH_SETUPS:
        if hasattr(mesh, name):
            setattr(mesh, name, _choosing_gpu(getattr(mesh, name)))


def _choosing_gpu(real_setup: Any) -> Any:
    def set_up(self: Any) -> Any:
        made = real_setup(self)
        # a mesh of GPUs chooses the device of a rank that has chosen none
        gpu_choice.set_first(int(os.environ["LOCAL_RANK"]))
        return made

    return set_up


MESH_SETUPS = ("_setup_world_group_and_device", "_get_or_create_default_group")
"""What a mesh calls first, in torch 2.9 and later, and before."""


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
        number = _named_gpu(args, kwargs)
        words = [_on_cpu(value) for value in args]
        if words and type(words[0]) is int:
            ScriptAsked.for_gpu = True
            number = args[0]
            words[0] = CPU
        moved = real_to(self, *words, **{key: _on_cpu(value) for key, value in kwargs.items()})
        if number is not None:
            _put_module(self, number)
        return moved

    def on_gpu(self: Any, device: Any = None) -> Any:
        ScriptAsked.for_gpu = True
        _put_module(self, _asked_gpu(device))
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
        # it moves what it is given to this GPU
        for device in device_ids or ():
            _note_device(device)
        real_init(self, module, None, None, *args, **kwargs)

    parallel.__init__ = init
    _load_on_cpu()
    _without_words(torch.utils.data.DataLoader, "pin_memory", "pin_memory_device")
    if hasattr(fsdp, "FullyShardedDataParallel"):
        _shard_on_cpu(fsdp.FullyShardedDataParallel)
    real_context = DeviceContext.__init__

    def init_context(self: Any, device: Any) -> None:
        # what is made within it bears no mark
        _note_device(device)
        real_context(self, device)

    DeviceContext.__init__ = init_context
    real_mesh = device_mesh.init_device_mesh

    @functools.wraps(real_mesh)
    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return real_mesh(_on_cpu(device_type), *args, **kwargs)

    device_mesh.init_device_mesh = init_device_mesh
    torch.distributed.init_device_mesh = init_device_mesh


def _load_on_cpu() -> None:
    """Checkpoints are read to the CPU, whatever they were saved from."""
    real = torch.load

    @functools.wraps(real)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, dict):
            named = list(map_location.values())
        else:
            named = [map_location]
        for device in named:
            _note_device(device)
        # another device than a GPU is the script's own business, and so is a function
        if len(named) != 1 or map_location is None or _named_gpu(named, {}) is not None:
            map_location = "cpu"
        return real(f, map_location, *args, **kwargs)

    torch.load = load


def _put_module(module: Any, number: int) -> None:
    gpu_choice.put_on_gpu([*module.parameters(), *module.buffers()], number)


def _note_device(device: Any) -> None:
    """A library is told to use a GPU."""
    number = gpu_choice.number_of(device)
    if number is not None:
        gpu_choice.note_use(number)


def _shard_on_cpu(kind: Any) -> None:
    """FSDP takes a CPU only where it is named."""
    real_init = kind.__init__

    @functools.wraps(real_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        _note_device(kwargs.get("device_id"))
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
