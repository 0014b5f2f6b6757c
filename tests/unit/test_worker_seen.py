from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import config
import gpus
import leases
import pytest
import records
import seen
from paths import Workspace

OWN = {"id": "w-1", "runtime": "local", "image": None}
OTHER = {"id": "w-2", "runtime": "docker", "image": "cu124"}
WORKER = config.Config("w-1", "local")


def card(index: int, used_mib: int = 3) -> dict[str, Any]:
    return {"index": index, "uuid": f"GPU-{index}", "used_mib": used_mib}


def stranger(index: int, used_mib: int | None, *pids: dict[str, Any], left: bool = False) -> Any:
    row = {"index": index, "uuid": f"GPU-{index}", "used_mib": used_mib, "since": 5.0}
    return dict(row, pids=list(pids), left=left)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace where nvidia-smi is what the test writes."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    made = Workspace(str(tmp_path / "ws"))
    made.make()
    say(tmp_path, "echo 'no driver'; exit 9")
    return made


def say(folder: Path, script: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)


def cards_line(count: int) -> str:
    return "\n".join(f"echo {n}, GPU-{n}, 81920, 3, 550.54, A card" for n in range(count))


def test_what_was_seen_comes_back(workspace: Workspace) -> None:
    assert seen.Seen.read(workspace.gpus) is None
    before = seen.Seen([card(0)], [stranger(0, 9)], [], "nvidia-smi exits 9", "no driver")
    before.write(workspace.gpus)
    after = seen.Seen.read(workspace.gpus)
    assert after is not None
    assert after.is_fresh
    assert (after.cards, after.strangers, after.going) == ([card(0)], [stranger(0, 9)], [])
    assert (after.problem, after.said) == ("nvidia-smi exits 9", "no driver")
    assert gpus.read_cached(workspace.gpus) == [card(0)]
    # by an older runner
    records.write(workspace.gpus, {"at": time.time() - 61, "cards": [card(0)]})
    old = seen.Seen.read(workspace.gpus)
    assert old is not None
    assert not old.is_fresh
    assert (old.strangers, old.problem) == ([], None)


@pytest.mark.parametrize(
    "row",
    [
        3,
        {},
        {"uuid": "GPU-1"},
        {"uuid": "../x", "index": 0, "used_mib": 0},
        {"uuid": "GPU-/x", "index": 0, "used_mib": 0},
        {"uuid": "GPU-1", "index": "0", "used_mib": 0},
        {"uuid": "GPU-1", "index": 0, "used_mib": [1]},
    ],
)
def test_what_a_job_made_of_the_file_is_passed_over(workspace: Workspace, row: Any) -> None:
    good = stranger(0, 9)
    body = {"at": "x", "cards": [row, good], "strangers": [row, card(1), good], "going": 7}
    records.write(workspace.gpus, dict(body, problem=3, said=["x"]))
    found = seen.Seen.read(workspace.gpus)
    assert found == seen.Seen([good], [good], [])
    assert not found.is_fresh


def test_what_a_job_made_of_its_lease_is_passed_over(tmp_path: Path) -> None:
    path = leases.gpu_path(str(tmp_path), "GPU-0")
    fd = leases.claim(path, "a.1.x", "a")
    assert fd is not None
    for note in ('{"run": {"x": 1}, "worker": [1]}', '{"run": 3, "worker": {"image": [2]}}', "["):
        Path(path).write_text(note)
        why = seen.Seen([card(0)], [], []).why_not(str(tmp_path), 1)
        assert seen.in_words(why) == ["another worker's"]
    os.close(fd)


def test_why_there_are_no_cards(tmp_path: Path) -> None:
    folder = str(tmp_path)
    held = []
    for index, (run, worker) in enumerate((("a", OWN), ("b", OTHER), ("c", None))):
        path = leases.gpu_path(folder, f"GPU-{index}")
        held.append(leases.claim(path, f"{run}.1.x", run, worker))
    ann = {"pid": 7, "user": "ann", "program": "python3", "used_mib": 900}
    small = {"pid": 6, "user": "bob", "program": "x", "used_mib": 1}
    what = seen.Seen(
        [card(n) for n in range(7)],
        [stranger(3, 3003, small, ann), stranger(4, None), stranger(5, 3, left=True)],
        [{"index": 6, "uuid": "GPU-6", "used_mib": 2003}],
    )
    why = what.why_not(folder, 7, OWN)
    assert why == {
        "kind": "gpus",
        "want": 7,
        "there": 7,
        "holders": [
            {"index": 0, "run": "a"},
            {"index": 1, "run": "b", "worker": OTHER},
            {"index": 2, "run": "c"},
        ],
        "strangers": [
            {
                "index": 3,
                "used_mib": 3003,
                "since_at": 5.0,
                "pid": 7,
                "user": "ann",
                "program": "python3",
            },
            {"index": 4, "since_at": 5.0},
            {"index": 5, "used_mib": 3, "since_at": 5.0, "left": True},
        ],
        "going": [{"index": 6, "used_mib": 2003}],
    }
    assert seen.in_words(why) == [
        "a's",
        "b's (image cu124)",
        "c's",
        "GPU 3 is in use by others (3003 MiB, ann's python3)",
        "GPU 4 is in use by others",
        "GPU 5 was in use by others until just now",
        "GPU 6: memory of the run before is going (2003 MiB)",
    ]
    for fd in held:
        assert fd is not None
        os.close(fd)


def test_a_failure_is_the_reason_whatever_else_there_is(tmp_path: Path) -> None:
    what = seen.Seen([card(0)], [stranger(0, 900)], [], "nvidia-smi exits 9", "no driver")
    why = what.why_not(str(tmp_path), 1)
    assert (why["query_failed"], why["said"]) == ("nvidia-smi exits 9", "no driver")
    assert seen.in_words(why) == ["nvidia-smi exits 9"]


def test_fewer_cards_than_asked_for_are_the_reason_then(tmp_path: Path) -> None:
    why = seen.Seen([card(0)], [], []).why_not(str(tmp_path), 2)
    assert seen.in_words(why) == ["there is 1"]
    assert seen.in_words(seen.Seen([card(0)], [], []).why_not(str(tmp_path), 1)) == []


def test_a_run_of_another_worker_that_does_not_tell_its_name() -> None:
    why = {"want": 1, "holders": [{"index": 0, "run": None}], "strangers": []}
    assert seen.in_words(why) == ["another worker's"]


def test_as_many_cards_as_asked_for(workspace: Workspace, tmp_path: Path) -> None:
    say(tmp_path, cards_line(2))
    assert seen.settle(0, 1, workspace, WORKER) == 0
    assert seen.settle(2, 1, workspace, WORKER) == 2
    assert seen.settle("auto", 2, workspace, WORKER) == 2
    with pytest.raises(seen.NoGpu, match=r"^asked for 3 GPUs, there are 2$") as caught:
        seen.settle(3, 1, workspace, WORKER)
    assert (caught.value.wanted, caught.value.count) == (3, 2)
    with pytest.raises(seen.NoGpu):
        seen.settle("auto", 3, workspace, WORKER)


def test_a_worker_without_cards_says_so(workspace: Workspace, tmp_path: Path) -> None:
    say(tmp_path, cards_line(2))
    none = config.Config("w-1", "local", gpus="none")
    assert seen.settle("auto", 2, workspace, none) == 0
    with pytest.raises(seen.NoGpu, match=r"^asked for 1 GPU, there are none$"):
        seen.settle(1, 1, workspace, none)
    one = config.Config("w-1", "local", gpus=[1])
    assert seen.settle("auto", 1, workspace, one) == 1
    with pytest.raises(seen.NoGpu, match="there is 1"):
        seen.settle(2, 1, workspace, one)


def test_where_the_tool_never_showed_any_it_is_told_what_it_says(workspace: Workspace) -> None:
    # not a quiet run on the CPU: the host has cards, or should
    with pytest.raises(seen.NoGpu, match="nvidia-smi exits 9: no driver, so nobody knows"):
        seen.settle("auto", 1, workspace, WORKER)
    said = r"^asked for 1 GPU, there are none \(nvidia-smi exits 9: no driver\)$"
    with pytest.raises(seen.NoGpu, match=said):
        seen.settle(1, 1, workspace, WORKER)


def test_where_it_showed_them_before_a_failure_is_waited_through(workspace: Workspace) -> None:
    seen.Seen([card(0)], [], []).write(workspace.gpus)
    body = records.read(workspace.gpus)
    assert body is not None
    records.write(workspace.gpus, dict(body, at=time.time() - 86400))
    assert seen.settle(1, 1, workspace, WORKER) == 1
    assert seen.settle("auto", 1, workspace, WORKER) == 1
    with pytest.raises(seen.NoGpu, match=r"^asked for 2 GPUs, there is 1$"):
        seen.settle(2, 1, workspace, WORKER)


def test_a_tool_that_went_missing_takes_no_cards_with_it(
    workspace: Workspace, tmp_path: Path
) -> None:
    seen.Seen([card(0)], [], []).write(workspace.gpus)
    body = records.read(workspace.gpus)
    assert body is not None
    records.write(workspace.gpus, dict(body, at=time.time() - 86400))
    (tmp_path / "nvidia-smi").unlink()
    os.environ["PATH"] = str(tmp_path)
    assert seen.settle(1, 1, workspace, WORKER) == 1
    assert seen.settle("auto", 1, workspace, WORKER) == 1
    os.unlink(workspace.gpus)
    with pytest.raises(seen.NoGpu, match=r"there are none \(nvidia-smi is not installed\)$"):
        seen.settle(1, 1, workspace, WORKER)
    assert seen.settle("auto", 1, workspace, WORKER) == 0
