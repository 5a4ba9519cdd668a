"""It stands still without an error

What it means
    Some rank waits for another and no timeout has ended it yet.  All ranks inside the same
    collective means that data cannot travel (P2P, network, a defect); one rank outside means
    that it is busy, blocked, or on another path.  Which of the two it is decides the search.

Whom not to believe
    GPUs at 100 %: NCCL's kernels spin while they wait, so they look busy.  The last line
    printed is not the place where it hangs; output is buffered, and the rank that prints is
    seldom the one that is missing.  Do not restart before you have the stacks.

What to get
    Stacks of every rank while it hangs: `py-spy dump --pid PID` (or `ncclkit attach`), and
    compare them: who is not in the collective?  If all are in it: all_reduce_perf on the same
    GPUs, with and without NCCL_P2P_DISABLE=1.  Next run with NCCL_DEBUG=INFO and
    TORCH_FR_BUFFER_SIZE=2000.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "hang_silent"

WORDS: tuple[str, ...] = (
    r"(?<!cause a )(?<!causing a )(?<!in a )(?<!cause )(?<!can )(?<!may )(?<!might )"
    r"(?<!could )(?<!to )(?<!induced )(?<!\) )(?<!possible )(?<!potential )"
    r"(?<!avoid )\bhangs?\b(?![-_ ]?detect)",
    r"\b(?:seem|appear|start|begin|tend|continue|cause)\w{0,3}\b.{0,30}\bto (?:hang|freeze"
    r"|deadlock)\b",
    r"(?<!possible )\bhanging\b",
    r"\bhung\b(?! task)",
    r"(?<!watchdog )(?<!may )(?<!might )(?<!can )(?<!could )\b(?:gets?|got|getting|is|are"
    r"|was|were|be|stays?|remains?) stuck\b",
    r"(?<!be )\bstuck (?:at|in|on|after|here|while|during)\b",
    r"(?<!cause )(?<!to )(?<!avoid )(?<!potential )(?<!possible )(?<!GIL )(?<!to a )"
    r"(?<!in a )\bdeadlock(?:s|ed)?\b",
    r"\bfreezes\b",
    r"\b(?:training|job|process(?:es)?|ranks?|run|script|program|it|everything) stall(?:s|ed)\b",
    r"\bstalled (?:ranks|ops|tensors)\b",
    r"\b(?:wait|block)(?:s|ed|ing)? (?:for ?ever|indefinitely)\b",
    r"\bnever (?:returns|finishes|completes|proceeds|gets past)\b",
    r"\b(?:does not|doesn't|do not|don't|makes? no|no) (?:proceed|progress)\b(?! ?bar)",
)

SUSPECTS: Mapping[str, str] = {
    "rank_divergence": (
        "the ranks make different calls, or a different number of them, and wait for each other"
    ),
    "p2p_broken": "all are in the first collective, and copies between GPUs never arrive",
    "send_recv_mismatch": "a send or receive has no partner",
    "slow_rank": "one rank is busy alone, and the others wait without having timed out yet",
    "wrong_interface": "the start waits for connections to an address that nobody reaches",
    "concurrent_comms": "two communicators are entered in different order and block each other",
    "gil_hold": "one rank's Python is blocked in native code, or two threads wait for each other",
    "stale_lock": "all ranks wait for a lock file that a dead job left behind",
}
