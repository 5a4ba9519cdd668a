"""What Slurm's own sentences mean, and what helps: refusals of sbatch, reasons why a job waits.

The texts are those of Slurm 20.02 to 26.05, whole: one word of a sentence, such as "time" in
"Socket timed out", means something else each time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ncclkit.evidence.sources.slurm_end import SILENCE

SILENT = (
    "Slurm's controller does not answer, and nothing is known to be wrong with the job; submit it"
    " again when `scontrol ping` says UP"
)
WRONG_SETUP = "this host and the controller do not fit together; only administrators can mend it"
NO_SUCH_NODES = "no node has what it asks for: {nodes}"
GENERAL: Mapping[str, str] = {
    "partitions": "`sinfo -s` lists the partitions",
    "accounts": "`sacctmgr show assoc user=$USER` lists your accounts",
    "qos": "`sacctmgr show assoc user=$USER` lists your QoS",
    "nodes": "`sinfo -N -o '%N %G %f'` shows what nodes have",
    "limits": "`scontrol show partition` shows what it allows",
    "account_or_partition": "another with -A or -p",
    "job": "JOB",
}
"""What a hint names where nothing is known of this cluster: the command that tells it."""

REFUSALS: Mapping[str, tuple[str, ...]] = {
    SILENT: SILENCE,
    "the controller is asked too much at the moment; submit it again in a minute": (
        "Rate limit exceeded",
    ),
    "the queue is full: submit it again when jobs have ended": (
        "temporarily unable to accept job",
        "Slurm job queue full",
        "MaxJobCount limit reached",
    ),
    "administrators let nobody submit at the moment": (
        "System submissions disabled",
        "Requested operation is presently disabled",
    ),
    WRONG_SETUP: (
        "Incompatible versions of client and server code",
        "Protocol authentication error",
        "Invalid authentication credential",
        "Authentication credential invalid",
        "Authentication credential expired",
        "Failed to connect to authentication agent",
        "Insane message length",
        "Header lengths are longer than data received",
        "Plugin initialization failed",
        "Could not establish a configuration source",
        "Munge encode failed",
    ),
    "the controller does not know this user; administrators add one": (
        "Invalid user id",
        "Invalid group id",
    ),
    "the controller could not keep the job, perhaps as its disk is full; tell administrators": (
        "I/O error writing script/environment to file",
        "Slurm internal error",
    ),
    "name another with -p ({partitions})": (
        "Invalid partition name specified",
        "No partition specified or system default partition",
        "User's group not permitted to use this partition",
        "Required partition not available (inactive or drain)",
        "Partition in DOWN state",
        "Multiple partition job request not supported",
    ),
    "name another account with -A ({accounts})": (
        "Invalid account or account/partition combination specified",
        "Invalid or unknown association",
    ),
    "name another QoS with -q ({qos})": (
        "Invalid qos specification",
        "Invalid QOS specification, relative QOS",
        "Requested account has breached requested QOS usage threshold",
    ),
    "a limit of your account or QoS: ask for less, or wait for your other jobs": (
        "Job violates accounting/QOS policy",
    ),
    "`scontrol show reservation` lists the reservations, and who may use them": (
        "Access denied to requested reservation",
        "Requested reservation is invalid",
        "Requested reservation is in use",
        "Requested reservation not usable now",
    ),
    "Slurm does not let you do this; ask administrators which partition and account are yours": (
        "Access/permission denied",
    ),
    "no node has so many GPUs, or of this type (--gpus-per-node 0 takes any nodes): {nodes}": (
        "Invalid generic resource (gres) specification",
        "Invalid GRES specification (with and without type identification)",
        "Insufficient GRES available in allocation",
        "Invalid Trackable RESource (TRES) specification",
    ),
    "no node has such a feature: name another with -C, or leave it out; {nodes}": (
        "Invalid feature specification",
        "Invalid preferred feature specification",
    ),
    NO_SUCH_NODES: (
        "Requested node configuration is not available",
        "CPU count per node can not be satisfied",
        "More processors requested than permitted",
        "CPU count specification invalid",
        "Memory required by task is not available",
        "Memory specification can not be satisfied",
    ),
    "the partition has not so many nodes: ask for fewer with -N; {nodes}": (
        "Node count specification invalid",
        "Requested nodes not in this partition",
    ),
    "`sinfo -N` lists the nodes": ("Invalid node name specified",),
    "the partition allows fewer nodes or less time for one job: less with -N or -t; {limits}": (
        "Requested partition configuration not available now",
    ),
    "name another time with -t; {limits}": (
        "Requested time limit is invalid (missing or exceeds some limit)",
        "Invalid time-min specification",
        "Job can not start due to maintenance reservation",
    ),
    "one of the sbatch options (--sbatch-options) is not what Slurm takes": (
        "Requested operation not supported on this system",
        "Task distribution specification invalid",
        "Task count specification invalid",
        "Job --batch option is invalid or not a subset of --constraint",
        "Duplicate generic resource (gres) specification",
        "Requested GRES option unsupported by configured SelectType plugin",
        "Cannot request more threads per core than the job allocation",
        "Immediate execution impossible",
        "Job can not start immediately",
        "Invalid time specified",
        "Invalid wckey specification",
        "Invalid license specification",
        "Licenses currently unavailable",
        "Invalid mcs_label specified",
        "Invalid job array specification",
        "Invalid --nice value",
        "Job dependency problem",
        "Circular job dependency",
        "Waiting for burst buffer",
        "Job size specification needs to be provided",
        "Requested topology configuration is not available",
        "Burst Buffer request invalid",
        "Burst Buffer permission denied",
        "Burst Buffer resource limit exceeded",
        "X11 forwarding not available",
        "Requires more ports than can be reserved",
        "Container support is not configured",
        "unrecognized option",
        "invalid option",
        "Invalid --",
        "Invalid numeric value",
    ),
    "nodes that it names are busy, down, drained or reserved: leave them out, or wait": (
        "Required node not available (down, drained or reserved)",
        "Requested nodes are busy",
        "Max powered up nodes reached",
        "Required ports are in use",
        "Required power",
    ),
    "submit it again": (
        "Unable to create job record, try again",
        "Connection forced closed",
        "Unable to process incoming",
        "Unable to process outgoing",
    ),
    "this cluster takes batch jobs in another way; ask administrators": (
        "Only batch jobs are accepted or processed",
        "Connection rejected by handler",
        "Preemption is required but is disabled",
    ),
    "the folder that you are in is gone; submit it from another": (
        "Job cannot be submitted without the current working directory",
    ),
    "a shorter case folder (--case) helps": (
        "Pathname of a file, directory or other parameter too long",
    ),
    "a rule of this cluster refused it; what it says stands before": ("Unspecified error",),
}
"""What to do → what sbatch says."""
AFTER_SENDING = (
    "Socket timed out on send/recv operation",
    "Zero Bytes were transmitted or received",
    "Message receive failure",
    "Connection timed out reading",
)
"""What sbatch says where the controller fell silent after it was sent the job."""
REFUSED_FOR_NOW = (
    "unable to accept job, sleeping and retrying",
    "job queue full, sleeping and retrying",
)
"""What sbatch says of a refusal after which it asks again.

Of a controller that does not respond it says that it is retrying, too.
"""


def may_be_taken(printed: str, was_stopped: bool) -> bool:
    """Whether the controller may have taken a job that sbatch gave no number for.

    An sbatch that `was_stopped` may have sent it, unless it said last that it was refused.
    """
    said = printed.lower()
    if any(text.lower() in said for text in AFTER_SENDING):
        return True
    return was_stopped and not said.rstrip(" .").endswith(REFUSED_FOR_NOW)


def refusal_hint(printed: str, known: Mapping[str, str]) -> str:
    """What to do about a refusal of sbatch; empty where nobody knows.

    `known` is what a hint may name: nodes, partitions, accounts, qos, limits.
    """
    said = printed.lower()
    for line in printed.splitlines():
        # such as QOSMaxWallDurationPerJobLimit, before the sentence that holds all limits
        word = line.rpartition(" ")[2].strip(".")
        waiting = limit_reason(word)
        if waiting:
            return waiting.hint
    for hint, texts in REFUSALS.items():
        if any(text.lower() in said for text in texts):
            return hint.format_map(known)
    return ""


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why a job waits."""

    hint: str
    is_final: bool = False
    """Whether it will not start as it is."""


WAITS = {
    "Priority": "jobs of higher priority go first",
    "Resources": "its nodes are busy",
    "Dependency": "it waits for another job",
    "BeginTime": "Slurm starts it a little later",
    "Prolog": "its nodes are being prepared",
    "Cleaning": "its nodes are still ending an earlier attempt",
    "Licenses": "a licence that it needs is in use",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Nodes_required": "nodes that it needs are down, drained or reserved",
    "Required_nodes": "nodes that it needs are down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "FrontEndDown": "the host that starts its steps is down",
    "PowerNotAvail": "the power that it needs is not there yet",
    "PowerReserved": "the power that it needs is reserved for others",
    "Block": "the nodes that it needs cannot be made ready",
    "Reservation": "its reservation has not begun",
    "SchedDefer": "Slurm looks at it a little later",
    "JobHeldUser": "it is held: `scontrol release {job}` lets it go",
    "JobHeldAdmin": "an administrator holds it, and only administrators can release it: ask them",
    "PartitionDown": "the partition is down until administrators set it up; -p may name another",
    "PartitionInactive": (
        "the partition is inactive until administrators set it up; -p may name another"
    ),
    "JobArrayTaskLimit": "other tasks of its array go first",
    "BurstBufferResources": "its burst buffer is in use",
    "BurstBufferStageIn": "its burst buffer is being filled",
    "FedJobLock": "the clusters of the federation decide who runs it",
    "MaxPoweredUpNodes": "no more nodes may be powered up until others are switched off",
    "MpiPortsBusy": "ports for MPI are in use",
    "NvidiaImexChannels": "all IMEX channels of its NVLink domain are in use",
    # these were requeued, and nothing but a person lets them go: a job that can start is not lost
    "JobHoldMaxRequeue": (
        "Slurm has requeued it as often as it may, and holds it: `scontrol release {job}` lets it"
        " go"
    ),
    "launch_failed_requeued_held": (
        "its node could not start it, and Slurm holds it: `scontrol release {job}` lets it try"
        " again"
    ),
    "job_requeued_in_held_state": (
        "it was requeued, and is held: `scontrol release {job}` lets it go"
    ),
    "JobLaunchFailure": "its node could not start it",
    "launch_failed": "its node could not start it",
    "SystemFailure": "Slurm, or what it runs on, failed: tell administrators",
    "AssociationJobLimit": "your other jobs must end first",
    "AssociationResourceLimit": "jobs of your account must end first",
    "AssociationTimeLimit": "your account has used up its time",
    "QOSJobLimit": "your other jobs must end first",
    "QOSResourceLimit": "jobs of your QoS must end first",
    "QOSTimeLimit": "your QoS has used up its time",
    "QOSUsageThreshold": "your QoS has used up its share; -q may name another",
    "AccountingPolicy": "a limit of your account or QoS: other jobs must end first",
    "Job_is_at_or_exceeds": "a limit of your account or QoS is used up; name another with -A or -q",
    "NonZeroExitCode": "its last attempt failed",
    "RaisedSignal": "its last attempt was ended by a signal",
    "OutOfMemory": "its last attempt was killed for want of memory",
    "TimeLimit": "its last attempt reached Slurm's time limit",
    "InactiveLimit": "its last attempt did nothing for too long",
    "InvalidReason": "Slurm does not say why",
}
"""Why a job waits, by how Slurm's reason begins."""
TAKES_NO_ACCOUNT = "the partition does not take the account of the job; name {account_or_partition}"
ENDLESS = {
    "PartitionNodeLimit": "the partition has not so many nodes for one job; ask for fewer with -N",
    "PartitionConfig": (
        "the partition allows fewer nodes or less time for one job; less with -N or -t"
    ),
    "PartitionTimeLimit": "the partition allows less time; -t asks for less",
    "InvalidAccount": "Slurm does not know this account; name another with -A ({accounts})",
    "InvalidQOS": "Slurm does not know this QoS; name another with -q ({qos})",
    "QOSNotAllowed": "the partition does not take this QoS; name another with -q or -p",
    "AccountNotAllowed": TAKES_NO_ACCOUNT,
    "account_not_": TAKES_NO_ACCOUNT,
    "QOS_not_": "the partition does not take this QoS; name another with -q or -p",
    "group_not_permitted": (
        "the partition does not take your group; name another with -p ({partitions})"
    ),
    "BadConstraints": "no node has what it asks for",
    "Constraints": "no node has what it asks for",
    "MaxMemPerLimit": "it asks for more memory of a node or CPU than the partition allows",
    "DependencyNeverSatisfied": "the job that it waits for has failed",
    "ReservationDeleted": "its reservation is gone",
    "ReservationInvalid": "its reservation is gone",
    "BurstBufferOperation": "its burst buffer failed",
    "DeadLine": "it cannot end before its deadline",
}
"""Part of the reason why a job will not start → what to do.

Some are a word, others a sentence with ``_``.
"""

LIMIT = re.compile(
    r"(?P<owner>Assoc|QOS|)(?P<scope>Grp|Max|Min)(?P<unit>[A-Z][A-Za-z]*?)"
    r"(?P<sum>Run(?:Minutes|Mins)|Minutes|Mins|)(?P<each>PerJob|PerNode|PerUser|PerAccount|)"
    r"(?:Limit|NotSatisfied|)"
)
"""A limit of an account or a QoS, such as ``AssocGrpGRESRunMinutes``.

Slurm has some 170 of them, made of five parts.
"""
OWNERS = {"Assoc": "your account", "QOS": "your QoS", "": "your QoS"}
UNITS = {
    "cpu": "CPUs",
    "mem": "memory",
    "memory": "memory",
    "node": "nodes",
    "gres": "GPUs (or other gres)",
    "license": "licences",
    "bb": "burst buffer",
    "energy": "energy",
    "billing": "billing units",
    "unknown": "resources",
    "wall": "time",
    "wallduration": "time",
    "job": "jobs",
    "jobs": "jobs",
    "submitjob": "jobs",
    "submitjobs": "jobs",
}


def limit_reason(reason: str) -> WaitReason | None:
    """What a limit of an account or QoS means; None where the word names none."""
    match = LIMIT.fullmatch(reason)
    if match is None or match["unit"].lower() not in UNITS:
        return None
    owner = OWNERS[match["owner"]]
    unit = UNITS[match["unit"].lower()]
    if match["scope"] == "Min":
        return WaitReason(f"{owner} is for jobs that ask for more {unit}", True)
    if match["sum"].startswith("Run"):
        whose = "your running jobs"
        if match["scope"] == "Grp":
            whose = f"all running jobs of {owner}"
        return WaitReason(f"{whose} will use up the {unit} minutes: one must end, or -t asks less")
    if match["scope"] == "Grp":
        if match["sum"] or unit == "time":
            spent = unit
            if unit != "time":
                spent = f"{unit.removesuffix('s')} minutes"
            return WaitReason(f"{owner} has used up its {spent}; -A or -q may name another")
        return WaitReason(f"all jobs of {owner} together have the {unit} they may: one must end")
    if match["each"] in ("PerJob", "PerNode"):
        return WaitReason(f"{owner} allows one job less {unit}: ask for less", True)
    return WaitReason(f"you have the {unit} that {owner} allows: another job of yours must end")


def waiting_reason(reason: str, known: Mapping[str, str] = GENERAL) -> WaitReason | None:
    """What a reason of Slurm's means; None where nobody knows, or there is none.

    `known` is what a hint may name, as in `refusal_hint`.
    """
    found = _reason_in_words(reason)
    if found is None:
        return None
    return replace(found, hint=found.hint.format_map({**GENERAL, **known}))


def _reason_in_words(reason: str) -> WaitReason | None:
    # squeue writes as a sentence what scontrol writes with _
    reason = reason.strip().replace(" ", "_")
    if reason in ("", "None"):
        return None
    for sign, hint in ENDLESS.items():
        if sign in reason:
            return WaitReason(hint, True)
    known = limit_reason(reason)
    if known:
        return known
    for sign, hint in WAITS.items():
        if reason.startswith(sign):
            return WaitReason(hint)
    return None
