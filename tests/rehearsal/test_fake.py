"""A fake run: shapes only.  What it knows is told as ever, and what it cannot know is said."""

import pytest
import torch
from torch.distributed import distributed_c10d

from ncclkit.agent.rehearsal import fake_values
from tests.rehearsal.rehearsed import (
    SCRIPTS,
    lines_of,
    marked_line,
    places_of,
    printed,
    rehearse,
    rehearse_words,
)
from tests.rehearsal.test_scripts import check_fault_of, skip_without

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    "script, calls",
    [
        # of DDP its comparison of parameters is one call and not two
        ("healthy_ddp.py", 23),
        ("healthy_fsdp2.py", 24),
        # and it does not sort its buckets anew, which is two more
        ("healthy_cuda.py", 9),
        ("healthy_mesh.py", 11),
        ("healthy_tensor_parallel.py", 36),
    ],
)
def test_a_healthy_script_makes_its_calls_and_prints_no_value(tmp_path, script, calls):
    answer = rehearse(tmp_path, script, "--fake")
    assert (answer["exit"], answer["kind"]) == (0, "agree"), answer["sentence"]
    assert answer["figures"]["fake"] is True
    assert "?" in printed(answer)[0]
    assert answer["figures"]["calls"] == calls


@pytest.mark.parametrize("script, culprit", [("ddp_short.py", 2), ("full_tensor_rank0.py", 0)])
def test_a_fault_is_named_with_rank_and_both_lines(tmp_path, script, culprit):
    answer = rehearse(tmp_path, script, "--fake")
    assert (answer["exit"], answer["odd"]) == (1, [culprit]), answer["sentence"]
    places = places_of(answer)
    assert places[culprit] == marked_line(script, "culprit")
    assert marked_line(script, "others") in places.values()
    assert "--fake" in answer["again"]


def test_a_branch_by_a_value_is_said_with_its_line_though_the_script_catches_errors(tmp_path):
    answer = rehearse(tmp_path, "branch_by_value.py", "--fake", "--ranks", "2")
    assert (answer["exit"], answer["kind"]) == (2, "unknown"), answer["sentence"]
    line = lines_of("branch_by_value.py", "total.item() > 100")[0]
    assert "reads a value (> of .item())" in answer["sentence"]
    assert f"branch_by_value.py:{line}" in answer["sentence"]
    assert "without --fake" in answer["sentence"]
    # two ranks may write at one time, and then one end of line comes after both
    assert "".join(printed(answer)).count("loss ?") == 2


def test_the_same_script_agrees_with_values(tmp_path):
    assert rehearse(tmp_path, "branch_by_value.py", "--ranks", "2")["exit"] == 0


def test_a_custom_kernel_is_named_and_passes_on_fake_tensors(tmp_path):
    script = str(SCRIPTS / "custom_kernel.py")
    line = lines_of("custom_kernel.py", "torch.ops.rehearsed")[0]
    answer = rehearse_words(tmp_path, [script], "--ranks", "2")
    assert (answer["exit"], answer["kind"]) == (2, "unknown"), answer["sentence"]
    assert f"custom_kernel.py:{line}" in answer["sentence"]
    assert "--fake" in answer["sentence"]
    answer = rehearse_words(tmp_path, [script], "--ranks", "2", "--fake")
    assert answer["exit"] == 0, answer["sentence"]
    answer = rehearse_words(tmp_path, [script, "bare"], "--ranks", "2", "--fake")
    assert answer["exit"] == 2, answer["sentence"]
    assert f"custom_kernel.py:{line}" in answer["sentence"]
    assert "rehearsed.scale" in answer["sentence"] and "register_fake" in answer["sentence"]


def test_a_script_of_accelerate_agrees_and_its_fault_is_named(tmp_path):
    skip_without("accelerate")
    answer = rehearse(tmp_path, "healthy_accelerate.py", "--fake", "--ranks", "2")
    assert (answer["exit"], answer["kind"]) == (0, "agree"), answer["sentence"]
    answer = rehearse(tmp_path, "accelerate_gather.py", "--fake")
    check_fault_of(answer, "accelerate_gather.py", "mismatch", [0])


def test_trainer_trains_to_its_end_and_its_evaluation_is_said(tmp_path):
    skip_without("transformers")
    answer = rehearse(tmp_path, "healthy_trainer.py", "--fake", "--ranks", "2")
    line = lines_of("healthy_trainer.py", "trainer.evaluate()")[0]
    assert answer["exit"] == 2 and ".numpy()" in answer["sentence"], answer["sentence"]
    assert f"healthy_trainer.py:{line}" in answer["sentence"]


# ---------------------------------------------------------------- numbers that nobody knows


class Stopped(BaseException):
    """The rank would have ended here."""


@pytest.fixture
def unknown(monkeypatch):
    def stop_rank(why, place):
        raise Stopped(why)

    monkeypatch.setattr(fake_values.FakeRun, "stop_rank", stop_rank, raising=False)
    return fake_values.UnknownNumber(".item()")


def test_an_unknown_number_is_printed_and_computed_with(unknown):
    average = round(sum([unknown, unknown, 1]) / 4, 3)
    assert f"{average:.4f} {average}" == "? ?"
    assert repr([-abs(2 * unknown**2)]) == "[?]"


@pytest.mark.parametrize(
    "ask",
    [
        lambda number: number > 0,
        lambda number: 0 < number,
        lambda number: number == 1,
        lambda number: max(number, 1),
        lambda number: not number,
        lambda number: float(number),
        lambda number: range(number),
        lambda number: {number: 1},
        lambda number: __import__("math").isnan(number),
        lambda number: torch.tensor(1.0) * float(number),
    ],
)
def test_what_depends_on_it_stops_the_rank(unknown, ask):
    with pytest.raises(Stopped, match="reads a value"):
        ask(unknown)


def test_every_object_call_of_torch_keeps_its_values():
    calls = set()
    for name in distributed_c10d.__all__:
        if "object" in name and not name.startswith("_"):
            calls.add(name)
    assert calls == set(fake_values.OBJECT_CALLS)
