"""What our own runs leave beside the logs: ``wire.jsonl``, ``status.json``, ``plan.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ncclkit.agent import redact, wire
from ncclkit.agent.run.subgroup import ranks_of
from ncclkit.core import connections, resources
from ncclkit.core.model import MOVES, Event
from ncclkit.core.text import ranks as named
from ncclkit.core.text import rate
from ncclkit.evidence.grammars.grammar import clip
from ncclkit.evidence.kinds import KINDS

SKIPPED = frozenset({"fact", "measure"})
"""Records that are facts and measurements, not events."""


def from_wire(raw: bytes, path: str, number: int) -> Event | None:
    """The `worker.phase` event of one line of ``wire.jsonl``."""
    record = _parsed(raw)
    if record is None or record.get("kind") in SKIPPED:
        return None
    if str(record.get("kind")).startswith(("connect.", "resources.")):
        return _looked(record, path, number)
    if str(record.get("kind")).startswith("stage."):
        return _rung(record, path, number)
    rest = {key: value for key, value in record.items() if key not in ("ncclkit", "kind", "t", "rank", "host", "pid")}
    data = {"phase": str(record.get("phase") or record.get("kind"))} | rest
    time, rank, pid = record.get("t"), record.get("rank"), record.get("pid")
    return Event(
        "worker.phase",
        clip(raw.decode("utf-8", "replace").strip()),
        path,
        number,
        _moment(time),
        str(record.get("host") or ""),
        pid if isinstance(pid, int) else None,
        rank if isinstance(rank, int) else None,
        data,
    )


def _looked(record: Mapping[str, Any], path: str, number: int) -> Event | None:
    """What a connection test found of a host or of the way to another, or what a host granted."""
    kind = str(record["kind"])
    if kind not in KINDS:
        return None
    data = {name: record.get(name) for name in KINDS[kind]}
    host = str(record.get("hostname") or record.get("host") or "")
    event = Event(kind, "", path, number, _moment(record.get("t")), host, data=data)
    if kind == "resources.tried":
        return replace(event, text=clip(resources.grant(data).summary))
    told = connections.host(event).summary if kind == "connect.host" else connections.link(event).summary
    return replace(event, text=clip(told))


def _rung(record: Mapping[str, Any], path: str, number: int) -> Event | None:
    """What the ladder found of one rank, of a pair of ranks, or of a group."""
    kind, rank = str(record["kind"]), record.get("rank")
    if kind == "stage.group":
        return _group(record, path, number)
    whole = ("rank", "peer", "bytes", "wrong")
    wanted = [*KINDS.get(kind, ("no such rung",)), "rank"]
    if not all(isinstance(record.get(name), int if name in whole else (int, float)) for name in wanted):
        return None
    data = {name: record[name] for name in KINDS[kind]}
    if kind == "stage.rank":
        said = f"rank {rank} copies {rate(data['copy'])} in its own memory"
    else:
        speed = f"{rate(data['bandwidth'])} each way, {data['latency_us']:.1f} us"
        said = f"ranks {rank} and {data['peer']} exchange {speed}"
    wrong = f", {data['wrong']} values were WRONG" if data["wrong"] else ""
    return Event(kind, said + wrong, path, number, _moment(record.get("t")), rank=rank, data=data)


def _group(record: Mapping[str, Any], path: str, number: int) -> Event | None:
    rank, wrong, speeds = record.get("rank"), record.get("wrong"), ("busbw", "latency_us")
    try:
        ranks = ranks_of(str(record.get("ranks")))
    except ValueError:
        return None
    whole = (rank, wrong, record.get("bytes"))
    if not all(isinstance(value, int) for value in whole) or not isinstance(rank, int):
        return None
    data = {name: record.get(name) for name in KINDS["stage.group"]} | {"ranks": ranks}
    data |= {name: str(data[name] or "") for name in ("stage", "problem")}
    data |= {name: speed if isinstance(speed := record.get(name), (int, float)) else None for name in speeds}
    speed = "works" if data["busbw"] is None else f"reach {rate(data['busbw'])} busbw together"
    said = f"{named(ranks)}: {data['problem']}" if data["problem"] else f"{named(ranks)} {speed}"
    said += f", {wrong} values were WRONG" if wrong else ""
    return Event("stage.group", clip(said), path, number, _moment(record.get("t")), rank=rank, data=data)


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        record = wire.parse(raw)
        return None if record is None else _finite(redact.clean(record))
    except RecursionError:
        return None


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    """The same with None for NaN and infinities, which JSON does not know but Python reads."""
    known: dict[str, Any] = json.loads(json.dumps(record), parse_constant=lambda name: None)
    return known


def _moment(value: Any) -> float | None:
    """Seconds since the epoch; None for what no clock shows."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1 << 40 else None


def from_status(value: Mapping[str, Any], path: str) -> Iterator[Event]:
    """How a run of ours ended: ``{"reason": …, "exitcode": …, "say": …, "ended": …}``."""
    reason, say, ended = str(value.get("reason")), str(value.get("say") or ""), value.get("ended")
    text = f"the run ended: {reason}{f' ({say})' if say else ''}"
    data = {"reason": reason, "exitcode": value.get("exitcode"), "say": say}
    yield Event("run.end", clip(text), path, 0, _moment(ended), data=_finite(data))


def from_trial(value: Mapping[str, Any], path: str) -> Iterator[Event]:
    """What an experiment or a fix showed (`core.experiment_records`): only known words of it are taken."""
    kind, verdicts = f"experiment.{value.get('experiment')}", value.get("verdicts")
    if kind not in KINDS or not isinstance(verdicts, dict):
        return
    told = {str(cause): move for cause, move in verdicts.items() if isinstance(move, str) and move in MOVES}
    words = {name: str(value.get(name) or "")[:500] for name in ("cause", "baseline", "question", "observed")}
    say, asked = str(value.get("summary") or ""), words["question"]
    text = f"{asked} {say}" if kind == "experiment.check" and asked not in say else say
    yield Event(kind, clip(text), path, 0, data=words | {"verdicts": told})


def from_plan(value: Mapping[str, Any], path: str) -> Iterator[Event]:
    """How many ranks a run was meant to have."""
    ranks = value.get("ranks")
    if isinstance(ranks, int):
        data = {"phase": "plan", "ranks": ranks} | {
            key: value[key] for key in ("backend", "name") if isinstance(value.get(key), str)
        }
        yield Event("worker.phase", f"plan: {ranks} ranks", path, 0, data=data)
