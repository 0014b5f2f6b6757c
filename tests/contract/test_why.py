"""Why a run waits or ended, from a real worker: what it waits for, its last words, its pace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import wire
from runner.app import runs, why
from runner.app.context import Context
from runner.app.reports import WhyReport
from runner.errors import HostError, NotFound, WorkerError
from runner.model import Project
from runner.show.reasons import explain, reason_lines
from tests.helpers.hostile_worker import Frame, hostile_host
from tests.helpers.local_worker import LocalWorker, Notes
from tests.helpers.wait import wait_for
from tests.rig import gpus as rig_gpus

HOLD = """
import os, time
print("on", flush=True)
while not os.path.exists(os.environ["GATE"]): time.sleep(0.01)
"""
HOLD_GPU = "import hold_gpu; hold_gpu.hold(2000)" + HOLD
PACE = """
import json, os, time
with open(os.environ["RUNNER_PROGRESS"], "w", buffering=1) as file:
    for step in range(1, 9):
        at = 1000.0 + 2.5 * step + 99 * (step > 5)
        print(json.dumps({"t": at, "step": step}), file=file)
print("all is well")
"""
FAILS = """
import sys
def deeper():
    raise ValueError("\\x1b[2J no such thing")
def main():
    deeper()
print("\\x1b]0;owned\\x07")
main()
"""


def ask(worker: LocalWorker, run: str) -> WhyReport:
    return why.why(worker.ctx, worker.ref(run))


def lines(worker: LocalWorker, run: str) -> list[str]:
    """What `runner why` prints of it."""
    found = ask(worker, run)
    return reason_lines(found.run, explain(found, found.run.contact.at or 0.0))


def until_said(worker: LocalWorker, run: str, text: str) -> list[str]:
    wait_for(lambda: text in " ".join(lines(worker, run)), 20, text)
    return lines(worker, run)


@pytest.fixture
def gate(local_worker: LocalWorker) -> Path:
    return local_worker.root / "gate"


def held(worker: LocalWorker, gate: Path, *words: str, code: str = HOLD) -> str:
    return worker.python(code, words=(*words, f"env.GATE={gate}"))


def test_a_slot_that_another_run_has_and_the_run_before_it(
    local_worker: LocalWorker, gate: Path
) -> None:
    local_worker.host(slots=1)
    first = held(local_worker, gate)
    local_worker.until_logged(first, "on")
    second, third = held(local_worker, gate), held(local_worker, gate)
    said = until_said(local_worker, second, f"held by {first}")
    assert said == [f"waits for a slot on local, held by {first}"]
    fourth = held(local_worker, gate)
    said = until_said(local_worker, fourth, f"held by {first}")
    assert said == [
        f"waits behind {third} on local, place 3 in the queue; {second}, the first there, "
        f"waits for a slot on local, held by {first}"
    ]
    assert set(ask(local_worker, fourth).facts.others) == {first, second, third}
    gate.touch()
    assert local_worker.wait(fourth).status.outcome == "done"


def test_runs_that_must_end_first_and_one_that_did_not_end_well(
    local_worker: LocalWorker, gate: Path
) -> None:
    first = held(local_worker, gate, code=HOLD + "raise SystemExit(3)")
    second = local_worker.submit("true", words=(f"after={first}",))
    said = until_said(local_worker, second, "RUNNING")
    assert said == [f"waits for {first} (RUNNING) to end done", f"  runner why {first}"]
    gate.touch()
    assert local_worker.wait(second).status.outcome == "skipped"
    said = lines(local_worker, second)
    assert said[0].startswith(f"SKIPPED: {first}, which it waited for, did not end done; ")
    assert said[1:] == [f"  runner why {first}"]


@pytest.fixture
def cards(local_worker: LocalWorker) -> Iterator[rig_gpus.FakeGpus]:
    made = rig_gpus.FakeGpus(local_worker.root / "gpus")
    tools = local_worker.root / "bin"
    rig_gpus.place_tool(tools, made.folder)
    local_worker.set_env("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    local_worker.file("hold_gpu.py", rig_gpus.HOLD.read_text())
    try:
        yield made
    finally:
        made.close()


def test_a_card_of_a_run_and_one_of_a_stranger(
    local_worker: LocalWorker, gate: Path, cards: rig_gpus.FakeGpus
) -> None:
    cards.set_cards(2)
    stranger = cards.hold(1, 3000)
    first = held(local_worker, gate, "gpus=1", code=HOLD_GPU)
    local_worker.until_logged(first, "on")
    second = held(local_worker, gate, "gpus=1", code=HOLD_GPU)
    (said,) = until_said(local_worker, second, "1 is used by")
    assert said.startswith(f"waits for 1 GPU on local: 0 is {first}'s, 1 is used by ")
    assert f"pid {stranger.pid}" in said
    assert "2.9 GiB)" in said
    gate.touch()
    assert local_worker.wait(second).status.outcome == "done"


def test_a_traceback_is_told_by_its_end_and_escaped(shared_worker: LocalWorker) -> None:
    shared_worker.file("agents/fails.py", FAILS)
    run = shared_worker.submit("python", "agents/fails.py")
    shared_worker.wait(run)
    said = lines(shared_worker, run)
    assert said[0].startswith("FAILED: rank 0: ")
    assert said[1:5] == [
        "  agents/fails.py:8  main()",
        "  agents/fails.py:6  deeper()",
        '  agents/fails.py:4  raise ValueError("\\x1b[2J no such thing")',
        "  ValueError: \\x1b[2J no such thing",
    ]
    assert said[-1] == f"  runner tail {run} -n 100"
    assert all(line.isprintable() for line in said)


def test_the_log_of_the_rank_that_failed_bounded(shared_worker: LocalWorker) -> None:
    code = "import os; print('\\x1b[31m' + 'x' * 5000 + '\\n' * 50 + 'last'); os._exit(3)"
    run = shared_worker.python(code)
    shared_worker.wait(run)
    facts = ask(shared_worker, run).facts
    assert facts.log_rank == 0
    assert facts.log[-1] == "last"
    assert (len(facts.log), len(facts.log[0])) == (51, 1000)
    said = lines(shared_worker, run)
    assert len(said) == 23  # a sentence, 20 lines, where to look
    assert all(line.isprintable() for line in said)


def test_a_log_without_end_is_read_from_its_end_alone(shared_worker: LocalWorker) -> None:
    run = shared_worker.python("for n in range(100_000): print('line', n)\nraise SystemExit(3)")
    shared_worker.wait(run)
    facts = ask(shared_worker, run).facts
    assert (len(facts.log), facts.log[-1]) == (100, "line 99999")


def test_the_pace_of_a_run(shared_worker: LocalWorker) -> None:
    run = shared_worker.python(PACE)
    shared_worker.wait(run)
    found = ask(shared_worker, run)
    assert found.facts.interval_s == 2.5
    assert found.facts.log == ()  # of one that went well there is nothing to explain
    assert lines(shared_worker, run)[0].startswith("DONE after ")


def test_a_run_that_is_asked_to_stop(local_worker: LocalWorker) -> None:
    code = "import signal, time; signal.signal(15, lambda *a: None); print('on', flush=True)\n"
    run = local_worker.python(code + "while True: time.sleep(0.05)", words=("grace=40s",))
    local_worker.until_logged(run, "on")
    assert lines(local_worker, run)[0].startswith("RUNNING for ")
    marker = local_worker.run_folder(run) / "cancel"
    marker.touch()
    said = lines(local_worker, run)
    assert said[0].startswith("STOPPING: asked to ")
    assert said[0].endswith(" ago; it may save for 40s, then it is killed")
    local_worker.cancel(run, now=True)


def test_the_last_dump_of_its_stacks_comes_along(shared_worker: LocalWorker) -> None:
    run = shared_worker.python("raise SystemExit(3)")
    shared_worker.wait(run)
    folder = shared_worker.run_folder(run) / "attempts" / "1"
    (folder / "stacks-2.txt").write_text("old\n")
    (folder / "stacks-10.txt").write_text("rank 0\n  f (a.py:3)\n")
    (folder / "stacks-x.txt").write_text("no\n")
    assert ask(shared_worker, run).facts.stack == ("rank 0", "  f (a.py:3)")


def test_a_run_that_is_gone_is_not_found(shared_worker: LocalWorker) -> None:
    shared_worker.wait(shared_worker.submit("true"))
    with pytest.raises(NotFound, match="no run nope here"):
        ask(shared_worker, "nope")


# hosts that are silent, or lie


def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *frames: Frame) -> Context:
    script = {} if frames else {"dies": True}
    host = hostile_host(tmp_path, monkeypatch.setenv, {"why": list(frames)}, **script)
    return Context(Project(tmp_path, "p", "p"), {"bad": host}, Notes())


def test_a_silent_host_gives_what_was_last_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(tmp_path, monkeypatch)
    with pytest.raises(HostError):
        why.why(ctx, runs.RunRef("a-1", "bad"))
    ctx.store.put("bad", {"id": "a-1", "state": "queued", "reason": "next after b"}, 50.0)
    found = why.why(ctx, runs.RunRef("a-1", "bad"))
    assert found.run.contact.state == "unreachable"
    assert explain(found, 110.0).text == "as of 1m ago: next after b"


RUN = {"id": "a-1", "state": "running"}


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"run": None},
        {"run": {"id": "b-2", "state": "running"}},
        {"run": RUN, "facts": {"others": {"b": {"id": "../b", "state": "x"}}}},
    ],
)
def test_an_answer_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: dict[str, Any]
) -> None:
    ctx = context(tmp_path, monkeypatch, (wire.REP, reply))
    with pytest.raises(WorkerError):
        why.why(ctx, runs.RunRef("a-1", "bad"))


def test_facts_that_are_none_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {
        "others": [3],
        "log": {"rank": "x", "lines": ["a", 3, None, *["x"] * 500]},
        "stack": {"a": 1},
        "interval_s": 1e300,
        "asked_at": "now",
        "grace_s": True,
    }
    ctx = context(tmp_path, monkeypatch, (wire.REP, {"run": RUN, "facts": odd}))
    facts = why.why(ctx, runs.RunRef("a-1", "bad")).facts
    assert (facts.others, facts.log_rank, facts.stack) == ({}, 0, ())
    assert facts.log == ("x",) * why.MOST_LINES
    assert (facts.interval_s, facts.asked_at, facts.grace_s) == (None, None, None)
