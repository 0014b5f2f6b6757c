"""`why`: a run in full, and what explains it: runs it waits for, its last words, its usual pace."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterator, List, Optional

import plain
import queueing
import records
import view
from paths import RunPaths, Workspace

from runner import states
from runner.wire import RunStatus
from verbs import Call

MOST_OTHERS = 20
LOG_BYTES = 16 * 1024
LOG_LINES = 100
STACK_LINES = 200
LINE_CHARS = 1000
PACE_STEPS = 100
"""Steps whose distances are looked at."""
_STACKS = re.compile(r"stacks-([0-9]{1,6})\.txt\Z")


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"run"} → {"run": its status in full, "facts": {…}}.

    others: {id: status} of runs that its waiting or its cause names, and, where it stands behind
    others, of the first of them and what that waits for. log: {"rank", "lines"}, the
    end of the log that tells most, of a run that ended badly. stack: lines of the last dump.
    interval_s: what lies between two steps as a rule. asked_at: when its end was asked for.
    grace_s: what it has to save then.
    """
    paths = call.run(request.get("run"))
    pair = view.read_pair(paths)
    assert pair is not None  # `call.run` saw it
    maker = view.View(call.workspace)
    status = maker.status(pair[0], pair[1], full=True)
    facts: Dict[str, Any] = {
        "others": _others(call.workspace, maker, status, pair[0]),
        "interval_s": _interval(paths.progress(0)),
        "asked_at": _asked_at(paths) if status.state == states.STOPPING else None,
        "grace_s": pair[0].get("grace_s"),
        "stack": _last_stack(paths, status.attempt),
        "log": None,
    }
    if status.state == states.ENDED and status.outcome == states.FAILED:
        rank = _rank(status)
        facts["log"] = {"rank": rank, "lines": _last_lines(paths.log(rank))}
    return {"run": status.to_json(), "facts": facts}


def _others(
    workspace: Workspace, maker: view.View, status: RunStatus, spec: Dict[str, Any]
) -> Dict[str, Any]:
    """{id: status} of runs that are here and explain this one."""
    found: Dict[str, Any] = {}
    named = list(_named(status))
    if (status.waits or {}).get("kind") == "order":
        named.append(_first_in_line(maker.board(spec) or {}, bool(spec.get("gpus"))))
    while named and len(found) < MOST_OTHERS:
        run = named.pop(0)
        try:
            pair = view.read_pair(workspace.run(run))
        except ValueError:
            continue  # it is a job's or another worker's word
        if pair is None or run == status.id or run in found:
            continue
        other = maker.status(pair[0], pair[1], full=False)
        found[run] = other.to_json()
        if other.position == 1:
            named += _named(other)  # what all behind it wait for, too
    return found


def _first_in_line(body: Dict[str, Any], of_gpus: bool) -> str:
    """Who starts next of those that wait for a card, or of the others; "" when nobody knows."""
    rows = (body.get("lines") or {}).get(queueing.GPU if of_gpus else queueing.CPU)
    return str(rows[0][0]) if rows else ""


def _named(status: RunStatus) -> Iterator[str]:
    """The ids of other runs that explain this one, each once."""
    waits, cause = status.waits or {}, status.cause or {}
    found = [waits.get("behind"), cause.get("run"), *(waits.get("runs") or [])]
    for holder in waits.get("holders") or []:
        found.append(holder.get("run") if isinstance(holder, dict) else holder)
    seen = set()
    for run in [*found, *status.after]:
        if isinstance(run, str) and run not in seen:
            seen.add(run)
            yield run


def _rank(status: RunStatus) -> int:
    """The rank whose log tells most."""
    rank = (status.cause or {}).get("rank")
    return rank if isinstance(rank, int) and 0 <= rank < status.nproc else 0


def _asked_at(paths: RunPaths) -> Optional[float]:
    times = []
    for path in (paths.cancel, paths.cancel_now):
        try:
            times.append(os.lstat(path).st_mtime)
        except OSError:
            pass
    return min(times, default=None)


def _interval(path: str) -> Optional[float]:
    """The median of the seconds between two steps; the job's last ones, if it says any."""
    times: List[float] = []
    step = None
    for row in records.read_last_lines(path):
        if plain.is_number(row.get("t")) and plain.is_number(row.get("step")):
            if step is None or row["step"] > step:
                times.append(float(row["t"]))
            step = row["step"]
    times = times[-PACE_STEPS:]
    # what lies between two attempts, or a clock that was set back, is not the pace
    gaps = sorted(b - a for a, b in zip(times, times[1:]) if b > a)
    return gaps[len(gaps) // 2] if gaps else None


def _last_stack(paths: RunPaths, attempt: int) -> List[str]:
    """The newest dump of the newest attempt's stacks."""
    folder = paths.attempt(attempt)
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = (_STACKS.match(name) for name in names)
    numbers = [int(match.group(1)) for match in found if match]
    if not numbers:
        return []
    path = os.path.join(folder, "stacks-%d.txt" % max(numbers))
    return _lines(_read(path, 0, LOG_BYTES))[:STACK_LINES]


def _last_lines(path: str) -> List[str]:
    start = max(0, (plain.size(path) or 0) - LOG_BYTES)
    lines = _lines(_read(path, start, LOG_BYTES))
    return lines[1 if start else 0 :][-LOG_LINES:]


def _read(path: str, start: int, most: int) -> bytes:
    try:
        fd = plain.open_file(path)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, most, start)
    finally:
        os.close(fd)


def _lines(data: bytes) -> List[str]:
    text = data.decode("utf-8", "surrogateescape").rstrip("\n")
    return [line.rstrip("\r")[:LINE_CHARS] for line in text.split("\n")] if text else []
