"""Reads the table of a job file, `agents/NAME.toml`, into a JobSpec (pure).

entry = "dqn.py"              # beside this file; or command = ["python", "train.py"]
nproc = 1                     # ranks
gpus = "auto"                 # one per rank where the host has them, else none; or a number
launcher = "auto"             # direct for one rank, torchrun for several; or mpirun
pass = "file"                 # by $RUNNER_PARAMS; "flags", "hydra": as words (passing.py)
grace = "25s"
metric = "eval/return"
time_limit = "12h"            # running time, summed over attempts; none without it
restarts = 3                  # how many faults of its own are forgiven
stuck_after = "30m"           # without a sign of life for so long it is stuck; never without it
on_stuck = "tell"             # or "restart", "stop"
log_limit = "1g"              # of its output; none without it
keep = 3                      # the newest checkpoints that stay; all without it
keep_best = 1                 # and the best by metric
resumable = ["steps"]         # parameters that resume may change
[setup]                       # packages beside the image's own, made once
requirements = ["wandb"]      # or the name of a file: "requirements.txt"
[params]                      # typed by their defaults
env = "CartPole-v1"
[flags]                       # with "flags" or "hydra": how the program spells them
env = "--env-id"
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner import passing
from runner.errors import SpecError
from runner.fields import Fields, near, parse_duration, said, valid_parameter
from runner.grammar.requirements import MOST, find_twice, lines_of, problem_of, without_secrets
from runner.grammar.words import LAUNCHERS, MOST_RESTARTS
from runner.model import MOST_RANKS, ON_STUCK, JobSpec, Param
from runner.wire import plain_path

PASS = ("file", "flags", "hydra", "none")
_SWITCH = (
    'is true or false; how it is said must stand in [flags]: "--{0}" (when true),'
    ' "--{0}/--no-{0}" (one of both) or "--{0}=" (--{0}=true)'
)


def parse_job(
    name: str, table: Mapping[str, Any], *, where: str, source: Path | None = None
) -> JobSpec:
    """The recipe in a job file's table. Raises SpecError with every problem."""
    fields = Fields(table, where=where)
    launcher = fields.one_of("launcher", "auto", LAUNCHERS)
    nproc = fields.integer("nproc", JobSpec.nproc, least=1) or 1
    if nproc > MOST_RANKS:
        fields.problem("nproc", f"is {said(nproc)}; it must be at most {MOST_RANKS}")
    if launcher == "direct" and nproc > 1:
        fields.problem("launcher", f"is 'direct', which starts one rank, not {nproc}")
    entry = fields.text("entry")
    restarts = fields.integer("restarts", JobSpec.restarts)
    if restarts is not None and restarts > MOST_RESTARTS:
        fields.problem("restarts", f"is {said(restarts)}; it must be at most {MOST_RESTARTS}")
    params = _params(fields)
    how = fields.one_of("pass", JobSpec.how, PASS)
    requirements, file = _setup(fields)
    job = JobSpec(
        name=name,
        command=_command(fields, entry),
        entry=entry,
        nproc=nproc,
        gpus=_gpus(fields),
        launcher=launcher,
        grace_s=fields.duration("grace", JobSpec.grace_s),
        metric=fields.text("metric"),
        params=params,
        time_limit_s=_duration(fields, "time_limit"),
        restarts=restarts or 0,
        stuck_after_s=_duration(fields, "stuck_after"),
        on_stuck=fields.one_of("on_stuck", JobSpec.on_stuck, ON_STUCK),
        log_limit_bytes=_size(fields, "log_limit"),
        keep=fields.integer("keep", None, least=1),
        keep_best=_keep_best(fields),
        resumable=_resumable(fields, params),
        how=how,
        flags=_flags(fields, how, params),
        requirements=requirements,
        requirements_file=file,
        source=source,
    )
    fields.finish()
    return job


def _command(fields: Fields, entry: str | None) -> tuple[str, ...]:
    command = fields.texts("command")
    if "entry" in fields and "command" in fields:
        fields.problem("command", "and entry are two ways to say what to run; keep one")
    elif "entry" not in fields and "command" not in fields:
        fields.problem(
            "entry", "is missing; name the program beside this file, or give command = [...]"
        )
    if entry is not None and not plain_path(entry):
        fields.problem("entry", f"is {said(entry)}; it must be a file beside this one")
    return command or ("python", f"agents/{entry}")


def _gpus(fields: Fields) -> str | int:
    value = fields.anything("gpus", JobSpec.gpus)
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        good: str | int = value
        return good
    fields.problem("gpus", f"is {said(value)}; it must be 'auto' or a whole number")
    return "auto"


def _duration(fields: Fields, key: str) -> float | None:
    """A duration longer than nothing; None when there is none."""
    value = fields.anything(key, None)
    if value is None:
        return None
    if not isinstance(value, str):
        fields.problem(key, f"is {said(value)}; it must be a duration such as '30m'")
        return None
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        fields.problem(key, f"is {said(value)}; {error}")
        return None
    if not seconds:
        fields.problem(key, f"is {said(value)}; it must be longer than nothing")
    return seconds


def _size(fields: Fields, key: str) -> int | None:
    count = fields.size(key, None)
    if count == 0:
        fields.problem(key, f"is {said(fields.anything(key, None))}; it must be more than nothing")
    return count


def _keep_best(fields: Fields) -> int | None:
    count = fields.integer("keep_best", None, least=1)
    if count is not None and "metric" not in fields:
        fields.problem("keep_best", "needs metric, which tells what is best")
    if count is not None and "keep" not in fields:
        fields.problem("keep_best", "needs keep; without it every checkpoint stays")
    return count


def _resumable(fields: Fields, params: Mapping[str, Param]) -> tuple[str, ...]:
    value = fields.anything("resumable", [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        fields.problem("resumable", f"is {said(value)}; it must be a list of parameters' names")
        return ()
    for name in value:
        if name not in params:
            hint = near(name, params)
            fields.problem(
                "resumable",
                f"has {said(name)}, which is not in [params]"
                + (f" (did you mean {hint!r}?)" if hint else ""),
            )
    return tuple(dict.fromkeys(value))


def _params(fields: Fields) -> dict[str, Param]:
    table = fields.table("params")
    params: dict[str, Param] = {}
    for key, value in table.items():
        if not valid_parameter(key):
            table.problem(key, "is no name for a parameter (letters, digits and _ . -)")
        elif not _fits_json(value):
            table.problem(key, f"is {said(value)}; it must be what JSON can hold, numbers finite")
        else:
            params[key] = value
    return params


def _flags(fields: Fields, how: str, params: Mapping[str, Param]) -> dict[str, str]:
    """How the program spells its parameters, and whether all can be said."""
    table = fields.table("flags")
    named = how in (passing.FLAGS, passing.HYDRA)
    flags: dict[str, str] = {}
    for key, value in table.items():
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        spelling = passing.read_spelling(text, how) if isinstance(text, str) else None
        if not named:
            table.problem(key, f'is of no use with pass = "{how}"')
        elif key not in params:
            hint = near(key, params)
            end = f" (did you mean {hint!r}?)" if hint else ""
            table.problem(key, f"is not in [params]{end}")
        elif spelling is None:
            like = "as '+db.user'" if how == passing.HYDRA else "as '--name' or '--x/--no-x'"
            table.problem(key, f"is {said(value)}; it must be {like}")
        else:
            assert isinstance(text, str)
            flags[key] = text
            _check_spelling(table, key, spelling, params[key])
    if how == passing.FLAGS:
        for key, value in params.items():
            if isinstance(value, dict):
                fields.problem(f"params.{key}", "is a table, which no flag can say")
            elif isinstance(value, bool) and key not in table:
                fields.problem(f"params.{key}", _SWITCH.format(key))
    if how == "none" and params:
        fields.problem("params", 'would reach nobody with pass = "none"')
    return flags


def _check_spelling(table: Fields, key: str, spelling: passing.Spelling, value: Param) -> None:
    """Notes a spelling that cannot say values of this type."""
    if spelling.other is not None and not isinstance(value, bool):
        table.problem(key, "is a pair of words, but the parameter is not true or false")
    elif spelling.repeated and not isinstance(value, list):
        table.problem(key, "ends in *, but the parameter is no list")
    elif (spelling.optional or spelling.needed) and isinstance(value, (bool, int, float)):
        table.problem(key, "ends in ? or !, but the parameter is no text or list: never empty")


def _setup(fields: Fields) -> tuple[tuple[str, ...], str | None]:
    """The packages asked for, or the file in the project that lists them."""
    table = fields.table("setup")
    value = table.anything("requirements", [])
    if isinstance(value, str):
        if plain_path(value):
            return (), value
        table.problem("requirements", f"is {said(value)}; it must be a file of the project")
        return (), None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        table.problem("requirements", f"is {said(value)}; it must be a list of packages")
        return (), None
    for item in value:
        if (why := problem_of(item)) is not None:
            table.problem("requirements", f"has {said(without_secrets(item))}, which {why}")
    return _checked_setup(table, value), None


def _checked_setup(table: Fields, value: Sequence[str]) -> tuple[str, ...]:
    if len(value) > MOST:
        table.problem("requirements", f"has {len(value)} packages; {MOST} at most")
    if (name := find_twice(value)) is not None:
        table.problem("requirements", f"has {name} twice")
    return tuple(" ".join(item.split()) for item in value)


def parse_requirements(text: str, *, where: str) -> tuple[str, ...]:
    """The packages in a requirements file. Raises SpecError with every problem."""
    lines = lines_of(text)
    wrong = [
        f"{where}:{number}: {said(without_secrets(item))} {why}"
        for number, item in lines
        if (why := problem_of(item)) is not None
    ]
    if wrong:
        raise SpecError(*wrong)
    table = Fields({}, where=where)
    found = _checked_setup(table, [item for _, item in lines])
    table.finish()
    return found


def _fits_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_fits_json(item) for item in value.values())
    if isinstance(value, list):
        return all(_fits_json(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (bool, int, str))
