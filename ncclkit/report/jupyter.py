"""JupyterLab on one notebook.

It listens on the loopback address, behind a token, and tells the ssh line that reaches it.
"""

from __future__ import annotations

import getpass
import http.client
import os
import secrets
import signal
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

from ncclkit.core.model import NcclkitError

HERE = Path(__file__).parent
PATIENCE = 60.0
"""Seconds in which the server has to answer."""


def open_lab(notebook: Path, port: int = 8888) -> None:
    """Serve JupyterLab until it is ended, and say how to reach it.

    That is said once it lets nobody else in.  `port` or the next free one above it is taken.
    Kernels work in the folder where this is called, as the command does: a case folder and a path
    of logs mean the same in both.  The user's own Jupyter configuration stays in force, but for who
    is let in; news and update checks, which would ask the internet, are off unless that
    configuration switches them on.  Raises NcclkitError where the server answers without its token.
    """
    notebook = Path(notebook).absolute()
    if not notebook.is_file():
        raise NcclkitError(f"There is no notebook {notebook}; name an .ipynb file.")
    from jupyterlab.labapp import LabApp

    port = _free_port(port)
    token = secrets.token_urlsafe(24)
    extra = os.environ.get("JUPYTER_CONFIG_PATH")
    quiet = os.pathsep.join(filter(None, (str(HERE), extra)))  # finds labconfig/ beside this file
    os.environ.update(JUPYTER_CONFIG_PATH=quiet, JUPYTER_PREFER_ENV_PATH="1")
    server = LabApp.initialize_server(
        argv=[*_server_options(notebook, port), *_token_options(token)]
    )
    check = _DoorCheck(port, _welcome_text(notebook, port, token))
    server.io_loop.add_callback(check.start)  # as soon as it serves
    server.start()
    if check.problem:
        raise NcclkitError(check.problem)


def _server_options(notebook: Path, port: int) -> list[str]:
    options = [
        "--log-level=WARN",
        *("--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"),
        f"--ServerApp.root_dir={notebook.parent}",
        f"--MappingKernelManager.root_dir={os.getcwd()}",
        f"--LabApp.default_url=/lab/tree/{quote(notebook.name)}",
    ]
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        options.append("--no-browser")
    return options + ["--allow-root"] * (os.geteuid() == 0)


def _token_options(token: str) -> list[str]:
    """Options that let in who has the token, whatever the configuration says.

    The configuration is the user's.  Options win over every configuration file, and these are words
    of no command line, which everybody on a login node could read.  A class's own token wins over
    that of the class above it, so each has it.
    """
    classes = ("IdentityProvider", "PasswordIdentityProvider", "LegacyIdentityProvider")
    return [
        *(f"--{name}.token={token}" for name in classes),
        "--ServerApp.identity_provider_class=jupyter_server.auth.identity.PasswordIdentityProvider",
        "--ServerApp.allow_unauthenticated_access=False",
        # the address that is printed, and where the check asks
        *("--ServerApp.base_url=/", "--ServerApp.certfile=", "--ServerApp.keyfile="),
    ]


class _DoorCheck:
    """Asks a server once without its token.

    Then it says how to reach the server, or ends it.
    """

    def __init__(self, port: int, welcome: str) -> None:
        self.address = f"http://127.0.0.1:{port}/api/contents"
        self.welcome = welcome
        self.problem = ""

    def start(self) -> None:
        """Begin; the server answers meanwhile."""
        threading.Thread(target=self._run, daemon=True, name="ncclkit-door").start()

    def _run(self) -> None:
        answer = self._ask()
        if answer == "403 Forbidden":
            print(self.welcome, flush=True)
            return
        self.problem = (
            f"JupyterLab was ended: asked without its token it answered {answer} in place of 403"
            " Forbidden, so everybody on this host could have used it; look into the files that"
            " `jupyter --paths` lists under config."
        )
        os.kill(os.getpid(), signal.SIGTERM)  # by which it ends its kernels, too

    def _ask(self) -> str:
        """The status of its answer, or why there was none."""
        # a proxy would answer in the server's place
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(self.address, timeout=PATIENCE) as answer:
                return f"{answer.status} {answer.reason}"
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:
            return f"nothing ({error})"


def _free_port(port: int) -> int:
    for candidate in range(port, min(port + 100, 65536)):
        with socket.socket() as probe:
            # a server that just ended does not block
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", candidate))
            except (OSError, OverflowError):
                continue
            return candidate
    raise NcclkitError(
        f"No port from {port} to {port + 99} is free on this host; name another with --port."
    )


def _welcome_text(notebook: Path, port: int, token: str) -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # a container without a passwd entry
    return (
        f"JupyterLab on {notebook}\n  1. From your own machine:  ssh -L {port}:127.0.0.1:{port}"
        f" {user}@{socket.gethostname()}\n  2. Open in a browser:     "
        f" http://127.0.0.1:{port}/lab/tree/{quote(notebook.name)}?token={token}\n  Ctrl-C twice"
        " ends it."
    )
