"""What the people of a job wrote between its lines: what they tried, and what came of it."""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule

FAILS = re.compile(
    r"(?:\b(?:does|did|do|is|was)(?: not|n't)|\bnot?) (?:help|work|change|fix|solve|ok\b|difference|effect)"
    r"|\bstill (?:hang|fail|crash|stuck|the same)|\bsame (?:error|result|hang|problem|failure)"
    r"|(?<!no )(?<!without a )(?<!without )\b(?:hangs?\b|fails?\b|crash(?:es)?\b|deadlocks?\b|stuck\b)",
    re.IGNORECASE,
)
WORKS = re.compile(
    r"\b(?:works?|worked|solve[sd]|fixe[sd]|help(?:s|ed)|workaround|no (?:more )?hangs?|without (?:a |any )?hangs?"
    r"|(?:is|are|runs?|goes|ran|passes|trains|was|captures and replays) (?:ok|fine|well|through|gone)|ok)\b",
    re.IGNORECASE,
)
VARIABLE = re.compile(
    r"\b((?:NCCL|TORCH|CUDA|GLOO|VLLM|OMP|UCX|FI)_[A-Z0-9_]{2,50}|num_workers)=([\w^,:./-]{1,60}?)[.,;:]?(?=\s|$)"
)
VERSION = re.compile(
    r"(?:\b(?P<name>[A-Za-z][\w-]{2,30}?)(?:\.so\.|==?|@|:? | version | v)|(?<![\d.\w-]))v?"
    r"(?P<value>\d{1,3}\.\d{1,3}(?:\.\d{1,3})?(?:\.(?:dev|post)\d{1,8}|rc\d)?)"
    r"(?![\d.]*\d|x\b|%| ?(?:GB|s\b|ms\b|min|h\b|it/))"
)
NAMES = {"libnccl": "nccl", "pytorch": "torch", "pytorch-lightning": "lightning"}
FILLERS = frozenset("with and version versions nightly from the use using try tried also under".split())
SENTENCE, CLAUSE = re.compile(r"[.!?]\s"), re.compile(r"[,;]\s|\b(?:but|while|whereas|and)\b")


def _trials(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """What was tried, each with its outcome; a sentence that says both is taken apart at its commas."""
    text = line.body
    if len(text) > 600 or "NCCL INFO" in text or "NCCL WARN" in text:
        return None
    rows = [row for sentence in SENTENCE.split(text) for part in _parts(sentence) for row in _outcomes(part)]
    return {"trials": rows, "message": text.strip()} if rows else None


def _parts(sentence: str) -> list[str]:
    both = FAILS.search(sentence) and WORKS.search(FAILS.sub(" ", sentence))
    return CLAUSE.split(sentence) if both else [sentence]


def _outcomes(part: str) -> list[Data]:
    works = False if FAILS.search(part) else True if WORKS.search(part) else None
    if works is None:
        return []
    tried = [(name, value) for name, value in VARIABLE.findall(part)]
    for found in () if tried else VERSION.finditer(part):
        name = (found["name"] or "").lower()
        tried.append((NAMES.get(name, "" if name in FILLERS else name), found["value"]))
    return [{"name": name, "value": value, "works": works} for name, value in tried]


TRIED = (
    *(" works", "orkaround", "not help", "n't help", "not work", " hangs", " helps", " solved", " solves", "no effect"),
    *("not OK", "without a hang", "no difference", " fixed it", " fixes "),
)
"""Words of people; no library prints them often."""

PLACE = r"(?:at|in|on|during|after) (?:the )?(?:start|init|load|launch|warm|first)\w*"
"""Where a job stands still that has not done anything yet."""


def _hang(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """Prose only: no library begins a sentence so, and what NCCL says is no opinion."""
    return None if len(line.body) > 600 or "NCCL" in line.body or "::" in line.body else data


RULES: tuple[Rule, ...] = (
    # [stuck here, 20 min]      it hangs in the first all_reduce      stuck at startup, no error
    *(
        rule("told.hang", word, rf"^(?P<message>.*\b{word.strip()} (?:here|{PLACE})\b.*)", make=_hang)
        for word in ("stuck ", " hangs ")
    ),
    # NCCL_P2P_DISABLE=1 did not help      it works with nccl 2.19.3, and hangs with 2.18.1     0.9.5 OK, 0.10.0 not OK
    # NCCL_IB_DISABLE=1 is a workaround      NCCL_ALGO=Ring doesn't help      NCCL_ALGO=Ring does not work
    # NCCL_ALGO=Ring helps      NCCL_ALGO=Ring solved it      NCCL_ALGO=Ring solves it      NCCL_ALGO=Ring has no effect
    # libnccl.so.2.19.4: an hour without a hang      NCCL_ALGO=Ring makes no difference      NCCL_ALGO=Ring fixed it
    # NCCL_ALGO=Ring fixes it      num_workers=0 works
    *(rule("told.trial", word, r"[A-Z]{2,5}_[A-Z0-9_]+=|num_workers=|\d\.\d", make=_trials) for word in TRIED),
)
