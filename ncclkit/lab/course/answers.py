"""What a student answered in a case folder: each first choice, and, where the student wants it, times and hints.

All of it is in ``answers.json`` of the case folder, and goes nowhere else.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import msgspec

from ncclkit.core import storage
from ncclkit.core.case import Case
from ncclkit.core.model import to_json
from ncclkit.core.text import format_age, plural
from ncclkit.lab.course import questions
from ncclkit.lab.course.questions import Question

FILE = "answers.json"


@dataclass
class KeptAnswer:
    """What is kept of one question."""

    first: str = ""
    """The first choice."""
    last: str = ""
    asked: float | None = None
    """When the question was first shown, in seconds since the epoch; like `took` and `hints` only if that is wanted."""
    took: float | None = None
    """Seconds from then to the first right choice before the proof was shown."""
    hints: int = 0
    proof: bool = False
    """Whether the proof was shown."""


@dataclass
class _Kept:
    measured: bool = False
    answers: dict[str, KeptAnswer] = field(default_factory=dict)


class Answers:
    """The answers to the questions of one story, in one case."""

    def __init__(self, case: Case, name: str) -> None:
        self.story, self.name, self.case = questions.story(name), name, case
        path = None if case.path is None else case.path / FILE
        self._kept = msgspec.convert(storage.read_json(path, {}, _Kept), _Kept) if path else _Kept()

    @property
    def measured(self) -> bool:
        """Whether times and hints are kept."""
        return self._kept.measured

    def measure(self, wanted: bool) -> None:
        """Keep times and hints from now on, or forget those that were kept."""
        self._kept.measured = wanted
        for answer in self._kept.answers.values():
            answer.asked, answer.took, answer.hints = None, None, 0
        self.of().asked = time.time() if wanted else None
        self._save()

    def question(self, number: int = 0) -> Question:
        """The guess, for 0, or the question of that number of the quiz."""
        return self.story.quiz[number - 1] if number else self.story.guess

    def shuffled(self, number: int = 0) -> list[str]:
        """The choices of a question, in an order that stays the same in this case folder."""
        choices = list(self.question(number).choices)
        random.Random(f"{self.case.path} {self.name} {number}").shuffle(choices)
        return choices

    def of(self, number: int = 0) -> KeptAnswer:
        """What is kept of a question; a choice that it does not have counts as none."""
        kept = self._kept.answers.setdefault(f"{self.name}/{number}", KeptAnswer())
        known = self.question(number).choices
        kept.first, kept.last = (choice if choice in known else "" for choice in (kept.first, kept.last))
        return kept

    def choose(self, choice: str, number: int = 0) -> None:
        """Keep a choice; the first one stays the first."""
        kept = self.of(number)
        kept.first, kept.last = kept.first or choice, choice
        if choice == self.question(number).right and kept.asked and kept.took is None and not kept.proof:
            kept.took = round(time.time() - kept.asked, 1)
        self._save()

    def hinted(self, count: int) -> None:
        """So many hints were shown; kept only where that is wanted."""
        if self.measured:
            self.of().hints = max(count, self.of().hints)
            self._save()

    def proved(self) -> None:
        """The proof is shown: what is chosen from now on is not a guess."""
        if self.of().first or self.measured:
            self.of().proof = True
            self._save()

    def fared(self) -> list[str]:
        """How the student fared, a sentence for each thing that is known; empty where nothing was answered."""
        guess, said = self.of(), []
        if guess.first:
            said.append(f"The first guess was {'right' if guess.first == self.question().right else 'wrong'}.")
        tries = [self.of(number).first for number in range(1, len(self.story.quiz) + 1)]
        if any(tries):
            right = sum(first == asked.right for first, asked in zip(tries, self.story.quiz, strict=True))
            said.append(f"{right} of {plural(len(tries), 'question')} were right at the first try.")
        if self.measured:
            late = "The right cause was not chosen before the proof."
            said.append(late if guess.took is None else f"Time to the right cause: {format_age(guess.took)}.")
            said.append(f"Hints used: {guess.hints} of {len(self.story.hints)}.")
        return said

    def _save(self) -> None:
        if self.case.path is not None and not self.case.read_only:
            storage.write(self.case.path / FILE, to_json(self._kept))
