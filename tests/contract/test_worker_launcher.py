"""One attempt, for real: what a job is told, what becomes of its ends, its bytes and its code."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from runner.errors import WrongState
from tests.helpers.local_worker import LocalWorker


def variables(worker: LocalWorker, run: str) -> dict[str, str]:
    """What a job that ran `python -c PRINT_ENV` printed."""
    out: dict[str, str] = json.loads(worker.log(run))
    return out


PRINT_ENV = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.mark.parametrize(
    ("command", "cause", "text"),
    [
        (["python", "-c", "raise SystemExit(3)"], {"kind": "exit", "code": 3}, "exit 3"),
        (["no-such-thing"], {"kind": "exit", "code": 127}, "no-such-thing: no such program"),
        (["/etc/passwd"], {"kind": "exit", "code": 126}, "exit 126"),
        (["bash", "-c", "kill -9 $$"], {"kind": "signal", "signal": "SIGKILL"}, "SIGKILL"),
        (["bash", "-c", "kill -SEGV $$"], {"kind": "signal", "signal": "SIGSEGV"}, "SIGSEGV"),
        (["bash", "-c", "exit 143"], {"kind": "exit", "code": 143}, "exit 143"),
    ],
)
def test_an_own_fault_ends_the_run_and_is_named(
    shared_worker: LocalWorker, command: list[str], cause: dict[str, object], text: str
) -> None:
    run = shared_worker.submit(*command)
    status = shared_worker.wait(run).status
    assert (status.state, status.outcome) == ("ended", "failed")
    assert status.cause is not None
    assert cause.items() <= status.cause.items()
    assert text in status.cause["text"]
    assert status.started_at is not None
    assert shared_worker.causes(run) == [cause["kind"]]


def test_a_program_that_is_not_there_says_so_in_the_log(shared_worker: LocalWorker) -> None:
    run = shared_worker.submit("no-such-thing")
    shared_worker.wait(run)
    assert shared_worker.log(run) == b"runner: no-such-thing: no such program\n"


def test_a_command_that_a_shell_misses_is_not_taken_for_the_shell(
    shared_worker: LocalWorker,
) -> None:
    run = shared_worker.submit("bash", "-c", "no-such-thing")
    cause = shared_worker.wait(run).status.cause
    assert cause is not None
    assert cause["text"] == "exit 127"


def test_what_a_job_is_told(shared_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TYPED_IN_THE_SHELL", "1")
    run = shared_worker.submit("python", "-c", PRINT_ENV, words=("env.MINE=a b",))
    assert shared_worker.wait(run).status.outcome == "done"
    env = variables(shared_worker, run)
    workspace = str(shared_worker.workspace)
    assert env["RUNNER_RUN"] == run
    assert env["RUNNER_ATTEMPT"] == "1"
    assert env["RUNNER_CODE"] == env["PWD"] == f"{workspace}/code/{run}"
    assert env["RUNNER_CHECKPOINTS"] == f"{workspace}/checkpoints/{run}"
    assert env["RUNNER_LOGS"] == f"{workspace}/logs/{run}"
    assert env["RUNNER_PROGRESS"] == f"{workspace}/logs/{run}/progress.jsonl"
    assert env["RUNNER_RESUME"] == ""
    assert json.loads(Path(env["RUNNER_PARAMS"]).read_text()) == {}
    assert float(env["RUNNER_GRACE_S"]) == 25
    assert env["HOME"] == f"{workspace}/.home"
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["MINE"] == "a b"
    assert "UTF-8" in env.get("LC_ALL", "") + env.get("LC_CTYPE", "") + env.get("LANG", "")
    assert [env[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] == ["0", "1", "0"]
    assert "TYPED_IN_THE_SHELL" not in env
    assert "RUNNER_WORKSPACE" not in env
    assert not [name for name in env if name.startswith("SUPERVISOR")]


def test_text_beyond_ascii_can_be_printed_under_any_locale(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LANG", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LC_ALL", "POSIX")
    run = local_worker.python("import os; print(chr(252), os.environ['LC_ALL'])")
    assert local_worker.wait(run).status.outcome == "done"
    assert local_worker.log(run) == "ü C.UTF-8\n".encode()


def test_the_argv_typed_is_the_argv_run(shared_worker: LocalWorker) -> None:
    words = ["a b", "*", ";x", "", "$HOME", "100%h:%p", "#x", "'", "ü", "two\nlines"]
    run = shared_worker.python("import json, sys; print(json.dumps(sys.argv[1:]))", *words)
    shared_worker.wait(run)
    assert json.loads(shared_worker.log(run)) == words


def test_log_bytes_are_the_bytes_written(shared_worker: LocalWorker) -> None:
    code = "import os; [os.write(1 + n % 2, bytes(range(256)) * 50) for n in range(40)]"
    run = shared_worker.python(code)
    shared_worker.wait(run)
    assert shared_worker.tail(run) == bytes(range(256)) * 50 * 40
    assert shared_worker.status(run).status.log_bytes == 256 * 50 * 40


def test_lines_show_while_the_job_runs(shared_worker: LocalWorker) -> None:
    run = shared_worker.python("import time; print('begun'); time.sleep(60)")
    shared_worker.until_logged(run, "begun")
    shared_worker.cancel(run, now=True)


def test_progress_lines_are_the_runs_progress(shared_worker: LocalWorker) -> None:
    code = """
import json, os, time
with open(os.environ["RUNNER_PROGRESS"], "a") as out:
    for step in (10, 20):
        row = {"t": time.time(), "step": step, "metrics": {"reward": step / 2}}
        out.write(json.dumps(row) + "\\n")
    out.write(json.dumps({"fault": "nan", "step": 20, "text": "loss is nan"}) + "\\n")
    out.write('{"torn')
raise SystemExit(1)
"""
    run = shared_worker.python(code)
    status = shared_worker.wait(run).status
    assert (status.step, status.metrics) == (20, {"reward": 10.0})
    assert status.cause is not None
    assert (status.cause["kind"], status.cause["text"]) == ("nan", "loss is nan")


CHECKPOINTS = """
import hashlib, json, os, pathlib
top = pathlib.Path(os.environ["RUNNER_CHECKPOINTS"])
def save(step, damaged=False):
    place = top / f"step-{step:06d}.tmp"
    place.mkdir()
    data = b"x" * step
    (place / "model.pt").write_bytes(data[:-1] if damaged else data)
    files = {"model.pt": {"bytes": step, "sha256": hashlib.sha256(data).hexdigest()}}
    body = {"format": 1, "step": step, "metrics": {"eval/return": step / 10}, "files": files}
    (place / "manifest.json").write_text(json.dumps(body))
    place.rename(top / f"step-{step:06d}")
resume = os.path.basename(os.environ["RUNNER_RESUME"])
print("attempt", os.environ["RUNNER_ATTEMPT"], "resume", resume)
"""


def test_checkpoints_are_described_and_the_next_attempt_is_told_the_newest_good_one(
    shared_worker: LocalWorker,
) -> None:
    code = (
        CHECKPOINTS
        + """
if os.environ["RUNNER_ATTEMPT"] == "1":
    save(100); save(200); save(300, damaged=True)
    (top / "step-000400.tmp").mkdir()
    print("saved", flush=True)
    import time; time.sleep(60)
"""
    )
    run = shared_worker.python(code)
    shared_worker.until_logged(run, "saved")
    shared_worker.kill(shared_worker.launcher(run))
    status = shared_worker.wait(run).status
    assert status.outcome == "done"
    log = shared_worker.log(run).decode()
    assert "attempt 1 resume \n" in log
    assert "attempt 2 resume step-000200\n" in log
    assert "runner: checkpoint step-000300 did not verify" in log
    assert shared_worker.causes(run) == ["launcher-lost", None]
    found = {c["name"]: c for c in shared_worker.status(run).status.checkpoints}
    assert sorted(found) == ["step-000100", "step-000200"]
    assert found["step-000200"]["step"] == 200
    assert found["step-000200"]["bytes"] == 200
    assert found["step-000200"]["metrics"] == {"eval/return": 20.0}


def test_the_next_attempt_gets_the_snapshot_back_and_keeps_what_the_job_made(
    shared_worker: LocalWorker,
) -> None:
    shared_worker.file("pkg/code.py", "VALUE = 'snapshot'\n")
    shared_worker.file("main.py", "from pkg import code\n")
    code = """
import os, sys, time
sys.path.insert(0, os.getcwd())
if os.environ["RUNNER_ATTEMPT"] == "1":
    os.unlink("pkg/code.py")
    open("pkg/code.py", "w").write("VALUE = 'changed'")
    os.rename("pkg", "old"); os.symlink("old", "pkg")
    open("made.txt", "w").write("kept")
    print("changed", flush=True); time.sleep(60)
from pkg import code
print(code.VALUE, open("made.txt").read(), open("old/code.py").read())
"""
    run = shared_worker.python(code)
    shared_worker.until_logged(run, "changed")
    shared_worker.kill(shared_worker.launcher(run))
    assert shared_worker.wait(run).status.outcome == "done"
    assert shared_worker.log(run).splitlines()[-1] == b"snapshot kept VALUE = 'changed'"


def test_code_files_are_read_only_and_folders_are_not(shared_worker: LocalWorker) -> None:
    shared_worker.file("sub/code.py", "x = 1\n")
    script = shared_worker.project / "tool.sh"
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    code = """
import os, subprocess
print(oct(os.stat("sub/code.py").st_mode & 0o777), oct(os.stat("tool.sh").st_mode & 0o777))
os.makedirs("runs/deep"); open("sub/new.txt", "w").write("x")
subprocess.run(["./tool.sh"], check=True)
"""
    run = shared_worker.python(code)
    assert shared_worker.wait(run).status.outcome == "done"
    assert shared_worker.log(run) == b"0o444 0o555\nran\n"


def test_a_run_keeps_its_code_when_the_project_changes(shared_worker: LocalWorker) -> None:
    shared_worker.file("late.py", "VALUE = 'old'\n")
    gate = shared_worker.root / "gate"
    code = f"""
import os, sys, time
print("begun", flush=True)
while not os.path.exists({str(gate)!r}): time.sleep(0.01)
sys.path.insert(0, os.getcwd())
import late; print(late.VALUE)
"""
    first = shared_worker.python(code)
    shared_worker.until_logged(first, "begun")
    shared_worker.file("late.py", "VALUE = 'new'\n")
    second = shared_worker.python(code)
    shared_worker.until_logged(second, "begun")
    gate.touch()
    shared_worker.wait(first)
    shared_worker.wait(second)
    assert shared_worker.log(first) == b"begun\nold\n"
    assert shared_worker.log(second) == b"begun\nnew\n"


def test_a_daemon_that_a_good_job_leaves_behind_is_ended(shared_worker: LocalWorker) -> None:
    pid_file = shared_worker.root / "daemon.pid"
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({str(pid_file)!r}, "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists({str(pid_file)!r}) or not open({str(pid_file)!r}).read(): time.sleep(0.01)
"""
    run = shared_worker.python(code)
    status = shared_worker.wait(run).status
    assert status.outcome == "done"
    assert shared_worker.members(run) == set()
    assert not Path(f"/proc/{pid_file.read_text()}").exists()
    assert shared_worker.attempts(run)[0]["processes"] == 1


def test_one_rank_may_join_a_group_of_its_own(shared_worker: LocalWorker) -> None:
    pytest.importorskip("torch", reason="left out: torch: not installed")
    code = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.ones(1); dist.all_reduce(t); print(t.item())
dist.destroy_process_group()
"""
    run = shared_worker.python(code)
    assert shared_worker.wait(run, 60).status.outcome == "done", shared_worker.log(run)
    assert shared_worker.log(run) == b"1.0\n"


def test_a_run_may_not_start_a_worker_but_its_own(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_RUN", "cmd-1")
    monkeypatch.delenv("RUNNER_WORKSPACE")
    monkeypatch.setenv("HOME", str(local_worker.root))
    with pytest.raises(WrongState, match="RUNNER_WORKSPACE"):
        local_worker.submit("true")
    monkeypatch.setenv("RUNNER_WORKSPACE", str(local_worker.workspace))
    run = local_worker.submit("true")
    assert local_worker.wait(run).status.outcome == "done"


def test_a_workspace_of_an_odd_name(local_worker: LocalWorker) -> None:
    odd = local_worker.root / "my wö%rk; (x) 'q'"
    local_worker.workspace = odd
    local_worker.set_env("RUNNER_WORKSPACE", os.fspath(odd))
    run = local_worker.submit("pwd")
    assert local_worker.wait(run).status.outcome == "done"
    assert local_worker.log(run).decode() == f"{odd}/code/{run}\n"
    local_worker.kill(local_worker.supervisor)
    run = local_worker.submit("true")
    assert local_worker.wait(run).status.outcome == "done"


def test_term_reaches_a_job_once_and_it_has_its_grace(shared_worker: LocalWorker) -> None:
    code = """
import os, signal, time
count = 0
def save(*_):
    global count
    count += 1
    print("TERM", count, flush=True)
signal.signal(signal.SIGTERM, save)
print("begun", flush=True)
end = None
while count == 0 or time.time() < end:
    time.sleep(0.01)
    if count and end is None: end = time.time() + 1.5
print("saved", flush=True)
"""
    run = shared_worker.python(code, words=("grace=20s",))
    shared_worker.until_logged(run, "begun")
    (report,) = shared_worker.cancel(run)
    assert shared_worker.log(run) == b"begun\nTERM 1\nsaved\n"
    assert report.outcome == "cancelled"
    assert report.left == ()
    assert 1.4 < report.seconds < 10


def test_signals_reach_the_job_as_if_it_had_been_typed(shared_worker: LocalWorker) -> None:
    code = "from signal import *; print([s.name for s in Signals if getsignal(s) == SIG_IGN])"
    run = shared_worker.python(code)
    shared_worker.wait(run)
    # Python itself ignores these two
    assert shared_worker.log(run) == b"['SIGPIPE', 'SIGXFSZ']\n"


@pytest.mark.parametrize("words", [(), ("nproc=2",)])
def test_a_card_without_memory_is_named_for_a_job_that_knows_nothing_of_us(
    shared_worker: LocalWorker, words: tuple[str, ...]
) -> None:
    code = """
import os, time
class OutOfMemoryError(RuntimeError): __module__ = "torch"
def step(): raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
if os.environ["RANK"] == "0": step()
time.sleep(600)
"""
    run = shared_worker.python(code, words=(*words, "grace=1s"))
    cause = shared_worker.wait(run, 60).status.cause
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert cause == {
        "kind": "cuda-oom",
        "rank": 0,
        "code": 1,
        "text": line,
        "traceback": f'File "<string>", line 4, in step\n{line}',
    }


def test_where_a_program_broke_stands_in_its_cause(shared_worker: LocalWorker) -> None:
    run = shared_worker.python("def f(): return {}['x']\nf()")
    cause = shared_worker.wait(run).status.cause
    assert cause is not None
    assert (cause["kind"], cause["text"]) == ("exit", "exit 1")
    assert cause["traceback"] == "File \"<string>\", line 1, in f\nKeyError: 'x'"


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_job_leaves_no_core_unless_it_asks_for_one(
    shared_worker: LocalWorker, nproc: int
) -> None:
    code = """
import os, resource
soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
print(soft, hard)
"""
    shared_worker.wait(shared_worker.python("pass"))
    hard = resource.prlimit(shared_worker.dispatcher, resource.RLIMIT_CORE)[1]
    resource.prlimit(shared_worker.dispatcher, resource.RLIMIT_CORE, (hard, hard))
    run = shared_worker.python(code, words=(f"nproc={nproc}",))
    assert shared_worker.wait(run).status.outcome == "done"
    for number in range(nproc):
        assert shared_worker.log(run, number).decode() == f"0 {hard}\n"
