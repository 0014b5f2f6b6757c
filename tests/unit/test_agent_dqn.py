"""The DQN agent: what it learns from, what it keeps, and that it comes out the same."""

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

import checkpoint  # noqa: E402
import dqn  # noqa: E402
import evaluation  # noqa: E402
import options  # noqa: E402
import replay  # noqa: E402
import runtime  # noqa: E402
from schedules import straight  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# small enough for a fifth of a second, and with every kind of event in it
SMALL = {
    "seed": 5, "steps": 600, "hidden": 16, "learning_starts": 100, "train_every": 50,
    "updates": 10, "batch_size": 32, "target_every": 100, "checkpoint_every": 200,
    "eval_every": 200, "eval_episodes": 2, "log_every": 100, "buffer_size": 300,
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
    (folder / "agent_stubs.py").write_text(
        """
import gymnasium as gym, numpy as np
from gymnasium.spaces import Box, Discrete

class Counter(gym.Env):
    '''Shows 100 * episode + step; episodes of 3 and 7 steps in turn, the long ones truncated.'''
    def __init__(self, start=0, broken_at=None):
        self.observation_space = Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = Discrete(3, start=start)
        self.episode = self.made = 0
        self.broken_at = broken_at
        self.actions = []
    def _seen(self):
        return np.array([100 * self.episode + self.t], np.float32)
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
        reward = float('nan') if self.made == self.broken_at else 1.0
        return self._seen(), reward, end and not long, end and long, {}

class NoEnd(Counter):
    def step(self, action):
        seen, reward, _, _, _ = super().step(action)
        return seen, reward, False, False, {}

class Picture(gym.Env):
    '''A stack of four pictures of one grey, 40 * episode + step; ends as Counter's.'''
    def __init__(self, side=36):
        self.observation_space = Box(0, 255, (side, side), np.uint8)
        self.action_space = Discrete(2)
        self.episode = 0
    def _seen(self):
        return np.full(self.observation_space.shape, 40 * (self.episode % 6) + self.t, np.uint8)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self._seen(), {}
    def step(self, action):
        self.t += 1
        long = self.episode % 2 == 0
        end = self.t == (7 if long else 3)
        return self._seen(), float(action), end and not long, end and long, {}

def stacked(side=36):
    return gym.wrappers.FrameStackObservation(Picture(side), 4)

class Right(Picture):
    '''Shows where it is right to go; a wrong way ends.'''
    def _seen(self):
        seen = np.zeros((36, 36), np.uint8)
        self.right = int(self.np_random.integers(2))
        seen[:, 18 * self.right : 18 * self.right + 18] = 255
        return seen
    def step(self, action):
        good = action == self.right
        self.t += 1
        return self._seen(), float(good), not good, self.t == 20, {}

gym.register('Picture-v0', stacked)
gym.register('Small-v0', lambda: stacked(35))
gym.register('Right-v0', lambda: gym.wrappers.FrameStackObservation(Right(), 4))
gym.register('Counter-v0', Counter)
gym.register('FromOne-v0', lambda: Counter(start=1))
gym.register('Broken-v0', lambda: Counter(broken_at=333))
gym.register('NoEnd-v0', NoEnd)
"""
    )
    return folder


def train_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, resume: Path | None = None, **changes: Any
) -> dqn.Training:
    """Train in this process, as the runner would have it done, and return all of the state."""
    for name in ("checkpoints", "logs"):
        monkeypatch.setenv(f"RUNNER_{name.upper()}", str(folder / name))
    monkeypatch.setenv("RUNNER_PROGRESS", str(folder / "progress.jsonl"))
    monkeypatch.setenv("RUNNER_RESUME", str(resume or ""))
    folder.mkdir(parents=True, exist_ok=True)
    return dqn.train(dqn.Options(**{**SMALL, **changes}), runtime.Run("dqn", device="cpu"))


def start_agent(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """The agent as a process of its own, with its folders below `folder`."""
    return subprocess.Popen(
        [sys.executable, str(AGENTS / "dqn.py"), *words],
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


def progress(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


# options


@pytest.mark.parametrize("name", ["dqn", "dqn_mountaincar", "dqn_atari"])
def test_recipes_have_every_option_and_one_the_defaults(name: str) -> None:
    recipe = tomllib.loads((AGENTS / f"{name}.toml").read_text())
    assert (recipe["params"] == asdict(dqn.Options())) == (name == "dqn")
    assert recipe["entry"] == "dqn.py"
    kinds = {f.name: type(f.default) for f in fields(dqn.Options)}
    assert {name: type(value) for name, value in recipe["params"].items()} == kinds
    dqn.Options(**recipe["params"])


def test_recipes_say_of_each_option_what_the_code_says() -> None:
    def said(line: str) -> str:
        return line.partition("  # ")[2].strip() or line.partition(" # ")[2].strip()

    code = (AGENTS / "dqn.py").read_text().splitlines()
    in_code = {line.split(":")[0].strip(): said(line) for line in code if ":" in line}
    for name in ("dqn", "dqn_mountaincar", "dqn_atari"):
        lines = (AGENTS / f"{name}.toml").read_text().partition("[params]\n")[2].splitlines()
        told = {line.split(" =")[0]: said(line) for line in lines}
        assert len(told) == len(fields(dqn.Options))
        assert {k: in_code[k] for k in told if k != "env"} == {
            k: v for k, v in told.items() if k != "env"
        }


def test_numbers_out_of_range_are_all_named() -> None:
    with pytest.raises(options.Refused, match="(?s)steps is 0.*gamma is 1.5") as refused:
        dqn.Options(steps=0, gamma=1.5)
    assert len(str(refused.value).splitlines()) == 2


@pytest.mark.parametrize("envs", [1, 4])
def test_exploration_reaches_its_end_at_the_given_share_of_all_steps(envs: int) -> None:
    o = dqn.Options(steps=1000, eps_start=1.0, eps_end=0.05, eps_fraction=0.5, num_envs=envs)
    assert dqn.epsilon_at(0, o) == 1.0
    assert dqn.epsilon_at(250, o) == pytest.approx(0.525)
    assert dqn.epsilon_at(500, o) == pytest.approx(0.05)
    assert dqn.epsilon_at(1000, o) == pytest.approx(0.05)


# collecting


def test_target_stops_at_a_real_end_and_not_at_a_time_limit() -> None:
    memory = replay.Windows(10, 1, envs=2, n_step=1, gamma=0.5)
    for i, (terminated, truncated) in enumerate([(True, False), (False, True)]):
        memory.begin(i, np.zeros(1, np.float32), 0)
        memory.end(i, np.ones(1, np.float32), 1.0, terminated, truncated)
    batch = replay.as_batch(torch.from_numpy(memory.ring.rows[:2]), 1)
    value = torch.tensor([8.0, 8.0])
    assert dqn.td_target(batch.reward, batch.discount, value).tolist() == [1.0, 5.0]


def test_target_of_three_steps_is_known() -> None:
    memory = replay.Windows(10, 1, envs=1, n_step=3, gamma=0.5)
    for t, reward in enumerate([1.0, 2.0, 4.0]):
        memory.begin(0, np.full(1, t, np.float32), t)
        memory.end(0, np.full(1, t + 1, np.float32), reward, False, False)
    assert memory.ring.count == 1
    batch = replay.as_batch(torch.from_numpy(memory.ring.rows[:1]), 1)
    assert [b.item() for b in (batch.seen, batch.after, batch.choice)] == [0, 3, 0]
    assert dqn.td_target(batch.reward, batch.discount, torch.tensor([8.0])).tolist() == [4.0]


@pytest.mark.parametrize("envs", [1, 3])
def test_no_stored_transition_crosses_an_episode(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, envs: int
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    t = train_here(tmp_path, monkeypatch, env="agent_stubs:Counter-v0", num_envs=envs,
                   buffer_size=50, eval_every=0)  # fmt: skip
    rows = t.memory.ring.rows
    assert t.memory.ring.count == 600 and len(rows) == 50
    assert (rows[:, 1] == rows[:, 0] + 1).all()
    # only episodes of three steps end for real; the seventh step of the others is a time limit
    odd = rows[:, 1] // 100 % 2 == 1
    ended = odd & (rows[:, 1] % 100 == 3)
    assert ended.any() and (rows[:, -1] == np.where(ended, 0, np.float32(0.99))).all()
    assert (rows[:, 1] % 100 == 7).any()


def test_actions_are_counted_from_the_start_of_their_space(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    t = train_here(tmp_path, monkeypatch, env="agent_stubs:FromOne-v0", eval_every=0)
    assert set(t.envs.envs[0].unwrapped.actions) == {1, 2, 3}
    assert set(t.memory.ring.rows[:, -3]) == {0, 1, 2}


@pytest.mark.parametrize("envs", [1, 4, 30, 60])
def test_updates_do_not_depend_on_how_many_environments_step_at_once(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, envs: int
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    t = train_here(tmp_path, monkeypatch, env="agent_stubs:Counter-v0", num_envs=envs, steps=600,
                   train_every=20, updates=2, learning_starts=0, eval_every=0)  # fmt: skip
    assert t.learner.updates == 2 * 600 // 20


@pytest.mark.parametrize("envs", [1, 4, 7])
def test_exactly_the_steps_asked_for_are_made(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, envs: int
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    t = train_here(tmp_path, monkeypatch, env="agent_stubs:Counter-v0", num_envs=envs, steps=405,
                   eval_every=0)  # fmt: skip
    assert t.step == sum(env.unwrapped.made for env in t.envs.envs) == 405
    assert names(tmp_path)[-1] == "step-000000405"


# learning


def learner(**changes: Any) -> dqn.Learner:
    torch.manual_seed(0)
    o = dqn.Options(**{**SMALL, **changes})
    return dqn.Learner(o, runtime.Run("dqn", device="cpu"), (4, 16, 16, 2))


def some_rows(updates: int, batch: int) -> Any:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(updates, batch, 11)).astype(np.float32)
    rows[..., -3] = rng.integers(2, size=(updates, batch))
    rows[..., -1] = np.where(rng.random((updates, batch)) < 0.2, 0, np.float32(0.99))
    return rows


def batch_of(rows: Any) -> replay.Batch:
    return replay.as_batch(torch.from_numpy(rows), 4)


def test_acting_in_numpy_agrees_with_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = learner()
    one.learn(batch_of(some_rows(3, 8)), 200)
    seen = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    values = one.online(torch.from_numpy(seen)).detach().numpy()
    assert np.abs(one.policy.values(seen) - values).max() < 1e-5
    assert (one.policy(seen) == values.argmax(1)).all()


def test_updates_equal_plain_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, rows = learner(max_grad_norm=2.0), some_rows(5, 32)
    rows[2:, :, 9] *= 20  # gradients of different lengths, so that clipping shows through Adam
    with torch.no_grad():
        one.theta.add_(torch.randn_like(one.theta), alpha=0.5)  # so that double estimates show
    plain, target = dqn.q_network((4, 16, 16, 2)), dqn.q_network((4, 16, 16, 2))
    plain.load_state_dict(one.online.state_dict())
    target.load_state_dict(one.target.state_dict())
    one.learn(batch_of(rows), 50)
    optimizer = torch.optim.Adam(
        plain.parameters(), lr=straight(one.o.lr, one.o.lr_end, 50 / one.o.steps)
    )
    norms: list[float] = []
    for batch in torch.from_numpy(rows):
        with torch.no_grad():
            best = plain(batch[:, 4:8]).argmax(1, keepdim=True)
            value = target(batch[:, 4:8]).gather(1, best)[:, 0]
            goal = batch[:, 9] + batch[:, 10] * value
        optimizer.zero_grad()
        predicted = plain(batch[:, :4]).gather(1, batch[:, 8:9].long())[:, 0]
        torch.nn.functional.smooth_l1_loss(predicted, goal).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(plain.parameters(), 2.0)))
        optimizer.step()
    assert min(norms) < 1.8 and max(norms) > 2.2 and 0.2 < best.float().mean() < 0.8
    expected = torch.cat([p.detach().reshape(-1) for p in plain.parameters()])
    assert (one.theta - expected).abs().max() < 1e-5


def test_target_network_is_a_copy_renewed_at_its_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = learner(target_every=100)
    before = one.theta_target.detach().clone()
    one.learn(batch_of(some_rows(3, 8)), 50)
    assert torch.equal(one.theta_target, before) and not torch.equal(one.theta, before)
    trained = one.theta.detach().clone()
    one.learn(batch_of(some_rows(3, 8)), 100)
    assert torch.equal(one.theta_target, trained) and not torch.equal(one.theta, trained)


def test_short_run_reaches_a_known_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_here(tmp_path, monkeypatch, steps=6000, hidden=64, batch_size=64, learning_starts=500,
               train_every=64, updates=32, target_every=256, lr=2e-3, eps_fraction=0.3,
               buffer_size=6000, checkpoint_every=0, eval_every=1000, eval_episodes=10)  # fmt: skip
    returns = [p["metrics"]["eval/return"] for p in progress(tmp_path)
               if "eval/return" in p.get("metrics", {})]  # fmt: skip
    assert max(returns) >= 150  # an untrained policy gets about 10, a random one about 22


# what comes out


def test_same_seed_same_bytes_and_another_seed_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, other = (
        train_here(tmp_path / name, monkeypatch, seed=seed).learner
        for name, seed in (("a", 5), ("b", 5), ("c", 6))
    )
    assert torch.equal(first.theta, second.theta)
    assert torch.equal(first.theta_average, second.theta_average)
    assert not torch.equal(first.theta, other.theta)


def test_evaluation_changes_nothing_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = train_here(tmp_path / "a", monkeypatch, eval_every=0)
    often = train_here(tmp_path / "b", monkeypatch, eval_every=50)
    assert torch.equal(without.learner.theta, often.learner.theta)
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
        assert manifest["format"] == 1 and name.endswith(f"{manifest['step']:09d}")
        assert set(manifest["metrics"]) == ({"eval/return"} if measured else set())
        assert set(manifest["files"]) == {p.name for p in folder.iterdir()} - {"manifest.json"}
        for file, stored in manifest["files"].items():
            assert checkpoint.digest_file(folder / file) == checkpoint.StoredFile(**stored)
        state = torch.load(folder / "model.pt", weights_only=True)
        assert state["step"] == manifest["step"] and state["env"] == "CartPole-v1"
        assert isinstance(state["rng"][0], str) and state["options"] == asdict(t.o)
    assert torch.equal(state["params"], t.learner.theta)
    assert torch.equal(state["average"], t.learner.theta_average)
    # what the manifest says is what these very parameters reach
    again = evaluation.evaluate(
        t.run, t.o, dqn.Policy(state["average"], state["sizes"]), step=t.step
    )
    assert manifest["metrics"] == again


def test_final_state_is_saved_whatever_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_here(tmp_path, monkeypatch, steps=350, checkpoint_every=0)
    assert names(tmp_path) == ["step-000000350"]


def test_not_a_number_from_the_environment_is_named_and_never_kept(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    with pytest.raises(runtime.Fault, match="reward or observation.* 333") as fault:
        train_here(tmp_path, monkeypatch, env="agent_stubs:Broken-v0", eval_every=0)
    assert (fault.value.kind, fault.value.step) == ("nan", 333)
    assert names(tmp_path) == ["step-000000200"]


def test_diverging_parameters_end_the_run_before_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(runtime.Fault, match="became (nan|inf)") as fault:
        train_here(tmp_path, monkeypatch, lr=1e30, lr_end=1e30, checkpoint_every=25)
    assert fault.value.kind == "nan"
    for name in names(tmp_path):
        state = torch.load(tmp_path / "checkpoints" / name / "model.pt", weights_only=True)
        assert torch.isfinite(state["params"]).all() and torch.isfinite(state["average"]).all()


def test_progress_and_curves_are_counted_in_steps(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    train_here(tmp_path, monkeypatch, env="agent_stubs:NoEnd-v0", eval_every=0)
    assert [p["step"] for p in progress(tmp_path)] == [100, 200, 300, 400, 500, 600]
    assert "loss/td" in progress(tmp_path)[-1]["metrics"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("dqn  device cpu, 1 thread  env agent_stubs:NoEnd-v0  seed 5")
    assert [line.split()[1] for line in lines[1:]] == ["100", "200", "300", "400", "500", "600"]


def test_curves_carry_the_promised_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="left out: tensorboard: not installed",
    )
    train_here(tmp_path, monkeypatch)
    events = accumulator.EventAccumulator(str(tmp_path / "logs"), {"scalars": 0}).Reload()
    assert set(events.Tags()["scalars"]) >= {
        "reward", "episode_length", "eval/return", "loss/td", "loss/gradient_norm",
        "perf/steps_per_s",
    }  # fmt: skip
    assert [e.step for e in events.Scalars("eval/return")] == [200, 400, 600]
    lengths = [e.value for e in events.Scalars("episode_length")]
    assert lengths == [e.value for e in events.Scalars("reward")]  # one a step in CartPole
    assert [e.step for e in events.Scalars("episode_length")] == np.cumsum(lengths).tolist()


# going on


def final_files(folder: Path) -> dict[str, Any]:
    """Digests of the last checkpoint, but for the pickle, whose bytes may differ."""
    manifest = json.loads((folder / "checkpoints" / "step-000000600" / "manifest.json").read_text())
    return {n: f for n, f in manifest["files"].items() if not n.startswith("env-")}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(("envs", "n_step"), [(1, 1), (3, 1), (3, 4)])
def test_resumed_run_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    which: int, envs: int, n_step: int,
) -> None:  # fmt: skip
    whole = train_here(tmp_path / "a", monkeypatch, num_envs=envs, n_step=n_step)
    kept = tmp_path / "a" / "checkpoints" / names(tmp_path / "a")[which]
    capsys.readouterr()
    again = train_here(tmp_path / "b", monkeypatch, resume=kept, num_envs=envs, n_step=n_step)
    step = int(kept.name.split("-")[1])
    assert f"resumed from step {step}" in capsys.readouterr().out.splitlines()[0]
    assert torch.equal(whole.learner.theta, again.learner.theta)
    assert (whole.memory.ring.rows == again.memory.ring.rows).all()
    assert final_files(tmp_path / "a") == final_files(tmp_path / "b")


@pytest.mark.parametrize("n_step", [1, 3])
def test_pictures_are_learned_from_and_resumed_with_the_same_bytes(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_step: int
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    changes: dict[str, Any] = {
        "env": "agent_stubs:Picture-v0", "num_envs": 2, "n_step": n_step, "updates": 1,
        "train_every": 25, "batch_size": 8, "buffer_size": 90, "eval_every": 0,
    }  # fmt: skip
    whole = train_here(tmp_path / "a", monkeypatch, **changes)
    kept = tmp_path / "a" / "checkpoints" / "step-000000400"
    again = train_here(tmp_path / "b", monkeypatch, resume=kept, **changes)
    assert torch.equal(whole.learner.theta, again.learner.theta)
    assert final_files(tmp_path / "a") == final_files(tmp_path / "b")
    state = checkpoint.read_model(tmp_path / "a" / "checkpoints" / "step-000000600")
    assert state["sizes"] == [4, 36, 36, 16, 2]
    seen = whole.envs.seen
    values = whole.learner.online(torch.from_numpy(seen)).detach().numpy()
    assert (whole.learner.policy(seen) == values.argmax(1)).all()
    assert dqn.greedy(state)(seen).shape == (2,)


def test_short_run_on_pictures_reaches_a_known_return(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    train_here(tmp_path, monkeypatch, env="agent_stubs:Right-v0", num_envs=2, steps=1000, hidden=32,
               learning_starts=200, train_every=20, updates=4, target_every=20, lr=2e-3,
               average=0.9, gamma=0.5, eps_fraction=0.5, checkpoint_every=0, eval_every=1000,
               eval_episodes=5)  # fmt: skip
    returns = progress(tmp_path)[-1]["metrics"]["eval/return"]
    assert returns >= 15  # of 20; by chance about 1


def test_pictures_too_small_for_the_network_are_refused(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(stubs))
    with pytest.raises(options.Refused, match=r"observations \(4, 35, 35\).*at least 36"):
        train_here(tmp_path, monkeypatch, env="agent_stubs:Small-v0")


def test_network_of_pictures_is_the_published_one() -> None:
    network = dqn.q_network((4, 84, 84, 512, 6))
    count = sum(p.numel() for p in network.parameters())
    # 32 of 8×8 on 4 frames, 64 of 4×4, 64 of 3×3, 512 on 7×7×64, one value an action
    assert count == 8_224 + 32_832 + 36_928 + (7 * 7 * 64 + 1) * 512 + 513 * 6
    white, black = (torch.full((1, 4, 84, 84), v, dtype=torch.uint8) for v in (255, 0))
    assert torch.equal(network[0](white), torch.ones(1, 4, 84, 84))
    assert network(torch.cat((white, black))).shape == (2, 6)


def test_killed_at_a_random_moment_and_resumed_equals_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_here(tmp_path / "whole", monkeypatch, log_every=20)
    folder = tmp_path / "killed"
    folder.mkdir()
    options = words_of({**SMALL, "log_every": 20})
    lines = random.randint(11, 28)
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
    state = torch.load(folder / "checkpoints" / "step-000000600" / "model.pt", weights_only=True)
    assert torch.equal(state["params"], whole.learner.theta)


def test_stop_signal_saves_this_step_and_the_rest_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_here(tmp_path / "whole", monkeypatch, steps=6000, checkpoint_every=0)
    options = {**SMALL, "steps": 6000, "checkpoint_every": 0}
    with start_agent(tmp_path, *words_of(options)) as agent:
        assert agent.stdout
        for _ in range(3):
            agent.stdout.readline()
        agent.send_signal(signal.SIGTERM)
        out, errors = agent.communicate(timeout=60)
    assert agent.returncode == 143, errors
    (name,) = names(tmp_path)
    step = int(name.split("-")[1])
    assert 200 <= step < 6000 and f"stopped at step {step}" in out
    again = train_here(tmp_path, monkeypatch, resume=tmp_path / "checkpoints" / name,
                       steps=6000, checkpoint_every=0)  # fmt: skip
    assert torch.equal(whole.learner.theta, again.learner.theta)


def test_finished_run_ends_at_once_when_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_here(tmp_path, monkeypatch)
    last = tmp_path / "checkpoints" / "step-000000600"
    again = train_here(tmp_path, monkeypatch, resume=last)
    assert again.step == 600 and torch.equal(whole.learner.theta, again.learner.theta)


def test_resume_with_another_shape_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_here(tmp_path, monkeypatch, steps=200)
    with pytest.raises(options.Refused, match="hidden is 17, but .* was made with 16"):
        train_here(tmp_path, monkeypatch, hidden=17,
                   resume=tmp_path / "checkpoints" / "step-000000200")  # fmt: skip


def test_later_points_of_a_killed_attempt_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="left out: tensorboard: not installed",
    )
    train_here(tmp_path, monkeypatch)
    train_here(tmp_path, monkeypatch, resume=tmp_path / "checkpoints" / "step-000000200")
    events = accumulator.EventAccumulator(str(tmp_path / "logs"), {"scalars": 0}).Reload()
    steps = [e.step for e in events.Scalars("loss/td")]
    assert steps == list(range(100, 601, 50))


# several ranks

TWO_RANKS = """
import json, os, sys
sys.path.insert(0, {agents!r})
import checkpoint, dqn, options, replay, runtime, torch
import numpy as np
words, rows, out = json.loads(sys.argv[1])
run = runtime.Run("dqn", device="cpu")
t = dqn.train(options.read_options(dqn.Options, words), run)
trained = checkpoint.digest(t.learner.theta.detach())
torch.manual_seed(0)
one = dqn.Learner(t.o, run, (4, 16, 16, 2))
one.learn(replay.as_batch(torch.from_numpy(np.load(rows)[:, run.rank::2]), 4), 50)
np.save(out + str(run.rank) + ".npy", one.theta.detach().numpy())
print(json.dumps([trained, t.memory.ring.count, t.step]))
runtime.close(run)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_two_ranks_share_steps_and_end_with_equal_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = some_rows(1, 32)
    np.save(tmp_path / "rows.npy", rows)
    options = {**SMALL, "steps": 401, "num_envs": 4, "device": "cpu"}
    told = json.dumps([words_of(options), str(tmp_path / "rows.npy"), str(tmp_path / "theta")])
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_RANKS.format(agents=str(AGENTS)), told],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                 "RUNNER_CHECKPOINTS": str(tmp_path / "checkpoints"),
                 "RUNNER_LOGS": str(tmp_path / "logs")},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    results = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    assert results[0][0] == results[1][0]
    assert sum(count for _, count, _ in results) == 401 and results[0][2] == results[1][2] == 401
    assert names(tmp_path) == ["step-000000200", "step-000000400", "step-000000401"]
    manifest = json.loads((tmp_path / "checkpoints/step-000000401/manifest.json").read_text())
    assert {"env-rank0.bin", "env-rank1.bin", "model.pt"} < set(manifest["files"])
    assert len(list((tmp_path / "logs").glob("events*"))) == 1
    assert len(outputs[1][0].splitlines()) == 1  # only rank 0 tells of the training
    # half a batch on each rank makes the update of the whole batch on one
    halves = [np.load(tmp_path / f"theta{rank}.npy") for rank in range(2)]
    one = learner(**{k: v for k, v in options.items() if k not in SMALL})
    one.o = dqn.Options(**options)
    one.learn(batch_of(rows), 50)
    assert (halves[0] == halves[1]).all()
    assert np.abs(halves[0] - one.theta.detach().numpy()).max() < 1e-6


# as a process


def test_one_thread_unless_the_user_says_more() -> None:
    code = "import dqn, torch; torch.ones(999, 999) @ torch.ones(999, 999); " + (
        "dqn.np.ones((999, 999)) @ dqn.np.ones((999, 999)); "
        "print(open('/proc/self/status').read().split('Threads:')[1].split()[0])"
    )
    env = {n: v for n, v in os.environ.items() if not n.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], cwd=AGENTS, env=env, timeout=60,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == "1"


def test_processes_refuse_in_one_line_with_status_2(tmp_path: Path) -> None:
    params = tmp_path / "params.json"
    params.write_text(json.dumps({"steps": "many", "env": "CartPole-v1"}))
    cases = {
        "env 'CartPol-v1' cannot be made (did you mean 'CartPole-v1'": ["env=CartPol-v1"],
        "steps is 'many'; it must be a whole number": [],
    }
    for text, words in cases.items():
        told = {"RUNNER_CHECKPOINTS": ""} if words else {"RUNNER_PARAMS": str(params)}
        told["RUNNER_PROGRESS"] = str(tmp_path / "progress.jsonl")
        agent = start_agent(tmp_path, *words, **told)
        out, errors = agent.communicate(timeout=60)
        assert agent.returncode == 2 and out == ""
        assert errors.startswith(f"dqn: {text}") and len(errors.splitlines()) == 1
        assert progress(tmp_path)[-1] == {"fault": "setup", "text": errors.strip()[len("dqn: ") :]}
    assert not list(tmp_path.glob("results/by-hand/*")) and not (tmp_path / "checkpoints").exists()


def test_a_fault_is_written_down_before_status_1(stubs: Path, tmp_path: Path) -> None:
    options = {**SMALL, "env": "agent_stubs:Broken-v0", "eval_every": 0}
    agent = start_agent(tmp_path, *words_of(options), PYTHONPATH=str(stubs),
                        RUNNER_PROGRESS=str(tmp_path / "progress.jsonl"))  # fmt: skip
    _, errors = agent.communicate(timeout=60)
    assert agent.returncode == 1 and errors.startswith("rank 0: nan: ")
    assert len(errors.splitlines()) == 1
    fault = progress(tmp_path)[-1]
    assert (fault["fault"], fault["step"]) == ("nan", 333)


def test_by_hand_trains_and_evaluates_what_it_made(tmp_path: Path) -> None:
    agent = subprocess.run(
        [sys.executable, str(AGENTS / "dqn.py"), *words_of({**SMALL, "seed": -1})],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    first, second = agent.stdout.splitlines()[:2]
    assert int(first.split("seed ")[1].split()[0]) >= 0
    folder = Path(second.removeprefix("writing to "))
    assert folder.parent == tmp_path / "results" / "by-hand"
    shown = subprocess.run(
        [sys.executable, str(AGENTS / "dqn.py"), f"evaluate={folder}/checkpoints", "episodes=3"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert shown.startswith("step-000000") and "episodes 3  return " in shown


def test_replay_of_the_wrong_size_is_not_taken(tmp_path: Path) -> None:
    ring = replay.Replay(10, 3)
    with pytest.raises(options.Refused, match="5 transitions .* are missing"):
        ring.load(tmp_path, {}, 5)
