"""The page that `compare` writes, as a real browser shows it: wide and narrow, light and dark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.show.page import write_page
from tests.helpers.browser import Browser
from tests.helpers.statuses import NOW
from tests.unit.test_comparison import HIGH, LOW, compared, seed
from tests.unit.test_page import EVIL, timed

NARROW, WIDE = 390, 1280
WIDTH = "document.documentElement.scrollWidth"
PAPER = "getComputedStyle(document.body).backgroundColor"
INK = "getComputedStyle(document.body).color"
SEEN = "document.body.innerText"


@pytest.fixture
def browser(chromium: str) -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        made = Browser(chromium, Path(profile))
        try:
            yield made
        finally:
            made.close()


def test_the_page_of_a_comparison_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    worst = timed(seed("x" * 200, 3e-4, 9, 20.0, reach=12, outcome="failed"))
    worst = replace(worst, run=worst.run._replace(job=EVIL))
    found = compared([*(timed(each) for each in [*HIGH, *LOW]), worst])
    path = tmp_path / "a page.html"
    write_page(found, path, NOW)
    looks = set()
    for width in (NARROW, WIDE):
        for dark in (False, True):
            browser.open(path, width=width, dark=dark)
            assert browser.value(WIDTH) <= width, "nothing but its tables is wider than the window"
            looks.add((browser.value(PAPER), browser.value(INK)))
            text = browser.value(SEEN)
            for words in ("IQM", "Seeds", "Configurations", HIGH[0].run.id, "x" * 200, "onload=x"):
                assert words in text
            assert browser.value("document.querySelectorAll('svg path.line').length") >= 2
            assert browser.requests == [path.as_uri()], "no other file, and no network"
            assert browser.complaints == []
    assert len(looks) == 2, "dark is another look than light"
