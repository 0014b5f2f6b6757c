"""docs/reference/ says what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs/site/reference.py"


def test_reference_is_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, "-B", str(SCRIPT), "--check"], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr


def test_every_page_of_the_reference_is_made() -> None:
    made = "<!-- made of the code by docs/site/reference.py"
    for path in (ROOT / "docs/reference").iterdir():
        assert made in path.read_text(encoding="utf-8"), path
