"""The NVSwitch fabric is not ready: fabric manager, NVLS multicast, IMEX

What you see
    "system not yet initialized" (CUDA 802) on an 8-GPU SXM machine, "Failed to bind NVLink SHARP
    (NVLS) Multicast memory", "transport/nvls.cc ... Cuda failure 1 'invalid argument'", Xid 137 or
    144-150 in dmesg, or a hang in the first collective right after a driver update.

Why it happens
    On machines with NVSwitches a service, nvidia-fabricmanager (IMEX between racks), programs the
    switches and hands out multicast groups.  It must run, have exactly the driver's version, and
    must not be restarted under GPUs that are already registered: then their routing no longer
    matches.

How to be sure
    `systemctl status nvidia-fabricmanager`; `nvidia-smi -q | grep -A2 Fabric` must say Completed /
    Success. NCCL_NVLS_ENABLE=0 makes an NVLS failure go away.

Read more
    NVIDIA: Fabric Manager user guide; IMEX guide; NCCL user guide: NCCL_NVLS_ENABLE,
    NCCL_MNNVL_ENABLE.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ncclkit.analysis.diagnostics import diagnostics
from ncclkit.analysis.picks import (
    failed,
    family,
    first_finding,
    in_order,
    initialized,
    matching,
    messages,
    name_hosts,
    on,
    pick,
    ranks_in,
    who_of,
    without,
)
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk, name_gpus
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    KernelSxid,
    KernelXid,
    NcclDestroy,
    NcclFabric,
    NcclInfo,
    SystemFault,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found
from ncclkit.core.text import some

ID = "nvswitch_fabric"
explains = (
    "cuda_error",
    "c10d.error",
    "nccl.trace",
    "c10d.timeout",
    "rank_exception",
    "slow_rank",
    "gpu_hardware_error",
    "driver_too_old",
    "cumem_container",
)
XIDS = {137, *range(144, 151)}


def diagnose(case: Case) -> Finding:
    """Found at CUDA error 802, a failed multicast bind, or NVLink errors of the kernel."""
    went_well = [*initialized(case), *case.of(NcclDestroy)]
    missing = "`nvidia-smi -q | grep -A2 Fabric` and dmesg of the node"
    return first_finding(
        case,
        _not_initialised,
        _reported_by_service,
        _failed_multicast,
        _faults_of_kernel,
        _failed_export,
        _diagnosed,
        _health_of_links,
        _hinted_by_nccl,
        CHECK.risk,
    ) or CHECK.otherwise(case, went_well, "NCCL started without an error of the fabric.", missing)


NOT_READY = (
    "its NVSwitch fabric is not initialised: the fabric manager does not run or does not"
    " match the driver"
)


def _lines_of_cuda(case: Case) -> list[Event]:
    return [*case.of("cuda.error", "cuda.driver"), *messages(case)]


def _not_initialised(case: Case) -> Finding | None:
    """CUDA error 802: the GPUs wait for their fabric."""
    lines = matching(
        _lines_of_cuda(case),
        "system not yet initialized",
        "error 802",
        "error: 802",
        "SystemNotReady",
        "SYSTEM_NOT_READY",
    )
    finding = _finding(case, "proven", NOT_READY, lines)
    # no other cause has this error: nothing is left to ask
    return finding and replace(finding, next=None)


def _reported_by_service(case: Case) -> Finding | None:
    """The fabric manager, or a tool, reports that the fabric is not ready."""
    return _finding(case, "likely", NOT_READY, case.of(SystemFault, what="fabric"))


def _failed_multicast(case: Case) -> Finding | None:
    """NCCL could not bind the memory of its NVLink multicast."""
    lines = []
    for event in family(case, "nvls", "cuda"):
        if "nvls.cc" in event.text or "Multicast" in event.text or "NVLS" in event.text:
            lines.append(event)
    what = "NCCL could not set up NVLink multicast (NVLS), which the fabric manager provides"
    return _finding(case, "likely", what, lines)


def _link_errors(case: Case) -> list[Event]:
    """The kernel's errors of NVLinks and switches; of switches only fatal ones end a job."""
    xids: list[Event] = [event for event in case.of(KernelXid) if event.data.xid_among(XIDS)]
    return xids + [event for event in case.of(KernelSxid) if event.data.fatal]


def _faults_of_kernel(case: Case) -> Finding | None:
    lines = _link_errors(case)
    numbers = sorted({_error_name(event) for event in lines})
    what = f"the kernel reports NVLink/NVSwitch faults ({', '.join(numbers)})"
    return _finding(case, "likely", what, lines)


def _diagnosed(case: Case) -> Finding | None:
    """NCCL's diagnostics could not share memory over the fabric, or found slow links."""
    lines: list[Event] = []
    for event in diagnostics(case, "p2p_import"):
        if event.data.handle == "CUMEM_FABRIC":
            lines.append(event)
    slow: list[Event] = list(diagnostics(case, "nvlink_speed"))
    what = "NCCL's diagnostics could not map memory that a peer shares over the NVLink fabric"
    if lines:
        return _finding(
            case,
            "likely",
            what,
            lines,
        )
    return _finding(
        case,
        "possible",
        "NCCL's diagnostics find NVLinks of unlike speed",
        slow,
    )


def _failed_export(case: Case) -> Finding | None:
    """Memory could not be shared between the machines of a rack."""
    lines = matching(
        _lines_of_cuda(case),
        "Cuda failure 800",
        "fabric handle",
        "MNNVL is not supported",
        "IMEX channel",
        "imex-channels",
        "Check the IMEX configuration",
        "GPU fabric is not ready within",
    )
    # a handle of the fabric was asked for, and the driver permits none without a channel
    asked = matching(_lines_of_cuda(case), "HANDLE_TYPE_FABRIC")
    lines += without(matching(asked, *NOT_GRANTED), lines)
    what = "memory could not be shared over the NVLink fabric (IMEX)"
    finding = _finding(case, "likely", what, lines)
    return finding and replace(finding, advice=(CHANNELS, *finding.advice))


def _health_of_links(case: Case) -> Finding | None:
    """What the driver says of each GPU's links, in the mask that NCCL prints at its start."""
    ill = []
    for event in case.of(NcclFabric):
        # the mask means something of a GPU that has registered alone
        if event.data.state == REGISTERED and (event.data.degraded or event.data.troubles):
            ill.append(event)
    if not ill:
        return None
    troubles = {words for event in ill for words in event.data.troubles}
    strength: Strength = "likely"
    if not troubles:
        # fewer links make a job slow: they end none
        if failed(case):
            strength = "possible"
        troubles = {"less bandwidth than it should have"}
    buses = tuple(sorted({str(event.data.bus) for event in ill}))
    what = f"the NVLink fabric of GPU {some(buses)} reports {some(sorted(troubles))}"
    return _finding(case, strength, what, in_order(ill))


REGISTERED = 3
"""The state of a GPU whose registration with the fabric is complete."""


def _hinted_by_nccl(case: Case) -> Finding | None:
    """NCCL names IMEX as the usual reason of the CUDA error above."""
    lines = matching(case.of(NcclInfo, family="hint"), "IMEX (NVLink fabric)")
    return _finding(case, "likely", "NCCL says that IMEX does not run or is not set up", lines)


NOT_GRANTED = ("NOT_PERMITTED", "NOT_SUPPORTED", "not permitted", "not supported", "800", "801")
"""How CUDA refuses what it was asked for: errors 800 and 801."""
CHANNELS = Advice(
    "Give the job an IMEX channel: start nvidia-imex on all hosts of the rack with the same list of"
    " nodes, and pass /dev/nvidia-caps-imex-channels into the container (a ComputeDomain on"
    " Kubernetes); or keep NCCL within one host's NVLink.",
    env={"NCCL_MNNVL_ENABLE": "0"},
    command="nvidia-imex-ctl -N; ls -l /dev/nvidia-caps-imex-channels",
    why="Memory of the fabric can be shared between hosts by processes with a channel alone.",
    check="nvidia-imex-ctl says READY for all nodes, and the job starts without the variable.",
    risk="With the variable hosts talk over the network instead of NVLink.",
)


def _finding(case: Case, strength: Strength, what: str, lines: list[Event]) -> Finding | None:
    if not lines:
        return None
    lines = in_order(lines)
    fabric, xids = case.of(SystemFault, what="fabric"), _link_errors(case)
    # whatever the first sign was, the service's own word is the better proof
    if matching(fabric, "don't match"):
        strength = "proven"
    buses = set()
    for event in xids:
        if event.data.bus:
            buses.add(str(event.data.bus))
    who = "A machine"
    if ranks_in(lines):
        who = who_of(lines)
    return found(
        ID,
        strength,
        f"{who}{on(lines[0].host)}: {what}.",
        pick(lines, fabric, xids),
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        gpus=tuple(sorted(buses)),
        advice=_advice(),
        next=experiment(case),
    )


def _error_name(event: Event) -> str:
    if isinstance(event.data, KernelXid):
        return f"Xid {event.data.xid_among(XIDS)}"
    return f"SXid {event.data.sxid}"


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """GPUs that have not registered with the fabric."""
    state = host.gpus("fabric.state")
    status = host.gpus("fabric.status")
    bad = {}
    for gpu, fact in state.items():
        # machines without NVSwitch say Not Supported
        if fact.value not in ("Completed", "Not Supported"):
            bad[gpu] = fact
    fact_of_gpu = {}
    for gpu, fact in status.items():
        if fact.value != "Success" and gpu not in bad:
            fact_of_gpu[gpu] = fact
    bad |= fact_of_gpu
    if bad:
        said = next(iter(bad.values())).value
        say = (
            f"{name_gpus(bad)} {'has' if len(bad) == 1 else 'have'} not registered with the NVLink"
            f" fabric ({said}); "
        )
        say += "CUDA or NCCL would not start there"
        yield Risk(say, [*bad.values()], _advice()[0], "likely", gpus=tuple(sorted(bad)))


def _advice() -> tuple[Advice, ...]:
    return (
        Advice(
            "Start the fabric manager at the driver's version, then reset the GPUs or reboot.",
            command=(
                "systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A2 Fabric; cat "
                "/proc/driver/nvidia/version"
            ),
            why=(
                "It programs the switches; after a restart of the service the GPUs must register"
                " again."
            ),
            check="Fabric state Completed, status Success on all GPUs.",
            risk="A reset ends all jobs of the machine.",
        ),
        Advice(
            "Until then run without NVLink multicast.",
            env={"NCCL_NVLS_ENABLE": "0"},
            why="Ordinary NVLink copies need no multicast group.",
            check="The first collective completes.",
            risk="A little less bandwidth; no help if the fabric is down altogether.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Run the same start without NVLS."""
    return experiment_of(
        "Does the job start without NVLink multicast?",
        {"env": {"NCCL_NVLS_ENABLE": "0"}},
        {
            ID: ("works", "it starts"),
            "p2p_broken": ("same", "it starts only with NCCL_P2P_DISABLE=1"),
            "cumem_container": ("same", "it starts only with NCCL_CUMEM_ENABLE=0"),
            "gpu_hardware_error": ("same", "it fails on one GPU in any case"),
        },
    )


CHECK = Preflight(
    ID,
    reads=("gpu.*.fabric.state",),
    risks=_host_risks,
    fine="All GPUs have registered with the NVLink fabric.",
    also=("gpu.*.fabric.status",),
    next=experiment,
)
REMEDIES = (*_advice(), CHANNELS)
