"""Limits of a running attempt, for real: its time, its motion, the disk, logs, checkpoints."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from runner import wire
from runner.endpoint import Worker
from tests.helpers.local_worker import LocalWorker, read
from tests.helpers.small_disk import small_disk
from tests.helpers.wait import wait_for

_NUMBERS = itertools.count(1)


def submit(worker: LocalWorker, code: str, given: Any = None, **fields: Any) -> str:
    """Hand over a run of `python -c CODE` whose spec has these fields; its id.

    given: the values of its secrets, in base64.
    """
    run = f"cmd-w{next(_NUMBERS):03d}"
    spec = {
        "id": run,
        "argv": ["python", "-c", code],
        "nproc": 1,
        "gpus": 0,
        "grace_s": 5,
        "python": sys.executable,
        "project": {"id": "p-1"},
        "snapshot": wire.tree_digest([]),
        **fields,
    }
    with Worker(worker.ctx.hosts["local"]) as link:
        request = link.open("submit", spec=spec, list="whole", secrets=given or {})
        request.send_rows([])
        for kind, payload in request.frames():
            assert kind == wire.EVENT
            assert wire.read_json(payload)["need"] == []
            request.end()
        assert request.reply["run"]["id"] == run
    return run


def folder(worker: LocalWorker, run: str, attempt: int = 1) -> Path:
    return worker.run_folder(run) / "attempts" / str(attempt)


def end(worker: LocalWorker, run: str, limit_s: float = 40.0) -> dict[str, Any]:
    """exit.json of the first attempt, once it is there; the run need not have ended."""
    path = folder(worker, run) / "exit.json"
    return wait_for(lambda: read(path), limit_s, f"the end of {run}'s first attempt")


def events(worker: LocalWorker, run: str) -> list[dict[str, Any]]:
    text = (worker.run_folder(run) / "events.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


SAVES = """
import os, signal, sys, time, json
count = 0
def save(*_):
    global count
    count += 1
    print("TERM", count, flush=True)
    time.sleep(0.3)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
def say(step):
    with open(os.environ["RUNNER_PROGRESS"], "a") as out:
        out.write(json.dumps({"step": step}) + "\\n")
print("begun", flush=True)
"""


def test_a_time_limit_stops_as_a_cancel_does(shared_worker: LocalWorker) -> None:
    run = submit(shared_worker, SAVES + "say(9)\ntime.sleep(600)", time_limit_s=2)
    status = shared_worker.wait(run).status
    assert status.outcome == "failed"
    assert status.cause == {"kind": "time-limit", "text": "ran for 2s, its time limit"}
    assert shared_worker.log(run) == b"begun\nTERM 1\nsaved\n"
    ended = end(shared_worker, run)
    assert 2 <= ended["ran_s"] < 6
    assert ended["step"] == 9
    assert ended["killed"] == 0
    assert read(folder(shared_worker, run) / "beat.json")["ran_s"] < 2
    assert shared_worker.members(run) == set()


def test_what_ignores_a_time_limit_is_killed_after_its_grace(shared_worker: LocalWorker) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    run = submit(shared_worker, code, time_limit_s=1, grace_s=1)
    ended = end(shared_worker, run)
    assert ended["cause"]["kind"] == "time-limit"
    assert ended["killed"] == 1
    assert 2 <= ended["ran_s"] < 6


def test_a_run_that_ends_in_time_is_done(shared_worker: LocalWorker) -> None:
    run = submit(shared_worker, "print('x')", time_limit_s=30)
    assert shared_worker.wait(run).status.outcome == "done"
    assert end(shared_worker, run)["ran_s"] < 10


def test_a_stuck_run_is_told_of_while_it_is_stuck(shared_worker: LocalWorker) -> None:
    gate = shared_worker.root / "gate"
    code = f"""say(1)
while not os.path.exists({str(gate)!r}): time.sleep(0.05)
for step in range(2, 600): say(step); time.sleep(0.2)
"""
    run = submit(shared_worker, SAVES + code, stuck_after_s=1.5, on_stuck="tell")
    told = folder(shared_worker, run) / "stuck.json"
    body = wait_for(lambda: read(told), 20, "stuck.json")
    assert body["action"] == "tell"
    assert 0 < time.time() - body["since"] < 20
    gate.touch()
    wait_for(lambda: not told.exists(), 20, "its removal")
    assert [
        e["event"] for e in events(shared_worker, run) if e["event"] in ("stuck", "moving")
    ] == [
        "stuck",
        "moving",
    ]
    assert shared_worker.status(run).status.state == "running"
    shared_worker.cancel(run, now=True)


@pytest.mark.parametrize("action", ["restart", "stop"])
def test_a_stuck_rank_leaves_its_stacks_and_stops(shared_worker: LocalWorker, action: str) -> None:
    code = "say(7)\ndef hangs_here():\n    time.sleep(600)\nhangs_here()"
    run = submit(shared_worker, SAVES + code, stuck_after_s=1.5, on_stuck=action)
    cause = end(shared_worker, run)["cause"]
    final = {"final": True} if action == "stop" else {}
    assert cause["text"].startswith("no step for ")
    assert dict(cause, text="") == {"kind": "stuck", "text": "", "step": 7, **final}
    text = (folder(shared_worker, run) / "stacks-1.txt").read_text()
    assert text.startswith("rank 0, process ")
    assert "hangs_here" in text
    assert b"TERM 1\nsaved\n" in shared_worker.log(run)
    shared_worker.cancel(run)


def test_a_stopped_job_is_stuck_too(shared_worker: LocalWorker) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    run = submit(shared_worker, code, stuck_after_s=1.5, on_stuck="stop")
    assert end(shared_worker, run)["cause"]["text"].startswith("no output for ")
    assert shared_worker.members(run) == set()


def test_a_run_stops_with_time_to_save_when_the_hosts_reserve_is_reached(
    local_worker: LocalWorker,
) -> None:
    with small_disk(local_worker.workspace, "64m"):
        local_worker.host(disk_reserve="20m")
        code = "open('big', 'wb').write(bytes(50_000_000))\ntime.sleep(600)"
        run = submit(local_worker, SAVES + code)
        status = local_worker.wait(run).status
        assert status.outcome == "failed"
        assert status.cause is not None
        assert status.cause["kind"] == "disk-full"
        assert status.cause["text"].startswith("less than 20 MB free, the host's reserve; ")
        assert local_worker.log(run) == b"begun\nTERM 1\nsaved\n"
        local_worker.close()


CHECKPOINTS = """
import hashlib, json, os, pathlib, sys, time
top = pathlib.Path(os.environ["RUNNER_CHECKPOINTS"])
def save(step, value):
    place = top / f"step-{step:06d}.tmp"
    place.mkdir()
    data = b"x" * step
    (place / "model.pt").write_bytes(data)
    files = {"model.pt": {"bytes": step, "sha256": hashlib.sha256(data).hexdigest()}}
    body = {"format": 1, "step": step, "metrics": {"eval/return": value}, "files": files}
    (place / "manifest.json").write_text(json.dumps(body))
    place.rename(top / f"step-{step:06d}")
"""


def kept(worker: LocalWorker, run: str) -> list[str]:
    return sorted(os.listdir(worker.workspace / "checkpoints" / run))


def test_the_newest_and_the_best_checkpoints_stay(shared_worker: LocalWorker) -> None:
    code = CHECKPOINTS + "for n in range(1, 11): save(n, 9.0 if n == 2 else n / 10)\n"
    run = submit(shared_worker, code, keep=2, keep_best=1, metric="eval/return")
    assert shared_worker.wait(run).status.outcome == "done"
    assert kept(shared_worker, run) == ["step-000002", "step-000009", "step-000010"]


def test_old_checkpoints_go_while_the_job_runs(shared_worker: LocalWorker) -> None:
    code = CHECKPOINTS + "for n in (1, 2, 3): save(n, n)\nprint('saved', flush=True)\n"
    code = code.replace("(1, 2, 3)", "(1, 2, 3) if not os.environ['RUNNER_RESUME'] else ()")
    code += "time.sleep(600)"
    run = submit(shared_worker, code, keep=1)
    shared_worker.until_logged(run, "saved")
    wait_for(lambda: kept(shared_worker, run) == ["step-000003"], 20, "one checkpoint")
    place = shared_worker.workspace / "checkpoints" / run
    (place / ".old-step-000001").mkdir()
    shared_worker.kill(shared_worker.launcher(run))
    wait_for(lambda: shared_worker.log(run).count(b"saved") == 2, 30, "the next attempt")
    wait_for(lambda: kept(shared_worker, run) == ["step-000003"], 20, "one checkpoint")
    shared_worker.cancel(run, now=True)


FLOODS = """
import os, sys, time
print("first error", flush=True)
for n in range(60_000): sys.stdout.write("line %08d of a job that prints\\n" % n)
sys.stdout.flush()
print("mark", flush=True)
time.sleep(600)
"""
LIMIT = 400_000


def test_a_log_above_its_limit_loses_its_middle_and_says_so(shared_worker: LocalWorker) -> None:
    run = submit(shared_worker, FLOODS, log_limit_bytes=LIMIT)
    shared_worker.until_logged(run, "mark")
    path = shared_worker.workspace / "logs" / run / "rank-0.log"
    wait_for(lambda: path.stat().st_blocks * 512 < LIMIT, 20, "a smaller log")
    whole = shared_worker.log(run)
    shown = shared_worker.tail(run, follow=False)
    assert shown.startswith(b"first error\nline 00000000")
    assert shown.endswith(b"line 00059999 of a job that prints\nmark\n")
    head, marker, rest = shown.partition(b" bytes cut here (log_limit)\n")
    count = int(head.rpartition(b"\nrunner: ")[2])
    assert marker
    assert b"\0" not in shown
    # what is shown, and what is said to be gone, is all there was
    line = len(b"\nrunner: %d" % count) + len(marker)
    assert len(shown) - line + count == len(whole) == path.stat().st_size
    assert whole.startswith(head)
    assert whole.endswith(rest)
    last = b"line 00059999 of a job that prints\nmark\n"
    assert shared_worker.tail(run, follow=False, lines=2) == last
    assert shared_worker.tail(run, follow=False, lines=10**6) == shown
    middle = len(head) + len(marker) + 100_000
    assert shared_worker.tail(run, follow=False, start=middle) == rest
    shared_worker.cancel(run, now=True)


def test_a_pulled_log_stays_true_when_it_is_cut_after_the_first_pull(
    shared_worker: LocalWorker,
) -> None:
    gate = shared_worker.root / "flood"
    code = f"""
import os, sys, time
print("first error", flush=True)
sys.stdout.write("early\\n" * 20_000); sys.stdout.flush()
while not os.path.exists({str(gate)!r}): time.sleep(0.02)
for n in range(60_000): sys.stdout.write("line %08d of a job that prints\\n" % n)
sys.stdout.flush()
print("mark", flush=True)
time.sleep(600)
"""
    run = submit(shared_worker, code, log_limit_bytes=LIMIT)
    wait_for(lambda: shared_worker.log(run).count(b"early") == 20_000, 20, "its first lines")
    shared_worker.pull(run)
    here = shared_worker.project / "results" / run / "logs" / "rank-0.log"
    assert here.read_bytes() == shared_worker.log(run)
    gate.touch()
    shared_worker.until_logged(run, "mark")
    path = shared_worker.workspace / "logs" / run / "rank-0.log"
    wait_for(lambda: path.stat().st_blocks * 512 < LIMIT, 20, "a smaller log")
    report = shared_worker.pull(run)
    assert report.pending == ()
    digest = hashlib.sha256(shared_worker.log(run)).hexdigest()
    assert hashlib.sha256(here.read_bytes()).hexdigest() == digest
    assert b"bytes cut here (log_limit)" in here.read_bytes()
    shared_worker.cancel(run, now=True)
    assert shared_worker.pull(run).pending == ()


def test_a_log_that_somebody_deleted_does_not_stop_the_job(shared_worker: LocalWorker) -> None:
    code = """
import time
for n in range(20): print("line", n, flush=True); time.sleep(0.2)
"""
    run = submit(shared_worker, code)
    shared_worker.until_logged(run, "line 3")
    time.sleep(1.5)  # a look at the log comes every second
    (shared_worker.workspace / "logs" / run / "rank-0.log").unlink()
    text = "rank-0.log was deleted or replaced while it ran; what is printed since is lost"
    live = wait_for(lambda: shared_worker.status(run).status.log_problem, 10, "a word of it")
    assert live == text
    ended = shared_worker.wait(run).status
    assert (ended.outcome, ended.log_problem) == ("done", text)
    assert shared_worker.attempts(run)[0]["log_problem"] == text
    assert shared_worker.status(run).status.log_problem == text
    assert [e["event"] for e in events(shared_worker, run)].count("log-gone") == 1


SPOILS_AND_FLOODS = """
import os, sys, time
log = os.path.join(os.environ["RUNNER_LOGS"], "rank-0.log")
print("begun", flush=True)
time.sleep(1.5)
{act}
print("mark", flush=True)
for n in range(80_000): sys.stdout.write("line %08d of a job that prints\\n" % n)
sys.stdout.flush()
open("flooded", "w").close()
time.sleep(600)
"""


def own_log(worker: LocalWorker, run: str) -> Path:
    """What the job's program has open as its output."""
    code = worker.workspace / "code" / run / "flooded"
    wait_for(code.exists, 20, "its output")
    (pid,) = worker.members(run)
    return Path(f"/proc/{pid}/fd/1")


@pytest.mark.parametrize("way", ["os.unlink(log)", "os.rename(log, log + '.old')"])
def test_the_limit_holds_for_a_log_without_its_name(shared_worker: LocalWorker, way: str) -> None:
    run = submit(shared_worker, SPOILS_AND_FLOODS.format(act=way), log_limit_bytes=LIMIT)
    log = own_log(shared_worker, run)
    wait_for(lambda: log.stat().st_blocks * 512 < LIMIT, 10, "a smaller log")
    assert log.stat().st_size > 5 * LIMIT
    shared_worker.cancel(run, now=True)


def test_nothing_is_cut_that_is_not_the_ranks_own_log(
    shared_worker: LocalWorker, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"x" * 20 * LIMIT)
    room = theirs.stat().st_blocks
    act = f"os.unlink(log); os.link({str(theirs)!r}, log)"
    run = submit(shared_worker, SPOILS_AND_FLOODS.format(act=act), log_limit_bytes=LIMIT)
    log = own_log(shared_worker, run)
    wait_for(lambda: log.stat().st_blocks * 512 < LIMIT, 10, "a smaller log of its own")
    shared_worker.cancel(run, now=True)
    shared_worker.wait(run)
    assert theirs.read_bytes() == b"x" * 20 * LIMIT
    assert theirs.stat().st_blocks == room


def test_a_log_with_another_name_is_not_cut_and_that_is_said(
    shared_worker: LocalWorker, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    act = f"os.link(log, {str(other)!r})"
    run = submit(shared_worker, SPOILS_AND_FLOODS.format(act=act), log_limit_bytes=LIMIT)
    own_log(shared_worker, run)
    told = wait_for(
        lambda: [e for e in events(shared_worker, run) if e["event"] == "log-limit"], 10, "a word"
    )
    assert "another name, too; log_limit is not kept" in told[0]["text"]
    assert other.stat().st_blocks * 512 > 5 * LIMIT
    shared_worker.cancel(run, now=True)


def test_logs_of_several_ranks_without_their_names_are_kept_below_the_limit(
    shared_worker: LocalWorker,
) -> None:
    code = SPOILS_AND_FLOODS.replace('"rank-0.log"', '"rank-%s.log" % os.environ["RANK"]')
    act = "os.unlink(log)"
    run = submit(shared_worker, code.format(act=act), nproc=2, log_limit_bytes=LIMIT)
    wait_for((shared_worker.workspace / "code" / run / "flooded").exists, 30, "output")

    def rooms() -> dict[str, int]:
        found = {}
        for pid in shared_worker.members(run):
            place = f"/proc/{pid}/fd/1"
            try:
                if os.readlink(place).endswith(".log (deleted)"):
                    found[os.readlink(place)] = os.stat(place).st_blocks * 512
            except OSError:
                pass
        return found

    wait_for(
        lambda: len(found := rooms()) == 2 and 0 < max(found.values()) < LIMIT, 15, "smaller logs"
    )
    problem = shared_worker.status(run).status.log_problem
    assert problem is not None
    assert problem.endswith("(and 1 more like it)")
    shared_worker.cancel(run, now=True)


PUTS = {
    "link": "os.symlink({theirs!r}, log)",
    "pipe": "os.mkfifo(log)",
    "folder": "os.mkdir(log)",
}


@pytest.mark.parametrize("what", PUTS)
def test_what_lies_in_the_logs_place_is_set_aside_by_the_next_attempt(
    shared_worker: LocalWorker, tmp_path: Path, what: str
) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    code = f"""
import os, sys, time
log = os.path.join(os.environ["RUNNER_LOGS"], "rank-0.log")
if os.environ["RUNNER_ATTEMPT"] == "1":
    time.sleep(1.5); os.unlink(log)
    {PUTS[what].format(theirs=str(theirs))}
    time.sleep(2); sys.exit(3)
print("second")
"""
    run = submit(shared_worker, code, restarts=1)
    assert shared_worker.wait(run).status.outcome == "done"
    first, second = shared_worker.attempts(run)
    assert "deleted or replaced" in first["log_problem"]
    assert second["log_problem"] is None
    aside = "rank-0.log was no plain file; set aside as rank-0.log.aside-1"
    assert shared_worker.log(run).decode() == f"runner: {aside}\nsecond\n"
    assert theirs.read_text() == "theirs"


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


SHOWS = """
import json, os
folder = os.environ["RUNNER_SECRETS"]
files = {name: open(os.path.join(folder, name)).read() for name in os.listdir(folder)}
print(json.dumps([os.environ.get("WANDB_API_KEY"), files]))
"""


def test_a_secret_reaches_the_job_as_a_variable_and_as_a_file(local_worker: LocalWorker) -> None:
    value = "s3cr3t-value"
    given = {"WANDB_API_KEY": b64(value.encode())}
    run = submit(local_worker, SHOWS, given, secrets=list(given))
    local_worker.wait(run)
    assert json.loads(local_worker.log(run)) == [value, {"WANDB_API_KEY": value}]
    (local_worker.workspace / "logs" / run / "rank-0.log").unlink()
    places = [path for path in local_worker.workspace.rglob("*") if path.is_file()]
    assert places
    assert [
        path for path in places if value.encode() in path.read_bytes() and path.parent.name != run
    ] == []


def test_a_run_without_secrets_is_told_so(shared_worker: LocalWorker) -> None:
    run = submit(shared_worker, "import os; print(repr(os.environ['RUNNER_SECRETS']))")
    shared_worker.wait(run)
    assert shared_worker.log(run) == b"''\n"


def test_an_attempt_whose_secret_is_gone_does_not_start(shared_worker: LocalWorker) -> None:
    given = {"A": b64(b"1"), "B": b64(b"2")}
    code = "import time; print('begun', flush=True); time.sleep(600)"
    run = submit(shared_worker, code, given, secrets=["A", "B"])
    shared_worker.until_logged(run, "begun")
    (shared_worker.workspace / ".runner/secrets" / run / "B").unlink()
    shared_worker.kill(shared_worker.launcher(run))
    status = shared_worker.wait(run).status
    assert status.cause is not None
    assert status.cause["kind"] == "setup"
    assert "the secret B is not on the worker" in status.cause["text"]
    assert shared_worker.log(run) == b"begun\n"
