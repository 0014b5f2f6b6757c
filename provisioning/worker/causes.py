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


def time_limit(limit_s: float) -> Dict[str, Any]:
    """The running time of all attempts has reached the run's limit."""
    return {"kind": "time-limit", "text": "ran for %s, its time limit" % span(limit_s)}


def reserve_reached(reserve_bytes: int) -> Dict[str, Any]:
    """The disk has less room left than the host's file says must stay free."""
    text = "less than %s free, the host's reserve; it was stopped with time to save"
    return {"kind": "disk-full", "text": text % size(reserve_bytes)}


def stuck(idle_s: float, step: Optional[int], by_steps: bool, final: bool) -> Dict[str, Any]:
    """Nothing has moved for so long; `final`: it is not to be started again."""
    what = "no step" if by_steps else "no output"
    cause = {"kind": "stuck", "text": "%s for %s" % (what, span(idle_s)), "step": step}
    return dict(cause, final=True) if final else cause


def span(seconds: float) -> str:
    """A time as one types it: `45s`, `31m`, `1h30m`, `12h`, `2d`, its largest two units."""
    left = max(0, int(seconds))
    parts = []
    for letter, unit in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= unit:
            parts.append("%d%s" % (left // unit, letter))
            left %= unit
        elif parts:
            break  # `2d` and not `2d5s`
    return "".join(parts[:2]) or "0s"


def size(count: int) -> str:
    """Bytes in powers of ten: `10 GB`, `1.5 MB`, `812 B`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return ("%.1f" % value).replace(".0", "") + " " + unit
        value /= 1000
    return ("%.1f" % value).replace(".0", "") + " TB"


def judge(
    *,
    asked: Optional[Dict[str, Any]],
    code: Optional[int],
    rank: Optional[int],
    fault: Optional[Dict[str, Any]],
    oom_kills: int,
    disk_free: int,
    absent: Optional[str] = None,
    front_says: str = "",
    front: str = "torchrun's agent",
    cuda_oom: Optional[str] = None,
    traceback: Optional[str] = None,
) -> Optional[Dict[str, Any]]:
    """The cause of an attempt's end; None when every rank ended with 0.

    asked: why it was stopped, if it was. code: exit code of the first rank that failed, negative
    for a signal, 0 when none failed. fault: what the job said itself. oom_kills: kernel kills for
    memory counted meanwhile. absent: the program that could not be found, if that is so. front: the
    name of what starts the ranks, front_says: its last words. cuda_oom: the line of that rank's log
    that says so. traceback: where and with which exception its Python ended.
    """
    if asked is not None:
        return asked
    if code == 0:
        return None
    where: Dict[str, Any] = {"rank": rank, "code": code}
    if traceback:
        where["traceback"] = traceback
    if fault is not None:
        return _from_fault(fault, where)
    if code is None:
        return dict(where, kind="exit", text=front_says or "the ranks could not be started")
    if code < 0:
        if -code == signal.SIGKILL and oom_kills:
            return dict(where, kind="oom", text="killed by the kernel: out of memory")
        name = _signal_name(-code)
        who = front if rank is None else "rank %d" % rank
        return dict(where, kind="signal", signal=name, text="%s killed by %s" % (who, name))
    if oom_kills and code in (1, KILLED_STATUS):
        return dict(
            where, kind="oom", text="a process of it was killed by the kernel: out of memory"
        )
    if cuda_oom and code == 1:
        return dict(where, kind="cuda-oom", text=cuda_oom)
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
