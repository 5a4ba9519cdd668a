"""A script: what may hang is asked here, in a process of its own.

Its verbs are disk, loopback, locks, mapped, nccl, resolve and torch.  It prints one JSON value and
imports nothing of the agent, since `Machine.child` runs its source.
"""

# ruff: noqa: E402 - the working folder leaves the path before anything is imported from it

from __future__ import annotations

import sys

# a torch.py in the working folder is not torch
sys.path[:] = [entry for entry in sys.path if entry]

import ctypes
import glob
import json
import os
import socket
import tempfile
import threading
import time
from typing import Callable

MOST = 20
"""Lock files of torch's extensions that are listed."""
BLOCK = 1 << 20
"""Bytes that go through loopback at once."""


def latencies(folder: str, repeats: int) -> list[float]:
    """Milliseconds of open + write 4 KiB + fsync + close, sorted."""
    times = []
    handle, name = tempfile.mkstemp(prefix=".ncclkit-", dir=folder)
    os.close(handle)
    try:
        for _ in range(repeats):
            start = time.perf_counter()
            with open(name, "wb") as file:
                file.write(b"ncclkit\n" * 512)
                file.flush()
                os.fsync(file.fileno())
            times.append((time.perf_counter() - start) * 1e3)
    finally:
        os.unlink(name)
    return sorted(times)


def disk(folder: str) -> None:
    """Print a folder's free space and the latency of a write, or the error.

    The folder is resolved, its space in bytes, the latency in ms.
    """
    folder = os.path.realpath(folder)
    said: dict[str, object] = {"path": folder}
    try:
        space = os.statvfs(folder)
        said["free"] = space.f_bavail * space.f_frsize
        times = latencies(folder, 5)
        said["latency"] = times[len(times) // 2]
    except OSError as error:
        said["error"] = "%s: %s" % (folder, error.strerror)
    print(json.dumps(said))


def sender(to: socket.socket, stop: float) -> None:
    """Send until `stop` (perf_counter seconds)."""
    data = memoryview(bytes(BLOCK))
    while time.perf_counter() < stop:
        to.sendall(data)
    to.shutdown(socket.SHUT_WR)


def waited() -> float:
    """Seconds that the main thread has waited for a core so far.

    It is 0 where the kernel does not tell.
    """
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def pump(seconds: float) -> tuple[float, float, float]:
    """GB/s of one stream, and what it costs in CPU time.

    The costs are the CPU seconds that one GB takes of sender and receiver, and the share of the
    time without a core.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname(), timeout=5)
        there, _ = server.accept()
    buffer = bytearray(BLOCK)
    total = 0
    with here, there:
        start = time.perf_counter()
        cpu = time.process_time()
        queued = waited()
        thread = threading.Thread(target=sender, args=(here, start + seconds), daemon=True)
        thread.start()
        while True:
            got = there.recv_into(buffer)
            if not got:
                break
            total += got
        took = time.perf_counter() - start
        used = time.process_time() - cpu
        lost = waited() - queued
        thread.join(1)
    return total / took / 1e9, used / total * 1e9, lost / took


def loopback(seconds: str) -> None:
    """Print GB/s and CPU seconds a GB of TCP through 127.0.0.1, and what disturbed it.

    It is the best of three windows: other programs on the machine only ever make it slower.  How
    far the windows lie apart says how sure it is; where even in the best of them it waited for a
    core, the host is busy.
    """
    rates, costs, lost = zip(*(pump(float(seconds) / 3) for _ in range(3)))
    said = {
        "GB/s": max(rates),
        "CPU s/GB": min(costs),
        "interval": [min(rates), max(rates)],
        "waited": min(lost),
    }
    print(json.dumps(said))


def nccl(library: str) -> None:
    """Print the number that ncclGetVersion of the library at this path gives."""
    number = ctypes.c_int()
    if ctypes.CDLL(library).ncclGetVersion(ctypes.byref(number)):
        sys.exit("ncclGetVersion failed")
    print(number.value)


def resolve(name: str) -> None:
    """Print each address of a host name once, in gloo's order."""
    try:
        found = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
    except OSError as error:
        sys.exit("%s does not resolve: %s" % (name, error.strerror or error))
    addresses = []
    for entry in found:
        if entry[4][0] not in addresses:
            addresses.append(entry[4][0])
    print(json.dumps(addresses))


def mapped(name: str) -> list[str]:
    """The paths of the libraries of that name that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        lines = [line.split(None, 5) for line in maps]
    paths = [line[5].strip() for line in lines if len(line) == 6]
    return sorted({path for path in paths if name in path.rsplit("/", 1)[-1]})


def torch() -> None:
    """Print what the training interpreter's torch says about itself; makes no CUDA context."""
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:
        sys.exit("import torch failed: %s: %s" % (type(error).__name__, error))
    said = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "libraries": mapped("libnccl.so"),
    }
    names = ("gloo", "nccl", "mpi", "ucc", "xccl")
    available = dist.is_available()
    said["backends"] = [
        name for name in names if available and getattr(dist, "is_%s_available" % name, bool)()
    ]
    said["gpus"] = torch.cuda.device_count()  # through NVML, without a CUDA context
    if torch.backends.cudnn.is_available():
        said["cudnn"] = torch.backends.cudnn.version()
    else:
        said["cudnn"] = None
    if "nccl" in said["backends"]:
        said["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    said["locks"] = locks(os.environ.get("TORCH_EXTENSIONS_DIR"))
    print(json.dumps(said))


def locks(root):
    """The lock files of torch's C++ extensions, each with its age in seconds.

    They are those of `root`, else of the user's cache, laid out as `torch.utils.cpp_extension`
    does: <root>/<name>/lock, <cache>/torch_extensions/<python and CUDA>/<name>.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    places = (root, "*") if root else (cache, "torch_extensions", "*", "*")
    found = []
    for path in sorted(glob.glob(os.path.join(*places, "lock")))[:MOST]:
        try:
            found.append(
                {"path": path, "age": round(max(0.0, time.time() - os.stat(path).st_mtime))}
            )
        except OSError:
            continue  # released while we looked
    return found


if __name__ == "__main__":
    verbs: dict[str, Callable[..., None]] = {
        "disk": disk,
        "loopback": loopback,
        "nccl": nccl,
        "resolve": resolve,
        "torch": torch,
    }
    verbs[sys.argv[1]](*sys.argv[2:])
