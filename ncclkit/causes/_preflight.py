"""What the facts of hosts mean for a job that would run there.

They mean a risk, and do not explain a job that ran.  A cause says which facts decide
(`Preflight.reads`) and what those of one host mean (`Preflight.risks`); the rest is the same for
all of them and stands here: hosts with the same risk share a sentence, a fact that could not be
read is named with its reason, and beside a job that failed a risk is merely possible, since what
the job itself says weighs more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ncclkit.agent.digits import is_whole, whole_number, whole_numbers
from ncclkit.analysis.once import once
from ncclkit.analysis.picks import failed, pick
from ncclkit.core.case import Case
from ncclkit.core.model import (
    Advice,
    Evidence,
    Experiment,
    Fact,
    Finding,
    Strength,
    clear,
    found,
    unknown,
)
from ncclkit.core.text import ranks, start

SENTENCES = 2
"""Risks that a finding says in words before it counts the others."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The facts of one host that a check asked for."""

    name: str
    facts: dict[str, Fact] = field(default_factory=dict)

    def fact(self, name: str) -> Fact | None:
        """The fact, where it could be read."""
        fact = self.facts.get(name)
        if fact and fact.value is not None:
            return fact
        return None

    def value(self, name: str) -> Any:
        """Its value; None where it could not be read."""
        if fact := self.fact(name):
            return fact.value
        return None

    def number(self, name: str) -> float | None:
        """Its value where that is a number, be it written as text (variables)."""
        return number(self.value(name))

    def each(self, pattern: str) -> dict[str, Fact]:
        """What ``*`` stands for → the fact, for ``gpu.*.mig`` the GPU's index.

        Facts that could not be read are among them.
        """
        head, _, tail = pattern.partition("*")
        fact_of_name = {}
        for name, fact in self.facts.items():
            if name.startswith(head) and name.endswith(tail):
                fact_of_name[name[len(head) : len(name) - len(tail)]] = fact
        return fact_of_name

    def gpus(self, what: str) -> dict[str, Fact]:
        """GPU index → the fact ``gpu.<index>.<what>``, where it could be read.

        An index may stand in a command.
        """
        facts = self.each(f"gpu.*.{what}")
        fact_of_gpu = {}
        for gpu, fact in facts.items():
            if is_whole(gpu) and fact.value is not None:
                fact_of_gpu[gpu] = fact
        return fact_of_gpu

    @property
    def ranks(self) -> int:
        """Ranks that the job is to have on this host.

        They are as many as it has GPUs, unless the user says otherwise.
        """
        return int(self.number("job.ranks") or self.gpu_count)

    @property
    def gpu_count(self) -> int:
        """GPUs of the host, 0 where that is not known."""
        return int(self.number("gpu.count") or 0)

    def unread(self, names: Iterable[str]) -> list[Fact]:
        """Those of these facts, or patterns, of which none has a value."""
        blind = []
        for name in names:
            if "*" in name:
                facts = [*self.each(name).values()]
            else:
                facts = [self.facts.get(name) or Fact(name, host=self.name)]
            # of a pattern one GPU that answers is enough to be judged
            if all(fact.value is None for fact in facts):
                blind.append(facts[0] if facts else Fact(name, host=self.name))
        return blind


@dataclass(frozen=True, slots=True)
class Risk:
    """What facts of one host mean for a job."""

    summary: str
    """A clause that follows the name of the host: ``/dev/shm has 64 MiB, so a job would …``."""
    facts: Sequence[Fact | None]
    advice: Advice
    strength: Strength = "possible"
    gpus: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    more: tuple[Advice, ...] = ()
    """What helps less than `advice`."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """How a cause judges hosts by their facts alone."""

    cause: str
    reads: tuple[str, ...]
    """The deciding facts, or patterns such as ``gpu.*.mig``.

    A host of which one is not known is not clear.  Where GPUs decide, hosts that have none do not
    matter.
    """
    risks: Callable[[HostFacts], Iterable[Risk]]
    fine: str
    """What is said where all is well."""
    next: Callable[[Case], Experiment]
    """The experiment that separates the risk from the other suspects."""
    also: tuple[str, ...] = ()
    """Facts that `risks` can use besides."""

    def risk(self, case: Case) -> Finding | None:
        """The risks of all hosts as one finding, the gravest first."""
        seen = []
        for host in _hosts_with_facts(case, self.reads + self.also):
            for risk in self.risks(host):
                seen.append((risk, host.name))
        if not seen:
            return None
        # the gravest first: two of them are said in words, the rest is counted
        seen.sort(key=lambda pair: pair[0].strength != "likely")
        risks = [risk for risk, _ in seen]
        gpus: set[str] = set()
        for risk in risks:
            gpus.update(risk.gpus)
        return found(
            self.cause,
            # what a job itself says weighs more than what its hosts might do to one
            "possible" if failed(case) else risks[0].strength,
            _risk_sentences(seen),
            pick(*([fact for fact in risk.facts if fact] for risk in risks)),
            hosts=tuple(sorted({name for _, name in seen if name})),
            gpus=tuple(sorted(gpus)),
            interfaces=_without_repeats(name for risk in risks for name in risk.interfaces),
            advice=tuple(
                {one.do: one for risk in risks for one in (risk.advice, *risk.more)}.values()
            )[:3],
            next=self.next(case),
        )

    def otherwise(
        self, case: Case, went_well: Sequence[Evidence], summary: str, missing: str
    ) -> Finding:
        """``clear`` by what the job shows, else by the facts unless a job failed.

        Where neither says so it is ``unknown``.
        """
        if went_well:
            return clear(self.cause, summary, tuple(went_well[:3]))
        hosts = _hosts_with_facts(case, self.reads)
        if any(name.startswith("gpu.*.") for name in self.reads):
            hosts = []
            for host in _hosts_with_facts(case, (*self.reads, "gpu.count")):
                if host.value("gpu.count") != 0:
                    hosts.append(host)
        blind = []
        for host in hosts:
            blind.extend(host.unread(self.reads))
        if hosts and not blind and not failed(case):
            read = []
            for host in hosts:
                for fact in host.facts.values():
                    if fact.value is not None:
                        read.append(fact)
            return clear(self.cause, self.fine, tuple(read[:3]))
        return unknown(self.cause, missing, *[_fact_with_reason(fact) for fact in blind[:3]])


def number(value: object) -> float | None:
    """A number, also one written as text (variables); None for anything else."""
    if isinstance(value, str):
        return whole_number(value.strip())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    return None


def name_gpus(gpus: Iterable[str]) -> str:
    """``GPU 3``, ``GPUs 0-7``."""
    return ranks(whole_numbers(gpus)).replace("rank", "GPU", 1)


def _hosts_with_facts(case: Case, names: Sequence[str]) -> list[HostFacts]:
    """The hosts of the case with those of their facts that are asked for.

    What the job is to be holds for each host.
    """
    known, places = _places_of_names(case)
    asked = []
    for at in sorted(at for name in _matching_names(tuple(names), known) for at in places[name]):
        asked.append(case.facts[at])
    job = {}
    for fact in asked:
        # what the job is to be was told once, and holds on each host
        if fact.name.startswith("job.") and fact.name in names:
            job[fact.name] = fact
    hosts: dict[str, HostFacts] = {}
    for fact in asked:
        if fact.name not in job:
            hosts.setdefault(fact.host, HostFacts(fact.host)).facts[fact.name] = fact
    for host in hosts.values():
        host.facts.update(job)
    return list(hosts.values())


@once
def _places_of_names(case: Case) -> tuple[frozenset[str], dict[str, list[int]]]:
    """The names of all facts, and where the facts of each name stand.

    Each of many checks asks for a few.
    """
    places: dict[str, list[int]] = {}
    # each of 46 causes asks for a few facts: one index in place of 46 walks over all hosts
    for at, fact in enumerate(case.facts):
        places.setdefault(fact.name, []).append(at)
    return frozenset(places), places


@lru_cache(maxsize=256)
def _matching_names(names: tuple[str, ...], known: frozenset[str]) -> tuple[str, ...]:
    """Those of the known names that are asked for, by name or by a pattern."""
    heads, tails = (
        tuple(name.split("*")[part] for name in names if "*" in name) for part in (0, 1)
    )
    matching_names = []
    for name in known:
        if name in names or (name.startswith(heads) and name.endswith(tails)):
            matching_names.append(name)
    return tuple(matching_names)


def _risk_sentences(seen: Sequence[tuple[Risk, str]]) -> str:
    """The first risks in words, each once with the hosts that share it."""
    said: dict[str, list[str]] = {}
    for risk, host in seen:
        said.setdefault(risk.summary, []).append(host)
    sentences = []
    for say, hosts in said.items():
        sentences.append(start(f"{_hosts_in_words(hosts)}{say}."))
    more = len(sentences) - SENTENCES
    sentences = sentences[:SENTENCES]
    if more == 1:
        sentences.append("1 more such sign.")
    elif more > 1:
        sentences.append(f"{more} more such signs.")
    return " ".join(sentences)


def _hosts_in_words(hosts: Sequence[str]) -> str:
    """``On node-1 ``, ``On node-1 and 6 other hosts ``.

    It is nothing where the facts name no host.
    """
    others = len(set(hosts)) - 1
    more = ""
    if others:
        more = f" and {others} other host{'s' if others > 1 else ''}"
    if hosts[0]:
        return f"on {hosts[0]}{more} "
    return ""


def _fact_with_reason(fact: Fact) -> str:
    where = ""
    if fact.host:
        where = f" of {fact.host}"
    why = ""
    if fact.why:
        why = f" (not read: {fact.why})"
    return f"{fact.name}{where}{why}"


def _without_repeats(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
