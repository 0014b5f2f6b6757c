"""Memory that options ask for, held against what there is."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.helpers.agents import AGENTS  # noqa: F401  puts agents/ on the path

# isort: split
import room
from options import Refused


@dataclass(frozen=True)
class Asked:
    num_envs: int = 8
    hidden: int = 64
    rollout: int = 32
    eval_episodes: int = 20


def test_usual_options_fit() -> None:
    room.check_room(Asked())
    assert room.available_bytes() > 1_000_000


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (Asked(hidden=10**9), "hidden=1000000000 needs over 1000 PB .*; lower hidden"),
        (Asked(hidden=60_000), "hidden=60000 needs 57.6 GB of memory at the least, 20 GB are free"),
        (Asked(rollout=10**12), "rollout=1000000000000 and num_envs=8 need 128 TB .* rollout or"),
        (Asked(num_envs=10**21), "^num_envs=1000000000000000000000 needs over 1000 PB [^\n]*$"),
        (Asked(eval_episodes=10**12), "eval_episodes=1000000000000 needs 8 TB"),
    ],
)
def test_what_cannot_fit_is_refused_before_anything_is_made(asked: Asked, text: str) -> None:
    with pytest.raises(Refused, match=text):
        room.check_room(asked, 20_000_000_000)


def test_every_problem_has_a_line() -> None:
    with pytest.raises(Refused) as refused:
        room.check_room(Asked(hidden=10**9, eval_episodes=10**12), 20_000_000_000)
    assert str(refused.value).count("\n") == 1


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (1_500_000, "1.5 MB"),
        (57.6e9, "57.6 GB"),
        (1e30, "over 1000 PB"),
    ],
)
def test_an_amount_has_a_unit_that_fits(count: float, text: str) -> None:
    assert room.amount(count) == text
