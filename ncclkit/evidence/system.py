"""The grammar of what lies below: kernel log, CUDA, libc, DataLoader."""

from __future__ import annotations

import re

from ncclkit.evidence.grammar import Data, Line, Rule, rule, whole

GATE = (
    b"rror",
    b"ut of memory",
    b"Xid (",
    b"oom-kill",
    b"illed",
    b"egmentation",
    b"mlx5_core",
    b"NIC Link",
    b"DMAR",
    b"IO_PAGE_FAULT",
    b"oo many open",
    b"space left on",
    b"DataLoader ",
    b"not compatible with",
    b"fail",
    b"onnection",
)

SIZE = r"(\d+(?:\.\d+)? ?[KMGT]i?B)"


def _tried(match: re.Match[str], data: Data, line: Line) -> Data:
    text = " ".join([line.text, *(later.body for later in line.own(1))])

    def pick(pattern: str) -> str | None:
        found = re.search(pattern, text)
        return found[1] if found else None

    gpu = pick(r"GPU (\d+)\b")
    return {
        "gpu": whole(gpu),
        "tried": pick(rf"Tried to allocate {SIZE}"),
        "total": pick(rf"total capacity of {SIZE}") or pick(rf"{SIZE} total capacity"),
        "free": pick(rf"of which {SIZE} is free") or pick(rf"{SIZE} free"),
    }


def _state(match: re.Match[str], data: Data, line: Line) -> Data:
    return {"device": match["device"], "state": "down" if match["state"].lower().startswith("down") else "up"}


def _workers(match: re.Match[str], data: Data, line: Line) -> Data:
    numbers = re.findall(r"(?:create|is) (\d+)", match["message"])
    return data | {
        "workers": whole(numbers[0]) if numbers else None,
        "suggested": whole(numbers[1]) if len(numbers) > 1 else None,
    }


def text(what: str, anchor: str, pattern: str) -> Rule:
    """A `system.error` that a plain text of libc, Python or a shell stands for."""
    return rule("system.error", anchor, rf"^(?P<message>.*{pattern}.*)", what=what)


RULES: tuple[Rule, ...] = (
    # torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB
    # of which 1.06 GiB is free.
    # CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.65 GiB total capacity; 22.1 GiB already allocated;
    # 10.62 MiB free; …)
    rule("cuda.oom", "CUDA out of memory", r"CUDA out of memory", make=_tried),
    # RuntimeError: CUDA error: device-side assert triggered      CUDA error: an illegal memory access was encountered
    rule("cuda.error", "CUDA error:", r"(?P<message>CUDA error: (?P<error>.*?))(?:\s*$|\s+CUDA kernel errors)"),
    # ../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [3,0,0], thread: [0,0,0] Assertion
    # `srcIndex < srcSelectDimSize` failed.
    rule(
        "cuda.error",
        "Assertion `",
        r"(?P<message>\S+\.cu:\d+: .*Assertion `.*` failed.*)",
        error="device-side assert triggered",
    ),
    # node-1: Test CUDA failure common.cu:941 'system not yet initialized'
    rule("cuda.error", "Test CUDA failure", r"(?P<message>Test CUDA failure \S+ '(?P<error>[^']*)')"),
    # RuntimeError: No CUDA GPUs are available     invalid device ordinal     Cannot re-initialize CUDA in forked
    # subprocess
    rule(
        "cuda.error",
        "CUDA",
        r"(?P<message>(?P<error>No CUDA GPUs are available|Cannot re-initialize CUDA in forked subprocess).*)",
    ),
    # The NVIDIA driver on your system is too old (found version 11040).      no kernel image is available for
    # execution on the device
    rule(
        "cuda.driver",
        "driver",
        r"^(?P<message>.*(?:driver on your system is too old|CUDA driver version is insufficient"
        r"|driver/library version mismatch).*)",
    ),
    rule("cuda.driver", "no kernel image", r"^(?P<message>.*no kernel image is available.*)"),
    rule(
        "cuda.driver",
        "not compatible with",
        r"^(?P<message>.*CUDA capability .*not compatible with the current PyTorch.*)",
    ),
    rule("cuda.driver", "toolchain", r"^(?P<message>.*unsupported toolchain.*)"),
    # NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, name=python, GPU has fallen off the bus.      Xid (PCI:...): 145,
    # RLW_RXPIPE …
    rule(
        "kernel.xid",
        "Xid",
        r"Xid \((?P<bus>[^)]*)\): (?P<xid>\d+),? ?(?P<message>.*)",
        ints="xid",
        make=lambda match, data, line: data | {"bus": str(data["bus"]).removeprefix("PCI:")},
    ),
    # Out of memory: Killed process 4711 (python) total-vm:…      Memory cgroup out of memory: Killed process 4711
    # (python)
    rule(
        "kernel.oom",
        "Killed process",
        r"(?P<memcg>Memory cgroup )?[Oo]ut of memory:? .*?Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)",
        ints="pid",
        make=lambda match, data, line: data | {"memcg": bool(match["memcg"]), "_pid": data["pid"]},
    ),
    # oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=…,task=python,pid=4711,uid=0
    rule(
        "kernel.oom",
        "oom-kill:",
        r"oom-kill:constraint=(?P<memcg>\w+).*?task=(?P<name>[^,]+),pid=(?P<pid>\d+)",
        ints="pid",
        make=lambda match, data, line: data | {"memcg": "MEMCG" in str(data["memcg"]), "_pid": data["pid"]},
    ),
    # python[4711]: segfault at 10 ip 00007f… sp 00007f… error 4 in libnccl.so.2.28.9[7f…+1000]
    rule(
        "kernel.segfault",
        "segfault at",
        r"(?P<name>[^\s\[\]]{1,64})\[(?P<pid>\d+)\]: segfault at .*?(?: in (?P<library>[^\[\s]+))?(?:\[|$)",
        ints="pid",
        make=lambda match, data, line: data | {"_pid": data["pid"]},
    ),
    # mlx5_core 0000:17:00.0 ens1f0np0: Link down
    rule("kernel.link", "mlx5_", r"mlx5_core \S+ (?P<device>[^\s:]+): Link (?P<state>\w+)", make=_state),
    rule("kernel.link", "NIC Link", r"(?P<device>[\w.]+): (?:\S+ )?NIC Link is (?P<state>\w+)", make=_state),
    # DMAR: [DMA Read] Request device [17:00.0] fault addr …      AMD-Vi: Event logged [IO_PAGE_FAULT device=… ]
    rule("kernel.iommu", "DMAR", r"(?P<message>DMAR: \[DMA \w+\].*)"),
    rule("kernel.iommu", "IO_PAGE_FAULT", r"^(?P<message>.*IO_PAGE_FAULT.*)"),
    # OSError: [Errno 24] Too many open files
    text("too_many_files", "oo many open files", "oo many open files"),
    # OSError: [Errno 28] No space left on device
    text("no_space", "No space left on device", "No space left on device"),
    text("disk_quota", "quota exceeded", "[Dd]isk quota exceeded"),
    # DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's workers are out of
    # shared memory.
    text("bus_error", "Bus error", r"\bBus error"),
    text("bus_error", "insufficient shared memory", "insufficient shared memory"),
    # DataLoader worker (pid(s) 4711) exited unexpectedly       DataLoader worker (pid 4711) is killed by signal:
    # Killed.
    text(
        "dataloader_killed",
        "DataLoader worker",
        r"DataLoader worker \(pid(?:\(s\))? .*(?:exited unexpectedly|is killed by signal)",
    ),
    # UserWarning: This DataLoader will create 8 worker processes in total. Our suggested max number of worker in
    # current system is 4
    rule(
        "system.error",
        "DataLoader will create",
        r"(?P<message>This DataLoader will create .*)",
        what="dataloader_workers",
        make=_workers,
    ),
    # OSError: [Errno 98] Address already in use
    text("address_in_use", "ddress already in use", r"(?:Errno 98|EADDRINUSE|errno: 98).*"),
    # Segmentation fault (core dumped)       Fatal Python error: Segmentation fault
    text("segfault", "egmentation fault", "egmentation fault"),
    # run.sh: line 3: 4711 Killed                  python train.py       a line that is only "Killed"
    text("killed", "Killed", r"(?:^|line \d+:\s+\d+ )Killed\b"),
    # MemoryError: Unable to allocate 93.1 GiB for an array       OSError: [Errno 12] Cannot allocate memory
    text(
        "host_memory",
        "allocate",
        r"(?:Unable to allocate [\d.]+ [KMGT]i?B|Errno 12\] Cannot allocate memory"
        r"|DefaultCPUAllocator: can't allocate memory)",
    ),
    # RuntimeError: can't start new thread      BlockingIOError: [Errno 11] Resource temporarily unavailable
    text("too_many_processes", "rror: ", r"(?:can't start new thread|Errno 11\] Resource temporarily unavailable)"),
)
