"""The case folder: the contract between notebooks, command line and colleagues.

    <case>/
      case.json         what was asked, when, where, versions, schema number
      facts.jsonl  events.jsonl  measurements.jsonl  findings.json
      runs/<n>-<name>/  plan.json status.json wire.jsonl rank*.log launcher.log
                        fr_rank_* ras*.* stacks_rank*.txt
      sweeps/<n>-tune/  sweep.json, and nccl.env and others that carry its answer
      jobs/<n>-<verb>/  job.sbatch job.json job.out job.err exit
                        outcome.json end.json
      experiments/<n>-<cause>/  experiment.json, and in .case/ the runs of that experiment or fix
      inputs.json       which files were read, their size and kind
      report.html       and report-<notebook>.html of each other notebook

Files are replaced whole and atomically, so a full disk or a killed kernel
leaves the previous contents; nothing that was collected is ever lost.  Several
programs may write one case: each adds what it changed to what the folder holds
by then, under `storage.locked`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shlex
import socket
import stat
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import accumulate, groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload

import msgspec

from ncclkit import __version__
from ncclkit.agent.digits import is_whole
from ncclkit.core import storage, subjects, text
from ncclkit.core.event_list import EventList
from ncclkit.core.kinds import KINDS, Fields, NcclDestroy, NcclInit
from ncclkit.core.model import (
    Event,
    Fact,
    Finding,
    Measurement,
    NcclkitError,
    fields_of,
    to_json,
)

if TYPE_CHECKING:
    import pandas as pd

OTHERS = stat.S_IWGRP | stat.S_IWOTH
"""Rights to write that are not the user's own."""
SCHEMA = 2
"""Of case folders; 1 was that of ncclkit 0.1.0, whose files have other names and words."""
RUN = re.compile(r"(?P<runs>^|.*/)runs/(?P<n>\d+)-(?P<name>[^/]*)/")
"""Path of a file in a run folder."""
TEST = "connect"
"""Name of the runs that test connections: they stand beside the runs of jobs and take no place of
theirs."""

RECORDS = ("facts", "events", "measurements", "findings", "inputs")
"""What a case holds lists of."""


class _About(TypedDict, total=False):
    """What of ``case.json`` is worked with; whatever else it holds stays."""

    schema: int
    asked: list[dict[str, Any]]
    problems: list[str]


class _Input(msgspec.Struct):
    """What a row of ``inputs.json`` holds at least."""

    path: str
    bytes: int
    lines: int
    kind: str
    events: int
    errors: int = 0


T = TypeVar("T")
FieldsT = TypeVar("FieldsT", bound=Fields)
Record = Fact | Event | Measurement | Finding


class Case:
    """The records of one investigation, in memory, with or without a folder behind them."""

    def __init__(self, path: Path | None = None, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self.about: dict[str, Any] = {
            "schema": SCHEMA,
            "created": _now(),
            "ncclkit": __version__,
            "python": platform.python_version(),
            "host": socket.gethostname(),
            "asked": [],
        }
        self.facts: list[Fact] = []
        self.events = []
        self.measurements: list[Measurement] = []
        self.findings: list[Finding] = []
        self.inputs: list[dict[str, Any]] = []
        self._known = self._kept()
        """What was read from the folder, or written there."""

    @property
    def events(self) -> list[Event]:
        """What the logs say, in their order; it may be added to, and replaced."""
        return self._events

    @events.setter
    def events(self, events: Iterable[Event]) -> None:
        if isinstance(events, EventList):
            self._events = events
        else:
            self._events = EventList(events)

    @classmethod
    def open(cls, path: str | Path, *, read_only: bool = False) -> Case:
        """Open the case folder `path`, or make it; raises NcclkitError in one sentence.

        Where others may make folders, too, a new one is its user's alone; one that is there keeps
        its mode, so whoever wants to share a case makes its folder first.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise NcclkitError(
                f"The case folder must be a path in quotes, but it is {path!r}"
                f" ({type(path).__name__})."
            )
        if not os.fspath(path).strip():
            raise NcclkitError(
                "The case folder has no name; name one with --case or case_dir, such as ./case."
            )
        folder = Path(path).expanduser().absolute()
        case = cls(folder, read_only=read_only)
        try:
            if not read_only:
                folder.parent.mkdir(parents=True, exist_ok=True)
                folder.mkdir(
                    0o700 if folder.parent.stat().st_mode & OTHERS else 0o777, exist_ok=True
                )
            case._load(folder)
        except OSError as error:
            raise NcclkitError(
                f"Cannot open the case folder {folder}: {error.strerror or error}; name a folder"
                " you may write to."
            ) from error
        if not read_only and not os.access(folder, os.W_OK):
            raise NcclkitError(
                f"The case folder {folder} is not writable; name another with --case or case_dir."
            )
        return case

    def _load(self, folder: Path) -> None:
        # the schema is looked at before any record, whose fields may have other names in it
        about = storage.read_json(folder / "case.json", {}, _About)
        known = about.get("schema", SCHEMA)
        if known != SCHEMA:
            if known == 1:
                writer, what = "ncclkit 0.1.0", "use that release"
            else:
                writer, what = "another ncclkit", "upgrade"
            raise NcclkitError(
                f"{folder} was written by {writer} (schema {known}, this one reads {SCHEMA});"
                f" {what}, or diagnose the logs of its runs with a new case folder."
            )
        self.about.update(about)
        self.facts = list(storage.read_records(Fact, folder / "facts.jsonl"))
        self.measurements = list(storage.read_records(Measurement, folder / "measurements.jsonl"))
        self.events = list(storage.read_events(folder / "events.jsonl"))
        self.findings = storage.read_findings(folder / "findings.json")
        self.inputs = storage.read_json(folder / "inputs.json", [], list[_Input])
        self._known = self._kept()

    def reload(self) -> Case:
        """Take what other programs have written to the folder meanwhile.

        What changed here is written first.
        """
        if self.path is not None:
            self.save()._load(self.path)
        return self

    def _kept(self) -> dict[str, Any]:
        """What the folder holds of this case, in containers of their own."""
        about = self.about | {"asked": list(self.about.get("asked", ()))}
        return {"about": about} | {name: list(getattr(self, name)) for name in RECORDS}

    def add(self, records: Iterable[Record]) -> Case:
        """Add records, each once; an equal record that is already here is left out."""
        stores: dict[type, list[Any]] = {
            Fact: self.facts,
            Event: self.events,
            Measurement: self.measurements,
            Finding: self.findings,
        }
        # by JSON, as records hold lists and mappings, which cannot be hashed
        seen = {to_json(record) for store in stores.values() for record in store}
        for record in records:
            key = to_json(record)
            if key not in seen:
                seen.add(key)
                stores[type(record)].append(record)
        return self

    def replace_facts(self, facts: Iterable[Fact]) -> Case:
        """Newer readings take the place of older ones of the same name, host and rank."""
        fresh = {(fact.name, fact.host, fact.rank): fact for fact in facts}
        kept = [fact for fact in self.facts if (fact.name, fact.host, fact.rank) not in fresh]
        self.facts = kept + list(fresh.values())
        return self

    @overload
    def of(self, *kinds: str, **fields: Any) -> list[Event]: ...

    @overload
    def of(self, *kinds: type[FieldsT], **fields: Any) -> list[Event[FieldsT]]: ...

    def of(self, *kinds: str | type[Fields], **fields: Any) -> list[Event]:
        """Events of these kinds, one kind after the other.

        ``of("c10d.")`` gives a family, every c10d event; ``of(NcclDestroy)`` is
        ``of("nccl.destroy")``, and type checkers know what its events say.  With `fields` it gives
        only events that have these fields, with these values.  Raises TypeError for a field that
        none of the kinds has.
        """
        names = []
        for kind in kinds:
            if isinstance(kind, str):
                names.append(kind)
            else:
                names.append(kind.kind)
        found: list[Event] = []
        for name in names:
            if name.endswith("."):
                found += self._events.of_family(name)
            else:
                found += self._events.of_kind(name)
        if fields:
            return _with_fields(found, names, fields)
        return found

    def on(self, rank: int) -> list[Event]:
        """Events of one rank."""
        return self._events.of_rank(rank)

    def facts_of(self, name: str) -> list[Fact]:
        """Facts of one name (``limits.shm.free``) or family (``gpu.``), over all hosts."""
        if name.endswith("."):
            return [fact for fact in self.facts if fact.name.startswith(name)]
        return [fact for fact in self.facts if fact.name == name]

    def to_frame(
        self, records: Literal["events", "facts", "measurements", "findings"]
    ) -> pd.DataFrame:
        """These records as a pandas data frame, one a row.

        It is for questions that no view answers.
        """
        import pandas as pd  # half a second: only those who ask pay

        kinds: dict[str, Any] = {
            "events": Event,
            "facts": Fact,
            "measurements": Measurement,
            "findings": Finding,
        }
        rows = [_as_row(record) for record in getattr(self, records)]
        return pd.DataFrame(rows, columns=[field.name for field in fields(kinds[records])])

    def fact(self, name: str, default: Any = None) -> Any:
        """The value of the first fact of that name that could be read."""
        for fact in self.facts_of(name):
            if fact.value is not None:
                return fact.value
        return default

    def warning_of_other_writers(self) -> str:
        """Who else can write the case folder, and how that ends, in one sentence.

        It is empty where nobody can.
        """
        # the folder's own rights decide: whoever may write there may replace any file in it
        if self.path is None:
            return ""
        mode = self.path.stat().st_mode & OTHERS
        if not mode:
            return ""
        who = "The group"
        if mode & stat.S_IWOTH:
            who = "Everybody"
        path = shlex.quote(str(self.path))
        return (
            f"{who} can write {self.path}, and so change what is found in it; chmod go-w {path}"
            " ends that."
        )

    def earlier(self) -> str:
        """Which runs came before the last one, in one sentence, or nothing.

        The sentence says also how old the newest of them is.
        """
        # runs that only read facts judged no job
        runs = [folder for folder in self.runs()[:-1] if not folder.name.endswith("-facts")]
        if not runs:
            return ""
        age = text.format_age(max(0.0, time.time() - runs[-1].stat().st_mtime))
        return (
            f"{self.path} holds {text.plural(len(runs), 'earlier run')} (the last: {runs[-1].name},"
            f" {age} ago)"
        )

    def run_alone(self, folder: Path) -> Case:
        """What one run folder of this case holds, without all other runs.

        It comes in memory, with the facts of the hosts of that run.
        """
        inside = f"{folder}/"
        scope = Case()
        scope.facts = self.facts
        scope.events = [event for event in self.events if event.path.startswith(inside)]
        scope.measurements = [row for row in self.measurements if row.run == folder.name]
        scope.inputs = [row for row in self.inputs if str(row.get("path")).startswith(inside)]
        return scope

    def new_run(self, name: str) -> Path:
        """Make the next run folder, ``runs/<n>-<name>``."""
        folder = self.new_folder("runs", name)
        self.about.setdefault("asked", []).append({"run": folder.name, "time": _now()})
        return folder

    def next_folder(self, kind: str, name: str) -> Path:
        """Where `new_folder` would make a folder now."""
        # a name may come from a user's word and becomes a path
        slug = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "run"
        last = 0
        for folder in self.folders(kind):
            last = max(last, _number_of_folder(folder))
        place = self.path or Path()
        return place / kind / f"{last + 1}-{slug}"

    def new_folder(self, kind: str, name: str) -> Path:
        """Make the next folder ``<kind>/<n>-<name>`` of this case.

        It is that of a run, a job or an experiment.
        """
        if self.path is None:
            raise NcclkitError(
                "This case has no folder; open one with Case.open(path) before running anything."
            )
        place = self.path / kind
        try:
            place.mkdir(exist_ok=True)
            # two programs that count at once would take the same number
            with storage.locked(self.path):
                folder = self.next_folder(kind, name)
                folder.mkdir()
        except OSError as error:
            raise NcclkitError(
                f"Cannot make a folder in {place}: {error.strerror}; free space or name another"
                " case."
            ) from error
        return folder

    def runs(self) -> list[Path]:
        """Run folders, oldest first."""
        return self.folders("runs")

    def folders(self, kind: str) -> list[Path]:
        """The folders ``<kind>/<n>-<name>`` of this case, oldest first."""
        if self.path is None or not (self.path / kind).is_dir():
            return []
        found = []
        for p in (self.path / kind).iterdir():
            if p.is_dir() and is_whole(p.name.split("-")[0]):
                found.append(p)
        return sorted(found, key=_number_of_folder)

    def latest(self) -> Case:
        """This case as its last run left it, in memory.

        Of our own runs' events it holds those of the last one, and the facts of the hosts it ran
        on.  Logs of another job that were read into this folder give way to a run that came after
        them.

        An earlier run that was broken must not count in the diagnosis of the one that shows it
        fixed; a test of connections and a run of a job say different things, so the last one of
        each counts.
        """
        scope = Case()
        scope.measurements = self.measurements
        inputs = self.inputs
        of_last_runs = self._events_of_last_runs()
        kept_events = subjects.events_of_one_job(of_last_runs, self._is_of_own_run)
        if len(kept_events) < len(of_last_runs):
            inputs = subjects.inputs_of_one_job(inputs, kept_events, self._is_of_own_run)
        scope.facts = subjects.facts_of_job(self.facts, kept_events)
        # in this order: lines of an attempt that failed are looked for only below jobs that ended
        # well
        attempt = _last_attempt(kept_events)
        ended = _jobs_that_ended(attempt, inputs)
        ended |= _attempts_that_failed(_events_below(attempt, ended))
        scope.events = _events_below(attempt, ended)
        if ended:
            scope.inputs = [_row_below(row, ended.get(row["path"], 0)) for row in inputs]
        else:
            scope.inputs = inputs
        return scope

    def _events_of_last_runs(self) -> list[Event]:
        """Of our own runs, the events of the last of each kind.

        All events that are of no run of ours stay.
        """
        runs = {}
        for path in {event.path for event in self.events}:
            runs[path] = RUN.search(path)
        # logs of others may lie in a folder that is called runs/, too: only what our own runs
        # leave counts
        ours = set()
        for event in self.of("run.end", "worker.phase", "connect.host", "attach.rank"):
            run = runs[event.path]
            if run:
                ours.add(run["runs"])
        # each of several case folders has a last run of its own
        last: dict[tuple[str, bool], int] = {}
        for run in runs.values():
            if run and run["runs"] in ours:
                kind = run["runs"], run["name"] == TEST
                last[kind] = max(last.get(kind, 0), int(run["n"]))
        jobs = set()
        for (_, is_test), number in last.items():
            if not is_test:
                jobs.add(str(number))

        def tried(event: Event) -> bool:
            """Whether an experiment is about a last run, or about no run of ours."""
            baseline = str(event.data.baseline or "")
            return not baseline or baseline.split("-")[0] in jobs

        def current(event: Event, run: re.Match[str]) -> bool:
            test = run["name"] == TEST
            return (
                int(run["n"]) == last[run["runs"], test]
                and event.kind.startswith("connect.") == test
            )

        kept_events = []
        for event in self.events:
            run = runs[event.path]
            # what is of no run of ours (logs of the user) has no later run that could replace it
            if run and run["runs"] in ours and not current(event, run):
                continue
            if not event.kind.startswith("experiment.") or tried(event):
                kept_events.append(event)
        return kept_events

    def hosts_only(self) -> Case:
        """The same hosts without any job: facts and tests of connections, to be judged alone."""
        hosts = Case(self.path, read_only=True)
        hosts.facts = self.facts
        hosts.events = self.of("connect.")
        return hosts

    def _is_of_own_run(self, path: str) -> bool:
        """Whether a run in this very folder left the file.

        Whoever names a case folder and a log in one command wants them judged together.
        """
        return self.path is not None and path.startswith(f"{self.path}/runs/")

    def become(self, other: Case) -> None:
        """Hold from now on what another case holds, for everybody who has this one."""
        vars(self).update(vars(other))

    def save(self) -> Case:
        """Add what changed since this case was opened or saved to its folder.

        A failure keeps what the folder held.

        Each file is replaced atomically.  What other programs have added meanwhile stays, and is
        not judged here: this case, in memory, is what this program knows.
        """
        if self.path is None or self.read_only:
            return self
        try:
            with storage.locked(self.path):
                # another program may have written since this case was opened, so the folder is read
                # again
                whole = self._merged(Case.open(self.path))
                storage.write(
                    self.path / "case.json", json.dumps(whole.about, indent=1, default=str)
                )
                storage.write_records(self.path / "facts.jsonl", whole.facts)
                storage.write_records(self.path / "measurements.jsonl", whole.measurements)
                storage.write_findings(self.path / "findings.json", whole.findings)
                storage.write(
                    self.path / "inputs.json", json.dumps(whole.inputs, indent=1, default=str)
                )
                # events last: they are the largest, and a disk that fills up keeps the smaller
                # files whole
                storage.write_records(self.path / "events.jsonl", whole.events)
        except OSError as error:
            raise NcclkitError(
                f"Cannot write the case folder {self.path}: {error.strerror or error}; "
                "what it held before is untouched. Free space or name another folder."
            ) from error
        self._known = self._kept()
        return self

    def _merged(self, theirs: Case) -> Case:
        """The folder as it is now, with what changed here.

        Of findings, which are of one diagnosis, it takes all or none.
        """
        known = self._known
        changed = {}
        for key, value in self.about.items():
            if value != known["about"].get(key):
                changed[key] = value
        # theirs was asked by another program meanwhile, so the list is joined and not replaced
        theirs.about |= changed | {
            "asked": _merged_records(
                known["about"]["asked"], self.about.get("asked", []), theirs.about.get("asked", [])
            )
        }
        theirs.facts = _merged_records(
            known["facts"], self.facts, theirs.facts, lambda fact: (fact.name, fact.host, fact.rank)
        )
        theirs.inputs = _merged_records(
            known["inputs"], self.inputs, theirs.inputs, lambda row: row["path"]
        )
        theirs.events = _merged_records(known["events"], self.events, theirs.events)
        theirs.measurements = _merged_records(
            known["measurements"], self.measurements, theirs.measurements
        )
        if self.findings != known["findings"]:
            theirs.findings = self.findings
        return theirs

    def __repr__(self) -> str:
        return (
            f"Case({str(self.path) if self.path else 'in memory'}: {len(self.facts)} facts,"
            f" {len(self.events)} events, {len(self.measurements)} measurements,"
            f" {len(self.findings)} findings, {len(self.runs())} runs)"
        )


def _merged_records(
    known: list[T], ours: list[T], theirs: list[T], place: Callable[[T], Any] = to_json
) -> list[T]:
    """`theirs` with the changes that `ours` made since it was `known`.

    What was once `known` and is not among `ours` any more goes; what is new of `ours` comes.
    `place` is what only one record has; a new one takes the place of theirs.
    """
    before = {to_json(record): record for record in known}
    now = {to_json(record): record for record in ours}
    new = [record for key, record in now.items() if key not in before]
    gone = before.keys() - now.keys()
    taken = set(map(place, new))
    added = []
    for record in theirs:
        if to_json(record) not in gone and place(record) not in taken:
            added.append(record)
    return added + new


def _as_row(record: Record) -> dict[str, Any]:
    row = asdict(record)
    if isinstance(record, Event):
        return row | {"data": fields_of(record)}
    return row


def _with_fields(
    events: list[Event], kinds: Sequence[str], fields: Mapping[str, Any]
) -> list[Event]:
    """Those of the events of these kinds that have the fields, with these values."""
    families = tuple(kind for kind in kinds if kind.endswith("."))
    known = []
    for kind in KINDS:
        if kind in kinds or kind.startswith(families):
            known.append(KINDS[kind])
    able = tuple(one for one in known if fields.keys() <= set(one.__struct_fields__))
    # a misspelt field would find nothing, and a cause would call that clear
    if not able:
        raise TypeError(f"{' and '.join(kinds)}: no such kind has {' and '.join(fields)}")
    values = attrgetter(*fields)
    if len(fields) == 1:
        wanted = next(iter(fields.values()))
    else:
        wanted = tuple(fields.values())
    matching = []
    for event in events:
        if isinstance(event.data, able) and values(event.data) == wanted:
            matching.append(event)
    return matching


def _number_of_folder(folder: Path) -> int:
    """The number of a folder ``<n>-<name>``."""
    return int(folder.name.split("-")[0])


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _last_attempt(events: list[Event]) -> list[Event]:
    """Events without what ranks of our own runs said before torchrun restarted them.

    The job is as its last attempt is.
    """
    phases = []
    for event in events:
        if event.kind == "worker.phase" and isinstance(event.data.attempt, int):
            phases.append(event)
    last = max((e.data.attempt for e in phases), default=0)
    begun = []
    for event in phases:
        if event.time is not None and event.data.attempt == last:
            begun.append(event.time)
    # without an attempt nothing is cut, as every time is later than this
    first = min(begun, default=-math.inf)
    last_events = []
    for event in events:
        if event.time is None or event.time >= first:
            last_events.append(event)
    return last_events


def _events_below(events: list[Event], ended: Mapping[str, int]) -> list[Event]:
    """Without what logs hold above these lines."""
    if ended:
        later_events = []
        for event in events:
            if event.line > ended.get(event.path, 0) or not event.line:
                later_events.append(event)
        return later_events
    return events


def _row_below(row: dict[str, Any], line: int) -> dict[str, Any]:
    """The row of a file, without what it holds above a line."""
    kept: dict[str, Any] = {}
    for key in ("abnormal", "quiet"):
        if key in row:
            kept[key] = [entry for entry in row[key] if entry["line"] > line]
    if line:
        return {**row, **kept}
    return row


def _by_log(events: list[Event], kinds: tuple[str, ...]) -> dict[str, list[Event]]:
    """Log → what its lines say, in their order.

    It is for logs that hold an event of these kinds.
    """
    logs: dict[str, list[Event]] = {}
    for event in events:
        if event.kind in kinds:
            logs[event.path] = []
    for event in events:
        if event.path in logs and event.line:
            logs[event.path].append(event)
    return {path: sorted(held, key=lambda event: event.line) for path, held in logs.items()}


def _jobs_that_ended(events: list[Event], inputs: list[dict[str, Any]]) -> dict[str, int]:
    """Log → the line where a job ended well, before another job.

    Below that line another job begins or fails, or other lines are shown.
    """
    rows = {str(row["path"]): row for row in inputs}
    last = {}
    for path, held in _by_log(events, ("job.done",)).items():
        last[path] = _last_end(held, rows.get(path, {}))
    last_lines = {}
    for path, line in last.items():
        if line is not None:
            last_lines[path] = line
    return last_lines


def _last_end(held: list[Event], row: Mapping[str, Any]) -> int | None:
    """The last line of a log at which a job ended well.

    Another job must be seen below it.
    """
    lines = []
    for event in held:
        if event.kind.startswith(GOES_ON):
            lines.append(event.line)
    last_sign = max(lines, default=0)
    is_shown = _shown_below(row)
    ended: int | None = None
    job = _Communicators()
    # one line may hold several events, and a job ends behind all of them
    for line, group in groupby(held, key=lambda event: event.line):
        on_this_line = list(group)
        job.add(on_this_line)
        # an end is only one where something follows; else it is the end of the log
        if any(event.kind == "job.done" for event in on_this_line) and (
            last_sign > line or is_shown(line)
        ):
            again = ended is not None and job.is_silent  # Slurm says it once more
            if again or job.has_ended:
                ended = line
                job = _Communicators()
    return ended


class _Communicators:
    """What a job made, and what of it was destroyed, line by line."""

    def __init__(self) -> None:
        self.is_silent = True
        """Whether nothing was said but that it is done."""
        self._made: set[tuple[int | None, str]] = set()
        self._gone: set[tuple[int | None, str]] = set()
        self._open = 0

    def add(self, events: Iterable[Event]) -> None:
        """What comes next in the log."""
        for event in events:
            self.is_silent = self.is_silent and event.kind == "job.done"
            if isinstance(event.data, NcclInit) and event.data.phase == "done":
                self._begin((event.pid, event.data.comm))
            if isinstance(event.data, NcclDestroy) and event.data.how == "destroy":
                self._end((event.pid, event.data.comm))

    # a communicator whose destroy stands above its init (logs of several ranks, mixed) is not open
    def _begin(self, communicator: tuple[int | None, str]) -> None:
        if communicator not in self._made:
            self._made.add(communicator)
            self._open += communicator not in self._gone

    def _end(self, communicator: tuple[int | None, str]) -> None:
        if communicator not in self._gone:
            self._gone.add(communicator)
            self._open -= communicator in self._made

    @property
    def has_ended(self) -> bool:
        """True where communicators were made, and all of them were destroyed."""
        return bool(self._made) and not self._open


def _shown_below(row: Mapping[str, Any]) -> Callable[[int], bool]:
    """Whether below a line somebody shows more: a line of trouble, or several others."""
    trouble = max((entry["line"] for entry in row.get("abnormal", ())), default=0)
    others = sorted(entry["line"] for entry in row.get("quiet", ()))
    third_last = 0
    if len(others) > 2:
        third_last = others[-3]
    return lambda line: line < max(trouble, third_last)


def _attempts_that_failed(events: list[Event]) -> dict[str, int]:
    """Log → where a launcher gave up an attempt in it, and other processes start NCCL below."""
    last = {}
    for path, held in _by_log(events, GIVEN_UP).items():
        last[path] = _last_attempt_that_failed(held)
    last_lines = {}
    for path, line in last.items():
        if line is not None:
            last_lines[path] = line
    return last_lines


def _last_attempt_that_failed(held: list[Event]) -> int | None:
    """The last line of a log above which an attempt had failed.

    All hosts of the lines below had started above it, each in other processes.
    """
    started = []
    for event in held:
        if event.kind in STARTED and event.pid is not None:
            started.append(event)
    lines = [event.line for event in started]
    last_place = {event.pid: place for place, event in enumerate(started)}
    # backwards, so that the first place of a host is written last
    first_place = {event.host: place for place, event in reversed(list(enumerate(started)))}
    newest_host = max(first_place.values(), default=0)
    # of the processes begun until then
    reach = list(accumulate((last_place[event.pid] for event in started), max))
    given_up_lines = []
    for event in held:
        if event.kind in GIVEN_UP:
            given_up_lines.append(event.line)
    # the last attempt is the one to be judged, so the search begins below
    for end in reversed(given_up_lines):
        below = bisect_right(lines, end)
        # all hosts stand below as well, and no process of above goes on there: they were all
        # started anew
        if newest_host < below < len(started) and reach[below - 1] < below:
            return end
    return None


GIVEN_UP = ("elastic.exit", "elastic.root", "elastic.restart", "slurm.event")
"""Kinds of what a launcher says where an attempt is over."""
STARTED = ("nccl.version", "nccl.bootstrap", "nccl.init")
GOES_ON = (
    "nccl.init",
    "nccl.version",
    "nccl.bootstrap",
    "c10d.",
    "python.exception",
    "elastic.exit",
    "slurm.",
    "gloo.",
)
"""Kinds of events that a job has that begins, or fails."""
