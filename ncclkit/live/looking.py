"""Looks at this host, or at each node, for a person who was asked.

The nodes are those of an allocation.  What runs is a command of ours that only reads, never a text
that came with a case.
"""

from __future__ import annotations

import os
import re
import socket
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from ncclkit.agent import redact
from ncclkit.agent.digits import is_whole
from ncclkit.agent.commands import LATE, Reply, run_bounded
from ncclkit.core.text import host_list
from ncclkit.live.launch import launchers

SECONDS = 15.0
"""Seconds after which a look is ended.

It is often asked because a driver or a file server hangs.
"""
MOST_BYTES = 256 << 10
"""Bytes that a look may print."""
SHOWN_LINES, SHOWN_LETTERS = 12, 900
"""Lines and letters of its output that are kept."""
LABEL = re.compile(r"(?: *(?P<task>\d{1,9}): |\[\d+,(?P<rank>\d{1,9})\]<std\w+>:)(?P<text>.*)")
"""How ``srun --label`` and ``mpirun --tag-output`` begin a line: the number of the task."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look has shown."""

    answer: Literal["yes", "no", "unknown"]
    text: str
    """Where was looked, and what was seen there: without secrets, and cut."""


@dataclass(frozen=True, slots=True)
class _Output:
    """What a look printed on one host."""

    host: str
    text: str
    is_whole: bool
    """Whether it ended by itself and complained of nothing.

    Only then a line that is missing means anything.
    """


def look_on_hosts(command: str, shows: str, denies: str, job_hosts: Collection[str]) -> Sight:
    """The answer of a command of ours on this host, or all nodes.

    `shows` and `denies` are what its output holds where the answer is yes, or no.  `job_hosts` is
    where the job ran, as far as that is known; other hosts cannot answer for them.
    """
    on_nodes = launchers.launcher_here().starts_on_nodes()
    try:
        if on_nodes:
            outputs, why = _on_nodes(command)
        else:
            outputs, why = _on_this_host(command)
    except OSError as error:
        return Sight("unknown", f"cannot tell: the command cannot be started ({error.strerror})")
    if not outputs:
        return Sight("unknown", f"cannot tell: {why or 'no node answered'}")
    where = host_list(one.host for one in outputs)
    if on_nodes:
        place = f"on {where}"
    else:
        place = f"on this host, {where}"
    # without a host in the log nobody knows whether this one is of the job
    if not job_hosts:
        return Sight(
            "unknown",
            f"cannot tell: the log names no host; {place}: {_excerpt(outputs)}",
        )
    mine = [one for one in outputs if _is_among(one.host, job_hosts)]
    if not mine:
        return Sight(
            "unknown",
            f"cannot tell: the job ran on {host_list(job_hosts)}; {place}: {_excerpt(outputs)}",
        )
    answers = {one.host: _judged(one, shows, denies) for one in mine}
    # one host that has it is enough; that none has it takes all of them
    if "yes" in answers.values():
        hit = [one for one in mine if answers[one.host] == "yes"]
        return Sight("yes", f"on {host_list(one.host for one in hit)}: {_excerpt(hit, shows)}")
    unseen = [host for host in job_hosts if not _is_among(host, answers)]
    if set(answers.values()) == {"no"} and not unseen:
        return Sight("no", f"{place}: {_excerpt(mine)}")
    if set(answers.values()) == {"no"}:
        return Sight(
            "unknown", f"cannot tell: not {place}, but the job ran on {host_list(unseen)}, too"
        )
    late = ""
    if why:
        late = f" {why};"
    return Sight("unknown", f"cannot tell by itself;{late} {place}: {_excerpt(mine)}")


def _judged(output: _Output, shows: str, denies: str) -> Literal["yes", "no", "unknown"]:
    if shows and re.search(shows, output.text, re.MULTILINE):
        return "yes"
    if denies and output.is_whole and re.search(denies, output.text, re.MULTILINE):
        return "no"
    return "unknown"


def _on_this_host(command: str) -> tuple[list[_Output], str]:
    reply = _run(["sh", "-c", command])
    out = _text(reply.out)
    err = _text(reply.err)
    text = "\n".join(filter(None, (out.strip(), err.strip())))
    is_whole = not reply.ended and not err.strip()
    return [_Output(socket.gethostname(), text, is_whole)], _why_ended(reply)


def _on_nodes(command: str) -> tuple[list[_Output], str]:
    """What each node of the allocation printed.

    Its first line is the node's own name.
    """
    # its own name, as logs have it, may differ from the launcher's
    script = f"uname -n; {command}"
    reply = _run([*launchers.launcher_here().on_each_node(), "sh", "-c", script])
    complained = _text(reply.err)
    printed = _by_task(_text(reply.out))
    complaints = _by_task(complained)
    outputs: list[_Output] = []
    for task, (host, *lines) in sorted(printed.items()):
        text = "\n".join([*lines, *complaints.get(task, ())])
        is_whole = not reply.ended and task not in complaints
        outputs.append(_Output(host, text, is_whole))
    why = _why_ended(reply)
    if not why:
        last = complained.strip().splitlines()[-1:]
        why = redact.text("".join(last))[:SHOWN_LETTERS]
    return outputs, why


def _run(words: Sequence[str]) -> Reply:
    # the patterns of an answer are about English output
    return run_bounded(words, SECONDS, env=os.environ | {"LC_ALL": "C"}, most=MOST_BYTES)


def _why_ended(reply: Reply) -> str:
    if not reply.ended:
        return ""
    if reply.ended == LATE:
        return f"it was ended after {SECONDS:g} s"
    return "it printed too much"


def _by_task(text: str) -> dict[int, list[str]]:
    lines: dict[int, list[str]] = defaultdict(list)
    for line in text.splitlines():
        labelled = LABEL.fullmatch(line)
        if labelled:
            lines[int(labelled["task"] or labelled["rank"])].append(labelled["text"])
    return dict(lines)


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace")


def _excerpt(outputs: Sequence[_Output], shows: str = "") -> str:
    """The lines that show it, else the first ones.

    Where there are several hosts each line stands under its host.
    """
    parts: list[str] = []
    for output in outputs:
        name = ""
        if len(outputs) > 1:
            name = f"{output.host}: "
        parts.append(f"{name}{_lines_shown(output.text, shows)}")
    text = redact.text("\n".join(parts))
    if len(text) <= SHOWN_LETTERS:
        return text
    return f"{text[:SHOWN_LETTERS]} …"


def _lines_shown(text: str, shows: str) -> str:
    match = None
    if shows:
        match = re.search(shows, text, re.MULTILINE)
    if match is None:
        lines = text.splitlines()
        more = []
        if len(lines) > SHOWN_LINES:
            more = ["…"]
        return "\n".join([*lines[:SHOWN_LINES], *more]) or "it printed nothing"
    begin = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    return text[begin : end if end >= 0 else None]


def _is_among(host: str, hosts: Collection[str]) -> bool:
    return _short(host) in set(map(_short, hosts))


def _short(host: str) -> str:
    """The name of a host without its domain; an address stays whole."""
    first = host.partition(".")[0]
    if is_whole(first):
        return host
    return first.lower()
