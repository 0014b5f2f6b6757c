"""The order of what waits, and places in it."""

from __future__ import annotations

from queueing import Queue, Waiting, count, place

A = Waiting("a", 1.0, 0)
B = Waiting("b", 2.0, 1)
C = Waiting("c", 3.0, 0)
D = Waiting("d", 3.0, 2)


def queue_of(*items: Waiting) -> Queue:
    queue = Queue()
    for item in items:
        queue.add(item)
    return queue


def due(queue: Queue, line: str = "cpu", now: float = 100.0) -> list[str]:
    return [item.run for item in queue.due(line, now)]


def test_order_is_by_submission_and_then_by_id_in_two_lines() -> None:
    queue = queue_of(D, C, Waiting("b2", 3.0, 0), B, A)
    assert due(queue) == ["a", "b2", "c"]
    assert due(queue, "gpu") == ["b", "d"]
    assert len(queue) == 5


def test_priority_comes_before_submission() -> None:
    queue = queue_of(A, C, Waiting("last", 0.0, 0, priority=-1), Waiting("x", 9.0, 0, priority=5))
    assert due(queue) == ["x", "a", "c", "last"]


def test_a_run_that_is_to_wait_is_not_due_yet() -> None:
    queue = queue_of(A, Waiting("e", 0.0, 0, not_before=105.0))
    assert due(queue, now=100.0) == ["a"]
    assert due(queue, now=105.0) == ["e", "a"]


def test_a_clock_that_was_set_back_holds_nothing_for_longer_than_a_minute() -> None:
    assert due(queue_of(Waiting("e", 0.0, 0, not_before=5000.0))) == ["e"]
    assert due(queue_of(Waiting("e", 0.0, 0, not_before=160.0))) == []


def test_what_is_started_on_the_way_skips_nobody() -> None:
    queue = queue_of(A, C, Waiting("z", 4.0, 0))
    seen = []
    for item in queue.due("cpu", 100.0):
        seen.append(item.run)
        if item.run != "c":
            queue.discard(item.run)
    assert seen == ["a", "c", "z"]
    assert due(queue) == ["c"]


def test_added_again_a_run_stands_where_it_now_belongs() -> None:
    queue = queue_of(A, C)
    queue.add(Waiting("a", 1.0, 0, priority=-3))
    assert due(queue) == ["c", "a"]
    assert len(queue) == 2


def test_who_waits_for_others_stands_in_no_line() -> None:
    queue = queue_of(A)
    queue.add(C, ("a", "other"))
    queue.add(Waiting("f", 2.0, 0), ("a",))
    assert due(queue) == ["a"]
    assert queue.waiters("a") == ["f", "c"]
    assert queue.held() == {"c": ["a", "other"], "f": ["a"]}
    queue.add(C)
    assert queue.waiters("a") == ["f"]
    assert due(queue) == ["a", "c"]
    queue.discard("f")
    assert queue.waiters("a") == []


def test_every_change_is_counted() -> None:
    queue = queue_of(A)
    before = queue.changes
    queue.discard("nobody")
    assert queue.changes == before
    queue.discard("a")
    assert queue.changes > before


def test_a_place_is_found_also_for_who_has_just_come() -> None:
    rows = queue_of(A, C, Waiting("x", 9.0, 0, priority=5)).rows("cpu")
    assert place(rows, "a", 0, 1.0) == place(rows, "a", 0, 1.0)
    assert (place(rows, "x", 5, 9.0).position, place(rows, "x", 5, 9.0).behind) == (1, None)
    assert (place(rows, "c", 0, 3.0).position, place(rows, "c", 0, 3.0).behind) == (3, "a")
    new = place(rows, "new", 1, 50.0)
    assert (new.position, new.behind) == (2, "x")


def test_counting_cards_in_words() -> None:
    assert [count(1), count(2)] == ["1 GPU", "2 GPUs"]
