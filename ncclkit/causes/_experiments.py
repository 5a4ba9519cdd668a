"""The experiments that several causes share.

They run without the program, fully recorded, or without any rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncclkit.analysis.hosts import can_simulate_again
from ncclkit.core.case import Case
from ncclkit.core.kinds import ExperimentCheck, WorkerPhase
from ncclkit.core.model import Experiment

RECORDED = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
"""Variables with which every rank keeps its last calls.

It writes them down when one of them times out.
"""


def experiment_of(
    question: str, plan: Mapping[str, Any], outcomes: Mapping[str, tuple[str, str]]
) -> Experiment:
    """The experiment of one table.

    `plan` is what is changed, in the words of `runs.changed`; `outcomes` is cause → one of
    `OUTCOMES`, and in words what is seen if it is the one.
    """
    predicts, expects = {}, {}
    for cause, (outcome, seen) in outcomes.items():
        predicts[cause] = seen
        expects[cause] = outcome
    return Experiment(question, plan, predicts, expects)


def check_of(what: str, question: str, predicts: Mapping[str, str]) -> Experiment:
    """A look at ``connections`` or ``resources`` that starts no rank.

    `predicts` is cause → in words what the look finds if it is the one.
    """
    return Experiment(question, {"check": what}, predicts, dict.fromkeys(predicts, "found"))


def minimal(
    question: str, works: Mapping[str, str], fails: Mapping[str, str], **more: Any
) -> Experiment:
    """The live test in place of the program, with the same ranks and variables.

    `works` and `fails` are cause → in words what is seen if it is the one; a cause of the program
    does not show in the live test, one of the machine does.  `more` are other words of
    `runs.changed`.
    """
    expects = dict.fromkeys(works, "works") | dict.fromkeys(fails, "same")
    return Experiment(question, {"minimal": True, **more}, {**works, **fails}, expects)


def over_gloo(
    case: Case, question: str, works: Mapping[str, str], fails: Mapping[str, str]
) -> tuple[Experiment, ...]:
    """The same job without NCCL and GPUs.

    What still fails is the program's own; there is no experiment where the job had none of them.
    `works` and `fails` are cause → in words what is seen if it is the one.
    """
    plans = [event.data for event in case.of(WorkerPhase, phase="plan")]
    # it runs over gloo already: the same job again would answer nothing
    if any(plan.backend == "gloo" for plan in plans):
        return ()
    expects = dict.fromkeys(works, "works") | dict.fromkeys(fails, "fails")
    return (Experiment(question, {"backend": "gloo"}, {**works, **fails}, expects),)


def unasked(case: Case, *experiments: Experiment) -> Experiment:
    """The first of these experiments that was not made on the last run yet.

    It is the last one where all were.
    """
    # what was tried once would show the same again: the next one tells more
    asked = {event.data.question for event in case.of(ExperimentCheck)}
    return next(
        (experiment for experiment in experiments if experiment.question not in asked),
        experiments[-1],
    )


LIMITS = {
    "fd_limit": "fewer open files or threads are granted than the ranks need",
    "shm_too_small": "less of /dev/shm is granted than the ranks of a host share",
    "memlock_limit": "less memory may be locked than a network card's buffers take",
    "host_oom": "less memory is free than the ranks of a host and their data take",
    "port_in_use": "the rendezvous port cannot be opened, or somebody else answers there",
    "hostname_resolution": "a name leads nowhere, or astray",
}
"""Cause → what is seen where the machine itself is tried, if it is the one."""


def limits(question: str, *causes: str) -> Experiment:
    """Whether the machine grants what the job needs.

    It is tried without any rank, and given back at once.
    """
    return check_of("resources", question, {cause: LIMITS[cause] for cause in causes})


def machine() -> Experiment:
    """The limits that any job meets on a machine by itself."""
    question = (
        "Does this machine grant the shared memory, open files and threads that the ranks need?"
    )
    return limits(question, "fd_limit", "shm_too_small")


def recorded(question: str, predicts: Mapping[str, str]) -> Experiment:
    """The same job once more with its last calls recorded.

    The record names the one of these causes that it shows.
    """
    # the diagnosis of the recorded run names the cause by itself
    return Experiment(question, {"env": RECORDED}, dict(predicts), dict.fromkeys(predicts, "named"))


def meeting(case: Case) -> Experiment:
    """Whether the ranks can meet at all.

    It looks at names and ports of hosts that are ours to enter, else it is the live test.
    """
    # hosts of somebody else's job cannot be entered
    if not can_simulate_again(case):
        return minimal(
            "Do the same ranks meet for a plain all_reduce, without the program?",
            {
                "slow_rank": "they do: a rank of the program was only late",
                "world_size_mismatch": "they do: all come",
            },
            {
                "hostname_resolution": "they do not: no name leads there",
                "store_unreachable": "they do not: no answer",
            },
        )
    return check_of(
        "connections",
        "Does every host find the others by name, and do their ports answer, without any rank?",
        {
            "hostname_resolution": "a host finds no address for a name, or one of 127.x",
            "store_unreachable": "the addresses are right, but the rendezvous port does not answer",
            "wrong_interface": (
                "they meet, but the address that NCCL would announce does not answer"
            ),
        },
    )
