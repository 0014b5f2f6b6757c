from __future__ import annotations

import base64
import json
import random
import zlib
from typing import Any

import pytest
import series


def filled(count: int, most: int) -> series.Series:
    made = series.Series()
    for n in range(count):
        made.add((n, n + 0.5, n * 2.0), most)
    return made


def test_few_points_are_kept_as_they_came() -> None:
    found = filled(100, 50)
    assert list(found) == [(n, n + 0.5, n * 2.0) for n in range(100)]
    assert list(found.newest_first()) == list(found)[::-1]
    assert list(series.Series()) == list(series.Series().newest_first()) == []


@pytest.mark.parametrize("count", [101, 1000, 1025, 65_537])
def test_of_many_points_enough_stay_with_the_first_and_the_newest(count: int) -> None:
    found = filled(count, 50)
    steps = [step for step, _, _ in found]
    assert 50 <= len(steps) <= 101
    assert (steps[0], steps[-1]) == (0, count - 1)
    gaps = {b - a for a, b in zip(steps[:-1], steps[1:-1], strict=False)}
    assert len(gaps) == 1, "what stays lies evenly"


def test_room_that_gets_less_is_obeyed() -> None:
    found = filled(100, 50)
    for n in range(100, 200):
        found.add((n, 0.0, 0.0), 5)
    assert len(found) <= 10


def test_packed_and_unpacked_it_goes_on_as_it_was() -> None:
    for count in (0, 1, 77, 333):
        one = filled(count, 50)
        two = series.unpack(json.loads(json.dumps(one.pack())))
        for n in range(count, count + 200):
            one.add((n, 1.0, 2.0), 50)
            two.add((n, 1.0, 2.0), 50)
        assert list(one) == list(two)


def test_what_was_not_packed_by_us_is_refused() -> None:
    good = filled(60, 50).pack()
    nan = base64.b64encode(zlib.compress(b"\xff" * 24)).decode()
    bomb = base64.b64encode(zlib.compress(bytes(200 << 20), 9)).decode()
    bad: list[Any] = [
        None,
        {},
        [],
        *({**good, "data": data} for data in (5, "!", "AAAA", nan, bomb)),
        *({**good, "stride": stride} for stride in (0, -1, "x", None, 1.5)),
        {**good, "count": -1},
        *({**good, "newest": newest} for newest in ([1], [1, 2, "x"], "abc", [1, 2, float("inf")])),
    ]
    for body in bad:
        with pytest.raises(ValueError):
            series.unpack(body)


def test_damaged_ones_raise_nothing_else() -> None:
    draw = random.Random(3)
    text = bytearray(json.dumps(filled(60, 50).pack()).encode())
    for _ in range(500):
        changed = bytearray(text)
        changed[draw.randrange(len(text))] = draw.randrange(32, 127)
        try:
            list(series.unpack(json.loads(changed)))
        except ValueError:
            pass


def test_evenly() -> None:
    assert series.evenly([], 5) == []
    assert series.evenly([1, 2, 3], 3) == [1, 2, 3]
    assert series.evenly(list(range(10)), 4) == [0, 3, 6, 9]
    assert series.evenly(list(range(9)), 4) == [0, 2, 5, 8]
    assert series.evenly(list(range(1000)), 2) == [0, 999]
