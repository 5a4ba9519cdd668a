"""What the user means to run, as facts: numbers that no agent can read from a host."""

from __future__ import annotations

from collections.abc import Mapping

from ncclkit.core.case import Case
from ncclkit.core.model import Fact, NcclkitError

UNITS = {"ranks": "ranks", "workers": "workers", "prefetch": "batches", "dataset": "bytes", "batch": "bytes"}
"""Facts ``job.<name>``: ranks on each host, data-loader workers of each rank and batches that each worker reads ahead,
what each rank keeps of the dataset in host memory, and one batch of it."""


def set_job_spec(case: Case, job: Mapping[str, float | None]) -> Case:
    """Keep the numbers of the job that is to run (names of `UNITS`; None and 0 are not known) for the pre-flight.

    They take the place of those that were kept before.  Raises NcclkitError for a name or number that cannot be.
    """
    for name, value in job.items():
        if name not in UNITS or isinstance(value, bool) or not isinstance(value or 0, (int, float)) or (value or 0) < 0:
            raise NcclkitError(
                f"The job cannot have {name} = {value!r}; give numbers of at least 0 for {', '.join(UNITS)}."
            )
    facts = [
        Fact(f"job.{name}", value, UNITS[name], "what you said of the job") for name, value in job.items() if value
    ]
    case.facts = [fact for fact in case.facts if not fact.name.startswith("job.")]
    return case.replace_facts(facts).save()
