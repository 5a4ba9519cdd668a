"""Restart or stop: the table by cause, what history changes, and the matrix over the lab and all specimens."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from ncclkit.causes import catalogue
from ncclkit.causes.attempts import MOST_BYTES, JobAttempt, attempts_without_progress, keep_attempt, read_attempts
from ncclkit.causes.decision import ACTION_WORDS, EXIT_STATUS, Decision
from ncclkit.causes.engine import diagnose
from ncclkit.causes.restart_or_stop import MOST_ATTEMPTS, NOTHING_TO_DECIDE, RULES, decide
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from tests.packaging.project import ROOT
from tests.cases import judged_text, read_text
from tests.causes.specimens import FOLDERS, expected, judged, name
from tests.recordings import RECORDINGS, recorded, title

TRUTH = {
    "fix_program": (
        *("a2a_device", "a2a_late", "a2a_order", "a2a_unpaired", "cuda_assert", "duplicate_gpu", "eight_ranks_late"),
        *("exchange_uneven", "forked_cuda", "gil_held", "gpu_memory_full", "groups_swapped", "groups_swapped_hosts"),
        *("hang", "long_first_step", "other_dtype", "other_op", "other_size", "rank_late", "rank_raises"),
        *("resume_replays", "segfault", "tables_on_gpu_0", "uneven_data", "unpaired_recv", "wrong_device"),
    ),
    "fix_setup": (
        *("a2a_files", "bad_debug", "bad_value", "bridge_first", "cache_stalled", "dataset_too_large", "few_files"),
        *("ifname_missing", "ifname_missing_on_one", "little_memory", "loader_starved", "management_nic"),
        *("master_unreachable", "mixed_nccl", "mixed_versions", "other_card", "own_name_loopback", "p2p_off"),
        *("port_blocked", "port_busy", "slow_disk", "small_shm", "sockets_only", "world_disagree", "world_larger"),
    ),
    "restart": ("rank_killed", "lossy_link"),
    # these jobs succeed: the last two crawl, and nothing of them has ended
    "wait_and_see": ("healthy", "lost_packets", "slow_link"),
}
"""What whoever broke the job knows to be right, by the fault of the lab."""
DECIDED = ("restart", "fix_program", "fix_setup", "wait_and_see")
"""The actions in the order of the page's columns."""
PAGE = ROOT / "docs" / "restart.md"
LOG = "[rank0]: step 40/100\n{step}slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-21T01:02:03{why} ***\n"


def test_every_cause_of_the_catalogue_stands_in_the_table() -> None:
    assert sorted(RULES) == sorted(catalogue())
    assert all(rule.action in ACTION_WORDS and rule.why and not rule.why.endswith(".") for rule in RULES.values())
    assert sorted(EXIT_STATUS) == sorted(ACTION_WORDS)


@cache
def lab_matrix() -> dict[tuple[str, str], list[str]]:
    """Right action and the decided one → the recordings of the lab's faults of which that is so."""
    right = {fault: action for action, faults in TRUTH.items() for fault in faults}
    matrix: dict[tuple[str, str], list[str]] = {}
    for folder in RECORDINGS:
        decided = diagnose(recorded(folder)).decision.action
        matrix.setdefault((right[folder.name], decided), []).append(title(folder))
    return matrix


def test_the_matrix_of_the_lab() -> None:
    matrix = lab_matrix()
    count = sum(map(len, matrix.values()))
    wrong = {pair: runs for pair, runs in matrix.items() if pair[0] != pair[1]}
    assert sum(map(len, wrong.values())) <= 0.05 * count, wrong
    assert not matrix.get(("fix_program", "restart")) and not matrix.get(("fix_setup", "restart"))
    assert not matrix.get(("wait_and_see", "restart"))
    lost = [runs for (right, decided), runs in matrix.items() if right == "restart" and decided != "restart"]
    assert not lost, lost


def decided_for_specimens() -> dict[tuple[str, str], int]:
    """Right action and the decided one → specimens of a firm cause whose causes agree on it."""
    counts: Counter[tuple[str, str]] = Counter()
    for folder in FOLDERS:
        right = {RULES[cause].action for cause in expected(folder)["found"]}
        if folder.name.startswith("found-") and len(right) == 1:
            counts[right.pop(), judged(folder)[0].decision.action] += 1
    return counts


def test_the_page_shows_the_matrix() -> None:
    recordings = {pair: len(runs) for pair, runs in lab_matrix().items()}
    rows = []
    for source, counts in (("recordings", recordings), ("specimens", decided_for_specimens())):
        for right in DECIDED:
            if not any(pair[0] == right for pair in counts):
                continue
            numbers = [str(counts.get((right, decided), 0)) for decided in DECIDED]
            rows.append(f"| {source}: {right.replace('_', ' ')} | {' | '.join(numbers)} |")
    table = "\n".join(rows)
    assert table in PAGE.read_text(encoding="utf-8"), table


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_a_specimen_is_restarted_only_where_a_cause_of_it_allows_that(folder: Path) -> None:
    found, _, _ = judged(folder)
    want = expected(folder)
    actions = {RULES[cause].action for cause in (*want["found"], *want.get("also", ()))}
    decided = found.decision
    if decided.action == "restart":
        assert "restart" in actions
        assert found.findings[0].strength != "possible"
    if found.verdict in NOTHING_TO_DECIDE or all(one.strength == "possible" for one in found.findings[:1]):
        assert decided.action == "wait_and_see"


def test_nodes_links_and_broken_gpus_are_rarely_stopped() -> None:
    """Of the specimens with a firm cause that a restart elsewhere cures, at most one in twenty is stopped."""
    decided = Counter[str]()
    for folder in FOLDERS:
        want = expected(folder)
        if folder.name.startswith("found-") and {RULES[cause].action for cause in want["found"]} == {"restart"}:
            decided[judged(folder)[0].decision.action] += 1
    assert decided["restart"] > 20
    assert decided["fix_program"] + decided["fix_setup"] <= 0.05 * decided.total(), decided


@pytest.mark.parametrize(
    ("why", "step", "action", "reason"),
    [
        (" DUE TO TIME LIMIT", True, "restart", "at work until the scheduler's time limit"),
        (" DUE TO TIME LIMIT", False, "wait_and_see", "no step is seen"),
        (" DUE TO PREEMPTION", True, "restart", "took its nodes for another job"),
        (" DUE TO NODE FAILURE", True, "restart", "the scheduler lost a node"),
        ("", True, "wait_and_see", "cancelled"),
    ],
)
def test_who_ended_the_ranks_says_whether_they_start_again(why: str, step: bool, action: str, reason: str) -> None:
    text = LOG.format(why=why, step="")
    text = text if step else text.partition("\n")[2]
    found = judged_text(f"NCCL INFO comm 0x1 rank 0 nranks 2 - Init COMPLETE\n{text}")
    assert found.findings[0].cause == "rank_killed"
    if found.findings[0].strength == "possible":
        pytest.fail("the log is no longer firm")
    assert (found.decision.action, reason in found.decision.reason) == (action, True), found.decision


@pytest.mark.parametrize(
    ("why", "say", "advice"),
    [
        (" DUE TO TIME LIMIT", "time limit was reached", "longer time limit"),
        (" DUE TO PREEMPTION", "for a job of higher priority (preemption)", "next preemption cost less"),
        (" DUE TO NODE FAILURE", "he scheduler counts a node as failed", "without that node"),
    ],
)
def test_each_end_by_the_scheduler_has_its_own_advice(why: str, say: str, advice: str) -> None:
    found = judged_text(f"NCCL INFO comm 0x1 rank 0 nranks 2 - Init COMPLETE\n{LOG.format(why=why, step='')}").findings[0]
    assert say in found.say and advice in found.advice[0].do


NODE_LOST = "slurmstepd: error: *** JOB 20 CANCELLED AT 2026-11-21T01:02:03 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"
ANSWERED = "JobId=20 JobState=NODE_FAIL Reason=NodeDown ExitCode=0:0 NodeList=node[3-4]\n"


@pytest.mark.parametrize(
    ("answer", "who"), [("NodeName=node4 State=DOWN+DRAIN Reason=fan failed\n", "node4"), ("NodeName=node4 State=IDLE Reason=none\n", "a node")]
)
def test_a_node_that_the_log_does_not_name_is_named_by_the_scheduler(answer: str, who: str) -> None:
    head = "NCCL INFO comm 0x1 rank 0 nranks 2 - Init COMPLETE\n[rank0]: step 40/100\n"
    found = judged_text(head + NODE_LOST + ANSWERED + answer)
    assert f"he scheduler counts {who} as failed (down, or without an answer) and ended the job" in found.findings[0].say
    assert found.decision.exclude == (("node4",) if who == "node4" else ())


def test_a_limit_of_slurm_itself_is_no_control_group() -> None:
    """Nor has a job of one rank others that lost their peer."""
    text = "step 1\nslurmstepd-n1: error: Exceeded job memory limit\nsrun: error: n1: task 0: Killed\n"
    found = judged_text(text).findings[0]
    assert found.cause == "host_oom" and "(Slurm's --mem)" in found.say and "cgroup" not in found.say
    kernel = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
    assert "(cgroup)" in judged_text(kernel).findings[0].say


def test_a_service_that_does_not_answer_is_no_fault_of_the_program() -> None:
    trace = "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"train.py\", line 3, in <module>\n"
    trace += "[rank0]:     model = load()\n[rank0]: {error}: no answer\n"
    outside = judged_text(trace.format(error="requests.exceptions.ReadTimeout"))
    own = judged_text(trace.format(error="ValueError"))
    assert [one.findings[0].cause for one in (outside, own)] == ["rank_exception"] * 2
    assert (outside.decision.action, own.decision.action) == ("wait_and_see", "fix_program")


# ---------------------------------------------------------------- history

def lost_link(*earlier: JobAttempt, step: int = 40) -> Decision:
    """The decision on a job whose node-a lost an InfiniBand link at this step, after these attempts."""
    found, _, case = judged(next(folder for folder in FOLDERS if name(folder) == "ib_link_error/found-mid-run"))
    text = read_text(f"[rank0]: step {step}/100\n")
    again = Case()
    again.events, again.inputs = [*case.events, *text.events], [*case.inputs, *text.inputs]
    decided = decide(found, again, earlier)
    assert found.findings[0].cause == "ib_link_error"
    return decided


def before(*blamed: str, step: int | None = 40, cause: str = "ib_link_error") -> JobAttempt:
    return JobAttempt(cause, blamed, blamed, step, "restart")


def test_what_was_left_out_once_stays_out() -> None:
    assert lost_link().exclude == ("node-a",)
    assert lost_link(before("node-x", cause="gpu_hardware_error")).exclude == ("node-a", "node-x")
    assert lost_link(before("node-a")).action == "restart"


def test_the_same_root_on_other_hosts_is_no_fault_of_the_hosts() -> None:
    decided = lost_link(before("node-b"))
    assert (decided.action, decided.exclude) == ("wait_and_see", ())
    assert "on node-b, then on node-a, and no step was won between" in decided.reason
    advanced = lost_link(before("node-b", step=30))
    assert advanced.action == "restart" and "it came from step 30 to 40" in advanced.reason


def test_attempts_that_win_no_step_come_to_an_end() -> None:
    stuck = [before(cause="rank_killed") for _ in range(MOST_ATTEMPTS)]
    assert lost_link(*stuck[1:]).action == "restart"
    decided = lost_link(*stuck)
    assert decided.action == "wait_and_see" and f"{MOST_ATTEMPTS} attempts before this one won no step" in decided.reason
    winning = [before(cause="rank_killed", step=step) for step in range(MOST_ATTEMPTS * 3)]
    assert lost_link(*winning).action == "restart", "each of them won a step"


def test_progress_needs_two_known_steps() -> None:
    unknown, ten = JobAttempt("", step=None), JobAttempt("", step=10)
    assert attempts_without_progress([ten, unknown], None) == [unknown, ten]
    assert attempts_without_progress([ten, unknown], 11) == [unknown]
    assert attempts_without_progress([ten], 10) == [ten]


def test_a_history_survives_what_a_killed_job_wrote(tmp_path: Path) -> None:
    file = tmp_path / "attempts.jsonl"
    assert read_attempts(file) == ([], 0)
    keep_attempt(file, before("n1"))
    with open(file, "ab") as torn:
        torn.write(b'{"cause": "rank_\n\xff\xfe\n[1]\n{"cause": 3}\n')
    keep_attempt(file, before("n2"))
    assert read_attempts(file) == ([before("n1"), before("n2")], 4)
    with open(file, "ab") as flood:
        flood.write(b"x" * MOST_BYTES + b"\n")
    keep_attempt(file, before("n3"))
    assert read_attempts(file) == ([before("n3")], 0)


def test_a_history_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NcclkitError, match="not a regular file"):
        read_attempts(tmp_path)
