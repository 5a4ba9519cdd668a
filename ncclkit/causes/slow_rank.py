"""One rank was busy elsewhere while the others waited for it in a collective

What you see
    All ranks but one print "Watchdog caught collective operation timeout" (NCCL) or "Timed out waiting ... for
    recv" (gloo) for the same collective, usually after exactly 600 s or 1800 s.  The rank that matters prints
    nothing, or its ordinary progress, and is often still alive when torchrun stops it.

Why it happens
    A collective ends only when every rank has called it.  A rank that tokenises the data, replays a million
    batches to resume, evaluates or writes a checkpoint alone leaves the others waiting inside NCCL kernels, where
    they look perfectly busy.  After the time limit the watchdog of each *waiting* rank aborts its process, so the
    first crash, which torchrun reports as "root cause", is a victim.

How to be sure
    Ask who is missing, not who complains: the Flight Recorder shows the last collective of every rank, and the one
    that lags is the culprit; a stack of that rank (py-spy dump, ncclkit attach) shows the line it is busy in.
    If all ranks have launched the collective, the network or a GPU is stuck instead, and this is not the cause.

What to do
    Take the long phase out of the path of the others: preprocess before the job starts or on all ranks, keep the
    data position in the checkpoint, evaluate on all ranks, write checkpoints asynchronously.  If the phase must
    stay, put a monitored barrier with its own long timeout behind it, or raise the limit of the process group.

Read more
    PyTorch: init_process_group(timeout), Flight Recorder tutorial, torch.distributed.monitored_barrier.
"""

from __future__ import annotations

from dataclasses import replace

from ncclkit.analysis.frames import for_workers, in_collective, stacks
from ncclkit.analysis.picks import in_order, name_ranks, otherwise, pick, seconds
from ncclkit.analysis.rank_states import RankStates, look, rank_of
from ncclkit.causes import _lateness, _unseen
from ncclkit.causes._experiments import recorded
from ncclkit.causes._resume import keep_position
from ncclkit.causes._settings import raise_timeout
from ncclkit.causes._unseen import Suspicion
from ncclkit.core.case import Case
from ncclkit.core.model import Advice, Event, Experiment, Finding, clear, found, unknown
from ncclkit.core.text import start

ID = "slow_rank"
explains = (
    *("c10d.timeout", "gloo.timeout", "gloo.closed", "store.lost"),
    *("timeout_too_short", "rank_killed", "network_loss"),
)


def diagnose(case: Case) -> Finding:
    """Who is missing from the collective that the others wait in?"""
    scene = look(case)
    dead = scene.dead
    if dead:
        return clear(
            ID,
            f"{start(name_ranks(r for r in dead if r >= 0))} died, so nobody had to be slow.",
            tuple(dead.values())[:3],
        )
    mismatches = (*case.of("flight.mismatch"), *case.of("gloo.size_mismatch"))
    if mismatches:
        return clear(ID, "The ranks made different calls, so none of them was merely late.", mismatches[:3])
    for witness in (_flight, _barrier, _stacks, _behind, _ras, _launched_late, *_unseen.WITNESSES):
        if suspicion := witness(case, scene):
            return _tell(case, scene, suspicion)
    if scene.waiting:
        return unknown(
            ID, "a Flight Recorder dump or a stack of every rank at the moment of the hang", next=experiment(case)
        )
    at_work = [change for change in case.of("ras.change") if change.data["moved"] and not change.data["still"]]
    went_well = [*scene.ended.values(), *case.of("nccl.destroy"), *case.of("flight.dump"), *at_work]
    return otherwise(
        ID,
        went_well,
        "No rank waited in vain for a collective.",
        "the log of every rank up to the watchdog's message, or Flight Recorder dumps (TORCH_FR_BUFFER_SIZE=2000)",
    )


def _flight(case: Case, scene: RankStates) -> Suspicion | None:
    """Who never launched it; in a cascade of groups, who is waited for and waits for nobody, in no call of its own."""
    gaps = [*case.of("flight.missing"), *case.of("flight.p2p")]
    stuck = {rank for gap in gaps if _awaited(gap) for rank in gap.data.get("waiting", ())}
    for gap in gaps:
        roots = [r for r in _awaited(gap) if r not in stuck and r not in scene.ended and r not in scene.waiting]
        if roots:
            alive = _alive(case, roots)
            return "proven" if alive else "likely", tuple(roots), [gap, *alive]
    return None


def _awaited(gap: Event) -> list[int]:
    """Ranks that did not make the call, by the dumps: of a collective, or of a send or receive."""
    return gap.data.get("missing") or gap.data.get("lacking") or []


def _barrier(case: Case, scene: RankStates) -> Suspicion | None:
    """Who did not come: as gloo's monitored barrier asked, or as torch reconstructs it without knowing why."""
    for report in (*case.of("gloo.barrier"), *case.of("c10d.desync")):
        asked = report.kind == "gloo.barrier"
        gone = scene.ended if asked else scene.ended | scene.waiting
        late = [rank for rank in report.data["ranks" if asked else "missing"] or () if rank not in gone]
        if late:
            alive = _alive(case, late) if asked else []
            return "proven" if alive else "likely", tuple(late), [report, *alive]
    return None


def _alive(case: Case, ranks: list[int]) -> list[Event]:
    """What shows for each of these ranks that its process was alive in the hang, and nothing that it waited itself.

    Empty when one may have been dead, or stood in another call that waits for a peer.
    """
    signs = stacks(case)
    if any(rank in signs and in_collective(signs[rank].data["frames"]) for rank in ranks):
        return []
    for event in case.events:
        if event.rank is not None and event.kind in ("c10d.status", "c10d.monitor", "elastic.stop"):
            signs.setdefault(event.rank, event)
    return [signs[rank] for rank in ranks] if set(ranks) <= signs.keys() else []


def _stacks(case: Case, scene: RankStates) -> Suspicion | None:
    """Stacks of a hang: most ranks stand in a collective or gave up in one, a few stand in their own code.

    Without a timeout it is one look at a job that may be well: no more than possible, and nothing in a run that
    somebody cancelled.
    """
    seen, gave_up = stacks(case), scene.waiting.keys()
    busy = [rank for rank, stack in seen.items() if not in_collective(stack.data["frames"])]
    ended_early = any(e.data.get("reason") in ("cancelled", "orphaned") for e in case.of("run.end"))
    if not busy or len(busy) * 2 > len(seen.keys() | gave_up) or set(busy) & gave_up or ended_early:
        return None
    return "proven" if scene.waiting else "possible", tuple(sorted(busy)), [seen[rank] for rank in busy]


def _behind(case: Case, scene: RankStates) -> Suspicion | None:
    """A watchdog says that its rank never enqueued what the others wait for, and has nothing of its own in flight."""
    seqs = [e.data["seq"] for e in scene.waiting.values() if isinstance(e.data.get("seq"), int)]
    idle = [
        status
        for status in case.of("c10d.status")
        if seqs
        and isinstance(status.data.get("enqueued"), int)
        and status.data["enqueued"] < min(seqs)
        and status.data.get("completed") == status.data["enqueued"]
        and rank_of(status) not in scene.waiting
        and status.data.get("pg") in {e.data.get("pg") for e in scene.waiting.values()} | {None}
    ]
    return ("proven", tuple(sorted({rank_of(s) for s in idle})), list(idle)) if idle else None


def _ras(case: Case, scene: RankStates) -> Suspicion | None:
    """Who has launched fewer collectives; not who launched some between two reports, as ranks at work drift apart, nor
    who gave up in one itself: a launch that waits for other work is counted late.  Only a communicator of all counts.
    """
    changes = case.of("ras.change")
    moved = {(change.data["hash"], int(rank)) for change in changes for rank in change.data["moved"]}
    for report in case.of("ras.communicator"):
        key, size = report.data.get("hash"), report.data.get("size")
        gone = scene.waiting.keys() | {rank for hashed, rank in moved if hashed == key}
        late = tuple(rank for rank in report.data.get("behind", ()) if rank not in gone)
        if late and (None in (size, scene.world) or size == scene.world):
            return "likely", late, [report, *(change for change in changes if change.data["hash"] == key)]
    return None


def _launched_late(case: Case, scene: RankStates) -> Suspicion | None:
    """All timed out, but one of them entered the collective long after the others had."""
    limit = min((e.data["timeout_ms"] / 1000 for e in scene.waiting.values() if e.data.get("timeout_ms")), default=None)
    told = [e for e in case.of("flight.late") if limit and e.data["seconds"][str(e.data["worst"])] > limit / 2]
    if told:
        return "likely", (told[0].data["worst"],), told[:1]
    entered = {
        rank: event.time - event.data["ran_ms"] / 1000
        for rank, event in scene.waiting.items()
        if event.time is not None and event.data.get("ran_ms")
    }
    if len(entered) < 2 or limit is None:
        return None
    middle = sorted(entered.values())[(len(entered) - 1) // 2]
    late = [rank for rank, moment in entered.items() if moment - middle > limit / 2]
    return ("likely", tuple(sorted(late)), [scene.waiting[rank] for rank in late]) if late else None


def _tell(case: Case, scene: RankStates, suspicion: Suspicion) -> Finding:
    strength, ranks, why = suspicion
    where, seen = _lateness.where(case, ranks), _lateness.last_line(why)
    load = "" if where else _lateness.load(why, ranks)
    fed = for_workers(case, ranks)
    looked_into = stacks(case).keys() & set(ranks)
    if strength == "proven" and (fed or not looked_into):  # a file server, Python's lock or its workers may keep it
        strength = "likely"
    first = next(iter(in_order(scene.waiting.values())), None)
    call = _lateness.call(first, why)
    limit = f" {seconds(first.data['timeout_ms'])}" if first and first.data.get("timeout_ms") else ""
    doing = "waiting for data-loader workers" if fed else _lateness.doing(case, ranks)
    busy = f", {doing} in {where}," if where else f", {load}," if load else f", last seen at {seen!r}," if seen else ""
    came = any(event.kind == "flight.late" for event in why)
    verb = "may have been late for" if strength == "possible" else "was late for" if came else "had not entered"
    who = f"{start(name_ranks(ranks))}{busy} {verb}"
    gaps = [rank for gap in why if gap.kind in ("flight.missing", "flight.p2p") for rank in gap.data.get("waiting", ())]
    waited = [rank for rank in scene.waiting or gaps if rank >= 0 and rank not in ranks]
    say = f"{who} {call}, in which {name_ranks(waited) if waited else 'the others'} waited{limit} in vain."
    return found(
        ID,
        strength,
        say,
        pick(why, _lateness.counted(case, ranks), in_order(scene.waiting.values())),
        ranks=ranks,
        advice=_advice(case, ranks, where),
        next=None if strength == "proven" else experiment(case),
    )


def _advice(case: Case, ranks: tuple[int, ...], where: str) -> tuple[Advice, ...]:
    who = name_ranks(ranks)
    return (
        *keep_position(case, ranks),
        Advice(
            f"Shorten or move what {who} does"
            + (f" in {where}" if where else "")
            + " so that all ranks reach the collective together.",
            why="The other ranks only wait; nothing is wrong with the network.",
            check="Time the phase on each rank: the longest minus the shortest must stay well below the time limit.",
            risk="None for the result; the work itself stays the same.",
        ),
        replace(raise_timeout(case, f"Needed when {who} cannot be made faster."), change={}),  # mends no late rank
    )


def experiment(case: Case) -> Experiment:
    """Run again with the Flight Recorder on and look who is missing."""
    return recorded(
        "Which rank has not launched the collective that the others wait in?",
        {
            ID: "one rank lags and its stack stands in its own code",
            "rank_divergence": "the rank stands in another collective, or has left the loop",
            "shape_mismatch": "all ranks have launched it, with different shapes or types",
        },
    )
