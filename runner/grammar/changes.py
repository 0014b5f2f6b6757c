"""What the words after a run's name change in it (pure): `resume`, `fork` and `reproduce`.

    runner resume dqn-7k3fa steps=100_000 env.WANDB_MODE=offline secret.WANDB_API_KEY
    runner fork dqn-7k3fa batch_size=2048 name=large priority=5

A parameter takes the type of the value that the run has; which may change, the command decides.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.errors import SpecError
from runner.fields import did_you_mean
from runner.grammar.values import NOTHING_SENT, RawValue, typed
from runner.grammar.words import LATER_KEYS, MOST_PRIORITY, MOST_RESTARTS, RESERVED, Words, plain
from runner.model import Param

FORK_KEYS = ("gpus", "grace", "name", "priority", "restarts", "tags", "time_limit")
"""Reserved keys that a fork may set anew."""


@dataclass(frozen=True)
class Changes:
    """What was typed after a run's name; parameters are not yet typed."""

    params: Mapping[str, RawValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str | None] = field(default_factory=dict)
    """Name to the file that holds it; None: the variable of that name does."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the spec that are set anew: name, tags, priority, grace_s …"""
    words: tuple[str, ...] = ()
    """As typed; values of `env.` by their digest alone."""


def parse_changes(command: str, words: Sequence[str]) -> Changes:
    """The words of `resume`, `fork` or `reproduce`. Raises SpecError."""
    for word in words:
        _check_key(command, word.partition("=")[0])
    found = Words(words)
    settings = {
        "name": found.name("name"),
        "tags": list(found.tags()) or None,
        "priority": found.count("priority", least=-MOST_PRIORITY, most=MOST_PRIORITY),
        "grace_s": found.duration("grace"),
        "time_limit_s": found.duration("time_limit", positive=True),
        "restarts": found.count("restarts", least=0, most=MOST_RESTARTS),
        "gpus": found.gpus() if any(word.startswith("gpus=") for word in words) else None,
    }
    return Changes(
        params=found.params,
        env=found.env,
        secrets=found.secrets,
        settings={key: value for key, value in settings.items() if value is not None},
        words=tuple(_without_value(word) for word in words),
    )


def _check_key(command: str, key: str) -> None:
    """Refuses what the command cannot change, whatever its value is."""
    prefix, dot, _ = key.partition(".")
    if dot and prefix == "secret":
        return
    if command == "reproduce":
        raise SpecError(
            f"{plain(key.removesuffix(':'))} cannot change in a reproduction",
            "a changed run: runner fork RUN --fresh key=value",
            NOTHING_SENT,
        )
    if key in RESERVED and (command != "fork" or key not in FORK_KEYS):
        takes = " ".join(f"{name}=" for name in FORK_KEYS) if command == "fork" else ""
        raise SpecError(
            f"{key} cannot be changed by {command}",
            f"{command} takes {takes}{' ' if takes else ''}parameters, env.NAME= and secret.NAME",
            NOTHING_SENT,
        )
    if key in LATER_KEYS or (dot and prefix == "each"):
        raise SpecError(f"{plain(key)} is not a key of {command}", NOTHING_SENT)


def typed_params(
    run: str, given: Mapping[str, RawValue], known: Mapping[str, Param]
) -> dict[str, Param]:
    """The parameters that were typed, each in the type of the value the run has."""
    for name in given:
        if name not in known:
            raise SpecError(
                f"{name} is not a parameter of {run}{did_you_mean(name, known)}",
                f"it has {', '.join(known)}" if known else "it has none: a command stays as it is",
                NOTHING_SENT,
            )
    return {name: typed(name, raw, known[name]) for name, raw in given.items()}


def check_resumable(run: str, given: Sequence[str], resumable: Sequence[str]) -> None:
    """Raises SpecError for a parameter that stays as it is in a resumed run."""
    for name in given:
        if name not in resumable:
            may = (
                f"resume may change {', '.join(resumable)}" if resumable else "resume changes none"
            )
            raise SpecError(
                f"{name} of {run} cannot be changed by resume",
                f"{may} (resumable in the job's file)",
                f"a new run with it: runner fork {run} {name}=…",
                NOTHING_SENT,
            )


def check_secrets(
    command: str, run: str, names: Sequence[str], given: Sequence[str], *options: str
) -> None:
    """Raises SpecError naming the words that are missing: values are kept nowhere.

    options: those that were typed, for the line to type next.
    """
    missing = [f"secret.{name}" for name in names if name not in given]
    if missing:
        raise SpecError(
            f"{run} had secrets, which are gone with its end; give them again",
            " ".join(["runner", command, run, *missing, *options]),
            "from files: secret.NAME=@FILE",
            NOTHING_SENT,
        )
    for name in given:
        if command != "fork" and name not in names:
            raise SpecError(f"{run} has no secret {name}", NOTHING_SENT)


def more_steps(before: Mapping[str, Param], changed: Mapping[str, Param]) -> bool:
    """Whether changed parameters ask for more steps than there were."""
    steps, known = changed.get("steps"), before.get("steps")
    return isinstance(steps, (int, float)) and isinstance(known, (int, float)) and steps > known


def told(before: Mapping[str, Param], changed: Mapping[str, Param]) -> str:
    """What changes, in words: `steps 100 → 200, lr 0.5 → 0.25`; nothing when nothing does."""
    return ", ".join(
        f"{name} {_value(before.get(name))} → {_value(value)}"
        for name, value in changed.items()
        if value != before.get(name)
    )


def _value(value: Param) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _without_value(word: str) -> str:
    """A word as it is remembered: a variable's value may be a secret."""
    key, sign, value = word.partition("=")
    if not key.startswith("env."):
        return word
    digest = hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{key}{sign}sha256:{digest}"


def line(command: str, *words: str) -> str:
    """A command to copy."""
    return shlex.join(["runner", command, *words])
