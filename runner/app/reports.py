"""What single use cases return: values, and only values.

Apart from `results`, since classes of data take time to make and most commands need few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.app.results import Contact, RunOnHost
from runner.comparing.comparison import Comparison
from runner.manifest import LeftOut
from runner.wire import RunStatus


@dataclass(frozen=True)
class WhyFacts:
    """What explains a run beside its status; empty where its host did not answer."""

    others: Mapping[str, RunStatus] = field(default_factory=dict)
    """Runs that its waiting or its cause names."""
    log: tuple[str, ...] = ()
    """The last lines of the log that tells most, of a run that failed."""
    log_rank: int = 0
    stack: tuple[str, ...] = ()
    """Lines of the last dump of its stacks."""
    interval_s: float | None = None
    """What lies between two steps as a rule."""
    asked_at: float | None = None
    """When its end was asked for, by the worker's clock."""
    grace_s: float | None = None
    """How long it may take to save then."""


@dataclass(frozen=True)
class WhyReport:
    """A run and what explains it."""

    run: RunOnHost
    facts: WhyFacts = field(default_factory=WhyFacts)


@dataclass(frozen=True)
class CompareReport:
    """Groups of runs compared, and the hosts that gave no answer."""

    comparison: Comparison
    silent: tuple[Contact, ...] = ()


@dataclass(frozen=True)
class RankStack:
    """What one rank was doing."""

    rank: int
    pid: int | None
    text: str


@dataclass(frozen=True)
class StackReport:
    """The stacks of a run's ranks; `problem` says why some could not be read."""

    run: str
    host: str
    ranks: tuple[RankStack, ...]
    problem: str | None = None


@dataclass(frozen=True)
class PullReport:
    """What a pull brought."""

    run: str
    path: Path
    files: int
    """New or changed files brought, each verified."""
    bytes: int
    seconds: float
    unchanged: int
    pending: tuple[str, ...] = ()
    """Files still being written there, left for the next pull."""
    kept: tuple[str, ...] = ()
    """Local files no pull made or that were edited here, left as they are."""
    left_out: tuple[str, ...] = ()
    """Links and the like there, which do not travel (the first hundred)."""
    too_long: tuple[str, ...] = ()
    """Files there whose names are too long for a file here."""
    gone: tuple[str, ...] = ()
    """Files that were removed there while they were pulled."""
    mirrored: int = 0
    """Files here that were removed because their checkpoints were, there."""
    nothing_yet: str | None = None
    """The run's state, where it has made nothing to bring so far."""


@dataclass(frozen=True)
class CancelReport:
    """What became of one cancel."""

    run: str
    host: str
    outcome: str | None
    ended_before: bool
    """It had ended before it was asked to."""
    processes: int = 0
    """Processes that were ended."""
    seconds: float = 0.0
    gpus: tuple[Mapping[str, Any], ...] = ()
    """[{"index", "used_mib"}] after the release."""
    left: tuple[int, ...] = ()
    """Process ids that would not die."""
    unread: bool = False
    """It had GPUs, and nvidia-smi did not say whether their memory is back."""
    error: str | None = None
    contact: str = "ok"
    """As the state of a `Contact`; with `error` what kept us from it."""
    status: int = 0
    """The exit status that `error` stands for."""
    advice: tuple[str, ...] = ()
    asked: bool = False
    """With `error`: it may have the word to stop all the same."""
    retry: bool = False
    """With `error`: asking again may help, and was not asked for."""


@dataclass(frozen=True)
class WorkerVersion:
    """One side's versions."""

    host: str
    contact: Contact
    facts: Mapping[str, Any] = field(default_factory=dict)
    """runner, python, image, runtime, worker, launchers …"""


@dataclass(frozen=True)
class ProvisionReport:
    """What became of a worker that was made, or found as it should be."""

    host: str
    changed: bool
    """Anything was made; False when all was there."""
    container: str
    image: str
    worker: str
    torch: str
    """The version the worker's Python imports."""
    gpus: int
    """GPUs nvidia-smi shows in the container."""
    pin: str = ""
    """The image pin it is the worker of."""
    generation: int = 0
    """The how-manieth worker of that pin there."""
    seconds: float = 0.0
    steps: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each: connect, look, base, build (of it packages, user), start, up, probe."""
    layers_built: int = 0
    """Of the image; 0 where none was built."""
    layers_cached: int = 0
    draining: tuple[str, ...] = ()
    """Runs that go on in the container that was replaced."""


@dataclass(frozen=True)
class DownReport:
    """What was taken away from a host."""

    host: str
    containers: tuple[str, ...]
    purged: bool
    """Also workspace, images and folders, as far as no other worker of the account needs them."""
    runs: int
    """Runs in the workspace: gone where it was purged, else they stay."""
    unpulled: tuple[str, ...] = ()
    """Runs that went and of which something was never pulled here."""
    kept: tuple[str, ...] = ()
    """What else of the account is there, for which leases, keys and bases stay."""
    runtime: str = "docker"
    removed: tuple[str, ...] = ()
    """What went, of a venv: worker, its start at boot, records, environment, workspace."""
    image: str | None = None
    """The one whose worker alone was to go; its purge leaves the workspace."""


@dataclass(frozen=True)
class RunSpace:
    """What one run takes on its host, in bytes."""

    run: str
    host: str
    project: Mapping[str, Any]
    state: str
    outcome: str | None
    pulled: bool
    code: int
    checkpoints: int
    logs: int
    records: int
    begun: bool = True
    """False for one that ended before any attempt: there is nothing to pull."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.code + self.checkpoints + self.logs + self.records


@dataclass(frozen=True)
class HostSpace:
    """What is left of a host's disk, and what the runs there share, in bytes; images not counted.

    Empty where the host did not answer.
    """

    contact: Contact
    shared: Mapping[str, int] = field(default_factory=dict)
    """contents, bundles, packages (of `[setup]`), home (jobs' caches), leftovers (of cuts)."""
    others_runs: int = 0
    """Runs of other projects, where only this one's were asked for."""
    others_bytes: int = 0
    disk_total: int | None = None
    disk_free: int | None = None
    files_free: int | None = None
    """Inodes; None also where the file system has no such limit."""


@dataclass(frozen=True)
class SpaceListing:
    """What takes space on several hosts."""

    runs: tuple[RunSpace, ...]
    hosts: tuple[HostSpace, ...]


@dataclass(frozen=True)
class Removal:
    """What became of one run that was to be deleted."""

    run: str
    host: str
    bytes: int = 0
    pulled: bool = False
    gone: bool = False
    """It was not there any more."""
    error: str | None = None
    contact: str = "ok"
    """As the state of a `Contact`; with `error` what kept us from it."""
    status: int = 0
    """The exit status that `error` stands for."""


@dataclass(frozen=True)
class Garbage:
    """What was removed on a host because nobody needs it, or would be."""

    host: str
    items: tuple[tuple[str, int, str], ...]
    """(what, bytes, why)"""
    bytes: int
    kept: tuple[str, ...]
    """What was left for now, and why."""
    disk_free: int | None
    dry: bool


@dataclass(frozen=True)
class Drained:
    """Whether a host takes runs up, and what there is of them."""

    host: str
    drained: bool
    live: int
    waiting: int


@dataclass(frozen=True)
class Delivery:
    """What came of one message on one way."""

    place: str
    """A host, `here`, or a schedule."""
    channel: str
    """webhook, command, heartbeat; `contact` and `network` where none was tried, `left` tells of
    what did not arrive earlier."""
    ok: bool
    text: str
    took_s: float
    status: int | None = None
    """The exit status that this means, where it is no failed delivery."""


@dataclass(frozen=True)
class NotifyReport:
    """How the operator hears of runs, and what was tried."""

    path: str
    settings: Mapping[str, Any] | None = field(repr=False)
    """With their secrets; None when there are none."""
    rows: tuple[Delivery, ...] = ()


@dataclass(frozen=True)
class LocalPart:
    """A file of the project that travels."""

    path: str
    bytes: int
    changed: bool
    """Since the last submit to that host, as far as is known here."""


@dataclass(frozen=True)
class DryRun:
    """What a submit would do."""

    host: str
    files: tuple[LocalPart, ...]
    left_out: tuple[LeftOut, ...]
    code: Mapping[str, Any]
    specs: tuple[Mapping[str, Any], ...]
    """A run each; what is drawn at a submit is not in it."""
    code_text: str
    runs_text: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """A GPU as it is just now; None where nvidia-smi does not tell."""

    index: int | None
    uuid: str | None
    name: str | None
    total_mib: float | None
    used_mib: float | None
    load_percent: float | None
    run: str | None = None
    """Which run leases it."""
    worker: str | None = None
    """Whose that is, where another worker of the account leased it: its image or runtime."""
    stranger: str | None = None
    """Who else uses it: `ann's python3`, or `others` where that cannot be seen."""


@dataclass(frozen=True)
class HostFacts:
    """What a host has, and how much of it is in use."""

    cards: tuple[Card, ...] = ()
    cards_age_s: float | None = None
    cards_problem: str | None = None
    """What is wrong with nvidia-smi; `cards` are as old as `cards_age_s` then."""
    slots: int | None = None
    slots_used: int | None = None
    disk_total: float | None = None
    disk_free: float | None = None
    disk_reserve: float | None = None
    """Below this nothing starts there; bytes as the two before."""
    live: int | None = None
    """Runs of all projects, as the next."""
    queued: int | None = None
    drained: bool = False


@dataclass(frozen=True)
class HostNow:
    """A host: whether it answers, and how it is (None where it does not)."""

    contact: Contact
    facts: HostFacts | None = None
    connecting: bool = False
    """It was not heard yet, and may be."""


@dataclass(frozen=True)
class RunNow:
    """A run, and how fast it goes."""

    run: RunOnHost
    steps_per_s: float | None = None


@dataclass(frozen=True)
class Top:
    """What `top` shows at one moment."""

    hosts: tuple[HostNow, ...]
    runs: tuple[RunNow, ...]
