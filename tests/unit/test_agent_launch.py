"""An agent's main: options in, exit status out, and a line for each thing that is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

from tests.helpers.agents import progress, run  # noqa: E402, F401

# isort: split
import checkpoint  # noqa: E402
import launch  # noqa: E402
from options import Refused  # noqa: E402
from runtime import Fault, Run, Stopped  # noqa: E402


@dataclass(frozen=True)
class Options:
    env: str = "CartPole-v1"
    seed: int = -1
    device: str = "cpu"


def always(state: dict[str, Any]) -> Callable[[Any], Any]:
    return lambda seen: np.full(len(seen), state["action"], np.int64)


@pytest.fixture(autouse=True)
def _called_made(monkeypatch: pytest.MonkeyPatch, run: Run) -> Iterator[None]:  # noqa: F811
    """`run` gives the folders, and puts the signal handlers back."""
    monkeypatch.setattr(sys, "argv", ["agents/made.py"])
    yield


def start(train: Callable[[Any, Run], Any], *words: str) -> int:
    """The exit status of an agent that trains so."""
    try:
        launch.launch(Options, train, always, list(words))
    except SystemExit as end:
        if isinstance(end.code, str):  # what Python prints, with status 1
            print(end.code, file=sys.stderr)
            return 1
        return int(end.code or 0)
    return 0


def raising(problem: Exception) -> Callable[[Any, Run], Any]:
    def train(o: Any, run: Run) -> None:  # noqa: F811
        raise problem

    return train


def test_the_options_reach_the_training_and_it_ends_well() -> None:
    got: list[Any] = []
    assert start(lambda o, _: got.append(o), "env=Pendulum-v1", "seed=3") == 0
    assert got == [Options("Pendulum-v1", 3, "cpu")]


def test_parameters_come_from_the_runner_s_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "params.json").write_text(json.dumps({"seed": 4}))
    monkeypatch.setenv("RUNNER_PARAMS", str(tmp_path / "params.json"))
    got: list[Any] = []
    assert start(lambda o, _: got.append(o.seed)) == 0
    assert got == [4]


def test_a_seed_is_drawn_and_a_resume_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[int] = []
    for _ in range(2):
        assert start(lambda o, _: got.append(o.seed)) == 0
    assert min(got) >= 0 and got[0] != got[1]
    torch.save({"options": {"seed": 77}}, tmp_path / "model.pt")
    monkeypatch.setenv("RUNNER_RESUME", str(tmp_path))
    assert start(lambda o, _: got.append(o.seed)) == 0
    assert start(lambda o, _: got.append(o.seed), "seed=5") == 0
    assert got[2:] == [77, 5]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["sed=1"], "sed is not an option here (did you mean 'seed'?)"),
        (["seed=x"], "seed is 'x'; it must be a whole number"),
        (["device=tpu"], "device is 'tpu'; it must be auto, cpu or cuda"),
    ],
)
def test_what_is_refused_gets_a_line_status_2_and_the_cause_setup(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(raising(AssertionError("never called")), *words) == 2
    assert capsys.readouterr().err == f"made: {text}\n"
    assert progress(tmp_path) == [{"fault": "setup", "text": text}]


def test_every_problem_has_a_line_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(raising(Refused("one\ntwo"))) == 2
    assert capsys.readouterr().err == "made: one\nmade: two\n"
    assert progress(tmp_path) == [{"fault": "setup", "text": "one; two"}]


def test_a_refusal_by_hand_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNNER_CHECKPOINTS")
    assert start(raising(Refused("no"))) == 2
    assert not (tmp_path / "results").exists()


def test_a_traceback_by_hand_leaves_no_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNNER_CHECKPOINTS")
    (tmp_path / "results").mkdir()
    with pytest.raises(ZeroDivisionError):
        launch.launch(Options, raising(ZeroDivisionError()), always, ["seed=1"])
    assert list((tmp_path / "results").iterdir()) == []  # which was there before


def test_a_fault_is_told_before_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(raising(Fault("nan", "loss is not a number", step=7)), "seed=1") == 1
    assert capsys.readouterr().err == "rank 0: nan: loss is not a number\n"
    assert progress(tmp_path) == [{"fault": "nan", "step": 7, "text": "loss is not a number"}]


@pytest.mark.parametrize(("received", "status"), [(15, 143), (2, 130)])
def test_a_signal_s_number_is_in_the_status(received: int, status: int) -> None:
    def train(o: Any, run: Run) -> None:  # noqa: F811
        run.received = received
        raise Stopped

    assert start(train, "seed=1") == status


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        launch.launch(Options, raising(ZeroDivisionError()), always, ["seed=1"])


def test_evaluating_by_hand_trains_nothing(
    run: Any,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = {"env": "CartPole-v1", "action": 1}
    checkpoint.write(run, None, step=5, metrics={}, state=state, own={})
    words = [f"evaluate={run.checkpoints}", "episodes=3"]
    assert start(raising(AssertionError("never called")), *words) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("step-000000005  env CartPole-v1  episodes 3  return ")


def test_an_agent_s_own_way_to_play_is_used(
    run: Any,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint.write(run, None, step=5, metrics={}, state={"env": "a game", "action": 1}, own={})
    launch.launch(Options, raising(AssertionError()), always, [f"evaluate={run.checkpoints}"],
                  play=lambda name, choose, **_: [1.0, 3.0])  # fmt: skip
    assert "env a game  episodes 100  return 2.00  std 1.00  min 1.0" in capsys.readouterr().out


def test_a_missing_checkpoint_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(raising(AssertionError()), f"evaluate={tmp_path}/none") == 2
    assert capsys.readouterr().err == f"made: {tmp_path}/none: no checkpoint there\n"
