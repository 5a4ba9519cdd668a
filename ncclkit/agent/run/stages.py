"""The stages of a staged test: each rank alone, pairs inside a node, pairs of nodes, each node, more and more nodes.

Who is slow or wrong alone is slow or wrong in every collective; a slow pair names a link.  Each result is sent the
moment it is known, so of what hangs it is known which one was never told.
"""

import os
import time
from datetime import timedelta

from .. import wire
from .subgroup import ECHOES, LARGEST, REPEATS, SHORT, measure, spans, tell, timed

PRIME = 251
"""Period of the values of a message: no power of two, so that a chunk in the wrong place shows."""
IN_A_ROW = 8
"""Exchanges that a GPU is given at once, so that their launch hides behind them."""
LEAST = 1 << 20
"""Bytes that a rank copies at least: with fewer it is the call that takes the time."""
WHILE, MOST = 0.1, 100
"""Seconds for which a rank copies, or a pair without GPUs exchanges; and how often a pair does so at most."""
LIMIT = 20.0
"""Seconds that one stage may take."""


def run_stages(torch, job, largest, simulate_hosts):
    """Run all stages, on every rank of the job.

    largest: bytes of the largest message of the collective to come;
    simulate_hosts: as ranks of how many hosts those of one host count.
    """
    dist, rank, size = job.dist, job.rank, min(largest, LARGEST)
    wire.send("phase", phase="alone", rank=rank)
    given = torch.arange(PRIME, dtype=torch.uint8, device=job.device).repeat(max(size, LEAST) // PRIME + 2)
    wire.send("stage.rank", rank=rank, bytes=max(size, LEAST), **alone(torch, given[: max(size, LEAST)]))
    if job.ranks == 1:
        return
    limit = min(job.timeout, timedelta(seconds=LIMIT))
    every = dist.new_group(timeout=limit)  # a stage that hangs shall not take as long as a collective may
    nodes = places(job.ranks, int(os.environ.get("LOCAL_WORLD_SIZE", job.ranks)), simulate_hosts)
    for number, pairs in enumerate([*inside(nodes), *between(nodes)]):
        peer = next((sum(pair) - rank for pair in pairs if rank in pair), None)
        wire.send("phase", phase="pairs", rank=rank, round=number, peer=peer)
        _barrier(job, every)
        if peer is not None:
            meet(torch, job, every, peer, given, size)
    for stage, groups in blocks(nodes):
        mine = next((group for group in groups if rank in group), [])  # type: list[int]
        wire.send("phase", phase="groups", rank=rank, stage=stage, ranks=spans(mine))
        _barrier(job, every)
        made = [every if len(group) == job.ranks else dist.new_group(group, timeout=limit) for group in groups]
        group = made[groups.index(mine)] if mine else None
        if mine:
            tell(job, stage, mine, size, **measure(torch, job, mine, size, group))
        _barrier(job, every)
        if mine and group is not every:
            dist.destroy_process_group(group)
    dist.destroy_process_group(every)


def places(ranks, here, simulate_hosts):
    """The ranks of each node, real or simulated, such as [[0, 1], [2, 3]]; `here`: how many ranks each host has."""
    nodes = {}  # type: dict[int, list[int]]
    for rank in range(ranks):
        host, local = divmod(rank, here)
        nodes.setdefault(host * simulate_hosts + local * simulate_hosts // here, []).append(rank)
    return list(nodes.values())


def inside(nodes):
    """Rounds of disjoint pairs in which all ranks of each node meet, all nodes at once."""
    made = [[[(node[a], node[b]) for a, b in pairs] for pairs in rounds(len(node)) if pairs] for node in nodes]
    longest = max(len(pairs) for pairs in made)
    return [[pair for node in made if number < len(node) for pair in node[number]] for number in range(longest)]


def between(nodes):
    """Rounds in which every two nodes meet: the ranks of the same place in both, all at once, each over its own NIC."""
    return [[pair for a, b in pairs for pair in zip(nodes[a], nodes[b])] for pairs in rounds(len(nodes)) if pairs]


def blocks(nodes):
    """(stage, groups) of what works together at once: each node, two nodes, four …, then all ranks."""
    made = [("node", nodes)] if len(nodes) > 1 and any(len(node) > 1 for node in nodes) else []
    count = 2
    while count < len(nodes):
        starts = range(0, len(nodes) - count + 1, count)
        made.append(("nodes", [[rank for node in nodes[at : at + count] for rank in node] for at in starts]))
        count *= 2
    return [*made, ("all", [[rank for node in nodes for rank in node]])]


def alone(torch, source):
    """Bandwidth of copies inside this rank's memory (GB/s read and written, the best of several), and wrong bytes."""
    threads, device = torch.get_num_threads(), source.device
    torch.set_num_threads(1)  # more of them would wait for each other where ranks share the cores
    target, until = torch.zeros_like(source), time.monotonic() + WHILE
    times = [timed(torch, device, lambda: target.copy_(source)) for _ in range(REPEATS)]
    while time.monotonic() < until:  # long enough to have a core for oneself, where ranks share some
        times.append(timed(torch, device, lambda: target.copy_(source)))
    torch.set_num_threads(threads)
    return {"copy": 2 * source.numel() / min(times) / 1e9, "wrong": int((target != source).sum())}


def meet(torch, job, group, peer, values, size):
    """Latency and best bandwidth of one pair, both directions at once; the lower rank sends the record.

    values: 0 to 250 again and again; each rank sends `size` of them, from another one on.  The best, as whoever else
    uses the cores disturbs some exchanges, and a link that is slow is slow in all of them.
    """
    dist, device, rank = job.dist, job.device, job.rank
    given, wanted = (values[31 * one % PRIME :][:size].clone() for one in (rank, peer))
    got = torch.zeros_like(given)
    small, back = given[:8].clone(), got[:8].clone()

    def exchange(out, into):
        ways = [dist.P2POp(dist.isend, out, peer, group), dist.P2POp(dist.irecv, into, peer, group)]
        for work in dist.batch_isend_irecv(ways):
            work.wait()

    def agreed(*numbers):
        """The values of both ranks, added up."""
        own = torch.tensor(numbers, dtype=torch.float64, device=device)
        other = torch.zeros_like(own)
        exchange(own, other)
        return (own + other).tolist()

    exchange(small, back)  # connects
    first = timed(torch, device, lambda: exchange(given, got))
    wrong = int((got != wanted).sum())
    echo = timed(torch, device, lambda: [exchange(small, back) for _ in range(ECHOES)]) / ECHOES
    calls = IN_A_ROW if device.type == "cuda" else 1
    both = agreed(first)[0] / 2
    repeats = 0 if both > SHORT else REPEATS if device.type == "cuda" else max(REPEATS, min(MOST, int(WHILE / both)))
    row = [timed(torch, device, lambda: [exchange(given, got) for _ in range(calls)]) / calls for _ in range(repeats)]
    latency, seconds, wrong = agreed(echo, min([first, *row]), float(wrong))
    if rank < peer:
        told = {"bandwidth": 2 * size / seconds / 1e9, "latency_us": latency / 2 * 1e6, "wrong": int(wrong)}
        wire.send("stage.pair", rank=rank, peer=peer, bytes=size, **told)


def rounds(count):
    """Rounds of disjoint pairs in which each two of `count` meet once: the circle method of round-robin tournaments."""
    circle = list(range(count + count % 2))
    made = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]))
        made.append([(min(a, b), max(a, b)) for a, b in pairs if max(a, b) < count])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return made


def _barrier(job, group):
    job.dist.barrier(group=group, **({"device_ids": [job.device.index]} if job.device.type == "cuda" else {}))
