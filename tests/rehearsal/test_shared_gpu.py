"""One GPU that all ranks share, without one: what is mapped, what is copied, and what is said."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

import ncclkit
from ncclkit.agent.rehearsal import connection, idle_threads, shared_gpu
from ncclkit.agent.rehearsal.shared_gpu import FirstGpu, FoundGpu
from ncclkit.core.model import NcclkitError
from ncclkit.rehearsal.rehearsal_options import RehearsalOptions
from tests.bench import rehearse_gpu
from tests.rehearsal import functions
from tests.rehearsal.rehearsed import SCRIPTS
from tests.rehearsal.test_scripts import FAULTS, GPU_HEALTHY, HEALTHY

pytestmark = pytest.mark.timeout(300)
FIRST = torch.device("cuda", 0)


def test_every_number_means_the_first_gpu_and_no_other_device_is_touched():
    with FirstGpu():
        assert torch.device("cuda", 3) == torch.device("cuda:2") == FIRST
        assert torch.device("cuda").index is None
        assert torch.device("cpu") == torch.empty(1).device
        assert torch.empty(1, device=torch.device("meta")).device.type == "meta"
        assert torch.empty(1, device="meta").to(torch.float64).dtype == torch.float64


@pytest.mark.parametrize(
    "words, expected",
    [((3,), FIRST), (("cuda:3",), "cuda:0"), (("cpu",), "cpu"), ((torch.float16,), torch.float16)],
)
def test_a_move_to_another_gpu_is_one_to_the_first(words, expected):
    assert shared_gpu._first_of_moved(words) == [expected]


def test_a_number_of_a_gpu_is_named_but_one_of_anything_else_is_kept():
    given = shared_gpu._first_of_named({"device": 2, "dim": 2, "size": (2, 2)})
    assert given == {"device": FIRST, "dim": 2, "size": (2, 2)}


@pytest.mark.parametrize("real, mapped", [(3, 0), (0, 0), (-1, -1)])
def test_the_numbers_of_torch_are_mapped_and_none_stays_none(real, mapped):
    assert shared_gpu._first_number(lambda *_, **__: real)("cuda", optional=True) == mapped


def test_modules_of_torch_ask_for_numbers_by_that_name():
    for name in ("torch._utils", "torch.cuda", "torch.cuda._utils", "torch.cuda.memory"):
        assert callable(getattr(sys.modules[name], shared_gpu.ASKED_BY_NUMBER)), name


def test_calls_by_way_of_copies_give_the_values_of_those_without():
    values = {"ranks": 3}
    assert ncclkit.rehearse(functions.call_by_copies, ranks=3, values=values).kind == "agree"


# ---------------------------------------------------------------- whether there is one


def die():
    os._exit(9)


def hang():
    time.sleep(600)


@pytest.mark.parametrize(
    "begin, found",
    [
        (lambda: FoundGpu("A GPU"), FoundGpu("A GPU")),
        (die, FoundGpu(lacking="a process that began with the GPU died")),
        (hang, FoundGpu(lacking="the GPU did not begin within 1 s")),
    ],
)
def test_a_gpu_is_tried_in_a_fork_that_ends(monkeypatch, begin, found):
    monkeypatch.setattr(shared_gpu, "_begin_gpu", begin)
    if begin is hang:
        monkeypatch.setattr(shared_gpu, "SECONDS", 1.0)
    assert shared_gpu.find_gpu() == found


def test_without_a_gpu_the_reason_is_one_sentence(monkeypatch):
    def refuse():
        raise RuntimeError("Found no NVIDIA driver on your system.\nPlease check")

    monkeypatch.setattr(torch.cuda, "init", refuse)
    lacking = shared_gpu._begin_gpu().lacking
    assert lacking.endswith("says: Found no NVIDIA driver on your system.")


def test_fake_tensors_use_no_gpu():
    with pytest.raises(NcclkitError, match="--gpu or --fake"):
        RehearsalOptions(gpu=True, fake=True)


# ---------------------------------------------------------------- threads that go backward


def test_a_thread_of_autograd_without_a_frame_has_no_work(monkeypatch):
    thread = SimpleNamespace(ident=1)
    monkeypatch.setattr(idle_threads, "_is_of_autograd", lambda one: one is thread)
    assert idle_threads._awaited_by_any(thread, [thread], {}) is thread
    # any other thread that torch made may come back to Python by itself
    other = SimpleNamespace(ident=2)
    assert idle_threads._awaited_by_any(other, [other, thread], {}) is None


def test_who_goes_backward_waits_for_the_thread_that_does(monkeypatch):
    code = SimpleNamespace(
        co_name="_engine_run_backward",
        co_filename="/lib/torch/autograd/graph.py",
    )
    main = SimpleNamespace(ident=1)
    thread = SimpleNamespace(ident=2)
    monkeypatch.setattr(idle_threads, "_is_of_autograd", lambda one: one is thread)
    frames = {1: SimpleNamespace(f_code=code)}
    assert idle_threads._awaited_by_any(main, [main, thread], frames) is thread
    # on a CPU it goes backward itself
    assert idle_threads._awaited_by_any(main, [main], frames) is None


def test_a_thread_that_only_the_agent_has_called_in_has_no_place():
    """Torch's own thread goes backward: its frames are those of the packed agent alone."""
    code = compile("import sys\nframe = sys._getframe()", "agent.pyz/ncclkit/agent/rehearsal/x.py", "exec")
    names = {}
    exec(code, names)
    alone = SimpleNamespace(f_code=names["frame"].f_code, f_lineno=2, f_back=None)
    assert connection._place_from(alone) == ""


def test_torch_goes_backward_in_a_function_of_that_name():
    assert callable(torch.autograd.graph._engine_run_backward)
    assert torch.autograd.graph.__file__.endswith("/torch/autograd/graph.py")


# ---------------------------------------------------------------- the script for a GPU


def test_its_scripts_are_those_of_the_rehearsal():
    for script, kind in rehearse_gpu.EXPECTED.items():
        assert (SCRIPTS / script).exists()
        if kind == "agree":
            assert script in (*HEALTHY, *GPU_HEALTHY)
        else:
            assert FAULTS[script][0] == kind
    assert ("nan_skipped.py", 2) not in rehearse_gpu.pairs_of([2, 4])
    assert len(rehearse_gpu.pairs_of([2, 4])) == 15


def test_a_row_is_right_where_the_verdict_and_both_lines_are():
    sentence = "rank 0 at full_tensor_rank0.py:21; ranks 1 to 3 at full_tensor_rank0.py:16"
    assert rehearse_gpu.names_lines("full_tensor_rank0.py", sentence)
    assert not rehearse_gpu.names_lines("full_tensor_rank0.py", sentence.replace(":16", ":17"))
    assert rehearse_gpu.names_lines("healthy_cuda.py", "all ranks agree")


def test_without_a_gpu_it_says_so_and_rehearses_nothing(monkeypatch, capsys):
    monkeypatch.setattr(rehearse_gpu, "BEGIN", "raise SystemExit('no driver')")
    assert rehearse_gpu.main([]) == 2
    assert capsys.readouterr().out == rehearse_gpu.WITHOUT_GPU % "no driver" + "\n"


def test_a_rehearsal_that_says_nothing_is_a_row_that_is_wrong():
    ended = subprocess.CompletedProcess([], 1, "", "Traceback: it broke")
    row = rehearse_gpu.row_of("healthy_cuda.py", 2, 1.0, ended)
    assert not row.is_right and row.sentence == "Traceback: it broke"
