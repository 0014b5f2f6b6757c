"""Imports inside `runner/` point down this list; pure modules touch nothing outside."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import runner

ROOT = Path(runner.__file__).parent
LAYERS = (
    "__main__",
    "completing.answer",
    "cli",
    "commands.*",
    "commands.follow",
    "commands.invocation",
    *("completing.offers", "completing.known", "completing.places"),
    *("completing.scripts", "completing.line"),
    "usage",
    "exits",
    "output",
    "show.console",
    "show.live",
    *("show.tables", "show.notify"),
    *("show.page", "show.picture", "show.charts", "show.markup"),
    *("show.compare", "show.documents"),
    "show.plot",
    "show.progress",
    "show.doctor",
    "show.reasons",
    "show.waiting",
    "show.endings",
    "show.advice",
    "show.rows",
    "show.sheet",
    "show.stops",
    "show.readings",
    "show.schedules",
    "app.*",
    "app.watching",
    *("app.schedule", "app.looking", "app.firing", "app.schedule_code", "app.cancel"),
    *("app.submit", "app.logins", "app.forwarding"),
    *("app.notify", "app.telling", "app.wishes"),
    *("app.provision_venv", "app.down_venv"),
    "app.steps",
    "app.pull",
    "app.book",
    "app.top",
    "app.runs",
    *("app.unsubmitted", "app.earlier"),
    "app.many",
    "app.retrying",
    "app.asked",
    "app.keys",
    "app.context",
    "app.reports",
    "app.results",
    *("comparing.curves", "comparing.comparison", "comparing.scores"),
    *("comparing.groups", "comparing.bootstrap"),
    "metrics",
    "moments",
    "venv_host",
    "host_program",
    "provisioner",
    "host_answers",
    "host_scripts",
    "remains",
    "build_log",
    "doctor.judge",
    "doctor.*",
    "doctor.driver",
    "doctor.answers",
    "doctor.findings",
    "venv_plan",
    "venv_facts",
    "worker_plan",
    "worker_options",
    "host_facts",
    "transfer.*",
    "transfer.arrivals",
    "transfer.sinks",
    "transfer.parts",
    "transfer.places",
    "transfer.lanes",
    "transfer.offer",
    "code.tree",
    "code.guard",
    "code.walk",
    "code.rules",
    "code.git",
    "code.diff",
    "code.digests",
    "code.patterns",
    "code.complaints",
    "endpoint",
    "notify_file",
    "stub",
    "inboxes",
    "carriers.*",
    "inventory",
    "pins",
    "store",
    *("cron", "schedule_files"),
    "interrupts",
    "children",
    "grammar.secret",
    "content",
    "placement",
    "data_rules",
    "grammar.recipes",
    "grammar.job_file",
    "grammar.scripts",
    "grammar.script_packages",
    "grammar.script_argparse",
    "grammar.script_classes",
    "grammar.script_values",
    "grammar.requirements",
    "intents",
    "grammar.changes",
    "spec",
    "grammar.words",
    "grammar.sweeps",
    "grammar.values",
    "manifest",
    *("schedule.definition", "schedule.due", "schedule.instants", "schedule.expression"),
    "schedule.crontab",
    "model",
    "meanings",
    "fields",
    "ids",
    "show.undelivered",
    "show.units",
    "show.merged",
    "show.screen",
    "errors",
    *("outbox", "sending", "messages"),
    "files",
    "states",
    "wire",
    "sums",
    "flow",
    "passing",
    "show",
    "comparing",
    "completing",
    "doctor",
    "code",
    "transfer",
    "grammar",
    "schedule",
    "",
)
"""From the command line down. `app.*` is every other use case, "" is `runner` itself."""
PURE = (
    *(
        "show.live",
        "show.tables",
        *(f"completing.{name}" for name in ("line", "places", "scripts")),
        "show.documents",
        *("show.compare", "show.charts", "show.markup", "metrics"),
        *(
            f"comparing.{name}"
            for name in ("curves", "comparison", "scores", "groups", "bootstrap")
        ),
        "show.doctor",
        *("doctor.judge", "doctor.findings", "doctor.questions", "doctor.answers", "doctor.ssh"),
        *("doctor.shell", "doctor.docker", "doctor.driver", "doctor.gpus", "doctor.disks"),
        *("doctor.system", "doctor.worker", "doctor.memory", "doctor.venv"),
        "show.reasons",
        "show.waiting",
        "show.endings",
        "show.advice",
        "show.rows",
        "show.sheet",
        "show.stops",
        "show.readings",
        *("venv_plan", "venv_facts"),
        "stub",
        "worker_plan",
        "worker_options",
        "host_facts",
        "host_scripts",
        "remains",
        "build_log",
        *("code.diff", "code.patterns", "code.complaints"),
        "placement",
        "data_rules",
        "grammar.recipes",
        *("grammar.job_file", "grammar.scripts", "grammar.script_packages"),
        *("grammar.script_argparse", "grammar.script_classes", "grammar.script_values"),
        "grammar.requirements",
        "intents",
        "spec",
        "grammar.words",
        "grammar.sweeps",
        "grammar.values",
        "manifest",
        "model",
        "meanings",
        "fields",
        *("show.undelivered", "show.units"),
        "show.merged",
    ),
    *("schedule.definition", "schedule.due", "schedule.instants", "schedule.expression"),
    *("schedule.crontab", "show.schedules", "show.notify"),
    *("messages", "show.screen", "errors", "states", "wire", "sums", "passing"),
)
FORBIDDEN = {"subprocess", "socket", "fabric", "paramiko", "click", "runner.content"}
BOTH_SIDES = (
    *("files", "flow", "messages", "outbox", "passing", "sending", "states", "sums", "wire", ""),
)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    """Every module by its name below `runner`."""
    files = [path for path in ROOT.rglob("*.py") if "_content" not in path.parts]
    return {module_of(path): path for path in files}


def layer_of(module: str) -> int:
    """The place of a module in the list; packages stand with their modules."""
    if module in LAYERS:
        return LAYERS.index(module)
    return LAYERS.index(module.split(".")[0] + ".*")


def imports_of(module: str, path: Path) -> Iterator[str]:
    """What a module imports, in functions too, but not what only type checkers read."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            yield from imported(str(node.module), [alias.name for alias in node.names])


def imported(module: str, names: list[str]) -> Iterator[str]:
    """`from runner import spec` is an import of `runner.spec`."""
    for name in names:
        inner = f"{module}.{name}".removeprefix("runner.")
        yield f"runner.{inner}" if module.startswith("runner") and inner in modules() else module


def test_every_module_has_its_place() -> None:
    for module in modules():
        assert module in LAYERS or module.split(".")[0] + ".*" in LAYERS, module


def test_imports_point_down() -> None:
    wrong = []
    for module, path in modules().items():
        for name in imports_of(module, path):
            if name != "runner" and not name.startswith("runner."):
                continue
            target = name.removeprefix("runner").removeprefix(".")
            if target not in modules():
                continue
            if target == module or {module.split(".")[0], target.split(".")[0]} == {"carriers"}:
                continue
            if layer_of(target) <= layer_of(module):
                wrong.append(f"{module} imports {target}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_touch_nothing_outside(module: str) -> None:
    names = set(imports_of(module, modules()[module]))
    tops = {name.split(".")[0] for name in names} | names
    assert not tops & FORBIDDEN


def test_only_two_modules_know_fabric_and_paramiko() -> None:
    users = {
        module
        for module, path in modules().items()
        for name in imports_of(module, path)
        if name.split(".")[0] in ("fabric", "paramiko")
    }
    assert users <= {"carriers.fabric", "carriers.fabric_link"}


@pytest.mark.parametrize("module", BOTH_SIDES)
def test_what_both_sides_share_needs_the_standard_library_alone(module: str) -> None:
    for name in imports_of(module, modules()[module]):
        assert name.split(".")[0] in (*sys.stdlib_module_names, "runner"), name


def loaded_by(statement: str) -> set[str]:
    """The modules a fresh Python has loaded after a statement."""
    code = f"import sys; sys.path.insert(0, {str(ROOT.parent)!r}); {statement}"
    code += "; print(*sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stdout.splitlines()[-1].split())


def test_starting_up_loads_nothing_heavy() -> None:
    loaded = loaded_by("import runner.cli")
    heavy = {"paramiko", "fabric", "torch", "matplotlib", "numpy", "tomllib", "json", "subprocess"}
    assert not loaded & {*heavy, "runner.output", "runner.inventory"}


def test_help_loads_nothing_heavy_either() -> None:
    loaded = loaded_by("from runner.cli import main; main(['--help'])")
    assert not loaded & {"paramiko", "fabric", "torch", "matplotlib", "numpy", "runner.output"}


def test_looking_at_runs_loads_no_paramiko() -> None:
    loaded = loaded_by("import runner.output, runner.app.runs, runner.app.status")
    assert not loaded & {"paramiko", "fabric", "torch", "matplotlib", "numpy"}
