"""What it means when a connection or a program on a host ends without a word (pure)."""

from __future__ import annotations

import re

from runner.errors import ProvisionError, RunnerError, Unreachable, WorkerError

_NO_CONTAINER = re.compile(r"No such container", re.IGNORECASE)
_STOPPED = re.compile(r"is not running|is restarting|is paused", re.IGNORECASE)
_NO_RIGHT = re.compile(
    r"permission denied.*docker|docker.*permission denied", re.IGNORECASE | re.DOTALL
)
_NO_DAEMON = re.compile(
    r"Cannot connect to the Docker daemon|Is the docker daemon running", re.IGNORECASE
)
_NO_DOCKER = re.compile(
    r"docker: (command )?not found|unknown command:? docker|docker: no such", re.IGNORECASE
)


class Dropped(Unreachable):
    """The connection ended before a login began, so nothing was asked there and it may be made
    again at once: a server that was busy (MaxStartups), or that is just starting.
    """

    may_last = False


class Refused(Dropped):
    """Nobody listens there: a server that is being restarted, or none at all."""

    may_last = True


class NoContainer(ProvisionError):
    """There is no such worker: its container is not there, or (`stopped`) does not run."""

    stopped = False


class Stopped(NoContainer):
    """Its container is there, and does not run."""

    stopped = True


def docker_failure(name: str, said: str) -> ProvisionError | None:
    """The error behind what the docker command said on stderr; None when it is something else.

    name: the host's. Advice is made of the operator's own words alone.
    """
    if _NO_CONTAINER.search(said):
        return NoContainer(f"{name}: there is no worker there yet", f"runner provision host={name}")
    if _STOPPED.search(said):
        return Stopped(
            f"{name}: its worker's container does not run; nothing goes on there until it does",
            f"runner provision host={name}",
        )
    if _NO_RIGHT.search(said):
        return ProvisionError(
            f"{name}: this account may not use Docker there; its keeper can allow it",
            "usermod -aG docker ACCOUNT   (whoever is in that group is root on the host)",
        )
    if _NO_DAEMON.search(said):
        return ProvisionError(f"{name}: Docker does not run there", last_line(said))
    if _NO_DOCKER.search(said):
        return ProvisionError(f"{name}: there is no Docker")
    return None


def program_failure(name: str, status: int, said: str) -> RunnerError:
    """The error for a program that ended with `status` and never spoke."""
    known = docker_failure(name, said)
    if known is not None:
        return known
    what = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    line = last_line(said)
    return WorkerError(
        f"{name}: the worker program {what}", *([f"it said: {line}"] if line else [])
    )


def last_line(text: str) -> str:
    """The last line of `text` that holds anything."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
