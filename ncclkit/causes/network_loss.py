"""The network between the nodes loses packets or drops connections

What you see
    On a job of several nodes that had started well: "Call to recv from ... failed : Connection
    timed out", "Connection reset by peer", "No route to host" in the middle, while no rank died;
    dmesg with a link going down; small messages that pass and larger ones that hang; bandwidth that
    collapses now and then, or one direction that carries a fraction of the other.

Why it happens
    A flapping link, a full switch buffer, a firewall that forgets idle connections, or a path that
    drops large packets (MTU) interrupts TCP streams that NCCL keeps open for days.  NCCL's socket
    transport does not reconnect: the connection fails and with it the communicator.

How to be sure
    First exclude a dead peer: every rank must still be alive when the first error appears.  Then
    `ping -M do -s 8972 PEER` (MTU), `ip -s link` and `nstat` (errors, retransmissions) on both
    ends.

What to do
    Repair the link; keep connection tracking out of the compute network.

Read more
    NCCL user guide: NCCL_SOCKET_IFNAME, NCCL_SOCKET_NTHREADS; ip(8), nstat(8).
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace

from ncclkit.analysis.hosts import can_simulate_again, holders, plain_address
from ncclkit.analysis.picks import (
    family,
    first_finding,
    in_order,
    initialized,
    matching,
    messages,
    name_hosts,
    on,
    otherwise,
    pick,
    who_of,
)
from ncclkit.analysis.rank_states import (
    all_waiting,
    crashes,
    how_they_waited,
    rank_states,
    spans_hosts,
)
from ncclkit.analysis.stages import LARGE, hosts_of
from ncclkit.causes import _starting, _tested
from ncclkit.causes._bisected import faulty_ranks
from ncclkit.causes._experiments import check_of, experiment_of
from ncclkit.core.bandwidth import marginal
from ncclkit.core.case import Case
from ncclkit.core.connections import NetworkPath, ends
from ncclkit.core.kinds import (
    C10dTimeout,
    FlightDump,
    GlooClosed,
    GlooConnect,
    GlooTimeout,
    JobDone,
    KernelLink,
    NcclBootstrap,
    NcclChannel,
    NetCounter,
    NetMesh,
    NetPing,
    NetTcp,
    RasChange,
    SlurmEvent,
    StepProgress,
    SystemFault,
    WorkerPhase,
)
from ncclkit.core.model import (
    Advice,
    Event,
    Evidence,
    Experiment,
    Finding,
    Measurement,
    Strength,
    clear,
    found,
)
from ncclkit.core.text import format_bytes, percent

ID = "network_loss"
NODE = 8  # ranks that one machine mostly has at most
explains = (
    *("c10d.timeout", "c10d.error", "nccl.trace", "store.lost"),
    *("slow_rank", "rank_exception", "timeout_too_short"),
)


def diagnose(case: Case) -> Finding:
    """Found where connections broke and no dead rank explains it."""
    tested = _tested.passed(
        case, lambda link: not _fault_of_path(link) and None not in (link.bandwidth, link.mtu)
    )
    went_well = [*case.of("nccl.destroy", "c10d.timeout"), *initialized(case), *tested]
    # what tests measured of a path is true whatever else ended the job
    by_tests = (_tested_paths, _from_stages, _slow_path)
    by_words = (
        _from_stages,
        _mesh_between,
        _counted_by_interface,
        _user_tested,
        _timed_out,
        _lost_connection,
        _stalled_path,
        _tested_paths,
        _slow_path,
        _nothing_arrives,
        _stalled_start,
    )
    if _other_reasons(case):
        finding = first_finding(case, *by_tests, _ended_otherwise)
    else:
        finding = first_finding(case, *by_words)
    return finding or otherwise(
        ID, went_well, "No connection broke.", "the logs of all ranks, and dmesg of the nodes"
    )


OF_PATHS = ("segfault", "packet_size", "own_name")
"""Faults of a system that do not end the connections of a rank.

Others of this list are told elsewhere.
"""


def _other_reasons(case: Case) -> list[Event]:
    """What ends a process, whose connections then break because of that."""
    states = rank_states(case)
    faults = []
    for event in case.of(SystemFault):
        if event.data.what not in OF_PATHS:
            faults.append(event)
    return [
        *states.dead.values(),
        *states.ended.values(),
        *case.of("gloo.size_mismatch", "kernel.oom"),
        *faults,
        *crashes(case),
        # a node that died takes its connections with it
        *case.of(SlurmEvent, what="node_fail"),
        *family(case, "shm", "cuda", "nvls", "fd", "memory"),
    ]


def _ended_otherwise(case: Case) -> Finding | None:
    """A process ended, or a library failed, before any connection broke."""
    reasons = _other_reasons(case)
    if not reasons:
        return None
    return clear(
        ID,
        "A process ended first, and its connections broke because of that.",
        tuple(reasons[:2]),
    )


def _from_stages(case: Case) -> Finding | None:
    """The staged test found a node, or a path, that fails or is slow.

    All others work.
    """
    who = faulty_ranks(case)
    if who is None or not who.between:
        return None
    advice = (PATH, *(() if who.slow else (SIZES,)))
    return found(
        ID,
        who.strength,
        who.summary,
        who.why,
        ranks=who.ranks,
        hosts=who.hosts,
        advice=advice,
        next=experiment(case),
    )


def _broken_connections(case: Case) -> list[Event]:
    lines = in_order([*family(case, "socket_closed", "socket_connect"), *case.of(GlooClosed)])
    broken_lines = []
    for e in lines:
        # a route that is missing is wrong_interface, and a rank that closes its own connection is
        # no loss
        if not matching([e], "No route to host", "Network is unreachable", "closed by localRank"):
            broken_lines.append(e)
    return broken_lines


def _timed_out(case: Case) -> Finding | None:
    """A link went down, or a connection that had been made timed out."""
    broken = _broken_connections(case)
    timed_out = matching(
        [*family(case, "socket_closed"), *case.of(GlooClosed)], "timed out", "No route to host"
    )
    small = case.of(SystemFault, what="packet_size")
    if small and (waits := [*case.of(C10dTimeout), *broken, *case.of(GlooTimeout)]):
        waited = how_they_waited(waits)
        say = "Large packets do not pass between the hosts, as the ping shows, "
        say += f"and ranks {waited} for data."
        return _finding(case, "likely", say, pick(small, waits, limit=5))
    links = case.of(KernelLink, state="down")
    if not timed_out and not (links and (broken or case.of(C10dTimeout))):
        return None
    # the kernel's line names the device, the library's only its end of it
    first = (links or timed_out)[0]
    device = first.data.device
    end = "lost its route"
    if matching(timed_out[:1], "timed out"):
        end = "timed out"
    if links:
        what = f"The link {device} went down"
    else:
        what = f"A connection to another node {end}"
    say = f"{what}{on(first.host)} while the ranks were alive."
    return _finding(case, "likely", say, pick(links, timed_out, broken))


def _user_tested(case: Case) -> Finding | None:
    """The log holds output of ping, or of a tool that shows a stalled connection."""
    seen = _tested.user_test(case)
    if seen is None or case.of(JobDone):
        return None
    stalled = [*case.of("c10d.timeout", "gloo.timeout"), *_broken_connections(case)]
    likely = stalled or any(event.kind == "net.tcp" for event in seen.lines)
    finding = _finding(
        case,
        "likely" if likely else "possible",
        f"{seen.summary}.",
        pick(seen.lines, stalled, limit=5),
    )
    if seen.passes is None:
        return finding
    # NCCL says itself over which interface it goes
    own = next((event.data.interface for event in case.of(NcclBootstrap)), "")
    command = SIZES.command
    if own:
        command = f"ip link set dev {shlex.quote(own)} mtu {seen.passes}"
    do = SIZES.do.replace("mtu 1400", f"mtu {seen.passes}").replace(
        "-s 1472", f"-s {seen.passes - _tested.HEADERS}"
    )
    return replace(finding, advice=(replace(SIZES, do=do, command=command), *_advice()))


OF_INTERFACES = {
    "carrier_down_count": (1, "its link goes down"),
    "rx_crc_errors": (3, "packets arrive broken"),
    "rx_errors": (3, "packets arrive broken"),
    "tx_errors": (3, "packets cannot be sent"),
    "rx_missed_errors": (100, "packets are lost for want of buffers"),
    "rx_dropped": (100, "packets are dropped as they arrive"),
    "tx_dropped": (100, "packets are dropped as they leave"),
}
"""Counter of an interface → (growth in seconds from which on it tells, what happens then).

A healthy interface drops a packet now and then, of a protocol that nobody asked for.
"""
DROPS = ("rx_missed_errors", "rx_dropped", "tx_dropped")
"""Counters of packets of anybody: on a busy network they grow beside a healthy job, too."""


def _counted_by_interface(case: Case) -> Finding | None:
    """Errors or drops of the ranks' interfaces grew while a job that stands was looked at."""
    repeated = []
    for connection in case.of(NetTcp):
        if connection.data.grown:
            repeated.append(connection)
    repeated.sort(key=_packets_repeated, reverse=True)
    lines = []
    for event in case.of(NetCounter):
        enough, _ = OF_INTERFACES.get(event.data.name, (0, ""))
        if event.data.port is not None or not enough or event.data.grown < enough:
            continue
        # that the job's own packets were lost shows only where its sockets sent them again
        if repeated or event.data.name not in DROPS:
            lines.append(event)
    if not lines or case.of(JobDone):
        return None
    lines.sort(key=_place_of_counter)
    first = lines[0]
    data = first.data
    say = (
        f"On {data.device}{on(first.host)} {OF_INTERFACES[data.name][1]} while the job stands"
        f" still ({data.name} rose by {data.grown} in {data.seconds:g} s)"
    )
    for worst in repeated[:1]:
        say += f"; a connection to {worst.data.peer} repeated {worst.data.grown} packets"
    finding = _finding(
        case,
        "likely",
        f"{say}.",
        pick([first], repeated[:1], lines, limit=5),
    )
    culprits = {
        **finding.culprits,
        "interfaces": (data.device,),
    }
    return replace(finding, culprits=culprits)


def _place_of_counter(event: Event[NetCounter]) -> tuple[int, int]:
    """The counter that tells most comes first, then the one that grew most."""
    names = list(OF_INTERFACES)
    place = names.index(event.data.name)
    return place, -event.data.grown


def _packets_repeated(event: Event[NetTcp]) -> int:
    return event.data.grown or 0


def _mesh_between(case: Case) -> Finding | None:
    """A service mesh's proxy stands between the ranks.

    NCCL's start over own ports failed.
    """
    proxies = case.of(NetMesh)
    broken = _broken_connections(case)
    broken += matching(
        messages(case),
        "remote process exited or there was a network error",
        "unhandled system error",
    )
    if not proxies or not broken or case.of(StepProgress) or _starting.bootstrapped(case):
        return None
    # the mesh passes the store's one port on; NCCL's own ports come after that
    met = _starting.met_at_store(case)
    say = (
        f"A proxy of a service mesh ({proxies[0].data.name}) takes the ranks' connections, and"
        " NCCL's start over "
    )
    say += "ports of its own choice failed: the mesh does not pass them on."
    say += " The ranks had met at the store." if met else ""
    advice = (WITHOUT_MESH, *_advice())
    strength: Strength = "possible"
    if met and not case.of("store.connect_timeout", "rendezvous.error"):
        strength = "likely"
    return replace(
        _finding(case, strength, say, pick(broken[:3], proxies, met[:1], limit=5)), advice=advice
    )


WITHOUT_MESH = Advice(
    'Leave the ranks\' pods out of the mesh (the annotation sidecar.istio.io/inject: "false" in'
    " their template), or exclude all their ports from it.",
    command="kubectl get pods -o wide",
    why=(
        "NCCL listens on ports that the kernel chooses, in a protocol of its own; a proxy closes"
        " such connections."
    ),
    check="`kubectl get pod` shows one container less, and the job passes its start.",
    risk="Traffic between the ranks is then not encrypted by the mesh; ask who runs the cluster.",
)


def _lost_connection(case: Case) -> Finding | None:
    """Connections were closed and no line says why."""
    lines = _broken_connections(case) or matching(
        messages(case), "remote process exited or there was a network error"
    )
    if not lines:
        return None
    who = f"{who_of(lines)} lost a connection{on(lines[0].host)}"
    return _finding(
        case, "possible", f"{who} and no file here shows that its peer died.", pick(lines)
    )


def _stalled_path(case: Case) -> Finding | None:
    """Every rank is in the same collective over several nodes, and none completes it."""
    lines = []
    if spans_hosts(case):
        # if one rank were missing, that rank would be the reason
        lines = all_waiting(case, rank_states(case))
    say = (
        "Every rank has entered the same collective over several nodes and none completes it: the"
        " data path stalls."
    )
    if lines:
        return _finding(case, "possible", say, pick(lines, limit=4))
    return None


def _nothing_arrives(case: Case) -> Finding | None:
    """All ranks of a job over several hosts wait for each other.

    All of them are alive.
    """
    states = rank_states(case)
    lines = []
    if spans_hosts(case) and case.of(GlooTimeout):
        lines = list(states.waiting.values())
    # a rank that says nothing may be late or dead
    if not lines or states.silent or set(states.members) - states.waiting.keys():
        return None
    who = who_of(lines)
    say = (
        f"{who} on several hosts timed out waiting for each other's data, and all of them were"
        " alive"
    )
    far, dumps = how_far(case, lines)
    strength: Strength = "possible"
    if far:
        strength = "likely"
    return _finding(case, strength, f"{say}{far}.", pick(lines[:4], dumps[:2]))


def _stalled_start(case: Case) -> Finding | None:
    """NCCL's start stalls on several hosts after its ranks had found each other.

    The messages after that are larger.
    """
    hung = []
    if spans_hosts(case):
        hung = _starting.hung_starts(case)
    # the ring of all ranks was closed once with short messages
    met = {event.rank: event for event in _starting.bootstrapped(case)}
    if not hung or not met or set(rank_states(case).members) - met.keys():
        return None
    say = (
        "All ranks on several hosts found each other, and then NCCL's start stalled: short messages"
        " passed, and the "
    )
    say += "longer ones after them seem not to arrive."
    # NCCL's RAS counts launches: ranks that launch are under way
    still = []
    for change in case.of(RasChange):
        if change.data.still and not change.data.moved:
            still.append(change)
    likely = still and not case.of(NcclChannel)  # before any other network path is used
    finding = _finding(
        case, "likely" if likely else "possible", say, pick(met.values(), hung, still, limit=6)
    )
    return replace(finding, advice=(SIZES, *_advice()))


PATH = Advice(
    "Test the network path between the named hosts (`ncclkit connect` with their names), and"
    " compare the state of their cards with those of another host.",
    command="ip -s link; ibstat; perfquery -x",
    why=(
        "All hosts ran the same program; the difference can only be in these hosts, or in the"
        " cables and ports between them."
    ),
    check="The pair matrix of a repeated staged test shows no frame.",
    risk="None, it only measures; until it is repaired, leave the named host out of the job.",
)
SIZES = Advice(
    "Let no host send larger packets than the network path allows: set an equal MTU on every hop,"
    " or a smaller one on the hosts (ip link set dev, the interface, mtu 1400); ping -M do -s 1472"
    " to a peer shows whether full packets pass.",
    command="ip link show",
    why="A connection that stalls at the first large message often loses only the large packets.",
    check=(
        "`ncclkit connect` finds the same packet size in both directions, and the job passes the"
        " point of the hang."
    ),
    risk=(
        "A smaller MTU costs some speed and interrupts connections for a moment; ask who runs the"
        " network."
    ),
)
"""Advice where connections were made and then no data arrived."""


def _tested_paths(case: Case) -> Finding | None:
    """A connection test lost packets, or found a bad path.

    The packets are of the size in use; the path is stalled or filtered.
    """
    bad = sorted(
        _tested.paths(case, lambda link: bool(_fault_of_path(link))),
        key=lambda link: link.bandwidth is not None,
    )
    if not bad:
        return None
    first = bad[0]
    say = f"Between {first.src} and {first.dst}{_tested.plus(bad, 'path')} {_fault_of_path(first)}."
    names: set[str] = set()
    for link in bad:
        names.update((link.src, link.dst))
    hosts = tuple(sorted(names))
    why = tuple(link.event for link in bad[:6])
    advice = (_same_mtu(first.mtu_own or 1500, first.over),) if first.shrinks else _advice()
    return found(
        ID, _tested.risk(case), say, why, hosts=hosts, advice=advice, next=experiment(case)
    )


def _slow_path(case: Case) -> Finding | None:
    """A path that loses nothing but is slow.

    It is told by a connection test or a live test's figures.
    """
    tested = slow_paths(case)
    if tested:
        say, hosts, links = tested
        why = tuple(link.event for link in links[:6])
        sure = _tested.risk(case)
        return found(ID, sure, say, why, hosts=hosts, advice=(HELD_BACK,), next=experiment(case))
    crawl = crawls(case)
    if crawl:
        say, hosts, rows = crawl
        return found(
            ID,
            "possible",
            say,
            tuple(rows),
            hosts=hosts,
            advice=(HELD_BACK,),
            next=experiment(case),
        )
    return None


def _fault_of_path(link: NetworkPath) -> str:
    # the connection was made, so small packets pass
    stalled = "timed out" in link.why.get("bandwidth", "")
    if link.shrinks:
        effect = "TCP works, since one end asks for smaller ones; RDMA does not"
        if stalled:
            effect = "a TCP stream stalled"
        return (
            f"packets of {link.mtu_own:g} bytes, which {link.src} may send, get lost and those of"
            f" {link.mtu:g} pass: " + effect
        )
    if link.reached and stalled:
        return "a TCP stream stalled although the connection was made"
    # NCCL listens on ports that the kernel chooses
    if link.rendezvous == "open" and link.ephemeral not in ("open", ""):
        return (
            f"port {link.port} is open but a port that the kernel chose {ends(link.ephemeral)}: a"
            " firewall filters them"
        )
    return ""


WITH_ADDRESS = (GlooClosed, GlooConnect, NcclBootstrap, NetPing)
"""What names an address of a host."""


def _finding(case: Case, strength: Strength, say: str, why: tuple[Evidence, ...]) -> Finding:
    events = [piece for piece in why if isinstance(piece, Event)]
    told = []
    for event in events:
        if isinstance(event.data, WITH_ADDRESS):
            told.append(event.data.address)
    peers = set()
    for address in told:
        for host, _ in holders(case, plain_address(address)):
            peers.add(host)
    hosts = tuple(sorted({*name_hosts(events), *peers}))  # both ends are victims: no culprit rank
    # over gloo all data goes through TCP, which stalls where packets are too large for the path
    if case.of("gloo."):
        advice = (SIZES, *_advice())
    else:
        advice = _advice()
    return found(ID, strength, say, why, hosts=hosts, advice=advice, next=experiment(case))


def _same_mtu(largest: float, peer: str) -> Advice:
    command = "ip link show"
    if peer:
        command += f"; ping -c 3 -M do -s {largest - _tested.HEADERS:g} {shlex.quote(peer)}"
    return Advice(
        "Give all interfaces and switch ports between the hosts the same MTU.",
        command=command,
        why=(
            "A sender on the same network is not notified when a packet was too large; the packet"
            " is dropped."
        ),
        check="`ncclkit connect` finds the same packet size in both directions.",
        risk="Changing the MTU of an interface interrupts its connections for a moment.",
    )


def _advice() -> tuple[Advice, ...]:
    return (
        Advice(
            "Exclude a dead peer first (the earliest error over all ranks), then test the path"
            " between the two nodes (ping -c 100 -M do -s 1472 from one to the other).",
            command="ip -s link; nstat -az | grep -i retrans",
            why="A closed connection is usually a dead process, and only sometimes the network.",
            check=(
                "No loss in 100 pings of full size and no growing error counters; the pair test"
                " passes ten times."
            ),
            risk="None, it only measures.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Test the network path between hosts that can be reached.

    Elsewhere run the live test without the program.
    """
    if can_simulate_again(case):
        return check_of(
            "connections",
            "What happens to packets of all sizes on the network path between the hosts, without"
            " any rank?",
            {
                ID: "some get lost, a stream stalls, or one direction is far slower than the other",
                "wrong_interface": "the address that a library announces cannot be reached",
                "store_unreachable": "the rendezvous port cannot be reached",
            },
        )
    return experiment_of(
        "Do the same ranks fail alone, without the training program?",
        {"minimal": True},
        {
            ID: ("same", "they fail in the same way"),
            "wrong_interface": ("same", "they fail in the same way, always at the start"),
            "rank_exception": ("works", "they work: a process had died"),
            "rank_divergence": ("works", "they work: the program's ranks had diverged"),
        },
    )


def how_far(case: Case, lines: list[Event]) -> tuple[str, list[Event]]:
    """``: what n1 sent did not arrive on n2``, with the dumps.

    The dumps show it.  It is nothing where nobody can tell.  `lines` are the ranks' own words on
    their waiting.
    """
    dumps = _half_done(case)
    if dumps:
        return ": a collective that was done on some of them had not arrived on others", dumps
    # both ends are alive: what one sends does not reach the other
    direction = _one_direction(lines)
    if direction:
        return f": what {direction[0]} sent did not arrive on {direction[1]}", []
    sizes = _too_large(case)
    if sizes:
        return (
            f": messages of {sizes[0]:,} bytes had come through, and those of {sizes[1]:,} did not",
            [],
        )
    return "", []


def _one_direction(lines: list[Event]) -> tuple[str, str] | None:
    """The host that could not send and the one that waited to receive, if these are two."""
    ends = {}
    for what in "send", "recv":
        hosts = set()
        for event in lines:
            if event.data.what == what:
                hosts.add(event.host)
        ends[what] = hosts
    apart = all(ends.values()) and not ends["send"] & ends["recv"]
    if apart:
        return min(ends["send"]), min(ends["recv"])
    return None


def _too_large(case: Case) -> tuple[int, int] | None:
    """The largest message that a live test measured, and the larger one that hangs.

    At the larger one all ranks stand.
    """
    phases = {}
    for event in in_order(case.of(WorkerPhase)):
        if event.data.phase == "size":
            phases[event.rank] = event.data
    sizes = {phase.bytes for phase in phases.values()}
    last = None
    if len(sizes) == 1:
        last = sizes.pop()
    passed = max((m.bytes for m in case.measurements), default=0)
    if isinstance(last, int) and 0 < passed < last:
        return passed, last
    return None


def _half_done(case: Case) -> list[Event]:
    """Dumps of ranks that wait in a collective which another rank has already completed."""
    dumps = [event for event in case.of(FlightDump) if isinstance(event.data.groups, dict)]
    done: dict[str, int] = {}
    for event in dumps:
        for group, seen in event.data.groups.items():
            done[group] = max(done.get(group, 0), seen.get("last_completed") or 0)
    events = []
    for event in dumps:
        if any(
            min(seen.get("in_flight") or [1 << 62]) <= done[group]
            for group, seen in event.data.groups.items()
        ):
            events.append(event)
    return events


HELD = 0.1
"""Share of what can be carried below which a direction is held back.

It can carry what the other way, or the link by its own word, carries.
"""
LOST = 0.02
"""Share of packets sent again from which on they get lost.

A busy network drops 1 in 1000.
"""
WAIT, AGAIN = 2e5, 3.0
"""Signs that TCP waits for a lost packet.

The first is the us that it waits at least, the second so many medians as a call takes that waited
so.
"""

Paths = tuple[str, tuple[str, ...], list[NetworkPath]]
"""A sentence, the hosts, and the paths that show it."""


def slow_paths(case: Case) -> Paths | None:
    """What a connection test says of a direction that loses packets, or is merely slow."""
    return _lossy_paths(case) or _held_back(case)


def _lossy_paths(case: Case) -> Paths | None:
    """A direction in which more of the stream was sent again than a busy network loses."""
    lossy = _tested.paths(
        case, lambda link: link.bandwidth is not None and (link.resent or 0.0) >= LOST
    )
    # the worst first, which the sentence is about
    lossy.sort(key=lambda link: -(link.resent or 0.0))
    if not lossy:
        return None
    first = lossy[0]
    say = (
        f"Of what {first.src} sends to {first.dst}{_tested.plus(lossy, 'path')}"
        f" {percent(first.resent or 0)} of the packets get lost and are sent again; it passes at"
        f" {first.bandwidth:.3g} GB/s."
    )
    return say, _shared_ends(lossy), lossy


def _held_back(case: Case) -> Paths | None:
    """A direction is far slower than the opposite one."""
    links = {
        (link.src, link.dst): link
        for link in _tested.paths(case, lambda link: link.bandwidth is not None)
    }
    slow = [
        one
        for (src, dst), one in links.items()
        if (back := links.get((dst, src))) and _carries_less(one, back)
    ]
    if not slow:
        return None
    # the slowest path is what all ranks wait for
    first = min(slow, key=lambda link: link.bandwidth or 0.0)
    back = links[first.dst, first.src]
    say = (
        f"What {first.src} sends to {first.dst}{_tested.plus(slow, 'path')} passes at"
        f" {first.bandwidth:.3g} GB/s, and the other way at {back.bandwidth:.3g} GB/s: something"
        " holds it back."
    )
    return say, _shared_ends(slow), [first, back, *(link for link in slow if link is not first)]


def _shared_ends(links: list[NetworkPath]) -> tuple[str, ...]:
    """The ends that all bad paths have in common.

    They are both of a single one, and all where they have none in common.
    """
    ends: Counter[str] = Counter()
    for link in links:
        ends.update((link.src, link.dst))
    # the end that all bad paths share is the one to look at
    in_all = []
    for end, count in ends.items():
        if count == len(links):
            in_all.append(end)
    return tuple(sorted(in_all or ends))


def _carries_less(link: NetworkPath, back: NetworkPath) -> bool:
    return (link.bandwidth or 0.0) < HELD * (back.bandwidth or 0.0)


def crawls(case: Case) -> tuple[str, tuple[str, ...], list[Measurement]] | None:
    """What the last live test says of hosts that exchange too little.

    It is far less than their interfaces send: sentence, hosts, rows.  It is judged by what each
    further byte costs, so that neither latency nor the number of hosts in a ring counts; or by
    small calls that take as long as TCP waits before it sends a packet again.
    """
    run = ""
    if case.measurements:
        run = case.measurements[-1].run
    rows = []
    for measurement in case.measurements:
        if (
            measurement.run == run
            and measurement.hosts > 1
            and measurement.expected
            and measurement.busbw
        ):
            rows.append(measurement)
    hosts = tuple(sorted({*hosts_of(case.latest().of(WorkerPhase)).values()})) if rows else ()
    for op in dict.fromkeys(m.op for m in rows):
        mine = sorted((m for m in rows if m.op == op), key=lambda m: m.bytes)
        # the slope between sizes: neither latency nor the number of hosts in a ring counts in it
        speed = marginal(mine)
        last = mine[-1]
        bound = mine[-1].expected or 0.0
        named = hosts if len(hosts) == 2 else ()
        # TCP waits at least 200 ms before it sends a lost packet again; twice is no chance
        stalls = []
        for m in mine:
            if (m.p99_us or 0.0) > max(WAIT, AGAIN * m.time_us):
                stalls.append(m)
        if len(stalls) > 1:
            return (
                f"{op} between {last.hosts} hosts "
                f"{_waits_in_words(stalls[0], len(stalls), len(mine))}",
                named,
                stalls,
            )
        # small messages are bound by latency
        if speed is None or last.bytes < LARGE or speed >= HELD * bound:
            continue
        say = (
            f"{op} between {last.hosts} hosts reaches {last.busbw:.3g} of at most {bound:.3g} GB/s"
            f" busbw at {format_bytes(last.bytes)}, and latency does not explain it: further bytes"
            f" pass at {speed:.3g} GB/s."
        )
        return say, named, mine[-2:]
    return None


def _waits_in_words(one: Measurement, stalls: int, sizes: int) -> str:
    """Calls at several sizes that take as long as TCP waits.

    That is how long it waits before it sends a packet again.
    """
    return (
        f"takes {one.time_us / 1e3:.3g} ms for {format_bytes(one.bytes)} and now and then "
        f"{(one.p99_us or 0.0) / 1e3:.0f} ms, at {stalls} of {sizes} sizes: "
        "TCP waits 200 ms and more before it sends a lost packet again."
    )


HELD_BACK = Advice(
    "Find what holds that direction back: a shaper, a link that agreed on less speed, a bad cable"
    " or port.",
    command="tc -s qdisc show; grep -s . /sys/class/net/*/speed; ip -s link show",
    why=(
        "A collective waits for its slowest way, and TCP hides losses and shapers as mere slowness."
    ),
    check="`ncclkit connect HOST HOST` measures both directions alike, near what the link says.",
    risk="None, it only looks.",
)
REMEDIES = (
    *_advice(),
    PATH,
    SIZES,
    _same_mtu(1500, ""),
    HELD_BACK,
    WITHOUT_MESH,
)
