"""The grammar of launchers.

They are torchrun (elastic), Slurm, Kubernetes, multiprocessing, shells, and libraries on top.
"""

from __future__ import annotations

import re

from ncclkit.agent.digits import is_whole
from ncclkit.evidence.grammars.grammar import Data, Line, Rule, parse_int, rule

NAMES = "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM"
SIGNALS = {name: number for number, name in enumerate(NAMES.split(), 1)}
"""Of Linux, whatever reads the log."""


def signal_of(exitcode: int | None) -> int | None:
    """The signal in an exit status; None for an ordinary exit.

    It is -9 of torchrun and Python, 137 of shells and Slurm.
    """
    if exitcode is None:
        return None
    if exitcode < 0:
        return -exitcode
    if 128 < exitcode < 160:
        return exitcode - 128
    return None


def _exit(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"signal": signal_of(data["exitcode"]), "_pid": data["pid"]}


def _entry(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """An entry of torchrun's summary.

    It is ``rank : 3 (local_rank: 1)``, then its exit code and pid.
    """
    for later in line.own(3):
        code = re.search(r"exitcode\s*: (-?\d{1,9}) \(pid: (\d{1,10})\)", later.body)
        if code:
            exitcode = int(code[1])
            pid = int(code[2])
            return data | {
                "exitcode": exitcode,
                "signal": signal_of(exitcode),
                "pid": pid,
                "_pid": pid,
            }
    return None


def _root(match: re.Match[str], data: Data, line: Line) -> Data:
    said = dict(
        re.findall(
            r"(?m)^\s*(host|rank|exitcode)\s*: (\S+)",
            "\n".join(later.body for later in line.own(8)),
        )
    )
    rank = parse_int(said.get("rank"))
    exitcode = parse_int(said.get("exitcode"))
    return data | {
        "exitcode": exitcode,
        "signal": signal_of(exitcode),
        "host": said.get("host", ""),
        "_rank": rank,
    }


def _stop(match: re.Match[str], data: Data, line: Line) -> Data:
    said = data["signal"]
    signal = SIGNALS.get(said)
    if is_whole(said) and len(said) < 3:
        signal = int(said)
    return data | {"signal": signal, "_pid": data["pid"]}


def _death(match: re.Match[str], data: Data, line: Line) -> Data:
    return {"signal": SIGNALS.get(data["name"]) or data["signal"]}


def _task(match: re.Match[str], data: Data, line: Line) -> Data:
    name = (data.pop("said") or "").strip()
    words = {"Killed": 9, "Aborted": 6, "Segmentation fault": 11, "Bus error": 7, "Terminated": 15}
    signal = next((number for word, number in words.items() if name.startswith(word)), None)
    return data | {"exitcode": data.pop("code"), "signal": signal}


TORCHRUN: tuple[Rule, ...] = (
    # failed (exitcode: -9) local_rank: 1 (pid: 4711) of binary: /usr/bin/python
    rule(
        "elastic.exit",
        "failed (exitcode:",
        r"failed \(exitcode: (?P<exitcode>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid:"
        r" (?P<pid>\d+)\)",
        make=_exit,
    ),
    # ProcessFailure(local_rank=1, pid=4711, exitcode=-7, error_file='<N/A>')
    rule(
        "elastic.exit",
        "ProcessFailure(",
        r"ProcessFailure\(local_rank=(?P<local_rank>\d+), pid=(?P<pid>\d+),"
        r" exitcode=(?P<exitcode>-?\d+)",
        make=_exit,
    ),
    #   rank      : 3 (local_rank: 1)        of the block "Failures:" and "Root Cause"
    rule(
        "elastic.exit",
        "(local_rank:",
        r"rank\s+: (?P<_rank>\d+) \(local_rank: (?P<local_rank>\d+)\)",
        make=_entry,
    ),
    # Root Cause (first observed failure):
    rule("elastic.root", "oot Cause (first", r"Root Cause \(first observed failure\)", make=_root),
    # Sending process 4712 closing signal SIGTERM       Terminating process 25364 via signal SIGTERM
    rule(
        "elastic.stop",
        "signal SIG",
        r"(?:Sending|Terminating|Closing) process (?P<pid>\d+) (?:closing|via) signal"
        r" SIG(?P<signal>\w+)",
        make=_stop,
    ),
    # Unable to shutdown process 4712 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL
    # Unable to shutdown process 17455 via 15, forcefully exiting via 9     (Python 3.11 and later)
    rule(
        "elastic.stop",
        "forcefully exiting via",
        r"Unable to shutdown process (?P<pid>\d+) via .{1,40}, forcefully exiting via"
        r" (?:(?:Signals\.)?SIG)?(?P<signal>\w+)",
        make=_stop,
    ),
    # Received Signals.SIGTERM death signal, shutting down workers
    # Received 15 death signal (older)
    rule(
        "elastic.signal",
        "death signal, shutting down",
        r"Received (?:Signals\.SIG(?P<name>\w+)|(?P<signal>\d{1,3})) death signal",
        make=_death,
    ),
    # torch.distributed.elastic.multiprocessing.api.SignalException: Process 4700 got signal: 15
    rule(
        "elastic.signal",
        "SignalException: Process",
        r"SignalException: Process (?P<_pid>\d+) got signal: (?P<signal>\d+)",
    ),
    # [default] Worker group FAILED. 2/3 attempts left; will restart worker group
    rule(
        "elastic.restart",
        "attempts left; will restart",
        r"(?P<left>\d{1,9})/(?P<of>\d{1,9}) attempts left; will restart worker group",
    ),
    # torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL
    rule(
        "elastic.exit",
        "terminated with signal",
        r"process (?P<local_rank>\d+) terminated with signal SIG(?P<name>\w+)",
        make=lambda match, data, line: data | {"signal": SIGNALS.get(data.pop("name"))},
    ),
    # -- Process 3 terminated with the following error:
    rule(
        "elastic.exit",
        "terminated with the following error",
        r"Process (?P<local_rank>\d+) terminated with the following error",
        exitcode=1,
    ),
    # slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have \
    #   been OOM Killed.
    # slurmstepd: error: Exceeded step memory limit at some point.     oom-kill event(s) in step
    *(
        rule(
            "slurm.event",
            anchor,
            r"(?:slurmstepd|srun).{0,300}(?:oom[_-]kill event|OOM Killed|Exceeded (?:step|job)"
            r" memory limit)",
            what="oom",
            signal=9,
        )
        for anchor in ("oom_kill event", "oom-kill event", "OOM Killed", " memory limit")
    ),
    # srun: error: n2: task 3: Out Of Memory
    rule(
        "slurm.event",
        "Out Of Memory",
        r"srun: error: \S+: tasks? (?P<task>[\d,-]+): Out Of Memory",
        what="oom",
        signal=9,
    ),
    # slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-21T01:02:03 DUE TO TIME LIMIT ***
    rule(
        "slurm.event",
        "TIME LIMIT",
        r"CANCELLED AT .{0,60} DUE TO TIME LIMIT",
        what="time_limit",
        signal=15,
    ),
    # slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-21T01:02:03 DUE TO NODE \
    #   FAILURE …
    # srun: error: Node failure on n2
    rule("slurm.event", "NODE FAIL", r"DUE TO NODE FAIL", what="node_fail"),
    rule(
        "slurm.event",
        "Node failure",
        r"(?:srun|slurm\w{0,20}): error: .{0,300}Node failure(?: on (?P<_host>[\w.-]{1,253}))?",
        what="node_fail",
    ),
    # srun: error: Task launch for StepId=4711.0 failed on node n3: Socket timed out on send/recv \
    #   operation
    rule(
        "slurm.event",
        "failed on node",
        r"srun: error: Task launch for .* failed on node (?P<_host>\S+):",
        what="node_fail",
    ),
    # slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-21T01:02:03 ***
    # … DUE TO PREEMPTION ***
    rule(
        "slurm.event",
        "CANCELLED AT",
        r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+(?! DUE TO (?:TIME|NODE))",
        what="cancelled",
        signal=15,
    ),
    # srun: error: n2: task 3: Exited with exit code 1        srun: error: n2: tasks 0-3: Killed
    rule(
        "slurm.event",
        "srun: error:",
        r"srun: error: (?P<_host>\S+): tasks? (?P<task>[\d,-]+): (?:Exited with exit code"
        r" (?P<code>\d+)"
        r"|(?P<said>Killed|Aborted|Segmentation fault|Bus error|Terminated)[^:]*)",
        what="task_exit",
        make=_task,
    ),
)


def _signalled(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"pid": data["_pid"], "_host": data["_host"].partition(".")[0]}


def _signal_only(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """The end of a container, where a signal ended it.

    Nobody says whose rank it was, and an ordinary exit code tells less than what was printed.
    """
    if signal_of(data["exitcode"]):
        return _exit(match, data, line)
    return None


PROGRAMS: tuple[Rule, ...] = (
    # mpirun noticed that process rank 3 with PID 4711 on node n2 exited on signal 9 (Killed).
    # (prterun noticed …)
    rule(
        "elastic.exit",
        "noticed that process rank",
        r"noticed that process rank (?P<_rank>\d+) with PID (?P<_pid>\d+) on node (?P<_host>\S+) "
        r"exited on signal (?P<signal>\d+)",
        make=_signalled,
    ),
    # [2026-11-21 01:02:03,456] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', '-u', \
    #   'train.py', '--local_rank=3'] exits with return code = -9
    rule(
        "elastic.exit",
        "exits with return code",
        r"(?:--local_rank=(?P<local_rank>\d+)\b.{0,1500})?exits with return code ="
        r" (?P<exitcode>-?\d+)",
        make=_exit,
    ),
    #       Exit Code:    137 (kubectl describe)       Exited with exit code 137.
    #       exited with code 139 (compose)
    *(
        rule(
            "elastic.exit",
            anchor,
            r"(?:Exit Code:\s{1,9}|(?<!programs )[Ee]xited with (?:exit )?code:? )"
            r"(?P<exitcode>\d{1,3})\b",
            make=_signal_only,
        )
        for anchor in ("Exit Code: ", "xited with ")
    ),
    # local_rank: 1 process exited with code 0       Rank 3 exited with code 0
    # rank 2: process finished with exit code 0      [rank1]: nothing left to do, exit(0)
    *(
        rule("elastic.exit", anchor, pattern, exitcode=0)
        for anchor, pattern in (
            (
                "code 0",
                (
                    r"local_rank: (?P<local_rank>\d+)\b.{0,40}exit(?:ed|ing)? (?:with )?(?:exit"
                    r" )?code:? 0\b"
                ),
            ),
            (
                "code 0",
                (
                    r"\b[Rr]ank[ :]{1,2}(?P<_rank>\d+)\b.{0,40}exit(?:ed|ing)? (?:with )?(?:exit"
                    r" )?code:? 0\b"
                ),
            ),
            ("exit(0)", r"(?:[:,;] |^)(?:sys\.|os\._)?exit\(0\)\W{0,5}$"),
        )
    ),
    # An attempt has been made to start a new process before the
    # current process has finished its bootstrapping phase.
    rule(
        "system.error",
        "its bootstrapping phase",
        r"^(?P<message>.*current process has finished its bootstrapping phase.*)",
        what="start_method",
    ),
    # [n1:01873] [ 1] /usr/lib/x86_64-linux-gnu/libnccl.so.2(+0x5a1c3)[0x7f6c5d3a81c3]
    #  1  /usr/lib/x86_64-linux-gnu/libnccl.so.2(ncclGroupEnd+0x1a2) [0x7f23]
    #  (UCX, behind "==== backtrace (tid")
    rule(
        "system.error",
        "libnccl.so",
        r"(?P<message>(?:\] \[ ?[0-5]\]|^ {0,4}[0-5]) {1,4}\S*libnccl\.so\S*\(.*)",
        what="nccl_frame",
    ),
    # MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD
    # with errorcode 1.
    rule(
        "elastic.exit",
        "MPI_ABORT was invoked",
        r"MPI_ABORT was invoked on rank (?P<_rank>\d+)",
        exitcode=1,
    ),
    # [2026-11-21 01:02:03,456] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 4711
    rule("elastic.stop", "Killing subprocess", r"Killing subprocess (?P<pid>\d+)", signal=15),
    # [rank: 1] Child process with PID 4711 terminated with code 1. Forcefully terminating all \
    #   other processes …
    rule(
        "elastic.exit",
        "Child process with PID",
        r"Child process with PID (?P<pid>\d+) terminated with code (?P<exitcode>-?\d+)",
        make=_exit,
    ),
)


ENDS = (
    # =>> PBS: job killed: walltime 86429 exceeded limit 86400
    # =>> PBS: job killed: mem 99kb exceeded limit 9kb
    ("time_limit", "PBS: job killed", r"PBS: job killed: walltime"),
    ("oom", "PBS: job killed", r"PBS: job killed: (?:mem|vmem|pmem)"),
    # TERM_RUNLIMIT: job killed after reaching LSF run time limit.
    # TERM_MEMLIMIT: job killed after reaching …
    # TERM_OWNER: job killed by owner.      TERM_PREEMPT: job killed after preemption.
    ("time_limit", "TERM_RUNLIMIT", r"TERM_RUNLIMIT: job killed"),
    ("oom", "TERM_MEMLIMIT", r"TERM_MEMLIMIT: job killed"),
    ("cancelled", "TERM_OWNER", r"TERM_OWNER: job killed"),
    ("cancelled", "TERM_PREEMPT", r"TERM_PREEMPT: job killed"),
    # job 4711 exceeded hard wallclock time - initiate terminate method
    ("time_limit", "hard wallclock time", r"exceeded hard wallclock time"),
    # Preempted by ml/other-job on node gpu-3       Job was active longer than specified deadline
    ("cancelled", "Preempted by ", r"\bPreempted by \S"),
    ("time_limit", "specified deadline", r"was active longer than specified deadline"),
    # Spot Instance interruption notice: … will be terminated at …      instance was preempted
    ("cancelled", "nterruption notice", r"[Ii]nstance (?:.{0,40} )?[Ii]nterruption notice"),
    ("cancelled", "as preempted", r"(?:[Ii]nstance|VM|[Nn]ode)\b.{0,60} was preempted"),
    # (autoscaler +4m2s) Instance k-1b5e (node IP: …) will be terminated soon (reason: …)  (Ray)
    ("cancelled", "be terminated soon", r"\b[Ii]nstance \S{1,80} .{0,80}will be terminated soon"),
    # The node with node id: 70… and address: … has been marked dead because the detector has \
    #   missed too many heartbeats from it.  (Ray)
    ("node_fail", "been marked dead", r"\b[Nn]ode with node id: .{1,200} has been marked dead"),
    # The actor died because its node has died. Node Id: 70…  (Ray)
    ("node_fail", "its node has died", r"because its node has died\b"),
)

SCHEDULERS: tuple[Rule, ...] = tuple(
    rule("slurm.event", anchor, pattern, what=what, signal=9 if what == "oom" else 15)
    for what, anchor, pattern in ENDS
)

ANSWERS: tuple[Rule, ...] = (
    # JobId=4711 JobState=NODE_FAIL FailedNode=n2 Reason=NodeDown ExitCode=0:0 EndTime=…
    rule(
        "slurm.event",
        "JobState=",
        r"\bJobId=\S+ JobState=(?:NODE|BOOT)_FAIL\b(?: FailedNode=(?P<_host>[\w.-]{1,253}))?",
        what="node_fail",
        answer=True,
    ),
    # JobId=4711 JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15 EndTime=…
    rule(
        "slurm.event",
        "JobState=",
        r"\bJobId=\S+ JobState=(?:TIMEOUT|DEADLINE)\b",
        what="time_limit",
        answer=True,
    ),
    # JobId=4711 JobState=OUT_OF_MEMORY Reason=OutOfMemory ExitCode=0:125 EndTime=…
    rule(
        "slurm.event",
        "JobState=",
        r"\bJobId=\S+ JobState=OUT_OF_MEMORY\b",
        what="oom",
        answer=True,
    ),
    # JobId=4711 JobState=PREEMPTED Reason=None ExitCode=0:15 EndTime=…
    rule(
        "slurm.event",
        "JobState=",
        r"\bJobId=\S+ JobState=(?:CANCELLED|PREEMPTED)\b",
        what="cancelled",
        answer=True,
    ),
    # NodeName=n2 State=DOWN* Reason=Not responding [slurm@2026-11-21T01:02:03]
    rule(
        "slurm.event",
        "NodeName=",
        r"\bNodeName=(?P<_host>\S+) State=(?:\S*\b(?:DOWN|FAIL|NOT_RESPONDING)\b|\S+\*)",
        what="node_fail",
        answer=True,
    ),
    # NodeName=n2 State=IDLE+DRAIN Reason=gpu fell off [root@2026-11-21T01:02:03]
    rule(
        "slurm.event",
        "NodeName=",
        r"\bNodeName=(?P<_host>\S+) State=\S*\bDRAIN(?:ED|ING)?\b",
        what="node_drained",
        answer=True,
    ),
)
"""What `ncclkit.evidence.sources.slurm_end` keeps of a scheduler's answers."""

RULES: tuple[Rule, ...] = (*TORCHRUN, *PROGRAMS, *SCHEDULERS, *ANSWERS)
