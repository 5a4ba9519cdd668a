"""Views and forms of one page: which run each view shows, and what is older than the last run.

In: what a cell made through `nk.show` and `nk.form`.  When a form has run, each view of the same
evidence is drawn again, or becomes grey with one line that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from typing import Any
from weakref import WeakSet

import ipywidgets as W
from ipykernel.zmqshell import ZMQInteractiveShell

from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.run_choice import RunChoice, choices_of, is_numbered
from ncclkit.core.runs import Run
from ncclkit.views._base import RUN_SOURCES, View, older_line, run_line, style

RUNNING = "Older than what runs now"
AGAIN = "run this cell again"

_places: WeakSet[Place] = WeakSet()
_forms: WeakSet[Any] = WeakSet()
_judged: dict[int, tuple[Diagnosis, Case]] = {}
"""Verdicts with the case that each is of; held, so that no other object takes its id."""
_cases: dict[str, Case] = {}
"""Folder → the case of it that a cell of this page showed last."""


class _OlderEvidenceError(Exception):
    """Something that a view was drawn of cannot be had anew."""


@cache
def on_page(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make`, a view or a form, whose product knows of the others on the page."""

    @wraps(make, updated=())
    def made_on_page(*args: Any, **keywords: Any) -> Any:
        made = make(*args, **keywords)
        _note(args)
        if hasattr(made, "brings_evidence"):
            made.sources = tuple(arg for arg in args if isinstance(arg, Case))
            _forms.add(made)
        elif isinstance(made, View):
            made.place = Place(made, make, args, keywords)
        return made

    return made_on_page


def _note(args: tuple[Any, ...]) -> None:
    """Keep which verdict is of which case, as a cell shows them side by side."""
    for case in args:
        if not isinstance(case, Case):
            continue
        if case.path is not None:
            _cases[str(case.path)] = case
        for verdict in args:
            if isinstance(verdict, Diagnosis):
                _judged[id(verdict)] = verdict, case


class Place:
    """Where one view stands: with the run that it shows, and grey where something is newer."""

    def __init__(
        self,
        view: View,
        draw: Callable[..., Any],
        args: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> None:
        self.newest = view
        """What stands there by now."""
        self._draw = draw
        self._args = args
        self._keywords = dict(keywords)
        self._note = W.HTML()
        self._picker = W.Dropdown(description="Shown run", layout=W.Layout(width="auto"))
        self._picker.style.description_width = "6em"
        self._label = W.HTML()
        self._room = W.VBox([], layout=W.Layout(width="100%"))
        self._frame: W.VBox | None = None
        self._request = ("", "")
        self._choices = self._choices_now()
        self._picker.observe(self._chosen, "value")
        self._name_run(self._choices[:1])

    def widget(self, own: W.Widget | None) -> W.Widget | None:
        """The view in its frame; the view's `own` widget where nothing can change around it."""
        if self._frame is None:
            is_named = own is not None and self.newest.run_label
            can_choose = len(self._choices) > 1
            if not is_named and not can_choose and not any(map(self.rests_on, _forms)):
                return own
            parts = [
                self._note,
                self._picker,
                self._label,
                self._room,
            ]
            self._frame = W.VBox(parts, layout=W.Layout(width="100%"))
            self._show()
            self._take_place()
        return self._frame

    def rests_on(self, form: Any) -> bool:
        """Whether a run of this form makes what stands here old."""
        if not form.brings_evidence or not self.newest.tells_of_now:
            return False
        for arg in self._args:
            if any(arg is outcome for outcome in form.handed_out):
                return True
            # what was measured stays true, whatever ran later: only its own form can replace a run
            if not isinstance(arg, Run) and _is_of(_case_of(arg), form.sources):
                return True
        return False

    def grow_old(self, why: str) -> None:
        """Show in grey what stands here, and why."""
        self.newest.older = why
        self._note.value = style() + older_line(why)
        self._room.add_class("nk-old")

    def draw_again(self, evidence: Evidence, why: str) -> None:
        """Draw it of newer evidence; where that cannot be done it is grey, and says so."""
        if not self.newest.is_drawn_again:
            self.grow_old(why)
            return
        try:
            self._args = tuple(map(evidence.newer, self._args))
            view = self._draw(*self._args, **self._keywords)
        except _OlderEvidenceError:
            self.grow_old(why)
        except Exception as error:  # of one view: the others are still to be drawn
            self.grow_old(f"{why} ({type(error).__name__}: {error})")
        else:
            _note(self._args)
            self._choices = self._choices_now()
            self._put(view, self._choices[:1])

    def _choices_now(self) -> list[RunChoice]:
        """The runs that can be shown here, the newest first; of a run itself that one first."""
        source = RUN_SOURCES.get(self._draw)
        if source is None or not self._args:
            return []
        subject = self._args[0]
        choices = []
        for case in _case_of(subject):
            choices += choices_of(source.list_runs(case))
        if isinstance(subject, Run):
            if not is_numbered(subject.folder):
                return []
            others = [choice for choice in choices if choice.folder != subject.folder]
            return [RunChoice(subject.folder), *others]
        return choices

    def _chosen(self, _change: Mapping[str, Any]) -> None:
        """Show the run that a reader has picked."""
        choice = self._picker.value
        if not isinstance(choice, RunChoice):
            return
        if choice == self._choices[0]:
            view = self._draw(*self._args, **self._keywords)
        else:
            case = _case_of(self._args[0])[0]
            view = RUN_SOURCES[self._draw].draw_run(case, choice.folder)
        self._put(view, [choice])

    def _put(self, view: View, shown: list[RunChoice]) -> None:
        self.newest = view
        self._name_run(shown)
        self._note.value = ""
        self._room.remove_class("nk-old")
        if self._frame is not None:
            self._show()

    def _name_run(self, shown: list[RunChoice]) -> None:
        """Say which run it is, and offer the others."""
        self.newest.run_label = ""
        if shown:
            self.newest.run_label = shown[0].words
        # what the picker says is not said twice
        self._label.value = style() + run_line(self.newest.run_label)
        self._picker.layout.display = "none"
        if len(self._choices) > 1:
            self._label.value = ""
            self._picker.layout.display = ""
            options = [(choice.words, choice) for choice in self._choices]
            # nobody has picked anything here
            self._picker.unobserve(self._chosen, "value")
            self._picker.options = options
            self._picker.value = shown[0]
            self._picker.observe(self._chosen, "value")

    def _show(self) -> None:
        content = self.newest.widget()
        if content is None:
            content = W.HTML(style() + self.newest.face(), layout=W.Layout(width="100%"))
        self._room.children = (content,)

    def _take_place(self) -> None:
        """Forget what an earlier run of the same cell had shown: it is no longer on the page."""
        self._request = _cell_and_request()
        cell, request = self._request
        for place in list(_places):
            if cell and place._request[0] == cell and place._request[1] != request:
                _places.discard(place)
        _places.add(self)


class Evidence:
    """What is newest once a form has run: its case judged anew, and what came out of it."""

    def __init__(self, form: Any, outcome: Any) -> None:
        self._form = form
        self._outcome = outcome
        self._verdicts: dict[int, Diagnosis] = {}

    def newer(self, thing: Any) -> Any:
        """What takes the place of one that a view was drawn of."""
        if any(thing is earlier for earlier in self._form.handed_out):
            return self._outcome
        if isinstance(thing, Diagnosis) and id(thing) in _judged:
            return self.verdict(_judged[id(thing)][1])
        if isinstance(thing, Case):
            self._check_shared(thing)
        return thing

    def verdict(self, case: Case) -> Diagnosis:
        """The verdict on a case by now, worked out once."""
        self._check_shared(case)
        if id(case) not in self._verdicts:
            self._verdicts[id(case)] = diagnose(case)
        return self._verdicts[id(case)]

    def _check_shared(self, case: Case) -> None:
        """Refuse a copy of the form's case, which does not hold what has been added since."""
        if case not in self._form.sources and _is_of([case], self._form.sources):
            raise _OlderEvidenceError


def began(form: Any) -> None:
    """A form runs: what rests on it is older from now on."""
    for place in _resting_on(form):
        place.grow_old(RUNNING)
    for other in _forms_resting_on(form):
        other.grow_old(RUNNING)


def failed(form: Any, runs_before: int) -> None:
    """A form ended without an outcome: what rests on it stays grey."""
    why = f"Older than {_last_run(form, runs_before)}, which brought nothing: {AGAIN}"
    for place in _resting_on(form):
        place.grow_old(why)
    for other in _forms_resting_on(form):
        other.grow_old(why)


def brought(form: Any, outcome: Any, runs_before: int) -> None:
    """A form brought newer evidence: what rests on it is drawn again, or grey."""
    why = f"Older than {_last_run(form, runs_before)}: {AGAIN}"
    evidence = Evidence(form, outcome)
    for place in _resting_on(form):
        place.draw_again(evidence, why)
    for other in _forms_resting_on(form):
        other.grow_old(why)
        other.take_evidence(evidence)


def run_count(form: Any) -> int:
    """How many runs the cases of a form have."""
    return sum(len(case.runs()) for case in form.sources)


def _last_run(form: Any, runs_before: int) -> str:
    if run_count(form) == runs_before:
        return "what the form did last"
    newest = [case.runs()[-1] for case in form.sources if case.runs()]
    return f"run {RunChoice(newest[-1]).number}"


def _resting_on(form: Any) -> Iterator[Place]:
    for place in list(_places):
        if place.rests_on(form):
            yield place


def _forms_resting_on(form: Any) -> Iterator[Any]:
    if form.brings_evidence:
        for other in list(_forms):
            if other is not form and not other.running and other.rests_on(form):
                yield other


def _case_of(thing: Any) -> list[Case]:
    """The case that something is, or that it was made of, as far as the page knows one."""
    if isinstance(thing, Case):
        return [thing]
    if isinstance(thing, Diagnosis) and id(thing) in _judged:
        return [_judged[id(thing)][1]]
    if isinstance(thing, Run):
        known = _cases.get(str(thing.folder.parent.parent))
        return [known] if known is not None else []
    return []


def _same_case(one: Case, other: Case) -> bool:
    return one is other or (one.path is not None and one.path == other.path)


def _is_of(cases: list[Case], sources: tuple[Case, ...]) -> bool:
    """Whether one of these cases has the folder of one of the others, or is it."""
    for case in cases:
        if any(_same_case(case, source) for source in sources):
            return True
    return False


def _cell_and_request() -> tuple[str, str]:
    """The notebook's cell that is being run, and this run of it; empty outside of a notebook."""
    if not ZMQInteractiveShell.initialized():
        return "", ""
    shell: Any = ZMQInteractiveShell.instance()
    parent = shell.get_parent()
    cell = parent.get("metadata", {}).get("cellId", "")
    return str(cell), str(parent.get("header", {}).get("msg_id", ""))
