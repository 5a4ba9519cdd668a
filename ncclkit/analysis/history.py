"""The same test at several times: how its speed moved, and why.

It tells what changed on the hosts between.  A case stands for one time.  A baseline is what one
case measured, kept in a file of the cluster, so that every later live test can be compared with it.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from ncclkit.analysis.consistency import compare
from ncclkit.analysis.steps import StepTimes, last_steps
from ncclkit.core import storage
from ncclkit.core.case import Case
from ncclkit.core.event_list import known_hosts
from ncclkit.core.model import Fact, Measurement, NcclkitError
from ncclkit.core.text import format_bytes, format_time, natural, percent, plural

FILE = "NCCLKIT_BASELINE"
"""Variable that names the file of the baseline where nobody says otherwise."""
LEAST = 0.05
"""Share of a call's time below which a difference is never told.

Above it, a difference must exceed the spread of both.
"""

Key = tuple[str, str, int, int, int, str]
"""Collective, data type, bytes, ranks, hosts, backend: what is the same test."""


@dataclass(frozen=True, slots=True)
class Change:
    """One message size of one collective, then and now."""

    op: str
    bytes: int
    before: float
    """Microseconds of a call."""
    after: float
    noise: float
    """Share below which the difference says nothing: the larger spread of the two."""

    @property
    def slower(self) -> float:
        """Share by which a call takes longer now; negative where it is faster."""
        return self.after / self.before - 1

    @property
    def matters(self) -> bool:
        """Whether the difference exceeds what repeats of the same test show."""
        return abs(self.slower) > self.noise

    def __str__(self) -> str:
        took = f"{format_time(self.before)} → {format_time(self.after)}"
        word = "faster"
        if self.slower > 0:
            word = "slower"
        difference = "no difference beyond its spread"
        if self.matters:
            difference = f"{percent(abs(self.slower))} {word}"
        return f"{self.op} of {format_bytes(self.bytes)}: {difference}, {took} a call"


@dataclass(frozen=True, slots=True)
class History:
    """Cases in order of time: the first against the last, and the curves of all."""

    labels: tuple[str, ...]
    curves: Mapping[str, tuple[Measurement, ...]]
    """Label → what that case measured of the tests that the last one holds, too."""
    changes: tuple[Change, ...]
    differences: tuple[str, ...]
    """What is not the same on the hosts, ``NCCL: 2.26 → 2.27``, what can break or slow a job
    first."""
    step: tuple[float, float] | None = None
    """Seconds of a training step, first and last, where both cases measured one."""
    without_facts: tuple[str, ...] = ()
    """Of the first and the last label: those whose case holds no facts of hosts."""

    @property
    def worst(self) -> Change | None:
        """The size that lost or gained most; a loss counts more than any gain."""
        notable = [one for one in self.changes if one.matters]
        return max(
            notable,
            # rounded, so that of nearly equal losses that of the largest message stands
            key=lambda one: (one.slower > 0, round(abs(one.slower), 2), one.bytes),
            default=None,
        )

    @property
    def summary(self) -> str:
        """How the speed moved, and what changed between, in one sentence."""
        first = self.labels[0]
        between = self._between()
        if not self.changes and self.step is None:
            return f"{self.labels[-1]} and {first} hold no test that both made{between}."
        if self.step is None:
            step = ""
        else:
            step = f"A training step took {_ms(self.step[0])}, now {_ms(self.step[1])}. "
        if not self.changes:
            return f"{step}{self.labels[-1]} against {first}{between}."
        if self.worst is None:
            count = plural(len(self.changes), "size")
            return f"{step}As fast as {first}: no difference beyond the spread on {count}{between}."
        alike = []
        for one in self.changes:
            if one.matters and (one.slower > 0) == (self.worst.slower > 0):
                alike.append(one)
        more = ""
        if len(alike) > 1:
            more = f", and so on {len(alike) - 1} more of {plural(len(self.changes), 'size')}"
        return f"{step}Against {first}: {self.worst}{more}{between}."

    def _between(self) -> str:
        if self.differences:
            return f"; between them changed {_few(self.differences)}"
        if self.without_facts:
            return f"; what else changed is unknown: no facts of {' and '.join(self.without_facts)}"
        return "; nothing else changed"

    def text(self) -> str:
        """The summary, each size, and each change of the hosts."""
        rows = [self.summary, "", *(str(one) for one in self.changes)]
        return "\n".join(
            [*rows, *(["", "Changed between:"] if self.differences else []), *self.differences]
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        changes = []
        for one in self.changes:
            changes.append(asdict(one) | {"slower": one.slower, "matters": one.matters})
        values = {"cases": list(self.labels), "summary": self.summary, "changes": changes}
        curves = {}
        for label, rows in self.curves.items():
            curves[label] = [asdict(m) for m in rows]
        return values | {"differences": list(self.differences), "step": self.step, "curves": curves}


def history(cases: Mapping[str, Case], steps: Mapping[str, StepTimes] | None = None) -> History:
    """Cases by their labels, the oldest first, side by side.

    `steps` are of those that measured a training step.  Raises NcclkitError for fewer than two.
    """
    if len(cases) < 2:
        raise NcclkitError(
            "Name at least two cases, the older first; or save a baseline to compare one case with."
        )
    labels = tuple(cases)
    tests = {label: _tests(case.measurements) for label, case in cases.items()}
    first, last = tests[labels[0]], tests[labels[-1]]
    both = [key for key in last if key in first]
    changes = tuple(_change(first[key], last[key]) for key in sorted(both))
    # without the bytes: another size is still a point of the same curve
    wanted = {key[:2] + key[3:] for key in last}
    curves = {}
    for label, rows in tests.items():
        # by its label, as a figure names curves by their runs
        curves[label] = tuple(
            replace(m, run=label) for key, m in rows.items() if key[:2] + key[3:] in wanted
        )
    known = steps or {}
    step = None
    if labels[0] in known and labels[-1] in known:
        step = known[labels[0]].seconds, known[labels[-1]].seconds
    ends = labels[0], labels[-1]
    unnamed = []
    for label in ends:
        if not any(fact.host for fact in cases[label].facts):
            unnamed.append(label)
    without_facts = tuple(unnamed)
    return History(
        labels,
        curves,
        changes,
        _differences(*(cases[label] for label in ends)),
        step,
        without_facts,
    )


def _tests(rows: Iterable[Measurement]) -> dict[Key, Measurement]:
    """The last measurement of each test."""
    return {(m.op, m.dtype, m.bytes, m.ranks, m.hosts, m.backend): m for m in rows}


def _change(before: Measurement, after: Measurement) -> Change:
    noise = max(LEAST, before.spread or 0.0, after.spread or 0.0)
    return Change(after.op, after.bytes, before.time_us, after.time_us, noise)


def _differences(before: Case, after: Case) -> tuple[str, ...]:
    """What is not the same on a host that both name.

    Where they name no common host, it compares the first of each.  It tells also the variables of
    the tests.
    """
    hosts = [known_hosts(case.facts) for case in (before, after)]
    shared = sorted(hosts[0] & hosts[1], key=natural)
    chosen = [shared[:1] or sorted(names, key=natural)[:1] for names in hosts]
    facts = []
    # names of their own, as one host at two times would be compared with itself
    for name, case, mine in zip(("0", "1"), (before, after), chosen, strict=True):
        for fact in case.facts:
            if fact.host in mine:
                facts.append(replace(fact, host=name))
    differences = []
    for found in compare(facts).differences:
        values = {}
        for group in found.groups:
            for host in group.hosts:
                values[host] = group.value
        differences.append(f"{found.title}: {values['0']} → {values['1']}")
    return (*differences, *_variables(before, after))


def _variables(before: Case, after: Case) -> list[str]:
    """Variables that the last test of each was given, where they differ."""
    given = []
    for case in before, after:
        if case.measurements:
            given.append(dict(case.measurements[-1].env))
        else:
            given.append({})
    names = sorted(
        name for name in given[0].keys() | given[1].keys() if OWN.fullmatch(name) is None
    )
    differing_names = []
    for name in names:
        if given[0].get(name) != given[1].get(name):
            differing_names.append(
                f"{name}: {given[0].get(name, 'not set')} → {given[1].get(name, 'not set')}"
            )
    return differing_names


OWN = re.compile(r"(?:TORCH_FR|TORCH_NCCL_(?:TRACE|DEBUG|DUMP)|NCCL_DEBUG|NCCLKIT|PYTHON)\w*")
"""Variables with which ncclkit records a run; they name its folder."""


def _few(differences: Sequence[str]) -> str:
    return ", ".join(differences[:3]) + (
        f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    )


def _ms(seconds: float) -> str:
    return format_time(1e6 * seconds)


# ---------------------------------------------------------------- the baseline of a cluster


class _Kept(TypedDict):
    """The file of a baseline."""

    ncclkit_baseline: int
    cluster: str
    saved: str
    measurements: list[Measurement]
    facts: list[Fact]


def cluster() -> str:
    """The name of this cluster: Slurm's, else this host's."""
    return os.environ.get("SLURM_CLUSTER_NAME") or socket.gethostname().partition(".")[0]


def baseline_file() -> Path:
    """Where the baseline of this cluster lies.

    It is ``$NCCLKIT_BASELINE``, else a file of this user named by the cluster.
    """
    given = os.environ.get(FILE)
    if given:
        return Path(given).expanduser()
    home = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    # the cluster's name comes from the environment, and becomes that of a file
    return home / "ncclkit" / f"baseline-{re.sub(r'[^A-Za-z0-9_.-]+', '_', cluster())}.json"


def save_baseline(case: Case, path: Path | None = None) -> Path:
    """Keep what a case measured as the baseline of this cluster.

    Raises NcclkitError where it measured nothing.
    """
    if not case.measurements:
        raise NcclkitError("This case holds no measurement; run `ncclkit probe` first.")
    file = path or baseline_file()
    kept = {
        "ncclkit_baseline": 1,
        "cluster": cluster(),
        "saved": str(case.about.get("created", "")),
    }
    rows = [asdict(m) for m in _tests(case.measurements).values()]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        storage.write(
            file,
            json.dumps(kept | {"measurements": rows, "facts": [asdict(f) for f in case.facts]}),
        )
    except OSError as error:
        raise NcclkitError(
            f"Cannot write the baseline {file}: {error.strerror or error}."
        ) from error
    return file


def baseline(path: Path | None = None) -> tuple[str, Case] | None:
    """The label and the records of this cluster's baseline.

    It is None where there is no baseline.
    """
    file = path or baseline_file()
    if not file.exists():
        return None
    kept = msgspec.convert(storage.read_json(file, {}, _Kept), _Kept)
    case = Case(read_only=True)
    case.measurements = kept["measurements"]
    case.facts = kept["facts"]
    return f"baseline of {kept['saved'][:10] or kept['cluster']}", case


def beside_baseline(rows: Sequence[Measurement]) -> tuple[str, tuple[Measurement, ...]]:
    """One sentence on a run against this cluster's baseline, and its curve.

    It is ("", ()) where no baseline fits.
    """
    known = None
    if rows:
        known = baseline()
    if known is None:
        return "", ()
    label, kept = known
    before = _tests(kept.measurements)
    after = _tests(rows)
    changes = []
    for key in after:
        if key in before:
            changes.append(_change(before[key], after[key]))
    if not changes:
        return "", ()
    notable = [one for one in changes if one.matters]
    sizes = plural(len(changes), "size")
    comparison = f"no difference beyond the spread on {sizes}"
    if notable:
        counts = {
            "faster": sum(one.slower < 0 for one in notable),
            "slower": sum(one.slower > 0 for one in notable),
        }
        counted = []
        for word, count in counts.items():
            if count:
                counted.append(f"{word} on {count}")
        how = " and ".join(counted)
        comparison = f"{how} of {sizes}, most {max(notable, key=lambda one: abs(one.slower))}"
    first = next(iter(after.values()))
    # without the bytes: another size is still a point of the same curve
    wanted = {(*key[:2], *key[3:]) for key in after}
    curve = []
    for key, m in before.items():
        if m.op == first.op and (*key[:2], *key[3:]) in wanted:
            curve.append(m)
    return f"Against the {label}: {comparison}.", tuple(replace(m, run=label) for m in curve)


def compare_cases(named: Sequence[Case | str | Path], file: Path | None = None) -> History:
    """Cases, the oldest first, side by side.

    One alone is compared with the baseline of this cluster, or that of a file.  Raises NcclkitError
    where there is nothing to compare with.
    """
    opened = [one if isinstance(one, Case) else Case.open(one, read_only=True) for one in named]
    cases: dict[str, Case] = {}
    if len(opened) == 1:
        label, kept = baseline(file) or ("", None)
        if kept is None:
            raise NcclkitError(
                "This cluster has no baseline; name an older case first, or save one:"
                " --save-baseline."
            )
        cases[label] = kept
    for number, case in enumerate(opened, 1):
        if case.path:
            name = case.path.name
        else:
            name = f"case {number}"
        # two folders of one name are told apart by their paths
        alike = (
            name in cases
            or sum(one.path is not None and one.path.name == name for one in opened) > 1
        )
        cases[str(case.path) if alike and case.path else name] = case
    measured = {label: times for label, case in cases.items() if (times := last_steps(case)[0])}
    return history(cases, measured)
