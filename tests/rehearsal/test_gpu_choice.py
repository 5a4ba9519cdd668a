"""Two ranks of a host on one GPU are found where NCCL would refuse them, and only there."""

import re
from pathlib import Path

import pytest

from tests.rehearsal.rehearsed import SCRIPTS, marked_line, rehearse_words
from tests.rehearsal.warm import verdicts_of

pytestmark = pytest.mark.timeout(300)
SCRIPT = "gpu_of_each.py"
NAMES = re.findall(r"^def (\w+)\(\):", (SCRIPTS / SCRIPT).read_text(), re.MULTILINE)
HEALTHY = [name for name in NAMES if name.startswith("healthy_")]
FAULTS = [name for name in NAMES if f"# LINE: {name}\n" in (SCRIPTS / SCRIPT).read_text()]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Way to choose → the answer of four ranks."""
    return verdicts_of(tmp_path_factory.mktemp("gpus"), SCRIPT, [*FAULTS, *HEALTHY])


@pytest.mark.parametrize("name", FAULTS)
def test_ranks_on_one_gpu_are_named_with_the_line_that_chose_it(verdicts, name):
    answer = verdicts[name]
    assert answer["kind"] == "same_gpu", answer
    # the first communicator that NCCL refuses: of a send, that of two ranks
    pairs = [[0, 1], [2, 3]]
    assert answer["ranks"] in (pairs if name == "send_to_next" else [[0, 1, 2, 3]])
    for rank, call in answer["shared"].items():
        assert Path(call["gpu_place"]).name == marked_line(SCRIPT, name)
        assert call["gpu"] == (str(int(rank) // 2) if name == "set_half" else "0")


@pytest.mark.parametrize("name", HEALTHY)
def test_ranks_with_a_gpu_of_their_own_are_left_alone(verdicts, name):
    answer = verdicts[name]
    assert (answer["kind"], answer["shared"]) == ("agree", {}), answer


def test_ranks_of_two_hosts_have_the_same_number(tmp_path):
    options = {"host_ranks": 1, "ranks": 2}
    assert verdicts_of(tmp_path, SCRIPT, ["set_nothing"], **options)["set_nothing"]["kind"] == "agree"


def test_a_launcher_that_shows_one_gpu_each_is_believed(tmp_path):
    for shown in ("own", "first", "any"):
        answer = verdicts_of(tmp_path, SCRIPT, ["name_first"], ranks=2, shown_gpus=shown)
        assert answer["name_first"]["kind"] == "agree"


def test_by_torchrun_it_would_fail_and_by_python_alone_it_cannot_be_told(tmp_path):
    words = [str(SCRIPTS / SCRIPT), "set_nothing"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    faulty = rehearse_words(tmp_path, [*torchrun, *words])
    line = marked_line(SCRIPT, "set_nothing")
    assert (faulty["exit"], faulty["odd"]) == (1, [0, 1])
    assert "would fail or hang, as two ranks are on one GPU. Ranks 0 and 1: GPU 0" in faulty["sentence"]
    assert line in faulty["sentence"]
    untold = rehearse_words(tmp_path, words, "--ranks", "2")
    assert (untold["exit"], untold["why"]) == (2, "gpus")
    assert "--own-gpu" in untold["sentence"] and line in untold["sentence"]
    assert rehearse_words(tmp_path, words, "--ranks", "2", "--own-gpu")["exit"] == 0
