"""To find the test of a module, look for its name: this keeps that true.

The test of `runner/x.py` is `test_x.py`, that of a module in one of the packages `TOGETHER` may be
the package's own (`test_carriers.py`, `test_worker_verbs.py`); the few others stand in `TESTED_BY`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
FOLDERS = ("unit", "contract", "system")
NO_TEST = {"__init__.py", "__main__.py"}
TOGETHER = {
    "carriers": "carriers",
    "code": "tree",
    "commands": "cli",
    "completing": "completing",
    "doctor": "doctor",
    "schedule": "schedule",
    "transfer": "transfer",
    "verbs": "verbs",
}
"""Packages whose modules may be tested as one, and the name of that test."""
VALUES_ALONE = {
    "runner/app/reports.py",
    "runner/app/results.py",
    "runner/carriers/base.py",
    "runner/model.py",
}
TESTED_BY: dict[str, str] = {
    **dict.fromkeys(
        (
            *("runner/app/wishes.py", "runner/app/telling.py", "runner/show/undelivered.py"),
            *("provisioning/worker/notices.py", "provisioning/worker/notify_store.py"),
        ),
        "test_notify.py",
    ),
    "runner/app/book.py": "test_pull.py",
    **dict.fromkeys(
        (
            *("runner/app/firing.py", "runner/app/looking.py", "runner/app/schedule_code.py"),
            *("runner/app/unsubmitted.py", "runner/schedule_files.py"),
            "runner/show/schedules.py",
        ),
        "test_schedule.py",
    ),
    **dict.fromkeys(
        (
            "runner/comparing/curves.py",
            *(f"runner/show/{name}.py" for name in ("charts", "markup", "picture")),
        ),
        "test_page.py",
    ),
    "runner/app/many.py": "test_many_hosts.py",
    "runner/app/watching.py": "test_top.py",
    "runner/app/keys.py": "test_hosts.py",
    "runner/grammar/script_argparse.py": "test_scripts.py",
    "runner/grammar/script_classes.py": "test_scripts.py",
    "runner/grammar/script_values.py": "test_scripts.py",
    "provisioning/worker/mpi.py": "test_worker_mpirun.py",
    "provisioning/worker/supervisor.py": "test_supervisord.py",
    "provisioning/worker/supervisord.py": "test_supervisord.py",
    "provisioning/worker/tenure.py": "test_supervisord.py",
    "runner/app/steps.py": "test_down.py",
    "runner/host_answers.py": "test_provisioner.py",
    "runner/remains.py": "test_host_scripts.py",
    "runner/show/progress.py": "test_output.py",
    "runner/stub.py": "test_endpoint.py",
    "runner/worker_options.py": "test_worker_plan.py",
    **dict.fromkeys(("runner/app/provision_venv.py", "runner/app/down_venv.py"), "test_venv.py"),
    **dict.fromkeys(
        ("provisioning/worker/venv_make.py", "provisioning/worker/venv_down.py"),
        "test_venv_host.py",
    ),
    **dict.fromkeys(
        (
            *(f"runner/app/{name}.py" for name in ("doors", "forwarding", "logins")),
            *(f"provisioning/worker/{name}.py" for name in ("control", "door", "presence")),
            *(f"provisioning/worker/{name}.py" for name in ("services", "sessions", "sockets")),
            "provisioning/worker/tensorboard_main.py",
        ),
        "test_ways_in.py",
    ),
}
"""Modules whose test has another name, because they are tried as one with another module."""


def modules() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every module, and the names its test may have."""
    for top, prefix in (("runner", "test_"), ("provisioning/worker", "test_worker_")):
        for path in sorted((ROOT / top).rglob("*.py")):
            if path.name in NO_TEST or "_content" in path.parts:
                continue
            package = path.parent.name if path.parent != ROOT / top else path.stem
            own = TOGETHER.get(package, path.stem)
            yield str(path.relative_to(ROOT)), (f"{prefix}{path.stem}.py", f"{prefix}{own}.py")
    for path in sorted((ROOT / "agents").glob("*.py")):
        yield str(path.relative_to(ROOT)), (f"test_agent_{path.stem}.py",)


def test_every_module_has_its_test() -> None:
    there = {path.name for folder in FOLDERS for path in (TESTS / folder).glob("test_*.py")}
    missing = [
        f"{module}: no {names[0]} in tests/{{{','.join(FOLDERS)}}}"
        for module, names in modules()
        if module not in VALUES_ALONE and not there & {*names, TESTED_BY.get(module, "")}
    ]
    assert not missing, "\n".join(missing)


def test_the_exceptions_are_still_there() -> None:
    assert {
        module for module in (*VALUES_ALONE, *TESTED_BY) if not (ROOT / module).is_file()
    } == set()
