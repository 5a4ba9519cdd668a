"""The connection test: its form, and the hosts and network paths that the last one found, what is wrong first."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from statistics import mean, median
from typing import Any

import ipywidgets as W

from ncclkit.core.case import Case
from ncclkit.core.connections import FAULTS, NetworkPath
from ncclkit.core.text import format_number, format_time, plural, some
from ncclkit.live import connect
from ncclkit.live.connect import Connectivity, results
from ncclkit.live.launch import slurm
from ncclkit.views import _draw
from ncclkit.views._base import Drawn, View
from ncclkit.views._form import Form
from ncclkit.views._html import Markup, el, fit, fold, join, table

OPEN, SLOW = "open", "open, but less than half as fast as most"
SHOWN = 24
"""Rows of a table before the rest is only counted."""


def connect_view(case: Case) -> View:
    """The hosts, and the paths between them: ports, NCCL's interface, packet size, bandwidth, latency and clocks."""
    found = results(case)
    if not found.hosts:
        how = el("p", "In a terminal: ", el("code", "ncclkit connect HOST HOST …"), "; it needs no GPU and no job.")
        return View(found.summary, how)
    names = list(found.hosts)
    places = {name: place for place, name in enumerate(names)}
    kinds = _kinds([link for link in found.links if link.src in places and link.dst in places])
    marks = {kind: [(places[link.src], places[link.dst]) for link in held] for kind, held in kinds.items()}
    figure = _draw.matrix(marks, names, "host") if marks else None
    sound = sorted((link for link in found.links if not link.trouble), key=lambda link: link.bandwidth or 0.0)
    title = f"{plural(len(sound), 'sound path')}, the slowest first"
    paths = fold(title, _paths(sound), is_open=len(sound) == len(found.links))
    return Drawn(found.summary, figure, join(_troubles(found.links), paths, _hosts(found)))


def _kinds(links: Sequence[NetworkPath]) -> dict[str, list[NetworkPath]]:
    """Kind of path → its paths: the sound ones, then what is wrong in the order of `FAULTS`."""
    usual = median([link.bandwidth for link in links if link.bandwidth is not None] or [0.0])
    kinds: dict[str, list[NetworkPath]] = {kind: [] for kind in (OPEN, SLOW, *FAULTS.values())}
    for link in links:
        slow = (link.bandwidth or 0.0) < usual / 2
        kinds[FAULTS[link.fault] if link.fault else SLOW if slow else OPEN].append(link)
    return {kind: held for kind, held in kinds.items() if held}


def _troubles(links: Sequence[NetworkPath]) -> Markup:
    """Paths with the same trouble share a row, the most frequent first."""
    troubles: dict[str, list[str]] = {}
    for link in links:
        if link.trouble:
            troubles.setdefault(link.trouble, []).append(f"{link.src} → {link.dst}")
    ranked = sorted(troubles.items(), key=lambda item: -len(item[1]))
    rows = [(trouble, f"{len(paths):,}", some(paths)) for trouble, paths in ranked[:SHOWN]]
    return join(fit(table(("What is wrong", "Paths", "Which"), rows)) if rows else "", _more(len(ranked)))


def _paths(links: Sequence[NetworkPath]) -> Markup:
    rows = [
        (
            f"{link.src} → {link.dst}",
            f"{link.interface} ({link.over})",
            "–" if link.bandwidth is None else f"{format_number(link.bandwidth)} GB/s{_again(link)}",
            format_time(link.latency),
            "–" if link.mtu is None else f"{link.mtu:,.0f} B",
        )
        for link in links[:SHOWN]
    ]
    head = ("Path", "To", "One TCP stream", "There and back", "Largest packet")
    return join(fit(table(head, rows)), _more(len(links)))


def _again(link: NetworkPath) -> str:
    return f", {link.resent:.0%} sent again" if (link.resent or 0.0) >= 0.01 else ""


def _more(count: int) -> Markup:
    return el("p", f"… and {count - SHOWN:,} more", cls="nk-dim") if count > SHOWN else Markup("")


def _hosts(found: Connectivity) -> Markup:
    """What each host would use, and its clock against the first one's."""
    first, *_ = found.hosts
    rows = [
        (
            host.name,
            f"{host.interface or 'none'}{f' ({host.address})' if host.address else ''}",
            host.gloo or "none",
            some(host.own) or "nowhere",
            "–" if host.name == first else _clock(found.links, first, host.name),
        )
        for host in found.hosts.values()
        if not host.problem
    ]
    head = ("Host", "NCCL would use", "gloo", "Its own name resolves to", f"Clock against {first}")
    lost = [(host.name, host.problem) for host in found.hosts.values() if host.problem]
    asked = fold(plural(len(rows), "host"), fit(table(head, rows)), is_open=len(rows) <= SHOWN)
    return join(fit(table(("Unreachable", "Why"), lost)) if lost else "", asked)


def _clock(links: Sequence[NetworkPath], first: str, other: str) -> str:
    """From both directions, with the uncertainty of the better one."""
    paths = {(link.src, link.dst): link for link in links if link.offset is not None}
    known = [(sign, paths[path]) for path, sign in (((first, other), 1), ((other, first), -1)) if path in paths]
    if not known:
        return "–"
    ahead = mean(sign * (link.offset or 0.0) for sign, link in known)
    error = min(link.offset_error or 0.0 for _, link in known)
    if abs(ahead) <= error:
        return f"the same within {format_time(1e6 * error)}"
    side = "ahead" if ahead > 0 else "behind"
    return f"{format_time(1e6 * abs(ahead))} {side}, ± {format_time(1e6 * error)}"


def connect_form(case: Case, hosts: str = "", remote_command: str = "") -> ConnectForm:
    """The form that tests connections between hosts; ``await form.run()`` does what its Test button does.

    hosts: names or addresses separated by spaces or commas; empty are the nodes of the Slurm allocation, and outside
    of one nothing is done.  remote_command: how to start a program there, as `ncclkit.live.connect.plan` wants it.
    """
    return ConnectForm(case, hosts, remote_command)


class ConnectForm(Form):
    """See `connect_form`."""

    IDLE = "No connection was tested: no hosts are named, and this is not an allocation of several nodes"
    ASK = "Say which hosts to test: two or more names, space-separated"
    BUSY = "Testing …"
    CANCELLED = "Cancelled; what was found until then stays in the case folder"

    def __init__(self, case: Case, hosts: str, remote_command: str) -> None:
        self._case = case
        wide = W.Layout(width="30em")
        self.hosts = W.Text(value=hosts, placeholder="node-1 node-2", description="Hosts", layout=wide)
        self.remote_command = W.Text(
            value=remote_command,
            placeholder="ssh, srun or a prefix with {host}",
            description="Remote command",
            style={"description_width": "initial"},
            layout=wide,
        )
        test = W.Button(description="Test", icon="exchange", button_style="primary")
        said = f"The form tests {hosts}" if hosts else "The form names no hosts"
        super().__init__(said, [self.hosts, self.remote_command], test)

    def asks(self) -> bool:
        """Whether hosts are named, here or by the allocation."""
        return bool(self._names()) or slurm.nodes() > 1

    def prepare(self) -> Coroutine[Any, Any, View]:
        """The test, between the hosts that are named now."""
        return self._test(self._names(), self.remote_command.value.strip())

    def _names(self) -> list[str]:
        return str(self.hosts.value).replace(",", " ").split()

    async def _test(self, hosts: list[str], remote_command: str) -> View:
        await connect.connectivity(self._case, hosts, remote_command=remote_command)
        return connect_view(self._case)
