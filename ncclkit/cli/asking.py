"""The question on a terminal.

It shows suspects with their shares, one question at a time, and what each answer moved.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from ncclkit.causes.differential import Differential
from ncclkit.causes.diagnosis import Diagnosis, clip
from ncclkit.causes.engine import diagnose
from ncclkit.causes.looks.record import Look
from ncclkit.cli.runner import NameTable, Part, print_parts
from ncclkit.cli.terminal import Activity, show
from ncclkit.core.case import Case
from ncclkit.core.model import cite
from ncclkit.experiments import questions
from ncclkit.experiments.questions import ANSWERS, AnswerStep
from ncclkit.live.looking import Sight

KEYS = {"y": "yes", "n": "no", "?": "unknown"}
"""What a person types for an answer; the whole words do as well."""
PROMPT = "y yes · n no · ? cannot tell · l look for me · q leave"
REASON_LETTERS = 160
"""Letters of the reason of a suspect that are printed: a table is read at a glance."""


def suspect_parts(case: Case, diagnosis: Diagnosis) -> Iterator[Part]:
    """The symptom with its counts, the first suspects, and what earlier answers moved."""
    suspects = questions.suspects_of(diagnosis)
    if suspects is None:
        return
    if suspects.seen:
        first = suspects.seen[0]
        cited = cite(first.line)
        if cited["line"]:
            place = f"{cited['path']}:{cited['line']}"
        else:
            place = cited["path"]
        quoted = [f"  {line}" for line in clip(first.line.text, 2)]
        yield "\n".join([f"Symptom: {questions.title_of(first.symptom)}  ({place})", *quoted])
    if suspects.counted:
        yield f"{suspects.counted[:1].upper()}{suspects.counted[1:]}."
    yield ranking_table(suspects)
    for step in questions.steps_of(case, suspects):
        yield step_text(step, with_question=True)


def ranking_table(suspects: Differential) -> NameTable:
    """The first suspects with their shares and reasons."""
    rows: list[tuple[str, str]] = []
    for place, one in enumerate(questions.best_suspects(suspects), 1):
        reason = questions.reason_words(one, suspects)
        if len(reason) > REASON_LETTERS:
            reason = f"{reason[:REASON_LETTERS]}…"
        rows.append((f"{place}. {questions.share_words(one.share):>5}  {one.cause}", reason))
    return NameTable("Suspects, none of them proven", rows)


def step_text(step: AnswerStep, with_question: bool = False) -> str:
    """An answer, what it means, and how the ranking moved."""
    lines = [f"{step.answer_words}.", f"  {step.moved}"]
    if with_question:
        lines.insert(0, f"\n{step.look.question} ({step.who})")
    return "\n".join(lines)


def sight_parts(seen: Iterable[tuple[Look, Sight]]) -> Iterator[Part]:
    """What the looks have shown that were made for a person."""
    for look, sight in seen:
        yield f"\n{look.question}\n  {sight.answer}: {sight.text}"


def question_parts(diagnosis: Diagnosis, is_conversation: bool = False) -> Iterator[Part]:
    """The question that decides most, how to find out now, and how next time.

    `is_conversation`: the answer is typed next, and needs no option.
    """
    look = _question_of(diagnosis)
    if look is None:
        return
    lines = [f"\nQuestion: {look.question}", f"  yes:       {look.yes}", f"  no:        {look.no}"]
    if look.now:
        lines.append(f"  look now:  {look.now}")
    if look.next_time:
        lines.append(f"  next time: {look.next_time}")
    if not is_conversation:
        lines.append(f"  answer:    --answer {look.cause}=yes, =no or =unknown")
    yield "\n".join(lines)


def next_step_parts(case: Case, diagnosis: Diagnosis) -> Iterator[Part]:
    """What to do where nothing is left to ask.

    It is told also where an experiment costs less.
    """
    then = questions.next_step(case, diagnosis)
    if then is None:
        return
    yield f"\n{then.sentence}"
    named = (("Do", then.advice), ("Experiment", then.experiment), ("Collect", then.collect))
    for name, text in named:
        if text:
            yield f"{name}: {text}"
    if then.command:
        yield f"  $ {then.command}"


def converse(case: Case, diagnosis: Diagnosis) -> Diagnosis:
    """Ask a person one question after the other.

    It ends when nothing is left to ask or they leave.  Returns the verdict with their answers.
    """
    printed: Look | None = None
    while True:
        look = _question_of(diagnosis)
        if look is None or look != printed:
            print_parts(question_parts(diagnosis, is_conversation=True))
            print_parts(next_step_parts(case, diagnosis))
        printed = look
        if look is None:
            return diagnosis
        word = _typed_word()
        if word == "l":
            diagnosis = _look_here(case, look, diagnosis)
        elif word in KEYS or word in ANSWERS:
            questions.add_answer(case, look, ANSWERS[KEYS.get(word, word)])
            diagnosis = _judge_again(case, look)
        elif word in ("q", "quit"):
            return diagnosis
        else:
            show(f"{word[:20]!r} is none of them.")


def _question_of(diagnosis: Diagnosis) -> Look | None:
    suspects = questions.suspects_of(diagnosis)
    if suspects:
        return suspects.question
    return None


def _typed_word() -> str:
    """What a person types; to leave, where the terminal is closed."""
    show(PROMPT)
    line = sys.stdin.readline()
    if line:
        return line.strip().lower()
    return "q"


def _look_here(case: Case, look: Look, diagnosis: Diagnosis) -> Diagnosis:
    """Look for the person.

    What cannot be told stays a question to them.
    """
    with Activity("Looking", is_long=bool(look.now)):
        sight = questions.look_for_me(case, look)
    show(f"{sight.answer}: {sight.text}")
    if sight.answer == "unknown":
        return diagnosis
    questions.add_answer(case, look, sight.answer, "check", sight.text)
    return _judge_again(case, look)


def _judge_again(case: Case, look: Look) -> Diagnosis:
    """The verdict with the new answer.

    Printed is what it moved.
    """
    diagnosis = diagnose(case)
    suspects = questions.suspects_of(diagnosis)
    if suspects is None:
        return diagnosis
    for step in questions.steps_of(case, suspects):
        if step.look.cause == look.cause:
            show(step_text(step))
    print_parts([ranking_table(suspects)])
    return diagnosis
