"""The job that evaluates a checkpoint: what it finds, what it writes, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

from tests.helpers.agents import AGENTS, progress, run  # noqa: E402, F401
from tests.helpers.wait import wait_for  # noqa: E402

# isort: split
import checkpoint  # noqa: E402
import evaluate  # noqa: E402
import options  # noqa: E402
import video  # noqa: E402
from runtime import Fault, Stopped  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MADE = """
import numpy as np
import evaluation
from evaluation import play_greedy
def greedy(state):
    if state["action"] < 0:
        return Once(state["numbers"])
    return lambda seen: np.full(len(seen), state["action"], np.int64)
class Once(evaluation.Remembering):
    '''Acts by the number of the step it is at in each episode.'''
    def __init__(self, numbers):
        self.numbers = numbers
    def begin(self, n):
        self.t = np.zeros(n, np.int64)
    def forget(self, i):
        self.t[i] = 0
    def __call__(self, seen):
        self.t += 1
        return self.t % 2
"""


@pytest.fixture(autouse=True)
def _made_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent `made` beside those that are shipped, whose policy does one thing always."""
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "made.py").write_text(MADE)
    monkeypatch.setattr(evaluate, "__file__", str(folder / "evaluate.py"))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "made", raising=False)


def made(run: Any, of: str, step: int, score: float | None = None, **changes: Any) -> Path:  # noqa: F811
    """A checkpoint of the run `of`, beside those of `run`, whose policy gets about ten."""
    state = {"agent": "made", "env": "CartPole-v1", "step": step, "action": 1, "numbers": [],
             **changes}  # fmt: skip
    kept, run.checkpoints = run.checkpoints, run.checkpoints.parent / of
    try:
        metrics = {} if score is None else {"eval/return": score}
        return checkpoint.write(run, None, step=step, metrics=metrics, state=state, own={})
    finally:
        run.checkpoints = kept


def asked(**given: Any) -> evaluate.Options:
    return evaluate.Options(**{"episodes": 8, **given})


def test_defaults_are_those_of_the_recipe() -> None:
    recipe = tomllib.loads((AGENTS / "evaluate.toml").read_text())
    assert recipe["params"] == {f.name: f.default for f in fields(evaluate.Options)}
    assert recipe["entry"] == "evaluate.py" and recipe["metric"] == evaluate.METRIC


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "say either checkpoint=PATH or run=RUN"),
        ({"run": "a", "checkpoint": "b"}, "say either checkpoint=PATH or run=RUN"),
        ({"run": "a", "episodes": 0}, "episodes is 0; it must be at least 1"),
        ({"run": "a", "seed": -1}, "seed is -1; it must be at least 0"),
        ({"run": "a", "videos": -1}, "videos is -1"),
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(options.Refused, match=text):
        asked(**given)


# the checkpoint


def test_the_best_of_a_run_beside_this_one_is_played(run: Any) -> None:  # noqa: F811
    for step, score in ((10, 5.0), (20, 9.0), (30, 7.0)):
        made(run, "dqn-aaaaa", step, score)
    made(run, "dqn-bbbbb", 99, 100.0)
    report = evaluate.evaluate(asked(run="dqn-aaaaa"), run)
    assert (report["checkpoint"], report["step"]) == ("step-000000020", 20)


def test_a_checkpoint_itself_is_played(run: Any) -> None:  # noqa: F811
    made(run, "dqn-aaaaa", 20, 9.0)
    folder = made(run, "dqn-aaaaa", 30, 7.0)
    assert evaluate.evaluate(asked(checkpoint=str(folder)), run)["step"] == 30


def test_by_hand_a_run_is_what_was_pulled(
    run: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = made(run, "dqn-aaaaa", 20)
    pulled = tmp_path / "results" / "dqn-aaaaa" / "checkpoints"
    pulled.mkdir(parents=True)
    folder.rename(pulled / folder.name)
    monkeypatch.delenv("RUNNER_CHECKPOINTS")
    assert evaluate.evaluate(asked(run="dqn-aaaaa"), run)["step"] == 20
    with pytest.raises(options.Refused, match="no such run in results/; pull it first"):
        evaluate.find_folder(asked(run="dqn-zzzzz"))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"run": "dqn-aaaab"}, r"^run=dqn-aaaab: no such run on this host \(did you mean 'dqn-aaa"),
        ({"run": "../x"}, "^run=../x: that is no run's id"),
        ({"run": "dqn-empty"}, "dqn-empty: no checkpoint there"),
        ({"checkpoint": "results/none"}, "^checkpoint=results/none: no such folder in "),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(
    given: dict[str, Any],
    text: str,
    run: Any,  # noqa: F811
) -> None:
    made(run, "dqn-aaaaa", 20)
    (run.checkpoints.parent / "dqn-empty").mkdir()
    with pytest.raises(options.Refused, match=text) as refused:
        evaluate.evaluate(asked(**given), run)
    assert len(str(refused.value).splitlines()) == 1
    assert not run.logs.exists()  # nothing was begun


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"agent": "nobody"}, "made by 'nobody', and there is no such agent in "),
        ({"agent": "../made"}, "made by '../made', and there is no such agent"),
        ({"agent": 7}, "made by 7, and there is no such agent"),
        ({"agent": "mute"}, r"agents/mute.py has no greedy\(state\)"),
        ({"agent": "lacking"}, "its agent lacking cannot be imported: No module named 'no_such"),
    ],
)
def test_a_checkpoint_of_somebody_else_is_refused(
    changes: dict[str, Any],
    text: str,
    run: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "agents" / "mute.py").write_text("")
    (tmp_path / "agents" / "lacking.py").write_text("import no_such_package")
    made(run, "dqn-aaaaa", 20, **changes)
    with pytest.raises(options.Refused, match=text):
        evaluate.evaluate(asked(run="dqn-aaaaa"), run)


@pytest.mark.parametrize("harm", ["flipped", "gone", "no manifest", "no model", "not said"])
def test_a_damaged_checkpoint_is_refused(harm: str, run: Any) -> None:  # noqa: F811
    folder = made(run, "dqn-aaaaa", 20)
    model, manifest = folder / "model.pt", folder / "manifest.json"
    if harm == "flipped":
        data = bytearray(model.read_bytes())
        data[len(data) // 2] ^= 1
        model.write_bytes(data)
    elif harm == "gone":
        model.unlink()
    elif harm == "no manifest":
        manifest.write_text("{")
    elif harm == "no model":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "files": {}}))
    else:
        torch.save({"agent": "made"}, model)
        said = {"model.pt": vars(checkpoint.digest_file(model))}
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "files": said}))
    with pytest.raises(options.Refused) as refused:
        evaluate.evaluate(asked(run="dqn-aaaaa"), run)
    assert len(str(refused.value).splitlines()) == 1 and "dqn-aaaaa" in str(refused.value)


def test_one_that_is_removed_while_it_is_read_gives_way_to_the_next(
    run: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made(run, "dqn-aaaaa", 20, 5.0)
    best, read = made(run, "dqn-aaaaa", 30, 9.0), checkpoint.read_model

    def and_gone(folder: Path) -> Any:
        if folder == best:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        return read(folder)

    monkeypatch.setattr(checkpoint, "read_model", and_gone)
    assert evaluate.evaluate(asked(run="dqn-aaaaa"), run)["step"] == 20


# what comes out


def test_it_is_written_printed_and_told(
    run: Any,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made(run, "dqn-aaaaa", 20, 5.0)
    report = evaluate.evaluate(asked(run="dqn-aaaaa", seed=3), run)
    returns = report["returns"]
    assert len(returns) == 8 and 8 <= min(returns) <= max(returns) <= 11
    found = report["return"]
    assert found["mean"] == pytest.approx(np.mean(returns))
    assert found["std"] == pytest.approx(np.std(returns))
    assert (found["min"], found["max"]) == (min(returns), max(returns))
    assert found["median"] == pytest.approx(np.median(returns))
    assert found["min"] <= found["interval_95"][0] <= found["mean"] <= found["interval_95"][1]
    assert json.loads((run.logs / "evaluation.json").read_text()) == report
    assert {k: report[k] for k in ("agent", "env", "run", "episodes", "seed")} == {
        "agent": "made", "env": "CartPole-v1", "run": "dqn-aaaaa", "episodes": 8, "seed": 3
    }  # fmt: skip
    (line,) = progress(tmp_path)
    assert (line["step"], line["metrics"]) == (20, {"eval/return": found["mean"]})
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("made  env CartPole-v1  step 20  of ")
    assert shown[-1].startswith("episodes 8  seed 3  return  mean ")
    for word in ("std", "min", "max", "median", "95 % ["):
        assert word in shown[-1]


def test_a_repeat_changes_nothing_and_shows_no_point_twice(run: Any) -> None:  # noqa: F811
    made(run, "dqn-aaaaa", 20, 5.0)
    evaluate.evaluate(asked(run="dqn-aaaaa"), run)
    first = (run.logs / "evaluation.json").read_bytes()
    evaluate.evaluate(asked(run="dqn-aaaaa"), run)
    assert (run.logs / "evaluation.json").read_bytes() == first
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="left out: tensorboard: not installed",
    )
    events = accumulator.EventAccumulator(str(run.logs))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("eval/return")] == [
        (20, pytest.approx(json.loads(first)["return"]["mean"]))
    ]


def test_other_episodes_come_of_another_seed_and_never_those_of_training(run: Any) -> None:  # noqa: F811
    made(run, "dqn-aaaaa", 20)
    first, second = (
        evaluate.evaluate(asked(run="dqn-aaaaa", seed=seed, episodes=40), run)["returns"]
        for seed in (0, 1)
    )
    assert first != second
    assert evaluate.evaluate(asked(run="dqn-aaaaa"), run)["returns"] == first[:8]
    import evaluation
    from seeds import SEEDS_EVALUATION

    during = evaluation.play_greedy("CartPole-v1", lambda seen: np.ones(len(seen), np.int64),
                                    episodes=40, seed=0, stream=SEEDS_EVALUATION)  # fmt: skip
    assert during != first


def test_a_policy_that_remembers_begins_each_episode_anew(run: Any) -> None:  # noqa: F811
    made(run, "lstm-aaaaa", 20, action=-1)
    alone = evaluate.evaluate(asked(run="lstm-aaaaa", episodes=1), run)["returns"]
    many = evaluate.evaluate(asked(run="lstm-aaaaa", episodes=40), run)["returns"]
    assert many[0] == alone[0] and min(many) > 11  # left and right in turn stand longer


@pytest.mark.parametrize(
    ("returns", "bounds"), [([4.0] * 9, [4.0, 4.0]), ([3.0], None), ([0.0, 1.0] * 200, None)]
)
def test_interval_of_the_mean(returns: list[float], bounds: list[float] | None) -> None:
    found = evaluate.summary(returns)["interval_95"]
    if len(returns) == 400:  # 0.5 more or less 1.96 standard errors of 0.025
        assert found == pytest.approx([0.451, 0.549], abs=0.003)
    else:
        assert found == bounds
    text = evaluate.text_of(evaluate.summary(returns))
    assert text.endswith("95 % -" if len(returns) == 1 else "]")


def test_returns_that_are_no_numbers_are_a_fault(
    run: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "agents" / "own.py").write_text(
        "def greedy(state):\n    return None\n"
        "def play_greedy(name, choose, *, episodes, seed, stream, stop):\n"
        "    return [float('nan')]\n"
    )
    made(run, "dqn-aaaaa", 20, agent="own")
    with pytest.raises(Fault, match="the mean return is nan"):
        evaluate.evaluate(asked(run="dqn-aaaaa"), run)
    assert not (run.logs / "evaluation.json").exists()


def test_an_agent_that_plays_in_its_own_way_does_so_and_is_not_filmed(
    run: Any,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "agents" / "team.py").write_text(
        "def greedy(state):\n    return 'both'\n"
        "def play_greedy(name, choose, *, episodes, seed, stream, stop):\n"
        "    assert not stop() and choose == 'both' and name == 'a game'\n"
        "    return [float(seed + i) for i in range(episodes)]\n"
    )
    made(run, "ippo-aaaaa", 20, agent="team", env="a game")
    report = evaluate.evaluate(asked(run="ippo-aaaaa", seed=2, videos=1), run)
    assert report["returns"] == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert capsys.readouterr().err == "no videos: team plays in a way of its own\n"


def test_where_no_video_can_be_made_the_evaluation_stands(
    run: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def no_driver(*_: Any, **__: Any) -> Any:
        raise video.NoVideo("no videos: there is no GL here")

    monkeypatch.setattr(video, "record", no_driver)
    made(run, "dqn-aaaaa", 20)
    evaluate.evaluate(asked(run="dqn-aaaaa", videos=1), run)
    assert (run.logs / "evaluation.json").is_file()
    assert capsys.readouterr().err == "no videos: there is no GL here\n"
    assert progress(tmp_path)[-1]["warning"] == "no videos: there is no GL here"


def test_a_signal_ends_it_with_nothing_written(run: Any) -> None:  # noqa: F811
    made(run, "dqn-aaaaa", 20)
    run.received = 15
    with pytest.raises(Stopped):
        evaluate.evaluate(asked(run="dqn-aaaaa"), run)
    assert not (run.logs / "evaluation.json").exists()


def test_a_long_evaluation_shows_life(
    run: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(evaluate, "BEAT_S", 0.0)
    made(run, "dqn-aaaaa", 20)
    evaluate.evaluate(asked(run="dqn-aaaaa"), run)
    assert "playing for 0 s, 1 moves of each episode" in capsys.readouterr().out
    lines = progress(tmp_path)
    assert len(lines) > 5 and {line["step"] for line in lines} == {20}


# as a program


def start(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    kept = {n: v for n, v in os.environ.items() if not n.startswith("RUNNER_")}
    return subprocess.Popen(
        [sys.executable, str(AGENTS / "evaluate.py"), *words],
        env={**kept, "PYTHONWARNINGS": "error", **variables}, cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def of_dqn(run: Any) -> dict[str, Any]:  # noqa: F811
    """What makes a checkpoint one of dqn.py, untrained."""
    import dqn

    net = dqn.q_network((4, 8, 8, 2))
    flat = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    return {"agent": "dqn", "average": flat, "sizes": [4, 8, 8, 2]}


def test_as_a_job_it_finds_the_run_by_its_id(run: Any, tmp_path: Path) -> None:  # noqa: F811
    made(run, "dqn-aaaaa", 20, 5.0, **of_dqn(run))
    (tmp_path / "params.json").write_text(json.dumps({"run": "dqn-aaaaa", "episodes": 3}))
    variables = {
        "RUNNER_PARAMS": str(tmp_path / "params.json"),
        "RUNNER_CHECKPOINTS": str(run.checkpoints.parent / "evaluate-ccccc"),
        "RUNNER_LOGS": str(run.logs), "RUNNER_PROGRESS": str(tmp_path / "told.jsonl"),
    }  # fmt: skip
    job = start(tmp_path, **variables)
    out, errors = job.communicate(timeout=100)
    assert (job.returncode, errors) == (0, "")
    assert out.splitlines()[-1].startswith("episodes 3  seed 0  return  mean ")
    assert json.loads((run.logs / "evaluation.json").read_text())["agent"] == "dqn"
    (tmp_path / "params.json").write_text(json.dumps({"run": "dqn-zzzzz"}))
    job = start(tmp_path, **variables)
    out, errors = job.communicate(timeout=100)
    assert (job.returncode, out) == (2, "")
    assert errors == "evaluate: run=dqn-zzzzz: no such run on this host\n"
    told = (tmp_path / "told.jsonl").read_text().splitlines()[-1]
    assert json.loads(told)["fault"] == "setup"


def test_by_hand_it_writes_below_results_and_ends_on_a_signal(
    run: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    acrobot = {"env": "Acrobot-v1", "sizes": [6, 8, 8, 3], "average": torch.zeros(155)}
    folder = made(run, "dqn-aaaaa", 20, 5.0, **{**of_dqn(run), **acrobot})
    job = start(tmp_path, f"checkpoint={folder}", "episodes=100000")
    events = "results/by-hand/evaluate-*/logs/events*"
    wait_for(lambda: list(tmp_path.glob(events)), 60, "it to play")
    job.send_signal(signal.SIGTERM)
    out, errors = job.communicate(timeout=60)
    assert (job.returncode, errors) == (143, "") and out.endswith("stopped, nothing written\n")
    assert not list(tmp_path.glob("results/by-hand/*/logs/evaluation.json"))
