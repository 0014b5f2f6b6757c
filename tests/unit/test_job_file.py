from __future__ import annotations

import pytest

from runner.grammar.job_file import job_text, key, toml
from runner.grammar.recipes import parse_job
from runner.grammar.script_packages import Packages
from runner.grammar.script_values import Left, Option
from runner.grammar.scripts import Script
from runner.inventory import tomllib
from runner.model import JobSpec

ODD = "a \"quoted\" \\ text, é\x7f\n\t'''"


def made(script: Script, packages: Packages | None = None) -> tuple[str, JobSpec]:
    text = job_text(script, ["python", "a b/t.py"], packages or Packages((), (), ()), "a b/t.py")
    return text, parse_job("t", tomllib.loads(text), where="agents/t.toml")


def test_what_is_written_is_read_again() -> None:
    options = (
        Option("lr", 1e-05, "--lr", "the rate"),
        Option("steps", 1_000_000, "--total-steps"),
        Option("odd", ODD, "--odd", ODD * 9),
        Option("layers", [64, -1], "--layers?"),
        Option("model.size", "s", "--model.size", "", ("s", "m")),
        Option("on", False, "--on"),
        Option("gpus", 1, "--gpus"),
        Option("data", "", "--data!"),
    )
    text, job = made(Script("argparse", options, (Left("x", "its default is computed"),)))
    assert job.command == ("python", "a b/t.py")
    assert dict(job.params) == {each.name: each.default for each in options}
    assert {name: job.flags.get(name, f"--{name}") for name in job.params} == {
        each.name: each.spelling for each in options
    }
    assert job.restarts == 0
    assert "steps = 1_000_000" in text
    assert "# one of s, m" in text and "# typed as param.gpus=" in text and "# needed" in text
    assert "#   x: its default is computed" in text


def test_one_that_goes_on_is_repeated_as_any_job_is() -> None:
    _, job = made(Script(None, resumes=True))
    assert job.restarts == JobSpec.restarts > 0


def test_packages_that_are_needed_and_others_in_words() -> None:
    text, job = made(Script(None), Packages(("tyro",), ("wandb",), ("mystery",)))
    assert job.requirements == ("tyro",)
    assert "# imported on some paths only: wandb" in text
    assert "# of a package not known here: mystery" in text


@pytest.mark.parametrize("value", [ODD, [ODD], 10**15, -(10**15), 0.1, True, [], 1e22, -0.0])
def test_values_survive(value: object) -> None:
    assert tomllib.loads(f"x = {toml(value)}")["x"] == value


def test_keys_survive() -> None:
    for name in ("a", "a-b", "a.b", 'a"b', ""):
        assert tomllib.loads(f"{key(name)} = 1") == {name: 1}
