"""The topology: what it concludes of captured and made-up machines, what it draws, hosts that are alike once."""

from __future__ import annotations

import json
from typing import Any

import pytest

import ncclkit as nk
from ncclkit.core.case import Case
from ncclkit.core.model import Fact
from ncclkit.views._base import PLOTLY
from ncclkit.analysis.machine_links import MEANS, different_machines, link_closeness, link_kind
from ncclkit.views.topology import topology_view
from tests.views.machines import captured, copies, joined
from tests.views.test_faces import Page

# 8 V100 of a DGX-1: pairs with two, and pairs with one NVLink
TWO = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}
ONE = {(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)}


def cube(a: int, b: int) -> str:
    return "NV2" if (a, b) in TWO else "NV1" if (a, b) in ONE else "SYS"


def broken(a: int, b: int) -> str:
    return "SYS" if 3 in (a, b) else "NV18"


def rails(count: int) -> dict[str, Any]:
    """A NIC for each GPU, behind the same PCIe switch."""
    return {f"NIC{nic}": lambda gpu, nic=nic: "PXB" if gpu == nic else "NODE" for nic in range(count)}


def drawn(case: Case) -> dict[str, dict[str, Any]]:
    """Traces of the figure by their names in the legend."""
    figure = topology_view(case)._repr_mimebundle_()[PLOTLY]
    return {trace["name"]: trace for trace in figure["data"]}


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (captured("h200-x4"), "All 4 GPUs reach each other over NV18"),
        (
            captured("h200-x8-slurm"),
            "All 8 GPUs reach each other over NV18; GPU 3 has 17 active NVLinks, not 18; "
            "closest NIC at PIX for 2 GPUs, NODE for 6 GPUs",
        ),
        (captured("cpu-vm"), "No GPU here: ranks meet in memory and over the network"),
        (
            captured("hung-smi"),
            "How its 4 GPUs are joined could not be read: nvidia-smi -q -x did not answer within 10 s",
        ),
        (captured("rdma-misnamed"), "One GPU, so there is no link between GPUs"),
        (joined(8, cube), "12 pairs of GPUs reach each other over SYS, 8 over NV2, 8 over NV1"),
        (joined(8, broken), "21 pairs of GPUs reach each other over NV18, 7 over SYS (GPU 3)"),
        (
            joined(2, lambda a, b: "PHB", rails(2)),
            "Both GPUs reach each other over PHB; every GPU finds its closest NIC at PXB",
        ),
        (
            joined(4, lambda a, b: "NV6", {"NIC0": lambda gpu: "SYS"}),
            "All 4 GPUs reach each other over NV6; every GPU finds its closest NIC at SYS",
        ),
    ],
    ids=["4 H200", "8 H200", "no GPU", "hung nvidia-smi", "one GPU", "cube", "lost GPU", "two", "far NIC"],
)
def test_the_conclusion(case: Case, said: str) -> None:
    assert topology_view(case).summary == said


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({(0, 1): "CNS", (0, 2): "CNS", (1, 2): "CNS"}, "; P2P is refused (the chipset does not support it), so data"),
        ({(0, 2): "GNS"}, "; P2P is refused for 1 pair (the GPU does not support it), so data"),
        ({}, ""),
    ],
)
def test_pairs_without_p2p_are_said(answers: dict[tuple[int, int], str], said: str) -> None:
    read = {f"GPU{a}": {f"GPU{b}": answers.get((min(a, b), max(a, b)), "OK") for b in range(3)} for a in range(3)}
    view = topology_view(joined(3, lambda a, b: "PIX", gpu__p2p__read=read))
    assert view.summary.startswith("All 3 GPUs reach each other over PIX" + said) and ("P2P" in view.summary) == bool(
        said
    )


def test_one_link_for_all_is_one_bus_and_each_other_pair_an_arc() -> None:
    whole, odd = drawn(joined(8, lambda a, b: "NV18")), drawn(joined(8, broken))
    assert set(whole) == {"NV18", "SYS", "GPU"}  # SYS is what joins the two NUMA nodes
    assert whole["SYS"]["x"].count(None) == 1 and odd["SYS"]["x"].count(None) == 1 + 7
    stubs = {x for x in odd["NV18"]["x"] if x is not None}
    assert len(stubs) == 7 and odd["GPU"]["x"][3] not in stubs


def test_kinds_of_links_differ_in_colour_dash_or_width() -> None:
    ways = ["NV18", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS", "new"]
    traces = drawn(joined(9, lambda a, b: ways[a % 8]))
    looks = [json.dumps(traces[way]["line"], sort_keys=True) for way in ways]
    assert len(set(looks)) == len(ways)
    assert list(traces)[: len(ways)] == ways  # the closest first


def test_parts_that_are_not_whole_have_a_shape_of_their_own() -> None:
    case = captured("h200-x8-slurm")
    traces = drawn(case)
    assert traces["GPU with fewer NVLinks"]["text"] == ["3"] and len(traces["GPU"]["text"]) == 7
    assert traces["NIC"]["text"] == ["0", "1"] and "NIC, not active" not in traces
    down = drawn(captured("rdma-misnamed"))
    assert (down["NIC"]["text"], down["NIC, not active"]["text"]) == (["0"], ["1"])
    assert len({trace["marker"]["symbol"] for trace in (*traces.values(), *down.values()) if "marker" in trace}) == 4


def test_each_gpu_is_joined_with_its_own_nic() -> None:
    traces = drawn(joined(8, lambda a, b: "NV18", rails(8)))
    lines = [traces["PXB"]["x"][at : at + 2] for at in range(0, 24, 3)]
    assert [line[0] for line in lines] == traces["GPU"]["x"] and all(line[0] == line[1] for line in lines)


def test_a_thousand_hosts_are_drawn_by_kind_the_odd_one_first() -> None:
    case = copies("h200-x4", 1000, {517: {"gpu.2.nvlink.links": 12}, 3: {"gpu.count": None}})
    case.facts = [fact for fact in case.facts if fact.name.startswith("gpu.")]
    view = topology_view(case)
    assert view.summary == (
        "2 kinds of machine. node-0517: All 4 GPUs reach each other over NV18; GPU 2 has 12 active NVLinks, not 18; "
        "node-[0001-0516,0518-1000]: All 4 GPUs reach each other over NV18"
    )
    words = Page(view.static()).words
    assert words.index("1 host: node-0517") < words.index("999 hosts: node-[0001-0516,0518-1000]")
    assert len(json.dumps(view._repr_mimebundle_())) < 1 << 16


def test_many_kinds_are_named_not_drawn() -> None:
    case = Case()
    for number in range(1, 41):
        case.facts += joined(number, lambda a, b: "NV4", host=f"node-{number}").facts
    view = topology_view(case)
    assert (
        view.summary.startswith("40 kinds of machine.") and "; 37 further kinds of machine; node-40: " in view.summary
    )
    assert len(view._repr_mimebundle_()[PLOTLY]["layout"]["annotations"]) < 30
    assert "37 further kinds of machine" in Page(view.static()).words


def test_links_are_explained_with_their_speed() -> None:
    words = Page(topology_view(captured("h200-x8-slurm")).static()).words
    for said in ("18 × 26.6 = 478 GB/s in each direction", MEANS["SYS"], "3 – mlx5_0", "CPUs 0-47,96-143"):
        assert said in words
    assert "Pairs of GPUs" in words and "all" in words


def test_a_host_with_one_numa_node_has_everything_on_it() -> None:
    [machine] = different_machines(captured("h200-x4").facts)
    assert set(machine.gpus.values()) == {0}


def test_links_are_sorted_by_what_they_are() -> None:
    ways = ["SYS", "NV2", "strange", "NODE", "PIX", "NV18", "PHB", "PXB"]
    assert sorted(ways, key=link_closeness) == ["NV18", "NV2", "PIX", "PXB", "PHB", "NODE", "SYS", "strange"]
    assert {link_kind(way) for way in ways} == set(MEANS)


@pytest.mark.parametrize("count", [10**9, -1, "many", True, None, [], 1.5])
def test_a_torn_count_does_no_harm(count: object) -> None:
    case = Case()
    case.facts = [Fact("gpu.count", count), Fact("gpu.topology", None, why="cut off")]
    view = nk.show.topology(case)
    assert view.summary and Page(view.static()).words


def test_links_that_could_not_be_read_come_with_the_way_to_find_out() -> None:
    assert "nvidia-smi topo -m" in Page(topology_view(captured("hung-smi")).static()).words
    assert "To find out" not in topology_view(captured("rdma-misnamed")).static()


WRONG = (
    0,
    -1,
    1.5,
    True,
    "x",
    "",
    [],
    {},
    [1],
    [{}],
    [{"device": [1], "rate": "x", "gids": 3}],
    {"GPU0": {"GPU1": [1]}},
)
NAMES = (
    "gpu.count",
    "gpu.topology",
    "gpu.topology.nics",
    "gpu.0.numa",
    "gpu.0.nvlink.links",
    "gpu.p2p.read",
    "cpu.numa",
)
NETWORK = ("net.interfaces", "net.rdma", "net.nccl.interface", "net.nccl.interfaces", "net.nccl.hcas", "net.default")


@pytest.mark.parametrize("view", [nk.show.topology, nk.show.network, nk.show.facts])
@pytest.mark.parametrize("name", [*NAMES, *NETWORK])
def test_values_of_a_wrong_type_do_no_harm(view: Any, name: str) -> None:
    for wrong in WRONG:
        case = copies("h200-x8-slurm", 1, {1: {name: wrong}})
        case.facts = [fact for fact in case.facts if fact.name in (*NAMES, *NETWORK)]
        assert view(case)._repr_mimebundle_()
