"""Cards of facts: a verdict for each theme, the deciding numbers, and for what could not be read how to find out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ncclkit.causes import catalogue
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, NcclkitError
from ncclkit.core.themes import THEMES
from ncclkit.evidence.logs import read_facts
from ncclkit.views.facts import BY_HAND, FIRST, how_to_find_out, facts_view
from tests.views.machines import captured, copies, given
from tests.views.records import hostile_machine
from tests.views.test_faces import Page

DOCUMENTED = re.findall(r"^\| `([^`]+)` \|", (Path(__file__).parents[2] / "docs" / "facts.md").read_text(), re.M)


def cards(case: Case) -> dict[str, str]:
    """Theme → the words of its card."""
    sections = facts_view(case).static().split('<section class="nk-card">')[1:]
    words = [Page(section.partition("</section>")[0]).words for section in sections]
    return {next(title for title in THEMES if word.startswith(title)): word for word in words}


@pytest.mark.parametrize(
    ("machine", "theme", "said"),
    [
        ("cpu-vm", "GPUs", "No GPU here"),
        ("h200-x4", "GPUs", "GPUs  4 model  NVIDIA H200"),
        ("container", "Limits and isolation", "container  docker"),
        ("h200-x4", "Software", "kernel  6.18"),
        ("cpu-vm", "Network", "NCCL uses  eth0 gloo uses  lo"),
        ("cpu-vm", "Network", "resolves to 127.0.0.1 on itself, so gloo there would use lo"),
        ("h200-x8-slurm", "Storage", "type  lustre"),
        ("hung-smi", "Limits and isolation", "▲  problem"),
        ("hung-smi", "Limits and isolation", "What to do: shm_too_small"),
        ("hung-smi", "CPU and memory", "network storage"),
        ("hung-smi", "GPUs", "nvidia-smi topo -m"),
        ("rdma-misnamed", "Network", "NCCL_SOCKET_IFNAME=eth9"),
        ("rdma-misnamed", "Environment variables", "NCCL_BUFSIZE"),
    ],
)
def test_a_card_says_what_decides(machine: str, theme: str, said: str) -> None:
    squeezed = " ".join(cards(captured(machine))[theme].split())
    assert " ".join(said.split()) in squeezed


@pytest.mark.parametrize("machine", ["h100-x8"])
def test_a_machine_without_a_risk_says_so(machine: str) -> None:
    view = facts_view(captured(machine))
    assert view.summary.startswith("No check finds a risk here; ") and 'class="nk-bad"' not in view.static()


def test_risks_are_counted_in_the_conclusion_and_their_advice_stands_in_their_card() -> None:
    view = facts_view(captured("hung-smi"))
    assert re.match(r"[2-9] risks for a job here; ", view.summary)
    advised = set(re.findall(r"What to do: (\w+)", view.static()))
    assert {"shm_too_small", "host_oom"} <= advised <= set(catalogue())


def test_nothing_read_is_not_checked() -> None:
    case = Case()
    case.facts = [Fact("gpu.count", None, why="no permission"), Fact("storage.work.free", None, why="hung")]
    html = facts_view(case).static()
    assert html.count("not read") == 2 and "nk-checked" not in html


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_documented_fact_has_a_card_and_a_way_to_find_out(name: str) -> None:
    real = re.sub(r"<\w+>", "0", name)
    assert how_to_find_out(real)
    case = Case()
    case.facts = [Fact(real, None, why="the reason why")]
    [(theme, words)] = cards(case).items()
    assert theme != "Other" and "the reason why" in words


def test_every_way_and_every_deciding_fact_is_of_a_documented_family() -> None:
    known = [re.sub(r"<\w+>", "#", name) for name in DOCUMENTED] + ["facts.gpu"]
    assert [start for start in BY_HAND if not any(f"{name}.".startswith(f"{start}.") for name in known)] == []
    shapes = {re.sub(r"\.(\d+|work)\b", ".#", name) for name in FIRST}
    assert shapes <= set(known)


def test_many_hosts_share_rows_and_rare_values_are_counted() -> None:
    odd = {number: {"gpu.driver": f"570.{number}"} for number in range(1, 21)} | {21: {"limits.memlock": 65536}}
    view = facts_view(copies("h200-x4", 60, odd))
    words = " ".join(Page(view.static()).words.split())
    assert "facts about node-[0001-0060]" in view.summary
    assert "locked memory unlimited on 59 of 60 hosts" in words and "64 KiB" in words
    assert "13 other values" in words  # 21 drivers, of which 8 have a row
    assert len(json.dumps(view._repr_mimebundle_())) < 1 << 18


def test_what_hosts_say_of_themselves_stays_text() -> None:
    page = Page(facts_view(hostile_machine()).html)
    assert not {"script", "img"} & set(page.tags)


def test_facts_of_other_hosts_come_from_files_and_case_folders(tmp_path: Path) -> None:
    case = Case.open(tmp_path / "mine")
    assert read_facts(case, " ").facts == []
    theirs = Case.open(tmp_path / "theirs").replace_facts(captured("cpu-vm").facts).save()
    files = given(tmp_path)["others"]
    read_facts(case, f"{files} {theirs.path}")
    assert {fact.host for fact in case.facts} == {"node-07", "c0ffee123456", "host0"}
    assert Case.open(tmp_path / "mine").facts == case.facts


@pytest.mark.parametrize(("text", "sentence"), [('{"facts": []}', "There are no facts in"), (None, "does not exist")])
def test_others_without_facts_are_one_sentence(text: str | None, sentence: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "other.json").write_text(text)
    with pytest.raises(NcclkitError, match=sentence):
        read_facts(Case(), str(tmp_path / "other.json"))
