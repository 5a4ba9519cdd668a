"""The grammar of what tools printed.

The tools are `torchfrtrace`, printed entries of dumps, p2pBandwidthLatencyTest and `env`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ncclkit.evidence.grammars.grammar import NAMED, Data, Line, Rule, parse_int, rule

FIELDS = 24
"""Lines of a verdict before its stack trace ends."""
ERRORS = {"TYPE": "op", "SYNTAX": "sizes", "DTYPE": "dtypes"}
ROOTED = ("scatter", "gather")
"""Operations whose root alone has the parts of all ranks, which torchfrtrace compares, too."""
NO_LIST = ("[[0]]", "[]", "[[]]")
"""What the other ranks have in the place of that list."""
CULPRIT = re.compile(
    r"Culprit rank (\d{1,7}); Error type: (\w{1,60})(?:, (.{0,600}?))?(?=, Culprit rank|$)"
)
VALUES = re.compile(r"'(.{0,300}?)' does not match found [\w ]{1,30}: '(.{0,300}?)'")
OP = re.compile(r"\bnccl2?:(?P<op>\w{1,40})(?: (?P<a>\d{1,7})(?P<way>->|<-)(?P<b>\d{1,7}))?")
STATE = re.compile(r"\b(scheduled|started|completed|timed_out)\b")
GROUP = re.compile(r"[(\[] ?[\"']([^\"']{0,100})[\"'], ?[\"']([^\"']{0,100})[\"'] ?[)\]]")
SEQ = re.compile(
    r"\b(?:collective_seq_id|p2p_seq_id|seq(?:uence)?(?:[_ ](?:id|number))?)[\"']?["
    r" :=]{1,3}(\d{1,18})"
)
SIZES = re.compile(r"sizes?[\"']?[ :=]{1,3}(\[\[[\d, \[\]]{0,400}\]\])")


def _fields_of_verdict(line: Line) -> tuple[dict[str, str], Data]:
    """The lines ``name: value`` of a verdict.

    With them comes what all kinds of verdicts have of them.
    """
    fields: dict[str, str] = {}
    for own in line.own(FIELDS):
        name, colon, value = own.body.strip().partition(": ")
        if not colon or name in fields or name.startswith("collective stack trace"):
            break
        fields[name] = value
    group, _, desc = fields.get("group info", "").partition(":")
    op = fields.get("collective", "").partition(":")[2]
    return fields, {"group": group, "desc": desc, "op": op, "root": "", "holds": []}


def _ranks_of_text(text: str) -> list[int]:
    return sorted(int(number) for number in re.findall(r"\d{1,7}", text))


def _missing(match: re.Match[str], data: Data, line: Line) -> Data | None:
    fields, common = _fields_of_verdict(line)
    missing = _ranks_of_text(fields.get("missing ranks", ""))
    waiting = [
        rank for rank in _ranks_of_text(fields.get("expected ranks", "")) if rank not in missing
    ]
    if not missing:
        return None
    empty: Data = {"no_dump": [], "overwritten": [], "frames": [], "last_seq": {}, "stacks": {}}
    return data | common | empty | {"missing": missing, "waiting": waiting}


def _mismatch(match: re.Match[str], data: Data, line: Line) -> Data | None:
    fields, common = _fields_of_verdict(line)
    odd: dict[str, list[int]] = {}
    field = right = ""
    for rank, error, values in CULPRIT.findall(fields.get("error msg", "")):
        what = next((name for word, name in ERRORS.items() if word in error), "")
        found = VALUES.search(values)
        if what and (field in ("", what)):
            field = what
            right = found[1] if found else right
            odd.setdefault(found[2] if found else "another one", []).append(int(rank))
    no_list = any(value in NO_LIST for value in (right, *odd))
    if field == "sizes" and common["op"] in ROOTED and no_list:
        return None
    wrong = {rank for ranks in odd.values() for rank in ranks}
    others = [
        rank for rank in _ranks_of_text(fields.get("expected ranks", "")) if rank not in wrong
    ]
    if not odd:
        return None
    sides = [{"value": value, "ranks": sorted(ranks)} for value, ranks in odd.items()]
    return (
        data
        | common
        | {
            "field": field,
            "majority": {"value": right, "ranks": others},
            "odd": sides,
        }
    )


def _entry(match: re.Match[str], data: Data, line: Line) -> Data | None:
    state = STATE.search(line.text)
    call = OP.search(line.text)
    if state is None or call is None:
        return None
    group, seq, sizes, rank = (pattern.search(line.text) for pattern in (GROUP, SEQ, SIZES, NAMED))
    if rank:
        own = parse_int(rank[1])
    else:
        own = line.rank
    return {
        "group": group[1] if group else "",
        "desc": group[2] if group else "",
        "op": call["op"],
        "seq": parse_int(seq[1]) if seq else None,
        "peer": parse_int(call["b"]),
        "sizes": sizes[1] if sizes else "",
        "state": state[1],
        "_rank": parse_int(call["a"]) if own is None else own,
    }


def _splits(match: re.Match[str], data: Data, line: Line) -> Data:
    rank = NAMED.search(line.text)
    lists = {}
    for name in "inputs", "outputs":
        lists[name] = [int(number) for number in re.findall(r"\d{1,18}", data[name])]
    return lists | {"_rank": parse_int(rank[1]) if rank and line.rank is None else None}


VERDICTS: tuple[Rule, ...] = (
    # Not all ranks joining collective, sequence number: 493
    # Not all ranks joining collective 493 at entry 12
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
    # {'record_id': 41, 'process_group': ('0', 'default_pg'), 'profiling_name': 'nccl:all_reduce', \
    #   'state': 'started', …
    rule("flight.entry", "nccl:", r"\bnccl:\w", make=_entry),
    # [rank3]: input_splits=[4, 2] output_splits=[3, 3]
    # rank 1 in_split_sizes: [4, 2], out_split_sizes: [3, 3]
    rule(
        "printed.splits",
        "_split",
        r"in(?:put)?_splits?(?:_sizes)?[ =:]{1,3}\[(?P<inputs>[\d, ]{1,2000})\]"
        r".{0,20}?out(?:put)?_splits?(?:_sizes)?[ =:]{1,3}\[(?P<outputs>[\d, ]{1,2000})\]",
        make=_splits,
    ),
)


GPUS = 128
"""Rows that are read of one matrix."""
NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)


def _matrix(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """Rows as long as they are whole.

    A matrix without one (cut off, or only its heading is quoted) tells nothing.
    """
    # a table may be indented, or stand behind what a logger writes
    lead = max(0, line.body.find(match[0]))
    lines = (replace(later, body=later.body[lead:]) for later in line.own(GPUS + 1))
    head = next(lines, None)
    gpus = []
    if head and head.body.strip().startswith("D\\D"):
        gpus = re.findall(r"\b\d{1,3}\b", head.body)
    values = []
    text = [line.text]
    for gpu, later in zip(gpus, lines, strict=False):
        first, *row = later.body.split() or [""]
        if (
            first != gpu
            or len(row) != len(gpus)
            or not all(NUMBER.fullmatch(value) for value in row)
        ):
            break
        values.append([float(value) for value in row])
        text.append(later.text)
    if head is None or not values:
        return None
    text.insert(1, head.text)
    return {
        "enabled": data["state"] == "Enabled",
        "direction": data["direction"].lower(),
        "gpus": [int(gpu) for gpu in gpus],
        "values": values,
        "_line": replace(line, text="\n".join(text)),
    }


MATRIX: tuple[Rule, ...] = (
    # Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
    #    D\D     0      1
    #      0 780.19  45.62
    rule(
        "p2p.matrix",
        " P2P=",
        r"(?P<direction>(?:Uni|Bi)directional) P2P=(?P<state>Enabled|Disabled) Bandwidth"
        r" .{0,40}?Matrix \(GB/s\)",
        make=_matrix,
    ),
)

ENV: tuple[Rule, ...] = (
    # NCCL_P2P_LEVEL=LOC      export NCCL_P2P_DISABLE=1      NCCL_SHM_DISABLE=1
    # (`env`, or a job's script)
    *(
        rule(
            "printed.env",
            name,
            rf"^(?:export |declare -x )?(?P<name>{name})=[\"']?(?P<value>\w{{1,20}})[\"']?\s*$",
        )
        for name in ("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
    ),
    # + export NCCL_IB_HCA=mlx5_0,mlx5_1     mpirun -x NCCL_IB_GID_INDEX=3 -np 2 …
    # srun --export=ALL,NCCL_IB_TC=106
    # docker run -e NCCL_IB_DISABLE=1 …
    *(
        rule(
            "printed.env",
            f"{name}=",
            r"(?:^(?:\+ )?(?:export )?|(?:-x|-e|--env|export) |--(?:env|export)=\S{0,400}?)"
            rf"(?P<name>{name})=[\"']?(?P<value>[\w.:,^=-]{{1,80}})",
        )
        for name in ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_DISABLE")
    ),
)

MODEL = (
    r"(?:NVIDIA |Tesla |GeForce )[\w ]{0,30}?\b(?:K80|[MPVTALHB]\d{1,3}0?\w?|G[BH]\d{3}"
    r"|(?:GTX|RTX) (?:PRO |A)?\d{3,4})\b(?: (?:Ti|Ada))?"
)
VERSIONS: tuple[Rule, ...] = (
    # GPU 0: NVIDIA GeForce RTX 5090      Tesla V100-SXM2-32GB      | 0  NVIDIA H100 80GB HBM3  On |
    *(
        rule("printed.version", anchor, rf"(?P<version>{MODEL})", name="gpu")
        for anchor in ("NVIDIA ", "Tesla ", "GeForce ")
    ),
    # torch==2.5.1+cu124      torch 2.5.1+cu124      PyTorch version 2.5.1+cu121
    rule(
        "printed.version",
        "+cu",
        r"[Tt]orch\W{1,3}(?:version\W{1,3})?(?P<version>\d\.\d{1,2}\.\d\+cu\d{3})\b",
        name="torch",
    ),
    # torch==2.5.1          (the wheel of PyPI)
    rule(
        "printed.version",
        "torch==",
        r"\btorch==(?P<version>\d\.\d{1,2}\.\d)(?![\d.+])",
        name="torch",
    ),
    # | NVIDIA-SMI 535.104.05    Driver Version: 535.104.05    CUDA Version: 12.2 |
    rule(
        "printed.version",
        "Driver Version: ",
        r"Driver Version: (?P<version>\d{3}\.[\d.]{1,12})",
        name="driver",
    ),
)

RULES: tuple[Rule, ...] = (*VERDICTS, *MATRIX, *ENV, *VERSIONS)
