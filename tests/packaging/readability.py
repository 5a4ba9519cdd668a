"""Count how dense the package is, room by room, and keep the figures from rising.

    python -m tests.packaging.readability [--write]

Printed beside the figures of `readability.json`; --write keeps lower ones, and refuses higher ones.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from tests.bench.house import read
from tests.packaging.imports import Module, Package
from tests.packaging.project import ROOT

FILE = Path(__file__).with_name("readability.json")
COLUMNS = 100
"""Columns of a line that still fits."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
UNTYPED = re.compile(r"\.data(?:\[\"|\.get\(\")")
"""How a field of an event is read by a string."""
UNIT = {
    "nodes a line": "nodes of the syntax tree for each line of code",
    "long lines": f"lines beyond {COLUMNS} columns",
    "conditionals": "conditional expressions in 100 lines of code",
    "comprehensions": "comprehensions in 100 lines of code",
    "one-word names": "functions named by one word, in %",
    "untyped reads": "fields of events that are read by a string",
}
"""Every figure, and what it is; all of them are better lower."""


@dataclass
class Room:
    """What is counted of one package."""

    code: int = 0
    """Lines that hold code: no blank ones, comments or docstrings."""
    nodes: int = 0
    long: int = 0
    conditionals: int = 0
    comprehensions: int = 0
    functions: int = 0
    one_word: int = 0
    untyped: int = 0

    @property
    def figures(self) -> dict[str, float]:
        """Every figure of `UNIT`."""
        lines = max(1, self.code)
        return {
            "nodes a line": round(self.nodes / lines, 2),
            "long lines": self.long,
            "conditionals": round(100 * self.conditionals / lines, 2),
            "comprehensions": round(100 * self.comprehensions / lines, 2),
            "one-word names": round(100 * self.one_word / max(1, self.functions), 1),
            "untyped reads": self.untyped,
        }

    @classmethod
    def total(cls, rooms: Iterable[Room]) -> Room:
        """All rooms as one."""
        known = list(rooms)
        return cls(*(sum(getattr(room, count.name) for room in known) for count in fields(cls)))

    def add(self, module: Module) -> None:
        """Count one module."""
        self.code += read(module).lines.code
        self.long += sum(len(line) > COLUMNS for line in module.text.splitlines())
        self.untyped += len(UNTYPED.findall(module.text))
        for node in module.nodes:
            self._add_node(node)

    def _add_node(self, node: ast.AST) -> None:
        self.nodes += 1
        self.conditionals += isinstance(node, ast.IfExp)
        self.comprehensions += isinstance(node, COMPREHENSIONS)
        if isinstance(node, DEFINITIONS) and not node.name.startswith("__"):
            self.functions += 1
            self.one_word += "_" not in node.name.strip("_")


def counted(package: Package | None = None) -> dict[str, dict[str, float]]:
    """Room → its figures; the whole package as ``all``, the modules of its root as ``door``."""
    known = package or Package(ROOT / "ncclkit")
    rooms: dict[str, Room] = defaultdict(Room)
    for name, module in known.modules.items():
        unit = known.unit(name)
        is_room = bool(unit) and (known.folder / unit).is_dir()
        rooms[unit if is_room else "door"].add(module)
    rooms["all"] = Room.total(rooms.values())
    return {name: room.figures for name, room in sorted(rooms.items())}


def risen(now: dict[str, dict[str, float]], kept: dict[str, dict[str, float]]) -> list[str]:
    """What is higher than it was, one sentence each."""
    found = []
    for room, figures in now.items():
        for name, figure in figures.items():
            before = kept.get(room, {}).get(name)
            if before is not None and figure > before:
                found.append(f"{room}: {name} rose from {before} to {figure} ({UNIT[name]})")
    return found


def kept_figures() -> dict[str, dict[str, float]]:
    """The figures that may not rise."""
    known: dict[str, dict[str, float]] = json.loads(FILE.read_text(encoding="utf-8"))
    return known


def names_in_three_modules(package: Package) -> dict[str, int]:
    """Public functions whose name stands in three modules or more, and in how many."""
    where: Counter[str] = Counter()
    for module in package.modules.values():
        names = {node.name for node in module.tree.body if isinstance(node, DEFINITIONS)}
        where.update(name for name in names if not name.startswith("_"))
    return {name: count for name, count in where.most_common() if count > 2}


def main() -> None:
    """Print the figures beside those that are kept, or keep lower ones."""
    parser = argparse.ArgumentParser(description="Count how dense the package is.")
    parser.add_argument("--write", action="store_true", help="keep the figures of now")
    options = parser.parse_args()
    package = Package(ROOT / "ncclkit")
    now = counted(package)
    kept = kept_figures() if FILE.exists() else {}
    if options.write:
        if found := risen(now, kept):
            raise SystemExit("\n".join(found))
        FILE.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    for room, figures in now.items():
        print(f"{room:12}", "  ".join(f"{name} {figure:g}" for name, figure in figures.items()))
    print(", ".join(f"{name} {count}" for name, count in names_in_three_modules(package).items()))


if __name__ == "__main__":
    main()
