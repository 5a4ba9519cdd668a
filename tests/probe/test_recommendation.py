"""What a sweep plans, what it recommends, and what it leaves alone: by made-up measurements."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest

from ncclkit.core.protection import enables_multicast, left_in_words, multicast_is_off, protects
from ncclkit.core.recommendation import (
    answer_lines,
    assignments,
    detail_lines,
    is_undecided,
    pair_in_words,
    recommendation,
    visible_in_words,
)
from ncclkit.core.tuning import Comparison, Setting, Sweep, config_files, setting
from ncclkit.live.sweep_plan import BUDGETS, JOBS, SweepPlan, pace_in_words

KIB, MIB = 1 << 10, 1 << 20
OPS = ("all_gather", "all_reduce", "reduce_scatter")
SIZES = (8, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB)


def compared(name: str, op: str, size: int, factor: float, noise: float = 0.005, beside: str = "") -> Comparison:
    """16 rounds of a setting that takes this part of the default's time; larger messages take longer."""
    draw = random.Random(f"{name} {op} {size} {beside}")
    time = 20 + size / 250e3
    before = [time * math.exp(draw.gauss(0, noise)) for _ in range(16)]
    after = [time * factor * math.exp(draw.gauss(0, noise)) for _ in range(16)]
    return Comparison(setting(name), op, size, tuple(before), tuple(after), 40, spread=0.002, beside=beside)


def swept(*rows: Comparison) -> Sweep:
    alone = tuple(one for one in rows if not one.beside)
    beside = tuple(one for one in rows if one.beside)
    return Sweep("nccl", 8, 1, alone, alone, {}, 90.0, beside=beside)


def channels(*products: float) -> list[Comparison]:
    """As 32 channels were on two H200: 4 to 7 % of all three from 16 MiB up; products: the same under computation."""
    rows = []
    for op in OPS:
        for size in SIZES:
            rows.append(compared("channels=32", op, size, 0.94 if size >= 16 * MIB else 1.0))
    for factor in products:
        rows.append(compared("channels=32", "all_reduce", 64 * MIB, factor, beside="product"))
    return rows


def test_the_answer_begins_with_what_to_set_and_for_which_messages() -> None:
    sweep = swept(*channels(0.95))
    said = recommendation(sweep)
    assert said.startswith("Set NCCL_MIN_CTAS=NCCL_MAX_CTAS=32: 6 "), said
    assert said.endswith(" % of all 3 collectives from 16 MiB up, also under computation."), said
    assert answer_lines(sweep) == [said]
    assert config_files(sweep)["nccl.env"].text == "export NCCL_MIN_CTAS=32\nexport NCCL_MAX_CTAS=32\n"
    assert config_files(sweep)["nccl.env"].verify.startswith("ncclkit tune channels=32 --op ")


def test_what_was_not_measured_under_computation_is_said() -> None:
    assert recommendation(swept(*channels())).endswith("from 16 MiB up, not measured under computation.")
    weak = recommendation(swept(*channels(1.0)))
    assert weak.endswith("under computation too little to be told from chance.")


def test_what_loses_under_computation_is_not_to_be_set() -> None:
    sweep = swept(*channels(1.1))
    assert recommendation(sweep).startswith("Set nothing: 32 channels gains ")
    assert "nccl.env" not in config_files(sweep)


def test_the_time_that_is_saved_counts_and_not_the_largest_percentage() -> None:
    """40 % of the 20 us of an empty call, or 6 % of the millisecond of a large one: one of each is measured."""
    small = [compared("NCCL_PROTO=LL", op, size, 0.6 if size == 8 else 1.0) for op in OPS for size in SIZES]
    sweep = swept(*channels(), *small)
    assert recommendation(sweep).startswith("Set NCCL_MIN_CTAS")
    told = recommendation(replace(sweep, calls=tuple((op, 8, 100_000) for op in OPS)))
    assert told.startswith("Set NCCL_PROTO=LL: 4") and told.endswith(" % of the time of your job's calls."), told


def test_what_holds_for_all_sizes_comes_before_what_costs_on_some() -> None:
    """The second best on each size, as the best one takes longer elsewhere."""
    sharp = [compared("NCCL_PROTO=LL", "all_reduce", size, 0.5 if size == 8 else 3.0) for size in SIZES]
    even = [compared("NCCL_BUFFSIZE=8388608", "all_reduce", size, 0.9) for size in SIZES]
    sweep = swept(*sharp, *even)
    assert recommendation(sweep).startswith("Set NCCL_BUFFSIZE=8388608: ")
    assert " of all_reduce at all measured sizes, " in recommendation(sweep)
    alone = recommendation(swept(*sharp))
    assert alone.startswith("Set nothing for all sizes: NCCL_PROTO=LL gains 50 % of all_reduce up to 8 B")
    assert "nccl.env" not in config_files(swept(*sharp))


def test_settings_that_gain_each_alone_are_not_set_together() -> None:
    one = [compared("NCCL_BUFFSIZE=8388608", "all_reduce", size, 0.9) for size in SIZES]
    other = [compared("NCCL_NTHREADS=512", "all_reduce", size, 0.8) for size in SIZES]
    assert config_files(swept(*one, *other))["nccl.env"].text == "export NCCL_NTHREADS=512\n"


def test_noise_alone_recommends_nothing() -> None:
    """Ten equal settings on 18 pairs, twenty times, with a tenth of noise: none is to be set, and one claims at most."""
    claims = 0
    for seed in range(20):
        rows = []
        for number in range(10):
            for op in OPS:
                rows += [compared(f"NCCL_NTHREADS={seed}{number}", op, size, 1.0, 0.1) for size in SIZES]
        sweep = swept(*[replace(one, comparisons=len(rows)) for one in rows])
        said = recommendation(sweep)
        assert said.startswith(("Nothing here beats the default: 10 settings in 90 s", "Set nothing")), said
        assert "nccl.env" not in config_files(sweep)
        claims += said.startswith("Set")
    assert claims <= 1


def plain(size: int, noise: float) -> Comparison:
    return replace(compared("NCCL_PROTO=LL", "all_reduce", size, 1.0, noise), setting=Setting())


def test_nothing_better_says_what_would_have_been_seen() -> None:
    sweep = replace(swept(*[compared("NCCL_PROTO=LL", "all_reduce", size, 1.0) for size in SIZES]), plain=())
    assert visible_in_words(sweep) == ""
    seen = replace(sweep, plain=(plain(8, 0.05), plain(16 * MIB, 0.005)))
    said = recommendation(seen)
    small, large = (one.visible for one in seen.plain)
    assert 0.05 < small < 0.2 and 0.02 <= large < 0.03
    assert f"about {100 * small:.0f} % up to 64 KiB and {100 * large:.0f} % above 64 KiB would have been seen" in said
    blind = recommendation(replace(sweep, plain=(plain(8, 2.0),)))
    assert blind.endswith("Noise would have hidden any gain up to 64 KiB.")
    assert blind.startswith("Too noisy to tell whether anything beats the default: 1 setting in")
    assert seen.best is None and not is_undecided(seen), "a large gain would have been seen"
    assert detail_lines(seen) == [], "it is not said twice"


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_a_gain_that_would_have_been_seen_is_seen(noise: float) -> None:
    visible = plain(MIB, noise).visible
    assert compared("NCCL_PROTO=LL", "all_reduce", MIB, 1 - 1.5 * visible, noise).better


def test_an_interrupted_sweep_says_so_below_its_answer() -> None:
    missing = "Incomplete: it was interrupted. Not measured: 3 of 18 pairs of collective and size."
    rows = [compared("NCCL_PROTO=LL", "all_reduce", size, 1.0) for size in SIZES]
    cut = recommendation(replace(swept(*rows), partial=True))
    assert cut.startswith("Nothing that was measured beats the default"), "nor does one whose budget ended say more"
    first, second = answer_lines(replace(swept(*rows), unfinished=missing))
    assert first.startswith("Nothing that was measured beats the default") and second == missing


def test_a_row_of_the_growing_table_names_the_quickest() -> None:
    rows = [compared("NCCL_PROTO=LL", "all_reduce", 8, 0.8), compared("NCCL_ALGO=Tree", "all_reduce", 8, 0.9)]
    said = pair_in_words(swept(*rows), "all_reduce", 8)
    assert said.endswith("20 % less with NCCL_PROTO=LL") and "8 B" in said and "µs" in said
    assert pair_in_words(swept(compared("NCCL_PROTO=LL", "all_reduce", 8, 1.0)), "all_reduce", 8).endswith("quicker")


def test_what_only_costs_is_to_be_unset() -> None:
    rows = [compared("NCCL_PROTO=Simple", "all_reduce", size, 1.6 if size == 8 else 1.0) for size in SIZES]
    said = recommendation(replace(swept(*rows), cleared=("NCCL_PROTO",)))
    assert said == "Unset NCCL_PROTO: without it calls take up to 37 % less time."
    rows = [compared("NCCL_P2P_DISABLE=1", "all_reduce", size, 2.0) for size in SIZES]
    named = recommendation(replace(swept(*rows), cleared=("NCCL_P2P_DISABLE",)))
    assert named.endswith("Ask first who set NCCL_P2P_DISABLE=1: it protects, or switches hardware off.")
    gains = [compared("NCCL_PROTO=Simple", "all_reduce", size, 0.8) for size in SIZES]
    assert recommendation(replace(swept(*gains), cleared=("NCCL_PROTO",))).startswith("Keep NCCL_PROTO=Simple: 20 %")


def test_variables_of_one_value_stand_together() -> None:
    assert assignments(setting("NCCL_ALGO=Ring,channels=8")) == "NCCL_ALGO=Ring NCCL_MIN_CTAS=NCCL_MAX_CTAS=8"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("NCCL_NVLS_ENABLE=0", True),
        ("NCCL_NVLS_ENABLE= 0", True),
        ("NCCL_NVLS_ENABLE=1", False),
        ("NCCL_P2P_DISABLE=1", True),
        ("NCCL_P2P_DISABLE=0", False),
        ("NCCL_IB_DISABLE=1", True),
        ("NCCL_SHM_DISABLE=1", True),
        ("NCCL_P2P_LEVEL=PHB", True),
        ("NCCL_CUMEM_ENABLE=0", True),
        ("NCCL_CUMEM_HOST_ENABLE=0", True),
        ("NCCL_IB_HCA=^mlx5_1", True),
        ("NCCL_SOCKET_IFNAME=^docker0", True),
        ("NCCL_PROTO=Simple", False),
        ("NCCL_BUFFSIZE=1", False),
        ("NCCL_SOCKET_NTHREADS=4", False),
        ("GLOO_SOCKET_IFNAME=lo", False),
    ],
)
def test_which_variables_protect_or_switch_hardware_off(words: str, kept: bool) -> None:
    name, _, value = words.partition("=")
    assert protects(name, value) == kept


def test_multicast_that_is_off_stays_off() -> None:
    assert multicast_is_off({"NCCL_NVLS_ENABLE": "0"}) and not multicast_is_off({})
    for words in ("NCCL_NVLS_ENABLE=", "NCCL_NVLS_ENABLE=1", "NCCL_ALGO=NVLS", "NCCL_ALGO=allreduce:nvlstree"):
        one = setting(words)
        assert enables_multicast(one.env, one.without), words
    for words in ("NCCL_NVLS_ENABLE=0", "NCCL_ALGO=Ring", "NCCL_ALGO=^NVLS", "NCCL_P2P_DISABLE="):
        one = setting(words)
        assert not enables_multicast(one.env, one.without), words


def test_what_is_left_is_named() -> None:
    said = "Set here: NCCL_NVLS_ENABLE=0; it protects or switches off hardware, so it is left."
    assert left_in_words({"NCCL_NVLS_ENABLE": "0"}) == said and left_in_words({}) == ""


def test_a_plan_says_how_many_settings_and_jobs_and_how_long() -> None:
    said = SweepPlan("gloo", 2, 0, 35).words
    assert said.startswith("To measure on 35 pairs of collective and size: 2 settings share one job with the default.")
    assert "at most 30 s" in said
    many = SweepPlan("nccl", 36, 8, 49)
    assert "36 settings share one job with the default; 8 settings need jobs of their own (35 jobs)" in many.words
    assert "it ends after 120 s" in many.words and many.seconds > 120


def test_the_shared_job_gets_the_whole_budget_where_no_other_job_would_fit() -> None:
    assert SweepPlan("nccl", 36, 8, 49).shared_part == 1.0
    assert SweepPlan("nccl", 36, 8, 49, asked=600).shared_part == 0.5
    assert SweepPlan("nccl", 36, 0, 49, asked=600).shared_part == 1.0


def test_named_settings_with_jobs_of_their_own_get_the_time_of_those() -> None:
    plan = SweepPlan("gloo", 0, 1, 35, every=True)
    assert plan.own_jobs == 2 * JOBS and plan.budget > BUDGETS["gloo"] + 16
    assert SweepPlan("gloo", 0, 1, 35, every=True, asked=20).budget == 20, "what somebody asked for holds"
    assert SweepPlan("gloo", 1, 0, 35, every=True).budget == BUDGETS["gloo"]


def test_after_the_first_job_the_time_is_told_by_that() -> None:
    assert pace_in_words(9.0, 10, 200) == "A job takes 9 s: 10 jobs more take about 90 s."
    assert pace_in_words(9.0, 30, 100) == "A job takes 9 s: 30 jobs would take 270 s, and 100 s are left."


def test_a_sweep_with_its_answer_is_json() -> None:
    from ncclkit.core.model import to_json

    told = json.loads(to_json(replace(swept(*channels()), unfinished="Incomplete.", folder="sweeps/1-tune")))
    assert told["unfinished"] == "Incomplete." and told["folder"] == "sweeps/1-tune"


