from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import leases
import pytest
import rank

WORKER = Path(rank.__file__).parent
ROOT = WORKER.parents[1]


def start(
    logs: Path, argv: list[str], paths: tuple[str, ...] = (), **env: str
) -> subprocess.Popen[bytes]:
    """A rank as torchrun's agent starts it."""
    plan = json.dumps({"leases": list(paths), "logs": str(logs)})
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(WORKER), "rank", *argv],
        env={"PATH": os.environ["PATH"], "RANK": "1", rank.PLAN: plan, **env},
        stdin=subprocess.PIPE,
        # what torchrun's agent leaves behind must not reach the job
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    )


def test_a_rank_writes_straight_into_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "rank-1.log").write_bytes(b"earlier attempt\n")
    code = "echo out; echo err >&2; cat; echo $RUNNER_PROGRESS; env | grep -c PLAN"
    child = start(tmp_path, ["sh", "-c", code])
    child.communicate(b"typed")
    progress = f"{tmp_path}/progress-rank-1.jsonl"
    said = (tmp_path / "rank-1.log").read_text()
    assert said == f"earlier attempt\nout\nerr\n{progress}\n0\n"


def test_signals_are_as_a_program_expects_them(tmp_path: Path) -> None:
    child = start(tmp_path, ["sh", "-c", "kill -TERM $$; echo alive"])
    child.communicate()
    assert child.returncode == -signal.SIGTERM


def test_a_rank_holds_the_leases_too(tmp_path: Path) -> None:
    path = leases.gpu_path(str(tmp_path), "GPU-1")
    fd = leases.claim(path, "run.1.a", "run")
    assert fd is not None
    child = start(tmp_path, ["sh", "-c", "echo up; exec sleep 60"], (path,))
    log = tmp_path / "rank-1.log"
    try:
        while not (log.exists() and b"up" in log.read_bytes()):
            assert child.poll() is None
        os.close(fd)
        assert leases.holder(path) is not None
    finally:
        child.kill()
        child.communicate()
    assert leases.holder(path) is None


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("no-such", 127, "runner: no-such: no such program\n"),
        ("/etc/passwd", 126, "runner: /etc/passwd: Permission denied\n"),
        ("/etc", 126, "runner: /etc: Permission denied\n"),
    ],
)
def test_a_program_that_cannot_be_run(tmp_path: Path, program: str, status: int, said: str) -> None:
    child = start(tmp_path, [program, "x"])
    child.communicate()
    assert child.returncode == status
    assert (tmp_path / "rank-1.log").read_text() == said
