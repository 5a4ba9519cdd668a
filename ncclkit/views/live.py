"""The live test as a form.

Its controls come from `ProbeOptions`, its progress is a bar, a curve and a log.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ipywidgets as W

from ncclkit.core import bandwidth
from ncclkit.core.case import Case
from ncclkit.core.model import Measurement, NcclkitError
from ncclkit.core.runs import Plan, Run
from ncclkit.core.text import format_bytes, plural
from ncclkit.live import job_checks, probe, scheduler, submit
from ncclkit.live.launch import launchers
from ncclkit.live.options import OPTIONS, JobOptions, ProbeOptions, command_words, declared
from ncclkit.views import plots
from ncclkit.views._base import outputs, page_frame
from ncclkit.views._form import Form, Prepare, complaints, log_lines, row
from ncclkit.views._html import Markup, badge, code, el, fold, join, pre, table
from ncclkit.views.experiments import ENDS
from ncclkit.views.kind_choice import KindChoice
from ncclkit.views.runs import judged, measurement_table

SIZES = tuple(4**power for power in range(5, 18))
"""1 KiB to 16 GiB in factors of four."""

LABEL_WIDTH = "11em"
"""The room of a label: that of "Environment variables", the longest."""

PLACEHOLDERS = {
    "python": "this one",
    "env": "NCCL_DEBUG=INFO",
    "setup": "module load cuda\nconda activate train",
    "container": "apptainer exec --nv IMAGE.sif",
    "srun_options": "--container-image=IMAGE",
    "sbatch_options": "--comment=test",
    "constraint": "h100&ib",
}
"""What a field shows while it is empty."""

Start = Callable[[ProbeOptions, Callable[[dict[str, Any]], None]], Coroutine[Any, Any, Any]]
Expect = Callable[[Measurement, ProbeOptions], tuple[float | None, str]]


def live_test(case: Case, job: str = "", **options: Any) -> LiveTest:
    """The form of the live test, filled in.

    ``run = await live.run()`` runs what it says.  `job` says, on a login node, where the test runs:
    options of `ncclkit submit` such as ``-N 2 -p gpu``, or ``here``.  `options` are those of
    `ncclkit.live.options.ProbeOptions`, such as ``python``, ``ranks``, ``max_bytes``, ``timeout``,
    ``env`` and ``stages``.  Raises NcclkitError for values that do not fit.
    """
    if not isinstance(job, str):
        raise NcclkitError(f"job must be text such as '-N 2 -p gpu', but it is {job!r}.")

    async def start(asked: ProbeOptions, on_record: Callable[[dict[str, Any]], None]) -> Any:
        return await probe.probe(case, asked, on_record)

    def expect(m: Measurement, asked: ProbeOptions) -> tuple[float | None, str]:
        sharing = asked.simulate_hosts
        hosts = max(1, launchers.node_count()) * sharing
        found = bandwidth.expect(m.op, m.backend, m.ranks, case.facts, hosts, sharing)
        return judged(found)

    is_here = job.strip() == "here"
    # on a login node nothing heavy runs unasked
    if not is_here and scheduler.is_login_node():
        return BatchTest(case, job, ProbeOptions(**options), expect)
    return LiveTest(ProbeOptions(**options, here=is_here), start, expect)


class LiveTest(Form):
    """The form that `live_test` returns."""

    def __init__(self, options: ProbeOptions, start: Start, expect: Expect) -> None:
        """Fill the form with `options`.

        `start(options, on_record)` is the coroutine function that runs the test and returns a
        `Run`; `expect(measurement, options)`, asked once a run, gives the busbw in GB/s that is
        expected of such a run, or None, and the words that `plots.bandwidth` takes.
        """
        self._start = start
        self._expect = expect
        self.controls = option_controls(options)
        self._here = options.here
        self.bar = W.IntProgress(min=0, max=1000, layout=W.Layout(width="auto", flex="1 1 8em"))
        self.log = W.HTML()
        self.measurements: list[Measurement] = []
        self.state = ""
        self._outcome = ""
        self._limit: tuple[float | None, str] = (None, "")
        self._drawn = -1
        self._slow = False
        run = W.Button(description="Run", icon="play", button_style="primary")
        super().__init__("", list(self.controls.values()), run)

    def layout(self) -> list[W.Widget]:
        """Controls, buttons with the bar beside them, what is said, the curve, and the log."""
        buttons = row(*self._buttons, self.cancel, self.bar)
        return [row(*self._fields), buttons, self.notice, self.result, self.drawing, self.log]

    @property
    def options(self) -> ProbeOptions:
        """What the controls say now; NcclkitError where something is wrong."""
        return ProbeOptions(**self._raw(), here=self._here)

    @property
    def summary(self) -> str:
        """What the form will do, or what came of it."""
        if self.state:
            _, word, _ = self._badge()
            return f"Live test {word}: {self._outcome or self.progress.words()}"
        raw = self._raw()
        ranks = "one rank per GPU, or two on the CPU"
        if raw["ranks"]:
            ranks = plural(raw["ranks"], "rank")
        return f"Live test with {ranks}, ended after {raw['timeout']:g} s at the latest"

    def static(self) -> Markup:
        """The chosen values, the variables that will be set, and what came of a run."""
        raw = self._raw()
        env = raw.pop("env")
        rows = [(OPTIONS[name].label, code(_words(name, chosen))) for name, chosen in raw.items()]
        setting = (
            OPTIONS["env"].label,
            pre(env) if env.strip() else "none; plan.json of the run lists what was set",
        )
        return page_frame(
            self.summary, table(("Value", "Chosen"), [*rows, setting]), self._result()
        )

    def prepare(self) -> Coroutine[Any, Any, Any]:
        """The test as the controls say."""
        self._running = self.options
        return self._start(self._running, self.observe)

    def observe(self, record: dict[str, Any]) -> None:
        """Take one wire record."""
        super().observe(record)
        # once for a run: each expectation reads all facts of the case
        if self.progress.measurements and not self.measurements:
            self._limit = self._expect(self.progress.measurements[0], self._running)
        self.measurements = self.progress.measurements

    def started(self) -> None:
        """Clear what the last run left."""
        self.measurements = []
        self._limit = (None, "")
        self._slow = False
        self._enter("running", "")

    def finished(self, outcome: Any) -> None:
        """Show the run.

        It may also have failed, or been stopped, and still be a run.
        """
        # a run that was stopped returns no measurements, but has sent some
        self.measurements = list(outcome.measurements) or self.progress.measurements
        self._slow = bool(outcome.warning)
        if outcome.expectation is not None:  # which a busy host leaves without a reference
            self._limit = judged(outcome.expectation)
        self._enter(outcome.reason, outcome.summary)

    def wrong(self) -> Mapping[W.Widget, str]:
        """Controls whose value no run can be made of.

        An interpreter that is not there is one of them.
        """
        found = option_misfits(ProbeOptions, self.controls)
        python = self.controls["python"]
        program = python.value.strip()
        # on nodes the program need not be on this host
        if program and not launchers.node_count() and not shutil.which(program):
            found.setdefault(python, f"There is no program {program} on this host.")
        return found

    def failed(self, why: str, cancelled: bool) -> None:
        """Show why there is no run.

        A curve stays only where this very run measured it.
        """
        if not self.measurements:
            self.drawing.outputs = ()
        if cancelled:
            self._enter("cancelled", f"{self.progress.words()} when it was cancelled")
        else:
            self._enter("failed", why)

    def stopped(self) -> str:
        """What Cancel raises in the cell that awaits."""
        return f"The live test was cancelled ({self.progress.words()}); run it again."

    def draw(self) -> None:
        """Draw one state: bar, words, curve where there are new numbers, log and variables."""
        rows = self.measurements
        if rows and len(rows) != self._drawn:
            self.drawing.remove_class("nk-old")
            self.drawing.outputs = outputs(plots.bandwidth(rows, *self._limit))
        self._drawn = len(rows)
        share = self.progress.share()
        # with fewer sizes than planned it has ended all the same
        if self.state == "done":
            share = 1.0
        self.bar.value = round(1000 * share)
        self._show(el("div", self._status(), cls="nk"))
        self.log.value = el("div", log_lines(self.progress), self._variables(), cls="nk")

    def _enter(self, state: str, outcome: str) -> None:
        self.state = state
        self._outcome = outcome
        # so that the next drawing draws the curve, whatever was drawn before
        self._drawn = -1
        self.draw()

    def _raw(self) -> dict[str, Any]:
        """The values as the controls hold them, unchecked."""
        return {name: control.value for name, control in self.controls.items()}

    def _status(self) -> Markup:
        says = self._outcome or self.progress.words()
        return join(el("p", badge(*self._badge()), " ", says), self.progress.lights())

    def _badge(self) -> tuple[str, str, str]:
        """How the run stands; one that succeeded may be slower than it should be."""
        return _end("slow" if self.state == "done" and self._slow else self.state)

    def _result(self) -> Markup:
        if not self.state:
            return Markup("")
        return join(
            self._status(), measurement_table(self.measurements, self._limit[0]), self._variables()
        )

    def _variables(self) -> Markup:
        """Every variable that this run set for its ranks, the form's own among them."""
        env = self.progress.env
        return fold(
            f"{plural(len(env), 'variable')} set for the ranks", pre(lines(env)) if env else ""
        )


class BatchTest(LiveTest):
    """The live test on a login node, as a batch job.

    **Submit** sends it to the nodes that the form names.  ``await form.run()`` follows the job that
    this case has in the queue, shows the last one that has ended, or submits one where the
    notebook's parameter ``job`` says so.
    """

    def __init__(self, case: Case, job: str, options: ProbeOptions, expect: Expect) -> None:
        """Fill the form with the options of the test and of the job.

        Those of the job are as `ncclkit submit` takes them.
        """
        self._case, self._asked_for = case, bool(job.strip())
        self.job = option_controls(submit.parse_options(job), scheduler.choices(case))
        self.kind = KindChoice(case, self.job, LABEL_WIDTH).field
        self.script = W.HTML()
        super().__init__(options, self._follow, expect)
        self.start.description = "Submit"
        self.start.icon = "paper-plane"
        # after the layout, which puts the fields of the job into a row of their own
        self._fields = (*self._fields, self.kind, *self.job.values())
        for field in self.job.values():
            field.observe(self._changed, "value")
        self.review()

    def layout(self) -> list[W.Widget]:
        """What Slurm is asked for, and the text that it gets.

        It stands above what the test is asked for.
        """
        title = el("div", el("p", scheduler.scheduler_sentence(self._case), cls="nk-say"), cls="nk")
        return [W.HTML(title), row(self.kind, *self.job.values()), self.script, *super().layout()]

    def review(self) -> None:
        """Show the text that sbatch would get, too."""
        super().review()
        try:
            text = submit.script(self._case, self._folder(), self._words(), self._job_options())
        except NcclkitError:
            return  # the field that is wrong is marked
        self.script.value = el("div", fold("The text that sbatch gets", pre(text)), cls="nk")

    def wrong(self) -> Mapping[W.Widget, str]:
        """Fields of the job that Slurm would not understand, and those of the test."""
        # it is on the nodes
        found = {}
        for f, why in super().wrong().items():
            if f is not self.controls["python"]:
                found[f] = why
        found |= option_misfits(JobOptions, self.job)
        if not found:
            try:
                job_checks.refuse_misfit(self._case, self._job_options())
            except NcclkitError as why:
                found[self.job["partition"]] = str(why)
        return found

    def begin(self, prepare: Prepare | None = None) -> None:
        """Do what the button does: submit what the fields say."""
        super().begin(prepare or self._submitted)

    def _submitted(self) -> Coroutine[Any, Any, Any]:
        self._asked_for = True
        return self.prepare()

    def _job_options(self) -> JobOptions:
        return JobOptions(**{name: control.value for name, control in self.job.items()})

    def _words(self) -> list[str]:
        return ["probe", *command_words(self.options), "--case", str(self._case.path)]

    def _folder(self) -> Path:
        return (self._case.path or Path()) / "jobs" / "N-probe"

    async def _follow(
        self, asked: ProbeOptions, on_record: Callable[[dict[str, Any]], None]
    ) -> Run:
        """The run of a job.

        It is that of the job that waits or runs, else of a new one, else of the last one.
        """
        mine = [job for job in submit.submitted_jobs(self._case) if job.words[:1] == ("probe",)]
        last = None
        if mine:
            last = mine[-1]
        # the state is asked of Slurm, which may take seconds
        is_over = last is None or (await asyncio.to_thread(submit.job_state, last)).over
        if self._asked_for and is_over:
            self._asked_for = False  # once: to run the cell again shows what came of it
            return await submit.live_test(self._case, asked, self._job_options(), on_record)
        if last is not None:
            return await submit.watch(self._case, last, on_record)
        # no job was submitted, and none may be without being asked for
        plan = Plan("all_reduce", (), 0, "", asked.python, asked.timeout)
        why = scheduler.refusal("the live test", "probe")
        return Run(plan, self._case.path or Path(), "not started", 0.0, problem=f"{why}.")


def _end(state: str) -> tuple[str, str, str]:
    return ENDS.get(state, ("•", state, "possible"))


def option_misfits(
    kind: type[ProbeOptions | JobOptions], controls: Mapping[str, W.Widget]
) -> dict[W.Widget, str]:
    """Controls whose value alone no options can be made of, with the reason."""
    # each alone, with the others as they are by default, so that one field is blamed
    return complaints({one: partial(kind, **{name: one.value}) for name, one in controls.items()})


def lines(env: Mapping[str, str]) -> str:
    """Variables as a shell reads them, one a line.

    It is the reverse of `live.options.parse_variables`.
    """
    return "\n".join(f"{name}={shlex.quote(chosen)}" for name, chosen in env.items())


def sizes(chosen: int) -> list[tuple[str, int]]:
    """Labels and bytes of the list of sizes, with `chosen` among them.

    0 lets the host decide.
    """
    rows = []
    for count in sorted({0, *SIZES, chosen}):
        rows.append((format_bytes(count) if count else "auto", count))
    return rows


def option_controls(
    options: ProbeOptions | JobOptions, known: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> dict[str, W.Widget]:
    """One control for each option, of the kind that its value asks for.

    `known` is option → values that are proposed.
    """
    made = {}
    for name, option in declared(options).items():
        value = getattr(options, name)
        kind, how = _control(name, value, option.choices)
        if known.get(name):
            kind = W.Combobox
            how = how | {"options": known[name], "ensure_option": False}
        if option.bounds != (0, 0) and name != "max_bytes":
            how |= dict(zip(("min", "max"), option.bounds, strict=True))
        made[name] = kind(
            value=lines(value) if name == "env" else value,
            description=option.label,
            style={"description_width": LABEL_WIDTH},
            layout=W.Layout(width="auto", flex="1 1 18em", max_width="38em"),
            **how,
        )
    return made


def _control(name: str, value: Any, choices: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    if name == "max_bytes":
        return W.Dropdown, {"options": sizes(value)}
    if choices:
        # a value that came from a parameter may not be among those that are proposed
        return W.Dropdown, {"options": [*dict.fromkeys((*choices, value))]}
    if isinstance(value, bool):
        return W.Checkbox, {"indent": False}
    # half a second of a deadline is a number, too
    if isinstance(value, int) and name != "timeout":
        return W.BoundedIntText, {}
    if isinstance(value, (int, float)):
        return W.BoundedFloatText, {}
    if name in ("env", "setup"):
        return W.Textarea, {"rows": 3, "placeholder": PLACEHOLDERS[name]}
    return W.Text, {"placeholder": PLACEHOLDERS.get(name, "default")}


def _words(name: str, chosen: Any) -> str:
    """A value of the form in words: sizes with their unit, what is left open as ``auto``."""
    if name == "max_bytes":
        if chosen:
            return format_bytes(chosen)
        return "auto"
    return str(chosen or ("this one" if name == "python" else "auto"))
