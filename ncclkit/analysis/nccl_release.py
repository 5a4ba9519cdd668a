"""Which NCCL a job loaded: what its log says, else what its hosts would load."""

from __future__ import annotations

from ncclkit.agent.facts.nccl_variables import Version, version_of
from ncclkit.core.case import Case
from ncclkit.core.kinds import C10dError, NcclVersion
from ncclkit.core.model import Event


def version_lines(case: Case) -> list[Event]:
    """Lines that name the version of NCCL."""
    quoted = []
    for event in case.of(C10dError):
        if event.data.nccl_version:
            quoted.append(event)
    return [*case.of(NcclVersion), *quoted]


def version_in(event: Event) -> Version | None:
    """The version that such a line names."""
    if isinstance(event.data, NcclVersion):
        return version_of(str(event.data.version or ""))
    return version_of(str(event.data.nccl_version or ""))


def loaded_nccl(case: Case) -> Version | None:
    """The release that all ranks loaded; None where it is not known, or they differ."""
    said = {version_in(event) for event in version_lines(case)}
    if not said:
        said = {version_of(str(fact.value or "")) for fact in case.facts_of("software.nccl")}
    if len(said) == 1:
        return said.pop()
    return None
