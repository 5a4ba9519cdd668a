"""The grammar of torchcomms and NCCLX: its prefix, its watchdog, and what it does then.

Its lines are those of whoever waited; which rank was late none of them says.
"""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule, up_to_first

# [TC][rank=3][name=default_pg] of torchcomms, and of torch's nccl2
PREFIX = r"\[TC\]\[rank=(?P<tc_rank>\d{1,7})\](?:\[name=(?P<pg>[^\]]{0,200})\])?"
COMMUNICATOR = re.compile(PREFIX)
WORLD = re.compile(
    r"0?|(?:world|main|default|global)(?:[_-]?(?:comm|pg|group|communicator))?", re.IGNORECASE
)
"""Names of communicators of all ranks; a program may choose any other."""
PART = re.compile(
    r"(?:^|[^a-z])(?:[tdpecs]p|fsdp|hsdp|ddp|shard|replica|mesh|pair|split|sub|inter|intra|data"
    r"|model|tensor|pipeline|expert|context|sequence|stage)(?:[^a-z]|$)",
    re.IGNORECASE,
)
"""What the name of a communicator of some ranks holds."""


def is_world(name: str) -> bool:
    """Whether a communicator of this name has all ranks, so that its ranks are the job's."""
    return WORLD.fullmatch(name) is not None


def may_be_world(name: str) -> bool:
    """Whether nothing in the name says that it is of some ranks only."""
    return PART.search(name) is None


def rank_in_world(text: str) -> int | None:
    """The rank of the job that the prefix of a line names.

    It is None for a communicator that does not have all ranks.
    """
    found = COMMUNICATOR.search(text)
    if found and is_world(found["pg"] or ""):
        return int(found["tc_rank"])
    return None


UNSAID = {
    "op": "",
    "seq": None,
    "numel_in": None,
    "numel_out": None,
    "timeout_ms": None,
    "pg_rank": None,
    "desc": "",
}


def _timeout(match: re.Match[str], data: Data, line: Line) -> Data:
    """A timeout, of which only the communicator is named; its rank is the global one in the
    world's only.
    """
    name = data["pg"] or ""
    rank = data.pop("tc_rank")
    known = None
    if line.rank is not None and not line.local:
        known = line.rank
    own = None
    if is_world(name):
        own = rank
    named = {"pg": name, "desc": name, "pg_rank": rank, "api": "nccl2"}
    return data | UNSAID | named | {"_rank": own if known is None else known}


def _unsized_timeout(match: re.Match[str], data: Data, line: Line) -> Data:
    return _timeout(match, data, line) | {"ran_ms": None}


RULES: tuple[Rule, ...] = (
    # [TC][rank=3][name=default_pg] Operation timed out after 600000 ms
    rule(
        "c10d.timeout",
        "imed out after ",
        up_to_first(PREFIX) + r".*imed out after (?P<ran_ms>\d+) ?ms",
        make=_timeout,
    ),
    # [TC][rank=3][name=default_pg] Watchdog caught collective operation timeout: NCCL operation \
    #   timed out
    # torch.distributed.DistBackendError: Watchdog caught collective operation timeout: NCCL \
    #   operation timed out
    rule(
        "c10d.timeout",
        "NCCL operation timed out",
        rf"^(?:(?=(.*?{PREFIX}))\1)?.*NCCL operation timed out",
        make=_unsized_timeout,
    ),
    # [TC][rank=3][name=c] Aborting process due to timeout on rank 3 - timeout watchdog detected \
    #   operation timeout
    # [TC][rank=3][name=c] Aborting process due to timeout        (from the thread that called)
    # [TC][rank=3][name=c] Revoking communicator on rank 3 - watchdog detected timeout \
    #   (reconfigurable mode)
    *(
        rule(
            "c10d.timeout",
            anchor,
            up_to_first(PREFIX) + rf".*{pattern}",
            make=_unsized_timeout,
        )
        for anchor, pattern in (
            ("process due to timeout", "Aborting process due to timeout"),
            ("Revoking communicator", r"Revoking communicator on rank \d+ - .{0,40}timeout"),
        )
    ),
    # [TC][rank=3][name=c] Aborting process due to error on rank 3 - nccl hit async error: …
    # [TC][rank=3][name=c] Aborting process due to error: NCCL Async Error: …
    # Waiting 15000ms for health check and flight recorder dump before aborting
    # [TC][rank=3][name=c] Revoking communicator on rank 3 - watchdog detected error \
    #   (reconfigurable mode)
    *(
        rule("c10d.monitor", anchor, rf"(?P<message>{pattern}.*)", what=what, from_rank=None)
        for anchor, pattern, what in (
            ("process due to error", "Aborting process due to error", "terminate"),
            ("process due to timeout", "Aborting process due to timeout", "terminate"),
            ("Revoking communicator", r"Revoking communicator on rank \d+", "revoke"),
            ("ms for health check and flight", r"Waiting \d+ms for health check", "dump"),
        )
    ),
    # [TC][rank=0][name=c] Async error on rank 0: remote process exited or there was a network \
    #   error (reconfigurable mode)
    rule(
        "c10d.error",
        "Async error on rank ",
        r"(?P<message>Async error on rank \d+: (?P<nccl_error>.{1,300}?) \(reconfigurable mode\))",
        last_error="",
    ),
    # [TC][rank=2][name=c] CUDA error during end event query: an illegal memory access was \
    #   encountered (700)
    rule(
        "cuda.error",
        "event query: ",
        r"(?P<message>CUDA error during (?:start|end) event query: (?P<error>.{1,200}?)"
        r" \(\d{1,4}\))",
    ),
    # [TC][rank=3][name=c] TorchCommNCCL initialized for rank: 3
    rule(
        "c10d.communicator",
        " initialized for rank: ",
        PREFIX.replace("tc_rank", "group_rank").replace("?P<pg>", "?P<name>")
        + r" TorchComm\w{1,20} initialized for rank: \d+",
    ),
    # Writing Flight Recorder debug info to a static file name
    rule(
        "c10d.recorder",
        "Writing Flight Recorder debug info",
        r"Writing Flight Recorder debug info",
        what="begun",
        file="",
    ),
    # Finished writing Flight Recorder debug info to /root/.cache/torch/comm_lib_trace_rank_3
    rule(
        "c10d.recorder",
        "Finished writing Flight Recorder",
        r"Finished writing Flight Recorder debug info to (?P<file>\S+)",
        what="written",
    ),
    # Error opening file for writing Flight Recorder debug info: /x/comm_lib_trace_rank_3
    rule(
        "c10d.recorder",
        "writing Flight Recorder debug info",
        r"Error (?:opening file for )?writing Flight Recorder debug info(?: to file)?:"
        r" (?P<file>\S+)",
        what="failed",
    ),
)
