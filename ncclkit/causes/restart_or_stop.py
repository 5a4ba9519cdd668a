"""Restart a failed job, or stop and repair something first: one table by cause.

The same findings and the same history give the same decision.  It is never stronger than its cause:
what is only possible restarts nothing and stops nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ncclkit.analysis.frames import own_frame, place
from ncclkit.causes.attempts import JobAttempt, attempts_without_progress
from ncclkit.causes.decision import Action, Decision
from ncclkit.causes.network_loss import WITHOUT_MESH
from ncclkit.causes.order import STRENGTHS
from ncclkit.causes.rank_killed import DETACH
from ncclkit.core.case import Case
from ncclkit.core.event_list import first_host
from ncclkit.core.kinds import PythonException, SlurmEvent, StepProgress
from ncclkit.core.model import Event, Finding
from ncclkit.core.text import host_list, plural

if TYPE_CHECKING:
    from ncclkit.causes.diagnosis import Diagnosis

FIRM = STRENGTHS["likely"]
"""How firm a finding must be to decide anything."""
MOST_ATTEMPTS = 3
"""Failed attempts without a step between them, after which nobody restarts unasked."""
KILLED_ONCE = 1
"""The same where nobody knows who killed a rank: it may kill itself, by its memory."""
PREEMPTED = re.compile(r"preempt|nterruption notice", re.IGNORECASE)
"""How schedulers and clouds say that they took the nodes back."""
ENDED_BY_SLURM = ("time_limit", "cancelled", "node_fail")
"""Ends after which Slurm may put a job into the queue again."""
OF_SLURM = re.compile(r"\bslurm|\bsrun: ", re.IGNORECASE)
"""A line of Slurm's own: Ray, PBS and clouds tell of such ends, too."""
OF_SERVICES = (
    *("ConnectionError", "ConnectTimeout", "ReadTimeout", "HTTPError", "MaxRetryError"),
    *("ChunkedEncodingError", "HfHubHTTPError", "EndpointConnectionError", "RemoteDisconnected"),
)
"""Exceptions of clients of services outside the job; a rank's peers raise others."""


@dataclass(frozen=True, slots=True)
class RestartRule:
    """What one cause means for a restart."""

    action: Action
    why: str
    """One clause, which stands behind the cause."""
    least_hosts: int = 0
    """Hosts that the finding must blame for these to be left out of the next start; 0: never."""
    most_attempts: int = MOST_ATTEMPTS
    """Failed attempts without a step between them, after which a person decides."""


SAME_CALLS = "the program makes the same calls again"
SAME_SETTING = "the setting is the same at the next start"
SAME_HOSTS = "the hosts are set up in the same way at the next start"
SAME_LIBRARY = "the same libraries are loaded at the next start"
ENDS = 2
"""Hosts at the ends of a path: of one alone nobody knows that it is the one that fails."""
SLOWS = "it slows a job and ends none, so a restart gains nothing"

RULES: Mapping[str, RestartRule] = {
    "bad_env_value": RestartRule(
        "fix_setup",
        SAME_SETTING,
    ),
    "clock_skew": RestartRule(
        "fix_setup",
        SAME_HOSTS,
    ),
    "concurrent_comms": RestartRule(
        "fix_program",
        SAME_CALLS,
    ),
    "cpu_binding": RestartRule(
        "fix_setup",
        SLOWS,
    ),
    "cpu_contention": RestartRule(
        "fix_setup",
        "as many processes share the same cores at the next start",
    ),
    "cuda_error": RestartRule(
        "fix_program",
        "the kernel of the program fails again on the same data",
    ),
    "cumem_container": RestartRule(
        "fix_setup",
        SAME_SETTING,
    ),
    "disk_or_io": RestartRule(
        "fix_setup",
        "the next start reads from and writes to the same storage",
    ),
    "driver_too_old": RestartRule(
        "fix_setup",
        SAME_HOSTS,
    ),
    "duplicate_gpu": RestartRule(
        "fix_program",
        "the ranks choose the same GPUs again",
    ),
    "fd_limit": RestartRule(
        "fix_setup",
        "the limit is the same at the next start",
    ),
    "fork_or_init_order": RestartRule(
        "fix_program",
        SAME_CALLS,
    ),
    "framework_bug": RestartRule(
        "fix_setup",
        SAME_LIBRARY,
    ),
    "gil_hold": RestartRule(
        "fix_program",
        "the rank enters the same native code again",
    ),
    "gpu_clock_limit": RestartRule(
        "fix_setup",
        SLOWS,
    ),
    "gpu_hardware_error": RestartRule(
        "restart",
        "the program is not to blame for a broken GPU",
        least_hosts=1,
    ),
    "gpu_oom": RestartRule(
        "fix_program",
        "the program needs the same GPU memory again",
    ),
    "gpu_shared": RestartRule(
        "fix_setup",
        "the other process has to leave the GPU first",
    ),
    "host_oom": RestartRule(
        "fix_setup",
        "the ranks most likely need the same memory again",
    ),
    "hostname_resolution": RestartRule(
        "fix_setup",
        SAME_HOSTS,
    ),
    "ib_config": RestartRule(
        "fix_setup",
        SAME_SETTING,
    ),
    "ib_link_error": RestartRule(
        "restart",
        "the program is not to blame for a link that fails",
        least_hosts=1,
    ),
    "ib_not_used": RestartRule(
        "fix_setup",
        SLOWS,
    ),
    "ifname_not_found": RestartRule(
        "fix_setup",
        SAME_SETTING,
    ),
    "memlock_limit": RestartRule(
        "fix_setup",
        "the limit is the same at the next start",
    ),
    "nccl_bug": RestartRule(
        "fix_setup",
        SAME_LIBRARY,
    ),
    "net_limit": RestartRule(
        "fix_setup",
        SAME_HOSTS,
    ),
    "net_plugin": RestartRule(
        "fix_setup",
        SAME_LIBRARY,
    ),
    "network_loss": RestartRule(
        "restart",
        "the program is not to blame for a network path that fails",
        least_hosts=ENDS,
    ),
    "nvswitch_fabric": RestartRule(
        "restart",
        "the program is not to blame for an NVSwitch fabric",
        least_hosts=1,
    ),
    "p2p_broken": RestartRule(
        "fix_setup",
        SAME_HOSTS,
    ),
    "port_in_use": RestartRule(
        "fix_setup",
        "the port has to be free first, or another one",
    ),
    "rank_divergence": RestartRule(
        "fix_program",
        SAME_CALLS,
    ),
    "rank_exception": RestartRule(
        "fix_program",
        "the program most likely meets the same error again",
    ),
    "rank_killed": RestartRule(
        "restart",
        "the program is not to blame for a signal from outside",
        most_attempts=KILLED_ONCE,
    ),
    "send_recv_mismatch": RestartRule(
        "fix_program",
        SAME_CALLS,
    ),
    "shape_mismatch": RestartRule(
        "fix_program",
        SAME_CALLS,
    ),
    "shm_too_small": RestartRule(
        "fix_setup",
        "/dev/shm is as small at the next start",
    ),
    "slow_rank": RestartRule(
        "fix_program",
        "what kept the late rank is met again",
    ),
    "slow_transport": RestartRule(
        "fix_setup",
        SLOWS,
    ),
    "stale_lock": RestartRule(
        "fix_setup",
        "the lock file has to go first",
    ),
    "store_unreachable": RestartRule(
        "fix_setup",
        "the address of the store is the same at the next start",
    ),
    "timeout_too_short": RestartRule(
        "fix_program",
        "the program gives its collectives the same time again",
    ),
    "version_mismatch": RestartRule(
        "fix_setup",
        SAME_LIBRARY,
    ),
    "world_size_mismatch": RestartRule(
        "fix_setup",
        "the launcher is told the same numbers again",
    ),
    "wrong_interface": RestartRule(
        "fix_setup",
        SAME_SETTING,
    ),
}
"""Every cause of the catalogue → what it means for a restart."""
NOTHING_TO_DECIDE = {
    "healthy": "the job went well",
    "running": "the job is at work",
    "slow": "the job succeeded, and was slow",
    "no_job": "nothing here is of a job",
}
"""Verdict → why there is nothing to restart."""


def decide(found: Diagnosis, case: Case, earlier: Sequence[JobAttempt] = ()) -> Decision:
    """Whether the judged job is started again as it is.

    `earlier` are its attempts before this one, oldest first.
    """
    decided = _decided_by_cause(found, case, earlier)
    if decided.action != "restart":
        return decided
    requeues = _who_requeues(case)
    return replace(
        decided,
        reason=f"{decided.reason}{requeues}",
    )


def requeued_decision(jobs: Sequence[str]) -> Decision:
    """What is left to do where Slurm has already done it."""
    named = ", ".join(jobs)
    return Decision(
        "wait_and_see",
        f"Slurm has put job {named} into the queue again by itself, so nobody has to submit it",
    )


def _who_requeues(case: Case) -> str:
    """Whether Slurm starts the job again by itself, as a clause; empty of other schedulers."""
    is_of_slurm = False
    for event in case.of(SlurmEvent):
        if event.data.what not in ENDED_BY_SLURM:
            continue
        # the answer about a job that has ended: one that is requeued waits, and has none
        if event.data.answer and "JobState=" in event.text:
            return "; Slurm has not requeued it by itself, so submit it again"
        if OF_SLURM.search(event.text):
            is_of_slurm = True
    if is_of_slurm:
        return "; `squeue --me` says whether Slurm has requeued it by itself"
    return ""


def _decided_by_cause(found: Diagnosis, case: Case, earlier: Sequence[JobAttempt]) -> Decision:
    """The decision by the first finding, and by the history."""
    if found.verdict in NOTHING_TO_DECIDE:
        return Decision("wait_and_see", NOTHING_TO_DECIDE[found.verdict])
    first = next(iter(found.findings), None)
    if first is None:
        return Decision("wait_and_see", "no known cause explains its end")
    if found.verdict != "found" or STRENGTHS[first.strength] < FIRM:
        return Decision("wait_and_see", f"{first.cause} is only suspected")
    rule = _rule_of(first, case)
    decided = Decision(rule.action, rule.why)
    if rule.action != "restart":
        return decided
    rival = _firm_rival(found.findings)
    if rival is not None:
        both = f"{first.cause} and {rival.cause} are both {rival.strength}"
        return Decision("wait_and_see", f"{both}, and the second one would come again")
    now = attempt_of(found, case)
    # a scheduler drains a node for a reason, which its other nodes do not have
    drained = [event.host for event in case.of(SlurmEvent, what="node_drained")]
    if rule.least_hosts and not now.blamed and not drained:
        decided = replace(decided, reason=f"{decided.reason}; no line names the host to leave out")
    return _by_history(decided, rule, now, earlier, drained)


def attempt_of(found: Diagnosis, case: Case) -> JobAttempt:
    """What a history keeps of this attempt, but for its decision."""
    first = next(iter(found.findings), None)
    if first is None or STRENGTHS[first.strength] < FIRM:
        return JobAttempt("", step=_last_step(case))
    rule = _rule_of(first, case)
    blamed = _blamed_hosts(first, case)
    # of one end of a path nobody knows that it is the one that fails
    if not rule.least_hosts or len(blamed) < rule.least_hosts:
        blamed = ()
    return JobAttempt(first.cause, blamed, step=_last_step(case))


def _rule_of(finding: Finding, case: Case) -> RestartRule:
    """The rule of a cause, or of the special case of it that this finding is."""
    special: Mapping[str, Callable[[Finding, Case], RestartRule | None]] = {
        "rank_killed": _rule_of_killed,
        "network_loss": _rule_of_network,
        "rank_exception": _rule_of_exception,
    }
    reader = special.get(finding.cause)
    rule = None
    if reader is not None:
        rule = reader(finding, case)
    return rule or RULES[finding.cause]


def _rule_of_killed(finding: Finding, case: Case) -> RestartRule | None:
    """Who ended the ranks says whether they may start again."""
    lines = _events(finding)
    by_scheduler = [event for event in lines if isinstance(event.data, SlurmEvent)]
    ends = {event.data.what for event in by_scheduler}
    if "node_fail" in ends:
        return RestartRule("restart", "the scheduler lost a node", least_hosts=1)
    if any(PREEMPTED.search(event.text) for event in by_scheduler):
        return RestartRule("restart", "the scheduler took its nodes for another job")
    if "time_limit" in ends and case.of(StepProgress):
        return RestartRule(
            "restart",
            "the job was at work until the scheduler's time limit; it needs a checkpoint to go on"
            " from, or more time (-t)",
        )
    if "time_limit" in ends:
        return RestartRule("wait_and_see", "no step is seen before the scheduler's time limit")
    if "cancelled" in ends:
        return RestartRule("wait_and_see", "whoever cancelled the job decides that")
    if DETACH in finding.advice:
        return RestartRule("fix_setup", "the next terminal that is closed ends it again")
    # a launcher gets SIGTERM from an impatient user as well as from a node that is drained
    if any(isinstance(event.data, PythonException) for event in lines):
        return RestartRule("wait_and_see", "nothing says who stopped the launcher")
    return None


def _rule_of_network(finding: Finding, case: Case) -> RestartRule | None:
    """A proxy between the ranks is a setting, not a link that fails."""
    if WITHOUT_MESH in finding.advice:
        return RestartRule("fix_setup", SAME_SETTING)
    return None


def _rule_of_exception(finding: Finding, case: Case) -> RestartRule | None:
    """A service outside the job may answer again; what the program raises comes again."""
    for event in _events(finding):
        data = event.data
        if isinstance(data, PythonException) and _short_type(data) in OF_SERVICES:
            return RestartRule("wait_and_see", "a service outside the job may answer again or not")
    for event in _events(finding):
        where = ""
        if isinstance(event.data, PythonException):
            frame = own_frame(
                event.data.frames or (),
                innermost_first=False,
            )
            where = place(frame)
        if where:
            raised = _short_type(event.data)
            return RestartRule(
                "fix_program",
                f"{raised} at {where} most likely comes again",
            )
    return None


def _short_type(data: PythonException) -> str:
    return str(data.type or "").rpartition(".")[2]


def _events(finding: Finding) -> list[Event]:
    return [piece for piece in finding.evidence if isinstance(piece, Event)]


def _firm_rival(findings: Iterable[Finding]) -> Finding | None:
    """Another root, as firm as the first one, which a restart would meet again."""
    first, *others = findings
    for other in others:
        stops = RULES[other.cause].action != "restart"
        if stops and STRENGTHS[other.strength] >= STRENGTHS[first.strength]:
            return other
    return None


def _blamed_hosts(finding: Finding, case: Case) -> tuple[str, ...]:
    """Hosts that the finding names, by themselves or by their ranks."""
    hosts = set(map(str, finding.culprits.get("hosts", ())))
    for rank in finding.culprits.get("ranks", ()):
        hosts.add(first_host(case.on(rank)))
    hosts.discard("")
    return tuple(sorted(hosts))


def _last_step(case: Case) -> int | None:
    steps = []
    for event in case.of(StepProgress):
        if event.data.step is not None:
            steps.append(event.data.step)
    return max(steps, default=None)


def _by_history(
    decided: Decision,
    rule: RestartRule,
    now: JobAttempt,
    earlier: Sequence[JobAttempt],
    drained: Iterable[str],
) -> Decision:
    """The decision to restart, in the light of earlier attempts.

    Where the same root came back on other hosts, or attempts win no step, a person decides.
    """
    stuck = attempts_without_progress(earlier, now.step)
    for attempt in stuck:
        if attempt.cause == now.cause and _are_others(attempt.blamed, now.blamed):
            places = f"on {host_list(attempt.blamed)}, then on {host_list(now.blamed)}"
            return Decision(
                "wait_and_see", f"{now.cause} came {places}, and no step was won between"
            )
    if len(stuck) >= rule.most_attempts:
        tried = plural(len(stuck), "attempt")
        return Decision("wait_and_see", f"{tried} before this one won no step; {decided.reason}")
    # what was left out once stays out: nobody has repaired it meanwhile, as far as we know
    before: set[str] = set()
    for attempt in earlier:
        before.update(attempt.exclude)
    exclude = tuple(sorted({*before, *now.blamed, *drained}))
    reason = decided.reason
    last = next(reversed(earlier), None)
    if last is not None and last not in stuck:
        reason += f"; since the last attempt it came from step {last.step} to {now.step}"
    return replace(decided, reason=reason, exclude=exclude)


def _are_others(before: Sequence[str], now: Sequence[str]) -> bool:
    """Whether both name hosts, and none in common."""
    return bool(before) and bool(now) and not set(before) & set(now)
