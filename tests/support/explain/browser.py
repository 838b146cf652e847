"""Headless Chromium for tests of pages, spoken to over its own pipe (DevTools protocol): no driver, no port.

``CALIBER_TEST_BROWSER`` set: a missing browser fails a test, as in CI. Elsewhere (macOS without one) the test says so.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REQUIRED = "CALIBER_TEST_BROWSER"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PROGRAM = next((found for name in _NAMES if (found := shutil.which(name))), None)
_PATIENCE_S = 120.0
_WIRED = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads requests from descriptor 3 and writes answers to 4."""


def insist_on_browser() -> str:
    """Return the path of the browser; skip the test without one, or fail it where one is required."""
    if PROGRAM is not None:
        return PROGRAM
    missing = "no Chromium here: pages are not looked at (Debian: apt-get install chromium)"
    if os.environ.get(REQUIRED):
        pytest.fail(missing)
    pytest.skip(missing)


class Browser:
    """One page of a browser."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = requests, answers
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def start(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; events that come meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._requests, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._answers, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Open a file, and wait until it has loaded."""
        scheme = "dark" if dark else "light"
        size: dict[str, Any] = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next()

    def run(self, script: str) -> Any:
        """Return the value of an expression on the page. The page's policy does not bind the protocol."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key as a keyboard does."""
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32, "/": 191}
        text = {"Enter": "\r", "Tab": "", "Escape": ""}.get(key, key)
        fields = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0])), "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", **fields, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def complaints(self) -> list[str]:
        """Return everything that the console would show as an error or warning: exceptions, refusals of the policy."""
        out = []
        for event in self.events:
            parameters = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                out.append(str(parameters["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled":
                out.append(str(parameters["args"]))
            elif event["method"] == "Log.entryAdded":
                out.append(str(parameters["entry"]))
        return out

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for, itself left out."""
        asked = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in asked[1:] if not url.startswith("data:")]

    def names(self) -> list[tuple[str, str]]:
        """Return the role and accessible name of everything that the page shows."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile, and end it."""
    program = insist_on_browser()
    to_browser, requests = os.pipe()
    answers, from_browser = os.pipe()

    flags = ["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += [f"--user-data-dir={profile}", "--disable-background-networking", "--hide-scrollbars"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium's own sandbox refuses to start as root
    process = subprocess.Popen(
        [sys.executable, "-c", _WIRED, str(to_browser), str(from_browser), program, *flags, "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(to_browser, from_browser),
    )
    os.close(to_browser)
    os.close(from_browser)
    page = Browser(requests, answers)
    try:
        page.start()
        yield page
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(requests)
        os.close(answers)
