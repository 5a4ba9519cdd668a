"""The collectives of the live test: what each rank gives and must get.

It tells how many bytes that is, too.  Every rank works out by itself what it must receive, so a
wrong rank, a wrong order and a dropped chunk show as wrong elements.  Sizes are those of
nccl-tests: S is the larger of what a rank sends and receives.
"""

NAMES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send_recv",
)
DTYPES = {
    "float32": 24,
    "float64": 53,
    "float16": 11,
    "bfloat16": 8,
    "int32": 31,
    "int64": 63,
    "uint8": 8,
}
"""Type → bits of the integers that it holds exactly."""
PRIME = 251
"""Period of the values along a message: no power of two, so a chunk in the wrong place shows."""
SPLIT_AMONG_RANKS = ("all_gather", "reduce_scatter", "all_to_all")
"""Operations whose message is made of one part per rank."""


class Operation:
    """One collective on one message size: its tensors, the call, the check."""

    def __init__(self, torch, dist, device, name, dtype, size):
        self.torch = torch
        self.dist = dist
        self.name = name
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        kind = getattr(torch, dtype)
        self.bits, self.item = DTYPES[dtype], torch.empty((), dtype=kind).element_size()
        count = max(1, size // self.item)
        if name in SPLIT_AMONG_RANKS:
            self.part = max(1, count // self.ranks)
            self.count = self.part * self.ranks
        else:
            self.part = count
            self.count = count
        if name == "all_gather":
            given = self.part
        else:
            given = self.count
        self.sendbuff = torch.empty(given, dtype=kind, device=device)
        if name in ("all_reduce", "broadcast", "reduce"):
            self.recvbuff = self.sendbuff
        else:
            self.recvbuff = self._room(kind, device)
        self.bytes = self.count * self.item
        self.group = None
        """The process group, of all ranks, that calls go through; None is the process's own one."""
        self.async_op = False
        """Whether calls return at once; a send and receive never does."""

    def _room(self, kind, device):
        return self.torch.empty(
            self.part if self.name == "reduce_scatter" else self.count, dtype=kind, device=device
        )

    def call(self):
        """Run the collective once.

        On a GPU it is only enqueued.  Returns what to wait for where it runs on its own.
        """
        dist, name, async_op = self.dist, self.name, self.async_op
        # torch 2.13 renamed two of them
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        if name == "all_reduce":
            return dist.all_reduce(self.sendbuff, group=self.group, async_op=async_op)
        if name == "all_gather":
            return gather(self.recvbuff, self.sendbuff, group=self.group, async_op=async_op)
        if name == "reduce_scatter":
            return scatter(self.recvbuff, self.sendbuff, group=self.group, async_op=async_op)
        if name == "broadcast":
            return dist.broadcast(self.sendbuff, src=0, group=self.group, async_op=async_op)
        if name == "reduce":
            return dist.reduce(self.sendbuff, dst=0, group=self.group, async_op=async_op)
        if name == "all_to_all":
            return dist.all_to_all_single(
                self.recvbuff, self.sendbuff, group=self.group, async_op=async_op
            )
        return self._pass_on()

    def _pass_on(self):
        """Send to the next rank, receive from the one before; one rank alone only copies."""
        if self.ranks == 1:
            self.recvbuff.copy_(self.sendbuff)
            return
        pair = [
            self.dist.P2POp(
                self.dist.isend, self.sendbuff, (self.rank + 1) % self.ranks, self.group
            ),
            self.dist.P2POp(
                self.dist.irecv, self.recvbuff, (self.rank - 1) % self.ranks, self.group
            ),
        ]
        for work in self.dist.batch_isend_irecv(pair):
            work.wait()

    def call_in_graph(self):
        """The same calls of NCCL, all in the current stream.

        batch_isend_irecv goes to a stream of its own and back, which takes a graph 1.6 us each
        time.
        """
        if self.name != "send_recv" or self.ranks == 1:
            self.call()
            return
        sent = [0] * self.ranks
        taken = [0] * self.ranks
        sent[(self.rank + 1) % self.ranks] = taken[(self.rank - 1) % self.ranks] = self.count
        self.dist.all_to_all_single(self.recvbuff, self.sendbuff, taken, sent, group=self.group)

    def clear(self):
        """Fill the input with zeros for timing.

        Repeated sums would grow with the ranks each time, to infinity.
        """
        self.sendbuff.zero_()

    @property
    def summed(self):
        """Whether the operation adds up values of all ranks."""
        return self.name in ("all_reduce", "reduce_scatter", "reduce")

    def check(self):
        """How many elements are wrong on this rank.

        The collective is run on values that differ by rank and position.
        """
        self.sendbuff.copy_(self._given(self.rank))
        # what the last call left must not pass for the result of this one
        if self.recvbuff is not self.sendbuff:
            self.recvbuff.fill_(0)
        self.call()
        wanted = self._wanted()
        if wanted is None:
            return 0
        return int((self.recvbuff != wanted.to(self.recvbuff.dtype)).sum())

    def _weights(self):
        """What each rank multiplies its values by in sums, and the number of groups.

        The weights are 1, 2, 3 … as far as the sum leaves room for values above 1.  Of many ranks
        and a narrow type each place gets the values of one group only, so that every sum is exact.
        """
        limit = (1 << self.bits) - 1
        groups = -(-3 * self.ranks // limit)
        most = self.ranks
        members = -(-self.ranks // groups)
        while most > 1 and 3 * _sum_of_cycles(members, most) > limit:
            most -= 1
        return [1 + rank // groups % most for rank in range(self.ranks)], groups

    def _given(self, rank, begin=0, end=None):
        """What a rank gives.

        Element i is (i + 31 rank) mod 251 + 1, in sums (i mod p + 1) times the rank's weight.
        `begin` and `end` bound the elements that are asked for; without them it is all.
        """
        place = self.torch.arange(
            begin, self.sendbuff.numel() if end is None else end, device=self.sendbuff.device
        )
        if not self.summed:
            return (place + 31 * rank) % PRIME + 1
        weights, groups = self._weights()
        values = self._values(place, weights, groups) * weights[rank]
        if groups == 1:
            return values
        return values * (place % groups == rank % groups)

    def _values(self, place, weights, groups):
        largest = max(sum(weights[group::groups]) for group in range(groups))
        return place % max(1, min(PRIME, ((1 << self.bits) - 1) // largest)) + 1

    def _wanted(self):
        """What must have arrived here; None on a rank that receives nothing."""
        cat = self.torch.cat
        if self.name == "broadcast":
            return self._given(0)
        if self.name == "send_recv":
            return self._given((self.rank - 1) % self.ranks)
        if self.name == "all_gather":
            return cat([self._given(rank) for rank in range(self.ranks)])
        begin = self.rank * self.part
        end = (self.rank + 1) * self.part
        if self.name == "all_to_all":
            return cat([self._given(rank, begin, end) for rank in range(self.ranks)])
        if self.name == "reduce" and self.rank != 0:
            return None
        weights, groups = self._weights()
        if self.name != "reduce_scatter":
            begin, end = 0, self.count
        place = self.torch.arange(begin, end, device=self.sendbuff.device)
        sums = self.torch.tensor(
            [sum(weights[group::groups]) for group in range(groups)], device=place.device
        )
        return self._values(place, weights, groups) * sums[place % groups]


def _sum_of_cycles(count, most):
    """The sum of so many numbers 1, 2 … most, 1, 2 … most, 1 …"""
    whole, rest = divmod(count, most)
    return (whole * most * (most + 1) + rest * (rest + 1)) // 2
