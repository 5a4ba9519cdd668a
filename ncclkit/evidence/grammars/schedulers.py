"""The grammar of schedulers beside Slurm that end a job: PBS, LSF, Grid Engine, Kubernetes, clouds."""

from __future__ import annotations

from ncclkit.evidence.grammars.grammar import Rule, rule

ENDS = (
    # =>> PBS: job killed: walltime 86429 exceeded limit 86400      =>> PBS: job killed: mem 99kb exceeded limit 9kb
    ("time_limit", "PBS: job killed", r"PBS: job killed: walltime"),
    ("oom", "PBS: job killed", r"PBS: job killed: (?:mem|vmem|pmem)"),
    # TERM_RUNLIMIT: job killed after reaching LSF run time limit.      TERM_MEMLIMIT: job killed after reaching …
    # TERM_OWNER: job killed by owner.      TERM_PREEMPT: job killed after preemption.
    ("time_limit", "TERM_RUNLIMIT", r"TERM_RUNLIMIT: job killed"),
    ("oom", "TERM_MEMLIMIT", r"TERM_MEMLIMIT: job killed"),
    ("cancelled", "TERM_OWNER", r"TERM_OWNER: job killed"),
    ("cancelled", "TERM_PREEMPT", r"TERM_PREEMPT: job killed"),
    # job 4711 exceeded hard wallclock time - initiate terminate method
    ("time_limit", "hard wallclock time", r"exceeded hard wallclock time"),
    # Preempted by ml/other-job on node gpu-3       Job was active longer than specified deadline
    ("cancelled", "Preempted by ", r"\bPreempted by \S"),
    ("time_limit", "specified deadline", r"was active longer than specified deadline"),
    # Spot Instance interruption notice: … will be terminated at …      instance was preempted
    ("cancelled", "nterruption notice", r"[Ii]nstance (?:.{0,40} )?[Ii]nterruption notice"),
    ("cancelled", "as preempted", r"(?:[Ii]nstance|VM|[Nn]ode)\b.{0,60} was preempted"),
)

RULES: tuple[Rule, ...] = tuple(
    rule("slurm.event", anchor, pattern, what=what, signal=9 if what == "oom" else 15) for what, anchor, pattern in ENDS
)
