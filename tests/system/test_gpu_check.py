"""`make gpu` where there is no GPU, and with the rig's stand-in for one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig import gpus

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"
LIMIT_S = 300.0


def check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it where `folder` is the only place an nvidia-smi could be in."""
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, SCRIPT, *words],
        env={"PATH": f"{folder}", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_a_machine_without_gpu_is_told_in_one_line(tmp_path: Path) -> None:
    done = check(tmp_path / "bin")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "no GPU to check here: nvidia-smi is not installed\n"


def test_a_driver_that_does_not_answer_is_told_in_its_words(tmp_path: Path) -> None:
    gpus.place_tool(tmp_path / "bin", tmp_path / "gpus")
    done = check(tmp_path / "bin")
    assert (done.returncode, done.stdout) == (4, "")
    assert "NVIDIA-SMI has failed" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="left out: torch: not installed"
)
def test_all_of_it_holds_with_a_stand_in(tmp_path: Path) -> None:
    cards = gpus.FakeGpus(tmp_path / "gpus")
    cards.set_cards(2)
    gpus.place_tool(tmp_path / "bin", cards.folder)
    try:
        done = check(tmp_path / "bin", "stand-in")
    finally:
        cards.close()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout and "all as it should be" in done.stdout
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.split()}
    for name in ("dqn", "ppo"):
        assert float(rows[name][0]) > 0 and rows[name][1:] == ["-"] * 4
    assert "left out: card; card, amp; card, compiled; card, both: needs CUDA" in done.stdout
