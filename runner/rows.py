"""Runs as people read them: rows for `ps`, lines for `status` (pure).

Times of a run are its worker's; they are compared with the worker's clock only, which is ours plus
the host's skew. Of a host that is silent they count up to when it was last heard.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from runner import states
from runner.app.results import RunOnHost
from runner.model import Host
from runner.screen import Paint, escaped, padded, width
from runner.units import ago, duration, memory, moment, number, plural, size, steps
from runner.wire import RunStatus, is_metric, is_number

KNOWN_METRICS = ("eval/return", "reward", "charts/episodic_return", "rollout/ep_rew_mean")
COLOURS = {
    "FAILED": "red",
    "RUNNING": "green",
    "QUEUED": "yellow",
    "STARTING": "yellow",
    "STOPPING": "yellow",
}
_LEAST_SHARE = 0.01
"""Below this share of the steps a time left would be a guess."""


def worker_now(run: RunOnHost, now: float) -> float:
    """The worker's clock now, or when it was last heard."""
    heard = run.contact.at if run.contact.state != "ok" and run.contact.at is not None else now
    return heard + (run.contact.clock_skew_s or 0.0)


def metric_of(metrics: Mapping[str, Any], chosen: str | None) -> tuple[str, float] | None:
    """The metric to show: the job's choice, else the first known one present."""
    for name in (chosen,) if chosen else KNOWN_METRICS:
        value: Any = metrics.get(name)
        if is_metric(value):
            return name, float(value)
    return None


def run_rows(
    runs: Sequence[RunOnHost], now: float, *, with_project: bool = False
) -> tuple[list[list[Any]], tuple[int, ...]]:
    """The table of `ps` and which of its columns hold numbers."""
    head = ["RUN", "STATE", "HOST", "GPU", "STEPS", "", "RETURN", "TIME", "NOTE"]
    if with_project:
        head.insert(1, "PROJECT")
    rows: list[list[Any]] = [head]
    for run in runs:
        row = _row(run, now)
        if with_project:
            row.insert(1, str(run.status.project.get("name", "-")))
        rows.append(row)
    filled = [
        i
        for i in range(len(head))
        if head[i] in ("STATE", "NOTE") or any(row[i] for row in rows[1:])
    ]
    first_number = head.index("STEPS")
    right = tuple(filled.index(i) for i in range(first_number, first_number + 4) if i in filled)
    return [[row[i] for i in filled] for row in rows], right


def _row(run: RunOnHost, now: float) -> list[Any]:
    status = run.status
    word = states.shown(status.state, status.outcome)
    share = _share(status)
    value = metric_of(status.metrics, status.metric)
    return [
        run.id,
        (word, COLOURS.get(word)),
        run.host,
        ",".join(str(gpu.get("index", "?")) for gpu in status.gpus) if _holds_gpus(status) else "",
        _steps(status),
        "" if share is None or status.outcome == states.DONE else f"{share:.0%}",
        "" if value is None else number(value[1]),
        duration(_elapsed(run, now)),
        "; ".join(_notes(run, now)),
    ]


def _holds_gpus(status: RunStatus) -> bool:
    return status.state in states.LIVE


def _total(status: RunStatus) -> float | None:
    total: Any = status.params.get("steps")
    return total if is_number(total) and total > 0 else None


def _share(status: RunStatus) -> float | None:
    total = _total(status)
    return None if status.step is None or total is None else min(1.0, status.step / total)


def _steps(status: RunStatus) -> str:
    if status.step is None:
        return ""
    total = _total(status)
    return steps(status.step) + (f"/{steps(total)}" if total else "")


def _elapsed(run: RunOnHost, now: float) -> float | None:
    """How long it ran, or waits."""
    status = run.status
    begin = status.started_at or status.submitted_at
    if begin is None:
        return None
    return (status.ended_at or worker_now(run, now)) - begin


def time_left(status: RunStatus) -> float | None:
    """Seconds to go at the speed so far; None where that would be a guess."""
    total, share = _total(status), _share(status)
    if status.state != states.RUNNING or status.attempt != 1 or total is None or share is None:
        return None
    if status.progress_at is None or status.started_at is None or share < _LEAST_SHARE:
        return None
    spent = status.progress_at - status.started_at
    return spent * (1 - share) / share if spent > 0 else None


def _notes(run: RunOnHost, now: float) -> list[str]:
    status = run.status
    command = [shlex.join(status.argv)] if status.argv and not status.job else []
    notes = [status.name] if status.name else command
    if run.contact.state != "ok":
        seen = run.contact.at
        notes.append(f"seen {ago(seen, now)}" if seen is not None else "not seen")
    if status.state == states.ENDED:
        notes += [cause_text(status), "pulled" if run.pulled else ""]
        return [note for note in notes if note]
    if status.reason:
        notes.append(status.reason)
    elif status.state == states.QUEUED and status.position is not None:
        notes.append("next" if status.position == 1 else f"{status.position - 1} before it")
    if status.attempt > 1:
        notes.append(f"attempt {status.attempt}")
    left = time_left(status)
    return notes + ([f"{duration(left)} left"] if left is not None and left >= 1 else [])


def ending_line(run: RunOnHost, paint: Paint | None = None) -> str:
    """`dqn-7k3fa  FAILED  exit 1, after 3m`."""
    status = run.status
    word = states.shown(status.state, status.outcome)
    facts = [cause_text(status)] if cause_text(status) else []
    if status.started_at is not None and status.ended_at is not None:
        facts.append(f"after {duration(status.ended_at - status.started_at)}")
    shown = (paint or Paint())(escaped(word), COLOURS.get(word))
    return f"{escaped(run.id)}  {shown}  {escaped(', '.join(facts))}".rstrip()


def cause_text(status: RunStatus) -> str:
    """Why it ended, in the worker's words; nothing where its outcome says so already."""
    cause = status.cause or {}
    text = str(cause.get("text") or cause.get("kind") or "")
    return "" if text in (status.outcome, states.DONE) or status.outcome == states.DONE else text


def status_lines(
    run: RunOnHost,
    now: float,
    *,
    host: Host | None = None,
    columns: int | None = None,
    paint: Paint | None = None,
) -> list[str]:
    """One run in full: a headline and a line for each thing known."""
    status = run.status
    lines = [_headline(run, now, paint or Paint())]
    facts = [
        ("job" if status.job else "command", _what(status)),
        ("name", [part for part in (status.name, _tags(status)) if part]),
        ("host", _place(run)),
        ("code", [_code(status.code)] if status.code else []),
        ("waits", _waits(status)),
        *_attempts(status, run, now),
        ("steps", _progress(status)),
        *_checkpoints(status),
        ("log", [size(status.log_bytes)] if status.log_bytes else []),
        ("files", _files(run, host)),
    ]
    for label, parts in facts:
        lines += _wrapped(label, [escaped(part) for part in parts], columns)
    return lines


def _headline(run: RunOnHost, now: float, paint: Paint) -> str:
    status = run.status
    word = states.shown(status.state, status.outcome)
    facts = []
    if status.state == states.ENDED:
        facts += [cause_text(status)] if cause_text(status) else []
        facts += [ago(status.ended_at, worker_now(run, now))] if status.ended_at else []
        facts += [f"after {duration(_elapsed(run, now))}"] if status.started_at else []
    else:
        facts += [f"for {duration(_elapsed(run, now))}"]
        left = time_left(status)
        facts += [f"{duration(left)} left"] if left is not None else []
    if run.contact.state != "ok":
        facts.append(f"as of {ago(run.contact.at, now)}" if run.contact.at else "never seen")
    text = f"{escaped(run.id)}  {paint(escaped(word), COLOURS.get(word))}"
    return f"{text}  {escaped(', '.join(facts))}".rstrip()


def _what(status: RunStatus) -> list[str]:
    if not status.job:
        return [shlex.join(status.argv)]
    params = status.params
    shown = [key for key in params if key in status.given] if status.given else list(params)
    words = [shlex.quote(f"{key}={_param(params[key])}") for key in shown]
    rest = [f"(the rest as in {status.job}.toml)"] if len(shown) < len(params) else []
    return [status.job, *words, *([f"nproc={status.nproc}"] if status.nproc > 1 else []), *rest]


def _param(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tags(status: RunStatus) -> str:
    return f"tags {', '.join(map(str, status.tags))}" if status.tags else ""


def _place(run: RunOnHost) -> list[str]:
    gpus = []
    for gpu in run.status.gpus:
        model = [str(gpu["name"])] if gpu.get("name") else []
        model += (
            [memory(gpu["memory_mib"])] if isinstance(gpu.get("memory_mib"), (int, float)) else []
        )
        gpus.append(f"GPU {gpu.get('index', '?')}" + (f" ({', '.join(model)})" if model else ""))
    image = [f"image {run.status.image}"] if run.status.image else []
    return [run.host, *gpus, *image]


def _code(code: Mapping[str, Any]) -> str:
    commit, edited = code.get("commit"), code.get("edited")
    files = code.get("files")
    count = f"{plural(files, 'file')}" if isinstance(files, int) else ""
    if not commit:
        return count
    text = f"{code.get('branch') or 'commit'}@{str(commit)[:7]}"
    if isinstance(edited, int) and edited:
        text += " + " + plural(edited, "edited file")
    elif isinstance(edited, list) and edited:
        text += " + " + plural(len(edited), "edited file")
    return f"{text}, {count}" if count else text


def _waits(status: RunStatus) -> list[str]:
    if status.state != states.QUEUED:
        return []
    place = f"place {status.position} in the queue" if status.position else ""
    return [part for part in (status.reason or "", place) if part]


def _attempts(status: RunStatus, run: RunOnHost, now: float) -> list[tuple[str, list[str]]]:
    rows: list[tuple[str, list[str]]] = []
    clock = worker_now(run, now)
    if len(status.attempts) < 2 and status.outcome in (None, states.DONE):
        return rows
    for i, attempt in enumerate(status.attempts):
        began, ended = attempt.get("started_at"), attempt.get("ended_at")
        span = f"{moment(began, clock)}-{moment(ended, clock) if ended else ''}"
        cause = attempt.get("cause") or {}
        text = str(cause.get("text") or cause.get("kind") or "") if isinstance(cause, dict) else ""
        parts = [str(attempt.get("attempt", i + 1)), span, *([text] if text else [])]
        rows.append(("attempts" if i == 0 else "", parts))
    return rows


def _progress(status: RunStatus) -> list[str]:
    if status.step is None:
        return []
    total = _total(status)
    parts = [f"{status.step:,}" + (f" of {total:,.0f}" if total else "")]
    value = metric_of(status.metrics, status.metric)
    others = [
        (name, item) for name, item in status.metrics.items() if not value or name != value[0]
    ]
    parts += [f"{value[0]} {number(value[1])}"] if value else []
    return parts + [f"{name} {number(item)}" for name, item in others if is_metric(item)]


def _checkpoints(status: RunStatus) -> list[tuple[str, list[str]]]:
    if not status.checkpoints:
        return []
    last = max(status.checkpoints, key=lambda item: (item.get("step") or 0, str(item.get("name"))))
    step = last.get("step")
    parts = [f"step {step:,}" if isinstance(step, int) else str(last.get("name", "-"))]
    if isinstance(last.get("bytes"), (int, float)):
        parts.append(size(last["bytes"]))
    if last.get("verified") is not None:
        parts.append("verified" if last["verified"] else "NOT verified")
    if len(status.checkpoints) > 1:
        parts.append(f"{len(status.checkpoints)} in all")
    return [("checkpoint", [", ".join(parts)])]


def _files(run: RunOnHost, host: Host | None) -> list[str]:
    here = [f"results/{run.id}/"] if run.pulled else []
    if host is None or host.runtime == "local":
        return here
    return [*here, f"on {host.name}: {host.workspace}/{{logs,checkpoints}}/{run.id}"]


_LABEL = 11


def _wrapped(label: str, parts: Sequence[str], columns: int | None) -> list[str]:
    """`label   part  part`, broken between parts where a terminal ends."""
    if not parts:
        return []
    lines, line = [], padded(label, _LABEL)
    for part in parts:
        full = columns is not None and width(line) + 2 + width(part) > columns
        if full and width(line) > _LABEL:
            lines.append(line.rstrip())
            line = " " * _LABEL
        line += "  " + part
    return [*lines, line.rstrip()]
