"""The owner of a worker's queue: takes runs up, starts launchers, decides what an end means.

Truth is files and locks; inbox, FIFO and ticks only say when to look. A run's lock is held by its
launcher for life, so whoever gets it knows that no launcher lives. The dispatcher alone writes
state.json, and changes a live run's only after it has seen exit.json or holds that lock.

At its start it looks at every run once: a live one whose lock is held is simply watched, one whose
lock is free is swept and gets the end it deserves (launcher-lost, worker-lost, host-restart).
"""

from __future__ import annotations

import errno
import os
import random
import select
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Set, Tuple

import causes
import checkpoints
import config
import gpus
import launcher
import leases
import processes
import progress
import queueing
import records
import supervisor
import wakeup
from paths import RunPaths, Workspace

from runner import states
from runner.states import ENDED, LIVE, QUEUED, RUNNING, STARTING, STOPPING

TICK_S = 1.0
SOON_S = 0.003
IDLE_END_S = 600.0
GPU_FRESH_S = 1.0
GPU_CACHE_S = 30.0
LOST_GRACE_S = 5.0
LOST_LOOKS = 3
LOCK_WAIT_S = 5.0
FULL_WAIT_S = 0.2
AT_ONCE = 2
GOING_S = 1.0
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Dispatcher:
    """One per worker: a second one leaves at once."""

    def __init__(self, workspace: Workspace, lease_folder: str, lock: int, parent: int) -> None:
        self.workspace = workspace
        self.lease_folder = lease_folder
        self.lock: Optional[int] = lock
        self.parent = parent
        self.config = config.read(workspace)
        self.specs: Dict[str, Dict[str, Any]] = {}
        self.states: Dict[str, Dict[str, Any]] = {}
        self.waiting: Dict[str, queueing.Waiting] = {}
        self.live: Set[str] = set()
        self.again: Set[str] = set()
        self.seen: Set[str] = set()
        self.seen_at = 0
        self.closing = False
        self.leaving = False
        self.idle_since = time.monotonic()
        self.last_tick = 0.0
        self.query: Optional[gpus.Query] = None
        self.query_began = self.cards_at = -GPU_CACHE_S
        self.cards: List[Dict[str, Any]] = []
        try:
            os.mkfifo(workspace.wake, 0o600)
        except FileExistsError:
            pass
        self.fifo = os.open(workspace.wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    # -- the loop -----------------------------------------------------------------------------

    def run(self) -> None:
        """Until asked to end (all runs stopped first), or idle for long where that is wanted."""
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, self._on_term)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        while True:
            again, self.again = self.again, set()
            for run in sorted(again | set(wakeup.take_inbox(self.workspace))):
                self._look(run)
            if time.monotonic() - self.last_tick >= TICK_S:
                self.last_tick = time.monotonic()
                self._tick()
            self._take_cards()
            if self.leaving or (self.closing and not self.live):
                return
            if not self.closing:
                self._schedule()
                if self._may_end():
                    return
            self._sleep(SOON_S if self.again else TICK_S)

    def _sleep(self, longest_s: float) -> None:
        sources = [self.fifo] + ([self.query.fileno()] if self.query is not None else [])
        if self.fifo in select.select(sources, [], [], longest_s)[0]:
            try:
                os.read(self.fifo, 65536)
            except BlockingIOError:
                pass

    def _on_term(self, *_: Any) -> None:
        self.closing = True
        self.last_tick = -TICK_S
        # make the loop look now
        try:
            os.write(self.fifo, b"x")
        except OSError:
            pass

    def _tick(self) -> None:
        if os.getppid() != self.parent:
            self._on_orphaned()
        self._look_for_new()
        for run in sorted(self.live):
            self._look(run)
            if self.closing and run in self.live:
                self._signal_launcher(run)
        if time.monotonic() - self.cards_at > GPU_CACHE_S:
            self._ask_gpus()

    def _look_for_new(self) -> None:
        """Runs that nobody told us of: a client can be killed just before it does."""
        changed = os.stat(self.workspace.runs).st_mtime_ns
        if changed == self.seen_at:
            return
        self.seen_at = changed
        names = {name for name in os.listdir(self.workspace.runs) if not name.startswith(".")}
        for name in sorted(names - self.seen):
            self._look(name)
        self.seen = names

    def _may_end(self) -> bool:
        """An idle `local` worker goes; the next contact starts one."""
        if self.live or self.waiting or self.again or self.config.runtime != "local":
            self.idle_since = time.monotonic()
            return False
        limit = float(os.environ.get("RUNNER_IDLE_END_S") or IDLE_END_S)
        if time.monotonic() - self.idle_since < limit:
            return False
        starting = records.try_lock(self.workspace.start_lock)
        if starting is None:
            return False
        # not up from here on: who makes a run and then sees us up has made it before the next look
        assert self.lock is not None
        os.close(self.lock)
        if not os.listdir(self.workspace.inbox):
            # start.lock is held to our end: the next starter sees supervisord go, too
            self._end_supervisor()
            return True
        self.lock = records.wait_lock(self.workspace.dispatcher_lock, LOCK_WAIT_S)
        os.close(starting)
        return self.lock is None

    def _on_orphaned(self) -> None:
        """supervisord was killed: make room for the dispatcher of the next one."""
        if self.config.runtime == "local":
            starting = records.try_lock(self.workspace.start_lock)
            if starting is None:
                return
            # held to our end, so that nobody starts a third one meanwhile
            python = str(self.config.facts.get("python") or sys.executable)
            supervisor.start_detached(self.workspace, python)
        self.leaving = True

    def _end_supervisor(self) -> None:
        if os.getppid() == self.parent:
            os.kill(self.parent, signal.SIGTERM)

    # -- one run ------------------------------------------------------------------------------

    def _look(self, run: str) -> None:
        """See where a run stands and do what follows; one bad folder does not stop the others."""
        try:
            self._look_at(self.workspace.run(run))
        except Exception as error:  # whatever a job made of its files is its own trouble alone
            print("%s: %r" % (run, error), file=sys.stderr, flush=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                self.again.add(run)
                time.sleep(FULL_WAIT_S)

    def _look_at(self, paths: RunPaths) -> None:
        run = paths.id
        self.seen.add(run)
        spec = self.specs.get(run) or records.read(paths.spec)
        if not spec:
            return
        self.specs[run] = spec
        state = self.states.get(run) or records.read(paths.state)
        if state is None:
            state = self._new_state(spec)
            records.make_spare(paths.state)  # its end must be written on a full disk, too
            self._put(run, state)
        self.states[run] = state
        if state["state"] == QUEUED:
            if os.path.exists(paths.cancel):
                self._end(run, {"kind": "cancelled", "text": "cancelled while it waited"})
                return
            self.waiting[run] = queueing.Waiting(
                run,
                float(spec.get("accepted_at", 0)),
                int(spec.get("gpus", 0)),
                float(state.get("not_before", 0)),
            )
        elif state["state"] in LIVE:
            self.live.add(run)
            self._check(paths, spec, state)
        else:
            self._forget(run)

    def _new_state(self, spec: Dict[str, Any]) -> Dict[str, Any]:
        return {
            "format": records.FORMAT,
            "state": QUEUED,
            "outcome": None,
            "cause": None,
            "attempt": 0,
            "submitted_at": spec.get("accepted_at"),
            "started_at": None,
            "ended_at": None,
            "outside": 0,
        }

    def _put(self, run: str, record: Dict[str, Any], **changes: Any) -> None:
        """Write a run's state; what is not a step of the state machine is a bug of ours."""
        before = record["state"]
        after = changes.get("state", before)
        if not states.may_follow(before, after):
            raise ValueError("%s: %s cannot become %s" % (run, before, after))
        paths = self.workspace.run(run)
        # on disk first: when that fails, what is remembered is still what is there
        written = dict(record, **changes, updated_at=time.time())
        records.write(paths.state, written, spare=after == ENDED)
        record.update(written)
        records.append_line(
            paths.events,
            {"event": record["state"], "attempt": record["attempt"], "cause": record.get("cause")},
        )

    def _put_if_room(self, run: str, record: Dict[str, Any], **changes: Any) -> None:
        """The same for a step that people like to see but nothing hangs on."""
        try:
            self._put(run, record, **changes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def _check(self, paths: RunPaths, spec: Dict[str, Any], state: Dict[str, Any]) -> None:
        """A live run: is it up, was it asked to stop, is its attempt over or its launcher gone?"""
        run = paths.id
        folder = paths.attempt(int(state["attempt"]))
        ended = records.read(os.path.join(folder, "exit.json"))
        if ended is None:
            born = records.read(os.path.join(folder, "proc.json"))
            if os.path.exists(paths.cancel):
                self._signal_launcher(run)
                if state["state"] in (STARTING, RUNNING):
                    self._put_if_room(run, state, state=STOPPING)
            elif born and state["state"] == STARTING:
                self._put_if_room(run, state, state=RUNNING, started_at=born["started_at"])
            lock = records.try_lock(paths.lock)
            if lock is None:
                return
            try:
                # nobody runs it: decide under its own lock, after one more look
                ended = records.read(os.path.join(folder, "exit.json"))
                if ended is None:
                    ended = self._bury(spec, state, folder, born)
            finally:
                os.close(lock)
        self._after(run, spec, state, ended)

    def _bury(
        self,
        spec: Dict[str, Any],
        state: Dict[str, Any],
        folder: str,
        born: Optional[Dict[str, Any]],
    ) -> Dict[str, Any]:
        """End what a vanished launcher left, and write the end it could not write."""
        kind = lost_kind(born)
        swept = processes.Sweep()
        if born:
            known = records.read(os.path.join(folder, "pids.json")) or {}
            member = processes.Membership(
                born["mark"], born.get("limit"), born.get("leases", ()), [os.getpid()]
            )

            def find() -> Set[int]:
                roots = [
                    int(pid) for pid, start in known.items() if processes.is_same(int(pid), start)
                ]
                return processes.living(set(roots)) | member.find(roots)

            if kind == "launcher-lost":
                grace = min(float(spec.get("grace_s", LOST_GRACE_S)), LOST_GRACE_S)
                # TERM comes once: the launcher may have sent it before it was killed
                asked = os.path.exists(os.path.join(folder, "stop"))
                swept = processes.sweep(
                    find, lambda: grace, ask=lambda pid: not asked, looks=LOST_LOOKS
                )
        cancelled = os.path.exists(self.workspace.run(spec["id"]).cancel)
        record = {
            "format": records.FORMAT,
            "attempt": state["attempt"],
            "cause": causes.plain("cancelled" if cancelled else kind),
            "exit": {"code": None, "signal": None, "rank": None},
            "processes": swept.seen,
            "killed": len(swept.killed),
            "left": sorted(swept.left),
            "gpus": [],
            "ended_at": time.time(),
            "by": "dispatcher",
        }
        os.makedirs(folder, exist_ok=True)
        records.write(os.path.join(folder, "exit.json"), record)
        return record

    def _after(
        self, run: str, spec: Dict[str, Any], state: Dict[str, Any], ended: Dict[str, Any]
    ) -> None:
        """An attempt is over: the run ends, or waits for the next one."""
        cause = ended.get("cause")
        facts = {"exit": ended.get("exit"), "started_at": self._started_at(run, state)}
        kind = cause["kind"] if cause else None
        cancelled = os.path.exists(self.workspace.run(run).cancel)
        if kind in states.FROM_OUTSIDE and cancelled:
            cause = causes.plain("cancelled")
        elif kind in states.FROM_OUTSIDE:
            again, newest = self._outside_count(run, state)
            if again <= states.OUTSIDE_LIMIT:
                facts.update(
                    outside=again, outside_checkpoint=newest, not_before=_not_before(again)
                )
                self._put(run, state, state=QUEUED, cause=cause, gpus=[], **facts)
                self.live.discard(run)
                self._look(run)
                return
        self._end(run, cause, ended_at=ended.get("ended_at"), **facts)

    def _started_at(self, run: str, state: Dict[str, Any]) -> Optional[float]:
        """When the attempt began; a short one is over before we see it run."""
        folder = self.workspace.run(run).attempt(int(state["attempt"]))
        born = records.read(os.path.join(folder, "proc.json")) or {}
        return born.get("started_at") or state.get("started_at")

    def _outside_count(self, run: str, state: Dict[str, Any]) -> Tuple[int, Optional[str]]:
        """(how often in a row it was repeated without a new checkpoint, the newest checkpoint)."""
        names = checkpoints.names(self.workspace.run(run).checkpoints)
        newest = names[-1] if names else None
        fresh = newest is not None and newest != state.get("outside_checkpoint")
        return (1 if fresh else int(state.get("outside", 0)) + 1), newest

    def _end(
        self,
        run: str,
        cause: Optional[Dict[str, Any]],
        ended_at: Optional[float] = None,
        **facts: Any,
    ) -> None:
        state = self.states[run]
        outcome = states.DONE
        if cause is not None:
            cancelled = cause["kind"] == "cancelled"
            outcome = states.CANCELLED if cancelled else states.FAILED
        paths = self.workspace.run(run)
        self._put(
            run,
            state,
            state=ENDED,
            outcome=outcome,
            cause=cause,
            ended_at=ended_at or time.time(),
            final=progress.last(paths.progress(0)),
            **facts,
        )
        records.drop_spare(paths.state)
        self._forget(run)

    def _forget(self, run: str) -> None:
        self.waiting.pop(run, None)
        self.live.discard(run)
        self.specs.pop(run, None)
        self.states.pop(run, None)

    def _signal_launcher(self, run: str) -> None:
        state = self.states.get(run)
        if not state:
            return
        folder = self.workspace.run(run).attempt(int(state["attempt"]))
        born = records.read(os.path.join(folder, "proc.json"))
        if born and processes.is_alive(born["launcher"]):
            for number in (signal.SIGTERM, signal.SIGCONT):
                # a job may have stopped its launcher
                os.kill(int(born["launcher"]["pid"]), number)

    # -- starting -----------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Start what is due: GPU runs never overtake each other, CPU runs have their own line."""
        blocked = {True: False, False: False}
        for item in queueing.candidates(self.waiting.values(), time.time()):
            if all(blocked.values()):
                return
            of_gpus = bool(item.gpus)
            if blocked[of_gpus]:
                continue
            if records.is_locked(self.workspace.run(item.run).lock):
                # its last launcher is just going, and holds up nobody else
                if time.time() - float(self.states[item.run].get("updated_at", 0)) < GOING_S:
                    self.again.add(item.run)
                continue
            blocked[of_gpus] = not self._start(item)

    def _start(self, item: queueing.Waiting) -> bool:
        """Claim, write `starting`, fork a launcher. False when it has to wait."""
        run = item.run
        state = self.states[run]
        number = int(state["attempt"]) + 1
        token = "%s.%d.%016x" % (run, number, random.SystemRandom().getrandbits(64))
        got = self._claim(item, token)
        if got is None:
            return False
        held = list(got.values())
        try:
            lock = records.try_lock(self.workspace.run(run).lock)
            if lock is None:
                return False
            held.append(lock)
            cards = [card for card in self.cards if self._gpu_path(card) in got]
            self._put(
                run, state, state=STARTING, attempt=number, token=token, gpus=cards, exit=None
            )
            del self.waiting[run]
            self.live.add(run)
            self._fork(self.specs[run], state, got)
        except OSError as error:
            print("%s: cannot be started: %s" % (run, error), file=sys.stderr, flush=True)
            return False
        finally:
            # the launcher's copies hold lock and leases from here on
            for fd in held:
                os.close(fd)
        return True

    def _claim(self, item: queueing.Waiting, token: str) -> Optional[Dict[str, int]]:
        if not item.gpus:
            slots = leases.slot_paths(self.lease_folder, self.config.slots)
            return leases.claim_some(slots, 1, token, item.run)
        unleased = [card for card in self.cards if leases.holder(self._gpu_path(card)) is None]
        if len(unleased) < item.gpus <= len(self.cards):
            return None  # enough of them, held by runs: nothing to ask about
        if time.monotonic() - self.cards_at > GPU_FRESH_S:
            # its memory is looked at just before a card is given away
            self._ask_gpus()
            return None
        free = [card for card in unleased if not gpus.is_used(card)]
        return leases.claim_some(map(self._gpu_path, free), item.gpus, token, item.run)

    def _gpu_path(self, card: Dict[str, Any]) -> str:
        return leases.gpu_path(self.lease_folder, card["uuid"])

    def _ask_gpus(self) -> None:
        if self.query is None and time.monotonic() - self.query_began > GPU_FRESH_S:
            self.query_began = time.monotonic()
            self.query = gpus.Query()
            self._take_cards()

    def _take_cards(self) -> None:
        if self.query is None or not self.query.poll():
            return
        self.cards = gpus.chosen(self.query.cards, self.config.gpus)
        self.cards_at = self.query_began
        self.query = None
        gpus.write_cache(self.workspace.gpus, self.cards)

    def _fork(self, spec: Dict[str, Any], state: Dict[str, Any], got: Dict[str, int]) -> None:
        """A launcher that is nobody's child: fork twice, so that it outlives us without a trace."""
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        try:
            os.setsid()
            if os.fork():
                os._exit(0)
            # our own lock and FIFO must not live on in it
            for fd in (self.lock, self.fifo):
                if fd is not None:
                    os.close(fd)
            launcher.launch(self.workspace, spec, state, got)
        finally:
            os._exit(70)


def _not_before(again: int) -> float:
    """When a run that was repeated so often may start: twice at once, then ever later."""
    return 0.0 if again <= AT_ONCE else time.time() + min(60.0, 2.0 ** (again - AT_ONCE - 1))


def lost_kind(born: Optional[Dict[str, Any]]) -> str:
    """What became of an attempt without exit.json whose lock is free."""
    if not born:
        return "not-started"
    who, here = born["launcher"], processes.identity()
    if who["boot"] != here["boot"]:
        return "host-restart"
    if who["init"] != here["init"] or who["ns"] != here["ns"]:
        return "worker-lost"
    return "launcher-lost"


def main(workspace: Workspace, lease_folder: str) -> int:
    """Run the worker's dispatcher; 0 when it was asked to end."""
    parent = os.getppid()
    workspace.make()
    # straight into a file: a pipe to supervisord would break with it
    log = os.open(workspace.log, _LOG_FLAGS, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    os.makedirs(lease_folder, mode=0o700, exist_ok=True)
    lock = records.wait_lock(workspace.dispatcher_lock, LOCK_WAIT_S)
    if lock is None:
        print("another dispatcher has this workspace", file=sys.stderr)
        _end_second(workspace, parent)
        return 1
    ours = processes.identity(parent) if _is_supervisor(parent) else None
    body = dict(processes.identity(), format=records.FORMAT, supervisor=ours)
    records.write(workspace.dispatcher, body, sync=False)
    if ours is None and os.environ.get("SUPERVISOR_ENABLED"):
        parent = 0  # its supervisord was killed at its very start
    Dispatcher(workspace, lease_folder, lock, parent).run()
    return 0


def _end_second(workspace: Workspace, parent: int) -> None:
    """End the supervisord above us when the one of the dispatcher that has the workspace lives."""
    owner = records.read(workspace.dispatcher) or {}
    first = owner.get("supervisor")
    if (
        first
        and int(first["pid"]) != parent
        and processes.is_alive(first)
        and _is_supervisor(parent)
    ):
        os.kill(parent, signal.SIGTERM)


def _is_supervisor(pid: int) -> bool:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return any(word.endswith(b"/supervisord.py") for word in file.read().split(b"\0"))
    except OSError:
        return False
