"""The lead of a connection test: starts one peer per host, tells them whom to try, and sends what they found.

Records: ``fact`` (of each host's network), ``connect.host``, ``connect.pair`` (docs/events.md has their fields).
"""

import asyncio
import json
import secrets
import signal
import sys
from itertools import chain
from typing import Any

from .. import wire
from .session import Trial
from .transport import Peer

CLOSING = 5.0
"""Seconds before the deadline at which no further pair is measured."""


def main(argv):
    """``connect PLAN``: the file holds hosts, commands (how to start a peer), port, seconds, deadline and env."""
    with open(argv[0], encoding="utf-8") as file:
        plan = json.load(file)
    with open(sys.argv[0], "rb") as file:
        archive = file.read()
    return asyncio.run(lead(plan, archive))


async def lead(plan, archive):
    """Exit status 0; 1 where fewer than two hosts could be started."""
    task: Any = asyncio.current_task()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    trial = Trial(plan, secrets.token_hex(16))
    peers = {name: Peer(name, plan["commands"][name]) for name in plan["hosts"]}
    try:
        await asyncio.gather(*(peer.start(archive) for peer in peers.values()))
        await trial.run(peers, plan["deadline"] - CLOSING)
    finally:
        facts = (fact for peer in peers.values() for fact in peer.facts)
        for record in chain(facts, trial.records(peers)):  # also of a test that was cancelled: what is known is told
            wire.send(**record)
        await asyncio.gather(*(peer.stop() for peer in peers.values()))
    return 0 if sum(not peer.problem for peer in peers.values()) > 1 else 1
