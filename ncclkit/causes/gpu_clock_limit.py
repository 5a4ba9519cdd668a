"""A setting gives one GPU less power or a lower clock than the others

What you see
    No error at all: the job is a constant 10 to 40 % slower than it was, on every rank alike.  A
    profile shows all ranks but one waiting in each collective, and that one never waits;
    `nvidia-smi` shows another power cap for its GPU than for the others.

Why it happens
    A GPU lowers its clock until it keeps within its power limit.  The limit and the locked clocks
    are settings of the driver (nvidia-smi -pl, -lgc, -ac) that are made for a benchmark, for a weak
    power supply or to save energy, and that stay until the next reboot or reset, often on one card
    or one node only.  In synchronous training each step ends when the slowest rank has computed, so
    one card at 500 W slows a thousand at 700 W.  The card is sound; heat or a failing power supply
    would be reported by the driver as a slowdown.

How to be sure
    `nvidia-smi --query-gpu=index,power.limit,power.default_limit,clocks_event_reasons.active
    --format=csv` on every node while the job runs: equal cards must show equal numbers.

What to do
    Set the limit back to the default and unlock the clocks on all nodes, and let the boot scripts
    do the same everywhere.

Read more
    https://docs.nvidia.com/deploy/nvidia-smi/index.html (--power-limit, --lock-gpu-clocks, clocks
    event reasons) https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk, name_gpus, number
from ncclkit.core.case import Case
from ncclkit.core.model import Advice, Experiment, Fact, Finding

ID = "gpu_clock_limit"
explains: tuple[str, ...] = ()
SET = "applications_clocks_setting"
"""nvidia-smi's reason for low clocks where a setting has locked them.

The settings are -ac and -lgc.
"""
SLACK = 0.97
"""Share of the highest limit that counts as equal.

Boards differ by a few watts.
"""


def diagnose(case: Case) -> Finding:
    """Found where GPUs of one model have different power limits or locked clocks."""
    missing = "gpu.<i>.power.limit and gpu.<i>.throttle of every host (`ncclkit inspect`)"
    check = replace(CHECK, risks=partial(_host_risks, best=_best_limits(case)))
    return check.risk(case) or check.otherwise(case, (), "", missing)


def _best_limits(case: Case) -> dict[str, float]:
    """GPU model → the highest power limit of that model on any host, in W."""
    limits = {}
    for fact in case.facts_of("gpu."):
        # limits differ between models: only cards of one model, on any host, are compared
        limits[(fact.host, fact.name.removesuffix(".power.limit"))] = fact.value
    best: dict[str, float] = defaultdict(float)
    for fact in case.facts_of("gpu."):
        if fact.name.endswith(".model"):
            limit = number(limits.get((fact.host, fact.name.removesuffix(".model"))))
            best[str(fact.value)] = max(best[str(fact.value)], limit or 0.0)
    return best


def _host_risks(
    host: HostFacts, best: Mapping[str, float] = MappingProxyType({})
) -> Iterator[Risk]:
    """GPUs with a lower power limit or locked clocks.

    The limit is lower than that of others of the same model.
    """
    low: dict[tuple[float, float], dict[str, Fact]] = defaultdict(dict)
    for gpu, fact in host.gpus("power.limit").items():
        most = best.get(str(host.value(f"gpu.{gpu}.model")), 0.0)
        value = number(fact.value) or 0.0
        if 0 < value < SLACK * most:
            low[value, most][gpu] = fact
    for (value, most), facts in low.items():
        say = (
            f"{name_gpus(facts)} may draw {value:g} W where others of the same model may draw"
            f" {most:g} W; all ranks "
        )
        advice = _advice(facts, f"-pl {most:g}")
        yield Risk(
            say + "would wait for the slowest in every step",
            [*facts.values()],
            advice,
            "likely",
            gpus=tuple(facts),
        )
    held = {gpu: fact for gpu, fact in host.gpus("throttle").items() if SET in (fact.value or ())}
    # where all GPUs are locked alike nobody waits for one
    if held and len(held) < host.gpu_count:
        say = (
            f"{name_gpus(held)}: a setting limits the clocks ({SET}), but not those of the other"
            " GPUs; all ranks "
        )
        advice = _advice(held, "-rgc", "-rac")
        yield Risk(
            say + "would wait for the slowest in every step",
            [*held.values()],
            advice,
            gpus=tuple(held),
        )


def _advice(gpus: Iterable[str], *options: str) -> Advice:
    return _equal_limits(name_gpus(gpus), gpus, *options)


def _equal_limits(named: str, gpus: Iterable[str], *options: str) -> Advice:
    commands = []
    for gpu in gpus:
        for option in options:
            commands.append(f"sudo nvidia-smi -i {gpu} {option}")
    return Advice(
        f"Give {named} the same limits as the others: -pl of nvidia-smi sets that of power, -rgc"
        " and -rac take those of the clocks away.",
        command="; ".join(commands) or "nvidia-smi -q -d POWER,CLOCK",
        why="Every collective waits for the rank that computes longest.",
        check="`nvidia-smi -q -d POWER,CLOCK` shows equal limits on all cards of all hosts.",
        risk="The limit may protect a weak power supply or cooling: ask who set it.",
    )


def experiment(case: Case) -> Experiment:
    """Run the live test, which shows a faulty link or GPU.

    A power limit does not fail it.
    """
    return experiment_of(
        "Does each GPU alone, and each pair, work as it should when nothing is computed?",
        {"minimal": True, "stages": True},
        {
            ID: ("works", "they do: a limit slows computation, and breaks nothing"),
            "slow_rank": ("works", "they do: the program is late on that rank"),
            "gpu_hardware_error": ("same", "it fails again, on one particular GPU"),
            "nvswitch_fabric": ("same", "it fails again, wherever NVLink is used"),
        },
    )


CHECK = Preflight(
    ID,
    reads=("gpu.*.power.limit",),
    risks=_host_risks,
    fine="Equal GPUs have equal limits of power and clock.",
    also=("gpu.*.model", "gpu.*.throttle", "gpu.count"),
    next=experiment,
)
REMEDIES = (_equal_limits("the GPU that differs", ()),)
