"""A script: the addresses a host name resolves to, in the order that gloo tries them.  Prints a JSON list."""

from __future__ import annotations

import json
import socket
import sys


def main() -> None:
    """Resolve the first argument; each address once."""
    try:
        found = socket.getaddrinfo(sys.argv[1], None, 0, socket.SOCK_STREAM)
    except OSError as error:
        sys.exit("%s does not resolve: %s" % (sys.argv[1], error.strerror or error))
    addresses = []
    for entry in found:
        if entry[4][0] not in addresses:
            addresses.append(entry[4][0])
    print(json.dumps(addresses))


main()
