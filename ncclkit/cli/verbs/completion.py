"""`ncclkit completion`: what makes bash or zsh complete this command."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from ncclkit.cli.runner import Verb, VerbAnswer
from ncclkit.live.options import OPTIONS


class CompletionVerb(Verb):
    """Print a completion script that knows verbs, options, faults, notebooks and causes."""

    name = "completion"
    group = "Learn"
    what = "what makes bash or zsh complete this command"
    example = "completion bash > FILE"
    needs_folder = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the shell."""
        parser.add_argument("shell", choices=("bash", "zsh"), metavar="SHELL", help="bash or zsh")

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Give every argument what can stand there, then have shtab write the script."""
        import shtab

        command: argparse.ArgumentParser = options.whole_command
        names = _names_by_metavar()
        for verb in verb_parsers(command):
            for action in verb._actions:
                _offer_values(action, names)
        return VerbAnswer(0, [shtab.complete(command, options.shell)])


def verb_parsers(command: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parser of each verb of the command."""
    found: list[argparse.ArgumentParser] = []
    for action in command._actions:
        if isinstance(action.choices, dict):
            found += action.choices.values()
    return found


def _names_by_metavar() -> dict[str, Iterable[str]]:
    from ncclkit.causes import catalogue
    from ncclkit.lab.faults.injection import FAULTS
    from ncclkit.report.parameters import own

    return {"FAULT": FAULTS, "ID": catalogue(), "NOTEBOOK": own()}


def _offer_values(action: Any, names: dict[str, Iterable[str]]) -> None:
    """Set what the shell offers for one argument: names of ours, choices, files or folders."""
    import shtab

    metavar = str(action.metavar)
    offered = list(names.get(metavar, ()))
    if not offered and action.dest in OPTIONS:
        offered = list(OPTIONS[action.dest].choices)
    if offered:
        action.choices = offered
    if action.dest == "case" or metavar == "DIR":
        action.complete = shtab.DIRECTORY
    elif metavar == "PATH":
        action.complete = shtab.FILE
