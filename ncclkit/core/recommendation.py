"""The one thing to do after a sweep, in one sentence.

It tells also what would have been seen.  In comes a `Sweep`, out goes the first line of its answer.

Begin at `recommendation`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from ncclkit.core.protection import protects
from ncclkit.core.text import format_bytes, format_time, percent, plural
from ncclkit.core.tuning import (
    WORTH,
    Advantage,
    Comparison,
    Setting,
    Sweep,
    config_files,
    is_harmless,
)

SMALL = 64 << 10
"""Bytes up to which a message is mostly latency; what a sweep would have seen differs there."""
BLIND = 0.5
"""A sweep that would have seen only gains of over this share has seen nothing."""
NOISY = 0.1
"""A sweep that would have missed a gain of this share does not tell whether there is one."""
SOURCED = "nccl.env"
"""The file that a job sources."""
BY_SIZE = ("tuner.csv", "process_group.py")
"""Files that name settings for some messages only."""


def recommendation(sweep: Sweep) -> str:
    """What to do, in one sentence; also that nothing is to be done."""
    best = sweep.best
    if sweep.harmful:
        return _unset_in_words(sweep)
    if best is None:
        return f"{nothing_in_words(sweep)} {visible_in_words(sweep)}".rstrip()
    gains = _gains_in_words(sweep, best.setting)
    if any(one.worse for one in _under_computation(sweep, best)):
        lost = f"Set nothing: {best.setting} gains {gains}, but loses under computation,"
        return f"{lost} as in a job."
    if is_harmless(sweep, best.setting):
        more = _lasting_in_words(sweep, best)
        if sweep.calls:
            saved = percent(sweep.time_saved(best.setting), 1)
            more = f"{more}, {saved} of the time of your job's calls"
        # what the environment sets already is measured against its absence
        verb = "Set"
        if best.setting.env.keys() <= set(sweep.cleared) and not best.setting.config:
            verb = "Keep"
        return f"{verb} {assignments(best.setting)}: {gains}, {more}."
    return _only_for_some(sweep, best, gains)


def answer_lines(sweep: Sweep) -> list[str]:
    """The recommendation and, of a sweep that was interrupted, what is missing."""
    lines = [recommendation(sweep)]
    if sweep.unfinished:
        lines.append(sweep.unfinished)
    return lines


def detail_lines(sweep: Sweep) -> list[str]:
    """What stands behind the recommendation, without what it says already."""
    lines = sweep.text().splitlines()
    if lines and recommendation(sweep).startswith(lines[0]):
        return lines[1:]
    return lines


def pair_in_words(sweep: Sweep, op: str, size: int) -> str:
    """What was measured of one collective and size: the default, and what took least time."""
    found: list[Comparison] = []
    for rows in (sweep.comparisons, sweep.seen):
        # the rounds that decide, where there were any
        found = found or [one for one in rows if (one.op, one.bytes) == (op, size)]
    quickest = max(found, key=lambda one: one.gain)
    usual = format_time(statistics.median(quickest.default_us))
    words = f"{op:<14} {format_bytes(size):>8}  default {usual:>8}"
    if quickest.gain < WORTH:
        return f"{words}  nothing was quicker"
    return f"{words}  {percent(quickest.gain)} less with {quickest.setting}"


def nothing_in_words(sweep: Sweep) -> str:
    """That no setting gains, or that nobody can tell, as much would have been missed."""
    if not is_undecided(sweep):
        return sweep.headline
    tried = f"{plural(sweep.tried, 'setting')} in {sweep.seconds:.0f} s"
    return f"Too noisy to tell whether anything beats the default: {tried}."


def is_undecided(sweep: Sweep) -> bool:
    """Whether a sweep without a gain would have missed even a large one."""
    least_of = _least_visible(sweep)
    return sweep.best is None and bool(least_of) and min(least_of.values()) > NOISY


def _least_visible(sweep: Sweep) -> dict[str, float]:
    """Sizes in words → the smallest gain that the sweep would usually have shown there."""
    if not sweep.tried:
        return {}
    border = format_bytes(SMALL)
    gains: dict[str, list[float]] = {}
    for one in sorted(sweep.plain, key=lambda one: one.bytes):
        where = f"up to {border}" if one.bytes <= SMALL else f"above {border}"
        gains.setdefault(where, []).append(one.visible)
    return {where: statistics.median(visible) for where, visible in gains.items()}


def visible_in_words(sweep: Sweep) -> str:
    """Which gains the sweep would have shown; empty where its rounds do not tell."""
    shown = []
    blind = []
    for where, least in _least_visible(sweep).items():
        if least > BLIND:
            blind.append(where)
        else:
            shown.append(f"{percent(least)} {where}")
    said = []
    if shown:
        said.append(f"A gain of about {' and '.join(shown)} would have been seen.")
    if blind:
        where = " and ".join(blind)
        if not shown and len(blind) > 1:
            where = "at any size"
        said.append(f"Noise would have hidden any gain {where}.")
    return " ".join(said)


def assignments(setting: Setting) -> str:
    """``NCCL_MIN_CTAS=NCCL_MAX_CTAS=32``: variables of one value together."""
    by_value: dict[str, list[str]] = {}
    for name, value in setting.variables.items():
        by_value.setdefault(value, []).append(name)
    parts = []
    for value, names in by_value.items():
        parts.append(f"{'='.join(names)}={value}")
    return " ".join(parts)


def _gains_in_words(sweep: Sweep, setting: Setting) -> str:
    """``4 to 7 % of all_reduce and broadcast from 16 MiB up``."""
    better: dict[str, list[Comparison]] = {}
    for one in sweep.comparisons:
        if one.better and one.setting == setting:
            better.setdefault(one.op, []).append(one)
    ops_by_span: dict[str, list[str]] = {}
    for op, rows in better.items():
        span = _span_in_words(rows, _measured_sizes(sweep, op))
        ops_by_span.setdefault(span, []).append(op)
    parts = []
    for span, ops in ops_by_span.items():
        gains = []
        for op in ops:
            for one in better[op]:
                gains.append(one.gain)
        named = _ops_in_words(sweep, ops)
        parts.append(f"{_range_in_percent(gains)} of {named} {span}")
    return "; ".join(parts)


def _measured_sizes(sweep: Sweep, op: str) -> list[int]:
    """The sizes of a collective that were measured, smallest first."""
    sizes = set()
    for one in (*sweep.comparisons, *sweep.seen):
        if one.op == op:
            sizes.add(one.bytes)
    return sorted(sizes)


def _span_in_words(rows: Sequence[Comparison], measured: Sequence[int]) -> str:
    """``from 16 MiB up`` where every measured size from there on is among the rows."""
    sizes = sorted({one.bytes for one in rows})
    least, largest = sizes[0], sizes[-1]
    first, last = format_bytes(least), format_bytes(largest)
    inside = [size for size in measured if least <= size <= largest]
    if inside != sizes:
        named = []
        for size in sizes:
            named.append(format_bytes(size))
        return f"at {_listed(named)}"
    if len(measured) == 1:
        return f"at {first}"
    if len(sizes) == len(measured):
        return "at all measured sizes"
    if largest == measured[-1]:
        return f"from {first} up"
    if least == measured[0]:
        return f"up to {last}"
    if least == largest:
        return f"at {first}"
    return f"from {first} to {last}"


def _ops_in_words(sweep: Sweep, ops: Sequence[str]) -> str:
    """``all 3 collectives`` where these are all that were measured."""
    measured = {one.op for one in (*sweep.comparisons, *sweep.seen)}
    if len(ops) > 2 and measured == set(ops):
        return f"all {len(ops)} collectives"
    return _listed(ops)


def _listed(words: Sequence[str]) -> str:
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _range_in_percent(gains: Iterable[float]) -> str:
    """``4 to 7 %``."""
    ordered = sorted(gains)
    least, most = percent(ordered[0]), percent(ordered[-1])
    if least == most:
        return most
    return f"{least.removesuffix(' %')} to {most}"


def _lasting_in_words(sweep: Sweep, best: Advantage) -> str:
    """Whether it lasts under computation, by all sizes on which that was measured."""
    beside = _under_computation(sweep, best)
    if not beside:
        return "not measured under computation"
    if any(one.better for one in beside):
        return "also under computation"
    return "under computation too little to be told from chance"


def _under_computation(sweep: Sweep, best: Advantage) -> list[Comparison]:
    """The same setting under computation, on every collective."""
    rows = []
    for one in sweep.beside:
        if one.setting == best.setting:
            rows.append(one)
    return rows


def _only_for_some(sweep: Sweep, best: Advantage, gains: str) -> str:
    """What gains on some sizes and may cost on others: no variable, but another file may do."""
    said = f"Set nothing for all sizes: {best.setting} gains {gains}, but others take longer,"
    said = f"{said} or seem to"
    files: Mapping[str, object] = config_files(sweep)
    for name in BY_SIZE:
        if name in files:
            return f"{said}; {name} sets it for those."
    return f"{said}."


def _unset_in_words(sweep: Sweep) -> str:
    """The inherited variables that only cost."""
    worst: dict[str, float] = {}
    for one in sweep.comparisons:
        for name in one.setting.env:
            if one.worse and name in sweep.harmful:
                # its gain is negative: so much of the time is saved without it
                worst[name] = max(worst.get(name, 0.0), 1 - 1 / (1 - one.gain))
    named = " ".join(sweep.harmful)
    variables = "it"
    if len(sweep.harmful) > 1:
        variables = f"these {plural(len(sweep.harmful), 'variable')}"
    if not worst:
        return f"Unset {named}: values came out wrong with {variables}."
    most = percent(max(worst.values()))
    said = f"Unset {named}: without {variables} calls take up to {most} less time."
    protecting = _protecting(sweep)
    if protecting:
        return f"{said} Ask first who set {protecting}: it protects, or switches hardware off."
    return said


def _protecting(sweep: Sweep) -> str:
    """Which of the variables that only cost are such; somebody named them, or they were left."""
    for one in sweep.comparisons:
        for name, value in one.setting.env.items():
            if name in sweep.harmful and protects(name, value):
                return f"{name}={value}"
    return ""
