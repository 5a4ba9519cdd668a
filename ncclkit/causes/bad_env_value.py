"""A variable has a name or value that the library does not know

What you see
    "no algorithm/protocol available", "Error : ... NCCL_ALGO", "No transport found", an INFO line
    that a value was ignored, or nothing at all: the job simply does not do what the variable was
    meant to make it do.

Why it happens
    NCCL and PyTorch read dozens of environment variables and reject few of them.  A misspelt name
    (NCCL_SOCKET_IFNAMES) is never read, an unknown value (NCCL_ALGO=Rng) leaves nothing to choose
    from or falls back silently, and a setting copied from another cluster (NCCL_NET=IB,
    NCCL_IB_HCA=mlx5_4) asks for what this one does not have.

How to be sure
    NCCL_DEBUG=INFO prints "NAME set by environment to VALUE" for each variable that was really
    read; what is missing there was not.

What to do
    Add back only what has a measured reason.

Read more
    NCCL user guide: Environment variables ("should be used for debugging only" is said of many of
    them).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclkit.agent.facts.nccl_variables import ROWS as VARIABLES_BY_NCCL
from ncclkit.agent.facts.nccl_variables import default_in, version_of
from ncclkit.agent.facts.settings import Problem, check_value, integer
from ncclkit.analysis.nccl_release import loaded_nccl
from ncclkit.analysis.outcome import unread_lines
from ncclkit.analysis.consistency_rules import MUST
from ncclkit.analysis.diagnostics import diagnostics, named_ranks
from ncclkit.analysis.outcome import outcome
from ncclkit.analysis.picks import (
    env_of,
    failed,
    family,
    first_finding,
    matching,
    messages,
    name_hosts,
    on,
    pick,
    ranks_in,
)
from ncclkit.causes import _starting
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    NcclAttn,
    NcclDiagnostic,
    NcclEnv,
    NcclIbDevices,
    NcclInfo,
    NcclInit,
    NcclWarn,
    PrintedEnv,
    PythonException,
)
from ncclkit.core.model import Advice, Event, Experiment, Fact, Finding, Strength, found

ID = "bad_env_value"
explains = (
    "c10d.error",
    "nccl.trace",
    "rank_exception",
    "slow_rank",
    "c10d.timeout",
    "ib_not_used",
)
REFUSAL = re.compile(
    r"(?i:value (?:of|for)(?: (?:the )?environment variable)?:?"
    r" ?)[`'\"]?([A-Z][A-Z0-9]*_[A-Z0-9_]+)\b"
)
"""``The value of TORCH_DISTRIBUTED_DEBUG must be …``, ``Invalid value for environment variable:
NAME``."""


LIMITS = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NET")
"""Variables that leave NCCL fewer ways to choose from; with NCCL_*_DISABLE."""


def diagnose(case: Case) -> Finding:
    """Found where a variable has a value that is refused, ignored, or unsatisfiable."""
    looked = case.of(NcclEnv)
    return first_finding(
        case,
        _not_allowed,
        _refused_by_library,
        _nothing_to_choose,
        _without_ib,
        _unread_file,
        _unloaded_library,
        _rejected_value,
        _unlike_on_ranks,
        CHECK.risk,
    ) or CHECK.otherwise(
        case,
        looked or case.of(NcclInit),
        "NCCL knows the values of all settings that it read.",
        "NCCL_DEBUG=INFO, which prints what was read",
    )


def _complaints_of_nccl(case: Case) -> list[Event]:
    texts = ("no algorithm/protocol available", "No transport found for rank")
    said = family(case, "algorithm")
    # without CollNet NCCL takes the usual way, as it says in the same line
    refusals = [event for event in said if "using point-to-point network" not in event.text]
    return refusals + matching(messages(case), *texts)


def _not_allowed(case: Case) -> Finding | None:
    """A variable that NCCL read and whose value the agent's table does not allow."""
    wrong = []
    nccl = loaded_nccl(case)
    for event in case.of(NcclEnv):
        for row in check_value(str(event.data.name), str(event.data.value), nccl):
            if row["kind"] == "value":
                wrong.append((event, row))
    if not wrong:
        return None
    refused, (first, row) = _complaints_of_nccl(case), wrong[0]
    strength: Strength = "likely"
    # of a job that failed the odd value may be innocent: NCCL mostly ignores what it does not know
    if refused or not (failed(case) or _job_hangs(case)):
        strength = "proven"
    say = (
        f"{row['name']}={row['value']}{on(first.host)} is {row['problem']}; {row['hint']}".rstrip(
            "?."
        )
        + "."
    )
    why = pick([event for event, _ in wrong], refused)
    if strength == "proven":
        ask_it = None
    else:
        ask_it = experiment(case)
    return found(ID, strength, say, why, advice=_advice(row["name"]), next=ask_it)


def _job_hangs(case: Case) -> bool:
    """True where the job hangs.

    NCCL then went on with its default, so the odd value is not the reason.
    """
    return bool(_starting.hung_starts(case))


def _refused_by_library(case: Case) -> Finding | None:
    """A library refuses the value of a variable and names it.

    torch does so when it is imported.
    """
    # torch and others raise at import where NCCL would only ignore the value
    for event in messages(case):
        variable = REFUSAL.search(event.text) or _not_a_number(event)
        if variable:
            say = (
                f"A library refuses the value of {variable[1]}{on(event.host)}, so the program does"
                " not start."
            )
            return found(
                ID,
                "proven",
                say,
                pick([event]),
                ranks=ranks_in([event]),
                advice=_advice(variable[1]),
            )
    return None


def _not_a_number(event: Event) -> re.Match[str] | None:
    """A variable that must be a number and is not.

    Kubernetes sets NAME_PORT to ``tcp://...`` for a service NAME.
    """
    if event.kind != "python.exception" or "invalid literal for int()" not in event.text:
        return None
    return re.search(
        r"\b(MASTER_PORT|(?:LOCAL_)?RANK|(?:LOCAL_)?WORLD_SIZE|[A-Z]+_PORT)\b", event.text
    )


def _nothing_to_choose(case: Case) -> Finding | None:
    """The settings leave NCCL nothing to choose from."""
    lines = _complaints_of_nccl(case)
    if not lines:
        return None
    limits = []
    for p, name, value in _settings_of_job(case):
        if limiting(name, value):
            limits.append(p)
    named = ""
    if limits:
        named = f" ({_setting_text(limits[0])})"
    say = f"The NCCL_* settings left NCCL no algorithm or transport to use{named}."
    names = {name for _, name, value in _settings_of_job(case) if limiting(name, value)}
    strength: Strength = "likely"
    # one *_DISABLE alone leaves other transports to choose from
    if names & {*LIMITS} or len(names) > 1:
        strength = "proven"
    advice = _advice(*_limiting_variables(case))
    ask_it = None if limits else experiment(case)
    return found(
        ID, strength, say, pick(lines, limits), ranks=ranks_in(lines), advice=advice, next=ask_it
    )


def limiting(name: str, value: str) -> bool:
    """True for a setting that removes an algorithm, protocol or transport from NCCL's choice."""
    return name in LIMITS or (name.endswith("_DISABLE") and value.strip(". ") not in ("0", ""))


def _without_ib(case: Case) -> Finding | None:
    """InfiniBand is demanded where there is none."""
    wants = []
    for p, name, value in _settings_of_job(case):
        if name == "NCCL_NET" and value.upper() == "IB":
            wants.append(p)
    none = []
    for event in case.of(NcclIbDevices):
        if not event.data.devices:
            none.append(event)
    say = "NCCL_NET=IB asks for InfiniBand, but NCCL found no such device."
    if not wants or not none:
        return None
    return found(
        ID, "likely", say, pick(wants, none), advice=_advice("NCCL_NET"), next=experiment(case)
    )


FILES = ("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE")
"""Variables that name a file of XML."""
VARIABLES = {"graph": FILES[0], "topology": FILES[1]}
"""What NCCL calls such a file → its variable."""
UNREAD = re.compile(
    r"NCCL WARN (?:Could not open XML (?P<what>graph|topology) file (?P<path>[^\s:]+)"
    r"|XML (?:Parse|Open|Mismatch|Import|Graph|Topology)\b)"
)
"""What NCCL's reader of XML says."""
SET_IN = "the job's environment, ~/.nccl.conf and /etc/nccl.conf (or NCCL_CONF_FILE)"
"""Where NCCL takes a variable from."""


def _unread_file(case: Case) -> Finding | None:
    """NCCL cannot read a file that a variable names.

    Without such a variable it reads files of the machine, which nobody has set.
    """
    lines = matching(case.of(NcclWarn), "Could not open XML ", "NCCL WARN XML ")
    said = UNREAD.search(lines[0].text) if lines else None
    if said is None:
        return None
    name = VARIABLES.get(said["what"], "")
    for variable in FILES:
        if not name and env_of(case, variable):
            name = variable
    if not name:
        return None
    own = env_of(case, name)
    say = f"NCCL cannot read the file that {name} names{on(lines[0].host)}."
    advice = (_file_advice(name),)
    return found(ID, "likely", say, pick(lines, own), ranks=ranks_in(lines), advice=advice)


LIBRARIES = re.compile(
    r"\b(VLLM_NCCL_SO_PATH|NCCL_(?:NET|TUNER|PROFILER)_PLUGIN)(?:=| set by environment to )"
    r"['\"]?([^\s'\",;]+)"
)
"""A variable that names a library, and its value."""
UNLOADED = (
    "cannot open shared object file",
    "Failed to load NCCL library",
    "dlopen failed",
    "invalid ELF header",
    "file too short",
)
"""What the loader and its callers say of a library that cannot be loaded."""


def _unloaded_library(case: Case) -> Finding | None:
    """A library that a variable names cannot be loaded.

    Without an error NCCL went on with its own, so the variable did no harm.
    """
    errors = matching([*case.of(NcclWarn), *case.of(PythonException), *messages(case)], *UNLOADED)
    for variable, value, named in _named_libraries(case):
        # the loader completes the short name of a plug-in: libnccl-net-<value>.so
        lines = matching(errors, value.strip("'\""))
        if not lines:
            continue
        say = f"The library that {variable} names cannot be loaded{on(lines[0].host)}: {value}."
        strength: Strength = "likely"
        if "/" in value:
            strength = "proven"
        return found(
            ID,
            strength,
            say,
            pick(lines[:3], [named]),
            ranks=ranks_in(lines),
            hosts=name_hosts(lines),
            advice=(_library_advice(variable),),
        )
    return None


def _named_libraries(case: Case) -> Iterator[tuple[str, str, Event]]:
    """Each variable that the lines show to name a library, with its value and the line."""
    for event in [*case.of(NcclEnv), *case.of(PrintedEnv), *unread_lines(case, "quiet")]:
        said = LIBRARIES.search(event.text)
        if said:
            yield said[1], said[2].rstrip("."), event


def _library_advice(name: str) -> Advice:
    where = f"in {SET_IN}"
    if name.startswith("VLLM"):
        where = "in the job's environment or its image"
    return Advice(
        f"Unset {name}, or let it name a library that exists on every host and in the container and"
        f" fits its architecture; it may be set {where}.",
        change={"unset": [name]},
        command="env | grep -E '_PLUGIN=|_SO_PATH='; ldconfig -p | grep nccl",
        why="The loader is given this name instead of the library that comes with the program.",
        check="The job starts without the variable.",
        risk="None: the program then loads its own library.",
    )


def _file_advice(name: str) -> Advice:
    return Advice(
        f"Unset {name}, or name a file that every host can read and that was written by this"
        f" release of NCCL; it may be set in {SET_IN}.",
        change={"unset": [name]},
        command="cat /etc/nccl.conf ~/.nccl.conf; env | grep -E '^NCCL_.*_FILE='",
        why="NCCL reads the file on each host when a communicator is made.",
        check="The job starts without the variable.",
        risk="None: NCCL looks at the machine itself.",
    )


def _rejected_value(case: Case) -> Finding | None:
    """NCCL says that it rejects a value.

    It then uses its default, or stops.
    """
    infos: list[Event] = [*case.of(NcclInfo, family="bad_value")]
    # where 2.32 says it at a level of its own, it goes on with its default, too
    infos += [e for e in case.of(NcclAttn) if NAMED.search(e.text)]
    lines = infos + [e for e in case.of(NcclWarn) if NAMED.search(e.text)]
    if not lines:
        return None
    name = next(
        (m[1] for e in lines if (m := re.search(r"\b(NCCL_[A-Z][A-Z0-9_]+)\b", e.text))), ""
    )
    # two messages speak of the file, or of the network, without the variable
    name = name or ("NCCL_TOPO_FILE" if matching(lines, "XML topology") else "NCCL_NET")
    say = f"NCCL rejects the value of {name}{on(lines[0].host)}."
    strength: Strength = "likely"
    # an INFO line says that NCCL went on with its default
    if infos and failed(case):
        strength = "possible"
    return found(
        ID,
        strength,
        say,
        pick(lines, env_of(case, name)),
        advice=_advice(name),
        next=experiment(case),
    )


NAMED = re.compile(
    r"[Ii]nvalid (?:value\b.{0,200}for )?NCCL_[A-Z_]+|NCCL_\w+=\S+ is larger than|exceeds the"
    r" maximum.{0,40}NCCL_"
    r"|Error: network \S+ not found|Could not open XML topology file"
)


def _unlike_on_ranks(case: Case) -> Finding | None:
    """NCCL's diagnostics find a variable unlike on ranks that has to be the same on all."""
    if outcome(case).success:
        return None
    lines = []
    for event in diagnostics(case, "environment"):
        if event.data.value and MUST.match(event.data.variable):
            lines.append(event)
    lines = _of_first_unlike_variable(case, lines)
    if not lines:
        return None
    name = lines[0].data.variable
    held = []
    for event in lines:
        ranks = named_ranks(case, event)[1]
        held.append(f"{event.data.value} on {ranks}")
    say = f"{name} is unlike on the ranks, by NCCL's diagnostics: {', '.join(held)}."
    return found(ID, "possible", say, pick(lines), advice=_advice(name), next=experiment(case))


def _of_first_unlike_variable(
    case: Case, lines: list[Event[NcclDiagnostic]]
) -> list[Event[NcclDiagnostic]]:
    """The lines of one variable whose values differ in what NCCL takes."""
    by_name: dict[str, list[Event[NcclDiagnostic]]] = {}
    for event in lines:
        by_name.setdefault(event.data.variable, []).append(event)
    for name, of_name in by_name.items():
        taken = set()
        for event in of_name:
            value = _value_taken(case, name, event.data.value)
            taken.add(value)
        # a single line is of a list that was cut
        if len(taken) > 1 or len(of_name) == 1:
            return of_name
    return []


def _value_taken(case: Case, name: str, value: str) -> str:
    """What NCCL takes: for a variable that is not set its default, where that is known."""
    nccl = loaded_nccl(case)
    if value == "(unset)" and nccl is not None and name in VARIABLES_BY_NCCL:
        default = default_in(name, nccl)
        if default is not None:
            return str(default)
    number = integer(value)
    if number is not None:
        return str(number)
    return value


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Problems that the agent found in the environment.

    Missing interfaces are left to ifname_not_found.
    """
    for row in _problems_of_host(host):
        # an interface that does not exist is ifname_not_found
        if not (row["kind"] == "device" and row["name"].endswith("_SOCKET_IFNAME")):
            say = f"{row['name']}={row['value']}: {row['problem']}; {row['hint']}".rstrip("?.")
            facts = [host.fact(f"env.{row['name']}") or host.fact("env.problems")]
            yield Risk(say, facts, _advice(row["name"])[0], "likely")


def _problems_of_host(host: HostFacts) -> list[Problem]:
    """The rows of the agent, of which values and names are judged again by the NCCL of the host.

    The agent reads variables before it knows which NCCL wins, and says only what is wrong in all.
    """
    rows: list[Problem] = list(host.value("env.problems") or ())
    nccl = version_of(str(host.value("software.nccl") or ""))
    if nccl is None:
        return rows
    kept = []
    for row in rows:
        if row["kind"] != "value" or row["name"] not in VARIABLES_BY_NCCL:
            kept.append(row)
    for name, fact in sorted(host.each("env.*").items()):
        if name in VARIABLES_BY_NCCL and fact.value is not None:
            for row in check_value(name, str(fact.value), nccl):
                if row["kind"] in ("value", "unread"):
                    kept.append(row)
    return kept


def _settings_of_job(case: Case) -> Iterator[tuple[Event | Fact, str, str]]:
    for event in case.of(NcclEnv):
        yield event, str(event.data.name), str(event.data.value)
    for fact in case.facts_of("env."):
        if fact.name != "env.problems" and fact.value is not None:
            yield fact, fact.name[4:], str(fact.value)


def _setting_text(piece: Event | Fact) -> str:
    if isinstance(piece, Fact):
        return f"{piece.name[4:]}={piece.value}"
    return f"{piece.data.name}={piece.data.value}"


def _advice(*names: str) -> tuple[Advice, ...]:
    what = " and ".join(names) or "NCCL_ALGO, NCCL_PROTO and NCCL_*_DISABLE"
    return (
        Advice(
            f"Unset {what}, see the job work with the defaults, and set it again only with a value"
            " from the user guide.",
            change={"unset": list(names)} if names else {},
            command="env | grep -E '^(NCCL|GLOO|TORCH_NCCL)_' | sort",
            why="NCCL ignores or rejects what it does not know, often silently.",
            check="NCCL_DEBUG=INFO prints 'set by environment to' with the value you meant.",
            risk="The variable may have hidden another fault; run the live test first.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """The same job without the variables in question."""
    # where no variable is known to be odd, those that may leave nothing to choose
    names = _limiting_variables(case) or list(LIMITS)
    return experiment_of(
        f"Does the job start without {', '.join(names)}?",
        {"unset": names},
        {
            ID: ("works", "it starts: NCCL's defaults work"),
            "version_mismatch": ("same", "it fails in the same way"),
            "p2p_broken": ("same", "it fails in the same way"),
            "slow_rank": ("same", "it fails in the same way"),
        },
    )


def _limiting_variables(case: Case) -> list[str]:
    """Variables of this case that limit what NCCL may choose from.

    Those whose value NCCL does not know count, too.
    """
    odd = set()
    nccl = loaded_nccl(case)
    for _, name, value in _settings_of_job(case):
        for row in check_value(name, value, nccl):
            if row["kind"] == "value":
                odd.add(row["name"])
    limits = {name for _, name, value in _settings_of_job(case) if limiting(name, value)}
    return sorted(odd or limits)


CHECK = Preflight(
    ID,
    reads=("env.problems",),
    risks=_host_risks,
    fine="No variable has an unknown name or a value that cannot work.",
    also=("env.*", "software.nccl"),
    next=experiment,
)
REMEDIES = (
    *_advice("all NCCL_* variables"),
    _file_advice("NCCL_TOPO_FILE"),
    _library_advice("NCCL_NET_PLUGIN"),
)
