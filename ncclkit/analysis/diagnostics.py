"""What NCCL's own diagnostics found, and of which ranks of the job.

A line says what the hardware or the environment was like when it was asked, and not that the job
suffered from it: so a finding is likely at most, but for data that did not arrive as it was sent.
"""

from __future__ import annotations

import re

from ncclkit.agent.digits import whole_number
from ncclkit.analysis.communicators import communicators
from ncclkit.core import text
from ncclkit.core.case import Case
from ncclkit.core.kinds import NcclDiagnostic
from ncclkit.core.model import Event

Diagnostic = Event[NcclDiagnostic]


def diagnostics(case: Case, *checks: str, state: str = "finding") -> list[Diagnostic]:
    """The lines of some checks that found something, or have another state."""
    lines = []
    for event in case.of(NcclDiagnostic):
        if event.data.check in checks and event.data.state == state:
            lines.append(event)
    return lines


def odd_ranks(event: Diagnostic) -> tuple[list[int], int]:
    """(ranks of the communicator that stand out, how many they are).

    NCCL compares all with the lowest rank: where most differ from it, it is the odd one itself.
    """
    data = event.data
    number = data.number or len(data.ranks)
    if data.reference is not None and 2 * number > (data.of or 2 * number):
        return [data.reference], 1
    return data.ranks, number


def ranks_of_job(
    case: Case,
    event: Diagnostic,
    ranks: list[int],
) -> tuple[int, ...]:
    """The ranks of the job for those of a communicator; () where nothing tells them."""
    for made in communicators(case.events):
        if event.data.comm and _same_name(made.id, event.data.comm) and made.ranks:
            known = []
            for rank in ranks:
                known.append(made.ranks.get(rank, rank))
            return tuple(known)
    whole = 0
    for one in case.of(NcclDiagnostic):
        whole = max(whole, one.data.of or 0)
    # a line that says of how many ranks it speaks, and of fewer than another one, is of a part
    if event.data.of is not None and event.data.of < whole:
        return ()
    return tuple(ranks)


def _same_name(one: str, other: str) -> bool:
    try:
        return int(one, 16) == int(other, 16)
    except ValueError:
        return False


def named_ranks(case: Case, event: Diagnostic) -> tuple[tuple[int, ...], str]:
    """(ranks of the job, the same in words), of who stands out in a line."""
    local, number = odd_ranks(event)
    known = ranks_of_job(
        case,
        event,
        local,
    )
    more = ""
    unnamed = number - len(local)
    if unnamed > 0:
        more = f" and {unnamed} more"
    if known or not local:
        return known, f"{text.ranks(known)}{more}"
    return (), f"{text.ranks(local)}{more} of communicator {event.data.comm}"


def pair_in_words(case: Case, event: Diagnostic) -> tuple[tuple[int, ...], str]:
    """(ranks of the job, the pair of GPUs and the path between them in words)."""
    data = event.data
    ends = [data.src or 0, data.dst or 0]
    known = ranks_of_job(
        case,
        event,
        ends,
    )
    one, two = known or ends
    where = f"GPU {data.src_gpu} (rank {one}) to GPU {data.dst_gpu} (rank {two})"
    return known, f"{where} over {data.path} ({data.handle})"


def pairs_that_failed(event: Diagnostic) -> tuple[int, int]:
    """(accesses between GPUs that were verified, all of them), of a line that counts them."""
    verified, _, of = event.data.value.partition("/")
    return whole_number(verified) or 0, whole_number(of) or 0


CHECK_NAME = re.compile(r"^([\w /]{1,40}): diagnostics incomplete")
ASK_AGAIN = "ask again (`ncclras -D`, or `ncclkit attach`)"


def open_checks(case: Case) -> list[str]:
    """What NCCL was asked and did not answer to the end, in sentences."""
    sentences = []
    for event in case.of(NcclDiagnostic, state="unchecked"):
        data = event.data
        if data.check == "incomplete":
            sentences.append(f"{_check_in_words(data.message, data.value)}; {ASK_AGAIN}.")
        elif data.message.startswith("BUSY"):
            say = "NCCL's diagnostics were at work for somebody else and gave no answer"
            sentences.append(f"{say}; {ASK_AGAIN}.")
        elif data.check == "report":
            sentences.append(f"NCCL's diagnostics did not run: {data.message[:100]}")
    return list(dict.fromkeys(sentences))


def _check_in_words(message: str, heard: str) -> str:
    named = CHECK_NAME.match(message)
    check = "check"
    if named:
        check = f"check of {named[1]}"
    return f"NCCL's {check} did not end: it heard {heard.replace('/', ' of ')} ranks"
