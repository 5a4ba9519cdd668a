"""`ncclkit open`: a server that only this user reaches, and the words that say how."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ncclkit.core.model import NcclkitError
from ncclkit.report.jupyter import open_lab
from tests.reports import DATA, ENV

OPEN = "import sys, pathlib, ncclkit.report.jupyter as j; j.open_lab(pathlib.Path(sys.argv[1]), int(sys.argv[2]))"
PLACES = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
SETTINGS = "/lab/api/settings/@jupyterlab/apputils-extension:notification"


@pytest.fixture
def busy() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


ANYBODY = """
from jupyter_server.auth.identity import PasswordIdentityProvider
class Anybody(PasswordIdentityProvider):
    auth_enabled = False
    async def get_user(self, handler):
        return self.generate_anonymous_user(handler)
"""
OPEN_DOORS = {
    "jupyter_config.py": "c.IdentityProvider.token = ''\nc.ServerApp.allow_unauthenticated_access = True\n",
    "jupyter_server_config.py": ANYBODY
    + "c.ServerApp.identity_provider_class = Anybody\nc.PasswordIdentityProvider.token = ''\n"
    + "c.ServerApp.password = ''\nc.ServerApp.token = ''\nc.ServerApp.base_url = '/mine/'\n",
    "jupyter_lab_config.py": "c.ServerApp.token = c.LabApp.token = c.PasswordIdentityProvider.token = ''\n",
}
"""What users write to be asked for no token on their own computer."""
OPEN_WALL = """
from jupyter_server.auth.identity import IdentityProvider
IdentityProvider.get_user = lambda self, handler: self.generate_anonymous_user(handler)
"""
"""What no option can undo."""


@pytest.fixture(params=[{}, OPEN_DOORS], ids=["no configuration", "one that opens all doors"])
def server(request: pytest.FixtureRequest, busy: int, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server started on a busy port, and what it said as soon as it served."""
    with started(request.param, busy, tmp_path) as run:
        assert run.stdout
        yield run, "".join(run.stdout.readline() for _ in range(4))


@contextmanager
def started(config: dict[str, str], port: int, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A server with these files as the user's configuration."""
    (tmp_path / "JUPYTER_CONFIG_DIR").mkdir()
    for name, text in config.items():
        (tmp_path / "JUPYTER_CONFIG_DIR" / name).write_text(text)
    env = {name: value for name, value in ENV.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    own = {name: str(tmp_path / name) for name in PLACES}
    run = subprocess.Popen(
        [sys.executable, "-c", OPEN, str(DATA / "good.ipynb"), str(port)],
        env=env | own,
        text=True,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "log").open("w"),
        start_new_session=True,
    )
    try:
        yield run
    finally:
        run.send_signal(signal.SIGTERM)
        try:
            run.wait(20)
        except subprocess.TimeoutExpired:
            run.kill()


def get(url: str) -> Any:
    return json.load(urllib.request.urlopen(url, timeout=10))


def wait(url: str, run: subprocess.Popen[str]) -> None:
    """Until the server answers; connections to a port that nobody serves yet are refused."""
    for _ in range(600):
        try:
            return get(url) and None
        except (urllib.error.URLError, ConnectionError):
            assert run.poll() is None
            try:
                run.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
    raise AssertionError("no answer")


def test_it_says_how_to_reach_it_and_keeps_others_out(server: tuple[subprocess.Popen[str], str], busy: int) -> None:
    run, said = server
    found = re.search(r"(http://127\.0\.0\.1:(\d+))/lab/tree/good\.ipynb\?token=(\S+)", said)
    assert found, said
    site, port, token = found.groups()
    assert busy < int(port) < busy + 100
    assert re.search(rf"ssh -L {port}:127\.0\.0\.1:{port} \S+@\S+", said)
    wait(f"{site}/api/status?token={token}", run)
    assert token not in Path(f"/proc/{run.pid}/cmdline").read_text()
    assert token not in Path(f"/proc/{run.pid}/environ").read_text()
    for place in ("status", "contents", "kernels", "terminals"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(f"{site}/api/{place}")
    assert [entry["name"] for entry in get(f"{site}/api/contents?token={token}")["content"]].count("good.ipynb") == 1
    settings = get(f"{site}{SETTINGS}?token={token}")["schema"]["properties"]
    assert (settings["fetchNews"]["default"], settings["checkForUpdates"]["default"]) == ("false", False)


def test_a_server_that_lets_everybody_in_is_ended(busy: int, tmp_path: Path) -> None:
    with started({"jupyter_server_config.py": OPEN_WALL}, busy, tmp_path) as run:
        said, _ = run.communicate(timeout=60)
    log = (tmp_path / "log").read_text()
    assert run.returncode == 1 and said == ""
    assert "asked without its token it answered 200 OK in place of 403 Forbidden" in log.splitlines()[-1]


@pytest.mark.parametrize(
    "path, port, sentence",
    [
        ("nowhere.ipynb", 8888, "There is no notebook"),
        ("good.ipynb", 70000, "No port"),
        ("good.ipynb", -999, "No port"),
    ],
)
def test_what_cannot_be_opened(path: str, port: int, sentence: str) -> None:
    with pytest.raises(NcclkitError, match=sentence):
        open_lab(DATA / path, port)
