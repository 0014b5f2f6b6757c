from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import leases
import pytest

from tests.helpers.wait import wait_for

WORKER = os.path.dirname(leases.__file__)
CONTEND = f"""
import os, sys, time
sys.path.insert(0, {WORKER!r})
import leases
folder, journal, me = sys.argv[1:]
out = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
paths = leases.slot_paths(folder, 2)
wins = 0
deadline = time.time() + 20
while wins < 60 and time.time() < deadline:
    got = leases.claim_some(paths, 1, "%s.%d" % (me, wins), me)
    if got:
        (path, fd), = got.items()
        os.write(out, b"+ %s\\n" % os.path.basename(path).encode())
        time.sleep(0.001)
        os.write(out, b"- %s\\n" % os.path.basename(path).encode())
        os.close(fd)
        wins += 1
"""


def test_a_lease_has_one_holder_among_many_processes(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    argv = [sys.executable, "-I", "-c", CONTEND, str(tmp_path), str(journal)]
    children = [subprocess.Popen([*argv, f"w{n}"]) for n in range(4)]
    assert [child.wait(40) for child in children] == [0] * 4
    held: dict[str, int] = {}
    taken = 0
    for line in journal.read_text().splitlines():
        sign, name = line.split()
        held[name] = held.get(name, 0) + (1 if sign == "+" else -1)
        taken += sign == "+"
        assert held[name] in (0, 1)
    assert taken == 240


PROBE = f"""
import sys
sys.path.insert(0, {WORKER!r})
import leases
while True:
    for path in leases.slot_paths(sys.argv[1], 2):
        leases.holder(path)
"""


def test_who_only_asks_takes_no_lease_away(tmp_path: Path) -> None:
    path = leases.slot_paths(str(tmp_path), 1)[0]
    fd = leases.claim(path, "run.1.ab", "run")
    assert fd is not None
    probe = subprocess.Popen([sys.executable, "-I", "-c", PROBE, str(tmp_path)])
    try:
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            assert (leases.holder(path) or {})["run"] == "run"
            assert leases.claim(path, "other.1.cd", "other") is None
    finally:
        probe.kill()
        probe.wait()
        os.close(fd)


HOLD = f"""
import os, subprocess, sys
sys.path.insert(0, {WORKER!r})
import leases
fd = leases.claim(sys.argv[1], "run.1.ab", "run")
job = subprocess.Popen(["sleep", "60"], close_fds=False, start_new_session=True)
print(job.pid, flush=True)
job.wait()
"""


def test_a_killed_holder_keeps_nothing_and_its_job_keeps_it(tmp_path: Path) -> None:
    path = leases.gpu_path(str(tmp_path), "GPU-1")
    argv = [sys.executable, "-I", "-c", HOLD, path]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        job = int(holder.stdout.readline())
        holder.kill()
    try:
        assert (leases.holder(path) or {})["run"] == "run"
        assert leases.claim(path, "other.1.cd", "other") is None
    finally:
        os.kill(job, signal.SIGKILL)
    wait_for(lambda: leases.holder(path) is None, 5, "the lease to be free")
    assert b"run.1.ab" in leases.last_note(path)


def test_a_lease_tells_which_worker_has_it(tmp_path: Path) -> None:
    path = leases.gpu_path(str(tmp_path), "GPU-1")
    assert leases.last_note(path) == b""
    worker = {"id": "w-1", "runtime": "docker", "image": "cu124"}
    fd = leases.claim(path, "run.1.ab", "run", worker)
    assert fd is not None
    assert (leases.holder(path) or {})["worker"] == worker
    os.close(fd)
    got = leases.claim_some([path], 1, "run.2.ab", "run", worker)
    assert got is not None
    assert (leases.holder(path) or {})["worker"] == worker
    os.close(got[path])


def test_a_lease_lives_as_long_as_whoever_inherited_it(tmp_path: Path) -> None:
    path = leases.gpu_path(str(tmp_path), "GPU-1")
    fd = leases.claim(path, "run.1.ab", "run")
    assert fd is not None
    assert leases.holder(path) == {
        "token": "run.1.ab",
        "run": "run",
        "by": (leases.holder(path) or {})["by"],
    }
    job = subprocess.Popen(["sleep", "60"], close_fds=False)
    os.close(fd)
    assert leases.claim(path, "other.1.cd", "other") is None
    job.kill()
    job.wait()
    assert leases.holder(path) is None
    fd = leases.claim(path, "other.1.cd", "other")
    assert fd is not None
    assert (leases.holder(path) or {})["run"] == "other"
    os.close(fd)


def test_a_claim_that_came_between_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stepping down from a lock held alone is not atomic in the kernel."""
    path = leases.gpu_path(str(tmp_path), "GPU-1")
    real = fcntl.flock

    def flock(fd: int, how: int) -> None:
        if how & fcntl.LOCK_SH:
            real(fd, fcntl.LOCK_UN)
            Path(path).write_text('{"token": "other.1.cd", "run": "other"}')
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert leases.claim(path, "run.1.ab", "run") is None


def test_some_of_several_or_none_at_all(tmp_path: Path) -> None:
    paths = leases.slot_paths(str(tmp_path), 3)
    first = leases.claim_some(paths, 2, "a.1.x", "a")
    assert first is not None
    assert sorted(first) == paths[:2]
    assert leases.claim_some(paths, 2, "b.1.x", "b") is None
    # the one it could have had is free again
    third = leases.claim_some(paths, 1, "c.1.x", "c")
    assert third is not None
    assert list(third) == paths[2:]
    for fd in [*first.values(), *third.values()]:
        os.close(fd)


@pytest.mark.parametrize("uuid", ["../x", "a/b", ".", "..hidden"])
def test_a_name_that_leaves_the_folder_is_no_uuid(uuid: str) -> None:
    with pytest.raises(ValueError, match="UUID"):
        leases.gpu_path("/leases", uuid)
