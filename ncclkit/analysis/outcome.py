"""How a job came out, as far as its evidence says: it succeeded, it was at work, or neither.

A success needs the end of every rank that logged, or the word of who watched all of them: a
launcher, a scheduler, the
closing line of a test.  One rank's "Training completed" says nothing of the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ncclkit.analysis.once import once
from ncclkit.analysis.succession import Span
from ncclkit.core.case import RUN, Case
from ncclkit.core.model import Event
from ncclkit.core.summary import ranks

END_OF_ALL = re.compile(
    r"worker group (?:successfully )?finished|worker\.status\.SUCCEEDED|\bCOMPLETED\b"
    r"|exits? successfully"
    r"|\bjob\b.{0,80}(?:successfully|succeeded)|PyTorchJob .{0,120}(?:successfully completed"
    r"|[Ss]ucceeded)"
    r"|Collective test concluded|[Ss]tatus: TERMINATED|\bphase: Succeeded|\b[Tt]otal im(?:ages"
    r"|g)/sec\b|\ball ranks (?:are )?(?:done|finished|completed)"
    r"|={3,} .*\b\d+ passed\b(?!.*\b(?:failed|error))|^OK(?: \(skipped=\d+\))?\s*$"
    r"|^\S{1,80}: success\s*$"
    r"|\bEXIT_CODE=0\b|\b\w+_STATE_SUCCEEDED\b|[Tt]raining job completed|^RESULT,\w+,"
    r"|\bDiagnostic .* [Pp]ass|^NOTE: The CUDA Samples are not meant for"
    r"|^\W{0,3}(?:rc|exit|exit (?:code|status)|status|returned?|\$\?)\s*[=:]\s*0\s*$"
)
"""What is said by a program that watched all ranks."""
END_OF_ONE = re.compile(
    r"^\W*End (?:of )?training|[Tt]rain(?:ing)? (?:(?:has|is"
    r"|was) )?(?:successfully )?(?:complete|completed|finished|done"
    r"|ended)\b(?! at step)"
    r"|(?:[Ff]inish(?:ed)?|[Cc]ompleted|[Dd]one) (?:with )?(?:the )?(?:re|pre)?-?(?:[Tt]raining"
    r"|fine-?tuning)\b"
    r"|`Trainer\.fit` stopped: `max_|'?train_runtime'?\s*[:=]|[Tt]otal training time"
    r"|^\W*[Tt]raining time\s*[:=]"
    r"|\d+ epochs completed in\b|\[exiting program at iteration"
    r"|\[after training is done\]|\bRun(?: has)? (?:successfully )?finished\b"
    r"|\bBenchmark (?:finished|completed?|done)\b|\b(?:[Ff]inished|[Cc]ompleted) (?:all"
    r"|\d+) (?:epochs?|steps?)\b"
    r"|\bSuccessfully (?:finished|completed|trained)\b|\b[Aa]ll (?:epochs|steps"
    r"|tests) (?:are )?(?:done|passed|OK)\b"
    r"|\bTest (?:PASSED|passed)\b|\bexit(?:ed|ing)? (?:with )?(?:exit )?(?:code|status) 0\b"
    r"|^\W*(?:[Rr]ank ?\d+\W{1,3})?(?:[Aa]ll )?[Dd]one(?:[.!]|\s*$)|^\W*SUM \w+ [\d.]+"
    r"|\bFinal evaluation\b|\bPod completed\b|^\W*Eval loss\b|^\s*GPU \d+: OK\b"
    r"|^\W*Test metric\b"
    r"|Average Recall +\(AR\)|^real\s+\d+m[\d.]+s|\bfinal (?:epoch )?checkpoint\b"
)
"""What a rank says of its own end, or a test whose ranks write into one table."""
HELPER = re.compile(
    r"\bagent\b|\bdashboard\b|\bsidecar\b|\bexporter\b|\bhook\b|\binit.container\b", re.IGNORECASE
)
"""Whose exit with 0 says nothing of the job."""
SET_BY_COMMAND = re.compile(
    r"(?:(?<!\S)(?:-x|-e|--env)[ =]|^[$#]? ?(?:\w+=\S+ )*)(?P<name>NCCL_\w+)=\S+ "
)
"""A variable of NCCL in the command that started the job: ``mpirun -x NCCL_IB_DISABLE=1 …``."""
NAN = re.compile(r"\bnan\b", re.IGNORECASE)
"""A model whose loss is not a number has not been trained, whatever the program says of its end."""
OWN_LINE = re.compile(r"^\W{0,3}[Rr](?:ank)? ?(?P<rank>\d{1,5})\b[\]:\s)]")
"""How a program marks the lines of its ranks in its own way."""
OWN_RANK = re.compile(r"\b[Rr]ank[ :=_]{0,2}(\d{1,7})\b")
NUMBERS = re.compile(r"\d+")
SECTION = re.compile(r"^==> .{1,200} <==$")
PROMPT = re.compile(r"^(?:\([\w.-]+\) ?)?\[?[\w.-]+@[\w.-]+[: ][^$#>]{0,80}[$#>]\s*$")
NO_WRONG = re.compile(r"# ?Out of bounds values\s*:\s*0 OK")
TEST_ROW = re.compile(
    r"^[\W]*(?P<size>\d{1,15})\s+\|?\s*(?:\d{1,15}\s+(?:float|double|half|bfloat16|u?int\d{1,2}"
    r"|fp?\d{1,2}|f8e\dm\d)\b"
    r"|[\d.]+\s*\|\s*[\d.]+\s*\|\s*success)"
)
"""A row of nccl-tests, of rccl-tests or of HCCL's test, whose check is fine or off."""
WRONG = re.compile(r"(?:\s[\d.]+){2,3}\s+(?P<first>[1-9]\d*)\s+(?:[\d.]+\s+){3}(?P<second>\d+)\s*$")
LARGEST = re.compile(r"maxBytes (?P<bytes>\d{1,15})|maxbytes is (?P<other>\d{1,15})")

RATE = re.compile(
    r"\d ?(?:it|tok(?:en)?s?|samples?|examples?|im(?:a)?ge?s?|img|req(?:uest)?s?|s|ms|sequences?"
    r"|frames?|words?)"
    r"/(?:s(?:ec(?:ond)?|tep)?|it(?:er(?:ation)?)?|GPU)\b"
    r"|\bthroughput\b[^:=]{0,30}[:=]\s*[\d.]+|\bTFLOPs?\b|\b(?:images|samples"
    r"|tokens)/sec(?:ond)?\b\W{1,3}[\d.]+"
)
SERVING = re.compile(
    r"\b[Dd]ecode batch\b|\b[Pp]refill batch\b|generation throughput|Uvicorn running on"
    r"|[Aa]pplication startup complete"
    r"|server is fired up|\"(?:GET|POST|HEAD) /\S* HTTP/\d(?:\.\d)?\" 20\d"
    r"|Started (?:\w+ )?(?:GRPC|HTTP)\w*|ready to roll"
    r"|[Ss]erver (?:is )?(?:ready|started|listening)|Connected\s*$|\bReceived request\b"
    r"|Finished request"
)
COUNTED = re.compile(
    r"\b(?:loss|epoch|iter(?:ation)?|step|lr|learning_rate|eta|ppl|wps|grad_norm)\b|[a-z]/s\b",
    re.IGNORECASE,
)
MODEL_SERVED = re.compile(
    r"\btoken usage\b|generation throughput|\btok(?:en)?s?/s\b|vLLM|sglang|/v1/\w+"
)
LOSS = re.compile(
    r"\b(?:loss|lm loss|train_loss|eval_loss|acc(?:uracy)?1?)['\"]?\s*(?:train)?\s*[:= "
    r"|]{1,3}\s*\d+\.\d+",
    re.IGNORECASE,
)
"""What lines of jobs hold that are at work."""


LIBRARY = (
    "nccl.", "nccltests.", "job.member", "printed.", "system.denied", "run.", "store.",
    "c10d.device_unknown", "c10d.hint",
)  # fmt: skip
"""How kinds begin that are no words of a rank's own program."""


TORCH = re.compile(r"\[rank\d+\]:\s*\[?[WI]\d{3,4} ")
"""How torch itself warns; its last log lines say nothing of the program."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the evidence shows of the end of a job."""

    success: Event | None
    """The line that shows that all of it succeeded."""
    work: Event | None
    """The last line that only a job at work writes."""


@once
def outcome(case: Case) -> Outcome:
    """Whether the job was seen to succeed, and whether it was seen at work."""
    return Outcome(_success(case), max(work_lines(case), key=_place, default=None))


def unread_lines(case: Case, which: str = "abnormal") -> list[Event]:
    """Lines of its logs that no grammar knows; of our own runs, those of the last.

    which: ``abnormal``, those with words of trouble; ``quiet``, the others of short logs.
    """
    now = {event.path for event in case.events}
    files = [file for file in case.inputs if file["path"] in now or not RUN.search(file["path"])]
    return [_as_event("log.error", file, row) for file in files for row in file.get(which, ())]


@once
def work_lines(case: Case) -> list[Event]:
    """Steps, rows of a test, requests that were served: lines that only a job at work writes."""
    lines = [*case.of("progress"), *_serving(case)]
    for file in case.inputs:
        rows = (*file.get("quiet", ()), *file.get("abnormal", ()))
        lines += [_as_event("progress", file, row) for row in rows if _shows_work(row)]
    return lines


@once
def success_lines(case: Case) -> list[Event]:
    """Lines that say that ranks, or the whole job, succeeded; whether that is everybody's end,
    `outcome` judges."""
    ours = [event for event in case.of("run.end") if event.data.get("reason") == "done"]
    named = [event for event in case.of("job.done") if _says_end(event.text)]
    plain = [*unread_lines(case, "quiet"), *unread_lines(case)]
    said = [line for line in plain if _says_end(line.text)]
    return [*ours, *named, *said, *_back_in_shell(plain)]


def shows_training(case: Case) -> bool:
    """Whether a line holds the loss of a model, a row of a collective test, or tokens of a served
    model."""
    lines = [*unread_lines(case, "quiet"), *unread_lines(case)]
    return any(
        pattern.search(line.text) for line in lines for pattern in (LOSS, TEST_ROW, MODEL_SERVED)
    )


def _back_in_shell(lines: list[Event]) -> list[Event]:
    """A prompt in the last line of a pasted text, after the program's output: the command came
    back."""
    last = max(lines, key=_place, default=None)
    first = min(lines, key=_place, default=None)
    if last is None or last is first:
        return []
    return [last] if PROMPT.match(last.text) else []


def asked_for(case: Case) -> set[str]:
    """Names of variables that a command line in the text sets: what it does with them is intended."""
    lines = [*unread_lines(case, "quiet"), *unread_lines(case)]
    return {match["name"] for line in lines for match in SET_BY_COMMAND.finditer(line.text)}


def speaks_for_all(event: Event) -> bool:
    """Whether an end is said by who watched all ranks: a launcher, a scheduler, a test that checked
    its values."""
    if event.kind in ("run.end", "nccltests.table"):
        return True
    return any(pattern.search(event.text) for pattern in (END_OF_ALL, NO_WRONG))


def _success(case: Case) -> Event | None:
    ends = success_lines(case)
    for end in ends:
        if speaks_for_all(end):
            return end
    if table := _whole_table(case):
        return table
    return _end_of_each(case, ends) or _closed_by_each(case)


def _end_of_each(case: Case, ends: list[Event]) -> Event | None:
    """The last of the ends where every rank that logged has one; else None."""
    if not ends:
        return None
    ended = {_rank_of_end(event) for event in ends} | _left(case)
    open_ranks = _speakers(case) - ended
    unmarked = None in ended  # mostly rank 0, which alone prints
    if open_ranks - {0} or (open_ranks and not unmarked):
        return None
    if _sections(case) > _count_ends(ends, case):
        return None
    named = {rank for rank in map(_rank_of_end, ends) if rank is not None}
    if named and not unmarked and named < _members(case):
        return None
    return max(ends, key=_place)


def _sections(case: Case) -> int:
    """How many files a text was put together from, as `tail` shows several: each must show its end."""
    return sum(row.get("times", 1) for row in _rows(case) if SECTION.match(row["text"]))


def _count_ends(ends: list[Event], case: Case) -> int:
    """How often an end was said: lines that differ in numbers alone stand once, with their count."""
    counts: dict[str, int] = {}
    for end in ends:
        alike = NUMBERS.sub("#", end.text)
        counts[alike] = max(counts.get(alike, 0), end.count)
    for row in _rows(case):
        alike = NUMBERS.sub("#", row["text"])
        if alike in counts:
            counts[alike] = max(counts[alike], row.get("times", 1))
    return sum(counts.values())


def _rows(case: Case) -> list[Mapping[str, Any]]:
    """Lines of its logs that no grammar knows, as they were kept."""
    kept: list[Mapping[str, Any]] = []
    for file in case.inputs:
        kept += file.get("quiet", ())
        kept += file.get("abnormal", ())
    return kept


def _rank_of_end(event: Event) -> int | None:
    """The rank that a line of an end is of: ``Training completed for rank 6``."""
    if event.rank is not None:
        return event.rank
    named = OWN_RANK.search(event.text)
    return int(named[1]) if named else None


def _closed_by_each(case: Case) -> Event | None:
    """The last destroyed communicator, where every rank that began one worked and closed it."""
    begun = {event.rank for event in case.of("nccl.init")}
    closed = [event for event in case.of("nccl.destroy") if event.data.get("how") == "destroy"]
    worked = bool(work_lines(case))
    everybody = begun | _speakers(case) <= {event.rank for event in closed}
    if closed and worked and everybody:
        return max(closed, key=_place)
    return _left_at_exit(case)


def _left_at_exit(case: Case) -> Event | None:
    """Torch's warning at a program's end, after work, where every rank that logged has said it."""
    hints = [event for event in case.of("c10d.hint") if event.data.get("what") == "not_destroyed"]
    steps = Span(work_lines(case))
    after = [hint for hint in hints if steps.begins_before(hint)]
    if after and _speakers(case) <= {hint.rank for hint in hints}:
        return after[-1]
    return None


def _left(case: Case) -> set[int | None]:
    """Ranks that are known to have come to their end, or to have closed their communicators."""
    hints = [event for event in case.of("c10d.hint") if event.data.get("what") == "not_destroyed"]
    closed = [event for event in case.of("nccl.destroy") if event.data.get("how") == "destroy"]
    gone = [
        event for event in case.of("worker.phase") if event.data.get("phase") in ("leave", "end")
    ]
    return {event.rank for event in (*hints, *closed, *gone)}


def _members(case: Case) -> set[int]:
    """All ranks that the evidence knows."""
    return set(ranks(case.events, case.inputs))


def _speakers(case: Case) -> set[int | None]:
    """The ranks whose program wrote a line of its own while the job was at work.

    What NCCL and torch write is no word of the program, and what a rank says at its start says
    nothing of how it ends: mostly rank 0 alone writes from then on.
    """
    first = min(work_lines(case), key=_place, default=None)
    spoken = [event for event in case.events if not event.kind.startswith(LIBRARY)]
    for file in case.inputs:
        rows = (*file.get("quiet", ()), *file.get("abnormal", ()))
        spoken += [_as_event("line", file, row) for row in rows if not TORCH.search(row["text"])]
    if first is not None:
        spoken = [line for line in spoken if line.path != first.path or line.line >= first.line]
    ranks_heard = {_rank_of_line(line) for line in spoken}
    return {rank for rank in ranks_heard if rank is not None and rank >= 0}


def _rank_of_line(line: Event) -> int | None:
    """The rank that wrote a line, by the launcher's mark or by the program's own."""
    if line.rank is not None:
        return line.rank
    marked = OWN_LINE.match(line.text)
    return int(marked["rank"]) if marked else None


def _whole_table(case: Case) -> Event | None:
    """The closing of a test's table without a wrong value: its last lines, or a row of the largest
    size."""
    tables = case.of("nccltests.table")
    if any(event.data.get("wrong") for event in tables):
        return None
    for table in tables:
        if table.data.get("average") is not None:
            return table
    lines = sorted((*unread_lines(case, "quiet"), *unread_lines(case)), key=_place)
    if any(TEST_ROW.search(line.text) and WRONG.search(line.text) for line in lines):
        return None
    for line in lines:
        if NO_WRONG.search(line.text):
            return line
    return _largest_row(lines)


def _largest_row(lines: list[Event]) -> Event | None:
    asked = [LARGEST.search(line.text) for line in lines]
    sizes = [int(match["bytes"] or match["other"]) for match in asked if match]
    rows = [(int(match["size"]), line) for line in lines if (match := TEST_ROW.search(line.text))]
    whole = [line for size, line in rows if sizes and size >= max(sizes)]
    return whole[-1] if whole else None


def _says_end(text: str) -> bool:
    if NAN.search(text):
        return False
    if END_OF_ALL.search(text):
        return True
    return END_OF_ONE.search(text) is not None and HELPER.search(text) is None


def _serving(case: Case) -> list[Event]:
    served = [
        event for event in case.of("job.phase") if event.data.get("what") in ("idle", "serving")
    ]
    moved = [e for e in case.of("ras.change") if e.data.get("moved") and not e.data.get("still")]
    tables = [event for event in case.of("nccltests.table") if not event.data.get("wrong")]
    return [*served, *moved, *tables, *case.of("attach.motion")]


def _shows_work(row: Mapping[str, Any]) -> bool:
    text = row["text"]
    if RATE.search(text) or SERVING.search(text) or LOSS.search(text):
        return True
    if TEST_ROW.search(text):
        return WRONG.search(text) is None
    return row.get("times", 1) > 1 and COUNTED.search(text) is not None


def _as_event(kind: str, file: Mapping[str, Any], row: Mapping[str, Any]) -> Event:
    return Event(kind, text=row["text"], path=file["path"], line=row["line"], rank=row["rank"])


def _place(event: Event) -> tuple[float, str, int]:
    return event.time or 0.0, event.path, event.line
