"""Advice for a resume whose loaders read their data again.

It is to keep where each of them stood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ncclkit.analysis.frames import Frame, framework, place, stacks
from ncclkit.analysis.outcome import unread_lines
from ncclkit.analysis.picks import who_are
from ncclkit.analysis.rank_states import EARLY, sequence_of
from ncclkit.core.case import Case
from ncclkit.core.model import Advice, Event

REPLAYS = re.compile(
    r"skip_?(?:first_)?(?:batch|sample|step|data|iter)|replay|fast_?forward|^_*resume",
    re.IGNORECASE,
)
"""Names that programs give to reading data only to throw it away."""
SAYS_RESUME = (
    # Continuing training from checkpoint, will skip to saved global_step
    ("transformers", r"\bwill skip to (?:the )?saved global_step\b"),
    # Will skip the first 2 epochs then the first 400 batches in the first epoch.
    ("transformers", r"\bwill skip the first \d{1,12} epochs? then\b"),
    # Restored all states from the checkpoint at lightning_logs/version_3/checkpoints/epoch=2.ckpt
    ("lightning", r"\brestor(?:ed|ing) (?:all )?states from the checkpoint\b"),
    # resume iter 890000      Resuming at iteration 400      resume from step: 1200
    ("", r"\bresum(?:e|ed|ing)\b.{0,20}\b(?:iter|step|epoch|batch)\w{0,10}[ =:]{1,3}[1-9]"),
    # Resuming from checkpoint iter-890000-ckpt.pth      Resuming training from out/last.pth
    ("", r"\bresum(?:ed|ing) (?:\w{1,12} ){0,2}from\b"),
    # skipping batches      Skipping the first 12000 batches      skip 400 samples
    ("", r"\bskip(?:ping)? (?:(?:the )?first )?(?:\d{1,12} )?(?:batches|samples)\b"),
    # fast-forwarding the dataloader to batch 5000
    ("", r"\bfast.?forward(?:ing|ed)? (?:\w{1,12} )?(?:data|loader|batch|to)"),
)
"""How logs say that a job goes on from a checkpoint, and whose words they are; "" is anybody's."""
NOTHING_RESUMED = re.compile(r"\b(?:None|null|False|no checkpoint)\b|\bfailed\b", re.IGNORECASE)
NAMES = re.compile(r"\b(?P<name>lightning|accelerate|transformers)(?:_logs)?\b", re.IGNORECASE)
"""A framework that a line names."""
LOADERS = {
    "lightning": (
        "from torchdata.stateful_dataloader import StatefulDataLoader\n"
        "loader = StatefulDataLoader(dataset, ...)\n"
        "trainer.fit(model, loader, ckpt_path=...)  # the Trainer keeps its state\n"
        "# a LightningDataModule keeps more in its own state_dict() and load_state_dict()\n"
        "# Fabric: gather loader.state_dict() of every rank\n"
        'fabric.save(path, {"model": model, "loaders": states})'
    ),
    "accelerate": (
        "config = DataLoaderConfiguration(use_stateful_dataloader=True)\n"
        "Accelerator(dataloader_config=config)"
    ),
    "transformers": (
        'TrainingArguments(..., accelerator_config={"use_stateful_dataloader": True})\n'
        "# or ignore_data_skip=True: it skips nothing, and begins the data anew"
    ),
    "": (
        "from torchdata.stateful_dataloader import StatefulDataLoader\n"
        "loader = StatefulDataLoader(dataset, ...)\n"
        'checkpoint["loaders"][rank] = loader.state_dict()\n'
        'loader.load_state_dict(checkpoint["loaders"][rank])  # to resume'
    ),
}
"""How each framework keeps where the loaders stood; the empty name is plain PyTorch."""
SHOWN = 80
"""Characters of a line that are quoted."""


def keep_position(case: Case, ranks: tuple[int, ...]) -> tuple[Advice, ...]:
    """What helps where ranks replay their data, or only a resume is known.

    It is nothing where their stacks show other work, or where the timeout came long after the
    start.
    """
    frame = _replaying_frame(case, ranks)
    if frame is not None:
        who = who_are(ranks)
        seen = f"{who} stood in {place(frame)}, which takes as long as its storage lets it."
        return (advice_for_loader(framework(case), seen),)
    line = resume_line(case)
    # a stack that shows other work speaks against a replay
    if line is None or stacks(case).keys() & set(ranks):
        return ()
    quoted = " ".join(line.text.split())[:SHOWN]
    seen = (
        f'The log says "{quoted}": a loader that skips batches up to there reads them all again, '
        "on each rank as long as its storage lets it."
    )
    return (advice_for_loader(_named_framework(case, line), seen),)


def resume_line(case: Case) -> Event | None:
    """The line by which a job resumed, where a timeout came soon.

    It is None for a fresh start.
    """
    waits = case.of("c10d.timeout", "gloo.timeout")
    told = [sequence_of(wait) for wait in waits]
    numbers = [number for number in told if number is not None]
    if not waits or min(numbers, default=0) > EARLY:
        return None
    return next((line for line in _plain_lines(case) if _whose_resume(line.text) is not None), None)


def advice_for_loader(name: str, why: str) -> Advice:
    """How a framework keeps where its loaders stood; the empty name is plain PyTorch."""
    return Advice(
        "Do not skip batches when resuming: keep each rank's place in its data in the checkpoint, "
        "so that no rank reads its data again.",
        code=LOADERS.get(name, LOADERS[""]),
        why=why,
        check=(
            "The time to the first step after a resume no longer grows with the step "
            "it resumes from."
        ),
        risk=(
            "The state fits only as many ranks and workers as it was made with; a dataset that "
            "streams must have a state_dict of its own, or torchdata replays it, too."
        ),
    )


def _replaying_frame(case: Case, ranks: tuple[int, ...]) -> Frame | None:
    """The frame of one of these ranks that reads data only to throw it away."""
    late = set(ranks)
    for rank, stack in stacks(case).items():
        if rank not in late:
            continue
        frames: Sequence[Frame] = stack.data.frames
        for frame in frames:
            if _replays_data(frame):
                return frame
    return None


def _replays_data(frame: Frame) -> bool:
    named = REPLAYS.search(str(frame.get("func") or ""))
    return bool(named) and "/torch/" not in str(frame.get("file"))


def _plain_lines(case: Case) -> Iterator[Event]:
    """Lines of progress and of the start, and those that no grammar knows."""
    yield from case.of("progress", "job.phase")
    yield from unread_lines(case, "quiet")
    yield from unread_lines(case)


def _whose_resume(text: str) -> str | None:
    """Whose words of a resume these are, "" for anybody's; None where they are none."""
    if NOTHING_RESUMED.search(text):
        return None
    for name, words in SAYS_RESUME:
        if re.search(words, text, re.IGNORECASE):
            return name
    return None


def _named_framework(case: Case, line: Event) -> str:
    """The framework of a stack, or that a line names.

    The line is one of the resume, or any; "" where there is none.
    """
    name = framework(case) or _whose_resume(line.text)
    if name:
        return name
    for other in _plain_lines(case):
        found = NAMES.search(other.text)
        if found:
            return found["name"].lower()
    return ""
