"""Which rank may be late where nothing looked into the ranks: by its load, its silence, a counter or a phase."""

from __future__ import annotations

import re

from ncclkit.analysis.calls import exchanging
from ncclkit.analysis.frames import stacks
from ncclkit.analysis.picks import in_order, matching
from ncclkit.analysis.rank_states import RankStates, all_in, odd_utilization, opening, rank_of
from ncclkit.causes import _lateness
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Strength

Suspicion = tuple[Strength, tuple[int, ...], list[Event]]
"""How sure, which ranks, and what says so."""


def _load(case: Case, scene: RankStates) -> Suspicion | None:
    """Where no stack could be read: a few ranks compute while the others idle, or idle while the others spin.

    Either may be the one that waits, as NCCL spins where gloo sleeps; so the few stand against the many.
    """
    odd = odd_utilization(case)
    ended = {e.data.get("reason") for e in case.of("run.end")} - {"deadline"}
    if not odd or set(odd) & (stacks(case).keys() | scene.waiting.keys()) or ended or scene.ended:
        return None
    others = [event for event in case.of("telemetry.utilization") if event.rank not in odd]
    return "likely" if scene.waiting else "possible", tuple(sorted(odd)), [*odd.values(), *others]


def _absent(case: Case, scene: RankStates) -> Suspicion | None:
    """Ranks of a run of ours whose process lived and never said that it had begun, while others waited at the start.

    None where most are missing, as then it is no matter of single ranks.
    """
    told = {event.rank for event in case.of("worker.phase")} - {None}
    missing = tuple(rank for rank in scene.members if rank not in told) if told and not scene.ended else ()
    waits = [*case.of("store.wait"), *(end for end in case.of("run.end") if end.data.get("reason") == "deadline")]
    lived = {event.rank: event for event in (*case.of("telemetry.utilization"), *case.of("elastic.stop"))}
    if not (missing and waits) or 2 * len(missing) > len(scene.members) or not set(missing) <= lived.keys():
        return None
    return "likely", missing, [*waits, *case.of("telemetry.utilization"), *(lived[rank] for rank in missing)]


def _silent(case: Case, scene: RankStates) -> Suspicion | None:
    """The only ranks without a watchdog line, where most have one."""
    silent = scene.silent
    if not silent or len(silent) > max(1, len(scene.members) // 4) or len(scene.waiting) < 2 or _differ(scene):
        return None
    return "likely", silent, [event for rank in silent for event in _lateness.last_words(case, rank)]


def _busy(case: Case, scene: RankStates) -> Suspicion | None:
    """A rank prepares or skips data at the start of the job, where the others wait for it."""
    phase = opening(case, "data", "skip")
    if phase is None or scene.ended or _differ(scene) or rank_of(phase) in scene.waiting:
        return None
    return "likely", () if phase.rank is None else (phase.rank,), [phase, *in_order(case.of("progress"))[-1:]]


def _progress(case: Case, scene: RankStates) -> Suspicion | None:
    """A loop with a visible counter is under way where somebody waits for a collective."""
    running = [e for e in case.of("progress") if rank_of(e) not in scene.waiting]
    if not scene.waiting or not running or scene.ended or _differ(scene):
        return None
    limit = max(e.data.get("timeout_ms") or 0 for e in scene.waiting.values()) / 1000
    lone = [e for e in running if LONE.search(e.text) and 0.8 * limit < _took(e) < 2 * limit]
    return "likely" if lone else "possible", (), in_order(lone or running)[-2:]


LONE = re.compile(r"\b(?:evaluat|validat|generat|predict|tokeniz|filter|preprocess|merg|upload|download)", re.I)
"""What one rank often does while the others wait for it."""
TOOK = re.compile(r"\[(?:(\d+):)?(\d+):(\d\d)<")
"""How long a loop with tqdm's counter has run."""


def _took(event: Event) -> float:
    """Seconds of the loop, as its counter says; it moved as long, where the others stood still."""
    took = TOOK.search(event.text)
    return (int(took[1] or 0) * 60 + int(took[2])) * 60 + int(took[3]) if took else 0.0


def _symptom(case: Case, scene: RankStates) -> Suspicion | None:
    absent = [e for e in case.of("c10d.unique_id") if not matching([e], "reset by peer", "Broken pipe", "got 0 bytes")]
    short = [e for e in case.of("store.clients") if e.data.get("key") and e.data["joined"] != e.data["expected"]]
    absent += [*case.of("store.wait"), *short]
    if absent and not case.of("store.connect_timeout"):
        ranks = {e.data["from_rank"] for e in absent if isinstance(e.data.get("from_rank"), int)}
        return "possible", tuple(sorted(ranks)), absent
    lone = _differ(scene) or exchanging(scene.waiting.values())
    if scene.waiting and not scene.ended and not lone and not case.of("flight.") and not all_in(case, scene):
        return "possible", (), []
    return None


def _differ(scene: RankStates) -> bool:
    """Ranks wait for different collectives: divergence, not slowness."""
    calls = {(e.data.get("pg"), e.data.get("op")) for e in scene.waiting.values() if e.data.get("op")}
    return len({op for _, op in calls}) > 1 and len({pg for pg, _ in calls}) == 1


WITNESSES = (_load, _absent, _silent, _busy, _progress, _symptom)
"""In the order in which they are asked."""
