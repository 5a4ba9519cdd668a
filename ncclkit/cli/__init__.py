"""The command ``ncclkit``, for scripts, tickets and people without a browser.

In: the words of a command line.  Out: text for people, or one object of JSON, and an exit status: 0
the job went well or goes on (or done), 1 a cause was found, none explains the job, or a live test
was slower than it should be (or a run failed), 2 nothing is of a training job, could not be read,
written or started: stderr then says why in one sentence.

Begin with `main`; a verb is a module of `ncclkit.cli.verbs`, whose answer `runner` prints.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence

from ncclkit.cli.parser import command_parser
from ncclkit.cli.runner import print_note, run_verb
from ncclkit.cli.streams import StandardStreams, UnwrittenError
from ncclkit.core.model import NcclkitError

NO_FOLDER = (
    "The current folder has been deleted; change to one that exists, and repeat the command."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run one verb, return the exit status."""
    with StandardStreams() as streams:
        return streams.exit_status(_status_of(argv, streams))


def _status_of(argv: Sequence[str] | None, streams: StandardStreams) -> int:
    """Run one verb.

    Returns its exit status, 2 with a sentence where it cannot be run.
    """
    try:
        options = command_parser().parse_args(argv)
        # at a job's time limit: the evidence is kept, as after Ctrl-C
        if "SLURM_JOB_ID" in os.environ:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        if streams.was_closed and not _answers_unheard(options):
            raise NcclkitError(
                "Standard output is closed, so nothing was done; redirect it to a file."
            )
        if options.verb.needs_folder and not _has_folder():
            raise NcclkitError(NO_FOLDER)  # torch, too, cannot be imported there
        return run_verb(options)
    except SystemExit as end:  # of argparse: after --help, or what it does not understand
        if streams.was_closed and not end.code:
            streams.lost = "it is closed"
        return int(end.code or 0)
    except UnwrittenError as error:
        streams.lost = str(error)
        return 2
    except NcclkitError as error:
        print_note(str(error))
        return 2
    except OSError as error:
        print_note(_system_says(error))
        return 2
    except KeyboardInterrupt:
        print_note("interrupted; everything that was started has been ended.")
        return 130


def _answers_unheard(options: argparse.Namespace) -> bool:
    """Whether the exit status of this verb is an answer, too.

    That of a health check drains a node.
    """
    return bool(options.verb.name == "gate" and not options.agent)


def _system_says(error: OSError) -> str:
    """What the system refused, in a sentence."""
    if not _has_folder():
        return NO_FOLDER
    where = ""
    if isinstance(error.filename, str):
        where = f" ({error.filename})"
    return (
        f"{error.strerror or error or type(error).__name__}{where}; what was started has been"
        " ended."
    )


def _has_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True
