"""Other names for hosts, addresses, users and homes: the same everywhere, so that a text still shows who met whom.

node-7.cluster → host-7      10.1.2.3 → 10.0.0.1 (one network stays one network)      /home/alice → /home/user-1
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any

NOBODY = frozenset(
    "root user users admin administrator nobody home ubuntu debian centos rocky ec2-user runner jovyan slurm".split()
)
"""Accounts that name no person."""
HOME = re.compile(r"(/(?:home|Users)/)([A-Za-z0-9_][\w.-]*)")
_END = r"(?![A-Za-z0-9])"
_HEX = "[0-9A-Fa-f]"
ADDRESS = re.compile(
    rf"(?<![\w:.])(?P<mac>{_HEX}{{2}}(?::{_HEX}{{2}}){{5}}(?:(?::{_HEX}{{2}}){{14}})?)(?![\w:])"
    rf"|(?<![\w:.])(?P<guid>{_HEX}{{4}}(?::{_HEX}{{4}}){{3}})(?![\w:])|(?i:guid\W{{1,6}}(?P<hex>0x{_HEX}{{16}}))"
    rf"|(?<![\w:.])(?P<six>{_HEX}{{1,4}}:(?:{_HEX}{{0,4}}:){{1,6}}{_HEX}{{0,4}}(?:\d{{0,3}}(?:\.\d{{1,3}}){{3}})?)(?![\w:])"
    r"|(?<![A-Za-z0-9.])(?P<four>\d{1,3}(?:\.\d{1,3}){3})(?!\w|\.\d)"
    rf"|\b(?P<uuid>(?:GPU|MIG)-{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}})\b"
)
VERSION = re.compile(r"(?i)(?:version|cudnn|cuda|driver|toolkit|release|==|>=|<=|\bv)[^\w\n]{0,4}$")
"""What stands before four numbers that are no address."""
COMMON = 4
"""Letters of a host's name up to which a number right behind them may mean something else (``gpu0``, ``node0``)."""


class Aliases:
    """A function from text to text that replaces names, and remembers which one by which."""

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> None:
        self._known: dict[Any, dict[Any, int]] = {}
        split = [name.partition(".") for name in hosts if not _is_address(name)]
        short = {name for name, _, _ in split} - {"", "localhost"}
        self._hosts = {name: number for number, name in enumerate(sorted(short, key=_natural), 1)}
        self._domains = {domain for name, _, domain in split if domain and name in short}
        self._users = set(users) - NOBODY - {""}
        self._compile()

    def _compile(self) -> None:
        """One pattern for hosts and lists of hosts (``node[1-8]``), one for users."""
        names = _longest(self._hosts)
        far = [r"[\w-]+(?=\.%s%s)" % (re.escape(domain), _END) for domain in _longest(self._domains) if "." in domain]
        shapes = [*map(re.escape, names), *filter(None, map(_shape, names)), *far]
        self._host = re.compile(
            rf"(?<![A-Za-z0-9])(?:(?P<stem>{_any(map(re.escape, _longest(map(_stem, names))))})\[(?P<list>[\d,\s-]+)\]"
            rf"|(?P<name>{_any(shapes)}){_END})"
            rf"(?:(?:\.[A-Za-z][\w-]*){{2,}}|\.(?:{_any(map(re.escape, _longest(self._domains)))}){_END})?"
        )
        self._user = re.compile(rf"(?<![A-Za-z0-9])(?:{_any(map(re.escape, _longest(self._users)))}){_END}")

    def learn(self, text: str) -> None:
        """Take the users whose homes a text names; they are then replaced elsewhere too."""
        found = {match[2] for match in HOME.finditer(text)} - NOBODY - self._users
        if found:
            self._users |= found
            self._compile()

    def __call__(self, text: str) -> str:
        """The text with every name in it replaced."""
        text = self._host.sub(self._as_host, text)
        text = ADDRESS.sub(self._as_address, text)
        text = HOME.sub(lambda match: match[1] + self._as_user(match[2]), text)
        return self._user.sub(lambda match: self._as_user(match[0]), text)

    def _as_host(self, match: re.Match[str]) -> str:
        if match["name"]:
            return self._number(match["name"])
        return "host-[%s]" % re.sub(r"\d+", lambda part: self._number(match["stem"] + part[0])[5:], match["list"])

    def _number(self, name: str) -> str:
        return "host-%d" % self._hosts.setdefault(name, len(self._hosts) + 1)

    def _as_user(self, name: str) -> str:
        return name if name in NOBODY else "user-%d" % self._count("user", name)

    def _as_address(self, match: re.Match[str]) -> str:
        kind, whole = str(match.lastgroup), match.group()
        value = match[kind]
        if kind in ("four", "six"):
            return self._as_ip(value, match)
        pattern = {"mac": "02:00:00:00:%02x:%02x", "guid": "0000:0000:%04x:%04x", "hex": "0x%08x%08x"}.get(kind)
        number = self._count(kind, value.lower())
        if pattern is None:
            return "%s-00000000-0000-0000-0000-%012d" % (value[:3], number)
        size = 256 if kind == "mac" else 1 << 16
        return whole.replace(value, pattern % divmod(number, size))

    def _as_ip(self, value: str, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(value)
        except ValueError:
            return value
        if address.is_loopback or address.is_unspecified or address.is_multicast or value.startswith("255."):
            return value
        if isinstance(address, ipaddress.IPv6Address):
            if not (address.is_private or int(address) >> 125 == 1 or value.count(":") == 7):
                return value  # c10d::add is a name of C++
            return ("fe80::%x" if address.is_link_local else "fd00::%x") % self._count("six", address)
        if VERSION.search(match.string, max(0, match.start() - 24), match.start()):
            return value
        network = int(address) >> 8
        high, low = divmod(self._count("network", network) - 1, 256)
        return "10.%d.%d.%d" % (high, low, self._count(network, address))

    def _count(self, kind: Any, value: Any) -> int:
        """The number under which a value of this kind was first met, from 1."""
        known = self._known.setdefault(kind, {})
        return known.setdefault(value, len(known) + 1)


def _any(patterns: Iterable[str]) -> str:
    return "|".join(patterns) or "(?!)"


def _longest(names: Iterable[str]) -> list[str]:
    """Each name once, the longest first: a pattern takes the first that fits."""
    return sorted({name for name in names if name}, key=lambda name: (-len(name), name))


def _natural(name: str) -> list[Any]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _stem(name: str) -> str:
    """What stands before the number at the end of a host's name."""
    match = re.fullmatch(r"(.*?[A-Za-z_-])\d+", name)
    return match[1] if match else ""


def _shape(name: str) -> str:
    """A pattern for the hosts that differ in their numbers only; "" where a number may mean something else."""
    stem, number = _stem(name), re.sub(r".*\D", "", name)
    if not stem or not (stem[-1] in "-_" or len(re.sub(r"[^A-Za-z]", "", stem)) > COMMON or len(number) > 2):
        return ""
    return re.sub(r"\d+", r"\\d+", re.escape(stem)) + (r"\d{%d}" % len(number) if len(number) > 2 else r"\d{1,5}")
