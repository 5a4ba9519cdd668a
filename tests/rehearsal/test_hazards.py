"""What passes over gloo and not on NCCL, in real ranks, and the twin that is right."""

import pytest

import ncclkit
from ncclkit.rehearsal.function import RanksDisagree
from tests.rehearsal import functions

CASES = [
    (functions.train_two_models, "crossed", "would not hang, and compute with wrong values"),
    (functions.use_two_groups, "crossed", "may hang on NCCL"),
    (functions.begin_with_batch, "some", "may hang on NCCL: batch_isend_irecv as the first"),
]


@pytest.mark.parametrize(("function", "name", "words"), CASES)
def test_a_hazard_is_named_with_rank_and_line(function, name, words):
    with pytest.raises(RanksDisagree, match=words) as failed:
        ncclkit.rehearse(function, ranks=3, values={name: True})
    assert "tests/rehearsal/functions.py:" in str(failed.value)


@pytest.mark.parametrize(("function", "name", "words"), CASES)
def test_its_twin_agrees(function, name, words):
    rehearsed = ncclkit.rehearse(function, ranks=3, values={name: False})
    assert (rehearsed.kind, rehearsed.notes) == ("agree", ())


def test_a_group_that_some_make_hangs_and_a_local_one_does_not():
    with pytest.raises(RanksDisagree, match="would hang where|new_group"):
        ncclkit.rehearse(functions.make_group_of_some, ranks=2, values={"local": False})
    assert ncclkit.rehearse(functions.make_group_of_some, ranks=2, values={"local": True}).status == 0


def test_a_group_whose_gpus_are_named_needs_no_first_use():
    values = {"some": True, "bound": True}
    assert ncclkit.rehearse(functions.begin_with_batch, ranks=3, values=values).kind == "agree"
