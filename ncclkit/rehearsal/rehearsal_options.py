"""What a rehearsal is asked for; light, as every start of the command reads its defaults."""

from __future__ import annotations

from dataclasses import dataclass

from ncclkit.core.model import NcclkitError

LONGEST = 86_400.0
"""Seconds of the longest rehearsal: a day."""


@dataclass(frozen=True, slots=True)
class RehearsalOptions:
    """How a script is rehearsed."""

    ranks: int = 0
    """0: those of the launcher's options, else four."""
    steps: int = 20
    timeout: float = 120.0
    """Seconds in which the ranks may run."""
    hosts: int = 0
    """On how many hosts the ranks shall seem to be; 0: as the launcher's options say."""
    job_timeout: float = 0.0
    """Seconds that the job lets a call wait; 0: no wait is measured."""
    own_gpu: bool = False
    """Whether the launcher shows each rank one GPU alone, as Slurm's --gpus-per-task does."""
    fake: bool = False
    """Whether tensors have shapes and no values."""
    gpu: bool = False
    """Whether all ranks share the first GPU of this machine, so that nothing is mapped."""

    @property
    def lacking_time(self) -> str:
        """Which waits can exceed the job's limit here, where that are not all."""
        if self.job_timeout < self.timeout:
            return ""
        enough = min(2 * self.job_timeout, LONGEST)
        return (
            f"A wait above the job's limit of {self.job_timeout:g} s is found behind sleep alone,"
            f" as all else may take {self.timeout:g} s here: for more say --timeout {enough:g}."
        )

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.timeout <= LONGEST:
            raise NcclkitError("A rehearsal has a step or more, and a deadline of at most a day.")
        if self.gpu and self.fake:
            raise NcclkitError("Fake tensors use no GPU: say --gpu or --fake.")
