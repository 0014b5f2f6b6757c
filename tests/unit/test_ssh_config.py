"""What `ssh -G` prints, read into a value; destinations and jumps, split."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from runner.carriers.ssh_config import (
    Target,
    chosen_algorithms,
    parse_config,
    parse_jumps,
    parse_target,
)
from runner.errors import SpecError

PLAIN = """\
user drl
hostname 10.20.0.7
port 2222
identitiesonly no
connecttimeout none
canonicalizehostname false
verifyhostkeydns false
gssapiauthentication yes
"""


def config_of(*lines: str, name: str = "gpu1", **environ: str):  # type: ignore[no-untyped-def]
    return parse_config(PLAIN + "\n".join(lines), name, environ)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("gpu1", Target("gpu1")),
        ("drl@10.20.0.7", Target("10.20.0.7", "drl")),
        ("ssh://drl@gpu1.lab:2222", Target("gpu1.lab", "drl", 2222)),
        ("ssh://gpu1", Target("gpu1")),
        ("ssh://drl@[2001:db8::1]:2222", Target("2001:db8::1", "drl", 2222)),
        ("2001:db8::1", Target("2001:db8::1")),
        ("me@realm@gpu1", Target("gpu1", "me@realm")),
    ],
)
def test_destinations_are_split_as_ssh_splits_them(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    ["", "-oProxyCommand=x", "a b", "@gpu1", "drl@", "drl@-x", "-x@gpu1", "a\nb", "$(id)", "a;b",
     "ssh://h:0", "ssh://h:70000", "ssh://"],
)  # fmt: skip
def test_what_is_no_destination_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="destination"):
        parse_target(text)


def test_jumps_may_have_ports() -> None:
    assert parse_jumps("a@b:22,[::1]:2200, c") == (
        Target("b", "a", 22),
        Target("::1", None, 2200),
        Target("c"),
    )


def test_a_destination_goes_behind_two_dashes() -> None:
    assert Target("gpu1", "drl", 22).words == ["-l", "drl", "-p", "22", "--", "gpu1"]


def test_tokens_are_expanded_as_ssh_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    person = pwd.getpwuid(os.getuid())
    here = pwd.struct_passwd((*person[:5], str(tmp_path), person[6]))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: here)
    monkeypatch.setenv("HOME", "/nowhere")  # which ssh does not look at
    for name in ("id_drl_gpu1", "k_10.20.0.7_2222_%", "env"):
        (tmp_path / name).touch()
    config = config_of(
        "identityfile ~/id_%r_%n",
        "identityfile %d/k_%h_%p_%%",
        "identityfile ${KEYS}/env",
        "identityfile ~/not_there",
        "proxycommand nc %h %p",
        "hostkeyalias box-%h",
        KEYS=str(tmp_path),
    )
    names = [Path(path).name for path in config.identity_files]
    assert names == ["id_drl_gpu1", "k_10.20.0.7_2222_%", "env"]
    assert config.proxy_command == "nc 10.20.0.7 2222"
    assert config.key_names == ("box-%h",)
    assert config.not_honoured == ()


def test_a_token_that_is_not_known_is_told() -> None:
    assert config_of("identityfile ~/id_%Z").not_honoured == ("%Z in ~/id_%Z",)


def test_known_hosts_with_blanks_in_their_names(tmp_path: Path) -> None:
    plain, blank = tmp_path / "a", tmp_path / "b c"
    plain.touch()
    blank.touch()
    config = config_of(f"userknownhostsfile {plain} {blank} /nowhere", "globalknownhostsfile none")
    assert config.known_hosts == (str(plain), str(blank))


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("identityagent none", None),
        ("identityagent SSH_AUTH_SOCK", "/run/agent"),
        ("identityagent $OTHER", "/run/other"),
        ("identityagent /run/third", "/run/third"),
        ("", "/run/agent"),
    ],
)
def test_the_agent_is_the_one_ssh_would_ask(line: str, path: str | None) -> None:
    assert config_of(line, SSH_AUTH_SOCK="/run/agent", OTHER="/run/other").agent == path


@pytest.mark.parametrize(
    "line",
    ["certificatefile ~/id-cert.pub", "knownhostscommand /bin/keys", "pkcs11provider /lib/p.so",
     "verifyhostkeydns yes", "revokedhostkeys /etc/krl", "canonicalizehostname always",
     "bindinterface eth1", "pubkeyauthentication no", "preferredauthentications password"],
)  # fmt: skip
def test_what_paramiko_cannot_honour_is_named(line: str) -> None:
    (told,) = config_of(line).not_honoured
    assert told.lower() == line.replace(" ", "=", 1).lower()


def test_a_plain_configuration_asks_for_nothing_paramiko_cannot_do() -> None:
    config = config_of()
    assert config.not_honoured == ()
    assert (config.user, config.hostname, config.port) == ("drl", "10.20.0.7", 2222)
    assert config.key_names == ("[10.20.0.7]:2222", "10.20.0.7")


def test_a_control_socket_of_the_users_own_is_seen() -> None:
    assert not config_of().own_control
    assert not config_of("controlpath none").own_control
    assert config_of("controlpath /run/cm-x").own_control


def test_algorithms_count_only_where_the_user_chose_them() -> None:
    config = config_of("ciphers aes256-ctr", "macs hmac-sha2-256")
    baseline = {"ciphers": ("aes128-ctr",), "macs": ("hmac-sha2-256",)}
    assert chosen_algorithms(config, baseline) == ["ciphers=aes256-ctr"]


def test_the_environment_is_what_the_configuration_lets_through() -> None:
    lines = ("sendenv LC_*", "sendenv LANG", "setenv LANG=C", "setenv A=b=c")
    config = config_of(*lines, LANG="de", LC_ALL="x", SECRET="no")
    assert dict(config.environment) == {"LC_ALL": "x", "LANG": "C", "A": "b=c"}
    assert "b=c" not in repr(config)
