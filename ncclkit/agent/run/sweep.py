"""What each rank of a sweep executes.

It is many settings in one job, each as a process group of its own, measured in turn. NCCL reads
NCCL_ALGO, NCCL_PROTO and the channels of a communicator when that communicator is made, so a group
for each setting costs a fraction of a second where a job of its own costs ten.  In every round all
groups take their turn, in an order that is shuffled anew, so that drift of clocks, caches and
neighbours hits all of them alike and rounds can be compared in pairs.  After the rounds that
choose, other rounds decide: whoever looked best among many by chance does not look so twice.  What
looked best is measured once more beside a matrix product, which wants the same SMs or cores, and in
the step of a small model under DDP.
"""

import functools
import json
import os
import random
import statistics
import time
from datetime import timedelta

from .. import wire
from . import collective, crash_handler, operations
from .job import Job, add_job_options

BATCH_SECONDS, MOST = 0.003, 20
"""A batch repeats short calls for about this long, and so often at most."""
PROMISING, KEPT = 0.985, 3
"""Share of the default's time below which a setting is measured again, and how many of each size
are."""
LONGEST = 64
"""Rounds of one record, as a line of the wire must not become long."""
LEAST_STEP, LAYERS, ROWS = 1 << 16, 2, 32
"""Bytes of a bucket from which on a step is measured, layers of its model, and rows of a batch."""
WIDEST = 8192
"""Rows of the largest matrix that is multiplied beside a collective."""
CONNECTING = timedelta(seconds=20)
"""The time that gloo gets to connect a group, and to send its largest message."""
LATEST = 120.0
"""Seconds after which a job has begun at the latest; what is more is a difference of clocks."""


class TimeUp(Exception):
    """The time of a sweep is over; raised on all ranks at once."""


def main(argv):
    """``sweep --folder DIR --backend nccl --settings JSON --ops all_reduce --sizes 8,1024 …``."""
    options = _parse_options(argv)
    return crash_handler.run_rank(options.folder, lambda rank: _run_sweep(options, rank))


def _parse_options(argv):
    parser = collective.options(add_job_options)
    parser.prog = "sweep"
    parser.add_argument(
        "--settings",
        type=json.loads,
        default=[{}],
        help="[{env: {…}, config: {…}, skip: [[op, bytes], …]}, …]",
    )
    parser.add_argument(
        "--controls",
        type=_numbers_of_text,
        default=[0],
        help="which of them are the default: 0,3,7",
    )
    parser.add_argument(
        "--one-peak",
        type=_numbers_of_text,
        default=[],
        help="settings over which bandwidth has one peak, in order",
    )
    parser.add_argument("--phase", default="choose", help="what the rounds of each setting are for")
    parser.add_argument(
        "--decide",
        type=int,
        default=0,
        help="rounds that decide, of the settings that promise a gain",
    )
    parser.add_argument(
        "--under-computation",
        action="store_true",
        help="measure what promises a gain under computation, too",
    )
    parser.add_argument(
        "--all", action="store_true", help="decide on every setting, also on those that look slower"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--within", type=float, default=0.0, help="seconds after which no further round is begun"
    )
    parser.add_argument(
        "--asked", type=float, default=0.0, help="when those seconds began, by the clock of day"
    )
    parser.add_argument(
        "--after", type=int, default=0, help="pairs of collective and size that are known already"
    )
    return parser.parse_args(argv)


def _numbers_of_text(text):
    return [int(number) for number in text.split(",")]


def _run_sweep(options, rank):
    began = time.monotonic() - _seconds_since(options.asked)
    import torch

    # every other size first, of all collectives: whatever time there is, it is spread over all of
    # them
    work = [
        (op, size) for size in (*options.sizes[::2], *options.sizes[1::2]) for op in options.ops
    ]
    job = Job(torch, options, len(work))
    wire.send(
        "phase",
        phase="import",
        rank=rank,
        torch=torch.__version__,
        gpu=collective.gpu(torch, job.device),
    )
    # bound to it, torch would split communicators, which keeps the first one's settings
    job.begin(device_id=None)
    nccl = collective.nccl_version(torch, options.backend)
    wire.send("phase", phase="init", rank=rank, nccl=nccl, hostid=os.environ.get("NCCL_HOSTID", ""))
    clock = RoundClock(torch, job, began, options.within)
    groups = Groups(torch, job, options.settings)
    for number, (op, size) in enumerate(work):
        if number < options.after:
            continue
        operation = operations.Operation(torch, job.dist, job.device, op, options.dtype, size)
        wire.send("phase", phase="size", rank=rank, bytes=operation.bytes, op=op)
        order = random.Random("%d %d" % (options.seed, number))
        try:
            # whatever time there is, one pair is measured
            clock.runs = number > options.after
            clock.raise_if_late()
            with collective.stream(torch, job.device):
                _measure_operation(torch, job, options, operation, groups, order, clock)
        except TimeUp:
            if rank == 0:
                wire.send("sweep.left", left=len(work) - number, of=len(work))
            break
        if rank == 0:
            wire.send("sweep.pair", number=number + 1, of=len(work), op=op, bytes=size)
    job.dist.barrier()


def _seconds_since(asked):
    """Seconds since a moment of the clock of day; 0 where clocks of two hosts differ."""
    passed = time.time() - asked
    return passed if 0 < passed < LATEST else 0.0


class RoundClock:
    """Ends a sweep between two rounds, on all ranks alike, or they would not go on together."""

    def __init__(self, torch, job, began, within):
        self.torch = torch
        self.job = job
        self.began = began
        self.within = within
        self.runs = False
        """Whether it ends anything: the first pair is measured in any case."""

    def raise_if_late(self):
        """Raises TimeUp on all ranks where it is late on any of them."""
        if not (self.runs and self.within):
            return
        late = time.monotonic() - self.began > self.within
        flag = self.torch.tensor([float(late)], device=self.job.device)
        self.job.dist.all_reduce(flag)
        if flag.item():
            raise TimeUp


def _measure_operation(torch, job, options, operation, groups, order, clock):
    """Measure one collective in four kinds of rounds.

    Rounds choose, look for the peak, decide, and run beside computation.
    """
    timer = timer_of(torch, job, operation, groups, order, clock)
    rank, controls = job.rank, options.controls
    chosen = timer.rounds(
        [number for number in timer.calls if number not in options.one_peak], options.repeats
    )
    _send_times(rank, operation, options.phase, chosen, groups)
    ratios = _ratios_of_settings(chosen, controls)
    steps, met = [number for number in options.one_peak if number in timer.calls], []

    def descend(numbers):
        found = timer.rounds([*controls, *numbers], options.repeats)
        met.append(numbers)
        _send_times(rank, operation, "descend %d" % len(met), found, groups)
        return _ratios_of_settings(found, controls)

    ratios.update(coarse_to_fine(steps, descend))
    # without rounds that decide this is a job of one setting, whose pair is another job
    best = [*timer.calls]
    if options.decide:
        decided = timer.rounds(
            [*controls, *_promising_settings(ratios, options.all)], options.decide
        )
        _send_times(rank, operation, "decide", decided, groups)
        winners = _promising_settings(_ratios_of_settings(decided, controls), False)
        best = []
        if winners:
            best = [*controls, *winners]
    for name, make in (
        (("product", product_of), ("step", step_of)) if options.under_computation and best else ()
    ):
        busy = make(torch, job, operation, groups, best, order)
        if busy:
            busy.clock = clock
            times = busy.rounds([*busy.calls], options.decide or options.repeats)
            _send_times(rank, operation, name, times, groups)


def _ratios_of_settings(times, controls):
    """{setting: its time as a part of the default's}.

    It is the same on all ranks, as the times are those of all of them.
    """
    usual = statistics.fmean(statistics.median(times[control]) for control in controls)
    return {
        number: statistics.median(laps) / usual
        for number, laps in times.items()
        if number not in controls
    }


def _promising_settings(ratios, every):
    """The settings that are worth rounds of their own: all of them, or the most promising ones."""
    ordered = sorted((ratio, number) for number, ratio in ratios.items())
    kept = [number for ratio, number in ordered if every or ratio < PROMISING]
    return sorted(kept if every else kept[:KEPT])


def coarse_to_fine(steps, measure):
    """{setting: ratio} of those steps that descent to the best one meets.

    Strides are coarse first, then finer.  Bandwidth has one peak over the number of channels, so
    what lies behind a worse neighbour is not measured. `measure` makes {setting: ratio} of
    settings.
    """
    ratios, stride, at = {}, max(1, len(steps) // 4), len(steps) // 2
    while steps:
        near = [place for place in (at - stride, at, at + stride) if 0 <= place < len(steps)]
        new = [steps[place] for place in near if steps[place] not in ratios]
        if new:
            ratios.update(measure(new))
        best = min(near, key=lambda place: ratios[steps[place]])
        if best == at and stride == 1:
            break
        if best == at:
            stride = stride // 2 or 1
        at = best
    return ratios


def _send_times(rank, operation, phase, times, groups):
    """Send the microseconds of each round, for each setting."""
    if rank == 0:
        what = {"op": operation.name, "bytes": operation.bytes, "phase": phase}
        for setting, laps in times.items():
            for start in range(0, len(laps), LONGEST):
                part = [round(lap * 1e6, 3) for lap in laps[start : start + LONGEST]]
                wire.send(
                    "sweep",
                    setting=setting,
                    times_us=part,
                    wrong=groups.wrong.get(setting, 0),
                    **what,
                )


class Groups:
    """A process group for each setting.

    What cannot be made is left out, on all ranks.
    """

    def __init__(self, torch, job, settings):
        self.torch = torch
        self.job = job
        self.wrong = {}
        self.groups = {}
        self.usable = []
        for number, setting in enumerate(settings):
            self.announce_setting(number)
            if self._make(number, setting):
                self.usable.append(number)
        self.announce_setting(None)
        """Numbers of the settings that every rank could make."""
        self.skipped = [
            {(op, size) for op, size in setting.get("skip", ())} for setting in settings
        ]
        """For each setting the (collective, bytes) on which it is what NCCL does anyway, so that
        nothing can differ."""

    def announce_setting(self, number):
        """Say which setting is used for the first time.

        So it is known where a job dies.
        """
        if self.job.rank == 0:
            wire.send("sweep.trying", setting=number)

    def _make(self, number, setting):
        """Make a group and, by a first call, its communicator.

        Returns whether every rank could.
        """
        problem = ""
        with _variables(setting.get("env", {})):
            try:
                self.groups[number] = self.job.dist.new_group(
                    timeout=self._limit(), **self._options(setting.get("config", {}))
                )
            except (RuntimeError, ValueError) as error:
                # gloo connects at once; a name that is no interface fails here
                problem = str(error)
        made = self.all_succeeded(number, problem)
        return made and self._can_initialize(number, setting)

    def _limit(self):
        """The timeout of a group.

        Gloo connects while it is made; over an interface that joins nobody, it would wait for as
        long as the whole job may take.
        """
        if self.job.options.backend == "gloo":
            return min(self.job.timeout, CONNECTING)
        return self.job.timeout

    def _options(self, config):
        if not config:
            return {}
        options = self.torch.distributed.ProcessGroupNCCL.Options()
        for name, value in config.items():
            setattr(options.config, name, value)
        return {"pg_options": options}

    def _can_initialize(self, number, setting):
        """Call once, by which NCCL makes the communicator.

        A setting that NCCL refuses on one rank counts as refused.
        """
        problem = ""
        with _variables(setting.get("env", {})):
            try:
                self.job.dist.all_reduce(
                    self.torch.ones(1, device=self.job.device), group=self.groups[number]
                )
                if self.job.device.type == "cuda":
                    self.torch.cuda.synchronize()
            except RuntimeError as error:
                problem = str(error)
        return self.all_succeeded(number, problem)

    def all_succeeded(self, number, problem, kind="sweep.refused"):
        """Whether no rank had a problem with a setting.

        The first rank that had says which, in a record of this kind.
        """
        failed = self.torch.tensor([float(bool(problem))], device=self.job.device)
        self.job.dist.all_reduce(failed)
        if failed.item() and (problem or self.job.rank == 0):
            lines = [line for line in problem.splitlines() if line.strip()] or [
                "another rank had a problem"
            ]
            wire.send(kind, setting=number, rank=self.job.rank, problem=lines[-1][:300])
        return not failed.item()


class _variables:
    """Environment variables that are set inside a block, also for C.

    Those whose value is None are taken away.
    """

    def __init__(self, env):
        self.env = env
        self.before = {}

    def __enter__(self):
        self.before = {name: os.environ.get(name) for name in self.env}
        self._set(self.env)

    def __exit__(self, *_):
        self._set(self.before)

    def _set(self, env):
        for name, value in env.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def timer_of(torch, job, operation, groups, order, clock=None):
    """The `Timer` of one collective of one size, on all groups that know it."""
    small = job.device.type == "cuda" and operation.bytes <= collective.SMALL
    calls = {}
    for number in groups.usable:
        groups.announce_setting(number)
        known = (operation.name, operation.bytes) in groups.skipped[number]
        if not known and _supports(job, operation, groups, number):
            on_group = _call_on_group(operation, groups, number)
            if small:
                calls[number] = collective.cuda_graph_of(torch, operation)
            else:
                calls[number] = on_group
    groups.announce_setting(None)
    operation.group = groups.groups[0]
    once = [collective.time_laps(torch, operation, calls[0], 1, 2)[-1]]
    each = collective.calls_that_fit(
        torch, operation, BATCH_SECONDS, statistics.median(once), 1, MOST
    )
    timer = Timer(torch, job, order, calls, each, collective.CAPTURED if small else 1)
    timer.clock = clock
    return timer


def _supports(job, operation, groups, number):
    """Whether a setting knows the collective; checks the values once.

    No algorithm of some settings knows every collective, which all ranks are told.
    """
    operation.group, problem, wrong = groups.groups[number], "", 0
    try:
        wrong = operation.check()
        operation.clear()
    except RuntimeError as error:
        problem = str(error)
    groups.wrong[number] = groups.wrong.get(number, 0) + wrong
    return groups.all_succeeded(number, problem)


def _call_on_group(operation, groups, number):
    """A call of the collective through the group of one setting."""

    def call():
        operation.group = groups.groups[number]
        operation.call()

    return call


def product_of(torch, job, operation, groups, numbers, order):
    """The `Timer` of the collective beside a matrix product of about its time.

    It is None where it cannot be.  Both run at once, so a setting that takes SMs or cores from the
    product pays for it here.
    """
    if operation.name == "send_recv":
        return None  # its calls have no handle to wait for
    alone = _slowest_seconds(torch, operation, _call_on_group(operation, groups, 0))
    side = 32
    took = 0.0
    while took < alone and side < WIDEST:
        side *= 2
        matrix = torch.zeros(side, side, device=job.device)
        took = _slowest_seconds(torch, operation, functools.partial(torch.mm, matrix, matrix))
    # twice the side takes eight times as long, so the last one may take far too long
    rows = matrix[: max(1, round(side * min(1.0, alone / took)))]

    def with_product(number):
        def both():
            operation.group = groups.groups[number]
            operation.async_op = True
            work = operation.call()
            torch.mm(rows, matrix)
            work.wait()
            operation.async_op = False

        return both

    return Timer(torch, job, order, {number: with_product(number) for number in numbers}, 1, 1)


def _slowest_seconds(torch, operation, call):
    """Seconds of a call on the slowest rank.

    It is the same on all ranks, or they would not go on alike.
    """
    own = statistics.median(collective.time_laps(torch, operation, call, 1, 5))
    slowest = torch.tensor([own], dtype=torch.float64, device=operation.sendbuff.device)
    operation.dist.all_reduce(slowest, op=operation.dist.ReduceOp.MAX)
    return slowest.item()


def step_of(torch, job, operation, groups, numbers, order):
    """The `Timer` of a training step under DDP with buckets of this size.

    It is None for other collectives than all_reduce.
    """
    if operation.name != "all_reduce" or operation.bytes < LEAST_STEP:
        return None
    from torch.nn import Linear, Sequential
    from torch.nn.parallel import DistributedDataParallel

    side = max(1, int((operation.bytes / 4) ** 0.5))
    rows = torch.ones(ROWS, side, device=job.device)

    def step(number):
        layers = [Linear(side, side, bias=False, device=job.device) for _ in range(LAYERS)]
        how = {
            "bucket_cap_mb": max(1e-3, operation.bytes / (1 << 20)),
            "gradient_as_bucket_view": True,
        }
        model = DistributedDataParallel(
            Sequential(*layers), process_group=groups.groups[number], **how
        )

        def train():
            model.zero_grad(set_to_none=True)
            model(rows).sum().backward()

        train()  # in the first step DDP orders its buckets anew
        return train

    calls = {}
    for number in numbers:
        train, problem = None, ""
        try:
            train = step(number)
        except RuntimeError as error:
            # DDP broadcasts, too, and no algorithm of some settings knows that
            problem = str(error)
        if groups.all_succeeded(number, problem, "sweep.no_step"):
            calls[number] = train
    return Timer(torch, job, order, calls, 1, 1)


class Timer:
    """Calls of several settings, timed in turn.

    Each is called `repeats` times, and each call stands for `calls_per_replay` calls.
    """

    def __init__(self, torch, job, order, calls, repeats, calls_per_replay):
        self.torch = torch
        self.job = job
        self.order = order
        self.calls = calls
        self.repeats = repeats
        self.calls_per_replay = calls_per_replay
        self.cuda = job.device.type == "cuda"
        self.clock = None
        """What ends it between two rounds; None: nothing does."""

    def rounds(self, numbers, count):
        """{setting: seconds of a call in each round}, averaged over the ranks."""
        marks = []
        for number in range(count):
            # a GPU that waits for the answer would begin each round idle, and shorter ones suffice
            if self.clock and not (self.cuda and number):
                self.clock.raise_if_late()
            marks.append(self._round(numbers))
        if self.cuda:
            self.torch.cuda.synchronize()
        calls = self.repeats * self.calls_per_replay
        own = []
        for number in numbers:
            own.append([self._seconds(*lap[number]) / calls for lap in marks])
        times = self.torch.tensor(own, dtype=self.torch.float64, device=self.job.device)
        self.job.dist.all_reduce(times)
        return dict(zip(numbers, (times / self.job.ranks).tolist()))

    def _round(self, numbers):
        """{setting: its two marks}, in an order of this round.

        The call before a batch does not count.
        """
        turn = list(numbers)
        marks = {}
        self.order.shuffle(turn)
        for number in turn:
            call = self.calls[number]
            call()
            start = collective.timestamp(self.torch, self.job.device)
            for _ in range(self.repeats):
                call()
            marks[number] = (start, collective.timestamp(self.torch, self.job.device))
        return marks

    def _seconds(self, start, end):
        if self.cuda:
            return start.elapsed_time(end) / 1e3
        return end - start
