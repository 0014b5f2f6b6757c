"""Ways into a worker, on `local`: ssh, TensorBoard, sessions that lease GPUs.

The sshd, the TensorBoard and the command line are the real ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pty
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
import venv
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import control
import paths
import presence
import processes
import pytest
import records
import sockets

from runner.app import forwarding, logins
from runner.carriers import worker_login
from runner.endpoint import Request
from runner.errors import RunnerError, WorkerError
from tests.helpers.local_worker import LocalWorker
from tests.helpers.wait import stays, wait_for
from tests.rig.gpus import FakeGpus, place_tool

ROOT = Path(__file__).parents[2]
Client = subprocess.Popen[str]
Begin = Callable[..., Client]

pytestmark = pytest.mark.skipif(
    shutil.which("sshd", path="/usr/sbin:/usr/bin") is None, reason="left out: sshd: not installed"
)


@pytest.fixture
def worker(local_worker: LocalWorker) -> LocalWorker:
    """One whose project has a name that needs quoting."""
    odd = local_worker.root / "pröj ekt 100%h"
    local_worker.project.rename(odd)
    local_worker.project = odd
    return local_worker


@pytest.fixture
def begin(worker: LocalWorker) -> Iterator[Begin]:
    """Starts a client; all are ended."""
    begun: list[Client] = []

    def start(*words: str) -> Client:
        process = subprocess.Popen(
            [sys.executable, "-m", "runner", *words],
            cwd=worker.project,
            env=environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        with process:
            if process.poll() is None:
                process.kill()


def environ() -> dict[str, str]:
    return dict(os.environ, PYTHONPATH=str(ROOT))


def run(
    worker: LocalWorker, *words: str, input: bytes = b"", limit_s: float = 60
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "runner", *words],
        cwd=worker.project,
        env=environ(),
        input=input,
        capture_output=True,
        timeout=limit_s,
    )


def url_of(client: Client) -> str:
    """What it prints once all is up."""
    assert client.stdout is not None
    line = client.stdout.readline().strip()
    assert line.startswith("http://127.0.0.1:"), (line, client.poll())
    return line


def get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=20) as answer:
        answer.read()
        return int(answer.status)


def answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        return get(url) == 200
    return False


def workspace(worker: LocalWorker) -> paths.Workspace:
    return paths.Workspace(str(worker.workspace))


def serving(worker: LocalWorker) -> list[int]:
    """Worker programs that answer clients of this workspace."""
    return [
        pid
        for pid, words in worker.machinery().items()
        if "supervis" not in words and " dispatcher" not in words and "-c" in words.split()
    ]


# -- TensorBoard -------------------------------------------------------------------------------


def test_tensorboard_is_seen_by_two_at_once_and_no_port_is_open_for_it(
    worker: LocalWorker, begin: Begin
) -> None:
    clients = [begin("tensorboard"), begin("tensorboard", "host=local", "--json")]
    first = url_of(clients[0])
    assert clients[1].stdout is not None
    text = ""
    while not text.endswith("}\n"):
        text += clients[1].stdout.readline()
    document = json.loads(text)
    assert (document["format"], document["service"], document["run"]) == (1, "tensorboard", None)
    second = document["url"]
    assert first != second
    answered: list[bool] = []
    threads = [
        threading.Thread(target=lambda url=url: answered.append(answers(url)))
        for url in [first, second] * 12
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answered == [True] * 24
    path = sockets.find(workspace(worker), "tensorboard")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    pid = control.ask(workspace(worker), "getProcessInfo", "tensorboard")["pid"]
    assert listening(pid) == []
    clients[0].send_signal(signal.SIGINT)
    _, said = clients[0].communicate(timeout=20)
    assert (clients[0].returncode, said) == (130, "")


def test_tensorboard_shows_what_a_script_wrote_beside_itself(
    worker: LocalWorker, begin: Begin
) -> None:
    writers: Any = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    protos: Any = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    for folder in ("logs/mine-b2x7m", "code/mine-b2x7m/runs/exp__1"):
        writer = writers.EventFileWriter(str(worker.workspace / folder))
        summary = protos.Event().summary.__class__()
        summary.value.add(tag="charts/episodic_return", simple_value=1.0)
        writer.add_event(protos.Event(step=1, wall_time=1.0, summary=summary))
        writer.close()
    url = url_of(begin("tensorboard"))

    def are_both_shown() -> bool:
        with urllib.request.urlopen(url + "data/runs", timeout=20) as answer:
            return sorted(json.load(answer)) == ["mine-b2x7m", "mine-b2x7m.runs/exp__1"]

    wait_for(are_both_shown, 60, "both runs in TensorBoard", step_s=0.5)


def listening(pid: int) -> list[str]:
    """TCP ports on which a process listens."""
    inodes = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(each))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]


def test_a_service_that_is_killed_and_a_link_that_is_lost_come_back(
    worker: LocalWorker, begin: Begin
) -> None:
    client = begin("tensorboard")
    url = url_of(client)
    killed = control.ask(workspace(worker), "getProcessInfo", "tensorboard")["pid"]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: answers(url), 60, "TensorBoard after its end")
    assert control.ask(workspace(worker), "getProcessInfo", "tensorboard")["pid"] != killed
    before = serving(worker)
    assert len(before) == 1
    os.kill(before[0], signal.SIGKILL)
    wait_for(lambda: serving(worker) not in ([], before), 30, "another conversation")
    wait_for(lambda: answers(url), 30, "TensorBoard over another conversation")
    # supervisord, too: its services end with it, and are started again by the next one
    supervisor = worker.supervisor
    before = [control.ask(workspace(worker), "getProcessInfo", "tensorboard")["pid"]]
    lock = records.wait_lock(workspace(worker).start_lock, 5)
    assert lock is not None
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: not processes.living(before), 20, "the end of its TensorBoard")
    stays(lambda: client.poll() is None, 2.5, "a client that sees no supervisord")
    os.close(lock)
    wait_for(lambda: worker.supervisor not in (0, supervisor), 30, "another supervisord")
    wait_for(lambda: answers(url), 60, "TensorBoard below another supervisord")
    assert client.poll() is None


def test_a_client_that_is_killed_leaves_no_process_and_an_idle_worker_ends(
    worker: LocalWorker, begin: Begin
) -> None:
    worker.set_env("RUNNER_IDLE_END_S", "0.2")
    client = begin("tensorboard")
    url = url_of(client)
    stays(lambda: worker.dispatcher, 1.5, "a worker that somebody looks into")
    assert answers(url)
    assert presence.is_there(workspace(worker))
    pid = control.ask(workspace(worker), "getProcessInfo", "tensorboard")["pid"]
    client.kill()
    wait_for(lambda: not worker.machinery(), 30, "the end of the idle worker")
    assert not processes.living([pid])
    wait_for(lambda: not sockets.folders(workspace(worker)), 10, "the end of its folder")


def test_a_port_of_this_machine_that_is_taken_and_words_that_are_wrong(
    worker: LocalWorker,
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = run(worker, "tensorboard", f"port={port}")
        assert done.returncode == 2 and f"port {port} of this machine".encode() in done.stderr
    for words, told in (
        (["lab"], b"lab needs host=H"),
        (["lab", "host=local", "port=x"], b"port is 'x'"),
        (["shell", "host=local", "--"], b"no command after --"),
        (["shell", "host=local", "gpus=-1"], b"gpus is '-1'"),
    ):
        done = run(worker, *words)
        assert (done.returncode, done.stdout) == (2, b""), done
        assert told in done.stderr
    assert worker.machinery() == {}


def test_a_lab_that_is_not_installed_is_one_line_and_a_way_out(worker: LocalWorker) -> None:
    bare = worker.root / "bare"
    venv.create(bare, symlinks=True, with_pip=False)
    (own,) = bare.glob("lib/python*/site-packages")
    (own / "supervisor").symlink_to(str(distribution("supervisor").locate_file("supervisor")))
    # the client finds its own packages, which jobs of this Python do not
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    done = subprocess.run(
        [bare / "bin/python", "-m", "runner", "lab", "host=local"],
        cwd=worker.project,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (4, b""), done.stderr
    (line,) = done.stderr.decode().splitlines()
    assert "jupyterlab is not installed for" in line and "-m pip install jupyterlab" in line


def test_what_keeps_a_service_from_starting_is_told_and_stop_ends_it(
    worker: LocalWorker, begin: Begin
) -> None:
    in_the_way = Path(sockets.find(workspace(worker), "tensorboard"))
    in_the_way.mkdir()
    done = run(worker, "tensorboard")
    assert (done.returncode, done.stdout) == (4, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("local: TensorBoard does not start: TensorBoard: "), line
    assert str(in_the_way) in line
    in_the_way.rmdir()
    client = begin("tensorboard")
    assert answers(url_of(client))
    pid = control.ask(workspace(worker), "getProcessInfo", "tensorboard")["pid"]
    # also while somebody watches, whose command ends with it
    assert run(worker, "tensorboard", "--stop").returncode == 0
    assert not processes.living([pid])
    assert client.wait(20) == 4
    assert control.was_stopped(workspace(worker), "tensorboard")
    assert answers(url_of(begin("tensorboard")))


def test_who_does_not_read_takes_little_memory_and_holds_up_nobody(worker: LocalWorker) -> None:
    """A server of our own stands where Jupyter would listen."""
    size = 64 << 20
    server = socket.socket(socket.AF_UNIX)
    server.bind(sockets.find(workspace(worker), "jupyter"))
    server.listen()

    def serve() -> None:
        for _ in range(2):
            connection, _ = server.accept()
            threading.Thread(target=flood, args=(connection, size), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    target = forwarding.Target("jupyter")
    with worker.ctx.connect(worker.ctx.host("local")) as link:
        ends = []
        for _ in range(2):
            mine, carried = socket.socketpair()
            request = forwarding.open_connection(link, target, forwarding.WINDOW)
            threading.Thread(target=carry, args=(request, carried), daemon=True).start()
            ends.append(mine)
        stuck, reading = ends
        (served_by,) = serving(worker)
        before = memory(served_by)
        got = 0
        reading.settimeout(30)
        while piece := reading.recv(1 << 20):
            got += len(piece)
        assert got == size
        assert memory(served_by) - before < 16 << 20
        stuck.settimeout(30)
        assert stuck.recv(100)
        for each in ends:
            each.close()
    server.close()


def carry(request: Request, connection: socket.socket) -> None:
    with contextlib.suppress(RunnerError):  # the end of the test ends it
        forwarding.carry(request, connection, forwarding.WINDOW)


def flood(connection: socket.socket, size: int) -> None:
    with connection, contextlib.suppress(OSError):
        for _ in range(size >> 20):
            connection.sendall(bytes(1 << 20))


def memory(pid: int) -> int:
    """Its resident bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_only_this_user_is_let_in(worker: LocalWorker) -> None:
    listener = forwarding.Listener()
    with socket.create_connection(("127.0.0.1", listener.port)) as mine:
        port = mine.getsockname()[1]
        assert forwarding.connection_owner(port, listener.port) == os.getuid()
        accepted = listener.accept(5)
        assert accepted is not None
        accepted.close()
    if os.getuid() == 0:
        stranger = (
            "import encodings.idna, os, socket, sys; os.setuid(65534); "
            f"s = socket.create_connection(('127.0.0.1', {listener.port})); "
            "s.settimeout(20); sys.exit(7 if s.recv(1) == b'' else 0)"
        )
        with subprocess.Popen([sys.executable, "-I", "-c", stranger]) as other:
            assert listener.accept(20) is None
            assert other.wait(20) == 7, "it was closed without a byte"
    listener.close()
    assert forwarding.connection_owner(1, 2) == -1


def test_a_worker_forwards_to_nothing_else(worker: LocalWorker) -> None:
    with worker.ctx.connect(worker.ctx.host("local")) as link:
        for to, run_id, window, code in (
            ("127.0.0.1:22", None, 65536, "bad-request"),
            ("../supervisor", None, 65536, "bad-request"),
            ("supervisor", None, 65536, "bad-request"),
            ("hold", None, 65536, "bad-request"),
            ("ssh", None, 1 << 30, "bad-request"),
            ("ssh", "../../x", 65536, "unknown-run"),
        ):
            request = link.open("forward", to=to, run=run_id, window=window)
            with pytest.raises(RunnerError) as refused:
                request.event()
            assert refused.value.code == code


# -- ssh ---------------------------------------------------------------------------------------


def test_a_command_is_run_as_typed_and_its_status_is_ours(worker: LocalWorker) -> None:
    words = ["a  b", "*", "", "$HOME", "--help", "host=z", "q\"'\\", "ü\n!", "100%"]
    program = (
        "import os, sys; e = os.environ; sys.stdin.read(); "
        "print(ascii([sys.argv[1:], os.getcwd(), e['HOME'], e['CUDA_VISIBLE_DEVICES']])); "
        "print('said', file=sys.stderr); sys.exit(9)"
    )
    done = run(worker, "shell", "host=local", "--", "python3", "-c", program, *words)
    assert done.returncode == 9, done
    there = worker.workspace
    assert done.stdout.decode().strip() == ascii([words, str(there), str(there / ".home"), ""])
    assert done.stderr == b"said\n"
    assert worker.machinery() == {}, "a shell starts no worker"
    keys = worker.root / "keys" / "authorized_keys"
    assert stat.S_IMODE(keys.parent.stat().st_mode) & 0o022 == 0
    assert len(keys.read_text().splitlines()) == 1
    piped = run(worker, "shell", "host=local", "--", "cat", input=b"\0\xff" * 500_000)
    assert piped.stdout == b"\0\xff" * 500_000
    assert len(keys.read_text().splitlines()) == 1
    own = worker.project / ".runner" / "ssh" / "id_ed25519"
    assert stat.S_IMODE(own.stat().st_mode) == 0o600


@pytest.fixture
def config(worker: LocalWorker) -> Path:
    """An ssh configuration as `ssh-config` prints it."""
    done = run(worker, "ssh-config", "host=local")
    assert (done.returncode, done.stderr) == (0, b"")
    path = worker.root / "ssh_config"
    path.write_bytes(done.stdout)
    return path


def ssh(config: Path, *words: str, limit_s: float = 60) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["ssh", "-F", config, *words],
        cwd="/",
        env=environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=limit_s,
    )


def test_the_printed_configuration_serves_ssh_and_its_kin(
    worker: LocalWorker, config: Path, tmp_path: Path
) -> None:
    assert ssh(config, "runner-local", "echo $0; exit 3").returncode == 3
    login = ssh(config, "runner-local", "bash -lc 'echo $PATH'").stdout.decode()
    assert login.startswith(f"{Path(sys.executable).parent}:")
    (tmp_path / "here").write_bytes(os.urandom(300_000))
    copied = subprocess.run(
        ["scp", "-F", config, tmp_path / "here", f"runner-local:{tmp_path}/there"],
        env=environ(),
        capture_output=True,
        timeout=60,
    )
    assert copied.returncode == 0, copied
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()
    back = ssh(config, "-R", "0:127.0.0.1:1", "-oExitOnForwardFailure=yes", "runner-local", "true")
    assert back.returncode == 255 and b"remote port forwarding failed" in back.stderr
    outside = ssh(config, "-W", "192.0.2.1:80", "runner-local")
    assert outside.returncode != 0 and b"prohibited" in outside.stderr
    agent = ssh(config, "-A", "runner-local", 'echo "[$SSH_AUTH_SOCK]"')
    assert agent.stdout.strip() == b"[]"


def test_another_key_and_another_host_key_are_refused(worker: LocalWorker, config: Path) -> None:
    other = worker.root / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    text = config.read_text().replace(
        str(worker.project / ".runner/ssh/id_ed25519").replace("%", "%%"), str(other)
    )
    (worker.root / "wrong_key").write_text(text)
    assert str(other) in text
    refused = ssh(worker.root / "wrong_key", "runner-local", "true")
    assert refused.returncode == 255 and b"Permission denied (publickey)" in refused.stderr
    known = worker.project / ".runner/ssh/known_hosts"
    before = known.read_text()
    mine = worker.workspace / ".runner/ssh"
    shutil.rmtree(mine)
    assert ssh(config, "runner-local", "true").returncode == 0, "the worker itself told its new key"
    assert known.read_text() != before and len(known.read_text().splitlines()) == 1
    # somebody on the way who has another key
    wrong = worker.root / "known_wrong"
    wrong.write_text(before)
    text = config.read_text().replace(str(known).replace("%", "%%"), str(wrong))
    (worker.root / "wrong_host").write_text(text)
    refused = ssh(worker.root / "wrong_host", "runner-local", "true")
    assert refused.returncode == 255 and b"verification failed" in refused.stderr


def test_keys_that_others_could_change_let_nobody_in(worker: LocalWorker, config: Path) -> None:
    (worker.root / "keys").chmod(0o777)
    refused = ssh(config, "runner-local", "true")
    assert refused.returncode == 255 and b"others could add keys" in refused.stderr


def test_a_client_that_is_killed_leaves_nothing_of_its_session(
    worker: LocalWorker, begin: Begin
) -> None:
    mark = worker.root / "pid"
    client = begin("shell", "host=local", "--", "sh", "-c", f"sleep 987 & echo $! > '{mark}'; wait")
    pid = int(wait_for(lambda: mark.exists() and mark.read_text().strip(), 30, "a session"))
    assert processes.living([pid])
    client.kill()
    wait_for(lambda: not processes.living([pid]), 30, "the end of what it ran")
    wait_for(lambda: not worker.machinery(), 30, "the end of all that served it")


def test_a_shell_is_a_login_shell_on_a_terminal(worker: LocalWorker) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(worker.project)
        os.environ.update(environ(), PS1="$ ", TERM="dumb")
        os.execv(sys.executable, [sys.executable, "-m", "runner", "shell", "host=local"])
    said = b""
    sent = False
    with contextlib.suppress(OSError):  # the terminal is gone once the shell is
        while piece := os.read(terminal, 65536):
            said += piece
            if not sent and b"$ " in said or b"# " in said and not sent:
                os.write(terminal, b"echo tty=$(tty) $((6*7)) [$PWD]; stty -a | head -1; exit 4\n")
                sent = True
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 4, said
    assert b"tty=/dev/pts/" in said and f"42 [{worker.workspace}]".encode() in said


def test_where_there_is_no_terminal_a_shell_says_so_and_a_command_goes(tmp_path: Path) -> None:
    login = worker_login.Login("box", "u", "runner-box", tmp_path, tmp_path, ("x",))
    assert logins.has_terminal(login, [], wanted=True)
    none = dataclasses.replace(login, no_terminal="/dev/pts is odd")
    assert not logins.has_terminal(none, ["ls"], wanted=True)
    assert not logins.has_terminal(none, [], wanted=False)
    with pytest.raises(WorkerError, match="box: a shell has no terminal there: /dev/pts is odd"):
        logins.has_terminal(none, [], wanted=True)


def test_odd_paths_are_quoted_and_what_ssh_cannot_read_is_refused(tmp_path: Path) -> None:
    login = worker_login.Login(
        "h", "u", "runner-h", tmp_path / "a b%h" / "id", tmp_path / "k", ("sh", "-c", "x 'y' 100%")
    )
    lines = "\n".join(worker_login.config_block(login))
    assert f'IdentityFile "{tmp_path}/a b%%h/id"' in lines
    assert "100%%" in lines or "0045" in lines
    bad = worker_login.Login("h", "u", "a", tmp_path / 'a"b', tmp_path, ("x",))
    with pytest.raises(Exception, match="ssh cannot read a path with such signs"):
        worker_login.config_block(bad)


# -- with GPUs ---------------------------------------------------------------------------------


@pytest.fixture
def cards(worker: LocalWorker) -> Iterator[FakeGpus]:
    made = FakeGpus(worker.root / "gpus")
    made.set_cards(1)
    place_tool(worker.root / "bin", made.folder)
    worker.set_env("PATH", f"{worker.root / 'bin'}{os.pathsep}{os.environ['PATH']}")
    try:
        yield made
    finally:
        made.close()


def doors(worker: LocalWorker) -> list[str]:
    return sorted(path.name for path in (worker.workspace / "runs").glob("shell-*"))


def test_a_shell_with_gpus_is_a_run_that_leases_them_and_ends_with_it(
    worker: LocalWorker, begin: Begin, cards: FakeGpus
) -> None:
    told = "from os import *; e = environ; "
    told += "print(e['CUDA_VISIBLE_DEVICES'], e['RUNNER_RUN'], getcwd())"
    first = begin(
        "shell", "host=local", "gpus=1", "--", "sh", "-c", f'python3 -c "{told}"; sleep 987'
    )
    (run_id,) = wait_for(lambda: doors(worker), 30, "a run")
    assert first.stdout is not None
    line = first.stdout.readline().split()
    assert line == [cards.uuids[0], run_id, str(worker.workspace / "code" / run_id)]
    assert worker.status(run_id).status.gpus[0]["uuid"] == cards.uuids[0]
    # the next one waits for the card, and gives up
    second = begin("shell", "host=local", "gpus=1", "--", "true")
    wait_for(lambda: len(doors(worker)) == 2, 30, "another run")
    (waiting,) = set(doors(worker)) - {run_id}
    wait_for(lambda: worker.status(waiting).status.reason, 30, "why it waits")
    second.send_signal(signal.SIGINT)
    _, said = second.communicate(timeout=30)
    assert second.returncode == 130 and f"{waiting} is cancelled" in said
    assert worker.wait(waiting).status.outcome == "cancelled"
    # the client is killed in the middle: the run ends, and the card is free again
    first.kill()
    assert worker.wait(run_id).status.outcome == "done"
    third = run(worker, "shell", "host=local", "gpus=1", "--", "sh", "-c", "exit 5")
    assert third.returncode == 5


def test_cancel_ends_a_session_with_gpus(
    worker: LocalWorker, begin: Begin, cards: FakeGpus
) -> None:
    client = begin("shell", "host=local", "gpus=1", "--", "sh", "-c", "echo in; sleep 987")
    assert client.stdout is not None
    assert client.stdout.readline() == "in\n"
    (run_id,) = doors(worker)
    members = worker.members(run_id)
    assert len(members) > 2, "the door, sshd and what it serves belong to the run"
    worker.cancel(run_id)
    assert client.wait(30) != 0
    assert worker.wait(run_id).status.outcome == "cancelled"
    assert not processes.living(members)
