"""The job as its logs show it.

It shows ranks, versions, network, communicators, and the variables that are not the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ncclkit.analysis import communicators
from ncclkit.analysis.communicators import Communicator
from ncclkit.causes.engine import describe
from ncclkit.core.case import Case
from ncclkit.core.run_choice import job_runs
from ncclkit.core.text import numbered, plural, some
from ncclkit.views._base import View, shows_runs
from ncclkit.views._html import Markup, badge, code, el, fit, fold, join, long_table, table
from ncclkit.views._missing import NoData

SHOWN = 8
"""Communicators and values shown at once; the others are folded."""

Variables = Mapping[str, Mapping[str, Sequence[Any]]]


@shows_runs(job_runs)
def job_view(case: Case) -> View:
    """Ranks, hosts, versions, network, communicators, and where variables differ between ranks."""
    # earlier runs of the same folder had other ranks and versions
    scope = case.latest()
    job = describe(scope)
    comms = communicators.communicators(scope.events)
    known = communicators.variables(scope.events)
    odd = _differing(known, scope)
    same = {}
    for name, values in known.items():
        if name not in odd:
            same[name] = values
    body = join(
        _facts(job, scope),
        el("h5", "Communicators") if comms else "",
        _comms(comms),
        el("h5", "Variables that are not the same everywhere") if odd else "",
        _table(odd),
        fold(f"Variables that all have: {len(same):,}", _table(same)),
    )
    summary = _summary(job, comms, known, odd)
    if not job["ranks"] and not body:
        return NoData("what this job was", "no line names its ranks", summary)
    return View(summary, body)


def _summary(
    job: Mapping[str, Any], comms: Sequence[Communicator], known: Variables, odd: Variables
) -> str:
    if not job["ranks"]:
        return "This job is unknown: no line names its ranks"
    hosts = ""
    if job["hosts"]:
        hosts = f" on {plural(len(job['hosts']), 'host')}"
    named = (
        ("NCCL", job["nccl"]),
        ("CUDA", job["cuda"]),
        ("torch", job["torch"]),
        ("network", job["network"]),
    )
    parts = [
        f"{plural(job['ranks'], 'rank')}{hosts}",
        *(f"{name} {value}" for name, value in named if value),
    ]
    partial = [comm for comm in comms if not comm.complete]
    if comms:
        parts.append(
            plural(len(comms), "communicator")
            + (f", {len(partial):,} incomplete" if partial else "")
        )
    if odd:
        parts.append(f"{some(odd)} differ{'s' if len(odd) == 1 else ''} between ranks")
    elif known:
        parts.append("the same variables everywhere")
    return "; ".join(parts)


def _facts(job: Mapping[str, Any], case: Case) -> Markup:
    """What the sentence has no room for."""
    silent = job.get("silent") or []
    devices = set()
    for event in case.of("nccl.ib_devices"):
        for device in event.data.devices or ():
            devices.add(str(device))
    rows = [
        ("Hosts", some(job["hosts"])),
        ("Devices for RDMA", some(sorted(devices))),
        (
            "Bootstrap over",
            some(sorted({str(e.data.interface) for e in case.of("nccl.bootstrap")})),
        ),
        ("Ranks without a line", some(silent)),
    ]
    known_facts = []
    for name, value in rows:
        if value:
            known_facts.append((name, value))
    return table(("What", "Value"), known_facts)


def _comms(comms: Sequence[Communicator]) -> Markup:
    """Incomplete communicators first.

    Of many, complete ones of one size and parent share a row.
    """
    alike: dict[tuple[object, ...], list[Communicator]] = {}
    # complete communicators of one shape are many and alike; an incomplete one is the trouble
    for comm in sorted(comms, key=lambda comm: (comm.complete, -comm.size)):
        own_row = ""
        if not comm.complete or len(comms) <= SHOWN:
            own_row = comm.id
        alike.setdefault((own_row, comm.size, comm.parent), []).append(comm)
    rows = [_comm(held) for held in alike.values()]
    head = ("Communicator", "Size", "Ranks heard of", "Made from", "State")
    return long_table(head, rows, SHOWN)


def _comm(held: Sequence[Communicator]) -> tuple[object, ...]:
    """Members by their global ranks where these are known."""
    comm = held[0]
    if len(held) == 1:
        name = code(comm.id)
    else:
        name = join(f"{len(held):,} of them, such as ", code(comm.id))
    # members are numbers within the communicator, and people know global ranks
    if len(comm.ranks) == len(comm.members):
        ranks = sorted(comm.ranks.values())
    else:
        ranks = sorted(comm.members)
    parent = "–"
    if comm.parent:
        parent = code(comm.parent)
    return (name, f"{comm.size:,}", some(ranks) or "–", parent, _state(comm))


def _state(comm: Communicator) -> Markup:
    if comm.complete:
        return badge("✓", "all initialised", "checked")
    absent = []
    # of several possibilities `why` says that nobody can tell who is absent
    if not comm.why.startswith("several"):
        absent = sorted(set(range(comm.size)) - comm.done)
    # where most are absent the log holds few ranks, and their names would be a long list
    if 0 < len(absent) * 2 < comm.size:
        named = f"{numbered('its rank', absent)} never finished"
    else:
        named = comm.why
    return join(badge("▲", "incomplete", "likely"), el("div", named))


def _differing(known: Variables, case: Case) -> Variables:
    """Variables with two values, or that only some of the ranks have set.

    Only ranks count that finished their init.
    """
    # a rank that died during its init has not printed all its variables
    whole = set()
    for event in case.of("nccl.init"):
        if event.data.phase == "done" and event.rank is not None:
            whole.add(event.rank)

    def differs(values: Mapping[str, Sequence[Any]]) -> bool:
        return len(values) > 1 or bool(whole.difference(*values.values()))

    differing = {}
    for name, values in known.items():
        if differs(values):
            differing[name] = values
    return differing


def _table(known: Variables) -> Markup:
    rows = []
    for name, values in sorted(known.items()):
        # the value that fewest have is the odd one
        for value, places in sorted(values.items(), key=lambda item: len(item[1])):
            rows.append((code(name), code(value), _where(places)))
    return fit(table(("Variable", "Value", "Where"), rows))


def _where(places: Sequence[Any]) -> str:
    ranks = sorted(place for place in places if isinstance(place, int))
    if not ranks:
        return some(places)
    return numbered("rank", ranks) + (f" ({len(ranks):,})" if len(ranks) > 2 else "")
