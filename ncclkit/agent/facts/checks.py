"""What is wrong with a variable: its name, its value, or the device it names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from . import choose, names
from .machine import Unread

Problem = dict[str, Any]


def problem(kind: str, name: str, value: str, what: str, hint: str) -> Problem:
    """One row of ``env.problems``; kind: misspelt, unknown, renamed, value, device, harmful, shadowed, unchecked."""
    return {"kind": kind, "name": name, "value": value, "problem": what, "hint": hint}


def check(name: str, value: str) -> Iterator[Problem]:
    """What the name and the value alone tell."""
    if name in names.RENAMED:
        yield problem("renamed", name, value, "an old name", "today's name is %s" % names.RENAMED[name])
    elif name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_")) and name not in names.KNOWN:
        yield from _unknown(name, value)
    elif name in names.FLAGS | names.NUMBERS and not re.fullmatch(r"\s*[-+]?(?:0x[0-9a-fA-F]+|\d+)\s*", value):
        yield problem(
            "value",
            name,
            value,
            "not a number, so it is read as 0 or refused",
            "write 0 or 1" if name in names.FLAGS else "write a whole number",
        )
    elif name in names.FLAGS and not -2 <= _number(value) <= 2:
        yield problem("value", name, value, "not a switch value", "write 0 or 1")
    elif name in names.CHOICES:
        yield from _choice(name, value)
    elif name == "MASTER_PORT" and not 0 <= _number(value) <= 65535:
        yield problem("value", name, value, "no TCP port", "choose one between 1024 and 65535")


def _number(value: str) -> int:
    """As strtoll reads it: 10, 0x1f, and 010 for eight."""
    try:
        return int(value, 0)
    except ValueError:
        return int(value, 8) if re.fullmatch(r"\s*[-+]?[0-7]+\s*", value) else int(value)


def _unknown(name: str, value: str) -> Iterator[Problem]:
    if name.startswith(names.FAMILIES):
        return
    close = difflib.get_close_matches(name, names.KNOWN, 1, 0.88)
    if close:
        yield problem("misspelt", name, value, "unknown name, so it has no effect", "did you mean %s?" % close[0])
    else:
        yield problem(
            "unknown",
            name,
            value,
            "not among the variables known to ncclkit",
            "unknown names are ignored silently: check it against the documentation of your version",
        )


def _choice(name: str, value: str) -> Iterator[Problem]:
    allowed = names.CHOICES[name].split()
    if re.fullmatch(r"-?\d+", value.strip()) and not name.startswith("TORCH_D"):
        return  # levels may be numbers
    # NCCL_ALGO=allreduce:tree,ring;broadcast:^ring   NCCL_DEBUG_SUBSYS=^NET,INIT
    lists = [part.split(":", 1)[-1].strip().lstrip("^") for part in value.split(";")]
    words = [word.strip() for part in lists for word in part.split(",") if word.strip()]
    for word in words or [value]:
        if word.upper() not in allowed:
            close = difflib.get_close_matches(word.upper(), allowed, 1)
            hint = "did you mean %s? known: " % close[0] if close else "known: "
            yield problem("value", name, value, "no value it takes", hint + ", ".join(allowed))


def interfaces(values: Mapping[str, str], entries: choose.Entries) -> Iterator[Problem]:
    """Interface names that match nothing here."""
    checks = (
        ("NCCL_SOCKET_IFNAME", lambda: choose.nccl(entries, values)),
        ("GLOO_SOCKET_IFNAME", lambda: choose.gloo_named(entries, values["GLOO_SOCKET_IFNAME"])),
    )
    for name, choice in checks:
        if values.get(name):
            try:
                choice()
            except Unread as why:
                yield problem("device", name, values[name], str(why), "name an interface that has this host's address")


def devices(values: Mapping[str, str], ports: list[dict[str, Any]]) -> Iterator[Problem]:
    """RDMA devices that do not exist, and switches that waste those that do."""
    having = sorted({port["device"] for port in ports})
    wanted = values.get("NCCL_IB_HCA", "")
    items = [item.split(":")[0] for item in wanted.lstrip("^=").split(",") if item]
    absent = [item for item in items if not any(device.startswith(item) for device in having)]
    shown = ", ".join(having) or "none"
    if absent and not wanted.startswith("^"):
        what = "%s not among the RDMA devices here: %s" % (", ".join(absent), shown)
        yield problem("device", "NCCL_IB_HCA", wanted, what, "name devices that /sys/class/infiniband lists")
    if values.get("NCCL_NET", "").upper() == "IB" and not having:
        yield problem("device", "NCCL_NET", "IB", "this host has no RDMA device", "unset it, or load the driver")
    active = any(port["state"] == "ACTIVE" for port in ports)
    for name, why in names.HARMFUL.items():
        if values.get(name, "").strip() == "1" and (active or name != "NCCL_IB_DISABLE"):
            yield problem("harmful", name, "1", "costs bandwidth", why)


def ranks(values: Mapping[str, str]) -> Iterator[Problem]:
    """RANK outside WORLD_SIZE."""
    for rank, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        numbers = [values.get(name, "") for name in (rank, size)]
        if all(number.isdigit() for number in numbers) and int(numbers[0]) >= int(numbers[1]):
            yield problem(
                "value", rank, numbers[0], "not below %s=%s" % (size, numbers[1]), "ranks count from 0 to %s - 1" % size
            )
