"""The pair matrix: how fast every pair of ranks is alone.

Nobody disturbs it then.  It shows also who is at fault where one is slow.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import plotly.graph_objects as go

from ncclkit.analysis.stages import GroupResult, Pair, StagedTest, staged_test
from ncclkit.core.case import Case
from ncclkit.core.run_choice import job_runs
from ncclkit.core.text import format_number, format_time, plural
from ncclkit.views import _draw
from ncclkit.views._base import Drawn, View, shows_runs
from ncclkit.views._html import Markup, badge, el, fit, fold, join, table
from ncclkit.views._missing import NoData

HOW = (
    "ncclkit probe --stages, or the box “Staged test” of the live test's form, measures every pair"
)


@shows_runs(job_runs)
def pairs_view(case: Case) -> View:
    """Bandwidth and latency of every pair of ranks of the last staged test."""
    found = staged_test(case)
    if not (found.pairs or found.silent or found.groups or found.alone):
        why = f"{found.summary[:1].lower()}{found.summary[1:]}"
        return NoData("pairs of ranks", why, f"{found.summary}: {HOW}")
    paths = list({pair.path for pair in found.pairs})
    paths.sort(key=lambda path: -len(_pairs_over(found, path)))
    rows = [_path_row(found, path) for path in paths]
    body = []
    if found.pairs and found.ranks > 2:
        body.append(el("p", _how_to_read(found), cls="nk-dim"))
    body += [
        _stage_lights(found),
        fit(table(("Ranks started again (bisection)", "Outcome"), _rerun_rows(found))),
        fit(table(("Joined by", "Pairs", "Median", "Lowest", "Latency", "Bad"), rows)),
    ]
    if found.bad:
        body.append(fit(table(("Bad pair", "Bandwidth", "Usual", "Why"), _bad_rows(found))))
    alone = table(("Rank", "Copies in its own memory"), _rank_rows(found))
    body.append(fold("Each rank alone", alone))
    figure = None
    # of a single pair the table above says all, and a matrix is two equal squares
    if found.ranks > 2 and (found.pairs or found.silent):
        figure = _pair_matrix(found)
    return Drawn(found.summary, figure, join(*body))


def _how_to_read(found: StagedTest) -> str:
    """How the matrix is read."""
    fastest = format_number(max(pair.bandwidth for pair in found.pairs))
    scale = (
        f"Each cell is the bandwidth of two ranks, in GB/s each way: from 0 (dark) to {fastest}"
        " (bright)."
    )
    return f"{scale} The diagonal is empty, as no rank sends to itself."


def _stage_lights(found: StagedTest) -> Markup:
    """One light for each stage, the first one first: well, bad, or not reached."""
    measured = [(pair.a, pair.b) for pair in found.pairs]
    inner = set()
    outer = set()
    for pair in (*measured, *found.silent):
        if found.near(*pair):
            inner.add(pair)
        else:
            outer.add(pair)
    bad = set(found.bad)
    at_fault = {*found.slow_ranks, *found.corrupt}
    lights = [_stage_light("each rank alone", len(found.alone), len(at_fault))]
    # with one rank a node there is no such stage
    # a stage that this job cannot have is not one that it failed to reach
    shared = any(len(node) > 1 for node in found.nodes.values())
    if inner or shared:
        lights.append(_stage_light("pairs in a node", len(inner), len(inner & bad)))
    nodes = _groups_of(found, "node")
    if nodes:
        lights.append(_groups_light("each node", nodes))
    if outer:
        lights.append(_stage_light("pairs of nodes", len(outer), len(outer & bad)))
    growing = _groups_of(found, "nodes")
    if growing:
        lights.append(_groups_light("more and more nodes", growing))
    every = _groups_of(found, "all")
    # one rank alone has no such stage
    if every or found.ranks > 1:
        lights.append(_groups_light("all ranks", every))
    return el("p", *lights, cls="nk-lights")


def _groups_of(found: StagedTest, stage: str) -> list[GroupResult]:
    return [group for group in found.groups if group.stage == stage]


def _groups_light(name: str, groups: Sequence[GroupResult]) -> Markup:
    return _stage_light(name, len(groups), sum(group.bad for group in groups))


def _stage_light(name: str, count: int, bad: int) -> Markup:
    if bad:
        return badge("✕", f"{name}: {bad} bad", "stage-error")
    if count:
        return badge("✓", name, "stage-done")
    return badge("·", f"{name}: not reached", "stage-waiting")


def _rerun_rows(found: StagedTest) -> list[tuple[object, ...]]:
    """What was asked in jobs of their own, in order."""
    rows: list[tuple[object, ...]] = []
    for group in found.tried:
        light = badge("✓", "well", "state-done")
        if group.bad:
            light = badge("✕", "bad", "likely")
        rows.append((found.who(group.ranks), join(light, " ", _outcome_words(group))))
    return rows


def _outcome_words(group: GroupResult) -> str:
    if group.problem:
        return group.problem
    words = "works alone"
    if group.busbw is not None:
        words = f"{format_number(group.busbw)} GB/s busbw"
    if group.wrong:
        words += f", {plural(group.wrong, 'value')} wrong"
    return words


def _pairs_over(found: StagedTest, path: str) -> list[Pair]:
    return [pair for pair in found.pairs if pair.path == path]


def _path_row(found: StagedTest, path: str) -> tuple[object, ...]:
    pairs = _pairs_over(found, path)
    speeds = [pair.bandwidth for pair in pairs]
    latency = statistics.median(pair.latency_us for pair in pairs)
    count = sum((pair.a, pair.b) in found.bad for pair in pairs)
    bad: object = "none"
    if count:
        bad = badge("✕", f"{count}", "likely")
    return (
        path,
        f"{len(pairs):,}",
        f"{format_number(statistics.median(speeds))} GB/s",
        f"{format_number(min(speeds))} GB/s",
        format_time(latency),
        bad,
    )


def _bad_rows(found: StagedTest) -> list[tuple[object, ...]]:
    known = {(pair.a, pair.b): pair for pair in found.pairs}
    rows: list[tuple[object, ...]] = []
    for a, b in found.bad:
        pair = known.get((a, b))
        if pair is None:
            rows.append((f"{a} – {b}", "–", "–", "its round began, and no result came"))
            continue
        usual = "–"
        if pair.usual:
            usual = f"{format_number(pair.usual)} GB/s"
        if pair.wrong:
            why = f"{plural(pair.wrong, 'byte')} arrived wrong"
        else:
            why = f"others over {pair.path} are faster"
        rows.append((f"{a} – {b}", f"{format_number(pair.bandwidth)} GB/s", usual, why))
    return rows


def _rank_rows(found: StagedTest) -> list[tuple[object, ...]]:
    slow = badge("✕", "slow", "likely")
    wrong = badge("✕", "wrong bytes", "likely")
    odd = dict.fromkeys(found.slow_ranks, slow) | dict.fromkeys(found.corrupt, wrong)
    rows: list[tuple[object, ...]] = []
    for rank, speed in sorted(found.alone.items()):
        words = f"{format_number(speed)} GB/s "
        rows.append((f"{rank}", join(words, odd.get(rank, ""))))
    return rows


def _pair_matrix(found: StagedTest) -> go.Figure:
    """Rank × rank in GB/s each way; bad pairs are framed, whatever their colour."""
    count = found.ranks
    cells: list[list[float | None]] = [[None] * count for _ in range(count)]
    for pair in found.pairs:
        # one measurement stands for both directions
        cells[pair.a][pair.b] = cells[pair.b][pair.a] = pair.bandwidth
    odd = (
        ("slow or wrong", "", set(found.bad) - set(found.silent)),
        ("never answered", "x", set(found.silent)),
    )
    marks = []
    for name, symbol, pairs in odd:
        spots = []
        # the matrix has a cell for each direction
        for one, other in sorted(pairs):
            spots += [(one, other), (other, one)]
        if spots:
            marks.append(_draw.Mark(name, spots, symbol))
    names = [str(rank) for rank in range(count)]
    return _draw.heatmap(cells, names, ("rank", "rank"), "GB/s each way", marks)
