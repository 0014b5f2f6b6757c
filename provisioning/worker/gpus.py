"""What nvidia-smi says. Its text is no stable interface, so every cell may be missing."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any, Dict, List, Optional

import records

FIELDS = ("index", "uuid", "memory.total", "memory.used", "driver_version", "name")
"""The name is last: it may hold a comma."""
QUERY = ["nvidia-smi", "--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader,nounits"]
TIMEOUT_S = 20.0
FRESH_S = 60.0
STRANGER_MIB = 200
"""More memory than this in use on a card that nobody leased: someone else works there."""


def parse(text: str) -> List[Dict[str, Any]]:
    """Cards from nvidia-smi's answer; lines that are not cards are passed over.

    Returns [{"index", "uuid", "total_mib", "used_mib", "driver", "name"}]; numbers that the tool
    does not know ([N/A], [Not Supported], …) are None.
    """
    cards = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", len(FIELDS) - 1)]
        if len(cells) != len(FIELDS) or not cells[1].startswith(("GPU-", "MIG-")):
            continue
        index, uuid, total, used, driver, name = cells
        cards.append(
            {
                "index": _number(index),
                "uuid": uuid,
                "total_mib": _number(total),
                "used_mib": _number(used),
                "driver": driver,
                "name": name,
            }
        )
    return cards


def query() -> Optional[List[Dict[str, Any]]]:
    """The cards there are now; None when nvidia-smi is missing, fails or hangs."""
    try:
        done = subprocess.run(
            QUERY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse(done.stdout.decode("utf-8", "replace")) if done.returncode == 0 else None


class Query:
    """nvidia-smi asked without waiting: it can take seconds, and hang for ever on a sick card."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._text = bytearray()
        self._child: "Optional[subprocess.Popen[bytes]]" = None
        self.cards: List[Dict[str, Any]] = []
        """What it said, once `poll` is true; nothing when it is missing, failed or hung."""
        try:
            self._child = subprocess.Popen(
                QUERY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            os.set_blocking(self.fileno(), False)
        except OSError:
            pass

    def fileno(self) -> int:
        """What becomes readable when there is something to poll for."""
        assert self._child is not None and self._child.stdout is not None
        return self._child.stdout.fileno()

    def poll(self) -> bool:
        """Whether it is over; one that cannot even be killed never is: no second one is asked."""
        child = self._child
        if child is None:
            return True
        if time.monotonic() - self._began > TIMEOUT_S:
            child.kill()
            if child.poll() is None:
                return False
        elif not self._is_read() or child.poll() is None:
            return False
        assert child.stdout is not None
        child.stdout.close()
        self._child = None
        if child.returncode == 0:
            self.cards = parse(self._text.decode("utf-8", "replace"))
        return True

    def _is_read(self) -> bool:
        try:
            while True:
                block = os.read(self.fileno(), 65536)
                if not block:
                    return True
                self._text += block
        except BlockingIOError:
            return False


def chosen(cards: List[Dict[str, Any]], wanted: Any) -> List[Dict[str, Any]]:
    """The cards this worker may lease: `all`, `none` or indices."""
    if wanted == "none":
        return []
    if isinstance(wanted, list):
        return [card for card in cards if card["index"] in wanted]
    return cards


def is_used(card: Dict[str, Any]) -> bool:
    """Whether someone uses a card; one that does not tell its memory counts as free."""
    return (card["used_mib"] or 0) > STRANGER_MIB


def read_cached(path: str) -> Optional[List[Dict[str, Any]]]:
    """The cards as the dispatcher last saw them, when that is fresh."""
    body = records.read(path)
    if not body or time.time() - float(body.get("at", 0)) > FRESH_S:
        return None
    cards = body.get("cards")
    return cards if isinstance(cards, list) else None


def write_cache(path: str, cards: List[Dict[str, Any]]) -> None:
    """Leave what was seen for the verbs."""
    records.write(path, {"format": records.FORMAT, "at": time.time(), "cards": cards}, sync=False)


def _number(cell: str) -> Optional[int]:
    try:
        return int(float(cell.split()[0]))
    except (ValueError, IndexError):
        return None
