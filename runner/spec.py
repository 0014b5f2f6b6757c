"""From words and the job's file to what a run shall be (pure).

    runner submit host=gpu1 job=dqn lr=3e-4 layers:='[64, 64]' env.TOKEN=… name=baseline
    runner submit host=gpu1 job=dqn seed=1..5 secret.WANDB_API_KEY
    runner submit host=gpu1 gpus=1 -- python train.py --lr 3e-4

words.py sorts the words, sweeps.py makes several runs of them. Parameters take the type of their
default. Words whose meaning comes with a later version are refused by name, never accepted and
ignored.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner import passing
from runner.errors import SpecError
from runner.fields import NAME_RULE, is_plain_text, said, valid_name
from runner.grammar.sweeps import (
    Member,
    check_count,
    filled,
    parse_choices,
    product,
    refuse_twice,
    typed_values,
)
from runner.grammar.values import LONGEST_ADVICE, NOTHING_SENT, RawValue, takes_json, typed
from runner.grammar.words import MOST_PRIORITY, MOST_RESTARTS, Words, meant, once, plain, shown_word
from runner.model import MOST_RANKS, Host, JobSpec, Param

JOB_FILE_KEYS = (
    *("entry", "command", "pass", "flags", "metric", "keep", "keep_best", "resumable", "setup"),
    "requirements",
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
    each: Mapping[str, str] = field(default_factory=dict)
    """What `{NAME}` in the command stands for, as typed."""
    order: tuple[tuple[str, str], ...] = ()
    """(param, each or image; name) of what may be swept, as typed."""
    images: tuple[str, ...] = ()
    nproc: int | None = None
    gpus: str | int | None = None
    launcher: str | None = None
    grace_s: float | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    time_limit_s: float | None = None
    restarts: int | None = None
    priority: int = 0
    after: tuple[str, ...] = ()
    """Words for the runs that must be done before."""
    stuck_after_s: float | None = None
    on_stuck: str | None = None
    log_limit_bytes: int | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str | None] = field(default_factory=dict)
    """Name to the file that holds it; None: the operator's variable of that name does."""
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
    time_limit_s: float | None
    restarts: int
    priority: int
    stuck_after_s: float | None
    on_stuck: str
    log_limit_bytes: int | None
    keep: int | None
    keep_best: int | None
    resumable: tuple[str, ...]
    secrets: tuple[str, ...]
    """Names alone."""
    how: str = "file"
    flags: Mapping[str, str] = field(default_factory=dict)
    """How the parameters reach the program, and how it spells them (passing.py)."""
    requirements: tuple[str, ...] = ()
    members: tuple[Member, ...] = ()
    """The runs of a sweep, two at least; none: it is one run."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        """How many runs it makes."""
        return len(self.members) or 1


def parse_submit(
    words: Sequence[str],
    command: Sequence[str] | None,
    *,
    is_program: Callable[[str], bool] = lambda word: False,
) -> SubmitRequest:
    """What the words ask for. Raises SpecError.

    `is_program` tells whether a command of one odd word names a file of the project.
    """
    sorted_words = Words(words)
    job = sorted_words.name("job")
    if job is not None and command is not None:
        raise SpecError("job= and -- CMD are two ways to say what to run; give one", NOTHING_SENT)
    if job is not None:
        _refuse_each(sorted_words.each, job)
    if command is not None:
        sorted_words.refuse_params()
    argv = None if command is None else _command(command, words, sorted_words.each, is_program)
    request = SubmitRequest(
        host=sorted_words.name("host") or "local",
        job=job,
        command=argv,
        params=sorted_words.params,
        each=sorted_words.each,
        order=tuple(sorted_words.order),
        images=sorted_words.images(),
        nproc=sorted_words.count("nproc", least=1, most=MOST_RANKS),
        gpus=sorted_words.gpus(),
        launcher=sorted_words.launcher(),
        grace_s=sorted_words.duration("grace"),
        name=sorted_words.name("name"),
        tags=sorted_words.tags(),
        time_limit_s=sorted_words.duration("time_limit", positive=True),
        restarts=sorted_words.count("restarts", least=0, most=MOST_RESTARTS),
        priority=sorted_words.count("priority", least=-MOST_PRIORITY, most=MOST_PRIORITY) or 0,
        after=sorted_words.after(),
        stuck_after_s=sorted_words.duration("stuck_after", positive=True),
        on_stuck=sorted_words.on_stuck(),
        log_limit_bytes=sorted_words.size("log_limit"),
        env=sorted_words.env,
        secrets=sorted_words.secrets,
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


def _refuse_each(each: Mapping[str, str], job: str) -> None:
    """A job's parameters are swept by their own names."""
    for name, value in each.items():
        word = shlex.quote(f"{name}={value}")
        shown = word if word.isprintable() and len(word) <= LONGEST_ADVICE else f"{name}=…"
        raise SpecError(
            f"each.{name} fills in a command after --; with job={job} sweep the parameter:",
            shown,
            NOTHING_SENT,
        )


def _command(
    command: Sequence[str],
    words: Sequence[str],
    each: Mapping[str, str],
    is_program: Callable[[str], bool],
) -> tuple[str, ...]:
    argv = tuple(command)
    if not argv or not argv[0]:
        raise SpecError("there is no command after --", NOTHING_SENT)
    if any("\0" in word for word in argv):
        raise SpecError("the command has a NUL in it", NOTHING_SENT)
    for name in each:
        if not any(f"{{{name}}}" in word for word in argv):
            raise SpecError(
                f"each.{name} fills in {{{name}}}, which is nowhere in the command", NOTHING_SENT
            )
    word = argv[0]
    fixed = filled(argv, dict.fromkeys(each, ""))[0]
    if len(argv) == 1 and _SHELL_SIGNS.search(fixed) and not is_program(word):
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
            f"launcher=direct starts one rank, not {nproc}; several need torchrun or mpirun",
            NOTHING_SENT,
        )


def resolve(
    request: SubmitRequest, job: JobSpec | None, host: Host, *, many: bool = False
) -> RunPlan:
    """What the run shall be on this host, or the runs of a sweep. Raises SpecError.

    `job` is the recipe `request.job` names; many: a very large sweep is meant. A drawn value
    (`seed = -1`) is left as it is.
    """
    nproc = request.nproc or (job.nproc if job else 1)
    launcher = request.launcher or (job.launcher if job else "auto")
    _check_launcher(launcher, nproc)
    if launcher == "auto":
        launcher = "torchrun" if nproc > 1 else "direct"
    gpus = request.gpus if request.gpus is not None else (job.gpus if job else "auto")
    _check_gpus(gpus, host)
    if request.images and host.runtime == "local":
        raise SpecError(
            f"{host.name} runs this machine's own Python; it has no images", NOTHING_SENT
        )
    stuck_after_s = _first(request.stuck_after_s, job.stuck_after_s if job else None)
    if request.on_stuck is not None and stuck_after_s is None:
        raise SpecError(
            f"on_stuck={request.on_stuck} needs stuck_after=30m or the like", NOTHING_SENT
        )
    recipe = job or JobSpec("", (), restarts=0)
    if job is not None:
        _refuse_unknown(request.params, job)
    alike, swept = _values(request, recipe.params)
    each = {name: str(value) for (kind, name), value in alike.items() if kind == "each"}
    members = product(swept, each, many=many)
    argv = job.command if job else request.command or ()
    params = {name: value for (kind, name), value in alike.items() if kind == "param"}
    if job is not None:
        _check_passed(job, {**job.params, **params}, members)
    return RunPlan(
        job=job.name if job else None,
        argv=argv if members else filled(argv, each),
        params={**recipe.params, **params},
        nproc=nproc,
        gpus=gpus,
        launcher=launcher,
        grace_s=recipe.grace_s if request.grace_s is None else request.grace_s,
        metric=recipe.metric,
        name=request.name,
        tags=request.tags,
        image=request.images[0] if len(request.images) == 1 else None,
        time_limit_s=_first(request.time_limit_s, recipe.time_limit_s),
        restarts=recipe.restarts if request.restarts is None else request.restarts,
        priority=request.priority,
        stuck_after_s=stuck_after_s,
        on_stuck=request.on_stuck or recipe.on_stuck,
        log_limit_bytes=request.log_limit_bytes or recipe.log_limit_bytes,
        keep=recipe.keep,
        keep_best=recipe.keep_best,
        resumable=recipe.resumable,
        secrets=tuple(sorted(request.secrets)),
        how=recipe.how,
        flags=dict(recipe.flags),
        requirements=recipe.requirements,
        members=members,
        env=dict(request.env),
    )


def passed_of(job: JobSpec | RunPlan) -> dict[str, Any] | None:
    """How its parameters become words, as a record's `pass` has it; None where they do not."""
    if job.how not in (passing.FLAGS, passing.HYDRA):
        return None
    return {"how": job.how, "flags": dict(job.flags)}


def _check_passed(job: JobSpec, params: Mapping[str, Param], members: Sequence[Member]) -> None:
    """Refuses values that cannot be said on a command line."""
    passed = passed_of(job)
    if passed is None:
        return
    for each in members or (Member(),):
        said_params = {**params, **each.params}
        for name, value in said_params.items():
            needed = passing.spelling_of(name, job.how, job.flags).needed
            if needed and passing.is_empty(value) and not passing.is_empty(job.params.get(name)):
                text = f"{name} is empty, for which {job.name}'s script would take its default"
                raise SpecError(text, NOTHING_SENT)
            if needed and passing.is_empty(value):
                raise SpecError(
                    f"{name} is needed: {job.name} has no default for it",
                    f"runner submit job={shlex.quote(job.name)} {name}=…",
                    NOTHING_SENT,
                )
        words = passing.passed_words(passed, said_params)
        if not all(is_plain_text(word) for word in words):
            text = "a parameter has a NUL or half a character in it, which no word can hold"
            raise SpecError(text, NOTHING_SENT)


def _first(given: float | None, default: float | None) -> float | None:
    return default if given is None else given


def _values(
    request: SubmitRequest, defaults: Mapping[str, Param]
) -> tuple[dict[tuple[str, str], Param], list[tuple[str, str, Sequence[Param]]]]:
    """What all runs have alike, and what they differ in, in the order typed."""
    alike: dict[tuple[str, str], Param] = {}
    swept: list[tuple[str, str, Sequence[Param]]] = []
    for kind, name in request.order:
        values = _values_of(request, kind, name, defaults)
        if len(values) == 1:
            alike[kind, name] = values[0]
        else:
            swept.append((kind, name, values))
    return alike, swept


def _values_of(
    request: SubmitRequest, kind: str, name: str, defaults: Mapping[str, Param]
) -> Sequence[Param]:
    if kind == "image":
        return request.images
    if kind == "each":
        text = request.each[name]
        choices = parse_choices(f"each.{name}", text)
        check_count(choices.count, many=True)
        texts = list(choices.texts())
        refuse_twice(f"each.{name}", text, texts)
        return texts
    raw = request.params[name]
    if raw.is_json or takes_json(defaults[name]):
        return [typed(name, raw, defaults[name])]
    return typed_values(name, raw.text, defaults[name])


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


def _refuse_unknown(given: Mapping[str, RawValue], job: JobSpec) -> None:
    for key in given:
        if key in job.params:
            continue
        if key in JOB_FILE_KEYS:
            raise SpecError(f"{key} stands in the job's file, not in words", NOTHING_SENT)
        raise SpecError(
            f"{key} is not a parameter of {job.name}{meant(key, list(job.params))}",
            f"all of them: runner jobs {shlex.quote(job.name)}",
            NOTHING_SENT,
        )


_NUMBERS = ("gpus", "port")


def parse_keys(words: Sequence[str], allowed: Sequence[str]) -> dict[str, str]:
    """The `key=value` words of a command other than submit. Raises SpecError.

    Values are names (of hosts, image pins), and numbers, which the command reads.
    """
    found: dict[str, str] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign:
            raise SpecError(f"{shown_word(word)} is not key=value")
        if key not in allowed:
            takes = " and ".join(f"{name}=" for name in allowed)
            raise SpecError(f"{plain(key)} is no key here; this command takes {takes}")
        once(key, found, key)
        if key not in _NUMBERS and not valid_name(value):
            raise SpecError(f"{key} is {said(value)}; a name has {NAME_RULE}")
        found[key] = value
    return found
