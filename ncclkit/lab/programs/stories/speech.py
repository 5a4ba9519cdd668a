"""A small speech recogniser trained with DDP and CTC.

Its features are made on the fly by workers of a DataLoader.  As in WeNet each utterance is changed
(speed, noise, masks) and turned into log-mel features while the model trains, so loading costs more
CPU than training does.  The lab starts far more workers than there are cores: all of them work on
their first batch at once, none is ready, and the rank comes late to the first all_reduce.
"""

import os
import time

from ncclkit.agent import wire
from ncclkit.agent.run import crash_handler
from ncclkit.lab.programs import inject

STARVED, CROWDED = "loader_starved", "loader_crowded"
BOUND = 2
"""Cores that the binding of `CROWDED` knows."""
BATCH, BINS, WORDS = 4, 40, 16
"""Utterances in a batch, mel bins, tokens of the alphabet (0 is CTC's blank)."""
MOST = 4
"""More workers than this has no use for so short a training."""


def main(argv):
    """``stories.speech --folder DIR --backend gloo [--fault loader_starved --workers 32] [--fix
    cpu_contention]``.
    """
    parser = inject.parser("stories.speech", 3, faults=[STARVED, CROWDED])
    parser.add_argument(
        "--workers", type=int, default=32, help="that a rank starts on its one core"
    )
    parser.add_argument("--cost", type=float, default=0.1, help="seconds of CPU that a batch needs")
    options = parser.parse_args(argv)
    return crash_handler.run_rank(options.folder, lambda rank: _train(options, rank))


def _train(options, rank):
    import torch

    job = inject.LabJob(torch, options, options.steps)
    wire.send("phase", phase="import", rank=rank, torch=torch.__version__)
    cores = bound(job, sorted(os.sched_getaffinity(0)))
    right = not cores or job.fixed("cpu_contention")
    if cores and not (right and options.fault == CROWDED):
        os.sched_setaffinity(0, cores)
    workers = fitting() if right else options.workers
    job.begin()
    wire.send("phase", phase="init", rank=rank, workers=workers, cores=len(os.sched_getaffinity(0)))
    trainer = Trainer(job)
    batches = iter(loader(torch, rank, workers, options.cost, max(options.steps, workers)))
    for step in range(options.steps):
        wire.send("phase", phase="step", rank=rank, step=step)
        batch, waited = next_batch(batches)
        print("step %d loss %.4f, waited %.2f s for data" % (step, trainer.step(batch), waited))
    del trainer
    job.end()


def bound(job, cores):
    """The core that the fault binds this rank to, with its workers.

    It is empty where the rank may use all.  A scheduler that gave a task one CPU starves one rank.
    A start script that was written for as many ranks as there are cores leaves the last core to all
    further ranks.
    """
    if job.options.fault == CROWDED:
        # simulated hosts share the cores, as they share the machine
        return {cores[:BOUND][min(int(os.environ["LOCAL_RANK"]), len(cores[:BOUND]) - 1)]}
    return {cores[-1]} if job.options.fault == STARVED and job.faulty_here else set()


def fitting():
    """Workers of a rank by the rule; at least one.

    The rule is (workers + 1) x ranks of its host <= cores that they may use.
    """
    cores, ranks = len(os.sched_getaffinity(0)), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(MOST, cores // ranks - 1))


def next_batch(batches):
    """The next batch, and the seconds that this rank waited until a worker had it."""
    since = time.monotonic()
    return next(batches), time.monotonic() - since


class Trainer:
    """The model, and one step of it on all ranks."""

    def __init__(self, job):
        torch, self.job = job.torch, job
        layers = (
            torch.nn.Linear(BINS, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, WORDS),
            torch.nn.LogSoftmax(-1),
        )
        model = torch.nn.Sequential(*layers).to(job.device)
        ids = [job.device.index] if job.device.type == "cuda" else None
        self.model = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.loss = torch.nn.CTCLoss()

    def step(self, batch):
        """Train on one batch of (features, tokens); returns the loss, mean over the ranks."""
        torch, job = self.job.torch, self.job
        features, tokens = (piece.to(job.device) for piece in batch)
        self.optimizer.zero_grad()
        frames = torch.full((len(features),), features.shape[1], device=job.device)
        heard = torch.full((len(tokens),), tokens.shape[1], device=job.device)
        loss = self.loss(self.model(features).transpose(0, 1), tokens, frames, heard)
        loss.backward()
        self.optimizer.step()
        mean = loss.detach().clone()
        job.dist.all_reduce(mean)
        job.synchronize()
        return float(mean) / job.ranks


def loader(torch, rank, workers, cost, batches, prefetch=1, wait=0.0):
    """A DataLoader of so many batches.

    Each costs `cost` seconds of CPU and `wait` seconds of storage.
    """
    return torch.utils.data.DataLoader(
        Utterances(torch, rank, BATCH * batches, cost / BATCH, wait / BATCH),
        BATCH,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        multiprocessing_context="fork" if workers else None,
    )


class Utterances:
    """Utterances of a second each, made up.

    Their features are computed when they are asked for.
    """

    def __init__(self, torch, rank, count, cost, wait):
        self.torch, self.rank, self.count, self.cost, self.wait = torch, rank, count, cost, wait
        self.mel = torch.rand(201, BINS, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        """(log-mel features of 98 frames, 8 tokens).

        It is changed anew until its seconds of CPU are spent: so the work is the same on a fast and
        on a slow machine.
        """
        until = time.thread_time() + self.cost
        time.sleep(self.wait)  # as long as a shard on network storage lets a reader wait
        own = self.torch.Generator().manual_seed(self.rank * self.count + index)
        speech = self.torch.randn(16000, generator=own)
        while True:
            features = self.features(speech + 0.1 * self.torch.randn(16000, generator=own))
            if time.thread_time() >= until:
                return features, self.torch.randint(1, WORDS, (8,), generator=own)

    def features(self, speech):
        """Log-mel features of a second of speech at 16 kHz.

        They have windows of 25 ms, every 10 ms, with a band of bins masked.
        """
        window = self.torch.hann_window(400)
        power = (
            self.torch.stft(
                speech, 400, 160, window=window, center=False, return_complex=True
            ).abs()
            ** 2
        )
        features = (power.T @ self.mel + 1e-6).log()
        features[:, :4] = 0
        return (features - features.mean()) / features.std()
