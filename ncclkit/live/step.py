"""The user's own training script for some tens of steps, unchanged.

It tells where a step's time goes, and what would change it.

A folder of our own stands first on PYTHONPATH while the script runs.  It holds one file,
``sitecustomize.py`` (`ncclkit.agent.monitor.step_hook`), which measures the steps and ends the
script after the last one.  The folder is removed when the script has ended, and nothing else of the
user's is touched.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from ncclkit import evidence
from ncclkit.agent import private, redact
from ncclkit.agent.monitor import step_hook
from ncclkit.analysis.steps import SettingEffect, StepTimes, step_times
from ncclkit.core.case import Case
from ncclkit.core.model import Event, NcclkitError
from ncclkit.core.storage import write
from ncclkit.core.text import percent, plural
from ncclkit.core.tuning import Comparison, Setting
from ncclkit.evidence.sources import inputs
from ncclkit.evidence.sources.streams import unpack
from ncclkit.evidence.tools import profiles as records
from ncclkit.live import scheduler
from ncclkit.live.hook_watch import HookWatch
from ncclkit.live.launch import launchers, local
from ncclkit.live.launch.base import OnRecord
from ncclkit.live.launch.pack import packed
from ncclkit.live.options import StepOptions, setting_change
from ncclkit.live.probe import writing

PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
WHAT = (
    "ncclkit puts a folder with one file, sitecustomize.py, first on PYTHONPATH of this script. It"
    " measures {} steps, or more where they are short (data loader, collectives, checkpoints,"
    " optimizer, and which line the script is at), ends the script after them, and is removed then."
)
LEAST_SECONDS = 6.0
"""Seconds of the steps that are measured, at least.

Short ones are looked at too seldom to name a line.
"""


@dataclass(frozen=True, slots=True)
class StepRun:
    """A script that was run for some steps."""

    command: tuple[str, ...]
    """Its words, without the secrets among them."""
    times: StepTimes | None
    """None where no step came to its end."""
    effects: tuple[SettingEffect, ...]
    reason: str
    folder: Path
    seconds: float
    problem: str = field(default="")

    @property
    def summary(self) -> str:
        """What holds a step back, and whether anything that was tried helps."""
        if self.times is None:
            return (
                f"{shlex.join(self.command)} made no step that could be measured"
                f" ({self.reason}){self.problem}"
            )
        return " ".join([self.times.summary, *([compared(self.effects)] if self.effects else [])])

    def text(self) -> str:
        """The same with all numbers."""
        if self.times is None:
            return self.summary
        rows = [str(effect) for effect in self.effects]
        return "\n".join(
            [self.times.text(), *(["", compared(self.effects), *rows] if rows else [])]
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        times = None
        if self.times:
            times = asdict(self.times) | {"summary": self.times.summary}
        return {
            "command": list(self.command),
            "reason": self.reason,
            "run": self.folder.name,
            "summary": self.summary,
            "steps": times,
            "effects": [asdict(effect) | {"summary": str(effect)} for effect in self.effects],
        }


def compared(effects: Sequence[SettingEffect]) -> str:
    """What came of all settings that were tried, in one sentence."""
    better = sorted((one for one in effects if one.better), key=lambda one: -one.gain)
    if not better:
        return (
            f"Nothing here beats what you have: {plural(len(effects), 'setting')} tried, none is"
            " faster beyond chance."
        )
    best = better[0]
    return (
        f"{best.setting} makes a step {percent(best.gain)} shorter (at least"
        f" {percent(best.interval[0])})."
    )


async def measure_steps(
    case: Case,
    command: Sequence[str],
    options: StepOptions | None = None,
    on_record: OnRecord = lambda record: None,
) -> StepRun:
    """Run a script for some tens of steps, and say where the time goes.

    It also compares settings with what the script has.  `command` is as the user types it: ``python
    train.py …``, which gets its ranks from torchrun, or ``torchrun …``, ``accelerate launch …``,
    ``srun …``.  Raises NcclkitError for what cannot be started or compared.
    """
    asked = options or StepOptions()
    words = tuple(command)
    await _startable(words, asked.here)
    began = time.monotonic()
    on_record({"kind": "problem", "say": WHAT.format(asked.steps)})
    folder, reason, events = await _once(case, words, asked, {}, on_record)
    found = [event for event in events if event.kind == "step.rank"]
    times = None
    if any(event.data.steps for event in found):
        times = step_times(found)
    effects: list[SettingEffect] = []
    if times and asked.tries:
        effects = await _compare(case, words, asked, times, on_record)
        rows = [_event(effect, folder) for effect in effects]
        case.add(rows).save()
    spent = time.monotonic() - began
    return StepRun(
        tuple(redact.words(words)),
        times,
        tuple(effects),
        reason,
        folder,
        spent,
        "" if times else f"; see {folder}/launcher.log.",
    )


async def _startable(words: Sequence[str], here: bool) -> None:
    """Raise NcclkitError for a command that cannot be started as it is.

    `here`: it may be started on a login node, too.
    """
    if not words:
        raise NcclkitError("Name the script after two dashes: ncclkit step -- python train.py")
    if shutil.which(words[0]) is None:
        raise NcclkitError(
            f"There is no program {words[0]!r}; write the command as your job has it."
        )
    if not here and not starts_on_nodes(words) and await asyncio.to_thread(scheduler.is_login_node):
        raise NcclkitError(
            "This is a login node of a Slurm cluster: start the script on nodes with `ncclkit step"
            " -- srun …`, or here with --here."
        )
    if not PYTHON.fullmatch(words[0]):
        return
    if len(words) < 2 or (words[1].startswith("-") and words[1] != "-m"):
        raise NcclkitError(
            f"After {words[0]} the script must follow, or -m and a module; options cannot be"
            " passed on."
        )
    if launchers.node_count() > 1:
        raise NcclkitError(
            "On several nodes start the script as your job does: ncclkit step -- srun python"
            " train.py"
        )


def starts_on_nodes(words: Sequence[str]) -> bool:
    """Whether ranks of this command may run on other hosts.

    These must see the folder of the hook.
    """
    return launchers.node_count() > 1 or Path(words[0]).name == "srun"


async def _once(
    case: Case,
    words: Sequence[str],
    options: StepOptions,
    change: Mapping[str, Any],
    on_record: OnRecord,
) -> tuple[Path, str, list[Event]]:
    """One run of the script.

    Returned are its folder, how it ended, and what it left, which is in the case as well.
    """
    folder = case.new_run("step")
    if PYTHON.fullmatch(words[0]):
        python = words[0]
    else:
        python = sys.executable
    with (
        writing(folder),
        packed() as agent,
        _hooked(folder, options, change, starts_on_nodes(words)) as (own, env),
    ):
        line = [*words, *change.get("flags", ())]
        if PYTHON.fullmatch(words[0]):
            # without GPUs two, as in a live test
            ranks = options.ranks or int((await local.check_interpreter(python))["gpus"]) or 2
            line = [python, str(agent), "launch", str(ranks), "0", "--", *line[1:]]
        plan = {"name": "step", "command": list(words), "change": change, "env": env}
        write(folder / "plan.json", json.dumps(redact.clean(plan), indent=1))
        given = local.run_under_guard(agent, line, env, options.timeout, folder, python, on_record)
        watch = HookWatch(own, folder)
        ended = (await _watched(given, watch))[-1]
        unmeasured = watch.why_no_step()
    reading = evidence.read([folder])
    traces = sorted(folder.glob("trace_rank*.json"))
    events = list(reading.events)
    for number, path in enumerate(traces):
        events.append(_traced(path, number))
    case.add(events)
    for row in reading.inputs:
        if row not in case.inputs:
            case.inputs.append(row)
    case.save()
    why = str(ended["reason"])
    made_none = not any(event.kind == "step.rank" for event in events)
    if made_none and unmeasured:
        why = f"{why}; {unmeasured}"
    return folder, why, events


async def _watched(
    given: Coroutine[Any, Any, list[dict[str, Any]]], watch: HookWatch
) -> list[dict[str, Any]]:
    """The records of a run.

    Raises NcclkitError, once the run has been ended, where a process of it will make no step.
    """
    running = asyncio.ensure_future(given)
    looking = asyncio.ensure_future(watch.ended_by())
    try:
        await asyncio.wait({running, looking}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return await running
        unmeasured = await looking
    finally:
        looking.cancel()
        running.cancel()
        # both are awaited, as a cancelled run still ends what it started
        await asyncio.wait({running, looking})
    raise NcclkitError(f"No step can be measured, so the run was ended: {unmeasured}.")


def _traced(path: str | Path, number: int) -> Event:
    """What a trace says of its rank.

    `number` is that of the rank where neither the trace nor its name says it.
    """
    own = inputs.rank_of(str(path))
    with inputs.opened(str(path)) as stream:
        return records.from_trace(unpack(stream)[0], str(path), number if own is None else own)


@contextmanager
def _hooked(
    folder: Path, options: StepOptions, change: Mapping[str, Any], spread: bool
) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with our ``sitecustomize``, gone after the block.

    With it come the variables that put it before a script.
    """
    # elsewhere than on nodes, which must see it, it lies where nobody else can write
    if spread:
        place = str(folder)
    else:
        place = private.parent_folder()
    with tempfile.TemporaryDirectory(prefix=private.PREFIX, dir=place) as own:
        shutil.copyfile(step_hook.__file__, Path(own) / "sitecustomize.py")
        hook_options = {
            "folder": str(folder),
            "steps": options.steps,
            "warmup": options.warmup,
            "trace": options.trace,
        }
        if change.get("measure", True):
            hook_options["seconds"] = LEAST_SECONDS
        hook_options |= {
            name: change[name] for name in ("ddp", "loader", "measure") if name in change
        }
        paths = os.pathsep.join(filter(None, [own, os.environ.get("PYTHONPATH", "")]))
        env = {
            "PYTHONPATH": paths,
            step_hook.OPTIONS: json.dumps(hook_options),
            **change.get("env", {}),
        }
        yield Path(own), env


async def _compare(
    case: Case, words: Sequence[str], options: StepOptions, times: StepTimes, on_record: OnRecord
) -> list[SettingEffect]:
    """Each setting against what the script has, in rounds of shuffled order.

    Nothing else is measured in them.
    """
    foreign = [
        one
        for one in options.tries
        if one.startswith(("NCCL_", "TORCH_NCCL_")) and times.backend == "gloo"
    ]
    if foreign:
        raise NcclkitError(
            f"{foreign[0]} changes nothing over gloo, which this script uses; it needs NCCL, so"
            " GPUs."
        )
    laps: dict[str, list[float]] = {"": [], **{one: [] for one in options.tries}}
    short = replace(options, trace=0)
    # a fixed seed, so that a comparison can be repeated as it was
    order = random.Random(0)
    room = _room(case)
    for number in range(options.rounds):
        for words_of in order.sample(list(laps), len(laps)):
            on_record(
                {
                    "kind": "problem",
                    "say": f"round {number + 1} of {options.rounds}: {words_of or 'as it is'}",
                }
            )
            change = {"measure": False} | (setting_change(words_of) if words_of else {})
            folder, reason, events = await _once(room, words, short, change, on_record)
            laps[words_of].append(_lap(events, reason, folder, words_of))
    usual = tuple(laps.pop(""))
    return [
        SettingEffect.of(
            Comparison(
                Setting(dict([one.partition("=")[::2]])), "step", 0, usual, tuple(taken), len(laps)
            )
        )
        for one, taken in laps.items()
    ]


def _room(case: Case) -> Case:
    """A case of its own for runs that only compare.

    None of them speaks into the verdict on the case.
    """
    if case.path is None:
        raise NcclkitError(
            "This case has no folder; open one with Case.open(path) before running anything."
        )
    return Case.open(case.path / ".steps")


def _lap(events: Iterable[Event], reason: str, folder: Path, setting: str) -> float:
    """Microseconds of a batch in the usual step of the slowest rank.

    With accumulation a step has several batches.
    """
    found = [event.data for event in events if event.kind == "step.rank" and event.data.plain]
    for data in found:
        if setting and data.problems:
            raise NcclkitError(f"{setting} cannot be tried on this script: {data.problems[0]}.")
    if not found:
        named = setting or "what it has"
        raise NcclkitError(
            f"With {named} the script made no steps ({reason}); see {folder}/launcher.log."
        )
    # the slowest rank sets the pace of all
    return 1e6 * max(float(median(data.plain)) / (data.batches or 1.0) for data in found)


def _event(effect: SettingEffect, folder: Path) -> Event:
    return Event("step.setting", str(effect), str(folder / "plan.json"), 0, data=asdict(effect))


def read_traces(case: Case, paths: Iterable[str | Path]) -> StepTimes:
    """Where a step's time goes by traces of torch's profiler.

    They are .json or .json.gz, one of each rank; the case keeps what they tell.  Raises
    NcclkitError where there is none, or one holds no steps.
    """
    found, problems = inputs.find(list(paths))
    events = [_traced(path, number) for number, path in enumerate(found)]
    if not events:
        raise NcclkitError(
            " ".join(problems) or "No trace was given; name the files that torch's profiler wrote."
        )
    times = step_times(events)
    case.add(events).save()
    return times


def holistic(paths: Iterable[str | Path]) -> list[str]:
    """What HolisticTraceAnalysis reads in traces of GPUs.

    It is a sentence for each rank: why the GPU idles, and what is hidden.  Raises NcclkitError
    where the package is not installed, and for traces that it cannot read.
    """
    try:
        from hta.trace_analysis import TraceAnalysis
    except ImportError as error:
        raise NcclkitError(
            "HolisticTraceAnalysis is not installed; pip install 'ncclkit[tuning]'."
        ) from error
    found, _ = inputs.find(list(paths))
    files: dict[int, str] = {}
    for number, path in enumerate(found):
        own = inputs.rank_of(str(path))
        files[number if own is None else own] = str(path)
    try:
        analysis = TraceAnalysis(trace_files=files)
        shares = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
        hidden = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
        idle, _ = analysis.get_idle_time_breakdown(ranks=[*files], visualize=False)
    except (LookupError, TypeError, ValueError) as error:
        raise NcclkitError(
            f"HolisticTraceAnalysis cannot read these traces: {str(error).splitlines()[0]}."
        ) from error
    return [
        _of_gpu(rank, shares.loc[rank], hidden.loc[rank], idle[idle["rank"] == rank])
        for rank in sorted(files)
    ]


def _of_gpu(rank: int, shares: Any, hidden: Any, idle: Any) -> str:
    """The sentence of one rank.

    Its GPU idles for the reasons of the stream that idles least.
    """
    streams = idle.groupby("stream")["idle_time"].sum()
    least = idle[idle["stream"] == streams.idxmin()].set_index("idle_category")["idle_time_ratio"]
    why = {
        "host_wait": "for the host to launch a kernel",
        "kernel_wait": "between kernels that are launched",
    }
    reasons = ", ".join(
        f"{percent(least[kind])} {words}" for kind, words in why.items() if least.get(kind, 0) > 0
    )
    return (
        f"rank {rank}: its GPU computes {percent(shares['compute_time_pctg'] / 100)} of the time,"
        f" only communicates or copies {percent(shares['non_compute_time_pctg'] / 100)}, and idles"
        f" {percent(shares['idle_time_pctg'] / 100)}{f' ({reasons})' if reasons else ''};"
        f" {percent(hidden['comp_comm_overlap_pctg'] / 100)} of its communication is hidden"
        " (HolisticTraceAnalysis)."
    )
