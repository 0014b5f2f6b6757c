"""The outbox: exactly once in, whenever the writer dies; one per cause and hour; tried again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.outbox import GIVEN_UP_S, HOUR_S, LOST_KEPT_S, MOST_PER_HOUR, Outbox, put_mark
from runner.sending import Result

WEBHOOK = ("webhook",)


class Desk:
    """An outbox with a clock of its own, and a receiver that takes what it is given or fails."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_000_000.0
        self.folder = folder / "box"
        self.runs = folder / "runs"
        self.runs.mkdir()
        self.box = Outbox(str(self.folder), lambda: self.now)
        self.got: list[dict[str, Any]] = []
        self.fails = ""
        self.began = True

    def mark(self, run: str) -> str:
        (self.runs / run).mkdir(exist_ok=True)
        return str(self.runs / run / "told" / "ended-0")

    def put(
        self, run: str, group: Sequence[object] | None = None, channels: Sequence[str] = WEBHOOK
    ) -> bool:
        message = {"id": f"m-{run}", "kind": "ended", "host": "gpu1", "title": f"{run} FAILED"}
        return self.box.put(message, channels, group=group or (run,), mark=self.mark(run))

    def deliver(self, message: dict[str, Any]) -> Result:
        if self.fails:
            return Result(False, self.fails, 0.1, began=self.began)
        self.got.append(message)
        return Result(True, "HTTP 200", 0.1)

    def send(self, channel: str = "webhook") -> list[str]:
        before = len(self.got)
        self.box.send_due(channel, self.deliver, pause_s=0)
        return [message["id"] for message in self.got[before:]]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_message_goes_once_however_often_it_is_put(desk: Desk) -> None:
    assert desk.put("a")
    assert not desk.put("a")
    assert desk.box.has_due("webhook")
    assert desk.send() == ["m-a"]
    assert not desk.put("a")
    assert desk.send() == []
    assert not desk.box.has_due("webhook")
    assert desk.box.is_empty()


def test_a_message_without_its_mark_waits_for_who_puts_it_again(desk: Desk) -> None:
    desk.put("a")
    os.unlink(desk.mark("a"))
    assert desk.send() == []
    assert desk.put("a")
    assert desk.send() == ["m-a"]


def test_of_a_run_that_was_removed_the_message_still_goes(desk: Desk) -> None:
    desk.put("a")
    os.unlink(desk.mark("a"))
    os.rmdir(desk.runs / "a" / "told")
    os.rmdir(desk.runs / "a")
    assert desk.send() == ["m-a"]


KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from runner.outbox import Outbox
left = int(sys.argv[1])
def counted(act):
    def do(*args, **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return act(*args, **more)
    return do
for name in ("open", "rename", "fsync", "mkdir"):
    setattr(os, name, counted(getattr(os, name)))
box = Outbox({folder!r}, lambda: {now})
message = {{"id": "m-a", "kind": "ended", "host": "gpu1", "title": "a FAILED"}}
box.put(message, ("webhook", "command"), group=("a",), mark={mark!r})
print("done")
"""


def test_killed_at_any_step_of_putting_it_goes_exactly_once(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    steps = 0
    for step in range(100):
        (tmp_path / str(step)).mkdir()
        desk = Desk(tmp_path / str(step))
        code = KILLED.format(root=root, folder=str(desk.folder), now=desk.now, mark=desk.mark("a"))
        argv = [sys.executable, "-I", "-S", "-c", code, str(step)]
        ran = subprocess.run(argv, capture_output=True)
        ended = ran.returncode == 0
        assert ended or ran.returncode == -signal.SIGKILL, ran.stderr
        # a sender may come by before the dispatcher is back
        sent = desk.send() + desk.send("command")
        desk.put("a", channels=("webhook", "command"))
        sent += desk.send() + desk.send("command")
        assert sorted(sent) == ["m-a", "m-a"], step  # one on each channel
        desk.now += HOUR_S + 1
        desk.box.flush(("webhook", "command"))
        assert desk.send() == [], "it was not held for a digest as well"
        steps = step
        if ended:
            break
    assert 8 < steps < 99


def test_of_a_sweep_that_fails_one_message_goes_and_an_hour_later_a_digest(desk: Desk) -> None:
    cause = ("ended", "failed", "exit", "dqn-9x2mp")
    for number in range(38):
        desk.put(f"dqn-9x2mp.{number}", cause)
    assert desk.send() == ["m-dqn-9x2mp.0"]
    assert not desk.box.is_empty()
    desk.now += HOUR_S - 1
    desk.box.flush(WEBHOOK)
    assert desk.send() == []
    desk.now += 2
    desk.box.flush(WEBHOOK)
    desk.box.flush(WEBHOOK)
    assert len(desk.send()) == 1
    assert desk.got[-1]["text"].startswith("and 37 more in the last hour on gpu1")
    assert desk.got[-1]["count"] == 37
    # the digest began another hour of the same cause
    desk.put("dqn-9x2mp.99", cause)
    assert desk.send() == []
    desk.now += HOUR_S + 1
    desk.box.flush(WEBHOOK)
    assert len(desk.send()) == 1
    assert desk.got[-1]["count"] == 1
    desk.now += HOUR_S + 1
    desk.box.flush(WEBHOOK)
    assert desk.send() == []
    assert desk.put("dqn-9x2mp.100", cause), "after a quiet hour it goes by itself again"


def test_a_cause_that_comes_again_after_its_hour_takes_what_was_held_along(desk: Desk) -> None:
    desk.put("a", ("x",))
    desk.put("b", ("x",))
    desk.now += HOUR_S + 1
    desk.put("c", ("x",))  # before anybody looked at the groups
    assert len(desk.send()) == 2
    assert [each.get("count") for each in desk.got] == [None, 1]
    desk.now += HOUR_S + 1
    desk.box.flush(WEBHOOK)
    desk.send()
    assert desk.got[-1]["count"] == 1


def test_a_thousand_runs_that_fail_each_for_itself_are_no_thousand_messages(desk: Desk) -> None:
    for number in range(200):
        desk.put(f"r{number}")
    assert len(desk.send()) == MOST_PER_HOUR
    desk.now += HOUR_S + 1
    desk.box.flush(WEBHOOK)
    assert len(desk.send()) == 1
    assert desk.got[-1]["count"] == 200 - MOST_PER_HOUR


def test_what_need_not_be_told_again_is_dropped_within_the_hour(desk: Desk) -> None:
    for ident in ("m-1", "m-2"):
        message = {"id": ident, "kind": "disk", "host": "gpu1", "title": "low"}
        desk.box.put(message, WEBHOOK, group=("disk",), again=False)
    assert desk.send() == ["m-1"]
    desk.now += HOUR_S + 1
    desk.box.flush(WEBHOOK)
    assert desk.send() == []


def test_a_receiver_that_is_down_gets_one_request_each_time(desk: Desk) -> None:
    for run in "abc":
        desk.put(run)
    desk.fails = "HTTP 500"
    assert len(desk.box.send_due("webhook", desk.deliver)) == 1
    assert not desk.box.has_due("webhook")
    told = desk.box.account()
    assert (told.waiting, told.lost, told.error) == (3, 0, "HTTP 500")
    desk.now += 31
    assert desk.box.has_due("webhook")
    desk.box.send_due("webhook", desk.deliver)
    desk.now += 31
    assert not desk.box.has_due("webhook"), "the second wait is longer"
    desk.fails = ""
    desk.now += 60
    assert sorted(desk.send()) == ["m-a", "m-b", "m-c"]
    assert desk.box.account() == (0, 0, None, None)


def test_new_settings_are_tried_at_once(desk: Desk) -> None:
    desk.put("a")
    desk.fails = "HTTP 404"
    desk.send()
    desk.fails = ""
    desk.box.hurry()
    assert desk.send() == ["m-a"]


def test_one_that_a_receiver_refuses_does_not_hold_up_the_others(desk: Desk) -> None:
    desk.put("a")
    desk.put("b")

    def deliver(message: dict[str, Any]) -> Result:
        if message["id"] == "m-a":
            return Result(False, "HTTP 400", 0.1)
        return desk.deliver(message)

    for _ in range(2):
        desk.box.send_due("webhook", deliver, pause_s=0)
        desk.now += HOUR_S
    assert [each["id"] for each in desk.got] == ["m-b"]


def test_after_a_day_it_is_given_up_and_told_of_for_a_week(desk: Desk) -> None:
    desk.put("a")
    desk.fails = "no route to host"
    for _ in range(26):
        desk.send()
        desk.now += HOUR_S
    desk.fails = ""
    assert desk.now > 1_000_000 + GIVEN_UP_S
    assert desk.send() == []
    told = desk.box.account()
    assert (told.waiting, told.lost, told.error) == (0, 1, "no route to host")
    desk.now += LOST_KEPT_S + 1
    assert desk.box.account().lost == 0


def test_a_command_runs_once_even_when_it_fails(desk: Desk) -> None:
    desk.put("a", channels=("command",))
    desk.fails = "exit 1"
    desk.send("command")
    desk.now += 2 * HOUR_S
    desk.fails = ""
    assert desk.send("command") == []
    assert (desk.box.account().lost, desk.box.account().error) == (1, "exit 1")


def test_a_command_that_could_not_be_started_is_tried_again(desk: Desk) -> None:
    desk.put("a", channels=("command",))
    desk.fails, desk.began = "tell: No such file or directory", False
    desk.send("command")
    assert desk.box.account()[:2] == (1, 0)
    desk.fails = ""
    desk.now += 31
    assert desk.send("command") == ["m-a"]
    assert desk.box.account()[:2] == (0, 0)


def test_a_command_that_was_cut_is_not_run_again_and_is_told_of(desk: Desk) -> None:
    desk.put("a", channels=("command",))

    def dies(message: dict[str, Any]) -> Result:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        desk.box.send_due("command", dies)
    assert desk.send("command") == []
    assert desk.box.account().error == "cut while it ran"


def test_a_command_that_runs_is_under_way_and_lost_once_its_sender_is_gone(desk: Desk) -> None:
    other = Outbox(str(desk.folder), lambda: desk.now)
    seen: list[Any] = []

    def runs(message: dict[str, Any]) -> Result:
        seen.append(other.account()[:3])
        return desk.deliver(message)

    def dies(message: dict[str, Any]) -> Result:
        seen.append(other.account()[:3])
        raise KeyboardInterrupt

    desk.put("a", channels=("command",))
    with pytest.raises(KeyboardInterrupt):
        desk.box.send_due("command", dies)
    cut = (0, 1, "cut while it ran")
    assert (seen.pop(), other.account()[:3]) == ((0, 0, None), cut)
    # another one that runs says nothing of it, nor does one that sends elsewhere
    desk.put("b", channels=("command", "webhook"))
    for channel in ("webhook", "command"):
        desk.box.send_due(channel, runs)
        assert seen.pop() == cut
    desk.put("c", channels=("command",))
    desk.put("d", channels=("command",))
    desk.fails = "exit 1"
    desk.box.send_due("command", runs, pause_s=0)
    assert [each[1] for each in seen] == [1, 2]
    assert other.account()[:3] == (0, 3, "exit 1")
    (desk.folder / "lost" / "x").write_text(json.dumps({"error": cut[2], "lost_at": desk.now}))
    assert other.account().lost == 4


def test_two_senders_of_a_channel_do_not_send_twice(desk: Desk) -> None:
    desk.put("a")
    inner: list[Any] = []

    def deliver(message: dict[str, Any]) -> Result:
        other = Outbox(str(desk.folder), lambda: desk.now)
        inner.append((other.has_due("webhook"), other.send_due("webhook", desk.deliver)))
        return desk.deliver(message)

    desk.box.send_due("webhook", deliver)
    assert inner == [(False, [])]
    assert len(desk.got) == 1


def test_a_clock_that_was_put_back_keeps_nothing_for_long(desk: Desk) -> None:
    desk.put("a")
    desk.fails = "HTTP 500"
    desk.send()
    desk.fails = ""
    desk.now -= 10 * 86_400
    assert desk.send() == ["m-a"]
    assert desk.put("b", ("a",)), "nor does a window of the future hold it"


def test_a_way_that_is_not_set_any_more_is_forgotten(desk: Desk) -> None:
    desk.put("a", channels=("webhook", "command"))
    desk.box.flush(("command",))
    assert not desk.box.has_due("webhook")
    assert desk.send("command") == ["m-a"]


def test_broken_files_stop_nothing(desk: Desk) -> None:
    desk.put("a")
    ready = desk.folder / "ready"
    (ready / "m-x.webhook.json").write_text("{")
    (ready / "m-y.webhook.json").write_text(json.dumps({"message": 3}))
    (desk.folder / "webhook.json").write_text("[]")
    assert desk.send() == ["m-a"]
    assert not list(ready.iterdir())


def test_everything_is_the_accounts_alone(desk: Desk) -> None:
    desk.put("a")
    for path in desk.folder.rglob("*.json"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_mark_makes_no_folder_of_a_run_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        put_mark(str(tmp_path / "gone" / "told" / "x"))
    assert not (tmp_path / "gone").exists()
