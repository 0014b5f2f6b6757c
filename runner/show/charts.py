"""Curves of groups as a chart of HTML and SVG (pure).

The drawing is stretched to whatever width there is; its numbers are HTML beside it, so that they
stay as large as other text on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runner.comparing.curves import STEPS, GroupCurve, Point
from runner.show.markup import Markup, element, joined
from runner.show.units import duration, number, steps

COLOURS = 8
"""How many the page has; further groups begin again, with another dash."""
_SIDE = 1000
_DASHES = (None, "9 5", "3 4", "12 4 3 4")


@dataclass(frozen=True)
class _Axes:
    first: float
    last: float
    low: float
    high: float

    def place(self, x: float, y: float) -> str:
        across = (x - self.first) / (self.last - self.first)
        up = (y - self.low) / (self.high - self.low)
        return f"{across * _SIDE:.1f},{(1 - up) * _SIDE:.1f}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two, about `most` of them."""
    size = (high - low) / most
    power = 10.0 ** math.floor(math.log10(size))
    width = next(power * times for times in (1, 2, 2.5, 5, 10) if power * times >= size * 0.999)
    first = math.ceil(low / width - 1e-9)
    count = math.floor(high / width + 1e-9) - first + 1
    return [(first + i) * width for i in range(max(0, min(count, 3 * most)))]


def chart(curves: Sequence[GroupCurve], axis: str, metric: str) -> Markup | None:
    """A figure with the groups' curves, or None where there is nothing to draw."""
    axes = _axes(curves, axis)
    if axes is None:
        return None
    shapes: list[Markup] = []
    across = ticks(axes.first, axes.last)
    upward = ticks(axes.low, axes.high)
    for y in upward:
        ends = f"M{axes.place(axes.first, y)}L{axes.place(axes.last, y)}"
        shapes.append(element("path", d=ends, class_="grid"))
    for index, curve in enumerate(curves):
        shapes += _shapes(curve, index, axes)
    drawing = element(
        "svg",
        element("title", f"{metric} over {axis}"),
        *shapes,
        viewBox=f"0 0 {_SIDE} {_SIDE}",
        preserveAspectRatio="none",
        role="img",
    )
    labels = [_label(number(y), "top", 1 - (y - axes.low) / (axes.high - axes.low)) for y in upward]
    shown = [
        _label(_x_text(x, axis, axes.last), "left", (x - axes.first) / (axes.last - axes.first))
        for x in across
    ]
    return element(
        "figure",
        element("figcaption", f"{metric} over {axis}"),
        element(
            "div",
            element("div", *labels, class_="upward", aria_hidden="true"),
            element("div", drawing, class_="drawing"),
            element("div", *shown, class_="across", aria_hidden="true"),
            class_="chart",
        ),
    )


def _x_text(x: float, axis: str, last: float) -> str:
    if axis == STEPS:
        return steps(x)
    return duration(x) if last >= 10 else f"{x:.1f}s"


def _label(text: str, side: str, share: float) -> Markup:
    return element("span", text, style=f"{side}:{share * 100:.2f}%")


def _axes(curves: Sequence[GroupCurve], axis: str) -> _Axes | None:
    points = [point for curve in curves for seed in curve.seeds for point in seed.points]
    points += [point for curve in curves for point in curve.points]
    heights = [y for _, y in points]
    heights += [y for curve in curves for y in (*curve.low, *curve.high)]
    if not points:
        return None
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    first = first if axis == STEPS else 0.0
    low, high = min(heights), max(heights)
    if high <= low:
        low, high = low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)
    if last <= first:
        first, last = first - (abs(first) * 0.1 or 1.0), last + (abs(last) * 0.1 or 1.0)
    room = (high - low) * 0.04
    return _Axes(first, last, low - room, high + room)


def _shapes(curve: GroupCurve, index: int, axes: _Axes) -> list[Markup]:
    name = f"g{index % COLOURS}"
    shapes = []
    if curve.low:
        xs = [x for x, _ in curve.points]
        upper = list(zip(xs, curve.high, strict=True))
        lower = list(zip(xs, curve.low, strict=True))[::-1]
        shapes.append(element("path", d=_path([*upper, *lower], axes) + "Z", class_=f"band {name}"))
    for seed in curve.seeds:
        kind = "seed" if seed.counted else "lost"
        said = seed.run if seed.counted else f"{seed.run}, not counted"
        shapes.append(
            element(
                "path",
                element("title", said),
                d=_path(seed.points, axes),
                class_=f"{kind} {name}{_dot(seed.points)}",
            )
        )
    if curve.points:
        dash = _DASHES[index // COLOURS % len(_DASHES)]
        shapes.append(
            element(
                "path",
                element("title", f"{curve.label}, IQM"),
                d=_path(curve.points, axes),
                class_=f"line {name}{_dot(curve.points)}",
                stroke_dasharray=dash,
            )
        )
    return shapes


def _dot(points: Sequence[Point]) -> str:
    """A class more for a curve in one place, which has no length to be seen by."""
    return " dot" if len(set(points)) == 1 else ""


def _path(points: Sequence[Point], axes: _Axes) -> str:
    places = [axes.place(x, y) for x, y in points]
    if len(places) == 1:
        places *= 2
    return "M" + "L".join(places)


def key(curves: Sequence[GroupCurve]) -> Markup:
    """Which colour is which group."""
    items = [
        element("li", element("span", "", class_=f"swatch g{index % COLOURS}"), curve.label)
        for index, curve in enumerate(curves)
    ]
    return joined(element("ul", *items, class_="key"))
