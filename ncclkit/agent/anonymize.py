"""Aliases for hosts, addresses, users and home folders, each the same in every text.

Who talked to whom stays readable.

node-7.cluster → host-7      10.1.2.3 → 10.0.0.1 (one network stays one network)      /home/alice →
/home/user-1 /lustre/acme/train.py → /lustre/folder-1/train.py      s3://acme-data → s3://bucket-1
a.b@acme.com → user-2@host
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any

from .digits import is_whole

NOBODY = frozenset(
    "root user users admin administrator nobody home ubuntu debian centos rocky ec2-user runner"
    " jovyan slurm".split()
)
"""Accounts that name no person."""
HOME = re.compile(r"(/(?:home|Users)/)([A-Za-z0-9_][\w.-]*)")
_END = r"(?![A-Za-z0-9])"
_HEX = "[0-9A-Fa-f]"
ADDRESS = re.compile(
    rf"(?<![\w:.])(?P<mac>{_HEX}{{2}}(?::{_HEX}{{2}}){{5}}(?:(?::{_HEX}{{2}}){{14}})?)(?![\w:])"
    rf"|(?<![\w:.])(?P<guid>{_HEX}{{4}}(?::{_HEX}{{4}}){{3}})(?![\w:])"
    rf"|(?i:guid\W{{1,6}}(?P<hex>0x{_HEX}{{16}}))"
    rf"|(?<![\w:.])(?P<six>{_HEX}{{1,4}}:(?:{_HEX}{{0,4}}:){{1,6}}{_HEX}{{0,4}}(?:\d{{0,3}}"
    rf"(?:\.\d{{1,3}}){{3}})?)(?![\w:])"
    r"|(?<![A-Za-z0-9.])(?P<four>\d{1,3}(?:\.\d{1,3}){3})(?!\w|\.\d)"
    rf"|\b(?P<uuid>(?:GPU|MIG)-{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}})\b"
)
VERSION = re.compile(r"(?i)(?:version|cudnn|cuda|driver|toolkit|release|==|>=|<=|\bv)[^\w\n]{0,4}$")
"""What stands before four numbers that are no address."""
_TOP = (
    "com|org|net|edu|gov|mil|int|io|ai|dev|cloud|info|eu|de|fr|uk|ch|at|nl|be|it|es|se|fi|dk|pl|cz"
    "|jp|cn|kr|tw|in|au|ca|br|us|sg"
    "|hk|ru|il|local|localdomain|internal|intra|intranet|lan|corp|hpc|cluster"
)
FAR = re.compile(
    rf"(?:(?<=://)(?![\w.-]{{1,200}}\.(?:amazonaws|googleapis|windows|aliyuncs|myqcloud)\.)"
    rf"|(?<![\w./@-]))"
    rf"(?:[A-Za-z0-9][\w-]{{0,62}}(?:\.[A-Za-z0-9][\w-]{{0,62}}){{1,6}}\.(?:{_TOP})"
    r"|(?=[A-Za-z-]{0,40}\d)[A-Za-z][\w-]{0,62}\.(?:local|internal|lan|corp|hpc|cluster))(?![\w-]"
    r"|\.\w|\()"
)
"""A host with its domain, whichever domain that is; the stores of clouds are `BUCKET`."""
PUBLIC = re.compile(
    r"(?:^|\.)(?:pytorch|python|kernel|w3|pypi|npmjs|anaconda|conda|jupyter|readthedocs|openucx"
    r"|open-mpi|apache|debian|ubuntu"
    r"|nvidia|github|githubusercontent|gitlab|huggingface|wandb|google|googleapis|openai|docker"
    r"|quay|nvcr|stackoverflow|lightning"
    r"|schedmd|plotly|example)\.(?:com|org|io|ai|co|net)$"
)
"""Domains that everybody talks to."""
NODE = re.compile(
    r"(?<![\w./@-])(?=[A-Za-z_-]{0,40}(?:node|gpu|compute|login|dgx|hgx|nid|rack|blade|host|srv"
    r"|server|hpc|head|master)"
    r"[A-Za-z_-]{0,20}\d)(?P<stem>[A-Za-z][A-Za-z_-]{2,40}?)(?:[-_][A-Za-z]?)?(?P<number>\d{1,6})"
    r"(?:[-_][A-Za-z]{0,4}\d{1,4}){0,3}"
    r"(?![\w-]|\.\d)",
    re.I,
)
"""What is called as hosts of clusters are: gpunode17, GPU-NODE-03, dgx-a12."""
NUMBERED = re.compile(
    r"(?i)(?:host-?|(?:gpu|node|host|server|rank|worker)s?|n_?(?:gpu|node)s?"
    r"|\w{1,30}_per_\w{1,10})[-_]?"
)
"""Stems of what a job counts."""
SHARED = re.compile(
    r"(?<![\w.:/])/(?:lustre|gpfs|beegfs|weka|fsx|efs|nfs|scratch|gscratch|work|projects?|data|mnt"
    r"|shared|global|users?)"
    r"(?:/[\w.@+-]{1,255}){1,32}"
)
"""A path on a file system of the cluster, whose folders are called as projects and people are."""
PLAIN = frozenset(
    "lustre gpfs beegfs weka fsx efs nfs scratch gscratch work project projects data mnt shared"
    " global user users home homes people staff students".split()
)
"""Folders that name nobody."""
PACKAGES = frozenset(
    "lib lib64 site-packages dist-packages bin env envs venv .venv conda miniconda3"
    " anaconda3".split()
)
"""Folders below which the names are those of software."""
BUCKET = re.compile(
    r"(?i)(\b(?:s3a?|gs|gcs|az|oss|cos|obs|tos|abfss?|wasbs?"
    r"|r2)://(?:[^\s/@]{1,100}@)?)([a-z0-9][\w.-]{1,200})"
    r"|\b()([a-z0-9][\w-]{1,62})(?=\.(?:s3|blob|dfs|oss|cos)[\w.-]{0,40}\.(?:amazonaws|windows"
    r"|aliyuncs|myqcloud)\.)"
)
MAIL = re.compile(
    r"(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,6}(?![\w-])"
)
COMMON = 4
"""Letters of a host's name up to which a number right behind them may mean something else
(``gpu0``, ``node0``)."""


class Aliases:
    """Replaces names in a text by aliases, and remembers the alias of each name."""

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> None:
        self._known: dict[Any, dict[Any, int]] = {}
        self._hosts: dict[str, int] = {}
        self._domains: set[str] = set()
        self._meet(hosts)
        self._users = set(users) - NOBODY - {""}
        self.replaced: dict[str, str] = {}
        """What was replaced so far, and by what."""
        self._compile()

    def _meet(self, hosts: Iterable[str]) -> None:
        """Number hosts that were not known, together with their domains."""
        split = [name.partition(".") for name in hosts if not _is_address(name)]
        short = {name for name, _, _ in split} - {"", "localhost"}
        for name in sorted(short - set(self._hosts), key=_natural_key):
            self._number(name)
        self._domains |= {domain for name, _, domain in split if domain and name in short}

    def _compile(self) -> None:
        """One pattern for hosts and lists of hosts (``node[1-8]``), one for users."""
        names = _longest_first(
            {*self._hosts, *(name.upper() for name in self._hosts if _pattern_of_hosts(name))}
        )
        far = [
            r"[\w-]+(?=\.%s%s)" % (re.escape(domain), _END)
            for domain in _longest_first(self._domains)
            if "." in domain
        ]
        shapes = [*map(re.escape, names), *filter(None, map(_pattern_of_hosts, names)), *far]
        stems = _any_of(map(re.escape, _longest_first(map(_stem_of_host, names))))
        domains = _any_of(map(re.escape, _longest_first(self._domains)))
        self._host = re.compile(
            rf"(?<![A-Za-z0-9])(?:(?P<stem>{stems})\[(?P<list>[\d,\s-]+)\]"
            rf"|(?P<name>{_any_of(shapes)}){_END})"
            rf"(?:(?:\.[A-Za-z][\w-]*){{2,}}|\.(?:{domains}){_END})?"
        )
        self._lower = {name.upper(): name for name in self._hosts}
        self._user = re.compile(
            rf"(?<![A-Za-z0-9])(?:{_any_of(map(re.escape, _longest_first(self._users)))}){_END}"
        )

    def learn(self, text: str) -> None:
        """Learn the hosts and the owners of home folders that a text names.

        Both are replaced in all later texts.
        """
        found = {match[2] for match in HOME.finditer(text)}
        found |= {
            match[1]
            for match in re.finditer(
                r"/(?:users?|homes?|people|staff|students)/([A-Za-z][\w.-]*)", text
            )
        }
        far = {match[0] for match in FAR.finditer(text) if not PUBLIC.search(match[0].lower())}
        near = {match[0] for match in NODE.finditer(text) if _is_node(match)}
        self._users |= found - NOBODY - PLAIN
        self._meet(
            sorted(name for name in far | near if name.lower() not in map(str.lower, self._hosts))
        )
        self._compile()

    def __call__(self, text: str) -> str:
        """The text with every name in it replaced."""
        text = MAIL.sub(self._as_mail, text)
        text = BUCKET.sub(self._as_bucket, text)
        text = self._host.sub(self._as_host, text)
        text = ADDRESS.sub(lambda match: self._noted(match[0], self._as_address(match)), text)
        text = HOME.sub(
            lambda match: match[1] + self._noted(match[2], self._as_user(match[2])), text
        )
        text = SHARED.sub(self._as_folder, text)
        return self._user.sub(lambda match: self._noted(match[0], self._as_user(match[0])), text)

    def _as_mail(self, match: re.Match[str]) -> str:
        public = PUBLIC.search(match[0].partition("@")[2])  # git@github.com
        if public:
            return match[0]
        return self._noted(match[0], self._as_user(match[0]) + "@host")

    def _noted(self, name: str, alias: str) -> str:
        if name != alias:
            self.replaced[name] = alias
        return alias

    def _as_bucket(self, match: re.Match[str]) -> str:
        name = match[2] or match[4]
        known = name.startswith("bucket-")
        return (match[1] or "") + (
            name if known else self._noted(name, "bucket-%d" % self._count("bucket", name))
        )

    def _as_folder(self, match: re.Match[str]) -> str:
        """The path with other names for its folders.

        The file at its end and folders of software keep their names.
        """
        parts = match[0].split("/")
        end = len(parts) - (parts[-2] not in PLAIN or "." in parts[-1])
        for number, part in enumerate(parts[2:end], 2):
            if part in PACKAGES:
                break
            if part not in PLAIN and not re.match(r"(?:user|folder)-\d+$", part):
                if part in self._users:
                    count = self._as_user
                else:
                    count = self._as_project
                parts[number] = self._noted(part, count(part))
        return "/".join(parts)

    def _as_project(self, name: str) -> str:
        return "folder-%d" % self._count("folder", name)

    def _as_host(self, match: re.Match[str]) -> str:
        if match["name"]:
            return self._noted(
                match[0], self._number(self._lower.get(match["name"], match["name"]))
            )
        return "host-[%s]" % re.sub(
            r"\d+", lambda part: self._number(match["stem"] + part[0])[5:], match["list"]
        )

    def _number(self, name: str) -> str:
        return "host-%d" % self._hosts.setdefault(name, len(self._hosts) + 1)

    def _as_user(self, name: str) -> str:
        if name in NOBODY:
            return name
        return "user-%d" % self._count("user", name)

    def _as_address(self, match: re.Match[str]) -> str:
        kind = str(match.lastgroup)
        whole = match.group()
        value = match[kind]
        if kind in ("four", "six"):
            return self._as_ip(value, match)
        pattern = {
            "mac": "02:00:00:00:%02x:%02x",
            "guid": "0000:0000:%04x:%04x",
            "hex": "0x%08x%08x",
        }.get(kind)
        number = self._count(kind, value.lower())
        if pattern is None:
            return "%s-00000000-0000-0000-0000-%012d" % (value[:3], number)
        if kind == "mac":
            size = 256
        else:
            size = 1 << 16
        return whole.replace(value, pattern % divmod(number, size))

    def _as_ip(self, value: str, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(value)
        except ValueError:
            return value
        if (
            address.is_loopback
            or address.is_unspecified
            or address.is_multicast
            or value.startswith("255.")
        ):
            return value
        if isinstance(address, ipaddress.IPv6Address):
            if not (address.is_private or int(address) >> 125 == 1 or value.count(":") == 7):
                return value  # c10d::add is a name of C++
            return ("fe80::%x" if address.is_link_local else "fd00::%x") % self._count(
                "six", address
            )
        if VERSION.search(match.string, max(0, match.start() - 24), match.start()):
            return value
        network = int(address) >> 8
        high, low = divmod(self._count("network", network) - 1, 256)
        return "10.%d.%d.%d" % (high, low, self._count(network, address))

    def _count(self, kind: Any, value: Any) -> int:
        """The number under which a value of this kind was first met, from 1."""
        known = self._known.setdefault(kind, {})
        return known.setdefault(value, len(known) + 1)


def _any_of(patterns: Iterable[str]) -> str:
    return "|".join(patterns) or "(?!)"


def _longest_first(names: Iterable[str]) -> list[str]:
    """Each name once, the longest first: a pattern takes the first that fits."""
    return sorted({name for name in names if name}, key=lambda name: (-len(name), name))


def _natural_key(name: str) -> list[Any]:
    found: list[Any] = []
    for part in re.split(r"([0-9]+)", name):
        if is_whole(part):
            found.append((int(part), ""))
        else:
            found.append((-1, part))
    return found


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _stem_of_host(name: str) -> str:
    """What stands before the number at the end of a host's name."""
    match = re.fullmatch(r"(.*?[A-Za-z_-])\d+", name)
    if match:
        return match[1]
    return ""


def _is_node(match: re.Match[str]) -> bool:
    """Whether a word that looks like a host is one.

    ``gpu0``, ``worker3`` and ``host-2`` are what jobs count, and no hosts.
    """
    stem, number = match["stem"], match["number"]
    if stem.count("_") > 1:
        return False  # a name of programs: tables_on_gpu_0
    return not NUMBERED.fullmatch(stem) or (
        len(number) > 1 and stem.lower().strip("-_") in ("node", "gpu", "server")
    )


def _pattern_of_hosts(name: str) -> str:
    """A pattern for the hosts that differ in their numbers only.

    It is empty where a number may mean something else.
    """
    stem = _stem_of_host(name)
    number = re.sub(r".*\D", "", name)
    if not stem or not (
        stem[-1] in "-_" or len(re.sub(r"[^A-Za-z]", "", stem)) > COMMON or len(number) > 2
    ):
        return ""
    return re.sub(r"\d+", r"\\d+", re.escape(stem)) + (
        r"\d{%d}" % len(number) if len(number) > 2 else r"\d{1,5}"
    )
