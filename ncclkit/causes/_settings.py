"""What to write where: the settings of frameworks and launchers, with the numbers that this job's must reach."""

from __future__ import annotations

from ncclkit.analysis.frames import Frame, framework, is_own, place
from ncclkit.core.case import Case
from ncclkit.core.model import Advice

TIMEOUTS = {
    "recbole": "# in recbole/config/configurator.py (_init_device), as RecBole passes none\n"
    "torch.distributed.init_process_group(..., timeout=timedelta(seconds={0}))",
    "wenet": "torchrun ... wenet/bin/train.py --timeout {0}",
    "lightning": "Trainer(strategy=DDPStrategy(timeout=timedelta(seconds={0})))  # FSDPStrategy takes timeout= as well",
    "accelerate": "Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds={0}))])",
    "transformers": "TrainingArguments(..., ddp_timeout={0})",
    "llamafactory": "ddp_timeout: {0}",
    "deepspeed": "deepspeed.init_distributed(timeout=timedelta(seconds={0}))",
    "megatron": "--distributed-timeout-minutes {1}",
    "": "torch.distributed.init_process_group(..., timeout=timedelta(seconds={0}))",
}
"""Where each framework takes the timeout of a collective, {0} in seconds, {1} in minutes; "" is plain PyTorch."""
BATCHES = {
    "recbole": "train_batch_size: <half>  # RecBole does not accumulate gradients: lower learning_rate with it",
    "wenet": "accum_grad: <twice>\ndataset_conf: {batch_conf: {batch_size: <half>}}",
    "lightning": "Trainer(accumulate_grad_batches=2)  # with half the batch_size in the DataLoader",
    "accelerate": "Accelerator(gradient_accumulation_steps=2)  # with half the batch_size in the DataLoader",
    "transformers": "TrainingArguments(per_device_train_batch_size=<half>, gradient_accumulation_steps=<twice>)",
    "llamafactory": "per_device_train_batch_size: <half>\ngradient_accumulation_steps: <twice>",
    "deepspeed": '"train_micro_batch_size_per_gpu": <half>, "gradient_accumulation_steps": <twice>',
    "megatron": "--micro-batch-size <half>  # --global-batch-size stays",
    "": "for micro in batch.chunk(2):\n    (loss(model(micro)) / 2).backward()\noptimizer.step()",
}
"""Where each framework takes a smaller micro-batch that leaves the step as it was."""
LONGER, UNKNOWN = 4, 7200
"""How many times as long a limit shall be, and seconds where the present one is not known."""


def raise_timeout(case: Case, why: str) -> Advice:
    """How to give this job's collectives more time, in the words of its framework."""
    name, now = framework(case), _limit(case)
    seconds = round(LONGER * now) if now else UNKNOWN
    more = f", now {now:g} s," if now else ""
    return Advice(
        f"Raise the timeout of the collectives{more}{' in ' + name if name else ''} above the longest rank-local "
        "phase.",
        code=TIMEOUTS[name].format(seconds, -(-seconds // 60)),
        why=why,
        check="The job passes the point at which it stopped, and the step time afterwards is normal.",
        risk=(
            "A true hang is noticed that much later; new_group() needs its own timeout= as it does not "
            "inherit this one."
        ),
        change={"timeout": LONGER},
    )


def _limit(case: Case) -> float:
    """The longest timeout that a collective of this job ran into, in seconds; 0 where none is told."""
    waits = [*case.of("c10d.timeout"), *case.of("gloo.timeout")]
    return max((float(e.data.get("timeout_ms") or 0) / 1000 for e in waits), default=0.0)


def smaller_batch(case: Case) -> str:
    """How this job's framework halves the micro-batch without changing the step."""
    return BATCHES[framework(case)]


def script(case: Case) -> str:
    """File name of the user's script, by the outermost frame of the user's own code; ``train.py`` where none is."""
    for event in [*case.of("python.exception"), *case.of("stack")]:
        frames: list[Frame] = [frame for frame in event.data.get("frames") or () if is_own(frame)]
        if frames:
            outermost = frames[-1] if event.kind == "stack" else frames[0]
            return place(outermost).partition(":")[0]
    return "train.py"
