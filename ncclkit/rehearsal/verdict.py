"""What a rehearsal has shown: its sentence, the lines of code, and what to do first."""

from __future__ import annotations

import json
import linecache
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ncclkit.agent.digits import is_whole
from ncclkit.agent.rehearsal.coordinator import STATUS
from ncclkit.core import text
from ncclkit.core.model import NcclkitError
from ncclkit.rehearsal import waits
from ncclkit.rehearsal.waits import CallOrder, RankWait

WOULD = {
    # NCCL lets pass what has as many bytes, whatever each rank meant by them
    "mismatch": "would hang or compute with wrong values",
    "differs": "would not hang, and compute with wrong values",
    "order": "may hang on NCCL, as ranks use two groups in different orders",
    "first_use": (
        "may hang on NCCL: batch_isend_irecv as the first call of a group waits for all of its"
        " ranks, and not all come"
    ),
    # NCCL's calls return at once: a script that needs no result may end before it notices
    "left": "would hang where a result is needed",
    "deadlock": "would hang where a result is needed",
    "same_gpu": "would fail or hang, as two ranks are on one GPU",
}
LONGEST = 120
"""Characters of a line of code that is shown."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where one or several ranks stand."""

    ranks: tuple[int, ...]
    place: str
    """file:line of the program; empty where it is not known."""
    words: str
    """The call, or how they ended."""
    code: str = ""
    """The line of the program."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The verdict of one rehearsal."""

    kind: str
    """A key of `STATUS`."""
    ranks: int
    odd: tuple[int, ...]
    """Ranks that stand differently from the others."""
    waiting: tuple[Stand, ...]
    ended: tuple[Stand, ...]
    differs: str = ""
    """In what calls of a mismatch differ."""
    why: str = ""
    """Why it cannot be told."""
    again: str = ""
    """The command that rehearses once more."""
    folder: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What could not be decided, a sentence each."""
    shared: tuple[Stand, ...] = ()
    """Ranks of a host that communicate from one GPU, and the line that chose it."""
    lanes: tuple[Mapping[str, Any], ...] = ()
    """The last calls of each rank, as `ncclkit.agent.rehearsal.lanes` records them."""
    waits: tuple[RankWait, ...] = ()
    """For whom each waiting rank waits."""
    circle: tuple[RankWait, ...] = ()
    """Of a deadlock: each rank waits for the next, the last one for the first."""
    orders: tuple[CallOrder, ...] = ()
    """Which of two calls ranks make first, where that differs."""

    @property
    def status(self) -> int:
        """The exit status."""
        return STATUS[self.kind]

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        if self.kind == "agree":
            return self._agreement()
        if self.kind == "unknown":
            return f"Rehearsal of {self.ranks} ranks: could not tell. {self._reason()}"
        stands = _words_of(self.stands)
        would = WOULD[self.kind]
        return f"Rehearsal of {self.ranks} ranks: the job {would}. {text.start(stands)}."

    def text(self) -> str:
        """The sentence, the lines of code below each other, and what to do first."""
        lines = [self.sentence]
        lines += self._lines_of_code()
        lines += self.wait_lines
        first = self.first_step
        if first:
            lines.append(f"First: {first}")
        lines += self.remarks
        if self.figures.get("mapped_gpu"):
            lines.append("The script asked for GPUs: cuda was the CPU here, and NCCL was gloo.")
        gpu = self.figures.get("gpu")
        if gpu:
            lines.append(f"All ranks shared one GPU ({gpu}), and NCCL was gloo by way of the CPU.")
        if self.figures.get("fake"):
            lines.append("Tensors were fake: their shapes and types were compared, without values.")
        if self.kind == "unknown":
            lines.append(f"What the ranks printed: {self.folder}/launcher.log")
        return "\n".join(lines)

    @property
    def wait_lines(self) -> tuple[str, ...]:
        """Who waits for whom in a circle, or which of two calls ranks make first, a line each."""
        known = waits.circle_lines(self.circle)
        known += waits.order_lines(self.orders)
        lines = []
        for line in known:
            sentence = text.start(line)
            lines.append(sentence)
        return tuple(lines)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is said beside the verdict, a sentence each."""
        remarks = [*self.notes]
        if self.shared and not self._judges_gpus:
            shared = _words_of(self.shared)
            remarks.append(f"Over NCCL no two ranks may be on one GPU: {shared}.")
        skipped = float(self.figures.get("skipped", 0.0))
        if skipped:
            remarks.append(
                f"{skipped:,.1f} s were skipped, in which all ranks slept or waited; the clocks of"
                " the script went on by as much."
            )
        return tuple(remarks)

    def _lines_of_code(self) -> list[str]:
        """Who stands where, one below the other."""
        rows = []
        for stand in self.stands:
            if stand.place:
                named = text.start(text.ranks(stand.ranks))
                rows.append((named, stand.place, stand.code))
        wide = 0
        far = 0
        for named, place, _ in rows:
            wide = max(wide, len(named))
            far = max(far, len(place))
        lines = []
        for named, place, code in rows:
            line = f"  {named:{wide}}  {place:{far}}  {code}"
            lines.append(line.rstrip())
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        values = asdict(self)
        values["sentence"] = self.sentence
        values["status"] = self.status
        return values

    # ---------------------------------------------------------------- parts of the text

    def _agreement(self) -> str:
        calls = text.plural(int(self.figures.get("calls", 0)), "call")
        seconds = float(self.figures.get("seconds", 0.0))
        until = "until the script ended"
        for stand in self.ended:
            if stand.words.startswith("after "):
                until = f"{stand.words} of the optimizer"
        return (
            f"Rehearsal of {self.ranks} ranks: all ranks agree, {calls} in {seconds:.1f} s,"
            f" {until}."
        )

    def _reason(self) -> str:
        stands = []
        for stand in self.ended:
            if self._is_odd(stand):
                stands.append(_stand_words(stand))
        if self.why == "failed" and stands:
            failures = text.start("; ".join(stands))
            return f"{failures}: {self._way_on()}."
        if self.why == "deadline" and not self.figures.get("calls"):
            return (
                "No call was made by all ranks before the deadline; does the script use"
                " torch.distributed?"
            )
        if self.why == "deadline":
            still = text.verb(self.odd, "was", "were")
            return (
                f"At the deadline {text.ranks(self.odd)} {still} still running; that may be slow"
                " work: raise --timeout."
            )
        if self.why == "gpus":
            return (
                f"All ranks agree; {_words_of(self.shared)}. NCCL refuses two ranks on one GPU,"
                " unless your launcher shows each rank one of its own: then say --own-gpu, else"
                " name the launcher (-- torchrun …)."
            )
        if self.why == "asleep":
            return (
                f"More than a day of sleep was skipped, and {text.ranks(self.odd)} did not come to"
                " an end: a loop may wait for what never comes."
            )
        if self.why == "threads":
            return "Ranks communicate from two threads, of which one may free the other."
        return text.start(f"{self.why}.")

    def _way_on(self) -> str:
        """What may be done where a rank failed by itself."""
        if self.figures.get("fake"):
            return "mend that, or rehearse without --fake"
        if self.figures.get("gpu"):
            return "mend that, or rehearse without --gpu"
        if self.figures.get("mapped_gpu"):
            return "mend that, or rehearse without it, or with --fake"
        return "mend that, or rehearse without it"

    @property
    def stands(self) -> list[Stand]:
        """Where ranks stand, those at fault first."""
        if self._judges_gpus:
            return [*self.shared]
        at_fault = []
        others = []
        for stand in self.ended:
            # of two orders the calls are what counts, and not that a rank has ended since
            if self._is_odd(stand) and self.kind != "order":
                at_fault.append(stand)
        for stand in self.waiting:
            if set(stand.ranks) <= set(self.odd):
                at_fault.append(stand)
            else:
                others.append(stand)
        return [*at_fault, *others]

    @property
    def _judges_gpus(self) -> bool:
        """Whether the verdict is about the GPUs that ranks use."""
        return self.kind == "same_gpu" or self.why == "gpus"

    def _is_odd(self, stand: Stand) -> bool:
        for rank in stand.ranks:
            if rank in self.odd:
                return True
        return False

    @property
    def first_step(self) -> str:
        """What to do first, with a command to copy."""
        stands = self.stands
        if self.status != 1 or not stands:
            return ""
        place = stands[0].place or stands[-1].place
        if self.kind == "first_use":
            return self._then_again(
                f"let all ranks of the group make a collective before {stands[-1].place}, or name"
                " the GPU by init_process_group(device_id=…)"
            )
        if self.kind == "same_gpu":
            return self._then_again(
                f'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before {place}'
            )
        return self._then_again(
            f"let all ranks of the group make the same calls in the same order around {place}"
        )

    def _then_again(self, step: str) -> str:
        if self.again:
            return f"{step}, then `{self.again}`"
        return step


def _words_of(stands: Sequence[Stand]) -> str:
    words = []
    for stand in stands:
        said = _stand_words(stand)
        words.append(said)
    return "; ".join(words)


def _stand_words(stand: Stand) -> str:
    named = text.ranks(stand.ranks)
    at = ""
    if stand.place:
        at = f" at {stand.place}"
    return f"{named}: {stand.words}{at}"


def read_verdict(path: Path, ranks: int, again: str) -> Rehearsal:
    """What the ranks' own process wrote; NcclkitError where it did not come to that."""
    try:
        answer = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise NcclkitError(
            f"The rehearsal ended without a verdict; see {path.parent}/launcher.log."
        ) from error
    waiting = waits.read_waits(answer, _short_place)
    return Rehearsal(
        kind=answer["kind"],
        ranks=ranks,
        odd=tuple(answer["ranks"]),
        waiting=_stands(answer["calls"], "words", answer["ranks"]),
        ended=_stands(answer["endings"], "say", answer["ranks"]),
        differs=answer["field"],
        why=answer["why"],
        again=again,
        folder=str(path.parent),
        figures=answer["figures"],
        notes=tuple(answer["notes"]),
        lanes=tuple(answer["lanes"]),
        shared=_shared_gpus(answer["shared"], int(answer["host_ranks"]), ranks),
        waits=waiting,
        circle=waits.circle_of(waiting, answer["circle"]),
        orders=waits.read_orders(answer, _short_place),
    )


def _shared_gpus(
    calls: Mapping[str, Any],
    host_ranks: int,
    ranks: int,
) -> tuple[Stand, ...]:
    """Where ranks chose the GPU that they share."""
    records = {}
    for rank, call in calls.items():
        words = f"GPU {call['gpu']}"
        if host_ranks < ranks:
            words += f" of host {int(rank) // host_ranks}"
        words += f" for {call['words']}"
        records[rank] = {"words": words, "place": call["gpu_place"]}
    return _stands(records, "words", ())


def _stands(
    records: Mapping[str, Any],
    words: str,
    odd: Sequence[int],
) -> tuple[Stand, ...]:
    """Ranks at one place with the same words together; the fewest ranks first."""
    together: dict[tuple[str, str, bool], list[int]] = defaultdict(list)
    for rank, record in records.items():
        # an odd rank is named by itself, even at a line to which others have come, too
        key = record["place"], record[words], int(rank) in odd
        together[key].append(int(rank))
    stands = []
    for (place, said, _), ranks in together.items():
        stand = Stand(
            ranks=tuple(sorted(ranks)),
            place=_short_place(place),
            words=said,
            code=_code_at(place),
        )
        stands.append(stand)
    return tuple(sorted(stands, key=_fewest_first))


def _fewest_first(stand: Stand) -> tuple[int, tuple[int, ...]]:
    return len(stand.ranks), stand.ranks


def _short_place(place: str) -> str:
    """A place with its path from here, where it lies below."""
    file, _, line = place.rpartition(":")
    if not file:
        return place
    try:
        short = Path(file).resolve().relative_to(Path.cwd())
    except ValueError:
        return place
    return f"{short}:{line}"


def _code_at(place: str) -> str:
    """The line of the program at file:line; empty where it cannot be read."""
    file, _, line = place.rpartition(":")
    if not file or not is_whole(line):
        return ""
    # in a notebook the script is mended between two rehearsals
    linecache.checkcache(file)
    code = linecache.getline(file, int(line))
    return code.strip()[:LONGEST]
