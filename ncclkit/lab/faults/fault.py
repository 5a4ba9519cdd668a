"""A way to break a job, and the truth that a diagnosis of it has to find."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break the job, and the truth that a diagnosis has to find."""

    name: str
    says: str
    """What it will do, said before it does it."""
    cause: str
    """Id of the cause, "" for the healthy job."""
    argv: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    one_rank: bool = True
    """True: the culprit is the chosen rank; False: every rank has the fault."""
    backends: tuple[str, ...] = ("nccl", "gloo")
    job: str = "train"
    """The agent's verb for the job that is broken."""
    partner: bool = False
    """Of the chosen rank and the first one of its host nothing can tell which is wrong."""
    net: str = ""
    """What is wrong with the network of the two pretended hosts of the job (`networks.WRONG`); empty: one host."""
    hosts: tuple[str, ...] = ()
    """The culprits among them."""
    culprit: int | None = None
    """The rank that it changes where nobody names one; None: the last."""
    root: bool = False
    """Only root can do it."""
    needs: str = ""
    """An environment variable that has to name a file; empty: none."""
    get: str = ""
    """Where such a file comes from, one clause."""
