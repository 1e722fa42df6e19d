"""Debian's Chromium without a screen, driven over a pipe by its DevTools protocol.

The browser ends when its pipe closes: at the latest when this process is gone.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections import deque
from pathlib import Path
from typing import Any, Self

from tests.servers.process import needed

TIMEOUT = 30.0
POLL = 0.02

_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # /dev/shm of a container is small
    "--no-proxy-server",
    "--mute-audio",
    "--hide-scrollbars",
)

KEYS = {
    "ArrowDown": 40,
    "ArrowUp": 38,
    "Home": 36,
    "End": 35,
    "PageDown": 34,
    "Enter": 13,
    "Escape": 27,
    "Tab": 9,
}


class Chromium:
    """One browser; each ``page()`` is a tab of its own without cookies or history."""

    def __init__(self, folder: Path) -> None:
        program = needed("chromium", "chromium")
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        # A sandbox needs rights that a container's root has not.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        # Chromium's pipe are its descriptors 3 and 4; bash puts ours there.
        self._process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{their_in} 4>&{their_out}', "chromium"),
                *(program, *_FLAGS, *sandbox, f"--user-data-dir={folder}"),
                "about:blank",
            ],
            pass_fds=(their_in, their_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(their_in)
        os.close(their_out)
        self._buffer = bytearray()
        self._last = 0
        self.events: deque[dict[str, Any]] = deque(maxlen=2000)

    def call(self, method: str, session: str = "", **params: object) -> dict[str, Any]:
        """The result of one command; raises what the browser answers as an error."""
        self._last += 1
        command: dict[str, object] = {"id": self._last, "method": method}
        command |= {"params": params} | ({"sessionId": session} if session else {})
        data = json.dumps(command).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            message = self._message()
            if message.get("id") == self._last:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def _message(self) -> dict[str, Any]:
        until = time.monotonic() + TIMEOUT
        while b"\0" not in self._buffer:
            left = until - time.monotonic()
            ready, _, _ = select.select([self._in], [], [], max(left, 0))
            assert ready, "chromium does not answer"
            chunk = os.read(self._in, 1 << 20)
            assert chunk, "chromium has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def page(self) -> Page:
        return Page(self)

    def close(self) -> None:
        os.close(self._out)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)


class Page:
    """A tab: what it shows, and what a user does in it."""

    def __init__(self, browser: Chromium) -> None:
        self._browser = browser
        context = browser.call("Target.createBrowserContext")["browserContextId"]
        self._context = context
        target = browser.call(
            "Target.createTarget", url="about:blank", browserContextId=context
        )
        self._session = browser.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._browser.call(
            "Target.disposeBrowserContext", browserContextId=self._context
        )

    def call(self, method: str, **params: object) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def value(self, script: str) -> Any:  # noqa: ANN401 - of whatever kind
        """What an expression is, or what its promise is resolved to."""
        reply = self.call(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def until(self, script: str) -> Any:  # noqa: ANN401 - of whatever kind
        """Wait until an expression is true; what it is then.

        An error counts as not true: the page may not be there yet.
        """
        script = (
            f"(() => {{ try {{ const found = {script};"
            " return found instanceof Node || found } catch { return null } })()"
        )
        end = time.monotonic() + TIMEOUT
        while not (found := self.value(script)):
            shown = time.monotonic() < end or self.value("document.body.innerText")
            assert shown is True, f"it never came to be: {script}\n{shown}"
            time.sleep(POLL)
        return found

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def prefers(self, **features: str) -> None:
        """As ``prefers(color_scheme="dark")``."""
        features_set = [
            {"name": f"prefers-{name.replace('_', '-')}", "value": value}
            for name, value in features.items()
        ]
        self.call("Emulation.setEmulatedMedia", features=features_set)

    def press(self, key: str) -> None:
        code = KEYS.get(key, 0)
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                **more,
            )

    def write(self, text: str) -> None:
        """Into the field that has the focus."""
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """In the middle of the first element that matches."""
        quoted = json.dumps(selector)
        self.value(
            f"document.querySelector({quoted}).scrollIntoView({{block:'nearest'}})"
        )
        box = self.value(
            f"(b => [b.x + b.width / 2, b.y + b.height / 2])"
            f"(document.querySelector({quoted}).getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box[0],
                y=box[1],
                button="left",
                clickCount=1,
            )

    def text(self, selector: str = "body") -> str:
        text: str = self.value(
            f"document.querySelector({json.dumps(selector)}).innerText"
        )
        return text

    def complaints(self) -> list[str]:
        """Exceptions of scripts and errors of the console since the tab was opened."""
        self.value("1")  # all events before this answer
        found: list[str] = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"]["exceptionDetails"])[:1000])
            if event["method"] == "Log.entryAdded":
                entry = event["params"]["entry"]
                if entry["level"] == "error":
                    found.append(f"{entry['text']} {entry.get('url', '')}")
        return found

    def picture(self, path: Path) -> None:
        """What is on the screen, as PNG."""
        reply = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(reply["data"]))
