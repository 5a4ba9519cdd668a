"""`ncclkit step`: the line of the script behind each part, what it does there, and what helps."""

import sys
import threading
import weakref

import pytest

from ncclkit.agent.monitor import step_hook
from ncclkit.analysis.step_lines import Site, excess_sites, work_of_part
from ncclkit.analysis.steps import step_times
from ncclkit.evidence.tools import profiles
from tests.probe.test_step import rank_event

# ---------------------------------------------------------------- the hook


def look_within(tmp_path, source, *libraries):
    """What the hook sees of a script's stack; `libraries` are the modules that it goes on through."""
    hook = step_hook.Steps({"warmup": 5, "steps": 40})
    seen = []

    def look():
        seen.append(hook.standing(sys._getframe(1)))

    call = look
    for module, function in reversed(libraries):
        names = {"__name__": module, "call": call}
        text = f"def {function}(*_):\n    call()\n"
        exec(compile(text, f"/x/site-packages/{module}.py", "exec"), names)
        call = names[function]
    path = tmp_path / "train.py"
    path.write_text(source)
    names = {"__name__": "__main__", "call": call}
    exec(compile(source, str(path), "exec"), names)
    names["train"]()
    ((number, phase),) = seen
    _, own = list(hook.spots.values())[number]
    return step_hook.described(own), phase


class Tensor:
    """Something that a script's function holds."""


def test_a_look_keeps_nothing_of_the_script_alive(monkeypatch):
    """A frame that is kept keeps its tensors: memory stays, and torch fails to view what is shared."""
    hook = step_hook.Steps({"warmup": 0, "steps": 40})
    hook.began, hook.done = 1.0, step_hook.BLOCK
    working, looked, returned = threading.Event(), threading.Event(), threading.Event()
    kept, alive, pauses = [], [], []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 1:
            assert working.wait(10)
            return
        looked.set()
        assert returned.wait(10)
        alive.append(kept[0]())
        hook.written = True

    def work():
        local = Tensor()
        kept.append(weakref.ref(local))
        working.set()
        assert looked.wait(10)

    monkeypatch.setattr(step_hook.time, "sleep", sleep)
    looking = threading.Thread(target=hook.sample)
    looking.start()
    work()
    returned.set()
    looking.join(10)
    assert hook.samples and alive == [None]


SCRIPT = """class net:
    forward = call
def show(value):
    return net.forward(value)
def train():
    value = 1
    show(value)
"""


def test_a_look_keeps_the_lines_of_the_script_and_what_the_innermost_calls(tmp_path):
    spot, phase = look_within(tmp_path, SCRIPT, ("torch._tensor_str", "_str"))
    assert [line for line in spot["lines"] if "test_step" not in line] == ["train.py:4 show", "train.py:7 train"]
    assert phase == "print"
    if sys.version_info >= (3, 11):
        assert spot["called"] == "net.forward"


@pytest.mark.parametrize(
    ("libraries", "phase"),
    [
        ([("torch.nn.modules.module", "_call_impl"), ("torch.nn.functional", "linear")], "forward"),
        ([("torch.nn.modules.module", "_call_impl"), ("torch._tensor_str", "_str")], "print"),
        ([("torch.nn.modules.module", "state_dict")], "checkpoint"),
        ([("transformers.trainer", "_save_checkpoint"), ("transformers.utils", "x")], "checkpoint"),
        ([("lightning.pytorch.loops.fit_loop", "advance")], "framework"),
        ([("numpy.core", "asarray")], ""),
    ],
)
def test_the_innermost_known_library_says_what_is_done(tmp_path, libraries, phase):
    assert look_within(tmp_path, SCRIPT, *libraries)[1] == phase


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("loss.item()", "loss.item"),
        ("model(x).loss.item()", ".loss.item"),
        ("print(a, b)", "print"),
        ("a + b", ""),
        ("a b", ""),
    ],
)
def test_the_call_of_an_expression_has_a_dotted_name(text, name):
    assert step_hook.name_of_call(text) == name


@pytest.mark.parametrize("period", [2, 3, 5, 10, 20])
def test_what_a_script_does_every_so_many_steps_is_measured(period):
    hook = step_hook.Steps({"warmup": 5, "steps": 40})
    hook.began = 0.0
    measured, plain = set(), set()
    for hook.done in range(5, 45):
        (measured if hook.measuring else plain).add(hook.done % period)
    assert len(measured) == period
    assert len(plain) == period or period == 20, "of two such steps both may be measured"


def counting(seconds, lengths, calls=0):
    hook = step_hook.Steps({"warmup": 5, "steps": 40, "seconds": seconds})
    hook.rows = [{"begin": 0.0, "end": length, "busy": [()] * calls} for length in lengths]
    return hook


def test_short_steps_are_measured_longer_and_long_ones_are_not():
    assert counting(6.0, [0.03] * 40).enough() == 200
    assert counting(6.0, [0.5] * 40).enough() == 40
    assert counting(6.0, [0.001] * 40).enough() == 400
    assert counting(6.0, [0.03] * 40, calls=1000).enough() == 100
    assert counting(0, [0.03] * 40).enough() == 40


def test_the_ranks_agree_on_the_steps_even_if_the_first_is_late(monkeypatch):
    torch = pytest.importorskip("torch")
    dist = torch.distributed
    store = dist.HashStore()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(step_hook, "SLOWEST", 0.02)
    hooks = [counting(6.0, [0.03] * 40) for _ in range(2)]
    agreed = []
    for rank in (1, 0):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        hooks[rank].torch = torch
        agreed.append(hooks[rank].agree())
    assert agreed == [40, 40] and hooks[1].problems
    store.delete_key("ncclkit_steps/count")
    assert [hooks[0].agree(), monkeypatch.setattr(dist, "get_rank", lambda: 1), hooks[1].agree()] == [200, None, 200]


def test_only_a_stretch_without_gradients_outside_of_training_is_kept(monkeypatch):
    hook = step_hook.Steps({"warmup": 0, "steps": 40})
    hook.began, hook.done = 0.5, step_hook.BLOCK
    clock = iter([1.0, 2.0, 3.0, 4.0, 5.0, 5.0001])
    monkeypatch.setattr(step_hook.time, "time", lambda: next(clock))
    enter = hook.entering(lambda this: None)
    leave = hook.exiting(lambda this, *error: None)
    enter(None)
    leave(None)
    within = {"__name__": "torch.nn.modules.module", "enter": enter, "leave": leave}
    exec("def _call_impl():\n    enter(None)\n    leave(None)\n", within)
    within["_call_impl"]()  # what FSDP does before a forward pass
    enter(None)
    leave(None)  # too short
    assert hook.gradless == [(1.0, 2.0)] and hook.without_gradients == 0


# ---------------------------------------------------------------- what is read


def report(rows, spots=()):
    told = {"ncclkit_steps": 1, "rank": 0, "world": 1, "host": "h", "backend": "gloo", "gpus": False, "rows": rows}
    told |= {"spent": 0.0, "batches": 1.0, "loaders": [], "threads": 1, "problems": [], "buckets": []}
    return profiles.from_hook(told | {"ended": "stopped", "spots": list(spots)}, "steps_rank0.json")


def step_row(number, samples, **more):
    """A measured step of 100 ms without a loader; samples: (milliseconds, entered, spot, phase)."""
    begin = float(number)
    shifted = [[begin + time / 1e3, *rest] for time, *rest in samples]
    row = {"begin": begin, "end": begin + 0.1, "on": True, "busy": [], "samples": shifted, "optimizer": []}
    return row | {"gradless": [], "queued": 0.0, "loading": 0.0} | more


SPOTS = [
    {"lines": ["train.py:9 tokenize", "train.py:20 main"], "called": "ord"},
    {"lines": ["train.py:21 main"], "called": "model"},
]


def test_python_of_a_script_without_a_loader_is_no_computation():
    samples = [[20, "", 0, ""], [60, "", 0, ""], [80, "", 1, "forward"], [100, "", 1, "backward"]]
    event = report([step_row(number, samples) for number in range(4)], SPOTS)
    parts = event.data.steps[0]["parts"]
    assert parts["script"] == pytest.approx(0.06) and parts["computation"] == pytest.approx(0.04)
    first = event.data.sites[0]
    assert first[:2] == ["script", "train.py:9 tokenize"] and first[2] == pytest.approx(0.06)
    assert first[6] == ["train.py:20 main"]


def test_what_comes_before_ddp_runs_is_known_to_the_microsecond_without_a_loader():
    """Of few looks the forward pass has most, as it lets another thread run."""
    samples = [[20, "", 0, ""], [45, "", 1, "forward"], [70, "", 1, "forward"], [100, "", 1, "backward"]]
    rows = [step_row(number, samples, ddp=[number + 0.04, number + 0.06, number + 0.1, number + 0.1]) for number in (1, 2)]
    parts = report(rows, SPOTS).data.steps[0]["parts"]
    assert parts["script"] == pytest.approx(0.04) and parts["computation"] == pytest.approx(0.06)


def evaluating(number):
    samples = [[20, "", 1, "forward"], [40, "", 1, "forward"], [70, "data", 0, ""], [100, "", 1, "forward"]]
    call = ["collective", number + 0.05, number + 0.06, "allreduce", 4, "train.py:5 check"]
    return step_row(number, samples, gradless=[[number + 0.03, number + 0.08]], busy=[call])


def test_forward_passes_without_gradients_now_and_then_are_an_evaluation():
    plain = [[30, "", 1, "forward"], [100, "", 1, "backward"]]
    rows = [evaluating(number) if number == 2 else step_row(number, plain) for number in range(4)]
    event = report(rows, SPOTS)
    parts = event.data.steps[2]["parts"]
    assert parts["evaluation"] == pytest.approx(0.05) and parts["communication"] == 0.0
    assert event.data.steps[2]["points"] == [pytest.approx([2.05, 2.06, 0.0])], "ranks are compared call by call"
    assert step_times([event]).brakes[0].part == "evaluation"
    teacher = report([evaluating(number) for number in range(4)], SPOTS)
    assert teacher.data.steps[2]["parts"]["evaluation"] == 0.0, "in each step it belongs to training"


# ---------------------------------------------------------------- what is said


def site(part, seconds, called="", phase="", lines=("train.py:20 main",)):
    return [part, lines[0], seconds, 0.0, called, phase, list(lines[1:])]


def brake_of_script(called, phase="", gpus=False):
    steps = [({"computation": 0.05, "script": 0.05}, [])] * 5
    found = step_times([rank_event(0, steps, gpus=gpus, sites=[site("script", 0.05, called, phase)])])
    return found.brakes[0]


@pytest.mark.parametrize(
    ("called", "phase", "gpus", "kind"),
    [
        ("print", "", False, "print"),
        ("print", "print", False, "print"),
        ("os.fsync", "", False, "file"),
        ("writer.add_scalar", "log", False, "log"),
        ("time.sleep", "", False, "sleep"),
        ("gc.collect", "", False, "gc"),
        ("nn.utils.clip_grad_norm_", "clip", False, "clip"),
        ("optimizer.zero_grad", "", False, "zero_grad"),
        ("loss.item", "", True, "sync"),
        ("bool", "", True, "sync"),
        ("torch.cuda.synchronize", "", True, "sync"),
        ("batch.to", "", True, "copy"),
        ("loss.item", "", False, "python"),
        ("batch.to", "", False, "python"),
        ("tokenize", "", False, "python"),
    ],
)
def test_a_line_is_called_what_it_does_and_its_advice_names_it(called, phase, gpus, kind):
    brake = brake_of_script(called, phase, gpus)
    assert brake.kind == kind and brake.lines == ("train.py:20 main",)
    assert "at train.py:20 (main)" in brake.summary
    assert brake.advice.startswith("train.py:20 (main): ")
    assert ("log every tenth step" in brake.advice) == (kind == "log")


def test_the_line_that_takes_most_is_named_with_the_one_of_the_loop_that_calls_it():
    inner = ("train.py:9 tokenize", "train.py:20 main")
    other = ("train.py:10 tokenize", "train.py:20 main")
    sites = [Site(0.07, inner, "ord", ""), Site(0.03, other, "", ""), Site(0.02, ("train.py:30 main",), "print", "")]
    works = work_of_part(sites, gpus=False)
    assert [work.lines for work in works] == [inner, ("train.py:30 main",)]
    assert works[0].at == ", most in ord() at train.py:9 (tokenize), called at train.py:20 (main)"
    spread = work_of_part([Site(0.05, inner, "", ""), Site(0.05, other, "", "")], gpus=False)
    assert spread[0].lines == ("train.py:20 main",)
    assert spread[0].at == ", most in tokenize() at train.py:20 (main)"


def test_a_comprehension_is_no_other_line_than_the_one_it_stands_in():
    lines = ("train.py:9 tokenize", "train.py:20 <listcomp>", "train.py:20 main")
    more = ("train.py:10 tokenize", *lines[1:])
    (work,) = work_of_part([Site(0.05, lines, "ord", ""), Site(0.05, more, "", "")], gpus=False)
    assert work.lines == ("train.py:20 main",) and "tokenize() at train.py:20 (main)" in work.at


def test_each_brake_has_its_own_advice_in_the_text():
    steps = [({"computation": 0.05, "script": 0.03, "checkpoint": 0.02}, [])] * 5
    sites = [site("script", 0.03, "print", "print"), site("checkpoint", 0.02, "torch.save", lines=("train.py:30 main",))]
    text = step_times([rank_event(0, steps, sites=sites)]).text()
    assert "1. Printing takes time, most in print() at train.py:20 (main): 30.0 ms" in text
    assert "   train.py:20 (main): print every hundredth step" in text
    assert "   train.py:30 (main): save less often" in text and "log every tenth" not in text


def test_the_line_in_which_a_late_rank_works_longer_is_named():
    common, longer = ("train.py:5 forward",), ("train.py:6 forward",)
    late = [Site(0.05, common, "", ""), Site(0.09, longer, "", "")]
    other = [Site(0.05, common, "", ""), Site(0.01, longer, "", "")]
    assert [(one.lines, round(one.seconds, 3)) for one in excess_sites(late, [other])] == [(longer, 0.08)]
    quick = [({"computation": 0.05, "communication": 0.05}, [[k + 0.05, k + 0.1]]) for k in range(8)]
    slow = [({"computation": 0.098, "communication": 0.002}, [[k + 0.098, k + 0.1]]) for k in range(8)]
    sites = [site("computation", 0.05, lines=common)]
    more = [*sites, site("computation", 0.048, "layer", lines=longer)]
    brake = step_times([rank_event(0, quick, sites=sites), rank_event(1, slow, sites=more)]).brakes[0]
    assert brake.part == "waiting" and brake.lines == longer
    assert "Rank 0 waits for rank 1, which spends more on computation, most in layer()" in brake.summary
    assert "batches of equal size" in brake.advice


def small_calls(count, computation, sent, begin=0.0):
    """Steps with so many small collectives, of which each is waited for a little."""
    points = []
    for number in range(count):
        since = begin + computation + number * sent / count
        points.append([since, since + sent / count])
    return {"computation": computation, "communication": sent}, points


def test_many_small_collectives_are_exposed_communication_and_not_logging():
    steps = [small_calls(100, 0.02, 0.08)] * 5
    sites = [["collective", "train.py:17 reduce", 0.08, 100.0, "allreduce", "collective", []]]
    events = [rank_event(rank, steps, sites=sites) for rank in (0, 1)]
    for event in events:
        for row in event.data.steps:
            row.update(own=0.08, bytes=400, calls=100)
    brake = step_times(events).brakes[0]
    assert (brake.part, brake.lines) == ("communication", ("train.py:17 reduce",))
    assert "100 × allreduce of about 4 B a step, most at train.py:17 (reduce)" in brake.summary
    assert "one tensor and reduce it once" in brake.advice
    assert brake.share == pytest.approx(0.8)


def test_small_collectives_of_a_sharded_model_get_advice_on_sharding():
    sites = [["collective", "train.py:45 main", 0.07, 0.0, "wait", "collective", []]]
    sites += [["collective", "train.py:44 main", 0.01, 4.0, "_allgather_base", "collective", []]]
    event = rank_event(0, [small_calls(8, 0.02, 0.08)] * 5, sites=sites)
    for row in event.data.steps:
        row.update(own=0.08, bytes=8 << 18, calls=8)
    brake = step_times([event]).brakes[0]
    assert "of a sharded model" in brake.summary and "fully_shard" in brake.advice
    event.data.sites[:] = sites[:1]
    assert "one tensor" not in step_times([event]).brakes[0].advice, "only waits are seen"


def test_ranks_that_wait_for_a_busy_cpu_accuse_nothing_of_the_script():
    """Now this rank comes last and now that, as others use the CPUs."""
    early = {"computation": 0.08, "communication": 0.02}
    late = {"computation": 0.1, "communication": 0.0}
    mine, theirs = [], []
    for number in range(8):
        first, second = (early, late) if number % 2 else (late, early)
        mine.append((first, [[number + first["computation"], number + 0.1]]))
        theirs.append((second, [[number + second["computation"], number + 0.1]]))
    events = [rank_event(0, mine), rank_event(1, theirs)]
    assert step_times(events).brakes[0].part == "waiting"
    for event in events:
        for row in event.data.steps:
            row["queued"] = 0.015
    found = step_times(events)
    assert found.brakes == () and found.summary.startswith("Nothing in the script stands out")
    assert "for a CPU that others use" in found.summary


def test_ranks_that_wait_for_one_that_saves_are_one_brake_and_not_two():
    """It saves every third step, so it comes last to fewer collectives than a late rank does."""
    busy, idle = [], []
    for number in range(9):
        saving = 0.09 if number % 3 == 0 else 0.0
        begun = number + 0.02 + saving
        busy.append(({"computation": 0.02, "checkpoint": saving}, [[begun, begun]]))
        idle.append(({"computation": 0.02, "communication": saving}, [[number + 0.02, begun]]))
    sites = [site("checkpoint", 0.03, "torch.save")]
    found = step_times([rank_event(0, busy, sites=sites), rank_event(1, idle)])
    assert [one.part for one in found.brakes] == ["checkpoint"]
    assert "Rank 0 saves checkpoints, and the others wait for it" in found.summary
    assert "torch.save() at train.py:20 (main)" in found.summary
