"""Text that made the scanner crawl: mixed tracebacks, distinct ones, lines without an end.  Work is counted."""

from __future__ import annotations

import io
import time

import pytest

from ncclkit import evidence
from ncclkit.evidence.merge import Merger
from ncclkit.evidence.scanner import pieces, scan

PREFIXES = {
    "srun": "{rank}: ",
    "mpirun": "[1,{rank}]<stderr>:",
    "compose": "trainer-{rank}  | ",
    "journal": "2026-11-21T01:02:03+0000 node-{rank} python[{rank}]: ",
    "kubectl": "[pod/trainer-{rank}/pytorch] ",
    "torchrun": "[default{rank}]:",
}


def traceback(message):
    lines = ["Traceback (most recent call last):"]
    for number in range(6):
        lines += [f'  File "/app/train_{number}.py", line {number + 10}, in f{number}', f"    call_{number}()"]
    return [*lines, f"RuntimeError: {message}"]


def mixed(ranks, prefix):
    """The tracebacks of many ranks, line by line."""
    rows = zip(*(traceback("it broke") for _ in range(ranks)), strict=True)
    return "".join(prefix.format(rank=rank) + line + "\n" for row in rows for rank, line in enumerate(row)).encode()


def read(data, *, tasks=False):
    blocks = scan.blocks(io.BytesIO(data), scan.Context("job.log", tasks=tasks))
    return pieces.joined([pieces.gather(blocks, Merger(), labelled=True, stacks=False)]).events


@pytest.mark.parametrize("launcher", PREFIXES)
def test_each_line_of_mixed_tracebacks_is_taken_apart_once(monkeypatch, launcher):
    parsed = []
    parse = scan.parse_prefix
    monkeypatch.setattr(scan, "parse_prefix", lambda raw, *rest, **known: parsed.append(raw) or parse(raw, *rest, **known))
    looked = []
    following = scan.Lines.following

    def counted(*given):
        for line in following(*given):
            looked.append(line)
            yield line

    monkeypatch.setattr(scan.Lines, "following", counted)
    data = mixed(128, PREFIXES[launcher])
    events = [event for event in read(data, tasks=launcher == "srun") if event.kind == "python.exception"]
    lines = data.count(b"\n")
    assert sum(event.count for event in events) == 128
    assert {len(event.data.frames) for event in events} == {6}
    assert len(parsed) <= 1.2 * lines  # it was once for each rank and line
    assert len(looked) <= 2 * lines


def test_distinct_tracebacks_merge_in_linear_time():
    def merging(count):
        merger = Merger()
        whole, bare = traceback("x"), []
        for number in range(count):
            name = "".join(chr(97 + int(digit)) for digit in str(number))
            text = "\n".join([f"[rank{number % 64}]: {line}" for line in whole]).replace("it", name)
            block = scan.Block((text + f"\nValueError: {name}\n").encode(), len(text), 1 + 20 * number, CONTEXT)
            bare += list(block.events())
        for event in bare:
            merger.add_line(event)
        start = time.process_time()
        merger.events()
        return time.process_time() - start

    assert merging(4000) < 8 * max(0.02, merging(500)) * 2  # quadratic: 64


CONTEXT = scan.Context("job.log")


@pytest.mark.parametrize(
    "unit", [b"NCCL WARN rror: Timed out waiting rank 3 step 7 ", b"[rank3]: RuntimeError: CUDA error: ", b"x"]
)
@pytest.mark.parametrize("how", ["stream", "file"])
def test_a_line_without_an_end_costs_what_its_ends_cost(tmp_path, monkeypatch, unit, how):
    def of_file(data):
        (tmp_path / "job.log").write_bytes(data)
        return evidence.read([tmp_path / "job.log"]).events

    reader = read if how == "stream" else of_file
    windows = []
    choose = scan.choose
    monkeypatch.setattr(scan, "choose", lambda shape: windows.append(len(shape)) or choose(shape))
    data = unit * ((30 << 20) // len(unit))
    events = reader(data + b"\n[rank3]: ValueError: the line after it is read\n")
    assert [event.line for event in events if "the line after it is read" in event.text] == [2]
    # three windows overlap, each end is looked at as a whole, and the line is cut where its first and last block end
    assert sum(windows) <= 2 * 2 * scan.BUDGET * 4


@pytest.mark.parametrize("size", [1 << 16, 12 << 20], ids=["short", "of several blocks"])
def test_what_stands_at_the_ends_of_a_long_line_and_after_it_is_read(tmp_path, size):
    oom = b"CUDA out of memory. Tried to allocate 2.00 GiB"
    filler = b"lorem ipsum " * (size // 12)
    middle = b"RuntimeError: CUDA error: an illegal address " + b"-" * 100_000
    text = b" ".join([oom, filler, middle]) + b"\nnext: ValueError: x\n"
    (tmp_path / "job.log").write_bytes(text)
    for events in (read(text), evidence.read([tmp_path / "job.log"]).events):
        assert {event.kind for event in events} >= {"cuda.oom", "cuda.error"}
