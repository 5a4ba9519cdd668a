"""Settings compared with the default.

They are compared in pairs, by collective and message size, with an interval that holds for all.  A
setting counts as better only where the interval of its gain, corrected for the number of
comparisons, excludes no difference, and where the gain is over 2 %.  Most settings are not better,
and then that is the answer.
"""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from ncclkit.agent.digits import whole_number
from ncclkit.core.bandwidth import ABOVE, Expectation, algbw, busbw
from ncclkit.core.model import NcclkitError
from ncclkit.core.text import format_bytes, percent, plural

WORTH = 0.02
"""Least gain, as a share of the default's time, that is worth a setting."""
WORTH_US = 0.5
"""Least gain in us: equal groups of one job differed by 0.3 of 13 us at 8 bytes on two H200."""
SPREAD_FACTOR = 2.0
"""Times the spread of the groups with the default, in logarithms, that a difference must exceed:
three show less than there is."""
ERROR = 0.05
"""Chance that any difference of a whole sweep is claimed that is not there."""
TRIMMED = 0.2
"""Share of the rounds at either end that a mean leaves out: a busy machine makes outliers."""
LEAST_ROUNDS = 6
"""With fewer rounds a setting could win every time by chance (1 in 32 for both directions)."""
PER_COMMUNICATOR = frozenset({"NCCL_ALGO", "NCCL_PROTO", "GLOO_SOCKET_IFNAME"})
"""Variables that are read for each communicator; the others a process keeps for its life."""
DEFAULTS = {
    "NCCL_BUFFSIZE": "4194304",
    "NCCL_GRAPH_REGISTER": "1",
    "NCCL_IB_QPS_PER_CONNECTION": "1",
    "NCCL_IB_SPLIT_DATA_ON_QPS": "0",
    "NCCL_IB_TC": "0",
    "NCCL_IB_DISABLE": "0",
    "NCCL_P2P_DISABLE": "0",
    "NCCL_SHM_DISABLE": "0",
}
"""Variable → what NCCL takes without it, where its documentation names one for every machine."""
NETWORK_ONLY = re.compile(r"NCCL_(?:IB_|SOCKET_|NSOCKS_|NET_|CROSS_NIC)\w*")
"""Variables that change nothing where no message goes through the network."""
BESIDE = {"product": "beside a matrix product", "step": "in a DDP step"}
"""Under which computation a setting is measured once more, and how a sentence says it."""
TAKES_LIST = re.compile(r"\w*(?:_IFNAME|_IB_HCA)=")
TUNER = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
"""Collective → its name in the file of NCCL's tuner plugin."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Variables, and fields of ncclConfig_t, that are compared with the default."""

    env: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, int] = field(default_factory=dict)
    risk: str = ""
    """What it may cost a job beside the collective."""
    without: tuple[str, ...] = ()
    """Variables of the environment that are taken away."""

    def __str__(self) -> str:
        channels = []
        if "max_ctas" in self.config:
            channels = [f"{self.config['max_ctas']} channels"]
        others = [
            f"{name}={value}"
            for name, value in self.config.items()
            if name not in ("min_ctas", "max_ctas")
        ]
        gone = []
        if self.without:
            gone = [f"without {', '.join(self.without)}"]
        named = [f"{name}={value}" for name, value in self.env.items()]
        return " ".join([*named, *channels, *others, *gone]) or "the default"

    @property
    def channels(self) -> int:
        """How many channels it asks for; 0 where it leaves them to NCCL."""
        return self.config.get("max_ctas", 0)

    @property
    def variables(self) -> dict[str, str]:
        """All of it as variables of an environment; NCCL has one for the least and most CTAs."""
        bounds = {}
        for name in ("min_ctas", "max_ctas"):
            if name in self.config:
                bounds[f"NCCL_{name.upper()}"] = str(self.config[name])
        return {**self.env, **bounds}

    @property
    def per_communicator(self) -> bool:
        """Whether process groups of one job can have it and lack it."""
        return PER_COMMUNICATOR.issuperset([*self.env, *self.without])


@dataclass(frozen=True, slots=True)
class Comparison:
    """A setting against the default, on one collective and size, in rounds compared in pairs."""

    setting: Setting
    op: str
    bytes: int
    default_us: tuple[float, ...]
    """Microseconds of a call with the default, one for each round."""
    with_us: tuple[float, ...]
    """The same with the setting, in the same rounds."""
    comparisons: int = 1
    """How many comparisons the interval must hold for together."""
    wrong: int = 0
    """Elements that came out wrong with the setting."""
    spread: float = 0.0
    """Share by which groups that all have the default differ: less is not a difference."""
    beside: str = ""
    """Under which computation, one of `BESIDE`; empty: alone."""

    @property
    def gain(self) -> float:
        """Share of the default's time that the setting saves; negative where it takes longer."""
        return 1 - math.exp(_trimmed_mean(sorted(self._ratios)))

    @property
    def interval(self) -> tuple[float, float]:
        """(least, largest) gain; (-inf, 1) with too few rounds.

        It is by Student's t of the trimmed mean of paired rounds.
        """
        # too few rounds have no interval that excludes anything
        # in logarithms, as twice as fast and half as fast weigh the same there
        if len(self.default_us) < LEAST_ROUNDS:
            return -math.inf, 1.0
        # Bonferroni: each of n comparisons may err in ERROR / n, so all together err in ERROR at
        # most
        low, high = _interval_of_mean(self._ratios, ERROR / self.comparisons)
        return 1 - math.exp(high), 1 - math.exp(low)

    @property
    def better(self) -> bool:
        """Whether it is faster beyond chance, by enough to be worth it, and right."""
        return (
            self._matters
            and self.gain > 0
            and self.interval[0] > 1 - 1 / self._least_ratio
            and not self.wrong
        )

    @property
    def visible(self) -> float:
        """The least gain that these rounds would have shown; 1 with too few of them."""
        low, high = self.interval
        if math.isinf(low):
            return 1.0
        # of logarithms of times, as gains end at 100 %
        half = (math.log(1 - low) - math.log(1 - high)) / 2
        return max(WORTH, 1 - math.exp(-half) / self._least_ratio)

    @property
    def seems_slower(self) -> bool:
        """Whether it took longer by more than the default differs from itself, if by chance."""
        return self.gain < -max(WORTH, self._least_ratio - 1)

    @property
    def worse(self) -> bool:
        """Whether it is slower beyond chance, and by enough to matter."""
        return self._matters and self.gain < 0 and self.interval[1] < 1 - self._least_ratio

    @property
    def _least_ratio(self) -> float:
        """The least ratio of two times that counts as a difference.

        It is one of times, as gains end at 100 %.
        """
        # twice the spread in logarithms, as three groups show less than there is
        return math.exp(SPREAD_FACTOR * math.log1p(self.spread))

    @property
    def _matters(self) -> bool:
        """Whether the difference is one that a job could notice, real or not."""
        # a share alone would count nanoseconds of small messages, and a time alone noise of large
        # ones
        return (
            abs(self.gain) > WORTH
            and abs(self.gain) * statistics.median(self.default_us) > WORTH_US
        )

    @property
    def _ratios(self) -> tuple[float, ...]:
        return tuple(
            math.log(new / old) for new, old in zip(self.with_us, self.default_us, strict=True)
        )


def spread(controls: Sequence[Sequence[float]]) -> float:
    """The largest share by which a group with the default is slower than another one."""
    # groups with equal settings differ, too, and by the same in every round (two H200: 0.4 of 13
    # us)
    means = [_trimmed_mean(sorted(map(math.log, laps))) for laps in controls]
    if means:
        return math.expm1(max(means) - min(means))
    return 0.0


def _trimmed_mean(ordered: Sequence[float]) -> float:
    """The mean without the smallest and the largest ones."""
    cut = int(len(ordered) * TRIMMED)
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def _interval_of_mean(values: Sequence[float], error: float) -> tuple[float, float]:
    """Interval of the trimmed mean, missed with a chance of `error` (Tukey and McLaughlin 1963)."""
    from scipy.special import stdtrit  # 0.2 s, which only a verdict on settings needs

    # one round in ten is disturbed on a shared machine: the mean is trimmed
    ordered = sorted(values)
    cut = int(len(values) * TRIMMED)
    kept = ordered[cut : len(ordered) - cut]
    # as Tukey and McLaughlin say: what is cut for the mean counts with the last kept value here
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    deviation = statistics.stdev(winsorized)
    # the share of rounds that the trimmed mean rests on
    share = 1 - 2 * TRIMMED
    standard_error = deviation / share / math.sqrt(len(values))
    # a round that is trimmed gives no degree of freedom
    freedom = len(kept) - 1
    width = float(stdtrit(freedom, 1 - error / 2)) * standard_error
    middle = statistics.fmean(kept)
    return middle - width, middle + width


@dataclass(frozen=True, slots=True)
class Advantage:
    """A range of sizes of one collective in which a setting beats the default."""

    op: str
    least: int
    largest: int
    setting: Setting
    comparisons: tuple[Comparison, ...]
    beside: tuple[Comparison, ...] = ()
    """The same setting and sizes under computation."""

    @property
    def lost(self) -> bool:
        """Whether it is slower under computation than the default is.

        Then it wins alone and loses in a job.
        """
        return any(one.worse for one in self.beside)

    @property
    def lasts(self) -> bool:
        """Whether nothing speaks against it under computation, as far as that was measured."""
        gains = any(one.better for one in self.beside)
        return not self.lost and (gains or not self.beside)

    @property
    def under_computation(self) -> str:
        """What is left of the gain under computation, in one sentence.

        It is empty where that was not measured.
        """
        said = []
        for name, words in BESIDE.items():
            rows = [one for one in self.beside if one.beside == name]
            # losing comes first: one size that loses in a job weighs more than others that gain
            if any(one.worse for one in rows):
                said.append(f"loses {percent(-min(one.gain for one in rows), 1)} {words}")
            elif any(one.better for one in rows):
                said.append(f"gains {percent(max(one.gain for one in rows), 1)} {words}")
            elif rows:
                said.append(f"makes no difference {words} that can be told from chance")
        if said:
            return f"Under computation it {' and '.join(said)}."
        return ""

    @property
    def sizes(self) -> str:
        """``64 KiB to 1 MiB``."""
        first = format_bytes(self.least)
        last = format_bytes(self.largest)
        if self.least == self.largest:
            return first
        return f"{first} to {last}"

    @property
    def gain(self) -> float:
        """The least gain of its sizes."""
        return min(one.gain for one in self.comparisons)

    def __str__(self) -> str:
        gains = sorted(one.gain for one in self.comparisons)
        low = min(one.interval[0] for one in self.comparisons)
        least = percent(max(low, 0), 1)
        return (
            f"{self.setting} gains {_shares_in_words(gains)} on {self.op} of {self.sizes} (at least"
            f" {least})."
        )


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep measured, and what follows."""

    backend: str
    ranks: int
    hosts: int
    comparisons: tuple[Comparison, ...]
    """Those that the last rounds decided."""
    seen: tuple[Comparison, ...] = ()
    """Every setting on every size, in the rounds that chose."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Setting → why NCCL did not take it."""
    seconds: float = 0.0
    cleared: tuple[str, ...] = ()
    """Variables of this environment that the default was measured without."""
    beside: tuple[Comparison, ...] = ()
    """What looked best, measured once more under computation."""
    calls: tuple[tuple[str, int, int], ...] = ()
    """(collective, bytes, calls) of what the user's job sends; empty where nobody said."""
    notes: tuple[str, ...] = ()
    """Sentences on what was left out, and why."""
    controls: tuple[Comparison, ...] = ()
    """Settings that are the default under another name: a difference of theirs is noise."""
    same: Mapping[str, str] = field(default_factory=dict)
    """Those settings, and why they can differ in nothing."""
    plain: tuple[Comparison, ...] = ()
    """The default against itself in the rounds that decide: what they would have shown."""
    folder: str = ""
    """Where the case keeps it, with the files that carry its answer; empty where it does not."""
    partial: bool = False
    """Whether its budget ended before all of it was measured."""
    unfinished: str = ""
    """Why it is incomplete, and what was not measured; empty where it came to its end."""

    @property
    def tried(self) -> int:
        """Settings that were measured."""
        return len({str(one.setting) for one in self.seen})

    @property
    def advantages(self) -> list[Advantage]:
        """Where a setting is better than the default.

        It is the best one of each size, with sizes beside each other together.
        """
        best: dict[tuple[str, int], Comparison] = {}
        for one in self.comparisons:
            known = best.get((one.op, one.bytes))
            # only what is better enters, so a size where nothing is parts two ranges
            if one.better and (known is None or one.gain > known.gain):
                best[one.op, one.bytes] = one
        return self._ranges(best)

    def _ranges(self, better: Mapping[tuple[str, int], Comparison]) -> list[Advantage]:
        """Sizes beside each other, on which the same setting is better, as one range."""
        every = sorted({(one.op, one.bytes) for one in self.comparisons})
        rows = [(place, better.get(place)) for place in every]
        runs = groupby(rows, lambda row: (row[0][0], str(row[1].setting) if row[1] else ""))
        advantages = []
        for (_, name), group in runs:
            if name:
                advantages.append(self._advantage([one for _, one in group if one]))
        return advantages

    def _advantage(self, rows: Sequence[Comparison]) -> Advantage:
        """What rows of one setting say whose sizes lie beside each other."""
        first = rows[0]
        last = rows[-1]
        name = str(first.setting)
        beside = []
        for one in self.beside:
            is_same = one.op == first.op and str(one.setting) == name
            if is_same and first.bytes <= one.bytes <= last.bytes:
                beside.append(one)
        return Advantage(
            first.op,
            first.bytes,
            last.bytes,
            first.setting,
            tuple(rows),
            tuple(beside),
        )

    def saved(self, setting: Setting) -> float | None:
        """Share of the time of the job's calls that a setting saves.

        It is by what was measured, and None without the job's calls.  A size of the job counts as
        the measured one that is nearest to it.
        """
        # the rounds that decided come second, so they replace those that chose: these favour
        # winners
        rows = {(one.op, one.bytes): one for one in self.seen if one.setting == setting}
        rows |= {(one.op, one.bytes): one for one in self.comparisons if one.setting == setting}
        before = after = 0.0
        # a job's sizes are rarely those that were measured
        for op, size, count in self.calls:
            near = min(
                (key for key in rows if key[0] == op),
                key=lambda key: _size_distance(key[1], size),
                default=None,
            )
            if near is not None:
                time = count * statistics.median(rows[near].default_us)
                before = before + time
                after = after + time * (1 - rows[near].gain)
        if before:
            return 1 - after / before
        return None

    def costs(self, setting: Setting) -> list[Comparison]:
        """Where a setting is slower than the default."""
        return [one for one in self.comparisons if one.worse and one.setting == setting]

    @property
    def harmful(self) -> tuple[str, ...]:
        """The inherited variables that cost something on some size, and gain nothing on any."""
        rows = [one for one in self.comparisons if self.cleared]
        gains: set[str] = set()
        costs: set[str] = set()
        for one in rows:
            if one.better:
                gains.update(one.setting.env)
            if one.worse or one.wrong:
                costs.update(one.setting.env)
        # what gains anywhere is the user's to weigh, and is left standing with both numbers
        return tuple(name for name in self.cleared if name in costs - gains)

    def time_saved(self, setting: Setting) -> float:
        """Share of the time of the job's calls that is saved beyond chance.

        Without the calls of a job one call of each size that was measured counts.
        """
        before = saved = 0.0
        for one in self.comparisons:
            if one.setting != setting:
                continue
            time = statistics.median(one.default_us) * self._calls_like(one)
            before += time
            if one.better or one.worse:
                saved += time * one.gain
        if before:
            return saved / before
        return 0.0

    def _calls_like(self, one: Comparison) -> float:
        """How many calls of the job count as this size; 1 where they are not known."""
        if not self.calls:
            return 1.0
        sizes = {each.bytes for each in self.comparisons if each.op == one.op}
        counted = 0
        for op, size, count in self.calls:
            if op == one.op and one.bytes == min(sizes, key=lambda at: _size_distance(at, size)):
                counted += count
        return float(counted)

    @property
    def best(self) -> Advantage | None:
        """The advantage that is worth most.

        One that can be set for all sizes and holds under computation comes first, then what saves
        most time.
        """
        # what is best on no size may be the only one that can be set for all of them
        by_setting: dict[str, dict[tuple[str, int], Comparison]] = {}
        for one in self.comparisons:
            if one.better:
                by_setting.setdefault(str(one.setting), {})[one.op, one.bytes] = one
        found: list[Advantage] = []
        for better in by_setting.values():
            found += self._ranges(better)
        # what loses under computation comes last, however much it gains alone
        return max(
            found,
            key=self._worth,
            default=None,
        )

    def _worth(self, one: Advantage) -> tuple[bool, bool, bool, float, float]:
        settable = is_harmless(self, one.setting)
        return (not one.lost, settable, one.lasts, self.time_saved(one.setting), one.gain)

    @property
    def headline(self) -> str:
        """The answer in a few words."""
        if self.ranks == 1:
            return "One rank alone sends nothing, so no setting can gain or cost anything here."
        tried = f"{plural(self.tried, 'setting')} in {self.seconds:.0f} s"
        what = "Nothing here beats"
        if self.unfinished or self.partial:
            what = "Nothing that was measured beats"
        nothing = (
            f"{what} the default: {tried}, none is over {percent(WORTH)} faster beyond chance."
        )
        if not self.tried:
            nothing = "Nothing was measured, so nothing is known to be better than the default."
        costly = self._costly
        # a gain first, then what costs; that nothing could be compared before that nothing is
        # better
        return str(
            self.best or (self.effect_of(costly[0]) if costly else self._not_compared or nothing)
        )

    @property
    def _not_compared(self) -> str:
        """Why nothing could be compared.

        It is noise, or that nothing differs from the default; empty where something could be
        compared.
        """
        noise = noise_of(self.controls)
        if noise:
            return noise
        names = " and ".join(f"{name} is {why}" for name, why in self.same.items())
        if names and not self.tried:
            return f"There is nothing to compare: {names}."
        return ""

    @property
    def _costly(self) -> list[Setting]:
        """What the environment sets and only costs, the worst first."""
        harmful = self.harmful
        worst: dict[str, Comparison] = {}
        for one in self.comparisons:
            if one.setting.env.keys().isdisjoint(harmful):
                continue
            name = str(one.setting)
            known = worst.get(name)
            if known is None or one.gain < known.gain:
                worst[name] = one
        ordered = sorted(worst.values(), key=lambda one: one.gain)
        return [one.setting for one in ordered]

    @property
    def summary(self) -> str:
        """The answer, and what it saves of the job.

        It says also what is left of that under computation.
        """
        best, costly = self.best, self._costly
        tried = f"Measured: {plural(self.tried, 'setting')} in {self.seconds:.0f} s."
        if not best and costly:
            return (
                f"{self.headline} {plural(len(costly), 'variable')} of this environment should go."
                f" {tried}"
            )
        if not best:
            return self.headline
        others = len(self.advantages) - 1
        more = ""
        if others:
            more = f"{plural(others, 'more range')} of sizes can gain."
        of_job = self._of_job(best.setting)
        carried = uncarried(self)
        return " ".join(
            filter(None, (str(best), best.under_computation, of_job, carried, more, tried))
        )

    def _of_job(self, setting: Setting) -> str:
        saved = self.saved(setting)
        if saved is None:
            return ""
        kind = "costs"
        if saved > 0:
            kind = "saves"
        calls = sum(count for _, _, count in self.calls)
        return f" Of the time of your job's {calls:,} calls it {kind} {percent(abs(saved), 1)}."

    def text(self) -> str:
        """The answer, then each setting that makes a difference, by collective and size."""
        named = sorted({str(one.setting): one.setting for one in self.comparisons}.items())
        effects = [
            self.effect_of(one)
            for _, one in named
            if self.costs(one) and self.effect_of(one) != self.headline
        ]
        refused = [f"{name} was refused: {why}" for name, why in self.refused.items()]
        found = [f"{one} {one.under_computation}".strip() for one in self.advantages]
        risks = [
            f" Risk: {one.setting.risk}." if one.setting.risk else "" for one in self.advantages
        ]
        found = [f"{words}{risk}" for words, risk in zip(found, risks, strict=True)]
        return "\n".join([self.summary, *found, *effects, *refused, *self.notes])

    def effect_of(self, setting: Setting) -> str:
        """What a setting that the user has costs and gains, in one sentence."""
        worse = self.costs(setting)
        better = [one for one in self.comparisons if one.better and one.setting == setting]
        if not worse and not better:
            return f"{setting} makes no difference that can be told from chance."
        said = [
            f"costs {_longer_in_words(rows)} on {op} of {_span_of_sizes(rows)}"
            for op, rows in _by_op(worse)
        ]
        for op, rows in _by_op(better):
            most = max(one.gain for one in rows)
            said.append(f"gains {percent(most)} on {op} of {_span_of_sizes(rows)}")
        if better:
            rest = ""
        else:
            rest = " and gains nothing above that" * (len(worse) < len(self.comparisons))
        return f"{setting} {', '.join(said)}{rest}."


def noise_of(controls: Sequence[Comparison]) -> str:
    """``Too noisy to compare on …``, where the default differs from itself; else empty."""
    noisy = [one for one in controls if one.better or one.worse]
    if not noisy:
        return ""
    worst = max(noisy, key=lambda one: abs(one.gain))
    places = ", ".join(f"{op} of {_span_of_sizes(rows)}" for op, rows in _by_op(noisy))
    return (
        f"Too noisy to compare on {places}: {worst.setting} is what the default is here, and seemed"
        f" to differ from it by {percent(abs(worst.gain))}."
    )


def without_noise(
    rows: Iterable[Comparison], controls: Sequence[Comparison]
) -> tuple[Comparison, ...]:
    """The comparisons on which the default does not differ from itself."""
    # of equal settings one that seems to gain tells that gains there are chance
    noisy = {(one.op, one.bytes) for one in controls if one.better or one.worse}
    return tuple(one for one in rows if (one.op, one.bytes) not in noisy)


def within_links(
    rows: Sequence[Comparison], bounds: Mapping[str, Expectation], ranks: int
) -> tuple[tuple[Comparison, ...], str]:
    """The comparisons without gains that the links cannot carry.

    With them comes what is said of those gains, which is empty where there are none.
    """
    beyond = [one for one in rows if one.better and _exceeds_bound(one, bounds, ranks)]
    if not beyond:
        return tuple(rows), ""
    named = ", ".join(
        dict.fromkeys(f"{one.setting} on {one.op} of {format_bytes(one.bytes)}" for one in beyond)
    )
    bound = bounds[beyond[0].op]
    said = (
        f"No gain: {named} seemed faster than the {bound.value:.1f} GB/s that {bound.allows}"
        " carries."
    )
    return tuple(one for one in rows if one not in beyond), said


def _exceeds_bound(one: Comparison, bounds: Mapping[str, Expectation], ranks: int) -> bool:
    bound = bounds.get(one.op)
    speed = busbw(one.op, ranks, algbw(one.bytes, statistics.median(one.with_us)))
    return bool(bound and bound.value and speed and speed > ABOVE * bound.value)


def equal_to_default(one: Setting, plain: Mapping[str, str], hosts: int) -> str:
    """Why a setting can differ from the default in nothing; empty where it may.

    `plain` are the variables as they are without it, with the defaults that are known; `hosts`
    those of the job.
    """
    if one.config or one.without or not one.env:
        return ""
    names = list(one.env)
    if all(plain.get(name) == one.env[name] for name in names):
        return "what the default is here"
    # without P2P and shared memory ranks of one host do talk through the network
    forced = any(plain.get(name) == "1" for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"))
    if hosts == 1 and not forced and all(NETWORK_ONLY.fullmatch(name) for name in names):
        return "about the network, through which no message of one host goes"
    return ""


def uncarried(sweep: Sweep) -> str:
    """Why no file can carry the best gain of a sweep into a job.

    It is empty where one can, and where there is no gain.
    """
    best = sweep.best
    if best is None or config_files(sweep):
        return ""
    if best.lost:
        return "Nothing is to be set: it loses where there is computation beside it, as in a job."
    return (
        "No file can carry that into a job: a variable holds for all sizes, and others that were"
        " measured take longer with it."
    )


def setting(words: str) -> Setting:
    """The setting that ``NCCL_ALGO=Ring,NCCL_PROTO=LL`` or ``channels=32`` names.

    Raises NcclkitError for anything else.  ``NCCL_PROTO=`` takes a variable away that the
    environment sets.  What follows the comma of a variable that takes a list
    (``NCCL_SOCKET_IFNAME=eth0,eth1``) belongs to it.
    """
    env: dict[str, str] = {}
    config: dict[str, int] = {}
    gone: list[str] = []
    parts: list[str] = []
    for word in words.split(","):
        # a comma parts settings, and also the items of a variable's list
        if "=" not in word and parts and TAKES_LIST.match(parts[-1]):
            parts[-1] += f",{word}"
        else:
            parts.append(word)
    for word in parts:
        name, equals, value = word.partition("=")
        if name == "channels" and whole_number(value):
            config = {"min_ctas": int(value), "max_ctas": int(value)}
        elif equals and name != "channels" and re.fullmatch(r"[A-Za-z_]\w*", name):
            env |= {name: value} if value else {}
            gone += [] if value else [name]
        else:
            raise NcclkitError(
                f"The setting {word!r} is not NAME=VALUE; write NCCL_PROTO=Simple, or channels=32."
            )
    return Setting(env, config, without=tuple(gone))


def _size_distance(one: int, other: int) -> float:
    """How far two sizes lie from each other, in powers of e."""
    return abs(math.log(max(one, 1) / max(other, 1)))


def _by_op(rows: Iterable[Comparison]) -> list[tuple[str, list[Comparison]]]:
    ordered = sorted(rows, key=lambda one: (one.op, one.bytes))
    return [(op, list(group)) for op, group in groupby(ordered, lambda one: one.op)]


def _longer_in_words(rows: Sequence[Comparison]) -> str:
    """``38 to 62 % more time``."""
    return f"{_shares_in_words(sorted(-one.gain for one in rows))} more time"


def _shares_in_words(ordered: Sequence[float]) -> str:
    """``38 to 62 %``."""
    least = percent(ordered[0])
    most = percent(ordered[-1])
    if least == most:
        return most
    return f"{least.removesuffix(' %')} to {most}"


def _span_of_sizes(rows: Sequence[Comparison]) -> str:
    first = format_bytes(rows[0].bytes)
    last = format_bytes(rows[-1].bytes)
    if first == last:
        return first
    return f"{first} to {last}"


class ConfigFile(NamedTuple):
    """A file that carries the answer of a sweep into a job."""

    text: str
    verify: str
    """The command that measures again what it gains, with the file in force."""


def config_files(sweep: Sweep) -> dict[str, ConfigFile]:
    """Name → file that carries the answer of a sweep into a job.

    There is none where nothing is to be changed.  An inherited variable that only costs is taken
    away.  A variable holds for all sizes, so only settings that no measured size suffers from are
    written as variables; the file of NCCL's tuner plugin and the options of a process group carry
    the others.
    """
    # what loses beside computation loses in a job, so no file carries it
    rows = []
    for row in sweep.advantages:
        if not row.lost:
            rows.append(row)
    env = _variables_to_set(sweep)
    gone = ""
    if sweep.harmful:
        gone = f"unset {' '.join(sweep.harmful)}\n"
    again = _options_measured(sweep, rows)
    inherited = f"ncclkit tune --inherited {again}"
    alone = _measured_alone(sweep, bool(env))
    options = " ".join(_group_arguments(rows))
    plugin = "NCCL_TUNER_PLUGIN=libnccl-tuner-example.so,NCCL_TUNER_CONFIG_FILE=$PWD/tuner.csv"
    submitted = f"{{ echo '#!/bin/bash'; cat sbatch.txt; echo '{inherited}'; }} | sbatch"
    sourced = f". ./nccl.env && {inherited}"
    if alone:
        sourced = submitted = f"ncclkit tune {alone} {again}"
    made = {
        "nccl.env": ConfigFile(
            gone + _exports(env),
            sourced,
        ),
        "nccl.conf": ConfigFile(
            # NCCL_CONF_FILE is read by NCCL alone; other variables in it do nothing
            _lines_of_nccl_conf(env),
            f"NCCL_CONF_FILE=$PWD/nccl.conf {inherited}",
        ),
        "sbatch.txt": ConfigFile(
            _sbatch_export(env) + gone,
            submitted,
        ),
        "process_group.py": ConfigFile(
            _groups_code(rows),
            f"ncclkit tune {options} {again}",
        ),
        "tuner.csv": ConfigFile(
            _tuner_lines(sweep, rows),
            f"ncclkit tune {plugin} {again}",
        ),
    }
    return {name: file for name, file in made.items() if file.text}


def _measured_alone(sweep: Sweep, is_set: bool) -> str:
    """What names the change in a command that measures it alone.

    It is for a file that, in force, could not be measured: where what costs is gone already nothing
    shows what it costs; and as variables both bounds of the channels would be taken for settings of
    their own.
    """
    if sweep.harmful:
        return _as_argument(Setting(without=sweep.harmful))
    best = sweep.best
    if is_set and best is not None and best.setting.config:
        return _as_argument(best.setting)
    return ""


def _group_arguments(rows: Iterable[Advantage]) -> list[str]:
    """The settings of process groups as arguments, each once."""
    arguments: list[str] = []
    for row in rows:
        argument = _as_argument(row.setting)
        if row.setting.config and argument not in arguments:
            arguments.append(argument)
    return arguments


def _exports(env: Mapping[str, str]) -> str:
    lines = ""
    for name, value in env.items():
        lines += f"export {name}={shlex.quote(value)}\n"
    return lines


def _lines_of_nccl_conf(env: Mapping[str, str]) -> str:
    lines = ""
    for name, value in env.items():
        # nothing else reads that file
        if name.startswith("NCCL_"):
            lines += f"{name}={value}\n"
    return lines


def _sbatch_export(env: Mapping[str, str]) -> str:
    if not env:
        return ""
    exported = ["ALL"]
    for name, value in env.items():
        exported.append(f"{name}={_for_sbatch(value)}")
    # one line: of several the last counts
    return f"#SBATCH --export={','.join(exported)}\n"


def _groups_code(rows: Iterable[Advantage]) -> str:
    code = ""
    for row in rows:
        if row.setting.config:
            code += _options_code(row)
    return code


def _tuner_lines(sweep: Sweep, rows: Iterable[Advantage]) -> str:
    lines = ""
    for row in rows:
        line = _tuner_line(sweep, row)
        if line:
            lines += f"{line}\n"
    return lines


def _for_sbatch(value: str) -> str:
    """A value as an option of sbatch, which takes a comma for the end of a variable."""
    quoted = shlex.quote(value)
    # sbatch ends a variable at a comma unless quotes stand around its value
    if "," in value and quoted == value:
        return f"'{value}'"
    return quoted


def _options_measured(sweep: Sweep, rows: Iterable[Advantage]) -> str:
    """``--op all_reduce --sizes 8,1048576``.

    They are where something was gained, or taken away as it costs.
    """
    comparisons: list[Comparison] = []
    for one in sweep.comparisons:
        if one.worse and not one.setting.env.keys().isdisjoint(sweep.harmful):
            comparisons.append(one)
    for row in rows:
        comparisons += row.comparisons
    best = sweep.best
    if best is not None:
        # on no size the best one, perhaps
        comparisons += best.comparisons
    ops = dict.fromkeys(one.op for one in comparisons)
    sizes = sorted({one.bytes for one in comparisons})
    return f"--op {','.join(ops)} --sizes {','.join(map(str, sizes))}"


def applied(sweep: Sweep) -> Setting | None:
    """All that the answer of a sweep changes for every size, as one setting.

    It is None where that is nothing.
    """
    best = sweep.best
    if best is None or not _variables_to_set(sweep):
        if sweep.harmful:
            return Setting(without=sweep.harmful)
        return None
    env = {name: value for name, value in best.setting.env.items() if name not in sweep.cleared}
    if env or best.setting.config or sweep.harmful:
        return Setting(env, best.setting.config, without=sweep.harmful)
    return None


def _variables_to_set(sweep: Sweep) -> dict[str, str]:
    """The variables of the one recommended setting, where no size suffers.

    Settings that gain each alone were never measured together.
    """
    best = sweep.best
    if best is None or best.lost or not is_harmless(sweep, best.setting):
        return {}
    return best.setting.variables


def _as_argument(setting: Setting) -> str:
    """A setting as an argument in a shell, from which `setting` reads it."""
    parts = []
    for name, value in setting.env.items():
        parts.append(f"{name}={value}")
    if "max_ctas" in setting.config:
        parts.append(f"channels={setting.config['max_ctas']}")
    for name in setting.without:
        parts.append(f"{name}=")
    return shlex.quote(",".join(parts))


def is_harmless(sweep: Sweep, setting: Setting) -> bool:
    """Whether no size that was measured takes longer with it, nor seems to."""
    for one in (*sweep.seen, *sweep.comparisons):
        if one.setting == setting and (one.seems_slower or one.worse):
            return False
    for one in sweep.beside:
        if one.setting == setting and one.worse:
            return False
    return True


def _options_code(row: Advantage) -> str:
    lines = [f"# {row}", "options = torch.distributed.ProcessGroupNCCL.Options()"]
    lines += [f"options.config.{name} = {value}" for name, value in row.setting.config.items()]
    lines.append(
        "group = torch.distributed.new_group(pg_options=options)  # for the messages of these sizes"
    )
    return "\n".join(lines) + "\n"


def _tuner_line(sweep: Sweep, row: Advantage) -> str:
    """``allreduce,0,1048576,ring,ll,-1,1,8`` of NCCL's example tuner plugin.

    It is empty for what the plugin does not know.
    """
    own = dict(row.setting.env)
    algorithm = own.pop("NCCL_ALGO", "")
    protocol = own.pop("NCCL_PROTO", "")
    if own or row.op not in TUNER or not (algorithm and protocol):
        return ""  # a line names both, and which one NCCL takes by itself is not known
    sizes = f"{row.least},{row.largest}"
    channels = row.setting.config.get("max_ctas", -1)
    choice = f"{algorithm.lower()},{protocol.lower()},{channels}"
    return f"{TUNER[row.op]},{sizes},{choice},{sweep.hosts},{sweep.ranks}"
