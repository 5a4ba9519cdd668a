"""Scripts as users write them: each fault is named with its ranks and lines, and nobody else."""

import subprocess
import sys

import pytest

from tests.rehearsal.rehearsed import SCRIPTS, lines_of, printed, rehearse

FAULTS = {
    "barrier_rank0.py": ("mismatch", [0], "dist.barrier()", "dist.all_reduce(values)"),
    "broadcast_sources.py": ("mismatch", [3], "src=3", "src=0"),
    "crossed_groups.py": ("deadlock", [0], "group=data)", "group=model)"),
    "ddp_short.py": ("mismatch", [2], "dist.all_reduce(total)", "loss.backward()"),
    "dtype_differs.py": ("mismatch", [1], "dist.all_reduce(total)", "dist.all_reduce(total)"),
    "early_exit.py": ("left", [1], "sys.exit(0)", "dist.all_reduce(loss)"),
    "exception_on_one.py": ("left", [2], "raise ValueError", "dist.all_reduce("),
    "full_tensor_rank0.py": ("mismatch", [0], "full_tensor()", "loss = model("),
    "gather_object_rank0.py": ("mismatch", [0], "dist.all_gather_object(", "dist.barrier()"),
    "group_of_some.py": ("deadlock", [0, 1, 2, 3], "dist.new_group(", "dist.all_reduce("),
    "send_without_recv.py": ("deadlock", [2], "dist.send(", "dist.barrier()"),
    "shapes_differ.py": ("mismatch", [3], "dist.all_reduce(", "dist.all_reduce("),
}
"""Script → the verdict, the odd ranks, and words of both lines."""
HEALTHY = ("healthy_ddp.py", "healthy_exchange.py", "healthy_fsdp2.py", "healthy_join.py", "healthy_slow.py")


@pytest.mark.parametrize("script", FAULTS)
def test_a_fault_is_named_with_rank_and_both_lines(tmp_path, script):
    kind, odd, own, others = FAULTS[script]
    answer = rehearse(tmp_path, script)
    assert (answer["exit"], answer["kind"], answer["odd"]) == (1, kind, odd), answer["sentence"]
    stands = [*answer["ended"], *answer["waiting"]]
    ranks = sorted(rank for stand in stands for rank in stand["ranks"])
    assert ranks == [0, 1, 2, 3]
    codes = {words: [stand for stand in stands if words in stand["code"]] for words in (own, others)}
    assert all(codes.values()), stands
    assert any(set(stand["ranks"]) <= set(odd) for stand in codes[own])
    # the odd one's line stands first in its script, that of the others last
    expected = {own: lines_of(script, own)[0], others: lines_of(script, others)[-1]}
    for words, line in expected.items():
        assert any(stand["place"].endswith(f"{script}:{line}") for stand in codes[words]), stands


@pytest.mark.parametrize("script", HEALTHY)
def test_a_healthy_script_agrees_and_prints_what_it_prints_under_torchrun(tmp_path, script):
    answer = rehearse(tmp_path, script)
    assert (answer["exit"], answer["kind"]) == (0, "agree"), answer["sentence"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    script_words = str(SCRIPTS / script)
    # the status is not asked for: over gloo a rank may fail at its exit, when another has left before
    real = subprocess.run([*command, script_words], capture_output=True, text=True, timeout=300)
    lines = sorted(line for line in real.stdout.splitlines() if line.startswith("loss"))
    assert len(lines) == 4 and printed(answer) == lines


def test_a_script_for_gpus_agrees_on_a_cpu(tmp_path):
    answer = rehearse(tmp_path, "healthy_cuda.py")
    assert (answer["exit"], answer["figures"]["mapped_gpu"]) == (0, True), answer["sentence"]
    assert len(printed(answer)) == 1


def test_a_script_is_stopped_after_its_steps(tmp_path):
    answer = rehearse(tmp_path, "ddp_short.py", "--steps", "2")
    assert answer["exit"] == 0 and "after 2 steps of the optimizer" in answer["sentence"]


def test_a_slow_rank_at_the_deadline_proves_nothing(tmp_path):
    answer = rehearse(tmp_path, "healthy_slow.py", "--timeout", "2")
    assert (answer["exit"], answer["kind"], answer["odd"]) == (2, "unknown", [0])
