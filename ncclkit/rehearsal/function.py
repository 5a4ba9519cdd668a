"""A function in place of a script: all ranks call it, in a test or wherever one is written."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import tempfile
import unittest
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ncclkit.core.model import NcclkitError
from ncclkit.rehearsal.commands import MOST_RANKS
from ncclkit.rehearsal.rehearse import ANSWER, RankOptions, run_ranks
from ncclkit.rehearsal.verdict import Rehearsal, read_verdict

MOST_PRINTED = 20_000
"""Characters of what the ranks printed that a failure shows."""


class RanksDisagree(AssertionError):
    """All ranks were not seen to agree; it says which, at which lines."""


def rehearse_function(
    function: Callable[..., object],
    ranks: int = 4,
    *,
    steps: int = 20,
    timeout: float = 60.0,
    values: Mapping[str, Any] | None = None,
) -> Rehearsal:
    """Call a function on so many ranks; raises `RanksDisagree` unless all agree.

    function: of a module, as every rank imports it by its name.
    steps: of an optimizer, after which a rank is stopped.
    timeout: seconds in which the ranks may run.
    values: arguments by name, of the types that JSON has.
    """
    # pytest shows the line of the test, not ours
    __tracebackhide__ = True
    if not 1 < ranks <= MOST_RANKS:
        raise NcclkitError(f"A rehearsal has 2 to {MOST_RANKS} ranks, not {ranks}.")
    described = _describe_function(function, values or {})
    options = RankOptions(ranks, ranks, steps, timeout, described)
    with tempfile.TemporaryDirectory(prefix="ncclkit-") as place:
        folder = Path(place)
        _run_to_end(run_ranks(folder, sys.executable, [], options))
        rehearsed = read_verdict(folder / ANSWER, ranks, "")
        printed = _printed_by(folder)
    if rehearsed.status:
        raise RanksDisagree("\n".join([rehearsed.text(), printed]).rstrip())
    return rehearsed


def _describe_function(
    function: Callable[..., object],
    values: Mapping[str, Any],
) -> dict[str, Any]:
    """Where another process finds a function, and what it is called with."""
    _refuse_what_waits(function)
    owner = _instance_of(function)
    # a method may stand in a class above that of its instance
    where: Any = function
    name = getattr(function, "__qualname__", "")
    if owner is not None:
        where = type(owner)
        name = f"{where.__qualname__}.{function.__name__}"
    module = getattr(where, "__module__", "")
    # ranks import a script as multiprocessing does, so that it does not start anew
    if module == "__main__":
        module = "__mp_main__"
    file = inspect.getsourcefile(where) or ""
    if "<" in name or not name or not Path(file).is_file():
        raise NcclkitError(
            f"Every rank imports the function that is rehearsed, so it must stand in a module;"
            f" {name or function!r} does not."
        )
    described = {
        "name": name,
        "module": module,
        "file": str(Path(file).resolve()),
        "values": _plain_values(values, ""),
        "attributes": None,
        "path": [entry for entry in sys.path if entry],
    }
    if owner is not None:
        described["attributes"] = _plain_values(vars(owner), "self.")
    return described


def _refuse_what_waits(function: Callable[..., object]) -> None:
    """To call a coroutine or a generator does nothing, which would pass as healthy."""
    if inspect.iscoroutinefunction(function):
        raise NcclkitError(
            "A coroutine is not rehearsed: let a plain function call it by asyncio.run."
        )
    if inspect.isgeneratorfunction(function):
        raise NcclkitError("A generator is not rehearsed: let a plain function use it up.")


def _instance_of(function: Callable[..., object]) -> Any:
    """The instance of a bound method; None of any other function."""
    owner = getattr(function, "__self__", None)
    if not inspect.ismethod(function) or inspect.isclass(owner):
        return None
    if isinstance(owner, unittest.TestCase):
        raise NcclkitError(
            "A method of unittest.TestCase is not rehearsed: write it as a function, or in a class"
            " of pytest."
        )
    return owner


def _plain_values(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Values for JSON: ``{"path": …}`` of a path, as of `tmp_path`, else ``{"value": …}``."""
    plain = {}
    for name, value in values.items():
        if isinstance(value, Path):
            plain[name] = {"path": str(value)}
            continue
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise NcclkitError(
                f"Ranks get numbers, strings, paths, lists and dicts; {prefix}{name} is none of"
                f" them ({error}): make it in the function itself."
            ) from error
        plain[name] = {"value": value}
    return plain


def _run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine, in a notebook or another running loop, too."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
        return
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


def _printed_by(folder: Path) -> str:
    """The end of what the ranks printed."""
    log = folder / "launcher.log"
    if not log.exists():
        return ""
    return log.read_text(errors="replace")[-MOST_PRINTED:]
