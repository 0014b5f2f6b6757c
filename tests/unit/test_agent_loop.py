"""The loop around every algorithm: what is done at which step, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

from tests.helpers.agents import progress, run  # noqa: E402, F401

# isort: split
import environments  # noqa: E402
import loop  # noqa: E402
from episodes import Episodes  # noqa: E402
from runtime import Stopped  # noqa: E402


@dataclass(frozen=True)
class Options:
    env: str = "Made-v0"
    seed: int = 1
    steps: int = 100
    checkpoint_every: int = 30
    eval_every: int = 20
    log_every: int = 10


class Playing:
    def __init__(self) -> None:
        self.exact, self.closed = True, 0
        self.ended: list[tuple[float, int]] = []

    def take_ended(self) -> list[tuple[float, int]]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        self.closed += 1


class Training:
    """Ten steps an advance; an episode of return `step` ends with each."""

    asks_every = 1

    def __init__(self, o: Options) -> None:
        self.o, self.envs, self.step, self.ticks = o, Playing(), 0, 0
        self.done: list[tuple[Any, ...]] = []

    def advance(self) -> dict[str, float]:
        self.step, self.ticks = min(self.step + 10, self.o.steps), self.ticks + 1
        self.envs.ended.append((float(self.step), 3))
        return {"loss/policy": 0.5} if self.step > 30 else {}

    def evaluate(self) -> dict[str, float]:
        self.done.append(("evaluated", self.step))
        return {"eval/return": float(self.step)}

    def save(self, metrics: dict[str, float]) -> None:
        self.done.append(("saved", self.step, dict(metrics)))

    def of(self, kind: str) -> list[int]:
        return [each[1] for each in self.done if each[0] == kind]


def test_each_thing_is_done_at_its_interval_and_at_the_end(run: Any) -> None:  # noqa: F811
    t = Training(Options())
    loop.drive(t, t.o, run, name="made")
    assert t.of("evaluated") == [20, 40, 60, 80, 100]
    assert t.of("saved") == [30, 60, 90, 100]
    assert t.envs.closed == 1


def test_an_interval_that_no_advance_hits_is_kept_by_the_next(run: Any) -> None:  # noqa: F811
    t = Training(Options(steps=97, checkpoint_every=25, eval_every=0, log_every=1000))
    loop.drive(t, t.o, run, name="made")
    assert t.of("saved") == [30, 50, 80, 97]  # 25, 50 and 75 passed; the end
    assert t.of("evaluated") == []


def test_a_checkpoint_has_what_was_measured_for_just_these_parameters(
    run: Any,  # noqa: F811
) -> None:
    t = Training(Options())
    loop.drive(t, t.o, run, name="made")
    saved = {step: metrics for kind, step, *rest in t.done if kind == "saved" for metrics in rest}
    assert saved == {30: {}, 60: {"eval/return": 60.0}, 90: {}, 100: {"eval/return": 100.0}}
    assert t.done.index(("evaluated", 60)) < t.done.index(("saved", 60, saved[60]))


def test_without_intervals_there_is_only_the_final_state(run: Any) -> None:  # noqa: F811
    t = Training(Options(checkpoint_every=0, eval_every=0))
    loop.drive(t, t.o, run, name="made")
    assert t.done == [("saved", 100, {})]


def test_progress_has_the_mean_return_since_the_last_line(run: Any, tmp_path: Path) -> None:  # noqa: F811
    t = Training(Options(log_every=20, eval_every=50))
    loop.drive(t, t.o, run, name="made")
    lines = [(line["step"], line["metrics"]) for line in progress(tmp_path)]
    assert [step for step, _ in lines] == [20, 40, 60, 80, 100]
    assert [metrics["reward"] for _, metrics in lines] == [15.0, 35.0, 55.0, 75.0, 95.0]
    assert [metrics.get("loss/policy") for _, metrics in lines] == [None, 0.5, 0.5, 0.5, 0.5]
    assert [metrics.get("eval/return") for _, metrics in lines] == [None] * 4 + [100.0]


def test_a_slow_training_shows_life_between_its_intervals(
    run: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop.Reporter, "overdue", lambda self: True)
    t = Training(Options(log_every=1000, eval_every=0))
    loop.drive(t, t.o, run, name="made")
    assert [line["step"] for line in progress(tmp_path)] == list(range(10, 101, 10))


def test_a_signal_ends_it_with_the_state_saved(
    run: Any,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Told(Training):
        def advance(self) -> dict[str, float]:
            run.received = 15 if self.step == 40 else None
            return super().advance()

    t = Told(Options(checkpoint_every=0, eval_every=0))
    with pytest.raises(Stopped):
        loop.drive(t, t.o, run, name="made")
    assert t.done == [("saved", 50, {})] and t.envs.closed == 1
    assert capsys.readouterr().out.endswith("stopped at step 50, state saved\n")


def test_a_signal_in_the_last_step_changes_nothing(run: Any) -> None:  # noqa: F811
    class Told(Training):
        def advance(self) -> dict[str, float]:
            run.received = 15 if self.step == 90 else None
            return super().advance()

    t = Told(Options())
    loop.drive(t, t.o, run, name="made")
    assert t.of("saved")[-1] == 100


@pytest.mark.parametrize("part", ["advance", "evaluate", "save"])
def test_environments_are_closed_whatever_goes_wrong(
    part: str,
    run: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    t = Training(Options())
    monkeypatch.setattr(t, part, broken)
    with pytest.raises(RuntimeError, match="broken"):
        loop.drive(t, t.o, run, name="made")
    assert t.envs.closed == 1


def test_a_finished_training_does_nothing_when_it_is_resumed(run: Any) -> None:  # noqa: F811
    t = Training(Options())
    t.step = 100
    loop.drive(t, t.o, run, name="made")
    assert t.done == [] and t.envs.closed == 1


def test_the_first_line_says_what_runs(
    run: Any,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run.resume = tmp_path / "step-000000040"
    t = Training(Options())
    t.step = 40
    loop.drive(t, t.o, run, name="made", more="envs 2")
    first = capsys.readouterr().out.splitlines()[0]
    assert first == (
        "made  device cpu, 1 thread  env Made-v0  seed 1  ranks 1  envs 2  resumed from step 40"
    )


def test_it_is_said_where_episodes_cannot_be_kept(
    run: Any,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("Box2D", reason="left out: Box2D: not installed")
    name = "LunarLander-v3"
    t = Training(Options(env=name, steps=10))
    facts = environments.look(name)
    t.envs = Episodes(name, seed=1, index=range(1), facts=facts)  # type: ignore[assignment]
    t.envs.ended = []
    loop.drive(t, t.o, run, name="made")
    second = capsys.readouterr().out.splitlines()[1]
    assert second == f"{name} cannot be kept in a checkpoint: a resume begins new episodes"
