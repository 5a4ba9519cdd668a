"""The programs that the lab breaks, rehearsed: a fault before a GPU is spent, by rank and lines.

Not rehearsed: `stories.recbole`, as RecBole is none of our dependencies (with RecBole 1.2.1 beside it
two ranks agreed on 2026-11-28), and `stories.resume`, whose replay waits out a timeout.
"""

import pytest

from ncclkit.live.launch import simulated
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
MEASURED = "return collective.main("
"""The line of the lab from which the live test is called, which is a part of the agent."""
BROKEN = {
    "rank_raises": ("collective", "left", [2], "raise ValueError(", MEASURED),
    "other_size": ("collective", "mismatch", [2], "all_reduce(metric)", "all_reduce(metric)"),
}
"""The same of the live test."""
QUICK = "--sizes 8,1024 --ops all_reduce,all_gather --repeats 2"


def rehearse_job(folder, job, *words):
    """The answer for a job of the lab; what it records goes to the folder."""
    module = ["-m", "ncclkit.lab.programs", job]
    return rehearse_words(folder, [*module, "--folder", str(folder), "--backend", "gloo", *words])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_lab_is_named_with_rank_and_both_lines(tmp_path, fault):
    check_fault(tmp_path, fault, FAULTS[fault], "--at", "2")


@pytest.mark.parametrize("fault", BROKEN)
def test_so_is_one_of_the_live_test(tmp_path, fault):
    check_fault(tmp_path, fault, BROKEN[fault], "--at", "1", *QUICK.split())


def check_fault(folder, fault, expected, *words):
    """The verdict, the ranks at fault, and both lines."""
    job, kind, culprits, own, others = expected
    answer = rehearse_job(folder, job, "--fault", fault, "--rank", "2", *words)
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
    "collective": QUICK,
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


RUN = """
import os, sys
sys.path.insert(0, os.path.join(sys.argv[1], "host" + os.environ["GROUP_RANK"]))
from ncclkit.lab.programs.__main__ import main
sys.exit(main(["stories.finetune", "--folder", sys.argv[1], "--backend", "gloo"]))
"""
"""The job on hosts of which each has a package of its own."""


@pytest.mark.parametrize("fix, status", [("", 1), ("version_mismatch", 0)])
def test_hosts_with_two_releases_of_a_package_do_not_come_to_their_first_step(tmp_path, fix, status):
    made = simulated.network_of({"hosts": 2, "wrong": "older"}, fix)
    for number, host in enumerate(made.values()):
        for path, text in host["packages"].items():
            file = tmp_path / f"host{number}" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    script = tmp_path / "run.py"
    script.write_text(RUN)
    words = [str(script), str(tmp_path)]
    answer = rehearse_words(tmp_path, words, "--ranks", "4", "--hosts", "2")
    assert answer["exit"] == status, answer["sentence"]
    if status:
        # DDP compares the sizes of parameters, and ranks of the older release fail
        assert answer["kind"] == "left" and set(answer["odd"]) <= {2, 3}
        assert "appears not to match sizes" in answer["sentence"]
