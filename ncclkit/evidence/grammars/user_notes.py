"""What the people of a job wrote between its lines: what they tried, and what came of it."""

from __future__ import annotations

import re
from dataclasses import replace

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule

FAILS = re.compile(
    r"(?:\b(?:does|did|do|is|was)(?: not|n't)|\bnot?) (?:help|work|change|fix|solve|ok\b|difference|effect)"
    r"|\b(?:do(?:es)?|did)(?: not|n't)(?=[.,;]|\s*$)"
    r"|\bstill (?:hang|fail|crash|stuck|the same)|\bsame (?:error|result|hang|problem|failure)"
    r"|(?<!no )(?<!not )(?<!n't )(?<!never )(?<!without a )(?<!without )"
    r"(?<!solved the )(?<!solves the )(?<!fixed the )(?<!fixes the )"
    r"\b(?:hangs?\b|fails?\b|crash(?:es)?\b|deadlocks?\b|stuck\b)"
    r"(?! (?:is gone|are gone|go(?:es)? away|went away|disappear|vanish))",
    re.IGNORECASE,
)
WORKS = re.compile(
    r"\b(?:works?|worked|(?:re)?solve[sd]|fixe[sd]|help(?:s|ed)|workaround"
    r"|no (?:more )?hangs?|without (?:a |any )?hangs?"
    r"|go(?:es)? away|went away|(?:disappear|vanish)(?:s|es|ed)?"
    r"|(?:not|\w{2,6}n't|never) (?:hangs?|fails?|crash(?:es)?|deadlocks?)"
    r"|(?:is|are|runs?|goes|gets|ran|passes|trains|was|captures and replays) "
    r"(?:ok|fine|well|through|gone|normally)|ok)\b",
    re.IGNORECASE,
)
VARIABLE = re.compile(
    r"\b((?:NCCL|TORCH|CUDA|GLOO|VLLM|OMP|UCX|FI)_[A-Z0-9_]{2,50}|num_workers)=([\w^,:./-]{1,60}?)[.,;:]?(?=[\s`'\")]|$)"
)
VERSION = re.compile(
    r"(?:\b(?P<name>[A-Za-z][\w-]{2,30}?)(?:\.so\.|==?|@|:? | version | v)|(?<![\d.\w-]))v?"
    r"(?P<value>\d{1,3}\.\d{1,3}(?:\.\d{1,3})?(?:\.(?:dev|post)\d{1,8}|rc\d)?)"
    r"(?![\d.]*\d|x\b|%| ?(?:GB|s\b|ms\b|min|h\b|it/))"
)
NAMES = {"libnccl": "nccl", "pytorch": "torch", "pytorch-lightning": "lightning"}
FILLERS = frozenset("with and nor not version versions release nightly from the use using try tried also under".split())
DENIED = re.compile(
    r"[,;]? ?\b(?:(?:but )?not (?:with|in|on|under|using|for|from)|unless)\b(?!.*\beither\b)", re.IGNORECASE
)
"""What follows came out the other way than what stands before: ``hangs with 2.20.3, not with 2.19.4``."""
NEVER = re.compile(r"(?<!\d)0(?:/\d+)? (?:hang|fail|crash|deadlock)\w*", re.IGNORECASE)
CELL = {False: re.compile(r"\b(?:time[sd]? ?out|broken|bad|nok|error)\b|[✗✘❌]", re.IGNORECASE)}
CELL |= {True: re.compile(r"\b(?:pass(?:ed|es)?|good|fine)\b|[✓✔✅]", re.IGNORECASE)}
"""What only the cells of a table say."""
LIBRARIES = ("NCCL INFO", "NCCL WARN", ".cpp:")
SENTENCE, CLAUSE = re.compile(r"[.!?]\s"), re.compile(r"[,;]\s|\b(?:but|while|whereas|and)\b")


def _trials(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """What was tried, each with its outcome; a sentence that says both is taken apart at its commas."""
    text = line.body
    if len(text) > 600 or text.lstrip().startswith("|") or any(mark in text for mark in LIBRARIES):
        return None
    rows = [row for sentence in SENTENCE.split(text) for row in _sentence(sentence)]
    named = {row["name"]: row["value"].partition(".")[0] for row in rows if row["name"]}
    for row in rows if len(named) == 1 else ():
        ((name, major),) = named.items()
        row["name"] = row["name"] or (name if row["value"].partition(".")[0] == major else "")
    return {"trials": rows, "message": text.strip()} if rows else None


def _sentence(sentence: str) -> list[Data]:
    head, *denied = DENIED.split(sentence, maxsplit=1)
    works = _works(head)
    rows = [row for part in _parts(head) for row in _outcomes(part, _works(part))]
    return rows + [row for part in denied for row in _outcomes(part, None if works is None else not works)]


def _works(part: str) -> bool | None:
    return False if FAILS.search(part) else True if WORKS.search(part) else None


def _parts(sentence: str) -> list[str]:
    both = FAILS.search(sentence) and WORKS.search(FAILS.sub(" ", sentence))
    return CLAUSE.split(sentence) if both else [sentence]


def _outcomes(part: str, works: bool | None) -> list[Data]:
    if works is None:
        return []
    tried = [(name, value) for name, value in VARIABLE.findall(part)]
    for found in () if tried else VERSION.finditer(part):
        name = (found["name"] or "").lower()
        tried.append((NAMES.get(name, "" if name in FILLERS else name), found["value"]))
    return [{"name": name, "value": value, "works": works} for name, value in tried]


def _table(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """A table of versions of what its first column names, with what came of each; one that failed once fails."""
    name, rows, lines = match["name"].lower(), [], [line.text]
    for later in line.own(16):
        first, *cells = later.body.strip().strip("|").split("|")
        if not cells:
            break
        works = _cells(cells)
        if works is not None and (found := VERSION.search(first)):
            rows.append({"name": NAMES.get(name, name), "value": found["value"], "works": works})
            lines.append(later.text)
    text = "\n".join(lines)
    return {"trials": rows, "message": text, "_line": replace(line, text=text)} if rows else None


def _cells(cells: list[str]) -> bool | None:
    text = " | ".join(NEVER.sub("ok", cell) for cell in cells)
    failed = FAILS.search(text) or CELL[False].search(text)
    return False if failed else True if WORKS.search(text) or CELL[True].search(text) else None


TRIED = (
    *(" works", "orkaround", "not help", "n't help", "not work", " hang", " helps", " solved", " solves", "no effect"),
    *("not OK", "without a hang", "no difference", " fixed it", " fixes ", "angs with", "orks with"),
    *(" away", ": ok", ": OK", " disappear", " helped", " resolves ", "resolved the", "solved it", " fixed the"),
    *("runs normally", "runs fine", "gets through"),
)
"""Words of people; no library prints them often."""

PLACE = r"(?:at|in|on|during|after) (?:the )?(?:start|init|load|launch|warm|first)\w*"
"""Where a job hangs that has not done anything yet."""


def _hang(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """Prose only: no library begins a sentence so, and what NCCL says is no opinion."""
    return None if len(line.body) > 600 or "NCCL" in line.body or "::" in line.body else data


ANOTHER = re.compile(
    r"\b(?:rank|node|host|GPU)\b[^,;]{0,60} never the same\b"
    r"|\b(?:another|an other|other|different|random) (?:rank|node|host|GPU)",
    re.IGNORECASE,
)
LATE = re.compile(r"\b(?:late|slow\w*|behind|stalls?|lags?)\b", re.IGNORECASE)
VICTIM = re.compile(r"\b(?:complain|fail|report|time[sd]? out|time-?out|die[sd]?|crash|abort|error)", re.IGNORECASE)


def _another(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """Which rank it is changes from failure to failure: the one that is late, or the one that complains."""
    said = next((part for part in SENTENCE.split(line.body) if ANOTHER.search(part)), "")
    what = "any_late" if LATE.search(said) else "any_victim" if VICTIM.search(said) else ""
    return _prose(match, data | {"what": what}, line) if what else None


def _prose(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """What somebody tells of the job, which may name a variable of NCCL."""
    return None if len(line.body) > 600 or "::" in line.body or any(mark in line.body for mark in LIBRARIES) else data


RULES: tuple[Rule, ...] = (
    # NCCL_P2P_LEVEL=LOC      export NCCL_P2P_DISABLE=1      NCCL_SHM_DISABLE=1      (`env`, or a job's script)
    *(
        rule("told.env", name, rf"^(?:export |declare -x )?(?P<name>{name})=[\"']?(?P<value>\w{{1,20}})[\"']?\s*$")
        for name in ("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
    ),
    # | NCCL | 8 nodes |        torch version | result |
    *(
        rule("told.trial", anchor, r"^\W{0,4}(?P<name>[A-Za-z][\w-]{2,30})(?: [Vv]ersion)? {0,9}\|", make=_table)
        for anchor in ("NCCL |", "ersion |")
    ),
    # [stuck here, 20 min]      it hangs in the first all_reduce      and hangs forever      stuck at startup, no error
    *(
        rule(
            "told.hang",
            word,
            rf"^(?P<message>.*\b{word.strip()} (?:here|for ?ever|indefinitely|{PLACE})\b.*)",
            make=_hang,
        )
        for word in ("stuck ", " hangs ")
    ),
    # the rank that fails first is never the same      another rank times out each time
    # it dies on a different node every time
    *(
        rule("told.habit", anchor, r"^(?P<message>.*\b(?:rank|node|host|GPU)s?\b.*)", make=_another)
        for anchor in ("never the same", "ach time", "very time")
    ),
    # Some steps take 90 seconds instead of 2      now and then an iteration takes 5 minutes
    *(
        rule(
            "told.habit",
            anchor,
            r"^(?P<message>.*\b(?:[Ss]ome(?:times)?|now and then|[Oo]ccasional(?:ly)?|[Ee]very few|[Rr]andom(?:ly)?)\b"
            r".{0,40}\b(?:steps|iteration) takes? .{0,20}\d ?(?:s|sec\w*|min\w*)\b.*)",
            make=_prose,
            what="slow_steps",
        )
        for anchor in ("steps take ", "tion takes ")
    ),
    # NCCL_P2P_DISABLE=1 did not help      it works with nccl 2.19.3, and hangs with 2.18.1     0.9.5 OK, 0.10.0 not OK
    # NCCL_IB_DISABLE=1 is a workaround      NCCL_ALGO=Ring doesn't help      NCCL_ALGO=Ring does not work
    # NCCL_ALGO=Ring helps      NCCL_ALGO=Ring solved it      NCCL_ALGO=Ring solves it      NCCL_ALGO=Ring has no effect
    # libnccl.so.2.19.4: an hour without a hang      NCCL_ALGO=Ring makes no difference      NCCL_ALGO=Ring fixed it
    # with nccl 2.19.4 the hang goes away      nccl 2.20.5: ok      nccl 2.20.5: OK
    # with NCCL_SHM_DISABLE=1 the error disappears      what helped was NCCL_ALGO=Ring      NCCL_ALGO=Ring resolves it
    # NCCL_ALGO=Ring resolved the hang      NCCL_ALGO=Ring fixed the hang      it runs normally with NCCL_ALGO=Ring
    # it gets through with NCCL_ALGO=Ring      it runs fine with NCCL_ALGO=Ring
    # NCCL_ALGO=Ring fixes it      num_workers=0 works      hangs with 2.20.3, not with 2.19.4      Works with 2.19.4
    *(rule("told.trial", word, r"\b[A-Z]{2,5}_[A-Z0-9_]{1,60}=|num_workers=|\d\.\d", make=_trials) for word in TRIED),
)
