"""JupyterLab on one notebook: on the loopback address, behind a token, with the ssh line that reaches it."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import sys
from pathlib import Path
from urllib.parse import quote

from ncclkit.core.model import NcclkitError

HERE = Path(__file__).parent


def open_lab(notebook: Path, port: int = 8888) -> None:
    """Say how to reach it, then become the JupyterLab server of this interpreter; does not return.

    `port` or the next free one above it is taken.  Kernels work in the folder where this is called, as the command
    does: a case folder and a path of logs mean the same in both.  The user's own Jupyter configuration stays in force;
    news and update checks, which would ask the internet, are off unless that configuration switches them on.
    """
    notebook = Path(notebook).absolute()
    if not notebook.is_file():
        raise NcclkitError(f"There is no notebook {notebook}; name an .ipynb file.")
    port, token = _free(port), secrets.token_urlsafe(24)
    print(_welcome(notebook, port, token), flush=True)
    os.execve(sys.executable, _command(notebook, port), _environment(token))


def _command(notebook: Path, port: int) -> list[str]:
    command = [
        *(sys.executable, "-m", "jupyterlab", "--log-level=WARN"),
        *("--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"),
        f"--ServerApp.root_dir={notebook.parent}",
        f"--MappingKernelManager.root_dir={os.getcwd()}",
        f"--LabApp.default_url=/lab/tree/{quote(notebook.name)}",
    ]
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        command.append("--no-browser")
    return command + ["--allow-root"] * (os.geteuid() == 0)


def _environment(token: str) -> dict[str, str]:
    """The token travels in the environment: command lines can be read by everybody on a login node."""
    extra = os.environ.get("JUPYTER_CONFIG_PATH")
    quiet = os.pathsep.join(filter(None, (str(HERE), extra)))  # finds labconfig/ beside this file
    return {**os.environ, "JUPYTER_TOKEN": token, "JUPYTER_CONFIG_PATH": quiet, "JUPYTER_PREFER_ENV_PATH": "1"}


def _free(port: int) -> int:
    for candidate in range(port, min(port + 100, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that just ended does not block
            try:
                probe.bind(("127.0.0.1", candidate))
            except (OSError, OverflowError):
                continue
            return candidate
    raise NcclkitError(f"No port from {port} to {port + 99} is free on this host; name another with --port.")


def _welcome(notebook: Path, port: int, token: str) -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # a container without a passwd entry
    return (
        f"JupyterLab on {notebook}\n"
        f"  1. From your own machine:  ssh -L {port}:127.0.0.1:{port} {user}@{socket.gethostname()}\n"
        f"  2. Open in a browser:      http://127.0.0.1:{port}/lab/tree/{quote(notebook.name)}?token={token}\n"
        "  Ctrl-C twice ends it."
    )
