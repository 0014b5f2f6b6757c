"""A `venv` worker over a real ssh, as an ordinary user: made, used, killed, started again, gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.app import cancel, pull, space
from runner.app.runs import RunRef
from runner.errors import Conflict, ProvisionError, SpecError
from tests.helpers.fetched import fetch_wheels
from tests.helpers.local_worker import read
from tests.helpers.venv_world import VenvWorld
from tests.helpers.wait import wait_for
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.rig.rig import Rig

TELL = "import json, os, sys; print(json.dumps([sys.prefix, dict(os.environ)]))"
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
ONCE = (
    "import os, time; n = os.environ['RUNNER_ATTEMPT']; print('attempt', n, flush=True); "
    "time.sleep(600 if n == '1' else 0)"
)


@pytest.fixture
def world(me: Operator, sshd: RigHost, rig: Rig) -> Iterator[VenvWorld]:
    sshd.lay_home(rig.public_key)
    made = VenvWorld(me, sshd, fetch_wheels(rig.paths.cache / "wheels"))
    try:
        yield made
    finally:
        made.close()
        sshd.lay_home(rig.public_key)


def test_made_found_used_and_taken_away_without_a_trace(world: VenvWorld) -> None:
    before = world.tree()
    data = world.rig_host.tmp / "atari"
    data.mkdir(exist_ok=True)
    (data / "x").write_text("pixels")
    world.write('[env]\nGREETING = "a b"\n[data]\natari = "/tmp/atari"\n')
    with pytest.raises(ProvisionError, match="there is no worker there yet"):
        world.submit("true")

    # broken off, and asked again
    first = world.operator.popen([sys.executable, "-m", "runner", "provision", "host=box"])
    wait_for(lambda: any(world.runners.glob("venvs/*/bin/python3")), 60, "a half-made environment")
    first.kill()
    first.wait()
    made = world.provision()
    assert made.changed and made.pin == "small" and made.torch == ""
    assert "will make on box: environment of small with /usr/bin/python3" in world.report.text
    assert "will not: use sudo, open a port, change sshd or your keys there" in world.report.text
    found = world.supervisors(), world.dispatchers()
    again = world.provision()
    assert (again.changed, again.worker) == (False, made.worker)
    assert (world.supervisors(), world.dispatchers()) == found and world.is_one_worker()
    assert "will make" not in world.report.text

    # what a job is told
    run = world.submit("python", "-c", TELL)
    assert world.wait(run)["outcome"] == "done"
    prefix, env = json.loads(world.log(run))
    assert Path(prefix).parent == world.runners / "venvs"
    assert env["PATH"].startswith(f"{prefix}/bin:") and env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["HOME"] == f"{world.workspace}/.home"
    assert "RUNNER_VENV" not in env and "SSH_CONNECTION" not in env
    looking = world.submit("sh", "-c", 'cat "$RUNNER_DATA/atari/x"; echo "$GREETING"')
    assert world.wait(looking)["outcome"] == "done"
    assert world.log(looking) == "pixelsa b\n"
    sleeping = world.submit("python", "-c", SLEEP)
    world.until_logged(sleeping, "up")
    report = pull.pull(world.ctx, RunRef(run, "box"), None)
    assert (report.path / "logs/rank-0.log").read_text() == world.log(run)

    # the environment of another pin
    with pytest.raises(ProvisionError) as refused:
        world.submit("true", words=("image=other",))
    assert "runner provision host=box image=other" in refused.value.advice
    assert world.provision(image="other").changed
    six = world.submit("python", "-c", "import six, supervisor", words=("image=other",))
    assert world.wait(six)["outcome"] == "done", world.log(six)
    without = world.submit("python", "-c", "import six")
    assert world.wait(without)["outcome"] == "failed"
    assert len(world.environments()) == 2 and world.is_one_worker()
    with pytest.raises(SpecError, match="has no list `pip`"):
        world.provision(image="bare")

    # gone again, but not under a run that lives
    with pytest.raises(Conflict, match=rf"runs live there \({sleeping}\); nothing was taken away"):
        world.down(purge=True)
    assert world.is_one_worker()
    asked = cancel.cancel(world.ctx, [RunRef(sleeping, "box")], cancel.Order(True))
    assert asked[0].outcome == "cancelled"
    assert world.down().removed.count("environment") == 2
    assert world.log(run) and not world.environments()
    wait_for(lambda: not world.mine(), 5, "the end of the last connection's processes")
    assert not list(world.rig_host.tmp.glob("runner-*"))
    with pytest.raises(ProvisionError, match="there is no worker there yet"):
        world.submit("true")
    assert world.ctx.store.record(run) is not None
    down = world.down(purge=True)
    assert world.ctx.store.records() == []  # what is nowhere any more is not listed
    assert down.removed == ("workspace",)
    assert world.tree() == before


def test_what_is_killed_comes_back_and_its_runs_go_on(world: VenvWorld) -> None:
    world.provision()
    run = world.submit("python", "-c", ONCE)
    world.until_logged(run, "attempt 1")
    members = {pid for pid, words in world.mine().items() if "RUNNER_ATTEMPT" in words}
    for victim in (world.supervisors, world.dispatchers):
        before = victim()
        os.kill(before[0], signal.SIGKILL)
        wait_for(
            lambda v=victim, b=before: v() != b and world.is_one_worker(), 20, "one worker again"
        )
    assert members and members <= set(world.mine())  # untouched
    assert world.state(run)["attempt"] == 1

    # another environment is made: the worker moves into it, the run stays where it is
    old = world.environments()
    images = world.operator.project / "images.toml"
    images.write_text(images.read_text().replace('"py-spy==0.4.3", ', ""))
    assert world.provision().changed
    wait_for(world.is_one_worker, 20, "one worker")
    assert members <= set(world.mine()) and len(world.environments()) == 2
    moved = world.mine()[world.supervisors()[0]]
    assert old[0] not in moved
    later = world.submit("python", "-c", TELL)
    assert world.wait(later)["outcome"] == "done"
    assert old[0] not in world.log(later)

    # as after a reboot: nothing lives, sockets lie around; two clients at once start one worker
    world.kill_all()
    assert list(world.rig_host.tmp.glob("runner-*/supervisor.sock"))
    proc = world.workspace / "runs" / run / "attempts/1/proc.json"
    born = json.loads(proc.read_text())
    born["launcher"]["boot"] = "the one before"
    proc.write_text(json.dumps(born))
    clients = [threading.Thread(target=world.info) for _ in range(2)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert world.is_one_worker()
    assert world.wait(run)["outcome"] == "done"
    assert world.cause(run, 1) == "host-restart" and "attempt 2" in world.log(run)
    removed = space.collect(world.ctx, "box")
    assert [what for what, *_ in removed.items if what.startswith("venvs/")] == [f"venvs/{old[0]}"]
    assert old[0] not in world.environments() and world.is_one_worker()


def test_an_environment_that_lost_its_python_is_told_of_and_mended(world: VenvWorld) -> None:
    worker = world.provision().worker
    (old,) = world.environments()
    held = world.submit("python", "-c", ONCE)
    world.until_logged(held, "attempt 1")
    go = world.workspace / "go"
    before = world.submit("sh", "-c", f"until [ -e {go} ]; do sleep 0.1; done")
    queued = world.submit("python", "-c", TELL)
    python = world.runners / "venvs" / old / "bin/python3"
    python.unlink()
    python.symlink_to("/opt/gone/python3")
    go.touch()
    wait_for(lambda: world.state(queued).get("state") == "ended", 30, "the end of what waited")
    ended = read(world.workspace / "runs" / queued / "attempts/1/exit.json")
    lost = "image small has lost its Python: /opt/gone/python3 is gone; provision it again"
    assert ended["cause"]["text"].endswith(lost), ended
    assert world.state(before)["outcome"] == "done"
    mended = world.provision()
    assert mended.changed and mended.worker == worker
    (new,) = [name for name in world.environments() if name != old]
    run = world.submit("python", "-c", TELL)
    assert world.wait(run)["outcome"] == "done" and new in world.log(run)
    assert world.state(held)["state"] == "running"  # in what is left of the other
    # half-made, by one who was killed: also where nothing is to be made
    half = world.runners / "venvs/half/tmp"
    half.mkdir(parents=True)
    for each in (half, half.parent):
        os.chown(each, world.rig_host.spec.uid, world.rig_host.spec.uid)
    assert not world.provision().changed
    assert world.environments() == sorted([old, new])
    assert "removed    1 environment that nobody uses" in world.report.text


def test_an_odd_home_a_chatty_shell_and_a_start_at_boot(
    me: Operator, sshd: RigHost, rig: Rig
) -> None:
    passwd = sshd.folder / "etc/passwd"
    as_it_was = passwd.read_text()
    home = sshd.folder / "home" / "it's 50% odd"
    sshd.lay_home(rig.public_key)
    sshd.home.rename(home)
    moved = as_it_was.replace(f"{sshd.home}:/bin/bash", f"{home}:/usr/bin/fish")
    passwd.write_text(moved)
    chatty = home / ".config/fish/config.fish"
    chatty.parent.mkdir(parents=True)
    chatty.write_text("echo HELLO; echo x >&2\n")
    sshd.run(["chown", "-R", f"{sshd.user}:", home])
    world = VenvWorld(me, sshd, fetch_wheels(rig.paths.cache / "wheels"), home)
    as_user = ["setpriv", f"--reuid={sshd.spec.uid}", f"--regid={sshd.spec.uid}", "--init-groups"]
    theirs = "# mine\n@reboot echo '%' # runner\n\n0 0 * * * true   # no newline after this"
    try:
        sshd.run([*as_user, "sh", "-c", 'printf %s "$1" | crontab -', "x", theirs + "\n"])
        world.provision(at_boot=True)
        assert "at boot    cron" in world.report.text
        assert world.info()["at_boot"] == "cron"
        table = sshd.run([*as_user, "crontab", "-l"]).stdout
        assert table.startswith(theirs + "\n") and table.count("\n") == theirs.count("\n") + 2
        world.provision(at_boot=True)
        assert sshd.run([*as_user, "crontab", "-l"]).stdout == table
        run = world.submit("python", "-c", ONCE)
        world.until_logged(run, "attempt 1")
        world.kill_all()
        # as cron does it: % ends the command unless escaped, sh runs it, nearly nothing is set
        line = table.splitlines()[-1].removeprefix("@reboot ").replace("\\%", "%")
        env = ["env", "-i", f"HOME={home}", "PATH=/usr/bin:/bin", f"LOGNAME={sshd.user}"]
        sshd.run([*as_user, *env, "/bin/sh", "-c", line])
        wait_for(world.is_one_worker, 20, "the worker that was started at boot")
        assert world.wait(run)["outcome"] == "done"
        world.provision(at_boot=False)
        assert sshd.run([*as_user, "crontab", "-l"]).stdout == theirs + "\n"
        assert world.info()["at_boot"] is None
        world.provision(at_boot=True)
        world.down()
        assert sshd.run([*as_user, "crontab", "-l"]).stdout == theirs + "\n"
    finally:
        world.close()
        sshd.run([*as_user, "crontab", "-r"], check=False)
        passwd.write_text(as_it_was)
        sshd.run(["rm", "-rf", home])
        sshd.lay_home(rig.public_key)


def test_what_keeps_an_environment_from_being_made_is_told_in_a_line(world: VenvWorld) -> None:
    world.let_pip("[global]\nindex-url = http://127.0.0.1:9/simple\nretries = 0\n")
    with pytest.raises(ProvisionError, match="box: its pip reaches no package index") as caught:
        world.provision()
    assert caught.value.status == 4 and len(caught.value.advice) == 3
    assert not list(world.runners.glob("venvs/*/runner.json"))
    wait_for(lambda: not world.mine(), 5, "the end of pip's last process")
    world.write('python = "/usr/bin/none"\n')
    with pytest.raises(ProvisionError, match="box: /usr/bin/none is not there, or is no Python"):
        world.provision()
    world.write('network = "none"\n')
    with pytest.raises(SpecError, match='network is "none"; a venv has the machine\'s own'):
        world.provision()
    slow = world.home / "slow"
    slow.write_text("#!/bin/sh\nsleep 600\n")
    slow.chmod(0o755)
    world.write(f'python = "{slow}"\n')
    with pytest.raises(ProvisionError, match=f"box: {slow} does not answer within 10 s"):
        world.provision()
    wait_for(lambda: not world.mine(), 5, "the end of what was asked")
    slow.unlink()
    shutil.rmtree(world.home / ".local")
    before = world.tree()
    world.write(workspace="/root/x")
    with pytest.raises(ProvisionError, match="box: its workspace /root/x cannot be made") as caught:
        world.provision()
    assert "Permission denied" in caught.value.advice[0]
    assert world.tree() == before
    world.write(workspace="~")
    with pytest.raises((ProvisionError, SpecError), match="workspace"):
        world.provision()
