"""Bytes nobody thought of: they are read, or refused in one sentence; nothing runs, nothing hangs, no row is lost.

The corpus of the fuzzers as files, then a bounded run of hypothesis over them; and some hundred inputs to each of the
readers, which ``tests/fuzz/run.py`` gives ten million with atheris (figures in ``tests/bench/results/fuzz.json``).
"""

from __future__ import annotations

import os
import pickle
import random
import re
import socket
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkit.core.model import Event
from tests.fuzz import readers
from tests.fuzz.guards import Broken, guarded, watched
from tests.fuzz.readers import READERS
from tests.fuzz.targets import TARGETS, check

pytestmark = pytest.mark.slow
EACH = pytest.mark.parametrize("name", TARGETS)
QUICK = [name for name in TARGETS if name != "repeated"]
BOUNDED = settings(max_examples=60, deadline=None, derandomize=True)
CUTS = st.lists(st.tuples(st.integers(0, 4096), st.integers(0, 64), st.binary(max_size=24)), max_size=6)
GLUE = st.sampled_from([b"", b"\n", b"\r", b"\0", b"\x1b[31m", b"\xff\xfe", b"{", b"[", b'"', b"rank3: ", b"9" * 5000])


@EACH
def test_the_corpus(name):
    seeds = TARGETS[name].seeds()
    assert len(seeds) >= 4
    for data in seeds:
        check(TARGETS[name], data)


@pytest.mark.parametrize("name", QUICK)
@BOUNDED
@given(st.data())
def test_seeds_with_damage(name, data):
    """Pieces of two seeds, glued, with bytes replaced."""
    seeds = st.sampled_from(TARGETS[name].seeds())
    parts = data.draw(st.tuples(seeds, GLUE, seeds))
    text = b"".join(parts[: data.draw(st.integers(1, 3))])
    for at, gone, put in data.draw(CUTS):
        text = text[:at] + put + text[at + gone :]
    check(TARGETS[name], text)


@pytest.mark.parametrize("name", QUICK)
@BOUNDED
@given(data=st.binary(max_size=400))
def test_arbitrary_bytes(name, data):
    check(TARGETS[name], data)


@pytest.mark.parametrize("name", READERS)
def test_readers_take_their_seeds_with_damage(name):
    """As they are, cut, with bytes replaced, and two of them together; each in 2 s of CPU."""
    reader, dice = READERS[name], random.Random(name)
    seeds = [seed[: reader.longest] for seed in reader.seeds()]
    assert len(seeds) >= 6
    with readers.one_process():
        for _ in range(300):
            data = bytearray(dice.choice(seeds))
            for _ in range(dice.randrange(4)):
                at = dice.randrange(len(data) + 1)
                put = dice.choice((b"", dice.randbytes(2), dice.choice(seeds)[:40], b"9" * 30))
                data[at : at + dice.randrange(4)] = put
            with guarded(2):
                readers.check(reader, bytes(data))


def test_a_record_against_its_contract_is_found():
    bad = readers.Reader(lambda data: [Event("nccl.warn", data.decode(), "rank0.log", 1)], list)
    with pytest.raises(Broken, match="nccl.warn"):
        readers.check(bad, b"a warning that is too long " * 100)


REGULAR = [b"(", b" ", b"\t", b"a ", b"0", b"1.", b"::", b"[0]", b"- ", b'File "a", line 1, in ', b"#0 0x1 in ", b"=,"]


@pytest.mark.parametrize("name", ["log", "stacks", "ras", "document"])
@pytest.mark.parametrize("unit", REGULAR, ids=repr)
def test_what_makes_patterns_run_away(name, unit):
    """Each seed's first words before, and after, a long run of one thing."""
    for seed in TARGETS[name].seeds()[:4]:
        run = unit * (20_000 // len(unit))
        check(TARGETS[name], seed[:60] + run + seed[60:120])


@pytest.mark.parametrize("number", [b"9" * 30, b"0", b"-1", b"0x" + b"f" * 40], ids=["endless", "0", "-1", "hex"])
@pytest.mark.parametrize("name", QUICK)
def test_numbers_that_nobody_meant(name, number):
    """Each number of a seed in turn is another; the seed itself stands before and after them.

    A log is read line by line, so what is repeated of it is the line and the one after it; of other files each
    variant is a file of its own, too.
    """
    for seed in TARGETS[name].seeds():
        if len(seed) < 3000 and seed.isascii():
            places = [match.span() for match in re.finditer(rb"\d+", seed)][:40]
            variants = [seed[:a] + number + seed[b:] for a, b in places]
            if name == "log":
                above = [seed.count(b"\n", 0, a) for a, _ in places]
                variants = [b"\n".join(v.split(b"\n")[n : n + 2]) for v, n in zip(variants, above, strict=True)]
            check(TARGETS[name], b"\n".join([seed, *variants, seed]))
            for a, b in places[:: 1 + len(places) // 4] if name != "log" else ():
                check(TARGETS[name], seed[:a] + number + seed[b:])


def open_for_writing(path):
    with open(path, "w") as out:
        out.write("x")


ACTS = {
    "os.system": lambda path: os.system("true"),  # noqa: S605
    "subprocess": lambda path: subprocess.run([sys.executable, "--version"]),
    "open": open_for_writing,
    "socket": lambda path: socket.socket().close(),
    "pickle.find_class": lambda path: pickle.loads(b"cposix\ngetcwd\n."),  # noqa: S301
    "os.remove": lambda path: os.remove(path),
}


@pytest.mark.parametrize("act", ACTS)
def test_the_watch_sees_it(tmp_path, act):
    path = tmp_path / "x"
    with pytest.raises(Broken, match=act), watched(10):
        try:
            ACTS[act](path)
        except Exception as error:  # what a reader would make of it
            raise AssertionError from error
    assert not path.exists()


def test_the_watch_ends_what_does_not_end():
    with pytest.raises(Broken, match="too long"), watched(0.05):
        while True:
            pass
