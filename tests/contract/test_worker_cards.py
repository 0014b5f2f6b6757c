"""Which cards may be given away, by what the rig's nvidia-smi says and the leases show."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cards
import gpus
import leases
import pytest
import records
import seen
import strangers
from paths import Workspace

from tests.helpers.wait import wait_for
from tests.rig import gpus as rig_gpus

WORKER = {"id": "w-1", "runtime": "local", "image": None}
LIMIT_S = 10.0


class Clock:
    """Time that goes by as it does, and in leaps."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


class Host:
    """A host with cards, and what a worker there knows of them."""

    def __init__(self, root: Path, machine: rig_gpus.FakeGpus) -> None:
        self.machine = machine
        self.workspace = Workspace(str(root / "ws"))
        self.workspace.make()
        self.leases = str(root / "leases")
        os.mkdir(self.leases)
        self.clock = Clock()
        self.cards = self.another()
        self._held: list[int] = []

    def another(self, wanted: Any = "all", **options: Any) -> cards.Cards:
        """What another dispatcher of the same worker knows."""
        return cards.Cards(self.workspace, self.leases, wanted, self.clock, **options)

    def look(self) -> None:
        """One question and its answer."""
        self.cards.ask(0)
        wait_for(self.cards.take, LIMIT_S, "an answer")

    def claim(self, count: int = 1, run: str = "a") -> dict[str, int] | None:
        """Try until it is given, or one more answer has come."""
        self.cards.take()
        got = self.cards.claim(count, f"{run}.1.{time.monotonic_ns()}", run)
        if got is None and self.cards.fileno() is not None:
            wait_for(self.cards.take, LIMIT_S, "an answer")
            got = self.cards.claim(count, f"{run}.1.{time.monotonic_ns()}", run)
        self._held += (got or {}).values()
        return got

    def release(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def lease(self, index: int) -> str:
        return leases.gpu_path(self.leases, self.machine.uuids[index])

    @property
    def reason(self) -> list[str]:
        return seen.in_words(self.cards.why_not(1))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    machine = rig_gpus.FakeGpus(tmp_path / "gpus")
    machine.set_cards(2)
    rig_gpus.place_tool(tmp_path / "bin", machine.folder)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    made = Host(tmp_path, machine)
    try:
        yield made
    finally:
        made.release()
        machine.close()


def test_nothing_is_given_before_an_answer(host: Host) -> None:
    assert (host.cards.known, host.cards.free(), host.cards.fileno()) == ([], [], None)
    assert host.cards.claim(1, "a.1.x", "a") is None
    assert not host.cards.is_fresh(3600)
    number = host.cards.fileno()
    assert number is not None  # it was asked
    assert select.select([number], [], [], LIMIT_S)[0]
    wait_for(host.cards.take, LIMIT_S, "an answer")
    assert host.cards.is_fresh(1)
    assert [card["uuid"] for card in host.cards.free()] == host.machine.uuids
    got = host.claim(2)
    assert got is not None
    assert sorted(got) == [host.lease(0), host.lease(1)]
    assert [card["index"] for card in host.cards.given(got)] == [0, 1]
    assert host.claim() is None
    assert host.reason == ["a's"]


def test_an_answer_is_believed_for_a_moment_only(host: Host) -> None:
    host.look()
    host.clock.ahead_s += 1.1
    assert host.cards.free() == []
    assert host.cards.claim(1, "a.1.x", "a") is None
    assert host.claim() is not None


def test_a_slow_tool_is_waited_for_and_then_believed(host: Host) -> None:
    host.machine.slow_down(1.5)
    began = time.monotonic()
    assert host.claim() is not None
    assert time.monotonic() - began < 4


def test_a_card_that_was_leased_meanwhile_is_looked_at_again(host: Host) -> None:
    """Its memory was free when it was asked for, but that was before another run had it."""
    host.machine.set_cards(1)
    host.look()
    fd = leases.claim(host.lease(0), "other.1.x", "other")
    assert fd is not None
    holder = host.machine.hold(0, 2000)
    os.close(fd)
    assert host.cards.free() == []
    host.clock.ahead_s += cards.SOON_S
    assert host.claim() is None
    assert host.reason == ["GPU 0: memory of the run before is going (2003 MiB)"]
    holder.kill()
    holder.wait()
    host.clock.ahead_s += cards.SOON_S
    assert host.claim() is not None


def test_memory_of_a_run_that_ends_while_the_tool_looks_is_no_strangers(host: Host) -> None:
    host.machine.set_cards(1)
    assert host.claim() is not None
    holder = host.machine.hold(0, 2000)
    host.machine.slow_down(0.5)
    host.cards.ask(0)
    host.release()
    wait_for(host.cards.take, LIMIT_S, "an answer")
    assert host.cards.strangers() == []
    assert host.reason == ["GPU 0: memory of the run before is going (2003 MiB)"]
    # what does not go is somebody's
    host.clock.ahead_s += strangers.RELEASE_GRACE_S
    host.look()
    assert [row["index"] for row in host.cards.strangers()] == [0]
    holder.kill()
    holder.wait()


def test_memory_that_a_run_leaves_after_many_looks_is_no_strangers(host: Host) -> None:
    host.machine.set_cards(1)
    assert host.claim() is not None
    holder = host.machine.hold(0, 2000)
    host.look()
    host.look()
    assert (host.cards.strangers(), host.reason) == ([], ["a's"])
    host.release()
    host.look()
    assert host.cards.strangers() == []
    assert host.reason == ["GPU 0: memory of the run before is going (2003 MiB)"]
    holder.kill()
    holder.wait()


def test_what_a_run_leaves_as_its_dispatcher_comes_back_is_no_strangers(host: Host) -> None:
    host.machine.set_cards(1)
    assert host.claim() is not None
    holder = host.machine.hold(0, 2000)
    host.cards = host.another()
    host.machine.slow_down(0.5)
    host.cards.ask(0)
    host.release()
    wait_for(host.cards.take, LIMIT_S, "an answer")
    assert host.cards.strangers() == []
    holder.kill()
    holder.wait()


def test_a_stranger_is_named_and_his_card_left_to_him_between_two_epochs(host: Host) -> None:
    host.machine.set_cards(1)
    holder = host.machine.hold(0, 3000)
    assert host.claim() is None
    (row,) = host.cards.strangers()
    assert (row["index"], row["used_mib"], row["left"]) == (0, 3003, False)
    (process,) = row["pids"]
    assert (process["pid"], process["used_mib"]) == (holder.pid, 3000)
    assert process["program"].startswith("python")
    assert abs(row["since"] - time.time()) < 30
    assert host.reason[0].startswith("GPU 0 is in use by others (3003 MiB, ")
    holder.kill()
    holder.wait()
    host.clock.ahead_s += 2
    assert host.claim() is None
    assert host.reason == ["GPU 0 was in use by others until just now"]
    holder = host.machine.hold(0, 3000)
    host.clock.ahead_s += strangers.GRACE_S
    assert host.claim() is None
    holder.kill()
    holder.wait()
    host.clock.ahead_s += 2
    assert host.claim() is None
    host.clock.ahead_s += strangers.GRACE_S
    assert host.claim() is not None
    assert host.cards.strangers() == []


def test_a_waiting_run_has_the_card_asked_for_every_second(host: Host) -> None:
    host.machine.set_cards(1)
    host.machine.hold(0, 3000)
    assert host.claim() is None
    assert host.cards.claim(1, "a.1.x", "a") is None
    assert host.cards.fileno() is None  # just asked
    host.clock.ahead_s += cards.FRESH_S + 0.01
    assert host.cards.claim(1, "a.1.x", "a") is None
    assert host.cards.fileno() is not None
    wait_for(host.cards.take, LIMIT_S, "an answer")


def test_a_process_that_holds_next_to_nothing_keeps_its_card(host: Host) -> None:
    host.machine.hold(0, 30)
    got = host.claim()
    assert got is not None
    assert list(got) == [host.lease(1)]


def test_a_card_that_tells_no_memory_is_judged_by_who_computes_there(host: Host) -> None:
    host.machine.set_cell(0, "memory.used", "[Insufficient Permissions]")
    host.machine.set_app_cell("used_memory", "[N/A]")
    host.machine.hold(0, 3000)
    got = host.claim()
    assert got is not None
    assert list(got) == [host.lease(1)]
    (row,) = host.cards.strangers()
    assert row["used_mib"] is None
    assert host.claim() is None
    text = host.reason[-1]
    assert text.startswith("GPU 0 is in use by others (")
    assert "MiB" not in text


@pytest.mark.parametrize("text", ["Failed to initialize NVML: Unknown Error", ""])
def test_no_card_is_given_while_the_tool_fails(host: Host, text: str) -> None:
    host.look()
    host.machine.fail(text, 9)
    host.clock.ahead_s += 2
    assert host.claim() is None
    assert host.cards.problem == "nvidia-smi exits 9"
    assert [card["uuid"] for card in host.cards.known] == host.machine.uuids
    assert host.cards.free() == []
    why = host.cards.why_not(1)
    assert why["query_failed"] == "nvidia-smi exits 9"
    assert why.get("said") == (text or None)
    assert host.reason == ["nvidia-smi exits 9"]
    host.machine.heal()
    host.clock.ahead_s += 2
    assert host.claim() is not None
    assert host.cards.problem is None


def test_no_card_is_given_while_the_tool_hangs(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.look()
    host.machine.slow_down(600)
    monkeypatch.setattr(gpus, "TIMEOUT_S", 0.5)
    host.clock.ahead_s += 2
    began = time.monotonic()
    assert host.cards.claim(1, "a.1.x", "a") is None
    assert time.monotonic() - began < 0.4  # nobody waits for it
    wait_for(host.cards.take, LIMIT_S, "the end of patience")
    assert host.reason == ["nvidia-smi does not answer for 0.5 s"]
    assert host.cards.claim(1, "a.1.x", "a") is None
    host.machine.heal()
    monkeypatch.setattr(gpus, "TIMEOUT_S", 20.0)
    host.clock.ahead_s += 2
    wait_for(host.claim, LIMIT_S, "the card")


def test_a_failure_does_not_make_cards_forgotten_over_a_restart(host: Host) -> None:
    host.look()
    host.machine.fail("no driver", 9)
    host.cards = host.another()
    assert [card["uuid"] for card in host.cards.known] == host.machine.uuids
    assert host.claim() is None
    kept = seen.Seen.read(host.workspace.gpus)
    assert kept is not None
    assert [card["uuid"] for card in kept.cards] == host.machine.uuids
    assert (kept.problem, kept.said) == ("nvidia-smi exits 9", "no driver")


def test_a_host_without_the_tool_has_no_cards_and_no_problem(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.claim() is None
    assert (host.cards.known, host.cards.problem) == ([], None)
    assert host.reason == ["nvidia-smi is not installed"]


def test_only_cards_that_the_worker_may_have(host: Host) -> None:
    host.cards = host.another([1])
    got = host.claim()
    assert got is not None
    assert list(got) == [host.lease(1)]
    host.cards = host.another("none")
    assert host.claim() is None


def test_a_lease_tells_the_other_worker_whose_it_is(host: Host, tmp_path: Path) -> None:
    host.machine.set_cards(1)
    host.cards = host.another(worker=WORKER)
    assert host.claim() is not None
    assert host.reason == ["a's"]
    other = Workspace(str(tmp_path / "other"))
    other.make()
    second = cards.Cards(other, host.leases, "all", worker=dict(WORKER, id="w-2"))
    second.ask()
    wait_for(second.take, LIMIT_S, "an answer")
    assert second.claim(1, "b.1.x", "b") is None
    assert second.why_not(1)["holders"] == [{"index": 0, "run": "a", "worker": WORKER}]
    assert seen.in_words(second.why_not(1)) == ["a's (local)"]


def test_what_is_seen_is_written_when_it_changes_and_every_half_minute(host: Host) -> None:
    path = host.workspace.gpus
    assert not os.path.exists(path)
    host.look()

    def stamp() -> float:
        kept = seen.Seen.read(path)
        assert kept is not None
        return kept.at

    first = stamp()
    host.clock.ahead_s += 1
    host.look()
    assert stamp() == first
    holder = host.machine.hold(0, 3000)
    host.look()
    second = stamp()
    assert second != first
    kept = seen.Seen.read(path)
    assert kept is not None
    assert kept.is_fresh
    assert [row["index"] for row in kept.strangers] == [0]
    host.clock.ahead_s += cards.CACHE_S
    host.cards.take()
    assert stamp() != second
    holder.kill()
    holder.wait()


CONTEND = """
import os, random, sys, time
sys.path.insert(0, {worker!r})
import cards, gpus
from paths import Workspace
root, me = sys.argv[1:]
workspace = Workspace(os.path.join(root, "ws-" + me))
workspace.make()
known = cards.Cards(workspace, os.path.join(root, "leases"), "all")
journal = os.open(os.path.join(root, "journal"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
wins, deadline = 0, time.time() + 40
while wins < 8 and time.time() < deadline:
    known.take()
    count = random.choice((1, 1, 2))
    got = known.claim(count, "%s.%d" % (me, wins), me)
    if not got:
        time.sleep(0.01)
        continue
    for sign in (b"+", b"-"):
        for path in got:
            os.write(journal, b"%s %s\\n" % (sign, os.path.basename(path).encode()))
        time.sleep(0.02)
    for fd in got.values():
        os.close(fd)
    wins += 1
print(wins)
"""


def test_two_dispatchers_never_have_a_card_both(host: Host, tmp_path: Path) -> None:
    script = CONTEND.format(worker=os.path.dirname(cards.__file__))
    environ = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2]))
    argv = [sys.executable, "-c", script, str(tmp_path)]
    children = [
        subprocess.Popen([*argv, f"w{n}"], env=environ, stdout=subprocess.PIPE, text=True)
        for n in range(2)
    ]
    assert [child.communicate(timeout=60)[0].strip() for child in children] == ["8", "8"]
    held: dict[str, int] = {}
    for line in (tmp_path / "journal").read_text().splitlines():
        sign, name = line.split()
        held[name] = held.get(name, 0) + (1 if sign == "+" else -1)
        assert held[name] in (0, 1)
    assert set(held) == set(host.machine.uuids)


def test_other_cards_may_be_wanted_while_it_lives(host: Host) -> None:
    host.machine.set_cards(2)
    some = host.another([1])
    some.ask(0)
    wait_for(some.take, LIMIT_S, "an answer")
    assert [card["index"] for card in some.known] == [1]
    os.unlink(host.workspace.gpus)
    some.want("all")
    # known from the last answer, and asked for anew
    assert [card["index"] for card in some.known] == [0, 1]
    wait_for(some.take, LIMIT_S, "an answer")
    body = records.read(host.workspace.gpus)
    assert body is not None
    assert [card["index"] for card in body["cards"]] == [0, 1]
    some.want("none")
    wait_for(some.take, LIMIT_S, "an answer")
    assert some.known == []
