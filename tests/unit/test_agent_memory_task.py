"""The memory task: only a policy that remembers can be better than chance, and it is kept whole."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")
pytest.importorskip("torch", reason="left out: torch: not installed")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "agents"))

import environments  # noqa: E402
import memory_task  # noqa: E402


def play(env: Any, seed: int, answer: int | None = None) -> tuple[list[Any], list[float]]:
    """What is seen and given in an episode; answered is what was shown, or `answer`."""
    seen = [env.reset(seed=seed)[0]]
    shown, rewards, ended = int(seen[0][:-2].argmax()), [], False
    while not ended:
        at, reward, ended, truncated, _ = env.step(shown if answer is None else answer)
        assert not truncated
        seen.append(at)
        rewards.append(reward)
    return seen[:-1], rewards


@pytest.mark.parametrize(("length", "cues"), [(2, 2), (16, 4), (64, 7)])
def test_a_cue_then_noise_then_the_question(length: int, cues: int) -> None:
    env = memory_task.Recall(length=length, cues=cues)
    seen, rewards = play(env, seed=3)
    assert len(seen) == len(rewards) == length
    assert sorted(seen[0]) == [0.0] * cues + [1.0, 1.0]
    assert [at[-2] for at in seen] == [1.0] + [0.0] * (length - 1)
    assert [at[-1] for at in seen] == [0.0] * (length - 1) + [1.0]
    assert all(np.abs(at[:-2]).min() > 0 for at in seen[1:])
    assert rewards == [0.0] * (length - 1) + [1.0]
    assert all(env.observation_space.contains(at) for at in seen)


def test_an_answer_without_memory_is_right_by_chance() -> None:
    env = memory_task.Recall(length=3)
    right = sum(play(env, seed, answer=2)[1][-1] for seed in range(2000))
    assert right / 2000 == pytest.approx(1 / 4, abs=0.04)  # four deviations


def test_what_is_seen_at_the_question_tells_nothing_of_the_cue() -> None:
    env = memory_task.Recall(length=2)
    by_cue: dict[int, list[Any]] = {cue: [] for cue in range(4)}
    for seed in range(4000):
        seen, _ = play(env, seed)
        by_cue[env.cue].append(seen[-1])
    for rows in by_cue.values():
        assert 900 < len(rows) < 1100
        assert np.abs(np.mean(rows, axis=0)[:-2]).max() < 0.15  # of noise of deviation 1
        assert np.std(rows, axis=0)[:-2] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("length", [16, 64, 256, 1024, 4096])
def test_every_length_has_a_name(length: int) -> None:
    name = f"memory_task:Recall{'' if length == 16 else length}-v0"
    env = environments.make_env(name)
    assert len(play(env, seed=0)[0]) == length


def test_its_state_is_kept_in_checkpoints() -> None:
    facts = environments.look("memory_task:Recall-v0")
    assert (facts.shape, facts.actions, facts.exact) == ((6,), 4, True)
    env = memory_task.Recall()
    env.reset(seed=1)
    env.step(0)
    copy = pickle.loads(pickle.dumps(env))
    for _ in range(13):
        assert (copy.step(0)[0] == env.step(0)[0]).all()
    assert copy.cue == env.cue


@pytest.mark.parametrize("changes", [{"length": 1}, {"cues": 1}])
def test_no_task_without_a_question_or_a_choice(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 2"):
        memory_task.Recall(**changes)
