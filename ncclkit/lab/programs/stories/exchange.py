"""A small mixture of experts, whose rows travel by a handwritten all-to-all.

There is one expert per rank.  The right way is one batch of sends and receives on the one
communicator, with sizes that were exchanged before, and a list of arrivals that says who has not
come.  The ways that went wrong stand beside it: sizes that are assumed, receives that wait for
senders who are receiving themselves, and a communicator for every pair of ranks.
"""

import os
import time
from datetime import timedelta

from ncclkit.agent import wire
from ncclkit.agent.run import collective, crash_handler, operations
from ncclkit.lab.programs import inject

ROWS, WIDTH = 64, 32
"""Rows that a rank has for each expert, and the numbers in a row."""
FAULTS = ("a2a_order", "a2a_unpaired", "a2a_files", "a2a_reused", "a2a_leaves")
FILES = 5
"""Open files that gloo needs for one more communicator."""


def main(argv):
    """``stories.exchange --folder DIR --backend gloo [--fault NAME --rank R] [--compare] [--fix
    CAUSE]``.
    """
    parser = inject.parser("stories.exchange", 5, faults=FAULTS)
    parser.add_argument(
        "--size",
        type=int,
        default=4 << 20,
        help="bytes that each rank exchanges where ways are compared",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="measure this exchange beside all_to_all_single instead",
    )
    options = parser.parse_args(argv)
    return crash_handler.run_rank(options.folder, lambda rank: _start(options, rank))


def _start(options, rank):
    job = inject.begun(options, rank)
    if options.compare:
        compare_with_library(job, options.size)
    else:
        train(job)
    job.end()


def train(job):
    """Each rank's rows go to the experts, and the answers come back.

    The gradients go the same way.
    """
    torch, exchange = job.torch, Exchange(job)
    torch.manual_seed(job.rank)
    expert = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    ).to(job.device)
    optimizer = torch.optim.SGD(expert.parameters(), lr=0.05)
    for step in range(job.steps):
        wire.send("phase", phase="step", rank=job.rank, step=step)
        job.before_step(step)
        if step == job.options.at and leaves(job):
            break
        shares = route(job, step)
        given = [len(share) for share in shares]
        expected = exchange.sizes(
            given, assumed=job.options.fault == "a2a_unpaired" and job.faulty_here
        )
        rows = torch.cat(exchange(shares, expected, WIDTH))
        load = torch.tensor([float(len(rows))], device=job.device)
        # how many rows there are for each expert, as a load-balancing loss needs it
        job.dist.all_reduce(load)
        load = float(load) / job.ranks
        answer = expert(rows)
        answers = torch.cat(exchange(answer.detach().split(expected), given, 1)).requires_grad_()
        loss = ((answers - torch.cat(shares).sin().mean(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.zero_grad()
        answer.backward(torch.cat(exchange(answers.grad.split(given), expected, 1)))
        optimizer.step()
        print(
            "step %d loss %.4f, %d rows here, %.1f on average"
            % (step, float(loss.detach()), len(rows), load)
        )


def leaves(job):
    """Whether this rank ends here, while the others still exchange."""
    return (
        job.options.fault == "a2a_leaves" and job.faulty_here and not job.fixed("rank_divergence")
    )


def route(job, step):
    """The rows of this rank by the rank whose expert they need.

    At one step one neighbour has none for the faulty rank.  Of two experts both always get some; of
    more, one gets none sooner or later.
    """
    faulty = 1 if job.options.rank is None else job.options.rank
    counts = [ROWS] * job.ranks
    if job.ranks > 2 and step == job.options.at and job.rank == (faulty + 1) % job.ranks:
        counts[faulty] = 0
    made = job.torch.Generator().manual_seed(1000 * step + job.rank)
    return [job.torch.randn(count, WIDTH, generator=made).to(job.device) for count in counts]


class Exchange:
    """An all-to-all written by hand.

    ``exchange(shares, expected, width)`` returns what each rank had for this one.
    """

    def __init__(self, job):
        self.job, self.dist, self.arrivals = job, job.dist, Arrivals(job)
        self.peers = [peer for peer in range(job.ranks) if peer != job.rank]
        self.pairs = {}
        tiny = [job.torch.zeros(1, device=job.device) for _ in range(2 * job.ranks)]
        # NCCL connects two ranks when both first call it
        for work in self.post(tiny[: job.ranks], tiny[job.ranks :]):
            work.wait()
        if job.options.fault == "a2a_files":
            self.pairs = pair_groups(job, limited=job.faulty_here)
        methods = {
            "a2a_order": self.receive_first,
            "a2a_unpaired": self.one_by_one,
            "a2a_reused": self.reused,
        }
        cause = "rank_exception" if job.options.fault == "a2a_reused" else "send_recv_mismatch"
        bug = "" if job.fixed(cause) else job.options.fault
        self.method = methods.get(bug, self.batched)

    def __call__(self, shares, expected, width):
        """Rows of every rank for this one, in a list by rank.

        `expected` is how many, `width` how long a row is.
        """
        got = [self.job.torch.empty(rows, width, device=self.job.device) for rows in expected]
        got[self.job.rank].copy_(shares[self.job.rank])
        self.method([share.contiguous() for share in shares], got)
        self.job.synchronize()
        return got

    def sizes(self, given, assumed=False):
        """How many rows each rank will send to this one.

        They are exchanged first, or (the fault) assumed.
        """
        own = self.job.torch.tensor(given, device=self.job.device)
        gathered = [self.job.torch.empty_like(own) for _ in range(self.job.ranks)]
        self.arrivals.enter()
        self.arrivals.wait([self.dist.all_gather(gathered, own, async_op=True)])
        wrong = assumed and not self.job.fixed("send_recv_mismatch")
        return [ROWS if wrong else int(counts[self.job.rank]) for counts in gathered]

    def batched(self, shares, got):
        """The right way: all sends and receives in one batch.

        A rank that times out names the one it waited for.
        """
        self.arrivals.enter()
        self.arrivals.wait(self.post(shares, got))

    def post(self, shares, got):
        """Post all sends and receives in one batch, in which order does not matter.

        Empty shares are left out.
        """
        directions = ((self.dist.isend, shares), (self.dist.irecv, got))
        calls = [
            self.dist.P2POp(call, parts[peer], peer, group=self.pairs.get(peer))
            for peer in self.peers
            for call, parts in directions
            if len(parts[peer])
        ]
        batches = (
            [calls]
            if not self.pairs
            else [[call for call in calls if call.peer == peer] for peer in self.peers]
        )
        return [work for batch in batches if batch for work in self.dist.batch_isend_irecv(batch)]

    def one_by_one(self, shares, got):
        """Send to each rank, then wait for each.

        That is right as long as everybody knows who sends what.
        """
        sent = [self.dist.isend(shares[peer], peer) for peer in self.peers if len(shares[peer])]
        for peer in self.peers:
            if len(got[peer]):
                self.dist.recv(got[peer], peer)
        for work in sent:
            work.wait()

    def reused(self, shares, got):
        """Write the next rows into a buffer whose send is still under way.

        Who receives compares the sums.  The others come to their receives when that has happened,
        as ranks that still compute do.
        """
        step = "written/%d" % self.arrivals.number
        sums = [share.sum() for share in shares]
        sent = self.post(shares, [share[:0] for share in shares]) if self.job.faulty_here else []
        if self.job.faulty_here:
            for share in shares:
                share.zero_()
            self.arrivals.store.set(step, "")
        self.arrivals.store.wait([step])
        others = [share[:0] for share in shares] if self.job.faulty_here else shares
        self.arrivals.wait([*sent, *self.post(others, got)])
        sent_sums = [self.job.torch.zeros(1, device=self.job.device) for _ in shares]
        self.arrivals.wait(self.post([one.reshape(1) for one in sums], sent_sums))
        for peer in self.peers:
            if abs(float(got[peer].sum() - sent_sums[peer])) > 1e-3:
                raise ValueError(
                    "the rows from rank %d add up to %.3f, and it sent %.3f"
                    % (peer, got[peer].sum(), sent_sums[peer])
                )

    def receive_first(self, shares, got):
        """Receive from each rank, then send to each.

        All wait to receive, and nobody comes to his sends.
        """
        for peer in self.peers:
            self.dist.recv(got[peer], peer)
            self.job.synchronize()
        for peer in self.peers:
            self.dist.send(shares[peer], peer)


def pair_groups(job, limited=False):
    """A communicator for every pair of ranks: {peer: group}.

    They are made as send and recv outside a batch make them.  `limited`: this rank may open files
    for all of its peers but the last.
    """
    soft, hard = file_limits()
    if limited:
        soft = open_files() + FILES * (job.ranks - 2) + FILES // 2
    if job.fixed("fd_limit"):
        soft = hard
    file_limits((soft, hard))
    pairs = [(low, high) for high in range(job.ranks) for low in range(high)]
    groups = {pair: job.dist.new_group(list(pair), timeout=job.timeout) for pair in pairs}
    return {sum(pair) - job.rank: group for pair, group in groups.items() if job.rank in pair}


def open_files():
    """How many files this process keeps open."""
    return len(os.listdir("/proc/self/fd"))


def file_limits(new=None):
    """The soft and the hard limit of open files.

    They are read after setting them where new ones are given.
    """
    import resource

    if new is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, new)
    return resource.getrlimit(resource.RLIMIT_NOFILE)


class Arrivals:
    """Which rank has come to which exchange.

    It is kept in the launcher's store and read where a rank is missing.
    """

    def __init__(self, job):
        self.job, self.number, self.patience = job, 0, job.timeout * 3 / 4
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = job.dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=30))
        self.store = job.dist.PrefixStore("exchange/%d" % job.attempt, store)

    def enter(self):
        """This rank comes to its next exchange."""
        self.number += 1
        self.store.set(str(self.job.rank), str(self.number))

    def wait(self, works):
        """Wait for an exchange, not quite as long as the group would.

        Then it says who is missing, and aborts.
        """
        try:
            for work in works:
                self._finish(work)
        except RuntimeError as error:
            said = "exchange %d: %s; %s" % (self.number, self.missing(), str(error).splitlines()[0])
            crash_handler.write_flight(
                self.job.options.folder, self.job.rank
            )  # an aborted group has nothing left to tell
            # since torch 2.6
            abort = getattr(self.job.dist.distributed_c10d, "_abort_process_group", None)
            if abort is not None and self.job.device.type == "cuda":
                abort()
            raise self.job.dist.DistBackendError(said) from None

    def _finish(self, work):
        """Finish a work; raises RuntimeError when patience ends.

        On a GPU it is done by looking, as there a failed wait ends the process.
        """
        until = time.monotonic() + self.patience.total_seconds()
        while self.job.device.type == "cuda" and not work.is_completed():
            if time.monotonic() > until:
                raise RuntimeError("no answer within %g s" % self.patience.total_seconds())
            time.sleep(0.001)
        work.wait(self.patience)

    def missing(self):
        """Which ranks have not come to this rank's exchange, and how far they came."""
        known = [(rank, self._came(rank)) for rank in range(self.job.ranks)]
        absent = [
            "rank %d has not come, it is at %d" % pair for pair in known if pair[1] < self.number
        ]
        return ", ".join(absent) or "every rank has come"

    def _came(self, rank):
        return int(self.store.get(str(rank))) if self.store.check([str(rank)]) else 0


def compare_with_library(job, size):
    """Check and time the exchange by hand beside the library's own.

    It says also how many files each way keeps open.
    """
    exchange, torch = Exchange(job), job.torch
    library = operations.Operation(torch, job.dist, job.device, "all_to_all", "float32", size)
    byhand = operations.Operation(torch, job.dist, job.device, "all_to_all", "float32", size)
    byhand.call = lambda: by_hand(job, exchange, byhand)  # type: ignore[method-assign]
    for op, operation in (("all_to_all", library), ("all_to_all_by_hand", byhand)):
        measured = collective.measure_operation(torch, operation, 5)
        if job.rank == 0:
            what = {"op": op, "bytes": operation.bytes, "dtype": "float32", "ranks": job.ranks}
            wire.send("measure", backend=job.options.backend, **what, **measured)
    wire.send("phase", phase="shares", rank=job.rank, wrong=uneven(job, exchange))
    one = open_files()
    for group in pair_groups(job).values():
        job.dist.all_reduce(torch.ones(1, device=job.device), group=group)
    job.synchronize()
    wire.send(
        "phase", phase="files", rank=job.rank, one=one, pairs=open_files(), limit=file_limits()[0]
    )


def uneven(job, exchange):
    """Rows that arrive wrong where shares differ.

    There is an empty one for the next rank, and odd counts for the others.
    """

    def share(source, to):
        count = 0 if to == (source + 1) % job.ranks else 2 * (source + to) + 1
        return job.torch.full((count, 1), float(source * job.ranks + to), device=job.device)

    shares = [share(job.rank, to) for to in range(job.ranks)]
    got = exchange(shares, exchange.sizes([len(one) for one in shares]), 1)
    wanted = [share(source, job.rank) for source in range(job.ranks)]
    return sum(
        len(one) if one.shape != two.shape else int((one != two).sum())
        for one, two in zip(wanted, got)
    )


def by_hand(job, exchange, operation):
    """The exchange of one live test's operation."""
    given, got = operation.sendbuff.chunk(job.ranks), operation.recvbuff.chunk(job.ranks)
    got[job.rank].copy_(given[job.rank])
    for work in exchange.post(given, got):
        work.wait()
