"""Texts that are no logs, and lines that quote an error.

Such lines are sentences about it, source code, lists, tables and comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ncclkit.evidence.sources.inputs import PROGRAMS

SPAN = re.compile(r"`[^`\n]{12,400}`|\"[^\"\n]{12,400}\"|(?<!\w)'[^'\n]{12,400}'(?!\w)")
"""What stands in quotation marks."""
WORD = re.compile(r"(?<![\w./-])[A-Za-z][a-z']{0,30}(?![\w/])")
FILLER = re.compile(
    r"\b(?:the|an?|is|are|to|of|in|and|or|it|this|that|when|if|with|you|your|we|our|my|for|on|by"
    r"|was|were|not|which"
    r"|sometimes|usually|often|like|means)\b|\bI\b",
    re.IGNORECASE,
)
"""Words that fill sentences."""
ERROR = re.compile(
    r"(?<![\w.-])[\w.-]{1,255}:\d{1,10}:\d{1,20} \[\d{1,4}\]|\bNCCL\b|\bDuplicate GPU\b"
    r"|(?<![\w.])[A-Za-z_.]{0,80}(?:Error|Exception)\b|\bCUDA\b|\bNVRM\b|\bXid\b"
    r"|\[\s{0,9}\d{1,9}\.\d{6}\]|\[Errno|\bDetected\b|slurmstepd|\bsymbol lookup|\bBootstrap\b"
    r"|\bUnable to\b|\bFailed to\b"
    r"|\bout of memory\b|\bOOMKilled\b|\bKilled process\b|\bNo space left|\bToo many open"
    r"|\bConnection (?:refused|reset|closed|timed)|\bWatchdog\b"
)
"""How what programs say of an error begins."""
RECORD = re.compile(
    r"^\s{0,40}\{\s{0,9}\"(?:(?:message|msg|log|line|text|textPayload|content|body|data)\"\s*:"
    r"|[\w.@-]{1,60}\"\s*: ?(?:\d|\"[^\"]{0,80}\",))"
)
"""A record of JSON that a program logged."""
COMMENT = re.compile(
    r"^\s{0,40}(?:#(?!\d|!| {2,}| +(?:Rank|nThread|Using|Out of|Avg)\b)|//|/\*|\*(?= ))\s{0,40}\S"
)
ITEM = re.compile(r"^\s{0,40}(?:[-*+]|\d{1,3}[.)]) {1,9}(?=[A-Z`\"'*{\[a-z])(?!\[\d)")
ROW = re.compile(r"^\s{0,40}\|[^|]{0,400}\|.*\|\s{0,40}$")
# raise RuntimeError("…")     msg = "…"     'full': "…",     match: "…"     - '…'
# WARN("…", rank);     +    "…",
CODE = re.compile(
    r"^[\s+-]{0,40}(?:(?:raise|return|throw|echo|printf?|assert|if|elif|while|msgid"
    r"|msgstr)\b[^\"'`]{0,80}"
    r"|[\w.:>-]{1,80}\s{0,9}\(\s{0,9}"
    r"|[\w.\"'\[\]-]{1,80}\s{0,9}(?::=|[=:])\s{0,9}[\[({]{0,4}\s{0,9}"
    r"|[\[({]{1,4}\s{0,9}(?:[\"'][\w. -]{1,40}[\"']\s{0,9}:\s{0,9})?[\[({]{0,4}\s{0,9})?[fFrRbu]?"
    r"(?P<mark>[\"'])(?P<inner>.{12,900})(?P=mark)[\s,;)\]}]{0,20}(?:,[^\"']{0,80})?$"
)
PATTERN = re.compile(
    r"[\"']?\b(?:match(?:es)?|patterns?|regexp?|expr|contains"
    r"|search)\b[\"']?\s{0,9}[:=]\s{0,9}[\"'\[]"
)
"""A setting of what a program is to look for."""
FOUND = re.compile(
    r"^[\w./-]{1,200}\.(?:py|md|rst|ya?ml|txt|sh|json|toml|[ch]|cc|cpp|cu|cuh|hpp|go"
    r"|rs)[:-]\d{1,7}[:-].*[\"'`]"
)
"""What grep prints of source code."""
SHELL = re.compile(
    r"^\s{0,40}(?:\$ )?(?:(?:if|while) )?(?:e?grep|rg|awk|sed|echo|journalctl|dmesg)\b[^|]*[\"']"
)
BEGUN = re.compile(
    r"^\s{0,40}(?:\[[\w.-]{1,60}\] )?(?:\[?\d{4}-\d\d-\d\d[T ]|\[?\d\d:\d\d:\d\d|[IWEF]\d{4}"
    r" |\[[IWEF]\d{0,4} "
    r"|\[?\s{0,9}\d{1,9}\.\d{6}\]|\[rank\d|[\w.-]{1,255}:\d{1,10}:\d{1,20} \["
    r"|(?:\w{3} )?[A-Z]\w\w +\d{1,2} \d\d:\d\d:|E {3}|Traceback"
    r"|srun:|slurmst|\[\d\] |terminate called|(?:ERROR|WARNING|INFO|FATAL|CRITICAL)\b[ :]|--"
    r" Process \d)"
    r"|^.* Assertion `"
)
"""How lines of logs begin; what follows may still be a sentence."""
HINT = re.compile(r"(?i)\bif you (?:see|get)\b|\b(?:hint|tip|note):")
"""What a program says of errors that it has not met."""
LABEL = re.compile(r" ?\(\w{1,20}:$")
"""A label in brackets between a sentence and its error: ``the OOM killer (reason: …``."""
FIXTURE = re.compile(r"^\s*\{.*\"(?:expect(?:ed)?|label|example|pattern)\"\s*:")
"""A row of a test that names what a reader is to find in a text."""
# {"role": "user", "content": "…"}     {'instruction': '…', 'output': '…'}
# {"prompt": "…", "chosen": "…"}       {"messages": [{"role": …
SAMPLE = re.compile(
    r"^.{0,200}\{\s{0,9}[\"']"
    r"(?:role[\"']\s{0,9}:\s{0,9}[\"'](?:user|assistant|system|human|gpt|tool)\b"
    r"|(?:messages|conversations?)[\"']\s{0,9}:\s{0,9}\[\s{0,9}\{"
    r"|(?:instruction|prompt|question)[\"']\s{0,9}:.{0,4000}"
    r"[\"'](?:output|response|completion|chosen|answer|solution)[\"']\s{0,9}:)"
)
"""A row of a data set of talks, which a job that trains on it may print."""
LEAD = 2
"""Words of a sentence before an error."""


def is_quotation(text: str) -> bool:
    """Whether a line only speaks of an error, or is source code.

    Such a line holds the error, and is not the error's own report.
    """
    line = text.partition("\n")[0]
    if "Traceback (most" in text:
        return False
    if PATTERN.search(line) and not BEGUN.match(line):
        return ERROR.search(line) is not None
    if FIXTURE.match(line) or SAMPLE.match(line):
        return True
    if RECORD.match(line):
        return False
    if BEGUN.match(line):
        return HINT.search(line) is not None and _is_spoken(line)
    return (
        _is_spoken(line)
        or any(form.match(line) for form in (COMMENT, ITEM, ROW, FOUND, SHELL))
        or _is_code(line)
    )


def _is_code(line: str) -> bool:
    match = CODE.match(line)
    return match is not None and ERROR.search(match["inner"]) is not None


def _is_spoken(line: str) -> bool:
    """Whether a line is a sentence about an error.

    It stands around something in quotation marks, or leads to an error without a colon.
    """
    rest, quoted = SPAN.subn(" ", line)
    errors = [span[0] for span in SPAN.finditer(line) if ERROR.search(span[0])]
    if sum(span.startswith("`") for span in errors) > 1:
        return True
    if quoted and errors:
        outside = ERROR.search(rest)
        if (outside is None or outside.start() > len(rest) / 2) and _is_sentence(rest):
            return True
    begins = ERROR.search(line)
    lead = ""
    if begins:
        lead = line[: begins.start()].rstrip(" `\"'*(")
    lead = LABEL.sub("", lead)
    return bool(lead) and lead[-1].isalpha() and _is_sentence(lead)


def _is_sentence(text: str) -> bool:
    """Whether a text is a sentence.

    It has several plain words, one of them of those that fill sentences.
    """
    if text.count(": "):
        said = text.rpartition(": ")[2]
    else:
        said = text
    return len(WORD.findall(said)) >= LEAD and FILLER.search(said) is not None


DOCUMENTS = frozenset(
    (
        *PROGRAMS,
        *".adoc .bash .bat .cfg .cuh .diff .go .hpp .htm .ini .java .js .patch .rs .sh .tex .ts"
        " .xml".split(),
    )
) - {".pyc", ".so", ".pyz"}
"""Names of documentation, source code and settings, which quote errors."""
LOGGED = re.compile(
    r"(?!#{1,6} [A-Z])(?:(?:\S{1,60} )?\[?(?:\d{4}[-/]\d\d[-/]\d\d[T ,]|\d\d:\d\d:\d\d|[IWEF]\d{4}"
    r" \d\d"
    r"|\[[IWEF] (?:\d{4} )?\S"
    r"|(?:\w{3} )?[A-Z]\w\w +\d{1,2} \d\d:\d\d:|\s*\d+\.\d{6}\]|\(?(?:[Rr]ank|default|trainer)["
    r" :]?\d|\d{1,4}[\]:,]"
    r"|\+{2,6} \S|\+ (?:source|export|module|eval|echo|date|set|cd|srun|mpirun|python\d?|'?\[|\w+=)"
    r"|\S{1,99}:\d+:\d+ \[\d+\]|(?:INFO|WARN(?:ING)?|ERROR|CRITICAL|DEBUG)\b[\s:\]])"
    r"|.{0,200}(?:NCCL (?:INFO|WARN|ATTN)\b|\bit/s\b|\ds/it\b)|Traceback \(most|\s*(?:\S+ )?File"
    r" \"[^\"]+\", line \d"
    r"|srun:|slurmstepd:|(?:[Tt]hread|Current thread) 0x|#\d+ +0x"
    r"|#(?: +Rank +\d| nThread| Using devices| Out of bounds| Avg bus))"
)
"""How lines of logs begin, those of a shell that traces its commands (``set -x``) among them."""
WRITTEN = re.compile(
    r"\s*(?:#{1,6} \S|={1,5} [A-Z].*[^=]$|:[\w-]+:|msg(?:id|str|ctxt)\b|#!|#\s?\w"
    r"|```|~~~|[-*+] +[^\W\d_]|[-*+] +[`\"'*\[]|\d+[.)] [^\W\d_]|> |\|.*\|\s*$|\.\. \w|<!|//"
    r"|</?(?:a|body|code|div|h\d|head|html|li|ol|p|pre|table|td|title|tr|ul)\b"
    r"|/\*|\*/|\*"
    r" |@\w+\b[^:]*$|[-=~^\"]{4,}\s*$|\[\[?[\w.-]+\]{1,2}\s*$|[}\])]+[;,]?\s*$|\"{3}|'{3}|@@"
    r" |[+-]{3} "
    r"|[\w.\[\]]+ ?=[ \"'(]|[+-] {2,}\S|(?:- )?[\w./-]+: *$|- [\w.-]+: \S|(?:fi|done|esac|else)\s*$"
    r"|(?:import|from|def|class|return|raise|assert|if|elif|for|while|with|const|static|export|func"
    r"|let|var"
    r"|namespace|template|struct|package|use|public|private|set|echo|exit|diff|index|Subject:"
    r"|From:)\b)"
    r"|.*(?:[;{]|::)\s*$"
)
"""How lines of documentation and of source code begin or end."""
SENTENCE = re.compile(r"\W{0,6}[A-Za-z][\w'`\"(),;:/.*_=<>-]*(?: +[\w'`\"(),;:/.*_=<>-]+){7,}$")
ADVICE = re.compile(
    r"\byou(?:'ll| will| would| may| might| can| could| probably| then| also| sometimes|"
    r" often){0,3}"
    r" (?:get|see|find|hit|encounter|run into)\b"
)
"""What nobody says of a job of their own."""
COMMON = re.compile(
    r"\b(?:the|an?|is|are|to|of|in|and|or|it|this|that|when|with|you|your|we|for|on|by|be|can|was"
    r"|not)\b",
    re.IGNORECASE,
)
"""Words that fill sentences, and few lines of logs."""


def is_document(path: str, head: str) -> bool:
    """Whether a text is a document rather than a log.

    Documentation, source code and settings are told by their name and their first lines.
    """
    filled = (line[:400] for line in head.splitlines() if line.strip())
    # each line once: a log repeats itself, and would outweigh what stands around it
    lines = list(dict.fromkeys(filled))[:300]
    first = lines[:40]
    # before the name is asked: whatever it is called, a file that begins as a log is one
    if 3 * _count_logged(first) > len(first):
        return False
    if Path(path).suffix.lower() in DOCUMENTS:
        return True
    logged = _count_logged(lines)
    written = 0
    for line in lines:
        if not LOGGED.match(line) and _is_written(line):
            written += 1
    is_hardly_logged = 3 * logged <= len(lines)
    if is_hardly_logged and any(map(_is_advice, lines)):
        return True
    # fewer lines have no form that could be told
    return len(lines) > 6 and 2 * written >= len(lines) and 5 * logged <= len(lines)


def _count_logged(lines: Iterable[str]) -> int:
    return sum(LOGGED.match(line) is not None for line in lines)


def _is_advice(line: str) -> bool:
    return SENTENCE.match(line) is not None and ADVICE.search(line) is not None


def _is_written(line: str) -> bool:
    sentence = SENTENCE.match(line) is not None and 5 * len(COMMON.findall(line)) >= len(
        line.split()
    )
    return sentence or WRITTEN.match(line) is not None
