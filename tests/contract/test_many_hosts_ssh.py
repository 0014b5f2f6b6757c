"""Fifty hosts over real ssh: logins at once, slow ones among them, a changed key, a dead one."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.helpers.many_hosts import ManyHosts, many_over_ssh
from tests.helpers.wait import wait_for
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator

ROOT = Path(__file__).parents[2]


def lay_project(operator: Operator) -> None:
    (operator.project / "runner.toml").write_text('name = "p"\nid = "p-1"\n')
    operator.env["RUNNER_WORKSPACE"] = str(operator.home / "ws")
    operator.env["PYTHONPATH"] = str(ROOT)


def ours(operator: Operator) -> list[str]:
    """Processes with this operator's home in their environment; masters stay for their minute."""
    mark = f"HOME={operator.home}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environ = (path / "environ").read_bytes().split(b"\0")
            words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if mark in environ and "[mux]" not in words:
            found.append(words)
    return found


def listed(operator: Operator, *words: str, status: int) -> tuple[dict, dict, str]:  # type: ignore[type-arg]
    done = operator.runner("ps", "--json", *words, limit_s=200)
    assert done.returncode == status, done.stderr.decode()
    body = json.loads(done.stdout)
    hosts = {row["name"]: row for row in body["hosts"]}
    return hosts, {row["id"]: row for row in body["runs"]}, done.stderr.decode()


def test_fifty_hosts_at_once_over_ssh(operator: Operator, sshd: RigHost) -> None:
    lay_project(operator)
    with many_over_ssh(operator, sshd, 50) as many:
        for name in many.names:
            many.put_run(name, f"cmd-{name}")
        hosts, runs, said = listed(operator, status=0)
        assert said == ""
        assert {row["contact"]["state"] for row in hosts.values()} == {"ok"}
        assert set(runs) == {f"cmd-{name}" for name in many.names}
        assert {row["contact"]["worker"] for row in runs.values()} == {
            f"w-{name:0>12}" for name in many.names
        }


@pytest.fixture
def odd(operator: Operator, sshd: RigHost) -> ManyHosts:
    lay_project(operator)
    with many_over_ssh(operator, sshd, 8, doors=3) as many:
        for name in many.names:
            many.put_run(name, f"cmd-{name}")
        yield many  # type: ignore[misc]


def test_a_slow_login_is_waited_for_and_a_dead_host_is_not(
    operator: Operator, odd: ManyHosts
) -> None:
    hosts, _, _ = listed(operator, status=0)
    assert len(hosts) == 9
    odd.doors["h01"].delay_s = 2.0
    odd.doors["h02"].delay_s = 5.0
    odd.doors["h03"].delay_s = None
    other = " ".join(["ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43])
    toml = odd.project / "hosts/h05.toml"
    toml.write_text(toml.read_text() + f'host_key = "{other}"\n')
    time.sleep(0.1)
    operator.run(["sh", "-c", "rm -rf xdg/*"], cwd=operator.home)  # no warm connection
    began = time.monotonic()
    hosts, runs, said = listed(operator, status=3)
    took_s = time.monotonic() - began
    states = {name: row["contact"]["state"] for name, row in hosts.items()}
    assert {name for name, state in states.items() if state != "ok"} == {"h03", "h05"}, said
    assert hosts["h03"]["contact"]["slow"] and not hosts["h05"]["contact"]["slow"]
    assert "h03: no answer within" in said
    assert "cmd-h03 may well be running" in said
    assert "h05: HOST KEY" in said or "key" in hosts["h05"]["error"], said
    assert runs["cmd-h03"]["state"] == "running"
    assert took_s < 18, "the dead one was waited for"
    wait_for(lambda: ours(operator) == [], 2, f"the end of {ours(operator)}")


def test_one_host_alone_is_waited_for_and_what_was_seen_is_shown(
    operator: Operator, odd: ManyHosts
) -> None:
    for name in ("h01", "h02"):
        odd.put_run(name, f"cmd-{name}", "ended")
    listed(operator, status=0)
    operator.run(["sh", "-c", "rm -rf xdg/*"], cwd=operator.home)  # no warm connection
    odd.doors["h01"].delay_s = 6.0
    slow = operator.runner("status", "cmd-h01", "--json")
    assert slow.returncode == 0, slow.stderr
    assert json.loads(slow.stdout)["contact"]["state"] == "ok"
    odd.doors["h03"].delay_s = None
    began = time.monotonic()
    dead = operator.runner("status", "cmd-h03", "--json")
    assert dead.returncode == 3
    body = json.loads(dead.stdout)
    assert (body["state"], body["contact"]["state"]) == ("running", "unreachable")
    assert b"cmd-h03 may well be running" in dead.stderr
    pulled = operator.runner("pull", "cmd-h03")
    assert pulled.returncode == 3
    assert pulled.stderr.startswith(b"h03: ")
    assert time.monotonic() - began < 70, "each has 20 s and a little"
