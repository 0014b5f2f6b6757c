"""Schedules whose changes are interrupted, met by others, or have lost what they belong to."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from runner.schedule_files import shelf_of
from tests.helpers.cron_desk import CronDesk
from tests.helpers.wait import wait_for

NIGHTLY = ("schedule", "add", "n", "30 2 * * *", "--", "cat", "a.txt")


@pytest.fixture(autouse=True)
def code(desk: CronDesk) -> None:
    """What they train."""
    desk.worker.file("a.txt", "then")


class Other:
    """Another client that just adds the same schedule: it has the folder and its lock."""

    def __init__(self, desk: CronDesk) -> None:
        self.desk = desk
        self.shelf = shelf_of(desk.worker.project, "n")
        self.shelf.folder.mkdir(parents=True, mode=0o700)
        (self.shelf.folder / "code.new").mkdir()
        self._fd = os.open(self.shelf.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def meet(self) -> subprocess.Popen[str]:
        """`add` of that name, which waits for the lock by now."""
        words = [str(self.desk.python), "-m", "runner", *NIGHTLY]
        process = subprocess.Popen(
            words, cwd=self.desk.worker.project, env=self.desk.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        lock = str(self.shelf.folder / "lock")
        fds = Path(f"/proc/{process.pid}/fd")
        wait_for(lambda: any(os.path.realpath(fd) == lock for fd in fds.iterdir()), 30, "a wait")
        return process

    def end(self) -> None:
        os.close(self._fd)


def test_an_add_that_gives_up_takes_nothing_of_another_one(desk: CronDesk) -> None:
    other = Other(desk)
    process = other.meet()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert (other.shelf.folder / "code.new").is_dir()
    other.end()


def test_of_two_adds_of_one_name_the_second_is_refused(desk: CronDesk) -> None:
    desk.done(*NIGHTLY)
    there = desk.shelf("n").read()
    shutil.rmtree(desk.shelf("n").folder)
    other = Other(desk)
    process = other.meet()
    other.shelf.write(replace(there, overlap="queue"))
    other.end()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 7 and "there is a schedule n of this project" in err
    assert other.shelf.read().overlap == "queue"


def test_an_add_whose_line_was_written_and_then_failed_takes_it_away(desk: CronDesk) -> None:
    program = desk.bin / "crontab"
    text = program.read_text()
    program.write_text(
        text.replace(
            f"mv {desk.file}.new {desk.file} ;;", f"mv {desk.file}.new {desk.file}; exit 1 ;;"
        )
    )
    assert program.read_text() != text
    done = desk.run(*NIGHTLY)
    assert done.returncode == 4 and "cannot be written" in done.stderr
    assert desk.crontab == desk.head and not desk.shelf_folders()


@pytest.mark.parametrize("moment", ["moved", "copied", "carried through"])
def test_an_update_that_is_killed_leaves_code_that_can_be_run(desk: CronDesk, moment: str) -> None:
    desk.done(*NIGHTLY)
    folder = desk.shelf("n").folder
    # what lies there when it is killed, as schedule_code.py writes it
    shutil.copyfile(folder / "code.json", folder / "code.old.json")
    os.rename(folder / "code", folder / "code.old")
    if moment != "moved":
        (folder / "code").mkdir()
    if moment == "carried through":
        (folder / "code.json").write_text("{}")
    run = desk.done("schedule", "run", "n").strip()
    desk.worker.wait(run)
    assert desk.worker.log(run) == b"then"
    assert sorted(path.name for path in folder.glob("code*")) == ["code", "code.json"]


def test_runs_that_cannot_be_remembered_are_printed_all_the_same(desk: CronDesk) -> None:
    desk.done(*NIGHTLY)
    (desk.shelf("n").folder / "progress.json").write_text("damaged")
    done = desk.run("schedule", "run", "n")
    assert done.returncode == 0 and "not remembered" in done.stderr
    assert desk.worker.wait(done.stdout.strip()).status.outcome == "done"


def test_an_update_that_fails_leaves_what_is_due(desk: CronDesk) -> None:
    desk.done(*NIGHTLY)
    desk.rewind("n", 1000.0)
    before = desk.shelf("n").progress()
    desk.file.write_text(f"SHELL=/nope\n{desk.crontab}")
    line = desk.lines()
    assert desk.run("schedule", "update", "n", "45 3 * * *").returncode != 0
    assert (desk.shelf("n").progress(), desk.lines()) == (before, line)
    desk.file.write_text(f"SHELL=/nope\n{desk.head}")  # the line is taken out by hand
    assert desk.run("schedule", "update", "n", "45 3 * * *").returncode != 0
    assert desk.lines() == []


def test_what_leads_nowhere_is_named_and_can_be_taken_away(desk: CronDesk) -> None:
    desk.done(*NIGHTLY)
    key = desk.shelf("n").key
    shutil.rmtree(desk.shelf("n").folder)
    said = desk.run("schedule", "list").stderr
    assert f"a line of {key}, which is no schedule" in said and f"remove {key}" in said
    desk.done("schedule", "remove", key)
    assert desk.crontab == desk.head
    desk.done(*NIGHTLY)
    moved = desk.worker.root / "elsewhere"
    desk.worker.project.rename(moved)
    desk.worker.project = moved
    said = desk.run("schedule", "list").stderr
    assert "n is of a project that is not in" in said and f"remove {key}" in said
    desk.done("schedule", "remove", key)
    assert desk.crontab == desk.head and not desk.shelf_folders()


@pytest.mark.parametrize("zone", [":/etc/localtime", "/usr/share/zoneinfo/Asia/Kathmandu"])
def test_a_zone_of_this_machine_that_is_given_as_a_file(desk: CronDesk, zone: str) -> None:
    desk.done(*NIGHTLY, TZ=zone)
    name = os.path.realpath(zone.lstrip(":")).partition("/zoneinfo/")[2]
    assert desk.shelf("n").read().zone == (name or "UTC")
    wrong = desk.run("schedule", "add", "m", "30 2 * * *", "--", "true", TZ="QQQ99")
    assert wrong.returncode == 2 and "the zone of this machine is 'QQQ99'" in wrong.stderr


@pytest.mark.parametrize("start", ["0001-01-01", "9999-12-31T23:59-14:00"])
def test_times_beyond_all_crons_are_refused(desk: CronDesk, start: str) -> None:
    desk.done(*NIGHTLY)
    done = desk.run("schedule", "next", "n", "--from", start)
    assert done.returncode == 2 and "before 2200" in done.stderr
