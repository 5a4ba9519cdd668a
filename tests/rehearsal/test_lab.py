"""The programs that the lab breaks, rehearsed: a fault before a GPU is spent, by rank and lines."""

import pytest

from tests.rehearsal.rehearsed import rehearse_words

pytestmark = pytest.mark.timeout(300)
LEAVES = "crash_handler.run_rank("
FAULTS = {
    "uneven_data": ("train", "left", [2], LEAVES, "loss.backward()"),
    "rank_raises": ("train", "left", [2], "raise ValueError(", "loss.backward()"),
    "other_size": ("train", "mismatch", [2], "all_reduce(metric)", "all_reduce(metric)"),
    "other_dtype": ("train", "mismatch", [2], "all_reduce(metric)", "all_reduce(metric)"),
    "other_op": ("train", "mismatch", [2], "all_gather(", "all_reduce(metric)"),
    "unpaired_recv": ("train", "deadlock", [2, 3], "recv(received", "loss.backward()"),
    "a2a_unpaired": ("stories.exchange", "deadlock", [2, 3], "recv(got[peer]", "all_reduce(load)"),
    # ranks 2 and 3 wait behind them
    "a2a_order": ("stories.exchange", "deadlock", [0, 1], "recv(got[peer]", "recv(got[peer]"),
    "a2a_leaves": ("stories.exchange", "left", [2], LEAVES, "all_gather("),
}
"""Fault → its program, the verdict, the ranks at fault, and words of both lines."""


def rehearse_job(folder, job, *words):
    """The answer for a job of the lab; what it records goes to the folder."""
    module = ["-m", "ncclkit.lab.programs", job]
    return rehearse_words(folder, [*module, "--folder", str(folder), "--backend", "gloo", *words])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_lab_is_named_with_rank_and_both_lines(tmp_path, fault):
    job, kind, culprits, own, others = FAULTS[fault]
    answer = rehearse_job(tmp_path, job, "--fault", fault, "--rank", "2", "--at", "2")
    found = answer["exit"], answer["kind"], answer["odd"]
    assert found == (1, kind, culprits), answer["sentence"]
    stands = [*answer["ended"], *answer["waiting"]]
    odd = [stand for stand in stands if set(stand["ranks"]) <= set(culprits)]
    rest = [stand for stand in stands if stand not in odd]
    assert any(own in stand["code"] for stand in odd), stands
    assert rest and all(others in stand["code"] for stand in rest), stands


# what they do beside their calls is made short
SHORT = {
    "train": "",
    "stories.exchange": "",
    "stories.interactions": "",
    "stories.loader_sweep": "--choices 0:2,1:2 --cost 0.002 --wait 0.002",
    "stories.speech": "--workers 2 --cost 0.005",
}
"""Job → its options."""


@pytest.mark.parametrize("job", SHORT)
def test_an_honest_job_of_the_lab_agrees(tmp_path, job):
    answer = rehearse_job(tmp_path, job, *SHORT[job].split())
    assert (answer["exit"], answer["kind"]) == (0, "agree"), answer["sentence"]
    assert answer["figures"]["calls"] > 10
