"""A faster path between the GPUs of a machine exists but is not used

What you see
    The job works but steps are slow; in NCCL's log, ranks of one machine talk "via SHM" or "via
    NET/Socket" instead of "via P2P"; busbw inside one node is a fraction of what the links can do.

Why it happens
    NCCL tries peer-to-peer copies (NVLink, PCIe) first, shared memory second, the network last.  A
    variable that once worked around a hang (NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1), a container
    that hides the other GPUs, or PCIe access control (ACS) blocks the fast path, and NCCL silently
    takes the next one.

How to be sure
    `nvidia-smi topo -m` shows NV# or PIX between the pair; the Channel lines of NCCL_DEBUG=INFO
    show what was taken. Measure one all_reduce with and without the variable.

What to do
    Look whether the old hang is still there once the variable is gone. Give a container all GPUs of
    the node and --ipc=host; turn off ACS on bare metal.

Read more
    NCCL user guide: NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, NCCL_SHM_DISABLE; Troubleshooting: GPU-to-GPU
    communication.
"""

from __future__ import annotations

from collections.abc import Iterator

from ncclkit.analysis.hosts import as_nccl_sees
from ncclkit.analysis.picks import env_of, failed, first_finding, name_hosts, pick, ranks_in
from ncclkit.analysis.speed import measured_speed
from ncclkit.causes._bisected import faulty_ranks
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk, name_gpus, number
from ncclkit.causes.bad_env_value import limiting
from ncclkit.core.case import Case
from ncclkit.core.kinds import NcclChannel, NcclEnv, NcclInfo, NcclInit, NcclWarn
from ncclkit.core.model import Advice, Event, Experiment, Fact, Finding, Strength, found

ID = "slow_transport"
explains: tuple[str, ...] = ()
SWITCHES = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_P2P_LEVEL", "NCCL_NVLS_ENABLE")
DISABLED = "NCCL found peer-to-peer disabled"
DENIED = ("CNS", "DR")
"""States of `nvidia-smi topo -p2p` where something blocks P2P.

It is the chipset or a registry key; with GNS the cards have no P2P.
"""


def diagnose(case: Case) -> Finding:
    """Found where a setting turned a path off.

    Ranks of one machine then use a slower one.
    """
    slow = _slow_channels(case)
    direct = [event for event in case.of(NcclChannel) if event.data.via == "P2P"]
    went_well = direct or ([] if slow else case.of(NcclChannel))
    say = "Ranks of one machine talk peer to peer."
    if slow and not went_well:
        went_well = [*slow]
        say = "No faster path is known to exist between these GPUs."
    missing = "NCCL_DEBUG=INFO Channel lines of a start"
    return first_finding(
        case, _path_turned_off, _measured_slow, _low_speed, CHECK.risk
    ) or CHECK.otherwise(case, went_well, say, missing)


def _slow_channels(case: Case) -> list[Event]:
    """Connections inside one machine that take another path than peer to peer."""
    slower = [event for event in case.of(NcclChannel) if event.data.via in ("SHM", "NET")]
    return _inside_machine(case, slower)


def _path_turned_off(case: Case) -> Finding | None:
    """Connections inside one machine are slow, and a setting or the driver says why."""
    slow = _slow_channels(case)
    settings: list[Event | Fact] = [*case.of("nccl.env", "printed.env"), *_env_facts(case)]
    switched = [piece for piece in settings if _turns_off(piece)]
    disabled: list[Event] = case.of(NcclInfo, family="p2p_disabled")
    disabled += [e for e in case.of(NcclWarn) if "P2P is disabled between NVLINK" in e.text]
    if slow and (switched or disabled):
        return _finding(case, slow, switched, disabled)
    return None


def _measured_slow(case: Case) -> Finding | None:
    """The staged test found a rank or a pair that is slow.

    It is slower than others with the same kind of link.
    """
    who = faulty_ranks(case)
    if who is None or not who.slow or who.between:
        return None
    return found(
        ID,
        who.strength,
        who.summary,
        who.why,
        ranks=who.ranks,
        advice=(ODD,),
        next=experiment(case),
    )


def _low_speed(case: Case) -> Finding | None:
    """A live test inside one machine is slower than usual.

    Its numbers do not show which path was used.
    """
    speed = measured_speed(case)
    judgement = None
    if speed:
        judgement = speed.judgement
    if judgement is None or judgement.best.hosts > 1 or ID not in judgement.suspects:
        return None
    best = judgement.best
    say = f"{best.op} on {best.ranks} GPUs reaches {judgement.summary}"
    return found(ID, "possible", say, (best,), advice=(_advice(),), next=experiment(case))


ODD = Advice(
    "Check the link and the clocks of the named ranks, and run the job without them until they are"
    " repaired.",
    command=(
        "nvidia-smi nvlink -s; nvidia-smi nvlink -e; nvidia-smi -q -d PERFORMANCE,PCIE; nvidia-smi"
        " topo -m"
    ),
    why=(
        "Pairs with the same kind of link are equally fast; a collective is as fast as its slowest"
        " pair."
    ),
    check="The pair matrix of a repeated staged test shows no frame.",
    risk="Without these GPUs the job has fewer ranks: batch size and data split change.",
)


def brakes(case: Case) -> Finding | None:
    """Settings in NCCL's log that leave it less to choose from.

    Fewer algorithms, protocols or transports may slow a job.
    """
    lines = {
        name: e for e in case.of(NcclEnv) if limiting(name := str(e.data.name), str(e.data.value))
    }
    if not lines:
        return None
    named = [f"{name}={str(event.data.value).strip('. ')}" for name, event in lines.items()]
    if len(lines) == 1:
        are, they = "is", "it leaves"
    else:
        are, they = "are", "they leave"
    say = (
        f"{' and '.join(named)} {are} set by environment: {they} NCCL fewer ways to choose from, a"
        " possible brake."
    )
    advice = Advice(
        "Measure the same collective without, and keep only what makes it faster.",
        command=f"unset {' '.join(lines)}",
        change={"unset": list(lines)},
        why=(
            "NCCL chooses algorithm, protocol and path for each size by itself; what is set holds"
            " for all of them."
        ),
        check="busbw of the live test with and without, in alternating runs (`ncclkit tune`).",
        risk=(
            "It may have been set to get around a hang: run the live test first, not the long job."
        ),
    )
    return found(ID, "possible", say, pick(lines.values()), advice=(advice,), next=experiment(case))


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """What may keep GPUs of a host from a fast path.

    It is settings that turn a path off, pairs that may not copy directly, or PCIe lanes that are
    missing.
    """
    for name in SWITCHES:
        fact = host.fact(f"env.{name}")
        if fact and _turns_off(fact) and host.gpu_count > 1:
            say = (
                f"{name}={fact.value} is set; the GPUs would exchange data over a slower path than"
                " they have"
            )
            yield Risk(say, [fact], _advice(name), "likely")
    yield from _denied_pairs(host)
    lanes = {gpu: number(fact.value) or 0 for gpu, fact in host.gpus("pcie.width").items()}
    for gpu, width in lanes.items():
        most = host.number(f"gpu.{gpu}.pcie.width.max") or 0
        # boards give x8 to each of two cards
        if width < most and (width < max(lanes.values()) or width * 4 <= most):
            say = (
                f"GPU {gpu} uses {width:g} of its {most:g} PCIe lanes; its transfers to the host or"
                " the network "
            )
            facts = [host.fact(f"gpu.{gpu}.pcie.width")]
            yield Risk(say + "would take longer than it should", facts, LANES, gpus=(gpu,))


def _denied_pairs(host: HostFacts) -> Iterator[Risk]:
    """GPUs between which the driver allows no direct copies.

    Cards or NVLink support them.
    """
    linked = host.value("gpu.topology") or {}
    for name in ("gpu.p2p.read", "gpu.p2p.write"):
        denied = {
            (one, two): how
            for one, row in (host.value(name) or {}).items()
            for two, how in row.items()
            if how in DENIED or (how != "OK" and str(linked.get(one, {}).get(two)).startswith("NV"))
        }
        if denied:
            (one, two), how = next(iter(denied.items()))
            denied_gpus = set()
            for pair in denied:
                for gpu in pair:
                    denied_gpus.add(gpu[3:])
            gpus = sorted(denied_gpus, key=int)
            say = (
                f"the driver allows no direct copies among {name_gpus(gpus)} ({one} to {two}:"
                f" {how}); they would go "
            )
            strength: Strength = "likely"
            if how in DENIED:
                strength = "possible"
            yield Risk(
                say + "through host memory",
                [host.fact(name)],
                _advice(),
                strength,
                gpus=tuple(gpus),
            )
            return


def _inside_machine(case: Case, channels: list[Event]) -> list[Event]:
    """Channels with both ends on what NCCL takes for one machine.

    The INIT lines of their ranks tell it.
    """
    machines = _machines_of_ranks(case)
    inner_pairs = []
    for event in channels:
        here, there = machines.get(event.data.src), machines.get(event.data.dst)
        if event.data.via == "SHM" or (here is not None and here == there):
            inner_pairs.append(event)
    return inner_pairs


def _machines_of_ranks(case: Case) -> dict[int | None, str]:
    """The machine of each rank, as NCCL sees it.

    Only ranks count that stand on one alone.  A group with a communicator of its own numbers its
    ranks anew and names no parent: the rank 0 of eight groups across hosts stands on as many hosts.
    """
    machine_of = as_nccl_sees(case)
    machines: dict[int | None, set[str]] = {}
    for start in case.of(NcclInit):
        if start.host and not start.data.parent:
            machines.setdefault(start.data.rank, set()).add(machine_of(start))
    lone: dict[int | None, str] = {}
    for rank, names in machines.items():
        if len(names) == 1:
            lone[rank] = min(names)
    return lone


def _env_facts(case: Case) -> list[Fact]:
    switches = []
    for fact in case.facts_of("env."):
        if fact.name[4:] in SWITCHES:
            switches.append(fact)
    return switches


def _name_and_value(piece: Event | Fact) -> tuple[str, str]:
    if isinstance(piece, Fact):
        return piece.name[4:], str(piece.value)
    return str(piece.data.name), str(piece.data.value)


def _turns_off(piece: Event | Fact) -> bool:
    name, value = _name_and_value(piece)
    return (name.endswith("_DISABLE") and name in SWITCHES and value == "1") or (
        name == "NCCL_P2P_LEVEL" and value.upper() in ("0", "LOC")
    )


def _finding(
    case: Case, slow: list[Event], switched: list[Event | Fact], disabled: list[Event]
) -> Finding:
    """Connections that take a slower path, and the settings or lines that say why."""
    via = "shared memory"
    if any(e.data.via == "NET" for e in slow):
        via = "the network"
    pair = f"rank {slow[0].data.src} to rank {slow[0].data.dst}"
    named = dict(map(_name_and_value, switched))
    are = "are"
    if len(named) == 1:
        are = "is"
    if named:
        why = " and ".join(f"{name}={value}" for name, value in named.items()) + f" {are} set"
    else:
        why = DISABLED
    # a variable that somebody pasted, or wrote into a script, may not be the job's
    read = []
    for piece in switched:
        if isinstance(piece, Fact) or piece.kind != "printed.env":
            read.append(piece)
    if failed(case):
        strength: Strength = "possible"
    elif read:
        strength = "proven"
    else:
        strength = "likely"
    say = f"{len(slow)} connections inside one machine ({pair} …) go through {via} because {why}."
    return found(
        ID,
        strength,
        say,
        pick(switched[:2], disabled[:2], slow[:3]),
        ranks=ranks_in(slow)[:8],
        hosts=name_hosts(slow),
        advice=(_advice(*named),),
        next=experiment(case),
    )


def _advice(*variables: str) -> Advice:
    if variables:
        return Advice(
            f"Unset {' and '.join(variables)} and run the same all_reduce again.",
            command=f"unset {' '.join(variables)}",
            change={"unset": list(variables)},
            why="It was probably set to get around a hang that may be gone.",
            check="Channel lines say 'via P2P' and busbw is a multiple of what it was.",
            risk="The hang it hid may come back: run the live test first, not the long job.",
        )
    return Advice(
        "Find out why peer-to-peer is off: ACS or IOMMU on bare metal, hidden GPUs in a container,"
        " a fabric fault.",
        command="nvidia-smi topo -p2p r; nvidia-smi topo -m",
        why="The driver says which pairs may copy directly.",
        check="The matrix shows OK for all pairs, and Channel lines say 'via P2P'.",
        risk="Changing ACS needs a reboot.",
    )


def experiment(case: Case) -> Experiment:
    """Run the same job without the settings that are set.

    Where none is known, it runs without any of them.
    """
    off = []
    for name in SWITCHES:
        if env_of(case, name) or case.facts_of(f"env.{name}"):
            off.append(name)
    return experiment_of(
        "Is all_reduce inside one node faster without the switch?",
        {"unset": off or list(SWITCHES)},
        {
            ID: ("faster", "busbw rises by half or more"),
            "p2p_broken": (
                "other",
                "it hangs or gives wrong results without the switch, which was probably set for"
                " that reason",
            ),
            "nvswitch_fabric": ("other", "it does not start without the switch"),
        },
    )


LANES = Advice(
    "Check the slot: a riser, a card that is not fully seated, a slot with fewer lanes, or a BIOS"
    " setting.",
    command="nvidia-smi -q -d PCIE; sudo lspci -vv | grep -E 'NVIDIA|LnkSta:'",
    why=(
        "Half the lanes give half the bandwidth between this GPU and the host, the network and GPUs"
        " without NVLink."
    ),
    check="`nvidia-smi -q -d PCIE` shows the maximum under Current while the GPU works.",
    risk="Some GPUs lower the width when they idle: look again under load first.",
)
REMEDIES = (_advice("NCCL_P2P_DISABLE"), _advice(), ODD, LANES)
CHECK = Preflight(
    ID,
    reads=("gpu.*.pcie.width", "gpu.*.pcie.width.max"),
    risks=_host_risks,
    fine="The GPUs have all their PCIe lanes, and no setting blocks direct copies between them.",
    also=(
        "gpu.count",
        "gpu.topology",
        "gpu.p2p.read",
        "gpu.p2p.write",
        *(f"env.{name}" for name in SWITCHES),
    ),
    next=experiment,
)
