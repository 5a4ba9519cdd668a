"""A known defect of this NCCL or PyTorch version

What you see
    A failure that follows the version: it came with an upgrade, or goes away with one, and matches an entry of the
    release notes.

Why it happens
    NCCL is a large program on many kinds of hardware; some releases hang, crash or read a table wrongly in rare
    set-ups.  PyTorch bundles one version per release, so upgrading one brings the other.  Most failures that
    look like a defect of NCCL are something else, so the symptom *and* the version must fit.

How to be sure
    The version is in the affected range *and* the symptom fits; the next release, all else equal, works.

What to do
    Upgrade to the version that has the repair; the advice below names it with its source.  Do not upgrade on
    suspicion: a new version changes a hundred things at once.

Read more
    NCCL release notes; github.com/NVIDIA/nccl issues.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ncclkit.case import Case
from ncclkit.causes._experiments import minimal
from ncclkit.causes._frames import inside
from ncclkit.causes._words import matching, messages, name_hosts, otherwise, pick, ranks_in
from ncclkit.model import Advice, Event, Experiment, Finding, Strength, found

ID = "nccl_bug"
explains = ("ib_config", "c10d.timeout", "c10d.error", "nccl.trace", "rank_exception", "slow_rank")


@dataclass(frozen=True, slots=True)
class Defect:
    """One known defect: where it shows, since when, until when, and who says so."""

    fragments: tuple[str, ...]
    what: str
    since: tuple[int, ...]
    """First version known to be affected."""
    fixed: tuple[int, ...] | None
    """First version known to have the repair; None = none is known."""
    instead: str
    source: str
    alone: bool = False
    """True when the message belongs to this defect only, so that no version is needed."""


DEFECTS = (
    Defect(
        ("ncclIbRoceGetVersionNum",),
        "NCCL stops at an empty entry of the RoCE address table of a container",
        (2, 21),
        (2, 26),
        "set NCCL_IB_GID_INDEX to the RoCE v2 entry",
        "NVIDIA/nccl issue 1573",
        alone=True,
    ),
    Defect(
        ("socketProgress: Connection closed by remote peer", "wrong magic"),
        "a foreign connection (a port scanner) to the bootstrap port stops the job",
        (2, 18),
        (2, 27, 3),
        "keep scanners off the compute network",
        "NVIDIA/nccl issue 1612",
    ),
    Defect(
        ("ncclLaunchKernelBefore_NoUncapturedCuda",),
        "kernel launches under CUDA graphs wait for ever",
        (2, 20),
        None,
        "run without CUDA graphs or with the NCCL of another PyTorch release",
        "huggingface/text-generation-inference pull request 2099",
        alone=True,
    ),
    Defect(
        ("'unused' request",),
        "the resiliency path of InfiniBand loses a completion and hangs",
        (2, 29),
        None,
        "switch the NCCL_IB_RESILIENCY options off",
        "NVIDIA/nccl issue 2334",
    ),
)
"""Data with sources; a version outside of the range clears the entry."""


def diagnose(case: Case) -> Finding:
    """A symptom of the list on a version of its range."""
    versions = [*case.of("nccl.version"), *[e for e in case.of("c10d.error") if e.data.get("nccl_version")]]
    known = [number for e in versions if (number := _number(e))]
    pool = [*messages(case), *case.of("nccl.info")]
    stacks = [*case.of("stack"), *case.of("c10d.stack")]
    for defect in DEFECTS:
        lines = matching(pool, *defect.fragments)
        lines += [event for event in stacks if inside(event, *defect.fragments)]
        affected = [n for n in known if defect.since <= n and not (defect.fixed and n >= defect.fixed)]
        if lines and (affected or (defect.alone and not known)) and not (not defect.alone and _ordinary(case)):
            return replace(_tell(defect, lines, versions, affected), next=experiment(case))
    return otherwise(
        ID, versions, "No known defect of this version fits what is seen.", "the NCCL version (NCCL_DEBUG=VERSION)"
    )


def _number(event: Event) -> tuple[int, ...]:
    text = str(event.data.get("version") or event.data.get("nccl_version") or "")
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _ordinary(case: Case) -> bool:
    """True when a peer's death explains a closed connection without any defect."""
    return any(
        case.of(kind)
        for kind in ("cuda.oom", "cuda.error", "elastic.exit", "kernel.oom", "gloo.closed", "c10d.timeout")
    )


def _tell(defect: Defect, lines: list[Event], versions: list[Event], affected: list[tuple[int, ...]]) -> Finding:
    has = f" (this job has {'.'.join(map(str, affected[0]))})" if affected else ""
    fixed = ".".join(map(str, defect.fixed or ()))
    repaired = f"it is repaired in NCCL {fixed}" if fixed else "no repaired version is known here"
    strength: Strength = "likely" if defect.alone else "possible"
    upgrade = f"Upgrade NCCL to {fixed} or newer; until then" if fixed else "To get around it,"
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
    """The same NCCL without the program."""
    return minimal(
        "Does a plain all_reduce fail too, on the same ranks with the same NCCL?",
        {"framework_bug": "it works: the framework is at fault", "rank_exception": "it works: the program is at fault"},
        {ID: "it fails in the same way", "p2p_broken": "it fails in the same way, unless NCCL_P2P_DISABLE=1"},
    )
