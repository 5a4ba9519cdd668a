"""Suspects of a bare symptom: counted, ordered, asked about; nothing of a healthy job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ncclkit.causes import catalogue, differential
from ncclkit.causes.contexts import CONTEXTS
from ncclkit.causes.diagnosis import LOOKS_LIKE
from ncclkit.causes.differential import STATED, answer_event, next_look, settled_cases
from ncclkit.causes.looks import all_questions, cause_looks
from ncclkit.causes.ranking import Voices, ranked_causes
from ncclkit.causes.resemblance import is_resembling
from ncclkit.causes.symptoms import HEADINGS, page_of, symptoms
from ncclkit.causes.symptoms.document import symptoms_document
from ncclkit.core.kinds import ToldAnswer
from ncclkit.views.findings import findings_view
from tests.cases import judged_log, judged_text
from tests.bench.differential import own_failures
from tests.packaging.project import ROOT

BARE = (
    "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving "
    "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: "
    "Socket Timeout\n"
)


def test_every_cause_has_a_look_and_nothing_else_does() -> None:
    assert cause_looks().keys() == catalogue().keys()
    named = {cause for look in all_questions().values() for cause in look.also}
    assert named <= catalogue().keys()
    assert all(0 < chance < 1 for look in all_questions().values() for chance in look.also.values())


@pytest.mark.parametrize("symptom", symptoms())
def test_a_symptom_has_its_page_and_known_suspects(symptom: str) -> None:
    about = page_of(symptom)
    assert all(about[heading] for heading in ("", *HEADINGS))
    assert symptoms()[symptom].SUSPECTS.keys() <= catalogue().keys()
    assert symptoms()[symptom].ID == symptom


def test_stated_ratios_are_of_known_things() -> None:
    features = {context.name for context in CONTEXTS} | symptoms().keys()
    assert {feature for feature, _ in STATED} <= features
    assert {cause for _, cause in STATED} <= catalogue().keys()


def test_the_table_is_what_the_examination_shows() -> None:
    """What was counted of this repository is what its texts show today."""
    counted = {one for one in settled_cases() if not one.source.startswith("posted:")}
    shown = set(own_failures())
    assert counted == shown, "python -m tests.bench.differential ../shared/cases"


def test_the_page_of_symptoms_is_printed_from_the_files() -> None:
    assert (ROOT / "docs/symptoms.md").read_text(encoding="utf-8") == symptoms_document()


def test_a_bare_symptom_gets_suspects_at_possible_each_with_its_look(tmp_path: Path) -> None:
    result = judged_log(tmp_path, BARE)
    assert 3 <= len(result.findings) <= 6
    assert {finding.strength for finding in result.findings} == {"possible"}
    assert result.differential is not None
    assert result.differential.seen[0].symptom == "unique_id"
    for finding in result.findings:
        assert finding.advice[0].do.startswith("Look first: ")


def test_what_it_looks_like_is_one_list_of_looks_without_a_remedy(tmp_path: Path) -> None:
    result = judged_log(tmp_path, BARE)
    suspects = [finding for finding in result.findings if is_resembling(finding)]
    assert len(suspects) > 1 and all(len(finding.advice) == 1 for finding in suspects)
    said = result.text()
    cards = findings_view(result).html
    likes = [is_resembling(finding) for finding in result.findings]
    # what a rule saw may stand between two of them
    runs = sum(like and not before for before, like in zip([False, *likes], likes, strict=False))
    assert said.count(LOOKS_LIKE) == runs and cards.count(LOOKS_LIKE) == 1
    for finding in suspects:
        assert finding.advice[0].do in said and f"<code>{finding.cause}</code>" in cards
    assert "What to do" not in cards.split("nk-suspects")[1].split("</ol>")[0]


def test_a_prior_alone_is_never_the_end_of_the_questions(tmp_path: Path) -> None:
    suspects = judged_log(tmp_path, BARE).differential
    assert suspects is not None and suspects.question is not None
    sure = dict.fromkeys(catalogue(), 0.001) | {"slow_rank": 0.955}
    assert next_look(sure, ()) is not None


@pytest.mark.parametrize(
    "log",
    [
        "step 10/90 loss 2.1\nstep 20/90 loss 1.9\n",
        "Training completed.\n",
        "[I1127 00:27:39.7 TCPStoreLibUvBackend.cpp:130] [c10d - debug] Remote peer closed the "
        "connection.\nstep 20/90 loss 1.9\n",
        "ERROR:  deadlock detected\nDETAIL:  Process 71 waits for ShareLock on transaction 9; "
        "blocked by process 72.\nHINT:  See server log for query details.\n",
    ],
    ids=["at work", "ended", "torch informs", "a database"],
)
def test_what_is_no_failure_of_a_job_gets_no_suspects(tmp_path: Path, log: str) -> None:
    assert judged_log(tmp_path, log).findings == ()


GOOD_STEPS = "".join(
    f"Epoch: [2][{step}/900]  Time 0.311 (0.320)  Data 0.002 (0.003)  Loss 2.{step} (2.71)\n"
    for step in range(610, 900, 10)
)
"""What a training prints that is well."""
ABORTED = "free(): invalid pointer\nAborted (core dumped)\n"


@pytest.mark.parametrize(
    "log",
    [
        "Our DDP training hangs after the last batch of every epoch on 4 GPUs.\n" + GOOD_STEPS,
        "torchrun --nproc-per-node 4 train.py\n" + GOOD_STEPS + ABORTED,
    ],
    ids=["a person says so", "the shell says so"],
)
def test_a_symptom_among_lines_of_a_good_training_gets_suspects(tmp_path: Path, log: str) -> None:
    found = judged_log(tmp_path, log)
    assert found.differential is not None and found.differential.seen
    assert {finding.strength for finding in found.findings} == {"possible"}


@pytest.mark.parametrize(
    "log",
    [
        "Our DDP training runs on 4 GPUs, to the last batch of every epoch.\n" + GOOD_STEPS,
        "Our DDP training on 4 GPUs used to hang here; solved by the update.\n" + GOOD_STEPS,
        "torchrun --nproc-per-node 4 train.py --on-hang abort\n" + GOOD_STEPS,
    ],
    ids=["nothing is said", "it is over", "an option"],
)
def test_a_good_training_gets_no_suspects(tmp_path: Path, log: str) -> None:
    assert judged_log(tmp_path, log).findings == ()


def test_answers_move_the_ranking() -> None:
    look = cause_looks()["host_oom"]
    yes, no = (differential.answer_adds(look, answer, "host_oom") for answer in ("yes", "no"))
    others = differential.answer_adds(look, "yes", "port_in_use")
    assert yes > others and no < differential.answer_adds(look, "no", "port_in_use")
    assert differential.answer_adds(look, "unknown", "host_oom") == 0.0
    assert answer_event(look, "yes", "user").data == ToldAnswer("host_oom", "yes", "user")


HANGS = "Training hangs at the first all_reduce on one host with two RTX 4090.\n"


@pytest.mark.parametrize(
    ("said", "helped"),
    [
        ("Setting NCCL_P2P_DISABLE=1 works, but is slow.", True),
        ("It works with NCCL_P2P_DISABLE=1.", True),
        ("NCCL_P2P_DISABLE=1 does not help.", False),
        ("With NCCL_P2P_DISABLE=1 it still works no better.", False),
        ("NCCL INFO NCCL_P2P_DISABLE set by environment to 1.", False),
    ],
)
def test_a_remedy_that_helped_speaks_for_its_cause(said: str, helped: bool) -> None:
    told = judged_text(f"{HANGS}{said}\n").differential
    assert told is not None and ("p2p_off_helps" in told.contexts) == helped


def test_where_nothing_failed_causes_that_always_say_so_are_seldom() -> None:
    quiet = judged_text("n1:12:13 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>\n" * 2).differential
    assert quiet is None or "no_error" in quiet.contexts
    loud, silent = (differential.stated_ratio(cause, ("no_error",)) for cause in ("gpu_oom", "p2p_broken"))
    assert loud < 0 == silent


def test_a_person_outweighs_a_rule_that_has_cleared_a_cause() -> None:
    cleared = Voices(cleared=1.0, ruled_out=1.0)
    odds = ranked_causes({"wrong_interface": cleared, "net_plugin": Voices()}).odds
    assert odds["net_plugin"] > odds["wrong_interface"] + 2
    look = cause_looks()["wrong_interface"]
    told = {cause: odds[cause] + differential.answer_adds(look, "yes", cause) for cause in odds}
    assert told["wrong_interface"] > told["net_plugin"]


def test_the_question_makes_the_first_suspect_surer() -> None:
    """Two suspects share most; a look at neither narrows much, and decides nothing."""
    shares = dict.fromkeys(catalogue(), 0.001) | {"rank_divergence": 0.5, "send_recv_mismatch": 0.4}
    look = next_look(shares, ())
    assert look is not None and look.cause in ("rank_divergence", "send_recv_mismatch")


def test_the_settled_cases_hold_no_text_of_anybody() -> None:
    for row in json.loads(differential.FILE.read_bytes()):
        assert row.keys() == {"source", "cause", "accept", "suffices", "shows"}
        assert set(row["shows"]) <= {context.name for context in CONTEXTS} | symptoms().keys()


def test_reading_the_table_takes_no_numpy() -> None:
    code = "import sys; from ncclkit.causes import differential as d; d.settled_table()"
    code += "; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
