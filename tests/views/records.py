"""A small case with hostile text in every field that comes from outside."""

from dataclasses import replace

from ncclkit.core.case import Case
from ncclkit.core.model import Advice, Event, Experiment, Fact, Finding, Measurement, clear, found, unknown

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


def event_of(
    kind: str, text: str = "", path: str = "", line: int = 0, *, time=None, host="", rank=None, **data
) -> Event:
    """An event with every field of its kind, as the contract wants it."""
    return Event(kind, text, path, line, time, host, None, rank, data)


def job(ranks: int = 8, silent: tuple[int, ...] = (5,), times: bool = True) -> list[Event]:
    """Every rank starts and works; all but the silent ones report a timeout 30 s later."""
    events = []
    for rank in range(ranks):

        def event_of(kind, line, time, text, rank=rank, **data):
            when = 1.7e9 + time if times else None
            return Event(kind, text, f"logs/rank{rank}.log", line, when, "node-1", 100 + rank, rank, data)

        events.append(event_of("nccl.init", 20, 2, "Init COMPLETE", rank=rank, nranks=ranks, phase="done", comm="0x1"))
        events.append(event_of("progress", 300, 31, f"step {rank}", step=rank))
        if rank not in silent:
            events.append(
                event_of("c10d.timeout", 410, 61, f"[Rank {rank}] Watchdog caught collective operation timeout")
            )
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
    made.events = [*job(), event_of("python.exception", HOSTILE, HOSTILE, 3, host=HOSTILE, rank=2, message=HOSTILE)]
    return made


def hostile_job() -> Case:
    """Two ranks whose every word from outside is hostile: hosts, variables, communicators, transports, operations."""
    made = Case()
    for rank in (0, 1):
        place = {"path": f"/logs/{HOSTILE}{rank}.log", "host": HOSTILE, "pid": 10 + rank, "rank": rank}
        init = {"rank": rank, "nranks": 2, "comm": f"0x{rank}", "comm_id": HOSTILE, "bus": HOSTILE, "parent": None}
        link = {"src": rank, "dst": 1 - rank, "transport": HOSTILE, "via": HOSTILE, "gdr": False, "channels": 2}
        status = {
            "seq": 7 + rank,
            "enqueued": 7 + rank,
            "completed": 7,
            "pg": HOSTILE,
            "desc": HOSTILE,
            "pg_rank": rank,
        }
        frames = [{"file": HOSTILE, "line": 3, "func": HOSTILE}]
        made.events += [
            Event("nccl.env", HOSTILE, line=1, data={"name": HOSTILE, "value": f"{HOSTILE}{rank}"}, **place),
            Event("nccl.init", HOSTILE, line=2, data=init | {"phase": "start"}, **place),
            Event("nccl.init", HOSTILE, line=3, data=init | {"phase": "done"}, **place),
            Event("nccl.ring", HOSTILE, line=4, data={"channel": 0, "order": [0, 1], "whole": True}, **place),
            Event("nccl.channel", HOSTILE, line=5, data=link, **place),
            Event("c10d.status", HOSTILE, line=6, data=status, **place),
            Event("stack", HOSTILE, line=7, data={"frames": frames, "tool": "py-spy", "thread": "", "pid": 1}, **place),
        ]
    missing = {"group": HOSTILE, "desc": HOSTILE, "seq": 8, "op": HOSTILE, "missing": [0], "waiting": [1]}
    known = {"no_dump": [], "frames": [], "last_seq": {"0": 7, "1": 8}}
    made.events.append(Event("flight.missing", HOSTILE, HOSTILE, 0, rank=0, data=missing | known))
    row = {"bytes": 10, "lines": 1, "events": 0, "ranks": [0]}
    made.inputs = [row | {"path": HOSTILE, "kind": "log"}, row | {"path": f"{HOSTILE}2", "kind": "binary"}]
    made.about["problems"] = [f"{HOSTILE} is a binary file."]
    return made


def hostile_machine() -> Case:
    """Two hosts whose every word is hostile, one of them with values of the wrong types."""
    made = Case()
    links = {f"GPU{a}": {f"GPU{b}": HOSTILE for b in range(3) if b != a} | {"NIC0": HOSTILE} for a in range(3)}
    port = {"device": HOSTILE, "port": HOSTILE, "state": HOSTILE, "link_layer": HOSTILE, "rate": 1, "numa": 0}
    row = {"name": HOSTILE, "state": HOSTILE, "addresses": [HOSTILE], "driver": HOSTILE, "kind": HOSTILE, "speed": 1}
    known = {
        "gpu.count": 3,
        "gpu.topology": links,
        "gpu.topology.nics": {"NIC0": HOSTILE},
        "gpu.0.model": HOSTILE,
        "gpu.0.nvlink.links": 4,
        "gpu.1.nvlink.links": 3,
        "cpu.numa": {"0": HOSTILE},
        "net.rdma": [{**port, "gids": [{"interface": HOSTILE}], "counters": {HOSTILE: HOSTILE}}],
        "net.interfaces": [row, HOSTILE],
        "net.default": HOSTILE,
        "net.hostname.addresses": [HOSTILE],
        "net.nccl.interface": HOSTILE,
        "net.nccl.interfaces": [HOSTILE, f"{HOSTILE}2"],
    }
    made.facts = [Fact(name, value, HOSTILE, HOSTILE, HOSTILE) for name, value in known.items()]
    made.facts += [Fact(name, HOSTILE, host=f"{HOSTILE}2", why=HOSTILE) for name in known]
    made.facts.append(Fact("net.gloo.interface", None, "", HOSTILE, HOSTILE, why=HOSTILE))
    return made
