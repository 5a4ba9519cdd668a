"""What Slurm's sentences mean, by the texts of Slurm 20.02 to 26.05, and which nodes a partition has."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ncclkit as nk
from ncclkit.cli import main
from ncclkit.cli.batch_jobs import ended_answer
from ncclkit.cli.parser import command_parser
from ncclkit.cli.runner import print_parts
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, NcclkitError
from ncclkit.live import node_kinds, partition_choice, scheduler, slurm_words, submit
from ncclkit.live.job_checks import refuse_misfit, seconds_of
from ncclkit.live.options import JobOptions
from tests.live.test_job_outcomes import made_jobs
from tests.live.test_submit import commands, fake, filled

__all__ = ["fake"]
WORDS = Path(__file__).parent / "slurm_words"
KNOWN = {"partitions": "P", "accounts": "ACC", "qos": "QOS", "nodes": "NODES", "limits": "LIM"}


def texts(name: str) -> list[str]:
    """The texts of a file, which also names the versions of Slurm that have them."""
    return [line.split("\t")[1] for line in (WORDS / name).read_text().splitlines()]


def test_every_refusal_and_every_reason_of_slurm_20_to_25_has_a_hint() -> None:
    refusals, reasons = texts("refusals.txt"), texts("reasons.txt")
    assert len(refusals) > 100 and len(reasons) > 200
    for text in refusals:
        said = f"sbatch: error: Batch job submission failed: {text}"
        assert slurm_words.refusal_hint(said, KNOWN), text
    for reason in reasons:
        assert slurm_words.waiting_reason(reason), reason
    assert slurm_words.refusal_hint("sbatch: error: something new", KNOWN) == ""
    assert (
        slurm_words.waiting_reason("SomethingNew") is None
        and slurm_words.waiting_reason("None") is None
    )


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        # each holds a word by which it would be taken for something else
        ("Socket timed out on send/recv operation", "controller does not answer"),
        ("Unable to contact slurm controller (connect failure)", "controller does not answer"),
        (
            "Invalid account or account/partition combination specified",
            "name another account with -A (ACC)",
        ),
        (
            "Multiple partition job request not supported when a partition is set in the association",
            "P",
        ),
        ("Requested node configuration is not available", "no node has what it asks for: NODES"),
        ("Node count specification invalid", "ask for fewer with -N"),
        (
            "Requested time limit is invalid (missing or exceeds some limit)",
            "name another time with -t; LIM",
        ),
        ("Invalid time specified", "sbatch options"),
        ("Pathname of a file, directory or other parameter too long", "shorter case folder"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "a limit of",
        ),
        ("MaxJobCount limit reached", "queue is full"),
        ("Invalid generic resource (gres) specification", "no node has so many GPUs"),
    ],
)
def test_a_refusal_is_read_whole(text: str, hint: str) -> None:
    assert hint in slurm_words.refusal_hint(
        f"sbatch: error: Batch job submission failed: {text}", KNOWN
    )


@pytest.mark.parametrize(
    ("reason", "hint", "final"),
    [
        ("AssocGrpGRES", "all jobs of your account together have the GPUs", False),
        ("QOSMaxGRESPerUser", "another job of yours must end", False),
        ("QOSMaxWallDurationPerJobLimit", "your QoS allows one job less time", True),
        ("AssocGrpCPUMinutesLimit", "your account has used up its CPU minutes", False),
        ("AssocGrpCPURunMinutesLimit", "-t asks less", False),
        ("QOSMinGRES", "for jobs that ask for more GPUs", True),
        ("ReqNodeNotAvail,_UnavailableNodes:n[1-2]", "down, drained or reserved", False),
        ("DependencyNeverSatisfied", "has failed", True),
        ("Dependency", "waits for another job", False),
        ("Reservation", "has not begun", False),
        ("Resources", "busy", False),
        ("JobHeldUser", "scontrol release", False),
        # these end without the job: whoever waits is not cancelled
        ("JobHeldAdmin", "only administrators can release it", False),
        ("PartitionDown", "until administrators set it up", False),
        ("PartitionInactive", "until administrators set it up", False),
        ("PartitionTimeLimit", "-t asks for less", True),
        # as scontrol writes it, and as squeue does
        ("Job's_account_not_permitted_to_use_this_partition_(p_allows_ml_not_lab)", "another", True),
        ("Job's account not permitted to use this partition (p allows ml not lab)", "another", True),
    ],
)
def test_a_job_that_can_start_is_not_called_stuck(reason: str, hint: str, final: bool) -> None:
    waiting = slurm_words.waiting_reason(reason)
    assert waiting is not None and hint in waiting.hint and waiting.is_final is final


def test_the_words_of_a_rule_of_this_cluster_are_passed_on(fake: Path, tmp_path: Path) -> None:
    own = "echo 'sbatch: error: Choose a project with -A' >&2"
    last = "echo 'sbatch: error: Batch job submission failed: Unspecified error' >&2; exit 1"
    commands(fake, sbatch=f"{own}; {last}")
    with pytest.raises(
        NcclkitError, match=r"sbatch: Choose a project with -A; Batch .*; a rule of this cluster"
    ):
        submit.submit(Case.open(tmp_path / "case"), ["probe"], JobOptions())
    limit = "echo 'sbatch: error: QOSMaxWallDurationPerJobLimit' >&2"
    policy = "echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy' >&2; exit 1"
    commands(fake, sbatch=f"{limit}; {policy}")
    with pytest.raises(NcclkitError, match="your QoS allows one job less time: ask for less"):
        submit.submit(Case.open(tmp_path / "case"), ["probe"], JobOptions())


def test_a_hint_names_your_accounts_and_what_the_nodes_are(fake: Path, tmp_path: Path) -> None:
    case = mixed_case()
    case.facts.append(
        Fact(
            "scheduler.accounts",
            [{"account": "ml", "qos": "normal"}, {"account": "bio", "qos": ""}],
        )
    )
    case.path = tmp_path
    invalid = "Invalid account or account/partition combination specified"
    commands(
        fake, sbatch=f"echo 'sbatch: error: Batch job submission failed: {invalid}' >&2; exit 1"
    )
    with pytest.raises(NcclkitError, match=r"name another account with -A \(yours: ml, bio\)"):
        submit.submit(case, ["probe"], JobOptions(account="x"))
    busy = "Requested node configuration is not available"
    commands(fake, sbatch=f"echo 'sbatch: error: Batch job submission failed: {busy}' >&2; exit 1")
    with pytest.raises(
        NcclkitError, match="partition mix has 2 × 4 h100 GPUs, 2 × no GPUs, constraints h100, ib"
    ):
        submit.submit(case, ["probe"], JobOptions())


# ---------------------------------------------------------------- kinds of nodes

MIXED = """mix|idle|1|gpu:h100:4(S:0-1)|64|h100,ib
mix|alloc|1|gpu:h100:4(S:0-1)|64|h100,ib
mix|idle|2|(null)|64|ib
mig|idle|2|gpu:1g.10gb:7,shard:16|64|(null)
"""
LIMITS = """PartitionName=mix Default=YES MaxNodes=UNLIMITED MaxTime=01:00:00 State=UP
PartitionName=mig Default=NO MaxNodes=1 MaxTime=UNLIMITED State=UP
"""


def mixed_case() -> Case:
    return filled([Fact("scheduler.partitions", scheduler.partitions(MIXED, LIMITS))])


@pytest.mark.parametrize(
    ("gres", "count", "model", "slices"),
    [
        ("gpu:8", 8, "", False),
        ("gpu:h100:8(S:0-1)", 8, "h100", False),
        ("gpu:h100:4(S:0,1),gpu:a100:2(S:2)", 6, "h100+a100", False),
        ("gpu:1g.10gb:7", 7, "1g.10gb", True),
        ("gpu:a100_3g.20gb:2,nic:4", 2, "a100_3g.20gb", True),
        ("gpu:h100:7,gpu:1g.10gb:7", 7, "h100", False),
        ("gpu:no_consume:4", 4, "", False),
        ("gpu:4090:2", 2, "4090", False),
        ("nic:4,gpu:4", 4, "", False),
        ("craynetwork:4", 0, "", False),
        ("gpu:0", 0, "", False),
        ("(null)", 0, "", False),
        ("", 0, "", False),
    ],
)
def test_typed_gres_and_slices_are_what_they_are(
    gres: str, count: int, model: str, slices: bool
) -> None:
    found = node_kinds.node_gpus(gres)
    assert (found.count, found.model, found.slices) == (count, model, slices)


def test_a_mixed_partition_says_its_kinds_and_a_uniform_one_has_one() -> None:
    mix, mig = scheduler.partitions(MIXED, LIMITS)
    assert "2 × 4 h100 GPUs (1 idle), 2 × no GPUs (2 idle)" in scheduler.partition_words(mix)
    assert "constraints h100, ib" in scheduler.partition_words(mix)
    words = scheduler.partition_words(mig)
    assert "7 MIG slices 1g.10gb (16 shards of GPUs) a node" in words and "×" not in words
    assert scheduler.job_number_words("7") == "7"
    assert scheduler.job_number_words("7+1") == "7, part 1 of a heterogeneous job"
    assert scheduler.job_number_words("7_[2-9]") == "7, array task 2-9"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"nodes": 2}, "#SBATCH --gpus-per-node=4\n"),
        ({"nodes": 4}, ""),  # all four, so it asks for what all have
        ({"nodes": 2, "gpu_type": "h100"}, "#SBATCH --gpus-per-node=h100:4\n"),
        ({"nodes": 2, "constraint": "h100&ib"}, '#SBATCH --constraint="h100&ib"\n'),
        ({"nodes": 3, "gpus_per_node": 0}, ""),
    ],
)
def test_a_job_asks_for_what_its_nodes_have(
    tmp_path: Path, given: dict[str, Any], line: str
) -> None:
    text = submit.script(mixed_case(), tmp_path, ["probe"], JobOptions(**given))
    assert line in text and (line or "gpus-per-node" not in text)


def test_a_kind_is_named_where_there_are_several() -> None:
    case = mixed_case()
    assert "4 GPUs of each; --gpus-per-node 0 takes any node" in submit.kind_sentence(
        case, JobOptions(nodes=2)
    )
    assert "asks for no GPUs, so it may run on any" in submit.kind_sentence(
        case, JobOptions(nodes=4)
    )
    assert submit.kind_sentence(case, JobOptions(partition="mig")) == ""


# ---------------------------------------------------------------- values before the queue


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("10", 600),
        ("1:30", 90),
        ("1:00:00", 3600),
        ("1-0", 86400),
        ("2-12:30", 217800),
        ("UNLIMITED", None),
    ],
)
def test_a_time_limit_in_slurms_words(time: str, seconds: int | None) -> None:
    assert seconds_of(time) == seconds


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"time": "61"}, "Partition mix allows 01:00:00, and -t 61 asks for more"),
        ({"nodes": 5}, "Partition mix has 4 nodes, and -N 5 asks for more"),
        (
            {"nodes": 3, "gpus_per_node": 4},
            "no 3 nodes with 4 GPUs: its nodes .how many × GPUs of each. are 2 × 4 h100 GPUs, 2 × no GPUs",
        ),
        ({"partition": "mig", "nodes": 2}, "Partition mig allows 1 node for one job"),
    ],
)
def test_what_a_partition_cannot_start_is_refused_before_the_queue(
    given: dict[str, Any], why: str
) -> None:
    with pytest.raises(NcclkitError, match=why):
        refuse_misfit(mixed_case(), JobOptions(**given))


@pytest.mark.parametrize(
    "given",
    [
        {"time": "60"},
        {"time": "61", "qos": "long"},  # a QoS may allow more
        {"partition": "unheard-of", "nodes": 99},
        {"time": "99", "sbatch_options": "-M other"},
        {"partition": "mig", "time": "30-0"},
        {"nodes": 2, "gpus_per_node": 4},
    ],
)
def test_what_may_start_is_left_alone(given: dict[str, Any]) -> None:
    refuse_misfit(mixed_case(), JobOptions(**given))
    refuse_misfit(Case(), JobOptions(**given))


@pytest.fixture
def login(fake: Path) -> Iterator[Path]:
    commands(
        fake,
        sbatch="echo 7",
        sinfo="echo gpu",
        scontrol="exit 1",
        squeue="exit 1",
        sacctmgr="exit 1",
    )
    yield fake


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["lab", "rank_laet"], "rank_laet"),
        (["probe", "--op", "all_redcue"], "all_redcue"),
        (["tune", "NCCL_ALGO"], "NCCL_ALGO"),
        (["diagnose", "none/logs"], "There is no none/logs in "),
        (["report", "--notebook", "09_nothing"], "09_nothing"),
        (["step", "--try", "nonsense", "--", "python", "x.py"], "nonsense"),
    ],
)
def test_words_of_a_verb_are_judged_before_the_queue(
    login: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    assert main(["submit", *words[:1], "--case", str(tmp_path / "case"), *words[1:]]) == 2
    assert why in capsys.readouterr().err and not (tmp_path / "case" / "jobs").exists()


def test_options_for_sbatch_may_begin_with_dashes() -> None:
    parser = command_parser()
    words = [
        "submit",
        "--sbatch-options",
        "--constraint=h100",
        "-N",
        "2",
        "step",
        "--",
        "x",
        "--sbatch-options",
        "-y",
    ]
    parsed: argparse.Namespace = parser.parse_args(words)
    assert (
        parsed.sbatch_options == "--constraint=h100"
        and parsed.nodes == 2
        and parsed.constraint == ""
    )
    assert parsed.words == words[5:]
    assert submit.parse_options("--srun-options --mpi=none -C h100").srun_options == "--mpi=none"
    assert submit.parse_options("-C 'h100&ib'").constraint == "h100&ib"
    for wrong in ("-C 'a b'", "-C", "--gpu-type 'a b'"):
        with pytest.raises(NcclkitError):
            submit.parse_options(wrong)


def test_the_form_asks_for_a_kind_where_a_partition_has_several(
    login: Path, tmp_path: Path
) -> None:
    case = Case.open(tmp_path / "case")
    case.facts = list(mixed_case().facts)
    form: Any = nk.form.live_test(case)
    assert [words for words, _ in form.kind.options][1:] == [
        "4 h100 GPUs (1 of 2 idle)",
        "no GPUs (2 of 2 idle)",
    ]
    form.kind.value = (4, "h100", "")
    assert "--gpus-per-node=h100:4" in form.script.value
    form.kind.value = (0, "", "")
    assert "--gpus-per-node" not in form.script.value
    assert list(form.job["constraint"].options) == ["h100", "ib"]
    form.job["gpus_per_node"].value = 2
    form.job["partition"].value = "mig"
    assert form.kind.layout.display == "none"
    form.job["partition"].value = ""
    form.job["time"].value = "61"
    assert form.start.disabled and "allows 01:00:00" in form.notice.value
    form.job["time"].value = "60"
    assert not form.start.disabled


BY_FEATURE = "mix|idle|2|gpu:h100:8|64|ib,new\nmix|alloc|3|gpu:h100:8|64|roce,new\nmig|idle|1|gpu:1g.10gb:7|64|(null)\n"


@pytest.mark.parametrize("make", [nk.form.live_test, nk.form.tune])
def test_nodes_that_differ_by_a_feature_alone_are_kinds_to_ask_for(
    login: Path, tmp_path: Path, make: Any
) -> None:
    case = Case.open(tmp_path / "case")
    case.facts = list(filled([Fact("scheduler.partitions", scheduler.partitions(BY_FEATURE, LIMITS))]).facts)
    form: Any = make(case)
    assert [words for words, _ in form.kind.options][1:] == [
        "8 h100 GPUs with ib (2 of 2 idle)",
        "8 h100 GPUs with roce (0 of 3 idle)",
    ]
    form.kind.value = (8, "h100", "roce")
    assert form._job_options().constraint == "roce" and form._job_options().gpus_per_node == 8
    form.kind.value = form.kind.options[0][1]
    assert form._job_options().constraint == "" and form._job_options().gpus_per_node == -1


@pytest.mark.parametrize("features", ["ib,new|ib", "ib|ib", "(null)|new"])
def test_nodes_whose_lack_of_a_feature_cannot_be_asked_for_are_one_kind(features: str) -> None:
    first, second = features.split("|")
    said = f"mix|idle|2|gpu:h100:8|64|{first}\nmix|idle|3|gpu:h100:8|64|{second}\n"
    mix = scheduler.partitions(said, LIMITS)[0]
    assert scheduler.gpus_of_partition(mix) == "8 h100 GPUs a node"


def test_no_label_of_the_form_is_wider_than_its_room(login: Path, tmp_path: Path) -> None:
    """Letters are half as wide as high, on average; 8.5 em cut "Environment variables"."""
    form: Any = nk.form.live_test(Case.open(tmp_path / "case"))
    for field in (*form.controls.values(), *form.job.values(), form.kind):
        if type(field).__name__ != "Checkbox":
            room = float(field.style.description_width.removesuffix("em"))
            assert len(field.description) * 0.5 <= room, field.description


def test_a_no_at_the_question_and_a_terminal_that_is_closed_leave_no_folder(tmp_path: Path) -> None:
    case = Case.open(tmp_path / "case")
    seen: list[bool] = []

    def asked(record: dict[str, Any]) -> None:
        seen.append((tmp_path / "case" / "jobs" / "1-probe").exists())
        raise NcclkitError("Nothing was submitted.")

    with pytest.raises(NcclkitError, match="Nothing was submitted"):
        submit.submit(case, ["probe"], JobOptions(), asked)
    # a terminal that is closed ends this process while the question stands
    assert seen == [False] and not list((tmp_path / "case").glob("jobs/*"))


def test_accounts_that_nobody_names_are_not_drawn_as_none(login: Path) -> None:
    commands(login, sacctmgr="true")
    accounts = {fact.name: fact for fact in scheduler.read_facts()}["scheduler.accounts"]
    assert accounts.value is None and accounts.why.startswith("sacctmgr names no account of")


def test_progress_that_was_shown_is_not_printed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.err").write_text("  rank 0: size 8 all_reduce\n  rank 0: done\nslurmstepd: error: killed\n")
    job = submit.BatchJob(tmp_path, "7", ("probe",), 0.0)
    ended = submit.JobState("7", "TIMEOUT")
    shown = {"  rank 0: size 8 all_reduce", "  rank 0: done"}
    print_parts(ended_answer(job, ended, shown).parts)
    said = capsys.readouterr().err
    assert "rank 0" not in said and "slurmstepd: error: killed" in said
    assert said.count(ended.sentence) == 1
    print_parts(ended_answer(job, ended, {*shown, f"ncclkit: {ended.sentence}"}).parts)
    assert ended.sentence not in capsys.readouterr().err
    print_parts(ended_answer(job, ended).parts)  # nobody followed it
    assert "rank 0: done" in capsys.readouterr().err


# ---------------------------------------------------------------- what else could take the job

SEVERAL = """debug|idle|2|gpu:h100:2|8|h100,ib
debug|idle|2|(null)|8|ib
cpu|idle|2|(null)|8|ib
short|idle|4|gpu:h100:2|8|h100
closed|idle|9|gpu:h100:4|8|h100
away|idle|9|gpu:h100:4|8|h100
"""
OPEN = "AllowGroups=ALL AllowAccounts=ALL MaxNodes=UNLIMITED"
ROWS = scheduler.partitions(
    SEVERAL,
    f"PartitionName=debug Default=YES {OPEN} MaxTime=UNLIMITED State=UP\n"
    f"PartitionName=cpu Default=NO {OPEN} MaxTime=UNLIMITED State=UP\n"
    f"PartitionName=short Default=NO {OPEN} MaxTime=00:01:00 State=UP\n"
    "PartitionName=closed Default=NO AllowGroups=ALL AllowAccounts=ml MaxNodes=9 MaxTime=UNLIMITED State=UP\n"
    f"PartitionName=away Default=NO {OPEN} MaxTime=UNLIMITED State=DOWN\n",
)


def cluster_of(*accounts: str) -> Case:
    """What ann knows of a cluster with five partitions; without accounts, where none are kept."""
    facts = [Fact("scheduler.partitions", ROWS)]
    if accounts:
        facts.append(Fact("scheduler.accounts", [{"account": name, "qos": ""} for name in accounts]))
    return filled(facts)


@pytest.mark.parametrize(
    ("accounts", "given", "other"),
    [
        (["lab"], {"nodes": 9}, "-N 4 is the most there; no other partition that you may use fits it, either"),
        # who may use a larger one is told so, and who knows no accounts is not refused it
        (["ml"], {"nodes": 9}, r"-p names another that it fits \(closed\)"),
        ([], {"nodes": 9}, r"-p names another that it fits \(closed\)"),
        (["lab", "ml"], {"nodes": 9, "account": "lab"}, "no other partition that you may use"),
        (["lab"], {"partition": "cpu", "gpus_per_node": 2}, r"-p names another that it fits \(debug\)"),
        (["lab"], {"partition": "cpu", "gpus_per_node": 2, "time": "1"}, r"\(debug, short\)"),
        (["lab"], {"partition": "short", "time": "30"}, r"\(debug, cpu\)"),
        (["lab"], {"partition": "short", "time": "30", "constraint": "h100"}, r"\(debug\)"),
        (["lab"], {"partition": "short", "time": "30", "gpu_type": "h100"}, r"\(debug\)"),
        (["lab"], {"nodes": 3, "gpus_per_node": 2}, "-N 2 takes those that have, --gpus-per-node 0 takes any nodes; no other"),
    ],
)
def test_only_a_partition_that_can_help_is_named(accounts: list[str], given: dict[str, Any], other: str) -> None:
    with pytest.raises(NcclkitError, match=f"{other}.*$"):
        refuse_misfit(cluster_of(*accounts), JobOptions(**given))


def test_the_partitions_of_a_hint_are_those_that_are_open() -> None:
    said = scheduler.hint_values(cluster_of("lab"))["partitions"]
    assert said == "there is debug, cpu, short; closed is for account ml; away is DOWN"
    assert "short, closed; away is DOWN" in scheduler.hint_values(cluster_of("ml"))["partitions"]
    assert scheduler.hint_values(cluster_of())["partitions"] == "there is debug, cpu, short, closed; away is DOWN"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, ""),
        ({"accounts": "ml,lab"}, ""),
        ({"accounts": "ALL", "denied_accounts": "lab"}, "does not take account lab"),
        ({"denied_accounts": "ml"}, ""),
        ({"groups": "nobody-has-it"}, "is for group nobody-has-it"),
        ({"state": "DRAIN"}, "is DRAIN"),
    ],
)
def test_why_a_partition_takes_no_job_of_a_user(more: dict[str, str], why: str) -> None:
    assert partition_choice.why_closed({**ROWS[0], **more}, ["lab"]) == why
    own = ",".join(partition_choice.own_groups())
    assert partition_choice.why_closed({**ROWS[0], "groups": own}, ["lab"]) == ""


REFUSED = "Job's_account_not_permitted_to_use_this_partition_(closed_allows_ml_not_lab)"


@pytest.mark.parametrize(
    ("accounts", "way"),
    [
        (["lab"], r"name another partition with -p \(debug, cpu, short for up to 00:01:00\)\.$"),
        (["lab", "ml"], r"name account ml with -A, or another partition with -p \(debug, cpu, short for up to 00:01:00\)\.$"),
        ([], r"name another with -A or -p\.$"),
    ],
)
def test_an_account_is_offered_only_where_there_is_one_that_helps(accounts: list[str], way: str) -> None:
    state = submit.parse_state(f"JobId=7 JobState=PENDING Reason={REFUSED} Partition=closed")
    said = submit.with_hints(cluster_of(*accounts), state)
    assert said.stuck
    assert re.search(way, said.sentence), said.sentence
    assert ("-A" in said.sentence) is (accounts != ["lab"])


def test_gpus_are_offered_with_the_nodes_that_have_them() -> None:
    said = submit.kind_sentence(cluster_of("lab"), JobOptions(nodes=4))
    assert "--gpus-per-node asks for GPUs, which 2 of its 4 nodes have, so -N 2 is the most with them" in said
    few = submit.kind_sentence(cluster_of("lab"), JobOptions(nodes=2, gpus_per_node=0))
    assert "which 2 of its 4 nodes have." in few


HELD = ("launch_failed_requeued_held", "launch failed requeued held", "JobHoldMaxRequeue", "job_requeued_in_held_state")


@pytest.mark.parametrize("reason", HELD)
def test_a_job_that_slurm_holds_after_a_requeue_is_followed_and_not_cancelled(
    fake: Path, tmp_path: Path, reason: str
) -> None:
    """It starts again once it is released, as it is here."""
    case = Case.open(tmp_path / "case")
    job = made_jobs(case, 1)[0]
    asked = tmp_path / "asked"
    held = f"JobId=101 JobState=PENDING Restarts=1 Reason={reason.replace(' ', '_')} Partition=debug"
    over = "JobId=101 JobState=COMPLETED ExitCode=0:0 Partition=debug"
    commands(
        fake,
        scontrol=f"echo x >> {asked}; if [ $(wc -l < {asked}) -lt 3 ]; then echo '{held}'; else echo '{over}'; fi",
        scancel=f"echo cancelled >> {tmp_path}/cancelled",
        squeue="exit 1",
        sinfo="echo 'n1: its disk is full'",
    )
    (job.folder / "exit").write_text("0\n")
    said: list[str] = []
    ended = asyncio.run(submit.follow(case, job, lambda record: said.append(str(record.get("say")))))
    assert ended.state == "COMPLETED" and not (tmp_path / "cancelled").exists()
    assert "waits" in said[0] and "`scontrol release 101` lets it" in said[0]


def test_a_job_that_will_never_start_is_still_cancelled(fake: Path, tmp_path: Path) -> None:
    case = Case.open(tmp_path / "case")
    job = made_jobs(case, 1)[0]
    final = "JobId=101 JobState=PENDING Reason=BadConstraints Command=/x/jobs/1-probe/job.sbatch"
    over = "JobId=101 JobState=CANCELLED Command=/x/jobs/1-probe/job.sbatch"
    gone = tmp_path / "cancelled"
    commands(fake, scontrol=f"if [ -e {gone} ]; then echo '{over}'; else echo '{final}'; fi", scancel=f"touch {gone}", squeue="exit 1")
    with pytest.raises(NcclkitError, match="no node has what it asks for; it was cancelled"):
        asyncio.run(submit.follow(case, job))
    assert gone.exists()


def test_a_job_that_may_have_been_taken_is_named_so_that_it_can_be_found(fake: Path, tmp_path: Path) -> None:
    commands(fake, sbatch="echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1")
    when = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
    with pytest.raises(NcclkitError, match=rf"squeue --me -o '%i %j %V'` lists a job ncclkit-probe of {when} or later"):
        submit.submit(Case.open(tmp_path / "case"), ["probe"], JobOptions())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("12+0|train|RUNNING|1|gres:gpu:1|n1|debug|None", "train: RUNNING in debug, 1 node (n1) with 1 GPU"),
        ("12+1|train|RUNNING|2|N/A|n[3-4]|cpu|None", "train: RUNNING in cpu, 2 nodes (n[3-4])"),
        ("13|eval|PENDING|4|gres/gpu:h100=2||debug|Priority", "eval: PENDING in debug, 4 nodes with 2 h100 GPUs each (Priority)"),
        ("14|mig|PENDING|1|gres:gpu:1g.10gb:1||debug|None", "mig: PENDING in debug, 1 node with 1 MIG slice 1g.10gb"),
    ],
)
def test_a_job_and_each_part_of_it_say_their_nodes_and_gpus(fake: Path, line: str, words: str) -> None:
    commands(fake, squeue=f"echo '{line}'")
    (job,) = scheduler._jobs()
    assert scheduler.job_words(job) == words
    # as cases of earlier versions have it
    assert scheduler.job_words({"id": "7", "name": "a", "state": "RUNNING", "nodes": "1", "reason": "None"}) == "a: RUNNING, 1 node"
