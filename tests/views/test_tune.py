"""04_tuning's views: what a sweep shows, what carries it, before and after; and the planners."""

from __future__ import annotations

import asyncio
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import ncclkit as nk
from ncclkit.agent import wire
from ncclkit.agent.run import operations
from ncclkit.analysis.steps import PARTS
from ncclkit.core import budgets
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact, NcclkitError, to_json
from ncclkit.core.tuning import Comparison, Sweep, setting
from ncclkit.analysis.loader_sweeps import FIELDS
from ncclkit.live import tune
from ncclkit.report import page
from ncclkit.views._base import Chart
from ncclkit.views.planners import PLANNERS, _most
from ncclkit.views.tune import SweepView, before_after
from tests.views.test_steps import slow_loader

RECORDED = Path(__file__).parents[1] / "probe" / "recorded"
MIB = 1 << 20


def compared(name: str, factor: float, size: int, op: str = "all_reduce") -> Comparison:
    draw = random.Random(f"{name} {size} {op}")
    before, after = ([100 * part * math.exp(draw.gauss(0, 0.01)) for _ in range(16)] for part in (1, factor))
    return Comparison(setting(name), op, size, tuple(before), tuple(after), 8)


def swept(*rows: Comparison) -> Sweep:
    return Sweep("nccl", 8, 1, rows, rows, {"NCCL_ALGO=NVLS": "no multicast"}, 17.0)


GOOD = swept(compared("NCCL_PROTO=LL", 0.8, 8), compared("NCCL_PROTO=LL", 1.0, MIB), compared("channels=1", 3.0, MIB))


NONE = swept(compared("NCCL_PROTO=LL", 1.0, 8))


def test_a_sweep_is_drawn_with_its_conclusion_units_and_the_default_as_reference() -> None:
    view = SweepView(GOOD)
    figure = view.figure
    assert figure is not None and "NCCL_PROTO=LL gains 20 %" in figure.layout.title.text.replace("<br>", " ")
    assert "%" in figure.layout.yaxis.title.text and "message size" in figure.layout.xaxis.title.text
    assert [shape.y0 for shape in figure.layout.shapes] == [0] and figure.layout.shapes[0].line.dash == "dash"
    symbols = {symbol for trace in figure.data for symbol in trace.marker.symbol}
    assert symbols == {"circle", "circle-open", "x"}, "verdicts are told apart without colour, too"
    cut = next(trace for trace in figure.data if trace.name == "1 channels")
    assert (list(cut.y), list(cut.text)) == ([-150.0], [f"{100 * GOOD.comparisons[2].gain:,.0f} %"]), "off the scale"
    page = view.static()
    assert "8 B" in page and "Refused" in page and "no multicast" in page and "1 channels" in page


def test_of_many_collectives_those_with_a_difference_are_drawn() -> None:
    names = ("all_gather", "all_reduce", "broadcast", "reduce", "send_recv")
    rows = [compared("NCCL_PROTO=LL", 0.7 if op == "reduce" else 1.0, 8, op) for op in names]
    view = SweepView(replace(swept(*rows), notes=("Time was up.",)))
    assert view.figure is not None
    drawn = [axis.title.text.split(", ")[1] for axis in view.figure.select_xaxes()]
    assert len(drawn) == 3 and "reduce" in drawn and drawn == [op for op in names if op in drawn]
    page = view.static()
    assert "Of 5 collectives the 3 with the largest difference are drawn." in page and "send_recv" in page
    assert page.count("Time was up.") == 1


def test_a_sweep_of_nothing_better_says_so_and_carries_nothing() -> None:
    view = SweepView(swept(compared("NCCL_PROTO=LL", 1.0, 8)))
    assert view.summary.startswith("Nothing here beats the default")
    assert "Nothing is to be set" in nk.show.carriers(view).summary
    form = nk.form.apply(Case(), view)
    assert "Nothing is applied" in asyncio.run(form.run()).summary


@pytest.mark.parametrize(
    ("sweep", "title", "strip"),
    [
        (GOOD, "Set NCCL_PROTO=LL: 20 % of all_reduce up to 8 B", "2 tried 1 faster on some size 1 refused"),
        (NONE, "Nothing here beats the default", "1 tried 0 faster on some size 1 refused"),
    ],
)
def test_the_answer_of_a_sweep_is_the_title_of_its_report(sweep: Sweep, title: str, strip: str) -> None:
    """The question stands above it, three numbers below; a picture with its words keeps its place."""
    soup = page_with(SweepView(sweep), nk.show.step(slow_loader()))
    assert soup.select_one("main h1").text.startswith(title)
    assert soup.select_one(".question").text == "Faster?"
    first, second = soup.select(".nk-banner")
    assert " ".join(first.select_one(".nk-strip").get_text(" ").split()) == strip
    (how,) = first.find_all("table")
    assert first.find_next("h2").text == "Details" and "8 ranks over nccl on 1 host" in how.text
    # of two measurements only the first one is the page's answer
    assert "wait for the data loader" in second.select_one(".nk-say").text
    assert len(soup.select(".figure")) == 2 and len(soup.select(".question")) == 1


def page_with(*views: Any) -> BeautifulSoup:
    cells = [new_markdown_cell("# Faster?"), new_markdown_cell("## Details")]
    for view in views:
        bundle = json.loads(json.dumps(view._repr_mimebundle_()))
        cells.append(new_code_cell("x", outputs=[new_output("display_data", data=bundle)]))
    return BeautifulSoup(page.render(new_notebook(cells=cells)), "html.parser")


def test_one_rank_alone_measures_nothing_and_says_so(tmp_path: Path) -> None:
    """As on a machine with one GPU."""
    done = nk.form.tune(Case.open(tmp_path), backend="gloo", ranks=1).run()
    view = asyncio.run(done)
    assert view.summary == "One rank alone sends nothing, so no setting can gain or cost anything here."
    assert view.figure is None and "One rank alone sends nothing" in view.static(), "no frame around nothing"
    assert "round by round" not in view.static()
    assert [run.name for run in Case.open(tmp_path).runs()] == ["1-facts"], "no rank was started"
    assert "Nothing is to be set" in nk.show.carriers(view).summary
    assert "Nothing is applied" in asyncio.run(nk.form.apply(Case(), view).run()).summary


def test_what_only_costs_is_taken_away_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = replace(swept(compared("NCCL_PROTO=Simple", 1.6, 8)), cleared=("NCCL_PROTO",))
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    of_a_log = nk.form.apply(Case(), SweepView(costs))
    assert not of_a_log.asks() and "NCCL_PROTO of that job" in asyncio.run(of_a_log.run()).summary
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    form = nk.form.apply(Case(), SweepView(costs))
    assert form.asks() and "This applies without NCCL_PROTO to the small job" in form.summary
    assert "unset NCCL_PROTO" in nk.show.carriers(SweepView(costs)).static()


def test_files_stand_with_their_proof() -> None:
    page = nk.show.carriers(SweepView(GOOD)).static()
    assert "export NCCL_PROTO=LL" in page and "--inherited" in page and "nccl.conf" in page


def test_a_sweep_is_json() -> None:
    assert to_json(Sweep("gloo", 2, 1, GOOD.comparisons, calls=(("all_reduce", 8, 3),)))


def test_the_form_measures_what_its_fields_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def sweep(*words: Any, **named: Any) -> Sweep:
        asked.append(words)
        return GOOD

    monkeypatch.setattr(tune, "sweep", sweep)
    form = nk.form.tune(Case(), "NCCL_PROTO=LL channels=1", "8,1MiB", "logs", True, backend="gloo", ranks=2)
    found = asyncio.run(form.run())
    _, settings, options, sizes, inherited, _, job, budget, _ = asked[0]
    assert [str(one) for one in settings] == ["NCCL_PROTO=LL", "1 channels"] and sizes == [8, MIB]
    assert (inherited, job, options.backend, options.op, budget) == (True, "logs", "gloo", "all", 0.0)
    assert found.sweep is GOOD
    assert asyncio.run(nk.form.apply(Case(), found).run()).summary.startswith("With NCCL_PROTO=LL 1 of 3 sizes")
    form.words["settings"].value = "NCCL_PROTO"
    assert form.start.disabled and "is not NAME=VALUE" in form.notice.value
    with pytest.raises(NcclkitError):
        asyncio.run(form.run())


def test_a_cancelled_form_keeps_the_table_that_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs the table stands below what is measured now; Cancel leaves it, and says what is missing."""
    missing = "Incomplete: it was interrupted. Not measured: 3 of 4 pairs of collective and size."

    async def sweep(*words: Any) -> Sweep:
        observe, grow = words[5], words[8]
        observe({"kind": "sweep.say", "say": "To measure on 4 pairs"})
        grow(GOOD)
        try:
            await asyncio.sleep(600)
        finally:
            grow(replace(GOOD, unfinished=missing))
        return GOOD

    async def cancelled(form: Any) -> None:
        running = asyncio.ensure_future(form.run())
        while form._known is None:
            await asyncio.sleep(0)
        form.draw()
        drawn = str(form.result.value)
        assert "To measure on 4 pairs" in drawn and "NCCL_PROTO=LL" in drawn and "Under computation" in drawn
        form.stop()
        with pytest.raises(NcclkitError, match="Cancelled"):
            await running

    monkeypatch.setattr(tune, "sweep", sweep)
    form = nk.form.tune(Case(), "NCCL_PROTO=LL", backend="gloo", ranks=2)
    asyncio.run(cancelled(form))
    page = form.static()
    assert missing in page and "NCCL_PROTO=LL" in page and not form.running


def test_before_and_after_of_every_collective_are_drawn_and_stand_in_numbers() -> None:
    """The notebook sweeps all collectives by default; those with the largest difference are drawn."""
    rows = [compared("NCCL_PROTO=LL", 0.8 - index / 100, 8, op) for index, op in enumerate(operations.NAMES)]
    view = before_after(swept(*rows))
    assert view.summary == "With NCCL_PROTO=LL 7 of 7 sizes are faster than before, and 0 slower"
    assert isinstance(view, Chart) and "7 of 7 sizes" in view.figure.layout.title.text.replace("<br>", " ")
    assert "gain, %" in view.figure.layout.yaxis.title.text
    page = view.static()
    assert "Default" in page and "With it" in page and [op for op in operations.NAMES if op not in page] == []


def test_without_a_comparison_there_is_no_before_and_after() -> None:
    view = before_after(replace(GOOD, comparisons=(), seen=()))
    assert "Nothing was measured" in view.summary and not isinstance(view, Chart)


def facts() -> Case:
    case = Case()
    case.facts = [Fact("gpu.count", 4), Fact("cpu.usable", 64), Fact("limits.nofile.soft", 1024)]
    case.facts += [Fact("memory.available", 64 << 30), Fact("limits.shm.free", 64 << 20)]
    return case


@pytest.mark.parametrize("name", PLANNERS)
def test_a_planner_is_a_picture_a_number_and_the_reasoning(name: str) -> None:
    plan = nk.show.planner(facts(), name)
    before, figure = plan.summary, plan.figure
    assert figure is not None and any(letter.isdigit() for letter in plan.summary)
    assert figure.layout.xaxis.title.text
    lines = [trace for trace in figure.data if isinstance(trace, go.Scatter) and trace.line.dash in ("dash", "dot")]
    assert lines, "a reference"
    assert "typed, not measured" in plan.static() and plan.widget() is not None
    for control in plan.controls.values():
        control.value = control.value * 3 + 1 if isinstance(control.value, (int, float)) else control.value
    assert plan.summary != before and plan.summary in plan.static().unescape()


def test_an_unknown_planner_is_refused() -> None:
    with pytest.raises(NcclkitError, match="known are timeout"):
        nk.show.planner(Case(), "lunch")


def test_planners_begin_with_what_the_case_knows() -> None:
    files = nk.show.planner(facts(), "files")
    assert files.values["limit"] == 1024 and files.fields["limit"].source == "limits.nofile.soft"
    assert "Too little: open files" in files.summary and "ulimit -n" in files.static()


def test_a_host_without_swap_was_measured_as_well() -> None:
    known = facts()
    known.facts.append(Fact("memory.swap", []))
    assert nk.show.planner(known, "host_memory").fields["swap"].source == "memory.swap"
    assert nk.show.planner(facts(), "host_memory").fields["swap"].source == ""


def test_a_timeout_is_no_blind_multiple_and_comes_with_code_for_four_frameworks() -> None:
    plan = nk.show.planner(facts(), "timeout")
    plan.controls["checkpoint"].value, plan.controls["spread"].value, plan.controls["hosts"].value = 900, 10, 2
    assert "A timeout of 1021 s is the smallest safe one: checkpoint takes longest" in plan.summary
    page = plan.static()
    for word in ("init_process_group", "Trainer", "deepspeed", "InitProcessGroupKwargs", "timedelta(seconds=1021)"):
        assert word in page
    assert "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC" in page and "GPU hours a hang" in page
    assert "480 s</div>" in page
    plan.controls["stall"].value = 500
    assert "550 s</div>" in plan.static(), "the longest call and the 10 % that it varies by, not a multiple"


def test_the_steps_of_the_own_script_fill_the_planners() -> None:
    rows = [
        {
            "seconds": seconds,
            "parts": dict.fromkeys(PARTS, 0.0) | {"computation": 0.04, "checkpoint": saved},
            "points": [],
            "own": 0.0,
            "bytes": 0,
        }
        for seconds, saved in ((0.05, 0.0), (7.25, 7.2))
    ]
    data = {"source": "hook", "world": 1, "backend": "gloo", "gpus": False, "steps": rows, "plain": [], "cost": 0.0}
    data |= {"batches": 1.0, "sites": [], "buckets": [8_000_000, 4_000_000], "threads": 1, "problems": []}
    data |= {"loaders": [[0, None, 1], [3, 5, 16]]}
    case = facts().add([Event("step.rank", "", "runs/1-step/steps_rank0.json", 0, rank=0, data=data)])
    timeout, workers = nk.show.planner(case, "timeout"), nk.show.planner(case, "workers")
    assert (timeout.values["step"], timeout.values["checkpoint"], workers.values["step"]) == (7.25, 7.2, 40.0)
    assert timeout.fields["checkpoint"].source == "the steps of your script in this case"
    files, scaling = nk.show.planner(case, "files"), nk.show.planner(case, "scaling")
    assert (files.values["workers"], files.values["prefetch"]) == (3, 5)
    assert scaling.values["parameters"] * scaling.values["item"] == pytest.approx(12.0), "MB of gradients"
    assert "DDP buckets of your script" in scaling.fields["parameters"].source


def test_measured_workers_take_the_place_of_planned_ones() -> None:
    row = dict.fromkeys(FIELDS, 1.0)
    rows = [
        row | {"workers": n, "prefetch": 2.0 * (n > 0), "step_ms": t, "low_ms": t - 1, "high_ms": t + 1}
        for n, t in ((0, 40.0), (2, 20.0))
    ]
    data = {"phase": "loader_sweep", "cores": 2, "ranks": 2, "rows": rows}
    case = Case().add([Event("worker.phase", "loader_sweep", "wire.jsonl", 1, rank=0, data=data)])
    plan = nk.show.planner(case, "workers")
    assert plan.summary.startswith("2 ranks on 2 cores: ") and "not measured" not in plan.summary
    measured = next(trace for trace in plan.figure.data if trace.name == "measured")
    assert list(measured.y) == [40.0, 20.0] and list(measured.error_y.array) == [1.0, 1.0]


def test_open_files_follow_what_was_measured_within_ten_percent(tmp_path: Path) -> None:
    """A scaling run over gloo had 15, 16 and 18 open files a rank with 2, 3 and 5 ranks (2026-11-23)."""
    for number, (ranks, one) in enumerate(((2, 15), (3, 16)), 1):
        folder = tmp_path / "runs" / f"{number}-exchange-{ranks}"
        folder.mkdir(parents=True)
        record = {
            "ncclkit": wire.VERSION,
            "kind": "phase",
            "phase": "files",
            "rank": 0,
            "one": one,
            "pairs": 2 * one,
            "limit": 1024,
        }
        (folder / "wire.jsonl").write_text(json.dumps(record) + "\n")
    plan = nk.show.planner(Case.open(tmp_path), "files")
    plan.controls["ranks"].value, plan.controls["workers"].value, plan.controls["shm"].value = 5, 0, 1 << 20
    assert plan.summary.startswith("18 open files a rank") and "measured at fewer ranks" in plan.static()


def test_shared_memory_counts_what_data_loaders_have_ready() -> None:
    """4 workers with 2 batches ahead of 4 MiB held 36.1 MiB of /dev/shm, with 4 ahead 68.1 MiB (2026-11-23)."""
    for prefetch, held in ((2, 36.11), (4, 68.14)):
        assert budgets.loader_memory(1, 4, prefetch, 4 << 20).value == pytest.approx(held * (1 << 20), rel=0.1)
    plan = nk.show.planner(facts(), "files")
    assert "Data loaders: 4 ranks x (4 workers x 2 batches + 1 in use) of 40 MiB = 1.41 GiB" in plan.static()
    plan.controls["workers"].value = 0
    assert "need no shared memory" in plan.static()


def test_the_model_of_scaling_holds_where_it_was_measured() -> None:
    """Recorded on 4 H200; the line through all sizes but the largest two predicts those, too."""
    rows = [m for m in Case.open(RECORDED / "stages", read_only=True).measurements if m.op == "all_reduce"]
    points = [(m.ranks, float(m.bytes), m.time_us) for m in rows]
    line = budgets.fitted(points[:-2])
    for ranks, size, time in points[-2:]:
        assert line.all_reduce(ranks, size) == pytest.approx(time, rel=0.2)
    assert line.all_reduce(1024, points[-1][1]) > line.all_reduce(8, points[-1][1])
    page = nk.show.planner(Case.open(RECORDED / "stages", read_only=True), "scaling").static()
    assert "the model is off by 2 % (median)" in page and "Planned beside measured" in page


def test_a_line_needs_two_sizes_and_never_runs_backwards() -> None:
    with pytest.raises(ValueError, match="two sizes"):
        budgets.fitted([(2, 8.0, 10.0)])
    flat = budgets.fitted([(2, 8.0, 10.0), (2, 64.0, 9.0)])
    assert flat.us_per_byte == 0 and flat.latency_us == pytest.approx(4.75, rel=0.05)


def test_memory_is_what_a_model_takes() -> None:
    """Adam in float32 on a model of linear layers, followed by torch's own tracker of memory: within 10 %."""
    import torch
    from torch.distributed._tools.mem_tracker import MemTracker

    layers, side, batch = 6, 512, 4096
    model = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(side, side), torch.nn.GELU()) for _ in range(layers)]
    )
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    rows = torch.ones(batch, side)
    tracker = MemTracker()
    tracker.track_external(model, optimizer, rows)
    with tracker:
        for _ in range(2):
            tracker.reset_mod_stats()
            model(rows).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    parameters = sum(one.numel() for one in model.parameters())
    sample = 2 * layers * side * 4  # what Linear and GELU keep of one row
    plan = budgets.gpu_memory(parameters, 1, "ZeRO-1", "fp32, or autocast", sample, batch, layers, other=0)
    assert plan.value == pytest.approx(peak, rel=0.1)


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    def need(strategy: str, batch: int) -> budgets.Budget:
        return budgets.gpu_memory(7e9, 8, strategy, "bf16, fp32 master weights", 3 << 30, batch, 32)

    room = float(80 << 30)
    most = {strategy: _most(need, strategy, room, budgets.per_sample(3 << 30, 32)) for strategy in budgets.SHARDS}
    assert most["DDP"] == 0 and need("DDP", 1).value > room
    for strategy in ("ZeRO-2", "FSDP, ZeRO-3"):
        assert need(strategy, most[strategy]).value <= room < need(strategy, most[strategy] + 1).value


def test_what_would_lie_in_swap_is_said() -> None:
    plan = nk.show.planner(facts(), "host_memory")
    plan.controls["dataset"].value, plan.controls["swap"].value = 14.0, 32.0
    assert "would lie in swap" in plan.summary
    plan.controls["swap"].value = 0.0
    assert "the kernel would end a rank" in plan.summary
    plan.controls["shared"].value = True
    assert "of what is free" in plan.summary


def noisy(size: int, op: str) -> Comparison:
    draw = random.Random(f"{size} {op}")
    before, after = ([100 * math.exp(draw.gauss(0, 2.0)) for _ in range(8)] for _ in range(2))
    return Comparison(setting("NCCL_PROTO=LL"), op, size, tuple(before), tuple(after), 8)


def test_of_a_sweep_that_was_too_noisy_noise_is_drawn_once_and_what_measures_again_can_be_pasted() -> None:
    rows = [noisy(size, op) for op in ("all_gather", "all_reduce", "broadcast") for size in (8, MIB)]
    view = SweepView(replace(swept(*rows), plain=tuple(rows)))
    assert view.summary.startswith("Too noisy to tell") and view.figure is not None
    assert len(list(view.figure.select_xaxes())) == 1
    page = BeautifulSoup(view.static(), "html.parser")
    assert "ncclkit tune --budget 300" in [each.text for each in page.select(".nk-banner pre")]
    assert "Of 3 collectives the one with the largest difference is drawn." in page.text
