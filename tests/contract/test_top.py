"""`runner top` on a terminal, over a real worker with cards, and over many hosts."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import pytest

from tests.helpers.local_worker import LocalWorker
from tests.helpers.many_hosts import many_here
from tests.helpers.on_terminal import OnTerminal
from tests.helpers.typed import typed
from tests.helpers.wait import wait_for
from tests.rig.gpus import FakeGpus, place_tool

ROOT = Path(__file__).parents[2]
LEFT = b"\x1b[?7h\x1b[?25h\x1b[?1049l"
NASTY = "\x1b[2J\x1b]0;title\x07\u202ered"
STEPS = """
import json, os, time
with open(os.environ["RUNNER_PROGRESS"], "a") as file:
    step = 0
    while not os.path.exists("{stop}"):
        step += 100
        line = {"step": step, "t": time.time(), "metrics": {"reward": 21.5}}
        file.write(json.dumps(line) + "\\n")
        file.flush()
        time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGpus]:
    made = FakeGpus(tmp_path_factory.mktemp("gpus"))
    made.set_cards(2)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def worker(cards: FakeGpus) -> Iterator[LocalWorker]:
    with pytest.MonkeyPatch.context() as patch:
        made = LocalWorker(patch.setenv)
        place_tool(made.root / "bin", cards.folder)
        patch.setenv("PATH", f"{made.root / 'bin'}{os.pathsep}{os.environ['PATH']}")
        try:
            yield made
        finally:
            made.close()


Watch = Callable[..., OnTerminal]


@pytest.fixture
def watch(worker: LocalWorker) -> Iterator[Watch]:
    begun: list[OnTerminal] = []

    def begin(*words: str, columns: int = 100, rows: int = 24, **env: str) -> OnTerminal:
        argv = [sys.executable, "-m", "runner", "top", "--every", "1s", *words]
        around = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT), **env}
        around.pop("NO_COLOR", None)
        begun.append(OnTerminal(argv, worker.project, around, columns=columns, rows=rows))
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


def line_of(terminal: OnTerminal, run: str) -> str:
    return next((line for line in terminal.screen if line.startswith(run)), "")


def test_a_run_appears_goes_on_and_ends(worker: LocalWorker, watch: Watch) -> None:
    terminal = watch()
    terminal.until("1 of 1 host answer")
    assert "0 0% 0.0/22.5 GiB free  1 0% 0.0/22.5 GiB free" in terminal.text
    stop = worker.root / "stop"
    words = ("gpus=1", "name=first")
    run = worker.python(STEPS.replace("{stop}", str(stop)), words=words)
    terminal.until("RUNNING")
    wait_for(lambda: re.search(r"  0  +\d+ .* 21\.5 ", line_of(terminal, run)), 30, "its steps")
    assert f"0 0% 0.0/22.5 GiB {run}" in terminal.text
    first = line_of(terminal, run).split()[4]
    wait_for(lambda: line_of(terminal, run).split()[4] != first, 30, "more steps")
    assert line_of(terminal, run).endswith("first")
    assert [line for line in terminal.screen if len(line) > 100] == []
    terminal.resize(60, 8)
    wait_for(lambda: len(terminal.screen) == 8, 30, "the smaller screen")
    assert max(map(len, terminal.screen)) <= 60
    terminal.press("h")
    terminal.until("any key: back")
    terminal.press("x")
    terminal.until("q quit")
    stop.touch()
    terminal.until("DONE")
    terminal.press("q")
    assert terminal.end() == 0
    wait_for(lambda: terminal.raw.endswith(LEFT), 10, "the other screen left")
    assert terminal.modes == terminal.modes_before
    assert worker.wait(run).status.outcome == "done"


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (signal.SIGINT, 130),
        (signal.SIGQUIT, 131),
    ],
)
def test_a_signal_leaves_the_terminal_as_it_was(
    watch: Watch, number: signal.Signals, status: int
) -> None:
    terminal = watch()
    terminal.until("1 of 1 host answer")
    assert terminal.modes != terminal.modes_before
    if number in (signal.SIGINT, signal.SIGQUIT):
        terminal.press("\x03" if number == signal.SIGINT else "\x1c")
    else:
        terminal.child.send_signal(number)
    assert terminal.end() == status
    wait_for(lambda: terminal.raw.endswith(LEFT), 10, "the other screen left")
    assert terminal.modes == terminal.modes_before
    assert b"Traceback" not in terminal.raw


def test_a_lost_link_is_shown_and_made_again(worker: LocalWorker, watch: Watch) -> None:
    many = many_here(worker.project, worker.root / "many", 2, worker.set_env)
    try:
        for name in many.names:
            many.put_run(name, f"cmd-{name}", argv=[NASTY])
        terminal = watch(columns=120)
        terminal.until("3 of 3 hosts answer")
        assert line_of(terminal, "cmd-h01").endswith("'\\x1b[2J\\x1b]0;title\\x07\\u202ered'")
        # the second machine is gone: its program dies, and none starts any more
        before = many.workspace("h02")
        many.mute("h02")
        mark = os.fsencode(f"RUNNER_WORKSPACE={before}")
        pids = [pid for pid in processes.all_pids() if mark in environ(pid)]
        assert pids
        worker.kill(*pids)
        terminal.until("no answer since")
        assert terminal.text.count("no answer since") == 1
        terminal.until("seen ")
        assert "2 of 3 hosts answer" in terminal.text
        # the first one only lost its link
        mark = os.fsencode(f"RUNNER_WORKSPACE={many.workspace('h01')}")
        worker.kill(*[pid for pid in processes.all_pids() if mark in environ(pid)])
        terminal.until("1 of 3 hosts answer")
        terminal.until("2 of 3 hosts answer")
        terminal.press("q")
        assert terminal.end() == 0
        assert terminal.modes == terminal.modes_before
    finally:
        for name in many.names:
            (worker.project / "hosts" / f"{name}.toml").unlink()


def environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def test_without_a_terminal_it_looks_once(
    worker: LocalWorker, cards: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(worker.project)
    said = typed("top")
    assert (said.status, said.err) == (0, "")
    assert said.text.splitlines()[0].split() == ["HOST", "RUNS", "QUEUE", "SLOTS", "FREE", "GPUS"]
    body = json.loads(typed("top", "--json").text)
    (host,) = body["hosts"]
    assert [card["uuid"] for card in host["gpus"]] == cards.uuids
    assert host["disk"]["free_bytes"] > 0 and host["contact"]["state"] == "ok"
    cards.hold(1, 3000)
    text = typed("top", "--once", terminal=True).text
    assert "0 0% free  1 97% in use" in text and "\x1b[?1049h" not in text


def test_a_terminal_that_cannot_redraw_gets_one_page(watch: Watch) -> None:
    terminal = watch(TERM="dumb")
    assert terminal.end() == 0
    terminal.until("HOST")
    assert b"\x1b" not in terminal.raw


def test_the_one_host_asked_for_has_to_be_there(
    worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(worker.project)
    said = typed("top", "host=lokal")
    assert said.status == 6 and "did you mean local?" in said.err
