"""Runs every cause over a case and puts the roots above their consequences.

Each cause judges on its own; this module only orders what they found.  A cause
that itself fails is reported as ``unknown`` and never hides the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from itertools import islice
from typing import Any

from ncclkit.analysis.motion import without_moments
from ncclkit.analysis.once import last_run_of
from ncclkit.analysis.picks import FATAL, OWN_TESTS, failed, initialized, pick
from ncclkit.analysis.rank_states import is_own
from ncclkit.analysis.timeline import abnormal
from ncclkit.causes import Cause, catalogue, resemblance
from ncclkit.causes.slow_transport import brakes
from ncclkit.core import experiment_records, shapes
from ncclkit.core.case import Case
from ncclkit.core.model import SCHEMA, Advice, Event, Evidence, Fact, Finding, cite, clear, unknown
from ncclkit.core.text import plural
from ncclkit.evidence.quotation import is_quotation

JOB = ("ranks", "hosts", "nccl", "torch", "cuda", "transports")
"""What ``--json`` says of the job; others script against it, so it grows only with the schema number."""
SHOWN = 5
"""Errors without a known cause that a text quotes."""
MANY = 100
"""The same that are looked for: each may be compared with every step of every rank."""
EXIT_STATUS = {"found": 1, "unexplained": 1, "healthy": 0, "no_job": 2}
"""Verdict on the whole case → exit status of ``ncclkit diagnose``."""
STRENGTHS = {"proven": 3, "likely": 2, "possible": 1, None: 0}
USUAL = (
    "slow_rank", "rank_divergence", "p2p_broken", "concurrent_comms", "timeout_too_short", "world_size_mismatch",
    "rank_exception", "shm_too_small", "ib_link_error", "wrong_interface", "cuda_error", "rank_killed", "host_oom",
)  # fmt: skip
"""Among causes that are merely possible, those that turn out to be right most often, the most frequent first."""


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """What was found, what could not be judged, what was looked at and is fine."""

    findings: tuple[Finding, ...] = ()
    """Verdict ``found``, the best root first."""
    unknown: tuple[Finding, ...] = ()
    clear: tuple[Finding, ...] = ()
    job: Mapping[str, Any] = field(default_factory=dict)
    """``ranks``, ``hosts``, ``nccl``, ``torch``, ``cuda``, ``transports`` as far as the evidence says."""
    errors: tuple[Event, ...] = ()
    """Where no cause is known: the first errors of the job that nothing shows it to have survived."""
    healthy: Event | None = None
    """The line that shows that the job succeeded, or was at work."""
    job_seen: bool = False
    """Whether any line is of a training job."""
    risks: tuple[Finding, ...] = ()
    """What this job did not suffer: where nothing was found, what the facts of the hosts alone warn of; and settings
    in its log that may slow it."""

    @property
    def verdict(self) -> str:
        """``found``; ``unexplained``: no cause is known; ``healthy``: the job was seen to go well; ``no_job``."""
        if not all(map(resemblance.is_resembling, self.findings)):
            return "found"
        if self.errors or self.findings:
            return "unexplained"
        return "healthy" if self.healthy else "unexplained" if self.job_seen else "no_job"

    @property
    def exit_code(self) -> int:
        """0 the job was seen to go well, 1 it was not, 2 there is no job (or nothing could be read)."""
        return EXIT_STATUS[self.verdict]

    @property
    def checks(self) -> str:
        """How many causes were judged, and how many of these could not be."""
        causes = plural(len(self.clear) + len(self.unknown), "cause")
        return f"of {causes}, {plural(len(self.clear), 'check')} passed, {len(self.unknown)} not evaluated"

    @property
    def headline(self) -> str:
        """The verdict in one sentence: the best root, the first error that no cause explains, or that all is well."""
        if self.findings and (self.verdict == "found" or not self.errors):
            return self.findings[0].say
        if self.errors:
            first = self.errors[0].text.strip().splitlines()[-1]
            many = f"{plural(len(self.errors), 'error')}, the first: {first}"
            return f"No known cause explains {many if len(self.errors) > 1 else f'this error: {first}'}"
        if self.healthy:
            others = f"; {plural(len(self.risks), 'risk')}" if self.risks else ""
            return f"Nothing found: the job was seen to go well ({self.checks}){others}."
        if self.job_seen:
            return "There is no error, but nothing shows that the job succeeded or goes on."
        if self.clear:
            return f"No risk found ({self.checks})."
        return "Nothing in this is of a training job that ncclkit knows."

    def to_dict(self, inputs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """The object that ``ncclkit diagnose --json`` prints.

        inputs: one mapping per file with ``path``, ``bytes``, ``lines``.
        """
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "inputs": [{key: row.get(key) for key in ("path", "bytes", "lines")} for row in inputs],
            "job": {key: self.job.get(key) for key in JOB},
            "findings": [_row(finding) for finding in self.findings],
            "unknown": [{"cause": finding.cause, "missing": list(finding.missing)} for finding in self.unknown],
            "errors": [cite(error) for error in self.errors],
            "risks": [_row(risk) for risk in self.risks],
        }

    def text(self) -> str:
        """The report for a terminal: culprit, sentence, the very lines, what to do."""
        if not self.findings:
            lines = [f"  {error}" for error in self.errors[:SHOWN]]
            lines += map(_risk, self.risks)
            asked = sorted({missing for finding in self.unknown for missing in finding.missing})[:5]
            if asked and self.verdict != "no_job":
                lines += ["What would let more causes be judged:", *(f"  - {missing}" for missing in asked)]
            return "\n".join([self.headline, *lines])
        parts = [_text(number, finding) for number, finding in enumerate(self.findings, 1)]
        above = [self.headline, *(f"  {error}" for error in self.errors[:SHOWN])] if self.errors else []
        return "\n\n".join([*(["\n".join(above)] if above else []), *parts, *map(_risk, self.risks)])

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.headline


def diagnose(case: Case) -> Diagnosis:
    """Judge `case`, as its last run left it, by the whole catalogue; the case and its folder keep the verdicts."""
    scope = last_run_of(case)
    job, job_seen = describe(scope), any(map(_of_job, scope.events))
    scope = without_moments(scope)
    verdicts = [recovered(judge(name, cause, scope), scope) for name, cause in catalogue().items()]
    verdicts = experiment_records.weigh(verdicts, scope.events)
    findings = _with_resembling(rank([verdict for verdict in verdicts if verdict.verdict == "found"]), verdicts, scope)
    unsure = all(map(resemblance.is_resembling, findings))
    named = {finding.cause for finding in findings}
    result = Diagnosis(
        tuple(findings),
        tuple(verdict for verdict in verdicts if verdict.verdict == "unknown" and verdict.cause not in named),
        tuple(verdict for verdict in verdicts if verdict.verdict == "clear" and verdict.cause not in named),
        job,
        _unexplained(scope, findings) if unsure else (),
        _went_well(scope),
        job_seen,
        tuple(_risks(scope, findings)),
    )
    case.findings = [*result.findings, *result.unknown, *result.clear]
    case.save()
    return result


def judge_facts(facts: Iterable[Fact]) -> list[Finding]:
    """What every cause of the catalogue says to these facts alone."""
    seen = Case()
    seen.facts = list(map(shapes.validated, facts))
    return [judge(name, cause, seen) for name, cause in catalogue().items()]


def risks(facts: Iterable[Fact]) -> list[Finding]:
    """What these facts alone warn of, the gravest first: one list for every page."""
    return rank([verdict for verdict in judge_facts(facts) if verdict.verdict == "found"])


def _risks(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """What the facts alone warn of, where a job ran and nothing was found; settings that may be a brake."""
    warned = risks(case.facts) if case.events and not findings else []
    known = {finding.cause for finding in (*findings, *warned)}
    brake = None if failed(case) else brakes(case)
    return [*warned, *([brake] if brake and brake.cause not in known else [])]


def judge(name: str, cause: Cause, case: Case) -> Finding:
    """One cause's verdict; an error inside it becomes ``unknown`` with its sentence."""
    try:
        return cause.diagnose(case)
    except Exception as error:  # a defect in one cause must not take the other verdicts with it
        return unknown(
            name, f"this check itself failed ({type(error).__name__}: {error}); please report it with the case folder"
        )


def rank(findings: Sequence[Finding]) -> list[Finding]:
    """Best root first: what another one explains stands below it; then by strength; then by how much it explains.

    A finding explains another of its strength or less; one that is merely possible explains nothing.  What is
    explained by a stronger one and rests on the very same line adds nothing and is left out.  What the facts of hosts
    alone tell is a risk: it explains no other risk, and stands below what a job itself has said as firmly.
    """
    causes = catalogue()
    findings = [_modest(finding, findings) for finding in findings]
    power = {finding.cause: STRENGTHS[finding.strength] for finding in findings}
    explains = {name: set(causes[name].explains) & power.keys() - {name} for name in power}

    risks = {finding.cause for finding in findings if all(isinstance(piece, Fact) for piece in finding.evidence)}

    def roots(finding: Finding) -> list[Finding]:
        name = finding.cause
        above = [f for f in findings if name in explains[f.cause] and power[f.cause] >= max(power[name], 2)]
        above = [f for f in above if not {name, f.cause} <= risks]
        return [f for f in above if not (f.cause in explains[name] and power[f.cause] == power[name])]

    def order(finding: Finding) -> tuple[bool, bool, int, bool, int, int, str]:
        name = finding.cause
        usual = USUAL.index(name) if name in USUAL else len(USUAL)
        weight = usual if power[name] == 1 else -len(explains[name])
        risk = name in risks
        return risk and power[name] == 1, bool(roots(finding)), -power[name], risk, weight, usual, name

    def repeats_root(finding: Finding) -> bool:
        stronger = [root for root in roots(finding) if power[root.cause] > power[finding.cause]]
        return any(_same_place(finding.evidence[0], piece) for root in stronger for piece in root.evidence)

    kept = [finding for finding in findings if not repeats_root(finding)]
    return sorted(kept, key=order)


def _with_resembling(findings: list[Finding], verdicts: Sequence[Finding], case: Case) -> list[Finding]:
    """The findings; where something failed and none is more than possible, also what it resembles, in that order.

    Where nothing says that it failed, a short text that is shown all the same must resemble something more clearly.
    """
    lines = resemblance.abnormal(case)
    texts = [line for line, _ in lines]
    findings = [_messenger(finding, texts) for finding in findings] if lines else findings
    if any(STRENGTHS[finding.strength] > 1 for finding in findings) or not lines:
        return findings
    errors, unread = _troubles(case)
    topic = resemblance.is_topic(case)
    if resemblance.comparable([*errors, *unread]):
        least, sound = resemblance.FIRST, resemblance.SOUND if errors else 0.0
    elif resemblance.complains(case, _went_well(case)):
        least, sound = resemblance.COMPLAINED, 0.0
    elif not errors and _is_shown(case):
        least, sound = resemblance.CALM, 0.0
    else:
        return findings
    least = least if topic or errors else resemblance.SURE
    known = {finding.cause: finding for finding in findings}
    cleared = {verdict.cause: verdict.evidence for verdict in verdicts if verdict.verdict == "clear"}
    ranked = resemblance.order(list(known), cleared, lines, least, sound)
    return [known.get(cause) or resemblance.finding(cause, case, lines) for cause in ranked]


def _messenger(finding: Finding, texts: Sequence[str]) -> Finding:
    """An exception is merely a possible cause where all lines together clearly resemble another one."""
    raised = [piece for piece in finding.evidence if isinstance(piece, Event) and piece.kind == "python.exception"]
    sign = (finding.cause, finding.strength) == ("rank_exception", "likely") and raised
    if not sign or any(event.data["type"] in PROGRAM for event in raised) or not resemblance.messenger(texts):
        return finding
    return replace(finding, strength="possible")


def _troubles(case: Case) -> tuple[list[Event], list[Event]]:
    """Errors after all steps, and lines that speak of trouble, where no end speaks for the job."""
    errors = list(islice(_open_errors(case), MANY))
    if _went_well(case) and not any(event.kind in FATAL for event in errors):
        return [], []
    steps = [*case.of("progress"), *resemblance.work(case)]
    return errors, [line for line in resemblance.unread(case) if not any(_later(step, line) for step in steps)]


def _unexplained(case: Case, findings: Sequence[Finding]) -> tuple[Event, ...]:
    """The errors that no cause explains; without any, the lines of a job that speak of trouble."""
    errors, unread = _troubles(case)
    return tuple(errors or (unread if findings or resemblance.is_topic(case) else ()))


def _is_shown(case: Case) -> bool:
    """True where a short text is no log of a job at work, nor of NCCL's start: a table, stacks, settings."""
    short = any(" NCCL INFO " not in row["text"] for file in case.inputs for row in file.get("quiet", ()))
    return short and not (_went_well(case) or case.of("progress") or resemblance.work(case))


def _modest(finding: Finding, others: Sequence[Finding]) -> Finding:
    """That ranks were late is no proven reason where another finding gives one for the very same ranks."""
    ranks, causes = finding.culprits.get("ranks"), catalogue()
    lines = not any(isinstance(piece, Event) and piece.kind in experiment_records.KINDS for piece in finding.evidence)
    if finding.cause == "slow_rank" and finding.strength == "proven" and ranks and lines:
        reasons = [f for f in others if finding.cause in causes[f.cause].explains and f.culprits.get("ranks") == ranks]
        return replace(finding, strength="likely") if any(STRENGTHS[f.strength] > 1 for f in reasons) else finding
    return finding


def _same_place(one: Evidence, two: Evidence) -> bool:
    """True when two pieces of evidence are the same words of the same source; a traceback holds its last line."""
    a, b = cite(one), cite(two)
    return bool(a["path"] == b["path"] and (a["text"] in b["text"] or b["text"] in a["text"]))


def describe(case: Case) -> dict[str, Any]:
    """The job as the evidence shows it."""
    evidence = import_module("ncclkit.evidence")  # at call time: records alone can be judged without the readers
    return dict(evidence.job(case.events, case.inputs))


def _row(finding: Finding) -> dict[str, Any]:
    keys = ("ranks", "hosts", "gpus", "interfaces")
    return {
        "cause": finding.cause,
        "verdict": finding.verdict,
        "strength": finding.strength,
        "culprits": {key: list(finding.culprits.get(key, ())) for key in keys},
        "say": finding.say,
        "evidence": [cite(piece) for piece in finding.evidence],
        "advice": [asdict(advice) for advice in finding.advice],
        "next": asdict(finding.next) if finding.next else None,
    }


def _text(number: int, finding: Finding) -> str:
    lines = [f"{number}. {finding.cause} ({finding.strength})", f"   {finding.say}", "   Evidence:"]
    for piece in finding.evidence:
        row = cite(piece)
        place = f"{row['path']}:{row['line']}" if row["line"] else row["path"]
        lines += [f"     {place}", *[f"       {line}" for line in clip(row["text"])]]
    asked, steps = finding.next, [line for advice in finding.advice for line in _advice(advice)]
    if asked:
        predictions = [f"     {cause}: {answer}" for cause, answer in asked.predicts.items()]
        at = 0 if finding.experiment_first else len(steps)
        steps[at:at] = [f"   Next experiment: {asked.question}", *predictions]
    return "\n".join([*lines, *steps])


def _risk(finding: Finding) -> str:
    return f"A risk ({finding.cause}, {finding.strength}): {with_fix(finding)}"


def with_fix(finding: Finding) -> str:
    """The sentence of a finding and, in the same line, the first thing to do about it."""
    if not finding.advice:
        return finding.say
    first = finding.advice[0]
    variables = f" ({'; '.join(first.exports)})" if first.env else ""
    return f"{finding.say} Fix: {first.do}{variables}"


def clip(text: str, limit: int = 6) -> list[str]:
    """The lines of a text, cut to 240 characters; of more than `limit` the first two and the last."""
    lines = [line[:240] for line in text.splitlines()]
    return lines if len(lines) <= limit else [*lines[:2], f"... {len(lines) - limit} lines ...", *lines[2 - limit :]]


def _advice(advice: Advice) -> list[str]:
    lines = [f"   Do: {advice.do}"]
    lines += [f"     {line}" for line in advice.exports]
    lines += [f"     $ {advice.command}"] if advice.command else []
    lines += [f"     {line}" for line in advice.code.splitlines()]
    lines += [f"     Check: {advice.check}"] if advice.check else []
    return lines + ([f"     Risk: {advice.risk}"] if advice.risk else [])


MEETING = ("store.", "rendezvous.", "gloo.connect", "gloo.no_interface")
"""Kinds that speak of ranks that could not meet."""
ERRORS = (*FATAL, *MEETING, "system.error", "cuda.", "gloo.", "c10d.", "nccl.warn", "nccl.trace", "ddp.")
"""Kinds of lines that a job that goes on has recovered from; settings, and what the kernel saw of hardware, last."""
UNCAUGHT = re.compile(r"(?:\[[\w.-]+\] ?){0,2}\[rank\d+\]:? *(?:Traceback|[\w.]+(?:Error|Exception)\b)")
"""How torch marks the last log lines of a rank; what a program prints of an error that it got over has no such mark."""
OWN = ("IndexError", "KeyError", "NameError", "AttributeError", "ModuleNotFoundError", "ZeroDivisionError")
"""Errors that nothing but the program brings about, least of all the end of another rank."""
PROGRAM = (*OWN, "TypeError", "AssertionError", "FileNotFoundError", "UnboundLocalError")
"""Errors that hardly any library uses to report what the system refused."""
STEP, GROUP = "COMPLETED", "successfully finished"
"""Words of Slurm, which speak for all ranks, and of torchrun, which speak for those of one host."""
TEXT = re.compile(r"ddress already in use|(?:trying|failed|Unable) to connect|connect\(\) timed out|name resolution")
"""What exceptions say of the same."""
LASTING = ("dataloader_workers", "memlock", "own_name", "no_verbs")
"""What a `system.error` says of a setting, which is as it was however long the job goes on."""
WAITS = ("c10d.timeout", "gloo.timeout")
DAY = 86400.0
FAR = 50
"""Lines between an error and a step that was done after it: further away than the ranks beside a dead one come."""


def recovered(finding: Finding, case: Case) -> Finding:
    """The finding, weaker or cleared where the job went on after every line on which it rests."""
    if _quoted(finding, case):
        if case.of("job.done") and not any(e.kind in FATAL and not is_quotation(e.text) for e in case.events):
            return clear(finding.cause, "Somebody only speaks of it.", finding.evidence[:1])
        finding = replace(finding, strength="possible")
    if finding.strength == "proven" and (_long_before(finding, case) or _seen_live(finding) or _any_program(finding)):
        return replace(finding, strength="likely")
    lines = [piece for piece in finding.evidence if isinstance(piece, Event) and piece.kind.startswith(ERRORS)]
    if finding.verdict != "found" or len(lines) != len(finding.evidence) or case.of("run.end"):
        return finding
    fatal = [event for event in case.events if event.kind in FATAL]
    done = _after(case, lines, case.of("job.done"))
    went_on = done or (_after(case, lines, case.of("progress")) if finding.strength == "possible" and not fatal else [])
    if went_on and not any(_later(event, went_on[-1]) for event in fatal):
        return clear(finding.cause, "The job went on after it.", (*pick(went_on, limit=1), *finding.evidence[:1]))
    met = _after(case, lines, _meetings(case)) if all(map(_meeting, lines)) else []
    if not met:
        return _got_over(finding, case, lines, fatal)
    given_up = [event for event in lines if event.kind in FATAL] and any(_later(event, met[-1]) for event in fatal)
    if given_up:
        return replace(finding, strength="possible")
    return clear(finding.cause, "The ranks met after all.", (*pick(met, limit=1), *finding.evidence[:1]))


def _quoted(finding: Finding, case: Case) -> bool:
    """True where it rests on texts alone that are no logs: documentation and source code quote errors."""
    documents = {row["path"] for row in case.inputs if row.get("kind") == "document"}
    events = [piece for piece in finding.evidence if isinstance(piece, Event)]
    quoting = (event.path in documents or is_quotation(event.text) for event in events)
    return finding.verdict == "found" and bool(events) and all(quoting)


def _any_program(finding: Finding) -> bool:
    """True where it rests on error lines alone that no grammar knows: some program's words, of whatever it means."""
    return all(isinstance(piece, Event) and piece.kind == "log.error" for piece in finding.evidence)


def _seen_live(finding: Finding) -> bool:
    """True where it rests on where ranks stood: without sequence numbers a rank may only be on its way."""
    return any(isinstance(piece, Event) and piece.data.get("live") for piece in finding.evidence)


def _got_over(finding: Finding, case: Case, lines: list[Event], fatal: list[Event]) -> Finding:
    """Weaker where work was done after its lines, and then something else failed; or where a rank had failed before.

    Which rank did the work is mostly not known: near the lines it may be one that had not missed the other yet.
    """
    said = [event for event in lines if event.kind not in WAITS] or lines
    if any(event.data.get("what") in LASTING for event in said):
        return finding
    last = max(said, key=lambda event: (event.path, event.line))
    steps = [e for e in _lived(case, said) if e.path == last.path]
    ends = [event for event in fatal if steps and _later(event, steps[-1])]
    far = bool(steps) and (steps[-1].line - last.line > FAR or steps[-1].rank == last.rank is not None)
    if far:
        return replace(finding, strength="possible")
    second = finding.strength == "proven" and ((steps and ends) or _after_own(finding, case, said))
    return replace(finding, strength="likely") if second else finding


def _lived(case: Case, said: list[Event]) -> list[Event]:
    """Steps, and starts of NCCL, that came after it; after a rank's last words where that rank speaks again later."""
    work = [*case.of("progress"), *initialized(case)]
    work.sort(key=lambda event: (event.path, event.line))
    waits = [event for kind in WAITS for event in case.of(kind)]
    ranks = {event.rank for event in said if UNCAUGHT.match(event.text)}
    again = [e for e in work if {w.rank for w in waits if _later(w, e)} >= ranks and all(_later(e, s) for s in said)]
    return again if ranks and None not in ranks else _after(case, said, work)


def _after_own(finding: Finding, case: Case, said: list[Event]) -> bool:
    """True where a rank ended with an error of the program: before these lines, or with lines that no rank wrote."""
    errors = [e for e in case.of("python.exception") if is_own(e) and UNCAUGHT.match(e.text) and e.data["type"] in OWN]
    errors = [event for event in errors if event not in finding.evidence]
    stray = [line for line in said if line.rank is None and not UNCAUGHT.match(line.text)]
    return any(all(line in stray or _later(line, error) for line in said) for error in errors)


def _long_before(finding: Finding, case: Case) -> bool:
    """True where it rests on the kernel's log alone, and ranks took steps or began a collective a minute later.

    The kernel's clock may be that of another zone, so that this clears nothing.
    """
    times = [e.time for e in finding.evidence if isinstance(e, Event) and e.kind.startswith("kernel.")]
    known = [time for time in times if time is not None]
    if not known or len(known) < len(finding.evidence):
        return False
    steps = [event.time - max(known) for event in case.of("progress") if event.time]
    begun = [e.time - (e.data.get("ran_ms") or 0) / 1000 - max(known) for e in case.of("c10d.timeout") if e.time]
    return any(age > 60 for age in steps) or any(60 < age < DAY for age in begun)  # glog's lines tell no year


def _meeting(event: Event) -> bool:
    """True for what is said of a connection between ranks that was not made."""
    return bool(
        event.kind.startswith(MEETING) or event.data.get("family") == "socket_connect" or TEXT.search(event.text)
    )


def _meetings(case: Case) -> list[Event]:
    """Lines that only ranks write that have met: communicators made, steps done, collectives begun."""
    done = initialized(case)
    joined = [e for e in case.of("store.clients") if e.data.get("joined") == e.data.get("expected") is not None]
    begun = [e for e in case.of("c10d.timeout") if e.data.get("seq") != 1]  # the first one begins without the others
    kinds = ("nccl.version", "nccl.connected", "nccl.op", "c10d.status", "progress", "job.done")
    return [*done, *joined, *begun, *(event for kind in kinds for event in case.of(kind))]


NO_JOB = (
    *OWN_TESTS, "kernel.", "net.", "system.", "printed.env", "printed.splits", "p2p.matrix", "log.error",
)  # fmt: skip
"""How kinds begin that are of a machine, of a test or of any program: they show no training job."""
HARMLESS = ("store.clients", "store.retry", "system.denied", "kernel.iommu", "kernel.pcie", "python.ignored")
"""Kinds that stand in logs of jobs that go well, too."""


def _of_job(event: Event) -> bool:
    """Whether only a training job leaves this; a plan, and the end of a run that tested connections, are none."""
    asked = event.kind == "worker.phase" and event.data.get("phase") in ("plan", "end")
    return not asked and not event.kind.startswith(NO_JOB)


def _open_errors(case: Case) -> Iterator[Event]:
    """Errors after which nothing shows that the job went on: a step proves that of a warning, an end of all of them."""
    ends, again = _ends(case), case.of("elastic.restart")
    steps = [*case.of("progress"), *resemblance.work(case), *ends]
    for event in case.events:
        if (abnormal(event) or event.kind == "log.error") and not event.kind.startswith(HARMLESS):
            proofs = ends if event.kind in FATAL else steps
            if not any(_later(proof, event) and _proves(proof, event, again) for proof in proofs):
                yield event


def _ends(case: Case) -> list[Event]:
    """Lines that say that a job succeeded."""
    return [*case.of("job.done"), *(event for event in case.of("run.end") if event.data.get("reason") == "done")]


def _went_well(case: Case) -> Event | None:
    """The line that shows that the job succeeded, or that every rank was at work; None where nothing does."""
    tables = [e for e in case.of("nccltests.table") if not e.data.get("wrong") and e.data.get("average") is not None]
    working = [event for event in case.of("ras.change") if not event.data.get("still") and event.data.get("moved")]
    begun = {event.rank for event in case.of("nccl.init")}
    left = [event for event in case.of("nccl.destroy") if event.data.get("how") == "destroy"]
    steps = case.of("progress")
    closed = left[-1:] if steps and begun <= {event.rank for event in left} else []
    exits = [event for event in case.of("c10d.hint") if event.data.get("what") == "not_destroyed"]  # at a program's end
    closed += [event for event in exits if any(_later(event, step) for step in steps)]
    working += case.of("attach.motion")
    return next(iter([*_ends(case), *tables, *closed, *working]), None)


def _after(case: Case, lines: list[Event], proofs: Iterable[Event]) -> list[Event]:
    """Those that come after all of the lines and prove that they did no harm."""
    again = case.of("elastic.restart")
    return [proof for proof in proofs if all(_later(proof, e) and _proves(proof, e, again) for e in lines)]


def _proves(proof: Event, line: Event, again: list[Event]) -> bool:
    """True where what comes later can only be if the line did no harm.

    The end of one rank, or the steps that it does until it misses another, tell nothing of the other one.  A rank that
    torch let say its last words is gone: only a launcher that started all of them again can have ended well.
    """
    if line.kind not in FATAL or (line.rank is not None and proof.rank == line.rank):
        return True
    if UNCAUGHT.match(line.text):
        started = any(_later(proof, restart) and _later(restart, line) for restart in again)
        return proof.kind == "job.done" and (STEP in proof.text or (GROUP in proof.text and started))
    return None in (proof.rank, line.rank)


def _later(one: Event, two: Event) -> bool:
    """By place in a file, else by time; False where neither tells."""
    if one.path == two.path:
        return one.line > two.line
    return one.time is not None and two.time is not None and one.time > two.time
