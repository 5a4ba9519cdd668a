"""A GPU is broken: Xid, ECC, fallen off the bus

What you see
    "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus", Xid 48/63/64/74/94/95/119/120 in
    dmesg, "uncorrectable ECC error encountered", nvidia-smi that hangs or shows ERR!.  All ranks
    fail, one node or GPU is common to all failures.

Why it happens
    Memory cells, NVLinks, power and the GPU's own controller fail now and then; the driver reports
    an Xid number and usually ends the process.  The other ranks only see their collective never
    complete.  Xids 13, 31, 43 and 45 are different: the program's fault, or a consequence.

How to be sure
    dmesg on all nodes for the time of the failure; `nvidia-smi -q -d ECC,ROW_REMAPPER`; does the
    job fail again whenever this GPU takes part?

What to do
    Xid 79 and 74: power cycle, reseat, replace; 48, 63/64, 94/95: reset, then watch the remapped
    rows; 119/120: reset or update the driver.

Read more
    NVIDIA: Xid errors; GPU memory error management.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ncclkit.analysis.diagnostics import diagnostics, named_ranks
from ncclkit.analysis.outcome import outcome
from ncclkit.analysis.picks import (
    first_finding,
    in_order,
    matching,
    messages,
    name_hosts,
    name_ranks,
    on,
    pick,
    ranks_in,
)
from ncclkit.analysis.stages import staged_test
from ncclkit.causes._bisected import faulty_ranks
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk, name_gpus, number
from ncclkit.core.case import Case
from ncclkit.core.kinds import CudaError, KernelXid, NcclWarn
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found

ID = "gpu_hardware_error"
explains = (
    "cuda_error",
    "c10d.timeout",
    "c10d.error",
    "c10d.monitor",
    "nccl.trace",
    "slow_rank",
    "rank_exception",
    "network_loss",
    "rank_killed",
    "gil_hold",
    "ib_link_error",
    "gpu_oom",
)
XIDS = {
    46: "GPU time-out",
    48: "double-bit memory error",
    62: "micro-controller halt",
    63: "memory row remapped",
    64: "row remapping failed",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "many corrected memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP time-out",
    120: "GSP error",
    121: "chip-to-chip link error",
    140: "unrecoverable memory error",
    143: "initialisation error",
    145: "NVLink error",
    158: "fatal time-out",
}
SURVIVED = (63, 92, 145)
"""Xids after which a job may go on, so that something else may have ended it."""
HOT = ("hw_thermal_slowdown", "sw_thermal_slowdown")


def diagnose(case: Case) -> Finding:
    """Found at an Xid of a hardware fault, or at CUDA's ECC error."""
    went_well: list[Event] = case.of("kernel.xid", "nccl.destroy")
    missing = "dmesg of all nodes for the time of the failure (`dmesg -T | grep -i xid`)"
    return first_finding(
        case,
        _logged_by_driver,
        _reported_by_cuda,
        _found_by_diagnostics,
        _contained_by_gpu,
        _unnamed_error,
        _from_stages,
        CHECK.risk,
    ) or CHECK.otherwise(case, went_well, "No hardware fault was reported.", missing)


def _fault_lines(case: Case) -> list[Event]:
    return matching(
        [*case.of(CudaError), *messages(case)],
        "uncorrectable ECC",
        "uncorrectable NVLink",
        "fallen off the bus",
        "the device handle for",
        "GPU is lost",
        "RmInitAdapter failed",
        "hardware stack error",
    )


def _reported_by_cuda(case: Case) -> Finding | None:
    """CUDA or the driver's tools report a fault of the hardware in words."""
    lines = _fault_lines(case)
    if not lines:
        return None
    ranks = ranks_in(lines)
    say = f"CUDA reports a hardware fault of a GPU of {name_ranks(ranks)}{on(lines[0].host)}."
    return found(
        ID,
        "proven",
        say,
        pick(lines),
        ranks=ranks,
        hosts=name_hosts(lines),
        advice=_advice("its GPU"),
    )


DIAGNOSED: dict[str, tuple[Strength, str]] = {
    "ecc_uncorrected": (
        "likely",
        "NCCL's diagnostics count uncorrected memory errors of the GPU of {who} since its driver"
        " was loaded",
    ),
    "nvlink_inactive": (
        "possible",
        "NCCL's diagnostics find NVLinks of the GPU of {who} inactive, or could not read them",
    ),
    "nvlink_count": (
        "possible",
        "NCCL's diagnostics find another number of NVLinks at the GPU of {who} than at the others",
    ),
    "gpu_count": (
        "possible",
        "NCCL's diagnostics find another number of GPUs on the node of {who} than on the others",
    ),
}
"""check of NCCL's diagnostics → how sure it is, and what it says."""


def _found_by_diagnostics(case: Case) -> Finding | None:
    """NCCL's own diagnostics found a fault of a GPU or its links."""
    # the counts are older than a job that went well all the same
    if outcome(case).success:
        return None
    for check, (strength, words) in DIAGNOSED.items():
        lines = diagnostics(case, check)
        if lines:
            ranks, who = named_ranks(case, lines[0])
            return found(
                ID,
                strength,
                f"{words.format(who=who)}.",
                pick(lines, limit=4),
                ranks=ranks,
                advice=_advice("its GPU"),
                next=experiment(case),
            )
    return None


CONTAINED = ("over nvlink or a hardware error", "CUDA_ERROR_CONTAINED")
"""How CUDA says that a GPU stopped an access to the memory of a peer."""


def _contained_by_gpu(case: Case) -> Finding | None:
    """A GPU contained an access to a peer's memory: a link, that memory, or the peer is gone."""
    lines = matching([*case.of(CudaError), *messages(case)], *CONTAINED)
    if not lines:
        return None
    ranks = ranks_in(lines)
    say = (
        f"A GPU of {name_ranks(ranks)}{on(lines[0].host)} stopped an access to the memory of"
        " another one over NVLink: a GPU or a link is faulty, or that GPU's process had ended."
    )
    return found(
        ID,
        "likely",
        say,
        pick(lines),
        ranks=ranks,
        hosts=name_hosts(lines),
        advice=_advice("its GPU"),
        next=experiment(case),
    )


def _unnamed_error(case: Case) -> Finding | None:
    """torch quotes NCCL's "unhandled cuda error" and no line says which."""
    vague = matching(messages(case), "unhandled cuda error")
    if not vague or case.of(NcclWarn) or case.of("cuda."):
        return None
    return found(
        ID,
        "possible",
        "A CUDA call inside NCCL failed and the log does not say why; a faulty GPU is one reason.",
        pick(vague, limit=3),
        ranks=ranks_in(vague),
        advice=_advice("each GPU"),
        next=experiment(case),
    )


def _from_stages(case: Case) -> Finding | None:
    """The staged test found a GPU that fails with nobody else taking part."""
    who = faulty_ranks(case)
    if who is None or who.slow or not (who.gpus and who.alone):
        return None
    # wrong bytes within one GPU's memory leave no other suspect; a test that ends may have another
    strength: Strength = "possible"
    if staged_test(case).corrupt:
        strength = "likely"
    return found(
        ID,
        strength,
        who.summary,
        who.why,
        ranks=who.ranks,
        hosts=who.hosts,
        advice=_advice("its GPU"),
        next=experiment(case),
    )


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """GPUs that the driver itself reports as faulty."""
    smi = host.fact("gpu.nvidia_smi")
    # the tools talk to every GPU: one that is stuck holds them up
    if smi and smi.value in ("hung", "breaks off"):
        does = "does not answer"
        if smi.value == "breaks off":
            does = "breaks off"
        say = (
            f"nvidia-smi {does} ({smi.why}); the driver or a GPU is stuck, and a rank there would"
            " hang too"
        )
        yield Risk(say, [smi], _advice("each GPU")[0], "likely")
    if smi and "infoROM is corrupted" in smi.why:
        say = (
            f"nvidia-smi warns ({smi.why}); that GPU would lose its settings and its error counts"
            " at each reset"
        )
        yield Risk(say, [smi], _advice("each GPU")[0])
    for name, wrong, strength, say in SIGNS:
        facts = {}
        for gpu, fact in host.gpus(name).items():
            if wrong(fact.value):
                facts[gpu] = fact
        if facts:
            named = name_gpus(facts)
            yield Risk(
                f"{named}: {say}", [*facts.values()], _advice(named)[0], strength, gpus=tuple(facts)
            )
    yield from _links_down(host)


def _links_down(host: HostFacts) -> Iterator[Risk]:
    """GPUs with fewer NVLinks than others.

    Some are down, or none is up where the other GPUs have them.
    """
    speeds = host.gpus("nvlink.speeds")
    most = max((number(fact.value) or 0 for fact in host.gpus("nvlink.links").values()), default=0)
    for gpu, fact in host.gpus("nvlink.links").items():
        links = number(fact.value) or 0
        all_of_it = max(most, len(speeds[gpu].value) if links and gpu in speeds else 0)
        # NCCL spreads its data evenly over the links: the GPU with fewest decides
        if links < all_of_it:
            say = (
                f"GPU {gpu} has {links:g} of {all_of_it:g} NVLinks up; it would slow every"
                " collective"
            )
            # Bridges may join only some GPUs, so a GPU without NVLinks can be sound.
            yield Risk(
                say,
                [fact],
                _advice(f"GPU {gpu}")[0],
                "likely" if links else "possible",
                gpus=(gpu,),
            )


def _remap_unfinished(rows: object) -> bool:
    return isinstance(rows, dict) and bool(rows.get("pending") or rows.get("failure"))


def _is_slowed(reasons: object) -> bool:
    """True where heat or the power supply slows the GPU.

    A power cap is normal.
    """
    return bool(
        isinstance(reasons, list) and {"hw_slowdown", "hw_power_brake_slowdown", *HOT} & {*reasons}
    )


def _logged_by_driver(case: Case) -> Finding | None:
    """The driver logged an Xid of a hardware fault."""
    xids = in_order(event for event in case.of(KernelXid) if event.data.xid_among(XIDS))
    if not xids:
        return None
    said = _fault_lines(case)
    # later Xids of the same boot often follow from the first
    first = xids[0]
    number = int(first.data.xid_among(XIDS) or 0)
    bus = str(first.data.bus or "")
    # the driver names a process, other lines of the same process its rank
    pids = {event.pid for event in xids} - {None}
    hit_ranks = set()
    for event in said + xids:
        if event.rank is not None and (event.pid in pids or event.kind != "kernel.xid"):
            hit_ranks.add(event.rank)
    ranks = tuple(sorted(hit_ranks))
    who = ""
    if ranks:
        who = f" of {name_ranks(ranks)}"
    # what NCCL reads in a kernel log names the host alone
    named = "A GPU"
    suspect = "each GPU"
    if bus:
        named = f"The GPU {bus}"
        suspect = f"GPU {bus}"
    elif first.data.index is not None:
        suspect = f"GPU {first.data.index}"
        named = suspect
    say = (
        f"{named}{who}{on(first.host)} reported a hardware fault, Xid {number}"
        f" ({XIDS[number]}); everything after it is a consequence."
    )
    buses = set()
    for event in xids:
        if event.data.bus:
            buses.add(str(event.data.bus))
        elif event.data.index is not None:
            buses.add(str(event.data.index))
    strength: Strength = "proven"
    if number in SURVIVED:
        strength = "likely"
    return found(
        ID,
        strength,
        say,
        pick(xids, said),
        ranks=ranks,
        hosts=name_hosts(xids),
        gpus=tuple(sorted(buses)),
        advice=_advice(suspect),
    )


def _advice(gpu: str) -> tuple[Advice, ...]:
    return (
        Advice(
            f"Drain the node and test {gpu} alone; reset it, and have it replaced if the error"
            " returns.",
            command="dmesg -T | grep -i xid; nvidia-smi -q -d ECC,ROW_REMAPPER; dcgmi diag -r 3",
            why="A job cannot work around a faulty GPU; every restart on this node risks the same.",
            check="The per-node test passes ten times, or the job runs without this node.",
            risk="A reset ends all jobs of the node.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Test each GPU alone, then every pair, to find the one that fails."""
    return experiment_of(
        "Which GPU fails when each works alone, and then every pair?",
        {"minimal": True, "stages": True},
        {
            ID: ("same", "always the same one"),
            "driver_too_old": ("same", "every one"),
            "cuda_error": ("works", "none: the program's own kernel fails"),
            "gpu_oom": ("works", "none: the program had taken the memory"),
        },
    )


SIGNS: tuple[tuple[str, Callable[[Any], bool], Strength, str], ...] = (
    (
        "recovery",
        lambda value: value != "None",
        "likely",
        "the driver asks for a recovery; a job would fail there until it is done",
    ),
    (
        "ecc.uncorrected",
        lambda value: bool(number(value)),
        "likely",
        (
            "uncorrectable memory errors since the driver was loaded; a rank that meets another one"
            " would be killed"
        ),
    ),
    (
        "remapped_rows",
        _remap_unfinished,
        "likely",
        (
            "memory rows wait to be remapped, or could not be remapped; a job would not be safe"
            " there before a reset"
        ),
    ),
    (
        "throttle",
        _is_slowed,
        "possible",
        (
            "slowed down by heat or by the power supply; all ranks would wait for the slowest in"
            " every step"
        ),
    ),
)
"""Signs of a faulty GPU.

Each is the fact of a GPU, the test that marks it as faulty, the strength, and what it means for a
job.
"""
CHECK = Preflight(
    ID,
    reads=("gpu.nvidia_smi", "gpu.*.throttle"),
    risks=_host_risks,
    fine="The driver reports no GPU fault.",
    also=tuple(
        f"gpu.*.{name}"
        for name in (
            "recovery",
            "ecc.uncorrected",
            "remapped_rows",
            "nvlink.links",
            "nvlink.speeds",
        )
    ),
    next=experiment,
)
REMEDIES = _advice("the GPU")
