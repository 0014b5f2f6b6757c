"""Learning curves: drawn with braille dots in a terminal, or as PNG by matplotlib.

A dot of the terminal's curve is the mean of the values whose steps fall on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.app.results import Curve
from runner.errors import NotFound, SpecError
from runner.metrics import KNOWN_METRICS, best_known, metric_of
from runner.show.screen import Paint, cut, escaped, padded, width
from runner.show.units import number, steps

ROWS = 17
"""Lines of the drawing; it fits the smallest common terminal (24) with its axis and legend."""
LEAST_COLUMNS = 20
MOST_NAMED = 12
"""Metrics that are named where the one to draw is not there."""
_COLOURS, _DASHES = 10, ("-", "--", ":", "-.")
"""matplotlib's own colours; further curves begin again, with another dash."""
_MOST_WITHIN = 6
"""Names that have room beside the curves."""
COLOURS = ("cyan", "yellow", "green", "red", "bold", "dim")
PIP_LINE = "pip install matplotlib"
_MOST = 1e300
"""Larger values are drawn as this: their differences would be no floats."""
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_SIGNS = "ox+*#@"
"""Without colours several curves are told apart by these."""


@dataclass(frozen=True)
class Line:
    """One curve, its metric chosen: points by step, all finite."""

    label: str
    metric: str
    points: tuple[tuple[int, float], ...]


def chosen_lines(curves: Sequence[Curve]) -> list[Line]:
    """The curves that have something to draw. Raises NotFound when none has."""
    lines = [line for line in map(_line, curves) if line.points]
    if not lines:
        raise _nothing(curves)
    return lines


def _nothing(curves: Sequence[Curve]) -> NotFound:
    """Why there is nothing to draw, what there is, and where all of an ended run can be seen."""
    names = ", ".join(curve.run for curve in curves) or "these runs"
    if not curves or not all(curve.ended for curve in curves):
        return NotFound(f"{names}: no metric to draw yet")
    wanted = sorted({c.metric for c in curves if c.metric}) or KNOWN_METRICS
    return NotFound(
        f"{names}: ended, and neither progress lines nor event files have {', '.join(wanted)}",
        *_others(curves),
        "All that TensorBoard knows of:",
        *[f"  runner tensorboard host={host}" for host in sorted({c.host for c in curves})],
    )


def _others(curves: Sequence[Curve]) -> list[str]:
    """The metrics that there are, to choose one of them."""
    there = sorted({name for curve in curves for _, metrics in curve.points for name in metrics})
    if not there:
        return []
    more = f" and {len(there) - MOST_NAMED} more" if len(there) > MOST_NAMED else ""
    named = ", ".join(escaped(name) for name in there[:MOST_NAMED])
    return [f'There are: {named}{more}; metric = "NAME" in the job\'s file chooses one.']


def _line(curve: Curve) -> Line:
    metric = curve.metric or best_known(metrics for _, metrics in curve.points)
    points = []
    for step, metrics in curve.points:
        value = metric_of(metrics, metric) if metric else None
        if value is not None and math.isfinite(value[1]):
            points.append((step, max(-_MOST, min(_MOST, value[1]))))
    return Line(curve.label or curve.run, metric or "", tuple(points))


@dataclass(frozen=True)
class _Frame:
    """The part of the plane that is drawn."""

    first: float
    last: float
    low: float
    high: float

    def place(self, step: float, value: float, columns: int, rows: int) -> tuple[int, int]:
        """The dot (from the left, from the top) of a point on a raster."""
        across = (step - self.first) / (self.last - self.first)
        up = (value - self.low) / (self.high - self.low)
        return round(across * (columns - 1)), round((1 - up) * (rows - 1))


def _frame(lines: Sequence[Line]) -> _Frame:
    all_steps = [step for line in lines for step, _ in line.points]
    values = [value for line in lines for _, value in line.points]
    low, high = min(values), max(values)
    if low == high:
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    first, last = float(min(all_steps)), float(max(all_steps))
    return _Frame(first, last if last > first else first + max(1.0, abs(first) / 1e9), low, high)


def draw(
    curves: Sequence[Curve], *, columns: int = 80, rows: int = ROWS, paint: Paint | None = None
) -> list[str]:
    """Lines of text: a legend, the curves with numbers on their axes. Raises NotFound."""
    paint = paint or Paint()
    lines = chosen_lines(curves)
    frame = _frame(lines)
    labels = _axis_labels(frame, rows)
    margin = max(width(label) for label in labels)
    across = max(LEAST_COLUMNS, min(columns, 120) - margin - 3)
    cells = _cells(lines, frame, across, rows, paint)
    text = [_legend(line, i, len(lines), columns, paint) for i, line in enumerate(lines)]
    for label, row in zip(labels, cells, strict=True):
        text.append(f"{padded(label, margin, right=True)} {'┤' if label else '│'}{row}".rstrip())
    text.append(" " * (margin + 1) + "└" + "─" * across)
    text.append(" " * (margin + 2) + _step_axis(frame, across))
    return text


def _axis_labels(frame: _Frame, rows: int) -> list[str]:
    """Numbers at the top, at the bottom and between, where they fall on a line."""
    marks = {round(i * (rows - 1) / 4) for i in range(5)}
    span = frame.high - frame.low
    return [
        number(frame.high - span * row / (rows - 1)) if row in marks else "" for row in range(rows)
    ]


def _step_axis(frame: _Frame, across: int) -> str:
    left, right = steps(frame.first), steps(frame.last) + " steps"
    middle = steps((frame.first + frame.last) / 2)
    gap = across - len(left) - len(right)
    return left + middle.center(gap) + right if gap > len(middle) else f"{left} {right}"


def _legend(line: Line, index: int, count: int, columns: int, paint: Paint) -> str:
    sign = "⠒⠒" if paint.on or count == 1 else _SIGNS[index % len(_SIGNS)]
    last_step, last_value = line.points[-1]
    text = (
        f"{escaped(line.label)}  {escaped(line.metric)}  {number(last_value)} at {steps(last_step)}"
    )
    return (
        paint(sign, COLOURS[index % len(COLOURS)] if count > 1 else None)
        + " "
        + cut(text, columns - 3)
    )


def _cells(lines: Sequence[Line], frame: _Frame, across: int, rows: int, paint: Paint) -> list[str]:
    """The raster as rows of characters; where curves meet the later one is seen."""
    dots = len(lines) == 1 or paint.on
    raster = [[" "] * across for _ in range(rows)]
    for index, line in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)] if len(lines) > 1 else None
        wide, high = (across * 2, rows * 4) if dots else (across, rows)
        masks: dict[tuple[int, int], int] = {}
        for column, row in _pixels(line, frame, wide, high):
            if dots:
                cell, mask = (column // 2, row // 4), _DOTS[column % 2][row % 4]
            else:
                cell, mask = (column, row), 1
            masks[cell] = masks.get(cell, 0) | mask
        for (column, row), mask in masks.items():
            sign = chr(_BRAILLE + mask) if dots else _SIGNS[index % len(_SIGNS)]
            raster[row][column] = paint(sign, colour)
    return ["".join(row) for row in raster]


def _pixels(line: Line, frame: _Frame, columns: int, rows: int) -> list[tuple[int, int]]:
    """Dots of one curve: the mean of each column, joined from column to column."""
    sums: dict[int, list[float]] = {}
    for step, value in line.points:
        column, _ = frame.place(step, value, columns, rows)
        sums.setdefault(column, []).append(value)
    heights = []
    for column in sorted(sums):
        mean = math.fsum(sums[column]) / len(sums[column])
        heights.append((column, frame.place(frame.first, mean, columns, rows)[1]))
    pixels = heights[:1]
    for before, after in zip(heights, heights[1:], strict=False):
        pixels += _joined(before, after)
    return pixels


def _joined(before: tuple[int, int], after: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots from one to the next, without the first."""
    count = max(after[0] - before[0], abs(after[1] - before[1]))
    return [
        (
            before[0] + round(i * (after[0] - before[0]) / count),
            before[1] + round(i * (after[1] - before[1]) / count),
        )
        for i in range(1, count + 1)
    ]


def check_target(path: Path, suffixes: Sequence[str] = (".png",)) -> None:
    """Refuses, before any host is asked, what could not be written. Raises SpecError."""
    known, suffix = " or ".join(suffixes), path.suffix.lower()
    if suffix not in suffixes:
        if suffix == ".html":
            raise SpecError(f"{path}: plot makes no pages", f"  runner compare RUN… --out {path}")
        raise SpecError(
            f"{path}: {path.suffix or 'a name without suffix'} is not known; give a name in {known}"
        )
    if not path.absolute().parent.is_dir():
        raise SpecError(f"{path}: there is no folder {path.absolute().parent}")
    if path.is_dir():
        raise SpecError(f"{path}: is a folder; give a file's name")
    import importlib.util

    if suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise SpecError("PNG needs matplotlib, which is not installed:", PIP_LINE)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have a file written under another name and renamed: it appears whole or not at all.

    Raises SpecError.
    """
    partial = path.with_name(f".{path.name}.part")
    try:
        write(partial)
        partial.replace(path)
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def write_png(curves: Sequence[Curve], path: Path) -> None:
    """The curves as a picture; the file appears whole or not at all. Raises NotFound, SpecError."""
    check_target(path)
    lines = chosen_lines(curves)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    metrics = sorted({line.metric for line in lines})
    for index, line in enumerate(lines):
        label = line.label if len(metrics) == 1 else f"{line.label}  {line.metric}"
        alone = "o" if len(line.points) == 1 else ""
        xs, ys = zip(*line.points, strict=True)
        dash = _DASHES[index // _COLOURS % len(_DASHES)]
        axes.plot(xs, ys, dash, label=plain(label), linewidth=1.4, marker=alone)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(plain(", ".join(metrics)))
    axes.xaxis.set_major_formatter(lambda value, _: steps(value) if value >= 0 else "")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(lines) <= _MOST_WITHIN:
        axes.legend(frameon=False)
    else:  # it would lie over them
        figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    write_whole(path, lambda partial: figure.savefig(partial, format="png"))


def plain(text: str) -> str:
    """Text for matplotlib, which reads `$…$` as formulas and hides labels with a leading `_`."""
    shown = escaped(text).replace("$", r"\$")
    return " " + shown if shown.startswith("_") else shown
