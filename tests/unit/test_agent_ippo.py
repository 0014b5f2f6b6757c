"""PPO for teams: what each agent learns from, what is kept, and that it comes out the same."""

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

from tests.helpers.agents import AGENTS, progress  # noqa: E402

# isort: split
import checkpoint  # noqa: E402
import evaluation  # noqa: E402
import ippo  # noqa: E402
import options  # noqa: E402
import parameters  # noqa: E402
import runtime  # noqa: E402
import team_environments  # noqa: E402
import teams  # noqa: E402
from schedules import straight  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HELPERS = AGENTS.parent / "tests" / "helpers"

# small enough for a fifth of a second; agents die, and rollouts begin in the middle of episodes
SMALL = {
    "env": "team_stubs:Mortal", "seed": 5, "steps": 600, "num_envs": 4, "hidden": 16,
    "rollout": 13, "batch_size": 50, "epochs": 2, "lr_end": 1e-4, "checkpoint_every": 200,
    "eval_every": 200, "eval_episodes": 2, "log_every": 100,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _undisturbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of an outer run, the stubs at hand, and pytest's own signal handlers after."""
    for name in [n for n in os.environ if n.startswith("RUNNER_")]:
        monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(HELPERS))
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def train_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, resume: Path | None = None, **changes: Any
) -> ippo.Training:
    """Train in this process, as the runner would have it done, and return all of the state."""
    for name in ("checkpoints", "logs"):
        monkeypatch.setenv(f"RUNNER_{name.upper()}", str(folder / name))
    monkeypatch.setenv("RUNNER_PROGRESS", str(folder / "progress.jsonl"))
    monkeypatch.setenv("RUNNER_RESUME", str(resume or ""))
    folder.mkdir(parents=True, exist_ok=True)
    return ippo.train(ippo.Options(**{**SMALL, **changes}), runtime.Run("ippo", device="cpu"))


def start_agent(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """The agent as a process of its own, with its folders below `folder`."""
    told = {"RUNNER_CHECKPOINTS": str(folder / "checkpoints"), "RUNNER_LOGS": str(folder / "logs")}
    return subprocess.Popen(
        [sys.executable, str(AGENTS / "ippo.py"), *words],
        env={**os.environ, **told, **variables}, cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def words_of(options: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in options.items()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("*"))


# options


def test_defaults_are_those_of_the_recipe() -> None:
    recipe = tomllib.loads((AGENTS / "ippo.toml").read_text())
    assert recipe["params"] == asdict(ippo.Options())
    assert recipe["entry"] == "ippo.py"
    kinds = {f.name: type(f.default) for f in fields(ippo.Options)}
    assert {name: type(value) for name, value in recipe["params"].items()} == kinds


def test_numbers_out_of_range_are_all_named() -> None:
    with pytest.raises(options.Refused, match="(?s)steps is 0.*gamma is 1.5") as refused:
        ippo.Options(steps=0, gamma=1.5)
    assert len(str(refused.value).splitlines()) == 2


# collecting


def rollout_of(name: str, n: int, length: int, last: int | None = None) -> ippo.Rollout:
    facts = team_environments.look(f"team_stubs:{name}")
    envs = teams.Teams(f"team_stubs:{name}", seed=0, index=range(n), facts=facts)
    one = ippo.Network((facts.width, 8, 8, 3))
    policy = ippo.Policy(parameters.flatten_parameters(one).detach(), (facts.width, 8, 8, 3))
    rng = np.random.default_rng(0)
    return ippo.collect(envs, policy, rng, length, last=n if last is None else last)


def test_a_rollout_holds_what_was_acted_on_and_what_time_limits_reached() -> None:
    r = rollout_of("Counter", 2, 12)
    shown = [100, 101, 102, 103, 104, 200, 201, 202, 203, 204, 300, 301, 302]
    assert (r.seen[:, :, 0, 0] == np.array(shown)[:, None]).all()
    dead = np.array([0, 0, 0, 1, 1] * 2 + [0, 0], bool)
    assert (r.acting[:, :, 1] == ~dead[:, None]).all() and r.acting[:, :, [0, 2]].all()
    assert np.argwhere(r.ended[:, 0, 0]).ravel().tolist() == [4, 9]
    assert np.argwhere(r.ended[:, 0, 1]).ravel().tolist() == [2, 3, 4, 7, 8, 9]
    # the first episode ends for real; in the second the second agent does so, too
    assert r.limits.tolist() == [[9, 0, 0], [9, 0, 2], [9, 1, 0], [9, 1, 2]]
    assert r.limits_seen[:, 0].tolist() == [205.0] * 4
    assert (r.limits_seen[:, 4:] == np.eye(3)[[0, 2, 0, 2]]).all()


def test_who_is_not_stepped_at_the_very_end_gives_no_data() -> None:
    r = rollout_of("Counter", 3, 4, last=1)
    assert r.acting[:3, 1:, 0].all() and not r.acting[3, 1:].any() and r.acting[3, 0, 0]
    assert (r.seen[3, 1:, 0, 0] == 103).all() and (r.seen[4, :, 0, 0] == [104, 103, 103]).all()


@pytest.mark.parametrize("envs", [1, 4, 7])
def test_exactly_the_steps_asked_for_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, envs: int
) -> None:
    t = train_here(tmp_path, monkeypatch, num_envs=envs, steps=405, eval_every=0)
    assert t.step == sum(team.env.made for team in t.envs.teams) == 405
    assert names(tmp_path)[-1] == "step-000000405"


# learning


def learner(**changes: Any) -> ippo.Learner:
    torch.manual_seed(0)
    o = ippo.Options(**{**SMALL, **changes})
    return ippo.Learner(o, runtime.Run("ippo", device="cpu"), (7, 16, 16, 3))


def some_rows(n: int) -> ippo.Rows:
    rng = np.random.default_rng(0)
    floats = [rng.normal(size=n).astype(np.float32) for _ in range(2)]
    old = np.log(rng.uniform(0.2, 0.5, n)).astype(np.float32)
    seen = rng.normal(size=(n, 7)).astype(np.float32)
    return ippo.Rows(seen, rng.integers(3, size=n), old, *floats)


def test_acting_in_numpy_agrees_with_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = learner()
    one.learn(some_rows(60), np.random.default_rng(0), 200)
    seen = np.random.default_rng(1).normal(size=(50, 3, 7)).astype(np.float32)
    scores = one.policy.scores(seen)
    log_probs, _ = one.network(torch.from_numpy(seen.reshape(150, 7)))
    ours = torch.log_softmax(torch.from_numpy(scores.reshape(150, 3)), 1)
    assert (ours - log_probs).abs().max() < 1e-5
    assert (one.policy(seen) == log_probs.argmax(1).reshape(50, 3).numpy()).all()


@pytest.mark.parametrize("value", [0.0, 8.0])
def test_advantages_are_each_agents_own_and_stop_where_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    monkeypatch.chdir(tmp_path)
    one = learner(gamma=0.5, gae_lambda=1.0, normalise_values=False)
    with torch.no_grad():  # everything is worth the same
        one.network.value[-1].weight.zero_(), one.network.value[-1].bias.fill_(value)
    r = rollout_of("Counter", 1, 12)
    rows = one.weigh(r)
    v = value
    # paid 1, 2, 3, 4, 5: to a real end, to a time limit, and to the end of the rollout
    real = [1 + 2 / 2 + 3 / 4 + 4 / 8 + 5 / 16, 2 + 3 / 2 + 4 / 4 + 5 / 8, 3 + 2 + 5 / 4, 6.5, 5]
    limit = [x + v / 2 ** (5 - t) for t, x in enumerate(real)]
    rest = [1 + 2 / 2 + v / 4, 2 + v / 2]
    died = [1 + 2 / 2 + 3 / 4, 2 + 3 / 2, 3]
    expected = np.full((12, 3), np.nan)
    expected[:, 0] = expected[:, 2] = real + limit + rest
    expected[[0, 1, 2, 5, 6, 7, 10, 11], 1] = died + died + rest
    assert rows.goals == pytest.approx(expected[~np.isnan(expected)])
    assert len(rows.goals) == 2 * 12 + 8
    assert abs(rows.advantages.mean()) < 1e-6 and rows.advantages.std() == pytest.approx(1, 1e-4)


def test_who_joins_in_mid_episode_is_learned_from_since_then_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one, v = learner(gamma=0.5, gae_lambda=1.0, normalise_values=False), 8.0
    with torch.no_grad():  # everything is worth the same
        one.network.value[-1].weight.zero_(), one.network.value[-1].bias.fill_(v)
    r = rollout_of("Late", 1, 12)  # ends before it joins a third time
    rows = one.weigh(r)
    joined = rows.seen[:, -1] == 1
    assert rows.seen[joined, 0].tolist() == [102, 103, 104, 202, 203, 204]
    real = [3 + 4 / 2 + 5 / 4, 4 + 5 / 2, 5]  # to a real end, and then to a time limit
    expected = real + [x + v / 2 ** (3 - t) for t, x in enumerate(real)]
    assert rows.goals[joined] == pytest.approx(expected)
    assert (rows.actions[joined] == r.actions[r.acting[:, :, 2], 2]).all()
    assert len(rows.goals) == 12 + 8 + 6


def test_normalised_values_are_learned_as_deviations_and_told_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = learner(gamma=0.5, gae_lambda=1.0)
    r = rollout_of("Counter", 4, 40)
    r.rewards[:] = r.rewards * 100 + 700 * r.acting
    goals = one.weigh(r).goals
    assert abs(goals.mean()) < 1e-4 and goals.std() == pytest.approx(1, abs=1e-4)
    assert 1000 < one.returned.mean < 2000 and one.scale > 100
    with torch.no_grad():
        one.network.value[-1].weight.zero_(), one.network.value[-1].bias.zero_()
    # a value of zero now stands for the mean of what was returned
    again, mean = one.weigh(rollout_of("Counter", 1, 1)), float(one.returned.mean)
    raw = again.goals * one.scale + mean
    assert raw == pytest.approx(np.full(3, 1 + mean / 2), rel=0.05)


def test_updates_equal_plain_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, rows = learner(batch_size=64, epochs=4, entropy=0.05, max_grad_norm=0.4), some_rows(64)
    plain = ippo.Network((7, 16, 16, 3))
    plain.load_state_dict(one.network.state_dict())
    one.learn(rows, np.random.default_rng(0), 50)
    optimizer = torch.optim.Adam(
        plain.parameters(), lr=straight(one.o.lr, one.o.lr_end, 50 / 600), eps=1e-5
    )
    seen, actions, old, advantages, goals = (torch.from_numpy(array) for array in rows)
    norms, cut = [], 0.0
    for _ in range(4):
        chosen = torch.distributions.Categorical(logits=plain.policy(seen))
        ratio = (chosen.log_prob(actions) - old).exp()
        policy = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).mean()
        value = torch.nn.functional.mse_loss(plain.value(seen)[:, 0], goals) / 2
        optimizer.zero_grad()
        (policy + 0.5 * value - 0.05 * chosen.entropy().mean()).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.4)))
        optimizer.step()
        cut = float(((ratio - 1).abs() > 0.2).float().mean())
    assert max(norms) > 0.4 and 0.1 < cut < 0.9
    expected = torch.cat([p.detach().reshape(-1) for p in plain.parameters()])
    assert (one.theta - expected).abs().max() < 1e-5


def test_every_row_is_learned_from_once_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one, seen = learner(batch_size=10, epochs=3), []
    real = ippo.loss_sums

    def spy(network: Any, batch: Any, clip: float) -> Any:
        seen.append(batch[3].tolist())
        return real(network, batch, clip)

    monkeypatch.setattr(ippo, "loss_sums", spy)
    rows = some_rows(37)
    one.learn(rows, np.random.default_rng(0), 50)
    assert len(seen) == 3 * 4 and max(map(len, seen)) == 10
    for epoch in range(3):
        drawn = [number for part in seen[4 * epoch : 4 * epoch + 4] for number in part]
        assert sorted(drawn) == sorted(rows.advantages.tolist())
    assert seen[:4] != seen[4:8]


@pytest.mark.parametrize(("name", "most"), [("Matching", 24), ("Mortal", 19)])
def test_short_run_solves_the_matching_game(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: float
) -> None:
    t = train_here(tmp_path, monkeypatch, env=f"team_stubs:{name}", steps=4096, num_envs=8,
                   hidden=32, rollout=32, batch_size=256, epochs=8, lr=5e-3, lr_end=0.0, gamma=0.5,
                   checkpoint_every=0, eval_every=4096, eval_episodes=10)  # fmt: skip
    first = [p["metrics"]["reward"] for p in progress(tmp_path) if "reward" in p["metrics"]][0]
    assert first < most / 2  # a third is right by chance
    assert progress(tmp_path)[-1]["metrics"]["eval/return"] == pytest.approx(most)
    assert t.learner.policy.numbers == 7


def test_agents_that_do_not_know_their_number_cannot_tell_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = train_here(tmp_path, monkeypatch, agent_numbers=False)
    assert t.learner.policy.numbers == 4
    answers = t.learner.policy(t.envs.seen)
    assert (answers[:, 0] == answers[:, 1])[t.envs.acting[:, 1]].all()


# what comes out


def test_same_seed_same_bytes_and_another_seed_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, other = (
        train_here(tmp_path / name, monkeypatch, seed=seed).learner.theta
        for name, seed in (("a", 5), ("b", 5), ("c", 6))
    )
    assert torch.equal(first, second) and not torch.equal(first, other)


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
    t = train_here(tmp_path, monkeypatch)
    assert names(tmp_path) == ["step-000000208", "step-000000416", "step-000000600"]
    folder = tmp_path / "checkpoints" / "step-000000600"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == {"model.pt", "env-rank0.bin"}
    for file, stored in manifest["files"].items():
        assert checkpoint.digest_file(folder / file) == checkpoint.StoredFile(**stored)
    state = torch.load(folder / "model.pt", weights_only=True)
    assert state["step"] == 600 and state["options"] == asdict(t.o) and state["agent"] == "ippo"
    assert torch.equal(state["params"], t.learner.theta)
    # what the manifest says is what these very parameters reach
    again = evaluation.evaluate(t.run, t.o, ippo.greedy(state), step=t.step, play=ippo.play_greedy)
    assert manifest["metrics"] == again


def test_not_a_number_from_the_environment_is_named_and_never_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(runtime.Fault, match="reward or observation.* 333") as fault:
        train_here(tmp_path, monkeypatch, env="team_stubs:Broken", num_envs=1, eval_every=0)
    assert (fault.value.kind, fault.value.step) == ("nan", 333)
    assert names(tmp_path) == ["step-000000208"]


def test_not_a_number_seen_first_is_the_one_that_is_named() -> None:
    r = rollout_of("Counter", 2, 12)
    assert ippo.first_bad_step(r) is None
    r.limits_seen[-1, 0] = np.inf
    assert ippo.first_bad_step(r) == 10
    r.rewards[6, 1, 0] = np.nan
    assert ippo.first_bad_step(r) == 7
    r.seen[3, 0, 2, 0] = np.nan
    assert ippo.first_bad_step(r) == 3


def test_diverging_parameters_end_the_run_before_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(runtime.Fault, match="became (nan|inf)") as fault:
        train_here(tmp_path, monkeypatch, lr=1e38, lr_end=1e38, checkpoint_every=52)
    assert fault.value.kind == "nan"
    for name in names(tmp_path):
        state = torch.load(tmp_path / "checkpoints" / name / "model.pt", weights_only=True)
        assert torch.isfinite(state["params"]).all()


def test_curves_carry_the_promised_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="left out: tensorboard: not installed",
    )
    train_here(tmp_path, monkeypatch)
    events = accumulator.EventAccumulator(str(tmp_path / "logs"), {"scalars": 0}).Reload()
    assert set(events.Tags()["scalars"]) >= {
        "reward", "episode_length", "eval/return", "loss/policy", "loss/value", "loss/entropy",
        "loss/gradient_norm", "perf/steps_per_s",
    }  # fmt: skip
    assert {e.value for e in events.Scalars("episode_length")} == {8.0}
    assert events.Scalars("loss/policy")[-1].step == 600


def test_a_team_that_never_ends_shows_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_here(tmp_path, monkeypatch, env="team_stubs:Endless", eval_every=0)
    assert [p["step"] for p in progress(tmp_path)] == [104, 208, 312, 416, 520, 600]
    assert "loss/policy" in progress(tmp_path)[-1]["metrics"]


# going on


def final_files(folder: Path) -> dict[str, Any]:
    """Digests of the last checkpoint."""
    manifest = json.loads((folder / "checkpoints" / "step-000000600" / "manifest.json").read_text())
    files: dict[str, Any] = manifest["files"]
    return files


@pytest.mark.parametrize(
    ("which", "env"),
    [(0, "team_stubs:Mortal"), (1, "team_stubs:Shared"), (0, "team_stubs:Late")],
)
def test_resumed_run_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    which: int, env: str,
) -> None:  # fmt: skip
    whole = train_here(tmp_path / "a", monkeypatch, env=env)
    kept = tmp_path / "a" / "checkpoints" / names(tmp_path / "a")[which]
    capsys.readouterr()
    again = train_here(tmp_path / "b", monkeypatch, resume=kept, env=env)
    step = int(kept.name.split("-")[1])
    assert f"resumed from step {step}" in capsys.readouterr().out.splitlines()[0]
    assert torch.equal(whole.learner.theta, again.learner.theta)
    assert (whole.envs.seen == again.envs.seen).all()
    assert final_files(tmp_path / "a") == final_files(tmp_path / "b")


def test_resumed_run_of_a_real_team_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mpe2", reason="left out: mpe2: not installed")
    env = ippo.Options().env
    whole = train_here(tmp_path / "a", monkeypatch, env=env, eval_every=0)
    kept = tmp_path / "a" / "checkpoints" / "step-000000208"
    again = train_here(tmp_path / "b", monkeypatch, resume=kept, env=env, eval_every=0)
    assert whole.envs.exact and torch.equal(whole.learner.theta, again.learner.theta)
    assert final_files(tmp_path / "a") == final_files(tmp_path / "b")


def test_a_team_that_cannot_be_kept_says_so_and_begins_new_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(tmp_path, monkeypatch, env="team_stubs:Unkept", steps=208)
    assert "cannot be kept in a checkpoint: a resume begins new" in capsys.readouterr().out
    kept = tmp_path / "checkpoints" / "step-000000208"
    assert (kept / "env-rank0.bin").read_bytes() == b""
    again = train_here(tmp_path / "b", monkeypatch, resume=kept, env="team_stubs:Unkept")
    assert again.step == 600


def test_killed_at_a_random_moment_and_resumed_equals_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"log_every": 20, "rollout": 5}
    train_here(tmp_path / "whole", monkeypatch, **changes)
    folder = tmp_path / "killed"
    folder.mkdir()
    words, lines = words_of({**SMALL, **changes}), random.randint(12, 27)
    with start_agent(folder, *words) as agent:
        assert agent.stdout
        for _ in range(lines + 1):
            agent.stdout.readline()
        agent.kill()
    newest = max(n for n in names(folder) if not n.endswith(".tmp"))
    agent = start_agent(folder, *words, RUNNER_RESUME=str(folder / "checkpoints" / newest))
    out, errors = agent.communicate(timeout=120)
    assert agent.returncode == 0, errors
    assert "resumed from step" in out.splitlines()[0]
    assert names(folder) == names(tmp_path / "whole")
    assert final_files(folder) == final_files(tmp_path / "whole"), f"killed after line {lines}"


def test_stop_signal_saves_this_step(tmp_path: Path) -> None:
    words = words_of({**SMALL, "steps": 10**6, "checkpoint_every": 0})
    with start_agent(tmp_path, *words) as agent:
        assert agent.stdout
        for _ in range(3):
            agent.stdout.readline()
        agent.send_signal(signal.SIGTERM)
        out, errors = agent.communicate(timeout=120)
    assert agent.returncode == 143, errors
    (name,) = names(tmp_path)
    assert f"stopped at step {int(name.split('-')[1])}" in out


def test_resume_with_another_shape_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_here(tmp_path, monkeypatch, steps=200)
    kept = tmp_path / "checkpoints" / "step-000000200"
    for changes, text in (
        ({"hidden": 17}, "hidden is 17, but .* was made with 16"),
        ({"agent_numbers": False}, "agent_numbers is False"),
    ):
        with pytest.raises(options.Refused, match=text):
            train_here(tmp_path, monkeypatch, resume=kept, **changes)


# several ranks

TWO_RANKS = """
import json, sys
sys.path.insert(0, {agents!r})
import checkpoint, ippo, options, runtime, torch
import numpy as np
words, rows, out = json.loads(sys.argv[1])
run = runtime.Run("ippo", device="cpu")
t = ippo.train(options.read_options(ippo.Options, words), run)
trained = checkpoint.digest(t.learner.theta.detach())
made = sum(team.env.made for team in t.envs.teams)
torch.manual_seed(0)
one = ippo.Learner(ippo.Options(batch_size=10**6, epochs=3), run, (7, 16, 16, 3))
whole = np.load(rows)
rank = slice(0, 11) if run.rank == 0 else slice(11, None)
one.learn(ippo.Rows(*(whole[name][rank] for name in ippo.Rows._fields)), t.rng, 50)
np.save(out + str(run.rank) + ".npy", one.theta.detach().numpy())
print(json.dumps([trained, made, t.step, float(t.learner.returned.mean)]))
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
    rows = some_rows(32)
    np.savez(tmp_path / "rows.npz", **rows._asdict())
    # the last rollout has one step for the first environment of the first rank alone
    options = {**SMALL, "steps": 405, "device": "cpu"}
    told = json.dumps([words_of(options), str(tmp_path / "rows.npz"), str(tmp_path / "theta")])
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
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    results = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    assert results[0][0] == results[1][0] and results[0][3] == results[1][3]
    assert sum(made for _, made, _, _ in results) == results[0][2] == results[1][2] == 405
    assert names(tmp_path) == ["step-000000208", "step-000000405"]
    manifest = json.loads((tmp_path / "checkpoints/step-000000405/manifest.json").read_text())
    assert set(manifest["files"]) == {"env-rank0.bin", "env-rank1.bin", "model.pt"}
    assert len(list((tmp_path / "logs").glob("events*"))) == 1
    assert len(outputs[1][0].splitlines()) == 1  # only rank 0 tells of the training
    # a part of the batch on each rank, and not the same, makes the update of the whole on one
    parts = [np.load(tmp_path / f"theta{rank}.npy") for rank in range(2)]
    torch.manual_seed(0)
    one = ippo.Learner(ippo.Options(batch_size=10**6, epochs=3),
                       runtime.Run("ippo", device="cpu"), (7, 16, 16, 3))  # fmt: skip
    before = one.theta.detach().numpy().copy()
    one.learn(rows, np.random.default_rng(0), 50)
    assert (parts[0] == parts[1]).all() and np.abs(parts[0] - before).max() > 1e-4
    assert np.abs(parts[0] - one.theta.detach().numpy()).max() < 1e-6


# as a process


def test_process_refuses_in_one_line_with_status_2(tmp_path: Path) -> None:
    told = {"RUNNER_CHECKPOINTS": "", "RUNNER_PROGRESS": str(tmp_path / "progress.jsonl")}
    agent = start_agent(tmp_path, "env=team_stubs:Uneven", **told)
    out, errors = agent.communicate(timeout=120)
    assert agent.returncode == 2 and out == "" and len(errors.splitlines()) == 1
    assert errors.startswith("ippo: env 'team_stubs:Uneven' has agents with different numbers")
    assert progress(tmp_path)[-1]["fault"] == "setup"
    assert not list(tmp_path.glob("results/by-hand/*"))


def test_by_hand_trains_and_evaluates_what_it_made(tmp_path: Path) -> None:
    agent = subprocess.run(
        [sys.executable, str(AGENTS / "ippo.py"), *words_of({**SMALL, "seed": -1})],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    first, second = agent.stdout.splitlines()[:2]
    assert int(first.split("seed ")[1].split()[0]) >= 0 and "agents 3" in first
    folder = Path(second.removeprefix("writing to "))
    shown = subprocess.run(
        [sys.executable, str(AGENTS / "ippo.py"), f"evaluate={folder}/checkpoints", "episodes=3"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    assert shown.startswith("step-000000") and "episodes 3  return " in shown
