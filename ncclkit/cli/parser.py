"""The parser of the command line.

What it does not understand it says in one sentence.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from typing import Any, NoReturn, get_args

from ncclkit import __version__
from ncclkit.cli.runner import Verb, VerbGroup
from ncclkit.cli.terminal import show
from ncclkit.cli.verbs import VERBS
from ncclkit.core.text import did_you_mean
from ncclkit.live.options import JOB_OPTIONS, SHORT, joined_values

WHERE_TO_BEGIN = """\
Where to begin: name what your job left behind; you get which rank is at fault, why, and what to do.

    $ ncclkit diagnose logs/ --html report.html    # also as one page, for the ticket"""
"""The first lines of ``ncclkit --help``."""


def command_parser() -> argparse.ArgumentParser:
    """The parser of the whole command, with one for each verb."""
    parser = _CommandParser(prog="ncclkit")
    parser.add_argument("--version", action="version", version=f"ncclkit {__version__}")
    # for verbs that read another verb's words, or describe all of them to a shell
    parser.set_defaults(whole_command=parser)
    parsers = parser.add_subparsers(required=True, metavar="VERB", parser_class=_Parser)
    for verb in VERBS:
        _add_verb(parsers, verb)
    return parser


def _add_verb(parsers: Any, verb: Verb) -> None:
    """Add the parser of one verb, whose help ends with an example."""
    parser: argparse.ArgumentParser = parsers.add_parser(
        verb.name,
        help=verb.what,
        description=f"{verb.what[:1].upper()}{verb.what[1:]}.",
        epilog=f"Example: ncclkit {verb.example}",
    )
    parser.set_defaults(verb=verb, parser=parser)
    verb.add_arguments(parser)


class _Parser(argparse.ArgumentParser):
    """Says in one sentence what it does not understand, and what may have been meant."""

    def format_help(self) -> str:
        """The help, and below it what the verb adds where somebody asks."""
        verb: Verb | None = self.get_default("verb")
        more = ""
        if verb:
            more = verb.more_help()
        if more:
            return f"{super().format_help()}\n{more}\n"
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, which takes no value that begins with a dash."""
        if args is None:
            args = sys.argv[1:]
        return super().parse_known_args(joined_values(args, self), namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, extra = self.parse_known_args(args, namespace)
        if extra:
            _refuse_word(options.parser, extra[0])
        return options

    def error(self, message: str) -> NoReturn:
        # a type says "must be …", which is a sentence about the option
        message = re.sub(r"^argument (\S+): must", r"\1 must", message)
        wrong = re.search(r"invalid choice: '([^']*)'", message)
        if wrong:
            known = []
            for action in self._actions:
                for choice in action.choices or ():
                    known.append(str(choice))
            meant = did_you_mean(wrong[1], known, f"there is: {', '.join(known)}.")
            message = f"`{self.prog}` does not know {wrong[1]!r}; {meant}"
        end = "."
        if message.endswith("?"):
            end = "?"
        show(f"ncclkit: {message.rstrip('.?')}{end} See `{self.prog} --help`.", sys.stderr)
        raise SystemExit(2)


class _CommandParser(_Parser):
    """The parser of the whole command, whose help begins where most people begin."""

    def format_help(self) -> str:
        """Where to begin, then the verbs by what they are for."""
        width = max(len(verb.name) for verb in VERBS)
        room = max(40, shutil.get_terminal_size().columns - width - 8)
        lines = [WHERE_TO_BEGIN, "", self.format_usage().rstrip()]
        for group in get_args(VerbGroup):
            lines += ["", group]
            for verb in VERBS:
                if verb.group != group:
                    continue
                first, *more = textwrap.wrap(verb.what, room)
                lines.append(f"    {verb.name:{width}}  {first}")
                lines += [f"{'':{width + 6}}{line}" for line in more]
        lines += ["", "`ncclkit VERB --help` has its options and an example.", ""]
        return "\n".join(lines)


def _refuse_word(verb: argparse.ArgumentParser, word: str) -> None:
    """End with a sentence about a word that this verb does not take."""
    flag = word.partition("=")[0]
    meant = did_you_mean(flag, verb._option_string_actions)
    of_a_job = [*SHORT.values()]
    of_a_job += [f"--{name.replace('_', '-')}" for name in JOB_OPTIONS]
    if flag in of_a_job:
        meant = f"`ncclkit submit {flag} … VERB` takes it, before the verb"
    elif verb.prog.endswith(" submit") and _is_of_another_verb(flag):
        meant = f"options of a verb stand behind it: `ncclkit submit … VERB {flag} …`"
    hint = ""
    if meant:
        hint = f"; {meant}"
    verb.error(f"{word!r} is not an option or argument of `{verb.prog}`{hint}")


def _is_of_another_verb(flag: str) -> bool:
    """Whether some verb takes this option."""
    for verb in VERBS:
        parser = argparse.ArgumentParser(add_help=False)
        verb.add_arguments(parser)
        if flag in parser._option_string_actions:
            return True
    return False
