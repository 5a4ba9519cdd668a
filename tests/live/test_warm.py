"""What tests fork instead of starting it is, for all who look at it, as if it had been started."""

from __future__ import annotations

import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

from ncclkit.agent import private
from ncclkit.live.launch.pack import packed
from tests.namespaces import hosts, needs_namespaces
from tests.processes import WARM, warm

RANK = """
import json, os, sys, time
def own(name):
    with open("/proc/self/" + name) as file:
        return file.read().split(chr(0))[:-1]
rank = os.environ["RANK"]
told = {
    "rank": rank,
    "torch": "torch" in sys.modules,
    "words": [word for word in own("cmdline") if word],
    "argv": sys.argv,
    "strange": sorted(set(filter(None, own("environ"))) ^ {f"{name}={value}" for name, value in os.environ.items()}),
    "leads": os.getsid(0) == os.getpid() != os.getppid(),
    "files": [name for name in os.listdir("/proc/self/fd") if int(name) > 3],
}
with open(f"{sys.argv[1]}/{rank}.part", "w") as out:
    json.dump(told, out)
os.rename(out.name, f"{sys.argv[1]}/{rank}")
# The launcher ends all ranks when one fails: the one that fails waits for what the other tells.
deadline = time.monotonic() + 60
while not os.path.exists(f"{sys.argv[1]}/0") and time.monotonic() < deadline:
    time.sleep(0.05)
assert rank == "0", "the other one fails"
"""


@pytest.mark.slow
def test_a_forked_rank_has_its_own_words_variables_session_and_end(tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(
        [*command, str(tmp_path)], env=warm(os.environ), capture_output=True, text=True, timeout=90, check=False
    )
    for rank in ("0", "1"):
        assert json.loads((tmp_path / rank).read_text()) == {
            "rank": rank,
            "torch": True,
            "words": [sys.executable, "-u", str(program), str(tmp_path)],
            "argv": [str(program), str(tmp_path)],
            "strange": [],
            "leads": True,
            "files": [],
        }
    assert done.returncode == 1 and "AssertionError: the other one fails" in done.stderr
    assert "rank      : 1 (local_rank: 1)\n  exitcode  : 1" in done.stderr


PROGRAM = """
import json, os, resource, sys, time
def own(name, pid="self"):
    with open(f"/proc/{pid}/{name}") as file:
        return file.read().split(chr(0))[:-1]
guard = os.getppid()
told = {
    "pid": os.getpid(),
    "guard": guard,
    "words": [word for word in own("cmdline", guard) if word],
    "given": sorted(item for item in own("environ", guard) if item.startswith("GIVEN=")),
    "leads": os.getsid(guard) == guard,
    "folder": os.readlink(f"/proc/{guard}/cwd"),
    "files": resource.prlimit(guard, resource.RLIMIT_NOFILE)[0],
    "torch": any("libtorch" in line for line in open(f"/proc/{guard}/maps")),
    "spaces": [os.readlink(f"/proc/{guard}/ns/{kind}") for kind in ("mnt", "net", "uts")],
}
print(json.dumps(told), flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(7)
"""


@contextmanager
def guard(
    tmp_path: Path, seconds: float, *prefix: str, **env: str
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A guard that is started as those of live tests are, and what the program that it runs tells of it."""
    with packed() as agent:
        command = [sys.executable, str(agent), private.OWN, "guard", str(tmp_path), "60", sys.executable, "-c", PROGRAM]
        environ = warm(os.environ) | {"GIVEN": "here"} | env
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(
            [*prefix, *command, str(seconds)], cwd=tmp_path, env=environ, preexec_fn=few_files, **pipes
        ) as process:
            assert process.stdout
            assert json.loads(process.stdout.readline())["kind"] == "guard"
            told = json.loads(process.stdout.readline())
            assert told["words"] == [*command, str(seconds)] and told["given"] == ["GIVEN=here"]
            assert told["folder"] == str(tmp_path) and told["files"] == 300
            yield process, told


def few_files() -> None:
    """In the process that is started: a limit of its own."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))


def ends(pid: int) -> bool:
    """Whether a process is gone soon."""
    until = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
def test_a_forked_guard_is_as_one_that_was_started(tmp_path: Path) -> None:
    """Words, variables, folder, limit, session; it ends as told, and whoever stands in for it ends as it does."""
    with guard(tmp_path, 0, KMP_INIT_AT_FORK="FALSE") as (process, told):  # as scikit-learn sets it in this process
        assert told["guard"] != process.pid and told["torch"] and told["leads"]
        assert process.wait(30) == 1, "the exit status of a guard whose command failed"
        assert json.loads((tmp_path / "status.json").read_text())["exitcode"] == 7
    with guard(tmp_path, 100) as (process, told):
        assert process.stdin
        process.stdin.close()
        assert process.wait(30) == 4 and ends(told["pid"])
    with guard(tmp_path, 100) as (process, told):
        os.kill(told["guard"], signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL and ends(told["pid"])
    with guard(tmp_path, 100) as (process, told):
        process.kill()
        assert ends(told["guard"]) and ends(told["pid"])


@pytest.mark.slow
@needs_namespaces
def test_what_is_forked_for_another_host_is_there(tmp_path: Path) -> None:
    with hosts(1) as (host,), guard(tmp_path, 0, *host.prefix) as (process, told):
        spaces = [os.readlink(f"/proc/{host.holder}/ns/{kind}") for kind in ("mnt", "net", "uts")]
        assert told["torch"] and told["guard"] != process.pid and told["spaces"] == spaces
        assert not {os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "net", "uts")} & {*spaces}


@pytest.mark.slow
def test_what_cannot_be_forked_is_started(tmp_path: Path) -> None:
    """A variable that is read when Python starts."""
    with guard(tmp_path, 0, PYTHONOPTIMIZE="1") as (process, told):
        assert told["guard"] == process.pid and not told["torch"]


KERNEL = """
import json, os, sys
def own(name):
    with open("/proc/self/" + name) as file:
        return [word for word in file.read().split(chr(0)) if word]
told = {
    "pid": os.getpid(), "leads": os.getsid(0) == os.getpid(), "words": own("cmdline"), "folder": os.getcwd(),
    "given": [item for item in own("environ") if item.startswith("GIVEN=")], "path": os.getcwd() not in sys.path,
    "there": "ipywidgets" in sys.modules,
}
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.parametrize("unread", [True, False], ids=["before the end", "after the end"])
def test_a_signal_beside_the_end_of_what_was_forked_changes_nothing(tmp_path: Path, unread: bool) -> None:
    """It ends as that one did: it reports no lost line, and does not start the same once more."""
    place = runpy.run_path(str(WARM / "sitecustomize.py"))["place"]
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(tmp_path / "notebooks"))
    listening.listen(1)
    listening.settimeout(60)
    environ = warm(os.environ) | {"NCCLKIT_TESTS_NOTEBOOKS": str(tmp_path / "notebooks")}
    command = [sys.executable, "-m", "ncclkit", "report", "--help"]
    waiting = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with listening, listening.accept()[0] as line:
        line.settimeout(60)
        line.send(json.dumps(place()).encode())
        asked, files, *_ = socket.recv_fds(line, 1 << 20, 3)
        assert json.loads(asked)["words"][1:] == command[1:]
        for file in files:
            os.close(file)
        if unread:
            waiting.send_signal(signal.SIGTERM)
            assert select.select([line], [], [], 60)[0]
        waiting.send_signal(signal.SIGSTOP)
        waiting.send_signal(signal.SIGTERM)
        line.send(b"7")
    waiting.send_signal(signal.SIGCONT)
    assert waiting.communicate(timeout=60) == ("", "") and waiting.returncode == 7


@pytest.mark.slow
def test_a_forked_kernel_is_as_one_that_was_started(tmp_path: Path) -> None:
    """Words, variables, folder, session; it can be interrupted, and ends with whoever stands in for it."""
    manager = KernelManager()
    manager._kernel_spec = KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    manager.start_kernel(env=warm(os.environ) | {"GIVEN": "here"}, cwd=str(tmp_path), stdout=subprocess.DEVNULL)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        told = json.loads(_printed(client, KERNEL))
        assert told["words"] == [sys.executable, "-m", "ipykernel_launcher", "-f", manager.connection_file]
        assert (told["given"], told["folder"]) == (["GIVEN=here"], str(tmp_path))
        assert told["leads"] and told["there"] and told["path"] and told["pid"] != manager.provisioner.pid
        client.execute("import time; print('asleep', flush=True); time.sleep(100)")
        while client.get_iopub_msg(timeout=30)["content"].get("text") != "asleep\n":
            pass
        manager.interrupt_kernel()
        assert client.get_shell_msg(timeout=30)["content"]["ename"] == "KeyboardInterrupt"
        os.kill(manager.provisioner.pid, signal.SIGKILL)
        assert ends(told["pid"])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _printed(client: Any, code: str) -> str:
    """What a cell prints; all that it sends is read."""
    said: list[dict[str, Any]] = []
    client.execute_interactive(code, timeout=60, output_hook=lambda message: said.append(message["content"]))
    return "".join(content.get("text", "") for content in said)
