"""A schedule: what was typed, how it is kept, and its record of firings (pure).

    {"format": 1, "name", "key", "project": {"root", "id"}, "cron", "zone", "overlap", "missed",
     "code", "words": [...], "command": [...] or null, "cwd", "env": {RUNNER_…}, "python",
     "flags": [...], "code_at", "paused"}

`words` are those of a submit, as typed: values of secrets are never among them.
"""

from __future__ import annotations

import hashlib
import random
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from runner.errors import IntegrityError, SpecError
from runner.fields import did_you_mean, said, valid_name
from runner.ids import draw_id
from runner.schedule.due import ONCE, SKIP
from runner.schedule.expression import Expression, parse_expression
from runner.schedule.instants import Firing

FORMAT = 1
OVERLAPS = ("skip", "queue", "cancel")
MISSED = (SKIP, ONCE)
FIXED, TREE, GIT = "fixed", "tree", "git:"
_KEPT = {"tz": "zone", "overlap": "overlap", "missed": "missed", "code": "code"}
OWN_KEYS = tuple(_KEPT)
PASSED_ON = (
    *("RUNNER_WORKSPACE", "RUNNER_LEASES", "RUNNER_IDLE_END_S"),
    *("XDG_CONFIG_HOME", "XDG_STATE_HOME"),
)
"""Settings of the runner that cron would not have."""
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+@-]{0,200}")
_NOTHING = "nothing was scheduled"

SUBMITTED, SKIPPED, FAILED = "submitted", "skipped", "failed"
TRY_AGAIN_FOR_S = 3600.0
"""A host that is silent is asked again for so long."""
MOST_KEPT = 200
"""Firings that are remembered."""


@dataclass(frozen=True)
class Schedule:
    """What fires, and when."""

    name: str
    key: str
    """The name that stands in the crontab, one for each project and name."""
    root: str
    """The project's folder."""
    project: str
    """The project's id."""
    cron: str
    zone: str
    overlap: str = "skip"
    missed: str = ONCE
    code: str = FIXED
    words: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None
    cwd: str = "/"
    """Where it was typed: files of secrets are named from there."""
    env: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    flags: tuple[str, ...] = ()
    """What this Python is started with."""
    code_at: float = 0.0
    """When its code was taken."""
    paused: bool = False

    @property
    def expression(self) -> Expression:
        """When it fires."""
        return parse_expression(self.cron)

    @property
    def tz(self) -> tzinfo:
        """The zone it fires in."""
        return find_zone(self.zone)


@dataclass(frozen=True)
class Fired:
    """What became of one firing."""

    local: str
    at: float
    """The instant that was meant."""
    state: str
    """submitted, skipped or failed."""
    ids: tuple[str, ...] = ()
    """The runs that were made; of one that made none the id it would have had."""
    cause: str | None = None
    """overlap, missed or not-submitted."""
    text: str = ""
    told_at: float = 0.0
    late: bool = False
    ended: bool = False
    """All its runs were seen ended."""


@dataclass(frozen=True)
class Begun:
    """A firing that is under way, or waits."""

    local: str
    at: float
    since: float
    """When it was taken up first."""
    late: bool = False
    queued: bool = False
    """It waits for the end of an earlier one."""
    waits: str = ""
    """Why it was not submitted yet."""

    @property
    def firing(self) -> Firing:
        """The firing it is."""
        return Firing(self.at, self.local)


@dataclass(frozen=True)
class Progress:
    """How far a schedule is."""

    handled: float
    begun: Begun | None = None
    fired: tuple[Fired, ...] = ()
    """Oldest first."""

    def with_fired(self, *more: Fired) -> Progress:
        """The same with these added; of one that is there already the newer is kept."""
        old = [each for each in self.fired if each.local not in {new.local for new in more}]
        return replace(self, fired=tuple([*old, *more][-MOST_KEPT:]))

    @property
    def live(self) -> tuple[Fired, ...]:
        """Firings whose runs were not seen ended."""
        return tuple(each for each in self.fired if each.state == SUBMITTED and not each.ended)


def key_of(root: str, name: str) -> str:
    """The name in the crontab: the schedule's, and what tells its project from others."""
    digest = hashlib.sha256(f"{root}\0{name}".encode("utf-8", "surrogateescape")).hexdigest()
    return f"{name[:40]}-{digest[:8]}"


def seed_of(schedule: Schedule, local: str, salt: int) -> int:
    """What ids and seeds of a firing are drawn from: the same each time it is fired."""
    text = f"{schedule.key}\0{schedule.root}\0{local}\0{salt}"
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest(), "big")


def expected_id(schedule: Schedule, job: str | None, local: str, salt: int = 0) -> str:
    """The id that the runs of a firing get, or their sweep."""
    return draw_id(job, random.Random(seed_of(schedule, local, salt)))


def host_of(schedule: Schedule) -> str:
    """The host that its words name."""
    return next((word[5:] for word in schedule.words if word.startswith("host=")), "local")


def unmade(
    schedule: Schedule, firing: Firing, state: str, cause: str, text: str, now: float
) -> Fired:
    """A firing that made no run."""
    name = expected_id(schedule, job_of(schedule), firing.local)
    return Fired(firing.local, firing.at, state, (name,), cause, text, told_at=now)


def job_of(schedule: Schedule) -> str | None:
    """The job that its words name."""
    return next((word[4:] for word in schedule.words if word.startswith("job=")), None)


@dataclass(frozen=True)
class Typed:
    """The words of `schedule add` or `update`, sorted."""

    own: Mapping[str, str]
    """Those of OWN_KEYS."""
    rest: tuple[str, ...]
    """Those of a submit."""


def parse_own(words: Sequence[str]) -> Typed:
    """Sorts the words. Raises SpecError."""
    own: dict[str, str] = {}
    rest: list[str] = []
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or key not in OWN_KEYS:
            rest.append(word)
            continue
        if key in own:
            raise SpecError(f"{key} is given twice", _NOTHING)
        own[key] = value
    _check(own)
    return Typed(own, tuple(rest))


def _check(own: Mapping[str, str]) -> None:
    for key, choices in (("overlap", OVERLAPS), ("missed", MISSED)):
        value = own.get(key)
        if value is not None and value not in choices:
            listed = f"{', '.join(choices[:-1])} or {choices[-1]}"
            hint = did_you_mean(value, choices)
            raise SpecError(f"{key} is {said(value)}; it must be {listed}{hint}", _NOTHING)
    code = own.get("code", FIXED)
    branch = code.removeprefix(GIT) if code.startswith(GIT) else None
    if branch is not None and (_BRANCH.fullmatch(branch) is None or ".." in branch):
        raise SpecError(f"code is {said(code)}; {said(branch)} is no branch", _NOTHING)
    if branch is None and code not in (FIXED, TREE):
        raise SpecError(f"code is {said(code)}; it must be fixed, tree or git:BRANCH", _NOTHING)
    if "tz" in own:
        find_zone(own["tz"])


def find_zone(name: str) -> tzinfo:
    """The time zone of that name. Raises SpecError with the nearest one."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        pass
    from zoneinfo import available_timezones

    known = available_timezones()
    if not known:
        raise SpecError("no time zones are known here", "pip install tzdata")
    raise SpecError(
        f"tz is {said(name)}, no time zone{did_you_mean(name, known)}", "as tz=Europe/Berlin"
    )


def again(schedule: Schedule, words: Sequence[str]) -> list[str]:
    """What is typed to have it with other words for the submit: those it has are put in.

    Values of `env.` are left out: they may be secrets.
    """
    own = [f"{key}={getattr(schedule, at)}" for key, at in _KEPT.items()]
    command = [] if schedule.command is None else ["--", *schedule.command]
    changed = {word.partition("=")[0] for word in words}
    kept = [word for word in schedule.words if word.partition("=")[0] not in changed]
    shown = [
        f"{word.partition('=')[0]}=…" if word.startswith("env.") else word
        for word in [*kept, *words]
    ]
    return [
        f"runner schedule remove {schedule.name}",
        shlex.join(
            ["runner", "schedule", "add", schedule.name, schedule.cron, *own, *shown, *command]
        ),
    ]


def check_name(name: str) -> None:
    """Raises SpecError for what cannot be a schedule's name."""
    if not valid_name(name):
        from runner.fields import NAME_RULE

        raise SpecError(f"{said(name)} is no schedule's name; it has {NAME_RULE}", _NOTHING)


def to_json(schedule: Schedule) -> dict[str, Any]:
    """As it is kept."""
    return {"format": FORMAT, **asdict(schedule)}


def from_json(body: Any, where: str) -> Schedule:
    """What was kept. Raises IntegrityError."""
    try:
        known = {key: body[key] for key in Schedule.__dataclass_fields__}
        for key in ("words", "command", "flags"):
            known[key] = None if known[key] is None else tuple(map(str, known[key]))
        schedule = Schedule(**known)
        if not isinstance(schedule.env, dict) or not valid_name(schedule.name):
            raise ValueError
        schedule.expression, schedule.tz  # noqa: B018
    except (KeyError, TypeError, ValueError, AttributeError, SpecError) as error:
        raise IntegrityError(
            f"{where} is damaged", "runner schedule remove NAME, then add it again"
        ) from error
    return schedule


def progress_to_json(progress: Progress) -> dict[str, Any]:
    """As it is kept."""
    return {"format": FORMAT, **asdict(progress)}


def progress_from_json(body: Any, where: str) -> Progress:
    """What was kept. Raises IntegrityError."""
    try:
        begun = None if body["begun"] is None else Begun(**body["begun"])
        fired = tuple(Fired(**{**each, "ids": tuple(each["ids"])}) for each in body["fired"])
        return Progress(float(body["handled"]), begun, fired)
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            f"{where} is damaged", "runner schedule remove NAME, then add it again"
        ) from error
