"""What a collective should reach here.

It holds the factors of nccl-tests, an upper bound with its derivation, and figures that others
measured.

An expectation is an upper bound derived from facts of the host, never a guess: where a fact is
missing, the value is None and the words say which one.  A reference is named only where the
topology is the same: that model of GPU, as many of them, joined in the same way, on one host.
Systems of many hosts are left out: their networks, which decide, are not told with the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ncclkit.agent import links
from ncclkit.agent.digits import whole_numbers
from ncclkit.core.model import Fact, Measurement, NcclkitError
from ncclkit.core.text import format_bytes, format_number, percent

FACTORS: Mapping[str, str] = {
    "all_reduce": "2(n-1)/n",
    "reduce_scatter": "(n-1)/n",
    "all_gather": "(n-1)/n",
    "all_to_all": "(n-1)/n",
    "all_to_all_by_hand": "(n-1)/n",
    "gather": "(n-1)/n",
    "scatter": "(n-1)/n",
    "broadcast": "1",
    "reduce": "1",
    "send_recv": "1",
    "barrier": "0",
}
"""op → busbw / algbw as nccl-tests has it (``src/*.cu``, ``…GetBw``); a barrier moves no bytes."""

MANY_PEERS = ("all_to_all", "all_to_all_by_hand", "gather", "scatter")
"""Operations in which a rank talks to many others at once; the rest go by neighbours."""

USUAL = "80 to 98 % of such a bound is usual for large messages."
ALLOWS = {
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "network": "the network's nominal speed",
    "loopback": "this host's loopback",
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """An upper bound of busbw in GB/s, what sets it, and how it was derived."""

    value: float | None
    limit: str
    """nvlink, pcie, network, loopback, or none where nothing could be derived."""
    words: str
    """The derivation, or why there is none, in one sentence."""
    note: str = ""
    """What large messages usually reach of it, and what may exceed it."""
    usual: float = 0.8
    """Share of the bound that large messages usually reach at least."""
    gpu: str = ""
    """Model of the GPUs in use, where they are of one and on one host."""
    nvls: bool = True
    """Whether the switch between them may add up; False where the environment forbids it."""
    least: float | None = None
    """The lower end, where it follows from a measured reference: `value` is its upper end."""

    @property
    def allows(self) -> str:
        """What sets it, as a title says it; empty where nothing does."""
        return ALLOWS.get(self.limit, "")

    def __str__(self) -> str:
        return f"{self.words} {self.note}".strip()


def factor(op: str, ranks: int) -> float:
    """busbw / algbw of nccl-tests; raises NcclkitError for an unknown op or ranks < 1."""
    if ranks < 1:
        raise NcclkitError(f"A collective needs at least 1 rank, not {ranks}.")
    if op not in FACTORS:
        raise NcclkitError(
            f"No bandwidth formula for the collective {op!r}; known are {', '.join(FACTORS)}."
        )
    return {
        "0": 0.0,
        "1": 1.0,
        "(n-1)/n": (ranks - 1) / ranks,
        "2(n-1)/n": 2 * (ranks - 1) / ranks,
    }[FACTORS[op]]


def algbw(size: int, time_us: float) -> float:
    """GB/s (1e9 bytes) of a call that moved `size` bytes in `time_us` microseconds."""
    if time_us <= 0:
        raise NcclkitError(f"A time of {time_us} us gives no bandwidth; measure more repeats.")
    return size / time_us / 1e3


def busbw(op: str, ranks: int, algbw: float) -> float | None:
    """algbw times `factor`, comparable to the speed of a link.

    It is None where nothing crosses a link (1 rank, a barrier).
    """
    share = factor(op, ranks)
    if ranks > 1 and share:
        return algbw * share
    return None


TURNS = (
    "Ranks share GPUs here, which take turns of milliseconds: this run shows whether it works, not"
    " how fast."
)


def expect(
    op: str,
    backend: str,
    ranks: int,
    facts: Iterable[Fact],
    hosts: int = 1,
    simulate_hosts: int = 1,
) -> Expectation:
    """The upper bound of busbw for large messages of `op` on `ranks` ranks.

    The ranks are spread over `hosts` like hosts, and `facts` are those of one host.  Each real host
    stands for `simulate_hosts` hosts that share its GPUs.  Raises NcclkitError for an unknown op or
    backend.
    """
    # what needs no bound comes first: without a link there is no fact of one to ask for
    if not factor(op, ranks) or ranks == 1:
        return _no_bound(
            "With one rank no data crosses a link." if ranks == 1 else f"A {op} moves no data."
        )
    if backend not in ("nccl", "gloo"):
        raise NcclkitError(f"No expectation for the backend {backend!r}; known are nccl and gloo.")
    read = list(facts)
    known = {}
    for fact in read:
        if fact.value is not None:
            known[fact.name] = fact.value
    # ranks of the fullest host: rounded up, as the last host may have fewer
    here = -(-ranks // hosts)
    gpus = known.get("gpu.count")
    # two ranks on one card take turns of milliseconds, so how fast the links are does not show
    if (
        backend == "nccl"
        and simulate_hosts > 1
        and isinstance(gpus, int)
        and here * simulate_hosts > gpus
    ):
        return _no_bound(TURNS)
    if hosts > 1:
        if backend == "nccl" and here > 1:
            inside = _bound_of_gpus(known, here)
        else:
            inside = _no_bound("")
        return _tighter_bound(inside, _bound_of_network(op, backend, ranks, hosts, known))
    if backend == "nccl":
        return _bound_with_model(_bound_of_gpus(known, ranks), known, ranks)
    busy = ""
    for fact in read:
        # the loopback speed that the agent measured while others used the cores is too low to be a
        # bound
        if fact.name == STREAM and fact.why.startswith(NO_REFERENCE):
            busy = fact.why
            break
    if busy:
        return _no_bound(f"N{busy[1:]}.")
    return _bound_of_loopback(op, known, ranks)


def _bound_with_model(bound: Expectation, known: Mapping[str, Any], ranks: int) -> Expectation:
    """The bound with the model of the GPUs that it is for."""
    models = {str(known.get(f"gpu.{gpu}.model", "")) for gpu in chosen_gpus(known, ranks)}
    # NVLink SHARP adds in the switch, by which a call may exceed what the links of one GPU carry
    nvls = str(known.get("env.NCCL_NVLS_ENABLE", "")) != "0"
    return replace(bound, gpu=models.pop() if len(models) == 1 else "", nvls=nvls)


def _no_bound(words: str) -> Expectation:
    return Expectation(None, "none", words)


def _tighter_bound(inside: Expectation, network: Expectation) -> Expectation:
    """The tighter of two bounds.

    An unknown network leaves no bound, since it is usually the tighter one.
    """
    if inside.value is not None and network.value is not None and inside.value < network.value:
        return inside
    return network


def _bound_of_gpus(known: Mapping[str, Any], ranks: int) -> Expectation:
    """One host: NVLink if it joins all the GPUs in use, else PCIe."""
    gpus = chosen_gpus(known, ranks)
    count = known.get("gpu.count")
    if count is not None and count < ranks:
        return _no_bound(
            f"No bound for NCCL: {ranks} ranks on {count} GPUs cannot each have their own."
        )
    if count is None or not known.get("gpu.topology"):
        return _no_bound(
            "No bound for NCCL: how the GPUs are joined could not be read (nvidia-smi topo -m)."
        )
    paths = links.nvlink_paths(known, gpus)
    if paths:
        return _bound_of_nvlink(known, paths)
    return _bound_of_pcie(known, gpus)


def chosen_gpus(known: Mapping[str, Any], ranks: int) -> list[int]:
    """The GPUs of ranks 0, 1, ….

    They follow CUDA_VISIBLE_DEVICES where it lists numbers, else they are 0, 1, ….
    """
    visible = str(known.get("env.CUDA_VISIBLE_DEVICES", "")).split(",")
    numbers = whole_numbers(part.strip() for part in visible)
    if len(numbers) >= ranks:
        return numbers[:ranks]
    return list(range(ranks))


def _bound_of_nvlink(known: Mapping[str, Any], paths: Mapping[int, int]) -> Expectation:
    """One host whose GPUs NVLink joins.

    `paths` are the links of each GPU towards the others.
    """
    found = links.nvlinks(known, paths)
    if not found.speed:
        model = str(known.get(f"gpu.{min(paths)}.model", ""))
        return _no_bound(
            f"No bound for NCCL: the speed of the NVLinks of {model or 'these GPUs'} is unknown."
        )
    # a GPU that lost a link still counts as joined, and the ring is as slow as that one
    fewest = min(found.links.values())
    speed = found.speed
    behind = []
    for gpu, count in found.links.items():
        if count == fewest and count < max(found.links.values()):
            behind.append(gpu)
    who = "Every GPU has"
    if behind:
        who = f"GPU {', '.join(map(str, behind))} has only"
    whose = "as nvidia-smi nvlink -s says"
    if found.kind:
        whose = f"NCCL's own figure for {found.kind}"
    value = fewest * speed
    words = (
        f"{who} {fewest} NVLinks of {speed:g} GB/s each way ({whose}), so a ring carries at most "
        f"{fewest} × {speed:g} = {value:.1f} GB/s."
    )
    return Expectation(
        value, "nvlink", words, f"{USUAL} NVLink SHARP (NVLS) may exceed it, since the switch adds."
    )


def _bound_of_pcie(known: Mapping[str, Any], gpus: list[int]) -> Expectation:
    speeds = {}
    for gpu in gpus:
        link = links.pcie_link(known, gpu)
        if link is None:
            return _no_bound(f"No bound for NCCL: the PCIe link of GPU {gpu} could not be read.")
        speeds[gpu] = link
    slowest = min(speeds, key=lambda gpu: speeds[gpu])
    value, generation, width = speeds[slowest]
    return Expectation(
        value,
        "pcie",
        "NVLink does not join all GPUs in use, and a ring carries no more than the slowest PCIe"
        f" link, that of GPU {slowest}, generation {generation} x{width}, for which NCCL calculates"
        f" {value:.1f} GB/s each way.",
        USUAL,
    )


def _bound_of_network(
    op: str, backend: str, ranks: int, hosts: int, known: Mapping[str, Any]
) -> Expectation:
    """Several hosts: all that a host can send.

    The rings that pass through it share that once.
    """
    ports = []
    for port in known.get("net.rdma", []):
        if port.get("state") == "ACTIVE" and port.get("rate"):
            ports.append(port)
    # NCCL sums over all active ports; sockets go over the one interface that it chose
    if ports and backend == "nccl" and str(known.get("env.NCCL_IB_DISABLE", "0")) == "0":
        # rates of RDMA ports are in Gbit/s, and those of interfaces below in Mbit/s
        total = sum(port["rate"] for port in ports) / 8
        words = f"{len(ports)} active RDMA ports send {total:.1f} GB/s together"
    else:
        name = known.get(f"net.{backend}.interface")
        rows = [row for row in known.get("net.interfaces", []) if row["name"] == name]
        if not rows or not rows[0].get("speed"):
            return _no_bound(
                f"No bound over {hosts} hosts: the speed of the interface {name or 'in use'} is"
                " unknown."
            )
        total = rows[0]["speed"] / 8e3
        words = f"the interface {name} sends {total:.2f} GB/s ({rows[0]['speed']} Mbit/s)"
    value, why = total, "every ring enters and leaves a host once"
    if op in MANY_PEERS:
        # 1 - 1/h of the data crosses between hosts, busbw counts (n-1)/n of it; every rank sends,
        # or one alone does
        value = (
            total
            / (ranks / hosts if op == "all_to_all" else 1)
            * ((ranks - 1) / ranks)
            / (1 - 1 / hosts)
        )
        why = "its ranks share that for the part of their data that leaves the host"
    return Expectation(
        value,
        "network",
        f"On each host {words}; {why}, so busbw is at most {value:.2f} GB/s.",
        USUAL,
    )


STREAM = "net.loopback.bandwidth"
NO_REFERENCE = "no reference"
"""How the agent's reason begins where a busy host makes a measured reference meaningless."""


def _bound_of_loopback(op: str, known: Mapping[str, Any], ranks: int) -> Expectation:
    """gloo on one host.

    Every byte costs CPU time to send and to receive, and all ranks share the cores.
    """
    stream = known.get(STREAM)
    cores = known.get("cpu.usable")
    if not stream or not cores:
        return _no_bound(
            "No bound for gloo: the speed of the loopback interface or the usable cores could not"
            " be read."
        )
    cost = known.get("net.loopback.cost") or 2 / stream
    # who sends decides who pays: a root that sends to all, or all that send at once
    senders = {"gather": 1, "scatter": 1, "broadcast": ranks - 1, "reduce": ranks - 1}.get(
        op, ranks
    )
    shared = cores / cost / senders
    if op in MANY_PEERS:
        value = shared
    else:
        value = min(stream, shared)
    what = "a rank sends no faster than one stream"
    if value == shared:
        what = (
            f"{cores:g} usable cores carry {cores / cost:.2f} GB/s in all, shared by all that is"
            f" sent at once ({senders} x busbw)"
        )
    slowest, fastest = _interval_of_stream(known, stream)
    if slowest == fastest:
        measured = f"{stream:.2f} GB/s"
    else:
        measured = f"{slowest:.2f} to {fastest:.2f} GB/s"
    return Expectation(
        value,
        "loopback",
        f"gloo moves data through 127.0.0.1, where one TCP stream was measured at {measured} and"
        f" {cost:.2f} CPU seconds per GB; {what}, so about {value:.2f} GB/s busbw are expected at"
        " most.",
        "gloo's own adding and copying come on top: about half of this is usual.",
        usual=0.4,
        least=value * slowest / fastest,
    )


def _interval_of_stream(known: Mapping[str, Any], stream: float) -> tuple[float, float]:
    """The slowest and the fastest window in which the stream was measured.

    Where nobody tells them, both are the speed of the stream.
    """
    said = known.get("net.loopback.interval")
    # facts may come from somebody else's file, so their form is looked at before they are divided
    if not (isinstance(said, (list, tuple)) and len(said) == 2):
        return stream, stream
    slowest, fastest = said
    numbers = all(isinstance(one, (int, float)) for one in said) and 0 < slowest <= fastest
    if numbers:
        return slowest, fastest
    return stream, stream


def without_reference(bound: Expectation, busy: str) -> Expectation:
    """The bound, or none where others kept the measured host busy.

    It is a bound that was measured on this host meanwhile.
    """
    if busy and bound.limit == "loopback":
        return _no_bound(f"No reference: {busy}.")
    return bound


def why_no_reference(bound: Expectation | None) -> str:
    """That a busy host gives no reference, as a clause; empty for every other bound."""
    if bound is None or bound.value is not None:
        return ""
    why = f"{bound.words[:1].lower()}{bound.words[1:]}".rstrip(".")
    if why.startswith(NO_REFERENCE):
        return why
    return ""


LOW = 0.85
"""A ratio below this part of the usual share, or of every reference, asks for a reason."""
HALF, USUAL_SHARE = 0.5, 0.8
"""A ratio below that half, where that share is usual, is slower than it should be."""
ABOVE = 1.005
"""A ratio beyond this is above the bound, not rounded to it."""
LARGE = {"loopback": 1 << 20}
"""What sets the bound → least bytes of a message whose speed can be judged; elsewhere 64 MiB."""
SUSPECTS: Mapping[str, tuple[str, ...]] = {
    "nvlink": ("slow_transport", "p2p_broken", "nvswitch_fabric", "gpu_hardware_error"),
    "pcie": ("slow_transport", "p2p_broken", "cpu_contention"),
    "network": ("ib_not_used", "ib_config", "ib_link_error", "wrong_interface", "network_loss"),
    "loopback": ("cpu_contention",),
}
"""What sets the bound → the causes that could explain a low ratio."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A busbw of large all_reduce calls on one host that somebody measured, in GB/s."""

    gpu: str
    ranks: int
    busbw: float
    link: str
    """nvlink or pcie, as `Expectation.limit`."""
    how: str
    source: str

    def __str__(self) -> str:
        return f"{self.ranks} x {self.gpu}: {self.busbw:g} GB/s {self.how} ({self.source})"


REFERENCES = (
    Reference("H200", 8, 480.0, "nvlink", "with NVLS", "ml-engineering"),
    Reference("H200", 8, 431.0, "nvlink", "as pass limit with NVLS", "Azure NHC"),
    Reference("H200", 4, 354.0, "nvlink", "at 1 GiB", "ncclkit, 2026-11"),
    Reference("H100", 8, 480.0, "nvlink", "with NVLS", "ml-engineering"),
    Reference("H100", 8, 460.0, "nvlink", "as pass limit with NVLS", "Azure NHC"),
    Reference("B200", 8, 845.7, "nvlink", "with NVLS", "ml-engineering"),
    Reference("A100", 8, 235.0, "nvlink", "through NVSwitch", "ml-engineering"),
    Reference("A100", 8, 228.0, "nvlink", "as pass limit", "Azure NHC"),
    Reference("A100 PCIe", 2, 193.0, "nvlink", "as pass limit with an NVLink bridge", "Azure NHC"),
    Reference("A100 PCIe", 4, 25.0, "pcie", "as pass limit", "Azure NHC"),
    Reference("H100 NVL", 2, 208.0, "nvlink", "as pass limit", "Azure NHC"),
    Reference("V100", 8, 110.0, "nvlink", "as pass limit", "Azure NHC"),
)
"""Measured elsewhere, each by the one that it names."""


def references(model: str, ranks: int, link: str, nvls: bool = True) -> list[Reference]:
    """What others measured with as many GPUs of a model, joined alike.

    The model is spelled as ``gpu.0.model`` spells it.  `nvls`: the switch may add up; where it may
    not, systems that used it are no comparison.
    """
    # the driver writes "NVIDIA H100 80GB HBM3" and "NVIDIA A100-PCIE-40GB"
    words = set(re.split(r"[\s-]+", model.upper().replace("PCIE", "PCIe")))
    # a PCIe card and an NVL pair have other links than the SXM module of the same name
    variants = words & {"PCIe", "NVL"}
    refs = []
    for ref in REFERENCES:
        if (
            (ref.ranks, ref.link) == (ranks, link)
            and set(ref.gpu.split()) <= words
            and variants <= set(ref.gpu.split())
            and (nvls or "with NVLS" not in ref.how or "off" in ref.how)
        ):
            refs.append(ref)
    return refs


@dataclass(frozen=True, slots=True)
class Judgement:
    """The best figure of a size curve, and what it is compared with."""

    best: Measurement
    bound: Expectation
    references: tuple[Reference, ...]

    @property
    def ratio(self) -> float:
        """Measured / bound."""
        # a run whose busbw is 0 must be judged as slow, not end in a division
        return (self.best.busbw or 0.0) / (self.bound.value or 1.0)

    @property
    def exceeds(self) -> bool:
        """Whether more was measured than the bound.

        Then it is no bound, and says nothing of what was measured.
        """
        return self.ratio > ABOVE

    @property
    def usual(self) -> float:
        """The share of the bound that is usual.

        Of a measured bound it counts from the lower end.
        """
        value = self.bound.value or 1.0
        return self.bound.usual * (self.bound.least or value) / value

    @property
    def least(self) -> float:
        """The share of the bound from which on it is normal.

        It is nearly what is usual, and what others reached.
        """
        floor = min((ref.busbw for ref in self.references), default=0.0)
        # where even the slowest system of this kind reaches more than is usual, so should this one
        return LOW * max(self.usual, floor / (self.bound.value or 1.0))

    @property
    def normal(self) -> bool:
        """Whether it reaches what is usual, and what others reached."""
        comparable = not self.exceeds or bool(self.references) or self.bound.limit == "nvlink"
        return comparable and self.ratio >= self.least

    @property
    def large(self) -> bool:
        """Whether the message is so large that its speed is that of the link."""
        return self.best.bytes >= large_size(self.bound)

    @property
    def low(self) -> bool:
        """Whether the figure needs an explanation: that of a large message which is not normal."""
        return self.large and self.ratio < self.least

    @property
    def slow(self) -> bool:
        """Whether a large message is slower than it should be beyond doubt.

        It is so at half of what is usual, or less.
        """
        # scaled, as what is usual differs: half of 40 % over loopback is not half of 80 % over
        # NVLink
        return self.low and self.ratio < HALF * self.usual / USUAL_SHARE

    @property
    def used_well(self) -> bool:
        """Whether nothing is left to gain.

        A large message then reaches what is usual of this path.
        """
        return self.large and self.normal and self.ratio >= self.usual

    @property
    def suspects(self) -> tuple[str, ...]:
        """The causes that could explain it; none where nothing needs to be explained."""
        if self.low:
            return SUSPECTS.get(self.bound.limit, ())
        return ()

    @property
    def ratios(self) -> tuple[tuple[Reference, float], ...]:
        """Each reference with the ratio measured / reference."""
        return tuple((ref, (self.best.busbw or 0.0) / ref.busbw) for ref in self.references)

    @property
    def summary(self) -> str:
        """Measured / expected = ratio, and the same for each reference, in words."""
        others = "; ".join(f"{ref}, this is {percent(ratio)} of it" for ref, ratio in self.ratios)
        measured = ""
        if others:
            measured = f" Measured elsewhere on {others}."
        verdict = " That is low"
        if self.slow:
            verdict = " That is slower than it should be"
        why = ""
        if self.suspects:
            why = f"{verdict}: it could be {', '.join(self.suspects)}."
        return f"{self._numbers}.{measured}{why}"

    @property
    def _numbers(self) -> str:
        """``340.00 of at most 370.80 GB/s busbw = 92 % at 1 GiB``.

        Of what exceeds its bound no share is told.
        """
        size = format_bytes(self.best.bytes)
        reached = f"{self.best.busbw:.2f}"
        bound = f"{self.bound.value:.2f}"
        if self.exceeds:
            return (
                f"{reached} GB/s busbw at {size},"
                f" {no_maximum(self.bound.value or 0.0, self.bound.allows)}"
            )
        at_most = "at most"
        if self.bound.limit == "loopback":
            at_most = "about"
        return f"{reached} of {at_most} {bound} GB/s busbw = {percent(self.ratio)} at {size}"

    @property
    def warning(self) -> str:
        """A sentence where it is slower than it should be beyond doubt.

        It is empty where it is not.
        """
        if not self.slow:
            return ""
        reached = (
            f"{self.best.op} of {format_bytes(self.best.bytes)} reaches"
            f" {format_number(self.best.busbw or 0.0)}"
        )
        bound = f"{format_number(self.bound.value or 0.0)} GB/s that {self.bound.allows} allows"
        return (
            f"{reached} GB/s busbw, {percent(self.ratio)} of the {bound}: slower than it should be"
        )


def no_maximum(bound: float, allows: str) -> str:
    """What is said of a bound that a measurement exceeded.

    An example is ``above the 1.27 GB/s …, which are no maximum``.
    """
    if allows == ALLOWS["nvlink"]:
        return (
            f"above the {format_number(bound)} GB/s of a ring over NVLink: a switch that adds"
            " (NVLS) can do that"
        )
    of = ""
    if allows:
        of = f" of {allows}"
    return (
        f"above the {format_number(bound)} GB/s{of}, which are no maximum then: there is no"
        " reference"
    )


def large_size(bound: Expectation) -> int:
    """Bytes of a message from which on its speed can be judged by this bound."""
    return LARGE.get(bound.limit, 64 << 20)


def judge_curve(measurements: Iterable[Measurement], bound: Expectation | None) -> Judgement | None:
    """Compare the best large message of one size curve.

    It is None where nothing was measured, or no bound is known.
    """
    rows: Sequence[Measurement] = [m for m in measurements if m.busbw]
    # a bound of 0 (a link that is down) cannot be divided by, and says what is wrong elsewhere
    if not rows or bound is None or not bound.value:
        return None
    # a smaller message may be the fastest where others use the link: it must not hide how slow the
    # large ones are
    large = [m for m in rows if m.bytes >= large_size(bound)]
    best = max(large or rows, key=lambda m: m.busbw or 0.0)
    # all references are of all_reduce on one host
    alike = best.op == "all_reduce" and best.hosts == 1 and bound.gpu
    known = []
    if alike:
        known = references(bound.gpu, best.ranks, bound.limit, bound.nvls)
    return Judgement(best, bound, tuple(known))


def recorded_bound(row: Measurement, facts: Iterable[Fact]) -> Expectation | None:
    """The bound that a measurement was compared with when it was made.

    It is None where there was none.  Its derivation is that of today's facts, which may be newer.
    """
    if not row.expected:
        return None
    derived = expect(row.op, row.backend, row.ranks, facts, row.hosts)
    share = 1.0
    if derived.least and derived.value:
        share = derived.least / derived.value
    return replace(derived, value=row.expected, least=share * row.expected)


def first_judgement(
    measurements: Sequence[Measurement], bound: Expectation | None
) -> Judgement | None:
    """What `judge_curve` says of a run's first collective, which stands for it.

    It is None at wrong values.
    """
    if not measurements or any(row.wrong for row in measurements):
        return None
    return judge_curve((row for row in measurements if row.op == measurements[0].op), bound)


def marginal(rows: Sequence[Measurement]) -> float | None:
    """busbw in GB/s of the bytes by which the largest message exceeds the next.

    It is without what every call costs.  `rows` are those of one collective, by size.  It is None
    where there are no two of them, or the larger one was not slower.
    """
    if len(rows) < 2 or not rows[-1].busbw or rows[-1].time_us <= rows[-2].time_us:
        return None
    # differences, not ratios: launch and latency cost both messages the same
    algbw = (rows[-1].bytes - rows[-2].bytes) / (rows[-1].time_us - rows[-2].time_us) / 1e3
    return algbw * rows[-1].busbw / rows[-1].algbw


def judgements(
    measurements: Sequence[Measurement], bounds: Mapping[str, Expectation]
) -> list[Judgement]:
    """What `judge_curve` says of each collective, in the order of measuring.

    `bounds` are by collective.
    """
    ops = dict.fromkeys(m.op for m in measurements)
    judged = []
    for op in ops:
        rows = [m for m in measurements if m.op == op]
        judgement = judge_curve(rows, bounds.get(op))
        if judgement is not None:
            judged.append(judgement)
    return judged
