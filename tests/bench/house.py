"""Measure the house: size, floors, circles, small files, functions, docstrings, and what it costs to start it.

    python tests/bench/house.py [--base REV] [--list] [--tests]

Run it from anywhere, on a quiet machine; it prints Markdown and asserts nothing. With `--base` a second column shows
the same of that revision, from a git worktree that is removed afterwards; the timings of both take turns.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # as a script this folder alone is on the path

from tests.packaging.imports import Module, Package  # noqa: E402

SMALL = 80
"""Lines: a module of at most so many with one importer probably belongs into that importer."""
LONG = 60
"""Lines that a function may have."""
RUN = 6
"""Equal lines of code in a row that count as a duplicate."""
ROUNDS = 5
RECORDING = "hang"
"""The bundled recording that is diagnosed: eight small files."""
LIMITS = {"check": 600.0, "test": 3600.0}
"""Seconds after which a make target is given up."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Lines:
    """The lines of some modules by what stands on them."""

    modules: int = 0
    all: int = 0
    code: int = 0
    docstrings: int = 0
    comments: int = 0
    """Lines of a comment alone."""
    commented: int = 0
    """Lines with a comment, alone or behind code."""

    def __add__(self, other: Lines) -> Lines:
        return Lines(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def __str__(self) -> str:
        blank = self.all - self.code - self.docstrings - self.comments
        return (
            f"{self.modules} modules, {self.all:,} lines: {self.code:,} code, {self.docstrings:,} docstrings, "
            f"{self.comments:,} comments, {blank:,} blank"
        )


@dataclass(frozen=True)
class Read:
    """One module, its lines told apart."""

    module: Module
    lines: Lines
    code: tuple[tuple[int, str], ...]
    """Number and text of the lines of code, blanks within them made one, comments left out."""


def read(module: Module) -> Read:
    """Tell the lines of a module apart by its tokens and its tree."""
    strings = {
        number
        for node in module.nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    comments = {token.start[0]: token.start[1] for token in tokens if token.type == tokenize.COMMENT}
    texts = {number: line[: comments.get(number)].strip() for number, line in enumerate(module.text.splitlines(), 1)}
    code = tuple((n, " ".join(text.split())) for n, text in texts.items() if text and n not in strings)
    alone = sum(not texts[number] for number in comments)
    filled = sum(bool(texts[number]) for number in strings)
    return Read(module, Lines(1, len(texts), len(code), filled, alone, len(comments)), code)


def rooms(package: Package, modules: Sequence[Read]) -> Iterator[tuple[str, str]]:
    """Size of everything, without causes/, and of each package; modules of the root are one room."""
    sizes: defaultdict[str, Lines] = defaultdict(Lines)
    for one in modules:
        unit = package.unit(one.module.name)
        sizes[f"{unit}/" if (package.folder / unit).is_dir() and unit else "the root's own modules"] += one.lines
    total = sum(sizes.values(), Lines())
    yield "all rooms", str(total)
    yield "without causes/", str(sum((size for room, size in sizes.items() if room != "causes/"), Lines()))
    yield from ((room, str(size)) for room, size in sorted(sizes.items()))
    yield "comment share of lines", f"{total.commented / total.all:.1%}"


def structure(package: Package) -> Iterator[tuple[str, str]]:
    """Entries of the root, floors, circles, edges that go upwards by the table of floors."""
    from tests.packaging.test_structure import FLOORS, OF_THE_ROOT  # needs pytest, which nothing else here does

    entries = {path.name for path in package.folder.iterdir() if path.name[0] != "." and path.name != "__pycache__"}
    yield "entries of the root", f"{len(entries - OF_THE_ROOT)}, of them {len(package.units)} with code"
    yield "dependency floors", str(max(package.floors().values()))
    circles = package.circles()
    yield "import circles", "; ".join([str(len(circles)), *(" <-> ".join(map(short, circle)) for circle in circles)])
    floors = {unit: floor for floor, units in FLOORS.items() for unit in units}
    homeless = set(package.units) - floors.keys()
    yield "imports against the table of floors", f"{len(package.upward(floors))}, {len(homeless)} units not in it"
    yield "public classes that share a name", str(len(package.doubled_classes()))


def small(package: Package, modules: Sequence[Read]) -> list[str]:
    """Modules of few lines that one other module imports, with that one; packages are left out."""
    return [
        f"{short(name)} ({one.lines.all}) <- {short(*importers)}"
        for one in modules
        if one.lines.all <= SMALL and not one.module.is_package
        if len(importers := package.importers.get(name := one.module.name, set())) == 1
    ]


def functions(package: Package) -> Iterator[tuple[str, str]]:
    """How long functions are, and how many of the public docstrings say more than one line."""
    lengths, docstrings = [], []
    for module in package.modules.values():
        docstrings.append(ast.get_docstring(module.tree))
        for node in module.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
            if isinstance(node, Definition) and not node.name.startswith("_"):
                docstrings.append(ast.get_docstring(node))
    yield f"functions over {LONG} lines", str(sum(length > LONG for length in lengths))
    ninth = statistics.quantiles(lengths, n=10)[-1]
    yield (
        "lines of a function, median · p90",
        f"{statistics.median(lengths):.0f} · {ninth:.0f} ({len(lengths)} functions)",
    )
    there = [text for text in docstrings if text]
    more = sum("\n" in text for text in there)
    yield "public docstrings over one line", f"{more} of {len(there)}, {more / len(there):.0%}"


def duplicates(modules: Sequence[Read]) -> list[str]:
    """Second and further places of runs of equal lines, each at its full length; imports and lone brackets left out."""
    seen: dict[tuple[str, ...], str] = {}
    found = []
    for one in modules:
        code = [(n, text) for n, text in without_imports(one.code) if any(map(str.isalnum, text))]
        run, origin = 0, ""  # windows in a row that stood somewhere before, and where the first of them did
        for at in range(len(code) - RUN + 2):
            window = tuple(text for _, text in code[at : at + RUN])
            if len(window) == RUN and window in seen:
                run, origin = run + 1, origin if run else seen[window]
                continue
            if run:
                found.append(f"{short(one.module.name)}:{code[at - run][0]} ({run + RUN - 1} lines) as {origin}")
            run = 0
            if len(window) == RUN:
                seen[window] = f"{short(one.module.name)}:{code[at][0]}"
    return found


def without_imports(code: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines of code that import nothing: what modules import is alike everywhere."""
    inside = False  # the brackets of an import of many names
    for number, text in code:
        starts = text.startswith(("import ", "from "))
        if not (starts or inside):
            yield number, text
        inside = (starts and text.endswith("(")) or (inside and ")" not in text)


def short(name: str) -> str:
    """A module's name without the package's."""
    return name.partition(".")[2] or name


def figures(root: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """All that is read from the text of a tree: row → figure, and the lists behind some of them."""
    package = Package(root / "ncclkit")
    modules = [read(module) for module in package.modules.values()]
    lists = {
        f"modules of at most {SMALL} lines with one importer": small(package, modules),
        f"duplicate blocks of at least {RUN} lines": duplicates(modules),
    }
    rows = dict([*rooms(package, modules), *structure(package), *functions(package)])
    rows.update((row, str(len(names))) for row, names in lists.items())
    return rows, lists


def recording(root: Path) -> Path:
    """The bundled recording that is diagnosed, a folder or an archive, wherever the tree keeps it."""
    found = [path for path in (root / "ncclkit").rglob(f"{RECORDING}*") if path.name.split(".")[0] == RECORDING]
    found = [path for path in found if path.is_dir() or path.suffix in (".gz", ".tar", ".tgz", ".zip", ".zst")]
    if not found:
        sys.exit(f"{root / 'ncclkit'} holds no recording {RECORDING!r}")
    return min(found, key=lambda path: len(path.parts))


def seconds(root: Path, *arguments: str) -> float:
    """Wall time of one Python in a tree; one that fails has no figure, and ends this."""
    start = time.perf_counter()
    result = subprocess.run(
        [sys.executable, *arguments], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    took = time.perf_counter() - start
    if result.returncode not in (0, 1) or "Traceback" in result.stderr:  # 1: something was found
        sys.exit(f"{' '.join(arguments)} in {root}: exit status {result.returncode}\n{result.stderr}")
    return took


def timings(roots: Sequence[Path]) -> list[dict[str, str]]:
    """Median seconds of each command in each tree; the trees take turns, so that a busy moment meets them all."""
    diagnosed = f"ncclkit diagnose {RECORDING}, s"
    rows = {"import ncclkit, s": ("-c", "import ncclkit"), "ncclkit --help, s": ("-m", "ncclkit", "--help")}
    taken: list[defaultdict[str, list[float]]] = [defaultdict(list) for _ in roots]
    for turn in range(ROUNDS + 1):  # the first one writes the byte code
        for root, column in zip(roots, taken, strict=True):
            for row, command in {**rows, diagnosed: ("-m", "ncclkit", "diagnose", str(recording(root)))}.items():
                took = seconds(root, *command)
                column[row] += [took] if turn else []
    return [{row: f"{statistics.median(column[row]):.3f}" for row in column} for column in taken]


def make(root: Path, target: str, limit: float) -> str:
    """Seconds of a make target, "none" where the tree has no such target; what it started ends with it."""
    with tempfile.TemporaryFile() as out:
        start = time.perf_counter()
        process = subprocess.Popen(["make", target], cwd=root, stdout=out, stderr=out, start_new_session=True)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"over {limit:.0f}"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        took = time.perf_counter() - start
        out.seek(0)
        if status and b"No rule to make target" in out.read():
            return "none"
    return f"{took:.0f}{' (failed)' if status else ''}"


def tests(root: Path) -> dict[str, str]:
    """Seconds of the tests, in an environment that is installed before the clock starts."""
    subprocess.run(["make", ".venv/.installed"], cwd=root, check=True, stdout=sys.stderr, timeout=1800)
    return {f"make {target}, s": make(root, target, limit) for target, limit in LIMITS.items()}


@contextmanager
def tree(revision: str) -> Iterator[Path]:
    """A revision of this repository in a folder of its own, gone afterwards."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "base")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(folder), revision], check=True, timeout=120)
        try:
            yield folder
        finally:
            subprocess.run([*git, "remove", "--force", str(folder)], check=True, timeout=120)


def table(columns: dict[str, dict[str, str]]) -> str:
    """Markdown: a row for each figure that any tree has, a column for each tree."""
    names = list(dict.fromkeys(row for rows in columns.values() for row in rows))
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    lines += [[name, *(rows.get(name, "-") for rows in columns.values())] for name in names]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def report(roots: dict[str, Path], with_lists: bool, with_tests: bool) -> None:
    """Print the table of all trees, then the lists of the first."""
    read_from = {name: figures(root) for name, root in roots.items()}
    columns = {name: rows for name, (rows, _) in read_from.items()}
    for rows, times in zip(columns.values(), timings(list(roots.values())), strict=True):
        rows.update(times)
    if with_tests:
        for name, root in roots.items():
            columns[name].update(tests(root))
    print(table(columns))
    if with_lists:
        for title, names in next(iter(read_from.values()))[1].items():
            print(f"\n{title}\n\n" + "\n".join(f"- {name}" for name in names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", metavar="REV", help="a revision to stand beside this tree")
    parser.add_argument("--list", action="store_true", help="also name the small modules and the duplicates")
    parser.add_argument("--tests", action="store_true", help="also time make check and make test (long)")
    options = parser.parse_args()
    if options.base:
        with tree(options.base) as base:
            report({"this tree": ROOT, options.base: base}, options.list, options.tests)
    else:
        report({"this tree": ROOT}, options.list, options.tests)


if __name__ == "__main__":
    main()
