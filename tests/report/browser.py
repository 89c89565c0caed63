"""A headless Chromium driven by its DevTools protocol over a pipe, so that nothing but the browser is needed."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 60.0
# The browser reads commands from file descriptor 3 and answers on 4.
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--hide-scrollbars",
    "--force-device-scale-factor=1", "--remote-debugging-pipe",
)  # fmt: skip


def find_browser() -> str | None:
    """Path of a Chromium or Chrome, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. What the page requests and what fails in it is kept in `requests` and `failures`."""

    def __init__(self, executable: str, profile: Path) -> None:
        from_us, self._commands = os.pipe()
        self._answers, to_us = os.pipe()
        # Out of the way of 3 and 4, which the launcher overwrites.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (from_us, to_us)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *map(str, high), executable, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=high, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (from_us, to_us, *high):
            os.close(end)
        self._buffer, self._number = b"", 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.failures: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        try:
            self._session = None
            self._call("Browser.close")
            self.process.wait(20)
        except (OSError, subprocess.TimeoutExpired, TimeoutError):
            self.process.kill()
            self.process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def open(self, path: Path, address: str = "", size: tuple[int, int] = (1300, 900), *, dark: bool = False) -> None:
        """Load a page anew in a window of that size."""
        self.requests.clear()
        self.failures.clear()
        self._call(
            "Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False
        )
        self.prefer("dark" if dark else "light")
        for url in ("about:blank", path.as_uri() + address):  # a page of its own, even where only the address differs
            self._events.clear()
            self._call("Page.navigate", url=url)
            self._wait(lambda event: event["method"] == "Page.loadEventFired")

    def prefer(self, scheme: str) -> None:
        """Say which colour scheme the user prefers: light or dark."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, script: str) -> Any:
        """Value of an expression in the page, after all that is due there has been drawn."""
        settled = f"new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done({script}))))"
        answer = self._call("Runtime.evaluate", expression=settled, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """One event of the mouse: mouseMoved, mousePressed, mouseReleased or mouseWheel."""
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Press and release the left button."""
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def drag(self, x: float, y: float, right: float, down: float) -> None:
        """Move something with the left button held."""
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        for share in (0.5, 1.0):
            self.mouse("mouseMoved", x + share * right, y + share * down, button="left", buttons=1)
        self.mouse("mouseReleased", x + right, y + down, button="left", clickCount=1)

    def key(self, key: str) -> None:
        """Press and release a key."""
        text = key if len(key) == 1 else ""
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, *, whole: bool = False) -> bytes:
        """PNG of the window, or of the full page."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _wait(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        while True:
            while self._events:
                if wanted(self._events.pop(0)):
                    return
            self._note(self._receive())

    def _note(self, event: dict[str, Any]) -> None:
        if "method" not in event:
            return
        self._events.append(event)
        parameters = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.failures.append(json.dumps(parameters["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.failures.append(parameters["entry"]["text"])

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(deadline - time.monotonic(), 0))
            part = os.read(self._answers, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message
