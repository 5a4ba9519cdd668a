"""Scripts one after the other, for torchrun: each rank forks for each script, and so loads torch once.

What a rank prints goes to FOLDER/SCRIPT.RANK.
"""

import importlib
import os
import socket
import sys
import traceback

from torch.distributed import TCPStore

from ncclkit.agent.run import processes

WARM = ("torch.nn.parallel.distributed", "torch._dynamo", "torch.distributed.fsdp")
"""What most scripts import: loaded once, before the forks."""


def main(folder: str, scripts: list[str]) -> None:
    """Run each script in a fork of this rank, with a store of its own."""
    processes.die_with_parent(os.getppid())
    for name in WARM:
        importlib.import_module(name)
    ranks = int(os.environ["WORLD_SIZE"])
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    ports = TCPStore(*place, ranks, False)
    for script in scripts:
        if os.environ["RANK"] == "0":
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                ports.set(script, str(probe.getsockname()[1]))
        port = ports.get(script).decode()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            processes.die_with_parent(parent)
            os.environ.update(MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="False")
            _run_script(folder, script)
        os.waitpid(pid, 0)


def _run_script(folder: str, script: str) -> None:
    """Run a script in this process; never returns."""
    name = os.path.basename(script)
    output = open(os.path.join(folder, f"{name}.{os.environ['RANK']}"), "wb")
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    sys.argv = [script]
    # its groups stay: gloo may hang where it takes them down while other ranks still do
    names = {"__name__": "__main__", "__file__": script}
    status = 0
    try:
        with open(script) as source:
            exec(compile(source.read(), script, "exec"), names)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)


main(sys.argv[1], sys.argv[2:])
