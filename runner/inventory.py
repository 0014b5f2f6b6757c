"""What the operator keeps on disk: the project folder, its hosts, image pins and jobs.

The project is the nearest folder upward with `runner.toml` or `hosts/`. Nothing here is rewritten,
and nothing in these files can name a local command, an ssh option or a Docker option.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from runner.data_rules import refused_data
from runner.errors import NotFound, SpecError
from runner.fields import NAME_RULE, Fields, did_you_mean, said, valid_name
from runner.files import read_regular
from runner.model import Host, ImagePin, JobSpec, Limits, Project
from runner.placement import OLD_NAME

PROJECT_FILE = "runner.toml"
NETWORKS = ("full", "none", "host")
_NO_SPACES = r"[^\s-]\S*"
_HOST_KEY = r"[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,3}"
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VERSION = r"[0-9]+(\.[0-9]+)*"


def find_project(start: Path) -> Project:
    """The project that `start` lies in. Raises SpecError when there is none."""
    start = start.absolute()
    for folder in (start, *start.parents):
        if (folder / PROJECT_FILE).exists() or (folder / "hosts").is_dir():
            return _read_project(folder)
    raise SpecError(
        f"{start} is in no project (no runner.toml, no hosts/ upward); make one:", "runner init"
    )


def _read_project(root: Path) -> Project:
    path = root / PROJECT_FILE
    fields = Fields(read_toml(path) if path.exists() else {}, where=PROJECT_FILE)
    return _parse_project(fields, root)


def _parse_project(fields: Fields, root: Path) -> Project:
    name, project_id = fields.text("name"), fields.text("id")
    for key, value in (("name", name), ("id", project_id)):
        if value is not None and not valid_name(value):
            fields.problem(key, f"is {said(value)}; a name has {NAME_RULE}")
    code_limit_bytes = fields.size("code_limit", Project.code_limit_bytes)
    if code_limit_bytes == 0:
        fields.problem("code_limit", "is nothing; it must be a size such as '2g'")
    fields.finish()
    by_path = hashlib.sha256(str(root.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return Project(
        root=root,
        id=project_id or f"path-{by_path[:12]}",
        name=name or folder_name(root),
        code_limit_bytes=code_limit_bytes or Project.code_limit_bytes,
    )


def folder_name(root: Path) -> str:
    """The folder's own name, made to follow the rule of names."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", root.name).lstrip("._-")[:63] or "project"


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a file. Raises SpecError that names the file."""
    try:
        text = read_regular(path).decode("utf-8")
        return tomllib.loads(text)
    except OSError as error:
        raise SpecError(f"{_where(path)}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{_where(path)}: not UTF-8 at byte {error.start}") from error
    except (ValueError, RecursionError) as error:  # ValueError: also a number without end
        raise SpecError(f"{_where(path)}: not TOML: {error}") from error


def _where(path: Path) -> str:
    """A file as messages name it: its folder and name, as the operator knows them."""
    return (
        path.name
        if path.name in (PROJECT_FILE, "images.toml")
        else f"{path.parent.name}/{path.name}"
    )


def read_hosts(project: Project) -> dict[str, Host]:
    """Every host of the project by name, `local` always among them. Raises SpecError."""
    hosts, broken = read_each_host(project)
    if broken:
        raise _joined(list(broken.values()))
    return hosts


def read_each_host(project: Project) -> tuple[dict[str, Host], dict[str, SpecError]]:
    """The hosts whose files are right, and what is wrong with the others, both by name."""
    hosts = {"local": _default_local()}
    broken: dict[str, SpecError] = {}
    for path in sorted((project.root / "hosts").glob("[!.]*.toml")):
        try:
            hosts[path.stem] = read_host(path)
        except SpecError as error:
            broken[path.stem] = error
            hosts.pop(path.stem, None)
    return dict(sorted(hosts.items())), broken


def _joined(problems: list[SpecError]) -> SpecError:
    """One error that reads like all of them, one below the other."""
    rest: list[str] = []
    for error in problems[1:]:
        rest += [error.message, *(f"  {line}" for line in error.advice)]
    return SpecError(problems[0].message, *problems[0].advice, *rest)


def read_host(path: Path) -> Host:
    """The host that one file in hosts/ describes. Raises SpecError with every problem."""
    if not valid_name(path.stem):
        raise SpecError(
            f"{_where(path)}: {said(path.stem)} is not a host's name; it has {NAME_RULE}"
        )
    fields = Fields(read_toml(path), where=_where(path))
    if path.stem == "local":
        return _parse_local(fields, path)
    return _parse_host(path.stem, fields, path)


def _default_local() -> Host:
    return Host(name="local", runtime="local")


def _parse_local(fields: Fields, path: Path) -> Host:
    """This machine: its Python and its folder are what they are, the rest may be set."""
    fields.one_of("runtime", "local", ("local",))
    if "workspace" in fields:
        fields.anything("workspace", None)
        fields.problem("workspace", "of local is moved by the variable RUNNER_WORKSPACE")
    host = Host(
        name="local",
        runtime="local",
        gpus=_gpus(fields),
        slots=fields.integer("slots", None, least=1),
        disk_reserve_bytes=fields.size("disk_reserve", 0) or 0,
        env=_env(fields),
        data=_data(fields, "~/.local/share/runner/workspace"),
        source=path,
    )
    fields.finish()
    return host


def _parse_host(name: str, fields: Fields, path: Path) -> Host:
    runtime = fields.one_of("runtime", Host.runtime, ("docker", "venv"), later=("slurm",))
    ssh = fields.text("ssh", rule=_NO_SPACES)
    if "ssh" not in fields:
        fields.problem(
            "ssh", "is missing; it is whatever ssh takes: an alias, user@name, ssh://user@name:port"
        )
    limits = fields.table("limits")
    workspace = _workspace(fields)
    host = Host(
        name=name,
        runtime=runtime,
        ssh=ssh,
        jump=fields.text("jump", rule=_NO_SPACES),
        jump_key=_host_key(fields, "jump_key"),
        host_key=_host_key(fields, "host_key"),
        image=_image(fields),
        workspace=workspace,
        gpus=_gpus(fields),
        slots=fields.integer("slots", None, least=1),
        disk_reserve_bytes=fields.size("disk_reserve", 0) or 0,
        transport=fields.one_of("transport", Host.transport, ("auto", "fabric", "openssh")),
        limits=Limits(
            shm_bytes=limits.size("shm", Limits.shm_bytes) or Limits.shm_bytes,
            memory_bytes=limits.size("memory", None),
        ),
        network=fields.one_of("network", Host.network, NETWORKS),
        env=_env(fields),
        data=_data(fields, workspace),
        python=_python(fields, runtime),
        source=path,
    )
    fields.finish()
    return host


def _host_key(fields: Fields, key: str) -> str | None:
    value = fields.text(key)
    if value is not None and re.fullmatch(_HOST_KEY, value) is None:
        fields.problem(key, f"is {said(value)}; it must be as in 'ssh-ed25519 AAAA…'")
    return value


def _image(fields: Fields) -> str:
    value = fields.text("image", Host.image) or Host.image
    if not valid_name(value):
        fields.problem("image", f"is {said(value)}; it must be the name of a pin in images.toml")
    return value


def _workspace(fields: Fields) -> str:
    """A folder on the host; the worker refuses more of them, by what they are there."""
    value = fields.text("workspace", Host.workspace) or Host.workspace
    parts = value.split("/")
    if (
        parts[0] not in ("", "~")
        or not any(parts[1:])
        or ".." in parts
        or ":" in value
        or "," in value
    ):
        fields.problem(
            "workspace",
            f"is {said(value)}; it must be a folder of its own, as '~/runner' or '/data/runner'",
        )
    return value


def _gpus(fields: Fields) -> str | tuple[int, ...]:
    value = fields.anything("gpus", Host.gpus)
    if value in ("all", "none"):
        return str(value)
    if isinstance(value, list) and value and all(type(item) is int and item >= 0 for item in value):
        return tuple(sorted(set(value)))
    fields.problem("gpus", f"is {said(value)}; it must be 'all', 'none' or a list such as [0, 1]")
    return Host.gpus


def _env(fields: Fields) -> dict[str, str]:
    """Variables of the worker; their values stay out of every message."""
    table = fields.table("env")
    env: dict[str, str] = {}
    for name, value in table.items():
        if _ENV_NAME.fullmatch(name) is None:
            table.problem(name, "is no name for an environment variable")
        elif name.startswith("RUNNER_"):
            table.problem(name, "is set by the runner itself and cannot be given")
        elif not isinstance(value, str) or "\0" in value:
            table.problem(name, "must be a text")
        else:
            env[name] = value
    return env


def _data(fields: Fields, workspace: str) -> dict[str, str]:
    """Folders of the host by the names jobs see; what is there decides on more of them."""
    table = fields.table("data")
    data: dict[str, str] = {}
    for name, value in table.items():
        if not valid_name(name):
            table.problem(name, f"is no name for data; it has {NAME_RULE}")
        elif not isinstance(value, str) or not value.isprintable() or not value.startswith("/"):
            table.problem(name, f"is {said(value)}; it must be a folder as '/data/atari'")
        elif any(sign in value for sign in ',"') or ".." in value.split("/"):
            table.problem(name, f"is {said(value)}; it may hold no comma, quote or '..'")
        elif (why := refused_data(value, workspace=workspace)) is not None:
            table.problem(name, f"is {said(value)}; {why}")
        else:
            data[name] = value
    return data


def _python(fields: Fields, runtime: str) -> str | None:
    value = fields.text("python", rule=r"/.*|[A-Za-z0-9._-]+")
    if value is not None and runtime != "venv":
        fields.problem("python", 'is for runtime = "venv"; a container has its own')
    return value


def find_host(hosts: Mapping[str, Host], name: str) -> Host:
    """The host of that name. Raises NotFound with the nearest name."""
    if name in hosts:
        return hosts[name]
    raise NotFound(
        f"{_shown(name)} is no host here{did_you_mean(name, hosts)}",
        "all of them: runner host list",
    )


def read_images(project: Project) -> dict[str, ImagePin]:
    """Every image pin by name: the shipped ones and the project's own images.toml, which win."""
    from runner import content  # tarfile, which most commands never need

    pins: dict[str, ImagePin] = {}
    for path in (content.images_file(), project.root / "images.toml"):
        if path.exists():
            pins.update(_read_pins(path))
    return pins


def _read_pins(path: Path) -> dict[str, ImagePin]:
    outer = Fields(read_toml(path), where=_where(path))
    pins: dict[str, ImagePin] = {}
    for name in outer.names():
        pins[name] = _parse_pin(name, outer.table(name), path)
        if not valid_name(name):
            outer.problem(name, f"is not a pin's name; it has {NAME_RULE}")
        elif OLD_NAME.search(name):
            outer.problem(name, "is not a pin's name: so end those of containers that drain")
    outer.finish()
    return pins


def _parse_pin(name: str, fields: Fields, path: Path) -> ImagePin:
    texts = {
        "base": fields.text("base", rule=r"[A-Za-z0-9][A-Za-z0-9._/:@-]*"),
        "torch": fields.text("torch"),
        "cuda": fields.text("cuda"),
        "driver_min": fields.text("driver_min", rule=_VERSION),
    }
    for key, value in texts.items():
        if value is None and key not in fields:
            fields.problem(key, "is missing")
    return ImagePin(
        name=name,
        base=texts["base"] or "",
        torch=texts["torch"] or "",
        cuda=texts["cuda"] or "",
        driver_min=texts["driver_min"] or "",
        capabilities=_words(fields, "capabilities"),
        pip=_words(fields, "pip"),
        source=path,
    )


def _words(fields: Fields, key: str) -> tuple[str, ...]:
    return fields.texts(key) or () if fields.anything(key, []) else ()


def find_image(pins: Mapping[str, ImagePin], name: str) -> ImagePin:
    """The pin of that name. Raises SpecError with the nearest name."""
    if name in pins:
        return pins[name]
    raise SpecError(
        f"{_shown(name)} is no image pin{did_you_mean(name, pins)}",
        f"there are: {', '.join(sorted(pins))}",
    )


def job_names(project: Project) -> list[str]:
    """The names of the project's jobs."""
    paths = (project.root / "agents").glob("[!.]*.toml")
    return sorted(path.stem for path in paths if valid_name(path.stem))


def read_job(project: Project, name: str) -> JobSpec:
    """The job of that name. Raises SpecError, with the nearest name when there is none."""
    from runner.grammar.recipes import parse_job  # most commands read no job

    path = project.root / "agents" / f"{name}.toml"
    known = job_names(project)
    if name not in known:
        advice = (
            ("all of them: runner jobs",)
            if known
            else ("this project has none in agents/: runner init",)
        )
        raise SpecError(
            f"{_shown(name)} is no job of this project{did_you_mean(name, known)}", *advice
        )
    job = parse_job(name, read_toml(path), where=_where(path), source=path)
    if job.entry is not None and not (path.parent / job.entry).is_file():
        raise SpecError(
            f"{_where(path)}: entry is {said(job.entry)}; there is no such file beside it"
        )
    if job.requirements_file is None:
        return job
    return replace(job, requirements=_read_requirements(project, job.requirements_file))


def _read_requirements(project: Project, name: str) -> tuple[str, ...]:
    from runner.grammar.recipes import parse_requirements

    try:
        text = read_regular(project.root / name).decode("utf-8")
    except OSError as error:
        raise SpecError(f"{said(name)}: {error.strerror or error} (requirements)") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{said(name)}: not UTF-8 at byte {error.start}") from error
    return parse_requirements(text, where=name)


def read_jobs(project: Project) -> list[JobSpec]:
    """Every job of the project. Raises SpecError with the problems of all of them."""
    jobs: list[JobSpec] = []
    problems: list[SpecError] = []
    for name in job_names(project):
        try:
            jobs.append(read_job(project, name))
        except SpecError as error:
            problems.append(error)
    if problems:
        raise _joined(problems)
    return jobs


def _shown(name: str) -> str:
    return name if valid_name(name) else said(name)
