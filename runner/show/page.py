"""A comparison as one HTML page that needs nothing else: no script, no network, no file beside it.

Whatever a job or a host said is escaped by `markup`; the page's own policy forbids everything but
its style, should anything get through.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner import __version__, states
from runner.comparing import bootstrap
from runner.comparing.comparison import SAME_SEED, Comparison, Seed, Summary
from runner.comparing.curves import SECONDS, STEPS, group_curves
from runner.comparing.groups import value_text
from runner.show.charts import chart, key
from runner.show.compare import (
    configuration_text,
    figures,
    headline,
    runs_text,
    sentences,
)
from runner.show.markup import Markup, element, joined
from runner.show.plot import write_whole
from runner.show.readings import short_cause
from runner.show.units import number, rfc3339, steps

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
# Colours that people who see few of them can tell apart, for light paper and for dark.
_LIGHT = ("#0b62a4", "#b8500c", "#0a7d5c", "#8a3f8f", "#8c6d00", "#b3264a", "#3c6e8f", "#555555")
_DARK = ("#63b3f0", "#f2995c", "#4ccaa3", "#d49adb", "#e0c25a", "#f27d9a", "#8fc1df", "#bdbdbd")
_STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1b1f;--dim:#5c5f66;--rule:#d9dbe0;
--bad:#a8071a;LIGHT}
@media (prefers-color-scheme:dark){:root{--paper:#15171b;--ink:#e8e9ec;--dim:#a2a6ae;--rule:#34373e;
--bad:#ff8a80;DARK}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--paper);color:var(--ink);
font:1rem/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.35rem;line-height:1.3;margin:.2rem 0}h2{font-size:1.1rem;margin:1.8rem 0 .4rem}
p{margin:.35rem 0}.dim,figcaption,footer{color:var(--dim)}.bad{color:var(--bad);font-weight:600}
.scroll{overflow-x:auto;background:
linear-gradient(var(--paper),var(--paper)) left/1rem 100% no-repeat local,
linear-gradient(var(--paper),var(--paper)) right/1rem 100% no-repeat local,
linear-gradient(90deg,var(--rule),transparent) left/.7rem 100% no-repeat scroll,
linear-gradient(270deg,var(--rule),transparent) right/.7rem 100% no-repeat scroll}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .8rem .3rem 0;text-align:left;vertical-align:top;white-space:nowrap;
border-bottom:1px solid var(--rule)}
th{font-weight:600;color:var(--dim)}.n{text-align:right}
figure{margin:1rem 0 1.6rem}figcaption{margin-bottom:.5rem}
.chart{display:grid;grid-template-columns:3.6rem 1fr;grid-template-rows:min(56vw,21rem) 1.6rem}
.upward,.across{position:relative;font-size:.8rem;color:var(--dim)}
.upward span{position:absolute;right:.5rem;transform:translateY(-50%)}
.across{grid-column:2}.across span{position:absolute;transform:translateX(-50%);top:.25rem;
white-space:nowrap}
.drawing{border-left:1px solid var(--dim);border-bottom:1px solid var(--dim);min-width:0}
svg{display:block;width:100%;height:100%;overflow:hidden}
path{fill:none;stroke:currentColor;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.grid{stroke:var(--rule)}.line{stroke-width:2.5}.seed{stroke-width:1;opacity:.4}
.lost{stroke-width:1.5;stroke-dasharray:3 3;opacity:.9}
.dot{stroke-linecap:round;stroke-width:9;opacity:.7}
.band{fill:currentColor;stroke:none;opacity:.16}
.key{list-style:none;padding:0;margin:.4rem 0;display:flex;flex-wrap:wrap;gap:.2rem 1.4rem}
.swatch{display:inline-block;width:1.4rem;height:.25rem;margin-right:.5rem;vertical-align:middle;
background:currentColor}
GROUPS
footer{margin-top:2rem;border-top:1px solid var(--rule);padding-top:.6rem;font-size:.85rem}
"""


def _style() -> Markup:
    names = [f"--g{i}" for i in range(len(_LIGHT))]
    light = ";".join(f"{name}:{colour}" for name, colour in zip(names, _LIGHT, strict=True))
    dark = ";".join(f"{name}:{colour}" for name, colour in zip(names, _DARK, strict=True))
    groups = "".join(f".{name[2:]}{{color:var({name})}}" for name in names)
    text = _STYLE.replace("LIGHT", light).replace("DARK", dark).replace("GROUPS", groups)
    return Markup(f"<style>{text}</style>")  # nothing in it is anybody's but ours


def write_page(found: Comparison, path: Path, now: float) -> None:
    """The page as a file, which appears whole or not at all. Raises SpecError."""
    text = page(found, now)
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def page(found: Comparison, now: float) -> str:
    """The whole page; now: when it is made."""
    title = " and ".join(group.label for group in found.groups[:3])
    head = joined(
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width,initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{title}: {found.metric}"),
        _style(),
    )
    body = element(
        "body",
        element("h1", title + (" and more" if len(found.groups) > 3 else "")),
        element("p", headline(found), class_="dim"),
        _table(found),
        *[element("p", sentence) for sentence in sentences(found)],
        *_charts(found),
        element("h2", "Seeds"),
        _seeds(found),
        element("h2", "Configurations"),
        *_configurations(found),
        _footer(now),
    )
    document = element("html", element("head", head), body, lang="en")
    return f"<!doctype html>\n{document}\n"


def _scrolled(head: tuple[str, ...], rows: list[list[str]], numbers: range) -> Markup:
    """A table that scrolls by itself where the page is narrow."""

    def line(tag: str, cells: list[str]) -> Markup:
        return element(
            "tr",
            *[
                element(tag, cell, class_="n" if i in numbers else None)
                for i, cell in enumerate(cells)
            ],
        )

    lines = [line("td", row) for row in rows]
    whole = element("table", element("thead", line("th", list(head))), element("tbody", *lines))
    return element("div", whole, class_="scroll", tabindex="0")


def _table(found: Comparison) -> Markup:
    head = ("group", "seeds", "IQM", "interval", "mean", "interval", "worst", "best", "runs")
    rows = [
        [
            joined(element("span", "", class_=f"swatch g{i % len(_LIGHT)}"), group.label),
            *figures(found, group),
            runs_text(group),
        ]
        for i, group in enumerate(found.groups)
    ]
    return _scrolled(head, rows, range(1, 8))


def _charts(found: Comparison) -> list[Markup]:
    parts: list[Markup] = []
    for axis in (STEPS, SECONDS):
        curves = group_curves(found, axis)
        drawn = chart(curves, axis, found.metric)
        if drawn is None:
            continue
        if not parts:
            parts.append(element("h2", "Curves"))
        parts += [key(curves), drawn]
    if parts:
        told = (
            "Thick: IQM over the counted seeds, as far as all of them go, with its interval. Thin: "
            "each seed. Dotted: seeds that are missing in the figures."
        )
        parts.append(element("p", told, class_="dim"))
    return parts


def _seeds(found: Comparison) -> Markup:
    head = ("run", "group", "seed", "score", "state", "last step", "host")
    rows = []
    for group in found.groups:
        for seed in group.seeds:
            score = "-" if seed.score is None else number(seed.score)
            rows.append(
                [
                    seed.series.run.id,
                    group.label,
                    seed.seed or "-",
                    score,
                    _state(seed),
                    steps(seed.series.reach),
                    seed.series.host,
                ]
            )
    return _scrolled(head, rows, range(2, 4))


def _state(seed: Seed) -> str:
    run = seed.series.run
    word, cause = states.shown(run.state, run.outcome), short_cause(run)
    shown = element("span", word, class_="bad") if word == "FAILED" else word
    more = [f", {cause}"] if cause else []
    more += [f", {seed.series.problem}"] if seed.series.problem else []
    more += [", same seed as another run: not counted"] if seed.use == SAME_SEED else []
    return joined(shown, *more)


def _configurations(found: Comparison) -> list[Markup]:
    """What each group is; what all have alike stands once, behind what tells them apart."""
    tables = [group.configuration.params for group in found.groups]
    alike = {
        name: value
        for name, value in tables[0].items()
        if all(name in each and each[name] == value for each in tables)
    }
    if len(tables) == 1:
        return [_configuration(found.groups[0], alike)]
    parts = []
    for group, table in zip(found.groups, tables, strict=True):
        parts.append(
            _configuration(group, {k: v for k, v in table.items() if k not in alike}, own=True)
        )
    if alike:
        parts.append(element("p", "alike: ", _words(alike), class_="dim"))
    return parts


def _configuration(group: Summary, params: Mapping[str, Any], *, own: bool = False) -> Markup:
    """A line of what it is, and one of parameters; own: they tell it from the others."""
    shown = [element("br"), element("strong", _words(params)) if own else _words(params)]
    return element("p", configuration_text(group), *(shown if params else []))


def _words(params: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={value_text(params[name])}" for name in sorted(params))


def _footer(now: float) -> Markup:
    how = (
        f"{bootstrap.RESAMPLES:,} resamples, drawn from each group for itself; an interval needs "
        f"{bootstrap.LEAST_SEEDS} seeds. A difference is decided when the interval leaves out one "
        "half and the rank-sum test finds it unlikely by chance."
    )
    return element(
        "footer", element("p", how), element("p", f"runner {__version__}, {rfc3339(now)}")
    )
