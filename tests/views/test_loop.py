"""Both forms of the loop on real ranks: break a job, read how it ended, try the fix; and what they refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import ncclkit as nk
from ncclkit.core.case import Case
from ncclkit.core.model import Advice, Experiment, NcclkitError, found
from ncclkit.experiments import fixes
from ncclkit.views import _form
from ncclkit.views.experiments import CheckForm, Closed
from ncclkit.lab.views.faulty_run import FaultyRun, LabForm
from tests.views.records import findings, job
from tests.views.test_faces import Page

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_ranks")]
CHOICES = {"backend": "gloo", "timeout": 8.0, "deadline": 90.0}


@dataclass
class Loop:
    """A job that was broken and mended by the two forms."""

    lab: LabForm
    broken: FaultyRun
    check: CheckForm
    closed: Closed
    lights: list[str]
    """What the lab's form showed while the job ran."""


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    case = Case.open(tmp_path_factory.mktemp("loop"))
    lights: list[str] = []

    async def walk() -> Loop:
        lab = nk.form.lab(case, "rank_raises", 2, **CHOICES)
        lab._repr_mimebundle_()  # a cell shows it
        lab.result.observe(lambda change: lights.append(change["new"]), "value")
        broken = await lab.run()
        nk.diagnose(case)
        check = nk.form.check(case, deadline=90.0)
        return Loop(lab, broken, check, await check.run(), lights)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_form, "REDRAW", 0.0)  # on a busy machine a job this short ends before its second drawing
        yield asyncio.run(walk())


def test_the_lab_says_how_it_ended_and_not_why(loop: Loop) -> None:
    read = Page(loop.broken.static()).words
    assert loop.broken.run.reason == "failed" and loop.broken.summary.startswith(
        "rank_raises on 2 ranks over gloo failed"
    )
    assert "1 error" in read and "runs/1-rank_raises/" in read and "rank_exception" not in read
    assert any("Breaking it" in seen and "nk-lights" in seen for seen in loop.lights)
    assert loop.lab.static() == loop.broken.static() and loop.lab.cancel.disabled and not loop.lab.start.disabled


def test_what_the_form_above_shows_already_is_one_line_in_jupyterlab(loop: Loop) -> None:
    assert "What was run" in loop.broken.html
    assert loop.broken.short_widget.value.endswith(f"{loop.broken.summary}</p></div>")
    assert loop.closed.widget() is None  # nobody has shown that form


def test_the_fix_is_shown_to_work_side_by_side(loop: Loop) -> None:
    assert [(one.kind, one.cause, one.worked) for one in loop.closed.records] == [("fix", "rank_exception", True)]
    read = " ".join(Page(loop.check.static()).words.split())
    assert loop.check.summary == loop.closed.summary and "rank_exception" in loop.closed.summary
    before, _, after = read.partition("After")
    assert "✕ failed" in before and "rank_exception Rank 1 raised ValueError" in before
    assert "✓ succeeded" in after and "Steps that every rank came to before 4 steps after 6 steps" in after
    now = read.partition("The verdict now")[2]
    assert "proven" in now and "Rank 1 raised ValueError" in now


def test_the_form_knows_what_was_found(loop: Loop) -> None:
    assert [value for _, value in loop.check.suspect.options] == ["", "rank_exception"]
    with pytest.raises(NcclkitError, match="slow_rank was not found here"):
        nk.form.check(loop.check._case, "slow_rank")


def test_nothing_runs_where_nobody_wants_it(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    case.findings = findings()
    form = nk.form.check(case)
    assert form.summary == "slow_rank is proven; what is advised can be tried"
    assert asyncio.run(form.run(False)).summary == "No experiment was made" and not (tmp_path / "experiments").exists()


def test_nothing_found_is_nothing_to_check(tmp_path: Path) -> None:
    form = nk.form.check(Case.open(tmp_path))
    assert form.summary == "There is nothing to check: nothing was found"
    assert asyncio.run(form.run()).summary == "No experiment was made"
    form.begin()
    assert "nothing was found" in form.notice.value


def test_buttons_that_can_do_nothing_are_disabled_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = nk.form.check(Case.open(tmp_path / "nothing"))
    recorded = nk.form.check(nk.open_sample("rank_raises"))
    for form, why in ((nothing, "nothing was found"), (recorded, "needs a writable case folder")):
        for button in (form.start, form.fix):
            assert button.disabled and why in button.tooltip
        assert form.notice.value.count(why) == 1
    case = Case.open(tmp_path / "case")
    case.findings = findings()
    form = nk.form.check(case)
    form.suspect.value = "shm_too_small"
    assert "shm_too_small has no experiment" in form.start.tooltip and form.start.disabled
    assert "What helps against shm_too_small needs a person" in form.notice.value and form.fix.disabled
    ask = Experiment("Does it work without P2P?", {"env": {"NCCL_P2P_DISABLE": "1"}}, expects={"p2p_broken": "works"})
    advice = Advice("Leave P2P out.", {"NCCL_P2P_DISABLE": "1"}, check="It runs.")
    case.findings = [found("p2p_broken", "likely", "It is.", (job()[0],), advice=(advice,), next=ask)]
    monkeypatch.setattr(fixes, "NVIDIA_DRIVER", tmp_path / "no driver")
    form = nk.form.check(case)
    form.suspect.value = "p2p_broken"
    assert form.start.disabled and form.fix.disabled
    assert "no NVIDIA GPU, so a job here cannot show p2p_broken" in form.notice.value
    monkeypatch.setattr(fixes, "NVIDIA_DRIVER", tmp_path)
    form = nk.form.check(case)
    assert not form.start.disabled and not form.fix.disabled and form.notice.value == ""


def test_what_cannot_be_tried_is_told_in_the_form_and_stops_no_notebook() -> None:
    form = nk.form.check(nk.open_sample("rank_raises"))
    seen = asyncio.run(form.run())
    assert seen.summary.startswith("An experiment needs a writable case folder") and seen.static() == form.static()


@pytest.mark.parametrize(
    ("fault", "choices", "sentence"),
    [
        ("rank_lte", {}, "There is no fault 'rank_lte'"),
        ("healthy", {"rank": 1}, "The lab has no choice 'rank'; it takes backend, culprit"),
        ("healthy", {"on_record": print}, "no choice 'on_record'"),
    ],
)
def test_what_the_lab_does_not_know_is_refused_at_once(fault: str, choices: dict[str, object], sentence: str) -> None:
    with pytest.raises(NcclkitError, match=sentence):
        nk.form.lab(Case(), fault, **choices)


def test_the_lab_says_what_it_will_do_before_it_does_it(tmp_path: Path) -> None:
    form = nk.form.lab(Case.open(tmp_path), "rank_killed")
    form.widget()
    assert (
        form.summary.startswith("This run: one rank is killed")
        and form.summary in form.html
        and form.summary in form.result.value
    )
    form.fault.value = "healthy"
    assert "This run: trains and succeeds" in form.result.value and not (tmp_path / "runs").exists()


def test_the_lab_has_its_buttons_and_labels_in_the_language_of_the_notebook(tmp_path: Path) -> None:
    form = nk.form.lab(Case.open(tmp_path), "rank_killed", language="zh")
    labels = [form.start.description, form.cancel.description, form.fault.description, form.ranks.description]
    assert labels == ["复现故障", "取消", "故障", "rank 数"]
    assert form.summary == "本次运行：一个 rank 被 SIGKILL 杀死；只影响它自己的进程和目录" in form.result.value
    assert ("rank_killed: 一个 rank 被 SIGKILL 杀死", "rank_killed") in form.fault.options
    form.started()
    assert "正在复现故障" in form.result.value
    form.failed("", cancelled=True)
    assert "已取消" in form.result.value
    with pytest.raises(NcclkitError, match="not in 'fr'"):
        nk.form.lab(Case(), "rank_killed", language="fr")
