"""Where an agent runs: device, folders, signals, faults."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

from tests.helpers.agents import progress  # noqa: E402

# isort: split
import options  # noqa: E402
import runtime  # noqa: E402


def test_cuda_that_is_not_there_is_refused_and_auto_takes_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # on a machine with GPUs, too
    with pytest.raises(options.Refused, match="device=cuda is asked for, but torch"):
        runtime.choose_device("cuda", 0)
    with pytest.raises(options.Refused, match="must be auto, cpu or cuda"):
        runtime.choose_device("tpu", 0)
    assert runtime.choose_device("auto", 0).type == "cpu"


def test_a_leased_card_that_torch_does_not_see_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    assert runtime.choose_device("auto", 0).type == "cpu"
    told = capsys.readouterr().err
    assert told.startswith("WARNING: a GPU is leased (CUDA_VISIBLE_DEVICES=GPU-1), but torch")
    assert told.endswith("training on the CPU\n") and told.count("\n") == 1
    assert runtime.choose_device("cpu", 0).type == "cpu" and not capsys.readouterr().err


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
    assert run.asked_to_stop() and run.agree_to_stop(tick=3, every=2)
    with pytest.raises(SystemExit) as end, runtime.edge(run):
        raise runtime.Stopped
    assert end.value.code == status


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (runtime.Fault("nan", "loss became nan", step=9), "nan"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"), "cuda-oom"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk-full"),
        (MemoryError("Unable to allocate 9 TiB"), "oom"),
        (
            RuntimeError(
                "[enforce fail at x.cpp:1] err == 0. DefaultCPUAllocator: can't allocate "
                "memory: you tried to allocate 9 bytes"
            ),
            "oom",
        ),
        (RuntimeError("Storage size calculation overflowed with sizes=[9, 4]"), "oom"),
        (ValueError("array is too big; `arr.size * arr.dtype.itemsize` is larger"), "oom"),
    ],
)
def test_what_ends_a_training_is_written_down(
    run: runtime.Run, tmp_path: Path, error: Exception, kind: str
) -> None:
    with pytest.raises(SystemExit) as end, runtime.edge(run):
        raise error
    assert kind in str(end.value.code) and "\n" not in str(end.value.code)
    (line,) = progress(tmp_path)
    assert line["fault"] == kind and line.get("step") == (9 if kind == "nan" else None)


def test_an_environment_that_ends_the_program_does_not_end_the_training_well(
    run: runtime.Run, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended, runtime.edge(run):
        sys.exit(0)
    assert "ended from within, with status 0" in str(ended.value.code)
    assert progress(tmp_path)[-1]["fault"] == "environment"


def test_a_place_that_cannot_be_written_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").write_text("a file")
    with pytest.raises(options.Refused, match="results/by-hand: nothing can be written there .*go"):
        runtime.unique_folder("dqn")
    monkeypatch.setenv("RUNNER_PROGRESS", str(tmp_path / "results" / "progress"))
    with pytest.raises(options.Refused, match="progress: nothing .*set RUNNER_PROGRESS to another"):
        runtime.open_progress()
    with pytest.raises(OSError), runtime.writable(tmp_path, ""):
        raise OSError(errno.ENOSPC, "full")  # has a fault of its own


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
