"""The form behind every button.

It has fields, buttons that start a coroutine each, Cancel, progress, and what came out.

JupyterLab delivers a click on a thread of ipykernel's own (a subshell), so
that Cancel works while a cell awaits.  A handler therefore never touches a
task: it asks the kernel's main loop to act.

What is known of a running live test, record by record, is a plain state and its words.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import ipywidgets as W

from ncclkit.core.case import Case
from ncclkit.core.model import Measurement, NcclkitError, from_dict
from ncclkit.core.text import format_bytes, numbered, plural, ranges, ranks, rate
from ncclkit.views import _page
from ncclkit.views._base import PLOTLY, Drawn, View, main_loop, outputs, page_frame, style
from ncclkit.views._html import Markup, badge, el, fold, join, pre

PHASES = {"waiting": "·", "hello": "○", "simulate": "○", "import": "◔", "init": "◑"}
PHASES |= {
    "alone": "◑",
    "pairs": "◒",
    "groups": "◒",
    "step": "◕",
    "size": "◕",
    "leave": "◕",
    "done": "✓",
    "error": "✕",
}
"""Phases of the wire, in order, with the symbol of each light."""
NAMES = {"hello": "starting", "simulate": "starting", "import": "importing torch"}
NAMES |= {"init": "init_process_group", "leave": "destroy_process_group"}
"""How a phase is shown where its name on the wire says little."""

SINGLE = 32
"""Up to here each rank has a light of its own; beyond, ranks of one stage share one."""

LOG_LINES = 30
MOST = 1 << 16
"""Ranks that a record can claim; a torn number must not fill the memory."""


class Progress:
    """The state of a running test, from its wire records.

    It is the share done, words, lights, measurements, variables and log.
    """

    def __init__(self, ranks: int) -> None:
        self.phases = dict.fromkeys(range(ranks), "waiting")
        self.planned = 0
        self.op = ""
        self.now: int | None = None
        self.step: int | None = None
        self.bisection_note = ""
        self.job = ""
        self.pairs = 0
        self.pair = ""
        self.env: dict[str, str] = {}
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self.errors: dict[int, str] = {}
        self._measured: dict[tuple[str, int], Measurement] = {}

    @property
    def measurements(self) -> list[Measurement]:
        """What was measured so far, smallest size first."""
        return [self._measured[key] for key in sorted(self._measured)]

    def take(self, record: Mapping[str, Any]) -> None:
        """Follow one record.

        A record that cannot be read is kept as a line of the log.
        """
        handle = {
            "phase": self._phase,
            "measure": self._measure,
            "plan": self._plan,
            "stage": self._stage,
            "job": self._job,
            "stage.pair": self._pair,
            "log": self._line,
            "problem": self._line,
            "end": self._line,
        }.get(str(record.get("kind")))
        if handle is None:
            return
        # records come from other hosts too, and a form must survive each of them
        try:
            handle(record)
        except (TypeError, ValueError, KeyError, ArithmeticError) as error:
            self.log.append(
                f"a {record.get('kind')} record could not be read ({type(error).__name__}: {error})"
            )

    def share(self) -> float:
        """Part of the planned sizes that is measured, 0 to 1."""
        if self.planned:
            return min(1.0, len(self._measured) / self.planned)
        return 0.0

    def words(self) -> str:
        """One line: what is done, what is under way, who is behind."""
        if self.bisection_note:
            return self.bisection_note
        if self.errors:
            rank, error = next(iter(self.errors.items()))
            return f"Rank {rank} failed: {error.splitlines()[0] if error else 'no message'}"
        if not self._measured and self.now is None and self.pairs:
            return (
                f"Staged test: {plural(self.pairs, 'pair')} measured, last"
                f" {self.pair}{self._behind()}"
            )
        if not self._measured and self.now is None:
            if self.job and not self.phases:
                return self.job
            if self.step is None:
                doing = "Starting"
            else:
                doing = f"Step {self.step} on"
            if self.phases:
                return f"{doing} {plural(len(self.phases), 'rank')}{self._behind()}"
            return "Planning"
        count = len(self._measured)
        if self.planned:
            done = f"{count} of {plural(self.planned, 'size')}"
        else:
            done = plural(count, "size")
        doing = ""
        if self.now is not None and self.share() < 1:
            doing = f", now {self.op} {format_bytes(self.now)}"
        return f"{done} measured{doing}{self._behind()}"

    def lights(self) -> Markup:
        """One light per rank: symbol and word.

        Where there are many ranks it is one per stage.
        """
        shown = []
        for rank, stage in sorted(self.phases.items()):
            shown.append((f"{rank} {NAMES.get(stage, stage)}", stage))
        if len(shown) > SINGLE:
            counts = Counter(self.phases.values())
            counted = (
                (stage, f"{NAMES.get(stage, stage)}: {count:,}") for stage, count in counts.items()
            )
            shown = []
            for stage, words in counted:
                shown.append((f"{words}{self._named(stage, counts[stage])}", stage))
        lights = (badge(PHASES.get(stage, "•"), words, f"stage-{stage}") for words, stage in shown)
        if shown:
            return el("p", *lights, cls="nk-lights")
        return Markup("")

    def _named(self, stage: str, count: int) -> str:
        if count <= 4:
            return f" (rank {ranges(r for r, s in self.phases.items() if s == stage)})"
        return ""

    def _behind(self) -> str:
        order = {stage: place for place, stage in enumerate(PHASES)}
        places = {rank: order.get(stage, 0) for rank, stage in self.phases.items()}
        # one stage, or none yet: nobody is behind
        if len(set(places.values())) < 2:
            return ""
        least = min(places.values())
        late = [rank for rank, place in places.items() if place == least]
        # where most are late, the others are ahead
        if len(late) * 2 > len(self.phases):
            return ""
        stage = self.phases[late[0]]
        how = "only"
        if stage == "waiting":
            how = "still"
        return f"; {numbered('rank', late)} {how} at “{NAMES.get(stage, stage)}”"

    def _phase(self, record: Mapping[str, Any]) -> None:
        rank = int(record["rank"])
        phase = str(record["phase"])
        self.phases[rank] = phase
        if phase == "size":
            self.now, self.op = int(record["bytes"]), str(record.get("op", ""))
        if phase == "step":
            # ranks report in any order, and the furthest stands for the run
            self.step = max(self.step or 0, int(record.get("step", 0)))
        if phase == "error":
            self.errors[rank] = str(record.get("error", ""))

    def _stage(self, record: Mapping[str, Any]) -> None:
        """Note that the run broke off.

        It is narrowed down who is at fault.
        """
        self.bisection_note = str(record["say"])

    def _job(self, record: Mapping[str, Any]) -> None:
        """The batch job that the run is part of."""
        self.job = str(record["say"])
        self.log.append(self.job)

    def _pair(self, record: Mapping[str, Any]) -> None:
        self.pairs += 1
        ends = int(record["rank"]), int(record["peer"])
        self.pair = f"{ranks(ends)} at {rate(float(record['bandwidth']))}"

    def _plan(self, record: Mapping[str, Any]) -> None:
        ops = max(1, len(record.get("ops", ())))
        self.planned = len(record["sizes"]) * ops
        count = min(int(record.get("ranks", 0)), MOST)
        waiting = dict.fromkeys(range(count), "waiting")
        # a rank that has told its phase already keeps it
        self.phases = waiting | self.phases
        env = dict(record.get("env", {}))
        self.env = {str(name): str(value) for name, value in env.items()}

    def _measure(self, record: Mapping[str, Any]) -> None:
        time = float(record["time_us"])
        count = int(record["bytes"])
        measured = from_dict(
            Measurement, {"hosts": 1} | dict(record) | {"bytes": count, "time_us": time}
        )
        self._measured[str(record["op"]), count] = measured

    def _line(self, record: Mapping[str, Any]) -> None:
        # a line may be megabytes long, and each drawing sends all that are kept
        self.log.append(str(record.get("line") or record.get("say") or "")[:2000])


Prepare = Callable[[], Coroutine[Any, Any, Any]]
REDRAW = 0.4
"""Seconds between two drawings.

Records may come by the thousand, and a figure costs the browser a tenth of one.
"""


class Idle(View):
    """What a cell gets that awaits a form of which nothing was asked.

    A report leaves it out.
    """

    def static(self) -> Markup:
        """The sentence that says so."""
        return el("div", super().static(), cls="nk-idle")


class Form(View, ABC):
    """A form that one cell shows and the next awaits.

    ``await form.run()`` does what its first button does.  A subclass says what that is.
    """

    IDLE = ""
    """What `run` says when the fields name nothing."""
    ASK = ""
    """What the button says then."""
    BUSY = ""
    CANCELLED = ""
    brings_evidence = True
    """Whether a run makes what was drawn of the same case before older than the newest evidence."""

    def __init__(
        self, summary: str, fields: Sequence[W.Widget], start: W.Button, *more: W.Button
    ) -> None:
        """Lay out `fields`, the button `start` and those that the subclass binds itself."""
        super().__init__(summary, Markup(""))
        self.start = start
        self.cancel = W.Button(description="Cancel", icon="stop", disabled=True)
        self.notice = W.HTML()
        self.result = W.HTML()
        self.drawing = W.Output(layout=W.Layout(width="100%"))
        self.progress = Progress(0)
        self._fields = tuple(fields)
        self._buttons = (start, *more)
        self._loop = main_loop()
        self._task: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancel_requested = False
        self._answer: View | None = None
        self.sources: tuple[Case, ...] = ()
        """The cases that a run adds to; the door `nk.form` fills it in."""
        self.handed_out: list[Any] = []
        """What came out of each run, the newest last."""
        self._displayed = False
        self._line = W.HTML()
        self._marked: dict[W.Widget, str] = {}
        start.on_click(lambda _button: self._call_on_main_loop(self.begin))
        self.cancel.on_click(lambda _button: self._call_on_main_loop(self.stop))
        self._box = W.VBox([W.HTML(style()), *self.layout()], layout=W.Layout(width="100%"))
        self._show(page_frame(self.summary))
        for field in self._fields:
            field.observe(self._changed, "value")
        self.review()

    def layout(self) -> list[W.Widget]:
        """What the form shows, top down."""
        return [
            row(*self._fields, *self._buttons, self.cancel),
            self.notice,
            self.result,
            self.drawing,
        ]

    def wrong(self) -> Mapping[W.Widget, str]:
        """Field → why nobody can mean what it holds.

        It looks at this host only, and never waits.
        """
        return {}

    def blocked(self) -> Mapping[W.Button, str]:
        """Button → why it can do nothing now, where no field is wrong."""
        if self.asks():
            return {}
        return {self.start: self.ASK}

    def review(self) -> None:
        """Mark wrong fields, disable useless buttons, and say why.

        Useless is a button that can do nothing.
        """
        wrong = self.wrong()
        try:
            blocked = {self.start: next(iter(wrong.values()))} if wrong else self.blocked()
        except NcclkitError as error:
            blocked = {self.start: str(error)}
        for field in self._fields:
            why = wrong.get(field) or self._marked.get(field, "")
            (field.add_class if why else field.remove_class)("nk-wrong")
            field.tooltip = why or None
        for button in self._buttons:
            button.disabled, button.tooltip = button in blocked, blocked.get(button) or None
        if self._answer is None:
            shown = ""
        else:
            shown = self._answer.summary
        # what the answer says already is not said twice
        said = [why for why in (*wrong.values(), *self._marked.values()) if why != shown]
        if said:
            self._refuse("; ".join(dict.fromkeys(said)))
        else:
            self.notice.value = _dim(dict.fromkeys(blocked.values()))

    def mark(self, field: W.Widget, why: str) -> None:
        """Mark a field whose value could not be resolved, until it is changed."""
        self._marked[field] = why

    def asks(self) -> bool:
        """Whether the fields name anything.

        Raises NcclkitError for what nobody can mean.
        """
        return True

    @abstractmethod
    def prepare(self) -> Coroutine[Any, Any, Any]:
        """The coroutine of what the fields ask for.

        Raises NcclkitError for what cannot be done.
        """

    def widget(self) -> W.Widget:
        """The fields, the buttons and what came out."""
        # a form may be made where no loop runs yet
        self._loop = main_loop() or self._loop
        self._displayed = True
        return self._box

    def static(self) -> Markup:
        """The static face: what came out.

        A report leaves out a form that nobody used.
        """
        if self._answer is None:
            return el("div", super().static(), cls="nk-idle")
        return self._answer.static()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        drawn = {}
        if isinstance(self._answer, Drawn):
            drawn = self._answer._repr_mimebundle_()
        figure = {}
        # of the answer only the figure: its words stand in the static face already
        for kind, shown in drawn.items():
            if kind == PLOTLY:
                figure[kind] = shown
        return super()._repr_mimebundle_(include, exclude) | figure

    @property
    def newest_answer(self) -> View | None:
        """What came out last, by a click or a cell.

        It is None where nothing did.
        """
        return self._answer

    @property
    def running(self) -> bool:
        """Whether it is at work."""
        return self._task is not None and not self._task.done()

    async def run(self) -> Any:
        """Act now, and return what came out.

        Where the fields name nothing, nothing is done.  Raises NcclkitError where it cannot be
        done, while it is running already, and after Cancel.
        """
        return await self._act(self.prepare)

    def begin(self, prepare: Prepare | None = None) -> None:
        """Do what a button does, on the kernel's main loop.

        Its errors stand in the form.
        """
        if self._anything_to_do():
            asyncio.ensure_future(self._act(prepare or self.prepare)).add_done_callback(_retrieved)

    def stop(self) -> None:
        """Do what the Cancel button does, on the kernel's main loop.

        Without a run it does nothing.
        """
        if self._task is not None:
            # by this an Interrupt, which cancels the task as well, is told apart in `_act`
            self._cancel_requested = True
            self._task.cancel()

    def observe(self, record: dict[str, Any]) -> None:
        """Take one wire record of what runs.

        It is drawn soon, once for all that come until then.
        """
        self.progress.take(record)
        if self._timer is None and self.running:
            self._timer = asyncio.get_running_loop().call_later(REDRAW, self._draw)

    def draw(self) -> None:
        """Show the state of what runs."""
        self._show(page_frame(self.BUSY, el("p", self.progress.words()), trail(self.progress)))

    def started(self) -> None:
        """Show that it begins."""
        self._show(page_frame(self.BUSY))

    def finished(self, outcome: Any) -> None:
        """Show what came out."""
        self._answer = outcome
        self._show(outcome.static())
        figure = None
        if isinstance(outcome, Drawn):
            figure = outcome.figure
        if figure is None:
            self.drawing.outputs = ()
        else:
            self.drawing.outputs = outputs(figure)
        self._hand_out(outcome)

    def failed(self, why: str, cancelled: bool) -> None:
        """Show why nothing came out.

        What came out before is gone.
        """
        self._answer = View(self.CANCELLED if cancelled else why, Markup(""))
        self.drawing.outputs = ()
        self._show(self._answer.static())
        self._line.value = _short_line(self._answer.summary)

    def rests_on(self, form: Form) -> bool:
        """Whether a run of another form makes what this one shows old."""
        return False

    def take_evidence(self, evidence: _page.Evidence) -> None:
        """Look again at what this form rests on, as another one has brought newer evidence."""
        self.review()

    def grow_old(self, why: str) -> None:
        """Show in grey what came out, and why; a form that shows nothing stays as it is."""
        if self._answer is None:
            return
        self._answer.older = why
        self._refuse(why)
        for shown in self._shown:
            shown.add_class("nk-old")

    @property
    def _shown(self) -> tuple[W.DOMWidget, ...]:
        """What holds an answer, here and in the cell that awaited it."""
        return self.result, self.drawing, self._line

    def stopped(self) -> str:
        """What Cancel raises in the cell that awaits."""
        return f"{self.CANCELLED}."

    async def _act(self, prepare: Prepare) -> Any:
        try:
            if self.running:
                raise NcclkitError(
                    "This form is already running; wait for it, or press Cancel first."
                )
            if not self.asks():
                return self.nothing_asked()
            work = prepare()
        except NcclkitError as error:
            self._refuse(str(error))
            raise
        self._cancel_requested, self.progress, self._answer = False, Progress(0), None
        runs_before = _page.run_count(self)
        self.result.remove_class("nk-old")
        # the old curve stays, in grey, until there is a new one
        self.drawing.add_class("nk-old")
        self._lock(True)
        _page.began(self)
        self._task = asyncio.ensure_future(work)
        self.started()
        try:
            outcome = await self._task
        except asyncio.CancelledError:
            self._end(lambda: self.failed("", cancelled=True))
            _page.failed(self, runs_before)
            # the caller itself is being stopped (Interrupt): let it stop
            if not self._cancel_requested:
                raise
            raise NcclkitError(self.stopped()) from None
        except Exception as error:
            if isinstance(error, NcclkitError):
                kind = ""
            else:
                kind = f"{type(error).__name__}: "
            why = f"{kind}{error}"
            self._end(lambda: self.failed(why, cancelled=False))
            _page.failed(self, runs_before)
            raise
        self._end(lambda: self.finished(outcome))
        _page.brought(self, outcome, runs_before)
        self.handed_out.append(outcome)
        return outcome

    def nothing_asked(self) -> View:
        """What awaits the form gets where nothing was asked."""
        nothing = Idle(self.IDLE, Markup(""))
        self._hand_out(nothing)
        return nothing

    def _hand_out(self, outcome: View) -> None:
        """Prepare what came out for the cell that awaits it.

        Under a form that is on the page a line is enough.  All cells share it, so it is never older
        than what the form shows.
        """
        outcome.form = self
        self._line.value = _short_line(outcome.summary)
        if self._displayed:
            outcome.short_widget = self._line

    def _end(self, show: Callable[[], None]) -> None:
        """Show the last state, and unlock."""
        # a drawing that is still due would overwrite the last state
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for shown in self._shown:
            shown.remove_class("nk-old")
        show()
        self._lock(False)

    def _draw(self) -> None:
        self._timer = None
        if self.running:
            self.draw()

    def _anything_to_do(self) -> bool:
        """Whether there is anything to do.

        Where there is not, the form says so.
        """
        try:
            asked = self.asks()
        except NcclkitError as error:
            self._refuse(str(error))
            return False
        if not asked:
            self._refuse(self.ASK)
        return asked

    def _changed(self, change: Mapping[str, Any]) -> None:
        """Look at the fields again.

        What was marked of this one is about its old value.
        """
        self._marked.pop(change["owner"], None)
        if not self.running:
            self.review()

    def _lock(self, running: bool) -> None:
        """While it runs, only Cancel can be pressed."""
        self.notice.value = ""
        for field in (*self._fields, *self._buttons):
            field.disabled = running
        self.cancel.disabled = not running
        if running:
            self._marked.clear()
        else:
            self.review()

    def _show(self, html: Markup) -> None:
        self.result.value = html

    def _refuse(self, sentence: str) -> None:
        """Say why nothing was started; it stays until something is."""
        self.notice.value = el("div", el("p", sentence, cls="nk-bad", role="alert"), cls="nk")

    def _call_on_main_loop(self, act: Callable[[], None]) -> None:
        """Ask the kernel's main loop to act.

        Clicks may arrive on another thread.
        """
        if self._loop is None:
            self._refuse(
                "No event loop is running here, so a button cannot start anything; open this in"
                " Jupyter."
            )
        else:
            self._loop.call_soon_threadsafe(act)


def complaints(checks: Mapping[W.Widget, Callable[[], object]]) -> dict[W.Widget, str]:
    """Field → the sentence with which its check refuses what it holds."""
    found = {}
    for field, check in checks.items():
        try:
            check()
        except NcclkitError as error:
            found[field] = str(error)
    return found


def _short_line(summary: str) -> Markup:
    return style() + el("div", el("p", summary, cls="nk-dim"), cls="nk")


def _dim(reasons: Iterable[str]) -> Markup:
    said = [el("p", why, cls="nk-dim") for why in reasons]
    if said:
        return el("div", *said, cls="nk")
    return Markup("")


def row(*widgets: W.Widget) -> W.Widget:
    """Widgets side by side, which wrap."""
    return W.Box(
        list(widgets), layout=W.Layout(flex_flow="row wrap", align_items="center", width="100%")
    )


def wide() -> W.Layout:
    """The layout of a field that takes the room that there is."""
    return W.Layout(width="auto", flex="1 1 20em", min_width="0", max_width="46em")


def text_field(label: str, value: str, hint: str, **more: Any) -> W.Text:
    """A field for one line of text.

    It shows the `hint` while it is empty.
    """
    return W.Text(value=value, description=label, placeholder=hint, layout=wide(), **more)


def trail(progress: Progress) -> Markup:
    """The progress of each rank, and the last lines of the launcher's log."""
    return join(progress.lights(), log_lines(progress))


def log_lines(progress: Progress) -> Markup:
    """The last lines of the launcher's log, folded; empty where there is none."""
    # torchrun frames its warnings with lines of asterisks
    said = [line for line in progress.log if line.strip(" *")]
    return fold(
        f"Last {plural(len(said), 'line')} of the log", pre("\n".join(said)) if said else ""
    )


def _retrieved(task: asyncio.Future[Any]) -> None:
    """Take the task's result; the form shows how the task ended.

    Asking for it keeps asyncio from printing it as never retrieved.
    """
    if not task.cancelled():
        task.exception()
