"""What the benchmark of returns computes, keeps and forgets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# they are programs: each finds its neighbours beside it
sys.path.insert(0, str(ROOT / "benchmarks"))

import bench_curve  # noqa: E402
import bench_returns  # noqa: E402


def row(chosen: float) -> dict[str, Any]:
    return {
        "chosen": chosen, "chosen_step": 1000, "chosen_min": chosen - 1, "last": chosen,
        "steps": 1000, "cpu_s": 2.0, "wall_s": 3.0, "curve": [],
    }  # fmt: skip


def test_every_recipe_is_a_job_file_with_its_parameters() -> None:
    for name in bench_returns.RECIPES:
        entry, options = bench_returns.read_recipe(name, {"steps": "7"})
        assert (ROOT / "agents" / entry).is_file()
        assert options["steps"] == "7" and "lr" in options
    with pytest.raises(SystemExit, match=r"there is no .*nothing\.toml"):
        bench_returns.read_recipe("nothing", {})


def test_the_interval_holds_the_mean_and_shrinks_with_the_number_of_seeds() -> None:
    assert bench_returns.interval([5.0, 5.0]) == (5.0, 5.0)
    low, high = bench_returns.interval([0.0, 10.0] * 5)
    assert 0 < low < 5 < high < 10
    # of 40 the mean's deviation is 5 / sqrt(40) = 0.79
    low, high = bench_returns.interval([0.0, 10.0] * 20)
    assert low == pytest.approx(5 - 1.96 * 0.79, abs=0.2)
    assert high == pytest.approx(5 + 1.96 * 0.79, abs=0.2)


def test_seeds_are_kept_one_by_one_and_forgotten_with_other_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[int] = []

    def train(entry: str, options: dict[str, str], seed: int, episodes: int) -> dict[str, Any]:
        asked.append(seed)
        if seed == 10:
            raise bench_returns.pairs.Failed("killed")
        return row(float(seed))

    monkeypatch.setattr(bench_returns, "train", train)
    words = "recipes=dqn", "episodes=5"
    with pytest.raises(SystemExit, match="dqn: killed"):
        bench_returns.main([*words, "seeds=9..10"])
    bench_returns.main([*words, "seeds=8..9"])
    assert asked == [9, 10, 8]
    bench_returns.main(["recipes=ppo", "seeds=3"])
    bench_returns.main([*words, "seeds=1", "lr=1e-4"])
    kept = json.loads(bench_returns.FILE.read_text())
    assert {label: list(found["seeds"]) for label, found in kept.items()} == {
        "dqn": ["8", "9"], "ppo": ["3"], "dqn lr=1e-4": ["1"],
    }  # fmt: skip
    bench_returns.main(["recipes=dqn", "episodes=6", "seeds=8"])
    assert list(json.loads(bench_returns.FILE.read_text())["dqn"]["seeds"]) == ["8"]


@pytest.mark.parametrize(("chosen", "word"), [(475.0, "reached"), (474.0, "MISSED")])
def test_a_recipe_is_held_against_its_goal_by_the_mean_over_seeds(
    chosen: float, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"1": row(chosen - 25), "2": row(chosen + 25)}
    bench_returns.report("dqn", bench_returns.RECIPES["dqn"], rows)
    said = capsys.readouterr().out
    assert f"goal at least 475: {word}" in said and f"mean {chosen:.1f}" in said
    assert f"seeds {chosen - 25:.1f} to {chosen + 25:.1f}" in said


def test_a_training_leaves_what_its_checkpoints_reach() -> None:
    pytest.importorskip("torch", reason="left out: torch: not installed")
    words = {"steps": "2000", "checkpoint_every": "1000", "eval_every": "1000",
             "eval_episodes": "2", "log_every": "500", "learning_starts": "200"}  # fmt: skip
    entry, options = bench_returns.read_recipe("dqn", words)
    found = bench_returns.train(entry, options, 1, 3)
    assert found["steps"] == 2000 and found["chosen_step"] in (1000, 2000)
    assert 8 <= found["chosen_min"] <= found["chosen"] <= 500 and found["cpu_s"] > 0
    evaluated = [step for step, _, value in found["curve"] if value is not None]
    assert evaluated == [1000, 2000]


def test_a_curve_has_a_row_for_each_evaluation() -> None:
    points = [[10, 1.0, None], [20, 3.0, 5.0], [30, None, 6.0], [40, 4.0, None]]
    assert bench_curve.rows(points) == [(20, 2.0, 5.0), (30, None, 6.0)]
