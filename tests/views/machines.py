"""Cases of captured machines, and of machines whose links are made up by rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from ncclkit.agent import facts
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, from_dict
from tests.record.machine import machine_at

FOLDER = Path(__file__).parents[1] / "machines"


@cache
def _read(name: str) -> tuple[Fact, ...]:
    rows = list(facts.collect(machine=machine_at(str(FOLDER / name)), paths={"work": "."}))
    host = next(row["value"] for row in rows if row["name"] == "host.name")
    return tuple(from_dict(Fact, {"host": host, **row}) for row in rows)


def captured(*names: str) -> Case:
    """The facts of captured machines in one case."""
    made = Case()
    made.facts = [fact for name in names for fact in _read(name)]
    return made


def copies(name: str, hosts: int, odd: Mapping[int, Mapping[str, object]]) -> Case:
    """A captured machine many times over, as ``node-0001`` …; `odd`: number of a host → the facts it has otherwise."""
    made = Case()
    for number in range(1, hosts + 1):
        other = odd.get(number, {})
        host = f"node-{number:04d}"
        known = (replace(fact, host=host) for fact in _read(name))
        made.facts += [replace(fact, value=other[fact.name]) if fact.name in other else fact for fact in known]
    return made


def joined(
    gpus: int,
    way: Callable[[int, int], str],
    nics: Mapping[str, Callable[[int], str]] | None = None,
    host: str = "node-1",
    **facts: object,
) -> Case:
    """A host by the rule of its links; four GPUs stand on each NUMA node.  `facts`: more, dots written as ``__``."""
    matrix = {f"GPU{a}": {f"GPU{b}": way(min(a, b), max(a, b)) for b in range(gpus) if b != a} for a in range(gpus)}
    for gpu in range(gpus):
        matrix[f"GPU{gpu}"] |= {name: near(gpu) for name, near in (nics or {}).items()}
    known = {"gpu.count": gpus, "gpu.topology": matrix, **{f"gpu.{gpu}.numa": gpu // 4 for gpu in range(gpus)}}
    made = Case()
    made.facts = [Fact(name, value, host=host) for name, value in known.items()]
    made.facts += [Fact(name.replace("__", "."), value, host=host) for name, value in facts.items()]
    return made


def given(folder: Path) -> dict[str, str]:
    """Parameters of `01_environment`: the facts of two captured machines in files, and two peers on this host."""
    for name in ("h200-x8-slurm", "hung-smi"):
        rows = [asdict(fact) for fact in _read(name)]
        (folder / f"{name}.json").write_text(json.dumps({"facts": rows}))
    return {"others": f"{folder}/*.json", "hosts": "127.0.0.1 127.0.0.2", "remote_command": "env PEER={host}"}


CONCLUSIONS = (
    "risks for a job here",
    "On c0ffee123456",
    "kinds of machine.",
    "node-07: All 8 GPUs reach each other over NV18; GPU 3 has 17 active NVLinks, not 18",
    "How its 4 GPUs are joined could not be read: nvidia-smi -q -x did not answer within 10 s",
    "node-07: NCCL will use ibp24s0 (400 Gb/s), gloo will use eno1 (25 Gb/s)",
    "are not sound; 127.0.0.1 → 127.0.0.2",
)
"""What the notebook says of them, live and headless."""
