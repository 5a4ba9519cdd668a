"""The rules of the house, held by a machine."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.packaging.project import PROJECT, ROOT, requirements

MODULES = sorted((ROOT / "ncclkit").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
OURS = {"ncclkit", "tests"}
STDLIB = sys.stdlib_module_names | {"tomllib"}  # tomllib: since 3.11
IMPORT_NAMES = {
    "holistictraceanalysis": "hta",  # distribution → module, where they differ
    "py-rattler": "rattler",
    "scikit-learn": "sklearn",
    "pytest-xdist": "xdist",
    "pyyaml": "yaml",
    "pyzmq": "zmq",
    "beautifulsoup4": "bs4",
}
BY_NAME = {"jupyterlab", "ipykernel", "py_spy", "pystack", "jsonschema"}  # run as programs, or held below a version
HEAVY = set("torch pandas pyarrow plotly ipywidgets IPython papermill nbconvert numpy scipy rich mcp shtab".split())


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def imports(path: Path) -> set[str]:
    """Top-level names of what a module imports from elsewhere."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).split(".")[0])
    return found


def imported(paths: list[Path]) -> set[str]:
    return {found for path in paths for found in imports(path)} - STDLIB - OURS


def modules_of(group: str) -> set[str]:
    return {IMPORT_NAMES.get(r.name, r.name.replace("-", "_")) for r in requirements(group)}


def test_functions_are_small():
    long = []
    for path in MODULES:
        functions = [n for n in ast.walk(tree(path)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        long += [f"{name(path)}:{f.lineno}" for f in functions if f.end_lineno - f.lineno + 1 > 60]
    assert long == []


def test_no_rule_about_errors_pickles_shells_and_docstrings_is_waived():
    """The same rules as in pyproject.toml, but here no `noqa` helps."""
    rules = "S110,S112,S301,S602,S604,S605,D100,D101,D102,D103"
    result = run(sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa", "--select", rules, "ncclkit")
    assert result.returncode == 0, result.stdout


def test_what_runs_as_ranks_needs_only_a_bare_python_39():
    """The agent needs nothing of ours; the programs of the lab only the agent and themselves."""
    strange = {}
    for path in MODULES:
        parts = Path(name(path)).parts
        if "agent" not in parts and "programs" not in parts:
            continue
        found = ast.walk(ast.parse(path.read_text(), str(path), feature_version=(3, 9)))
        ours = {node.module or "" for node in found if isinstance(node, ast.ImportFrom) and not node.level}
        allowed = ("ncclkit.agent", "ncclkit.lab.programs") if "programs" in parts else ()
        foreign = imports(path) - sys.stdlib_module_names - {"torch", "ncclkit"}
        strange[name(path)] = foreign | {
            one for one in ours if one.startswith("ncclkit") and not one.startswith(allowed)
        }
    assert len(strange) > 50 and {path: more for path, more in strange.items() if more} == {}


def test_every_import_is_a_declared_dependency():
    package = (
        modules_of("dependencies") | modules_of("fast") | modules_of("mcp") | modules_of("dask") | modules_of("tuning")
    )
    assert imported(MODULES) - package == set()
    assert imported(TESTS) - package - modules_of("test") == set()


def test_every_dependency_is_used():
    assert modules_of("dependencies") - BY_NAME - imported(MODULES) == set()


@pytest.mark.parametrize("module", ["ncclkit", "ncclkit.cli", "ncclkit.causes.engine", "ncclkit.report"])
def test_importing_costs_no_heavy_library(module):
    result = run(sys.executable, "-c", f"import sys, {module}; print(*sys.modules)")
    assert result.returncode == 0, result.stderr
    assert HEAVY.isdisjoint(result.stdout.split())


def test_the_command_starts_without_the_readers_of_logs():
    """They take longer than all else; `ncclkit status` beside a hung controller has no second to lose."""
    result = run(sys.executable, "-c", "import sys, ncclkit.cli.parser; print(*sys.modules)")
    assert result.returncode == 0, result.stderr
    loaded = result.stdout.split()
    assert "ncclkit.cli.verbs.rehearse" in loaded
    assert [name for name in loaded if name.startswith("ncclkit.evidence.")] == []


def test_agent_starts_with_nothing_installed():
    """-S leaves site-packages out: this is a training interpreter that has never heard of us."""
    result = run(sys.executable, "-S", "-m", "ncclkit.agent", "facts", "--no-torch")
    assert result.returncode == 0, result.stderr
    assert '"kind": "fact"' in result.stdout


def test_nothing_is_left_for_later():
    marks = re.compile(r"\b(TODO|FIXME|XXX|raise NotImplementedError)\b")
    found = [
        f"{name(path)}:{number}"
        for path in [*MODULES, *TESTS]
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


def test_changelog_knows_this_version():
    assert re.search(rf"^## {re.escape(PROJECT['version'])}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
