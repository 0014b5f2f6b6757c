"""Messages: forms for receivers, what is masked, when it is tried again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner import messages

SETTINGS: dict[str, Any] = {
    "on": ["failed"],
    "webhook": {
        "url": "https://hooks.example.com/services/T00/B11?token=abcdef",
        "format": "slack",
        "headers": {"Authorization": "Bearer tk_12345"},
    },
}
MESSAGE = {
    "format": 1,
    "id": "m-1",
    "kind": "ended",
    "outcome": "failed",
    "title": "dqn-7k3fa FAILED on gpu1",
    "text": "dqn-7k3fa FAILED on gpu1: <!channel> & more",
}


def test_the_same_parts_make_the_same_id_and_others_another() -> None:
    assert messages.message_id("a", 1) == messages.message_id("a", 1)
    assert messages.message_id("a", 1) != messages.message_id("a1")
    messages.message_id("\udcff")  # a byte that is no UTF-8


@pytest.mark.parametrize(
    ("on", "outcome", "wanted"),
    [
        (["ended"], "done", True),
        (["failed"], "done", False),
        (["failed"], "failed", True),
        (["failed"], "skipped", True),
        (["failed"], "cancelled", False),
        ([], "failed", False),
    ],
)
def test_who_wants_to_hear_of_ends_hears_of_those(
    on: list[str], outcome: str, wanted: bool
) -> None:
    assert messages.wants({"on": on}, "ended", outcome) is wanted


def test_waits_grow_up_to_an_hour_and_a_receiver_may_ask_for_longer() -> None:
    waits = [messages.wait_s(fails) for fails in range(1, 10)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (30.0, 3600.0)
    assert messages.wait_s(1, 120.0) == 120.0
    assert messages.wait_s(3, 5.0) == 120.0
    assert messages.wait_s(1, 1e9) == 3600.0


def test_what_was_said_is_one_line_without_controls() -> None:
    assert messages.shown("a\x1b[31mb\r\n\u202ec") == "a\\x1b[31mb\\x0d \\u202ec"
    assert len(messages.shown("x" * 10_000)) == messages.MOST_LINE


def test_secrets_are_masked_in_whatever_is_said_of_them() -> None:
    said = messages.masked(
        "no /services/T00/B11?token=abcdef, Bearer tk_12345 or https://hooks.example.com"
        "/services/T00/B11?token=abcdef; tk_12345",
        SETTINGS,
    )
    for secret in ("T00", "B11", "abcdef", "tk_12345"):
        assert secret not in said
    assert messages.masked_url(SETTINGS["webhook"]["url"]) == "https://hooks.example.com/…"
    assert messages.masked_url("https://example.com") == "https://example.com"


def test_slack_calls_nobody_whatever_a_job_says() -> None:
    body, headers = messages.request_of(MESSAGE, "slack")
    assert json.loads(body) == {"text": "dqn-7k3fa FAILED on gpu1: &lt;!channel&gt; &amp; more"}
    assert headers["Content-Type"] == "application/json"
    assert headers["Idempotency-Key"] == "m-1"


def test_ntfy_has_title_and_priority_in_headers() -> None:
    body, headers = messages.request_of({**MESSAGE, "title": "ümlaut\u2026"}, "ntfy")
    assert body == MESSAGE["text"].encode()  # type: ignore[attr-defined]
    assert headers["Title"] == "?mlaut?"
    assert headers["Priority"] == "high"
    assert messages.request_of({"text": "x"}, "ntfy")[1]["Priority"] == "default"


def test_text_and_json_are_the_message_itself() -> None:
    assert messages.request_of(MESSAGE, "text")[0].startswith(b"dqn-7k3fa FAILED")
    assert json.loads(messages.request_of(MESSAGE, "json")[0]) == MESSAGE


def test_a_digest_names_a_few_and_counts_the_rest() -> None:
    titles = [f"dqn-9x2mp.{n} FAILED on gpu1" for n in range(37)]
    found = messages.digest_of("m-2", "gpu1", 0.0, ["ended"] * 37, titles)
    lines = found["text"].splitlines()
    assert lines[0] == "and 37 more in the last hour on gpu1"
    assert lines[1].strip() == titles[0]
    assert lines[6].strip() == "and 32 others"
    assert found["count"] == 37


def test_the_heartbeat_has_the_name_of_whose_it_is() -> None:
    assert messages.heartbeat_url("https://h/{name}?x=1", "gpu/1 é") == "https://h/gpu-1--?x=1"
    assert messages.heartbeat_url("https://h/x", "gpu1") == "https://h/x"
