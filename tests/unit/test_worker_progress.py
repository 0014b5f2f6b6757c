from __future__ import annotations

import json
from pathlib import Path

import progress


def lines(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_last_word_holds_the_newest_value_of_each_name(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "p",
        {"t": 1, "step": 10, "metrics": {"reward": 1.0, "loss": 5}},
        {"t": 2, "step": 20, "metrics": {"reward": 2.0}},
        {"step": True, "metrics": {"bad": "text", "worse": None, "flag": True}},
        ["no", "table"],
    )
    assert progress.last(path) == {"step": 20, "metrics": {"reward": 2.0, "loss": 5}, "t": 2}


def test_a_file_that_is_not_there_or_torn_says_nothing(tmp_path: Path) -> None:
    empty: dict[str, object] = {"step": None, "metrics": {}, "t": None}
    assert progress.last(str(tmp_path / "none")) == empty
    torn = tmp_path / "torn"
    torn.write_text('{"step": 5}\n{"step": 6')
    assert progress.last(str(torn))["step"] == 5
    torn.write_bytes(b"\xff\xfe\n[[[\n" + b'{"step": NaN}\n{"step": 7}\n')
    assert progress.last(str(torn))["step"] == 7


def test_the_last_word_of_a_long_file_is_found_without_reading_it_all(tmp_path: Path) -> None:
    path = lines(tmp_path / "p", *({"step": n, "metrics": {"r": n}} for n in range(20000)))
    assert progress.last(path)["step"] == 19999


def test_a_fault_of_an_earlier_attempt_is_not_this_ones(tmp_path: Path) -> None:
    path = lines(tmp_path / "p", {"fault": "nan", "step": 1})
    start = Path(path).stat().st_size
    assert progress.last_fault(path) == {"fault": "nan", "step": 1}
    assert progress.last_fault(path, start) is None
    with open(path, "a") as out:
        out.write('{"fault": "cuda-oom"}\n{"step": 3}\n')
    assert progress.last_fault(path, start) == {"fault": "cuda-oom"}


def test_points_come_by_step_the_last_word_on_a_step_counts(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "p",
        {"step": 2, "metrics": {"r": 1}},
        {"step": 1, "metrics": {"r": 0}},
        {"step": 2, "metrics": {"r": 9, "l": 3}},
        {"step": 3, "metrics": {}},
    )
    assert progress.points(path, 100) == [[1, {"r": 0}], [2, {"r": 9, "l": 3}]]


def test_thinning_keeps_the_ends_and_the_rare(tmp_path: Path) -> None:
    rows = [{"step": n, "metrics": {"r": n}} for n in range(1000)]
    rows[501] = {"step": 501, "metrics": {"eval/return": 1}}
    points = progress.points(lines(tmp_path / "p", *rows), 10)
    steps = [step for step, _ in points]
    assert len(points) < 15
    assert steps == sorted(steps)
    assert {0, 501, 999} <= set(steps)
