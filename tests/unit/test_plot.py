from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path

import pytest

from runner.app.results import Curve
from runner.app.runs import told_apart
from runner.errors import NotFound, SpecError
from runner.show.plot import PIP_LINE, check_target, chosen_lines, draw, write_png
from runner.show.screen import Paint, width
from runner.wire import RunStatus


def curve(run: str, *points: tuple[int, Mapping[str, float]], metric: str | None = None) -> Curve:
    return Curve(run, "gpu1", run, metric, points)


RISING = curve("dqn-7k3fa", *((i * 100, {"reward": float(i)}) for i in range(101)))
FALLING = curve("dqn-b2x7m", *((i * 100, {"reward": float(100 - i)}) for i in range(101)))


def test_a_rising_curve_rises() -> None:
    lines = draw([RISING], columns=60)
    assert lines[0] == "⠒⠒ dqn-7k3fa  reward  100 at 10k"
    assert lines[1].startswith(" 100 ┤") and lines[1].rstrip()[-1] in "⡠⠔⠊⠉⠁⠈⢀⡰⠎⠜⡜⠃"
    assert lines[17].startswith("   0 ┤") and lines[17][6] != " "
    assert lines[-2] == "     └" + "─" * 53
    assert lines[-1].split() == ["0", "5k", "10k", "steps"]
    assert max(map(width, lines)) <= 60


def test_several_curves_are_told_apart_without_colours() -> None:
    lines = draw([RISING, FALLING], columns=60)
    assert lines[0].startswith("o dqn-7k3fa")
    assert lines[1].startswith("x")
    first, last = lines[2], lines[18]
    assert (first.index("x"), last.index("o")) == (6, 6)
    assert not any("\u2801" <= char <= "\u28ff" for line in lines for char in line)


def test_several_curves_have_colours_where_there_are_some() -> None:
    lines = draw([RISING, FALLING], columns=60, paint=Paint(True))
    assert lines[0].startswith("\x1b[36m") and lines[1].startswith("\x1b[33m")


@pytest.mark.parametrize(
    "points",
    [
        [(5, {"reward": 3.0})],
        [(5, {"reward": 3.0}), (5, {"reward": 4.0})],
        [(0, {"reward": 0.0}), (10, {"reward": 0.0})],
        [(0, {"reward": -1e300}), (10, {"reward": 1e300})],
        [(0, {"reward": float("nan")}), (10, {"reward": 1.0}), (20, {"reward": float("inf")})],
    ],
)
def test_odd_curves_are_drawn_too(points: list[tuple[int, dict[str, float]]]) -> None:
    lines = draw([curve("x", *points)], columns=40)
    assert any("\u2801" <= char <= "\u28ff" for line in lines[1:] for char in line)


def test_the_metric_is_the_jobs_choice_else_the_best_known_one_anywhere() -> None:
    points = [(1, {"reward": 1.0, "loss": 9.0}), (2, {"eval/return": 5.0})]
    assert chosen_lines([curve("a", *points)])[0].points == ((2, 5.0),)
    assert chosen_lines([curve("a", *points, metric="loss")])[0].points == ((1, 9.0),)


def test_nothing_to_draw_is_not_found() -> None:
    with pytest.raises(NotFound, match="a, b: no metric to draw yet"):
        draw([curve("a"), curve("b", (1, {"x": 2.0}))])


def test_of_ended_runs_it_says_where_their_own_files_can_be_seen() -> None:
    ended = [dataclasses.replace(curve(run, metric="m"), ended=True) for run in ("a", "b")]
    with pytest.raises(NotFound) as caught:
        draw(ended)
    said = "a, b: ended, and neither progress lines nor event files have m"
    assert caught.value.message == said
    assert caught.value.advice[1:] == ("  runner tensorboard host=gpu1",)
    others = curve("a", (1, {"loss\n": 2.0, **{f"t{n:02d}": 1.0 for n in range(12)}}), metric="m")
    with pytest.raises(NotFound) as caught:
        draw([dataclasses.replace(others, ended=True)])
    assert caught.value.advice[0].startswith("There are: loss\\n, t00, t01")
    assert caught.value.advice[0].endswith(
        't10 and 1 more; metric = "NAME" in the job\'s file chooses one.'
    )
    with pytest.raises(NotFound, match="no metric to draw yet"):
        draw([*ended, curve("c")])


def test_curves_of_one_job_are_named_by_what_differs() -> None:
    params = [{"lr": 0.001, "seed": 1, "steps": 5}, {"lr": 0.001, "seed": 2, "steps": 5}]
    runs = [
        RunStatus(id=f"dqn-a.{n}", state="ended", job="dqn", params=p) for n, p in enumerate(params)
    ]
    alone = RunStatus(id="ppo-b", state="ended", job="ppo", params={"lr": 1.0})
    command = RunStatus(id="cmd-c", state="ended")
    assert told_apart([*runs, alone, command]) == {
        "dqn-a.0": "seed=1",
        "dqn-a.1": "seed=2",
        "ppo-b": "",
        "cmd-c": "",
    }


def test_names_are_escaped() -> None:
    lines = draw([curve("a\x1b[2J", (1, {"reward": 1.0}))])
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a.svg", ".svg is not known; give a name in .png"),
        ("a", "a name without suffix is not known"),
        ("a.html", "plot makes no pages"),
        ("no/such/a.png", "there is no folder"),
    ],
)
def test_other_targets_are_refused_by_name(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=says):
        check_target(Path(name))


def test_without_matplotlib_the_line_to_type_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError) as caught:
        check_target(Path("a.png"))
    assert caught.value.advice == (PIP_LINE,)


@pytest.mark.filterwarnings("default")
def test_a_picture_is_written_whole(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="left out: matplotlib: not installed")
    odd = curve("_x$y", (1, {"reward": 1.0}), (2, {"reward": 3.0}))
    write_png([RISING, odd], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.filterwarnings("default")
def test_a_picture_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="left out: matplotlib: not installed")

    def fail(self: object, partial: Path, format: str) -> None:
        partial.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure.Figure, "savefig", fail)
    (tmp_path / "a.png").write_bytes(b"old")
    with pytest.raises(SpecError, match="a.png: No space left on device"):
        write_png([RISING], tmp_path / "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    assert (tmp_path / "a.png").read_bytes() == b"old"
