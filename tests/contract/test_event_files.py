"""A script that knows nothing of us and writes with SummaryWriter alone is seen as any job is."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from runner.app import submit
from runner.endpoint import Worker
from runner.spec import parse_submit
from tests.helpers.local_worker import LocalWorker
from tests.helpers.typed import Said, typed
from tests.helpers.wait import wait_for

SCRIPT = """
import argparse, os, pathlib, time
from torch.utils.tensorboard import SummaryWriter
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--gate", default="")
args = parser.parse_args()
writer = SummaryWriter(f"runs/CartPole-v1__clean__{args.seed}__{int(time.time())}")
writer.add_text("hyperparameters", "|param|value|")
def train(steps):
    for global_step in steps:
        writer.add_scalar("charts/episodic_return", global_step / 10 + args.seed, global_step)
        writer.add_scalar("losses/td_loss", 0.3, global_step)
train(range(0, 500, 50))
writer.flush()
while args.gate and not os.path.exists(args.gate):
    time.sleep(0.05)
train(range(500, 1001, 50))
writer.close()
"""
TOML = f"""command = [{json.dumps(sys.executable)}, "clean.py"]
pass = "flags"
restarts = 0
[params]
seed = 1
gate = ""
"""
LIMIT_S = 60.0


def begin(worker: LocalWorker, *words: str) -> list[str]:
    return submit.submit(worker.ctx, parse_submit(["job=clean", *words], None), lambda run: None)


@pytest.fixture(scope="module")
def ended(shared_worker: LocalWorker) -> list[str]:
    """Two seeds of the script, which have ended."""
    shared_worker.file("clean.py", SCRIPT)
    shared_worker.file("agents/clean.toml", TOML)
    ids = begin(shared_worker, "seed=1..2")
    for run in ids:
        assert shared_worker.wait(run, LIMIT_S).status.outcome == "done"
    return ids


@pytest.fixture
def type_in(shared_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(shared_worker.project)

    def run(*words: str) -> Said:
        said = typed(*words)
        assert said.status == 0, said.err
        return said

    return run


def row(said: Said, run: str) -> dict[str, Any]:
    return next(each for each in json.loads(said.out)["runs"] if each["id"] == run)


def test_an_ended_run_shows_its_last_step_and_values(ended: list[str], type_in: Any) -> None:
    for said in (type_in("ps", "--json"), type_in("status", ended[1], "--json")):
        body = json.loads(said.out)
        shown = row(said, ended[1]) if "runs" in body else body
        shown = shown.get("run", shown)
        assert shown["step"] == 1000
        assert shown["metrics"] == {"charts/episodic_return": 102.0, "losses/td_loss": 0.3}
        assert shown["progress_at"] is not None
    assert "1k" in type_in("ps").text and "102" in type_in("ps").text


def test_a_live_run_shows_how_far_it_is(
    shared_worker: LocalWorker, ended: list[str], type_in: Any
) -> None:
    gate = shared_worker.root / "gate"
    (run,) = begin(shared_worker, "seed=7", f"gate={gate}")
    wait_for(lambda: shared_worker.status(run).status.step == 450, LIMIT_S, "its step")
    shown = row(type_in("ps", "--json"), run)
    assert (shown["state"], shown["metrics"]["charts/episodic_return"]) == ("running", 52.0)
    assert "450" in type_in("plot", run).text, "its curve as far as it is"
    gate.touch()
    assert shared_worker.wait(run, LIMIT_S).status.step == 1000


def test_curves_are_drawn_and_compared(
    shared_worker: LocalWorker, ended: list[str], type_in: Any
) -> None:
    drawn = type_in("plot", *ended).text
    assert "charts/episodic_return  101 at 1k" in drawn and "102 at 1k" in drawn
    body = json.loads(type_in("compare", *ended, "--json").out)
    assert (body["metric"], body["at_step"]) == ("charts/episodic_return", 1000)
    assert [seed["step"] for seed in body["groups"][0]["seeds"]] == [1000, 1000]
    page = shared_worker.project / "c.html"
    type_in("compare", *ended, "--out", str(page))
    assert page.read_text().count("<svg") == 2, "over steps and over the time it ran"


def test_what_travels_of_a_long_training_is_small(
    shared_worker: LocalWorker, ended: list[str]
) -> None:
    from tests.helpers import event_writers

    now = time.time()  # later than what is there: the folder is taken for the training begun anew
    work = Path(shared_worker.workspace) / "code" / ended[0] / "runs/long/events.out.tfevents.1"
    events = [
        event_writers.scalar(tag, step * 0.37, step, now + step / 1e4)
        for step in range(0, 1_000_000, 100)
        for tag in ("charts/SPS", "charts/episodic_return", "losses/q_values")
    ]
    event_writers.write(work, event_writers.version(now), *events)
    assert work.stat().st_size > 1_500_000
    with Worker(shared_worker.ctx.hosts["local"]) as link:
        _, rows = link.call("progress", run=ended[0], most=2000)
        assert len(json.dumps(rows)) < 400_000
        assert {name for _, found, _ in rows for name in found} >= {"charts/SPS"}
        _, rows = link.call("progress", run=ended[0], most=2000, names=["losses/q_values"])
        assert len(rows) == 2000
