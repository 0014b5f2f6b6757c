"""Every table of meanings has the names that the code has, no more and no less."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import environment
import paths
import pytest

from runner import errors, meanings, states
from runner.grammar.words import PREFIXES, RESERVED
from runner.schedule.definition import OWN_KEYS, PASSED_ON

ROOT = Path(__file__).parents[2]


def classes(kind: type[errors.RunnerError]) -> Iterator[type[errors.RunnerError]]:
    for each in kind.__subclasses__():
        if each.__module__ == "runner.errors":
            yield each
            yield from classes(each)


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (meanings.SUBMIT, {*RESERVED, *PREFIXES}),
        (meanings.SCHEDULE, set(OWN_KEYS)),
        (meanings.STATES, set(states.STATES)),
        (meanings.OUTCOMES, set(states.OUTCOMES)),
        (meanings.CAUSES, states.CAUSES | states.NEVER_SUBMITTED),
        (
            meanings.STATUSES,
            {each.status for each in classes(errors.RunnerError)}
            | {0, errors.BUG_STATUS, errors.INTERRUPTED_STATUS, errors.PIPE_STATUS},
        ),
    ],
    ids=["submit", "schedule", "states", "outcomes", "causes", "statuses"],
)
def test_table_has_the_names_of_the_code(
    table: Mapping[object, object], names: set[object]
) -> None:
    assert set(table) == names


def test_forms_of_words_begin_with_their_names() -> None:
    for name, word in {**meanings.SUBMIT, **meanings.SCHEDULE}.items():
        assert word.form.startswith((f"{name}=", f"{name}.")), name


def test_variables_are_those_a_job_is_told(tmp_path: Path) -> None:
    run = paths.Workspace(str(tmp_path)).run("dqn-7k3fa")
    spec = {"id": "dqn-7k3fa"}
    state = {"attempt": 1, "token": "x"}
    told = environment.variables(run, spec, state, home="/h", resume="", secrets={})
    ours = {name for name in told if name.startswith(("RUNNER_", "CUDA_", "PYTHONUNBUFFERED"))}
    hidden = {environment.processes.MARK}
    by_launcher = {"RUNNER_PROGRESS", "RANK", "MASTER_ADDR", "OMP_NUM_THREADS"}
    assert set(meanings.VARIABLES) - by_launcher == (ours - hidden) | {"HOME", "PWD"}


def test_settings_are_passed_on_to_cron() -> None:
    assert set(PASSED_ON) <= set(meanings.SETTINGS)


def test_every_limit_is_a_number_in_the_code() -> None:
    for limit in meanings.LIMITS:
        value = getattr(importlib.import_module(limit.module), limit.name)
        assert isinstance(value, (int, float)), limit
