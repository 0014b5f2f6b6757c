"""The script that asks a host, run by a real shell on this machine, with a stand-in for docker."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.carriers import open_session
from runner.errors import ProvisionError, SpecError
from runner.host_answers import read_facts
from runner.host_facts import HostFacts
from runner.model import Host, ImagePin
from runner.provisioner import Overtaken, Provisioner

PIN = ImagePin("cpu", "base:1", "2.13.0", "none", "0", ())
WORKS = """#!/bin/sh
case "$1 $2" in
    "version --format") echo 28.2.2 ;;
    "info --format") echo '{"DockerRootDir": "/d", "Runtimes": {"nvidia": {}}}' ;;
    "image inspect") [ "$5" = base:1 ] && echo '{"Id": "sha256:0", "RepoDigests": []}' ;;
    "image ls") echo "cpu-1 sha256:1" ;;
    "ps -aq") ;;
    "container inspect") echo "no such container" >&2; exit 1 ;;
    *) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""
REFUSES = "#!/bin/sh\necho 'permission denied while trying to connect to docker' >&2; exit 1\n"
Place = Callable[..., Path]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "ho me"
    (home / "bin").mkdir(parents=True)
    for tool in (
        "sh",
        "id",
        "cat",
        "df",
        "tail",
        "printf",
        "mkdir",
        "chmod",
        "mv",
        "chown",
        "find",
        "grep",
        "ls",
        "readlink",
        "rm",
        "rmdir",
        "stat",
    ):
        found = next(p for p in map(Path, ("/usr/bin", "/bin")) if (p / tool).exists())
        (home / "bin" / tool).symlink_to(found / tool)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(home / "bin"))
    return home


def place(home: Path, name: str, text: str) -> None:
    path = home / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def facts_of(workspace: str = "~/runner") -> HostFacts:
    host = Host("box", ssh="local", workspace=workspace)
    with open_session(host) as session:
        return read_facts(session, host, PIN)


def test_a_machine_with_docker(home: Path) -> None:
    place(home, "docker", WORKS)
    read = facts_of()
    assert (read.uid, read.gid) == (os.getuid(), os.getgid())
    assert read.workspace == read.real_workspace == f"{home}/runner"
    assert read.workspace_marks == frozenset() and (read.free_bytes or 0) > 0
    assert read.docker_version == "28.2.2" and read.has_nvidia_runtime
    assert read.base_id == "sha256:0" and read.images == {"cpu-1": "sha256:1"}
    assert read.containers == () and not read.has_nvidia_smi


def test_a_machine_without_docker_and_one_that_refuses(home: Path) -> None:
    assert not facts_of().has_docker
    place(home, "docker", REFUSES)
    read = facts_of()
    assert read.has_docker and read.docker_version is None
    assert "permission denied" in read.docker_error


@pytest.mark.parametrize("workspace", ["~", "~/", "~/link", "/.."])
def test_where_a_workspace_really_is(home: Path, workspace: str) -> None:
    (home / "link").symlink_to(home)
    read = facts_of(workspace)
    assert read.real_workspace in (str(home), "/")


def test_marks_of_a_workspace(home: Path) -> None:
    (home / "runner" / ".ssh").mkdir(parents=True)
    assert facts_of().workspace_marks == {"exists", "folder", "own", "holds-ssh"}
    (home / "file").touch()
    assert facts_of("~/file").workspace_marks == {"exists", "own"}
    assert facts_of("/proc/sys/x/y").real_workspace == "/proc/sys/x/y"


@pytest.mark.skipif(os.getuid() != 0, reason="left out: root: only it can give a folder away")
def test_root_knows_its_workers_own_folder(home: Path) -> None:
    (home / "runner").mkdir()
    os.chown(home / "runner", 1000, 1000)
    assert facts_of().workspace_marks == {"exists", "folder", "stand-in"}
    os.chown(home / "runner", 1001, 1001)
    assert facts_of().workspace_marks == {"exists", "folder"}


def test_cards_of_a_driver_that_knows_no_capabilities(home: Path) -> None:
    place(
        home,
        "nvidia-smi",
        '#!/bin/sh\ncase "$1" in *compute_cap*) echo "Field is not valid"; exit 2 ;; esac\n'
        'echo "0, GPU-a, 11441, 450.80.02, Tesla K80"\n',
    )
    read = facts_of()
    assert read.has_nvidia_smi and read.driver == "450.80.02"
    assert [card.name for card in read.cards] == ["Tesla K80"]


def test_folders_are_made_for_the_owner_alone(home: Path) -> None:
    place(home, "docker", WORKS)
    host = Host("box", ssh="local", env={"A": "b"})
    with open_session(host) as session:
        maker = Provisioner(session, host, PIN, {})
        facts = maker.read()
        plan = maker.plan(facts, rebuild=False)
        maker.write_folders(facts, plan)
        with pytest.raises(Overtaken):
            maker.write_folders(facts, plan)
        assert maker.plan(maker.read(), rebuild=False).generation == plan.generation + 1
    folders = (plan.folders.leases, plan.folders.keys, plan.folders.state)
    record = Path(plan.folders.state) / "worker.json"
    for path in map(Path, (f"{home}/runner", *folders)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert facts_of().worker == plan.worker


def test_docker_words_stand_in_the_error(home: Path) -> None:
    place(home, "docker", WORKS)
    host = Host("box", ssh="local")
    with open_session(host) as session:
        maker = Provisioner(session, host, PIN, {})
        with pytest.raises(ProvisionError, match="could not fetch base image base:1") as caught:
            maker.pull(lambda line: None)
    assert caught.value.advice[0] == "unexpected: pull base:1"
    assert caught.value.advice[-1].strip() == "docker save base:1"
    assert not (home / ".local/state/runner/made").read_text().count("base")


@pytest.mark.parametrize(
    "said", ["error setting rlimit type 8: operation not permitted", "setrlimit `RLIMIT_MEMLOCK`: "
             "Operation not permitted"]
)  # fmt: skip
def test_limits_the_engine_may_not_raise_are_left_out(home: Path, said: str) -> None:
    place(home, "said", said)
    run = """    "run --env-file=/dev/stdin")
        cat > /dev/null
        echo "$*" >> "$HOME/ran"
        case "$*" in *memlock*) cat "$HOME/bin/said" >&2; exit 126 ;; esac ;;
"""
    place(home, "docker", WORKS.replace('    *) echo "unexpected', run + '    *) echo "unexpected'))
    host = Host("box", ssh="local")
    with open_session(host) as session:
        maker = Provisioner(session, host, PIN, {})
        facts = maker.read()
        maker.start(maker.plan(facts, rebuild=False))
    first, second = (home / "ran").read_text().splitlines()
    assert second == first.replace("--ulimit=memlock=-1 --ulimit=stack=67108864 ", "")
    assert first != second and "--cap-drop=ALL" in second


def test_a_variable_docker_cannot_pass_on_is_refused(home: Path) -> None:
    place(home, "docker", WORKS)
    host = Host("box", ssh="local", env={"A": "two\nlines"})
    with open_session(host) as session, pytest.raises(SpecError, match=r"env\.A") as caught:
        Provisioner(session, host, PIN, {}).read()
    assert "lines" not in str(caught.value)
