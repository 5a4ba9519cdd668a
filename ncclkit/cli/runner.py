"""What a verb is, and how its answer is printed: the one runner.

In come the options of a command line.  A verb does its work and returns a `VerbAnswer`; nothing
else prints a result or chooses between text and JSON.

Begin at `run_verb`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ncclkit.cli import terminal
from ncclkit.cli.terminal import show
from ncclkit.core import storage
from ncclkit.core.model import to_json

if TYPE_CHECKING:
    from ncclkit.causes.diagnosis import Diagnosis
    from ncclkit.causes.summary import Summary


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, and its summary where a whole job was judged."""

    diagnosis: Diagnosis
    summary: Summary | None = None
    is_whole: bool = False
    """Whether a terminal, too, shows all evidence and advice."""


@dataclass(frozen=True, slots=True)
class NameTable:
    """Names, and what is to be said of each."""

    title: str
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class CataloguePage:
    """A page of the catalogue: heading → text; its title has the key ""."""

    name: str
    sections: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Aside:
    """What is said beside the answer, on standard error."""

    text: str


@dataclass(frozen=True, slots=True)
class ReportPage:
    """A page that was written, and the verdict that stands in it."""

    path: Path
    sentence: str = ""


Part = str | Verdict | NameTable | CataloguePage | Aside | ReportPage
"""A piece of an answer that a person reads."""
Data = Mapping[str, Any] | Sequence[Any]
"""One object of JSON, or records that stand one a line."""


@dataclass(frozen=True, slots=True)
class VerbAnswer:
    """What a verb has found out.

    Of text and data only what is printed is ever made.
    """

    status: int
    """The exit status; the docstring of `ncclkit.cli` says what each means."""
    parts: Iterable[Part] = ()
    """The text, piece by piece.

    A generator runs only where a person reads.
    """
    data: Callable[[], Data] | None = None
    """Makes what ``--json`` prints; None where there is only text."""


VerbGroup = Literal["My job", "This cluster", "Learn"]
"""Under which heading of ``ncclkit --help`` a verb stands."""


class Verb(ABC):
    """One verb of the command: its line of help, its options, and its work."""

    group: ClassVar[VerbGroup]
    name: ClassVar[str]
    what: ClassVar[str]
    """One line of ``ncclkit --help``."""
    example: ClassVar[str]
    """What stands behind ``ncclkit`` in the example of its own help."""
    needs_folder: ClassVar[bool] = True
    """Whether it writes or starts something in the current folder.

    Then there must be one.
    """

    def more_help(self) -> str:
        """What stands below its help; made where it is asked for."""
        return ""

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare its arguments, in the order of its help."""

    # most verbs have nothing to check
    def check_options(self, options: argparse.Namespace) -> None:  # noqa: B027
        """Raise NcclkitError for values that no work can be made of.

        A verb that is to wait in a queue is asked before it does.
        """

    def job_paths(self, options: argparse.Namespace) -> Sequence[str]:
        """The paths that its work reads, as they were typed; asked before it waits in a queue."""
        return ()

    @abstractmethod
    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Do the work; raises NcclkitError, in one sentence, where it cannot be done."""


def run_verb(options: argparse.Namespace) -> int:
    """Do what the options name, print the answer, return the exit status."""
    verb: Verb = options.verb
    # what the verb starts must not write over what came of the verb
    kept = os.environ.pop(storage.OUTCOME_VARIABLE, "")
    answer = verb.answer(options)
    outcome: dict[str, Any] = {}
    if answer.data is not None and getattr(options, "json", False):
        data = answer.data()
        outcome = _outcome_of_data(data)
        show(_json_text(data))
    else:
        print_parts(_watched_parts(answer.parts, outcome))
    if kept and outcome:
        storage.write(Path(kept), json.dumps(outcome))
    return answer.status


def _watched_parts(parts: Iterable[Part], outcome: dict[str, Any]) -> Iterator[Part]:
    """The parts; `outcome` gets the first verdict among them, and where the page is."""
    for part in parts:
        if isinstance(part, Verdict) and "verdict" not in outcome:
            outcome.update(_outcome_of_data(part.diagnosis.to_dict()))
            outcome["say"] = part.diagnosis.headline
        elif isinstance(part, ReportPage):
            outcome["report"] = str(part.path)
            if part.sentence:
                outcome.setdefault("say", part.sentence)
        yield part


def _outcome_of_data(data: Data) -> dict[str, Any]:
    """What of an answer as JSON says what came of the verb; empty where it judges nothing."""
    if not isinstance(data, Mapping) or "verdict" not in data:
        return {}
    outcome: dict[str, Any] = {"verdict": data["verdict"], "action": data.get("action")}
    findings = data.get("findings") or ()
    for finding in findings[:1]:
        outcome |= {name: finding.get(name) for name in ("cause", "strength", "say")}
    return outcome


def print_parts(parts: Iterable[Part]) -> None:
    """Print the pieces of an answer for a person, each as soon as it is made."""
    for part in parts:
        if isinstance(part, ReportPage):
            if part.sentence:
                show(f"Verdict: {part.sentence}")
            show(f"Report: {part.path}")
        elif isinstance(part, Verdict):
            terminal.verdict(part.diagnosis, part.summary, part.is_whole)
        elif isinstance(part, NameTable):
            terminal.rows(part.title, part.rows)
        elif isinstance(part, CataloguePage):
            terminal.print_page(part.name, part.sections)
        elif isinstance(part, Aside):
            show(part.text, sys.stderr)
        else:
            show(part)


def print_note(text: str) -> None:
    """Print a sentence of ours on standard error, where it disturbs no answer."""
    show(f"ncclkit: {text}", sys.stderr)


def _json_text(data: Data) -> str:
    if isinstance(data, Mapping):
        return json.dumps(data, indent=1, default=str)
    return "\n".join(to_json(record) for record in data)
