from __future__ import annotations

from runner.app.reports import WhyFacts, WhyReport
from runner.app.results import Contact
from runner.show.advice import MOST_WORDS, Reason
from runner.show.reasons import explain, reason_lines
from runner.show.screen import Paint
from runner.wire import RunStatus
from tests.helpers.statuses import BAD, NOW, failed, run, waits, why


def test_a_run_that_goes_on() -> None:
    facts = WhyFacts(interval_s=3.04)
    item = run(
        state="running",
        attempt=1,
        started_at=NOW - 1020,
        step=31_000,
        params={"steps": 50_000},
        progress_at=NOW - 2,
    )
    reason = explain(WhyReport(item, facts), NOW)
    assert reason == Reason(
        "running",
        "RUNNING for 17m: step 31,000 of 50,000, 2s ago (usually one each 3.0s); about 10m left",
    )
    assert why("running", started_at=NOW - 5, attempt=2) == [
        "RUNNING for 5s, attempt 2; it has not said a step yet"
    ]
    assert why("starting", started_at=NOW - 5) == ["STARTING for 5s"]
    installing = why("starting", started_at=NOW - 5, reason="installing 1 package: tyro")
    assert installing == ["STARTING for 5s: installing 1 package: tyro"]


def test_what_became_of_its_log() -> None:
    gone = "rank-0.log was deleted"
    found = why("running", started_at=NOW - 5, log_problem=gone)
    assert found == [f"RUNNING for 5s; it has not said a step yet; {gone}"]
    assert why("ended", outcome="done", log_problem=gone)[0].endswith(f"; {gone}")
    assert gone not in why("queued", log_problem=gone)[0]


def test_a_run_that_is_stuck() -> None:
    facts = WhyFacts(interval_s=3.0, stack=("rank 0", "  step (env.py:3)"))
    stuck = {"since_at": NOW - 1900, "action": "tell"}
    found = why("running", facts, step=812, stuck=stuck, started_at=NOW - 9000)
    assert found == [
        "RUNNING but no step for 31m (usually one each 3.0s), the last was step 812",
        "  rank 0",
        "    step (env.py:3)",
        "see what its ranks do:",
        "  runner stack dqn-7k3fa",
    ]
    again = why("running", stuck={"since_at": NOW - 60, "action": "restart"})
    assert again[0] == "RUNNING but no output for 1m; it is being started again"


def test_a_run_that_stops() -> None:
    found = why("stopping", WhyFacts(asked_at=NOW - 12, grace_s=25.0))
    assert found == ["STOPPING: asked to 12s ago; it may save for 25s, then it is killed"]
    assert why("stopping") == ["STOPPING"]


def test_what_was_said_is_escaped_and_no_command_is_made_of_it() -> None:
    other = RunStatus(id=BAD, state="queued", reason=BAD)
    facts = WhyFacts(others={BAD: other}, log=(BAD,), stack=(BAD,))
    found = [
        waits(facts, kind="order", behind=BAD),
        waits(facts, kind="after", runs=[BAD, 3]),
        waits(facts, kind="slot", holders=[BAD, {"run": BAD}, 3]),
        waits(
            facts,
            kind="gpus",
            want=BAD,
            holders=[{"index": BAD, "run": BAD}, {"worker": BAD}, 3],
            strangers=[{"index": 0, "user": BAD, "program": BAD, "pid": BAD, "since_at": BAD}],
        ),
        waits(facts, kind="gpus", query_failed=BAD),
        waits(facts, kind="disk", free_bytes=BAD),
        waits(facts, kind="drained", since_at=[BAD]),
        waits(facts, kind="pause", until_at=BAD, why=BAD),
        waits(facts, kind=BAD),
        why("queued", facts, reason=BAD),
        why("running", facts, stuck={"since_at": BAD, "action": BAD}),
        failed("exit", facts, more={"text": BAD, "rank": BAD}),
        failed("exit", facts, more={"traceback": f"{BAD}\n{BAD}: x"}),
        failed("dependency", facts, more={"run": BAD}),
        failed(BAD, facts),
        failed("exit", facts, run_id="x; reboot", checkpoints=[{}]),
        failed("cuda-oom", facts, run_id="--all", params={"batch_size": 2}),
    ]
    for lines in found:
        assert lines and all(line.isprintable() for line in lines)
        assert not [line for line in lines if line.startswith("  runner ") and "x1b" in line]
    assert not [line for line in found[-2] + found[-1] if line.startswith("  runner ")]


def test_what_was_said_without_end_is_cut() -> None:
    assert len(failed("exit", more={"text": "x" * 100_000})[0]) < 2 * MOST_WORDS


def test_a_silent_host_is_said_first() -> None:
    silent = Contact("gpu1", "unreachable", at=NOW - 720)
    item = run(state="queued", contact=silent, reason="next after a")
    assert explain(WhyReport(item, WhyFacts()), NOW).text == "as of 12m ago: next after a"


def test_text_is_broken_between_words_on_a_terminal_and_commands_never_are() -> None:
    cause = {"kind": "exit", "text": "a b " * 20}
    item = run("dqn-" + "x" * 60, "ended", outcome="failed", cause=cause)
    reason = explain(WhyReport(item, WhyFacts(log=("y" * 100,))), NOW)
    lines = reason_lines(item, reason, 40, Paint(True))
    assert lines[0].startswith("\x1b[31mFAILED\x1b[0m: a b")
    text = [line for line in lines if "runner tail" not in line]
    assert all(len(line.replace("\x1b[31m", "").replace("\x1b[0m", "")) <= 40 for line in text)
    assert f"  runner tail dqn-{'x' * 60} -n 100" in lines
