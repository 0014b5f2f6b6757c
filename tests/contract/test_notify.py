"""Notifications end to end: a real worker and real receivers, and what happens when either dies."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.cli import main
from runner.errors import SpecError
from runner.outbox import Outbox
from runner.spec import parse_submit
from tests.helpers.cron_desk import CronDesk
from tests.helpers.local_worker import LocalWorker, read
from tests.helpers.receiver import Receiver
from tests.helpers.wait import wait_for

SECRET = "s3cr3t-path"


class Person:
    """Somebody with a notify.toml and a receiver, as nobody was before."""

    def __init__(self, worker: LocalWorker, receiver: Receiver) -> None:
        self.worker = worker
        self.receiver = receiver
        self.path = worker.root / "config/runner/notify.toml"
        self.told = worker.root / f"told-{os.urandom(4).hex()}"
        shutil.rmtree(worker.root / "config", ignore_errors=True)
        shutil.rmtree(worker.root / "state", ignore_errors=True)

    def wants(self, on: str = "ended", *more: str, command: str = "", hook: bool = True) -> None:
        lines = [f"on = {json.dumps(on.split())}"]
        if hook:
            lines += ["[webhook]", f'url = "{self.receiver.url}"']
        if command:
            argv = [sys.executable, "-c", command, str(self.told)]
            lines += ["[command]", f"argv = {json.dumps(argv)}"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("\n".join([*lines, *more]) + "\n")
        self.path.chmod(0o600)

    @property
    def client(self) -> str:
        return (self.worker.root / "state/runner/client").read_text().strip()

    @property
    def place(self) -> Path:
        """What the worker keeps of them."""
        return self.worker.workspace / ".runner/notify" / self.client

    def lines(self) -> list[str]:
        """What their command wrote."""
        return self.told.read_text().splitlines() if self.told.exists() else []

    def is_delivered(self) -> bool:
        """Whether nothing is left to send."""
        ready = self.place / "ready"
        return not ready.is_dir() or not list(ready.iterdir())


WRITES = (
    "import json, sys; m = json.load(sys.stdin);"
    " open(sys.argv[1], 'a').write('%s %s\\n' % (m['run'], m['outcome']))"
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.fixture
def person(shared_worker: LocalWorker, receiver: Receiver) -> Person:
    return Person(shared_worker, receiver)


def kill_dispatcher(worker: LocalWorker, *, senders: bool = False) -> None:
    """kill -9; its supervisord starts another."""
    before = worker.dispatcher
    pids = [pid for pid, words in worker.machinery().items() if "supervisord" not in words]
    worker.kill(*(pids if senders else [before]))
    wait_for(lambda: worker.dispatcher not in (0, before), 30, "another dispatcher")


def test_each_final_state_is_told_once_whatever_the_hook_does(person: Person) -> None:
    person.wants(command=WRITES + "; sys.exit(3)")
    worker = person.worker
    good, bad = worker.submit("true"), worker.submit("false")
    long = worker.submit("sleep", "300")
    worker.until(long, "running")
    worker.cancel(long)
    person.receiver.until(3)
    wait_for(lambda: len(person.lines()) == 3, 30, "three lines")
    kill_dispatcher(worker)
    later = worker.submit("true")  # by its end all the others were looked at again
    person.receiver.until(4)
    wait_for(lambda: len(person.lines()) == 4, 30, "the last line")
    wanted = {good: "done", bad: "failed", long: "cancelled", later: "done"}
    posted = person.receiver.messages
    assert {message["run"]: message["outcome"] for message in posted} == wanted
    assert dict(line.split() for line in person.lines()) == wanted
    assert len(posted) == len({message["id"] for message in posted}) == len(person.lines()) == 4
    assert {run: worker.state(run)["outcome"] for run in wanted} == wanted
    assert posted[0]["host"] == "local"
    wait_for(person.is_delivered, 30, "an empty outbox")
    wait_for(lambda: person_account(person)["lost"] == 4, 30, "the end of the last command")
    assert person_account(person)["error"].startswith("exit 3")


def test_of_a_sweep_bad_ends_are_told_of_by_kind_and_then_that_it_is_through(
    person: Person, tmp_path: Path
) -> None:
    person.wants()
    worker = person.worker
    go = tmp_path / "go"
    code = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
    code += "sys.exit(int(sys.argv[2]) % 10)"
    first = worker.python(code, str(go), "{X}", words=("each.X=0,1,2,11,12",))
    sweep = first.rpartition(".")[0]
    go.touch()
    for number in range(1, 6):
        worker.wait(f"{sweep}.{number}")
    person.receiver.until(3)
    later = worker.submit("true")  # by its end all the others were looked at again
    person.receiver.until(4)
    posted = person.receiver.messages
    told = [(m["outcome"], m["cause"] and m["cause"]["text"], m.get("counts")) for m in posted]
    bad = {("failed", f"exit {code}", None) for code in (1, 2)}
    assert {(one, cause, None) for one, cause, counts in told if cause} == bad
    (through,) = [m for m in posted if m.get("counts")]
    assert (through["run"], through["sweep"]) == (None, sweep)
    assert through["counts"] == {"done": 1, "failed": 4}
    assert [m["run"] for m in posted if m["outcome"] == "done"] == [later]


def person_account(person: Person) -> dict[str, Any]:
    """What the worker says has not arrived."""
    with person.worker.ctx.connect(person.worker.ctx.host("local")) as there:
        reply, _ = there.call("notify", notify={"client": person.client}, test=False)
    return dict(reply["account"])


def test_killed_before_it_is_delivered_it_is_delivered_and_nothing_waits_for_it(
    person: Person,
) -> None:
    person.wants(command=WRITES)
    worker, receiver = person.worker, person.receiver
    answered: list[str] = []

    def answer(handler: Any, got: Any) -> int | None:
        if not receiver.release.is_set():
            return receiver.hang()  # type: ignore[func-returns-value]
        answered.append(got.message["run"])
        return 200

    receiver.answer = answer
    run = worker.submit("false")
    receiver.until(1)  # a sender hangs in it
    # neither the queue, nor the command, nor the other runs wait for it
    other = worker.submit("true")
    assert worker.wait(other).status.outcome == "done"
    wait_for(lambda: len(person.lines()) == 2, 30, "the command's two lines")
    words = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in worker.machinery())
    assert SECRET.encode() not in words
    kill_dispatcher(worker, senders=True)
    receiver.release.set()
    wait_for(lambda: len(answered) == 2, 60, "both messages")
    wait_for(person.is_delivered, 30, "an empty outbox")
    assert sorted(answered) == sorted([run, other])
    assert len({got.headers["Idempotency-Key"] for got in receiver.got}) == 2
    assert len(person.lines()) == 2


def test_killed_between_the_end_and_the_message_it_is_told_of_at_the_next_start(
    person: Person,
) -> None:
    person.wants()
    worker = person.worker
    run = worker.submit("true")
    first = person.receiver.until(1)[0].message
    wait_for(person.is_delivered, 30, "an empty outbox")
    # as it is when it is killed before it wrote the message
    (worker.run_folder(run) / "told/ended-0").unlink()
    kill_dispatcher(worker)
    again = person.receiver.until(2)[1].message
    assert again == first


def test_secrets_are_in_the_store_and_nowhere_else(
    person: Person, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (person.path.parent).mkdir(parents=True, exist_ok=True)
    token = person.path.parent / "token"
    token.write_text("tk_s3cr3t-token\n")
    token.chmod(0o600)
    person.wants("ended", '[webhook.headers]\nAuthorization = { file = "token" }')
    worker = person.worker
    person.receiver.answer = lambda handler, got: 500
    run = worker.submit("true")
    got = person.receiver.until(1)[0]
    assert got.headers["Authorization"] == "tk_s3cr3t-token"
    wait_for(lambda: read(person.place / "webhook.json"), 30, "what came of it")
    worker.pull(run)
    store = person.place / "settings.json"
    assert "s3cr3t" in store.read_text()
    assert store.stat().st_mode & 0o777 == 0o600
    assert person.place.stat().st_mode & 0o777 == 0o700
    for top in (worker.workspace, worker.project):
        for path in top.rglob("*"):
            if path.is_file() and path.name != store.name and "bundles" not in path.parts:
                assert b"s3cr3t" not in path.read_bytes(), path
    monkeypatch.chdir(worker.project)
    for words in (["notify"], ["notify", "--json"], ["notify", "test"], ["status", run]):
        main(words)
    told = capsys.readouterr()
    assert "s3cr3t" not in told.out + told.err
    assert "http://127.0.0.1" in told.out
    assert re.search(r"local: 1 message not delivered, the last error \d+s ago: HTTP 500", told.err)


def test_changed_settings_count_for_runs_under_way_and_go_with_their_file(person: Person) -> None:
    worker = person.worker
    person.wants("ended", hook=False, command="pass")
    gate = worker.root / "gate"
    code = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)"
    run = worker.python(code, str(gate))
    assert read(worker.run_folder(run) / "spec.json")["notify"] == person.client
    person.wants()  # another way, brought there by the next submit
    worker.wait(worker.submit("true", words=("name=second",)))
    gate.touch()
    posted = person.receiver.until(2)
    assert run in [got.message["run"] for got in posted]
    person.path.unlink()
    quiet = worker.submit("true")
    worker.wait(quiet)
    assert "notify" not in read(worker.run_folder(quiet) / "spec.json")
    assert not person.place.exists()


def test_two_people_in_one_workspace_hear_each_of_their_own_runs(
    person: Person, shared_worker: LocalWorker
) -> None:
    person.wants()
    mine = shared_worker.submit("true")
    other = Person(shared_worker, Receiver())
    other.wants()
    theirs = shared_worker.submit("true")
    assert [got.message["run"] for got in other.receiver.until(1)] == [theirs]
    assert [got.message["run"] for got in person.receiver.until(1)] == [mine]
    other.receiver.close()


def test_a_fork_is_told_to_who_typed_it(person: Person, shared_worker: LocalWorker) -> None:
    from runner.app import again
    from runner.grammar.changes import Changes

    run = shared_worker.submit("true")
    shared_worker.wait(run)
    person.wants()
    made: list[str] = []
    again.reproduce(shared_worker.ctx, shared_worker.ref(run), Changes(), made.append)
    assert [got.message["run"] for got in person.receiver.until(1)] == made


def test_a_run_that_is_stuck_is_told_of_once(person: Person) -> None:
    person.wants("stuck")
    worker = person.worker
    run = worker.submit("sleep", "300", words=("stuck_after=1s",))
    message = person.receiver.until(1)[0].message
    assert (message["kind"], message["run"]) == ("stuck", run)
    assert re.match(rf"{run} STUCK on local: no output for \ds\nrunner why {run}", message["text"])
    kill_dispatcher(worker)
    worker.cancel(run, now=True)
    other = worker.submit(
        "sleep", "300", words=("stuck_after=1s", "on_stuck=restart", "restarts=1")
    )
    wait_for(lambda: len(worker.attempts(other)) == 2, 40, "a second attempt")
    found = [got.message for got in person.receiver.until(2)]
    assert [m["run"] for m in found] == [run, other]
    assert "goes on from its last checkpoint" in found[1]["text"]
    worker.cancel(other, now=True)


def test_a_disk_that_runs_low_is_told_of_once(person: Person) -> None:
    person.wants("disk")
    worker = person.worker
    worker.host(disk_reserve="900000g")
    run = worker.submit("true")
    message = person.receiver.until(1)[0].message
    assert message["kind"] == "disk"
    assert message["text"].startswith("local: disk runs low, ")
    assert message["text"].endswith("runner gc host=local --dry-run")
    kill_dispatcher(worker)
    worker.host()
    worker.submit("true")
    worker.wait(run)
    wait_for(person.is_delivered, 30, "an empty outbox")
    assert len(person.receiver.got) == 1
    (worker.project / "hosts/local.toml").unlink()


def test_a_test_says_what_came_back_and_its_status(
    person: Person, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(person.worker.project)
    assert main(["notify", "test"]) == 2
    assert "there is no " in capsys.readouterr().err
    person.wants("ended", f'[heartbeat]\nurl = "{person.receiver.url}/{{name}}"', command="pass")
    assert main(["notify", "test", "host=local", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    results = [(row["place"], row["channel"], row["ok"]) for row in found["results"]]
    assert results == [("local", way, True) for way in ("webhook", "command", "heartbeat")]
    assert found["settings"]["webhook"]["url"].endswith("/…")
    assert person.receiver.got[-1].path.endswith("/local")
    assert main(["notify", "test"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        *["here"] * 3,
        *["local"] * 3,
    ]
    person.receiver.answer = lambda handler, got: 404
    assert main(["notify", "test", "host=local"]) == 5
    assert "local  webhook    FAILED   HTTP 404: ok, " in capsys.readouterr().out
    assert main(["notify", "test", "host=gone"]) == 6


def test_a_host_without_network_is_told_of(
    person: Person, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    person.worker.file("hosts/cut.toml", 'ssh = "nowhere"\nnetwork = "none"\n')
    person.wants()
    monkeypatch.chdir(person.worker.project)
    assert main(["notify", "test", "host=cut"]) == 5
    assert "no message goes out from there" in capsys.readouterr().out
    (person.worker.project / "hosts/cut.toml").unlink()


def test_a_wrong_file_refuses_a_submit_before_anything_is_touched(person: Person) -> None:
    person.wants("failed")
    person.worker.wait(person.worker.submit("true"))
    person.wants()
    person.path.chmod(0o644)
    before = set(person.worker.workspace.glob("runs/*"))
    with pytest.raises(SpecError, match="others may read it"):
        person.worker.submit("true")
    person.path.write_text("[webhok]")
    person.path.chmod(0o600)
    with pytest.raises(SpecError):
        person.worker.submit("true")
    assert set(person.worker.workspace.glob("runs/*")) == before
    assert not person.worker.ctx.store.open_intents(["true"])
    # a schedule fires all the same
    from runner.app.submit import submit

    request = parse_submit([], ["false"])
    (run,) = submit(person.worker.ctx, request, lambda ids: None, unattended=True)
    assert person.worker.wait(run).status.outcome == "failed"
    assert "webhok is not known here" in person.worker.report.text
    # and is told of by what the worker knew before
    assert person.receiver.until(1)[0].message["run"] == run


def test_a_heartbeat_beats_while_the_worker_lives(person: Person) -> None:
    more = f'[heartbeat]\nurl = "{person.receiver.url}/{{name}}"\nevery = "1m"'
    person.wants("missed", more, hook=False, command="pass")
    person.worker.submit("true")
    got = person.receiver.until(1)[0]
    assert (got.method, got.path.rpartition("/")[2]) == ("GET", "local")
    wait_for(lambda: read(person.place / "heartbeat.json").get("ok"), 30, "its record")


def wants(desk: CronDesk, receiver: Receiver) -> None:
    """Their file where cron finds it: it has no variable of theirs but HOME."""
    path = desk.home / ".config/runner/notify.toml"
    path.parent.mkdir(parents=True)
    path.write_text(
        f'[webhook]\nurl = "{receiver.url}"\n[heartbeat]\nurl = "{receiver.url}/{{name}}"\n'
    )
    path.chmod(0o600)


def test_a_missed_firing_is_told_of_by_this_machine_until_it_arrives(
    desk: CronDesk, receiver: Receiver
) -> None:
    wants(desk, receiver)
    receiver.answer = lambda handler, got: 503
    desk.done("schedule", "add", "nightly", "0 3 * * *", "missed=skip", "tz=UTC", "--", "true")
    desk.rewind("nightly", 86_400.0)
    assert desk.look().returncode == 0
    assert len(receiver.got) == 1
    shelf = desk.shelf("nightly")
    assert [each.cause for each in shelf.progress().fired] == ["missed"]
    assert "notify: webhook: HTTP 503" in shelf.log.read_text()
    assert SECRET not in shelf.log.read_text()
    shown = desk.done("notify")
    assert "schedule nightly: 1 message not delivered, the last error" in shown
    assert SECRET not in shown
    receiver.answer = lambda handler, got: 200
    assert desk.look().returncode == 0  # too early to try again
    assert len(receiver.got) == 1
    Outbox(str(shelf.folder / "notify")).hurry()
    for _ in range(2):
        assert desk.look().returncode == 0
    first, last = receiver.messages
    assert first == last
    assert (last["kind"], last["schedule"], last["host"]) == ("missed", "nightly", "local")
    assert re.match(r"schedule nightly MISSED: that of \w+ 03:00 to local: ", last["text"])
    assert "not delivered" not in desk.done("notify")


def test_a_firing_beats_and_one_that_makes_no_run_is_told_of(
    desk: CronDesk, receiver: Receiver
) -> None:
    wants(desk, receiver)
    desk.done("schedule", "add", "nightly", "0 3 * * *", "tz=UTC", "--", "true")
    desk.rewind("nightly", 86_400.0)
    assert desk.look().returncode == 0
    beats = [got.path.rpartition("/")[2] for got in receiver.got if got.method == "GET"]
    assert beats == ["nightly"]
    # the worker heard of the file with the submit: it tells of the end by itself
    receiver.until(2)
    assert receiver.messages[0]["outcome"] == "done"
    shutil.rmtree(desk.worker.project)
    desk.rewind("nightly", 86_400.0)
    shelf = desk.shelf("nightly")
    progress = shelf.progress()
    shelf.put_progress(type(progress)(handled=progress.handled, fired=(), begun=None))
    desk.look()
    last = receiver.until(3)[-1].message
    assert (last["kind"], last["cause"]["kind"]) == ("missed", "not-submitted")
    assert "nightly NOT SUBMITTED" in last["title"]
    assert "is gone, the project of schedule nightly" in last["text"]
    assert len([got for got in receiver.got if got.method == "GET"]) == 1
