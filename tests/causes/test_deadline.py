"""Judging ends: causes that were judged in time keep their verdicts, and the others say why they have none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ncclkit.causes import catalogue, engine
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.causes.summary import summarize
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Finding, clear, found

LINE = Event("job.done", "Training completed", "job.log", 1, data={"message": "Training completed"})
CAUSES = ("slow_rank", "gpu_oom", "p2p_broken")


class Clock:
    """A clock that only the causes move."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def judged(monkeypatch: pytest.MonkeyPatch, first: Finding, seconds: float) -> tuple[Case, Diagnosis]:
    """The diagnosis by three causes, of which each takes so long; the first one finds this."""
    clock, case = Clock(), Case().add([LINE])

    def took_long(verdict: Finding) -> Finding:
        clock.now += seconds
        return verdict

    verdicts = (first, *map(clear, CAUSES[1:]))
    known = catalogue()
    causes = {
        verdict.cause: SimpleNamespace(
            diagnose=lambda _, verdict=verdict: took_long(verdict),
            explains=(),
            experiment=known["slow_rank"].experiment,
        )
        for verdict in verdicts
    }
    monkeypatch.setattr(engine, "catalogue", lambda: causes)
    monkeypatch.setattr(engine, "monotonic", clock)
    return case, diagnose(case, deadline=60)


def test_what_was_found_in_time_stays_and_the_rest_is_unknown(monkeypatch):
    error = Event("cuda.oom", "CUDA out of memory", "job.log", 2, rank=1)
    case, result = judged(monkeypatch, found("slow_rank", "likely", "Rank 1 was late.", [error]), 40)
    said = "Judging was ended after 60 s, with 2 of 3 causes judged."
    assert [finding.cause for finding in result.findings] == ["slow_rank"] and result.verdict == "found"
    assert [finding.cause for finding in result.clear] == ["gpu_oom"]
    (unknown,) = result.to_dict()["unknown"]
    assert unknown == {"cause": "p2p_broken", "missing": ["more time: judging was ended after 60 s"]}
    assert result.ended == said and result.text().endswith(said) and said in summarize(case, result).missing


def test_a_job_is_not_called_healthy_by_half_of_the_causes(monkeypatch):
    _, result = judged(monkeypatch, clear("slow_rank"), 40)
    assert (result.verdict, result.exit_code) == ("unexplained", 1) and result.healthy is not None
    assert result.headline == result.ended and result.text().count(result.ended) == 1


def test_within_the_deadline_nothing_is_said_of_it(monkeypatch):
    _, result = judged(monkeypatch, clear("slow_rank"), 20)
    assert (result.verdict, result.ended, result.unknown) == ("healthy", "", ())
