"""A process group of torch that asks before each call, and makes it over gloo with real values.

Written for torch 2.6 and later; `check_torch` says what an older or newer one lacks.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d

from . import fake_run, gpu_choice
from .connection import Connection, PendingCall, ScriptAsked
from .staged_calls import StagedGloo

WORLD = "world"
"""The group of calls that all ranks make outside of any process group."""
UNNAMED = "undefined"
"""What torch calls a group that the script gave no name."""
NEEDED = ("_new_group_with_tag", "_get_default_group")
OLDER_NAMES = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}
"""Names that torch 2.13 gave to methods of a process group → those before, which gloo has kept."""

REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


class CannotRehearse(RuntimeError):
    """The script does what a rehearsal cannot do; it is not to blame."""


class RankState:
    """What all groups of one rank share."""

    connection: Connection
    world = 1
    backend = "nccl"
    """What the script asked for when it made its last group."""
    gpus_only = False
    """Whether it asked for NCCL alone, which takes no tensors of the CPU."""
    is_bound = False
    """Whether it bound its first group to a device."""
    is_eager = False
    """Whether NCCL makes the communicator of its last group at once, as the device is known."""
    shares_gpu = False
    """Whether tensors may lie on a GPU, which all ranks share."""
    batch = threading.local()
    """Whether a thread is within `batch_isend_irecv`."""
    labelled: list[AskingGroup] = []
    folder = ""
    """Where ranks leave files for each other."""
    stores = 0
    """How many stores this rank has opened."""
    served: Any = None
    """The store of `env://`, of rank 0."""


def check_torch() -> str:
    """What this torch lacks for a rehearsal; empty where it has everything."""
    if not dist.is_available() or not hasattr(dist, "ProcessGroupGloo"):
        return "torch %s was built without torch.distributed or gloo" % torch.__version__
    lacking = [name for name in NEEDED if not hasattr(c10d, name)]
    if lacking:
        return "torch %s has no %s" % (torch.__version__, ", ".join(lacking))
    return ""


class AskedWork(dist.Work):
    """The handle of a call that may still wait for other ranks."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.pending: PendingCall | None = None
        self.eager = False
        """A send of gloo, which does not wait for its recv."""
        self._result = result
        self._inner: Any = None
        self._finish: Callable[[], None] = lambda: None
        self._finished = False
        self._error: BaseException | None = None

    def begin(self, make: Callable[[], Any], finish: Callable[[], None]) -> None:
        """Make the call over gloo; what fails there is raised where the script waits."""
        try:
            with torch.no_grad():
                self._inner = make()
            # what was copied here is used by another thread, which may use another stream
            _await_gpu()
            self._finish = finish
        except Exception as error:
            self._error = error

    def wait(self, timeout: Any = None) -> bool:
        """Block until all members have come and the values are there."""
        if self.eager:
            return True
        assert self.pending is not None
        RankState.connection.wait_for(self.pending)
        if self._error is not None:
            raise CannotRehearse(str(self._error)) from self._error
        if not self._finished:
            if self._inner is not None:
                self._inner.wait()
            with torch.no_grad():
                self._finish()
            self._finished = True
        return True

    def is_completed(self) -> bool:
        """Whether the call has been made; a script that polls must not wait for ever."""
        if self.pending is not None and not self.pending.may_go.is_set():
            return False
        return self._inner is None or bool(self._inner.is_completed())

    def is_success(self) -> bool:
        """Whether it went well."""
        return self._error is None

    def get_future(self) -> Any:
        """A future that is done: DDP asks for it, and waits where nobody sees it."""
        self.wait()
        devices = []
        for tensor in _flat_tensors(self._result):
            if tensor.is_cuda and tensor.device not in devices:
                devices.append(tensor.device)
        future: Any = torch.futures.Future(devices=devices)
        future.set_result(self._result)
        return future

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def _source_rank(self) -> int:
        return int(self._inner._source_rank())

    def result(self) -> Any:
        """The tensors of the call."""
        return self._result


class AskingGroup(dist.ProcessGroup):
    """Stands where NCCL would; gloo does the work."""

    def __init__(
        self,
        inner: Any,
        name: str,
        members: list[int],
    ) -> None:
        super().__init__(inner.rank(), inner.size())
        self.inner, self._name, self.members = inner, name, members
        self.backend = RankState.backend
        self.gpus_only = RankState.gpus_only
        self.is_eager = RankState.is_eager
        self.owner = ""
        """The model whose gradients are reduced here."""
        self.owner_gpu: gpu_choice.GpuChoice | None = None
        """Where that model lies."""
        self._batch: list[AskedWork] | None = None

    def labelled(self, owner: str, parameters: Any) -> AskingGroup:
        """The same group, whose calls are of this model."""
        group = AskingGroup(self.inner, self._name, self.members)
        group._set_group_name(self._name)
        group._set_group_desc(self.group_desc)
        group.backend = self.backend
        group.gpus_only = self.gpus_only
        group.is_eager = self.is_eager
        group.owner = owner
        group.owner_gpu = gpu_choice.choice_for(parameters, self.gpus_only)
        # torch keeps the group and not its Python
        RankState.labelled.append(group)
        return group

    # ---------------------------------------------------------------- what torch asks of a group

    def getBackendName(self) -> str:  # noqa: N802
        """The name under which torch knows it."""
        return "rehearsal"

    @property
    def group_name(self) -> str:
        """The name that torch gave."""
        return self._name

    @property
    def pg_name(self) -> str:
        """The same."""
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        """Where its tensors may lie: asynchronous checkpoints need a group for the CPU."""
        if RankState.shares_gpu:
            return [torch.device("cpu"), torch.device("cuda")]
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> AskingGroup:
        """Itself: torch 2.14 asks it whether sends of a batch may be made as one."""
        return self

    def size(self) -> int:
        """How many members it has."""
        return int(self.inner.size())

    def rank(self) -> int:
        """The place of this rank among them."""
        return int(self.inner.rank())

    @property
    def supports_coalescing(self) -> bool:
        """Whether several calls may be made as one."""
        return False

    def _start_coalescing(self, device: Any = None) -> None:
        self._batch = []

    def _end_coalescing(self, device: Any = None) -> Any:
        works = self._batch or []
        self._batch = None
        return _BatchWork(works)

    # ---------------------------------------------------------------- collectives

    def allreduce(
        self,
        tensors: Any,
        opts: Any = None,
        **_: Any,
    ) -> Any:
        """As of `torch.distributed.all_reduce`."""
        opts = opts or dist.AllreduceOptions()
        fields = _reducing(opts, sizes=_elements(tensors))
        averaged = _sum_in_place_of_average(opts)

        def make_call() -> Any:
            return self.inner.allreduce(tensors, opts)

        finish_call = self._finish_average(averaged, tensors)
        return self._ask("all_reduce", tensors, fields, make_call, tensors, finish_call)

    def allreduce_coalesced(
        self,
        tensors: Any,
        opts: Any = None,
        **_: Any,
    ) -> Any:
        """One all_reduce of several tensors."""
        plain = dist.AllreduceOptions()
        if opts is not None:
            plain.reduceOp = opts.reduceOp
        fields = _reducing(plain, sizes=_elements(tensors))
        averaged = _sum_in_place_of_average(plain)

        def make_call() -> None:
            for tensor in tensors:
                self.inner.allreduce([tensor], plain).wait()
            if averaged:
                self._divide(tensors)

        return self._ask("all_reduce", tensors, fields, make_call, tensors)

    def reduce(
        self,
        tensors: Any,
        opts: Any,
        **_: Any,
    ) -> Any:
        """As of `torch.distributed.reduce`."""
        fields = _reducing(opts, sizes=_elements(tensors))
        fields["root"] = self.members[opts.rootRank]
        averaged = _sum_in_place_of_average(opts)

        def make_call() -> Any:
            return self.inner.reduce(tensors, opts)

        def finish_call() -> None:
            if averaged and opts.rootRank == self.rank():
                self._divide(tensors)

        return self._ask("reduce", tensors, fields, make_call, tensors, finish_call)

    def broadcast(
        self,
        tensors: Any,
        opts: Any,
        **_: Any,
    ) -> Any:
        """As of `torch.distributed.broadcast`."""
        fields = {
            "sizes": _elements(tensors),
            "root": self.members[opts.rootRank],
        }

        def make_call() -> Any:
            return self.inner.broadcast(tensors, opts)

        return self._ask("broadcast", tensors, fields, make_call)

    def barrier(self, opts: Any = None, **_: Any) -> Any:
        """As of `torch.distributed.barrier`."""

        def make_call() -> Any:
            return self.inner.barrier()

        return self._ask("barrier", [], {}, make_call)

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """A barrier that says who is missing, as a rehearsal does anyway."""
        self.barrier().wait()

    def allgather(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        **_: Any,
    ) -> Any:
        """As of `torch.distributed.all_gather`."""
        fields = {
            "gives": _elements(inputs),
            "takes": _elements(outputs[0]),
        }

        def make_call() -> Any:
            return self.inner.allgather(outputs, inputs)

        return self._ask("all_gather", inputs, fields, make_call, outputs)

    def all_gather_single(
        self,
        output: Any,
        given: Any,
        opts: Any = None,
        **_: Any,
    ) -> Any:
        """As of `torch.distributed.all_gather_into_tensor`."""
        members = self.size()
        part = output.numel() // members
        fields = {
            "gives": _elements([given]),
            "takes": [part] * members,
        }

        flat = output.view(-1), given.reshape(-1)

        def make_call() -> Any:
            return self.inner._allgather_base(*flat)

        return self._ask("all_gather", [given], fields, make_call, [output])

    def all_gather_single_coalesced(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        **_: Any,
    ) -> Any:
        """Several of them as one."""
        fields = {"sizes": _elements(inputs)}

        def make_call() -> None:
            for output, given in zip(outputs, inputs):
                flat = output.view(-1), given.reshape(-1)
                self.inner._allgather_base(*flat).wait()

        return self._ask("all_gather", inputs, fields, make_call, outputs)

    def allgather_coalesced(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        **_: Any,
    ) -> Any:
        """Several all_gather as one."""
        fields = {"sizes": _elements(inputs)}

        def make_call() -> Any:
            return self.inner.allgather_coalesced(outputs, inputs)

        return self._ask("all_gather", inputs, fields, make_call, outputs)

    def reduce_scatter(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        **_: Any,
    ) -> Any:
        """As of `torch.distributed.reduce_scatter`."""
        opts = opts or dist.ReduceScatterOptions()
        given = inputs[0]
        fields = _reducing(opts, sizes=[sum(_elements(given))])
        averaged = _sum_in_place_of_average(opts)

        def make_call() -> Any:
            return self.inner.reduce_scatter(outputs, inputs, opts)

        finish_call = self._finish_average(averaged, outputs)
        return self._ask("reduce_scatter", given, fields, make_call, outputs, finish_call)

    def reduce_scatter_single(
        self,
        output: Any,
        given: Any,
        opts: Any = None,
        **_: Any,
    ) -> Any:
        """As of `torch.distributed.reduce_scatter_tensor`."""
        opts = opts or dist.ReduceScatterOptions()
        fields = _reducing(opts, sizes=_elements([given]))
        averaged = _sum_in_place_of_average(opts)

        flat = output.view(-1), given.reshape(-1)

        def make_call() -> Any:
            return self.inner._reduce_scatter_base(*flat, opts)

        finish_call = self._finish_average(averaged, [output])
        return self._ask("reduce_scatter", [given], fields, make_call, [output], finish_call)

    def reduce_scatter_single_coalesced(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        **_: Any,
    ) -> Any:
        """Several of them as one."""
        opts = opts or dist.ReduceScatterOptions()
        fields = _reducing(opts, sizes=_elements(inputs))
        averaged = _sum_in_place_of_average(opts)

        def make_call() -> None:
            for output, given in zip(outputs, inputs):
                flat = output.view(-1), given.reshape(-1)
                self.inner._reduce_scatter_base(*flat, opts).wait()
            if averaged:
                self._divide(outputs)

        return self._ask("reduce_scatter", inputs, fields, make_call, outputs)

    def all_to_all_single(
        self,
        output: Any,
        given: Any,
        output_splits: Any,
        input_splits: Any,
        opts: Any = None,
        **_: Any,
    ) -> Any:
        """As of `torch.distributed.all_to_all_single`."""
        members = self.size()
        fields = {
            "gives": _split_elements(given, input_splits, members),
            "takes": _split_elements(output, output_splits, members),
        }

        def make_call() -> Any:
            return self.inner.alltoall_base(output, given, output_splits, input_splits)

        return self._ask("all_to_all", [given], fields, make_call, [output])

    def alltoall(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        **_: Any,
    ) -> Any:
        """As of `torch.distributed.all_to_all`, which gloo lacks: one tensor each way."""
        gives = _elements(inputs)
        takes = _elements(outputs)
        fields = {
            "gives": gives,
            "takes": takes,
        }

        def make_call() -> None:
            flat = [tensor.reshape(-1) for tensor in inputs]
            given = torch.cat(flat)
            output = outputs[0].new_empty(sum(takes))
            self.inner.alltoall_base(output, given, takes, gives).wait()
            for tensor, part in zip(outputs, output.split(takes)):
                tensor.copy_(part.view_as(tensor))

        return self._ask("all_to_all", inputs, fields, make_call, outputs)

    def gather(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any,
        **_: Any,
    ) -> Any:
        """As of `torch.distributed.gather`."""
        root = opts.rootRank
        fields: dict[str, Any] = {
            "gives": _elements(inputs),
            "root": self.members[root],
        }
        if root == self.rank() and outputs:
            fields["takes"] = _elements(outputs[0])

        def make_call() -> Any:
            return self.inner.gather(outputs, inputs, opts)

        return self._ask("gather", inputs, fields, make_call, outputs)

    def scatter(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any,
        **_: Any,
    ) -> Any:
        """As of `torch.distributed.scatter`."""
        root = opts.rootRank
        takes = [-1] * self.size()
        takes[root] = outputs[0].numel()
        fields: dict[str, Any] = {
            "takes": takes,
            "root": self.members[root],
        }
        if root == self.rank() and inputs:
            fields["gives"] = _elements(inputs[0])

        def make_call() -> Any:
            return self.inner.scatter(outputs, inputs, opts)

        return self._ask("scatter", outputs, fields, make_call, outputs)

    def _finish_average(self, averaged: bool, tensors: Any) -> Callable[[], None]:
        """What is left to do once gloo has summed: nothing, unless an average was asked for."""

        def finish_call() -> None:
            if averaged:
                self._divide(tensors)

        return finish_call

    def _divide(self, tensors: Any) -> None:
        """Make an average of a sum: gloo knows none."""
        for tensor in tensors:
            tensor.div_(self.size())

    # ---------------------------------------------------------------- one to one

    def send(
        self,
        tensors: Any,
        peer: int,
        tag: int,
    ) -> Any:
        """As of `torch.distributed.send`."""
        is_eager = self.backend == "gloo"
        if is_eager:
            # gloo has taken the values when it returns, so the script may overwrite them
            tensors = [tensor.clone() for tensor in tensors]
        fields = self._pair_fields(tensors, peer, tag)

        def make_call() -> Any:
            return self.inner.send(tensors, peer, tag)

        work = self._ask("send", tensors, fields, make_call)
        work.eager = is_eager
        return work

    def recv(
        self,
        tensors: Any,
        peer: int,
        tag: int,
    ) -> Any:
        """As of `torch.distributed.recv`."""
        fields = self._pair_fields(tensors, peer, tag)

        def make_call() -> Any:
            return self.inner.recv(tensors, peer, tag)

        return self._ask("recv", tensors, fields, make_call)

    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        """A recv from whoever sends, which only gloo can do."""
        fields = self._pair_fields(tensors, None, tag)

        def make_call() -> Any:
            return self.inner.recv_anysource(tensors, tag)

        return self._ask("recv", tensors, fields, make_call)

    def _pair_fields(
        self,
        tensors: Any,
        peer: int | None,
        tag: int,
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {"sizes": _elements(tensors)}
        if peer is not None:
            fields["peer"] = self.members[peer]
        # NCCL knows no tags: there the first send meets the first recv
        if self.backend == "gloo":
            fields["tag"] = tag
        return fields

    # ---------------------------------------------------------------- asking

    def _ask(
        self,
        op: str,
        tensors: Any,
        fields: dict[str, Any],
        make: Callable[[], Any],
        result: Any = None,
        finish: Callable[[], None] = lambda: None,
    ) -> AskedWork:
        tensors = list(tensors)
        shapes = []
        # each type once: how many tensors a call has may differ where their elements fit
        dtypes = []
        for tensor in tensors:
            shapes.append(str(list(tensor.shape)))
            dtype = str(tensor.dtype).replace("torch.", "")
            if dtype not in dtypes:
                dtypes.append(dtype)
        call = dict(
            fields,
            op=op,
            group=self._name,
            members=self.members,
            shapes=shapes,
            dtypes=dtypes,
            backend=self.backend,
            owner=self.owner,
        )
        # torch names a group after it has made it
        if self.group_desc != UNNAMED:
            call["group_desc"] = self.group_desc
        self._add_gpu(call, tensors)
        is_on_gpu = self.gpus_only or "gpu" in call
        if getattr(RankState.batch, "is_open", False) and is_on_gpu and not self.is_eager:
            call["batched"] = True
        if result is None:
            result = tensors
        # the call is made by another thread, for which the values must be there
        _await_gpu()
        if not fake_run.makes_calls():
            fake_run.forget_values(_flat_tensors(result))
            make, finish = _nothing, _nothing
        work = AskedWork(result)

        def begin() -> None:
            work.begin(make, finish)

        work.pending = RankState.connection.post_call(call, begin)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def compare_sizes(self, op: str, tensors: Any) -> None:
        """Wait until all members have come with tensors of these sizes."""
        fields = {"sizes": _elements(tensors)}
        self._ask(op, [], fields, _nothing).wait()

    def _add_gpu(self, call: dict[str, Any], tensors: list[Any]) -> None:
        """Say from which GPU a call is made, where NCCL makes it and the GPU is known."""
        if self.backend != "nccl":
            return
        choice = self.owner_gpu or gpu_choice.choice_for(tensors, self.gpus_only)
        if choice is None:
            return
        name = gpu_choice.name_on_host(choice)
        if name:
            call["gpu"] = name
            call["gpu_place"] = choice.place


for _new, _old in OLDER_NAMES.items():
    setattr(AskingGroup, _old, getattr(AskingGroup, _new))


class _BatchWork(dist.Work):
    """The handle of several calls."""

    def __init__(self, works: list[AskedWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: Any = None) -> bool:
        for work in self._works:
            work.wait()
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


def _nothing() -> None:
    """What is made of a call that moves no values."""


def _await_gpu() -> None:
    """Wait until what this thread has asked of a GPU is done."""
    if RankState.shares_gpu:
        torch.cuda.current_stream().synchronize()


def _flat_tensors(result: Any) -> list[Any]:
    """Tensors, or lists of them, as one list."""
    tensors = []
    for part in result:
        if isinstance(part, torch.Tensor):
            tensors.append(part)
        else:
            tensors += part
    return tensors


def _elements(tensors: Any) -> list[int]:
    return [tensor.numel() for tensor in tensors]


def _split_elements(
    tensor: Any,
    splits: Any,
    members: int,
) -> list[int]:
    """Elements of each member's part."""
    if not splits:
        return [tensor.numel() // members] * members
    row = 1
    for extent in tensor.shape[1:]:
        row *= extent
    return [int(rows) * row for rows in splits]


def _reducing(opts: Any, **fields: Any) -> dict[str, Any]:
    """Fields of a call that reduces, with the name of its operation."""
    name = ""
    for known in REDUCTIONS:
        if opts.reduceOp == getattr(dist.ReduceOp, known):
            name = known
    return dict(fields, reduce=name)


def _sum_in_place_of_average(opts: Any) -> bool:
    """Gloo cannot average: let it sum, and say that somebody must divide."""
    if opts.reduceOp != dist.ReduceOp.AVG:
        return False
    opts.reduceOp = dist.ReduceOp.SUM
    return True


# ---------------------------------------------------------------- the script's own calls


def install_groups(
    connection: Connection,
    world: int,
    folder: str,
    shares_gpu: bool = False,
) -> None:
    """From now on whatever group the script makes asks the coordinator.

    folder: where ranks leave files for each other.
    shares_gpu: whether tensors may lie on a GPU.
    """
    RankState.connection = connection
    RankState.world = world
    RankState.folder = folder
    RankState.shares_gpu = shares_gpu
    devices = ["cpu"]
    if shares_gpu:
        devices.append("cuda")
    dist.Backend.register_backend("rehearsal", _create, extended_api=True, devices=devices)
    _replace_init()
    _replace_new_group()
    _mark_batches()
    _label_models()
    # of a GPU that all share it is not asked whose it would be
    if not shares_gpu:
        _place_objects()
    if hasattr(c10d, "_maybe_attach_flight_recorder"):
        # torch 2.15 looks for a name in C++, which a group in Python has not
        vars(c10d)["_maybe_attach_flight_recorder"] = lambda *_, **__: None
    dist.get_backend = c10d.get_backend = _backend_of
    dist.is_nccl_available = c10d.is_nccl_available = lambda: True


def _backend_of(group: Any = None) -> str:
    """What the script asked for when it made a group."""
    return str((group or c10d._get_default_group()).backend)


def _create(options: Any, backend_options: Any = None) -> AskingGroup:
    """A group, as torch asks for it."""
    inner = dist.ProcessGroupGloo(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
    )
    if RankState.shares_gpu:
        inner = StagedGloo(inner)
    members = list(options.global_ranks_in_group) or list(range(RankState.world))
    group = AskingGroup(inner, options.group_id, members)
    group._set_group_name(options.group_id)
    return group


def wait_for_all(op: str, ranks: list[int]) -> None:
    """Wait until all ranks of the job have come to the same call outside of any group.

    ranks: what the call is about, which must be the same on all.
    """
    call = {
        "op": op,
        "group": WORLD,
        "members": list(range(RankState.world)),
        "sizes": ranks,
    }
    pending = RankState.connection.post_call(call, lambda: None)
    RankState.connection.wait_for(pending)


def _asked_backend(words: Any, otherwise: str) -> str:
    """`gloo` or `nccl`: what a script names; a backend for each device has NCCL's rules."""
    if words is None:
        return otherwise
    if str(words) == "gloo":
        return "gloo"
    return "nccl"


def _replace_init() -> None:
    real = dist.init_process_group

    def init_process_group(
        backend: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        RankState.backend = _asked_backend(backend, "nccl")
        RankState.gpus_only = str(backend) == "nccl"
        ScriptAsked.for_gpu = ScriptAsked.for_gpu or RankState.backend == "nccl"
        # a device would bind the group to a GPU
        RankState.is_bound = kwargs.pop("device_id", None) is not None
        RankState.is_eager = RankState.is_bound
        wait_for_all("init_process_group", [])
        if _means_environment(args, kwargs):
            args = ()
            kwargs.update(_usual_store(kwargs))
        return real("rehearsal", *args, **kwargs)

    # a mesh makes the first group by itself where a script has made none
    for module in (dist, c10d, device_mesh):
        vars(module)["init_process_group"] = init_process_group


def _means_environment(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> bool:
    """Whether ranks shall find each other by what their launcher told them."""
    if len(args) > 1 or kwargs.get("store") is not None:
        return False
    method = kwargs.get("init_method")
    if args:
        method = args[0]
    return method in (None, "env://")


def _usual_store(given: dict[str, Any]) -> dict[str, Any]:
    """What stands for `env://`: a file, by which ranks find each other.

    A store behind a socket asks the network for the name of each of its clients, which takes
    seconds where the name server is slow or gets many questions at once.
    """
    # a script may end its groups, and begin anew
    RankState.stores += 1
    if RankState.stores == 1 and _number_of(given, "rank") == 0:
        threading.Thread(target=_serve_store, daemon=True).start()
    name = "store-%d" % RankState.stores
    path = os.path.join(RankState.folder, name)
    return {
        "init_method": None,
        "store": dist.FileStore(path),
        "rank": _number_of(given, "rank"),
        "world_size": _number_of(given, "world_size"),
    }


def _serve_store() -> None:
    """Serve the store of `env://` too: a script may ask it by itself."""
    try:
        RankState.served = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=True,
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        # it may serve one of its own there
        print("ncclkit: no store of env://: %s" % error, file=sys.stderr)


def _number_of(given: dict[str, Any], name: str) -> int:
    """A number that the script gave, else that of its launcher."""
    number = int(given.get(name, -1))
    if number < 0:
        number = int(os.environ[name.upper()])
    return number


def _mark_batches() -> None:
    """Calls of `batch_isend_irecv` are not those of single sends: NCCL makes them in the group."""
    real = dist.batch_isend_irecv

    def batch_isend_irecv(operations: Any) -> Any:
        RankState.batch.is_open = True
        try:
            return real(operations)
        finally:
            RankState.batch.is_open = False

    for module in (dist, c10d):
        vars(module)["batch_isend_irecv"] = batch_isend_irecv


def _label_models() -> None:
    """The gradients of each DDP model say whose they are: sizes of two models may be equal."""
    real = dist.Reducer
    models: dict[str, int] = {}

    def make_reducer(
        parameters: Any,
        buckets: Any,
        limits: Any,
        group: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if isinstance(group, AskingGroup):
            # by group: all members make the models of a group in one order
            number = models.get(group.group_name, 0) + 1
            models[group.group_name] = number
            group = group.labelled("model %d" % number, parameters)
        return real(parameters, buckets, limits, group, *args, **kwargs)

    dist.Reducer = make_reducer


def _place_objects() -> None:
    """Objects travel from the current GPU, as torch documents, unless a device is named."""
    real = c10d._object_to_tensor

    def object_to_tensor(
        value: Any,
        device: Any,
        group: Any,
    ) -> Any:
        made = real(value, device, group)
        asking = group or c10d._get_default_group()
        gpus_only = isinstance(asking, AskingGroup) and asking.gpus_only
        # by its name a device has marked them already
        if gpus_only and not RankState.is_bound and gpu_choice.number_of(device) is None:
            gpu_choice.put_on_gpu(made, gpu_choice.RankGpus.current.number)
        return made

    c10d._object_to_tensor = object_to_tensor


def _replace_new_group() -> None:
    real = c10d._new_group_with_tag

    def new_group_with_tag(
        ranks: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        words = list(args)
        asked = kwargs.pop("backend", None)
        # timeout and backend may come by place
        if len(words) > 1:
            asked, words[1] = words[1], None
        is_bound = kwargs.pop("device_id", None) is not None
        RankState.is_eager = RankState.is_bound or is_bound
        RankState.backend = _asked_backend(asked, _backend_of())
        RankState.gpus_only = str(asked) == "nccl"
        if asked is None:
            RankState.gpus_only = getattr(c10d._get_default_group(), "gpus_only", False)
        members = list(range(RankState.world)) if ranks is None else sorted(ranks)
        if not kwargs.get("use_local_synchronization"):
            wait_for_all("new_group", members)
        return real(ranks, *words, **kwargs)

    c10d._new_group_with_tag = new_group_with_tag


def is_beyond_us(error: BaseException) -> bool:
    """Whether an error may be of the rehearsal rather than of the script."""
    if isinstance(error, CannotRehearse):
        return True
    words = str(error).lower()
    return any(sign in words for sign in SIGNS)


SIGNS = (
    "cuda",
    "driver",
    "gloo",
    "nccl",
    "no backend type",
    "rehearsal",
    "triton",
    "_event",
    "_stream",
)
"""Words of errors that may come of a missing GPU, or of what stands in its place."""
