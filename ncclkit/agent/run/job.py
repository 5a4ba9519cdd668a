"""The job of one rank.

It is its process group, its device, its steps, and the hooks by which the lab breaks it.
"""

import os
from datetime import timedelta

from .. import wire
from . import simulated_hosts


class Job:
    """The process group, the device and the number of steps of one rank."""

    def __init__(self, torch, options, steps):
        import torch.distributed as dist

        self.torch = torch
        self.dist = dist
        self.steps = steps
        self.options = options
        self.timeout = timedelta(seconds=options.timeout)
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local = int(os.environ["LOCAL_RANK"])
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        # ranks of one simulated host are neighbours, as those of a real one are
        mates = [
            mate
            for mate in range(here)
            if mate * options.simulate_hosts // here == local * options.simulate_hosts // here
        ]
        host = os.environ.get(simulated_hosts.NAME, "")
        if options.simulate_hosts > 1:
            host = os.environ["NCCL_HOSTID"] = "simulated-%d" % (
                self.rank * options.simulate_hosts // here
            )
        self.place = mates.index(local)
        self.gpus = mates
        """Of this rank among those of its host, simulated or not; the GPUs of those, in order."""
        if options.backend == "nccl":
            if host:  # simulated, so it shares them with the others
                count = torch.cuda.device_count()
                first = self.rank - local
                self.gpus = [(first + mate) % count for mate in mates]
                if options.simulate_hosts > 1:
                    on = here
                else:
                    on = self.ranks
                # NCCL itself says so late, and not always
                placement = {
                    "hostid": host,
                    "gpu": self.gpus[self.own_gpu()],
                    "gpus": count,
                    "on_them": on,
                }
                wire.send("phase", phase="simulate", rank=self.rank, **placement)
            self.device = torch.device("cuda", self.gpus[self.own_gpu()])
            torch.cuda.set_device(self.device)  # before anything else touches CUDA
        else:
            self.device = torch.device("cpu")

    def own_gpu(self):
        """Which of the GPUs of its host this rank takes."""
        return self.place

    def begin(self, **group):
        """Make the process group, of all ranks or by `group`."""
        bound = {}
        if self.options.backend == "nccl":
            bound = {"device_id": self.device}
        self.dist.init_process_group(
            self.options.backend, **{"timeout": self.timeout, **bound, **group}
        )

    def before_step(self, step):
        """Hook before each step: a job of the lab injects its fault here."""

    def before_group(self, ranks):
        """Hook before each measurement of a subgroup.

        A job of the lab injects its fault here.
        """


def add_job_options(parser):
    """The options of every job."""
    parser.add_argument("--folder", required=True)
    parser.add_argument("--backend", choices=("nccl", "gloo"), required=True)
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument(
        "--simulate-hosts",
        type=int,
        default=1,
        metavar="N",
        help="the ranks of this host are those of so many hosts",
    )
