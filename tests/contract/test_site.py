"""The documentation as a site: every link leads somewhere, and nothing comes from elsewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADS = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning, as of a link that leads nowhere, is an error."""
    for name in ("sphinx", "furo", "myst_parser"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"left out: {name}: not installed (extra docs)")
    made = tmp_path_factory.mktemp("site")
    words = ["-c", str(ROOT / "docs/site"), "-d", str(made / "doctrees"), "-W", "--keep-going"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, "-q", str(ROOT / "docs"), str(made / "html")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return made / "html"


class Loaded(HTMLParser):
    """What a page loads while it is shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if LOADS.get(tag) == name]


def loaded(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".html":
            yield from ((path, what) for what in Loaded(path.read_text("utf-8")).found)
        elif path.suffix in (".css", ".svg"):
            text = path.read_text("utf-8")
            yield from ((path, each) for each in re.findall(r"url\(['\"]?([^)'\"]+)", text))
            yield from ((path, each) for each in re.findall(r"@import\s+['\"]([^'\"]+)", text))


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    found = list(loaded(site))
    assert len(found) > 100
    foreign = [pair for pair in found if re.match(r"(?i)([a-z]+:)?//", pair[1])]
    assert foreign == []
    for path in site.rglob("*.js"):
        asks = re.findall(
            r"(?:fetch|import|XMLHttpRequest)\(\s*['\"`]https?:", path.read_text("utf-8")
        )
        assert not asks, path


def test_every_page_is_there_and_can_be_searched(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert not [str(page) for page in pages if not (site / page.with_suffix(".html")).is_file()]
    index = (site / "searchindex.js").read_text("utf-8")
    assert index.startswith("Search.setIndex(")  # a script of its own, so that it loads from a file
    assert not [str(page) for page in pages if f'"{page.with_suffix("")}"' not in index]


def test_navigation_is_that_of_the_index(site: Path) -> None:
    captions = re.findall(r"^## (.+)$", (ROOT / "docs/index.md").read_text("utf-8"), re.MULTILINE)
    shown = re.findall(r'class="caption-text">([^<]+)<', (site / "jobs.html").read_text("utf-8"))
    assert shown == captions
