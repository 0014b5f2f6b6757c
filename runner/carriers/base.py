"""What a carrier and a session are: a byte stream to a program, and commands run one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runner.errors import RunnerError

CONNECT_TIMEOUT_S = 20
"""How long a host may take to answer."""
ALIVE_INTERVAL_S = 5
ALIVE_COUNT = 3
TROUBLE_BYTES = 16 * 1024
"""How much of what a program said on stderr is kept: the end of it."""

Input = bytes | Iterable[bytes] | None
OnLine = Callable[[str], None]


class Carrier(Protocol):
    """A byte stream to a program that was started on a host."""

    def read(self, size: int) -> bytes:
        """1 to `size` bytes as soon as there are any; b"" at the end, also once closed."""

    def write(self, data: bytes) -> None:
        """Sends all of `data`. Raises OSError when the other end is gone."""

    def close_write(self) -> None:
        """Tells the program that nothing more comes."""

    def close(self) -> None:
        """Ends the stream and reaps what was started here; from any thread, twice too."""

    def trouble(self) -> str:
        """The last the program, or what carries it, said on stderr; "" if nothing."""

    def failure(self) -> RunnerError | None:
        """Once the stream has ended: what that means if the program never spoke; None if well."""


@dataclass(frozen=True)
class Completed:
    """A command that ended on a host."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """What it printed, without the white space around it."""
        return self.stdout.decode("utf-8", "replace").strip()

    @property
    def error_text(self) -> str:
        """What it said on stderr, without the white space around it."""
        return self.stderr.decode("utf-8", "replace").strip()


class Session(Protocol):
    """Commands on one host over one connection."""

    def run(
        self,
        argv: Sequence[str],
        *,
        input: Input = None,
        timeout_s: float,
        on_line: OnLine | None = None,
    ) -> Completed:
        """Runs `argv` there and waits for it; its output is free of what login shells print.

        on_line: called with each line of stdout and stderr as it comes, from other threads.
        Raises HostError when the host cannot be reached, TimedOut when the command takes longer.
        """

    def close(self) -> None:
        """Ends the connection."""

    def __enter__(self) -> Session: ...

    def __exit__(self, *raised: object) -> None: ...
