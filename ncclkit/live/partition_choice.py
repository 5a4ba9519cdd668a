"""Which partitions could take a job instead: only what can help is named.

In come rows of the fact ``scheduler.partitions`` and the accounts of this user.  Out come clauses
for a hint: partitions that are open to the user, and why the others are not.
"""

from __future__ import annotations

import grp
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ncclkit.core.text import some

Row = Mapping[str, Any]

EVERYBODY = ("", "ALL", "(null)")
"""How Slurm writes that a list of accounts or groups leaves nobody out."""


NO_LIMIT = ("", "UNLIMITED", "INFINITE")
"""How Slurm writes that a job may run as long as it likes."""


def names_of(listed: str) -> set[str]:
    """The names in a list of Slurm's; none where it is for everybody."""
    if listed in EVERYBODY:
        return set()
    return set(filter(None, listed.split(",")))


def own_groups() -> set[str]:
    """The groups of this user; a group without a name is left out."""
    found = set()
    for number in {os.getegid(), *os.getgroups()}:
        try:
            found.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return found


def why_closed(row: Row, accounts: Iterable[str]) -> str:
    """Why a partition takes no job of this user; empty where it may.

    It is said as far as that is known.  `accounts` are those that the job may be charged to; none
    where they are not known.
    """
    if row["state"] not in ("", "UP"):
        return f"is {row['state']}"
    own = set(accounts)
    allowed = names_of(row["accounts"])
    if own and allowed and not own & allowed:
        return f"is for account {some(sorted(allowed))}"
    denied = names_of(row.get("denied_accounts", ""))
    if own and own <= denied:
        return f"does not take account {some(sorted(own))}"
    groups = names_of(row.get("groups", ""))
    if groups and not groups & own_groups():
        return f"is for group {some(sorted(groups))}"
    return ""


def open_partitions(rows: Sequence[Row], accounts: Iterable[str]) -> list[Row]:
    """The partitions that may take a job of this user, in their order."""
    own = list(accounts)
    found = []
    for row in rows:
        if not why_closed(row, own):
            found.append(row)
    return found


def partitions_in_words(rows: Sequence[Row], accounts: Iterable[str]) -> str:
    """``there is cpu, debug; closed is for account ml``."""
    own = list(accounts)
    names = [row["name"] for row in open_partitions(rows, own)]
    parts = []
    if names:
        parts.append(f"there is {some(names)}")
    for row in rows:
        why = why_closed(row, own)
        if why:
            parts.append(f"{row['name']} {why}")
    return "; ".join(parts)


def _with_limit(row: Row) -> str:
    """``short for up to 00:01:00``: it may be too short for the job."""
    if row["time_limit"] in NO_LIMIT:
        return str(row["name"])
    return f"{row['name']} for up to {row['time_limit']}"


def account_or_partition(row: Row, rows: Sequence[Row], accounts: Sequence[str]) -> str:
    """What to name where a partition does not take the account of a job.

    It is an account only where this user has one that the partition takes.
    """
    ways = []
    taken = []
    for account in accounts:
        if not why_closed(row, [account]):
            taken.append(account)
    if taken:
        ways.append(f"account {' or '.join(taken)} with -A")
    others = []
    for other in open_partitions(rows, accounts):
        if other["name"] != row["name"]:
            others.append(_with_limit(other))
    if others:
        ways.append(f"another partition with -p ({some(others)})")
    if not ways:
        return "no other: none takes your account, so ask administrators"
    return ", or ".join(ways)
