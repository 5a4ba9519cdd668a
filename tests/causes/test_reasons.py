"""A likely reason of a lateness stands above the proven lateness of the same ranks, and of no others."""

from __future__ import annotations

import pytest

from ncclkit.causes.order import rank_findings
from ncclkit.core.model import Event, Finding, Strength, found


def finding(cause: str, strength: Strength, *ranks: int) -> Finding:
    return found(cause, strength, f"{cause}.", [Event("stack", f"a line of {cause}")], ranks=ranks)


@pytest.mark.parametrize(
    ("reason", "first"),
    [
        (finding("host_oom", "likely", 1), "host_oom"),
        (finding("disk_or_io", "likely", 1), "disk_or_io"),
        (finding("host_oom", "likely", 2), "slow_rank"),
        (finding("host_oom", "likely"), "slow_rank"),
        (finding("host_oom", "possible", 1), "slow_rank"),
        (finding("timeout_too_short", "likely", 1), "slow_rank"),
    ],
)
def test_the_reason_of_a_lateness_stands_above_it(reason: Finding, first: str) -> None:
    late = finding("slow_rank", "proven", 1)
    assert [row.cause for row in rank_findings([late, reason])][0] == first
