"""A schedule whose host is behind a jump and has Docker: what nights bring, over a real ssh.

Cron is played by `desk.look`; test_schedule.py has a real one.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.schedule.definition import Begun, Fired, Progress
from runner.schedule_files import Shelf
from tests.helpers.cron_desk import CronDesk
from tests.helpers.local_worker import LocalWorker
from tests.helpers.pinned import pin_base
from tests.rig.engine import RigEngine
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.rig.rig import Rig

HOST = 'ssh = "{alias}"\nimage = "cpu"\nworkspace = "~/nights"\n'
HOLD = ("sh", "-c", "while [ ! -e /workspace/.go ]; do sleep 0.1; done")


class NightDesk(CronDesk):
    """Somebody whose crontab says where their `ssh` is."""

    def __init__(self, worker: LocalWorker, operator: Operator) -> None:
        super().__init__(worker)
        self.operator = operator
        self.cron_path = f"{operator.bin}:/usr/bin:/bin"
        self.head += f"PATH={self.cron_path}\n"
        self.file.write_text(self.head)

    @property
    def env(self) -> dict[str, str]:
        own = super().env
        return {**own, "PATH": f"{self.bin}:{self.operator.bin}:/usr/local/bin:/usr/bin:/bin"}

    def night(self, number: int) -> Progress:
        """A firing is due, and cron comes by."""
        begun = Begun(f"2027-02-{number:02}T02:30", time.time(), since=time.time())
        self.only.change(lambda old: replace(old, begun=begun))
        return self.again()

    def again(self) -> Progress:
        """Cron comes by once more."""
        done = self.look()
        assert done.returncode == 0, done.stderr
        return self.only.progress()

    @property
    def only(self) -> Shelf:
        return self.shelf("n")


@pytest.fixture
def desk(
    local_worker: LocalWorker, operator: Operator, jump_host: RigHost, docker: RigEngine
) -> Iterator[NightDesk]:
    made = NightDesk(local_worker, operator)
    local_worker.file("hosts/gpu1.toml", HOST.format(alias=jump_host.alias))
    pin_base(local_worker.project, docker)
    made.done("provision", "host=gpu1")
    yield made
    docker.remove_containers()


def lock(key: Path) -> bytes:
    """Give the key a passphrase; what it was."""
    before = key.read_bytes()
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", key], check=True)
    return before


def last(progress: Progress) -> Fired:
    assert progress.begun is None, progress.begun
    return progress.fired[-1]


def test_nights_on_a_host_behind_a_jump(
    desk: NightDesk, jump_host: RigHost, docker: RigEngine, rig: Rig
) -> None:
    words = ("schedule", "add", "n", "30 2 * * *", "host=gpu1", "--", *HOLD)
    key = desk.operator.ssh_folder / "id_ed25519"
    content = lock(key)
    refused = desk.run(*words)
    assert refused.returncode == 3 and desk.crontab == desk.head and not desk.shelf_folders()
    assert "locked by a passphrase, and no agent holds it" in refused.stderr
    assert "cron has no agent: make a key without a passphrase" in refused.stderr
    key.write_bytes(content)
    desk.done(*words)

    # it fires; the next one finds it running
    first = last(desk.night(1))
    assert first.state == "submitted" and len(first.ids) == 1
    overlapped = last(desk.night(2))
    assert (overlapped.cause, overlapped.text) == ("overlap", f"{first.ids[0]} had not ended")
    go = jump_host.home / "nights" / ".go"
    go.touch()
    desk.done("wait", *first.ids)

    # nobody answers at half past two
    jump_host.stop_sshd()
    waiting = desk.night(3)
    assert waiting.begun is not None and "rig-login cannot reach it" in waiting.begun.waits
    assert "n of " in desk.run("schedule", "list").stderr
    assert desk.again().begun is not None
    jump_host.start_sshd()
    # it is back, but its container is not
    name = docker.docker("ps", "--format", "{{.Names}}").stdout.strip()
    docker.docker("stop", "--time", "5", name)
    waiting = desk.again()
    assert waiting.begun is not None and "container does not run" in waiting.begun.waits
    docker.docker("start", name)
    third = last(desk.again())
    assert third.state == "submitted" and desk.again().fired[-1] == third
    desk.done("wait", *third.ids)
    rows = desk.json("ps", "host=gpu1")["runs"]
    assert [row["id"] for row in rows if row["outcome"] == "done"] == [*first.ids, *third.ids]

    # the key is gone
    os.rename(key, key.with_suffix(".away"))
    for host in (jump_host, rig.login):
        host.break_sessions()  # a shared one would need no key
    failed = last(desk.night(4))
    assert failed.state == "failed" and "the file is gone, only its .pub is there" in failed.text
    assert "made no run: gpu1: " in desk.run("schedule", "list").stderr
    assert "made no run: gpu1: " in desk.run("doctor", "host=gpu1").stderr
