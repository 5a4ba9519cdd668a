"""What is known of a running live test, record by record.  No widget here: a plain state and its words."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from ncclkit.core.model import Measurement, from_dict
from ncclkit.core.text import format_bytes, plural, ranges, ranks, rate, the
from ncclkit.views._html import Markup, badge, el

STAGES = {"waiting": "·", "hello": "○", "simulate": "○", "import": "◔", "init": "◑"}
STAGES |= {"alone": "◑", "pairs": "◒", "groups": "◒", "step": "◕", "size": "◕", "done": "✓", "error": "✕"}
"""Phases of the wire, in order, with the symbol of each light."""
NAMES = {"hello": "starting", "simulate": "starting", "import": "importing torch", "init": "init_process_group"}
"""How a phase is shown where its name on the wire says little."""

SINGLE = 32
"""Up to here each rank has a light of its own; beyond, ranks of one stage share one."""

LOG_LINES = 30
MOST = 1 << 16
"""Ranks that a record can claim; a torn number must not fill the memory."""


class Progress:
    """The state of a running test, from its wire records: share done, words, lights, measurements, variables, log."""

    def __init__(self, ranks: int) -> None:
        self.stages = dict.fromkeys(range(ranks), "waiting")
        self.planned = 0
        self.op = ""
        self.now: int | None = None
        self.step: int | None = None
        self.stage, self.job = "", ""
        self.pairs, self.pair = 0, ""
        self.env: dict[str, str] = {}
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self.errors: dict[int, str] = {}
        self._measured: dict[tuple[str, int], Measurement] = {}

    @property
    def measurements(self) -> list[Measurement]:
        """What was measured so far, smallest size first."""
        return [self._measured[key] for key in sorted(self._measured)]

    def take(self, record: Mapping[str, Any]) -> None:
        """Follow one record; one that cannot be read is kept as a line of the log."""
        handle = {
            "phase": self._phase,
            "measure": self._measure,
            "plan": self._plan,
            "stage": self._stage,
            "job": self._job,
            "stage.pair": self._pair,
            "log": self._line,
            "problem": self._line,
            "end": self._line,
        }.get(str(record.get("kind")))
        if handle is None:
            return
        try:
            handle(record)
        except (TypeError, ValueError, KeyError, ArithmeticError) as error:
            self.log.append(f"a {record.get('kind')} record could not be read ({type(error).__name__}: {error})")

    def share(self) -> float:
        """Part of the planned sizes that is measured, 0 to 1."""
        return min(1.0, len(self._measured) / self.planned) if self.planned else 0.0

    def words(self) -> str:
        """One line: what is done, what is under way, who is behind."""
        if self.stage:
            return self.stage
        if self.errors:
            rank, error = next(iter(self.errors.items()))
            return f"Rank {rank} failed: {error.splitlines()[0] if error else 'no message'}"
        if not self._measured and self.now is None and self.pairs:
            return f"Staged test: {plural(self.pairs, 'pair')} measured, last {self.pair}{self._behind()}"
        if not self._measured and self.now is None:
            if self.job and not self.stages:
                return self.job
            doing = "Starting" if self.step is None else f"Step {self.step} on"
            return f"{doing} {plural(len(self.stages), 'rank')}{self._behind()}" if self.stages else "Planning"
        count = len(self._measured)
        done = f"{count} of {plural(self.planned, 'size')}" if self.planned else plural(count, "size")
        doing = f", now {self.op} {format_bytes(self.now)}" if self.now is not None and self.share() < 1 else ""
        return f"{done} measured{doing}{self._behind()}"

    def lights(self) -> Markup:
        """One light per rank, or per stage where there are many ranks: symbol and word."""
        shown = [(f"{rank} {NAMES.get(stage, stage)}", stage) for rank, stage in sorted(self.stages.items())]
        if len(shown) > SINGLE:
            counts = Counter(self.stages.values())
            counted = ((stage, f"{NAMES.get(stage, stage)}: {count:,}") for stage, count in counts.items())
            shown = [(f"{words}{self._named(stage, counts[stage])}", stage) for stage, words in counted]
        lights = (badge(STAGES.get(stage, "•"), words, f"stage-{stage}") for words, stage in shown)
        return el("p", *lights, cls="nk-lights") if shown else Markup("")

    def _named(self, stage: str, count: int) -> str:
        return f" (rank {ranges(r for r, s in self.stages.items() if s == stage)})" if count <= 4 else ""

    def _behind(self) -> str:
        order = {stage: place for place, stage in enumerate(STAGES)}
        places = Counter(order.get(stage, 0) for stage in self.stages.values())
        late = [rank for rank, stage in self.stages.items() if order.get(stage, 0) == min(places)]
        if len(places) < 2 or len(late) * 2 > len(self.stages):
            return ""
        stage = self.stages[late[0]]
        return f"; {the('rank', late)} {'still' if stage == 'waiting' else 'only'} at “{NAMES.get(stage, stage)}”"

    def _phase(self, record: Mapping[str, Any]) -> None:
        rank, phase = int(record["rank"]), str(record["phase"])
        self.stages[rank] = phase
        if phase == "size":
            self.now, self.op = int(record["bytes"]), str(record.get("op", ""))
        if phase == "step":
            self.step = max(self.step or 0, int(record.get("step", 0)))
        if phase == "error":
            self.errors[rank] = str(record.get("error", ""))

    def _stage(self, record: Mapping[str, Any]) -> None:
        """The run broke off, and it is narrowed down who is at fault."""
        self.stage = str(record["say"])

    def _job(self, record: Mapping[str, Any]) -> None:
        """The batch job that the run is part of."""
        self.job = str(record["say"])
        self.log.append(self.job)

    def _pair(self, record: Mapping[str, Any]) -> None:
        self.pairs += 1
        ends = int(record["rank"]), int(record["peer"])
        self.pair = f"{ranks(ends)} at {rate(float(record['bandwidth']))}"

    def _plan(self, record: Mapping[str, Any]) -> None:
        self.planned = len(record["sizes"]) * max(1, len(record.get("ops", ())))
        self.stages = dict.fromkeys(range(min(int(record.get("ranks", 0)), MOST)), "waiting") | self.stages
        self.env = {str(name): str(value) for name, value in dict(record.get("env", {})).items()}

    def _measure(self, record: Mapping[str, Any]) -> None:
        time, count = float(record["time_us"]), int(record["bytes"])
        known = {
            "dtype": "",
            "ranks": len(self.stages),
            "hosts": 1,
            "backend": "",
            "p99_us": None,
            "spread": 0.0,
            "wrong": 0,
            "busbw": None,
            "algbw": count / time / 1e3,
        }
        measured = from_dict(Measurement, known | dict(record) | {"bytes": count, "time_us": time})
        self._measured[str(record["op"]), count] = measured

    def _line(self, record: Mapping[str, Any]) -> None:
        self.log.append(str(record.get("line") or record.get("say") or "")[:2000])
