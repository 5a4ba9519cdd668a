"""What a job needs, as its user says it, and what a host granted.

What was granted comes as `resources.tried` events.  No agent can read the first from a host; every
value of the second is looked at before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncclkit.core.case import Case
from ncclkit.core.kinds import ResourcesTried
from ncclkit.core.model import Event, Fact, NcclkitError, fields_of

UNITS = {
    "ranks": "ranks",
    "workers": "workers",
    "prefetch": "batches",
    "dataset": "bytes",
    "batch": "bytes",
}
"""Facts ``job.<name>`` and their units.

They are the ranks on each host, data-loader workers of each rank and batches that each worker reads
ahead, what each rank keeps of the dataset in host memory, and one batch of it.
"""


def set_job_spec(case: Case, job: Mapping[str, float | None]) -> Case:
    """Keep the numbers of the job that is to run, for the pre-flight.

    They are named as in `UNITS`; None and 0 are not known.  They take the place of those that were
    kept before.  Raises NcclkitError for a name or number that cannot be.
    """
    for name, value in job.items():
        if (
            name not in UNITS
            # True is an int in Python
            or isinstance(value, bool)
            or not isinstance(value or 0, (int, float))
            or (value or 0) < 0
        ):
            raise NcclkitError(
                f"The job cannot have {name} = {value!r}; give numbers of at least 0 for"
                f" {', '.join(UNITS)}."
            )
    facts = []
    for name, value in job.items():
        if value:
            facts.append(Fact(f"job.{name}", value, UNITS[name], "what you said of the job"))
    # all of them: a number that is not given again is not known any more
    case.facts = [fact for fact in case.facts if not fact.name.startswith("job.")]
    return case.replace_facts(facts).save()


THINGS = {
    "descriptors": ("fd_limit", "open files"),
    "threads": ("fd_limit", "threads"),
    "shm": ("shm_too_small", "of /dev/shm"),
    "memlock": ("memlock_limit", "of locked memory"),
    "memory": ("host_oom", "of memory"),
    "port": ("port_in_use", "the rendezvous port"),
    "names": ("hostname_resolution", "the name"),
}
"""What is tried → the cause that a refusal shows, and its name in a sentence."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One attempt to take a resource: how much of what is needed was granted."""

    what: str
    name: str = ""
    """Of the host, or the number of the port."""
    need: float = 0
    got: float | None = None
    """None: nobody knows, for the reason `why`."""
    error: str = ""
    why: str = ""

    @property
    def cause(self) -> str:
        """The cause that a refusal shows, "" for what is not known."""
        return THINGS.get(self.what, ("", ""))[0]

    @property
    def short(self) -> bool | None:
        """Whether less was granted than is needed; None where that is not known."""
        if self.got is None:
            return None
        return self.got < self.need

    @property
    def summary(self) -> str:
        """The attempt in one clause: ``opened 128 of 288 open files (Too many open files)``."""
        thing = THINGS.get(self.what, ("", self.what))[1]
        if self.what in ("port", "names"):
            item = f"{thing} {self.name}"
            state = {None: "was not settled", False: "answers here", True: "does not lead here"}[
                self.short
            ]
            if self.what == "port" and self.short:
                state = "cannot be used"
        else:
            if self.got is None:
                got = "?"
            else:
                got = self._amount(self.got)
            item = f"{got} of {self._amount(self.need)}"
            state = f"{thing} were granted"
        if self.short is None:
            reason = self.why
        elif self.short:
            reason = self.error
        else:
            reason = ""
        return f"{item} {state}{f' ({reason})' if reason else ''}"

    def _amount(self, count: float) -> str:
        if self.what in ("shm", "memlock", "memory"):
            return f"{count / 2**20:.4g} MiB"
        return f"{count:g}"


def grant(event: Event[ResourcesTried]) -> Grant:
    """One `resources.tried` event; values of another type than expected are left out."""
    data = fields_of(event)
    texts = {}
    for key in ("what", "name", "error", "why"):
        if isinstance(data[key], str):
            texts[key] = data[key]
    numbers = {}
    for key in ("need", "got"):
        # `type`, as True is an int in Python
        if type(data[key]) in (int, float):
            numbers[key] = data[key]
    return Grant(**{"what": ""} | texts | numbers)
