"""What each rank of a sweep executes: many settings in one job, each as a process group of its own, measured in turn.

NCCL reads NCCL_ALGO, NCCL_PROTO and the channels of a communicator when that communicator is made, so a group for each
setting costs a fraction of a second where a job of its own costs ten.  In every round all groups take their turn, in an
order that is shuffled anew, so that drift of clocks, caches and neighbours hits all of them alike and rounds can be
compared in pairs.  After the rounds that choose, other rounds decide: whoever looked best among many by chance does not
look so twice.
"""

import json
import os
import random
import statistics

from .. import wire
from . import collective, crash_handler, operations
from .job import Job, add_options

BATCH_SECONDS, MOST = 0.003, 20
"""A batch repeats short calls for about this long, and so often at most."""
PROMISING, KEPT = 0.985, 3
"""Share of the default's time below which a setting is measured again, and how many of each size are."""
LONGEST = 64
"""Rounds of one record, as a line of the wire must not become long."""


def main(argv):
    """``sweep --folder DIR --backend nccl --settings JSON --ops all_reduce --sizes 8,1024 …``."""
    options = _options(argv)
    return crash_handler.run(options.folder, lambda rank: _run(options, rank))


def _options(argv):
    parser = collective.options(add_options)
    parser.prog = "sweep"
    parser.add_argument("--settings", type=json.loads, default=[{}], help="[{env: {…}, config: {…}}, …]")
    parser.add_argument("--controls", type=_numbers, default=[0], help="which of them are the default: 0,3,7")
    parser.add_argument("--decide", type=int, default=0, help="rounds that decide, of the settings that promise a gain")
    parser.add_argument("--all", action="store_true", help="decide on every setting, also on those that look slower")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def _numbers(text):
    return [int(number) for number in text.split(",")]


def _run(options, rank):
    import torch

    work = [(op, size) for op in options.ops for size in options.sizes]
    job = Job(torch, options, len(work))
    wire.send("phase", phase="import", rank=rank, torch=torch.__version__, gpu=collective.gpu(torch, job.device))
    job.begin(device_id=None)  # bound to it, torch would split communicators, which keeps the first one's settings
    nccl = collective.nccl_version(torch, options.backend)
    wire.send("phase", phase="init", rank=rank, nccl=nccl, hostid=os.environ.get("NCCL_HOSTID", ""))
    groups = Groups(torch, job, options.settings)
    for number, (op, size) in enumerate(work):
        operation = operations.Operation(torch, job.dist, job.device, op, options.dtype, size)
        wire.send("phase", phase="size", rank=rank, bytes=operation.bytes, op=op)
        timer = Timer(torch, job, operation, groups, random.Random("%d %d" % (options.seed, number)))
        with collective.stream(torch, job.device):
            chosen = timer.rounds(timer.usable, options.repeats)
            _tell(rank, operation, "choose", chosen, groups)
            if options.decide:
                best = _best(chosen, options.controls, options.all)
                _tell(rank, operation, "decide", timer.rounds(best, options.decide), groups)
    job.dist.barrier()


def _best(times, controls, every):
    """The default, and the settings that are worth rounds of their own: all of them, or the most promising ones.

    The same on all ranks, as the times are those of all ranks together.
    """
    usual = statistics.fmean(statistics.median(times[control]) for control in controls)
    others = [setting for setting in times if setting not in controls]
    ratios = sorted((statistics.median(times[setting]) / usual, setting) for setting in others)
    kept = [setting for ratio, setting in ratios if every or ratio < PROMISING]
    return [*controls, *sorted(kept if every else kept[:KEPT])]


def _tell(rank, operation, phase, times, groups):
    """Send the microseconds of each round, for each setting."""
    if rank == 0:
        what = {"op": operation.name, "bytes": operation.bytes, "phase": phase}
        for setting, laps in times.items():
            for start in range(0, len(laps), LONGEST):
                part = [round(lap * 1e6, 3) for lap in laps[start : start + LONGEST]]
                wire.send("sweep", setting=setting, times_us=part, wrong=groups.wrong.get(setting, 0), **what)


class Groups:
    """A process group for each setting; what cannot be made is left out, on all ranks."""

    def __init__(self, torch, job, settings):
        self.torch, self.job, self.wrong = torch, job, {}
        self.groups = {number: self._made(setting) for number, setting in enumerate(settings)}
        self.usable = [number for number, setting in enumerate(settings) if self._works(number, setting)]

    def _made(self, setting):
        with _variables(setting.get("env", {})):
            return self.job.dist.new_group(timeout=self.job.timeout, **self._options(setting.get("config", {})))

    def _options(self, config):
        if not config:
            return {}
        options = self.torch.distributed.ProcessGroupNCCL.Options()
        for name, value in config.items():
            setattr(options.config, name, value)
        return {"pg_options": options}

    def _works(self, number, setting):
        """Make the communicator by the first call; a setting that NCCL refuses on one rank counts as refused."""
        problem = ""
        with _variables(setting.get("env", {})):
            try:
                self.job.dist.all_reduce(self.torch.ones(1, device=self.job.device), group=self.groups[number])
                if self.job.device.type == "cuda":
                    self.torch.cuda.synchronize()
            except RuntimeError as error:
                problem = str(error)
        return self.agreed(number, problem)

    def agreed(self, number, problem):
        """Whether no rank had a problem with a setting; the first one says which."""
        failed = self.torch.tensor([float(bool(problem))], device=self.job.device)
        self.job.dist.all_reduce(failed)
        if failed.item() and (problem or self.job.rank == 0):
            told = [line for line in problem.splitlines() if line.strip()] or ["another rank had a problem"]
            wire.send("sweep.refused", setting=number, rank=self.job.rank, problem=told[-1][:300])
        return not failed.item()


class _variables:
    """Environment variables that are set inside a block, also for C."""

    def __init__(self, env):
        self.env, self.before = env, {}

    def __enter__(self):
        self.before = {name: os.environ.get(name) for name in self.env}
        os.environ.update(self.env)

    def __exit__(self, *_):
        for name, value in self.before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Timer:
    """One collective of one size, timed in turn on several groups."""

    def __init__(self, torch, job, operation, groups, order):
        self.torch, self.job, self.operation, self.groups, self.order = torch, job, operation, groups, order
        self.cuda = job.device.type == "cuda"
        self.captured = self.cuda and operation.bytes <= collective.SMALL
        self.graphs = {}
        self.usable = [number for number in groups.usable if self._works(number)]
        for number in self.usable if self.captured else ():
            operation.group = groups.groups[number]
            self.graphs[number] = collective.captured(torch, operation)
        operation.group = groups.groups[0]
        once = [collective.time_laps(torch, operation, self._call(0), 1, 2)[-1]]
        self.calls = collective.within(torch, operation, BATCH_SECONDS, statistics.median(once), 1, MOST)

    def _works(self, number):
        """Check the values once; no algorithm of some settings knows every collective, which all ranks are told."""
        self.operation.group, problem, wrong = self.groups.groups[number], "", 0
        try:
            wrong = self.operation.check()
            self.operation.clear()
        except RuntimeError as error:
            problem = str(error)
        self.groups.wrong[number] = self.groups.wrong.get(number, 0) + wrong
        return self.groups.agreed(number, problem)

    def _call(self, number):
        if self.captured:
            return self.graphs[number]
        self.operation.group = self.groups.groups[number]
        return self.operation.call

    def rounds(self, numbers, count):
        """{setting: seconds of a call in each round}, averaged over the ranks."""
        marks = [self._round(numbers) for _ in range(count)]
        if self.cuda:
            self.torch.cuda.synchronize()
        calls = self.calls * (collective.CAPTURED if self.captured else 1)
        own = [[self._seconds(*lap[number]) / calls for lap in marks] for number in numbers]
        times = self.torch.tensor(own, dtype=self.torch.float64, device=self.job.device)
        self.job.dist.all_reduce(times)
        return dict(zip(numbers, (times / self.job.ranks).tolist()))

    def _round(self, numbers):
        """{setting: its two marks}, in an order of this round; the call before a batch does not count."""
        turn, marks = list(numbers), {}
        self.order.shuffle(turn)
        for number in turn:
            call = self._call(number)
            call()
            start = collective.mark(self.torch, self.job.device)
            for _ in range(self.calls):
                call()
            marks[number] = (start, collective.mark(self.torch, self.job.device))
        return marks

    def _seconds(self, start, end):
        return start.elapsed_time(end) / 1e3 if self.cuda else end - start
