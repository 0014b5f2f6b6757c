"""A real cron and the real `crontab`, in a mount namespace that hides this machine's."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from runner.schedule.definition import Fired
from tests.helpers.cron_desk import CronDesk
from tests.helpers.local_worker import LocalWorker, read
from tests.helpers.wait import wait_for

CRON = "/usr/sbin/cron"
SPOOL = "/var/spool/cron/crontabs"
HIDDEN = ("/var/spool/cron", "/run", "/etc/cron.d")
OTHERS = b"# \xff CR\r\n#Ansible: x\n0 0 30 2 * tr -d '\\r' \\%\n" + b"".join(
    b"%d %d 30 2 * job %d\n" % (number % 60, number % 24, number) for number in range(900)
)
"""Of a crontab that no line of ours may change."""
FIRES_IN_S = 150.0
"""Two minutes at most: one may just have begun; and the submit."""


@pytest.fixture
def desk(local_worker: LocalWorker) -> Iterator[CronDesk]:
    """A desk whose `crontab` is the real one, and whose cron runs, both of the namespace."""
    if os.geteuid() or not os.path.exists(CRON) or shutil.which("nsenter") is None:
        pytest.skip("left out: a cron of its own: needs root, cron and nsenter")
    made = CronDesk(local_worker)
    made.file.write_bytes(made.head.encode() + OTHERS)
    script = ["set -e", "mount --make-rprivate /"]
    for place in HIDDEN:
        own = made.worker.root / place.strip("/").replace("/", "-")
        own.mkdir()
        script.append(f"mount --bind {own} {place}")
    script += ["mkdir -m 1730 /var/spool/cron/crontabs", "chgrp crontab /var/spool/cron/crontabs"]
    script += [": > /tmp/empty.$$; mount --bind /tmp/empty.$$ /etc/crontab; rm /tmp/empty.$$"]
    script += [f"crontab {made.file}", f"exec {CRON} -f"]
    argv = ["unshare", "--mount", "sh", "-c", "; ".join(script)]
    log = (made.worker.root / "cron.log").open("wb")
    cron = subprocess.Popen(argv, stdout=log, stderr=log)
    inside = f'exec nsenter --target {cron.pid} --mount /usr/bin/crontab "$@"'
    (made.bin / "crontab").write_text(f"#!/bin/sh\n{inside}\n")
    try:
        wait_for(
            lambda: read_comm(cron.pid) == "cron" and cron.poll() is None, 10, "a cron of its own"
        )
        time.sleep(1.1)  # cron tells a changed crontab by whole seconds, and has just read this one
        yield made
    finally:
        cron.kill()
        cron.wait()
        log.close()


def read_comm(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def test_a_real_cron_fires_it_each_minute_once(desk: CronDesk) -> None:
    added = desk.run("schedule", "add", "n", "* * * * *", "--", "true")
    assert added.returncode == 0, added.stderr
    assert "no cron runs here" not in added.stderr
    folder = desk.worker.workspace / "runs"

    def ids() -> list[str]:
        return [str(read(path)["id"]) for path in folder.glob("[!.]*/spec.json")]

    def submitted() -> list[Fired]:
        progress = desk.shelf("n").progress()
        return [each for each in progress.fired if each.state == "submitted"]

    wait_for(lambda: len(submitted()) == 2, FIRES_IN_S, "two minutes of cron")
    fired = submitted()
    assert sorted(run for each in fired for run in each.ids) == sorted(ids())
    assert not any(each.late for each in fired)
    desk.done("schedule", "remove", "n")
    inside = (desk.bin / "crontab").read_text().partition("exec ")[2].partition("/usr/bin")[0]
    spool = [*inside.split(), "sed", "1,/Cron version/d", f"{SPOOL}/{getpass.getuser()}"]
    left = subprocess.run(spool, capture_output=True, check=True).stdout
    assert left == desk.head.encode() + OTHERS
