"""Peer-to-peer copies between GPUs are broken or blocked

What you see
    A job on one machine hangs in its first collective with all GPUs at 100 %, or NCCL says "Cuda
    failure 'peer access is not supported between these two devices'" or "failed to peer with
    device"; dmesg shows "AMD-Vi ... IO_PAGE_FAULT" or "DMAR: ... fault".  With NCCL_P2P_DISABLE=1
    it runs.

Why it happens
    GPUs copy straight into each other's memory over PCIe or NVLink.  The IOMMU or PCIe access
    control (ACS), usual on machines set up for virtualisation, send those copies through the CPU or
    drop them; some consumer cards and virtual machines announce the ability but do not have it.
    The data never arrives and NCCL waits for ever.

How to be sure
    Run a two-GPU all_reduce with and without NCCL_P2P_DISABLE=1; p2pBandwidthLatencyTest with wrong
    or tiny numbers in the P2P matrix says the same.

What to do
    Pass-through is iommu=pt on the kernel command line.

Read more
    NCCL user guide, Troubleshooting: PCI access control services (ACS), IOMMU, virtual machines.
"""

from __future__ import annotations

from collections.abc import Iterator

from ncclkit.analysis.calls import op_of
from ncclkit.analysis.diagnostics import diagnostics, pair_in_words, pairs_that_failed
from ncclkit.analysis.outcome import outcome
from ncclkit.analysis.picks import (
    env_of,
    family,
    first_finding,
    matching,
    messages,
    name_hosts,
    on,
    pick,
    ranks_in,
    who_are,
)
from ncclkit.analysis.rank_states import all_waiting, rank_states, sequence_of, spans_hosts
from ncclkit.analysis.stages import staged_test
from ncclkit.causes._bisected import faulty_ranks
from ncclkit.causes._experiments import experiment_of, over_gloo, unasked
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    C10dTimeout,
    CudaError,
    FlightMissing,
    KernelIommu,
    NcclChannel,
    NcclDestroy,
    NcclInit,
    NccltestsTable,
    P2pMatrix,
    RunEnd,
    StagePair,
    WorkerPhase,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, clear, found
from ncclkit.core.text import percent

ID = "p2p_broken"
explains = (
    "c10d.timeout",
    "c10d.error",
    "nccl.trace",
    "slow_rank",
    "cuda_error",
    "rank_exception",
    "timeout_too_short",
)
DENIED = (
    "peer access is not supported",
    "failed to peer with device",
    "PeerAccessUnsupported",
    "PEER_ACCESS_UNSUPPORTED",
    "failed to enable peer access",
    "unable to enable peer access",
    "could not enable peer access",
    "cannot enable peer access",
    "peer mapping resources exhausted",
    "cudaIpcOpenMemHandle",
    "failed to open CUDA IPC handle",
    "P2P is disabled between NVLINK",
    "faster communication broadband via P2P",
    "Verification error @",
    "custom_all_reduce.cuh",
)
SURVIVED = (
    "enable peer access",
    "P2P is disabled between NVLINK",
    "faster communication broadband via P2P",
    "cudaIpcOpenMemHandle",
    "failed to open CUDA IPC handle",
    "custom_all_reduce",
)
"""Warnings after which NCCL and accelerate go on without P2P.

Errors that follow a failure of the peer's CUDA are among them.
"""


def diagnose(case: Case) -> Finding:
    """Found where kernel or CUDA reports it, or a collective over P2P hangs.

    All ranks launched it and none completes it.
    """
    other = []
    for event in case.of(NcclChannel):
        if event.data.via in ("SHM", "NET"):
            other.append(event)
    # where somebody measured the copies, the figures decide and not a stuck start
    measured = [enabled for enabled, _ in copies(case)]
    went_well = measured or [*case.of(NcclDestroy), *rank_states(case).ended.values()] or other
    if measured:
        witnesses = [_blocked_by_iommu, _denied_access, _slower_than_host]
    else:
        witnesses = [_blocked_by_iommu, _denied_access, _stuck_start]
    return first_finding(
        case,
        _lone_rank,
        _diagnosed,
        _counted_by_nccl,
        _wrong_access,
        _from_stages,
        _wrong_values,
        _verified_by_nccl,
        *witnesses,
        CHECK.risk,
    ) or CHECK.otherwise(
        case,
        went_well,
        "Peer-to-peer copies worked or were not used.",
        "dmesg of the node, and NCCL's Channel lines",
    )


def _lone_rank(case: Case) -> Finding | None:
    if rank_states(case).world == 1:
        return clear(ID, "A job of one rank copies to no other GPU.", tuple(case.of(NcclInit)[:1]))
    return None


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Hosts with PCIe access control or an IOMMU between GPUs that are joined by PCIe only."""
    table = host.value("gpu.topology") or {}
    paths = set()
    for one, row in table.items():
        for two, how in row.items():
            if one[:3] == two[:3] == "GPU":
                paths.add(how)
    # over NVLink no copy goes through the IOMMU
    if not paths or any(how.startswith("NV") for how in paths):
        return
    bridges = host.value("host.acs")
    if bridges:
        say = (
            f"PCIe access control (ACS) is on at {len(bridges)} bridges between GPUs joined by"
            " PCIe; copies between "
        )
        yield Risk(
            say + "them would be slow or never arrive",
            [host.fact("host.acs")],
            _advice(True)[0],
            "likely",
        )
    elif host.value("host.iommu"):
        say = (
            "an IOMMU is active and the GPUs are joined by PCIe; unless it passes copies through,"
            " they would be "
        )
        yield Risk(say + "slow or never arrive", [host.fact("host.iommu")], _advice(True)[0])


def _diagnosed(case: Case) -> Finding | None:
    """NCCL wrote or read the memory of a peer, and other bytes arrived."""
    lines = diagnostics(case, "p2p_data")
    strength: Strength = "proven"
    does = "what NCCL's diagnostics wrote or read arrived as other bytes"
    if not lines:
        for event in diagnostics(case, "p2p_import"):
            if event.data.handle == "DIRECT":
                lines.append(event)
        strength = "likely"
        does = "NCCL's diagnostics could not map the memory of the peer"
    if not lines:
        return None
    ranks, pair = pair_in_words(case, lines[0])
    more = ""
    if len(lines) > 1:
        more = f", and so for {len(lines) - 1} more"
    ours = staged_test(case)
    if ours.verified and not ours.wrong_accesses:
        more += "; ncclkit's own check of such pairs found all of them right, so the two disagree"
    return found(
        ID,
        strength,
        f"From {pair}, {does}{more}.",
        pick(lines, _verified_pairs(case)),
        ranks=ranks,
        hosts=name_hosts(lines),
        advice=_advice(True),
        next=experiment(case),
    )


def _counted_by_nccl(case: Case) -> Finding | None:
    """NCCL's diagnostics count accesses between GPUs that failed, and no line names a pair.

    The lines with the pairs stand in the outputs of the other nodes.
    """
    lines = []
    for event in diagnostics(case, "p2p_count"):
        verified, of = pairs_that_failed(event)
        if verified < of:
            lines.append(event)
    # a pair that is named has its own reason, which may be a container's or the fabric's
    named = diagnostics(case, "p2p_import")
    for event in diagnostics(case, "p2p_data", state="unchecked"):
        if event.data.src is not None:
            named.append(event)
    if not lines or named or outcome(case).success:
        return None
    verified, of = pairs_that_failed(lines[0])
    say = (
        f"NCCL's diagnostics verified {verified} of {of} accesses between GPUs; the output of each"
        " node names the pairs that failed."
    )
    return found(
        ID,
        "possible",
        say,
        pick(lines, limit=4),
        ranks=(),
        hosts=name_hosts(lines),
        advice=(NAME_PAIRS, *_advice(True)),
        next=experiment(case),
    )


NAME_PAIRS = Advice(
    "Read the lines 'NCCL DIAG … p2p:' of every node's output: they name each pair of GPUs that"
    " failed, the path between them and the reason.",
    command="grep -h 'NCCL DIAG.* p2p: ' *.out *.log; nvidia-smi topo -p2p p",
    why="Each node prints its own failures; rank 0 prints the count alone.",
    check="Each pair that failed is named.",
    risk="None: it only looks.",
)


def _wrong_access(case: Case) -> Finding | None:
    """A GPU wrote into the memory of another, or read there, and other bytes arrived."""
    wrong = staged_test(case).wrong_accesses
    if not wrong or not any(event.data.nccl for event in case.of(WorkerPhase)):
        return None
    verified = _verified_pairs(case)
    say = "; ".join(access.summary for access in wrong[:3])
    if len(wrong) > 3:
        say += f"; and {len(wrong) - 3} more"
    if verified:
        say += "; NCCL's own diagnostics verified every pair, so the two disagree"
    ranks = set()
    for access in wrong:
        ranks |= {access.rank, access.peer}
    return found(
        ID,
        "likely",
        f"{say}.",
        pick([access.event for access in wrong[:5]], verified),
        ranks=tuple(sorted(ranks)),
        advice=_advice(True),
        next=experiment(case),
    )


def _verified_pairs(case: Case) -> list[Event]:
    """Lines in which NCCL verified each pair of GPUs."""
    return list(
        diagnostics(
            case,
            "p2p_data",
            state="clean",
        )
    )


def _verified_by_nccl(case: Case) -> Finding | None:
    """NCCL's diagnostics verified every pair, and nothing of ours says otherwise."""
    verified = _verified_pairs(case)
    if not verified or case.of(KernelIommu):
        return None
    say = "NCCL's diagnostics wrote, read and verified the memory of every pair of GPUs."
    return clear(
        ID,
        say,
        tuple(verified[:2]),
    )


def _from_stages(case: Case) -> Finding | None:
    """The staged test found ranks of one machine that fail together.

    They may also have exchanged wrong values, or never answered.
    """
    who = faulty_ranks(case)
    staged = staged_test(case)
    if who and who.gpus and not (who.slow or who.alone or who.between):
        advice = _advice(True)
        question = experiment(case)
        return found(
            ID, who.strength, who.summary, who.why, ranks=who.ranks, advice=advice, next=question
        )
    wrong = []
    for pair in staged.pairs:
        # a rank whose own memory is wrong spoils each pair that it is in (gpu_hardware_error)
        if pair.wrong and not {pair.a, pair.b} & set(staged.corrupt):
            wrong.append(pair)
    gpus = any(event.data.nccl for event in case.of(WorkerPhase))
    bad = [(pair.a, pair.b) for pair in wrong] or (
        staged.silent if not rank_states(case).dead else ()
    )
    if not bad or not gpus:
        return None
    ranks = staged.suspects or tuple(sorted(set().union(*bad)))
    events = []
    for pair in wrong:
        if pair.event:
            events.append(pair.event)
    why = pick(
        events,
        case.of(RunEnd),
        case.of(StagePair),
        limit=5,
    )
    strength: Strength = "possible"
    if wrong:
        strength = "likely"
    return found(
        ID,
        strength,
        f"{staged.summary}.",
        why,
        ranks=ranks,
        advice=_advice(True),
        next=experiment(case),
    )


def _wrong_values(case: Case) -> Finding | None:
    """nccl-tests counted wrong values.

    The data did not arrive as it was sent.
    """
    lines = []
    for event in case.of(NccltestsTable):
        if event.data.wrong:
            lines.append(event)
    if not lines:
        return None
    wrong = lines[0].data.wrong
    op = lines[0].data.op or "a collective"
    say = (
        f"nccl-tests counted {wrong:,} wrong values in {op}: copies between GPUs do not arrive as"
        " they were sent."
    )
    strength: Strength = "likely"
    # between hosts the data goes through network cards as well
    if spans_hosts(case):
        strength = "possible"
    return found(ID, strength, say, pick(lines), advice=_advice(True), next=experiment(case))


def _blocked_by_iommu(case: Case) -> Finding | None:
    """The IOMMU reports a fault for a device's memory access."""
    lines = case.of(KernelIommu)
    if not lines:
        return None
    say = (
        f"The IOMMU{on(lines[0].host)} blocked a device's memory access, so copies between GPUs do"
        " not arrive."
    )
    why = pick(lines, case.of(C10dTimeout))
    return found(
        ID, "likely", say, why, hosts=name_hosts(lines), advice=_advice(True), next=experiment(case)
    )


def _denied_access(case: Case) -> Finding | None:
    """CUDA or NCCL reports that the GPUs cannot reach each other."""
    lines = matching([*family(case, "p2p", "cuda"), *messages(case), *case.of(CudaError)], *DENIED)
    if not lines:
        return None
    ranks = ranks_in(lines)
    hosts = name_hosts(lines)
    say = (
        f"{who_are(ranks, lines[0].host)}: peer-to-peer access between two GPUs of"
        " the machine was refused."
    )
    if matching(lines, "peer mapping resources"):
        say = (
            f"{who_are(ranks, lines[0].host)}: a GPU can map the memory of at most"
            " eight others, and "
        )
        say += "more are in use."
    advice = _advice(False)
    # vLLM copies itself, whatever NCCL's settings are
    if matching(lines, "custom_all_reduce.cuh"):
        advice = (OWN, *advice)
    # NCCL's shared memory copies to no other GPU; it maps host memory by cuMem calls
    if matching(lines, "transport/shm.cc"):
        advice = (HOST_MEMORY, *advice)
    hard = []
    for event in lines:
        if not matching([event], *SURVIVED) or "Please set `NCCL_P2P_DISABLE" in event.text:
            hard.append(event)
    strength: Strength = "likely"
    if hard:
        strength = "proven"
    return found(
        ID,
        strength,
        say,
        pick(lines),
        ranks=ranks,
        hosts=hosts,
        advice=advice,
        next=experiment(case),
    )


def _slower_than_host(case: Case) -> Finding | None:
    """Direct copies between GPUs are far slower than copies through the host."""
    tables = copies(case)
    slow = slow_copies(case)
    if not slow:
        return None
    # the pair that is slowed most
    _, a, b, direct, fast = max(slow)
    gpus = sorted({gpu for _, *pair, _, _ in slow for gpu in pair})
    names = tuple(str(gpu) for gpu in gpus)
    say = (
        f"Peer-to-peer copies from GPU {a} to GPU {b} reach {direct:g} GB/s,"
        f" {percent(direct / fast)} of the {fast:g} GB/s through the host: direct copies between"
        f" GPUs {', '.join(names)} are slowed, as an IOMMU or ACS does."
    )
    return found(
        ID, "likely", say, pick(*tables), gpus=names, advice=_advice(True), next=experiment(case)
    )


def _stuck_start(case: Case) -> Finding | None:
    """One of the first collectives on one machine never ends.

    A log that stops in NCCL's start may be an excerpt.
    """
    stuck = _stuck_waits(case)
    if not stuck:
        return None
    say = (
        "The ranks wait in one of the first collectives and none completes it; a usual reason is"
        " blocked copies "
    )
    say += "between GPUs."
    return found(
        ID,
        "possible",
        say,
        pick(stuck),
        hosts=name_hosts(stuck),
        advice=_advice(False),
        next=experiment(case),
    )


def _stuck_waits(case: Case) -> list[Event]:
    """Waits of all ranks of one machine in one of the first collectives.

    Peer-to-peer is not switched off.
    """
    states = rank_states(case)
    # NCCL says what it uses: a stall without P2P has another reason
    paths = {e.data.via for e in case.of(NcclChannel)}
    if (
        env_of(case, "NCCL_P2P_DISABLE")
        or spans_hosts(case)
        or states.dead
        or (paths and "P2P" not in paths)
    ):
        return []
    waits = all_waiting(case, states) or (
        [] if states.silent or len(states.waiting) < 2 else list(states.waiting.values())
    )
    numbers = [(e, sequence_of(e)) for e in waits]
    first = []
    for e, number in numbers:
        # blocked copies stop the very first calls; later ones show that copies arrive
        if number is not None and number <= 3:
            first.append(e)
    direct = case.of(NcclChannel, via="P2P")
    # where all ranks receive, no data is in flight
    sent = {op_of(e).upper() for e in first} != {"RECV"}
    # a rank that is missing from the dumps, or in a later call, is the reason by itself
    whole = sent and len(first) == len(waits) and not case.of(FlightMissing)
    if first and whole:
        return [*first[:2], *direct[:2]]
    return []


OWN = Advice(
    "Switch off the serving program's own all_reduce, which needs peer-to-peer"
    " (--disable-custom-all-reduce of vLLM and SGLang).",
    command="nvidia-smi topo -p2p r",
    why="It writes into the other GPUs' memory itself, whatever NCCL's settings are.",
    check="The program starts, and NCCL's Channel lines say what it uses instead.",
    risk="Small all_reduce calls take longer.",
)


HOST_MEMORY = Advice(
    "Let NCCL's shared memory do without cuMem calls, on all ranks alike.",
    env={"NCCL_CUMEM_HOST_ENABLE": "0"},
    why="NCCL maps the memory of the host by CUDA calls, which were refused here.",
    check="The first collective completes.",
    risk="None: it is what NCCL did before 2.24.",
)


def _advice(iommu: bool) -> tuple[Advice, ...]:
    bios = Advice(
        "Turn off the IOMMU or put it into pass-through, and turn off PCIe ACS, in the BIOS or on"
        " the kernel command line.",
        command="grep -o 'iommu[^ ]*' /proc/cmdline; sudo lspci -vvv | grep -i acsctl",
        why="They redirect or block copies between devices.",
        check=(
            "p2pBandwidthLatencyTest shows full bandwidth, and the job runs without"
            " NCCL_P2P_DISABLE."
        ),
        risk="Needs a reboot; virtual machines with passed-through devices need the IOMMU.",
    )
    off = Advice(
        "Keep NCCL off peer-to-peer, at least until the machine is repaired.",
        env={"NCCL_P2P_DISABLE": "1"},
        why="Shared memory goes through the CPU and always works.",
        check="The first collective completes.",
        risk="Slower by a factor of two or more on machines with NVLink.",
    )
    if iommu:
        return bios, off
    return off, bios


def experiment(case: Case) -> Experiment:
    """Run the same job with and without peer-to-peer, then without NCCL."""
    off = experiment_of(
        "Does the job complete when peer-to-peer is off?",
        {"env": {"NCCL_P2P_DISABLE": "1"}},
        {
            ID: ("works", "it completes only with NCCL_P2P_DISABLE=1"),
            "nvswitch_fabric": (
                "works",
                "the same on an NVSwitch machine; NCCL_NVLS_ENABLE=0 alone helps too",
            ),
            "slow_rank": ("same", "it fails in both: the rank is late whatever the path"),
            "rank_divergence": ("same", "it fails in both: the calls still differ"),
            "gpu_hardware_error": ("same", "it fails in both, on one particular GPU"),
        },
    )
    gloo = over_gloo(
        case,
        "Does the same job complete over gloo, in the hosts' memory?",
        {ID: "it does: no GPU copies to another", "nccl_bug": "it does: NCCL is not used"},
        {
            "slow_rank": "it fails too: the rank is late again",
            "rank_divergence": "it fails too: the calls still differ",
        },
    )
    return unasked(case, off, *gloo)


CHECK = Preflight(
    ID,
    reads=("host.iommu", "gpu.topology"),
    risks=_host_risks,
    fine="No IOMMU and no access control is active between the GPUs.",
    also=("host.acs",),
    next=experiment,
)


SLOWER = 2
"""Times slower than the host's way from which direct copies are ill.

They are then not healthy on any machine.
"""


def copies(case: Case) -> list[tuple[Event, Event]]:
    """p2pBandwidthLatencyTest's matrices with and without peer-to-peer, in pairs.

    Of several runs the n-th ones belong together.
    """
    on: dict[object, list[Event]] = {}
    off: dict[object, list[Event]] = {}
    for table in case.of(P2pMatrix):
        tables = off
        if table.data.enabled:
            tables = on
        which = table.path, table.host, table.data.direction, tuple(table.data.gpus)
        tables.setdefault(which, []).append(table)
    pairs: list[tuple[Event, Event]] = []
    for key, direct in on.items():
        pairs += zip(direct, off.get(key, ()), strict=False)
    return pairs


def slow_copies(case: Case) -> list[tuple[float, int, int, float, float]]:
    """Pairs of GPUs whose direct copies are slow.

    A row is (how many times slower, from GPU, to GPU, GB/s direct, GB/s through the host) of a pair
    that is not healthy.  Equal speeds are no sign: without peer access, and on PCIe, both go the
    same way.
    """
    rows = []
    for with_p2p, without_p2p in copies(case):
        gpus = with_p2p.data.gpus
        tables = zip(gpus, with_p2p.data.values, without_p2p.data.values, strict=False)
        for a, direct_row, fast_row in tables:
            for b, direct, fast in zip(gpus, direct_row, fast_row, strict=True):
                # without peer access, and on PCIe, both go the same way: equal figures are no sign
                if a != b and direct * SLOWER < fast:
                    rows.append((fast / max(direct, 0.01), a, b, direct, fast))
    return rows


REMEDIES = (*_advice(True), OWN, HOST_MEMORY, NAME_PAIRS)
