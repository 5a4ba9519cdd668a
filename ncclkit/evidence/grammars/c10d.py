"""The grammar of ProcessGroupNCCL: watchdog, monitor, errors.

It reads torch 1.10 to 2.15.
"""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.families import classify
from ncclkit.evidence.grammars.grammar import Data, Line, Rule, frame, parse_int, rule
from ncclkit.evidence.grammars.torchcomms import UNSAID


def _monitor(match: re.Match[str], data: Data, line: Line) -> Data:
    rank = re.search(r"from rank:? (\d{1,9})\b", match["message"])
    return data | {"from_rank": int(rank[1]) if rank else None}


def monitor(what: str, anchor: str, pattern: str, kind: str = "c10d.monitor") -> Rule:
    """A sentence of the monitor; `pattern` is what the message begins with."""
    make = None
    if kind == "c10d.monitor":
        make = _monitor
    return rule(kind, anchor, rf"(?P<message>{pattern}.*)", make=make, what=what)


MONITOR: tuple[Rule, ...] = (
    # ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring \
    #   enqueued collectives.
    rule(
        "c10d.monitor",
        "watchdog got stuck",
        r"(?P<message>watchdog got stuck for (?P<seconds>\d+) seconds.*)",
        make=_monitor,
        what="stuck",
    ),
    # Heartbeat monitor timed out! Process will be terminated after dumping debug info. (2.3, 2.4)
    monitor("stuck", "Heartbeat monitor timed out", "Heartbeat monitor timed out"),
    # NCCL monitoring thread detects no heartbeat from watchdog (2.2)
    monitor("stuck", "detects no heartbeat", ".{0,200}detects no heartbeat"),
    # Could not acquire GIL within 300 ms on exit, possible GIL induced hang
    monitor("gil", "Could not acquire GIL", "Could not acquire GIL"),
    # Received a dump signal due to a collective timeout from rank 3 and we will try our best to \
    #   dump the debug info.
    # Received a global dump signal from rank 3 (2.4)
    # Observed flight recorder dump signal from another rank
    # Broadcasting flight-recorder dump signal (2.5)
    # First PG on this rank detecting the dump signal (2.4)
    monitor(
        "dump", "dump signal", "(?:Received a|Observed|Broadcasting|First PG).{0,200}dump signal"
    ),
    # Received a global timeout from another rank and will start to dump the debug info. (2.3)
    monitor("dump", "Received a global timeout", "Received a global timeout"),
    # First PG on this rank to signal dumping. (2.3)
    monitor("dump", "to signal dumping", "First PG on this rank to signal dumping"),
    # Broadcasting signal exception_dump to other ranks via TCPStore. (2.7)
    monitor("dump", "signal exception_dump", "Broadcasting signal exception_dump"),
    # remote error detected from rank: 3 (2.7)
    monitor("remote_error", "remote error detected", "remote error detected from rank"),
    # Terminating the process after attempting to dump debug info, due to …
    monitor("terminate", "Terminating the process after", "Terminating the process after"),
    # To avoid data inconsistency, we are taking the entire process down.
    monitor(
        "terminate",
        "taking the entire process down",
        "To avoid (?:data inconsistency|this inconsistency)",
    ),
    # NCCL watchdog thread terminated with exception: … (2.1)   Process group watchdog thread \
    #   terminated with exception
    monitor(
        "terminate",
        "watchdog thread terminated with",
        ".{0,200}watchdog thread terminated with exception",
    ),
    # Future for ProcessGroup abort timed out after 600000 ms
    monitor("abort", "ProcessGroup abort timed out", "Future for ProcessGroup abort timed out"),
    # [TC][rank=3][name=default_pg] Aborting process on rank 3 due to timeout - timeout watchdog \
    #   detected operation timeout (2.15)
    monitor("terminate", "Aborting process on rank", "Aborting process on rank"),
    # Stack trace of the failed collective not found, potentially because FlightRecorder is \
    #   disabled.
    rule(
        "c10d.recorder",
        "FlightRecorder is disabled",
        r"FlightRecorder is disabled",
        what="off",
        file="",
    ),
    # ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1
    rule(
        "c10d.recorder",
        "preparing to dump debug info",
        r"preparing to dump debug info",
        what="begun",
        file="",
    ),
    # ProcessGroupNCCL dumping nccl trace to /tmp/nccl_trace_rank_3 (2.4)
    rule(
        "c10d.recorder",
        "dumping nccl trace to",
        r"dumping nccl trace to (?P<file>\S+)",
        what="begun",
    ),
    # Flight Recorder trace successfully dumped. (2.8)
    rule(
        "c10d.recorder",
        "trace successfully dumped",
        r"trace successfully dumped",
        what="written",
        file="",
    ),
    # Finished writing NCCLPG debug info to /tmp/nccl_trace_rank_3
    rule(
        "c10d.recorder",
        "Finished writing ",
        r"Finished writing \w* ?debug info to (?P<file>\S+)",
        what="written",
    ),
    # Error opening file for writing NCCLPG debug info: /tmp/nccl_trace_rank_3
    rule(
        "c10d.recorder",
        "Error opening file for writing",
        r"debug info: (?P<file>\S+)",
        what="failed",
    ),
    # ProcessGroupNCCL initialization options: size: 8, global rank: 0, TIMEOUT(ms): 7200000, …
    # init_process_group("nccl", timeout=datetime.timedelta(seconds=7200))
    # timeout=timedelta(hours=2)
    # ddp_timeout: 18000      --distributed-timeout-minutes 120
    monitor("group_timeout", "TIMEOUT(ms): ", r"TIMEOUT\(ms\): \d+", "c10d.hint"),
    monitor("asked_timeout", "timedelta(", r"timeout ?= ?(?:datetime\.)?timedelta\(", "c10d.hint"),
    monitor("asked_timeout", "ddp_timeout", r"ddp_timeout[\"']?[ =:]{1,3}\d", "c10d.hint"),
    monitor(
        "asked_timeout", "timeout-minutes", r"distributed-timeout-minutes[ =:]{1,3}\d", "c10d.hint"
    ),
    # E1127 18:30:08.710000 9 torch/distributed/debug/_frontend.py:305] Failed to dump fr_trace
    monitor(
        "debug_server",
        "Failed to dump ",
        "Failed to dump (?:stacks|pyspy_dump|fr_trace|wait_counters|tcpstore|torchcomms_)",
        "c10d.hint",
    ),
    # An unbatched P2P op (send/recv) was called on this ProcessGroup with size 4. (2.9)
    monitor("unbatched_p2p", "unbatched P2P op", "An unbatched P2P op", "c10d.hint"),
    # process group has NOT been destroyed before we destruct ProcessGroupNCCL (2.4, 2.5)
    monitor(
        "not_destroyed",
        "has NOT been destroyed",
        "process group has NOT been destroyed",
        "c10d.hint",
    ),
    # destroy_process_group() was not called before program exit, which can leak resources (2.6)
    monitor(
        "not_destroyed",
        "destroy_process_group() was not",
        "destroy_process_group.. was not called",
        "c10d.hint",
    ),
)
"""Rules of the monitor, which the rules of this module take in."""


# [PG ID 2 PG GUID 7(tp_group) Rank 1]      [PG 0 (default_pg) Rank 3]      [Rank 2]
# [PG GUID 0(default_pg) Rank 3]
PG = r"^(?:(?=(.*?\[(?:PG (?P<pg>[^\]]{0,300}?) )?Rank (?P<pg_rank>\d{1,7})\]))\1)?.*?"


RANKS = r"\[([\d, ]{1,2000})\]"


def _group(match: re.Match[str], data: Data, line: Line) -> Data:
    """The group's stable name (PG GUID where it is printed), and its rank.

    The rank inside a group is the global one in the default group only.
    """
    name = re.sub(r".*PG GUID |^ID \d+ ?|^GUID ", "", data.get("pg") or "").strip()
    described = re.match(r"(\S*?) ?\(([^)]*)\)$", name)
    if described:
        data["pg"] = described[1]
        data["desc"] = described[2]
    else:
        data["pg"] = name
        data["desc"] = ""
    # the rank inside a group is the global one in the default group only
    if data.get("pg_rank") is not None and (
        data["desc"] == "default_pg" or data["pg"] in ("", "0")
    ):
        if line.rank is not None and not line.local:
            data["_rank"] = line.rank
        else:
            data["_rank"] = data["pg_rank"]
    return data


def _timeout(match: re.Match[str], data: Data, line: Line) -> Data:
    work = data.pop("work")
    fields = dict(re.findall(r"(\w+(?:\(ms\))?)=([^,()\[\]]+|\[[^\]]*\])", work))
    numbers = {
        "seq": "SeqNum",
        "numel_in": "NumelIn",
        "numel_out": "NumelOut",
        "timeout_ms": "Timeout(ms)",
    }
    for key, name in numbers.items():
        value = fields.get(name, "").strip()
        data[key] = parse_int(value)
    data |= {"op": fields.get("OpType", "").strip(), "api": "nccl"}
    return _group(match, data, line)


def _desync(match: re.Match[str], data: Data, line: Line) -> Data:
    """Who did not join, who did and waits, and the number of the collective.

    The lines after the first say so.
    """
    text = "\n".join([line.text, *(own.body for own in line.own(6))])
    waits = re.search(RANKS + r" joined but didn't finish collective #(\d{1,18})", text)
    late = re.search(
        RANKS + r" finished collective #\d{1,18}, but didn't join collective #(\d{1,18})", text
    )
    never = re.search(r"ranks " + RANKS + " are the lagging ranks", text)
    missing = never or late
    seq = late or waits
    return data | {
        "seq": int(seq[2]) if seq else None,
        "missing": _numbers_of_text(missing[1]) if missing else [],
        "waiting": _numbers_of_text(waits[1]) if waits else [],
    }


def _numbers_of_text(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,9}", text)]


def _thrown(match: re.Match[str], data: Data, line: Line) -> Data:
    return UNSAID | {"pg": "", "ran_ms": None, "api": "nccl"}


def _last_error(match: re.Match[str], data: Data, line: Line) -> Data:
    """What the lines after an ``NCCL error in`` hold.

    They hold its explanation and, after ``Last error:``, NCCL's last warning.
    """
    warning = _warning_after(line, "Last error:")
    return data | {
        "last_error": warning.sentence.strip() if warning else "",
        "message": match[0].strip(),
    }


BEHIND = 6
"""Lines after an error that may hold NCCL's last warning, blank ones among them."""
NO_WARNING = ("frame #", "Exception raised", "Traceback")
"""How what follows begins where NCCL had given no warning."""


def _warning_after(line: Line, label: str = "") -> Line | None:
    """The first line with words after a line, or after the one below it that ends with a label."""
    is_behind = not label
    for own in line.own(BEHIND):
        said = own.sentence.strip()
        if is_behind and said:
            return None if said.startswith(NO_WARNING) else own
        is_behind = is_behind or said.endswith(label)
    return None


def _quoted(match: re.Match[str], data: Data, line: Line) -> Data | None:
    said = _warning_after(line)
    if said is None:
        return None
    message = said.sentence.strip()
    if message.startswith("Unknown NCCL Error"):
        return None
    return {
        "file": "",
        "line": None,
        "func": "",
        "dev": None,
        "message": message,
        "_line": said,
    } | classify(message)


def _frames(match: re.Match[str], data: Data, line: Line) -> Data | None:
    found = [
        re.match(r"\s*#\d+ (.{1,300}?) from (.{1,400}?):(\d+)", text)
        for text in (match["rest"], *(own.body for own in line.own(40)))
    ]
    frames = [frame(item[2], item[3], item[1]) for item in found if item]
    if frames:
        return {"frames": frames}
    return None


RULES: tuple[Rule, ...] = (
    # [rank3]:[E1121 23:59:01.9 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective \
    #   operation timeout: WorkNCCL(SeqNum=493, OpType=ALLGATHER, NumelIn=1, NumelOut=4, \
    #   Timeout(ms)=60000) ran for 60044 milliseconds before timing out.
    rule(
        "c10d.timeout",
        "Watchdog caught",
        PG + r"Watchdog caught collective operation"
        r" timeout:\s+WorkNCCL\((?P<work>.{0,400}?Timeout\(ms\)=\d+\)"
        r"|SeqNum=\d+, [^)\[]{0,300}(?=\[\.\.\.\]|…))"  # cut by who posted it
        r"(?:\s+ran\s+for\s+(?P<ran_ms>\d+))?",
        span=3,
        make=_timeout,
    ),
    # frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<…>) + 0x1d2 (0x7f in \
    #   …/libtorch_cuda.so)
    # Exception raised from checkTimeout at \
    #   ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call …
    # An excerpt without the message: checkTimeout throws for a timeout only, while
    # ncclCommWatchdog throws anything on.
    rule(
        "c10d.timeout",
        "checkTimeout",
        r"\bframe #\d+: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout\("
        r"|Exception raised from checkTimeout at \S*ProcessGroupNCCL\.cpp:",
        make=_thrown,
    ),
    # [PG ID 0 PG GUID 0(default_pg) Rank 2]  failure detected by watchdog at work sequence id: \
    #   493 PG status: last enqueued work: 493, last completed work: 492
    # Timeout at NCCL work: 3, last enqueued NCCL work: 4, last completed NCCL work: 2.
    rule(
        "c10d.status",
        "last enqueued",
        PG + r"(?:watchdog at work(?: sequence id)?|Timeout at NCCL work): (?P<seq>\d+)\D+?"
        r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work:"
        r" (?P<completed>-?\d+)",
        make=_group,
    ),
    # … from rank 3 and we will try our best to dump the debug info. Last enqueued NCCL work: 8, \
    #   last completed NCCL work: 8.
    rule(
        "c10d.status",
        "Last enqueued NCCL work",
        PG + r"Last enqueued NCCL work: (?P<enqueued>-?\d+), last completed NCCL work:"
        r" (?P<completed>-?\d+)",
        make=_group,
    ),
    # To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
    #   - [0, 2] joined but didn't finish collective #5 (count from 1)
    #     [1] finished collective #4, but didn't join collective #5 (count from 1)
    rule(
        "c10d.desync",
        "that caused the desync",
        r"(?P<message>To our best knowledge.*)",
        make=_desync,
    ),
    # To our best knowledge, ranks [3] are the lagging ranks that caused this timeout. They never \
    #   joined any collectives
    rule(
        "c10d.desync",
        "are the lagging ranks",
        r"(?P<message>To our best knowledge.*)",
        make=_desync,
    ),
    *MONITOR,
    # Stack trace of the failed collective: #0 all_reduce from /opt/…/distributed_c10d.py:2805
    rule(
        "c10d.stack",
        "Stack trace of the failed",
        r"Stack trace of the failed collective:\s*(?P<rest>.*)",
        make=_frames,
    ),
    # NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, remote process exited \
    #   or there was a network error, NCCL version 2.21.5
    rule(
        "c10d.error",
        "NCCL error in:",
        r"NCCL error in: \S+?:\d+, (?P<nccl_error>.+?)(?:, NCCL version"
        r" (?P<nccl_version>[\d.]+\d))?\s{0,80}$",
        make=_last_error,
    ),
    # NCCL communicator encountered error set by ProcessGroupNCCL: NCCL error: remote process \
    #   exited …
    # [TC][rank=0][name=default_pg] nccl hit async error on rank 0: unhandled system error
    *(
        rule("c10d.error", anchor, pattern, last_error="")
        for anchor, pattern in (
            (
                "error set by ProcessGroupNCCL",
                r"(?P<message>encountered error set by \w+: (?P<nccl_error>.*))",
            ),
            (
                "nccl hit async error",
                r"(?P<message>nccl hit async error(?: on rank \d+)?:? ?(?P<nccl_error>.*))",
            ),
        )
    ),
    # RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)
    # NCCL Error 2: unhandled system error
    *(
        rule(
            "c10d.error",
            anchor,
            r"(?:^|: )(?P<message>NCCL [Ee]rror(?: \d+)?: (?P<nccl_error>[^{]+?))\s{0,80}$",
            last_error="",
        )
        for anchor in ("NCCL error: ", "NCCL Error ")
    ),
    # node-1: Test NCCL failure common.cu:777 'unhandled system error'
    rule(
        "c10d.error",
        "Test NCCL failure",
        r"(?P<message>Test NCCL failure \S+ '(?P<nccl_error>[^']*)')",
        last_error="",
    ),
    # Last error:
    # Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10
    rule("nccl.warn", "Last error:", r"Last error:\s{0,80}$", make=_quoted),
    # [5] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value \
    #   store by key '0', but store->get('0') got error: …
    rule(
        "c10d.unique_id",
        "ncclUniqueId from",
        r"\[(?P<rank>\d+)\] is setting up NCCL communicator and retrieving ncclUniqueId from "
        r"\[(?P<from_rank>\d+)\].{0,300}?by key '(?P<key>[^']{0,300})'(?:.{0,300}got error:"
        r" ?(?P<error>.*))?",
        make=lambda match, data, line: (
            data | {"_rank": data["rank"] if line.rank is None or line.local else None}
        ),
    ),
    # using GPU 3 as device used by this process is currently unknown
    # Guessing device ID based on global rank
    rule(
        "c10d.device_unknown",
        "currently unknown",
        r"using GPU (?P<gpu>\d+) .{0,300}?currently unknown",
    ),
    rule("c10d.device_unknown", "Guessing device ID", r"Guessing device ID"),
)
