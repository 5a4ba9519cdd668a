"""The closed loop as a form.

Check this makes the experiment of a finding, Try the fix applies its advice.  The same small job
stands before and after, side by side, with what that says of each suspect.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import ipywidgets as W

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.experiment_records import ExperimentRecord
from ncclkit.core.model import MOVES, OUTCOMES, Finding, NcclkitError
from ncclkit.core.runs import Run, records_of
from ncclkit.core.text import format_number, format_time, plural
from ncclkit.experiments import fixes
from ncclkit.views._base import View
from ncclkit.views._form import Form, wide
from ncclkit.views._page import Evidence
from ncclkit.views._html import Markup, badge, code, el, fold, join, table, escaped_text
from ncclkit.views.banner import banner_view
from ncclkit.views.cluster import login_card

SHOWN = 8
"""Suspects shown at once; more are folded."""
APART = 1.5
"""Factor from which times are drawn.

What differs less is chance on a busy machine.
"""
ENDS = {
    "done": ("✓", "succeeded", "state-done"),
    "slow": ("▲", "slower than it should be", "likely"),
    "failed": ("✕", "failed", "state-failed"),
    "deadline": ("■", "hung until its timeout", "state-failed"),
    "cancelled": ("■", "cancelled", "state-cancelled"),
    "lost": ("✕", "ended without a message", "state-failed"),
    "running": ("▶", "running", "state-running"),
    "not started": ("–", "not started", "possible"),
}
"""`Run.reason`, ``slow`` of one that warns, or what a form knows of a run → symbol, words and class
of its badge."""
MARKS = {
    "proven": ("●", "proven", "proven"),
    "supported": ("◐", "fits", "likely"),
    "refuted": ("✓", "cleared", "state-done"),
    "open": ("○", "open", "possible"),
}
"""One of `MOVES` → symbol, word and class of its badge."""
LOOKED = {"connections": "the connections", "resources": "the machine's limits"}
"""Words of `ncclkit.experiments.fixes.RANKLESS`, for people."""
WORDS: dict[str, Callable[[Any], str]] = {
    "ranks": lambda count: f"{count} rank{'s' * (count != 1)}",
    "timeout": lambda factor: f"collectives may take {factor} times as long",
    "restarts": lambda count: (
        f"the launcher may start all ranks again {count} time{'s' * (count != 1)}"
    ),
    "stages": lambda _: "a staged test: each rank alone, then every pair of ranks",
    "minimal": lambda _: "a plain live test in place of the job",
    "hosts": lambda number: f"all ranks on {number} host{'s' if number != 1 else ''}",
    "fix": lambda cause: f"the job itself, at the place that {cause} blames",
    "backend": lambda name: f"the same over {name}, without NCCL and GPUs",
    "check": lambda what: f"nothing; {LOOKED.get(what, what)} are looked at again",
}
"""Words of `ncclkit.core.runs.changed`, for people."""


def cards(known: Sequence[ExperimentRecord]) -> Markup:
    """One card for each experiment, the last one first."""
    return join(*map(_card, reversed(known)))


def _card(record: ExperimentRecord) -> Markup:
    sign, edge = _outcome(record)
    what = "Fix"
    if record.kind == "check":
        what = "Experiment"
    number = record.folder.name.partition("-")[0]
    took = el("span", f"{what} {number}, {record.seconds:.0f} s", cls="nk-dim")
    return el(
        "section",
        el("div", sign, code(record.cause), took, cls="nk-card-head"),
        el("h4", record.summary),
        el("p", record.question) if record.question not in record.summary else "",
        el("p", el("b", "What was changed: "), _changes(record.change), cls="nk-changed"),
        _sides(record),
        _bars(record.before, record.after),
        _verdicts(record.verdicts) if record.kind == "check" else "",
        cls=f"nk-card nk-edge-{edge}",
    )


def _outcome(record: ExperimentRecord) -> tuple[Markup, str]:
    """The badge of an experiment, and the class of its card's edge."""
    if record.kind == "fix":
        good = badge("✓", "it works", "state-done")
        if record.worked:
            return good, "works"
        if record.after is None:
            # the job did not show the cause without the change, so the change is not to blame
            return badge("–", "says nothing here", "none"), "none"
        return badge("✕", "it did not help", "state-failed"), "proven"
    symbol, word, cls = MARKS.get(record.verdicts.get(record.cause, "open"), MARKS["open"])
    return badge(symbol, word, cls), cls if cls in ("proven", "likely", "possible") else "works"


def _changes(change: Mapping[str, Any]) -> Markup:
    """The change as a person would make it.

    Variables are written as a shell sets them, the rest in words.
    """
    parts = []
    for name, value in change.get("env", {}).items():
        parts.append(code(f"{name}={shlex.quote(str(value))}"))
    for name in change.get("unset", ()):
        parts.append(join(code(name), " is not set"))
    for name, value in change.items():
        if name in WORDS and value:
            parts.append(escaped_text(WORDS[name](value)))
    if not parts:
        return escaped_text("nothing")
    return Markup("; ").join(parts)


def _sides(record: ExperimentRecord) -> Markup:
    """Before and after beside each other.

    One that only looked has one side.
    """
    if record.before is None and record.after is None:
        return el("p", el("b", "What came out: "), OUTCOMES.get(record.observed, "no answer"))
    before, after = record.said
    left = _side("Before", record.before, record.cause_before, before)
    return el("div", left, _side("After", record.after, record.cause_after, after), cls="nk-sides")


def _side(name: str, run: Run | None, cause: str, said: str) -> Markup:
    if run is None:
        return el("div", el("h5", name), el("p", "no run"))
    symbol, word, cls = ENDS.get(
        "slow" if run.warning else run.reason, ("•", run.reason, "possible")
    )
    if cause:
        first = join(code(cause), " ", said)
    else:
        first = escaped_text(said or "Nothing is found any more.")
    return el(
        "div",
        el("h5", name),
        el("p", badge(symbol, word, cls), " ", run.summary),
        el("p", first, cls="nk-first"),
    )


def _bars(before: Run | None, after: Run | None) -> Markup:
    """What both runs, or one of them, can be measured by, as bars of one scale."""
    if before is None or after is None:
        return Markup("")
    shown = []
    for op, kind, earlier, later in speeds(before, after):
        shown.append(_pair(f"{op}: {kind}", earlier, later, _speed))
    old = run_progress(before.folder)
    new = run_progress(after.folder)
    if old.steps is not None or new.steps is not None:
        shown.append(_pair("Steps that every rank came to", old.steps, new.steps, _steps))
    times = (
        ("Until the slowest rank began its first step", old.first, new.first),
        ("From one step to the next, median", old.step, new.step),
    )
    for what, was, is_now in times:
        # times that are nearly equal say nothing of the change
        if was and is_now and max(was, is_now) > APART * min(was, is_now):
            shown.append(_pair(what, was, is_now, _seconds))
    if shown:
        return el("div", *shown, cls="nk-bars")
    return Markup("")


def _pair(
    what: str, before: float | None, after: float | None, words: Callable[[float], str]
) -> Markup:
    # both may be 0, and then nothing has a width
    most = max(before or 0.0, after or 0.0) or 1.0
    rows = []
    for name, value in (("before", before), ("after", after)):
        bar = el(
            "span",
            "",
            cls=f"nk-bar nk-bar-{name}",
            style=f"width:{100 * (value or 0.0) / most:.1f}%",
        )
        if value is None:
            label = "none"
        else:
            label = words(value)
        rows.append(join(el("span", name), el("span", bar, cls="nk-bar-room"), el("span", label)))
    return el("figure", el("figcaption", what), el("div", *rows, cls="nk-bar-rows"))


def _speed(speed: float) -> str:
    return f"{format_number(speed)} GB/s"


def _steps(count: float) -> str:
    return plural(int(count), "step")


def _seconds(seconds: float) -> str:
    return format_time(1e6 * seconds)


def _verdicts(verdicts: Mapping[str, str]) -> Markup:
    """What it says of each suspect, the one that fits first."""
    order = list(MARKS)
    known = sorted(
        (item for item in verdicts.items() if item[1] in MARKS),
        key=lambda item: order.index(item[1]),
    )
    rows = [(code(cause), join(badge(*MARKS[move]), " ", MOVES[move])) for cause, move in known]
    return fold(
        "What it says of each suspect",
        table(("Suspect", "Verdict"), rows),
        is_open=len(rows) <= SHOWN,
    )


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How one run of a training job went, by its wire records.

    A value is None where nothing says.
    """

    steps: int | None = None
    """Steps of the rank that came least far, those before a restart included."""
    first: float | None = None
    """Seconds until the slowest rank began its first step.

    After a restart it is that of the last start.
    """
    step: float | None = None
    """Median seconds from one step to the next."""


def run_progress(folder: Path) -> RunProgress:
    """The progress of the run in `folder`.

    It is an empty one where no rank has begun a step.
    """
    begun: defaultdict[int, list[float]] = defaultdict(list)
    hello: dict[int, float] = {}
    reached: dict[int, int] = {}
    for record in _phases(folder):
        rank = record["rank"]
        time = float(record["t"])
        if record["phase"] == "hello":
            hello[rank] = time
            # torchrun may have started all ranks again
            begun[rank].clear()
        elif record["phase"] == "step":
            begun[rank].append(time)
            step = record.get("step")
            count = 0
            if isinstance(step, int):
                count = step + 1
            reached[rank] = max(reached.get(rank, 0), count)
    if not any(begun.values()):
        return RunProgress()
    gaps: list[float] = []
    waits: list[float] = []
    for rank, times in begun.items():
        gaps += [later - earlier for earlier, later in pairwise(times)]
        if times and rank in hello:
            waits.append(times[0] - hello[rank])
    usual = None
    if gaps:
        usual = median(gaps)
    fewest = min(reached.get(rank, 0) for rank in begun)
    return RunProgress(fewest, max(waits, default=None), usual)


def speeds(before: Run, after: Run) -> list[tuple[str, str, float | None, float | None]]:
    """Each collective's name and best bandwidth before and after.

    The bandwidth is ``busbw`` or ``algbw``, in GB/s.
    """
    every = (*before.measurements, *after.measurements)
    found = []
    for op in dict.fromkeys(m.op for m in every):
        # of one rank there is no busbw, and the two runs must be compared by the same
        kind = "algbw"
        if all(measurement.busbw is not None for measurement in every if measurement.op == op):
            kind = "busbw"
        earlier = _best_of(before, op, kind)
        later = _best_of(after, op, kind)
        found.append((op, kind, earlier, later))
    return found


def _best_of(run: Run, op: str, kind: str) -> float | None:
    known = []
    for m in run.measurements:
        if m.op == op:
            known.append(getattr(m, kind))
    return max(known, default=None)


def _phases(run: Path) -> Iterator[dict[str, Any]]:
    """The phases that ranks told; a run without wire records has none."""
    try:
        records = records_of(run)
    except (OSError, NcclkitError):
        return
    for record in records:
        numbered = isinstance(record.get("rank"), int) and isinstance(record.get("t"), (int, float))
        if record.get("kind") == "phase" and numbered:
            yield record


ANY = "what tells the suspects apart best"
"""The choice that leaves the experiment to the kit, and the fix to the first finding."""


class Closed(View):
    """What came of one or more experiments.

    It shows before and after side by side, and the verdict as it is now.
    """

    def __init__(self, case: Case, made: Sequence[ExperimentRecord], problem: str = "") -> None:
        self.records = tuple(made)
        """The records of what was made, the oldest first."""
        note = ""
        if made and problem:
            note = el("p", problem)
        now = ""
        if made:
            now = join(el("h5", "The verdict now"), banner_view(case).body)
        super().__init__(
            made[-1].summary if made else problem or CheckForm.IDLE, join(note, cards(made), now)
        )


class CheckForm(Form):
    """The form that tells the suspects apart by experiments, and then tries the fix.

    Nothing runs until it is asked to.  ``await form.run()`` does all of it, as
    `ncclkit.experiments.fixes.close` does: experiments until the first cause is proven or nothing
    is left to ask, then its fix.  `cause` is whose experiment the buttons make (empty: the one that
    decides most); `python` the training interpreter; `deadline` the seconds for each run.
    """

    IDLE = "No experiment was made"
    ASK = "There is nothing to check: nothing was found"
    BUSY = "Trying …"
    CANCELLED = "Cancelled; the verdicts stay as they were"

    def __init__(
        self, case: Case, cause: str = "", python: str = "", deadline: float = 120.0
    ) -> None:
        self._case = case
        # with facts of Slurm the notebook shows its login node already
        if case.facts_of("scheduler."):
            self._card = []
        else:
            self._card = login_card(case, "diagnose --check")
        self._how: dict[str, Any] = {
            "python": python or None,
            "deadline": deadline,
            "on_record": self.observe,
        }
        # the suspects to choose from are those of a verdict
        if not case.findings:
            diagnose(case)
        self.suspect = W.Dropdown(description="Suspect", options=self._suspects(), layout=wide())
        check = W.Button(description="Check this", icon="flask", button_style="primary")
        self.fix = W.Button(description="Try the fix", icon="wrench")
        self.fix.on_click(lambda _button: self._call_on_main_loop(partial(self.begin, self._fix)))
        super().__init__("", [self.suspect], check, self.fix)
        if cause and cause not in dict(self.suspect.options).values():
            raise NcclkitError(f"There is nothing to check: {cause} was not found here.")
        self.suspect.value = cause

    def layout(self) -> list[W.Widget]:
        """The fields, and above them what runs on a login node.

        That stands there where the notebook has not said so.
        """
        return [*self._card, *super().layout()]

    @property
    def summary(self) -> str:
        """What would be asked, or what came out."""
        if self._answer is not None:
            return self._answer.summary
        found = _found(self._case)
        asked = ""
        for f in found:
            if f.next and f.next.expects:
                asked = f.next.question
                break
        if asked:
            return f"Next experiment: {asked}"
        if found:
            return f"{found[0].cause} is {found[0].strength}; what is advised can be tried"
        return self.ASK

    async def run(self, go: bool = True) -> View:
        """Make experiments until the first cause is proven, then its fix.

        Where `go` is False nothing is done.
        """
        if not go:
            return self.nothing_asked()
        closed: View = await self._act(self._close)
        return closed

    def asks(self) -> bool:
        """Whether anything was found."""
        return bool(_found(self._case))

    def blocked(self) -> Mapping[W.Button, str]:
        """An experiment that cannot be made, and a fix that needs a person.

        There is none of it, or it was made.
        """
        if not self.asks():
            return dict.fromkeys((self.start, self.fix), self.ASK)
        reasons = fixes.unable(self._case, self.suspect.value)
        why_of_button = {}
        for button, why in zip((self.start, self.fix), reasons, strict=True):
            if why:
                why_of_button[button] = why
        return why_of_button

    async def prepare(self) -> View:
        """The experiment of the suspect that is chosen now."""
        return self._closed([await fixes.check(self._case, self.suspect.value, **self._how)])

    async def _close(self) -> View:
        """Do all of it.

        What a machine cannot do is said, and is no failure of the notebook.
        """
        before = len(fixes.experiments(self._case))
        try:
            await fixes.close(self._case, **self._how)
        except NcclkitError as error:
            # after Cancel the cell has to end
            if self._cancel_requested:
                raise
            return self._closed(fixes.experiments(self._case)[before:], str(error))
        return self._closed(fixes.experiments(self._case)[before:])

    def rests_on(self, form: Form) -> bool:
        """Whether the other form adds to the same case: then other causes may be found."""
        return self._case in form.sources

    def take_evidence(self, evidence: Evidence) -> None:
        """Offer the suspects of the newest verdict."""
        evidence.verdict(self._case)
        self.suspect.options = self._suspects()
        self.review()

    async def _fix(self) -> View:
        return self._closed([await fixes.fix(self._case, self.suspect.value, **self._how)])

    def _closed(self, made: Sequence[ExperimentRecord], problem: str = "") -> Closed:
        # verdicts have changed, so others may be suspects now
        self.suspect.options = self._suspects()
        return Closed(self._case, made, problem)

    def _suspects(self) -> list[tuple[str, str]]:
        return [(ANY, ""), *((f"{f.cause} ({f.strength})", f.cause) for f in _found(self._case))]


def _found(case: Case) -> list[Finding]:
    return [finding for finding in case.findings if finding.verdict == "found"]
