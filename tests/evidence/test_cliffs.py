"""Old form and new form of everything that changed between versions give the same event."""

from __future__ import annotations

import pickle

import pytest

from ncclkit.core.model import fields_of
from tests.evidence.cliffs import CLIFFS, COUNTERS, DUMPS, INFO


def name(cliff):
    return f"{cliff[0]}-{cliff[1].replace(' ', '_')}"


@pytest.mark.parametrize(("number", "version", "text", "kind", "fields"), CLIFFS, ids=[name(c) for c in CLIFFS])
def test_both_forms_are_read(only, number, version, text, kind, fields):
    (event,) = only(kind, "\n" + text + "\n")
    assert {key: fields_of(event)[key] for key in fields} == fields


@pytest.mark.parametrize("version", COUNTERS)
def test_calls_are_counted_also_where_the_counter_of_nccl_stands_still(only, version):
    call = (
        INFO
        + "AllReduce: opCount {} sendbuff 0x7f recvbuff 0x7f count 1024 datatype 7 op 0 root 0 comm 0x55 [nranks=2] "
    )
    (event,) = only("nccl.op", "".join(f"{call.format(count)}stream 0x5\n" for count in COUNTERS[version]))
    assert (event.count, event.data.comm, event.data.nranks) == (3, "0x55", 2)


@pytest.mark.parametrize("version", DUMPS)
def test_a_dump_of_each_version_tells_how_far_its_rank_came(read_text, version):
    (event,) = [
        e for e in read_text(pickle.dumps(DUMPS[version], 2), "nccl_trace_rank_1").events if e.kind == "flight.dump"
    ]
    (group,) = event.data.groups.values()
    assert (event.rank, group["last_seq"], group["in_flight"]) == (1, 42, [42])


def test_no_cliff_was_forgotten():
    assert {cliff[0] for cliff in CLIFFS} | {15, 21} == set(range(1, 23))
