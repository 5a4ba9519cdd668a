"""The grammar of what lies below: CUDA, libc, shells, DataLoader.  The kernel's own log is `kernel`."""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule, whole


SIZE = r"(\d{1,9}(?:\.\d{1,9})? ?[KMGT]i?B)"


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
        r"(?P<message>\S{1,300}\.cu:\d+: .{0,600}?Assertion `.*` failed.*)",
        error="device-side assert triggered",
    ),
    # node-1: Test CUDA failure common.cu:941 'system not yet initialized'
    rule("cuda.error", "Test CUDA failure", r"(?P<message>Test CUDA failure \S+ '(?P<error>[^']*)')"),
    # RuntimeError: No CUDA GPUs are available     invalid device ordinal     Cannot re-initialize CUDA in forked
    # subprocess
    *(
        rule("cuda.error", text, rf"(?P<message>(?P<error>{text}).*)")
        for text in ("No CUDA GPUs are available", "Cannot re-initialize CUDA in forked subprocess")
    ),
    # The NVIDIA driver on your system is too old (found version 11040).      no kernel image is available for
    # execution on the device
    # CUDA driver version is insufficient for CUDA runtime version     Failed to initialize NVML: driver/library version
    # mismatch          the provided PTX was compiled with an unsupported toolchain.
    *(
        rule("cuda.driver", text, rf"^(?P<message>.*{text}.*)")
        for text in (
            "driver on your system is too old",
            "CUDA driver version is insufficient",
            "driver/library version mismatch",
            "no kernel image is available",
            "unsupported toolchain",
        )
    ),
    # Card with CUDA capability sm_120 is not compatible with the current PyTorch installation.
    rule(
        "cuda.driver",
        "not compatible with the current PyTorch",
        r"^(?P<message>.*CUDA capability .*not compatible with the current PyTorch.*)",
    ),
    # OSError: [Errno 24] Too many open files
    text("too_many_files", "oo many open files", "oo many open files"),
    # OSError: [Errno 28] No space left on device
    text("no_space", "No space left on device", "No space left on device"),
    # OSError: [Errno 122] Disk quota exceeded
    text("disk_quota", "quota exceeded", "[Dd]isk quota exceeded"),
    # ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).
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
    # RuntimeError: [enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory: you tried to
    # MemoryError: Unable to allocate 93.1 GiB for an array       OSError: [Errno 12] Cannot allocate memory
    text("host_memory", "Unable to allocate ", r"Unable to allocate [\d.]+ [KMGT]i?B"),
    text("host_memory", "Cannot allocate memory", r"Errno 12\] Cannot allocate memory"),
    text("host_memory", "DefaultCPUAllocator", r"DefaultCPUAllocator: can't allocate memory"),
    # RuntimeError: can't start new thread      BlockingIOError: [Errno 11] Resource temporarily unavailable
    text("too_many_processes", "can't start new thread", "rror: can't start new thread"),
    text("too_many_processes", "Resource temporarily unavailable", r"Errno 11\] Resource temporarily unavailable"),
)
