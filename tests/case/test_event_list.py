"""Events are found by kind and rank as a walk over all of them finds them, however the list was changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ncclkit.core.case import Case
from ncclkit.core.model import Event

KINDS = ("c10d.timeout", "c10d.error", "nccl.init", "c10dx.other")
EVENTS = [Event(kind, f"{kind} of {rank}", rank=rank) for kind in KINDS for rank in (None, 0, 1)]
event = st.sampled_from(EVENTS)
CHANGES = {
    "append": lambda case, one: case.events.append(one),
    "extend": lambda case, one: case.events.extend([one, one]),
    "insert": lambda case, one: case.events.insert(0, one),
    "remove": lambda case, one: case.events.remove(one) if one in case.events else None,
    "pop": lambda case, one: case.events.pop() if case.events else None,
    "clear": lambda case, one: case.events.clear(),
    "sort": lambda case, one: case.events.sort(key=str),
    "reverse": lambda case, one: case.events.reverse(),
    "replace the first": lambda case, one: case.events.__setitem__(slice(0, 1), [one]),
    "delete the last": lambda case, one: case.events.__delitem__(slice(-1, None)),
    "add in place": lambda case, one: case.events.__iadd__([one]),
    "repeat": lambda case, one: case.events.__imul__(2) if len(case.events) < 20 else None,
    "assign": lambda case, one: setattr(case, "events", [*case.events, one]),
    "share": lambda case, one: setattr(Case(), "events", case.events),
    "add": lambda case, one: case.add([one]),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), event), max_size=12))
def test_the_index_follows_every_change(changes):
    case = Case()
    for change, one in changes:
        CHANGES[change](case, one)
        for kind in KINDS:
            assert case.of(kind) == [known for known in case.events if known.kind == kind]
        assert case.of("c10d.") == [known for known in case.events if known.kind.startswith("c10d.")]
        for rank in (0, 1):
            assert case.on(rank) == [known for known in case.events if known.rank == rank]


def test_what_a_question_gives_is_the_callers_own():
    case = Case().add(EVENTS)
    case.of("nccl.init").clear()
    case.on(1).clear()
    assert len(case.of("nccl.init")) == 3 and len(case.on(1)) == len(KINDS)


def test_a_second_question_walks_over_nothing():
    asked = []

    class Watched:
        @property
        def kind(self):
            asked.append(self)
            return "nccl.init"

    case = Case()
    case.events = [Watched(), Watched()]
    for _ in range(5):
        assert len(case.of("nccl.init")) == 2
    assert len(asked) == 2  # it was once for each question and event
