"""torchrun for ranks of one machine.

It is as ``torchrun --standalone``, but nobody else can reach what the ranks meet at.

``--standalone`` unpickles a state that lies in a store, and the store answers whoever reaches its
port.  Here the rendezvous is static, which keeps no such state, and the store listens on loopback
alone: torch's own server would listen on every address, whatever it is told, so it gets a socket
that listens already.
"""

import functools
import socket
import sys

LOOPBACK = "127.0.0.1"


def main(argv):
    """``launch RANKS RESTARTS VERB …``: this agent's verb on every rank.

    Returns torchrun's exit status.  Where ``--`` stands in place of the verb, what follows is
    somebody else's script, as torchrun takes it.
    """
    from torch.distributed import run
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous as static

    listening = socket.socket()
    listening.bind((LOOPBACK, 0))
    # before torchrun starts, so that nobody else takes the port meanwhile
    listening.listen(1024)
    port = listening.getsockname()[1]
    if "master_listen_fd" in (static.TCPStore.__init__.__doc__ or ""):
        static.TCPStore = functools.partial(static.TCPStore, master_listen_fd=listening.detach())
    else:
        # a torch before 2.1: it listens on every address, but unpickles nothing of what lies there
        listening.close()
    again = static.StaticTCPRendezvous.next_rendezvous
    static.StaticTCPRendezvous.next_rendezvous = lambda self: again(_emptied(self))
    ranks, restarts = argv[:2]
    if argv[2] == "--":
        program = argv[3:]
    else:
        program = [sys.argv[0], *argv[2:]]
    run.main(
        [
            *(
                "--rdzv-backend",
                "static",
                "--nnodes",
                "1",
                "--node-rank",
                "0",
                "--nproc-per-node",
                ranks,
            ),
            *("--master-addr", LOOPBACK, "--master-port", str(port), "--local-addr", LOOPBACK),
            *("--max-restarts", restarts, *program),
        ]
    )
    return 0


def _emptied(rendezvous):
    """The store without what ranks left that were ended.

    Ranks that are started again would call their addresses.  A torch whose store cannot tell its
    keys puts the number of the attempt before each.
    """
    store = rendezvous._store
    for key in store.list_keys() if hasattr(store, "list_keys") else ():
        store.delete_key(key)
    return rendezvous
