"""The interface filter names a network interface that this machine does not have

What you see
    Right at the start: "Bootstrap : no socket interface found" and "internal error" from NCCL,
    "connecting to address with family ... is neither AF_INET nor AF_INET6" from releases that go on
    with an empty address, or "Unable to find address for: eth9" from gloo.  Often only some nodes
    fail.

Why it happens
    NCCL_SOCKET_IFNAME is a filter: a list of name prefixes, with ^ to exclude and = for exact
    names.  If no interface passes it, NCCL has no address for its bootstrap and cannot start.
    Names differ between machines (eth0, ens5, enp1s0f0, bond0) and a container sees its own.
    GLOO_SOCKET_IFNAME looks the same but takes exact names only: "^lo" is not a filter there, gloo
    searches for an interface called "^lo".

How to be sure
    Compare the value with `ip -brief address` inside the container on the failing node.

What to do
    The automatic choice is right on most machines.  Where names differ, a common prefix ("en") or
    an exclusion ("^lo,docker") serves NCCL; gloo needs the exact name per node
    (GLOO_SOCKET_IFNAME).

Read more
    NCCL user guide: NCCL_SOCKET_IFNAME.  PyTorch docs: "Choosing the network interface to use"
    (GLOO_SOCKET_IFNAME).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ncclkit.analysis.hosts import shared_network
from ncclkit.analysis.picks import (
    env_of,
    family,
    first_finding,
    matching,
    messages,
    on,
    pick,
    ranks_in,
    without,
)
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core.case import Case
from ncclkit.core.event_list import known_hosts
from ncclkit.core.kinds import GlooNoInterface, NcclBootstrap
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Fact, Finding, Strength, found

ID = "ifname_not_found"
explains = (
    "c10d.error",
    "nccl.trace",
    "store.lost",
    "c10d.timeout",
    "rank_exception",
    "slow_rank",
    "wrong_interface",
    "store_unreachable",
    "bad_env_value",
    "world_size_mismatch",
)
ADDRESSED = Advice(
    "Give the host a running interface with an address.",
    command="ip -brief address",
    why="NCCL skips interfaces that are down or have no address.",
    check="`ncclkit inspect` names the interface that NCCL will use.",
    risk="Ask who runs the machine: the network may be down for a reason.",
)
FILTERS = {"net.nccl.interface": "NCCL_SOCKET_IFNAME", "net.gloo.interface": "GLOO_SOCKET_IFNAME"}


def diagnose(case: Case) -> Finding:
    """Found where a library found no interface, or will find none.

    The second is by the facts of the host.
    """
    went_well = case.of(NcclBootstrap)
    missing = "NCCL's log with NCCL_DEBUG=INFO from the start, or `ncclkit inspect` on the node"
    return first_finding(
        case,
        _gloo_found_none,
        _nccl_found_none,
        _filtered_out,
        _empty_address,
        _no_family,
        CHECK.risk,
    ) or CHECK.otherwise(case, went_well, "An interface was found.", missing)


def _gloo_found_none(case: Case) -> Finding | None:
    """gloo says that no interface has the name that it was given."""
    lines = case.of(GlooNoInterface)
    if lines:
        return _finding(case, "proven", lines, "GLOO_SOCKET_IFNAME")
    return None


def _empty_addresses(case: Case) -> list[Event]:
    return matching(messages(case), "is neither AF_INET")


def _nccl_found_none(case: Case) -> Finding | None:
    """NCCL says that no interface passes its filter."""
    lines = family(case, "no_interface") + matching(
        messages(case), "no socket interface found", "NCCL_OOB_NET_IFNAME"
    )
    # an empty address may also be a misread message of another release (version_mismatch)
    lines = without(lines, _empty_addresses(case) + _sockets_without_family(case))
    if lines:
        return _finding(case, "proven", lines, "NCCL_SOCKET_IFNAME")
    return None


def _filtered_out(case: Case) -> Finding | None:
    """A library will find no interface with the filter that is set.

    It is told by the facts of a host.
    """
    facts = []
    for fact in case.facts:
        if fact.name in FILTERS and fact.value is None and _filter_of_host(case, fact):
            facts.append(fact)
    if facts:
        return _finding(case, "proven", facts, FILTERS[facts[0].name])
    return None


def _empty_address(case: Case) -> Finding | None:
    """An NCCL that goes on without an interface hands an empty address around."""
    lines = _empty_addresses(case)
    # without a filter another version's message may have been misread
    if lines and env_of(case, "NCCL_SOCKET_IFNAME"):
        return _finding(case, "likely", lines, "NCCL_SOCKET_IFNAME")
    return None


def _sockets_without_family(case: Case) -> list[Event]:
    return matching(messages(case), "Socket creation failed : Address family")


def _no_family(case: Case) -> Finding | None:
    """An old NCCL makes a socket for an address that nobody filled in."""
    lines = _sockets_without_family(case)
    if not lines:
        return None
    finding = _finding(case, "likely", lines, "NCCL_SOCKET_IFNAME")
    if env_of(case, "NCCL_SOCKET_IFNAME"):
        return finding
    say = f"NCCL found no network interface with an address{on(lines[0].host)}."
    return replace(finding, say=say)


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Hosts on which NCCL finds no interface although no filter is set."""
    fact = host.facts.get("net.nccl.interface")
    if fact and fact.value is None and fact.why.startswith("no running interface"):
        say = f"NCCL would find no network interface, so no job could start ({fact.why})"
        yield Risk(say, [fact], ADDRESSED, "likely")


def _filter_of_host(case: Case, fact: Fact) -> str:
    for f in case.facts_of(f"env.{FILTERS[fact.name]}"):
        if f.host == fact.host and f.value:
            return str(f.value)
    return ""


def _finding(
    case: Case,
    strength: Strength,
    why: list[Event] | list[Fact],
    variable: str,
) -> Finding:
    filters = env_of(case, "NCCL_SOCKET_IFNAME")
    wanted = _wanted_interface(case, why[0], filters, variable)
    host = why[0].host
    exist = _usable_interfaces(case, why[0].host)
    events = [piece for piece in why if isinstance(piece, Event)]
    value = ""
    if wanted:
        value = f"={wanted}"
    have = ""
    if exist:
        have = f"; it has {', '.join(exist)}"
    say = f"{variable}{value} matches no network interface{on(host)}{have}."
    own = _each_its_own(case, variable, wanted, host)
    evidence: tuple[Evidence, ...] = pick(why, filters, case.facts_of(f"env.{variable}"), limit=6)
    return found(
        ID,
        strength,
        say,
        evidence,
        ranks=ranks_in(events),
        hosts=tuple(sorted(known_hosts(why))),
        interfaces=(wanted,) if wanted else (),
        advice=(own,) if own else _advice(variable, wanted, exist),
        next=None if strength == "proven" else experiment(case),
    )


def _each_its_own(case: Case, variable: str, wanted: str, host: str) -> Advice | None:
    """Advice where the interface exists on another host of the job only.

    One exact name does not fit both hosts.
    """
    # a name that exists on another host of the job is right there: then no one name fits all
    joined = shared_network(case)
    names = {name: other for other, (name, _) in joined.items()}
    if host not in joined or wanted not in names:
        return None
    named = ", ".join(f"{name} on {other}" for name, other in names.items())
    both = {variable, *_variables_with(case, wanted)}
    env = {}
    for name in both:
        if name.startswith("NCCL"):
            env[name] = ",".join(names)
    gone = sorted(both - env.keys())
    # NCCL takes a list and uses the name that a host has; gloo needs all names of a list
    if variable in env:
        return _list_names(variable, named, env, gone)
    return _name_on_each_host(variable, named, env, gone)


def _list_names(variable: str, named: str, env: Mapping[str, str], gone: Sequence[str]) -> Advice:
    do = f"List the interfaces that join the hosts in {variable}: {named}."
    risk = (
        "Each name is a prefix: a host with several interfaces that pass takes the first of"
        " its own list."
    )
    if gone:
        do = f"{do[:-1]}; and unset {gone[0]}, which can name only one for all hosts."
        risk += " Without the other variable gloo uses the address of the host's own name."
    return Advice(
        do,
        env,
        command=_command_without(gone),
        why=(
            "Different machines name their interfaces differently; from a list NCCL takes the"
            " one that a host has."
        ),
        check=(
            "The log shows 'Bootstrap: Using <interface>' on every host, with addresses of one"
            " network."
        ),
        risk=risk,
        change=_change_without(gone),
    )


def _name_on_each_host(
    variable: str, named: str, env: Mapping[str, str], gone: Sequence[str]
) -> Advice:
    return Advice(
        f"Name on each host the interface that joins it to the others: {named}; or unset {variable}"
        " for the default.",
        env,
        command=_command_without(gone),
        why=(
            "Different machines name their interfaces differently. Of a list gloo needs all names"
            " on a host, NCCL one."
        ),
        check="All ranks pass init_process_group.",
        risk=(
            "Without the variable gloo uses the address of the host's own name, which must not be"
            " 127.x."
        ),
        change=_change_without(gone),
    )


def _command_without(gone: Sequence[str]) -> str:
    if gone:
        return f"unset {gone[0]}"
    return "ip -brief address"


def _change_without(gone: Sequence[str]) -> dict[str, list[str]]:
    if gone:
        return {"unset": [*gone]}
    return {}


def _variables_with(case: Case, wanted: str) -> set[str]:
    """The variables that name this interface, by the facts of the job's environment."""
    variables = set()
    for fact in case.facts:
        variable = fact.name[4:]
        if variable in FILTERS.values() and fact.value == wanted:
            variables.add(variable)
    return variables


def _gloo_interface(event: Event) -> str:
    if isinstance(event.data, GlooNoInterface):
        return event.data.interface or ""
    return ""


def _wanted_interface(case: Case, first: Event | Fact, filters: list[Event], variable: str) -> str:
    if isinstance(first, Event):
        named = _gloo_interface(first)
    else:
        named = _filter_of_host(case, first)
    own = []
    for event in filters:
        if isinstance(first, Event) and event.rank == first.rank:
            own.append(event)
    logged = []
    # NCCL logs the variables that it read, gloo does not
    if variable.startswith("NCCL"):
        for event in own + filters:
            if event.data.value:
                logged.append(str(event.data.value))
    facts = []
    for fact in case.facts_of(f"env.{variable}"):
        if fact.value:
            facts.append(str(fact.value))
    return next(iter([*([named] if named else []), *logged, *facts]), "")


def _usable_interfaces(case: Case, host: str) -> list[str]:
    """Usable interfaces of that host, physical ones first.

    They are up and not loopback.
    """
    rows = []
    for f in case.facts_of("net.interfaces"):
        if f.value and (not host or f.host in ("", host)):
            for row in f.value:
                rows.append(row)
    usable = []
    for r in rows:
        if (
            r.get("state") in ("up", "UP", "unknown")
            and r.get("addresses")
            and r.get("name") != "lo"
        ):
            usable.append(r)
    return [
        str(r["name"])
        for r in sorted(
            usable, key=lambda r: bool(re.match(r"docker|veth|br-|virbr|cni", str(r["name"])))
        )
    ]


def _advice(variable: str, wanted: str, exist: list[str]) -> tuple[Advice, ...]:
    """Unset the variable that is at fault, or set it to a known interface.

    It is set where interfaces of the host are known.
    """
    gloo = variable.startswith("GLOO")
    # the forms of NCCL's filter are the usual reason why gloo finds none
    if wanted.startswith(("^", "=")) and gloo:
        why = "gloo takes exact names; NCCL's ^ and prefix forms mean nothing to it."
    elif gloo:
        why = "Without it gloo uses the address of the host's own name."
    else:
        why = "NCCL takes prefixes; at least one interface must pass the filter on each node."
    check = (
        "The log shows 'Bootstrap: Using <interface>' with an address the other nodes can reach."
    )
    otherwise = ", or set it to a name that `ip -brief address` shows on every node"
    if gloo:
        otherwise = ", or set it to the exact name of one interface, the one that joins the nodes"
    if gloo and wanted.startswith(("^", "=")):
        otherwise += " (gloo knows no ^ and no list to exclude; NCCL_SOCKET_IFNAME may keep it)"
    unset = Advice(
        f"Unset {variable}{otherwise}.",
        command=f"unset {variable}",
        why=why,
        check="All ranks pass init_process_group." if gloo else check,
        change={"unset": [variable]},
        risk=(
            "Over several hosts the own name must not resolve to 127.x (see hostname_resolution)."
            if gloo
            else (
                "A wrong but existing interface makes the job slow or unreachable instead of"
                " stopping it."
            )
        ),
    )
    if not exist:
        return (unset,)
    do = f"Or set {variable} to an interface that exists here: {exist[0]}."
    return unset, replace(SET_IT, do=do, env={variable: exist[0]}, why=why, check=check)


SET_IT = Advice(
    "Or set the variable to an interface that exists here.",
    command="ip -brief address",
    why="At least one interface must pass the filter on each node.",
    check="The log shows 'Bootstrap: Using' with an address the other nodes can reach.",
    risk="A wrong but existing interface makes the job slow or unreachable instead of stopping it.",
)


def experiment(case: Case) -> Experiment:
    """Run the same job with the interfaces that the libraries choose themselves."""
    return experiment_of(
        "Does the job start when the libraries choose the interface themselves?",
        {"unset": list(FILTERS.values())},
        {
            ID: ("works", "it starts"),
            "wrong_interface": (
                "other",
                "it starts, and hangs: the choice is one that the other nodes cannot reach",
            ),
            "network_loss": ("other", "it starts, and fails later"),
            "store_unreachable": ("same", "it fails in the same way: the ranks have not even met"),
            "version_mismatch": ("same", "it fails in the same way: the address was misread"),
        },
    )


def start(case: Case) -> Experiment:
    """Check before any job whether ranks start at all where no filter is set."""
    return experiment_of(
        "Does a plain all_reduce start here, and what do the ranks say if it does not?",
        {"minimal": True},
        {
            ID: ("named", "they say that they find no interface"),
            "hostname_resolution": (
                "named",
                "they say that a name does not resolve: the own name is looked up first",
            ),
            "store_unreachable": (
                "named",
                "they never meet: the first rank's port is not reached",
            ),
        },
    )


CHECK = Preflight(
    ID, reads=tuple(FILTERS), risks=_host_risks, fine="NCCL and gloo find an interface.", next=start
)
REMEDIES = (
    *_advice("NCCL_SOCKET_IFNAME", "", []),
    *_advice("GLOO_SOCKET_IFNAME", "^", []),
    SET_IT,
    _name_on_each_host("the variable", "<interface> on <host>", {}, []),
    ADDRESSED,
)
