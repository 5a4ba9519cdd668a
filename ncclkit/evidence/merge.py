"""Floods become one event with a count.

Every event learns its rank, and of our own runs its host.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from msgspec import structs

from ncclkit.agent.digits import is_whole
from ncclkit.core.kinds import C10dCommunicator, C10dTimeout, NcclChannel
from ncclkit.core.model import Event, fields_of
from ncclkit.evidence.grammars.grammar import LabelledEvent
from ncclkit.evidence.grammars.torchcomms import may_be_world

IGNORED_FIELDS = frozenset(
    {
        "message",
        "frames",
        "until",
        "last_error",
        "ran_ms",
        "channels",
        "last",
        "first",
        "error",
    }
)
"""Fields of `data` in which equal events may differ."""
KEEP_LAST = ("progress", "worker.phase", "nccl.link")
"""Kinds whose last event per rank and file (and phase, and connection) alone counts."""
QUOTING = frozenset({"message", "error", "frames"})
"""Fields of kinds whose events are told apart by their text as well."""
NUMBERS = re.compile(r"(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})|0x[0-9a-fA-F]+|\d+")
NEVER_MERGED = ("flight.", "ras.", "stack", "connect.", "resources.")
"""Kinds whose events are never merged."""
TRACE_GAP = 12
"""Back-trace lines of one process that are this close (in lines) belong to one failure."""


class Merger:
    """Collects events; equal ones become one.

    Equal are those of the same kind, source and process, with the same text without its numbers.
    """

    def __init__(self) -> None:
        self._events: dict[Any, RepeatedEvent] = {}
        self._traces: dict[Any, int] = {}

    def add_line(self, event: Event) -> RepeatedEvent | None:
        """Take the event of one line.

        Nothing is taken of a line that belongs to a back-trace told before: returns None.
        """
        if event.kind == "nccl.trace" and self.continues(event):
            return None
        return self.add_event(event)

    def add_event(self, event: Event) -> RepeatedEvent:
        """Take an event that may already stand for many."""
        key = _merge_key(event)
        repeated = self._events.get(key)
        if repeated is None:
            repeated = self._events[key] = RepeatedEvent(event)
        else:
            repeated.add(event)
        return repeated

    def continues(self, event: Event) -> bool:
        """True for a line of a back-trace that began shortly before.

        The next line is compared with this one.
        """
        process = (event.path, event.host, event.pid)
        near = self._traces.get(process, event.line - TRACE_GAP)
        self._traces[process] = event.line
        return 0 < event.line - near < TRACE_GAP

    def collected(self) -> list[Event]:
        """What was collected, in the order of the files.

        It may be taken by another merger.
        """
        return [repeated.event() for repeated in self._events.values()]

    def events(self) -> list[Event]:
        """The same without what another event of them tells.

        Left out are exception lines that a traceback holds, and stacks of timeouts that have a
        message.
        """
        events = self.collected()
        errors = [event for event in events if event.kind == "python.exception"]
        tracebacks = Regions(event for event in errors if event.data.frames)
        ignored = Regions(
            (event for event in events if event.kind == "python.ignored"), of_rank=True
        )
        timeouts = Timeouts(event for event in events if event.kind == "c10d.timeout")
        gone = {
            id(event)
            for event in errors
            if ignored.hold(event) or not event.data.frames and tracebacks.hold(event)
        }
        return [event for event in events if id(event) not in gone and not timeouts.better(event)]


class RepeatedEvent:
    """Equal events while they are counted."""

    __slots__ = ("channels", "count", "last", "late", "shown", "values")

    def __init__(self, event: Event) -> None:
        self.shown = self.last = event
        self.count = event.count
        self.channels = set(event.data.channels) if event.kind == "nccl.channel" else None
        self.late = b""
        """The number by which the last line differs, where that was not read (see
        `deduplication`)."""
        self.values: set[bytes] = set()
        """Channels that were not read."""

    def add(self, event: Event) -> None:
        """One more, or many."""
        self.count += event.count
        self.late = b""
        if self.channels is not None:
            self.channels.update(event.data.channels)
        backwards = (
            event.kind == "progress"
            and event.rank is None
            and event.data.step < self.last.data.step
        )
        if not backwards:  # of several unnamed speakers the one that came furthest counts
            self.last = event

    def again(self, value: bytes) -> None:
        """One more, known by the number in which its line differs: a channel, an opCount."""
        self.count += 1
        self.late = value
        if value and self.channels is not None:
            self.values.add(value)

    def event(self) -> Event:
        """What stands for all of them."""
        if (
            self.shown.kind in KEEP_LAST
        ):  # of progress only the last line of a block is read: how many were is no number
            return replace(self.last, count=1 if self.shown.kind == "progress" else self.count)
        if self.channels is not None:
            channels = sorted(self.channels.union(map(int, self.values)))
            data = structs.replace(self.shown.data, channels=channels)
            return replace(self.shown, data=data, count=self.count)
        if self.shown.kind == "nccl.op":
            if self.late:
                # NCCL prints opCount in hexadecimal
                last = int(self.late, 16)
            else:
                last = self.last.data.last
            data = structs.replace(self.shown.data, last=last)
            return replace(self.shown, data=data, count=self.count)
        if self.count != self.shown.count:
            return replace(self.shown, count=self.count)
        return self.shown


def merges(event: Event) -> bool:
    """True when an equal event would only be counted."""
    return event.kind not in (*KEEP_LAST, "nccl.trace") and not event.kind.startswith(NEVER_MERGED)


def _merge_key(event: Event) -> Any:
    who = (event.kind, event.path, event.host, event.pid, event.rank)
    data = event.data
    if event.kind == "progress":
        return who
    if event.kind == "worker.phase":
        return (*who, data.phase)
    if event.kind == "nccl.link":
        return (*who, data.what, data.device, data.port, data.peer, data.queue)
    if event.kind == "nccl.channel":
        return (
            event.kind,
            event.host,
            event.pid,
            data.src,
            data.dst,
            data.transport,
            data.gdr,
        )
    if event.kind.startswith(NEVER_MERGED):
        return (*who, event.line, event.text)
    fields = fields_of(event)
    told = [(name, repr(fields[name])) for name in fields if name not in IGNORED_FIELDS]
    if QUOTING.isdisjoint(fields):
        shape = ""
    else:
        shape = _text_without_numbers(event.text)
    return (*who, tuple(told), shape)


def _text_without_numbers(text: str) -> str:
    """A text without its numbers; addresses of peers stay, as they tell who it was."""
    if "." not in text:
        return NUMBERS.sub("#", text)
    return NUMBERS.sub(lambda match: match[1] or "#", text)


class Regions:
    """The lines of tracebacks, by file and type of error.

    So each error is looked up and not compared with all.  `of_rank`: an error is only held by a
    region of its own rank.
    """

    def __init__(self, events: Iterable[Event], *, of_rank: bool = False) -> None:
        self.of_rank = of_rank
        self.known: dict[Any, tuple[list[int], list[int]]] = {}
        """Key → first lines in order, and the last line of any region that begins there or
        before."""
        for event in sorted(events, key=lambda event: event.line):
            lines, ends = self.known.setdefault(self._key(event), ([], []))
            lines.append(event.line)
            ends.append(max(event.data.until, ends[-1] if ends else 0))

    def _key(self, event: Event) -> Any:
        return (event.path, event.data.type, event.rank if self.of_rank else None)

    def hold(self, event: Event) -> bool:
        """True where an error stands in the lines of a traceback above it.

        It must also be of the type of that.
        """
        lines, ends = self.known.get(self._key(event), ([], []))
        above = bisect_left(lines, event.line)
        return above > 0 and event.line <= ends[above - 1]


class Timeouts:
    """Which ranks a message says to have timed out.

    The stack of such a timeout says the same, and less.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        known = list(events)
        self.ranks = {event.rank for event in known if not _is_bare(event.data)}
        self.any = bool(self.ranks) or any(event.rank is not None for event in known)

    def better(self, event: Event) -> bool:
        """True for the stack of a timeout that is reported better elsewhere.

        A message tells it better, or the first line of that stack.
        """
        if not isinstance(event.data, C10dTimeout) or not _is_bare(event.data):
            return False
        if event.rank is None:
            return self.any
        return event.rank in self.ranks


def _is_bare(timeout: C10dTimeout) -> bool:
    """Whether it was told without what timed out and after how long."""
    numbers = (timeout.seq, timeout.timeout_ms, timeout.ran_ms)
    return not timeout.op and numbers == (None, None, None)


def assign_ranks(events: Iterable[Event]) -> list[Event]:
    """The last step over all files: ranks by process, public data only."""
    whole = list(_with_whole_hosts(list(events)))
    merged = list(_ranks_of_sole_communicator(whole))
    ties = _rank_of_process(merged)
    hosts = {event.host for event in merged if event.kind == "nccl.init" and event.host}
    return list(
        _each_exit_once(_public_event(_with_rank(event, ties, len(hosts) > 1)) for event in merged)
    )


def _with_whole_hosts(events: list[Event]) -> Iterator[Event]:
    """Events without the digits that a torn line put before the name of their host.

    Two ranks that write at once tear lines: ``… [18node-1:943:943 [0] NCCL INFO``.
    """
    hosts_of: dict[int, set[str]] = {}
    for event in events:
        if event.pid is not None and event.host:
            hosts_of.setdefault(event.pid, set()).add(event.host)
    for event in events:
        whole = event.host
        if event.pid is not None and event.host:
            for name in hosts_of[event.pid]:
                if event.host.endswith(name) and is_whole(event.host.removesuffix(name)):
                    whole = name
        if whole != event.host:
            event = replace(event, host=whole)
        yield event


def _ranks_of_sole_communicator(events: list[Event]) -> Iterator[Event]:
    """Events with the rank that torchcomms names, where it knows one communicator alone.

    Such a one may have any name that does not say that it is of some ranks.
    """
    names = set()
    for event in events:
        if isinstance(event.data, C10dTimeout) and event.data.api == "nccl2":
            names.add(event.data.pg or "")
        elif isinstance(event.data, C10dCommunicator):
            names.add(event.data.name)
    names.discard("")
    is_job = len(names) == 1 and may_be_world(next(iter(names)))
    for event in events:
        unnamed = isinstance(event.data, C10dTimeout) and event.data.api == "nccl2"
        if is_job and unnamed and event.rank is None:
            yield replace(event, rank=event.data.pg_rank)
        else:
            yield event


def _each_exit_once(events: Iterable[Event]) -> Iterator[Event]:
    """Events with each exit of a process once.

    torchrun tells each exit twice, as it happens and in its summary; the first word stands.
    """
    seen: set[tuple[str, int | None]] = set()
    for event in events:
        if event.kind == "elastic.exit" and event.pid is not None:
            if (event.path, event.pid) in seen:
                continue
            seen.add((event.path, event.pid))
        yield event


def _rank_of_process(events: list[Event]) -> dict[tuple[str, int], int]:
    """(host, pid) → global rank.

    The largest communicator is the job, and a worker's own word wins.
    """
    inits = []
    for event in events:
        if event.kind == "nccl.init" and event.pid is not None and not event.data.parent:
            inits.append(event)
    world = max((event.data.nranks for event in inits), default=0)
    ties: dict[tuple[str, int], int] = {}
    for event in inits:
        if event.data.nranks == world and event.pid is not None:
            ties[event.host, event.pid] = event.data.rank
    # behind the communicators, as a worker's own word wins
    for event in events:
        if event.kind == "worker.phase" and event.pid is not None and event.rank is not None:
            host = event.host.partition(".")[0]
            ties[host, event.pid] = event.rank
    sole = {}
    for pid, ranks in _ranks_by_pid(ties, events).items():
        # two hosts may give one number to different ranks, and then it tells none
        if len(ranks) == 1:
            sole["", pid] = next(iter(ranks))
    return ties | sole


def _ranks_by_pid(ties: dict[tuple[str, int], int], events: list[Event]) -> dict[int, set[int]]:
    """pid → the ranks that it is known as on any host."""
    ranks: dict[int, set[int]] = {}
    for (_, pid), rank in ties.items():
        ranks.setdefault(pid, set()).add(rank)
    for event in events:
        if event.kind == "elastic.exit" and event.pid is not None and event.rank is not None:
            ranks.setdefault(event.pid, set()).add(event.rank)
    return ranks


def _with_rank(event: Event, ties: dict[tuple[str, int], int], many_hosts: bool) -> Event:
    if event.pid is not None:
        rank = ties.get(
            (event.host.partition(".")[0], event.pid),
            ties.get(("", event.pid)) if not event.host else None,
        )
        is_free = event.rank is None or isinstance(event, LabelledEvent)
        if rank is not None and rank != event.rank and is_free:
            return replace(event, rank=rank)
        if rank is not None:
            return event
    if isinstance(event, LabelledEvent) and many_hosts:
        return replace(event, rank=None)
    if event.kind == "nccl.init" and event.rank is None and event.pid is None:
        return replace(event, rank=event.data.rank)
    return event


def _public_event(event: Event) -> Event:
    data = event.data
    if isinstance(data, NcclChannel) and isinstance(data.channels, list):
        data = structs.replace(data, channels=len(data.channels))
    elif not isinstance(event, LabelledEvent):
        return event
    return Event(
        event.kind,
        event.text,
        event.path,
        event.line,
        event.time,
        event.host,
        event.pid,
        event.rank,
        data,
        event.count,
    )


Place = tuple[str, object]
"""Folder, and a rank or the name of a launcher's log."""


def assign_hosts(events: Iterable[Event]) -> list[Event]:
    """Events with the host of their rank or launcher.

    It is known in runs of ours on several hosts.
    """
    given = list(events)
    hosts: dict[str, dict[Place, str]] = {}
    for event in given:
        if event.kind == "worker.phase" and event.host:
            folder, _ = _folder_and_name(event.path)
            if event.data.phase == "launch":
                who = event.data.log
            else:
                who = event.rank
            hosts.setdefault(folder, {})[folder, who] = event.host
    where = {}
    for known in hosts.values():
        if len({*known.values()}) > 1:
            for place, host in known.items():
                where[place] = host
    if where:
        return [_with_host(event, where) for event in given]
    return given


def _with_host(event: Event, where: dict[Place, str]) -> Event:
    if event.host:
        return event
    folder, name = _folder_and_name(event.path)
    if event.rank is not None:
        host = where.get((folder, event.rank))
    else:
        host = where.get((folder, name))
    if host:
        return replace(event, host=host)
    return event


def _folder_and_name(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name.removesuffix(".gz")
