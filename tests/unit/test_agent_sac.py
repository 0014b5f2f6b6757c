"""The SAC agent: what it learns from, where it acts, what it keeps, and that it comes out equal."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

from tests.helpers.agents import AGENTS, progress  # noqa: E402  puts agents/ on the path

# isort: split
import evaluation  # noqa: E402
import options  # noqa: E402
import runtime  # noqa: E402
import sac  # noqa: E402
from parameters import Descent  # noqa: E402
from schedules import straight  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# small enough for half a second, and with every kind of event in it
SMALL = {
    "seed": 5, "steps": 600, "hidden": 16, "learning_starts": 100, "train_every": 20,
    "updates": 4, "batch_size": 32, "checkpoint_every": 200, "eval_every": 200,
    "eval_episodes": 2, "log_every": 100, "buffer_size": 300,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _undisturbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of an outer run, and pytest's own signal handlers afterwards."""
    for name in [n for n in os.environ if n.startswith("RUNNER_")]:
        monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module of environments that show what an agent does to them."""
    folder = tmp_path_factory.mktemp("stubs")
    (folder / "sac_stubs.py").write_text(
        """
import gymnasium as gym, numpy as np
from gymnasium.spaces import Box

class Strict(gym.Env):
    '''Takes numbers from -3 to 7 only, and remembers them. Shows 100 * episode + step; episodes
    of 3 and 7 steps in turn, the long ones cut by a time limit.'''
    def __init__(self, low=-3, high=7, pay=1.0, bad_at=None, seen_bad=False):
        self.observation_space = Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = Box(low, high, (2,), np.float32)
        self.episode = self.made = 0
        self.pay, self.bad_at, self.seen_bad = pay, bad_at, seen_bad
        self.actions = []
    def _seen(self):
        bad = self.seen_bad and self.made == self.bad_at
        return np.array([np.nan if bad else 100 * self.episode + self.t], np.float32)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self._seen(), {}
    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        self.made += 1
        self.actions.append(action.copy())
        long = self.episode % 2 == 0
        end = self.t == (7 if long else 3)
        reward = np.nan if self.made == self.bad_at and not self.seen_bad else self.pay
        return self._seen(), float(reward), end and not long, end and long, {}

class Aim(gym.Env):
    '''The reward is how near an action is to 2 + 5 * what is seen; 2 is the box's middle.'''
    def __init__(self, wide=1.0):
        self.wide = wide
        self.observation_space = Box(-1, 1, (1,), np.float32)
        self.action_space = Box(-3 * wide, 7 * wide, (1,), np.float32)
    def _look(self):
        self.x = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.x.copy()
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._look(), {}
    def step(self, action):
        self.t += 1
        off = float(action[0]) / self.wide - 2 - 5 * float(self.x[0])
        return self._look(), -abs(off), False, self.t == 10, {}

gym.register('Strict-v0', Strict)
gym.register('Rich-v0', lambda: Strict(pay=1e6))
gym.register('BadReward-v0', lambda: Strict(bad_at=333))
gym.register('BadSight-v0', lambda: Strict(bad_at=333, seen_bad=True))
gym.register('Open-v0', lambda: Strict(high=np.inf))
gym.register('Aim-v0', Aim)
gym.register('Wide-v0', lambda: Aim(1024.0))
"""
    )
    return folder


def train_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, resume: Path | None = None, **changes: Any
) -> sac.Training:
    """Train in this process, as the runner would have it done, and return all of the state."""
    for name in ("checkpoints", "logs"):
        monkeypatch.setenv(f"RUNNER_{name.upper()}", str(folder / name))
    monkeypatch.setenv("RUNNER_PROGRESS", str(folder / "progress.jsonl"))
    monkeypatch.setenv("RUNNER_RESUME", str(resume or ""))
    folder.mkdir(parents=True, exist_ok=True)
    return sac.train(sac.Options(**{**SMALL, **changes}), runtime.Run("sac", device="cpu"))


def start_agent(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """The agent as a process of its own, with its folders below `folder`."""
    return subprocess.Popen(
        [sys.executable, str(AGENTS / "sac.py"), *words],
        env={
            **os.environ,
            "RUNNER_CHECKPOINTS": str(folder / "checkpoints"),
            "RUNNER_LOGS": str(folder / "logs"),
            "PYTHONWARNINGS": "error",
            **variables,
        },
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def words_of(options: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in options.items()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def everything(learner: sac.Learner) -> Any:
    """All parameters as one vector."""
    parts = [learner.own.theta, learner.values.theta, learner.theta_target]
    return torch.cat([part.detach() for part in parts])


# options


def test_defaults_are_those_of_the_recipe() -> None:
    recipe = tomllib.loads((AGENTS / "sac.toml").read_text())
    assert recipe["params"] == asdict(sac.Options())
    kinds = {f.name: type(f.default) for f in fields(sac.Options)}
    for name in ("sac", "sac_halfcheetah", "sac_hopper"):
        recipe = tomllib.loads((AGENTS / f"{name}.toml").read_text())
        assert recipe["entry"] == "sac.py"
        assert {name: type(value) for name, value in recipe["params"].items()} == kinds
        sac.Options(**recipe["params"])


def test_recipe_says_what_the_options_say() -> None:
    def remarks(text: str, between: str) -> dict[str, str]:
        found = (line.partition("#") for line in text.splitlines() if between in line)
        return {left.split()[0].rstrip(":"): right.strip() for left, _, right in found if right}

    code, recipe = ((AGENTS / name).read_text() for name in ("sac.py", "sac.toml"))
    code = code[code.index("class Options") : code.index("def __post_init__")]
    assert remarks(code, " = ") == remarks(recipe[recipe.index("[params]") :], " = ")


def test_numbers_out_of_range_are_all_named() -> None:
    with pytest.raises(options.Refused, match="(?s)steps is 0.*gamma is 1.5.*tau is -1") as refused:
        sac.Options(steps=0, gamma=1.5, tau=-1.0)
    assert len(str(refused.value).splitlines()) == 3


# acting


def test_actions_fill_the_whole_box_and_only_the_box(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    t = train_here(tmp_path, monkeypatch, env="sac_stubs:Strict-v0", learning_starts=500)
    actions = np.stack(t.envs.envs[0].unwrapped.actions)  # (600, 2), each within the box
    assert actions[:500].min() < -2.9 and actions[:500].max() > 6.9
    assert abs(actions[:500].mean() - 2) < 0.5 and len(np.unique(actions)) > 1000
    # an untrained policy is about the box's middle, and reaches far to both sides of it
    assert actions[500:].min() < -1 and actions[500:].max() > 5


def test_box_without_ends_is_refused_in_one_sentence(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    with pytest.raises(options.Refused, match="only a finite box can be filled") as refused:
        train_here(tmp_path, monkeypatch, env="sac_stubs:Open-v0")
    assert len(str(refused.value).splitlines()) == 1 and not (tmp_path / "checkpoints").exists()
    with pytest.raises(options.Refused, match="only a flat Box of numbers is acted in here"):
        train_here(tmp_path, monkeypatch, env="CartPole-v1")


def test_acting_in_numpy_agrees_with_the_network(tmp_path: Path, run: Any) -> None:
    one = learner(run)
    one.learn(*some_batches(3, 8), 200)
    seen = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    noise = np.random.default_rng(2).normal(size=(50, 3)).astype(np.float32)
    policy = sac.Policy(one.acting, SIZES, -np.ones(3, np.float32), np.ones(3, np.float32))
    with torch.no_grad():
        sampled, _ = one.actor(torch.from_numpy(seen), torch.from_numpy(noise))
        greedy, _ = one.actor(torch.from_numpy(seen), torch.zeros(50, 3))
    assert np.abs(policy.sample(seen, noise) - sampled.numpy()).max() < 1e-5
    assert np.abs(policy(seen) - greedy.numpy()).max() < 1e-5


# collecting


@pytest.mark.parametrize("envs", [1, 3])
def test_no_stored_transition_crosses_an_episode(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, envs: int
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    t = train_here(tmp_path, monkeypatch, env="sac_stubs:Strict-v0", num_envs=envs,
                   buffer_size=50, eval_every=0)  # fmt: skip
    rows = t.replay.rows  # (seen, reached, two actions, reward, terminated)
    assert t.replay.count == 600 and len(rows) == 50
    assert (rows[:, 1] == rows[:, 0] + 1).all()
    # only episodes of three steps end for real; the seventh step of the others is a time limit
    odd = rows[:, 1] // 100 % 2 == 1
    assert (rows[:, -1] == (odd & (rows[:, 1] % 100 == 3))).all()
    assert (rows[:, 1] % 100 == 7).any() and rows[:, -1].any()
    # actions are kept as their share of the box
    sent = np.concatenate([np.stack(env.unwrapped.actions) for env in t.envs.envs])
    kept = t.policy.in_box(rows[:, 2:4])
    assert all((sent == action).all(1).any() for action in kept)
    assert np.abs(rows[:, 2:4]).max() <= 1


@pytest.mark.parametrize("envs", [1, 4, 7])
def test_exactly_the_steps_asked_for_are_made(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, envs: int
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    t = train_here(tmp_path, monkeypatch, env="sac_stubs:Strict-v0", num_envs=envs, steps=405,
                   eval_every=0)  # fmt: skip
    assert t.step == sum(env.unwrapped.made for env in t.envs.envs) == 405
    assert names(tmp_path)[-1] == "step-000000405"


@pytest.mark.parametrize("envs", [1, 4])
def test_updates_are_as_many_whatever_the_number_of_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, envs: int
) -> None:
    t = train_here(tmp_path, monkeypatch, num_envs=envs, train_every=2, updates=3, steps=200,
                   eval_every=0)  # fmt: skip
    assert int(t.learner.own.adam.count) == pytest.approx((200 - 100) / 2 * 3, abs=6)


# learning

SIZES = (4, 16, 16, 6)  # four numbers seen, three acted


def learner(run: Any, **changes: Any) -> sac.Learner:
    torch.manual_seed(0)
    return sac.Learner(sac.Options(**{**SMALL, **changes}), run, SIZES)


def some_batches(updates: int, batch: int) -> tuple[Any, Any]:
    """Rows and noise as `learn` takes them."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(updates, batch, 13)).astype(np.float32)
    rows[..., 8:11] = rng.uniform(-1, 1, (updates, batch, 3))
    rows[..., -1] = rng.random((updates, batch)) < 0.2
    return rows, rng.standard_normal((updates, 2, batch, 3), np.float32)


def test_target_stops_at_a_real_end_and_not_at_a_time_limit() -> None:
    reward, ended = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0])
    assert sac.soft_target(reward, ended, torch.tensor([8.0, 8.0]), 0.5).tolist() == [1.0, 5.0]


def plain_critics(critics: sac.Critics) -> list[Any]:
    """The two critics as two networks of torch's own layers."""
    made = []
    for which in range(2):
        layers: list[Any] = []
        for weight, bias in zip(critics.weights, critics.biases, strict=True):
            layer = torch.nn.Linear(weight.shape[1], weight.shape[2])
            layer.weight.data, layer.bias.data = weight[which].T.clone(), bias[which, 0].clone()
            layers += [layer, torch.nn.ReLU()]
        made.append(torch.nn.Sequential(*layers[:-1]))
    return made


def flat_critics(pair: list[Any]) -> Any:
    """Two plain networks in the order of the flat vector: all weights, then all biases."""
    layers = [[layer for layer in one if isinstance(layer, torch.nn.Linear)] for one in pair]
    weights = [layer.weight.detach().T for both in zip(*layers, strict=True) for layer in both]
    biases = [layer.bias.detach() for both in zip(*layers, strict=True) for layer in both]
    return torch.cat([part.reshape(-1) for part in [*weights, *biases]])


@pytest.mark.parametrize("fixed", [0.0, 0.3])
def test_updates_equal_plain_torch(run: Any, fixed: float) -> None:
    one, (rows, noise) = learner(run, max_grad_norm=2.0, temperature=fixed), some_batches(5, 32)
    rows[2:, :, 11] *= 20  # gradients of different lengths, so that clipping shows through Adam
    pair, target = plain_critics(one.critics), plain_critics(one.target)
    actor = torch.nn.Sequential(*[
        torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.ReLU(),
        torch.nn.Linear(16, 6),
    ])  # fmt: skip
    actor.load_state_dict(one.actor.layers.state_dict())
    log_alpha = torch.zeros((), requires_grad=True)
    losses = one.learn(rows, noise, 50)

    lr = straight(one.o.lr, one.o.lr_end, 50 / one.o.steps)
    of_pair = [p for critic in pair for p in critic.parameters()]
    adam_pair, adam_actor = torch.optim.Adam(of_pair, lr), torch.optim.Adam(actor.parameters(), lr)
    adam_alpha = torch.optim.Adam([log_alpha], lr)

    def act(seen: Any, drawn: Any) -> tuple[Any, Any]:
        mean, log_std = actor(seen)[:, :3], actor(seen)[:, 3:].clamp(-20, 2)
        normal = torch.distributions.Normal(mean, log_std.exp())
        raw = mean + log_std.exp() * drawn
        dense = normal.log_prob(raw) - torch.log(1 - raw.tanh() ** 2 + 1e-12)
        return raw.tanh(), dense.sum(1)

    norms = []
    for batch, drawn in zip(torch.from_numpy(rows), torch.from_numpy(noise), strict=True):
        seen, after, acted, pay, end = batch.split([4, 4, 3, 1, 1], dim=1)
        alpha = fixed or float(log_alpha.detach().exp())
        with torch.no_grad():
            action, dense = act(after, drawn[0])
            least = torch.min(*(q(torch.cat([after, action], 1))[:, 0] for q in target))
            goal = pay[:, 0] + 0.99 * (1 - end[:, 0]) * (least - alpha * dense)
        adam_pair.zero_grad()
        sum(((q(torch.cat([seen, acted], 1))[:, 0] - goal) ** 2).mean() for q in pair).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(of_pair, 2.0)))
        adam_pair.step()
        adam_actor.zero_grad()
        action, dense = act(seen, drawn[1])
        least = torch.min(*(q(torch.cat([seen, action], 1))[:, 0] for q in pair))
        (alpha * dense - least).mean().backward()
        torch.nn.utils.clip_grad_norm_(actor.parameters(), 2.0)
        adam_actor.step()
        if not fixed:
            adam_alpha.zero_grad()
            (-log_alpha * (dense.detach() - 3).mean()).backward()
            adam_alpha.step()
        for late, now in zip(target, pair, strict=True):
            for p_late, p in zip(late.parameters(), now.parameters(), strict=True):
                p_late.data += 0.005 * (p.data - p_late.data)
    assert min(norms) < 1.9 or max(norms) > 2.1
    assert losses["loss/gradient_norm"] == pytest.approx(np.mean(norms), rel=1e-4)
    expected = torch.cat([p.detach().reshape(-1) for p in actor.parameters()])
    assert (one.own.theta[:-1] - expected).abs().max() < 1e-5
    assert float(one.own.theta.detach()[-1]) == pytest.approx(
        np.log(fixed) if fixed else float(log_alpha.detach()), abs=1e-6
    )
    assert (one.values.theta - flat_critics(pair)).abs().max() < 1e-5
    assert (one.theta_target - flat_critics(target)).abs().max() < 1e-5


def test_target_critics_follow_and_share_no_memory(run: Any) -> None:
    one = learner(run, tau=0.25)
    before = one.theta_target.detach().clone()
    assert torch.equal(before, one.values.theta)
    one.learn(*some_batches(1, 8), 50)
    moved = one.values.theta.detach() - before
    assert moved.abs().max() > 0
    assert (one.theta_target - before - 0.25 * moved).abs().max() < 1e-7


def test_temperature_falls_where_entropy_is_above_its_target(run: Any) -> None:
    # an untrained policy has an entropy of about 1.4; -3 times the option is aimed at
    for share, direction in ((2.0, -1), (-2.0, 1)):
        one = learner(run, target_entropy=share)
        one.learn(*some_batches(3, 64), 50)
        assert np.sign(float(one.own.theta.detach()[-1])) == direction


def test_large_rewards_are_clipped_and_their_gradients_told(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    followed: list[float] = []
    step = Descent.step

    def watched(self: Descent, loss: Any, lr: float, *, clipped: int | None = None) -> Any:
        norm = step(self, loss, lr, clipped=clipped)
        followed.append(float(self.theta.grad[:clipped].norm()))
        return norm

    monkeypatch.setattr(Descent, "step", watched)
    train_here(tmp_path, monkeypatch, env="sac_stubs:Rich-v0", max_grad_norm=5.0)
    told = [p["metrics"]["loss/gradient_norm"] for p in progress(tmp_path)[2:]]
    assert min(told) > 1e5  # as it was before
    assert len(followed) > 100 and 4.99 < max(followed) < 5.01


AIMING = {
    "steps": 1000, "gamma": 0.5, "lr": 3e-3, "hidden": 32, "train_every": 1, "updates": 1,
    "batch_size": 64, "buffer_size": 2000, "checkpoint_every": 0, "eval_every": 0,
}  # fmt: skip


def test_short_run_reaches_a_known_return(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    aiming = {**AIMING, "eval_every": 1000, "eval_episodes": 10}
    train_here(tmp_path, monkeypatch, env="sac_stubs:Aim-v0", **aiming)
    # random actions get about -32 in ten steps
    assert progress(tmp_path)[-1]["metrics"]["eval/return"] > -3


def test_unit_of_actions_makes_no_difference(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    narrow, wide = (
        train_here(tmp_path / env, monkeypatch, **{**AIMING, "env": env, "steps": 200})
        for env in ("sac_stubs:Aim-v0", "sac_stubs:Wide-v0")
    )
    assert torch.equal(everything(narrow.learner), everything(wide.learner))
    sent = wide.envs.envs[0].action_space.high
    assert (wide.policy.in_box(np.ones((1, 1), np.float32)) == sent).all()


# what comes out


def test_same_seed_same_bytes_and_another_seed_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, other = (
        everything(train_here(tmp_path / name, monkeypatch, seed=seed).learner)
        for name, seed in (("a", 5), ("b", 5), ("c", 6))
    )
    assert torch.equal(first, second) and not torch.equal(first, other)


def test_evaluation_changes_nothing_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = train_here(tmp_path / "a", monkeypatch, eval_every=0)
    often = train_here(tmp_path / "b", monkeypatch, eval_every=150)
    assert torch.equal(everything(without.learner), everything(often.learner))
    assert without.rng.bit_generator.state == often.rng.bit_generator.state
    assert (without.envs.seen == often.envs.seen).all()


def test_checkpoint_is_complete_measured_and_readable_without_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = train_here(tmp_path, monkeypatch, eval_every=400)
    assert names(tmp_path) == ["step-000000200", "step-000000400", "step-000000600"]
    for name, measured in zip(names(tmp_path), (False, True, True), strict=True):
        folder = tmp_path / "checkpoints" / name
        manifest = json.loads((folder / "manifest.json").read_text())
        assert set(manifest["metrics"]) == ({"eval/return"} if measured else set())
        assert set(manifest["files"]) == {p.name for p in folder.iterdir()} - {"manifest.json"}
        state = torch.load(folder / "model.pt", weights_only=True)
        assert state["step"] == manifest["step"] and state["options"] == asdict(t.o)
    assert torch.equal(state["params"], t.learner.own.theta)
    # what the manifest says is what these very parameters reach
    again = evaluation.evaluate(t.run, t.o, sac.greedy(state), step=t.step)
    assert manifest["metrics"] == again


@pytest.mark.parametrize("env", ["BadReward", "BadSight"])
def test_not_a_number_from_the_environment_is_named_and_never_kept(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    with pytest.raises(runtime.Fault, match="reward or observation.* 333") as fault:
        train_here(tmp_path, monkeypatch, env=f"sac_stubs:{env}-v0", eval_every=0)
    assert (fault.value.kind, fault.value.step) == ("nan", 333)
    assert names(tmp_path) == ["step-000000200"]


def test_diverging_parameters_end_the_run_before_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(runtime.Fault, match="loss/.* became (nan|-?inf)") as fault:
        train_here(tmp_path, monkeypatch, lr=1e30, lr_end=1e30, checkpoint_every=25)
    assert fault.value.kind == "nan"
    for name in names(tmp_path):
        state = torch.load(tmp_path / "checkpoints" / name / "model.pt", weights_only=True)
        assert all(torch.isfinite(state[part]).all() for part in ("params", "critics", "target"))


def test_curves_carry_the_promised_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="left out: tensorboard: not installed",
    )
    train_here(tmp_path, monkeypatch, log_every=300)
    events = accumulator.EventAccumulator(str(tmp_path / "logs"), {"scalars": 0}).Reload()
    assert set(events.Tags()["scalars"]) >= {
        "reward", "episode_length", "eval/return", "loss/value", "loss/policy", "loss/entropy",
        "loss/temperature", "loss/gradient_norm", "loss/policy_gradient_norm", "perf/steps_per_s",
    }  # fmt: skip
    assert [e.step for e in events.Scalars("eval/return")] == [200, 400, 600]
    # ten points a line of progress at most
    steps = [e.step for e in events.Scalars("loss/value")]
    assert steps[0] == 100 and steps[-1] > 560 and np.diff(steps).min() >= 30
    assert len(steps) > 15


# going on


def final_files(folder: Path, step: int = 600) -> dict[str, Any]:
    """Digests of a checkpoint, but for the pickle, whose bytes may differ."""
    manifest = json.loads((folder / f"checkpoints/step-{step:09d}/manifest.json").read_text())
    return {n: f for n, f in manifest["files"].items() if not n.startswith("env-")}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("envs", [1, 3])
def test_resumed_run_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    which: int, envs: int,
) -> None:  # fmt: skip
    whole = train_here(tmp_path / "a", monkeypatch, num_envs=envs)
    kept = tmp_path / "a" / "checkpoints" / names(tmp_path / "a")[which]
    capsys.readouterr()
    again = train_here(tmp_path / "b", monkeypatch, resume=kept, num_envs=envs)
    step = int(kept.name.split("-")[1])
    assert f"resumed from step {step}" in capsys.readouterr().out.splitlines()[0]
    assert torch.equal(everything(whole.learner), everything(again.learner))
    assert (whole.replay.rows == again.replay.rows).all()
    assert final_files(tmp_path / "a") == final_files(tmp_path / "b")


def test_killed_on_mujoco_and_resumed_equals_untouched(tmp_path: Path) -> None:
    pytest.importorskip("mujoco", reason="left out: mujoco: not installed")
    small = {**SMALL, "env": "HalfCheetah-v5", "log_every": 20, "eval_every": 0, "hidden": 64}
    words = words_of({**small, "train_every": 1, "updates": 1, "learning_starts": 300})
    (tmp_path / "whole").mkdir()
    agent = start_agent(tmp_path / "whole", *words)
    _, errors = agent.communicate(timeout=60)
    assert agent.returncode == 0, errors
    folder = tmp_path / "killed"
    folder.mkdir()
    lines = random.randint(11, 28)
    with start_agent(folder, *words) as agent:
        assert agent.stdout
        for _ in range(lines + 1):
            agent.stdout.readline()
        agent.kill()
    newest = max(n for n in names(folder) if not n.endswith(".tmp"))
    resume = str(folder / "checkpoints" / newest)
    agent = start_agent(folder, *words, RUNNER_RESUME=resume)
    out, errors = agent.communicate(timeout=60)
    assert agent.returncode == 0 and "resumed from step" in out.splitlines()[0], errors
    assert final_files(folder) == final_files(tmp_path / "whole"), f"killed after line {lines}"


def test_stop_signal_saves_this_step_and_the_rest_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**SMALL, "steps": 2000, "checkpoint_every": 0, "eval_every": 0}
    whole = train_here(tmp_path / "whole", monkeypatch, **options)
    with start_agent(tmp_path, *words_of(options)) as agent:
        assert agent.stdout
        for _ in range(3):
            agent.stdout.readline()
        agent.send_signal(signal.SIGTERM)
        out, errors = agent.communicate(timeout=60)
    assert agent.returncode == 143, errors
    (name,) = names(tmp_path)
    step = int(name.split("-")[1])
    assert 200 <= step < 2000 and f"stopped at step {step}" in out
    again = train_here(tmp_path, monkeypatch, resume=tmp_path / "checkpoints" / name, **options)
    assert torch.equal(everything(whole.learner), everything(again.learner))


def test_finished_run_ends_at_once_or_goes_on_to_a_later_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_here(tmp_path, monkeypatch)
    last = tmp_path / "checkpoints" / "step-000000600"
    again = train_here(tmp_path, monkeypatch, resume=last)
    assert again.step == 600 and torch.equal(everything(whole.learner), everything(again.learner))
    assert train_here(tmp_path, monkeypatch, resume=last, steps=700).step == 700
    with pytest.raises(options.Refused, match="hidden is 17, but .* was made with 16"):
        train_here(tmp_path, monkeypatch, resume=last, hidden=17)


# several ranks

TWO_RANKS = """
import json, os, sys
sys.path.insert(0, {agents!r})
import checkpoint, options, runtime, sac, torch
import numpy as np
words, batches, out = json.loads(sys.argv[1])
if not batches:
    sac.launch(sac.Options, sac.train, sac.greedy, words)
run = runtime.Run("sac", device="cpu")
t = sac.train(options.read_options(sac.Options, words), run)
trained = checkpoint.digest(t.learner.own.theta.detach())
torch.manual_seed(0)
one = sac.Learner(t.o, run, (4, 16, 16, 6))
given = np.load(batches)
rows, noise = given["rows"][:, run.rank::2], given["noise"][:, :, run.rank::2]
one.learn(np.ascontiguousarray(rows), np.ascontiguousarray(noise), 50)
vectors = [one.own.theta, one.values.theta, one.theta_target]
np.save(out + str(run.rank) + ".npy", torch.cat([v.detach() for v in vectors]).numpy())
print(json.dumps([trained, t.replay.count, t.step, float(t.replay.rows[0, 3])]))
runtime.close(run)
"""


def start_ranks(folder: Path, told: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return [
        subprocess.Popen(
            [sys.executable, "-c", TWO_RANKS.format(agents=str(AGENTS)), told],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                 "RUNNER_CHECKPOINTS": str(folder / "checkpoints"),
                 "RUNNER_LOGS": str(folder / "logs")},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        )
        for rank in range(2)
    ]  # fmt: skip


def test_two_ranks_share_steps_and_end_with_equal_bits(tmp_path: Path, run: Any) -> None:
    rows, noise = some_batches(1, 32)
    np.savez(tmp_path / "batches.npz", rows=rows, noise=noise)
    changes = {"steps": 401, "num_envs": 4, "max_grad_norm": 2.0, "device": "cpu"}
    words = words_of({**SMALL, **changes})
    ranks = start_ranks(
        tmp_path, json.dumps([words, str(tmp_path / "batches.npz"), str(tmp_path / "theta")])
    )
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    results = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    assert results[0][0] == results[1][0]
    assert sum(result[1] for result in results) == 401
    assert results[0][2] == results[1][2] == 401
    assert results[0][3] != results[1][3]  # each with episodes of its own
    assert names(tmp_path) == ["step-000000200", "step-000000400", "step-000000401"]
    manifest = json.loads((tmp_path / "checkpoints/step-000000401/manifest.json").read_text())
    assert {"env-rank0.bin", "env-rank1.bin", "model.pt"} < set(manifest["files"])
    assert len(outputs[1][0].splitlines()) == 1  # only rank 0 tells of the training
    # half a batch on each rank makes the update of the whole batch on one
    halves = [np.load(tmp_path / f"theta{rank}.npy") for rank in range(2)]
    one = learner(run, **changes)
    one.learn(rows, noise, 50)
    assert (halves[0] == halves[1]).all()
    assert np.abs(halves[0] - everything(one).numpy()).max() < 1e-6


def test_fault_of_one_rank_ends_both(stubs: Path, tmp_path: Path) -> None:
    (tmp_path / "one_bad.py").write_text(
        f"""
import os, sys
sys.path.insert(0, {str(stubs)!r})
import gymnasium as gym, sac_stubs
bad_at = 120 if os.environ["RANK"] == "1" else None
gym.register("OneBad-v0", lambda: sac_stubs.Strict(bad_at=bad_at))
"""
    )
    words = words_of({**SMALL, "env": "one_bad:OneBad-v0", "num_envs": 2, "eval_every": 0})
    ranks = start_ranks(tmp_path, json.dumps([words, "", ""]))
    errors = [rank.communicate(timeout=60)[1].splitlines()[-1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1]
    assert "stopped: another rank met a fault" in errors[0]
    assert "that is not finite, or beyond float32's 3.4e38, at 240" in errors[1]


# as a process


def test_by_hand_trains_and_evaluates_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sac.py"])
    words = words_of({**SMALL, "seed": -1, "steps": 300})
    sac.launch(sac.Options, sac.train, sac.greedy, words)
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert int(first.split("seed ")[1].split()[0]) >= 0
    folder = Path(second.removeprefix("writing to "))
    assert folder.parent == tmp_path / "results" / "by-hand"
    words = [f"evaluate={folder}/checkpoints", "episodes=3"]
    sac.launch(sac.Options, sac.train, sac.greedy, words)
    shown = capsys.readouterr().out
    assert shown.startswith("step-000000") and "episodes 3  return -" in shown
