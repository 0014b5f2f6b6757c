"""The documentation as a site: `make docs` reads docs/ and writes build/site/.

The navigation is docs/index.md's own: each heading with its list is a part of it, in that order.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "runner"
extensions = ["myst_parser"]
root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["site/**"]

myst_heading_anchors = 4
"""Headings are linked to by the same names as on GitHub."""

smartquotes = False  # a quote is what is typed

html_theme = "furo"
html_title = "runner"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_show_search_summary = False  # it is fetched, which a browser refuses a page from a file
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "default"
pygments_dark_style = "native"
highlight_language = "none"  # a block without a language is a console's

_PART = re.compile(r"^## (.+)$", re.MULTILINE)
_PAGE = re.compile(r"^- \[([^\]]+)\]\(([^)#]+)\.md\)", re.MULTILINE)


def _navigation(text: str) -> str:
    """The tables of contents that the lists below its headings are, for the sidebar alone."""
    _, *parts = _PART.split(text)
    lines: list[str] = []
    for caption, body in zip(parts[::2], parts[1::2], strict=True):
        lines += ["", "```{toctree}", ":hidden:", f":caption: {caption}", ""]
        lines += [*(f"{title} <{page}>" for title, page in _PAGE.findall(body)), "```"]
    return "\n".join(lines)


def _add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    if name == root_doc:
        source[0] += "\n" + _navigation(source[0])
    elif name.endswith("/README"):  # the list of a folder's pages
        pages = "\n".join(page for _, page in _PAGE.findall(source[0]))
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", _add_navigation)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
