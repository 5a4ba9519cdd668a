"""An InfiniBand or RoCE link fails

What you see
    "NET/IB: WQE stall (no CQE): peer=... dev=mlx5_3" or "WQE slow" (NCCL 2.31), or
    "Got completion from peer ... with status=12" (IBV_WC_RETRY_EXC_ERR), "NET/IB : Got async event
    : port error", dmesg "mlx5_core ... Link down", on a job that started well.  Other ranks report
    status 5 (flushed) or a closed connection.

Why it happens
    The network card sends a packet and waits for the acknowledgement; after its retries (by default
    about 30 s with NCCL 2.23 and newer, 8 s before) it closes the connection.  The cause is between
    the two ports: a cable or optic, a switch, congestion without flow control on RoCE, a peer that
    died.  Status 5 is only the echo on connections that were up at that moment.

How to be sure
    Which port occurs in all reports?  `ibstat`, link_downed and symbol_error counters on that port,
    dmesg of its node at that second.  A pair test over exactly that link fails alone.

What to do
    Have the cable or optic replaced.

Read more
    NCCL user guide: NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT; Troubleshooting: InfiniBand.  ibdiagnet.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ncclkit.agent.digits import whole_number
from ncclkit.analysis.diagnostics import diagnostics, ranks_of_job
from ncclkit.analysis.outcome import outcome
from ncclkit.analysis.picks import (
    family,
    first_finding,
    in_order,
    matching,
    messages,
    name_hosts,
    name_ranks,
    on,
    over_sockets,
    pick,
    ranks_in,
)
from ncclkit.analysis.rank_states import rank_states
from ncclkit.analysis.slow_links import lines_of_slow_links, longest_send, sent_again
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    C10dError,
    C10dStatus,
    C10dTimeout,
    KernelLink,
    NcclBootstrap,
    NcclDestroy,
    NcclLink,
    NcclWarn,
    NetCounter,
    StepProgress,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found

ID = "ib_link_error"
explains = (
    "c10d.timeout",
    "c10d.error",
    "nccl.trace",
    "network_loss",
    "slow_rank",
    "store.lost",
    "rank_exception",
)
STATUS = {
    12: "packets were not acknowledged",
    13: "the receiver had no buffer ready",
    4: "the local memory registration was refused",
    10: "the peer refused the memory access",
    5: "the connection was already in error",
}


def diagnose(case: Case) -> Finding:
    """Found where the card, the kernel or NCCL reports a broken link.

    The first status other than 5 counts.
    """
    went_well = [*case.of(NcclDestroy), *over_sockets(case), *case.of(C10dTimeout)]
    missing = "NCCL_DEBUG=WARN output of all ranks and dmesg of the nodes"
    return first_finding(
        case,
        _failed_completion,
        _port_went_down,
        _unanswered_sends,
        _lower_speed,
        _rising_counters,
        _broken_connection,
        _diagnosed,
        _slow_sends,
        CHECK.risk,
    ) or CHECK.otherwise(case, went_well, "No InfiniBand link failed.", missing)


def _port_errors(case: Case) -> list[Event]:
    """NCCL's and the card's own reports of a port or device that failed."""
    fatal = matching(case.of(NcclWarn), "ibv_poll_cq", "communicator encountered a fatal error")
    return fatal + matching(
        family(case, "ib_async"), "port error", "PORT_ERR", "device fatal", "fatal"
    )


def _links_down(case: Case) -> list[Event]:
    """The kernel's lines of an RDMA card whose link went down."""
    return [event for event in case.of(KernelLink, state="down") if _names_rdma_card(event)]


def _first_device(lines: list[Event]) -> str:
    for event in lines:
        if event.data.device:
            return str(event.data.device)
    return ""


def _port_went_down(case: Case) -> Finding | None:
    """A port went down, by the kernel or by the card's own event."""
    ports, down = _port_errors(case), _links_down(case)
    lines = down + ports
    if not lines:
        return None
    device = _first_device(lines)
    interfaces: tuple[str, ...] = ()
    if device:
        interfaces = (device,)
    # a port may flap unnoticed, and a rank that dies closes its connections, too
    strength: Strength = "likely"
    if case.of(C10dTimeout, C10dError) and not _rank_ended(case):
        strength = "proven"
    return found(
        ID,
        strength,
        f"The port {device or 'of an InfiniBand card'}{on(lines[0].host)} went down during"
        " the job.",
        pick(down, ports),
        ranks=ranks_in(ports),
        hosts=name_hosts(lines),
        interfaces=interfaces,
        advice=_advice(device),
    )


STALLED = 2.0
"""Seconds without an answer from which on a send is no mere burst on a busy link."""


def _unanswered_sends(case: Case) -> Finding | None:
    """Sends over a port have no answer, by NCCL's own lines.

    A peer that is late gives no credit to send to it, so nothing is under way to it.
    """
    stalls = in_order(case.of(NcclLink, what="stall"))
    lasting = []
    for event in stalls:
        if (event.data.age or 0.0) >= STALLED:
            lasting.append(event)
    if not lasting or _rank_ended(case):
        return None
    answered = []
    open_sends = []
    for event in lasting:
        if _answered_later(case, event):
            answered.append(event)
        else:
            open_sends.append(event)
    lines = open_sends or answered
    worst = max(lines, key=lambda event: event.data.age or 0.0)
    device = _most_named(lines, "device") or worst.data.device
    port = f"{device}:{worst.data.port}"
    peer = _most_named(lines, "peer")
    to = ""
    if peer:
        to = f" to {_name_of_peer(case, peer)}"
    ranks = ranks_in(lines)
    end = "."
    strength: Strength = "likely"
    if not open_sends:
        end = ", and came after all."
        strength = "possible"
    who = f"{name_ranks(ranks)}{on(worst.host)}"
    say = (
        f"The answer to a send of {who} over {port}{to} was"
        f" outstanding for {worst.data.age:.0f} s{end}"
    )
    return found(
        ID,
        strength,
        say,
        pick([worst], lines, case.of(C10dTimeout)),
        ranks=(),
        hosts=name_hosts(lines),
        interfaces=(device,),
        advice=_advice(device),
        next=experiment(case),
    )


def _answered_later(case: Case, stall: Event[NcclLink]) -> bool:
    """Whether a later line shows that the same connection went on."""
    for event in case.of(NcclLink):
        if event.data.what != "slow" or event.host != stall.host:
            continue
        if event.data.device != stall.data.device:
            continue
        if event.data.queue != stall.data.queue:
            continue
        if event.path == stall.path and event.line > stall.line:
            return True
    return False


def _most_named(lines: list[Event], field: str) -> str:
    """The device, or the peer, that most lines name; empty where two are named as often."""
    counts: Counter[str] = Counter()
    for event in lines:
        value = getattr(event.data, field)
        if value:
            counts[str(value)] += 1
    ranked = counts.most_common(2)
    if len(ranked) == 2 and ranked[0][1] == ranked[1][1]:
        return ""
    if ranked:
        return ranked[0][0]
    return ""


def _name_of_peer(case: Case, address: str) -> str:
    """The host that NCCL bootstrapped at this address, beside it."""
    hosts = set()
    for event in case.of(NcclBootstrap, address=address):
        if event.host:
            hosts.add(event.host)
    if len(hosts) == 1:
        return f"{next(iter(hosts))} ({address})"
    return address


def _lower_speed(case: Case) -> Finding | None:
    """A port came to run at a lower rate during the job, and was not seen to come back."""
    last: dict[tuple[str, str], Event[NcclLink]] = {}
    first: dict[tuple[str, str], int] = {}
    for event in in_order(case.of(NcclLink, what="speed")):
        key = (event.host, f"{event.data.device}:{event.data.port}")
        earlier = whole_number(event.data.before or "")
        if earlier is not None:
            first.setdefault(key, earlier)
        last[key] = event
    for (host, port), event in last.items():
        after = whole_number(event.data.after or "")
        before = first.get((host, port), 0)
        if after is not None and after < before:
            slow = after // 1000
            fast = before // 1000
            say = (
                f"The port {port}{on(host)} fell from {fast} to {slow}"
                " Gbit/s during the job."
            )
            return found(
                ID,
                "likely",
                say,
                pick([event]),
                ranks=(),
                hosts=name_hosts([event]),
                interfaces=(event.data.device,),
                advice=_advice(event.data.device),
                next=experiment(case),
            )
    return None


OF_RDMA = {
    "symbol_error": "bits arrived wrong",
    "link_downed": "the link went down",
    "link_error_recovery": "the link had to recover",
    "port_rcv_errors": "packets arrived broken",
    "local_link_integrity_errors": "the link lost its integrity",
    "packet_seq_err": "packets got lost",
    "local_ack_timeout_err": "packets were not acknowledged",
    "roce_adp_retrans": "packets were sent again",
}
"""Counters of a port → what happens where they rise."""


def _rising_counters(case: Case) -> Finding | None:
    """Errors of an RDMA port rose while a job that stands still was looked at."""
    lines = []
    for event in case.of(NetCounter):
        if event.data.name in OF_RDMA:
            lines.append(event)
    if not lines or _rank_ended(case):
        return None
    worst = max(lines, key=lambda event: event.data.grown)
    data = worst.data
    port = f"{data.device}:{data.port}{on(worst.host)}"
    happens = OF_RDMA[data.name]
    say = (
        f"On the port {port} {happens} while the job"
        f" stood still ({data.name} rose by {data.grown}"
        f" in {data.seconds:g} s)."
    )
    return found(
        ID,
        "likely",
        say,
        pick([worst], lines, limit=4),
        ranks=(),
        hosts=name_hosts(lines),
        interfaces=(data.device,),
        advice=_advice(data.device),
        next=experiment(case),
    )


def _broken_connection(case: Case) -> Finding | None:
    """torch quotes that a connection broke, and nothing says whose end it was."""
    lines = matching(
        messages(case), "remote process exited or there was a network error", "ncclRemoteError"
    )
    # a peer that closed, or a launcher that stopped the ranks, explains it
    if not lines or case.of("nccl.peer_closed", "elastic.stop"):
        return None
    return found(
        ID,
        "possible",
        "A connection to another rank broke; a usual reason is a fault of the network between"
        " the nodes.",
        pick(lines),
        ranks=(),
        advice=_advice(""),
        next=experiment(case),
    )


def _diagnosed(case: Case) -> Finding | None:
    """NCCL's diagnostics find the card of a rank slower than those of the others."""
    if outcome(case).success:
        return None
    lines = []
    for event in diagnostics(case, "net_bandwidth"):
        below = (event.data.rate or 0) < (event.data.median or 0)
        if below and event.data.value == "same-nic":
            lines.append(event)
    if not lines:
        return None
    first = lines[0].data
    ranks = ranks_of_job(
        case,
        lines[0],
        [first.src or 0],
    )
    say = (
        f"NCCL's diagnostics measure {first.rate:g} Gbit/s at {name_ranks(ranks)}{on(first.at)},"
        f" where the median is {first.median:g}: a slow link or card."
    )
    return found(
        ID,
        "possible",
        say,
        pick(lines),
        ranks=ranks,
        hosts=(first.at,),
        advice=_advice("its card"),
        next=experiment(case),
    )


def _slow_sends(case: Case) -> Finding | None:
    """Answers to sends over a port came late, by NCCL's own lines or its summary of a connection.

    Mostly it is milliseconds late, which slows a job down, and does not hang it by itself.
    """
    lines = lines_of_slow_links(case)
    if not lines or outcome(case).success or _rank_ended(case):
        return None
    device = _most_named(lines, "device") or max(lines, key=longest_send).data.device
    of_device = []
    peers = set()
    for event in lines:
        if event.data.device != device:
            continue
        of_device.append(event)
        if event.data.peer:
            peers.add(event.data.peer)
    worst = max(of_device, key=longest_send)
    data = worst.data
    to = f" to {len(peers)} peers"
    if len(peers) == 1:
        to = f" to {_name_of_peer(case, peers.pop())}"
    usual = ""
    if data.usual:
        usual = f", where {_milliseconds(data.usual)} is usual"
    sends = f"{name_ranks(ranks_in(of_device))}{on(worst.host)}"
    say = (
        f"Answers to sends of {sends} over {device}:{data.port}{to} took up to"
        f" {_milliseconds(longest_send(worst))}{usual}: that link is slow or congested."
    )
    strength: Strength = "possible"
    if sent_again(of_device):
        strength = "likely"
    return found(
        ID,
        strength,
        say,
        pick([worst], of_device, limit=4),
        ranks=(),
        hosts=name_hosts(of_device),
        interfaces=(device,),
        advice=(_read_counters(device),),
        next=experiment(case),
    )


def _milliseconds(duration: float) -> str:
    return f"{duration * 1e3:.3g} ms"


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Ports that are down although chosen, and ports without a link.

    NCCL_IB_HCA chooses ports; those without a link stand beside active ones.
    """
    ports = host.value("net.rdma") or ()
    wanted = str(host.value("env.NCCL_IB_HCA") or "")
    layers = set()
    for port in ports:
        if port.get("state") == "ACTIVE":
            layers.add(port.get("link_layer"))
    for port in ports:
        device = str(port.get("device"))
        named = bool(wanted) and _is_chosen(device, wanted)
        # a port that polls has no cable or no peer; most machines have some ports unused, so only
        # one of the kind in use counts
        searching = (
            port.get("physical") == "Polling" and port.get("link_layer") in layers and not wanted
        )
        if port.get("state") != "ACTIVE" and (searching or (named and not wanted.startswith("^"))):
            asked = ""
            if named:
                asked = f", though NCCL_IB_HCA={wanted} asks for it"
            say = (
                f"port {port.get('port')} of {device} is"
                f" {port.get('state') or 'not active'}{asked}; NCCL would run "
            )
            say += "without it, over fewer links or over plain sockets"
            facts = [host.fact("net.rdma")]
            strength = "likely" if named else "possible"
            yield Risk(
                say,
                facts,
                _advice(device)[0],
                "likely" if strength == "likely" else "possible",
                (),
                (device,),
            )


def _is_chosen(device: str, wanted: str) -> bool:
    """True where NCCL_IB_HCA selects the device.

    It holds comma-separated prefixes, ``^`` excludes, ``=`` takes whole names.
    """
    names = []
    for item in wanted.lstrip("^").lstrip("=").split(","):
        if item:
            names.append(item.split(":")[0])
    exact = wanted.lstrip("^").startswith("=")
    return any(
        device == name or (not exact and device.startswith(name)) for name in names
    ) != wanted.startswith("^")


def _names_rdma_card(event: Event) -> bool:
    return bool(
        re.search(r"mlx|ib\d|hfi|bnxt_re|irdma|efa", str(event.data.device or "") + event.text)
    )


def _rank_ended(case: Case) -> bool:
    """True where a rank ended by itself.

    Packets to it are not acknowledged either.
    """
    states = rank_states(case)
    # its card answers no packet any more
    return bool(states.raised or states.killed)


def _never_worked(case: Case) -> bool:
    """True when set-up lines show that the connection never worked.

    That is ib_config.
    """
    return any(e.data.call == "ibv_modify_qp" for e in family(case, "ib_setup"))


def _failed_completion(case: Case) -> Finding | None:
    """The card gave a connection up, and it had worked before."""
    lines = in_order(family(case, "ib_completion"))
    if not lines or _never_worked(case):
        return None
    # status 5 is the echo on connections that were up when another one failed
    first = next((event for event in lines if event.data.status not in (None, 5)), lines[0])
    others = _port_errors(case) + _links_down(case)
    status = first.data.status
    # the end that most reports have in common is the one to look at
    peers: Counter[str] = Counter()
    for event in lines:
        peer = re.search(r"peer ([\w.:-]+?)(?:<\d+>|\s)", event.text)
        if peer:
            peers[peer[1]] += 1
    device = _first_device(lines)
    over = ""
    interfaces: tuple[str, ...] = ()
    if device:
        over = f" on {device}"
        interfaces = (device,)
    to = ""
    if peers:
        to = f" to {peers.most_common(1)[0][0]}"
    ranks = ranks_in([first])
    say = (
        f"The InfiniBand connection of {name_ranks(ranks)}{on(first.host)}{over}{to} failed:"
        f" status {status}, {STATUS.get(status or 0, 'a completion error')}."
    )
    return found(
        ID,
        _strength_of_status(case, first, others),
        say,
        pick([first], others, lines),
        ranks=ranks,
        hosts=name_hosts([first]),
        interfaces=interfaces,
        advice=_advice(device),
        next=experiment(case),
    )


def _strength_of_status(case: Case, first: Event, others: list[Event]) -> Strength:
    unanswered = first.data.status == 12
    if unanswered and others and not _rank_ended(case):
        return "proven"
    mid_run = bool(case.of(StepProgress) or case.of(C10dStatus) or others)
    # The link had worked before: the addresses are right, so a longer timeout may bridge the
    # interruption.
    if mid_run or first.data.routed or not unanswered:
        return "likely"
    return "possible"


def _advice(device: str) -> tuple[Advice, ...]:
    return (
        Advice(
            "Find the port that occurs in all reports and look at its counters; take it out of the"
            " job until it is repaired (NCCL_IB_HCA with ^ and its card).",
            command=(
                "ibstat; grep . /sys/class/infiniband/*/ports/*/counters/"
                "{link_downed,symbol_error,port_rcv_errors}"
            ),
            env={"NCCL_IB_HCA": f"^{device.split(':')[0]}"} if device else {},
            why="One bad cable stops a job of any size.",
            check="The pair test over this link passes ten times.",
            risk="Leaving out a card lowers the bandwidth of its node.",
        ),
        Advice(
            "Let the card try longer, to bridge short interruptions.",
            env={"NCCL_IB_TIMEOUT": "22"},
            why="22 means about two minutes with seven retries.",
            check="The job survives the next flap.",
            risk="A dead link is noticed later.",
        ),
    )


def _read_counters(device: str) -> Advice:
    """Read the counters of a port twice, at both ends of its link."""
    card = device or "*"
    return Advice(
        f"Read the error and congestion counters of {device or 'the port'} twice, a minute apart,"
        " here and at the peer's port: the ones that grow say whether it is the cable, the peer or"
        " the way between.",
        command=(
            f"grep . /sys/class/infiniband/{card}/ports/*/counters/*"
            f" /sys/class/infiniband/{card}/ports/*/hw_counters/*"
        ),
        why="A longer timeout makes no link faster.",
        check="symbol_error and link_downed: the cable; out_of_sequence, packet_seq_err and"
        " roce_adp_retrans: packets get lost on the way; np_cnp_sent: the switches are congested.",
        risk="None: it only looks.",
    )


def experiment(case: Case) -> Experiment:
    """Run the same job over sockets."""
    return experiment_of(
        "Does the job pass over sockets, if it fails over InfiniBand?",
        {"env": {"NCCL_IB_DISABLE": "1"}},
        {
            ID: ("works", "passes over sockets, fails over this link only"),
            "ib_config": ("works", "passes over sockets, fails over every link"),
            "network_loss": ("same", "fails over sockets too"),
            "rank_exception": ("same", "fails over sockets too: the peer dies again"),
        },
    )


CHECK = Preflight(
    ID,
    reads=("net.rdma",),
    risks=_host_risks,
    fine="The RDMA ports that NCCL would use are active, or this host has none.",
    also=("env.NCCL_IB_HCA",),
    next=experiment,
)
REMEDIES = (*_advice(""), _read_counters(""))
