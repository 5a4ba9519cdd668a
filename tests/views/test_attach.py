"""The attach form: real stuck processes, looked at by the real command; what it refuses, and Cancel."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import plotly.graph_objects as go
import pytest

from ncclkit.agent.run import processes
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.views import attach as view_of_attach
from ncclkit.views._base import PLOTLY, Drawn
from ncclkit.views._html import Markup
from ncclkit.views.attach import AttachForm, stacks_view
from tests.causes.test_waits import TORCH, waiting
from tests.causes.test_waits import rank as looked_at

pytestmark = pytest.mark.slow
STUCK = """
import sys, time
def load_shard():
    print(flush=True)
    time.sleep(300)
def wait_for_work():
    print(flush=True)
    time.sleep(300)
wait_for_work() if sys.argv[1] != "2" else load_shard()
"""


WORK, SHARD = "for a timer in wait_for_work at <string>:8", "for a timer in load_shard at <string>:5"
BOTH = f"Rank 2 waits {SHARD}; ranks 0 and 1 wait {WORK}"


def started(folder: str) -> list[int]:
    """Processes of `ncclkit attach` that look for this case folder."""
    return [pid for pid in processes.parents() if folder in processes.read_text(f"/proc/{pid}/cmdline")]


@pytest.fixture
def job() -> Iterator[tuple[int, list[int]]]:
    """A job of three ranks, one of which stands elsewhere: its Slurm id, its process ids."""
    number = random.randrange(10**6, 10**9)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", STUCK, str(rank)],
            env={**os.environ, "RANK": str(rank), "SLURM_JOB_ID": str(number)},
            stdout=subprocess.PIPE,
        )
        for rank in range(3)
    ]
    for rank in ranks:
        assert rank.stdout and rank.stdout.readline()
    yield number, [rank.pid for rank in ranks]
    for rank in ranks:
        rank.kill()
        rank.wait()


def test_running_jobs_are_listed_by_their_command_with_a_button_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_of_attach, "MOST_JOBS", 1000)  # whatever else runs here
    (tmp_path / "stuck.py").write_text(STUCK)
    words = ["stuck.py", "0", "--password", "hunter2secret", "<b onmouseover=alert(1)>", "x" * 400]
    environ = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": str(tmp_path)}
    rank = subprocess.Popen([sys.executable, *words], env=environ, cwd=tmp_path, stdout=subprocess.PIPE)
    try:
        assert rank.stdout and rank.stdout.readline()
        asyncio.run(listed_and_attached(tmp_path, rank.pid))
    finally:
        rank.kill()
        rank.wait()


async def listed_and_attached(folder: Path, pid: int) -> None:
    form = AttachForm(Case.open(folder / "case"))
    form.widget()
    lines = [(line.children[0], line.children[1].value) for line in form.jobs.children]
    button, line = next(pair for pair in lines if "stuck.py" in pair[1])
    assert "rank 0: " in line and "…" in line and len(line) < 300
    assert "hunter2secret" not in line and "&lt;b onmouseover" in line and "<b" not in line
    assert lines[-1][0].description == "Look again"
    button.click()
    while not form.running:
        await asyncio.sleep(0)
    assert form.target.value == str(pid) and button.disabled
    while form.running:
        await asyncio.sleep(0.05)
    assert "Rank 0 waits for a timer in wait_for_work" in form.static() and not button.disabled


def test_equal_stacks_of_a_job_share_a_row(job: tuple[int, list[int]], tmp_path: Path) -> None:
    number, pids = job
    case = Case.open(tmp_path / "case")
    form = AttachForm(case, f"job {number}")
    view = asyncio.run(form.run())
    assert view.summary == BOTH
    assert "load_shard" in form.result.value and not form.start.disabled and form.cancel.disabled
    assert len(case.of("stack")) == 3 and {event.pid for event in case.of("stack")} <= {*pids, None}
    assert [event.rank for event in case.of("telemetry.utilization")] == [
        0,
        1,
        2,
    ] and "How busy they were" in form.result.value
    assert list((tmp_path / "case" / "runs").glob("*attach/stacks_rank2.txt"))


@pytest.mark.parametrize(
    ("target", "says"),
    [("{1}", BOTH), ("{1} {2}", f"Rank 1 waits {WORK}; rank 2 waits {SHARD}"), ("7={2}", f"Rank 7 waits {SHARD}")],
    ids=["one stands for its job", "several for themselves", "of known rank"],
)
def test_processes_by_their_ids(job: tuple[int, list[int]], tmp_path: Path, target: str, says: str) -> None:
    view = asyncio.run(AttachForm(Case.open(tmp_path), target.format(*job[1])).run())
    assert view.summary == says


def test_nothing_named_is_nothing_done(tmp_path: Path) -> None:
    form = AttachForm(Case.open(tmp_path))
    assert asyncio.run(form.run()).summary.startswith("Nothing is attached") and not (tmp_path / "runs").exists()
    form.begin()
    assert "Say what to attach to" in form.notice.value


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("rank 3", "Cannot attach to 'rank 3'"),
        ("4711; rm -rf /", "Cannot attach to"),
        # the second where Slurm's commands are installed and no controller answers
        ("job 9999999999", "has no rank of this user on this host|did not say where job 9+ runs"),
        ("999999999", "There is no process 999999999"),
    ],
)
def test_what_cannot_be_looked_at(target: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(NcclkitError, match=sentence):
        asyncio.run(AttachForm(Case.open(tmp_path), target).run())


def test_a_case_without_a_folder_is_refused() -> None:
    with pytest.raises(NcclkitError, match="needs a case folder"):
        asyncio.run(AttachForm(Case(), "all").run())


@pytest.mark.parametrize("pressed", [True, False], ids=["Cancel", "Interrupt"])
def test_cancel_ends_the_looking_and_its_process(job: tuple[int, list[int]], tmp_path: Path, pressed: bool) -> None:
    form = AttachForm(Case.open(tmp_path), f"job {job[0]}")

    async def scenario() -> None:
        cell = asyncio.ensure_future(form.run())
        while not (children := started(str(tmp_path))):
            await asyncio.sleep(0)
        form.stop() if pressed else cell.cancel()
        while form.start.disabled or set(children) & set(started(str(tmp_path))):
            await asyncio.sleep(0)
        with pytest.raises(NcclkitError if pressed else asyncio.CancelledError):
            await cell

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert "Cancelled" in form.result.value


def test_equal_places_share_a_row_the_rarest_first() -> None:
    saving = (f"{TORCH}/serialization.py", 10, "save"), ("/app/ckpt.py", 88, "keep")
    ranks = [looked_at(one, *saving, text="stack of 3") if one == 3 else waiting(one) for one in range(8)]
    view = stacks_view([event for events in ranks for event in events])
    waits = "ranks 0-2 and 4-7 wait for other ranks in all_reduce at train.py:33"
    assert view.summary == f"Rank 3 stands in save at ckpt.py:88; {waits}"
    page = view.static()
    assert page.index("rank 3") < page.index("7 ranks (0–2, 4–7)") and "stack of 3" in page


def test_no_stack_says_so_and_why() -> None:
    view = stacks_view([], ["ncclkit: py-spy on rank 0: Permission denied"])
    assert view.summary == "No stack could be read" and "Permission denied" in view.static()


@pytest.mark.parametrize(
    ("target", "why", "wrong"),
    [
        ("", "Say what to attach to", False),
        ("rm -rf", "Cannot attach to", True),
        ("4194304999", "no process 4194304999 on this host", True),
        ("0=OWN", "", False),
        ("job 17", "", False),
    ],
)
def test_look_is_disabled_with_the_reason_and_what_is_not_here_is_marked(target: str, why: str, wrong: bool) -> None:
    form = AttachForm(Case())
    form.target.value = target.replace("OWN", str(os.getpid()))
    assert form.start.disabled == bool(why) and why in (form.start.tooltip or "") and why in form.notice.value
    assert ("nk-wrong" in form.target._dom_classes) == wrong


def test_after_a_failure_nothing_of_the_old_answer_is_left(tmp_path: Path) -> None:
    form = AttachForm(Case.open(tmp_path), str(os.getpid()))
    form.finished(Drawn("the old answer", go.Figure(), Markup("")))
    assert form.drawing.outputs and "the old answer" in form.static()
    form.failed("There is no such process", cancelled=False)
    assert form.drawing.outputs == () and "There is no such process" in form.static()
    assert "the old answer" not in form.static() + form.result.value and PLOTLY not in form._repr_mimebundle_()
