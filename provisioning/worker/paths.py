"""Every path of a workspace and of a run, in one place.

code/RUN/          the run's own copy of its snapshot
checkpoints/RUN/   checkpoints
logs/RUN/          rank-0.log …, progress.jsonl, TensorBoard event files
runs/RUN/          spec.json, state.json, events.jsonl, cancel, cancel-now,
                       scalars.json, curves.json, lock, resume.lock, again.lock,
                       resumes/N.json, attempts/N/, told/ (a mark
                       for each message about it that was put into an outbox);
                       .del-RUN-PID is one being removed
.home/             HOME of jobs
.runner/           blobs/, trees/, bundles/, secrets/RUN/NAME, notify/CLIENT/, drained,
                       contents.lock; and of a worker: inbox/, wake, queue.json,
                       dispatcher.lock, start.lock …
.runner/places/PLACE/  such own files of a docker worker (places.py), and place.json, keeper.lock

attempts/N/        proc.json   who runs it (launcher, before the first fork)
                   pids.json   its processes as last seen (launcher)
                   resume.json  the checkpoint it goes on from (launcher, just before its ranks)
                   beat.json   how long it ran so far (launcher, every 5 s)
                   stuck.json  since when nothing moves, while that is so (launcher)
                   stacks-K.txt  every rank's Python stack, before it was stopped for being stuck
                   ranks.json  the ranks' own ends (torchrun's front)
                   exit.json   how it ended (launcher, or the dispatcher for a lost one)
                   stop        the ranks were asked to stop
"""

from __future__ import annotations

import os
import re
import stat
from typing import Dict, List, Optional

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
PLACE = RUN_ID


class Workspace:
    """The worker's persistent folder.

    place: which of its workers looks at it; "" for the only one.
    """

    def __init__(self, root: str, place: str = "") -> None:
        self.root = os.path.abspath(root)
        self.runs = os.path.join(self.root, "runs")
        self.home = os.path.join(self.root, ".home")
        self.state = os.path.join(self.root, ".runner")
        self.blobs = os.path.join(self.state, "blobs")
        self.trees = os.path.join(self.state, "trees")
        self.bundles = os.path.join(self.state, "bundles")
        self.secrets = os.path.join(self.state, "secrets")
        self.notify = os.path.join(self.state, "notify")
        self.drained = os.path.join(self.state, "drained")
        self.place = place
        self.places = os.path.join(self.state, "places")
        own = os.path.join(self.places, place) if place else self.state
        self.own = own
        self.inbox = os.path.join(own, "inbox")
        self.wake = os.path.join(own, "wake")
        self.dispatcher_lock = os.path.join(own, "dispatcher.lock")
        self.start_lock = os.path.join(own, "start.lock")
        self.retired = os.path.join(own, "retired")
        self.keeper_lock = os.path.join(own, "keeper.lock")
        self.supervisor = os.path.join(own, "supervisor.json")
        self.dispatcher = os.path.join(own, "dispatcher.json")
        self.log = os.path.join(own, "dispatcher.log")
        self.config = os.path.join(own, "worker.json")
        self.gpus = os.path.join(own, "gpus.json")
        self.queue = os.path.join(own, "queue.json")
        self.caches = (self.gpus, self.queue)
        """What the dispatcher writes anew when it is gone."""

    def make(self) -> None:
        """Make the folders that are missing, for the owner alone."""
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        found = os.stat(self.root)
        # one that was made by hand, not one like /tmp
        is_ours = found.st_uid == os.getuid() and not found.st_mode & stat.S_ISVTX
        if is_ours and found.st_mode & 0o077:
            os.chmod(self.root, 0o700)
        folders = ("code", "checkpoints", "logs", "runs", ".home", ".runner")
        for name in folders:
            os.makedirs(os.path.join(self.root, name), exist_ok=True)
        for path in (self.blobs, self.trees, self.bundles, self.inbox):
            os.makedirs(path, exist_ok=True)

    def at(self, place: str) -> "Workspace":
        """The same workspace as another of its workers sees it."""
        return self if place == self.place else Workspace(self.root, place)

    def place_names(self) -> List[str]:
        """The names that workers of this workspace have or had."""
        try:
            return sorted(name for name in os.listdir(self.places) if PLACE.match(name))
        except OSError:
            return []

    def run(self, run: str) -> "RunPaths":
        """The paths of one run. Raises ValueError for what cannot be an id."""
        if not RUN_ID.match(run):
            raise ValueError("not a run id: %r" % run)
        return RunPaths(self, run)

    def blob(self, digest: str) -> str:
        """Where the content with this sha256 lies."""
        return os.path.join(self.blobs, digest[:2], digest[2:])

    def tree(self, digest: str) -> str:
        """Where the list of a snapshot lies."""
        return os.path.join(self.trees, digest + ".json")


class RunPaths:
    """All paths of one run."""

    def __init__(self, workspace: Workspace, run: str) -> None:
        self.id = run
        self.folder = os.path.join(workspace.runs, run)
        self.code = os.path.join(workspace.root, "code", run)
        self.checkpoints = os.path.join(workspace.root, "checkpoints", run)
        self.logs = os.path.join(workspace.root, "logs", run)
        self.spec = os.path.join(self.folder, "spec.json")
        self.state = os.path.join(self.folder, "state.json")
        self.events = os.path.join(self.folder, "events.jsonl")
        self.scalars = os.path.join(self.folder, "scalars.json")
        self.curves = os.path.join(self.folder, "curves.json")
        self.cancel = os.path.join(self.folder, "cancel")
        self.cancel_now = os.path.join(self.folder, "cancel-now")
        self.lock = os.path.join(self.folder, "lock")
        self.resumes = os.path.join(self.folder, "resumes")
        self.secrets = os.path.join(workspace.secrets, run)

    def attempt(self, number: int) -> str:
        """The folder of one attempt."""
        return os.path.join(self.folder, "attempts", str(number))

    def log(self, rank: int) -> str:
        """A rank's own bytes: stdout and stderr in one."""
        return os.path.join(self.logs, "rank-%d.log" % rank)

    def progress(self, rank: int) -> str:
        """A rank's progress lines."""
        name = "progress.jsonl" if rank == 0 else "progress-rank-%d.jsonl" % rank
        return os.path.join(self.logs, name)

    def params(self, attempt: int) -> str:
        """The job's parameters as the job reads them."""
        return os.path.join(self.attempt(attempt), "params.json")


def find_workspace(environ: Dict[str, str]) -> str:
    """The workspace of this worker: RUNNER_WORKSPACE, else the embedded default of `local`."""
    named = environ.get("RUNNER_WORKSPACE")
    if named:
        return os.path.abspath(os.path.expanduser(named))
    return os.path.join(_home(environ), ".local", "share", "runner", "workspace")


def find_place(environ: Dict[str, str]) -> str:
    """Which of the workspace's workers this is: RUNNER_PLACE, else the only one."""
    named = environ.get("RUNNER_PLACE", "")
    return named if PLACE.match(named) else ""


def find_leases(environ: Dict[str, str]) -> str:
    """The lease folder, one for all workers of the account on this host."""
    named = environ.get("RUNNER_LEASES")
    if named:
        return named
    return os.path.join(_home(environ), ".local", "state", "runner", "leases")


def refused(root: str, home: Optional[str]) -> Optional[str]:
    """Why a folder cannot be a workspace, or None."""
    real = os.path.realpath(root)
    if real == "/":
        return "it is the root of the file system"
    if home and real == os.path.realpath(home):
        return "it is the home folder itself"
    if os.path.lexists(os.path.join(real, ".ssh")):
        return "it holds .ssh"
    return None


def _home(environ: Dict[str, str]) -> str:
    home = environ.get("HOME", "")
    if not home:
        import pwd

        home = pwd.getpwuid(os.getuid()).pw_dir
    return home
