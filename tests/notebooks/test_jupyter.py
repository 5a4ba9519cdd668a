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


@pytest.fixture
def server(busy: int, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server started on a busy port, and what it said before JupyterLab took over."""
    env = {name: value for name, value in ENV.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    own = {name: str(tmp_path / name) for name in PLACES}
    run = subprocess.Popen(
        [sys.executable, "-c", OPEN, str(DATA / "good.ipynb"), str(busy)],
        env=env | own,
        text=True,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "log").open("w"),
        start_new_session=True,
    )
    assert run.stdout
    try:
        yield run, "".join(run.stdout.readline() for _ in range(4))
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
    with pytest.raises(urllib.error.HTTPError, match="403"):
        get(f"{site}/api/status")
    assert [entry["name"] for entry in get(f"{site}/api/contents?token={token}")["content"]].count("good.ipynb") == 1
    settings = get(f"{site}{SETTINGS}?token={token}")["schema"]["properties"]
    assert (settings["fetchNews"]["default"], settings["checkForUpdates"]["default"]) == ("false", False)


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
