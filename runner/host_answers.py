"""What a host answers to a script of ours, read: one round trip each."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar

from runner.carriers import Completed, Session
from runner.errors import ProvisionError
from runner.host_facts import SCRIPT, HostFacts, parse_facts
from runner.model import Host, ImagePin
from runner.placement import worker_key
from runner.remains import REMAINS, Remains, parse_remains
from runner.worker_plan import IMAGES

T = TypeVar("T")
_ASK_S = 60.0


def ask(
    session: Session,
    host: Host,
    script: str,
    words: Sequence[str],
    read: Callable[[str, str], T],
) -> T:
    """What `read` makes of the script's answer and of the word that cuts it in sections, which is
    the script's first; `words` are the others. Raises HostError, ProvisionError.
    """
    cut = f"runner-{secrets.token_hex(8)}"
    done = session.run(["sh", "-c", script, "runner", cut, *words], timeout_s=_ASK_S)
    try:
        return read("\n" + done.stdout.decode("utf-8", "replace"), cut)
    except ValueError as error:
        raise ProvisionError(f"{host.name}: {error}", *said_lines(done)) from error


def read_facts(session: Session, host: Host, pin: ImagePin) -> HostFacts:
    """What the host is like. Raises HostError, ProvisionError."""
    key = worker_key(host)
    words = [key, pin.name, host.workspace, pin.base, IMAGES, *host.data.values()]
    return ask(session, host, SCRIPT, words, lambda text, cut: parse_facts(text, cut, key))


def read_remains(session: Session, host: Host, uid: int) -> Remains:
    """What of ours is there; uid: the account's. Raises HostError, ProvisionError."""
    words = [worker_key(host), host.workspace]
    return ask(session, host, REMAINS, words, lambda text, cut: parse_remains(text, cut, uid))


def said_lines(done: Completed, *, lines: int = 2) -> list[str]:
    """The end of what a command said, for advice."""
    text = done.error_text or done.text
    found = [line for line in text.splitlines() if line.strip()]
    # Docker 28 without buildx ends each build with this notice
    found = [line for line in found if not line.startswith(("DEPRECATED", "            "))]
    return found[-lines:] or [f"status {done.status}"]
