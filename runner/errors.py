"""Every error a user can meet, with the exit status it ends a command with.

    RunnerError
      RunFailed         1   our part worked, a run ended failed, cancelled or skipped
      SpecError         2   a file, word or option is wrong; no run was made
      HostError         3   no session; nothing was done there
        Unreachable         the only one worth trying again
        AuthRefused
        HostKeyError        unknown or changed
      ProvisionError    4   the host answered, the worker could not be made
      WorkerError       5   the worker answered wrongly or refused
        ProtocolMismatch
      NotFound          6   no such host, run or artifact
      Conflict          7   someone or something is in the way
        WrongState
        TimedOut
      IntegrityError    8   a digest or a record does not match
      OutcomeUnknown    9   the link broke after the request went out
      OutputError     141   stdout cannot be written

Anything else is a bug and ends with 70. 130 means interrupted, 141 also that the reader of our
output went away. The message of an error is one line (subject first, then the fact, then the way
out); `advice` holds further lines, each a command or a fact, shown indented below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BUG_STATUS = 70
INTERRUPTED_STATUS = 130
PIPE_STATUS = 141
MOST_TEXT = 4000
"""Characters of a line; whoever was asked may have answered with more."""


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"


class RunnerError(Exception):
    """An error a user can do something about: one clear line and, if any, lines of advice."""

    status = 1
    code: str | None = None
    """What the worker called it, where it is a refusal of the worker's."""
    told: Mapping[str, Any] = {}
    """What else that refusal said."""

    def __init__(self, message: str, *advice: str) -> None:
        self.message = _cut(message)
        self.advice = tuple(map(_cut, advice))
        super().__init__(self.message)


class RunFailed(RunnerError):
    """The command did its part; a run it speaks of did not end `done`."""

    status = 1


class SpecError(RunnerError):
    """A file, a word or an option is wrong; no run was made."""

    status = 2


class HostError(RunnerError):
    """No session with the host; nothing was done there."""

    status = 3


class Unreachable(HostError):
    """The host did not answer, or stopped answering."""


class AuthRefused(HostError):
    """The host answered and refused every key that was offered."""


class HostKeyError(HostError):
    """The host's key is not known, not the known one, or revoked; nothing was sent."""


class ProvisionError(RunnerError):
    """The host answered, but the worker could not be made there."""

    status = 4


class WorkerError(RunnerError):
    """The worker answered wrongly, or refused."""

    status = 5


class ProtocolMismatch(WorkerError):
    """The two sides speak different versions; the message says which one to upgrade."""


class NotFound(RunnerError):
    """There is no such host, run or artifact."""

    status = 6


class Conflict(RunnerError):
    """Someone or something is in the way; later it may work."""

    status = 7


class WrongState(Conflict):
    """The run is in a state that does not allow this."""


class TimedOut(Conflict):
    """The time the user allowed has passed."""


class IntegrityError(RunnerError):
    """A digest or a record does not match what it should be."""

    status = 8


class OutputError(RunnerError):
    """What we had to say could not be written to stdout."""

    status = PIPE_STATUS


class OutcomeUnknown(RunnerError):
    """The link broke after the request went out: ask `status` before trying again."""

    status = 9
