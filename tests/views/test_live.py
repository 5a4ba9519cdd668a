"""The live test's form: one coroutine for cell and button; done, failed, cancelled, interrupted, refused."""

import asyncio
import threading
from dataclasses import asdict, dataclass, field

import pytest

from ncclkit.core.model import NcclkitError
from ncclkit.live.options import ProbeOptions
from ncclkit.views._base import PLOTLY
from ncclkit.views._form import LOG_LINES, Progress
from ncclkit.views.live import LiveTest
from tests.views.records import CURVE, HOSTILE, Measurement


@dataclass
class Run:
    reason: str = "done"
    summary: str = "all sizes were measured"
    measurements: list[Measurement] = field(default_factory=lambda: list(CURVE))
    warning: str = ""
    expectation: None = None


def records():
    set_for_all = {"TORCH_FR_BUFFER_SIZE": "2000", "NCCL_DEBUG": "INFO"}
    yield {"kind": "plan", "sizes": [m.bytes for m in CURVE], "ranks": 2, "env": set_for_all}
    for rank in (0, 1):
        yield {"kind": "phase", "phase": "init", "rank": rank}
    yield {"kind": "phase", "phase": "size", "rank": 0, "bytes": 64}
    yield {"kind": "log", "line": HOSTILE}
    yield from ({"kind": "measure", **asdict(m)} for m in CURVE[:3])


class Bench:
    """A start coroutine that sends records and then waits until it is let go."""

    def __init__(self, raises=None, keeps_going=False):
        self.raises, self.keeps_going, self.options, self.ended = raises, keeps_going, None, ""
        self.under_way, self.let_go = asyncio.Event(), asyncio.Event()

    async def start(self, options, on_record):
        self.options = options
        for record in records():
            on_record(record)
        self.under_way.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            if self.keeps_going:
                return Run("cancelled", "stopped early", CURVE[:3])
            raise
        if self.raises:
            raise self.raises
        return Run()


def live(bench, **defaults):
    options = ProbeOptions(**{"ranks": 2, "env": {"A": "1"}} | defaults)
    return LiveTest(options, bench.start, lambda m, asked: (3.0, "the link"))


def drive(scenario, **options):
    """Run one scenario on a loop of its own, as a kernel does, with a deadline."""

    async def main():
        bench = Bench(**options)
        return await asyncio.wait_for(scenario(bench, live(bench)), 20)

    return asyncio.run(main())


def test_run_returns_the_run_and_shows_it():
    async def scenario(bench, form):
        bench.let_go.set()
        run = await form.run()
        assert run.reason == "done" and bench.options == form.options and bench.options.env == {"A": "1"}
        return form

    form = drive(scenario)
    assert not form.running and form.bar.value == 1000 and form.cancel.disabled and not form.start.disabled
    assert "all sizes were measured" in form.result.value and "all sizes were measured" in form.static()
    figure = form.drawing.outputs[0]["data"][PLOTLY]
    assert (
        figure["layout"]["shapes"][0]["y0"] == 3.0
        and "94 % of the 3.00 GB/s that the link allows" in figure["layout"]["meta"]["summary"]
    )
    assert "<script" not in form.log.value and "&lt;script" in form.log.value


def test_the_first_number_is_shown_while_the_stages_go_on():
    progress = Progress(4)
    progress.take({"kind": "plan", "sizes": [8], "ranks": 4})
    for peer in (1, 3):
        progress.take({"kind": "stage.pair", "rank": 0, "peer": peer, "bandwidth": 41.5, "latency_us": 9.0, "wrong": 0})
    assert progress.words() == "Staged test: 2 pairs measured, last ranks 0 and 3 at 41.50 GB/s"
    progress.take({"kind": "stage.pair", "rank": 0, "peer": HOSTILE, "bandwidth": None})
    assert "could not be read" in progress.log[-1]


def test_every_variable_that_was_set_is_on_screen():
    async def scenario(bench, form):
        bench.let_go.set()
        await form.run()
        return form

    form = drive(scenario)
    for face in (form.log.value, form.static()):
        assert "2 variables set for the ranks" in face and "TORCH_FR_BUFFER_SIZE=2000" in face


def test_progress_is_drawn_in_place_while_it_runs():
    async def scenario(bench, form):
        task = asyncio.ensure_future(form.run())
        await bench.under_way.wait()
        assert form.start.disabled and form.controls["ranks"].disabled and not form.cancel.disabled
        while not form.drawing.outputs:
            await asyncio.sleep(0)
        assert 0 < form.bar.value < 1000 and "3 of 11 sizes measured" in form.result.value
        bench.let_go.set()
        await task

    drive(scenario)


@pytest.mark.parametrize("keeps_going", [False, True])
def test_cancel_from_another_thread_ends_the_awaiting_cell(keeps_going):
    async def scenario(bench, form):
        cell = asyncio.ensure_future(form.run())
        await bench.under_way.wait()
        click = threading.Thread(target=form.cancel.click)
        click.start()
        if keeps_going:
            assert (await cell).reason == "cancelled"
        else:
            with pytest.raises(NcclkitError, match="cancelled .3 of 11 sizes measured"):
                await cell
        click.join()
        assert bench.ended == "cancelled" and form.state == "cancelled" and not form.start.disabled
        assert len(form.measurements) == 3 and "cancelled" in form.summary and "64 B" in form.static()

    drive(scenario, keeps_going=keeps_going)


def test_run_button_from_another_thread_starts_the_same_coroutine():
    async def scenario(bench, form):
        form.widget()
        click = threading.Thread(target=form.start.click)
        click.start()
        await bench.under_way.wait()
        click.join()
        bench.let_go.set()
        while form.running:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert form.state == "done"

    drive(scenario)


def test_interrupt_of_the_cell_stops_the_run_and_stays_an_interrupt():
    async def scenario(bench, form):
        cell = asyncio.ensure_future(form.run())
        await bench.under_way.wait()
        cell.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cell
        assert bench.ended == "cancelled" and form.state == "cancelled"

    drive(scenario)


@pytest.mark.parametrize("error", [NcclkitError("No torch there; install it."), RuntimeError(HOSTILE)])
def test_failure_is_raised_in_the_cell_and_shown_in_the_view(error):
    async def scenario(bench, form):
        bench.let_go.set()
        with pytest.raises(type(error)):
            await form.run()
        return form

    form = drive(scenario, raises=error)
    assert form.state == "failed" and "<script" not in form.result.value
    assert ("install it" if isinstance(error, NcclkitError) else "RuntimeError") in form.result.value


def test_a_second_run_is_refused_in_one_sentence_and_the_first_goes_on():
    async def scenario(bench, form):
        first = asyncio.ensure_future(form.run())
        await bench.under_way.wait()
        with pytest.raises(NcclkitError, match="already running"):
            await form.run()
        assert "already running" in form.notice.value and form.running
        bench.let_go.set()
        assert (await first).reason == "done" and form.notice.value == ""

    drive(scenario)


@pytest.mark.parametrize("end", ["done", "cancelled", "failed"])
def test_the_old_curve_goes_grey_when_a_run_starts_and_away_when_it_gives_none(end):
    async def scenario(bench, form):
        bench.let_go.set()
        await form.run()
        old = form.drawing.outputs
        assert old and "nk-old" not in form.drawing._dom_classes
        bench.let_go.clear()
        bench.under_way.clear()
        bench.raises = RuntimeError("no") if end == "failed" else None
        form._start = silent(bench)
        task = asyncio.ensure_future(form.run())
        await bench.under_way.wait()
        assert form.drawing.outputs == old and "nk-old" in form.drawing._dom_classes and form.measurements == []
        form.stop() if end == "cancelled" else bench.let_go.set()
        await asyncio.wait([task])
        assert (task.exception() is None) == (end == "done") and "nk-old" not in form.drawing._dom_classes
        assert bool(form.drawing.outputs) == (end == "done")

    drive(scenario)


def silent(bench):
    """The bench's run without its records: nothing new to draw until its end."""

    async def start(options, on_record):
        return await bench.start(options, lambda record: None)

    return start


@pytest.mark.parametrize(
    ("name", "bad", "good", "words"),
    [("python", "/no/python", "", "no program /no/python"), ("env", "nonsense", "A=1", "NAME=VALUE")],
)
def test_a_control_whose_value_cannot_be_resolved_is_marked_and_run_says_why_it_is_disabled(name, bad, good, words):
    async def scenario(bench, form):
        control = form.controls[name]
        assert not form.start.disabled and form.notice.value == "" and "nk-wrong" not in control._dom_classes
        control.value = bad
        assert "nk-wrong" in control._dom_classes and words in control.tooltip
        assert [c for c in form.controls.values() if "nk-wrong" in c._dom_classes] == [control]
        assert form.start.disabled and words in form.start.tooltip and words in form.notice.value
        control.value = good
        assert not form.start.disabled and form.notice.value == "" and "nk-wrong" not in control._dom_classes

    drive(scenario)


def test_bad_input_is_shown_and_starts_nothing():
    async def scenario(bench, form):
        form.controls["env"].value = "nonsense"
        form.begin()
        while not form.notice.value:
            await asyncio.sleep(0)
        assert "NAME=VALUE" in form.notice.value and bench.options is None and form.state == ""

    drive(scenario)


def test_defaults_of_the_wrong_type_are_refused_when_the_form_is_made():
    async def scenario(bench, form):
        with pytest.raises(NcclkitError, match="must be a whole number"):
            live(bench, ranks="two")

    drive(scenario)


def test_a_button_without_a_loop_says_so():
    async def make():
        return live(Bench())

    form = asyncio.run(make())
    form._loop = None
    form.start.click()
    assert "No event loop" in form.notice.value


def test_progress_names_who_is_behind_and_who_failed():
    progress = Progress(4)
    for rank in (0, 1, 3):
        progress.take({"kind": "phase", "phase": "init", "rank": rank})
    assert progress.words() == "Starting 4 ranks; rank 2 still at “waiting”"
    progress.take({"kind": "phase", "phase": "error", "rank": 2, "error": "ValueError: bad\nmore"})
    assert progress.words() == "Rank 2 failed: ValueError: bad"
    assert "✕" in progress.lights() and "2 error" in progress.lights()


def test_many_ranks_share_lights():
    progress = Progress(1024)
    progress.take({"kind": "phase", "phase": "hello", "rank": 17})
    assert "waiting: 1,023" in progress.lights() and "starting: 1 (rank 17)" in progress.lights()


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "phase"},
        {"kind": "phase", "rank": "x", "phase": "init"},
        {"kind": "plan", "sizes": 3},
        {"kind": "measure", "op": "x"},
        {"kind": "measure", "op": "x", "bytes": 8, "time_us": 0},
    ],
)
def test_a_record_that_makes_no_sense_becomes_a_line_of_the_log(record):
    progress = Progress(1)
    progress.take(record)
    assert "could not be read" in progress.log[-1] and progress.measurements == []


def test_the_log_keeps_its_last_lines_only():
    progress = Progress(1)
    for number in range(100):
        progress.take({"kind": "log", "line": f"line {number}"})
    assert len(progress.log) == LOG_LINES and progress.log[-1] == "line 99"
