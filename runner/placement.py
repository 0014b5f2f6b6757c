"""Where a host's worker is, and the argv that starts a program in it: pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from runner.model import Host

_INTO_CONTAINER = 'exec docker exec -i "runner-$(id -u)-{key}" "$@"'


def worker_key(host: Host) -> str:
    """What tells apart the workers of one account on one host: 8 hex digits of the host file.

    A workspace has one worker, so projects that name the same one share it, whatever image they ask
    for: the image is what that worker was provisioned with.
    """
    text = json.dumps([host.runtime, host.workspace.rstrip("/")])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def worker_argv(host: Host, program: Sequence[str]) -> list[str]:
    """The argv that starts `program` in the host's worker; the container's name ends in the
    account's uid there, which only the host knows.
    """
    if host.runtime == "local":
        return list(program)
    return ["sh", "-c", _INTO_CONTAINER.format(key=worker_key(host)), "runner", *program]
