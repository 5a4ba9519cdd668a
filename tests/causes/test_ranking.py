"""One order of the causes: fitted without the text of anybody, explained, below what rules are sure of."""

from __future__ import annotations

import json
import zlib

import pytest

from ncclkit.causes import catalogue, ranking, resemblance
from ncclkit.causes.differential import settled_cases
from ncclkit.causes.ranking import REASONS, Voices, fitted_weights, ranked_causes
from tests.bench import ranking as bench
from tests.bench.differential import posted_failures
from tests.bench.resemblance import FROM_POSTS, POSTED, Counted, kept_posts, posts_of
from tests.cases import judged_text
from tests.packaging.project import ROOT

SHARED = next((up / "shared/cases" for up in ROOT.parents if (up / "shared/cases").is_dir()), None)
RAISED = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n'
    "    plan = load_plan(path)\nRuntimeError: the plan of rank 3 is empty\n"
)
LEAST_OF_MANY = 1000
"""Features of posts: fewer would say that they were not read."""


def only(voice: str) -> Voices:
    return Voices(**{voice: 1.0})


def test_rules_lift_a_cause_and_a_rule_that_clears_lowers_it() -> None:
    weights = fitted_weights()
    assert min(weights.resembled, weights.counted, weights.possible) > 0
    assert weights.cleared < 0 and weights.place < 0 and weights.excluded < 0
    odds = ranked_causes({"a": only("possible"), "b": Voices(), "c": only("cleared")}).odds
    assert odds["a"] > odds["b"] > odds["c"]


def test_a_place_is_told_by_the_voices_that_lift_it() -> None:
    ranked = ranked_causes({"a": only("possible"), "b": Voices(), "c": Voices()})
    assert ranked.reasons == {"a": (REASONS["possible"],), "b": (), "c": ()}


def test_each_suspect_says_why_it_stands_where_it_stands() -> None:
    log = "ofi: provider could not pin 8 MiB: memory registration refused, locked memory limit is 64 KiB\n"
    first = judged_text(log).findings[0]
    assert first.cause == "memlock_limit"
    assert f"Its place: {REASONS['resembled']}" in first.say


def test_below_a_likely_sign_stand_suspects_and_below_another_cause_none() -> None:
    sign = judged_text(RAISED)
    assert [finding.strength for finding in sign.findings] == ["likely", "possible", "possible"]
    assert sign.findings[0].cause == "rank_exception" and sign.differential is None
    cause = judged_text("node-1:71:90 [1] init.cc:943 NCCL WARN Duplicate GPU detected : rank 1 and rank 0\n")
    assert not any(map(resemblance.is_resembling, cause.findings))


def test_the_fit_trusts_the_voice_that_was_right() -> None:
    """In forty failures one voice names the settled cause, and another one names a wrong cause."""

    class Sample:
        accept = frozenset({"right"})

    class One:
        sample = Sample()

    heard = {"right": Voices(usual=1.0), "wrong": Voices(counted=1.0), "other": Voices()}
    weights = bench.fitted([(One(), heard)] * 40)  # type: ignore[list-item]
    assert weights.usual > bench.START.usual and weights.counted < bench.START.counted


def test_what_judges_an_owner_has_read_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def fit(known: Counted, level: int) -> bytes:
        read.extend(item.source for item in known.known)
        return resemblance.FILE.read_bytes()

    class One:
        def __init__(self, owner: str) -> None:
            self.owner = owner
            self.settled = next(one for one in settled_cases() if one.source == FROM_POSTS + owner)

    owners = ("nvidia", "nvidia", "pytorch", "horovod")
    known = Counted(kept_posts(), None, {})
    monkeypatch.setattr(bench, "fit", fit)
    monkeypatch.setattr(Counted, "without", lambda self, *sources: _without(self, sources))
    folds = bench.Folds([One(owner) for owner in owners], (), known)  # type: ignore[misc]
    unseen = folds.without(folds.fold_of["nvidia"])
    assert FROM_POSTS + "nvidia" not in read and FROM_POSTS + "pytorch" in read
    assert unseen.table.total == pytest.approx(bench.Table([one.settled for one in folds.posted[2:]]).total)


def _without(known: Counted, sources: tuple[str, ...]) -> Counted:
    return Counted([item for item in known.known if item.source not in sources], None, None)


def test_posts_are_kept_as_counts_of_hashed_features_alone() -> None:
    rows = json.loads(zlib.decompress(POSTED.read_bytes()))
    assert POSTED.stat().st_size + resemblance.FILE.stat().st_size + ranking.FILE.stat().st_size < 1 << 20
    known = {*catalogue(), resemblance.WELL}
    for row in rows:
        assert row.keys() == {"source", "cause", "accept", "suffices", "features", "times"}
        assert row["cause"] in known
        assert all(isinstance(value, int) for value in (*row["features"], *row["times"]))
    assert len({name for row in rows for name in row["features"]}) > LEAST_OF_MANY


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(SHARED is None, reason="the posted failures are not here")
def test_what_is_kept_of_posts_is_what_they_show() -> None:
    """A new reading of the posts gives the labels that are kept, and nearly all of the counts."""
    assert SHARED is not None
    counted, kept = posts_of(SHARED), kept_posts()
    labels = [(post.source, post.cause, post.accept, post.suffices) for post in kept]
    assert labels == [(post.source, post.cause, post.accept, post.suffices) for post in counted]
    pairs = list(zip(kept, counted, strict=True))
    same = sum(new.counts.get(name) == times for old, new in pairs for name, times in old.times.items())
    count = sum(len(old.times) for old in kept)
    assert same > 0.98 * count, "python -m tests.bench.resemblance --count ../shared/cases"
    posted = {(one.settled.source, one.settled.cause) for one in posted_failures(SHARED)}
    assert posted == {(post.source, post.cause) for post in kept if post.cause}
