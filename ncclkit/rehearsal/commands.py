"""Which interpreter runs a script, and on how many ranks, by the command that starts it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclkit.core.model import NcclkitError

PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
TORCHRUN = ("torchrun",)
MOST_RANKS = 256
FLAGS = ("standalone", "no-python", "m", "module")
"""Options of torchrun that take no value."""


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    """A script as every rank runs it."""

    python: str
    words: tuple[str, ...]
    """The script, or -m and a module, with its arguments."""
    ranks: int
    host_ranks: int
    """Ranks of one host."""


def parse_command(words: Sequence[str], ranks: int) -> ScriptCommand:
    """The script behind ``python …`` or ``torchrun …``; raises NcclkitError for anything else.

    ranks: how many; 0 for those of torchrun, else four.
    """
    if not words:
        raise NcclkitError("Name the script after two dashes: ncclkit rehearse -- python train.py")
    program = shutil.which(words[0])
    if program is None:
        raise NcclkitError(
            f"There is no program {words[0]!r}; write the command as your job has it."
        )
    if PYTHON.fullmatch(words[0]):
        command = _of_python(program, words[1:], ranks or 4)
    elif Path(words[0]).name in TORCHRUN:
        command = _of_torchrun(program, words[1:], ranks)
    else:
        raise NcclkitError(
            f"A rehearsal starts `python …` and `torchrun …`, not {words[0]!r}; name the script"
            " itself: ncclkit rehearse --ranks 8 -- python train.py"
        )
    if not 1 < command.ranks <= MOST_RANKS:
        raise NcclkitError(f"A rehearsal has 2 to {MOST_RANKS} ranks, not {command.ranks}.")
    return command


def _of_python(python: str, words: Sequence[str], ranks: int) -> ScriptCommand:
    is_module = len(words) > 1 and words[0] == "-m"
    if not words or (words[0].startswith("-") and not is_module):
        raise NcclkitError(
            "After python the script must follow, or -m and a module; options cannot be passed on."
        )
    if is_module and words[1] == "torch.distributed.run":
        return _of_torchrun(python, words[2:], 0)
    if not is_module and not Path(words[0]).is_file():
        raise NcclkitError(f"There is no script {words[0]!r} in this folder.")
    return ScriptCommand(python, tuple(words), ranks, ranks)


def _of_torchrun(program: str, words: Sequence[str], ranks: int) -> ScriptCommand:
    """What torchrun would start; hosts of `--nnodes` all become this one."""
    values, rest = _options_of_torchrun(words)
    if "no-python" in values:
        raise NcclkitError("A rehearsal runs Python scripts; torchrun's --no-python starts others.")
    given = values.get("nproc-per-node", "1")
    host_ranks = _number(given, ranks or 4)
    # of 1:4 the most
    _, _, most = values.get("nnodes", "1").rpartition(":")
    hosts = _number(most, 1)
    if "m" in values or "module" in values:
        rest = ["-m", *rest]
    python = _interpreter_beside(program)
    script = _of_python(python, rest, 2)
    if not ranks:
        ranks = hosts * host_ranks
    return ScriptCommand(
        python=python,
        words=script.words,
        ranks=ranks,
        host_ranks=min(ranks, host_ranks),
    )


def _options_of_torchrun(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Its options, and the script with its own."""
    values: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not equals and name not in FLAGS:
            if not rest:
                raise NcclkitError(f"torchrun's --{name} lacks its value.")
            value = rest.pop(0)
        values[name] = value
    return values, rest


def _number(words: str, otherwise: int) -> int:
    """A number of ranks; `otherwise` for gpu, auto and the like."""
    if re.fullmatch(r"\d{1,6}", words):
        return int(words)
    return otherwise


def _interpreter_beside(program: str) -> str:
    """The interpreter of the environment in which a program is installed."""
    if PYTHON.fullmatch(program):
        return program
    for name in ("python", "python3"):
        found = Path(program).with_name(name)
        if found.exists():
            return str(found)
    raise NcclkitError(
        f"There is no python beside {program}; name it: ncclkit rehearse -- python train.py"
    )
