"""Bytes nobody thought of: they are read, or refused in one sentence."""

from __future__ import annotations

import pickle

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclkit import evidence
from ncclkit.evidence import KINDS
from ncclkit.model import NcclkitError, to_json
from tests.evidence import specimens
from tests.evidence.test_flight import dump, entry, waiting
from tests.evidence.test_python import TRACE
from tests.evidence.test_ras import TEXT
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
    )
]
SEEDS = [
    *(line.encode() for line in LINES),
    *(part.encode() for part in ("\n".join(TRACE), TEXT, FAULT, GDB, PYSPY)),
    b"9" * 5000,
    b"\x80\x02",
    b"\x1f\x8b\x08",
]
DUMP = pickle.dumps(dump([entry(1), waiting(2)]), 2)
PIECES = st.lists(
    st.one_of(
        st.sampled_from(SEEDS),
        st.binary(max_size=40),
        st.sampled_from([b"\n", b"\r", b"\0", b"\x1b[", b"{", b"[", b'"', b"rank3: "]),
    ),
    max_size=12,
)
BOUNDED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def read(tmp_path, data):
    path = tmp_path / "rank1.log"
    path.write_bytes(data)
    try:
        reading = evidence.read([path])
    except NcclkitError as error:
        assert "\n" not in str(error)
        return
    for event in reading.events:
        assert event.kind in KINDS and len(event.text) <= 2000
        assert set(KINDS[event.kind]) <= event.data.keys()
        to_json(event)


@BOUNDED
@given(st.binary(max_size=400))
def test_arbitrary_bytes(tmp_path, data):
    read(tmp_path, data)


@BOUNDED
@given(PIECES)
def test_pieces_of_real_lines(tmp_path, pieces):
    read(tmp_path, b"".join(pieces))


@BOUNDED
@given(st.sampled_from(SEEDS), st.integers(0, 300), st.binary(max_size=6))
def test_lines_with_damage(tmp_path, line, at, damage):
    read(tmp_path, line[:at] + damage + line[at:])


@BOUNDED
@given(st.integers(0, len(DUMP)), st.binary(max_size=4), st.integers(0, 4))
def test_dumps_with_damage(tmp_path, at, damage, gone):
    read(tmp_path, DUMP[:at] + damage + DUMP[at + gone :])
