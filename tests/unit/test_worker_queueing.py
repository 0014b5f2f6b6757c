from __future__ import annotations

from queueing import Waiting, blocked_by, candidates, count, in_order, position

A = Waiting("a", 1.0, 0)
B = Waiting("b", 2.0, 1)
C = Waiting("c", 3.0, 0)
D = Waiting("d", 3.0, 2)


def test_order_is_by_submission_and_then_by_id() -> None:
    assert in_order([D, C, B, A]) == [A, B, C, D]


def test_a_run_that_is_to_wait_is_no_candidate_yet() -> None:
    later = Waiting("e", 0.0, 0, not_before=105.0)
    assert candidates([A, later], 100.0) == [A]
    assert candidates([A, later], 105.0) == [later, A]


def test_a_clock_that_was_set_back_holds_nothing_for_longer_than_a_minute() -> None:
    assert candidates([Waiting("e", 0.0, 0, not_before=5000.0)], 100.0)
    assert not candidates([Waiting("e", 0.0, 0, not_before=160.0)], 100.0)


def test_runs_with_cards_and_without_have_lines_of_their_own() -> None:
    rows = [A, B, C, D]
    assert [position(rows, run) for run in "abcd"] == [1, 1, 2, 2]
    assert position(rows, "x") is None


def test_why_a_run_waits() -> None:
    assert blocked_by([A, C], {}, C) == "next after a"
    assert blocked_by([A, C], {}, A) == "waits for a slot"
    assert blocked_by([B, D], {}, B) == "waits for 1 GPU"
    busy = {"GPU-1": "run-9", "GPU-2": "run-8", "GPU-3": "run-9"}
    assert blocked_by([D], busy, D) == "waits for 2 GPUs: run-8's, run-9's"
    said = ["GPU 0 is in use by others (5 MiB)"]
    assert blocked_by([B], {"GPU-1": "r"}, B, said) == f"waits for 1 GPU: r's, {said[0]}"


def test_counting_cards_in_words() -> None:
    assert [count(1), count(2)] == ["1 GPU", "2 GPUs"]
