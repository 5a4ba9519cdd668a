"""One node's share of a job that srun starts: only here is the node's own number known."""

import os
import sys


def main(argv):
    """``node NODES RANKS_PER_NODE MASTER PORT VERB …``: becomes torchrun with this node's rank."""
    nodes, per_node, master, port = argv[:4]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", nodes, "--nproc-per-node", per_node,
        "--node-rank", os.environ["SLURM_NODEID"], "--rdzv-backend", "static", "--rdzv-id", os.environ["SLURM_JOB_ID"],
        "--master-addr", master, "--master-port", port, sys.argv[0], *argv[4:],
    ]
    os.execv(command[0], command)
