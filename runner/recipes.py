"""Reads the table of a job file, `agents/NAME.toml`, into a JobSpec (pure).

entry = "dqn.py"              # beside this file; or command = ["python", "train.py"]
nproc = 1                     # ranks
gpus = "auto"                 # one per rank where the host has them, else none; or a number
launcher = "auto"             # direct for one rank, torchrun for several
pass = "file"                 # parameters by $RUNNER_PARAMS
grace = "25s"
metric = "eval/return"
[params]                      # typed by their defaults
env = "CartPole-v1"
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.fields import Fields, said
from runner.model import MOST_RANKS, JobSpec, Param
from runner.wire import plain_path

LATER = ("time_limit", "restarts", "keep", "keep_best", "resumable", "setup", "stuck_after")
_PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")


def parse_job(
    name: str, table: Mapping[str, Any], *, where: str, source: Path | None = None
) -> JobSpec:
    """The recipe in a job file's table. Raises SpecError with every problem."""
    fields = Fields(table, where=where)
    fields.later(*LATER)
    fields.one_of("pass", "file", ("file",), later=("flags", "hydra", "none"))
    launcher = fields.one_of("launcher", "auto", ("auto", "direct", "torchrun"), later=("mpirun",))
    nproc = fields.integer("nproc", JobSpec.nproc, least=1) or 1
    if nproc > MOST_RANKS:
        fields.problem("nproc", f"is {said(nproc)}; it must be at most {MOST_RANKS}")
    if launcher == "direct" and nproc > 1:
        fields.problem("launcher", f"is 'direct', which starts one rank, not {nproc}")
    entry = fields.text("entry")
    job = JobSpec(
        name=name,
        command=_command(fields, entry),
        entry=entry,
        nproc=nproc,
        gpus=_gpus(fields),
        launcher=launcher,
        grace_s=fields.duration("grace", JobSpec.grace_s),
        metric=fields.text("metric"),
        params=_params(fields),
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


def _params(fields: Fields) -> dict[str, Param]:
    table = fields.table("params")
    params: dict[str, Param] = {}
    for key, value in table.items():
        if _PARAM.fullmatch(key) is None:
            table.problem(key, "is no name for a parameter (letters, digits and _ . -)")
        elif not _fits_json(value):
            table.problem(key, f"is {said(value)}; it must be what JSON can hold, numbers finite")
        else:
            params[key] = value
    return params


def _fits_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_fits_json(item) for item in value.values())
    if isinstance(value, list):
        return all(_fits_json(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (bool, int, str))
