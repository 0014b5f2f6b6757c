"""The text of a job's file for a script that was read (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from runner.grammar.script_packages import Packages
from runner.grammar.script_values import Option
from runner.grammar.scripts import Script
from runner.grammar.words import RESERVED

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_HELP = 100
_METRIC = "# a tag of its event files, or a name in progress lines: docs/jobs.md"


def job_text(script: Script, command: Sequence[str], packages: Packages, made_from: str) -> str:
    """A file that `runner submit job=…` takes, with what was found and what was not."""
    how = passing_of(script)
    options = script.options if how == "flags" else ()
    lines = [
        f"# Made by `runner job add` from {made_from}; edit it as you like.",
        f"command = {toml(list(command))}",
        f"pass = {toml(how)}{_why(script, how)}",
    ]
    if script.metric is not None:
        lines.append(f"metric = {toml(script.metric)}  {_METRIC}")
    if not script.resumes:
        lines.append("restarts = 0    # it knows no RUNNER_RESUME: each start begins anew")
    lines += _setup(packages)
    if options:
        lines += ["", "[params]        # the script's own defaults"]
        lines += _params(options)
        flags = [each for each in options if not _is_usual(each)]
        if flags:
            lines += ["", "[flags]         # how it spells them: docs/jobs.md"]
            lines += [f"{key(each.name)} = {toml(each.spelling)}" for each in flags]
    if script.left:
        lines += ["", "# left to the script:"]
        lines += [f"#   {each.name}: {each.why}" for each in script.left]
    return "\n".join(lines) + "\n"


def passing_of(script: Script) -> str:
    """How this script takes its parameters."""
    if script.kind == "hydra":
        return "hydra"
    return "flags" if script.options else "none"


def _why(script: Script, how: str) -> str:
    if how == "hydra" and script.hydra is not None:
        return f"  # add to [params] what runs shall set of {script.hydra.file}"
    if how == "none" and script.kind is not None:
        fixed = "fixed ones can stand in command"
        given = 'with pass = "flags" [params] gives them'
        return f"  # its options ({script.kind}) were not read; {fixed}, {given}"
    return ""


def _setup(packages: Packages) -> list[str]:
    if not (packages.needed or packages.optional or packages.unknown):
        return []
    lines = [
        "",
        "[setup]         # by its imports, beside what the image has",
    ]
    lines.append(f"requirements = {toml(list(packages.needed))}")
    if packages.optional:
        lines.append(f"# imported on some paths only: {', '.join(packages.optional)}")
    if packages.unknown:
        lines.append(f"# of a package not known here: {', '.join(packages.unknown)}")
    return lines


def _params(options: Sequence[Option]) -> list[str]:
    rows = [(f"{key(each.name)} = {toml(each.default)}", _comment(each)) for each in options]
    width = min(40, max(len(row[0]) for row in rows))
    return [f"{text:<{width}}  # {comment}" if comment else text for text, comment in rows]


def _comment(option: Option) -> str:
    parts = []
    if option.name in RESERVED:
        parts.append(f"typed as param.{option.name}=")
    if option.spelling.endswith("!"):
        parts.append("needed")
    if option.choices:
        parts.append("one of " + ", ".join(option.choices))
    if option.help:
        parts.append(_printable(option.help))
    return "; ".join(parts)


def _printable(text: str) -> str:
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    return plain if len(plain) <= _LONGEST_HELP else plain[: _LONGEST_HELP - 1] + "…"


def _is_usual(option: Option) -> bool:
    return option.spelling == f"--{option.name}" and not isinstance(option.default, bool)


def key(name: str) -> str:
    """A key of a TOML table."""
    return name if _BARE.fullmatch(name) else toml(name)


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:_}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
