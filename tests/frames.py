"""What stands around a sentence: launchers, services, log libraries, viewers and people, one frame each.

`FRAMES` maps a name to how it writes the lines of one message; `QUOTING` are frames in which a message is only spoken
of.  `specimens` are the messages: those of the table of specimens, and the one above each pattern of a grammar.
"""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ncclkit.core.model import Event
from ncclkit.evidence.grammars import families, nccl
from ncclkit.evidence.scanner import plain, scan
from tests.evidence import specimens

Write = Callable[[str], str]

BEFORE = "step 7 loss 2.41"
AFTER = "step 8 loss 2.31"
"""Lines around a message, which no frame was put on: a log of many sources has such."""

HEADS = {
    "bare": "",
    "torchrun": "[default0]:",
    "torchrun role": "[trainer3|11]:",
    "torchrun host": "[node-9|trainer3|11]:",
    "rank": "[rank3]: ",
    "mpirun": "[1,3]<stderr>:",
    "mpirun timed": "Sat Nov 21 01:02:03 2026[1,3]<stderr>:",
    "prterun": "[prterun-n1-77@1,3]<stderr>: ",
    "sagemaker": "[1,mpirank:3,algo-1]<stderr>:",
    "srun": "srun: ",
    "pdsh": "node-9: ",
    "pdsh rank": "node-9: [rank3]: ",
    "docker time": "2026-11-21T01:02:03.123456789Z ",
    "kubernetes": "2026-11-21T01:02:03.123456789Z stderr F ",
    "kubectl": "[pod/trainer-3/pytorch] ",
    "kubectl timed": "[pod/trainer-3/pytorch] 2026-11-21T01:02:03.123456789Z ",
    "stern": "trainer-7d9f-worker-3 pytorch ",
    "compose": "trainer-3  | ",
    "swarm": "train_worker.3.k2x9@node-9    | ",
    "journal": "Nov 21 01:02:03 node-9 python[4711]: ",
    "journal iso": "2026-11-21T01:02:03+0000 node-9 python[4711]: ",
    "syslog 5424": "<14>1 2026-11-21T01:02:03.123Z node-9 trainer 4711 - - ",
    "ts": "Nov 21 01:02:03 ",
    "ray": "(RayTrainWorker pid=123, ip=10.0.0.1) ",
    "ray bare": "(pid=123) ",
    "ray rank": "(TrainTrainable rank=3 pid=123, ip=10.0.0.1) ",
    "ray colour": "\x1b[36m(TrainTrainable pid=123)\x1b[0m ",
    "raylet": "(raylet, ip=10.0.0.1) ",
    "vllm": "(VllmWorkerProcess pid=123) ERROR 11-21 01:02:03 worker.py:226] ",
    "vllm engine": "(EngineCore_0 pid=77) ERROR 11-21 01:02:03 [core.py:396] ",
    "sglang": "[2026-11-21 01:02:03 TP3] ",
    "logging": "ERROR:root:",
    "logging timed": "2026-11-21 01:02:03,123 - trainer - ERROR - ",
    "logging short": "2026-11-21 01:02:03,123 ERROR ",
    "loguru": "2026-11-21 01:02:03.123 | ERROR    | trainer:main:88 - ",
    "rich": "[01:02:03] ERROR    ",
    "rich dated": "[11/21/26 01:02:03] ERROR    ",
    "structlog": "2026-11-21 01:02:03 [error    ] ",
    "absl": "E1121 01:02:03.123456 140213 trainer.py:88] ",
    "glog": "[E1121 01:02:03.123456789 trainer.cpp:88] ",
    "lightning": "[rank: 3] ",
    "deepspeed": "[2026-11-21 01:02:03,123] [ERROR] [engine.py:88:train] ",
    "transformers": "[ERROR|trainer.py:88] 2026-11-21 01:02:03,123 >> ",
    "accelerate": "11/21/2026 01:02:03 - ERROR - __main__ - ",
    "hydra": "[2026-11-21 01:02:03,123][trainer][ERROR] - ",
    "megatron": "[2026-11-21 01:02:03] ",
    "fairseq": "2026-11-21 01:02:03 | ERROR | fairseq.trainer | ",
    "mmengine": "11/21 01:02:03 - mmengine - ERROR - ",
    "github": "2026-11-21T01:02:03.1234567Z ",
    "github error": "2026-11-21T01:02:03.1234567Z ##[error]",
    "gitlab": "2026-11-21T01:02:03.123456Z 00O ",
    "buildkite": "\x1b_bk;t=1700000012\x07",
    "airflow": "[2026-11-21, 01:02:03 UTC] {subprocess.py:93} INFO - ",
    "azure": "[2026-11-21T01:02:03.123456] ",
    "cloudwatch": "1795222923123\t",
    "cloudwatch stream": "2026-11-21T01:02:03.123000+00:00 algo-3-1700000012 ",
    "vertex": "ERROR\t2026-11-21 01:02:03 +0000\tworkerpool0-3\t\t",
    "numbered": "    12\t",
    "grep": "12:",
    "grep file": "logs/rank3.log:12:",
    "mail": "> ",
    "mail twice": "> > ",
    "tab": "\t",
    "indent": "    ",
    "pytest": "E   ",
    "bar": "Train:  20%|##   | 375/1881 [3:40:16<16:05:32, 35.55s/it]",
    "exception": "RuntimeError: ",
    "torch exception": "torch.distributed.DistBackendError: ",
    "ray exception": "ray.exceptions.RayTaskError(RuntimeError): ",
}
"""What stands before each line of a message."""


def _each(form: Write) -> Write:
    return lambda text: "\n".join(form(line) for line in text.split("\n"))


def _head(head: str) -> Write:
    return _each(lambda line: head + line)


def _record(**row: str) -> Write:
    """A record of JSON whose first field holds the line."""
    (key, form), *rest = row.items()
    return _each(lambda line: json.dumps({key: form.format(line), **dict(rest)}))


WIDE = (
    "The configuration of this run is written below, one name a line; whoever wants to start it again the same way, "
    "with the same data in the same order, needs all of it",
    "Of the names that are not there the trainer takes what its own file of settings has, whose place is the first of "
    "the names, and which is not shown here once more",
)
"""Lines of a log that a terminal breaks, too."""


def _cut(width: int) -> Write:
    """As a terminal breaks all lines of a log."""
    broken = _each(
        lambda line: "\n".join(line[at : at + width] for at in range(0, len(line), width))
    )
    return lambda text: broken("\n".join((*WIDE, text)))


FRAMES: dict[str, Write] = {
    **{name: _head(head) for name, head in HEADS.items()},
    "crlf": _each(lambda line: line + "\r"),
    "colour": _each(lambda line: f"\x1b[31m{line}\x1b[0m"),
    "colour lost": _each(lambda line: f"[31m{line}[0m"),
    "ray repeated": _each(
        lambda line: f"(RayTrainWorker pid=123) {line} [repeated 7x across cluster]"
    ),
    "ray repeated, colour": _each(
        lambda line: (
            f"\x1b[36m(W pid=123, ip=10.0.0.1)\x1b[0m {line}\x1b[32m [repeated 7x across cluster]\x1b[0m"
        )
    ),
    "rich with place": _each(lambda line: f"[01:02:03] ERROR    {line}          trainer.py:88"),
    "json log": _record(log="{}\n", stream="stderr", time="2026-11-21T01:02:03.123456789Z"),
    "json message": _record(message="{}", level="error"),
    "json msg behind": _each(
        lambda line: json.dumps({"ts": 1795222923, "level": "error", "msg": line})
    ),
    "json payload": _each(
        lambda line: json.dumps({"severity": "ERROR", "jsonPayload": {"message": line}})
    ),
    "logfmt": _each(lambda line: f'time="2026-11-21T01:02:03Z" level=error msg={json.dumps(line)}'),
    "repr": _each(lambda line: f"stderr: {line.encode()!r}"),
    "html": lambda text: html.escape(text),
    "wrap 80": _cut(80),
    "wrap 120": _cut(120),
    "blank lines": _each(lambda line: f"\n{line}\n"),
    "fence": lambda text: f"```\n{text}\n```",
}

QUOTING: dict[str, Write] = {
    "prose": _each(
        lambda line: f"we saw `{line}` last week, it is in the changelog of the cluster"
    ),
    "prose quoted": _each(
        lambda line: f'If you see "{line}" then the nodes of the job are to be looked at.'
    ),
    "code": _each(lambda line: f"    raise RuntimeError({json.dumps(line)})"),
    "grep of code": _each(lambda line: f"src/checks.py:12:    match = {json.dumps(line)}"),
    "comment": _each(lambda line: f"# {line}"),
    "pattern": _each(lambda line: f"  pattern: {json.dumps(line)}"),
    "row": _each(lambda line: f"| {line} | ask the operators | since May |"),
}
"""Frames in which nobody's program says it."""


@dataclass(frozen=True, slots=True)
class Specimen:
    """A message, and the kind of event that it is."""

    text: str
    kind: str


FOLD = re.compile(r" \\\n *# *")
"""Where a specimen that is longer than a line of code may be goes on in the next comment."""


def specimens_in(source: str) -> Iterable[str]:
    """The comments of a source: each line, each block as one line, and what stands far apart in either."""
    for block in re.findall(r"(?:^ *#.*\n)+", source, re.MULTILINE):
        block = FOLD.sub(" ", block)
        lines = [line.strip().removeprefix("#").strip() for line in block.splitlines()]
        for text in (" ".join(lines), *lines):
            for part in (text, *re.split(r" {4,}", text)):
                yield part
                yield "NCCL INFO " + part


RULED: tuple[ModuleType, ...] = (nccl, families, *scan.GRAMMARS)
"""The modules whose patterns stand under specimens."""
TABLE = (
    *specimens.NCCL,
    *specimens.GLOO,
    *specimens.STORE,
    *specimens.LAUNCHERS,
    *specimens.SYSTEM,
    *specimens.C10D,
)


def all_specimens() -> list[Specimen]:
    """Those of the table, and for each rule the shortest above it that it reads."""
    found = {case[0]: case[1] for case in TABLE}
    found["Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 5d000"] = (
        "nccl.warn"
    )
    for text, file, _ in specimens.WARN:
        found[f"{specimens.HEAD}{file}:49 NCCL WARN {text}"] = "nccl.warn"
    texts = [
        text
        for module in RULED
        for text in specimens_in(Path(str(module.__file__)).read_text("utf-8"))
    ]
    for rule in (*nccl.INFO, *scan.RULES):
        anchor = rule.anchor.decode()
        own = [
            text
            for text in texts
            if anchor in text and rule.pattern.search(text) and text != "Last error:"
        ]
        for text in sorted(own, key=len):
            if any(event.kind == rule.kind for event in events_of(text)):
                found.setdefault(text, rule.kind)
                break
    return [Specimen(text, kind) for text, kind in found.items()]


def events_of(text: str) -> list[Event]:
    """What is read of a message between lines that say nothing, before repeated events are merged."""
    data = plain.plain_text(f"{BEFORE}\n{text}\n{AFTER}\n".encode())
    events: list[Event] = []
    for block in scan.blocks(io.BytesIO(data), scan.Context("job.log")):
        events += block.events()
    return events
