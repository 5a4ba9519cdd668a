"""A variable has a name or value that the library does not know

What you see
    "no algorithm/protocol available", "Error : ... NCCL_ALGO", "No transport found", an INFO line that a value was
    ignored, or nothing at all: the job simply does not do what the variable was meant to make it do.

Why it happens
    NCCL and PyTorch read dozens of environment variables and reject few of them.  A misspelt name (NCCL_SOCKET_IFNAMES)
    is never read, an unknown value (NCCL_ALGO=Rng) leaves nothing to choose from or falls back silently, and a
    setting copied from another cluster (NCCL_NET=IB, NCCL_IB_HCA=mlx5_4) asks for what this one does not have.

How to be sure
    NCCL_DEBUG=INFO prints "NAME set by environment to VALUE" for each variable that was really read; what is missing
    there was not.

What to do
    Remove all NCCL_* variables, see the job work with defaults, and add back only what has a measured reason.

Read more
    NCCL user guide: Environment variables ("should be used for debugging only" is said of many of them).
"""

from __future__ import annotations

from collections.abc import Iterator

from ncclkit.agent.facts.checks import check
from ncclkit.case import Case
from ncclkit.causes._preflight import Check, Host, Risk
from ncclkit.causes._words import ask, failed, family, matching, messages, on, pick, ranks_in
from ncclkit.model import Advice, Event, Fact, Finding, Strength, found

ID = "bad_env_value"
explains = ("c10d.error", "nccl.trace", "rank_exception", "slow_rank", "c10d.timeout", "ib_not_used")


def diagnose(case: Case) -> Finding:
    """A value outside of what is allowed, or a library that says it cannot obey."""
    looked = case.of("nccl.env")
    return ask(case, _not_allowed, _refused, _without_ib, CHECK.risk) or CHECK.otherwise(
        case,
        looked or case.of("nccl.init"),
        "The settings that were read have values NCCL knows.",
        "NCCL_DEBUG=INFO, which prints what was read",
    )


def _complaints(case: Case) -> list[Event]:
    texts = ("no algorithm/protocol available", "No transport found for rank")
    return family(case, "algorithm") + matching(messages(case), *texts)


def _not_allowed(case: Case) -> Finding | None:
    """A value that NCCL read and cannot understand, by the tables of the agent."""
    wrong = [
        (event, row)
        for event in case.of("nccl.env")
        for row in check(str(event.data.get("name", "")), str(event.data.get("value", "")))
        if row["kind"] == "value"
    ]
    if not wrong:
        return None
    refused, (first, row) = _complaints(case), wrong[0]
    strength: Strength = "proven" if refused or not failed(case) else "likely"
    say = f"{row['name']}={row['value']}{on(first.host)} is {row['problem']}; {row['hint']}".rstrip("?.") + "."
    return found(ID, strength, say, pick([event for event, _ in wrong], refused), advice=_advice(row["name"]))


def _refused(case: Case) -> Finding | None:
    """The settings leave NCCL nothing to choose from."""
    lines = _complaints(case)
    if not lines:
        return None
    limits = [p for p, name, _ in _settings(case) if name in ("NCCL_ALGO", "NCCL_PROTO") or name.endswith("_DISABLE")]
    named = f" ({_text(limits[0])})" if limits else ""
    say = f"The NCCL_* settings left NCCL no algorithm or transport to use{named}."
    advice = _advice("NCCL_ALGO, NCCL_PROTO and NCCL_*_DISABLE")
    strength: Strength = "proven" if limits else "likely"
    return found(ID, strength, say, pick(lines, limits), ranks=ranks_in(lines), advice=advice)


def _without_ib(case: Case) -> Finding | None:
    """InfiniBand is demanded where there is none."""
    wants = [p for p, name, value in _settings(case) if name == "NCCL_NET" and value.upper() == "IB"]
    none = [e for e in case.of("nccl.ib_devices") if not e.data.get("devices")]
    say = "NCCL_NET=IB asks for InfiniBand, but NCCL found no such device."
    return found(ID, "likely", say, pick(wants, none), advice=_advice("NCCL_NET")) if wants and none else None


def _look(host: Host) -> Iterator[Risk]:
    """What the agent noticed in the environment; interfaces that do not exist are a cause of their own."""
    for row in host.value("env.problems") or ():
        if not (row["kind"] == "device" and row["name"].endswith("_SOCKET_IFNAME")):
            say = f"{row['name']}={row['value']}: {row['problem']}; {row['hint']}".rstrip("?.")
            facts = [host.fact(f"env.{row['name']}") or host.fact("env.problems")]
            yield Risk(say, facts, _advice(row["name"])[0], "likely")


def _settings(case: Case) -> Iterator[tuple[Event | Fact, str, str]]:
    for event in case.of("nccl.env"):
        yield event, str(event.data.get("name", "")), str(event.data.get("value", ""))
    for fact in case.facts_of("env."):
        if fact.name != "env.problems" and fact.value is not None:
            yield fact, fact.name[4:], str(fact.value)


def _text(piece: Event | Fact) -> str:
    return (
        f"{piece.name[4:]}={piece.value}"
        if isinstance(piece, Fact)
        else f"{piece.data.get('name')}={piece.data.get('value')}"
    )


def _advice(name: str) -> tuple[Advice, ...]:
    return (
        Advice(
            f"Unset {name}, see the job work with NCCL's defaults, and set it again only with a value from "
            "the user guide.",
            command="env | grep -E '^(NCCL|GLOO|TORCH_NCCL)_' | sort",
            why="NCCL ignores or rejects what it does not know, often silently.",
            check="NCCL_DEBUG=INFO prints 'set by environment to' with the value you meant.",
            risk="The variable may have hidden another fault; run the live test first.",
        ),
    )


CHECK = Check(
    ID,
    reads=("env.problems",),
    look=_look,
    fine="No variable has an unknown name or a value that cannot work.",
    also=("env.*",),
)
