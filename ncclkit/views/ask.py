"""The question on a page.

It shows suspects with their shares, one question with its buttons, and the chain of answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import ipywidgets as W

from ncclkit.causes import page as page_of_cause
from ncclkit.causes.differential import Answer, Differential
from ncclkit.causes.diagnosis import Diagnosis, clip
from ncclkit.causes.engine import diagnose
from ncclkit.causes.looks.record import Look
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError, cite
from ncclkit.experiments import questions
from ncclkit.experiments.questions import AnswerStep, NextStep
from ncclkit.live.looking import Sight
from ncclkit.views._base import View
from ncclkit.views._form import Form, row
from ncclkit.views._missing import NoData
from ncclkit.views._html import Markup, code, el, fit, join, location, pre, sentence, table
from ncclkit.views._page import Evidence

NO_COMMAND = "No command shows this; only a person knows it"
NO_ANSWERS = "Nothing was answered yet"

Words = Callable[[str], str]
"""Gives a label in the language of the page; verdicts, causes and questions stay English."""


class QuestionView(View):
    """The suspects of a case, what was answered, and the question that decides most."""

    def __init__(
        self, case: Case, diagnosis: Diagnosis, sight: Sight | None = None, words: Words = str
    ) -> None:
        """sight: what a look has shown that could not answer the question by itself."""
        suspects = questions.suspects_of(diagnosis)
        self._is_asked = suspects is not None
        then = questions.next_step(case, diagnosis)
        if suspects is None:
            super().__init__(then.sentence if then else words(AskForm.ASK), Markup(""))
            return
        steps = questions.steps_of(case, suspects)
        asked = ""
        if suspects.question:
            asked = _question(suspects.question, sight, words)
        # the question stays where it was however many answers stand below it
        ranked = _ranking(suspects, words)
        body = join(_symptom(suspects), ranked, asked, _then(then, words), _chain(steps, words))
        super().__init__(_summary(suspects, steps, words), body)

    def static(self) -> Markup:
        """The suspects and the question; a report leaves out that nothing is to be asked."""
        if self._is_asked:
            return super().static()
        return NoData("a question", "nothing needs to be asked", self.summary).static()


def _summary(suspects: Differential, steps: Sequence[AnswerStep], words: Words) -> str:
    held = questions.best_suspects(suspects)
    # who was denied does not lead
    named = sorted(held, key=lambda one: suspects.answers.get(one.cause) == "no")[:3]
    shares = ", ".join(f"{one.cause} {questions.share_words(one.share)}" for one in named)
    if not steps and not suspects.seen:
        return f"{words('The text names no symptom; by its wording, one of these')}: {shares}"
    if not steps:
        return f"{words('This is usually one of these')}: {shares}"
    answered = words("After {count} answers")
    if len(steps) == 1:
        answered = words("After {count} answer")
    return f"{answered.format(count=len(steps))}: {shares}"


def _symptom(suspects: Differential) -> Markup:
    """What it shows, with its line, and what such cases turned out to be."""
    if not suspects.seen:
        return Markup("")
    first = suspects.seen[0]
    cited = cite(first.line)
    place = location(cited["path"], int(cited["line"]))
    counted = ""
    if suspects.counted:
        counted = f"{suspects.counted[:1].upper()}{suspects.counted[1:]}."
    return join(
        el("p", f"{questions.title_of(first.symptom)}: ", place),
        pre("\n".join(clip(first.line.text, 3))),
        el("p", counted, cls="nk-dim") if counted else "",
    )


def _ranking(suspects: Differential, words: Words) -> Markup:
    rows: list[Sequence[object]] = []
    for one in questions.best_suspects(suspects):
        title = page_of_cause(one.cause)[""].rstrip(".")
        cause = join(code(one.cause), " ", title)
        count = ""
        if suspects.settled:
            count = f"{one.settled} of {suspects.settled}"
        rows.append((_share(one.share), cause, questions.reason_words(one, suspects), count))
    head = (
        words("Share"),
        words("Suspect"),
        words("Why it shows this"),
        words("Settled cases"),
    )
    return fit(table(head, rows))


def _share(share: float) -> Markup:
    """A number, and a bar of it."""
    bar = el("span", "", cls="nk-bar nk-bar-after", style=f"width:{100 * share:.0f}%")
    room = el("div", bar, cls="nk-bar-room")
    return el("div", questions.share_words(share), room, cls="nk-share")


def _chain(steps: Sequence[AnswerStep], words: Words) -> Markup:
    """The questions and answers so far, the newest last, with what each moved."""
    if not steps:
        return Markup("")
    rows: list[Sequence[object]] = []
    for step in steps:
        seen = ""
        if step.seen:
            seen = pre(step.seen)
        answer = join(el("b", sentence(step.answer_words)), f" ({step.who})", seen)
        moved = join(*(el("div", move) for move in step.moves)) or step.moved
        rows.append((sentence(step.look.question), answer, moved))
    head = (
        words("Question"),
        words("Answer"),
        words("What moved"),
    )
    return join(el("h5", words("Asked and answered")), fit(table(head, rows)))


def _question(look: Look, sight: Sight | None, words: Words) -> Markup:
    """The question, how to find out now and next time, and what each answer means."""
    now = ""
    if look.now:
        now = join(el("p", words("Look now, on a host of the job:")), pre(look.now))
    next_run = words("For the next run, a line of the job script:")
    later = join(el("p", next_run), pre(look.next_time))
    seen = ""
    if sight:
        seen = join(el("h5", words("What was seen")), pre(sight.text))
    return join(
        el("h5", words("The question")),
        el("p", el("b", sentence(look.question))),
        el("p", el("b", words("Yes: ")), sentence(look.yes)),
        el("p", el("b", words("No: ")), sentence(look.no)),
        now,
        later if look.next_time else "",
        seen,
    )


def _then(then: NextStep | None, words: Words) -> Markup:
    if then is None:
        return Markup("")
    named = (
        (words("Do"), then.advice),
        (words("Experiment"), then.experiment),
        (words("Collect"), then.collect),
    )
    parts = []
    for name, text in named:
        if text:
            parts.append(el("p", el("b", f"{name}: "), sentence(text)))
    command = ""
    if then.command:
        command = pre(then.command)
    return join(el("h5", words("What follows")), el("p", then.sentence), *parts, command)


class AskForm(Form):
    """The form that asks what tells the suspects apart.

    Each click is an answer that the case keeps.  ``await form.run(answers)`` gives the answers that
    are known already, such as ``host_oom:yes, p2p_broken:no``.
    """

    # an answer is no run: what was measured and read stays as it was
    brings_evidence = False
    IDLE = "There is nothing to ask"
    ASK = "There is nothing to ask"
    BUSY = "Judging …"
    CANCELLED = "Cancelled; answers given until then are kept"

    def __init__(self, case: Case, diagnosis: Diagnosis | None = None, words: Words = str) -> None:
        """diagnosis: the verdict on the case, where it is known already; words: of its labels."""
        self._case = case
        self._words = words
        self.IDLE, self.ASK = words(self.IDLE), words(self.ASK)
        self.BUSY, self.CANCELLED = words(self.BUSY), words(self.CANCELLED)
        # before the form is laid out, which asks at once what its buttons can do
        self._judged = diagnosis or diagnose(case)
        yes = W.Button(description=words("Yes"), icon="check", button_style="primary")
        self.no = W.Button(description=words("No"), icon="times")
        self.unsure = W.Button(description=words("Cannot tell"), icon="question")
        self.look = W.Button(description=words("Look for me"), icon="search")
        self.undo = W.Button(description=words("Take back"), icon="undo")
        actions = {
            self.no: partial(self._take, "no"),
            self.unsure: partial(self._take, "unknown"),
            self.look: self._look_for_me,
            self.undo: self._take_back,
        }
        for button, action in actions.items():
            button.on_click(partial(self._clicked, action))
        super().__init__("", [], yes, *actions)
        self.cancel.description = words("Cancel")
        self._show(self._view().static())

    def layout(self) -> list[W.Widget]:
        """The buttons stand below the question."""
        return [self.result, row(*self._buttons, self.cancel), self.notice, self.drawing]

    @property
    def summary(self) -> str:
        """The suspects with their shares, or why nothing is asked."""
        return self._view().summary

    @property
    def question(self) -> Look | None:
        """What is asked now."""
        suspects = questions.suspects_of(self._judged)
        if suspects:
            return suspects.question
        return None

    def blocked(self) -> Mapping[W.Button, str]:
        """What has no meaning now.

        It is an answer without a question, or a look that no command can make.
        """
        blocked: dict[W.Button, str] = {}
        suspects = questions.suspects_of(self._judged)
        question = self.question
        if question is None:
            blocked |= dict.fromkeys((self.start, self.no, self.unsure, self.look), self.ASK)
        elif not question.now:
            blocked[self.look] = self._words(NO_COMMAND)
        if suspects is None or not suspects.answers:
            blocked[self.undo] = self._words(NO_ANSWERS)
        return blocked

    def review(self) -> None:
        """Disable the buttons that mean nothing now.

        Why is said where the pointer rests.
        """
        super().review()
        self.notice.value = ""

    async def run(self, answers: str = "") -> View:
        """Take the answers that are known already.

        Shown is what is left to ask.  Raises NcclkitError for a question or an answer that there is
        not.
        """
        view: View = await self._act(partial(self._take_all, answers))
        return view

    def prepare(self) -> Coroutine[Any, Any, View]:
        """The answer yes to the question that stands here."""
        return self._take("yes")

    def failed(self, why: str, cancelled: bool) -> None:
        """Say why, and show the question again."""
        super().failed(why, cancelled)
        words = el("p", self.CANCELLED if cancelled else why, cls="nk-bad", role="alert")
        self._show(join(el("div", words, cls="nk"), self._view().static()))

    def rests_on(self, form: Form) -> bool:
        """Whether the other form adds to the case that is asked about."""
        return self._case in form.sources

    def take_evidence(self, evidence: Evidence) -> None:
        """Ask about the newest verdict."""
        self._judged = evidence.verdict(self._case)
        self._show(self._view().static())
        for shown in self._shown:
            shown.remove_class("nk-old")
        self._answer = None
        self.review()

    def _clicked(self, action: Any, _button: W.Button) -> None:
        self._call_on_main_loop(partial(self.begin, action))

    def _view(self, sight: Sight | None = None) -> QuestionView:
        return QuestionView(self._case, self._judged, sight, self._words)

    def _take_all(self, answers: str) -> Coroutine[Any, Any, View]:
        known = questions.parse_answers([answers])
        return self._taken(known)

    def _take(self, answer: Answer) -> Coroutine[Any, Any, View]:
        question = self.question
        if question is None:
            raise NcclkitError(f"{self.ASK}.")
        return self._taken([(question, answer)])

    async def _taken(self, answers: Sequence[tuple[Look, Answer]]) -> View:
        if questions.suspects_of(self._judged) and answers:
            for look, answer in answers:
                questions.add_answer(self._case, look, answer)
            self._judged = diagnose(self._case)
        return self._view()

    async def _look_for_me(self) -> View:
        question = self.question
        if question is None:
            return self._view()
        # a look may take 15 s, and Cancel has to work meanwhile
        sight = await asyncio.to_thread(questions.look_for_me, self._case, question)
        # what was seen does not decide, so it is shown, and the user is asked
        if sight.answer == "unknown":
            return self._view(sight)
        questions.add_answer(self._case, question, sight.answer, "check", sight.text)
        self._judged = diagnose(self._case)
        return self._view()

    async def _take_back(self) -> View:
        questions.take_back(self._case)
        self._judged = diagnose(self._case)
        return self._view()
