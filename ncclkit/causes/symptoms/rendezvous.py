"""The rendezvous does not complete

What it means
    Before any collective the ranks meet at one address: MASTER_ADDR and MASTER_PORT, or
    torchrun's endpoint.  Some rank does not get there, or not all have come before the limit.
    Causes lie in addresses, names, ports, and in processes that were never started or died at
    once.

Whom not to believe
    The ranks that wait and time out are healthy.  "Address family not supported" (errno: 97) is
    a harmless try of IPv6, and a few "Connection refused" at the start are retries.  A store
    that goes away later (recv got 0 bytes) means that rank 0's process has ended.

What to get
    How many ranks joined of how many, and which host is missing: is its process alive, what did
    it print last?  From another host `getent hosts $MASTER_ADDR` and
    `nc -vz $MASTER_ADDR $MASTER_PORT`; on the master `ss -ltnp | grep PORT`.  Then nnodes,
    node_rank and WORLD_SIZE on each host.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "rendezvous"

WORDS: tuple[str, ...] = (
    r"\bRendezvous(?:Connection|Timeout|Closed|State|Graceful)?\w{0,10}Error\b",
    r"\bclient socket has timed out\b",
    r"\bclient socket has failed to connect to any\b",
    r"\bclient socket has failed to connect\b(?!.{0,120}errno: (?:97|111)\b)",
    r"\bTimed out after .{0,40}waiting for clients\b",
    r"\bTimed out initializing process group\b",
    r"\bwait timeout after \d",
    r"\bconnect\(\) timed out\b",
    r"(?<!got error: )\bSocket Timeout\b",
    r"\bconnection to the C10d store has failed\b",
    r"\bTCP client failed to connect\b",
    r"\bserver socket has failed to (?:listen|bind)\b",
    r"\bEADDRINUSE\b|\bAddress already in use\b",
    r"\bhost not found: Name or service\b",
    r"\bGloo connectFullMesh failed\b",
    r"\b(?:While )?waitForInput\b.{0,120}\b(?:failed|timed out)\b",
    r"NCCL (?:WARN|ATTN) .{0,80}connect(?!ion).{0,120}(?:timed out|refused|No route to host)",
    r"\b(?:cannot|can't|could not|failed to|unable to) connect to .{0,30}\b(?:MASTER_ADDR"
    r"|master|head)\b",
    r"\b(?:hang|stuck|freez|wait|block)\w{0,4}\b.{0,40}\b(?:init_process_group|rendezvous)\b",
)

SUSPECTS: Mapping[str, str] = {
    "port_in_use": "the port belongs to another job or to a process left over from the last run",
    "hostname_resolution": "the master's name does not resolve, or resolves to the machine itself",
    "store_unreachable": "the address is wrong or a firewall stands before the port",
    "world_size_mismatch": "fewer ranks were started than expected, or two have the same number",
    "wrong_interface": "gloo or the store uses an address that other hosts cannot reach",
    "slow_rank": "one rank comes late: it loads, downloads or prepares data first",
    "host_oom": "one rank was killed or swaps before it joins",
    "rank_exception": "one rank failed at once with an error of its own",
}
