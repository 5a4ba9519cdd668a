"""The network between the nodes loses packets or drops connections

What you see
    On a job of several nodes that had started well: "Call to recv from ... failed : Connection timed out",
    "Connection reset by peer", "No route to host" in the middle, while no rank died; dmesg with a link going down;
    small messages that pass and larger ones that hang; bandwidth that collapses now and then, or one direction that
    carries a fraction of the other.

Why it happens
    A flapping link, a full switch buffer, a firewall that forgets idle connections, or a path that drops large packets
    (MTU) interrupts TCP streams that NCCL keeps open for days.  NCCL's socket transport has no second try: the
    connection fails and with it the communicator.

How to be sure
    First exclude a dead peer: every rank must still be alive when the first error appears.  Then
    `ping -M do -s 8972 PEER` (MTU), `ip -s link` and `nstat` (errors, retransmissions) on both ends.

What to do
    Repair the link; equal MTU on all hops; keep connection tracking out of the compute network.

Read more
    NCCL user guide: NCCL_SOCKET_IFNAME, NCCL_SOCKET_NTHREADS; ip(8), nstat(8).
"""

from __future__ import annotations

from dataclasses import replace

from ncclkit.analysis.hosts import enterable, holders, plain
from ncclkit.analysis.picks import (  # fmt: skip
    ask,
    family,
    in_order,
    matching,
    messages,
    name_hosts,
    name_ranks,
    on,
    otherwise,
    pick,
    ranks_in,
)
from ncclkit.analysis.rank_states import all_in, crashes, look, spans_hosts
from ncclkit.causes import _slow_path, _starting, _tested
from ncclkit.causes._arrived import how_far
from ncclkit.causes._bisected import odd
from ncclkit.core.case import Case
from ncclkit.core.connections import NetworkPath, ends
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Finding, Strength, clear, found
from ncclkit.core.text import start

ID = "network_loss"
NODE = 8  # ranks that one machine mostly has at most
explains = (
    *("c10d.timeout", "c10d.error", "nccl.trace", "store.lost"),
    *("slow_rank", "rank_exception", "timeout_too_short"),
)


def diagnose(case: Case) -> Finding:
    """Connections broke, and no rank died that would explain it."""
    scene = look(case)
    reasons = [
        *scene.dead.values(),
        *scene.ended.values(),
        *case.of("gloo.size_mismatch"),
        *case.of("kernel.oom"),
        *(e for e in case.of("system.error") if e.data.get("what") not in ("segfault", "packet_size", "own_name")),
        *crashes(case),
        *family(case, "shm", "cuda", "nvls", "fd", "memory"),
    ]
    if reasons:
        return (
            _tested_paths(case)
            or _climbed(case)
            or _slow(case)
            or clear(ID, "A process ended first; its connections broke because of that.", tuple(reasons[:2]))
        )
    done = [e for e in case.of("nccl.init") if e.data.get("phase") == "done"]
    tested = _tested.sound(case, lambda link: not _fault(link) and None not in (link.bandwidth, link.mtu))
    went_well = [*case.of("nccl.destroy"), *case.of("c10d.timeout"), *done, *tested]
    return ask(
        case,
        *(_climbed, _looked_up, _timed_out, _lost, _stalled, _tested_paths, _slow, _nothing_arrives, _start, _anybody),
    ) or otherwise(ID, went_well, "No connection broke.", "the logs of all ranks, and dmesg of the nodes")


def _climbed(case: Case) -> Finding | None:
    """The ladder of the live test: a node, or the way between two, that fails or is slow where all others are well."""
    who = odd(case)
    if who is None or not who.between:
        return None
    advice = (PATH, *(() if who.slow else (SIZES,)))
    return found(
        ID, who.strength, who.say, who.why, ranks=who.ranks, hosts=who.hosts, advice=advice, next=experiment(case)
    )


def _broken(case: Case) -> list[Event]:
    lines = in_order([*family(case, "socket_closed", "socket_connect"), *case.of("gloo.closed")])
    return [e for e in lines if not matching([e], "No route to host", "Network is unreachable", "closed by localRank")]


def _timed_out(case: Case) -> Finding | None:
    """A link went down, or a connection that had been made timed out."""
    broken = _broken(case)
    timed_out = matching([*family(case, "socket_closed"), *case.of("gloo.closed")], "timed out", "No route to host")
    small = [e for e in case.of("system.error") if e.data.get("what") == "packet_size"]
    if small and (waits := [*case.of("c10d.timeout"), *broken, *case.of("gloo.timeout")]):
        say = "Large packets do not pass between the hosts, as the ping shows, and ranks waited in vain for data."
        return _tell(case, "likely", say, pick(small, waits, limit=5))
    links = [e for e in case.of("kernel.link") if e.data.get("state") == "down"]
    if not timed_out and not (links and (broken or case.of("c10d.timeout"))):
        return None
    first = (links or timed_out)[0]
    device = first.data.get("device", "")
    end = "timed out" if matching(timed_out[:1], "timed out") else "lost its route"
    what = f"The link {device} went down" if links else f"A connection to another node {end}"
    say = f"{what}{on(first.host)} while the ranks were alive."
    return _tell(case, "likely", say, pick(links, timed_out, broken))


def _looked_up(case: Case) -> Finding | None:
    """Somebody pinged the other host, or looked at a connection that stands still."""
    seen = _tested.looked(case)
    if seen is None or case.of("job.done"):
        return None
    stands = [*case.of("c10d.timeout"), *case.of("gloo.timeout"), *_broken(case), *case.of("told.hang")]
    likely = stands or any(event.kind == "net.tcp" for event in seen.lines)
    told = _tell(case, "likely" if likely else "possible", f"{seen.say}.", pick(seen.lines, stands, limit=5))
    if seen.passes is None:
        return told
    own = next((event.data["interface"] for event in case.of("nccl.bootstrap")), "<interface>")
    command = f"ip link set dev {own} mtu {seen.passes}; ping -M do -s {seen.passes - _tested.HEADERS} <peer>"
    return replace(told, advice=(replace(SIZES, command=command), *_advice()))


def _lost(case: Case) -> Finding | None:
    """Closed connections, and nobody who says why."""
    lines = _broken(case) or matching(messages(case), "remote process exited or there was a network error")
    if not lines:
        return None
    who = f"{start(name_ranks(ranks_in(lines)))} lost a connection{on(lines[0].host)}"
    return _tell(case, "possible", f"{who} and no file here shows that its peer died.", pick(lines))


def _stalled(case: Case) -> Finding | None:
    """Everybody is in the same collective over several nodes, and nobody completes it."""
    lines = all_in(case, look(case)) if spans_hosts(case) else []
    say = (
        "Every rank has entered the same collective over several nodes and none completes it: the data "
        "path stands still."
    )
    return _tell(case, "possible", say, pick(lines, limit=4)) if lines else None


def _nothing_arrives(case: Case) -> Finding | None:
    """All ranks of a job over several hosts wait for each other, and all of them live."""
    scene = look(case)
    lines = list(scene.waiting.values()) if spans_hosts(case) and case.of("gloo.timeout") else []
    if not lines or scene.silent or set(scene.members) - scene.waiting.keys():
        return None
    who = start(name_ranks(ranks_in(lines)))
    say = f"{who} waited in vain for each other's data, on several hosts, and all of them were alive"
    far, dumps = how_far(case, lines)
    strength: Strength = "likely" if far else "possible"
    return _tell(case, strength, f"{say}{far}.", pick(lines[:4], dumps[:2]))


def _start(case: Case) -> Finding | None:
    """NCCL's start stands still on several hosts after its ranks had found each other: what comes then is larger."""
    hung = _starting.hangs(case) if spans_hosts(case) else []
    met = {event.rank: event for event in _starting.went_around(case)}
    if not hung or not met or set(look(case).members) - met.keys():
        return None
    say = "All ranks found each other on several hosts, and then NCCL's start stood still: short messages passed, what "
    say += "comes after them, which is longer, seems not to arrive."
    still = [change for change in case.of("ras.change") if change.data["still"] and not change.data["moved"]]
    likely = still and not case.of("nccl.channel")  # before any other way than this is tried
    told = _tell(case, "likely" if likely else "possible", say, pick(met.values(), hung, still, limit=6))
    return replace(told, advice=(SIZES, *_advice()))


def _anybody(case: Case) -> Finding | None:
    """Another rank complains first each time: not one rank's program or GPU is at fault, but what all share."""
    told = [event for event in case.of("told.habit") if event.data["what"] == "any_victim"]
    if not told or not case.of("c10d.timeout") or not (spans_hosts(case) or len(look(case).members) > NODE):
        return None
    say = "Another rank complains first each time, so the fault lies in what all of them share, such as the network."
    return _tell(case, "possible", say, pick(told, case.of("c10d.timeout"), limit=4))


PATH = Advice(
    "Test the way between the hosts that are named, and compare the state of their cards with those of another host.",
    command="ncclkit connect <host> <host>; ethtool <interface>; ip -s link; ibstat; perfquery -x",
    why="All hosts ran the same program; only what is different about these, or about the cables and ports between "
    "them, can make the difference.",
    check="The pair matrix of a repeated live test with the ladder shows no frame.",
    risk="None, it only measures; until it is repaired, leave the named host out of the job.",
)
SIZES = Advice(
    "Let no host send larger packets than the whole way takes: equal MTU on every hop, or a smaller one on the hosts.",
    command="ping -M do -s 1472 <peer>; ip link set dev <interface> mtu 1400",
    why="What connects and then stands still at the first large message often loses large packets, and those alone.",
    check="`ncclkit connect` finds the same packet size in both directions, and the job passes the place.",
    risk="A smaller MTU costs some speed and interrupts connections for a moment; ask who runs the network.",
)
"""Where connections were made, and then nothing came through."""


def _tested_paths(case: Case) -> Finding | None:
    """A connection test lost packets of the size that the hosts use, or saw a path that stalls or filters ports."""
    bad = sorted(_tested.paths(case, lambda link: bool(_fault(link))), key=lambda link: link.bandwidth is not None)
    if not bad:
        return None
    first = bad[0]
    say = f"Between {first.src} and {first.dst}{_tested.more(bad, 'path')} {_fault(first)}."
    hosts = tuple(sorted({name for link in bad for name in (link.src, link.dst)}))
    why = tuple(link.event for link in bad[:6])
    advice = (_same_mtu(first),) if first.shrinks else _advice()
    return found(ID, _tested.risk(case), say, why, hosts=hosts, advice=advice, next=experiment(case))


def _slow(case: Case) -> Finding | None:
    """A way on which nothing gets lost and everything is late: by a connection test, or by the live test's numbers."""
    if tested := _slow_path.tested(case):
        say, hosts, links = tested
        why, sure = tuple(link.event for link in links[:6]), _tested.risk(case)
        return found(ID, sure, say, why, hosts=hosts, advice=(_slow_path.ADVICE,), next=experiment(case))
    if crawl := _slow_path.crawls(case):
        say, hosts, rows = crawl
        return found(ID, "possible", say, tuple(rows), hosts=hosts, advice=(_slow_path.ADVICE,), next=experiment(case))
    return None


def _fault(link: NetworkPath) -> str:
    stood = "timed out" in link.why.get("bandwidth", "")
    if link.shrinks:
        effect = (
            "a TCP stream stood still" if stood else "TCP copes, since one end asks for smaller ones; RDMA does not"
        )
        return (
            f"packets of {link.mtu_own:g} bytes, which {link.src} may send, get lost and those of {link.mtu:g} pass: "
            + effect
        )
    if link.reached and stood:
        return "a TCP stream stood still although the connection was made"
    if link.rendezvous == "open" and link.ephemeral not in ("open", ""):
        return (
            f"port {link.port} is open but a port that the kernel chose {ends(link.ephemeral)}: a firewall filters them"
        )
    return ""


def _tell(case: Case, strength: Strength, say: str, why: tuple[Evidence, ...]) -> Finding:
    events = [piece for piece in why if isinstance(piece, Event)]
    peers = {host for event in events for host, _ in holders(case, plain(event.data.get("address")))}
    hosts = tuple(sorted({*name_hosts(events), *peers}))  # both ends are victims: no culprit rank
    advice = (SIZES, *_advice()) if case.of("gloo.") else _advice()
    return found(ID, strength, say, why, hosts=hosts, advice=advice, next=experiment(case))


def _same_mtu(link: NetworkPath) -> Advice:
    return Advice(
        "Give all interfaces and switch ports between the hosts the same MTU.",
        command=f"ip link show; ping -M do -s {(link.mtu_own or 1500) - 28:g} {link.over}",
        why="Nobody tells a sender on the same network that a packet was too large; it is dropped.",
        check="`ncclkit connect` finds the same packet size in both directions.",
        risk="Changing the MTU of an interface interrupts its connections for a moment.",
    )


def _advice() -> tuple[Advice, ...]:
    return (
        Advice(
            "Exclude a dead peer first (the earliest error over all ranks), then test the path between the two nodes.",
            command="ping -c 100 -M do -s 1472 <peer>; ip -s link; nstat -az | grep -i retrans",
            why="A closed connection is usually a dead process, and only sometimes the network.",
            check="No loss in 100 pings of full size and no growing error counters; the pair test passes ten times.",
            risk="None, it only measures.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """The path between hosts that are ours to enter; elsewhere the live test without the program."""
    if enterable(case):
        return Experiment(
            "What happens to packets of all sizes on the way between the hosts, without any rank?",
            {"check": "connections"},
            {
                ID: "some get lost, a stream stands still, or one direction is far slower than the other",
                "wrong_interface": "the address that a library announces cannot be reached",
                "store_unreachable": "the rendezvous port cannot be reached",
            },
            {ID: "found", "wrong_interface": "found", "store_unreachable": "found"},
        )
    return Experiment(
        "Do the same ranks fail alone, without the training program?",
        {"minimal": True},
        {
            ID: "they fail in the same way",
            "wrong_interface": "they fail in the same way, always at the start",
            "rank_exception": "they work: a process had died",
            "rank_divergence": "they work: the program's ranks had parted",
        },
        {ID: "same", "wrong_interface": "same", "rank_exception": "works", "rank_divergence": "works"},
    )
