"""Episodes: kept and gone on with."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import environments  # noqa: E402
import episodes  # noqa: E402

pytestmark = pytest.mark.usefixtures("at_walks")


def roll(some: episodes.Episodes, steps: int) -> list[Any]:
    return [some.step(i, 1)[1] for _ in range(steps) for i in range(len(some.envs))]


@pytest.mark.parametrize("name", ["walks:Walk-v0", "walks:Shared-v0", "CartPole-v1"])
def test_kept_episodes_go_on_exactly(name: str) -> None:
    first = episodes.Episodes(name, seed=1, index=range(2), facts=environments.look(name))
    roll(first, 20)
    data = first.save()
    expected = roll(first, 60), first.seen.copy(), first.take_ended()[2:]
    second = episodes.Episodes(name, seed=99, index=range(2), facts=environments.look(name))
    second.load(data, step=40)
    again = roll(second, 60), second.seen.copy(), second.take_ended()
    assert again[0] == expected[0] and (again[1] == expected[1]).all()
    assert again[2][-1] == expected[2][-1]


def test_episodes_that_cannot_be_kept_begin_anew_with_other_seeds() -> None:
    facts = environments.look("walks:Open-v0")
    some, other = (
        episodes.Episodes("walks:Open-v0", seed=1, index=range(1), facts=facts) for _ in range(2)
    )
    with contextlib.closing(some), contextlib.closing(other):
        begun = some.seen.copy()
        roll(some, 5)
        assert some.save() == b""
        some.load(b"", step=5)
        assert some.lengths == [0] and (some.seen != begun).all()
        other.load(b"", step=5)
        assert (some.seen == other.seen).all()
