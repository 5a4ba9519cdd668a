"""Telemetry of a run or an attached job.

What hosts, GPUs and ranks did each second, beside its phases.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from ncclkit.core.case import Case
from ncclkit.core.model import Event, safe
from ncclkit.core.text import format_bytes, plural
from ncclkit.views import _draw, plots
from ncclkit.views._base import Drawn, View
from ncclkit.views._html import Markup, el, table

GIB, MIB = 1 << 30, 1 << 20
MAX_POINTS = 400
"""Points of a line at most; longer telemetry is thinned, its highest points kept."""
EACH = 8
"""Up to so many GPUs have a line of their own; beyond, the lowest and the highest of each
second."""
PHASES = {
    "init": "joined",
    "pairs": "last pair",
    "size": "last size",
    "error": "error",
    "done": "done",
}
"""Phases that are marked, and how; of each the last that a rank told."""
MOST = 1e18
"""Bytes, seconds since the epoch and everything else of a sample are below it."""
LARGEST = 64 * MIB
"""Bytes that are read of one file: about a day."""

Sample = Mapping[str, Any]
Curve = tuple[str, list[float | None]]


def telemetry_view(case: Case) -> View:
    """What the host, its GPUs and the ranks did while the last run, or a job, was watched; each
    host has a row.
    """
    watched = (run_telemetry_view(run, case.events) for run in reversed(case.runs()))
    none = View(
        "No run of this case was watched: telemetry is recorded by live tests and by attach",
        Markup(""),
    )
    return next((view for view in watched if view is not None), none)


def run_telemetry_view(run: Path, events: Iterable[Event]) -> Drawn | None:
    """The telemetry of one run folder, in step with the phases that these events tell.

    None where it has none.
    """
    hosts = _by_host(run)
    if not hosts:
        return None
    start = min(samples[0]["t"] for samples in hosts.values())
    host, samples = max(hosts.items(), key=lambda item: _peak(item[1], _memory_share))
    cells = {title: [of(one) for one in hosts.values()] for title, of in COLUMNS.items()}
    filled = {title: column for title, column in cells.items() if any(column)}
    named = [el("span", name, cls="nk-whole") for name in hosts]
    rows = zip(
        named, *([cell or "–" for cell in column] for column in filled.values()), strict=True
    )
    figure = _figure(samples, start, _phases(events, run.name, start))
    if len(hosts) == 1:
        which = ""
    else:
        which = f"; drawn is {host}, the one with the fullest memory"
    return Drawn(f"{_summary(host, samples)}{which}", figure, table(("Host", *filled), rows))


def _by_host(run: Path) -> dict[str, list[Sample]]:
    """Host → its samples in order of time."""
    hosts: dict[str, list[Sample]] = {}
    for path in sorted(run.glob("telemetry*.jsonl*")):
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for line in file.read(LARGEST).splitlines():
                sample = _sample(line)
                if sample is not None:
                    hosts.setdefault(sample["host"], []).append(sample)
    return {
        host: sorted(samples, key=lambda sample: float(sample["t"]))
        for host, samples in hosts.items()
    }


def _sample(line: bytes) -> Sample | None:
    """One line of telemetry; None for one that is torn or is no sample."""
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(sample, dict) or not all(
        _is_number(sample.get(name)) for name in ("t", "memory", "memory_total")
    ):
        return None
    numbers = {name: sample[name] for name in ("cpu", "swap") if _is_number(sample.get(name))}
    rates = {name: _rows(sample, name, _is_number) for name in ("net", "pressure")}
    ranks = {
        "utilization": _rows(sample, "utilization"),
        "scheduling": _rows(sample, "scheduling", _is_row),
    }
    gpus = sample.get("gpus") if isinstance(sample.get("gpus"), list) else []
    always = {name: sample[name] for name in ("t", "memory", "memory_total")}
    return {
        "host": str(sample.get("host", "")),
        **always,
        **numbers,
        **rates,
        **ranks,
        "gpus": gpus,
    }


def _rows(
    sample: Sample, name: str, is_right: Callable[[object], bool] = lambda row: True
) -> Mapping[str, Any]:
    """What a sample holds under this name, such as the rate of each interface.

    Without what is of another type.
    """
    rows = sample.get(name)
    if isinstance(rows, dict):
        return {key: row for key, row in rows.items() if is_right(row)}
    return {}


def _is_number(value: object) -> bool:
    """Whether it is a number that a host can have: JSON knows infinite ones, too."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -MOST < value < MOST


def _summary(host: str, samples: Sequence[Sample]) -> str:
    first, last = samples[0]["t"], samples[-1]["t"]
    total = samples[-1]["memory_total"] / GIB
    cpu = _peak(samples, lambda s: s.get("cpu"))
    memory = _peak(samples, lambda s: s["memory"]) / GIB
    swap = _peak(samples, lambda s: s.get("swap"))
    parts = [f"CPU at most {cpu:.0f} %", f"memory at most {memory:.1f} of {total:.1f} GiB"]
    parts.append(f"{format_bytes(swap)} of swap in use" if swap else "no swap in use")
    gpus = [_gpu_peak(samples, column) for column in (0, 1)]
    if gpus[0]:
        parts.append(
            f"GPU memory at most {gpus[0] / 1024:.1f} GiB, GPUs busy up to {gpus[1]:.0f} %"
        )
    return f"{plural(round(last - first), 'second')} on {host}: {', '.join(parts)}"


def _peak(samples: Iterable[Sample], of: Callable[[Sample], Any]) -> float:
    return max((float(value) for sample in samples if _is_number(value := of(sample))), default=0.0)


def _memory_share(sample: Sample) -> float:
    return float(sample["memory"]) / max(float(sample["memory_total"]), 1.0)


def _gpu_peak(samples: Iterable[Sample], column: int) -> float:
    return max(_of_gpus(samples, column), default=0.0)


def _of_gpus(samples: Iterable[Sample], column: int) -> list[float]:
    """What is known of any GPU at any time."""
    found: list[float] = []
    for sample in samples:
        for gpu in _gpus(sample):
            if _is_number(gpu[column]):
                found.append(float(gpu[column]))
    return found


def _gpu_range(samples: Iterable[Sample], column: int, unit: str) -> str:
    """``210–1980 MHz``, of all GPUs over all of the telemetry; empty where it is not known."""
    values = _of_gpus(samples, column)
    if values:
        return f"{min(values):.0f}–{max(values):.0f} {unit}"
    return ""


def _fastest(samples: Sequence[Sample]) -> str:
    """The highest traffic of one interface, in and out together, and its name."""
    moved = [(rate, name) for s in samples for name, rate in s["net"].items()]
    rate, name = max(moved, default=(0, ""))
    if rate:
        return f"{format_bytes(rate)}/s on {name}"
    return ""


COLUMNS: Mapping[str, Callable[[Sequence[Sample]], str]] = {
    "Seconds": lambda samples: f"{samples[-1]['t'] - samples[0]['t']:.0f}",
    "CPU, highest": lambda samples: f"{_peak(samples, lambda s: s.get('cpu')):.0f} %",
    "Memory, highest": lambda samples: f"{100 * _peak(samples, _memory_share):.0f} %",
    "Swap": lambda samples: format_bytes(_peak(samples, lambda s: s.get("swap"))),
    "Waited for memory": lambda samples: (
        f"{_peak(samples, lambda s: s['pressure'].get('memory')):.0f} %"
    ),
    "Network, highest": _fastest,
    "GPU memory, highest": lambda samples: (
        f"{peak / 1024:.1f} GiB" if (peak := _gpu_peak(samples, 0)) else ""
    ),
    "GPUs busy": lambda samples: _gpu_range(samples, 1, "%"),
    "GPU power": lambda samples: _gpu_range(samples, 2, "W"),
    "GPU clock": lambda samples: _gpu_range(samples, 3, "MHz"),
    "GPU temperature": lambda samples: _gpu_range(samples, 4, "°C"),
}
"""Columns of the table, each with what it says of a host; one that says nothing of any host is left
out."""


def _gpus(sample: Sample) -> list[list[Any]]:
    return [row for row in sample["gpus"] if isinstance(row, list) and len(row) == 5]


def _phases(events: Iterable[Event], run: str, start: float) -> dict[str, float]:
    """Phase of the ranks → seconds into the telemetry at which the last rank reached it."""
    found: dict[str, float] = {}
    for event in events:
        if event.kind == "worker.phase" and event.time is not None and f"/{run}/" in event.path:
            phase = str(event.data.get("phase"))
            found[phase] = max(found.get(phase, 0.0), event.time - start)
    return {words: found[phase] for phase, words in PHASES.items() if phase in found}


def _figure(samples: Sequence[Sample], start: float, phases: Mapping[str, float]) -> go.Figure:
    """One row for each quantity, all over the same seconds."""
    thin = _thinned(samples)
    rows = [
        (title, moving) for title, curves in _curves(thin) if (moving := _moving(title, curves))
    ]
    times = [sample["t"] - start for sample in thin]
    titles = [_draw.titled(title, [name for name, _ in curves]) for title, curves in rows]
    figure = _draw.panels(titles, "seconds since the watching began", 108)
    for place, (_, curves) in enumerate(rows, 1):
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
    figure.update_layout(hovermode="x unified")
    for place, (phase, second) in enumerate(phases.items()):
        figure.add_vline(x=second, line={"color": plots.VERMILLION, "width": 1, "dash": "dot"})
        look: dict[str, Any] = {
            "font": {"color": plots.VERMILLION, "size": 11},
            "yanchor": "bottom",
            "yshift": 16,
        }
        look["yshift"] += 14 * (place % 2)  # two that come together stand one above the other
        figure.add_annotation(
            x=second, y=1.0, yref="paper", text=safe(phase), showarrow=False, **look
        )
    return figure


def _thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    """At most `MAX_POINTS` of them; of each bunch the one with the fullest memory stays."""
    bunch = -(-len(samples) // MAX_POINTS)
    if bunch == 1:
        return samples
    return [
        max(samples[at : at + bunch], key=_memory_share) for at in range(0, len(samples), bunch)
    ]


def _curves(samples: Sequence[Sample]) -> list[tuple[str, list[Curve]]]:
    """Title with unit → its curves."""
    named = (("a core", "cpu"), ("memory", "memory"), ("io", "io"))
    waits = [
        (f"waited for {name}", [s["pressure"].get(kind) for s in samples]) for name, kind in named
    ]
    nets = sorted({name for s in samples for name in s["net"]})
    traffic = [(name, [s["net"].get(name, 0) / MIB for s in samples]) for name in nets]
    swap = []
    if any(s.get("swap") for s in samples):
        swap = [("swap", [s.get("swap", 0) / GIB for s in samples])]
    return [
        ("GPU, %", _each(samples, 1, 1.0)),
        ("GPU, GiB", _each(samples, 0, 1024.0)),
        ("GPU, W", _each(samples, 2, 1.0)),
        ("GPU, MHz", _each(samples, 3, 1.0)),
        ("GPU, °C", _each(samples, 4, 1.0)),
        ("CPU, %", [("CPU", [s.get("cpu") for s in samples]), *waits]),
        ("ranks, % of a core", _of_ranks(samples, ("cpu",), 1.0)),
        ("queue for cores", _queues(samples)),
        ("host, GiB", [("memory", [s["memory"] / GIB for s in samples]), *swap]),
        ("net, MiB/s", sorted(traffic, key=lambda curve: -max(curve[1]))[:3]),
        ("ranks by TCP, MiB/s", _of_ranks(samples, ("sent", "received"), MIB)),
    ]


def _moving(title: str, curves: Sequence[Curve]) -> list[Curve]:
    """The curves worth drawing.

    Where one rank does something, that the others do nothing is worth it too.
    """
    moving = [curve for curve in curves if any(curve[1])]
    known = [curve for curve in curves if any(value is not None for value in curve[1])]
    if moving and title.startswith("ranks"):
        return known
    return moving


def _of_ranks(samples: Sequence[Sample], names: Sequence[str], unit: float) -> list[Curve]:
    """A curve for each rank, the sum of these rates.

    Or the lowest and the highest of many ranks.
    """
    rows: list[Mapping[str, Any]] = [s["utilization"] for s in samples]
    ranks = sorted({rank for row in rows for rank in row}, key=lambda rank: (len(rank), rank))
    curves = [
        (f"rank {rank}", [_sum(row.get(rank), names, unit) for row in rows]) for rank in ranks
    ]
    if len(curves) <= EACH:
        return curves
    moments = []
    for moment in zip(*(c[1] for c in curves), strict=True):
        moments.append([value for value in moment if value is not None])
    extremes = (("highest rank", max), ("lowest", min))
    return [(name, [of(known, default=None) for known in moments]) for name, of in extremes]


def _sum(row: object, names: Sequence[str], unit: float) -> float | None:
    known = []
    if isinstance(row, dict):
        known = [row.get(name) for name in names]
    whole = [
        float(value) for value in known if isinstance(value, (int, float)) and _is_number(value)
    ]
    if known and len(whole) == len(known):
        return sum(whole) / unit
    return None


def _queues(samples: Sequence[Sample]) -> list[Curve]:
    """Of each rank, how many of its processes waited for a core; the longest queues first."""
    totals = [s["scheduling"] for s in samples]
    curves = []
    for rank in sorted({rank for total in totals for rank in total}):
        waited = [total[rank][3] if rank in total else None for total in totals]
        pairs = zip(samples, samples[1:], waited, waited[1:], strict=False)
        queue = [None if a is None or b is None else _rate(b - a, x, y) for x, y, a, b in pairs]
        curves.append((f"rank {rank}", [None, *queue]))
    return sorted(
        curves, key=lambda curve: -max((value or 0.0 for value in curve[1]), default=0.0)
    )[:EACH]


def _rate(change: float, one: Sample, next_one: Sample) -> float:
    return max(0.0, change) / max(float(next_one["t"]) - float(one["t"]), 1e-3)


def _is_row(row: object) -> bool:
    return isinstance(row, list) and len(row) == 5 and all(map(_is_number, row))


def _each(samples: Sequence[Sample], column: int, unit: float) -> list[Curve]:
    """A curve for each GPU, or the lowest and the highest of many."""
    table = []
    for s in samples:
        table.append([row[column] / unit if _is_number(row[column]) else None for row in _gpus(s)])
    count = max(map(len, table), default=0)
    if count <= EACH:
        return [
            (f"GPU {gpu}", [row[gpu] if gpu < len(row) else None for row in table])
            for gpu in range(count)
        ]
    known = [[value for value in row if value is not None] for row in table]
    return [
        ("highest GPU", [max(r, default=None) for r in known]),
        ("lowest", [min(r, default=None) for r in known]),
    ]
