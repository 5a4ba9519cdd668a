"""Which host reaches which, and how well.

It reads what a connection test found, as `connect.host` and `connect.pair` events.  The records
come from other hosts, so every value is looked at before it is believed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ncclkit.core.kinds import ConnectHost, ConnectPair
from ncclkit.core.model import Event, fields_of
from ncclkit.core.text import percent

ENDS = {
    "open": "is open",
    "refused": "is refused",
    "silent": "does not answer",
    "no route": "has no route",
    "itself": "reaches the asking host itself",
    "other host": "reaches another host",
    "foreign": "is answered by another program",
}
"""How a connection may end → in words."""


FAULTS = {
    "host": "a host is unreachable",
    "name": "the name resolves to another host",
    "port": "rendezvous port closed",
    "interface": "NCCL's interface not reached",
    "size": "large packets get lost",
    "measure": "not measured",
}
"""What may be wrong with a path, in words."""


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """One host of a connection test, as it sees itself."""

    event: Event
    name: str
    """As the user, or the allocation, names it."""
    own: tuple[str, ...] = ()
    """The addresses that its own name resolves to there."""
    interface: str = ""
    """NCCL would use this one, with today's variables."""
    address: str = ""
    """Of that interface; empty where other hosts can never reach it (loopback, link-local)."""
    gloo: str = ""
    interfaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """name → addresses without prefix length."""
    refused: str = ""
    """Why the rendezvous port could not be opened there."""
    problem: str = ""
    """Why the host is unreachable, or did not answer any more."""

    @property
    def summary(self) -> str:
        """The host in one line."""
        if self.problem:
            return f"{self.name} is unreachable: {self.problem}"
        own = ", ".join(self.own) or "nowhere"
        refused = ""
        if self.refused:
            refused = f"; its rendezvous port cannot be opened: {self.refused}"
        nccl = f"{self.interface or 'no interface'}{f' ({self.address})' if self.address else ''}"
        gloo = self.gloo or "none"
        return (
            f"{self.name}: NCCL would use {nccl}, gloo {gloo}; its own name resolves to"
            f" {own}{refused}"
        )

    def holder(self, address: str) -> str:
        """The interface that holds this address."""
        return next((name for name, held in self.interfaces.items() if address in held), "")


@dataclass(frozen=True, slots=True)
class NetworkPath:
    """The path from one host to another.

    Outcomes are the words of `ENDS`, or ``failed: …``; an empty one was not tried.
    """

    event: Event
    src: str
    dst: str
    port: int = 0
    """The rendezvous port."""
    address: str = ""
    """Where the name of `dst` leads on `src`; empty where it does not resolve."""
    unresolved: str = ""
    """The resolver's error."""
    rendezvous: str = ""
    ephemeral: str = ""
    """Another port at the same address."""
    interface: str = ""
    nccl_address: str = ""
    """Of the interface that NCCL would use on `dst`."""
    nccl: str = ""
    reached: tuple[str, ...] = ()
    """Addresses of `dst` that answered."""
    over: str = ""
    """The one that was measured."""
    mtu: float | None = None
    """Bytes of the largest IP packet that arrives whole."""
    mtu_own: float | None = None
    """Bytes of the largest that `src` believes may be sent."""
    bandwidth: float | None = None
    """GB/s of one TCP stream."""
    resent: float | None = None
    """Share of the stream's packets that had to be sent again."""
    latency: float | None = None
    """Median round trip in µs."""
    offset: float | None = None
    """Seconds that the clock of `dst` is ahead, and how uncertain that is."""
    offset_error: float | None = None
    why: Mapping[str, str] = field(default_factory=dict)
    """Number → why it could not be had."""

    @property
    def shrinks(self) -> bool:
        """True where packets larger than some hop takes get lost.

        No message of that reaches the sender.
        """
        return self.mtu is not None and self.mtu_own is not None and self.mtu < self.mtu_own

    @property
    def fault(self) -> str:
        """The gravest fault of the path, a word of `FAULTS`; empty where there is none."""
        lost = "host" in self.why
        if is_loopback(self.address) or not (self.address or lost):
            return "name"
        if self.rendezvous not in ("open", ""):
            return "port"
        if self.nccl != "open" and (self.nccl or not lost):
            return "interface"
        if self.shrinks:
            return "size"
        if lost:
            return "host"
        if self.why or self.bandwidth is None:
            return "measure"
        return ""

    @property
    def trouble(self) -> str:
        """The fault in a few words, with its numbers; empty where there is none."""
        if self.nccl_address:
            place = f"{self.interface} ({self.nccl_address})"
        else:
            place = self.interface or "none"
        nowhere = "does not resolve" + (f" ({self.unresolved})" if self.unresolved else "")
        return {
            "": "",
            "host": self.why.get("host", ""),
            "name": (
                f"the name {self.dst} "
                + (
                    f"resolves to {self.address}, the asking host itself"
                    if self.address
                    else nowhere
                )
            ),
            "port": f"port {self.port} at {self.address} {ends(self.rendezvous)}",
            "interface": (
                f"NCCL's interface {place}"
                f" {ends(self.nccl) if self.nccl else 'is of no use to other hosts'}"
            ),
            "size": f"packets of {self.mtu_own or 0:g} bytes get lost, {self.mtu or 0:g} pass",
            "measure": next(
                (f"no {name}: {why}" for name, why in self.why.items()), "it was not measured"
            ),
        }[self.fault]

    @property
    def summary(self) -> str:
        """The path in one line."""
        facts = []
        if self.rendezvous:
            facts = [f"port {self.port} {ends(self.rendezvous)}"]
        if self.nccl:
            facts.append(f"{self.interface} ({self.nccl_address}) {ends(self.nccl)}")
        if self.bandwidth is not None:
            facts.append(f"{self.bandwidth:.3g} GB/s")
        if self.resent:
            facts.append(f"{percent(self.resent, 1)} of its packets sent again")
        if self.latency is not None:
            facts.append(f"{self.latency:.3g} µs")
        if self.mtu and self.mtu_own:
            facts.append(f"packets of {self.mtu:g} of {self.mtu_own:g} bytes")
        if self.offset is not None and self.offset_error is not None:
            times, unit = (1, "s") if abs(self.offset) >= 1 else (1e3, "ms")
            facts += [f"clock {times * self.offset:+.3g} ± {times * self.offset_error:.2g} {unit}"]
        wrong = ""
        if self.trouble:
            wrong = f": {self.trouble}"
        return f"{self.src} → {self.dst}{wrong} [{', '.join(facts)}]"


def hosts(events: Iterable[Event]) -> dict[str, HostNetwork]:
    """The hosts of the connection test by name."""
    found: dict[str, HostNetwork] = {}
    for event in events:
        if event.kind == "connect.host":
            row = host(event)
            found[row.name] = row
    return found


def links(events: Iterable[Event]) -> list[NetworkPath]:
    """The paths between them, in their order; what the resolver said stands with its host."""
    known = [event for event in events if event.kind.startswith("connect.")]
    names = {}
    # names come first, as a path knows its resolver's error only by its source's host
    for e in known:
        if e.kind == "connect.host":
            names[_text_or_empty(e.data.name)] = e.data.names
    pair_links = []
    for event in known:
        if event.kind == "connect.pair":
            pair_links.append(link(event, names))
    return pair_links


def host(event: Event[ConnectHost]) -> HostNetwork:
    """One `connect.host` event; values of another type than expected are left out."""
    data = event.data
    rows = [row for row in _list_or_empty(data.interfaces) if isinstance(row, dict)]
    held = {}
    for row in rows:
        held[_text_or_empty(row.get("name"))] = tuple(
            a.split("/")[0] for a in _only_texts(row.get("addresses"))
        )
    given = fields_of(event)
    plain = {}
    for key in ("name", "interface", "address", "gloo", "refused", "problem"):
        plain[key] = _text_or_empty(given[key])
    return HostNetwork(event, own=_only_texts(data.own), interfaces=held, **plain)


def link(event: Event[ConnectPair], names: Mapping[Any, Any] | None = None) -> NetworkPath:
    """One `connect.pair` event; `names`: what each host's resolver said of the others."""
    data = event.data
    given = fields_of(event)
    texts = ("src", "dst", "rendezvous", "ephemeral", "interface", "nccl")
    numbers = ("mtu", "mtu_own", "bandwidth", "resent", "latency", "offset", "offset_error")
    # None is no text, and these values go into sentences and commands
    plain: dict[str, Any] = {key: _text_or_empty(given[key]) for key in texts}
    plain |= {key: _address_or_empty(given[key]) for key in ("address", "nccl_address", "over")}
    plain |= {key: _number_or_none(given[key]) for key in numbers}
    said = (names or {}).get(plain["src"])
    error = None
    if isinstance(said, dict):
        error = said.get(plain["dst"])
    why = data.why
    reasons = {}
    if isinstance(why, dict):
        reasons = {_text_or_empty(key): _text_or_empty(value) for key, value in why.items()}
    # a port of 1.5 or a word is not a port, and the table is still printed
    port = int(_number_or_none(data.port) or 0)
    reached = tuple(filter(None, map(_address_or_empty, _list_or_empty(data.reached))))
    return NetworkPath(
        event, port=port, unresolved=_text_or_empty(error), reached=reached, why=reasons, **plain
    )


def ends(outcome: str) -> str:
    """How a connection attempt ended, in words."""
    return ENDS.get(outcome, outcome)


def is_loopback(address: str) -> bool:
    """True for 127.x and ::1."""
    return bool(_address_or_empty(address)) and ipaddress.ip_address(address).is_loopback


def _address_or_empty(value: Any) -> str:
    """An IP address; empty for anything else: it may stand in a command that somebody copies."""
    try:
        if isinstance(value, str):
            return str(ipaddress.ip_address(value))
        return ""
    except ValueError:
        return ""


def _text_or_empty(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ""


def _list_or_empty(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return []


def _only_texts(value: Any) -> tuple[str, ...]:
    return tuple(item for item in _list_or_empty(value) if isinstance(item, str))


# True is an int in Python, and JSON of others may hold it
def _number_or_none(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    return None
