"""Messages that are to be sent: files, written before anything is sent and gone once it was.

Both sides have this module: a worker has an outbox for each operator, a schedule has its own.

    FOLDER/
        ready/ID.CHANNEL.json     a message, its first writing, its tries
        groups/KEY/window.json    since when a cause was told of; beside it one file for each
                                  further message of that cause, which are held for a digest
        lost/ID.CHANNEL.json      what was given up
        CHANNEL.json              failures in a row, the last error, when to try again
        CHANNEL.lock              held by who sends; which message a command is run for

A message with a mark is sent only once the mark is there. Who puts one writes the message, then
the mark; killed between the two, whoever finds no mark puts it again under the same name. So it is
put exactly once. Everything is 0600: a message may hold a job's own words.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
)

from runner import messages
from runner.files import write_whole

if TYPE_CHECKING:
    from runner.sending import Result

Table = Dict[str, Any]
HOUR_S = 3600.0
GIVEN_UP_S = 86_400.0
LOST_KEPT_S = 7 * 86_400.0
MOST_LOST = 100
MOST_PER_HOUR = 30
MOST_RECORD = 1 << 20
PAUSE_S = 1.0
"""Between two messages: receivers take about one each second."""
_REST = "rest"
_CUT = "cut while it ran"


class Account(NamedTuple):
    """What has not arrived."""

    waiting: int
    """To be tried again."""
    lost: int
    """Given up within the last week."""
    error: Optional[str]
    age_s: Optional[float]
    """Of the last error."""

    def to_json(self) -> Table:
        """As a worker tells it."""
        return dict(self._asdict())


class Outbox:
    """One operator's on a worker, or one schedule's."""

    def __init__(self, folder: str, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self._ready = os.path.join(folder, "ready")
        self._groups = os.path.join(folder, "groups")
        self._lost = os.path.join(folder, "lost")

    # -- putting ------------------------------------------------------------------------------

    def put(
        self,
        message: Table,
        channels: Sequence[str],
        *,
        group: Sequence[object],
        mark: Optional[str] = None,
        again: bool = True,
    ) -> bool:
        """Have it sent, unless its cause was told of within the hour: then it is held for a digest.

        mark: a file that stands for its having been put, so that it is put once. again: False drops
        what would be held. Whether it goes out by itself. Raises OSError when nothing was put.
        """
        if mark is not None and os.path.exists(mark):
            return False
        for folder in (self._ready, self._groups):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        ident = str(message["id"])
        place = self._open_window(ident, group, message, channels)
        if place is not None:
            if not again:
                return False
            held = {"title": message.get("title"), "kind": message.get("kind")}
            _write(os.path.join(place, ident), held)
        else:
            self._put_ready(message, channels, mark)
        if mark is not None:
            put_mark(mark)
        return place is None

    def _open_window(
        self, ident: str, group: Sequence[object], message: Table, channels: Sequence[str]
    ) -> Optional[str]:
        """The group in which a message is held; None when it goes out by itself."""
        now = self._clock()
        text = "\0".join(map(str, group)).encode("utf-8", "surrogateescape")
        place = os.path.join(self._groups, hashlib.sha256(text).hexdigest()[:16])
        window = self._window(place)
        if window is not None and _is_over(window, now):
            self._close(place, window, now, channels)
            window = self._window(place)
        if window is not None:
            return None if window.get("first") == ident else place
        if self._open_windows(now) >= MOST_PER_HOUR:
            place = os.path.join(self._groups, _REST)
            if self._window(place) is None:
                self._begin_window(place, None, message, now)
            return place
        self._begin_window(place, ident, message, now)
        return None

    def _begin_window(self, place: str, first: Optional[str], message: Table, now: float) -> None:
        os.makedirs(place, mode=0o700, exist_ok=True)
        body = {"since": now, "first": first, "host": message.get("host")}
        _write(os.path.join(place, "window.json"), body)

    def _window(self, place: str) -> Optional[Table]:
        return _read(os.path.join(place, "window.json"))

    def _open_windows(self, now: float) -> int:
        found = [self._window(os.path.join(self._groups, name)) for name in _names(self._groups)]
        return sum(
            1 for window in found if window and window.get("first") and not _is_over(window, now)
        )

    def _put_ready(self, message: Table, channels: Sequence[str], mark: Optional[str]) -> None:
        now = self._clock()
        for channel in channels:
            body = {"message": message, "made_at": now, "tries": 0, "mark": mark}
            _write(self._path(self._ready, str(message["id"]), channel), body)
        _sync(self._ready)

    @staticmethod
    def _path(folder: str, ident: str, channel: str) -> str:
        return os.path.join(folder, "%s.%s.json" % (ident, channel))

    # -- digests ------------------------------------------------------------------------------

    def flush(self, channels: Sequence[str]) -> None:
        """Put a digest for each cause whose hour is over and of which more was held.

        What was to go by a way that is not set any more is forgotten.
        """
        now = self._clock()
        ends = tuple(".%s.json" % channel for channel in channels)
        for name in _names(self._ready):
            if not name.endswith(ends):
                _unlink(os.path.join(self._ready, name))
        for name in _names(self._groups):
            place = os.path.join(self._groups, name)
            if name.endswith(".done"):
                shutil.rmtree(place, ignore_errors=True)
                continue
            window = self._window(place)
            if window is None or _is_over(window, now):
                self._close(place, window or {}, now, channels)

    def _close(self, place: str, window: Table, now: float, channels: Sequence[str]) -> None:
        """End a window; what it held goes out as one, and its cause waits for another hour."""
        names = [name for name in _names(place) if name.startswith("m-")]
        digest = None
        if names and channels:
            rows = [_read(os.path.join(place, name)) or {} for name in names]
            ident = messages.message_id("digest", os.path.basename(place), window.get("since"))
            digest = messages.digest_of(
                ident,
                str(window.get("host") or ""),
                now,
                [str(row.get("kind")) for row in rows],
                [str(row.get("title")) for row in rows],
            )
            os.makedirs(self._ready, mode=0o700, exist_ok=True)
            self._put_ready(digest, channels, None)
        done = place + ".done"
        shutil.rmtree(done, ignore_errors=True)
        # in one step: what was held is never told twice
        os.rename(place, done)
        if digest is not None:
            self._begin_window(place, str(digest["id"]), digest, now)
        shutil.rmtree(done, ignore_errors=True)

    # -- sending ------------------------------------------------------------------------------

    def has_due(self, channel: str) -> bool:
        """Whether there is something to send on it now, and nobody does."""
        end = ".%s.json" % channel
        if not any(name.endswith(end) for name in _names(self._ready)):
            return False
        return self._may_try(channel) and not self._is_locked(channel)

    def is_empty(self) -> bool:
        """Whether nothing waits, for sending or for a digest."""
        groups = [os.path.join(self._groups, name) for name in _names(self._groups)]
        return not _names(self._ready) and all(len(_names(group)) < 2 for group in groups)

    def _may_try(self, channel: str) -> bool:
        state = self._state(channel)
        now, due_at = self._clock(), float(state.get("due_at") or 0)
        # a clock that was put back keeps nothing waiting for long
        return now >= due_at or due_at - now > messages.WAITS_S[-1]

    def send_due(
        self, channel: str, deliver: Callable[[Table], Result], pause_s: float = PAUSE_S
    ) -> List[Result]:
        """Send what is due on a channel, until a try fails or all is sent; what came of each."""
        with self._locked(channel) as mine:
            if not mine or not self._may_try(channel):
                return []
            self._name_running(channel, "")
            results: List[Result] = []
            for path, body in self._queue(channel):
                if results:
                    time.sleep(pause_s)
                result = self._try(channel, path, body, deliver)
                results.append(result)
                if not result.ok and not (channel == "command" and result.began):
                    break  # the others would fare no better; a command is not tried again anyway
            return results

    def hurry(self) -> None:
        """Try again now: the settings are new, or were just seen to work."""
        for channel in messages.CHANNELS:
            state = self._state(channel)
            if state.get("due_at"):
                _write(self._state_path(channel), dict(state, due_at=0))

    def _queue(self, channel: str) -> List[Any]:
        """[(path, body)] of what may be sent, those least tried first; old ones are given up."""
        found = []
        now = self._clock()
        for name in _names(self._ready):
            path = os.path.join(self._ready, name)
            if not name.endswith(".%s.json" % channel):
                continue
            body = _read(path)
            if body is None or not isinstance(body.get("message"), dict):
                _unlink(path)
                continue
            mark = body.get("mark")
            if mark is not None and not os.path.exists(mark) and _has_owner(mark):
                continue
            if now - float(body.get("made_at") or 0) > GIVEN_UP_S:
                self._give_up(path, body, str(self._state(channel).get("error") or "too old"))
                continue
            found.append((path, body))
        return sorted(found, key=lambda each: (each[1]["tries"], each[1]["made_at"], each[0]))

    def _try(
        self, channel: str, path: str, body: Table, deliver: Callable[[Table], Result]
    ) -> Result:
        if channel == "command":
            # run once at most: killed in the middle it is not run again
            self._name_running(channel, os.path.basename(path))
            self._give_up(path, body, _CUT)
        result = deliver(body["message"])
        if result.ok:
            _unlink(path)
            _unlink(self._lost_path(path))
            if self._state(channel):
                _unlink(self._state_path(channel))
            return result
        now = self._clock()
        if channel == "command" and result.began:
            self._give_up(path, body, result.text)
            self._put_state(channel, {"fails": 0, "due_at": 0, "error": result.text, "at": now})
            return result
        tried = dict(body, tries=int(body["tries"]) + 1)
        _write(path, tried)
        _unlink(self._lost_path(path))
        fails = int(self._state(channel).get("fails") or 0) + 1
        due_at = now + messages.wait_s(fails, result.asked_s)
        told = {"fails": fails, "due_at": due_at, "error": result.text, "at": now}
        self._put_state(channel, told)
        return result

    def _lost_path(self, path: str) -> str:
        return os.path.join(self._lost, os.path.basename(path))

    def _give_up(self, path: str, body: Table, why: str) -> None:
        os.makedirs(self._lost, mode=0o700, exist_ok=True)
        _write(self._lost_path(path), dict(body, error=why, lost_at=self._clock()))
        _unlink(path)
        kept = sorted(_names(self._lost), key=lambda name: _age(os.path.join(self._lost, name)))
        for name in kept[MOST_LOST:]:
            _unlink(os.path.join(self._lost, name))

    def _state_path(self, channel: str) -> str:
        return os.path.join(self.folder, channel + ".json")

    def _state(self, channel: str) -> Table:
        return _read(self._state_path(channel)) or {}

    def _put_state(self, channel: str, body: Table) -> None:
        _write(self._state_path(channel), body)

    @contextlib.contextmanager
    def _locked(self, channel: str) -> Iterator[bool]:
        """Whether this process alone sends on a channel now."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self._lock_path(channel), flags, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = True
            except OSError:
                mine = False
            yield mine
        finally:
            os.close(fd)

    def _is_locked(self, channel: str) -> bool:
        if not os.path.exists(self._lock_path(channel)):
            return False
        with self._locked(channel) as mine:
            return not mine

    def _lock_path(self, channel: str) -> str:
        return os.path.join(self.folder, channel + ".lock")

    def _name_running(self, channel: str, name: str) -> None:
        """Say which message a command is run for; for who holds the lock."""
        with contextlib.suppress(OSError):  # it counts as lost meanwhile
            Path(self._lock_path(channel)).write_text(name, encoding="ascii")

    def _is_under_way(self, name: str) -> bool:
        """Whether the command for what was given up beforehand still runs."""
        channel = name[: -len(".json")].rpartition(".")[2]
        try:
            named = Path(self._lock_path(channel)).read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        return named == name and self._is_locked(channel)

    # -- looking ------------------------------------------------------------------------------

    def account(self) -> Account:
        """What has not arrived so far. Messages that were never tried are on their way, and
        so is one while its command runs."""
        now = self._clock()
        waiting = lost = 0
        errors = []
        for channel in messages.CHANNELS:
            end = ".%s.json" % channel
            state = self._state(channel)
            left = sum(name.endswith(end) for name in _names(self._ready))
            if state.get("fails") and left:
                waiting += left
                errors.append((float(state.get("at") or 0), str(state.get("error"))))
        for name in _names(self._lost):
            body = _read(os.path.join(self._lost, name)) or {}
            at = float(body.get("lost_at") or 0)
            if now - at > LOST_KEPT_S:
                _unlink(os.path.join(self._lost, name))
                continue
            if body.get("error") == _CUT and self._is_under_way(name):
                continue
            lost += 1
            errors.append((at, str(body.get("error"))))
        newest = max(errors, default=None)
        if newest is None:
            return Account(waiting, lost, None, None)
        return Account(waiting, lost, messages.shown(newest[1]), max(0.0, now - newest[0]))


def deliverers(
    settings: Table,
    *,
    env: Dict[str, str],
    folder: str,
    on_output: Callable[[str], None] = lambda text: None,
) -> Dict[str, Callable[[Table], Result]]:
    """How a message goes out on each channel of these settings.

    env, folder: what a command gets. on_output: what one wrote.
    """
    from runner import sending

    def command(message: Table) -> Result:
        argv = [str(word) for word in settings["command"]["argv"]]
        result = sending.run_command(argv, message, env=env, folder=folder)
        if result.output:
            on_output("%s: %s" % (argv[0], result.output))
        return result

    ways: Dict[str, Callable[[Table], Result]] = {}
    if settings.get("webhook"):
        ways["webhook"] = lambda message: sending.post(settings, message)
    if settings.get("command"):
        ways["command"] = command
    return ways


def _has_owner(mark: str) -> bool:
    """Whether what a mark belongs to is there; of a run that was removed nobody puts it again."""
    return os.path.isdir(os.path.dirname(os.path.dirname(mark)))


def _is_over(window: Table, now: float) -> bool:
    since = float(window.get("since") or 0)
    return not since - HOUR_S <= now < since + HOUR_S


def _names(folder: str) -> List[str]:
    """Names in a folder but those that are just being written."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []


def _age(path: str) -> float:
    try:
        return -os.stat(path).st_mtime
    except OSError:
        return 0.0


def _write(path: str, body: Table) -> None:
    write_whole(Path(path), json.dumps(body, sort_keys=True).encode("ascii"), durable=True)


def _read(path: str) -> Optional[Table]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with os.fdopen(fd, "rb") as file:
            body = json.loads(file.read(MOST_RECORD))
    except (OSError, ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def put_mark(path: str) -> None:
    """Say, durably, that what the mark stands for was put, or is not to be."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(os.path.dirname(path))  # and none above it: its run may be gone
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.close(fd)
    _sync(os.path.dirname(path))


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
