"""The connection test: its form, and what the last one found.

It found hosts and network paths; what is wrong comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import mean

import ipywidgets as W
import plotly.graph_objects as go

from ncclkit.agent.digits import is_whole
from ncclkit.core.case import Case
from ncclkit.core.connections import FAULTS, NetworkPath
from ncclkit.core.run_choice import test_runs
from ncclkit.core.text import format_number, format_time, percent, plural, some
from ncclkit.live import connect
from ncclkit.live.connect import SLOWER, Connectivity, results
from ncclkit.live.launch import launchers
from ncclkit.views import _draw
from ncclkit.views._base import Drawn, View, shows_runs
from ncclkit.views._form import Form, complaints, text_field
from ncclkit.views._html import Markup, el, fit, fold, join, left_out, table

SLOW = "at least 2 times slower than most"
SHOWN, FEW = 24, 6
"""Rows of a table before the rest is only counted, and that stand open."""


@shows_runs(test_runs)
def connect_view(case: Case) -> View:
    """The hosts, and the paths between them.

    It shows ports, NCCL's interface, packet size, bandwidth, latency and clocks.
    """
    found = results(case)
    if not found.hosts:
        how = el(
            "p",
            "In a terminal: ",
            el("code", "ncclkit connect HOST HOST …"),
            "; it needs no GPU and no job.",
        )
        return View(found.summary, how)
    names = list(found.hosts)
    places = {name: place for place, name in enumerate(names)}
    links = []
    for link in found.links:
        if link.src in places and link.dst in places:
            links.append(link)
    sound = sorted(
        (link for link in found.links if not link.trouble), key=lambda link: link.bandwidth or 0.0
    )
    title = f"{plural(len(sound), 'reachable path')}, the slowest first"
    paths = fold(
        title, _paths(sound, found.slowness), is_open=len(sound) == len(found.links) <= FEW
    )
    figure = None
    if links:
        figure = _heatmap(found, links, places)
    return Drawn(found.summary, figure, join(_troubles(found.links), paths, _hosts(found)))


def _heatmap(
    found: Connectivity, links: Sequence[NetworkPath], places: Mapping[str, int]
) -> go.Figure:
    """Host × host in GB/s of one TCP stream.

    Slow paths are framed, and each fault has a mark of its own.
    """
    slowness = found.slowness
    cells: list[list[float | None]] = []
    for _ in places:
        cells.append([None] * len(places))
    # in this order, so that a fault keeps its mark from one page to the next
    kinds: dict[str, list[tuple[int, int]]] = {}
    for kind in (SLOW, *FAULTS.values()):
        kinds[kind] = []
    for link in links:
        row = places[link.src]
        column = places[link.dst]
        cells[row][column] = link.bandwidth
        # a fault says more than that its path is slow, too
        if link.fault:
            kinds[FAULTS[link.fault]].append((row, column))
        elif slowness[link.src, link.dst] >= SLOWER:
            kinds[SLOW].append((row, column))
    marks = []
    for (kind, spots), shape in zip(kinds.items(), cycle(_draw.SHAPES), strict=False):
        # a frame around a cell without a colour would show nothing
        symbol = ""
        if any(cells[row][column] is None for row, column in spots):
            symbol = shape
        if spots:
            marks.append(_draw.Mark(kind, spots, symbol))
    return _draw.heatmap(cells, _short([*places]), ("from host", "to host"), "GB/s", marks)


def _short(names: Sequence[str]) -> list[str]:
    """Names without the domain that all of them have.

    Long ones lose their middle.
    """
    first = [name.partition(".")[0] for name in names]
    # the first part of an address is no name
    are_addresses = any(map(is_whole, first))
    alone = list(names)
    if len(set(first)) == len(names) and not are_addresses:
        alone = first
    short = []
    for name in alone:
        if len(name) > 20:
            name = f"{name[:9]}…{name[-10:]}"
        short.append(name)
    return short


def _troubles(links: Sequence[NetworkPath]) -> Markup:
    """Paths with the same trouble share a row, the most frequent first."""
    troubles: dict[str, list[str]] = {}
    for link in links:
        if link.trouble:
            path = f"{link.src} → {link.dst}"
            troubles.setdefault(link.trouble, []).append(path)
    if not troubles:
        return Markup("")
    ranked = sorted(troubles.items(), key=lambda item: -len(item[1]))
    rows = [(trouble, f"{len(paths):,}", some(paths)) for trouble, paths in ranked[:SHOWN]]
    shown = fit(table(("What is wrong", "Paths", "Which"), rows))
    return join(shown, left_out(len(ranked) - SHOWN))


def _paths(links: Sequence[NetworkPath], slowness: Mapping[tuple[str, str], float]) -> Markup:
    rows = []
    for link in links[:SHOWN]:
        rows.append(
            (
                f"{link.src} → {link.dst}",
                f"{link.interface} ({link.over})",
                (
                    "–"
                    if link.bandwidth is None
                    else (
                        f"{format_number(link.bandwidth)}"
                        f" GB/s{_again(link)}{_times(slowness[link.src, link.dst])}"
                    )
                ),
                format_time(link.latency),
                "–" if link.mtu is None else f"{link.mtu:,.0f} B",
            )
        )
    head = ("Path", "To", "One TCP stream", "There and back", "Largest packet")
    return join(fit(table(head, rows)), left_out(len(links) - SHOWN))


def _again(link: NetworkPath) -> str:
    share = link.resent or 0.0
    # single packets get lost on a sound network, too
    if share >= 0.01:
        return f", {percent(share)} sent again"
    return ""


def _times(times: float) -> str:
    if times >= SLOWER:
        return f", {times:.0f} times slower than most"
    return ""


def _hosts(found: Connectivity) -> Markup:
    """What each host would use, and its clock against the first one's."""
    first, *_ = found.hosts
    rows = []
    lost = []
    for host in found.hosts.values():
        if host.problem:
            lost.append((host.name, host.problem))
            continue
        interface = host.interface or "none"
        if host.address:
            interface = f"{interface} ({host.address})"
        clock = "–"
        if host.name != first:
            clock = _clock(found.links, first, host.name)
        own = some(host.own) or "nowhere"
        rows.append((host.name, interface, host.gloo or "none", own, clock))
    head = ("Host", "NCCL would use", "gloo", "Its own name resolves to", f"Clock against {first}")
    asked = fold(plural(len(rows), "host"), fit(table(head, rows)), is_open=len(rows) <= FEW)
    if lost:
        return join(fit(table(("Unreachable", "Why"), lost)), asked)
    return asked


def _clock(links: Sequence[NetworkPath], first: str, other: str) -> str:
    """The clock from both directions, with the uncertainty of the better one."""
    offsets = []
    errors = []
    for link in links:
        if link.offset is None:
            continue
        if (link.src, link.dst) == (first, other):
            offsets.append(link.offset)
            errors.append(link.offset_error or 0.0)
        # measured from the other end, it has the other sign
        elif (link.src, link.dst) == (other, first):
            offsets.append(-link.offset)
            errors.append(link.offset_error or 0.0)
    if not offsets:
        return "–"
    ahead = mean(offsets)
    error = min(errors)
    # within the uncertainty nobody can tell which clock is ahead
    if abs(ahead) <= error:
        return f"the same within {format_time(1e6 * error)}"
    side = "behind"
    if ahead > 0:
        side = "ahead"
    return f"{format_time(1e6 * abs(ahead))} {side}, ± {format_time(1e6 * error)}"


class ConnectForm(Form):
    """The form that tests connections between hosts.

    ``await form.run()`` does what its Test button does.  `hosts` are names or addresses separated
    by spaces or commas; empty are the nodes of the Slurm allocation, and outside of one nothing is
    done.  `remote_command` is how to start a program there, as
    `ncclkit.live.connect.plan_connection_test` wants it.
    """

    IDLE = (
        "No connection was tested: no hosts are named, and this is not an allocation of several"
        " nodes"
    )
    ASK = "Say which hosts to test: two or more names, space-separated"
    BUSY = "Testing …"
    CANCELLED = "Cancelled; what was found until then stays in the case folder"

    def __init__(self, case: Case, hosts: str = "", remote_command: str = "") -> None:
        self._case = case
        self.hosts = text_field("Hosts", hosts, "node-1 node-2")
        hint = "ssh, srun or a prefix with {host}"
        whole = {"description_width": "initial"}
        self.remote_command = text_field("Remote command", remote_command, hint, style=whole)
        test = W.Button(description="Test", icon="exchange", button_style="primary")
        said = "The form names no hosts"
        if hosts:
            said = f"The form tests {hosts}"
        super().__init__(said, [self.hosts, self.remote_command], test)

    def asks(self) -> bool:
        """Whether hosts are named, here or by the allocation."""
        return bool(self._names()) or launchers.node_count() > 1

    def wrong(self) -> Mapping[W.Widget, str]:
        """Names that are no hosts, one host alone, and an unfit command.

        A command is unfit that has no place for a host.
        """
        names, remote = self._names(), self.remote_command.value.strip() or "ssh"
        found = complaints(
            {
                self.hosts: lambda: connect.worker_commands(names, "ssh", "python3"),
                self.remote_command: lambda: connect.worker_commands(["host"], remote, "python3"),
            }
        )
        alone = {}
        if len(names) == 1:
            alone = {self.hosts: "One host has no path to test; name two or more."}
        return found | alone

    def finished(self, outcome: View) -> None:
        """Show the paths, and mark the hosts that could not be reached."""
        super().finished(outcome)
        lost = []
        for host in results(self._case).hosts.values():
            if host.problem:
                lost.append(f"{host.name} is unreachable: {host.problem}")
        if lost:
            self.mark(self.hosts, some(lost))

    async def prepare(self) -> View:
        """The test, between the hosts that are named now."""
        await connect.connectivity(
            self._case, self._names(), remote_command=self.remote_command.value.strip()
        )
        return connect_view(self._case)

    def _names(self) -> list[str]:
        return str(self.hosts.value).replace(",", " ").split()
