"""The Flight Recorder as text: verdicts of `torchfrtrace`, and entries that somebody printed from the dumps."""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import NAMED, Data, Line, Rule, rule, whole

FIELDS = 24
"""Lines of a verdict before its stack trace ends."""
ERRORS = {"TYPE": "op", "SYNTAX": "sizes", "DTYPE": "dtypes"}
CULPRIT = re.compile(r"Culprit rank (\d{1,7}); Error type: (\w{1,60})(?:, (.{0,600}?))?(?=, Culprit rank|$)")
VALUES = re.compile(r"'(.{0,300}?)' does not match found [\w ]{1,30}: '(.{0,300}?)'")
OP = re.compile(r"\bnccl2?:(?P<op>\w{1,40})(?: (?P<a>\d{1,7})(?P<way>->|<-)(?P<b>\d{1,7}))?")
STATE = re.compile(r"\b(scheduled|started|completed|timed_out)\b")
GROUP = re.compile(r"[(\[] ?[\"']([^\"']{0,100})[\"'], ?[\"']([^\"']{0,100})[\"'] ?[)\]]")
SEQ = re.compile(r"\b(?:collective_seq_id|p2p_seq_id|seq(?:uence)?(?:[_ ](?:id|number))?)[\"']?[ :=]{1,3}(\d{1,18})")
SIZES = re.compile(r"sizes?[\"']?[ :=]{1,3}(\[\[[\d, \[\]]{0,400}\]\])")


def _verdict(line: Line) -> tuple[dict[str, str], Data]:
    """The lines ``name: value`` of a verdict, and what all kinds of verdicts have of them."""
    fields: dict[str, str] = {}
    for own in line.own(FIELDS):
        name, colon, value = own.body.strip().partition(": ")
        if not colon or name in fields or name.startswith("collective stack trace"):
            break
        fields[name] = value
    group, _, desc = fields.get("group info", "").partition(":")
    op = fields.get("collective", "").partition(":")[2]
    return fields, {"group": group, "desc": desc, "op": op, "root": "", "holds": []}


def _ranks(text: str) -> list[int]:
    return sorted(int(number) for number in re.findall(r"\d{1,7}", text))


def _missing(match: re.Match[str], data: Data, line: Line) -> Data | None:
    fields, common = _verdict(line)
    missing = _ranks(fields.get("missing ranks", ""))
    waiting = [rank for rank in _ranks(fields.get("expected ranks", "")) if rank not in missing]
    if not missing:
        return None
    empty: Data = {"no_dump": [], "overwritten": [], "frames": [], "last_seq": {}, "stacks": {}}
    return data | common | empty | {"missing": missing, "waiting": waiting}


def _mismatch(match: re.Match[str], data: Data, line: Line) -> Data | None:
    fields, common = _verdict(line)
    odd: dict[str, list[int]] = {}
    field = right = ""
    for rank, error, values in CULPRIT.findall(fields.get("error msg", "")):
        what = next((name for word, name in ERRORS.items() if word in error), "")
        found = VALUES.search(values)
        if what and (field in ("", what)):
            field, right = what, found[1] if found else right
            odd.setdefault(found[2] if found else "another one", []).append(int(rank))
    wrong = {rank for ranks in odd.values() for rank in ranks}
    others = [rank for rank in _ranks(fields.get("expected ranks", "")) if rank not in wrong]
    if not odd:
        return None
    sides = [{"value": value, "ranks": sorted(ranks)} for value, ranks in odd.items()]
    return data | common | {"field": field, "majority": {"value": right, "ranks": others}, "odd": sides}


def _entry(match: re.Match[str], data: Data, line: Line) -> Data | None:
    state, call = STATE.search(line.text), OP.search(line.text)
    if state is None or call is None:
        return None
    group, seq, sizes, rank = (pattern.search(line.text) for pattern in (GROUP, SEQ, SIZES, NAMED))
    own = whole(rank[1]) if rank else line.rank
    return {
        "group": group[1] if group else "",
        "desc": group[2] if group else "",
        "op": call["op"],
        "seq": whole(seq[1]) if seq else None,
        "peer": whole(call["b"]),
        "sizes": sizes[1] if sizes else "",
        "state": state[1],
        "_rank": whole(call["a"]) if own is None else own,
    }


def _splits(match: re.Match[str], data: Data, line: Line) -> Data:
    rank = NAMED.search(line.text)
    lists = {name: [int(number) for number in re.findall(r"\d{1,18}", data[name])] for name in ("inputs", "outputs")}
    return lists | {"_rank": whole(rank[1]) if rank and line.rank is None else None}


RULES: tuple[Rule, ...] = (
    # Not all ranks joining collective, sequence number: 493       Not all ranks joining collective 493 at entry 12
    rule(
        "flight.missing",
        "Not all ranks joining collective",
        r"Not all ranks joining collective(?:, sequence number:)? (?P<seq>\d+)",
        make=_missing,
    ),
    # Collective sequence number: 493 has errors       Collective 493 at entry 12 has errors
    rule(
        "flight.mismatch",
        " has errors",
        r"Collective (?:sequence number: )?(?P<seq>\d+)(?: at entry \d+)? has errors",
        make=_mismatch,
    ),
    # record 41  pg ('0','default_pg')  nccl:send 1->0  seq 7  sizes [[8, 4096]]  state started
    # {'record_id': 41, 'process_group': ('0', 'default_pg'), 'profiling_name': 'nccl:all_reduce', 'state': 'started', …
    rule("flight.entry", "nccl:", r"\bnccl:\w", make=_entry),
    # [rank3]: input_splits=[4, 2] output_splits=[3, 3]      rank 1 in_split_sizes: [4, 2], out_split_sizes: [3, 3]
    rule(
        "told.splits",
        "_split",
        r"in(?:put)?_splits?(?:_sizes)?[ =:]{1,3}\[(?P<inputs>[\d, ]{1,2000})\]"
        r".{0,20}?out(?:put)?_splits?(?:_sizes)?[ =:]{1,3}\[(?P<outputs>[\d, ]{1,2000})\]",
        make=_splits,
    ),
)
