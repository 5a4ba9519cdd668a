"""Telemetry, drawn: peaks in words, phases in step, many GPUs, several hosts, and what is torn left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ncclkit.views.telemetry import telemetry_view
from ncclkit.core.case import Case
from ncclkit.core.model import Event

GIB = 1 << 30


def telemetry(case: Case, name: str = "telemetry.jsonl", host: str = "node-1", gpus: int = 0, **more: Any) -> None:
    """Ten seconds of one host: memory grows from 1 to 10 of 100 GiB."""
    folder = case.runs()[-1] if case.runs() else case.new_run("all_reduce")
    (folder / "plan.json").write_text("{}")
    lines = []
    for second in range(10):
        rows = [[1024.0 * (gpu + 1), 10.0 * second, 300.0, 1980.0, 40.0] for gpu in range(gpus)]
        memory = {"memory": (second + 1) * GIB, "memory_total": 100 * GIB, "swap": 0}
        about = {"telemetry": 1, "t": 1000.0 + second, "host": host, "cpu": 5.0 * second, "net": {"eth0": 1 << 20}}
        lines.append(json.dumps(about | memory | ({"gpus": rows} if gpus else {}) | more))
    (folder / name).write_text("\n".join([*lines, '{"telemetry": 1, "t": 10', "[]", '{"telemetry": 1, "t": "x"}']))


def drawn(view: Any) -> Any:
    return view._repr_mimebundle_()["application/vnd.plotly.v1+json"]


def test_the_sentence_tells_the_peaks(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    telemetry(case, gpus=2)
    said = "9 seconds on node-1: CPU at most 45 %, memory at most 10.0 of 100.0 GiB, no swap in use"
    assert telemetry_view(case).summary == f"{said}, GPU memory at most 2.0 GiB, GPUs busy up to 90 %"


def test_phases_stand_where_the_last_rank_reached_them(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    telemetry(case)
    path = str(case.runs()[-1] / "wire.jsonl")
    for rank in range(2):
        case.events.append(Event("worker.phase", "", path, 1, 1003.0 + rank, rank=rank, data={"phase": "init"}))
    (label,) = [one for one in drawn(telemetry_view(case))["layout"]["annotations"] if "<b>" not in one["text"]]
    assert (label["text"], label["x"]) == ("joined", 4.0)


def test_without_gpus_there_are_no_rows_for_them(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    telemetry(case)
    assert {trace["name"] for trace in drawn(telemetry_view(case))["data"]} == {"CPU", "memory", "eth0"}


def test_each_rank_has_a_curve_and_of_many_the_lowest_and_the_highest(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    rank = {"state": "R", "cpu": 99.0, "main": 98.0, "sent": 1 << 20, "received": 1 << 20}
    telemetry(case, utilization={"0": rank, "10": rank, "2": {"state": "S"}, "x": 3})
    titles = [trace["name"] for trace in drawn(telemetry_view(case))["data"] if trace["name"].startswith("rank")]
    assert titles == ["rank 0", "rank 10"] * 2
    telemetry(case, utilization={str(number): rank | {"cpu": float(number)} for number in range(9)})
    curves = {trace["name"]: trace for trace in drawn(telemetry_view(case))["data"] if "rank" in trace["name"]}
    assert "highest rank" in curves and not any(name.startswith("rank ") for name in curves)


def test_of_many_gpus_the_lowest_and_the_highest_are_drawn(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    telemetry(case, gpus=16)
    names = [trace["name"] for trace in drawn(telemetry_view(case))["data"]]
    assert names.count("highest GPU") == 5 and not any(name.startswith("GPU ") for name in names)


def test_what_gpus_do_is_drawn_and_stands_in_the_table_with_its_unit(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    telemetry(case, gpus=2)
    view = telemetry_view(case)
    titles = [one["text"].partition("</b>")[0] for one in drawn(view)["layout"]["annotations"] if "<b>" in one["text"]]
    assert titles[:5] == ["<b>GPU, %", "<b>GPU, GiB", "<b>GPU, W", "<b>GPU, MHz", "<b>GPU, °C"]
    said = str(view.static())
    wanted = ("2.0 GiB", "0–90 %", "300–300 W", "1980–1980 MHz", "40–40 °C", "1 MiB/s on eth0")
    assert [words for words in wanted if words not in said] == []


def test_the_table_has_no_column_of_which_no_host_tells_anything(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    telemetry(case, "telemetry-node0.jsonl", "node-1")
    assert "GPU" not in str(telemetry_view(case).static())
    telemetry(case, "telemetry-node1.jsonl", "node-2", gpus=1)
    said = str(telemetry_view(case).static())
    assert "300–300 W" in said and "–</div>" in said


def test_of_several_hosts_the_fullest_is_drawn_and_all_have_a_row(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    telemetry(case, "telemetry-node0.jsonl", "node-1")
    telemetry(case, "telemetry-node1.jsonl", "node-2", memory=60 * GIB)
    view = telemetry_view(case)
    assert view.summary.endswith("drawn is node-2, the one with the fullest memory")
    assert "node-1" in str(view.static()) and "60 %" in str(view.static())


def test_packed_telemetry_of_a_recording_is_read_as_well(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    telemetry(case)
    plain = case.runs()[-1] / "telemetry.jsonl"
    (plain.parent / "telemetry.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    said = telemetry_view(case).summary
    plain.unlink()
    assert telemetry_view(case).summary == said


def test_names_from_elsewhere_are_text(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    telemetry(case, host="<script>alert(1)</script>", net={"<b>eth0</b>": 5})
    view = telemetry_view(case)
    assert "<script>" not in str(view.static()) and "<b>eth0" not in json.dumps(drawn(view))


@pytest.mark.parametrize("field", ["cpu", "swap", "net", "pressure", "utilization", "scheduling", "gpus", "host"])
def test_what_is_of_another_type_in_a_sample_is_left_out(tmp_path: Path, field: str) -> None:
    """A case folder may come by mail."""
    for wrong in (None, 5, "x", [1], {"eth0": None}, {"eth0": {}}, float("inf"), 10**400):
        case = Case.open(tmp_path)
        telemetry(case)
        file = case.runs()[-1] / "telemetry.jsonl"
        lines = [json.loads(line) | {field: wrong} for line in file.read_text().splitlines()[:10]]
        file.write_text("\n".join(map(json.dumps, lines)))
        view = telemetry_view(case)
        assert "memory at most 10.0 of 100.0 GiB" in view.summary and drawn(view)["data"] and view.static()


def test_a_case_without_telemetry_says_where_it_comes_from() -> None:
    assert telemetry_view(Case()).summary.startswith("No run of this case was watched")
