"""The PPO agent: what it learns from, what it keeps, and that it comes out the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

from tests.helpers.agents import AGENTS, progress  # noqa: E402  puts agents/ on the path
from tests.helpers.two_ranks import as_processes  # noqa: E402

# isort: split
import checkpoint  # noqa: E402
import evaluation  # noqa: E402
import options  # noqa: E402
import ppo  # noqa: E402
import runtime  # noqa: E402
from environments import Facts  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# small enough for a fifth of a second, and with every kind of event in it
SMALL = {
    "seed": 5, "steps": 600, "num_envs": 2, "hidden": 16, "rollout": 25, "epochs": 3,
    "batch_size": 20, "checkpoint_every": 200, "eval_every": 200, "eval_episodes": 2,
    "log_every": 100, "device": "cpu",
}  # fmt: skip

STUBS = """
import gymnasium as gym, numpy as np
from gymnasium.spaces import Box, Discrete

class Counter(gym.Env):
    '''Shows 100 * episode + step; episodes of 3 and 7 steps in turn, the long ones truncated.'''
    def __init__(self, acts=Discrete(3), broken_at=None, end=True, reward=1.0):
        self.observation_space = Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space, self.broken_at, self.end, self.reward = acts, broken_at, end, reward
        self.episode = self.made = 0
        self.actions = []
    def seen(self):
        return np.array([100 * self.episode + self.t], np.float32)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self.seen(), {}
    def step(self, action):
        self.t += 1
        self.made += 1
        self.actions.append(action)
        long = self.episode % 2 == 0
        end = self.t == (7 if long else 3) and self.end
        reward = float('nan') if self.made == self.broken_at else self.reward * self.t
        return self.seen(), reward, end and not long, end and long, {}

class Picture(Counter):
    '''Brighter at the side that should be chosen.'''
    def __init__(self, side=36):
        super().__init__(Discrete(2))
        self.observation_space = Box(0, 255, (2, side, 40), np.uint8)
    def seen(self):
        self.right = int(self.np_random.integers(2))
        picture = self.np_random.integers(0, 40, self.observation_space.shape, dtype=np.uint8)
        picture[:, :, 20 * self.right : 20 * self.right + 20] += 200
        return picture
    def step(self, action):
        good = float(action == self.right)
        seen, _, *ends = super().step(action)
        return seen, good, *ends

class Scaled(gym.Env):
    '''Shows where to go, about 5000 and of deviation 1000; the reward is 1000 times how near.'''
    def __init__(self):
        self.observation_space = Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = Box(np.float32([-1]), np.float32([3]))
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.goal = self.np_random.normal()
        return np.array([5000 + 1000 * self.goal], np.float32), {}
    def step(self, action):
        near = -1000 * abs(float(action[0]) - 1 - self.goal)
        self.t += 1
        self.goal = self.np_random.normal()
        return np.array([5000 + 1000 * self.goal], np.float32), near, False, self.t == 20, {}

gym.register('Counter-v0', Counter)
gym.register('FromOne-v0', lambda: Counter(Discrete(3, start=1)))
gym.register('Crooked-v0', lambda: Counter(Box(np.float32([-1, 2]), np.float32([3, 2.5]))))
gym.register('Open-v0', lambda: Counter(Box(-np.inf, np.inf, (1,))))
gym.register('Broken-v0', lambda: Counter(broken_at=133))
gym.register('NoEnd-v0', lambda: Counter(end=False))
gym.register('Huge-v0', lambda: Counter(reward=1e6))
gym.register('Picture-v0', Picture)
gym.register('Small-v0', lambda: Picture(35))
gym.register('Scaled-v0', Scaled)
"""


@pytest.fixture(autouse=True)
def stubs(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ppo_stubs:NAME-v0` can be made; the current folder is an empty one; no rank is set."""
    folder = tmp_path_factory.getbasetemp() / "ppo_stubs"
    if not folder.exists():
        folder.mkdir()
        (folder / "ppo_stubs.py").write_text(STUBS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


Train = Callable[..., ppo.Training]


@pytest.fixture
def train(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train in this process into a folder below tmp_path, as the runner would have it done."""

    def train(name: str = ".", resume: Path | None = None, **changes: Any) -> ppo.Training:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        monkeypatch.setenv("RUNNER_CHECKPOINTS", str(folder / "checkpoints"))
        monkeypatch.setenv("RUNNER_LOGS", str(folder / "logs"))
        monkeypatch.setenv("RUNNER_PROGRESS", str(folder / "progress.jsonl"))
        monkeypatch.setenv("RUNNER_RESUME", str(resume or ""))
        return ppo.train(ppo.Options(**{**SMALL, **changes}), runtime.Run("ppo", device="cpu"))

    return train


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("*"))


def words_of(given: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in given.items()]


# options


def test_defaults_are_those_of_the_recipe() -> None:
    recipe = tomllib.loads((AGENTS / "ppo.toml").read_text())
    assert recipe["params"] == asdict(ppo.Options())
    kinds = {f.name: type(f.default) for f in fields(ppo.Options)}
    for path in AGENTS.glob("ppo*.toml"):
        recipe = tomllib.loads(path.read_text())
        if recipe["entry"] == "ppo.py":
            assert {name: type(value) for name, value in recipe["params"].items()} == kinds, path
            ppo.Options(**recipe["params"])


def test_numbers_out_of_range_are_all_named() -> None:
    with pytest.raises(options.Refused, match="(?s)steps is 0.*rollout is 0.*gamma is 1.5"):
        ppo.Options(steps=0, gamma=1.5, rollout=0)
    with pytest.raises(options.Refused, match="activation is 'selu'; it must be tanh or relu"):
        ppo.Options(activation="selu")


# networks and acting


def facts_of(actions: int, box: int = 0, numbers: int = 4) -> Facts:
    low = -np.arange(1, box + 1, dtype=np.float32)
    return Facts((numbers,), False, actions, low, 3 * np.ones(box, np.float32), exact=True)


def learner_of(run: Any, facts: Facts, **changes: Any) -> ppo.Learner:
    torch.manual_seed(0)
    made = ppo.Learner(ppo.Options(**{**SMALL, **changes}), run, facts)
    with torch.no_grad():  # away from the start, where all actions are nearly alike
        made.theta.add_(torch.randn_like(made.theta), alpha=0.3)
    return made


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("actions", "box"), [(3, 0), (0, 2)])
def test_acting_in_numpy_agrees_with_the_network(
    run: Any, activation: str, actions: int, box: int
) -> None:
    one = learner_of(run, facts_of(actions, box), activation=activation)
    seen = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    outputs = one.network(torch.from_numpy(seen))[0].detach().numpy()
    assert np.abs(one.policy.outputs(seen) - outputs).max() < 1e-5
    assert (one.policy.log_std == one.network.log_std.detach().numpy()).all()
    assert len(one.policy.log_std) == box


class Still:
    """Environments that show the same for ever, and say what they were given."""

    def __init__(self, seen: Any) -> None:
        self.seen, self.envs, self.given = seen, [None] * len(seen), []

    def step(self, i: int, action: Any) -> Any:
        self.given.append(action)
        return self.seen[i], 0.0, False, False


def test_choices_are_drawn_by_the_policys_probabilities(run: Any) -> None:
    one = learner_of(run, facts_of(3), rollout=4000)
    seen = np.array([[1, -1, 0, 2], [0, 3, 1, -1]], np.float32)
    roll = ppo.Rollout(one.o.rollout, 2, one.facts)
    roll.collect(Still(seen), one.policy, np.random.default_rng(0), 4000)
    chances = torch.softmax(one.network(torch.from_numpy(seen))[0], 1).detach().numpy()
    assert chances.min() > 0.01 and chances.max() < 0.95
    for i in range(2):
        shares = np.bincount(roll.actions[:, i], minlength=3) / 4000
        assert np.abs(shares - chances[i]).max() < 0.03


def test_drawn_actions_have_the_policys_mean_and_deviation_and_are_cut_when_given(run: Any) -> None:
    one = learner_of(run, facts_of(0, box=2), rollout=4000)
    seen = np.array([[1, -1, 0, 2]], np.float32)
    roll, still = ppo.Rollout(one.o.rollout, 1, one.facts), Still(seen)
    roll.collect(still, one.policy, np.random.default_rng(0), 4000)
    mean = one.network(torch.from_numpy(seen))[0][0].detach().numpy()
    deviation = np.exp(one.policy.log_std)
    assert np.abs(roll.actions[:, 0].mean(0) - mean).max() < 0.1
    assert np.abs(roll.actions[:, 0].std(0) / deviation - 1).max() < 0.05
    low, high, given = one.facts.low, one.facts.high, np.array(still.given)
    assert (given >= low).all() and (given <= high).all() and given.dtype == np.float32
    assert np.abs(given - np.clip(
        (low + high) / 2 + (high - low) / 2 * roll.actions[:, 0], low, high
    )).max() < 1e-5  # fmt: skip


def test_the_whole_box_is_used_and_only_the_box(train: Train) -> None:
    t = train(env="ppo_stubs:Crooked-v0", eval_every=0, lr=0.0)
    given = np.array([a for env in t.envs.envs for a in env.unwrapped.actions])
    low, high = np.float32([-1, 2]), np.float32([3, 2.5])
    assert (given >= low).all() and (given <= high).all()
    for side in (low, high):  # cut there with the chance that a Gaussian has beyond one deviation
        assert (np.abs((given == side).mean(0) - 0.16) < 0.06).all()
    assert (np.histogram(given[:, 0], np.linspace(-1, 3, 9))[0] > 30).all()
    middle = t.learner.policy(np.zeros((1, 1), np.float32))
    assert np.abs(middle - [[1.0, 2.25]]).max() < 0.05


def test_actions_are_counted_from_the_start_of_their_space(train: Train) -> None:
    t = train(env="ppo_stubs:FromOne-v0", eval_every=0)
    assert set(t.envs.envs[0].unwrapped.actions) == {1, 2, 3}
    assert set(t.rollout.actions.reshape(-1)) == {0, 1, 2}


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ("ppo_stubs:Open-v0", "only a finite box can be filled"),
        ("ppo_stubs:Small-v0", "pictures of 35 by 40 are too small"),
        ("CartPol-v1", "did you mean 'CartPole-v1'"),
    ],
)
def test_environments_it_cannot_learn_are_refused(train: Train, env: str, text: str) -> None:
    with pytest.raises(options.Refused, match=text) as refused:
        train(env=env)
    assert len(str(refused.value).splitlines()) == 1


# collecting


def test_advantages_and_goals_are_those_of_each_environments_own_episodes(run: Any) -> None:
    o = ppo.Options(**{**SMALL, "env": "ppo_stubs:Counter-v0", "num_envs": 3, "rollout": 40})
    t = ppo.Training(o, run)
    t.envs.step(0, 0)  # so that the environments are at different places
    with torch.no_grad():  # so that observations of hundreds have values of their own
        t.learner.network.trunk.weights[0][1].mul_(0.01)
    t.rollout.collect(t.envs, t.learner.policy, t.rng, 40)
    batch = t.learner.batch(t.rollout, t.rollout.rewards, 0.2)

    def value(number: float) -> float:
        return float(t.learner.network(torch.tensor([[float(number)]]))[1].detach())

    seen, goals = t.rollout.seen[:, :, 0], batch.goal.numpy().reshape(40, 3)
    for i in range(3):
        for k in range(40):
            errors, last = [], 39
            for j in range(k, 40):
                at = seen[j, i]
                # of odd episodes the third step is a real end, of even ones the seventh a limit
                odd, reached = at // 100 % 2 == 1, at + 1
                after = 0.0 if odd and reached % 100 == 3 else value(reached)
                errors.append(reached % 100 + o.gamma * after - value(at))
                if reached % 100 == (3 if odd else 7):
                    last = j
                    break
            total = sum((o.gamma * o.gae_lambda) ** n * e for n, e in enumerate(errors))
            assert len(errors) == last - k + 1
            assert goals[k, i] == pytest.approx(total + value(seen[k, i]), rel=1e-3, abs=1e-3)
    assert batch.advantage.mean().abs() < 1e-5
    assert float(batch.advantage.std(unbiased=False)) == pytest.approx(1.0, abs=1e-4)
    assert len(t.rollout.limits) > 10
    share = torch.where(batch.advantage > 0, 1.2, 0.8)  # the bounds of the ratio that count
    assert (batch.most - share * batch.advantage).abs().max() < 1e-6


@pytest.mark.parametrize("envs", [1, 4, 7])
def test_steps_asked_for_are_made_in_whole_rows(train: Train, tmp_path: Path, envs: int) -> None:
    t = train(env="ppo_stubs:Counter-v0", num_envs=envs, steps=405, eval_every=0)
    assert t.step == sum(env.unwrapped.made for env in t.envs.envs) == -(-405 // envs) * envs
    assert names(tmp_path)[-1] == f"step-{t.step:09d}"
    assert t.ticks == -(-405 // (25 * envs))


# learning


def some_batch(learner: ppo.Learner, count: int, clip: float = 0.2) -> ppo.Batch:
    """Samples whose old probabilities are not the present ones, so that clipping shows."""
    torch.manual_seed(1)
    seen, advantage = torch.randn(count, *learner.facts.shape), torch.randn(count)
    outputs = learner.network(seen)[0].detach()
    if learner.facts.actions:
        actions = torch.randint(0, learner.facts.actions, (count,))
    else:
        actions = torch.randn(count, len(learner.facts.low))
    old = learner.nll(outputs, actions)[0].detach()
    old = old + torch.randn(count) * 0.3
    return ppo.Batch(seen, actions, old, advantage, advantage + clip * advantage.abs(),
                     5 * torch.randn(count))  # fmt: skip


@pytest.mark.parametrize(("actions", "box"), [(3, 0), (0, 2)])
def test_updates_equal_plain_torch(run: Any, actions: int, box: int) -> None:
    one = learner_of(run, facts_of(actions, box), epochs=4, batch_size=10, entropy=0.03,
                     max_grad_norm=0.7, lr=3e-3, lr_end=0.0)  # fmt: skip
    batch = some_batch(one, 40, clip=0.1)
    plain = ppo.Network(one.facts, hidden=16, activation="tanh")
    plain.load_state_dict(one.network.state_dict())
    tags = one.learn(batch, np.random.default_rng(7), 300)
    optimizer = torch.optim.Adam(plain.parameters(), lr=1.5e-3, eps=1e-5)
    rng, told, clipped = np.random.default_rng(7), [], 0
    for _ in range(4):
        moved = []
        for index in torch.from_numpy(rng.permutation(40)).split(10):
            outputs, values = plain(batch.seen[index])
            if actions:
                d = torch.distributions.Categorical(logits=outputs)
                logs, entropy = d.log_prob(batch.actions[index]), d.entropy().mean()
            else:
                d = torch.distributions.Normal(outputs, plain.log_std.exp())
                logs = d.log_prob(batch.actions[index]).sum(1)
                entropy = d.entropy().sum(1).mean()
            ratio, a = (logs + batch.old[index]).exp(), batch.advantage[index]
            policy = -torch.min(ratio * a, ratio.clamp(0.9, 1.1) * a).mean()
            value = (values - batch.goal[index]).square().mean()
            optimizer.zero_grad()
            (policy + 0.5 * value - 0.03 * entropy).backward()
            norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.7)
            clipped += float(norm) > 0.7
            optimizer.step()
            told.append([float(x.detach()) for x in (policy, value, entropy, norm)])
            moved.append((logs + batch.old[index]).detach())
    expected = torch.cat([p.detach().reshape(-1) for p in plain.parameters()])
    assert clipped and (one.theta - expected).abs().max() < 1e-5
    r = torch.cat(moved).exp()
    told = [*np.mean(told, 0), (r - 1 - r.log()).mean(), ((r - 1).abs() > 0.1).float().mean()]
    assert list(tags) == [f"loss/{n}" for n in (
        "policy", "value", "entropy", "gradient_norm", "kl", "clip_fraction")]  # fmt: skip
    assert np.allclose(list(tags.values()), told, rtol=1e-3, atol=1e-5)


def test_parts_of_a_rollout_are_nearly_equal_and_at_most_a_batch(run: Any) -> None:
    one, sizes = learner_of(run, facts_of(3), epochs=1, batch_size=20), []
    losses = one.losses
    one.losses_of = lambda b: (sizes.append(len(b.old)), losses(b))[1]
    one.learn(some_batch(one, 50), np.random.default_rng(0), 100)
    assert sizes == [17, 17, 16]


def test_small_advantages_teach_the_critic_only(run: Any) -> None:
    o = ppo.Options(**{**SMALL, "env": "ppo_stubs:Counter-v0", "min_advantage": 0.5})
    t = ppo.Training(o, run)
    t.rollout.collect(t.envs, t.learner.policy, t.rng, 25)
    all_in, some = (
        ppo.Training(ppo.Options(**{**asdict(o), "min_advantage": least}), run).learner.batch(
            t.rollout, t.rollout.rewards, 0.2
        )
        for least in (0.0, 0.5)
    )
    small = all_in.advantage.abs() < 0.5
    assert 3 < small.sum() < 47
    assert torch.equal(some.advantage, torch.where(small, 0.0, all_in.advantage))
    assert not some.most[small].any() and torch.equal(some.goal, all_in.goal)


def test_epochs_end_once_the_policy_has_moved_far(run: Any) -> None:
    def updates(**changes: Any) -> float:
        one = learner_of(run, facts_of(3), epochs=50, batch_size=40, lr=1e-2, **changes)
        batch = some_batch(one, 40)
        old = one.nll(one.network(batch.seen)[0], batch.actions)[0]
        one.learn(batch._replace(old=old.detach()), np.random.default_rng(0), 0)
        return float(one.descent.adam.count)

    assert updates() == 50 and 2 <= updates(target_kl=0.02) < 20


def test_huge_rewards_are_seen_in_the_gradient_norm_and_clipped(
    train: Train, tmp_path: Path
) -> None:
    t = train(env="ppo_stubs:Huge-v0", eval_every=0, max_grad_norm=0.5)
    assert progress(tmp_path)[-1]["metrics"]["loss/gradient_norm"] > 1e5
    assert t.learner.theta.grad.norm() <= 0.5 + 1e-5


def test_short_run_reaches_a_known_return(train: Train) -> None:
    t = train(steps=15_000, num_envs=8, rollout=32, batch_size=128, hidden=64, epochs=10, lr=2e-3,
              checkpoint_every=0, eval_every=0, log_every=5000, eval_episodes=10)  # fmt: skip
    assert t.evaluate()["eval/return"] >= 150  # an untrained policy gets about 10


def test_numbers_far_from_1_are_learned_with_normalisers_and_played_from_the_checkpoint(
    train: Train, tmp_path: Path
) -> None:
    t = train(env="ppo_stubs:Scaled-v0", steps=12_000, num_envs=4, rollout=64, batch_size=64,
              epochs=6, lr=2e-3, normalise_observations=True, normalise_rewards=True,
              checkpoint_every=0, eval_every=0, eval_episodes=20, log_every=6000, gamma=0.9,
              log_std_start=-0.5)  # fmt: skip
    measured = t.evaluate()
    # the middle of the box for ever gets about -16,000
    assert measured["eval/return"] > -6000
    state = checkpoint.read_model(tmp_path / "checkpoints" / names(tmp_path)[-1])
    again = evaluation.evaluate(t.run, t.o, ppo.greedy(state), step=t.step)
    assert again == measured


def test_pictures_are_learned(train: Train, tmp_path: Path) -> None:
    t = train(env="ppo_stubs:Picture-v0", steps=512, num_envs=4, rollout=32, epochs=4,
              batch_size=32, checkpoint_every=0, eval_every=0, gamma=0.0, lr=5e-4,
              eval_episodes=20)  # fmt: skip
    assert t.rollout.seen.dtype == np.uint8
    measured = t.evaluate()
    assert measured["eval/return"] >= 2.7  # of 3 steps; 1.5 by chance
    state = checkpoint.read_model(tmp_path / "checkpoints" / names(tmp_path)[-1])
    assert evaluation.evaluate(t.run, t.o, ppo.greedy(state), step=t.step) == measured
    with pytest.raises(options.Refused, match="normalise_observations is for flat"):
        train(env="ppo_stubs:Picture-v0", normalise_observations=True)


# what comes out


def test_same_seed_same_bytes_and_another_seed_others(train: Train) -> None:
    first, second, other = (
        train(name, seed=seed).learner for name, seed in (("a", 5), ("b", 5), ("c", 6))
    )
    assert torch.equal(first.theta, second.theta)
    assert not torch.equal(first.theta, other.theta)


def test_evaluation_changes_nothing_in_training(train: Train) -> None:
    without, often = train("a", eval_every=0), train("b", eval_every=50)
    assert torch.equal(without.learner.theta, often.learner.theta)
    assert without.rng.bit_generator.state == often.rng.bit_generator.state


def test_checkpoint_is_complete_measured_and_readable_without_pickle(
    train: Train, tmp_path: Path
) -> None:
    t = train(eval_every=400)
    assert names(tmp_path) == ["step-000000200", "step-000000400", "step-000000600"]
    for name, measured in zip(names(tmp_path), (False, True, True), strict=True):
        folder = tmp_path / "checkpoints" / name
        manifest = json.loads((folder / "manifest.json").read_text())
        assert name.endswith(f"{manifest['step']:09d}")
        assert set(manifest["metrics"]) == ({"eval/return"} if measured else set())
        assert set(manifest["files"]) == {p.name for p in folder.iterdir()} - {"manifest.json"}
        state = torch.load(folder / "model.pt", weights_only=True)
        assert (state["step"], state["agent"]) == (manifest["step"], "ppo")
        assert state["options"] == asdict(t.o)
    assert torch.equal(state["params"], t.learner.theta)
    again = evaluation.evaluate(t.run, t.o, ppo.greedy(state), step=t.step)
    assert manifest["metrics"] == again


def test_not_a_number_from_the_environment_is_named_and_never_kept(
    train: Train, tmp_path: Path
) -> None:
    with pytest.raises(runtime.Fault, match="reward or observation.* 266") as fault:
        train(env="ppo_stubs:Broken-v0", eval_every=0)
    assert (fault.value.kind, fault.value.step) == ("nan", 266)
    assert names(tmp_path) == ["step-000000200"]


def test_diverging_parameters_end_the_run_before_they_are_kept(
    train: Train, tmp_path: Path
) -> None:
    with pytest.raises(runtime.Fault, match="became (nan|inf)|not finite at") as fault:
        train(lr=1e30, lr_end=1e30, checkpoint_every=25, activation="relu")
    assert fault.value.kind == "nan"
    for name in names(tmp_path):
        state = checkpoint.read_model(tmp_path / "checkpoints" / name)
        assert torch.isfinite(state["params"]).all()


def test_progress_and_curves_are_counted_in_steps_with_the_promised_names(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="left out: tensorboard: not installed",
    )
    train("open", env="ppo_stubs:NoEnd-v0", eval_every=0)
    assert [p["step"] for p in progress(tmp_path / "open")] == [100, 200, 300, 400, 500, 600]
    assert "loss/policy" in progress(tmp_path / "open")[-1]["metrics"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ppo  device cpu, 1 thread  env ppo_stubs:NoEnd-v0  seed 5")
    assert [line.split()[1] for line in lines[1:]] == ["100", "200", "300", "400", "500", "600"]
    train("ends")
    events = accumulator.EventAccumulator(str(tmp_path / "ends" / "logs"), {"scalars": 0}).Reload()
    losses = ("policy", "value", "entropy", "kl", "clip_fraction", "gradient_norm")
    assert set(events.Tags()["scalars"]) >= {
        "reward", "episode_length", "eval/return", "perf/steps_per_s",
        *(f"loss/{name}" for name in losses),
    }  # fmt: skip
    assert [e.step for e in events.Scalars("loss/value")] == list(range(50, 601, 50))
    assert [e.step for e in events.Scalars("eval/return")] == [200, 400, 600]


# going on


def last_files(folder: Path) -> dict[str, Any]:
    """Digests of the last checkpoint's files."""
    return checkpoint.read_manifest(folder / "checkpoints" / names(folder)[-1])


CONTINUOUS = {
    "env": "Pendulum-v1", "normalise_observations": True, "normalise_rewards": True, "num_envs": 3,
    "rollout": 20, "gamma": 0.9,
}  # fmt: skip


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("more", [{}, CONTINUOUS, {"env": "ppo_stubs:Counter-v0", "steps": 590}])
def test_resumed_run_ends_with_the_same_bytes(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    which: int, more: dict[str, Any],
) -> None:  # fmt: skip
    whole = train("a", **more)
    kept = tmp_path / "a" / "checkpoints" / names(tmp_path / "a")[which]
    capsys.readouterr()
    again = train("b", resume=kept, **more)
    step = int(kept.name.split("-")[1])
    assert f"resumed from step {step}" in capsys.readouterr().out.splitlines()[0]
    assert torch.equal(whole.learner.theta, again.learner.theta)
    assert last_files(tmp_path / "a") == last_files(tmp_path / "b")


@pytest.mark.parametrize("env", ["HalfCheetah-v5", "Hopper-v5"])
def test_simulated_bodies_are_resumed_exactly(train: Train, tmp_path: Path, env: str) -> None:
    pytest.importorskip("mujoco", reason="left out: mujoco: not installed")
    more = {**CONTINUOUS, "env": env, "steps": 240, "checkpoint_every": 120, "eval_every": 0}
    whole = train("a", **more)
    again = train("b", resume=tmp_path / "a" / "checkpoints" / names(tmp_path / "a")[0], **more)
    assert torch.equal(whole.learner.theta, again.learner.theta)
    model = [last_files(tmp_path / name)["model.pt"] for name in "ab"]
    assert model[0] == model[1]


def test_atari_pictures_are_resumed_exactly(train: Train, tmp_path: Path) -> None:
    for module in ("ale_py", "cv2"):
        pytest.importorskip(module, reason=f"left out: {module}: not installed")
    more = {"env": "ALE/Pong-v5", "steps": 64, "rollout": 16, "epochs": 1, "batch_size": 16,
            "hidden": 64, "checkpoint_every": 32, "eval_every": 0}  # fmt: skip
    whole = train("a", **more)
    again = train("b", resume=tmp_path / "a" / "checkpoints" / names(tmp_path / "a")[0], **more)
    assert torch.equal(whole.learner.theta, again.learner.theta)


def test_finished_run_ends_at_once_when_resumed_and_goes_on_with_more_steps(
    train: Train, tmp_path: Path
) -> None:
    whole = train()
    last = tmp_path / "checkpoints" / "step-000000600"
    again = train(resume=last)
    assert again.step == 600 and torch.equal(whole.learner.theta, again.learner.theta)
    assert train(resume=last, steps=700).step == 700


def test_checkpoints_of_another_order_of_parameters_are_refused(
    train: Train, tmp_path: Path
) -> None:
    train(eval_every=0)
    state = checkpoint.read_model(tmp_path / "checkpoints" / names(tmp_path)[-1])
    with pytest.raises(options.Refused, match="parameters had another order"):
        ppo.greedy({**state, "format": 1})


def test_resume_with_another_shape_is_refused_by_name(train: Train, tmp_path: Path) -> None:
    train(steps=200)
    kept = tmp_path / "checkpoints" / "step-000000200"
    for changes, text in (
        ({"hidden": 17}, "hidden is 17, but .* was made with 16"),
        ({"normalise_rewards": True}, "normalise_rewards is True"),
    ):
        with pytest.raises(options.Refused, match=text):
            train(resume=kept, **changes)


def test_killed_at_a_random_moment_and_resumed_equals_untouched(
    train: Train, tmp_path: Path
) -> None:
    whole = train("whole", steps=2000)
    folder = tmp_path / "killed"
    folder.mkdir()
    env = {**os.environ, "RUNNER_CHECKPOINTS": str(folder / "checkpoints"),
           "RUNNER_LOGS": str(folder / "logs"), "RUNNER_PROGRESS": "", "RUNNER_RESUME": "",
           "PYTHONWARNINGS": "error"}  # fmt: skip
    command = [sys.executable, str(AGENTS / "ppo.py"), *words_of({**SMALL, "steps": 2000})]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout
        for _ in range(8):
            agent.stdout.readline()
        agent.kill()
    newest = max(n for n in names(folder) if not n.endswith(".tmp"))
    env["RUNNER_RESUME"] = str(folder / "checkpoints" / newest)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "resumed from step" in done.stdout, done.stderr
    assert names(folder) == names(tmp_path / "whole")
    assert last_files(folder) == last_files(tmp_path / "whole"), newest
    state = checkpoint.read_model(folder / "checkpoints" / "step-000002000")
    assert torch.equal(state["params"], whole.learner.theta)
    # by hand, the best of them plays as it was measured
    shown = subprocess.run(
        [sys.executable, str(AGENTS / "ppo.py"), f"evaluate={folder}/checkpoints", "episodes=3"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert shown.startswith("step-000") and "episodes 3  return " in shown


# several ranks

TWO_RANKS = f"""
import json, sys
sys.path[:0] = [{str(AGENTS)!r}, {str(AGENTS.parent)!r}]
import checkpoint, numpy as np, options, ppo, runtime, torch
run = runtime.Run("ppo", device="cpu")
trained = []
for words in json.loads(sys.argv[1]):
    t = ppo.train(options.read_options(ppo.Options, words), run)
    made = sum(env.unwrapped.made for env in t.envs.envs) if "Counter" in t.o.env else 0
    held = t.learner.moments
    moments = [held.mean.tolist(), held.var.tolist()] if held else []
    scale = float(t.scale.moments.var) if t.scale else 0
    trained.append([checkpoint.digest(t.learner.theta.detach()), t.step, moments, scale, made])
# half a batch on each rank
from tests.unit import test_agent_ppo as tests
one = tests.learner_of(run, tests.facts_of(3), epochs=3, batch_size=40)
whole = tests.some_batch(one, 40)
half = ppo.Batch(*(part[run.rank * 20 :][:20] for part in whole))
tags = one.learn(half, np.random.default_rng(run.rank), 100)
np.save(f"theta{{run.rank}}.npy", one.theta.detach().numpy())
print(json.dumps([trained, tags]))
runtime.close(run)
"""


def test_two_ranks_share_steps_and_end_with_equal_bits(run: Any, tmp_path: Path) -> None:
    counter = {**SMALL, "env": "ppo_stubs:Counter-v0", "steps": 401, "num_envs": 4,
               "target_kl": 1e-4, "lr": 0.01, "eval_every": 0}  # fmt: skip
    pendulum = {**SMALL, **CONTINUOUS, "steps": 300, "checkpoint_every": 0, "num_envs": 4}
    told = json.dumps([words_of(counter), words_of(pendulum)])
    outputs = as_processes(TWO_RANKS, tmp_path, told)
    first, second = (json.loads(out.splitlines()[-1]) for out in outputs)
    for mine, other in zip(first[0], second[0], strict=True):
        assert mine[:4] == other[:4]
    assert first[0][0][1] == 404 == first[0][0][4] + second[0][0][4]
    assert first[0][1][2] and first[0][1][3] > 0
    assert "step-000000404" in names(tmp_path)
    files = checkpoint.read_manifest(tmp_path / "checkpoints" / "step-000000404")
    assert set(files) == {"env-rank0.bin", "env-rank1.bin", "model.pt"}
    assert len(outputs[1].splitlines()) == 1  # only rank 0 tells of the training
    # half a batch on each rank makes the updates of the whole batch on one
    one = learner_of(run, facts_of(3), epochs=3, batch_size=40)
    tags = one.learn(some_batch(one, 40), np.random.default_rng(0), 100)
    halves = [np.load(tmp_path / f"theta{rank}.npy") for rank in range(2)]
    assert (halves[0] == halves[1]).all() and first[1] == second[1]
    assert np.abs(halves[0] - one.theta.detach().numpy()).max() < 1e-6
    assert np.allclose(list(tags.values()), list(first[1].values()), atol=1e-5)
