"""The framework on top (DeepSpeed, vLLM, Lightning, ...) is at fault

What you see
    A traceback whose innermost frames all belong to an installed package and none to your code, or a hang that appears
    with one option of the framework and not without; an issue with the same text in its tracker.

Why it happens
    Frameworks decide on each rank which collectives to call.  A branch that depends on rank-local data, an assumption
    about device numbers, a data loader that gives ranks different numbers of batches: users see NCCL time out,
    although NCCL only waits for the rank that the framework sent elsewhere.

How to be sure
    The same step in plain PyTorch works; the failure goes away with the option off or another version of the
    framework, everything else equal.

What to do
    Search the framework's tracker for the innermost function of the traceback, upgrade or pin it, switch the option
    off; report it with the Flight Recorder dumps.

Read more
    The framework's issue tracker and release notes.
"""

from __future__ import annotations

import re

from ncclkit.case import Case
from ncclkit.causes._experiments import minimal
from ncclkit.causes._frames import is_own, place
from ncclkit.causes._scene import is_own as own_error
from ncclkit.causes._words import in_order, name_ranks, otherwise, pick, ranks_in
from ncclkit.model import Advice, Event, Experiment, Finding, found
from ncclkit.words import start

ID = "framework_bug"
explains = ("c10d.timeout", "slow_rank", "rank_exception")
NAMES = re.compile(
    r"(?:site|dist)-packages/(vllm|deepspeed|lightning|pytorch_lightning|accelerate|transformers|trl|megatron|colossalai|axolotl|"
    r"llamafactory|verl|ray|sglang|fairscale|composer|nemo|swift|horovod|recbole|peft|unsloth|torchtitan)/"
)


def diagnose(case: Case) -> Finding:
    """An error raised inside a framework, without the user's code near it."""
    errors = [e for e in in_order(case.of("python.exception")) if own_error(e) and (name := _framework(e))]
    if errors:
        name, first = _framework(errors[0]), errors[0]
        where = place((first.data.get("frames") or [None])[-1])
        say = (
            f"{start(name_ranks(ranks_in(errors)))} raised {str(first.data.get('type', 'an error'))} "
            f"inside {name}{' at ' + where if where else ''}, "
        )
        return found(
            ID,
            "possible",
            say + "not in the program's own code.",
            pick(errors, limit=3),
            ranks=ranks_in(errors),
            advice=(_advice(name),),
            next=experiment(case),
        )
    went_well = [*case.of("nccl.destroy"), *case.of("python.exception"), *case.of("c10d.timeout")]
    return otherwise(ID, went_well, "No error was raised inside a framework.", "the standard error of every rank")


def _framework(event: Event) -> str:
    """The framework whose file is innermost; empty when the user's own code is among the last frames."""
    frames = event.data.get("frames") or []
    inner = frames[-3:]
    match = NAMES.search(str(inner[-1].get("file", ""))) if inner else None
    return match[1] if match and not any(is_own(frame) for frame in inner) else ""


def _advice(name: str) -> Advice:
    return Advice(
        f"Look for the innermost function of the traceback in the issues of {name}, and try its latest release.",
        command=f"pip index versions {name}; pip show {name}",
        why="The failing line is not yours.",
        check="The same input passes with the other version.",
        risk="A new release may change results.",
    )


def experiment(case: Case) -> Experiment:
    """The same collective without the framework."""
    return minimal(
        "Does a plain all_reduce work on the same ranks, without the framework?",
        {ID: "it does", "rank_exception": "it does: the error is the program's own"},
        {"nccl_bug": "it fails too", "p2p_broken": "it fails too"},
    )
