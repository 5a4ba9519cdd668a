"""The cluster as Slurm's own commands tell it.

They tell partitions, accounts, own jobs, and whether this is a login node.  Each command has a
deadline; one that hangs, fails or is not allowed is a fact without a value, which says why.
"""

from __future__ import annotations

import getpass
import glob
import os
import re
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from ncclkit.agent.facts.machine import Hung, Machine, Unread
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, NcclkitError
from ncclkit.core.text import plural, some
from ncclkit.evidence.sources.slurm_end import UNKNOWN_ID as UNKNOWN_ID
from ncclkit.evidence.sources.slurm_end import fields as fields
from ncclkit.evidence.sources.slurm_end import is_silence
from ncclkit.live import node_kinds, partition_choice, slurm_words

DEADLINE = 5.0
"""Seconds for one command of Slurm.

A controller that is down answers none.
"""
JOB_ID = re.compile(r"[1-9][0-9]{0,19}")
"""An id of a job; ``scontrol show job 0`` would show all jobs."""
NUMBER = re.compile(r"[0-9]{1,9}")
ADDRESS = re.compile(r"[A-Za-z0-9_:][\w.:%-]*", re.ASCII)
"""A node's name, or its address: nothing that a command would take for an option."""
UNWRITABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters (a newline would end a line ``#SBATCH``), and bytes that are not UTF-8."""


def checked_id(said: str, where: str) -> str:
    """The id of a job, fit for a command.

    Raises NcclkitError, with `where` it stands, for any other text.
    """
    if not JOB_ID.fullmatch(said):
        strange = f"{where} holds {said[:60]!r} in place of a Slurm job id"
        raise NcclkitError(f"{strange}; nothing was asked or done with it.")
    return said


def number_in(said: str, otherwise: int = 0) -> int:
    """The number that Slurm wrote; `otherwise` where it wrote anything else."""
    if NUMBER.fullmatch(said):
        return int(said)
    return otherwise


def quoted(value: str, what: str) -> str:
    """A value of a line ``#SBATCH`` as Slurm's parser reads it back.

    Raises NcclkitError, about `what`, for a value that has no such form.
    """
    if UNWRITABLE.search(value):
        signs = "a line break, another control character or a byte that is not UTF-8"
        why = f"has {signs}, which no #SBATCH line can hold"
        raise NcclkitError(f"{what} {value!r} {why}; name another.")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def file_pattern(path: Path) -> str:
    """The option value by which Slurm opens just this file.

    Raises NcclkitError where there is none.
    """
    # Slurm drops a backslash from names of files, whatever stands before it
    if "\\" in str(path):
        why = "has a backslash, which Slurm takes out of the names of files"
        raise NcclkitError(f"The folder of {str(path)!r} {why}; name another.")
    return str(path).replace("%", "%%")


REFUSING_LINES = 3
"""Lines of a refusal that are passed on."""


class RefusalError(NcclkitError):
    """A command of Slurm failed, and said why."""

    def __init__(self, message: str, printed: str) -> None:
        super().__init__(message)
        self.printed = printed
        """All that it printed."""

    def sentences(self, command: str) -> list[str]:
        """The lines that the command marked as errors, without the mark; the last ones of many."""
        mark = re.compile(rf"{command}: (?:error|fatal): (?P<text>.*)")
        found = []
        for line in self.printed.splitlines():
            marked = mark.match(line.strip())
            if marked and marked["text"].strip():
                found.append(marked["text"].strip().rstrip(".")[:300])
        if not found:
            return []
        return [f"{command}: {found[-REFUSING_LINES:][0]}", *found[-REFUSING_LINES:][1:]]


def ask_slurm(*words: str, deadline: float | None = None) -> str:
    """What a command of Slurm prints.

    Raises NcclkitError, which says in one sentence that it is missing, failed or hung.
    """
    if "\0" in "".join(words):
        raise NcclkitError(f"{words[0]} cannot be asked about a name that holds a zero byte.")
    try:
        answer = Machine().run([*words], deadline or DEADLINE)
    except Unread as why:
        raise NcclkitError(f"{why}.") from why
    if answer.code:
        printed = answer.err or answer.out
        raise RefusalError(f"{words[0]}: {last_words(printed)}.", printed)
    return answer.out


def last_words(printed: str) -> str:
    """The line that names a node which could not start, else the last one.

    It is without the name of Slurm's command.
    """
    said = [line.strip() for line in printed.splitlines() if line.strip()]
    node = [
        line for line in said if line.startswith("srun: error: ") and " failed on node " in line
    ]
    if said:
        return re.sub(r"^\w+: (?:(?:error|fatal): )?", "", [*said, *node][-1]).rstrip(".")[:300]
    return "no output"


def is_inside_job() -> bool:
    """Whether this process belongs to a job of Slurm.

    It may be a shell of salloc, a batch script, or a task.
    """
    return bool(os.environ.get("SLURM_JOB_ID"))


def is_login_node() -> bool:
    """Whether this host submits jobs and runs none.

    It has Slurm's commands, no GPU, and we are in no job.  A controller that does not answer in
    time counts as one that is there.
    """
    return not is_inside_job() and _submits(os.environ.get("SLURM_CONF", ""))


@cache
def _submits(conf: str) -> bool:
    if (
        shutil.which("sbatch") is None
        or glob.glob("/dev/nvidia[0-9]*")
        or os.path.exists("/dev/kfd")
    ):
        return False
    try:
        answer = Machine().run(["sinfo", "-h", "-o", "%R"], DEADLINE)
    except Hung:
        return True
    except Unread:
        return False
    # a question that nobody answered is no "no"
    if answer.code and is_silence(answer.err):
        return True
    return answer.code == 0 and bool(answer.out.strip())


def refusal(what: str, verb: str) -> str:
    """Why `what` does not run on a login node, and where it does.

    It is one sentence.
    """
    if verb == "probe":
        notebook = " (in a notebook job='-N 2 -t 10')", " (job='here')"
    else:
        notebook = "", ""
    if verb == "diagnose --check":
        here = ""
    else:
        here = f", `ncclkit {verb} --here`{notebook[1]} on this host"
    return (
        f"This is a login node of a Slurm cluster, so {what} does not run here unasked: `ncclkit"
        f" submit {verb}`{notebook[0]} runs it on nodes{here}"
    )


def read_facts() -> list[Fact]:
    """What Slurm says of this cluster, as facts ``scheduler.…`` of no host.

    It takes at most some seconds.
    """
    readers: dict[str, tuple[str, Callable[[], Any]]] = {
        "scheduler.version": ("sinfo --version", lambda: ask_slurm("sinfo", "--version").strip()),
        "scheduler.partitions": ("sinfo, scontrol show partition", _partitions),
        "scheduler.accounts": ("sacctmgr show assoc", _accounts),
        "scheduler.jobs": ("squeue", _jobs),
    }
    # side by side, as each waits for its deadline where the controller is down
    with ThreadPoolExecutor(len(readers)) as pool:
        asked = {
            name: pool.submit(_read, name, source, read) for name, (source, read) in readers.items()
        }
    here = is_login_node() and socket.gethostname()
    login = Fact("scheduler.login_node", here, source="sbatch, /dev/nvidia*, SLURM_JOB_ID, sinfo")
    return [login, *(found.result() for found in asked.values())]


def _read(name: str, source: str, read: Callable[[], Any]) -> Fact:
    try:
        return Fact(name, read(), source=source)
    except NcclkitError as why:
        return Fact(name, None, source=source, why=str(why).rstrip("."))


def _partitions() -> list[dict[str, Any]]:
    """One row for each partition.

    It tells what its nodes have, how many are idle, and what it allows.
    """
    return partitions(
        ask_slurm("sinfo", "-h", "-o", node_kinds.SINFO_COLUMNS),
        ask_slurm("scontrol", "-o", "show", "partition"),
    )


def partitions(nodes: str, limits: str) -> list[dict[str, Any]]:
    """The rows of partitions.

    They are read from ``sinfo -h -o '%R|%t|%D|%G|%c|%f'`` and ``scontrol -o show partition``.
    """
    rows: dict[str, dict[str, Any]] = {}
    for known in map(fields, limits.splitlines()):
        name = known.get("PartitionName")
        if name:
            general = {
                "name": name,
                "default": known.get("Default") == "YES",
                "state": known.get("State", ""),
            }
            allows = {
                "time_limit": known.get("MaxTime", ""),
                "max_nodes": known.get("MaxNodes", ""),
            }
            who = {
                "accounts": known.get("AllowAccounts", ""),
                "denied_accounts": known.get("DenyAccounts", ""),
                "groups": known.get("AllowGroups", ""),
                "qos": known.get("AllowQos", ""),
            }
            rows[name] = {
                **general,
                "nodes": 0,
                "idle": 0,
                "gpus": 0,
                "model": "",
                "cpus": 0,
                "kinds": [],
                **allows,
                **who,
            }
    for line in nodes.splitlines():
        # a line with fewer columns must not end the reading
        name, state, count, gres, cpus, feats = (*line.split("|"), "", "", "", "", "")[:6]
        if name in rows and NUMBER.fullmatch(count):
            node_kinds.add_nodes(rows[name], state, int(count), gres, cpus, feats)
    return [*rows.values()]


def _accounts() -> list[dict[str, str]]:
    """Accounts that this user may charge, with the QoS of each."""
    columns = ("account", "partition", "qos", "default_qos")
    said = ask_slurm(
        "sacctmgr",
        "-nP",
        "show",
        "assoc",
        f"user={user()}",
        "format=Account,Partition,QOS,DefaultQOS",
    )
    rows = _table(columns, said)
    # an empty table would be drawn as "none", which nobody knows
    if not rows:
        raise NcclkitError(
            f"sacctmgr names no account of {user()}; jobs are charged to the default, if at all."
        )
    return rows


def _jobs() -> list[dict[str, str]]:
    """Own jobs in the queue."""
    columns = ("id", "name", "state", "nodes", "gres", "on", "partition", "reason")
    said = ask_slurm("squeue", "-h", f"--user={user()}", "-o", "%i|%j|%T|%D|%b|%N|%P|%r")
    return _table(columns, said)


OWN_GRES = re.compile(r"\bgres[:/]")
"""What stands before each resource that a job asks for; nodes list theirs without it."""


def job_words(job: Mapping[str, str]) -> str:
    """An own job in the queue: ``train: RUNNING in debug, 1 node (n1) with 2 h100 GPUs``.

    Of GPUs that it asks for in all Slurm shows none here, so nothing is said of none.
    """
    count = number_in(job.get("nodes", ""), 0)
    words = [f"{job.get('name', '')}: {job.get('state', '')}"]
    if job.get("partition"):
        words.append(f" in {job['partition']}")
    if count:
        words.append(f", {plural(count, 'node')}")
    if job.get("on"):
        words.append(f" ({job['on']})")
    kind = node_kinds.node_gpus(OWN_GRES.sub("", job.get("gres", "")).replace("=", ":"))
    if kind.count:
        gpus = {"gpus": kind.count, "model": kind.model, "slices": kind.slices}
        each = ""
        if count > 1:
            each = " each"
        words.append(f" with {node_kinds.gpu_words(gpus)}{each}")
    if job.get("reason", "None") not in ("", "None"):
        words.append(f" ({job['reason']})")
    return "".join(words)


def job_number_words(number: str) -> str:
    """A job's number in the queue: parts of heterogeneous jobs and array tasks by what they are."""
    main, plus, part = number.partition("+")
    if plus:
        return f"{main}, part {part} of a heterogeneous job"
    main, line, task = number.partition("_")
    if line:
        return f"{main}, array task {task.strip('[]')}"
    return number


def _table(columns: Sequence[str], said: str) -> list[dict[str, str]]:
    """A row for each line that is not blank.

    Its cells are parted by ``|``; missing ones are empty.
    """
    empty = [""] * len(columns)
    lines = [line for line in said.splitlines() if line.strip()]
    return [dict(zip(columns, line.split("|") + empty, strict=False)) for line in lines]


def user() -> str:
    """The user's name, as Slurm knows him.

    It is the number where none is known.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a passwd entry
        return str(os.getuid())


class _Kind(TypedDict):
    """Equal nodes of a partition."""

    nodes: int
    idle: int
    gpus: int
    model: str
    slices: bool
    shares: str
    features: list[str]


class _OldPartition(TypedDict):
    """What a row of ``scheduler.partitions`` holds in cases of all versions."""

    name: str
    default: bool
    state: str
    nodes: int
    idle: int
    gpus: int
    model: str
    cpus: int
    time_limit: str
    max_nodes: str
    accounts: str
    qos: str


class _Partition(_OldPartition, total=False):
    """What a row of ``scheduler.partitions`` holds."""

    kinds: list[_Kind]
    denied_accounts: str
    groups: str


class _Account(TypedDict):
    """What of a row of ``scheduler.accounts`` is worked with."""

    account: str
    qos: str


FORMS: dict[str, Any] = {
    "version": str,
    "partitions": list[_Partition],
    "accounts": list[_Account],
    "jobs": list[dict[str, str]],
}


def known(case: Case) -> dict[str, Any]:
    """What the case holds of the scheduler, by names without ``scheduler.``.

    What could not be read is left out.  So is what has another form than ours: anybody may have
    written the case.
    """
    found = {}
    for fact in case.facts_of("scheduler."):
        name = fact.name.partition(".")[2]
        if fact.value is not None and _has_form(fact.value, FORMS.get(name, object)):
            found[name] = fact.value
    return found


def _has_form(value: Any, form: Any) -> bool:
    try:
        msgspec.convert(value, form)
    except msgspec.ValidationError:
        return False
    return True


def choices(case: Case) -> dict[str, list[str]]:
    """Option of a job → the values that this user may choose from.

    They are told as far as the case knows them.
    """
    facts = known(case)
    accounts = facts.get("accounts", [])
    qos: list[str] = []
    for row in accounts:
        qos += filter(None, row["qos"].split(","))
    partitions = facts.get("partitions", [])
    return {
        "partition": [row["name"] for row in partitions],
        "constraint": node_kinds.features_of(partitions),
        "gpu_type": node_kinds.types_of(partitions),
        "account": [*dict.fromkeys(row["account"] for row in accounts)],
        "qos": [*dict.fromkeys(qos)],
    }


def partition(rows: Sequence[Mapping[str, Any]], name: str = "") -> Mapping[str, Any]:
    """The partition `name` in these rows, or the default one.

    It is empty where nothing is known of it.
    """
    return next((row for row in rows if (row["name"] == name if name else row["default"])), {})


def hint_values(case: Case, name: str = "") -> dict[str, str]:
    """What a hint on a refusal may name: nodes, partitions, accounts, QoS and limits.

    Where the case does not know it, it is the command that tells it.
    """
    options = choices(case)
    rows = known(case).get("partitions", [])
    values = dict(slurm_words.GENERAL)
    if rows:
        values["partitions"] = partition_choice.partitions_in_words(rows, options["account"])
    if options["account"]:
        values["accounts"] = f"yours: {some(options['account'])}"
    if options["qos"]:
        values["qos"] = f"yours: {some(options['qos'])}"
    row = partition(rows, name)
    if row and options["account"]:
        values["account_or_partition"] = partition_choice.account_or_partition(
            row, rows, options["account"]
        )
    if row:
        has = [node_kinds.mixed_words(row, with_idle=False), node_kinds.constraint_words(row)]
        values["nodes"] = f"partition {row['name']} has {', '.join(filter(None, has))}"
        nodes = f"{row['max_nodes']} nodes"
        values["limits"] = f"partition {row['name']} allows {nodes} and {row['time_limit']}"
    return values


def partition_words(row: Mapping[str, Any]) -> str:
    """A partition in words.

    They are idle nodes, GPUs, the longest time, and which accounts it is for.
    """
    words = [
        f"{row['idle']} of {plural(row['nodes'], 'node')} idle",
        gpus_of_partition(row),
        f"Slurm's time limit {row['time_limit']}",
    ]
    words += [node_kinds.constraint_words(row)] if node_kinds.constraint_words(row) else []
    words += [f"for {row['accounts']}"] if row["accounts"] not in ("", "ALL") else []
    words += [row["state"]] if row["state"] != "UP" else []
    return ", ".join(words + ["the default"] * bool(row["default"]))


def gpus_of_partition(row: Mapping[str, Any]) -> str:
    """The GPUs of its nodes; kinds of nodes one by one where the partition mixes them."""
    kinds = node_kinds.kinds_to_ask_for(row)
    if len(kinds) > 1:
        return node_kinds.mixed_words(row)
    if kinds:
        words = node_kinds.gpu_words(kinds[0])
    else:
        words = node_kinds.gpu_words(row)
    if words == "no GPUs":
        return words
    return f"{words} a node"


def scheduler_sentence(case: Case) -> str:
    """Where this is and what will run where, in one sentence."""
    if is_inside_job():
        count = number_in(os.environ.get("SLURM_JOB_NUM_NODES", ""), 1)
        number = os.environ["SLURM_JOB_ID"]
        return f"Inside job {number} of Slurm: tests run on its {plural(count, 'node')}"
    if not is_login_node():
        return "Tests run on this host, as it is not the login node of a cluster"
    rows = known(case).get("partitions", [])
    most = max((row["gpus"] for row in rows), default=0)
    idle = max((row["idle"] for row in rows), default=0)
    gpus = "no GPUs"
    if most:
        gpus = f"up to {plural(most, 'GPU')} a node"
    # partitions share nodes, so the idle ones of all cannot be added up
    idle_words = f"{plural(idle, 'node')} idle"
    if len(rows) > 1:
        idle_words = f"up to {idle_words} in one of them"
    size = f"{plural(len(rows), 'partition')}, {gpus}, {idle_words}"
    return (
        f"This is a login node of a Slurm cluster ({size if rows else 'Slurm does not answer'}):"
        " only reading runs here unasked"
    )
