"""Hosts that agree, the odd one out, and what may differ between good hosts."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclkit import evidence
from ncclkit.agent.anonymize import Aliases
from ncclkit.analysis.consistency import compare
from ncclkit.analysis.consistency_rules import ANY, NOT_COMPARED, RULES
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, to_json
from ncclkit.core.text import fold_hosts, host_list
from ncclkit.live.launch import slurm
from ncclkit.live.probe import replace_facts
from tests.facts.test_docs import PAGE, ROW
from tests.fleet import captured, fleet

ODD = "node0003"
CARDS = next(fact.value for fact in captured() if fact.name == "net.interfaces")
PORTS = next(fact.value for fact in captured() if fact.name == "net.rdma")
WAYS = next(fact.value for fact in captured() if fact.name == "gpu.topology")
PENDING = {"pending": True, "failure": False}
DEVICES = ("active RDMA devices", "differs", "mlx5_0")


def differences(changes: dict, count: int = 5) -> list[tuple[str, str, str]]:
    """Title, effect and the odd value for one host of a fleet that is not like the others."""
    found = compare(fleet(count, {ODD: changes})).differences
    assert all(each.outliers[0].hosts == (ODD,) for each in found)
    return [(each.title, each.effect, each.outliers[0].value) for each in found]


def card(name: str, **changes) -> list[dict]:
    return [row | changes if row["name"] == name else row for row in CARDS]


def test_every_fact_is_compared_or_left_out_on_purpose():
    listed = {name for name, *_ in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    assert RULES.keys() | NOT_COMPARED | {ANY} == listed
    assert not RULES.keys() & NOT_COMPARED


def test_equal_hosts_agree():
    seen = compare(fleet(8))
    assert seen.differences == () and seen.partly == () and seen.outliers == {}
    assert seen.summary == f"8 hosts agree in all {seen.agreed} things that were compared" and seen.agreed > 60
    assert not seen.can_break


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"software.nccl": "2.26.2"}, [("NCCL", "breaks", "2.26.2")]),
        ({"software.frameworks": {"numpy": "2.1.3", "x": "1"}}, [("frameworks", "breaks", "x 1")]),
        ({"limits.shm.size": 64 << 20}, [("size of /dev/shm", "breaks", "64 MiB")]),
        ({"limits.memlock": 65536}, [("locked memory", "breaks", "64 KiB")]),
        ({"gpu.5.pcie.width": 8}, [("PCIe lanes", "slows", "16 (GPU 5: 8)")]),
        ({"gpu.2.throttle": ["hw_slowdown"]}, [("lowered clocks", "slows", "none (GPU 2: hw_slowdown)")]),
        ({"gpu.2.remapped_rows": PENDING}, [("row remapping", "breaks", "in order (GPU 2: pending)")]),
        ({"gpu.topology": WAYS | {"GPU0": {"GPU1": "SYS"}}}, [("path from GPU to GPU", "slows", "NV18, SYS")]),
        ({"memory.swap": [{"storage": "nfs4"}]}, [("storage of the swap", "slows", "nfs4")]),
        ({"storage.work.latency": 900.0}, [("small writes (work)", "slows", "900 ms")]),
        ({"net.hostname.addresses": ["127.0.1.1"]}, [("own host name", "breaks", "127.x")]),
        ({"net.rdma": []}, [("RDMA", "breaks", "no")]),
        ({"net.rdma": PORTS[:1]}, [("active RDMA ports", "slows", "1 × InfiniBand 400 Gb/s"), DEVICES]),
        ({"net.interfaces": card("ibp24s0", mtu=1500)}, [("MTU of NCCL's interface", "breaks", "1500")]),
        ({"env.NCCL_ALGO": "Ring"}, [("NCCL_ALGO", "breaks", "Ring")]),
        ({"env.NCCL_IB_TIMEOUT": ...}, [("NCCL_IB_TIMEOUT", "slows", "not set")]),
        ({"env.LD_LIBRARY_PATH": "/opt/plugins:/opt/old:/opt/nccl/lib"}, [("LD_LIBRARY_PATH", "differs", "/opt/old")]),
        ({"env.LD_LIBRARY_PATH": ...}, [("LD_LIBRARY_PATH", "differs", "not set")]),
        ({"env.NCCL_IB_HCA": "mlx5_2"}, [("NCCL_IB_HCA", "differs", "mlx5_2")]),
        ({"env.TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, [("TORCH_NCCL_TRACE_BUFFER_SIZE", "differs", "9")]),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)  # fmt: skip
def test_the_odd_one_out_is_named(changes, expected):
    assert differences(changes) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu.3.temperature": 80, "cpu.load": [90.0, 1.0, 1.0], "memory.available": 1 << 30, "gpu.1.uuid": "GPU-1"},
        {"memory.total": 2164131880960 * 1.02},
        {"net.loopback.bandwidth": 4.0, "storage.work.latency": 0.2},
        {"gpu.2.throttle": ["sw_power_cap"]},
        {"net.interfaces": CARDS[::-1]},
        {"net.rdma": PORTS[::-1]},
        {"env.SLURM_PROCID": "7", "env.RANK": "7", "env.CUDA_VISIBLE_DEVICES": "0"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_differs_between_good_hosts_is_no_difference(changes):
    assert differences(changes) == []


def test_the_sentence_names_host_value_and_the_others():
    seen = compare(fleet(8, {ODD: {"software.nccl": "2.26.2"}}))
    assert seen.differences[0].summary == "NCCL: 2.26.2 on node0003; 2.27.5 on the other 7 hosts"
    assert seen.summary.startswith("8 hosts differ in 1 of ") and seen.summary.endswith(
        f"first {seen.differences[0].summary}"
    )
    assert seen.can_break and seen.text().count("\n") == 2


def test_what_breaks_comes_first_then_the_odd_one_out():
    changes = {
        "node0002": {"cpu.total": 96},
        "node0003": {"host.kernel": "6.1", "cpu.model": "x"},
        "node0004": {"host.kernel": "6.1"},
    }
    changes["node0004"] |= {"cpu.total": 128, "software.torch": "2.9.0"}
    seen = compare(fleet(9, changes))
    assert [each.title for each in seen.differences] == ["torch", "CPU model", "CPUs", "kernel"]
    assert list(seen.outliers) == ["node0004", "node0003", "node0002"]
    assert [group.hosts for group in seen.differences[3].outliers] == [("node0003", "node0004")]


def test_halves_have_no_odd_one():
    seen = compare(fleet(4, {name: {"software.torch": "2.9.0"} for name in ("node0003", "node0004")}))
    assert seen.differences[0].usual is None and seen.outliers == {}
    assert seen.differences[0].summary == "torch: 2.8.0+cu128 on node[0001-0002]; 2.9.0 on node[0003-0004]"


def test_a_host_that_picks_the_wrong_of_its_networks():
    found = differences({"net.nccl.interface": "eno1", "net.nccl.interfaces": ["eno1"]})
    assert ("network of NCCL's interface", "breaks", "not 10.1.0.0/16, where its ibp24s0 is") in found


def test_a_network_for_each_rack_is_no_difference():
    racks = {f"node{n:04}": {"net.interfaces": card("ibp24s0", addresses=[f"10.{n}.0.1/24"])} for n in range(1, 6)}
    assert compare(fleet(5, racks)).differences == ()


def test_what_some_hosts_could_not_read_is_not_agreement():
    seen = compare(fleet(4, {ODD: {"gpu.topology": None, "limits.memlock": ...}}))
    assert {(each.title, each.why, each.hosts) for each in seen.partly} == {
        ("path from GPU to GPU", "it did not answer", (ODD,)),
        ("locked memory", "not among the facts of this host", (ODD,)),
    }
    assert seen.summary.endswith(" (not everything could be read on node0003)")


def test_what_no_host_could_read_is_counted_apart():
    whole, blind = (
        compare(fleet(3, {f"node000{n}": {"limits.shm.size": value} for n in (1, 2, 3)})) for value in (1, None)
    )
    assert blind.agreed == whole.agreed - 1 and blind.partly == ()
    assert [(each.title, each.nowhere) for each in blind.unread if each not in whole.unread] == [
        ("size of /dev/shm", True)
    ]


def test_a_host_without_gpus_differs_once():
    facts = [fact for fact in fleet(3) if not (fact.host == ODD and fact.name.startswith("gpu."))]
    seen = compare([*facts, Fact("gpu.count", 0, host=ODD)])
    assert [each.title for each in seen.differences] == ["number of GPUs"]
    assert not [each for each in seen.partly if "GPU m" in each.title]


def test_a_node_that_says_nothing_at_all():
    seen = compare([*fleet(2), Fact("facts.host", None, why="the node gave no facts", host="node0003")])
    assert [(each.title, each.hosts) for each in seen.partly] == [("everything", ("node0003",))]


@pytest.mark.parametrize("count", [0, 1])
def test_one_host_has_nothing_to_compare(count):
    seen = compare(fleet(count))
    assert seen.differences == () and seen.summary in (
        "No facts have been collected yet",
        "Facts of one host are known: nothing to compare",
    )


@pytest.mark.parametrize("junk", [17, "text", [1], {"a": [None]}, [{"name": []}], True, -1.5, []], ids=repr)
def test_values_of_a_wrong_shape_cost_only_their_own_comparison(junk):
    names = sorted({fact.name for fact in captured()})
    seen = compare(fleet(3, {ODD: dict.fromkeys(names, junk)}))
    assert len(seen.hosts) == 3 and seen.differences and seen.text()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["node-3"], "node-3"),
        ([f"node{n:03}" for n in range(1, 998)], "node[001-997]"),
        (["n10", "n9", "n8", "login"], "login, n[8-10]"),
        ([f"rack{r}-n{n}" for r in (1, 2) for n in (1, 2)], "rack1-n[1-2], rack2-n[1-2]"),
        (["n1.c7.example", "n2.c7.example"], "n[1-2].c7.example"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.1, 10.0.0.2"),
        ([f"n{n}" for n in range(0, 36, 2)], "n[0,2,4,6,8,10], n[12,14,16,18,20,22], n[24,26,28,30,32,34]"),
        (["a", "b", "c", "d", "e", "f"], "a, b, c, d and 2 more"),
        ([], ""),
    ],
)  # fmt: skip
def test_host_lists_are_short(names, said):
    assert host_list(names) == said


def spread(piece: str) -> set[str]:
    """All names of a folded piece."""
    head, bracket, rest = piece.partition("[")
    inside, _, tail = rest.partition("]")
    ends = [item.split("-") for item in inside.split(",") if bracket]
    numbers = [str(n).zfill(len(end[0])) for end in ends for n in range(int(end[0]), int(end[-1]) + 1)]
    return {head + number + tail for number in numbers} or {piece}


NAMES = st.sets(st.from_regex(r"[a-c]{0,2}[0-9]{0,3}(-n[0-9]{1,2})?(\.x)?", fullmatch=True), max_size=40)


@given(NAMES)
def test_folding_loses_and_invents_no_host(names):
    pieces = fold_hosts(names)
    assert set().union(*(spread(text) for text, _ in pieces)) == names
    assert sum(count for _, count in pieces) == len(names)


def test_folded_names_are_hidden_in_a_report_that_names_no_host():
    names = [f"rack{r}-zebra{n:02}.lab.example" for r in (1, 2) for n in range(1, 9)] + ["login"]
    hidden = Aliases(names)(host_list(names))
    assert "host-[" in hidden and not re.search("rack|zebra|lab|login", hidden)


@pytest.mark.parametrize(
    "write",
    [
        lambda rows: "".join(to_json(fact) + "\n" for fact in rows),
        lambda rows: json.dumps({"facts": [json.loads(to_json(fact)) for fact in rows]}, indent=1),
        lambda rows: json.dumps([json.loads(to_json(fact)) for fact in rows]),
    ],
    ids=["inspect --json", "document", "list"],
)
def test_facts_of_other_hosts_come_from_files(tmp_path, write):
    rows = fleet(2)
    for name in ("node0001", "node0002"):
        (tmp_path / f"{name}.json").write_text(write([fact for fact in rows if fact.host == name]))
    reading = evidence.read([tmp_path])
    assert [row["kind"] for row in reading.inputs] == ["facts", "facts"] and reading.problems == []
    assert len(reading.facts) == len(rows) and compare(reading.facts).differences == ()


def test_facts_without_a_host_are_of_the_one_they_name(tmp_path):
    rows = [Fact("host.name", "node-7", source="x"), Fact("cpu.total", float("inf"), source="y")]
    (tmp_path / "facts.json").write_text(
        "".join(json.dumps({"name": f.name, "value": f.value, "source": f.source}) + "\n" for f in rows)
    )
    assert [(fact.host, fact.value) for fact in evidence.read([tmp_path]).facts] == [
        ("node-7", "node-7"),
        ("node-7", None),
    ]


@pytest.mark.parametrize(
    "row",
    [{"name": "a.b", "value": 1}, {"name": 3, "value": 1, "source": ""}, {"name": "no fact", "value": 1, "source": ""}],
)
def test_other_json_is_no_fact(tmp_path, row):
    (tmp_path / "some.log").write_text(json.dumps(row) + "\n" + json.dumps(row) + "\n")
    assert evidence.read([tmp_path]).facts == []


def test_what_the_nodes_of_an_allocation_left(tmp_path):
    def line(name: str, value: str) -> str:
        return json.dumps({"ncclkit": 1, "kind": "fact", "name": name, "value": value}) + "\n"

    end = '{"ncclkit": 1, "kind": "complete"}\n'
    (tmp_path / "facts-node0.jsonl").write_text(line("host.name", "gpu-a") + "a warning\n" + line("host.os", "x") + end)
    (tmp_path / "facts-node1.jsonl").write_text(line("host.name", "same") + end)
    (tmp_path / "facts-node2.jsonl").write_text(line("host.name", "same"))
    (tmp_path / "facts-node3.jsonl").write_text("python: not found\n")
    records = slurm.collected(tmp_path, ["n1", "n2", "n3", "n4", "n5"])
    assert [record["host"] for record in records] == ["gpu-a", "gpu-a", "n2", "n3", "n3", "n4", "n5"]
    assert [record["host"] for record in records if record["name"] == "facts.rest"] == ["n3"]
    assert [record["why"] for record in records if record["name"] == "facts.host"] == [
        "the node gave no facts: python: not found",
        "the node gave no facts: no output; launcher.log says why",
    ]


def test_what_is_not_set_any_more_is_forgotten():
    case = Case()
    gone = [
        Fact("env.NCCL_ALGO", "Ring", host=ODD),
        Fact("facts.host", None, host=ODD),
        Fact("env.X", "1", host="other"),
    ]
    case.facts = [*fleet(3), *gone]
    replace_facts(case, [fact for fact in fleet(3) if fact.host == ODD])
    assert len(case.facts) == len(fleet(3)) + 1 and case.facts_of("env.X") == gone[2:]
