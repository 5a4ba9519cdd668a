"""Paths of a batch job: which of those that are not on this host its nodes cannot have either.

A node may have what a login node lacks (a disk of its own, a module, a container), so a path is
refused only where the nodes see the same folder as this host: below the folder that the job is
submitted from, below its case, or on their file system.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from ncclkit.core.model import NcclkitError
from ncclkit.live.launch.slurm_beside import JOB
from ncclkit.live.options import JobOptions

PATTERN = frozenset("*?[")
"""Signs of a pattern, which is expanded where the verb runs."""
SCRIPTS = (".py", ".sh")
LAUNCHERS = (
    "python",
    "torchrun",
    "accelerate",
    "deepspeed",
    "bash",
    "srun",
    "mpirun",
)
"""How the names of programs begin that start a script in their current folder."""
ELSEWHERE = (
    "-D",
    "--chdir",
    "-wdir",
    "--wdir",
    "--container",
)
"""How options begin by which a launcher leaves the current folder."""
NO_SCRIPT = ("-c", "-m", "--module")
"""Options after which no script follows: what ends in .py there is an argument."""


def missing_paths(paths: Iterable[str], case_folder: Path, options: JobOptions) -> list[str]:
    """The paths that are not on this host, though its nodes may have them.

    Raises NcclkitError, in one sentence, for one that the nodes cannot have either.
    """
    missing = []
    for path in paths:
        is_name = path not in ("", "-") and not PATTERN & set(path)
        if not is_name or JOB.fullmatch(path) or Path(path).expanduser().exists():
            continue
        # the job's own lines may change the folder or fetch data, and a container has others
        is_prepared = options.setup.strip() or options.container.strip()
        if not is_prepared and _is_shared(Path(path).expanduser(), case_folder):
            raise NcclkitError(_refusal(path))
        missing.append(path)
    return missing


def _refusal(path: str) -> str:
    if Path(path).expanduser().is_absolute():
        return f"There is no {path} on this host, nor so on the nodes, which share its file system."
    return (
        f"There is no {path} in {Path.cwd()}, where the job would look for it; name one on storage"
        " that the nodes share, or the absolute path of one that only nodes have."
    )


def _is_shared(path: Path, case_folder: Path) -> bool:
    """Whether the nodes see the same as this host where a path would be.

    A job begins only on nodes that see the current folder and the case.
    """
    whole = Path(os.path.abspath(path))
    seen = (Path.cwd(), case_folder)
    if any(whole.is_relative_to(folder) for folder in seen):
        return True
    try:
        # each host has a root of its own, so what lies on it need not be on another
        root = _device(Path("/"))
        device = _device(_nearest_folder(whole))
        devices = [_device(_nearest_folder(folder)) for folder in seen]
    except OSError:
        return False  # nobody knows
    return device != root and device in devices


def _device(folder: Path) -> int:
    """The file system that a folder is on."""
    return os.stat(folder).st_dev


def _nearest_folder(path: Path) -> Path:
    """The deepest folder above a path that is there."""
    for folder in path.parents:
        if folder.exists():
            return folder
    return Path("/")


def script_of(command: Sequence[str]) -> list[str]:
    """The script that a command starts in the current folder; none where that is not sure."""
    if not command:
        return []
    first = command[0]
    if not Path(first).name.startswith(LAUNCHERS):
        # a program by its name is found along PATH, which the nodes need not share
        if "/" in first:
            return [first]
        return []
    for word in command[1:]:
        if word in NO_SCRIPT or word.startswith(ELSEWHERE):
            return []
        if word.endswith(SCRIPTS) and not word.startswith("-"):
            return [word]
    return []


def refuse_bare_script(command: Sequence[str]) -> None:
    """Raise NcclkitError for a script that stands where its program should."""
    first = "".join(command[:1])
    if not first.endswith(".py") or "/" in first or shutil.which(first):
        return
    raise NcclkitError(
        f"{first} is no program; write the command as your job has it: python {first}"
    )
