"""The network between the nodes loses packets or drops connections

What you see
    On a job of several nodes that had started well: "Call to recv from ... failed : Connection timed out",
    "Connection reset by peer", "No route to host" in the middle, while no rank died; dmesg with a link going down; or
    bandwidth that collapses now and then.

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

from ncclkit.case import Case
from ncclkit.causes import _tested
from ncclkit.causes._scene import all_in, look, spans_hosts
from ncclkit.causes._words import (
    ask, family, in_order, matching, messages, name_hosts, name_ranks, on, otherwise, pick, ranks_in,
)  # fmt: skip
from ncclkit.evidence.jobs.links import Link, ends
from ncclkit.model import Advice, Event, Evidence, Experiment, Finding, Strength, clear, found
from ncclkit.words import start

ID = "network_loss"
explains = ("c10d.timeout", "c10d.error", "nccl.trace", "store.lost", "slow_rank", "rank_exception")


def diagnose(case: Case) -> Finding:
    """Connections broke, and no rank died that would explain it."""
    scene = look(case)
    reasons = [
        *scene.dead.values(),
        *scene.ended.values(),
        *case.of("gloo.size_mismatch"),
        *case.of("kernel.oom"),
        *case.of("system.error"),
        *family(case, "shm", "cuda", "nvls", "fd", "memory"),
    ]
    if reasons:
        return _tested_paths(case) or clear(
            ID, "A process ended first; its connections broke because of that.", tuple(reasons[:2])
        )
    done = [e for e in case.of("nccl.init") if e.data.get("phase") == "done"]
    tested = _tested.sound(case, lambda link: not _fault(link) and None not in (link.bandwidth, link.mtu))
    went_well = [*case.of("nccl.destroy"), *case.of("c10d.timeout"), *done, *tested]
    return ask(case, _timed_out, _lost, _stalled, _tested_paths) or otherwise(
        ID, went_well, "No connection broke.", "the logs of all ranks, and dmesg of the nodes"
    )


def _broken(case: Case) -> list[Event]:
    lines = in_order([*family(case, "socket_closed", "socket_connect"), *case.of("gloo.closed")])
    return [e for e in lines if not matching([e], "No route to host", "Network is unreachable", "closed by localRank")]


def _timed_out(case: Case) -> Finding | None:
    """A link went down, or a connection that had been made timed out."""
    broken = _broken(case)
    timed_out = matching(family(case, "socket_closed"), "timed out")
    links = [e for e in case.of("kernel.link") if e.data.get("state") == "down"]
    if not timed_out and not (links and (broken or case.of("c10d.timeout"))):
        return None
    first = (links or timed_out)[0]
    device = first.data.get("device", "")
    what = f"The link {device} went down" if links else "A connection to another node timed out"
    say = f"{what}{on(first.host)} while the ranks were alive."
    return _tell(case, "likely", say, pick(links, timed_out, broken))


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


def _fault(link: Link) -> str:
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
    hosts = name_hosts(piece for piece in why if isinstance(piece, Event))  # both ends are victims: no culprit rank
    return found(ID, strength, say, why, hosts=hosts, advice=_advice(), next=experiment(case))


def _same_mtu(link: Link) -> Advice:
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
    """The pair test between the two nodes, repeated."""
    return Experiment(
        "Does the pair of nodes fail alone, without the training program?",
        {"ranks": "one per node", "repeat": 10},
        {
            ID: "it fails or its bandwidth varies widely",
            "rank_exception": "it passes: a process had died",
            "wrong_interface": "it fails at the start, always",
        },
    )
