"""Marks what this test process starts, so that test processes side by side look for their own leftovers only."""

from __future__ import annotations

import gc
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import groups
from tests.processes import RUNNER, serve, warm
from tests.skips import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]

HERE = Path(__file__).parent
FIRST = ("browser", "notebooks", "probe", "live", "hostile", "cli")
"""Folders whose tests start jobs: they begin first, so that no process is left with one of them at the end."""

OF_JOBS = ("NCCL_", "TORCH_", "GLOO_")
"""How variables begin that jobs heed, whoever starts them."""

gc.set_threshold(50_000, 20, 50)  # thousands of tests stay in memory: collecting among them took a fifth of the time
os.environ["PYTHONDONTWRITEBYTECODE"] = ""  # where it is set, each of thousands of processes compiles the package anew
sys.dont_write_bytecode = False
os.environ[RUNNER] = uuid.uuid4().hex
os.environ["NCCLKIT_BASELINE"] = os.devnull + "/none"  # no baseline of whoever runs the tests
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in a shell's background: the programs that tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)  # would inherit that, and not hear an interrupt
SERVERS = serve()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first; JupyterLab serves what is in a row, and reports of notebooks need none."""
    for item in items:
        if groups.is_long(item.nodeid):
            item.add_marker("long")
    folders = {path: path.relative_to(HERE).parts[0] for path in {item.path for item in items}}
    place = {path: FIRST.index(folder) if folder in FIRST else len(FIRST) for path, folder in folders.items()}
    items.sort(key=lambda item: (place[item.path], item.path.name == "test_report.py"))


@pytest.fixture(scope="module")
def warm_ranks() -> Iterator[None]:
    """Ranks of jobs that a file starts have torch from the beginning, as `tests.processes.warm` says."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in warm(os.environ).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def variables_of_jobs_stay() -> Iterator[None]:
    """A variable that a test left behind would reach the jobs of every test after it in this process."""
    before = _variables_of_jobs()
    yield
    assert _variables_of_jobs() == before


def _variables_of_jobs() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(OF_JOBS)}


def pytest_collection_finish() -> None:
    """What was collected stays until the end, so the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """What pytest has looked through at its end, which takes a second, it need not look through once more."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are cores: tests that wait for Slurm, a deadline or a browser need none."""
    return min(len(os.sched_getaffinity(0)) + 2, 10)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What is made once for many tests is made in one process; loadgroup of xdist 3.8 has no effect in pytest 9.2."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from tests.groups import Groups

    return Groups(config, log)
