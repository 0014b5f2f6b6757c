"""A comparison as PNG, by matplotlib."""

from __future__ import annotations

from pathlib import Path

from runner.comparing.comparison import Comparison
from runner.comparing.curves import STEPS, group_curves
from runner.show.plot import plain, write_whole
from runner.show.units import steps


def write_picture(found: Comparison, path: Path) -> None:
    """The groups' curves over steps with their intervals; whole or not at all. Raises SpecError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, (curve, group) in enumerate(
        zip(group_curves(found, STEPS), found.groups, strict=True)
    ):
        colour = f"C{index % 10}"
        for seed in curve.seeds:
            xs, ys = zip(*seed.points, strict=True)
            look = {"alpha": 0.35} if seed.counted else {"alpha": 0.8, "linestyle": ":"}
            axes.plot(xs, ys, color=colour, linewidth=0.7, **look)
        counted, whole = len(group.counted), len(group.counted) + len(group.missing)
        label = plain(f"{curve.label}, {counted} of {whole} seeds")
        if not curve.points:
            axes.plot([], [], color=colour, label=label)
            continue
        xs, ys = zip(*curve.points, strict=True)
        axes.plot(xs, ys, color=colour, linewidth=1.8, label=label)
        if curve.low:
            axes.fill_between(xs, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(plain(f"{found.metric}, IQM and 95% interval"))
    axes.xaxis.set_major_formatter(lambda value, _: steps(value) if value >= 0 else "")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    write_whole(path, lambda partial: figure.savefig(partial, format="png"))
