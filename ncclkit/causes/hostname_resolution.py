"""A host name does not resolve, or resolves to the machine itself

What you see
    "The IPv4 network addresses of (node-0, 29500) cannot be retrieved (gai error: -2 - Name or
    service not known)", or a multi-node start that hangs because each node connects to 127.0.1.1,
    that is, to itself.

Why it happens
    Rendezvous passes names around: MASTER_ADDR, and, with torchrun's c10d backend, the name that
    the first agent calls itself.  Every node, and every container, must translate that name into
    the same reachable address. Debian-like systems put "127.0.1.1 hostname" into /etc/hosts, short
    names need a search domain, and cloud machines and pods often have names that exist in no DNS.

How to be sure
    `getent hosts NAME` on every node, inside the container: it must print the same, non-127 address
    everywhere.

What to do
    On one machine localhost serves, too.

Read more
    PyTorch docs: torchrun --local-addr, --rdzv-endpoint.  hosts(5), nsswitch.conf(5).
"""

from __future__ import annotations

import shlex

from ncclkit.agent.digits import is_whole
from ncclkit.analysis.hosts import can_simulate_again, common_interface, plain_address
from ncclkit.analysis.launchers import launcher, launchers
from ncclkit.analysis.network_devices import shared_names
from ncclkit.analysis.picks import (
    failed,
    family,
    first_finding,
    in_order,
    matching,
    messages,
    of_job,
    of_job_hosts,
    on,
    otherwise,
    pick,
    ranks_in,
    who_of,
    without,
)
from ncclkit.causes import _tested
from ncclkit.causes._experiments import limits, meeting, unasked
from ncclkit.causes._launchers import options_of
from ncclkit.core.case import Case
from ncclkit.core.connections import is_loopback
from ncclkit.core.event_list import known_hosts
from ncclkit.core.kinds import (
    C10dTimeout,
    Endpoint,
    GlooConnect,
    NcclChannel,
    NcclInit,
    PythonException,
    RendezvousError,
    StoreConnectTimeout,
    StoreResolve,
    StoreRetry,
    SystemFault,
)
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Fact, Finding, Strength, found

ID = "hostname_resolution"
explains = (
    "store_unreachable",
    "store.connect_timeout",
    "rank_exception",
    "world_size_mismatch",
    "store.wait",
    "slow_rank",
    "duplicate_gpu",
    "shm_too_small",
    "p2p_broken",
)

RESOLVER = (
    "Name or service not known",
    "Temporary failure in name resolution",
    "gai error",
    "getaddrinfo",
    "Unable to resolve hostname",
)
WEB = (
    "HTTPConnection",
    "HTTPSConnection",
    "NameResolutionError",
    "Max retries exceeded",
    "urlopen error",
    "urllib3",
)
"""Signs of an HTTP client's error.

A hub or a tracker has nothing to do with the store's name.
"""


def diagnose(case: Case) -> Finding:
    """Found at a resolver's error, or where names resolve to the host itself.

    The names are those of hosts of a job.
    """
    foreign = _misnamed_hosts(case)
    named = []
    for fact in case.facts_of("net.hostname.addresses"):
        if fact.value and fact.host not in foreign:
            named.append(fact)
    good = [f for f in named if not _to_itself(f)]
    tested = _tested.passed(case, lambda link: bool(link.address) and not is_loopback(link.address))
    went_well: list[Evidence] = [
        *tested,
        *good,
        *case.of("nccl.init", "c10d.timeout", "worker.phase"),
    ]
    missing = "`getent hosts $MASTER_ADDR` of every node (`ncclkit inspect`)"
    return first_finding(
        case,
        _resolver_error,
        _same_name,
        _announced_loopback,
        _resolves_to_itself,
        _tested_names,
        _own_names,
        _failed_without_address,
    ) or otherwise(ID, went_well, "Names resolved.", missing)


def _resolver_error(case: Case) -> Finding | None:
    """The resolver reported an error.

    It is harmless where the ranks met nevertheless.
    """
    lines = _unresolved(case)
    if not lines:
        return None
    gave_up = case.of(StoreConnectTimeout)
    strength: Strength = "likely"
    # a single refusal may be a server that starts later
    if gave_up or len(lines) + lines[0].count > 2:
        strength = "proven"
    only_ipv6 = all("IPv6 network addresses" in e.text for e in lines)
    if only_ipv6:  # IPv4 is tried next, and a peer that starts later gets its name later
        strength = "possible"
        if gave_up:
            strength = "likely"
    # the ranks met nevertheless
    if case.of(NcclInit, C10dTimeout):
        strength = "possible"
    name = next(filter(None, map(_name_asked, lines)), "")
    if strength == "proven" and not any(e.kind == "store.resolve" for e in lines):
        given = {str(e.data.host) for e in gave_up}
        # another program's name
        strength = "likely"
        if name in given:
            strength = "proven"
    what = "A host name of the job"
    if name:
        what = f"The name {name}"
    say = (
        f"{what} does not resolve to an address{on(lines[0].host)}, so the ranks cannot find the"
        " store."
    )
    if only_ipv6 and not gave_up:
        say = (
            f"{what} had no IPv6 address{on(lines[0].host)} when a rank asked; nothing shows that"
            " it gave up."
        )
    hosts = (name,) if name else ()
    advice = _advice(case, name)
    why = pick(lines, gave_up, limit=5)
    return found(
        ID,
        strength,
        say,
        why,
        ranks=ranks_in(lines),
        hosts=hosts,
        advice=advice,
        next=experiment(case),
    )


def _unresolved(case: Case) -> list[Event]:
    """Lines that say that a name has no address.

    Names that a later line resolved are left out.
    """
    lines = in_order(case.of(StoreResolve)) + matching(messages(case), *RESOLVER)
    lines = [e for e in lines if e.kind != "log.error"]  # of these the next ones are left
    lines += without(case.of(SystemFault, what="unresolved"), lines)
    asked = [e for e in case.of(StoreRetry) if "cannot be retrieved" not in e.text]
    # with an address, so the name was resolved
    tried = set()
    for event in asked:
        if event.data.port:
            # a client that was refused at an address had resolved the name
            tried.add(event.data.port)
    # torch only wants to print the name of a peer there
    lines = [e for e in lines if "hostname of the client socket cannot be retrieved" not in e.text]
    over = set()
    for event in lines:
        if event.kind == "store.resolve" and event.data.port in tried:
            over.add((event.path, event.line))
    lines = [e for e in lines if (e.path, e.line) not in over]
    web = matching(case.of(PythonException), *WEB)
    host_lines = []
    for e in without(lines, web):
        if _host_asked(e) or not web:
            host_lines.append(e)
    return host_lines


def _same_name(case: Case) -> Finding | None:
    """Two machines have one name.

    NCCL takes their ranks for neighbours that share memory.
    """
    lines = shared_names(case)
    # what NCCL tries only between ranks of one machine
    mixed = family(case, "duplicate_gpu", "shm", "p2p", "uds")
    mixed += case.of(NcclChannel, via="SHM") if failed(case) else []
    if not lines or not mixed:
        return None
    name = lines[0].host
    addresses = " and ".join(str(e.data.address) for e in lines[:2])
    say = (
        f"Two machines ({addresses}) have the name {name}, so NCCL takes their ranks for those of"
        " one machine."
    )
    return found(
        ID,
        "likely",
        say,
        pick(lines, mixed, limit=5),
        hosts=(name,),
        advice=(OWN_NAME,),
        next=experiment(case),
    )


OWN_NAME = Advice(
    "Give each machine or container a name of its own (hostnamectl set-hostname), or tell NCCL"
    " which is which by NCCL_HOSTID.",
    command="hostname; cat /proc/sys/kernel/random/boot_id",
    why="NCCL tells machines apart by name and boot id, and shares memory inside of one.",
    check="Each line of NCCL's log begins with the name of its own machine.",
    risk="Other programs may know the machine by its old name.",
)


def _announced_loopback(case: Case) -> Finding | None:
    """A rank was told to connect to a loopback address.

    Gloo announces the address of the own host name.
    """
    asked = case.of(GlooConnect)
    lines = []
    for event in asked:
        if plain_address(event.data.address).startswith(("127.", "::1")):
            lines.append(event)
    shown = case.of(SystemFault, what="own_name")
    if shown and (asked or case.of(StoreConnectTimeout) or case.of(StoreRetry)):
        names = tuple(sorted(known_hosts(shown)))
        say = (
            f"Hostname {' and '.join(names)} resolves to loopback there, so other hosts are given a"
            " loopback address."
        )
        advice = (
            _name_gloo_interface(common_interface(case)),
            *_advice(case, names[0] if names else ""),
        )
        why = pick(shown, lines or asked, limit=5)
        return found(ID, "likely", say, why, hosts=names, advice=advice, next=experiment(case))
    if not lines:
        return None
    first = lines[0]
    address = plain_address(lines[0].data.address)
    own = []
    for fact in of_job_hosts(case, case.facts_of("net.hostname.addresses")):
        if _to_itself(fact):
            own.append(fact)
    hosts = tuple(sorted(known_hosts(own)))
    whose = "a host's own name probably resolves to it"
    if hosts:
        whose = f"hostname {' and '.join(hosts)} resolves to it"
    who = who_of([first])
    say = f"{who}{on(first.host)} was told to connect to {address}, that is, to itself: {whose}."
    # on one host a loopback address reaches all ranks
    if hosts and len(_all_hosts(case)) > 1:
        strength: Strength = "proven"
    elif hosts:
        strength = "likely"
    else:
        strength = "possible"
    advice = (
        _name_gloo_interface(common_interface(case)),
        *_advice(case, hosts[0] if hosts else ""),
    )
    return found(
        ID,
        strength,
        say,
        pick(own, lines, limit=5),
        hosts=hosts,
        advice=advice,
        next=experiment(case),
    )


def _host_asked(event: Event) -> str:
    """The host of the store that a line names; empty where it names none."""
    if isinstance(event.data, Endpoint):
        return str(event.data.host or "")
    return ""


def _name_asked(event: Event) -> str:
    """The name that had no address; empty where the line does not tell it."""
    is_unresolved = isinstance(event.data, SystemFault)
    if is_unresolved:
        return str(event.data.asked or "")
    return _host_asked(event)


def _resolves_to_itself(case: Case) -> Finding | None:
    """A name in a multi-node job resolves to each machine itself."""
    if len(_all_hosts(case)) < 2:
        return None
    own = []
    for fact in case.facts_of("net.hostname.addresses"):
        if _to_itself(fact):
            own.append(fact)
    timeouts = case.of("store.connect_timeout", "store.wait", "gloo.timeout")
    # a store asked for at 127.x is on the own host
    local = []
    for event in timeouts:
        if _host_asked(event).startswith("127."):
            local.append(event)
    if not local and not (own and timeouts):
        return None
    if own:
        host = own[0].host
    else:
        host = _host_asked(local[0])
    say = f"Hostname {host} resolves to 127.x, so each host that uses it reaches only itself."
    why = pick(own, local, timeouts)
    return found(
        ID, "likely", say, why, hosts=(host,), advice=_advice(case, host), next=experiment(case)
    )


def _tested_names(case: Case) -> Finding | None:
    """A connection test found a host that misreads another's name.

    It resolves the name to itself, or not at all.
    """
    bad = _tested.paths(case, lambda link: not link.address or is_loopback(link.address))
    links = []
    for link in bad:
        if link.unresolved or link.address:
            links.append(link)
    bad = links
    if not bad:
        return None
    first = bad[0]
    what = "does not resolve"
    if first.address:
        what = f"resolves to {first.address}, that is {first.src}"
    what += "" if first.address else f" ({first.unresolved})"
    say = (
        f"On {first.src} hostname {first.dst} {what}{_tested.plus(bad, 'name')}: ranks there would"
        " not find it."
    )
    hosts = tuple(sorted({link.src for link in bad}))
    why = tuple(link.event for link in bad[:6])
    return found(
        ID,
        _tested.risk(case),
        say,
        why,
        hosts=hosts,
        advice=_advice(case, first.dst),
        next=experiment(case),
    )


def _own_names(case: Case) -> Finding | None:
    """The own name resolves to loopback or a foreign address.

    gloo tells that address the others.
    """
    gloo = {}
    for fact in case.facts_of("net.gloo.interface"):
        if fact.value == "lo":
            gloo[fact.host] = fact
    foreign = _misnamed_hosts(case)
    own = []
    for f in case.facts_of("net.hostname.addresses"):
        if f.host in gloo:
            own.append(f)
    wrong_facts = []
    for fact in own:
        if not fact.value or _to_itself(fact) or fact.host in foreign:
            wrong_facts.append(fact)
    own = wrong_facts
    alone = len(known_hosts(case.facts)) < 2
    if not own or (alone and of_job(case)):  # harmless for a job on this host only
        return None
    first = own[0]
    where = "does not resolve"
    if first.value:
        where = f"resolves to {first.value[0]}"
    digits = ""
    if is_whole(first.host):
        digits = " (digits alone are read as a number)"
    aside = ""
    if first.value and not _to_itself(first):
        aside = f", which is not one of its addresses{digits}"
    say = (
        f"Hostname {first.host} {where} on itself{_tested.plus(own, 'host')}{aside}, so gloo there"
        f" would use lo and {'another host' if alone else 'the other hosts'} would not reach it."
    )
    hosts = tuple(f.host for f in own)
    why = pick(own, [gloo[f.host] for f in own], limit=6)
    nccl = ""
    for fact in case.facts_of("net.nccl.interface"):
        if alone and fact.value not in (None, "lo"):
            nccl = str(fact.value)
            break
    advice = (_name_gloo_interface(common_interface(case) or nccl), *_advice(case, first.host))
    # ranks of one host meet whatever its name resolves to
    if alone:
        ask_it = None
    else:
        ask_it = experiment(case)
    # Jobs over NCCL do not need the name, so at most possible.
    return found(ID, "possible", say, why, hosts=hosts, advice=advice, next=ask_it)


def _name_gloo_interface(name: str) -> Advice:
    """Advice to name gloo's interface.

    `name` is the one that joins the hosts, "" where it differs between them.
    """
    return Advice(
        "Name gloo's interface on every host:"
        f" {name or 'the one that holds the address which the others reach'}.",
        env={"GLOO_SOCKET_IFNAME": name} if name else {},
        command="" if name else "ip -brief address",
        why="With the variable gloo does not resolve the own host name.",
        check="`ncclkit inspect` shows that interface as net.gloo.interface.",
        risk="gloo takes exact names; they must exist on every host.",
    )


def _failed_without_address(case: Case) -> Finding | None:
    """A rendezvous or gloo failed to connect, and no address is told."""
    named = []
    for event in case.of(StoreConnectTimeout):
        if event.data.host:
            named.append(event)
    lines = matching(
        [*case.of(RendezvousError), *messages(case)],
        "connect() timed out",
        "connection to the C10d store",
    )
    # gloo before it names the address says only that it could not connect
    unnamed = []
    for e in case.of(GlooConnect):
        if not e.data.address:
            unnamed.append(e)
    if unnamed:
        say = (
            "gloo could not connect the ranks; a usual reason is a host whose own name resolves to"
            " loopback."
        )
        return found(
            ID,
            "possible",
            say,
            pick(unnamed, limit=3),
            advice=(_name_gloo_interface(common_interface(case)), *_advice(case)),
            next=experiment(case),
        )
    if not lines or named:
        return None
    say = (
        "The rendezvous could not be reached; a usual reason is a host name that the nodes resolve"
        " differently."
    )
    return found(
        ID,
        "possible",
        say,
        pick(lines, limit=3),
        advice=_advice(case),
        next=experiment(case),
    )


def _to_itself(fact: Fact) -> bool:
    return bool(fact.value) and all(is_loopback(str(address)) for address in fact.value)


def _misnamed_hosts(case: Case) -> set[str]:
    """Hosts whose name resolves to an address of another host.

    It does so by an old DNS entry, or as it is a name such as ``12345``.
    """
    having = {}
    for fact in case.facts_of("net.interfaces"):
        addresses: set[str] = set()
        for row in fact.value or ():
            addresses.update(text.split("/")[0] for text in row.get("addresses") or ())
        having[fact.host] = addresses
    named = []
    for fact in case.facts_of("net.hostname.addresses"):
        if fact.value and having.get(fact.host):
            named.append(fact)
    hosts = set()
    for fact in named:
        # an old entry of DNS, or digits that are read as an address
        if not having[fact.host] & {address.split("%")[0] for address in fact.value}:
            hosts.add(fact.host)
    return hosts


def _all_hosts(case: Case) -> set[str]:
    return known_hosts(case.events) | known_hosts(case.facts)


def _advice(case: Case, name: str = "") -> tuple[Advice, ...]:
    """How to give the job an address, and how to make the name known.

    Pods start before their names are known, so there the name is to be waited for.
    """
    asked = shlex.quote(name) if name else '"$(hostname)"'
    known = Advice(
        "Make the name known on every node and in every container, by DNS or in /etc/hosts.",
        command=f"getent hosts {asked}",
        why="DNS or /etc/hosts must give the same address everywhere.",
        check="The command prints the same non-127 address on all nodes.",
        risk="Editing /etc/hosts needs root.",
    )
    alone = ""
    if launcher(case) in ("", "torchrun"):
        alone = (
            "; torchrun on a single host takes --standalone or --rdzv-endpoint=localhost:0, and"
            " --local-addr gives it the host's own address"
        )
    address = Advice(
        "Use an IP address that all nodes reach instead of the name, or make the name known on"
        " every node (DNS, /etc/hosts; pods must wait until it is):"
        f" {options_of(case).address}{alone}.",
        command=f"getent hosts {asked}; hostname -I",
        why="An address means the same on every node.",
        check="All ranks pass init_process_group.",
        risk="Addresses may change between jobs.",
    )
    if "kubernetes" in launchers(case):
        return WAIT_FOR_NAME, address, known
    return address, known


WAIT_FOR_NAME = Advice(
    "Let each pod wait until the name of the first one resolves (an init container that repeats"
    " `getent hosts` on it), or let the pod start again until it does; check that the first pod has"
    " a service.",
    command="kubectl get services,endpoints,pods -o wide",
    why="Pods start before DNS knows their names, and a rendezvous may take a failed look-up as"
    " final.",
    check="`getent hosts` in a worker's pod prints the address of the first pod.",
    risk="None.",
)


def experiment(case: Case) -> Experiment:
    """Check whether the ranks can meet.

    Where their hosts cannot be reached, first check what names resolve to here.
    """
    if can_simulate_again(case):
        return meeting(case)
    question = "Do the job's names resolve to this machine, and does it answer at these addresses?"
    return unasked(case, limits(question, ID, "port_in_use"), meeting(case))


REMEDIES = (*_advice(Case()), WAIT_FOR_NAME, _name_gloo_interface(""), OWN_NAME)
