"""The worker's sshd_config as a real sshd reads it, its host key, and who may log in."""

from __future__ import annotations

import grp
import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sshd
from paths import Workspace

pytestmark = pytest.mark.skipif(sshd.missing() is not None, reason="left out: sshd: not installed")

ODD = {
    "PATH": "/opt/conda/bin:/usr/bin",
    "QUOTES": "a \"b\" 'c' \\ back\\\\slash",
    "SIGNS": "100%h #not-a-comment $HOME `x` ü",
    "EMPTY": "",
    "CUDA_VISIBLE_DEVICES": "",
}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(str(tmp_path / "wörk space 100%"))
    made.make()
    return made


def effective(text: str, folder: Path) -> dict[str, list[str]]:
    """What sshd makes of a configuration, by keyword."""
    path = folder / "sshd_config"
    path.write_text(text)
    os.makedirs("/run/sshd", exist_ok=True)
    done = subprocess.run(
        [str(sshd.program("sshd")), "-T", "-f", path], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stdout.decode().splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


def test_a_real_sshd_reads_it_as_it_is_meant(workspace: Workspace, tmp_path: Path) -> None:
    env = {**ODD, "TWO": "lines\nare left out", "USER": "nobody", "not a name": "x"}
    key = sshd.host_key(workspace)
    found = effective(sshd.configuration(workspace, env, key, "/k 100%/keys"), tmp_path)
    wanted = {"passwordauthentication": "no", "kbdinteractiveauthentication": "no"}
    wanted.update(pubkeyauthentication="yes", authenticationmethods="publickey", usepam="no")
    wanted.update(allowagentforwarding="no", x11forwarding="no", allowtcpforwarding="local")
    wanted.update(gatewayports="no", permittunnel="no", permituserenvironment="no")
    wanted["permitopen"] = "127.0.0.1:* localhost:* [::1]:*"
    assert {name: found[name][0] for name in wanted} == wanted
    assert found["hostkey"] == [key]
    assert found["authorizedkeysfile"] == ["/k 100%%/keys"]
    assert len(found["allowusers"]) == 1
    told = dict(item.split("=", 1) for item in found["setenv"])
    assert told == {**ODD, "RUNNER_PATH": ODD["PATH"]}


def test_the_host_key_is_made_once_whoever_comes_first(workspace: Workspace) -> None:
    with ThreadPoolExecutor(4) as pool:
        keys = set(pool.map(lambda _: sshd.public_host_key(workspace), range(8)))
    assert len(keys) == 1 and keys.pop().startswith("ssh-ed25519 ")
    path = Path(sshd.host_key(workspace))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)  # as after a backup was put back
    before = path.read_bytes()
    assert sshd.host_key(workspace) == str(path) and path.read_bytes() == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"damaged")
    with pytest.raises(sshd.CannotLogIn, match="cannot be read"):
        sshd.public_host_key(workspace)


def test_keys_are_looked_at_before_anyone_is_let_in(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    path = folder / "authorized_keys"
    assert "is not there" in str(sshd.problem(str(path)))
    folder.mkdir(mode=0o700)
    path.write_text("")
    assert "is empty" in str(sshd.problem(str(path)))
    path.write_text("ssh-ed25519 AAAA one\nssh-ed25519 BBBB two words\n")
    assert sshd.problem(str(path)) is None
    assert sshd.is_authorized(str(path), "ssh-ed25519 BBBB")
    assert not sshd.is_authorized(str(path), "ssh-ed25519 CCCC")
    for mode, who in ((0o666, path), (0o770, folder)):
        before = stat.S_IMODE(who.stat().st_mode)
        who.chmod(mode)
        assert "others could add keys" in str(sshd.problem(str(path)))
        who.chmod(before)


def test_a_profile_is_made_where_there_is_none(workspace: Workspace) -> None:
    home = Path(workspace.home)
    sshd.make_profile(workspace.home)
    asked = subprocess.run(
        ["bash", "-lc", "echo $PATH"],
        env={"HOME": str(home), "RUNNER_PATH": "/first:/usr/bin", "PATH": "/usr/bin"},
        capture_output=True,
        check=True,
    )
    assert asked.stdout == b"/first:/usr/bin\n"
    (home / ".profile").write_text("mine")
    sshd.make_profile(workspace.home)
    assert (home / ".profile").read_text() == "mine"


def test_a_terminal_that_sshd_could_not_give_away_is_known_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main, side = os.openpty()
    given = os.fstat(side).st_gid
    os.close(main)
    os.close(side)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 1000)
    monkeypatch.setattr(os, "getgroups", lambda: [1000])

    def is_tty(gid: int) -> None:
        monkeypatch.setattr(grp, "getgrnam", lambda name: grp.struct_group((name, "", gid, [])))

    is_tty(given)
    assert sshd.no_terminal() is None
    is_tty(given + 1)
    assert f"/dev/pts is mounted without gid={given + 1}" in str(sshd.no_terminal())
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert sshd.no_terminal() is None
