"""ACS is read out of PCI configuration space."""

import struct

import pytest

from ncclkit.agent.facts import host
from ncclkit.agent.facts.machine import Unread


def config(*capabilities, size=4096):
    """A configuration space with extended capabilities (id, control, offset of the next)."""
    space, at = bytearray(size), 0x100
    for identifier, control, following in capabilities:
        struct.pack_into("<IHH", space, at, identifier | 1 << 16 | following << 20, 0xFF, control)
        at = following
    return bytes(space)


AER, ACS = 0x0001, 0x000D


@pytest.mark.parametrize(
    "space, redirects",
    [
        (config((ACS, 0x1D, 0)), True),  # SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+, as an IOMMU has it
        (config((AER, 0xFFFF, 0x148), (ACS, 0x04, 0)), True),
        (config((AER, 0xFFFF, 0x148), (ACS, 0x01, 0)), False),  # checks the sender only
        (config((AER, 0xFFFF, 0)), False),
        (config(), False),
        (config((AER, 0, 0x100)), False),  # a list that goes round
        (config((AER, 0, 0xFFC)), False),  # a list that leaves the space
        (bytes(256), False),  # conventional PCI has no extended capabilities
    ],
)
def test_control_register(space, redirects):
    assert host.redirects(space) == redirects


def test_without_root_it_cannot_be_read():
    with pytest.raises(Unread, match="root only"):
        host.redirects(bytes(64))


def test_only_bridges_are_looked_at(tmp_path):
    for name, kind in (("0000:00:01.0", "0x060400"), ("0000:00:02.0", "0x060400"), ("0000:01:00.0", "0x030200")):
        folder = tmp_path / host.FOLDER / name
        folder.mkdir(parents=True)
        (folder / "class").write_text(kind + "\n")
        (folder / "config").write_bytes(config((ACS, 0x0C if name != "0000:00:02.0" else 0, 0)))
    assert host.bridges(str(tmp_path)) == ["0000:00:01.0"]
