"""`ncclkit probe`: the live test, and its diagnosis where it failed."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ncclkit.cli.arguments import (
    add_case,
    add_here,
    add_json,
    add_oversubscribe,
    chosen_options,
    probe_options,
)
from ncclkit.cli.judging import judge_run, open_case
from ncclkit.cli.progress import follow_run
from ncclkit.cli.runner import Part, Verb, VerbAnswer, print_note
from ncclkit.cli.terminal import Activity
from ncclkit.live.options import OPTIONS, add_options

if TYPE_CHECKING:
    from ncclkit.core.case import Case
    from ncclkit.core.runs import Run
    from ncclkit.live.options import ProbeOptions


class ProbeVerb(Verb):
    """Run the live test, and diagnose it where it failed."""

    name = "probe"
    group = "This cluster"
    what = "live test: checked and timed collectives on real ranks"
    example = "probe --ranks 8 --op all --stages"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of the live test."""
        add_options(parser, *OPTIONS)
        add_oversubscribe(parser)
        add_here(parser)
        add_case(parser)
        add_json(parser)

    def check_options(self, options: argparse.Namespace) -> None:
        """Refuse options that no test takes."""
        chosen_options(options)

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Start the ranks and measure."""
        case = open_case(options.case)
        chosen = probe_options(options)
        with Activity("Live test", limit=chosen.timeout) as activity:
            run = asyncio.run(run_live_test(case, chosen, activity))
        if options.json and run.warning:
            print_note(run.warning)  # records have no place for it
        is_good = run.reason == "done" and not run.warning
        return VerbAnswer(
            int(not is_good),
            parts=_measured_parts(case, run, options.stages),
            data=lambda: run.measurements,
        )


async def run_live_test(case: Case, options: ProbeOptions, activity: Activity) -> Run:
    """Run the live test.

    The facts of this host are read first where they are missing, as the bound follows from them.
    """
    from ncclkit.live import probe, scheduler

    login = case.fact("scheduler.login_node")
    if all(fact.host == login for fact in case.facts_of("host.kernel")):
        is_special = (
            options.python
            or options.ranks
            or options.simulate_hosts > 1
            or options.backend != "auto"
        )
        if is_special or await asyncio.to_thread(scheduler.is_login_node):
            await probe.plan_test(case, options)  # refuses what cannot work before anything is read
        await probe.inspect_hosts(case, options.python or None)
    return await probe.probe(case, options, follow_run(activity))


def _measured_parts(case: Case, run: Run, is_staged: bool) -> Iterator[Part]:
    lines = [str(measurement) for measurement in run.measurements]
    lines += _conclusions(case, run, is_staged)
    lines += [run.summary, f"Run folder: {run.folder}"]
    yield "\n".join(lines)
    if run.reason != "done" or run.warning:
        yield judge_run(case, run.folder)


def _conclusions(case: Case, run: Run, is_staged: bool) -> list[str]:
    """What the figures mean.

    It is the stage that fails, the share of the bound, and what it was once.
    """
    from ncclkit.analysis import stages
    from ncclkit.analysis.history import beside_baseline
    from ncclkit.core import bandwidth

    lines = []
    if is_staged:
        staged = stages.staged_test(case).summary
        if staged and staged not in run.summary:
            lines.append(staged)
    for judged in bandwidth.judgements(run.measurements, run.expectations):
        if len(run.expectations) > 1:
            lines.append(f"{judged.best.op}: {judged.summary}")
        else:
            lines.append(judged.summary)
    # collectives over the same links share a bound, which is said once
    lines += dict.fromkeys(str(bound) for bound in run.expectations.values())
    if run.reason == "done":
        against = beside_baseline(run.measurements)[0]
        if against:
            lines.append(against)
    return lines
