"""A way between hosts on which nothing gets lost and everything is late, for the cause that explains it.

A live test shows that there is one, a connection test which direction it is.
"""

from __future__ import annotations

from collections import Counter

from ncclkit.case import Case
from ncclkit.causes import _tested
from ncclkit.evidence.jobs.links import Link
from ncclkit.model import Advice, Measurement
from ncclkit.normal import marginal, size
from ncclkit.rungs import hosts_of

HELD = 0.1
"""Share of what the other direction, or the link by its own word, carries: below it a direction is held back."""
LARGE = 1 << 20
"""Bytes from which on it is not the latency that takes the time."""


def held_back(case: Case) -> tuple[str, tuple[str, ...], list[Link]] | None:
    """What a connection test says of a direction far slower than the opposite one: sentence, hosts, paths."""
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
    ends = Counter(end for link in slow for end in (link.src, link.dst))
    shared = tuple(sorted(end for end, count in ends.items() if count == len(slow)))
    return say, shared or tuple(sorted(ends)), [first, back, *(link for link in slow if link is not first)]


def _less(link: Link, back: Link) -> bool:
    return (link.bandwidth or 0.0) < HELD * (back.bandwidth or 0.0)


def crawls(case: Case) -> tuple[str, tuple[str, ...], list[Measurement]] | None:
    """What the last live test says of hosts that exchange far less than their interfaces send: sentence, hosts, rows.

    By what each further byte costs, so that neither latency nor the number of hosts in a ring counts.
    """
    run = case.measurements[-1].run if case.measurements else ""
    rows = [m for m in case.measurements if m.run == run and m.hosts > 1 and m.expected and m.busbw]
    for op in dict.fromkeys(m.op for m in rows):
        mine = sorted((m for m in rows if m.op == op), key=lambda m: m.bytes)
        speed = marginal(mine)
        last, bound = mine[-1], mine[-1].expected or 0.0
        if speed is None or last.bytes < LARGE or speed >= HELD * bound:
            continue
        say = (
            f"{op} between {last.hosts} hosts reaches {last.busbw:.3g} of at most {bound:.3g} GB/s busbw at "
            f"{size(last.bytes)}, and latency is no reason: further bytes pass at {speed:.3g} GB/s."
        )
        hosts = tuple(sorted({*hosts_of(case.latest().of("worker.phase")).values()}))
        return say, hosts if len(hosts) == 2 else (), mine[-2:]
    return None


ADVICE = Advice(
    "Find what holds that direction back: a shaper, a link that agreed on less speed, a bad cable or port.",
    command="tc -s qdisc show; ethtool eth0 | grep -i -e speed -e duplex; ip -s link show",
    why="A collective waits for its slowest way, and TCP hides losses and shapers as mere slowness.",
    check="`ncclkit connect HOST HOST` measures both directions alike, near what the link says.",
    risk="None, it only looks.",
)
