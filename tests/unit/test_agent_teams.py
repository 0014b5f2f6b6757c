"""Teams in their episodes: who acts and who is out, state kept, greedy play."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import teams  # noqa: E402
from seeds import SEEDS_EVALUATION, SEEDS_FRESH  # noqa: E402
from team_environments import look  # noqa: E402

HELPERS = Path(tests.helpers.agents.__file__).parent
SPREAD = "mpe2.simple_spread_v3"


@pytest.fixture(autouse=True)
def _at_stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HELPERS))
    monkeypatch.chdir(tmp_path)


def some(name: str, n: int = 2, seed: int = 0, first: int = 0) -> teams.Teams:
    name = name if "." in name else f"team_stubs:{name}"
    return teams.Teams(name, seed=seed, index=range(first, first + n), facts=look(name))


def actions_for(envs: teams.Teams, seed: int, steps: int) -> Any:
    return np.random.default_rng(seed).integers(3, size=(steps, *envs.acting.shape))


def trace(envs: teams.Teams, actions: Any) -> list[Any]:
    out: list[Any] = []
    for row in actions:
        out += [array.tobytes() for array in envs.step(row)]
        out += [envs.seen.tobytes(), envs.acting.tobytes(), envs.take_ended()]
    return out


# episodes


def test_rows_are_numbers_then_zeros_then_the_agents_place() -> None:
    envs = some("Matching", 1)
    symbol = np.eye(3)[envs.teams[0].env.symbol].tolist()
    expected = [[*symbol, 0.0, *np.eye(3)[k]] for k in range(3)]
    assert envs.seen[0].tolist() == expected
    told = envs.step(np.zeros((1, 3), np.int64))
    symbol = np.eye(3)[envs.teams[0].env.symbol].tolist()
    expected = [[*symbol, float(k == 2), *np.eye(3)[k]] for k in range(3)]
    assert envs.seen[0].tolist() == told.after[0].tolist() == expected


@pytest.mark.parametrize("name", ["Mortal", "Lingering", "Silent"])
def test_who_ends_early_acts_no_more_and_is_told_once(name: str) -> None:
    envs = some(name, 2)
    ended, acting, rewards = [], [], []
    for row in actions_for(envs, 0, 16):
        acting.append(envs.acting.copy())
        told = envs.step(row)
        ended.append(told.terminated)
        rewards.append(told.rewards)
        limit = len(ended) % 8 == 0
        assert told.truncated.tolist() == [[limit, False, limit]] * 2
        if len(ended) % 8 in (3, 4, 5, 6, 7):  # it sees nothing any more
            assert not envs.seen[:, 1, :4].any() and envs.seen[:, 1, 5].all()
    alive = np.array([True] * 3 + [False] * 5)
    assert (np.array(acting)[:8, :, 1] == alive[:, None]).all()
    assert (np.array(acting)[8:, :, 1] == alive[:, None]).all()
    assert np.array(acting)[:, :, [0, 2]].all()
    died = np.array(ended)
    assert died[[2, 10], :, 1].all() and died.sum() == 4
    assert not np.array(rewards)[~np.array(acting)].any()


def test_who_joins_in_mid_episode_acts_from_then_on() -> None:
    envs = some("Late", 2)
    acting, shown, rewards = [], [], []
    for row in actions_for(envs, 0, 10):
        acting.append(envs.acting[:, 2].copy())
        shown.append(envs.seen[0, 2].copy())
        rewards.append(envs.step(row).rewards[0, 2])
    there = np.array([False, False, True, True, True] * 2)
    assert (np.array(acting) == there[:, None]).all()
    assert [row[0] for row in shown] == [0, 0, 102, 103, 104, 0, 0, 202, 203, 204]
    assert all(row[4:].tolist() == [0, 0, 1] for row in shown)  # its place is always known
    assert rewards == [0, 0, 3, 4, 5] * 2
    assert envs.take_ended() == [(15 + 6 + 12, 5)] * 4


def test_ends_and_limits_are_told_apart_and_the_next_episode_begins() -> None:
    envs = some("Counter", 1)
    shown = [int(envs.seen[0, 0, 0])]
    for t in range(10):
        told = envs.step(np.zeros((1, 3), np.int64))
        shown.append(int(envs.seen[0, 0, 0]))
        assert told.after[0, 0, 0] == 100 * (t // 5 + 1) + t % 5 + 1
        assert told.terminated[0, 0] == (t == 4) and told.truncated[0, 0] == (t == 9)
    assert shown == [100, 101, 102, 103, 104, 200, 201, 202, 203, 204, 300]


def test_returns_are_sums_over_the_agents() -> None:
    envs = some("Counter", 2)
    for _ in range(12):
        envs.step(np.zeros((2, 3), np.int64))
    # two agents are paid 1 + 2 + 3 + 4 + 5, and one that died 1 + 2 + 3
    assert envs.take_ended() == [(36.0, 5)] * 4 and envs.take_ended() == []


def test_only_the_first_are_stepped_when_asked() -> None:
    envs = some("Matching", 3)
    told = envs.step(np.zeros((3, 3), np.int64), 1)
    assert [team.env.made for team in envs.teams] == [1, 0, 0]
    assert told.after[0].any() and not told.after[1:].any() and envs.lengths == [1, 0, 0]


def test_environments_differ_by_index_and_seed_and_repeat_by_both() -> None:
    actions = np.zeros((30, 1, 3), np.int64)
    runs = [trace(some("Matching", 1, seed, first), actions)
            for seed, first in ((0, 0), (0, 0), (0, 1), (1, 0))]  # fmt: skip
    assert runs[0] == runs[1] and runs[0] != runs[2] and runs[0] != runs[3]
    both = some("Matching", 2)
    assert both.seen[1].tolist() == some("Matching", 1, first=1).seen[0].tolist()


def test_closing_ends_every_environment() -> None:
    envs = some("Matching", 3)
    envs.close()
    assert all(team.env.closed for team in envs.teams)


# state


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("Matching", 5),
        ("Mortal", 0),
        ("Lingering", 5),
        ("Late", 1),
        ("Shared", 11),
        ("Around", 5),
        (SPREAD, 30),
    ],
)
def test_what_was_kept_goes_on_exactly(name: str, steps: int) -> None:
    if name == SPREAD:
        pytest.importorskip("mpe2", reason="left out: mpe2: not installed")
    random.seed(3), np.random.seed(3)
    envs = some(name)
    assert envs.exact
    trace(envs, actions_for(envs, 0, steps))
    data = envs.save()
    expected = trace(envs, actions_for(envs, 1, 60))
    other = some(name, seed=9)
    trace(other, actions_for(other, 2, 9))
    random.seed(4), np.random.seed(4)
    other.load(data, step=steps)
    assert trace(other, actions_for(other, 1, 60)) == expected


@pytest.mark.parametrize("name", ["Unkept", "Hidden"])
def test_what_cannot_be_kept_is_known_and_begins_anew(name: str) -> None:
    envs = some(name)
    assert not envs.exact and envs.save() == b""
    for row in actions_for(envs, 0, 5):
        envs.step(row)
    firsts = []
    for step in (100, 100, 200):
        envs.load(b"", step=step)
        assert envs.lengths == [0, 0] and envs.returns == [0.0, 0.0]
        firsts.append(trace(envs, actions_for(envs, 1, 30)))
    assert firsts[0] == firsts[1] != firsts[2]


# greedy play


def zeros(seen: Any) -> Any:
    return np.zeros(seen.shape[:2], np.int64)


def test_greedy_returns_depend_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(episodes: int, seed: int, stream: int = SEEDS_EVALUATION) -> list[float]:
        returns = teams.play_greedy(
            "team_stubs:Mortal", zeros, episodes=episodes, seed=seed, stream=stream
        )
        assert returns is not None
        return returns

    six = play(6, 1)
    assert len(set(six)) > 1 and play(6, 1) == six and play(6, 2) != six
    assert play(6, 1, SEEDS_FRESH) != six
    monkeypatch.setattr(teams, "PARALLEL_EPISODES", 2)
    assert play(6, 1) == six  # however many are played side by side


def test_greedy_play_sums_over_the_agents_and_knows_the_answers() -> None:
    def right(seen: Any) -> Any:
        return (seen[:, :, :3].argmax(2) + np.arange(3)) % 3

    for name, most in (("Matching", 24.0), ("Mortal", 19.0), ("Late", 33.0)):
        returns = teams.play_greedy(f"team_stubs:{name}", right, episodes=3, seed=0, stream=1)
        assert returns == pytest.approx([most] * 3), name


def test_greedy_play_leaves_the_global_generators_alone() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    teams.play_greedy("team_stubs:Shared", zeros, episodes=3, seed=0, stream=1)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after


def test_greedy_play_ends_though_the_episode_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "LONGEST_EPISODE", 50)
    returns = teams.play_greedy("team_stubs:Endless", zeros, episodes=2, seed=0, stream=1)
    assert returns is not None and len(returns) == 2
    stopped = teams.play_greedy(
        "team_stubs:Endless", zeros, episodes=2, seed=0, stream=1, stop=lambda: True
    )
    assert stopped is None
