"""The tests go on when a worker crashes: the test that did it fails once, and all others run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.groups import LONG, REPORTS, TOGETHER, Groups, group, is_long

ROOT = Path(__file__).parents[2]
CONFTEST = f"""import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.groups import Groups
def pytest_xdist_make_scheduler(config, log):
    return Groups(config, log)
"""
CRASH = """import os, pytest
@pytest.mark.parametrize("number", range(3))
def test_it(number):
    if number == 1 and "{name}" in ("a", "c"):
        os._exit(3)
"""


class Worker:
    """What the scheduler knows of a worker: what it was sent."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.sent: list[int] = []
        self.crashed = self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        """More tests, by their places in the collection."""
        if self.crashed:
            raise OSError("cannot send (already closed?)")
        self.sent += indices

    def shutdown(self) -> None:
        """Nothing more comes."""
        self.shutting_down = True


@pytest.mark.slow
def test_a_crash_costs_one_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text(CRASH.format(name=name))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", "."]
    bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}  # workers start soon
    done = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True, timeout=100)
    assert "2 failed, 10 passed" in done.stdout and "INTERNALERROR" not in done.stdout, done.stdout + done.stderr


def test_a_worker_that_still_collects_waits_for_its_tests() -> None:
    """Where the one whose place it takes was not the only one to crash."""
    tests = [f"tests/{file}.py::test_{number}" for file in "abcdef" for number in range(3)]
    options: Any = SimpleNamespace(getvalue=lambda name: ["popen"] * 2, option=SimpleNamespace(loadscopereorder=False))
    groups = Groups(options)
    first, second, third, fourth = (Worker(name) for name in "abcd")
    for worker in (first, second):
        groups.add_node(worker)
        groups.add_node_collection(worker, tests)
    groups.schedule()
    groups.add_node(third)
    assert groups.remove_node(first) == tests[0] and third.sent == []
    groups.add_node(fourth)
    assert groups.remove_node(second) == tests[3]
    for worker in (third, fourth):
        groups.add_node_collection(worker, tests)
        groups.schedule()
    while groups.workqueue:
        for worker in (third, fourth):
            for index in worker.sent:
                groups.mark_test_complete(worker, index)
    assert {*third.sent, *fourth.sent} == {*range(18)} - {0, 3}


def test_a_worker_that_has_crashed_leaves_its_next_group_to_others() -> None:
    """Where xdist hears of the last test that it ended before it hears that it has crashed."""
    tests = [f"tests/{file}.py::test_it" for file in "abcdef"]
    options: Any = SimpleNamespace(getvalue=lambda name: ["popen"] * 2, option=SimpleNamespace(loadscopereorder=False))
    groups = Groups(options)
    first, second = (Worker(name) for name in "ab")
    for worker in (first, second):
        groups.add_node(worker)
        groups.add_node_collection(worker, tests)
    groups.schedule()
    begun, waiting = list(first.sent), list(groups.workqueue)
    first.crashed = True
    groups.mark_test_complete(first, begun[0])
    assert list(groups.workqueue) == waiting
    assert groups.remove_node(first) == tests[begun[1]]
    while groups.workqueue:
        for index in second.sent:
            groups.mark_test_complete(second, index)
    assert {*second.sent} == {*range(6)} - {*begun}


def test_who_looks_at_the_report_of_a_notebook_runs_where_it_was_made() -> None:
    tests = ROOT / "tests"
    users = {
        path.relative_to(tests).as_posix()
        for path in tests.rglob("test_*.py")
        if re.search(r"^from tests\.reports import .*\bmade\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert users - {*REPORTS, *TOGETHER} == {"cli/test_page.py", "notebooks/test_environment.py"}, "their parameters are their own"
    names = [f"tests/{file}::test_it[1_recbole]" for file in REPORTS] + ["tests/notebooks/test_recbole.py::test_it"]
    assert {group(name) for name in names} == {"1_recbole"}


def test_every_long_file_is_there() -> None:
    assert [file for file in LONG if not (ROOT / "tests" / file).is_file()] == []
    assert is_long("tests/notebooks/test_recbole.py::test_it")
    assert is_long("tests/notebooks/test_papermill.py::test_it[4_wenet]")
    assert not is_long("tests/notebooks/test_papermill.py::test_it[guided]")
