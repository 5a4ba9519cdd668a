"""One rank was busy elsewhere while the others waited for it in a collective

What you see
    All ranks but one print "Watchdog caught collective operation timeout" (NCCL) or "Timed out
    waiting ... for recv" (gloo) for the same collective, usually after exactly 600 s or 1800 s.
    The rank that matters prints nothing, or its ordinary progress, and is often still alive when
    torchrun stops it.

Why it happens
    A collective ends only when every rank has called it.  A rank that tokenises the data, replays a
    million batches to resume, evaluates or writes a checkpoint alone leaves the others waiting
    inside NCCL kernels, where they look perfectly busy.  After the timeout the watchdog of each
    waiting rank aborts its process, so the first crash, which torchrun reports as "root cause", is
    a victim.

How to be sure
    Look for the missing rank, not for the ranks that report: the Flight Recorder shows each rank's
    last collective, and the rank that lags is at fault; a stack of it (py-spy dump, ncclkit attach)
    shows the line it is busy in. If all ranks have launched the collective, the network or a GPU is
    stuck instead, and this is not the cause. A GPU that an endless kernel holds launches the
    collective and does not begin it: torch's default dumps call it "scheduled" on all ranks, so
    that nothing in them tells the rank; those of TORCH_NCCL_ENABLE_TIMING=1 say "started" of the
    others, and `ncclkit attach --kernels` names the kernel while the job hangs.

What to do
    Preprocess before the job starts or on all ranks, keep the data position in the checkpoint,
    evaluate on all ranks, write checkpoints asynchronously.  If the phase must stay, put a
    monitored barrier with its own long timeout behind it.

Read more
    PyTorch: init_process_group(timeout), Flight Recorder tutorial,
    torch.distributed.monitored_barrier.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ncclkit.analysis.calls import only_point_to_point, op_of
from ncclkit.analysis.frames import for_workers, in_collective, own_frame, place, stacks
from ncclkit.analysis.launches import (
    AGAIN,
    AS_HEALTHY,
    counts_in_words,
    count_gap,
    global_ranks,
    hosts_of,
    in_brackets,
    behind_sentence,
    places_in_words,
    stands_still,
)
from ncclkit.analysis.last_words import (
    awaited_keys,
    call_in_tracebacks,
    dumps_tell,
    gaps_without_dump,
    heeds_no_signal,
    interrupted,
    sides_by_tracebacks,
    stood_last,
    stops_of_rank,
)
from ncclkit.analysis.picks import (
    first_finding,
    in_order,
    matching,
    name_ranks,
    on,
    otherwise,
    pick,
    ranks_in,
    seconds,
    who_are,
)
from ncclkit.analysis.rank_states import (
    RankStates,
    all_waiting,
    how_they_waited,
    idle_service,
    outlying_utilization,
    rank_of,
    rank_states,
    sequence_of,
    startup_phase,
    stopped,
    timeout_of,
)  # fmt: skip
from ncclkit.analysis.steps import NAMES, measured_steps
from ncclkit.analysis.waits import (
    UNCONNECTED,
    RankPosition,
    inside,
    positions_of_case,
    waiting_time_of_case,
)
from ncclkit.causes._awaited_advice import REMEDIES_OF_WAITS, advice_on_wait
from ncclkit.causes._experiments import recorded
from ncclkit.causes._printed import pending_calls
from ncclkit.causes._resuming import advice_for_loader, keep_position
from ncclkit.causes._settings import (
    LONE,
    is_below_default,
    loop_seconds,
    raise_timeout,
    unreached_timeout,
)
from ncclkit.core import text
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    C10dStatus,
    C10dTimeout,
    C10dUniqueId,
    FlightLate,
    FlightMissing,
    FlightStuck,
    RasChange,
    RasCommunicator,
    RunEnd,
    StepProgress,
    StoreClients,
    StoreConnectTimeout,
    StoreWait,
    TelemetryUtilization,
    WorkerPhase,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, clear, found, unknown

ID = "slow_rank"
explains = (
    *("c10d.timeout", "gloo.timeout", "gloo.closed", "store.lost"),
    *("timeout_too_short", "rank_killed", "network_loss"),
)


def diagnose(case: Case) -> Finding:
    """Found where a rank is missing from the collective in which the others wait."""
    at_work = []
    for change in case.of(RasChange):
        if change.data.moved and not change.data.still:
            at_work.append(change)
    ended = rank_states(case).ended
    went_well = [*ended.values(), *case.of("nccl.destroy", "flight.dump"), *at_work]
    return first_finding(
        case, _all_acquitted, _suspected_rank, _late_in_steps, _unnamed_by_ras, _unseen_rank
    ) or otherwise(
        ID,
        went_well,
        "No rank timed out waiting for a collective.",
        "the log of every rank up to the watchdog's message, or Flight Recorder dumps"
        " (TORCH_FR_BUFFER_SIZE=2000)",
    )


def _suspected_rank(case: Case) -> Finding | None:
    """The first sign, the surest first, that names a rank which the others wait for."""
    states = rank_states(case)
    for sign in (*SIGNS_OF_CALLS, *WITNESSES):
        suspicion = sign(case, states)
        if suspicion:
            return _finding_of_suspicion(case, states, suspicion)
    return None


def _unseen_rank(case: Case) -> Finding | None:
    """Ranks wait, and nothing shows which one they wait for."""
    if not rank_states(case).waiting:
        return None
    missing = "a Flight Recorder dump or a stack of every rank at the moment of the hang"
    recorded_states: set[str] = set()
    for stuck in case.of(FlightStuck):
        recorded_states.update(stuck.data.states.values())
    # torch records the start of a call on its GPU only where it is asked to
    if recorded_states == {"scheduled"}:
        missing = (
            "dumps of a run with TORCH_NCCL_ENABLE_TIMING=1, which tell whose GPU has not begun the"
            " collective"
        )
    return unknown(
        ID,
        missing,
        next=experiment(case),
    )


def _all_acquitted(case: Case) -> Finding | None:
    """What shows at once that no rank was merely late."""
    states = rank_states(case)
    dead = states.dead
    if dead:
        return clear(
            ID,
            f"{who_are(r for r in dead if r >= 0)} died, so no rank had to be slow.",
            tuple(dead.values())[:3],
        )
    instant = states.instant_timeouts
    if instant:
        return clear(
            ID,
            "A timeout below a second ends healthy collectives: no rank had to be late.",
            instant[:3],
        )
    idle = idle_service(case)
    if idle:
        return clear(ID, "The server had no request to work on, so no rank was late.", (idle,))
    # ranks in different calls wait for ever, however fast they are
    mismatches = case.of("flight.mismatch", "gloo.size_mismatch")
    if mismatches:
        return clear(
            ID, "The ranks made different calls, so no rank was merely late.", tuple(mismatches[:3])
        )
    return None


def _finding_of_suspicion(case: Case, states: RankStates, suspicion: Suspicion) -> Finding:
    """What a witness says.

    It is weaker where the timeout had not passed: a rank may be in time.
    """
    finding = _finding(case, states, suspicion)
    # the group had a shorter timeout than was meant: the rank may have been in time
    if finding.strength == "likely" and unreached_timeout(case)[0]:
        return replace(finding, strength="possible")
    return finding


def _late_in_steps(case: Case) -> Finding | None:
    """A rank that comes last to the collectives of most steps.

    It is found in a job that goes on; clear where none does.
    """
    measured = measured_steps(case)
    if measured is None or rank_states(case).waiting:
        return None
    times, events = measured
    # some rank is last in every step; late is one that is last in most
    if times.late is None:
        if len(times.ranks) > 1:
            return clear(
                ID,
                "No rank comes last to the collectives of most measured steps.",
                tuple(events[:3]),
            )
        return unknown(ID, "the steps of every rank (`ncclkit step`)")
    late, excess = times.late
    waited = max(one.parts["waiting"] for one in times.ranks)
    whole = text.format_time(1e6 * times.seconds)
    say = (
        f"{who_are((late.rank,))} comes last to the collectives of"
        f" {text.percent(late.late)} of the measured"
        f" steps{f', as it spends more on {NAMES[excess]}' if excess else ''}; the others wait for"
        f" it up to {text.format_time(1e6 * waited)} of a step of {whole}."
    )
    why = sorted(events, key=lambda event: event.rank != late.rank)
    return found(
        ID,
        "likely",
        say,
        tuple(why[:3]),
        ranks=(late.rank,),
        advice=_advice(case, (late.rank,), ""),
    )


def _missing_in_dumps(case: Case, states: RankStates) -> Suspicion | None:
    """Ranks that never launched the collective, by the dumps.

    In a cascade of groups they are ranks for which others wait and which are in no call themselves.
    """
    gaps = []
    for event in case.of("flight.missing", "flight.p2p"):
        # a pair of a running job is send_recv_mismatch, if at all
        if event.kind == "flight.missing" or not event.data.live:
            gaps.append(event)
    # in a cascade of groups the rank that lags is one that waits in no call itself
    stuck = set()
    for gap in gaps:
        if _awaited_ranks(gap):
            stuck.update(gap.data.waiting)
    for gap in gaps:
        roots = []
        for r in _awaited_ranks(gap):
            if r not in stuck and r not in states.ended and r not in states.waiting:
                roots.append(r)
        if roots:
            if gap.data.live:
                alive = []
            else:
                alive = _signs_of_life(case, roots)
            sure: Strength = "likely"
            if alive:
                sure = "proven"
            if _at_work(case, roots):
                sure = "possible"
            return sure, tuple(roots), [gap, *alive]
    return None


def _at_work(case: Case, ranks: list[int]) -> bool:
    """Whether one of these ranks of a running job did something meanwhile.

    It was looked at then, and may come.
    """
    seen = positions_of_case(case)
    for rank in ranks:
        if rank in seen:
            if seen[rank].moved:
                return True
    return False


def _not_begun(case: Case, states: RankStates) -> Suspicion | None:
    """Ranks whose GPU has not begun the collective of the others.

    It still computes, while the GPUs of others are in that collective.
    """
    gaps = case.of(FlightStuck)
    if len({gap.data.group for gap in gaps}) > 1:
        return None  # of two groups that are stuck each may wait for the other
    gpu_states = {}
    for gap in gaps[:1]:
        for rank, state in gap.data.states.items():
            gpu_states[int(rank)] = state
    printed = []
    for queue in pending_calls(case):
        for event in queue[:1]:
            if event.rank is not None:
                printed.append(event)
    # entries of different calls cannot be compared
    if not gaps and len({(event.data.group, event.data.seq) for event in printed}) == 1:
        gpu_states = {}
        for event in printed:
            if event.rank is not None:
                gpu_states[event.rank] = event.data.state
    behind = {rank for rank, state in gpu_states.items() if state == "scheduled"}
    late = tuple(sorted(behind))
    begun = []
    for number, state in gpu_states.items():
        if state == "started":
            begun.append(number)
    why = [*gaps[:1], *(event for event in printed if not gaps and event.rank in behind)]
    # where most GPUs have not begun, the few that have are the odd ones
    if late and begun and len(late) <= len(begun):
        return "likely", late, why
    return None


def _awaited_ranks(gap: Event) -> list[int]:
    """Ranks that did not make a collective, a send or a receive, by the dumps."""
    if isinstance(gap.data, FlightMissing):
        return gap.data.missing
    lacking: list[int] = gap.data.lacking
    return lacking


def _missing_at_barrier(case: Case, states: RankStates) -> Suspicion | None:
    """Ranks missing from a barrier.

    They are told by gloo's monitored barrier or by torch's reconstruction.
    """
    for report in case.of("gloo.barrier", "c10d.desync"):
        # gloo asks each rank; torch's report is put together from the store afterwards
        asked = report.kind == "gloo.barrier"
        if asked:
            gone = states.ended
            absent = report.data.ranks
        else:
            gone = states.ended | states.waiting
            absent = report.data.missing
        late = []
        for rank in absent or ():
            if rank not in gone:
                late.append(rank)
        if late:
            alive = []
            if asked:
                alive = _signs_of_life(case, late)
            sure: Strength = "likely"
            if alive:
                sure = "proven"
            return sure, tuple(late), [report, *alive]
    return None


def _signs_of_life(case: Case, ranks: list[int]) -> list[Event]:
    """Events that show that these ranks lived in the hang, not waiting.

    They are empty where a rank may have been dead, or was in another call that waits for a peer.
    """
    signs = stacks(case)
    # a rank in another call waits for a peer itself
    if any(rank in signs and in_collective(signs[rank].data.frames) for rank in ranks):
        return []
    for event in case.events:
        if event.rank is not None and event.kind in ("c10d.status", "c10d.monitor", "elastic.stop"):
            signs.setdefault(event.rank, event)
    if set(ranks) <= signs.keys():
        return [signs[rank] for rank in ranks]
    return []


def _apart_by_stack(case: Case, states: RankStates) -> Suspicion | None:
    """Ranks whose stack is in their own code while most are in a collective.

    The others may also have timed out in one.  Without a timeout the job may be healthy: then it is
    at most `possible`, and None in a run that was cancelled.  Of a running job that was looked at
    it is told from more than that, by `blockages`.
    """
    seen = stacks(case)
    gave_up = states.waiting.keys()
    # a running job was looked at twice, which says more than one stack
    if positions_of_case(case).keys() & seen.keys():
        return None
    busy = []
    for rank, stack in seen.items():
        if not in_collective(stack.data.frames):
            busy.append(rank)
    ended_early = any(e.data.reason in ("cancelled", "orphaned", "lost") for e in case.of(RunEnd))
    # where most ranks are busy, it is the phase of the job
    if not busy or len(busy) * 2 > len(seen.keys() | gave_up) or set(busy) & gave_up or ended_early:
        return None
    sure: Strength = "possible"
    if states.waiting:
        sure = "proven"
    stood = []
    for rank in busy:
        stood.append(seen[rank])
    return sure, tuple(sorted(busy)), stood


def _stood_elsewhere(case: Case, states: RankStates) -> Suspicion | None:
    """Ranks that a signal ended in their own code, while others had timed out waiting."""
    lines: list[Event] = []
    for rank, stood in interrupted(case).items():
        if rank not in states.waiting and not in_collective(stood.frames):
            lines.append(stood.line)
    if not states.waiting or not lines or len(lines) > len(states.waiting):
        return None
    return "likely", ranks_in(lines), lines


def _behind_by_watchdog(case: Case, states: RankStates) -> Suspicion | None:
    """Ranks where the collective was never enqueued, by their watchdog.

    It also says that no call is in flight.
    """
    seqs = []
    for event in states.waiting.values():
        number = sequence_of(event)
        if number is not None:
            seqs.append(number)
    first_seq = min(seqs, default=0)
    # counts of another group say nothing of this one
    groups = {_group_of(event) for event in states.waiting.values()} | {None}
    idle = []
    for status in case.of(C10dStatus):
        if (
            seqs
            and isinstance(status.data.enqueued, int)
            and status.data.enqueued < first_seq
            and status.data.completed == status.data.enqueued
            and rank_of(status) not in states.waiting
            and status.data.pg in groups
        ):
            idle.append(status)
    if idle:
        return "proven", tuple(sorted({rank_of(s) for s in idle})), list(idle)
    return None


def _behind_by_ras(case: Case, states: RankStates) -> Suspicion | None:
    """Ranks that have launched fewer collectives, by NCCL's RAS.

    Only communicators whose ranks are known as those of the job are compared.  Left out are ranks
    that launched some between two reports, as busy ranks drift apart, ranks that timed out
    themselves, as a launch that waits for other work is counted late, and ranks that are seen to
    wait for the others.  One report alone finds ranks of a healthy job a call apart, and says
    little of more.
    """
    changes = case.of(RasChange)
    inside = set()
    for place_of_rank in positions_of_case(case).values():
        if place_of_rank.waits_for_ranks:
            inside.add(place_of_rank.rank)
    moved = set()
    for change in changes:
        for rank in change.data.moved:
            moved.add((change.data.hash, int(rank)))
    # a launch that waits for other work on its GPU is counted late
    gone = states.waiting.keys() | inside
    for report in case.of(RasCommunicator):
        key, size = report.data.hash, report.data.size
        if not report.data.late or report.data.crossed or (states.world or size) != size:
            continue
        numbers = global_ranks(case.events, report)
        if numbers is None:
            continue
        behind = []
        for local_rank in report.data.late:
            number = numbers.get(local_rank, local_rank)
            if number not in gone and (key, local_rank) not in moved:
                behind.append(number)
        late = tuple(behind)
        strength = _strength_of_counts(
            case,
            states,
            report,
            len(late),
        )
        if late and strength:
            return strength, late, [report, *(one for one in changes if one.data.hash == key)]
    return None


def _strength_of_counts(
    case: Case, states: RankStates, report: Event[RasCommunicator], late: int
) -> Strength | None:
    """How sure it is that ranks with the lowest counts are those that are awaited."""
    # whoever has launched a call more than most may have left the common path
    if 2 * late > (report.data.size or 2 * late) and not states.waiting:
        return None
    # the others may as well wait for a rank whose process is gone
    if report.data.dead and not states.waiting:
        return None
    waited = states.waiting or any(one.waits_for_ranks for one in positions_of_case(case).values())
    if waited or stands_still(case.events, report):
        return "likely"
    if count_gap(report) > 1:
        return "possible"
    return None


def _unnamed_by_ras(case: Case) -> Finding | None:
    """Ranks are behind in two reports alike, and the text does not name them."""
    for report in case.of(RasCommunicator):
        unnamed = report.data.late_number > len(report.data.late)
        if not unnamed or report.data.crossed or not stands_still(case.events, report):
            continue
        say = behind_sentence(case.events)
        why = [report, *(one for one in case.of(RasChange) if one.data.hash == report.data.hash)]
        return found(
            ID,
            "likely",
            say,
            pick(why),
            advice=(ASK_JSON,),
            next=experiment(case),
        )
    return None


ASK_JSON = Advice(
    "Ask RAS for JSON (NCCL 2.28.7), which names each rank, or look at the ranks' stacks.",
    command="ncclras -f json",
    why="A text report lists a set of ranks only up to a quarter of them, and ten.",
    check="The report holds `collective_counts` of every rank.",
    risk="None: it only reads.",
)


def _launched_late(case: Case, states: RankStates) -> Suspicion | None:
    """Ranks that entered the collective long after the others, where all timed out."""
    timeouts = [timeout_of(event) for event in states.waiting.values()]
    limits = []
    for timeout in timeouts:
        if timeout:
            limits.append(timeout / 1000)
    limit = min(limits, default=None)
    reported = []
    for e in case.of(FlightLate):
        # a lag well within the timeout cannot be why it passed
        if limit and e.data.seconds[str(e.data.worst)] > limit / 2:
            reported.append(e)
    if reported:
        return "likely", (reported[0].data.worst,), reported[:1]
    entered = {}
    for rank, event in states.waiting.items():
        if event.time is not None and isinstance(event.data, C10dTimeout) and event.data.ran_ms:
            entered[rank] = event.time - event.data.ran_ms / 1000
    if len(entered) < 2 or limit is None:
        return None
    # the median: one early rank must not make all others late
    middle = sorted(entered.values())[(len(entered) - 1) // 2]
    late = []
    lines = []
    for rank, moment in entered.items():
        if moment - middle > limit / 2:
            late.append(rank)
            lines.append(states.waiting[rank])
    if late:
        return "likely", tuple(sorted(late)), lines
    return None


def _finding(case: Case, states: RankStates, suspicion: Suspicion) -> Finding:
    strength, ranks, why = suspicion
    where = place_in_code(case, ranks)
    seen = last_progress(why)
    if where:
        at_work = ""
    else:
        at_work = utilization(why, ranks)
    if (
        why
        and set(ranks) <= positions_of_case(case).keys()
        and why[0].kind in ("flight.missing", "flight.stuck")
    ):
        if _may_still_come(case, ranks, why[0]):
            return unknown(
                ID,
                "a longer look, or one with `--dump`: these ranks work, and nothing counts their"
                " calls",
            )
        return _live_finding(case, strength, ranks, why[0])
    fed = for_workers(case, ranks)
    looked_into = stacks(case).keys() & set(ranks)
    # a file server, Python's lock or its workers may hold it up
    if strength == "proven" and (fed or not looked_into):
        strength = "likely"
    doing = how_it_stood(case, ranks)
    if fed:
        doing = "waiting for data-loader workers"
    busy = ""
    if where:
        busy = f", {doing} in {where},"
    elif at_work:
        busy = f", {at_work},"
    elif seen:
        busy = f", last seen at {seen!r},"
    who = f"{who_are(ranks)}{busy} {_how_late(strength, why)}"
    said_of_others = _what_others_waited_in(case, states, suspicion)
    say = f"{who} {said_of_others}{_counted_in_words(case, why)}{_how_it_ended(why)}"
    return found(
        ID,
        strength,
        say,
        pick(why, counted_by_ras(case, ranks), in_order(states.waiting.values())),
        ranks=ranks,
        advice=(*_look_there(why, ranks, where), *_advice(case, ranks, where)),
        next=None if strength == "proven" else experiment(case),
    )


def _what_others_waited_in(case: Case, states: RankStates, suspicion: Suspicion) -> str:
    """``collective 4 (all_reduce); rank 0 timed out after 20 s waiting in it.``"""
    _, ranks, why = suspicion
    first = next(iter(in_order(states.waiting.values())), None)
    call = call_waited_in(first, why)
    if call == "the collective":
        call = call_in_tracebacks(case, states) or call
    timeout = None
    if first:
        timeout = timeout_of(first)
    limit = ""
    if timeout:
        limit = f" after {seconds(timeout)}"
    gaps = []
    for gap in why:
        if gap.kind in ("flight.missing", "flight.p2p"):
            gaps.extend(gap.data.waiting)
    late = set(ranks)
    waited = []
    for rank in states.waiting or gaps:
        if rank >= 0 and rank not in late:
            waited.append(rank)
    others = "the other ranks"
    if waited:
        others = name_ranks(waited)
    waits = how_they_waited([*states.waiting.values(), *why])
    waits = waits.replace("timed out", f"timed out{limit}")
    return f"{call}; {others} {waits} in it."


def _how_it_ended(why: Sequence[Event]) -> str:
    """`` It did not heed SIGTERM: …``: what the launcher saw of a rank that said nothing."""
    more = ""
    for event in why:
        if isinstance(event.data, FlightMissing) and event.data.no_dump:
            more = " It left no dump."
    if heeds_no_signal(why):
        more += " It did not heed SIGTERM: it was stopped, or held in native code."
    return more


def _look_there(
    why: Sequence[Event],
    ranks: tuple[int, ...],
    where: str,
) -> tuple[Advice, ...]:
    """To look at the stacks of ranks of which nothing but counts is known."""
    report = next(iter(why), None)
    if where or report is None or not isinstance(report.data, RasCommunicator):
        return ()
    return (_attach_advice(ranks, hosts_of(report, report.data.late)),)


def _attach_advice(ranks: Sequence[int], hosts: Sequence[str]) -> Advice:
    at = on(text.host_list(hosts))
    return Advice(
        f"Look at what {name_ranks(ranks)} {text.verb(ranks, 'does', 'do')}{at} while the job"
        " still hangs.",
        command="ncclkit attach",
        why="Counts tell who is awaited, and stacks what for.",
        check="Their stacks are in their own code, or in a call that the others have passed.",
        risk="None: it only reads.",
    )


def _counted_in_words(case: Case, why: Sequence[Event]) -> str:
    """What NCCL's RAS counted, where that is why, as a sentence with a blank before it."""
    report = next(iter(why), None)
    if report is None or not isinstance(report.data, RasCommunicator):
        return ""
    where = in_brackets(places_in_words(report, report.data.late))
    say = f" NCCL's RAS counts {counts_in_words(report)} there{where}"
    if stands_still(case.events, report):
        return f"{say}, in two reports alike."
    if rank_states(case).waiting:
        return f"{say}."
    return f"{say} in the one report that there is, {AS_HEALTHY}: {AGAIN}."


def _how_late(strength: Strength, why: Sequence[Event]) -> str:
    """``had not entered``: how a rank stood to the collective, by what shows it."""
    if why and why[0].kind in ("flight.stuck", "flight.entry"):
        return "had launched, but its GPU had not begun,"
    if strength == "possible":
        return "may have been late for"
    came = any(event.kind == "flight.late" for event in why)
    if came:
        return "was late for"
    return "had not entered"


def _may_still_come(case: Case, ranks: tuple[int, ...], gap: Event) -> bool:
    """Whether ranks that others wait for are at work, and may come.

    Nothing must show that they are a call behind.  NCCL's RAS counts no sends and receives: of
    stages of a pipeline that hand on a batch each, two looks may meet the same lines.  A rank that
    writes a checkpoint again and again is a call behind at each look, and comes each time: whether
    it hangs, only a longer look can show.
    """
    positions = positions_of_case(case)
    if any(positions[rank].moved_bytes for rank in ranks):
        return True
    # two looks at a healthy pipeline may meet the same lines
    at_work = any(positions[rank].moved for rank in ranks)
    answered = any(event.kind.startswith("ras.") for event in case.events)
    return at_work and answered and gap.data.seq is None and not counted_by_ras(case, ranks)


def _live_finding(case: Case, strength: Strength, ranks: tuple[int, ...], gap: Event) -> Finding:
    """What is found of a job that runs.

    It says what these ranks are at, what the others wait in, and since when.
    """
    positions = positions_of_case(case)
    late = set(ranks)
    seen = [positions[rank] for rank in ranks]
    more = ""
    if seen[0].condition:
        more = f", {inside(seen[0].condition)},"
    at_work = any(stand.moved for stand in seen)
    # a rank that moves may come by itself
    moves = ""
    if at_work:
        moves = " (it moves on)"
    if isinstance(gap.data, FlightStuck):
        inside_it = gap.data.ranks
    else:
        inside_it = gap.data.waiting
    waiting = []
    for rank in inside_it:
        if rank not in late:
            waiting.append(rank)
    stands = list(filter(None, map(positions.get, waiting)))
    has = text.verb(ranks, "has", "have")
    not_yet = f"{has} not {_call_not_made(seen, stands, gap)}"
    if gap.kind == "flight.stuck":
        not_yet = (
            f"{has} launched {_counted_call(gap) or 'the calls of the others'}, which its GPU has"
            " not begun: an earlier kernel does not end"
        )
    say = (
        f"{who_are(ranks)} {seen[0].activity(len(seen))}{moves}{more} and {not_yet};"
        f" {name_ranks(waiting)} "
    )
    say += _how_others_wait(case, waiting, at_work)
    why = pick([gap], [stand.lines[-1] for stand in seen], counted_by_ras(case, ranks))
    told = advice_on_wait(seen[0])
    advice = (*told, *_advice(case, ranks, seen[0].place))
    decides = None
    # a look at what the rank waits for tells more than the same job with dumps
    if strength == "likely" or (strength == "possible" and not told):
        decides = experiment(case)
    return found(ID, strength, say, why, ranks=ranks, advice=advice, next=decides)


def _counted_call(gap: Event) -> str:
    """``collective 4 (all_reduce)``; "" of a running job, whose calls have no number."""
    if gap.data.seq is None:
        return ""
    return f"collective {gap.data.seq} ({gap.data.op})"


def _call_not_made(late: Sequence[RankPosition], others: Sequence[RankPosition], gap: Event) -> str:
    """``entered all_reduce at train.py:33``, in which the others wait.

    A rank may stand inside the very call in which they do, as in a backward pass: then it is what
    that call does on its way that it has not come to.
    """
    counted = _counted_call(gap)
    if counted:
        return f"entered {counted}"
    calls = {(stand.call, stand.place) for stand in others}
    if len(calls) != 1:
        return "entered the calls of the others"
    call, place_of_call = min(calls)
    if all(stand.detail == UNCONNECTED for stand in late):
        return "joined the others there"
    is_inside = all(stand.is_inside_line_of(others[0]) for stand in late)
    # ``broadcast in Trainer.fit`` is a step of it that the rank has not come to
    if not is_inside or " in " in call:
        return f"entered {call} at {place_of_call}"
    if (late[0].call, late[0].place) == (call, place_of_call):
        return "reached the collective inside it"
    return f"reached the collective inside {call} at {place_of_call}"


def _how_others_wait(case: Case, waiting: Sequence[int], at_work: bool) -> str:
    """``waits in it for 4 min.``, and whether whoever they wait for may still come."""
    wait = text.verb(waiting, "waits", "wait")
    end = "."
    if at_work:
        end = ": it may still come."
    return f"{wait} in it{waiting_time_of_case(case)}{end}"


def _advice(case: Case, ranks: tuple[int, ...], where: str) -> tuple[Advice, ...]:
    who = name_ranks(ranks)
    place = ""
    if where:
        place = f" in {where}"
    shorten = Advice(
        f"Shorten or move what {who} does{place} so that all ranks reach the collective together:"
        " prepare data before the job or on all ranks, evaluate on all of them.",
        why="The other ranks only wait; nothing is wrong with the network.",
        check=(
            "Time the phase on each rank: the longest minus the shortest must stay well below"
            " the timeout."
        ),
        risk="None for the result; the work itself stays the same.",
    )
    longer = []
    for advice in raise_timeout(case, f"Needed when {who} cannot be made faster."):
        # more time fixes no late rank
        longer.append(replace(advice, change={}))
    # a timeout below PyTorch's own was chosen, and ordinary work may take as long
    if ranks and is_below_default(case):
        return (*keep_position(case, ranks), *longer, shorten)
    return (*keep_position(case, ranks), shorten, *longer)


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


def last_own_line(case: Case, rank: int) -> list[Event]:
    """The last thing that a rank said of itself."""
    return in_order(
        event
        for event in case.on(rank)
        if event.kind in ("progress", "worker.phase", "nccl.init", "c10d.monitor")
    )[-1:]


def counted_by_ras(case: Case, ranks: tuple[int, ...]) -> list[Event]:
    """NCCL's own count of launches, where it says the same."""
    reports: list[Event] = []
    for report in case.of(RasCommunicator):
        if set(report.data.behind) & set(ranks):
            reports.append(report)
    return reports


def call_waited_in(first: Event | None, why: list[Event]) -> str:
    """The collective, or the exchange, that the others waited in."""
    source = next(
        (e for e in why if e.kind in ("flight.missing", "flight.late", "flight.p2p")), first
    )
    if source is not None and source.kind == "flight.p2p":
        return f"the exchange from rank {source.data.src} to rank {source.data.dst}"
    if source is None and any(e.kind in ("store.wait", "run.end") for e in why):
        return "the rendezvous"
    op = ""
    if source is not None:
        op = op_of(source)
    if source is None or not op:
        return "the collective"
    seq = sequence_of(source)
    if seq is not None:
        return f"collective {seq} ({op})"
    return f"the {op}"


def place_in_code(case: Case, ranks: tuple[int, ...]) -> str:
    """The place in the user's own code where one of these ranks stood.

    It is empty where no stack shows it.
    """
    late = set(ranks)
    seen = []
    for rank, stack in stacks(case).items():
        if rank in late:
            seen.append(stack.data.frames)
    seen += stood_last(case, ranks)
    return next((place(own_frame(frames, innermost_first=True)) for frames in seen), "")


def last_progress(why: list[Event]) -> str:
    """The beginning of the last progress line among the evidence."""
    for event in why:
        if event.kind == "progress":
            return " ".join(event.text.split())[:60].strip()
    return ""


def utilization(why: list[Event], ranks: tuple[int, ...]) -> str:
    """What could be seen of these ranks from outside.

    It is such as ``at work 99 % of the time, while rank 0 was 1 %``.
    """
    shares = {}
    for event in why:
        if event.kind == "telemetry.utilization":
            # the main thread alone: NCCL's own threads spin whatever the rank does
            shares[event.rank] = event.data.main
    mine = []
    for rank in ranks:
        if rank in shares:
            mine.append(shares[rank])
    if not mine:
        return ""
    late = set(ranks)
    others = {
        rank: share for rank, share in shares.items() if rank is not None and rank not in late
    }
    low = min(others.values(), default=0.0)
    high = max(others.values(), default=0.0)
    if round(high) > round(low):
        share = f"{low:.0f} to {high:.0f} %"
    else:
        share = f"{high:.0f} %"
    beside = f", while {text.ranks(others)} {'was' if len(others) == 1 else 'were'} {share}"
    return f"with its main thread at work {mine[0]:.0f} % of the time{beside if others else ''}"


def how_it_stood(case: Case, ranks: tuple[int, ...]) -> str:
    """How these ranks stood where their stack says."""
    if stopped(case).keys() & set(ranks):
        return "stopped by a signal or a debugger (state T)"
    for rank in ranks:
        if rank in awaited_keys(case):
            return f"waiting for the key {awaited_keys(case)[rank].key}, which no rank set,"
    return "busy"


ADDRESS = re.compile(r"/(?:cpu|cuda)//\d+/(?P<rank>\d{1,6})$")
"""A key of gloo's start: the address of a rank that had not come."""


def _waits_for_key(case: Case, states: RankStates) -> Suspicion | None:
    """Ranks that wait for a key of the store, while others wait for them in a collective."""
    lines: list[Event] = []
    for rank, wait in awaited_keys(case).items():
        if rank not in states.waiting:
            lines.append(wait.line)
    if not states.waiting or not lines or len(lines) > len(states.waiting):
        return None
    return "likely", ranks_in(lines), lines


Suspicion = tuple[Strength, tuple[int, ...], list[Event]]
"""How sure, which ranks, and what says so."""


def _outlying_by_load(case: Case, states: RankStates) -> Suspicion | None:
    """A few ranks that compute while the others idle, or idle while they spin.

    It is for ranks whose stack could not be read.  Either side may be the one that waits, as NCCL
    spins where gloo sleeps; so the few stand against the many.
    """
    odd = outlying_utilization(case)
    # a run that was cancelled or done says nothing of who was late
    ended = {e.data.reason for e in case.of(RunEnd)} - {"deadline"}
    if not odd or set(odd) & (stacks(case).keys() | states.waiting.keys()) or ended or states.ended:
        return None
    others = []
    for event in case.of(TelemetryUtilization):
        if event.rank not in odd:
            others.append(event)
    sure: Strength = "possible"
    if states.waiting:
        sure = "likely"
    return sure, tuple(sorted(odd)), [*odd.values(), *others]


def _never_begun(case: Case, states: RankStates) -> Suspicion | None:
    """Ranks of our run that lived and never said that they had begun.

    Others waited at the start.  It is None where most are missing, as then it is no matter of
    single ranks.
    """
    begun = {event.rank for event in case.of(WorkerPhase)} - {None}
    if begun and not states.ended:
        absent = []
        for rank in states.members:
            if rank not in begun:
                absent.append(rank)
        missing = tuple(absent)
    else:
        missing = ()
    waits = [
        *case.of(StoreWait),
        *case.of(RunEnd, reason="deadline"),
    ]
    # a process that died at once is another cause
    lived = {event.rank: event for event in case.of("telemetry.utilization", "elastic.stop")}
    if (
        not (missing and waits)
        or 2 * len(missing) > len(states.members)
        or not set(missing) <= lived.keys()
    ):
        return None
    return (
        "likely",
        missing,
        [*waits, *case.of(TelemetryUtilization), *(lived[rank] for rank in missing)],
    )


def _silent_ranks(case: Case, states: RankStates) -> Suspicion | None:
    """The only ranks without a watchdog line, where most have one."""
    silent = states.silent
    if (
        not silent
        # many silent ranks are a log that lacks them
        or len(silent) > max(1, len(states.members) // 4)
        or len(states.waiting) < 2
        or _calls_differ(states)
    ):
        return None
    events = []
    for rank in silent:
        events.extend(last_own_line(case, rank))
    return "likely", silent, events


def _left_no_dump(case: Case, states: RankStates) -> Suspicion | None:
    """The only rank without a dump, which lived until the launcher ended it.

    A process that is stopped, or held in native code, writes none.
    """
    known = {*states.waiting, *states.dead, *states.ended}
    for gap in gaps_without_dump(case):
        absent = set(gap.data.no_dump)
        if len(absent) != 1 or absent & known:
            continue
        rank = absent.pop()
        stops = stops_of_rank(case, rank)
        if stops:
            return _sureness(stops), (rank,), [gap, *stops]
    return None


def _sureness(stops: list[Event]) -> Strength:
    """How sure it is that a rank was late that the launcher had to end.

    Whoever waits for others ends at SIGTERM, or has timed out by then.
    """
    if heeds_no_signal(stops):
        return "likely"
    return "possible"


def _busy_with_data(case: Case, states: RankStates) -> Suspicion | None:
    """A rank prepares or skips data at the start of the job.

    The others wait for it there.
    """
    # compiling, which all ranks do, is timeout_too_short
    phase = startup_phase(case, "data", "skip")
    if phase is None or states.ended or _calls_differ(states) or rank_of(phase) in states.waiting:
        return None
    return (
        "likely",
        () if phase.rank is None else (phase.rank,),
        [phase, *in_order(case.of(StepProgress))[-1:]],
    )


def _loop_under_way(case: Case, states: RankStates) -> Suspicion | None:
    """A loop with a visible counter is under way.

    Somebody waits for a collective meanwhile.
    """
    running = []
    for event in case.of(StepProgress):
        if rank_of(event) not in states.waiting:
            running.append(event)
    if not states.waiting or not running or states.ended or _calls_differ(states):
        return None
    limit = max(timeout_of(event) or 0 for event in states.waiting.values()) / 1000
    lone = []
    for e in running:
        # a loop that takes about as long as the timeout is what the others waited for
        if LONE.search(e.text) and 0.8 * limit < loop_seconds(e) < 2 * limit:
            lone.append(e)
    if lone:
        return "likely", (), in_order(lone)[-2:]
    return "possible", (), in_order(running)[-2:]


def _symptom_alone(case: Case, states: RankStates) -> Suspicion | None:
    absent: list[Event] = []
    for e in case.of(C10dUniqueId):
        if not matching([e], "reset by peer", "Broken pipe", "got 0 bytes"):
            absent.append(e)
    short = []
    for event in case.of(StoreClients):
        if event.data.key and event.data.joined != event.data.expected:
            short.append(event)
    absent += [*case.of(StoreWait), *short]
    if absent and not case.of(StoreConnectTimeout):
        asked = []
        for event in absent:
            if isinstance(event.data, C10dUniqueId):
                asked.append(event.data.from_rank)
            elif isinstance(event.data, StoreWait):
                address = ADDRESS.search(str(event.data.keys))
                if address:
                    asked.append(int(address["rank"]))
        ranks = set()
        for rank in asked:
            # whoever timed out in a call of its own was there, in another call
            if rank is not None and rank not in states.waiting:
                ranks.add(rank)
        return "possible", tuple(sorted(ranks)), absent
    # ranks in different calls, or in pairs, are other causes
    lone = _calls_differ(states) or only_point_to_point(states.waiting.values())
    if (
        states.waiting
        and not states.ended
        and not lone
        # where all gave up, each at a line of its own, nobody was merely late
        and len(sides_by_tracebacks(case)) < 2
        and not dumps_tell(case)
        and not all_waiting(case, states)
    ):
        stops = _stops_of_silent(case, states)
        return _sureness(stops), ranks_in(stops), stops
    return None


def _stops_of_silent(case: Case, states: RankStates) -> list[Event]:
    """How the launcher ended the only rank that said nothing, while all others timed out."""
    silent = states.silent
    if len(silent) != 1:
        return []
    return stops_of_rank(case, silent[0])


def _group_of(event: Event) -> str | None:
    """The process group of a watchdog's line, by its stable name."""
    if isinstance(event.data, C10dTimeout):
        return event.data.pg
    return None


def _calls_differ(states: RankStates) -> bool:
    """Whether ranks wait for different collectives.

    That is divergence, not slowness.
    """
    calls = set()
    for e in states.waiting.values():
        if op_of(e):
            calls.add((_group_of(e), op_of(e)))
    return len({op for _, op in calls}) > 1 and len({pg for pg, _ in calls}) == 1


SIGNS_OF_CALLS = (
    _missing_in_dumps,
    _not_begun,
    _missing_at_barrier,
    _apart_by_stack,
    _stood_elsewhere,
    _waits_for_key,
    _behind_by_watchdog,
    _behind_by_ras,
    _launched_late,
)
"""What counts or shows the calls of single ranks, in the order in which it is asked."""
WITNESSES = (
    _outlying_by_load,
    _never_begun,
    _silent_ranks,
    _left_no_dump,
    _busy_with_data,
    _loop_under_way,
    _symptom_alone,
)
"""What hints at a rank where no call of it is known.

These are asked after those, in this order.
"""
REMEDIES = (
    *_advice(
        Case(),
        (),
        "",
    ),
    advice_for_loader("", why=""),
    *REMEDIES_OF_WAITS,
    _attach_advice((), ()),
    ASK_JSON,
)
