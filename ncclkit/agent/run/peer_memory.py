"""Whether each process of a node can write and read the memory of each other one.

It is what NCCL 2.31 checks at its start, for every NCCL and without GPUs as well: each rank shares
a board, each other one writes its mark on it and reads the owner's, and the owner looks at what was
written.  All that is agreed on goes over the store, as collectives may hang for what is looked for.
"""

import json
import os
import tempfile

from .. import wire

WRITTEN, OWN = 1 << 61, 1 << 60
"""What marks begin with: those of others, and the owner's."""
BITS = 30
"""Of a rank in a mark."""


def check_node(
    torch,
    job,
    members,
    limit,
):
    """Write, read and verify the memory of each other rank of a node.

    members: its ranks, in the same order on all of them; limit: a timedelta, after which it gives
    up waiting for them.
    """
    memory = CudaMemory(torch, job.device) if job.device.type == "cuda" else HostMemory(torch)
    store = job.dist.distributed_c10d._get_default_store()
    try:
        check_peers(store, job.rank, members, memory, limit)
    finally:
        memory.let_go()


def check_peers(
    store,
    rank,
    members,
    memory,
    limit,
):
    """The same with a given memory; sends a ``stage.peer`` for each rank and each way."""
    try:
        handle = memory.share_board([mark_of(OWN, rank, other) for other in members])
    except (OSError, RuntimeError, AttributeError) as error:
        handle = {"problem": first_line(error)}
    store.set(_key("board", rank), json.dumps(handle))
    store.wait([_key("board", other) for other in members], limit)
    for other in members:
        if other != rank:
            _visit(
                store,
                rank,
                other,
                members,
                memory,
            )
    _meet(store, "visited", members, rank, limit)
    if "problem" not in handle:
        for other_place, other in enumerate(members):
            if other != rank and store.get(_key("wrote", other, rank)) == b"1":
                right = memory.own_number(other_place) == mark_of(WRITTEN, other, rank)
                send_check(
                    other,
                    rank,
                    "write",
                    wrong=not right,
                )
    # nobody may still read a board when its owner lets go of it
    _meet(store, "checked", members, rank, limit)


def mark_of(kind, one, two):
    """A number that says who wrote it, or for whom it stands there."""
    return kind | one << BITS | two


def _visit(
    store,
    rank,
    owner,
    members,
    memory,
):
    """Write on the board of another rank, and read its mark."""
    wrote = b"0"
    handle = json.loads(store.get(_key("board", owner)))
    try:
        if "problem" in handle:
            send_check(rank, owner, "share", problem=str(handle["problem"]))
        elif not memory.is_direct(handle):
            send_check(rank, owner, "share", apart=True)
        else:
            board = memory.open_board(handle)
            place = members.index(rank)
            got = memory.read_number(board, len(members) + place)
            send_check(rank, owner, "read", wrong=got != mark_of(OWN, owner, rank))
            memory.write_number(board, place, mark_of(WRITTEN, rank, owner))
            wrote = b"1"
    except (OSError, RuntimeError, AttributeError, KeyError, ValueError) as error:
        send_check(rank, owner, "share", problem=first_line(error))
    store.set(_key("wrote", rank, owner), wrote)


def send_check(
    rank,
    peer,
    way,
    wrong=False,
    apart=False,
    problem="",
):
    """Tell one result: what `rank` did to the memory of `peer`."""
    result = {"way": way, "wrong": int(wrong), "apart": apart, "problem": problem}
    wire.send("stage.peer", rank=rank, peer=peer, **result)


def first_line(error):
    """The first line of an error, cut."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


def _key(what, *ranks):
    return "ncclkit/peers/%s/%s" % (what, "/".join(map(str, ranks)))


def _meet(
    store,
    what,
    members,
    rank,
    limit,
):
    """Wait until all of the node have come this far."""
    store.set(_key(what, rank), "1")
    store.wait([_key(what, other) for other in members], limit)


class HostMemory:
    """Boards in files that processes map."""

    def __init__(self, torch):
        self.torch = torch
        self.path = ""
        self.board = torch.zeros(0)

    def share_board(self, own):
        """Lay down the board, with the owner's marks after the place for those of others."""
        folder = "/dev/shm"
        if not os.access(folder, os.W_OK):
            folder = tempfile.gettempdir()
        number, self.path = tempfile.mkstemp(prefix="ncclkit-board-", dir=folder)
        os.close(number)
        os.truncate(self.path, 16 * len(own))
        self.board = self._map(self.path, 2 * len(own))
        self.board[len(own) :] = self.torch.tensor(own, dtype=self.torch.int64)
        return {"path": self.path, "size": 2 * len(own)}

    def _map(self, path, size):
        return self.torch.from_file(path, shared=True, size=size, dtype=self.torch.int64)

    def is_direct(self, handle):
        """Whether the memory can be reached without a copy in between."""
        return True

    def open_board(self, handle):
        """The board of another rank."""
        return self._map(handle["path"], handle["size"])

    def read_number(self, board, place):
        """One number of it."""
        return int(board[place])

    def write_number(self, board, place, value):
        """Write one number on it."""
        board[place] = value

    def own_number(self, place):
        """What stands on the own board."""
        return int(self.board[place])

    def let_go(self):
        """Remove what lies on disk."""
        if self.path:
            os.unlink(self.path)


class CudaMemory:
    """Boards in the memory of GPUs, shared as CUDA shares it between processes."""

    FIELDS = ("device", "handle", "bytes", "offset", "counter", "counter_offset", "event", "wait")
    """What torch hands on of a storage, in its order."""

    def __init__(self, torch, device):
        self.torch, self.device = torch, device
        self.board = torch.zeros(0)

    def share_board(self, own):
        """Lay down the board, with the owner's marks after the place for those of others."""
        numbers = [0] * len(own) + own
        self.board = self.torch.tensor(numbers, dtype=self.torch.int64, device=self.device)
        self.torch.cuda.synchronize(self.device)
        shared = self.board.untyped_storage()._share_cuda_()
        handle = dict(zip(self.FIELDS, shared))
        for name in ("handle", "counter", "event"):
            handle[name] = bytes(handle[name]).hex()
        return {**handle, "size": len(numbers), "start": self.board.storage_offset()}

    def is_direct(self, handle):
        """Whether the driver lets this GPU reach the other one's memory."""
        other = handle["device"]
        if other >= self.torch.cuda.device_count():
            return False  # the GPU of the other rank is hidden from this one
        return other == self.device.index or self.torch.cuda.can_device_access_peer(
            self.device.index, other
        )

    def open_board(self, handle):
        """The board of another rank."""
        known = dict(handle)
        for name in ("handle", "counter", "event"):
            known[name] = bytes.fromhex(known[name])
        storage = self.torch.UntypedStorage._new_shared_cuda(*[known[name] for name in self.FIELDS])
        board = self.torch.empty(0, dtype=self.torch.int64, device=storage.device)
        return board.set_(storage, handle["start"], (handle["size"],))

    def read_number(self, board, place):
        """One number of it, copied by way of this GPU."""
        here = board[place : place + 1].to(self.device)
        self.torch.cuda.synchronize(self.device)
        return int(here.item())

    def write_number(self, board, place, value):
        """Write one number on it, from this GPU."""
        here = self.torch.tensor([value], dtype=self.torch.int64, device=self.device)
        board[place : place + 1].copy_(here)
        self.torch.cuda.synchronize(self.device)
        self.torch.cuda.synchronize(board.device)

    def own_number(self, place):
        """What stands on the own board."""
        return int(self.board[place].item())

    def let_go(self):
        """Let go of the board."""
        self.board = self.torch.zeros(0)
