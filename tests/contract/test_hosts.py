"""`host add`: keys are shown and accepted by someone, or nothing is written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from runner import inventory
from runner.app import hosts
from runner.app.context import Context, open_context
from runner.carriers.host_keys import parse_key
from runner.errors import (
    AuthRefused,
    Conflict,
    HostError,
    HostKeyError,
    NotFound,
    SpecError,
    Unreachable,
)
from tests.helpers.local_worker import Notes
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.rig.rig import Rig


@pytest.fixture
def me(me: Operator) -> Operator:
    (me.project / "hosts").mkdir()
    return me


@pytest.fixture
def heard() -> Notes:
    return Notes()


@pytest.fixture
def ctx(me: Operator, heard: Notes) -> Context:
    return open_context(heard, me.project)


def fingerprint(host: RigHost) -> str:
    return parse_key(host.host_key).fingerprint


def written(me: Operator) -> list[str]:
    return sorted(path.name for path in (me.project / "hosts").iterdir())


def test_a_known_host_is_not_asked_about_and_not_pinned(
    me: Operator, ctx: Context, heard: Notes
) -> None:
    path = hosts.add(ctx, "gpu1", "rig-gpu", None, None, None)
    assert tomllib.loads(path.read_text()) == {"ssh": "rig-gpu"}
    assert "rig-login  known (your known_hosts)" in heard.text
    assert "wrote hosts/gpu1.toml; your known_hosts is untouched" in heard.text
    assert "root" in heard.notes[-1]


def test_unknown_keys_on_the_way_are_shown_accepted_and_pinned(
    me: Operator, ctx: Context, heard: Notes, rig: Rig
) -> None:
    me.trust()
    questions: list[str] = []

    def ask(question: str) -> str:
        questions.append(question)
        return "yes"

    path = hosts.add(ctx, "gpu1", "rig-gpu", "rig-login", None, ask)
    assert questions == [
        f"Is it {name}'s? Type yes, or paste the fingerprint you were given: "
        for name in ("rig-login", "gpu1")
    ]
    assert tomllib.loads(path.read_text()) == {
        "ssh": "rig-gpu",
        "jump": "rig-login",
        "jump_key": rig.login.host_key,
        "host_key": rig.gpu.host_key,
    }
    assert f"ED25519  {fingerprint(rig.gpu)}" in heard.text
    assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub" in heard.text
    assert me.known_hosts.read_bytes() == b""
    assert inventory.read_host(path).host_key == rig.gpu.host_key


def test_a_pasted_fingerprint_counts_and_a_wrong_one_writes_nothing(
    me: Operator, ctx: Context, rig: Rig
) -> None:
    me.trust()
    line = f"256 {fingerprint(rig.plain)} root@plain (ED25519)"
    hosts.add(ctx, "a", "rig-plain", None, None, lambda _: line)
    for answer in (fingerprint(rig.gpu), "no", "", "y"):
        with pytest.raises(HostKeyError):
            hosts.add(ctx, "b", "rig-plain", None, None, lambda _, said=answer: said)
    assert written(me) == ["a.toml"]


def test_without_a_terminal_nothing_is_written_and_the_command_is_told(
    me: Operator, ctx: Context, rig: Rig
) -> None:
    me.trust(rig.login)
    with pytest.raises(HostKeyError) as caught:
        hosts.add(ctx, "gpu1", "rig-gpu", "rig-login", None, None)
    told = fingerprint(rig.gpu)
    command = f"  runner host add gpu1 rig-gpu --jump rig-login --fingerprint {told}"
    assert caught.value.status == 3 and command in caught.value.advice
    assert written(me) == []
    path = hosts.add(ctx, "gpu1", "rig-gpu", "rig-login", [told], None)
    assert tomllib.loads(path.read_text())["host_key"] == rig.gpu.host_key


def test_an_unknown_jump_without_a_terminal_is_told_too(
    me: Operator, ctx: Context, rig: Rig
) -> None:
    """Each refusal tells the command that goes one hop further."""
    me.trust()
    command = ["  runner host add gpu1 rig-gpu"]
    for hop in (rig.login, rig.gpu):
        with pytest.raises(HostKeyError) as caught:
            told = command[0].split(" --fingerprint ")[1:]
            hosts.add(ctx, "gpu1", "rig-gpu", None, told, None)
        assert caught.value.message.endswith("the host key is not known; nothing was written")
        command[0] += f" --fingerprint {fingerprint(hop)}"
        assert command[0] in caught.value.advice and written(me) == []
    keys = [fingerprint(rig.gpu), fingerprint(rig.login)]  # in whatever order
    path = hosts.add(ctx, "gpu1", "rig-gpu", None, keys, None)
    found = tomllib.loads(path.read_text())
    assert (found["jump_key"], found["host_key"]) == (rig.login.host_key, rig.gpu.host_key)
    assert me.known_hosts.read_bytes() == b""


def test_a_jumps_fingerprint_does_not_accept_the_host_and_none_is_left_over(
    me: Operator, ctx: Context, rig: Rig
) -> None:
    login, gpu, plain = map(fingerprint, (rig.login, rig.gpu, rig.plain))
    me.trust(rig.login, rig.gpu)
    hosts.add(ctx, "known", "rig-gpu", None, [login, gpu, gpu], None)
    for told, says in (
        ([login, plain], "gpu1: its key is not the one you were told"),
        ([login, gpu, plain], f"gpu1: no machine on the way has the key {plain}"),
    ):
        for known in (True, False):
            me.trust(*([rig.login, rig.gpu] if known else []))
            with pytest.raises(HostKeyError) as caught:
                hosts.add(ctx, "gpu1", "rig-gpu", None, told, None)
            assert caught.value.message.startswith(says)
    assert written(me) == ["known.toml"]


@pytest.mark.parametrize("known", [True, False])
def test_a_given_fingerprint_that_is_wrong_writes_nothing(
    me: Operator, ctx: Context, rig: Rig, known: bool
) -> None:
    if not known:
        me.trust()
    with pytest.raises(HostKeyError, match="not the one you were told"):
        hosts.add(ctx, "a", "rig-plain", None, [fingerprint(rig.gpu)], None)
    with pytest.raises(SpecError, match="not a fingerprint"):
        hosts.add(ctx, "a", "rig-plain", None, ["SHA256:short"], None)
    assert written(me) == []


def test_a_changed_key_is_refused_and_not_asked_about(me: Operator, ctx: Context, rig: Rig) -> None:
    me.trust_wrongly(rig.plain)

    def ask(question: str) -> str:
        raise AssertionError(question)

    with pytest.raises(HostKeyError, match="CHANGED"):
        hosts.add(ctx, "a", "rig-plain", None, None, ask)
    assert written(me) == []


def test_hosts_that_do_not_answer_write_nothing(me: Operator, ctx: Context, rig: Rig) -> None:
    with pytest.raises(Unreachable):
        hosts.add(ctx, "a", "ssh://127.0.0.1:1", None, None, None)
    me.trust(rig.login, rig.gpu)
    me.use_key("other_ed25519")
    with pytest.raises(AuthRefused, match="the jump"):
        hosts.add(ctx, "a", "rig-gpu", None, None, None)
    assert written(me) == []


def test_what_is_there_is_never_replaced(me: Operator, ctx: Context) -> None:
    path = me.project / "hosts" / "a.toml"
    path.write_text("# mine\n")
    with pytest.raises(Conflict) as caught:
        hosts.add(ctx, "a", "rig-plain", None, None, None)
    assert caught.value.status == 7 and path.read_text() == "# mine\n"


@pytest.mark.parametrize("name", ["", "-x", "a/b", "../a", "a b", "local"])
def test_bad_names_are_refused(ctx: Context, name: str) -> None:
    with pytest.raises(SpecError):
        hosts.add(ctx, name, "rig-plain", None, None, None)


@pytest.mark.parametrize("target", ["-oProxyCommand=touch x", "a b", "$(touch x)"])
def test_bad_targets_are_refused(me: Operator, ctx: Context, target: str) -> None:
    with pytest.raises(SpecError):
        hosts.add(ctx, "a", target, None, None, None)
    with pytest.raises(SpecError):
        hosts.add(ctx, "a", "rig-plain", target, None, None)
    assert written(me) == []


def test_a_jump_that_is_an_unset_variable_of_a_script_is_refused(
    me: Operator, ctx: Context
) -> None:
    with pytest.raises(SpecError, match="--jump is empty"):
        hosts.add(ctx, "a", "rig-plain", "", None, None)
    assert written(me) == []


def test_without_an_ssh_client_it_says_so(
    me: Operator, ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", me.without_ssh()["PATH"])
    with pytest.raises(HostError, match="without an ssh client"):
        hosts.add(ctx, "a", "rig-plain", None, None, None)


def test_removing_takes_the_file_and_nothing_else(me: Operator, ctx: Context, heard: Notes) -> None:
    hosts.add(ctx, "a", "rig-plain", None, None, None)
    again = open_context(heard, me.project)
    assert list(again.hosts) == ["a", "local"]
    hosts.remove(again, "a")
    assert written(me) == []
    for name in ("a", "local"):
        with pytest.raises(NotFound):
            hosts.remove(open_context(heard, me.project), name)


def test_a_file_that_is_wrong_can_be_removed(me: Operator, heard: Notes) -> None:
    (me.project / "hosts/bad.toml").write_text("ssh = 3\nfoo = 1\n")
    hosts.remove(open_context(heard, me.project), "bad")
    assert written(me) == []


def test_text_is_quoted_for_toml() -> None:
    for text in ('a"b\\c', "é\x7f\u2028", "tab\t"):
        assert tomllib.loads(f"x = {hosts.quoted(text)}") == {"x": text}


def test_this_machines_docker_has_no_key(me: Operator, ctx: Context) -> None:
    path = hosts.add(ctx, "box", "local", None, None, None)
    assert tomllib.loads(Path(path).read_text()) == {"ssh": "local"}
