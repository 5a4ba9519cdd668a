"""What the modules of a package import from each other, read from their text: nothing is imported or run.

An import counts wherever it stands: at the top, inside a function, under ``TYPE_CHECKING``, relative, or as
``import_module("package.module")`` with the name written out. Names taken from the package's own root are no import of
a module: behind them stand ``__version__`` and the names that ``__init__.py`` loads when they are first used.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True, eq=False)
class Module:
    """One module, parsed."""

    name: str
    """Dotted, e.g. ``ncclkit.evidence.scanner``; a package is its ``__init__.py``."""
    path: Path
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree, walked once."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def bound(self) -> frozenset[str]:
        """Names that the module's own statements bind at its top level, imports of its submodules left out."""
        names: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.ImportFrom) and node.module and node.module != self.name:
                names.update(alias.asname or alias.name for alias in node.names)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(target.id for target in targets if isinstance(target, ast.Name))
        return frozenset(names)


@dataclass(frozen=True, order=True)
class Edge:
    """One import: a module takes something from another one."""

    importer: str
    imported: str
    line: int
    """Line of the import in `importer`."""

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


class Package:
    """The modules of one package below a folder, and who imports whom."""

    def __init__(self, folder: Path) -> None:
        """Read every ``*.py`` below `folder`, the folder of the package itself."""
        self.folder = folder
        self.name = folder.name
        self.modules: dict[str, Module] = {}
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            parts = path.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.modules[name] = Module(name, path, text, ast.parse(text, str(path)))

    @cached_property
    def edges(self) -> list[Edge]:
        """Every import of one module by another, sorted; several of one pair stand as the first."""
        found: dict[tuple[str, str], int] = {}
        for module in self.modules.values():
            for line, target in self._imports(module):
                if target not in (module.name, self.name):
                    found[module.name, target] = min(line, found.get((module.name, target), line))
        return sorted(Edge(importer, imported, line) for (importer, imported), line in found.items())

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Module → the modules that import it."""
        found: dict[str, set[str]] = defaultdict(set)
        for edge in self.edges:
            found[edge.imported].add(edge.importer)
        return found

    def unit(self, module: str) -> str:
        """The direct child of the package's root that a module belongs to, "" for the root itself."""
        parts = module.split(".")
        return parts[1] if len(parts) > 1 and parts[1] != "__main__" else ""

    @cached_property
    def units(self) -> list[str]:
        """Packages and modules that stand directly in the root, sorted."""
        return sorted({self.unit(name) for name in self.modules} - {""})

    @cached_property
    def unit_edges(self) -> dict[tuple[str, str], list[Edge]]:
        """Imports from one child of the root to another; the root's own files stand above all and are left out."""
        found: dict[tuple[str, str], list[Edge]] = defaultdict(list)
        for edge in self.edges:
            pair = self.unit(edge.importer), self.unit(edge.imported)
            if "" not in pair and pair[0] != pair[1]:
                found[pair].append(edge)
        return found

    def circles(self) -> list[list[str]]:
        """Groups of modules that import each other, directly or by way of others."""
        pairs = {(edge.importer, edge.imported) for edge in self.edges}
        return [group for group in components(self.modules, pairs) if len(group) > 1]

    def floors(self) -> dict[str, int]:
        """Child of the root → its floor: 1 imports no other child, each other stands above all that it imports.

        Children that import each other share a floor.
        """
        below: dict[str, set[str]] = defaultdict(set)
        for importer, imported in self.unit_edges:
            below[importer].add(imported)
        floors: dict[str, int] = {}
        for group in components(self.units, self.unit_edges):  # what is imported comes before what imports it
            under = {floors[other] for unit in group for other in below[unit] - set(group)}
            floors.update(dict.fromkeys(group, max(under, default=0) + 1))
        return floors

    def upward(self, floors: Mapping[str, int]) -> list[Edge]:
        """Imports between children of the root that do not go to a lower floor, where both have one in `floors`."""
        return sorted(
            edge
            for (importer, imported), edges in self.unit_edges.items()
            if {importer, imported} <= floors.keys() and floors[imported] >= floors[importer]
            for edge in edges
        )

    def doubled_classes(self) -> dict[str, list[str]]:
        """Public class name → the modules that define it, where more than one does."""
        found: dict[str, list[str]] = defaultdict(list)
        for module in self.modules.values():
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(module.name)
        return {name: modules for name, modules in sorted(found.items()) if len(modules) > 1}

    def _imports(self, module: Module) -> Iterator[tuple[int, str]]:
        """Line and module of everything in the package that `module` imports."""
        for node in module.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from ((node.lineno, name) for name in self._known(alias.name))
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(module, node.level, node.module or "")
                for alias in node.names:
                    yield from ((node.lineno, name) for name in self._member(base, alias.name))
            elif isinstance(node, ast.Call) and (name := _spelled_out(node)):
                level = len(name) - len(name.lstrip("."))
                yield from ((node.lineno, name) for name in self._known(_absolute(module, level, name[level:])))

    def _known(self, name: str) -> list[str]:
        """The module that a dotted name stands for, or its nearest parent that exists; none outside the package."""
        parts = name.split(".")
        while parts and ".".join(parts) not in self.modules:
            parts.pop()
        return [".".join(parts)] if parts else []

    def _member(self, base: str, name: str) -> list[str]:
        """The module behind ``from base import name``: a submodule, or `base` where it binds that name itself."""
        submodule = f"{base}.{name}"
        if submodule in self.modules and name not in self.modules[base].bound:
            return [submodule]
        return self._known(base)


def components(nodes: Collection[str], edges: Collection[tuple[str, str]]) -> list[list[str]]:
    """Strongly connected components, each sorted; what is pointed at comes before what points at it (Tarjan)."""
    after: dict[str, list[str]] = defaultdict(list)
    for source, target in sorted(edges):
        after[source].append(target)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in after[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            found.append(sorted(group))

    for node in sorted(nodes):
        if node not in index:
            visit(node)
    return found


def _absolute(module: Module, level: int, name: str) -> str:
    """The dotted name of a relative import; level 0 is absolute already."""
    if not level:
        return name
    parts = module.name.split(".")
    parts = parts[: len(parts) - level + module.is_package]
    return ".".join([*parts, name] if name else parts)


def _spelled_out(call: ast.Call) -> str:
    """The name in ``import_module("name")``, "" for every other call."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function != "import_module" or not call.args:
        return ""
    name = call.args[0]
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""
