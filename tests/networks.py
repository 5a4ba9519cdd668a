"""Networks of simulated hosts with a fault between two of them, for staged tests that add them to `simulated.WRONG`."""

from __future__ import annotations

from typing import Any

from ncclkit.live.launch.simulated import Hosts


def cut(made: Hosts) -> None:
    """Of two hosts in the middle the one swallows what the other sends to it; both reach everybody else."""
    one, two = _middle(made)
    local = ["ip", "rule", "add", "pref", "10", "lookup", "local"]  # so that something can stand before it
    blackhole = ["iif", two["interface"], "from", one["address"].partition("/")[0], "blackhole"]
    two["setup"] += [local, ["ip", "rule", "del", "pref", "0"], ["ip", "rule", "add", "pref", "1", *blackhole]]


def thin(made: Hosts) -> None:
    """Of two hosts in the middle the one lets the other send 100 bytes at a time; all other paths are wide."""
    one, two = _middle(made)
    path = ["ip", "route", "add", f"{two['address'].partition('/')[0]}/32", "dev", one["interface"], "window", "100"]
    one["setup"].append(path)


def _middle(made: Hosts) -> tuple[dict[str, Any], dict[str, Any]]:
    every = list(made.values())
    return every[len(every) // 2 - 1], every[len(every) // 2]
