"""One message to one receiver, by HTTP or to a command; nothing waits longer than it was given.

Both sides have this module. Certificates are checked; the proxies of the environment are used.
A redirect is followed to the same scheme, host and port alone, and with a message only where its
method and body stay (307, 308). Of an answer a few kilobytes are read.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import urljoin, urlsplit

from runner import messages

Table = Dict[str, Any]
POST_LIMIT_S = 30.0
PING_LIMIT_S = 10.0
COMMAND_LIMIT_S = 60.0
_MOST_BODY = 4096
_MOST_SAID = 200
_MOST_OUTPUT = 2000
_CHUNK = 65536
_LOOK_S = 0.05
_LAST_WORDS_S = 1.0
"""How long what a command left behind may go on writing: a logger that it wrote through."""
_MOST_REDIRECTS = 3
_KEEPS_BODY = (307, 308)
_REDIRECTS = (301, 302, 303, *_KEEPS_BODY)


class Result(NamedTuple):
    """What came of one try; `text` is for people and holds no secret."""

    ok: bool
    text: str
    took_s: float
    asked_s: Optional[float] = None
    """How long the receiver asked to be left alone."""
    began: bool = True
    """Whether a command was started at all."""
    output: str = ""
    """What a command wrote, its end, on one line."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def post(settings: Table, message: Table, limit_s: float = POST_LIMIT_S) -> Result:
    """Send a message to the webhook of these settings."""
    webhook = settings["webhook"]
    body, headers = messages.request_of(message, str(webhook.get("format")))
    headers.update(webhook.get("headers") or {})
    return _bounded(lambda: _fetch(str(webhook["url"]), body, headers, limit_s), settings, limit_s)


def ping(settings: Table, name: str, limit_s: float = PING_LIMIT_S) -> Result:
    """Fetch the heartbeat's address; name: whose heart it is."""
    url = messages.heartbeat_url(str(settings["heartbeat"]["url"]), name)
    headers = {"User-Agent": "runner"}
    seen = dict(settings, heartbeat={"url": url})
    return _bounded(lambda: _fetch(url, None, headers, limit_s), seen, limit_s)


_Answer = Tuple[bool, str, Optional[float]]


def _bounded(act: Callable[[], _Answer], settings: Table, limit_s: float) -> Result:
    """The answer, or that there was none in time, however slowly names resolve or bytes drip."""
    began = time.monotonic()
    found: List[_Answer] = []

    def run() -> None:
        try:
            found.append(act())
        except Exception as error:  # the edge of a thread
            found.append((False, _said(error), None))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    took_s = time.monotonic() - began
    if not found:
        return Result(False, "no answer within %g s" % limit_s, took_s)
    ok, text, asked_s = found[0]
    return Result(ok, messages.shown(messages.masked(text, settings)), took_s, asked_s)


def _said(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return "its certificate is not good: %s" % reason.verify_message
    if isinstance(reason, BaseException):
        error = reason
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, http.client.RemoteDisconnected):
        return "the connection was closed without an answer"
    return "%s" % text


def _fetch(url: str, body: Optional[bytes], headers: Dict[str, str], limit_s: float) -> _Answer:
    opener = urllib.request.build_opener(_NoRedirect())
    until = time.monotonic() + limit_s
    for _ in range(_MOST_REDIRECTS + 1):
        request = urllib.request.Request(url, data=body, headers=headers)
        try:
            with opener.open(request, timeout=max(0.1, until - time.monotonic())) as answer:
                answer.read(_MOST_BODY)
                return True, "HTTP %d" % answer.status, None
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in _REDIRECTS:
                    return _refused(error)
                following, why = _following(url, error, body is not None)
        if following is None:
            return False, why, None
        url = following
    return False, "more than %d redirects" % _MOST_REDIRECTS, None


def _following(
    url: str, error: urllib.error.HTTPError, has_body: bool
) -> Tuple[Optional[str], str]:
    """The address to go on to, or why there is none."""
    target = urljoin(url, str(error.headers.get("Location") or ""))
    here, there = urlsplit(url), urlsplit(target)
    if (here.scheme, here.netloc) != (there.scheme, there.netloc):
        where = messages.shown("%s://%s" % (there.scheme, there.netloc), 100)
        return None, "HTTP %d to %s, which is not followed" % (error.code, where)
    if has_body and error.code not in _KEEPS_BODY:
        return None, "HTTP %d to another address, which would drop the message" % error.code
    return target, ""


def _refused(error: urllib.error.HTTPError) -> _Answer:
    try:
        said = error.read(_MOST_BODY).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException):
        said = ""
    text = "HTTP %d" % error.code
    if said and not said.lstrip().startswith("<"):  # a page says nothing in one line
        text += ": %s" % said[:_MOST_SAID]
    asked = str(error.headers.get("Retry-After") or "")
    return False, text, float(asked) if asked.isascii() and asked.isdigit() else None


def run_command(
    argv: List[str],
    message: Table,
    *,
    env: Dict[str, str],
    folder: str,
    limit_s: float = COMMAND_LIMIT_S,
) -> Result:
    """Give a message to a command, as JSON on its stdin; no shell is between.

    Ended at the limit, or by itself: what it started in its group ends with it. Of its output the
    end is kept, and nothing waits for who else holds that open.
    """
    began = time.monotonic()
    env = dict(
        env,
        RUNNER_NOTIFY_ID=str(message.get("id")),
        RUNNER_NOTIFY_KIND=str(message.get("kind")),
        RUNNER_NOTIFY_HOST=str(message.get("host") or ""),
        RUNNER_NOTIFY_RUN=str(message.get("run") or ""),
        RUNNER_NOTIFY_OUTCOME=str(message.get("outcome") or ""),
    )
    with tempfile.TemporaryFile() as given:
        given.write(json.dumps(message, sort_keys=True).encode("ascii") + b"\n")
        given.seek(0)
        try:
            child = subprocess.Popen(
                argv, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
                cwd=folder, bufsize=0, start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            text = "%s: %s" % (argv[0], getattr(error, "strerror", None) or error)
            took_s = time.monotonic() - began
            return Result(False, messages.shown(text), took_s, began=False)
    try:
        heard, is_over = _hear(child, began + limit_s)
    finally:
        try:
            # it is not reaped yet, so the number is its group's and nobody else's
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        code = child.wait()
        assert child.stdout is not None
        child.stdout.close()
    said = heard.decode("utf-8", "replace").strip()
    output = messages.shown(said, len(said) * 8)[-_MOST_OUTPUT:]
    took_s = time.monotonic() - began
    if not is_over:
        return Result(False, "not done within %g s; ended" % limit_s, took_s, output=output)
    text = "exit %d" % code if code >= 0 else "killed by signal %d" % -code
    if code and output:
        text += ": " + messages.shown(output[-_MOST_SAID:])
    return Result(code == 0, text, took_s, output=output)


def _hear(child: subprocess.Popen[bytes], until: float) -> Tuple[bytes, bool]:
    """The end of what a command wrote, and whether it ended by then; it is not reaped.

    until: of the monotonic clock. All is read as it comes, so that no write of it ever waits.
    """
    assert child.stdout is not None
    fd, heard, is_open, is_over = child.stdout.fileno(), b"", True, False
    while True:
        if not is_over and _has_ended(child.pid):
            is_over, until = True, min(until, time.monotonic() + _LAST_WORDS_S)
        left = until - time.monotonic()
        if left <= 0 or (is_over and not is_open):
            return heard, is_over
        ready, _, _ = select.select([fd] if is_open else [], [], [], min(left, _LOOK_S))
        if ready:
            data = os.read(fd, _CHUNK)
            is_open = bool(data)
            heard = (heard + data)[-_MOST_OUTPUT:]


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True  # somebody reaped it
