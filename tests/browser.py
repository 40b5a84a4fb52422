"""A headless browser, driven over its own debugging protocol (Chrome DevTools Protocol 1.3)."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
START_S = 60.0
LOAD_S = 60.0


def find_browser() -> str | None:
    """Where a browser is installed; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass(frozen=True)
class View:
    """How a page is looked at."""

    width: int
    height: int = 900
    dark: bool = False
    script: bool = True


@dataclass
class Seen:
    """What the browser made of a page."""

    values: dict[str, Any] = field(default_factory=dict)
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Accessible names of its images."""
    picture: bytes = b""
    paper: bytes = b""
    """As PDF, as it would be printed."""


def look(program: str, page: Path, view: View, questions: dict[str, str], folder: Path) -> Seen:
    """Open a page, ask it ``questions`` (JavaScript expressions by name), and take its picture."""
    with _running(program, folder) as address:
        return asyncio.run(_look(address, page, view, questions))


@contextmanager
def _running(program: str, folder: Path) -> Iterator[str]:
    """A browser of its own, and where it listens."""
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--hide-scrollbars",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder / 'profile'}",
    ]
    process = subprocess.Popen(
        [program, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        told = folder / "profile" / "DevToolsActivePort"
        end_s = time.monotonic() + START_S
        while not (told.is_file() and told.read_text().count("\n")):
            assert process.poll() is None, "the browser ended at once"
            assert time.monotonic() < end_s, "the browser does not listen"
            time.sleep(0.1)
        port, place = told.read_text().split("\n")[:2]
        yield f"ws://127.0.0.1:{port}{place}"
    finally:
        process.kill()
        process.wait()


class _Session:
    """One page's conversation with the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.id: str | None = None
        self.events: list[dict[str, Any]] = []

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self.id is not None:
            message["sessionId"] = self.id
        await self._socket.send_json(message)
        while True:
            heard = await self._hear()
            if heard.get("id") == number:
                assert "error" not in heard, f"{method}: {heard['error']}"
                result: dict[str, Any] = heard["result"]
                return result

    async def wait(self, event: str) -> None:
        while not any(heard["method"] == event for heard in self.events):
            await self._hear()

    async def _hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = await asyncio.wait_for(self._socket.receive_json(), LOAD_S)
        if "method" in heard:
            self.events.append(heard)
        return heard


async def _look(address: str, page: Path, view: View, questions: dict[str, str]) -> Seen:
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(address, max_msg_size=0) as socket,
    ):
        session = _Session(socket)
        target = await session.ask("Target.createTarget", url="about:blank")
        attached = await session.ask(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        session.id = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM", "Accessibility"):
            await session.ask(f"{domain}.enable")
        await _set(session, view)
        await session.ask("Page.navigate", url=page.resolve().as_uri())
        await session.wait("Page.loadEventFired")
        return await _seen(session, questions)


async def _set(session: _Session, view: View) -> None:
    await session.ask(
        "Emulation.setDeviceMetricsOverride",
        width=view.width,
        height=view.height,
        deviceScaleFactor=1,
        mobile=view.width < 600,
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if view.dark else "light"}
    await session.ask("Emulation.setEmulatedMedia", features=[scheme])
    if not view.script:
        await session.ask("Emulation.setScriptExecutionDisabled", value=True)


async def _seen(session: _Session, questions: dict[str, str]) -> Seen:
    seen = Seen()
    for name, expression in questions.items():
        answer = await session.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{name}: {answer}"
        seen.values[name] = answer["result"].get("value")
    tree = await session.ask("Accessibility.getFullAXTree")
    seen.names = [
        node.get("name", {}).get("value", "")
        for node in tree["nodes"]
        if node.get("role", {}).get("value") in ("image", "img") and not node.get("ignored")
    ]
    shot = await session.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
    seen.picture = base64.b64decode(shot["data"])
    paper = await session.ask("Page.printToPDF", printBackground=True)
    seen.paper = base64.b64decode(paper["data"])
    for event in session.events:
        told = event["params"]
        if event["method"] == "Log.entryAdded":
            seen.console.append(told["entry"]["text"])
        elif event["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            seen.console.append(str(told))
        elif event["method"] == "Network.requestWillBeSent":
            seen.requests.append(told["request"]["url"])
    return seen
