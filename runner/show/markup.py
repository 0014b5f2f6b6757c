"""HTML and SVG whose every text and attribute is escaped by what makes it (pure)."""

from __future__ import annotations

import html

from runner.show.screen import escaped

_ALONE = frozenset({"meta", "br"})


class Markup(str):
    """Text that is HTML already; only `element` and `joined` make it."""


def text(plain: str) -> Markup:
    """Text for a page: its markup, and what could play with its direction, shown as such."""
    return Markup(html.escape(escaped(plain), quote=True))


def element(tag: str, *inside: str, **attributes: str | float | None) -> Markup:
    """`<tag name="…">…</tag>`; what is inside is escaped unless it is markup.

    Attributes that are None are left out; `_` in their names is `-`, one at the end is dropped.
    """
    said = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    body = joined(*inside)
    return Markup(f"<{tag}{said}>" if tag in _ALONE else f"<{tag}{said}>{body}</{tag}>")


def joined(*inside: str) -> Markup:
    """Pieces in a row, escaped unless they are markup."""
    return Markup("".join(one if isinstance(one, Markup) else text(one) for one in inside))
