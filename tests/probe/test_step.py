"""`ncclkit step`: what it measures of a script from outside, and what it says of it."""

import asyncio
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclkit.agent.monitor import step_hook
from ncclkit.analysis.steps import SettingEffect, last_steps, step_times
from ncclkit.causes.engine import diagnose
from ncclkit.cli import main
from ncclkit.core.case import Case
from ncclkit.core.model import Event, NcclkitError
from ncclkit.core.tuning import Comparison, Setting
from ncclkit.evidence.tools import profiles as records
from ncclkit.live import step

SCRIPTS = Path(__file__).parents[1] / "bench" / "step"


def rank_event(rank, steps, **more):
    """The event of a rank whose steps are (parts, points)."""
    rows = [
        {"seconds": sum(parts.values()), "parts": {**dict.fromkeys(records.PARTS, 0.0), **parts},
         "points": [[since, until, until - since] for since, until in points],
         "own": 0.0, "bytes": 0}
        for parts, points in steps
    ]  # fmt: skip
    data = {
        "source": "hook",
        "world": 2,
        "backend": "gloo",
        "gpus": False,
        "steps": rows,
        "plain": [0.1],
        "cost": 1e-4,
    }
    data |= {
        "batches": 1.0,
        "sites": [],
        "buckets": [],
        "loaders": [],
        "threads": 1,
        "problems": [],
    }
    return Event("step.rank", "", f"steps_rank{rank}.json", 0, None, "h", None, rank, data | more)


# ---------------------------------------------------------------- the hook


def row(**more):
    """A measured step of 100 ms: a batch after 10 ms takes 40 ms, the forward pass begins 2 ms later."""
    busy = [
        ["data", 0.010, 0.050, "", 0, ""],
        ["collective", 0.002, 0.006, "allreduce", 4, "t.py:3 log"],
    ]
    ddp = [0.052, 0.060, 0.080, 0.095]
    return {"begin": 0.0, "end": 0.1, "on": True, "busy": busy, "samples": [[0.008, "", "t.py:9 log"]],
            "optimizer": [0.096, 0.1], "ddp": ddp} | more  # fmt: skip


def hooked(rows):
    told = {
        "ncclkit_steps": 1,
        "rank": 1,
        "world": 2,
        "host": "h",
        "backend": "gloo",
        "gpus": False,
        "rows": rows,
    }
    told |= {
        "spent": 0.002,
        "batches": 1.0,
        "loaders": [[0, None, 16]],
        "threads": 1,
        "problems": [],
        "buckets": [[8]],
    }
    return records.from_hook(told | {"ended": "stopped"}, "steps_rank1.json")


def test_the_parts_of_a_step_add_up_to_it():
    event = hooked([row(), {"begin": 0.1, "end": 0.19, "on": False}])
    (made,) = event.data.steps
    assert made["parts"] == pytest.approx(
        {"data": 0.040, "checkpoint": 0.0, "evaluation": 0.0, "communication": 0.019,
         "script": 0.008, "computation": 0.033}
    )  # fmt: skip
    assert made["points"] == [
        pytest.approx([0.002, 0.006, 0.004]),
        pytest.approx([0.080, 0.095, 0.015]),
    ]
    assert (
        event.data.plain == pytest.approx([0.09]) and event.rank == 1 and event.data.cost == 0.002
    )
    sites = [site[:5] for site in event.data.sites]
    assert ["collective", "t.py:3 log", pytest.approx(0.004), 1.0, "allreduce"] in sites
    assert ["script", "t.py:9 log", pytest.approx(0.008), 0.0, ""] in sites


def test_steps_lead_to_causes_only_as_far_as_they_show():
    quick = [
        ({"computation": 0.01, "communication": 0.09}, [[k + 0.01, k + 0.1]]) for k in range(8)
    ]
    slow = [
        ({"data": 0.088, "computation": 0.01, "communication": 0.002}, [[k + 0.098, k + 0.1]])
        for k in range(8)
    ]
    events = [rank_event(0, quick), rank_event(1, slow, loaders=[[0, None, 16]])]

    def causes(*more, loading=0.0):
        case = Case()
        for one in events[1].data.steps:
            one["loading"] = loading
        case.add([*events, *more])
        return {one.cause: one.strength for one in diagnose(case).findings}

    assert causes() == {"slow_rank": "likely", "disk_or_io": "possible"}
    assert causes(loading=0.08) == {"slow_rank": "likely"}, (
        "a loader that computes does not wait for a disk"
    )
    failed = Event("elastic.exit", "exitcode: 1", "log", 1, data={"exitcode": 1, "local_rank": 0})
    assert not causes(failed).keys() & {"disk_or_io"}, "steps explain no end"
    tiny = [
        rank_event(
            k, [({"computation": 0.05, "communication": 0.05}, [])] * 5, buckets=[4096] * 200
        )
        for k in (0, 1)
    ]
    case = Case()
    case.add(tiny)
    assert diagnose(case).findings == ()


def test_a_file_that_only_looks_like_one_of_the_hook_gives_nothing():
    assert records.from_hook({"ncclkit_steps": 1, "rows": [{"on": True}]}, "x") is None
    assert records.from_hook({"ncclkit_steps": 1, "rows": 7}, "x") is None
    assert records.from_hook({"ncclkit_steps": 1, "rank": -1, "rows": []}, "x") is None


def test_an_existing_sitecustomize_still_runs_and_a_missing_torch_stays_missing(tmp_path):
    for name, text in (
        ("ours", Path(step_hook.__file__).read_text()),
        ("theirs", "print('theirs ran')\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(text)
    (tmp_path / "theirs" / "torch.py").write_text("raise ImportError('no torch here')\n")
    paths = os.pathsep.join(map(str, (tmp_path / "ours", tmp_path / "theirs")))
    environ = {
        **os.environ,
        "PYTHONPATH": paths,
        step_hook.OPTIONS: json.dumps({"folder": str(tmp_path)}),
    }
    code = "import sys\ntry:\n    import torch\nexcept ImportError as error:\n    print(error)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split("\n")[:2] == ["theirs ran", "no torch here"], done.stderr


# ---------------------------------------------------------------- what holds a step back


def test_the_rank_that_comes_last_is_named_with_what_it_does_meanwhile():
    quick = [
        ({"computation": 0.05, "communication": 0.05}, [[k + 0.05, k + 0.1]]) for k in range(8)
    ]
    slow = [
        ({"computation": 0.098, "communication": 0.002}, [[k + 0.098, k + 0.1]]) for k in range(8)
    ]
    found = step_times([rank_event(0, quick), rank_event(1, slow)])
    assert found.brakes[0].part == "waiting" and "slow_rank" in found.brakes[0].causes
    assert "Rank 0 waits for rank 1, which spends more on computation" in found.summary
    assert found.ranks[0].parts["waiting"] == pytest.approx(0.048)
    assert found.ranks[0].parts["communication"] == pytest.approx(0.002)


def test_clocks_of_two_hosts_are_aligned_by_the_ends_of_collectives():
    early = [
        ({"computation": 0.05, "communication": 0.05}, [[k + 0.05, k + 0.1]]) for k in range(8)
    ]
    late = [
        ({"computation": 0.098, "communication": 0.002}, [[k + 7.098, k + 7.1]]) for k in range(8)
    ]
    other = rank_event(1, late)
    other = Event("step.rank", "", other.path, 0, None, "h2", None, 1, other.data)
    found = step_times([rank_event(0, early), other])
    assert found.ranks[0].parts["waiting"] == pytest.approx(0.048)


def test_a_late_rank_that_waits_for_data_is_one_brake_and_not_two():
    quick = [
        ({"computation": 0.01, "communication": 0.09}, [[k + 0.01, k + 0.1]]) for k in range(8)
    ]
    slow = [
        ({"data": 0.088, "computation": 0.01, "communication": 0.002}, [[k + 0.098, k + 0.1]])
        for k in range(8)
    ]
    found = step_times([rank_event(0, quick), rank_event(1, slow, loaders=[[0, None, 16]])])
    assert [one.part for one in found.brakes] == ["data"]
    assert "Rank 1 waits for the data loader (no workers), and the others for it" in found.summary
    assert found.brakes[0].settings == ("workers=2",)


def test_tiny_buckets_are_called_by_their_name_and_good_ones_are_not():
    steps = [({"computation": 0.05, "communication": 0.05}, [])] * 5
    tiny = step_times([rank_event(0, steps, buckets=[4096] * 200)])
    assert "200 buckets of about 4 KiB, where 2 would do" in tiny.summary
    assert tiny.brakes[0].settings == ("bucket_cap_mb=25",)
    good = step_times([rank_event(0, steps, buckets=[25 << 20] * 4)])
    assert good.summary.startswith("Communication is not hidden behind computation")


def test_a_step_that_only_computes_has_no_brake():
    found = step_times([rank_event(0, [({"computation": 0.098, "data": 0.002}, [])] * 5)])
    assert found.brakes == () and found.summary.startswith(
        "Computation takes 98 % of a step of 100 ms"
    )
    with pytest.raises(NcclkitError, match="No step was measured"):
        step_times([])


# ---------------------------------------------------------------- traces


def trace(events, **about):
    """A trace as torch writes it."""
    return json.dumps(
        {"schemaVersion": 1, **about, "traceEvents": events, "traceName": "x"}, indent=1
    ).encode()


def span(cat, name, begin, end):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": 1e3 * begin,
        "dur": 1e3 * (end - begin),
        "args": {"a": [1]},
    }


class Pieces:
    """A stream that gives a few bytes at a time."""

    def __init__(self, data, piece):
        self.data, self.piece = data, piece

    def read(self, size=-1):
        taken, self.data = self.data[: self.piece], self.data[self.piece :]
        return taken


@pytest.mark.parametrize("piece", [7, 1 << 20])
def test_a_trace_of_a_gpu_gives_what_nothing_hides(piece):
    events = [{"ph": "M", "name": "process_name", "ts": 0, "args": {"name": "]"}}]
    for k in (0, 100, 200):
        events += [span("user_annotation", "Optimizer.step#SGD.step", k - 5, k)]
        events += [
            span(
                "user_annotation",
                "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                k,
                k + 20,
            )
        ]
        events += [
            span("kernel", "sgemm", k + 10, k + 60),
            span("kernel", "ncclDevKernel_AllReduce_Sum", k + 50, k + 90),
        ]
    told = trace(
        events, distributedInfo={"rank": 3, "world_size": 8, "backend": "nccl"}, host_name="n1"
    )
    event = records.from_trace(Pieces(told, piece), "t.json", 0)
    assert (event.rank, event.host, len(event.data.steps), event.data.gpus) == (3, "n1", 2, True)
    assert event.data.steps[0]["parts"] == pytest.approx(
        {
            "computation": 0.05,
            "communication": 0.03,
            "data": 0.01,
            "checkpoint": 0.0,
            "script": 0.01,
        }
    )
    assert event.data.steps[0]["points"] == [pytest.approx([0.05, 0.09, 0.03])]
    found = step_times([event])
    assert found.brakes[0].part == "communication" and found.cost is None


def test_what_a_trace_has_of_another_form_does_no_harm():
    steps = [span("user_annotation", "Optimizer.step#A.step", k, k + 1) for k in range(3)]
    odd = [
        {"ph": "X", "dur": 1},
        {"ph": "X", "dur": 1, "ts": "x"},
        {"ph": 7, "cat": [], "name": None},
    ]
    event = records.from_trace(
        Pieces(trace([*odd, *steps], distributedInfo=[1], baseTimeNanoseconds="x"), 50), "t", 5
    )
    assert event.rank == 5 and len(event.data.steps) == 2


def test_of_gpus_the_trace_has_the_times_and_the_hook_what_the_script_did():
    hook = rank_event(
        0, [({"computation": 0.08, "checkpoint": 0.02}, [])] * 4, buckets=[4096] * 200
    )
    trace = rank_event(
        0,
        [({"computation": 0.05, "communication": 0.05}, [])] * 4,
        source="trace",
        gpus=True,
        cost=None,
    )
    for events in ([hook, trace], [trace, hook]):
        found = step_times(events)
        assert found.brakes[0].summary.startswith("Gradients travel in 200 buckets")
        assert found.ranks[0].parts["checkpoint"] == pytest.approx(0.02) and found.gpus
    busy = {
        "computation": 0.01,
        "communication": 0.01,
        "script": 0.08,
    }  # of which the GPU idles while Python launches
    idle = rank_event(0, [(busy, [])] * 4, source="trace", gpus=True, cost=None)
    seen = rank_event(0, [({"computation": 0.09, "script": 0.02}, [])] * 4, loaders=[[0, None, 16]])
    assert step_times([idle, seen]).ranks[0].parts == pytest.approx(
        dict.fromkeys(records.PARTS, 0.0)
        | {"computation": 0.07, "communication": 0.01, "script": 0.02, "waiting": 0}
    )
    on_cpu = rank_event(0, [({"computation": 0.1}, [])] * 4, source="trace")
    assert step_times([on_cpu, hook]).ranks[0].parts["checkpoint"] == pytest.approx(0.02)


def test_a_trace_without_steps_is_refused_in_one_sentence():
    with pytest.raises(NcclkitError, match="holds no two steps"):
        records.from_trace(Pieces(trace([span("cpu_op", "aten::mm", 0, 1)]), 100), "t.json", 0)
    with pytest.raises(NcclkitError, match="holds no two steps"):
        records.from_trace(Pieces(b'{"schemaVersion": 1, "deviceProperties": [', 100), "t.json", 0)


# ---------------------------------------------------------------- comparisons and the command


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("workers=4", {"loader": {"num_workers": 4}}),
        ("prefetch=8", {"loader": {"prefetch_factor": 8}}),
        ("bucket_cap_mb=50", {"ddp": {"bucket_cap_mb": 50}}),
        ("gradient_as_bucket_view=1", {"ddp": {"gradient_as_bucket_view": True}}),
        ("OMP_NUM_THREADS=2", {"env": {"OMP_NUM_THREADS": "2"}}),
        ("--accumulate=4", {"flags": ["--accumulate=4"]}),
    ],
)
def test_settings_become_changes_of_a_run(words, change):
    assert step.setting_change(words) == change


def test_what_is_no_setting_is_refused():
    with pytest.raises(NcclkitError, match="'worker=4' is not a setting"):
        step.StepOptions(tries=("worker=4",))
    with pytest.raises(NcclkitError, match="fewer than 6 rounds"):
        step.StepOptions(tries=("workers=4",), rounds=3)
    for wrong in ({"timeout": -1.0}, {"trace": -3}, {"steps": 5}):
        with pytest.raises(NcclkitError, match="must lie between"):
            step.StepOptions(**wrong)


def armed(**options):
    """A hook in this process, with what it changes of a script, and torch."""
    torch = pytest.importorskip("torch")
    hook = step_hook.Steps(options)
    hook.torch = torch
    return hook, torch


@pytest.mark.parametrize(
    ("asked", "own", "made"),
    [
        ({"prefetch_factor": 8}, {"num_workers": 1}, [1, 8, 2]),
        ({"prefetch_factor": 8}, {}, [0, None, 2]),
        ({"num_workers": 2}, {}, [2, 2, 2]),
        (
            {"num_workers": 0},
            {"num_workers": 1, "prefetch_factor": 4, "persistent_workers": True},
            [0, None, 2],
        ),
    ],
)
def test_a_loader_is_built_with_what_is_tried(asked, own, made):
    hook, torch = armed(loader=asked)
    kind = torch.utils.data.DataLoader
    loader = kind.__new__(kind)
    hook.loader(kind.__init__)(loader, [1, 2, 3], batch_size=2, **own)
    assert (
        hook.loaders == [made]
        and [loader.num_workers, loader.prefetch_factor, loader.batch_size] == made
    )
    assert bool(hook.problems) == (made[1] is None and "prefetch_factor" in asked), (
        "what prefetches nothing says so"
    )


def test_an_iterable_dataset_keeps_its_loader_and_says_why():
    hook, torch = armed(loader={"num_workers": 2})

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    kind = torch.utils.data.DataLoader
    hook.loader(kind.__init__)(kind.__new__(kind), Stream())
    assert hook.loaders == [[0, None, 1]] and "its dataset is iterable" in hook.problems[0]


def test_ddp_is_built_with_what_is_tried_and_keeps_the_rest():
    hook, torch = armed(ddp={"bucket_cap_mb": 50, "gradient_as_bucket_view": True})

    class Parallel:
        device_type = "cuda"

        def __init__(self, module, **named):
            self.named = named

    model = Parallel.__new__(Parallel)
    hook.parallel(Parallel.__init__)(model, None, bucket_cap_mb=1, static_graph=True)
    assert model.named == {
        "bucket_cap_mb": 50,
        "static_graph": True,
        "gradient_as_bucket_view": True,
    }


def test_looking_at_short_steps_takes_a_small_share_of_them(monkeypatch):
    """A look of 1 ms comes every 200 ms and not every 10, though the step takes 8 ms."""
    hook, _ = armed(warmup=0)
    hook.rows, hook.began = [{"begin": 0.0, "end": 0.008}], step_hook.time.time()
    hook.done = step_hook.BLOCK
    pauses, clock = [], iter(range(100))

    def sleep(seconds):
        pauses.append(seconds)
        hook.written = len(pauses) == 3

    monkeypatch.setattr(step_hook.time, "sleep", sleep)
    monkeypatch.setattr(step_hook.time, "thread_time", lambda: next(clock) / 1000)
    hook.sample()
    assert pauses == pytest.approx([0.01, 0.2, 0.2]) and hook.spent == pytest.approx(0.003)


@pytest.mark.slow
def test_settings_reach_the_script_and_its_steps(tmp_path):
    """One run with all that is tried on DDP, and a flag: the script's tiny buckets are gone, a step has 2 batches."""
    words = (sys.executable, str(SCRIPTS / "ddp.py"), "--brake", "buckets")
    change = {**step.setting_change("bucket_cap_mb=50"), **step.setting_change("--accumulate=2")}
    options, told = step.StepOptions(steps=10, warmup=1, timeout=100), []
    folder, reason, events = asyncio.run(
        step._once(Case.open(tmp_path), words, options, change, told.append)
    )
    found = [event for event in events if event.kind == "step.rank"]
    assert reason == "done" and len(found) == 2, (folder / "launcher.log").read_text()
    assert all(len(event.data.buckets) <= 2 for event in found), found[0].data.buckets
    assert all(
        event.data.batches == pytest.approx(2, abs=0.3) and not event.data.problems
        for event in found
    )
    usual = step._lap(found, reason, folder, "--accumulate=2")
    assert usual < 1e6 * min(max(event.data.plain) for event in found), (
        "the time is that of a batch"
    )


def effect(name, default, changed):
    return SettingEffect.of(Comparison(Setting({name: "4"}), "step", 0, default, changed, 2))


def test_nothing_beats_what_there_is_unless_it_does():
    usual = tuple(100_000 + 500 * (k % 3) for k in range(8))
    same = effect("prefetch", usual, tuple(usual[::-1]))
    quick = effect("workers", usual, tuple(0.6 * one for one in usual))
    assert step.compared([same]).startswith("Nothing here beats what you have: 1 setting tried")
    assert step.compared([same, quick]).startswith("workers=4 makes a step 40 % shorter")
    assert "cannot be told from chance" in str(same) and "shortens a step" in str(quick)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ((), "Name the script"),
        (("no-such-program", "x"), "There is no program 'no-such-program'"),
        ((sys.executable,), "the script must follow"),
        ((sys.executable, "-c", "pass"), "options cannot be passed on"),
    ],
)
def test_commands_that_cannot_be_started_are_refused_before_anything_runs(command, why, tmp_path):
    case = Case.open(tmp_path)
    with pytest.raises(NcclkitError, match=why):
        asyncio.run(step.measure_steps(case, command))
    assert not case.runs()


@pytest.mark.slow
def test_a_slow_loader_of_one_rank_is_named_first_with_its_line(tmp_path):
    case, told = Case.open(tmp_path / "case"), []
    options = step.StepOptions(steps=10, warmup=1, timeout=100)
    before = sorted(SCRIPTS.iterdir())
    words = (sys.executable, str(SCRIPTS / "ddp.py"), "--brake", "rank")
    run = asyncio.run(step.measure_steps(case, words, options, told.append))
    assert run.reason == "done" and run.times is not None, run.text()
    assert run.times.brakes[0].part == "data", run.text()
    assert (
        "Rank 1 waits for the data loader (no workers)" in run.summary and "ddp.py:" in run.summary
    ), run.text()
    assert run.times.cost is not None and run.times.cost < 0.05
    assert "sitecustomize.py" in told[0]["say"]
    env = json.loads((run.folder / "plan.json").read_text())["env"]
    assert not Path(env["PYTHONPATH"].split(os.pathsep)[0]).exists(), (
        "the folder of the hook stayed"
    )
    assert sorted(SCRIPTS.iterdir()) == before
    again, effects = last_steps(Case.open(tmp_path / "case", read_only=True))
    assert again == run.times and effects == ()


def test_holistic_trace_analysis_reads_the_same_traces(tmp_path, capsys):
    """Two ranks of 3 steps of 10 ms: kernels for 3 ms of each, of which an all-reduce of 2 ms hides 1."""
    pytest.importorskip("hta")
    for rank in (0, 1):
        events = []
        for base in (1, 11, 21, 31):
            events += [span("user_annotation", f"ProfilerStep#{base // 10}", base, base + 9.9)]
            for number, (name, begin, end, stream) in enumerate(KERNELS):
                link = {"correlation": 1_000_000 + 10 * base + number}
                at = base + 0.1 * number
                launch = {"args": link, "pid": 1, "tid": 1}
                kernel = {"args": link | {"stream": stream}, "pid": 0, "tid": stream}
                events += [span("cuda_runtime", "cudaLaunchKernel", at, at + 0.02) | launch]
                events += [span("kernel", name, base + begin, base + end) | kernel]
        about = {"distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"}}
        (tmp_path / f"trace_rank{rank}.json").write_bytes(trace(events, **about))
    paths = [str(tmp_path / f"trace_rank{rank}.json") for rank in (0, 1)]
    told = step.holistic(paths)
    assert [one.split(":")[0] for one in told] == ["rank 0", "rank 1"]
    assert "50 % of its communication is hidden" in told[0] and "idles 53 %" in told[0]
    assert main(["step", "--case", str(tmp_path / "case"), "--traces", *paths, "--hta"]) == 0
    assert told[1] in capsys.readouterr().out


KERNELS = (
    ("gemm", 0.5, 2.5, 7),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1.5, 3.5, 20),
    ("gemm", 5.0, 6.0, 7),
)
"""Of a step: name, milliseconds of begin and end, stream."""


def test_without_holistic_trace_analysis_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "hta.trace_analysis", None)
    with pytest.raises(NcclkitError, match=r"pip install 'ncclkit\[tuning\]'"):
        step.holistic([])


def test_the_command_reads_traces_and_refuses_what_it_cannot_start(tmp_path, capsys):
    steps = [
        span("user_annotation", "Optimizer.step#A.step", 100 * k, 100 * k + 1) for k in range(3)
    ]
    for rank in (0, 1):
        work = [span("kernel", "sgemm", 100 * k + 10, 100 * k + 90) for k in range(3)]
        told = trace(
            steps + work, distributedInfo={"rank": rank, "world_size": 2, "backend": "nccl"}
        )
        (tmp_path / f"trace_{rank}.json").write_bytes(told)
    (tmp_path / "trace_1.json.gz").write_bytes(
        gzip.compress((tmp_path / "trace_1.json").read_bytes())
    )
    (tmp_path / "trace_1.json").unlink()
    paths = [str(tmp_path / "trace_0.json"), str(tmp_path / "trace_1.json.gz")]
    assert main(["step", "--case", str(tmp_path / "case"), "--traces", *paths]) == 0
    said = capsys.readouterr().out
    assert (
        "rank 1: 100 ms a step = computation 80.0 ms" in said
        and "2 steps measured on 2 ranks" in said
    )
    assert (
        main(["step", "--case", str(tmp_path / "case"), "--", "no-such-program", "--epochs", "1"])
        == 2
    )
    assert "There is no program 'no-such-program'" in capsys.readouterr().err


@pytest.mark.parametrize(("gpus", "ranks"), [(0, "2"), (1, "1"), (8, "8")])
def test_a_plain_script_gets_one_rank_for_each_gpu_or_two_on_the_cpu(
    tmp_path, monkeypatch, gpus, ranks
):
    lines = []

    async def check(python):
        return {"gpus": gpus}

    async def guarded(agent, line, *rest):
        lines.append(line)
        return [{"kind": "end", "reason": "exit status 1"}]

    monkeypatch.setattr(step.local, "check_interpreter", check)
    monkeypatch.setattr(step.local, "run_under_guard", guarded)
    asyncio.run(step.measure_steps(Case.open(tmp_path / "case"), [sys.executable, "train.py"]))
    assert lines[0][2:4] == ["launch", ranks]
