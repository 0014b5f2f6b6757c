from __future__ import annotations

import io
import json
import os
import pty
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from runner.app.reports import (
    CancelReport,
    DownReport,
    PullReport,
    RankStack,
    StackReport,
    WhyReport,
    WorkerVersion,
)
from runner.app.results import Contact, Listing, RunOnHost
from runner.errors import NotFound, SpecError
from runner.model import Host, JobSpec
from runner.output import Output, coloured, error_text, job_limits
from runner.show.progress import TerminalReport
from runner.wire import RunStatus

NOW = 1_764_600_000.0


class Terminal(io.StringIO):
    """A stream that takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)


class Shown:
    """An Output and what it wrote."""

    def __init__(
        self, *, as_json: bool = False, terminal: bool = False, colour: str = "auto"
    ) -> None:
        self.stdout: TextIO = Terminal() if terminal else io.StringIO()
        self.stderr: TextIO = Terminal() if terminal else io.StringIO()
        self.output = Output(
            as_json=as_json, colour=colour, out=self.stdout, err=self.stderr, clock=lambda: NOW
        )

    @property
    def out(self) -> str:
        return self.stdout.getvalue()  # type: ignore[attr-defined,no-any-return]

    @property
    def err(self) -> str:
        return self.stderr.getvalue()  # type: ignore[attr-defined,no-any-return]


def run(
    state: str = "running", contact: Contact | None = None, outcome: str | None = None
) -> RunOnHost:
    status = RunStatus(id="dqn-7k3fa", state=state, outcome=outcome, started_at=NOW - 60)
    return RunOnHost(status, contact or Contact("gpu1", at=NOW))


def test_errors_have_their_way_out_below_and_no_error_word() -> None:
    error = SpecError("learnig_rate is not a parameter", "runner jobs dqn")
    assert error_text(error) == "learnig_rate is not a parameter\n  runner jobs dqn\n"


def test_errors_escape_what_a_host_said() -> None:
    assert "\x1b" not in error_text(NotFound("x\x1b[2J\ny", "z\u202e"))


def test_ids_stand_alone() -> None:
    shown = Shown()
    shown.output.submitted(["dqn-7k3fa", "dqn-b2x7m"], "gpu1")
    assert (shown.out, shown.err) == ("dqn-7k3fa\ndqn-b2x7m\n", "")


def test_stderr_is_silent_without_a_terminal() -> None:
    shown = Shown()
    shown.output.report.note("code  214 files")
    shown.output.report.step("waiting")
    shown.output.listing(Listing((), ()))
    assert (shown.out, shown.err) == ("", "")


def test_a_silent_host_is_told_even_to_cron() -> None:
    silent = Contact("gpu3", "unreachable", NOW - 60, "gpu3: no answer for 20 s")
    shown = Shown()
    shown.output.listing(Listing((run(contact=silent),), (silent, Contact("gpu1", at=NOW))))
    assert "RUNNING" in shown.out
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("gpu3: no answer since ")
    assert shown.err.endswith("(no answer for 20 s); dqn-7k3fa may well be running\n")


def test_a_pipe_is_neither_cut_nor_coloured() -> None:
    long = JobSpec("dqn", ("python", "x"), params={f"parameter_{i}": i for i in range(20)})
    piped, terminal = Shown(), Shown(terminal=True)
    piped.output.jobs([long])
    terminal.output.jobs([long])
    assert "parameter_19" in piped.out and "\x1b" not in piped.out
    assert max(len(line) for line in terminal.out.splitlines()) <= 60
    assert "…" in terminal.out


def test_a_state_is_coloured_on_a_terminal() -> None:
    shown = Shown(terminal=True)
    shown.output.listing(Listing((run(),), ()))
    assert "\x1b[32mRUNNING\x1b[0m" in shown.out


@pytest.mark.parametrize(
    ("choice", "terminal", "environment", "wanted"),
    [
        ("auto", True, {}, True),
        ("auto", False, {}, False),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"NO_COLOR": ""}, True),
        ("auto", True, {"TERM": "dumb"}, False),
        ("never", True, {}, False),
        ("always", False, {"NO_COLOR": "1"}, True),
    ],
)
def test_who_decides_on_colours(
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    terminal: bool,
    environment: dict[str, str],
    wanted: bool,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert coloured(Terminal() if terminal else io.StringIO(), choice) is wanted


def test_a_step_shows_only_once_it_lasts_and_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.show.progress.STEP_PATIENCE_S", 0.02)
    stream = Terminal()
    report = TerminalReport(stream)
    report.step("connecting\x1b[2J")
    assert stream.getvalue() == ""
    deadline = time.monotonic() + 5
    while not stream.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stream.getvalue() == "\r\x1b[Kconnecting\\x1b[2J"
    report.step("sending")
    report.note("code  3 files")
    assert stream.getvalue().endswith("\r\x1b[Ksending\r\x1b[Kcode  3 files\n")
    report.step("short")
    report.done()
    time.sleep(0.05)
    assert stream.getvalue().endswith("code  3 files\n")


def test_a_dumb_terminal_is_never_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("runner.show.progress.STEP_PATIENCE_S", 0.0)
    stream = Terminal()
    report = TerminalReport(stream)
    report.step("connecting")
    report.note("a")
    assert stream.getvalue() == "a\n"


def test_trouble_is_said_at_once() -> None:
    stream = Terminal()
    report = TerminalReport(stream)
    report.step("connecting")
    report.trouble("gpu1: no answer for 3.5 s; trying again")
    assert stream.getvalue() == "\r\x1b[Kgpu1: no answer for 3.5 s; trying again"
    report.done()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_dumb_terminal_has_trouble_as_lines_and_a_pipe_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    report = TerminalReport(stream)
    for text in ("lost", "lost", "no route\x1b", "lost"):
        report.trouble(text)
    assert stream.getvalue() == "lost\nno route\\x1b\n"
    report.done()
    report.trouble("lost")
    assert stream.getvalue().endswith("x1b\nlost\n"), "a new cut is said anew"
    pipe = io.StringIO()
    TerminalReport(pipe).trouble("lost")
    assert pipe.getvalue() == ""


def test_json_is_one_document() -> None:
    shown = Shown(as_json=True)
    shown.output.listing(Listing((run(),), ()))
    assert json.loads(shown.out)["runs"][0]["id"] == "dqn-7k3fa"


def test_a_pull_prints_the_path_and_names_what_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "results" / "dqn-7k3fa"
    report = PullReport("dqn-7k3fa", path, 14, 2_100_000_000, 23, 31, ("a.part",), ("mine.pt",))
    shown = Shown(terminal=True)
    shown.output.pulled(report)
    assert shown.out == "results/dqn-7k3fa\n"
    lines = shown.err.splitlines()
    assert (
        lines[0] == "14 files, 2.1 GB in 23.0s, all verified; 31 unchanged; 1 still being written"
    )
    assert lines[1].endswith("mine.pt: not from a pull, or edited here; left as it is")


def test_a_pull_names_what_was_left_out() -> None:
    names = tuple(f"logs/{number}" for number in range(4))
    shown = Shown()
    shown.output.pulled(PullReport("a", Path("/r/a"), 1, 1, 0.1, 0, left_out=names))
    assert shown.err == "4 left out, not plain files: logs/0, logs/1, logs/2, …\n"


def test_a_pull_that_found_nothing_yet_prints_no_path() -> None:
    shown = Shown(terminal=True)
    shown.output.pulled(PullReport("a", Path("/r/a"), 0, 0, 0.1, 0, nothing_yet="queued"))
    assert shown.out == ""
    assert "a: nothing yet; it is queued" in shown.err


def test_a_pull_says_what_it_removed_and_what_could_not_be_named() -> None:
    shown = Shown(terminal=True)
    report = PullReport("a", Path("/r/a"), 2, 30, 0.1, 5, too_long=("work/xx",), mirrored=4)
    shown.output.pulled_round(report)
    shown.output.pulled(report)
    assert "2 files, 30 B in 0.1s, all verified; 5 unchanged; 4 files removed here, too" in (
        shown.err
    )
    assert "1 left out, names too long for this disk: work/xx" in shown.err


def test_a_pull_with_nothing_new_says_so() -> None:
    shown = Shown(terminal=True)
    shown.output.pulled(PullReport("a", Path("/r/a"), 0, 0, 0.1, 31))
    assert shown.err == "nothing new; 31 unchanged\n"


def test_why_breaks_lines_on_a_terminal_alone() -> None:
    waits = {"kind": "slot", "holders": ["a" * 30, "b" * 30]}
    item = RunOnHost(RunStatus(id="x", state="queued", waits=waits), Contact("gpu1", at=NOW))
    terminal, piped = Shown(terminal=True), Shown()
    terminal.output.why(WhyReport(item))
    piped.output.why(WhyReport(item))
    text = f"waits for a slot on gpu1, held by {'a' * 30} and {'b' * 30}\n"
    assert piped.out == text
    assert max(len(line) for line in terminal.out.splitlines()) <= 60
    assert " ".join(terminal.out.splitlines()) + "\n" == text


def test_why_of_a_silent_host_is_told_as_such() -> None:
    silent = Contact("gpu3", "unreachable", NOW - 60, "gpu3: no answer for 20 s")
    shown = Shown()
    shown.output.why(WhyReport(run(contact=silent)))
    assert shown.out.startswith("as of 1m ago: RUNNING for 0s")
    assert shown.err.startswith("gpu3: no answer since ")


def test_stacks_stand_under_their_ranks_and_a_problem_beside() -> None:
    ranks = (RankStack(0, 7, "main (x.py:1)\n\x1b[2Jf (y.py:2)\n"), RankStack(1, None, ""))
    shown = Shown()
    shown.output.stack(StackReport("a", "gpu1", ranks, "py-spy\x1b is missing"))
    assert shown.out.splitlines() == [
        "rank 0  pid 7",
        "  main (x.py:1)",
        "  \\x1b[2Jf (y.py:2)",
        "",
        "rank 1",
        "",
    ]
    assert shown.err == "gpu1: py-spy\\x1b is missing\n"


def test_a_job_tells_its_limits() -> None:
    shown = Shown()
    job = JobSpec("dqn", ("python", "x"), restarts=2)
    shown.output.job(job)
    assert shown.out.splitlines()[1] == "restarts=2"
    limited = JobSpec(
        "dqn",
        ("python", "x"),
        restarts=0,
        time_limit_s=7200.0,
        stuck_after_s=1800.0,
        on_stuck="restart",
        keep=3,
        keep_best=1,
        log_limit_bytes=10**9,
        resumable=("steps", "lr"),
    )
    assert job_limits(limited) == (
        "time_limit=2h00m  stuck_after=30m  on_stuck=restart  restarts=0  keep=3  keep_best=1  "
        "log_limit=1 GB  resumable=steps,lr"
    )


def test_cancel_says_what_was_released_and_what_was_not_stopped() -> None:
    shown = Shown()
    shown.output.cancelled(
        [
            CancelReport("a", "gpu1", "cancelled", False, 18, 6.2, ({"index": 0, "used_mib": 3},)),
            CancelReport("b", "gpu1", "done", True),
            CancelReport("c", "gpu3", None, False, error="gpu3: no answer for 20 s"),
        ]
    )
    assert shown.out.splitlines() == [
        "a  CANCELLED  18 processes ended, GPU 0 back to 3 MiB, 6.2s",
        "b  DONE       had ended before",
    ]
    assert shown.err == "gpu3: no answer for 20 s; c was NOT stopped\n"


def test_hosts_and_one_job() -> None:
    shown = Shown()
    shown.output.hosts(
        [Host("local", runtime="local"), Host("gpu1", ssh="gpu1", jump="login", gpus=(0, 1))]
    )
    assert shown.out.splitlines()[2].split() == [
        *("gpu1", "docker", "gpu1", "through", "login", "torch-2.6", "0,1", "~/runner"),
    ]
    shown = Shown()
    shown.output.job(
        JobSpec("dqn", ("python", "agents/dqn.py"), params={"lr": 1e-3, "env": "x", "n": []})
    )
    assert shown.out.splitlines()[3:] == [
        "PARAMETER  TYPE   DEFAULT",
        "lr         float  0.001",
        'env        str    "x"',
        "n          list   []",
    ]


def test_versions() -> None:
    shown = Shown()
    workers = [
        WorkerVersion("gpu1", Contact("gpu1"), {"runner": "0.1.0", "launchers": ["0.1.0"]}),
        WorkerVersion("gpu2", Contact("gpu2", "unreachable")),
    ]
    shown.output.versions({"runner": "0.1.0"}, workers)
    assert shown.out.splitlines()[1] == "gpu1    runner 0.1.0  launchers 0.1.0"
    assert shown.err == "gpu2: no answer\n"


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        yield stream, ours
    os.close(ours)


def test_a_jobs_bytes_are_filtered_on_a_real_terminal(terminal: tuple[TextIO, int]) -> None:
    stream, ours = terminal
    write, finish = Output(out=stream, err=io.StringIO()).job_writer()
    write(b"\x1b[31mred\x1b[")
    write(b"0m \x1b]0;x\x07\xe6\x97")
    write(b"\xa5\n")
    finish()
    shown = b""
    while not shown.endswith(b"\n"):
        shown += os.read(ours, 1000)
    assert shown == "\x1b[31mred\x1b[0m \\x1b]0;x\\x07日\r\n".encode()


def test_what_follows_a_job_on_a_terminal_stands_on_a_line_of_its_own(
    terminal: tuple[TextIO, int],
) -> None:
    stream, ours = terminal
    write, finish = Output(out=stream, err=io.StringIO()).job_writer()
    finish()
    write(b"a\n\x1b[31m\x1b[0m")
    finish()
    write(b"b\x1b[31mc")
    finish()
    stream.write("$")
    stream.flush()
    shown = b""
    while not shown.endswith(b"$"):
        shown += os.read(ours, 1000)
    assert shown == b"a\r\n\x1b[31m\x1b[0mb\x1b[31mc\x1b[0m\r\n$"


def test_a_jobs_bytes_are_exact_in_a_pipe() -> None:
    raw = io.BytesIO()
    write, finish = Output(out=io.TextIOWrapper(raw), err=io.StringIO()).job_writer()
    write(b"\x1b]0;x\x07\xff\r\n\x00")
    finish()
    assert raw.getvalue() == b"\x1b]0;x\x07\xff\r\n\x00"


def test_no_ranks_colour_goes_on_in_another_ranks_line(terminal: tuple[TextIO, int]) -> None:
    stream, ours = terminal
    write, finish = Output(out=stream, err=io.StringIO()).ranks_writer()
    write(0, 2, b"\x1b[31mred\x1b[2J\n\x1b[3")
    write(1, 2, b"plain\n")
    write(0, 2, b"2mgreen")
    finish()
    shown = b""
    while not shown.endswith(b"green\x1b[0m\r\n"):
        shown += os.read(ours, 1000)
    lines = ["0| \x1b[31mred\\x1b[2J\x1b[0m", "1| plain", "0| \x1b[32mgreen\x1b[0m", ""]
    assert shown == "\r\n".join(lines).encode()


def test_ranks_bytes_are_exact_in_a_pipe() -> None:
    raw = io.BytesIO()
    write, finish = Output(out=io.TextIOWrapper(raw), err=io.StringIO()).ranks_writer()
    write(0, 2, b"\x1b]0;x\x07\xff\r\n\x00")
    write(1, 2, b"a\rb\n")
    finish()
    assert raw.getvalue() == b"0| \x1b]0;x\x07\xff\r\n1| a\rb\n0| \x00\n"


def test_what_a_purge_of_one_image_leaves_is_not_said_to_be_gone() -> None:
    for image, what in ((None, "workspace and images are gone"), ("other", "its images are gone")):
        text = io.StringIO()
        out = Output(out=text, err=io.StringIO())
        out.taken_down(DownReport("gpu1", ("a",), True, 5, image=image))
        assert what in text.getvalue()
