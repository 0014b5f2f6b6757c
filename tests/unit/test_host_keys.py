"""Host keys: what is read, what is judged, what is said."""

from __future__ import annotations

import base64

import pytest

from runner.carriers.host_keys import (
    HostKey,
    KnownKey,
    KnownKeys,
    Verdict,
    check_pin,
    judge,
    key_algorithms,
    parse_found,
    parse_key,
    refusal,
)
from runner.carriers.ssh_config import Hop, Route, SshConfig, Target
from runner.errors import HostKeyError


def key(letter: str, kind: str = "ssh-ed25519") -> HostKey:
    name = kind.encode()
    return HostKey(kind, len(name).to_bytes(4, "big") + name + letter.encode() * 32)


A, B, C = key("a"), key("b"), key("c")
RSA = key("r", "ssh-rsa")


def known(*good: HostKey, revoked: tuple[HostKey, ...] = ()) -> KnownKeys:
    return KnownKeys(
        tuple(KnownKey(item, f"known_hosts:{n}") for n, item in enumerate(good, 1)),
        tuple(KnownKey(item, "known_hosts:9") for item in revoked),
    )


def way(pinned: HostKey | None = None, *, jump: bool = False) -> Route:
    hop = Hop(
        "gpu1",
        Target("10.20.0.7", "drl"),
        SshConfig("10.20.0.7", 22, "drl"),
        pinned.text if pinned else None,
        "hosts/gpu1.toml",
    )
    login = Hop("login.lab", Target("login.lab"), SshConfig("login.lab", 22, "drl"))
    return Route("gpu1", (login, hop) if jump else (hop,), "login.lab" if jump else None)


def test_a_key_is_read_and_shown_as_ssh_keygen_shows_it() -> None:
    text = (
        "ssh-ed25519 "
        "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl github.com"
    )
    read = parse_key(text)
    assert read.shown == "ED25519 SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"
    assert read.text == text.rsplit(" ", 1)[0]


@pytest.mark.parametrize(
    "text",
    ["", "ssh-ed25519", "ssh-ed25519 AAAA", "ssh-ed25519 no!base64",
     "ssh-rsa " + base64.b64encode(A.blob).decode()],
)  # fmt: skip
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="public key"):
        parse_key(text)


def test_lines_that_ssh_keygen_found_are_told_apart() -> None:
    text = (
        f"# Host gpu1 found: line 3 \ngpu1 {A.text}\n"
        f"# Host gpu1 found: line 7 REVOKED\n@revoked gpu1 {B.text}\n"
        f"# Host gpu1 found: line 8 CA\n@cert-authority *.lab {C.text}\n"
        "# Host gpu1 found: line 9 \ngpu1 ssh-ed25519 broken!\n"
    )
    good, revoked, authority = parse_found(text, "kh")
    assert good == [KnownKey(A, "kh:3")]
    assert revoked == [KnownKey(B, "kh:7")]
    assert authority


@pytest.mark.parametrize(
    ("shown", "trusted", "revoked", "verdict"),
    [
        (A, (A,), (), Verdict.GOOD),
        (A, (B, A), (), Verdict.GOOD),
        (A, (B,), (), Verdict.CHANGED),
        (A, (RSA,), (), Verdict.CHANGED),
        (A, (), (), Verdict.UNKNOWN),
        (A, (A,), (A,), Verdict.REVOKED),
        (A, (), (A,), Verdict.REVOKED),
    ],
)
def test_a_shown_key_is_judged(
    shown: HostKey, trusted: tuple[HostKey, ...], revoked: tuple[HostKey, ...], verdict: Verdict
) -> None:
    assert judge(shown, trusted, known(revoked=revoked)) is verdict


def test_only_kinds_of_keys_we_hold_are_asked_for() -> None:
    assert key_algorithms([RSA]) == ["rsa-sha2-512", "rsa-sha2-256"]
    assert key_algorithms([A, B]) == ["ssh-ed25519"]
    assert key_algorithms([])[0] == "ssh-ed25519" and len(key_algorithms([])) > 3


def test_a_changed_key_says_both_keys_where_from_and_how_reached() -> None:
    route = way(A, jump=True)
    error = refusal(route, route.last, B, known())
    assert isinstance(error, HostKeyError) and error.status == 3
    assert error.message == "gpu1: HOST KEY CHANGED; nothing was sent"
    text = "\n".join(error.advice)
    assert f"expected  {A.shown}\n          from hosts/gpu1.toml" in text
    assert f"shown     {B.shown}\n          by 10.20.0.7 port 22, reached through login.lab" in text


def test_a_changed_key_of_the_jump_names_the_jump_and_the_line() -> None:
    route = way(jump=True)
    error = refusal(route, route.hops[0], B, known(C))
    assert error is not None and error.message.startswith("gpu1: login.lab (the jump): HOST KEY")
    assert "          from known_hosts:1" in error.advice


def test_an_unknown_key_says_what_to_write_and_what_to_type() -> None:
    route = way(jump=True)
    error = refusal(route, route.last, A, known())
    assert error is not None
    assert f'  host_key = "{A.text}"' in error.advice
    assert "  ssh -J login.lab drl@10.20.0.7" in error.advice
    assert A.fingerprint in "\n".join(error.advice)


def test_a_revoked_key_is_named_as_such() -> None:
    route = way()
    error = refusal(route, route.last, A, known(A, revoked=(A,)))
    assert error is not None and "REVOKED" in error.message


def test_a_good_key_is_no_error() -> None:
    route = way()
    assert refusal(route, route.last, A, known(B, A)) is None


def test_with_a_pin_that_key_alone_is_good() -> None:
    route = way(A)
    assert refusal(route, route.last, A, known(RSA)) is None
    assert refusal(route, route.last, RSA, known(RSA)) is not None


def test_a_pin_that_known_hosts_contradict_is_refused() -> None:
    route = way(A)
    check_pin(route, route.last, known())
    check_pin(route, route.last, known(RSA))
    check_pin(route, route.last, known(B, A))
    with pytest.raises(HostKeyError, match="different keys"):
        check_pin(route, route.last, known(B))
    with pytest.raises(HostKeyError, match="revoked"):
        check_pin(route, route.last, known(A, revoked=(A,)))
