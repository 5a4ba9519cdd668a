"""Every pattern of evidence on texts that make an engine that backtracks crawl: linear from 1 to 32 KB."""

from __future__ import annotations

import re
import time

import pytest

from tests.hostile.patterns import attacks, patterns

SMALL, LARGE = 1 << 10, 32 << 10
GROWTH = 6.0
"""How much faster than its length a text's time may grow; quadratic is 32."""
FLOOR = 0.004
"""CPU seconds of a small text that a busy machine may need for nothing."""
PATTERNS = patterns()


def seconds(pattern, searched, before, repeated, size):
    """CPU time of one look at a text that hardly matches; the best of three where the first was slow."""
    text = (before + repeated * (size // len(repeated) + 1))[:size] + "\0"
    subject = text.encode("latin-1") if isinstance(pattern.pattern, bytes) else text
    look, best = pattern.search if searched else pattern.match, float("inf")
    for _ in range(3):
        start = time.process_time()
        look(subject)
        best = min(best, time.process_time() - start)
        if best < FLOOR or best > 1.0:  # so slow that a busy machine is no excuse
            break
    return best


def slow(name):
    """What grows faster than its text, worst first."""
    pattern, searched = PATTERNS[name]
    for before, repeated in attacks(pattern):
        allowed = GROWTH * LARGE / SMALL * FLOOR / 8
        middle = seconds(pattern, searched, before, repeated, LARGE // 8)
        if middle > 2 * allowed:  # cubic: the large one would not end
            yield middle, before[-60:], repeated[:60]
            continue
        # twice, as one look may meet a moment in which the machine was slow
        first = grows(pattern, searched, before, repeated, allowed)
        if first and grows(pattern, searched, before, repeated, allowed):
            yield first, before[-60:], repeated[:60]


def grows(pattern, searched, before, repeated, allowed):
    """The seconds of a large text, where they grew faster than the text; 0 where they did not."""
    large = seconds(pattern, searched, before, repeated, LARGE)
    if large <= allowed:
        return 0.0
    small = max(FLOOR / 8, seconds(pattern, searched, before, repeated, SMALL))
    return large if large > GROWTH * LARGE / SMALL * small else 0.0


def test_all_patterns_are_found():
    rules = [name for name in PATTERNS if "RULES" in name or "INFO" in name]
    assert len(rules) > 250 and len(PATTERNS) > 350


@pytest.mark.parametrize("room", sorted({name.rpartition(".")[0] for name in PATTERNS}))
def test_no_pattern_takes_more_than_linear_time(room):
    found = {name: worst for name in PATTERNS if name.rpartition(".")[0] == room and (worst := list(slow(name)))}
    assert found == {}


@pytest.mark.parametrize("pattern", [r".*ab", r"\d+ x", r"a.*?b=[^,]+,c"])
def test_a_quadratic_pattern_is_found(monkeypatch, pattern):
    """In half of the text, which shows it as well and takes a quarter of the time."""
    monkeypatch.setitem(PATTERNS, "own", (re.compile(pattern), True))
    monkeypatch.setitem(globals(), "LARGE", LARGE // 2)
    assert next(slow("own"), None)  # to find all of them takes minutes
