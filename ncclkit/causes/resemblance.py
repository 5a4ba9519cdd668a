"""The second voice: which known failures the abnormal lines of a case resemble.

Rules prove; where none does, the wording still says something.  `tests/bench/resemblance.py` fits one weight for each
pair of a feature (a word, or a piece of one) and a cause, to the known failures of this repository; `resemblance.bin`
holds them, and examples to show.  Reading it needs the standard library only.  Its word is at most ``possible``.
"""

from __future__ import annotations

import json
import math
import re
import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path

from ncclkit.causes import catalogue, page
from ncclkit.core.case import RUN, Case
from ncclkit.core.model import Advice, Event, Evidence, Finding, found
from ncclkit.evidence.quotation import DOCUMENTS

FILE = Path(__file__).with_name("resemblance.bin")
WELL = ""
"""The name that the weights of healthy jobs have among those of causes."""
CHATTER = frozenset(
    "nccl.version nccl.init nccl.channel progress nccl.destroy worker.phase nccl.ring nccl.tree nccl.timing "
    "nccl.connected nccl.affinity nccl.tuning flight.dump flight.entry connect.host connect.pair nccltests.table stack "
    "job.share job.member nccl.socket_devices nccl.ib_devices job.done run.end".split()
)
"""Kinds of events that healthy jobs have, too."""
SAYS = "No rule decides it, but it resembles "
"""How the sentence of each of its findings begins."""
MOST = 3
"""Causes that are named, and lines that are cited for each."""
SHOWN = 0.4
"""A line that weighs less than this part of the heaviest one is not cited."""
ENOUGH = 4
"""Words that the lines of a failure must have together."""
SHARP = 4.0
"""What differences of scores are multiplied with before they become shares."""
DOUBT = 0.1
"""Share from which a cause is named although rules have found no sign of it: they read a few lines, this reads all."""
SETTLED = ("p2p_broken",)
"""Causes that are out of the question where their rule clears them: a single rank has no peer."""
LEAST = 0.03
"""A cause with a smaller share of the resemblance is not named."""
FIRST = 0.04
"""The same where no rule finds anything possible: just above it the right one is among three in seven of ten."""
CALM, COMPLAINED = 0.12, 0.08
"""The same where no line says that anything failed, and somebody shows a short text all the same, or complains."""
SURE = 0.25
"""With this share of another cause, an exception is taken for its messenger; a text about no such job needs it, too."""
SOUND = 0.25
"""With this share, and more than any cause has, a job that shows an error is taken for a healthy one."""
RULE, STEP = 0.15, 0.05
"""What a cause gains where a rule calls it possible, and how much less each further one of them gains."""

COUNTED = re.compile(r"\b(?:loss|epoch|iter(?:ation)?|step|lr|eta|ppl|wps)\b|[a-z]/s\b", re.IGNORECASE)
RATE = re.compile(
    r"\d ?(?:it|tok(?:en)?s?|samples?|examples?|im(?:a)?ge?s?|req(?:uest)?s?|s|ms)/(?:s(?:ec|tep)?|it(?:er)?)\b"
)
"""What lines of a job hold that is at work."""
COMPLAINT = re.compile(
    r"\b(?:hangs?|hung|stuck|frozen?|slow(?:er|ly)?|forever|instead of|expect(?:ed|ing)?|halves|why|nothing|never"
    r"|only|no (?:output|error|progress|effect)|works?|worked|helps?|helped|solved|any idea|fails?|doe?s?n'?t|does not"
    r"|problem|garbage|random(?:ly)?|sometimes|always|wrong|crash(?:es|ed)?|i|i'm|my|we|our)\b",
    re.IGNORECASE,
)
"""What people say of a job that is not as it should be."""
TOPIC = re.compile(
    r"(?<![a-z])(?:(?P<sure>(?:lib)?[nr]ccl|gpus?|cuda|nvidia|nvlink|torch|ddp|fsdp|zero[-_ ]?[123]|deepspeed|megatron"
    r"|[sv]llm|all_?reduce|all_?gather|allto?all|mlx\d|infiniband|rdma|roce|slurm|sbatch|data_?loader|horovod|jax"
    r"|accelerate|tensorflow|transformers|world[-_ ]size|pl \d|lightning|load_dataset|sglang|safetensors|autograd"
    r"|watchdog|py-spy)|ranks?|barrier|broadcast|gloo|xla|ib\d|epoch"
    r"|checkpoint|tensor|nodes?|driver|kubectl|pods?|docker|container|workers?|train(?:ing|er)?|process(?:es)?|hosts?"
    r"|distributed|cores?|hangs?|stuck)(?![a-z])",
    re.IGNORECASE,
)
"""Words of what is posted about such jobs: one that nobody else uses, or two."""
SPOKEN = re.compile(r"(?<!\S)[a-z']{1,20}[,.?:]?(?!\S)")
PATH = re.compile(r"(?:[\w.~$-]{0,99}/)+([\w.+-]+)")
HEX = re.compile(r"\b0x[0-9a-f]+|\b[0-9a-f]{12,}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?:[:<]\d+>?)?")
STAMP = re.compile(r"\d{4}[-/]\d\d[-/]\d\d[ t]\d\d:\d\d:\d\d(?:[.,]\d+)?|\d\d:\d\d:\d\d(?:[.,]\d+)?")
ENVELOPE = re.compile(r"^\s*(?:\[[\w :|]{1,40}\]:? ?)*[\w.-]{1,255}:\d+:\d+ (?:\[\d+\] )?")
WORD = re.compile(r"[a-z_\u0080-\uffff]+|\d+")
DIGITS = frozenset("0123456789")


def features(lines: Iterable[str]) -> Iterator[str]:
    """The words of lines, numbers of up to three digits, and all pieces of three and four letters of each word.

    Times, hosts, addresses and folders differ from job to job and are left out.
    """
    for line in lines:
        for word in _words(line[:2000]):
            yield word
            if word[0] not in DIGITS:
                edged = f"<{word[:40]}>"
                yield from (edged[i : i + n] + "~" for n in (3, 4) for i in range(len(edged) - n + 1))


def _words(line: str) -> list[str]:
    text = ENVELOPE.sub(" ", STAMP.sub(" ", line.lower()))
    text = PATH.sub(r" \1 ", ADDRESS.sub(" ip ", HEX.sub(" 0x ", text)))
    return [word for word in WORD.findall(text) if word[0] not in DIGITS or len(word) <= 3]


def number(feature: str) -> int:
    """The number under which the weights of a feature stand."""
    return zlib.crc32(feature.encode())


@lru_cache(maxsize=1024)
def numbers(line: str) -> array[int]:
    """The numbers of the features of a line, in their order: each line is weighed for several causes."""
    return array("I", map(number, features([line])))


@dataclass(frozen=True, slots=True)
class Weights:
    """What was learned: rows of weights by feature, and examples of each cause."""

    causes: tuple[str, ...]
    bias: tuple[float, ...]
    scale: tuple[float, ...]
    """What a stored weight of each cause is multiplied with."""
    rows: Mapping[int, int]
    rarity: array[float]
    """How rare each feature is among the known failures (inverse document frequency)."""
    stored: bytes
    examples: Mapping[str, Sequence[str]]

    def spread(self, lines: Sequence[str]) -> dict[int, float]:
        """Row → weight of its feature in a text: how often (as a logarithm) times how rare, of length 1 together."""
        counts = Counter(chain.from_iterable(map(numbers, lines)))
        known = {row: n for name, n in counts.items() if (row := self.rows.get(name)) is not None}
        value = {row: (1 + math.log(n)) * self.rarity[row] for row, n in known.items()}
        length = math.sqrt(sum(v * v for v in value.values())) or 1.0
        return {row: v / length for row, v in value.items()}

    def scores(self, spread: Mapping[int, float]) -> dict[str, float]:
        """How far a text lies on the side of each cause."""
        width, stored = len(self.causes), memoryview(self.stored).cast("b")
        sums = [0.0] * width
        for row, value in spread.items():
            heavy = stored[row * width : (row + 1) * width]
            sums = [total + value * weight for total, weight in zip(sums, heavy, strict=True)]
        rows = zip(self.causes, self.bias, self.scale, sums, strict=True)
        return {cause: bias + scale * total for cause, bias, scale, total in rows}

    def share(self, cause: str, line: str, spread: Mapping[int, float]) -> float:
        """How much a line adds to the score of a cause in its text."""
        at, width, stored = self.causes.index(cause), len(self.causes), memoryview(self.stored).cast("b")
        rows = {self.rows[key] for key in set(numbers(line)) if key in self.rows}
        return sum(spread.get(row, 0.0) * stored[row * width + at] for row in rows)

    def like(self, cause: str, line: str) -> str:
        """The known failure of a cause that a line resembles most."""
        mine = self.spread([line])

        def near(example: str) -> float:
            return sum(value * mine.get(row, 0.0) for row, value in self.spread([example]).items())

        return max(self.examples[cause], key=near)


@cache
def weights() -> Weights:
    """The weights that ship."""
    return unpacked(FILE.read_bytes())


def unpacked(data: bytes) -> Weights:
    """Weights from the bytes of their file: a line of JSON, the features' numbers, their rarity, and the weights."""
    head, _, rest = zlib.decompress(data).partition(b"\n")
    about = json.loads(head)
    count = about["features"]
    names, rarity = array("I", rest[: 4 * count]), array("f", rest[4 * count : 8 * count])
    if sys.byteorder == "big":
        names.byteswap()
        rarity.byteswap()
    rows = {name: row for row, name in enumerate(names)}
    causes, bias, scale = (tuple(about[key]) for key in ("causes", "bias", "scale"))
    return Weights(causes, bias, scale, rows, rarity, rest[8 * count :], about["examples"])


def abnormal(case: Case) -> list[tuple[str, Event]]:
    """The lines that may tell a case from a healthy job, each once, with the event that cites it.

    Of a few short logs, as somebody pastes them, these are all: what is chatter elsewhere speaks for a sound job.
    """
    once: dict[str, Event] = {}
    short = any("quiet" in file for file in case.inputs)
    events = [event for event in case.events if short or event.kind not in CHATTER]
    for event in [*events, *unread(case), *unread(case, "quiet")]:
        for line in event.text.split("\n"):
            if line.strip():
                once.setdefault(line, event)
    return list(once.items())


def unread(case: Case, which: str = "abnormal") -> list[Event]:
    """The lines of its logs that speak of trouble and that no grammar knows; of our own runs, those of the last.

    which: ``quiet`` for the other lines of short logs.
    """
    now = {event.path for event in case.events}
    return [
        Event("log.error", text=row["text"], path=file["path"], line=row["line"], rank=row["rank"])
        for file in case.inputs
        if file["path"] in now or not RUN.search(file["path"])
        for row in file.get(which, ())
    ]


def work(case: Case) -> list[Event]:
    """The lines of short logs that a job at work writes, whatever its program: rates, and counters said again."""
    return [
        Event("progress", text=row["text"], path=file["path"], line=row["line"], rank=row["rank"])
        for file in case.inputs
        for row in file.get("quiet", ())
        if RATE.search(row["text"]) or (row["times"] > 1 and COUNTED.search(row["text"]))
    ]


def is_topic(case: Case) -> bool:
    """Whether this is about jobs on GPUs: lines of one, or some of its words; documentation and source code are not."""
    logs = {file["path"] for file in case.inputs if Path(file["path"]).suffix.lower() not in DOCUMENTS}
    lines = [line for line in [*unread(case), *unread(case, "quiet")] if line.path in logs]
    words = [match for line in lines for match in TOPIC.finditer(line.text)]
    several = len({match[0].lower().rstrip("s") for match in words}) > 1
    return several or any(match["sure"] for match in words) or any(event.path in logs for event in case.events)


def complains(case: Case, well: Event | None = None) -> bool:
    """Whether somebody says in a short text that something is not as it should be; well: after this line of its end."""
    lines = [line for line in [*unread(case), *unread(case, "quiet")] if not well or line.line > well.line]
    return any(COMPLAINT.search(line.text) and len(SPOKEN.findall(line.text)) >= 4 for line in lines)


def comparable(events: Iterable[Event]) -> bool:
    """Whether these say more than that something failed: ``RuntimeError: NCCL error`` resembles everything."""
    return len({word for event in events for line in event.text.split("\n") for word in _words(line)}) >= ENOUGH


def shares(lines: Sequence[str], known: Weights | None = None) -> dict[str, float]:
    """Cause → how much of the resemblance is its own, the best first; healthy jobs are one of them (`WELL`)."""
    known = known or weights()
    scores = known.scores(known.spread(lines))
    best = max(scores.values())
    powers = {cause: math.exp(SHARP * (score - best)) for cause, score in scores.items()}
    total = sum(powers.values())
    return {cause: power / total for cause, power in sorted(powers.items(), key=lambda item: -item[1])}


def messenger(lines: Sequence[str]) -> bool:
    """Whether lines clearly resemble a cause, and the exception of a rank is only its sign."""
    first, share = next(iter(shares(lines).items()))
    return share >= SURE and first not in (WELL, "rank_exception")


def order(
    possible: Sequence[str],
    cleared: Mapping[str, Sequence[Evidence]],
    lines: Sequence[tuple[str, Event]],
    least: float = FIRST,
    sound: float = SOUND,
) -> list[str]:
    """The causes that rules call possible, and up to three that these lines resemble, the best first.

    possible: those of the rules, their best first; cleared: those that rules have looked at, and on what they speak
    against them; least: what the best one must have where rules find none; sound: with more than that and than any, a
    job is well.
    """
    found = shares([line for line, _ in lines])
    best = max(found.values())
    if not possible and (found[WELL] == best > sound or best < least):
        return []
    heaviest = {cause: _heaviest(cause, lines) for cause in cleared if found[cause] >= DOUBT and cause not in SETTLED}
    doubted = {cause for cause, event in heaviest.items() if event not in cleared[cause]}
    unread = {cause for cause in doubted if heaviest[cause].kind == "log.error"}
    gain = {cause: RULE - STEP * place for place, cause in enumerate(possible)}
    ranked: list[str] = []
    for allowed in (unread, doubted):  # what rules have read and clear comes only before silence
        without = {WELL, *cleared} - allowed
        like = [cause for cause in found if cause not in without and found[cause] >= LEAST][:MOST]
        ranked = ranked or sorted({*possible, *like}, key=lambda cause: (-found[cause] - gain.get(cause, 0.0), cause))
    return [cause for place, cause in enumerate(ranked) if cause in gain or place < MOST]


def _heaviest(cause: str, lines: Sequence[tuple[str, Event]]) -> Event:
    """The line that speaks most for a cause."""
    known = weights()
    spread = known.spread([line for line, _ in lines])
    return max(lines, key=lambda item: known.share(cause, item[0], spread))[1]


def is_resembling(finding: Finding) -> bool:
    """Whether a finding rests on its wording alone, so that no cause is known."""
    return finding.say.startswith(SAYS)


def finding(cause: str, case: Case, lines: Sequence[tuple[str, Event]]) -> Finding:
    """The verdict that a case resembles a cause: the lines that weighed most, and the known failure they are like."""
    known = weights()
    spread = known.spread([line for line, _ in lines])
    weight = {line: known.share(cause, line, spread) for line, _ in lines}
    most = max(weight.values())
    heavy = [item for item in lines if weight[item[0]] >= min(most, SHOWN * most)]  # one line may speak against it
    heavy = sorted(heavy, key=lambda item: -weight[item[0]])[:MOST]
    about = page(cause)
    example = known.like(cause, heavy[0][0])
    advice = Advice(
        " ".join(about["What to do"].split()),
        why="Only the wording fits; nothing in the evidence proves it.",
        check=" ".join(about["How to be sure"].split()),
        risk="It may be another cause: check first, then change one thing.",
    )
    say = f'{SAYS}"{about[""].rstrip(".")}" (like: {example}).'
    evidence: list[Evidence] = [event for _, event in heavy]
    return found(cause, "possible", say, evidence, advice=(advice,), next=catalogue()[cause].experiment(case))
