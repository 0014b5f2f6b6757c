"""Telling of schedules: firings that were missed or made no run, a heartbeat for those that did.

Only this machine knows of them. Each look of cron puts what is new into the schedule's own outbox
(`notify/` in its folder) and tries what is left there; nothing of it changes what a firing became.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from runner import messages, notify_file
from runner.errors import RunnerError
from runner.outbox import Outbox, deliverers, put_mark
from runner.schedule.definition import SUBMITTED, Fired, Schedule, host_of, job_of
from runner.schedule_files import Shelf, read_all
from runner.show.undelivered import left_text

TOLD = ("missed", "not-submitted")
"""Causes that are told of; an overlap is the schedule's own rule."""
LATEST_S = 86_400.0
"""Older firings are not news: they ended before anybody wanted to hear of them."""


def tell(shelf: Shelf, clock: Callable[[], float] = time.time) -> None:
    """Put what is new, send what is due; never raises for what is wrong with either."""
    if not notify_file.path_of().exists():
        return
    try:
        _tell(shelf, clock)
    except RunnerError as error:
        shelf.say(f"notifications: {'; '.join([error.message, *error.advice])}")
    except OSError as error:
        shelf.say(f"notifications: {error}")


def _tell(shelf: Shelf, clock: Callable[[], float]) -> None:
    schedule, progress, now = shelf.read(), shelf.progress(), clock()
    settings = notify_file.read_settings(schedule.zone)
    if settings is None:
        return
    body = dict(settings.body)
    channels = messages.channels_of(body)
    outbox = outbox_of(shelf)
    submitted = False
    for fired in progress.fired:
        if now - fired.told_at > LATEST_S:
            continue
        mark = str(shelf.folder / "notify" / "told" / _name(fired))
        if os.path.exists(mark):
            continue
        (shelf.folder / "notify").mkdir(mode=0o700, exist_ok=True)
        if fired.cause in TOLD and messages.wants(body, "missed"):
            group = ("missed", schedule.key, fired.cause)
            outbox.put(message_of(schedule, fired), channels, group=group, mark=mark)
        else:
            submitted = submitted or fired.state == SUBMITTED
            put_mark(mark)
    outbox.flush(channels)
    for channel, way in _ways(shelf, body).items():
        for result in outbox.send_due(channel, way):
            if not result.ok:
                shelf.say(f"notify: {channel}: {result.text}")
    if submitted and body.get("heartbeat"):
        _ping(shelf, schedule, body)


def outbox_of(shelf: Shelf) -> Outbox:
    """The messages about one schedule."""
    return Outbox(str(shelf.folder / "notify"))


def _name(fired: Fired) -> str:
    return messages.message_id(fired.local, fired.state, fired.cause, fired.at)


def _ways(shelf: Shelf, body: dict[str, Any]) -> Mapping[str, Any]:
    def said(text: str) -> None:
        shelf.say(f"notify: {messages.masked(text, body)}")

    return deliverers(body, env=command_env(), folder=str(shelf.folder), on_output=said)


def _ping(shelf: Shelf, schedule: Schedule, body: dict[str, Any]) -> None:
    from runner import sending

    result = sending.ping(body, schedule.name)
    if not result.ok:
        shelf.say(f"notify: heartbeat: {result.text}")


def command_env() -> dict[str, str]:
    """What a command sees that is run here."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")}


def message_of(schedule: Schedule, fired: Fired) -> dict[str, Any]:
    """That a firing made no run."""
    host = host_of(schedule)
    meant = datetime.fromtimestamp(fired.at, schedule.tz)
    what = "MISSED" if fired.cause == "missed" else "NOT SUBMITTED"
    title = f"schedule {schedule.name} {what}"
    said = messages.shown(fired.text)
    text = f"{title}: that of {meant:%a %H:%M} to {host}: {said}\nrunner schedule list"
    return {
        "format": messages.FORMAT,
        "id": messages.message_id(schedule.key, fired.local, fired.cause),
        "kind": "missed",
        "at": messages.stamp(fired.told_at),
        "host": host,
        "title": title,
        "text": text[: messages.MOST_TEXT],
        "schedule": schedule.name,
        "job": job_of(schedule),
        "run": fired.ids[0] if fired.ids else None,
        "outcome": fired.state,
        "cause": {"kind": fired.cause, "text": said},
    }


def left_here() -> list[tuple[str, str]]:
    """(schedule, what did not arrive) of every schedule of the account."""
    found = []
    for shelf, schedule in read_all():
        with contextlib.suppress(OSError):
            text = left_text(outbox_of(shelf).account().to_json())
            if text is not None:
                found.append((schedule.name, text))
    return found
