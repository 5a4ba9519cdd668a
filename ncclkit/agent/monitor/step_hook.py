"""Measures the training steps of a script from outside.

`ncclkit step` puts this file before the script as ``sitecustomize``.  It runs in the user's
training interpreter and needs nothing but torch.  When the script imports torch, it wraps what
takes a step's time: a data loader's next batch, collectives and their waits, checkpoints.  An
optimizer's step ends a training step.  A thread looks where the main thread stands and thereby sees
the rest: which line of the script calls what.  After some tens of steps it writes
``steps_rank<N>.json`` and ends the script.  In half of the steps only begin and end are noted: the
difference is what the measuring itself costs.
"""

import ast
import atexit
import datetime
import dis
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import linecache
import math
import os
import re
import socket
import sys
import threading
import time
from typing import Any

OPTIONS = "NCCLKIT_STEP"
"""Variable with the options as JSON: ``folder``, ``warmup``, ``steps``, ``seconds`` that they take
at least, ``trace``, ``loader``, ``ddp``; ``measure``: False notes begin and end of all steps, and
nothing else."""
LOADED, WITH_TORCH = "loaded_", "torch_"
"""Marks that a process leaves beside this file, with its number: it has loaded the file, and has
imported torch."""
BLOCK = 5
"""Steps that are measured, and then as many that are not."""
SAMPLES = 20
"""Looks at the main thread in each step."""
OUTWARD = 4
"""Lines of the script that are kept of a look: the innermost, and those that called it."""
NOTICED = 1e-3
"""Seconds from which on a garbage collection, or a stretch without gradients, is kept."""
LOOKING = 0.005
"""Share of the time that these looks may take: one costs some 100 us, which short steps would
feel."""
SWITCH = 0.0005
"""Seconds after which Python lets the thread look that wants to: at the usual 5 ms it would see
where a stretch of Python ends."""
CALLS = 4000
"""Most waits that are kept of a step."""
MOST_STEPS, MOST_CALLS = 10, 100_000
"""Times the steps that are asked for, and waits in all, up to which short steps are measured on."""
SLOWEST = 10.0
"""Seconds after which a rank that was told to end, and waits for others, is ended."""
COLLECTIVES = (
    *(
        "allreduce",
        "allreduce_coalesced",
        "allgather",
        "_allgather_base",
        "allgather_into_tensor_coalesced",
    ),
    *(
        "reduce_scatter",
        "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
        "broadcast",
        "reduce",
        "gather",
    ),
    *("scatter", "alltoall", "alltoall_base", "barrier", "send", "recv", "recv_anysource"),
)
"""Methods of a process group."""
PHASES = (
    ("print", "torch._tensor_str", ()),
    ("print", "torch._tensor", ("__repr__", "__format__")),
    ("checkpoint", "torch.serialization", ()),
    ("checkpoint", "torch.distributed.checkpoint", ()),
    ("checkpoint", "safetensors", ()),
    ("checkpoint", "accelerate.checkpointing", ()),
    ("checkpoint", "accelerate.accelerator", ("save", "save_state", "save_model")),
    ("checkpoint", "transformers.trainer", ("_save_checkpoint", "save_model")),
    ("checkpoint", "lightning.pytorch.callbacks.model_checkpoint", ()),
    ("checkpoint", "pytorch_lightning.callbacks.model_checkpoint", ()),
    ("checkpoint", "torch.nn.modules.module", ("state_dict",)),
    ("checkpoint", "transformers.modeling_utils", ("save_pretrained",)),
    ("log", "logging", ()),
    ("log", "torch.utils.tensorboard", ()),
    ("log", "tensorboard", ()),
    ("log", "tensorboardX", ()),
    ("log", "wandb", ()),
    ("log", "mlflow", ()),
    ("log", "lightning.pytorch.loggers", ()),
    ("log", "pytorch_lightning.loggers", ()),
    ("clip", "torch.nn.utils.clip_grad", ()),
    ("zero_grad", "torch.optim", ("zero_grad",)),
    ("zero_grad", "torch.nn.modules.module", ("zero_grad",)),
    ("optimizer", "torch.optim", ()),
    ("backward", "torch.autograd", ("backward", "grad", "_engine_run_backward")),
    ("backward", "torch._tensor", ("backward",)),
    ("forward", "torch.nn.modules.module", ("_call_impl", "_wrapped_call_impl")),
    ("framework", "lightning", ()),
    ("framework", "pytorch_lightning", ()),
    ("framework", "transformers", ()),
    ("framework", "accelerate", ()),
)
"""What the main thread does when it stands in a module, or in these functions of it; the innermost
frame that is known decides."""
OF_LIBRARIES = frozenset(("optimizer", "framework", "clip", "zero_grad"))
"""Phases that are not those of a line of the script which they call."""
WITHIN_FRAMEWORKS = frozenset(("checkpoint", "log"))
"""Phases that a framework's outer functions tell, whatever the inner ones do."""
CALLEE = re.compile(r"([A-Za-z_][\w.]*)\s*\(")


class Finder(importlib.abc.MetaPathFinder):
    """Calls a function when a module has been imported for the first time."""

    def __init__(self, wanted):
        self.wanted = dict(wanted)

    def find_spec(self, name, path=None, target=None):
        """The spec that the others find, of a module that is waited for.

        It is None for all others.
        """
        then = self.wanted.pop(name, None)
        # of this name we have nothing to say any more
        spec = None
        if then:
            spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            try:
                then(module)
            except Exception as error:
                # the script is the user's: it goes on, and what is missing is said
                sys.stderr.write(
                    "ncclkit: steps cannot be measured: %s: %s\n" % (type(error).__name__, error)
                )

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class Steps:
    """The steps of one rank."""

    def __init__(self, options):
        self.options = options
        self.rows = []
        self.problems = []
        self.loaders = []
        self.models = []
        self.clocked = []
        self.owned = {}
        self.torch: Any = None
        self.owner = self.began = self.sampler = None
        self.profiler: Any = None
        self.depth = self.inside = self.done = self.batches = 0
        self.spent = self.cpu = self.data_cpu = 0.0
        self.busy = []
        self.samples = []
        self.gradless = []
        self.without_gradients = 0
        self.collecting = 0.0
        self.queued = 0.0
        self.queue: Any = None
        self.loop: Any = None
        self.driven = False
        self.agreed: Any = None
        self.usual = sys.getswitchinterval()
        self.spots = {}
        self.phases = {}
        self.places = {}
        self.entered = None
        self.main = threading.main_thread().ident or 0
        self.written = self.leaving = False

    def arm(self, torch):
        """Wrap what takes time in a step."""
        import torch.distributed as dist
        import torch.utils.data.dataloader as dataloader
        from torch.nn.parallel import DistributedDataParallel
        from torch.optim import optimizer

        leave_mark(WITH_TORCH)
        # opened once, as it is read in each step
        self.queue = opened_queue()
        self.torch, self.process = torch, os.getpid()
        optimizer.register_optimizer_step_pre_hook(self.before)
        optimizer.register_optimizer_step_post_hook(self.after)
        dataloader._BaseDataLoaderIter.__next__ = self.timed(
            "data", dataloader._BaseDataLoaderIter.__next__
        )
        dataloader.DataLoader.__init__ = self.loader(dataloader.DataLoader.__init__)
        torch.save = torch.serialization.save = self.timed("checkpoint", torch.save)
        for mode in (torch.no_grad, torch.inference_mode):
            mode.__enter__ = self.entering(mode.__enter__)
            mode.__exit__ = self.exiting(mode.__exit__)
        gc.callbacks.append(self.collected)
        if dist.is_available():
            group = torch._C._distributed_c10d.ProcessGroup
            for name in COLLECTIVES:
                if hasattr(group, name):
                    setattr(group, name, self.timed("collective", getattr(group, name), name))
            work = torch._C._distributed_c10d.Work
            work.wait = self.timed("collective", work.wait, "wait")
            DistributedDataParallel.__init__ = self.parallel(DistributedDataParallel.__init__)
        atexit.register(self.write, "the script ended")

    def saver(self, module):
        """Wrap the sharded checkpoints of torch.distributed.checkpoint."""
        module.save = self.timed("checkpoint", module.save)

    def timed(self, kind, call, name=""):
        """The function, whose time in the main thread is kept while steps are measured.

        What the function calls is part of that time.
        """

        @functools.wraps(call)
        def inner(*args, **named):
            self.batches += kind == "data"
            if not self.measuring or self.inside or threading.get_ident() != self.main:
                return call(*args, **named)
            self.inside, began, computed = 1, time.time(), time.thread_time()
            self.entered = kind
            try:
                return call(*args, **named)
            finally:
                ended = time.time()
                ours = time.thread_time()
                self.data_cpu += ours - computed if kind == "data" else 0.0
                self.inside = 0
                self.entered = None
                if len(self.busy) < CALLS:
                    place = ""
                    if kind == "collective":
                        place = self.place(sys._getframe(1))
                    self.busy.append(
                        (kind, began, ended, name, size(args[1:]) if name else 0, place)
                    )
                self.spent += time.thread_time() - ours

        return inner

    def entering(self, enter):
        """The begin of a block without gradients, which is noted in the main thread."""

        @functools.wraps(enter)
        def inner(this):
            if threading.get_ident() == self.main:
                self.without_gradients += 1
                if self.without_gradients == 1:
                    self.gradless_since = time.time()
            return enter(this)

        return inner

    def exiting(self, leave):
        """The end of such a block; only the outermost one is kept, where it is worth it."""

        @functools.wraps(leave)
        def inner(this, *error):
            if threading.get_ident() == self.main:
                self.without_gradients -= 1
                now = time.time()
                since = max(self.gradless_since, self.began or now)
                long = now - since >= NOTICED and len(self.gradless) < CALLS
                if self.without_gradients == 0 and self.measuring and long:
                    # FSDP's hooks and optimizers do their own work without gradients
                    if not self.within_training(sys._getframe(1)):
                        self.gradless.append((since, now))
            return leave(this, *error)

        return inner

    def within_training(self, frame):
        """Whether a stack goes through a forward or backward pass, or an optimizer."""
        while frame is not None:
            phase = self.phase_of(frame.f_code, frame.f_globals)
            if phase in ("forward", "backward", "optimizer"):
                return True
            frame = frame.f_back
        return False

    def collected(self, phase, told):
        """Keep a garbage collection that takes long, with the line that it interrupts."""
        if not self.measuring or self.inside or threading.get_ident() != self.main:
            return
        if phase == "start":
            self.collecting = time.time()
        elif self.collecting and time.time() - self.collecting >= NOTICED:
            if len(self.busy) < CALLS:
                place = self.place(sys._getframe(1))
                self.busy.append(("gc", self.collecting, time.time(), "gc", 0, place))

    def loader(self, init):
        """DataLoader's constructor, with the workers and the prefetching that are to be tried."""
        asked = self.options.get("loader") or {}

        @functools.wraps(init)
        def inner(this, dataset, *args, **named):
            wanted = dict(asked)
            if wanted and (args or isinstance(dataset, self.torch.utils.data.IterableDataset)):
                self.problem(
                    "a DataLoader keeps its workers, as its options are unnamed or its dataset is"
                    " iterable"
                )
                wanted = {}
            if wanted.get("num_workers") == 0:
                for gone in (
                    "prefetch_factor",
                    "persistent_workers",
                    "multiprocessing_context",
                    "timeout",
                ):
                    named.pop(gone, None)
            workers = wanted.get("num_workers", named.get("num_workers", 0))
            if not workers and wanted.pop("prefetch_factor", None):
                self.problem("a DataLoader without workers prefetches nothing")
            init(this, dataset, *args, **dict(named, **wanted))
            self.loaders.append([this.num_workers, this.prefetch_factor, this.batch_size])

        return inner

    def parallel(self, init):
        """DDP's constructor, with the buckets that are to be tried.

        DDP's own clock then runs in every step.
        """

        @functools.wraps(init)
        def inner(this, *args, **named):
            init(this, *args, **dict(named, **(self.options.get("ddp") or {})))
            self.models.append(this)
            # its clock waits for a GPU: there the profiler says it
            if this.device_type == "cpu" and hasattr(this, "_set_ddp_runtime_logging_sample_rate"):
                this._set_ddp_runtime_logging_sample_rate(1)
                self.clocked.append(this)

        return inner

    @property
    def measuring(self):
        """Whether more than begin and end of this step is kept."""
        wanted = self.options.get("measure", True) and self.profiler is None
        wanted = wanted and self.done >= self.options["warmup"]
        # what a script does every tenth or twentieth step falls into blocks of both kinds
        return wanted and self.began is not None and bin(self.done // BLOCK).count("1") % 2 == 1

    def before(self, optimizer, *_):
        """Note where an optimizer's step begins; one that another one calls is part of it."""
        self.depth += 1
        if self.depth == 1:
            self.optimizing = time.time()
            if self.loop is None:
                self.loop = self.training_loop(sys._getframe(1))

    def after(self, optimizer, *_):
        """End the step, where this is the optimizer that ended the first one.

        After the last step the script is ended.
        """
        self.depth -= 1
        if self.depth or (self.owner or id(optimizer)) != id(optimizer) or self.written:
            return
        self.owner, now = id(optimizer), time.time()
        if self.began is not None and self.done >= self.options["warmup"] and self.profiler is None:
            self.rows.append(self.row(now))
        self.done += 1
        self.busy = []
        self.samples = []
        self.gradless = []
        self.data_cpu = 0.0
        last = self.options["warmup"] + self.options["steps"]
        if self.done >= last:
            if self.agreed is None:
                self.agreed = self.agree()
            last = self.options["warmup"] + self.agreed
        if self.done >= last and not self.profiled(last):
            self.write("stopped after its last step")
            self.leave()
        self.watch()
        if self.measuring:
            self.queued = queued_seconds(self.queue)
        self.began, self.cpu = time.time(), time.process_time()

    def enough(self):
        """Steps to measure: those asked for, or more where they are too short to be looked at."""
        asked = self.options["steps"]
        least = self.options.get("seconds", 0)
        lengths = sorted(row["end"] - row["begin"] for row in self.rows)
        if not least or not lengths:
            return asked
        calls = max(len(row.get("busy", ())) for row in self.rows)
        most = min(MOST_STEPS * asked, MOST_CALLS // max(1, calls))
        return max(asked, min(most, math.ceil(least / max(lengths[len(lengths) // 2], 1e-6))))

    def agree(self):
        """The number of steps that all ranks measure; the first rank decides, if it is in time."""
        dist = self.torch.distributed
        asked = self.options["steps"]
        if not self.options.get("seconds", 0):
            return asked
        if not dist.is_available() or not dist.is_initialized():
            return self.enough()
        store = dist.distributed_c10d._get_default_store()
        wanted = asked
        try:
            if dist.get_rank() == 0:
                wanted = self.enough()
            else:
                store.wait(["ncclkit_steps/count"], datetime.timedelta(seconds=SLOWEST / 2))
        except RuntimeError as error:
            self.problem("the first rank did not say how long to measure: %s" % error)
        # who writes first decides for all
        return int(store.compare_set("ncclkit_steps/count", "", str(wanted)))

    def row(self, now):
        """What is known of the step that ends now."""
        row = {
            "begin": self.began,
            "end": now,
            "cpu": time.process_time() - self.cpu,
            "on": self.measuring,
        }
        if not row["on"]:
            return row
        row.update(
            busy=self.busy,
            samples=self.samples,
            gradless=self.gradless,
            queued=max(0.0, queued_seconds(self.queue) - self.queued),
            loading=self.data_cpu,
            optimizer=[self.optimizing, now],
        )
        ours = time.thread_time()
        for model in self.clocked:
            model.logger.set_runtime_stats_and_log()
            known = model._get_ddp_logging_data()
            clock = {name: known.get(name + "_time_" + end, 0) / 1e9 for name, end in CLOCK}
            # of a step without a backward pass that sends anything it is that of an earlier one
            if clock["backward_comm"] >= self.began:
                ends = (
                    known["backward_compute_time_end"] / 1e9,
                    known["backward_comm_time_end"] / 1e9,
                )
                row["ddp"] = [clock["forward_compute"], clock["backward_comm"], *ends]
        self.spent += time.thread_time() - ours
        return row

    def watch(self):
        """Start the thread that samples the main thread, where it does not run."""
        sys.setswitchinterval(min(SWITCH, self.usual) if self.measuring else self.usual)
        if self.measuring and self.sampler is None:
            self.sampler = threading.Thread(target=self.sample, daemon=True, name="ncclkit-step")
            self.sampler.start()

    def sample(self):
        """Note where in the script the main thread is, some times in each step."""
        cost = 0.0
        while not self.written:
            # as often that a step of any length is seen about as many times, and a step that is
            # longer than the last one (a validation) to its end
            last = 0.4
            if self.rows:
                last = self.rows[-1]["end"] - self.rows[-1]["begin"]
            if self.began is not None:
                last = max(last, time.time() - self.began)
            began = time.thread_time()
            time.sleep(min(max(last / SAMPLES, 0.01, cost / LOOKING), 0.5))
            if self.measuring and len(self.samples) < 8 * SAMPLES:
                # a frame that is kept in a variable would keep the script's tensors, until the next
                # look: they cost memory, and torch fails to print a parameter
                stands = self.standing(sys._current_frames().get(self.main))
                self.samples.append((time.time(), self.entered or "", *stands))
                # while it sleeps or waits for the main thread it costs nothing
                cost = time.thread_time() - began
                self.spent += cost

    def standing(self, frame):
        """Number of the lines of the script that a stack goes through, and what it does there."""
        # at once, as the main thread may run on before all is understood
        stack = []
        while frame is not None:
            stack.append((frame.f_code, frame.f_lasti, frame.f_globals))
            frame = frame.f_back
        own: Any = []
        phase = ""
        for code, at, names in stack:
            if len(own) == OUTWARD:
                break
            if self.is_own(code.co_filename):
                # where a framework trains, all that it calls goes through one line
                if own and self.driven and code is self.loop:
                    break
                own.append((code, at))
                # what calls the training loop is nothing that a step does
                if code is self.loop:
                    break
            elif not phase or (phase == "framework" and not own):
                found = self.phase_of(code, names)
                if not own or found not in OF_LIBRARIES:
                    # what a framework does for a checkpoint is said by its outer functions
                    phase = found if not phase or found in WITHIN_FRAMEWORKS else phase
        # the module's own line only starts what the script does
        while len(own) > 1 and own[-1][0].co_name == "<module>":
            own.pop()
        # a code object hashes all it holds, which would cost more than the look
        key = tuple([(id(code), at) for code, at in own])
        if key not in self.spots:
            self.spots[key] = len(self.spots), own
        return self.spots[key][0], phase

    def phase_of(self, code, names):
        """What a function of a library does, by `PHASES`; empty if unknown.

        `names` are the globals that the function sees.
        """
        key = code.co_filename, code.co_name
        known = self.phases.get(key)
        if known is None:
            module = str(names.get("__name__", ""))
            known = ""
            for phase, place, names in PHASES:
                inside = module == place or module.startswith(place + ".")
                if inside and (not names or code.co_name in names):
                    known = phase
                    break
            self.phases[key] = known
        return known

    def is_own(self, path):
        """Whether a file is the user's: outside of Python and of installed packages."""
        if path not in self.owned:
            outside = path.startswith((LIBRARY, "<")) or not PACKAGES.isdisjoint(path.split(os.sep))
            self.owned[path] = not outside and path != HERE
        return self.owned[path]

    def training_loop(self, frame):
        """The user's function that trains, or that has a framework train.

        It is False where that is hidden.  `frame` is that of the first optimizer's step.
        """
        while frame is not None and not self.is_own(frame.f_code.co_filename):
            # accelerate only wraps the optimizer
            module = str(frame.f_globals.get("__name__", ""))
            phase = self.phase_of(frame.f_code, frame.f_globals)
            if phase == "framework" and not module.startswith("accelerate"):
                self.driven = True
            frame = frame.f_back
        return frame.f_code if frame else False

    def own_frame(self, frame):
        """The innermost frame of a stack that is the user's; None where there is none."""
        while frame is not None and not self.is_own(frame.f_code.co_filename):
            frame = frame.f_back
        return frame

    def place(self, frame):
        """The line of the script that a frame belongs to.

        It is the innermost one outside of installed packages.
        """
        own = self.own_frame(frame)
        if own is None:
            return ""
        key = id(own.f_code), own.f_lineno
        if key not in self.places:
            self.places[key] = line_of(own.f_code, own.f_lineno), own.f_code
        return self.places[key][0]

    def profiled(self, last):
        """Whether torch's profiler still needs steps.

        It takes some steps of its own, where it is asked for or GPUs compute.
        """
        count = self.options.get("trace", 0) or (6 if self.torch.cuda.is_initialized() else 0)
        if not count:
            return False
        if self.profiler is None:
            kinds = self.torch.profiler.ProfilerActivity
            chosen = [kinds.CPU, *([kinds.CUDA] if self.torch.cuda.is_initialized() else [])]
            self.profiler = self.torch.profiler.profile(activities=chosen)
            self.profiler.start()
            return True
        if self.done < last + count:
            return True
        self.profiler.stop()
        name = "trace_rank%d.json" % self.rank()
        self.profiler.export_chrome_trace(os.path.join(self.options["folder"], name))
        return False

    def rank(self):
        """The global rank of this process."""
        dist = self.torch.distributed
        joined = dist.is_available() and dist.is_initialized()
        if joined:
            return dist.get_rank()
        return int(os.environ.get("RANK", "0"))

    def problem(self, words):
        """Keep a sentence on what could not be done, once."""
        if words not in self.problems:
            self.problems.append(words)

    def write(self, ended):
        """Write what was measured, once.

        A process that made no step, or a child of one that did, writes nothing.
        """
        if self.written or not self.rows or self.process != os.getpid():
            return
        self.written = True
        sys.setswitchinterval(self.usual)
        dist = self.torch.distributed
        joined = dist.is_available() and dist.is_initialized()
        report = {
            "ncclkit_steps": 1,
            "rank": self.rank(),
            "world": dist.get_world_size() if joined else 1,
        }
        report.update(
            host=socket.gethostname(), backend=dist.get_backend() if joined else "", ended=ended
        )
        report.update(
            gpus=self.torch.cuda.is_initialized(),
            threads=self.torch.get_num_threads(),
            rows=self.rows,
        )
        report.update(
            spent=self.spent,
            batches=self.batches / self.done,
            loaders=self.loaders,
            problems=self.problems,
            spots=[described(own) for _, own in self.spots.values()],
            buckets=[buckets(model) for model in self.models],
        )
        path = os.path.join(self.options["folder"], "steps_rank%d.json" % report["rank"])
        try:
            with open(path + ".part", "w") as out:
                json.dump(report, out)
            os.replace(path + ".part", path)
        except OSError as error:  # the script is the user's: it ends as it would
            sys.stderr.write(
                "ncclkit: the steps of rank %d cannot be written: %s\n" % (report["rank"], error)
            )

    def leave(self):
        """End the script as it would end itself, together with the other ranks.

        What hangs then is ended.
        """
        self.leaving = True
        ending = threading.Timer(SLOWEST, os._exit, (0,))
        ending.daemon = True
        ending.start()
        dist = self.torch.distributed
        if dist.is_available() and dist.is_initialized():
            # who ends first closes its connections, over which others may still receive the last
            # gradients
            names = ["ncclkit_steps/%d" % rank for rank in range(dist.get_world_size())]
            store = dist.distributed_c10d._get_default_store()
            try:
                store.set(names[dist.get_rank()], "done")
                store.wait(names, datetime.timedelta(seconds=SLOWEST / 2))
            except RuntimeError as error:
                sys.stderr.write("ncclkit: the ranks do not end together: %s\n" % error)
        raise SystemExit(0)

    def last(self):
        """End a script that we ended, when all else is done.

        The interpreter's own end may abort on torch's threads.
        """
        if self.leaving and self.process == os.getpid():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


CLOCK = (("forward_compute", "start"), ("backward_comm", "start"))
HERE = __file__
LIBRARY = os.path.dirname(os.__file__) + os.sep
PACKAGES = frozenset(("site-packages", "dist-packages"))


def size(args):
    """Bytes of the largest tensor, or list of tensors, among arguments."""
    largest = 0
    for value in args:
        largest = max(largest, bytes_of(value))
    return largest


def bytes_of(value):
    """Bytes of a tensor, or of all in a list, or in a list of lists."""
    if isinstance(value, (list, tuple)):
        total = 0
        for one in value:
            total += bytes_of(one)
        return total
    if hasattr(value, "element_size"):
        return value.numel() * value.element_size()
    return 0


def described(own):
    """Lines of the script that a look went through, the innermost first, and what it calls."""
    called = ""
    if own:
        called = called_at(*own[0])
    return {"lines": [line_of(code, line_at(code, at)) for code, at in own], "called": called}


def line_at(code, at):
    """The number of the line that an instruction belongs to; 0 where it belongs to none."""
    found = 0
    for start, line in dis.findlinestarts(code):
        if start > at:
            break
        found = line or found
    return found


def line_of(code, line):
    """A line of the script as it is shown."""
    return "%s:%d %s" % (os.path.basename(code.co_filename), line or 0, code.co_name)


def called_at(code, at):
    """Name of the function that an instruction calls, such as ``loss.item``.

    It is ``bool`` where the instruction asks whether something is true, and empty where it calls
    nothing, or that is not known.
    """
    positions = getattr(code, "co_positions", None)
    if positions is None:  # before Python 3.11 only a line's only call is known
        text = linecache.getline(code.co_filename, line_at(code, at))
        names = CALLEE.findall(text)
        return names[0] if len(names) == 1 else ""
    number = at // 2
    if dis.opname[code.co_code[at]].startswith(("POP_JUMP", "JUMP_IF", "UNARY_NOT", "TO_BOOL")):
        return "bool"
    first, last, begin, end = list(positions())[number]
    if None in (first, last, begin, end):
        return ""
    lines = [linecache.getline(code.co_filename, one) for one in range(first, last + 1)]
    # columns are counted in bytes
    raw = [one.encode() for one in lines]
    raw[-1] = raw[-1][:end]
    raw[0] = raw[0][begin:]
    return name_of_call(b"".join(raw).decode("utf-8", "replace"))


def name_of_call(text):
    """The dotted name that an expression calls.

    Of what stands before a call only a dot is kept.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(tree, ast.Call):
        return ""
    names = []
    callee = tree.func
    while isinstance(callee, ast.Attribute):
        names.append(callee.attr)
        callee = callee.value
    names.append(callee.id if isinstance(callee, ast.Name) else "")
    return ".".join(reversed(names))


def queued_seconds(descriptor):
    """Seconds that the main thread waited for a CPU; 0 where Linux hides it."""
    if descriptor is None:
        return 0.0
    try:
        return int(os.pread(descriptor, 100, 0).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def opened_queue():
    """A descriptor of the main thread's times in Linux's scheduler; None where there is none."""
    try:
        return os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def buckets(model):
    """Bytes of each bucket in which DDP sends gradients."""
    known = model._get_ddp_logging_data()
    sizes = known.get("rebuilt_bucket_sizes") or known.get("bucket_sizes") or ""
    return [int(one) for one in str(sizes).split(",") if one.strip()]


def run_hidden_sitecustomize():
    """Run the ``sitecustomize`` that this one hides, where there is one."""
    mine = os.path.dirname(os.path.abspath(HERE))
    others = [path for path in sys.path if os.path.abspath(path or ".") != mine]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def leave_mark(kind):
    """Tell who watches the run how far this process has come."""
    path = os.path.join(os.path.dirname(os.path.abspath(HERE)), kind + str(os.getpid()))
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        sys.stderr.write("ncclkit: the file that measures steps cannot report itself: %s\n" % error)


def begin():
    """Wait for the import of torch, where ``NCCLKIT_STEP`` says what to measure."""
    options = os.environ.get(OPTIONS)
    if options:
        leave_mark(LOADED)
        steps = Steps(json.loads(options))
        atexit.register(steps.last)  # what is registered first comes last
        wanted = {"torch": steps.arm, "torch.distributed.checkpoint.state_dict_saver": steps.saver}
        sys.meta_path.insert(0, Finder(wanted))


if __name__ == "sitecustomize":
    begin()
    run_hidden_sitecustomize()
