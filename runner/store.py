"""The operator's own records below the project's `.runner/`: a cache, but for open intents.

    .gitignore          this folder is nobody's code
    runs/ID.json        a run as last seen, and on which host
    trees/HOST.tree     the last snapshot a host's worker was known to hold, with its list
    contacts/HOST.json  which worker a host answers as, since when, and as which before
    intents/ID.json     a submit whose ids were not printed yet; its process holds the file's lock
    pulls/ID.json       what pulls made, to tell it from what people put there
    pulls/.ID.*.lock    held by the pull of a run into one folder
    digests             what code/digests.py knows of files that did not change
    ssh/                the key that logs in to workers, and the workers' own (worker_login.py)

Records can be deleted; hosts know every run. Open intents cannot: they are what makes a submit
that was cut happen exactly once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import SpecError
from runner.files import lock_within, read_regular, write_whole
from runner.model import Project
from runner.wire import RunStatus, WireError, is_number

FORMAT = 1
LOCK_LIMIT_S = 10.0
LEFTOVER_S = 3600.0
MOST_BEFORE = 5
MAX_TREE = 256 << 20


@dataclass(frozen=True)
class Record:
    """A run as last seen."""

    id: str
    host: str
    seen_at: float
    run: Mapping[str, Any]
    """The worker's status, as it came."""


@dataclass(frozen=True)
class KnownWorker:
    """Which worker a host answers as."""

    worker: str
    since: float
    """When it was met first, by our clock."""
    before: tuple[str, ...] = ()
    """Those that answered there earlier, the last one first."""


@dataclass(frozen=True)
class KnownTree:
    """A snapshot that a worker was known to hold."""

    worker: str
    digest: str
    diff: str | None
    """The content of its diff, which the worker holds, too."""
    packed: bytes = field(repr=False)

    def rows(self) -> dict[str, list[Any]] | None:
        """Its rows by path; None when what was kept of them is damaged."""
        unzip = zlib.decompressobj()
        try:
            rows = json.loads(unzip.decompress(self.packed, MAX_TREE))
        except (zlib.error, ValueError, RecursionError):
            return None
        good = isinstance(rows, list) and all(
            isinstance(row, list) and len(row) == 5 and isinstance(row[0], str) for row in rows
        )
        return {row[0]: row for row in rows} if good else None


class Intent:
    """A submit under way. While its process lives it holds the lock of the file."""

    def __init__(self, path: Path, fd: int, body: dict[str, Any]) -> None:
        self._path = path
        self._fd = fd
        self.body = body

    @property
    def id(self) -> str:
        """The run's id, made before the first byte was sent."""
        return str(self.body["id"])

    def close(self) -> None:
        """The id was printed (or the submit refused): nothing is open any more."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._fd)

    def leave_open(self) -> None:
        """Keep it for the next submit with the same words."""
        os.close(self._fd)


class Store:
    """One project's records."""

    def __init__(self, project: Project) -> None:
        self._root = (project.records or project.root) / ".runner"

    def ssh_folder(self) -> Path:
        """The folder of what logs in to workers, made if need be. Raises SpecError."""
        return self._folder("ssh")

    def records(self, prefix: str = "") -> list[Record]:
        """Every run known here whose id begins so, oldest first; the others are not read."""
        self._remove_leftovers("runs", LEFTOVER_S)
        paths = [path for path in self._files("runs") if path.name.startswith(prefix)]
        found = [record for path in paths if (record := _record(path))]
        return sorted(found, key=lambda record: (record.run.get("submitted_at") or 0, record.id))

    def ids(self) -> list[str]:
        """Every run known here, the last written first; nothing is read or written for it."""
        found: list[tuple[int, str]] = []
        with contextlib.suppress(OSError), os.scandir(self._root / "runs") as entries:
            for entry in entries:
                if entry.name.endswith(".json") and entry.name[0] != ".":
                    with contextlib.suppress(OSError):
                        written = entry.stat(follow_symlinks=False).st_mtime_ns
                        found.append((written, entry.name.removesuffix(".json")))
        return [name for _, name in sorted(found, reverse=True)]

    def glance(self, run: str) -> tuple[str, Mapping[str, Any]] | None:
        """(host, status) of a record that is only shown in passing: hardly checked, which takes a
        quarter of the time.
        """
        body = _read(self._root / "runs" / f"{run}.json") or {}
        status = body.get("run")
        if not isinstance(status, dict) or status.get("id") != run:
            return None
        return str(body.get("host")), status

    def record(self, run: str) -> Record | None:
        """One run as last seen."""
        return _record(self._root / "runs" / f"{run}.json")

    def put(self, host: str, run: Mapping[str, Any], seen_at: float) -> None:
        """Remember a run as seen just now."""
        body = {"format": FORMAT, "host": host, "seen_at": seen_at, "run": dict(run)}
        known = _read(self._root / "runs" / f"{run['id']}.json")
        if known and run.get("state") == "ended" and known.get("run") == body["run"]:
            return  # it will never change again
        self._write("runs", str(run["id"]), body)

    def forget(self, run: str) -> None:
        """Remember nothing of a run that is nowhere any more."""
        with contextlib.suppress(FileNotFoundError):
            (self._root / "runs" / f"{run}.json").unlink()

    def known_tree(self, host: str) -> KnownTree | None:
        """The snapshot that a host's worker was known to hold last."""
        try:
            head, _, rest = read_regular(self._root / "trees" / f"{host}.tree").partition(b"\n")
            body = json.loads(head)
        except (OSError, RecursionError, ValueError):
            return None
        if not isinstance(body, dict):
            return None
        worker, digest, diff = (body.get(key) for key in ("worker", "digest", "diff"))
        if not isinstance(worker, str) or not isinstance(digest, str):
            return None
        return KnownTree(worker, digest, diff if isinstance(diff, str) else None, rest)

    def put_tree(
        self, host: str, worker: str, digest: str, diff: str | None, rows: Sequence[Any]
    ) -> None:
        """Remember what a host's worker holds: a snapshot, the content of its diff, its list."""
        body = {"format": FORMAT, "worker": worker, "digest": digest, "diff": diff}
        text = json.dumps(list(rows), separators=(",", ":")).encode("ascii")
        data = json.dumps(body).encode("ascii") + b"\n" + zlib.compress(text, 1)
        self._remove_leftovers("trees", LEFTOVER_S)
        self._write_bytes("trees", f"{host}.tree", data)

    def known_worker(self, host: str) -> KnownWorker | None:
        """The worker that a host answered as last."""
        body = _read(self._root / "contacts" / f"{host}.json") or {}
        worker, since, before = (body.get(key) for key in ("worker", "since", "before"))
        if not isinstance(worker, str) or not is_number(since) or not isinstance(before, list):
            return None
        at: Any = since
        return KnownWorker(worker, float(at), tuple(map(str, before)))

    def put_worker(self, host: str, worker: str, at: float) -> None:
        """Remember which worker a host answers as, and which it was before."""
        known = self.known_worker(host)
        before = [] if known is None else [known.worker, *known.before][:MOST_BEFORE]
        body = {"format": FORMAT, "worker": worker, "since": at, "before": before}
        self._write("contacts", host, body)

    def forget_worker(self, host: str) -> None:
        """The host has no worker any more, as we wanted: the next one is no surprise."""
        with contextlib.suppress(OSError):
            (self._root / "contacts" / f"{host}.json").unlink(missing_ok=True)

    def pulled(self, run: str) -> dict[str, Any]:
        """What earlier pulls of a run made, or empty: {"complete", "attempt", "places": {folder:
        {name: [...]}}}.
        """
        return _read(self._root / "pulls" / f"{run}.json") or {}

    def put_pulled(
        self, run: str, place: str, rows: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> None:
        """Remember what a pull made in one place; what others made elsewhere stays."""
        with self._locked("pulls", "pull"):
            places = self.pulled(run).get("places")
            self._remove_leftovers("pulls")
            kept = places if isinstance(places, dict) else {}
            body = {**facts, "places": {**kept, place: dict(rows)}, "format": FORMAT}
            self._write("pulls", run, body)

    @contextlib.contextmanager
    def pull_locked(self, run: str, place: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """No other pull of this run into this place meanwhile; waits for one, however long.

        on_wait: called once when there is one.
        """
        digest = hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()
        path = self._folder("pulls") / f".{run}.{digest[:16]}.lock"
        waits = False
        while (fd := _lock_anew(path)) is None:
            if not waits:
                waits = True
                on_wait()
            time.sleep(0.1)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()  # it is ours: see `_lock_anew`
            os.close(fd)

    @contextlib.contextmanager
    def intents_locked(self) -> Iterator[None]:
        """Nobody else of this project looks at intents meanwhile. Raises SpecError in the end."""
        with self._locked("intents", "submit"):
            self._remove_leftovers("intents")
            yield

    def open_intents(self, words: list[str]) -> list[Intent]:
        """Intents with these words whose process is gone, oldest first; they are ours now."""
        found = []
        for path in self._files("intents"):
            body = _read(path)
            if not body or body.get("words") != words or body.get("id") != path.stem:
                continue
            fd = _try_lock(path)
            if fd is not None and os.fstat(fd).st_nlink == 0:
                # its process closed it between our look and our lock
                os.close(fd)
            elif fd is not None:
                found.append(Intent(path, fd, body))
        return sorted(found, key=_begun_at)

    def write_intent(self, body: Mapping[str, Any]) -> Intent:
        """Write an intent down, durably, and hold its lock. 0600: values of env. are in it."""
        folder = self._folder("intents")
        path = folder / f"{body['id']}.json"
        temporary = folder / f".{body['id']}.tmp"
        data = memoryview(json.dumps(dict(body, format=FORMAT)).encode("ascii"))
        try:
            # nobody may take it for a leftover before it is locked
            with self._locked("intents", "submit"):
                fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                while data:
                    data = data[os.write(fd, data) :]
                os.fsync(fd)
                os.rename(temporary, path)
            except OSError:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                os.close(fd)
                raise
        except OSError as error:
            raise _unwritable(path, error) from error
        return Intent(path, fd, dict(body))

    @contextlib.contextmanager
    def _locked(self, kind: str, who: str) -> Iterator[None]:
        folder = self._folder(kind)
        with open(folder / ".lock", "a") as file:
            if not lock_within(file.fileno(), LOCK_LIMIT_S):
                raise SpecError(f"{folder} is locked by another {who}")
            yield

    def _remove_leftovers(self, kind: str, older_s: float = 0.0) -> None:
        """Remove what killed processes were writing.

        Who still writes an intent holds that file's lock, who writes of a pull the folder's;
        whatever else is being written is not so old.
        """
        for path in (self._root / kind).glob(".*.tmp"):
            with contextlib.suppress(OSError):
                if older_s and time.time() - path.lstat().st_mtime < older_s:
                    continue
                fd = _try_lock(path)
                if fd is not None:
                    path.unlink()
                    os.close(fd)

    def _files(self, kind: str) -> list[Path]:
        folder = self._root / kind
        if not folder.is_dir() and os.path.lexists(folder):
            raise SpecError(f"{folder} is not a folder; move it away")
        return sorted(folder.glob("[!.]*.json"))

    def _folder(self, kind: str) -> Path:
        folder = self._root / kind
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            ignore = self._root / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            raise SpecError(f"{folder} cannot be made: {error.strerror}") from error
        return folder

    def _write(self, kind: str, name: str, body: Mapping[str, Any]) -> None:
        self._write_bytes(kind, f"{name}.json", json.dumps(body).encode("ascii"))

    def _write_bytes(self, kind: str, name: str, data: bytes) -> None:
        path = self._folder(kind) / name
        try:
            # also by several threads: two host files may name one worker, and so the same runs
            write_whole(path, data)
        except OSError as error:
            raise _unwritable(path, error) from error


def _record(path: Path) -> Record | None:
    body = _read(path)
    try:
        status = RunStatus.from_json(body["run"]) if body is not None else None
        if body is None or status is None or status.id != path.stem:
            return None
        if not is_number(body["seen_at"]):
            return None
        return Record(path.stem, str(body["host"]), float(body["seen_at"]), status.to_json())
    except (AttributeError, KeyError, TypeError, ValueError, WireError):
        return None  # torn, or another's: the host knows the run


def _begun_at(intent: Intent) -> float:
    at: Any = intent.body.get("at")
    return float(at) if is_number(at) else 0.0


def _unwritable(path: Path, error: OSError) -> SpecError:
    return SpecError(f"{path} cannot be written: {error.strerror}")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body = json.loads(read_regular(path))
    except (OSError, RecursionError, ValueError):
        return None
    return body if isinstance(body, dict) else None


def _lock_anew(path: Path) -> int | None:
    """The lock of a file that is made for it, and removed by who holds it; None: another has it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink:
            return fd
    except BlockingIOError:
        pass
    except OSError as error:
        os.close(fd)
        raise SpecError(f"{path} cannot be locked: {error.strerror}") from error
    os.close(fd)
    return None


def _try_lock(path: Path) -> int | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
