"""The recurrent PPO agent: what it remembers and learns from, and that it comes out the same."""

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

AGENTS = Path(__file__).resolve().parents[2] / "agents"
sys.path.insert(0, str(AGENTS))

import advantages  # noqa: E402
import checkpoint  # noqa: E402
import environments  # noqa: E402
import evaluation  # noqa: E402
import options  # noqa: E402
import ppo_lstm  # noqa: E402
import recurrent  # noqa: E402
import runtime  # noqa: E402
from episodes import Episodes  # noqa: E402
from schedules import straight  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# rollouts of 3 x 25 steps, whose ends lie within episodes of 16 steps
SMALL = {
    "seed": 5, "steps": 600, "num_envs": 3, "hidden": 8, "rollout": 25, "epochs": 2,
    "batch_size": 2, "checkpoint_every": 150, "eval_every": 150, "eval_episodes": 2,
    "log_every": 75,
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
    (folder / "lstm_stubs.py").write_text(
        """
import gymnasium as gym, numpy as np
from gymnasium.spaces import Box, Discrete
import memory_task

class Counter(gym.Env):
    '''Shows episode and step; episodes of 3 and 7 steps in turn, the long ones truncated.'''
    def __init__(self, start=0, broken_at=None, what='reward', acts=None):
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = acts or Discrete(3, start=start)
        self.episode = self.made = 0
        self.broken_at, self.what = broken_at, what
        self.actions = []
    def _seen(self):
        broken = self.made == self.broken_at and self.what == 'seen'
        return np.array([self.episode / 10, float('inf') if broken else self.t / 10], np.float32)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self._seen(), {}
    def step(self, action):
        self.t += 1
        self.made += 1
        self.actions.append(action)
        long = self.episode % 2 == 0
        end = self.t == (7 if long else 3)
        broken = self.made == self.broken_at and self.what == 'reward'
        return self._seen(), float('nan') if broken else 1.0, end and not long, end and long, {}

class Unkept(Counter):
    '''Its state cannot be kept.'''
    def __init__(self):
        super().__init__()
        self.file = open('/dev/null')
    def close(self):
        self.file.close()

gym.register('Counter-v0', Counter)
gym.register('FromOne-v0', lambda: Counter(start=1))
gym.register('Broken-v0', lambda: Counter(broken_at=33))
gym.register('Unseen-v0', lambda: Counter(broken_at=33, what='seen'))
gym.register('Smooth-v0', lambda: Counter(acts=Box(-1, 1, (1,))))
gym.register('Unkept-v0', Unkept)
gym.register('Brief-v0', lambda: memory_task.Recall(length=4, cues=2))
"""
    )
    return folder


@pytest.fixture
def at_stubs(stubs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lstm_stubs:NAME-v0` can be made."""
    monkeypatch.syspath_prepend(str(stubs))


def train_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, resume: Path | None = None, **changes: Any
) -> ppo_lstm.Training:
    """Train in this process, as the runner would have it done, and return all of the state."""
    for name in ("checkpoints", "logs"):
        monkeypatch.setenv(f"RUNNER_{name.upper()}", str(folder / name))
    monkeypatch.setenv("RUNNER_PROGRESS", str(folder / "progress.jsonl"))
    monkeypatch.setenv("RUNNER_RESUME", str(resume or ""))
    folder.mkdir(parents=True, exist_ok=True)
    o = ppo_lstm.Options(**{**SMALL, **changes})
    return ppo_lstm.train(o, runtime.Run("ppo_lstm", device="cpu"))


def start_agent(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """The agent as a process of its own, with its folders below `folder`."""
    return subprocess.Popen(
        [sys.executable, str(AGENTS / "ppo_lstm.py"), *words],
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
    return sorted(path.name for path in (folder / "checkpoints").glob("*"))


def progress(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


def model(folder: Path, step: int) -> dict[str, Any]:
    path = folder / "checkpoints" / f"step-{step:09d}" / "model.pt"
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


# options


def test_defaults_are_those_of_the_recipe() -> None:
    recipe = tomllib.loads((AGENTS / "ppo_lstm.toml").read_text())
    assert recipe["params"] == asdict(ppo_lstm.Options())
    assert recipe["entry"] == "ppo_lstm.py"
    kinds = {f.name: type(f.default) for f in fields(ppo_lstm.Options)}
    assert {name: type(value) for name, value in recipe["params"].items()} == kinds


def test_numbers_out_of_range_are_all_named() -> None:
    with pytest.raises(options.Refused, match="(?s)rollout is 0.*gamma is 1.5") as refused:
        ppo_lstm.Options(rollout=0, gamma=1.5)
    assert len(str(refused.value).splitlines()) == 2


# collecting


class Playing:
    """A network that was trained for a moment, and environments to collect from with it."""

    def __init__(self, env: str, **changes: Any) -> None:
        torch.manual_seed(0)
        o = ppo_lstm.Options(**{**SMALL, **changes})
        facts = environments.look(env)
        sizes = (facts.numbers, o.hidden, facts.actions)
        self.learner = ppo_lstm.Learner(o, runtime.Run("ppo_lstm", device="cpu"), sizes)
        with torch.no_grad():  # chances that differ, and values that show
            self.learner.theta.add_(torch.randn_like(self.learner.theta), alpha=0.5)
        self.envs = Episodes(env, seed=1, index=range(o.num_envs), facts=facts)
        self.state = np.zeros((2, o.num_envs, o.hidden), np.float32)
        self.rng = np.random.default_rng(0)

    def collect(self, length: int = 25) -> ppo_lstm.Rollout:
        return ppo_lstm.collect(self.envs, self.learner.actor, self.state, self.rng, length)


@pytest.fixture
def by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("at_stubs", "by_hand")
@pytest.mark.parametrize("recurrent_", [True, False])
def test_learning_sees_what_acting_saw(recurrent_: bool) -> None:
    """Values and chances are those of the acting pass, in every rollout, whatever ended in it."""
    play = Playing("lstm_stubs:Counter-v0", recurrent=recurrent_)
    for _ in range(4):
        r = play.collect(24)
        assert r.ended[:-1].any() and not r.ended.all()
        p = recurrent.pack(r.ended, np.array([2, 0, 1]))
        begins = torch.from_numpy(r.state[:, p.start] * (p.start >= 0)[:, None])
        seen = torch.from_numpy(r.seen.reshape(-1, 2)[p.rows])
        with torch.no_grad():
            out, _ = play.learner.network(seen, begins[:, None].unbind(), torch.from_numpy(p.sizes))
        chances = torch.log_softmax(out[:, :-1], 1).numpy()
        assert np.abs(out[:, -1].numpy() - r.values.reshape(-1)[p.rows]).max() < 1e-5
        chosen = chances[np.arange(len(p.rows)), r.actions.reshape(-1)[p.rows]]
        assert np.abs(chosen - r.log_probs.reshape(-1)[p.rows]).max() < 1e-5
    assert (np.abs(play.state).max() > 0) == recurrent_


@pytest.mark.usefixtures("at_stubs", "by_hand")
def test_time_limits_have_a_value_and_real_ends_have_none() -> None:
    play = Playing("lstm_stubs:Counter-v0", num_envs=1)
    r = play.collect(26)
    ends = np.flatnonzero(r.ended[:, 0])
    assert ends.tolist() == [2, 9, 12, 19, 22]  # of 3 and 7 steps
    assert (r.reached[[2, 12, 22]] == 0).all()
    going = [t for t in range(25) if not r.ended[t, 0]]
    assert (r.reached[going, 0] == r.values[[t + 1 for t in going], 0]).all()
    # a whole long episode and what it reached, by torch
    for number, begin in ((2, 3), (4, 13)):
        seen = torch.tensor([[number / 10, t / 10] for t in range(8)])
        zero = torch.zeros(1, 1, 8)
        with torch.no_grad():
            out, _ = play.learner.network(seen, (zero, zero), torch.ones(8, dtype=torch.int64))
        assert np.abs(out[:7, -1].numpy() - r.values[begin : begin + 7, 0]).max() < 1e-5
        assert float(out[7, -1]) == pytest.approx(float(r.reached[begin + 6, 0]), abs=1e-5)
        assert abs(float(out[7, -1])) > 1e-3
    # the rollout's last step goes on: what it reached is looked at, and remembered only once
    last = play.state.copy()
    expected = play.learner.actor(play.envs.seen, last)[0, -1]
    assert r.reached[25, 0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.usefixtures("by_hand")
def test_actions_are_drawn_by_their_chances() -> None:
    play = Playing("memory_task:Recall-v0", num_envs=1, recurrent=False)
    with torch.no_grad():
        play.learner.network.heads.weight.zero_()
        play.learner.network.heads.bias.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4, 1.0]).log())
    r = play.collect(4000)
    shares = np.bincount(r.actions[:, 0], minlength=4) / 4000
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.03)
    assert np.exp(r.log_probs) == pytest.approx((r.actions + 1) / 10, abs=1e-5)


@pytest.mark.usefixtures("at_stubs")
def test_actions_are_counted_from_the_start_of_their_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = train_here(tmp_path, monkeypatch, env="lstm_stubs:FromOne-v0", steps=150, eval_every=0)
    assert {a for env in t.envs.envs for a in env.unwrapped.actions} == {1, 2, 3}


@pytest.mark.usefixtures("at_stubs")
@pytest.mark.parametrize("envs", [1, 4])
def test_the_steps_asked_for_are_made_and_the_last_rollout_is_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, envs: int
) -> None:
    t = train_here(tmp_path, monkeypatch, env="lstm_stubs:Counter-v0", num_envs=envs, steps=221,
                   eval_every=0, checkpoint_every=0)  # fmt: skip
    made = {env.unwrapped.made for env in t.envs.envs}
    assert made == {-(-221 // envs)} and t.step == envs * made.pop()
    assert names(tmp_path) == [f"step-{t.step:09d}"]


@pytest.mark.usefixtures("at_stubs")
@pytest.mark.parametrize(
    ("env", "text"),
    [("lstm_stubs:Smooth-v0", "only Discrete ones"), ("CartPol-v1", "did you mean 'CartPole-v1'")],
)
def test_what_it_cannot_learn_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, text: str
) -> None:
    with pytest.raises(options.Refused, match=text) as refused:
        train_here(tmp_path, monkeypatch, env=env)
    assert len(str(refused.value).splitlines()) == 1
    assert not (tmp_path / "checkpoints").exists()


# learning


def test_losses_are_those_of_the_paper() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]]))
    out = torch.cat([logits, torch.tensor([[1.0], [2.0], [3.0]])], 1)
    old = torch.log(torch.tensor([0.4, 0.5, 0.8]))  # ratios 1.25, 1.8 and 0.25
    known = torch.stack([torch.tensor([0.0, 0, 0]), old, torch.tensor([1.0, -1, -1]),
                         torch.tensor([1.0, 4, 3])])  # fmt: skip
    policy, value, entropy = ppo_lstm.ppo_losses(out, known, 0.2)
    # clipped to 1.2; not clipped, for it is bad; clipped to 0.8
    assert float(policy) == pytest.approx(-(1.2 - 1.8 - 0.8) / 3, abs=1e-6)
    assert float(value) == pytest.approx(0.5 * 4 / 3, abs=1e-6)
    known_entropy = -sum(p * np.log(p) for p in (0.5, 0.5, 0.9, 0.1, 0.2, 0.8)) / 3
    assert float(entropy) == pytest.approx(known_entropy, abs=1e-6)


def plain_update(play: Playing, r: ppo_lstm.Rollout, o: ppo_lstm.Options, lr: float) -> Any:
    """The parameters after one update from all of a rollout: a loop over steps, torch's Adam."""
    network = ppo_lstm.Network((2, 8, 3), recurrent=True, longest=2)
    network.load_state_dict(play.learner.network.state_dict())
    cell = torch.nn.LSTMCell(8, 8)
    for name, value in network.middle.named_parameters():
        setattr(cell, name.removesuffix("_l0"), value)
    h, c = torch.from_numpy(r.state)
    rows = []
    for seen, ended in zip(torch.from_numpy(r.seen), r.ended, strict=True):
        h, c = cell(torch.tanh(network.inner(seen)), (h, c))
        rows.append(network.heads(h))
        going = torch.from_numpy(~ended[:, None])
        h, c = h * going, c * going
    out = torch.stack(rows)
    gained = advantages.gae(r.rewards, r.values, r.reached, r.ended, gamma=o.gamma,
                            lam=o.gae_lambda)  # fmt: skip
    scaled = torch.from_numpy((gained - gained.mean()) / gained.std())
    chances = torch.distributions.Categorical(logits=out[..., :-1])
    ratio = (chances.log_prob(torch.from_numpy(r.actions)) - torch.from_numpy(r.log_probs)).exp()
    gain = torch.minimum(ratio * scaled, ratio.clamp(1 - o.clip, 1 + o.clip) * scaled).mean()
    value = torch.nn.functional.mse_loss(out[..., -1], torch.from_numpy(gained + r.values)) / 2
    loss = -gain + o.value_coef * value - o.entropy * chances.entropy().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), o.max_grad_norm)
    torch.optim.Adam(network.parameters(), lr=lr, eps=1e-5).step()
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()]), float(norm)


@pytest.mark.usefixtures("at_stubs", "by_hand")
@pytest.mark.parametrize("most", [0.1, 100.0])
def test_an_update_equals_plain_torch(most: float) -> None:
    play = Playing("lstm_stubs:Counter-v0", epochs=1, batch_size=3, max_grad_norm=most)
    play.collect()
    r, o = play.collect(), play.learner.o  # begins within episodes
    expected, norm = plain_update(play, r, o, straight(o.lr, o.lr_end, 150 / o.steps))
    assert 0.2 < norm < 50 and np.abs(r.state).max() > 0.01
    before = play.learner.theta.detach().clone()
    losses = play.learner.learn(r, play.rng, 150)
    assert losses["loss/gradient_norm"] == pytest.approx(norm, rel=1e-4)
    assert (before - expected).abs().max() > 1e-3
    assert (play.learner.theta - expected).abs().max() < 1e-5
    # Adam's first step is the same for a gradient of any length
    assert float(play.learner.theta.grad.norm()) == pytest.approx(min(norm, most), rel=1e-4)


@pytest.mark.usefixtures("at_stubs", "by_hand")
@pytest.mark.parametrize("env", ["lstm_stubs:Counter-v0", "memory_task:Recall64-v0"])
def test_gradients_are_equal_with_and_without_segments(env: str) -> None:
    gradients = []
    for segments in (0, 4):
        play = Playing(env, epochs=1, batch_size=3, checkpoint_segments=segments)
        play.collect()
        play.learner.learn(play.collect(), play.rng, 150)
        gradients.append(play.learner.theta.grad.clone())
    assert gradients[0].abs().max() > 1e-3
    assert (gradients[0] - gradients[1]).abs().max() < 1e-6


@pytest.mark.usefixtures("by_hand")
def test_units_remember_for_one_step_to_a_rollout_at_first() -> None:
    network = ppo_lstm.Network((3, 512, 2), recurrent=True, longest=1000)
    into, kept = network.middle.bias_ih_l0.detach()[:1024].view(2, 512)
    assert torch.equal(into, -kept) and kept.min() >= 0
    steps = kept.exp()
    assert steps.max() <= 999 and steps.mean() == pytest.approx(500, rel=0.15)


@pytest.mark.usefixtures("at_stubs")
@pytest.mark.parametrize(("recurrent_", "low", "high"), [(True, 0.95, 1.0), (False, 0.3, 0.7)])
def test_short_run_recalls_and_without_memory_guesses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recurrent_: bool, low: float, high: float
) -> None:
    t = train_here(tmp_path, monkeypatch, env="lstm_stubs:Brief-v0", steps=20_000, num_envs=16,
                   hidden=16, rollout=32, batch_size=4, epochs=4, lr=5e-3, checkpoint_every=0,
                   eval_every=0, log_every=5000, recurrent=recurrent_)  # fmt: skip
    found = evaluation.play_greedy(t.o.env, ppo_lstm.greedy(model(tmp_path, t.step)),
                                   episodes=200, seed=0, stream=2)  # fmt: skip
    assert low <= np.mean(found) <= high


# what comes out


def test_same_seed_same_bytes_and_another_seed_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, other = (
        train_here(tmp_path / name, monkeypatch, seed=seed).learner
        for name, seed in (("a", 5), ("b", 5), ("c", 6))
    )
    assert torch.equal(first.theta, second.theta)
    assert not torch.equal(first.theta, other.theta)


def test_evaluation_changes_nothing_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = train_here(tmp_path / "a", monkeypatch, eval_every=0)
    often = train_here(tmp_path / "b", monkeypatch, eval_every=75)
    assert torch.equal(without.learner.theta, often.learner.theta)
    assert without.rng.bit_generator.state == often.rng.bit_generator.state
    assert (without.envs.seen == often.envs.seen).all() and (without.state == often.state).all()


def test_checkpoint_is_complete_measured_and_readable_without_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = train_here(tmp_path, monkeypatch, eval_every=300)
    steps = [150, 300, 450, 600]
    assert names(tmp_path) == [f"step-{step:09d}" for step in steps]
    for step, measured in zip(steps, (False, True, False, True), strict=True):
        folder = tmp_path / "checkpoints" / f"step-{step:09d}"
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["format"] == 1 and manifest["step"] == step
        assert set(manifest["metrics"]) == ({"eval/return"} if measured else set())
        assert set(manifest["files"]) == {p.name for p in folder.iterdir()} - {"manifest.json"}
        for file, stored in manifest["files"].items():
            assert checkpoint.digest_file(folder / file) == checkpoint.StoredFile(**stored)
        state = model(tmp_path, step)
        assert (state["step"], state["env"], state["agent"]) == (step, t.o.env, "ppo_lstm")
        assert isinstance(state["rng"][0], str) and state["options"] == asdict(t.o)
    assert torch.equal(state["params"], t.learner.theta)
    assert (state["remembered"][0].numpy() == t.state).all() and np.abs(t.state).max() > 0
    # what the manifest says is what these very parameters reach
    again = evaluation.evaluate(t.run, t.o, ppo_lstm.greedy(state), step=t.step)
    assert manifest["metrics"] == again


def test_a_policy_remembers_its_episode_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_here(tmp_path, monkeypatch, eval_every=0)
    policy = ppo_lstm.greedy(model(tmp_path, 600))
    rows = np.random.default_rng(0).normal(size=(5, 3, 6)).astype(np.float32)
    policy.begin(3)
    for seen in rows:
        policy(seen)
    assert np.abs(policy.state).min() > 0
    policy.forget(1)
    assert (policy.state[:, 1] == 0).all() and np.abs(policy.state[:, [0, 2]]).min() > 0
    policy(rows[0])
    fresh = ppo_lstm.greedy(model(tmp_path, 600))
    fresh.begin(3)
    fresh(rows[0])
    same = np.abs(policy.state - fresh.state).max(axis=(0, 2)) < 1e-6
    assert same.tolist() == [False, True, False]


@pytest.mark.usefixtures("at_stubs")
@pytest.mark.parametrize("env", ["Broken", "Unseen"])
def test_not_a_number_from_the_environment_is_named_and_never_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str
) -> None:
    with pytest.raises(runtime.Fault, match="reward or observation.* 99") as fault:
        train_here(tmp_path, monkeypatch, env=f"lstm_stubs:{env}-v0", eval_every=0,
                   checkpoint_every=75)  # fmt: skip
    assert (fault.value.kind, fault.value.step) == ("nan", 3 * 33)
    assert names(tmp_path) == ["step-000000075"]


def test_diverging_parameters_end_the_run_before_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(runtime.Fault, match="nan|inf|not finite") as fault:
        train_here(tmp_path, monkeypatch, lr=1e38, lr_end=1e38, checkpoint_every=75, eval_every=0)
    assert fault.value.kind == "nan"
    for name in names(tmp_path):
        state = model(tmp_path, int(name.split("-")[1]))
        assert torch.isfinite(state["params"]).all()


def test_curves_carry_the_promised_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="left out: tensorboard: not installed",
    )
    train_here(tmp_path, monkeypatch)
    assert [p["step"] for p in progress(tmp_path)] == list(range(75, 601, 75))
    events = accumulator.EventAccumulator(str(tmp_path / "logs"), {"scalars": 0}).Reload()
    assert set(events.Tags()["scalars"]) >= {
        "reward", "episode_length", "eval/return", "loss/policy", "loss/value", "loss/entropy",
        "loss/gradient_norm", "perf/steps_per_s",
    }  # fmt: skip
    assert [e.step for e in events.Scalars("eval/return")] == [150, 300, 450, 600]
    assert {e.value for e in events.Scalars("episode_length")} == {16}


# going on


def final_files(folder: Path) -> dict[str, Any]:
    """Digests of the last checkpoint, but for the pickle, whose bytes may differ."""
    manifest = json.loads((folder / "checkpoints" / "step-000000600" / "manifest.json").read_text())
    return {n: f for n, f in manifest["files"].items() if not n.startswith("env-")}


@pytest.mark.parametrize(
    "changes", [{}, {"recurrent": False}, {"checkpoint_segments": 3}, {"env": "CartPole-v1"}]
)
def test_resumed_run_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
) -> None:  # fmt: skip
    whole = train_here(tmp_path / "a", monkeypatch, **changes)
    kept = tmp_path / "a" / "checkpoints" / "step-000000300"
    capsys.readouterr()
    again = train_here(tmp_path / "b", monkeypatch, resume=kept, **changes)
    assert "resumed from step 300" in capsys.readouterr().out.splitlines()[0]
    assert torch.equal(whole.learner.theta, again.learner.theta)
    assert (whole.state == again.state).all()
    assert final_files(tmp_path / "a") == final_files(tmp_path / "b")


def test_what_is_remembered_matters_to_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_here(tmp_path / "a", monkeypatch, eval_every=0)
    kept, read = tmp_path / "a" / "checkpoints" / "step-000000300", checkpoint.read_model

    def read_and_forget(folder: Path) -> dict[str, Any]:
        state = read(folder)
        assert state["remembered"][0].abs().max() > 0
        return {**state, "remembered": [torch.zeros_like(r) for r in state["remembered"]]}

    monkeypatch.setattr(checkpoint, "read_model", read_and_forget)
    again = train_here(tmp_path / "b", monkeypatch, resume=kept, eval_every=0)
    assert not torch.equal(whole.learner.theta, again.learner.theta)


@pytest.mark.usefixtures("at_stubs")
def test_new_episodes_after_a_resume_have_nothing_to_remember(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = "lstm_stubs:Unkept-v0"
    t = train_here(tmp_path, monkeypatch, env=env, steps=75, eval_every=0)
    assert not t.envs.exact and np.abs(t.state).max() > 0
    monkeypatch.setenv("RUNNER_RESUME", str(tmp_path / "checkpoints" / "step-000000150"))
    again = ppo_lstm.Training(t.o, runtime.Run("ppo_lstm", device="cpu"))
    again.load(tmp_path / "checkpoints" / "step-000000075")
    assert again.step == 75 and np.abs(again.state).max() == 0
    again.envs.close()


def test_a_finished_run_goes_on_to_more_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_here(tmp_path, monkeypatch, steps=310)  # ends within a rollout
    last = tmp_path / "checkpoints" / names(tmp_path)[-1]
    assert last.name == "step-000000312"
    again = train_here(tmp_path, monkeypatch, resume=last, steps=600)
    assert again.step == 600 and names(tmp_path)[-1] == "step-000000600"


def test_killed_at_a_random_moment_and_resumed_equals_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_here(tmp_path / "whole", monkeypatch)
    folder = tmp_path / "killed"
    folder.mkdir()
    options = words_of(SMALL)
    lines = random.randint(3, 7)
    with start_agent(folder, *options) as agent:
        assert agent.stdout
        for _ in range(lines + 1):
            agent.stdout.readline()
        agent.kill()
    newest = max(n for n in names(folder) if not n.endswith(".tmp"))
    agent = start_agent(folder, *options, RUNNER_RESUME=str(folder / "checkpoints" / newest))
    out, errors = agent.communicate(timeout=60)
    assert agent.returncode == 0, errors
    assert "resumed from step" in out.splitlines()[0]
    assert names(folder) == names(tmp_path / "whole")
    assert final_files(folder) == final_files(tmp_path / "whole"), f"killed after line {lines}"
    assert torch.equal(model(folder, 600)["params"], whole.learner.theta)


def test_stop_signal_saves_this_step_and_the_rest_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = {"steps": 7500, "checkpoint_every": 0, "eval_every": 0}
    whole = train_here(tmp_path / "whole", monkeypatch, **long)
    with start_agent(tmp_path, *words_of({**SMALL, **long})) as agent:
        assert agent.stdout
        for _ in range(3):
            agent.stdout.readline()
        agent.send_signal(signal.SIGTERM)
        out, errors = agent.communicate(timeout=60)
    assert agent.returncode == 143, errors
    (name,) = names(tmp_path)
    step = int(name.split("-")[1])
    assert 150 <= step < 7500 and f"stopped at step {step}" in out
    again = train_here(tmp_path, monkeypatch, resume=tmp_path / "checkpoints" / name, **long)
    assert torch.equal(whole.learner.theta, again.learner.theta)


@pytest.mark.parametrize("changes", [{"hidden": 9}, {"recurrent": False}, {"num_envs": 4}])
def test_resume_with_another_shape_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    train_here(tmp_path, monkeypatch, steps=75)
    ((name, value),) = changes.items()
    with pytest.raises(options.Refused, match=f"{name} is {value}, but .* was made with"):
        train_here(tmp_path, monkeypatch, resume=tmp_path / "checkpoints" / "step-000000075",
                   **changes)  # fmt: skip


# several ranks

TWO_RANKS = """
import json, sys
sys.path[:0] = [{agents!r}, {stubs!r}]
import checkpoint, ppo_lstm, options, runtime, torch
import numpy as np
words, rollout, out = json.loads(sys.argv[1])
run = runtime.Run("ppo_lstm", device="cpu")
t = ppo_lstm.train(options.read_options(ppo_lstm.Options, words), run)
trained = checkpoint.digest(t.learner.theta.detach())
r = np.load(rollout)
mine = [r[n][:, run.rank::2] for n in ppo_lstm.Rollout._fields]
torch.manual_seed(0)
o = ppo_lstm.Options(epochs=3, batch_size=4, hidden=8, rollout=25)
one = ppo_lstm.Learner(o, run, (2, 8, 3))
losses = one.learn(ppo_lstm.Rollout(*mine), np.random.default_rng(run.rank), 100)
np.save(out + str(run.rank) + ".npy", one.theta.detach().numpy())
made = [env.unwrapped.made for env in t.envs.envs]
print(json.dumps([trained, t.step, made, losses]))
runtime.close(run)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.usefixtures("at_stubs")
def test_two_ranks_share_environments_and_end_with_equal_bits(
    tmp_path: Path, stubs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    play = Playing("lstm_stubs:Counter-v0", num_envs=4)
    play.collect()
    r = play.collect()
    np.savez(tmp_path / "rollout.npz", **r._asdict())
    options = {**SMALL, "env": "lstm_stubs:Counter-v0", "steps": 401, "num_envs": 3,
               "eval_every": 200, "checkpoint_every": 200, "device": "cpu"}  # fmt: skip
    told = json.dumps([words_of(options), str(tmp_path / "rollout.npz"), str(tmp_path / "theta")])
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_RANKS.format(agents=str(AGENTS), stubs=str(stubs)), told],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                 "RUNNER_CHECKPOINTS": str(tmp_path / "checkpoints"),
                 "RUNNER_LOGS": str(tmp_path / "logs")},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    results = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    assert results[0][0] == results[1][0]
    made = sum(sum(made) for _, _, made, _ in results)
    assert made == results[0][1] == results[1][1] == 404  # four environments, two a rank
    assert names(tmp_path) == ["step-000000200", "step-000000400", "step-000000404"]
    manifest = json.loads((tmp_path / "checkpoints/step-000000404/manifest.json").read_text())
    assert {"env-rank0.bin", "env-rank1.bin", "model.pt"} == set(manifest["files"])
    one, two = model(tmp_path, 404)["remembered"]
    assert one.shape == two.shape == (2, 2, 8)
    assert len(list((tmp_path / "logs").glob("events*"))) == 1
    assert len(outputs[1][0].splitlines()) == 1  # only rank 0 tells of the training
    # half of the environments on each rank make the updates of all of them on one
    torch.manual_seed(0)
    o = ppo_lstm.Options(epochs=3, batch_size=4, hidden=8, rollout=25)
    alone = ppo_lstm.Learner(o, runtime.Run("ppo_lstm", device="cpu"), (2, 8, 3))
    losses = alone.learn(r, np.random.default_rng(0), 100)
    halves = [np.load(tmp_path / f"theta{rank}.npy") for rank in range(2)]
    assert (halves[0] == halves[1]).all() and results[0][3] == results[1][3]
    assert np.abs(halves[0] - alone.theta.detach().numpy()).max() < 1e-6
    assert results[0][3] == pytest.approx(losses, rel=1e-4, abs=1e-6)


# as a process


def test_processes_refuse_in_one_line_with_status_2(stubs: Path, tmp_path: Path) -> None:
    agent = start_agent(tmp_path, "env=lstm_stubs:Smooth-v0", PYTHONPATH=str(stubs),
                        RUNNER_PROGRESS=str(tmp_path / "progress.jsonl"))  # fmt: skip
    out, errors = agent.communicate(timeout=60)
    assert agent.returncode == 2 and out == ""
    assert errors.startswith("ppo_lstm: env 'lstm_stubs:Smooth-v0' has actions Box(")
    assert len(errors.splitlines()) == 1 and progress(tmp_path)[-1]["fault"] == "setup"


def test_by_hand_trains_and_evaluates_what_it_made(tmp_path: Path) -> None:
    agent = subprocess.run(
        [sys.executable, str(AGENTS / "ppo_lstm.py"), *words_of({**SMALL, "seed": -1})],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    first, second = agent.stdout.splitlines()[:2]
    assert int(first.split("seed ")[1].split()[0]) >= 0 and "envs 3" in first
    folder = Path(second.removeprefix("writing to "))
    assert folder.parent == tmp_path / "results" / "by-hand"
    shown = subprocess.run(
        [sys.executable, str(AGENTS / "ppo_lstm.py"), f"evaluate={folder}/checkpoints",
         "episodes=3"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert shown.startswith("step-000000") and "episodes 3  return " in shown
