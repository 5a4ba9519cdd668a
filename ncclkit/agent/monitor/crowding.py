"""How much longer everything takes on this host, as others use its cores."""

import os

MOST = 4.0
"""A host that is fuller than that is not waited for any longer."""


def crowding_here():
    """1.0 on a host with a free core; 3.0 where three processes ask for each core."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        return 1.0
    return min(MOST, max(1.0, load / (os.cpu_count() or 1)))
