"""Pairs: the order of the runs, the statistics, the verdicts, and what counts as a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import pairs
from benchmarks.pairs import Goal, Pairs, Sample, Side, Spread


def of(base: list[float], other: list[float], *goals: Goal) -> Pairs:
    samples = {"base": [Sample(wall) for wall in base], "other": [Sample(wall) for wall in other]}
    return Pairs("name", samples, goals)


def test_every_side_is_first_equally_often() -> None:
    order = pairs.turns(3, 6)
    assert [round_[0] for round_ in order] == [0, 1, 2, 0, 1, 2]
    assert all(sorted(round_) == [0, 1, 2] for round_ in order)


def test_the_middle_and_both_ends() -> None:
    assert pairs.spread([3.0, 1.0, 2.0, 10.0]) == Spread(2.5, 1.0, 10.0)


def test_ratios_are_of_one_round_each() -> None:
    # the whole machine slowed down in round two: no ratio shows it
    assert of([1.0, 10.0], [2.0, 20.0]).ratios("other") == [2.0, 2.0]
    assert of([1.0, 10.0], [2.0, 20.0]).extras("other") == [1.0, 10.0]


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (Goal("other", factor=2.0), True),
        (Goal("other", factor=1.9), False),
        (Goal("other", extra_s=1.0), True),
        (Goal("other", extra_s=0.9), False),
    ],
)
def test_a_goal_is_held_against_the_median(goal: Goal, met: bool) -> None:
    found = of([1.0, 1.0, 1.0], [1.0, 2.0, 50.0], goal)
    assert pairs.is_met(found, goal) is met
    assert ("MISSED" in pairs.table(found)[-1]) is not met


def test_the_table_names_sides_and_ratios() -> None:
    lines = pairs.table(of([1.0, 1.0], [2.0, 4.0]))
    assert "2 rounds" in lines[0]
    assert "3000.0 (2000.0 to 4000.0)" in lines[3] and "3.00 (2.00 to 4.00)" in lines[3]


def test_the_document_is_json_with_every_number() -> None:
    body = json.loads(json.dumps(pairs.document(of([1.0], [2.0], Goal("other", factor=1.0)))))
    assert body["samples"]["other"] == [{"wall_s": 2.0, "cpu_s": 0.0}]
    assert body["ratios"]["other"]["median"] == 2.0
    assert body["goals"][0]["met"] is False


def test_warm_up_rounds_are_run_and_not_counted() -> None:
    done: list[str] = []

    def side(name: str) -> Side:
        return Side(name, lambda: done.append(name) or Sample(float(len(done))))  # type: ignore[func-returns-value]

    found = pairs.measure("name", [side("a"), side("b")], rounds=2, warm_up=1)
    assert done == ["a", "b", "b", "a", "a", "b"]
    assert found.walls("a") == [4.0, 5.0] and found.walls("b") == [3.0, 6.0]


def test_a_process_is_measured_with_its_cpu_time() -> None:
    busy = "import time; end = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
    sample = pairs.run_process([sys.executable, "-I", "-S", "-c", busy])
    assert sample.wall_s >= 0.1 and sample.cpu_s >= 0.1


def test_preparation_is_not_measured() -> None:
    done: list[str] = []
    side = pairs.process("a", ["true"], before=lambda: done.append("prepared"))
    assert side.measure().wall_s > 0 and done == ["prepared"]


def test_a_process_that_fails_stops_the_measurement_with_its_words() -> None:
    with pytest.raises(pairs.Failed, match="exit 3\nwhy"):
        pairs.run_process(["sh", "-c", "echo why >&2; exit 3"])


def test_a_report_leaves_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs.report(of([1.0], [2.0]))
    assert json.loads(Path("results/bench/name.json").read_text())["base"] == "base"
    assert "results/bench/name.json" in capsys.readouterr().out


def test_rounds_are_a_word() -> None:
    assert pairs.read_rounds([], 7) == 7 and pairs.read_rounds(["rounds=3"], 7) == 3
    with pytest.raises(SystemExit):
        pairs.read_rounds(["rounds=0"], 7)
