"""What the coordinator of a rehearsal takes for sends that nobody has received yet.

    python -m tests.bench.unmet_sends [NUMBER …]

Printed: for each number of sends, CPU seconds to post them all and then the recv of each.
"""

import sys
import time

from ncclkit.agent.rehearsal.calls import Call
from ncclkit.agent.rehearsal.coordinator import Coordinator

RANKS = 64


def post_seconds(number: int) -> float:
    """CPU seconds for so many sends to the next rank, a multiple of RANKS, and then their recvs."""
    coordinator = Coordinator(RANKS)
    members = tuple(range(RANKS))
    began = time.process_time()
    for op, step, first in (("send", 1, 0), ("recv", -1, number)):
        for place in range(number):
            rank = place % RANKS
            peer = (rank + step) % RANKS
            call = Call(first + place, "0", members, "train.py:1", op, peer=peer)
            coordinator.post_call(rank, call)
    spent = time.process_time() - began
    assert coordinator.released == number
    return spent


if __name__ == "__main__":
    for word in sys.argv[1:] or ("512", "1024", "2048", "4096", "65536"):
        print(f"{word} sends: {post_seconds(int(word)):.3f} s", flush=True)
