"""Writes docs/reference/ from the code: `python docs/site/reference.py [--check]`.

Names, types, defaults and choices are the code's own, the one-line texts those of
runner/meanings.py, of `--help` and below the fields of the classes that are printed. Nothing else
is read or written, and the pages are the same on every machine.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for _folder in (ROOT / "provisioning/worker", Path(__file__).parent, ROOT):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

import click  # noqa: E402
from json_page import json_page  # noqa: E402
from marks import plain, table  # noqa: E402
from shapes import Recorder, shown  # noqa: E402

from runner import inventory, meanings, notify_file, states  # noqa: E402
from runner.cli import commands as tree  # noqa: E402
from runner.code import walk  # noqa: E402
from runner.fields import type_name  # noqa: E402
from runner.grammar import recipes  # noqa: E402
from runner.model import JobSpec  # noqa: E402
from runner.schedule.definition import Schedule  # noqa: E402

FOLDER = ROOT / "docs/reference"
MADE = (
    "<!-- made of the code by docs/site/reference.py: change it there, then run make reference -->"
)


# commands


def visible(group: click.Group, path: str) -> Iterable[tuple[str, click.Command]]:
    """Every command that help lists, by its whole name."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from visible(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = """\
# Commands: usage and options

What `--help` says, on one page. What each command does in full: [commands](../commands.md).
What stands before `--` as `key=value`: [words](words.md).
"""


def commands() -> list[str]:
    """Usage, help and options of every command."""
    lines = COMMANDS.split("\n")
    for path, command in visible(tree, "runner"):
        context = click.Context(command, info_name=path)
        pieces = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
        lines += [f"## {path}", "", "```text", " ".join([path, *pieces, "[OPTIONS]"]), "```", ""]
        lines += [*help_lines(command), *option_lines(command, context)]
    return lines


def help_lines(command: click.Command) -> list[str]:
    """The help as paragraphs; what it holds as typed, as typed."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        typed = paragraph.startswith("\b\n")
        body = paragraph.removeprefix("\b\n").split("\n")
        if typed and body[0].rstrip(":") in ("Example", "Examples"):
            examples = [line.strip() for line in body[1:]]
            lines += ["```console", *(f"$ {line}" for line in examples), "```", ""]
        elif typed:
            lines += ["```text", *body, "```", ""]
        else:
            lines += [plain(" ".join(line.strip() for line in body)), ""]
    return lines


def option_lines(command: click.Command, context: click.Context) -> list[str]:
    """The options but those every command has."""
    rows = []
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        if option.name in ("as_json", "colour", "help"):
            continue
        names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        value = "" if option.is_flag else f" `{option.make_metavar(context)}`"
        several = "; may be given several times" if option.multiple else ""
        default = option.default
        known = isinstance(default, (int, str)) and not isinstance(default, bool)
        text = (plain(option.help or "").rstrip(".") or "how many") + several
        rows.append((names + value, text, f"`{default}`" if known else ""))
    both = [name for name in ("--json", "--color") if any(name in p.opts for p in command.params)]
    lines = table(("option", "does", "default"), rows) if rows else []
    also = " and ".join(f"`{name}`" for name in both)
    return [*lines, f"Also {also}." if both else "", ""]


# words

WORDS = """\
# Words

What `runner submit` takes as `key=value`, beside the parameters of the job. Types, sweeps and
`key:=JSON`: [commands](../commands.md#sweeps).

## Of submit
"""
OWN_WORDS = """\
## Of schedule add

These four, and all words of submit: [schedules](../schedules.md).
"""
ANY_OTHER = "a parameter of the job, of the type of its default; unknown ones are refused"


def words() -> list[str]:
    """Reserved words of submit and of schedules."""
    rows = [(forms(word.form), word.text) for word in meanings.SUBMIT.values()]
    lines = [*WORDS.split("\n"), *table(("word", "means"), [*rows, ("any other", ANY_OTHER)])]
    own = {field: shown(getattr(Schedule, field)) for field in ("overlap", "missed", "code")}
    four = [(forms(w.form), w.text, own.get(key, "")) for key, w in meanings.SCHEDULE.items()]
    return [*lines, *OWN_WORDS.split("\n"), *table(("word", "means", "default"), four)]


def forms(text: str) -> str:
    """`a`, `b` for "a, b"; words after the first of a list of values belong to it."""
    if "=" in text and text.count("=") == 1 and not text.startswith("secret"):
        return f"`{text}`"
    return ", ".join(f"`{each}`" for each in text.split(", "))


# files

FILES = """\
# Files

TOML that you keep in the project folder; the runner rewrites none of it. A key that nobody reads is
an error. Durations are `90s 15m 12h 2d 1h30m`, sizes `512m 8g` (powers of ten); a bare number is
neither. `limits.shm` is `shm` below `[limits]`, and so on.
"""
NOTIFY = "What you hear, and how; yours alone: [notifications](../notifications.md)."
BY_HAND = "A run of `-- CMD` has no job file: its `restarts` is 0, all else as above."


def keys_of(
    ask: Callable[[Recorder], object], texts: Mapping[str, str], *, full: bool = False
) -> list[str]:
    """A table of the keys that a reader asks for; all of them have a text, and only they."""
    seen = Recorder(full=full)
    ask(seen)
    if (odd := set(texts) ^ set(seen.asked)) != set():
        raise ValueError(f"runner/meanings.py and what is read differ in {sorted(odd)}")
    rows = []
    for key, text in texts.items():
        kind, default = seen.asked[key]
        rows.append((f"`{key}`", kind or meanings.FREE_TYPES[key], default, text))
    return table(("key", "takes", "default", "means"), rows)


def files() -> list[str]:
    """The files an operator writes."""
    here = Path("file.toml")
    lines = [*FILES.split("\n"), "## hosts/NAME.toml", "", "A host: [hosts](../hosts.md).", ""]
    lines += keys_of(lambda f: inventory._parse_host("gpu1", f, here), meanings.HOST_FILE)
    lines += ["## hosts/local.toml", "", "This machine; may be missing.", ""]
    lines += keys_of(lambda f: inventory._parse_local(f, here), meanings.LOCAL_FILE)
    lines += ["## agents/NAME.toml", "", "A job: [jobs](../jobs.md).", ""]
    lines += [*keys_of(job_keys, meanings.JOB_FILE), BY_HAND, ""]
    lines += ["## runner.toml", "", "The project; `runner init` writes it.", ""]
    lines += keys_of(lambda f: inventory._parse_project(f, here), meanings.PROJECT_FILE)
    lines += [
        "## images.toml",
        "",
        'Pins beside the runner\'s own, a table `["NAME"]` for each.',
        "",
    ]
    lines += keys_of(lambda f: inventory._parse_pin("mine", f, here), meanings.IMAGES_FILE)
    lines += ["The runner's own:", ""]
    rows = [
        (f"`{pin.name}`", f"`{pin.base}`", pin.torch, pin.cuda, pin.driver_min)
        for pin in inventory._read_pins(ROOT / "provisioning/images.toml").values()
    ]
    lines += table(("pin", "base", "torch", "CUDA", "driver at least"), rows)
    lines += ["## ~/.config/runner/notify.toml", "", NOTIFY, ""]
    lines += keys_of(notify_keys, meanings.NOTIFY_FILE, full=True)
    return [*lines, *ignore_lines()]


def notify_keys(fields: Recorder) -> None:
    """As the reader of notify.toml reads a table in which everything stands."""
    reader = notify_file._Reader(Path("notify.toml"), {})
    reader._fields = fields
    reader.read()


def job_keys(fields: Recorder) -> None:
    """As parse_job reads a table, which it is handed as one."""
    real, recipes.Fields = recipes.Fields, lambda table, where: fields  # type: ignore[assignment,misc]
    try:
        recipes.parse_job("dqn", {}, where="")
    finally:
        recipes.Fields = real  # type: ignore[misc]


def ignore_lines() -> list[str]:
    """What .runnerignore is beside."""
    anywhere = " ".join(sorted(walk.NEVER_ANYWHERE)) + f" *{walk.NEVER_ENDS}"
    at_root = " ".join(sorted(walk.NEVER_AT_ROOT))
    return [
        "## .runnerignore",
        "",
        "Lines as in `.gitignore`, also in subfolders, after git's own; `!` brings back.",
        f"Never sent, whatever it says: `{anywhere}`, and at the project's root `{at_root}`.",
        "[What travels](../runs.md#what-travels).",
        "",
    ]


# parameters of the shipped jobs

PARAMETERS = """\
# Jobs that come along

Parameters of the jobs that `runner init` writes. Your copies may differ: `runner jobs JOB` shows
yours. What they are: [agents](../agents.md).
"""


def parameters() -> list[str]:
    """The shipped jobs' parameters and defaults."""
    lines = PARAMETERS.split("\n")
    for path in sorted((ROOT / "agents").glob("*.toml")):
        found = recipes.parse_job(path.stem, inventory.read_toml(path), where=path.name)
        said = remarks(path.read_text(encoding="utf-8"))
        rows = [
            (f"`{key}`", type_name(value), f"`{json.dumps(value)}`", plain(said.get(key, "")))
            for key, value in found.params.items()
        ]
        lines += [f"## {path.stem}", "", *job_line(found)]
        lines += table(("parameter", "type", "default", "means"), rows)
    return lines


def remarks(text: str) -> dict[str, str]:
    """Key to what stands behind it after a `#`."""
    found = re.findall(r"^([\w.-]+) *= *(?:\"[^\"]*\"|[^#\"\n])*#\s*(.+)$", text, re.MULTILINE)
    return dict(found)


def job_line(job: JobSpec) -> list[str]:
    """What else its file says."""
    told = {"metric": job.metric, "keep": job.keep, "keep_best": job.keep_best}
    told["resumable"] = ", ".join(job.resumable) or None
    said = "; ".join(f"{key} `{value}`" for key, value in told.items() if value is not None)
    return [f"`{' '.join(job.command)}`" + (f"; {said}" if said else "") + ".", ""]


# statuses, states, causes

STATUSES = """\
# Exit statuses, states and causes

## Exit statuses

Treat a number that is not here as failure. Of several hosts the rest is done, then 3 is the status.
"""
CAUSES = """\
## Causes

`cause.kind` says why an attempt ended, or why a schedule made no run:
[ends and repeats](../runs.md#ends-and-repeats), [schedules](../schedules.md#what-became-of-it).
"""
FOLLOWS = (
    (states.OWN_FAULTS, "the job's own fault: spends one of `restarts`"),
    (states.FINAL_CAUSES, "the end"),
    (
        states.FROM_OUTSIDE,
        f"repeated free of charge, {states.OUTSIDE_LIMIT} times in a row without a new checkpoint",
    ),
    (states.NEVER_SUBMITTED, "no run is made"),
)


def statuses() -> list[str]:
    """Exit statuses, states, outcomes, causes."""
    rows = [(str(number), each.text, each.again) for number, each in meanings.STATUSES.items()]
    lines = [*STATUSES.split("\n"), *table(("status", "means", "try again?"), rows)]
    lines += ["## States", "", "```text", *chart(), "```", ""]
    lines += table(("state", "means"), [(f"`{s}`", meanings.STATES[s]) for s in states.STATES])
    lines += ["## Outcomes", "", "Only once a run has ended; text shows them in capitals.", ""]
    told = [(f"`{name}`", meanings.OUTCOMES[name]) for name in states.OUTCOMES]
    lines += [*table(("outcome", "means"), told), *CAUSES.split("\n")]
    causes = [
        (f"`{kind}`", text, follows)
        for kinds, follows in FOLLOWS
        for kind, text in meanings.CAUSES.items()
        if kind in kinds
    ]
    return [*lines, *table(("cause", "means", "what follows"), causes)]


def chart() -> list[str]:
    """The drawing in states.py."""
    text = inspect.cleandoc(states.__doc__ or "")
    return [line[4:] for line in text.split("\n\n")[1].split("\n")]


# variables, limits

VARIABLES = """\
# Variables

## What a job is told

In full: [jobs](../jobs.md#what-the-job-finds-in-its-environment).
"""


def variables() -> list[str]:
    """What a job is told, and what the command line reads."""
    told = [(f"`{name}`", text) for name, text in meanings.VARIABLES.items()]
    lines = [*VARIABLES.split("\n"), *table(("variable", "holds"), told)]
    lines += ["## What runner itself reads", ""]
    read = [(f"`{name}`", text) for name, text in meanings.SETTINGS.items()]
    return [*lines, *table(("variable", "does"), read)]


def limits() -> list[str]:
    """Constants people meet."""
    lines = ["# Limits", "", "Numbers that no file and no word changes.", ""]
    rows = []
    for limit in meanings.LIMITS:
        value = getattr(importlib.import_module(limit.module), limit.name)
        rows.append((amount(value, limit.unit), limit.text, f"`{where(limit.module)}`"))
    return [*lines, *table(("limit", "what", "in"), rows)]


def where(name: str) -> str:
    path = name.replace(".", "/") + ".py"
    return path if name.startswith("runner.") else f"provisioning/worker/{path}"


def amount(value: float, unit: str) -> str:
    """`20 s`, `10 min`, `50 MB`, `64 KiB`, `1,000`."""
    if unit == "s":
        for step, word in ((86400, "days"), (3600, "h"), (60, "min")):
            if value >= 2 * step or (value >= step and value % step == 0 and word != "days"):
                return f"{value / step:g} {word}"
        return f"{value:g} s"
    if unit == "bytes":
        if value % 1024 == 0:
            return f"{value / 1024:g} KiB" if value < 1 << 20 else f"{value / (1 << 20):g} MiB"
        return f"{value / 10**6:g} MB"
    return f"{value:,}" + (f" {unit}" if unit else "")


PAGES = {
    "commands.md": commands,
    "words.md": words,
    "files.md": files,
    "jobs.md": parameters,
    "json.md": json_page,
    "statuses.md": statuses,
    "variables.md": variables,
    "limits.md": limits,
}


def pages() -> dict[str, str]:
    """Name to content of every page."""
    found = {}
    for name, make in PAGES.items():
        lines = make()
        text = "\n".join([lines[0], "", MADE, *lines[1:]])
        found[name] = re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"
    return found


def main(argv: Sequence[str]) -> int:
    """Writes what differs; with --check writes nothing and says what does."""
    status = 0
    for name, text in pages().items():
        path = FOLDER / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in argv:
            print(
                f"docs/reference/{name} is not what the code says: make reference", file=sys.stderr
            )
            status = 1
        else:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"docs/reference/{name}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
