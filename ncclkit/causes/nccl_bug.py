"""A known defect of this NCCL or PyTorch version

What you see
    A failure that follows the version: it came with an upgrade, or goes away with one, all else
    equal, or matches an entry of the release notes.

Why it happens
    NCCL is a large program on many kinds of hardware; some releases hang, crash or read a table
    wrongly in rare set-ups.  PyTorch bundles one version per release, so upgrading one brings the
    other.  Most failures that look like a defect of NCCL are something else, so both the symptom
    and the version must fit.

How to be sure
    The version is in the affected range, and the symptom fits; the next release, all else equal,
    works.

What to do
    Upgrade to the version that has the fix; where a known defect fits, the advice names it with its
    source.  Do not upgrade on suspicion: a new version changes a hundred things at once.

Read more
    NCCL release notes; github.com/NVIDIA/nccl issues.
"""

from __future__ import annotations

from dataclasses import replace

from ncclkit.analysis.frames import inside
from ncclkit.analysis.nccl_release import version_in, version_lines
from ncclkit.analysis.outcome import outcome
from ncclkit.analysis.picks import (
    failed,
    first_finding,
    matching,
    messages,
    name_hosts,
    otherwise,
    pick,
    ranks_in,
    who_of,
    without,
)
from ncclkit.analysis.rank_states import all_waiting, crashes, rank_states
from ncclkit.analysis.wait_kinds import GPU
from ncclkit.analysis.waits import positions_of_case, waiting_time_of_case
from ncclkit.causes._compatibility import Defect, defects
from ncclkit.causes._experiments import experiment_of, minimal, over_gloo, unasked
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    C10dError,
    FlightLate,
    KernelSegfault,
    NcclWarn,
    RehearsalVerdict,
    Stack,
    SystemFault,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found

ID = "nccl_bug"
explains = ("ib_config", "c10d.timeout", "c10d.error", "nccl.trace", "rank_exception", "slow_rank")


def diagnose(case: Case) -> Finding:
    """Found by a known defect of the version, or where NCCL itself or what is below it failed."""
    return first_finding(
        case, _known_defect, _crash_in_nccl, _stall_below_program, _failed_check
    ) or otherwise(
        ID,
        version_lines(case),
        "No known defect of this version fits the evidence.",
        "the NCCL version (NCCL_DEBUG=VERSION)",
    )


def _known_defect(case: Case) -> Finding | None:
    """A defect of the table: its symptom is there, and the version is of its range."""
    versions = version_lines(case)
    known = []
    for event in versions:
        number = version_in(event)
        if number:
            known.append(number)
    pool = [*messages(case), *case.of("nccl.info", "c10d.monitor")]
    stacks = case.of("stack", "c10d.stack")
    for defect in defects():
        lines = []
        for e in matching(pool, *defect.fragments):
            if _of_files(e, defect.files):
                lines.append(e)
        lines += [event for event in stacks if inside(event, *defect.fragments)]
        affected = []
        for number in known:
            fixed = defect.fixed is not None and number >= defect.fixed
            if defect.since <= number and not fixed:
                affected.append(number)
        # most failures that look like a defect are something else: symptom and version must fit,
        # unless the message is of this defect alone and no version is known that speaks against it
        fits = affected or (defect.alone and not known)
        other_reason = not defect.alone and _explained_by_death(case)
        if lines and fits and not other_reason and not _did_no_harm(case, lines):
            return replace(_finding(defect, lines, versions, affected), next=experiment(case))
    return None


def _did_no_harm(case: Case, lines: list[Event]) -> bool:
    """Whether NCCL only mentions it and the job was seen to work all the same."""
    only_mentioned = all(event.kind == "nccl.info" for event in lines)
    how = outcome(case)
    return only_mentioned and bool(how.success or how.work) and not failed(case)


def _of_files(event: Event, files: tuple[str, ...]) -> bool:
    """Whether a message comes from one of these source files of NCCL.

    It may come from any where none is asked for.
    """
    return not files or any(file in event.text for file in files)


def _crash_in_nccl(case: Case) -> Finding | None:
    """A process crashed inside NCCL's library, or below it."""
    died = crashes(case) or case.of(KernelSegfault)
    # a crash alone may be anybody's: it takes a frame, or the kernel's word, in libnccl
    frames: list[Event] = case.of(SystemFault, what="nccl_frame")
    frames += [e for e in case.of(KernelSegfault) if "libnccl.so" in str(e.data.library)]
    for event in case.of(Stack):
        if any("libnccl.so" in str(f.get("file")) for f in event.data.frames[:2]):
            frames.append(event)
    if not died or not frames:
        return None
    who = f"{who_of(died, frames[0].host)}"
    say = f"{who} crashed inside NCCL's library, not in the program."
    why = pick(frames[:2], died, limit=5)
    return found(
        ID, "likely", say, why, ranks=ranks_in(died), advice=(SIMPLER,), next=experiment(case)
    )


def _failed_check(case: Case) -> Finding | None:
    """NCCL reports that one of its own checks failed, and no earlier line says why."""
    lines = []
    for event in case.of(C10dError):
        if "internal error" in str(event.data.nccl_error):
            lines.append(event)
    # with NCCL's last error the reason is said
    lines = [e for e in lines if not e.data.last_error] or matching(
        case.of(NcclWarn), "Internal error:"
    )
    # an earlier warning, or an error of the program, explains a failed check better
    if not lines or without(case.of(NcclWarn), lines) or rank_states(case).raised:
        return None
    say = "A check inside NCCL failed, and this log does not say why; NCCL_DEBUG=WARN would."
    return found(
        ID, "possible", say, pick(lines, limit=3), advice=(SIMPLER,), next=experiment(case)
    )


def _stall_below_program(case: Case) -> Finding | None:
    """Every rank has entered the same collective and none completes it.

    The fault is below the program.
    """
    lines = all_waiting(case, rank_states(case))
    # a late rank, a death or the kernel's word says more than that all are inside
    if not lines or rank_states(case).dead or case.of(FlightLate) or case.of("kernel."):
        return None
    # no NCCL has run there
    if case.of(RehearsalVerdict):
        return None
    call = "the same collective"
    if lines[0].data.seq is not None:
        call = f"collective {lines[0].data.seq}"
    say = (
        f"All ranks of the group are inside {call} and none completes it: the fault is below the"
        " program."
    )
    if any(
        stand.waits_for == GPU and stand.kernel is None
        for stand in positions_of_case(case).values()
    ):
        say = (
            f"All ranks of the group have launched {call} and none completes"
            f" it{waiting_time_of_case(case)}: "
        )
        say += (
            "a GPU is in an endless kernel before it, or NCCL is stuck; `ncclkit attach --kernels`"
            " says which."
        )
    return found(
        ID, "possible", say, pick(lines, limit=4), advice=(SIMPLER,), next=experiment(case)
    )


SIMPLER = Advice(
    "Run with NCCL's simplest protocol, then with another release of NCCL, everything else equal.",
    env={"NCCL_PROTO": "Simple"},
    why=(
        "A hang inside one collective that all ranks have launched is caused by NCCL, the links or"
        " a GPU."
    ),
    check="The job runs ten times as long as it took to hang.",
    risk="Small messages take longer.",
)


def _explained_by_death(case: Case) -> bool:
    """True where a peer's death explains a closed connection without any defect."""
    for kind in (
        "cuda.oom",
        "cuda.error",
        "elastic.exit",
        "kernel.oom",
        "gloo.closed",
        "c10d.timeout",
    ):
        if case.of(kind):
            return True
    return False


def _finding(
    defect: Defect, lines: list[Event], versions: list[Event], affected: list[tuple[int, ...]]
) -> Finding:
    has = ""
    if affected:
        has = f" (this job has {'.'.join(map(str, affected[0]))})"
    fixed = ".".join(map(str, defect.fixed or ()))
    repaired = "no version with a fix is known here"
    if fixed:
        repaired = f"it is fixed in NCCL {fixed}"
    strength: Strength = "possible"
    if defect.alone:
        strength = "likely"
    upgrade = "To get around it,"
    if fixed:
        upgrade = f"Upgrade NCCL to {fixed} or newer; until then"
    advice = Advice(
        f"{upgrade} {defect.instead}.",
        command="python -c 'import torch; print(torch.cuda.nccl.version())'",
        why=f"Source: {defect.source}.",
        check="The same small test passes with the change and fails without it.",
        risk="All nodes must change together.",
    )
    return found(
        ID,
        strength,
        f"A known defect fits: {defect.what}; {repaired}{has}.",
        pick(lines, versions, limit=5),
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        advice=(advice,),
    )


def experiment(case: Case) -> Experiment:
    """Run program and NCCL without each other, then with its simplest protocol.

    First the program runs without NCCL, then NCCL without the program.
    """
    gloo = over_gloo(
        case,
        "Does the same job work over gloo, that is, without NCCL and GPUs?",
        {
            ID: "it does: NCCL is at fault",
            "p2p_broken": "it does: the path between the GPUs is at fault",
        },
        {
            "framework_bug": "it fails too: the framework is at fault",
            "rank_exception": "it fails too: the program is",
        },
    )
    plain = minimal(
        "Does a plain all_reduce fail too, on the same ranks with the same NCCL?",
        {
            "framework_bug": "it works: the framework is at fault",
            "rank_exception": "it works: the program is at fault",
        },
        {
            ID: "it fails in the same way",
            "p2p_broken": "it fails in the same way, unless NCCL_P2P_DISABLE=1",
        },
    )
    simple = experiment_of(
        "Does the same job complete with NCCL's simplest protocol and algorithm?",
        {"env": {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"}},
        {
            ID: (
                "works",
                "it does: the fault is in another protocol or algorithm, or in the choice between"
                " them",
            ),
            "framework_bug": (
                "same",
                "it fails as before: the framework does not depend on how NCCL sends",
            ),
            "rank_exception": ("same", "it fails as before: the program raises again"),
        },
    )
    # a job without NCCL has no NCCL protocol
    return unasked(case, *gloo, plain, *([simple] if gloo else []))


REMEDIES = (SIMPLER,)
