"""Planners: what a job must be given, worked out from measured values.

Each is a picture, a number and the reasoning.  A field begins with what the case knows; whoever
changes one sees the number move.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets as W
import plotly.graph_objects as go

from ncclkit.analysis.loader_sweeps import LoaderSweep, measured_sweep
from ncclkit.analysis.open_files import most_open_files
from ncclkit.analysis.resumes import resumes
from ncclkit.analysis.stages import Pair, staged_test
from ncclkit.analysis.steps import last_step_events
from ncclkit.analysis.worker_plans import (
    COUNTED,
    computation_of_step,
    largest_loader,
    plan_workers,
)
from ncclkit.core import budgets
from ncclkit.core.budgets import Budget, MessageCost
from ncclkit.core.case import Case
from ncclkit.core.model import Measurement, NcclkitError, safe
from ncclkit.core.text import format_bytes, format_time, percent, plural
from ncclkit.views import plots
from ncclkit.views._base import FIGURE_SLOT, Drawn, outputs, page_frame, style
from ncclkit.views._draw import blank
from ncclkit.views._form import row
from ncclkit.views._html import Markup, code, el, fit, fold, join, pre, table

GIB, MIB = 1 << 30, 1 << 20
LABEL = 16
"""Characters of a bar's name that stand in a line."""
GRACE, DUMP, HEARTBEAT = 30.0, 15.0, 480.0
"""Seconds from a launcher's first signal to its last, for Flight Recorder dumps, a heartbeat."""


@dataclass(frozen=True, slots=True)
class Field:
    """One value that a planner asks for."""

    label: str
    value: Any
    """A number, or the first of `choices`."""
    source: str = ""
    """Where the value was measured; empty for one that the user must know."""
    choices: tuple[str, ...] = ()


Fields = Mapping[str, Field]
Answer = Callable[[Case, dict[str, Any]], Drawn]
"""What follows from a planner's fields: a number, a picture, and how the number comes about."""


def planner(case: Case, name: str) -> Planner:
    """The planner of that name for a case.

    It is ``timeout``, ``workers``, ``host_memory``, ``gpu_memory``, ``files`` or ``scaling``.
    Raises NcclkitError for any other name.
    """
    if name not in PLANNERS:
        raise NcclkitError(f"There is no planner {name!r}; known are {', '.join(PLANNERS)}.")
    fields, answer = PLANNERS[name]
    return Planner(case, fields(case), answer)


class Planner(Drawn):
    """The form that `planner` returns."""

    is_drawn_again = False

    def __init__(self, case: Case, fields: Fields, answer: Answer) -> None:
        self._case = case
        self._answer = answer
        self.fields = fields
        self.controls = {name: _control(each) for name, each in fields.items()}
        self._above, self._below = W.HTML(), W.HTML()
        self._drawing = W.Output(layout=W.Layout(width="100%"))
        # worked out at once, as a report shows the answer without any click
        found = answer(case, self.values)
        super().__init__(found.summary, found.figure, self._with_values(found))
        for control in self.controls.values():
            control.observe(self._changed, "value")

    @property
    def values(self) -> dict[str, Any]:
        """What the fields hold now."""
        return {name: control.value for name, control in self.controls.items()}

    def widget(self) -> W.Widget:
        """The fields, the answer, the picture and the reasoning."""
        if self._box is None:
            shown = [row(*self.controls.values()), self._above, self._drawing, self._below]
            self._box = W.VBox(shown, layout=W.Layout(width="100%"))
            # the widget may be opened after fields were changed elsewhere
            self._changed({})
        return self._box

    def _changed(self, _change: Mapping[str, Any]) -> None:
        """Work the answer out again, for the widget and for the static face."""
        found = self._answer(self._case, self.values)
        self._summary = found.summary
        self._figure = found.figure
        self._words = self._with_values(found)
        self._body = join(FIGURE_SLOT, self._words)
        self._above.value = style() + page_frame(found.summary)
        self._drawing.outputs = outputs(self._figure)
        self._below.value = el("div", self._words, cls="nk")

    def _with_values(self, found: Drawn) -> Markup:
        """The reasoning of an answer, and the values that it rests on."""
        rows = []
        for name, each in self.fields.items():
            rows.append(
                (each.label, self.controls[name].value, each.source or "typed, not measured")
            )
        values = fold("The values that it rests on", table(("Value", "Is", "From"), rows))
        return join(found._words, values)


def _control(field: Field) -> W.Widget:
    look = {"description": field.label, "style": {"description_width": "11em"}}
    layout = W.Layout(width="auto", flex="1 1 20em", max_width="28em")
    if field.choices:
        return W.Dropdown(options=list(field.choices), value=field.value, layout=layout, **look)
    if isinstance(field.value, bool):
        return W.Checkbox(value=field.value, indent=False, description=field.label, layout=layout)
    if isinstance(field.value, int):
        kind = W.BoundedIntText
    else:
        kind = W.BoundedFloatText
    return kind(value=field.value, min=0, max=10**15, layout=layout, **look)


def _bars(
    parts: Mapping[str, float], unit: str, lines: Mapping[str, float], show: Callable[[float], str]
) -> go.Figure:
    """A bar for each part and one for their sum.

    Beside them are dashed lines that the sum must keep below.
    """
    # parts of nothing would each take a line
    shown = {name: value for name, value in parts.items() if value}
    several = len(shown)
    shown["together"] = sum(parts.values())
    names = []
    for name in shown:
        lines_of_name = textwrap.wrap(safe(name), LABEL)
        names.append("<br>".join(lines_of_name))
    figure = blank(height=96 + 34 * len(shown) + 22 * len(lines))
    figure.add_bar(
        x=[*shown.values()],
        y=names,
        orientation="h",
        marker={
            "color": [plots.LINES[0]] * several + [plots.LINES[4]],
            "pattern": {"shape": [""] * several + ["/"]},
        },
        text=[show(value) for value in shown.values()],
        textposition="outside",
        cliponaxis=False,
        showlegend=False,
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    for (name, value), dash in zip(lines.items(), ("dash", "dot"), strict=False):
        _limit(figure, value, f"{name}: {show(value)}", dash)
    # where nothing is needed the axis still has a length
    top = max([*shown.values(), *lines.values(), 1e-9])
    # room for the numbers behind the bars
    figure.update_xaxes(title={"text": unit}, range=[0, 1.25 * top])
    return figure.update_yaxes(autorange="reversed")


def _limit(figure: go.Figure, value: float, name: str, dash: str = "dash") -> None:
    """A line across all bars, with its name in the legend."""
    look = {"color": plots.VERMILLION, "width": 2, "dash": dash}
    figure.add_vline(x=value, line=look)
    figure.add_scatter(x=[None], y=[None], mode="lines", name=safe(name), line=look)


def _measured(value: Any, source: str, otherwise: Any) -> tuple[Any, str]:
    """A value with where it was measured, or the one that is taken otherwise."""
    if value is not None:
        return value, source
    return otherwise, ""


def _fact(case: Case, name: str) -> Any:
    for fact in case.facts:
        if fact.name == name and fact.value is not None:
            return fact.value
    return None


def _local(case: Case) -> tuple[int, str]:
    """Ranks of a host: one for each GPU.

    They are two without any GPU, as the small job has.
    """
    count = _fact(case, "gpu.count")
    if count is None:
        # unlike a host that was asked and has no GPU, one that was not asked may be any
        return 8, ""
    if count:
        return count, "gpu.count"
    return 2, "gpu.count: no GPU"


def _ranks(case: Case) -> tuple[int, str]:
    ranks = max((m.ranks for m in case.measurements), default=0)
    # one rank alone is a trial, and no job to plan for
    if ranks > 1:
        return ranks, "the last live test"
    return 8, ""


def _timeout_fields(case: Case) -> Fields:
    starts = resumes(case)
    replay = max((run.last.whole for run in starts), default=None)
    steps = []
    for run in starts:
        for start in run.starts:
            if start.step:
                steps.append(start.step)
    ranks, source = _ranks(case)
    return {
        "step": _seconds("A step, s", max(steps, default=None), _longest(case, "seconds"), 1.0),
        "checkpoint": _seconds(
            "Checkpoint by one rank, s", None, _longest(case, "checkpoint"), 120.0
        ),
        "evaluation": Field("Evaluation by one rank, s", 0.0),
        "compile": Field("Compilation before step 1, s", 60.0),
        "replay": Field(
            "Skip-ahead on resume, s", *_measured(replay, "the resumed run of this case", 0.0)
        ),
        "spread": Field("These vary by, %", 30.0),
        "collective": Field("Slowest collective, s", *_slowest(case)),
        "stall": Field("Longest CUDA call, s", 60.0),
        "hosts": Field("Nodes", 1),
        "ranks": Field("GPUs of the job", ranks, source),
    }


def _seconds(
    label: str, resume_time: float | None, script_time: float | None, otherwise: float
) -> Field:
    """A field with the longest time that a resumed run, or the user's script, took here."""
    # the longer of both, as a timeout has to outlast either
    if script_time and script_time >= (resume_time or 0.0):
        return Field(label, round(script_time, 3), "the steps of your script in this case")
    return Field(label, *_measured(resume_time, "the resumed run of this case", otherwise))


def _longest(case: Case, part: str) -> float | None:
    """Seconds of the longest measured step, or of one part of a step.

    It is a step of the user's script; None where there is none.
    """
    rows = []
    # the last run only: an older one may have been of another script
    for event in last_step_events(case):
        rows.extend(event.data.steps)
    return max((row[part] if part in row else row["parts"][part] for row in rows), default=None)


def _slowest(case: Case) -> tuple[float, str]:
    worst = max(((m.p99_us or m.time_us) / 1e6 for m in case.measurements), default=None)
    return _measured(worst and round(worst, 3), "the slowest message of the live tests", 1.0)


def _timeout(case: Case, values: dict[str, Any]) -> Drawn:
    phases = {
        "checkpoint": values["checkpoint"],
        "evaluation": values["evaluation"],
        "compilation": values["compile"],
        "skip-ahead": values["replay"],
        "step": values["step"],
    }
    # a rank does one phase at a time, so the longest counts, not their sum
    which = max(phases, key=lambda name: phases[name])
    retry = 0.0
    # on one host no InfiniBand tries again
    if values["hosts"] > 1:
        retry = budgets.RETRY
    spread = values["spread"] / 100
    whole = budgets.timeout(phases[which], values["collective"], spread, retry)
    # ranks that do each phase together wait for no phase of another
    inner = budgets.timeout(values["step"], values["collective"], spread, 0.0)
    heartbeat = max(HEARTBEAT, math.ceil(values["stall"] * (1 + spread)))
    cost, usual = (
        budgets.idle_cost(values["ranks"], limit, DUMP) for limit in (whole.value, 600.0)
    )
    summary = (
        f"A timeout of {whole.value:g} s is the smallest safe one: {which} takes longest; one hang"
        f" then costs {cost.value:.3g} GPU hours, and {usual.value:.3g} with the default of 600 s"
    )
    rows = [
        ("All ranks, where one does a phase alone", f"{whole.value:g} s", whole.words),
        ("Ranks that do every phase together (tensor parallel)", f"{inner.value:g} s", inner.words),
        (
            _whole("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
            f"{heartbeat:g} s",
            (
                "above the longest call of CUDA (loading, compiling) and what it varies by; 480 s"
                " is the default"
            ),
        ),
        (
            _whole("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"),
            f"{DUMP * 1000:.0f} ms",
            f"the launcher kills {GRACE:g} s after it asks",
        ),
    ]
    lines_of_code = fold(
        "Code for PyTorch, Lightning, DeepSpeed and accelerate",
        pre(_timeout_code(int(whole.value))),
        is_open=True,
    )
    settings = fit(table(("What", "Set to", "Why"), rows))
    body = join(el("p", whole.words), settings, el("p", cost.words), lines_of_code)
    lines = {"smallest safe timeout": whole.value, "default of NCCL groups": 600.0}
    return Drawn(
        summary, _bars(whole.parts, "seconds", lines, lambda value: f"{value:.4g} s"), body
    )


def _whole(name: str) -> Markup:
    """The name of a variable, never broken over two lines."""
    return el("code", name, cls="nk-whole")


def _timeout_code(seconds: int) -> str:
    limit = f"timeout=timedelta(seconds={seconds})"
    return "\n".join(
        (
            "from datetime import timedelta",
            (
                f'torch.distributed.init_process_group("nccl", {limit})  # PyTorch; new_group takes'
                " it, too"
            ),
            f"lightning.Trainer(strategy=DDPStrategy({limit}))  # Lightning",
            f"deepspeed.init_distributed({limit})  # DeepSpeed",
            f"Accelerator(kwargs_handlers=[InitProcessGroupKwargs({limit})])  # accelerate",
        )
    )


def _workers_fields(case: Case) -> Fields:
    cores = _fact(case, "cpu.usable")
    return {
        "cores": Field("Cores of the host", *_measured(cores and int(cores), "cpu.usable", 32)),
        "ranks": Field("Ranks on it", *_local(case)),
        "cpu": Field("CPU of a batch, ms", 20.0),
        "wait": Field("Storage of a batch, ms", 20.0),
        "step": Field("Computation of a step, ms", *_computation(case)),
    }


def _computation(case: Case) -> tuple[float, str]:
    """Milliseconds of a step in which the slowest rank of the user's script computes, if known."""
    most = computation_of_step(case)
    return _measured(most and round(most, 1), "the steps of your script in this case", 20.0)


def _workers(case: Case, values: dict[str, Any]) -> Drawn:
    plan = plan_workers(
        values["cores"], values["ranks"], values["cpu"], values["wait"], values["step"]
    )
    figure = blank(height=320)
    _points(figure, plan.steps, "planned", plots.LINES[0])
    limit = {"color": plots.VERMILLION, "width": 2, "dash": "dash"}
    alone = [values["step"]] * 2
    figure.add_scatter(
        x=[0, COUNTED[-1]], y=alone, name="computation alone", mode="lines", line=limit
    )
    summary = (
        f"{plural(plan.fewest, 'worker')} per rank are planned, for a step of"
        f" {plan.steps[plan.fewest]:.3g} ms; not measured here"
    )
    found = measured_sweep(case)
    if found:
        summary = (
            f"{plural(found.ranks, 'rank')} on {plural(found.cores, 'core')}: {found.knee.words}"
        )
        _add_measured_steps(figure, found)
    figure.update_xaxes(title={"text": "workers per rank"}, tickvals=COUNTED)
    figure.update_yaxes(title={"text": "step, ms"}, rangemode="tozero")
    how = el(
        "p",
        "Measure it: ",
        code("await nk.sweep_loaders(case)"),
        ", three interleaved repeats of each count.",
    )
    return Drawn(summary, figure, join(el("p", plan.words), how))


def _add_measured_steps(figure: go.Figure, found: LoaderSweep) -> None:
    """The step times of a loader sweep, with the extent of their repeats."""
    # choices are ordered by workers, and without workers nothing is read ahead
    usual = max(row["prefetch"] for row in found.rows[:2])
    steps = {}
    extent = {}
    for choice in found.rows:
        if choice["prefetch"] not in (0, usual):
            continue
        count = int(choice["workers"])
        middle = choice["step_ms"]
        steps[count] = middle
        extent[count] = [choice.get("low_ms", middle), choice.get("high_ms", middle)]
    _points(figure, steps, "measured", plots.LINES[4], extent)


def _points(
    figure: go.Figure,
    steps: Mapping[int, float],
    name: str,
    colour: str,
    laps: Mapping[int, list[float]] | None = None,
) -> None:
    """Times of a step by workers; of repeats also their extent."""
    held = laps or {}
    figure.add_scatter(
        x=[*steps],
        y=[*steps.values()],
        name=name,
        mode="markers" if laps else "lines+markers",
        line={"color": colour, "width": 2},
        marker={"symbol": "square" if laps else "circle", "size": 9, "color": colour},
        error_y={
            "array": [max([*held.get(n, ()), y]) - y for n, y in steps.items()],
            "arrayminus": [y - min([*held.get(n, ()), y]) for n, y in steps.items()],
        },
        hovertemplate=f"{name}: %{{y:.3g}} ms with %{{x}} workers<extra></extra>",
    )


def _loader(case: Case, place: int, otherwise: int) -> tuple[int, str]:
    """What the script's largest data loader was built with.

    `place` 0 is its workers, 1 its batches ahead of each.
    """
    most = largest_loader(case)
    return _measured(
        most[place] if most else None, "the data loader of your script in this case", otherwise
    )


def _host_fields(case: Case) -> Fields:
    free = _fact(case, "memory.available")
    swap = _fact(case, "memory.swap")
    held = None
    # a host without swap says so by an empty list; None is a host that was not asked
    if isinstance(swap, list):
        held = sum(row.get("size", 0) for row in swap)
    peaks = []
    for event in case.of("worker.phase"):
        if event.data.peak:
            peaks.append(event.data.peak)
    peak = max(
        peaks,
        default=None,
    )
    return {
        "ranks": Field("Ranks of a host", *_local(case)),
        "each": Field(
            "A rank without data, GiB",
            *_measured(peak and peak / GIB, "the last run of this case", 3.0),
        ),
        "dataset": Field("Data set in memory, GiB", 2.0),
        "shared": Field("One copy for all ranks (memory map)", False),
        "workers": Field("Workers per rank", *_loader(case, 0, 4)),
        "prefetch": Field("Batches ahead of each", *_loader(case, 1, 2)),
        "batch": Field("A batch, MiB", 40.0),
        "free": Field(
            "Memory available, GiB",
            *_measured(free and round(free / GIB, 2), "memory.available", 256.0),
        ),
        "swap": Field(
            "Swap, GiB",
            *_measured(None if held is None else round(held / GIB, 2), "memory.swap", 0.0),
        ),
    }


def _host_memory(case: Case, values: dict[str, Any]) -> Drawn:
    need = budgets.host_memory(
        values["dataset"] * GIB,
        values["ranks"],
        values["workers"],
        values["prefetch"],
        values["batch"] * MIB,
        values["shared"],
        values["each"] * GIB,
    )
    free = values["free"] * GIB
    swap = values["swap"] * GIB
    over = need.value - free
    if over <= 0:
        # free may be typed as 0
        share = percent(need.value / max(free, 1))
        summary = f"{format_bytes(need.value)} of host memory are needed, {share} of what is free"
    elif over <= swap:
        summary = (
            f"{format_bytes(over)} too much: it would lie in swap, and steps would wait for the"
            " disk"
        )
    else:
        summary = (
            f"{format_bytes(over)} too much, and swap holds {format_bytes(swap)}: the kernel would"
            " end a rank"
        )
    why = (
        f"{need.words} Each rank reads its own copy unless the data are mapped into memory (numpy's"
        " mmap, Arrow)."
    )
    lines = {"available": free} | ({"available with swap": free + swap} if swap else {})
    figure = _bars(
        {k: v / GIB for k, v in need.parts.items()},
        "GiB",
        {k: v / GIB for k, v in lines.items()},
        _gib,
    )
    return Drawn(summary, figure, el("p", why))


def _gib(value: float) -> str:
    return format_bytes(value * GIB)


def _gpu_fields(case: Case) -> Fields:
    room = _fact(case, "gpu.0.memory.total")
    gpus = _fact(case, "gpu.count")
    return {
        "parameters": Field("Parameters, millions", 7000.0),
        "layers": Field("Layers", 32),
        "hidden": Field("Hidden size", 4096),
        "sequence": Field("Tokens of a sample", 2048),
        "vocabulary": Field("Vocabulary", 32000),
        "sample": Field("Activations of a sample, MiB (0: formula)", 0.0),
        "batch": Field("Samples of a rank", 1),
        "ranks": Field("GPUs", *_measured(gpus or None, "gpu.count", 8)),
        "precision": Field("Precision", next(iter(budgets.ADAM)), "", tuple(budgets.ADAM)),
        "channels": Field("NCCL channels", 16),
        "room": Field(
            "Memory of a GPU, GiB",
            *_measured(room and round(room / GIB, 1), "gpu.0.memory.total", 80.0),
        ),
    }


def _activations_of_sample(values: Mapping[str, Any]) -> Budget:
    """What a sample leaves in memory, by the shape of the model."""
    item = 4
    if values["precision"].startswith("bf16"):
        item = 2
    layers = int(values["layers"])
    hidden = int(values["hidden"])
    tokens = int(values["sequence"])
    words = int(values["vocabulary"])
    return budgets.activations(layers, hidden, tokens, words, item)


def _gpu_memory(case: Case, values: dict[str, Any]) -> Drawn:
    layers = max(int(values["layers"]), 1)
    sample = _activations_of_sample(values)
    # what is typed beats what is computed
    # the formula knows dense transformers; whoever has measured another model types its size
    size = values["sample"] * MIB or sample.value
    each = budgets.per_sample(size, layers)
    other = budgets.CONTEXT + 4 * values["channels"] * budgets.SEGMENT
    room = values["room"] * GIB
    ranks = max(values["ranks"], 1)
    parameters = values["parameters"] * 1e6

    def need(strategy: str, batch: int) -> Budget:
        model = (parameters, ranks, strategy, values["precision"])
        return budgets.gpu_memory(*model, size, batch, layers, other)

    plans = {strategy: need(strategy, values["batch"]) for strategy in budgets.SHARDS}
    most = {strategy: _most(need, strategy, room, each) for strategy in plans}
    fits = [strategy for strategy, batch in most.items() if batch]
    first = "nothing fits"
    if fits:
        samples = plural(most[fits[0]], "sample")
        first = f"{fits[0]} fits, with up to {samples} a rank"
    rows = []
    for name, plan in plans.items():
        rows.append((name, format_bytes(plan.value), str(most[name]), plan.words))
    if values["sample"]:
        activations = f"{format_bytes(size)} a sample, as typed."
    else:
        activations = sample.words
    why = f"Activations: {activations} What the allocator cannot reuse comes on top: some per cent."
    more = fit(table(("Strategy", "Peak", "Samples of a rank at most", "Made of"), rows))
    summary = f"On {plural(ranks, 'GPU')} of {values['room']:g} GiB {first}"
    return Drawn(summary, _stacks(plans, room), join(el("p", why), more))


def _most(need: Callable[[str, int], Budget], strategy: str, room: float, sample: float) -> int:
    """Samples of a rank that fit on a GPU with this strategy."""
    empty = need(strategy, 0)
    # before the first sample there are no activations that gradients could take the place of
    update = empty.parts.get("gradients, update", 0.0)
    fit_in = budgets.largest_batch(room, empty.value - update, sample)
    if empty.value <= room:
        return fit_in
    return 0


SHAPES = ("", "/", "x", "-", ".", "|")
"""Patterns of the parts of a bar, told apart without colour."""


def _stacks(plans: Mapping[str, Budget], room: float) -> go.Figure:
    """A bar for each strategy, made of its parts, beside what a GPU has."""
    figure = blank(height=160 + 46 * len(plans))
    names: dict[str, None] = {}
    for plan in plans.values():
        names |= dict.fromkeys(plan.parts)
    styles = zip((*plots.LINES, plots.INK), SHAPES, strict=True)
    for part, (colour, shape) in zip(names, styles, strict=False):
        sizes = []
        for plan in plans.values():
            sizes.append(plan.parts.get(part, 0) / GIB)
        figure.add_bar(
            y=[*plans],
            x=sizes,
            name=part,
            orientation="h",
            marker={"color": colour, "pattern": {"shape": shape}},
            hovertemplate=f"%{{y}}, {part}: %{{x:.3g}} GiB<extra></extra>",
        )
    _limit(figure, room / GIB, f"a GPU has {format_bytes(room)}")
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title={"text": "GiB on one GPU at most"}, rangemode="tozero")
    return figure.update_yaxes(autorange="reversed")


def _files_fields(case: Case) -> Fields:
    limit = _fact(case, "limits.nofile.soft")
    shm = _fact(case, "limits.shm.free")
    return {
        "ranks": Field("Ranks of the job", 32),
        "local": Field("Ranks of a host", *_local(case)),
        "channels": Field("Channels", 16),
        "workers": Field("Workers per rank", *_loader(case, 0, 4)),
        "prefetch": Field("Batches ahead of each", *_loader(case, 1, 2)),
        "batch": Field("A batch, MiB", 40.0),
        "limit": Field("Open files allowed", *_measured(limit, "limits.nofile.soft", 1024)),
        "shm": Field(
            "/dev/shm free, MiB", *_measured(shm and round(shm / MIB), "limits.shm.free", 64)
        ),
    }


def _files(case: Case, values: dict[str, Any]) -> Drawn:
    ranks = max(values["ranks"], 2)
    known = most_open_files(case)
    # two points give a line; one count of ranks says nothing of more of them
    if len(known) > 1:
        need = budgets.open_files_budget(known, ranks)
    else:
        need = budgets.descriptors(ranks, values["channels"])
    pipes = 6 * values["workers"]
    value = need.value + pipes
    nccl = budgets.shared_memory(values["local"], values["channels"])
    loaders = budgets.loader_memory(
        values["local"], values["workers"], values["prefetch"], values["batch"] * MIB
    )
    shm = nccl.value + loaders.value
    short = []
    # -1 is "unlimited"
    if 0 <= values["limit"] < value:
        short = [f"open files ({value:,.0f} of {values['limit']:,})"]
    if shm > values["shm"] * MIB:
        short.append(f"/dev/shm ({format_bytes(shm)} of {values['shm']} MiB)")
    summary = f"{value:,.0f} open files a rank are needed, which is allowed"
    if short:
        summary = f"Too little: {' and '.join(short)}"
    how = "if every path is a socket, which is the most"
    if len(known) > 1:
        how = "measured at fewer ranks, on a straight line"
    why = (
        f"{need.words} That is {how}. {plural(values['workers'], 'worker')} add {pipes} pipes and"
        f" files. /dev/shm, where no rank copies directly: {nccl.words} {loaders.words}"
    )
    advice = el(
        "p",
        "In the job's script: ",
        el("code", "ulimit -n 65536"),
        "; for a container: ",
        el("code", "--shm-size=8g"),
        ".",
    )
    parts = {"communicators": need.value, "workers' pipes": float(pipes)}
    lines = {}
    if values["limit"] > 0:
        lines = {"allowed": float(values["limit"])}
    figure = _bars(parts, "open files of a rank", lines, lambda v: f"{v:,.0f}")
    return Drawn(summary, figure, join(el("p", why), advice if short else ""))


def _scaling_fields(case: Case) -> Fields:
    line, source = _line(case)
    sent = None
    for event in last_step_events(case):
        if event.data.buckets:
            sent = sum(event.data.buckets)
            break
    # where the case knows no model: 7 billion parameters, two bytes a gradient
    model = ""
    millions = 7000.0
    item = 2
    if sent:
        model = "the DDP buckets of your script in this case, as float32"
        item = 4
        millions = round(sent / item / 1e6, 6)
    latency = 10.0
    bandwidth = 25.0
    if line:
        latency = round(line.latency_us, 2)
        bandwidth = _speed(line)
    return {
        "parameters": Field("Parameters, millions", millions, model),
        "item": Field("Bytes of a gradient", item, model),
        "bucket": Field("Bucket, MiB", 25.0),
        "latency": Field("Latency of a hop, µs", latency, source),
        "bandwidth": Field("Bandwidth, GB/s", bandwidth, source),
        "compute": Field("Backward pass, ms", 500.0),
    }


def _speed(line: MessageCost) -> float:
    if line.us_per_byte:
        return round(1e-3 / line.us_per_byte, 3)
    return 1e6


def _line(case: Case) -> tuple[MessageCost | None, str]:
    """Latency and bandwidth of the slowest kind of pairs.

    Without pair tests they are those of the all_reduce curve.
    """
    pairs = staged_test(case).pairs
    kinds: dict[str, list[Pair]] = {}
    for pair in pairs:
        kinds.setdefault(pair.path, []).append(pair)
    if kinds:
        # the slowest path, as a ring is as fast as its slowest link
        speeds = {path: _median_bandwidth(measured) for path, measured in kinds.items()}
        slowest = min(speeds, key=speeds.__getitem__)
        latency = statistics.median(pair.latency_us for pair in kinds[slowest])
        return MessageCost(latency, 1e-3 / speeds[slowest]), f"pair tests over {slowest}"
    # without pairs the curve tells latency and bandwidth by its small and large messages
    points = [(m.ranks, float(m.bytes), m.time_us) for m in _reduces(case)]
    try:
        return budgets.fitted(points), "fitted to the all_reduce curve of this case"
    except ValueError:
        return None, ""


def _median_bandwidth(pairs: Sequence[Pair]) -> float:
    return statistics.median(pair.bandwidth for pair in pairs)


def _reduces(case: Case) -> list[Measurement]:
    reduces = []
    for measurement in case.measurements:
        if measurement.op == "all_reduce" and measurement.ranks > 1 and measurement.time_us > 0:
            reduces.append(measurement)
    return reduces


COUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def _scaling(case: Case, values: dict[str, Any]) -> Drawn:
    # typed zeros may not end in a division
    line = MessageCost(values["latency"], 1e-3 / max(values["bandwidth"], 1e-6))
    whole = values["parameters"] * 1e6 * values["item"]
    bucket = max(values["bucket"] * MIB, 1.0)
    count = max(1, round(whole / bucket))

    # buckets are sent one after the other
    times = {ranks: count * line.all_reduce(ranks, whole / count) / 1e3 for ranks in COUNTS}
    late = next((ranks for ranks, time in times.items() if time > values["compute"]), None)
    hidden = "the backward pass can hide it"
    if late:
        hidden = f"from {late} ranks on it is longer than the backward pass"
    first = format_time(1e3 * times[COUNTS[0]])
    last = format_time(1e3 * times[COUNTS[-1]])
    planned = list(times.values())
    bandwidth_alone = []
    for ranks in COUNTS:
        sent = 2 * (ranks - 1) / ranks * whole
        bandwidth_alone.append(sent * line.us_per_byte / 1e3)
    backward_pass = [values["compute"]] * len(COUNTS)
    figure = blank(height=340)
    for name, y, dash, colour in (
        ("planned", planned, "solid", plots.LINES[0]),
        ("bandwidth alone", bandwidth_alone, "dot", plots.LINES[1]),
        ("backward pass", backward_pass, "dash", plots.VERMILLION),
    ):
        figure.add_scatter(
            x=COUNTS,
            y=y,
            name=name,
            mode="lines+markers" if name == "planned" else "lines",
            line={"color": colour, "width": 2, "dash": dash},
            hovertemplate=f"{name}, %{{x}} ranks: %{{y:.4g}} ms<extra></extra>",
        )
    shown = COUNTS[::2]
    figure.update_xaxes(
        title={"text": "ranks"}, type="log", tickvals=shown, ticktext=[str(n) for n in shown]
    )
    figure.update_yaxes(title={"text": "all gradients, ms"}, rangemode="tozero")
    why = (
        f"{format_bytes(whole)} of gradients in {plural(count, 'bucket')}: each takes 2 log2(ranks)"
        f" hops of {values['latency']:g} µs, and 2 (ranks - 1) / ranks of its bytes at"
        f" {values['bandwidth']:g} GB/s."
    )
    summary = (
        f"All gradients' all_reduce takes {first} on 2 and {last} on {COUNTS[-1]:,} ranks: {hidden}"
    )
    return Drawn(summary, figure, join(el("p", why), _errors(line, _reduces(case))))


def _errors(line: MessageCost, rows: Sequence[Measurement]) -> Markup:
    """How far the model is off where the case has measurements."""
    if not rows:
        return el(
            "p",
            "Nothing was measured here that could show its error: run a live test with stages"
            " first.",
        )
    cells = []
    errors = []
    for measurement in rows:
        planned = line.all_reduce(measurement.ranks, measurement.bytes)
        error = planned / measurement.time_us - 1
        errors.append(abs(error))
        cells.append(
            (
                plural(measurement.ranks, "rank"),
                format_bytes(measurement.bytes),
                format_time(measurement.time_us),
                format_time(planned),
                f"{100 * error:+.0f} %",
            )
        )
    usual = 100 * statistics.median(errors)
    said = f"Where it was measured the model is off by {usual:.0f} % (median)."
    head = ("Ranks", "Size", "Measured", "Planned", "Error")
    return join(
        el("p", said), fold("Planned beside measured", fit(table(head, cells, "nk-numbers")))
    )


PLANNERS: Mapping[str, tuple[Callable[[Case], Fields], Answer]] = {
    "timeout": (_timeout_fields, _timeout),
    "workers": (_workers_fields, _workers),
    "host_memory": (_host_fields, _host_memory),
    "gpu_memory": (_gpu_fields, _gpu_memory),
    "files": (_files_fields, _files),
    "scaling": (_scaling_fields, _scaling),
}
"""Name → the fields that a case fills, and what follows from them."""
