"""Metrics: lines that are whole, and what is said without TensorBoard."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

from tests.helpers.agents import progress  # noqa: E402

# isort: split
import metrics  # noqa: E402
import runtime  # noqa: E402
from options import Refused  # noqa: E402


def test_a_line_goes_to_progress_and_stdout_without_nan(
    run: runtime.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = metrics.Reporter(run, step=0)
    reporter.line(1000, {"reward": 22.4321, "eval/return": 120.0, "loss/td": float("nan")})
    reporter.line(2000, {"reward": 30.0})
    reporter.close()
    first, second = progress(tmp_path)
    assert first["step"] == 1000 and set(first["metrics"]) == {
        "reward", "eval/return", "perf/steps_per_s"
    }  # fmt: skip
    assert second["metrics"]["reward"] == 30.0 and "eval/return" not in second["metrics"]
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("step 1000  return 22.4  eval 120.0  sps ")
    assert shown[1].startswith("step 2000  return 30.0  eval 120.0  sps ")


def test_without_tensorboard_it_says_so_once_and_goes_on(
    run: runtime.Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    reporter = metrics.Reporter(run, step=0)
    reporter.scalars({"reward": 1.0}, 1)
    reporter.line(10, {"reward": 1.0})
    reporter.flush()
    reporter.close()
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert len(progress(tmp_path)) == 1


def test_logs_that_cannot_be_written_are_refused(run: runtime.Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run.logs = tmp_path / "file" / "logs"
    with pytest.raises(Refused, match="file/logs: nothing can be written there .*RUNNER_LOGS"):
        metrics.Reporter(run, step=0)
