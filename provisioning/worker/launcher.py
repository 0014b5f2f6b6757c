"""One attempt of one run: starts its ranks, waits, ends what is left, records how it ended.

Forked by the dispatcher, with the run's lock and leases already open, and on its own from then on:
its own session, its own end. What it does, in this order, since each step protects the next:

    own session, subreaper, own RLIMIT_RTTIME → room for exit.json → proc.json → code checked →
    ranks → wait → sweep → GPU memory back → exit.json → lock and leases free with the process

The dispatcher reads exit.json and decides what comes next; when the launcher vanishes without one,
the dispatcher sweeps and writes it.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import random
import resource
import select
import signal
import sys
import time
from typing import Any, Dict, List, NoReturn, Optional

import causes
import checkpoints
import config
import environment
import evidence
import front
import given
import gpus
import journal
import mpi
import overlay
import plain
import processes
import rank
import ranklogs
import records
import secrets_store
import snapshot
import venvs
import wakeup
import watch
from paths import RunPaths, Workspace

PR_SET_CHILD_SUBREAPER = 36
MEMORY_WAIT_S = 10.0
MEMORY_TOLERANCE_MIB = 64
PIDS_EVERY_S = 5.0
FIRST_LIST_S = 1.0
"""A run that is over by then needs no list; its other signs find what it left."""
POLL_S = 1.0


class Attempt:
    """One launch of a run, from proc.json to exit.json."""

    def __init__(
        self,
        workspace: Workspace,
        spec: Dict[str, Any],
        state: Dict[str, Any],
        leases: Dict[str, int],
    ) -> None:
        self.workspace = workspace
        self.spec = spec
        self.state = state
        self.leases = leases
        self.number = int(state["attempt"])
        self.paths: RunPaths = workspace.run(spec["id"])
        self.folder = self.paths.attempt(self.number)
        self.exit = os.path.join(self.folder, "exit.json")
        self.report = os.path.join(self.folder, "ranks.json")
        self.stop_file = os.path.join(self.folder, "stop")
        self.front_log = os.path.join(self.folder, "front.log")
        self.nproc = int(spec.get("nproc", 1))
        self.by_mpi = spec.get("launcher") == "mpirun"
        self.direct = self.nproc == 1 and spec.get("launcher") not in ("torchrun", "mpirun")
        self.child: Optional[int] = None
        self.child_code: Optional[int] = None
        self.asked_to_stop = False
        self.wake_read, self.wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.marks = evidence.Marks(self.paths, self.nproc)
        self.watch = watch.Watch(
            workspace,
            self.paths,
            spec,
            state,
            self.marks,
            reserve_bytes=config.read(workspace).disk_reserve,
            ranks=self._ranks,
        )
        self.setup_problem: Optional[str] = None
        self.overlay: Optional[overlay.Overlay] = None
        """Held until this process ends."""
        self.env: Dict[str, str] = {}
        self.argv: List[str] = []

    # -- the whole life -----------------------------------------------------------------------

    def run(self) -> None:
        """Do it all; what goes wrong on our side is written down as the attempt's end."""
        self._become_launcher()
        os.makedirs(self.folder, exist_ok=True)
        records.make_spare(self.exit)
        limit = processes.draw_limit(random.Random(os.urandom(16)))
        processes.set_limit(limit)
        self.membership = processes.Membership(
            self.state["token"], limit, self.leases, spared=[os.getpid()]
        )
        began = time.time()
        records.write(
            os.path.join(self.folder, "proc.json"),
            {
                "format": records.FORMAT,
                "launcher": processes.identity(),
                "mark": self.state["token"],
                "limit": limit,
                "leases": sorted(self.leases),
                "started_at": began,
            },
        )
        oom_before = evidence.count_oom_kills()
        asked = self._why_stop() or self.watch.used_up()
        try:
            ready = asked is None and self._ready()
        except snapshot.Interrupted:
            ready, asked = False, self._why_stop()
        if ready:
            self.watch.begin()
            self._start()
            wakeup.poke(self.workspace, self.spec["id"])
            asked = self._wait()
        swept = self._sweep()
        self.watch.end(hurried=self._why_stop() is not None)
        cards = self._wait_for_memory()
        record = self._record(asked, swept, cards, evidence.count_oom_kills() - oom_before)
        self._write_end(record)
        self._release(swept)

    # -- parts --------------------------------------------------------------------------------

    def _become_launcher(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _leave_no_cores()
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def _on_stop(self, *_: Any) -> None:
        self.asked_to_stop = True

    def _why_stop(self) -> Optional[Dict[str, Any]]:
        if os.path.exists(self.paths.cancel):
            return causes.plain("cancelled")
        if not os.path.isdir(self.folder):
            # nobody could ask for its end any more
            return {"kind": "setup", "text": "its records were removed while it ran"}
        return causes.plain("shutdown") if self.asked_to_stop else None

    def _grace_s(self) -> float:
        if os.path.exists(self.paths.cancel_now):
            return 0.0
        return environment.grace_s(self.spec)

    def _digest(self, path: str) -> str:
        """sha256 of a checkpoint's file; it can take minutes, so a cancel ends it."""
        return snapshot.file_digest(path, stop=lambda: self._why_stop() is not None)

    def _write_end(self, record: Dict[str, Any]) -> None:
        if os.path.isdir(self.paths.folder):
            os.makedirs(self.folder, exist_ok=True)
            records.write(self.exit, record)

    def _ready(self) -> bool:
        """Whether all is there for the ranks; else `setup_problem` says what is not."""
        try:
            self.setup_problem = self._prepare()
            if self.setup_problem is None:
                self._tell_job()
        except (OSError, secrets_store.Missing, overlay.Failed) as error:
            self.setup_problem = str(error)
        return self.setup_problem is None

    def _prepare(self) -> Optional[str]:
        """Check the code, make what the job is told of; what is wrong, or None."""
        for path in (self.paths.checkpoints, self.paths.logs, self.workspace.home):
            if os.path.lexists(path) and not plain.is_folder(path):
                return "%s is no folder itself; links are not followed" % path
            os.makedirs(path, exist_ok=True)
        for text in ranklogs.set_aside(self.paths, self.nproc):
            self._say(text)
        checkpoints.remove_leftovers(self.paths.checkpoints)
        chosen = venvs.python_for(self.spec)
        if chosen is not None:
            self.spec = dict(self.spec, python=chosen)
        rows = snapshot.read_tree(self.workspace, self.spec["snapshot"], checked=True)
        if rows is None:
            return "the list of its snapshot is damaged or gone; submit the same code once more"
        # a job may replace files of its own copy; the next attempt gets the snapshot again
        try:
            snapshot.restore(self.workspace, rows, self.paths.code)
        except OSError as error:
            return "its code cannot be restored: %s" % error
        records.write(
            os.path.join(self.folder, "params.json"), self.spec.get("params", {}), sync=False
        )
        return given.missing(config.read(self.workspace).facts.get("data"))

    def _tell_job(self) -> None:
        secrets = secrets_store.read(self.paths, self.spec.get("secrets") or ())
        facts = config.read(self.workspace)
        env = functools.partial(
            environment.variables,
            self.paths,
            self.spec,
            self.state,
            home=self.workspace.home,
            secrets=secrets,
            data=given.provide(facts.runtime, facts.facts.get("data"), self.folder),
        )
        self.overlay = self._packages(env(resume=""))
        resume, bad = checkpoints.newest_good(self.paths.checkpoints, self._digest)
        # from here on the attempt runs, and what it goes on from is known to verify
        gone_on = {"from": os.path.basename(resume) if resume else None}
        records.write(os.path.join(self.folder, "resume.json"), gone_on, sync=False)
        for name in bad:
            text = "checkpoint %s did not verify; set aside as %s%s"
            self._say(text % (name, checkpoints.BAD_PREFIX, name))
        self.env = env(resume=resume or "", first=self.overlay.bin if self.overlay else "")
        self.argv = environment.words(self.spec, self.env)
        if self.by_mpi:
            mpi.prepare(os.path.join(self.workspace.state, "mpi"), self.env)

    def _packages(self, env: Dict[str, str]) -> Optional[overlay.Overlay]:
        """The packages that the job asks for beside those of the worker's own Python."""
        setup = self.spec.get("setup")
        wanted = setup.get("requirements") if isinstance(setup, dict) else None
        if not wanted:
            return None
        maker = overlay.Maker(
            self.workspace,
            wanted,
            python=environment.python(self.spec, env),
            env=env,
            folder=self.folder,
            code=self.paths.code,
            say=self._say,
            stop=lambda: self._why_stop() is not None,
        )
        return maker.provide()

    def _start(self) -> None:
        env, argv = self.env, self.argv
        self.child = os.fork()
        if self.child:
            records.append_line(
                self.paths.events, {"event": "started", "attempt": self.number, "pid": self.child}
            )
            return
        try:
            # from here on a TERM is for the job, even if it has not begun
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            os.setsid()
            os.chdir(self.paths.code)
            _prefer_for_oom()
            if self.direct:
                env.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
                # with port 0 a job that joins a group of one takes any free port
                env.update(MASTER_ADDR=front.LOOPBACK, MASTER_PORT="0")
                rank.become(argv, env, self.paths.logs, 0)
            self._become_front(argv, env)
        except BaseException as error:  # a forked child must never run the parent's code
            os.write(2, ("runner: cannot start: %s\n" % error).encode("utf-8", "replace"))
        os._exit(rank.NO_PROGRAM)

    def _become_front(self, argv: List[str], env: Dict[str, str]) -> None:
        here = os.path.dirname(os.path.abspath(__file__))
        cores = len(os.sched_getaffinity(0))
        env.setdefault("OMP_NUM_THREADS", str(max(1, cores // self.nproc)))
        env.update(GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo")
        env[rank.PLAN] = json.dumps({"leases": sorted(self.leases), "logs": self.paths.logs})
        out = os.open(self.front_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, fd in enumerate((nothing, out, out)):
            os.dup2(fd, number)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        python = environment.python(self.spec, env)
        # the environment this worker came from may be gone by now
        own = str(self.spec.get("python") or sys.executable)
        wrapper = [own, "-I", "-S", "-B", here, "rank"]
        agent = [
            python,
            "-B",
            os.path.join(here, "front.py"),
            str(self.nproc),
            self.report,
            self.stop_file,
            "mpirun" if self.by_mpi else "torchrun",
        ]
        os.execvpe(python, agent + ["--"] + wrapper + argv, env)

    def _wait(self) -> Optional[Dict[str, Any]]:
        """Until the ranks ended by themselves (None), or there is a cause to stop them."""
        last_list = time.monotonic() - PIDS_EVERY_S + FIRST_LIST_S
        while True:
            self._reap()
            if self.child_code is not None:
                return None
            asked = self._why_stop() or self.watch.look()
            if asked is not None:
                return asked
            if time.monotonic() - last_list > PIDS_EVERY_S:
                last_list = time.monotonic()
                self._list_processes()
            if select.select([self.wake_read], [], [], self.watch.pause_s(POLL_S))[0]:
                try:
                    os.read(self.wake_read, 4096)
                except BlockingIOError:
                    pass

    def _reap(self) -> bool:
        """Collect dead children; whether none is left. As a subreaper we get every orphan."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.child:
                self.child_code = os.waitstatus_to_exitcode(status)

    def _ranks(self) -> Dict[int, int]:
        """The processes of the ranks that live."""
        if self.child is None or self.child_code is not None:
            return {}
        if self.by_mpi:
            return mpi.pids(self.stop_file + mpi.ENDS)
        return {0: self.child} if self.direct else ranklogs.children_by_rank(self.child)

    def _list_processes(self) -> None:
        found = processes.starts(processes.descendants([os.getpid()]))
        try:
            records.write(os.path.join(self.folder, "pids.json"), found, sync=False)
        except OSError:
            pass  # one sign of four

    def _sweep(self) -> processes.Sweep:
        if self.child_code is None and self.child is not None:
            try:
                open(self.stop_file, "w").close()
            except OSError:
                pass  # only the front and the dispatcher look at it
        me = os.getpid()
        return processes.sweep(
            lambda: self.membership.find([me]) - {me},
            self._grace_s,
            self._reap,
            ask=lambda pid: not self._starts_ranks(pid),
        )

    def _starts_ranks(self, pid: int) -> bool:
        """Whether it is the front, or mpirun below it: they would pass a second TERM to the ranks,
        and end when the ranks have."""
        if self.direct:
            return False
        found = processes.read_stat(pid) if self.by_mpi else None
        return self.child in (pid, found[0] if found else None)

    def _wait_for_memory(self) -> List[Dict[str, Any]]:
        """The leased cards once their memory is back (or the wait was long enough)."""
        before = {card["uuid"]: card.get("used_mib") for card in self.state.get("gpus", [])}
        if not before:
            return []
        deadline = time.monotonic() + MEMORY_WAIT_S
        while True:
            cards = [card for card in gpus.query() or [] if card["uuid"] in before]
            back = all(_is_back(card["used_mib"], before[card["uuid"]]) for card in cards)
            if (cards and back) or time.monotonic() > deadline:
                return cards
            time.sleep(0.1)

    def _record(
        self,
        asked: Optional[Dict[str, Any]],
        swept: processes.Sweep,
        cards: List[Dict[str, Any]],
        oom_kills: int,
    ) -> Dict[str, Any]:
        code, failed_rank = self.child_code, 0 if self.direct else None
        if not self.direct:
            code, failed_rank = evidence.first_end(records.read(self.report), self.child_code)
        free = evidence.disk_free(self.workspace.root)
        if self.setup_problem is not None and asked is None:
            kind = "disk-full" if free < causes.FULL_BYTES else "setup"
            cause: Optional[Dict[str, Any]] = {"kind": kind, "text": self.setup_problem}
        else:
            said = self.marks.log_tail(failed_rank) if code else ""
            cause = causes.judge(
                asked=asked,
                code=code,
                rank=failed_rank,
                fault=self.marks.fault() if code else None,
                oom_kills=oom_kills,
                disk_free=free,
                absent=evidence.absent_program(self.argv, self.paths.code, self.env.get("PATH")),
                front_says=evidence.front_text(self.front_log),
                front="mpirun" if self.by_mpi else "torchrun's agent",
                cuda_oom=evidence.cuda_oom(said),
                traceback=evidence.last_traceback(said),
            )
        return {
            "format": records.FORMAT,
            "attempt": self.number,
            "cause": cause,
            "exit": evidence.exit_facts(code, failed_rank),
            "processes": swept.seen,
            "killed": len(swept.killed),
            "left": sorted(swept.left),
            "gpus": cards,
            "ended_at": time.time(),
            "ran_s": round(self.watch.ran_s, 3),
            "step": self.marks.step(),
            **self.watch.of_logs,
            "by": "launcher",
        }

    def _say(self, text: str) -> None:
        """A line of our own in rank 0's log: only about what the job cannot know."""
        with open(self.paths.log(0), "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write("runner: %s\n" % text)

    def _release(self, swept: processes.Sweep) -> None:
        """Let go of the run, and of the leases once nothing of it lives."""
        wakeup.poke(self.workspace, self.spec["id"])
        while processes.living(swept.left):
            # what cannot die keeps its cards: hold the leases for it
            time.sleep(POLL_S)
        for fd in self.leases.values():
            # before the lock of the run, which goes with this process: who sees that one free, as a
            # cancel does, finds these free, too
            os.close(fd)


def launch(
    workspace: Workspace, spec: Dict[str, Any], state: Dict[str, Any], leases: Dict[str, int]
) -> NoReturn:
    """Run one attempt in this process, which the dispatcher has just forked, and end it."""
    attempt = None
    try:
        attempt = Attempt(workspace, spec, state, leases)
        attempt.run()
    except BaseException as error:  # the edge of a process: nobody above could report it
        import traceback

        where = attempt.folder if attempt is not None else workspace.state
        try:
            with open(os.path.join(where, "launcher-error.log"), "a") as file:
                traceback.print_exc(file=file)
            journal.say("launcher of %s: %r" % (spec.get("id"), error))
        finally:
            os._exit(70)
    os._exit(0)


def _is_back(used: Optional[int], before: Optional[int]) -> bool:
    return used is None or used <= (before or 0) + MEMORY_TOLERANCE_MIB


def _leave_no_cores() -> None:
    """Neither we nor the job, unless it raises the limit itself: a core may hold a secret."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _prefer_for_oom() -> None:
    """Let the kernel take the job before supervisord when memory runs out."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass
