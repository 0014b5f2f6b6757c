"""The dispatcher's part in telling operators: what is put into their outboxes, who sends it.

The dispatcher writes files and forks; whatever waits for a receiver is a process of its own, one
for each operator and channel, which ends when nothing is due any more. An operator's settings are
read when something is put or sent, so a changed address counts from then on.
"""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import checkpoints
import config
import environment
import journal
import notify_store
import records
import wording
from paths import RunPaths, Workspace

from runner import messages
from runner.outbox import Account, Outbox, deliverers, put_mark
from runner.states import DONE, ENDED

Table = Dict[str, Any]
Fork = Callable[[Callable[[], None]], None]
_EXIT = re.compile(r"exit [0-9]+|[A-Za-z_.]{1,80}")
FLUSH_S = 10.0
FORK_PAUSE_S = 2.0
"""Between two senders of a channel: one that was just forked has not taken its lock yet."""
BEATS = 3
"""Tries of one heartbeat."""
BEAT_PAUSE_S = 5.0


def outbox_of(workspace: Workspace, client: str) -> Outbox:
    """One operator's messages."""
    return Outbox(notify_store.folder(workspace, client))


class Notices:
    """What the dispatcher tells, and its senders."""

    def __init__(self, workspace: Workspace, known: config.Config, fork: Fork) -> None:
        self._workspace = workspace
        self._known = known
        self._fork = fork
        self._forked: Dict[Tuple[str, str], float] = {}
        self._beat_at: Dict[str, float] = {}
        self._flushed_at = -FLUSH_S
        self._low = False
        self.is_busy = False
        """Whether a message is on its way; an idle worker waits for it."""

    # -- what is told -------------------------------------------------------------------------

    def ended(self, paths: RunPaths, spec: Table, state: Table) -> None:
        """A run has ended, and is told of once, however often this is called. Raises OSError.

        Of a sweep one message says that it is through; of its runs only bad ends are told of.
        """
        client = spec.get("notify")
        if not isinstance(client, str):
            return
        mark = _mark(paths, "ended-%d" % resumes_of(state))
        if os.path.exists(mark):
            return
        settings = notify_store.read(self._workspace, client)
        outcome = str(state.get("outcome"))
        if settings is not None and spec.get("sweep"):
            self._sweep_ended(client, settings, paths, spec, state)
        is_told_with_all = outcome == DONE and bool(spec.get("sweep"))
        if settings is None or is_told_with_all or not messages.wants(settings, "ended", outcome):
            put_mark(mark)  # else who wants to hear later would be told of old ends
            return
        ident = messages.message_id(spec["id"], "ended", resumes_of(state), self._known.worker)
        names = checkpoints.names(paths.checkpoints)
        message = wording.ended(
            spec,
            state,
            ident=ident,
            host=str(settings.get("host")),
            zone=settings.get("zone"),
            checkpoint=names[-1] if names else None,
        )
        group = ("ended", outcome, _kind(state), spec.get("sweep") or spec["id"])
        self._put(client, settings, message, group, mark)

    def _sweep_ended(
        self, client: str, settings: Table, paths: RunPaths, spec: Table, state: Table
    ) -> None:
        """Tell of a sweep, where this was the last of its runs to end."""
        number = resumes_of(state)
        mark = _mark(paths, "sweep-%d" % number)
        if os.path.exists(mark):
            return
        outcomes = self._outcomes(paths, str(spec["sweep"]), state)
        if outcomes is None:
            return
        ident = messages.message_id(spec["id"], "sweep", number, self._known.worker)
        message = wording.sweep_ended(
            spec,
            outcomes,
            ident=ident,
            host=str(settings.get("host")),
            at=float(state.get("ended_at") or 0.0),
            zone=settings.get("zone"),
        )
        if not messages.wants(settings, "ended", message["outcome"]):
            put_mark(mark)
            return
        self._put(client, settings, message, ("sweep", spec["sweep"]), mark)

    def _outcomes(self, paths: RunPaths, sweep: str, state: Table) -> Optional[List[str]]:
        """How each run of a sweep ended; None while one has not. state: that of the last one."""
        found = [str(state.get("outcome"))]
        # the last ones wait the longest, so that most looks are over at once
        for name in sorted(os.listdir(self._workspace.runs), key=_number, reverse=True):
            if name.rpartition(".")[0] != sweep or name == paths.id:
                continue
            other = records.read(self._workspace.run(name).state) or {}
            if other.get("state") != ENDED:
                return None
            found.append(str(other.get("outcome")))
        return found

    def stuck(self, paths: RunPaths, spec: Table, state: Table) -> None:
        """A live run does not move, as its launcher wrote down; told of once. Raises OSError."""
        client = spec.get("notify")
        folder = paths.attempt(int(state["attempt"]))
        path = os.path.join(folder, "stuck.json")
        if not isinstance(client, str) or not os.path.exists(path):
            return
        found = records.read(path) or {}
        if found.get("action") != "tell":
            return  # its attempt is being ended for it
        since = int(float(found.get("since") or 0))
        name = "stuck-%d-%d" % (int(state["attempt"]), since)
        self._stuck(client, paths, spec, state, str(found.get("text")), name, again=False)

    def stopped_stuck(self, paths: RunPaths, spec: Table, state: Table) -> None:
        """A run was stopped for being stuck and waits to be started again. Raises OSError."""
        client = spec.get("notify")
        cause = state.get("cause") or {}
        if isinstance(client, str) and cause.get("kind") == "stuck":
            name = "stuck-%d" % int(state["attempt"])
            self._stuck(client, paths, spec, state, str(cause.get("text")), name, again=True)

    def _stuck(
        self,
        client: str,
        paths: RunPaths,
        spec: Table,
        state: Table,
        text: str,
        name: str,
        again: bool,
    ) -> None:
        mark = _mark(paths, name)
        if os.path.exists(mark):
            return
        settings = notify_store.read(self._workspace, client)
        if settings is None or not messages.wants(settings, "stuck"):
            put_mark(mark)
            return
        ident = messages.message_id(spec["id"], name, self._known.worker)
        host = str(settings.get("host"))
        message = wording.stuck(
            spec, state, text, ident=ident, host=host, at=time.time(), again=again
        )
        self._put(client, settings, message, ("stuck", spec.get("sweep") or spec["id"]), mark)

    def look_at_disk(self, waiting: int) -> None:
        """Tell, once, when the disk has less room than is to stay free. Raises OSError."""
        reserve = self._known.disk_reserve
        found = os.statvfs(self._workspace.root)
        free = found.f_bavail * found.f_frsize
        low = bool(reserve) and free < reserve
        if not low or self._low:
            self._low = low
            return
        now = time.time()
        for client in notify_store.clients(self._workspace):
            settings = notify_store.read(self._workspace, client)
            if settings is None or not messages.wants(settings, "disk"):
                continue
            host = str(settings.get("host"))
            message = wording.disk(
                ident=messages.message_id("disk", self._known.worker, int(now)),
                host=host,
                at=now,
                free=free,
                reserve=reserve,
                waiting=waiting,
            )
            channels = messages.channels_of(settings)
            # a disk that goes up and down around the line is told of once an hour
            outbox = outbox_of(self._workspace, client)
            outbox.put(message, channels, group=("disk", host), again=False)
        self._low = True

    def _put(
        self, client: str, settings: Table, message: Table, group: Sequence[object], mark: str
    ) -> None:
        channels = messages.channels_of(settings)
        outbox_of(self._workspace, client).put(message, channels, group=group, mark=mark)
        self.is_busy = self.is_busy or bool(channels)

    # -- who sends it -------------------------------------------------------------------------

    def take_up(self, known: config.Config) -> None:
        """What this worker is to be has changed."""
        self._known = known

    def tick(self) -> None:
        """Start the senders that something is due for, and the heartbeats. Raises OSError."""
        now = time.monotonic()
        busy = False
        flushes = now - self._flushed_at >= FLUSH_S
        if flushes:
            self._flushed_at = now
        for client in notify_store.clients(self._workspace):
            settings = notify_store.read(self._workspace, client)
            if settings is None:
                continue
            outbox = outbox_of(self._workspace, client)
            channels = messages.channels_of(settings)
            if flushes:
                outbox.flush(channels)
            for channel in channels:
                if outbox.has_due(channel) and self._may_fork(client, channel, now):
                    self._send(client, channel)
            busy = busy or not outbox.is_empty()
            self._beat(client, settings, now)
        self.is_busy = busy

    def _may_fork(self, client: str, what: str, now: float) -> bool:
        if now - self._forked.get((client, what), -FORK_PAUSE_S) < FORK_PAUSE_S:
            return False
        self._forked[client, what] = now
        return True

    def _send(self, client: str, channel: str) -> None:
        workspace, known = self._workspace, self._known
        self._fork(lambda: send(workspace, known, client, channel))

    def _beat(self, client: str, settings: Table, now: float) -> None:
        every_s = (settings.get("heartbeat") or {}).get("every_s")
        if every_s is None:
            self._beat_at.pop(client, None)
            return
        if now < self._beat_at.get(client, 0.0):
            return
        self._beat_at[client] = now + float(every_s)
        workspace, known = self._workspace, self._known
        self._fork(lambda: beat(workspace, known, client))


def resumes_of(state: Table) -> int:
    """How often a run was resumed: it ends once more each time."""
    return int(state.get("resumed") or 0)


def _number(name: str) -> int:
    """Which one of its sweep a run is; 0 for one of none."""
    number = name.rpartition(".")[2]
    return int(number) if number.isascii() and number.isdigit() else 0


def _kind(state: Table) -> Tuple[Any, str]:
    """What ends of one kind have in common: `exit 2` is another one than `exit 1`."""
    cause = state.get("cause") or {}
    word = str(cause.get("text") or "").partition(":")[0]
    told = cause.get("kind") == "exit" and _EXIT.fullmatch(word)
    return cause.get("kind"), word if told else ""


def _mark(paths: RunPaths, name: str) -> str:
    return os.path.join(paths.folder, "told", name)


def ways(
    workspace: Workspace, known: config.Config, settings: Table
) -> "Dict[str, Callable[[Table], Any]]":
    """How messages go out from this process; a command has the environment of no job."""
    for name, value in known.env.items():
        if name.lower().endswith("_proxy"):
            os.environ[name] = value
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(environment.NOT_FOR_JOBS)
    }
    env["HOME"] = workspace.home

    def said(text: str) -> None:
        journal.say("notify: %s" % messages.masked(text, settings))

    return deliverers(settings, env=env, folder=workspace.home, on_output=said)


def send(workspace: Workspace, known: config.Config, client: str, channel: str) -> None:
    """A sender's whole life: all that is due on one channel of one operator."""
    _be_plain()
    settings = notify_store.read(workspace, client)
    way = ways(workspace, known, settings).get(channel) if settings else None
    if way is None:
        return
    for result in outbox_of(workspace, client).send_due(channel, way):
        if not result.ok:
            journal.say("notify: %s: %s" % (channel, result.text))


def beat(workspace: Workspace, known: config.Config, client: str) -> None:
    """Fetch an operator's heartbeat address, a few times if need be."""
    from runner import sending

    _be_plain()
    settings = notify_store.read(workspace, client)
    if not settings or not settings.get("heartbeat"):
        return
    ways(workspace, known, settings)
    path = os.path.join(notify_store.folder(workspace, client), "heartbeat.json")
    for number in range(BEATS):
        if number:
            time.sleep(BEAT_PAUSE_S)
        result = sending.ping(settings, str(settings.get("host")))
        told = {"at": time.time(), "ok": result.ok, "text": result.text}
        if os.path.isdir(os.path.dirname(path)):
            records.write(path, told, sync=False)
        if result.ok:
            return


def _be_plain() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def account(workspace: Workspace, only: Optional[str] = None) -> Table:
    """{"waiting", "lost", "error", "age_s", "heartbeat": {"at", "ok", "text"} or null} of one
    operator or of all."""
    names: List[str] = notify_store.clients(workspace) if only is None else [only]
    found = [outbox_of(workspace, name).account() for name in names]
    failing = [each for each in found if each.age_s is not None]
    none = Account(0, 0, None, None)
    newest = min(failing, key=lambda each: each.age_s or 0.0, default=none)
    beats = [
        records.read(os.path.join(notify_store.folder(workspace, name), "heartbeat.json"))
        for name in names
    ]
    known = [each for each in beats if each]
    return {
        "waiting": sum(each.waiting for each in found),
        "lost": sum(each.lost for each in found),
        "error": newest.error,
        "age_s": newest.age_s,
        "heartbeat": max(known, key=lambda each: float(each.get("at") or 0), default=None),
    }
