"""Runs of the course.

They are staged and scaling runs, which go from small to large, and the sweep over data-loader
workers.  Whatever is wrong with a job shows at the smallest stage that has it, after seconds
instead of hours: a series of runs therefore stops after the first one that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ncclkit.agent.digits import whole_numbers
from ncclkit.analysis.resumes import STAGES
from ncclkit.core.case import Case
from ncclkit.core.model import Measurement, NcclkitError
from ncclkit.core.runs import Plan, Run, records_of
from ncclkit.live import probe
from ncclkit.live.options import ProbeOptions


@dataclass(frozen=True, slots=True, repr=False)
class Stage:
    """One stage of a staged run.

    It holds its options, how it ended, its losses, time and memory.
    """

    run: Run
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the job, by name, without the ranks."""
    losses: tuple[float, ...] = ()
    """Loss after each step, mean over the ranks; empty where the job did not come to its end."""
    ready: float | None = None
    """Seconds from the start of the slowest rank's process to the end of its first step."""
    peak: int | None = None
    """Bytes that training took at most, on the rank that took most."""

    def __repr__(self) -> str:
        return self.run.summary


async def run_stages(
    case: Case,
    job: str,
    *stages: Mapping[str, Any],
    python: str | None = None,
    backend: str = "any",
    timeout: float = 30.0,
    deadline: float = 120.0,
    simulate_hosts: int = 1,
    on_record: Callable[[dict[str, Any]], None] = lambda record: None,
) -> tuple[Stage, ...]:
    """Run a story's job once for each of `stages`.

    It stops after the first one that fails.  `job` is the agent's verb, such as
    ``stories.interactions``; a stage is ``ranks`` and options of that job by name; `timeout` is
    that of the process group, in seconds; `deadline` the seconds for each stage; `simulate_hosts`:
    NCCL takes the ranks for those of so many hosts.  Raises NcclkitError for ranks that cannot be
    had.
    """
    if case.path is None:
        room = case
    else:
        room = Case.open(case.path / STAGES)
    done: list[Stage] = []
    for stage in stages:
        options = {name: value for name, value in stage.items() if name != "ranks"}
        ranks = stage.get("ranks") or 0
        if ranks:
            hosts = min(simulate_hosts, ranks)
        else:
            hosts = simulate_hosts
        asked = ProbeOptions(
            python=python or "",
            ranks=ranks,
            backend=backend,
            timeout=deadline,
            simulate_hosts=hosts,
        )
        base = await probe.plan_test(case, asked)
        argv = (
            job,
            "--backend",
            base.backend,
            "--timeout",
            str(timeout),
            *_words_of_options(options),
            *_simulated_options(hosts),
        )
        plan = replace(base, name=job.rpartition(".")[2], argv=argv, sizes=(), ops=())
        done.append(_stage_of(await probe.execute(room, plan, on_record), options))
        if done[-1].run.reason != "done":
            break
    return tuple(done)


def _simulated_options(simulate_hosts: int) -> tuple[str, ...]:
    """What a job is told where its ranks count as those of several hosts."""
    return ("--simulate-hosts", str(simulate_hosts)) * (simulate_hosts > 1)


def _words_of_options(options: Mapping[str, Any]) -> Iterator[str]:
    """Options by name as the words of a command line."""
    for name, value in options.items():
        yield from (f"--{name}", str(value))


def _stage_of(run: Run, options: Mapping[str, Any]) -> Stage:
    """A stage with what its ranks said of themselves at their end."""
    trained = [record for record in records_of(run.folder) if record.get("kind") == "trained"]
    if not trained:
        return Stage(run, options)
    ready, peak = (max(record[name] for record in trained) for name in ("ready", "peak"))
    return Stage(run, options, tuple(trained[0]["losses"]), ready, peak)


async def run_backends(case: Case, ranks: int = 0, *, simulate_hosts: int = 1) -> tuple[Run, ...]:
    """Run the same all_reduce over gloo, and over NCCL where possible.

    It is possible where there are GPUs for all `ranks` (0: one for each GPU).  `simulate_hosts`:
    NCCL takes the ranks for those of so many hosts, which share the GPUs.
    """
    done = []
    for backend in ("gloo", "nccl"):
        hosts = 1
        if backend == "nccl":
            hosts = simulate_hosts
        small = ProbeOptions(timeout=60.0, max_bytes=probe.MIB, repeats=3)
        asked = replace(small, ranks=ranks, backend=backend, simulate_hosts=hosts)
        try:
            plan = await probe.plan_test(case, asked)
        except NcclkitError:
            if backend == "gloo":
                raise
            continue  # too few GPUs: what is not measured is not shown
        done.append(await probe.execute(case, plan))
    return tuple(done)


LIBRARY, BY_HAND = "all_to_all", "all_to_all_by_hand"


@dataclass(frozen=True, slots=True)
class Step:
    """One count of ranks of a scaling run.

    It holds how it ended, its speeds and its open files.
    """

    run: Run
    one: int | None
    """Open files of a rank with one communicator; None where the run did not come so far."""
    pairs: int | None
    """The same with one more communicator for each of its peers."""
    limit: int | None
    """How many files a rank may open (the soft limit inside the job)."""
    uneven: int | None = None
    """Rows that arrived wrong over all ranks.

    One share was empty and the others of odd length.
    """

    @property
    def ranks(self) -> int:
        """How many ranks took part."""
        return self.run.plan.ranks

    def speed(self, op: str) -> Measurement | None:
        """The measurement of one implementation, `LIBRARY` or `BY_HAND`.

        It is None where there is none.
        """
        return next((m for m in self.run.measurements if m.op == op), None)


async def run_scaling(
    case: Case, ranks: str = "2 4 8", *, backend: str = "auto", simulate_hosts: int = 1
) -> tuple[Step, ...]:
    """Run the exchange on each of these counts of ranks, the smallest first.

    It stops after one that fails.  `ranks` are space-separated whole numbers; counts above the
    number of GPUs are left out, and where all are, gloo runs them; `simulate_hosts`: NCCL takes the
    ranks for those of so many hosts.
    """
    asked = _counts_of_ranks(ranks)
    options = ProbeOptions(backend=backend, timeout=90.0)
    base = await probe.plan_test(case, options)
    room = base.ranks * simulate_hosts
    if backend == "auto" and base.backend == "nccl" and room < asked[0]:
        base = await probe.plan_test(case, replace(options, backend="gloo"))
    counts = [count for count in asked if base.backend == "gloo" or count <= room]
    if not counts:
        raise NcclkitError(
            f"None of the counts {ranks!r} fits on {base.ranks} GPUs; name a smaller one, or use"
            " gloo."
        )
    # gloo copies through the CPU: what NCCL moves in a moment would take it seconds
    if base.backend == "nccl":
        size = 256 * probe.MIB
    else:
        size = 4 * probe.MIB
    argv = (
        "stories.exchange",
        "--compare",
        "--size",
        str(size),
        "--backend",
        base.backend,
        "--timeout",
        "30",
    )
    done: list[Step] = []
    for count in counts:
        hosts = 1
        if base.backend == "nccl":
            hosts = min(simulate_hosts, count)
        plan = Plan(
            f"exchange-{count}",
            (*argv, *_simulated_options(hosts)),
            count,
            base.backend,
            base.python,
            options.timeout,
        )
        done.append(
            _step_of_run(case, await probe.execute(case, replace(plan, simulate_hosts=hosts)))
        )
        if done[-1].run.reason != "done":
            break
    return tuple(done)


def _counts_of_ranks(ranks: str) -> list[int]:
    """The counts that were typed, each once, the smallest first."""
    words = str(ranks).split()
    counts = whole_numbers(words)
    if not words or len(counts) < len(words) or not all(2 <= count <= 64 for count in counts):
        raise NcclkitError(
            "The counts of ranks must be whole numbers from 2 to 64, space-separated, not"
            f" {ranks!r}."
        )
    return sorted(set(counts))


def _step_of_run(case: Case, run: Run) -> Step:
    phases = [event.data for event in case.of("worker.phase") if run.name in event.path.split("/")]
    files = [data for data in phases if data.phase == "files"]
    shares = [data.wrong for data in phases if data.phase == "shares"]
    one = max((data.one for data in files), default=None)
    pairs = max((data.pairs for data in files), default=None)
    limit = min((data.limit for data in files), default=None)
    return Step(run, one, pairs, limit, sum(shares) if shares else None)


CHOICES = ((0, 2), (1, 2), (2, 2), (4, 2), (8, 2), (8, 4))
"""Workers per rank, and batches that each prepares ahead."""


async def sweep_loaders(
    case: Case,
    *,
    cores: int = 2,
    choices: Sequence[tuple[int, int]] = CHOICES,
    steps: int = 8,
    repeats: int = 3,
    ranks: int = 0,
    backend: str = "any",
) -> Run:
    """Train the small speech job once for each choice of its loaders.

    A choice is (workers per rank, batches ahead), with all ranks on few cores.  `cores` are those
    that all ranks of this host share; `steps` are measured for each choice in each of so many
    repeats, which take turns, as neighbours on the machine come and go.  `measured_sweep` reads
    what came out.  Raises NcclkitError in one sentence for what cannot be run.
    """
    for pair in choices:
        if len(pair) != 2 or pair[0] < 0 or pair[1] < 1:
            raise NcclkitError(
                "A choice is (workers of at least 0, batches ahead of at least 1), but it is"
                f" {pair!r}."
            )
    if cores < 1 or steps < 1 or repeats < 1 or not choices:
        raise NcclkitError("The sweep needs at least one core, one step and one choice of workers.")
    base = await probe.plan_test(case, ProbeOptions(ranks=ranks, backend=backend, timeout=120.0))
    # one rank alone waits for nobody, and that is half of what is measured
    if base.backend == "gloo":
        count = max(2, base.ranks)
    else:
        count = base.ranks
    options = {
        "backend": base.backend,
        "choices": ",".join(f"{workers}:{ahead}" for workers, ahead in [*choices] * repeats),
        "cores": cores,
        "steps": steps,
    }
    argv = ("stories.loader_sweep", *_words_of_options(options))
    return await probe.execute(
        case, Plan("loader_sweep", argv, count, base.backend, base.python, base.deadline)
    )
