"""One rank was busy elsewhere while the others waited for it in a collective

What you see
    All ranks but one print "Watchdog caught collective operation timeout" (NCCL) or "Timed out waiting ... for
    recv" (gloo) for the same collective, usually after exactly 600 s or 1800 s.  The rank that matters prints
    nothing, or its ordinary progress, and is often still alive when torchrun stops it.

Why it happens
    A collective ends only when every rank has called it.  A rank that tokenises the data, replays a million
    batches to resume, evaluates or writes a checkpoint alone leaves the others waiting inside NCCL kernels, where
    they look perfectly busy.  After the timeout the watchdog of each *waiting* rank aborts its process, so the
    first crash, which torchrun reports as "root cause", is a victim.

How to be sure
    Look for the missing rank, not for the ranks that report: the Flight Recorder shows each rank's last collective,
    and the rank that lags is at fault; a stack of it (py-spy dump, ncclkit attach) shows the line it is busy in.
    If all ranks have launched the collective, the network or a GPU is stuck instead, and this is not the cause.

What to do
    Take the long phase out of the path of the others: preprocess before the job starts or on all ranks, keep the
    data position in the checkpoint, evaluate on all ranks, write checkpoints asynchronously.  If the phase must
    stay, put a monitored barrier with its own long timeout behind it, or raise the timeout of the process group.

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
    """Found where a rank is missing from the collective in which the others wait."""
    scene = look(case)
    dead = scene.dead
    if dead:
        return clear(
            ID,
            f"{start(name_ranks(r for r in dead if r >= 0))} died, so no rank had to be slow.",
            tuple(dead.values())[:3],
        )
    mismatches = (*case.of("flight.mismatch"), *case.of("gloo.size_mismatch"))
    if mismatches:
        return clear(ID, "The ranks made different calls, so no rank was merely late.", mismatches[:3])
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
        "No rank timed out waiting for a collective.",
        "the log of every rank up to the watchdog's message, or Flight Recorder dumps (TORCH_FR_BUFFER_SIZE=2000)",
    )


def _flight(case: Case, scene: RankStates) -> Suspicion | None:
    """Ranks that never launched the collective, by the dumps.

    In a cascade of groups: ranks for which others wait and which are in no call themselves.
    """
    gaps = [*case.of("flight.missing"), *case.of("flight.p2p")]
    stuck = {rank for gap in gaps if _awaited(gap) for rank in gap.data.get("waiting", ())}
    for gap in gaps:
        roots = [r for r in _awaited(gap) if r not in stuck and r not in scene.ended and r not in scene.waiting]
        if roots:
            alive = _alive(case, roots)
            return "proven" if alive else "likely", tuple(roots), [gap, *alive]
    return None


def _awaited(gap: Event) -> list[int]:
    """Ranks that did not make a collective, a send or a receive, by the dumps."""
    return gap.data.get("missing") or gap.data.get("lacking") or []


def _barrier(case: Case, scene: RankStates) -> Suspicion | None:
    """Ranks missing from a barrier, by gloo's monitored barrier or by torch's reconstruction."""
    for report in (*case.of("gloo.barrier"), *case.of("c10d.desync")):
        asked = report.kind == "gloo.barrier"
        gone = scene.ended if asked else scene.ended | scene.waiting
        late = [rank for rank in report.data["ranks" if asked else "missing"] or () if rank not in gone]
        if late:
            alive = _alive(case, late) if asked else []
            return "proven" if alive else "likely", tuple(late), [report, *alive]
    return None


def _alive(case: Case, ranks: list[int]) -> list[Event]:
    """Events that show for each of these ranks that its process was alive in the hang and not waiting itself.

    Empty where a rank may have been dead, or was in another call that waits for a peer.
    """
    signs = stacks(case)
    if any(rank in signs and in_collective(signs[rank].data["frames"]) for rank in ranks):
        return []
    for event in case.events:
        if event.rank is not None and event.kind in ("c10d.status", "c10d.monitor", "elastic.stop"):
            signs.setdefault(event.rank, event)
    return [signs[rank] for rank in ranks] if set(ranks) <= signs.keys() else []


def _stacks(case: Case, scene: RankStates) -> Suspicion | None:
    """Ranks whose stack is in their own code while most ranks are in a collective or timed out in one.

    Without a timeout the job may be healthy: then at most `possible`, and None in a run that was cancelled.
    """
    seen, gave_up = stacks(case), scene.waiting.keys()
    busy = [rank for rank, stack in seen.items() if not in_collective(stack.data["frames"])]
    ended_early = any(e.data.get("reason") in ("cancelled", "orphaned") for e in case.of("run.end"))
    if not busy or len(busy) * 2 > len(seen.keys() | gave_up) or set(busy) & gave_up or ended_early:
        return None
    return "proven" if scene.waiting else "possible", tuple(sorted(busy)), [seen[rank] for rank in busy]


def _behind(case: Case, scene: RankStates) -> Suspicion | None:
    """Ranks whose watchdog says that the collective was never enqueued there, and that no call is in flight."""
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
    """Ranks that have launched fewer collectives, by NCCL's RAS; only the communicator of all ranks is compared.

    Left out: ranks that launched some between two reports, as busy ranks drift apart, and ranks that timed out
    themselves, as a launch that waits for other work is counted late.
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
    """Ranks that entered the collective long after the others, where all timed out."""
    limit = min((e.data["timeout_ms"] / 1000 for e in scene.waiting.values() if e.data.get("timeout_ms")), default=None)
    reported = [e for e in case.of("flight.late") if limit and e.data["seconds"][str(e.data["worst"])] > limit / 2]
    if reported:
        return "likely", (reported[0].data["worst"],), reported[:1]
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
    if strength == "proven" and (fed or not looked_into):  # a file server, Python's lock or its workers may hold it up
        strength = "likely"
    first = next(iter(in_order(scene.waiting.values())), None)
    call = _lateness.call(first, why)
    limit = f" after {seconds(first.data['timeout_ms'])}" if first and first.data.get("timeout_ms") else ""
    doing = "waiting for data-loader workers" if fed else _lateness.doing(case, ranks)
    busy = f", {doing} in {where}," if where else f", {load}," if load else f", last seen at {seen!r}," if seen else ""
    came = any(event.kind == "flight.late" for event in why)
    verb = "may have been late for" if strength == "possible" else "was late for" if came else "had not entered"
    who = f"{start(name_ranks(ranks))}{busy} {verb}"
    gaps = [rank for gap in why if gap.kind in ("flight.missing", "flight.p2p") for rank in gap.data.get("waiting", ())]
    waited = [rank for rank in scene.waiting or gaps if rank >= 0 and rank not in ranks]
    others = name_ranks(waited) if waited else "the other ranks"
    say = f"{who} {call}; {others} timed out{limit} waiting in it."
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
            check="Time the phase on each rank: the longest minus the shortest must stay well below the timeout.",
            risk="None for the result; the work itself stays the same.",
        ),
        replace(raise_timeout(case, f"Needed when {who} cannot be made faster."), change={}),  # fixes no late rank
    )


def experiment(case: Case) -> Experiment:
    """Run again with the Flight Recorder on to see which rank is missing."""
    return recorded(
        "Which rank has not launched the collective that the others wait in?",
        {
            ID: "one rank lags and its stack is in its own code",
            "rank_divergence": "the rank is in another collective, or has left the loop",
            "shape_mismatch": "all ranks have launched it, with different shapes or types",
        },
    )
