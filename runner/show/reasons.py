"""Why a run is where it is: what it waits for, how it goes, or what ended it (pure)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from runner import states
from runner.app.results import RunOnHost
from runner.show.advice import Reason, advise, time_to_go
from runner.show.endings import LAST_LINES, why_ended
from runner.show.readings import COLOURS, worker_now
from runner.show.screen import Paint, cut, escaped, width
from runner.show.units import ago, duration
from runner.show.waiting import why_waiting, with_last_end
from runner.wire import RunStatus, is_number

if TYPE_CHECKING:
    from runner.app.reports import WhyFacts, WhyReport


def explain(report: WhyReport, now: float) -> Reason:
    """The reason for a run's state, with what to type next. now: our clock."""
    run, facts = report.run, report.facts
    clock = worker_now(run, now)
    if run.status.state == states.QUEUED:
        reason = with_last_end(run.status, why_waiting(run, facts, clock))
    elif run.status.state == states.ENDED:
        reason = why_ended(run, facts, clock)
    else:
        reason = _live(run, facts, clock)
    if run.status.log_problem and run.status.state != states.QUEUED:
        reason = dataclasses.replace(reason, text=f"{reason.text}; {run.status.log_problem}")
    if run.contact.state == "ok":
        return reason
    seen = "never seen" if run.contact.at is None else f"as of {ago(run.contact.at, now)}"
    return dataclasses.replace(reason, text=f"{seen}: {reason.text}")


def reason_lines(
    run: RunOnHost, reason: Reason, columns: int | None = None, paint: Paint | None = None
) -> list[str]:
    """The reason as it is printed: all that was said escaped, commands never cut or broken."""
    lines = _broken(escaped(reason.text), columns) or [""]
    word = states.shown(run.status.state, run.status.outcome)
    if lines[0].startswith(word):
        lines[0] = (paint or Paint())(word, COLOURS.get(word)) + lines[0][len(word) :]
    detail = ["  " + escaped(line) for line in reason.detail]
    lines += [cut(line, columns) for line in detail] if columns is not None else detail
    for item in reason.advice:
        lines += [*_broken(escaped(item.text), columns), f"  {item.command}"]
    return lines


def _broken(text: str, columns: int | None) -> list[str]:
    """The text in lines that fit, broken between words; nothing of nothing."""
    if columns is None or width(text) <= columns:
        return [text] if text else []
    lines, line = [], ""
    for word in text.split(" "):
        if line and width(line) + 1 + width(word) > columns:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def _live(run: RunOnHost, facts: WhyFacts, clock: float) -> Reason:
    status = run.status
    if status.state == states.STOPPING:
        return Reason("stopping", _stopping(facts, clock))
    if status.stuck is not None:
        return _stuck(run, facts, clock)
    for_s = duration(None if status.started_at is None else clock - status.started_at)
    word = states.shown(status.state, None)
    if status.state == states.STARTING:
        doing = f": {status.reason}" if status.reason else ""
        return Reason("starting", f"{word} for {for_s}{doing}")
    text = f"{word} for {for_s}"
    text += f", attempt {status.attempt}" if status.attempt > 1 else ""
    if status.step is None:
        return Reason("running", f"{text}; it has not said a step yet")
    text += f": {_step(status)}"
    if status.progress_at is not None:
        text += f", {ago(status.progress_at, clock)}"
    text += _usual(facts)
    return Reason("running", text + time_to_go(status, clock).replace(" (", "; ").rstrip(")"))


def _step(status: RunStatus) -> str:
    total: Any = status.params.get("steps")
    text = f"step {status.step:,}"
    return text + (f" of {total:,.0f}" if is_number(total) and total > 0 else "")


def _usual(facts: WhyFacts) -> str:
    """` (usually one each 3s)`."""
    pace = facts.interval_s
    if pace is None:
        return ""
    return f" (usually one each {duration(pace) if pace >= 10 else f'{pace:.1f}s'})"


def _stuck(run: RunOnHost, facts: WhyFacts, clock: float) -> Reason:
    status = run.status
    stuck = status.stuck or {}
    since: Any = stuck.get("since_at")
    last = since if is_number(since) else status.progress_at
    for_s = duration(None if last is None else clock - last)
    what = "no output" if status.step is None else "no step"
    text = f"RUNNING but {what} for {for_s}{_usual(facts)}"
    if status.step is not None:
        text += f", the last was {_step(status)}"
    follows = {"restart": "; it is being started again", "stop": "; it is being stopped"}
    text += follows.get(str(stuck.get("action")), "")
    return Reason(
        "stuck",
        text,
        facts.stack[:LAST_LINES],
        advise("see what its ranks do:", "stack", run.id, names=[run.id]),
    )


def _stopping(facts: WhyFacts, clock: float) -> str:
    if facts.asked_at is None:
        return "STOPPING"
    text = f"STOPPING: asked to {duration(clock - facts.asked_at)} ago"
    if facts.grace_s is not None:
        text += f"; it may save for {duration(facts.grace_s)}, then it is killed"
    return text
