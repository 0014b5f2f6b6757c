"""What ssh's last words mean."""

from __future__ import annotations

import pytest

from runner.carriers.ssh_config import Hop, Route, SshConfig, Target
from runner.carriers.ssh_failures import (
    GONE,
    LOCKED,
    auth_refused,
    is_host_key_trouble,
    ssh_failure,
)
from runner.errors import AuthRefused, HostError, Unreachable

GPU = Hop("gpu1", Target("10.20.0.7", "drl"), SshConfig("10.20.0.7", 22, "drl"))
LOGIN = Hop("login.lab", Target("login.lab"), SshConfig("login.lab", 22, "me"))
DIRECT = Route("gpu1", (GPU,))
JUMPING = Route("gpu1", (LOGIN, GPU), "login.lab")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "ssh: connect to host 10.20.0.7 port 22: Connection timed out",
            "gpu1: no answer for 20 s",
        ),
        ("Connection timed out during banner exchange", "gpu1: no answer for 20 s"),
        (
            "ssh: connect to host 10.20.0.7 port 22: Connection refused",
            "gpu1: 10.20.0.7 port 22 refused the connection",
        ),
        (
            "ssh: Could not resolve hostname gpu1.lab: Name or service not known",
            "gpu1: there is no machine called gpu1.lab",
        ),
        ("Timeout, server 10.20.0.7 not responding.", "gpu1: the connection was lost"),
        ("ssh: connect to host h port 22: No route to host", "gpu1: the connection was lost"),
        (
            "kex_exchange_identification: Connection closed by remote host",
            "gpu1: the connection was lost",
        ),
        ("client_loop: send disconnect: Broken pipe", "gpu1: the connection was lost"),
        ("", "gpu1: ssh ended without a word"),
    ],
)
def test_a_silent_host_is_unreachable(said: str, message: str) -> None:
    error = ssh_failure(DIRECT, said)
    assert isinstance(error, Unreachable) and error.message == message


def test_other_words_of_ssh_are_quoted() -> None:
    error = ssh_failure(DIRECT, "Bad configuration option: frobnicate")
    assert type(error) is HostError
    assert error.advice == ("ssh said: Bad configuration option: frobnicate",)


def test_the_way_is_told_when_it_has_jumps() -> None:
    error = ssh_failure(JUMPING, "ssh: connect to host login.lab port 22: Connection refused")
    assert error.advice == ("the way is: login.lab port 22, 10.20.0.7 port 22",)


def test_a_refused_key_names_the_hop_and_the_user() -> None:
    error = ssh_failure(JUMPING, "me@login.lab: Permission denied (publickey).")
    assert isinstance(error, AuthRefused)
    assert error.message.startswith("gpu1: login.lab (the jump): key refused for me")
    error = ssh_failure(JUMPING, "drl@10.20.0.7: Permission denied (publickey,password).")
    assert error.message.startswith("gpu1: key refused for drl")


def test_keys_that_could_not_be_used_are_told() -> None:
    said = (
        "Permissions 0644 for '/home/me/.ssh/id' are too open.\n"
        "drl@10.20.0.7: Permission denied (publickey)."
    )
    assert (
        "Permissions 0644 for '/home/me/.ssh/id' are too open." in ssh_failure(DIRECT, said).advice
    )


@pytest.mark.parametrize(("why", "way"), [(LOCKED, "ssh-add"), (GONE, "put the key file back")])
def test_a_key_that_cannot_be_used_here_is_not_told_to_be_let_in_there(why: str, way: str) -> None:
    error = auth_refused(DIRECT, GPU, [f"id_ed25519 ({why})"], [])
    assert way in error.advice[0] and "ssh-copy-id" not in " ".join(error.advice)
    mixed = auth_refused(DIRECT, GPU, [f"id_ed25519 ({why})", "id_rsa"], [])
    assert "ssh-copy-id drl@10.20.0.7" in mixed.advice[1]


def test_offered_keys_are_named_with_the_way_in() -> None:
    error = auth_refused(DIRECT, GPU, ["id_ed25519"], [])
    assert error.message == "gpu1: key refused for drl (offered id_ed25519)"
    assert error.advice[-1] == "  ssh-copy-id drl@10.20.0.7"


@pytest.mark.parametrize(
    "said",
    [
        "Host key verification failed.",
        "No ED25519 host key is known for gpu1 and you have requested strict checking.",
        "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
        "Unable to negotiate with 10.0.0.1: no matching host key type found. Their offer: x",
    ],
)
def test_host_key_troubles_are_told_apart(said: str) -> None:
    assert is_host_key_trouble(said)
    assert not is_host_key_trouble("drl@h: Permission denied (publickey).")
