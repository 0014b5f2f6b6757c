"""Options: typed by their defaults, refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import options  # noqa: E402


@dataclass(frozen=True)
class Some:
    env: str = "CartPole-v1"
    steps: int = 100
    lr: float = 0.1
    double: bool = True


def test_words_are_read_by_the_type_of_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_PARAMS", raising=False)
    words = ["env=42", "steps=1e6", "lr=1", "double=off"]
    assert options.read_options(Some, words) == Some("42", 1_000_000, 1.0, False)
    assert options.read_options(Some, ["steps=50_000"]).steps == 50_000
    assert options.read_options(Some, []) == Some()


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("stesp=1", "stesp is not an option here .did you mean 'steps'"),
        ("steps=1.5", "steps is 1.5; it must be a whole number"),
        ("steps=true", "steps is True; it must be a whole number"),
        ("steps=1e999", "steps is inf; it must be a whole number"),
        ("lr=fast", "lr is 'fast'; it must be a number"),
        ("double=1", "double is 1; it must be true or false"),
        ("steps", "'steps' is not key=value"),
    ],
)
def test_a_wrong_word_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch, word: str, text: str
) -> None:
    monkeypatch.delenv("RUNNER_PARAMS", raising=False)
    with pytest.raises(options.Refused, match=text):
        options.read_options(Some, [word])


def test_all_problems_come_at_once_and_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_PARAMS", raising=False)
    with pytest.raises(options.Refused, match="(?s)steps is .*lr is "):
        options.read_options(Some, ["steps=a", "lr=b"])
    with pytest.raises(options.Refused, match="steps is given twice"):
        options.read_options(Some, ["steps=1", "steps=2"])


def test_the_file_is_taken_and_words_beside_it_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "params.json"
    monkeypatch.setenv("RUNNER_PARAMS", str(file))
    file.write_text('{"steps": 7, "lr": 1, "double": false}')
    assert options.read_options(Some, []) == Some(steps=7, lr=1.0, double=False)
    with pytest.raises(options.Refused, match="'steps=8' is not read"):
        options.read_options(Some, ["steps=8"])
    file.write_text('{"steps": "7", "env": 3, "double": "no"}')
    with pytest.raises(options.Refused) as refused:
        options.read_options(Some, [])
    assert len(str(refused.value).splitlines()) == 3
    for text in ("[1]", "{", ""):
        file.write_text(text)
        with pytest.raises(options.Refused, match="RUNNER_PARAMS="):
            options.read_options(Some, [])


@dataclass(frozen=True)
class Ranged:
    seed: int = 0
    steps: int = 1
    clip: float = 0.2
    gamma: float = 0.9
    tau: float = 0.5
    lr: float = 0.0
    env: str = "-1"


def test_numbers_out_of_range_are_all_named_by_the_usual_limits_or_their_own() -> None:
    options.check_ranges(Ranged())
    options.check_ranges(Ranged(seed=-1, tau=9.0), seed=(-1, np.inf))
    bad = Ranged(seed=-1, steps=0, clip=0.0, gamma=1.5, tau=2.0, lr=-0.1)
    with pytest.raises(options.Refused) as refused:
        options.check_ranges(bad, tau=(0, 1))
    assert str(refused.value).splitlines() == [
        "seed is -1; it must be at least 0",
        "steps is 0; it must be at least 1",
        "clip is 0.0; it must be at least 1e-09",
        "gamma is 1.5; it must be at least 0 and at most 1",
        "tau is 2.0; it must be at least 0 and at most 1",
        "lr is -0.1; it must be at least 0",
    ]
    with pytest.raises(options.Refused, match="steps is 1; it must be at least 2$"):
        options.check_ranges(Ranged(), steps=(2, np.inf))  # what is told goes before what is usual
