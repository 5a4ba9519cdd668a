"""What to write where.

It holds the settings of frameworks and launchers, with the numbers that this job's must reach.
"""

from __future__ import annotations

import re

from ncclkit.analysis.frames import Frame, framework, is_own, place
from ncclkit.analysis.slow_links import lines_of_slow_links
from ncclkit.causes._experiments import RECORDED
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    C10dHint,
    C10dTimeout,
    FlightLate,
    PythonException,
    RasChange,
    StepProgress,
    WorkerPhase,
)
from ncclkit.core.model import Advice, Event

TIMEOUTS = {
    "recbole": (
        "# in recbole/config/configurator.py (_init_device), as RecBole passes none\n"
        "torch.distributed.init_process_group(..., timeout=timedelta(seconds={0}))"
    ),
    "wenet": "torchrun ... wenet/bin/train.py --timeout {0}",
    "lightning": (
        "Trainer(strategy=DDPStrategy(timeout=timedelta(seconds={0})))  # FSDPStrategy takes"
        " timeout= as well"
    ),
    "accelerate": (
        "Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds={0}))])"
    ),
    "transformers": "TrainingArguments(..., ddp_timeout={0})",
    "llamafactory": "ddp_timeout: {0}",
    "deepspeed": "deepspeed.init_distributed(timeout=timedelta(seconds={0}))",
    "megatron": "--distributed-timeout-minutes {1}",
    "": "torch.distributed.init_process_group(..., timeout=timedelta(seconds={0}))",
}
"""Where each framework takes the timeout of a collective.

{0} is in seconds, {1} in minutes; "" is plain PyTorch.
"""
BATCHES = {
    "recbole": (
        "train_batch_size: <half>  # RecBole does not accumulate gradients: lower learning_rate"
        " with it"
    ),
    "wenet": "accum_grad: <twice>\ndataset_conf: {batch_conf: {batch_size: <half>}}",
    "lightning": "Trainer(accumulate_grad_batches=2)  # with half the batch_size in the DataLoader",
    "accelerate": (
        "Accelerator(gradient_accumulation_steps=2)  # with half the batch_size in the DataLoader"
    ),
    "transformers": (
        "TrainingArguments(per_device_train_batch_size=<half>, gradient_accumulation_steps=<twice>)"
    ),
    "llamafactory": "per_device_train_batch_size: <half>\ngradient_accumulation_steps: <twice>",
    "deepspeed": '"train_micro_batch_size_per_gpu": <half>, "gradient_accumulation_steps": <twice>',
    "megatron": "--micro-batch-size <half>  # --global-batch-size stays",
    "": "for micro in batch.chunk(2):\n    (loss(model(micro)) / 2).backward()\noptimizer.step()",
}
"""Where each framework takes a smaller micro-batch that leaves the step as it was."""
DEFAULT, MOST = 600, 1800
"""Timeouts in seconds.

They are PyTorch's own for NCCL, and that for gloo, the longest that is advised where nobody
measured.
"""
LONGER = 4
"""How many times as long a small job's collectives may take, where the loop tries whether more time
helps."""
LONE = re.compile(
    r"\b(?:evaluat|validat|generat|predict|tokeniz|filter|preprocess|merg|upload|download)", re.I
)
"""What one rank often does while the others wait for it."""
TOOK = re.compile(r"\[(?:(\d+):)?(\d+):(\d\d)<")
"""How long a loop with tqdm's counter has run."""
MEASURE = Advice(
    "Find out what the late rank does meanwhile: look at all ranks while it hangs, or record its"
    " last calls.",
    env=RECORDED,
    command="ncclkit attach",
    why="A longer timeout helps only a phase that ends by itself; of a hang it delays the report.",
    check="A stack or a dump of every rank names the phase, and its time is known.",
    risk="The Flight Recorder costs some microseconds for each collective.",
)


def loop_seconds(event: Event) -> float:
    """Seconds of a loop, as its counter says; 0 where it has none."""
    found = TOOK.search(event.text)
    if found:
        return (int(found[1] or 0) * 60 + int(found[2])) * 60 + int(found[3])
    return 0.0


def raise_timeout(case: Case, why: str) -> tuple[Advice, ...]:
    """How to give this job's collectives more time, in its framework's words.

    It is nothing if they need none.  The new timeout is twice the longest phase that was measured,
    or twice the present timeout where a rank was seen to progress; else PyTorch's defaults, and
    never more than the longer of them.
    """
    name = framework(case)
    now = _longest_timeout(case)
    phase = _measured_seconds(case)
    # the program chose less than PyTorch's own default, which comes first
    if 0 < now < DEFAULT:
        seconds = DEFAULT
    else:
        seconds = MOST
    reason = "the longest that helps before a phase is measured"
    if seconds == DEFAULT:
        reason = "PyTorch's default for NCCL"
    if phase > now / 2:
        seconds = round(2 * phase)
        reason = f"twice the {phase:,.0f} s that the longest phase took or lagged"
    elif now >= DEFAULT and _work_went_on(case):
        seconds = round(2 * now)
        reason = "as a rank was seen to progress"
    # nothing was measured for which the present timeout is too short
    if seconds <= now:
        return ()
    # NCCL itself names a link, which more time does not mend
    if lines_of_slow_links(case) and phase <= now / 2:
        return ()
    more = ""
    if now:
        more = f", now {now:g} s,"
    do = (
        f"Raise the timeout of the collectives{more}{' in ' + name if name else ''} to {seconds:,}"
        f" s, {reason}."
    )
    return (
        Advice(
            do,
            code=TIMEOUTS[name].format(seconds, -(-seconds // 60)),
            why=why,
            check=(
                "The job passes the point at which it stopped, and the step time afterwards is"
                " normal."
            ),
            risk=(
                "A true hang is noticed that much later; new_group() needs its own timeout= as it"
                " does not inherit this one."
            ),
            change={"timeout": LONGER},
        ),
    )


def is_below_default(case: Case) -> bool:
    """Whether all collectives that timed out had less time than PyTorch gives them."""
    return 0 < _longest_timeout(case) < DEFAULT


def _timed_out_waits(case: Case) -> list[Event]:
    return case.of("c10d.timeout", "gloo.timeout")


def _longest_timeout(case: Case) -> float:
    """The longest timeout that a collective of this job ran into, in seconds.

    It is 0 where none is told.
    """
    return max((float(e.data.timeout_ms or 0) / 1000 for e in _timed_out_waits(case)), default=0.0)


def _measured_seconds(case: Case) -> float:
    """Seconds of the longest loop of a single rank, or of the longest lag.

    The lag is the one that the Flight Recorder shows; 0 where neither is known.
    """
    loops = []
    for event in case.of(StepProgress):
        # an ordinary step of all ranks is no phase of one
        if LONE.search(event.text):
            loops.append(loop_seconds(event))
    lags = [float(e.data.seconds.get(str(e.data.worst)) or 0) for e in case.of(FlightLate)]
    return max([*loops, *lags], default=0.0)


def _work_went_on(case: Case) -> bool:
    """Whether work went on after a timeout was reported.

    It also did where ranks launched collectives between two RAS reports.
    """
    first: dict[str, int] = {}
    for wait in _timed_out_waits(case):
        # only lines of one file have a sure order
        first[wait.path] = min(wait.line, first.get(wait.path, wait.line))
    steps = any(
        event.path in first and event.line > first[event.path] for event in case.of(StepProgress)
    )
    return steps or any(one.data.moved or one.data.unnamed for one in case.of(RasChange))


def over_gloo(case: Case) -> bool:
    """Whether the job's collectives run over gloo.

    It is told as far as its plan or its lines say.
    """
    planned = set()
    for e in case.of(WorkerPhase):
        if e.data.backend:
            planned.add(e.data.backend)
    said = bool(case.of("gloo.")) or any(
        "gloo/" in event.text for event in case.of(PythonException)
    )
    return planned == {"gloo"} or (not planned and said and not case.of("nccl."))


def compare_calls(case: Case) -> Advice:
    """How to see the first call in which ranks differ.

    It is by torch's own check, which itself crashes over gloo.
    """
    if over_gloo(case):
        return PRINT_CALLS
    return CHECK_CALLS


PRINT_CALLS = Advice(
    "Print the operation, shape and dtype of each call on every rank, and compare the ranks.",
    code=(
        "print(dist.get_rank(), 'all_reduce', tensor.shape, tensor.dtype, flush=True)  #"
        " before each call"
    ),
    why=("gloo does not compare them, and torch's own check of each call does not work over gloo."),
    check="The first line in which two ranks differ is the call at fault.",
    risk="Slow; only for the test.",
)
CHECK_CALLS = Advice(
    "Find the first difference with torch's own check.",
    env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    why="It compares op, shape and dtype of each call over all ranks before it is made.",
    check="The error names both operations and ranks, and the traceback the line.",
    risk="Slow, and over NCCL only; only for the test.",
)


def smaller_batch(case: Case) -> str:
    """How this job's framework halves the micro-batch without changing the step."""
    return BATCHES[framework(case)]


def script(case: Case) -> str:
    """File name of the user's script.

    It is that of the outermost frame of the user's own code; ``train.py`` where there is none.
    """
    for event in case.of("python.exception", "stack"):
        # frames of torchrun and of libraries stand around the user's script
        frames: list[Frame] = [frame for frame in event.data.frames or () if is_own(frame)]
        if frames:
            if event.kind == "stack":
                outermost = frames[-1]
            else:
                outermost = frames[0]
            return place(outermost).partition(":")[0]
    return "train.py"


UNITS = {"hours": 3_600_000, "minutes": 60_000, "seconds": 1000}


def unreached_timeout(case: Case) -> tuple[list[Event], list[Event]]:
    """Timeouts of groups with the default, and lines that ask for longer ones.

    Both are empty where no line does.
    """
    timeouts: list[Event] = [e for e in case.of(C10dTimeout) if e.data.timeout_ms]
    # a timeout that differs from the default was set: it reached that group
    short = []
    for event in timeouts:
        if event.data.timeout_ms == 1000 * DEFAULT:
            short.append(event)
    raised = [event for event in timeouts if event.data.timeout_ms > 1000 * DEFAULT]
    raised += [event for event in case.of(C10dHint) if _asked_ms(event) > 1000 * DEFAULT]
    if short and raised:
        return short, raised
    return [], []


def _asked_ms(event: Event) -> int:
    """Milliseconds of the timeout that a line asks for; 0 where it names none."""
    match = re.search(r"TIMEOUT\(ms\): (\d{1,12})", event.text)
    if match:
        return int(match[1])
    match = re.search(r"timedelta\((hours|minutes|seconds)=(\d{1,9})\b", event.text)
    if match:
        return int(match[2]) * UNITS[match[1]]
    match = re.search(r"(ddp_timeout|timeout-minutes)[\"']?[ =:]{1,3}(\d{1,9})", event.text)
    if match:
        return int(match[2]) * UNITS["minutes" if match[1] == "timeout-minutes" else "seconds"]
    return 0
