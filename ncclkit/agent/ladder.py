"""The rungs below a collective: each rank alone, then every pair of ranks, disjoint pairs at once.

Who is slow or wrong alone is slow or wrong in every collective; a slow pair names a link.  Each result is sent the
moment it is known, so of a pair that hangs it is known which one was never told.
"""

import time

from . import wire

REPEATS = 5
IN_A_ROW = 8
"""Exchanges that a GPU is given at once, so that their launch hides behind them."""
ECHOES = 20
"""Round trips of one latency."""
LARGEST = 64 << 20
"""Bytes of a pair's message at most: large enough for full speed, small enough for many pairs."""


def climb(torch, dist, device, largest):
    """Both rungs, for every rank of the job; largest: bytes of the largest message of the collective to come."""
    rank, ranks, size = dist.get_rank(), dist.get_world_size(), min(largest, LARGEST)
    wire.send("phase", phase="alone", rank=rank)
    wire.send("ladder.rank", rank=rank, bytes=size, **alone(torch, device, size))
    for number, pairs in enumerate(rounds(ranks)):
        wire.send("phase", phase="pairs", rank=rank, round=number)
        dist.barrier(**({"device_ids": [device.index]} if device.type == "cuda" else {}))
        peer = next((sum(pair) - rank for pair in pairs if rank in pair), None)
        if peer is not None:
            meet(torch, dist, device, peer, size)


def alone(torch, device, size):
    """Copies inside the rank's own memory: GB/s read and written (median), and wrong bytes."""
    source = (torch.arange(size, device=device) % 251).to(torch.uint8)
    target = torch.zeros_like(source)
    times = [_timed(torch, device, lambda: target.copy_(source)) for _ in range(REPEATS)]
    return {"copy": 2 * size / sorted(times)[REPEATS // 2] / 1e9, "wrong": int((target != source).sum())}


def meet(torch, dist, device, peer, size):
    """Latency and bandwidth of one pair, both directions at once; the lower rank tells."""
    rank = dist.get_rank()
    given = ((torch.arange(size, device=device) + 31 * rank) % 251).to(torch.uint8)
    wanted = ((torch.arange(size, device=device) + 31 * peer) % 251).to(torch.uint8)
    got = torch.zeros_like(given)
    small, back = given[:8].clone(), got[:8].clone()

    def exchange(out, into):
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, into, peer)]):
            work.wait()

    exchange(small, back)  # connects
    exchange(given, got)
    wrong = int((got != wanted).sum())
    echo = _timed(torch, device, lambda: [exchange(small, back) for _ in range(ECHOES)]) / ECHOES
    calls = IN_A_ROW if device.type == "cuda" else 1
    times = [
        _timed(torch, device, lambda: [exchange(given, got) for _ in range(calls)]) / calls for _ in range(REPEATS)
    ]
    own = torch.tensor([echo, sorted(times)[REPEATS // 2], float(wrong)], dtype=torch.float64, device=device)
    other = torch.zeros_like(own)
    exchange(own, other)
    if rank < peer:
        latency, seconds, wrong = ((own + other) / torch.tensor([2.0, 2.0, 1.0], device=device)).tolist()
        told = {"bandwidth": size / seconds / 1e9, "latency_us": latency * 1e6, "wrong": int(wrong)}
        wire.send("ladder.pair", rank=rank, peer=peer, bytes=size, **told)


def rounds(ranks):
    """Every pair of ranks once, in rounds of disjoint pairs: the circle method of tournaments, ranks - 1 rounds."""
    circle = list(range(ranks + ranks % 2))
    made = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]))
        made.append([(min(a, b), max(a, b)) for a, b in pairs if max(a, b) < ranks])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return made


def _timed(torch, device, call):
    """Seconds that a call takes, until the device is done with it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
