"""`job add`: a job's file for a script of the user's own, which is read and never run."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner import inventory
from runner.errors import NotFound, SpecError
from runner.fields import NAME_RULE, said, valid_name
from runner.files import read_regular
from runner.grammar.job_file import job_text, passing_of
from runner.grammar.script_packages import Packages, find_packages, has_version, listed_in
from runner.grammar.scripts import Script, is_outside, read_script
from runner.model import JobSpec, Project

_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class Added:
    """A job that was made."""

    job: JobSpec
    path: Path
    script: Script
    packages: Packages
    seeded: bool
    """It has a parameter `seed`."""
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def file(self) -> str:
        """Where it stands in the project."""
        return f"agents/{self.job.name}.toml"

    @property
    def line(self) -> str:
        """What to type to run it."""
        needed = [
            f"{name}=…"
            for name, spelling in self.job.flags.items()
            if spelling.endswith("!") and self.job.params[name] in ("", [])
        ]
        words = [f"job={self.job.name}", *needed, *(["seed=1..3"] if self.seeded else [])]
        return " ".join(["runner submit", *words])


def add_job(start: Path, script: str, name: str | None, *, replace: bool = False) -> Added:
    """Write agents/NAME.toml for a script of the project `start` lies in.

    Raises SpecError: a script that is no Python or outside of the project, a name that is taken
    (unless `replace`); NotFound when there is no such file.
    """
    project = inventory.find_project(start)
    path = _find(project, start, script)
    inside = path.relative_to(project.root).as_posix()
    name = name or path.stem
    if not valid_name(name):
        raise SpecError(
            f"{said(name)} is not a job's name; it has {NAME_RULE}",
            "another one: runner job add … name=NAME",
        )
    target = project.root / "agents" / f"{name}.toml"
    if os.path.lexists(target) and not replace:
        raise SpecError(
            f"agents/{name}.toml is there already",
            "by another name: runner job add … name=NAME",
            "written anew: --replace",
        )
    modules = _Modules(project.root, path.parent)
    found = read_script(inside, _text(path, inside), modules.read)
    packages = find_packages(
        found.imports,
        _installed(),
        _listed(project.root, path.parent),
        old_gymnasium=found.old_gymnasium,
    )
    command = _command(inside, modules)
    text = job_text(found, command, packages, inside)
    _write(target, text)
    job = inventory.read_job(project, name)
    return Added(
        job=job,
        path=target,
        script=found,
        packages=packages,
        seeded="seed" in job.params,
        notes=tuple(_notes(found, packages)),
        warnings=tuple(_warnings(inside, found, packages)),
    )


def _find(project: Project, start: Path, script: str) -> Path:
    path = Path(os.path.abspath(start / script))
    if not os.path.lexists(path):
        raise NotFound(f"{said(script)}: no such file")
    try:
        path.relative_to(project.root)
    except ValueError:
        raise SpecError(
            f"{said(script)} lies outside of the project {project.root}",
            "only what lies in it travels to a host",
        ) from None
    if path.suffix != ".py":
        raise SpecError(
            f"{said(script)} is no Python script (.py)",
            "any program: command = [...] in a file agents/NAME.toml",
        )
    return path


def _text(path: Path, shown: str) -> str:
    import tokenize

    try:
        data = read_regular(path)
        if len(data) > _MOST_BYTES:
            raise SpecError(f"{shown}: larger than a script is")
        encoding, _ = tokenize.detect_encoding(iter(data.splitlines(keepends=True)).__next__)
        return data.decode(encoding)
    except OSError as error:
        raise SpecError(f"{shown}: {error.strerror or error}") from error
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise SpecError(f"{shown}: not text in the encoding it names: {error}") from error


class _Modules:
    """The project's own modules: beside the script, as Python finds them, and from the root."""

    def __init__(self, root: Path, beside: Path) -> None:
        self._places = [beside] if beside == root else [beside, root]
        self.from_root: list[str] = []
        self.from_beside: list[str] = []

    def read(self, module: str) -> str | None:
        """The text of a module; of a package its own file; None for one that is not here."""
        parts = module.split(".")
        for place in self._places:
            path = place.joinpath(*parts)
            for candidate in (path.with_name(path.name + ".py"), path / "__init__.py"):
                if candidate.is_file():
                    self._note(module, place)
                    return _text(candidate, module)
            if path.is_dir() and any(path.rglob("*.py")):
                self._note(module, place)
                return ""
        return None

    def _note(self, module: str, place: Path) -> None:
        (self.from_beside if place == self._places[0] else self.from_root).append(module)


def _command(inside: str, modules: _Modules) -> list[str]:
    """`python FILE`, or `python -m MODULE` where what it imports is found from the root alone."""
    parts = inside[: -len(".py")].split("/")
    if modules.from_root and not modules.from_beside and all(part.isidentifier() for part in parts):
        return ["python", "-m", ".".join(parts)]
    return ["python", inside]


def _installed() -> dict[str, str]:
    """Module to package in this environment, which the script runs in today; never our own ones
    or those that come from a folder."""
    found: dict[str, str] = {}
    for module, names in importlib.metadata.packages_distributions().items():
        if len(set(names)) == 1 and not _is_from_folder(names[0]):
            found[module] = names[0]
    return found


def _is_from_folder(name: str) -> bool:
    try:
        text = importlib.metadata.distribution(name).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return True
    return text is not None and '"file:' in text


def _listed(*folders: Path) -> dict[str, str]:
    """What the project's own requirements.txt says of packages."""
    found: dict[str, str] = {}
    for folder in folders:
        path = folder / "requirements.txt"
        try:
            found.update(listed_in(read_regular(path).decode("utf-8")))
        except (OSError, UnicodeDecodeError):
            continue
    return found


def _write(path: Path, text: str) -> None:
    """The file, whole or not at all. Raises SpecError."""
    temporary = path.with_name(f".{path.name}.tmp{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SpecError(f"{path.parent.name}/{path.name}: {error.strerror or error}") from error


def _notes(script: Script, packages: Packages) -> Iterator[str]:
    how = passing_of(script)
    told = f"{len(script.options)} parameters by {script.kind}" if how == "flags" else ""
    if how == "hydra" and script.hydra is not None:
        told = f"by hydra; {script.hydra.file} was not read: add to [params] what runs set"
    if how == "none":
        told = f"none: its options ({script.kind}) were not read" if script.kind else "none found"
    yield f"params  {told}"
    if how == "none" and script.kind:
        yield '        to give them: pass = "flags" and [params] in the file (docs/jobs.md), or the'
        yield "        whole command at once: runner submit … -- python FILE --NAME VALUE"
    if script.left:
        yield f"left    {', '.join(each.name for each in script.left)}: the script's own"
    if packages.needed:
        open_ones = [line for line in packages.needed if not has_version(line)]
        whose = f"; yours to set: the version of {', '.join(open_ones)}" if open_ones else ""
        yield f"setup   {', '.join(packages.needed)}{whose}"
    if script.resumes:
        yield "resume  it reads RUNNER_RESUME: repeated runs go on from their newest checkpoint"
    else:
        yield "resume  it knows no RUNNER_RESUME: repeated runs begin anew, so restarts = 0"
    yield "files   what it writes beside itself (runs/, wandb/ …) is pulled as work/"


def _warnings(inside: str, script: Script, packages: Packages) -> Iterator[str]:
    if packages.unknown:
        yield f"of no package known here: {', '.join(packages.unknown)}; add theirs to [setup]"
    for line, path in script.outside[:3]:
        yield f"{inside}:{line} writes to {said(path)}, outside of what is pulled"
    for option in script.options:
        if isinstance(option.default, str) and is_outside(option.default):
            yield f"{option.name} is {said(option.default)}; what is written there is not pulled"
