"""One run in full, as `status` shows it: a headline and a line for each thing known (pure)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from runner import states
from runner.app.results import RunOnHost
from runner.metrics import metric_of
from runner.model import Host
from runner.show.readings import (
    COLOURS,
    cause_text,
    elapsed_s,
    ran,
    repeated,
    steps_total,
    stuck_note,
    time_left,
    worker_now,
)
from runner.show.screen import Paint, escaped, padded, width
from runner.show.units import ago, duration, memory, moment, number, plural, size
from runner.wire import RunStatus, is_metric

_LABEL = 11


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
        ("argv", _argv(status)),
        ("name", [part for part in (status.name, _tags(status)) if part]),
        ("host", _place(run)),
        ("code", [_code(status.code)] if status.code else []),
        ("origin", _origin(status)),
        ("waits", _waits(status)),
        ("priority", [str(status.priority)] if status.priority else []),
        ("limits", _limits(run, now)),
        ("secrets", [", ".join(status.secrets)] if status.secrets else []),
        *_attempts(status, run, now),
        ("stuck", stuck_note(run, now)),
        ("steps", _progress(status)),
        *_checkpoints(status),
        ("log", _log(status)),
        ("stacks", _stacks(run, host)),
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
        facts += [f"after {duration(elapsed_s(run, now))}"] if status.started_at else []
    else:
        facts += [f"for {duration(elapsed_s(run, now))}"]
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


def _argv(status: RunStatus) -> list[str]:
    """The words of a job that says its parameters so."""
    if not status.job or len(status.argv) < 3:
        return []
    return [shlex.join(map(str, status.argv))]


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


def _origin(status: RunStatus) -> list[str]:
    origin = status.origin or {}
    if not origin.get("run"):
        return []
    word = (
        "reproduces" if origin.get("kind") == "reproduce" else f"{origin.get('kind') or 'fork'} of"
    )
    text = f"{word} {origin['run']}"
    return [text + (f", from {origin['checkpoint']}" if origin.get("checkpoint") else "")]


def _waits(status: RunStatus) -> list[str]:
    if status.state != states.QUEUED:
        return []
    place = f"place {status.position} in the queue" if status.position else ""
    return [part for part in ((status.reason or "").removeprefix("waits "), place) if part]


def _limits(run: RunOnHost, now: float) -> list[str]:
    """`time limit 2h00m, 41m used`, `2 restarts left`."""
    status = run.status
    parts = []
    if status.time_limit_s is not None:
        used = ran(run, now)
        parts.append(f"time limit {duration(status.time_limit_s)}")
        parts[0] += f", {duration(used)} used" if used is not None else ""
    if status.state != states.ENDED and status.restarts_left:
        parts.append(f"{plural(status.restarts_left, 'restart')} left")
    return parts


def _attempts(status: RunStatus, run: RunOnHost, now: float) -> list[tuple[str, list[str]]]:
    rows: list[tuple[str, list[str]]] = []
    clock = worker_now(run, now)
    if len(status.attempts) < 2 and not any(one.get("cause") for one in status.attempts):
        return rows
    before: Mapping[str, Any] = {}
    for i, attempt in enumerate(status.attempts):
        began, ended = attempt.get("started_at"), attempt.get("ended_at")
        span = f"{moment(began, clock)}-{moment(ended, clock) if ended else ''}"
        found = attempt.get("cause")
        cause = found if isinstance(found, dict) else {}
        text = str(cause.get("text") or cause.get("kind") or "")
        last = i == len(status.attempts) - 1
        if last and repeated(status) > 1 and cause.get("kind") == before.get("kind") is not None:
            where = " at the same step" if cause.get("step", status.step) is not None else ""
            text = f"the same{where}; not tried again"
        before = cause
        parts = [str(attempt.get("attempt", i + 1)), span, *([text] if text else [])]
        rows.append(("attempts" if i == 0 else "", parts))
    return rows


def _log(status: RunStatus) -> list[str]:
    cut = [f"{size(status.log_cut_bytes)} of it cut (log_limit)"] if status.log_cut_bytes else []
    problem = [status.log_problem] if status.log_problem else []
    return ([size(status.log_bytes), *cut] if status.log_bytes else []) + problem


def _progress(status: RunStatus) -> list[str]:
    if status.step is None:
        return []
    total = steps_total(status)
    parts = [f"{status.step:,}" + (f" of {total:,.0f}" if total else "")]
    value = metric_of(status.metrics, status.metric)
    others = [
        (name, item) for name, item in status.metrics.items() if not value or name != value[0]
    ]
    parts += [f"{value[0]} {number(value[1])}"] if value else []
    return parts + [f"{name} {number(item)}" for name, item in others if is_metric(item)]


def _checkpoints(status: RunStatus) -> list[tuple[str, list[str]]]:
    bad = [f"{', '.join(status.bad_checkpoints)}: set aside, did not verify"]
    aside = [("bad", bad)] if status.bad_checkpoints else []
    if not status.checkpoints:
        return aside
    last = max(status.checkpoints, key=lambda item: (item.get("step") or 0, str(item.get("name"))))
    step = last.get("step")
    parts = [f"step {step:,}" if isinstance(step, int) else str(last.get("name", "-"))]
    if isinstance(last.get("bytes"), (int, float)):
        parts.append(size(last["bytes"]))
    if last.get("verified") is not None:
        parts.append("verified" if last["verified"] else "NOT verified")
    if len(status.checkpoints) > 1:
        parts.append(f"{len(status.checkpoints)} in all")
    return [("checkpoint", [", ".join(parts)]), *aside]


def _stacks(run: RunOnHost, host: Host | None) -> list[str]:
    """Where the dumps of its stacks are."""
    root = "" if host is None or host.runtime == "local" else f"{host.workspace}/"
    found = []
    for attempt in run.status.attempts:
        names = attempt.get("stacks")
        folder = f"{root}runs/{run.id}/attempts/{attempt.get('attempt')}"
        found += [f"{folder}/{name}" for name in (names if isinstance(names, list) else [])]
    return [f"on {run.host}: {found[0]}", *found[1:]] if found else []


def _files(run: RunOnHost, host: Host | None) -> list[str]:
    here = [f"results/{run.id}/"] if run.pulled else []
    if host is None or host.runtime == "local":
        return here
    return [*here, f"on {host.name}: {host.workspace}/{{logs,checkpoints}}/{run.id}"]


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
