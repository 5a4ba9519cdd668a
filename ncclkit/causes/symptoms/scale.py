"""It works on few ranks or one host and not on more

What it means
    The program is right as far as one host or a few ranks show.  What the larger job adds is
    the cause: a network between hosts, further pairs of GPUs, more memory per host, limits on
    descriptors and connections, or a pipeline or group that exists only there.  Find the
    smallest size that fails.

Whom not to believe
    The size itself.  "Works on one host" does not clear the network, which one host never uses;
    "fails on two" does not accuse it, for a second host also changes ranks, data and versions.
    A trial with other GPUs or other hosts of the same number is worth more than a larger one.

What to get
    all_reduce_perf at the failing size on the same hosts: if it fails too, the program is
    innocent.  Halve the ranks and hosts until one pair is left that fails (`ncclkit` bisects).
    Then interface, NCCL version and limits of the hosts, side by side.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "scale"

WORDS: tuple[str, ...] = (
    r"\bworks?(?:ed|ing)?\b(?: \w{1,12}){0,3} (?:on|with|for|in|when using) (?:only )?"
    r"(?:an?|one|1|two|2|4|8|a single|single)[ -](?:node|gpu|host|machine|server|rank"
    r"|process)\w{0,3}\b",
    r"\bsingle[- ](?:node|gpu|host|machine)\b.{0,60}\b(?:works?|fine|ok|okay|no (?:problem"
    r"|issue))\b",
    r"\b(?:hang|fail|crash|slow|stuck|error)\w{0,3}\b.{0,60}\b(?:on|with|when|for|using"
    r"|across)\b.{0,20}\b(?:multi(?:ple)?[- ]?(?:node|gpu|host|machine)|more than (?:one"
    r"|two|\d{1,4}) (?:node|gpu|host|rank))",
    r"\b(?:hang|fail|crash)\w{0,3}\b.{0,30}\b(?:if|when|once|for)\b.{0,30}(?:\b[PTDEC]P"
    r"|world[ _]size|nnodes|nodes|gpus|ranks|stages)\b.{0,6}(?:>=?|≥)",
    r"\b(?:nodes|gpus|ranks|\w{0,12}stages|world_size)`? ?(?:>=?|≥) ?\d{1,5}`?,? .{0,30}\b"
    r"(?:hang|fail|crash)",
)

SUSPECTS: Mapping[str, str] = {
    "wrong_interface": "only between hosts does the choice of interface matter",
    "p2p_broken": "only some pairs of GPUs have the broken path",
    "send_recv_mismatch": "a pipeline of more stages posts sends and receives that do not pair",
    "ib_config": "InfiniBand or RoCE is first used with the second host",
    "world_size_mismatch": "the second host's ranks are not started, or have wrong numbers",
    "network_loss": "a firewall, MTU or lost packets between the hosts",
    "version_mismatch": "the hosts have different NCCL, CUDA or plugins",
    "ib_not_used": (
        "between hosts the data goes over plain sockets, so that adding hosts makes it slower"
    ),
}
