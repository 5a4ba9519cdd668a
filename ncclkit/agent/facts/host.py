"""The host: name, system, kernel, C library, container."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator

from .machine import Fact, Machine, Unread, attempt

CONTAINER_VARIABLES = {
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "apptainer",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "ENROOT_ROOTFS": "enroot",
}

ACS = "/sys/bus/pci/devices/*/config"
IMAGE_VARIABLES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "ENROOT_ROOTFS")
"""Variables that hold the path of the image; Docker and Kubernetes tell a container nothing of the
kind."""


def host_facts(machine: Machine) -> Iterator[Fact]:
    """All ``host.`` facts."""
    hostname, release = "/proc/sys/kernel/hostname", "/proc/sys/kernel/osrelease"
    yield attempt("host.name", lambda: machine.read(hostname).strip(), source=hostname)
    yield attempt("host.os", lambda: _os(machine), source="/etc/os-release")
    yield attempt("host.kernel", lambda: machine.read(release).strip(), source=release)
    yield attempt(
        "host.glibc", lambda: machine.call("glibc", _glibc), source="confstr CS_GNU_LIBC_VERSION"
    )
    yield attempt(
        "host.container",
        lambda: container(machine),
        source="/.dockerenv, /run, /proc/1/cgroup, environment",
    )
    yield attempt("host.image", lambda: _image(machine), source="environment, /run/.containerenv")
    yield attempt("host.acs", lambda: _acs(machine), source=ACS)
    yield attempt(
        "host.iommu", lambda: bool(machine.names("/sys/class/iommu")), source="/sys/class/iommu"
    )


def _os(machine: Machine) -> str:
    return machine.field("/etc/os-release", r'^PRETTY_NAME="?([^"\n]+)', "PRETTY_NAME")


def _glibc() -> str:
    try:
        said = os.confstr("CS_GNU_LIBC_VERSION")
    except ValueError:
        said = None
    if not said:
        raise Unread("the C library is not glibc")
    return said.split()[-1]


def _image(machine: Machine) -> str:
    """The container image, where something inside the container names it.

    Images of NVIDIA name themselves.
    """
    for name in IMAGE_VARIABLES:
        if machine.environ.get(name):
            return machine.environ[name]
    release = machine.environ.get("NVIDIA_PYTORCH_VERSION")
    if release:
        return "nvcr.io/nvidia/pytorch:%s or made from it" % release
    try:
        return machine.field("/run/.containerenv", r'^image="?([^"\n]+)', "image")
    except Unread:
        raise Unread(
            "this container was not told its image" if container(machine) else "not in a container"
        ) from None


def _acs(machine: Machine) -> list[str]:
    found: list[str] = machine.call(ACS, lambda: bridges(machine.root))
    return found


def container(machine: Machine) -> str | bool:
    """Which kind of container this process runs in, or False."""
    for name, kind in CONTAINER_VARIABLES.items():
        if machine.environ.get(name):
            return kind
    booted = _is_booted(machine)
    for file, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        try:
            machine.read(file)
        except Unread:
            continue  # not this kind
        # an image that a virtual machine boots (Firecracker) brings the marker of its maker
        if not booted:
            return kind
    try:
        groups = machine.read("/proc/1/cgroup")
    except Unread:
        return False
    match = re.search(r"kubepods|docker|containerd|libpod|lxc|garden", groups)
    if match:
        return {"kubepods": "kubernetes", "libpod": "podman"}.get(match.group(), match.group())
    return False


def _is_booted(machine: Machine) -> bool:
    """Whether the kernel itself mounted a disk as the root that this process sees.

    That is the case on a host and in a virtual machine.  A container has mounts of its own, whose
    root hangs below another one, or is a layered file system.
    """
    try:
        mounts = machine.read("/proc/self/mountinfo", 1 << 20).splitlines()
    except Unread:
        return False
    for mount in mounts:
        left, _, right = mount.partition(" - ")
        fields, source = left.split()[:5], right.split()[1:2]
        if fields[3:] == ["/", "/"] and source and source[0].startswith("/dev/"):
            return fields[1] == "1"
    return False


FOLDER = "sys/bus/pci/devices"
BRIDGE = "0x0604"
ACS_CAPABILITY = 0x000D
REDIRECT = 0x0C
"""Bits of the ACS control register: P2P Request Redirect and P2P Completion Redirect (PCIe 5.0,
7.7.8.3)."""


def bridges(root: str) -> list[str]:
    """The addresses of all PCI bridges below `root` on which ACS redirects.

    Raises Unread or OSError.
    """
    folder = os.path.join(root, FOLDER)
    found = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name, "class"), encoding="ascii") as file:
            if not file.read().startswith(BRIDGE):
                continue
        with open(os.path.join(folder, name, "config"), "rb") as file:
            if redirects(file.read(4096)):
                found.append(name)
    return found


def redirects(config: bytes) -> bool:
    """Whether the 4 KiB of a bridge's configuration space switch redirection on; raises Unread."""
    if len(config) <= 64:
        raise Unread(
            "the kernel shows a bridge's ACS register to root only: run as root, or ask for lspci"
            " -vvv"
        )
    offset = 0x100
    while 0x100 <= offset <= len(config) - 8:
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == ACS_CAPABILITY:
            return bool(struct.unpack_from("<H", config, offset + 6)[0] & REDIRECT)
        following = header >> 20
        # a broken list must not go round for ever
        if following > offset:
            offset = following
        else:
            offset = 0
    return False
