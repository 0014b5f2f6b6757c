"""`gc`: removes what nobody needs: leftovers of what was cut, contents and bundles without a user,
code copies of ended runs.

Never a checkpoint, a log or a record of a run that is here, and of its copy of the code nothing
that was not pulled: a file that is as the snapshot says can be laid out again at any time.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any, Dict, Iterator, List, Optional, Set

import overlay
import plain
import processes
import records
import resumes
import snapshot
import space
import venvs
import view
from paths import RunPaths, Workspace

from runner import states
from verbs import Call, remove

YOUNG_S = 3600.0
"""What is younger may be part of something under way, or of a submit that was cut."""
BUNDLE_YOUNG_S = 86400.0
KEPT_MOST = 20
_HIDDEN = re.compile(r"\.(?:tmp|del|old)-.*?(?:-(\d+))?\Z", re.DOTALL)
_SUFFIXED = re.compile(r".*\.tmp(\d+)\Z", re.DOTALL)
_HERE = os.path.basename(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The bundle this program is from."""


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"dry": bool, "pulled": {run: attempt}} → rows [{"what", "bytes", "why"}]; {"bytes", "kept",
    "disk": {"free"}}.

    pulled: runs of which all was pulled when that attempt, their last one, had ended. kept: what
    was left for now, and why, in words. `what` is a path in the workspace, or a count.
    """
    pulled = request.get("pulled")
    sweep = _Sweep(call.workspace, bool(request.get("dry")))
    sweep.leftovers()
    sweep.code(pulled if isinstance(pulled, dict) else {})
    sweep.bundles()
    sweep.overlays()
    sweep.contents()
    sweep.environments()
    call.send_rows(sweep.items)
    return {
        "bytes": sweep.freed.bytes,
        "kept": sweep.kept[:KEPT_MOST],
        "disk": {"free": space.room(call.workspace).free},
    }


class _Sweep:
    """One collection; `dry` only lists."""

    def __init__(self, workspace: Workspace, dry: bool) -> None:
        self.workspace = workspace
        self.dry = dry
        self.freed = space.Freed()
        self.items: List[Dict[str, Any]] = []
        self.kept: List[str] = []

    def leftovers(self) -> None:
        """Temporary names that nobody will rename any more, and what stands without a run."""
        for path in _temporaries(self.workspace):
            name = os.path.basename(path)
            before = self.freed.bytes
            run = _removed_run(self.workspace, path) if name.startswith(".del-") else None
            if run is not None:
                # a removal that was cut: what the run made first, as `remove` does
                for folder in remove.folders(run):
                    self._remove(folder)
            self._remove(path)
            self._say(path, before, "left by a removal" if run else "left by what was cut")
        runs = set(os.listdir(self.workspace.runs))
        for kind in (os.path.join(self.workspace.root, "code"), self.workspace.secrets):
            for name in _names(kind):
                path = os.path.join(kind, name)
                if name in runs or name.startswith(".") or not _is_orphan(path):
                    continue
                before = self.freed.bytes
                self._remove(path)
                self._say(path, before, "of a run that was never made")

    def code(self, pulled: Dict[str, Any]) -> None:
        """Copies of the code of ended runs."""
        for spec, state in view.read_all(self.workspace):
            paths = self.workspace.run(spec["id"])
            ended = state["state"] == states.ENDED and not resumes.is_pending(paths, state)
            if not ended or not _names(paths.code):
                continue
            if self.dry:
                self._copy(paths, spec, state, pulled.get(paths.id))
                continue
            with remove.claimed(paths) as problem:
                # as it is now that nobody can start it
                now = records.read(paths.state)
                if problem is None and now is not None:
                    self._copy(paths, spec, now, pulled.get(paths.id))

    def _copy(
        self, paths: RunPaths, spec: Dict[str, Any], state: Dict[str, Any], pulled: Any
    ) -> None:
        before = self.freed.bytes
        if isinstance(pulled, int) and pulled == state.get("attempt"):
            for name in _names(paths.code):
                self._remove(os.path.join(paths.code, name))
            self._say(paths.code, before, "its run has ended and was pulled")
        elif self._unmodified(paths, spec):
            self._say(paths.code, before, "its run has ended; what the job wrote there stays")

    def _unmodified(self, paths: RunPaths, spec: Dict[str, Any]) -> bool:
        """Remove what is in a copy exactly as in the snapshot; whether there was any."""
        rows = snapshot.read_tree(self.workspace, str(spec.get("snapshot")))
        if rows is None:
            return False
        changed = set(snapshot.differences(rows, paths.code))
        same = [row[0] for row in rows if row[1] != "d" and row[0] not in changed]
        for path in same:
            self._remove(os.path.join(paths.code, path))
        if not self.dry:
            _remove_empty(paths.code, rows)
        return bool(same)

    def bundles(self) -> None:
        """Worker programs of versions that nothing runs any more."""
        folder = self.workspace.bundles
        lines = list(_command_lines())
        for name in _names(folder):
            path = os.path.join(folder, name)
            young = space.age_s(os.lstat(path), renamed=False) < BUNDLE_YOUNG_S
            used = name == _HERE or any(os.fsencode(name) in line for line in lines)
            if young or used or _SUFFIXED.match(name) or name.startswith("."):
                continue
            before = self.freed.bytes
            aside = path
            if not self.dry:
                # a worker that is just starting finds it whole or not at all
                aside = os.path.join(folder, ".del-%s-%d" % (name, os.getpid()))
                os.rename(path, aside)
            self._remove(aside)
            self._say(path, before, "no process is of this version")

    def overlays(self) -> None:
        """Environments of packages that no run has used for long."""
        with overlay.removable(self.workspace) as found:
            for path in found:
                before = self.freed.bytes
                self._remove(path)
                self._say(path, before, "packages that no run has used for long")

    def contents(self) -> None:
        """Lists of snapshots and contents that no run here names."""
        if self.dry:
            self._contents()
            return
        with space.sweeping_contents(self.workspace) as alone:
            if alone:
                self._contents()
            else:
                self.kept.append("a run is being made just now: contents were left as they are")

    def environments(self) -> None:
        """Environments of `venv` workers of this account that nobody runs in any more."""
        own = venvs.folder()
        if own is None:
            return
        state = os.path.dirname(os.path.dirname(own))
        with venvs.locked(state, 0) as alone:
            for path in venvs.unused(state) if alone else ():
                before = self.freed.bytes
                if self.dry:
                    self._remove(path)
                else:
                    space.remove(venvs.set_aside(path), self.freed)
                self._row("venvs/" + os.path.basename(path), before, "no worker is of it any more")

    def _contents(self) -> None:
        named = _named(self.workspace)
        if named is None:
            self.kept.append("a run's spec.json cannot be read: contents were left as they are")
            return
        needed, blobs = named
        going: List[str] = []
        for name in _names(self.workspace.trees):
            digest, path = name[: -len(".json")], os.path.join(self.workspace.trees, name)
            if not name.endswith(".json"):
                continue
            if digest not in needed and not _is_young(path):
                going.append(path)
                continue
            rows = snapshot.read_tree(self.workspace, digest)
            if rows is None:
                self.kept.append("%s cannot be read: contents were left as they are" % path)
                return
            blobs.update(row[4] for row in rows if row[1] == "f")
        self._remove_all(going, "list of a snapshot", "lists of snapshots")
        if not self.dry:
            # a list that exists promises its contents, also after a power cut
            records.sync_folder(self.workspace.trees)
        for name in _names(self.workspace.blobs):
            # who receives contents holds the lock: without it nobody gives these their names
            path = os.path.join(self.workspace.blobs, name)
            if name.startswith(".") and not (self.dry and _is_young(path)):
                before = self.freed.bytes
                self._remove(path)
                self._say(path, before, "left by what was cut")
        unused = (path for path, digest in _blobs(self.workspace) if digest not in blobs)
        self._remove_all([path for path in unused if not _is_young(path)], "content", "contents")

    def _remove_all(self, going: List[str], one: str, many: str) -> None:
        before = self.freed.bytes
        for path in going:
            self._remove(path)
        if going:
            what = "%d %s" % (len(going), one if len(going) == 1 else many)
            self._row(what, before, "no run here needs %s" % ("it" if len(going) == 1 else "them"))

    def _remove(self, path: str) -> None:
        if self.dry:
            self.freed.add_below(path)
            return
        try:
            space.remove(path, self.freed)
        except OSError as error:  # what a job made of its folder is no reason to stop here
            self.kept.append("%s cannot be removed: %s" % (path, error.strerror))

    def _say(self, path: str, before: int, why: str) -> None:
        self._row(os.path.relpath(path, self.workspace.root), before, why)

    def _row(self, what: str, before: int, why: str) -> None:
        self.items.append({"what": what, "bytes": self.freed.bytes - before, "why": why})


def _temporaries(workspace: Workspace) -> Iterator[str]:
    """Entries with a temporary name whose process is gone, or that are old."""
    for folder in _with_ids(workspace):
        yield from _left(folder, (_HIDDEN,))
    folders = [workspace.state, workspace.trees, workspace.bundles, workspace.secrets]
    folders += [os.path.join(workspace.blobs, name) for name in _names(workspace.blobs)]
    folders += [os.path.join(workspace.secrets, name) for name in _names(workspace.secrets)]
    for name in _names(workspace.runs):
        run = os.path.join(workspace.runs, name)
        attempts = os.path.join(run, "attempts")
        folders += [run, os.path.join(run, "resumes")]
        folders += [os.path.join(attempts, number) for number in _names(attempts)]
    folders += [workspace.at(name).own for name in workspace.place_names()]
    for folder in folders:
        yield from _left(folder, (_HIDDEN, _SUFFIXED))


def _with_ids(workspace: Workspace) -> List[str]:
    """Folders whose entries are named by runs, where only a hidden name is none."""
    kinds = ("code", "checkpoints", "logs", "runs")
    return [os.path.join(workspace.root, kind) for kind in kinds]


def _left(folder: str, patterns: "tuple[re.Pattern[str], ...]") -> Iterator[str]:
    for name in _names(folder):
        for pattern in patterns:
            match = pattern.match(name)
            if match and _is_left(os.path.join(folder, name), match[1]):
                yield os.path.join(folder, name)


def _is_left(path: str, pid: Optional[str]) -> bool:
    if pid is not None and processes.read_stat(int(pid)) is None:
        return True
    try:
        return space.age_s(os.lstat(path)) > YOUNG_S
    except OSError:
        return False


def _removed_run(workspace: Workspace, aside: str) -> Optional[RunPaths]:
    """The run whose removal was cut: it is not here, but what it made may be."""
    spec = records.read(os.path.join(aside, "spec.json"))
    if os.path.dirname(aside) != workspace.runs or spec is None:
        return None
    try:
        paths = workspace.run(str(spec.get("id")))
    except ValueError:
        return None
    return None if os.path.lexists(paths.folder) else paths


def _is_orphan(path: str) -> bool:
    """Whether a folder without a run is ours alone: old, and nothing in it that a job wrote."""
    try:
        if space.age_s(os.lstat(path), renamed=False) < YOUNG_S or not plain.is_folder(path):
            return False
    except OSError:
        return False
    if os.path.basename(os.path.dirname(path)) == "secrets":
        return True
    # a snapshot is laid out read-only
    return all(
        stat.S_ISLNK(found.st_mode) or not found.st_mode & 0o222 for _, found in plain.walk(path)
    )


def _is_young(path: str) -> bool:
    """Whether a content or a list came only just; its links may be of any age."""
    try:
        return space.age_s(os.lstat(path), renamed=False) < YOUNG_S
    except OSError:
        return True


def _named(workspace: Workspace) -> "Optional[tuple[Set[str], Set[str]]]":
    """The snapshots, and the contents beside those, that runs here name; None when one cannot be
    told.
    """
    snapshots: Set[str] = set()
    beside: Set[str] = set()
    for name in _names(workspace.runs):
        path = os.path.join(workspace.runs, name, "spec.json")
        if name.startswith("."):
            continue
        spec = records.read(path)
        if spec is not None:
            snapshots.add(str(spec.get("snapshot")))
            code = spec.get("code")
            if isinstance(code, dict) and code.get("diff"):
                beside.add(str(code["diff"]))
        elif os.path.lexists(path):
            return None
    return snapshots, beside


def _blobs(workspace: Workspace) -> Iterator[Any]:
    """(path, digest) of every content."""
    for start in _names(workspace.blobs):
        if start.startswith("."):
            continue
        for rest in _names(os.path.join(workspace.blobs, start)):
            if not _SUFFIXED.match(rest):
                yield os.path.join(workspace.blobs, start, rest), start + rest


def _remove_empty(top: str, rows: List[snapshot.Row]) -> None:
    """Remove the folders of a snapshot in which nothing is left."""
    folders = {row[0] for row in rows if row[1] == "d"}
    for row in rows:
        parts = row[0].split("/")[:-1]
        folders.update("/".join(parts[: count + 1]) for count in range(len(parts)))
    for folder in sorted(folders, key=len, reverse=True):
        try:
            os.rmdir(os.path.join(top, folder))
        except OSError:
            continue  # the job's own files are in it, or it is a link now


def _command_lines() -> Iterator[bytes]:
    for pid in processes.all_pids():
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                yield file.read()
        except OSError:
            continue


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder)) if plain.is_folder(folder) else []
    except OSError:
        return []
