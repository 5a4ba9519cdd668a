"""A log as its programs wrote it, from one that was quoted or wrapped.

It may also have been coloured or logged once more.  This only changes what a grammar could not read
otherwise, never NCCL's own envelope, a rank's mark or the prefix of a launcher that is known
(`prefix`).  Lines keep their numbers wherever one line stays one line.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from itertools import pairwise

from ncclkit.evidence.scanner.prefix import LAUNCHER, STAMP, TASK

MOST = 8 << 20
"""Bytes of the largest text that is normalised; nobody pastes more."""
SHARE = 0.9
"""Of the lines that are not blank: how many must begin alike."""
SEEDS, LOOKED, LONG = 6, 400, 160
"""Lines from which a shared prefix is guessed, lines on which it is tried, and its longest
length."""

ODD = re.compile(
    r"[\xa0\u2007\u202f\u200b\u200c\u200d\u2060\ufeff\u2018\u2019\u201c\u201d\x1b]|&(?:lt|gt|quot"
    r"|amp|nbsp|#\d+|#x[0-9A-Fa-f]+);"
)
PLAIN = str.maketrans(
    {
        **dict.fromkeys("\xa0\u2007\u202f", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", None),
    }
    | {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'}
)
ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[_\]][^\x07\x1b\n]{0,400}(?:\x07|\x1b\\)|[@-Z\\-_])"
)
TAGS = re.compile(
    r"</?(?:br|pre|code|html|body|p|div|span|summary|details|blockquote|li|ul)\b[^<>\n]{0,200}>",
    re.IGNORECASE,
)
FIELD = re.compile(r"^[\s{]{0,99}\"[\w. -]{1,99}\":\s?\"|\"[,}\s]{0,9}$")
"""What stands before and after the value of a field of JSON."""
QUOTE = re.compile(r"(?m)^(?:> ?)+(?!>)")
MESSAGES = ("message", "msg", "log", "line", "text", "textPayload", "content", "body", "data")
"""Keys under which records of JSON hold the line itself."""
ENVELOPE = re.compile(
    r"^[IWEF]\d{4} |[\w.-]{1,255}:\d+:\d+ ?\[|\[rank|NCCL|\[[IWEF]\d{3,4} |\bpid="
    r"|(?i:\b(?:rank|epoch|step|iter|iteration|loss)\b)"
    r"|Traceback|File \"|\[\d+,\d+\]<|[\w.-]{1,255}:\d+ \[\d"
)
"""What belongs to a line itself; a shared prefix ends before it."""
EDGE = re.compile(r".*(?:[:|>\])\t-] ?|[*] )", re.DOTALL)
HOST = re.compile(r"\[?([A-Za-z][\w.-]{0,200}?\d[\w.-]{0,50})(?:\]|:| {1,20}\|) ")
RECORD = re.compile(
    r"[\w.-]{1,255}:\d+:\d+ |\[[\w|:.-]{1,80}\](?![\w(])|\[[IWEF]\d{0,4} |[IWEF]\d{4}"
    r" |\[?\d{4}-\d\d-\d\d"
    r"|Traceback|\s*File \"|srun:|slurmst"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:|[\w.]{0,80}(?:Error|Exception|Interrupt)\b|terminate"
    r" called|Watchdog"
)
"""How the lines begin that a grammar knows."""
COUNTER = re.compile(
    r"(?i:step|epoch|iter|batch|train|eval|val|loss|warn|error|info)(?![A-Z][a-z])"
)
NUMBER = re.compile(r"\d+")
SAID = re.compile(r"(?<!\S)[a-z]{2,}(?!\S)")
"""A word of a sentence, which a prefix has not."""
NUMBERED = re.compile(r"\[(\d{1,5})\] ")
WIDTHS = (72, 76, 78, 79, 80, 100, 120, 132, 160, 200)
"""Columns at which terminals and editors break lines."""
COMMON = (80, 100, 120)
NEAR = 0.85
"""Share of a width from which on a line is about as long as that.

Where lines were cut at a width, no more of them may be nearly as long than were cut.
"""
RULED = re.compile(r"\s*[|+=*#~_-]|.*?\S {3,}\S.*? {3,}")
"""How lines of tables and frames begin: with a rule, or with columns."""
START = re.compile(
    r"\s|\[(?!\d{1,3}\]\w)|[(<#$|>*{}=+~^`-]|Traceback|File \"|[\w.-]+:\d+:\d+ |\d{4}-|\d\d:\d\d"
    r"|[\w.]*(?:Error|Exception)\b|NCCL\b|INFO\b|WARN|ERROR\b|(?i:step|epoch|iter)|ncc?l\w+Error"
    r"|srun:|slurmstepd:|\w+: "
)
"""How a line begins that goes on with no line before it."""


def plain_text(data: bytes) -> bytes:
    """The text without what others put around it.

    They are the very same bytes where there is nothing of that kind.
    """
    given = data.decode("utf-8", "replace")
    plain = whole = given.replace("\r\n", "\n")
    for step in (
        _plain_characters,
        _lines_of_records,
        _lines_of_escapes,
        _without_quotes,
        _without_prefixes,
        _unwrapped_text,
    ):
        plain = step(plain)
    if plain == whole:
        return data
    return plain.encode("utf-8", "replace")


def _plain_characters(text: str) -> str:
    """Blanks, quotes and colours as programs write them; HTML as text."""
    if "<?xml" in text[:100] or (not ODD.search(text) and "<br" not in text and "<pre" not in text):
        return text
    if "\x1b" in text:
        plain = ESCAPES.sub("", text)
    else:
        plain = text
    if re.search(r"&(?:lt|gt|quot|amp|nbsp|#\d+|#x[0-9A-Fa-f]+);|<br|<pre", plain):
        plain = html.unescape(TAGS.sub("", plain))
    return plain.translate(PLAIN)


def _lines_of_escapes(text: str) -> str:
    r"""The lines of a text that has ``\n`` for its line ends, as a field of JSON has."""
    count = text.count("\\n")
    if count < 3 or count < 2 * text.count("\n"):
        return text
    text = FIELD.sub("", text.strip()).strip('"')
    return text.replace('\\"', '"').replace("\\t", "\t").replace("\\r", "").replace("\\n", "\n")


def _lines_of_records(text: str) -> str:
    """The lines that records of JSON hold, one a line."""
    lines = text.split("\n")
    filled = [line for line in lines if line.strip()]
    if (
        not filled
        or '"ncclkit"' in filled[0]
        or sum(line.lstrip()[:1] == "{" for line in filled) < SHARE * len(filled)
    ):
        return text
    said = [_message_of_record(line) for line in lines]
    found = sum(message is not None for message in said)
    if found < SHARE * len(filled):
        return text
    return "\n".join(
        line if message is None else message for line, message in zip(lines, said, strict=True)
    )


def _message_of_record(line: str) -> str | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = (row.get(key) for key in MESSAGES) if isinstance(row, dict) else ()
    return next((text.rstrip("\n") for text in found if isinstance(text, str)), None)


def _without_quotes(text: str) -> str:
    """The text without the mark of quoted lines in a mail or in Markdown."""
    marked = len(QUOTE.findall(text))
    if marked >= 3 and marked > 0.2 * text.count("\n"):
        return QUOTE.sub("", text)
    return text


def _without_prefixes(text: str) -> str:
    """The text without what nine of ten lines begin with, repeatedly."""
    for _ in range(3):
        lines = text.split("\n")
        filled = [line for line in lines[: 4 * LOOKED] if line.strip()][:LOOKED]
        pattern = None
        if len(filled) >= 4:
            pattern = _shared_prefix(filled)
        if pattern is None:
            return text
        text = "\n".join(_line_without(line, pattern) for line in lines)
    return text


def _line_without(line: str, pattern: re.Pattern[str]) -> str:
    match = pattern.match(line)
    if not match:
        return line
    rest = line[match.end() :]
    rank = NUMBERED.fullmatch(match[0])
    if rank:
        return f"[1,{rank[1]}]<stdout>:{rest}"
    host = HOST.fullmatch(match[0])
    if host:
        return f"[pod/{host[1]}/log] {rest}"
    stamp = STAMP.search(match[0])
    if stamp and not STAMP.match(rest):
        return f"{stamp[0].strip('[], ')} {rest}"
    return rest


def _shared_prefix(lines: list[str]) -> re.Pattern[str] | None:
    """What nine of ten lines begin with, whatever the numbers in it.

    It is None where that belongs to the lines.
    """
    for seed in lines[:SEEDS]:
        own = ENVELOPE.search(seed)
        head = seed[: min(own.start() if own else LONG, LONG)]
        if LAUNCHER.match(seed) or TASK.match(seed) or not head or STAMP.fullmatch(head):
            continue
        while (edge := EDGE.match(head)) or head[:1] == " ":
            if edge:
                head = edge[0]
            else:
                head = head[: len(head) - len(head.lstrip())]
            pattern = _pattern_of_prefix(head)
            if head.strip() and not SAID.search(head) and _fits_lines(pattern, lines):
                return pattern
            if head.strip():
                head = head.rstrip()[:-1]
            else:
                head = ""
    return None


def _pattern_of_prefix(head: str) -> re.Pattern[str]:
    """A prefix with any numbers in it, and columns of any width.

    Blanks at its end may belong to what follows.
    """
    inner = head.rstrip(" ")
    pattern = re.sub(r"(?:\\ )+", " +", re.sub(r"\d+", r"\\d+", re.escape(inner)))
    return re.compile(pattern + re.escape(head[len(inner) :]))


def _fits_lines(pattern: re.Pattern[str], lines: list[str]) -> bool:
    """True where nine of ten lines have the prefix.

    Some of them must begin, without it, as lines of known programs do.
    """
    matches = [match for line in lines if (match := pattern.match(line))]
    if len(matches) < SHARE * len(lines) or all(STAMP.fullmatch(match[0]) for match in matches):
        return False
    return any(RECORD.match(match.string, match.end()) for match in matches)


def _unwrapped_text(text: str) -> str:
    """The text with lines whole again that were wrapped at a width.

    Blank lines take the place of their other parts.
    """
    lines = text.split("\n")
    width = max(map(len, lines))
    if width > WIDTHS[-1] or width < WIDTHS[0]:
        return text

    def cut(line: str, later: str) -> bool:
        return (
            len(line) == width
            and not (RECORD.match(later) or COUNTER.match(later) or later.startswith("```"))
            and _head_of_line(later) != _head_of_line(line)
        )

    column = min(column for column in WIDTHS if column >= width)

    def wrapped(line: str, later: str) -> bool:
        word = later.partition(" ")[0]
        return (
            len(line) + 1 + len(word) > column
            and len(line) > 0.6 * column
            and not START.match(later)
        )

    table = {NUMBER.sub("0", line) for line in lines if len(line) == width}
    hard = sum(cut(*pair) for pair in pairwise(lines))
    soft = sum(wrapped(*pair) for pair in pairwise(lines) if len(pair[0]) < width)
    if soft >= max(hard, 2) and width > 0.93 * column:
        whole = sum(
            len(line) > NEAR * column and not wrapped(line, later)
            for line, later in pairwise(lines)
        )
        return _joined_lines(lines, wrapped, " ", any_line=soft > 2 * whole)
    # of a single line as long as a terminal is wide, only the commonest widths say it was cut there
    firm = hard >= (1 if width in COMMON else 2 if width in WIDTHS else 4) and (
        hard == 1 or len(table) > 1
    )
    near = sum(NEAR * width < len(line) < width for line in lines)
    if firm:
        return _joined_lines(lines, cut, "", any_line=hard > 1 and hard >= near and width in WIDTHS)
    return text


def _head_of_line(line: str) -> str:
    """How a line begins, whatever the number in it: rows of a table begin alike."""
    return NUMBER.sub("0", line[:7])[:6]


def _joined_lines(
    lines: list[str], wrapped: Callable[[str, str], bool], glue: str, *, any_line: bool = False
) -> str:
    """The text with wrapped lines whole.

    `any_line`: those that no grammar knows by their beginning are joined, too.
    """
    whole: list[str] = []
    at = 0
    while at < len(lines):
        last = at
        parts = [lines[at]]
        known = RECORD.match(lines[at]) is not None or (any_line and not RULED.match(lines[at]))
        while (
            known
            and last + 1 < len(lines)
            and lines[last + 1]
            and wrapped(lines[last], lines[last + 1])
        ):
            last += 1
            parts.append(f"{'' if parts[-1].endswith('-') else glue}{lines[last]}")
        whole += ["".join(parts), *[""] * (last - at)]
        at = last + 1
    return "\n".join(whole)
