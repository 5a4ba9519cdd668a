"""Story 2: a small language model stops, and is resumed from its checkpoint.

It is trained on a stream of tokens.  As in the training script of TinyLlama, the checkpoint holds
the model and how far it was, but not where each rank stood in its data.  To resume, every rank
therefore reads its stream again and throws away what the model has learned from already; one rank,
whose storage is slower now, needs longer for that than a collective may wait.  The right way, taken
with ``--fix slow_rank``, keeps the state of every rank's loader in the checkpoint.

Lightning Fabric trains where it is installed (`lightning-fabric` or `lightning`): FSDP on GPUs, DDP
over gloo; the loader is torchdata's `StatefulDataLoader`.  Without them the same job runs in plain
torch.
"""

import importlib
import os
import statistics
import sys
import time
import zipfile
from datetime import timedelta

from ncclkit.agent import wire
from ncclkit.agent.run import crash_handler
from ncclkit.lab.programs import inject
from ncclkit.lab.programs.inject import checkpoint

PATIENCE = timedelta(minutes=3)
"""How long ranks wait for each other's imports.

It comes beyond the limit that this story is about.
"""
TELL = 0.5
"""Seconds between two records of a replay."""


def main(argv):
    """``stories.resume --folder DIR --backend gloo [--rank R --seconds S --timeout T --fix
    slow_rank]``.

    ``--seconds``: how long the replay takes on rank R.
    """
    parser = inject.parser("stories.resume", 240, "before the checkpoint")
    parser.add_argument("--more", type=int, default=12, help="steps after the job was resumed")
    options = parser.parse_args(argv)
    return crash_handler.run_rank(options.folder, lambda rank: _train(options, rank))


def _train(options, rank):
    import torch

    job = inject.LabJob(torch, options, options.steps)
    fabric = _first_importable("lightning.fabric", "lightning_fabric")
    engine = Lightning(job, fabric) if fabric else Torch(job)
    wire.send("phase", phase="import", rank=rank, torch=torch.__version__)
    wire.send("phase", phase="start", rank=rank, limit=options.timeout, lightning=engine.version)
    meet(job)
    engine.begin()
    wire.send("phase", phase="init", rank=rank)
    _start_twice(job, engine, options.more)
    job.end()


def _start_twice(job, engine, more):
    """Train from nothing to the checkpoint, then from the checkpoint on.

    The second time storage has become slow on one rank.
    """
    first = Training(job, engine)
    first.train(job.steps)
    path = first.save()
    again = Training(job, engine, delay=job.seconds / job.steps if job.faulty_here else 0.0)
    again.resume(path)
    again.train(more, report=True)


def meet(job):
    """Wait until every rank has imported what it needs.

    Ranks meet where torchrun holds the store for them.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store, _, _ = next(job.dist.rendezvous("env://", timeout=PATIENCE))
        store.set("ready/%d" % job.rank, "")
        store.wait(["ready/%d" % rank for rank in range(job.ranks)], PATIENCE)


class Training:
    """One start of the program.

    It has a model, its optimizer and a loader, which know nothing of any start before.
    """

    def __init__(self, job, engine, delay=0.0):
        self.job, self.engine, self.began = job, engine, time.monotonic()
        self.model, self.optimizer = engine.wrap(language_model(job.torch))
        self.loader = stateful(job.torch, token_stream(job.torch, job.rank, delay))
        self.batches, self.step = None, 0

    def train(self, steps, report=False):
        """Train so many steps.

        With `report` it sends when the first one was done, and what reading and a whole step take.
        """
        self.batches = iter(self.loader) if self.batches is None else self.batches
        reads, takes = [], []
        for _ in range(steps):
            began = time.monotonic()
            tokens = next(self.batches).to(self.job.device)
            reads.append(time.monotonic() - began)
            loss = self._learn(tokens)
            takes.append(time.monotonic() - began)
            if report:
                self._send_phase("step", step=self.step, loss=round(loss, 4))
            if report and len(takes) == 1:
                self._send_phase("first", seconds=round(time.monotonic() - self.began, 3))
            if report or self.step % 40 == 0:
                print("step %d loss %.4f" % (self.step, loss))
            self.step += 1
        if report:
            self._send_phase(
                "pace",
                read_s=round(statistics.median(reads), 5),
                step_s=round(statistics.median(takes), 5),
            )

    def _send_phase(self, phase, **said):
        wire.send("phase", phase=phase, rank=self.job.rank, **said)

    def _learn(self, tokens):
        self.optimizer.zero_grad()
        guesses = self.model(tokens[:, :-1])
        loss = self.job.torch.nn.functional.cross_entropy(
            guesses.flatten(0, 1), tokens[:, 1:].flatten()
        )
        self.engine.backward(loss)
        self.optimizer.step()
        return float(loss.detach())  # waits for the GPU, as most loops do

    def save(self):
        """Write the checkpoint, whole or not at all, and return its path."""
        path = os.path.join(checkpoint.folder(self.job), "model.ckpt")
        state = {"model": self.model, "optimizer": self.optimizer, "step": self.step}
        if self.job.fixed("slow_rank"):
            # every rank stands elsewhere in its own data
            state["loaders"] = checkpoint.gather(self.job, self.loader.state_dict())
        self.engine.save(path + ".part", state)
        if self.job.rank == 0:
            os.replace(path + ".part", path)
        self.job.dist.barrier()
        return path

    def resume(self, path):
        """Go on from a checkpoint.

        It goes on with the state of this rank's loader, or by reading its data once more.
        """
        check(path)
        state = {"model": self.model, "optimizer": self.optimizer, "step": 0}
        rest = self.engine.load(path, state)
        self.step = state["step"]
        if "loaders" in rest:
            self.loader.load_state_dict(rest["loaders"][self.job.rank])
        else:
            self.batches = iter(self.loader)
            skip_batches(self.batches, self.step, self.job.rank)
        print("resumed at step %d after %.1f s" % (self.step, time.monotonic() - self.began))


def check(path):
    """Refuse a checkpoint that is cut or damaged, before anything is made of it.

    Torch's own loader may crash on it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        damaged, why = path, str(error)
    else:
        why = "its checksum is wrong"
    if damaged:
        raise RuntimeError(
            "the checkpoint is damaged: %s (%s); resume from the one before" % (damaged, why)
        )


def skip_batches(batches, count, rank):
    """Read the batches that the model was already trained on, and discard them."""
    began = said = time.monotonic()
    for done in range(1, count + 1):
        next(batches)
        now = time.monotonic()
        if done == count or now - said > TELL:
            said = now
            wire.send(
                "phase",
                phase="replay",
                rank=rank,
                done=done,
                of=count,
                seconds=round(now - began, 3),
            )
            print("skipped %d of %d batches in %.1f s" % (done, count, now - began))


def language_model(torch):
    """A small model that predicts the next byte from this one."""
    nn = torch.nn
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 256))


def token_stream(torch, rank, delay):
    """An endless dataset of batches that can say where it stands.

    Batches have 8 x 33 tokens; `delay` is the seconds for each batch.
    """

    class Tokens(torch.utils.data.IterableDataset):  # type: ignore[name-defined]
        position = 0

        def __iter__(self):
            while True:
                self.position += 1
                yield fetch(torch, rank, self.position, delay)

        def state_dict(self):
            return {"position": self.position}

        def load_state_dict(self, state):
            self.position = state["position"]

    return Tokens()


def fetch(torch, rank, number, delay):
    """Batch `number` of a rank.

    A token is its predecessor plus 7, one in ten is noise; slow storage takes longer.
    """
    time.sleep(delay)
    dice = torch.Generator().manual_seed(rank * 1_000_003 + number)
    tokens = torch.randint(256, (8, 1), generator=dice) + 7 * torch.arange(33)
    noise = torch.rand(tokens.shape, generator=dice) < 0.1
    return torch.where(noise, torch.randint(256, tokens.shape, generator=dice), tokens) % 256


def stateful(torch, stream):
    """A loader with `state_dict`.

    It is torchdata's, or torch's own with the stream's state, as nothing is prefetched.
    """
    torchdata = _first_importable("torchdata.stateful_dataloader")
    if torchdata is not None:
        return torchdata.StatefulDataLoader(stream, batch_size=None)
    loader = torch.utils.data.DataLoader(stream, batch_size=None)
    loader.state_dict, loader.load_state_dict = stream.state_dict, stream.load_state_dict
    return loader


class Torch:
    """The trainer in plain torch: DDP, and a checkpoint that rank 0 writes."""

    def __init__(self, job):
        self.job, self.version = job, ""
        print(
            "Lightning is not installed here (pip install lightning-fabric); the same job runs in"
            " plain torch."
        )

    def begin(self):
        """Make the process group."""
        self.job.begin()

    def wrap(self, model):
        """The model as all ranks train it together, and its optimizer."""
        ids = [self.job.device.index] if self.job.device.type == "cuda" else None
        model = self.job.torch.nn.parallel.DistributedDataParallel(
            model.to(self.job.device), device_ids=ids
        )
        return model, _new_optimizer(self.job.torch, model)

    def backward(self, loss):
        """The gradients, averaged over the ranks."""
        loss.backward()

    def save(self, path, state):
        """Write the state.

        What has a state_dict is written by it, everything else as it is.
        """
        if self.job.rank == 0:
            kept = {
                name: thing.state_dict() if hasattr(thing, "state_dict") else thing
                for name, thing in state.items()
            }
            self.job.torch.save(kept, path)

    def load(self, path, state):
        """Read the state back into what `state` holds.

        Returns what else the checkpoint has.
        """
        kept = self.job.torch.load(path, map_location=self.job.device, weights_only=True)
        for name in ("model", "optimizer"):
            state[name].load_state_dict(kept.pop(name))
        state["step"] = kept.pop("step")
        return kept


class Lightning:
    """The trainer with Lightning Fabric, whose strategy takes the timeout."""

    def __init__(self, job, package):
        self.job, self.version = job, _package_version(package)
        strategies = importlib.import_module(package.__name__ + ".strategies")
        if job.device.type == "cuda":
            strategy = strategies.FSDPStrategy(timeout=job.timeout, state_dict_type="full")
        else:
            strategy = strategies.DDPStrategy(timeout=job.timeout, process_group_backend="gloo")
        # Lightning wants a GPU of its own for every rank of a node; those of simulated hosts are
        # shared
        devices = job.gpus if job.device.type == "cuda" else len(job.gpus)
        nodes = job.ranks // len(job.gpus)
        os.environ["LOCAL_RANK"] = str(job.place)
        self.fabric = package.Fabric(
            accelerator=job.device.type, devices=devices, num_nodes=nodes, strategy=strategy
        )
        self.begin, self.backward = self.fabric.launch, self.fabric.backward
        self.save, self.load = self.fabric.save, self.fabric.load
        os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = (
            "1"  # some versions unpickle whatever lies in a checkpoint …
        )
        # … and what others send: here each rank knows the path itself
        strategy.broadcast = lambda obj, src=0: obj

    def wrap(self, model):
        """The model as all ranks train it together, and its optimizer."""
        model = self.fabric.setup_module(model)
        return model, self.fabric.setup_optimizers(_new_optimizer(self.job.torch, model))


def _new_optimizer(torch, model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def _first_importable(*names):
    """The first of these packages that can be imported, or None."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _package_version(package):
    return getattr(sys.modules[package.__name__.partition(".")[0]], "__version__", "?")
