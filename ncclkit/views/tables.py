"""The table of measurements, and the map of a case folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from itertools import compress
from pathlib import Path

from ncclkit.core import storage
from ncclkit.core.case import Case
from ncclkit.core.experiment_records import FOLDER, experiments
from ncclkit.core.model import Measurement, NcclkitError
from ncclkit.core.text import format_bytes, format_number, format_time, plural
from ncclkit.views._base import View
from ncclkit.views._html import Markup, code, el, fit, fold, join, pre, table

FILES = {
    "case.json": "what was asked, when and with which versions",
    "facts.jsonl": "what is known about each host, and where it was read",
    "events.jsonl": "what the logs say, line by line",
    "measurements.jsonl": "every timed collective",
    "findings.json": "the verdict on each cause",
    "inputs.json": "which files were read (they stay where they are)",
    "report.html": "this investigation as one page that needs no network",
}
"""The files of a case folder, each with one line of explanation (the contract is DESIGN's section 4)."""

HEAD = ("Collective", "Size", "busbw GB/s", "At most GB/s", "Ratio", "Wrong", "{median}", "{p99}", "algbw GB/s")
TIMES, BATCHED = ("Time, median", "Time, p99"), ("Median, batches", "p99, single calls")
TWO = (
    "The median is of batches of calls and p99 of single calls, timed one after the other: on a busy machine either "
    "can be the longer one."
)
OPTIONAL = {"busbw GB/s", "At most GB/s", "Ratio", "In a CUDA graph", "Run"}
"""Columns that are left out where no row has a value."""
MAIL = (
    "A colleague can run `ncclkit diagnose FILE.tar.gz`, unpack and open it (ncclkit.Case.open), or read report.html "
    "in any browser."
)


def measurement_table(rows: Iterable[Measurement], expected: float | None = None) -> Markup:
    """One row per measurement: size, times, bandwidths; `expected` (busbw, GB/s) where a row carries none.

    On paper and on a phone a wide table would be cut: collective, run and bound stand in it only where there are
    several, algbw where it is not busbw.
    """
    rows = list(rows)
    single = bool(rows) and all(m.singles for m in rows)
    median, tail = BATCHED if single else TIMES
    head = [name.format(median=median, p99=tail) for name in (*HEAD, "In a CUDA graph", "Run")]
    several = len({m.run for m in rows}) > 1
    body = [
        (m.op, *_measured(m, m.expected or expected), format_time(m.graph_us), m.run if several else "–") for m in rows
    ]
    shown = [name not in OPTIONAL or any(row[place] != "–" for row in body) for place, name in enumerate(head)]
    shown[0] = len({m.op for m in rows}) > 1
    shown[head.index("At most GB/s")] &= len({m.expected or expected for m in rows}) > 1
    shown[head.index("algbw GB/s")] = any(m.algbw != m.busbw for m in rows)
    wide = table([*compress(head, shown)], [[*compress(row, shown)] for row in body], "nk-numbers")
    return join(fit(wide), el("p", TWO, cls="nk-dim") if single else "")


def case_view(case: Case) -> View:
    """Where everything of this case is, what each file holds, and how to mail it."""
    if case.path is None:
        return View("This case is in memory only; Case.open(folder) makes one that stays", Markup(""))
    here = [(case.path / name, words) for name, words in FILES.items() if (case.path / name).is_file()]
    kept = [(code(path.name), words, format_bytes(path.stat().st_size)) for path, words in here]
    runs = [(code(f"runs/{run.name}/"), _run_words(run), plural(_files(run), "file")) for run in case.runs()]
    asked = [(code(f"{FOLDER}/{made.folder.name}/"), f"{made.kind}: {made.summary}", "–") for made in experiments(case)]
    pack = shlex.join(["tar", "czf", f"{case.path.name}.tar.gz", "-C", str(case.path.parent), case.path.name])
    body = join(
        table(("Where", "What it holds", "Size"), [*kept, *runs, *asked]),
        el("h5", "To mail it"),
        pre(pack),
        el("p", MAIL, cls="nk-dim"),
        fold("What the case counts", el("p", repr(case))),
    )
    return View(f"Everything is in {case.path}", body)


def _measured(m: Measurement, expected: float | None) -> tuple[object, ...]:
    ratio = f"{100 * m.busbw / expected:.0f} %" if m.busbw is not None and expected else "–"
    wrong = el("b", f"✕ {m.wrong:,}", cls="nk-bad") if m.wrong else "–" if m.wrong is None else "0"
    return (
        format_bytes(m.bytes),
        _speed(m.busbw),
        _speed(expected),
        ratio,
        wrong,
        format_time(m.time_us),
        format_time(m.p99_us),
        _speed(m.algbw),
    )


def _speed(value: float | None) -> str:
    """A bandwidth in GB/s; of the smallest messages it says nothing that their time does not."""
    if value is None:
        return "–"
    return "< 0.001" if 0 < value < 0.001 else format_number(value)


def _files(folder: Path) -> int:
    return sum(1 for path in folder.iterdir() if path.is_file())


def _run_words(folder: Path) -> str:
    """What a run's own ``status.json`` says of its end; a run without one was cut off."""
    try:
        status = storage.parse(storage.content(folder / "status.json"))
    except (OSError, ValueError, NcclkitError) as error:
        return f"run without a readable status.json ({type(error).__name__}): still running, or cut off"
    said = status.get("say") or status.get("reason") if isinstance(status, dict) else None
    return f"run: {said}" if said else "run: plan, wire records, one log per rank"
