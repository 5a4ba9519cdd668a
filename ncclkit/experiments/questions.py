"""Questions that tell suspects apart, and what each answer moved.

It tells also who answers them, and where they end.  The terminal, the form and the tool for agents
share this.  Answers are events of the case, by kind ``told.answer``; whatever else such an event
holds is never run.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from ncclkit.causes import page, what_to_do
from ncclkit.causes.differential import (
    CLEAR_LEAD,
    SUSPECTS,
    Answer,
    Differential,
    Suspect,
    answer_adds,
    answer_event,
    next_look,
    shares_of,
)
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import describe, diagnose
from ncclkit.causes.looks.record import Look
from ncclkit.causes.looks import all_questions
from ncclkit.causes.symptoms import page_of
from ncclkit.core.case import Case
from ncclkit.core.model import SCHEMA, Event, NcclkitError, cite
from ncclkit.core.text import did_you_mean, percent
from ncclkit.evidence import samples
from ncclkit.evidence.logs import ANSWER_KIND
from ncclkit.live.looking import Sight, look_on_hosts

ANSWERS: Mapping[str, Answer] = {"yes": "yes", "no": "no", "unknown": "unknown"}
SHOWN_MOVES, LEAST_MOVE = 3, 0.01
"""Suspects whose change is told, and the change of a share that is worth it."""
LEAST_SHOWN = LEAST_MOVE / 2
"""Share below which a suspect has no number.

Rounded it would be 0 %, which no cause has.
"""
MOST_SHOWN = 0.95
"""Share above which no number is said.

What is merely possible is never certain.
"""
NO_REASON = "by the wording alone"
DENIED = "you said no to its question"
TO_COLLECT = (
    "the whole log of every rank with NCCL_DEBUG=INFO, a stack of every rank while it hangs "
    "(py-spy dump), and dmesg of every host"
)
"""What tells most where no page of a symptom says what to get."""
LONG_LOOK = 10.0
"""Minutes from which a look costs more than an experiment of ours.

It is then a run of the job.
"""
MOST_SIGHTS = 6
"""Looks that are made in a row without a person.

Each may take a quarter of a minute.
"""
ENOUGH_ANSWERS = 5
"""Answers after which a person is told what else would help.

Few people answer a sixth.
"""
TO_GET = "What to get"
"""Heading of the page of a symptom."""


@dataclass(frozen=True, slots=True)
class ShareMove:
    """What one answer did to one suspect."""

    cause: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.cause} {share_words(self.before)} → {share_words(self.after)}"


@dataclass(frozen=True, slots=True)
class AnswerStep:
    """One question that was answered, and what moved."""

    look: Look
    answer: Answer
    by: str
    """``user`` or ``check``."""
    seen: str
    """What a check has seen; empty for the word of a person."""
    moves: tuple[ShareMove, ...]
    """The suspects that it moved most."""

    @property
    def reason(self) -> str:
        """What the answer means, by the look itself."""
        meanings = {"yes": self.look.yes, "no": self.look.no}
        return meanings.get(self.answer, "")

    @property
    def moved(self) -> str:
        """``host_oom 21 % → 74 %, slow_rank 30 % → 11 %``."""
        return ", ".join(map(str, self.moves)) or "nothing moved"

    @property
    def answer_words(self) -> str:
        """The answer and what it means: ``Yes: swap is in use``."""
        if self.answer == "unknown":
            return "Cannot tell"
        return f"{self.answer.capitalize()}: {self.reason}"

    @property
    def who(self) -> str:
        """Whose word it is."""
        if self.by == "user":
            return "told by the user"
        return "checked here"


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do where nothing is asked.

    It is told also where something else costs less than the answer.
    """

    sentence: str
    advice: str = ""
    """What to do about the suspect that stands out."""
    experiment: str = ""
    """The question of the experiment that decides."""
    command: str = ""
    """What makes that experiment; empty where the logs have no name that a command can take."""
    collect: str = ""
    """What to get for the next time, by the page of the symptom."""


def suspects_of(diagnosis: Diagnosis) -> Differential | None:
    """The suspects to ask about.

    It is None where the evidence is firm, or where nothing is of a job.
    """
    suspects = diagnosis.differential
    if suspects is None or not suspects.suspects:
        return None
    if diagnosis.verdict != "no_job":
        return suspects
    return None


def share_words(share: float) -> str:
    """A share of all suspects for people: ``74 %``.

    It is never all, as no count knows every cause.
    """
    if share > MOST_SHOWN:
        return f"> {percent(MOST_SHOWN)}"
    if share >= LEAST_SHOWN:
        return percent(share)
    return f"< {percent(LEAST_MOVE)}"


# ---------------------------------------------------------------- answers


def parse_answers(words: Iterable[str]) -> list[tuple[Look, Answer]]:
    """Looks with their answers, of words such as ``host_oom=yes, p2p_broken=no``.

    Colons may stand in place of ``=``.  Raises NcclkitError for a look or an answer that there is
    not.
    """
    given = filter(None, re.split(r"[,\s]+", " ".join(words)))
    return [_parsed_answer(word) for word in given]


def _parsed_answer(word: str) -> tuple[Look, Answer]:
    name, _, answer = word.replace(":", "=", 1).partition("=")
    known = all_questions()
    if name not in known:
        meant = did_you_mean(name, known, "`ncclkit causes --symptoms` lists them.")
        raise NcclkitError(f"No question is named {name[:60]!r}; {meant}")
    if answer not in ANSWERS:
        raise NcclkitError(
            f"{word[:80]!r} is not an answer; write {name}=yes, {name}=no or {name}=unknown."
        )
    return known[name], ANSWERS[answer]


def add_answer(
    case: Case, look: Look, answer: Answer, by: Literal["user", "check"] = "user", seen: str = ""
) -> None:
    """Keep an answer in the case.

    An answer that says again what was said last is kept once.
    """
    kept = case.of(ANSWER_KIND)
    last = _kept_answers(case, look)[-1:]
    # numbered, as a folder keeps equal events once: yes after no after yes is three answers
    event = replace(answer_event(look, answer, by, seen), line=len(kept) + 1)
    if not last or replace(last[0], line=event.line) != event:
        case.events.append(event)
        case.save()


def take_back(case: Case) -> Look | None:
    """Forget the last answer, and return what it was about.

    It is None where nothing was answered.
    """
    known = _kept_answers(case)
    if not known:
        return None
    look = all_questions()[known[-1].data.look]
    gone = _kept_answers(case, look)
    case.events = [event for event in case.events if event not in gone]
    case.save()
    return look


def _kept_answers(case: Case, look: Look | None = None) -> list[Event]:
    """The answers that a case keeps, or those about one look.

    What can be no answer is left out.
    """
    if look:
        names = [look.cause]
    else:
        names = list(all_questions())
    events = []
    for event in case.of(ANSWER_KIND):
        if event.data.look in names and event.data.answer in list(ANSWERS):
            events.append(event)
    return events


def look_for_me(case: Case, look: Look) -> Sight:
    """What a look of ours shows on the hosts that can be reached from here."""
    # by its name, so that nothing but a command of the catalogue can run
    known = all_questions()[look.cause]
    if not known.now:
        return Sight("unknown", "cannot tell: no command shows this, only a person knows it")
    hosts = describe(case).get("hosts") or ()
    return look_on_hosts(known.now, known.shows, known.denies, hosts)


def look_through(case: Case, diagnosis: Diagnosis) -> tuple[Diagnosis, list[tuple[Look, Sight]]]:
    """Make the looks that need no person, the one that decides most first.

    Returns the verdict after them, and what was seen.  What no look can tell stays a question.
    """
    seen: list[tuple[Look, Sight]] = []
    # a person reads what the others print
    without = [look.cause for look in all_questions().values() if not (look.shows or look.denies)]
    while len(seen) < MOST_SIGHTS:
        suspects = suspects_of(diagnosis)
        look = None
        if suspects:
            look = open_question(suspects, without)
        if look is None:
            break
        sight = look_for_me(case, look)
        without.append(look.cause)
        seen.append((look, sight))
        if sight.answer != "unknown":
            add_answer(case, look, sight.answer, "check", sight.text)
            diagnosis = diagnose(case)
    return diagnosis, seen


def open_question(suspects: Differential, without: Iterable[str] = ()) -> Look | None:
    """The next question, if it is not among those `without`.

    Otherwise it is the best of the others.
    """
    tried = set(without)
    question = suspects.question
    if question is None or question.cause not in tried:
        return question
    shares = {one.cause: one.share for one in suspects.suspects}
    return next_look(shares, {*suspects.answers, *tried})


# ---------------------------------------------------------------- what moved


def steps_of(case: Case, suspects: Differential) -> tuple[AnswerStep, ...]:
    """The questions that were answered, in their order, each with what it moved."""
    shares = {one.cause: one.share for one in suspects.suspects}
    answered = [(all_questions()[name], answer) for name, answer in suspects.answers.items()]
    steps: list[AnswerStep] = []
    # from the last one back: what an answer added to the odds is taken away again
    for look, answer in reversed(answered):
        before = _shares_without(shares, look, answer)
        by, seen = _source_of(case, look)
        steps.append(AnswerStep(look, answer, by, seen, _moves(before, shares)))
        shares = before
    return tuple(reversed(steps))


def _shares_without(shares: Mapping[str, float], look: Look, answer: Answer) -> dict[str, float]:
    odds: dict[str, float] = {}
    for cause, share in shares.items():
        # the logarithm of 0
        odds[cause] = math.log(max(share, 1e-300)) - answer_adds(look, answer, cause)
    return shares_of(odds)


def _moves(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[ShareMove, ...]:
    moves = [ShareMove(cause, before[cause], share) for cause, share in after.items()]
    moves.sort(key=lambda move: -abs(move.after - move.before))
    worth = [move for move in moves if abs(move.after - move.before) >= LEAST_MOVE]
    return tuple(worth[:SHOWN_MOVES])


def _source_of(case: Case, look: Look) -> tuple[str, str]:
    """Who gave the answer that counts, and what a check has seen."""
    event = _kept_answers(case, look)[-1]
    by = "user"
    if event.data.by == "check":
        by = "check"
    seen = event.text.removeprefix(f"{look.question} {event.data.answer}").removeprefix(": ")
    return by, seen


# ---------------------------------------------------------------- where it ends


def title_of(symptom: str) -> str:
    """The title of the page of a symptom."""
    return page_of(symptom)[""].rstrip(".")


def reason_words(suspect: Suspect, suspects: Differential) -> str:
    """Why a suspect is named, and that its own question was denied where it was."""
    why = suspect.why
    if not why:
        why = suspect.place_reason
    if not why:
        why = NO_REASON
    if suspects.answers.get(suspect.cause) == "no":
        return f"{why}; {DENIED}"
    return why


def first_open(suspects: Differential) -> Suspect:
    """The first suspect whose own question was not denied.

    It is the first of all where all were.
    """
    held = [one for one in best_suspects(suspects) if suspects.answers.get(one.cause) != "no"]
    if held:
        return held[0]
    return suspects.suspects[0]


def best_suspects(suspects: Differential) -> Sequence[Suspect]:
    """The first suspects, the most usual first."""
    return suspects.suspects[:SUSPECTS]


def next_step(case: Case, diagnosis: Diagnosis) -> NextStep | None:
    """What to do where nothing is left to ask, else None.

    It is told also where an experiment costs less.
    """
    suspects = suspects_of(diagnosis)
    if suspects is None:
        return NextStep(_nothing_to_ask(diagnosis))
    first = first_open(suspects)
    experiment, command = _experiment(case, diagnosis, first.cause)
    page_of_symptom = {}
    if suspects.seen:
        page_of_symptom = page_of(suspects.seen[0].symptom)
    collect = _flowing(page_of_symptom.get(TO_GET, "")) or TO_COLLECT
    if suspects.question is not None:
        return _beside_question(suspects, suspects.question, experiment, command, collect)
    if first.share < CLEAR_LEAD or suspects.answers.get(first.cause) != "yes":
        sentence = "No question is left that tells these suspects apart."
        return NextStep(sentence, experiment=experiment, command=command, collect=collect)
    named = [finding for finding in diagnosis.findings if finding.cause == first.cause]
    if named:
        strength = named[0].strength
    else:
        strength = "possible"
    sentence = (
        f"{first.cause} stands out with {share_words(first.share)}; no more needs to be asked. "
        f"It stays {strength}: the symptom and answers speak for it, and no line proves it."
    )
    return NextStep(sentence, _advice(first), experiment, command)


def _beside_question(
    suspects: Differential, question: Look, experiment: str, command: str, collect: str
) -> NextStep | None:
    """What else would decide besides a question.

    It is told where the question costs much, or where many answers have not decided.
    """
    count = len(suspects.answers)
    if count >= ENOUGH_ANSWERS:
        sentence = f"{count} answers have not decided it. Another one may say less than these:"
        return NextStep(sentence, experiment=experiment, command=command, collect=collect)
    if experiment and question.minutes >= LONG_LOOK:
        sentence = "An experiment costs less than this answer."
        return NextStep(sentence, experiment=experiment, command=command)
    return None


def _nothing_to_ask(diagnosis: Diagnosis) -> str:
    if diagnosis.verdict == "found" and diagnosis.findings:
        strength = diagnosis.findings[0].strength
        return (
            f"Nothing needs to be asked, as the evidence says it ({strength}): {diagnosis.headline}"
        )
    return f"There is nothing to ask: {diagnosis.headline}"


def _advice(suspect: Suspect) -> str:
    return what_to_do(suspect.cause)


def _experiment(case: Case, diagnosis: Diagnosis, cause: str) -> tuple[str, str]:
    """The experiment that tells suspects apart, and the command that makes it.

    `cause` is the suspect whose own experiment comes first.
    """
    findings = sorted(diagnosis.findings, key=lambda finding: finding.cause != cause)
    asked = []
    for one in findings:
        if one.next and one.next.expects:
            asked.append(one.next)
    if not asked:
        return "", ""
    experiment = asked[0]
    logs = case.about.get("logs") or ""
    if not isinstance(logs, str):
        return experiment.question, ""
    if logs in samples.list_samples():
        logs = str(samples.HERE / logs)
    # what came through a pipe cannot be read again
    if not logs or logs == "-" or not any(row.get("path") != "-" for row in case.inputs):
        return experiment.question, ""
    where = ""
    if case.path:
        where = f" --case {shlex.quote(str(case.path))}"
    # the words of a case folder are no words of a shell
    words = " ".join(map(shlex.quote, logs.split()))
    return experiment.question, f"ncclkit diagnose {words} --check{where}"


def _flowing(text: str) -> str:
    """A paragraph of a page in one line."""
    return " ".join(text.split())


# ---------------------------------------------------------------- for scripts


def to_dict(case: Case, diagnosis: Diagnosis) -> dict[str, Any]:
    """The object that ``ncclkit ask --json`` prints."""
    suspects = suspects_of(diagnosis)
    then = next_step(case, diagnosis)
    answer: dict[str, Any] = {
        "schema": SCHEMA,
        "verdict": diagnosis.verdict,
        "headline": diagnosis.headline,
        "symptom": None,
        "settled": 0,
        "counted": "",
        "suspects": [],
        "answers": [],
        "question": None,
        "then": _next_row(then) if then else None,
    }
    if suspects is None:
        return answer
    if suspects.seen:
        first = suspects.seen[0]
        answer["symptom"] = {
            "id": first.symptom,
            "title": title_of(first.symptom),
            "line": cite(first.line),
        }
    question = suspects.question
    return answer | {
        "settled": suspects.settled,
        "counted": suspects.counted,
        "suspects": [_suspect_row(one) for one in best_suspects(suspects)],
        "answers": [_step_row(step) for step in steps_of(case, suspects)],
        "question": {"cause": question.cause} | _look_row(question) if question else None,
    }


def _suspect_row(suspect: Suspect) -> dict[str, Any]:
    return {
        "cause": suspect.cause,
        "title": page(suspect.cause)[""].rstrip("."),
        "share": round(suspect.share, 4),
        "why": suspect.why,
        "settled": suspect.settled,
        "look": _look_row(suspect.look),
    }


def _look_row(look: Look) -> dict[str, Any]:
    names = ("question", "now", "next_time", "yes", "no")
    return {name: getattr(look, name) for name in names}


def _step_row(step: AnswerStep) -> dict[str, Any]:
    moves = []
    for move in step.moves:
        moves.append({"cause": move.cause, "before": move.before, "after": move.after})
    return {
        "look": step.look.cause,
        "question": step.look.question,
        "answer": step.answer,
        "by": step.by,
        "seen": step.seen,
        "reason": step.reason,
        "moved": moves,
    }


def _next_row(step: NextStep) -> dict[str, str]:
    names = ("sentence", "advice", "experiment", "command", "collect")
    return {name: cast(str, getattr(step, name)) for name in names}
