"""Record a machine, and replay it: every file, call and command output that the readers of facts use, redacted.

python -m tests.record.machine FOLDER
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from ncclkit.agent import redact
from ncclkit.agent.facts import collect
from ncclkit.agent.facts.host import CONTAINER_VARIABLES, IMAGE_VARIABLES
from ncclkit.agent.facts.machine import Absent, Answer, Hung, Machine, Missing, Unread
from ncclkit.agent.facts.settings import SCOPE

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

    `machine_at(folder)` replays it.  Secrets, the host name, its addresses,
    serial numbers, UUIDs, GIDs and the home folder are replaced.  `about`
    says in words what was recorded.  Raises OSError where it cannot write.
    """
    machine = Recorder()
    for _ in collect(torch, paths if paths is not None else {"work": "."}, machine):
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


class Replay(Machine):
    """A recorded machine: a folder with ``machine.json`` and the command outputs beside it."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        with open(os.path.join(folder, "machine.json"), encoding="utf-8") as file:
            self.recorded: dict[str, Any] = json.load(file)
        self.environ = dict(self.recorded.get("environ", {}))

    def _recorded(self, what: str, key: str) -> Any:
        """An absent key reads like an absent file."""
        if key in self.recorded.get(what, {}):
            return self.recorded[what][key]
        why = self.recorded.get("unread", {}).get(key) or "%s: No such file or directory" % key
        raise (Absent if why.endswith("No such file or directory") else Unread)(why)

    def read(self, path: str, limit: int = 65536) -> str:
        """The file as recorded."""
        return str(self._recorded("files", path))[:limit]

    def names(self, path: str, pattern: str = "") -> list[str]:
        """The names as recorded."""
        return [name for name in self._recorded("lists", path) if not pattern or re.fullmatch(pattern, name)]

    def link(self, path: str) -> str:
        """The target as recorded."""
        return str(self._recorded("links", path))

    def call(self, name: str, function: Callable[[], Any]) -> Any:
        """The answer as recorded; `function` is not called."""
        return self._recorded("calls", name)

    def run(self, argv: list[str], deadline: float, name: str = "") -> Answer:
        """The output as recorded; raises as the command did then."""
        name = name or " ".join(argv)
        answer = self.recorded.get("commands", {}).get(name)
        if answer is None or answer.get("missing"):
            raise Missing("%s is not installed" % argv[0] if answer else "%s was not recorded" % name)
        if answer.get("hung"):
            raise Hung("%s did not answer within %g s" % (name, deadline))
        if "file" not in answer:
            raise Unread(str(answer.get("why") or "%s was not recorded" % name))
        with open(os.path.join(self.root, answer["file"]), encoding="utf-8") as file:
            return Answer(int(answer.get("code", 0)), file.read(), str(answer.get("err", "")))


def machine_at(root: str) -> Machine:
    """The recorded machine in folder `root` if it holds one, else this machine with files below `root`."""
    return Replay(root) if os.path.exists(os.path.join(root, "machine.json")) else Machine(root)


if __name__ == "__main__":
    record(sys.argv[1])
