"""The second voice: which known failures the abnormal lines of a case resemble.

Rules prove; where none does, the wording still says something.  `tests/bench/resemblance.py` fits
one weight for each pair of a feature (a word, or a piece of one) and a cause, to the known failures
of this repository; `resemblance.bin` holds them, and examples to show.  Reading it needs the
standard library only.  Its word is at most ``possible``.
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
from heapq import nlargest
from itertools import chain
from pathlib import Path
from sys import intern

from ncclkit.analysis.outcome import unread_lines
from ncclkit.analysis.trouble import is_of_job
from ncclkit.core.case import Case
from ncclkit.core.kinds import ProgramLine
from ncclkit.core.model import Event, Finding
from ncclkit.evidence.logs import ANSWER_KIND
from ncclkit.evidence.quotation import DOCUMENTS

FILE = Path(__file__).with_name("resemblance.bin")
WELL = ""
"""The name that the weights of healthy jobs have among those of causes."""
CHATTER = frozenset(
    "nccl.version nccl.init nccl.channel progress nccl.destroy worker.phase nccl.ring nccl.tree"
    " nccl.timing nccl.connected nccl.affinity nccl.tuning flight.dump flight.entry connect.host"
    " connect.pair nccltests.table stack job.share job.member nccl.socket_devices nccl.ib_devices"
    " job.done run.end".split()
)
"""Kinds of events that healthy jobs have, too."""
SAYS = "No rule decides it"
"""How the sentence of each finding begins that rests on wording alone.

It may also rest on counted cases.
"""
MOST = 3
"""Causes that are named, and lines that are cited for each."""
SHOWN = 0.4
"""A line that weighs less than this part of the heaviest one is not cited."""
ENOUGH = 4
"""Words that the lines of a failure must have together."""
SHARP = 4.0
"""What differences of scores are multiplied with before they become shares."""
DOUBT = 0.1
"""Share from which on a cause is named although rules have cleared it."""
SETTLED = ("p2p_broken",)
"""Causes that are out of the question where their rule clears them.

A single rank has no peer, for example.
"""
LEAST = 0.03
"""A cause with a smaller share of the resemblance is not named."""
FIRST = 0.04
"""The same where no rule finds anything possible.

Just above it the right one is among three in seven of ten.
"""
CALM, COMPLAINED = 0.12, 0.08
"""The same where no line says that anything failed.

In the first case somebody shows a short text all the same, in the second one complains.
"""
SURE = 0.25
"""Share of another cause that makes an exception its messenger.

A text about no such job needs that share, too.
"""
SOUND = 0.25
"""Share of healthy jobs that makes a job with an error a healthy one.

It must also be more than any cause has.
"""

TOPIC = re.compile(
    r"(?<![a-z])(?:(?P<sure>(?:lib)?[nr]ccl|gpus?|cuda|nvidia|nvlink|torch|ddp|fsdp|zero[-_"
    r" ]?[123]|deepspeed|megatron"
    r"|[sv]llm|all_?reduce|all_?gather|allto?all|mlx\d|infiniband|rdma|roce|slurm|sbatch"
    r"|data_?loader|horovod|jax"
    r"|accelerate|tensorflow|transformers|world[-_ ]size|pl"
    r" \d|lightning|load_dataset|sglang|safetensors|autograd"
    r"|watchdog|py-spy|busbw|algbw|nvswitch|fabricmanager|omp_\w+|c10d|client socket|libfabric|efa)"
    r"|(?P<near>iterations?|affinity|ranks?|barrier|broadcast|gloo|xla|ib\d|epoch|tensor"
    r"|train(?:ing|er)?|distributed|hangs?|stuck)"
    r"|checkpoint|nodes?|driver|kubectl|pods?|docker|container|workers?|process(?:es)?|hosts?"
    r"|cores?)(?![a-z])",
    re.IGNORECASE,
)
"""Words of what is posted about such jobs.

It takes one that nobody else uses, or two, one of them near to it.
"""
PATH = re.compile(r"(?:[\w.~$-]{0,99}/)+([\w.+-]+)")
HEX = re.compile(r"\b0x[0-9a-f]+|\b[0-9a-f]{12,}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?:[:<]\d+>?)?")
STAMP = re.compile(
    r"\d{4}[-/]\d\d[-/]\d\d[ t]\d\d:\d\d:\d\d(?:[.,]\d+)?|\d\d:\d\d:\d\d(?:[.,]\d+)?"
)
ENVELOPE = re.compile(r"^\s*(?:\[[\w :|]{1,40}\]:? ?)*[\w.-]{1,255}:\d+:\d+ (?:\[\d+\] )?")
WORD = re.compile(r"[a-z_\u0080-\uffff]+|\d+")
DIGITS = frozenset("0123456789")


def _pieces_of_word(word: str) -> Iterator[str]:
    yield word
    if word[0] not in DIGITS:
        # the edges tell the beginning and end of a word from its middle; the rest of a very long
        # word is mostly an identifier
        edged = f"<{word[:40]}>"
        for n in 3, 4:
            for i in range(len(edged) - n + 1):
                yield edged[i : i + n] + "~"


def _words_of_line(line: str) -> list[str]:
    # what differs from job to job (times, hosts, addresses, folders) would be learned by heart
    # otherwise
    text = ENVELOPE.sub(" ", STAMP.sub(" ", line[:2000].lower()))
    text = PATH.sub(r" \1 ", ADDRESS.sub(" ip ", HEX.sub(" 0x ", text)))
    short_words = []
    for word in WORD.findall(text):
        # short numbers are error codes and ports of a kind; long ones are sizes and process ids
        if word[0] not in DIGITS or len(word) <= 3:
            short_words.append(word)
    return short_words


def number(feature: str) -> int:
    """The number under which the weights of a feature stand."""
    return zlib.crc32(feature.encode("utf-8", "replace"))


@lru_cache(maxsize=1 << 14)
def numbers(word: str) -> array[int]:
    """The numbers of the features of a word, in their order.

    Lines share most of their words.
    """
    return array("I", map(number, _pieces_of_word(word)))


def counted_features(words: Mapping[str, int]) -> Counter[int]:
    """How often each feature stands in words, by its number."""
    # a word counts with each of its pieces, so that forms of one word, and misspelt ones, meet in
    # most of them
    counts: Counter[int] = Counter()
    for word, times in words.items():
        for name in numbers(word):
            counts[name] += times
    return counts


def counted_lines(lines: Iterable[str]) -> Counter[int]:
    """How often each feature stands in lines: their words, and all pieces of each word.

    Numbers have up to three digits; pieces have three and four letters.  Times, hosts, addresses
    and folders differ from job to job and are left out.
    """
    return counted_features(Counter(chain.from_iterable(map(_words_of_line, lines))))


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
        """Row → weight of its feature in a text.

        It is how often (as a logarithm) times how rare, of length 1 together.
        """
        return self.spread_words(Counter(chain.from_iterable(map(_words_of_line, lines))))

    def spread_words(self, words: Mapping[str, int]) -> dict[int, float]:
        """The same of words, and how often each stands in the text."""
        counts = counted_features(words)
        # features that no known failure has would only make the text longer, and each known one
        # lighter
        known = {row: n for name, n in counts.items() if (row := self.rows.get(name)) is not None}
        # a line that is repeated a thousand times is not a thousand times as telling, hence the
        # logarithm; what stands in every log tells nothing, hence the rarity
        value = {row: (1 + math.log(n)) * self.rarity[row] for row, n in known.items()}
        # length 1, so that a long log and a short post are weighed alike
        length = math.sqrt(sum(v * v for v in value.values())) or 1.0
        return {row: v / length for row, v in value.items()}

    def scores(self, spread: Mapping[int, float]) -> dict[str, float]:
        """How far a text lies on the side of each cause."""
        width = len(self.causes)
        stored = memoryview(self.stored).cast("b")
        sums = [0.0] * width
        for row, value in spread.items():
            # one signed byte a weight is enough, and the file is read in milliseconds without numpy
            heavy = stored[row * width : (row + 1) * width]
            sums = [total + value * weight for total, weight in zip(sums, heavy, strict=True)]
        rows = zip(self.causes, self.bias, self.scale, sums, strict=True)
        scores = {}
        for cause, bias, scale, total in rows:
            scores[cause] = bias + scale * total
        return scores

    def share(self, cause: str, words: Sequence[str], spread: Mapping[int, float]) -> float:
        """How much the words of a line add to a cause's score.

        The score is that in its text.
        """
        at = self.causes.index(cause)
        width = len(self.causes)
        stored = memoryview(self.stored).cast("b")
        names = set(chain.from_iterable(map(numbers, words)))
        rows = set()
        for name in names:
            if name in self.rows:
                rows.add(self.rows[name])
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
    """Weights from the bytes of their file.

    They are a line of JSON, the features' numbers, their rarity, and the weights.
    """
    head, _, rest = zlib.decompress(data).partition(b"\n")
    about = json.loads(head)
    count = about["features"]
    names = array("I", rest[: 4 * count])
    rarity = array("f", rest[4 * count : 8 * count])
    # the file is little-endian, whatever the machine
    if sys.byteorder == "big":
        names.byteswap()
        rarity.byteswap()
    rows = {name: row for row, name in enumerate(names)}
    causes, bias, scale = (tuple(about[key]) for key in ("causes", "bias", "scale"))
    return Weights(causes, bias, scale, rows, rarity, rest[8 * count :], about["examples"])


def abnormal(case: Case) -> list[tuple[str, Event]]:
    """The lines that may tell a case from a healthy job.

    Each comes with its event.  Of a few short logs, as somebody pastes them, these are all: what is
    chatter elsewhere speaks for a sound job.
    """
    once: dict[str, Event] = {}
    short = any("quiet" in file for file in case.inputs)
    # a question resembles what it asks about: neither answers nor programs are lines of the job;
    # what NCCL's diagnostics found sound resembles the fault that they looked for
    unlike = (ANSWER_KIND, ProgramLine.kind, "nccl.diagnostic")
    read = [event for event in case.events if event.kind not in unlike]
    events = []
    for event in read:
        # in a long log chatter speaks for a healthy job, and hides what a few lines say
        if short or event.kind not in CHATTER:
            events.append(event)
    for event in [*events, *unread_lines(case), *unread_lines(case, "quiet")]:
        for line in event.text.split("\n"):
            if line.strip():
                once.setdefault(line, event)
    return list(once.items())


def is_topic(case: Case) -> bool:
    """Whether this is about jobs on GPUs.

    It holds lines of one, or some of its words; documentation and source code are not about a job.
    """
    logs = set()
    for file in case.inputs:
        if Path(file["path"]).suffix.lower() not in DOCUMENTS:
            logs.add(file["path"])
    plain = [
        *unread_lines(case),
        *unread_lines(case, "quiet"),
        *case.of("log.error", "python.exception"),
    ]
    lines = [line for line in plain if line.path in logs]
    words: list[re.Match[str]] = []
    for line in lines:
        words.extend(TOPIC.finditer(line.text))
    # one word that nobody else uses is enough; of common ones it takes two
    if any(match["sure"] for match in words):
        return True
    if any(event.path in logs and is_of_job(event) for event in case.events):
        return True
    several = len({match[0].lower().rstrip("s") for match in words}) > 1
    return several and any(match["near"] for match in words)


def comparable(events: Iterable[Event]) -> bool:
    """Whether these say more than that something failed.

    ``RuntimeError: NCCL error`` resembles everything.
    """
    event_words = set()
    for event in events:
        for line in event.text.split("\n"):
            event_words.update(_words_of_line(line))
    return len(event_words) >= ENOUGH


class Text:
    """The lines that are judged together, each with the event citing it.

    They are taken apart once.
    """

    def __init__(self, lines: Sequence[tuple[str, Event]]) -> None:
        self.lines = lines
        self._words = [tuple(map(intern, _words_of_line(line))) for line, _ in lines]
        self._spread = weights().spread_words(Counter(chain.from_iterable(self._words)))
        self.shares = _shares_of_causes(weights(), self._spread)
        """As `shares` gives them."""

    def heaviest(
        self, cause: str, count: int, signs: Sequence[Event] = ()
    ) -> list[tuple[float, str, Event]]:
        """How much the lines that speak most for a cause weigh, and these lines.

        The heaviest come first.  `signs` are what says that anything failed; only such lines are
        taken where there are any.
        """
        known = weights()
        weight = {}
        for words in dict.fromkeys(self._words):
            weight[words] = known.share(cause, words, self._spread)
        placed = zip(self._words, self.lines, strict=True)
        weighed = [(weight[words], line, event) for words, (line, event) in placed]
        places = {(sign.path, sign.line) for sign in signs}
        told = []
        for item in weighed:
            if (item[2].path, item[2].line) in places:
                told.append(item)
        # a line that says failure is what a reader looks for; the heaviest line may be mere chatter
        # of the same set-up
        weighed = told or weighed
        return nlargest(count, weighed, key=lambda item: item[0])


def shares(lines: Sequence[str], known: Weights | None = None) -> dict[str, float]:
    """Cause → how much of the resemblance is its own, the best first.

    Healthy jobs are one of them (`WELL`).
    """
    known = known or weights()
    return _shares_of_causes(known, known.spread(lines))


def _shares_of_causes(known: Weights, spread: Mapping[int, float]) -> dict[str, float]:
    scores = known.scores(spread)
    best = max(scores.values())
    # the best is taken off first: exp of a large score would overflow, and only differences count
    powers = {cause: math.exp(SHARP * (score - best)) for cause, score in scores.items()}
    total = sum(powers.values())
    return {
        cause: power / total for cause, power in sorted(powers.items(), key=lambda item: -item[1])
    }


def messenger(text: Text) -> bool:
    """Whether lines clearly resemble a cause.

    The exception of a rank is then only its sign.
    """
    first, share = next(iter(text.shares.items()))
    return share >= SURE and first not in (WELL, "rank_exception")


def resembles_sound_job(text: Text, sound: float) -> bool:
    """Whether a text resembles a sound job more than any failure.

    It must do so by more than this share.
    """
    well = text.shares[WELL]
    return well > sound and well == max(text.shares.values())


def is_resembling(finding: Finding) -> bool:
    """Whether a finding rests on its wording or on settled cases alone.

    Then no cause is known.
    """
    return finding.say.startswith(SAYS)
