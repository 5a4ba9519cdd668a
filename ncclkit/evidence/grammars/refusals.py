"""What an operating system refuses, in any program's words.

It is told by number, in other languages, and by the subsystem asked.  Rules and causes know the C
library's English texts.  A line in Chinese, German or French, one of musl, and one that gives a
number alone is read in English (`english`); what is cited is the line itself with its English below
it.  Of a refusal without such a text the rules here tell which subsystem was asked: memory for
RDMA, names, threads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule

TABLE = [
    [cell.strip() for cell in row.split("|")]
    for row in Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines()
    if not row.startswith("#")
]
ERRNO: Mapping[int, str] = {int(number): english for number, english, *_ in TABLE if number != "-"}
"""Number of Linux → its English text."""
FOREIGN: Mapping[str, str] = {
    said: english for _, english, *words in TABLE for said in sorted(words, key=len, reverse=True)
}
"""What other languages and musl say → its English text."""
PLAIN = (b"rrno", *(said.encode() for said in FOREIGN if said.isascii()))
ACCENTED = tuple(said.encode() for said in FOREIGN if not said.isascii())
"""What a line holds that may have to be read in English."""

_WORDS = re.compile("|".join(re.escape(said) for said in sorted(FOREIGN, key=len, reverse=True)))
# run.sh: 第 12 行：  4711 已杀死     run.sh: 行 12: 4711 …     run.sh: Zeile 12:  4711 Getötet
# run.sh : ligne 12 :
_SHELL = re.compile(
    r" ?: (?:第 ?(\d{1,6}) ?行：|行 (\d{1,6}): |Zeile (\d{1,6}): |ligne (\d{1,6}) : )"
)
# errno 12      errno=28      errno: -24      [Errno 11]
# (of numbers in ranges and longer words nothing is said)
_NUMBER = re.compile(r"\b[Ee]rrno(?: ?[=:] ?| )-?(?P<number>\d{1,3})\b(?!\.\d)")


def may_be(raw: bytes) -> bool:
    """Whether a line holds something that `english` may change."""
    # of every line that is read: no generator
    for said in PLAIN if raw.isascii() else (*PLAIN, *ACCENTED):
        if said in raw:
            return True
    return False


def english(line: str) -> str:
    """The line in English, as far as it speaks of refusals.

    It is the same line where it does not, or does so in English.
    """
    if _WORDS.search(line):
        line = _SHELL.sub(lambda match: f": line {match[match.lastindex or 0]}: ", line)
        line = _WORDS.sub(lambda match: FOREIGN[match[0]], line)
    return _NUMBER.sub(lambda match: _number_with_text(match, line), line)


def _number_with_text(match: re.Match[str], line: str) -> str:
    """The number of a refusal with its text behind it, unless the line says it."""
    text = ERRNO.get(int(match["number"]), "")
    if text and text.lower() not in line.lower():
        return f"{match[0]} ({text})"
    return match[0]


NO_MEMORY = (
    r"(?:Cannot allocate memory|ENOMEM|NULL value|\b(?:rc|RC|ret|[Ee]rror|errno|code)\b["
    r" =:]{1,3}-?12\b|[:\[(] ?-?12\b)"
)
REGISTERED = (
    r"(?:ibv_(?:reg_\w{2,20}|create_\w{2,20}|alloc_\w{2,20}|open_device)|fi_(?:mr_reg\w{0,10}"
    r"|domain|endpoint|cq_open)"
    r"|[Rr]egister(?:ing)? (?:\w{1,20} )?(?:[Mm]emory|MR|buffer)\b|rdma_create_\w{2,10}"
    r"|efa_\w{0,10}(?:mr_reg|cq_open)\w{0,10}|(?:allocate|create|reg) (?:MR|QP|CQ|SRQ)\b|mem"
    r" registration"
    r"|(?:\b(?:QP|CQ|SRQ)|[Qq]ueue [Pp]air|[Cc]ompletion [Qq]ueue)"
    r" (?:create|creation|alloc\w{0,7})|packet pool)"
)
UNRESOLVED = (
    r"(?:Name or service not known|Temporary failure in name"
    r" resolution|EAI_(?:NONAME|AGAIN|NODATA)\b"
    r"|nodename nor servname|[Uu]nable to get host address|DNS resolution failed|No address"
    r" associated with hostname"
    r"|: no such host|[Cc]ould not resolve host(?:name)?\b)"
)
PUBLIC = (
    r"(?!.*(?:gai error|https?://|HTTPS?Connection|NameResolutionError|urlopen|urllib|curl: "
    r"|\.(?:com|org|io|co|cn|ai|net)\b))"
)
"""What keeps a line about a public service from being read.

A hub or a tracker has nothing to do with the ranks' names, and torch's own lines have a grammar.
"""
# lookup master on 10.0.0.10:53: no such host      getaddrinfo(node-1):
# could not resolve hostname worker-3:
ASKED = re.compile(
    r"(?:getaddrinfo(?: failed)?(?:: |\()|(?:get host address|resolution failed) for |hostname"
    r" |lookup |ping: )"
    r"(?P<host>[a-zA-Z][\w.-]{0,252})"
)


def _asked(match: re.Match[str], data: Data, line: Line) -> Data:
    """What was refused, with the host whose address was asked for.

    The host is None where the line does not name it.
    """
    host = ASKED.search(match["message"])
    return data | {"asked": host["host"].rstrip(".") if host else None}


RULES: tuple[Rule, ...] = (
    # libfabric:4711:1:efa:mr:efa_mr_reg_impl():745<warn> Unable to register MR: Cannot allocate \
    #   memory
    # ib_iface.c:983  UCX  ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory
    # Failed to register memory 0x7f1200000000: Cannot allocate memory [12]
    # fi_mr_reg failed: -12
    # fi_domain failed: -12 (Cannot allocate memory)     fi_endpoint: Cannot allocate memory
    # mem registration failed, rc -12     rdma_create_qp: Cannot allocate memory
    # Couldn't allocate MR: ENOMEM     Failed to create MR: ENOMEM
    # failed to allocate packet pool: -12      mlx5_2:1: RC QP create failed: Cannot allocate memory
    # failed to create QP: Cannot allocate memory      failed to create CQ: ENOMEM
    # Completion queue creation failed, errno=12
    # Queue pair creation failed: Cannot allocate memory
    *(
        rule(
            "system.error",
            anchor,
            rf"^(?P<message>(?=.*{REGISTERED})(?=.*{NO_MEMORY})(?!.*NCCL WARN Call to ibv).*)",
            what="rdma_memory",
        )
        for anchor in (
            *(
                "ibv_",
                "fi_mr_reg",
                "fi_domain",
                "fi_endpoint",
                "egister MR",
                "egister memory",
                "registration failed",
            ),
            *("rdma_create_", "efa_", "allocate MR", "create MR", "packet pool", " create failed"),
            *("air creation", "ueue creation", "create QP", "create CQ"),
        )
    ),
    # The OpenFabrics (openib) BTL failed to initialize while trying to allocate some locked memory.
    rule(
        "system.error",
        "locked memory",
        r"^(?P<message>.*(?:failed|unable|cannot).{0,120}locked memory.*)",
        what="rdma_memory",
    ),
    # ssh: Could not resolve hostname worker-3: Name or service not known
    # getaddrinfo failed: node-17: EAI_NONAME
    # ping: node-b: Temporary failure in name resolution
    # dial tcp: lookup master on 10.0.0.10:53: no such host
    # getaddrinfo(node-1): nodename nor servname provided, or not known
    # unable to get host address for node-7 (2)
    # DNS resolution failed for trainer-0:12355: C-ares status is not ARES_SUCCESS
    # node-1: No address associated with hostname
    *(
        rule(
            "system.error",
            anchor,
            rf"^(?P<message>{PUBLIC}(?=.*{UNRESOLVED}).*)",
            make=_asked,
            what="unresolved",
        )
        for anchor in (
            *(
                "Name or service",
                "Temporary failure in name",
                "EAI_",
                "nodename nor",
                "get host address",
            ),
            *(
                "DNS resolution failed",
                "No address associated",
                ": no such host",
                "ould not resolve host",
            ),
        )
    ),
    # OMP: Error #34: System unable to allocate necessary resources for OMP thread:
    # runtime: failed to create new OS thread (have 2 already; errno=11)
    # bootstrap.cc:410 NCCL WARN pthread_create failed: 11
    *(
        rule("system.error", anchor, rf"^(?P<message>.*{pattern}.*)", what="too_many_processes")
        for anchor, pattern in (
            ("resources for OMP thread", "unable to allocate necessary resources for OMP thread"),
            ("new OS thread", "failed to create new OS thread"),
            (
                "pthread_create",
                (
                    r"pthread_create(?:\(\))? (?:failed|returned|error)[ :=]{0,3}(?:with )?(?:error"
                    r" )?11\b"
                ),
            ),
        )
    ),
)
