"""One host's part in a connection test: it does what the lead writes on its standard input, and leaves nothing behind.

It opens connections only to the addresses that the lead names, and ends when the lead closes its input, at the latest
after the time that it was given.
"""

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from itertools import chain

from .. import wire
from ..facts import network, variables
from ..facts.machine import Machine
from . import client
from .server import Listener

NETWORK = ("net.interfaces", "net.default", "net.hostname.addresses", "net.nccl.interface", "net.gloo.interface")
"""The facts that a connection test looks at."""
RESOLVE = 5.0
"""Seconds that the resolver gets for all names together."""


def main():
    """Obey until the input ends; each line is ``{"id": n, "do": verb, …}`` and gets one record ``answer``."""
    host = None
    threading.Thread(target=_end_with_the_lead, daemon=True).start()
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if asked["do"] == "begin":
            host = Peer(asked)
        wire.send("answer", id=asked["id"], **getattr(host, asked["do"])(asked))
    return 0


def _end_with_the_lead():
    """In the middle of whatever is measured: once its end of our input is closed, that is for nobody any more."""
    line = select.poll()
    line.register(0, select.POLLRDHUP)  # and POLLHUP, which is always told
    line.poll()
    os._exit(0)


class Peer:
    """What this host knows of the test."""

    def __init__(self, asked):
        signal.alarm(int(asked["lifetime"]))  # whatever happens to the lead and to the wire
        os.environ.update(asked["env"])
        self.name, self.token = asked["name"], asked["token"]
        self.data = Listener(self.name, self.token)
        self.rendezvous = None

    def begin(self, asked):
        """Open the ports; tell the facts of this host's network, and what NCCL and gloo would use."""
        said = {"hostname": socket.gethostname(), "port": self.data.port, "refused": ""}
        try:
            self.rendezvous = Listener(self.name, self.token, asked["rendezvous"])
        except OSError as error:
            said["refused"] = os.strerror(error.errno) if error.errno else str(error)
        told = {}
        for fact in facts():
            wire.send("fact", host=said["hostname"], **fact)
            told[fact["name"]] = fact
        return dict(said, **{name[4:]: {key: told[name][key] for key in ("value", "why")} for name in NETWORK})

    def end_rendezvous(self, asked):
        """Free the port as soon as everybody has knocked: a job may want it."""
        if self.rendezvous:
            self.rendezvous.close()
        return {}

    def resolve(self, asked):
        """{name: its addresses, or the resolver's error}."""
        return {"names": resolve(asked["names"])}

    def reach(self, asked):
        """How a connection to each of ``targets`` [name, address, port] ends, in their order."""
        return {"ends": _each(self._reach, asked["targets"], client.CONNECT * 3, "silent")}

    def _reach(self, target):
        name, address, port = target
        return client.reach(address, port, self.token, self.name, name)

    def measure(self, asked):
        """Latency, clock, path MTU and bandwidth to one open port."""
        return client.measure(asked["address"], asked["port"], self.token, asked["stream"])


def facts():
    """Facts of this host's network without its measurements, then the variables."""
    machine = Machine()
    return chain(_until(network.facts(machine), set(NETWORK)), variables.facts(machine))


def _until(facts, wanted):
    """These facts, up to the last one that is wanted: those that take time come later."""
    for fact in facts:
        yield fact
        wanted.discard(fact["name"])
        if not wanted:
            return


def resolve(names):
    """{name: addresses in the resolver's order, or its error as text}; a resolver that hangs is an error, too."""
    return dict(zip(names, _each(_addresses, names, RESOLVE, "the resolver did not answer within %g s" % RESOLVE)))


def _addresses(name):
    try:
        found = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", "") or str(error)
    return list(dict.fromkeys(entry[4][0] for entry in found))


def _each(work, items, seconds, late):
    """`work` of each item, side by side; `late` for those that take longer than that."""
    results = [late] * len(items)

    def one(place, item):
        results[place] = work(item)

    threads = [threading.Thread(target=one, args=item, daemon=True) for item in enumerate(items)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return list(results)
