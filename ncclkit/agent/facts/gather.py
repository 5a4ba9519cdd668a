"""All facts of a host: the facets side by side, under one deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable

from .. import redact, wire
from . import cpu, gpu, host, limits, network, software, storage, variables
from .machine import Fact, Machine, unread

DEADLINE = 100.0
"""Seconds for everything; above the sum of the readers' own deadlines, so only a hang in the kernel
reaches it."""
ENDING = 1.0
"""Part of them that is left for the end of commands that do not answer."""

Facet = tuple[str, Callable[[], Iterable[Fact]]]


def main(argv: list[str]) -> int:
    """``facts [label=path …]``: send a record for each fact, and one at the end.

    A path is looked at as storage.
    """
    paths = dict(word.split("=", 1) for word in argv if "=" in word)
    for fact in collect(torch="--no-torch" not in argv, paths=paths or {"work": "."}):
        wire.send("fact", **fact)
    wire.send("complete")
    return 0


def collect(
    torch: bool = True,
    paths: Mapping[str, str] | None = None,
    machine: Machine | None = None,
    deadline: float = DEADLINE,
) -> Iterator[Fact]:
    """Every fact of this host without secrets, each as soon as it is known.

    docs/facts.md lists them.

    `torch`: also ask the interpreter's torch, in a child process (seconds). `paths`: label → folder
    whose storage is measured, e.g. ``{"work": "."}``. `machine`: what is asked in the place of this
    host. `deadline`: seconds after which what is still missing is a fact ``facts.<facet>`` without
    a value.
    """
    here, end = machine or Machine(), time.monotonic() + deadline
    here.until = end - min(ENDING, deadline / 4)
    readers: list[Facet] = [
        ("host", lambda: host.host_facts(here)),
        ("limits", lambda: limits.limit_facts(here)),
        ("cpu", lambda: cpu.cpu_facts(here)),
        ("variables", lambda: variables.variable_facts(here)),
        ("network", lambda: network.network_facts(here)),
        ("tables", lambda: limits.tables(here)),
        ("storage", lambda: storage.storage_facts(here, paths or {})),
        ("software", lambda: software.software_facts(here, torch)),
    ]
    # nvidia-smi mostly waits for the driver, so it has a thread of its own; measurements share the
    # other one
    groups: list[list[Facet]] = [[("gpu", lambda: gpu.gpu_facts(here))], readers]
    results: queue.Queue[Fact | str] = queue.Queue()
    for group in groups:
        threading.Thread(target=_read_facets, args=(group, results), daemon=True).start()
    waiting = [name for group in groups for name, _ in group]
    while waiting:
        left = end - time.monotonic()
        try:
            if left > 0:
                item = results.get(timeout=left)
            else:
                item = ""
        except queue.Empty:
            item = ""
        if item == "":
            yield from (
                unread("facts." + name, "still not read after %g s" % deadline) for name in waiting
            )
            return
        if isinstance(item, str):
            waiting.remove(item)
        else:
            yield _cleaned_fact(item)


def _read_facets(readers: list[Facet], results: queue.Queue[Any]) -> None:
    """Read one facet after the other; a reader that breaks costs its own facts only."""
    for name, read in readers:
        try:
            for fact in read():
                results.put(fact)
        except Exception as error:  # a defect of ours must not cost the user the other facts
            results.put(
                unread("facts." + name, "the reader broke: %s: %s" % (type(error).__name__, error))
            )
        results.put(name)


def _cleaned_fact(fact: Fact) -> Fact:
    return {key: redact.clean(value) for key, value in fact.items()}
