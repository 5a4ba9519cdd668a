"""Every branch of RAS's text printer, of each version, and what `diagnose` makes of it.

`tests.ras_printer` writes the texts; the reports of a whole node behind, of dead processes and of healthy jobs are
judged as `ncclkit diagnose` would.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.kinds import RasChange, RasCommunicator, RasReport
from ncclkit.evidence.logs import fill
from tests.ras_printer import OPS, VERSIONS, Job, as_json, behind, numbers, text

NODE = range(8, 16)
"""The second node of eight."""


def read(*reports: str) -> Case:
    """The case of reports that lie in one folder, JSON or text."""
    with tempfile.TemporaryDirectory() as folder:
        for number, said in enumerate(reports, 1):
            form = "json" if said.startswith("{") else "txt"
            (Path(folder) / f"ras_{number}.{form}").write_text(said)
        case = Case()
        fill(case, evidence.read([folder]))
        return case


def comm(*reports: str) -> RasCommunicator:
    return read(*reports).of(RasCommunicator)[-1].data


def judged(*reports: str) -> Diagnosis:
    return diagnose(read(*reports))


def first(diagnosis: Diagnosis) -> tuple[str, str | None, list[int]]:
    """(cause, strength, ranks) of the first finding."""
    finding = diagnosis.findings[0]
    return finding.cause, finding.strength, list(finding.culprits.get("ranks", ()))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_of_eight_ranks_behind_is_named(version: str) -> None:
    """NCCL writes the count once above the list; in two reports alike it is found."""
    job = Job(64, counts=behind("AllReduce", NODE))
    diagnosis = judged(text(version, job), text(version, job))
    assert first(diagnosis) == ("slow_rank", "likely", [*NODE])
    say = diagnosis.findings[0].say
    assert "Ranks 8-15" in say and "192.0.2.11" in say and "GPUs 0–7" in say and "two reports alike" in say


@pytest.mark.parametrize("version", VERSIONS)
def test_one_report_a_call_apart_accuses_nobody_and_names_them(version: str) -> None:
    """Ranks of a healthy job are apart for moments."""
    diagnosis = judged(text(version, Job(64, counts=behind("AllReduce", NODE))))
    assert not diagnosis.findings and diagnosis.verdict == "unexplained"
    assert "Ranks 8-15 (GPUs 0–7 on 192.0.2.11)" in diagnosis.headline and "second report" in diagnosis.headline


def test_one_report_many_calls_apart_is_possible() -> None:
    diagnosis = judged(text("2.28.9", Job(64, counts=behind("AllReduce", NODE, 500))))
    assert first(diagnosis) == ("slow_rank", "possible", [*NODE]) and "one report" in diagnosis.findings[0].say


@pytest.mark.parametrize("version", VERSIONS)
def test_healthy_reports_accuse_nobody(version: str) -> None:
    """Even counts, and counts that went on between two reports."""
    quiet = judged(text(version, Job()), text(version, Job()))
    assert not quiet.findings and "no rank is a call behind" in quiet.headline
    later = Job(usual={"AllReduce": 700, "AllGather": 12}, counts=behind("AllReduce", (3,), 699))
    earlier = Job(counts=behind("AllReduce", (3,)))
    assert not judged(text(version, earlier), text(version, later)).findings


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_named_late_is_late(version: str, verbose: bool) -> None:
    """Of any counts: who is listed, or left over by the lists, is late; nobody else ever is."""
    source = random.Random(f"{version} {verbose}")
    for _ in range(60):
        job = Job(source.choice([2, 4, 16, 32, 64]), 4)
        for op in source.sample(OPS, source.choice([1, 1, 2])):
            ranks = source.sample(range(job.ranks), source.randint(1, job.ranks))
            job.counts[op] = {rank: source.choice([0, 5, 6]) for rank in ranks}
            job.usual[op] = 6
        if source.random() < 0.3:
            lost = source.sample(range(job.ranks), 1)
            job.missing, job.dead = ((), tuple(lost)) if source.random() < 0.5 else (tuple(lost), ())
        late, told = true_late(job, version), read(text(version, job, verbose)).of(RasCommunicator)
        if not told:
            assert not late
            continue
        data = told[0].data
        assert set(data.late) <= set(late)
        assert data.late_number <= len(late) if late else not data.late
        assert not set(data.ahead) & set(late)


def true_late(job: Job, version: str) -> list[int]:
    late = set()
    for op in OPS if numbers(version) >= (2, 26) else ("collective",):
        counts = job.launched(op)
        if len(set(counts.values())) > 1:
            late |= {rank for rank, count in counts.items() if count == min(counts.values())}
    return sorted(late)


def test_the_listed_set_may_be_the_one_ahead() -> None:
    """NVIDIA/nccl#1911: 2 of 32 ranks listed, which are ahead; the 30 others are behind."""
    job = Job(32, counts=behind("AllReduce", (4, 9), 642))
    data = comm(text("2.28.3", job))
    assert data.ahead == [4, 9] and len(data.late) == data.late_number == 30
    diagnosis = judged(text("2.28.3", job), text("2.28.3", job))
    assert first(diagnosis) == ("rank_divergence", "possible", [4, 9])


def test_half_of_the_ranks_is_counted_and_not_named() -> None:
    """16 of 32 are never listed in text; in JSON they are."""
    job = Job(32, counts=behind("AllReduce", range(16, 32)))
    said = text("2.28.9", job)
    data = comm(said)
    assert data.late == data.ahead == [] and data.late_number == 16
    diagnosis = judged(said, said)
    assert first(diagnosis) == ("slow_rank", "likely", [])
    assert "16 of 32 ranks, which the report does not name" in diagnosis.findings[0].say
    assert diagnosis.findings[0].advice[0].command == "ncclras -f json"
    named = as_json(job)
    assert first(judged(named, named.replace("04:35:08", "04:35:10"))) == ("slow_rank", "likely", [*range(16, 32)])


def test_of_three_sets_the_named_one_that_is_not_late_is_said() -> None:
    counts = {"AllReduce": {**dict.fromkeys(range(14), 640), 14: 700, 15: 700}}
    data = comm(text("2.28.9", Job(32, counts=counts)))
    assert data.late == [] and data.late_number == 14 and data.ahead == [14, 15]
    assert "ranks 14 and 15 are not" in judged(text("2.28.9", Job(32, counts=counts))).headline


def test_unnamed_ranks_that_go_on_keep_the_job_going() -> None:
    """Their sum tells, as counts only rise."""
    first_job = Job(32, counts=behind("AllReduce", range(16, 32)))
    second = Job(32, usual={"AllReduce": 650}, counts=behind("AllReduce", range(16, 32), 649))
    (change,) = read(text("2.28.9", first_job), text("2.28.9", second)).of(RasChange)
    assert change.data.unnamed == 9 * 32 and not change.data.still
    assert not judged(text("2.28.9", first_job), text("2.28.9", second)).findings


def test_different_calls_are_told_from_late_ones() -> None:
    """Rank 3 is ahead in one operation and behind in another."""
    job = Job(16, counts={"AllReduce": {3: 640}, "Broadcast": {3: 1}})
    assert comm(text("2.28.9", job)).crossed
    said = text("2.28.9", job)
    assert first(judged(said, said)) == ("rank_divergence", "likely", [3])
    assert not judged(said).findings


@pytest.mark.parametrize("version", VERSIONS)
def test_two_operations_are_both_read(version: str) -> None:
    """An empty line closes each part (2.26), and does not end the block."""
    job = Job(16, counts={"AllReduce": {2: 0}, "AllGather": {2: 11}}, usual={"AllReduce": 4, "AllGather": 12})
    data = comm(text(version, job))
    if numbers(version) < (2, 26):
        assert data.spreads == {"collective": [11, 16]}
    else:
        assert data.spreads == {"AllReduce": [0, 4], "AllGather": [11, 12]}
    assert data.late == [2] and data.places["2"] == {"host": "192.0.2.10", "pid": 4002, "gpu": "2"}


@pytest.mark.parametrize("version", VERSIONS)
def test_dead_processes(version: str) -> None:
    """One is named as a rank from 2.26 on; before, its process is."""
    said = text(version, Job(16, dead=(5,), timeouts=2))
    case = read(said)
    (report,) = case.of(RasReport)
    assert report.data.dead == ["192.0.2.10:4005"] and report.data.dead_number == 1 and report.data.timeouts == 2
    diagnosis = diagnose(case)
    if numbers(version) < (2, 26):
        assert case.of(RasCommunicator)[0].data.missing == [5] and "192.0.2.10:4005" in diagnosis.headline
        return
    assert case.of(RasCommunicator)[0].data.dead == [5]
    assert first(diagnosis) == ("rank_killed", "possible", [5])
    assert "gone, frozen, or cut off" in diagnosis.findings[0].say


def test_with_a_dead_rank_the_ones_behind_are_said_and_not_accused() -> None:
    said = text("2.31.2", Job(16, dead=(5,), counts=behind("AllReduce", (2,))))
    diagnosis = judged(said, said)
    assert first(diagnosis) == ("rank_killed", "possible", [5]) and "Rank 2 (" in diagnosis.findings[0].say
    assert "slow_rank" not in [finding.cause for finding in diagnosis.findings]


@pytest.mark.parametrize("version", VERSIONS)
def test_more_than_ten_lost_are_counted(version: str) -> None:
    case = read(text(version, Job(64, missing=tuple(range(8, 24)))))
    (report,), (data,) = case.of(RasReport), case.of(RasCommunicator)
    assert report.data.silent == [] and report.data.silent_number == 16
    assert data.data.missing == [] and data.data.missing_number == 16
    assert "16 processes did not answer NCCL's RAS in time" in diagnose(case).headline


@pytest.mark.parametrize("version", VERSIONS)
def test_statuses(version: str) -> None:
    data = comm(text(version, Job(16, statuses={7: "ABORT", 3: "NOCOMM", 4: "NOCOMM"})))
    unknown = "UNKNOWN" if numbers(version) < (2, 26) else "NOCOMM"
    assert data.statuses == {"7": "ABORT", "3": unknown, "4": unknown} and not data.late


@pytest.mark.parametrize("version", VERSIONS)
def test_errors(version: str) -> None:
    errors = {1: "System error", 2: "System error", 3: "Unhandled CUDA error", 4: "timeout"}
    data = comm(text(version, Job(16, async_errors=errors, init_errors={9: "Internal error"})))
    told = {"1": "System error", "2": "System error", "3": "Unhandled CUDA error", "9": "Internal error"}
    assert data.errors == told and data.error_shares == {"System error": 2}


def test_an_error_is_said_and_a_cuda_error_is_possible() -> None:
    errors = {3: "Unhandled CUDA error", 5: "Remote process error"}
    diagnosis = judged(text("2.28.9", Job(16, async_errors=errors)))
    assert first(diagnosis) == ("cuda_error", "possible", [3])
    assert [one.cause for one in diagnosis.findings if one.strength != "possible"] == []
    lost = judged(text("2.28.9", Job(16, async_errors={5: "Remote process error"})))
    assert not lost.findings and "rank 5 reported Remote process error, which follows" in lost.headline


def test_a_state_is_said_and_accuses_nobody() -> None:
    diagnosis = judged(text("2.28.9", Job(16, statuses={7: "ABORT"})))
    assert not diagnosis.findings and "rank 7 in state ABORT" in diagnosis.headline


def test_many_ranks_with_one_error_are_counted() -> None:
    data = comm(text("2.28.9", Job(64, async_errors=dict.fromkeys(range(32), "Remote process error"))))
    assert data.errors == {} and data.error_shares == {"Remote process error": 32}


UNEVEN = """  Nodes  Processes         GPUs
          per node  per process
      3          8            1
      1          7            1

  Nodes  Processes         GPUs
(total)    (total)      (total)
      4         31           31

The outlier node:
  Node 192.0.2.13 running processes 1,2,3

Communicators... (0.000s)"""


def test_an_uneven_job_and_its_outlier() -> None:
    """The node is right; the processes beside it are not its own, and are not read."""
    said = text("2.30.7", Job(31))
    start, end = said.index("  Nodes  "), said.index("Communicators...")
    (report,) = read(said[:start] + UNEVEN + said[said.index("\n", end) :]).of(RasReport)
    assert (report.data.nodes, report.data.processes, report.data.gpus) == (4, 31, 31)
    assert report.data.outliers == ["192.0.2.13"]


def test_no_process_is_known() -> None:
    job = Job(16, counts=behind("AllReduce", range(12, 16)))
    said = text("2.26.2", job).replace("GPU 4 managed by process 4012 on node 192.0.2.11", "[process information not found]")
    data = comm(said)
    assert data.late == [12, 13, 14, 15] and "12" not in data.places and "13" in data.places


def test_a_communicator_of_a_part_is_not_named_by_its_own_numbers() -> None:
    """Rank 1 of a group of two is not rank 1 of the job of 16."""
    row, pairs = f"{1:9} {2:9} {8:9} {16:9}", f"{8:9} {1:9} {2:9} {2:9}"
    said = text("2.28.9", Job(16)).replace(row, pairs).replace("RUNNING  OK", "RUNNING  MISMATCH")
    group = text("2.28.9", Job(2, counts=behind("AllReduce", (1,), 600)))
    said += group[group.index("#0-0") :]
    diagnosis = judged(said, said)
    assert not diagnosis.findings
    assert "Rank 1 of communicator 0x7a079b828ff1a75 (2 ranks) (GPU 1 on 192.0.2.10)" in diagnosis.headline
