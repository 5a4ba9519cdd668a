"""`ncclkit attach`: a job that hangs now is looked at and diagnosed."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from ncclkit.agent.digits import whole_numbers
from ncclkit.cli.arguments import DAY, add_case, add_json, add_log_marks
from ncclkit.cli.judging import judge_run, open_case, with_log_marks
from ncclkit.cli.runner import Part, Verb, VerbAnswer, Verdict, print_note
from ncclkit.cli.terminal import Activity
from ncclkit.core.model import NcclkitError
from ncclkit.core.ranges import NumberRange

if TYPE_CHECKING:
    from ncclkit.cli.following import OnHang
    from ncclkit.core.case import Case
    from ncclkit.live.attach import Attached, AttachOptions

SHOWN_RANKS = 8
"""Ranks whose use of a core is printed beside what they wait for."""


ASKS_RAS = (
    "Where NCCL's RAS answers in the job (NCCL 2.24 and later), it is asked for its report, and\n"
    "that of NCCL 2.31 and 2.32 for its diagnostics (`ncclras -D`), too. Both only read, within\n"
    "the time limit."
)


class AttachVerb(Verb):
    """Diagnose a job that hangs now."""

    name = "attach"
    group = "My job"
    what = "a job that hangs now: which rank, where, and what the others wait for"
    example = "attach --job 4711"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare whose processes are meant, and how they are looked at."""
        _add_target(parser)
        _add_times(parser)
        _add_pauses(parser)
        add_case(parser)
        add_json(parser)
        add_log_marks(parser)

    def more_help(self) -> str:
        """Whom it asks beside the processes, as that is seen by nobody."""
        return ASKS_RAS

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Look at the ranks, judge what was seen, and say where they stand."""
        from ncclkit.live.attach import AttachOptions, NoRank
        from ncclkit.cli.following import JobEnded

        given = {
            each.name: getattr(options, each.name) for each in fields(AttachOptions) if each.init
        }
        chosen = AttachOptions(**given)
        on_hang = _command_of(options, chosen)
        case = open_case(options.case)
        with Activity("Looking at ranks", limit=_time_limit(chosen)):
            try:
                attached = _look_at_job(case, options, chosen)
            except JobEnded as ended:
                return _answer_of_sentence(str(ended), 0, "healthy")
            except NoRank:
                waiting = _launchers_that_wait(options)
                if waiting is None:
                    raise
                return waiting
        verdict = judge_run(case, attached.folder)
        after = ""
        if on_hang:
            after = on_hang.run_for(case, verdict.diagnosis)
        return VerbAnswer(
            verdict.diagnosis.exit_code,
            parts=_attached_parts(attached, verdict, after),
            data=lambda: _json_object(options, case, attached, verdict),
        )


def _command_of(options: argparse.Namespace, chosen: AttachOptions) -> OnHang | None:
    """What is to be run when a hang is found; raises NcclkitError where it never would be."""
    from ncclkit.cli.following import OnHang

    if not options.on_hang:
        return None
    if not chosen.follow:
        raise NcclkitError("--on-hang takes --follow: without it the job is looked at once.")
    return OnHang.from_command_line(options.on_hang)


def _look_at_job(case: Case, options: argparse.Namespace, chosen: AttachOptions) -> Attached:
    """One look, or with --follow the first one that finds something."""
    from ncclkit.live.attach import attach
    from ncclkit.cli.following import follow_until_hang

    if chosen.follow:
        return follow_until_hang(case, options.pid, options.job, chosen, _print_record)
    return asyncio.run(attach(case, options.pid, options.job, chosen, _print_record))


def _answer_of_sentence(say: str, status: int, verdict: str) -> VerbAnswer:
    """An answer of one sentence."""
    return VerbAnswer(
        status, parts=iter([say]), data=lambda: {"schema": 1, "verdict": verdict, "say": say}
    )


def _add_target(parser: argparse.ArgumentParser) -> None:
    """The options that name a job."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--pid",
        action="append",
        default=[],
        metavar="[RANK=]PID",
        help=(
            "a rank of the job, or its launcher; repeat it to name ranks one by one (default: the"
            " only job here)"
        ),
    )
    which.add_argument(
        "--job",
        type=_job_name,
        help="this Slurm job, array task (4711_3) or heterogeneous job, on all of its nodes",
    )


def _job_name(word: str) -> str:
    """A job as Slurm names it; the error is a sentence of argparse."""
    from ncclkit.live.launch.slurm_beside import JOB

    if not JOB.fullmatch(word):
        raise argparse.ArgumentTypeError(
            f"must be a job of Slurm such as 4711, 4711_3 or 4711+1, but it is {word[:60]!r}"
        )
    return word


def _add_times(parser: argparse.ArgumentParser) -> None:
    """The options that say when the ranks are looked at, and for how long."""
    parser.add_argument(
        "--seconds",
        type=NumberRange(0.01, DAY, "a number"),
        default=3.0,
        help="from the first snapshot to the last (default 3)",
    )
    parser.add_argument(
        "--snapshots",
        type=NumberRange(1, 100),
        default=2,
        metavar="N",
        help="of each rank (default 2)",
    )
    parser.add_argument(
        "--follow",
        type=NumberRange(0, DAY, "a number"),
        nargs="?",
        const=30.0,
        default=0.0,
        metavar="SECONDS",
        help=(
            "wait until a rank has stalled for so many seconds (default 30), or has ended, and"
            " judge then; where that is no hang, go on, for hours"
        ),
    )
    parser.add_argument(
        "--on-hang",
        metavar="COMMAND",
        default="",
        help=(
            "with --follow: run this when a hang is found, without a shell; NCCLKIT_CAUSE,"
            " NCCLKIT_RANKS, NCCLKIT_SAY and NCCLKIT_CASE tell it what was found"
        ),
    )
    parser.add_argument(
        "--timeout",
        type=NumberRange(1, DAY, "a number"),
        default=None,
        metavar="SECONDS",
        help=(
            "everything ends after so many seconds, with eight ranks on a host (default 27; 87 with"
            " --dump or --kernels; up to four times as long on a full host)"
        ),
    )


def _add_pauses(parser: argparse.ArgumentParser) -> None:
    """The options that pause the processes."""
    parser.add_argument(
        "--kernels",
        action="store_true",
        help=(
            "also ask each GPU for its kernel, by cuda-gdb: the processes are paused for about 15 s"
            " and go on"
        ),
    )
    parser.add_argument(
        "--dump",
        action="store_true",
        help=(
            "also write the Flight Recorders: by torch's pipe or debug server, by Python 3.14, or"
            " else by gdb, for which the processes are paused for seconds"
        ),
    )


def _time_limit(chosen: AttachOptions) -> float | None:
    """None where it is waited until a rank stalls, which may be never."""
    if chosen.follow:
        return None
    return chosen.limit


def _print_record(record: dict[str, Any]) -> None:
    if record["kind"] == "note":
        print_note(record["say"])


def _launchers_that_wait(options: argparse.Namespace) -> VerbAnswer | None:
    """The answer where no rank has begun, as its launcher waits; None where none does."""
    from ncclkit.live.launcher_waits import waiting_launchers

    # the ranks of a job of Slurm may be on other nodes
    if options.job is not None:
        return None
    launchers = waiting_launchers(whole_numbers(options.pid))
    if not launchers:
        return None
    rows = list(map(asdict, launchers))
    plain = {"schema": 1, "verdict": "unexplained", "say": launchers[0].say, "launchers": rows}
    return VerbAnswer(1, parts=(one.say for one in launchers), data=lambda: plain)


def _attached_parts(attached: Attached, verdict: Verdict, after: str) -> Iterator[Part]:
    from ncclkit.analysis.motion import headline
    from ncclkit.analysis.waits import position_bars

    findings = verdict.diagnosis.findings
    if findings:
        sentence = findings[0].say
    else:
        sentence = headline(attached.events)
    busy = []
    for event in attached.reading.events:
        if event.kind == "telemetry.utilization":
            busy.append(event.text)
    about_job = [*attached.jobs, *attached.progress, *busy[:SHOWN_RANKS]]
    yield "\n".join([sentence, "", *position_bars(attached.events), "", *about_job])
    yield "\n".join(["", *_unread_lines(attached)])
    if findings:
        yield verdict
    if after:
        yield after


def _unread_lines(attached: Attached) -> list[str]:
    if not attached.problems:
        return []
    problems = [f"  {problem.rstrip('.')}." for problem in attached.problems]
    return ["What could not be read, and how it can be:", *problems]


def _json_object(
    options: argparse.Namespace, case: Case, attached: Attached, verdict: Verdict
) -> dict[str, Any]:
    plain = verdict.diagnosis.to_dict(attached.reading.inputs)
    plain |= {"running": list(attached.jobs), "progress": list(attached.progress)}
    return with_log_marks(options, plain, case)
