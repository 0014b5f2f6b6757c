"""How a submit says what travels."""

from __future__ import annotations

from typing import Any

import pytest

from runner.app.asked import code_text, sent_text
from runner.manifest import Snapshot


@pytest.mark.parametrize(
    ("changed", "sent_bytes", "text"),
    [
        (0, 0, "unchanged"),
        (3, 18_200, "3 changed, 18 kB sent"),
        (None, 1_900_000, "1.9 MB sent"),
        (0, 500, "500 B sent"),
    ],
)
def test_what_was_sent(changed: int | None, sent_bytes: int, text: str) -> None:
    assert sent_text(changed, sent_bytes) == text


@pytest.mark.parametrize(
    ("code", "skipped", "text"),
    [
        ({"files": 1}, (), "1 file, x"),
        (
            {"files": 214, "commit": "4f2c91a0", "branch": "main", "edited": 2},
            (),
            "214 files, x; main@4f2c91a + 2 edited files",
        ),
        (
            {"files": 2, "commit": "4f2c91a0", "branch": "main", "edited": 1},
            ("3 by .gitignore", "1 by .runnerignore"),
            "2 files, x; main@4f2c91a + 1 edited file; "
            "left out: 3 by .gitignore, 1 by .runnerignore",
        ),
    ],
)
def test_the_line_about_the_code(code: dict[str, Any], skipped: tuple[str, ...], text: str) -> None:
    assert code_text(Snapshot((), "", code, skipped), "x") == text
