"""Which lines are shown to the rules: the same with and without hyperscan, and floods as if every line were read."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkit import evidence
from ncclkit.evidence import merge, samples
from ncclkit.evidence.scanner import pieces, scan
from tests.bench import logs
from tests.evidence import cliffs, meanings, specimens
from tests.evidence.test_python import TRACE
from tests.evidence.test_stacks import FAULT, GDB, PYSPY

LINES = [
    case[0]
    for case in (
        *specimens.NCCL,
        *specimens.C10D,
        *specimens.GLOO,
        *specimens.STORE,
        *specimens.LAUNCHERS,
        *specimens.SYSTEM,
        *cliffs.CLIFFS,
        *meanings.MEANINGS,
    )
    if isinstance(case[0], str)
]
TEXTS = [*LINES, "\n".join(TRACE), FAULT, GDB, PYSPY]
DULL = ["step 17 loss 0.25", "NCCL INFO threadThresholds 8/8/64", "\x1b[31mERROR\x1b[0m nothing", "m [0;36mx", "#0 x"]
GLUE = ["\n", "\n", "\n", "\r", "\r\n", "\0", " ", "\x1b[0m", "é" * 40, "[rank3]: ", "3: ", "x" * 5000]
MIXTURES = st.lists(st.tuples(st.sampled_from([*TEXTS, *DULL]), st.sampled_from(GLUE)), max_size=30)


def block(text):
    return scan.Block(text, len(text), 1, scan.Context("job.log"), last=True)


def read(text):
    """The events of a text as the scanner merges them."""
    merger = merge.Merger()
    pieces.Deduplication(merger).read(block(text))
    return merger.collected()


def every(text):
    """The same, each line read by the grammars."""
    merger = merge.Merger()
    for event in block(text).events():
        merger.add_line(event)
    return merger.collected()


def backends(text):
    """The events with hyperscan, and without."""
    pytest.importorskip("hyperscan")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "FEW", 0)
        patch.setattr(scan, "MANY_PLACES", 1 << 30)
        found = read(text)
        patch.setattr(scan, "_scanner_of_thread", lambda literals: None)
        return found, read(text)


@given(mixture=MIXTURES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_both_backends_find_the_same_in_any_mixture(mixture):
    found, plain = backends("".join(text + glue for text, glue in mixture).encode())
    assert found == plain


def test_both_backends_find_the_same_in_all_specimens_and_samples():
    texts = ["\n".join(TEXTS).encode()]
    texts += [path.read_bytes() for path in sorted(samples.HERE.rglob("*")) if path.is_file()]
    assert len(texts) > 5
    for text in texts:
        found, plain = backends(text)
        assert found == plain
    assert len(backends(texts[0])[0]) > 150


def test_many_places_are_left_to_the_other_way(monkeypatch):
    pytest.importorskip("hyperscan")
    monkeypatch.setattr(scan, "FEW", 0)
    text = b"CUDA error: x\n" * 10
    assert len(scan.anchored_places(text, len(text)) or ()) >= 10
    monkeypatch.setattr(scan, "MANY_PLACES", 5)
    assert scan.anchored_places(text, len(text)) is None


def test_without_hyperscan_every_line_is_looked_at(monkeypatch):
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    assert scan._compiled_scanner((b"x",)) is None


@pytest.mark.parametrize("name", list(logs.LOGS))
def test_floods_count_as_if_every_line_were_read(name):
    lines = logs.LOGS[name](random.Random(3))
    text = "".join(next(lines) for _ in range(3000)).encode()
    assert read(text) == every(text)


@given(st.lists(st.tuples(st.sampled_from(LINES), st.integers(0, 99)), max_size=40))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_specimens_with_other_numbers_count_as_if_every_line_were_read(chosen):
    """Digits are what floods differ in, and what some rules ask for."""
    varied = [text.translate({ord("1"): str(number % 10), ord("2"): str(number // 10)}) for text, number in chosen]
    text = "\n".join(varied + varied[::-1]).encode()
    assert read(text) == every(text)


def test_a_million_warnings_are_few_readings(monkeypatch):
    lines = logs.LOGS["all WARN"](random.Random(3))
    text = "".join(next(lines) for _ in range(20_000)).encode()
    told, count = scan.Block.line_events, [0]

    def counted(*args):
        count[0] += 1
        return told(*args)

    monkeypatch.setattr(scan.Block, "line_events", counted)
    assert sum(event.count for event in read(text) if event.kind == "nccl.warn") == 20_000
    assert count[0] < 6000


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("NCCL WARN Cuda failure 1 'a'", "NCCL WARN Cuda failure 2 'a'"),
        ("NCCL WARN bind failed: Errno 97] x", "NCCL WARN bind failed: Errno 98] Address already in use"),
        ("NCCL WARN FP8 reduction support begins with sm90", "NCCL WARN FP4 reduction support begins with sm90"),
        ("NCCL INFO init.cc:7 -> 6", "NCCL INFO init.cc:7 -> 5"),
    ],
)
def test_numbers_that_matter_are_not_blanked(first, second):
    text = "".join(f"n:1:2 [0] x.cc:3 {line}\n" for line in (first, second, first, second)).encode()
    assert read(text) == every(text)


def test_shapes_are_forgotten_before_they_are_too_many(monkeypatch):
    monkeypatch.setattr(scan, "SHAPES", 10)
    shapes = scan.Shapes()
    for letter in "ghijklmnopqrstuvwxyz":
        assert shapes[letter.encode()] is None
    assert len(shapes) <= 10


def test_the_public_reading_is_the_same_without_hyperscan(tmp_path, monkeypatch):
    path = tmp_path / "job.log"
    path.write_text("\n".join([*TEXTS, *["dull line"] * 40_000, *TEXTS]))
    found = evidence.read([path])
    monkeypatch.setattr(scan, "_scanner_of_thread", lambda literals: None)
    assert evidence.read([path]) == found
