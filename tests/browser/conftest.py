"""A real Chromium and a real JupyterLab.  Without a browser a user's tests are skipped; in CI they fail."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent.run import processes
from tests.processes import leftovers, warm
from tests.reports import ENV

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},  # every cell is in the page
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}


WAITS = "import time\ndef wait_for_the_others():\n    time.sleep(600)\nwait_for_the_others()"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs a browser and its time."""
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def driven() -> Iterator[tuple[Any, asyncio.AbstractEventLoop]]:
    """The browser, and the loop of what drives it, a program that costs two seconds of CPU to start."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        say = "needs Chromium and the Python package playwright (apt-get install chromium; pip install playwright)"
        pytest.fail(say) if os.environ.get("CI") else pytest.skip(say)
    with sync_playwright() as playwright:
        browser, loop = playwright.chromium.connect_over_cdp(_running(program)), asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield browser, loop
        asyncio._set_running_loop(loop)
        browser.close()  # what we have opened in it, and not the program


@pytest.fixture(scope="package")
def chromium(driven: tuple[Any, asyncio.AbstractEventLoop]) -> Iterator[Any]:
    """The browser; its loop runs in tests of this folder only, as elsewhere asyncio.run has to work."""
    browser, loop = driven
    asyncio._set_running_loop(loop)
    yield browser
    asyncio._set_running_loop(None)


@functools.cache
def _running(program: str) -> str:
    """The address of a Chromium that runs until this process ends: to start one costs four seconds of CPU."""
    folder = Path(tempfile.mkdtemp(prefix="ncclkit-chromium-"))
    words = [program, "--headless", "--no-startup-window", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
    with (folder / "log").open("wb") as log:
        browser = subprocess.Popen([*words, *FLAGS], stdout=log, stderr=log, preexec_fn=processes.die_with_parent)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(browser.wait)
    atexit.register(browser.kill)
    told = folder / "DevToolsActivePort"
    until(lambda: browser.poll() is not None or (told.exists() and "\n" in told.read_text()), 60, "Chromium to start")
    assert browser.poll() is None, (folder / "log").read_text()
    return f"http://127.0.0.1:{told.read_text().split()[0]}"


@dataclass
class Visit:
    """A page, and what it asked for and complained about."""

    page: Any
    requests: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", lambda request: self.failed.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)

    def forget(self) -> None:
        """Begin anew: what was asked and complained so far is of another test."""
        for said in (self.requests, self.failed, self.errors):
            said.clear()

    @property
    def complaints(self) -> list[str]:
        """Errors, and requests that failed; JupyterLab's debugger complains of each notebook that is closed."""
        return [said for said in (*self.errors, *self.failed) if "debugger state" not in said]

    def elsewhere(self, url: str) -> list[str]:
        """What it asked for that does not begin so."""
        return [asked for asked in self.requests if not asked.startswith((url, "data:", "blob:"))]


@pytest.fixture(scope="package")
def offline(chromium: Any) -> Iterator[Visit]:
    """The page in which reports are opened one after the other, with the network cut."""
    context = _cut_off(chromium)
    yield Visit(context.new_page())
    context.close()


@pytest.fixture
def offline_page(chromium: Any, offline: Visit) -> Iterator[Callable[..., Visit]]:
    """``offline_page(file, width=1280, dark=False)``: the file, in place of the one before, all figures drawn."""
    contexts = []

    def visit(file: Path, width: int = 1280, dark: bool = False, script: bool = True) -> Visit:
        if not script:
            contexts.append(_cut_off(chromium, java_script_enabled=False))
        seen = offline if script else Visit(contexts[-1].new_page())
        seen.forget()
        seen.page.set_viewport_size({"width": width, "height": 900})
        seen.page.emulate_media(media="screen", color_scheme="dark" if dark else "light")
        seen.page.goto(file.as_uri())
        if script:
            seen.page.wait_for_function("document.documentElement.dataset.drawn !== undefined")
        return seen

    yield visit
    for context in contexts:
        context.close()


def _cut_off(chromium: Any, **options: Any) -> Any:
    context = chromium.new_context(offline=True, **options)
    context.route(lambda url: not url.startswith("file://"), lambda route: route.abort())
    return context


@dataclass
class Lab:
    """A running JupyterLab server, the folder that it serves, and the mark that all its processes carry."""

    url: str
    root: Path
    token: str
    mark: str

    def runs(self) -> list[int]:
        """Processes of live tests that were started from this server's kernels."""
        return [pid for pid in leftovers() if self.mark in _read(pid, "environ")]

    def kernels(self) -> list[int]:
        """Kernels of this server, and not what waits for the end of one that was forked (tests/warm)."""
        pids = [pid for pid in self.processes() if "ipykernel_launcher" in _read(pid, "cmdline")]
        return [pid for pid in pids if _read(pid, "comm") != "stands in\n"]

    def processes(self) -> list[int]:
        """Everything that the server started, however far away it moved."""
        pids = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
        return [pid for pid in pids if self.mark in _read(pid, "environ")]


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab with a configuration of its own; whatever it started is dead afterwards."""
    folder = tmp_path_factory.mktemp("lab")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mark = f"NCCLKIT_TEST={uuid.uuid4()}"
    lab = Lab(f"http://127.0.0.1:{port}", folder / "notebooks", secrets.token_urlsafe(), mark)
    lab.root.mkdir()
    log = folder / "lab.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            _command(port, lab.root), env=_environment(folder, lab), stdout=out, stderr=out, start_new_session=True
        )
    try:
        until(lambda: server.poll() is not None or _answers(lab), 120, f"JupyterLab to answer; see {log}")
        assert server.poll() is None, log.read_text()
        yield lab
    finally:
        server.send_signal(signal.SIGINT)
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
        for pid in lab.processes():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="package")
def tab(chromium: Any) -> Iterator[Visit]:
    """The page in which notebooks are opened one after the other (`notebook.opened`): JupyterLab is loaded once."""
    context = chromium.new_context(viewport={"width": 1280, "height": 1400}, accept_downloads=True)
    yield Visit(context.new_page())
    context.close()


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits as a rank of a job does, for as long as the test runs."""
    env = {**ENV, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    process = subprocess.Popen([sys.executable, "-c", WAITS], env=env)
    yield process
    process.kill()
    process.wait()


def _command(port: int, root: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={root}",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.extension_manager=readonly",
    ]


def _environment(folder: Path, lab: Lab) -> dict[str, str]:
    (folder / "config" / "labconfig").mkdir(parents=True)
    (folder / "config" / "labconfig" / "default_setting_overrides.json").write_text(json.dumps(SETTINGS))
    own = {name: str(folder / name.lower()) for name in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    (folder / "bin").mkdir()
    node = folder / "bin" / "node"
    node.write_text("#!/bin/sh\nexit 1\n")  # else JupyterLab asks yarn for its registry, with two seconds of CPU
    node.chmod(0o755)
    own["PATH"] = os.pathsep.join([str(node.parent), ENV["PATH"]])
    name, _, mark = lab.mark.partition("=")
    return {**warm(ENV), **own, "JUPYTER_CONFIG_DIR": str(folder / "config"), "JUPYTER_TOKEN": lab.token, name: mark}


def _answers(lab: Lab) -> bool:
    try:
        urllib.request.urlopen(f"{lab.url}/api/status?token={lab.token}", timeout=5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def until(done: Callable[[], object], deadline: float, what: str) -> None:
    """Ask again and again until `done` says yes; fail with `what` was waited for."""
    end = time.monotonic() + deadline
    while not done():
        assert time.monotonic() < end, f"waited {deadline} s for {what}"
        time.sleep(0.2)
