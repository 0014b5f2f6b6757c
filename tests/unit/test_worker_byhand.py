"""When an image is run by hand, and that a worker made by a client never listens because of it."""

from __future__ import annotations

import byhand
import pytest

BY_HAND = {"RUNNER_SERVICES": "jupyter, sshd", "RUNNER_LISTEN": "0.0.0.0"}
MADE = {"RUNNER_WORKER_CONFIG": "/etc/runner/worker/worker.json"}


def test_by_hand_what_is_named_starts_and_no_dispatcher() -> None:
    assert byhand.is_so(BY_HAND) and byhand.is_container(BY_HAND)
    assert byhand.autostart(BY_HAND) == {
        "RUNNER_AUTOSTART_dispatcher": "false",
        "RUNNER_AUTOSTART_jupyter": "true",
        "RUNNER_AUTOSTART_sshd": "true",
        "RUNNER_AUTOSTART_tensorboard": "false",
    }
    assert byhand.listen_address(BY_HAND) == "0.0.0.0"
    assert byhand.listen_address({"RUNNER_SERVICES": "sshd"}) == "127.0.0.1"
    assert byhand.unknown({"RUNNER_SERVICES": "sshd,cron jupyter"}) == ["cron"]


@pytest.mark.parametrize("environ", [{}, MADE, {**BY_HAND, **MADE}])
def test_else_the_dispatcher_starts_alone_and_nothing_listens(environ: dict[str, str]) -> None:
    assert not byhand.is_so(environ) and byhand.listen_address(environ) is None
    started = [name for name, word in byhand.autostart(environ).items() if word == "true"]
    assert started == ["RUNNER_AUTOSTART_dispatcher"]
    assert byhand.is_container(environ) == bool(environ)
