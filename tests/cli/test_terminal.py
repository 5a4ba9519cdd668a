"""The command on a terminal: cards and progress for people; and that no text of a log becomes part of them."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from rich import console

from ncclkit.cli import terminal
from ncclkit.core import themes
from ncclkit.core.model import Fact
from ncclkit.evidence.samples import HERE
from tests.cli.command import ROOT, WARM, Typed

STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""Colours, which are the only thing that a result on a terminal may hold besides text."""


def screen(
    *argv: str, keys: str = "", environ: dict[str, str] | None = None, out: Path | None = None
) -> tuple[int, str]:
    """Exit status, and what a terminal of 100 columns got while `keys` were typed; the result may go to a file."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")} | {"TERM": "xterm-256color"}
    env |= {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"} | (environ or {})
    command = [sys.executable, "-m", "ncclkit", *argv]
    stdout = os.open(out, os.O_WRONLY | os.O_CREAT) if out else os.dup(theirs)
    child = subprocess.Popen(command, stdin=theirs, stdout=stdout, stderr=theirs, env=env)
    os.close(stdout)
    os.close(theirs)
    os.write(ours, keys.encode())
    said, end = b"", time.monotonic() + 100
    try:
        while time.monotonic() < end and (chunk := _read(ours)):
            said += chunk
        return child.wait(10), said.decode("utf-8", "replace")
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def _read(terminal_end: int) -> bytes:
    try:
        return os.read(terminal_end, 1 << 16)
    except OSError:  # how Linux says that nobody has the other end open any more
        return b""


def test_a_finding_is_a_card() -> None:
    code, said = screen("diagnose", str(HERE / "rank_late"))
    shown = STYLE.sub("", said)
    assert code == 1 and shown != said and "\x1b" not in shown
    banner, _, card = shown.partition("─ 1. slow_rank ─")
    assert "● proven  Rank 2, busy in train.py:19 (skip_batches)" in banner and re.search(
        r"At fault +Rank 2 on node-1", banner
    )
    assert re.search(r"Judged +15 files, lines of 4 ranks", banner) and re.search(
        r"Reproduce +ncclkit diagnose ", banner
    )
    assert (
        "rank0.log.gz:" in card and "Do: " in card and shown.count("proven") == 1 and shown.count("Rank 2, busy") == 1
    )
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"RuntimeError: NCCL odd\n", "▲ unexplained  No known cause explains this error: RuntimeError: NCCL odd"),
        (b"good morning\n", "– no job  Nothing in this is of a training job"),
    ],
)
def test_a_banner_without_a_finding(tmp_path: Path, text: bytes, says: str) -> None:
    (tmp_path / "job.log").write_bytes(text)
    shown = STYLE.sub("", screen("diagnose", str(tmp_path / "job.log"))[1])
    assert says in shown and re.search(r"Collect +The ", shown) and "─ 1." not in shown


def test_further_findings_take_a_line_each(typed: Typed) -> None:
    _, said = screen("diagnose", str(HERE / "own_name_loopback"), str(HERE / "port_busy"))
    shown = STYLE.sub("", said)
    assert "─ 1. hostname_resolution ─" in shown
    assert re.search(r"^2\. ● proven port_in_use {2}Port \d+ is already taken", shown, re.MULTILINE)
    everything = typed("diagnose", str(HERE / "own_name_loopback"), str(HERE / "port_busy")).stdout
    assert "\x1b" not in everything and everything.count("   Do: ") > shown.count("Do: ")


def test_text_of_a_log_neither_steers_nor_styles(tmp_path: Path) -> None:
    evil = (
        "\x1b]0;title\x07 \x1b[2J \x9b31m \u202ertl [bold red]marked[/] [link=https://evil.example]here[/link] :boom:"
    )
    (tmp_path / "job.log").write_text(f"RuntimeError: CUDA error: boom {evil} boom\n")
    code, said = screen("diagnose", str(tmp_path / "job.log"))
    shown = STYLE.sub("", said)
    assert code == 1 and [c for c in shown if not (c.isprintable() or c in "\r\n\t")] == []
    flat = re.sub(r"[│\s]+", "", shown)
    assert "[boldred]marked[/][link=https://evil.example]here[/link]:boom:" in flat


def test_everything_on_a_terminal() -> None:
    logs = str(HERE / "own_name_loopback"), str(HERE / "port_busy")
    short = STYLE.sub("", screen("diagnose", *logs)[1])
    more = re.search(r"More pieces: (\d+) of advice and \d+ of evidence: `ncclkit diagnose --all` shows them", short)
    whole = STYLE.sub("", screen("diagnose", "--all", *logs)[1])
    assert more and whole.count("Do: ") == short.count("Do: ") + int(more[1])
    assert "─ 2. ● proven port_in_use ─" in whole and "More pieces" not in whole
    assert re.search(r"│ +Port \d+ is already taken", whole), "no banner has said the sentence"


def test_pasted_text_has_an_end() -> None:
    code, said = screen("diagnose", "-", keys="RuntimeError: NCCL odd\n\x04")
    assert code == 1 and "press Ctrl-D on a line of its own, which ends the input" in said
    assert "No known cause explains this error: RuntimeError: NCCL odd" in STYLE.sub("", said)


def test_a_pipe_is_told_nothing_about_keys(typed: Typed) -> None:
    assert "Ctrl-D" not in typed("diagnose", "-", stdin=b"RuntimeError: NCCL odd\n").stderr


def test_a_pipe_begins_with_the_banner(tmp_path: Path, typed: Typed) -> None:
    """As a terminal has it: the verdict, who, what first, what is missing; then everything."""
    said = typed("diagnose", str(HERE / "rank_late")).stdout
    banner, _, rest = said.partition("\n\n")
    verdict, *rows = banner.splitlines()
    assert verdict.startswith("proven: Rank 2, busy in train.py:19 (skip_batches)")
    named = [row.split("  ")[1] for row in rows]
    assert named == "At fault,Line,First,Restart or stop,Job,Versions,When,Judged,Missing,Reproduce".split(",")
    assert rest.startswith("1. slow_rank (proven)") and "   Do: " in rest
    (tmp_path / "job.log").write_text("RuntimeError: NCCL odd\n")
    nobody = typed("diagnose", str(tmp_path / "job.log")).stdout
    assert nobody.startswith("unexplained: No known cause explains this error: RuntimeError: NCCL odd\n")
    assert "  First      Collect: " in nobody and nobody.count("No known cause") == 1


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"PYTHONIOENCODING": "ascii"}])
def test_a_terminal_that_can_do_less_gets_plain_text(environ: dict[str, str]) -> None:
    _, said = screen("diagnose", str(HERE / "rank_late"), environ=environ)
    assert "\x1b" not in said and "1. slow_rank (proven)" in said


def test_findings_come_before_facts(tmp_path: Path, typed: Typed) -> None:
    folder = str(tmp_path / "case")
    done = typed("inspect", "--case", folder, "--dataset-bytes", "1000TiB", "--ranks", "2", **WARM)
    assert done.stdout.index("host_oom") < done.stdout.index("\nCPU and memory\n") < done.stdout.rindex("memory.total")
    assert re.search(r"memory\.total +[\d.]+ [GT]iB", done.stdout)


def test_facts_have_units() -> None:
    facts = [
        Fact("limits.memlock", -1, "bytes"),
        Fact("limits.shm.size", 8 << 20, "bytes"),
        Fact("net.interfaces", [{"name": "lo"}, {"name": "eth0"}]),
        Fact("software.frameworks", {"numpy": "2.4"}),
        Fact("host.iommu", False),
        *(Fact(f"gpu.{n}.model", "H200") for n in (0, 1, 3)),
        Fact("gpu.3.temperature", 88, "C"),
        Fact("gpu.topology", why="no nvidia-smi"),
        Fact("gpu.p2p.read", why="no nvidia-smi"),
    ]
    assert dict(themes.known_rows(facts)) == {
        "limits.memlock": "unlimited",
        "limits.shm.size": "8 MiB",
        "net.interfaces": "lo, eth0",
        "software.frameworks": "numpy 2.4",
        "host.iommu": "no",
        "gpu.N.model": "H200 (N = 0, 1, 3)",
        "gpu.3.temperature": "88 C",
    }
    assert themes.unread_rows(facts) == [("gpu.topology, gpu.p2p.read", "no nvidia-smi")]
    assert list(themes.by_theme(facts)) == ["GPUs", "Network", "Limits and isolation", "Software"]


def test_a_long_path_is_cut_in_the_middle() -> None:
    path = f"/scratch/{'x' * 200}/rank3.log:17"
    assert len(terminal.middle(path)) == 60 and terminal.middle(path).startswith("/scratch/")
    assert terminal.middle(path).endswith("rank3.log:17") and terminal.middle("a/rank3.log:17") == "a/rank3.log:17"


def test_a_long_verb_says_how_long(tmp_path: Path, typed: Typed) -> None:
    """On a terminal in one line that goes away; elsewhere line by line, as logs of batch jobs have it."""
    options = ("probe", "--backend", "gloo", "--max-bytes", "512", "--case", str(tmp_path / "case"))
    code, said = screen(*options, environ=WARM)
    assert code == 0 and re.search(
        r"Live test: rank 0: size 64 all_reduce .*0:\d\d, (?:about|at most) \d+:\d\d left", said
    )
    assert "Live test" not in STYLE.sub("", said).rpartition("\x1b[2K")[2], "the line is gone at the end"
    plain = typed(*options, **WARM)
    assert "  rank 0: size 64 all_reduce\n" in plain.stderr and "\x1b" not in plain.stderr + plain.stdout


def test_experiments_say_how_long(tmp_path: Path, typed: Typed) -> None:
    """Each small job has its own deadline, which counts from its own start."""
    case = str(tmp_path / "case")
    options = ("--ranks", "2", "--backend", "gloo", "--timeout", "60", "--case", case)
    broken = typed("lab", "rank_raises", *options, **WARM)
    assert broken.returncode == 1
    code, said = screen("diagnose", "--check", "--case", case, case, environ=WARM)
    assert code == 1 and re.search(r"Experiments.*0:\d\d, at most \d+:\d\d left", said), said
    assert "Fix tried: With this change the same job succeeds" in said


def test_a_result_that_goes_elsewhere_does_not_land_on_the_terminal(tmp_path: Path) -> None:
    """`ncclkit inspect --json > FILE`: progress on the terminal, and nothing but the result in the file."""
    code, said = screen("inspect", "--json", "--case", str(tmp_path / "case"), environ=WARM, out=tmp_path / "facts")
    facts = [json.loads(line) for line in (tmp_path / "facts").read_text().splitlines()]
    assert code in (0, 1) and len(facts) > 30 and "Reading facts" in said and facts[0]["name"] not in said


def test_reading_much_says_how_much(tmp_path: Path) -> None:
    from ncclkit import evidence

    for name in ("rank0.log", "rank1.log"):
        (tmp_path / name).write_bytes(b"RuntimeError: CUDA error: boom\n" * 100)
    told: list[tuple[int, int]] = []
    evidence.read([tmp_path], on_bytes=lambda *amount: told.append(amount))
    assert told == [(0, 6200), (3100, 6200), (6200, 6200)]


def test_more_ranks_than_fit_are_asked_about(tmp_path: Path) -> None:
    options = ("probe", "--backend", "gloo", "--ranks", "100000", "--case", str(tmp_path / "case"))
    code, said = screen(*options, keys="n\n")
    assert code == 2 and "100,000 ranks need about 24.4 TiB of memory" in said and "Nothing was started" in said
    assert not list((tmp_path / "case").glob("runs/*"))


def test_what_goes_on_behind_a_full_bar_has_no_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that makes its report after the live test."""
    screen = console.Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(terminal, "console", lambda stream: screen)
    with terminal.Activity("Job 1", limit=60.0) as activity:
        activity.step("rank 0: size", 3, 4)
        activity.step("rank 0: done", 4, 4)
        activity.step("the test has ended, report goes on")
        assert activity.bar is not None
        *_, times = activity.bar.columns
        assert str(times.render(activity.bar.tasks[0])) == "0:00"  # type: ignore[union-attr]
