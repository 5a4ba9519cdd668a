"""Which interpreter runs a script, and on how many ranks, by the command that starts it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ncclkit.core.model import NcclkitError
from ncclkit.rehearsal import accelerate_options

PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
TORCHRUN = ("torchrun",)
MOST_RANKS = 256
USUAL_RANKS = 4
ALONE = "virtual-local-rank"
"""The option of torchrun by which a rank sees one GPU alone, and is the first of its host."""
FLAGS = ("standalone", "no-python", "m", "module", ALONE)
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
    env: Mapping[str, str] = field(default_factory=dict)
    """What the launcher tells its ranks besides."""
    shown_gpus: str = "unknown"
    """Which GPUs it shows a rank: a key of `ncclkit.agent.rehearsal.coordinator.SHOWN_GPUS`."""


def parse_command(words: Sequence[str], ranks: int, hosts: int = 0) -> ScriptCommand:
    """The script behind the command of a job; raises NcclkitError for what is no such command.

    ranks: how many; 0 for those of the launcher, else four.
    hosts: on how many they shall be; 0 for those of the launcher, else one.
    """
    check_launcher(words)
    program = shutil.which(words[0])
    if program is None:
        raise NcclkitError(
            f"There is no program {words[0]!r}; write the command as your job has it."
        )
    name = Path(words[0]).name
    if PYTHON.fullmatch(words[0]):
        command = _of_python(program, words[1:], ranks)
    elif name in TORCHRUN:
        command = _of_torchrun(program, words[1:], ranks)
    elif name == "accelerate" and words[1:2] == ["launch"]:
        command = _of_accelerate(program, words[2:], ranks)
    else:
        command = _of_accelerate(program, words[1:], ranks)
    if not 1 < command.ranks <= MOST_RANKS:
        raise NcclkitError(f"A rehearsal has 2 to {MOST_RANKS} ranks, not {command.ranks}.")
    return _on_hosts(command, hosts)


def check_launcher(words: Sequence[str]) -> None:
    """Raise NcclkitError for a command that no rehearsal starts, on whichever host."""
    if not words:
        raise NcclkitError("Name the script after two dashes: ncclkit rehearse -- python train.py")
    name = Path(words[0]).name
    is_accelerate = list(words[1:2]) == ["launch"] and name == "accelerate"
    if PYTHON.fullmatch(words[0]) or name in (*TORCHRUN, "accelerate-launch") or is_accelerate:
        return
    raise NcclkitError(
        "A rehearsal starts `python …`, `torchrun …` and `accelerate launch …`, not"
        f" {words[0]!r}; name the script itself: ncclkit rehearse --ranks 8 -- python train.py"
    )


def _on_hosts(command: ScriptCommand, hosts: int) -> ScriptCommand:
    """The same ranks on so many hosts, as many on each."""
    if not hosts:
        return command
    host_ranks, rest = divmod(command.ranks, hosts)
    if rest or not host_ranks:
        raise NcclkitError(
            f"{command.ranks} ranks cannot be divided over {hosts} hosts; name another number."
        )
    return replace(command, host_ranks=host_ranks)


def _of_python(python: str, words: Sequence[str], ranks: int) -> ScriptCommand:
    module = list(words[:2])
    if module == ["-m", "torch.distributed.run"]:
        return _of_torchrun(python, words[2:], ranks)
    if module == ["-m", "accelerate.commands.launch"]:
        return _of_accelerate(python, words[2:], ranks)
    number = ranks or USUAL_RANKS
    return ScriptCommand(python, _script_words(words), number, number)


def _script_words(words: Sequence[str]) -> tuple[str, ...]:
    """A script or module with its arguments; raises NcclkitError where there is none."""
    is_module = len(words) > 1 and words[0] == "-m"
    if not words or (words[0].startswith("-") and not is_module):
        raise NcclkitError(
            "After python the script must follow, or -m and a module; options cannot be passed on."
        )
    if not is_module and not Path(words[0]).is_file():
        raise NcclkitError(f"There is no script {words[0]!r} in this folder.")
    return tuple(words)


def _of_torchrun(program: str, words: Sequence[str], ranks: int) -> ScriptCommand:
    """What torchrun would start; hosts of `--nnodes` all become this one."""
    options, words = _split_options("torchrun", words, FLAGS)
    given = options.get("nproc-per-node", "1")
    host_ranks = _number(given, ranks or USUAL_RANKS)
    # of 1:4 the most
    _, _, most = options.get("nnodes", "1").rpartition(":")
    hosts = _number(most, 1)
    if not ranks:
        ranks = hosts * host_ranks
    shown_gpus = "all"
    if ALONE in options:
        shown_gpus = "first"
    return ScriptCommand(
        python=_interpreter_beside(program),
        words=_script_behind("torchrun", options, words),
        ranks=ranks,
        host_ranks=min(ranks, host_ranks),
        env=_told_by_torchrun(options),
        shown_gpus=shown_gpus,
    )


def _told_by_torchrun(options: Mapping[str, str]) -> dict[str, str]:
    """What a rank asks about its restarts: a rehearsal is the first start."""
    return {
        "TORCHELASTIC_MAX_RESTARTS": options.get("max-restarts", "0"),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": options.get("rdzv-id", "rehearsal"),
    }


def _of_accelerate(program: str, words: Sequence[str], ranks: int) -> ScriptCommand:
    """What ``accelerate launch`` would start, by its options and its file of them."""
    options, words = _split_options("accelerate", words, accelerate_options.FLAGS)
    settings = accelerate_options.read_settings(options)
    if not ranks:
        ranks = _number(settings.get("num-processes", ""), USUAL_RANKS)
    hosts = _number(settings.get("num-machines", ""), 1)
    return ScriptCommand(
        python=_interpreter_beside(program),
        words=_script_behind("accelerate", options, words),
        ranks=ranks,
        host_ranks=max(1, ranks // max(1, hosts)),
        env=accelerate_options.environment_of(settings),
        shown_gpus="all",
    )


def _script_behind(
    launcher: str,
    options: Mapping[str, str],
    words: Sequence[str],
) -> tuple[str, ...]:
    if "no-python" in options:
        raise NcclkitError(
            f"A rehearsal runs Python scripts; {launcher}'s --no-python starts others."
        )
    if "m" in options or "module" in options:
        words = ["-m", *words]
    return _script_words(words)


def _split_options(
    launcher: str,
    words: Sequence[str],
    flags: Collection[str],
) -> tuple[dict[str, str], list[str]]:
    """The options of a launcher, and the script with its own; `flags` take no value."""
    values: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not equals and name not in flags:
            if not rest:
                raise NcclkitError(f"{launcher}'s --{name} lacks its value.")
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
