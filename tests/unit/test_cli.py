from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runner.app
from runner import errors
from runner.app.reports import CancelReport, RankStack, StackReport, WhyReport, WorkerVersion
from runner.app.results import Contact, Listing, RunOnHost
from runner.cli import commands, main
from runner.model import Host, Project
from runner.wire import RunStatus

Capture = pytest.CaptureFixture[str]
COMMANDS = (
    "init",
    "host",
    "provision",
    "submit",
    "jobs",
    "job",
    "resume",
    "fork",
    "reproduce",
    "ps",
    "top",
    "status",
    "why",
    "wait",
    "tail",
    "pull",
    "plot",
    "compare",
    "stack",
    "schedule",
    "notify",
    "cancel",
    "du",
    "rm",
    "gc",
    *("shell", "lab", "tensorboard", "ssh-config", "ssh-stream"),
    "doctor",
    "drain",
    "undrain",
    "down",
    "version",
    "completion",
)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hosts").mkdir()
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/dqn.toml").write_text('command = ["true"]\n[params]\nlr = 1e-3\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("threading.excepthook", sys.excepthook)
    return tmp_path


Fake = Callable[..., None]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts functions in the place of a use case's module."""

    def put(name: str, **functions: Any) -> None:
        module = types.ModuleType(f"runner.app.{name}")
        for key, value in functions.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, f"runner.app.{name}", module)
        monkeypatch.setattr(runner.app, name, module, raising=False)

    context = types.SimpleNamespace(
        project=Project(Path.cwd(), "p-1", "p"), hosts={"local": Host("local", runtime="local")}
    )
    put("context", open_context=lambda report: context)
    put(
        "runs",
        find_one=lambda ctx, word: word or "latest",
        find_all=lambda ctx, words: list(words),
        find_each=lambda ctx, words: (list(words), []),
    )
    return put


def run(outcome: str | None = "done", state: str = "ended", contact: str = "ok") -> RunOnHost:
    status = RunStatus(id="dqn-7k3fa", state=state, outcome=outcome, cause={"text": "exit 1"})
    return RunOnHost(status, Contact("local", contact))


def raising(error: BaseException) -> Callable[..., Any]:
    def act(*args: Any, **keywords: Any) -> Any:
        raise error

    return act


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_help(command: str, capsys: Capture) -> None:
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"Usage: runner {command}")
    assert max(len(line) for line in shown.out.splitlines()) <= 80
    assert len(shown.out.splitlines()) <= 30
    assert shown.err == ""


def test_the_commands_are_those_of_this_version(capsys: Capture) -> None:
    assert tuple(commands.commands) == COMMANDS
    assert main([]) == 0
    alone = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == alone
    assert main(["host"]) == 0


@pytest.mark.parametrize(
    ("argv", "first", "advice"),
    [
        (["sumbit"], "sumbit is no command (did you mean submit?)", "runner --help"),
        (["ssh"], "ssh is no command (did you mean shell or ssh-config?)", "runner --help"),
        (["host", "ssh"], "ssh is no command", "runner host --help"),
        (["keep"], "keep is not in this version yet", "runner --help"),
        (["top", "--every", "0s"], "--every is less than a second", "runner top --help"),
        (["\x1b[2J"], "'\\x1b[2J' is no command", "runner --help"),
        (["host", "ad"], "ad is no command (did you mean add?)", "runner host --help"),
        (["host", "add"], "runner host add needs NAME", "runner host add --help"),
        (["pull", "--every", "5s"], "--every needs --watch", "runner pull --help"),
        (
            ["submit", "--tial"],
            "--tial is no option of runner submit (did you mean --tail?)",
            "runner submit --help",
        ),
        (["submit", "--foo"], "--foo is no option of runner submit", "runner submit --help"),
        (["tail", "--rank", "x"], "--rank: 'x' is not a valid integer range", "runner tail --help"),
        (["tail", "a", "b"], "got unexpected extra argument (b)", "runner tail --help"),
        (["cancel"], "cancel needs RUN: an id, name:TEXT or tag:TEXT", "runner ps"),
        (["rm"], "rm needs RUN: an id, name:TEXT or tag:TEXT", "runner ps"),
        (["gc"], "gc needs host=H", "runner host list"),
        (["drain"], "drain needs host=H", "runner host list"),
        (["cancel", "a", "--all"], "cancel takes RUN or --all, not both", "runner cancel --help"),
        (["wait"], "wait needs RUN: an id, name:TEXT or tag:TEXT", "runner ps"),
        (["provision"], "provision needs host=H", "runner host list"),
        (["down"], "down needs host=H", "runner host list"),
        (
            ["ps", "--", "x"],
            "only submit, shell and schedule add take a command after --",
            "runner submit --help",
        ),
        (["submit"], "submit needs job=JOB, or -- CMD at the end", "runner jobs"),
    ],
)
def test_mistakes_are_told_in_two_lines(
    argv: list[str], first: str, advice: str, capsys: Capture
) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[:2] == [first, f"  {advice}"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["ps", "gpu1"], "ps lists every run of the project; it takes host=H, not 'gpu1'"),
        (["ps", "hots=x"], "hots is no key here; this command takes host="),
        (["wait", "x", "--timeout", "90"], "--timeout is '90'; a bare number has no unit"),
        (["tail", "--from", "1", "-n", "2"], "--from and -n are two ways"),
        (["tail", "--merged", "--rank", "0"], "--merged shows every rank; leave --rank out"),
        (["tail", "--merged", "--from", "1"], "--from is a place in one rank's log; --merged"),
        (["submit", "job=dqn", "--tail", "--json"], "--tail and --json both want stdout"),
        (["plot", "--out", "x.svg"], "x.svg: .svg is not known"),
        (["pull", "--what", "lats"], "--what: 'lats' is none of checkpoints, logs, work, best, l"),
        (["pull", "--watch", "--every", "9"], "--every is '9'; a bare number has no unit"),
        (["submit", "--", "a | b"], "'a | b' is no program"),
        (["submit", "lr"], "lr is not key=value"),
        (["jobs", "dqm"], "dqm is no job of this project (did you mean dqn?)"),
    ],
)
def test_wrong_words_and_options_end_with_2(argv: list[str], says: str, capsys: Capture) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith(says)


def all_errors() -> list[type[errors.RunnerError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [kind for kind in found if issubclass(kind, errors.RunnerError)]


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_ends_with_its_status(
    kind: type[errors.RunnerError], fake: Fake, capsys: Capture
) -> None:
    fake("status", status=raising(kind("gpu1: it went wrong", "runner ps")))
    assert main(["status"]) == kind.status
    assert capsys.readouterr() == ("", "gpu1: it went wrong\n  runner ps\n")


def test_ctrl_c_ends_with_130(fake: Fake, capsys: Capture) -> None:
    fake("status", status=raising(KeyboardInterrupt()))
    assert main(["status"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_is_short_and_its_traceback_in_a_file(
    fake: Fake, capsys: Capture, project: Path
) -> None:
    fake("status", status=raising(KeyError("x\n\x1b")))
    assert main(["status"]) == 70
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[0].startswith("runner: this is a bug (KeyError")
    assert all(line.isprintable() for line in lines)
    (path,) = (project / "cache/runner").iterdir()
    assert str(path) in lines[1]
    assert "KeyError" in path.read_text() and path.stat().st_mode & 0o077 == 0


def runner_process(*argv: str, **keywords: Any) -> subprocess.Popen[bytes]:
    root = Path(errors.__file__).parents[1]
    command = f"import sys; sys.path.insert(0, {str(root)!r}); sys.argv[0] = 'runner'\n"
    command += "from runner.cli import main; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-c", command, *argv], **keywords)


def test_a_ctrl_c_while_it_is_being_read_in_ends_it_without_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runner import __main__

    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "runner.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "runner.cli")
    monkeypatch.delattr("runner.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert __main__.main() == 130
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_went_away_ends_it_quietly_with_141() -> None:
    process = runner_process("--help", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors_said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), errors_said) == (141, b"")


@pytest.mark.parametrize("words", ["--help", "version", "version --json"])
def test_stdout_that_is_full_is_said_and_ends_with_141(words: str) -> None:
    with open("/dev/full", "wb") as full:
        process = runner_process(*words.split(), stdout=full, stderr=subprocess.PIPE)
    said = process.communicate()[1]
    assert (process.wait(), said) == (
        141,
        b"stdout cannot be written: No space left on device\n",
    )


@pytest.mark.parametrize(
    ("words", "closed", "status"),
    [("version", ">&-", 0), ("--help", ">&-", 0), ("version", "2>&-", 0), ("nope", "2>&-", 2)],
)
def test_a_closed_stream_is_no_trouble(words: str, closed: str, status: int) -> None:
    root = Path(errors.__file__).parents[1]
    done = subprocess.run(
        ["bash", "-c", f'"$0" -m runner {words} {closed}', sys.executable],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (status, b"")


def test_a_long_command_in_one_word_is_refused_shortly(project: Path, capsys: Capture) -> None:
    assert main(["submit", "--", "a b" * 3000]) == 2
    assert all(len(line) < 300 for line in capsys.readouterr().err.splitlines())


def test_tail_begins_at_a_byte_that_64_bits_hold(project: Path, capsys: Capture) -> None:
    assert main(["tail", "x", "--from", str(2**63)]) == 2
    assert "is not in the range" in capsys.readouterr().err


def test_it_starts_without_a_home_and_in_any_locale(tmp_path: Path) -> None:
    process = runner_process("submit", "--help", env={"LC_ALL": "POSIX"}, stdout=subprocess.DEVNULL)
    assert process.wait() == 0


def queued(*ids: str) -> Callable[..., list[str]]:
    """A submit that makes these runs."""

    def submit(ctx: Any, request: Any, announce: Any, **options: bool) -> list[str]:
        announce(list(ids))
        return list(ids)

    return submit


def test_submit_prints_the_id_alone(fake: Fake, capsys: Capture) -> None:
    asked = []

    def submit(ctx: Any, request: Any, announce: Any, **options: bool) -> list[str]:
        asked.append((request, options))
        announce(["dqn-7k3fa"])
        return ["dqn-7k3fa"]

    fake("submit", submit=submit)
    assert main(["submit", "job=dqn", "lr=1e-3"]) == 0
    assert capsys.readouterr() == ("dqn-7k3fa\n", "")
    assert main(["submit", "--json", "--yes", "--", "echo", "--help", "host=z", "--", ""]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == [{"id": "dqn-7k3fa", "host": "local"}]
    assert asked[1][0].command == ("echo", "--help", "host=z", "--", "")
    assert [options["many"] for _, options in asked] == [False, True]


def test_submit_prints_all_ids_of_a_sweep_at_once(fake: Fake, capsys: Capture) -> None:
    fake("submit", submit=queued("dqn-9x2mp.1", "dqn-9x2mp.2"))
    assert main(["submit", "job=dqn", "lr=1,2"]) == 0
    assert capsys.readouterr().out == "dqn-9x2mp.1\ndqn-9x2mp.2\n"
    assert main(["submit", "job=dqn", "lr=1,2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert [row["id"] for row in rows] == ["dqn-9x2mp.1", "dqn-9x2mp.2"]


def test_a_large_sweep_is_one_slip_of_a_finger_away_from_yes(
    project: Path, capsys: Capture
) -> None:
    assert main(["submit", "each.n=1..1001", "--", "true", "{n}"]) == 2
    assert "1,001 runs; more than 1,000 need --yes" in capsys.readouterr().err
    assert main(["submit", "each.n=1..2", "--tail", "--", "true", "{n}"]) == 2
    assert "--tail follows one run; this is a sweep of 2" in capsys.readouterr().err
    assert not (project / ".runner").exists()


@pytest.mark.parametrize(("outcome", "status"), [("done", 0), ("failed", 1), ("cancelled", 1)])
def test_submit_and_wait_speak_of_the_outcome(
    outcome: str, status: int, fake: Fake, capsys: Capture
) -> None:
    fake("submit", submit=queued("dqn-7k3fa"))
    fake("wait", wait=lambda ctx, refs, timeout_s: [run(outcome)])
    assert main(["submit", "job=dqn", "--wait"]) == status
    shown = capsys.readouterr()
    assert shown.out == "dqn-7k3fa\n"
    look = "  runner tail dqn-7k3fa -n 20\n" if outcome == "failed" else ""
    assert shown.err == ("" if status == 0 else f"dqn-7k3fa  {outcome.upper()}  exit 1\n{look}")
    assert main(["wait", "dqn-7k3fa", "--timeout", "1h"]) == status
    assert capsys.readouterr().out.startswith(f"dqn-7k3fa  {outcome.upper()}")


def test_submit_and_tail_keep_stdout_for_the_job(fake: Fake, capfdbinary: Any) -> None:
    def tail(
        ctx: Any, ref: str, rank: int, start: Any, lines: Any, follow: bool, write: Any, *_: Any
    ) -> Any:
        assert (ref, rank, start, lines, follow) == ("dqn-7k3fa", 0, 0, None, True)
        write(b"\xff\x1b[31m")
        return run("failed")

    fake("submit", submit=queued("dqn-7k3fa"))
    fake("tail", tail=tail)
    assert main(["submit", "job=dqn", "--tail"]) == 0
    out, err = capfdbinary.readouterr()
    assert out == b"\xff\x1b[31m"
    said = b"dqn-7k3fa on local; Ctrl-C leaves it running\n"
    assert err == said + b"dqn-7k3fa  FAILED  exit 1\n"
    assert main(["submit", "job=dqn", "--tail", "--wait"]) == 1


def test_ctrl_c_in_tail_says_how_to_come_back(fake: Fake, capsys: Capture) -> None:
    ref = types.SimpleNamespace(id="dqn-7k3fa", host="gpu1")
    fake("runs", find_one=lambda ctx, word: ref)
    fake("tail", tail=raising(KeyboardInterrupt()))
    assert main(["tail"]) == 130
    assert capsys.readouterr().err == "dqn-7k3fa goes on; back to it: runner tail dqn-7k3fa\n"


def test_ps_does_the_rest_and_then_ends_with_3(fake: Fake, capsys: Capture) -> None:
    hosts = (Contact("local"), Contact("gpu3", "unreachable", error="gpu3: no answer for 20 s"))
    fake("runs", list_runs=lambda ctx, host, chosen: Listing((run(None, "running"),), hosts))
    assert main(["ps", "--all"]) == 3
    shown = capsys.readouterr()
    assert "dqn-7k3fa" in shown.out and "PROJECT" in shown.out
    assert shown.err == "gpu3: no answer (no answer for 20 s)\n"
    assert main(["ps", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["hosts"][1]["contact"]["state"] == "unreachable"


@pytest.mark.parametrize(("state", "status"), [("running", 3), ("ended", 0)])
def test_ps_ends_with_3_where_live_runs_have_lost_their_worker(
    state: str, status: int, fake: Fake
) -> None:
    hosts = (Contact("gpu1", "no-worker", error="gpu1: there is no worker"),)
    lost = run(None, state, "no-worker")
    fake("runs", list_runs=lambda ctx, host, chosen: Listing((lost,), hosts))
    assert main(["ps"]) == status


def test_status_is_0_whatever_became_of_the_run(fake: Fake) -> None:
    fake("status", status=lambda ctx, ref: run("failed"))
    assert main(["status"]) == 0
    fake("status", status=lambda ctx, ref: run(None, "running", "unreachable"))
    assert main(["status", "--json"]) == 3


def test_why_is_0_whatever_became_of_the_run(fake: Fake, capsys: Capture) -> None:
    fake("why", why=lambda ctx, ref: WhyReport(run("failed")))
    assert main(["why"]) == 0
    assert capsys.readouterr().out.startswith("FAILED: exit 1\n")
    fake("why", why=lambda ctx, ref: WhyReport(run(None, "running", "unreachable")))
    assert main(["why", "x", "--json"]) == 3


@pytest.mark.parametrize(("problem", "status"), [(None, 0), ("py-spy is missing", 5)])
def test_stack_ends_with_5_when_some_could_not_be_read(
    problem: str | None, status: int, fake: Fake, capsys: Capture
) -> None:
    ranks = (RankStack(0, 7, "main (x.py:1)"),)
    fake("stack", stack=lambda ctx, ref: StackReport("x", "gpu1", ranks, problem))
    assert main(["stack", "x"]) == status
    assert capsys.readouterr().out == "rank 0  pid 7\n  main (x.py:1)\n"


@pytest.mark.parametrize(
    ("report", "status"),
    [
        (CancelReport("a", "gpu1", "cancelled", False), 0),
        (CancelReport("a", "gpu1", "done", True), 0),
        (CancelReport("a", "gpu1", "cancelled", False, left=(7,)), 7),
        (CancelReport("a", "gpu1", None, False, error="gpu1: no answer", status=3), 3),
        (CancelReport("a", "gpu1", None, False, error="gpu1: none", status=4), 4),
        (CancelReport("a", "gpu1", None, False, error="gpu1: no run a there", status=6), 6),
        (CancelReport("a", "gpu1", None, False, error="gpu1: the link broke", status=9), 9),
    ],
)
def test_cancel_ends_with_what_it_reached(report: CancelReport, status: int, fake: Fake) -> None:
    fake("cancel", cancel=lambda ctx, refs, order: [report], Order=lambda now, until_s: None)
    assert main(["cancel", "a"]) == status


def test_version_needs_no_project(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("client  runner ")
    rows = [
        WorkerVersion("here", Contact("here"), {"runner": "0.1.0"}),
        WorkerVersion("gpu1", Contact("gpu1", "unreachable")),
    ]
    fake("version", version=lambda ctx, host, everyone: rows)
    assert main(["version", "host=gpu1"]) == 3


def test_jobs_need_no_readable_host(project: Path, capsys: Capture) -> None:
    (project / "hosts/bad.toml").write_text("x = \n")
    assert main(["jobs"]) == 0
    assert "dqn" in capsys.readouterr().out
    assert main(["jobs", "dqn"]) == 0
    assert "lr         float  0.001" in capsys.readouterr().out


def test_init_prints_what_it_wrote(tmp_path: Path, capsys: Capture) -> None:
    assert main(["init", str(tmp_path / "new")]) == 0
    assert "runner.toml" in capsys.readouterr().out.splitlines()
    assert main(["init", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out == ""


def test_host_add_asks_nobody_without_a_terminal(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def add(*args: Any) -> Path:
        asked.append(args)
        return Path("hosts/gpu1.toml")

    fake("hosts", add=add)
    monkeypatch.setattr(sys, "stdin", open("/dev/null"))  # noqa: SIM115
    assert main(["host", "add", "gpu1", "me@gpu1", "--jump", "login"]) == 0
    assert asked[0][1:] == ("gpu1", "me@gpu1", "login", (), None)
    sys.stdin.close()


def test_a_current_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); from runner.cli import main; "
    done = subprocess.run(
        [sys.executable, "-c", code + "sys.exit(main(['ps']))"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "the current folder is gone\n  cd to the project's\n"
