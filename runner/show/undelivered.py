"""What did not arrive, in words (pure)."""

from __future__ import annotations

from typing import Any

from runner.show.units import duration, plural


def left_text(account: Any) -> str | None:
    """`3 messages not delivered (1 given up), the last error 2h00m ago: HTTP 500`.

    account: as an outbox or a worker tells it, whatever is in it. None when all have arrived.
    """
    if not isinstance(account, dict):
        return None
    waiting, lost = account.get("waiting"), account.get("lost")
    if not isinstance(waiting, int) or not isinstance(lost, int) or waiting + lost <= 0:
        return None
    text = f"{plural(waiting + lost, 'message')} not delivered"
    if lost:
        text += f" ({lost} given up)"
    age_s, error = account.get("age_s"), account.get("error")
    if isinstance(age_s, (int, float)) and isinstance(error, str):
        text += f", the last error {duration(max(0.0, age_s))} ago: {error[:300]}"
    return text
