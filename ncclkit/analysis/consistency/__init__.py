"""Whether the hosts of a job agree: facts side by side, only the differences that matter, the odd one out first."""

from __future__ import annotations

from ncclkit.analysis.consistency.compare import compare
from ncclkit.analysis.consistency.outcome import MEANS, Consistency, Difference, HostGroup, MissingFact

__all__ = ["MEANS", "Consistency", "Difference", "HostGroup", "MissingFact", "compare"]
