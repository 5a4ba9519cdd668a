"""Ranks compared by what torch's watchdog says of them: no dump is needed, its timeouts and status lines suffice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ncclkit.analysis.calls import POINT_TO_POINT, SAME_SIZE, counted, grouped, op_of, size_of
from ncclkit.analysis.disagreement import Disagreement, cited, sides
from ncclkit.core import text
from ncclkit.core.model import Event
from ncclkit.core.summary import ranks


@dataclass(slots=True)
class _Wait:
    """One rank in one group, as its watchdog reports it."""

    said: list[Event] = field(default_factory=list)
    last: int = 0
    """The last collective that it enqueued."""
    seq: int | None = None
    """The one that it waits for."""
    op: str = ""
    size: int | None = None

    def take(self, event: Event) -> None:
        """Take one line; of several timeouts the first collective counts."""
        data, seq = event.data, event.data["seq"]
        self.said.append(event)
        if event.kind == "c10d.status":
            done, enqueued = counted(data["completed"]), counted(data["enqueued"])
            self.last = max(self.last, enqueued)
            if self.seq is None and done < enqueued:
                self.seq = done + 1
            return
        self.last = max(self.last, seq)
        if self.seq is None or seq < self.seq or not self.op:
            self.seq, self.op = seq, text.op(str(data["op"] or ""))
            self.size = size_of(event) if op_of(event).upper() in SAME_SIZE else None


def compare(events: Sequence[Event]) -> Iterator[Disagreement]:
    """The first collective of each process group in which one rank waits and another does not, or not for the same."""
    groups: dict[str, dict[int, _Wait]] = defaultdict(lambda: defaultdict(_Wait))
    descs: dict[str, str] = {}
    for event, name, desc in grouped(events):
        if event.rank is not None and op_of(event).upper() not in POINT_TO_POINT:
            descs[name] = desc
            groups[name][event.rank].take(event)
    spoke = {event.rank for event in events if event.rank is not None}
    world = set(ranks(events)) if groups else set()
    for name, waits in groups.items():
        if any(wait.seq is not None for wait in waits.values()):
            whole = descs[name] in ("", "default_pg") and name in ("", "0", "default_pg")
            yield from _Group(name, descs[name], waits, spoke, world if whole else set()).disagree()


class _Group:
    """The ranks of one process group at the first collective that one of them waits for."""

    def __init__(self, name: str, desc: str, waits: Mapping[int, _Wait], spoke: set[int], members: set[int]) -> None:
        self.name, self.desc, self.waits, self.spoke, self.members = name, desc, waits, spoke, members
        self.seq = min(wait.seq for wait in waits.values() if wait.seq is not None)
        self.inside = {rank: wait for rank, wait in sorted(waits.items()) if wait.seq == self.seq}
        self.behind = sorted(rank for rank, wait in waits.items() if wait.last < self.seq)
        self.beyond = sorted(waits.keys() - self.inside.keys() - set(self.behind))
        self.op = next((wait.op for wait in self.inside.values() if wait.op), "")
        """Empty where only status lines speak: these show works in flight, as a healthy job has them."""

    def disagree(self) -> Iterator[Disagreement]:
        """What they disagree in, or that they are stuck together."""
        for what in ("op", "size"):
            values = {rank: getattr(wait, what) for rank, wait in self.inside.items() if getattr(wait, what)}
            if len(set(values.values())) > 1:
                yield self._differ(what, values)
                return
        absent = sorted((self.members & self.spoke) - self.inside.keys())
        gone = sorted(self.members - self.inside.keys())
        if self.behind:
            yield self._lack(self.behind, f"did not come to it: {self._last(self.behind)}")
        elif not self.op:
            return
        elif self.beyond:
            yield self._past()
        elif absent:
            if len(absent) < len(self.inside):
                yield self._lack(absent, text.verb(absent, "says nothing of it", "say nothing of it"))
        elif gone:
            yield self._lack(gone, "left no line")
        elif len(inside := list(self.inside)) > 1:
            yield self._made("stuck", inside, [], f"{self._wait(inside)}: all that any line names")

    def _differ(self, what: str, values: dict[int, str | int]) -> Disagreement:
        (value, most), *others = sides(values)
        odd = sorted(rank for _, ranks in others for rank in ranks)
        unit = " elements" if what == "size" else ""
        said = "; ".join(f"{text.ranks(ranks)}: {value}{unit}" for value, ranks in [(value, most), *others][:4])
        where = text.collective(self.op if unit else "", self.seq, self.name, self.desc)
        return self._made(what, most, odd, f"{'Sizes' if unit else 'Operations'} differ in {where}: {said}")

    def _lack(self, odd: list[int], lack: str) -> Disagreement:
        inside = list(self.inside)
        return self._made("missing", inside, odd, f"{self._wait(inside)}; {text.ranks(odd)} {lack}")

    def _past(self) -> Disagreement:
        """Some wait for what others have behind them: one side ran something else under this number."""
        inside, beyond = list(self.inside), self.beyond
        most, odd = (inside, beyond) if len(inside) > len(beyond) else (beyond, inside)
        behind = f"{text.ranks(beyond)} {text.verb(beyond, 'has', 'have')} it behind"
        return self._made("missing", most, odd, f"{self._wait(inside)}; {behind}")

    def _last(self, ranks: list[int]) -> str:
        last = sorted({self.waits[rank].last for rank in ranks})
        return (
            f"the last one enqueued there is {last[0]}"
            if len(last) == 1
            else f"there the last are {last[0]}-{last[-1]}"
        )

    def _wait(self, ranks: list[int]) -> str:
        where = text.collective(self.op, self.seq, self.name, self.desc)
        return text.start(f"{text.ranks(ranks)} {text.verb(ranks, 'waits', 'wait')} in {where}")

    def _made(self, what: str, majority: list[int], odd: list[int], say: str) -> Disagreement:
        lines = [
            [event for rank in ranks if rank in self.waits for event in self.waits[rank].said]
            for ranks in (odd, majority)
        ]
        return Disagreement(self.name, self.desc, self.seq, what, tuple(majority), tuple(odd), say, cited(*lines))
