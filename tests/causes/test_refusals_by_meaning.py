"""A refusal is known by what was asked: a file that a variable names, a setting that is newer than the library."""

from __future__ import annotations

import pytest

from ncclkit.core.model import Finding
from tests.cases import judged_text

HEAD = "n1:12:13 [0] "
FAILED = "RuntimeError: NCCL error in: /opt/NCCLUtils.hpp:219, unhandled system error, NCCL version 2.21.5\n"
GRAPH = f"{HEAD}NCCL INFO NCCL_GRAPH_FILE set by environment to /opt/a/graph.xml\n"
TOPO = f"{HEAD}NCCL INFO NCCL_TOPO_FILE set by environment to /opt/a/topo.xml\n"
NO_GRAPH = f"{HEAD}graph/xml.cc:203 NCCL WARN Could not open XML graph file /opt/a/graph.xml : No such file\n"
PARSED = f"{HEAD}graph/xml.cc:60 NCCL WARN XML Parse : Unexpected value with length 300\n"
OLDER = "Last error:\nInvalid config blocking attribute value -2147483648\n"


def found_in(text: str, cause: str) -> Finding | None:
    return next((finding for finding in judged_text(text).findings if finding.cause == cause), None)


@pytest.mark.parametrize(
    ("text", "cause", "word"),
    [
        (GRAPH + NO_GRAPH + FAILED, "bad_env_value", "NCCL_GRAPH_FILE"),
        (NO_GRAPH + FAILED, "bad_env_value", "NCCL_GRAPH_FILE"),
        (TOPO + PARSED + FAILED, "bad_env_value", "NCCL_TOPO_FILE"),
        (FAILED + OLDER, "version_mismatch", "older"),
    ],
    ids=["graph", "graph without its variable", "topology", "newer headers"],
)
def test_a_refusal_names_what_was_refused(text: str, cause: str, word: str) -> None:
    finding = found_in(text, cause)
    assert finding is not None and finding.strength == "likely" and word in finding.say


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (GRAPH + TOPO + f"{HEAD}NCCL INFO Connected all rings\n", "bad_env_value"),
        (PARSED + FAILED, "bad_env_value"),
        (FAILED + "Last error:\nInvalid config blocking attribute value 7\n", "version_mismatch"),
    ],
    ids=["files that were read", "a file of the machine", "a value of one's own"],
)
def test_what_was_not_refused_is_left_alone(text: str, cause: str) -> None:
    finding = found_in(text, cause)
    assert finding is None or finding.strength == "possible"
