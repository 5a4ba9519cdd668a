"""What is known of the hosts: a card for each theme.

It tells also what could not be read, with the reason, and whether the hosts of a job agree: what
differs and why it matters, the odd one out first; 1,000 hosts on a page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from functools import cache

from ncclkit.agent.digits import is_whole
from ncclkit.analysis.consistency import (
    MEANS,
    Consistency,
    Difference,
    HostGroup,
    MissingFact,
    compare,
)
from ncclkit.causes.engine import judge_facts
from ncclkit.causes.order import rank_findings
from ncclkit.core import themes
from ncclkit.core.case import Case
from ncclkit.core.event_list import known_hosts, known_ranks
from ncclkit.core.model import Fact, Finding
from ncclkit.core.text import HOSTS, fold_hosts, host_list, plural, quantity, some
from ncclkit.views._base import View
from ncclkit.views._html import Markup, badge, code, el, fit, fold, join, long_table, table, value
from ncclkit.views.findings import advice_part

FIRST = {
    "gpu.count": "GPUs",
    "gpu.0.model": "model",
    "gpu.driver": "driver",
    "gpu.cuda": "CUDA supported by the driver",
    "gpu.nvidia_smi": "nvidia-smi",
    "net.nccl.interface": "NCCL uses",
    "net.gloo.interface": "gloo uses",
    "net.default": "default route",
    "net.hostname.addresses": "own name is",
    "net.loopback.bandwidth": "loopback",
    "limits.shm.size": "/dev/shm",
    "limits.nofile.soft": "open files",
    "limits.memlock": "locked memory",
    "limits.cgroup.memory": "memory limit",
    "host.container": "container",
    "cpu.usable": "usable",
    "cpu.model": "model",
    "memory.total": "memory",
    "memory.available": "available",
    "memory.swap": "swap",
    "storage.work.path": "working folder",
    "storage.work.type": "type",
    "storage.work.free": "free",
    "storage.work.latency": "small write",
    "software.torch": "torch",
    "software.nccl": "NCCL",
    "software.python": "Python",
    "software.torch.cuda": "CUDA",
    "host.kernel": "kernel",
    "env.problems": "problems",
    "env.notes": "notes",
}
"""Facts that decide most often, in plain words: the first lines of their cards, in this order."""

HEADLINE, SHORT = 5, 48
"""Facts in a card's first lines, and the characters that each may have."""


def facts_view(case: Case) -> View:
    """Cards of facts by theme.

    A card has a verdict in words, the numbers, and what could not be read, why, and how to find
    out.  The verdicts are those of the causes over these facts alone, judged now: no log is asked,
    nothing is stored.
    """
    judged = judge_facts(case.facts)
    others = []
    for f in judged:
        if f.verdict != "found":
            others.append(f)
    verdicts = rank_findings([f for f in judged if f.verdict == "found"]) + others
    body = [_card(title, facts, verdicts) for title, facts in themes.by_theme(case.facts).items()]
    return View(
        facts_summary(case.facts, verdicts),
        el("div", *body, cls="nk-cards") if body else Markup(""),
    )


def facts_summary(facts: Sequence[Fact], verdicts: Iterable[Finding]) -> str:
    """What these hosts would make a job suffer.

    It tells also how much is known of them, and how much could not be read.
    """
    if not facts:
        return "No facts have been collected yet"
    hosts = known_hosts(facts)
    blind = sum(fact.value is None for fact in facts)
    about = ""
    if hosts:
        about = f" about {host_list(hosts)}"
    read = (
        f"{plural(len(facts), 'fact')}{about};"
        f" {f'{blind:,} could not be read' if blind else 'all could be read'}"
    )
    risks = [finding for finding in verdicts if finding.verdict == "found"]
    if risks:
        return f"{plural(len(risks), 'risk')} for a job here; {read}"
    return f"No check finds a risk here; {read}"


def _cited_themes(finding: Finding) -> set[str]:
    """Themes of the facts that a finding cites."""
    found = set()
    for piece in finding.evidence:
        if isinstance(piece, Fact):
            found.add(themes.theme(piece.name))
    return found


def _card(title: str, facts: list[Fact], verdicts: list[Finding]) -> Markup:
    citing = [finding for finding in verdicts if title in _cited_themes(finding)]
    found = [finding for finding in citing if finding.verdict == "found"]
    # what is only possible stands last
    found.sort(key=lambda finding: finding.strength == "possible")
    cleared = [finding for finding in citing if finding.verdict == "clear"]
    known = [fact for fact in facts if fact.value is not None]
    blind = [fact for fact in facts if fact.value is None]
    checks = [(code(finding.cause), finding.say or "no sign of it") for finding in cleared]
    looked = table(("Check", "What it says"), checks)
    said = [_risk(finding) for finding in found]
    if not found:
        said.append(el("p", _calm(cleared, known, blind)))
    return el(
        "section",
        el("div", el("h4", title), _badge(found, cleared, known), cls="nk-card-head"),
        *said,
        _headline(known),
        fold(f"What was checked and is fine: {len(cleared)}", looked),
        fold(f"Details: {plural(len(known), 'fact')}", fit(known_table(known))),
        fold(f"Could not be read: {len(blind)}", fit(blind_table(blind))),
        cls="nk-card",
    )


def _badge(found: Sequence[Finding], cleared: Sequence[Finding], known: Sequence[Fact]) -> Markup:
    """The worst of what the causes say, as symbol and word."""
    if any(finding.strength != "possible" for finding in found):
        return badge("▲", "problem", "problem")
    if found:
        return badge("△", "risk", "likely")
    if not known:
        return badge("?", "not read", "unread")
    if cleared:
        return badge("✓", "checked", "checked")
    return badge("·", "info", "info")


def _risk(finding: Finding) -> Markup:
    """What a cause found, and behind a click what to do about it."""
    advice = [advice_part(advice) for advice in finding.advice]
    sure = finding.strength != "possible"
    return join(
        el("p", finding.say or finding.cause, cls="nk-bad" if sure else "nk-risk"),
        fold(f"What to do: {finding.cause}", *advice),
    )


def _calm(cleared: Sequence[Finding], known: Sequence[Fact], blind: Sequence[Fact]) -> str:
    """The verdict of a theme in which nothing was found.

    Unread facts are said with it, as unknown is not fine.
    """
    counts = []
    for fact in known:
        if fact.name == "gpu.count":
            counts.append(fact.value)
    if counts and not any(counts):
        return "No GPU here, so most of this card stays empty: ranks run on the CPU, over gloo."
    unread = ""
    if blind:
        unread = f" {plural(len(blind), 'fact')} could not be read."
    if not known:
        return f"Nothing of this could be read.{unread}"
    if not cleared:
        return f"No check decides on these facts alone.{unread}"
    return f"{plural(len(cleared), 'check')} looked here and found nothing wrong.{unread}"


def _headline(known: Sequence[Fact]) -> Markup:
    """The facts of a card that decide most often.

    They are told as far as they can be said in a few words.
    """
    held: dict[str, list[Fact]] = defaultdict(list)
    for fact in known:
        # a fact with a rank is of its process, not of the host
        if fact.name in FIRST and fact.rank is None:
            held[fact.name].append(fact)
    brief = []
    for name, label in FIRST.items():
        if name in held:
            brief.append((label, _brief(held[name])))
    chips = []
    for label, words in brief:
        if 0 < len(words) <= SHORT:
            chips.append(el("span", el("b", label), " ", words, cls="nk-chip"))
    if chips:
        return el("p", *chips[:HEADLINE])
    return Markup("")


def _brief(facts: Sequence[Fact]) -> str:
    """The value that most hosts have in a few words.

    Lists are told by the names of their members; empty where words fail.
    """
    by_value: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_value[repr(fact.value)].append(fact)
    most = max(by_value.values(), key=len)
    # what half of the hosts have is not the usual value
    if len(most) * 2 <= len(facts):
        return f"{len(by_value):,} different values"
    words = themes.brief(most[0].value, most[0].unit)
    if len(most) == len(facts) or not words:
        return words
    return f"{words} on {len(most):,} of {len(facts):,} hosts"


SHOWN, KINDS = 3, 50
"""Kinds of hosts that are shown in full; of further ones at most so many are named."""

Kinds = Sequence[tuple[Sequence[str], str]]
"""Hosts that are alike, and the sentence about them; the rarest first, the usual ones last."""


def kinds_summary(known: Kinds, noun: str) -> str:
    """What is usual, behind the hosts that are not like it.

    `noun` is ``machine`` or ``network``.
    """
    *rare, (hosts, usual) = known
    if not rare and len(hosts) > 1:
        return f"{usual}, on each of {len(hosts):,} hosts"
    if not rare:
        return usual
    odd = "; ".join(f"{host_list(names)}: {said}" for names, said in rare[: SHOWN - 1])
    more = ""
    if len(rare) >= SHOWN:
        more = f"; {plural(len(rare) - SHOWN + 1, 'further kind')} of {noun}"
    return f"{plural(len(known), 'kind')} of {noun}. {odd}{more}; {host_list(hosts)}: {usual}"


def further_kinds(known: Kinds, noun: str, about: str) -> Markup:
    """The kinds that have no part of their own, folded.

    `about` makes the head of their sentences.
    """
    others = [(host_list(hosts), said) for hosts, said in known[SHOWN - 1 : -1]]
    return fold(
        f"{plural(len(others), 'further kind')} of {noun}", table(("Hosts", about), others[:KINDS])
    )


BY_HAND: dict[str, tuple[str, str]] = {
    "gpu": (
        "nvidia-smi -q",
        "on the host itself, outside the container; where it hangs, look for Xid in dmesg",
    ),
    "gpu.topology": ("nvidia-smi topo -m", "on the host itself"),
    "gpu.p2p": (
        "nvidia-smi topo -p2p r",
        "on the host itself; w, n, a and p ask for the other capabilities",
    ),
    "gpu.#.nvlink": ("nvidia-smi nvlink -s", "on the host itself"),
    "gpu.#.numa": (
        "cat /sys/bus/pci/devices/*/numa_node",
        "a container or a virtual machine may hide it",
    ),
    "gpu.#.fabric": ("nvidia-smi -q | grep -A 3 Fabric", "only GPUs behind NVSwitches have one"),
    "gpu.#.ecc": ("nvidia-smi -q -d ECC", "N/A means that the GPU has none, or has it off"),
    "gpu.#.remapped_rows": ("nvidia-smi -q -d ROW_REMAPPER", "only since A100"),
    "gpu.peermem": ("lsmod | grep nvidia_peermem", "on the host itself"),
    "gpu.gdrcopy": ("lsmod | grep gdrdrv", "on the host itself"),
    "net": ("ip address; ip route", "on the host, in the container of the job"),
    "net.nccl": (
        "ip -brief address",
        "then name one that is up and has an address in NCCL_SOCKET_IFNAME",
    ),
    "net.gloo": (
        "ip -brief address",
        "then name one that is up and has an address in GLOO_SOCKET_IFNAME",
    ),
    "net.hostname": (
        "getent hosts $(hostname)",
        "no answer: the name is missing in DNS and in /etc/hosts",
    ),
    "net.rdma": ("ibstat", "or: ls /sys/class/infiniband"),
    "limits": ("ulimit -a", "in the shell or the batch script that starts the job"),
    "limits.shm": ("df -h /dev/shm", "inside the container of the job"),
    "limits.cgroup": (
        "cat /proc/self/cgroup",
        "the limits are files below /sys/fs/cgroup; your scheduler knows them too",
    ),
    "limits.ptrace_scope": (
        "cat /proc/sys/kernel/yama/ptrace_scope",
        "no such file: the kernel does not restrict it",
    ),
    "host": ("uname -a; cat /etc/os-release", "on the host"),
    "host.container": ("cat /proc/1/cgroup", "or ask who started the job"),
    "host.iommu": ("ls /sys/class/iommu", "on the host itself; dmesg says it too"),
    "cpu": ("lscpu; nproc", "inside the job: nproc says what the job may use"),
    "cpu.pressure": (
        "cat /proc/pressure/cpu",
        "no such file: the kernel was built or booted without PSI (psi=1)",
    ),
    "memory": ("free -h", "on the host"),
    "memory.swap": ("swapon --show; findmnt -T FILE", "the second says what a swap file lies on"),
    "memory.oom_kills": ("dmesg | grep -i oom", "may need root"),
    "storage": (
        "df -hT FOLDER",
        "where it hangs, the file server does not answer: ask who runs it",
    ),
    "software": ("python -m pip list", "with the training interpreter"),
    "software.torch": (
        "python -c 'import torch; print(torch.__version__)'",
        "with the training interpreter",
    ),
    "software.cudnn": (
        "python -c 'import torch; print(torch.backends.cudnn.version())'",
        "as above",
    ),
    "software.nccl": (
        "python -c 'import torch; print(torch.cuda.nccl.version())'",
        "and: ldconfig -p | grep nccl",
    ),
    "env": ("env | sort", "in the shell or the batch script that starts the job"),
    "facts": ("ncclkit inspect --json", "reading failed: please report this message"),
}
"""Beginning of a fact's name (``#`` is any number) → the command, and what else to know; the
longest one holds."""


@cache
def how_to_find_out(name: str) -> Markup:
    """How to find out the fact `name`.

    It is empty where no family of facts has that name.
    """
    parts = []
    for part in name.split("."):
        if is_whole(part):
            parts.append("#")
        else:
            parts.append(part)
    # the longest beginning first, as it is the most special one
    starts = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    found = None
    for start in starts:
        if start in BY_HAND:
            found = BY_HAND[start]
            break
    if found:
        return join(code(found[0]), f" {found[1]}")
    return Markup("")


EACH, MOST = 8, 40
"""Different values of one fact in a table, and rows of what could not be read."""


def known_table(facts: Sequence[Fact]) -> Markup:
    """One row per name and value.

    Hosts that agree share a row, and so do GPUs; rare values of many are counted.
    """
    names: dict[str, dict[str, list[Fact]]] = defaultdict(lambda: defaultdict(list))
    for fact in facts:
        # the same of each GPU: `gpu.0.model` and `gpu.1.model` stand together
        general = themes.NUMBER.sub(".N", fact.name)
        names[general][repr(fact.value)].append(fact)
    hosts = len(known_hosts(facts)) > 1
    rows: list[tuple[Markup, str, object]] = []
    for name, values in names.items():
        rows += _rows_of_values(name, list(values.values()), hosts)
    what = "Fact, and where it was read"
    # of one host and no device there is no place to tell
    if not any(place for _, place, _ in rows):
        return table((what, "Value"), [(name, shown) for name, _, shown in rows])
    placed = [(name, place or "–", shown) for name, place, shown in rows]
    return table((what, "Of", "Value"), placed)


def _rows_of_values(
    name: str, groups: list[list[Fact]], hosts: bool
) -> list[tuple[Markup, str, object]]:
    """A row for each value of one fact; each group holds the facts that agree on it."""
    # where not all are shown, those of most hosts are
    if len(groups) > EACH:
        groups.sort(key=len, reverse=True)
    rows: list[tuple[Markup, str, object]] = []
    for group in groups[:EACH]:
        first = group[0]
        shown = value(quantity(first.value, first.unit))
        where = _where(name, group, hosts)
        rows.append((_name(name, group), where, shown))
    rest = groups[EACH:]
    if rest:
        others = list(chain.from_iterable(rest))
        where = _where(name, others, hosts)
        words = f"{len(rest):,} other values"
        rows.append((code(name), where, words))
    return rows


def _where(name: str, group: Sequence[Fact], hosts: bool) -> str:
    """Which hosts and which numbers (of GPUs, say) a row speaks of."""
    numbers = themes.numbers_in(group)
    numbered = ""
    if len(group) > 1 and name != group[0].name:
        numbered = f"N = {some(numbers)}"
    return "; ".join(
        filter(None, (host_list(fact.host for fact in group) if hosts else "", numbered))
    )


def blind_table(facts: Sequence[Fact]) -> Markup:
    """Facts that could not be read, grouped by reason.

    Those of one reason and one way to find out stand together.
    """
    alike: dict[tuple[str, Markup], list[str]] = defaultdict(list)
    for fact in facts:
        why = fact.why or "the reader gave no reason"
        general = themes.NUMBER.sub(".N", fact.name)
        alike[why, how_to_find_out(fact.name)].append(general)
    rows: list[tuple[object, ...]] = []
    for (why, how), names in alike.items():
        rows.append((some(dict.fromkeys(names)), why, how or "–"))
    if len(rows) > MOST:
        further = f"{len(rows) - MOST:,} further reasons"
        rows = [*rows[:MOST], (further, "–", "–")]
    return table(("Fact", "Why not", "How to find out"), rows)


def _name(name: str, group: Sequence[Fact]) -> Markup:
    """The name as it was given where a row holds one fact.

    With it stand its rank where it has one, and its source.
    """
    ranks = known_ranks(group)
    said = ""
    if ranks:
        said = f" rank {some(sorted(ranks))}"
    return join(
        code(name if len(group) > 1 else group[0].name),
        said,
        el("div", group[0].source, cls="nk-path"),
    )


BADGES = {"breaks": ("▲", "problem"), "slows": ("◆", "likely"), "differs": ("·", "possible")}
"""Effect → symbol and colour."""
GROUPS, OPEN_ROWS = 3, 25
"""Groups of hosts of one difference that are shown at once; rows of a table before the rest is
folded."""
PIECE = 20
"""Characters of a value that is kept in one piece."""
ALONE = join(
    "Inside a Slurm allocation all nodes are read; elsewhere, give what ",
    code("ncclkit inspect --json"),
    " printed on the other hosts (",
    code("others"),
    " in 01_environment).",
)


def consistency_view(case: Case) -> View:
    """The same facts of all hosts side by side.

    It shows only what differs and matters, hosts with the same value together.
    """
    seen = compare(case.facts)
    if len(seen.hosts) < 2:
        return View(seen.summary, el("p", ALONE, cls="nk-dim"))
    return View(
        seen.summary,
        join(_counts(seen), _differences(seen.differences), _standing_out(seen), _unread(seen)),
    )


def _counts(seen: Consistency) -> Markup:
    """How many comparisons came out how."""
    effects = [found.effect for found in seen.differences]
    known: list[tuple[str, object]] = [
        (plural(len(seen.hosts), "host"), host_list(seen.hosts)),
        (f"{seen.agreed:,} agree", ""),
    ]
    for effect, means in MEANS.items():
        if effect in effects:
            known.append((f"{effects.count(effect):,} {means}", ""))
    return el(
        "p", *(el("span", el("b", number), f" {names}", cls="nk-chip") for number, names in known)
    )


def _differences(found: Sequence[Difference]) -> Markup:
    head = ("What differs", "Odd one out", "Most hosts", "Why it matters")
    return long_table(
        head,
        [(_what(each), _groups(each.outliers), _usual(each), each.why) for each in found],
        OPEN_ROWS,
        "difference",
    )


def _what(found: Difference) -> Markup:
    symbol, colour = BADGES[found.effect]
    return join(el("div", el("b", found.title)), badge(symbol, MEANS[found.effect], colour))


def _groups(groups: Sequence[HostGroup]) -> Markup:
    """A line for each group, the smallest first."""
    lines = []
    for group in groups[: GROUPS + OPEN_ROWS]:
        lines.append(el("div", _value(group), " on ", _hosts(group.hosts)))
    left = sum(len(group.hosts) for group in groups[GROUPS + OPEN_ROWS :])
    more = ""
    if left:
        more = el("div", f"… and other values on {plural(left, 'host')}")
    rest = ""
    if groups[GROUPS:]:
        rest = fold(f"{plural(len(groups) - GROUPS, 'more value')}", *lines[GROUPS:], more)
    return join(*lines[:GROUPS], rest)


def _hosts(names: Sequence[str]) -> Markup:
    """The first pieces of a list of hosts, and behind a click all of them."""
    pieces = [text for text, _ in fold_hosts(names)]
    return join(
        host_list(names),
        fold(f"all {len(names):,}", ", ".join(pieces)) if len(pieces) > HOSTS else "",
    )


def _value(group: HostGroup) -> Markup:
    """A short value in one piece, a long one in as many lines as it takes."""
    if len(group.value) <= PIECE:
        return code(group.value)
    return el("b", group.value)


def _usual(found: Difference) -> Markup:
    if found.usual is None:
        return el("span", "no value is the usual one", cls="nk-dim")
    return join(_value(found.usual), f" on {plural(len(found.usual.hosts), 'host')}")


def _standing_out(seen: Consistency) -> Markup:
    """Hosts that stand out in the same things share a row.

    Those with most of them come first.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for host, found in seen.outliers.items():
        alike.setdefault(tuple(each.title for each in found), []).append(host)
    rows = []
    for titles, names in alike.items():
        rows.append((_hosts(names), f"{len(titles):,}", ", ".join(titles)))
    if not rows:
        return Markup("")
    return join(
        el("h5", "Hosts that stand out"),
        long_table(("Host", "Differences", "In what"), rows, OPEN_ROWS),
    )


def _unread(seen: Consistency) -> Markup:
    """What only some hosts could read.

    It stands open: a host that cannot say is an odd one, too.
    """
    partly = seen.partly
    nowhere = [each for each in seen.unread if each.nowhere]
    head = ("What", "Why not", "On")
    blind = [(each.title, each.why, _on_which(each, seen)) for each in nowhere]
    return join(
        el("h5", "Could not be compared everywhere") if partly else "",
        long_table(
            head, [(each.title, each.why, _hosts(each.hosts)) for each in partly], OPEN_ROWS
        ),
        fold(f"Could be read on no host: {len(nowhere)}", fit(table(head, blind))),
    )


def _on_which(each: MissingFact, seen: Consistency) -> str:
    if len(each.hosts) < len(seen.hosts):
        return host_list(each.hosts)
    return "all hosts"
