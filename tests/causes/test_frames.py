"""Whether a stack stands in a collective."""

from __future__ import annotations

import pytest

from ncclkit.analysis.frames import call_of, framework, in_collective, is_own, stacks
from ncclkit.core.case import Case
from ncclkit.core.model import Event

TORCH = "/opt/env/lib/python3.11/site-packages/torch"
MINE = {"func": "main", "file": "/srv/app/fit.py", "line": 3}
STACKS = {
    "a work's wait": ([("wait", ""), ("all_reduce", f"{TORCH}/distributed/distributed_c10d.py")], True),
    "a lock file": ([("wait", f"{TORCH}/utils/file_baton.py"), ("load", f"{TORCH}/utils/cpp_extension.py")], False),
    "a child process": ([("wait", "/usr/lib/python3.11/subprocess.py")], False),
    "a wait of one's own": ([("wait", "/srv/app/queue_of_files.py")], False),
    "the GPU": ([("synchronize", f"{TORCH}/cuda/streams.py")], True),
}


@pytest.mark.parametrize("what", STACKS)
def test_only_what_waits_for_other_ranks_is_a_collective(what: str) -> None:
    frames, expected = STACKS[what]
    assert in_collective([*({"func": func, "file": file, "line": 1} for func, file in frames), MINE]) is expected


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/env/lib/python3.11/site-packages/lightning_fabric/fabric.py", "lightning"),
        ("/env/lib/python3.11/site-packages/pytorch_lightning/trainer.py", "lightning"),
        ("wenet/bin/train.py", "wenet"),
        ("/home/user/wenet_case/runs/1-loader_starved/agent.pyz/speech.py", ""),
        ("/scratch/4_wenet/train.py", ""),
    ],
)
def test_a_framework_is_known_by_its_own_folder(file: str, name: str) -> None:
    case = Case()
    case.events = [Event("stack", "", rank=0, data={"frames": [{"file": file, "line": 9, "func": "f"}]})]
    assert framework(case) == name


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/u/torch/train.py", True),
        ("/home/u/nccl/train.py", True),
        ("/home/u/gloo/run.py", True),
        ("torch/distributed/distributed_c10d.py", False),
        ("/opt/pytorch/pytorch/torch/_tensor.py", False),
        ("/opt/pytorch/pytorch/torch/serialization.py", False),
        ("/opt/ray/ray/_private/gc_collect_manager.py", False),
        ("/home/u/ray/_train.py", True),
        ("/home/u/ray/train.py", True),
        ("/dvs/p4/build/sw/gpgpu/nccl/gitfusion/stable/src/proxy.cc", False),
        ("/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc", False),
    ],
)
def test_a_folder_of_the_user_may_be_called_as_a_library_is(file: str, own: bool) -> None:
    assert is_own({"file": file}) is own


@pytest.mark.parametrize(
    ("inner", "where"),
    [
        (("all_reduce distributed/distributed_c10d.py", "wrapper distributed/c10d_logger.py"), "all_reduce"),
        (
            (
                "forward nn/parallel/distributed.py",
                "_call_impl nn/modules/module.py",
                "_wrapped_call_impl nn/modules/module.py",
            ),
            "DistributedDataParallel.forward",
        ),
        (("all_gather distributed/distributed_c10d.py", "decorate_context utils/_contextlib.py"), "all_gather"),
        (("wrapper distributed/c10d_logger.py",), "wrapper"),
    ],
)
def test_a_stack_is_named_by_what_was_called_not_by_what_wraps_it(inner: tuple[str, ...], where: str) -> None:
    frames = [{"func": func, "file": f"{TORCH}/{file}", "line": 1} for func, file in map(str.split, inner)]
    assert in_collective([*frames, MINE]) and call_of([*frames, MINE]) == where


def test_a_rank_that_prints_its_exception_is_in_no_collective() -> None:
    """A peer has died, and the hook that says so is a function of the module that holds the collectives."""
    hook = {"func": "_distributed_excepthook", "file": f"{TORCH}/distributed/distributed_c10d.py", "line": 1928}
    case = Case()
    case.events = [
        Event("stack", "", rank=0, data={"frames": [{"func": "print", "file": "traceback.py", "line": 3}, hook, MINE]}),
        Event("stack", "", rank=1, data={"frames": [MINE]}),
    ]
    assert list(stacks(case)) == [1]
