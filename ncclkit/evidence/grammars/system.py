"""The grammar of what lies below: CUDA, libc, shells, DataLoader.

The kernel's own log is `kernel`; their texts in other languages are `refusals`.
"""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, parse_int, rule

SIZE = r"(\d{1,9}(?:\.\d{1,9})? ?[KMGT]i?B)"


def _tried(match: re.Match[str], data: Data, line: Line) -> Data:
    text = " ".join([line.text, *(later.body for later in line.own(1))])

    def pick(pattern: str) -> str | None:
        found = re.search(pattern, text)
        if found:
            return found[1]
        return None

    gpu = pick(r"GPU (\d+)\b")
    return {
        "gpu": parse_int(gpu),
        "tried": pick(rf"Tried to allocate {SIZE}"),
        "total": pick(rf"total capacity of {SIZE}") or pick(rf"{SIZE} total capacity"),
        "free": pick(rf"of which {SIZE} is free") or pick(rf"{SIZE} free"),
    }


def _workers(match: re.Match[str], data: Data, line: Line) -> Data:
    numbers = re.findall(r"(?:create|is) (\d+)", match["message"])
    return data | {
        "workers": parse_int(numbers[0]) if numbers else None,
        "suggested": parse_int(numbers[1]) if len(numbers) > 1 else None,
    }


def _low(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """A limit, which stands in the next line, in KiB, or is none."""
    said = next(line.own(1), None)
    size = None
    if said:
        size = parse_int(said.body.strip())
    if size is not None and size < 1 << 20:
        return data | {"message": f"{line.body.strip()}: {size}"}
    return None


def _loops(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """An address of loopback beside a name that is not localhost's.

    It stands in what the next lines show.
    """
    for said in line.own(12):
        found = re.match(r"127\.\S+\s+(?!localhost|ip6-|\d)([\w.-]+)", said.body.strip())
        if found:
            return {
                "what": "own_name",
                "message": said.body.strip(),
                "_host": found[1],
                "_line": said,
            }
    return None


def plain_rule(what: str, anchor: str, pattern: str) -> Rule:
    """A `system.error` that a plain text of libc, Python or a shell stands for."""
    return rule("system.error", anchor, rf"^(?P<message>.*{pattern}.*)", what=what)


RULES: tuple[Rule, ...] = (
    # torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total \
    #   capacity of 79.15 GiB of which 1.06 GiB is free.
    # CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.65 GiB total capacity; 22.1 GiB \
    #   already allocated; 10.62 MiB free; …)
    rule("cuda.oom", "CUDA out of memory", r"CUDA out of memory", make=_tried),
    # torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has …
    rule("cuda.oom", "HIP out of memory", r"HIP out of memory", make=_tried),
    # RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/…cu:58
    rule("cuda.oom", "cuda runtime error (", r"cuda runtime error \(2\) : out of memory"),
    # RuntimeError: cuda runtime error (59) : device-side assert triggered at /pytorch/aten/…cu:26
    rule(
        "cuda.error",
        "cuda runtime error (",
        r"(?P<message>cuda runtime error \((?!2\))\d{1,4}\) : (?P<error>.{1,200}?))"
        r"(?: at /|\s{0,80}$)",
    ),
    # THCudaCheck FAIL file=/pytorch/THC/THCGeneral.cpp line=50 error=10 : invalid device ordinal
    rule(
        "cuda.error",
        "THCudaCheck FAIL",
        r"(?P<message>THCudaCheck FAIL file=\S{1,300} line=\d{1,7} error=(?!2 )\d{1,4} :"
        r" (?P<error>.{1,200}?))\s{0,80}$",
    ),
    # RuntimeError: HIP error: invalid device ordinal
    rule(
        "cuda.error",
        "HIP error:",
        r"(?P<message>HIP error: (?P<error>.*?))(?:\s{0,80}$|\s{1,80}HIP kernel errors)",
    ),
    # RuntimeError: CUDA error: device-side assert triggered
    # CUDA error: an illegal memory access was encountered
    # not, of the Flight Recorder that asks after a call that is still being made:
    # Failed to update state for entry 99: nccl:all_reduce with error: CUDA error: invalid argument
    rule(
        "cuda.error",
        "CUDA error:",
        r"(?P<message>(?!(?<=with error: )CUDA error: invalid arg)CUDA error: (?P<error>.*?))"
        r"(?:\s{0,80}$|\s{1,80}CUDA kernel errors)",
    ),
    # UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run \
    #   some cuda functions …? Error 802: system not yet initialized (Triggered internally at \
    #   ../c10/cuda/CUDAFunctions.cpp:109.)
    rule(
        "cuda.error",
        "from cudaGetDeviceCount()",
        r"(?P<message>from cudaGetDeviceCount\(\).{0,600}?Error \d{1,9}: (?P<error>[^(]{0,300}[^("
        r" ]).*)",
    ),
    # failed call to cuInit: CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized
    rule("cuda.error", "CUDA_ERROR_", r"(?P<message>(?P<error>\bCUDA_ERROR_[A-Z_]{3,60}).*)"),
    # CUDA initialization failure with error: 802
    rule(
        "cuda.error",
        "CUDA initialization failure",
        r"(?P<message>CUDA initialization failure with (?P<error>.*))",
    ),
    # Unable to determine the device handle for GPU0000:4F:00.0: Unknown Error (nvidia-smi)
    # NVRM: RmInitAdapter failed! (0x62:0x40:2477)
    # NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.
    rule(
        "cuda.error",
        "the device handle for",
        r"(?P<message>Unable to determine (?P<error>the device handle for .*))",
    ),
    rule(
        "cuda.error",
        "fallen off the bus",
        r"NVRM: (?P<message>(?!Xid).{0,300}(?P<error>fallen off the bus).*)",
    ),
    rule("cuda.error", "RmInitAdapter failed", r"(?P<message>(?P<error>RmInitAdapter failed).*)"),
    # ../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [3,0,0], \
    #   thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
    rule(
        "cuda.error",
        "Assertion `",
        r"(?P<message>\S{1,300}\.cu:\d+: .{0,600}?Assertion `.{0,600}` failed.*)",
        error="device-side assert triggered",
    ),
    # node-1: Test CUDA failure common.cu:941 'system not yet initialized'
    rule(
        "cuda.error", "Test CUDA failure", r"(?P<message>Test CUDA failure \S+ '(?P<error>[^']*)')"
    ),
    # Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:364 'invalid argument'  (vLLM, \
    #   sglang)
    rule(
        "cuda.error",
        "Cuda error ",
        r"(?P<message>Cuda error \S{1,300}\.cuh?:\d+ '(?P<error>[^']*)')",
    ),
    # Check failed: e == cudaSuccess (217 vs. 0): cudaErrorPeerAccessUnsupported
    rule(
        "cuda.error",
        "PeerAccessUnsupported",
        r"^(?P<message>.{0,300}?(?P<error>cudaErrorPeerAccessUnsupported).*)",
    ),
    # CUDA error 60 at p2p.cu:120: cudaErrorTooManyPeers: peer mapping resources exhausted
    rule(
        "cuda.error",
        "peer mapping resources",
        r"^(?P<message>.*(?P<error>peer mapping resources exhausted).*)",
    ),
    # RuntimeError: No CUDA GPUs are available     invalid device ordinal
    # Cannot re-initialize CUDA in forked subprocess
    *(
        rule("cuda.error", text, rf"(?P<message>(?P<error>{text}).*)")
        for text in ("No CUDA GPUs are available", "Cannot re-initialize CUDA in forked subprocess")
    ),
    # The NVIDIA driver on your system is too old (found version 11040).
    # no kernel image is available for execution on the device
    # CUDA driver version is insufficient for CUDA runtime version
    # Failed to initialize NVML: Driver/library version mismatch
    # the provided PTX was compiled with an unsupported toolchain.
    # Error 803: system has unsupported display driver / cuda driver combination
    # Error 804: forward compatibility was attempted on non supported HW
    # NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.
    # nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6, please update \
    #   your driver …
    *(
        rule("cuda.driver", text, rf"^(?P<message>.*{text}.*)")
        for text in (
            "driver on your system is too old",
            "CUDA driver version is insufficient",
            "river/library version mismatch",
            "unsupported display driver",
            "forward compatibility was attempted",
            "communicate with the NVIDIA driver",
            "unsatisfied condition: cuda",
            "no kernel image is available",
            "unsupported toolchain",
            # ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'
            # nvrtc: error: invalid value for --gpu-architecture (-arch)
            # FlashAttention only supports Ampere GPUs
            # Bfloat16 is only supported on GPUs with compute capability of at least 8.0.
            "is not defined for option 'gpu-name'",
            "invalid value for --gpu-architecture",
            "only supports Ampere GPUs",
            "only supported on GPUs with compute",
        )
    ),
    # Card with CUDA capability sm_120 is not compatible with the current PyTorch installation.
    rule(
        "cuda.driver",
        "not compatible with the current PyTorch",
        r"^(?P<message>.*CUDA capability .*not compatible with the current PyTorch.*)",
    ),
    # OSError: [Errno 24] Too many open files
    plain_rule("too_many_files", "oo many open files", "oo many open files"),
    # OSError: [Errno 28] No space left on device
    plain_rule("no_space", "o space left on device", "[Nn]o space left on device"),
    # OSError: [Errno 122] Disk quota exceeded
    plain_rule("disk_quota", "quota exceeded", "[Dd]isk quota exceeded"),
    # ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient \
    #   shared memory (shm).
    # DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that \
    #   dataloader's workers are out of shared memory.
    plain_rule("bus_error", "Bus error", r"\bBus error"),
    plain_rule("bus_error", "insufficient shared memory", "insufficient shared memory"),
    # DataLoader worker (pid(s) 4711) exited unexpectedly
    # DataLoader worker (pid 4711) is killed by signal: Killed.
    plain_rule(
        "dataloader_killed",
        "DataLoader worker",
        r"DataLoader worker \(pid(?:\(s\))? .{0,300}(?:exited unexpectedly|is killed by signal)",
    ),
    # UserWarning: This DataLoader will create 8 worker processes in total. Our suggested max \
    #   number of worker in current system is 4
    rule(
        "system.error",
        "DataLoader will create",
        r"(?P<message>This DataLoader will create .*)",
        what="dataloader_workers",
        make=_workers,
    ),
    # OSError: [Errno 98] Address already in use
    plain_rule("address_in_use", "ddress already in use", r"(?:Errno 98|EADDRINUSE|errno: 98).*"),
    # Segmentation fault (core dumped)       Fatal Python error: Segmentation fault
    plain_rule("segfault", "egmentation fault", "egmentation fault"),
    # *** SIGSEGV received at time=1730000000 on cpu 31 ***
    # *** SIGSEGV (@0x8) received by PID 4711 (TID 0x7f…)
    plain_rule(
        "segfault", "*** SIGSEGV", r"\*\*\* SIGSEGV (?:\(@0x[0-9a-f]{1,16}\) )?received (?:at|by) "
    ),
    # run.sh: line 3: 4711 Hangup                  python train.py
    # a line that is only "Hangup"
    plain_rule("hangup", "Hangup", r"(?:^|line \d+:\s+\d+ )Hangup\b(?: {2,}|$)"),
    # run.sh: line 3: 4711 Killed                  python train.py
    # a line that is only "Killed"
    plain_rule("killed", "Killed", r"(?:^|line \d+:\s+\d+ )Killed\b(?! /)"),
    # RuntimeError: [enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate \
    #   memory: you tried to
    # MemoryError: Unable to allocate 93.1 GiB for an array
    # OSError: [Errno 12] Cannot allocate memory
    plain_rule("host_memory", "Unable to allocate ", r"Unable to allocate [\d.]+ [KMGT]i?B"),
    plain_rule("host_memory", "Cannot allocate memory", r"Errno 12\] Cannot allocate memory"),
    plain_rule(
        "host_memory",
        "DefaultCPUAllocator",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
    ),
    # RuntimeError: … DefaultCPUAllocator: not enough memory: you tried to allocate …
    #   what():  std::bad_alloc
    plain_rule("host_memory", "bad_alloc", r"what\(\): +std::bad_alloc"),
    # Reason:       OOMKilled (kubectl describe)       "OOMKilled": true (docker inspect)
    # Warning  OOMKilling  12s
    # worker-2   0/1     OOMKilled   0          3h1m
    rule(
        "system.error",
        "OOMKill",
        r"^(?P<message>(?:(?P<_host>[a-z0-9][\w.-]{0,255})\s{1,80}\d{1,5}/\d{1,5}\s)?"
        r"(?!.*OOMKilled\"?:"
        r" ?[Ff]alse)"
        r".*\bOOMKill(?:ed|ing)\b.*)",
        what="oom_kill",
    ),
    # job.service: A process of this unit has been killed by the OOM killer.
    # … Failed with result 'oom-kill'.
    plain_rule("oom_kill", "by the OOM killer", "killed by the OOM killer"),
    plain_rule("oom_kill", "result 'oom-kill'", "result 'oom-kill'"),
    # systemd-oomd[812]: Killed /user.slice/… due to memory used (…) / total
    # … killed due to memory pressure (OOM)
    plain_rule("oom_kill", " due to memory ", r"[Kk]illed .{0,300}due to memory (?:used|pressure)"),
    # earlyoom[700]: sending SIGTERM to process 4711 uid 1000 "python": badness 930
    plain_rule("oom_kill", "earlyoom", r"earlyoom.{0,80}sending SIG(?:TERM|KILL) to process"),
    # ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.
    plain_rule(
        "oom_kill", "running low on memory", r"killed due to the node running low on memory"
    ),
    # … was running was 60.11GB / 62.80GB (0.957184), which exceeds the memory usage threshold of \
    #   0.95. Ray killed this worker (ID: 01ab) because it was the most recently scheduled task
    plain_rule(
        "oom_kill",
        "the memory usage threshold of",
        r"exceeds the memory usage threshold of [\d.]{1,9}\.? Ray killed this worker",
    ),
    # State: OUT_OF_MEMORY (exit code 0)       1234.0  train  OUT_OF_ME+  0:125 (seff, sacct)
    plain_rule("oom_kill", "OUT_OF_ME", r"\bOUT_OF_ME(?:M|MORY|\+)"),
    # The node was low on resource: memory.
    # The node was low on resource: ephemeral-storage.
    plain_rule("oom_kill", "low on resource: ", "low on resource: memory"),
    plain_rule("no_space", "low on resource: ", "low on resource: ephemeral-storage"),
    # RuntimeError: can't start new thread
    # BlockingIOError: [Errno 11] Resource temporarily unavailable
    # libgomp: Thread creation failed: Resource temporarily unavailable
    # bash: fork: retry: Resource temporarily …
    plain_rule("too_many_processes", "can't start new thread", "rror: can't start new thread"),
    plain_rule(
        "too_many_processes",
        "Resource temporarily unavailable",
        r"(?:Errno 11\]|\bfork\b|Thread creation failed|pthread_create|what\(\):).{0,80}"
        r"Resource temporarily unavailable",
    ),
    # cgroup: fork rejected by pids controller in /kubepods/pod1
    plain_rule("too_many_processes", "by pids controller", "fork rejected by pids controller"),
    # libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.      Memlock limit: 65536
    # Please set max locked memory …
    # $ ulimit -l
    # 64
    plain_rule("memlock", "RLIMIT_MEMLOCK is", r"RLIMIT_MEMLOCK is \d{1,9} bytes"),
    plain_rule("memlock", "emlock limit", r"[Mm]emlock limits?(?: are set too low|: +\d{1,9}\b)"),
    plain_rule("memlock", "max locked memory", "Please set max locked memory"),
    rule("system.error", "ulimit -l", r"ulimit -l\W*$", what="memlock", make=_low),
    # $ getent hosts $(hostname)            $ cat /etc/hosts
    # 127.0.1.1       box-b
    rule("system.error", "getent hosts", "getent hosts", make=_loops),
    rule("system.error", "/etc/hosts", r"(?:cat|less|more|grep\b.*) /etc/hosts", make=_loops),
    # ls: cannot access '/dev/infiniband': No such file or directory
    # libibverbs: Warning: no userspace device-specific driver found for \
    #   /sys/class/infiniband_verbs/uverbs0
    # libibverbs: Warning: couldn't load driver 'libmlx5-rdmav34.so': …
    # No IB devices found (ibv_devinfo)
    plain_rule(
        "no_verbs",
        "/dev/infiniband",
        "(?:cannot access|stat|open).{0,6}/dev/infiniband.{0,20}(?:No such file|'|$)",
    ),
    plain_rule(
        "no_verbs",
        "libibverbs: Warning",
        "libibverbs: Warning: (?:no userspace device|couldn't (?:load driver|stat))",
    ),
    plain_rule("no_verbs", "No IB devices found", "No IB devices found"),
    # nv-fabricmanager: fabric manager NVIDIA GPU driver interface version … don't match with \
    #   driver version …
    # nvidia-fabricmanager.service: Failed with result 'exit-code'.
    plain_rule("fabric", "abric manager NVIDIA", r"[Ff]abric manager NVIDIA .{0,120}don't match"),
    plain_rule(
        "fabric",
        "nvidia-fabricmanager",
        r"nvidia-fabricmanager.{0,120}(?:[Ff]ailed|inactive|not running|not be found)",
    ),
    # There are not enough slots available in the system to satisfy the 16 slots that were \
    #   requested by the application:
    # Error: No available node types can fulfill resource request {'GPU': 8.0}  (Ray)
    plain_rule("slots", "not enough slots", "There are not enough slots available"),
    plain_rule(
        "slots",
        "can fulfill resource request",
        "No available node types can fulfill resource request",
    ),
    # set_mempolicy: Operation not permitted (libnuma in a container)
    # mbind: Operation not permitted
    *(
        rule("system.denied", anchor, rf"\b(?P<call>(?:[gs]et_)?{anchor}): Operation not permitted")
        for anchor in ("mempolicy", "mbind")
    ),
    # python: symbol lookup error: …/libtorch_cuda.so: undefined symbol: ncclCommSplit
    plain_rule("loader", "symbol lookup error", "symbol lookup error: .{0,600}undefined symbol"),
    # mm_iface.c:823  UCX  ERROR mm_iface failed to allocate receive FIFO
    # mm_posix.c:233  UCX  ERROR Not enough memory to write total of 4292720 bytes. Please check \
    #   that /dev/shm or the directory you specified has more available memory.
    # It appears as if there is not enough space for /dev/shm/vader_segment.n1.1 (Open MPI)
    plain_rule("shm", "mm_iface failed", "mm_iface failed to allocate receive FIFO"),
    plain_rule("shm", "check that /dev/shm", "Please check that /dev/shm or the directory"),
    plain_rule("shm", "enough space for /dev/shm", "not enough space for /dev/shm/"),
    # Verification error @ element 1: val = 0.000000, ref = 4.000000 (simpleP2P)
    plain_rule("peer_copy", "Verification error @", "Verification error @ element"),
    # ping: local error: message too long, mtu=1500
    # From 10.0.0.1 icmp_seq=1 Frag needed and DF set (mtu = 1500)
    plain_rule("packet_size", "message too long, mtu", r"message too long, mtu"),
    plain_rule("packet_size", "Frag needed", r"Frag needed and DF set"),
    # Training completed. Exiting with code 0     `Trainer.fit` stopped: `max_epochs=3` reached.
    # training finished
    # Finished training     Training done     Total training time 11:20:41
    # {'train_runtime': 812.1, …
    # [default] worker group successfully finished.
    # 4711.0 COMPLETED 0:0 (sacct of a step: the batch script around one that failed can end well)
    # :::MLLOG {"event_type": "INTERVAL_END", "key": "run_stop", "metadata": {"status": "success"}}
    # RESULT,bert,2343,727,,2023-09-27 03:03:32 PM      ENDING TIMING RUN AT 2023-09-27 03:15:39 PM
    *(
        rule("job.done", anchor, rf"(?P<message>{pattern}.*)")
        for anchor, pattern in (
            ("raining complete", "[Tt]raining completed?(?! at step)"),
            ("raining finished", "[Tt]raining finished"),
            ("raining done", "[Tt]raining done"),
            ("inished training", "[Ff]inished training"),
            ("otal training time", "[Tt]otal training time"),
            ("`Trainer.fit` stopped", "`Trainer.fit` stopped: `max_"),
            ("'train_runtime'", "'train_runtime': "),
            ("successfully finished", "worker group successfully finished"),
            ("with code 0", r"[Ee]xit(?:ed|ing)? with code 0\b"),
            ("xit code 0", r"[Ee]xit code 0\b"),
            ("run_stop", r':::MLL(?:OG|v[\w.]{1,5}).{0,200}"run_stop".{0,300}"success"'),
            ("RESULT,", r"\bRESULT,\w{1,60},\d*,\d"),
            ("ENDING TIMING RUN", "ENDING TIMING RUN AT"),
            (" COMPLETED ", r"\b\d{1,12}(?:_\d{1,9})?\.\d{1,6} .{0,200}COMPLETED .{0,80}?\b0:0\b"),
        )
    ),
)
