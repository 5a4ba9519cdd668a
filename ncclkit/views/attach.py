"""The form of `ncclkit.live.attach`.

It asks which processes, has Attach and Cancel, and shows where the ranks stand.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as W

from ncclkit.agent.monitor import flight_dump, kernels
from ncclkit.analysis.motion import headline
from ncclkit.analysis.waits import (
    RankPosition,
    inside,
    rank_columns,
    rank_positions,
    same_positions,
    step_range,
)
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.kinds import TelemetryUtilization
from ncclkit.core.model import Event, Finding, NcclkitError
from ncclkit.core.text import format_bytes, plural, some
from ncclkit.core.text import ranks as rank_words
from ncclkit.evidence.logs import forget, is_example
from ncclkit.live.attach import AttachOptions, RunningJob, attach, running_jobs
from ncclkit.views._base import View
from ncclkit.views._form import Form, complaints, row, text_field
from ncclkit.views._html import Markup, code, el, fit, fold, join, pre, sentence, table
from ncclkit.views.findings import SURE, culprits, headline_beside

MOST_JOBS = 8
"""Running jobs that are listed with a button each; the others are counted."""
LONGEST_COMMAND = 120
"""Letters of a command that are shown."""
TARGETS = "all, or process ids, or job and its Slurm id"
PROCESSES = r"(?:\d{1,7}=)?\d{1,10}(?:[ ,]+(?:\d{1,7}=)?\d{1,10})*"
TARGET = re.compile(rf"all|job \d{{1,10}}(?:[_+]\d{{1,7}})?|{PROCESSES}")


class AttachForm(Form):
    """The form that attaches to running processes.

    ``await form.run()`` does what its Attach button does.  `target` is ``all`` (every process of
    this user with a RANK), process ids (one of a rank or a launcher stands for its job, ``3=4711``
    is rank 3), ``job`` and a Slurm job's id (its ranks on this host), or nothing, and then nothing
    is done.  Raises NcclkitError for anything else.
    """

    IDLE = "Nothing is attached; name the processes of a job that hangs right now on this host"
    ASK = f"Say what to attach to: {TARGETS}"
    BUSY = "Attaching …"
    CANCELLED = "Cancelled; what was collected until then stays in the case folder"

    def __init__(self, case: Case, target: str = "") -> None:
        check_target(target)
        self._case = case
        self.target = text_field("Attach to", target, TARGETS)
        self.kernels = W.Checkbox(description="GPU kernels", tooltip=kernels.COST, indent=False)
        self.dump = W.Checkbox(
            description="Flight Recorder", tooltip="; else ".join(flight_dump.COSTS.values())
        )
        self.dump.indent = False
        self.jobs = W.VBox([], layout=W.Layout(width="100%"))
        self._of_jobs: list[W.Button] = []
        start = W.Button(description="Attach", icon="search", button_style="primary")
        said = "The form names nothing to attach to"
        if target:
            said = f"The form attaches to {target}"
        super().__init__(said, [self.target, self.kernels, self.dump], start)

    def layout(self) -> list[W.Widget]:
        """The jobs that run here, above the fields in which others can be named."""
        return [self.jobs, *super().layout()]

    def widget(self) -> W.Widget:
        """The form, with the jobs that run here now."""
        if not self.running:
            self.list_jobs()
        return super().widget()

    def list_jobs(self) -> None:
        """Look which jobs of this user run here, and give each a button."""
        found = running_jobs()
        again = W.Button(description="Look again", icon="refresh")
        again.on_click(lambda _button: self._call_on_main_loop(self.list_jobs))
        rows = []
        self._of_jobs = []
        for job in found[:MOST_JOBS]:
            button = W.Button(description="Look at it", icon="search")
            button.on_click(partial(self._attach_clicked, job))
            self._of_jobs.append(button)
            rows.append(row(button, W.HTML(_job_line(job))))
        self.jobs.children = (*rows, row(again, W.HTML(_count_line(found))))

    def _attach_clicked(self, job: RunningJob, _button: W.Button) -> None:
        self._call_on_main_loop(partial(self._attach_to, job))

    def _attach_to(self, job: RunningJob) -> None:
        self.target.value = str(job.process)
        self.begin()

    def _lock(self, running: bool) -> None:
        super()._lock(running)
        for button in self._of_jobs:
            button.disabled = running

    def asks(self) -> bool:
        """Whether a target is named."""
        check_target(self.target.value)
        return bool(self.target.value.strip())

    def wrong(self) -> Mapping[W.Widget, str]:
        """A target that nobody can mean, or a process that is not here."""
        found = complaints({self.target: lambda: check_target(self.target.value)})
        if found:
            return found
        if self.target.value.strip().startswith("job"):
            named = ""
        else:
            named = self.target.value
        pids = []
        for number in re.findall(r"(?:\d+=)?(\d+)", named):
            if not Path("/proc", number).exists():
                pids.append(number)
        if pids:
            return {self.target: f"There is no process {some(pids)} on this host."}
        return {}

    def failed(self, why: str, cancelled: bool) -> None:
        """Show why there is no answer, and mark what led to none."""
        super().failed(why, cancelled)
        if not cancelled:
            self.mark(self.target, why)

    def prepare(self) -> Coroutine[Any, Any, View]:
        """What is read of the processes that the target names."""
        options = AttachOptions(kernels=self.kernels.value, dump=self.dump.value)
        return attached_view(self._case, self.target.value, options)


def _job_line(job: RunningJob) -> Markup:
    """The ranks of a job and its command, which is text of somebody else."""
    command = job.command
    if len(command) > LONGEST_COMMAND:
        command = f"{command[:LONGEST_COMMAND]}…"
    return el("div", rank_words(job.ranks), ": ", code(command), cls="nk")


def _count_line(found: Sequence[RunningJob]) -> Markup:
    """How many jobs there are beside those that have a button."""
    if not found:
        says = "No process of this user on this host has a RANK."
    elif len(found) > MOST_JOBS:
        says = f"{len(found) - MOST_JOBS} more jobs run here; name a process of one below."
    else:
        says = f"{plural(len(found), 'job')} of this user on this host."
    return el("div", el("p", says, cls="nk-dim"), cls="nk")


async def attached_view(case: Case, target: str, options: AttachOptions | None = None) -> View:
    """What the processes of `target` (see `AttachForm`) wait for.

    Equal places stand in one row, with how busy each was.
    """
    if is_example(case):
        forget(case)  # what runs here must not be judged with somebody else's recording
    numbers = re.findall(r"[\d=]+", target)
    job = None
    if target.strip().startswith("job"):
        job = target.strip().removeprefix("job").strip()
        numbers = []
    made = await attach(case, numbers, job, options)
    return stacks_view(
        made.events, made.problems, diagnose(case).findings, (*made.jobs, *made.progress)
    )


def check_target(target: str) -> None:
    """Raise NcclkitError for words that name no processes, and no job."""
    if target.strip() and not TARGET.fullmatch(target.strip()):
        raise NcclkitError(f"Cannot attach to {target!r}; give {TARGETS}, such as “job 4711”.")


UTILIZATION = ("Rank", "CPU", "Main thread at work", "State", "Sent by TCP", "Received", "Its GPU")


def stacks_view(
    events: Iterable[Event],
    problems: Sequence[str] = (),
    found: Sequence[Finding] = (),
    jobs: Sequence[str] = (),
) -> View:
    """The verdict in a sentence, then equal places together.

    It tells how many ranks stand where, the rarest first.  `events` are of one look at a running
    job; `jobs` are command, host and launcher of the ranks, and how far they are.
    """
    known = list(events)
    stands = rank_positions(known)
    utilization = []
    for event in known:
        if event.kind == "telemetry.utilization":
            utilization.append(_utilization_row(event.rank, event.data))
    sure = ""
    # what is only possible does not lead; the places of the ranks do then
    for finding in found:
        if finding.strength in SURE:
            sure = finding.say
            break
    conclusion = sure or headline_beside(culprits(found), headline(known), stands)
    cause = []
    for finding in found:
        if finding.say != conclusion:
            cause.append((code(finding.cause), sentence(finding.say)))
    body = join(
        fit(
            table(
                ("Which of them", "Ranks", "Where they stand", "Step", "The whole stack"),
                _rows(stands),
            )
        ),
        join(*(el("p", job) for job in jobs)),
        table(("Also" if len(cause) < len(found) else "Cause", "What it says"), cause),
        el("h5", "How busy they were meanwhile") if utilization else "",
        fit(table(UTILIZATION, utilization, "nk-numbers")),
        fold(
            f"Could not be read: {len(problems):,}",
            pre("\n".join(problems)) if problems else "",
            is_open=True,
        ),
    )
    return View(conclusion.rstrip("."), body)


def _rows(stands: Mapping[int, RankPosition]) -> list[tuple[object, ...]]:
    """A row for each place.

    It tells which ranks, where, at which step, and the stack of the first.
    """
    rows: list[tuple[object, ...]] = []
    for held in same_positions(stands.values()):
        ranks = [stand.rank for stand in held]
        rows.append(
            (
                code(rank_columns(ranks, list(stands))),
                _ranks(ranks),
                sentence(f"{held[0].activity(len(held))}{_branch(held[0])}"),
                step_range(held) or "–",
                fold("Stack of the first", pre(held[0].lines[-1].text)),
            )
        )
    return rows


def _branch(stand: RankPosition) -> str:
    if stand.condition:
        return f", {inside(stand.condition)}"
    return ""


def _utilization_row(rank: int | None, data: TelemetryUtilization) -> tuple[object, ...]:
    traffic = []
    for rate in (data.sent, data.received):
        traffic.append("–" if rate is None else f"{format_bytes(round(rate))}/s")
    shares = []
    for share in (data.cpu, data.main, data.gpu_busy):
        shares.append("–" if share is None else f"{share:.0f} %")
    return (rank, *shares[:2], data.states or "–", *traffic, shares[2])


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"{len(ranks):,} ranks ({some(sorted(ranks))})"
