"""What is known of one look.

It is the question, how to answer it, and what each answer means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

USUAL, RARE = 0.9, 0.01
"""How often the answer is yes.

The first is for a cause that it is, the second for another one.
"""


@dataclass(frozen=True, slots=True)
class Look:
    """One question, how to answer it, and what each answer means."""

    cause: str
    """The cause that it tells from others, for which a yes speaks.

    Of a broad question it is its name.
    """
    question: str
    """Answered by yes or no, in the words of somebody who does not know the cause."""
    now: str
    """A command that only reads, for a host of the job; empty where a person knows or reads it."""
    yes: str
    """What is seen if it is this cause."""
    no: str
    """What is seen if it is not."""
    next_time: str
    """A line for the job script: a command, or a variable to set."""
    minutes: float
    """What it costs a person: 0.5 from memory, 2 for a command, 10 for a run."""
    also: Mapping[str, float] = field(default_factory=dict)
    """Other causes → how often the answer is yes if it is them."""
    shows: str = ""
    """A regular expression: where the output of `now` has it, the answer is yes."""
    denies: str = ""
    """A regular expression: where the output has this and not `shows`, the answer is no."""

    def chance(self, cause: str) -> float:
        """How often the answer is yes if it is this cause."""
        if cause == self.cause:
            return USUAL
        return self.also.get(cause, RARE)
