"""The framework on top (DeepSpeed, vLLM, Lightning, ...) is at fault

What you see
    A traceback whose innermost frames all belong to an installed package and none to your code, or
    a hang that appears with one option of the framework and not without; an issue with the same
    text in its tracker.

Why it happens
    Frameworks decide on each rank which collectives to call.  A branch that depends on rank-local
    data, an assumption about device numbers, a data loader that gives ranks different numbers of
    batches: users see NCCL time out, although NCCL only waits for the rank that the framework sent
    elsewhere.

How to be sure
    The same step in plain PyTorch works; the failure goes away with the option off or another
    version of the framework, everything else equal.

What to do
    Or pin an older release, or switch the option off; report it with the Flight Recorder dumps.

Read more
    The framework's issue tracker and release notes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ncclkit.analysis.frames import is_own, place
from ncclkit.analysis.picks import first_finding, in_order, otherwise, pick, ranks_in, who_of
from ncclkit.analysis.rank_states import is_own as own_error
from ncclkit.causes._experiments import minimal
from ncclkit.core.case import Case
from ncclkit.core.kinds import PythonException
from ncclkit.core.model import Advice, Event, Experiment, Finding, found

ID = "framework_bug"
explains = ("c10d.timeout", "slow_rank", "rank_exception")
PACKAGES = (
    *(
        "vllm",
        "deepspeed",
        "lightning",
        "pytorch_lightning",
        "accelerate",
        "transformers",
        "trl",
        "megatron",
    ),
    *(
        "colossalai",
        "axolotl",
        "llamafactory",
        "verl",
        "ray",
        "sglang",
        "fairscale",
        "composer",
        "nemo",
        "swift",
    ),
    *("horovod", "recbole"),
    *(
        "peft",
        "unsloth",
        "torchtitan",
        "fairseq",
        "mmengine",
        "mmcv",
        "detectron2",
        "openrlhf",
        "tensorrt_llm",
    ),
)
NAMES = re.compile(rf"(?:site|dist)-packages/({'|'.join(PACKAGES)})/")


@dataclass(frozen=True, slots=True)
class Sign:
    """A message of a framework about its own state.

    It is not about the program's input.
    """

    pattern: re.Pattern[str]
    name: str
    what: str
    do: str


SIGNS = (
    Sign(
        re.compile(r"still have inflight params|tracing error at step|'ds_numel'"),
        "deepspeed",
        "ZeRO-3's prefetch of parameters lost track of the order of modules",
        "Try another DeepSpeed release, or zero_optimization.stage3_prefetch_bucket_size: 0;"
        " modules that are skipped on some steps are named with set_z3_leaf_modules",
    ),
    Sign(
        re.compile(r"tmp-checkpoint-\d+"),
        "transformers",
        "several processes rename one staging folder of a checkpoint",
        "Upgrade transformers (4.36 renamed it on every node), and let one process of a shared file"
        " system save",
    ),
    Sign(
        re.compile(r"backward pass is invalid for module in evaluation mode"),
        "deepspeed",
        "a module is in evaluation mode while its backward pass runs",
        "Call model.train() after each evaluation, and keep modules that are only evaluated out of"
        " the engine",
    ),
    Sign(
        re.compile(
            r"RPC call to \w+ timed out|No available shared memory broadcast block found in \d+"
            r" second"
        ),
        "vllm",
        "a worker of the engine did not answer its scheduler",
        "Try another vLLM release, and the request kinds one by one (structured output, aborts,"
        " async scheduling)",
    ),
)
"""Messages that the issue trackers of these projects know."""


def diagnose(case: Case) -> Finding:
    """Found by a message known from a framework's tracker, or an error raised inside it."""
    went_well = case.of("nccl.destroy", "python.exception", "c10d.timeout")
    return first_finding(case, _known_inconsistency, _raised_inside) or otherwise(
        ID, went_well, "No error was raised inside a framework.", "the standard error of every rank"
    )


def _raised_inside(case: Case) -> Finding | None:
    """An error whose innermost frames are a framework's, none the program's."""
    errors = []
    for event in in_order(case.of(PythonException)):
        if own_error(event) and _innermost_framework(event):
            errors.append(event)
    if not errors:
        return None
    first = errors[0]
    name = _innermost_framework(first)
    where = place((first.data.frames or [None])[-1])
    at = ""
    if where:
        at = f" at {where}"
    say = (
        f"{who_of(errors)} raised {str(first.data.type)} inside {name}{at}, not in the program's"
        " own code."
    )
    # a framework also raises where the program gives it what it cannot take
    return found(
        ID,
        "possible",
        say,
        pick(errors, limit=3),
        ranks=ranks_in(errors),
        advice=(_advice(name),),
        next=experiment(case),
    )


def _known_inconsistency(case: Case) -> Finding | None:
    """A framework reports that its own state is inconsistent."""
    pool = case.of("python.exception", "system.error", "log.error")
    for sign in SIGNS:
        # the trackers know the whole message, not only its type
        lines = in_order(e for e in pool if sign.pattern.search(f"{e.text} {e.data.message}"))
        if lines:
            who = who_of(lines)
            # an error that only reports another rank's may quote such words
            certain = any(own_error(event) for event in lines)
            return found(
                ID,
                "likely" if certain else "possible",
                f"{who} met an inconsistent state of {sign.name} that the program did not cause:"
                f" {sign.what}.",
                pick(lines, limit=4),
                ranks=ranks_in(lines),
                advice=(_advice_of_sign(sign),),
                next=experiment(case),
            )
    return None


def _innermost_framework(event: Event) -> str:
    """Name of the framework whose file is innermost.

    It is "" where the user's code is among the last frames.
    """
    frames = event.data.frames or []
    # a callback of the program may stand right below the framework's own frame
    inner = frames[-3:]
    match = None
    if inner:
        match = NAMES.search(str(inner[-1].get("file", "")))
    if match and not any(is_own(frame) for frame in inner):
        return match[1]
    return ""


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What a package is called; a sign may name two of them."""


def _advice(name: str) -> Advice:
    command = "python -m pip list"
    if NAME.fullmatch(name):
        command = f"pip index versions {name}; pip show {name}"
    return Advice(
        f"Look for the innermost function of the traceback in the issues of {name}, and try its"
        " latest release.",
        command=command,
        why="The failing line is not yours.",
        check="The same input passes with the other version.",
        risk="A new release may change results.",
    )


def _advice_of_sign(sign: Sign) -> Advice:
    return replace(_advice(sign.name), do=f"{sign.do}.")


def _remedy_of_sign(sign: Sign) -> Advice:
    """The remedy of a sign for a page, which says when it helps."""
    return replace(_advice(sign.name), do=f"{sign.name}, where {sign.what}: {sign.do}.")


def experiment(case: Case) -> Experiment:
    """Run the same collective without the framework."""
    return minimal(
        "Does a plain all_reduce work on the same ranks, without the framework?",
        {ID: "it does", "rank_exception": "it does: the error is the program's own"},
        {"nccl_bug": "it fails too", "p2p_broken": "it fails too"},
    )


REMEDIES = (_advice("that package"), *map(_remedy_of_sign, SIGNS))
