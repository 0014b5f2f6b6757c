"""`stack`, asked over a real conversation of a run that goes on undisturbed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runner.endpoint import Worker
from runner.errors import NotFound, WrongState
from tests.helpers.local_worker import LocalWorker


@pytest.fixture
def link(shared_worker: LocalWorker) -> Iterator[Worker]:
    with Worker(shared_worker.ctx.hosts["local"]) as worker:
        yield worker


SPINS = """
import os, sys, time
def trains(step=0):
    print("begun", flush=True)
    while not os.path.exists("enough"): time.sleep(0.01)
    print("went on", flush=True)
trains()
"""


@pytest.mark.parametrize("count", [1, 2])
def test_every_rank_shows_where_it_is_and_goes_on(
    shared_worker: LocalWorker, link: Worker, count: int
) -> None:
    shared_worker.file("hide/torch/__init__.py", "raise ImportError('hidden')\n")
    hide = f"env.PYTHONPATH={shared_worker.project}/hide"
    run = shared_worker.python(SPINS, words=(f"nproc={count}", hide))
    for rank in range(count):
        shared_worker.until_logged(run, "begun", rank)
    reply, _ = link.call("stack", run=run)
    assert "problem" not in reply
    assert [row["rank"] for row in reply["ranks"]] == list(range(count))
    for row in reply["ranks"]:
        assert "trains (<string>:5)" in row["text"]
        assert row["pid"] in shared_worker.members(run)
    kept = shared_worker.run_folder(run) / "attempts/1/stacks-1.txt"
    assert kept.read_text().count("trains (<string>:5)") == count
    (shared_worker.workspace / "code" / run / "enough").touch()
    assert shared_worker.wait(run).status.outcome == "done"
    assert shared_worker.log(run) == b"begun\nwent on\n"


def test_a_run_that_has_ended_has_none(shared_worker: LocalWorker, link: Worker) -> None:
    run = shared_worker.submit("true")
    shared_worker.wait(run)
    with pytest.raises(WrongState, match="only a running one has stacks"):
        link.call("stack", run=run)
    with pytest.raises(NotFound):
        link.call("stack", run="nope")
