"""Fixtures for all tests: outside programs, the rig's hosts, an operator with a private home.

A test that asks for one of `NEEDS` gets the marker of that name. Where this machine lacks
the thing the test is skipped with the reason, or fails when `--require NAME,…` (or
`RUNNER_TEST_REQUIRE`; `all` means every one) asks for it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
if str(REPOSITORY) not in sys.path:  # `tests` and `runner`, however pytest was started
    sys.path.insert(0, str(REPOSITORY))

sys.path.insert(1, str(REPOSITORY / "provisioning" / "worker"))  # its modules by their names

from tests.helpers.local_worker import LocalWorker  # noqa: E402
from tests.rig import gpus  # noqa: E402
from tests.rig import python39 as python39_maker  # noqa: E402
from tests.rig.engine import RigEngine, check_engine  # noqa: E402
from tests.rig.hosts import RigHost  # noqa: E402
from tests.rig.operator import Operator  # noqa: E402
from tests.rig.paths import Unavailable, read_paths  # noqa: E402
from tests.rig.rig import Rig, check_hosts, say  # noqa: E402

NEEDS = {
    "sshd": "a host reached directly, with a real sshd",
    "jump_host": "a host reached through a jump host",
    "docker": "a Docker engine of the rig's own",
    "python39": "a Python 3.9 that runs",
    "fake_gpus": "rig hosts whose nvidia-smi tells of cards",
    "git": "git",
    "rsync": "rsync",
    "chromium": "Chromium, which shows pages without a window",
}
ON_RIG = {"rig", "sshd", "jump_host", "docker", "fake_gpus"}
FOLDERS = ["unit", "contract", "system", "faults"]
LEFT_OUT = "left out: "


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        default="",
        metavar="NAME,…",
        help=f"fail, not skip, tests that lack one of: {', '.join(NEEDS)}; or: all",
    )
    parser.addoption("--slow", action="store_true", help="run the long tests, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes long; left out unless --slow is given")
    for name, meaning in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: needs {meaning} (follows from the fixture)")
    unknown = required(config) - set(NEEDS)
    if unknown:
        raise pytest.UsageError(
            f"--require {','.join(sorted(unknown))}: it must be among {', '.join(NEEDS)}, all"
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        for name in NEEDS:
            if name in fixtures:
                item.add_marker(name)
    items.sort(key=_turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Side by side with `-n 2`: a file stays in one process, all files of the rig in the same."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-not-found,unused-ignore]

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return process_of(nodeid.partition("::")[0])

    return ByFile(config, log)


@functools.cache
def process_of(file: str) -> str:
    """`rig` for a test file that asks for one of the rig's fixtures, else the file itself."""
    text = (REPOSITORY / file).read_text(encoding="utf-8")
    return "rig" if re.search(rf"\b({'|'.join(ON_RIG)})\b *[,:)]", text) else file


def _turn(item: pytest.Item) -> tuple[bool, int]:
    """What needs Docker last, since its base image may still be in the making."""
    folder = item.nodeid.split("/")[1] if item.nodeid.count("/") > 1 else ""
    place = FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)
    return "docker" in getattr(item, "fixturenames", ()), place


def required(config: pytest.Config) -> set[str]:
    """The needs that must be met here."""
    words = f"{config.getoption('--require')},{os.environ.get('RUNNER_TEST_REQUIRE', '')}"
    names = {word.strip() for word in words.split(",")} - {""}
    if names & {"jump_host", "fake_gpus"}:
        names.add("sshd")  # the rig's hosts are one need
    return set(NEEDS) if "all" in names else names


def give_up(config: pytest.Config, name: str, reason: object) -> None:
    """Skip what needs `name`, or fail it when `name` is required."""
    if name in required(config):
        pytest.fail(f"{name} is required: {reason}", pytrace=False)
    pytest.skip(f"{LEFT_OUT}{name}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where everything is required, a test that was skipped for whatever reason is a failure."""
    if _lacks(session.config) and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _lacks(config: pytest.Config) -> bool:
    """Whether all is required and some test was skipped, or was let fail."""
    told = config.pluginmanager.get_plugin("terminalreporter")
    left = told is not None and (told.stats.get("skipped") or told.stats.get("xfailed"))
    return bool(left) and required(config) == set(NEEDS)


# what is said at the end


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: dict[str, float] = collections.defaultdict(float)
    counts: dict[str, set[str]] = collections.defaultdict(set)
    reasons: collections.Counter[str] = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = "/".join(report.nodeid.split("/")[:2])
                seconds[folder] += report.duration
                counts[folder].add(report.nodeid)
                if report.skipped and isinstance(report.longrepr, tuple):
                    _, _, reason = report.longrepr[2].partition(LEFT_OUT)
                    reasons[reason] += bool(reason)
    if seconds:
        terminalreporter.ensure_newline()
        terminalreporter.section("minutes per folder")
    for folder in sorted(seconds):
        minutes, tests = seconds[folder] / 60, len(counts[folder])
        terminalreporter.write_line(f"{folder:24} {minutes:6.2f} min  {tests:5} tests")
    for reason, count in sorted(reasons.items()):
        if count:
            terminalreporter.write_line(f"{LEFT_OUT}{reason} ({count} tests)")
    if _lacks(terminalreporter.config):
        terminalreporter.write_line("all is required, and something was skipped: failed", red=True)


# the rig


class _RigSession:
    """The rig as this test session uses it: made at the first need, alone, and put away again."""

    def __init__(self) -> None:
        self.rig: Rig | None = None
        self._held = contextlib.ExitStack()

    def need_hosts(self) -> Rig:
        check_hosts()
        if self.rig is None:
            rig = Rig()
            self._held.enter_context(rig.used_alone())
            rig.bring_up_hosts(owned=True)
            self.rig = rig
        return self.rig

    def need_docker(self) -> Rig:
        check_engine()
        rig = self.need_hosts()
        rig.bring_up_docker(owned=True)
        return rig

    def close(self) -> None:
        try:
            if self.rig is not None and self.rig.is_owned:
                self.rig.take_down()
        finally:
            self._held.close()


@pytest.fixture(scope="session")
def _rig_session() -> Iterator[_RigSession]:
    session = _RigSession()
    try:
        yield session
    finally:
        session.close()


@pytest.fixture(scope="session")
def rig(request: pytest.FixtureRequest, _rig_session: _RigSession) -> Rig:
    """The rig's hosts: `login`, `gpu`, `plain`; to break them, and see them mended after."""
    try:
        return _rig_session.need_hosts()
    except Unavailable as reason:
        give_up(request.config, "sshd", reason)
        raise


@pytest.fixture(scope="session")
def sshd(rig: Rig) -> RigHost:
    """The host `rig-plain`, reached directly; its user may not use Docker."""
    return rig.plain


@pytest.fixture(scope="session")
def jump_host(rig: Rig) -> RigHost:
    """The host `rig-gpu`, reached only through `rig-login` (`rig.login`)."""
    return rig.gpu


@pytest.fixture(scope="session")
def docker(request: pytest.FixtureRequest, _rig_session: _RigSession) -> RigEngine:
    """The Docker engine of `rig-gpu`, with the base image `docker.base_image` in it."""
    try:
        return _rig_session.need_docker().engine
    except Unavailable as reason:
        give_up(request.config, "docker", reason)
        raise


@pytest.fixture
def fake_gpus(rig: Rig) -> Iterator[gpus.FakeGpus]:
    """Two idle cards on `rig-gpu` and `rig-plain` (one machine's cards, seen by both)."""
    cards = gpus.FakeGpus(rig.paths.gpus)
    cards.set_cards(2)
    for host in (rig.gpu, rig.plain):
        gpus.place_tool(host.bin, rig.paths.gpus)
    try:
        yield cards
    finally:
        for host in (rig.gpu, rig.plain):
            gpus.remove_tool(host.bin)
        cards.close()


@pytest.fixture(autouse=True)
def _mended(request: pytest.FixtureRequest) -> None:
    """See that what an earlier test broke works again."""
    if ON_RIG & set(request.fixturenames):
        session: _RigSession = request.getfixturevalue("_rig_session")
        if session.rig is not None:
            session.rig.repair()


# the operator


@pytest.fixture(scope="session")
def make_operator(_rig_session: _RigSession) -> Iterator[Callable[[], Operator]]:
    """Make an operator with a fresh home, for fixtures that outlive a test."""
    homes: list[str] = []

    def make() -> Operator:
        # short: a control socket's path has 104 bytes at most
        homes.append(tempfile.mkdtemp(prefix="rig-op-"))
        return Operator(_rig_session.rig, Path(homes[-1]))

    yield make
    for home in homes:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def operator(request: pytest.FixtureRequest, make_operator: Callable[[], Operator]) -> Operator:
    """A person at this machine: a home, a project folder, and ssh to the rig's hosts.

    Ask for `sshd`, `jump_host` or `docker` too, to have the hosts in the ssh config; alone
    it has an empty one, and needs nothing of the machine.
    """
    for name in sorted(ON_RIG & set(request.fixturenames)):
        request.getfixturevalue(name)
    return make_operator()


# other programs


def _find_tool(config: pytest.Config, name: str) -> str:
    """Where `name` is, once it was run."""
    path = shutil.which(name)
    if path is None:
        give_up(config, name, "not installed")
    elif subprocess.run([path, "--version"], capture_output=True, check=False).returncode != 0:
        give_up(config, name, f"{path} does not run")
    assert path is not None
    return path


@pytest.fixture(scope="session")
def git(request: pytest.FixtureRequest) -> str:
    """git's path."""
    return _find_tool(request.config, "git")


@pytest.fixture(scope="session")
def rsync(request: pytest.FixtureRequest) -> str:
    """rsync's path."""
    return _find_tool(request.config, "rsync")


@pytest.fixture(scope="session")
def chromium(request: pytest.FixtureRequest) -> str:
    """Chromium's path."""
    return _find_tool(request.config, "chromium")


@pytest.fixture(scope="session")
def python39(request: pytest.FixtureRequest) -> str:
    """An executable that is Python 3.9: run `[python39, "-I", "-S", folder]`."""
    try:
        return str(python39_maker.make_python39(read_paths().cache, say))
    except Unavailable as reason:
        give_up(request.config, "python39", reason)
        raise


@pytest.fixture
def local_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalWorker]:
    """A real `local` worker in a folder of its own, up from the first submit on."""
    worker = LocalWorker(monkeypatch.setenv)
    try:
        yield worker
    finally:
        worker.close()


@pytest.fixture(scope="module")
def shared_worker() -> Iterator[LocalWorker]:
    """The same for a module's tests that leave the worker as it was."""
    with pytest.MonkeyPatch.context() as patch:
        worker = LocalWorker(patch.setenv)
        try:
            yield worker
        finally:
            worker.close()
