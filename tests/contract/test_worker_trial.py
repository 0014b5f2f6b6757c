"""The worker's `probe`: torch tried by the job's own Python, on cards that nobody has."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import leases
import pytest

from runner.endpoint import Worker
from runner.model import Host
from tests.helpers.local_worker import LocalWorker
from tests.helpers.wait import wait_for
from tests.rig import gpus as rig_gpus


def probe(limit_s: float = 100.0) -> dict[str, Any]:
    with Worker(Host(name="local", runtime="local")) as worker:
        return worker.call("probe", limit_s=limit_s)[0]


def test_torch_and_its_ranks_are_tried(local_worker: LocalWorker) -> None:
    pytest.importorskip("torch", reason="left out: torch: not installed")
    # where no run was made yet the job's Python is the first on the path
    local_worker.set_env("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    found = probe()
    assert found["tried"] is True and "problem" not in found, found
    assert found["torch"][:1].isdigit() and found["matmul"] is True
    assert found["reduce"]["ok"] is True and found["reduce"]["ranks"] == 2
    assert found["cards"] == [] and found["nvidia"] is None and found["stuck"] == []


@pytest.fixture
def cards(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[rig_gpus.FakeGpus]:
    """Two cards that the worker's nvidia-smi tells of."""
    folder = local_worker.root / "bin"
    made = rig_gpus.FakeGpus(local_worker.root / "cards")
    made.set_cards(2)
    rig_gpus.place_tool(folder, made.folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    yield made
    made.close()


def play(worker: LocalWorker, text: str) -> None:
    """The job's Python is this program."""
    path = worker.root / "bin" / "python3"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    worker.set_env("PATH", f"{path.parent}:{os.environ['PATH']}")


TELLS = """
import fcntl, json, os, sys
print("junk first")
for row in (dict(torch="2.6.0", cuda="12.4"), dict(matmul=True), {"card": 0, "state": "ok"}):
    print("trial " + json.dumps(row))
visible = os.environ["CUDA_VISIBLE_DEVICES"]
with open(os.path.join(os.environ["LEASES"], visible)) as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = False
    except BlockingIOError:
        held = True
print("trial " + json.dumps({"saw": visible, "words": sys.argv[-2], "leased": held}))
"""


def test_a_card_that_a_run_has_is_not_touched(
    local_worker: LocalWorker, cards: rig_gpus.FakeGpus
) -> None:
    leased, free = cards.uuids
    local_worker.leases.mkdir()
    local_worker.set_env("LEASES", str(local_worker.leases))
    fd = leases.claim(leases.gpu_path(str(local_worker.leases), leased), "token", "dqn-7k3fa")
    assert fd is not None
    play(local_worker, TELLS)
    found = probe()
    os.close(fd)
    assert found["seen"] == 2
    assert found["saw"] == free and found["words"] == "1" and found["leased"] is True
    busy, tried = found["cards"]
    assert (busy["state"], busy["text"]) == ("busy", "dqn-7k3fa has it")
    assert tried["state"] == "ok" and "text" not in tried
    # given back
    assert leases.holder(leases.gpu_path(str(local_worker.leases), free)) is None


def test_a_card_that_others_use_is_not_touched(
    local_worker: LocalWorker, cards: rig_gpus.FakeGpus
) -> None:
    local_worker.leases.mkdir()
    cards.hold(0, 4000)
    play(
        local_worker,
        "import os; print('trial {\"saw\": \"%s\"}' % os.environ['CUDA_VISIBLE_DEVICES'])",
    )
    found = probe()
    assert found["saw"] == cards.uuids[1]
    assert [row["state"] for row in found["cards"]] == ["busy", "failed"]
    assert found["cards"][0]["text"] == "others use it"


def test_what_hangs_is_ended_with_all_it_started(local_worker: LocalWorker) -> None:
    pid_file = local_worker.root / "pid"
    play(
        local_worker,
        "import subprocess, sys, time\n"
        'print(\'trial {"torch": "9.9"}\', flush=True)\n'
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n",
    )
    found = probe(limit_s=6.0)
    assert found["slow"] is True and found["torch"] == "9.9"
    assert "no answer within" in found["problem"]
    wait_for(lambda: not _lives(int(pid_file.read_text())), 10, "its child to end")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_python_without_torch_is_said_in_its_own_words(local_worker: LocalWorker) -> None:
    play(local_worker, "raise ModuleNotFoundError(\"No module named 'torch'\")")
    found = probe()
    assert found["problem"] == "ModuleNotFoundError: No module named 'torch'"
    assert "torch" not in found


def test_without_time_nothing_is_tried(local_worker: LocalWorker) -> None:
    found = probe(limit_s=1.0)
    assert found["tried"] is False and found["problem"] == "no time was left"
