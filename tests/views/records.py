"""A small case with hostile text in every field that comes from outside."""

from dataclasses import replace

from ncclkit.case import Case
from ncclkit.model import Advice, Event, Experiment, Fact, Finding, Measurement, clear, found, unknown

HOSTILE = """<script>alert(1)</script>"><img src=x onerror='alert(2)'>\x1b[31m\x00\udcff"""


def measurement(size: int, **changes) -> Measurement:
    time = 60 + size / 1900
    known = Measurement(
        op="all_reduce",
        bytes=size,
        dtype="float32",
        ranks=4,
        hosts=1,
        backend="gloo",
        time_us=time,
        p99_us=2 * time,
        spread=0.1,
        algbw=size / time / 1e3,
        busbw=1.5 * size / time / 1e3,
        wrong=0,
        run="1-all_reduce",
    )
    return replace(known, **changes)


CURVE = [measurement(4**power) for power in range(2, 13)]

FACTS = [
    Fact("limits.shm.free", 64 * 2**20, "bytes", "statvfs /dev/shm", "node-1"),
    Fact("limits.memlock", -1, "bytes", "/proc/self/limits", "node-1"),
    Fact("gpu.topology", None, "", "nvidia-smi topo -m", "node-1", why="nvidia-smi did not answer within 5 s"),
    Fact("net.interfaces", [{"name": "eth0", "mtu": 1500}, {"name": HOSTILE}], "", "/sys/class/net", "node-1"),
    Fact("env.NCCL_X", HOSTILE, "", HOSTILE, HOSTILE),
]


def job(ranks: int = 8, silent: tuple[int, ...] = (5,), times: bool = True) -> list[Event]:
    """Every rank starts and works; all but the silent ones report a timeout 30 s later."""
    events = []
    for rank in range(ranks):

        def said(kind, line, time, text, rank=rank, **data):
            when = 1.7e9 + time if times else None
            return Event(kind, text, f"logs/rank{rank}.log", line, when, "node-1", 100 + rank, rank, data)

        events.append(said("nccl.init", 20, 2, "Init COMPLETE", nranks=ranks))
        events.append(said("progress", 300, 31, f"step {rank}", step=rank))
        if rank not in silent:
            events.append(said("c10d.timeout", 410, 61, f"[Rank {rank}] Watchdog caught collective operation timeout"))
    return events


def findings() -> list[Finding]:
    line = Event("c10d.timeout", f"line one\n{HOSTILE}", f"/logs/{HOSTILE}.log", 17, rank=3, count=4)
    advice = Advice(
        f"do {HOSTILE}", {"NCCL_DEBUG": "a b"}, "the-command", "the_code()", "the why", "the check", "the risk"
    )
    ask = Experiment("the question?", {"ranks": 2}, {"slow_rank": "what it predicts"})
    return [
        found(
            "slow_rank",
            "proven",
            f"Rank 5 {HOSTILE}",
            [line, FACTS[0], CURVE[0]],
            ranks=(5,),
            hosts=(HOSTILE,),
            advice=(advice,),
            next=ask,
        ),
        found("shm_too_small", "likely", "shm is small", [FACTS[0]]),
        unknown("gid_index", "show_gids output"),
        clear("host_oom", "no OOM kill in dmesg"),
    ]


def case() -> Case:
    made = Case()
    made.facts, made.measurements, made.findings = list(FACTS), list(CURVE), findings()
    made.events = [*job(), Event("python.exception", HOSTILE, HOSTILE, 3, host=HOSTILE, rank=2, data={"x": HOSTILE})]
    return made
