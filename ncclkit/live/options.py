"""Options of a live test, of a script's steps and of a batch job.

They are declared once for the command and the forms.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ncclkit.agent.run import processes
from ncclkit.agent.run.operations import DTYPES, NAMES
from ncclkit.core import text
from ncclkit.core.model import NcclkitError
from ncclkit.core.ranges import NumberRange
from ncclkit.core.tuning import LEAST_ROUNDS

BACKENDS = ("auto", "nccl", "gloo")
"""What a user chooses from; ``any``, which takes gloo where there are too few GPUs, is for the
lab."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SLURM_NAME = re.compile(r"[\w.,:+@/=*-]*(?:\[[\d,-]+\])?")
"""What may stand in a line ``#SBATCH --option=…``."""
_CONSTRAINT = re.compile(r"[\w.,:+@/=*&|!()\[\]-]*")
"""What may stand in ``--constraint``: features, joined by Slurm's operators."""
_SLURM_TIME = re.compile(r"(?:\d+-)?\d+(?::\d\d){0,2}")


@dataclass(frozen=True, slots=True)
class Option:
    """How one option is shown, and which values it takes."""

    label: str
    """In the form, and in the sentence that refuses a value."""
    help: str
    """In the command."""
    bounds: tuple[float, float] = (0, 0)
    """Least and largest number."""
    choices: tuple[str, ...] = ()
    """What the form's list offers."""


def option(default: Any, label: str, help: str, **more: Any) -> Any:  # noqa: A002
    """A field of a dataclass of options.

    It has its default, its label in the form, and its help in the command.
    """
    if callable(default):
        made: dict[str, Any] = {"default_factory": default}
    else:
        made = {"default": default}
    return field(**made, metadata={"option": Option(label, help, **more)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What a live test is asked to do.

    Raises NcclkitError, in one sentence, for a value that cannot be meant.
    """

    python: str = option("", "Training Python", "the training interpreter (default: this one)")
    ranks: int = option(
        0,
        "Ranks (0: auto)",
        "number of ranks (default: all GPUs; 2, or 1 a node, on the CPU)",
        bounds=(0, 100_000),
    )
    simulate_hosts: int = option(
        1,
        "Simulated nodes",
        "NCCL takes the ranks of each host for those of so many, which share its GPUs and use the"
        " network",
        bounds=(1, 64),
    )
    max_bytes: int = option(
        0,
        "Largest message",
        "largest message, such as 64MB or 1GiB (default: 256 MiB on GPUs, 16 MiB on the CPU)",
        bounds=(0, 1 << 36),
    )
    repeats: int = option(
        10, "Batches per size", "timed batches for each size (default 10)", bounds=(1, 10_000)
    )
    timeout: float = option(
        120.0,
        "Timeout (s)",
        "seconds after which the run is examined and ended (default 120)",
        bounds=(1, 86_400),
    )
    backend: str = option("auto", "Backend", "auto, nccl or gloo (default auto)", choices=BACKENDS)
    op: str = option(
        "all_reduce",
        "Collective",
        "a collective, several joined by commas, or all (default all_reduce)",
        choices=(*NAMES, "all"),
    )
    dtype: str = option(
        "float32", "Data type", "data type of the elements (default float32)", choices=tuple(DTYPES)
    )
    stages: bool = option(
        False,
        "Staged test: each rank alone, pairs, each node, then all",
        "staged test: ranks alone, pairs, nodes, then all; where a stage fails, bisection finds who"
        " is at fault",
    )
    env: Mapping[str, str] = option(
        dict, "Environment variables", "NAME=VALUE for the ranks; may be repeated"
    )
    network: Mapping[str, Any] = field(default_factory=dict)
    """The simulated network that the ranks run on (`live.launch.simulated`).

    It is not for users.
    """
    oversubscribe: bool = False
    """Whether more ranks are started than this host's cores and memory carry."""
    here: bool = False
    """Whether it runs on a login node, too."""

    def __post_init__(self) -> None:
        # before the bounds are checked, as a size may be text
        self._set(
            max_bytes=text.parse_size(self.max_bytes, OPTIONS["max_bytes"].label),
            env=parse_variables(self.env),
        )
        check_bounds(self)
        if not isinstance(self.python, str) or "\0" in self.python or "\n" in self.python:
            raise NcclkitError(
                f"The training interpreter must be a path in quotes, but it is {self.python!r} "
                f"({type(self.python).__name__})."
            )
        self._set(python=self.python.strip())
        if self.backend not in (*BACKENDS, "any"):
            raise NcclkitError(
                f"The backend must be auto, nccl or gloo, but it is {self.backend!r}."
            )
        if self.dtype not in DTYPES:
            raise NcclkitError(
                f"The data type must be one of {', '.join(DTYPES)}, but it is {self.dtype!r}."
            )
        strange = next((name for name in self.ops if name not in NAMES), None)
        if strange is not None:
            raise NcclkitError(
                f"The live test knows {', '.join(NAMES)}, and all, but not {strange!r}."
            )
        if not isinstance(self.stages, bool):
            raise NcclkitError(
                f"The option stages must be True or False, but it is {self.stages!r}."
            )
        if self.simulate_hosts > 1 and self.network:
            raise NcclkitError(
                "These ranks run on simulated hosts already; leave --simulate-hosts out."
            )

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)  # frozen, and this is still its making

    @property
    def ops(self) -> tuple[str, ...]:
        """The collectives that `op` names."""
        if self.op == "all":
            return NAMES
        return tuple(dict.fromkeys(str(self.op).replace(" ", "").split(",")))


def declared(options: Any) -> dict[str, Option]:
    """Name → option of a dataclass of options, in the order of the form."""
    return {each.name: each.metadata["option"] for each in fields(options) if each.metadata}


OPTIONS = declared(ProbeOptions)
"""Those of the live test."""


def check_bounds(options: Any) -> None:
    """Raise NcclkitError for a number that is none, or out of its bounds."""
    for each in fields(options):
        if each.metadata and each.metadata["option"].bounds != (0, 0):
            _bounded(each.metadata["option"], getattr(options, each.name), type(each.default))


def command_words(options: Any) -> list[str]:
    """Options as the words of the command.

    Those that have their default are left out.
    """
    words: list[str] = []
    for name in declared(options):
        value = getattr(options, name)
        default = getattr(type(options)(), name)
        if name == "python":
            flag = "--train-python"
        else:
            flag = f"--{name.replace('_', '-')}"
        if value == default:
            continue
        if isinstance(value, Mapping):
            for key, text in value.items():
                words += [flag, f"{key}={text}"]
        else:
            words += (
                [flag]
                if value is True
                else [f"--no-{name}"]
                if value is False
                else [flag, str(value)]
            )
    return words


def _bounded(option: Option, value: Any, kind: type) -> None:
    low, high = option.bounds
    kinds = (int, float) if kind is float else (int,)
    # True is an int in Python
    if isinstance(value, bool) or not isinstance(value, kinds):
        what = "a whole number"
        if kind is float:
            what = "a number"
        raise NcclkitError(
            f"{option.label} must be {what}, but it is {value!r} ({type(value).__name__})."
        )
    if not low <= value <= high:
        raise NcclkitError(
            f"{option.label} must lie between {low:,} and {high:,}, but it is {value}."
        )


def parse_variables(given: Any) -> dict[str, str]:
    """Environment variables from a mapping, from words NAME=VALUE, or from text.

    Text is read as a shell reads it, and may span lines and hold ``#`` comments.  Raises
    NcclkitError for what is not NAME=VALUE.
    """
    if isinstance(given, Mapping):
        words: Iterable[Any] = [f"{name}={value}" for name, value in given.items()]
    else:
        if isinstance(given, str):
            words = text.split_words(given, "The variables", comments=True)
        else:
            words = given
    if not isinstance(words, (list, tuple)):
        raise NcclkitError(
            f"The variables must be text of NAME=VALUE, but are {given!r} ({type(given).__name__})."
        )
    found = {}
    for word in words:
        name, equals, value = str(word).partition("=")
        if not equals or not _NAME.fullmatch(name) or "\0" in value:
            raise NcclkitError(
                f"The variable {word!r} is not NAME=VALUE; write for example NCCL_DEBUG=INFO."
            )
        found[name] = value
    return found


def too_few_gpus(
    gpus: int, hosts: int, sharing: int, count: int, can_simulate: bool
) -> NcclkitError:
    """The error for more ranks than GPUs, with the alternatives.

    `gpus` are those of each host; `hosts` those that have GPUs of their own; `sharing` the
    simulated hosts on each; `can_simulate` tells whether more of these would help.
    """
    if not gpus:
        return NcclkitError(
            f"{count} NCCL ranks need {count} GPUs, but the training interpreter sees none; use"
            " gloo."
        )
    places = gpus * hosts
    needed = -(-count // sharing)
    where = ""
    if hosts > 1:
        where = f" on each of {hosts} nodes"
    where += f", which {sharing} simulated hosts share" if sharing > 1 else ""
    wider = ""
    if can_simulate:
        wider = f"let more simulated hosts share them (--simulate-hosts {-(-count // places)}), "
    why = f"{count} NCCL ranks need {needed} GPUs, but the training interpreter sees {gpus}{where}"
    return NcclkitError(f"{why}; ask for at most {places * sharing} ranks, {wider}or use gloo.")


RANKS_PER_CORE, RANK_MEMORY, FEW = 32, 256 << 20, 8
"""Limits of the ranks that a host may run.

They are ranks that a core may share, what a rank takes that has imported torch, and ranks that are
never refused.
"""


def too_many_ranks(count: int) -> str:
    """What keeps this host from running so many ranks, in a clause.

    It is "" where nothing does.
    """
    cores = len(os.sched_getaffinity(0))
    match = re.search(r"MemAvailable:\s+(\d+) kB", processes.read_text("/proc/meminfo"))
    if match:
        free = int(match[1]) << 10
    else:
        # where the kernel does not say, memory refuses nobody
        free = sys.maxsize
    fits = max(FEW, min(cores * RANKS_PER_CORE, free // RANK_MEMORY))
    if count <= fits:
        return ""
    need = text.format_bytes(count * RANK_MEMORY)
    has = text.format_bytes(free)
    return (
        f"{count:,} ranks need about {need} of memory and share {text.plural(cores, 'core')} of"
        f" this host, which has {has} available and carries about {fits:,}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What Slurm is asked for.

    Raises NcclkitError, in one sentence, for a value that cannot be meant.
    """

    partition: str = option("", "Partition", "partition (default: the cluster's own)")
    nodes: int = option(1, "Nodes", "number of nodes (default 1)", bounds=(1, 100_000))
    gpus_per_node: int = option(
        -1, "GPUs (-1: all)", "GPUs of each node (default: all)", bounds=(-1, 64)
    )
    gpu_type: str = option("", "GPU type", "type of GPU, where the partition has several")
    constraint: str = option("", "Constraint", "features that each node must have: 'h100&ib'")
    time: str = option(
        "10",
        "Slurm's --time",
        "Slurm's time limit: minutes (default 10), or [days-]hours:minutes:seconds",
    )
    account: str = option("", "Account", "account that pays")
    qos: str = option("", "QoS", "quality of service")
    reservation: str = option("", "Reservation", "reservation")
    exclusive: bool = option(
        True, "Whole nodes", "share the nodes with other jobs, which makes measurements doubtful"
    )
    setup: str = option(
        "",
        "Set-up lines",
        "shell line before the verb: module load …, conda activate …; repeatable",
    )
    container: str = option(
        "", "Container prefix", "words before the training interpreter: 'apptainer exec --nv IMAGE'"
    )
    srun_options: str = option(
        "", "srun options", "more options of srun: '--mpi=none --container-image=IMAGE'"
    )
    sbatch_options: str = option(
        "", "sbatch options", "more options of sbatch: '--comment=test --signal=…'"
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in ("partition", "account", "qos", "reservation", "gpu_type"):
            if not isinstance(getattr(self, name), str) or not _SLURM_NAME.fullmatch(
                getattr(self, name)
            ):
                raise NcclkitError(
                    f"{JOB_OPTIONS[name].label} {getattr(self, name)!r} is not a name of Slurm's."
                )
        if not isinstance(self.constraint, str) or not _CONSTRAINT.fullmatch(self.constraint):
            raise NcclkitError(
                f"The constraint {self.constraint!r} is not made of names of features; write for"
                " example h100&ib."
            )
        if not _SLURM_TIME.fullmatch(str(self.time)):
            raise NcclkitError(
                f"Slurm's time limit cannot be {self.time!r}; write minutes, or"
                " hours:minutes:seconds."
            )
        # an open quote is said here, and not by a shell on a node
        for name in ("container", "srun_options", "sbatch_options"):
            text.split_words(getattr(self, name), JOB_OPTIONS[name].label)
        if not isinstance(self.setup, str) or "\0" in self.setup:
            raise NcclkitError(f"The set-up lines must be text, but are {self.setup!r}.")


JOB_OPTIONS = declared(JobOptions)


DEFAULTS = ProbeOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """What of a script is measured, and what is compared.

    Raises NcclkitError for what no run can be made of.
    """

    ranks: int = option(
        0, "Ranks", "of a command that begins with python (default: its GPUs)", bounds=(0, 64)
    )
    steps: int = option(
        40,
        "Steps",
        "steps until the script is ended (default 40, more where they are short); half of them are"
        " measured",
        bounds=(10, 1000),
    )
    warmup: int = option(5, "Steps before them", "steps before them (default 5)", bounds=(1, 1000))
    timeout: float = option(
        300.0, "Timeout (s)", "seconds for one run of the script (default 300)", bounds=(1, 86_400)
    )
    tries: tuple[str, ...] = option(
        (),
        "Settings",
        "compare a setting: workers=4, prefetch=4, bucket_cap_mb=50, gradient_as_bucket_view=1, a"
        " variable, or a flag of the script such as --accumulate=4; may be repeated",
    )
    rounds: int = option(
        LEAST_ROUNDS,
        "Rounds",
        f"runs of the script with each setting (default {LEAST_ROUNDS})",
        bounds=(1, 50),
    )
    trace: int = option(
        0,
        "Traced steps",
        "then record so many with torch's profiler (at least 6 where GPUs compute)",
        bounds=(0, 1000),
    )
    here: bool = False
    """Whether a script may run on a login node, too."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.tries and self.rounds < LEAST_ROUNDS:
            raise NcclkitError(
                f"With fewer than {LEAST_ROUNDS} rounds nothing can be told from chance."
            )
        for words in self.tries:
            setting_change(words)


DDP = ("bucket_cap_mb", "gradient_as_bucket_view")
LOADER = {"workers": "num_workers", "prefetch": "prefetch_factor"}


def setting_change(words: str) -> dict[str, Any]:
    """What ``workers=4`` and the like change of a run of a script.

    Raises NcclkitError for anything else.
    """
    name, equals, value = words.partition("=")
    number = None
    if re.fullmatch(r"\d{1,6}", value):
        number = int(value)
    if name.startswith("--") and name != "--":
        return {"flags": [words]}
    if number is not None and name in DDP:
        return {"ddp": {name: bool(number) if name == "gradient_as_bucket_view" else number}}
    if number is not None and name in LOADER:
        return {"loader": {LOADER[name]: number}}
    if equals and re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        return {"env": {name: value}}
    raise NcclkitError(
        f"{words!r} is not a setting; write workers=4, prefetch=4, bucket_cap_mb=50,"
        " gradient_as_bucket_view=1, OMP_NUM_THREADS=2 or another variable, or a flag of the"
        " script such as --accumulate=4."
    )


# ---------------------------------------------------------------- as arguments of the command

SHORT = {
    "partition": "-p",
    "account": "-A",
    "qos": "-q",
    "nodes": "-N",
    "time": "-t",
    "constraint": "-C",
}
"""Letters of sbatch's own."""


def add_options(verb: argparse.ArgumentParser, *names: str, defaults: Any = DEFAULTS) -> None:
    """Add options of the live test, or of any such dataclass, as arguments, by their names."""
    options = declared(defaults)
    for name in names:
        default = getattr(defaults, name)
        flag = {"python": "--train-python", "tries": "--try"}.get(
            name, f"--{name.replace('_', '-')}"
        )
        how: dict[str, Any] = {"type": _type_of(name, options[name], default), "default": default}
        if isinstance(default, bool):
            if default:
                flag = f"--no-{name}"
            how = {"action": f"store_{str(not default).lower()}"}
        elif name == "setup":
            how = {"action": "append", "default": [], "metavar": "LINE"}
        elif isinstance(default, (Mapping, tuple)):
            how = {"action": "append", "default": [], "metavar": "NAME=VALUE"}
        verb.add_argument(
            *filter(None, [SHORT.get(name), flag]), dest=name, help=options[name].help, **how
        )


WORDS_OF_OTHERS = ("container", "srun_options", "sbatch_options", "setup", "tries")
"""Options whose value is options of another program."""


def joined_values(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """The words of a command in which no value begins with a dash of its own.

    ``--sbatch-options --constraint=h100`` becomes one word, as argparse would take the value for an
    option of ours.  Nothing behind the first word that is no option is changed: it may be a command
    of the user's.
    """
    known = parser._option_string_actions
    done: list[str] = []
    place = 0
    while place < len(words):
        word = words[place]
        if not word.startswith("-") or word == "--":
            break
        action = known.get(word)
        # flags take no value, and have zero here
        if action is None or action.nargs is not None or place + 1 == len(words):
            done.append(word)
            place += 1
            continue
        value = words[place + 1]
        if action.dest in WORDS_OF_OTHERS and value.startswith("-"):
            done.append(f"{word}={value}")
        else:
            done += [word, value]
        place += 2
    return [*done, *words[place:]]


def _type_of(name: str, option: Option, default: Any) -> Any:
    """The type of argparse that reads an option."""
    if option.bounds == (0, 0):
        return type(default)
    whole = "a number"
    if isinstance(default, int):
        whole = "a whole number"
    return NumberRange(*option.bounds, "a size" if name == "max_bytes" else whole)


def job_options(given: argparse.Namespace) -> JobOptions:
    """The job options among arguments that were parsed."""
    return JobOptions(
        **{name: getattr(given, name) for name in JOB_OPTIONS} | {"setup": "\n".join(given.setup)}
    )
