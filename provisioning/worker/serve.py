"""The worker's end of a conversation: frames in on stdin, frames out on stdout."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from typing import Any, Dict

import config
import inboxes
import journal
import paths
import space
import supervisor
import venvs
import verbs
import view
from paths import Workspace
from verbs import Refused

from runner import __version__, states, wire

MOST_STREAMS = 256
"""Requests under way at once; each has a thread."""
MOST_NESTED = 100
"""Depth of a request's JSON; what a job's parameters may hold needs far less."""


class Link:
    """Both directions of one conversation."""

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self._in = fd_in
        self._out = fd_out
        self._lock = threading.Lock()
        self._heard = time.monotonic()
        self._sending_since = float("inf")
        self._inboxes = inboxes.Inboxes()

    def write(self, data: bytes) -> None:
        """Whole frames; a client that went away ends the process, since nobody listens."""
        with self._lock:
            self._put(data)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                self._sending_since = time.monotonic()
                view = view[os.write(self._out, view[: wire.CHUNK]) :]
        except OSError:
            os._exit(0)
        self._sending_since = float("inf")

    def send(self, kind: int, stream: int, body: Any = b"") -> None:
        """One frame; a table is sent as JSON, a tuple of buffers as one payload."""
        if isinstance(body, dict):
            self.write(wire.pack_json(kind, stream, body))
        else:
            self.write(
                wire.pack_frame(kind, stream, *(body if isinstance(body, tuple) else (body,)))
            )

    def serve(self, workspace: Workspace) -> None:
        """Answer until the client has closed its side and every answer is out."""
        threading.Thread(target=self._beat, daemon=True).start()
        reader = wire.FrameReader()
        asked_at = 0.0
        while True:
            data = os.read(self._in, wire.CHUNK)
            if not data:
                break
            self._heard = time.monotonic()
            for kind, stream, payload in reader.feed(data):
                if kind == wire.REQ:
                    # no two alike: members of a sweep are queued in the order they came
                    asked_at = max(time.time(), asked_at + 1e-6)
                    self._begin(workspace, stream, payload, asked_at)
                elif kind in (wire.DATA, wire.END):
                    self._inboxes.put(stream, payload if kind == wire.DATA else None)
        # the client is gone or done; whatever is under way is safe to stop at any point
        os._exit(0)

    def _beat(self) -> None:
        """Never waits for the link, so that a dead one is seen whatever is being sent on it."""
        ping = wire.pack_frame(wire.PING, 0)
        while True:
            time.sleep(wire.BEAT_S)
            if self._is_dead():
                os._exit(3)
            # a full pipe, or a frame under way, is a sign of life by itself
            if self._lock.acquire(False):
                if _is_ready(self._out, select.POLLOUT):
                    self._put(ping)
                self._lock.release()

    def _is_dead(self) -> bool:
        now = time.monotonic()
        if now - max(self._heard, self._inboxes.freed_at) <= wire.WORKER_PATIENCE_S:
            return False
        if not self._inboxes.full:
            return True
        # nothing is read while a verb has enough to do; it will go on, if it does not wait itself
        return now - self._sending_since > wire.WORKER_PATIENCE_S or _is_ready(self._in, 0)

    def _begin(self, workspace: Workspace, stream: int, payload: bytes, asked_at: float) -> None:
        if len(self._inboxes) >= MOST_STREAMS:
            text = "more than %d requests at once" % MOST_STREAMS
            self.send(wire.ERR, stream, {"code": "busy", "text": text})
            return
        inbox = self._inboxes.open(stream)
        arguments = (workspace, stream, payload, inbox, asked_at)
        threading.Thread(target=self._answer, args=arguments, daemon=True).start()

    def _answer(
        self,
        workspace: Workspace,
        stream: int,
        payload: bytes,
        inbox: inboxes.Inbox,
        asked_at: float,
    ) -> None:
        try:
            request = wire.read_json(payload)
            if _is_deep(request):
                raise wire.WireError("nested more than %d deep" % MOST_NESTED)
            if venvs.folder() is not None:
                request["local"] = venvs.record()
            call = verbs.Call(self, workspace, stream, inbox, request.get("local"), asked_at)
            wake_up(workspace, request)
            reply = verbs.find(request)(call, request)
            self.send(wire.REP, stream, reply)
        except Refused as error:
            self.send(wire.ERR, stream, error.body)
        except wire.WireError as error:
            self.send(wire.ERR, stream, {"code": "bad-request", "text": str(error)})
        except supervisor.InsideRun:
            text = "a run does not start a worker; set RUNNER_WORKSPACE for one of its own"
            self.send(wire.ERR, stream, {"code": "wrong-state", "text": text})
        except supervisor.CannotStart as error:
            self.send(wire.ERR, stream, {"code": "no-worker", "text": str(error)})
        except OSError as error:
            self.send(wire.ERR, stream, os_refusal(workspace, error))
        except Exception as error:  # the edge of a request: the client must hear of a bug
            import traceback  # a third of this program's start

            traceback.print_exc()
            self.send(
                wire.ERR, stream, {"code": "bug", "text": "%s: %s" % (type(error).__name__, error)}
            )
        finally:
            self._inboxes.close(stream)


def _is_ready(fd: int, event: int) -> bool:
    """Whether `event` would not wait now; with none, whether the other end is gone."""
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(0))


def _is_deep(body: Any) -> bool:
    """Whether JSON is nested so deep that a function calling itself could not follow."""
    level = [body]
    for _ in range(MOST_NESTED):
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return False
    return True


def hello(workspace: Workspace) -> Dict[str, Any]:
    """What this worker is, for the first frame."""
    known = config.read(workspace)
    return {
        "wire": wire.WIRE,
        "version": __version__,
        "worker": known.worker,
        "runtime": known.runtime,
        "image": venvs.pin() or known.image,
        "now": time.time(),
        "python": "%d.%d.%d" % sys.version_info[:3],
    }


def os_refusal(workspace: Workspace, error: OSError) -> Dict[str, Any]:
    """What is told of a request that the system refused something."""
    if not journal.is_full(error):
        return {"code": "os", "errno": error.errno, "text": str(error)}
    text = space.NO_INODES if space.room(workspace).files == 0 else str(error)
    return {"code": "no-space", "errno": error.errno, "text": text}


def wake_up(workspace: Workspace, request: Dict[str, Any]) -> None:
    """Start a `local` worker that is not up when something waits for it, if that can be; a `venv`
    worker whatever waits.

    Who cannot do without one (submit, and what waits) asks by itself, and tells why there is none.
    """
    local = request.get("local")
    if venvs.folder() is not None:
        venvs.wake_up(workspace)
        return
    if not local or supervisor.is_up(workspace) or request.get("verb") == "submit":
        return
    if any(state["state"] != states.ENDED for _, state in view.read_all(workspace)):
        with supervisor.without_room(), contextlib.suppress(supervisor.CannotStart):
            supervisor.ensure(workspace, local)


def main(workspace: Workspace) -> int:
    """Serve one client."""
    home = os.environ.get("HOME")
    why = paths.refused(workspace.root, home)
    fd_out = os.dup(1)
    # a stray print must not break the frames
    os.dup2(2, 1)
    link = Link(0, fd_out)
    link.write(wire.MAGIC)
    if why is not None:
        link.send(wire.ERR, 0, {"code": "bad-workspace", "text": "%s: %s" % (workspace.root, why)})
        return 2
    try:
        workspace.make()
    except OSError as error:
        if not journal.is_full(error):
            raise
        link.send(wire.ERR, 0, {"code": "no-space", "text": str(error)})
        return 2
    link.send(wire.EVENT, 0, hello(workspace))
    link.serve(workspace)
    return 0
