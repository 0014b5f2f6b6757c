"""Schedules end to end: a real submit to `local`, the line run as cron runs it."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runner.app.looking import come_by
from runner.schedule.definition import Begun
from tests.helpers.cron_desk import CronDesk
from tests.helpers.local_worker import read

DAY_S = 86_400.0
TIMES = "* * * * *"


def runs(desk: CronDesk) -> list[str]:
    """The runs that the workspace holds."""
    return sorted(path.parent.name for path in desk.worker.workspace.glob("runs/[!.]*/spec.json"))


def states(desk: CronDesk, name: str) -> list[tuple[str, str | None]]:
    return [(each.state, each.cause) for each in desk.shelf(name).progress().fired]


def test_it_is_added_fires_by_its_line_and_is_removed(desk: CronDesk) -> None:
    desk.worker.file("a.txt", "then")
    told = desk.done(
        "schedule", "add", "nightly", "30 2 * * *", "tz=Europe/Berlin", "--", "cat", "a.txt"
    )
    assert len(told.splitlines()) == 5 and all(" 02:30 +0" in line for line in told.splitlines())
    assert (desk.crontab or "").startswith(desk.head) and len(desk.lines()) == 1
    assert str(desk.worker.project) not in desk.lines()[0] and "cat" not in desk.lines()[0]
    desk.worker.file("a.txt", "now")
    desk.rewind("nightly", 1.5 * DAY_S)
    assert desk.look().returncode == 0 and desk.look().returncode == 0
    (run,) = runs(desk)
    desk.worker.wait(run)
    assert desk.worker.log(run) == b"then"  # its code is that of when it was added
    assert read(desk.worker.run_folder(run) / "spec.json")["tags"] == ["nightly"]
    (listed,) = desk.json("schedule", "list")["schedules"]
    assert listed["changed_files"] == 1 and listed["firings"][-1]["runs"] == [run]
    desk.done("schedule", "remove", "nightly")
    assert desk.crontab == desk.head and not desk.shelf_folders()
    assert desk.run("schedule", "next", "nightly").returncode == 6


def test_a_sweep_of_a_job_with_code_of_the_tree_and_of_a_branch(desk: CronDesk) -> None:
    desk.worker.file("agents/j.toml", 'command = ["cat", "a.txt"]\n[params]\nseed = 0\n')
    desk.worker.file("a.txt", "main")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], cwd=desk.worker.project, check=True)
    desk.worker.file("a.txt", "tree")
    words = ("job=j", "seed=1..2", "missed=once")
    desk.done("schedule", "add", "b", TIMES, "code=git:main", *words)
    desk.rewind("b", 90)
    assert desk.look().returncode == 0
    first = runs(desk)
    assert [name.rpartition(".")[2] for name in first] == ["1", "2"]
    assert {desk.worker.wait(run).status.outcome for run in first} == {"done"}
    assert desk.worker.log(first[0]) == b"main"
    desk.done("schedule", "update", "b", "code=tree")
    desk.shelf("b").change(lambda old: replace(old, begun=Begun("later", 0.0, 1e12)))
    assert desk.look().returncode == 0
    (new, _) = [run for run in runs(desk) if run not in first]
    desk.worker.wait(new)
    assert desk.worker.log(new) == b"tree"


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
def test_the_next_firing_while_the_last_still_runs(desk: CronDesk, overlap: str) -> None:
    desk.done("schedule", "add", "n", "0 0 1 1 *", f"overlap={overlap}", "--", "sleep", "60")
    shelf = desk.shelf("n")
    for local in ("2026-01-01T00:00", "2027-01-01T00:00"):
        shelf.change(lambda old, local=local: replace(old, begun=Begun(local, 0.0, 1e12)))
        assert desk.look().returncode == 0
    made = runs(desk)
    if overlap == "skip":
        assert states(desk, "n") == [("submitted", None), ("skipped", "overlap")]
        (skipped,) = [run for run in desk.json("ps")["runs"] if run["outcome"] == "skipped"]
        assert skipped["cause"]["kind"] == "overlap" and skipped["id"] not in made
        refused = desk.run("status", skipped["id"])
        assert refused.returncode == 6 and "never submitted" in refused.stderr
    elif overlap == "queue":
        assert len(made) == 1 and shelf.progress().begun is not None
        desk.worker.cancel(made[0], now=True)
        desk.look()
        assert len(runs(desk)) == 2 and shelf.progress().begun is None
    else:
        assert len(made) == 2
        assert states(desk, "n") == [("submitted", None)] * 2
        old = shelf.progress().fired[0].ids[0]
        assert desk.worker.status(old).status.outcome == "cancelled"
    desk.worker.cancel(*runs(desk), now=True)


def test_two_at_once_and_a_crash_before_it_was_recorded_make_one_run(desk: CronDesk) -> None:
    desk.done("schedule", "add", "n", "30 2 * * *", "code=tree", "--", "true")
    desk.rewind("n", 1.5 * DAY_S)
    argv = ["/bin/sh", "-c", desk.command()]
    env = {"HOME": str(desk.home), "PATH": "/usr/bin:/bin"}
    both = [subprocess.Popen(argv, env=env, cwd=desk.home) for _ in range(2)]
    assert [each.wait(60) for each in both] == [0, 0]
    (run,) = runs(desk)
    shelf = desk.shelf("n")
    (made,) = [each for each in shelf.progress().fired if each.state == "submitted"]
    # as if it had been killed after the host took it, and the code had changed since
    begun = Begun(made.local, made.at, since=made.told_at)
    shelf.change(lambda old: replace(old, begun=begun, fired=()))
    desk.worker.file("new.txt", "x")
    assert desk.look().returncode == 0
    assert runs(desk) == [run] and states(desk, "n") == [("submitted", None)]


def test_what_cannot_be_submitted_is_told_by_ps(desk: CronDesk) -> None:
    desk.worker.file("agents/j.toml", 'command = ["true"]\n')
    desk.done("schedule", "add", "n", "30 2 * * *", "code=tree", "job=j")
    (desk.worker.project / "agents/j.toml").unlink()
    desk.rewind("n", 1.2 * DAY_S)
    assert desk.look().returncode == 0
    assert states(desk, "n")[-1] == ("failed", "not-submitted")
    failed = [run for run in desk.json("ps")["runs"] if run["outcome"] == "failed"]
    assert [run["cause"]["kind"] for run in failed] == ["not-submitted"]
    assert "j is no job" in failed[0]["cause"]["text"]


def test_a_silent_host_is_asked_again_for_an_hour(desk: CronDesk) -> None:
    desk.worker.file("hosts/far.toml", 'runtime = "docker"\nssh = "ssh://nobody@127.0.0.1:1"\n')
    added = desk.run("schedule", "add", "n", "30 2 * * *", "host=far", "--", "true")
    assert added.returncode == 0 and "added, though now" in added.stderr
    shelf = desk.shelf("n")
    shelf.change(lambda old: replace(old, begun=Begun("l", 1.0, since=1000.0)))
    assert come_by(shelf, lambda: 2000.0).begun is not None
    assert come_by(shelf, lambda: 5000.0).begun is None
    assert states(desk, "n")[-1] == ("failed", "not-submitted")


def test_what_still_waits_when_the_next_is_due_is_given_up_for_it(desk: CronDesk) -> None:
    desk.done("schedule", "add", "n", "30 2 * * *", "--", "true")
    begun = Begun("2026-01-01T02:30", 0.0, since=time.time(), waits="local: no answer")
    desk.shelf("n").change(lambda old: replace(old, begun=begun))
    desk.rewind("n", 1.5 * DAY_S)
    assert desk.look().returncode == 0
    old, new = desk.shelf("n").progress().fired[0], desk.shelf("n").progress().fired[-1]
    assert (old.local, old.state, old.cause) == (begun.local, "failed", "not-submitted")
    assert old.text == "local: no answer; given up when the next was due"
    assert new.state == "submitted" and runs(desk) == list(new.ids)


def test_update_says_how_another_submit_is_scheduled(desk: CronDesk) -> None:
    desk.done("schedule", "add", "n", "30 2 * * *", "tz=UTC", "--", "true")
    done = desk.run("schedule", "update", "n", "gpus=1")
    assert done.returncode == 2 and desk.shelf("n").read().words == ()
    assert "runner schedule remove n" in done.stderr
    told = "runner schedule add n '30 2 * * *' tz=UTC overlap=skip missed=once code=fixed gpus=1"
    assert f"{told} -- true" in done.stderr


def test_a_try_that_fails_leaves_nothing(desk: CronDesk) -> None:
    done = desk.run("schedule", "add", "n", "30 2 * * *", "secret.KEY", "--", "true", KEY="x")
    assert done.returncode == 2
    assert "KEY is not set" in done.stderr and "tried as cron starts it" in done.stderr
    assert desk.crontab == desk.head and not desk.shelf_folders()


def test_an_update_that_fails_changes_nothing(desk: CronDesk) -> None:
    desk.worker.file("agents/j.toml", 'command = ["cat", "a.txt"]\n')
    desk.worker.file("a.txt", "then")
    desk.done("schedule", "add", "n", "30 2 * * *", "job=j")
    desk.worker.file("a.txt", "now")
    (desk.worker.project / "agents/j.toml").unlink()
    line = desk.lines()
    assert desk.run("schedule", "update", "n", "overlap=queue").returncode == 2
    assert desk.lines() == line and desk.shelf("n").read().overlap == "skip"
    desk.rewind("n", 0.9 * DAY_S + DAY_S)
    desk.look()
    (run,) = runs(desk)
    desk.worker.wait(run)
    assert desk.worker.log(run) == b"then"


def test_pause_and_resume(desk: CronDesk) -> None:
    desk.done("schedule", "add", "n", "30 2 * * *", "--", "true")
    line = desk.lines()
    desk.done("schedule", "pause", "n")
    assert desk.crontab == desk.head
    desk.rewind("n", 3 * DAY_S)
    desk.done("schedule", "resume", "n")
    assert desk.lines() == line
    desk.look()
    assert runs(desk) == []  # nothing was missed while it was paused
    assert desk.run("schedule", "add", "n", "30 2 * * *", "--", "true").returncode == 7
    assert desk.done("schedule", "run", "n").strip() in runs(desk)


def test_a_line_that_somebody_took_out_is_missed(desk: CronDesk) -> None:
    desk.done("schedule", "add", "n", "30 2 * * *", "--", "true")
    Path(desk.file).write_text(desk.head)
    listed = desk.run("schedule", "list")
    assert "has no line in your crontab" in listed.stderr and "does not fire" in listed.stdout
    assert "n has no line in your crontab" in desk.run("doctor").stderr


@pytest.mark.parametrize("after_s", [0.3, 0.6, 0.9, 1.3])
def test_a_firing_that_is_killed_is_gone_on_with(desk: CronDesk, after_s: float) -> None:
    desk.done("schedule", "add", "n", "30 2 * * *", "--", "true")
    desk.rewind("n", 0.9 * DAY_S + DAY_S)
    env = {"HOME": str(desk.home), "PATH": "/usr/bin:/bin"}
    argv = ["/bin/sh", "-c", f"exec {desk.command()}"]
    cut = subprocess.Popen(argv, env=env, cwd=desk.home)
    time.sleep(after_s)
    cut.kill()
    cut.wait()
    assert desk.look().returncode == 0
    (run,) = runs(desk)
    made = [each for each in desk.shelf("n").progress().fired if each.state == "submitted"]
    assert [each.ids for each in made] == [(run,)]
