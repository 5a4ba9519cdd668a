"""What the gate asks of a node beyond its facts: mounts, network interfaces, its clock.

Each check returns what is wrong with the node, and what could not be told.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from .facts.machine import Hung, Machine, Unread
from .facts.storage import mounts_of

Rows = dict[str, Any]
Problem = dict[str, Any]
Judged = tuple[list[Problem], list[str]]
"""(what is wrong, sentences on what is not known)."""

SECONDS = 3.0
"""In which a small file is written on a file system that works."""
WRITES = """
import errno, json, os, sys, tempfile
try:
    number, path = tempfile.mkstemp(prefix=".ncclkit-gate-", dir=sys.argv[1])
    try:
        os.write(number, b"ncclkit gate")
        os.fsync(number)
    finally:
        os.close(number)
        os.unlink(path)
    print(json.dumps({"errno": 0}))
except OSError as error:
    print(json.dumps({"errno": error.errno or 0, "error": error.strerror or str(error)}))
"""
"""What a child writes into a folder: a file system whose server is gone holds it in the kernel."""
OF_THE_WRITER = (errno.EACCES, errno.EPERM, errno.EDQUOT)
"""Errors that are no matter of the node: servers give root fewer rights than users."""
VIRTUAL = ("loopback", "virtual", "bridge", "veth", "tunnel", "container")
NIC_FACTS = ("mtu", "speed")


def problem_row(name: str, value: Any, say: str, expected: Any = None) -> Problem:
    """One thing that is wrong with a node."""
    return {
        "fact": name,
        "value": value,
        "expected": expected,
        "say": say,
    }


def check_mounts(machine: Machine, paths: Iterable[str]) -> Judged:
    """What is wrong with folders that must be mounted here and writable."""
    problems: list[Problem] = []
    unknown: list[str] = []
    wanted = list(paths)
    if not wanted:
        return problems, unknown
    try:
        points = {mount["point"] for mount in mounts_of(machine)}
    except Unread as why:
        return problems, ["the mounts could not be read (%s)" % why]
    for path in wanted:
        name = "mount.%s" % path
        if os.path.normpath(path) not in points:
            problems.append(
                problem_row(
                    name,
                    "missing",
                    "%s is not mounted" % path,
                    "mounted",
                )
            )
            continue
        trouble, doubt = _writing_trouble(machine, path)
        if trouble:
            problems.append(
                problem_row(
                    name,
                    trouble,
                    "%s %s" % (path, trouble),
                    "writable",
                )
            )
        if doubt:
            unknown.append("%s %s" % (path, doubt))
    return problems, unknown


def _writing_trouble(machine: Machine, path: str) -> tuple[str, str]:
    """(why a folder cannot be written, why that could not be told)."""
    words = [sys.executable or "python3", "-I", "-S", "-c", WRITES, path]
    try:
        answer = machine.run(
            words,
            SECONDS,
            "a file in %s" % path,
        )
        said = json.loads(answer.out)
        number = int(said["errno"])
    except Hung:
        return "did not take a small file within %g s" % SECONDS, ""
    except (Unread, ValueError, KeyError, TypeError) as why:
        return "", "could not be tried (%s)" % why
    if not number:
        return "", ""
    error = str(said.get("error"))
    if number in OF_THE_WRITER:
        return "", "took no file from this user (%s)" % error
    return "cannot be written (%s)" % error, ""


def network_cards(found: Rows) -> dict[str, dict[str, Any]]:
    """Name → MTU and speed of each physical network interface that is up."""
    cards = {}
    for row in found.get("net.interfaces", {}).get("value") or []:
        if row.get("state") == "up" and row.get("kind") not in VIRTUAL and row.get("driver"):
            cards[str(row.get("name"))] = {name: row.get(name) for name in NIC_FACTS}
    return cards


def check_cards(found: Rows, baseline: dict[str, Any]) -> list[Problem]:
    """Network interfaces that are down, slower, or have another MTU than in the baseline."""
    problems = []
    here = network_cards(found)
    for name, expected in baseline.get("nics", {}).items():
        card = here.get(name)
        fact = "net.interfaces"
        if card is None:
            say = "network interface %s is missing or down" % name
            problems.append(
                problem_row(
                    fact,
                    None,
                    say,
                    expected,
                )
            )
            continue
        if expected.get("mtu") and card["mtu"] != expected["mtu"]:
            say = "network interface %s has MTU %s, but the baseline expects %s" % (
                *(name, card["mtu"], expected["mtu"]),
            )
            problems.append(
                problem_row(
                    fact,
                    card["mtu"],
                    say,
                    expected["mtu"],
                )
            )
        # a driver that tells no speed says nothing of it
        if expected.get("speed") and card["speed"] and card["speed"] < expected["speed"]:
            say = "network interface %s runs at %s Mbit/s, but the baseline expects %s" % (
                *(name, card["speed"], expected["speed"]),
            )
            problems.append(
                problem_row(
                    fact,
                    card["speed"],
                    say,
                    expected["speed"],
                )
            )
    return problems


def check_clock(found: Rows, baseline: dict[str, Any]) -> list[Problem]:
    """A clock that nothing synchronises, where the nodes of the baseline have one that is."""
    name = "host.clock.synced"
    if baseline.get("clock") and found.get(name, {}).get("value") is False:
        return [
            problem_row(
                name,
                False,
                "no time service synchronises its clock",
                True,
            )
        ]
    return []


def learned_checks(found: Rows, before: dict[str, Any] | None) -> dict[str, Any]:
    """What good nodes share of interfaces and clocks, for the baseline."""
    cards = network_cards(found)
    clock = found.get("host.clock.synced", {}).get("value") is True
    if before is None:
        return {"nics": cards, "clock": clock}
    shared: dict[str, dict[str, Any]] = {}
    for name, known in before.get("nics", {}).items():
        card = cards.get(name)
        if card is None:
            continue
        shared[name] = {
            fact: value for fact, value in card.items() if value and value == known.get(fact)
        }
    return {"nics": shared, "clock": clock and bool(before.get("clock"))}
