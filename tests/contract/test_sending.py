"""Sending one message: to real HTTP servers that do what servers do, and to real commands."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from runner import sending
from tests.helpers.receiver import Got, Receiver

MESSAGE = {"format": 1, "id": "m-1", "kind": "ended", "run": "dqn-7k3fa", "outcome": "failed"}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    found = Receiver()
    yield found
    found.close()


def settings(url: str, **more: Any) -> dict[str, Any]:
    return {"webhook": {"url": url, "format": "json", "headers": {}, **more}}


def test_a_message_arrives_with_its_id_and_headers(receiver: Receiver) -> None:
    headers = {"Authorization": "Bearer tk_12345"}
    result = sending.post(settings(receiver.url, headers=headers), MESSAGE)
    assert (result.ok, result.text) == (True, "HTTP 200")
    got = receiver.got[0]
    assert (got.method, got.message) == ("POST", MESSAGE)
    assert got.headers["Idempotency-Key"] == "m-1"
    assert got.headers["Authorization"] == "Bearer tk_12345"


def test_a_refusal_is_told_on_one_line_and_without_secrets(receiver: Receiver) -> None:
    def refuse(handler: BaseHTTPRequestHandler, got: Got) -> None:
        handler.send_response(429)
        handler.send_header("Retry-After", "77")
        handler.end_headers()
        handler.wfile.write(b"slow down \x1b[2J s3cr3t-path tk_12345\nnow")

    receiver.answer = refuse
    headers = {"Authorization": "Bearer tk_12345"}
    result = sending.post(settings(receiver.url, headers=headers), MESSAGE)
    assert not result.ok
    assert result.asked_s == 77.0
    assert result.text == "HTTP 429: slow down \\x1b[2J … … now"


def test_a_server_that_hangs_is_left_after_the_limit(receiver: Receiver) -> None:
    receiver.answer = receiver.hang
    result = sending.post(settings(receiver.url), MESSAGE, 0.5)
    assert not result.ok
    assert "no answer" in result.text


def test_one_that_drips_its_answer_is_left_as_well(receiver: Receiver) -> None:
    def drip(handler: BaseHTTPRequestHandler, got: Got) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not receiver.release.wait(0.05):
            handler.wfile.write(b"X-More: yes\r\n")

    receiver.answer = drip
    result = sending.post(settings(receiver.url), MESSAGE, 0.5)
    assert not result.ok
    assert "no answer within" in result.text or "headers" in result.text


def test_one_that_closes_early_or_is_not_there_is_told_of(receiver: Receiver) -> None:
    receiver.answer = lambda handler, got: handler.connection.close()
    result = sending.post(settings(receiver.url), MESSAGE)
    assert not result.ok
    assert "s3cr3t" not in result.text
    url = receiver.url
    receiver.close()
    assert sending.post(settings(url), MESSAGE).text == "Connection refused"


def test_of_a_huge_answer_little_is_read(receiver: Receiver) -> None:
    sent: list[int] = []

    def flood(handler: BaseHTTPRequestHandler, got: Got) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(1 << 34))
        handler.end_headers()
        try:
            while not receiver.release.is_set():
                sent.append(handler.wfile.write(b"x" * 65536))
        except OSError:
            sent.append(0)

    receiver.answer = flood
    assert sending.post(settings(receiver.url), MESSAGE).ok
    receiver.release.set()
    assert sum(sent) < 1 << 26


def test_a_name_that_does_not_exist_and_a_port_that_speaks_no_tls(receiver: Receiver) -> None:
    assert not sending.post(settings("http://no-such-host.invalid/abcdef"), MESSAGE).ok
    result = sending.post(settings(receiver.url.replace("http:", "https:")), MESSAGE)
    assert not result.ok
    assert "s3cr3t" not in result.text


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_leads_a_message_elsewhere(receiver: Receiver, status: int) -> None:
    other = Receiver()

    def lead(handler: BaseHTTPRequestHandler, got: Got) -> None:
        handler.send_response(status)
        handler.send_header("Location", other.url)
        handler.end_headers()

    receiver.answer = lead
    result = sending.post(settings(receiver.url), MESSAGE)
    assert not result.ok
    assert f"HTTP {status} to http://127.0.0.1:" in result.text
    pinged = sending.ping({"heartbeat": {"url": receiver.url}}, "gpu1")
    assert not pinged.ok
    assert other.got == []
    other.close()


def test_redirects_on_the_same_server_keep_the_message_or_are_told_of(receiver: Receiver) -> None:
    def lead(handler: BaseHTTPRequestHandler, got: Got) -> int | None:
        if got.path == "/new":
            return 200
        handler.send_response(int(got.path.rpartition("/")[2]))
        handler.send_header("Location", "/new")
        handler.end_headers()
        return None

    receiver.answer = lead
    base = receiver.url.rpartition("/")[0]
    assert sending.post(settings(f"{base}/308"), MESSAGE).ok
    assert receiver.got[-1].message == MESSAGE
    dropped = sending.post(settings(f"{base}/302"), MESSAGE)
    assert not dropped.ok
    assert "drop the message" in dropped.text
    assert sending.ping({"heartbeat": {"url": f"{base}/302"}}, "gpu1").ok


def test_redirects_without_end_end(receiver: Receiver) -> None:
    def lead(handler: BaseHTTPRequestHandler, got: Got) -> None:
        handler.send_response(307)
        handler.send_header("Location", got.path)
        handler.end_headers()

    receiver.answer = lead
    assert sending.post(settings(receiver.url), MESSAGE).text == "more than 3 redirects"


def test_the_proxy_of_the_environment_is_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", receiver.url.rpartition("/hook")[0])
    monkeypatch.setenv("no_proxy", "")
    assert sending.post(settings("http://elsewhere.invalid/abcdef"), MESSAGE).ok
    assert receiver.got[0].path == "http://elsewhere.invalid/abcdef"


def test_a_heartbeat_is_fetched_under_the_name_of_its_host(receiver: Receiver) -> None:
    assert sending.ping({"heartbeat": {"url": receiver.url + "/{name}?create=1"}}, "gpu1").ok
    assert receiver.got[0].method == "GET"
    assert receiver.got[0].path.endswith("/gpu1?create=1")


def run(folder: Path, code: str, limit_s: float = 30.0, **env: str) -> sending.Result:
    argv = [sys.executable, "-c", code, "a b", "$HOME"]
    given = {"PATH": os.environ["PATH"], **env}
    return sending.run_command(argv, MESSAGE, env=given, folder=str(folder), limit_s=limit_s)


def test_a_command_gets_its_argv_the_message_and_a_few_variables(tmp_path: Path) -> None:
    code = (
        "import json, os, sys; json.dump([json.load(sys.stdin), sys.argv[1:],"
        " {k: v for k, v in os.environ.items() if k.startswith('RUNNER')}], open('out', 'w'))"
    )
    result = run(tmp_path, code)
    assert (result.ok, result.text) == (True, "exit 0")
    message, argv, names = json.loads((tmp_path / "out").read_text())
    assert message == MESSAGE
    assert argv == ["a b", "$HOME"]
    assert names["RUNNER_NOTIFY_RUN"] == "dqn-7k3fa"
    assert names["RUNNER_NOTIFY_OUTCOME"] == "failed"


def test_a_command_that_fails_says_why_and_its_output_is_bounded(tmp_path: Path) -> None:
    result = run(tmp_path, "import sys; print('x' * 10**6); sys.exit('no \\x1b[2J user')")
    assert not result.ok
    assert result.text.startswith("exit 1: ")
    assert result.text.endswith("no \\x1b[2J user")
    assert len(result.output) <= 2000


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; p = subprocess.Popen(['sleep', '300']);"
        " open('pid', 'w').write(str(p.pid)); time.sleep(300)"
    )
    result = run(tmp_path, code, limit_s=2.0)
    assert not result.ok
    assert "not done within 2 s" in result.text
    assert _is_gone(tmp_path)


def test_a_command_that_writes_without_end_is_never_held_up_and_fills_no_disk(
    tmp_path: Path,
) -> None:
    code = (
        "import os, resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "for n in range(512): os.write(1, b'x' * 65536)\n"
        "os.write(2, b'the end')"
    )
    result = run(tmp_path, code)
    assert (result.ok, result.text) == (True, "exit 0")
    assert result.output.endswith("xxxthe end")
    assert len(result.output) == 2000


def test_a_command_that_never_stops_writing_is_ended_at_its_limit(tmp_path: Path) -> None:
    result = run(tmp_path, "import os\nwhile True: os.write(1, b'x' * 65536)", limit_s=1.0)
    assert (result.ok, result.text) == (False, "not done within 1 s; ended")
    assert len(result.output) <= 2000


def test_what_a_command_leaves_behind_is_ended_and_not_waited_for(tmp_path: Path) -> None:
    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '300']);"
        " open('pid', 'w').write(str(p.pid)); print('told', flush=True)"
    )
    result = run(tmp_path, code)
    assert (result.ok, result.output) == (True, "told")
    assert result.took_s < 30.0
    assert _is_gone(tmp_path)


def test_what_left_the_group_of_a_command_is_not_waited_for(tmp_path: Path) -> None:
    """It holds the output open, and is nobody's to end."""
    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '300'], start_new_session=True);"
        " open('pid', 'w').write(str(p.pid)); print('told', flush=True)"
    )
    result = run(tmp_path, code)
    pid = int((tmp_path / "pid").read_text())
    try:
        assert (result.ok, result.output) == (True, "told")
        assert _is_sleeping(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_command_that_closes_its_output_is_still_waited_for(tmp_path: Path) -> None:
    code = "import os, time; os.close(1); os.close(2); time.sleep(1); open('l', 'w'); os._exit(3)"
    result = run(tmp_path, code)
    assert (result.ok, result.text) == (False, "exit 3")
    assert (tmp_path / "l").exists()


def test_the_last_words_that_come_by_way_of_another_process_are_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_LAST_WORDS_S", 60.0)
    argv = ["sh", "-c", "(sleep 0.1; echo late >&2) & exit 4"]
    env = {"PATH": os.environ["PATH"]}
    result = sending.run_command(argv, MESSAGE, env=env, folder=str(tmp_path))
    assert (result.text, result.output) == ("exit 4: late", "late")


def _is_gone(folder: Path) -> bool:
    """Whether what a command started, and wrote the number of into `pid`, is no more."""
    pid = int((folder / "pid").read_text())
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _is_sleeping(pid):
        time.sleep(0.05)
    return not _is_sleeping(pid)


def _is_sleeping(pid: int) -> bool:
    try:
        return "(sleep) Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_command_that_is_not_there_did_not_begin(tmp_path: Path) -> None:
    result = sending.run_command(["/no/such"], MESSAGE, env={}, folder=str(tmp_path))
    assert (result.ok, result.began) == (False, False)
    assert result.text == "/no/such: No such file or directory"
