"""A function on all ranks: by `ncclkit.rehearse`, and by the marker of pytest."""

import subprocess
import sys
import unittest

import pytest

import ncclkit
from ncclkit.core.model import NcclkitError
from ncclkit.rehearsal.function import RanksDisagree
from tests.rehearsal import functions

PLUGIN = ("-p", "no:ncclkit", "-p", "ncclkit.rehearsal.pytest_plugin")

MARKED = """
import pytest
import torch
import torch.distributed as dist

@pytest.mark.ranks(2)
@pytest.mark.parametrize("odd", [2, 1])
def test_step(odd):
    dist.init_process_group("nccl")
    if dist.get_rank() == odd:
        dist.barrier()
    dist.all_reduce(torch.ones(4, device="cuda"))
"""
CLASSES = """
import pytest
import torch
import torch.distributed as dist

@pytest.fixture
def width():
    return 4

class Base:
    @pytest.mark.ranks(2)
    def test_inherited(self, tmp_path, width):
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(width, device="cuda"))
        (tmp_path / str(dist.get_rank())).write_text(self.name)
        dist.barrier()
        assert len(list(tmp_path.iterdir())) == self.ranks

class TestSteps(Base):
    ranks = 2

    @pytest.fixture(autouse=True)
    def named(self):
        self.name = "step"

    def setup_method(self):
        self.odd = 1

    @pytest.mark.ranks(2)
    def test_odd(self):
        dist.init_process_group("nccl")
        if dist.get_rank() == self.odd:
            dist.barrier()  # odd
        dist.all_reduce(torch.ones(4, device="cuda"))
"""
SCRIPT = """
import torch.distributed as dist
import ncclkit

def wait_for_all():
    dist.init_process_group("gloo")
    dist.barrier()

if __name__ == "__main__":
    print(ncclkit.rehearse(wait_for_all, ranks=2).kind)
"""


def test_a_healthy_function_is_called_by_all_ranks():
    rehearsed = ncclkit.rehearse(functions.step_of_all, ranks=3, values={"rounds": 2})
    assert (rehearsed.kind, rehearsed.figures["calls"]) == ("agree", 3)


def test_ranks_find_each_other_by_a_file_as_often_as_they_like():
    assert ncclkit.rehearse(functions.begin_twice, ranks=2).figures["calls"] == 8


def test_a_faulty_function_fails_with_the_sentence_and_both_lines():
    with pytest.raises(RanksDisagree) as failed:
        ncclkit.rehearse(functions.step_of_some, ranks=3)
    said = str(failed.value)
    assert "rank 1: barrier at tests/rehearsal/functions.py:" in said.lower()
    assert "dist.barrier()" in said and "dist.all_reduce(total)" in said


def test_a_function_that_no_rank_can_import_is_refused():
    with pytest.raises(NcclkitError, match="must stand in a module"):
        ncclkit.rehearse(lambda: None)
    with pytest.raises(NcclkitError, match="numbers, strings.*; rounds is none of them"):
        ncclkit.rehearse(functions.step_of_all, values={"rounds": object()})
    with pytest.raises(NcclkitError, match="self.model is none of them"):
        ncclkit.rehearse(functions.Trainer(object()).train_step)


async def wait_in_vain():
    raise AssertionError


class CountsInTestCase(unittest.TestCase):
    def count_ranks(self):
        raise AssertionError


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (wait_in_vain, "asyncio.run"),
        (functions.yield_steps, "use it up"),
        (CountsInTestCase("count_ranks").count_ranks, "class of pytest"),
    ],
)
def test_what_would_pass_without_having_run_is_refused(function, words):
    with pytest.raises(NcclkitError, match=words):
        ncclkit.rehearse(function, ranks=2)


def test_a_function_of_a_script_does_not_start_the_script_anew(tmp_path):
    script = tmp_path / "check.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (ran.stdout, ran.returncode) == ("agree\n", 0), ran.stderr


def test_a_marked_test_runs_on_its_ranks(tmp_path):
    (tmp_path / "test_marked.py").write_text(MARKED)
    command = [sys.executable, "-m", "pytest", "-q", *PLUGIN, "--strict-markers"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "1 failed, 1 passed" in ran.stdout
    assert "rank 1: barrier at test_marked.py:11" in ran.stdout


def test_methods_of_a_class_get_what_fixtures_and_setup_gave_their_instance(tmp_path):
    file = tmp_path / "test_steps.py"
    file.write_text(CLASSES)
    command = [sys.executable, "-m", "pytest", "-q", *PLUGIN, "--strict-markers"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "1 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    line = 1 + CLASSES.splitlines().index("            dist.barrier()  # odd")
    assert f"rank 1: barrier at test_steps.py:{line}" in ran.stdout
