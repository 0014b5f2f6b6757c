"""Many hosts at once: nobody waits for the dead, the slow are not called dead, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner import children
from runner.app import context, many
from runner.errors import Unreachable
from tests.helpers.local_worker import Heard, LocalWorker
from tests.helpers.many_hosts import ManyHosts, many_here
from tests.helpers.wait import settles, wait_for

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("took_s", "hosts", "expected_s"),
    [
        ([], 50, 20),
        ([0.2], 2, 8),
        ([0.2] * 49, 50, 8),
        # the network, or this machine, is slow: nobody is dead for that
        ([4.0] * 25, 50, 12),
        ([0.1, *[5.0] * 20], 21, 15),
        # what the slower half took says nothing of the rest
        ([0.1] * 25 + [7.0] * 24, 50, 8),
        # one alone is given no longer
        ([9.0] * 3, 4, 20),
    ],
)
def test_patience_is_three_times_the_quicker_half(
    took_s: list[float], hosts: int, expected_s: float
) -> None:
    assert many.patience_s(took_s, hosts) == expected_s
    assert many.patience_s(list(reversed(took_s)), hosts) == expected_s


def test_line_that_tells_how_far_it_is() -> None:
    assert many.waiting_line("ps", 50, ["gpu3", "gpu9"]) == (
        "ps  48 of 50 hosts; waiting for gpu3, gpu9"
    )
    names = [f"h{number}" for number in range(1, 8)]
    assert many.waiting_line("ps", 7, names).endswith("waiting for h1, h2, h3 and 4 more")
    assert many.waiting_line("cancel", 2, ["a"], 3599.0).endswith("waiting for a; 59m left")
    assert many.waiting_line("ps", 2, []) == "ps  2 of 2 hosts"


@pytest.fixture
def few(local_worker: LocalWorker) -> ManyHosts:
    """Five hosts with a run each, beside `local`."""
    found = many_here(local_worker.project, local_worker.root / "many", 5, local_worker.set_env)
    for name in found.names:
        found.put_run(name, f"cmd-{name}")
    return found


def asked(worker: LocalWorker) -> tuple[context.Context, list[str]]:
    report = Heard()
    return context.open_context(report, worker.project), report.steps


def test_hosts_are_asked_at_the_same_time_and_answer_in_order(
    local_worker: LocalWorker, few: ManyHosts
) -> None:
    ctx, steps = asked(local_worker)
    hosts = [ctx.host(name) for name in few.names]
    together = threading.Barrier(len(hosts), timeout=60)

    def act(host: object, connect: many.Connect) -> str:
        with connect() as worker:
            together.wait()
            if worker.host.name == "h02":
                raise Unreachable("h02: silent")
            return worker.host.name.upper()

    answers = many.on_hosts(ctx, hosts, act, what="ps")
    assert [(host.name, found) for host, found, _ in answers] == [
        ("h01", "H01"),
        ("h02", None),
        ("h03", "H03"),
        ("h04", "H04"),
        ("h05", "H05"),
    ]
    assert [str(error) for _, _, error in answers if error] == ["h02: silent"]
    assert steps[0] == "ps  0 of 5 hosts; waiting for h01, h02, h03 and 2 more"
    assert many.on_hosts(ctx, [], act, what="ps") == []


def test_a_bug_in_one_thread_is_not_swallowed(local_worker: LocalWorker, few: ManyHosts) -> None:
    ctx, _ = asked(local_worker)

    def act(host: object, connect: many.Connect) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        many.on_hosts(ctx, [ctx.host(name) for name in few.names], act, what="ps")


def name_of(host: object, connect: many.Connect) -> str:
    with connect() as worker:
        return worker.host.name


def test_who_says_nothing_is_left_behind_and_who_is_slow_is_not(
    local_worker: LocalWorker, few: ManyHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, _ = asked(local_worker)
    monkeypatch.setattr(many, "LEAST_S", 6.0)
    monkeypatch.setattr(many, "TIMES", 1.0)
    few.mute("h03")
    few.slow("h05", 2.0)
    answers = many.on_hosts(ctx, [ctx.host(name) for name in few.names], name_of, what="ps")
    assert [found for _, found, _ in answers] == ["h01", "h02", None, "h04", "h05"]
    error = answers[2][2]
    assert isinstance(error, context.Slow)
    assert str(error).startswith("h03: no answer within ")
    assert str(error).endswith("s; slow or gone")
    # its child is ended too, not only forgotten
    wait_for(lambda: not mutes(), 10, "the end of what was left behind")


def test_a_worker_that_beats_and_never_answers_is_left_behind(
    local_worker: LocalWorker, few: ManyHosts
) -> None:
    ctx, _ = asked(local_worker)
    stop = threading.Event()

    def act(host: object, connect: many.Connect) -> str:
        with connect() as worker:
            if worker.host.name == "h01":
                stop.wait(60)
            return worker.host.name

    hosts = [ctx.host(name) for name in few.names]
    try:
        answers = many.on_hosts(ctx, hosts, act, what="ps", answer_s=1.0)
    finally:
        stop.set()
    assert [found for _, found, _ in answers] == [None, "h02", "h03", "h04", "h05"]
    assert "it is there, but gave no answer in 1 s" in str(answers[0][2])


def mutes() -> list[int]:
    """Stand-ins of ours that say nothing."""
    found = []
    for pid in children.children():
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"sleep" in file.read():
                found.append(pid)
    return found


# the command


def run(worker: LocalWorker, *words: str) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    argv = [sys.executable, "-m", "runner", *words]
    return subprocess.run(
        argv, cwd=worker.project, env=env, capture_output=True, text=True, timeout=120, check=False
    )


Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin(local_worker: LocalWorker) -> Iterator[Begin]:
    """Starts a client; one that a test leaves behind is ended, and its pipes are closed."""
    begun: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "runner", *words],
            cwd=local_worker.project,
            env=dict(os.environ, PYTHONPATH=str(ROOT)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        with process:
            if process.poll() is None:
                process.kill()


def left_of(hosts: ManyHosts) -> list[str]:
    """Command lines of clients, and of what they started, that have these hosts on their PATH."""
    mark = os.fsencode(str(hosts.folder / "bin"))
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environ = (path / "environ").read_bytes()
            words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        own = int(path.name) == os.getpid()
        of_local = b"RUNNER_IDLE_END_S" in environ and "/ws/" in words
        if mark in environ and not own and not of_local:
            found.append(words)
    return found


def test_ps_names_the_dead_shows_what_was_seen_and_leaves_no_process(
    local_worker: LocalWorker, few: ManyHosts
) -> None:
    first = run(local_worker, "ps", "--json")
    assert first.returncode == 0, first.stderr
    few.mute("h02")
    local_worker.file("hosts/broken.toml", "gpus = 'four'\n")
    few.without_worker("h04")
    few.put_run("h05", "cmd-h05", "ended")
    shown = run(local_worker, "ps", "--json")
    left = left_of(few)
    assert shown.returncode == 3, shown.stderr
    body = json.loads(shown.stdout)
    hosts = {row["name"]: row for row in body["hosts"]}
    states = {name: row["contact"]["state"] for name, row in hosts.items()}
    assert states.pop("h02") == states.pop("broken") == "unreachable"
    assert states.pop("h04") == "no-worker"
    assert states == dict.fromkeys(["h01", "h03", "h05", "local"], "ok")
    assert [name for name, row in hosts.items() if row["contact"]["slow"]] == ["h02"]
    assert hosts["h02"]["contact"]["at"] is not None
    runs = {row["id"]: row for row in body["runs"]}
    assert runs["cmd-h02"]["state"] == runs["cmd-h04"]["state"] == "running"
    assert runs["cmd-h02"]["contact"]["state"] == "unreachable"
    assert runs["cmd-h05"]["outcome"] == "done"
    assert "cmd-h02 may well be running" in shown.stderr
    assert "h02: no answer within 8 s; slow or gone, last heard " in shown.stderr
    assert "broken: hosts/broken.toml" in shown.stderr or "broken.toml" in shown.stderr
    assert left == [], "processes of ours are left behind"
    table = run(local_worker, "ps")
    (line,) = [line for line in table.stdout.splitlines() if line.startswith("cmd-h02")]
    assert line.split()[1] == "RUNNING"
    assert "seen " in line and " ago" in line


def test_ps_that_is_interrupted_leaves_no_process(begin: Begin, few: ManyHosts) -> None:
    for name in few.names:
        few.mute(name)
    process = begin("ps")
    asking = lambda: sum("sleep" in words for words in left_of(few)) == len(few.names)  # noqa: E731
    wait_for(asking, 30, "everyone asked")
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=20)[1]
    assert (process.returncode, said) == (130, "")
    wait_for(lambda: left_of(few) == [], 2, "the end of all it had started")


@pytest.mark.parametrize("words", [["--timeout", "2s"], []])
def test_a_wait_that_ends_early_leaves_no_process(
    local_worker: LocalWorker, begin: Begin, few: ManyHosts, words: list[str]
) -> None:
    for name in ("h01", "h02"):
        few.put_run(name, f"cmd-{name}")
    assert run(local_worker, "ps").returncode == 0
    few.mute("h01")
    few.mute("h02")
    process = begin("wait", "cmd-h01", "cmd-h02", *words)
    asking = lambda: sum("sleep" in words for words in left_of(few)) == 2  # noqa: E731
    wait_for(asking, 30, "both asked")
    if not words:
        process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=20)[1]
    assert process.returncode == (7 if words else 130), said
    wait_for(lambda: left_of(few) == [], 2, "the end of all it had started")


def test_cancel_all_stops_what_answers_at_once_and_waits_for_the_silent(
    local_worker: LocalWorker, begin: Begin, few: ManyHosts
) -> None:
    live = local_worker.python("import time; time.sleep(600)")
    local_worker.until(live, "running")
    for name in few.names:
        few.put_run(name, f"cmd-{name}", "ended")
    few.mute("h01")
    few.mute("h02")
    process = begin("cancel", "--all", "--json")
    local_worker.until(live, "ended", limit_s=30)
    assert process.poll() is None, "the dead were not waited for"
    began = time.monotonic()
    out, said = process.communicate(timeout=90)
    assert process.returncode == 3
    assert time.monotonic() - began < 40, "the dead were waited for one after the other"
    assert [row["run"] for row in json.loads(out)["runs"]] == [live]
    for name in ("h01", "h02"):
        assert f"{name}: no answer for 20 s; what runs there was NOT stopped" in said
        assert f"to keep trying: runner cancel host={name} --until 1h" in said
    assert left_of(few) == []


def test_cancel_all_that_is_interrupted_says_which_hosts_it_did_not_reach(
    begin: Begin, few: ManyHosts
) -> None:
    for name in few.names:
        few.put_run(name, f"cmd-{name}", "ended")
    few.mute("h04")
    process = begin("cancel", "--all", "--until", "1h")
    wait_for(lambda: len(left_of(few)) > 3, 30, "all hosts")
    # the others' answers are in by then
    settles(lambda: len(left_of(few)) == 2, 1.5, 60, "one silent host alone")
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=20)[1]
    assert process.returncode == 130
    assert said == "h04: interrupted; what runs there was NOT stopped\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_is_told_to_end_leaves_nobody_behind(
    begin: Begin, few: ManyHosts, number: signal.Signals
) -> None:
    few.mute("h02")
    process = begin("ps", "host=h02")
    wait_for(lambda: len(left_of(few)) == 2, 30, "a client and its way to a silent host")
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == -number
    wait_for(lambda: left_of(few) == [], 5, "the end of both")


def test_fifty_hosts_fit(local_worker: LocalWorker) -> None:
    fifty = many_here(local_worker.project, local_worker.root / "many", 50, local_worker.set_env)
    for name in fifty.names:
        fifty.put_run(name, f"cmd-{name}")
    fifty.slow(fifty.names[7], 3.0)
    shown = run(local_worker, "version", "--all")
    assert shown.returncode == 0, shown.stderr
    told = shown.stdout.splitlines()
    assert [line.split()[0] for line in told] == ["client", *fifty.names, "local"]
    listed = run(local_worker, "ps")
    assert listed.returncode == 0, listed.stderr
    assert {line.split()[0] for line in listed.stdout.splitlines()[1:]} == {
        f"cmd-{name}" for name in fifty.names
    }
