"""A headless browser that is controlled over two pipes. It reports displayed values,
console errors and requests.

The protocol is the Chrome DevTools protocol
(https://chromedevtools.github.io/devtools-protocol): JSON messages that end with a zero
byte.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def path() -> str | None:
    """Return the path of a browser's program, or None without one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """The only page of a browser.

    Attributes:
        complaints: messages of its console and violations of its content policy.
        requests: all requested addresses.
    """

    def __init__(self, write: int, read: BinaryIO):
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._write, self._read = write, read
        self._sent, self._session = 0, {}
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters) -> dict[str, Any]:
        """Send a command and return its result; events received meanwhile are stored."""
        self._sent += 1
        message = {
            "id": self._sent,
            "method": method,
            "params": parameters,
            **self._session,
        }
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._sent:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, file: Path, width: int):
        """Show a file in a window of the given width in pixels, 800 pixels high, in
        light colours.
        """
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "light"}],
        )
        self.send("Page.navigate", url=file.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass
        self.ask(
            "new Promise(requestAnimationFrame).then(() => 0)"
        )  # pending work of the page's scripts

    def ask(self, expression: str):
        """Return the value of a JavaScript expression, or of its promise."""
        answer = self.send(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _next(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._read.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        message = json.loads(text)
        details = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown" | "Log.entryAdded" | "Audits.issueAdded":
                self.complaints.append(json.dumps(details))
            case "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(details["args"]))
            case "Network.requestWillBeSent":
                self.requests.append(details["request"]["url"])
        return message


@contextmanager
def page(profile: Path) -> Iterator[Page]:
    """Start a browser with its profile in a new folder and return its page."""
    program = path()
    assert program is not None
    (to_read, we_write), (we_read, to_write) = os.pipe(), os.pipe()
    command = (
        # the descriptors of the browser's pipes
        f'exec "$@" 3<&{to_read} 4>&{to_write}'
    )
    browser = subprocess.Popen(
        ["bash", "-c", command, "bash", program, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(to_read, to_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(to_write)
    try:
        with os.fdopen(we_read, "rb") as answers:
            yield Page(we_write, answers)
    finally:
        os.close(we_write)  # ends the browser
        browser.wait(30)
