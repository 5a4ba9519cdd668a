"""Where a line came from, for a finding that knows no rank.

In come a finding and its case; out goes the finding, whose sentence names the host, pod or
container, the process or the file of its first line.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePath

from ncclkit.core.case import Case
from ncclkit.core.model import Event, Finding

NOBODY = re.compile(r"A rank(?= [a-z]|[:,])(?! on )")
"""How a sentence begins that knows neither rank nor host."""
FILE_NAME = re.compile(r"[\w.@+-]{1,80}")


def with_source(finding: Finding, case: Case) -> Finding:
    """The finding, with the source of its first line where its rank is not known."""
    if finding.culprits.get("ranks") or not NOBODY.match(finding.say):
        return finding
    source = ""
    for piece in finding.evidence:
        if isinstance(piece, Event) and piece.rank is None:
            source = _source_of(piece, case)
            break
    if not source:
        return finding
    return replace(finding, say=NOBODY.sub(f"A rank{source}", finding.say, count=1))


def _source_of(event: Event, case: Case) -> str:
    """`` on job-worker-3``, `` (process 4711 on 10.0.0.7)`` or `` (in worker_b.log)``."""
    where = ""
    if event.host:
        where = f" on {event.host}"
    if event.pid is not None:
        return f" (process {event.pid}{where})"
    if where:
        return where
    # of one file everybody knows that it is in there
    name = PurePath(event.path).name
    paths = {str(row["path"]) for row in case.inputs}
    if len(paths) > 1 and FILE_NAME.fullmatch(name):
        return f" (in {name})"
    return ""
