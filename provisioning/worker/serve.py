"""The worker's end of a conversation: frames in on stdin, frames out on stdout."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from typing import Any, Dict, Optional

import config
import journal
import paths
import space
import supervisor
import verbs
import view
from paths import Workspace
from verbs import Refused

from runner import __version__, states, wire


class Link:
    """Both directions of one conversation."""

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self._in = fd_in
        self._out = fd_out
        self._lock = threading.Lock()
        self._heard = time.monotonic()
        self._streams: Dict[int, "queue.Queue[Optional[bytes]]"] = {}

    def write(self, data: bytes) -> None:
        """Whole frames; a client that went away ends the process, since nobody listens."""
        view = memoryview(data)
        with self._lock:
            try:
                while view:
                    view = view[os.write(self._out, view) :]
            except OSError:
                os._exit(0)

    def send(self, kind: int, stream: int, body: Any = b"") -> None:
        """One frame; a table is sent as JSON."""
        if isinstance(body, dict):
            self.write(wire.pack_json(kind, stream, body))
        else:
            self.write(wire.pack_frame(kind, stream, body))

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
                    inbox: "queue.Queue[Optional[bytes]]" = queue.Queue()
                    self._streams[stream] = inbox
                    # no two alike: members of a sweep are queued in the order they came
                    asked_at = max(time.time(), asked_at + 1e-6)
                    arguments = (workspace, stream, payload, inbox, asked_at)
                    threading.Thread(target=self._answer, args=arguments, daemon=True).start()
                elif kind in (wire.DATA, wire.END) and stream in self._streams:
                    self._streams[stream].put(payload if kind == wire.DATA else None)
        # the client is gone or done; whatever is under way is safe to stop at any point
        os._exit(0)

    def _beat(self) -> None:
        while True:
            time.sleep(wire.BEAT_S)
            self.send(wire.PING, 0)
            if time.monotonic() - self._heard > wire.WORKER_PATIENCE_S:
                os._exit(3)

    def _answer(
        self,
        workspace: Workspace,
        stream: int,
        payload: bytes,
        inbox: "queue.Queue[Optional[bytes]]",
        asked_at: float,
    ) -> None:
        try:
            request = wire.read_json(payload)
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
            self._streams.pop(stream, None)


def hello(workspace: Workspace) -> Dict[str, Any]:
    """What this worker is, for the first frame."""
    known = config.read(workspace)
    return {
        "wire": wire.WIRE,
        "version": __version__,
        "worker": known.worker,
        "runtime": known.runtime,
        "image": known.image,
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
    """Start a `local` worker that is not up when something waits for it, if that can be.

    Who cannot do without one (submit, and what waits) asks by itself, and tells why there is none.
    """
    local = request.get("local")
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
