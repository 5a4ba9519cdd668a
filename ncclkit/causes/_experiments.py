"""The experiments that several causes share: without the program, fully recorded, or without any rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncclkit.case import Case
from ncclkit.causes._hosts import enterable
from ncclkit.model import Experiment

RECORDED = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
"""Variables with which every rank keeps its last calls and writes them down when one of them times out."""


def minimal(question: str, works: Mapping[str, str], fails: Mapping[str, str], **more: Any) -> Experiment:
    """The live test in place of the program, with the same ranks and variables.

    works, fails: cause → in words what is seen if it is the one; a cause of the program does not show in the live test,
    one of the machine does.  more: other words of `runs.changed`.
    """
    expects = dict.fromkeys(works, "works") | dict.fromkeys(fails, "same")
    return Experiment(question, {"minimal": True, **more}, {**works, **fails}, expects)


def recorded(question: str, predicts: Mapping[str, str]) -> Experiment:
    """The same job once more with its last calls recorded, which names the one of these causes that it shows."""
    return Experiment(question, {"env": RECORDED}, dict(predicts), dict.fromkeys(predicts, "named"))


def meeting(case: Case) -> Experiment:
    """Whether the ranks can meet at all: names and ports of hosts that are ours to enter, else the live test."""
    if not enterable(case):
        return minimal(
            "Do the same ranks meet for a plain all_reduce, without the program?",
            {"slow_rank": "they do: a rank of the program was only late", "world_size_mismatch": "they do: all come"},
            {"hostname_resolution": "they do not: no name leads there", "store_unreachable": "they do not: no answer"},
        )
    predicts = {
        "hostname_resolution": "a host finds no address for a name, or one of 127.x",
        "store_unreachable": "the addresses are right, but the rendezvous port does not answer",
        "wrong_interface": "they meet, but the address that NCCL would announce does not answer",
    }
    question = "Does every host find the others by name, and do their ports answer, without any rank?"
    return Experiment(question, {"look": "connect"}, predicts, dict.fromkeys(predicts, "found"))
