"""For each cause the cheapest look that tells it from its rivals.

In: the name of a cause.  Out: its `Look`, a question that a person answers with yes, no, or cannot
tell: from memory, by one command on a host of the job, or by reading one file.  ``now`` works when
the job is dead; ``next_time`` is a line for the job script that has the answer at hand after the
next run.

Begin with `cause_looks`; `broad` has the questions that split many causes at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ncclkit.causes.looks import broad, devices, hosts, network, program, software
from ncclkit.causes.looks.record import Look

PARTS = (network, hosts, devices, software, program)
"""Where the look of each cause stands."""


@cache
def cause_looks() -> Mapping[str, Look]:
    """The look of each cause, by the cause."""
    found = {}
    for part in PARTS:
        for look in part.LOOKS:
            found[look.cause] = look
    return found


@cache
def all_questions() -> Mapping[str, Look]:
    """Everything that may be asked, by name.

    It is the broad questions, and the look of each cause.
    """
    broad_ones = {look.cause: look for look in broad.LOOKS}
    return {**broad_ones, **cause_looks()}
