"""What is computed once for a case.

Verdicts and pictures of one case read the same parts, whoever asks first.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from ncclkit.core import shapes
from ncclkit.core.case import Case

T = TypeVar("T")
ITSELF = object()
"""Stands for the very case that a part was asked of."""


class _Parts:
    """The parts of one case that are known, and the records that they were computed from."""

    def __init__(self, case: Case) -> None:
        self.known: dict[Callable[[Case], Any], Any] = {}
        self._records = [list(records) for records in _records(case)]

    def hold(self, case: Case) -> bool:
        """Whether the case still has these very records.

        Lists compare equal objects by identity, which is quick.
        """
        return self._records == _records(case)


_CASES: WeakKeyDictionary[Case, _Parts] = WeakKeyDictionary()


def _records(case: Case) -> list[list[Any]]:
    return [case.events, case.facts, case.measurements, case.inputs]


def once(part: Callable[[Case], T]) -> Callable[[Case], T]:
    """`part`, computed at the first call for a case and kept.

    It is kept until the records of the case change.  Callers that get a list, a dict or a set get
    one of their own, as some add to it.
    """

    @wraps(part)
    def kept(case: Case) -> T:
        parts = _CASES.get(case)
        if parts is None or not parts.hold(case):
            parts = _CASES[case] = _Parts(case)
        if part not in parts.known:
            made = part(case)
            # a case that were kept for itself would never be let go
            if made is case:
                parts.known[part] = ITSELF
            else:
                parts.known[part] = made
        known: T = parts.known[part]
        if known is ITSELF:
            known = cast(T, case)
        if isinstance(known, (list, dict, set)):
            return copy(known)
        return known

    return kept


@once
def last_run_of(case: Case) -> Case:
    """What a verdict is about.

    It is the case as its last run left it, without facts of a shape that no reader can use.
    """
    scope = case.latest()
    scope.facts = list(map(shapes.validated, scope.facts))
    return scope
