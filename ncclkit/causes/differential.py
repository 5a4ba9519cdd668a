"""Which causes a bare symptom usually has, and which question decides.

The question tells the causes apart, which come in one order (`ranking`): by how often settled cases
with these symptoms and contexts had each cause (``settled.json``, written by
``tests/bench/differential.py``), which cause the wording resembles, and which ones rules call
possible or have cleared.  Answers of a person multiply the odds.  Whatever the numbers are, a
suspect is never more than ``possible`` by them alone.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from ncclkit.analysis.once import once
from ncclkit.causes.contexts import contexts_of
from ncclkit.causes.looks import all_questions, cause_looks
from ncclkit.causes.looks.record import Look
from ncclkit.causes.ranking import Voices, log_resemblance, ranked_causes
from ncclkit.causes.resemblance import DOUBT, SETTLED, Text, abnormal
from ncclkit.causes.symptoms import Seen, symptoms, symptoms_in
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Evidence
from ncclkit.evidence.logs import ANSWER_KIND

FILE = Path(__file__).with_name("settled.json")
Answer = Literal["yes", "no", "unknown"]
SMOOTHING = 10.0
"""Cases of the average kind that are added to those of each cause.

Most causes have few cases.
"""
SUFFICING = 0.3
"""Weight of a settled case whose text alone tells its cause.

It is another kind of text than a bare one.
"""
ACCEPTED = 0.4
"""Weight of a case for a cause that its thread would have accepted, too."""
FEWEST, SUSPECTS, LEAST_SHARE = 3, 5, 0.02
"""Suspects that are named at least and at most, and a further one's share.

Each further one must have at least that share.
"""
ANSWERED = 1.5
"""Weight of an answer: who gave it has looked at the machine, and the others go by the text.

Of 81 posted failures 60 and 62 are first after three questions, without it 56 and 60.
"""
OF_BITS = 0.1
"""What a bit is worth beside a share of the first suspect."""
CLEAR_LEAD = 0.75
"""Share of a suspect whose look was answered by yes from which no further question is asked."""


STATED: Mapping[tuple[str, str], float] = {
    # a loss or a flag is summed right after a batch was loaded: data comes late
    ("one_element", "cpu_contention"): 4.0,
    ("one_element", "host_oom"): 3.0,
    ("one_element", "disk_or_io"): 2.0,
    # sockets take cores that the loaders' workers want, too
    ("uses_sockets", "cpu_contention"): 3.0,
    # without libibverbs the data goes over sockets, whatever the log says later
    ("no_infiniband", "cpu_contention"): 3.0,
    # a slow path delays a bucket; one element passes at once on any
    ("one_element", "ib_not_used"): 0.2,
    # proxies meet by address: no name is looked up
    ("proxy_fails", "hostname_resolution"): 0.2,
    # who hands out the id is the first to fill a host and the first GPU
    ("unique_id", "host_oom"): 3.0,
    ("unique_id", "gpu_oom"): 2.0,
    # a loader that skips batches alone is late by definition
    ("at_resume", "slow_rank"): 2.0,
    # who tried a remedy, and it helped, has tried the cause as well
    ("p2p_off_helps", "p2p_broken"): 8.0,
    ("ib_off_helps", "ib_config"): 5.0,
    ("ib_off_helps", "ib_link_error"): 2.0,
    ("shm_off_helps", "shm_too_small"): 6.0,
    ("cumem_off_helps", "cumem_container"): 6.0,
    ("cumem_off_helps", "nccl_bug"): 2.0,
    ("nvls_off_helps", "nvswitch_fabric"): 6.0,
    ("nvls_off_helps", "nccl_bug"): 2.0,
    ("interface_helps", "wrong_interface"): 6.0,
    ("interface_helps", "ifname_not_found"): 2.0,
    ("unused_helps", "rank_divergence"): 6.0,
    ("timeout_helps", "slow_rank"): 3.0,
    ("timeout_helps", "timeout_too_short"): 3.0,
    # a barrier before what one rank does first
    ("prepares_first", "slow_rank"): 4.0,
    ("prepares_first", "timeout_too_short"): 2.0,
    # nobody lowered the limit, and it passed to the second
    ("usual_timeout", "timeout_too_short"): 0.3,
}
"""Symptom or context and cause → how much more often than counted.

The counted cases are few; each row has its reason.
"""


LOUD = (
    "bad_env_value",
    "cuda_error",
    "cumem_container",
    "driver_too_old",
    "duplicate_gpu",
    "fd_limit",
    "gpu_oom",
    "ifname_not_found",
    "memlock_limit",
    "port_in_use",
    "rank_exception",
    "shm_too_small",
    "version_mismatch",
)
"""Causes that end a job with an error: where none is posted, it hangs, is slow, or is wrong."""
LOUD_UNHEARD = 0.25
"""How much more seldom a text without any error is one of these."""


OF_SEVERAL = (
    "concurrent_comms",
    "hostname_resolution",
    "ib_config",
    "ib_link_error",
    "ib_not_used",
    "ifname_not_found",
    "network_loss",
    "p2p_broken",
    "rank_divergence",
    "send_recv_mismatch",
    "shape_mismatch",
    "slow_rank",
    "slow_transport",
    "store_unreachable",
    "version_mismatch",
    "wrong_interface",
)
"""Causes that take two ranks."""
OF_GPUS = (
    "cuda_error",
    "cumem_container",
    "driver_too_old",
    "duplicate_gpu",
    "gpu_clock_limit",
    "gpu_hardware_error",
    "gpu_oom",
    "gpu_shared",
    "ib_config",
    "ib_not_used",
    "nccl_bug",
    "net_plugin",
    "nvswitch_fabric",
    "p2p_broken",
    "slow_transport",
)
"""Causes that a job on CPUs cannot have."""
EXCLUDED: Mapping[str, Sequence[str]] = {
    "one_rank": OF_SEVERAL,
    "only_cpu": OF_GPUS,
    "network_ib": ("ib_not_used",),
}
"""Context → causes that it rules out, as far as the text is about one job."""


class Settled(msgspec.Struct, frozen=True):
    """A settled case: what it turned out to be, and what its text showed."""

    source: str
    """Whose it is, so that the table can be tried on owners that it has not counted."""
    cause: str
    accept: tuple[str, ...]
    """Other causes that its thread would have accepted."""
    suffices: bool
    """Whether its text alone tells the cause."""
    shows: frozenset[str]
    """Its symptoms and contexts."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """One cause that the symptom may have."""

    cause: str
    share: float
    """Of all suspects together, 0 to 1."""
    settled: int
    """Settled cases with this symptom that were this cause."""
    why: str
    """Why it shows this symptom, in one clause; empty where no page says it."""
    reasons: Sequence[str] = ()
    """Why it stands where it stands, the weightiest reason first."""

    @property
    def place_reason(self) -> str:
        """Why it stands where it stands, in clauses; empty where no voice lifts it."""
        return "; ".join(self.reasons)

    @property
    def look(self) -> Look:
        """The look that tells it from its rivals."""
        return cause_looks()[self.cause]


@dataclass(frozen=True, slots=True)
class Differential:
    """The suspects of a case, and what they were taken from."""

    seen: tuple[Seen, ...]
    """The symptoms, the one that tells most first."""
    contexts: tuple[str, ...]
    settled: int
    """How many settled cases had the first symptom."""
    suspects: tuple[Suspect, ...]
    """All causes, the most usual first."""
    answers: Mapping[str, Answer] = field(default_factory=dict)
    """What was answered so far, by the look's cause."""

    @property
    def counted(self) -> str:
        """``in 31 settled cases like this: host_oom 9, slow_rank 6 and 16 of others``."""
        # plain counts, so that a reader can weigh the order himself
        best = sorted(self.suspects, key=lambda suspect: -suspect.settled)[:4]
        settled_words = []
        for one in best:
            if one.settled:
                settled_words.append(f"{one.cause} {one.settled}")
        named = ", ".join(settled_words)
        others = self.settled - sum(one.settled for one in best)
        if others > 0:
            named += f" and {others} of others"
        if settled_words:
            return f"in {self.settled} settled cases like this: {named}"
        return ""

    def named(self, possible: Collection[str]) -> list[Suspect]:
        """The suspects that are worth a name, best first, with all that rules call possible."""
        first = self.suspects[:FEWEST]
        more = [one for one in self.suspects[FEWEST:SUSPECTS] if one.share >= LEAST_SHARE]
        best = [*first, *more]
        named_suspects = []
        for one in self.suspects:
            if one in best or one.cause in possible:
                named_suspects.append(one)
        return _with_rule_among(FEWEST, named_suspects, possible)

    @property
    def question(self) -> Look | None:
        """The look that tells most for its cost; None where none is needed.

        None is where a look has decided, or nothing is left.  A prior alone never decides: the
        first suspect must have been looked at.
        """
        # with an end by the prior alone 55 of 81 posted failures were named, without it 64
        if not self.suspects or self._is_decided:
            return None
        return next_look({one.cause: one.share for one in self.suspects}, self.answers)

    @property
    def _is_decided(self) -> bool:
        first = self.suspects[0]
        return first.share >= CLEAR_LEAD and self.answers.get(first.cause) == "yes"


def _with_rule_among(
    places: int, named: Sequence[Suspect], possible: Collection[str]
) -> list[Suspect]:
    """The suspects, with the best that a rule calls possible no lower than on the last of places.

    The rule has read the very lines; the others go by what such texts usually are.
    """
    ordered = list(named)
    by_rule = [one for one in named if one.cause in possible]
    if by_rule and by_rule[0] not in ordered[:places]:
        ordered.remove(by_rule[0])
        ordered.insert(places - 1, by_rule[0])
    return ordered


class Table:
    """How often settled cases of each cause showed each symptom and context."""

    def __init__(self, cases: Iterable[Settled]) -> None:
        self.causes: dict[str, float] = defaultdict(float)
        """Weight of the cases of each cause."""
        self.shown: dict[tuple[str, str], float] = defaultdict(float)
        """The same of those that show a feature, by cause and feature."""
        self.all_shown: dict[str, float] = defaultdict(float)
        self.total = 0.0
        self.named: dict[str, Counter[str]] = defaultdict(Counter)
        """Plain numbers of cases with a symptom, by the symptom and the cause."""
        for case in cases:
            self._add(case)

    def _add(self, case: Settled) -> None:
        weight = 1.0
        if case.suffices:
            weight = SUFFICING
        self.total += weight
        for feature in case.shows:
            self.all_shown[feature] += weight
            self.named[feature][case.cause] += 1
        shares = dict.fromkeys(case.accept, ACCEPTED * weight) | {case.cause: weight}
        for cause, share in shares.items():
            self.causes[cause] += share
            for feature in case.shows:
                self.shown[cause, feature] += share

    def log_prior(self, cause: str) -> float:
        """How often a settled case had this cause, as a logarithm."""
        # one more case of each, as some have none
        mine = self.causes.get(cause, 0.0) + 1
        everything = self.total + len(self.causes)
        return math.log(mine / everything)

    def log_odds(self, cause: str, shows: Collection[str]) -> float:
        """How much more often this cause has a text that shows just these features."""
        count = self.causes.get(cause, 0.0)
        odds = self.log_prior(cause)
        for feature, everywhere in self.all_shown.items():
            usual = (everywhere + 1) / (self.total + 2)
            # smoothed by some cases of the average kind, as most causes have few settled ones
            here = (self.shown.get((cause, feature), 0.0) + SMOOTHING * usual) / (count + SMOOTHING)
            if feature in shows:
                odds += math.log(here / usual)
            else:
                odds += math.log((1 - here) / (1 - usual))
        return odds


@cache
def settled_cases() -> tuple[Settled, ...]:
    """The settled cases that ship: no text of theirs, only what it showed."""
    return msgspec.json.decode(FILE.read_bytes(), type=tuple[Settled, ...])


@cache
def settled_table() -> Table:
    """The table of the settled cases that ship."""
    return Table(settled_cases())


@once
def features_of(case: Case) -> tuple[tuple[Seen, ...], tuple[str, ...]]:
    """The symptoms and the contexts that a case shows."""
    lines = abnormal(case)
    return symptoms_in(lines), contexts_of(case, lines)


def differential(
    case: Case,
    text: Text,
    possible: Sequence[str],
    cleared: Mapping[str, Sequence[Evidence]],
) -> Differential:
    """The causes in the order in which such symptoms usually have them.

    `possible` are causes that rules call possible, best first; `cleared` those that rules rule out,
    and by which evidence: they are left out unless in doubt.
    """
    seen, contexts = features_of(case)
    voices = voices_of(seen, contexts, text, possible, cleared)
    ranked = ranked_causes(voices)
    odds = dict(ranked.odds)
    answers = answers_of(case)
    if not answers:
        # what a rule has read and cleared, only a person's answer brings back
        for cause, voice in voices.items():
            if voice.ruled_out:
                odds.pop(cause)
    for name, answer in answers.items():
        look = all_questions()[name]
        for cause in odds:
            odds[cause] += answer_adds(look, answer, cause)
    # the rarest symptom tells most: a timeout is in every text
    table = settled_table()
    rarest = sorted(seen, key=lambda one: table.all_shown.get(one.symptom, 0.0))
    counts: Counter[str] = Counter()
    if rarest:
        counts = table.named[rarest[0].symptom]
    shares = shares_of(odds)
    suspects = []
    in_order = sorted(odds, key=lambda cause: (-odds[cause], cause))
    for cause in in_order:
        suspect = Suspect(
            cause,
            shares[cause],
            counts[cause],
            _reason_on_page(cause, rarest),
            ranked.reasons[cause],
        )
        suspects.append(suspect)
    return Differential(
        seen=tuple(rarest),
        contexts=contexts,
        settled=counts.total(),
        suspects=tuple(suspects),
        answers=answers,
    )


def voices_of(
    seen: Sequence[Seen],
    contexts: Collection[str],
    text: Text,
    possible: Sequence[str],
    cleared: Mapping[str, Sequence[Evidence]],
) -> dict[str, Voices]:
    """What each voice says of every cause that is not out of the question."""
    table = settled_table()
    shows = {*(one.symptom for one in seen), *contexts}
    ruled_out = cleared.keys() - doubted_causes(text, cleared)
    voices = {}
    for cause in cause_looks():
        # a rank without a peer has no broken one, whatever anybody says
        if cause in ruled_out and cause in SETTLED:
            continue
        place = 0
        if cause in possible:
            place = possible.index(cause)
        share = text.shares.get(cause, 0.0)
        named_on_page = _reason_on_page(cause, seen) != ""
        voices[cause] = Voices(
            resembled=log_resemblance(share),
            counted=table.log_odds(cause, shows),
            usual=table.log_prior(cause),
            on_page=float(named_on_page),
            stated=stated_ratio(cause, shows),
            excluded=_exclusions(cause, shows),
            possible=float(cause in possible),
            place=float(place),
            cleared=float(cause in cleared),
            # what a rule has read and cleared is not brought back by counts
            ruled_out=float(cause in ruled_out),
        )
    return voices


def doubted_causes(text: Text, cleared: Mapping[str, Sequence[Evidence]]) -> set[str]:
    """Cleared causes that a text resembles all the same.

    It does so by an error that no rule has read.
    """
    doubted = set()
    for cause, read in cleared.items():
        # a rule may have cleared a cause by lines that are not all there is
        if text.shares[cause] < DOUBT or cause in SETTLED:
            continue
        _, _, event = text.heaviest(cause, 1)[0]
        if event.kind == "log.error" and event not in read:
            doubted.add(cause)
    return doubted


def stated_ratio(cause: str, shows: Iterable[str]) -> float:
    """What the stated ratios add to a cause, as a logarithm."""
    ratio = 1.0
    for feature in shows:
        ratio *= STATED.get((feature, cause), 1.0)
        if feature == "no_error" and cause in LOUD:
            ratio *= LOUD_UNHEARD
    return math.log(ratio)


def _exclusions(cause: str, shows: Iterable[str]) -> float:
    """How many contexts rule a cause out."""
    count = 0.0
    for feature in shows:
        if cause in EXCLUDED.get(feature, ()):
            count += 1
    return count


def _reason_on_page(cause: str, seen: Iterable[Seen]) -> str:
    """Why this cause shows one of these symptoms, by the page of the first that names it."""
    pages = (symptoms()[one.symptom].SUSPECTS for one in seen)
    for page in pages:
        if cause in page:
            return page[cause]
    return ""


def shares_of(odds: Mapping[str, float]) -> dict[str, float]:
    """Logarithms of odds as shares that add up to 1."""
    best = max(odds.values())
    # tempered shares were worse: as they are, the first one's mean is close to how often it is
    # right
    powers = {cause: math.exp(value - best) for cause, value in odds.items()}
    total = sum(powers.values())
    return {cause: power / total for cause, power in powers.items()}


# ---------------------------------------------------------------- questions and answers


def answers_of(case: Case) -> dict[str, Answer]:
    """The look's cause → what was answered last.

    What can be no answer is left out.
    """
    known = all_questions()
    found: dict[str, Answer] = {}
    for event in case.of(ANSWER_KIND):
        # a case folder may come from somebody else: its answers are read as carefully as its logs
        look, answer = event.data.look, event.data.answer
        if isinstance(look, str) and look in known and answer in ("yes", "no", "unknown"):
            found[look] = answer
    return found


def answer_event(look: Look, answer: Answer, by: Literal["user", "check"], text: str = "") -> Event:
    """What a person answered, or a check found, as evidence that the case keeps.

    Its fields are ``look`` (the look's cause), ``answer`` and ``by``.
    """
    said = f"{look.question} {answer}" + f": {text}" * bool(text)
    data = {"look": look.cause, "answer": answer, "by": by}
    return Event(
        ANSWER_KIND, said, "told by the user" if by == "user" else "checked here", data=data
    )


def answer_adds(look: Look, answer: Answer, cause: str) -> float:
    """What an answer adds to the odds of a cause."""
    chance = look.chance(cause)
    if answer == "yes":
        return ANSWERED * math.log(chance)
    if answer == "no":
        return ANSWERED * math.log(1 - chance)
    return 0.0


def next_look(shares: Mapping[str, float], answered: Collection[str]) -> Look | None:
    """The look that is expected to tell most for what it costs.

    It tells most where it makes the first suspect surest, and of such looks narrows the others.
    None where none tells anything.
    """
    open_looks = []
    for look in all_questions().values():
        if look.cause not in answered:
            open_looks.append(look)
    worth = {look.cause: _worth(look, shares) / _weighed_minutes(look) for look in open_looks}
    best = max(worth, key=lambda cause: (worth[cause], cause), default=None)
    # a question that all suspects answer alike tells nothing
    if best and worth[best] > 0:
        return all_questions()[best]
    return None


def _worth(look: Look, shares: Mapping[str, float]) -> float:
    """How much surer the first suspect is expected to be, and a little of all that is learned."""
    # bits alone asked about what decides nothing: 60 and 63 of 81 posted failures were first
    # after three questions, so 62 and 64 are
    return _expected_gain(look, shares) + OF_BITS * _expected_bits(look, shares)


def _expected_gain(look: Look, shares: Mapping[str, float]) -> float:
    """By how much the share of the first suspect is expected to grow."""
    if_yes = 0.0
    if_no = 0.0
    for cause, share in shares.items():
        chance = look.chance(cause)
        if_yes = max(if_yes, share * chance)
        if_no = max(if_no, share * (1 - chance))
    now = max(shares.values())
    return if_yes + if_no - now


def _weighed_minutes(look: Look) -> float:
    """Minutes as a person weighs them.

    A run of ten minutes is not twenty times a glance.
    """
    return 1.0 + math.log1p(look.minutes) / 2


def _expected_bits(look: Look, shares: Mapping[str, float]) -> float:
    """By how many bits the answer is expected to narrow the suspects."""
    with_yes = []
    with_no = []
    for cause, share in shares.items():
        chance = look.chance(cause)
        with_yes.append(share * chance)
        with_no.append(share * (1 - chance))
    yes = sum(with_yes)
    no = 1 - yes
    after_yes = _entropy(part / yes for part in with_yes)
    after_no = _entropy(part / no for part in with_no)
    before = _entropy(shares.values())
    return before - yes * after_yes - no * after_no


def _entropy(shares: Iterable[float]) -> float:
    weighted = []
    for share in shares:
        if share > 0:
            weighted.append(share * math.log2(share))
    return -sum(weighted)
