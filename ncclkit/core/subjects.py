"""Which job a verdict is about, where a case holds several.

A case folder collects logs that somebody brought, runs of ours, looks at running jobs and tests of
connections.  Two of them are never judged as one: an accusation needs one job and one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ncclkit.core.model import Event, Fact
from ncclkit.core.summary import short_host, short_hosts

OF_NO_JOB = ("kernel.", "net.", "system.", "p2p.", "connect.", "experiment.")
"""How kinds begin that speak of a host whichever job it runs, and of experiments, which name their
run themselves."""
IsOurs = Callable[[str], bool]
"""Whether a file was left by a run of ours, by its path."""


def events_of_one_job(events: Sequence[Event], is_ours: IsOurs) -> list[Event]:
    """The events of our last run, where there is one.

    Logs of another job give way to it.  Logs that name a process of the run are of the same job,
    and lines about hosts are of none.
    """
    ours = [event for event in events if is_ours(event.path) and not _is_of_no_job(event)]
    if not ours or _share_a_process(ours, [e for e in events if not is_ours(e.path)]):
        return list(events)
    return [event for event in events if is_ours(event.path) or _is_of_no_job(event)]


def inputs_of_one_job(
    inputs: Sequence[dict[str, Any]], events: Sequence[Event], is_ours: IsOurs
) -> list[dict[str, Any]]:
    """The rows of files that events are left of, and of our runs.

    They are all where nothing gave way.
    """
    kept = {event.path for event in events}
    return [row for row in inputs if row["path"] in kept or is_ours(str(row["path"]))]


def facts_of_job(facts: Sequence[Fact], events: Sequence[Event]) -> list[Fact]:
    """The facts of the hosts that a job ran on.

    They are all facts where none of its hosts was looked at.  A dead node, or one that another job
    had, explains nothing of this one.
    """
    job_hosts = short_hosts(event for event in events if not _is_of_no_job(event))
    own = [fact for fact in facts if not fact.host or short_host(fact.host) in job_hosts]
    looked_at = {short_host(fact.host) for fact in own if fact.host}
    # simulated hosts and containers have names of their own: there all facts are of one machine
    if not looked_at:
        return list(facts)
    return own


def _is_of_no_job(event: Event) -> bool:
    return event.kind.startswith(OF_NO_JOB)


def _share_a_process(some: Iterable[Event], others: Iterable[Event]) -> bool:
    """Whether a process speaks in both; one number on two hosts is two processes."""
    known = _processes(some)
    for pid, hosts in _processes(others).items():
        mine = known.get(pid)
        if mine is not None and (not mine or not hosts or mine & hosts):
            return True
    return False


def _processes(events: Iterable[Event]) -> Mapping[int, set[str]]:
    """Process id → the hosts on which it was seen, as far as anything names one."""
    found: dict[int, set[str]] = {}
    for event in events:
        pid = event.pid or getattr(event.data, "pid", None)
        if isinstance(pid, int) and pid:
            hosts = found.setdefault(pid, set())
            if event.host:
                hosts.add(short_host(event.host))
    return found
