"""`host rekey`: which key on the way changed is found, shown, accepted, and one line is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.app.context import open_context
from runner.app.rekey import NewKey, rekey
from runner.carriers import open_session
from runner.carriers.host_keys import parse_key
from runner.errors import Conflict, HostKeyError, SpecError, Unreachable
from runner.inventory import read_host
from tests.helpers.become import become
from tests.helpers.local_worker import Notes
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.rig.rig import Rig

AROUND = '# mine\nssh = "{target}"  # by name\n{pins}\n[env]\nhost_key = "not this"\n'


class World:
    """A project with the host gpu1, reached through rig-login."""

    def __init__(self, me: Operator, rig: Rig) -> None:
        self.me = me
        self.rig = rig
        self.heard = Notes()
        self.questions: list[str] = []
        self.path: Path = me.project / "hosts" / "gpu1.toml"

    def write(self, target: str = "rig-gpu", **pins: RigHost) -> None:
        lines = [f"{name} = '{host.host_key}'  # since May" for name, host in pins.items()]
        self.path.write_text(AROUND.format(target=target, pins="\n".join(lines)))

    def rekey(self, fingerprint: str | None = None, answer: str | None = None) -> list[NewKey]:
        def ask(question: str) -> str:
            self.questions.append(question)
            return answer or ""

        ctx = open_context(self.heard, self.me.project)
        return rekey(ctx, "gpu1", fingerprint, ask if answer is not None else None)

    @property
    def said(self) -> str:
        return self.heard.text


@pytest.fixture
def world(operator: Operator, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> World:
    become(operator, monkeypatch)
    (operator.project / "hosts").mkdir()
    operator.trust(rig.login)
    return World(operator, rig)


def fingerprint(host: RigHost) -> str:
    return parse_key(host.host_key).fingerprint


def test_a_new_key_is_shown_beside_the_old_and_only_its_line_is_written(world: World) -> None:
    old, new = world.rig.plain, world.rig.gpu
    world.write(host_key=old)
    before, known = world.path.read_text(), world.me.known_hosts.read_bytes()
    made = world.rekey(answer="yes")
    assert made == [NewKey("host_key", fingerprint(old), fingerprint(new))]
    assert world.path.read_text() == before.replace(f"'{old.host_key}'", f'"{new.host_key}"')
    assert world.questions[0].startswith("Is it gpu1's?")
    assert f"was       ED25519 {fingerprint(old)}" in world.said
    assert f"shown     ED25519 {fingerprint(new)}" in world.said
    assert "rig-login  shows the key it is known by" in world.said
    assert world.me.known_hosts.read_bytes() == known
    with open_session(read_host(world.path)) as session:
        assert session.run(["true"], timeout_s=20).status == 0
    assert world.rekey(answer="yes") == [] and len(world.questions) == 1


def test_the_jump_that_changed_is_found(world: World) -> None:
    world.me.trust()
    login, gpu = world.rig.login, world.rig.gpu
    world.write(jump_key=world.rig.plain, host_key=gpu)
    world.path.write_text('jump = "rig-login"\n' + world.path.read_text())
    made = world.rekey(answer=fingerprint(login))
    assert [new.name for new in made] == ["jump_key"]
    assert world.questions[0].startswith("Is it rig-login's?")
    host = read_host(world.path)
    assert (host.jump_key, host.host_key) == (login.host_key, gpu.host_key)


def test_without_a_terminal_the_command_is_told_and_works(world: World) -> None:
    world.write(host_key=world.rig.plain)
    before = world.path.read_bytes()
    with pytest.raises(HostKeyError) as caught:
        world.rekey()
    told = fingerprint(world.rig.gpu)
    assert caught.value.status == 3
    assert f"  runner host rekey gpu1 --fingerprint {told}" in caught.value.advice
    assert fingerprint(world.rig.plain) in "\n".join(caught.value.advice)
    assert world.path.read_bytes() == before
    assert [new.new for new in world.rekey(told)] == [told]


def test_what_is_not_accepted_is_not_written(world: World) -> None:
    world.write(target="rig-plain", host_key=world.rig.gpu)
    before = world.path.read_bytes()
    for answer in ("no", "y"):
        with pytest.raises(HostKeyError, match="not accepted"):
            world.rekey(answer=answer)
    with pytest.raises(HostKeyError, match="not the one you were told"):
        world.rekey(fingerprint(world.rig.login))
    with pytest.raises(SpecError, match="not a fingerprint"):
        world.rekey("SHA256:short")
    assert world.path.read_bytes() == before


def test_the_same_key_is_said_to_be_the_same(world: World) -> None:
    world.write(target="rig-plain", host_key=world.rig.plain)
    before = world.path.read_bytes()
    assert world.rekey() == [] == world.rekey(fingerprint(world.rig.plain))
    assert "gpu1  shows the key it is known by" in world.said
    with pytest.raises(HostKeyError, match="not the one you were told"):
        world.rekey(fingerprint(world.rig.login))
    assert world.path.read_bytes() == before


@pytest.mark.parametrize("pinned", [True, False])
def test_an_old_key_in_known_hosts_is_left_to_its_owner(world: World, pinned: bool) -> None:
    world.me.trust_wrongly(world.rig.gpu)
    world.write(**({"host_key": world.rig.gpu} if pinned else {}))
    known, before = world.me.known_hosts.read_bytes(), world.path.read_bytes()
    with pytest.raises(HostKeyError, match="your known_hosts has another key") as caught:
        world.rekey(answer="yes")
    name, file = world.rig.gpu.known_hosts_name, world.me.known_hosts
    advice = caught.value.advice
    assert f"          in {file}:3" in advice and f"  ssh-keygen -R {name} -f {file}" in advice
    assert (world.me.known_hosts.read_bytes(), world.path.read_bytes()) == (known, before)
    done = world.me.run(["ssh-keygen", "-R", name, "-f", file])
    assert done.returncode == 0
    made = world.rekey(answer="yes")  # what the advice says next
    assert read_host(world.path).host_key == world.rig.gpu.host_key
    assert bool(made) != pinned


def test_a_pin_is_written_though_known_hosts_are_still_old(world: World) -> None:
    world.me.trust_wrongly(world.rig.gpu)
    world.write(host_key=world.rig.plain)
    with pytest.raises(HostKeyError, match=r"hosts/gpu1\.toml has the new one"):
        world.rekey(answer="yes")
    assert read_host(world.path).host_key == world.rig.gpu.host_key


def test_a_key_that_is_not_known_yet_is_pinned_by_a_line_more(world: World) -> None:
    world.write()
    before = world.path.read_text()
    told = fingerprint(world.rig.gpu)
    assert world.rekey(told) == [NewKey("host_key", None, told)]
    first, second, rest = before.split("\n", 2)
    line = f'host_key = "{world.rig.gpu.host_key}"'
    assert world.path.read_text() == "\n".join([first, second, line, rest])


def test_a_revoked_key_is_never_taken(world: World) -> None:
    gpu = world.rig.gpu
    with world.me.known_hosts.open("a") as file:
        file.write(f"@revoked {gpu.known_hosts_line}")
    world.write(host_key=world.rig.plain)
    with pytest.raises(HostKeyError, match="REVOKED"):
        world.rekey(fingerprint(gpu))


def test_a_host_that_does_not_answer_and_this_machine(world: World) -> None:
    world.write(target="ssh://127.0.0.1:1", host_key=world.rig.plain)
    before = world.path.read_bytes()
    with pytest.raises(Unreachable):
        world.rekey(answer="yes")
    assert world.path.read_bytes() == before
    ctx = open_context(world.heard, world.me.project)
    with pytest.raises(SpecError, match="this machine itself"):
        rekey(ctx, "local", None, None)


def test_a_file_that_changes_meanwhile_is_left(world: World) -> None:
    world.write(host_key=world.rig.plain)
    from runner import pins

    class Edited(type(world.path)):  # type: ignore[misc]
        """A path whose file someone saves while it is rewritten."""

        def read_bytes(self) -> bytes:
            data = super().read_bytes()
            self.write_bytes(data + b"# edited\n")
            return bytes(data)

    with pytest.raises(Conflict, match="changed meanwhile"):
        pins.write_pin(Edited(world.path), "host_key", world.rig.gpu.host_key)
    assert b"# edited" in world.path.read_bytes()
    assert world.rig.plain.host_key in world.path.read_text()


def test_the_command_prints_what_changed(world: World) -> None:
    world.write(host_key=world.rig.plain)
    refused = world.me.runner("host", "rekey", "gpu1")
    assert refused.returncode == 3 and refused.stdout == b""
    told = fingerprint(world.rig.gpu)
    assert f"runner host rekey gpu1 --fingerprint {told}" in refused.stderr.decode()
    done = world.me.runner("host", "rekey", "gpu1", "--fingerprint", told, "--json")
    assert done.returncode == 0
    keys = json.loads(done.stdout)["keys"]
    assert keys == [{"name": "host_key", "old": fingerprint(world.rig.plain), "new": told}]
