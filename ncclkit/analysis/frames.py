"""Which line of whose code a frame is.

Frames are those of stacks, tracebacks and Flight Recorder entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ncclkit.analysis.once import once
from ncclkit.analysis.rank_states import starving
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    C10dStack,
    CppException,
    DebugAbsent,
    FlightMissing,
    PythonException,
    Stack,
)
from ncclkit.core.model import Event

Frame = Mapping[str, Any]

TORCH = (
    "accelerator|amp|ao|autograd|backends|compiler|cpu|csrc|cuda|distributed|fft|func|functional"
    "|futures|fx|hub|include"
    "|jit|lib|library|linalg|mps|multiprocessing|nested|nn|onnx|optim|overrides|package|profiler"
    "|quantization|random"
    "|serialization|sparse|special|storage|testing|utils|xpu"
)
"""Packages and modules of torch: a folder of the user may be called torch, too."""
LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python\d|<frozen|<string>|^\?*$|\.so\b|importlib|\b(?:gloo"
    r"|nccl)/(?!.*\.py$)"
    rf"|(?:^|/)torch/(?:_|(?:{TORCH})(?:/|\.py$))"
    r"|(?:^|/)(?:lightning/(?:pytorch|fabric)|pytorch_lightning|lightning_fabric"
    r"|transformers/trainer\w*\.py|ray/_(?:private|raylet|common)\b"
    r"|accelerate/(?:accelerator\.py|utils/)|deepspeed/runtime)"
)
WAITS = re.compile(
    r"torch/distributed|distributed_c10d|/torch/cuda/__init__|ncclComm|libnccl|ProcessGroup|"
    r"torch/nn/parallel/distributed|torch/utils/data/_utils/pin_memory"
)
COMPUTES = re.compile(r"torch/(?:nn/(?:modules|functional)|_dynamo|_inductor|optim|utils/data)")
"""Code of torch that works for the caller; a rank whose stack ends in it does not wait for
anybody."""
WAITING_CALLS = {
    "synchronize",
    "all_reduce",
    "all_gather",
    "barrier",
    "broadcast",
    "wait",
    "monitored_barrier",
    "_engine_run_backward",
}
WRAPPERS = re.compile(
    r"c10d_logger\.py:|torch/nn/modules/module\.py:_(?:wrapped_)?call_impl$"
    r"|torch/utils/_contextlib\.py:"
    r"|(?::|<locals>\.)(?:_?wrapper|wrapped|decorate_\w+|_fn|_?inner|\w+_wrapper)$"
    r"|(?::|<locals>\.)(?:inner|wrapped)_func$"
)
"""Frames between a caller and what it calls: decorators, and a module's ``__call__``."""
BETWEEN = re.compile(
    r"/multiprocessing/|/concurrent/|/(?:threading|subprocess|selectors|queue)\.py"
)
"""Python's own library between a call and its wait.

Its ``wait`` is for a process or a thread: what called it says what for.
"""
EXCEPTHOOK = "_distributed_excepthook"
"""The function of torch that prints the exception with which a rank ends."""
WORKERS = {"_try_get_data", "_get_data"}
"""Functions of torch's DataLoader in which a rank waits for its workers."""

FRAMEWORKS = (
    "recbole",
    "wenet",
    "lightning",
    "accelerate",
    "transformers",
    "llamafactory",
    "deepspeed",
    "megatron",
)
"""Packages that take the settings of a job in their own words; one that uses another stands before
it."""


def is_own(frame: Frame) -> bool:
    """True when a frame is the user's code, not a library's."""
    return not LIBRARY.search(str(frame.get("file") or ""))


def own_frame(frames: Sequence[Frame], *, innermost_first: bool) -> Frame | None:
    """The innermost frame of the user's own code, or the innermost one at all."""
    if innermost_first:
        ordered = list(frames)
    else:
        ordered = list(reversed(frames))
    return next((frame for frame in ordered if is_own(frame)), ordered[0] if ordered else None)


def place(frame: Frame | None) -> str:
    """``train.py:33 (skip_batches)``; empty where no frame is known."""
    if not frame or not frame.get("file"):
        return ""
    return (
        f"{PurePosixPath(str(frame['file'])).name}:{frame.get('line', '?')}"
        f" ({frame.get('func', '?')})"
    )


def in_collective(frames: Iterable[Frame]) -> bool:
    """True when a stack (innermost frame first) stands inside a collective.

    It may also wait for the GPU to finish one.  What a model computes below DDP's ``forward`` is
    not a collective, though DDP stands further out in it; nor is a ``wait`` written in Python for a
    lock file or a process.
    """
    for frame in list(frames)[:12]:
        if BETWEEN.search(str(frame.get("file", ""))):
            continue
        file = str(frame.get("file", ""))
        func = frame.get("func")
        if WAITS.search(file) or (
            func in WAITING_CALLS and not (func == "wait" and file.endswith(".py"))
        ):
            return True
        if is_own(frame) or COMPUTES.search(file):
            return False
    return False


@once
def stacks(case: Case) -> dict[int, Event]:
    """rank → the stack of its main thread.

    Ranks that report an exception are left out, as these wait for nobody.
    """
    known = {}
    for event in case.of(Stack):
        if event.rank is not None and event.data.frames:
            known[event.rank] = event
    event_of_rank = {}
    for rank, event in known.items():
        if not _reports(event.data.frames):
            event_of_rank[rank] = event
    return event_of_rank


def awaited_and_silent(case: Case, how: str) -> list[Event]:
    """Ranks that gave torch's debug server no answer, while most that did wait in a collective.

    `how` is that of their ``debug.absent``.
    """
    known = stacks(case)
    waiting = set()
    for rank, stack in known.items():
        if in_collective(stack.data.frames):
            waiting.add(rank)
    found = []
    for event in case.of(DebugAbsent, how=how):
        answered = set(event.data.answered)
        if 2 * len(waiting & answered) > len(answered):
            found.append(event)
    return found


def _reports(frames: Iterable[Frame]) -> bool:
    return any(frame.get("func") == EXCEPTHOOK for frame in frames)


def call_of(frames: Sequence[Frame]) -> str:
    """The call that the innermost own line of a stack makes.

    It is such as ``all_reduce`` or ``Accelerator.gather``; the function of that line itself where
    it calls nothing; empty without frames.
    """
    own = own_frame(frames, innermost_first=True)
    if own is None:
        return ""
    inner = list(frames)[: list(frames).index(own)]
    calls = [frame for frame in inner if not is_wrapper(frame)] or inner
    return function(calls[-1] if calls else own)


WHOLE_TRAINING = {"fit", "train", "validate", "test", "predict", "launch", "run"}
"""Functions of frameworks that say nothing about where in a program of days a rank stands."""


def call_within(frames: Sequence[Frame]) -> str:
    """As `call_of`; of a framework's whole training it is also torch's call below it.

    Such is ``broadcast in Trainer.fit``.
    """
    call = call_of(frames)
    if call.rpartition(".")[2] not in WHOLE_TRAINING:
        return call
    inner = []
    for frame in frames:
        # a whole environment may lie in a folder of that name
        inside_packages = "/" + str(frame.get("file")).rpartition("-packages/")[2]
        if "/torch/" in inside_packages and not is_wrapper(frame):
            inner.append(frame)
    if inner and function(inner[-1]) != call:
        return f"{function(inner[-1])} in {call}"
    return call


CLASSES = {
    "torch/nn/parallel/distributed.py": "DistributedDataParallel",
    "torch/_tensor.py": "Tensor",
    "torch/optim/optimizer.py": "Optimizer",
    "torch/utils/data/dataloader.py": "DataLoader",
    "torch/distributed/fsdp/_fully_shard/_fsdp_state.py": "FSDPModule",
    "torch/distributed/fsdp/fully_sharded_data_parallel.py": "FullyShardedDataParallel",
    "accelerate/accelerator.py": "Accelerator",
    "transformers/trainer.py": "Trainer",
    "deepspeed/runtime/engine.py": "DeepSpeedEngine",
    "pytorch/trainer/trainer.py": "Trainer",
    "pytorch/strategies/ddp.py": "DDPStrategy",
    "pytorch/strategies/fsdp.py": "FSDPStrategy",
    "pytorch_lightning/trainer/trainer.py": "Trainer",
    "pytorch_lightning/strategies/ddp.py": "DDPStrategy",
    "pytorch_lightning/strategies/fsdp.py": "FSDPStrategy",
}
"""End of a library's file → the class that its functions are methods of, as their names alone say
little."""


def is_wrapper(frame: Frame) -> bool:
    """Whether a frame is only between a caller and what it calls."""
    return bool(WRAPPERS.search(f"{frame.get('file')}:{frame.get('func')}"))


def function(frame: Frame) -> str:
    """The function of a frame, with its class where that is known."""
    func = str(frame.get("func"))
    file = str(frame.get("file", ""))
    if "." in func.replace("<locals>.", ""):  # py-spy names the class from Python 3.11 on
        return func.rpartition("<locals>.")[2]
    owner = next((name for end, name in CLASSES.items() if file.endswith(end)), "")
    if owner:
        return f"{owner}.{func}"
    return func


def for_workers(case: Case, ranks: Iterable[int]) -> bool:
    """True when each of these ranks waits for its DataLoader's workers.

    There must be at least one rank; it is told by its stack or as measured.
    """
    seen = stacks(case)
    starved = {event.rank for event in starving(case)}
    # of no rank at all `all` would be true
    return all(
        [rank in starved or (rank in seen and _loads(seen[rank])) for rank in ranks] or [False]
    )


def _loads(stack: Event[Stack]) -> bool:
    for frame in stack.data.frames:
        if frame.get("func") in WORKERS and "torch/utils/data" in str(frame.get("file")):
            return True
    return False


def inside(event: Event, *names: str) -> bool:
    """True when one of the names stands in a frame of the event.

    It may also stand in its raw lines.
    """
    frames = [frame for frame in event.data.frames or () if isinstance(frame, Mapping)]
    text = event.text + " ".join(f"{frame.get('func')} {frame.get('file')}" for frame in frames)
    return any(name in text for name in names)


@once
def stacks_in_all_to_all(case: Case) -> list[Event]:
    """Stacks and tracebacks of ranks that stood in an all_to_all.

    Its sizes may differ between ranks by design.
    """
    lines = case.of("stack", "python.exception")
    exchange_lines = []
    for event in lines:
        if any("all_to_all" in str(f.get("func")) for f in event.data.frames or ()):
            exchange_lines.append(event)
    return exchange_lines


WITH_FRAMES = (Stack, PythonException, CppException, C10dStack, FlightMissing)
"""Kinds of events that have frames of a stack."""


def frames_of(event: Event) -> Sequence[Frame]:
    """The frames that an event shows; empty where its kind has none."""
    if isinstance(event.data, WITH_FRAMES):
        return event.data.frames or []
    return []


@once
def framework(case: Case) -> str:
    """The framework whose files stand in this case's frames; empty for plain PyTorch."""
    frames = []
    for e in case.events:
        for f in frames_of(e):
            if isinstance(f, Mapping):
                frames.append(f)
    files = "\n".join(str(frame.get("file", "")) for frame in frames).lower()
    # a folder of the package, not one that a user has named after it
    found = (
        name
        for name in FRAMEWORKS
        if re.search(rf"(?:^|/)(?:pytorch_)?{name}(?:_fabric)?/", files, re.M)
    )
    return next(found, "")
