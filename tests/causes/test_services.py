"""What Ray, and servers of models, say of processes that they started, is no firmer than they know."""

from __future__ import annotations

import pytest

from ncclkit.core.model import Finding
from tests.cases import judged_text

TRACE = 'Traceback (most recent call last):\n  File "/srv/engine/core.py", line 80, in start\n    raise\n'
STEPS = "step 10/20 loss 2.31\nstep 20/20 loss 2.11\nTraining completed.\n"
DEAD = (
    "WARNING worker.py:1462 -- The node with node id: 70cd46 and ip: 10.0.0.3 has been marked dead because the"
    " detector has missed too many heartbeats from it.\n"
)
GONE = "ray.exceptions.ActorDiedError: The actor is dead because its node has died. Node Id: 70cd46\n"
TOLD = "(autoscaler +4m2s) Instance k-1b5e (node IP: 10.0.0.3) will be terminated soon (reason: preempted).\n"


def found_in(text: str, cause: str) -> Finding | None:
    return next((finding for finding in judged_text(text).findings if finding.cause == cause), None)


@pytest.mark.parametrize("text", [DEAD, GONE, TOLD + "RuntimeError: NCCL communicator was aborted\n"])
def test_a_node_that_ray_lost_killed_its_ranks_as_far_as_ray_knows(text: str) -> None:
    finding = found_in(text, "rank_killed")
    assert finding is not None and finding.strength == "likely"


@pytest.mark.parametrize(
    "text", [f"(autoscaler +4m2s) Resized to 16 CPUs, 8 GPUs.\n{STEPS}", f"{TOLD}{STEPS}"], ids=["grown", "shrunk"]
)
def test_a_cluster_that_changes_under_a_job_that_ends_well_is_no_fault(text: str) -> None:
    assert judged_text(text).healthy


@pytest.mark.parametrize(
    "error",
    [
        "ray.exceptions.ActorHandleNotFoundError: created in job 01000000, but the current job is 02000000",
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "RuntimeError: Failed to create placement group with 1 bundles in 180 seconds",
    ],
    ids=["ray", "server", "placement"],
)
def test_an_error_about_a_process_that_was_started_is_a_possible_reason(error: str) -> None:
    finding = found_in(TRACE + error + "\n", "rank_exception")
    assert finding is None or finding.strength == "possible"


def test_an_error_of_the_program_stays_likely() -> None:
    finding = found_in(TRACE + "RuntimeError: the vocabulary has 3 tokens\n", "rank_exception")
    assert finding is not None and finding.strength == "likely"
