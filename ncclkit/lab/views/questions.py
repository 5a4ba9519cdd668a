"""The questions of the stories.

There is a guess before the evidence, the same guess beside the proof, and three questions after.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import ipywidgets as W

from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.experiment_records import experiments
from ncclkit.lab.course.questions import FILE, Answers
from ncclkit.lab.course.translation import Translator
from ncclkit.views._answer import MeasuredAnswer
from ncclkit.views._base import View, style
from ncclkit.views.ask import AskForm
from ncclkit.views._html import Markup, badge, code, el, escaped_text, fit, fold, join, table
from ncclkit.views.findings import strength_part


class Guess(View):
    """The question that the story `name` asks before its evidence.

    It comes with choices and hints, and without the answer.  The first choice is kept in the case
    folder.  Raises NcclkitError for a story or a language that does not exist.
    """

    is_drawn_again = False

    def __init__(self, case: Case, name: str, language: str = "en") -> None:
        answers = Answers(case, name)
        translate = Translator(language)
        asked = translate(answers.question().ask)
        self._answers = answers
        self._translate = translate
        self._shown = 0
        super().__init__(asked, Markup(""))
        # a guess that was made before stands there again
        self.pick = _choices(answers, 0, translate)
        self.notice = W.HTML()
        self.hints = W.HTML()
        opt_in = translate(
            "Keep the time and the hints that I need, in {file} of this case folder and nowhere"
            " else",
            file=FILE,
        )
        self.measure = W.Checkbox(
            value=answers.measured, description=opt_in, indent=False, layout=WIDE
        )
        self.more = W.Button(description=translate("Hint"), icon="lightbulb-o")
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
        translate = self._translate
        first = self._answers.of().first
        guessed = ""
        if first:
            named = el("b", translate("Your first guess: "))
            guessed = el("p", named, translate(first))
        choices = []
        for choice in self._answers.shuffled():
            words = translate(choice)
            choices.append(el("li", words))
        hints = []
        for hint in self._answers.story.hints:
            words = translate(hint)
            hints.append(el("li", words))
        folded = fold(translate("Hints"), el("ol", *hints))
        return join(el("ul", *choices), guessed, folded)

    def static(self) -> Markup:
        """The question and what `body` holds now."""
        return el("div", el("p", self.summary, cls="nk-say"), self.body, cls="nk nk-guess")

    def widget(self) -> W.Widget:
        """The question, its choices, a button for hints."""
        return self._box

    def _chosen(self, choice: str | None) -> None:
        if choice is not None:
            self._answers.choose(choice)
            kept = self._translate(
                "Kept. Choose another whenever you learn more; the proof below meets your first"
                " guess again."
            )
            self.notice.value = _frame(el("p", kept, role="status", cls="nk-dim"))

    def _hint(self) -> None:
        hints = self._answers.story.hints
        self._shown = min(self._shown + 1, len(hints))
        self._answers.hinted(self._shown)
        self.more.disabled = self._shown == len(hints)
        shown = []
        for hint in hints[: self._shown]:
            shown.append(el("li", self._translate(hint)))
        self.hints.value = _frame(el("ol", *shown))


class StoryAskForm(AskForm):
    """The form that asks what tells the suspects apart, its labels in the language of a story."""

    def __init__(self, case: Case, diagnosis: Diagnosis, language: str = "en") -> None:
        super().__init__(case, diagnosis, Translator(language))


def proof_view(case: Case, name: str, language: str = "en") -> View:
    """The first guess beside what the case proves.

    It shows what speaks for each choice, and against it.
    """
    answers = Answers(case, name)
    translate = Translator(language)
    found = diagnose(case)
    answers.proved()
    question = answers.question()
    first = answers.of().first
    rows = []
    for choice, reason in question.choices.items():
        guessed = ""
        if choice == first:
            words = translate("your first guess")
            label = badge("▸", words, "likely")
            guessed = el("div", label)
        words = translate(choice)
        bold = el("b", words)
        named = join(bold, guessed)
        holds = choice == question.right
        mark = _mark(holds, translate)
        why = translate(reason)
        rows.append((named, mark, why))
    head = (
        translate("Your question was: {ask}", ask=translate(question.ask)),
        translate("Answer"),
        translate("What speaks for it, or against it"),
    )
    met = _story_answer(answers, case, found, translate)
    # who has not guessed yet is not told on the first screen of a report
    folded = ""
    if not first:
        folded = translate("What the story proves")
    held = fit(table(head, rows))
    if not first:
        held = _for_last_page("", held)
    above = met.banner("nk-story", fold=folded)
    body = join(above, held)
    proof = View(met.sentence, body, titled=False)
    # what a later run of the story shows does not change what this one has proven
    proof.tells_of_now = False
    return proof


def _story_answer(
    answers: Answers, case: Case, found: Diagnosis, translate: Translator
) -> MeasuredAnswer:
    """The guess, whether it was right, and what proves it: how the report of a story begins."""
    first = answers.of().first
    right = answers.question().right
    guess_words = "–"
    if first:
        guess_words = translate(first)
    numbers = [(guess_words, translate("was guessed"))]
    if found.findings:
        top = found.findings[0]
        verdict = f"{top.cause}, {top.strength}"
        numbers.append((verdict, translate("in this run")))
    tried = experiments(case)
    if tried:
        count = f"{len(tried):,}"
        numbers.append((count, translate("tried")))
    more: list[object] = [_proof(found, answers.story.cause, translate)]
    if tried:
        more.append(join(el("b", translate("The last one: ")), tried[-1].summary))
    mark = badge("▸", translate("your turn: guess below, in section 2"), "none")
    edge = "none"
    if first and first == right:
        mark = badge("✓", translate("guessed right"), "checked")
        edge = "healthy"
    elif first:
        mark = badge("✕", translate("guessed otherwise"), "likely")
        edge = "slow"
    return MeasuredAnswer(
        _met(answers, translate),
        mark,
        edge,
        tuple(numbers),
        tuple(more),
    )


def _met(answers: Answers, translate: Translator) -> str:
    first, right = answers.of().first, answers.question().right
    if not first:
        return translate("What holds: {right}", right=translate(right))
    if first == right:
        return translate("You guessed “{first}”, and so it is", first=translate(first))
    return translate(
        "You guessed “{first}”; what holds: {right}",
        first=translate(first),
        right=translate(right),
    )


def _proof(found: Diagnosis, cause: str, translate: Translator) -> Markup:
    """The first finding.

    It is one sentence where it is not the cause that the question is about.
    """
    if not found.findings:
        nothing = translate("This case shows no cause: run the cells above first.")
        return el("p", nothing, cls="nk-dim")
    top = found.findings[0]
    if top.cause == cause:
        other = ""
    else:
        words = escaped_text(translate("The job of the question has {cause}; yours has another."))
        other = el("p", words.format(cause=code(cause)))
    return join(el("p", strength_part(top), " ", top.say), other)


class Quiz(View):
    """Three questions that say of each choice why it is right or wrong.

    They say also how whoever answered them fared.
    """

    is_drawn_again = False

    def __init__(self, case: Case, name: str, language: str = "en") -> None:
        answers = Answers(case, name)
        translate = Translator(language)
        count = len(answers.story.quiz)
        self._answers = answers
        self._translate = translate
        self._numbers = range(1, count + 1)
        summary = translate("{count} questions, each with an answer to every choice", count=count)
        super().__init__(summary, Markup(""), titled=False)
        self.picks = {number: _choices(answers, number, translate) for number in self._numbers}
        self.explanations = {number: W.HTML() for number in self._numbers}
        self.fared = W.HTML(_frame(self._fared()))
        parts: list[W.Widget] = [W.HTML(style())]
        for number, pick in self.picks.items():
            pick.observe(partial(self._chosen, number), "value")
            parts.append(W.HTML(_frame(self._numbered(number))))
            parts.append(pick)
            parts.append(self.explanations[number])
        self._box = W.VBox([*parts, self.fared], layout=FULL)

    @property
    def body(self) -> Markup:
        """The questions with their choices; the answers are folded."""
        return join(*map(self._asked, self._numbers), self._fared())

    def widget(self) -> W.Widget:
        """The questions, each answered as soon as something is chosen."""
        return self._box

    def _numbered(self, number: int) -> Markup:
        asked = self._translate(self._answers.question(number).ask)
        return el("p", el("b", f"{number}. ", asked))

    def _asked(self, number: int) -> Markup:
        listed = []
        explained = []
        for choice in self._answers.shuffled(number):
            words = self._translate(choice)
            reason = self._explanation(number, choice, named=True)
            listed.append(el("li", words))
            explained.append(reason)
        folded = fold(self._translate("Answer"), *explained)
        asked = self._translate(self._answers.question(number).ask)
        about = f"{number}. {asked}"
        solved = _for_last_page(about, folded)
        question = self._numbered(number)
        choices = el("ul", *listed)
        return join(question, choices, solved)

    def _chosen(self, number: int, change: Mapping[str, Any]) -> None:
        if change["new"] is not None:
            self._answers.choose(change["new"], number)
            explained = self._explanation(number, change["new"])
            told = el("div", explained, role="status", cls="nk")
            self.explanations[number].value = told
            self.fared.value = _frame(self._fared())

    def _explanation(self, number: int, choice: str, *, named: bool = False) -> Markup:
        question = self._answers.question(number)
        reason = self._translate(question.choices[choice])
        mark = _mark(choice == question.right, self._translate)
        name: Markup | str = ""
        if named:
            choice_words = self._translate(choice)
            name = el("b", self._translate("{choice}: ", choice=choice_words))
        return el("p", mark, " ", name, reason)

    def _fared(self) -> Markup:
        sentences = self._answers.fared(self._translate)
        if sentences:
            words = self._translate.join_sentences(sentences)
            return el("p", el("b", self._translate("How you fared: ")), words)
        return Markup("")


FULL, WIDE = W.Layout(width="100%"), W.Layout(width="auto")


def _mark(holds: bool, translate: Translator) -> Markup:
    """Whether a choice holds."""
    if holds:
        return badge("✓", translate("right"), "state-done")
    return badge("✕", translate("not this"), "possible")


def _choices(answers: Answers, number: int, translate: Translator) -> W.RadioButtons:
    """The choices of a question, in the order of this case.

    An earlier choice stands there again.
    """
    # kept are the English words, so that both notebooks of a pair go on with the same answers
    options = []
    for choice in answers.shuffled(number):
        options.append((translate(choice), choice))
    earlier = answers.of(number).last or None
    return W.RadioButtons(options=options, value=earlier, layout=WIDE)


def _for_last_page(about: str, solved: Markup) -> Markup:
    """What solves a question; on paper a report puts it on its last page, below these words."""
    return el("div", solved, cls="nk-solves", data_about=about)


def _frame(*parts: object) -> Markup:
    return el("div", *parts, cls="nk")
