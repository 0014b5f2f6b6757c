"""State as bytes: equal for equal states, with what is shared still shared."""

from __future__ import annotations

from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

from tests.helpers.agents import AGENTS  # noqa: E402, F401  puts agents/ on the path

# isort: split
from packing import packed, unpacked  # noqa: E402


class World:
    def __init__(self) -> None:
        self.itself, self.name = self, "world"


def test_texts_that_are_one_object_or_two_give_the_same_bytes() -> None:
    text = "".join(["a ", "text"])
    assert text is not (other := "".join(["a", " text"]))
    assert packed([text, text, {text: 1}]) == packed([text, other, {other: 1}])
    assert unpacked(packed([text, other, b"x", ("y",)])) == ["a text", "a text", b"x", ("y",)]


def test_what_was_read_gives_the_bytes_it_was_read_from() -> None:
    shared = np.arange(3)
    kinds = [shared.dtype, np.dtype("int64"), np.dtype("<f4")]
    state: Any = [{"seen": shared, "kept": shared, "name": "seen"}, ("seen", b"", 1.5), kinds]
    data = packed(state)
    again = unpacked(data)
    assert again[0]["seen"] is again[0]["kept"]  # one generator must not become two
    assert packed(again) == data


def test_arrays_that_are_equal_but_not_one_stay_apart() -> None:
    one, other = unpacked(packed([np.zeros(10_000), np.zeros(10_000)]))
    one[0] = 1.0
    assert other[0] == 0.0


def test_a_world_that_holds_itself_is_kept() -> None:
    again = unpacked(packed(World()))
    assert again.itself is again and again.name == "world"
