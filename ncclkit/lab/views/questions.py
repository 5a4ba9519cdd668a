"""The questions of the stories.

A guess before the evidence, the same guess beside the proof, three questions after.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import ipywidgets as W

from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.text import plural
from ncclkit.lab.course.questions import FILE, Answers
from ncclkit.views._base import View, style
from ncclkit.views._html import Markup, badge, code, el, fit, fold, join, table
from ncclkit.views.findings import strength_part

KEPT = "Kept. Choose another whenever you learn more; the proof below meets your first guess again."
HOLDS, NOT = badge("✓", "right", "state-done"), badge("✕", "not this", "possible")
OPT_IN = f"Keep the time and the hints that I need, in {FILE} of this case folder and nowhere else"


class Guess(View):
    """The question that the story `name` asks before its evidence.

    With choices and hints, and without the answer.

    The first choice is kept in the case folder.  Raises NcclkitError for a story that does not
    exist.
    """

    def __init__(self, case: Case, name: str) -> None:
        answers = Answers(case, name)
        asked = answers.question().ask
        self._answers = answers
        self._shown = 0
        super().__init__(asked, Markup(""))
        # a guess that was made before stands there again
        self.pick = _choices(answers, 0)
        self.notice = W.HTML()
        self.hints = W.HTML()
        self.measure = W.Checkbox(
            value=answers.measured, description=OPT_IN, indent=False, layout=WIDE
        )
        self.more = W.Button(description="Hint", icon="lightbulb-o")
        self.pick.observe(lambda change: self._chosen(change["new"]), "value")
        self.measure.observe(lambda change: answers.measure(change["new"]), "value")
        self.more.on_click(lambda _button: self._hint())
        question = _frame(el("p", asked, cls="nk-say"))
        above = W.HTML(join(style(), question))
        below = [self.notice, self.more, self.hints, self.measure]
        self._box = W.VBox([above, self.pick, *below], layout=FULL)

    @property
    def body(self) -> Markup:
        """The choices, the first guess where there is one, and the hints, folded."""
        first = self._answers.of().first
        return join(
            el("ul", *(el("li", choice) for choice in self._answers.shuffled())),
            el("p", el("b", "Your first guess: "), first) if first else "",
            fold("Hints", el("ol", *(el("li", hint) for hint in self._answers.story.hints))),
        )

    def static(self) -> Markup:
        """The question and what `body` holds now."""
        return el("div", el("p", self.summary, cls="nk-say"), self.body, cls="nk nk-guess")

    def widget(self) -> W.Widget:
        """The question, its choices, a button for hints."""
        return self._box

    def _chosen(self, choice: str | None) -> None:
        if choice is not None:
            self._answers.choose(choice)
            self.notice.value = _frame(el("p", KEPT, role="status", cls="nk-dim"))

    def _hint(self) -> None:
        hints = self._answers.story.hints
        self._shown = min(self._shown + 1, len(hints))
        self._answers.hinted(self._shown)
        self.more.disabled = self._shown == len(hints)
        self.hints.value = _frame(el("ol", *(el("li", hint) for hint in hints[: self._shown])))


def proof_view(case: Case, name: str) -> View:
    """The first guess beside what the case proves.

    What speaks for each choice, and against it.
    """
    answers = Answers(case, name)
    found = diagnose(case)
    answers.proved()
    question = answers.question()
    first = answers.of().first
    rows = []
    for choice, said in question.choices.items():
        rows.append(
            (
                join(
                    el("b", choice),
                    el("div", badge("▸", "your first guess", "likely")) if choice == first else "",
                ),
                HOLDS if choice == question.right else NOT,
                said,
            )
        )
    judged = fit(
        table(
            ("Your question was: " + question.ask, "Answer", "What speaks for it, or against it"),
            rows,
        )
    )
    return View(_met(answers), join(_proof(found, answers.story.cause), judged))


def _met(answers: Answers) -> str:
    first, right = answers.of().first, answers.question().right
    if not first:
        return f"What holds: {right}"
    if first == right:
        return f"You guessed “{first}”, and so it is"
    return f"You guessed “{first}”; what holds: {right}"


def _proof(found: Diagnosis, cause: str) -> Markup:
    """The first finding; one sentence where it is not the cause that the question is about."""
    if not found.findings:
        return el("p", "This case shows no cause: run the cells above first.", cls="nk-dim")
    top = found.findings[0]
    if top.cause == cause:
        other = ""
    else:
        other = el("p", "The job of the question has ", code(cause), "; yours has another.")
    return join(el("p", strength_part(top), " ", top.say), other)


class Quiz(View):
    """Three questions that say of each choice why it is right.

    Or wrong, and how whoever answered them fared.
    """

    def __init__(self, case: Case, name: str) -> None:
        answers = Answers(case, name)
        count = len(answers.story.quiz)
        self._answers = answers
        self._numbers = range(1, count + 1)
        summary = f"{plural(count, 'question')}, each with an answer to every choice"
        super().__init__(summary, Markup(""), titled=False)
        self.picks = {number: _choices(answers, number) for number in self._numbers}
        self.explanations = {number: W.HTML() for number in self._numbers}
        self.fared = W.HTML(_frame(self._fared()))
        parts: list[W.Widget] = [W.HTML(style())]
        for number, pick in self.picks.items():
            pick.observe(partial(self._chosen, number), "value")
            asked = el("b", f"{number}. ", answers.question(number).ask)
            above = W.HTML(_frame(el("p", asked)))
            parts += [above, pick, self.explanations[number]]
        self._box = W.VBox([*parts, self.fared], layout=FULL)

    @property
    def body(self) -> Markup:
        """The questions with their choices; the answers are folded."""
        return join(*map(self._asked, self._numbers), self._fared())

    def widget(self) -> W.Widget:
        """The questions, each answered as soon as something is chosen."""
        return self._box

    def _asked(self, number: int) -> Markup:
        order = self._answers.shuffled(number)
        listed = el("ul", *(el("li", choice) for choice in order))
        explained = (self._explanation(number, choice, named=True) for choice in order)
        return join(
            el("p", el("b", f"{number}. ", self._answers.question(number).ask)),
            listed,
            fold("Answer", *explained),
        )

    def _chosen(self, number: int, change: Mapping[str, Any]) -> None:
        if change["new"] is not None:
            self._answers.choose(change["new"], number)
            self.explanations[number].value = el(
                "div", self._explanation(number, change["new"]), role="status", cls="nk"
            )
            self.fared.value = _frame(self._fared())

    def _explanation(self, number: int, choice: str, *, named: bool = False) -> Markup:
        question = self._answers.question(number)
        if choice == question.right:
            mark = HOLDS
        else:
            mark = NOT
        return el("p", mark, " ", el("b", choice, ": ") if named else "", question.choices[choice])

    def _fared(self) -> Markup:
        said = self._answers.fared()
        if said:
            return el("p", el("b", "How you fared: "), " ".join(said))
        return Markup("")


FULL, WIDE = W.Layout(width="100%"), W.Layout(width="auto")


def _choices(answers: Answers, number: int) -> W.RadioButtons:
    """The choices of a question, in the order of this case.

    An earlier choice stands there again.
    """
    return W.RadioButtons(
        options=answers.shuffled(number), value=answers.of(number).last or None, layout=WIDE
    )


def _frame(*parts: object) -> Markup:
    return el("div", *parts, cls="nk")
