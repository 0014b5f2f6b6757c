"""`[setup] requirements`: packages beside those of the worker's own Python, made once per digest.

An overlay is a virtual environment in `.runner/overlays/DIGEST/` that sees all the base has: its
own packages come first, the base's behind them. Nothing of torch can be replaced: what the base has
of it is a constraint to pip, and is looked at once more afterwards.

    DIGEST/ready.json   it is whole: written last; one without it is made anew
    DIGEST.lock         held alone by who makes it, pip included, and shared by who uses it
    DIGEST.failed       why it could not be made the last time: runs that waited for it share that

The digest is that of the requirements and of what the base is (interpreter, packages): an overlay
outlives a worker that is made anew the same, and a changed base gets another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import causes
import evidence
import records
import snapshot
from paths import Workspace

READY = "ready.json"
FAILED = ".failed"
LIMIT_S = 1800.0
"""As long as a slow link may take for some GB."""
PROBE_S = 120.0
POLL_S = 0.1
TOLD_LINES = 15
UNUSED_S = 14 * 86400.0
"""After so long without a use it may go: it can be made again."""
YOUNG_S = 3600.0
NAMED = 3
FORMAT = 1
_FROZEN = re.compile(r"(torch|torchvision|torchaudio|triton|pytorch-triton.*|nvidia-.*)\Z")
_NUMPY = "numpy"
"""Frozen too, unless the job asks for one by name."""
_NOT_FOR_PIP = ("PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIREMENT")
_UNREACHED = re.compile(
    r"NewConnectionError|Failed to establish|name resolution|ProxyError|ConnectTimeoutError"
    r"|Connection refused|SSLError"
)
_PROBE = """
import importlib.metadata, importlib.util, json, sys, sysconfig
paths = [p for p in sys.path if p.rstrip("/").endswith(("site-packages", "dist-packages"))]
found = {}
for each in importlib.metadata.distributions(path=paths):
    found.setdefault(str(each.metadata["Name"]), str(each.version))
print(json.dumps({
    "executable": sys.executable, "prefix": sys.prefix, "paths": paths, "packages": found,
    "version": sys.version, "abi": sysconfig.get_config_var("SOABI"),
    "pip": importlib.util.find_spec("pip") is not None,
}))
"""
_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


class Failed(Exception):
    """The packages are not there, and why, in one line."""


class Overlay(NamedTuple):
    """One that is whole, and stays as long as the lock is held."""

    folder: str
    lock: int

    @property
    def bin(self) -> str:
        """What goes first in a job's PATH."""
        return os.path.join(self.folder, "bin")


class Maker:
    """Has the packages of one attempt there."""

    def __init__(
        self,
        workspace: Workspace,
        requirements: Sequence[str],
        *,
        python: str,
        env: Dict[str, str],
        folder: str,
        code: str,
        say: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        """env: the job's, by which pip finds its index. folder: of the attempt, for pip's log.
        code: the run's own copy, where pip looks from (PIP_FIND_LINKS=wheels). say: a line in the
        job's log. stop: whether the run is to end.
        """
        self.root = root_of(workspace)
        self.requirements = [" ".join(str(each).split()) for each in requirements]
        self.python = python
        self.env = {k: v for k, v in env.items() if k not in _NOT_FOR_PIP}
        self.env.update(PIP_USER="0", PYTHONNOUSERSITE="1", PYTHONDONTWRITEBYTECODE="")
        self.code = code
        self.log = os.path.join(folder, "setup.log")
        self.doing = os.path.join(folder, "doing.json")
        self.say = say
        self.stop = stop

    def provide(self) -> Overlay:
        """The overlay, made or found. Raises Failed, snapshot.Interrupted, OSError."""
        for each in self.requirements:
            if each.startswith("-"):
                raise Failed("requirements: %s is an option of pip" % each)
        base = self._read_base()
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        folder = os.path.join(self.root, digest(self.requirements, base))
        waited, began = False, time.time()
        try:
            while True:
                lock = records.try_lock(folder + ".lock", fcntl.LOCK_SH)
                if lock is not None and is_ready(folder):
                    os.utime(os.path.join(folder, READY))
                    return Overlay(folder, lock)
                failed = records.read(folder + FAILED) if waited else None
                if failed is not None and float(failed.get("at", 0)) >= began:
                    if lock is not None:
                        os.close(lock)
                    raise Failed(str(failed.get("text")))
                if lock is not None:
                    os.close(lock)
                    made = self._make_alone(folder, base)
                    if made is not None:
                        return made
                if not waited:
                    waited = True
                    self._tell("waits for another run, which installs the same packages")
                self._pause()
        finally:
            if os.path.exists(self.doing):
                os.unlink(self.doing)

    def _make_alone(self, folder: str, base: Dict[str, Any]) -> Optional[Overlay]:
        """The overlay once it is made here; None when somebody else is at it."""
        lock = records.try_lock(folder + ".lock")
        if lock is None:
            return None
        try:
            if not is_ready(folder):
                self._make(folder, base, lock)
            # whoever waits may use it, too; nobody can take it away meanwhile but for a moment
            fcntl.flock(lock, fcntl.LOCK_SH)
        except BaseException:
            os.close(lock)
            raise
        if is_ready(folder):
            return Overlay(folder, lock)
        os.close(lock)
        return None

    # -- making one ---------------------------------------------------------------------------

    def _make(self, folder: str, base: Dict[str, Any], lock: int) -> None:
        began = time.monotonic()
        names = [re.split(r"[^A-Za-z0-9._-]", each)[0] for each in self.requirements]
        shown = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
        count = "%d package%s" % (len(names), "" if len(names) == 1 else "s")
        self._tell("installing %s: %s" % (count, shown))
        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.makedirs(os.path.join(folder, "tmp"))
            env = dict(self.env, TMPDIR=os.path.join(folder, "tmp"))
            python = self._make_empty(folder, base, env, lock)
            frozen = frozen_of(base["packages"], names)
            self._install(folder, python, frozen, env, lock)
            self._check(python, frozen, env)
            shutil.rmtree(os.path.join(folder, "tmp"), ignore_errors=True)
            body = {
                "format": FORMAT,
                "requirements": self.requirements,
                "base": base["executable"],
                "files": _listed(folder),
                "made_at": time.time(),
            }
            records.write(os.path.join(folder, READY), body)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, Failed):
                body = {"at": time.time(), "text": str(error)}
                records.write(folder + FAILED, body, sync=False, spare=False)
            raise
        self.say("installed %s in %s" % (count, causes.span(time.monotonic() - began)))

    def _make_empty(self, folder: str, base: Dict[str, Any], env: Dict[str, str], lock: int) -> str:
        """A virtual environment that sees the base's packages; its Python."""
        argv = [
            self.python,
            "-I",
            "-m",
            "venv",
            *(["--without-pip"] if base["pip"] else []),
            folder,
        ]
        status = self._run(argv, env, lock)
        if status:
            text = "no environment can be made by %s: %s"
            why = ended_by(status) if status < 0 else _last_line(self._output())
            raise Failed(text % (base["executable"], why))
        site = glob.glob(os.path.join(folder, "lib", "python*", "site-packages"))[0]
        with open(os.path.join(site, "runner-base.pth"), "w") as file:
            for path in base["paths"]:
                # not the path alone: that would pass over the .pth files in it
                file.write("import site; site.addsitedir(%r)\n" % path)
        return os.path.join(folder, "bin", "python")

    def _install(
        self, folder: str, python: str, frozen: Dict[str, str], env: Dict[str, str], lock: int
    ) -> None:
        wanted, fixed = os.path.join(folder, "wanted.txt"), os.path.join(folder, "frozen.txt")
        for path, lines in (
            (wanted, self.requirements),
            (fixed, ["%s==%s" % each for each in sorted(frozen.items())]),
        ):
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in lines)
        # isolated: what lies in the code must not stand in for a module of pip's
        argv = [python, "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        argv += ["--progress-bar", "off", "--no-warn-script-location", "-c", fixed, "-r", wanted]
        status = self._run(argv, env, lock)
        if status:
            said = self._output()
            for line in said.strip().splitlines()[-TOLD_LINES:]:
                self.say("pip: " + line.rstrip())
            why = "pip " + ended_by(status) if status < 0 else reason(said, frozen)
            raise Failed("requirements: " + why)

    def _check(self, python: str, frozen: Dict[str, str], env: Dict[str, str]) -> None:
        """Look that nothing of torch was replaced, whatever pip was told."""
        if not frozen:
            return
        done = self._ask([python, "-I", "-c", _VERSIONS, *sorted(frozen)], env)
        for name, version in sorted(done.items()):
            if version != frozen[name]:
                text = "requirements: they bring %s %s; the worker's own Python has %s"
                raise Failed(text % (name, version, frozen[name]))

    # -- programs -----------------------------------------------------------------------------

    def _read_base(self) -> Dict[str, Any]:
        return self._ask([self.python, "-I", "-c", _PROBE], self.env)

    def _ask(self, argv: List[str], env: Dict[str, str]) -> Dict[str, Any]:
        """What a short program of ours answers."""
        try:
            done = subprocess.run(
                argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S
            )
            body = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise Failed("%s cannot be asked for its packages: %s" % (argv[0], error)) from error
        if not isinstance(body, dict):
            raise Failed("%s cannot be asked for its packages" % argv[0])
        return body

    def _run(self, argv: List[str], env: Dict[str, str], lock: int) -> int:
        """The exit status of a program whose output goes to the log; it ends with the run."""
        deadline = time.monotonic() + LIMIT_S
        with open(self.log, "ab") as out:
            child = subprocess.Popen(
                argv,
                env=env,
                cwd=self.code,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                # should this process be killed, nobody else begins before that one is gone
                pass_fds=(lock,),
                start_new_session=True,
            )
        try:
            while child.poll() is None:
                if time.monotonic() > deadline:
                    raise Failed("requirements: not installed within %s" % causes.span(LIMIT_S))
                self._pause()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        return child.returncode

    def _output(self) -> str:
        try:
            with open(self.log, "rb") as file:
                return file.read()[-256 * 1024 :].decode("utf-8", "replace")
        except OSError:
            return ""

    def _pause(self) -> None:
        if self.stop():
            raise snapshot.Interrupted()
        time.sleep(POLL_S)

    def _tell(self, text: str) -> None:
        """In the job's log, and for `why` while it lasts."""
        self.say(text)
        records.write(self.doing, {"text": text, "since": time.time()}, sync=False, spare=False)


def root_of(workspace: Workspace) -> str:
    """The folder of all overlays."""
    return os.path.join(workspace.state, "overlays")


@contextlib.contextmanager
def removable(workspace: Workspace) -> Iterator[List[str]]:
    """Overlays that nobody uses and none has used for long, and what is left of unfinished ones.

    Nobody makes or uses one of them inside of this.
    """
    found, locks = [], []
    for path in sorted(glob.glob(os.path.join(glob.escape(root_of(workspace)), "*"))):
        if path.endswith(".lock") or not os.path.isdir(path) or not _is_old(path):
            continue
        lock = records.try_lock(path + ".lock")
        if lock is not None:
            locks.append(lock)
            found.append(path)
    try:
        yield found
    finally:
        for lock in locks:
            os.close(lock)


def _is_old(path: str) -> bool:
    try:
        return time.time() - os.stat(os.path.join(path, READY)).st_mtime > UNUSED_S
    except OSError:
        pass
    try:
        return time.time() - os.stat(path).st_mtime > YOUNG_S
    except OSError:
        return False


def digest(requirements: Sequence[str], base: Dict[str, Any]) -> str:
    """The name of the overlay of these packages on that base."""
    facts = [FORMAT, sorted(requirements), base["executable"], base["prefix"], base["version"]]
    text = json.dumps([*facts, base["abi"], base["paths"], sorted(base["packages"].items())])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def frozen_of(packages: Dict[str, str], names: Sequence[str]) -> Dict[str, str]:
    """What of the base stays: torch and what is its own, and numpy where nobody names it."""
    named = any(_plain(name) == _NUMPY for name in names)
    return {
        name: version
        for name, version in packages.items()
        if _FROZEN.match(_plain(name)) or (_plain(name) == _NUMPY and not named)
    }


def is_ready(folder: str) -> bool:
    """Whether an overlay is whole: it was finished, and what was installed is still there."""
    body = records.read(os.path.join(folder, READY))
    if body is None or not os.path.exists(os.path.join(folder, "bin", "python")):
        return False
    return all(os.path.exists(os.path.join(folder, str(name))) for name in body.get("files") or ())


def reason(said: str, frozen: Dict[str, str]) -> str:
    """Why pip failed, in one line; of a conflict both sides."""
    conflict: List[str] = []
    for line in said.partition("The conflict is caused by:")[2].strip().splitlines():
        if not line.strip():
            break
        conflict.append(_side(line.strip(), frozen))
    if conflict:
        return "; ".join(conflict)
    if "subprocess-exited-with-error" in said:
        return _build_reason(said)
    errors = [line.strip() for line in said.splitlines() if line.startswith("ERROR: ")]
    found = (errors[-1] if errors else _last_line(said)).replace("ERROR: ", "")
    found = crash(said) or found
    for line in errors:
        # the last line names what is not there, an earlier one often what there is
        name = re.search(r"No matching distribution found for (\S+)", line)
        known = name and frozen.get(re.split(r"[^A-Za-z0-9._-]", name[1])[0])
        if name and known:
            found = "asked for: %s; the worker has %s" % (name[1], known)
    if _UNREACHED.search(said):
        found += " (the package index was not reached)"
    return found


def crash(said: str) -> Optional[str]:
    """The exception that pip itself ended with, where it did."""
    at = said.rfind("ERROR: Exception:\n")
    traceback = evidence.last_traceback(said[at:]) if at >= 0 else None
    return traceback.splitlines()[-1] if traceback else None


def ended_by(status: int) -> str:
    """`was ended by signal 9 (SIGKILL)`, of the status of a child that a signal ended."""
    try:
        name = " (%s)" % signal.Signals(-status).name
    except ValueError:
        name = ""
    return "was ended by signal %d%s" % (-status, name)


def _build_reason(said: str) -> str:
    """Which package could not be built, and the last that its building said."""
    before, _, after = said.partition("subprocess-exited-with-error")
    names = re.findall(r"(?:Collecting|Building wheel for) (\S+)", before)
    output = after.partition("[end of output]")[0]
    lines = [line.strip(" │╰─>×") for line in output.splitlines() if line.strip(" │╰─>×")]
    return "%s cannot be built: %s" % (names[-1] if names else "one", _last_line("\n".join(lines)))


def _side(text: str, frozen: Dict[str, str]) -> str:
    """One side of a conflict."""
    found = re.match(r"The user requested \(constraint\) (([A-Za-z0-9._-]+).*)", text)
    if found:
        for name, version in frozen.items():
            if _plain(name) == _plain(found[2]):
                return "the worker has %s %s" % (name, version)
        return "pip's own settings there (PIP_CONSTRAINT, pip.conf) say " + found[1]
    return text.replace("The user requested ", "asked for: ")


def _plain(name: str) -> str:
    """A package's name, as indices spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _listed(folder: str) -> List[str]:
    """The installed packages' own records, by which a later look tells that they are there."""
    found = glob.glob(os.path.join(folder, "lib", "python*", "site-packages", "*.dist-info"))
    return sorted(os.path.relpath(path, folder) for path in found)
