"""The owner of a worker's queue: takes runs up, starts launchers, decides what an end means.

Truth is files and locks; inbox, FIFO and ticks only say when to look. A run's lock is held by its
launcher for life, so whoever gets it knows that no launcher lives. The dispatcher alone writes
state.json, and changes a live run's only after it has seen exit.json or holds that lock.

At its start it looks at every run once: a live one whose lock is held is simply watched, one whose
lock is free is swept and gets the end it deserves (launcher-lost, worker-lost, host-restart).
"""

from __future__ import annotations

import os
import random
import select
import signal
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import board
import book
import burying
import cards
import config
import journal
import launcher
import leases
import notices
import places
import processes
import queueing
import records
import repeats
import resumes
import tenure
import wakeup
from paths import RunPaths, Workspace

from runner import states
from runner.states import ENDED, LIVE, QUEUED, RUNNING, STARTING, STOPPING

TICK_S = 1.0
SOON_S = 0.003
FULL_WAIT_S = 0.2
"""Where something could not be written it is tried again as soon."""
GOING_S = 1.0

Table = Dict[str, Any]


class Dispatcher:
    """One per worker: a second one leaves at once."""

    def __init__(
        self, workspace: Workspace, lease_folder: str, known: config.Config, hold: tenure.Tenure
    ) -> None:
        self.workspace = workspace
        self.lease_folder = lease_folder
        self.config = known
        self.config_mark = config.mark(workspace)
        self.hold = hold
        self.journal = journal.Journal()
        self.full = False
        """The disk had no room for something in this round."""
        self.home = places.Home(workspace, known)
        self.book = book.Book(workspace, self.home.owns)
        self.queue = queueing.Queue()
        self.board = board.Board(workspace)
        who = {"id": known.worker, "runtime": known.runtime, "image": known.image}
        self.cards = cards.Cards(workspace, lease_folder, known.gpus, worker=who)
        self.notices = notices.Notices(workspace, known, self._fork)
        self.live: Set[str] = set()
        self.again: Set[str] = set()
        self.seen: Set[str] = set()
        self.seen_at = 0
        self.kept: Dict[str, List[int]] = {}
        """Leases of runs whose end is being written by a process of ours."""
        self.between: List[int] = []
        """Children that fork a launcher and go: collected later, not to wait for them."""
        self.closing = False
        self.leaving = False
        self.last_tick = 0.0
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
            self.full = False
            try:
                if self._round():
                    return
                self.journal.over("dispatcher")
            except OSError as error:
                if not journal.is_full(error):
                    raise
                # whoever it was for is looked at by the next tick
                self.journal.trouble("dispatcher", repr(error))
                self.full = True
            self._sleep(FULL_WAIT_S if self.full else SOON_S if self.again else TICK_S)

    def _round(self) -> bool:
        """Look at what asks for it and start what is due; whether it is all over."""
        again, self.again = self.again, set()
        for run in sorted(again | set(wakeup.take_inbox(self.workspace))):
            self._look(run)
        if time.monotonic() - self.last_tick >= TICK_S:
            self.last_tick = time.monotonic()
            self._tick()
        self.cards.take()
        if self.leaving or (self.closing and not self.live):
            return True
        if self.closing:
            return False
        if self.home.is_superseded:
            # all that is new is its successor's; with the last run that it started it goes
            return not self.live and self.hold.end()
        self._schedule()
        idle = not (self.live or len(self.queue) or self.again or self.notices.is_busy)
        return self.hold.may_end(idle)

    def _sleep(self, longest_s: float) -> None:
        self.between = [pid for pid in self.between if not os.waitpid(pid, os.WNOHANG)[0]]
        asked = self.cards.fileno()
        sources = [self.fifo] if asked is None else [self.fifo, asked]
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
        if self.hold.is_orphaned() and self.hold.make_room():
            self.leaving = True
        self._take_up_config()
        if self.home.look():
            # what was another's may be ours now, and the other way round
            self.again.update(self.seen)
            self.seen_at = 0
        else:
            self.home.clear(self._places_of_live())
        self._look_for_new()
        for run in sorted(self.live):
            self._look(run)
            if self.closing and run in self.live:
                self._signal_launcher(run)
        self.cards.ask(cards.CACHE_S)
        self._look_at_notices()

    def _look_at_notices(self) -> None:
        """What is told of the host, and whoever sends what is due; a full disk may keep it back."""
        try:
            if not self.closing:
                self.notices.look_at_disk(len(self.queue))
                self.notices.tick()
            self.journal.over("messages")
        except OSError as error:
            self.journal.trouble("messages", repr(error))

    def _take_up_config(self) -> None:
        """What a `local` worker is to be can change while it lives: slots, cards, reserve."""
        changed = config.mark(self.workspace)
        if changed == self.config_mark:
            return
        self.config_mark = changed
        self.config = config.read(self.workspace)
        self.cards.want(self.config.gpus)
        self.notices.take_up(self.config)

    def _places_of_live(self) -> Set[str]:
        pairs = [self.book.read(run) for run in self.live]
        return {str(pair[1].get("place")) for pair in pairs if pair is not None}

    def _look_for_new(self) -> None:
        """Runs that nobody told us of: a client can be killed just before it does."""
        changed = os.stat(self.workspace.runs).st_mtime_ns
        if changed == self.seen_at:
            return
        self.seen_at = changed
        names = {name for name in os.listdir(self.workspace.runs) if not name.startswith(".")}
        for name in sorted(names - self.seen):
            self._look(name)
        for name in self.seen - names:
            self.queue.discard(name)  # deleted by hand
        self.seen = names

    # -- one run ------------------------------------------------------------------------------

    def _look(self, run: str) -> None:
        """See where a run stands and do what follows; one bad folder does not stop the others."""
        try:
            self._look_at(self.workspace.run(run))
            self.journal.over(run)
        except Exception as error:  # whatever a job made of its files is its own trouble alone
            self.journal.trouble(run, repr(error))
            if journal.is_full(error):
                self.again.add(run)
                self.full = True

    def _look_at(self, paths: RunPaths) -> None:
        self.seen.add(paths.id)
        found = self.book.read(paths.id)
        if found is None:
            # its records are gone, or it is another worker's
            self.queue.discard(paths.id)
            self.live.discard(paths.id)
            return
        spec, state = found
        if not os.path.isdir(paths.folder):
            # deleted under a live run; its launcher sees it, too, and ends what it started
            self.book.forget(paths.id)
            self._forget(paths.id)
            self._let_go(paths.id)
            return
        if state["state"] in LIVE:
            self._watch(paths, spec, state)
            self._check(paths, spec, state)
            return
        if state["state"] == ENDED:
            self._tell(self.notices.ended, paths, spec, state)
            if not resumes.is_pending(paths, state):
                self._forget(paths.id)
                return
            self.book.resume(paths, spec, state)
        self._wait(paths, spec, state)

    def _watch(self, paths: RunPaths, spec: Table, state: Table) -> None:
        self.queue.discard(paths.id)
        self.live.add(paths.id)
        self.book.remember(spec, state)

    def _wait(self, paths: RunPaths, spec: Table, state: Table) -> None:
        """A queued run: cancelled, skipped, or in its line."""
        self.live.discard(paths.id)
        if os.path.exists(paths.cancel):
            text = "cancelled while it waited"
            self._end(spec, state, {"kind": "cancelled", "text": text})
            return
        after = tuple(str(run) for run in spec.get("after") or ())
        unmet = [run for run in after if self._outcome(run) != states.DONE]
        for run in unmet:
            outcome = self._outcome(run)
            if outcome is not None:
                text = "%s, which it waited for, is %s" % (run, outcome)
                cause = {"kind": "dependency", "text": text, "run": run, "outcome": outcome}
                self._end(spec, state, cause)
                return
        item = queueing.Waiting(
            paths.id,
            float(spec.get("accepted_at", 0)),
            int(spec.get("gpus", 0)),
            float(state.get("not_before") or 0),
            int(spec.get("priority") or 0),
        )
        self.queue.add(item, tuple(unmet))

    def _outcome(self, run: str) -> Optional[str]:
        """How a run ended that another waits for; `gone` when it is not here, None before."""
        try:
            paths = self.workspace.run(run)
        except ValueError:
            return "gone"
        state = records.read(paths.state)
        if state is None:
            return None if os.path.exists(paths.spec) else "gone"
        if state["state"] != ENDED or resumes.is_pending(paths, state):
            return None
        return str(state.get("outcome"))

    def _check(self, paths: RunPaths, spec: Table, state: Table) -> None:
        """A live run: is it up, was it asked to stop, is its attempt over or its launcher gone?"""
        folder = paths.attempt(int(state["attempt"]))
        ended = records.read(os.path.join(folder, "exit.json"))
        if ended is not None and not ended.get("left") and records.is_locked(paths.lock):
            # its launcher is just going; or a job wrote this, and lives
            if time.time() - float(state.get("updated_at", 0)) < GOING_S or _is_fresh(folder):
                self.again.add(paths.id)
            return
        if ended is None:
            born = records.read(os.path.join(folder, "proc.json"))
            if os.path.exists(paths.cancel):
                self._signal_launcher(paths.id)
                if state["state"] in (STARTING, RUNNING):
                    self.book.put_if_room(spec, state, state=STOPPING)
            elif born and state["state"] == STARTING and _has_ranks(folder):
                started = born["started_at"]
                self.book.put_if_room(spec, state, state=RUNNING, started_at=started)
            self._tell(self.notices.stuck, paths, spec, state)
            lock = records.try_lock(paths.lock)
            if lock is None:
                return
            try:
                # nobody runs it: decide under its own lock, after one more look
                ended = records.read(os.path.join(folder, "exit.json"))
                if ended is None:
                    ended = self._bury(paths, spec, state, lock)
            finally:
                os.close(lock)
        if ended is not None:
            self._after(paths, spec, state, ended)

    def _bury(self, paths: RunPaths, spec: Table, state: Table, lock: int) -> Optional[Table]:
        """The end of an attempt whose launcher vanished; None while another process makes it."""
        born = records.read(os.path.join(paths.attempt(int(state["attempt"])), "proc.json"))
        kind = burying.lost_kind(born)
        if born is None or kind != "launcher-lost":
            return burying.bury(paths, state, kind)
        self._let_go(paths.id)
        # kept until the run is queued again: nobody behind it takes its place meanwhile
        self.kept[paths.id] = burying.join(born)
        self._fork(
            lambda: burying.sweep_and_bury(self.workspace, spec, state, born),
            keeps=self.kept[paths.id],
        )
        return None

    def _let_go(self, run: str) -> None:
        for fd in self.kept.pop(run, ()):
            os.close(fd)

    def _after(self, paths: RunPaths, spec: Table, state: Table, ended: Table) -> None:
        """An attempt is over: the run ends, or waits for the next one."""
        folder = paths.attempt(int(state["attempt"]))
        gone_on = records.read(os.path.join(folder, "resume.json")) or {}
        following = repeats.after_end(
            spec=spec,
            state=state,
            ended=ended,
            verified=gone_on.get("from"),
            cancelled=os.path.exists(paths.cancel),
            now=time.time(),
        )
        following.update(exit=ended.get("exit"), started_at=book.started_at(paths, state))
        if following["state"] == ENDED:
            self._end(spec, state, ended_at=ended.get("ended_at"), **following)
        else:
            self.book.put(spec, state, gpus=[], **following)
            self._tell(self.notices.stopped_stuck, paths, spec, state)
            if self.home.is_active:
                self._wait(paths, spec, state)
            else:
                self._forget(paths.id)
                wakeup.poke(self.workspace, paths.id)
        self._let_go(paths.id)

    def _end(self, spec: Table, record: Table, cause: Optional[Table], **facts: Any) -> None:
        self.book.end(spec, record, cause, **facts)
        self._forget(spec["id"])
        self._tell(self.notices.ended, self.workspace.run(spec["id"]), spec, record)

    def _tell(
        self,
        act: Callable[[RunPaths, Table, Table], None],
        paths: RunPaths,
        spec: Table,
        state: Table,
    ) -> None:
        """Tell of something; without room it is tried again, and nothing else waits for it."""
        about = "message about %s" % paths.id
        try:
            act(paths, spec, state)
            self.journal.over(about)
        except OSError as error:
            self.journal.trouble(about, repr(error))
            if journal.is_full(error) and os.path.isdir(paths.folder):
                self.again.add(paths.id)
                self.full = True

    def _forget(self, run: str) -> None:
        self.queue.discard(run)
        self.live.discard(run)
        # those that waited for it are looked at next
        self.again.update(self.queue.waiters(run))

    def _signal_launcher(self, run: str) -> None:
        found = self.book.read(run)
        if found is None:
            return
        folder = self.workspace.run(run).attempt(int(found[1]["attempt"]))
        born = records.read(os.path.join(folder, "proc.json"))
        if born and processes.is_alive(born["launcher"]):
            for number in (signal.SIGTERM, signal.SIGCONT):
                # a job may have stopped its launcher
                os.kill(int(born["launcher"]["pid"]), number)

    # -- starting -----------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Start what is due, line by line, until the first that has to wait holds up the others."""
        kept = self._kept_back()
        heads: Dict[str, Optional[Table]] = {}
        for line in queueing.LINES:
            heads[line] = kept or self._start_due(line)
        self.board.show(self.queue, heads)

    def _kept_back(self) -> Optional[Table]:
        """Why nothing at all may start, if that is so."""
        if not len(self.queue):
            return None
        try:
            return {"kind": "drained", "since_at": os.stat(self.workspace.drained).st_mtime}
        except OSError:
            pass
        reserve = self.config.disk_reserve
        if reserve:
            found = os.statvfs(self.workspace.root)
            free = found.f_bavail * found.f_frsize
            if free < reserve:
                # rounded, so that what is told does not change with every byte
                rounded = free // 10**6 * 10**6
                return {"kind": "disk", "free_bytes": rounded, "reserve_bytes": reserve}
        return None

    def _start_due(self, line: str) -> Optional[Table]:
        """Start a line's runs; why the first that could not start waits."""
        first: Optional[Table] = None
        for item in self.queue.due(line, time.time()):
            if records.is_locked(self.workspace.run(item.run).lock):
                # its last launcher is just going, and holds up nobody else
                self._look_soon(item.run)
                continue
            why = self._start(item)
            if why is None:
                continue
            first = first or why
            if not why.get("passable"):
                break
        return first

    def _look_soon(self, run: str) -> None:
        found = self.book.read(run)
        if found is not None and time.time() - float(found[1].get("updated_at", 0)) < GOING_S:
            self.again.add(run)

    def _start(self, item: queueing.Waiting) -> Optional[Table]:
        """Claim, write `starting`, fork a launcher. Why it has to wait, or None."""
        paths = self.workspace.run(item.run)
        found = self.book.read(item.run)
        if found is None or found[1]["state"] != QUEUED:
            self.queue.discard(item.run)
            self.again.add(item.run)
            return None
        spec, state = found
        number = int(state["attempt"]) + 1
        token = "%s.%d.%016x" % (item.run, number, random.SystemRandom().getrandbits(64))
        about = "start of %s" % item.run
        held: List[int] = []
        try:
            got, why = self._claim(item, token)
            if why is not None:
                return why
            held += got.values()
            lock = records.try_lock(paths.lock)
            if lock is None:
                self.again.add(item.run)
                return {"kind": "order", "passable": True}
            held.append(lock)
            given = self.cards.given(got)
            self.book.put(
                spec,
                state,
                state=STARTING,
                attempt=number,
                token=token,
                gpus=given,
                exit=None,
                place=self.workspace.place,
            )
            self._watch(paths, spec, state)
            launched = resumes.effective(paths, spec, state)
            self._fork(lambda: launcher.launch(self.workspace, launched, state, got))
            self.journal.over(about)
        except OSError as error:
            self.journal.trouble(about, str(error))
            return {"kind": "error", "why": str(error)}
        finally:
            # the launcher's copies hold lock and leases from here on
            for fd in held:
                os.close(fd)
        return None

    def _claim(self, item: queueing.Waiting, token: str) -> Tuple[Dict[str, int], Optional[Table]]:
        """The run's leases, or why there are none for it."""
        if item.gpus:
            got = self.cards.claim(item.gpus, token, item.run)
            return (got or {}), (None if got else self._why_no_cards(item.gpus))
        slots = leases.slot_paths(self.lease_folder, self.config.slots)
        got = leases.claim_some(slots, 1, token, item.run)
        if got:
            return got, None
        holders = [(leases.holder(path) or {}).get("run") for path in slots]
        return {}, {"kind": "slot", "holders": [run for run in holders if run]}

    def _why_no_cards(self, count: int) -> Table:
        why = self.cards.why_not(count)
        # who waits for strangers alone holds up nobody
        usable = len(self.cards.known) - len(why.get("strangers") or ())
        return dict(why, passable=count > usable and not why.get("query_failed"))

    def _fork(self, act: Callable[[], None], keeps: Sequence[int] = ()) -> None:
        """Do it in a process that is nobody's child: forked twice, it outlives us without trace.

        keeps: which of the leases that we keep are its own to hold.
        """
        child = os.fork()
        if child:
            self.between.append(child)
            return
        try:
            os.setsid()
            if os.fork():
                os._exit(0)
            # our own lock and FIFO must not live on in it, nor leases of others
            others = [fd for fds in self.kept.values() for fd in fds if fd not in keeps]
            for fd in (self.hold.lock, self.fifo, *others):
                if fd is not None:
                    os.close(fd)
            act()
        except Exception as error:  # the edge of a process
            journal.say("forked: %r" % error)
        finally:
            os._exit(70)


def _has_ranks(folder: str) -> bool:
    """Whether an attempt has come as far as its ranks: its checkpoint is verified."""
    return os.path.exists(os.path.join(folder, "resume.json"))


def _is_fresh(folder: str) -> bool:
    """Whether an attempt's end was written a moment ago."""
    return time.time() - os.stat(os.path.join(folder, "exit.json")).st_mtime < GOING_S


def main(workspace: Workspace, lease_folder: str) -> int:
    """Run the worker's dispatcher; 0 when it was asked to end."""
    workspace.make()
    # straight into a file: a pipe to supervisord would break with it
    log = records.open_log(workspace.log)
    for number in (1, 2):
        os.dup2(log, number)
    os.makedirs(lease_folder, mode=0o700, exist_ok=True)
    known = config.read(workspace)
    hold = tenure.begin(workspace, known)
    if hold is None:
        return 1
    places.register(workspace, known)
    Dispatcher(workspace, lease_folder, known, hold).run()
    return 0
