"""Small words and picks that many causes share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby

from ncclkit.analysis.once import once
from ncclkit.core import text
from ncclkit.core.case import Case
from ncclkit.core.event_list import known_hosts, known_ranks
from ncclkit.core.kinds import (
    SAYS_NOTHING,
    AttachRank,
    DdpParams,
    NcclAttn,
    NcclChannel,
    NcclEnv,
    NcclInfo,
    NcclInit,
    NcclMessage,
    NcclNetwork,
    NcclWarn,
    StoreBind,
)
from ncclkit.core.model import Event, Evidence, Fact, Finding, clear, unknown

FATAL = (
    "c10d.timeout",
    "c10d.error",
    "gloo.timeout",
    "gloo.closed",
    "elastic.exit",
    "python.exception",
    "cuda.error",
    "cuda.oom",
)
"""Kinds that show that the job did not succeed."""


def name_ranks(ranks: Iterable[int]) -> str:
    """The known ones of these ranks, as in `core.text.ranks`.

    It is ``a rank`` where none is known.
    """
    known = [rank for rank in ranks if rank >= 0]
    if known:
        return text.ranks(known)
    return "a rank"


def name_hosts(events: Iterable[Event]) -> tuple[str, ...]:
    """The hosts that these events come from, sorted."""
    return tuple(sorted(known_hosts(events)))


def ranks_in(events: Iterable[Event]) -> tuple[int, ...]:
    """The ranks that these events come from, sorted."""
    return tuple(sorted(known_ranks(events)))


def on(host: str) -> str:
    """`` on node-1``, or nothing where the host is not known."""
    if host:
        return f" on {host}"
    return ""


def who_of(events: Iterable[Event], host: str = "") -> str:
    """``Rank 3 on node-1``: the ranks of these events, and a host.

    It stands at the start of a sentence.
    """
    return who_are(ranks_in(events), host)


def who_are(ranks: Iterable[int], host: str = "") -> str:
    """The same as `who_of`, of ranks that are known by their numbers."""
    return f"{text.start(name_ranks(ranks))}{on(host)}"


def facts_below(case: Case, name: str, enough: float) -> list[Fact]:
    """Facts of the job's hosts whose number is less than `enough`.

    Limits say -1 where there is none: that is not below anything.
    """
    low_facts = []
    for fact in of_job_hosts(case, case.facts_of(name)):
        if isinstance(fact.value, (int, float)) and 0 <= fact.value < enough:
            low_facts.append(fact)
    return low_facts


def of_job_hosts(case: Case, facts: Iterable[Fact]) -> list[Fact]:
    """Facts of the hosts on which the job ran.

    They are those of all hosts where its lines name none.
    """
    hosts = _hosts(case)
    job_facts = []
    for fact in facts:
        if not hosts or not fact.host or fact.host.partition(".")[0] in hosts:
            job_facts.append(fact)
    return job_facts


def process_ids(case: Case) -> set[int]:
    """Processes of the job's own ranks, where it was looked at while it ran."""
    return {event.pid for event in case.of(AttachRank) if event.pid is not None}


def without_load_of(processes: set[int], facts: Iterable[Fact]) -> list[Fact]:
    """Facts without those of GPUs that no other process but these uses.

    A job is looked at while its own ranks keep their GPUs busy: no neighbour does.
    """
    known = list(facts)
    own = set()
    for fact in known:
        held = HOLDERS.fullmatch(fact.name)
        if held and isinstance(fact.value, list):
            users = {row.get("pid") for row in fact.value if isinstance(row, dict)}
            if users and users <= processes:
                own |= {(fact.host, f"{held['gpu']}.busy"), (fact.host, fact.name)}
    return [fact for fact in known if (fact.host, fact.name) not in own]


HOLDERS = re.compile(r"(?P<gpu>gpu\.\d{1,4})\.memory\.holders")
"""The fact of who uses a GPU."""


@once
def _hosts(case: Case) -> set[str]:
    """Short names of the hosts that the lines of the job name."""
    hosts = set()
    for host in {event.host for event in case.events}:
        if host:
            hosts.add(host.partition(".")[0])
    return hosts


def seconds(milliseconds: float | None) -> str:
    """``600000`` → ``600 s``; ``its timeout`` for what is not known.

    A time that is not known stays out of the sentence.
    """
    if milliseconds:
        return f"{milliseconds / 1000:g} s"
    return "its timeout"


def in_order(events: Iterable[Event]) -> list[Event]:
    """The events by time, and within a file by line.

    What comes from files without times stands last.  Lines win over their times in a file, as
    torch's stamps can fall back by a second where the second turns.  An event without a time stands
    behind the last dated one before it in its file, or before the first one.
    """
    keyed: list[tuple[float, str, int, int]] = []
    placed = sorted(events, key=lambda e: (e.path, e.line, e.time is None, e.time or 0.0))
    for path, held in groupby(placed, key=lambda event: event.path):
        own = list(held)
        now = next((event.time for event in own if event.time is not None), float("inf"))
        for event in own:
            if event.time is not None:
                # torch reads second and fraction one after the other: 09.01 behind 09.93 means
                # 10.01
                now = max(now, event.time)
            # the place comes last, so that equal events keep their order
            keyed.append((now, path, event.line, len(keyed)))
    return [placed[place] for *_, place in sorted(keyed)]


def pick(*groups: Iterable[Evidence], limit: int = 8) -> tuple[Evidence, ...]:
    """The first few different pieces of evidence of each group, the first group first."""
    chosen: list[Evidence] = []
    for piece in chain.from_iterable(groups):
        if len(chosen) == limit:
            break
        if piece not in chosen:
            chosen.append(piece)
    return tuple(chosen)


def among(events: Iterable[Event]) -> Callable[[Event], bool]:
    """A function that says whether an event is one of these.

    An event is compared with those of its own line only.
    """
    places: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        places.setdefault((event.path, event.line), []).append(event)
    return lambda event: event in places.get((event.path, event.line), ())


def without(events: Iterable[Event], others: Iterable[Event]) -> list[Event]:
    """The events that are not among these others."""
    is_other = among(others)
    return [event for event in events if not is_other(event)]


def matching(events: Iterable[Event], *fragments: str) -> list[Event]:
    """Events whose raw text holds one of the fragments.

    Capitals and small letters are one.
    """
    lowered = [fragment.lower() for fragment in fragments]
    matching_events = []
    for event in events:
        if any(fragment in event.text.lower() for fragment in lowered):
            matching_events.append(event)
    return matching_events


def family(case: Case, *families: str) -> list[Event]:
    """NCCL WARN events of these families, then those of level ATTN.

    A connection of a stranger, which NCCL refused, is none of the job's.
    """
    lines = []
    for event in case.of(NcclWarn, NcclAttn):
        if event.data.family in families and not _is_of_stranger(case, event):
            lines.append(event)
    return lines


PORT = re.compile(r"<(\d{1,5})>")
"""The port of a peer, as NCCL writes it behind the address or the name of its host."""


@once
def _strangers(case: Case) -> frozenset[tuple[str, str]]:
    """File and port of each peer that NCCL discarded in the handshake.

    Port scanners and health checks knock on NCCL's port, as does a job at the same address.
    """
    known = set()
    for event in case.of(NcclInfo, NcclAttn):
        if event.data.family == "foreign" and "discarding" in event.text:
            known |= {(event.path, port) for port in PORT.findall(event.text)}
    return frozenset(known)


def _is_of_stranger(case: Case, event: Event) -> bool:
    """Whether a closed connection is that of a peer that never belonged to the job."""
    if event.data.family != "socket_closed" or not _strangers(case):
        return False
    return any((event.path, port) in _strangers(case) for port in PORT.findall(event.text))


def says_nothing(event: Event) -> bool:
    """Whether it is a message of NCCL that follows from others, or that any fault may bring."""
    return isinstance(event.data, NcclMessage) and event.data.family in SAYS_NOTHING


@once
def messages(case: Case) -> list[Event]:
    """Events that carry a library's own error text.

    They are NCCL warnings, torch's quotation of them, and exceptions; warnings that say nothing by
    themselves are left out.
    """
    lines = case.of("nccl.warn", "c10d.error", "python.exception", "system.error", "log.error")
    said = []
    for event in lines:
        stranger = isinstance(event.data, NcclWarn) and _is_of_stranger(case, event)
        if not says_nothing(event) and not stranger:
            said.append(event)
    return said


def initialized(case: Case) -> list[Event]:
    """The lines that say that a communicator was initialized: "Init COMPLETE"."""
    return case.of(NcclInit, phase="done")


def over_sockets(case: Case) -> list[Event]:
    """The lines that say that NCCL uses sockets between hosts."""
    return case.of(NcclNetwork, name="Socket")


def over_infiniband(case: Case) -> list[Event]:
    """The channels that were connected over InfiniBand or RoCE."""
    return [event for event in case.of(NcclChannel) if "NET/IB" in str(event.data.transport)]


@once
def foreign_address(case: Case) -> list[Event]:
    """What the store says where it cannot listen at a foreign address.

    Such an address is one that its host does not have.
    """
    return matching(case.of(StoreBind), "errno: 99", "Cannot assign requested address")


@once
def model_mismatch(case: Case) -> list[Event]:
    """What DDP says where the ranks' models differ.

    It compares them at its start.
    """
    lines = matching(
        case.of("ddp.params", "python.exception"),
        "sizes of the same param",
        "inconsistent",
        "verifies",
    )
    # torch's own check of each call says "inconsistent" of the call, and not of the model
    return [event for event in lines if "inconsistent collective" not in event.text]


def ddp_ranks(lines: Iterable[Event]) -> set[int]:
    """The ranks that DDP names in these lines."""
    found: set[int] = set()
    for event in lines:
        if isinstance(event.data, DdpParams):
            found.update(event.data.ranks or ())
    return found


def env_of(case: Case, name: str) -> list[Event]:
    """Every line in which NCCL says that it read this variable."""
    return [event for event in case.of(NcclEnv) if event.data.name == name]


def first_finding(case: Case, *witnesses: Callable[[Case], Finding | None]) -> Finding | None:
    """The finding of the first witness that has one."""
    for witness in witnesses:
        finding = witness(case)
        if finding is not None:
            return finding
    return None


OWN_TESTS = ("connect.", "experiment.", "resources.", "told.")
"""How kinds begin that come from tests of ours, or from people.

They are no word of a job.
"""


@once
def of_job(case: Case) -> list[Event]:
    """What shows that a job has been running, whatever else was looked at."""
    return [event for event in case.events if not event.kind.startswith(OWN_TESTS)]


@once
def failed(case: Case) -> bool:
    """True when anything shows that the job did not succeed."""
    return any(event.kind in FATAL for event in case.events)


def otherwise(cause: str, went_well: Sequence[Evidence], summary: str, missing: str) -> Finding:
    """``clear`` where something shows that it went well, else ``unknown``.

    With ``unknown`` it tells what would settle it.
    """
    if went_well:
        return clear(cause, summary, tuple(went_well[:3]))
    return unknown(cause, missing)
