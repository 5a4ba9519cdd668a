"""Ranks wait for a lock file that a job left behind when it was killed

What you see
    Silence after "Using /root/.cache/torch_extensions/py310_cu121 as PyTorch extensions root...":
    no error, GPUs at 0 %, every start hangs at the same place, and so do other jobs of this user.
    On several nodes the ranks of one node never come, and the others time out in their first
    collective.  Ctrl-C shows file_baton.py, in wait.

Why it happens
    torch compiles C++ and CUDA extensions when they are first used (DeepSpeed's fused optimizers,
    detectron, your own load_inline) and keeps them in a folder of the user's cache.  So that not
    all ranks compile at once, the first one creates a file "lock" there and removes it when it is
    done; the others check ten times a second whether it is gone. A rank that is killed in between,
    by Slurm, by the OOM killer or by Ctrl-C, leaves the file.  No rank checks whether its owner is
    alive, so every later rank waits for ever.  On a shared home directory one dead job stops the
    jobs of all nodes.

How to be sure
    A stack of the rank (`py-spy dump`, `ncclkit attach`) that ends in torch/utils/file_baton.py
    while no process runs ninja or nvcc: `find ~/.cache/torch_extensions -name lock -mmin +30`.

What to do
    Or remove the folder of that extension, so that it is compiled anew; compile once before the job
    starts (DS_BUILD_OPS=1, TORCH_EXTENSIONS_DIR in the image), on local storage of each node.

Read more
    https://github.com/pytorch/pytorch/blob/main/torch/utils/file_baton.py
    https://docs.pytorch.org/docs/stable/cpp_extension.html (TORCH_EXTENSIONS_DIR)
    https://www.deepspeed.ai/tutorials/advanced-install/ (DS_BUILD_OPS)
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

from ncclkit.analysis.frames import is_own, own_frame, place, stacks
from ncclkit.analysis.picks import (
    first_finding,
    in_order,
    name_hosts,
    name_ranks,
    of_job_hosts,
    pick,
    ranks_in,
    who_are,
    who_of,
)
from ncclkit.analysis.rank_states import how_they_waited, rank_states
from ncclkit.analysis.waits import RankPosition, others_wait, positions_of_case
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core.case import Case
from ncclkit.core.kinds import NcclDestroy
from ncclkit.core.model import Advice, Event, Experiment, Fact, Finding, Strength, clear, found
from ncclkit.core.text import format_age, verb

ID = "stale_lock"
explains = ("slow_rank", "timeout_too_short", "c10d.timeout", "gloo.timeout", "store.wait")
WAITS = "torch/utils/file_baton.py"
COMPILES = re.compile(r"_run_ninja_build|_write_ninja_file_(?:and_build|to_build)_library")
"""Functions of torch.utils.cpp_extension that only the rank with the lock runs."""
HOUR = 3600
"""Seconds after which an extension has been compiled, or its job is dead."""


def diagnose(case: Case) -> Finding:
    """Found where a rank's stack waits for the lock, or a file is left.

    That is a lock file in the cache of a host.
    """
    missing = (
        "a stack of each rank that is silent (`py-spy dump`, `ncclkit attach`), or"
        " software.torch.locks"
    )
    went_well = [
        *rank_states(case).ended.values(),
        *case.of(NcclDestroy),
        *stacks(case).values(),
    ]
    return first_finding(case, _owner_at_work, _waits_for_lock, CHECK.risk) or CHECK.otherwise(
        case, went_well, "No rank waits for a lock file.", missing
    )


def _lines_with_frames(case: Case) -> list[Event]:
    return case.of("stack", "python.exception")


def _waits(case: Case) -> list[Event]:
    """Stacks of ranks that wait for the lock."""
    waits = []
    for event in _lines_with_frames(case):
        if any(str(frame.get("file")).endswith(WAITS) for frame in event.data.frames or ()):
            waits.append(event)
    return waits


def _owner_at_work(case: Case) -> Finding | None:
    """A rank waits for the lock while another one compiles and holds it.

    Then nothing is stale.
    """
    compiles = []
    for event in _lines_with_frames(case):
        # only the rank that holds the lock runs these functions
        if any(COMPILES.match(str(frame.get("func"))) for frame in event.data.frames or ()):
            compiles.append(event)
    waits = _waits(case)
    if waits and compiles:
        say = f"{who_of(compiles)} compiles and holds the lock."
        return clear(ID, say, (compiles[0], waits[0]))
    return None


def _waits_for_lock(case: Case) -> Finding | None:
    """A rank waits for the lock, and nobody is seen to compile."""
    waits = _waits(case)
    if not waits:
        return None
    states = rank_states(case)
    locks = of_job_hosts(case, case.facts_of("software.torch.locks"))
    ranks, (path, age) = ranks_in(waits), _oldest_lock(locks)
    # A rank without any evidence may be the one that compiles.
    blind = set(states.members) - {
        *stacks(case),
        *states.waiting,
        *states.ended,
        *states.dead,
        *ranks,
    }
    strength: Strength = "likely"
    # a lock that is hours old has no owner at work, whoever cannot be seen
    if blind and age < HOUR:
        strength = "possible"
    at_the_lock = set(ranks)
    others = []
    for rank in states.waiting:
        if rank not in at_the_lock:
            others.append(rank)
    say = (
        f"{who_are(ranks, waits[0].host)} waited for the lock of a C++"
        f" extension{_place_of_load(waits[0])}, and "
    )
    say += "no process in this evidence compiles one"
    waited = how_they_waited(states.waiting.values())
    say += f", while {name_ranks(others)} {waited} for a collective" if others else ""
    why = pick(
        waits[:3],
        [fact for fact in locks if fact.value],
        in_order(states.waiting.values()),
        limit=5,
    )
    hosts = name_hosts(waits)
    say += ": the lock file is probably left over."
    seen = positions_of_case(case)
    if ranks and ranks[0] in seen:
        stand = seen[ranks[0]]
        say = _live_words(case, stand, ranks)
        wait = stand.lines[0].data.wait
        path = path or str(wait.get("lock_file") or "")
    advice = _advice(path)
    return found(
        ID, strength, say, why, ranks=ranks, hosts=hosts, advice=advice, next=experiment(case)
    )


def _live_words(case: Case, stand: RankPosition, ranks: tuple[int, ...]) -> str:
    """The sentence on ranks of a running job, with what is known of the file."""
    others = others_wait(case, ranks)
    end = "."
    if others:
        end = f"; {others}."
    return (
        f"{who_are(ranks)} {verb(ranks, 'waits', 'wait')} for the lock of a C++ extension"
        f" ({stand.detail}) in {stand.call} at {stand.place}, and no process in this evidence"
        f" compiles one: the lock file is probably left over{end}"
    )


def _place_of_load(wait: Event) -> str:
    """`` (file:line)`` of the user's code that loads the extension.

    It is "" where that is unknown.
    """
    # the program's own line tells which extension it is
    frame = own_frame(wait.data.frames, innermost_first=wait.kind == "stack")
    if frame and is_own(frame):
        return f" ({place(frame)})"
    return ""


def _oldest_lock(locks: Iterable[Fact]) -> tuple[str, float]:
    """Path of the oldest lock and its age in seconds; ("", 0) where none is known."""
    rows = []
    for fact in locks:
        for row in fact.value or ():
            rows.append((float(row["age"]), str(row["path"])))
    age, path = max(rows, default=(0.0, ""))
    return path, age


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Lock files that exist before a job begins."""
    fact = host.fact("software.torch.locks")
    if fact and fact.value:
        # the oldest lock is the least likely to have a living owner
        path, age = _oldest_lock([fact])
        more = ""
        if len(fact.value) > 1:
            more = f" (and {len(fact.value) - 1} more)"
        say = (
            f"{path}{more} was made {format_age(age)} ago; unless an extension is being compiled"
            " just now, a rank that "
        )
        strength: Strength = "possible"
        if age > HOUR:
            strength = "likely"
        yield Risk(say + "needs it would wait for ever", [fact], _advice(path)[0], strength)


def _advice(path: str) -> tuple[Advice, ...]:
    do = "Find the lock file, and remove it once no process compiles any more."
    command = (
        "pgrep -af 'ninja|nvcc';"
        ' find "${TORCH_EXTENSIONS_DIR:-$HOME/.cache/torch_extensions}" -name lock -ls'
    )
    if path:
        do = f"Remove the lock file {path} once no process compiles any more."
        command = f"pgrep -af 'ninja|nvcc' || rm -v {shlex.quote(path)}"
    return (
        Advice(
            do,
            command=command,
            why="Only the rank that made it removes it, and that rank is gone.",
            check="The next start passes the line 'Loading extension module …' within minutes.",
            risk=(
                "While another job does compile, both write the same files: look for ninja and nvcc"
                " first."
            ),
        ),
        Advice(
            "Until then let the job compile into a folder of its own.",
            env={"TORCH_EXTENSIONS_DIR": FRESH},
            command=(
                f"mkdir -m 700 {FRESH}   # only yours: what is compiled there is loaded into"
                " the job"
            ),
            why="A new folder holds no lock, and each node has its own.",
            check="The folder fills, and the job starts.",
            risk="Every extension is compiled once more, which takes minutes.",
        ),
    )


FRESH = "/tmp/torch_extensions"


def experiment(case: Case) -> Experiment:
    """Run the same job with an empty folder for its extensions."""
    return experiment_of(
        "Does the same job start when its extensions are compiled into an empty folder?",
        {"env": {"TORCH_EXTENSIONS_DIR": FRESH}},
        {
            ID: ("works", "it does: the empty folder holds no lock"),
            "slow_rank": ("same", "it fails as before: the rank is late for another reason"),
            "timeout_too_short": (
                "same",
                "it fails as before: compiling takes longer than the limit",
            ),
        },
    )


CHECK = Preflight(
    ID,
    reads=("software.torch.locks",),
    risks=_host_risks,
    fine="The folder of torch's extensions holds no lock file.",
    next=experiment,
)
REMEDIES = _advice("")
