"""A job is followed for hours: it is looked at where a rank stalls, and again if it was no hang."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ncclkit.agent import redact
from ncclkit.agent.commands import LATE, run_bounded
from ncclkit.analysis.motion import headline
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.live.attach import Attached, AttachOptions, NoRank, attach, read_look
from ncclkit.live.launch.base import OnRecord

LONGEST_PATIENCE = 600.0
"""Seconds for which a rank has to stall at most until the job is looked at once more."""
ON_HANG_SECONDS = 300.0
"""Seconds after which a command for a hang is ended."""
MOST_OUTPUT = 64 << 10
"""Bytes that such a command may print."""
SHOWN_LINES = 20


class JobEnded(NcclkitError):
    """The job that was followed has ended, and nothing of it hung."""


def follow_until_hang(
    case: Case, pids: Sequence[str], job: str | None, options: AttachOptions, on_record: OnRecord
) -> Attached:
    """Look whenever a rank stalls, until something is found; that look is kept in the case.

    Raises JobEnded where the job ends before.
    """
    patience = options.follow
    looks = 0
    while True:
        chosen = replace(options, follow=patience)
        # what showed no hang is not kept: of many hours it would fill memory and disk
        with tempfile.TemporaryDirectory() as folder:
            aside = Case.open(Path(folder) / "case")
            try:
                attached = asyncio.run(attach(aside, pids, job, chosen, on_record))
            except NcclkitError as error:
                if looks and (isinstance(error, NoRank) or "No rank could be read" in str(error)):
                    raise JobEnded("The job has ended; until then nothing of it hung.") from error
                raise
            if diagnose(aside).findings:
                return _kept_in_case(case, attached)
            say = headline(attached.events)
        looks += 1
        # a job that waits for hours, such as a server, is not looked at every minute
        patience = min(2 * patience, max(LONGEST_PATIENCE, options.follow))
        now = time.strftime("%H:%M:%S")
        on_record({"kind": "note", "say": f"{now} {say} Next: after {patience:.0f} s of stalling."})


def _kept_in_case(case: Case, attached: Attached) -> Attached:
    """The same look as a run of the case."""
    folder = case.new_run("attach")
    shutil.copytree(attached.folder, folder, dirs_exist_ok=True)
    return read_look(case, folder, attached.problems)


@dataclass(frozen=True, slots=True)
class OnHang:
    """A command for the moment in which a hang is found."""

    words: tuple[str, ...]
    """Its words; no shell reads them."""

    @classmethod
    def from_command_line(cls, command: str) -> OnHang:
        """A command line; raises NcclkitError where it is none."""
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise NcclkitError(f"--on-hang is no command line: {error}.") from error
        if not words:
            raise NcclkitError("--on-hang needs a command.")
        return cls(words)

    def run_for(self, case: Case, found: Diagnosis) -> str:
        """What it printed and how it ended, in a few lines.

        It learns of the hang by its environment, never by its words.
        """
        first = found.findings[0]
        ranks = ",".join(map(str, first.culprits["ranks"]))
        told = {"NCCLKIT_CAUSE": first.cause, "NCCLKIT_RANKS": ranks, "NCCLKIT_SAY": first.say}
        told["NCCLKIT_CASE"] = str(case.path)
        env = {**os.environ, **told}
        name = redact.text(self.words[0])
        try:
            reply = run_bounded(self.words, ON_HANG_SECONDS, env, most=MOST_OUTPUT)
        except OSError as error:
            return f"--on-hang: {name} cannot be started: {error.strerror}."
        if reply.ended == LATE:
            end = f"was ended after {ON_HANG_SECONDS:.0f} s"
        elif reply.ended:
            end = "was ended, as it printed too much"
        else:
            end = f"ended with status {reply.code}"
        lines = (reply.out + reply.err).decode("utf-8", "replace").splitlines()[-SHOWN_LINES:]
        said = [f"--on-hang: {name} {end}."]
        for line in lines:
            said.append(f"  {_printable_text(line)}")
        return "\n".join(said)


def _printable_text(line: str) -> str:
    return "".join(filter(str.isprintable, redact.text(line)))[:200]
