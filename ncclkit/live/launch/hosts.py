"""Programs on hosts that the user named, or that the allocation holds: through ssh, srun, or any command before it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ncclkit.core.model import NcclkitError

HOST = re.compile(r"[A-Za-z0-9_][\w.:@%-]*")
"""What may be a host (or user@host): nothing that ssh or srun would take for an option or a shell for syntax."""
SSH = (
    *("ssh", "-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    *("-o", "ControlMaster=no", "-o", "ClearAllForwardings=yes", "--", "{host}"),
)
"""Whatever the user's configuration says: no question, no connection that stays, nothing forwarded."""
SRUN = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--unbuffered", "--nodelist={host}")
# any Python says which one it is (agent.connect.session.GREETING), on a line of its own whatever a shell wrote; then
# the agent comes through standard input, and lies in a file without a name, which cannot outlive this process
BOOT = (
    "import sys,tempfile as t;print('');print('ncclkit on %d.%d'%sys.version_info[:2]);sys.stdout.flush();"
    "z=t.TemporaryFile();i=sys.stdin.buffer;z.write(i.read(int(i.readline())));z.flush();"
    "sys.path.insert(0,'/proc/self/fd/%d'%z.fileno());from ncclkit.agent.connect.worker import main;sys.exit(main())"
)


def commands(hosts: Sequence[str], via: str, python: str) -> dict[str, list[str]]:
    """Host (without ``user@``, which is for ssh alone) → the argv that starts the worker there.

    via: ``ssh``, ``srun``, or the words before a command with ``{host}`` in them; python: the interpreter on the hosts.
    Raises NcclkitError for names that are no hosts and prefixes without a place for them.
    """
    words = {"ssh": SSH, "srun": SRUN}.get(via) or _split(via)
    peer = [python, "-I", "-c", BOOT]
    if via == "ssh":  # it joins the words with blanks and hands them to a shell over there
        peer = [shlex.quote(word) for word in peer]
    return {
        checked(host).rpartition("@")[2]: [word.replace("{host}", checked(host)) for word in words] + peer
        for host in hosts
    }


def checked(host: str) -> str:
    """The host name as given; raises NcclkitError for what cannot be one."""
    if not isinstance(host, str) or not HOST.fullmatch(host):
        raise NcclkitError(f"{host!r} is not a host name or an address; write names like node-1 or 10.0.0.1.")
    return host


def _split(via: str) -> list[str]:
    try:
        words = shlex.split(via)
    except ValueError as error:
        raise NcclkitError(f"The prefix {via!r} cannot be split into words ({error}); close its quotes.") from error
    if not any("{host}" in word for word in words):
        raise NcclkitError(
            f"{via!r} is neither ssh nor srun nor a prefix with {{host}} in it, as 'kubectl exec {{host}} --'."
        )
    return words
