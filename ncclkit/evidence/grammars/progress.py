"""What a job says of its own course.

It is progress bars and counters, long phases, shares, and what one rank does alone.  Of the
counters only the last one of each rank and file counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ncclkit.agent.digits import whole_number
from ncclkit.core.model import Event
from ncclkit.evidence.grammars.grammar import NAMED, Data, Line, Rule, parse_int, rule

ANCHORS = (
    b"%|",
    b"it/s",
    b"s/it",
    b"step",
    b"Step",
    b"iter",
    b"finish",
    b"layer ",
    b"shard ",
    b"chunk ",
    b"file ",
    b"samples_count",
    b"epoch_num",
)
LOOK = 8 << 10
"""Bytes at the end of a block in which progress is looked for.

Progress is frequent, and only its end matters.
"""
REACH = 256 << 10
"""Bytes of the largest step farther back, where speakers were found."""
UNNAMED = 8
"""Lines without a label that are looked at there."""
WIDE = 2048
"""Bytes at the end of a longer line in which it is looked for."""

BAR = re.compile(
    r"(?P<step>\d{1,15})/(?P<total>\d{1,15}|\?) \[(?P<elapsed>[\d:]{1,20})"
    r"<(?P<left>[\d:?]{1,20}), {1,9}(?P<rate>[\d.?]{1,20} ?\w{1,20}/\w{1,20})"
)
COUNTER = re.compile(
    r"\b(?:global_?step|[Ss]tep|iter(?:ation)?|finish|(?:layer|shard|chunk|file)(?= \d{1,15}/\d)"
    r"|samples_count|(?:first_)?epoch_num)\b"
    r"[\"']?[\s:=\[]{1,12}(?P<step>\d{1,15})(?:/ {0,8}(?P<total>\d{1,15}))?"
    r"(?![\d.(])"
)
LABEL = re.compile(
    rb"\s*(?:\[[A-Za-z_]+\d+(?:\|\d+)?\]:|\[\d+,\d+\]<|\(\w+ (?:rank=\d+"
    rb" )?pid=\d+[^)]{0,60}\)|\d{1,5}: )"
)
STARTS = frozenset(bytes([byte]) for byte in b" \t[(0123456789")
RANK = re.compile(rb"\[rank\d+\]")
"""What tells the speakers of one file apart."""


def read_progress(line: Line) -> Iterator[Event]:
    """The last bar or counter of a line."""
    match = _last_counter(line.text)
    if match:
        total = match["total"]
        data = {
            "step": int(match["step"]),
            "total": whole_number(total) if total else None,
            "rate": match.groupdict().get("rate"),
        }
        yield line.event("progress", data)


def _last_counter(text: str) -> re.Match[str] | None:
    bars = []
    if "<" in text:
        bars = list(BAR.finditer(text))
    if bars:
        return bars[-1]
    return COUNTER.search(text)


@dataclass(slots=True)
class ProgressLine:
    """A line that shows its speaker's progress."""

    step: int
    raw: bytes
    back: int
    """Line ends between it and the end of what was searched."""


LastLines = dict[tuple[bytes, ...], ProgressLine]


def latest(
    data: bytes, limit: int, *, many_speakers: bool, at_end_of_file: bool, search_further_back: bool
) -> LastLines:
    """The last line of each speaker that shows its progress.

    It is looked for in the last `LOOK` bytes before `limit`.  `many_speakers`: many may speak
    without a label; `at_end_of_file`: it is searched farther back until no more speakers are found;
    `search_further_back`: it is also searched farther back where there is nothing.
    """
    found: LastLines = {}
    high, size, ends = limit, LOOK, 0
    while high > 0:
        low = max(0, high - size)
        low = low and (data.find(b"\n", low, high) + 1 or low)
        known = len(found)
        ends = _collect_speakers(data[low:high], ends, found, many_speakers)
        if found and not (at_end_of_file and len(found) > known and size < REACH):
            break
        if not found and not search_further_back:
            break
        high = low
        size = size * 4
    return found


def _collect_speakers(text: bytes, ends: int, found: LastLines, shared: bool) -> int:
    """Add the speakers of these lines, the last first.

    Of unnamed ones that share a file the furthest counts.  `ends` line ends follow this text;
    returned are those that follow its first line.
    """
    tries, at = UNNAMED, ends
    for at, line in enumerate(reversed(text.split(b"\n")), ends):
        for raw in reversed(line.split(b"\r")) if b"\r" in line else (line,):
            who = _speaker_of_line(raw)
            again = who in found
            if again and (who or not shared or not tries):
                continue
            for anchor in ANCHORS:
                if anchor in raw:
                    tries -= not who
                    match = _last_counter(raw[-WIDE:].decode("utf-8", "replace"))
                    if match:
                        step = int(match["step"])
                        if not again or step > found[who].step:
                            found[who] = ProgressLine(step, raw[-WIDE:], at)
                    break
    return at


def _speaker_of_line(raw: bytes) -> tuple[bytes, ...]:
    label = None
    if raw[:1] in STARTS:
        label = LABEL.match(raw)
    rank = None
    if b"[rank" in raw:
        rank = RANK.search(raw)
    return tuple([match[0] for match in (label, rank) if match])


def _of_rank(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """What a rank says, kept only where it says it of itself."""
    named = NAMED.search(line.text)
    own = line.rank if line.rank is not None else parse_int(named[1]) if named else None
    if own is None:
        return None
    return data | {"_rank": own}


PHASES = (
    # AUTOTUNE mm(4096x4096, 4096x11008)
    # SingleProcess AUTOTUNE benchmarking takes 4.1 seconds and 0.9 seconds …
    ("compile", "AUTOTUNE", r"\bAUTOTUNE (?:benchmarking|\w{1,60}\()"),
    # Entering DeepGEMM JIT Pre-Compile session.       Try DeepGEMM JIT Compiling for …
    ("compile", "JIT Compil", r"JIT Compiling"),
    ("compile", "Pre-Compile", r"JIT Pre-Compile"),
    # torch.compile takes 93.35 s in total       Start compiling function <code object forward …
    ("compile", "torch.compile takes", r"torch\.compile takes"),
    ("compile", "tart compiling", r"Start compiling"),
    # Capturing CUDA graph shapes:  40%|####      | 14/35 [05:02<07:30, 21.5s/it]
    ("compile", "Capturing CUDA graph", r"Capturing CUDA graph"),
    # Building extension module fused_adam...
    # Emitting ninja build file /root/.cache/torch_extensions/…
    ("compile", "Building extension module", r"Building extension module"),
    ("compile", "Emitting ninja build", r"Emitting ninja build file"),
    # Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, …
    # Uvicorn running on http://0.0.0.0:8000 (Press …)
    # The server is fired up and ready to roll!      server is idle, waiting for requests
    ("idle", "Running: 0 reqs", r"Running: 0 reqs"),
    ("idle", "vicorn running on", r"Uvicorn running on"),
    ("idle", "fired up and ready", r"server is fired up and ready"),
    ("idle", "waiting for requests", r"waiting for requests\b"),
    # Running tokenizer on dataset (num_proc=8):  41%|####
    # | 11873/28900 [10:55<15:01, 17.62 examples/s]
    ("data", " examples/s]", r"\| ?\d{1,15}(?:/\d{1,15})? \[.{0,100} examples/s\]"),
    # > building shuffle index with split [0, 1803422) …
    # Build and save the GPTDataset train indices
    ("data", " building ", r"(?:^|> ?)building (?:dataset|shuffle|sample|document|indices|doc)"),
    ("data", "Build and save", r"Build and save the \w{1,60} \w{1,60} indices"),
    # Skipping the first 12000 batches
    # Will skip the first 2 epochs then the first 400 batches in the first epoch.
    ("skip", "the first", r"[Ss]kip(?:ping)? the first \d{1,15} (?:batch|epoch|step|sample)"),
)
ALONE = (
    # rank 5: loss is nan at step 20483, skipping this batch      [rank3]: empty batch, continue
    # [rank2]: batch 7 was skipped      [rank2]: non-finite loss
    (
        "kipping",
        r"[Ss]kipping (?:\w{1,30} ){0,2}"
        r"(?:batch|step|sample|update|iteration|backward|barrier|gather|collective|sync\w{0,10}"
        r"|eval\w{0,8}|validation)\b",
    ),
    ("skipped", r"\b(?:batch|step|sample|update|backward)\b.{0,20} (?:was )?skipped\b"),
    ("empty batch", r"empty batch"),
    # [rank1] early stopping triggered after epoch 7       [rank2]: data loader exhausted
    ("arly stop", r"[Ee]arly stop(?:ping)?\b(?! (?:monitor|callback|patience))"),
    ("exhausted", r"(?:data|loader|iterator|dataset|shard|stream)\w{0,30} (?:is |was )?exhausted"),
    # Rank 0 ran out of data after 812 steps      Rank 0 exiting training loop
    ("ran out of", r"\bran out of (?:data|batches|samples)"),
    ("training loop", r"(?:exit(?:ing|ed)|left|leaving) (?:the )?training loop"),
    # [rank2]: wall-clock budget used up, leaving the loop
    # [rank1]: StopIteration caught, breaking out of loop
    (
        "loop",
        (
            r"(?:leaving|exiting|breaking out of|broke out of) (?:the |this )?(?:main |train |epoch"
            r" )?loop\b"
        ),
    ),
    # [rank2]: time budget exceeded, stopping
    # [rank2]: time-limit of this rank reached, stopping
    ("imit of ", r"time.limit of (?:this|the|my) (?:rank|process) (?:was )?(?:reached|exceeded)"),
    ("udget", r"(?:[Tt]ime|[Ww]all-?clock) budget (?:is |was )?(?:reached|exceeded|used up|spent)"),
    # [rank1]: returning early: no valid tokens       [rank1]: nothing to do on this rank, return
    ("eturning early", r"[Rr]eturning early\b"),
    (
        "othing to do",
        r"[Nn]othing to (?:do|reduce|save|send) (?:on|for) (?:this|my|the) (?:rank|process)",
    ),
    # [rank2]: text-only batch, vision tower not called       [rank2]: no images in this batch
    ("-only batch", r"(?:text|image|audio|video)-only batch"),
    ("in this batch", r"\b[Nn]o (?:\w{1,20} ){0,2}\w{1,20} in this batch"),
    # [rank2]: cache hit for shard 7, nothing to preprocess
    ("ache hit", r"[Cc]ache hit\b.{0,80}\b(?:skip|nothing|return|not )"),
    # [rank4]: no positive samples in this batch
    ("no positive", r"no positive (?:samples|boxes|anchors|targets|labels)"),
    ("non-finite", r"non-finite (?:loss|grad)"),
)
SHARES = (
    # [rank 1] steps per epoch: 1563       [rank1] len(train_loader)=1250
    # rank 2: num_batches = 97
    # [rank1] steps_per_epoch: 1250      [rank1] number of batches: 97
    # [rank1] 97 batches in this shard
    ("steps per epoch", r"steps per epoch[ :=]{1,4}(?P<count>\d+)"),
    ("steps_per_epoch", r"steps_per_epoch[ :=]{1,4}(?P<count>\d+)"),
    ("len(", r"len\(\w*(?:loader|sampler|dataset|_dl|_ds)\)[ :=]{1,4}(?P<count>\d+)"),
    ("num_batches", r"num_batches[ :=]{1,4}(?P<count>\d+)"),
    ("number of batches", r"number of batches[ :=]{1,4}(?P<count>\d+)"),
    (" batches in", r"\b(?P<count>\d{1,18}) batches in "),
    # rank 0: 1251 batches per epoch      [rank3] got 97 batches
    (" batches per epoch", r"\b(?P<count>\d{1,18}) batches per epoch"),
    (" batches", r"\b(?:has|got|gets|sees|finished|processed) (?P<count>\d+) batches\b"),
)
MEMBERS = (
    # Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/8
    # initializing ddp: GLOBAL_RANK: 0, MEMBER: 1/2
    ("GLOBAL_RANK: ", r"GLOBAL_RANK: (?P<number>\d{1,7}), MEMBER: \d{1,7}/(?P<world>\d{1,7})"),
    # | distributed init (rank 3): env://       distributed init (rank 8): tcp://10.0.0.1:9218
    ("distributed init (rank", r"distributed init \(rank (?P<number>\d{1,7})\)"),
    # Setting up process group for: env:// [rank=0, world_size=4]
    ("world_size=", r"[\[(]rank=(?P<number>\d{1,7}), world_size=(?P<world>\d{1,7})[\])]"),
    # Process rank: 0, device: cuda:0, n_gpu: 1, distributed training: True       Process index: 3
    ("Process rank: ", r"\bProcess rank: (?P<number>\d{1,7}), device: "),
    ("Process index: ", r"^\s*Process index: (?P<number>\d{1,7})\s*$"),
    # Num processes: 8
    ("Num processes: ", r"^\s*Num processes: (?P<world>\d{1,7})\s*$"),
    # Hello from rank 0 of 4 on node-1
    # Hello world from processor node-1, rank 0 out of 4 processors
    (
        "ello from rank ",
        r"\b[Hh]ello from rank (?P<number>\d{1,7}) ?(?:of|out of|/) ?(?P<world>\d{1,7})\b",
    ),
    (" out of ", r"\b[Hh]ello world .{0,80}\brank (?P<number>\d{1,7}) out of (?P<world>\d{1,7})\b"),
    # #  Rank  0 Group  0 Pid  3308 on  node-1 device  0 [0x07] NVIDIA A100-SXM4-40GB
    (
        " Pid ",
        (
            r"^# {1,9}Rank {1,9}(?P<number>\d{1,7}) (?:Group {1,9}\d{1,7} )?Pid"
            r" {1,9}(?P<_pid>\d{1,9}) on "
        ),
    ),
)

RULES: tuple[Rule, ...] = (
    *(rule("job.member", anchor, pattern) for anchor, pattern in MEMBERS),
    *(
        rule("job.phase", anchor, rf"^(?P<message>.*{pattern}.*)", what=what)
        for what, anchor, pattern in PHASES
    ),
    *(
        rule("job.alone", anchor, rf"^(?P<message>.*{pattern}.*)", make=_of_rank)
        for anchor, pattern in ALONE
    ),
    *(rule("job.share", anchor, pattern, make=_of_rank) for anchor, pattern in SHARES),
)
