"""Headless Chromium, driven by its DevTools protocol over a pipe, and all it does watched.

Every connection it makes, to whatever host and to loopback too, goes to a proxy that counts it and hangs up: whatever
a page asks for is seen, and nothing is reached.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from tests.harness.servers import missing

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_SECONDS = 60


class Browser:
    """A running browser: `with Browser() as browser, browser.visit(path) as page`."""

    def __init__(self, *, reaches: str = "") -> None:
        """`reaches` is a host and port that it may connect to, without the proxy."""
        program = next((found for name in NAMES if (found := shutil.which(name))), None)
        if program is None:
            missing("there is no headless Chromium: apt-get install chromium-headless-shell")
        self._program = str(program)
        self._reaches = f";{reaches}" if reaches else ""

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="jsbackup-browser-"))
        self._proxy = _Proxy()
        self._number = 0
        self._received = b""
        self.events: list[dict[str, Any]] = []
        ends = [*os.pipe(), *os.pipe()]
        # Numbers that do not stand in the way of 3 and 4, which Chromium expects.
        theirs_in, self._out, self._in, theirs_out = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends)
        for end in ends:
            os.close(end)
        line = [
            self._program,
            "--headless",
            "--no-sandbox",  # it would not start as root, and opens our own pages only
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            f"--proxy-server=127.0.0.1:{self._proxy.port}",
            f"--proxy-bypass-list=<-loopback>{self._reaches}",
            f"--user-data-dir={self._folder}",
            "--remote-debugging-pipe",
        ]
        renumbered = ["bash", "-c", f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}', *line]
        self._process = subprocess.Popen(
            renumbered,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
        )
        os.close(theirs_in)
        os.close(theirs_out)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, AssertionError):
            self.call("Browser.close")
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._proxy.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def connections(self) -> int:
        """How often it tried to reach anything."""
        return self._proxy.connections

    @contextmanager
    def visit(self, path: Path | str, *, width: int = 1200, dark: bool = False) -> Iterator[Page]:
        """The file, or the page at an address, loaded, in a window of this width."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        page.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.go(path.as_uri() if isinstance(path, Path) else path)
        yield page
        self.call("Target.closeTarget", targetId=target)

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Call a method and wait for its result."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def until(self, true: Any) -> None:
        while not true():
            self._next()

    def _next(self) -> dict[str, Any]:
        """The next message, kept if it is an event."""
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, f"Chromium has ended with {self._process.wait(timeout=10)}"
            self._received += data
        line, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "id" not in message:
            self.events.append(message)
        return message


class Page:
    """A loaded page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript in the page, whatever its policy says."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def go(self, url: str) -> None:
        """Load an address."""
        self.load_after(lambda: self.call("Page.navigate", url=url))

    def load_after(self, act: Callable[[], object]) -> None:
        """Do something, and wait until the page that it leads to is loaded."""
        before = len(self.told("Page.loadEventFired"))
        act()
        self._browser.until(lambda: len(self.told("Page.loadEventFired")) > before)

    def press(self, key: str, code: str = "", text: str = "") -> None:
        """Press and release a key: `Tab`, `Enter`, or a letter with its `text`."""
        number = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39}.get(key, ord(key[0].upper()))
        given = {"key": key, "code": code or key, "windowsVirtualKeyCode": number}
        typed = {"text": "\r"} if key == "Enter" else {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **given, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def picture(self) -> bytes:
        """All of the page as PNG."""
        return b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"])

    def settle(self) -> None:
        """Until two frames have been drawn, so that what a page does by itself is done or has begun."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def told(self, *methods: str) -> list[dict[str, Any]]:
        """What came by these events."""
        mine = [event for event in self._browser.events if event.get("sessionId") == self._session]
        return [event["params"] for event in mine if event["method"] in methods]

    @property
    def requests(self) -> list[str]:
        """The URLs it asked for, its own the first, allowed or not."""
        return [event["request"]["url"] for event in self.told("Network.requestWillBeSent")]

    @property
    def complaints(self) -> list[str]:
        """Errors of scripts, what was printed on the console, and what the browser had against the page."""
        thrown = [event["exceptionDetails"]["text"] for event in self.told("Runtime.exceptionThrown")]
        printed = [str(event["args"]) for event in self.told("Runtime.consoleAPICalled")]
        return [*thrown, *printed, *(event["entry"]["text"] for event in self.told("Log.entryAdded"))]


class _Proxy:
    """Counts who comes, and hangs up."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.connections = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                connection.close()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
