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
    assert progress.points(path, 100) == [[1, {"r": 0}, None], [2, {"r": 9, "l": 3}, None]]


def test_thinning_keeps_the_ends_and_the_rare(tmp_path: Path) -> None:
    rows = [{"step": n, "metrics": {"r": n}} for n in range(1000)]
    rows[501] = {"step": 501, "metrics": {"eval/return": 1}}
    points = progress.points(lines(tmp_path / "p", *rows), 10)
    steps = [step for step, _, _ in points]
    assert len(points) < 15
    assert steps == sorted(steps)
    assert {0, 501, 999} <= set(steps)


def test_only_what_is_wanted_comes_and_it_is_thinned_after_that(tmp_path: Path) -> None:
    rows = [{"step": n, "t": n + 0.5, "metrics": {"r": n}} for n in range(1000)]
    for n in range(0, 1000, 100):
        rows[n]["metrics"] = {"r": n, "score": n}
    path = lines(tmp_path / "p", *rows)
    points = progress.points(path, 20, ["score", "none"])
    assert points == [[n, {"score": n}, n + 0.5] for n in range(0, 1000, 100)]


def test_pauses_between_attempts_are_no_running_time() -> None:
    attempts = [(100.0, 110.0), (200.0, None), (300.0, 320.0)]
    assert progress.ran_at(99.0, attempts) is None
    assert progress.ran_at(104.0, attempts) == 4.0
    assert progress.ran_at(150.0, attempts) == 10.0
    assert progress.ran_at(205.0, attempts) == 15.0
    assert progress.ran_at(310.0, attempts) == 20.0, "how long a lost attempt ran is not known"
    assert progress.ran_at(None, attempts) is progress.ran_at(5.0, []) is None
