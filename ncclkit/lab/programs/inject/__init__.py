"""The ways in which the lab breaks a job.

In: the small training of `train`, or the live test itself, and the name of a fault.  Out: the same
job with one rank changed, before the process group or at one step.  Each way is a bug that programs
have, and has its right way beside it: ``--fix CAUSE`` takes the right way in bugs of that cause.
None reaches beyond its own process.

Begin with `LabJob`; `program` has the ways.
"""

import argparse
import ctypes
import gc
import os
import sys

from ncclkit.agent import wire
from ncclkit.agent.run import job
from ncclkit.lab.programs.inject import program


class LabJob(job.Job):
    """The job of one rank as the faults see it.

    It holds process group, data, device and number of steps.
    """

    def __init__(self, torch, options, steps):
        self.seconds = options.seconds
        self.attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.faulty_here = int(os.environ["RANK"]) == (1 if options.rank is None else options.rank)
        super().__init__(torch, options, steps)
        self.data = torch.randn(256, 64, generator=torch.Generator().manual_seed(self.rank))
        self.position, self.positions = 0, []
        """The next sample, and where it was after each step.

        A checkpoint has to keep them.
        """
        self.batches = None

    def own_gpu(self):
        """The GPU of this rank.

        It is GPU 0 where the fault shares it and is not fixed, else its own.
        """
        shared = (
            self.options.one_gpu
            and self.options.rank in (None, self.rank)
            and not self.fixed("duplicate_gpu")
        )
        return 0 if shared else self.place

    def begin(self, **group):
        """Make the process group (of all ranks, or by `group`).

        A fault that comes before it is done first.
        """
        self._strike(BEFORE if self.faulty_here else {})
        super().begin(**group)
        self._strike(BEGUN)

    def before_step(self, step):
        """Inject the fault where this is its step."""
        if step == self.options.at:
            self._strike(TOGETHER)
            self._strike(DURING if self.faulty_here else {})

    def before_group(self, ranks):
        """Inject the fault where so many ranks work together."""
        self._strike(AMONG if self.faulty_here and len(ranks) >= TOGETHER_FROM else {})

    def _strike(self, faults):
        if self.options.fault in faults:
            faults[self.options.fault](self)

    def fixed(self, cause):
        """Whether the job avoids bugs of this cause (``--fix CAUSE``).

        A wrong diagnosis fixes nothing.
        """
        return self.options.fix == cause

    def next_batch(self):
        """The next 32 samples, on this rank's device."""
        self.batches = self.batches or self._read()
        batch = next(self.batches)
        self.position += len(batch)
        return batch.to(self.device)

    def _read(self):
        """Batches of a loader, epoch after epoch.

        The first begins where a checkpoint has left off.
        """
        utils = self.torch.utils.data
        while True:
            rest = utils.Subset(self.data, range(self.position % len(self.data), len(self.data)))
            yield from utils.DataLoader(rest, batch_size=32)

    def learn(self, model, optimizer):
        """Do one step of DDP on 32 samples; returns the loss.

        It also averages a metric over the ranks, as many loops do.
        """
        optimizer.zero_grad()
        loss = (model(self.next_batch()) ** 2).mean()
        loss.backward()
        optimizer.step()
        metric = self.torch.full((1024,), float(loss.detach()), device=self.device)
        self.dist.all_reduce(metric)
        self.synchronize()
        return float(metric[0]) / self.ranks

    def end(self):
        """Leave the group, after the caller has let go of its model.

        DDP that outlives its group joins gloo's threads while it holds Python's lock: a deadlock,
        seen with torch 2.13.  The others lose this rank while it leaves, and their deaths may end
        it before it is done.
        """
        gc.collect()
        wire.send("phase", phase="leave", rank=self.rank)
        self.dist.destroy_process_group()

    def synchronize(self):
        """Wait for the device, as reading the loss does in a real training loop."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)


def versions():
    """``{name: version}`` of every imported package that says its own.

    It is also that of NCCL where it is in memory already.  What an installer knows is only what
    lies there.
    """
    own = getattr(sys, "stdlib_module_names", ())  # since 3.10
    found = {
        name: str(vars(module)["__version__"])
        for name, module in list(sys.modules.items())
        if "." not in name and name not in own and "__version__" in vars(module)
    }
    return dict(sorted({**found, **_nccl()}.items()))


def _nccl():
    """The version of the NCCL that wins, whatever torch was built with."""
    with open("/proc/self/maps") as maps:
        if "libnccl" not in maps.read():
            return {}
    number = ctypes.c_int()
    # the one in memory: the loader goes by this name
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    return {
        "nccl": "%d.%d.%d" % (number.value // 10000, number.value // 100 % 100, number.value % 100)
    }


def begun(options, rank):
    """The job of this rank once its process group is made.

    The records say how far it came.
    """
    import torch

    made = LabJob(torch, options, options.steps)
    wire.send("phase", phase="import", rank=rank, torch=torch.__version__, loaded=versions())
    made.begin()
    wire.send("phase", phase="init", rank=rank)
    return made


def parser(verb, steps, words="", faults=()):
    """The options of a job of the lab.

    `steps` is how many it does unless it is told, `words` say of what.
    """
    made = argparse.ArgumentParser(prog=verb)
    add_options(made, faults)
    made.add_argument("--steps", type=int, default=steps, help=words or None)
    return made


def add_options(parser, faults=()):
    """Add the options of every job and those of the fault to inject.

    `faults` are names that only this job knows.
    """
    job.add_job_options(parser)
    parser.add_argument(
        "--fault", choices=sorted({*BEFORE, *BEGUN, *DURING, *TOGETHER, *AMONG, *faults})
    )
    parser.add_argument(
        "--rank", type=int, help="the faulty one; 1 where a fault needs one and none is named"
    )
    parser.add_argument("--at", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--fix", metavar="CAUSE", help="do it right where the bug is of this cause (see causes.md)"
    )
    parser.add_argument(
        "--one-gpu", action="store_true", help="the faulty rank, or every rank, uses the first GPU"
    )


def _by_name(*faults):
    return {fault.__name__: fault for fault in faults}


BEFORE = _by_name(
    program.uneven_data,
    program.few_files,
    program.little_memory,
    program.world_larger,
    program.other_card,
    program.port_busy,
    program.mixed_nccl,
) | {"starts_late": program.asleep}
"""Faults of one rank before the process group is made."""

BEGUN = {"uneven_data": program.equal_steps}
"""What all ranks do once the group is there."""

DURING = _by_name(
    program.rank_late,
    program.rank_raises,
    program.rank_killed,
    program.segfault,
    program.gil_held,
    program.slow_disk,
    program.small_shm,
    program.forked_cuda,
    program.cuda_assert,
    program.gpu_memory_full,
    program.flood,
    program.mute,
    program.asleep,
)
"""Faults of one rank at one step."""

TOGETHER = _by_name(
    program.other_size,
    program.other_dtype,
    program.other_op,
    program.unpaired_recv,
    program.exchange_uneven,
    program.groups_swapped,
    program.long_first_step,
)
"""Calls of all ranks at one step, in which the faulty one differs."""

TOGETHER_FROM = 3
"""Ranks of a group from which on the faults of `AMONG` strike."""
AMONG = _by_name(program.stuck_among_many, program.slow_among_many)
"""Faults of one rank in the groups of a staged test.

Such a rank does well alone and in pairs.
"""
