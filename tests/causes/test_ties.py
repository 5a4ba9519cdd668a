"""Dumps of two ranks that disagree, the third one missing: nobody is called wrong without a witness."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Finding


def judged(field: str, one: Any, two: Any, *more: Event) -> Finding:
    """Rank 1 brought `one`, rank 2 `two`; rank 0 left no dump."""
    sides = [{"value": one, "ranks": [1]}, {"value": two, "ranks": [2]}]
    data = {"group": "0", "desc": "default_pg", "seq": 7, "field": field, "op": "all_reduce", "root": "", "holds": []}
    case = Case()
    case.events = [Event("flight.mismatch", "", rank=2, data=data | {"majority": sides[0], "odd": sides[1:]}), *more]
    return diagnose(case).findings[0]


def got(came: int, wanted: int) -> Event:
    """What gloo said on rank 0."""
    return Event("gloo.size_mismatch", "", rank=0, data={"a": came, "b": wanted})


@pytest.mark.parametrize(
    ("field", "one", "two"),
    [("sizes", [[2048]], [[1024]]), ("dtypes", ["Double"], ["Float"]), ("sizes", [[2, 8]], [[3, 4]])],
)
@pytest.mark.parametrize("came, wanted, faulty", [(1368, 684, 1), (684, 1368, 2)])
def test_a_third_rank_that_got_too_much_sides_with_the_smaller(
    field: str, one: Any, two: Any, came: int, wanted: int, faulty: int
) -> None:
    finding = judged(field, one, two, got(came, wanted))
    assert (finding.cause, finding.culprits["ranks"]) == ("shape_mismatch", (faulty,))
    assert finding.say.endswith(", as rank 0 did.")


@pytest.mark.parametrize("more", [(), (got(8, 8),)])
def test_without_a_witness_both_are_named(more: tuple[Event, ...]) -> None:
    finding = judged("sizes", [[2048]], [[1024]], *more)
    assert finding.culprits["ranks"] == (1, 2) and "do not tell which of them is wrong" in finding.say


def test_types_that_nobody_knows_need_no_guess() -> None:
    assert judged("dtypes", ["Float8"], ["Float"], got(4, 8)).culprits["ranks"] == (1, 2)


def test_other_calls_are_no_different() -> None:
    finding = judged("op", "all_gather", "all_reduce")
    assert (finding.cause, finding.culprits["ranks"]) == ("rank_divergence", (1, 2))
    assert finding.say.startswith("At place 7 of the sequence rank 2 called all_reduce where rank 1 called all_gather.")
