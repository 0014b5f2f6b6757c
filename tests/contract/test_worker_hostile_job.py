"""A job that spoils its own files spoils nobody else's run."""

from __future__ import annotations

import pytest

from runner.endpoint import Worker
from tests.helpers.local_worker import LocalWorker

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
