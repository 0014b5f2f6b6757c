"""A job that spoils its own files spoils nobody else's run."""

from __future__ import annotations

import json
import os
import signal
import time

import processes
import pytest

from runner.endpoint import Worker
from tests.helpers.local_worker import LocalWorker
from tests.helpers.wait import wait_for

SPOILS = {
    "infinite step": 'open(p, "w").write(\'{"step": 1e999, "metrics": {"m": 1}}\\n\')',
    "huge step": 'open(p, "w").write(\'{"step": 1%s}\\n\' % ("0" * 400))',
    "deep line": 'open(p, "w").write(\'{"step":1,"metrics":\' + "[" * 100000 + "\\n")',
    "pipe": "os.path.lexists(p) and os.unlink(p); os.mkfifo(p)",
    "endless": "os.path.lexists(p) and os.unlink(p); os.symlink('/dev/zero', p)",
    "log is a pipe": "os.unlink(l); os.mkfifo(l)",
    "checkpoints are a link": "os.rmdir(c); os.symlink('/etc', c)",
    "checkpoint is a link to all": "os.symlink('/', c + '/step-1')",
    "manifest is a pipe": "os.mkdir(c + '/step-1'); os.mkfifo(c + '/step-1/manifest.json')",
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_the_next_run_starts_and_all_verbs_answer(shared_worker: LocalWorker, spoil: str) -> None:
    code = f"""
import os
p, c = os.environ["RUNNER_PROGRESS"], os.environ["RUNNER_CHECKPOINTS"]
l = os.environ["RUNNER_LOGS"] + "/rank-0.log"
{SPOILS[spoil]}
"""
    bad = shared_worker.python(code)
    assert shared_worker.wait(bad).status.outcome == "done"
    good = shared_worker.python("print('fine')")
    assert shared_worker.wait(good).status.outcome == "done"
    assert shared_worker.tail(good) == b"fine\n"
    shared_worker.tail(bad)
    with Worker(shared_worker.ctx.host("local")) as worker:
        _, rows = worker.call("runs", ids=[bad], full=True)
        assert [row["id"] for row in rows] == [bad]
        _, listed = worker.call("list", run=bad)
        assert all(not row[1].startswith("passwd") for row in listed)
        worker.call("progress", run=bad)


def test_a_stopped_launcher_can_be_cancelled(shared_worker: LocalWorker) -> None:
    code = "import os, signal, time; os.kill(os.getppid(), 19); print('on'); time.sleep(600)"
    run = shared_worker.python(code)
    shared_worker.until_logged(run, "on")
    shared_worker.cancel(run, now=True)
    assert shared_worker.wait(run).status.outcome == "cancelled"


def test_a_run_whose_records_vanish_is_ended_and_holds_up_nothing(
    local_worker: LocalWorker,
) -> None:
    local_worker.host(slots=1)
    gone = local_worker.python(
        "import os, pathlib, shutil, time\n"
        "print('on', flush=True); time.sleep(0.5)\n"
        "shutil.rmtree(pathlib.Path(os.environ['RUNNER_PARAMS']).parents[2])\n"
        "time.sleep(600)",
        words=("grace=1s",),
    )
    local_worker.until_logged(gone, "on")
    launcher, members = local_worker.launcher(gone), local_worker.members(gone)
    other = local_worker.submit("true")
    assert local_worker.wait(other).status.outcome == "done"
    assert processes.living({launcher, *members}) == set()
    supervisor = local_worker.supervisor
    os.kill(supervisor, signal.SIGTERM)
    wait_for(lambda: not processes.living([supervisor]), 15, "the end of the worker")


def test_a_run_whose_attempts_vanish_is_no_run_that_never_started(
    local_worker: LocalWorker,
) -> None:
    run = local_worker.python(
        "import os, pathlib, shutil, time\n"
        "time.sleep(0.5)\n"
        "shutil.rmtree(pathlib.Path(os.environ['RUNNER_PARAMS']).parents[1])\n"
        "time.sleep(600)",
        words=("grace=1s",),
    )
    end = local_worker.wait(run).status
    assert (end.outcome, end.attempt) == ("failed", 1)
    assert end.cause == {"kind": "setup", "text": "its records were removed while it ran"}


def test_an_end_that_a_job_wrote_itself_ends_nothing(local_worker: LocalWorker) -> None:
    run = local_worker.python(
        "import json, os, pathlib, time\n"
        "place = pathlib.Path(os.environ['RUNNER_PARAMS']).parent / 'exit.json'\n"
        "place.write_text(json.dumps({'cause': None, 'exit': {'code': 0}}))\n"
        "print('on', flush=True); time.sleep(600)",
        words=("grace=1s",),
    )
    local_worker.until_logged(run, "on")
    time.sleep(2.5)
    assert local_worker.state(run)["state"] == "running"
    members = local_worker.members(run)
    (report,) = local_worker.cancel(run)
    assert (report.outcome, report.ended_before) == ("cancelled", False)
    assert processes.living(members) == set()


def test_bad_checkpoints_earn_no_restarts(local_worker: LocalWorker) -> None:
    code = """
import json, os, pathlib
n = int(os.environ["RUNNER_ATTEMPT"])
place = pathlib.Path(os.environ["RUNNER_CHECKPOINTS"], f"step-{n:05d}")
place.mkdir()
(place / "m.bin").write_bytes(b"x")
files = {"m.bin": {"bytes": 1, "sha256": "0" * 64}}
(place / "manifest.json").write_text(json.dumps({"format": 1, "step": n, "files": files}))
with open(os.environ["RUNNER_PROGRESS"], "a") as file:
    file.write(json.dumps({"step": n}) + "\\n")
raise SystemExit(3)
"""
    run = local_worker.python(code, words=("restarts=1",))
    assert local_worker.wait(run).status.attempt == 2


def test_a_cancel_does_not_wait_for_a_checkpoint_to_be_read(local_worker: LocalWorker) -> None:
    run = local_worker.python("raise SystemExit(1)")
    local_worker.wait(run)
    place = local_worker.workspace / "checkpoints" / run / "step-1"
    place.mkdir(parents=True)
    with open(place / "m.bin", "wb") as file:
        file.truncate(1 << 40)
    files = {"m.bin": {"bytes": 1 << 40, "sha256": "0" * 64}}
    (place / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))
    folder = local_worker.run_folder(run) / "resumes"
    folder.mkdir()
    (folder / "1.json").write_text("{}")
    (local_worker.workspace / ".runner/inbox" / run).touch()
    wait_for(lambda: len(local_worker.attempts(run)) == 2, 20, "its next attempt")
    time.sleep(1)
    assert local_worker.state(run)["state"] == "starting"
    began = time.monotonic()
    assert local_worker.cancel(run)[0].outcome == "cancelled"
    assert time.monotonic() - began < 8
