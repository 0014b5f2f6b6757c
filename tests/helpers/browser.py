"""Chromium without a window, driven over a pipe by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LIMIT_S = 60.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)


class Browser:
    """One page of one browser; everything that it asked for and complained of is kept."""

    def __init__(self, program: str, profile: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self._in, self._out = ours_in, ours_out
        self._rest = b""
        self._last = 0
        self.requests: list[str] = []
        self.complaints: list[str] = []
        # it reads descriptor 3 and writes 4: bash puts them there
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        argv = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._child = subprocess.Popen(
            ["bash", "-c", script, "bash", *argv],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End it."""
        os.close(self._out)
        os.close(self._in)
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._child.pid, 9)
            self._child.wait()

    def open(self, page: Path, *, width: int, dark: bool) -> None:
        """Show a file in a window of that width, in a dark or a light scheme."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size: dict[str, Any] = {"width": width, "height": 900, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", mobile=False, **size)
        self.requests.clear()
        self.complaints.clear()
        answer = self.call("Page.navigate", url=page.as_uri())
        assert "errorText" not in answer, answer
        self.until("document.readyState == 'complete'")

    def value(self, expression: str) -> Any:
        """What an expression is in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until it is true."""
        deadline = time.monotonic() + LIMIT_S
        while not self.value(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.02)

    def picture(self, path: Path) -> None:
        """The whole page, for people to look at."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command's result; events that come meanwhile are kept."""
        self._last += 1
        body: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            body["sessionId"] = self._session
        os.write(self._out, json.dumps(body).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self._keep(str(answer.get("method")), answer.get("params") or {})

    def _keep(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(str(params["request"]["url"]))
        elif method in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.complaints.append(json.dumps(params))

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser says nothing"
            more = os.read(self._in, 1 << 20)
            assert more, "the browser ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found
