"""What each verb of the command does: from its options to an exit status."""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclkit.cli import terminal
from ncclkit.cli.terminal import Activity, show
from ncclkit.core.model import NcclkitError, to_json

if TYPE_CHECKING:
    from ncclkit.causes.diagnosis import Diagnosis
    from ncclkit.causes.looks.record import Look
    from ncclkit.causes.summary import Summary
    from ncclkit.core.case import Case
    from ncclkit.core.experiment_records import ExperimentRecord
    from ncclkit.core.model import Fact
    from ncclkit.core.runs import Run
    from ncclkit.evidence import Reading
    from ncclkit.live.looking import Sight
    from ncclkit.live.options import ProbeOptions
    from ncclkit.live.submit import BatchJob, JobState


SHOWN_RANKS = 8
"""Ranks whose use of a core is printed beside what they wait for."""


def _case(options: argparse.Namespace) -> Case:
    from ncclkit.core.case import Case

    case = Case.open(options.case)
    warning = case.exposed()
    if warning:
        show(f"ncclkit: {warning}", sys.stderr)
    return case


def _judge(case: Case, this_run: Case) -> Diagnosis:
    """The verdict on what this verb has just seen, kept by the case; earlier runs do not count."""
    from ncclkit.causes.engine import diagnose

    held = case.earlier()
    if held:
        show(f"ncclkit: {held}; this verdict is about the new one alone.", sys.stderr)
    found = diagnose(this_run)
    case.findings = this_run.findings
    case.save()
    return found


def _judge_run(case: Case, folder: Path) -> tuple[Diagnosis, Summary]:
    """The verdict on one run of the case, and its summary."""
    from ncclkit.causes.summary import summarize

    this_run = case.run_alone(folder)
    found = _judge(case, this_run)
    return found, summarize(this_run, found, shlex.join(["ncclkit", "diagnose", str(folder)]))


def _options(options: argparse.Namespace, **more: Any) -> ProbeOptions:
    """The options of the live test among those that were given.

    More ranks than fit are asked about first.
    """
    from ncclkit.live.options import OPTIONS, ProbeOptions, too_many_ranks

    given = {name: getattr(options, name) for name in OPTIONS if hasattr(options, name)}
    chosen = ProbeOptions(**given | more, oversubscribe=options.oversubscribe, here=options.here)
    if chosen.oversubscribe or not (sys.stdin.isatty() and sys.stderr.isatty()):
        why = ""
    else:
        why = too_many_ranks(chosen.ranks)
    if not why:
        return chosen
    show(f"{why}. Start them? [y/N]", sys.stderr)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NcclkitError("Nothing was started; ask for fewer ranks.")
    return replace(chosen, oversubscribe=True)


def diagnose(options: argparse.Namespace) -> int:
    """Judge what a job left behind; of logs of several jobs each alone."""
    from ncclkit.causes.engine import diagnose
    from ncclkit.core.case import Case
    from ncclkit.evidence import logs

    reading = _read_evidence(options.paths, options.workers)
    case, *others = logs.fill_jobs(
        _case_for_experiments(options) if options.check else Case(), reading, options.paths
    )
    found = diagnose(case)
    for problem in reading.problems:
        show(f"ncclkit: {problem}", sys.stderr)
    judged = [
        (case, _run_experiments(case, options) if options.check else found),
        *((one, diagnose(one)) for one in others),
    ]
    for ended in [verdict.ended for _, verdict in judged if verdict.ended]:
        show(f"ncclkit: {ended}", sys.stderr)
    if options.json:
        answer = _answer(options, judged[0][1].to_dict(case.inputs), case)
        theirs = [
            {"logs": one.about["logs"]} | _answer(options, verdict.to_dict(one.inputs), one)
            for one, verdict in judged[1:]
        ]
        show(
            json.dumps(answer | {"other_jobs": theirs} if theirs else answer, indent=1, default=str)
        )
    else:
        count = len(reading.facts)
        summary = logs.reading_summary(reading.inputs, count, reading.measurements)
        show(f"ncclkit: {summary}", sys.stderr)
        _print_verdicts(judged)
    codes = [verdict.exit_code for _, verdict in judged]
    if 1 in codes:
        return 1
    return codes[0]


def _read_evidence(paths: Sequence[str], who_reads: str | None = None) -> Reading:
    """What files, folders or standard input hold.

    Who_reads: workers of Dask in place of this host.
    """
    from ncclkit import evidence
    from ncclkit.live import workers

    stdin = None
    if "-" in paths:
        stdin = sys.stdin.buffer
    say = functools.partial(show, file=sys.stderr)
    readers = workers.started(who_reads, say) if who_reads else nullcontext()
    with readers as executor, Activity("Reading", is_long=False) as activity:
        helped = executor is None
        return evidence.read(
            paths, stdin=stdin, executor=executor, helped=helped, on_bytes=activity.amount
        )


def ask(options: argparse.Namespace) -> int:
    """Ask what tells the suspects of a bare symptom apart; the case keeps the answers."""
    from ncclkit.causes.engine import diagnose
    from ncclkit.cli import asking
    from ncclkit.experiments import questions

    answers = questions.parse_answers(options.answer)
    case = _case_to_ask_about(options)
    diagnosis = diagnose(case)
    if answers and questions.suspects_of(diagnosis):
        for look, answer in answers:
            questions.add_answer(case, look, answer)
        diagnosis = diagnose(case)
    seen: list[tuple[Look, Sight]] = []
    if options.look_for_me:
        with Activity("Looking"):
            diagnosis, seen = questions.look_through(case, diagnosis)
    if options.json:
        answer_object = _answer(options, questions.to_dict(case, diagnosis), case)
        show(json.dumps(answer_object, indent=1, default=str))
        return diagnosis.exit_code
    asking.print_suspects(case, diagnosis)
    asking.print_sights(seen)
    if sys.stdin.isatty() and "-" not in options.paths:
        diagnosis = asking.converse(case, diagnosis)
    else:
        asking.print_question(diagnosis)
        asking.print_next_step(case, diagnosis)
    return diagnosis.exit_code


def _case_to_ask_about(options: argparse.Namespace) -> Case:
    """The case folder with what the logs hold that were named, or as an earlier reading left it."""
    from ncclkit.evidence import logs

    if not options.paths:
        case = _case(options)
        if not case.inputs:
            raise NcclkitError(f"{case.path} holds no logs; name them, as in `ncclkit ask logs/`.")
        return case
    reading = _read_evidence(options.paths)
    for problem in reading.problems:
        show(f"ncclkit: {problem}", sys.stderr)
    case, *others = logs.fill_jobs(_case(options), reading, options.paths)
    if others:
        count = len(others) + 1
        show(
            f"ncclkit: these logs are of {count} jobs; asked about is {case.about['logs']}.",
            sys.stderr,
        )
    return case.save()


def _answer(options: argparse.Namespace, answer: dict[str, Any], case: Case) -> dict[str, Any]:
    """The answer as it is printed; for a coding agent with marks around what comes from logs."""
    from ncclkit.cli.untrusted import mark_quotations

    if options.mark_log_text:
        return mark_quotations(answer, case)
    return answer


def _print_verdicts(judged: Sequence[tuple[Case, Diagnosis]]) -> None:
    from ncclkit.causes.summary import summarize

    for number, (case, found) in enumerate(judged, 1):
        if len(judged) > 1:
            show(f"Job {number} of {len(judged)}: {case.about['logs']}")
        terminal.verdict(found, summarize(case, found, f"ncclkit diagnose {case.about['logs']}"))


def _case_for_experiments(options: argparse.Namespace) -> Case:
    """An empty case for the experiments.

    The folder of ``--case``, or a new hidden one in it where it holds anything.

    Of a case folder that was named as evidence, and is only read, it gets the plan of the last run,
    to run it again. Where that folder is the one of ``--case``, the experiments are its own.
    """
    from ncclkit.core.case import Case
    from ncclkit.experiments import baseline

    case = Case.open(options.case)
    warning = case.exposed()
    if warning:
        show(f"ncclkit: {warning}", sys.stderr)
    first = Path(options.paths[0])
    if case.path is None or (
        len(options.paths) == 1 and first.exists() and first.samefile(case.path)
    ):
        return case
    if (case.path / "case.json").exists():
        number = 1 + sum(1 for _ in case.path.glob(".checks/*"))
        case = Case.open(case.path / ".checks" / str(number))
    if len(options.paths) == 1 and (first / "case.json").exists():
        baseline.take_over(case, Case.open(first, read_only=True))
    return case


def _run_experiments(case: Case, options: argparse.Namespace) -> Diagnosis:
    """Ask what the suspects leave open, apply the fix, and say on stderr what came out; the verdict
    as it is then.
    """
    from ncclkit.causes.engine import diagnose
    from ncclkit.experiments import fixes

    def narrate(record: ExperimentRecord) -> None:
        done = "Fix tried:"
        if record.kind == "check":
            done = f"Checked: {record.question}"
        show(f"{done} {record.summary}", sys.stderr)

    show(f"ncclkit: small jobs run now, in {case.path}; Ctrl-C ends them.", sys.stderr)
    try:
        with Activity("Experiments") as activity:
            asyncio.run(
                fixes.close(
                    case, narrate, python=options.python or None, on_record=_follow(activity)
                )
            )
    except NcclkitError as error:  # what was found stays to be said
        show(f"ncclkit: {error}", sys.stderr)
    return diagnose(case)


def inspect(options: argparse.Namespace) -> int:
    """Read the facts of this host, or of an allocation.

    First what they make a job suffer, then the facts.
    """
    from ncclkit.analysis.consistency import compare
    from ncclkit.core import resources
    from ncclkit.core.case import Case
    from ncclkit.live import probe, scheduler
    from ncclkit.live.launch import local

    job = {name: getattr(options, name) for name in resources.UNITS}
    case = _case(options)
    before = list(case.facts)
    resources.set_job_spec(case, job)
    paths = {"work": ".", "data": options.data, "checkpoints": options.checkpoints}
    with Activity("Reading facts", limit=local.FACTS):
        asyncio.run(probe.inspect_hosts(case, options.python or None, paths))
    this_run = Case()
    this_run.facts = _read_now(case, before)
    found = _judge(case, this_run)
    hosts = compare(this_run.facts)
    if options.json:
        show("\n".join(to_json(fact) for fact in this_run.facts))
    else:
        terminal.verdict(found)
        terminal.print_facts(this_run.facts) if len(hosts.hosts) == 1 else show(f"\n{hosts.text()}")
        if scheduler.is_login_node():
            partitions = scheduler.known(case).get("partitions", [])
            terminal.rows(
                scheduler.scheduler_sentence(case),
                [(row["name"], scheduler.partition_words(row)) for row in partitions],
            )
    return int(bool(found.findings) or hosts.can_break)


def _read_now(case: Case, before: list[Fact]) -> list[Fact]:
    """The facts that were not in the case before.

    An equal one that was read again counts as new.
    """
    old = set(map(id, before))
    return [fact for fact in case.facts if id(fact) not in old]


def probe(options: argparse.Namespace) -> int:
    """Run the live test, and diagnose it where it failed."""
    from ncclkit.analysis import stages
    from ncclkit.analysis.history import beside_baseline
    from ncclkit.core import bandwidth

    case = _case(options)
    chosen = _options(options)
    with Activity("Live test", limit=chosen.timeout) as activity:
        run = asyncio.run(_live(case, chosen, activity))
    if options.json:
        show("\n".join(to_json(m) for m in run.measurements))
    else:
        staged = ""
        if options.stages:
            staged = stages.staged_test(case).summary
        lines = []
        if staged and staged not in run.summary:
            lines = [staged]
        judged = bandwidth.judgements(run.measurements, run.expectations)
        lines += [
            f"{one.best.op}: {one.summary}" if len(run.expectations) > 1 else one.summary
            for one in judged
        ]
        lines += dict.fromkeys(str(bound) for bound in run.expectations.values())
        if run.reason == "done" and (against := beside_baseline(run.measurements)[0]):
            lines.append(against)
        show(
            "\n".join(
                [
                    *(str(m) for m in run.measurements),
                    *lines,
                    run.summary,
                    f"Run folder: {run.folder}",
                ]
            )
        )
        if run.reason != "done" or run.warning:
            terminal.verdict(*_judge_run(case, run.folder))
    if options.json and run.warning:
        show(f"ncclkit: {run.warning}", sys.stderr)
    if run.reason == "done" and not run.warning:
        return 0
    return 1


async def _live(case: Case, options: ProbeOptions, activity: Activity) -> Run:
    """Run the live test.

    Reads the facts of this host first where they are missing, as the bound follows from them.
    """
    from ncclkit.live import probe, scheduler

    login = case.fact("scheduler.login_node")
    if all(fact.host == login for fact in case.facts_of("host.kernel")):
        asked = (
            options.python
            or options.ranks
            or options.simulate_hosts > 1
            or options.backend != "auto"
        )
        if asked or await asyncio.to_thread(scheduler.is_login_node):
            await probe.plan_test(case, options)  # refuses what cannot work before anything is read
        await probe.inspect_hosts(case, options.python or None)
    return await probe.probe(case, options, _follow(activity))


def _follow(activity: Activity) -> Callable[[dict[str, Any]], None]:
    """What shows the records of a run as they come.

    Of a curve it is known how many sizes there are.
    """
    sizes: dict[str, int] = {"all": 0, "done": -1}

    def follow(record: dict[str, Any]) -> None:
        if record["kind"] == "plan":
            env = (f"{name}={value}" for name, value in record["env"].items())
            activity.within(record["deadline"])
            activity.note(f"  set for the ranks: {shlex.join(env)}")
            sizes.update(all=len(record["sizes"]) * len(record["ops"]), done=-1)
        if record["kind"] == "phase" and record.get("rank") == 0:
            sizes["done"] += record["phase"] == "size"
            if record["phase"] == "done":
                sizes["done"] = sizes["all"]
            what = [record["phase"], str(record.get("bytes", "")), str(record.get("op", ""))]
            known = 0 <= sizes["done"] <= sizes["all"]
            activity.step(
                f"rank 0: {' '.join(filter(None, what))}", *(sizes["done"], sizes["all"]) * known
            )
        if record["kind"] in ("stage", "problem"):
            activity.note(f"  {record['say']}")

    return follow


def tune(options: argparse.Namespace) -> int:
    """Compare settings with the default, by collective and message size."""
    from ncclkit.core.storage import write
    from ncclkit.core.tuning import config_files, setting
    from ncclkit.live import tune

    wanted = [setting(words) for words in options.settings]
    with Activity("Measuring") as activity:
        case = _case(options)
        asked = case, wanted, _options(options), options.sizes, options.inherited
        done = tune.sweep(
            *asked, on_record=_follow(activity), job=options.job, budget=options.budget
        )
        swept = asyncio.run(done)
    files = config_files(swept)
    for name, file in files.items() if options.save else ():
        options.save.mkdir(parents=True, exist_ok=True)
        write(options.save / name, file.text)
    show(to_json(swept) if options.json else swept.text())
    if files and not options.json:
        names = ", ".join(files)
        show(
            f"Written to {options.save}: {names}" if options.save else f"--save DIR writes {names}"
        )
        show("\n".join(f"{name} again: {file.verify}" for name, file in files.items()))
    return 0


def step(options: argparse.Namespace) -> int:
    """Say where the time of a training step goes, by a run or by traces; compare settings."""
    from ncclkit.live.options import StepOptions, declared
    from ncclkit.live.step import holistic, measure_steps, read_traces

    case = _case(options)
    if options.traces:
        times = read_traces(case, options.traces)
        more = []
        if options.hta:
            more = holistic(options.traces)
        show(to_json(times) if options.json else "\n".join([times.text(), *more]))
        return 0
    given = {name: getattr(options, name) for name in declared(StepOptions)}
    asked = StepOptions(**given | {"tries": tuple(options.tries)}, here=options.here)
    with Activity("Steps", limit=asked.timeout * (1 + asked.rounds * len(asked.tries))) as activity:

        def narrate(record: dict[str, Any]) -> None:
            if record["kind"] == "problem":
                activity.note(f"ncclkit: {record['say']}")

        run = asyncio.run(measure_steps(case, options.command, asked, narrate))
    show(json.dumps(run.to_dict(), indent=1) if options.json else run.text())
    if run.times is None and not options.json:
        terminal.verdict(*_judge_run(case, run.folder))
    if run.times:
        return 0
    return 1


def compare(options: argparse.Namespace) -> int:
    """Compare cases over time, or one with the baseline of this cluster.

    Save that baseline; or compare nodes.
    """
    from ncclkit.analysis.gates import compare_nodes
    from ncclkit.analysis.history import compare_cases, save_baseline
    from ncclkit.core.case import Case

    if all(Path(one).is_file() for one in options.cases):
        nodes = compare_nodes(options.cases)
        show(json.dumps(nodes.to_dict(), indent=1) if options.json else nodes.text())
        return int(bool(nodes.outliers or nodes.shared))
    if options.save_baseline:
        last = Case.open(options.cases[-1], read_only=True)
        show(
            f"The baseline is now that of {last.path}, in {save_baseline(last, options.baseline)}."
        )
        return 0
    found = compare_cases(options.cases, options.baseline)
    show(json.dumps(found.to_dict(), indent=1) if options.json else found.text())
    return int(found.worst is not None and found.worst.slower > 0)


def connect(options: argparse.Namespace) -> int:
    """Test the network paths between hosts.

    Every host and every path, then what is wrong with them.

    Exit status 2 where nothing was found and a host could not be reached.
    """
    from ncclkit.core.case import Case
    from ncclkit.live.connect import DEADLINE, connectivity

    case = _case(options)
    this_run = Case()
    before = list(case.facts)
    choices = {
        "remote_command": options.remote_command,
        "port": options.port,
        "python": options.python or None,
    }
    with Activity("Connections", limit=DEADLINE) as activity:

        def narrate(record: dict[str, Any]) -> None:
            if record["kind"] == "connect.step":
                activity.step(str(record.get("say")))

        found = asyncio.run(connectivity(case, options.hosts, narrate, **choices))
    rows = [*(host.event for host in found.hosts.values()), *(link.event for link in found.links)]
    this_run.events, this_run.facts = rows, _read_now(case, before)
    diagnosis = _judge(case, this_run)
    if options.json:
        show("\n".join(to_json(row) for row in rows))
    else:
        show(f"{found.text()}\n\n{found.summary}.\n")
        terminal.verdict(diagnosis)
    return int(bool(diagnosis.findings)) or 2 * any(host.problem for host in found.hosts.values())


def lab(options: argparse.Namespace) -> int:
    """Break a small job and diagnose it."""
    from ncclkit.lab.faults import injection, recording

    if options.list or not options.fault:
        terminal.rows(
            "", [(name, injection.fault_row(fault)) for name, fault in injection.FAULTS.items()]
        )
        return 0
    if options.record:
        recording.writable(options.record)
    show(
        f"This run: {injection.fault(options.fault).says}. It touches only its own processes and"
        f" {options.case}.",
        file=sys.stderr,
    )
    case = _case(options)
    asked = _options(options)
    with Activity(options.fault, limit=asked.timeout) as activity:
        run = asyncio.run(
            injection.inject(
                case,
                options.fault,
                python=asked.python,
                ranks=asked.ranks,
                backend=asked.backend,
                deadline=asked.timeout,
                simulate_hosts=asked.simulate_hosts,
                oversubscribe=asked.oversubscribe,
                here=asked.here,
                on_record=_follow(activity),
            )
        )
    if options.record:
        recording.bundle(run, options.record, {"host": "lab"})
    if options.check:
        found = _run_experiments(case, options)
        about = None
    else:
        found, about = _judge_run(case, run.folder)
    if options.json:
        show(json.dumps(found.to_dict(case.inputs), indent=1, default=str))
        return found.exit_code
    show(f"{run.summary}\n")
    terminal.verdict(found, about)
    return found.exit_code


def exam(options: argparse.Namespace) -> int:
    """Make an examination, or give points to an answer sheet."""
    from ncclkit.lab import exam as exams

    if options.grade:
        points = exams.grade(options.grade, options.to / exams.KEY)
        rest = sum(exams.POINTS.values()) - sum(exams.POINTS[name] for name in points)
        rows = [(name, f"{given} of {exams.POINTS[name]}") for name, given in points.items()]
        terminal.rows("", [*rows, ("experiment and fix", f"up to {rest}, by a person and the key")])
        return 0
    file = options.secret or exams.default_secret_file()
    secret = exams.teacher_secret(file)
    made = exams.make(
        options.seed, options.to, secret, from_recording=options.recorded, python=options.python
    )
    asyncio.run(made)
    show(f"Hand out: {options.to / exams.STUDENT}\nKeep:     {options.to / exams.KEY}, {file}")
    return 0


def attach(options: argparse.Namespace) -> int:
    """Diagnose a job that hangs now."""
    from ncclkit.analysis.motion import headline
    from ncclkit.analysis.waits import position_bars
    from ncclkit.live.attach import AttachOptions, attach

    def narrate(record: dict[str, Any]) -> None:
        if record["kind"] == "note":
            show(f"ncclkit: {record['say']}", sys.stderr)

    chosen = AttachOptions(
        **{each.name: getattr(options, each.name) for each in fields(AttachOptions)}
    )
    case = _case(options)
    with Activity("Looking at ranks", limit=None if chosen.follow else chosen.limit):
        attached = asyncio.run(attach(case, options.pid, options.job, chosen, narrate))
    reading, (found, about) = attached.reading, _judge_run(case, attached.folder)
    if options.json:
        job_state = {"running": list(attached.jobs), "progress": list(attached.progress)}
        answer = _answer(options, found.to_dict(reading.inputs) | job_state, case)
        show(json.dumps(answer, indent=1, default=str))
        return found.exit_code
    if found.findings:
        sentence = found.findings[0].say
    else:
        sentence = headline(attached.events)
    busy = [event.text for event in reading.events if event.kind == "telemetry.utilization"]
    about_job = [*attached.jobs, *attached.progress, *busy[:SHOWN_RANKS]]
    show("\n".join([sentence, "", *position_bars(attached.events), "", *about_job]))
    missing = [f"  {problem.rstrip('.')}." for problem in attached.problems]
    show("\n".join(["", *["What could not be read, and how it can be:"] * bool(missing), *missing]))
    if found.findings:
        terminal.verdict(found, about)
    return found.exit_code


def submit(options: argparse.Namespace) -> int:
    """Submit a verb as a batch job, follow it, and print what it printed.

    Returns its exit status.
    """
    from ncclkit.live import scheduler
    from ncclkit.live import submit as batch
    from ncclkit.live.options import job_options

    verb = options.parse(
        options.words, without=("submit", "status", "open", "mcp", "completion", "causes", "gate")
    )
    chosen = job_options(options)
    if scheduler.is_inside_job():
        show("ncclkit: this is inside a job of Slurm already, so the verb runs in it.", sys.stderr)
        return int(verb.verb(verb))
    # before there is a case folder
    batch.refuse_unwritable(Path(verb.case).expanduser().absolute())
    case = _case(verb)
    case.replace_facts(scheduler.read_facts()).save()
    words = _with_case(options.words, "--case", str(case.path))
    if options.dry_run:
        show(batch.script(case, batch.unmade_folder(case.path or Path(), words[0]), words, chosen))
        return 0

    def shown(record: dict[str, Any]) -> None:
        show(record["text"], sys.stderr)
        if sys.stdin.isatty() and sys.stderr.isatty():
            show("Submit this? [Y/n]", sys.stderr)
            if sys.stdin.readline().strip().lower() in ("n", "no"):
                raise NcclkitError("Nothing was submitted.")

    job = batch.submit(case, words, chosen, shown)
    show(f"ncclkit: job {job.id} is in the queue; {job.folder} keeps what it prints.", sys.stderr)
    if options.no_wait:
        return 0
    return _follow_job(case, job)


def _with_case(words: Sequence[str], *case: str) -> list[str]:
    """The words of a verb with this ``--case DIR`` only, or none.

    Behind ``--`` stands the user's own command.
    """
    if "--" in words:
        end = words.index("--")
    else:
        end = len(words)
    own, command = words[:end], words[end:]
    kept = [
        word
        for before, word in zip(["", *own], own, strict=False)
        if before != "--case" and word != "--case" and not word.startswith("--case=")
    ]
    return [*kept, *case, *command]


def _follow_job(case: Case, job: BatchJob) -> int:
    """Show the job's progress until it has ended, then what it printed; Ctrl-C leaves it alone."""
    from ncclkit.live import submit as batch

    again = shlex.join(["ncclkit", "status", "--follow", "--case", str(case.path)])
    try:
        with Activity(f"Job {job.id}") as activity:
            follow = _follow(activity)

            def observe(record: dict[str, Any]) -> None:
                if record["kind"] == "job":
                    activity.note(f"ncclkit: {record['say']}")
                elif record["kind"] == "end" and activity.bar:
                    # of a test; what its verb then does takes seconds, too
                    activity.step(f"the test has ended, {' '.join(job.words[:1])} goes on")
                else:
                    follow(record)

            ended = asyncio.run(batch.follow(case, job, observe))
    except KeyboardInterrupt:
        cancel = again.replace("--follow", "--cancel")
        show(
            f"ncclkit: job {job.id} goes on. `{again}` finds it again, `{cancel}` cancels it.",
            sys.stderr,
        )
        return 130
    return _job_report(job, ended)


def _job_report(job: BatchJob, ended: JobState) -> int:
    """Print what an ended job printed; returns the exit status of its verb, 2 where it has none."""
    if job.printed:
        show(job.printed.rstrip("\n"))
    if ended.status not in (0, 1):
        said = job.complaints.rstrip("\n")
        show("\n".join(filter(None, [said, f"ncclkit: {ended.sentence}"])), sys.stderr)
    if ended.status is not None and 0 <= ended.status < 3:
        return ended.status
    return 2


def status(options: argparse.Namespace) -> int:
    """Say what became of the batch jobs of a case.

    Returns the exit status of one that ended, 0 while it has not.
    """
    from ncclkit.live import submit as batch

    case = _case(options)
    held = batch.submitted_jobs(case)
    job = next(
        (one for one in reversed(held) if options.job is None or one.id == str(options.job)), None
    )
    if job is None:
        which = "batch job"
        if options.job:
            which = f"job {options.job}"
        raise NcclkitError(
            f"{case.path} holds no {which}; `ncclkit submit VERB --case DIR` submits one."
        )
    if options.cancel:
        batch.cancel(job)
    if options.follow:
        return _follow_job(case, job)
    for one in held:
        now = batch.job_state(one)
        show(f"{shlex.join(['ncclkit', *_with_case(one.words)])}: {now.sentence}", sys.stderr)
    if (now := batch.job_state(job)).over:
        return _job_report(job, now)
    return 0


def gate(options: argparse.Namespace) -> int:
    """Say whether this node is ready for a job; exit status 0, 1 or 2."""
    import subprocess

    from ncclkit.live.launch.pack import packed
    from ncclkit.live.probe import interpreter

    with packed() as agent:
        if options.agent:
            options.agent.write_bytes(agent.read_bytes())
            show(
                f"Written: {options.agent}. On a node: python3 {options.agent} gate --seconds"
                f" {options.seconds:g}"
            )
            return 0
        words = [
            word
            for name in ("baseline", "learn")
            if (file := getattr(options, name))
            for word in (f"--{name}", file)
        ]
        command = [
            interpreter(options.python),
            str(agent),
            "gate",
            "--seconds",
            str(options.seconds),
            *words,
        ]
        try:
            return subprocess.run(command, timeout=options.seconds + 10).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NcclkitError(
                f"The gate could not be run ({error}); name a Python with --train-python."
            ) from error


def causes(options: argparse.Namespace) -> int:
    """Print the known causes, or the page of one, or of a symptom."""
    from ncclkit.causes import catalogue, page
    from ncclkit.causes.symptoms import page_of, symptoms

    if options.symptoms:
        from ncclkit.causes.symptoms.document import symptoms_document

        titles = {name: page_of(name)[""] for name in symptoms()}
        show(json.dumps(titles, indent=1) if options.json else symptoms_document().rstrip("\n"))
        return 0
    if options.cause in symptoms():
        about = page_of(options.cause)
        suspects = "\n".join(
            f"{name}: {why}" for name, why in symptoms()[options.cause].SUSPECTS.items()
        )
        about["Usual suspects"] = suspects
        if options.json:
            show(json.dumps({options.cause: about}, indent=1))
        else:
            terminal.print_page(options.cause, about)
        return 0
    if options.cause:
        titles = {}
    else:
        titles = {name: page(name)[""] for name in catalogue()}
    if options.json:
        show(json.dumps(titles or {options.cause: page(options.cause)}, indent=1))
    elif options.cause:
        terminal.print_page(options.cause, page(options.cause))
    else:
        terminal.rows("", titles.items())
    return 0


def mcp(options: argparse.Namespace) -> int:
    """Serve read-only tools to a coding agent until its end of the pipe closes."""
    try:
        from ncclkit.cli import mcp_server
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise NcclkitError(
            f"`ncclkit mcp` needs the package {package}: pip install 'ncclkit[mcp]'."
        ) from error
    mcp_server.serve()
    return 0


def report(options: argparse.Namespace) -> int:
    """Run a notebook headless, as one HTML file."""
    from ncclkit.causes.engine import diagnose as judge_case
    from ncclkit import report
    from ncclkit.analysis.speed import measured_speed
    from ncclkit.core.case import Case

    path = report.notebook(options.notebook)
    wrong = next((item for item in options.p if "=" not in item), None)
    if wrong:
        raise NcclkitError(
            f"The parameter {wrong!r} is not NAME=VALUE; write for example -p ranks=4."
        )
    parameters = report.literals(dict(item.split("=", 1) for item in options.p), path)
    if options.python:
        parameters["train_python"] = options.python
    folder = Path(parameters.get("case_dir") or options.case).expanduser().absolute()
    parameters |= {"case_dir": folder} if "case_dir" in parameters else {}
    html = report.make(
        path, folder, parameters, redact=options.redact, names=options.redact_name or ()
    )
    if (html.parent / "case.json").exists():  # a catalogue of causes judges nothing
        judged = Case.open(html.parent, read_only=True)  # as the page does, of which run it may be
        found = [finding.say for finding in judged.findings if finding.verdict == "found"]
        speed = measured_speed(judged.latest())
        said = [*found, speed.warning if speed else ""]
        # not judged again where it found something: that takes long in large cases
        verdict = next(filter(None, said), "") or judge_case(judged).headline
        show(f"Verdict: {verdict}")
    show(f"Report: {html}\nCase folder: {html.parent}")
    if options.redact or options.redact_name:
        show(
            f"Replaced names: {report.replaced(html)} (keep this list; --redact-name NAME adds what"
            " it lacks)"
        )
    return 0


def open_notebook(options: argparse.Namespace) -> int:
    """Start JupyterLab."""
    from ncclkit import report
    from ncclkit.report import jupyter

    jupyter.open_lab(report.notebook(options.notebook), port=options.port)
    return 0
