"""What the headline of a picture says of who is at fault never contradicts the verdict, on every recording there is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ncclkit as nk
from ncclkit.analysis.timeline import timelines
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Finding, fields_of, found
from ncclkit.evidence.samples import HERE
from ncclkit.views import _draw
from ncclkit.views.attach import stacks_view
from tests.causes import specimens
from tests.recordings import RECORDINGS, recorded
from tests.views.records import event_of, job

NUMBERS = r"\d+(?:[-–]\d+)?(?:(?:, | and )\d+(?:[-–]\d+)?)*"
NAMED = re.compile(rf"\b[Rr]anks? ({NUMBERS})|\branks? \(({NUMBERS})")
"""``rank 3``, ``Ranks 0–2, 5``, ``2 ranks (0, 1)``."""
POINTED = re.compile(
    rf"\b[Rr]anks? ({NUMBERS}) (?:stopped logging first|logged nothing|reports? nothing abnormal|came furthest"
    r"|came to collective \S+ of [^;,]*, the furthest"
    r"|entered no|never entered|did not (?:come|join|launch)|left no|says? nothing|fell silent|never spoke)"
)
"""The ranks that a headline says to be behind, missing, first or otherwise the odd ones."""


def numbers(text: str) -> set[int]:
    """``0–2, 5`` → 0, 1, 2, 5."""
    pairs = re.findall(r"(\d+)(?:[-–](\d+))?", text)
    return {rank for low, high in pairs for rank in range(int(low), int(high or low) + 1)}


def ranks(pattern: re.Pattern[str], headline: str) -> set[int]:
    return {rank for match in pattern.finditer(headline) for text in match.groups() if text for rank in numbers(text)}


def contradicts(headline: str, first: Finding) -> bool:
    """Whether a headline points at others than the culprits of the first finding without having named these first."""
    culprits = set(first.culprits.get("ranks", ()))
    if first.strength not in ("proven", "likely") or not culprits:
        return False
    if first.cause == "slow_rank" and headline.startswith(("No rank is behind", "Nobody is behind")):
        return True
    everyone, pointed = ranks(NAMED, headline), ranks(POINTED, headline)
    begins = re.match(rf"Ranks? ({NUMBERS}) (?:is|are) the culprit", headline)
    told = bool(begins and numbers(begins[1]) & culprits)
    return bool(everyone and not everyone & culprits) or bool(pointed and not pointed & culprits and not told)


def headlines(case: Case, judged: Diagnosis) -> dict[str, str]:
    """View → its headline, of a case that has been judged."""
    return {
        "job": nk.show.job(case).summary,
        "ranks": nk.show.ranks(case).summary,
        "progress": nk.show.progress(case).summary,
        "disagreement": nk.show.disagreement(case).summary,
        "stacks": stacks_view(case.events, found=judged.findings).summary,
    }


@pytest.mark.slow
@pytest.mark.parametrize("folder", [*RECORDINGS, *specimens.FOLDERS], ids=specimens.name)
def test_no_headline_contradicts_the_verdict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of specimens, which are small, only the headlines are made; of recordings the pictures, too."""
    for name in ("log_timeline", "progress") if folder in specimens.FOLDERS else ():
        monkeypatch.setattr(_draw, name, lambda *_: None)
    case = specimens.judged(folder)[2] if folder in specimens.FOLDERS else recorded(folder)
    judged = specimens.judged(folder)[0] if folder in specimens.FOLDERS else diagnose(case)
    said_by = headlines(case, judged)
    first = next((finding for finding in case.findings if finding.verdict == "found"), None)
    assert first is None or not {view: text for view, text in said_by.items() if contradicts(text, first)}, first.say
    assert not counts_apart(case)


COMPLETED = re.compile(r"^(\S+) [^\n]*: last \S+, completed (\d+),", re.MULTILINE)
"""What the text of a Flight Recorder dump says of a group."""


def counts_apart(case: Case) -> list[tuple[int, str, int, int | None]]:
    """(rank, group, completed by its dump, completed by the table of progress) where one page holds both and they
    differ; a watchdog that spoke after the dump may know of more."""
    reached = {(one.rank, at.group): at for one in timelines(case) for at in one.progress}
    later = {event.rank for event in case.of("c10d.timeout")}
    apart = []
    for dump in case.of("flight.dump"):
        for name, count in COMPLETED.findall(dump.text) if dump.rank is not None else ():
            at = reached[dump.rank, name]
            if at.completed != int(count) and not (dump.rank in later and (at.completed or 0) > int(count)):
                apart.append((dump.rank, name, int(count), at.completed))
    rows = [at for at in reached.values() if None not in (at.enqueued, at.completed) and at.completed > at.enqueued]
    return apart + [(-1, at.group, at.enqueued, at.completed) for at in rows]


def finding(cause: str = "fd_limit", rank: int = 3) -> Finding:
    return found(cause, "proven", "It is.", (job()[0],), ranks=(rank,))


@pytest.mark.parametrize(
    "headline",
    [
        "Rank 2 stopped logging first, 1.2 s before any other; 3 ranks logged something abnormal",
        "Ranks 0, 2 fell silent first, 45.4 s before any other; 4 ranks reported something abnormal",
        "Ranks 0-2 wait in all_reduce 880; rank 4 left no line",
        "Rank 1 is in __getattr__ at run.py:124; 2 ranks (0, 2) wait in all_to_all_single at exchange.py:165",
        "Ranks 0, 1 and 3 wait in all_reduce 12 of default_pg; rank 2 never entered it",
    ],
)
def test_a_contradiction_is_seen(headline: str) -> None:
    assert contradicts(headline, finding())
    assert not contradicts(f"Rank 3 is the culprit (fd_limit, proven). {headline}", finding())


def test_nobody_behind_contradicts_a_late_rank() -> None:
    assert contradicts("No rank is behind: every rank came to collective 12", finding("slow_rank"))


def case_of(*events: Event) -> Case:
    made = Case()
    made.events = list(events)
    return made


def timed_out(rank: int) -> Event:
    """The watchdog's line of one rank that waits in collective 12."""
    told = {"seq": 12, "op": "ALLREDUCE", "numel_in": 4, "numel_out": 4, "timeout_ms": 6e4, "ran_ms": 6e4}
    data = {"pg": "0", "desc": "default_pg", "pg_rank": None} | told
    return event_of("c10d.timeout", f"[Rank {rank}] Watchdog caught collective operation timeout", rank=rank, **data)


def test_who_stopped_logging_first_stands_behind_a_proven_culprit() -> None:
    """Rank 0 prints nothing after its first step; rank 1 raised, which ended all others."""
    error = {"type": "ValueError", "message": "bad sample", "frames": [], "victim": False}
    told = [event_of("progress", rank=rank, time=0.0, step=1) for rank in range(4)]
    told.append(event_of("python.exception", "ValueError: bad sample", rank=1, time=50.0, **error))
    told += [event_of("gloo.closed", rank=rank, time=51.0) for rank in (2, 3)]
    case = case_of(*told)
    assert diagnose(case).findings[0].culprits["ranks"] == (1,)
    headline = nk.show.ranks(case).summary
    told = "Rank 1 is the culprit (rank_exception, proven), whoever fell silent first: rank 0, 50.0 s before any other"
    assert headline.startswith(told)


@pytest.mark.parametrize(
    ("ranks", "strength", "headline"),
    [
        ((1,), "proven", "Rank 1 is the culprit (fd_limit, proven), whoever fell silent first: ranks 0, 2, 3, 9.0 s"),
        ((), "likely", "The verdict names no rank (fd_limit, likely), whoever fell silent first: ranks 0, 2, 3, 9.0 s"),
        ((2,), "proven", "Ranks 0, 2, 3 stopped logging first, 9.0 s before any other"),
        ((1,), "possible", "Only rank 1 logged on, 9.0 s longer than ranks 0, 2, 3"),
    ],
)
def test_who_fell_silent_first_is_accused_by_a_verdict_alone(
    ranks: tuple[int, ...], strength: Any, headline: str
) -> None:
    """Of a merely possible cause the picture says what it shows."""
    told = [event_of("progress", rank=rank, time=0.0, step=1) for rank in range(4)]
    told += [event_of("progress", rank=rank, time=1.0 if rank != 1 else 10.0, step=2) for rank in range(4)]
    case = case_of(*told)
    case.findings = [found("fd_limit", strength, "It is.", (told[0],), ranks=ranks)]
    said = nk.show.ranks(case).summary
    assert said.startswith(headline)
    case.findings = []
    assert nk.show.ranks(case).summary.startswith("Only rank 1 logged on, 9.0 s longer than ranks 0, 2, 3")


def test_dumps_without_entries_show_no_agreement() -> None:
    """Both ranks wrote a Flight Recorder dump before their first call: nothing of it can be compared."""
    for entries, agree in ((0, False), (3, True)):
        dumps = [
            event_of("flight.dump", rank=rank, version="2.10", entries=entries, newest=None, groups={}) for rank in (0, 1)
        ]
        assert nk.show.disagreement(case_of(*dumps)).summary.startswith("The ranks agree") == agree


def test_what_is_abnormal_and_carries_no_time_is_said_to_have_no_mark() -> None:
    told = [event_of("progress", rank=rank, time=float(rank), step=1) for rank in range(2)]
    wrong = {"type": "ValueError", "message": "bad sample", "frames": [], "victim": False}
    for time, said in ((None, True), (2.0, False)):
        case = case_of(*told, event_of("python.exception", "ValueError: bad sample", rank=1, time=time, **wrong))
        assert ("What rank 1 logged abnormal carries no time" in nk.show.ranks(case).html) == said


@pytest.mark.parametrize(
    ("times", "headline"),
    [
        ((50.0, 50.1), "2 ranks logged, none stopped clearly before the others; nothing abnormal was logged"),
        ((None, None), "2 ranks logged; nothing abnormal was logged"),
        ((20.0, 50.0), "Rank 0 stopped logging first, 30.0 s before any other; nothing abnormal was logged"),
    ],
)
def test_that_nobody_stopped_first_is_said_of_clocks_only(times: tuple[float | None, ...], headline: str) -> None:
    start = [
        event_of("progress", rank=rank, time=None if time is None else 0.0, step=1) for rank, time in enumerate(times)
    ]
    end = [event_of("progress", rank=rank, time=time, step=2) for rank, time in enumerate(times)]
    assert nk.show.ranks(case_of(*start, *end)).summary == headline


def test_counts_of_sends_and_receives_are_no_progress() -> None:
    """torch's status line counts them in the same place as collectives, from numbers of their own."""
    status = {"seq": 8, "enqueued": 8, "completed": 60, "pg": "0", "desc": "default_pg", "pg_rank": 0}
    other = {"seq": 59, "enqueued": 61, "completed": 58, "pg": "0", "desc": "default_pg", "pg_rank": 1}
    recv = {
        "seq": 59,
        "op": "RECV",
        "numel_in": 4,
        "numel_out": 4,
        "timeout_ms": 6e4,
        "ran_ms": 6e4,
        "pg": "",
        "desc": "",
    }
    zero = timed_out(0)
    zero = replace(zero, data={**fields_of(zero), "seq": 8})
    case = case_of(
        zero, event_of("c10d.status", rank=0, **status), event_of("c10d.timeout", rank=1, **recv),
        event_of("c10d.status", rank=1, **other),
    )  # fmt: skip
    (zero_at,), one_at = (one.progress for one in timelines(case))
    assert (zero_at.enqueued, zero_at.completed, one_at) == (8, 7, ())
    assert [one.end for one in timelines(case)] == ["waits in all_reduce 8 of default_pg", "waits in recv 59"]
    assert "61" not in nk.show.progress(case).summary


def test_one_log_is_said_to_be_one() -> None:
    plan = event_of("worker.phase", phase="plan", ranks=4)
    alone = case_of(plan, timed_out(0))
    assert nk.show.ranks(alone).summary == "Only rank 0's log was given, of 4 ranks"
    assert nk.show.progress(alone).summary == "Only rank 0's log was given: it came to collective 12 of default_pg"
    other = case_of(plan, timed_out(0), timed_out(2))
    assert nk.show.progress(other).summary == (
        "Ranks 0, 2 came to collective 12 of default_pg; nothing says how far ranks 1, 3 came"
    )


def test_two_that_differ_are_no_majority() -> None:
    page = nk.show.disagreement(case_of(timed_out(0), event_of("c10d.timeout", rank=1, **odd_call()))).static()
    assert "majority" not in page and "Operations differ" in page


def odd_call() -> dict[str, object]:
    return {**fields_of(timed_out(1)), "op": "BROADCAST"}


def test_a_new_record_is_seen_by_the_next_picture() -> None:
    """The analysis is kept for each case, and computed again when its records change."""
    case = case_of(*job())
    before = nk.show.ranks(case).summary
    case.events = [event for event in case.events if event.rank != 2]
    after = nk.show.ranks(case).summary
    case.events[:] = [event for event in case.events if event.rank != 3]
    assert len({before, after, nk.show.ranks(case).summary}) == 3


def test_progress_over_time_shows_who_stopped_at_which_collective_and_who_waits() -> None:
    """Of the bundled run: its Flight Recorder dumps date the calls."""
    view = nk.show.progress(recorded(HERE / "eight_ranks_late"))
    drawn = view.figure
    lines = {trace.name: trace for trace in drawn.data if trace.name.startswith("rank ")}
    ends = {trace.text[-1] for trace in drawn.data}
    assert set(lines) == {f"rank {rank}" for rank in range(8)}
    assert ends == {"", "rank 5 stopped at 11", "7 ranks wait in all_reduce 12"}
    assert view.summary == "Rank 5 stopped at collective 11 of default_pg; 7 ranks wait in collective 12"
    assert list(lines["rank 5"].y) == [*range(1, 12)] and lines["rank 0"].y[-1] == 12
    assert lines["rank 5"].x[-1] < 1 and lines["rank 0"].x[-1] > 19  # gloo's timeout of 20 s
    assert "seconds after 2026-11-21" in drawn.layout.xaxis.title.text and drawn.layout.yaxis.title.text == "collective"


def test_the_legend_of_progress_holds_every_rank_and_the_mark_at_the_end_of_its_line() -> None:
    drawn = nk.show.progress(recorded(HERE / "eight_ranks_late")).figure
    legend = drawn.layout.annotations[0].text
    known = re.findall(r"<span style='color:(#\w+)'>(.)</span> (\d)", legend)
    assert sorted(int(rank) for *_, rank in known) == [*range(8)] and "…" not in legend
    colours = {trace.name: trace.line.color for trace in drawn.data if trace.name.startswith("rank ")}
    assert {f"rank {rank}": colour for colour, _, rank in known} == colours
    (end,) = [trace for trace in drawn.data if trace.text[-1] == "rank 5 stopped at 11"]
    assert (end.marker.symbol, end.marker.color, "✖", "5") == ("x", *known[0])


def test_a_column_of_which_nothing_is_known_is_left_out() -> None:
    page = nk.show.progress(recorded(HERE / "eight_ranks_late")).static()
    assert "Enqueued" in page and "Completed" in page and "Started" not in page  # gloo says of no call when it began


def test_each_group_with_ranks_behind_has_a_panel_and_a_rank_that_entered_none_stands_at_its_start() -> None:
    drawn = nk.show.progress(recorded(HERE / "groups_swapped")).figure
    titles = [note.text for note in drawn.layout.annotations]
    assert [title.partition("</b>")[0] for title in titles] == ["<b>experts", "<b>data"]
    ends = {(trace.yaxis, trace.text[-1]) for trace in drawn.data if trace.text[-1]}
    assert ends == {
        ("y", "rank 2 entered none"),
        ("y", "ranks 0, 1, 3 wait in all_reduce 1"),
        ("y2", "ranks 0, 1, 3 entered none"),
        ("y2", "rank 2 waits in all_reduce 1"),
    }


def test_of_a_thousand_ranks_the_odd_ones_are_drawn() -> None:
    def dump(rank: int) -> Event:
        last = 4 if rank == 517 else 5
        group = {"desc": "default_pg", "ranks": [], "last_seq": last, "last_completed": 4, "in_flight": []}
        times = [[seq, 1.7e9 + seq] for seq in range(1, last + 1)]
        return event_of("flight.dump", rank=rank, version="2.10", entries=5, groups={"0": group | {"times": times}})

    drawn = nk.show.progress(case_of(*map(dump, range(1024)))).figure
    names = [trace.name for trace in drawn.data if trace.name.startswith("rank ")]
    assert len(names) == 12 and "rank 517" in names
    assert "1,023 ranks came to 5" in {trace.text[-1] for trace in drawn.data}


def test_without_times_there_is_no_picture_but_the_table() -> None:
    view = nk.show.progress(case_of(timed_out(0), timed_out(2)))
    assert view.figure is None and "All came to" in view.static()


def test_a_rank_keeps_its_colour_over_a_page() -> None:
    case = recorded(HERE / "eight_ranks_late")
    steps, rows = nk.show.progress(case).figure, nk.show.ranks(case).figure
    colours = {
        trace.name: (trace.line.color, trace.line.dash) for trace in steps.data if trace.name.startswith("rank ")
    }
    assert len(set(colours.values())) == 8
    for name, (colour, _) in colours.items():
        (label,) = [text for text in rows.layout.yaxis.ticktext if text.endswith(f" {name}")]
        assert f"color:{colour}" in label
        assert _draw.of_name(name, 3)["color"] == colour  # of telemetry, whatever its place there
