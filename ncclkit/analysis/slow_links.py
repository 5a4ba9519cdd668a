"""Links of which NCCL itself (2.31 and later) says that answers to sends came late.

The user chooses from how many nanoseconds on NCCL speaks of a send, so one line says little.
"""

from __future__ import annotations

from ncclkit.analysis.once import once
from ncclkit.analysis.picks import failed, in_order
from ncclkit.core.case import Case
from ncclkit.core.kinds import NcclLink
from ncclkit.core.model import Event

FEW_SENDS = 3
"""Slow sends fewer than these are a burst that a job may have at any time."""
SENT_AGAIN = 0.1
"""Seconds to an answer that no queue of a switch explains: packets were lost and sent again."""
SLOW_SHARE = 0.01
"""Share of the sends of a connection from which on its summary speaks of its link."""

LinkEvent = Event[NcclLink]


@once
def lines_of_slow_links(case: Case) -> list[LinkEvent]:
    """Lines that name slow sends; none where they are so few that a job gets over them."""
    slow_lines = case.of(NcclLink, what="slow")
    # a job that failed is worth the look that a single line points to
    if _number(slow_lines) < FEW_SENDS and not failed(case):
        slow_lines = []
    summaries = [event for event in case.of(NcclLink, what="summary") if _is_slow(event)]
    return in_order([*slow_lines, *summaries])


def longest_send(event: LinkEvent) -> float:
    """Seconds to the latest answer that a line tells of."""
    return event.data.took or event.data.worst or 0.0


def sent_again(lines: list[LinkEvent]) -> bool:
    """Whether several answers were as late as after packets that got lost."""
    late = [event for event in lines if longest_send(event) >= SENT_AGAIN]
    singles = [event for event in late if event.data.what == "slow"]
    return len(singles) < len(late) or _number(singles) >= FEW_SENDS


def _number(slow_lines: list[LinkEvent]) -> int:
    return sum(event.count for event in slow_lines)


def _is_slow(summary: LinkEvent) -> bool:
    slow = summary.data.slow or 0
    sends = summary.data.count or 1
    return slow >= FEW_SENDS and slow / sends >= SLOW_SHARE
