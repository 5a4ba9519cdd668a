"""How many files the ranks of a case kept open."""

from __future__ import annotations

from ncclkit.agent.digits import whole_number
from ncclkit.core.case import Case
from ncclkit.core.runs import records_of


def most_open_files(case: Case) -> dict[int, int]:
    """Ranks → most open files of a rank with one communicator.

    They are counted over all scaling runs of a case.
    """
    found: dict[int, int] = {}
    for folder in case.runs():
        ranks = whole_number(folder.name.rpartition("-exchange-")[2])
        if ranks is None:
            continue
        for record in records_of(folder):
            if record.get("phase") == "files" and isinstance(record.get("one"), int):
                found[ranks] = max(found.get(ranks, 0), record["one"])
    return found
