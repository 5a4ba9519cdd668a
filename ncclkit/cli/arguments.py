"""Arguments that several verbs take.

It has their bounds, their help, and what is made of them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from ncclkit.cli.terminal import show
from ncclkit.core.model import NcclkitError
from ncclkit.core.ranges import NumberRange

if TYPE_CHECKING:
    from ncclkit.live.options import ProbeOptions

DAY = 86_400
COUNT = NumberRange(0, 100_000)
PORT = NumberRange(1, 65_535)
JOB_ID = NumberRange(1, 2**32 - 1)


def add_case(parser: argparse.ArgumentParser) -> None:
    """Add ``--case``, the folder that keeps what a verb finds."""
    parser.add_argument("--case", default="case", help="the case folder (default: ./case)")


def add_json(parser: argparse.ArgumentParser, what: str = "JSON instead of text") -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help=what)


def add_log_marks(parser: argparse.ArgumentParser) -> None:
    """Add the hidden option by which `mcp` has text of logs marked for a coding agent."""
    parser.add_argument("--mark-log-text", action="store_true", help=argparse.SUPPRESS)


def add_oversubscribe(parser: argparse.ArgumentParser) -> None:
    """Add ``--oversubscribe``, of verbs that start as many ranks as they are asked for."""
    what = "start more ranks than cores and memory carry"
    parser.add_argument("--oversubscribe", action="store_true", help=what)


def add_here(parser: argparse.ArgumentParser) -> None:
    """Add ``--here``, of verbs that start ranks."""
    what = "run on this host even if it is a login node"
    parser.add_argument("--here", action="store_true", help=what)


def chosen_options(options: argparse.Namespace) -> ProbeOptions:
    """The options of the live test among those that were given."""
    from ncclkit.live.options import OPTIONS, ProbeOptions

    given = {name: getattr(options, name) for name in OPTIONS if hasattr(options, name)}
    return ProbeOptions(**given, oversubscribe=options.oversubscribe, here=options.here)


def probe_options(options: argparse.Namespace) -> ProbeOptions:
    """As `chosen_options`; more ranks than fit are asked about first."""
    from ncclkit.live.options import too_many_ranks

    chosen = chosen_options(options)
    if chosen.oversubscribe or not can_ask_person():
        return chosen
    why = too_many_ranks(chosen.ranks)
    if not why:
        return chosen
    if typed_answer(f"{why}. Start them? [y/N]") not in ("y", "yes"):
        raise NcclkitError("Nothing was started; ask for fewer ranks.")
    return replace(chosen, oversubscribe=True)


def can_ask_person() -> bool:
    """Whether a person reads what we ask, and can type an answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def typed_answer(question: str) -> str:
    """What a person types when asked, in small letters."""
    show(question, sys.stderr)
    return sys.stdin.readline().strip().lower()
