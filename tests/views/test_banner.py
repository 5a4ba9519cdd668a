"""The banner, and the cards below it: each thing once, examples and recordings under their names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import ncclkit as nk
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact, Finding, Measurement, found
from ncclkit.evidence.logs import inputs_by_job, read_logs
from ncclkit.views._html import SHORT, common, location
from ncclkit.views.findings import NOT_EVALUATED
from tests.causes.test_summary import TestOneListOfRisks as Risks
from tests.views.records import HOSTILE, case, findings
from tests.views.test_faces import Page

SPECIMENS = Path(__file__).parents[1] / "specimens"
TRACE = "[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File 'a.py', line 3\n[rank{0}]: KeyError: 'x'"


def words(view: nk.views.View) -> str:
    return " ".join(Page(view.static()).words.split())


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("slow_rank/found-desync", ["likely", "slow_rank", "At fault: Rank 3", "First:", "Judged", "Reproduce"]),
        ("slow_rank/clear-healthy", ["healthy", "the job was seen to go well"]),
        ("slow_rank/unknown-steps-only", ["at work", "ends before the job does", "First:"]),
    ],
)
def test_the_banner_answers_what_who_and_what_first(folder: str, said: list[str]) -> None:
    read = words(nk.show.banner(read_logs(str(SPECIMENS / folder))))
    assert [word for word in said if word not in read] == [] and "Example" not in read


def test_an_example_says_that_it_is_one() -> None:
    view = nk.show.banner(nk.open_sample("rank_late"))
    assert words(view).startswith("Example: a recording") and "nk-example" in view.static()


def test_a_hang_is_decided_by_what_the_late_rank_did() -> None:
    """Of a dump of eight ranks the lines of the one at fault are quoted, and not where the others waited."""
    read = words(nk.show.banner(nk.open_sample("eight_ranks_late")))
    cited = read[read.index("fr_rank_5") : read.index("First:")]
    assert "never entered it: rank 5" in cited and "rank 5 stood in skip_batches" in cited and "train.py:18" in cited
    assert "rank 0" not in cited


def test_a_healthy_live_test_says_what_it_has_shown_and_whether_its_speed_is_normal() -> None:
    known = Case()
    known.facts = [Fact("gpu.count", 0), Fact("net.loopback.bandwidth", 3.0), Fact("cpu.usable", 2)]
    known.events = [Event("run.end", "the run ended: done", "runs/1-a/status.json", data={"reason": "done"})]
    row = Measurement("all_reduce", 1 << 24, "float32", 2, 1, "gloo", 30.0, None, None, 0.5, 0.5, 0, run="1-a")
    known.measurements = [replace(row, expected=1.0)]
    read = words(nk.show.banner(known))
    assert "2 ranks over gloo on the CPU of one host: says nothing about GPUs or other hosts" in read
    title = "The job went well: all_reduce reaches 0.500 GB/s busbw"
    assert title in read and "At fault: nobody" in read and "checks passed" not in read
    assert "50 % of the 1.00 GB/s that this host's loopback allows: normal, as 34 % and more is usual" in read
    assert re.search(r"\d+ causes not evaluated: no GPU, no NCCL log, .*Which ones\?", read)
    assert f'href="#{NOT_EVALUATED}"' in nk.show.banner(known).static()
    assert f'id="{NOT_EVALUATED}"' in nk.show.findings(nk.diagnose(known), headline=False).static()
    known.measurements = [replace(row, busbw=0.3, expected=1.0)]
    assert "30 % of the 1.00 GB/s that this host's loopback allows: low, as 34 % and more" in words(
        nk.show.banner(known)
    )


def test_a_risk_stands_beside_what_to_do_about_it() -> None:
    known = Risks.after_a_run()
    read, (risk,) = words(nk.show.banner(known)), nk.diagnose(known).risks
    # the fix of the first risk stands once, as what to do first
    assert risk.say in read and read.count(risk.advice[0].do) == 1
    assert f"{risk.say} Fix: " in nk.diagnose(known).text()


def test_a_page_with_risks_is_not_all_green() -> None:
    """The job went well; what waits for the next one gives the edge its colour."""
    known = Risks.after_a_run()
    assert "nk-edge-possible" in nk.show.banner(known).static()
    known.facts = []
    assert "nk-edge-healthy" in nk.show.banner(known).static()


def test_a_speed_of_a_busy_host_says_so_beside_the_badge() -> None:
    known = Case()
    known.events = [Event("run.end", "the run ended: done", "runs/1-a/status.json", data={"reason": "done"})]
    row = Measurement("all_reduce", 1 << 24, "float32", 2, 1, "gloo", 30.0, None, None, 0.5, 0.5, 0, run="1-a")
    known.measurements = [row]
    known.facts = [Fact("cpu.usable", 2, host="n1"), Fact("cpu.load", [1.0, 1.0, 1.0], "processes", host="n1")]
    assert "busy host" not in words(nk.show.banner(known))
    known.facts += [Fact("cpu.pressure", 94.0, "%", host="n1")]
    known.facts[1] = replace(known.facts[1], value=[9.0, 9.0, 9.0])
    assert "speed uncertain: busy host" in words(nk.show.banner(known))


def test_a_machine_with_two_risks_names_both_above_the_cards() -> None:
    known = Case()
    known.facts = [
        Fact("cpu.usable", 2, host="n1"),
        Fact("cpu.load", [9.0, 9.0, 9.0], "processes", host="n1"),
        Fact("cpu.pressure", 94.0, "%", host="n1"),
        Fact("net.hostname.addresses", ["127.0.0.1"], host="n1"),
        Fact("net.gloo.interface", "lo", host="n1"),
        Fact("net.gloo.addresses", ["127.0.0.1"], host="n1"),
    ]
    first, second = nk.diagnose(known).findings
    read = words(nk.show.banner(known))
    assert read.count(second.say) == 1 and f"Also ({second.strength}): {second.say}" in read


def test_a_time_is_broken_between_its_parts_only() -> None:
    page = nk.show.banner(nk.open_sample("eight_ranks_late")).static()
    assert "to 04:32:02 UTC,</span> " in page and page.count('class="nk-whole"') >= 3
    assert "35 s from first to last line" in page


def test_facts_of_a_machine_without_a_job_are_no_nonsense() -> None:
    machine = Case()
    machine.facts = [nk.core.model.Fact("limits.shm.free", 1 << 34, "bytes", "statvfs", "n1")]
    assert nk.show.banner(machine).summary.startswith("No job ran here: ")


def test_whatever_stands_in_a_log_stays_text(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(f"RuntimeError: NCCL error {HOSTILE}".replace("\udcff", "").replace("\x00", ""))
    page = Page(nk.show.banner(read_logs(str(tmp_path))).html)
    assert not {"script", "img"} & set(page.tags) and "alert(1)" in page.words


def test_the_first_card_is_open_and_the_others_are_one_line_each() -> None:
    page = nk.show.findings(findings()).static()
    assert page.count('<section class="nk-card') == 1 and page.count('<details class="nk-card') == 1
    assert "Nothing found" not in page and page.count("Rank 5") == 1  # the verdict stands there once


def test_several_jobs_in_one_list_of_logs_are_labelled_and_not_merged(tmp_path: Path) -> None:
    start = "ncclCommInitRank comm 0x7f rank 0 nranks 1 cudaDev 0 busId 18000 commId 0x1 - Init COMPLETE"
    line = f"node-1:{{}}:{{}} [0] NCCL INFO {start}\n"
    errors = {"one.log": ("100", "ValueError: sample 1207 has 0 frames"), "two.log": ("200", "KeyError: 'loss'")}
    for name, (pid, error) in errors.items():
        trace = f"[rank0]: Traceback (most recent call last):\n[rank0]:   File 'a.py', line 3\n[rank0]: {error}\n"
        (tmp_path / name).write_text(line.format(pid, pid) + trace)
    case = read_logs(f"{tmp_path / 'one.log'} {tmp_path / 'two.log'}", tmp_path / "case")
    read = words(nk.show.banner(case))
    assert f"The logs are of 2 jobs. This page is about {tmp_path / 'one.log'}" in read
    assert (
        {event.path for event in case.events} == {str(tmp_path / "one.log")} and "1207" in read and "KeyError" in read
    )
    again = read_logs(str(tmp_path / "two.log"), tmp_path / "case")
    assert "2 jobs" not in words(nk.show.banner(again))


def test_files_of_one_job_stay_one_job() -> None:
    """Per rank, per node and per kind; two numbers of Slurm are two jobs."""

    def line(path: str, rank: int, pid: int) -> Event:
        return Event("nccl.init", "", path, 1, host="node-1", rank=rank, pid=pid)

    ranks = [line("a/rank0.log", 0, 10), line("a/rank1.log", 1, 11), line("a/nccl.0.log", 0, 10)]
    assert inputs_by_job({event.path: event.path for event in ranks}, ranks) == [[event.path for event in ranks]]
    slurm = [Event("python.exception", "", f"slurm-{number}.out", 1) for number in (1, 2)]
    named = {name: name for name in ("slurm-1.out", "slurm-2.out", "notes.txt")}
    assert inputs_by_job(named, slurm) == [["slurm-1.out", "notes.txt"], ["slurm-2.out"]]


def test_under_a_banner_the_first_card_has_the_title_of_its_cause() -> None:
    late = nk.diagnose(nk.open_sample("rank_late"))
    page = nk.show.banner(nk.open_sample("rank_late"), late).static() + nk.show.findings(late, headline=False).static()
    read = " ".join(Page(page).words.split())
    assert read.count(late.findings[0].say) == 1 and "1. One rank was busy elsewhere" in read
    healthy = nk.diagnose(nk.open_sample("healthy"))
    assert healthy.headline not in nk.show.findings(healthy, headline=False).static()


def test_a_banner_says_what_was_measured_and_which_risk_there_is(tmp_path: Path) -> None:
    known = case()
    read = words(nk.show.banner(known))
    rows = known.measurements
    assert rows and f"Measured {rows[-1].op} reaches" in read and "facts" in read


def test_a_traceback_that_every_rank_printed_stands_once() -> None:
    lines = [Event("python.exception", TRACE.format(rank), f"/logs/rank{rank}.log", 7, rank=rank) for rank in (0, 1, 2)]
    again = [*lines[:1], Event("python.exception", "[rank0]: KeyError: 'y'", "/logs/rank0.log", 9, rank=0)]
    page = nk.show.findings([_found("rank_exception", lines), _found("rank_killed", again)]).static()
    assert page.count("Traceback") == 1 and page.count("KeyError") == 2
    read = " ".join(Page(page).words.split())
    assert "The same at 2 other places rank1.log:7 rank 1 rank2.log:7 rank 2" in read
    assert "as at rank0.log:7" in read


def _found(cause: str, lines: list[Event]) -> Finding:
    return found(cause, "proven", f"{cause} it is", lines, ranks=(0,))


def test_several_recordings_stand_under_their_names() -> None:
    two = {name: nk.diagnose(nk.open_sample(name)).findings[:1] for name in ("rank_late", "a2a_unpaired")}
    page = nk.show.findings(two).static()
    assert page.count("<h4>1. ") == 2 and "further" not in page
    assert page.index("Recording <code>rank_late") < page.index("Recording <code>a2a_unpaired")
    own = nk.show.findings({"this run": two["rank_late"]}).static()
    assert "<h4>This run</h4>" in own and "Recording" not in own


@pytest.mark.parametrize(
    ("path", "base", "shown"),
    [
        ("/a/case/logs/rank0.log", "/a/case", "logs/rank0.log:3"),
        ("/a/caseB/rank0.log", "/a/case", "/a/caseB/rank0.log:3"),
        (f"/home/{'long/' * 20}rank0.log", "", "rank0.log:3"),
        (f"/home/user/{'x' * 90}.log", "", f"{'x' * 90}.log:3"),
    ],
)
def test_places_begin_at_the_case_and_are_short_in_the_middle(path: str, base: str, shown: str) -> None:
    said = location(path, 3, base)
    read = said.striptags()
    assert read.endswith(shown) and f'title="{path}:3"' in said
    assert len(read) <= max(SHORT + 2, len(shown) + len("/home/…/"))


def test_the_common_folder_needs_absolute_paths() -> None:
    assert common(["/a/b/one", "/a/c/two"]) == "/a" and common(["/a/b/one", "two"]) == common([]) == ""


def test_cards_of_facts_name_the_risks_that_the_findings_name() -> None:
    """Cards of facts and findings say the same of one machine."""
    known = case()
    shown = nk.show.facts(known)
    risks = [f for f in nk.diagnose(known).findings if all(hasattr(piece, "source") for piece in f.evidence)]
    assert (f"{len(risks)} risk" in shown.summary) == bool(risks)
