"""What ncclkit itself writes beside logs.

It is the wire, status and plan of a run, facts, measurements and telemetry.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, BinaryIO

import msgspec

from ncclkit.agent import redact, wire
from ncclkit.agent.digits import is_whole, whole_numbers
from ncclkit.agent.run.stages import ranks_of
from ncclkit.core import connections, resources
from ncclkit.core.kinds import KINDS, known_fields
from ncclkit.core.live_waits import (
    DeadThread,
    EndedRank,
    Engine,
    Wait,
    WaitingChild,
    WaitingThread,
)
from ncclkit.core.model import MOVES, Event, Fact, Measurement
from ncclkit.core.text import format_time, plural, rate
from ncclkit.core.text import ranks as rank_words
from ncclkit.evidence.grammars.grammar import clip
from ncclkit.evidence.other_use import OtherUse

SKIPPED = frozenset({"fact", "measure", "lanes"})
"""Records that are facts, measurements and what a rehearsal's watcher sees, not events."""


TEXTS_OF_WIRE = ("kind", "phase", "log")
LARGEST = 1 << 31
"""Ranks and processes are numbered below."""


class Malformed(ValueError):
    """A record holds something else than it should.

    It does so where events are told apart by it.
    """


def from_wire(raw: bytes, path: str, number: int) -> Event | None:
    """The `worker.phase` event of one line of ``wire.jsonl``.

    It is None for no record; raises Malformed for lists where texts belong.
    """
    record = _parsed_record(raw)
    if record is None:
        return None
    if any(isinstance(record.get(name), (dict, list)) for name in TEXTS_OF_WIRE):
        raise Malformed(f"{', '.join(TEXTS_OF_WIRE)} are no texts")
    if record.get("kind") in SKIPPED:
        return None
    if str(record.get("kind")).startswith(("connect.", "resources.")):
        return _event_of_test(record, path, number)
    if str(record.get("kind")).startswith("stage."):
        return _event_of_stage(record, path, number)
    phase = str(record.get("phase") or record.get("kind"))
    data = {**known_fields("worker.phase", record), "phase": phase}
    time = record.get("t")
    rank = record.get("rank")
    pid = record.get("pid")
    return Event(
        "worker.phase",
        clip(raw.decode("utf-8", "replace").strip()),
        path,
        number,
        _known_moment(time),
        str(record.get("host") or ""),
        pid if isinstance(pid, int) and abs(pid) < LARGEST else None,
        rank if isinstance(rank, int) and abs(rank) < LARGEST else None,
        data,
    )


def _event_of_test(record: Mapping[str, Any], path: str, number: int) -> Event | None:
    """What a connection test found of a host or a path.

    It may also be what a host granted.
    """
    kind = str(record["kind"])
    if kind not in KINDS:
        return None
    data = known_fields(kind, record)
    host = str(record.get("hostname") or record.get("host") or "")
    event: Event = Event(kind, "", path, number, _known_moment(record.get("t")), host, data=data)
    if kind == "resources.tried":
        return replace(event, text=clip(resources.grant(event).summary))
    if kind == "connect.host":
        summary = connections.host(event).summary
    else:
        summary = connections.link(event).summary
    return replace(event, text=clip(summary))


def _event_of_stage(record: Mapping[str, Any], path: str, number: int) -> Event | None:
    """What the staged test found of one rank, of a pair of ranks, or of a group."""
    kind = str(record["kind"])
    rank = record.get("rank")
    if kind == "stage.group":
        return _event_of_group(record, path, number)
    if kind == "stage.peer":
        return _event_of_peer(
            record,
            path,
            number,
        )
    whole = ("rank", "peer", "bytes", "wrong")
    if kind not in KINDS:
        return None
    wanted = [*KINDS[kind].__struct_fields__, "rank"]
    if not all(
        isinstance(record.get(name), int if name in whole else (int, float)) for name in wanted
    ):
        return None
    data = known_fields(kind, record)
    if kind == "stage.rank":
        said = f"rank {rank} copies {rate(data['copy'])} in its own memory"
    else:
        speed = f"{rate(data['bandwidth'])} each way, {format_time(data['latency_us'])}"
        said = f"ranks {rank} and {data['peer']} exchange {speed}"
    wrong = ""
    if data["wrong"]:
        wrong = f", {data['wrong']} values were WRONG"
    return Event(
        kind, said + wrong, path, number, _known_moment(record.get("t")), rank=rank, data=data
    )


DONE = {"write": "wrote into", "read": "read"}
"""way of a ``stage.peer`` → what the rank did."""


def _event_of_peer(
    record: Mapping[str, Any],
    path: str,
    number: int,
) -> Event | None:
    """What a rank wrote into the memory of another one of its node, or read there."""
    rank, peer, wrong = (record.get(name) for name in ("rank", "peer", "wrong"))
    if not (isinstance(rank, int) and isinstance(peer, int) and isinstance(wrong, int)):
        return None
    data = dict(known_fields("stage.peer", record))
    for name in ("way", "problem"):
        data[name] = str(record.get(name) or "")
    data["apart"] = record.get("apart") is True
    said = f"rank {rank} {DONE.get(data['way'], 'could not reach')} the memory of rank {peer}"
    if data["problem"]:
        said += f": {data['problem']}"
    elif data["apart"]:
        said += ": the driver joins their GPUs through the host alone"
    elif wrong:
        said += ", and other bytes arrived"
    return Event(
        "stage.peer",
        clip(said),
        path,
        number,
        _known_moment(record.get("t")),
        rank=rank,
        data=data,
    )


def _event_of_group(record: Mapping[str, Any], path: str, number: int) -> Event | None:
    rank = record.get("rank")
    wrong = record.get("wrong")
    speeds = ("busbw", "latency_us")
    try:
        ranks = ranks_of(str(record.get("ranks")))
    except ValueError:
        return None
    whole = (rank, wrong, record.get("bytes"))
    if not all(isinstance(value, int) for value in whole) or not isinstance(rank, int):
        return None
    data: dict[str, Any] = {"bytes": record.get("bytes"), "wrong": wrong, "ranks": ranks}
    data |= {name: str(record.get(name) or "") for name in ("stage", "problem")}
    data |= {
        name: speed if isinstance(speed := record.get(name), (int, float)) else None
        for name in speeds
    }
    if data["busbw"] is None:
        speed = "works"
    else:
        speed = f"reach {rate(data['busbw'])} busbw together"
    if data["problem"]:
        said = f"{rank_words(ranks)}: {data['problem']}"
    else:
        said = f"{rank_words(ranks)} {speed}"
    said += f", {wrong} values were WRONG" if wrong else ""
    return Event(
        "stage.group",
        clip(said),
        path,
        number,
        _known_moment(record.get("t")),
        rank=rank,
        data=data,
    )


def _parsed_record(raw: bytes) -> dict[str, Any] | None:
    try:
        record = wire.parse_record(raw)
        return None if record is None else _finite_values(redact.clean(record))
    except RecursionError:
        return None


def _finite_values(value: Any) -> Any:
    """The same with None for NaN and infinities.

    JSON does not know these but Python reads them.
    """
    return json.loads(json.dumps(value), parse_constant=lambda name: None)


def _known_moment(value: Any) -> float | None:
    """Seconds since the epoch; None for what no clock shows."""
    if isinstance(value, (int, float)) and abs(value) < 1 << 40:
        return float(value)
    return None


def from_status(value: Mapping[str, Any], path: str) -> Iterator[Event]:
    """How a run of ours ended: ``{"reason": …, "exitcode": …, "say": …, "ended": …}``."""
    reason = str(value.get("reason"))
    say = str(value.get("say") or "")
    ended = value.get("ended")
    text = f"the run ended: {reason}{f' ({say})' if say else ''}"
    data = {"reason": reason, "exitcode": value.get("exitcode"), "say": say}
    yield Event("run.end", clip(text), path, 0, _known_moment(ended), data=_finite_values(data))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the kernel counted of a rank at one moment, and where its Python stood."""

    t: float
    state: str = ""
    cpu: float | None = None
    main: float | None = None
    switches: int | None = None
    waits_in: str = ""
    file: str = ""
    stack: str = ""
    steps: dict[str, int] = field(default_factory=dict)
    io: int | None = None
    gloo: int | None = None


@dataclass(frozen=True, slots=True)
class LiveKernel:
    """The kernel that the GPU of a rank was in at one moment."""

    t: float
    name: str
    grid: str = ""
    """The number of its launch."""


@dataclass(frozen=True, slots=True)
class LiveRank:
    """What `ncclkit.agent.monitor.snapshots` shows of one rank."""

    pid: int
    snapshots: list[Snapshot]
    command: str = ""
    launcher: str = ""
    slurm: str = ""
    kernel: str | None = None
    """Of 0.1.0's attach, which asked once."""
    kernels: list[LiveKernel] = field(default_factory=list)
    quiet: float | None = None
    counted: bool = False
    """Whether a whole number among its variables changed between the snapshots."""
    program: list[dict[str, Any]] = field(default_factory=list)
    branches: list[dict[str, Any]] = field(default_factory=list)
    output: dict[str, Any] = field(default_factory=dict)
    wait: Wait = field(default_factory=Wait)
    threads: list[WaitingThread] = field(default_factory=list)
    children: list[WaitingChild] = field(default_factory=list)
    died: list[DeadThread] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)
    orphan: bool = False
    side: str = ""
    half: bool = False
    on_gpu: bool = False


ELASTIC = re.compile(r"torchrun|torch\.distributed\.(?:run|launch)|accelerate")
"""Launchers that end all ranks as soon as one ends with another status than 0."""


@dataclass(frozen=True, slots=True)
class LiveSocket:
    """A connection of a rank that had to repeat packets."""

    rank: int
    peer: str
    local: str = ""
    port: int = 0
    queued: int = 0
    backoff: int = 0
    lost: int = 0
    retrans: int = 0
    resent: int = 0
    rto_ms: float = 0.0
    grown: int = 0


@dataclass(frozen=True, slots=True)
class LiveCounter:
    """A count of errors that rose while a job was looked at."""

    device: str
    name: str
    grown: int
    port: int | None = None


@dataclass(frozen=True, slots=True)
class LiveLinks:
    """What links lost while a job was looked at."""

    seconds: float = 0.0
    sockets: list[LiveSocket] = field(default_factory=list)
    counters: list[LiveCounter] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LiveHost:
    """What was seen of the ranks of a host that `ncclkit attach` looked at."""

    attached: int
    host: str
    expected: list[int]
    ranks: dict[str, LiveRank]
    links: LiveLinks = field(default_factory=LiveLinks)
    ended: dict[str, EndedRank] = field(default_factory=dict)
    """What shows how ranks ended that are no more."""


MOST_ON_HOST = 1024
"""Ranks that one host has at most.

A list of more is not believed, as each absent rank is accused.
"""


def from_attached(value: Mapping[str, Any], path: str) -> Iterator[Event]:
    """One `attach.rank` for each rank that is or should be on the host.

    A document of other words gives none.
    """
    try:
        found = msgspec.convert(value, LiveHost)
    except msgspec.ValidationError:
        return
    for name, rank in found.ranks.items():
        data = msgspec.to_builtins(rank) | {"gone": False, "exitcode": None}
        if rank.kernels:
            data["kernel"] = rank.kernels[-1].name
        else:
            data["kernel"] = rank.kernel
        moves = [
            (shot.state, shot.stack.strip().partition("\n")[0].strip()) for shot in rank.snapshots
        ]
        text = f"rank {name}, process {rank.pid} ({rank.command}): " + "; ".join(
            f"{s} in {at}" for s, at in moves
        )
        if is_whole(name) and int(name) < LARGEST:
            yield Event(
                "attach.rank",
                clip(text),
                path,
                0,
                None,
                found.host,
                rank.pid,
                int(name),
                _finite_values(data),
            )
    yield from _events_of_links(found, path)
    elastic = next(
        (rank.launcher for rank in found.ranks.values() if ELASTIC.match(rank.launcher)), ""
    )
    claimed = {rank for rank in found.expected if 0 <= rank < LARGEST}
    if len(claimed) > MOST_ON_HOST:
        return
    for absent in sorted(claimed - set(whole_numbers(found.ranks))):
        data = msgspec.to_builtins(LiveRank(0, [])) | {
            "gone": True,
            "exitcode": 0 if elastic else None,
            "ended": found.ended.get(str(absent), {}),
        }
        text = f"rank {absent} has no process on {found.host} any more"
        text += (
            f"; it ended with status 0, as {elastic} would have ended the others at any other"
            * bool(elastic)
        )
        yield Event("attach.rank", text, path, 0, None, found.host, None, absent, data)


MOST_LINKS = 64
"""Connections and counters of a host that are believed at most."""


def _events_of_links(found: LiveHost, path: str) -> Iterator[Event]:
    """`net.tcp` of connections that repeated packets, `net.counter` of counts that rose."""
    seconds = found.links.seconds
    for held in found.links.sockets[:MOST_LINKS]:
        if not 0 <= held.rank < LARGEST:
            continue
        data = {
            "peer": held.peer[:80],
            "queued": held.queued,
            "backoff": held.backoff,
            "retrans": held.retrans,
            "resent": held.resent,
            "lost": held.lost,
            "rto_ms": held.rto_ms,
            "grown": held.grown,
        }
        text = (
            f"rank {held.rank}: {held.local} to {held.peer}:{held.port}: {held.grown} packets"
            f" repeated in {seconds:g} s, {held.resent} in all; timeout doubled {held.backoff}"
            f" times, {held.queued} bytes wait"
        )
        yield Event("net.tcp", clip(text), path, 0, None, found.host, rank=held.rank, data=data)
    for one in found.links.counters[:MOST_LINKS]:
        place = one.device if one.port is None else f"{one.device}:{one.port}"
        text = f"{place}: {one.name} rose by {one.grown} in {seconds:g} s"
        data = {
            "device": one.device[:60],
            "port": one.port,
            "name": one.name[:60],
            "grown": one.grown,
            "seconds": seconds,
        }
        yield Event("net.counter", clip(text), path, 0, None, found.host, data=data)


def from_experiment(value: Mapping[str, Any], path: str) -> Iterator[Event]:
    """What an experiment or a fix showed (`core.experiment_records`).

    Only known words of it are taken.
    """
    kind = f"experiment.{value.get('experiment')}"
    verdicts = value.get("verdicts")
    if kind not in KINDS or not isinstance(verdicts, dict):
        return
    changes = {
        str(cause): change
        for cause, change in verdicts.items()
        if isinstance(change, str) and change in MOVES
    }
    words = {
        name: str(value.get(name) or "")[:500]
        for name in ("cause", "baseline", "question", "observed")
    }
    say = str(value.get("summary") or "")
    asked = words["question"]
    if kind == "experiment.check" and asked not in say:
        text = f"{asked} {say}"
    else:
        text = say
    yield Event(kind, clip(text), path, 0, data=words | {"verdicts": changes})


def from_plan(value: Mapping[str, Any], path: str) -> Iterator[Event]:
    """How many ranks a run was meant to have."""
    ranks = value.get("ranks")
    if isinstance(ranks, int):
        data = {"phase": "plan", "ranks": ranks} | {
            key: value[key] for key in ("backend", "name") if isinstance(value.get(key), str)
        }
        yield Event("worker.phase", f"plan: {ranks} ranks", path, 0, data=data)


NAME = re.compile(r"[a-z]+(?:\.[\w-]+)+")


def facts_of(value: Any) -> list[Fact]:
    """The facts in a list, in ``{"facts": [...]}``, or one alone.

    It is None for any other document.  Facts that do not say their host are of the one that
    ``host.name`` names.
    """
    if isinstance(value, dict):
        rows = value.get("facts", [value])
    else:
        rows = value
    if not isinstance(rows, list) or not all(map(is_fact, rows)):
        return []
    facts = msgspec.convert(_finite_values(rows), list[Fact])
    own = next((str(fact.value) for fact in facts if fact.name == "host.name" and fact.value), "")
    return [fact if fact.host else replace(fact, host=own) for fact in facts]


def is_fact(row: Any) -> bool:
    """Whether it has what every fact has, each of the type that it should be."""
    try:
        fact = msgspec.convert(row, Fact)
    except msgspec.ValidationError:
        return False
    return (
        {"value", "source"} <= row.keys()
        and NAME.fullmatch(fact.name) is not None
        and abs(fact.rank or 0) < LARGEST
    )


def measurements_of(value: Any) -> list[Measurement]:
    """The measurements in a list, or one alone; none for any other document.

    NaN and infinities, which Python reads but JSON does not know, are none of a measurement's
    values.
    """
    try:
        rows = msgspec.convert(value if isinstance(value, list) else [value], list[Measurement])
        json.dumps(value, allow_nan=False)
    except ValueError:
        return []
    # a call takes time, and everything else is divided by it
    possible = all(
        m.bytes >= 0 and m.time_us > 0 and (m.graph_us is None or m.graph_us > 0) for m in rows
    )
    if possible:
        return rows
    return []


FIELDS = ("processes", "cores", "ran", "waited", "preempted")
LONGEST = 1 << 20
"""Bytes of a sample at most: a host has some hundred ranks at most."""
WINDOW = 10.0
"""Seconds at the end of telemetry that tell what a rank did when it was last seen."""
RATES = ("cpu", "main", "sent", "received", "gpu_busy", "gpu_watts")


def telemetry_of(stream: BinaryIO, path: str) -> tuple[list[Event], int]:
    """Events ``telemetry.`` of each rank that has samples, and of what others did.

    Returned with them is the number of lines.
    """
    last: dict[tuple[str, int | None], Event] = {}
    readings: dict[tuple[str, int], deque[_Reading]] = defaultdict(lambda: deque(maxlen=64))
    others: dict[str, OtherUse] = defaultdict(OtherUse)
    number = 0
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST), b""), 1):
        sample = _parsed_sample(line)
        last |= {
            (event.host, event.rank): event for event in _scheduling_events(sample, path, number)
        }
        if sample:
            others[str(sample.get("host") or "")].take(sample, number)
        for rank, row in _rows_of_ranks(sample, "utilization"):
            if isinstance(row, dict) and _is_count(sample.get("t")):
                readings[str(sample.get("host") or ""), rank].append(
                    (number, float(sample["t"]), _known_rates(row, sample))
                )
    utilization = [
        event
        for (host, rank), rows in readings.items()
        for event in _utilization_events(host, rank, rows, path)
    ]
    loads = [event for host, load in others.items() for event in load.events(path, host)]
    return [*last.values(), *utilization, *loads], number


_Reading = tuple[int, float, Mapping[str, Any]]
"""Line, seconds since the epoch, what is known of one rank then."""


def _parsed_sample(line: bytes) -> dict[str, Any]:
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if isinstance(sample, dict):
        return sample
    return {}


def _rows_of_ranks(sample: Mapping[str, Any], name: str) -> Iterator[tuple[int, Any]]:
    rows = sample.get(name)
    for rank, row in rows.items() if isinstance(rows, dict) else ():
        if is_whole(rank) and len(rank) < 8:
            yield int(rank), row


def _scheduling_events(sample: Mapping[str, Any], path: str, number: int) -> Iterator[Event]:
    for rank, row in _rows_of_ranks(sample, "scheduling"):
        if isinstance(row, list) and len(row) == len(FIELDS) and all(map(_is_count, row)):
            data = dict(zip(FIELDS, row, strict=True))
            time = None
            if _is_count(sample.get("t")):
                time = sample["t"]
            host = str(sample.get("host") or "")
            yield Event(
                "telemetry.scheduling",
                clip(_scheduling_in_words(rank, data)),
                path,
                number,
                time,
                host,
                rank=rank,
                data=data,
            )


def _scheduling_in_words(rank: int, data: dict[str, Any]) -> str:
    who = (
        f"rank {rank}: at most {plural(data['processes'], 'process')} at once, usable cores"
        f" {data['cores']}"
    )
    return (
        f"{who}, ran {data['ran']:.1f} s, waited {data['waited']:.1f} s for a core, preempted"
        f" {data['preempted']} times"
    )


def _known_rates(row: Mapping[str, Any], sample: Mapping[str, Any]) -> dict[str, Any]:
    """What one sample says of a rank, its GPU's load included."""
    known: dict[str, Any] = {}
    for name in RATES:
        if _is_count(row.get(name)):
            known[name] = float(row[name])
    state = row.get("state")
    if isinstance(state, str) and len(state) == 1 and state.isalpha():
        known["state"] = state
    gpu = row.get("gpu")
    gpus = sample.get("gpus")
    if not isinstance(gpu, int) or not isinstance(gpus, list) or not 0 <= gpu < len(gpus):
        return known
    known["gpu"] = gpu
    columns = gpus[gpu]
    if isinstance(columns, list) and len(columns) > 1 and _is_count(columns[1]):
        known["gpu_busy"] = float(columns[1])
    if isinstance(columns, list) and len(columns) > 2 and _is_count(columns[2]):
        known["gpu_watts"] = float(columns[2])
    return known


def _utilization_events(
    host: str, rank: int, rows: Sequence[_Reading], path: str
) -> Iterator[Event]:
    """What a rank did in the last seconds of its telemetry.

    There is nothing where no rate is known.
    """
    number, end, _ = rows[-1]
    late = [row for _, moment, row in rows if end - WINDOW <= moment <= end]
    seen = {name: [row[name] for row in late if name in row] for name in RATES}
    if not seen["cpu"]:
        return
    rates = {name: round(fmean(values), 1) if values else None for name, values in seen.items()}
    if rates["main"] is not None:
        # the kernel tells a wait for a core when it is over
        rates["main"] = min(100.0, rates["main"])
    seconds = round(end - min(moment for _, moment, _ in rows if end - WINDOW <= moment <= end), 1)
    states = "".join(row.get("state", "") for row in late)
    gpu = next((row["gpu"] for row in reversed(late) if "gpu" in row), None)
    data = {"seconds": seconds, "states": states, "gpu": gpu, **rates}
    yield Event(
        "telemetry.utilization",
        clip(_utilization_in_words(rank, data)),
        path,
        number,
        end,
        host,
        rank=rank,
        data=data,
    )


def _utilization_in_words(rank: int, data: Mapping[str, Any]) -> str:
    said = f"rank {rank}: {data['cpu']:.0f} % of a core over {data['seconds']:.0f} s"
    said += (
        f", its main thread at work {data['main'] or 0:.0f} % of that time (state {data['states']})"
    )
    if data["sent"] is not None:
        said += (
            f", sent {data['sent'] / 1e6:.2f} and received {(data['received'] or 0) / 1e6:.2f} MB/s"
            " over TCP"
        )
    return said + (
        f", GPU {data['gpu']} busy {data['gpu_busy']:.0f} %" if data["gpu_busy"] is not None else ""
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 53
