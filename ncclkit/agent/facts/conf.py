"""Settings as NCCL sees them: the environment, then nccl.conf files read by NCCL's own simple rules.

tests/facts/test_variables.py holds what NCCL 2.30.7 itself made of such a file.
"""

from __future__ import annotations

from .. import redact
from .checks import Problem, problem
from .machine import Absent, Machine, Unread
from .names import SCOPE

Settings = dict[str, tuple[str, str]]
"""Name → (value, "environment" or the file it stands in)."""


def values(machine: Machine) -> dict[str, str]:
    """The variables in scope as NCCL finds them once it has read its files."""
    return {name: value for name, (value, _) in settings(machine)[0].items()}


def settings(machine: Machine) -> tuple[Settings, list[Problem]]:
    """The settings in force, and what is wrong with lines of the files: without effect, or overruled."""
    found: Settings = {name: (value, "environment") for name, value in machine.environ.items() if SCOPE.match(name)}
    rows = []
    for path in _files(machine):
        try:
            lines = _lines(machine, path)
        except Unread as why:
            rows.append(problem("unchecked", "NCCL_CONF_FILE", path, "the file could not be read: %s" % why, ""))
            continue
        for name, value in lines:
            bare = name.replace("export ", "").strip()
            if bare != name and SCOPE.match(bare):
                rows.append(_misread(path, name, bare, value))
            elif SCOPE.match(name) and name not in found:
                found[name] = (value, path)
            elif SCOPE.match(name) and found[name][0] != value:
                rows.append(_shadowed(path, name, value, found[name][1]))
    return found, rows


def _files(machine: Machine) -> list[str]:
    """nccl.conf files in the order in which NCCL reads them; the first one that sets a name wins."""
    home = machine.environ.get("HOME", "")
    own = machine.environ.get("NCCL_CONF_FILE") or (home + "/.nccl.conf" if home else "")
    return [machine.absolute(path) for path in (own, "/etc/nccl.conf") if path]


def _lines(machine: Machine, path: str) -> list[tuple[str, str]]:
    """The NAME=VALUE lines of one file: only # in the first column is a comment, and blanks count.

    None at all where there is no such file, the usual case; raises Unread where it cannot be read.
    """
    try:
        lines = [line.partition("\0")[0] for line in machine.read(path).splitlines()]  # C ends a text there
    except Absent:
        return []
    pairs = [line.partition("=") for line in lines if "=" in line and not line.startswith("#")]
    return [(name, value) for name, _, value in pairs]


def _misread(path: str, name: str, bare: str, value: str) -> Problem:
    what = "in %s NCCL reads the name as %r, so the line has no effect" % (path, name)
    return problem("misspelt", bare, redact.clean(value, bare), what, "write %s=VALUE alone, without blanks" % bare)


def _shadowed(path: str, name: str, value: str, winner: str) -> Problem:
    what = "set in %s, but %s wins" % (path, winner)
    return problem("shadowed", name, redact.clean(value, name), what, "remove one of the two")
