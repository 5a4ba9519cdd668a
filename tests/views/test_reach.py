"""The form of the connection test: real peers on this host, what it refuses, and Cancel, which leaves none behind."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from ncclkit.agent.run import processes
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.views.connect import ConnectForm

pytestmark = pytest.mark.slow
HERE = "env PEER={host}"
"""A prefix that starts the peers of all hosts here."""


@pytest.fixture(autouse=True)
def no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def test_the_named_hosts_are_tested_and_what_is_found_stays(tmp_path: Path) -> None:
    case = Case.open(tmp_path / "case")
    form = ConnectForm(case, "127.0.0.1, 127.0.0.2", HERE)
    view = asyncio.run(form.run())
    assert "127.0.0.1 → 127.0.0.2" in view.summary  # both are this host, and the test says so
    assert "127.0.0.1 → 127.0.0.2" in form.result.value and not form.start.disabled and form.cancel.disabled
    assert len(case.of("connect.host")) == len(case.of("connect.pair")) == 2


def test_nothing_named_is_nothing_done(tmp_path: Path) -> None:
    form = ConnectForm(Case.open(tmp_path))
    assert asyncio.run(form.run()).summary.startswith("No connection was tested") and not (tmp_path / "runs").exists()
    form.begin()
    assert "Say which hosts" in form.notice.value


@pytest.mark.parametrize(
    ("hosts", "via", "sentence"),
    [
        ("one", "", "2 to 64 hosts, but 1"),
        ("a -oProxyCommand=x", "ssh", "not a host name"),
        ("a b", "kubectl", "neither ssh"),
    ],
)
def test_what_cannot_be_tested_is_one_sentence(hosts: str, via: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(NcclkitError, match=sentence):
        asyncio.run(ConnectForm(Case.open(tmp_path), hosts, via).run())


def test_a_button_that_can_do_nothing_is_disabled_with_the_reason(tmp_path: Path) -> None:
    form = ConnectForm(Case.open(tmp_path))
    assert form.start.disabled and "Say which hosts" in form.notice.value and "Say which hosts" in form.start.tooltip
    form.hosts.value = "a b"
    assert not form.start.disabled and form.notice.value == "" and form.start.tooltip is None
    for field, value, words in (
        (form.hosts, "a", "One host has no path"),
        (form.hosts, "a -x", "not a host name"),
        (form.remote_command, "kubectl exec", "neither ssh"),
    ):
        before, field.value = field.value, value
        assert form.start.disabled and words in form.notice.value and "nk-wrong" in field._dom_classes
        field.value = before
        assert not form.start.disabled and "nk-wrong" not in field._dom_classes


def test_a_host_that_cannot_be_reached_is_marked_at_the_field_until_that_is_changed(tmp_path: Path) -> None:
    form = ConnectForm(Case.open(tmp_path), "a b", "sh -c 'echo Could not resolve hostname {host} >&2; exit 255'")
    asyncio.run(form.run())
    assert "nk-wrong" in form.hosts._dom_classes and "a is unreachable" in form.notice.value
    assert "Could not resolve hostname a" in form.hosts.tooltip and not form.start.disabled
    form.hosts.value = "a c"
    assert "nk-wrong" not in form.hosts._dom_classes and form.notice.value == ""


@pytest.mark.parametrize("pressed", [True, False], ids=["Cancel", "Interrupt"])
def test_cancel_leaves_no_peer_behind(tmp_path: Path, pressed: bool) -> None:
    mark = f"300.{random.randrange(10**9)}"
    form = ConnectForm(Case.open(tmp_path), "a b", f"sh -c 'exec sleep {mark}' {{host}}")

    def peers() -> list[int]:
        return [pid for pid in processes.parents() if f"sleep\0{mark}" in processes.read_text(f"/proc/{pid}/cmdline")]

    async def scenario() -> None:
        cell = asyncio.ensure_future(form.run())
        while len(peers()) < 2:
            await asyncio.sleep(0.01)
        form.stop() if pressed else cell.cancel()
        with pytest.raises(NcclkitError if pressed else asyncio.CancelledError):
            await cell

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert peers() == [] and "Cancelled" in form.result.value
