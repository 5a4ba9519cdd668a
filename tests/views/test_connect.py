"""The view of connection tests: what is wrong first, 64 hosts on a short page, hostile names escaped."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

import ncclkit as nk
from ncclkit.core.case import Case
from ncclkit.core.model import Event, fields_of
from ncclkit.views._base import PLOTLY
from tests.views.records import HOSTILE
from tests.views.test_faces import Page


def network(names: list[str], **wrong: Any) -> Case:
    """A connection test in which all is well, but for the paths from the first host to the second."""
    case, path = Case(), "runs/1-connect/wire.jsonl"
    for name in names:
        known: dict[str, Any] = {
            "name": name,
            "own": ["10.0.0.9"],
            "interface": "eth0",
            "address": "10.0.0.9",
            "gloo": "eth0",
        }
        case.events.append(Event("connect.host", "", path, 1, data=known))
    for src, dst in permutations(names, 2):
        known = {"src": src, "dst": dst, "address": "10.0.0.9", "rendezvous": "open", "nccl": "open", "port": 29500}
        speed = {"mtu": 1500, "mtu_own": 1500, "bandwidth": 2.0, "latency": 40.0, "offset": 0.5, "offset_error": 1e-5}
        known |= {"interface": "eth0", "nccl_address": "10.0.0.9", "reached": ["10.0.0.9"], "over": "10.0.0.9"} | speed
        known |= wrong if (src, dst) == tuple(names[:2]) else {}
        case.events.append(Event("connect.pair", "", path, 1, data=known))
    return case


def test_a_stream_that_lost_packets_says_so() -> None:
    assert "2.00 GB/s, 8 % sent again" in nk.show.connect(network(["a", "b"], resent=0.08)).static()


def test_all_is_well() -> None:
    view = nk.show.connect(network(["a", "b", "c"]))
    assert view.summary == (
        "All 6 paths between 3 hosts are open: at least 2 GB/s a TCP stream, at most 40 µs there and back"
    )
    assert "2.00 GB/s" in view.static() and "1,500 B" in view.static() and PLOTLY in view._repr_mimebundle_()


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"address": None}, "the name resolves to another host"),
        ({"rendezvous": "silent"}, "rendezvous port closed"),
        ({"nccl": "itself"}, "NCCL&#x27;s interface not reached"),
        ({"mtu_own": 9000}, "large packets get lost"),
        ({"bandwidth": None}, "not measured"),
        ({"bandwidth": 0.1}, "at least 2 times slower than most"),
    ],
)
def test_each_fault_has_a_mark_and_stands_first(wrong: dict[str, Any], kind: str) -> None:
    view = nk.show.connect(network(["a", "b", "c"], **wrong))
    cells, mark = view._repr_mimebundle_()[PLOTLY]["data"]
    speed = wrong.get("bandwidth", 2.0)
    assert cells["z"] == [[None, speed, 2.0], [2.0, None, 2.0], [2.0, 2.0, None]]
    assert mark["name"] == kind
    around = [(x, y) for x, y in zip(mark["x"], mark["y"], strict=True) if x is not None]
    assert {(round(x), round(y)) for x, y in around} == {(1, 0)}
    assert mark["mode"] == ("markers" if speed is None else "lines")
    words = Page(view.static()).words
    assert words.index("a → b") < words.index("b → a")


@pytest.mark.parametrize("hosts", ["ab", "abcd"])
def test_a_direction_that_is_85_times_slower_is_said_numbered_and_framed(hosts: str) -> None:
    view = nk.show.connect(network([f"node-{name}" for name in hosts], bandwidth=2.0 / 85))
    assert view.summary.startswith("node-a → node-b carries 0.0235 GB/s a TCP stream, 85 times less than most; ")
    cells, mark = view._repr_mimebundle_()[PLOTLY]["data"]
    assert cells["text"][0][:2] == ["", "0.024"] and cells["text"][1][0] == "2" and cells["texttemplate"]
    assert min(x for x in mark["x"] if x is not None) > 0.5 and max(y for y in mark["y"] if y is not None) < 0.5
    assert "0.0235 GB/s, 85 times slower than most" in Page(view.static()).words


def test_names_lose_what_all_have_in_common() -> None:
    names = [f"a-very-long-host-name-{i}.cluster.example" for i in (1, 2)]
    axis = nk.show.connect(network(names))._repr_mimebundle_()[PLOTLY]["layout"]["yaxis"]
    assert axis["ticktext"] == ["a-very-lo…ost-name-1", "a-very-lo…ost-name-2"]
    plain = nk.show.connect(network(["10.0.0.1", "10.0.0.2"]))._repr_mimebundle_()[PLOTLY]["layout"]["yaxis"]
    assert plain["ticktext"] == ["10.0.0.1", "10.0.0.2"]


def test_a_clock_that_is_off_and_a_host_that_could_not_be_asked() -> None:
    case = network(["a", "b"])
    told = {event.kind: fields_of(event) for event in case.events[1:]}
    case.events[-1] = replace(case.events[-1], data=told["connect.pair"] | {"offset": -0.5})  # b → a, as seen from b
    assert "500 ms ahead, ± 10.0 µs" in Page(nk.show.connect(case).static()).words
    lost = told["connect.host"] | {"problem": "it ended: Permission denied"}
    case.events[1] = replace(case.events[1], data=lost)
    view = nk.show.connect(case)
    assert view.summary == "b is unreachable: it ended: Permission denied" and "Permission denied" in view.static()


def test_64_hosts_are_a_short_page() -> None:
    view = nk.show.connect(network([f"node-{i:02}" for i in range(64)], rendezvous="refused"))
    assert view.summary.startswith("1 of 4032 paths are not sound; node-00 → node-01: port 29500")
    assert len(view.static()) < 60_000


def test_names_of_hosts_are_escaped() -> None:
    case = network([HOSTILE, f"{HOSTILE}2"], rendezvous=HOSTILE, interface=HOSTILE, why={HOSTILE: HOSTILE})
    more: tuple[dict[str, Any], ...] = ({"problem": HOSTILE}, {"gloo": HOSTILE, "own": [HOSTILE], "interface": HOSTILE})
    case.events[:2] = [replace(e, data={**fields_of(e), **add}) for e, add in zip(case.events, more, strict=False)]
    page = Page(nk.show.connect(case).static())
    assert "script" not in page.tags and "img" not in page.tags
    assert page.words.count("<script>alert(1)</script>") > 8


def test_without_a_test_it_says_how_to_make_one() -> None:
    view = nk.show.connect(Case())
    assert view.summary.startswith("No connection was tested") and "ncclkit connect HOST" in Page(view.static()).words
