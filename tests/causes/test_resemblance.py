"""The verdict by resemblance: fitted from the repository, read quickly, modest, and only where something failed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.causes import catalogue, resemblance
from ncclkit.causes.differential import differential
from ncclkit.causes.suspects import suspect_finding
from tests.cases import judged_text, read_text
from tests.bench.resemblance import Counted, corpus, counted, crossed, fit


@pytest.fixture(scope="module")
def known() -> Counted:
    return counted(corpus())


@pytest.mark.slow
def test_the_weights_that_ship_are_those_of_the_repository(known: Counted) -> None:
    fitted, shipped = resemblance.unpacked(fit(known)), resemblance.weights()
    assert fitted.causes == shipped.causes == (resemblance.WELL, *catalogue())
    assert fitted.examples == shipped.examples
    assert len(fitted.rows.keys() & shipped.rows.keys()) > 0.98 * len(shipped.rows)
    texts = [item.lines for item in known.known if item.source.startswith("exam")]
    first = [(next(iter(resemblance.shares(text, fitted))), next(iter(resemblance.shares(text)))) for text in texts]
    assert sum(one != two for one, two in first) <= 0.01 * len(texts)


@pytest.mark.slow
def test_it_knows_most_failures_of_authors_that_it_has_not_read(known: Counted) -> None:
    """Three sets, each of other authors; the benchmark judges every one."""
    sets = ("public", "forum", "last")
    answers = [(item, best) for item, best in crossed(known, sets) if item.cause and item.suffices]
    ranked = [(item.accept, [cause for cause in best if cause]) for item, best in answers]
    assert len(ranked) > 30 * len(sets)
    assert sum(bool(accept & set(best[:1])) for accept, best in ranked) > 0.80 * len(ranked)
    assert sum(bool(accept & set(best[:3])) for accept, best in ranked) > 0.90 * len(ranked)


def test_the_file_is_small_and_read_at_once() -> None:
    assert resemblance.FILE.stat().st_size < 1 << 20
    times = []
    for _ in range(5):
        resemblance.weights.cache_clear()
        begin = time.perf_counter()
        resemblance.weights()
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.05


def test_reading_it_needs_no_numpy() -> None:
    code = "import sys; from ncclkit.causes import resemblance as r; r.weights(); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_failure_in_words_of_another_program_is_possible() -> None:
    log = "loading\nofi: provider could not pin 8 MiB: memory registration refused, locked memory limit is 64 KiB\n"
    result = judged_text(log)
    first = result.findings[0]
    assert (first.cause, first.strength) == ("memlock_limit", "possible") and first.say.startswith(resemblance.SAYS)
    assert [piece.line for piece in first.evidence] == [2] and "(like: " in first.say  # type: ignore[union-attr]
    assert first.next is not None and first.advice[0].check
    assert "memlock_limit" not in {finding.cause for finding in result.unknown}


def test_a_cause_is_cited_though_each_single_line_speaks_against_it() -> None:
    case = read_text("training stopped: failed quietly\n")
    lines = resemblance.abnormal(case)
    text = resemblance.Text(lines)
    share = {cause: text.heaviest(cause, 1)[0][0] for cause in catalogue()}
    against = min(share, key=lambda cause: share[cause])
    suspects = differential(case, text, [against], {})
    suspect = next(one for one in suspects.suspects if one.cause == against)
    assert share[against] < 0 and suspect_finding(suspect, suspects, None, case, text, ()).evidence


def test_where_a_rule_is_sure_it_keeps_silent() -> None:
    log = (
        "node-1:71:90 [1] init.cc:943 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000\n"
        "node-1:71:90 [1] NCCL INFO init.cc:1548 -> 5\n"
    )
    result = judged_text(log)
    assert result.findings[0].strength in ("proven", "likely")
    assert not [finding for finding in result.findings if finding.say.startswith(resemblance.SAYS)]


@pytest.mark.parametrize(
    "log",
    [
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\nstep 1/9 loss 2.1\n",
        "retry 1: connection refused, trying again\nstep 10/90 loss 2.1\nstep 20/90 loss 1.9\n",
        "UserWarning: cannot find the fused kernel, using the slow one\nTraining completed.\n",
    ],
)
def test_a_job_that_goes_on_resembles_nothing(log: str) -> None:
    assert judged_text(log).findings == ()


def test_an_abnormal_line_that_a_rule_reads_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("[Errno 28] No space left on device\nfoo daemon refused us\nall is quiet\n")
    reading = evidence.read([path])
    assert [(event.kind, event.line) for event in reading.events] == [("system.error", 1)]
    assert reading.inputs[0]["abnormal"] == [{"line": 2, "rank": None, "text": "foo daemon refused us"}]
