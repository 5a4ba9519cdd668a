"""Figures: the conclusion as title, units, the expected line, and nothing that a log line could inject."""

from dataclasses import replace
from pathlib import Path

import pytest

from ncclkit.core.bandwidth import Expectation
from ncclkit.core.runs import Plan, Run
from ncclkit.core.text import format_bytes, format_number, format_time
from ncclkit.views import plots
from ncclkit.views.runs import curve_view, measurements_view
from tests.views.records import CURVE, HOSTILE, measurement
from tests.views.test_faces import Page


def title(figure):
    return figure.layout.title.text.replace("<br>", " ")


@pytest.mark.parametrize(
    ("value", "words"), [(0, "0 B"), (512, "512 B"), (4096, "4 KiB"), (3 * 2**29, "1.50 GiB"), (2**50, "1,024 TiB")]
)
def test_size(value, words):
    assert format_bytes(value) == words


@pytest.mark.parametrize(("value", "words"), [(62, "62.0 µs"), (1200, "1.20 ms"), (3.4e6, "3.40 s"), (0.5, "0.500 µs")])
def test_duration(value, words):
    assert format_time(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0, "0.00"), (0.012345, "0.0123"), (1.9, "1.90"), (12.34, "12.3"), (1234.5, "1,234")]
)
def test_number(value, words):
    assert format_number(value) == words


def test_title_is_the_conclusion_and_the_limit_is_drawn_and_named():
    peak = max(m.busbw for m in CURVE)
    figure = plots.bandwidth(CURVE, 2 * peak, "loopback")
    say = f"all_reduce reaches {peak:.2f} GB/s busbw, 50 % of the {2 * peak:.2f} GB/s that loopback allows"
    assert title(figure) == say == figure.layout.meta["summary"]
    (line,) = figure.layout.shapes
    assert line.y0 == line.y1 == 2 * peak and f"{2 * peak:.2f} GB/s" in line.label.text
    axis = figure.layout.yaxis
    assert axis.type in (None, "linear") and axis.range[0] == 0 and 2 * peak < axis.range[1] < 3 * peak
    assert "GB/s" in axis.title.text and figure.layout.xaxis.type == "log"


def test_the_latency_of_small_messages_has_a_panel_of_its_own():
    figure = plots.bandwidth(CURVE, 3.0)
    below = [trace for trace in figure.data if trace.yaxis == "y2"]
    assert [max(trace.x) for trace in below] == [plots.SMALL] * 2 and below[0].line.dash != below[1].line.dash
    assert list(below[0].y) == [m.time_us for m in CURVE if m.bytes <= plots.SMALL]
    axes = figure.layout
    assert axes.xaxis2.type == axes.yaxis2.type == "log" and "µs" in axes.yaxis2.title.text
    assert axes.yaxis2.domain[1] < axes.yaxis.domain[0] and 2 <= len(axes.yaxis2.tickvals) <= 6
    (heading,) = axes.annotations
    assert "all_reduce of 16 B takes 60.0 µs" in heading.text.replace("<br>", " ")
    assert not plots.bandwidth([m for m in CURVE if m.bytes > plots.SMALL]).layout.annotations


def test_x_ticks_are_few_binary_and_reach_the_largest_size():
    axis = plots.bandwidth(CURVE).layout.xaxis
    assert axis.type == "log" and len(axis.tickvals) <= 5 and axis.ticktext[-1] == "16 MiB"


def test_one_rank_shows_algbw_without_a_limit():
    figure = plots.bandwidth([replace(m, busbw=None, ranks=1) for m in CURVE], 2.0, "one rank exchanges nothing")
    assert figure.layout.yaxis.title.text.startswith("algbw") and not figure.layout.shapes
    assert "on one rank, where nothing travels" in title(figure)


def test_wrong_values_take_the_title_and_are_marked():
    figure = plots.bandwidth([*CURVE, measurement(2**26, wrong=12)])
    assert "12 wrong elements, most at 64 MiB" in title(figure)
    assert figure.data[-1].name == "wrong result" and list(figure.data[-1].x) == [2**26]


def test_runs_are_lines_of_their_own():
    figure = plots.bandwidth([*CURVE, *(replace(m, run="2-tuned", busbw=2 * m.busbw) for m in CURVE)])
    assert {trace.line.color for trace in figure.data[:2]} == {trace.line.color for trace in figure.data[2:]}
    assert len({(trace.line.color, trace.marker.symbol) for trace in figure.data}) == 2
    assert "in run 2-tuned" in title(figure) and figure.layout.showlegend


def test_latency_has_median_and_p99_in_microseconds():
    figure = plots.latency(CURVE)
    assert [trace.name.split(", ")[-1] for trace in figure.data] == ["median", "p99"]
    assert "µs" in figure.layout.yaxis.title.text and "16 B takes 60.0 µs" in title(figure)


def test_of_several_collectives_on_one_rank_there_is_one_line_each_and_the_legend_has_room():
    rows = [replace(m, op=op, busbw=None, ranks=1, time_us=t) for m in CURVE for op, t in (("a", 9.0), ("b", 11.0))]
    figure, alone = plots.latency(rows), plots.latency(rows[::2])
    assert [trace.name for trace in figure.data] == ["a", "b"] and len(alone.data) == 2
    assert title(figure) == "A call of 16 B takes 9.00 µs (a) to 11.0 µs (b)"
    assert alone.layout.showlegend and alone.layout.margin.t - 20 * len(alone.layout.title.text.split("<br>")) > 40
    page = Page(measurements_view(rows).static()).words
    assert "2 collectives work on one rank" in page and "Collective" in page and "busbw GB/s" not in page


def test_a_column_that_says_nothing_new_is_left_out_and_two_measurements_are_called_two():
    pair = [replace(m, ranks=2, busbw=m.algbw, expected=2.0, singles=200) for m in CURVE]
    words = Page(measurements_view(pair).static()).words
    assert "Median, batches" in words and "p99, single calls" in words and "either can be the longer one" in words
    assert "algbw GB/s" not in words and "At most GB/s" not in words and "Ratio" in words
    words = Page(measurements_view([*CURVE, replace(CURVE[0], expected=2.0)]).static()).words
    assert "algbw GB/s" in words and "At most GB/s" in words and "either can be" not in words


@pytest.mark.parametrize("draw", [plots.bandwidth, plots.latency])
def test_nothing_measured_is_a_figure_too(draw):
    assert title(draw([])) == "Nothing measured yet"


def test_colours_stand_in_the_template_where_the_report_replaces_them():
    layout = plots.bandwidth(CURVE, 3.0).layout
    assert layout.font.color is None and layout.template.layout.font.color
    assert layout.template.layout.paper_bgcolor == "rgba(0,0,0,0)"


def test_text_from_outside_is_escaped():
    figure = plots.bandwidth([replace(m, op=HOSTILE, run=HOSTILE) for m in CURVE], 1.0, HOSTILE)
    for text in (figure.layout.title.text, figure.layout.annotations[0].text, figure.data[0].name):
        assert "<script" not in text and "<img" not in text


def test_a_number_stands_beside_the_bound_other_systems_and_what_could_explain_a_low_one(tmp_path: Path) -> None:
    bound = Expectation(370.8, "nvlink", "18 links.", gpu="NVIDIA H200")
    plan = Plan("all_reduce", (), 4, "nccl", "python", 60.0)
    for busbw, low in ((340.0, False), (90.0, True)):
        rows = (measurement(256 << 20, backend="nccl", busbw=busbw, expected=370.8),)
        run = Run(plan, tmp_path, "done", 1.0, rows, {rows[0].op: bound})
        words = Page(measurements_view(run).static()).words
        assert "4 x H200: 354 GB/s at 1 GiB (ncclkit, 2026-11)" in words and f"{100 * busbw / 370.8:.0f} %" in words
        assert ("slow_transport" in words) == low and ("faster without the switch?" in words) == low
        view = curve_view(run)
        assert "Expected: 18 links." in " ".join(Page(view.static()).words.split())
        assert "Measured elsewhere: 4 x H200: 354 GB/s" in view.static() and view.summary not in view.static()
