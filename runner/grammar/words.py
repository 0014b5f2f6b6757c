"""The words of `runner submit`, sorted and checked one by one (pure); spec.py makes runs of them.

A word is `key=value`, split at the first `=`, or `key:=JSON`; `secret.NAME` may stand alone.
Reserved keys and the prefixes `env. secret. each.` speak of the run, all others are parameters of
the job; `param.NAME=` is one that is named like a reserved key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from runner.errors import SpecError
from runner.fields import (
    NAME_RULE,
    did_you_mean,
    near,
    parse_duration,
    parse_size,
    said,
    valid_name,
)
from runner.grammar.sweeps import parse_choices
from runner.grammar.values import NOTHING_SENT, RawValue, decode_json
from runner.model import ON_STUCK

RESERVED = (
    *("host", "job", "image", "gpus", "nproc", "launcher", "grace", "name", "tags"),
    *("time_limit", "restarts", "priority", "after", "stuck_after", "on_stuck", "log_limit"),
)
PREFIXES = ("env", "secret", "each", "param")
LATER_KEYS = ("nodes",)
LAUNCHERS = ("auto", "direct", "torchrun", "mpirun")
MOST_RESTARTS = 1000
MOST_PRIORITY = 1000
MOST_NAME = 128
"""Characters of a secret's name, which is a file's there."""
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SET_BY_LAUNCHER = re.compile(
    r"RUNNER_.*|TORCHELASTIC_.*|MASTER_.*|ROLE_.*|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE"
    r"|GROUP_RANK|GROUP_WORLD_SIZE|CUDA_VISIBLE_DEVICES|PYTHONUNBUFFERED|HOME|PWD"
)


class Words:
    """The words of one submit, sorted. Raises SpecError at the first that is none."""

    def __init__(self, words: Sequence[str]) -> None:
        self.params: dict[str, RawValue] = {}
        self.env: dict[str, str] = {}
        self.secrets: dict[str, str | None] = {}
        """Name to the file that holds it; None: the variable of that name does."""
        self.each: dict[str, str] = {}
        self.order: list[tuple[str, str]] = []
        """(param, each or image; name) of what may be swept, as typed."""
        self._reserved: dict[str, str] = {}
        for word in words:
            self._take(word)
        for name in self.secrets:
            if name in self.env:
                raise SpecError(f"{name} is given as env.{name} and secret.{name}", NOTHING_SENT)

    def _take(self, word: str) -> None:
        key, sign, value = word.partition("=")
        if key.startswith("secret."):
            self._secret(key, value if sign else None)
            return
        if not sign:
            raise _not_a_word(word)
        is_json = key.endswith(":")
        key = key[:-1] if is_json else key
        if key.startswith("param."):
            self._param(key[len("param.") :], RawValue(value, is_json))
        elif key in RESERVED or key in LATER_KEYS or key.startswith(("env.", "each.")):
            self._own(key, value, is_json)
        else:
            self._param(key, RawValue(value, is_json))

    def _own(self, key: str, value: str, is_json: bool) -> None:
        if key in LATER_KEYS:
            raise SpecError(f"{key} is not in this version yet", NOTHING_SENT)
        if is_json:
            raise SpecError(f"{plain(key)} takes {plain(key)}=VALUE, not JSON", NOTHING_SENT)
        if key.startswith("env."):
            name = key[len("env.") :]
            _check_env_name("env", name)
            once(name, self.env, key)
            self.env[name] = value
        elif key.startswith("each."):
            name = key[len("each.") :]
            if _KEY.fullmatch(name) is None:
                raise SpecError(f"each.{said(name)[1:-1]} is no name for a value", NOTHING_SENT)
            once(name, self.each, key)
            parse_choices(key, value)
            self.each[name] = value
            self.order.append(("each", name))
        else:
            once(key, self._reserved, key)
            self._reserved[key] = value
            if key == "image":
                self.order.append(("image", key))

    def _secret(self, key: str, source: str | None) -> None:
        """A secret's value never stands in a word, so it is never repeated here either."""
        name = key[len("secret.") :].removesuffix(":")
        _check_env_name("secret", name)
        if len(name) > MOST_NAME:
            raise SpecError(f"secret.{said(name)[1:-1]}: a longer name than any", NOTHING_SENT)
        once(name, self.secrets, f"secret.{name}")
        if source is not None and (key.endswith(":") or not source.startswith("@")):
            raise SpecError(
                f"secret.{name} takes no value here, where ps and the shell's history show it",
                f"secret.{name} alone takes it from the variable {name},"
                f" secret.{name}=@FILE from a file",
                NOTHING_SENT,
            )
        if source is not None and (source == "@" or "\0" in source):
            raise SpecError(f"secret.{name}=@ names no file", NOTHING_SENT)
        self.secrets[name] = None if source is None else source[1:]

    def _param(self, key: str, raw: RawValue) -> None:
        if _KEY.fullmatch(key) is None:
            raise SpecError(f"{said(key)} is not a parameter's name", NOTHING_SENT)
        once(key, self.params, key)
        if raw.is_json:
            decode_json(key, raw.text)
        self.params[key] = raw
        self.order.append(("param", key))

    def refuse_params(self) -> None:
        """With a command there are no parameters to set."""
        for key in self.params:
            raise SpecError(
                f"{key} is not a key of submit{meant(key, ())}",
                "with -- CMD: "
                + " ".join(f"{name}=" for name in RESERVED if name != "job")
                + " env.NAME= secret.NAME each.NAME=",
                "options of the program go after its name",
                NOTHING_SENT,
            )

    def name(self, key: str) -> str | None:
        """A reserved key whose value is a name."""
        value = self._reserved.get(key)
        if value is None or valid_name(value):
            return value
        if key in ("job", "host") and "," in value:
            raise SpecError(
                f"{key} is {said(value)}; a sweep has one {key} (it is made of parameters)",
                NOTHING_SENT,
            )
        raise SpecError(f"{key} is {said(value)}; a name has {NAME_RULE}", NOTHING_SENT)

    def images(self) -> tuple[str, ...]:
        """The names in `image=a,b`."""
        value = self._reserved.get("image")
        if value is None:
            return ()
        names = tuple(value.split(","))
        for name in names:
            if not valid_name(name):
                raise SpecError(f"image is {said(value)}; a name has {NAME_RULE}", NOTHING_SENT)
            if names.count(name) > 1:
                raise SpecError(f"image is {said(value)}; {name} is there twice", NOTHING_SENT)
        return names

    def count(self, key: str, *, least: int, most: int) -> int | None:
        """A reserved key whose value is a whole number."""
        value = self._reserved.get(key)
        if value is None:
            return None
        digits = re.fullmatch(r"(-?)0*([0-9]{1,9})", value)
        number = int(digits[1] + digits[2]) if digits else 0
        if digits is None or not least <= number <= most:
            raise SpecError(
                f"{key} is {said(value)}; it must be a whole number from {least} to {most}",
                NOTHING_SENT,
            )
        return number

    def gpus(self) -> str | int | None:
        """`auto` or a number."""
        if self._reserved.get("gpus") == "auto":
            return "auto"
        if not re.fullmatch(r"[0-9]+", self._reserved.get("gpus", "0")):
            raise SpecError(
                f"gpus is {said(self._reserved['gpus'])}; it must be auto or a whole number",
                NOTHING_SENT,
            )
        return self.count("gpus", least=0, most=999_999)

    def launcher(self) -> str | None:
        """`auto`, or what starts the ranks."""
        return self._one_of("launcher", LAUNCHERS)

    def on_stuck(self) -> str | None:
        """What to do with a run that no longer moves."""
        return self._one_of("on_stuck", ON_STUCK)

    def _one_of(self, key: str, choices: Sequence[str]) -> str | None:
        value = self._reserved.get(key)
        if value is None or value in choices:
            return value
        listed = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise SpecError(
            f"{key} is {said(value)}; it must be {listed}{did_you_mean(value, choices)}",
            NOTHING_SENT,
        )

    def duration(self, key: str, *, positive: bool = False) -> float | None:
        """A reserved key whose value is a duration."""
        value = self._reserved.get(key)
        if value is None:
            return None
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            raise SpecError(f"{key} is {said(value)}; {error}", NOTHING_SENT) from error
        if positive and not seconds:
            raise SpecError(f"{key} is {said(value)}; it must be longer than nothing", NOTHING_SENT)
        return seconds

    def size(self, key: str) -> int | None:
        """A reserved key whose value is a size, and not nothing."""
        value = self._reserved.get(key)
        if value is None:
            return None
        try:
            count = parse_size(value)
        except ValueError as error:
            raise SpecError(f"{key} is {said(value)}; {error}", NOTHING_SENT) from error
        if not count:
            raise SpecError(f"{key} is {said(value)}; it must be more than nothing", NOTHING_SENT)
        return count

    def tags(self) -> tuple[str, ...]:
        """The names in `tags=a,b`."""
        if "tags" not in self._reserved:
            return ()
        tags = self._reserved["tags"].split(",")
        for tag in tags:
            if not valid_name(tag):
                raise SpecError(f"tag {said(tag)} is not a name; it has {NAME_RULE}", NOTHING_SENT)
        return tuple(dict.fromkeys(tags))

    def after(self) -> tuple[str, ...]:
        """The words for runs in `after=RUN,RUN`."""
        if "after" not in self._reserved:
            return ()
        value = self._reserved["after"]
        words = value.split(",")
        for word in words:
            kind, sign, rest = word.rpartition(":")
            if not valid_name(rest) or (sign and kind not in ("name", "tag")):
                raise SpecError(
                    f"after is {said(value)}; it takes RUN or RUN,RUN:"
                    " an id, a sweep's id, name:TEXT or tag:TEXT",
                    NOTHING_SENT,
                )
        return tuple(dict.fromkeys(words))


def meant(key: str, known: Sequence[str]) -> str:
    """` (did you mean x?)` for a key that is none, or nothing; `known` are the parameters."""
    prefix, dot, name = key.partition(".")
    close_prefix = near(prefix, PREFIXES) if dot else None
    if close_prefix is not None:
        return f" (did you mean {close_prefix}.{name}?)"
    close = near(key, known) or near(key, {*known, *RESERVED})
    return f" (did you mean {close}?)" if close else ""


def plain(key: str) -> str:
    """A key as messages show it: as typed where that is harmless."""
    return key if _KEY.fullmatch(key) else said(key)


def once(key: str, seen: Mapping[str, object], shown: str) -> None:
    """Raises SpecError for a key that is there already."""
    if key in seen:
        raise SpecError(f"{shown} is given twice", NOTHING_SENT)


def shown_word(word: str) -> str:
    """A word as messages show it: as typed where that is harmless."""
    return word if re.fullmatch(r"[A-Za-z0-9._/-]{1,60}", word) else said(word)


def _not_a_word(word: str) -> SpecError:
    if word in RESERVED:
        return SpecError(f"{word} needs a value: {word}=VALUE", NOTHING_SENT)
    prefix, dot, name = word.partition(".")
    if dot and near(prefix, PREFIXES) == "secret" and _ENV_NAME.fullmatch(name):
        hint = f" (did you mean secret.{name}?)"
    else:
        hint = f" (did you mean job={word}?)" if valid_name(word) else ""
    return SpecError(
        f"{shown_word(word)} is not key=value{hint}; a command stands after --", NOTHING_SENT
    )


def _check_env_name(prefix: str, name: str) -> None:
    if not _ENV_NAME.fullmatch(name):
        raise SpecError(
            f"{prefix}.{said(name)[1:-1]} is no name for an environment variable", NOTHING_SENT
        )
    if _SET_BY_LAUNCHER.fullmatch(name):
        raise SpecError(
            f"{prefix}.{name} is set by the runner itself and cannot be given", NOTHING_SENT
        )
