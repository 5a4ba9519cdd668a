"""The facts of many equal hosts, made of one captured machine: names, addresses and the load differ as in real life."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ncclkit.agent import facts
from ncclkit.core.model import Fact
from tests.record.machine import machine_at

MACHINE = Path(__file__).parent / "machines" / "h200-x8-slurm"
MEASURED = ("cpu.pressure", "memory.available", "temperature", "power", "bandwidth", "cost", "latency", ".free")
"""Numbers of the moment."""


@cache
def captured() -> tuple[Fact, ...]:
    """The facts of one GPU host, its GPUs all as good as the second, the only one without a fault."""
    known = {row["name"]: Fact(**row) for row in facts.collect(machine=machine_at(str(MACHINE)), paths={"work": "."})}
    for name, fact in known.items():
        first, number, rest = [*name.split(".", 2), "", ""][:3]
        if first == "gpu" and number.isdigit() and rest not in ("uuid", "bus", "numa"):
            known[name] = replace(fact, value=known[f"gpu.1.{rest}"].value, why="")
    return tuple(known.values())


def host(number: int, name: str = "") -> Iterator[Fact]:
    """One host of a fleet: its own name, addresses, UUIDs and load."""
    chance, name = random.Random(number), name or f"node{number:04}"
    for fact in captured():
        value = fact.value
        if isinstance(value, (int, float)) and not isinstance(value, bool) and fact.name.endswith(MEASURED):
            value = value * chance.uniform(0.97, 1.03)
        elif fact.name in ("net.interfaces", "net.hostname.addresses"):
            own = re.sub(r"10\.(\d)\.0\.7(/24)?", rf"10.\1.{number >> 8}.{number & 255}\2", json.dumps(value))
            value = json.loads(own.replace("/24", "/16").replace("fe80::7", f"fe80::{number:x}"))
        elif fact.name == "host.name":
            value = name
        elif fact.name.endswith(".uuid"):
            value = f"GPU-{chance.getrandbits(128):032x}"
        yield replace(fact, value=value, host=name)


def fleet(count: int, changes: Mapping[str, Mapping[str, Any]] | None = None) -> list[Fact]:
    """`count` hosts node0001 …; changes: host → fact → value; None could not be read, `...` leaves the fact out."""
    made: list[Fact] = []
    for number in range(1, count + 1):
        known = {fact.name: fact for fact in host(number)}
        name = f"node{number:04}"
        for fact, value in (changes or {}).get(name, {}).items():
            changed = replace(known.get(fact, Fact(fact, host=name)), value=value)
            known[fact] = replace(changed, why="it did not answer") if value is None else changed
        made += (fact for fact in known.values() if fact.value is not ...)
    return made
