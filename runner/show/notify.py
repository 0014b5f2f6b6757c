"""How the operator hears of runs, without its secrets (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.app.reports import Delivery, NotifyReport
from runner.messages import masked_url
from runner.show.documents import FORMAT
from runner.show.screen import escaped
from runner.show.units import duration

_EXAMPLE = (
    "[webhook]",
    'url_file = "webhook-url"    # or url = "https://…"; then: chmod 600',
    'format = "json"             # json, slack, ntfy or text',
)


def lines(found: NotifyReport) -> list[str]:
    """What is set, a line each, and what did not arrive."""
    if found.settings is None:
        return [f"there is no {escaped(found.path)}; a short one:", *(f"  {x}" for x in _EXAMPLE)]
    told = [f"{key:<10} {escaped(text)}" for key, text in _facts(found.settings)]
    return [f"{'file':<10} {escaped(found.path)}", *told, *map(_left, found.rows)]


def _left(row: Delivery) -> str:
    return f"{'left':<10} {escaped(row.place)}: {escaped(row.text)}"


def _facts(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("on", " ".join(settings["on"]))]
    webhook, command = settings.get("webhook"), settings.get("command")
    if webhook:
        headers = "".join(f"  {name}: …" for name in webhook["headers"])
        facts.append(("webhook", f"{masked_url(webhook['url'])}  {webhook['format']}{headers}"))
    if command:
        facts.append(("command", " ".join(command["argv"])))
    heartbeat = settings.get("heartbeat")
    if heartbeat:
        every_s = heartbeat["every_s"]
        often = f"every {duration(every_s)}, and" if every_s else "only"
        facts.append(("heartbeat", f"{masked_url(heartbeat['url'])}  {often} at each firing"))
    return facts


def rows(found: NotifyReport) -> list[Sequence[Any]]:
    """`gpu1  webhook  arrived  HTTP 200, 0.3s`."""
    return [(row.place, row.channel, _word(row), _said(row)) for row in found.rows]


def _word(row: Delivery) -> tuple[str, str | None]:
    if row.channel == "left":
        return "earlier", "yellow"
    return ("arrived", "green") if row.ok else ("FAILED", "red")


def _said(row: Delivery) -> str:
    return f"{row.text}, {row.took_s:.1f}s" if row.took_s else row.text


def document(found: NotifyReport) -> dict[str, Any]:
    """Both as JSON, addresses masked."""
    settings = found.settings
    told = None
    if settings is not None:
        webhook, heartbeat = settings.get("webhook"), settings.get("heartbeat")
        told = {
            "on": settings["on"],
            "webhook": webhook
            and {
                "url": masked_url(webhook["url"]),
                "format": webhook["format"],
                "headers": sorted(webhook["headers"]),
            },
            "command": settings.get("command"),
            "heartbeat": heartbeat
            and {"url": masked_url(heartbeat["url"]), "every_s": heartbeat["every_s"]},
        }
    return {
        "format": FORMAT,
        "file": found.path,
        "settings": told,
        "results": [
            {
                "place": row.place,
                "channel": row.channel,
                "ok": row.ok,
                "text": row.text,
                "took_s": round(row.took_s, 3),
            }
            for row in found.rows
        ],
    }
