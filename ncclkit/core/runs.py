"""One run of the live test or the lab.

It holds what the run was asked to do, how it ended, and what it measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ncclkit.agent import wire
from ncclkit.core import text
from ncclkit.core.bandwidth import Expectation, first_judgement
from ncclkit.core.model import Measurement, NcclkitError, from_dict
from ncclkit.core.storage import content


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run was asked to do; ``plan.json`` of the run folder."""

    name: str
    argv: tuple[str, ...]
    ranks: int
    backend: str
    python: str
    deadline: float
    """Seconds until evidence is collected and everything is ended."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Every variable that ncclkit set for the ranks."""
    sizes: tuple[int, ...] = ()
    """Message sizes in bytes; each is measured for each of `ops`."""
    ops: tuple[str, ...] = ()
    simulate_hosts: int = 1
    """As ranks of how many hosts NCCL takes those of one host."""
    unset: tuple[str, ...] = ()
    """Variables of this process that the ranks do not inherit."""
    restarts: int = 0
    """How often torchrun may start all ranks again after one has failed."""
    network: Mapping[str, Any] = field(default_factory=dict)
    """The network of simulated hosts on which the ranks run (`live.launch.simulated`); empty: this
    host."""

    @property
    def sharing(self) -> int:
        """Hosts that are simulated on each machine; 1: none."""
        return int(self.network.get("hosts", self.simulate_hosts))

    @property
    def lab(self) -> bool:
        """Whether a program of the lab runs.

        That is a job of its own, or the live test with a fault.
        """
        return self.argv[0] not in ("collective", "sweep") or bool(
            LAB_OPTIONS.intersection(self.argv)
        )

    def words(self, folder: Path) -> list[str]:
        """The arguments of the agent on each rank: its verb, the run folder, its options."""
        return [self.argv[0], "--folder", str(folder), *self.argv[1:]]


def records_of(run: Path) -> list[dict[str, Any]]:
    """The records that the ranks and the guard of a run sent.

    Torn lines are left out.
    """
    path = run / "wire.jsonl"
    lines = []
    if path.exists():
        lines = content(path).splitlines()
    return [record for record in map(wire.parse_record, lines) if record is not None]


def read_plan(value: Mapping[str, Any]) -> Plan:
    """The plan that ``plan.json`` holds."""
    lists = {name: tuple(value.get(name, ())) for name in ("argv", "sizes", "ops", "unset")}
    return from_dict(Plan, dict(value) | lists)


LAB_OPTIONS = frozenset({"--fault", "--fix", "--one-gpu"})
"""Options that only the lab's programs take."""
SMALL = "8,64,512,4096,32768,262144"
"""Message sizes in bytes of a live test that only asks whether it works."""
WORDS = frozenset(
    {"env", "unset", "ranks", "timeout", "restarts", "stages", "minimal", "fix", "hosts", "backend"}
)
"""The words in which a change is said; see `changed`."""
LARGEST = 16 << 20
"""Bytes of the largest message that the live test sends over gloo in a run that was made for
NCCL."""
ON_GPUS = {
    "stories.recbole": "RecBole starts its process group with NCCL, by name",
    "gpu_memory_full": "it fills a GPU",
    "tables_on_gpu_0": "it fills a GPU",
    "long_first_step": "it is about work that waits on a GPU",
}
"""Jobs and faults of the lab that make no sense without GPUs, and why."""


def changed(plan: Plan, change: Mapping[str, Any]) -> Plan:
    """The same small job with one thing changed.

    Experiments and advice use these words.  ``env``: variables to set; ``unset``: variables to take
    away; ``ranks``: how many; ``timeout``: the factor by which collectives may take longer;
    ``restarts``: how often torchrun starts the job again; ``stages``: first each rank alone and
    every pair; ``minimal``: the live test in place of the job, with the same ranks and variables;
    ``fix``: the cause whose bug the job of the lab does in the right way; ``hosts``: on how many
    simulated hosts, where it had several; ``backend``: ``gloo``, the same ranks, variables and
    order of calls in the hosts' memory, without NCCL and GPUs.  Raises NcclkitError for any other
    word, and for a job that has no such run.
    """
    strange = sorted(change.keys() - WORDS)
    if strange:
        raise NcclkitError(
            f"A small job cannot be changed by {strange[0]!r}; see `ncclkit.core.runs.changed` for"
            " the words."
        )
    argv = list(plan.argv)
    factor = float(change.get("timeout", 1))
    limit = float(_option_value(argv, "--timeout", "30")) * factor
    if change.get("minimal") and (argv[0] != "collective" or "--fault" in argv):
        argv = ["collective", "--backend", plan.backend, "--sizes", SMALL]
        argv += ["--simulate-hosts", str(plan.simulate_hosts)] if plan.simulate_hosts > 1 else []
    argv = [*_without_option(argv, "--timeout"), "--timeout", f"{limit:g}"]
    if "backend" in change:
        plan, argv = _plan_over_backend(str(change["backend"]), plan, argv)
    if change.get("stages") and argv[0] == "collective" and "--stages" not in argv:
        argv.append("--stages")
    if "fix" in change and breakable(argv, plan.network):
        argv += ["--fix", str(change["fix"])]
    gone = frozenset(change.get("unset", ()))
    kept_env = {}
    for name, value in plan.env.items():
        if name not in gone:
            kept_env[name] = value
    env = kept_env | dict(change.get("env", {}))
    return replace(
        plan,
        argv=tuple(argv),
        ranks=int(change.get("ranks", plan.ranks)),
        deadline=plan.deadline + limit - limit / factor,
        env=env,
        unset=tuple(sorted({*plan.unset, *gone} - env.keys())),
        restarts=int(change.get("restarts", plan.restarts)),
        network=(
            dict(plan.network, hosts=int(change["hosts"]))
            if plan.network and "hosts" in change
            else plan.network
        ),
    )


def breakable(argv: Sequence[str], network: Mapping[str, Any]) -> bool:
    """Whether the lab can inject a fault into this job or its network.

    ``fix`` can then avoid that fault.
    """
    return "--fault" in argv or argv[0] != "collective" or bool(network)


def possible(plan: Plan, change: Mapping[str, Any]) -> bool:
    """Whether the small job can be run again with this change."""
    try:
        changed(plan, change)
    except NcclkitError:
        return False
    return True


def _plan_over_backend(backend: str, plan: Plan, argv: list[str]) -> tuple[Plan, list[str]]:
    """The plan and its words for this backend.

    It leaves out messages that would take this backend too long.
    """
    if backend != "gloo" or plan.backend != "nccl":
        other = f"one over {plan.backend} over {backend}"
        raise NcclkitError(f"A small job over NCCL can be repeated over gloo, but not {other}.")
    why = next(
        (
            why
            for what, why in ON_GPUS.items()
            if what in (argv[0], _option_value(argv, "--fault", ""))
        ),
        "",
    )
    if why:
        raise NcclkitError(f"{plan.name} cannot be repeated over gloo: {why}.")
    argv = [
        *_without_option(_without_option(argv, "--simulate-hosts"), "--backend"),
        "--backend",
        backend,
    ]
    if "--sizes" in argv:
        few = {
            min(int(size), LARGEST): None for size in _option_value(argv, "--sizes", "").split(",")
        }
        argv = [*_without_option(argv, "--sizes"), "--sizes", ",".join(map(str, few))]
    sizes = tuple(dict.fromkeys(min(size, LARGEST) for size in plan.sizes))
    return replace(plan, backend=backend, sizes=sizes, simulate_hosts=1), argv


def _option_value(argv: list[str], name: str, default: str) -> str:
    if name in argv:
        return argv[argv.index(name) + 1]
    return default


def _without_option(argv: list[str], name: str) -> list[str]:
    if name in argv:
        at = argv.index(name)
    else:
        at = len(argv)
    return argv[:at] + argv[at + 2 :]


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """How one run ended, and what it measured."""

    plan: Plan
    folder: Path
    reason: str
    """``done``, ``failed``, ``deadline``, ``cancelled``, ``lost`` (the guard said no end), or ``not
    started``."""
    seconds: float
    measurements: tuple[Measurement, ...] = ()
    expectations: Mapping[str, Expectation] = field(default_factory=dict)
    """Collective → the bound of its busbw."""
    problem: str = ""
    others: str = ""
    """What processes of others used during the test, in sentences that begin with a blank
    (`analysis.speed`)."""

    def __repr__(self) -> str:
        return self.summary

    @property
    def name(self) -> str:
        """Name of the run folder, e.g. ``1-all_reduce``."""
        return self.folder.name

    @property
    def summary(self) -> str:
        """The outcome in one sentence."""
        if self.reason == "not started":
            return self.problem
        hosts = ""
        if self.plan.simulate_hosts > 1:
            hosts = f" on {self.plan.simulate_hosts} simulated hosts"
        else:
            hosts = self._real_hosts
        if self.plan.ranks == 1:
            ranks = "one rank"
        else:
            ranks = f"{self.plan.ranks} ranks"
        what = f"{ranks} over {self.plan.backend}{hosts}"
        if self.reason == "done" and self.measurements and self.plan.ranks == 1:
            share = ""
            if self.plan.backend == "nccl":
                share = "; with --simulate-hosts 2 two ranks share the GPU, over the network"
            return (
                f"{self._named} on one rank over {self.plan.backend}; nothing travels there, so no"
                f" bandwidth{share}."
            )
        if self.reason == "done" and self.measurements:
            wrong = sum(m.wrong or 0 for m in self.measurements)
            if not wrong:
                correct = "every value was right"
            else:
                correct = f"{wrong} values were WRONG"
            said = (
                f"{self._bandwidths(what)} at best, {correct} ({self.seconds:.0f} s with its"
                " start)."
            )
            return f"{said} {self.warning}".strip()
        if self.reason == "done":
            return f"{self.plan.name} on {what} succeeded after {self.seconds:.0f} s."
        ends = {
            "deadline": f"did not end within its {self.plan.deadline:.0f} s",
            "failed": "failed",
            "cancelled": "was cancelled",
            "lost": "ended without a message",
        }
        problem = ""
        if self.problem:
            problem = f" ({self.problem})"
        return (
            f"{self.plan.name} on {what} {ends.get(self.reason, self.reason)} after"
            f" {self.seconds:.0f} s{problem}."
        )

    @property
    def warning(self) -> str:
        """That it was slower than it should be, and what others used meanwhile.

        It is empty where it was not slower.
        """
        judgement = None
        if self.reason == "done":
            judgement = first_judgement(self.measurements, self.expectation)
        if judgement and judgement.slow:
            return f"{judgement.warning}.{self.others}"
        return ""

    @property
    def expectation(self) -> Expectation | None:
        """The bound of the first collective.

        It is None where nothing was measured, or no bound is known.
        """
        if self.measurements:
            return self.expectations.get(self.measurements[0].op)
        return None

    @property
    def curve(self) -> tuple[Measurement, ...]:
        """What was measured of the first collective, the one that `expectation` speaks of."""
        return tuple(m for m in self.measurements if m.op == self.measurements[0].op)

    @property
    def _real_hosts(self) -> str:
        """`` on 2 hosts, interface eth0``: what is known of the way between the ranks."""
        words = ""
        count = max((m.hosts for m in self.measurements), default=1)
        # hosts of a simulated network are no machines of their own
        if count > 1 and not self.plan.network:
            words = f" on {count} hosts"
        interface = self.plan.env.get(f"{self.plan.backend.upper()}_SOCKET_IFNAME")
        if interface:
            words += f", interface {interface}"
        return words

    @property
    def _named(self) -> str:
        ops = list(dict.fromkeys(m.op for m in self.measurements))
        return f"{', '.join(ops)} work{'s' if len(ops) == 1 else ''}"

    def _bandwidths(self, what: str) -> str:
        """``all_reduce on 2 ranks over gloo: 1.20 GB/s busbw with 1 MiB messages``.

        Where there are several collectives it is the best of each.
        """
        best: dict[str, Measurement] = {}
        for m in self.measurements:
            if m.op not in best or _bandwidth_of_size(m) > _bandwidth_of_size(best[m.op]):
                best[m.op] = m
        kind = "algbw"
        if all(m.busbw is not None for m in best.values()):
            kind = "busbw"
        if len(best) == 1:
            ((op, m),) = best.items()
            size = f"with {text.format_bytes(m.bytes)} messages"
            return f"{op} on {what}: {text.rate(_bandwidth_of_size(m))} {kind} {size}"
        each = []
        for op, m in best.items():
            size = text.format_bytes(m.bytes)
            each.append(f"{op} {text.rate(_bandwidth_of_size(m))} with {size}")
        return f"{len(best)} collectives on {what}: {', '.join(each)} {kind}"


def _bandwidth_of_size(m: Measurement) -> float:
    return m.busbw or m.algbw
