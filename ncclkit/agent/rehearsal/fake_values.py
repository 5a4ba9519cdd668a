"""A fake run: tensors have shapes and no values, so that no kernel runs and no memory is needed.

What the program does with a number that it cannot know ends the rank, at that line: printing it
does not, asking whether it is larger than another does.
"""

from __future__ import annotations

import functools
import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d
from torch.distributed.pipelining import schedules
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .connection import user_place
from .fake_run import FakeRun


def begin_fake_run(stop_rank: Callable[[str, str], None]) -> None:
    """From now on tensors of this thread have no values.

    stop_rank: ends the rank; is told why and where.
    """
    FakeRun.stop_rank = stop_rank
    FakeRun.mode = FakeTensorMode(allow_non_fake_inputs=True)
    _keep_values_of_objects()
    _leave_out_workers()
    _step_always()
    _keep_buckets()
    _move_parameters()
    _pickle_without_values()
    FakeRun.mode.__enter__()
    _SeenOperators().__enter__()
    _UnknownValues().__enter__()


@contextmanager
def outside() -> Iterator[None]:
    """Within it tensors have their values."""
    before = getattr(FakeRun.local, "is_outside", False)
    FakeRun.local.is_outside = True
    try:
        with _disable_current_modes():
            yield
    finally:
        FakeRun.local.is_outside = before


def stop_at_value(what: str) -> None:
    """End this rank: its program asks for a value that nobody knows."""
    FakeRun.stop_rank("reads a value (%s), which a fake run does not know" % what, user_place())
    # the parent ends us, and until then nothing may go on as if the answer were known
    while True:
        signal.pause()


# ---------------------------------------------------------------- numbers that nobody knows


class UnknownNumber:
    """A number out of a tensor: it can be printed and computed with, and not be compared."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __repr__(self) -> str:
        return "?"

    def __format__(self, form: str) -> str:
        return "?"

    def _ask(self, what: str) -> Any:
        stop_at_value("%s of %s" % (what, self.source))

    def __reduce__(self) -> Any:
        return rebuild_number, (self.source,)


def rebuild_number(source: str) -> UnknownNumber:
    """An unknown number that another rank has sent."""
    return UnknownNumber(source)


def rebuild_tensor(shape: Any, stride: Any, dtype: Any, requires_grad: bool) -> Any:
    """A tensor without values that another rank has sent, or a file holds."""
    with FakeRun.mode:
        made = torch.empty_strided(shape, stride, dtype=dtype)
    return made.requires_grad_(requires_grad)


def _reduce_tensor(tensor: Any, protocol: Any) -> Any:
    told = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad
    return rebuild_tensor, told


def _pickle_without_values() -> None:
    """Let ranks send each other fake tensors within objects, and save them."""
    # the script may have a package of our name
    module = types.ModuleType("rehearsed_values")
    sys.modules[module.__name__] = module
    for function in (rebuild_number, rebuild_tensor):
        setattr(module, function.__name__, function)
        function.__module__ = module.__name__
    vars(torch.serialization)["add_safe_globals"]([rebuild_number, rebuild_tensor])
    FakeTensor.__reduce_ex__ = _reduce_tensor


def _unknown_result(self: UnknownNumber, *_: Any) -> UnknownNumber:
    return self


COMPUTED = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv"),
    *("rfloordiv", "mod", "rmod", "pow", "rpow", "neg", "pos", "abs", "round"),
)
"""What may be done with a number of which nothing is known."""
ASKED = {
    "bool": "the truth",
    "int": "the whole number",
    "index": "the place",
    "float": "the number",
    "hash": "the key",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "trunc": "the whole number",
    "floor": "the whole number",
    "ceil": "the whole number",
}
"""What cannot → its name."""


def _asking(what: str) -> Any:
    def ask(self: UnknownNumber, *_: Any) -> Any:
        return self._ask(what)

    return ask


for _name in COMPUTED:
    setattr(UnknownNumber, "__%s__" % _name, _unknown_result)
for _name, _what in ASKED.items():
    setattr(UnknownNumber, "__%s__" % _name, _asking(_what))

READS = {
    torch.Tensor.item: ".item()",
    torch.Tensor.tolist: ".tolist()",
}
"""Methods whose result may be a number that nobody knows."""
DEMANDS = {
    torch.Tensor.__bool__: "the truth of a tensor",
    torch.Tensor.__float__: "float()",
    torch.Tensor.__int__: "int()",
    torch.Tensor.__index__: "a tensor as an index",
    torch.Tensor.__contains__: "in",
    torch.Tensor.numpy: ".numpy()",
    torch.Tensor.__array__: "a NumPy array",
    torch.equal: "torch.equal",
    torch.allclose: "torch.allclose",
}
"""Those that must return a value."""
OF_MEMORY = (torch.Tensor.numpy, torch.Tensor.__array__)
UNKNOWN = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
)
"""Errors of torch: the result, or its shape, depends on values."""


class _UnknownValues(TorchFunctionMode):
    """Answers for methods that read values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        read = READS.get(func)
        demand = DEMANDS.get(func)
        if func is torch.Tensor.__format__ and _is_fake(args[0]):
            return "?"
        if read is None and demand is None:
            return func(*args, **given)
        try:
            with _reading():
                return func(*args, **given)
        except UNKNOWN:
            if func is torch.Tensor.__bool__ and _is_of_log():
                return False
            if demand is not None:
                stop_at_value(demand)
        except (RuntimeError, TypeError):
            # torch has no memory to read
            if func not in OF_MEMORY or not _is_fake(args[0]):
                raise
            stop_at_value(demand or "")
        shape: list[int] = []
        if func is torch.Tensor.tolist:
            shape = list(args[0].shape)
        return _unknown_numbers(shape, read or "")


def _is_fake(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor)


def _unknown_numbers(shape: list[int], source: str) -> Any:
    """A number, or lists of them, in a shape."""
    if not shape:
        return UnknownNumber(source)
    first, *rest = shape
    return [_unknown_numbers(rest, source) for _ in range(first)]


@contextmanager
def _reading() -> Iterator[None]:
    """Within it a value that is not known is an error, which the caller sees."""
    before = getattr(FakeRun.local, "is_read", False)
    FakeRun.local.is_read = True
    try:
        yield
    finally:
        FakeRun.local.is_read = before


# ---------------------------------------------------------------- operators


class _SeenOperators(TorchDispatchMode):
    """Sees each operator before it is made fake: collectives among them are asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        # of a DTensor: it comes again with its parts, and among them collectives
        if any(kind is not FakeTensor for kind in types):
            return NotImplemented
        if func is torch.ops.aten._local_scalar_dense.default and _is_of_reducer():
            # it asks whether any rank has used a parameter
            return 1
        if not any(map(_is_fake, args)) and _is_drawn_by_torch():
            with outside():
                return func(*args, **given)
        if func.namespace in ("_c10d_functional", "_dtensor"):
            return ask_for_operator(func, args, given)
        try:
            return func(*args, **given)
        except UNKNOWN:
            if not getattr(FakeRun.local, "is_read", False):
                stop_at_value("%s, whose result depends on it" % func)
            raise
        except fake_tensor.UnsupportedOperatorException:
            say = "calls %s, of which a fake run knows no shapes: torch.library.register_fake"
            FakeRun.stop_rank(say % func, user_place())
            raise


def _caller() -> Any:
    """The innermost frame that neither we nor the ways of torch to us have made."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not any(part in file for part in PASSED_THROUGH):
            return frame
        frame = frame.f_back
    return None


PASSED_THROUGH = (
    "ncclkit/agent/",
    "torch/_compile.py",
    "torch/_dynamo/eval_frame.py",
    "torch/_ops.py",
    "torch/_tensor.py",
    "torch/overrides.py",
    "torch/utils/_device.py",
    "torch/utils/_python_dispatch.py",
)
DRAWS = (
    "accelerate/data_loader.py",
    "accelerate/utils/random.py",
    "torch/distributed/_mesh_layout.py",
    "torch/distributed/device_mesh.py",
    "torch/distributed/tensor/_utils.py",
    "torch/distributed/tensor/placement_types.py",
    "torch/utils/data/dataloader.py",
    "torch/utils/data/dataset.py",
    "torch/utils/data/distributed.py",
    "torch/utils/data/sampler.py",
)
"""Files with tensors of their own, of numbers that are known: places, order of samples."""
LEAVES_OUT = "transformers/trainer.py"
"""The file that leaves a loss that is no number out of its log, whatever the loss does else."""


def _is_drawn_by_torch() -> bool:
    frame = _caller()
    return frame is not None and frame.f_code.co_filename.endswith(DRAWS)


def _is_of_log() -> bool:
    frame = _caller()
    if frame is None or not frame.f_code.co_filename.endswith(LEAVES_OUT):
        return False
    return frame.f_code.co_name in ("_run_epoch", "_inner_training_loop")


def _is_of_reducer() -> bool:
    """Whether DDP asks in the midst of a backward pass; a function of the user has a frame."""
    frame = _caller()
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


# ---------------------------------------------------------------- functional collectives


def ask_for_operator(func: Any, args: Any, given: Any) -> Any:
    """Make a collective of DTensor fake, and ask for it in its group."""
    name = func._schema.name.partition("::")[2]
    values = _values_by_name(func, args, given)
    if name == "wait_tensor":
        work = getattr(values["tensor"], WORK, None)
        if work is not None:
            work.wait()
        return func(*args, **given)
    made = func(*args, **given)
    ask = OPERATORS.get(name)
    if ask is None:
        say = "calls %s, which a fake run does not know" % func
        FakeRun.stop_rank(say, user_place())
        return made
    group = values["group_name"]
    if isinstance(group, str):
        group = c10d._resolve_process_group(group)
    given_tensor = values.get("input", values.get("inputs", values.get("self")))
    work = ask(group, given_tensor, made, values)
    for tensor in _tensors(made):
        setattr(tensor, WORK, work)
    return made


WORK = "_ncclkit_work"
"""The attribute of a tensor that holds the handle of its call."""


def _tensors(made: Any) -> Any:
    if isinstance(made, torch.Tensor):
        return [made]
    return made


def _values_by_name(func: Any, args: Any, given: Any) -> dict[str, Any]:
    values = dict(given)
    for argument, value in zip(func._schema.arguments, args):
        values[argument.name] = value
    return values


def _options(kind: Any, values: Any) -> Any:
    """Options of a reduction, which an operator names by a word."""
    options = kind()
    options.reduceOp = getattr(dist.ReduceOp, str(values["reduce_op"]).upper(), dist.ReduceOp.SUM)
    return options


def _all_reduce(group: Any, given: Any, made: Any, values: Any) -> Any:
    return group.allreduce_coalesced(_tensors(made), _options(dist.AllreduceOptions, values))


def _all_gather(group: Any, given: Any, made: Any, values: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return group.all_gather_single(made, given)
    return group.all_gather_single_coalesced(made, given)


def _reduce_scatter(group: Any, given: Any, made: Any, values: Any) -> Any:
    options = _options(dist.ReduceScatterOptions, values)
    if isinstance(given, torch.Tensor):
        return group.reduce_scatter_single(made, given, options)
    return group.reduce_scatter_single_coalesced(made, given, options)


def _all_to_all(group: Any, given: Any, made: Any, values: Any) -> Any:
    return group.all_to_all_single(
        made,
        given,
        values.get("output_split_sizes"),
        values.get("input_split_sizes"),
    )


def _broadcast(group: Any, given: Any, made: Any, values: Any) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank = values["src"]
    return group.broadcast([made], options)


OPERATORS = {
    "all_reduce": _all_reduce,
    "all_reduce_": _all_reduce,
    "all_reduce_coalesced": _all_reduce,
    "all_reduce_coalesced_": _all_reduce,
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_coalesced": _all_gather,
    "all_gather_into_tensor_out": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _reduce_scatter,
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
    "broadcast_": _broadcast,
    "shard_dim_alltoall": _all_to_all,
}
"""Operators of functional collectives → how a group is asked for them."""


# ---------------------------------------------------------------- what torch does by itself


def _keep_values_of_objects() -> None:
    """Python objects travel as they are, and a mesh is made of numbers that are known."""
    for name in OBJECT_CALLS:
        for module in (dist, c10d):
            if hasattr(module, name):
                setattr(module, name, _run_outside(getattr(module, name)))
    mesh = device_mesh.DeviceMesh
    for name in ("__init__", "_flatten", "__getitem__"):
        if hasattr(mesh, name):
            setattr(mesh, name, _run_outside(getattr(mesh, name)))
    # a pipeline agrees on how its stages send, by numbers that torch makes
    schedule = schedules._PipelineSchedule
    if hasattr(schedule, "_warmup_p2p"):
        schedule._warmup_p2p = _run_outside(schedule._warmup_p2p)
    made = _run_outside(device_mesh.init_device_mesh)
    device_mesh.init_device_mesh = dist.init_device_mesh = made


OBJECT_CALLS = (
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
)


def _run_outside(real: Any) -> Any:
    @functools.wraps(real)
    def run(*args: Any, **kwargs: Any) -> Any:
        with outside():
            return real(*args, **kwargs)

    return run


def _leave_out_workers() -> None:
    """Samples are made in the rank itself: a fake tensor cannot be sent from a worker."""
    loader = torch.utils.data.DataLoader
    real_init = loader.__init__

    @functools.wraps(real_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("multiprocessing_context", "prefetch_factor", "persistent_workers"):
            kwargs.pop(name, None)
        kwargs["num_workers"] = 0
        # dataset, batch_size, shuffle, sampler and batch_sampler may stand before it by place
        real_init(self, *args[:5], **kwargs)

    loader.__init__ = init


def _step_always() -> None:
    """A scaler skips a step where a gradient is infinite, which a fake one is not."""

    def step(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    torch.amp.GradScaler._maybe_opt_step = step


def _keep_buckets() -> None:
    """DDP compares parameters by their values in memory, and sorts its buckets anew by them."""
    reducer = torch._C._distributed_c10d.Reducer
    reducer._rebuild_buckets = lambda self: False

    def compare_sizes(group: Any, parameters: Any, logger: Any = None) -> None:
        group.compare_sizes("verify_parameters", parameters)

    dist._verify_params_across_processes = compare_sizes


def _move_parameters() -> None:
    """Parameters of a module stay what they are, and take another type or device."""
    real = torch.utils.swap_tensors

    def swap(old: Any, new: Any) -> None:
        # who holds the parameter weakly keeps torch from swapping
        if old.device == new.device:
            old.data = new
        else:
            real(old, new)

    torch.utils.swap_tensors = swap
