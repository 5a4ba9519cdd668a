"""A log of several attempts: the last one is judged, and the summary says so."""

from __future__ import annotations


from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.causes.summary import Summary, summarize
from tests.cases import read_text

ROOT = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: {pid})
"""
MEMORY = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
SAME = "n0:{pid}:{pid} [1] init.cc:943 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000\n"


def begun(first: int) -> str:
    return "".join(
        f"n0:{pid}:{pid} [{pid - first}] NCCL INFO NCCL version 2.21.5+cuda12.4\n" for pid in (first, first + 1)
    )


def judged(log: str) -> tuple[Diagnosis, Summary]:
    case = read_text(log)
    diagnosis = diagnose(case)
    return diagnosis, summarize(case, diagnosis)


def test_of_two_attempts_the_last_is_judged() -> None:
    first = begun(100) + MEMORY + ROOT.format(pid=101)
    diagnosis, summary = judged(first + begun(200) + SAME.format(pid=201) + ROOT.format(pid=201))
    assert [finding.cause for finding in diagnosis.findings] == ["duplicate_gpu"]
    said = next(said for said in summary.missing if "earlier job or attempt is not judged" in said)
    assert 2 < int(said.rstrip(".").rpartition(" ")[2]) <= first.count("\n")


def test_a_failure_after_which_nobody_starts_again_is_judged() -> None:
    diagnosis, summary = judged(begun(100) + MEMORY + ROOT.format(pid=101))
    assert diagnosis.findings[0].cause == "gpu_oom"
    assert not any("earlier" in said for said in summary.missing)


def test_ranks_of_another_host_that_start_later_are_no_new_attempt() -> None:
    other = begun(300).replace("n0:", "n1:")
    diagnosis, _ = judged(begun(100) + MEMORY + ROOT.format(pid=101) + other)
    assert diagnosis.findings[0].cause == "gpu_oom"
