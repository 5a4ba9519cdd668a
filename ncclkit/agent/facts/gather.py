"""All facts of a host: the facets side by side, under one deadline.

A machine is recorded by the same readers: every file, call and command output that they use, redacted, in one folder.
"""

from __future__ import annotations

import json
import os
import queue
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable

from .. import redact
from . import cpu, gpu, host, limits, network, software, storage, variables
from .host import CONTAINER_VARIABLES, IMAGE_VARIABLES
from .machine import Answer, Fact, Hung, Machine, Missing, Unread, machine_at, unread
from .settings import SCOPE

DEADLINE = 100.0
"""Seconds for everything; above the sum of the readers' own deadlines, so only a hang in the kernel reaches it."""

Facet = tuple[str, Callable[[], Iterable[Fact]]]


def collect(
    torch: bool = True, paths: Mapping[str, str] | None = None, root: str = "/", deadline: float = DEADLINE
) -> Iterator[Fact]:
    """Every fact of this host (docs/facts.md lists them), each as soon as it is known.

    `torch`: also ask the interpreter's torch, in a child process (seconds).
    `paths`: label → folder whose storage is measured, e.g. ``{"work": "."}``.
    `root`: "/" or a recorded machine (`record`).
    `deadline`: seconds after which what is still missing is a fact ``facts.<facet>`` without a value.
    """
    return facts_of(machine_at(root), torch, paths or {}, deadline)


def facts_of(machine: Machine, torch: bool, paths: Mapping[str, str], deadline: float = DEADLINE) -> Iterator[Fact]:
    """The facts of any `Machine`; secrets are already replaced."""
    readers: list[Facet] = [
        ("host", lambda: host.facts(machine)),
        ("limits", lambda: limits.facts(machine)),
        ("cpu", lambda: cpu.facts(machine)),
        ("variables", lambda: variables.facts(machine)),
        ("network", lambda: network.facts(machine)),
        ("tables", lambda: limits.tables(machine)),
        ("storage", lambda: storage.facts(machine, paths)),
        ("software", lambda: software.facts(machine, torch)),
    ]
    # nvidia-smi mostly waits for the driver, so it has a lane of its own; measurements share the other one
    lanes: list[list[Facet]] = [[("gpu", lambda: gpu.facts(machine))], readers]
    said: queue.Queue[Fact | str] = queue.Queue()
    for lane in lanes:
        threading.Thread(target=_work, args=(lane, said), daemon=True).start()
    waiting = [name for lane in lanes for name, _ in lane]
    end = time.monotonic() + deadline
    while waiting:
        try:
            item = said.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            yield from (unread("facts." + name, "still not read after %g s" % deadline) for name in waiting)
            return
        if isinstance(item, str):
            waiting.remove(item)
        else:
            yield _cleaned(item)


def _work(lane: list[Facet], said: queue.Queue[Any]) -> None:
    """Read one facet after the other; a reader that breaks costs its own facts only."""
    for name, read in lane:
        try:
            for fact in read():
                said.put(fact)
        except Exception as error:  # a defect of ours must not cost the user the other facts
            said.put(unread("facts." + name, "the reader broke: %s: %s" % (type(error).__name__, error)))
        said.put(name)


def _cleaned(fact: Fact) -> Fact:
    return {key: redact.clean(value) for key, value in fact.items()}


NEEDED = {*CONTAINER_VARIABLES, *IMAGE_VARIABLES, "NVIDIA_PYTORCH_VERSION", "HOME"}
"""Variables that readers use besides those of variables.SCOPE."""


class Recorder(Machine):
    """This machine; every answer that it gives is also kept for the recording."""

    def __init__(self, root: str = "/") -> None:
        super().__init__(root)
        self.recorded: dict[str, dict[str, Any]] = {
            key: {} for key in ("files", "lists", "links", "calls", "commands", "unread")
        }

    def _keep(self, what: str, key: str, ask: Callable[[], Any]) -> Any:
        try:
            self.recorded[what][key] = ask()
        except Unread as why:
            self.recorded["unread"][key] = str(why)
            raise
        return self.recorded[what][key]

    def read(self, path: str, limit: int = 65536) -> str:
        """As `Machine.read`; the answer is kept."""
        return str(self._keep("files", path, lambda: Machine.read(self, path, limit)))

    def names(self, path: str, pattern: str = "") -> list[str]:
        """Machine.names, kept: only the names that somebody asked for."""
        before = self.recorded["lists"].get(path, [])
        found: list[str] = self._keep("lists", path, lambda: Machine.names(self, path, pattern))
        self.recorded["lists"][path] = sorted({*before, *found})
        return found

    def link(self, path: str) -> str:
        """As `Machine.link`; the answer is kept."""
        return str(self._keep("links", path, lambda: Machine.link(self, path)))

    def call(self, name: str, function: Callable[[], Any]) -> Any:
        """As `Machine.call`; the answer is kept."""
        return self._keep("calls", name, lambda: Machine.call(self, name, function))

    def run(self, argv: list[str], deadline: float, name: str = "") -> Answer:
        """As `Machine.run`; the answer is kept."""
        name = name or " ".join(argv)
        try:
            answer = super().run(argv, deadline, name)
        except Unread as why:
            self.recorded["commands"][name] = {
                "missing": isinstance(why, Missing),
                "hung": isinstance(why, Hung),
                "why": str(why),
            }
            raise
        self.recorded["commands"][name] = answer
        return answer


def record(folder: str, torch: bool = True, paths: Mapping[str, str] | None = None, about: str = "") -> None:
    """Capture into `folder` every file, call and command output that the readers use on this machine.

    `collect(root=folder)` replays it.  Secrets, the host name, its addresses,
    serial numbers, UUIDs, GIDs and the home folder are replaced.  `about`
    says in words what was recorded.  Raises OSError where it cannot write.
    """
    machine = Recorder()
    for _ in facts_of(machine, torch, paths if paths is not None else {"work": "."}):
        pass  # the recorder keeps what the readers ask for
    environ = {
        name: redact.clean(value, name)
        for name, value in sorted(machine.environ.items())
        if SCOPE.match(name) or name in NEEDED
    }
    hide = _hider(machine)
    commands: dict[str, Any] = {}
    os.makedirs(os.path.join(folder, "commands"), exist_ok=True)
    for name, answer in machine.recorded["commands"].items():
        if not isinstance(answer, Answer):
            commands[hide(name)] = answer
            continue
        file = "commands/%s.txt" % re.sub(r"[^A-Za-z0-9.]+", "_", hide(name)).strip("_")
        commands[hide(name)] = {"code": answer.code, "err": hide(answer.err), "file": file}
        with open(os.path.join(folder, file), "w", encoding="utf-8") as out:
            out.write(hide(answer.out))
    origin = {"about": about, "kind": "recorded", "recorded": time.strftime("%Y-%m-%d")}
    said = {**origin, "environ": environ, **machine.recorded, "commands": commands}
    with open(os.path.join(folder, "machine.json"), "w", encoding="utf-8") as out:
        out.write(hide(json.dumps(said, indent=1, sort_keys=True, ensure_ascii=True)) + "\n")


def _hider(machine: Recorder) -> Callable[[str], str]:
    """A function that takes secrets and everything that names this very machine out of a text."""
    names: dict[str, str] = {}
    host = machine.recorded["files"].get("/proc/sys/kernel/hostname", "").strip()
    if host:
        names[host] = "host0"
    entries = machine.recorded["calls"].get("getifaddrs", [])
    own = dict.fromkeys(entry["address"].split("/")[0] for entry in entries if entry["address"])
    for number, address in enumerate(address for address in own if address not in ("127.0.0.1", "::1")):
        names[address] = ("2001:db8::%x" if ":" in address else "192.0.2.%d") % (number + 1)
    home = machine.environ.get("HOME", "")
    if home.startswith("/home/"):
        names[home] = "/home/user"
    serial = re.compile(r"(<(?:serial|pdi|board_serial\w*|\w*serial_number|\w*_guid)>)[^<]*(<)")
    uuid = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
    gid = re.compile(r"\b((?:[0-9a-f]{4}:){4})((?:[0-9a-f]{4}:){3}[0-9a-f]{4})\b")
    seen: dict[str, str] = {}

    def port(match: re.Match[str]) -> str:
        """The interface part of a GID is the card's own number, or an IPv4 address."""
        subnet, own = match.groups()
        if not own.strip("0:"):
            return match.group()
        kept = "0000:ffff:c000:02" if own.startswith("0000:ffff:") else "0000:00ff:fe00:00"
        return seen.setdefault(match.group(), "%s%s%02x" % (subnet, kept, len(seen) + 1))

    def numbered(match: re.Match[str]) -> str:
        return seen.setdefault(match.group(), "%s-00000000-0000-0000-0000-%012d" % (match.group(1), len(seen)))

    def hide(text: str) -> str:
        for name, instead in sorted(names.items(), key=lambda pair: -len(pair[0])):
            text = re.sub(r"(?<![\w.:-])%s(?![\w:-])" % re.escape(name), instead, text)
        return redact.text(serial.sub(r"\g<1>0\2", uuid.sub(numbered, gid.sub(port, text))))

    return hide
