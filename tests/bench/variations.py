"""Sixty ways to write the same log: what people do to one before they show it, and what launchers put around it.

`VARIATIONS` maps a name to a function from a text to a text that means the same; nothing in it is random.  The names'
first word is the class of the variation.  `tests/bench/diagnosis.py --robust` counts which answers survive.
"""

from __future__ import annotations

import html
import json
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import partial

Vary = Callable[[str], str]

WELL = """\
n7:3001:3001 [0] NCCL INFO Bootstrap : Using eth0:10.9.0.7<0>
n7:3001:3001 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
n7:3001:3001 [0] NCCL INFO ncclCommInitRank comm 0x5a10 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x77 - Init START
n7:3002:3002 [1] NCCL INFO ncclCommInitRank comm 0x5b10 rank 1 nranks 2 cudaDev 1 busId 2000 commId 0x77 - Init START
n7:3001:3001 [0] NCCL INFO ncclCommInitRank comm 0x5a10 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x77 - Init COMPLETE
n7:3002:3002 [1] NCCL INFO ncclCommInitRank comm 0x5b10 rank 1 nranks 2 cudaDev 1 busId 2000 commId 0x77 - Init COMPLETE
step 10/20 loss 2.31
step 20/20 loss 2.11
n7:3001:3001 [0] NCCL INFO comm 0x5a10 rank 0 nranks 2 cudaDev 0 busId 1000 - Destroy COMPLETE
n7:3002:3002 [1] NCCL INFO comm 0x5b10 rank 1 nranks 2 cudaDev 1 busId 2000 - Destroy COMPLETE
Training completed.
"""


def _each(change: Callable[[int, str], str], text: str) -> str:
    return "\n".join(change(number, line) for number, line in enumerate(text.split("\n"), 1))


def _prefix(form: str, text: str) -> str:
    """Before each line: `form` with the line's number, and a clock that ticks."""
    return _each(lambda n, line: form.format(n=n, m=n // 60 % 60, s=n % 60, ms=n * 37 % 1000) + line, text)


def _wrapped(width: int, text: str) -> str:
    """As a terminal breaks lines: anywhere."""
    return "\n".join(
        part for line in text.split("\n") for part in [line[i : i + width] for i in range(0, len(line), width)] or [""]
    )


def _filled(width: int, text: str) -> str:
    """As an editor breaks lines: between words."""
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, width) or [""])


def _json(key: str, text: str) -> str:
    return _each(lambda n, line: json.dumps({"ts": 1700000000 + n, "level": "info", key: line}), text)


def _colours(text: str) -> str:
    """A colour around each word of capitals or of failure, inside the line."""
    return re.sub(r"\b([A-Z]{4,}|[Ee]rror|failed|timeout)\b", "\x1b[1;31m\\1\x1b[0m", text)


def _curly(text: str) -> str:
    return re.sub(r"'([^'\n]*)'", "‘\\1’", re.sub(r'"([^"\n]*)"', "“\\1”", text))


def _shortened(width: int, text: str) -> str:
    return _each(lambda n, line: line[:width], text)


def _renumbered(text: str) -> str:
    """Another release: the lines of the source files stand elsewhere."""
    return re.sub(r"(\.(?:cc|cpp|hpp|cu|h|py):)(\d+)", lambda m: f"{m[1]}{int(m[2]) + 17}", text)


def _processes(text: str) -> str:
    """Other process ids in NCCL's envelope."""
    return re.sub(r"(?m)^(\S+?:)(\d+):(\d+) \[", lambda m: f"{m[1]}{int(m[2]) + 20000}:{int(m[3]) + 20000} [", text)


def _day(text: str) -> str:
    return re.sub(r"\b20(\d\d)-(\d\d)-(\d\d)\b", "2025-\\2-\\3", text)


PREFIXES: dict[str, str] = {
    "loguru": "2026-03-01 10:{m:02}:{s:02}.{ms:03} | INFO     | launcher.tail:stream:88 - ",
    "logging": "2026-03-01 10:{m:02}:{s:02},{ms:03} - runner - INFO - ",
    "level": "INFO:runner:",
    "iso": "2026-03-01T10:{m:02}:{s:02}.{ms:03}Z ",
    "clock": "[10:{m:02}:{s:02}] ",
    "brackets": "[2026-03-01 10:{m:02}:{s:02}] ",
    "sagemaker": "[1,mpirank:0,algo-1]<stdout>:",
    "mpi": "[1,0]<stdout>:",
    "srun": "0: ",
    "pdsh": "node-4: ",
    "rank": "[0] ",
    "compose": "trainer-0  | ",
    "kubectl": "[pod/trainer-0/pytorch] ",
    "ray": "(RayTrainWorker pid=4242, ip=10.0.0.4) ",
    "default": "[default0]:",
    "syslog": "Mar  1 10:{m:02}:{s:02} node-4 train[4242]: ",
    "airflow": "[2026-03-01, 10:{m:02}:{s:02} UTC] {{subprocess.py:93}} INFO - ",
    "buildkite": "\x1b_bk;t=17000000{m:02}{s:02}\x07",
    "grep": "{n}:",
    "grep-file": "logs/job.out:{n}:",
    "numbered": "{n:6}\t",
    "pipe-numbered": "{n:4} | ",
    "azure": "2026-03-01T10:{m:02}:{s:02}.{ms:03}0000Z stdout F ",
    "custom": "trainer@gpu-box/exp-17>> ",
    "custom-time": "<10:{m:02}:{s:02}> worker/0 :: ",
    "quote": "> ",
    "quote-twice": "> > ",
    "bullet": "- ",
    "star": "* ",
    "indent": "    ",
    "tab": "\t",
}
"""What stands before each line, by who puts it there."""

VARIATIONS: dict[str, Vary] = {
    **{f"prefix {name}": partial(_prefix, form) for name, form in PREFIXES.items()},
    **{f"wrap {width}": partial(_wrapped, width) for width in (80, 100, 120, 160)},
    **{f"wrap words {width}": partial(_filled, width) for width in (80, 100, 120)},
    "wrap quoted": lambda text: _prefix("> ", _wrapped(78, text)),
    "quoting html": html.escape,
    "quoting html pre": lambda text: f"<html><body><pre>{html.escape(text)}</pre></body></html>",
    "quoting html br": lambda text: html.escape(text).replace("\n", "<br>\n"),
    "quoting nbsp": lambda text: text.replace(" ", "\xa0"),
    "quoting some nbsp": lambda text: re.sub(r"(\w) (\w)", "\\1\xa0\\2", text),
    "quoting curly": _curly,
    "quoting escapes": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "quoting literal": lambda text: json.dumps(text, ensure_ascii=False),
    "quoting fence": lambda text: f"It fails like this:\n```\n{text}\n```\nAny idea?\n",
    "quoting details": lambda text: f"<details><summary>log</summary>\n\n```shell\n{text}\n```\n</details>\n",
    "quoting json message": partial(_json, "message"),
    "quoting json log": partial(_json, "log"),
    "bytes colours": _colours,
    "bytes colour lines": partial(_prefix, "\x1b[36m"),
    "bytes crlf": lambda text: text.replace("\n", "\r\n"),
    "bytes mark": lambda text: "\ufeff" + text,
    "bytes zero width": lambda text: text.replace(": ", ":\u200b "),
    "cut at 400": partial(_shortened, 400),
    "cut blank": lambda text: "\n".join(line for line in text.split("\n") if line.strip()),
    "cut last 60": lambda text: "\n".join(text.rstrip("\n").split("\n")[-60:]),
    "version lines": _renumbered,
    "version processes": _processes,
    "version day": _day,
    "jobs before": lambda text: WELL + text,
    "jobs before, finished": lambda text: WELL + "4711.0 COMPLETED 0:0\n\n$ sbatch job.sh\n" + text,
}


def classes(names: Sequence[str]) -> list[str]:
    """The classes of variations, in their order."""
    return list(dict.fromkeys(name.partition(" ")[0] for name in names))
