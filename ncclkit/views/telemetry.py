"""Telemetry of a run or an attached job.

It shows what hosts, GPUs and ranks did each second, beside its phases.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

import plotly.graph_objects as go

from ncclkit.core.case import Case
from ncclkit.core.model import Event, safe
from ncclkit.core.text import format_bytes, plural
from ncclkit.views import _draw, plots
from ncclkit.views._base import Drawn, View, shows_runs
from ncclkit.views._html import Markup, el, table
from ncclkit.views._missing import NoData

GIB, MIB = 1 << 30, 1 << 20
MAX_POINTS = 400
"""Points of a line at most.

Longer telemetry is thinned, its highest points kept.
"""
EACH = 8
"""GPUs up to which each has a line of its own.

Beyond, it is the lowest and the highest of each second.
"""
PHASES = {
    "init": "joined",
    "pairs": "last pair",
    "size": "last size",
    "error": "error",
    "done": "done",
}
"""Phases that are marked, and how; of each the last that a rank told."""
GPU_MEMORY, GPU_BUSY, GPU_POWER, GPU_CLOCK, GPU_HEAT = range(5)
"""Columns of a GPU's row in a sample."""
WAITED = 3
"""Column of a rank's scheduling: seconds that its processes waited for a core, all together."""
MOST = 1e18
"""Bytes, seconds since the epoch and everything else of a sample are below it."""
LARGEST = 64 * MIB
"""Bytes that are read of one file: about a day."""

ALWAYS = ("t", "memory", "memory_total")
"""What every sample holds; a line without any of them is none."""

Sample = Mapping[str, Any]
Curve = tuple[str, list[float | None]]


def watched_runs(case: Case) -> list[Path]:
    """The runs that left telemetry; one of facts was not watched."""
    return [run for run in case.runs() if any(run.glob("telemetry*.jsonl*"))]


def _view_of_run(case: Case, run: Path) -> View:
    view = run_telemetry_view(run, case.events)
    return view or View(f"{run.name} left no telemetry that can be read", Markup(""))


@shows_runs(watched_runs, _view_of_run)
def telemetry_view(case: Case) -> View:
    """What host, GPUs and ranks did while a run was watched.

    It is the last run, or a job; each host has a row.
    """
    # the last run that has any: a run of facts is not watched
    for run in reversed(case.runs()):
        view = run_telemetry_view(run, case.events)
        if view is not None:
            return view
    why = "No run of this case was watched: telemetry is recorded by live tests and by attach"
    return NoData("telemetry", "no run of this case was watched", why)


def run_telemetry_view(run: Path, events: Iterable[Event]) -> Drawn | None:
    """The telemetry of one run folder, in step with its phases.

    These events tell the phases; None where the folder has no telemetry.
    """
    hosts = _samples_by_host(run)
    if not hosts:
        return None
    # hosts began at different moments, and share one axis
    start = min(samples[0]["t"] for samples in hosts.values())
    host, samples = max(hosts.items(), key=lambda item: _peak(item[1], _memory_share))
    figure = _curves_figure(samples, start, _last_phases(events, run.name, start))
    summary = _summary(host, samples)
    if len(hosts) > 1:
        # one host's curves are enough to read; the fullest memory is the likeliest trouble
        summary += f"; drawn is {host}, the one with the fullest memory"
    return Drawn(summary, figure, _table_of_hosts(hosts))


def _table_of_hosts(hosts: Mapping[str, Sequence[Sample]]) -> Markup:
    """One row for each host.

    A column that says nothing of any host is left out.
    """
    head = ["Host"]
    columns: list[list[object]] = [[el("span", name, cls="nk-whole") for name in hosts]]
    for title, cell_of in COLUMNS.items():
        cells = [cell_of(samples) for samples in hosts.values()]
        if any(cells):
            head.append(title)
            columns.append([cell or "–" for cell in cells])
    return table(head, zip(*columns, strict=True))


def _samples_by_host(run: Path) -> dict[str, list[Sample]]:
    """Host → its samples in order of time."""
    hosts: dict[str, list[Sample]] = {}
    for path in sorted(run.glob("telemetry*.jsonl*")):
        for line in _content(path).splitlines():
            sample = _parsed_sample(line)
            if sample is not None:
                hosts.setdefault(sample["host"], []).append(sample)
    # hosts write side by side, and one that was started again begins anew
    for samples in hosts.values():
        samples.sort(key=lambda sample: float(sample["t"]))
    return hosts


def _content(path: Path) -> bytes:
    if path.suffix == ".gz":
        with gzip.open(path) as packed:
            # never more, as an archive may unpack to terabytes
            return packed.read(LARGEST)
    with path.open("rb") as file:
        return file.read(LARGEST)


def _parsed_sample(line: bytes) -> Sample | None:
    """One line of telemetry.

    It is None for one that is torn or is no sample.
    """
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(sample, dict):
        return None
    # a line that was cut by a full disk may still be JSON
    if not all(_is_number(sample.get(name)) for name in ALWAYS):
        return None
    found: dict[str, Any] = {"host": str(sample.get("host", ""))}
    for name in ALWAYS:
        found[name] = sample[name]
    for name in ("cpu", "swap"):
        if _is_number(sample.get(name)):
            found[name] = sample[name]
    found["net"] = _checked_rows(sample, "net", _is_number)
    found["pressure"] = _checked_rows(sample, "pressure", _is_number)
    found["utilization"] = _checked_rows(sample, "utilization")
    found["scheduling"] = _checked_rows(sample, "scheduling", _is_scheduling)
    found["gpus"] = []
    if isinstance(sample.get("gpus"), list):
        found["gpus"] = sample["gpus"]
    return found


def _checked_rows(
    sample: Sample, name: str, is_right: Callable[[object], bool] = lambda row: True
) -> Mapping[str, Any]:
    """What a sample holds under this name, such as the rate of each interface.

    What is of another type is left out.
    """
    rows = sample.get(name)
    if isinstance(rows, dict):
        return {key: row for key, row in rows.items() if is_right(row)}
    return {}


def _is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that a host can have."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    # JSON knows infinite ones, too
    return -MOST < value < MOST


def _summary(host: str, samples: Sequence[Sample]) -> str:
    first = samples[0]["t"]
    last = samples[-1]["t"]
    total = samples[-1]["memory_total"] / GIB
    cpu = _peak(samples, _cpu_of)
    memory = _peak(samples, _memory_of) / GIB
    swap = _peak(samples, _swap_of)
    parts = [
        f"CPU at most {cpu:.0f} %",
        f"memory at most {memory:.1f} of {total:.1f} GiB",
    ]
    if swap:
        parts.append(f"{format_bytes(swap)} of swap in use")
    else:
        parts.append("no swap in use")
    gpu_memory = _gpu_peak(samples, GPU_MEMORY) / 1024
    gpu_busy = _gpu_peak(samples, GPU_BUSY)
    if gpu_memory:
        parts.append(f"GPU memory at most {gpu_memory:.1f} GiB, GPUs busy up to {gpu_busy:.0f} %")
    seconds = plural(round(last - first), "second")
    return f"{seconds} on {host}: {', '.join(parts)}"


def _peak(samples: Iterable[Sample], value_of: Callable[[Sample], Any]) -> float:
    highest = 0.0
    for value in map(value_of, samples):
        if _is_number(value):
            highest = max(highest, float(value))
    return highest


def _cpu_of(sample: Sample) -> Any:
    return sample.get("cpu")


def _memory_of(sample: Sample) -> Any:
    return sample["memory"]


def _swap_of(sample: Sample) -> Any:
    return sample.get("swap")


def _memory_wait_of(sample: Sample) -> Any:
    return sample["pressure"].get("memory")


def _memory_share(sample: Sample) -> float:
    # a total of 0 would be divided by
    total = max(float(sample["memory_total"]), 1.0)
    return float(sample["memory"]) / total


def _gpu_peak(samples: Iterable[Sample], column: int) -> float:
    return max(_values_of_gpus(samples, column), default=0.0)


def _values_of_gpus(samples: Iterable[Sample], column: int) -> list[float]:
    """What is known of any GPU at any time."""
    found: list[float] = []
    for sample in samples:
        for gpu in _gpu_rows(sample):
            if _is_number(gpu[column]):
                found.append(float(gpu[column]))
    return found


def _gpu_range(samples: Iterable[Sample], column: int, unit: str) -> str:
    """``210–1980 MHz``, of all GPUs over all of the telemetry.

    It is empty where that is not known.
    """
    values = _values_of_gpus(samples, column)
    if values:
        return f"{min(values):.0f}–{max(values):.0f} {unit}"
    return ""


def _gpu_memory_words(samples: Sequence[Sample]) -> str:
    peak = _gpu_peak(samples, GPU_MEMORY)
    if peak:
        return f"{peak / 1024:.1f} GiB"
    return ""


def _fastest_interface(samples: Sequence[Sample]) -> str:
    """The highest traffic of one interface, and its name.

    The traffic is in and out together.
    """
    moved = []
    for sample in samples:
        for name, rate in sample["net"].items():
            moved.append((rate, name))
    rate, name = max(moved, default=(0, ""))
    if rate:
        return f"{format_bytes(rate)}/s on {name}"
    return ""


COLUMNS: Mapping[str, Callable[[Sequence[Sample]], str]] = {
    "Seconds": lambda samples: f"{samples[-1]['t'] - samples[0]['t']:.0f}",
    "CPU, highest": lambda samples: f"{_peak(samples, _cpu_of):.0f} %",
    "Memory, highest": lambda samples: f"{100 * _peak(samples, _memory_share):.0f} %",
    "Swap": lambda samples: format_bytes(_peak(samples, _swap_of)),
    "Waited for memory": lambda samples: f"{_peak(samples, _memory_wait_of):.0f} %",
    "Network, highest": _fastest_interface,
    "GPU memory, highest": lambda samples: _gpu_memory_words(samples),
    "GPUs busy": lambda samples: _gpu_range(samples, GPU_BUSY, "%"),
    "GPU power": lambda samples: _gpu_range(samples, GPU_POWER, "W"),
    "GPU clock": lambda samples: _gpu_range(samples, GPU_CLOCK, "MHz"),
    "GPU temperature": lambda samples: _gpu_range(samples, GPU_HEAT, "°C"),
}
"""Columns of the table, each with what it says of a host; one that says nothing of any host is left
out."""


def _gpu_rows(sample: Sample) -> list[list[Any]]:
    whole_rows = []
    # in a row of another length nobody knows which column is which
    for row in sample["gpus"]:
        if isinstance(row, list) and len(row) == 5:
            whole_rows.append(row)
    return whole_rows


def _last_phases(events: Iterable[Event], run: str, start: float) -> dict[str, float]:
    """Phase of the ranks → seconds at which the last rank reached it.

    The seconds count from the start of the telemetry.
    """
    found: dict[str, float] = {}
    for event in events:
        if event.kind != "worker.phase" or event.time is None:
            continue
        # a case holds phases of all its runs
        if f"/{run}/" in event.path:
            phase = str(event.data.phase)
            second = event.time - start
            found[phase] = max(found.get(phase, 0.0), second)
    return {words: found[phase] for phase, words in PHASES.items() if phase in found}


def _curves_figure(
    samples: Sequence[Sample], start: float, phases: Mapping[str, float]
) -> go.Figure:
    """One row for each quantity, all over the same seconds."""
    thin = _thinned(samples)
    rows: list[list[Curve]] = []
    titles: list[str] = []
    for title, curves in _all_curves(thin):
        moving = _moving_curves(title, curves)
        # a curve that is zero throughout says nothing, and takes a line of the page
        if moving:
            rows.append(moving)
            titles.append(_draw.titled(title, [name for name, _ in moving]))
    times = [sample["t"] - start for sample in thin]
    figure = _draw.panels(titles, "seconds since the watching began", 108)
    for place, curves in enumerate(rows, 1):
        for index, (name, values) in enumerate(curves):
            figure.add_scatter(
                x=times,
                y=values,
                name=safe(name),
                mode="lines",
                line=_draw.of_name(name, index) | {"width": 2},
                hovertemplate=f"{safe(name)}: %{{y:.4g}} at %{{x:.0f}} s<extra></extra>",
                row=place,
                col=1,
            )
    figure.update_yaxes(rangemode="tozero")
    # what happened in one second is compared across all panels
    figure.update_layout(hovermode="x unified")
    for place, (phase, second) in enumerate(phases.items()):
        figure.add_vline(x=second, line={"color": plots.VERMILLION, "width": 1, "dash": "dot"})
        # two that come together stand one above the other
        above = 16 + 14 * (place % 2)
        figure.add_annotation(
            x=second,
            y=1.0,
            yref="paper",
            text=safe(phase),
            showarrow=False,
            font={"color": plots.VERMILLION, "size": 11},
            yanchor="bottom",
            yshift=above,
        )
    return figure


def _thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    """At most `MAX_POINTS` of the samples.

    Of each bunch the one with the fullest memory stays.
    """
    # rounded up, so that there are never more than `MAX_POINTS`
    bunch = -(-len(samples) // MAX_POINTS)
    if bunch == 1:
        return samples
    thin = []
    for at in range(0, len(samples), bunch):
        # whole samples, so that curves of one second stay of one second
        thin.append(max(samples[at : at + bunch], key=_memory_share))
    return thin


def _all_curves(samples: Sequence[Sample]) -> list[tuple[str, list[Curve]]]:
    """Title with unit → its curves."""
    return [
        ("GPU, %", _gpu_curves(samples, GPU_BUSY, 1.0)),
        ("GPU, GiB", _gpu_curves(samples, GPU_MEMORY, 1024.0)),
        ("GPU, W", _gpu_curves(samples, GPU_POWER, 1.0)),
        ("GPU, MHz", _gpu_curves(samples, GPU_CLOCK, 1.0)),
        ("GPU, °C", _gpu_curves(samples, GPU_HEAT, 1.0)),
        ("CPU, %", _cpu_curves(samples)),
        ("ranks, % of a core", _rank_curves(samples, ("cpu",), 1.0)),
        ("queue for cores", _queue_curves(samples)),
        ("host, GiB", _memory_curves(samples)),
        ("net, MiB/s", _traffic_curves(samples)),
        ("ranks by TCP, MiB/s", _rank_curves(samples, ("sent", "received"), MIB)),
    ]


def _cpu_curves(samples: Sequence[Sample]) -> list[Curve]:
    """How busy the cores were, and the share of time in which something waited."""
    curves: list[Curve] = [("CPU", [sample.get("cpu") for sample in samples])]
    for name, kind in (("a core", "cpu"), ("memory", "memory"), ("io", "io")):
        waited = [sample["pressure"].get(kind) for sample in samples]
        curves.append((f"waited for {name}", waited))
    return curves


def _memory_curves(samples: Sequence[Sample]) -> list[Curve]:
    curves: list[Curve] = [("memory", [sample["memory"] / GIB for sample in samples])]
    swap: list[float | None] = [sample.get("swap", 0) / GIB for sample in samples]
    if any(swap):
        curves.append(("swap", swap))
    return curves


def _traffic_curves(samples: Sequence[Sample]) -> list[Curve]:
    """The three interfaces with the highest traffic."""
    interfaces = set()
    for sample in samples:
        interfaces.update(sample["net"])
    names = sorted(interfaces)
    ranked = []
    for name in names:
        rates: list[float | None] = [sample["net"].get(name, 0) / MIB for sample in samples]
        highest = max(rate or 0.0 for rate in rates)
        ranked.append((-highest, (name, rates)))
    ranked.sort(key=lambda row: row[0])
    return [curve for _, curve in ranked[:3]]


def _moving_curves(title: str, curves: Sequence[Curve]) -> list[Curve]:
    """The curves worth drawing.

    Where one rank does something, that the others do nothing is worth it too.
    """
    moving = [curve for curve in curves if any(curve[1])]
    known = []
    for curve in curves:
        if any(value is not None for value in curve[1]):
            known.append(curve)
    if moving and title.startswith("ranks"):
        return known
    return moving


def _rank_curves(samples: Sequence[Sample], names: Sequence[str], unit: float) -> list[Curve]:
    """A curve for each rank, the sum of these rates.

    Of many ranks it is the lowest and the highest.
    """
    rows: list[Mapping[str, Any]] = [sample["utilization"] for sample in samples]
    # by number: rank 10 stands behind rank 9
    seen_ranks: set[str] = set()
    for row in rows:
        seen_ranks.update(row)
    ranks = sorted(seen_ranks, key=lambda rank: (len(rank), rank))
    curves: list[Curve] = []
    for rank in ranks:
        values = [_sum_of_rates(row.get(rank), names, unit) for row in rows]
        curves.append((f"rank {rank}", values))
    if len(curves) <= EACH:
        return curves
    moments = []
    # moments, not ranks: the highest of each second may be another rank each time
    for moment in zip(*(values for _, values in curves), strict=True):
        moments.append([value for value in moment if value is not None])
    return _extreme_curves("highest rank", moments)


def _extreme_curves(highest: str, moments: Sequence[Sequence[float]]) -> list[Curve]:
    """The highest and the lowest of each moment.

    It is None where nothing is known of it.
    """
    return [
        (highest, [max(known, default=None) for known in moments]),
        ("lowest", [min(known, default=None) for known in moments]),
    ]


def _sum_of_rates(row: object, names: Sequence[str], unit: float) -> float | None:
    """The sum of these rates; None where one of them is not known.

    The sum of the others would be too low.
    """
    if not isinstance(row, dict):
        return None
    total = 0.0
    for name in names:
        value = row.get(name)
        if not _is_number(value):
            return None
        total += float(value)
    return total / unit


def _queue_curves(samples: Sequence[Sample]) -> list[Curve]:
    """Of each rank, how many of its processes waited for a core.

    The longest queues come first.
    """
    seen_ranks = set()
    for sample in samples:
        seen_ranks.update(sample["scheduling"])
    ranks = sorted(seen_ranks)
    ranked = []
    for rank in ranks:
        # of the first sample there is no change yet
        queue: list[float | None] = [None]
        for before, after in pairwise(samples):
            queue.append(_queue_between(before, after, rank))
        longest = max(value or 0.0 for value in queue)
        ranked.append((-longest, (f"rank {rank}", queue)))
    ranked.sort(key=lambda row: row[0])
    return [curve for _, curve in ranked[:EACH]]


def _queue_between(before: Sample, after: Sample, rank: str) -> float | None:
    """Processes of a rank that waited for a core between two samples, on average."""
    first = before["scheduling"].get(rank)
    second = after["scheduling"].get(rank)
    if first is None or second is None:
        return None
    # a process that ended takes its waits along, so the sum can fall
    waited = max(0.0, float(second[WAITED] - first[WAITED]))
    seconds = float(after["t"]) - float(before["t"])
    # samples of one moment must not be divided by
    return waited / max(seconds, 1e-3)


def _is_scheduling(row: object) -> bool:
    return isinstance(row, list) and len(row) == 5 and all(map(_is_number, row))


def _gpu_curves(samples: Sequence[Sample], column: int, unit: float) -> list[Curve]:
    """A curve for each GPU, or the lowest and the highest of many."""
    moments: list[list[float | None]] = []
    for sample in samples:
        values: list[float | None] = []
        for row in _gpu_rows(sample):
            value = None
            if _is_number(row[column]):
                value = row[column] / unit
            values.append(value)
        moments.append(values)
    # one sample may have come before nvidia-smi answered
    count = max(map(len, moments), default=0)
    if count > EACH:
        known = []
        for values in moments:
            known.append([value for value in values if value is not None])
        return _extreme_curves("highest GPU", known)
    curves: list[Curve] = []
    for gpu in range(count):
        # a sample of a moment at which nvidia-smi listed fewer
        one = [values[gpu] if gpu < len(values) else None for values in moments]
        curves.append((f"GPU {gpu}", one))
    return curves
