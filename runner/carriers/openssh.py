"""Programs on hosts through an OpenSSH child, which honours the user's whole configuration."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from runner.carriers.base import CONNECT_TIMEOUT_S
from runner.carriers.failures import program_failure
from runner.carriers.gate import Release, wait_turn
from runner.carriers.host_keys import check_pin, explain_host_key, read_known
from runner.carriers.local import ChildCarrier, Explain
from runner.carriers.quoting import login_shell_line
from runner.carriers.session import ChildSession
from runner.carriers.ssh_command import control_socket, jump_argv, ssh_argv, ssh_env
from runner.carriers.ssh_config import Route, read_route
from runner.carriers.ssh_failures import (
    SSH_STATUS,
    is_host_key_trouble,
    is_silent,
    ssh_failure,
)
from runner.errors import RunnerError
from runner.model import Host


def open_openssh(host: Host, argv: Sequence[str]) -> ChildCarrier:
    """Starts `argv` on `host`. Raises HostError for what is known before ssh even starts."""
    route = _checked_route(host)
    release = _wait_turn(route)
    return ChildCarrier(
        _command(route, argv), explain=_explainer(route), env=ssh_env(), on_end=release
    )


def open_openssh_session(host: Host) -> ChildSession:
    """Commands on `host`, each a child over one shared connection."""
    route = _checked_route(host)
    return ChildSession(
        host.name,
        lambda argv: _command(route, argv),
        explain=_explainer(route),
        env=ssh_env(),
        wait_turn=lambda: _wait_turn(route),
    )


def _wait_turn(route: Route) -> Release:
    control = control_socket(route)
    return wait_turn(control) if control is not None else lambda: None


def _command(route: Route, argv: Sequence[str]) -> list[str]:
    return [*ssh_argv(route), login_shell_line(argv)]


def _checked_route(host: Host) -> Route:
    """The way there. Raises HostKeyError for a pin that known_hosts contradict or revoke."""
    route = read_route(host)
    for hop in route.hops:
        if hop.pinned is not None:
            check_pin(route, hop, read_known(hop.config))
    return route


def _explainer(route: Route) -> Explain:
    def explain(status: int, said: str) -> RunnerError | None:
        if status != SSH_STATUS:
            return program_failure(route.host, status, said)
        if is_silent(said):
            said = _ask_again(route) or said
        if is_host_key_trouble(said):
            return explain_host_key(route, said)
        return ssh_failure(route, said)

    return explain


def _ask_again(route: Route) -> str:
    """What ssh has to say when nothing else is going on: with a shared connection it throws the
    words of a jump away, and its reasons for ending before a login are no errors to it.
    """
    argv = jump_argv(route) if len(route.hops) > 1 else [*ssh_argv(route, shared=False), "true"]
    argv[1:1] = ["-oLogLevel=INFO"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=2 * CONNECT_TIMEOUT_S,
            env=ssh_env(),
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stderr.decode("utf-8", "replace") if done.returncode == SSH_STATUS else ""
