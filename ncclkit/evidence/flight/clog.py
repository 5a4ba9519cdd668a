"""clog files of torchcomms: start, enqueue and end of each call, as the dump of a rank.

A file is written line by line while the job runs, so it may show any moment of it.  Numbers of
calls and of signatures are those of one process; across ranks the place of a call in its
communicator counts.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ncclkit.agent.digits import is_whole
from ncclkit.evidence.flight.dumps import RANKS, Dump, dump_of_entries
from ncclkit.evidence.flight.torchcomms import BATCH, LIBRARY, PAIRS, TORCH_NAMES

LONGEST = 1 << 16
"""Bytes of a line of a clog file; a longer one is cut, and then is none."""
CALLS = 50_000
"""Calls that are kept of a file, the last ones."""
PENDING = 4096
"""Calls of one kind that may be under way at once."""
SIGNATURES, NAMES = 10_000, 1_000
"""Kinds of calls and communicators that a file may have."""
HEAD = re.compile(rb"V\|\d{1,9}\|base_timestamp=\d{1,12}\.\d{1,6}")
VERSION = re.compile(r"V\|(?P<version>\d{1,9})\|base_timestamp=(?P<base>\d{1,12}\.\d{1,6})")
SIGNATURE = re.compile(r"C(\d{1,12})\|sig\|(\w{1,60})((?:\|[\w.]{1,60}=[^|]*)*)$")
EVENT = re.compile(
    r"(?:(?P<graph>G\d{1,20})\|)?C(?P<call>\d{1,12})\|(?P<what>[QSEW])"
    r"(?:\|work_id=(?P<work>\d{1,18}))?\|\+(?P<at>\d{1,10}\.\d{1,6})$"
)
NEW = re.compile(
    r"new_comm\|comm=(?P<name>.*)\|rank=(?P<rank>\d{1,7})\|world_size=(?P<size>\d{1,7})$"
)
SPLIT = re.compile(
    r"split\|parent=(?P<parent>[^|]{0,200})\|child=(?P<child>[^|]{0,200})\|ranks=(?P<ranks>[\d,]*)$"
)
LEAKED = re.compile(r"WARN\|comm=.*\|leaked work_id=(\d{1,18})\|")
TORCH_TYPES = {
    "f32": "Float",
    "f64": "Double",
    "f16": "Half",
    "bf16": "BFloat16",
    "i64": "Long",
    "i32": "Int",
    "i16": "Short",
    "i8": "Char",
    "u8": "Byte",
    "bool": "Bool",
}


def is_clog(head: bytes) -> bool:
    """Whether a file that begins so is one of torchcomms' clog."""
    return HEAD.match(head) is not None


@dataclass(slots=True)
class _Call:
    """One call of a collective, send or receive."""

    signature: _Signature
    seq: int
    work: int
    created: float
    state: str = "scheduled"
    is_over: bool = False


@dataclass(slots=True)
class _Signature:
    """What calls of one kind have in common."""

    op: str
    comm: str
    fields: Mapping[str, str]
    waiting: deque[_Call] = field(default_factory=lambda: deque(maxlen=PENDING))
    """Enqueued, and not seen to start."""
    started: deque[_Call] = field(default_factory=lambda: deque(maxlen=PENDING))


class ClogReader:
    """Takes the lines of one clog file, one by one; `dump` is what they say."""

    def __init__(self) -> None:
        self.version = ""
        self._base = 0.0
        self._signatures: dict[str, _Signature] = {}
        self._ranks: dict[str, tuple[int, int]] = {}
        """Communicator → rank in it, and how many it has."""
        self._splits: dict[str, tuple[str, list[int]]] = {}
        """Child → parent, and its ranks in that."""
        self._numbers: Counter[tuple[str, bool]] = Counter()
        self._calls: deque[_Call] = deque(maxlen=CALLS)
        self._leaked: set[int] = set()
        self._count = 0
        self._shows_ends = False
        """Whether it was asked to tell when calls start and end."""

    def take(self, line: str) -> None:
        """Take one line; what is none of clog's says nothing."""
        event = EVENT.match(line)
        if event:
            self._take_event(event)
        elif match := SIGNATURE.match(line):
            self._take_signature(match[1], match[2], match[3])
        elif (match := NEW.match(line)) and len(self._ranks) < NAMES:
            name = match["name"][:200]
            place = (int(match["rank"]), int(match["size"]))
            self._ranks.setdefault(name, place)
        elif (match := SPLIT.match(line)) and len(self._splits) < NAMES:
            child, parent = match["child"][:200], match["parent"][:200]
            self._splits[child] = (parent, _whole_numbers(match["ranks"]))
        elif (match := LEAKED.match(line)) and len(self._leaked) < CALLS:
            self._leaked.add(int(match[1]))
        elif match := VERSION.match(line):
            self.version = match["version"]
            self._base = float(match["base"])

    def _take_signature(self, number: str, op: str, rest: str) -> None:
        if len(self._signatures) < SIGNATURES:
            fields = dict(pair.partition("=")[::2] for pair in rest.split("|") if pair)
            comm = fields.get("comm", "")[:200]
            self._signatures[number] = _Signature(TORCH_NAMES.get(op, op), comm, fields)

    def _take_event(self, event: re.Match[str]) -> None:
        signature = self._signatures.get(event["call"])
        if signature is None:
            return
        what = event["what"]
        if what == "Q":
            self._enqueue(signature, event)
        elif event["graph"]:
            return  # while a graph is captured nothing runs
        elif what == "S" and signature.waiting:
            call = signature.waiting.popleft()
            call.state = "started"
            signature.started.append(call)
            self._shows_ends = True
        elif what == "E" and (signature.started or signature.waiting):
            call = (signature.started or signature.waiting).popleft()
            call.state, call.is_over = "completed", True
            self._shows_ends = True

    def _enqueue(self, signature: _Signature, event: re.Match[str]) -> None:
        is_pair = signature.op in PAIRS
        self._numbers[signature.comm, is_pair] += signature.op != BATCH
        number = self._numbers[signature.comm, is_pair]
        work = int(event["work"] or 0)
        created = self._base + float(event["at"])
        call = _Call(signature, number, work, created)
        if signature.op != BATCH:
            self._calls.append(call)
            self._count += 1
        if event["graph"]:
            # it runs when its graph does, of which no line has a number
            call.is_over = True
        else:
            signature.waiting.append(call)

    def dump(self, path: str, rank: int | None) -> Dump:
        """What the lines say of the rank that wrote them; `rank` is that of the file's name."""
        world = max((size for _, size in self._ranks.values()), default=0)
        for own, size in self._ranks.values():
            if size == world:
                rank = own
                break
        members = self._members(world, rank)
        batched = set()
        for signature in self._signatures.values():
            if signature.op == BATCH:
                batched.add(signature.comm)
        for call in self._calls:
            # at the end of a job some ends are not seen any more
            if not self._shows_ends or call.work in self._leaked:
                call.is_over = True
        entries = []
        for call in self._calls:
            name, is_pair = call.signature.comm, call.signature.op in PAIRS
            if name in members and not (is_pair and name in batched):
                own = 0
                if rank in members[name]:
                    own = members[name].index(rank)
                entries.append(_entry(call, own))
        groups = {}
        for name, ranks in members.items():
            groups[name, ""] = ranks
        dump = dump_of_entries(entries, path, rank, groups)
        dump.form, dump.version = "clog", self.version[:20]
        dump.total = self._count
        dump.dropped = self._count > len(self._calls)
        dump.is_growing = True
        return dump

    def _members(self, world: int, rank: int | None) -> dict[str, tuple[int, ...]]:
        """Communicator → ranks of the job, where they are known.

        They are those of one of all ranks, and of what was split from such a one.
        """
        members = {}
        for name, (own, size) in self._ranks.items():
            if size == world <= RANKS and own == rank:
                members[name] = tuple(range(world))
        for name, (parent, ranks) in self._splits.items():
            if len(members.get(parent, ())) == world and ranks and max(ranks) < world:
                members[name] = tuple(ranks)
        return members


def read_clog(lines: Iterable[bytes], path: str, rank: int | None) -> tuple[Dump, int]:
    """The dump in the lines of a clog file, and how many lines there are."""
    reader = ClogReader()
    count = 0
    for line in lines:
        count += 1
        reader.take(line.decode("utf-8", "replace").rstrip("\r\n"))
    return reader.dump(path, rank), count


def _entry(call: _Call, own: int) -> dict[str, Any]:
    """A call as an entry of a dump; `own` is the rank in its communicator."""
    signature = call.signature
    op, said = signature.op, signature.fields
    is_pair = op in PAIRS
    if is_pair:
        way = "->" if op == "send" else "<-"
        op = f"{op} {own}{way}{said.get('peer', '?')}"
    kind = TORCH_TYPES.get(said.get("dtype", ""), said.get("dtype", ""))
    inputs, outputs = _sizes(said, "in"), _sizes(said, "out")
    return {
        "process_group": (signature.comm, ""),
        "collective_seq_id": call.seq,
        "p2p_seq_id": call.seq,
        "profiling_name": f"{LIBRARY}:{op}",
        "time_created_ns": int(call.created * 1e9),
        "input_sizes": inputs,
        "input_dtypes": [kind] * bool(inputs),
        "output_sizes": outputs,
        "output_dtypes": [kind] * bool(outputs),
        "state": call.state,
        "retired": call.is_over,
        "is_p2p": is_pair,
        "frames": [],
    }


def _sizes(said: Mapping[str, str], side: str) -> list[list[int]]:
    """The elements of each tensor of one side of a call."""
    for name in (f"{side}_count", f"{side}_counts", f"{side}_splits"):
        text = said.get(name, "")
        if text and text != "0":
            return [[count] for count in _whole_numbers(text)]
    return []


def _whole_numbers(text: str) -> list[int]:
    """The numbers in a text such as ``0,1,2``."""
    numbers = []
    for one in text.split(",")[:RANKS]:
        if is_whole(one):
            numbers.append(int(one))
    return numbers
