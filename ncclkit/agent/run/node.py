"""One node's share of what a launcher starts on all nodes.

Only here is the node's own number known.  A node that does not see the case folder works in a
private one; its records come over srun in any case, and then its files do, too, as one archive in
short lines.
"""

import base64
import contextlib
import io
import json
import os
import shutil
import socket
import sys
import tarfile
import tempfile
import time
import zlib

from .. import private, wire
from ..facts import gather
from . import guard, processes

PIECE = 675
"""Bytes of an archive in one line: srun passes lines of up to 1,024 bytes on in one piece."""
LARGEST = 32 << 20
"""Bytes of one file that are sent; of a larger one its end."""
PORTS = 8
"""Free ports that the first node names: one for each run until srun has to be asked again."""


def main(argv):
    """Run what the first word says on this node; returns its exit status.

    The word is see, ranks or facts.
    """
    return {"see": _see_file, "ranks": _run_ranks, "facts": _send_facts}[argv[0]](
        node_number(), argv[1:]
    )


NUMBERS = ("NCCLKIT_NODE", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Variables in which launchers tell a command that runs once on each node which one it is on."""
JOBS = ("NCCLKIT_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "OMPI_MCA_ess_base_jobid")
"""Variables that all nodes of a job have alike."""


def node_number():
    """The number of this node among those that the launcher was given, from 0."""
    for name in NUMBERS:
        number = processes.number_of(os.environ, name)
        if number is not None:
            return number
    raise SystemExit(
        "No launcher tells this node its number: none of %s is set." % ", ".join(NUMBERS)
    )


def job_name():
    """What all nodes of this job call it; "0" where nobody names it."""
    for name in JOBS:
        if os.environ.get(name):
            return os.environ[name]
    return "0"


def _see_file(number, argv):
    """``see FILE SECONDS``: when this node sees a file that was written elsewhere.

    The first node also names free ports.
    """
    path = argv[0]
    begun = time.monotonic()
    while not os.path.exists(path) and time.monotonic() - begun < float(argv[1]):
        time.sleep(0.1)
        with contextlib.suppress(OSError):
            os.listdir(os.path.dirname(path))  # what makes a network file system look again
    seconds = None
    if os.path.exists(path):
        seconds = time.monotonic() - begun
    wire.send("seen", number=number, seconds=seconds, ports=_free_ports() if number == 0 else [])
    return 0


def _free_ports():
    """Ports of this host that nobody listens on.

    They are outside of those that the kernel gives to whoever asks for any.
    """
    # jobs of several users on one host begin at different ports
    first = 20000 + zlib.crc32(job_name().encode()) % 8000
    free = []
    for port in range(first, first + 4000):
        with contextlib.closing(socket.socket()) as tried:
            try:
                tried.bind(("", port))
            except OSError:
                continue
        free.append(port)
        if len(free) == PORTS:
            break
    return free


def _run_ranks(number, argv):
    """``ranks RUN_FOLDER DEADLINE NODES RANKS_PER_NODE MASTER PORT BLIND VERB …``.

    Runs this node's torchrun, guarded.  The node's guard collects the evidence of its own ranks, so
    its deadline comes before the one of the whole run.  BLIND is the numbers of the nodes that do
    not see the folder, joined by commas.
    """
    folder, deadline, nodes, per_node, master, port, blind = argv[:7]
    wire.send("phase", phase="node", number=number)
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", nodes, "--nproc-per-node", per_node, "--node-rank", str(number)),
        *("--rdzv-backend", "static", "--rdzv-id", job_name()),
        *("--master-addr", master, "--master-port", port, sys.argv[0], *argv[7:]),
    ]
    if str(number) not in blind.split(","):
        return guard.run_guarded(folder, float(deadline), command, node=str(number))
    with _private_folder(number) as place:
        os.environ.update(
            {
                name: value.replace(folder, place)
                for name, value in os.environ.items()
                if folder in value
            }
        )
        # by which the guard knows that it is watched
        with open(os.path.join(place, "plan.json"), "w") as plan:
            plan.write("{}")
        status = guard.run_guarded(
            place,
            float(deadline),
            [word.replace(folder, place) for word in command],
            node=str(number),
        )
        os.unlink(os.path.join(place, "plan.json"))
        for problem in guard.hide_secrets(place):
            wire.send("problem", say=problem)
    return status


def _send_facts(number, argv):
    """``facts [label=path …]``: the facts of this node, as a file that is sent."""
    with _private_folder(number) as place:
        with open(os.path.join(place, "facts-node%d.jsonl" % number), "wb") as out:
            wire.use(out.fileno())
            gather.main(argv)
            wire.use(1)
    return 0


@contextlib.contextmanager
def _private_folder(number):
    """A folder of this node's own.

    What lies in it at the end is sent, and the folder goes.
    """
    place = tempfile.mkdtemp(prefix=private.PREFIX, dir=private.parent_folder())
    try:
        yield place
        _send_archive(number, _packed_folder(place))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _packed_folder(place):
    """The files of a folder as a compressed archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=3) as archive:
        for name in sorted(os.listdir(place)):
            path = os.path.join(place, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    # its end says what went wrong
                    file.seek(max(0, os.path.getsize(path) - LARGEST))
                    data = file.read(LARGEST)
                about = tarfile.TarInfo(name)
                about.size = len(data)
                archive.addfile(about, io.BytesIO(data))
    return buffer.getvalue()


def _send_archive(number, data):
    """Send an archive in lines that srun does not tear, each by one write.

    Secrets are out of it already.
    """
    for at in range(0, len(data), PIECE):
        piece = base64.b64encode(data[at : at + PIECE]).decode()
        record = {
            "ncclkit": wire.VERSION,
            "kind": "file",
            "node": number,
            "at": at,
            "of": len(data),
            "data": piece,
        }
        os.write(1, (json.dumps(record) + "\n").encode())
