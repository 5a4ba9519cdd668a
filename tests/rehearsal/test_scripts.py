"""Scripts as users write them: each fault is named with its ranks and lines, and nobody else."""

import subprocess
import sys
import time

import pytest

from ncclkit.agent.run import processes
from tests.rehearsal.rehearsed import (
    PYTHON,
    RANKS,
    ROOT,
    SCRIPTS,
    lines_of,
    marked_line,
    places_of,
    printed,
    printed_by_torchrun,
    rehearse,
)

pytestmark = pytest.mark.timeout(300)
FAULTS = {
    "barrier_rank0.py": ("mismatch", [0]),
    "broadcast_sources.py": ("mismatch", [3]),
    "checkpoint_rank0.py": ("mismatch", [0]),
    "crossed_groups.py": ("deadlock", [0]),
    "ddp_short.py": ("mismatch", [2]),
    "dtype_differs.py": ("mismatch", [1]),
    "early_exit.py": ("left", [1]),
    "early_stopping.py": ("mismatch", [1]),
    "elastic_restart.py": ("mismatch", [3]),
    # its rows come from rank 0: which of the two counts wrongly, the sizes do not say
    "embedding_rows.py": ("mismatch", [0, 2]),
    "evaluation_rank0.py": ("mismatch", [0]),
    "exception_on_one.py": ("left", [2]),
    "fsdp_evaluation_rank0.py": ("mismatch", [0]),
    "full_tensor_rank0.py": ("mismatch", [0]),
    "gan_order.py": ("mismatch", [2]),
    "gather_object_rank0.py": ("mismatch", [0]),
    "group_of_some.py": ("deadlock", [3]),
    "hard_exit.py": ("left", [2]),
    # of a send without its recv both ends are named
    "halo_exchange.py": ("deadlock", [0, 3]),
    "join_own_all_reduce.py": ("mismatch", [3]),
    "mesh_alone.py": ("mismatch", [0]),
    "monitored_barrier.py": ("mismatch", [1]),
    "nan_skipped.py": ("mismatch", [2]),
    "no_sync_counts.py": ("mismatch", [3]),
    "object_broadcast.py": ("mismatch", [3]),
    "pipeline_microbatches.py": ("left", [3]),
    "send_without_recv.py": ("deadlock", [2, 3]),
    "sends_meet.py": ("deadlock", [0, 1]),
    "shapes_differ.py": ("mismatch", [3]),
    "sync_batch_norm.py": ("mismatch", [0]),
    "tensor_parallel.py": ("mismatch", [2]),
    "unused_parameters.py": ("left", [1]),
    "zero_consolidate.py": ("mismatch", [0]),
}
"""Script → the verdict and the ranks at fault; the lines are marked in the script."""
HEALTHY = (
    "healthy_accumulate.py",
    "healthy_checkpoint.py",
    "healthy_ddp.py",
    "healthy_early_stopping.py",
    "healthy_elastic.py",
    "healthy_embeddings.py",
    "healthy_exchange.py",
    "healthy_fsdp.py",
    "healthy_fsdp2.py",
    "healthy_gan.py",
    "healthy_groups.py",
    "healthy_join.py",
    "healthy_mesh.py",
    "healthy_pipeline.py",
    "healthy_slow.py",
    "healthy_tensor_parallel.py",
    "healthy_turns.py",
    "healthy_zero.py",
)
LIBRARY_FAULTS = {
    "accelerate_gather.py": ("accelerate", "mismatch", [0]),
    "lightning_log.py": ("lightning", "mismatch", [0]),
    "trainer_evaluate.py": ("transformers", "mismatch", [0]),
}
"""Script → the library that it needs, the verdict and the ranks at fault."""
LIBRARY_HEALTHY = {
    "healthy_accelerate.py": "accelerate",
    "healthy_lightning.py": "lightning",
    "healthy_lightning_gpu.py": "lightning",
    "healthy_trainer.py": "transformers",
}
GPU_HEALTHY = ("healthy_cuda.py", "healthy_fsdp2_gpu.py", "healthy_sync_batch_norm.py")
"""Scripts that a machine without GPUs cannot run but in a rehearsal; they check their values."""


def check_fault(folder, script, kind, culprits):
    """The verdict, its ranks, and both lines; no rank beside them is accused."""
    check_fault_of(rehearse(folder, script), script, kind, culprits)


def check_fault_of(answer, script, kind, culprits):
    """The same of an answer."""
    found = answer["exit"], answer["kind"], answer["odd"]
    assert found == (1, kind, culprits), answer["sentence"]
    places = places_of(answer)
    culprit_line, others_line = marked_line(script, "culprit"), marked_line(script, "others")
    # each end of a pair stands at a line of its own
    own = {places[rank] for rank in culprits}
    assert culprit_line in own and own <= {culprit_line, others_line}, places
    assert others_line in places.values(), places
    assert culprit_line in answer["sentence"] and others_line in answer["sentence"]


@pytest.mark.parametrize("script", FAULTS)
def test_a_fault_is_named_with_rank_and_both_lines(tmp_path, script):
    check_fault(tmp_path, script, *FAULTS[script])


@pytest.mark.parametrize("script", LIBRARY_FAULTS)
def test_a_fault_in_a_script_of_a_library_is_named(tmp_path, script):
    library, kind, culprits = LIBRARY_FAULTS[script]
    skip_without(library)
    check_fault(tmp_path, script, kind, culprits)


def skip_without(library):
    """Skip where a library is not installed; importing it here would cost seconds."""
    search = f"import importlib.util as u, sys; sys.exit(not u.find_spec({library!r}))"
    if subprocess.run([PYTHON, "-c", search]).returncode:
        pytest.skip(f"{library} is not installed")


@pytest.fixture(scope="module")
def of_torchrun(tmp_path_factory):
    """Script → what its ranks print under torchrun."""
    return printed_by_torchrun(tmp_path_factory.mktemp("torchrun"), list(HEALTHY))


@pytest.mark.parametrize("script", HEALTHY)
def test_a_healthy_script_agrees_and_has_the_losses_of_torchrun(tmp_path, script, of_torchrun):
    check_healthy(tmp_path, script, of_torchrun[script])


KILLED = """
import sys
from pathlib import Path
from tests.rehearsal.rehearsed import printed_by_torchrun
printed_by_torchrun(Path(sys.argv[1]), [sys.argv[2]])
"""


def test_the_ranks_of_torchrun_end_with_the_test_that_started_them(tmp_path):
    script = tmp_path / "endless.py"
    script.write_text("print('begun', flush=True)\nwhile True:\n    __import__('time').sleep(1)\n")
    words = [sys.executable, "-c", KILLED, str(tmp_path), str(script)]
    output = tmp_path / "endless.py.0"
    with subprocess.Popen(words, cwd=ROOT) as test:
        wait_until(lambda: output.exists() and "begun" in output.read_text())
        test.kill()
    wait_until(lambda: not processes_of(script))


def wait_until(is_so):
    """Wait until something is so, at most two minutes."""
    until = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.1)


def processes_of(script):
    """Living processes that name a script."""
    found = []
    for pid in processes.parents():
        words = processes.read_text(f"/proc/{pid}/cmdline")
        if str(script) in words and processes.is_alive(pid):
            found.append(pid)
    return found


def check_healthy(folder, script, expected):
    """Exit status 0; every rank has come to its last line, with the same bits."""
    answer = rehearse(folder, script)
    assert (answer["exit"], answer["kind"]) == (0, "agree"), answer["sentence"]
    assert answer["notes"] == []
    assert len(expected) == RANKS
    assert printed(answer) == expected


@pytest.mark.parametrize("script", LIBRARY_HEALTHY)
def test_a_healthy_script_of_a_library_agrees(tmp_path, script):
    library = LIBRARY_HEALTHY[script]
    skip_without(library)
    answer = rehearse(tmp_path, script)
    assert (answer["exit"], answer["kind"]) == (0, "agree"), answer["sentence"]
    assert len(printed(answer)) == RANKS


@pytest.mark.parametrize("script", GPU_HEALTHY)
def test_a_healthy_script_for_gpus_agrees_and_is_said_to_be_one(tmp_path, script):
    answer = rehearse(tmp_path, script)
    assert (answer["exit"], answer["kind"]) == (0, "agree"), answer["sentence"]
    assert answer["figures"]["mapped_gpu"] is True
    assert printed(answer)


def test_a_script_for_gloo_is_not_said_to_be_one_for_gpus(tmp_path):
    # its schedules call fork_rng of torch, which names cuda by itself
    answer = rehearse(tmp_path, "healthy_pipeline.py")
    assert answer["figures"]["mapped_gpu"] is False


def test_two_calls_in_the_other_order_that_fit_all_the_same_are_asked_about(tmp_path):
    answer = rehearse(tmp_path, "swapped_functions.py")
    assert (answer["exit"], answer["kind"]) == (0, "agree"), answer["sentence"]
    (note,) = answer["notes"]
    assert note.startswith("Rank 1 calls all_reduce at ") and "not the same values" in note
    for mark in ("culprit", "others"):
        assert marked_line("swapped_functions.py", mark) in note


def test_a_script_is_stopped_after_its_steps(tmp_path):
    answer = rehearse(tmp_path, "ddp_short.py", "--steps", "2")
    assert answer["exit"] == 0 and "after 2 steps of the optimizer" in answer["sentence"]


def test_a_script_that_only_prints_its_usage_does_not_agree(tmp_path):
    answer = rehearse(tmp_path, "bad_arguments.py")
    assert (answer["exit"], answer["kind"]) == (2, "unknown"), answer["sentence"]
    line = lines_of("bad_arguments.py", "parse_args")[0]
    assert f"called sys.exit(2) at {SCRIPTS / 'bad_arguments.py'}:{line}" in answer["sentence"]


def test_a_slow_rank_at_the_deadline_proves_nothing(tmp_path):
    answer = rehearse(tmp_path, "busy_rank0.py", "--timeout", "2")
    # on a busy machine others may not have come, either
    assert (answer["exit"], answer["kind"]) == (2, "unknown") and 0 in answer["odd"]


def test_a_wait_beyond_the_limit_of_the_job_is_an_estimate(tmp_path):
    answer = rehearse(tmp_path, "healthy_slow.py", "--timeout-of-job", "1")
    assert answer["exit"] == 0, answer["sentence"]
    (note,) = answer["notes"]
    line = lines_of("healthy_slow.py", "dist.broadcast")[0]
    assert f"healthy_slow.py:{line}, until rank 0 came" in note and "estimate" in note
