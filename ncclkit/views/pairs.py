"""The pair matrix: how fast every pair of ranks is when nobody disturbs it, and who is at fault
where one is slow.
"""

from __future__ import annotations

import statistics

import plotly.graph_objects as go

from ncclkit.analysis.stages import GroupResult, Pair, StagedTest, staged_test
from ncclkit.core.case import Case
from ncclkit.core.text import format_number, format_time, plural
from ncclkit.views import _draw
from ncclkit.views._base import Drawn, View
from ncclkit.views._html import Markup, badge, el, fit, fold, join, table

HOW = (
    "ncclkit probe --stages, or the box “Staged test” of the live test's form, measures every pair"
)


def pairs_view(case: Case) -> View:
    """Bandwidth and latency of every pair of ranks of the last staged test."""
    found = staged_test(case)
    if not (found.pairs or found.silent or found.groups or found.alone):
        return View(f"{found.summary}: {HOW}", Markup(""))
    paths = sorted({pair.path for pair in found.pairs}, key=lambda path: -len(_of(found, path)))
    rows = [_kind(found, path) for path in paths]
    body = join(
        el("p", _scale(found), cls="nk-dim") if found.pairs else "",
        _lights(found),
        fit(table(("Ranks started again (bisection)", "Outcome"), _tried(found))),
        fit(table(("Joined by", "Pairs", "Median", "Lowest", "Latency", "Bad"), rows)),
        (
            fit(table(("Bad pair", "Bandwidth", "Usual", "Why"), _bad(found)))
            if found.bad
            else Markup("")
        ),
        fold("Each rank alone", table(("Rank", "Copies in its own memory"), _rank_rows(found))),
    )
    return Drawn(found.summary, _matrix(found) if found.pairs or found.silent else None, body)


def _scale(found: StagedTest) -> str:
    """How the matrix is read."""
    fastest = format_number(max(pair.bandwidth for pair in found.pairs))
    scale = (
        f"Each cell is the bandwidth of two ranks, in GB/s each way: from 0 (dark) to {fastest}"
        " (bright)."
    )
    return f"{scale} The diagonal is empty, as no rank sends to itself."


def _lights(found: StagedTest) -> Markup:
    """One light for each stage, the first one first: well, bad, or not reached."""
    near = {pair: found.near(*pair) for pair in (*((p.a, p.b) for p in found.pairs), *found.silent)}
    lights = [("each rank alone", len(found.alone), len({*found.slow_ranks, *found.corrupt}))]
    for name, inner in (("pairs in a node", True), ("pairs of nodes", False)):
        mine = {pair for pair, same in near.items() if same == inner}
        if mine or (inner and any(len(node) > 1 for node in found.nodes.values())):
            lights.append((name, len(mine), len(mine & {*found.bad})))
        groups = [group for group in found.groups if group.stage == "node"]
        if inner and groups:
            lights.append(("each node", len(groups), sum(group.bad for group in groups)))
    for stage, name in (("nodes", "more and more nodes"), ("all", "all ranks")):
        groups = [group for group in found.groups if group.stage == stage]
        if groups or (stage == "all" and found.ranks > 1):
            lights.append((name, len(groups), sum(group.bad for group in groups)))
    return el("p", *(_light(*stage) for stage in lights), cls="nk-lights")


def _light(name: str, count: int, bad: int) -> Markup:
    if bad:
        return badge("✕", f"{name}: {bad} bad", "stage-error")
    if count:
        return badge("✓", name, "stage-done")
    return badge("·", f"{name}: not reached", "stage-waiting")


def _tried(found: StagedTest) -> list[tuple[object, ...]]:
    """What was asked in jobs of their own, in order."""
    return [
        (
            found.who(group.ranks),
            (
                join(badge("✕", "bad", "likely"), " ", _outcome(group))
                if group.bad
                else join(badge("✓", "well", "state-done"), " ", _outcome(group))
            ),
        )
        for group in found.tried
    ]


def _outcome(group: GroupResult) -> str:
    if group.problem:
        return group.problem
    wrong = ""
    if group.wrong:
        wrong = f", {plural(group.wrong, 'value')} wrong"
    return (
        f"{format_number(group.busbw)} GB/s busbw" if group.busbw is not None else "works alone"
    ) + wrong


def _of(found: StagedTest, path: str) -> list[Pair]:
    return [pair for pair in found.pairs if pair.path == path]


def _kind(found: StagedTest, path: str) -> tuple[object, ...]:
    pairs = _of(found, path)
    speeds = [pair.bandwidth for pair in pairs]
    bad = sum((pair.a, pair.b) in found.bad for pair in pairs)
    return (
        path,
        f"{len(pairs):,}",
        f"{format_number(statistics.median(speeds))} GB/s",
        f"{format_number(min(speeds))} GB/s",
        format_time(statistics.median(pair.latency_us for pair in pairs)),
        badge("✕", f"{bad}", "likely") if bad else "none",
    )


def _bad(found: StagedTest) -> list[tuple[object, ...]]:
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
    return [
        (f"{rank}", join(f"{format_number(speed)} GB/s ", odd.get(rank, "")))
        for rank, speed in sorted(found.alone.items())
    ]


def _matrix(found: StagedTest) -> go.Figure:
    """Rank × rank in GB/s each way; bad pairs are framed, whatever their colour."""
    count = found.ranks
    cells: list[list[float | None]] = [[None] * count for _ in range(count)]
    for pair in found.pairs:
        cells[pair.a][pair.b] = cells[pair.b][pair.a] = pair.bandwidth
    odd = (
        ("slow or wrong", "", set(found.bad) - set(found.silent)),
        ("never answered", "x", set(found.silent)),
    )
    marks = [
        _draw.Mark(name, [spot for a, b in sorted(bad) for spot in ((a, b), (b, a))], symbol)
        for name, symbol, bad in odd
        if bad
    ]
    return _draw.heatmap(
        cells, [str(rank) for rank in range(count)], ("rank", "rank"), "GB/s each way", marks
    )
