"""What agents share: options, ranks, seeds, stop signals, faults, metrics."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "agents"))

import runtime  # noqa: E402


@dataclass(frozen=True)
class Some:
    env: str = "CartPole-v1"
    steps: int = 100
    lr: float = 0.1
    double: bool = True


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[runtime.Run]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setenv("RUNNER_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("RUNNER_LOGS", str(tmp_path / "logs"))
    monkeypatch.setenv("RUNNER_PROGRESS", str(tmp_path / "progress.jsonl"))
    monkeypatch.setenv("RUNNER_RESUME", "")
    yield runtime.Run("test", device="cpu")
    for number, handler in kept.items():
        signal.signal(number, handler)


def progress(run: runtime.Run) -> list[dict[str, Any]]:
    text = (run.logs.parent / "progress.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


# options


def test_words_are_read_by_the_type_of_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_PARAMS", raising=False)
    words = ["env=42", "steps=1e6", "lr=1", "double=off"]
    assert runtime.read_options(Some, words) == Some("42", 1_000_000, 1.0, False)
    assert runtime.read_options(Some, ["steps=50_000"]).steps == 50_000
    assert runtime.read_options(Some, []) == Some()


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
    with pytest.raises(runtime.Refused, match=text):
        runtime.read_options(Some, [word])


def test_all_problems_come_at_once_and_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_PARAMS", raising=False)
    with pytest.raises(runtime.Refused, match="(?s)steps is .*lr is "):
        runtime.read_options(Some, ["steps=a", "lr=b"])
    with pytest.raises(runtime.Refused, match="steps is given twice"):
        runtime.read_options(Some, ["steps=1", "steps=2"])


def test_the_file_is_taken_and_words_beside_it_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "params.json"
    monkeypatch.setenv("RUNNER_PARAMS", str(file))
    file.write_text('{"steps": 7, "lr": 1, "double": false}')
    assert runtime.read_options(Some, []) == Some(steps=7, lr=1.0, double=False)
    with pytest.raises(runtime.Refused, match="'steps=8' is not read"):
        runtime.read_options(Some, ["steps=8"])
    file.write_text('{"steps": "7", "env": 3, "double": "no"}')
    with pytest.raises(runtime.Refused) as refused:
        runtime.read_options(Some, [])
    assert len(str(refused.value).splitlines()) == 3
    for text in ("[1]", "{", ""):
        file.write_text(text)
        with pytest.raises(runtime.Refused, match="RUNNER_PARAMS="):
            runtime.read_options(Some, [])


# ranks, signals, faults


def test_cuda_that_is_not_there_is_refused_and_auto_takes_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # on a machine with GPUs, too
    with pytest.raises(runtime.Refused, match="device=cuda is asked for, but torch"):
        runtime.choose_device("cuda", 0)
    with pytest.raises(runtime.Refused, match="must be auto, cpu or cuda"):
        runtime.choose_device("tpu", 0)
    assert runtime.choose_device("auto", 0).type == "cpu"


def test_folders_made_by_hand_are_never_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [runtime.unique_folder("dqn") for _ in range(5)]
    assert len(set(folders)) == 5 and all(folder.is_dir() for folder in folders)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_noted_and_gives_its_status(
    run: runtime.Run, number: signal.Signals, status: int
) -> None:
    assert not run.asked_to_stop()
    os.kill(os.getpid(), number)
    assert run.asked_to_stop() and run.agree_to_stop(tick=3)
    with pytest.raises(SystemExit) as end, runtime.edge(run):
        raise runtime.Stopped
    assert end.value.code == status


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (runtime.Fault("nan", "loss became nan", step=9), "nan"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"), "cuda-oom"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk-full"),
    ],
)
def test_what_ends_a_training_is_written_down(
    run: runtime.Run, error: Exception, kind: str
) -> None:
    with pytest.raises(SystemExit) as end, runtime.edge(run):
        raise error
    assert kind in str(end.value.code) and "\n" not in str(end.value.code)
    (line,) = progress(run)
    assert line["fault"] == kind and line.get("step") == (9 if kind == "nan" else None)


def test_other_errors_keep_their_traceback(run: runtime.Run) -> None:
    with pytest.raises(ZeroDivisionError), runtime.edge(run):
        raise ZeroDivisionError
    with pytest.raises(FileNotFoundError), runtime.edge(run):
        raise FileNotFoundError(errno.ENOENT, "gone")


@pytest.mark.parametrize("text", ["x" * 9000, "\u2603" * 9000, '"\\\n' * 5000])
def test_a_progress_line_is_one_short_write(run: runtime.Run, text: str) -> None:
    run.write_progress({"fault": "nan", "step": 3, "text": text})
    run.write_progress({"fault": "nan", "step": 4, "text": "short"})
    lines = (run.logs.parent / "progress.jsonl").read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["step"] for line in lines] == [3, 4]
    assert all(len(line) <= 4096 for line in lines)


# seeds


def test_streams_of_seeds_never_meet() -> None:
    streams = (runtime.SEEDS_TRAIN, runtime.SEEDS_EVALUATION, runtime.SEEDS_FRESH)
    seeds = {s: {runtime.derive_seed(7, s, i) for i in range(2000)} for s in streams}
    assert all(len(each) > 1995 for each in seeds.values())
    assert len(set.union(*seeds.values())) == sum(len(each) for each in seeds.values())
    assert runtime.derive_seed(7, 0, 1) != runtime.derive_seed(8, 0, 0)


def test_a_generator_comes_back_as_it_was() -> None:
    rng = np.random.default_rng(3)
    rng.integers(5, size=3)  # leaves half a word unused
    again = runtime.rng_from_text(runtime.rng_text(rng))
    assert rng.integers(5, size=9).tolist() == again.integers(5, size=9).tolist()
    assert rng.random() == again.random()


# parameters


def test_flat_parameters_are_the_module_and_get_its_gradient() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    plain = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    plain.load_state_dict(module.state_dict())
    flat = runtime.flatten_parameters(module)
    x = torch.randn(5, 3)
    for each in (module, plain):
        each(x).square().sum().backward()
    assert torch.equal(flat.grad, torch.cat([p.grad.reshape(-1) for p in plain.parameters()]))
    with torch.no_grad():
        flat.zero_()
    assert not module(x).any()


def test_numpy_network_reads_the_parameters_as_they_are_now() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    flat = runtime.flatten_parameters(module)
    network = runtime.NumpyNetwork(flat.detach().numpy(), (3, 4, 2))
    x = torch.randn(5, 3)
    for _ in range(2):
        assert np.abs(network(x.numpy()) - module(x).detach().numpy()).max() < 1e-6
        with torch.no_grad():
            flat.mul_(-2.0)


def test_first_not_finite_names_the_vector() -> None:
    good, bad = torch.ones(3), torch.tensor([1.0, float("inf")])
    assert runtime.first_not_finite({"a": good, "b": bad, "c": bad}) == "b"
    assert runtime.first_not_finite({"a": good}) is None


# metrics


def test_a_line_goes_to_progress_and_stdout_without_nan(
    run: runtime.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = runtime.Reporter(run, step=0)
    reporter.line(1000, {"reward": 22.4321, "eval/return": 120.0, "loss/td": float("nan")})
    reporter.line(2000, {"reward": 30.0})
    reporter.close()
    first, second = progress(run)
    assert first["step"] == 1000 and set(first["metrics"]) == {
        "reward", "eval/return", "perf/steps_per_s"
    }  # fmt: skip
    assert second["metrics"]["reward"] == 30.0 and "eval/return" not in second["metrics"]
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("step 1000  return 22.4  eval 120.0  sps ")
    assert shown[1].startswith("step 2000  return 30.0  eval 120.0  sps ")


def test_without_tensorboard_it_says_so_once_and_goes_on(
    run: runtime.Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    reporter = runtime.Reporter(run, step=0)
    reporter.scalar("reward", 1.0, 1)
    reporter.line(10, {"reward": 1.0})
    reporter.flush()
    reporter.close()
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert len(progress(run)) == 1
