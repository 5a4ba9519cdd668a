"""What a job says of its own course: long phases in which ranks are apart, their shares, what one rank does alone."""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import NAMED, Data, Line, Rule, rule, whole


def _of_rank(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """Only what a rank says of itself."""
    named = NAMED.search(line.text)
    own = line.rank if line.rank is not None else whole(named[1]) if named else None
    return None if own is None else data | {"_rank": own}


PHASES = (
    # AUTOTUNE mm(4096x4096, 4096x11008)      SingleProcess AUTOTUNE benchmarking takes 4.1 seconds and 0.9 seconds …
    ("compile", "AUTOTUNE", r"\bAUTOTUNE (?:benchmarking|\w+\()"),
    # Entering DeepGEMM JIT Pre-Compile session.       Try DeepGEMM JIT Compiling for …
    ("compile", "JIT Compil", r"JIT Compiling"),
    ("compile", "Pre-Compile", r"JIT Pre-Compile"),
    # torch.compile takes 93.35 s in total       Start compiling function <code object forward …
    ("compile", "torch.compile takes", r"torch\.compile takes"),
    ("compile", "tart compiling", r"Start compiling"),
    # Capturing CUDA graph shapes:  40%|####      | 14/35 [05:02<07:30, 21.5s/it]
    ("compile", "Capturing CUDA graph", r"Capturing CUDA graph"),
    # Building extension module fused_adam...       Emitting ninja build file /root/.cache/torch_extensions/…
    ("compile", "Building extension module", r"Building extension module"),
    ("compile", "Emitting ninja build", r"Emitting ninja build file"),
    # Running tokenizer on dataset (num_proc=8):  41%|####      | 11873/28900 [10:55<15:01, 17.62 examples/s]
    ("data", " examples/s]", r"\| ?\d+(?:/\d+)? \[.* examples/s\]"),
    # > building shuffle index with split [0, 1803422) …      Build and save the GPTDataset train indices
    ("data", " building ", r"> ?building (?:dataset|shuffle|sample|document|indices|doc)"),
    ("data", "Build and save", r"Build and save the \w+ \w+ indices"),
    # Skipping the first 12000 batches       Will skip the first 2 epochs then the first 400 batches in the first epoch.
    ("skip", "the first", r"[Ss]kip(?:ping)? the first \d+ (?:batch|epoch|step|sample)"),
)
ALONE = (
    # rank 5: loss is nan at step 20483, skipping this batch      [rank3]: empty batch, continue
    # [rank2]: batch 7 was skipped      [rank2]: non-finite loss
    ("kipping", r"[Ss]kipping (?:\w+ ){0,2}(?:batch|step|sample|update|iteration|backward)\b"),
    ("skipped", r"\b(?:batch|step|sample|update|backward)\b.{0,20} (?:was )?skipped\b"),
    ("empty batch", r"empty batch"),
    # [rank1] early stopping triggered after epoch 7       [rank2]: data loader exhausted
    ("arly stop", r"[Ee]arly stop(?:ping)?\b(?! (?:monitor|callback|patience))"),
    ("exhausted", r"(?:data|loader|iterator|dataset|shard|stream)\w* (?:is |was )?exhausted"),
    # Rank 0 ran out of data after 812 steps      Rank 0 exiting training loop
    ("ran out of", r"\bran out of (?:data|batches|samples)"),
    ("training loop", r"(?:exit(?:ing|ed)|left|leaving) (?:the )?training loop"),
    # [rank4]: no positive samples in this batch
    ("no positive", r"no positive (?:samples|boxes|anchors|targets|labels)"),
    ("non-finite", r"non-finite (?:loss|grad)"),
)
SHARES = (
    # [rank 1] steps per epoch: 1563       [rank1] len(train_loader)=1250      rank 2: num_batches = 97
    # [rank1] steps_per_epoch: 1250      [rank1] number of batches: 97      [rank1] 97 batches in this shard
    ("steps per epoch", r"steps per epoch[ :=]{1,4}(?P<count>\d+)"),
    ("steps_per_epoch", r"steps_per_epoch[ :=]{1,4}(?P<count>\d+)"),
    ("len(", r"len\(\w*(?:loader|sampler|dataset|_dl|_ds)\)[ :=]{1,4}(?P<count>\d+)"),
    ("num_batches", r"num_batches[ :=]{1,4}(?P<count>\d+)"),
    ("number of batches", r"number of batches[ :=]{1,4}(?P<count>\d+)"),
    (" batches in", r"(?P<count>\d+) batches in "),
    # rank 0: 1251 batches per epoch      [rank3] got 97 batches
    (" batches per epoch", r"(?P<count>\d+) batches per epoch"),
    (" batches", r"\b(?:has|got|gets|sees|finished|processed) (?P<count>\d+) batches\b"),
)

RULES: tuple[Rule, ...] = (
    *(rule("job.phase", anchor, rf"(?P<message>.*{pattern}.*)", what=what) for what, anchor, pattern in PHASES),
    *(rule("job.alone", anchor, rf"(?P<message>.*{pattern}.*)", make=_of_rank) for anchor, pattern in ALONE),
    *(rule("job.share", anchor, pattern, make=_of_rank) for anchor, pattern in SHARES),
)
