"""One node's share of a job that srun starts: only here is the node's own number known."""

import os
import sys

from .. import wire
from . import guard


def main(argv):
    """``node RUN_FOLDER DEADLINE NODES RANKS_PER_NODE MASTER PORT VERB …``: this node's torchrun, under its own guard.

    The node's guard collects the evidence of its own ranks, so its deadline comes before the one of the whole run.
    """
    folder, deadline, nodes, per_node, master, port = argv[:6]
    number = os.environ["SLURM_NODEID"]
    wire.send("phase", phase="node", number=int(number))
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", nodes, "--nproc-per-node", per_node, "--node-rank", number),
        *("--rdzv-backend", "static", "--rdzv-id", os.environ["SLURM_JOB_ID"]),
        *("--master-addr", master, "--master-port", port, sys.argv[0], *argv[6:]),
    ]
    return guard.run(folder, float(deadline), command, node=number)
