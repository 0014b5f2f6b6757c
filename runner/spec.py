"""From words to what a run shall be (pure): the grammar of `runner submit` and of job files.

    runner submit host=gpu1 job=dqn lr=3e-4 layers:='[64, 64]' env.TOKEN=… name=baseline
    runner submit host=gpu1 gpus=1 -- python train.py --lr 3e-4

A word is `key=value`, split at the first `=`, or `key:=JSON`. Reserved keys speak of the run, all
others are parameters of the job and take the type of their default. Words whose meaning comes
with a later version are refused by name, never accepted and ignored.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from runner.errors import SpecError
from runner.fields import NAME_RULE, did_you_mean, near, parse_duration, said, valid_name
from runner.model import MOST_RANKS, Host, JobSpec, Param
from runner.values import LONGEST_ADVICE, NOTHING_SENT, RawValue, decode_json, typed

RESERVED = ("host", "job", "image", "gpus", "nproc", "launcher", "grace", "name", "tags")
LATER_KEYS = ("time_limit", "restarts", "priority", "after", "nodes")
LATER_PREFIXES = ("secret.", "each.")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SET_BY_LAUNCHER = re.compile(
    r"RUNNER_.*|TORCHELASTIC_.*|MASTER_.*|ROLE_.*|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE"
    r"|GROUP_RANK|GROUP_WORLD_SIZE|CUDA_VISIBLE_DEVICES|PYTHONUNBUFFERED|HOME|PWD"
)
_BASH = ("bash", "-o", "pipefail", "-c")
_SHELL_SIGNS = re.compile(r"[\s|&;<>()$`\\\"'*?\[\]{}~#!]")


@dataclass(frozen=True)
class SubmitRequest:
    """What the words of one submit ask for; parameters are not yet typed."""

    host: str = "local"
    job: str | None = None
    command: tuple[str, ...] | None = None
    """The argv after `--`, untouched (bytes by surrogateescape)."""
    params: Mapping[str, RawValue] = field(default_factory=dict)
    image: str | None = None
    nproc: int | None = None
    gpus: str | int | None = None
    launcher: str | None = None
    grace_s: float | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    words: tuple[str, ...] = field(default=(), repr=False)
    """As typed, the command left out; values of `env.` may be secrets."""

    @property
    def shown_words(self) -> tuple[str, ...]:
        """The words as typed, without the values of environment variables."""
        return _without_values(self.words)


def _without_values(words: Sequence[str]) -> tuple[str, ...]:
    """Words with the values of environment variables left out, which may be secrets."""
    return tuple(
        word.split("=", 1)[0] + "=…" if word.startswith("env.") else word for word in words
    )


@dataclass(frozen=True)
class RunPlan:
    """What a run shall be, all defaults filled in."""

    job: str | None
    argv: tuple[str, ...]
    params: Mapping[str, Param]
    nproc: int
    gpus: str | int
    """`auto`, or how many."""
    launcher: str
    """`direct` or `torchrun`."""
    grace_s: float
    metric: str | None
    name: str | None
    tags: tuple[str, ...]
    image: str | None
    """The pin that was asked for by name; None is the host's own."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


def parse_submit(
    words: Sequence[str],
    command: Sequence[str] | None,
    *,
    is_program: Callable[[str], bool] = lambda word: False,
) -> SubmitRequest:
    """What the words ask for. Raises SpecError.

    `is_program` tells whether a command of one odd word names a file of the project.
    """
    typed_words = _Words(words)
    argv = None if command is None else _command(command, words, is_program)
    job = typed_words.name("job")
    if job is not None and argv is not None:
        raise SpecError("job= and -- CMD are two ways to say what to run; give one", NOTHING_SENT)
    if argv is not None:
        typed_words.refuse_params()
    request = SubmitRequest(
        host=typed_words.name("host") or "local",
        job=job,
        command=argv,
        params=typed_words.params,
        image=typed_words.name("image"),
        nproc=typed_words.count("nproc", least=1, most=MOST_RANKS),
        gpus=typed_words.gpus(),
        launcher=typed_words.launcher(),
        grace_s=typed_words.duration("grace"),
        name=typed_words.name("name"),
        tags=typed_words.tags(),
        env=typed_words.env,
        words=tuple(words),
    )
    if job is None and argv is None:
        raise SpecError(
            "submit needs job=JOB, or -- CMD at the end",
            "runner jobs",
            NOTHING_SENT,
        )
    _check_launcher(request.launcher or "auto", request.nproc or 1)
    return request


class _Words:
    """The words of one submit, sorted into reserved keys, environment and parameters."""

    def __init__(self, words: Sequence[str]) -> None:
        self.params: dict[str, RawValue] = {}
        self.env: dict[str, str] = {}
        self._reserved: dict[str, str] = {}
        for word in words:
            self._take(word)

    def _take(self, word: str) -> None:
        key, sign, value = word.partition("=")
        if not sign:
            raise _not_a_word(word)
        is_json = key.endswith(":")
        key = key[:-1] if is_json else key
        if key.startswith("param."):
            self._param(key[len("param.") :], RawValue(value, is_json))
        elif key in RESERVED or key.startswith("env.") or _is_later(key):
            self._own(key, value, is_json)
        else:
            self._param(key, RawValue(value, is_json))

    def _own(self, key: str, value: str, is_json: bool) -> None:
        if _is_later(key):
            raise SpecError(f"{_plain(key)} is not in this version yet", NOTHING_SENT)
        if is_json:
            raise SpecError(f"{key} takes {key}=VALUE, not JSON", NOTHING_SENT)
        if key.startswith("env."):
            name = key[len("env.") :]
            _check_env_name(name)
            _once(name, self.env, key)
            self.env[name] = value
        else:
            _once(key, self._reserved, key)
            self._reserved[key] = value

    def _param(self, key: str, raw: RawValue) -> None:
        if _KEY.fullmatch(key) is None:
            raise SpecError(f"{said(key)} is not a parameter's name", NOTHING_SENT)
        _once(key, self.params, key)
        if raw.is_json:
            decode_json(key, raw.text)
        self.params[key] = raw

    def refuse_params(self) -> None:
        """With a command there are no parameters to set."""
        for key in self.params:
            raise SpecError(
                f"{key} is not a key of submit{did_you_mean(key, RESERVED)}",
                "with -- CMD: "
                + " ".join(f"{name}=" for name in RESERVED if name != "job")
                + " env.NAME=",
                "options of the program go after its name",
                NOTHING_SENT,
            )

    def name(self, key: str) -> str | None:
        """A reserved key whose value is a name."""
        value = self._reserved.get(key)
        if value is None or valid_name(value):
            return value
        if key in ("image", "job") and "," in value:
            raise SpecError(
                f"{key} is {said(value)}; sweeps are not in this version yet", NOTHING_SENT
            )
        raise SpecError(f"{key} is {said(value)}; a name has {NAME_RULE}", NOTHING_SENT)

    def count(self, key: str, *, least: int, most: int) -> int | None:
        """A reserved key whose value is a whole number."""
        value = self._reserved.get(key)
        if value is None:
            return None
        digits = re.fullmatch(r"0*([0-9]{1,9})", value)
        if digits is None or not least <= int(digits[1]) <= most:
            raise SpecError(
                f"{key} is {said(value)}; it must be a whole number from {least} to {most}",
                NOTHING_SENT,
            )
        return int(digits[1])

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
        """`auto`, `direct` or `torchrun`."""
        value = self._reserved.get("launcher")
        if value == "mpirun":
            raise SpecError("launcher mpirun is not in this version yet", NOTHING_SENT)
        if value not in (None, "auto", "direct", "torchrun"):
            hint = did_you_mean(value, ("auto", "direct", "torchrun"))
            raise SpecError(
                f"launcher is {said(value)}; it must be auto, direct or torchrun{hint}",
                NOTHING_SENT,
            )
        return value

    def duration(self, key: str) -> float | None:
        """A reserved key whose value is a duration."""
        value = self._reserved.get(key)
        if value is None:
            return None
        try:
            return parse_duration(value)
        except ValueError as error:
            raise SpecError(f"{key} is {said(value)}; {error}", NOTHING_SENT) from error

    def tags(self) -> tuple[str, ...]:
        """The names in `tags=a,b`."""
        if "tags" not in self._reserved:
            return ()
        tags = self._reserved["tags"].split(",")
        for tag in tags:
            if not valid_name(tag):
                raise SpecError(f"tag {said(tag)} is not a name; it has {NAME_RULE}", NOTHING_SENT)
        return tuple(dict.fromkeys(tags))


def _is_later(key: str) -> bool:
    return key in LATER_KEYS or key.startswith(LATER_PREFIXES)


def _plain(key: str) -> str:
    return key if _KEY.fullmatch(key) else said(key)


def _once(key: str, seen: Mapping[str, object], shown: str) -> None:
    if key in seen:
        raise SpecError(f"{shown} is given twice", NOTHING_SENT)


def _not_a_word(word: str) -> SpecError:
    if word in RESERVED:
        return SpecError(f"{word} needs a value: {word}=VALUE", NOTHING_SENT)
    meant = f" (did you mean job={word}?)" if valid_name(word) else ""
    return SpecError(
        f"{_shown_word(word)} is not key=value{meant}; a command stands after --", NOTHING_SENT
    )


def _shown_word(word: str) -> str:
    return word if re.fullmatch(r"[A-Za-z0-9._/-]{1,60}", word) else said(word)


def _check_env_name(name: str) -> None:
    if not _ENV_NAME.fullmatch(name):
        raise SpecError(
            f"env.{said(name)[1:-1]} is no name for an environment variable", NOTHING_SENT
        )
    if _SET_BY_LAUNCHER.fullmatch(name):
        raise SpecError(f"env.{name} is set by the runner itself and cannot be given", NOTHING_SENT)


def _command(
    command: Sequence[str], words: Sequence[str], is_program: Callable[[str], bool]
) -> tuple[str, ...]:
    argv = tuple(command)
    if not argv or not argv[0]:
        raise SpecError("there is no command after --", NOTHING_SENT)
    if any("\0" in word for word in argv):
        raise SpecError("the command has a NUL in it", NOTHING_SENT)
    word = argv[0]
    if len(argv) == 1 and _SHELL_SIGNS.search(word) and not is_program(word):
        raise SpecError(
            f"{said(word)} is no program; no shell reads what stands after --. For one:",
            _bash_line(words, word),
            NOTHING_SENT,
        )
    return argv


def _bash_line(words: Sequence[str], script: str) -> str:
    """The same submit with a shell, ready to copy where all of it can be shown."""
    line = shlex.join(["runner", "submit", *_without_values(words), "--", *_BASH, script])
    shown = line.isprintable() and len(line) <= LONGEST_ADVICE
    return line if shown else "runner submit … -- bash -o pipefail -c '…'"


def _check_launcher(launcher: str, nproc: int) -> None:
    if launcher == "direct" and nproc > 1:
        raise SpecError(
            f"launcher=direct starts one rank, not {nproc}; several need torchrun", NOTHING_SENT
        )


def resolve(request: SubmitRequest, job: JobSpec | None, host: Host) -> RunPlan:
    """What the run shall be on this host. Raises SpecError.

    `job` is the recipe `request.job` names. A drawn value (`seed = -1`) is left as it is.
    """
    nproc = request.nproc or (job.nproc if job else 1)
    launcher = request.launcher or (job.launcher if job else "auto")
    _check_launcher(launcher, nproc)
    if launcher == "auto":
        launcher = "torchrun" if nproc > 1 else "direct"
    gpus = request.gpus if request.gpus is not None else (job.gpus if job else "auto")
    _check_gpus(gpus, host)
    if request.image is not None and host.runtime == "local":
        raise SpecError(
            f"{host.name} runs this machine's own Python; it has no images", NOTHING_SENT
        )
    default_grace_s = job.grace_s if job else JobSpec.grace_s
    return RunPlan(
        job=job.name if job else None,
        argv=job.command if job else request.command or (),
        params=_params(request.params, job) if job else {},
        nproc=nproc,
        gpus=gpus,
        launcher=launcher,
        grace_s=default_grace_s if request.grace_s is None else request.grace_s,
        metric=job.metric if job else None,
        name=request.name,
        tags=request.tags,
        image=request.image,
        env=dict(request.env),
    )


def _check_gpus(gpus: str | int, host: Host) -> None:
    """Refuses what the host can never give, as far as its file tells."""
    if not isinstance(gpus, int) or host.gpus == "all":
        return
    most = 0 if host.gpus == "none" else len(host.gpus)
    if gpus > most:
        raise SpecError(
            f"gpus is {gpus}; {host.name} gives {most or 'none'} (gpus in its host file)",
            NOTHING_SENT,
        )


def _params(given: Mapping[str, RawValue], job: JobSpec) -> dict[str, Param]:
    for key in given:
        if key not in job.params:
            raise _unknown_param(key, job)
    params = dict(job.params)
    params.update({key: typed(key, raw, job.params[key]) for key, raw in given.items()})
    return params


def _unknown_param(key: str, job: JobSpec) -> SpecError:
    known = {*job.params, *RESERVED}
    close = near(key, job.params) or near(key, known)
    hint = f" (did you mean {close}?)" if close else ""
    return SpecError(
        f"{key} is not a parameter of {job.name}{hint}",
        f"all of them: runner jobs {shlex.quote(job.name)}",
        NOTHING_SENT,
    )


def parse_keys(words: Sequence[str], allowed: Sequence[str]) -> dict[str, str]:
    """The `key=value` words of a command other than submit. Raises SpecError.

    Values are names (of hosts, image pins).
    """
    found: dict[str, str] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign:
            raise SpecError(f"{_shown_word(word)} is not key=value")
        if key not in allowed:
            takes = " and ".join(f"{name}=" for name in allowed)
            raise SpecError(f"{_plain(key)} is no key here; this command takes {takes}")
        _once(key, found, key)
        if not valid_name(value):
            raise SpecError(f"{key} is {said(value)}; a name has {NAME_RULE}")
        found[key] = value
    return found
