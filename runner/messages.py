"""What is told when nobody looks: a message, its forms for receivers, its next tries (pure).

Both sides have this module. A message is a table, and as JSON what a webhook with `format = "json"`
gets, and a command on its stdin:

    {"format": 1, "id": "m-3f…", "kind": "ended", "at": "2026-12-03T02:02:11Z", "host": "gpu2",
     "title": "ppo-c41hd FAILED on gpu2", "text": "ppo-c41hd FAILED on gpu2 at 03:02 …\n…",
     "run": "ppo-c41hd", "sweep": null, "job": "ppo", "name": null, "outcome": "failed",
     "cause": {"kind": "disk-full", "text": "no disk left"}, "step": 1400000, "steps": 10000000,
     "attempt": 2}

kind: one of KINDS, `digest` (also {"kinds", "count"}) or `test`. What is not known is null or left
out. The id is the same whenever the message is sent again.

Settings are a table, too, as they travel to a worker and lie there:

    {"on": ["ended", …], "zone": "Europe/Berlin",
     "webhook": {"url", "format", "headers": {NAME: VALUE}} or null, "command": {"argv"} or null,
     "heartbeat": {"url", "every_s"} or null}
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from datetime import datetime, timezone
from typing import Any, Dict, List, Optional, Sequence, Tuple
from urllib.parse import quote, urlsplit

Table = Dict[str, Any]
FORMAT = 1
KINDS = ("ended", "failed", "stuck", "missed", "disk")
"""What `on` may name. `failed` is those of `ended` that did not end well; `missed` is also a firing
that could not submit."""
DEFAULT_ON = ("ended", "stuck", "missed", "disk")
FORMATS = ("json", "slack", "ntfy", "text")
CHANNELS = ("webhook", "command")
WAITS_S = (30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Between the tries of a channel; the last one from then on."""
MOST_TEXT = 2000
MOST_LINE = 300
_BAD_ENDS = ("failed", "skipped")
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")


def message_id(*parts: object) -> str:
    """The id of the message that these parts name; the same parts, the same id."""
    text = "\0".join(map(str, parts)).encode("utf-8", "surrogateescape")
    return "m-" + hashlib.sha256(text).hexdigest()[:24]


def stamp(at: float) -> str:
    """An instant as RFC 3339 in UTC."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def wants(settings: Table, kind: str, outcome: Optional[str] = None) -> bool:
    """Whether somebody with these settings wants to hear of it."""
    on = settings.get("on") or ()
    if kind == "ended":
        return "ended" in on or ("failed" in on and outcome in _BAD_ENDS)
    return kind in on


def channels_of(settings: Table) -> List[str]:
    """The ways its messages go."""
    return [name for name in CHANNELS if settings.get(name)]


def wait_s(fails: int, asked_s: Optional[float] = None) -> float:
    """How long to wait after so many failures in a row; asked_s: what the receiver asked for."""
    own = WAITS_S[min(max(fails, 1), len(WAITS_S)) - 1]
    return own if asked_s is None else max(own, min(asked_s, WAITS_S[-1]))


def shown(text: Any, most: int = MOST_LINE) -> str:
    """What a job or a receiver said, on one line, nothing in it that could play with a screen."""
    words = str(text)[: most * 2]
    if not (words.isascii() and words.isprintable()):
        words = "".join(map(_shown, words))
    return words if len(words) <= most else words[: most - 1] + "…"


def _shown(char: str) -> str:
    code = ord(char)
    if char.isprintable() and char not in _INVISIBLE and not 0xFE00 <= code <= 0xFE0F:
        return char
    if unicodedata.category(char) == "Zs" or char in "\n\t":
        return " "
    return "\\x%02x" % code if code < 0x100 else "\\u%04x" % code


def masked(text: str, settings: Table) -> str:
    """A text without the secrets of these settings, in case a receiver or a library quotes them."""
    for secret in sorted(_secrets(settings), key=len, reverse=True):
        text = text.replace(secret, "…")
    return text


def _secrets(settings: Table) -> List[str]:
    found = []
    for name in ("webhook", "heartbeat"):
        table = settings.get(name) or {}
        url = str(table.get("url") or "")
        parts = urlsplit(url)
        inner = parts.path + ("?" + parts.query if parts.query else "")
        found += [url, inner, parts.path.lstrip("/"), parts.path.rpartition("/")[2], parts.query]
        found += [str(value) for value in (table.get("headers") or {}).values()]
    # of `Bearer TOKEN` the token, too
    found += [word for text in list(found) for word in text.split()]
    return [text for text in found if len(text) >= 4]


def masked_url(url: str) -> str:
    """`https://hooks.slack.com/…`: where it leads, without what makes it a secret."""
    parts = urlsplit(url)
    rest = parts.path.strip("/") or parts.query
    return "%s://%s%s" % (parts.scheme, parts.netloc, "/…" if rest else "")


def heartbeat_url(url: str, name: str) -> str:
    """The address with its `{name}` filled in."""
    return url.replace("{name}", quote(re.sub(r"[^A-Za-z0-9_-]", "-", name), safe=""))


def request_of(message: Table, form: str) -> Tuple[bytes, Dict[str, str]]:
    """(body, headers) in which a webhook of this format gets a message."""
    headers = {"Idempotency-Key": str(message.get("id")), "User-Agent": "runner"}
    text = str(message.get("text") or "")
    if form == "slack":
        # `<!channel>` would call everybody
        for sign, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            text = text.replace(sign, name)
        return _json({"text": text}), dict(headers, **{"Content-Type": "application/json"})
    if form in ("text", "ntfy"):
        headers["Content-Type"] = "text/plain; charset=utf-8"
        if form == "ntfy":
            title = str(message.get("title") or "runner")
            headers["Title"] = title.encode("ascii", "replace").decode("ascii")
            headers["Priority"] = "high" if is_bad(message) else "default"
        return text.encode("utf-8", "replace"), headers
    return _json(message), dict(headers, **{"Content-Type": "application/json"})


def is_bad(message: Table) -> bool:
    """Whether it tells of something that went wrong."""
    kind = message.get("kind")
    return kind in ("stuck", "missed", "disk") or message.get("outcome") in _BAD_ENDS


def _json(body: Table) -> bytes:
    return json.dumps(body, sort_keys=True).encode("ascii")


def digest_of(
    ident: str, host: str, at: float, kinds: Sequence[str], titles: Sequence[str]
) -> Table:
    """One message for many that were held back; titles: of all of them."""
    shown_ones = ["  " + title for title in titles[:5]]
    more = len(titles) - len(shown_ones)
    head = "and %d more in the last hour on %s" % (len(titles), host)
    lines = [head, *shown_ones, *(["  and %d others" % more] if more else []), "runner ps"]
    return {
        "format": FORMAT,
        "id": ident,
        "kind": "digest",
        "kinds": sorted(set(kinds)),
        "count": len(titles),
        "at": stamp(at),
        "host": host,
        "title": head,
        "text": "\n".join(lines)[:MOST_TEXT],
    }


def test_message(ident: str, host: str, at: float) -> Table:
    """What `runner notify test` sends."""
    title = "test from %s" % host
    text = "%s: messages of the runner arrive here" % title
    return {
        "format": FORMAT,
        "id": ident,
        "kind": "test",
        "at": stamp(at),
        "host": host,
        "title": title,
        "text": text,
    }
