"""A rank that reads its data again, only to come back to where its checkpoint was."""

from __future__ import annotations

import re

from ncclkit.analysis.frames import Frame, framework, place, stacks
from ncclkit.analysis.picks import name_ranks
from ncclkit.core.case import Case
from ncclkit.core.model import Advice
from ncclkit.core.text import start

REPLAYS = re.compile(r"skip_?(?:first_)?(?:batch|sample|step|data|iter)|replay|fast_?forward|^_*resume", re.IGNORECASE)
"""Names that programs give to reading data only to throw it away."""
LOADERS = {
    "lightning": (
        "from torchdata.stateful_dataloader import StatefulDataLoader\n"
        "trainer.fit(model, StatefulDataLoader(dataset, ...), ckpt_path=...)  # the Trainer keeps its state\n"
        'fabric.save(path, {"model": model, "loaders": states})  # Fabric: gather loader.state_dict() of every rank'
    ),
    "accelerate": "Accelerator(dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))",
    "transformers": 'TrainingArguments(..., accelerator_config={"use_stateful_dataloader": True})',
    "": (
        "from torchdata.stateful_dataloader import StatefulDataLoader\n"
        "loader = StatefulDataLoader(dataset, ...)\n"
        'checkpoint["loaders"][rank] = loader.state_dict()  # to resume: loader.load_state_dict(...)'
    ),
}
"""How each framework keeps where the loaders stood; the empty name is plain PyTorch."""


def keep_position(case: Case, ranks: tuple[int, ...]) -> tuple[Advice, ...]:
    """What helps where the stack of one of these ranks stands in a replay of its data; nothing where none does."""
    seen = (frame for rank, stack in stacks(case).items() if rank in ranks for frame in stack.data["frames"])
    frame = next((frame for frame in seen if _replays(frame)), None)
    if frame is None:
        return ()
    return (
        Advice(
            "Keep where every rank's loader stands in the checkpoint, so that no rank reads its data again to resume.",
            code=LOADERS.get(framework(case), LOADERS[""]),
            why=f"{start(name_ranks(ranks))} stood in {place(frame)}, which takes as long as its storage lets it.",
            check="The time to the first step after a resume no longer grows with the step it resumes from.",
            risk="The state fits only as many ranks and workers as it was made with; a dataset that streams must have "
            "a state_dict of its own, or torchdata replays it, too.",
        ),
    )


def _replays(frame: Frame) -> bool:
    return bool(REPLAYS.search(str(frame.get("func") or ""))) and "/torch/" not in str(frame.get("file"))
