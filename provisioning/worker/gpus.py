"""What nvidia-smi says. Its text is no stable interface, so every cell may be missing."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional

import records

if TYPE_CHECKING:
    import subprocess

FIELDS = ("index", "uuid", "memory.total", "memory.used", "driver_version", "name")
"""The name is last: it may hold a comma."""
LOAD_FIELDS = (*FIELDS[:-1], "utilization.gpu", FIELDS[-1])
APP_FIELDS = ("gpu_uuid", "pid", "used_memory", "process_name")
_CSV = "--format=csv,noheader,nounits"
QUERY = ["nvidia-smi", "--query-gpu=" + ",".join(FIELDS), _CSV]
LOAD_QUERY = ["nvidia-smi", "--query-gpu=" + ",".join(LOAD_FIELDS), _CSV]
APPS_QUERY = ["nvidia-smi", "--query-compute-apps=" + ",".join(APP_FIELDS), _CSV]
TIMEOUT_S = 20.0
FRESH_S = 60.0
STRANGER_MIB = 200
"""More memory than this in use on a card that nobody leased: someone else works there."""
HARMLESS = ("nvidia-cuda-mps-server",)
"""Programs that sit on every card, also where nobody computes."""
NOT_INSTALLED = "nvidia-smi is not installed"
APPS_WAIT_S = 2.0
_MOST_BYTES = 1 << 20
_EXIT_WAIT_S = 0.1
_KILL_WAIT_S = 1.0
_POLL_S = 0.01


def parse(text: str, with_load: bool = False) -> List[Dict[str, Any]]:
    """Cards from nvidia-smi's answer; lines that are not cards are passed over.

    Returns [{"index", "uuid", "total_mib", "used_mib", "driver", "name"}], with_load (of what
    LOAD_QUERY says) also "load_percent"; numbers that the tool does not know ([N/A],
    [Not Supported], …) are None.
    """
    cards = []
    for cells in _rows(text, len(LOAD_FIELDS if with_load else FIELDS), uuid_at=1):
        index, uuid, total, used, driver, *load, name = cells
        card: Dict[str, Any] = {
            "index": _number(index),
            "uuid": uuid,
            "total_mib": _number(total),
            "used_mib": _number(used),
            "driver": driver,
            "name": name,
        }
        if with_load:
            card["load_percent"] = _number(load[0])
        cards.append(card)
    return cards


def parse_apps(text: str) -> List[Dict[str, Any]]:
    """Processes that compute on cards, from nvidia-smi's answer; other lines are passed over.

    Returns [{"uuid", "pid", "used_mib", "program"}]; what the tool does not know is None, so a row
    may say no more than that somebody is there. In a container rows of other containers are
    missing, or have pids of the host.
    """
    return [
        {
            "uuid": uuid,
            "pid": _number(pid),
            "used_mib": _number(used),
            "program": _program(name),
        }
        for uuid, pid, used, name in _rows(text, len(APP_FIELDS), uuid_at=0)
    ]


def _rows(text: str, count: int, uuid_at: int) -> Iterable[List[str]]:
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", count - 1)]
        if len(cells) == count and cells[uuid_at].startswith(("GPU-", "MIG-")):
            yield cells


def query() -> Optional[List[Dict[str, Any]]]:
    """The cards there are now; None when nvidia-smi is missing, fails or hangs."""
    answer = look()
    return None if answer.missing or answer.problem else answer.cards


def look() -> "Query":
    """The whole answer, waited for; one that hangs costs TIMEOUT_S and no more."""
    asked = Query(with_apps=False)
    until = time.monotonic() + TIMEOUT_S + _KILL_WAIT_S
    while not asked.poll() and time.monotonic() < until:
        time.sleep(_POLL_S)
    return asked


class Query:
    """nvidia-smi asked without waiting: it can take seconds, and hang for ever on a sick card."""

    def __init__(self, with_apps: bool = True, with_load: bool = False) -> None:
        self.cards: List[Dict[str, Any]] = []
        """What it said, once `poll` is true; nothing when it is missing, failed or hung."""
        self.apps: List[Dict[str, Any]] = []
        """Who computes there, where it knows (`parse_apps`); that it does not is no problem."""
        self.problem: Optional[str] = None
        """`nvidia-smi exits 9`, `nvidia-smi does not answer for 20 s`; None: it answered well."""
        self.said: Optional[str] = None
        """Its own first line about the problem."""
        self._over_at: Optional[float] = None
        self._with_load = with_load
        self._call = _Call(LOAD_QUERY if with_load else QUERY)
        self._apps = _Call(APPS_QUERY) if with_apps and self._call.error is None else None
        self.missing = _is_missing(self._call.error)
        """There is no nvidia-smi; that is no problem: such a machine has no cards."""

    def fileno(self) -> int:
        """What becomes readable when there is something to poll for; -1: nothing to wait at."""
        for call in (self._call, self._apps):
            if call is not None and call.fileno() >= 0:
                return call.fileno()
        return -1

    def poll(self) -> bool:
        """Whether it is over; one that cannot even be killed never is: no second one is asked."""
        over = self._call.poll()
        told = self._apps is None or self._apps.poll()
        if over and not told:
            # the cards are known: who computes there is not worth waiting for
            assert self._apps is not None
            self._over_at = self._over_at or time.monotonic()
            waited_s = time.monotonic() - self._over_at
            if waited_s > APPS_WAIT_S:
                self._apps.kill()
            told = waited_s > APPS_WAIT_S + _KILL_WAIT_S
        self._judge()
        return over and told

    def give_up(self) -> None:
        """Wait for it no longer."""
        for call in (self._call, self._apps):
            if call is not None:
                call.kill()
                call.poll()

    @property
    def is_overdue(self) -> bool:
        """It was killed for its silence; while `poll` is still false it cannot die."""
        return self._call.is_killed

    def _judge(self) -> None:
        call = self._call
        if call.error is not None:
            if not self.missing:
                self.problem = "nvidia-smi cannot be started: %s" % (
                    call.error.strerror or call.error
                )
        elif call.is_killed:
            self.problem = "nvidia-smi does not answer for %g s" % TIMEOUT_S
        elif call.code:
            how = "is killed by signal %d" % -call.code if call.code < 0 else "exits %d" % call.code
            self.problem = "nvidia-smi " + how
            self.said = next(
                (line.strip() for line in call.text.splitlines() if line.strip()), None
            )
        elif call.code == 0:
            self.cards = parse(call.text, self._with_load)
            if self._apps is not None and self._apps.code == 0 and not self._apps.is_killed:
                self.apps = parse_apps(self._apps.text)


def _is_missing(error: Optional[OSError]) -> bool:
    """Whether a program could not be started because there is none.

    A folder of PATH that may not be entered says so in the place of that.
    """
    if isinstance(error, PermissionError):
        places = (os.path.join(folder, QUERY[0]) for folder in os.get_exec_path())
        return not any(os.path.lexists(place) for place in places)
    return isinstance(error, (FileNotFoundError, NotADirectoryError))


class _Call:
    """One nvidia-smi, read without waiting."""

    def __init__(self, argv: List[str]) -> None:
        self._began = time.monotonic()
        self._ended_at: Optional[float] = None
        self._bytes = bytearray()
        self._child: "Optional[subprocess.Popen[bytes]]" = None
        self.error: Optional[OSError] = None
        self.code: Optional[int] = None
        self.is_killed = False
        try:
            import subprocess  # most requests start without

            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert self._child.stdout is not None
            os.set_blocking(self._child.stdout.fileno(), False)
        except OSError as error:
            self.error = error

    @property
    def text(self) -> str:
        return self._bytes.decode("utf-8", "replace")

    def fileno(self) -> int:
        if self._child is None or self._child.stdout is None or self.is_killed:
            return -1
        ended = self._ended_at
        if ended is not None and time.monotonic() - ended > _EXIT_WAIT_S:
            return -1  # silent and yet alive: always readable, so nothing to wait at
        return self._child.stdout.fileno()

    def poll(self) -> bool:
        child = self._child
        if child is None:
            return True
        late = time.monotonic() - self._began > TIMEOUT_S
        if self.is_killed or late or len(self._bytes) > _MOST_BYTES:
            self.kill()
            if child.poll() is None:
                return False
        elif not self._is_read() or child.poll() is None:
            return False
        assert child.stdout is not None
        child.stdout.close()
        self.code = child.returncode
        self._child = None
        return True

    def kill(self) -> None:
        """Give it up; `poll` is true once it is dead."""
        self.is_killed = True
        if self._child is not None:
            self._child.kill()

    def _is_read(self) -> bool:
        if self._ended_at is not None:
            return True
        assert self._child is not None and self._child.stdout is not None
        try:
            while len(self._bytes) <= _MOST_BYTES:
                block = os.read(self._child.stdout.fileno(), 65536)
                if not block:
                    self._ended_at = time.monotonic()
                    return True
                self._bytes += block
        except BlockingIOError:
            pass
        return False


def chosen(cards: List[Dict[str, Any]], wanted: Any) -> List[Dict[str, Any]]:
    """The cards this worker may lease: `all`, `none` or indices."""
    if wanted == "none":
        return []
    if isinstance(wanted, list):
        return [card for card in cards if card["index"] in wanted]
    return cards


def is_used(card: Dict[str, Any], apps: Iterable[Dict[str, Any]] = ()) -> bool:
    """Whether someone uses a card: by its memory, or by who computes there.

    One that tells neither counts as free.
    """
    if (card["used_mib"] or 0) > STRANGER_MIB:
        return True
    return any(app["uuid"] == card["uuid"] and app["program"] not in HARMLESS for app in apps)


def read_cached(path: str) -> Optional[List[Dict[str, Any]]]:
    """The cards as the dispatcher last saw them, when that is fresh."""
    body = records.read(path)
    if not body or time.time() - float(body.get("at", 0)) > FRESH_S:
        return None
    cards = body.get("cards")
    return cards if isinstance(cards, list) else None


def write_cache(path: str, cards: List[Dict[str, Any]], **facts: Any) -> None:
    """Leave what was seen for the verbs."""
    body = dict(facts, format=records.FORMAT, at=time.time(), cards=cards)
    records.write(path, body, sync=False)


def _number(cell: str) -> Optional[int]:
    try:
        return int(float(cell.split()[0]))
    except (ValueError, IndexError, OverflowError):
        return None


def _program(cell: str) -> Optional[str]:
    """A program's own name; None where the tool does not tell it."""
    name = cell.rsplit("/", 1)[-1].strip()
    return None if not name or name.startswith("[") or name in ("N/A", "-") else name
