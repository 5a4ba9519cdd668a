"""The rendezvous store cannot be reached

What you see
    "The client socket has timed out after 60s while trying to connect to (node-0, 29500)",
    "connect() timed out", RendezvousConnectionError, or ranks that print nothing after they
    started.  The first node may still be waiting for the others.

Why it happens
    All ranks meet at one TCP server, run by rank 0 or by torchrun's first agent at
    MASTER_ADDR:MASTER_PORT.  If the address belongs to another interface, the port is closed by a
    firewall or a Kubernetes network policy, rank 0 has not started, or the name resolves to each
    node itself (127.0.1.1), the others retry until their timeout. NCCL has not begun at that point:
    no NCCL setting helps.

How to be sure
    From the failing node: `getent hosts MASTER_ADDR` must give the first node's address, and
    `timeout 5 bash -c '</dev/tcp/ADDR/PORT'` must succeed while the first node waits.  "Refused"
    means that no process listens; no answer means a firewall or a wrong route.

What to do
    Open the port between the nodes; start the first node first, or raise the store timeout.

Read more
    PyTorch docs: torchrun rendezvous, TCPStore.  torch.distributed environment variables
    MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import ipaddress
import re
import shlex

from ncclkit.agent.digits import is_whole
from ncclkit.analysis.hosts import common_interface, holders, plain_address, shared_network, subnets
from ncclkit.analysis.launchers import launchers
from ncclkit.analysis.picks import (
    first_finding,
    foreign_address,
    matching,
    messages,
    name_hosts,
    on,
    otherwise,
    pick,
    ranks_in,
    seconds,
    who_of,
)
from ncclkit.analysis.rank_states import rank_states
from ncclkit.causes import _tested
from ncclkit.causes._experiments import meeting
from ncclkit.causes._launchers import OPTIONS, options_of
from ncclkit.core.case import Case
from ncclkit.core.connections import ends
from ncclkit.core.kinds import (
    C10dTimeout,
    Endpoint,
    PythonException,
    RendezvousError,
    StoreBind,
    StoreConnectTimeout,
    StoreResolve,
    StoreRetry,
    SystemFault,
)
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Finding, Strength, found

ID = "store_unreachable"
explains = (
    "rank_exception",
    "rendezvous.error",
    "store.wait",
    "store.clients",
    "world_size_mismatch",
)
REFUSED = re.compile(
    r"(?s)(?:TCPStore\(|rendezvous).*(?:Connection refused|No route to host|Connection timed"
    r" out)\s*$"
)
"""A traceback of the start that ends in a socket error."""
CLOSED = ("silent", "refused", "no route", "other host", "foreign")


def diagnose(case: Case) -> Finding:
    """Found where a client could not connect to the store.

    A name that does not resolve is another cause.
    """
    return first_finding(case, _unreached_store, _not_ours, _no_family, _closed_port) or _all_met(
        case
    )


def _unreached_store(case: Case) -> Finding | None:
    """A client of the store could not connect."""
    lines = _refused_connections(case)
    if not lines:
        return None
    named = []
    for e in lines:
        if isinstance(e.data, Endpoint) and e.data.host:
            named.append(e)
    first = (named or lines)[0]
    told = Endpoint()
    if isinstance(first.data, Endpoint):
        told = first.data
    named_host, named_port = _endpoint_asked(lines)
    host = plain_address(told.host or named_host)
    port = told.port or named_port
    where = "the rendezvous endpoint"
    if host:
        where = f"{host}:{port}"
    who = "A process of the job"
    if ranks_in(lines):
        who = who_of(lines)
    within = ""
    if isinstance(told, StoreConnectTimeout) and told.timeout_ms:
        within = f" within {seconds(told.timeout_ms)}"
    foreign = _foreign_network(case, host, first.host)
    say = f"{who}{on(first.host)} could not reach the store at {where}{within}{foreign}."
    return found(
        ID,
        _strength_of_refusal(case, lines, host),
        say,
        pick(lines, case.of(StoreResolve), limit=6),
        ranks=ranks_in(lines),
        hosts=tuple(name for name, _ in holders(case, host))
        or ((host,) if host else name_hosts(lines)),
        advice=_advice_on_endpoint(case, host, port, bool(foreign)),
        next=experiment(case),
    )


def _advice_on_endpoint(case: Case, host: str, port: object, foreign: bool) -> tuple[Advice, ...]:
    """The remedies, the one that the facts or the address itself name before the others."""
    general = _advice(case, host, port)
    if _no_host_has_it(host):
        return (_real_address(case, host), *general)
    return (*_other_endpoint(case, host, port, foreign), *general)


def _strength_of_refusal(case: Case, lines: list[Event], host: str) -> Strength:
    # a name that leads nowhere or astray, or a port that was taken, is another cause's
    own_name = case.of(SystemFault, what="own_name")
    misled = []
    for event in own_name:
        if host and host in event.text:
            misled.append(event)
    unresolved = case.of(SystemFault, what="unresolved")
    other_reason = case.of(StoreResolve, StoreBind) or unresolved or misled
    local = re.match(r"127\.|localhost$", host)
    # a client that still tries may yet succeed
    only_tried = all(event.kind == "store.retry" for event in lines)
    doubt = other_reason or local or not host or only_tried
    # the job was started again after a hang
    if _met_before(case, lines[0]):
        return "likely" if doubt else "possible"
    # one of them may have held the store
    reporting = set(ranks_in(lines))
    dead = {rank for rank in rank_states(case).dead if rank >= 0} - reporting
    if doubt or (dead and reporting):
        return "likely"
    return "proven"


def _met_before(case: Case, first: Event) -> list[Event]:
    """Timeouts of collectives above this line of its log.

    The ranks had met by then.
    """
    met = []
    for timeout in case.of(C10dTimeout):
        if timeout.path == first.path and timeout.line < first.line:
            met.append(timeout)
    return met


def _all_met(case: Case) -> Finding:
    """No client failed to connect.

    It is cleared by what comes after the store.
    """
    went_well: list[Evidence] = [
        *case.of(
            "nccl.init",
            "nccl.bootstrap",
            "c10d.timeout",
            "worker.phase",
            "progress",
            "store.clients",
        ),
        *_tested.passed(case, lambda link: link.rendezvous == "open"),
    ]
    missing = "the output of a rank that failed to connect"
    return otherwise(ID, went_well, "The ranks met at the store.", missing)


def _refused_connections(case: Case) -> list[Event]:
    """Events that report a failed connection to the store."""
    lines: list[Event] = case.of(StoreConnectTimeout)
    # W lines: many tries, no end
    lines += [e for e in case.of(StoreRetry) if e.data.tries is None]
    lines += [e for e in case.of(PythonException) if REFUSED.search(e.text)]
    return lines + matching(
        [*messages(case), *case.of(RendezvousError)],
        "connection to the C10d store has failed",
        "connect() timed out",
        "trying to connect to (",
        "RendezvousConnectionError",
        "failed to connect to TCPStore",
        "connection to etcd failed",
        "EtcdConnectionFailed",
    )


def _foreign_network(case: Case, address: str, asking: str) -> str:
    """Says that the address is in a foreign network.

    The asking host has no interface to it; "" where that is not known.
    """
    held = holders(case, address)
    known = subnets(case)
    own = set()
    for rows in known.get(asking, {}).values():
        for one in rows:
            own.add(one.network)
    # an address that several hosts have, or none, tells nothing of a network
    if len(held) != 1 or asking not in known or held[0][0] == asking:
        return ""
    (there, name), *_ = held
    # they share a network: then a port or a route is closed
    same = {one.network for one in known[there][name]} & own
    if same:
        return ""
    return f": the address is {name} of {there}, in a network to which {asking} has no interface"


def _other_endpoint(case: Case, host: str, port: object, foreign: bool) -> tuple[Advice, ...]:
    """Advice to use another endpoint.

    It is the first host's address in the network that joins all hosts, or another port of that
    address.
    """
    # only an address that all hosts reach by their facts is worth naming
    joined = shared_network(case)
    there = next((name for name, _ in holders(case, host)), host)
    if there not in joined or not is_whole(str(port)):
        return ()
    interface, address = joined[there]
    env = {"MASTER_ADDR": address}
    name = common_interface(case)
    do = f"Give all nodes the address of {there} that joins them, {interface}: {address}."
    if foreign and name:  # NCCL would use the isolated interface next
        env |= {"NCCL_SOCKET_IFNAME": name}
        do = (
            f"{do.rstrip('.')}; and restrict NCCL to {name}, since it cannot use the other"
            " interface either."
        )
    if not foreign:
        env |= {"MASTER_PORT": str(int(str(port)) + 1)}
        do = f"Open port {port} on {there} ({address}), or use one that is open."
    advice = Advice(
        do,
        env=env,
        why="The facts of the hosts say that they share this network.",
        check="`ncclkit connect` finds every path open, and all ranks pass init_process_group.",
        risk="None, as long as all nodes are given the same.",
    )
    return (advice,)


def _not_ours(case: Case) -> Finding | None:
    """The store was to listen at an address that its host does not have."""
    lines = foreign_address(case)
    if not lines:
        return None
    where = next(
        (m for e in lines if (m := re.search(r"bind to \[?([\w.:-]+?)\]?:(\d+)", e.text))), None
    )
    host, port = None, None
    listen = "an address"
    if where:
        host, port = where.groups()
        listen = f"{host}:{port}"
    say = (
        f"The store was to listen at {listen}{on(lines[0].host)}, but that host does not have"
        " this address: it "
    )
    say += "belongs to another host, or to a network that does not exist there."
    # the endpoint itself is wrong: to try to reach it would be no use
    advice = _advice(case, host, port)[::-1]
    return found(
        ID,
        "likely",
        say,
        pick(lines),
        hosts=name_hosts(lines),
        advice=advice,
        next=experiment(case),
    )


def _no_family(case: Case) -> Finding | None:
    """An exception says that the host has no such family of addresses.

    After a warning torch goes on with IPv4.
    """
    lines = matching(case.of("python.exception", "cpp.exception"), "Address family not supported")
    if not lines:
        return None
    say = (
        f"The store was to use a family of addresses that is switched off{on(lines[0].host)}, most"
        " often IPv6."
    )
    advice = _advice(case)
    return found(
        ID,
        "possible",
        say,
        pick(lines),
        hosts=name_hosts(lines),
        advice=advice,
        next=experiment(case),
    )


def _closed_port(case: Case) -> Finding | None:
    """A connection test could not reach the port although a listener was there."""
    closed = _tested.paths(case, lambda link: link.rendezvous in CLOSED)
    if not closed:
        return None
    first = closed[0]
    others = "and neither does any other port"
    if first.ephemeral == "open":
        others = "while another port there is open"
    # another address of the host answers, so nothing can be said of all its ports
    if first.ephemeral != "open" and first.reached:
        others = ""
    else:
        others = f", {others},"
    say = (
        f"Port {first.port} of {first.dst} at {first.address} {ends(first.rendezvous)} when"
        f" {first.src} asks{others} though a listener was there{_tested.plus(closed, 'path')}:"
        " ranks would not reach a store there."
    )
    why = tuple(link.event for link in closed[:6])
    advice = _advice(case, first.address, first.port)
    hosts = _tested.ends_of(closed)
    return found(
        ID, _tested.risk(case), say, why, hosts=hosts, advice=advice, next=experiment(case)
    )


def _endpoint_asked(lines: list[Event]) -> tuple[str | None, str | None]:
    for event in lines:
        match = re.search(
            r"connect to \(([^,()]+), (\d+)\)|endpoint[= ]([\w.-]+):(\d+)", event.text
        )
        if match:
            return match[1] or match[3], match[2] or match[4]
    return None, None


def _advice(case: Case, host: object = None, port: object = None) -> tuple[Advice, ...]:
    """How to find out why, and how to give all hosts one endpoint."""
    return _try_endpoint(case, host, port), Advice(
        "Give all nodes the same endpoint, an address of the first node that the others can route"
        f" to: {options_of(case).address}.",
        command="hostname -I; ip route",
        why=(
            "A name can resolve to 127.0.1.1 on one node and to an unreachable interface on"
            " another."
        ),
        check="All ranks pass init_process_group.",
        risk="None.",
    )


RAY_PORT = "6379"


def _try_endpoint(case: Case, host: object, port: object) -> Advice:
    """To try the endpoint from the hosts that could not reach it.

    Where the log names no host, the variables of the job do.
    """
    address = shlex.quote(str(host)) if host else '"$MASTER_ADDR"'
    number = str(port) if is_whole(str(port or "")) else "$MASTER_PORT"
    where = f"{host or 'the endpoint'} and connect to it"
    if host and port:
        where = f"{host} and connect to port {port}"
    first = "the first node waits"
    where_it_is_set = options_of(case).address
    # Ray's head listens there; its workers are told the address when they are started
    if number == RAY_PORT and "ray" in launchers(case):
        first = "Ray's head runs"
        where_it_is_set = OPTIONS["ray"].address
    connect = f"timeout 5 bash -c 'exec 3<>/dev/tcp/$0/$1 && echo open' {address} {number}"
    return Advice(
        f"From each node, resolve {where} while {first}; where that fails, correct the address:"
        f" {where_it_is_set}.",
        command=f"getent hosts {address}; {connect}",
        why="Refused: no process listens there.  No answer: firewall or wrong interface.",
        check="Every node prints 'open'.",
        risk="None, it only opens a connection.",
    )


def _no_host_has_it(host: str) -> bool:
    """Whether no host can have this address.

    It is a netmask, a broadcast address or one of a group.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_multicast or address.is_reserved or address.is_unspecified


def _real_address(case: Case, host: str) -> Advice:
    """To replace what no host can have as its address."""
    return Advice(
        f"Replace {host}, which no host can have, by an address of the first host; 127.0.0.1 will"
        f" do on a single host: {options_of(case).address}.",
        command="hostname -I",
        why="A netmask, a broadcast address or an example was taken for the address of a host.",
        check="All ranks pass init_process_group.",
        risk="None, as long as all nodes are given the same.",
    )


def experiment(case: Case) -> Experiment:
    """Check whether the ranks can meet."""
    return meeting(case)


REMEDIES = (*_advice(Case()), _real_address(Case(), "the address"))
