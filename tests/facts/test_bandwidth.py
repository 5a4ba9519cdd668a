"""The factors of nccl-tests and the bounds that facts give."""

from pathlib import Path

import pytest

from ncclkit.agent import facts as agent
from ncclkit.causes import catalogue
from ncclkit.core import bandwidth
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, Measurement, NcclkitError
from tests.record.machine import machine_at

MACHINES = Path(__file__).parents[1] / "machines"


def of(machine: str) -> list[Fact]:
    return [Fact(**row) for row in agent.collect(machine=machine_at(str(MACHINES / machine)))]


def made(**values: object) -> list[Fact]:
    """Facts from keywords: gpu_count=2 → gpu.count = 2."""
    return [Fact(name.replace("__", "."), value) for name, value in values.items()]


def pcie(count: int, generation: int = 4, width: int = 16) -> list[Fact]:
    matrix = {f"GPU{a}": {f"GPU{b}": "PHB" for b in range(count) if b != a} for a in range(count)}
    links = [
        Fact(f"gpu.{gpu}.pcie.{name}", value)
        for gpu in range(count)
        for name, value in (("gen.max", generation), ("gen", 1), ("width", width))
    ]
    return [Fact("gpu.count", count), Fact("gpu.topology", matrix), *links]


@pytest.mark.parametrize(
    "op, ranks, factor",
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("gather", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("send_recv", 2, 1.0),
        ("all_reduce", 1, 0.0),
    ],
)
def test_factor(op, ranks, factor):
    assert bandwidth.factor(op, ranks) == factor


def test_bandwidths():
    assert bandwidth.algbw(1 << 30, 5000) == pytest.approx(214.748, abs=1e-3)
    assert bandwidth.busbw("all_reduce", 8, 200.0) == 350.0
    assert bandwidth.busbw("all_reduce", 1, 200.0) is bandwidth.busbw("broadcast", 1, 9.0) is None
    assert bandwidth.busbw("barrier", 8, 0.0) is None


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: bandwidth.factor("allreduce", 2), "all_reduce"),
        (lambda: bandwidth.factor("reduce", 0), "at least 1 rank"),
        (lambda: bandwidth.algbw(8, 0), "0 us"),
        (lambda: bandwidth.expect("reduce", "mpi", 2, []), "nccl and gloo"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(NcclkitError, match=words):
        call()


@pytest.mark.parametrize(
    "machine, op, ranks, value, limit",
    [
        ("h200-x4", "all_reduce", 4, 18 * 20.6, "nvlink"),
        ("h200-x8-slurm", "all_reduce", 8, 17 * 20.6, "nvlink"),
        ("h200-x8-slurm", "all_reduce", 2, 18 * 20.6, "nvlink"),  # GPU 3, which lost a link, is not in use
    ],
)
def test_nvlink(machine, op, ranks, value, limit):
    bound = bandwidth.expect(op, "nccl", ranks, of(machine))
    assert (bound.value, bound.limit) == (pytest.approx(value), limit)
    assert "20.6 GB/s" in bound.words and f"{value:.1f} GB/s" in bound.words


def test_what_was_measured_lies_just_below_the_bound():
    here = next(ref for ref in bandwidth.REFERENCES if ref.source.startswith("ncclkit"))
    bound = bandwidth.expect(
        "all_reduce",
        "nccl",
        8,
        made(
            gpu__count=8,
            gpu__0__model="NVIDIA H200",
            gpu__topology={f"GPU{a}": {f"GPU{b}": "NV18" for b in range(8) if b != a} for a in range(8)},
        ),
    )
    assert 0.95 < here.busbw / bound.value < 1


def test_nvlink_of_an_unknown_model_takes_the_speed_that_the_driver_states():
    matrix = {"GPU0": {"GPU1": "NV4"}, "GPU1": {"GPU0": "NV4"}}
    facts = made(gpu__count=2, gpu__topology=matrix, gpu__0__model="NVIDIA X9")
    assert bandwidth.expect("all_reduce", "nccl", 2, facts).value is None
    facts += made(gpu__0__nvlink__speed=25.0)
    assert bandwidth.expect("all_reduce", "nccl", 2, facts).value == 100.0


def test_pcie_takes_the_slowest_link_at_its_full_generation():
    assert bandwidth.expect("all_reduce", "nccl", 4, pcie(4)).value == 24.0
    narrow = [Fact("gpu.2.pcie.width", 8) if fact.name == "gpu.2.pcie.width" else fact for fact in pcie(4, 3)]
    bound = bandwidth.expect("all_reduce", "nccl", 4, narrow)
    assert (bound.value, bound.limit) == (6.0, "pcie") and "GPU 2, generation 3 x8" in bound.words
    chosen = [*narrow, Fact("env.CUDA_VISIBLE_DEVICES", "3,1")]
    assert bandwidth.expect("all_reduce", "nccl", 2, chosen).value == 12.0


@pytest.mark.parametrize(
    "backend, ranks, facts, words",
    [
        ("nccl", 1, pcie(2), "no data crosses a link"),
        ("nccl", 3, pcie(2), "3 ranks on 2 GPUs"),
        ("nccl", 2, [], "how the GPUs are joined"),
        ("nccl", 2, made(gpu__count=2, gpu__topology=None), "how the GPUs are joined"),
        ("nccl", 2, pcie(2)[:2], "PCIe link of GPU 0"),
        ("gloo", 2, [], "loopback"),
    ],
)
def test_without_the_facts_there_is_no_bound_but_a_reason(backend, ranks, facts, words):
    bound = bandwidth.expect("all_reduce", backend, ranks, facts)
    assert (bound.value, bound.limit) == (None, "none") and words in bound.words


@pytest.mark.parametrize(
    "op, ranks, value",
    [("all_reduce", 2, 4.0), ("all_reduce", 8, 1.0), ("broadcast", 9, 1.0), ("gather", 8, 8.0), ("all_to_all", 8, 1.0)],
)
def test_gloo_shares_the_cores(op, ranks, value):
    facts = made(net__loopback__bandwidth=4.0, net__loopback__cost=0.25, cpu__usable=2)
    bound = bandwidth.expect(op, "gloo", ranks, facts)
    assert (bound.value, bound.limit) == (value, "loopback") and f"about {value:.2f} GB/s busbw" in bound.words


@pytest.mark.parametrize(
    "op, backend, env, value",
    [
        ("all_reduce", "nccl", {}, 100.0),
        ("all_reduce", "nccl", {"env.NCCL_IB_DISABLE": "1"}, 1.25),
        ("all_reduce", "gloo", {}, 1.25),
        ("all_to_all", "nccl", {}, 100 / 8 * (15 / 16) / 0.5),
        ("gather", "nccl", {}, 187.5),
    ],
)
def test_two_hosts_share_the_network(op, backend, env, value):
    ports = [{"device": f"mlx5_{n}", "state": "ACTIVE" if n < 2 else "DOWN", "rate": 400.0} for n in range(3)]
    facts = [Fact("net.rdma", ports), Fact("net.interfaces", [{"name": "eth0", "speed": 10000}])]
    facts += [Fact("net.nccl.interface", "eth0"), Fact("net.gloo.interface", "eth0"), *pcie(8, 6)]
    facts += [Fact(name, value) for name, value in env.items()]
    bound = bandwidth.expect(op, backend, 16, facts, hosts=2)
    assert bound.value == pytest.approx(min(value, 96.0) if backend == "nccl" else value)


def test_references_match_model_number_and_link():
    said = [str(ref) for ref in bandwidth.references("NVIDIA H200", 8, "nvlink")]
    assert "8 x H200: 480 GB/s with NVLS (ml-engineering)" in said and len(said) == 2
    assert [ref.busbw for ref in bandwidth.references("NVIDIA H200", 8, "nvlink", nvls=False)] == []
    assert {ref.gpu for ref in bandwidth.references("NVIDIA A100-SXM4-80GB", 8, "nvlink")} == {"A100"}
    assert {ref.gpu for ref in bandwidth.references("NVIDIA A100-PCIE-40GB", 2, "nvlink")} == {"A100 PCIe"}
    assert bandwidth.references("NVIDIA A100-PCIE-40GB", 2, "pcie") == []  # 193 GB/s went over a bridge
    assert bandwidth.references("NVIDIA H100 NVL", 8, "nvlink") == bandwidth.references("Tesla T4", 8, "pcie") == []


@pytest.mark.parametrize(
    "busbw, size, expected, words, suspects",
    [
        (340.0, 256 << 20, "nvlink", ["92 %", "4 x H200: 354 GB/s at 1 GiB (ncclkit", "this is 96 % of it"], ()),
        (
            120.0,
            256 << 20,
            "nvlink",
            ["32 %", "That is slower than it should be: it could be slow_transport"],
            bandwidth.SUSPECTS["nvlink"],
        ),
        (120.0, 1 << 20, "nvlink", ["32 %"], ()),  # a small message says nothing of a link
    ],
)
def test_a_number_is_laid_beside_the_bound_and_systems_like_this_one(busbw, size, expected, words, suspects):
    bound = bandwidth.expect("all_reduce", "nccl", 4, of("h200-x4"))
    row = Measurement("all_reduce", size, "float32", 4, 1, "nccl", 1.0, None, None, 1.0, busbw, 0)
    judgement = bandwidth.judge_curve([row], bound)
    assert judgement.bound.limit == expected and judgement.suspects == suspects
    assert all(word in judgement.summary for word in words), judgement.summary


def test_each_collective_is_judged_by_its_own_best_and_its_own_bound():
    sizes = (("all_reduce", 1 << 26, 340.0), ("broadcast", 8, 1.0), ("broadcast", 1 << 28, 90.0), ("send_recv", 8, 0.1))
    rows = [Measurement(op, size, "float32", 4, 1, "nccl", 1.0, None, None, 1.0, bus, 0) for op, size, bus in sizes]
    bounds = {op: bandwidth.expect(op, "nccl", 4, of("h200-x4")) for op in ("all_reduce", "broadcast")}
    judged = bandwidth.judgements(rows, bounds)
    assert [(one.best.op, one.best.busbw, one.bound) for one in judged] == [
        ("all_reduce", 340.0, bounds["all_reduce"]),
        ("broadcast", 90.0, bounds["broadcast"]),
    ]
    assert [one.low for one in judged] == [False, True]


@pytest.mark.parametrize(
    "p99, graph, words",
    [
        (None, None, "62.0 µs, busbw"),
        (70.3, None, "62.0 µs (p99 70.3 µs), busbw"),
        (70.0, 9.5, "(p99 70.0 µs, graph 9.5 µs),"),
    ],
)
def test_a_measurement_in_a_line_tells_the_times_that_were_taken(p99, graph, words):
    row = Measurement("all_reduce", 8, "float32", 4, 1, "nccl", 62.0, p99, None, 1.0, 1.5, 0, graph_us=graph)
    assert words in str(row)


def test_other_collectives_and_several_hosts_have_no_system_to_compare_with():
    bound = bandwidth.expect("all_reduce", "nccl", 4, of("h200-x4"))
    for op, hosts in (("all_gather", 1), ("all_reduce", 2)):
        row = Measurement(op, 1 << 28, "float32", 4, hosts, "nccl", 1.0, None, None, 1.0, 340.0, 0)
        assert bandwidth.judge_curve([row], bound).references == ()


def test_suspects_are_causes_that_ask_a_question():
    for name in {name for names in bandwidth.SUSPECTS.values() for name in names}:
        assert catalogue()[name].experiment(Case()).question.endswith("?")


@pytest.mark.parametrize(("ranks", "split", "shared"), [(4, 2, False), (8, 2, True), (5, 5, True), (4, 4, False)])
def test_ranks_that_take_turns_on_a_gpu_have_no_bound(ranks: int, split: int, shared: bool) -> None:
    facts = [Fact("gpu.count", 4, "", "nvidia-smi", "h")]
    bound = bandwidth.expect("all_reduce", "nccl", ranks, facts, split, split)
    assert (bound.words == bandwidth.TURNS) == shared and bound.value is None
