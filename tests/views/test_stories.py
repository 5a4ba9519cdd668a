"""Which ranks logged, which stopped, where a line stands in its file."""

import gzip
import os
import tracemalloc

import pytest

from ncclkit.views.ranks import ranks_view
from ncclkit.analysis.event_search import group_alike, select_events
from ncclkit.core.case import Case
from ncclkit.core.model import Event
from ncclkit.core.text import quantity, ranges, some
from ncclkit.evidence.line_context import read_context
from ncclkit.evidence.samples import open_sample
from ncclkit.views import evidence
from tests.views.records import event_of, job


def view(events):
    made = Case()
    made.events = events
    return ranks_view(made)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (job(), "Rank 5 stopped logging first, 30.0 s before any other; 7 ranks logged something abnormal"),
        (job(silent=()), "8 ranks logged, none stopped clearly before the others; 8 ranks logged something abnormal"),
        (job(times=False), "Rank 5 reports nothing abnormal while the 7 others do"),
        ([e for e in job() if e.rank != 2], "No line of rank 2 was given; 7 ranks logged"),
        ([], "No event names a rank"),
    ],
)
def test_say(events, words):
    assert view(events).summary == words


def test_a_thousand_ranks_share_rows_the_odd_ones_first():
    page = view(job(1024, silent=(17, 18, 600))).static()
    assert page.count("<tr>") == 3 and len(page) < 20_000
    assert page.index("3 ranks: 17, 18, 600") < page.index("1,021 ranks: 0–16, 19–599, 601–1023")


@pytest.mark.parametrize(
    ("choice", "count"),
    [
        ({}, 23),
        ({"kind": "nccl.init"}, 8),
        ({"rank": "5"}, 2),
        ({"words": "WATCHDOG"}, 7),
        ({"words": "rank5.log"}, 2),
        ({"kind": "c10d.timeout", "rank": "5"}, 0),
        ({"kind": "abnormal"}, 7),
        ({"rank": "0-1, 7"}, 9),
        ({"host": "node-1"}, 23),
        ({"host": "node-2"}, 0),
    ],
)
def test_pick(choice, count):
    assert len(select_events(job(), **choice)) == count


def test_equal_lines_of_many_ranks_share_a_row_and_the_odd_one_comes_first():
    odd = Event("c10d.timeout", "[Rank 5] something else", "logs/rank5.log", 9, rank=5)
    groups = group_alike([*job(64, silent=()), odd])
    assert groups[0] == [odd] and {len(group) for group in groups[1:]} == {64}
    page = evidence.picked_html([*job(64, silent=()), odd])
    assert "193 events picked; equal lines share a row, the rarest first: 4 rows" in page and "0–63" in page


def test_a_thousand_different_stories_stay_a_short_page():
    raised = [
        event_of(
            "python.exception",
            f"{'abcdefghij'[rank // 100]}{'klmnopqrst'[rank // 10 % 10]}Error",
            "x.log",
            1,
            rank=rank,
            type=f"{'abcdefghij'[rank // 100]}{'klmnopqrst'[rank // 10 % 10]}Error",
            frames=[],
            message="",
        )
        for rank in range(1000)
    ]
    page = view(raised).static()
    assert page.count("<tr>") == 41 and "… and 600 more ranks, whose timelines are less rare" in page


def log(tmp_path, count=40):
    path = tmp_path / "rank0.log"
    path.write_text("".join(f"line {number}\n" for number in range(1, count + 1)))
    return path


def test_context_gives_the_lines_around_and_marks_the_hit(tmp_path):
    lines = read_context(Event("x", "line 20\nline 21", str(log(tmp_path)), 20))
    assert [number for number, _, _ in lines] == list(range(15, 27))
    assert [number for number, _, hit in lines if hit] == [20, 21]


def test_context_finds_paths_relative_to_the_case(tmp_path):
    log(tmp_path)
    assert isinstance(read_context(Event("x", "line 2", "rank0.log", 2), tmp_path), list)


@pytest.mark.parametrize(
    ("text", "name", "line", "words"),
    [
        ("line 20", "gone.log", 20, "is not here"),
        ("other words", "rank0.log", 20, "does not hold it"),
        ("line 20", "rank0.log", 900, "does not hold it"),
        ("line 20", "rank0.log", 0, "has no lines"),
        ("line 20", "pipe", 1, "is not here"),
        ("line 20", "rank0.log/inside.log", 20, "unpack that"),
    ],
)
def test_context_says_why_it_has_none(tmp_path, text, name, line, words):
    log(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert words in read_context(Event("x", text, str(tmp_path / name), line))


def test_a_line_far_in_a_file_is_reached_without_holding_the_file(tmp_path):
    path = tmp_path / "rank0.log"
    with path.open("wb") as out:
        for start in range(0, 400_000, 20_000):
            out.write(b"".join(b"line %d\n" % number for number in range(start + 1, start + 20_001)))
        out.write(b"x" * (8 << 20) + b"\nthe end\n")
    tracemalloc.start()
    lines = read_context(Event("x", "line 399999", str(path), 399_999), around=2)
    end = read_context(Event("x", "the end", str(path), 400_002), around=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [number for number, _, _ in lines] == [399_997, 399_998, 399_999, 400_000, 400_001]
    assert [len(text) for _, text, _ in end] == [2000, 7] and peak < 8 << 20


def test_explorer_filters_and_opens(tmp_path):
    case = Case()
    case.events = [*job(), Event("system.error", "line 20", str(log(tmp_path)), 20, rank=1, data={"what": "no_space"})]
    explorer = evidence.EventsView(case)
    explorer.widget()
    explorer.kind.value = "system.error"
    assert "1 event picked" in explorer.rows.value and len(explorer.line.options) == 1
    assert "no_space" in explorer.around.value and "line 25" in explorer.around.value
    explorer.near.value = 1
    assert "line 21" in explorer.around.value and "line 25" not in explorer.around.value
    explorer.rank.value = "0-"
    assert "is not a rank" in explorer.rows.value
    explorer.rank.value = "1"
    explorer.words.value = "nowhere"
    assert "0 events picked" in explorer.rows.value and explorer.around.value == ""


@pytest.mark.parametrize(("numbers", "words"), [([], ""), ([3], "3"), ([0, 1], "0, 1"), ([2, 0, 1, 5, 5], "0–2, 5")])
def test_ranges(numbers, words):
    assert ranges(numbers) == words


def test_some_counts_what_it_leaves_out():
    assert some(f"node-{i}" for i in range(14)).endswith("node-11 and 2 more")


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (2**26, "bytes", "64 MiB"),
        (-1, "bytes", "unlimited"),
        (0.4, "ms", "400 µs"),
        (20000, "files", "20,000 files"),
        (29500, "", 29500),
        (True, "", True),
        ([1.5, 2], "processes", "1.5, 2 processes"),
        ("eth0", "", "eth0"),
        (5.551, "%", "5.55 %"),
    ],
)
def test_quantity(value, unit, words):
    assert quantity(value, unit) == words


def test_what_others_say_about_a_rank_does_not_make_it_speak():
    """As recorded: the silent rank is told to dump, is stopped by torchrun, and its exit is reported."""
    late = [
        event_of("c10d.monitor", time=1.7e9 + 62, rank=5, what="dump"),
        event_of("c10d.recorder", time=1.7e9 + 62, rank=5, what="begun"),
        event_of("c10d.status", "Received a dump signal due to a timeout", time=1.7e9 + 62, rank=5, enqueued=3),
        event_of("stack", rank=5, frames=[]),
        event_of("elastic.stop", "closing signal SIGTERM", time=1.7e9 + 63, rank=5, signal=15),
    ]
    seen = view([*job(), *late])
    assert seen.summary.startswith("Rank 5 stopped logging first, 30.0 s") and "logs/rank5.log:300" in seen.static()


def test_a_rank_that_died_without_a_word_is_named():
    died = event_of("elastic.exit", "exitcode: -9", rank=3, exitcode=-9, signal=9)
    stopped = event_of("elastic.exit", "exitcode: -15", rank=1, exitcode=-15, signal=15)
    quiet = [event for event in job(4) if event.kind != "c10d.timeout"]
    assert view([*quiet, died, stopped]).summary == (
        "4 ranks logged, none stopped clearly before the others; rank 3 ended badly without a line that says why"
    )


def test_bundled_late_rank_is_the_one_that_fell_silent():
    assert ranks_view(open_sample("rank_late")).summary.startswith("Rank 2 stopped logging first")


def test_context_reads_gzip_and_survives_a_torn_one(tmp_path):
    packed = tmp_path / "rank0.log.gz"
    packed.write_bytes(gzip.compress(log(tmp_path).read_bytes()))
    event = Event("x", "line 20", str(packed), 20)
    assert [number for number, _, hit in read_context(event) if hit] == [20]
    packed.write_bytes(packed.read_bytes()[:60])
    assert isinstance(read_context(event), str)


def test_several_late_ranks_that_keep_one_waiting_are_the_ones_that_fell_silent():
    assert view(job(4, silent=(1, 2, 3))).summary.startswith("Only rank 0 logged on, 30.0 s longer than ranks 1–3")


def test_of_two_ranks_the_one_without_an_error_is_named():
    quiet = [event for event in job(2, silent=()) if event.kind != "c10d.timeout" or event.rank != 1]
    quiet.append(event_of("worker.phase", "skipped 90 of 240 batches", time=max(e.time or 0 for e in quiet), rank=1))
    assert view(quiet).summary.startswith("Rank 1 reports nothing abnormal while the other one does")
