"""Records of experiments and fixes.

They say what each showed, as a case folder keeps it, and how it changes verdicts.

Each lies in ``<case>/experiments/<n>-<cause>/``: ``experiment.json`` says what was asked and what
came out; the hidden folder ``.case`` holds the runs, so that they do not count as evidence of the
case itself.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from ncclkit.agent import redact
from ncclkit.core import storage
from ncclkit.core.case import Case
from ncclkit.core.model import OUTCOMES, Event, Finding, NcclkitError, clear
from ncclkit.core.runs import Run

FOLDER, NAME = "experiments", "experiment.json"
KINDS = ("experiment.check", "experiment.fix")


@dataclass(frozen=True, slots=True, repr=False)
class ExperimentRecord:
    """One experiment or fix on the same small job, before and after."""

    kind: Literal["check", "fix"]
    cause: str
    question: str
    change: Mapping[str, Any]
    """What was changed, in the words of `runs.changed`."""
    before: Run | None
    """None where the record only looked."""
    after: Run | None
    observed: str
    """One of `OUTCOMES`, or ``nothing`` where no answer came."""
    verdicts: Mapping[str, str]
    """cause id → one of `MOVES`."""
    summary: str
    seconds: float
    folder: Path
    baseline: str = ""
    """Name of the run of the case that was run again, "" where a small live test stood in for the
    job."""
    cause_before: str = ""
    """The first cause that was found of the run before, "" where none was."""
    cause_after: str = ""
    said: tuple[str, str] = ("", "")
    """The diagnosis' sentence on the run before and on the run after."""

    @property
    def worked(self) -> bool:
        """True for a fix after which the job succeeds and its cause is gone."""
        return self.kind == "fix" and self.verdicts.get(self.cause) in ("proven", "supported")

    def __repr__(self) -> str:
        return self.summary


def keep(record: ExperimentRecord) -> ExperimentRecord:
    """Write ``experiment.json``, without secrets.

    Its paths are relative to the folder, so that a case may be moved.
    """
    fields = {one.name: getattr(record, one.name) for one in dataclasses.fields(record)}
    # the folder is where it lies, also after it was moved; the kind stands under `experiment`
    del fields["folder"], fields["kind"]
    for name in ("before", "after"):
        run = fields[name]
        if run:
            fields[name] = asdict(run) | {"folder": _relative_path(run.folder, record.folder)}
        else:
            fields[name] = None
    # through JSON and back, as secrets are looked for in plain values
    kept = json.loads(json.dumps({"experiment": record.kind} | fields, default=str))
    storage.write(record.folder / NAME, json.dumps(redact.clean(kept), indent=1))
    return record


def experiments(case: Case) -> tuple[ExperimentRecord, ...]:
    """The records of a case, the oldest first; none where it has no folder."""
    records = []
    for folder in case.folders(FOLDER):
        if (folder / NAME).exists():
            records.append(_read_record(folder / NAME))
    return tuple(records)


def weigh(verdicts: Iterable[Finding], events: Iterable[Event]) -> list[Finding]:
    """The verdicts after the experiments among `events`.

    The only cause that fits is proven, others are cleared.  What a line of the job itself proves is
    not cleared by a run that only stands in for that job.
    """
    moved = {finding.cause: finding for finding in verdicts}
    for event in events:
        if event.kind not in KINDS:
            continue
        for cause, move in event.data.verdicts.items():
            finding = moved.get(cause)
            if finding is None or finding.verdict != "found":
                continue  # an experiment judges suspects and adds none
            if move == "proven":
                moved[cause] = replace(
                    finding, strength="proven", evidence=(*finding.evidence, event), next=None
                )
            elif move == "refuted" and finding.strength != "proven":
                moved[cause] = clear(cause, event.text, (event,))
    return list(moved.values())


def _relative_path(folder: Path, base: Path) -> str:
    """From the record's folder to a run, which lies in the same case."""
    case = base.parent.parent
    if folder.is_relative_to(case):
        return str(Path("..", "..", folder.relative_to(case)))
    return str(folder)


def _read_record(path: Path) -> ExperimentRecord:
    value, base = storage.read_json(path, {}), path.parent.resolve()
    try:
        # an outcome that this version does not know is no answer
        known = {"kind": value["experiment"], "folder": ".", "observed": "nothing"}
        known |= {"observed": value["observed"]} if value.get("observed") in OUTCOMES else {}
        return msgspec.convert(
            value | known, ExperimentRecord, dec_hook=lambda kind, text: (base / text).resolve()
        )
    except storage.DAMAGE as error:
        say = (
            f"{path} is not a record of an experiment; move it away and the case opens without it."
        )
        raise NcclkitError(say) from error
