"""The stages of a staged test.

They are each rank alone, the memory of each other rank of a node, pairs inside a node, pairs of
nodes, each node, more and more nodes. Who
is slow or wrong alone is slow or wrong in every collective; a slow pair names a link.  Each result
is sent the moment it is known, so of what hangs it is known which one was never told.

Some ranks of a job work together in a checked and timed all_reduce, as a stage of the test or as a
job of its own: bisection starts the job anew for every question, with other groups.  What hangs or
dies then takes nobody along but its own group, and no later question meets what an earlier one has
left behind.
"""

import os
import threading
import time
from datetime import timedelta

from .. import wire
from . import crash_handler, peer_memory

REPEATS, ECHOES = 5, 20
"""Timed calls with the large message, and calls of 8 bytes for one latency."""
SHORT = 0.2
"""Seconds of a call up to which it is repeated: what takes longer is known well enough from one."""
LARGEST = 64 << 20
"""Bytes of a stage's message at most: large enough for full speed, small enough for many stages."""
MOST_RANKS = 1 << 16
"""Ranks of the largest job; a torn number must not fill the memory."""
MEET = 30.0
"""Seconds for the ranks of a group to find each other: some import torch later than others."""


def measure_group(torch, job, ranks, size, group=None):
    """Measure a group; the same dict on all its ranks.

    It holds busbw (GB/s, None for one rank), latency_us, and how many values are wrong.  Like the
    bandwidth of a pair, busbw is the best of some calls, on the rank that took longest.  `group` is
    their process group (default: the process's own one).
    """
    dist, device = job.dist, job.device
    base = (torch.arange(max(1, size // 4), device=device) % 251 + 1).to(torch.float32)
    weights = [1 + place % 16 for place in range(len(ranks))]
    given = base * weights[ranks.index(job.rank)]
    small = torch.ones(2, device=device)

    def call(message=given):
        job.before_group(ranks)
        dist.all_reduce(message, group=group)

    call()
    wrong = int((given != base * sum(weights)).sum())
    given.zero_()
    first = torch.tensor([seconds_of(torch, device, call)], dtype=torch.float64, device=device)
    # all must make the same number of calls
    dist.all_reduce(first, op=dist.ReduceOp.MAX, group=group)
    if first.item() < SHORT:
        repeats, echoes = REPEATS, ECHOES
    else:
        repeats, echoes = 0, 1
    times = [first.item()]
    for _ in range(repeats):
        seconds = seconds_of(torch, device, call)
        times.append(seconds)

    def call_often():
        for _ in range(echoes):
            call(small.zero_())

    latency = seconds_of(torch, device, call_often) / echoes
    own = torch.tensor([latency, min(times), float(wrong)], dtype=torch.float64, device=device)
    dist.all_reduce(own, op=dist.ReduceOp.MAX, group=group)
    latency, seconds, wrong = own.tolist()
    busbw = None
    if len(ranks) > 1:
        sent = given.numel() * given.element_size()
        busbw = 2 * (len(ranks) - 1) / len(ranks) * sent / seconds / 1e9
    return {
        "busbw": busbw,
        "latency_us": latency * 1e6,
        "wrong": int(wrong),
    }


def send_result(job, stage, ranks, size, busbw=None, latency_us=None, wrong=0, problem=""):
    """Send the result of a group.

    Its first rank sends what was measured, any rank a problem.
    """
    if problem or job.rank == ranks[0]:
        result = {
            "busbw": busbw,
            "latency_us": latency_us,
            "wrong": wrong,
            "problem": problem[:300],
        }
        wire.send(
            "stage.group", rank=job.rank, stage=stage, ranks=spans(ranks), bytes=size, **result
        )


def spans(ranks):
    """Ranks in few letters, such as ``0-3,8``.

    A line of the wire must not become long.
    """
    runs = []  # type: list[list[int]]
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    found = []
    for first, last in runs:
        if last > first:
            found.append("%d-%d" % (first, last))
        else:
            found.append("%d" % first)
    return ",".join(found)


def ranks_of(text):
    """What `spans` made: ``0-3,8`` → [0, 1, 2, 3, 8]; ValueError for anything else."""
    ranks = []  # type: list[int]
    for run in text.split(","):
        first, dash, last = run.partition("-")
        low = int(first)
        high = int(last if dash else first)
        if not 0 <= low <= high < MOST_RANKS:
            raise ValueError("no ranks: %s" % run)
        ranks += range(low, high + 1)
    return ranks


def run_groups(torch, job, groups, size):
    """Run this rank in its group of `groups`, each a job of its own.

    Groups are lists of ranks; a rank of no group does nothing.  A group that does not get through
    within the job's timeout says so; the process succeeds in any case, as a launcher ends all ranks
    of a host when one of them fails.
    """
    limit = job.timeout
    ranks = next((group for group in groups if job.rank in group), None)
    store, _, _ = next(
        job.dist.rendezvous("env://", job.rank, job.ranks, timeout=timedelta(seconds=2 * MEET))
    )
    if ranks:
        wire.send("phase", phase="group", rank=job.rank, ranks=spans(ranks))
        watchdog = None
        try:
            _meet_ranks(store, job.rank, ranks)
            watchdog = _start_watchdog(job, ranks, size, store)
            own = job.dist.PrefixStore("group-%d" % ranks[0], store)
            # beyond its limit NCCL would end the process, before it could say what it waits for
            spare = timedelta(seconds=MEET if job.device.type == "cuda" else 0)
            where = {
                "store": own,
                "rank": ranks.index(job.rank),
                "world_size": len(ranks),
                "timeout": limit + spare,
            }
            job.begin(**where)
            send_result(job, "bisect", ranks, size, **measure_group(torch, job, ranks, size))
        except Exception as error:  # whatever it is, it is this group's answer
            send_result(
                job,
                "bisect",
                ranks,
                size,
                problem="%s: %s" % (type(error).__name__, str(error).partition("\n")[0]),
            )
        finally:
            if watchdog:
                watchdog.cancel()
    _leave_groups(store, job, groups)


def _meet_ranks(store, rank, ranks):
    store.set("here-%d" % rank, "!")
    store.wait(["here-%d" % other for other in ranks], timedelta(seconds=MEET))


def _start_watchdog(job, ranks, size, store):
    """Start a thread that reports and ends this rank where it is late.

    It is late where it is still busy some seconds after the time limit.
    """
    seconds = job.timeout.total_seconds() + (0 if job.device.type == "cuda" else 3)

    def end_rank():
        send_result(job, "bisect", ranks, size, problem="no answer within %.0f s" % seconds)
        crash_handler.write_stacks(job.options.folder, job.rank)
        # the store's own lock may be held by what hangs, so that it must not be waited for
        threading.Thread(target=_mark_over, args=(store, job.rank), daemon=True).start()
        time.sleep(0.5)
        os._exit(0)

    timer = threading.Timer(seconds, end_rank)
    timer.daemon = True
    timer.start()
    return timer


def _mark_over(store, rank):
    store.set("over-%d" % rank, "!")


def _leave_groups(store, job, groups):
    """Leave the groups; the first rank goes last.

    It may hold the store that the others need to find each other.
    """
    try:
        _mark_over(store, job.rank)
        if job.rank == 0:
            others = sorted(rank for group in groups for rank in group)
            store.wait(["over-%d" % rank for rank in others], job.timeout + timedelta(seconds=MEET))
    except RuntimeError as error:
        # one of them was ended by its watchdog, or the store has gone with its host
        print("left alone: %s" % error, flush=True)
    os._exit(0)


def seconds_of(torch, device, call):
    """Seconds that a call takes until the device has completed it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


PRIME = 251
"""Period of the values of a message: no power of two, so that a chunk in the wrong place shows."""
IN_A_ROW = 8
"""Exchanges that a GPU is given at once, so that their launch hides behind them."""
LEAST = 1 << 20
"""Bytes that a rank copies at least: with fewer it is the call that takes the time."""
WHILE, MOST = 0.1, 100
"""Seconds for which a rank copies, or a pair without GPUs exchanges; and how often a pair does so
at most."""
LIMIT = 20.0
"""Seconds that one stage may take."""


def run_stages(torch, job, largest, simulate_hosts):
    """Run all stages, on every rank of the job.

    `largest` is the bytes of the largest message of the collective to come; `simulate_hosts` as
    ranks of how many hosts those of one host count.
    """
    dist = job.dist
    rank = job.rank
    size = min(largest, LARGEST)
    wire.send("phase", phase="alone", rank=rank)
    given = torch.arange(PRIME, dtype=torch.uint8, device=job.device).repeat(
        max(size, LEAST) // PRIME + 2
    )
    wire.send(
        "stage.rank",
        rank=rank,
        bytes=max(size, LEAST),
        **memory_bandwidth(torch, given[: max(size, LEAST)]),
    )
    if job.ranks == 1:
        return
    limit = min(job.timeout, timedelta(seconds=LIMIT))
    nodes = ranks_by_node(
        job.ranks, int(os.environ.get("LOCAL_WORLD_SIZE", job.ranks)), simulate_hosts
    )
    mates = next(node for node in nodes if rank in node)
    if len(mates) > 1:
        wire.send("phase", phase="memory", rank=rank)
        peer_memory.check_node(torch, job, mates, limit)
    # a stage that hangs shall not take as long as a collective may
    every = dist.new_group(timeout=limit)
    for number, pairs in enumerate([*rounds_within_nodes(nodes), *rounds_between_nodes(nodes)]):
        peer = next((sum(pair) - rank for pair in pairs if rank in pair), None)
        wire.send("phase", phase="pairs", rank=rank, round=number, peer=peer)
        _barrier_of_group(job, every)
        if peer is not None:
            measure_pair(torch, job, every, peer, given, size)
    for stage, groups in groups_by_stage(nodes):
        mine = next((group for group in groups if rank in group), [])  # type: list[int]
        wire.send("phase", phase="groups", rank=rank, stage=stage, ranks=spans(mine))
        _barrier_of_group(job, every)
        made = [
            every if len(group) == job.ranks else dist.new_group(group, timeout=limit)
            for group in groups
        ]
        group = None
        if mine:
            group = made[groups.index(mine)]
        if mine:
            send_result(job, stage, mine, size, **measure_group(torch, job, mine, size, group))
        _barrier_of_group(job, every)
        if mine and group is not every:
            dist.destroy_process_group(group)
    dist.destroy_process_group(every)


def ranks_by_node(ranks, here, simulate_hosts):
    """The ranks of each node, real or simulated, such as [[0, 1], [2, 3]].

    `here`: how many ranks each host has.
    """
    nodes = {}  # type: dict[int, list[int]]
    for rank in range(ranks):
        host, local = divmod(rank, here)
        nodes.setdefault(host * simulate_hosts + local * simulate_hosts // here, []).append(rank)
    return list(nodes.values())


def rounds_within_nodes(nodes):
    """Rounds of disjoint pairs in which all ranks of each node meet.

    All nodes do so at once.
    """
    found = []  # type: list[list[tuple[int, int]]]
    for node in nodes:
        rounds = [pairs for pairs in round_robin(len(node)) if pairs]
        # nodes may hold more or fewer ranks: the last rounds are those of the larger ones
        found += [[] for _ in range(len(rounds) - len(found))]
        for together, pairs in zip(found, rounds):
            together += [(node[a], node[b]) for a, b in pairs]
    return found


def rounds_between_nodes(nodes):
    """Rounds in which every two nodes meet.

    The ranks of the same place in both exchange all at once, each over its own NIC.
    """
    found = []
    for pairs in round_robin(len(nodes)):
        together = []  # type: list[tuple[int, int]]
        for a, b in pairs:
            together += zip(nodes[a], nodes[b])
        if pairs:
            found.append(together)
    return found


def groups_by_stage(nodes):
    """(stage, groups) of what works together at once.

    The groups are each node, two nodes, four …, then all ranks.
    """
    made = []
    if len(nodes) > 1 and any(len(node) > 1 for node in nodes):
        made = [("node", nodes)]
    count = 2
    while count < len(nodes):
        groups = []
        for first in range(0, len(nodes) - count + 1, count):
            groups.append(_ranks_of_nodes(nodes[first : first + count]))
        made.append(("nodes", groups))
        count *= 2
    return [*made, ("all", [_ranks_of_nodes(nodes)])]


def _ranks_of_nodes(nodes):
    """The ranks of several nodes in one list."""
    return [rank for node in nodes for rank in node]


def memory_bandwidth(torch, source):
    """Bandwidth of copies inside this rank's memory, and wrong bytes.

    The bandwidth is GB/s read and written, the best of several copies.
    """

    def copy_once():
        target.copy_(source)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them would wait for each other where ranks share the cores
    target = torch.zeros_like(source)
    until = time.monotonic() + WHILE
    times = [seconds_of(torch, source.device, copy_once) for _ in range(REPEATS)]
    # long enough to have a core for oneself, where ranks share some
    while time.monotonic() < until:
        times.append(seconds_of(torch, source.device, copy_once))
    torch.set_num_threads(threads)
    moved = 2 * source.numel()  # read once and written once
    wrong = int((target != source).sum())
    return {"copy": moved / min(times) / 1e9, "wrong": wrong}


def measure_pair(torch, job, group, peer, values, size):
    """Latency and best bandwidth of one pair, both directions at once.

    The lower rank sends the record.  `values` are 0 to 250 again and again; each rank sends `size`
    of them, from another one on.  It is the best, as whoever else uses the cores disturbs some
    exchanges, and a link that is slow is slow in all of them.
    """
    dist, device, rank = job.dist, job.device, job.rank
    given, wanted = (values[31 * one % PRIME :][:size].clone() for one in (rank, peer))
    got = torch.zeros_like(given)
    small, back = given[:8].clone(), got[:8].clone()

    def exchange(out, into):
        ops = [dist.P2POp(dist.isend, out, peer, group), dist.P2POp(dist.irecv, into, peer, group)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    def agreed(*numbers):
        """The values of both ranks, added up."""
        own = torch.tensor(numbers, dtype=torch.float64, device=device)
        other = torch.zeros_like(own)
        exchange(own, other)
        return (own + other).tolist()

    exchange(small, back)  # connects
    first = seconds_of(torch, device, lambda: exchange(given, got))
    wrong = int((got != wanted).sum())
    echo = (
        seconds_of(torch, device, lambda: [exchange(small, back) for _ in range(ECHOES)]) / ECHOES
    )
    calls = 1
    if device.type == "cuda":
        calls = IN_A_ROW
    both = agreed(first)[0] / 2
    if both > SHORT:
        repeats = 0
    elif device.type == "cuda":
        repeats = REPEATS
    else:
        repeats = max(REPEATS, min(MOST, int(WHILE / both)))
    row = [
        seconds_of(torch, device, lambda: [exchange(given, got) for _ in range(calls)]) / calls
        for _ in range(repeats)
    ]
    latency, seconds, wrong = agreed(echo, min([first, *row]), float(wrong))
    if rank < peer:
        result = {
            "bandwidth": 2 * size / seconds / 1e9,
            "latency_us": latency / 2 * 1e6,
            "wrong": int(wrong),
        }
        wire.send("stage.pair", rank=rank, peer=peer, bytes=size, **result)


def round_robin(count):
    """Rounds of disjoint pairs in which each two of `count` meet once.

    It is the circle method of round-robin tournaments.
    """
    # of an odd number one stands aside in each round: whoever meets the place that is added
    circle = list(range(count + count % 2))
    half = len(circle) // 2
    made = []
    for _ in range(len(circle) - 1):
        pairs = []
        for one, other in zip(circle[:half], reversed(circle[half:])):
            low = min(one, other)
            high = max(one, other)
            if high < count:
                pairs.append((low, high))
        made.append(pairs)
        # all but the first move on by one place
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return made


def _barrier_of_group(job, group):
    job.dist.barrier(
        group=group, **({"device_ids": [job.device.index]} if job.device.type == "cuda" else {})
    )
