"""The record of a decision: restart a failed job, or stop and repair something first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Action = Literal["restart", "fix_program", "fix_setup", "wait_and_see"]
ACTION_WORDS: dict[Action, str] = {
    "restart": "restart",
    "fix_program": "stop, and fix the program",
    "fix_setup": "stop, and fix the set-up",
    "wait_and_see": "wait and see",
}
EXIT_STATUS: dict[Action, int] = {
    "restart": 0,
    "fix_program": 1,
    "fix_setup": 1,
    "wait_and_see": 3,
}
"""Action → exit status of ``ncclkit decide``; 2 is an error of the question itself."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a job is started again as it is, with the reason."""

    action: Action
    reason: str
    """One clause without a full stop."""
    exclude: tuple[str, ...] = ()
    """Hosts to leave out of the next start, as the logs name them."""

    @property
    def sentence(self) -> str:
        """``restart without n2: the scheduler lost the node.``"""
        without = ""
        if self.exclude:
            without = f" without {', '.join(self.exclude)}"
        return f"{ACTION_WORDS[self.action]}{without}: {self.reason}."

    def to_dict(self) -> dict[str, Any]:
        """The object ``action`` of ``ncclkit diagnose --json``."""
        return {
            "name": self.action,
            "reason": self.reason,
            "exclude_hosts": list(self.exclude),
        }
