from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import leases
import processes
import pytest

from tests.helpers.wait import wait_for

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


class Family:
    """Processes a test started, by pid, all ended with it."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, argv: list[str], **options: object) -> subprocess.Popen[bytes]:
        child: subprocess.Popen[bytes] = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            **options,  # type: ignore[call-overload]
        )
        assert child.stdout is not None
        child.stdout.readline()
        self.children.append(child)
        return child


@pytest.fixture
def family() -> Iterator[Family]:
    made = Family()
    yield made
    for child in made.children:
        child.kill()
        child.communicate()


def test_a_process_is_told_from_a_later_one_of_its_number(family: Family) -> None:
    child = family.start(SLEEP)
    who = processes.identity(child.pid)
    assert processes.is_alive(who) is True
    assert processes.is_alive(dict(who, start=who["start"] + 1)) is False
    assert processes.is_alive(dict(who, boot="another")) is False
    assert processes.is_alive(None) is False
    # in another pid namespace the number means nothing here, and must not be read as dead
    assert processes.is_alive(dict(who, ns=1)) is None
    assert processes.is_alive(dict(who, init=who["init"] + 1)) is None
    child.kill()
    wait_for(lambda: not processes.is_alive(who), 5, "its end, unreaped as it is")


def test_a_name_with_blanks_and_brackets_does_not_confuse(tmp_path: Path, family: Family) -> None:
    odd = tmp_path / ") R 1 (x"
    odd.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(odd), "60"])
    family.children.append(child)
    found = wait_for(lambda: processes.read_stat(child.pid), 5, "it")
    assert found is not None
    assert found[0] == os.getpid()
    assert found[2] in "RSD"


def test_another_boot_may_be_claimed_for_tests() -> None:
    assert processes.boot_id({"RUNNER_BOOT_ID": "b"}) == "b"
    assert processes.boot_id({}) == processes.boot_id({})


def test_descendants_are_found_to_any_depth(family: Family) -> None:
    child = family.start(["sh", "-c", "sh -c 'sleep 600 & echo up; wait'; true"])
    below = processes.descendants([child.pid])
    assert len(below) == 2
    assert child.pid not in below
    for pid in below:
        os.kill(pid, signal.SIGKILL)


def test_threads_of_the_kernel_are_known_and_nothing_else() -> None:
    listed = processes.kernel_threads()
    assert listed.isdisjoint({1, os.getppid(), os.getpid()})
    # what has memory has a command line; the kernel's threads have neither
    assert [pid for pid in listed if Path(f"/proc/{pid}/cmdline").read_bytes()] == []
    first = Path("/proc/2/comm")
    shown = first.exists() and first.read_text() == "kthreadd\n"
    if shown and Path("/proc/2/task/2/children").exists():
        assert len(listed) > 10
    else:
        assert listed == set()


def test_a_child_of_any_thread_is_a_descendant(family: Family) -> None:
    code = "import subprocess, threading\n"
    code += "def go():\n"
    code += "    child = subprocess.Popen(['cat'], stdin=subprocess.PIPE)\n"
    code += "    print('up', flush=True)\n"
    code += "    child.wait()\n"
    code += "threading.Thread(target=go).start()"
    parent = family.start([sys.executable, "-c", code])
    assert len(processes.descendants([parent.pid])) == 1


def member(mark: str = "m", limit: int | None = None, paths: tuple[str, ...] = ()) -> set[int]:
    return processes.Membership(mark, limit, paths, [os.getpid()]).find()


def test_known_by_the_mark_in_the_environment(family: Family) -> None:
    child = family.start(SLEEP, env={"RUNNER_MARK": "run.1.abc"})
    family.start(SLEEP, env={"RUNNER_MARK": "run.1.abcd"})
    assert member("run.1.abc") == {child.pid}


def test_what_is_older_than_the_attempt_is_not_looked_at_where_that_is_asked(
    family: Family,
) -> None:
    child = family.start(SLEEP, env={"RUNNER_MARK": "run.1.abc"})
    born = processes.identity(child.pid)["start"]
    found = [
        processes.Membership("run.1.abc", None, (), [], born_after=tick).find()
        for tick in (None, born, born + 1)
    ]
    assert found == [{child.pid}, {child.pid}, set()]


def test_known_by_the_limit_through_an_emptied_environment(family: Family) -> None:
    limit = processes.draw_limit(random.Random(1))
    assert limit is not None
    assert limit != processes.draw_limit(random.Random(2))
    child = family.start(
        ["env", "-i", "setsid", *SLEEP], preexec_fn=lambda: processes.set_limit(limit)
    )
    assert member(limit=limit) == {child.pid}
    assert resource.getrlimit(resource.RLIMIT_RTTIME) != (limit, limit)


@pytest.mark.skipif(os.geteuid() != 0, reason="left out: root: only it can become another user")
def test_the_limit_is_seen_in_processes_of_another_user(family: Family) -> None:
    limit = processes.draw_limit(random.Random(3))
    sleep = ["env", "-i", "sh", "-c", "echo up; exec sleep 600"]
    child = family.start(sleep, user=65534, preexec_fn=lambda: processes.set_limit(limit))
    family.start(sleep, user=65534)
    # the kernel tells nobody of 65533 directly: only the text is for everyone
    asker = os.fork()
    if asker == 0:
        found: set[int] = set()
        try:
            os.setgroups([])
            os.setresgid(65533, 65533, 65533)
            os.setresuid(65533, 65533, 65533)
            found = member(limit=limit)
        finally:
            os._exit(0 if found == {child.pid} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(asker, 0)[1]) == 0
    assert member(limit=limit) == {child.pid}


def test_known_by_a_lease_held_but_not_by_one_asked_for(tmp_path: Path, family: Family) -> None:
    path = str(tmp_path / "slot-000")
    fd = leases.claim(path, "run.1.abc", "run")
    assert fd is not None
    holder = family.start(SLEEP, close_fds=False)
    os.close(fd)
    asker = family.start(
        [
            sys.executable,
            "-c",
            f"f = open({path!r}); print('up', flush=True); import time; time.sleep(600)",
        ]
    )
    assert member("run.1.abc", paths=(path,)) == {holder.pid}
    assert asker.pid not in member("run.1.abc", paths=(path,))


def test_whoever_took_the_lease_over_is_not_taken_for_a_member(
    tmp_path: Path, family: Family
) -> None:
    path = str(tmp_path / "slot-000")
    fd = leases.claim(path, "later.1.xyz", "later")
    assert fd is not None
    family.start(SLEEP, close_fds=False)
    os.close(fd)
    assert member("run.1.abc", paths=(path,)) == set()


def sweep(pids: set[int], grace_s: float, **options: object) -> processes.Sweep:
    return processes.sweep(
        lambda: processes.living(pids),
        lambda: grace_s,
        **options,  # type: ignore[arg-type]
    )


DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); "
DEAF += "print('up', flush=True); time.sleep(600)"
COUNTS = """
import os, signal, sys, time
signal.signal(15, lambda *_: os.write(1, b"TERM"))
print("up", flush=True)
end = time.time() + 0.5
while time.time() < end: time.sleep(0.01)
"""


def test_term_once_then_kill(family: Family) -> None:
    polite = family.start([sys.executable, "-c", COUNTS])
    deaf = family.start([sys.executable, "-c", DEAF])
    stopped = family.start(SLEEP)
    os.kill(stopped.pid, signal.SIGSTOP)
    wait_for(lambda: (processes.read_stat(stopped.pid) or "  ?")[2] == "T", 5, "its stop")
    pids = {polite.pid, deaf.pid, stopped.pid}
    # a polite one may need a while on a busy machine; the deaf one needs all of it
    result = sweep(pids, 4.0)
    assert (result.asked, result.killed, result.left) == (pids, {deaf.pid}, set())
    assert result.seen == 3
    assert polite.wait() == 0
    assert polite.stdout is not None
    assert polite.stdout.read() == b"TERM"
    assert (stopped.wait(), deaf.wait()) == (-signal.SIGTERM, -signal.SIGKILL)


SAVES = """
import os, signal, subprocess, sys, time
def save(*_):
    time.sleep(0.1)
    os.write(1, b"%d" % subprocess.run(["sleep", "0.3"]).returncode)
    os._exit(0)
signal.signal(15, save)
print("up", flush=True)
time.sleep(600)
"""


def test_what_a_job_starts_to_save_with_is_left_to_end(family: Family) -> None:
    child = family.start([sys.executable, "-c", SAVES])

    def find() -> set[int]:
        return processes.living({child.pid, *processes.descendants([child.pid])})

    result = processes.sweep(find, lambda: 10.0)
    assert result.killed == set()
    assert child.wait() == 0
    assert child.stdout is not None
    assert child.stdout.read() == b"0"


def test_without_a_grace_nobody_is_asked(family: Family) -> None:
    child = family.start(SLEEP)
    result = sweep({child.pid}, 0.0)
    assert (result.asked, result.killed) == (set(), {child.pid})
    assert child.wait() == -signal.SIGKILL


def test_who_is_not_to_be_asked_is_killed_in_the_end(family: Family) -> None:
    child = family.start(SLEEP)
    began = time.monotonic()
    result = sweep({child.pid}, 0.2, ask=lambda pid: False)
    assert result.killed == {child.pid}
    assert time.monotonic() - began >= 0.2


def test_looks_must_agree_and_children_be_reaped(family: Family) -> None:
    seen = iter([set(), {1}, set(), set(), set()])
    calls = []

    def find() -> set[int]:
        calls.append(1)
        return next(seen)

    result = processes.sweep(find, lambda: 5.0, ask=lambda pid: False, looks=3)
    assert len(calls) == 5
    assert result.killed == set()
    reaped = iter([False, False, True])
    processes.sweep(set, lambda: 5.0, lambda: next(reaped))
    assert list(reaped) == []


def test_what_cannot_be_killed_is_named(monkeypatch: pytest.MonkeyPatch, family: Family) -> None:
    monkeypatch.setattr(processes, "KILL_WAIT_S", 0.1)
    child = family.start(SLEEP)
    # a finder that always sees it: as one in the kernel's hands would be
    result = processes.sweep(lambda: {child.pid}, lambda: 0.0)
    assert result.left == {child.pid}
