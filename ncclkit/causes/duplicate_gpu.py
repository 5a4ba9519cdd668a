"""Two ranks use the same GPU

What you see
    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000" (2.30: "Multiple Ranks
    are using the same GPU") under an "invalid usage" error at the first collective.  Without the
    check: half the GPUs idle, one runs out of memory, or a hang in the first barrier after
    "Guessing device ID".

Why it happens
    Every process starts with CUDA device 0 as its current one.  If a rank does not call
    torch.cuda.set_device(local_rank) before the first CUDA or NCCL call, or the launcher gives all
    ranks the same CUDA_VISIBLE_DEVICES (Ray, Slurm --gpus-per-task with another binding, a
    notebook), two ranks end up on one card. NCCL needs one GPU per rank in a communicator and
    refuses.

How to be sure
    The busId in the two INIT lines is equal; or print(rank, torch.cuda.current_device(),
    os.environ["CUDA_VISIBLE_DEVICES"]) on each rank.

What to do
    Pass device_id= to init_process_group, too, and start as many ranks per node as it has visible
    GPUs.

Read more
    PyTorch docs: init_process_group(device_id=...), torchrun LOCAL_RANK.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ncclkit.analysis.hosts import as_nccl_sees
from ncclkit.analysis.launchers import launcher
from ncclkit.analysis.network_devices import shared_names
from ncclkit.analysis.picks import (
    family,
    first_finding,
    initialized,
    matching,
    messages,
    name_hosts,
    name_ranks,
    on,
    pick,
    ranks_in,
    who_are,
    who_of,
)
from ncclkit.causes._experiments import minimal
from ncclkit.causes._launchers import options_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk, name_gpus
from ncclkit.core.case import Case
from ncclkit.core.event_list import first_host
from ncclkit.core.kinds import (
    C10dDeviceUnknown,
    C10dError,
    C10dTimeout,
    CudaError,
    NcclDestroy,
    NcclInit,
    NcclWarn,
    RehearsalVerdict,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found

ID = "duplicate_gpu"
explains = (
    "c10d.error",
    "nccl.trace",
    "rank_exception",
    "gpu_oom",
    "slow_rank",
    "store.lost",
    "c10d.timeout",
)


def diagnose(case: Case) -> Finding:
    """Found where NCCL reports it, or two ranks have one bus id.

    The bus id stands in two INIT lines of one communicator.
    """
    went_well = initialized(case)
    return first_finding(
        case,
        _shared_in_rehearsal,
        _reported_duplicate,
        _too_many,
        _busy_gpu,
        _vague_refusal,
        _guessed_gpu,
        CHECK.risk,
    ) or CHECK.otherwise(
        case,
        went_well,
        "Each rank of a communicator has a GPU of its own.",
        "NCCL_DEBUG=INFO lines with the bus ids",
    )


def _shared_in_rehearsal(case: Case) -> Finding | None:
    """Ranks of one host would communicate from one GPU."""
    for verdict in case.of(RehearsalVerdict):
        ranks = tuple(verdict.data.odd)
        who = who_are(ranks)
        if verdict.data.verdict == "same_gpu":
            say = f"{who} share a GPU with another rank of their host; NCCL needs one GPU per rank."
            return found(ID, "proven", say, [verdict], ranks=ranks, advice=_advice(case))
        if verdict.data.why == "gpus":
            say = (
                f"{who} share a GPU with another rank of their host, unless the launcher shows each"
                " rank one of its own; NCCL needs one GPU per rank."
            )
            return found(ID, "possible", say, [verdict], ranks=ranks, advice=_advice(case))
    return None


def _reported_duplicate(case: Case) -> Finding | None:
    said = family(case, "duplicate_gpu")
    said += matching(messages(case), "Duplicate GPU detected", "Ranks are using the same GPU")
    same = _same_bus(case)
    if not said and not same:
        return None
    ranks = _named_ranks(said) or tuple(sorted({e.data.rank for e in same}))
    quoted = (m[1] for e in said if (m := re.search(r"(?:device|busId) (\w+)", e.text)))
    bus = next((str(e.data.bus) for e in same), "") or next(quoted, "")
    host = first_host(same + said)
    say = (
        f"{who_are(ranks)} use the same GPU{' ' + bus if bus else ''}{on(host)}; NCCL"
        " needs one GPU per rank."
    )
    hosts = name_hosts(same + said)
    gpus = (bus,) if bus else ()
    # Nodes that report the same host name have equal bus ids, too; only NCCL's own report is proof.
    # NCCL itself is
    # wrong where two machines have one name.
    if shared_names(case):
        strength: Strength = "possible"
    elif said:
        strength = "proven"
    else:
        strength = "likely"
    return found(
        ID,
        strength,
        say,
        pick(said, same),
        ranks=ranks,
        hosts=hosts,
        gpus=gpus,
        advice=_advice(case),
    )


UNSEEN = (
    "invalid device ordinal",
    "No CUDA GPUs are available",
    "Please use a device index between",
    "Invalid device id",
    "You requested gpu",
    "larger than the number of available GPUs",
)
"""Messages of CUDA, torch, Lightning and vLLM about a GPU that does not exist or is not visible to
the process."""


def _too_many(case: Case) -> Finding | None:
    """A rank asked for a GPU that is not visible to it."""
    lines = matching([*messages(case), *case.of(CudaError)], *UNSEEN)
    if not lines:
        return None
    ranks = ranks_in(lines)
    hosts = name_hosts(lines)
    say = (
        f"{who_are(ranks)} asked for a GPU that it cannot see{on(lines[0].host)}: there"
        " are more ranks than visible GPUs."
    )
    return found(ID, "likely", say, pick(lines), ranks=ranks, hosts=hosts, advice=_advice(case))


def _busy_gpu(case: Case) -> Finding | None:
    """CUDA refused a GPU as busy.

    Another rank or another user's process holds it, or the GPU itself is ill.
    """
    lines = matching([*messages(case), *case.of(CudaError)], "busy or unavailable")
    if not lines:
        return None
    modes = []
    for fact in case.facts_of("gpu."):
        if fact.value in ("Exclusive_Process", "Prohibited"):
            modes.append(fact)
    say = f"{who_of(lines, lines[0].host)} found its GPU busy or unavailable: another rank or "
    say += "another process may hold it."
    strength: Strength = "possible"
    if modes:
        strength = "likely"
    why = pick(lines, modes)
    advice = (*([MODE] if modes else []), *_advice(case))
    return found(
        ID, strength, say, why, ranks=ranks_in(lines), advice=advice, next=experiment(case)
    )


def _vague_refusal(case: Case) -> Finding | None:
    """NCCL returned "invalid usage" and its log gives no reason."""
    # with NCCL's last error, or its warnings, the reason would be said
    lines = []
    for event in matching(case.of(C10dError), "invalid usage"):
        if not event.data.last_error:
            lines.append(event)
    if not lines or case.of(NcclWarn):
        return None
    who = name_ranks(ranks_in(lines))
    say = (
        f"NCCL refused the call of {who} as invalid usage; the usual reason is two ranks on one"
        " GPU."
    )
    return found(ID, "possible", say, pick(lines, limit=3), advice=_advice(case))


def _guessed_gpu(case: Case) -> Finding | None:
    """The first barrier hangs after PyTorch had to guess the GPU."""
    guessed = case.of(C10dDeviceUnknown)
    waits = case.of(C10dTimeout)
    # PyTorch guesses rightly where ranks and GPUs are as many: only a hang makes it a sign
    if not guessed or not waits or case.of(NcclDestroy):
        return None
    say = (
        "The ranks did not set their GPU before the first barrier; PyTorch's guess may have put two"
        " ranks on one GPU."
    )
    return found(ID, "possible", say, pick(guessed, waits, limit=4), advice=_advice(case))


def _same_bus(case: Case) -> list[Event]:
    """INIT lines of two ranks of one communicator with the same bus id.

    They are on the same host, the one that NCCL takes (NCCL_HOSTID).  Communicators that completed
    their start are left out: NCCL refuses two ranks on one GPU, so these ranks were on different
    hosts, by a setting that the log does not show.
    """
    taken_for = as_nccl_sees(case)
    came = set()
    for e in case.of(NcclInit):
        if _is_complete(e):
            came.add((e.data.rank, e.data.comm_id))
    places: dict[tuple[str, str, str], dict[int, Event]] = defaultdict(dict)
    for event in case.of(NcclInit):
        data = event.data
        # a split communicator has its parent's GPUs
        seen = data.bus and event.host and not data.parent
        if seen and data.rank is not None and (data.rank, data.comm_id) not in came:
            places[taken_for(event), str(data.bus), str(data.comm_id)].setdefault(data.rank, event)
    # two starts of one job give each GPU two ranks; only one communicator's lines can be compared
    if _started_twice(case):
        ranks_of_place = {}
        for place, ranks in places.items():
            if place[2] != "None":
                ranks_of_place[place] = ranks
        places = ranks_of_place
    for (*_, comm), ranks in places.items():
        if _several_ranks(comm, [*ranks.values()]):
            return [*ranks.values()]
    return []


def _is_complete(event: Event) -> bool:
    return event.data.phase == "done" and event.data.comm_id is not None


def _started_twice(case: Case) -> bool:
    """True where lines of one rank come from two processes.

    The job was started twice, or has several groups.
    """
    pids: dict[object, set[int | None]] = defaultdict(set)
    for event in case.of(NcclInit):
        # a pid is of a process, whatever a log calls its rank
        pids[event.host, event.data.rank].add(event.pid)
    return any(len(group) > 1 for group in pids.values())


def _several_ranks(comm: str, events: list[Event]) -> bool:
    """True for several ranks.

    Where NCCL is too old to name the communicator, each must be a process of its own.
    """
    return len(events) > 1 and (
        comm != "None" or len({event.pid for event in events} - {None}) == len(events)
    )


def _named_ranks(said: list[Event]) -> tuple[int, ...]:
    ranks = set()
    for e in said:
        for m in re.finditer(r"rank (\d+) and rank (\d+)", e.text):
            for n in m.groups():
                ranks.add(int(n))
    return tuple(sorted(ranks))


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """GPUs that refuse any process, or a second one."""
    refusals: tuple[tuple[str, str, Strength, str], ...] = (
        (
            "compute_mode",
            "Prohibited",
            "likely",
            "no process may use {} (compute mode Prohibited); a rank would fail",
        ),
        (
            "compute_mode",
            "Exclusive_Process",
            "possible",
            (
                "only one process may use {} (compute mode Exclusive_Process); a rank would fail"
                " where another process, such as a notebook, holds the GPU"
            ),
        ),
        (
            "mig",
            "Enabled",
            "possible",
            (
                "{}: MIG is on; NCCL would refuse two ranks on instances of one GPU, and instances"
                " have neither NVLink nor peer-to-peer access to each other"
            ),
        ),
    )
    for name, value, strength, say in refusals:
        facts = {}
        for gpu, fact in host.gpus(name).items():
            if fact.value == value:
                facts[gpu] = fact
        if facts:
            if name == "compute_mode":
                advice = MODE
            else:
                advice = MIG
            yield Risk(
                say.format(name_gpus(facts)), [*facts.values()], advice, strength, gpus=tuple(facts)
            )


def _advice(case: Case) -> tuple[Advice, ...]:
    """How each rank gets a GPU of its own, in the words of what started them."""
    code = (
        'local = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(local)\n'
        'dist.init_process_group("nccl", device_id=torch.device("cuda", local))'
    )
    # Ray and servers choose the devices of their workers, which have no such variable
    if launcher(case) not in SETS_LOCAL_RANK:
        code = ""
    return (
        Advice(
            "Start no more ranks on a host than it has GPUs, and give each a GPU of its own:"
            f" {options_of(case).device}.",
            code=code,
            command="nvidia-smi -L",
            why="A rank that chooses none uses device 0, and a launcher starts as many as it is"
            " told.",
            check="The busId differs in all INIT lines of a node.",
            risk="None.",
        ),
        Advice(
            "Check what the launcher lets each rank see.",
            command="echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES; nvidia-smi -L",
            why=(
                "Ray and Slurm bind GPUs themselves; then each rank sees one GPU, and its index"
                " is 0."
            ),
            check="Ranks of a node either see all GPUs or one different GPU each.",
            risk="None, it only prints.",
        ),
    )


SETS_LOCAL_RANK = ("", "torchrun", "deepspeed", "kubernetes")
"""Launchers after which a program reads LOCAL_RANK itself; "" where none is known."""
MODE = Advice(
    "Put the GPUs back into the default compute mode.",
    command="sudo nvidia-smi -c DEFAULT",
    why="The other modes refuse all processes, or all but the first.",
    check="`nvidia-smi -q -d COMPUTE` says Default.",
    risk="On a shared machine the mode may keep users apart: ask its administrator.",
)
MIG = Advice(
    "Run one rank per GPU on whole GPUs, or let the administrator switch MIG off.",
    command="nvidia-smi -L; sudo nvidia-smi -mig 0",
    why="MIG instances of a GPU share its bus id, and cannot copy to each other directly.",
    check="`nvidia-smi -L` lists no MIG devices.",
    risk="Switching MIG off needs the GPU idle and ends what runs on its instances.",
)


def experiment(case: Case) -> Experiment:
    """Run the same ranks, each on the GPU of its LOCAL_RANK."""
    return minimal(
        "Do the same ranks work when each takes the GPU of its LOCAL_RANK?",
        {
            ID: "they do: the program chose the GPUs wrongly",
            "rank_exception": "they do: another error of the program",
        },
        {"gpu_hardware_error": "one GPU fails again", "driver_too_old": "they fail too"},
    )


CHECK = Preflight(
    ID,
    reads=("gpu.*.compute_mode",),
    risks=_host_risks,
    fine="The GPUs accept the processes of a job.",
    also=("gpu.*.mig",),
    next=experiment,
)
REMEDIES = (*_advice(Case()), MODE, MIG)
