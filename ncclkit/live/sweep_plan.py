"""What a sweep is going to do, and about how long.

It says how many settings, pairs and jobs.  In come the counts of a sweep and what its first jobs
took, out go sentences and seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from ncclkit.core.text import plural

BUDGETS = {"nccl": 120.0, "gloo": 30.0}
"""Seconds that a sweep takes at most, until its answer is there.

They count where nobody says how many.
"""
SHARED = 0.5
"""The part of a budget for settings that share a job.

Others need jobs of their own.
"""
CHOOSING, JOBS = 2, 8
"""Jobs that choose, and jobs that decide, for each setting.

The settings are those that a process keeps for its life.
"""
CONTROLS = 3
"""Groups with the default in a job that settings share."""
OF_JOB = {"nccl": 12.0, "gloo": 4.0}
"""Seconds of a job of one setting, before one has shown it."""
OF_START = {"nccl": 12.0, "gloo": 5.0}
"""Seconds until the first pair of a job is measured, before one has shown it."""
OF_GROUP = {"nccl": 0.09, "gloo": 0.045}
"""Seconds of a setting on one collective and size.

36 settings on 21 pairs took 79 s on two H200, two settings on 35 pairs 11 s over gloo on two quiet
cores.
"""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The counts of a sweep, before it begins."""

    backend: str
    shared: int
    """Settings that share one job."""
    own: int
    """Settings that need jobs of their own, without their combinations."""
    pairs: int
    """Collectives times sizes."""
    every: bool = False
    """Whether each setting is decided on, as somebody named it."""
    asked: float = 0.0
    """Seconds that somebody gave; 0 where nobody did."""

    @property
    def budget(self) -> float:
        """Seconds at most.

        What is named and needs jobs of its own gets the time of those.
        """
        if self.asked:
            return self.asked
        return BUDGETS[self.backend] + (self._own_jobs_seconds if self.every else 0.0)

    @property
    def shared_part(self) -> float:
        """The part of the budget for the shared job.

        It is all of it where no other job would fit.
        """
        if not self.own or not self.fits_own_jobs(self.budget * SHARED):
            return 1.0
        return SHARED

    def fits_own_jobs(self, seconds: float) -> bool:
        """Whether so much time may suffice to decide on one setting with jobs of its own."""
        jobs = CHOOSING * 2 + JOBS * 2
        if self.every:
            jobs = self.own_jobs
        # a job may be twice as quick as others were
        return seconds >= jobs * OF_JOB[self.backend] / 2

    @property
    def own_jobs(self) -> int:
        """Jobs of the settings that need their own, without combinations."""
        if not self.own:
            return 0
        if self.every:
            return JOBS * (self.own + 1)
        return 1 + CHOOSING * (self.own + 1) + JOBS * 2

    @property
    def seconds(self) -> float:
        """Seconds that all of it would take, about."""
        shared = 0.0
        if self.shared:
            groups = self.shared + CONTROLS
            shared = OF_START[self.backend] + self.pairs * groups * OF_GROUP[self.backend]
        return shared + self._own_jobs_seconds

    @property
    def _own_jobs_seconds(self) -> float:
        return self.own_jobs * OF_JOB[self.backend]

    @property
    def words(self) -> str:
        """What will be done, and for how long, in one sentence each."""
        pairs = f"{plural(self.pairs, 'pair')} of collective and size"
        parts = []
        if self.shared:
            verb = "shares" if self.shared == 1 else "share"
            parts.append(f"{plural(self.shared, 'setting')} {verb} one job with the default")
        if self.own:
            verb = "needs" if self.own == 1 else "need"
            jobs = plural(self.own_jobs, "job")
            parts.append(f"{plural(self.own, 'setting')} {verb} jobs of their own ({jobs})")
        said = f"To measure on {pairs}: {'; '.join(parts)}."
        if self.seconds > self.budget:
            took = f"All would take about {self.seconds:.0f} s; it ends after {self.budget:.0f} s"
            return f"{said} {took}, and says what is left (--budget)."
        return f"{said} About {self.seconds:.0f} s, at most {self.budget:.0f} s (--budget)."


def pace_in_words(each: float, jobs: int, left: float) -> str:
    """How long the jobs of their own will take, now that one of them was run."""
    seconds = each * jobs
    if seconds > left:
        return (
            f"A job takes {each:.0f} s: {plural(jobs, 'job')} would take {seconds:.0f} s, and"
            f" {max(left, 0):.0f} s are left."
        )
    return f"A job takes {each:.0f} s: {plural(jobs, 'job')} more take about {seconds:.0f} s."
