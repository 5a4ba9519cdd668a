"""Flight Recorder dumps of all schema versions, brought to one form.

The versions are those of torch 2.2 to 2.15.  The calls of a rank are kept column by column, so that
thousands of dumps fit in memory together (26 bytes a call).

Dumps are pickles of dicts, lists, tuples, strings and numbers, from strangers: plain values come
out, and nothing in them runs.  The standard library's unpickler reads them with its doors to code
locked.  What a pickle can still do is to take memory and time, or to break the unpickler: a key of
nested tuples whose hash takes 2 ** 60 steps, keys of one hash, an index of 4 G.  So it is called in
a process with limits (`ncclkit.evidence.processes.limited`).  A reader of our own, and a check that
let only plain opcodes pass to the fast one, took 400 lines for the same.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ncclkit.core.kinds import Frame
from ncclkit.evidence.flight import torchcomms
from ncclkit.evidence.grammars.grammar import frame
from ncclkit.evidence.processes import Refused

DAMAGE = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    LookupError,
    struct.error,
    TypeError,
    OverflowError,
    ValueError,
)
"""What the unpickler raises on a damaged pickle."""


def loads(data: bytes) -> Any:
    """The plain value in a pickle; raises Refused, never runs anything."""
    try:
        # a buffer lets it read ahead
        return _Locked(
            io.BufferedReader(io.BytesIO(data), 1 << 18), encoding="utf-8", errors="replace"
        ).load()
    except Refused:
        raise
    except DAMAGE as error:
        raise Refused(f"is damaged ({type(error).__name__})") from error


class _Locked(pickle.Unpickler):
    """Python's unpickler without a way to code.

    Each such way goes through a class or function, or an object outside.
    """

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise Refused("names code, which plain values do not need; nothing in it was executed")

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("refers to an object outside the file; nothing in it was executed")


T = TypeVar("T")
GroupKey = tuple[str, str]
"""(name, description) of a process group."""
Shapes = tuple[tuple[int, ...], ...]


class CallSizes(NamedTuple):
    """The tensors of one call."""

    total: int | None
    """Elements of all of them; None where there is no tensor, or the dump does not record it."""
    shapes: Shapes


class Kind(NamedTuple):
    """What many calls have in common."""

    library: str
    op: str
    """Without the peers of a send or receive."""
    inputs: CallSizes
    outputs: CallSizes
    dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    src: int | None = None
    """Of a send or receive, as rank of the group; None also for a receive from any source."""
    dst: int | None = None

    @property
    def closes(self) -> bool:
        """True for the record that ends a coalesced batch.

        It holds the state of all members of the batch.
        """
        return self.op.endswith("coalesced")


class Detail(NamedTuple):
    """What is kept of few calls."""

    frames: list[Frame]
    """Innermost first."""
    sends: tuple[int, ...]
    """Elements for each peer, where the call lists them one by one."""
    receives: tuple[int, ...]


@dataclass(slots=True)
class Calls:
    """One rank's calls in one process group, in order of their sequence numbers."""

    seqs: array[int] = field(default_factory=lambda: array("q"))
    kinds: array[int] = field(default_factory=lambda: array("I"))
    """Index of `Dump.kinds`."""
    created: array[int] = field(default_factory=lambda: array("q"))
    """Nanoseconds since the epoch, 0 where the dump does not record it."""
    status: bytearray = field(default_factory=bytearray)
    """Index of `Dump.states`."""
    sites: array[int] = field(default_factory=lambda: array("I"))
    """Index of `Dump.sites`: the line of the program that called."""
    entries: array[int] = field(default_factory=lambda: array("I"))
    """Place in the dump, while it is read."""
    open: bytes = b""
    """1 for a call that the rank still waits for, as far as the dump shows."""
    waiting: int | None = None
    """Index of the first call that the rank still waits for, None where it waits for none."""
    details: dict[int, Detail] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.seqs)

    def at(self, seq: int) -> int | None:
        """Index of the first call `seq`."""
        place = bisect_left(self.seqs, seq)
        if place < len(self.seqs) and self.seqs[place] == seq:
            return place
        return None


SHARED = ("seqs", "kinds", "status", "sites", "entries", "open")
"""The columns that are the same on all ranks which make the same calls.

The times at which they make them are their own.
"""


def sort(calls: Calls) -> None:
    """Bring the columns in order of sequence numbers, where the dump is not."""
    seqs = calls.seqs
    order = sorted(range(len(seqs)), key=seqs.__getitem__)
    if order != list(range(len(seqs))):
        for name in ("seqs", "kinds", "created", "sites", "entries"):
            column = getattr(calls, name)
            setattr(calls, name, array(column.typecode, [column[place] for place in order]))
        calls.status = bytearray(calls.status[place] for place in order)


def mark_open(
    calls: Calls, kinds: list[Kind], states: list[tuple[str, bool]], reports_completion: bool
) -> None:
    """Fill `open`; members of a coalesced batch have no state of their own.

    `reports_completion`: some call of this dump is ``completed``, so this backend records
    completion.
    """
    library = kinds[calls.kinds[0]].library
    table = bytes(
        _is_open(library, *states[n], reports_completion) if n < len(states) else 0
        for n in range(256)
    )
    marks = bytearray(calls.status.translate(table))
    closing = {number for number, kind in enumerate(kinds) if kind.closes}
    if not closing.isdisjoint(calls.kinds):
        for place, number in enumerate(calls.kinds):
            member = place - 1
            while number in closing and member >= 0 and calls.seqs[member] == calls.seqs[place]:
                marks[member], member = marks[place], member - 1
    calls.open = bytes(marks)
    # a call behind which another one finished has finished too, but for gloo, which works on
    # several at once
    if library == "gloo":
        place = marks.find(1)
    else:
        place = marks.rfind(0) + 1
    if 0 <= place < len(marks):
        calls.waiting = place
    else:
        calls.waiting = None


def _is_open(library: str, state: str, retired: bool, reports_completion: bool) -> bool:
    """Whether a call is still open, as its library and its state tell.

    gloo never leaves ``scheduled``, nccl2 does only if it reports completion: there `retired` says
    whether the call is over, else the state does.  An aborted NCCL kernel counts as completed,
    though the watchdog never retired its call: recorded on 4 x H200 with torch 2.11, where dumps of
    a receive without a sender and of two groups in crossed order say so.  Of torchcomms the state
    is not looked at any more once a call has returned.
    """
    if library == torchcomms.LIBRARY:
        return not retired
    if library == "gloo" or (library not in ("nccl", "") and not reports_completion):
        return state != "completed" and not retired
    return state != "completed" or not retired


FIELDS = (
    "process_group collective_seq_id p2p_seq_id profiling_name time_created_ns "
    "input_sizes input_dtypes output_sizes output_dtypes state retired is_p2p frames"
).split()
FRAMES = 24
SHAPES = 8
"""Tensors of one call whose shapes are kept; their elements count all the same."""
DIMENSIONS = 16
PEERS = 8192
TAIL = 2
"""How many of a group's last calls keep their stacks, besides the first call that the rank waits
for."""
LARGE = 1 << 62
PEER = re.compile(r"(send|recv)(?: (\d{1,7}|\?)(->|<-)(\d{1,7}|\?))?")
WRONG = (TypeError, KeyError, ValueError, AttributeError, IndexError, OverflowError)
"""What an entry of other types than torch writes raises; it is left out."""


class Made(dict[Any, Any]):
    """Values made from their keys, each once."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make

    def __missing__(self, key: Any) -> Any:
        value = self[key] = self.make(key)
        return value


WATCHDOG = 1_000_000_000
"""Nanoseconds within which torch's watchdog retires what has completed; it looks ten times a
second."""


class Columns:
    """Reads entries into `collectives` and into `pairs`, the sends and receives, by group."""

    def __init__(self, names: Mapping[str, GroupKey]) -> None:
        self.names = names
        """Number of a group (torch 2.3 and earlier) → its name and description."""
        self.kinds: list[Kind] = []
        self.states: list[tuple[str, bool]] = []
        self.sites: list[str] = [""]
        self.collectives: dict[GroupKey, Calls] = {}
        self.pairs: dict[GroupKey, Calls] = {}
        self.left_out = 0
        """Entries that are none."""
        self.newest: tuple[Calls, int] | None = None
        self._sites: dict[str, int] = {"": 0}
        self._places: dict[int, int] = {}
        """Identity of a frame → its site, 0 for a frame of torch."""
        self._wide: dict[int, CallSizes] = {}
        self._types: dict[int, tuple[str, ...]] = {}

    def read(self, entries: Sequence[Any]) -> None:
        """Take all entries of a dump, and leave out what is not one."""
        get = itemgetter(*FIELDS)
        site = self._site
        wide = self._sizes
        texts = self._texts
        kinds = Made(self._kind)
        states = Made(self._state)
        groups = Made(self._columns)
        for number, entry in enumerate(entries):
            try:
                try:
                    values = get(entry)
                except KeyError:
                    values = self._older(entry)
                (
                    group,
                    seq,
                    own,
                    name,
                    made,
                    ins,
                    types,
                    outs,
                    out_types,
                    state,
                    retired,
                    p2p,
                    frames,
                ) = values
                if p2p:
                    seq = own
                if type(seq) is not int or not -LARGE < seq < LARGE:
                    continue
                kind = kinds[
                    name,
                    tuple(ins[0][:DIMENSIONS]) if len(ins) == 1 else wide(ins),
                    types[0] if len(types) == 1 else texts(types),
                    tuple(outs[0][:DIMENSIONS]) if len(outs) == 1 else wide(outs),
                    out_types[0] if len(out_types) == 1 else texts(out_types),
                ]
                status = states[state, retired]
                place = site(frames) if frames else 0
                add_seq, add_kind, add_created, add_status, add_site, add_entry = groups[
                    group[0], group[1], p2p
                ]
                add_seq(seq)
                add_kind(kind)
                add_created(made if type(made) is int and 0 < made < LARGE else 0)
                add_status(status)
                add_site(place)
                add_entry(number)
            except WRONG:
                self.left_out += 1
        self._finish(entries)

    def _finish(self, entries: Sequence[Any]) -> None:
        reports_completion = any(state == "completed" for state, _ in self.states)
        newest = -1
        for calls in (*self.collectives.values(), *self.pairs.values()):
            sort(calls)
            self._settle(calls, entries)
            mark_open(calls, self.kinds, self.states, reports_completion)
            last = range(max(0, len(calls) - TAIL), len(calls))
            for place in {*last, *([] if calls.waiting is None else [calls.waiting])}:
                entry = entries[calls.entries[place]]
                sizes = (
                    _elements_of_each(entry.get("input_sizes")),
                    _elements_of_each(entry.get("output_sizes")),
                )
                calls.details[place] = Detail(list(_frames_of_stack(entry.get("frames"))), *sizes)
                if calls.entries[place] > newest:
                    self.newest, newest = (calls, place), calls.entries[place]
            calls.entries = array("I")

    def _settle(self, calls: Calls, entries: Sequence[Any]) -> None:
        """Settle calls that are completed but not retired.

        The watchdog had no time yet, or the call was aborted long after it was made.
        """
        fresh = [
            number for number, known in enumerate(self.states) if known == ("completed", False)
        ]
        if not fresh or not any(map(calls.status.count, fresh)):
            return
        done = self._state(("completed", True))
        for place, status in enumerate(calls.status):
            if status in fresh:
                end = entries[calls.entries[place]].get("time_discovered_completed_ns")
                made = calls.created[place]
                if not (isinstance(end, int) and made and end - made > WATCHDOG):
                    calls.status[place] = done

    def _older(self, entry: Any) -> tuple[Any, ...]:
        """The fields of an entry of torch 2.2 to 2.4, or of JSON, where some are absent."""
        values = dict(zip(FIELDS, map(entry.get, FIELDS), strict=True))
        name = values["profiling_name"]
        if values["process_group"] is None:
            number = entry.get("pg_id", 0)
            if type(number) is int:
                values["process_group"] = self.names.get(str(number), (str(number), ""))
            else:
                values["process_group"] = None
        if values["is_p2p"] is None:
            values["is_p2p"] = bool(PEER.search(name))
        for name_of in ("collective_seq_id", "p2p_seq_id"):
            if values[name_of] is None:
                values[name_of] = entry.get("seq_id")
        if values["time_created_ns"] is None and type(entry.get("time_created_us")) is int:
            values["time_created_ns"] = entry["time_created_us"] * 1000
        for name_of in ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes"):
            values[name_of] = values[name_of] or ()
        return tuple(values.values())

    def _columns(self, key: tuple[Any, Any, Any]) -> tuple[Callable[[int], None], ...]:
        """What appends to the columns of a group."""
        name, desc, p2p = key
        if type(name) is not str or type(desc) is not str:
            raise TypeError(key)
        calls = (self.pairs if p2p else self.collectives).setdefault(
            (name[:200], desc[:200]), Calls()
        )
        columns = (calls.seqs, calls.kinds, calls.created, calls.status, calls.sites, calls.entries)
        return tuple(column.append for column in columns)

    def _state(self, key: tuple[Any, Any]) -> int:
        """Number of a state; more than torch has are taken for the first."""
        state, retired = key
        if type(state) is not str:
            raise TypeError(state)
        self.states += [(state[:20], retired is not False)] if len(self.states) < 250 else []
        return len(self.states) - 1

    def _kind(self, key: tuple[Any, ...]) -> int:
        name, ins, types, outs, out_types = key
        library, _, op = name[:200].rpartition(":")
        peer = PEER.match(op)
        if peer and peer[3] == "->":
            src, dst = peer[2], peer[4]
        elif peer:
            src, dst = peer[4], peer[2]
        else:
            src, dst = None, None
        kind = Kind(
            library,
            peer[1] if peer else op,
            ins if type(ins) is CallSizes else _sizes_of_one(ins),
            outs if type(outs) is CallSizes else _sizes_of_one(outs),
            types if type(types) is tuple else (_checked_text(types),),
            out_types if type(out_types) is tuple else (_checked_text(out_types),),
            int(src) if src and src != "?" else None,
            int(dst) if dst and dst != "?" else None,
        )
        self.kinds.append(kind)
        return len(self.kinds) - 1

    def _site(self, frames: list[Any]) -> int:
        """Number of the innermost line that is not torch's own."""
        known = self._places
        for item in frames[:FRAMES]:
            place = known.get(id(item))
            if place is None:
                place = known[id(item)] = self._number(item)
            if place:
                return place
        return 0

    def _number(self, item: Any) -> int:
        file, line, func = item["filename"][:300], item["line"], item["name"][:200]
        if type(file) is not str or "/torch/" in file:
            return 0
        site = f"{file}:{line if type(line) is int and abs(line) < LARGE else 0} in {func}"
        place = self._sites.setdefault(site, len(self.sites))
        self.sites += [site] if place == len(self.sites) else []
        return place

    def _texts(self, value: Any) -> tuple[str, ...]:
        """The types of a call's tensors; different ones of several are joined."""
        found = self._types.get(id(value))
        if found is None:
            found = self._types[id(value)] = tuple(sorted(set(map(_checked_text, value[:PEERS]))))
        return found

    def _sizes(self, value: Any) -> CallSizes:
        """Sizes of several tensors, or none.

        A list that many entries share is counted once.
        """
        found = self._wide.get(id(value))
        if found is None:
            each = _elements_of_each(value)
            shapes = tuple(tuple(shape[:DIMENSIONS]) for shape in value[:SHAPES])
            found = self._wide[id(value)] = CallSizes(
                min(sum(each), LARGE) if len(value) else None, shapes
            )
        return found


def _sizes_of_one(shape: tuple[Any, ...]) -> CallSizes:
    return CallSizes(_count_elements(shape), (shape,))


def _count_elements(shape: Sequence[Any]) -> int:
    """Elements of one tensor."""
    count = 1
    for size in shape[:DIMENSIONS]:
        if type(size) is not int:
            raise TypeError(size)
        count = min(count * max(0, min(size, LARGE)), LARGE)
    return count


def _elements_of_each(value: Any) -> tuple[int, ...]:
    """Elements of each tensor; () for what is no list of shapes."""
    with suppress(*WRONG):
        return tuple(map(_count_elements, value[:PEERS]))
    return ()


def _checked_text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(value)
    return value[:40]


def _frames_of_stack(value: Any) -> Iterator[Frame]:
    for item in value[:FRAMES] if type(value) is list else ():
        with suppress(*WRONG):
            number = item["line"]
            line = None
            if type(number) is int and abs(number) < LARGE:
                line = number
            yield frame(item["filename"][:300], line, item["name"][:200])


ENTRIES = 200_000
"""Entries read of one dump, the last ones."""
RANKS = 1 << 20
GROUPS = 10_000
HOST = re.compile(r"(?:^|_)((?:host|node)[\w.-]*?)_(?:rank[_-]?)?\d{1,7}(?:\.\w+)?$")
NUMBERS = re.compile(r"\d{1,7}")
NUMBER = re.compile(r"(\d{1,7})(?:\.[a-z]\w{0,30}){0,6}$")


@dataclass(slots=True)
class Dump:
    """What one rank recorded."""

    path: str
    rank: int | None
    version: str
    form: str = "Flight Recorder"
    """What it is: `clog` of torchcomms has the same in lines."""
    is_growing: bool = False
    """Whether it is written while the job runs, so that it may show any moment."""
    host: str = ""
    """From the file's name."""
    members: dict[GroupKey, tuple[int, ...]] = field(default_factory=dict)
    """Global ranks of each group, where the dump names them."""
    kinds: list[Kind] = field(default_factory=list)
    states: list[tuple[str, bool]] = field(default_factory=list)
    """Name, and whether it was retired."""
    sites: list[str] = field(default_factory=list)
    collectives: dict[GroupKey, Calls] = field(default_factory=dict)
    pairs: dict[GroupKey, Calls] = field(default_factory=dict)
    """Sends and receives."""
    total: int = 0
    """Entries in the file."""
    newest: tuple[Calls, int] | None = None
    """Its last call, and the place in its columns."""
    left_out: int = 0
    """Entries that could not be understood."""
    dropped: bool = False
    """True when older entries were overwritten before it was written."""

    def oldest(self) -> int:
        """When the oldest retained call was made, in nanoseconds since the epoch.

        It is 0 where no call has a time.
        """
        times = (
            time
            for c in (*self.collectives.values(), *self.pairs.values())
            for time in c.created[:1]
            if time
        )
        return min(times, default=0)

    def newest_time(self) -> float | None:
        """When its last call was made, in seconds since the epoch.

        It is None where the dump does not say.
        """
        if self.newest is None:
            return None
        calls, place = self.newest
        return calls.created[place] / 1e9 or None

    def word(self, calls: Calls, place: int) -> str:
        """One call in a line.

        It tells number, operation, sizes, types, state, and where the program made the call.
        """
        kind, site = self.kinds[calls.kinds[place]], self.sites[calls.sites[place]]
        shapes = str([list(shape) for shape in kind.inputs.shapes])
        state = self.states[calls.status[place]][0]
        return (
            f"{calls.seqs[place]} {kind.op} {shapes} {'/'.join(kind.dtypes)}"
            f" {state}{f' at {site}' if site else ''}"
        )

    def frames(self, calls: Calls, place: int) -> list[Frame]:
        """The whole stack, kept for the last calls only."""
        detail = calls.details.get(place)
        if detail:
            return detail.frames
        return []

    def share(self, table: MutableMapping[Any, Any]) -> None:
        """Hold only once in memory what other dumps hold as well.

        Where ranks make the same calls that is all but their times.
        """

        def once(value: T, *key: Any) -> T:
            held: T = table.setdefault(key or value, value)
            return held

        self.kinds = once(self.kinds, "kinds", *map(once, self.kinds))
        self.states = once(self.states, "states", *self.states)
        self.sites = once(self.sites, "sites", *map(once, self.sites))
        self.members = {once(key): once(ranks) for key, ranks in self.members.items()}
        for calls in (*self.collectives.values(), *self.pairs.values()):
            for name in SHARED:
                column = getattr(calls, name)
                setattr(calls, name, once(column, name, blake2b(column, digest_size=16).digest()))
            for place, (frames, sends, receives) in calls.details.items():
                # what a dump calls a frame may be anything
                text = repr(frames).encode("utf-8", "backslashreplace")
                stack = once(frames, "stack", blake2b(text, digest_size=16).digest())
                calls.details[place] = once(
                    Detail(stack, sends, receives), id(stack), sends, receives
                )


def of_value(value: Any, path: str, rank: int | None) -> Dump | None:
    """The dump that a plain value holds; None when it is something else."""
    if isinstance(value, list) and value and is_entry(value[0]):
        value = {"version": "1.0", "entries": value}
    if not is_dump(value):
        return None
    name = Path(path).name
    dump_rank = value.get("rank")
    host = HOST.search(name)
    if not isinstance(dump_rank, int) or isinstance(dump_rank, bool) or not 0 <= dump_rank < RANKS:
        number = NUMBER.search(name)
        if rank is not None:
            dump_rank = rank
        elif number:
            dump_rank = int(number[1])
        else:
            dump_rank = None
    version = value.get("version")
    entries = value["entries"]
    first = 0
    if entries:
        first = entries[0].get("record_id")
    kept = entries
    if torchcomms.is_recorder(entries):
        kept = list(torchcomms.renumbered(entries))
    members = dict(_members_of_config(value.get("pg_config")))
    dump = dump_of_entries(kept, path, dump_rank, members)
    dump.version = version[:20] if isinstance(version, str) else ""
    dump.host = host[1] if host else ""
    dump.total = len(entries)
    dump.dropped = isinstance(first, int) and first > 0 or len(entries) > ENTRIES
    return dump


def dump_of_entries(
    entries: Sequence[Any], path: str, rank: int | None, members: dict[GroupKey, tuple[int, ...]]
) -> Dump:
    """The dump of one rank that made these calls, in groups of these members."""
    dump = Dump(path, rank, "", members=members)
    columns = Columns({key[0]: key for key in members})
    columns.read(entries[-ENTRIES:])
    dump.left_out = columns.left_out
    dump.kinds = columns.kinds
    dump.states = columns.states
    dump.sites = columns.sites
    dump.collectives = columns.collectives
    dump.pairs = columns.pairs
    dump.newest = columns.newest
    return dump


def is_dump(value: Any) -> bool:
    """True for the plain value of a Flight Recorder dump."""
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        return False
    if not value["entries"]:
        return "pg_config" in value or "pg_status" in value
    return is_entry(value["entries"][0])


def is_entry(value: Any) -> bool:
    """True for one entry of a dump.

    Torch 2.2 wrote a list of them and nothing else.
    """
    return isinstance(value, dict) and "profiling_name" in value


def _members_of_config(config: Any) -> Iterator[tuple[GroupKey, tuple[int, ...]]]:
    """``{name: {name, desc, ranks: "[0, 1]"}}`` (2.1 and later) and ``{0: [0, 1]}`` (1.4)."""
    known: dict[int, tuple[int, ...]] = {}
    for name, group in islice(config.items(), GROUPS) if isinstance(config, dict) else ():
        if not isinstance(group, dict):
            desc, ranks = "", group
        else:
            desc, ranks = group.get("desc", ""), group.get("ranks", "")
        if not isinstance(name, (str, int)) or not isinstance(desc, str):
            continue
        if id(ranks) not in known:
            if isinstance(ranks, str):
                known[id(ranks)] = _ranks_of_text(ranks)
            else:
                known[id(ranks)] = _rank_list(ranks)
        yield (str(name)[:200], desc[:200]), known[id(ranks)]


@lru_cache(maxsize=128)
def _ranks_of_text(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in NUMBERS.findall(text[: RANKS * 9]))


def _rank_list(ranks: Any) -> tuple[int, ...]:
    listed = ranks[:RANKS] if isinstance(ranks, (list, tuple)) else ()
    if all(type(rank) is int and 0 <= rank < RANKS for rank in listed):
        return tuple(listed)
    return ()
