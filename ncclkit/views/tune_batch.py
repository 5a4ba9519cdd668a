"""The form of tuning on a login node: it submits the sweep, and the page goes on without one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import fields
from typing import Any

import ipywidgets as W

from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.text import split_words
from ncclkit.core.tuning import Sweep
from ncclkit.live import job_checks, scheduler, submit, tune
from ncclkit.live.options import JobOptions, ProbeOptions, command_words
from ncclkit.views._form import Prepare, row
from ncclkit.views._html import Markup
from ncclkit.views.live import LABEL_WIDTH, option_controls, option_misfits
from ncclkit.views.kind_choice import KindChoice
from ncclkit.views.tune import SweepView, TuneForm

TUNED = ("python", "ranks", "simulate_hosts", "max_bytes", "timeout", "backend", "dtype", "op")
"""The options of the live test that `ncclkit tune` takes, too."""


def tune_form(case: Case, *given: Any, **options: Any) -> TuneForm:
    """The form that compares settings; on a login node the one that submits it.

    It takes what `TuneForm` takes.
    """
    if scheduler.is_login_node() and not options.get("here"):
        return BatchTuneForm(case, *given, **options)
    return TuneForm(case, *given, **options)


class UnmeasuredSweep(SweepView):
    """Why there is no sweep; planners and the report need none."""

    def __init__(self, why: str) -> None:
        super().__init__(Sweep("", 0, 0, (), unfinished=why))
        self._why = why

    @property
    def summary(self) -> str:
        """Why nothing was measured."""
        return self._why

    def static(self) -> Markup:
        """The sentence alone."""
        return Markup("")


class BatchTuneForm(TuneForm):
    """The form of a sweep as a batch job.

    **Submit** sends it to the nodes that the form names.  ``await form.run()`` follows the job that
    this case has in the queue, or shows what the last one measured; where there was none, it says
    so, and the page goes on.
    """

    def __init__(self, case: Case, *given: Any, **options: Any) -> None:
        """Fill the form with what is measured, and with the options of the job."""
        self._was_clicked = False
        self.job = option_controls(JobOptions(), scheduler.choices(case))
        self.kind = KindChoice(case, self.job, LABEL_WIDTH).field
        super().__init__(case, *given, **options)
        self.start.description = "Submit"
        self.start.icon = "paper-plane"
        self._fields = (*self._fields, self.kind, *self.job.values())
        for field in self.job.values():
            field.observe(self._changed, "value")
        self.review()

    def layout(self) -> list[W.Widget]:
        """Below the card, what Slurm is asked for; then the fields of the sweep."""
        card, *others = super().layout()
        return [card, row(self.kind, *self.job.values()), *others]

    def wrong(self) -> Mapping[W.Widget, str]:
        """Fields that hold no settings, and what Slurm would not understand."""
        found = {**super().wrong(), **option_misfits(JobOptions, self.job)}
        if not found:
            try:
                job_checks.refuse_misfit(self._case, self._job_options())
            except NcclkitError as why:
                found[self.job["partition"]] = str(why)
        return found

    def begin(self, prepare: Prepare | None = None) -> None:
        """Do what the button does: submit what the fields say."""
        super().begin(prepare or self._submitted)

    def _submitted(self) -> Coroutine[Any, Any, SweepView]:
        self._was_clicked = True
        return self.prepare()

    async def prepare(self) -> SweepView:
        """The sweep of a job: of the one that waits or runs, of a new one, or of the last one."""
        mine = [job for job in submit.submitted_jobs(self._case) if job.words[:1] == ("tune",)]
        last = None
        if mine:
            last = mine[-1]
        # the state is asked of Slurm, which may take seconds
        is_over = last is None or (await asyncio.to_thread(submit.job_state, last)).over
        if self._was_clicked and is_over:
            self._was_clicked = False
            last = await asyncio.to_thread(self._submit)
        if last is None:
            return UnmeasuredSweep(f"{scheduler.refusal('a sweep', 'tune')}.")
        return await self._swept(last)

    def _submit(self) -> submit.BatchJob:
        return submit.submit(self._case, self.command(), self._job_options(), self.observe)

    async def _swept(self, job: submit.BatchJob) -> SweepView:
        """What a job measured, once it has ended; raises NcclkitError where that is nothing."""
        try:
            ended = await submit.follow(self._case, job, self.observe)
        except asyncio.CancelledError:
            # shielded, as whoever waits here is being cancelled
            await asyncio.shield(asyncio.to_thread(submit.cancel, job))
            raise
        found = tune.last_sweep(self._case, job.submitted)
        if found is not None:
            return SweepView(found)
        said = (job.complaints.strip() or job.printed.strip()).splitlines()
        why = f"see {job.folder}"
        if said:
            why = said[-1][:300]
        raise NcclkitError(f"{ended.sentence} It measured nothing: {why}")

    def command(self) -> list[str]:
        """The words of `ncclkit tune` that measure what the fields say."""
        known = {each.name for each in fields(ProbeOptions)}
        chosen = {name: getattr(self._options, name) for name in TUNED if name in known}
        words = ["tune", *split_words(self.words["settings"].value, "The settings")]
        if self.inherited.value:
            words.append("--inherited")
        sizes = self.words["sizes"].value.replace(" ", "")
        if sizes:
            words += ["--sizes", sizes]
        job = self.words["job"].value.strip()
        if job:
            words += ["--from", job]
        if self._budget:
            words += ["--budget", f"{self._budget:g}"]
        return [*words, *command_words(ProbeOptions(**chosen)), "--case", str(self._case.path)]

    def _job_options(self) -> JobOptions:
        return JobOptions(**{name: control.value for name, control in self.job.items()})
