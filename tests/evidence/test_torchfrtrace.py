"""The same verdict as `torchfrtrace` where it is right: generated sets go through both."""

from __future__ import annotations

import argparse
import copy
import io
import logging
import pickle
import random
from contextlib import redirect_stdout

import pytest

from ncclkit import evidence
from tests.evidence.test_flight import entry

RANKS = 4
OPS = {  # op → input and output shapes of rank r
    "all_reduce": lambda n: ([[n, 4]], [[n, 4]]),
    "broadcast": lambda n: ([[n, 4]], [[n, 4]]),
    "all_gather": lambda n: ([[n]], [[n * RANKS]]),
    "_reduce_scatter_base": lambda n: ([[n * RANKS]], [[n]]),
    "all_to_all": lambda n: ([[n]], [[n]]),
}
GROUPS = {"0": ("default_pg", [0, 1, 2, 3]), "1": ("tp", [0, 1]), "2": ("tp", [2, 3])}
FAULTS = ("none", "type", "size", "dtype", "missing")
VERDICTS = {
    "COLLECTIVE_TYPE_MISMATCH": "type",
    "SIZE_OR_SYNTAX_MISMATCH": "size",
    "COLLECTIVE_DTYPE_MISMATCH": "dtype",
    "FULLY_MATCHED": "none",
}


def generate(seed):
    """Dumps of four ranks in three groups, and what was done to one of them (never the lowest) in one group."""
    chance = random.Random(seed)
    fault, group = chance.choice(FAULTS), chance.choice(list(GROUPS))
    desc, members = GROUPS[group]
    odd, target = chance.choice(members[1:]), chance.randint(1, 6)
    dumps, counts = {rank: [] for rank in range(RANKS)}, dict.fromkeys(GROUPS, 0)
    plan = [name for name in GROUPS for _ in range(6)]
    chance.shuffle(plan)
    for name in plan:
        counts[name] += 1
        op, size = chance.choice(list(OPS)), chance.randint(1, 9)
        here = name == group and counts[name] == target
        if name == group and counts[name] > target and fault != "none":
            continue  # nobody comes past it
        ins, outs = OPS[op](size)
        ins, outs = (copy.deepcopy(shapes) for shapes in (ins, outs))
        if name != "0":
            ins, outs = OPS["all_reduce"](size)
            op = "all_reduce"
        for rank in GROUPS[name][1]:
            state = "started" if here and fault != "none" else "completed"
            call = entry(counts[name], op, state=state, group=(name, GROUPS[name][0]))
            call |= {
                "record_id": len(dumps[rank]),
                "input_sizes": ins,
                "output_sizes": outs,
                "output_dtypes": ["Float"],
            }
            if here and rank == odd:
                call = wrong(call, fault, op)
            dumps[rank] += [call] if call else []
    configs = {n: {"name": n, "desc": d, "ranks": str(m)} for n, (d, m) in GROUPS.items()}
    values = {
        rank: {
            "version": "2.10",
            "pg_config": {n: c for n, c in configs.items() if rank in GROUPS[n][1]},
            "entries": entries,
        }
        for rank, entries in dumps.items()
    }
    return values, fault, group, target, odd


def wrong(call, fault, op):
    """The odd rank's call; None where it never makes it."""
    if fault == "missing":
        return None
    if fault == "type":
        return call | {"profiling_name": "nccl:reduce", "input_sizes": [[5, 5]], "output_sizes": [[5, 5]]}
    if fault == "dtype":
        return call | {"input_dtypes": ["Half"], "output_dtypes": ["Half"]}
    if fault == "size":
        ins, outs = OPS[op](77) if op != "all_to_all" else ([[77]], call["output_sizes"])
        return call | {"input_sizes": ins, "output_sizes": outs}
    return call


def theirs(folder):
    """(verdict, group, number) of torchfrtrace's first finding."""
    builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder")
    loader = pytest.importorskip("torch.distributed.flight_recorder.components.loader")
    args = argparse.Namespace(
        trace_dir=str(folder), prefix="rank_", verbose=False, just_print_entries=False, allow_incomplete_ranks=False,
        mismatch_cap=10, selected_ranks=None, pg_filters=None, print_stack_trace=False,
    )  # fmt: skip
    with redirect_stdout(io.StringIO()):
        details, version = loader.read_dir(args)
        found = builder.build_db(details, args, version).collectives
    bad = [collective for collective in found if not collective.pass_check or collective.missing_ranks]
    if not bad:
        return "none", None, None
    first = bad[0]
    kind = "missing"
    if not first.missing_ranks:
        states = [str(c.type_of_mismatch.state.name) for c in (first.mismatch_collectives or {}).values()]
        kind = VERDICTS[states[0]] if states else "undecided"
    return kind, first.group_id, first.collective_seq_id


def ours(folder):
    """(verdict, group, number) of our first finding."""
    events = [
        e for e in evidence.read([folder]).events if e.kind in ("flight.missing", "flight.mismatch", "flight.p2p")
    ]
    events.sort(key=lambda event: event.kind)
    names = {"op": "type", "sizes": "size", "splits": "size", "dtypes": "dtype"}
    for event in [e for e in events if e.kind == "flight.mismatch"] or events:
        kind = names[event.data.field] if event.kind == "flight.mismatch" else "missing"
        odd = [r for side in event.data.odd for r in side["ranks"]] if event.kind == "flight.mismatch" else []
        odd = event.data.missing if event.kind == "flight.missing" else odd
        return kind, event.data.group, event.data.seq, odd
    return "none", None, None, []


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("seed", range(60))
def test_same_verdict(tmp_path, seed):
    values, fault, group, target, odd = generate(seed)
    for rank, value in values.items():
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(value, 2))
    verdict, where, number, ranks = ours(tmp_path)
    expected = (fault, None, None) if fault == "none" else (fault, group, target)
    assert (verdict, where, number) == expected
    assert fault == "none" or odd in ranks or not ranks
    assert theirs(tmp_path)[0] == fault


@pytest.mark.parametrize("fault", ["type", "size", "dtype"])
def test_the_lowest_rank_may_be_the_wrong_one(tmp_path, fault):
    """There torchfrtrace calls all the others wrong; the majority decides here."""
    for rank in range(RANKS):
        call = entry(1, state="started") | {"record_id": 0, "output_sizes": [[8]], "output_dtypes": ["Float"]}
        call = wrong(call, fault, "all_reduce") if rank == 0 else call
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
        value = {"version": "2.10", "pg_config": config, "entries": [call]}
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(value, 2))
    assert ours(tmp_path) == (fault, "0", 1, [0])
    assert theirs(tmp_path)[0] == fault
