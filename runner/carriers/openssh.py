"""Programs on hosts through an OpenSSH child, which honours the user's whole configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.carriers.base import CONNECT_TIMEOUT_S
from runner.carriers.failures import program_failure
from runner.carriers.gate import Release, wait_turn
from runner.carriers.host_keys import check_pin, read_known
from runner.carriers.key_scan import explain_host_key
from runner.carriers.local import ChildCarrier, Explain
from runner.carriers.masters import SILENCE_S, let_go, living
from runner.carriers.quoting import login_shell_line
from runner.carriers.session import ChildSession
from runner.carriers.ssh_command import control_socket, jump_argv, run_ssh, ssh_argv, ssh_env
from runner.carriers.ssh_config import Route, read_route
from runner.carriers.ssh_failures import (
    SSH_STATUS,
    is_host_key_trouble,
    is_silent,
    ssh_failure,
)
from runner.carriers.steady import SteadyCarrier
from runner.errors import RunnerError
from runner.model import Host


def open_openssh(
    host: Host, argv: Sequence[str], *, lane: int = 0, route: Route | None = None
) -> SteadyCarrier:
    """Starts `argv` on `host`. Raises HostError for what is known before ssh even starts.

    route: the way there, where it was read already.
    """
    way = _checked(route or read_route(host))
    control = control_socket(way, lane=lane)
    command = [*ssh_argv(way, lane=lane), login_shell_line(argv)]

    def start() -> tuple[ChildCarrier, Callable[[], None] | None]:
        release = wait_turn(control)
        there = living(control)
        child = ChildCarrier(
            command,
            explain=_explainer(way),
            env=ssh_env(),
            on_end=release,
            shared=control is not None,
        )
        if control is None or there is None:
            return child, None
        return child, lambda: let_go(control, there)

    limit_s = way.last.config.connect_timeout_s
    return SteadyCarrier(start, silence_s=SILENCE_S, limit_s=limit_s)


def open_openssh_session(host: Host) -> ChildSession:
    """Commands on `host`, each a child over one shared connection."""
    route = _checked(read_route(host))
    return ChildSession(
        host.name,
        lambda argv: [*ssh_argv(route), login_shell_line(argv)],
        explain=_explainer(route),
        env=ssh_env(),
        wait_turn=_Turns(route).wait,
    )


class _Turns:
    """When a session's commands may begin: the first one not over a dead connection."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._control = control_socket(route)
        self._is_first = True

    def wait(self) -> Release:
        """Returns when it is our turn. A command may do harm if it is run twice, so a connection
        that was there before is tried with one that does nothing.
        """
        there = living(self._control) if self._is_first else None
        self._is_first = False
        if self._control is not None and there is not None and not _carries(self._route):
            let_go(self._control, there)
        return wait_turn(self._control)


def _carries(route: Route) -> bool:
    """Whether anything comes back over the shared connection."""
    child = ChildCarrier(
        [*ssh_argv(route), login_shell_line(["echo"])], explain=lambda *_: None, env=ssh_env()
    )
    try:
        return bool(child.stir(SILENCE_S))
    finally:
        child.close()


def _checked(route: Route) -> Route:
    """The way there. Raises HostKeyError for a pin that known_hosts contradict or revoke."""
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
    done = run_ssh(argv, 2 * CONNECT_TIMEOUT_S)
    if done is None or done.returncode != SSH_STATUS:
        return ""
    return done.stderr.decode("utf-8", "replace")
