"""Draining a node that is not ready, where an administrator asked for it."""

from __future__ import annotations

import re

from .commands import run_bounded
from .gate_state import checked_node_name

SECONDS = 2.0
"""For each of the two questions to Slurm."""
REASON = 200
"""Characters of the reason that Slurm gets."""
AWAY = re.compile(
    r"\bState=\S*(?:DRAIN|DOWN|FAIL|MAINT)",
    re.IGNORECASE,
)
"""A node that takes no jobs already; its reason is somebody's, and stays."""

FORBIDDEN = re.compile(r"Invalid user id|Access/permission denied")
"""What Slurm says to a user who may not."""


def drain_node(node: str, say: str) -> tuple[bool, str]:
    """Drain a node with this sentence as its reason.

    Returns whether it was drained, and what happened in words.
    """
    name = checked_node_name(node)
    code, said = _ask_slurm(["scontrol", "-o", "show", "node", name])
    if code != 0 or "NodeName=%s" % name not in said.split():
        return False, "it was not drained: Slurm does not show node %s (%s)" % (name, said[:160])
    state = AWAY.search(said)
    if state:
        return False, "it is %s already, so its reason was left" % state[0].partition("=")[2]
    reason = "ncclkit gate: %s" % say
    words = ["scontrol", "update", "nodename=%s" % name, "state=drain"]
    code, said = _ask_slurm([*words, "reason=%s" % _plain_reason(reason)])
    if code != 0 and FORBIDDEN.search(said):
        return False, (
            "it was not drained: this user may not (scontrol: %s); run the gate as root or as an"
            " operator of Slurm" % said[:160]
        )
    if code != 0:
        return False, "it was not drained: scontrol said %s" % (said[:160] or "nothing")
    return True, "it was drained"


def _plain_reason(text: str) -> str:
    """A reason in one line, without what Slurm or a terminal would take for something else."""
    plain = "".join(char if char.isprintable() and char not in "\"'`\\=" else " " for char in text)
    return " ".join(plain.split())[:REASON]


def _ask_slurm(words: list[str]) -> tuple[int | None, str]:
    """(exit status, what was printed in one line); the status is None where there was none."""
    try:
        reply = run_bounded(
            words,
            SECONDS,
        )
    except OSError as error:
        return None, "%s: %s" % (words[0], error.strerror or error)
    said = (reply.out or reply.err).decode(
        "utf-8",
        "replace",
    )
    plain = "".join(char if char.isprintable() else " " for char in said[:20000])
    if reply.ended:
        return None, "no answer within %g s" % SECONDS
    return reply.code, " ".join(plain.split())
