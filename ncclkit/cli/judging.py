"""The case of a verb, and the verdict on what that verb has just seen."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclkit.cli.progress import follow_run
from ncclkit.cli.runner import Verdict, print_note
from ncclkit.cli.terminal import Activity, show
from ncclkit.core.model import NcclkitError

if TYPE_CHECKING:
    from ncclkit.causes.diagnosis import Diagnosis
    from ncclkit.core.case import Case
    from ncclkit.core.experiment_records import ExperimentRecord
    from ncclkit.core.model import Fact


def open_case(place: str | Path) -> Case:
    """The case folder, with a note where other users could change it."""
    from ncclkit.core.case import Case

    case = Case.open(place)
    warning = case.warning_of_other_writers()
    if warning:
        print_note(warning)
    return case


def judge_now(case: Case, this_run: Case) -> Diagnosis:
    """The verdict on what this verb has just seen, kept by the case.

    Earlier runs do not count.
    """
    from ncclkit.causes.engine import diagnose

    held = case.earlier()
    if held:
        print_note(f"{held}; this verdict is about the new one alone.")
    found = diagnose(this_run)
    case.findings = this_run.findings
    case.save()
    return found


def judge_run(case: Case, folder: Path) -> Verdict:
    """The verdict on one run of the case, with its summary."""
    from ncclkit.causes.summary import summarize

    this_run = case.run_alone(folder)
    found = judge_now(case, this_run)
    again = shlex.join(["ncclkit", "diagnose", str(folder)])
    return Verdict(found, summarize(this_run, found, again))


def replaced_names_note(page: Path) -> str:
    """Where the names stand that a redacted page does not."""
    from ncclkit import report

    return (
        f"Replaced names: {report.replaced(page)} (keep this list; --redact-name NAME adds what"
        " it lacks)"
    )


def facts_read_now(case: Case, before: Sequence[Fact]) -> list[Fact]:
    """The facts that were not in the case before.

    An equal one that was read again counts as new.
    """
    old = set(map(id, before))
    return [fact for fact in case.facts if id(fact) not in old]


def run_experiments(case: Case, python: str) -> Diagnosis:
    """Ask what the suspects leave open, and apply the fix.

    What came out is said on stderr; returns the verdict as it is then.
    """
    from ncclkit.causes.engine import diagnose
    from ncclkit.experiments import fixes

    print_note(f"small jobs run now, in {case.path}; Ctrl-C ends them.")
    try:
        with Activity("Experiments") as activity:
            closing = fixes.close(
                case, _print_record, python=python or None, on_record=follow_run(activity)
            )
            asyncio.run(closing)
    except NcclkitError as error:  # what was found stays to be said
        print_note(str(error))
    return diagnose(case)


def _print_record(record: ExperimentRecord) -> None:
    done = "Fix tried:"
    if record.kind == "check":
        done = f"Checked: {record.question}"
    show(f"{done} {record.summary}", sys.stderr)


def with_log_marks(
    options: argparse.Namespace, answer: dict[str, Any], case: Case
) -> dict[str, Any]:
    """The answer as JSON shows it.

    For a coding agent what comes from logs is marked.
    """
    from ncclkit.cli.untrusted import mark_quotations

    if options.mark_log_text:
        return mark_quotations(answer, case)
    return answer
