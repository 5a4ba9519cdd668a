"""Files as users have them, told apart by content.

They are folders, patterns, Slurm jobs, UTF-16, and binary by mistake.
"""

from __future__ import annotations

import codecs
import glob
import io
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from ncclkit.agent.facts.machine import Answer, Hung, Machine, Missing, Unread
from ncclkit.core.model import NcclkitError
from ncclkit.core.text import natural
from ncclkit.evidence.sources import slurm_end

HEAD = 64 << 10
"""Bytes that the kind of a file is told from."""
SMALL = 96 << 20
"""Largest file that is read in one piece (dumps, reports)."""

PROGRAMS = tuple(
    ".py .pyc .pyi .ipynb .html .md .rst .toml .yaml .yml .c .h .cc .cpp .cu .so .pyz".split()
)
"""Names of programs that a folder holds beside its logs.

Their texts of error messages are no errors.
"""
OURS = frozenset(
    "case.json facts.jsonl events.jsonl measurements.jsonl findings.json inputs.json processes.json"
    " truth.json report.html report.ipynb agent.pyz".split()
)
BROUGHT = frozenset(("facts.jsonl", "measurements.jsonl"))
"""What is read of a case that was itself named, or packed.

A case within a folder of logs may be another job's.
"""
RANK = re.compile(
    r"rank[_\-.]?(\d{1,7})(?=\D|$)|(?:trace|fr|flight|dump)\w{0,60}?_(\d{1,7})$", re.IGNORECASE
)


def width(head: bytes) -> str:
    """The codec of UTF-16 text, with or without a byte-order mark.

    It is "" for everything else.
    """
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in head:
        return "utf-16"
    if (
        len(head) >= 16
        and head[1:200:2].count(0) > 0.8 * len(head[1:200:2])
        and not head[0:200:2].count(0)
    ):
        return "utf-16-le"
    if (
        len(head) >= 16
        and head[0:200:2].count(0) > 0.8 * len(head[0:200:2])
        and not head[1:200:2].count(0)
    ):
        return "utf-16-be"
    return ""


def is_binary(head: bytes) -> bool:
    """True for what is not text, as it has many control characters.

    Zero bytes alone (holes of a truncated log) do not count.
    """
    solid = head.replace(b"\0", b"")
    if not solid:
        return bool(head)
    control = len(solid) - len(
        solid.translate(None, bytes(set(range(32)) - {7, 8, 9, 10, 11, 12, 13, 27}))
    )
    return control > len(solid) * 0.03


def rank_of(path: str) -> int | None:
    """The global rank in a file's name.

    Such names are ``rank3.log``, ``fr_rank_3``, ``nccl_trace_rank_3``, ``stacks_rank3.txt``.
    """
    match = RANK.search(Path(path).name.partition(".")[0]) or re.search(
        r"rank[_\-.]?(\d{1,7})(?=\D|$)", Path(path).name
    )
    if match:
        return int(next(group for group in match.groups() if group))
    return None


def find(paths: Iterable[str | Path]) -> tuple[dict[str, str], list[str]]:
    """The files behind files, folders, patterns and Slurm job ids, in a fixed order.

    Each file comes with the name that it was found by: itself, its folder, or ``slurm:<id>``; of
    several the one that says most.  What was left out comes, too, with one sentence each.
    """
    files: dict[str, str] = {}
    problems: list[str] = []
    for given in paths:
        for name, behind in _files_by_name(os.path.expanduser(os.fspath(given)), problems):
            for file in behind:
                files[file] = max(files.get(file, ""), name, key=len)
    return files, problems


def _files_by_name(name: str, problems: list[str]) -> Iterator[tuple[str, Iterable[str]]]:
    """What one input names, each with its files."""
    if name == "-" or os.path.lexists(name):
        yield name, _files_behind(name, problems)
    elif job := JOB.fullmatch(name):
        found, gone = outputs(job[1])
        problems += gone
        yield f"{ASKED}{job[1]}", found
    elif glob.has_magic(name):
        for match in _matches_of_pattern(name):
            yield match, _files_behind(match, problems)
    else:
        yield name, _present_path(name)


def _files_behind(name: str, problems: list[str]) -> Iterable[str]:
    """The files that one existing path stands for."""
    if os.path.isdir(name):
        return _files_below(name, problems)
    return (name,)


def _matches_of_pattern(pattern: str) -> list[str]:
    """What a pattern matches, in the order of a folder.

    A pattern is such as ``logs/*.out``, with ``**`` for any depth.
    """
    found = sorted(glob.glob(pattern, recursive=True), key=natural)
    if not found:
        raise NcclkitError(
            f"Nothing matches {pattern!r}; give a log file, a folder with logs, or another pattern."
        )
    return found


def _present_path(name: str) -> tuple[str, ...]:
    """The path itself, where it can be seen after all."""
    if not name:
        raise NcclkitError(
            "A path is empty; give a log file, a folder with logs, or '-' for standard input."
        )
    try:
        os.stat(name)
    except (OSError, ValueError) as error:
        why = "does not exist; give a log file, a folder with logs, or '-' for standard input."
        hidden = "may not be looked at by this user; ask its owner or copy it."
        raise NcclkitError(
            f"{name} {hidden if isinstance(error, PermissionError) else why}"
        ) from error
    return (name,)


def _files_below(folder: str, problems: list[str]) -> Iterator[str]:
    programs = 0

    def failed(error: OSError) -> None:
        problems.append(f"{error.filename}: {error.strerror}; the folder was left out.")

    for root, folders, names in os.walk(folder, onerror=failed):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        for name in sorted(names, key=natural):
            path = os.path.join(root, name)
            if is_hidden(name) or is_ours(name, named=root == folder) or not os.path.isfile(path):
                continue
            # a case begins with these, and a rehearsal writes nothing into them
            if name in BROUGHT and _is_empty(path):
                continue
            if name.endswith(PROGRAMS):
                programs += 1
            else:
                yield path
    if programs:
        if programs == 1:
            files = "1 file with a program or page"
        else:
            files = f"{programs} files with programs or pages"
        problems.append(f"{files} (*.py, *.html …) in {folder} left out; name one to have it read.")


def _is_empty(path: str) -> bool:
    try:
        return os.path.getsize(path) == 0
    except OSError:  # gone by now, as reading it will say
        return False


def is_hidden(name: str) -> bool:
    """True for what tools keep for themselves: hidden files, Python's and macOS's by-products."""
    return name.startswith((".", "__pycache__", "__MACOSX"))


def is_ours(name: str, named: bool) -> bool:
    """What ncclkit writes into a case folder besides what a job left behind.

    `named`: the case itself is to be read.
    """
    if named and name in BROUGHT:
        return False
    return re.sub(r"-node\d+\b", "", name) in OURS or name.endswith(".part")


def opened(path: str) -> io.BufferedReader:
    """Open a regular file.

    Raises NcclkitError for anything that could block (pipes, devices) or may not be read.
    """
    try:
        # reading waits for the kernel's next line, and takes it from others
        if os.path.realpath(path) == "/proc/kmsg":
            raise NcclkitError(
                f"{path} is the kernel's queue, not a file; give what dmesg prints: dmesg > FILE."
            )
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise NcclkitError(
                f"{path} is not a regular file; pipe it in instead: ncclkit diagnose - < {path}"
            )
        return open(path, "rb")
    except PermissionError as error:
        raise NcclkitError(
            f"{path} may not be read by this user; ask its owner or copy it."
        ) from error
    except OSError as error:
        raise NcclkitError(
            f"{path} cannot be read ({error.strerror or error}); copy it elsewhere and try again."
        ) from error


JOB = re.compile(r"(?:slurm:)?(\d{1,10}(?:[_+]\d{1,7})?)", re.ASCII)
"""``12345``, an array's ``12345_7``, a heterogeneous job's ``12345+1``, each with or without
``slurm:``."""
ASKED = "slurm:"
"""How the name of an input begins that is a job of Slurm."""
DEADLINE = 20.0
"""Seconds for one question to Slurm; a busy controller needs a few."""
RUNNING = re.compile(r"\bStd(?:Out|Err)=(.*?)(?= \w+=|$)")


def outputs(job: str) -> tuple[list[str], list[str]]:
    """(files that exist, one sentence per file that does not) of a job.

    Raises NcclkitError where Slurm cannot tell.
    """
    said: list[str] = []
    named = list(
        dict.fromkeys(
            path
            for pattern in [*_outputs_of_running(job, said)] or [*_outputs_of_ended(job, said)]
            for path in _filled_patterns(pattern)
        )
    )
    if not named:
        why = "; ".join(dict.fromkeys(said))
        if any(slurm_end.is_silence(answer) for answer in said):
            raise NcclkitError(_unanswered_question(job, why))
        raise NcclkitError(
            f"There is no file {job}, and Slurm knows no output of such a job ({why}); name its log"
            " file."
        )
    there = [path for path in named if os.path.isfile(path)]
    gone = [path for path in named if path not in there]
    if not there:
        why = slurm_end.note_on_running(job, slurm_end.end_of_job(job, ask_slurm))
        raise NcclkitError(
            why
            or f"Slurm job {job} writes to {gone[0]}, which is not there; name the file where it is"
            " now."
        )
    return there, [
        f"Slurm job {job} writes to {path}, which is not there; the rest was read." for path in gone
    ]


def _unanswered_question(job: str, why: str) -> str:
    """That nobody could be asked, which says nothing about the job."""
    return (
        f"There is no file {job}, and Slurm did not say what job {job} writes to ({why}); ask again"
        " when `squeue --me` answers, or name its log file."
    )


LEFT = re.compile(r"%\d*[NntsJ]|4294967294")
"""What Slurm leaves in the name of an output: node, task and step, and the task of an array that
has none yet."""


def _filled_patterns(path: str) -> list[str]:
    """The files that a name with patterns stands for.

    It is the name itself where it has none, or no file fits.
    """
    parts = LEFT.split(path)
    return sorted(glob.glob("*".join(map(glob.escape, parts)))) * (len(parts) > 1) or [path]


def _outputs_of_running(job: str, said: list[str]) -> Iterator[str]:
    """Outputs by the controller, which forgets a job some minutes after its end.

    %j, %x and the like are filled in.
    """
    answer = _ask_slurm(["scontrol", "-o", "--", "show", "job", job], said, job)
    for line in answer.splitlines():
        named = map(str.rstrip, RUNNING.findall(line))
        for path in named:
            if path.startswith("/") and path != "/dev/null":
                yield path


def _outputs_of_ended(job: str, said: list[str]) -> Iterator[str]:
    """Outputs by the accounting.

    Since 24.05 it tells the very files, before that the folder, in which Slurm's own name is tried.
    """
    ask = ["sacct", f"--jobs={job}", "-X", "-n", "-P"]
    # that an older sacct has no such option says nothing about the job
    asked_first: list[str] = []
    words = [*ask, "--expand-patterns", "--format=StdOut,StdErr"]
    rows = _ask_slurm(words, asked_first, job).splitlines()
    if not any("--expand-patterns" in why for why in asked_first):
        said += asked_first
    told = "|".join(rows).split("|")
    paths = [path for path in told if path.startswith("/") and path != "/dev/null"]
    if not paths and (folders := _ask_slurm([*ask, "--format=WorkDir"], said, job).split("\n")):
        names = [
            os.path.join(glob.escape(folder), f"slurm-{job}*.out")
            for folder in folders
            if folder.startswith("/")
        ]
        paths = [path for name in names for path in sorted(glob.glob(name))]
    yield from paths


def _ask_slurm(argv: list[str], said: list[str], job: str) -> str:
    """What a command of Slurm prints.

    It is "" where the command fails, with the reason added to `said`.  Raises NcclkitError where it
    hangs.
    """
    try:
        answer: Answer = Machine().run(argv, DEADLINE, argv[0])
    except Hung as why:
        # the next question would wait as long
        raise NcclkitError(_unanswered_question(job, str(why))) from None
    except (Missing, Unread) as why:
        said += [str(why)]
        return ""
    if answer.code or not answer.out.strip():
        last = (answer.err.strip().splitlines() or ["no such job"])[-1][:200]
        said += [f"{argv[0]}: {last.removeprefix(argv[0]).lstrip(': ')}"]
        return ""
    return answer.out


def ask_slurm(*argv: str) -> str:
    """What a command of Slurm prints; raises NcclkitError where it does not answer."""
    try:
        answer: Answer = Machine().run([*argv], DEADLINE, argv[0])
    except Unread as why:
        raise NcclkitError(f"{why}.") from why
    if answer.code:
        last = (answer.err.strip().splitlines() or ["no output"])[-1][:200]
        raise NcclkitError(f"{argv[0]}: {last.removeprefix(argv[0]).lstrip(': ')}.")
    return answer.out
