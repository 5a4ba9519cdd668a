"""A process was ended by a signal

What it means
    The process did not end itself.  9 (exit code -9 or 137): memory killer, scheduler or a
    person; 15 (-15, 143): scheduler, preemption, launcher; 7 (-7, 135): a mapped file or
    /dev/shm has no room; 11 (-11, 139): a bad address in native code; 6 (-6, 134): it aborted
    itself, often after a watchdog's timeout.

Whom not to believe
    Processes that the launcher ends after the first failure: "closing signal SIGTERM" is a
    consequence.  -6 after a watchdog's line is one too.  A killed process cannot log its
    reason, so the last line before is no evidence.  The first failure in torchrun's summary is
    only the first of its own host.

What to get
    The host's kernel log: `dmesg -T | grep -iE 'killed process|oom|segfault|xid'`, and
    memory.events of the cgroup.  The scheduler:
    `sacct -j JOB -o State,ExitCode,MaxRSS,Elapsed,Timelimit`, or the pod's reason.  For 7
    `df -h /dev/shm`; for 11 the stack (faulthandler, core).
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "killed"

WORDS: tuple[str, ...] = (
    r"\bexit ?code ?: ?-(?:6|7|9|11|15)\b",
    r"\bexit(?:ed)?(?: with)? (?:code|status):? (?:134|135|137|139|143|-6|-7|-9|-11|-15)\b",
    r"(?<!closing signal )(?<!via )(?<!via signal )(?<!sent )(?<!sending )\bSIG(?:KILL|SEGV"
    r"|BUS)\b",
    r"\bterminated with signal SIG",
    r"\breceived (?:signal )?SIGTERM\b",
    r"\bsignal:? ?\(?(?:6|7|9|11|15)\b",
    r"\b(?:got|by|on|with) signal ?: ?(?:1|6|7|9|11|15|Killed|Terminated)\b",
    r"\bcore dumped\b",
    r"(?<!PCIe )\bBus error\b",
    r"\bSegmentation fault\b",
    r"\bKilled process \d",
    r"(?:^|\s)Killed\s{0,4}$",
    r"\b\d{2,8} Killed\s",
    r"\boom[-_]kill\b.{0,40}\bevent",
    r"\bkilled due to memory pressure\b",
    r"\bCANCELLED AT\b.{0,60}\b(?:TIME LIMIT|PREEMPTION)",
)

SUSPECTS: Mapping[str, str] = {
    "host_oom": "the kernel, the cgroup or Ray kills the largest process when memory ends",
    "rank_killed": "time limit, preemption, a closed terminal or a person ended it",
    "shm_too_small": "a write to a full /dev/shm ends with signal 7",
    "rank_divergence": (
        "ranks that waited in different calls abort themselves (6) after the timeout"
    ),
    "slow_rank": "the waiting ranks abort themselves (6) while one is busy",
    "cuda_error": "an error of a kernel makes the watchdog abort the process (6)",
    "version_mismatch": "two libraries that do not fit crash in native code (11)",
    "nccl_bug": "a known defect crashes inside NCCL (11)",
}
