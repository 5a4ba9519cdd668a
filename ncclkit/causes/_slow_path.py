"""A way between hosts that works and is late: held back, or losing packets that TCP sends again, for `network_loss`.

The live test's numbers show that there is one, a connection test which direction it is.
"""

from __future__ import annotations

from collections import Counter

from ncclkit.analysis.stage_results import LARGE, hosts_of
from ncclkit.causes import _tested
from ncclkit.core.case import Case
from ncclkit.core.connections import NetworkPath
from ncclkit.core.model import Advice, Measurement
from ncclkit.core.reference import marginal, size

HELD = 0.1
"""Share of what the other direction, or the link by its own word, carries: below it a direction is held back."""
LOST = 0.02
"""Share of packets sent again from which on they get lost; a busy network drops one in a thousand."""
WAIT, AGAIN = 2e5, 3.0
"""us that TCP waits for a lost packet at least; and so many times the median a call takes that waited so."""

Paths = tuple[str, tuple[str, ...], list[NetworkPath]]
"""A sentence, the hosts, and the paths that show it."""


def tested(case: Case) -> Paths | None:
    """What a connection test says of a direction on which packets get lost, or which is merely slow."""
    return _lossy(case) or _held_back(case)


def _lossy(case: Case) -> Paths | None:
    """A direction in which more of the stream's packets had to be sent again than a busy network loses."""
    lossy = _tested.paths(case, lambda link: link.bandwidth is not None and (link.resent or 0.0) >= LOST)
    lossy.sort(key=lambda link: -(link.resent or 0.0))
    if not lossy:
        return None
    first = lossy[0]
    say = (
        f"Of what {first.src} sends to {first.dst}{_tested.more(lossy, 'path')} {first.resent:.0%} of the packets get "
        f"lost and are sent again; it passes at {first.bandwidth:.3g} GB/s."
    )
    return say, _shared(lossy), lossy


def _held_back(case: Case) -> Paths | None:
    """A direction is far slower than the opposite one."""
    ways = {(link.src, link.dst): link for link in _tested.paths(case, lambda link: link.bandwidth is not None)}
    slow = [one for (src, dst), one in ways.items() if (back := ways.get((dst, src))) and _less(one, back)]
    if not slow:
        return None
    first = min(slow, key=lambda link: link.bandwidth or 0.0)
    back = ways[first.dst, first.src]
    say = (
        f"What {first.src} sends to {first.dst}{_tested.more(slow, 'path')} passes at {first.bandwidth:.3g} GB/s, and "
        f"the other way at {back.bandwidth:.3g} GB/s: something holds it back."
    )
    return say, _shared(slow), [first, back, *(link for link in slow if link is not first)]


def _shared(links: list[NetworkPath]) -> tuple[str, ...]:
    """The ends that all bad paths have in common; both of a single one, and all where they have none."""
    ends = Counter(end for link in links for end in (link.src, link.dst))
    return tuple(sorted(end for end, count in ends.items() if count == len(links))) or tuple(sorted(ends))


def _less(link: NetworkPath, back: NetworkPath) -> bool:
    return (link.bandwidth or 0.0) < HELD * (back.bandwidth or 0.0)


def crawls(case: Case) -> tuple[str, tuple[str, ...], list[Measurement]] | None:
    """What the last live test says of hosts that exchange far less than their interfaces send: sentence, hosts, rows.

    By what each further byte costs, so that neither latency nor the number of hosts in a ring counts; or by small calls
    that take as long as TCP waits before it sends a packet again.
    """
    run = case.measurements[-1].run if case.measurements else ""
    rows = [m for m in case.measurements if m.run == run and m.hosts > 1 and m.expected and m.busbw]
    for op in dict.fromkeys(m.op for m in rows):
        mine = sorted((m for m in rows if m.op == op), key=lambda m: m.bytes)
        speed = marginal(mine)
        last, bound = mine[-1], mine[-1].expected or 0.0
        hosts = tuple(sorted({*hosts_of(case.latest().of("worker.phase")).values()}))
        named = hosts if len(hosts) == 2 else ()
        stalls = [m for m in mine if (m.p99_us or 0.0) > max(WAIT, AGAIN * m.time_us)]
        if len(stalls) > 1:
            return f"{op} between {last.hosts} hosts {_waits(stalls[0], len(stalls), len(mine))}", named, stalls
        if speed is None or last.bytes < LARGE or speed >= HELD * bound:
            continue
        say = (
            f"{op} between {last.hosts} hosts reaches {last.busbw:.3g} of at most {bound:.3g} GB/s busbw at "
            f"{size(last.bytes)}, and latency is no reason: further bytes pass at {speed:.3g} GB/s."
        )
        return say, named, mine[-2:]
    return None


def _waits(one: Measurement, stalls: int, sizes: int) -> str:
    """Calls now and then take as long as TCP waits before it sends a lost packet again, at several sizes."""
    return (
        f"takes {one.time_us / 1e3:.3g} ms for {size(one.bytes)} and now and then {(one.p99_us or 0.0) / 1e3:.0f} ms, "
        f"at {stalls} of {sizes} sizes: TCP waits 200 ms and more before it sends a lost packet again."
    )


ADVICE = Advice(
    "Find what holds that direction back: a shaper, a link that agreed on less speed, a bad cable or port.",
    command="tc -s qdisc show; ethtool eth0 | grep -i -e speed -e duplex; ip -s link show",
    why="A collective waits for its slowest way, and TCP hides losses and shapers as mere slowness.",
    check="`ncclkit connect HOST HOST` measures both directions alike, near what the link says.",
    risk="None, it only looks.",
)
