"""A page that names nobody.

Hosts, addresses, users and homes are replaced wherever a reader, or a search, finds them.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable

from bs4 import BeautifulSoup, Tag
from bs4.element import Comment, Doctype, NavigableString

from ncclkit.agent import redact
from ncclkit.agent.anonymize import Aliases
from ncclkit.core.case import Case

HOSTS = (
    "host.name",
    "env.MASTER_ADDR",
    "env.SLURMD_NODENAME",
    "env.SLURM_SUBMIT_HOST",
    "env.SLURM_TOPOLOGY_ADDR",
)
"""Facts that name one host."""
LISTS = ("env.SLURM_JOB_NODELIST", "env.SLURM_NODELIST", "env.SLURM_STEP_NODELIST")
"""Facts that name many, as ``node-[1-8],login1``."""
USERS = ("env.SLURM_JOB_USER", "env.SLURM_JOB_ACCOUNT", "env.SLURM_CLUSTER_NAME")
"""Facts that name who, or whose machine."""
KEPT = frozenset({"class", "style", "type", "nonce", "content", "http-equiv"})
"""Attributes that hold no words of ours."""


def other_names(case: Case, also: Iterable[str] = ()) -> Aliases:
    """Other names for hosts and users, and for what is named by hand.

    The hosts and users are those that a case and this machine know.
    """
    hosts = {socket.gethostname(), str(case.about.get("host", ""))}
    for words in _values_of_facts(case, LISTS):
        hosts |= set(re.sub(r"\[(\d+)[^\]]*\]", r"\1", words).split(","))
    hosts |= set(_values_of_facts(case, HOSTS))
    hosts |= {fact.host for fact in case.facts}
    hosts |= {event.host for event in case.events}
    for event in case.of("connect.host"):
        hosts |= {str(event.data.name), str(event.data.hostname)}
    for event in case.of("connect.pair"):
        hosts |= {str(event.data.src), str(event.data.dst)}
    own = [os.environ.get(name, "") for name in ("USER", "LOGNAME")]
    return Aliases(filter(_is_host, hosts), [*_values_of_facts(case, USERS), *also, *own])


def _values_of_facts(case: Case, names: Iterable[str]) -> list[str]:
    """What these facts say on all hosts."""
    found = []
    for name in names:
        found += [str(fact.value) for fact in case.facts_of(name) if fact.value]
    return found


def _is_host(name: str) -> bool:
    return re.fullmatch(r"(?=.*[A-Za-z])[\w.-]{2,253}", name) is not None


def hide(soup: BeautifulSoup, aliases: Aliases) -> None:
    """Replace the names in a page's texts, attributes and figures.

    Style and scripts stay.
    """
    aliases.learn(str(soup))
    for text in soup.find_all(string=True):
        if text.parent and text.parent.name == "script":
            _anonymize_figure(text, aliases)
        elif not isinstance(text, (Comment, Doctype)) and (
            not text.parent or text.parent.name != "style"
        ):
            text.replace_with(NavigableString(aliases(text)))
    for tag in soup.find_all(True):
        _anonymize_attributes(tag, aliases)


def _anonymize_figure(text: NavigableString, aliases: Aliases) -> None:
    """The data of a figure; other scripts are the page's own."""
    if text.parent and "figure-data" in (text.parent.get("class") or ()):
        figure = redact.texts(json.loads(text), aliases)
        text.replace_with(type(text)(json.dumps(figure).replace("<", "\\u003c")))


def _anonymize_attributes(tag: Tag, aliases: Aliases) -> None:
    for name, value in tag.attrs.items():
        # an embedded image holds no text
        if name not in KEPT and isinstance(value, str) and not value.startswith("data:"):
            tag[name] = aliases(value)
