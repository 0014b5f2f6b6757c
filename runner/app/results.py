"""What the use cases return; `output` renders it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from runner import states
from runner.wire import RunStatus


class Report(Protocol):
    """Where a use case says what goes on; stderr on a terminal, nowhere under cron."""

    def note(self, text: str) -> None:
        """A line worth keeping."""

    def step(self, text: str) -> None:
        """What is being waited for now; replaced by the next one."""

    def trouble(self, text: str) -> None:
        """The same where something went wrong that is tried again: said at once."""

    def done(self) -> None:
        """Nothing is waited for any more."""

    def warn(self, text: str) -> None:
        """A line that cron must see too."""


@dataclass(frozen=True)
class Contact:
    """Whether a host answered, and when it was last heard (seconds since the epoch, our clock)."""

    host: str
    state: str = "ok"
    """`ok`, `unreachable`, or `no-worker` (the host answered); never a run's state."""
    at: float | None = None
    error: str | None = None
    clock_skew_s: float | None = None
    """The worker's clock minus ours."""
    advice: tuple[str, ...] = ()
    """What to do about the error, a line each."""
    worker: str | None = None
    """The id of the worker that answered."""
    replaced: bool = False
    """It is another one than the last time."""
    slow: bool = False
    """One of several that was not waited for any longer."""
    refused: bool = False
    """Not silence: a key, a file or an answer that is wrong, as `error` says."""


@dataclass(frozen=True)
class RunOnHost:
    """A run as last seen, and how fresh that is."""

    status: RunStatus
    contact: Contact
    pulled: bool = False

    @property
    def id(self) -> str:
        """The id users type."""
        return self.status.id

    @property
    def host(self) -> str:
        """The host's name in the inventory."""
        return self.contact.host


class Chosen(NamedTuple):
    """Which runs are listed."""

    everyone: bool = False
    """Those of every project, and every ended one."""
    ended: bool = False
    """Ended ones alone."""
    since: float | None = None
    """What ended since then (seconds since the epoch, our clock), or has not ended: a sweep whole,
    when one of its runs did."""

    def of(self, statuses: Iterable[RunStatus], skew_s: float = 0.0) -> list[RunStatus]:
        """Those listed; skew_s: their worker's clock minus ours."""
        alone = self._replace(since=None)
        found = [status for status in statuses if alone.takes(status)]
        late = [status for status in found if self.takes(status, skew_s)]
        sweeps = {status.sweep for status in late if status.sweep}
        ids = {status.id for status in late}
        return [status for status in found if status.id in ids or status.sweep in sweeps]

    def takes(self, status: RunStatus, skew_s: float = 0.0) -> bool:
        """Whether a run is one of them; skew_s: its worker's clock minus ours."""
        if status.state != states.ENDED:
            return not self.ended
        return self.since is None or (status.ended_at or 0.0) - skew_s >= self.since


class SweepScore(NamedTuple):
    """What the runs of a sweep that has ended reached, by their last values."""

    iqm: float
    seeds: int
    ended_at: float
    before: SweepScore | None = None
    """The same of the sweep before, of the same schedule or name."""


@dataclass(frozen=True)
class Listing:
    """Runs of several hosts, and which of those answered."""

    runs: tuple[RunOnHost, ...]
    hosts: tuple[Contact, ...]
    hidden: int = 0
    """Older ended runs that are not among them."""
    scores: Mapping[str, SweepScore] = field(default_factory=dict)
    """By sweep, where ended runs alone were asked for."""


@dataclass(frozen=True)
class Curve:
    """One run's progress lines."""

    run: str
    host: str
    label: str
    metric: str | None
    """The job's own choice; None: the first known one present."""
    points: tuple[tuple[int, Mapping[str, float]], ...]
    """(step, metrics), by step."""
    ended: bool = False
    """Nothing will be added to it, unless it is resumed."""
    seconds: tuple[float | None, ...] = ()
    """How long the run had run at each point, where that is known."""
