"""One GPU of this machine for all ranks: whatever number a script names, the first one is meant.

Nothing else is mapped: kernels, streams, events and memory are those of the GPU.  The process that
forks the ranks must not begin with CUDA, as no fork of it could then use the GPU.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import sys
from typing import Any, NamedTuple

import torch
from torch._dynamo import config as dynamo_config
from torch.overrides import TorchFunctionMode

from .cuda_on_cpu import map_threads

FIRST = "cuda:0"
SECONDS = 90.0
"""In which a GPU has to begin."""
ASKED_BY_NUMBER = "_get_device_index"
"""The function by which torch's modules make a number of whatever names a GPU."""


class FoundGpu(NamedTuple):
    """The GPU that ranks share."""

    name: str = ""
    lacking: str = ""
    """Why there is none; empty where there is one."""


def find_gpu() -> FoundGpu:
    """The GPU as a fork of this process sees it, which ends again."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        words = json.dumps(_begin_gpu()._asdict())
        os.write(writing, words.encode())
        os._exit(0)
    os.close(writing)
    said = b""
    ready, _, _ = select.select([reading], [], [], SECONDS)
    if ready:
        said = os.read(reading, 1 << 16)
    os.close(reading)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not ready:
        return FoundGpu(lacking="the GPU did not begin within %d s" % SECONDS)
    if not said:
        return FoundGpu(lacking="a process that began with the GPU died")
    return FoundGpu(**json.loads(said))


def _begin_gpu() -> FoundGpu:
    """Begin with CUDA in this process."""
    try:
        torch.cuda.init()
        torch.zeros(1, device=FIRST)
        return FoundGpu(torch.cuda.get_device_name(0))
    # torch raises many kinds: no driver, a torch for CPUs, a fork of a process that has begun
    except Exception as error:
        first, _, _ = str(error).partition("\n")
        return FoundGpu(lacking="torch %s says: %s" % (torch.__version__, first))


def share_gpu(ranks: int) -> None:
    """Begin with CUDA, and let every GPU that the script names be the first one.

    ranks: how many GPUs the host says to have.
    """
    # CUDA reads once which GPUs it may see: what the script shows itself later counts no more
    torch.cuda.init()
    torch.zeros(1, device=FIRST)
    _map_numbers()
    _map_modules()

    def device_count() -> int:
        return ranks

    vars(torch.cuda)["device_count"] = device_count
    # a graph would be compiled by each rank; without one the same is computed
    dynamo_config.disable = True
    FirstGpu().__enter__()
    map_threads(FirstGpu)


def _map_numbers() -> None:
    """Modules of torch have taken the function over, each under its own name."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "torch":
            continue
        real = vars(module).get(ASKED_BY_NUMBER)
        if callable(real):
            vars(module)[ASKED_BY_NUMBER] = _first_number(real)


def _first_number(real: Any) -> Any:
    @functools.wraps(real)
    def number_of(*args: Any, **kwargs: Any) -> Any:
        # a negative number means none
        return min(real(*args, **kwargs), 0)

    return number_of


def _map_modules() -> None:
    module: Any = torch.nn.Module
    real_to = module.to

    @functools.wraps(real_to)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        return real_to(self, *_first_of_moved(args), **_first_of_named(kwargs))

    module.to = to


class FirstGpu(TorchFunctionMode):
    """Lets functions of torch see the first GPU in place of any other."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _first_of_named(kwargs or {})
        if func is torch.device:
            return _first_device(torch.device(*args, **given))
        if getattr(func, "__name__", "") in ("cuda", "to"):
            return func(args[0], *_first_of_moved(args[1:]), **given)
        return func(*[_first_gpu(value) for value in args], **given)


def _first_of_moved(args: Any) -> list[Any]:
    """Words of a move, of which a number is a GPU, too."""
    words = [_first_gpu(value) for value in args]
    if words and type(words[0]) is int:
        words[0] = torch.device(FIRST)
    return words


def _first_of_named(given: dict[str, Any]) -> dict[str, Any]:
    words = {}
    for name, value in given.items():
        words[name] = _first_gpu(value)
        if name == "device" and type(value) is int:
            words[name] = torch.device(FIRST)
    return words


def _first_gpu(value: Any) -> Any:
    """The first GPU in place of any other; anything else as it is."""
    if isinstance(value, torch.device):
        return _first_device(value)
    if isinstance(value, str) and value.startswith("cuda:"):
        return FIRST
    return value


def _first_device(device: torch.device) -> torch.device:
    if device.type == "cuda" and device.index:
        return torch.device(FIRST)
    return device
