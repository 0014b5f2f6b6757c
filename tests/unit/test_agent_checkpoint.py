"""Checkpoints: whole or not there, chosen by what was measured."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

from tests.helpers.agents import AGENTS  # noqa: E402  puts agents/ on the path
from tests.helpers.two_ranks import as_processes  # noqa: E402

# isort: split
import checkpoint  # noqa: E402
import options  # noqa: E402
import runtime  # noqa: E402


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[runtime.Run]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setenv("RUNNER_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("RUNNER_LOGS", str(tmp_path / "logs"))
    monkeypatch.setenv("RUNNER_RESUME", "")
    yield runtime.Run("test", device="cpu")
    for number, handler in kept.items():
        signal.signal(number, handler)


def write(run: runtime.Run, step: int, score: float | None = None, **state: Any) -> Path:
    metrics = {} if score is None else {"eval/return": score}
    return checkpoint.write(
        run, None, step=step, metrics=metrics, state=state, own={"env-rank0.bin": b"x"}
    )


def test_manifest_names_every_file_with_size_and_digest(run: runtime.Run) -> None:
    folder = write(run, 7, 1.5, params=torch.zeros(3))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert folder.name == "step-000000007" and manifest["step"] == 7
    assert manifest["metrics"] == {"eval/return": 1.5}
    files = checkpoint.read_manifest(folder)
    assert set(files) == {"model.pt", "env-rank0.bin"}
    assert all(checkpoint.digest_file(folder / name) == files[name] for name in files)


def test_what_fails_half_way_leaves_nothing(
    run: runtime.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AttributeError):  # a local function cannot be pickled
        write(run, 7, params=lambda: None)
    assert list(run.checkpoints.iterdir()) == []


def test_a_checkpoint_that_is_there_never_changes(run: runtime.Run) -> None:
    folder = write(run, 7, 1.0)
    before = (folder / "manifest.json").read_bytes()
    write(run, 7, 2.0)
    assert (folder / "manifest.json").read_bytes() == before
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000007"]


def test_memory_is_told_only_of_files_that_came_to_lie_there(run: runtime.Run) -> None:
    class Memory:
        told: list[Path] = []

        def save(self, folder: Path) -> dict[str, checkpoint.StoredFile]:
            return {"memory.bin": checkpoint.write_file(folder / "memory.bin", b"m")}

        def kept_in(self, folder: Path, files: dict[str, checkpoint.StoredFile]) -> None:
            self.told.append(folder / next(iter(files)))

    memory = Memory()
    for step in (1, 1, 2):
        checkpoint.write(run, memory, step=step, metrics={}, state={}, own={})
    folders = [path.parent.name for path in memory.told]
    assert folders == ["step-000000001", "step-000000002"]
    assert "memory.bin" in checkpoint.read_manifest(memory.told[0].parent)


def test_leftovers_of_a_killed_attempt_go_and_checkpoints_stay(run: runtime.Run) -> None:
    write(run, 7)
    (run.checkpoints / "step-000000008.tmp").mkdir()
    (run.checkpoints / "step-000000008.tmp" / "model.pt").write_bytes(b"half")
    run.resume = run.checkpoints / "step-000000007"
    with checkpoint.own_folder(run):
        pass
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000007"]


def test_best_is_the_highest_and_of_equals_the_latest(run: runtime.Run) -> None:
    scores = {1: 9.0, **dict.fromkeys(range(2, 30), 500.0), 30: None, 31: 20.0}
    for step, score in scores.items():
        write(run, step, score)
    (run.checkpoints / "step-000000009.tmp").mkdir()
    best = checkpoint.best_checkpoint(run.checkpoints, "eval/return")
    assert best.name == "step-000000029"
    assert checkpoint.best_checkpoint(best, "eval/return") == best


def test_without_a_measured_one_the_latest_is_best(run: runtime.Run, tmp_path: Path) -> None:
    write(run, 1)
    write(run, 2)
    assert checkpoint.best_checkpoint(run.checkpoints, "eval/return").name == "step-000000002"
    with pytest.raises(options.Refused, match="no checkpoint there"):
        checkpoint.best_checkpoint(tmp_path / "logs", "eval/return")


def test_equal_state_gives_equal_bytes_whatever_objects_hold_it(run: runtime.Run) -> None:
    one = {"key": ["text", "text"], "step": 3}
    two = {"".join("key"): ["".join(["te", "xt"]), "text"], "".join(["st", "ep"]): 3}
    first, second = write(run, 1, state=one), write(run, 2, state=two)
    assert (first / "model.pt").read_bytes() == (second / "model.pt").read_bytes()


def test_model_made_to_run_code_is_not_read(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"params": Bad()}, tmp_path / "model.pt")
    with pytest.raises(options.Refused, match="cannot be read"):
        checkpoint.read_model(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_options_that_shape_the_state_must_fit(tmp_path: Path) -> None:
    checkpoint.check_fits(tmp_path, {"env": "a", "lr": 1}, {"env": "a", "lr": 2}, "env")
    with pytest.raises(options.Refused, match="env is b, but .* was made with a"):
        checkpoint.check_fits(tmp_path, {"env": "a"}, {"env": "b"}, "env")


# trainings


@dataclass(frozen=True)
class Options:
    env: str = "some"
    hidden: int = 8
    seed: int = 3
    steps: int = 100


class Episodes:
    """Stands for environments; `kept` is what they say of themselves."""

    def __init__(self, kept: bytes) -> None:
        self.kept, self.told = kept, (b"", -1)

    def save(self) -> bytes:
        return self.kept

    def load(self, data: bytes, *, step: int) -> None:
        self.told = data, step


class Trained:
    def __init__(self, run: Any, *, kept: bytes = b"playing", drawn: int = 0, **told: Any) -> None:
        self.o, self.run, self.step = Options(**told), run, 0
        self.rng, self.envs = np.random.default_rng(drawn), Episodes(kept)


def saved(run: runtime.Run, **told: Any) -> tuple[Trained, Path]:
    t = Trained(run, **told)
    t.step = 7
    t.rng.random(5)
    state = {"params": torch.arange(3.0), "agent": "some", "format": 1, "sizes": [3]}
    checkpoint.save(t, state, {"eval/return": 2.0}, own={"more.bin": b"m"})
    return t, run.checkpoints / "step-000000007"


def test_a_saved_training_goes_on_where_it_was(run: runtime.Run) -> None:
    t, folder = saved(run)
    assert set(checkpoint.read_manifest(folder)) == {"model.pt", "env-rank0.bin", "more.bin"}
    state = checkpoint.read_model(folder)
    said = {name: state[name] for name in ("agent", "step", "env", "ranks", "options", "sizes")}
    assert said == {"agent": "some", "step": 7, "env": "some", "ranks": 1, "sizes": [3],
                    "options": {"env": "some", "hidden": 8, "seed": 3, "steps": 100}}  # fmt: skip
    again = Trained(run, drawn=1)
    assert checkpoint.go_on(again, folder, state, fits="env hidden", sizes=[3])
    assert again.step == 7 and again.envs.told == (b"playing", 7)
    assert again.rng.random() == t.rng.random()


def test_environments_that_were_not_kept_are_told_of_it(run: runtime.Run) -> None:
    _, folder = saved(run, kept=b"")
    again = Trained(run)
    assert not checkpoint.go_on(again, folder, checkpoint.read_model(folder), fits="env")
    assert again.envs.told == (b"", 7)


def test_a_training_of_another_shape_is_refused_and_stays_as_it_is(run: runtime.Run) -> None:
    _, folder = saved(run)
    state = checkpoint.read_model(folder)
    other = Trained(run, hidden=9)
    for text, told in (
        ("hidden is 9, but .* was made with 8", {"fits": "env hidden"}),
        (r"sizes is \[4\], but .* was made with \[3\]", {"fits": "env", "sizes": [4]}),
    ):
        with pytest.raises(options.Refused, match=text):
            checkpoint.go_on(other, folder, state, **told)
    with pytest.raises(options.Refused, match="ranks is 1, but .* was made with 2"):
        checkpoint.go_on(other, folder, {**state, "ranks": 2}, fits="env")
    assert other.step == 0 and other.envs.told == (b"", -1)


def test_another_seed_and_steps_made_already_are_refused(run: runtime.Run) -> None:
    _, folder = saved(run)
    state = checkpoint.read_model(folder)
    with pytest.raises(options.Refused, match="seed is 4, but .* was made with 3"):
        checkpoint.go_on(Trained(run, seed=4), folder, state, fits="env")
    with pytest.raises(options.Refused, match="steps is 6, but 7 are made already in .*; ask for"):
        checkpoint.go_on(Trained(run, steps=6), folder, state, fits="env")
    rolled = {**state, "options": {**state["options"], "steps": 6}}  # a whole rollout at its end
    checkpoint.go_on(Trained(run, steps=6), folder, rolled, fits="env")


def test_what_is_no_whole_checkpoint_of_this_agent_is_refused(run: runtime.Run) -> None:
    _, folder = saved(run)
    assert checkpoint.read_own(folder, "some")["step"] == 7
    with pytest.raises(options.Refused, match="a checkpoint of some, not of other"):
        checkpoint.read_own(folder, "other")
    with pytest.raises(options.Refused, match="cannot be gone on from"):
        checkpoint.read_own(folder, "some", format=2)
    more, model = folder / "more.bin", folder / "model.pt"
    for spoil in (b"", b"x"):
        more.write_bytes(spoil)
        with pytest.raises(options.Refused, match=r"more\.bin is not what its manifest says"):
            checkpoint.read_own(folder, "some")
    more.unlink()
    with pytest.raises(options.Refused, match=r"more\.bin: No such file"):
        checkpoint.read_own(folder, "some")
    for foreign in ([1], {"weights": 1}):
        torch.save(foreign, model)
        manifest = {"files": {"model.pt": vars(checkpoint.digest_file(model))}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(options.Refused, match="not a checkpoint of some"):
            checkpoint.read_own(folder, "some")
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(options.Refused, match="its manifest cannot be read"):
        checkpoint.read_own(folder, "some")


def refused_folder(run: runtime.Run) -> str:
    try:
        with checkpoint.own_folder(run):
            return ""
    except options.Refused as problem:
        return str(problem)


def test_a_folder_belongs_to_one_training(run: runtime.Run) -> None:
    with checkpoint.own_folder(run):
        assert "another training writes there" in refused_folder(run)
    assert refused_folder(run) == ""
    write(run, 7)
    assert "up to step-000000007; go on from one" in refused_folder(run)


def test_a_folder_that_cannot_be_written_is_refused(run: runtime.Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run.checkpoints = tmp_path / "file" / "checkpoints"
    assert "nothing can be written there (Not a directory)" in refused_folder(run)


APART = """
import sys; sys.path.insert(0, {agents!r})
sys.path.insert(0, {root!r})
import runtime, torch
from tests.unit.test_agent_checkpoint import Trained, checkpoint
run = runtime.Run("test", device="cpu")
t = Trained(run)
for same in (True, False):
    try:
        checkpoint.save(t, dict(params=torch.ones(3) * (1 if same else run.rank)), dict())
        t.step += 1
    except runtime.Fault as fault:
        print(fault.kind, fault, t.step)
runtime.close(run)
"""


def test_ranks_that_hold_different_parameters_are_a_fault_and_leave_nothing(
    tmp_path: Path,
) -> None:
    code = APART.format(agents=str(AGENTS), root=str(AGENTS.parent))
    said = as_processes(code, tmp_path)
    assert said == ["ranks-differ the ranks hold different parameters 1\n"] * 2
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert folder.name == "step-000000000"
    files = set(checkpoint.read_manifest(folder))
    assert files == {"model.pt", "env-rank0.bin", "env-rank1.bin"}
