"""Why an attempt ended, from what was seen: pure."""

from __future__ import annotations

import signal
from typing import Any, Dict, Optional

from runner import states

NO_PROGRAM = 127
KILLED_STATUS = 137
FULL_BYTES = 1 << 20

_TEXT = {
    "cancelled": "cancelled",
    "shutdown": "the worker was shut down",
    "host-restart": "the host was restarted",
    "worker-lost": "the worker was restarted",
    "launcher-lost": "its launcher was killed",
    "not-started": "it was not started",
    "lease-lost": "its lease was lost",
}


def plain(kind: str, **more: Any) -> Dict[str, Any]:
    """A cause whose text follows from its kind."""
    return dict(more, kind=kind, text=_TEXT.get(kind, kind))


def judge(
    *,
    asked: Optional[str],
    code: Optional[int],
    rank: Optional[int],
    fault: Optional[Dict[str, Any]],
    oom_kills: int,
    disk_free: int,
    absent: Optional[str] = None,
    front_says: str = "",
) -> Optional[Dict[str, Any]]:
    """The cause of an attempt's end; None when every rank ended with 0.

    asked: why it was stopped (`cancelled`, `shutdown`), if it was. code: exit code of the first
    rank that failed, negative for a signal, 0 when none failed. fault: what the job said itself.
    oom_kills: kernel kills for memory counted meanwhile. absent: the program that could not be
    found, if that is so. front_says: the last words of torchrun's front.
    """
    if asked is not None:
        return plain(asked)
    if code == 0:
        return None
    where = {"rank": rank, "code": code}
    if fault is not None:
        return _from_fault(fault, where)
    if code is None:
        return dict(where, kind="exit", text=front_says or "the ranks could not be started")
    if code < 0:
        if -code == signal.SIGKILL and oom_kills:
            return dict(where, kind="oom", text="killed by the kernel: out of memory")
        name = _signal_name(-code)
        who = "torchrun's agent" if rank is None else "rank %d" % rank
        return dict(where, kind="signal", signal=name, text="%s killed by %s" % (who, name))
    if oom_kills and code in (1, KILLED_STATUS):
        return dict(
            where, kind="oom", text="a process of it was killed by the kernel: out of memory"
        )
    if disk_free < FULL_BYTES:
        return dict(where, kind="disk-full", text="exit %d; the disk is full" % code)
    if code == NO_PROGRAM and absent:
        return dict(where, kind="exit", text="exit 127: %s: no such program" % absent)
    return dict(where, kind="exit", text="exit %d" % code)


def _from_fault(fault: Dict[str, Any], where: Dict[str, Any]) -> Dict[str, Any]:
    kind = str(fault["fault"])
    text = str(fault.get("text") or kind)
    if kind not in states.CAUSES or kind in states.FROM_OUTSIDE:
        return dict(where, kind="exit", text="%s: %s" % (kind, text))
    return dict(where, kind=kind, step=fault.get("step"), text=text)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number
