"""The table of differences: short for 1,000 hosts, odd ones first, safe with hostile names and values."""

import re
from html import unescape

import pytest

from ncclkit.core.case import Case
from ncclkit.core.model import Fact
from ncclkit.views.facts import ALONE, consistency_view
from tests.fleet import fleet
from tests.views.records import HOSTILE
from tests.views.test_faces import Page


def view(facts):
    case = Case()
    case.facts = facts
    return consistency_view(case)


def rows(html: str) -> list[str]:
    """The text of each table row."""
    found = re.findall(r"<tr>.*?</tr>", html, re.DOTALL)
    return [" ".join(unescape(re.sub(r"<[^>]+>", " ", row)).split()) for row in found]


def test_odd_one_first_with_why_it_matters():
    shown = rows(view(fleet(8, {"node0003": {"host.kernel": "6.1", "software.nccl": "2.26.2"}})).static())
    assert shown[1].startswith("NCCL ▲ can break a job 2.26.2 on node0003 2.27.5 on 7 hosts The ranks exchange")
    assert shown[2].startswith("kernel · only differs 6.1 on node0003")
    assert shown[4] == "node0003 2 NCCL, kernel"


def test_hundreds_of_hosts_stay_a_short_page():
    names = [f"node{n:04}" for n in range(1, 301)]
    changes = {name: {"env.NCCL_DEBUG_SUBSYS": name} for name in names}
    for name in names[40:90]:
        changes[name]["software.torch"] = "2.9.0"
    changes["node0007"] |= {"limits.shm.size": 64 << 20, "gpu.topology": None}
    page = view(fleet(300, changes)).static()
    assert len(page) < 12_000
    assert "2.9.0</code> on node[0041-0090]" in page and "on 250 hosts" in page
    assert "64 MiB</code> on node0007" in page and "it did not answer" in page
    assert "and other values on 272 hosts" in page


def test_equal_hosts_are_one_sentence():
    equal = view(fleet(3))
    assert (
        equal.summary in equal.static()
        and rows(equal.static())[1:] == []
        or "Could be read on no host" in equal.static()
    )
    assert "can break" not in equal.static()


@pytest.mark.parametrize("facts", [[], fleet(1)], ids=["none", "one host"])
def test_one_host_says_how_to_get_others(facts):
    assert str(ALONE) in view(facts).static() and "`" not in ALONE


def test_hostile_names_and_values_are_text():
    hosts = {HOSTILE: HOSTILE, "b": "1", "c": "1"}
    names = ("software.nccl", f"env.{HOSTILE}", f"storage.{HOSTILE}.type")
    facts = [Fact(name, value, HOSTILE, HOSTILE, host) for name in names for host, value in hosts.items()]
    facts += [Fact("env.problems", [], host=host) for host in hosts]
    facts += [Fact("host.os", None, host=HOSTILE, why=HOSTILE), Fact("host.os", "x", host="b")]
    page = Page(view(facts).html)
    assert not {"script", "img"} & set(page.tags) and page.words.count("alert(1)") >= 5
    assert "\x1b" not in page.words
