"""`runner compare` of runs that a real worker ran, and of two workers that tell of theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.app import compare as use
from runner.app import submit
from runner.comparing.comparison import MISSING, Comparison
from runner.errors import NotFound, ProvisionError, SpecError
from runner.show.compare import compare_lines, document
from runner.show.screen import width
from runner.spec import parse_submit
from tests.helpers.local_worker import LocalWorker
from tests.helpers.many_hosts import ManyHosts, many_here

ROOT = Path(__file__).parents[2]
JOB = """
import json, os, sys, time
params = json.load(open(os.environ["RUNNER_PARAMS"]))
with open(os.environ["RUNNER_PROGRESS"], "w") as file:
    for step in range(0, params["steps"] + 1, 10):
        value = step * params["lr"] * (1 + params["seed"] / 10)
        line = {"t": time.time(), "step": step, "metrics": {"score": value, "loss": -value}}
        file.write(json.dumps(line) + "\\n")
        if step == 20 and params["seed"] == params["bad"]:
            sys.exit(3)
"""
TOML = """entry = "toy.py"
metric = "score"
restarts = 0
[params]
seed = 0
bad = -1
steps = 100
lr = 1.0
"""


def sweep(worker: LocalWorker, *words: str) -> str:
    """Submit a sweep of the toy job and wait for it; its id."""
    ids = submit.submit(worker.ctx, parse_submit(["job=toy", *words], None), lambda run: None)
    for run in ids:
        worker.wait(run)
    return ids[0].rpartition(".")[0]


@pytest.fixture(scope="module")
def sweeps(shared_worker: LocalWorker) -> tuple[str, str]:
    shared_worker.file("agents/toy.py", JOB)
    shared_worker.file("agents/toy.toml", TOML)
    first = sweep(shared_worker, "seed=1..4", "bad=4", "lr=1.0", "name=one")
    return first, sweep(shared_worker, "seed=1..4", "bad=4", "lr=2.0", "name=two")


def cli(worker: LocalWorker, *argv: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "runner", "compare", *argv],
        cwd=worker.project,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_two_sweeps_side_by_side(shared_worker: LocalWorker, sweeps: tuple[str, str]) -> None:
    first, second = sweeps
    done = cli(shared_worker, first, second)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("score at 100 steps, mean of the last tenth; IQM and mean")
    assert lines[3].split()[:5] == ["lr=1.0", first, "3", "of", "4"]
    assert "120" in lines[3] and "240" in lines[4]
    text = "\n".join(lines)
    assert "lr=2.0 is better than lr=1.0 with probability 1.00 [1.00, 1.00]: not decided" in text
    assert f"Missing: {first}.4 (FAILED at 20, exit 3), {second}.4 (FAILED at 20, exit 3)." in text
    assert "Then lr=2.0 would be better than lr=1.0 with probability 0.81." in text
    assert lines[-1] == "Same code, same image; they differ in lr alone."


def test_one_document(shared_worker: LocalWorker, sweeps: tuple[str, str]) -> None:
    done = cli(shared_worker, "name:one", "name:two", "--json", "--at", "50", "--metric", "loss")
    body = json.loads(done.stdout)
    assert (body["format"], body["metric"], body["at_step"]) == (1, "loss", 50)
    assert [group["params"]["lr"] for group in body["groups"]] == [1.0, 2.0]
    failed = body["groups"][0]["seeds"][3]
    assert (failed["use"], failed["outcome"], failed["step"]) == (MISSING, "failed", 20)
    (pair,) = body["pairs"]
    assert (pair["better"], pair["differ"]["params"]) == (0, {"lr": [1.0, 2.0]})
    lower = json.loads(cli(shared_worker, *sweeps, "--json", "--lower").stdout)
    assert lower["pairs"][0]["better"] == 0


def test_page_and_picture(shared_worker: LocalWorker, sweeps: tuple[str, str]) -> None:
    for name, begin in (("c.html", b"<!doctype html>"), ("c.png", b"\x89PNG")):
        done = cli(shared_worker, *sweeps, "--out", name)
        assert (done.returncode, done.stderr) == (0, b"")
        assert (shared_worker.project / name).read_bytes().startswith(begin)
    page = (shared_worker.project / "c.html").read_text()
    assert page.count("<svg") == 2, "over steps and over the time it ran"
    assert b"no folder" in cli(shared_worker, *sweeps, "--out", "no/c.html").stderr


def test_what_cannot_be_compared_is_said(
    shared_worker: LocalWorker, sweeps: tuple[str, str]
) -> None:
    assert b"compare needs RUN" in cli(shared_worker).stderr
    assert b"--at is 'x'" in cli(shared_worker, sweeps[0], "--at", "x").stderr
    there = cli(shared_worker, sweeps[0], "--metric", "nosuch").stderr
    assert b"no value of nosuch to compare yet" in there and b"there are: loss, score" in there
    silent = shared_worker.submit("true")
    shared_worker.wait(silent)
    with pytest.raises(NotFound, match=f"{silent}: no value of eval/return to compare yet"):
        use.compare(shared_worker.ctx, [silent])
    with pytest.raises(NotFound, match="no value of score by step 3"):
        use.compare(shared_worker.ctx, [f"{sweeps[0]}.4"], use.Asked(step=30))


def test_code_that_changed_makes_another_group(
    shared_worker: LocalWorker, sweeps: tuple[str, str]
) -> None:
    shared_worker.file("agents/toy.py", JOB + "# another\n")
    again = sweep(shared_worker, "seed=1..3", "lr=1.0", "bad=4")
    found = use.compare(shared_worker.ctx, [sweeps[0], again]).comparison
    first, second = (group.label for group in found.groups)
    assert first.startswith("code ") and second.startswith("code ") and first != second
    assert compare_lines(found)[-1].startswith("Code differs (")
    done = cli(shared_worker, *sweeps, again, "--pool-code")
    text = done.stdout.decode()
    assert "lr=1.0 holds runs of 2 codes, as asked: " in text
    assert "What these differ by is counted as chance." in text
    assert "Not counted, the same seed being there twice: " in text
    assert text.splitlines()[-1] == "Code differs, same image; they differ in lr alone."
    body = json.loads(cli(shared_worker, *sweeps, again, "--pool-code", "--json").stdout)
    assert [len(group["pooled_codes"]) for group in body["groups"]] == [2, 0]
    assert [group["snapshot"] is None for group in body["groups"]] == [True, False]
    shared_worker.file("agents/toy.py", JOB)


# -- two workers ------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ManyHosts:
    project = tmp_path / "project"
    project.mkdir()
    (project / "runner.toml").write_text('name = "p"\nid = "p-1"\n')
    monkeypatch.chdir(project)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    many = many_here(project, tmp_path / "hosts", 2, monkeypatch.setenv)
    for name, lr in zip(many.names, (1.0, 2.0), strict=True):
        for number in range(1, 4):
            run, params = f"toy-{name}.{number}", {"seed": number, "lr": lr}
            many.put_run(
                name, run, "ended", sweep=f"toy-{name}", params=params, job="toy", metric="score"
            )
            rows = [
                {"t": time.time(), "step": step, "metrics": {"score": step * lr + number}}
                for step in (0, 50, 100)
            ]
            logs = many.workspace(name) / "logs" / run
            many.write(logs / "progress.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return many


def compared(many: ManyHosts, *words: str) -> use.CompareReport:
    from runner.app.context import open_context
    from tests.helpers.local_worker import Notes

    return use.compare(open_context(Notes(), many.project), words)


def labels(found: Comparison) -> list[str]:
    return [group.label for group in found.groups]


def test_runs_of_two_workers_are_compared(two: ManyHosts) -> None:
    report = compared(two, "toy-h01", "toy-h02")
    assert labels(report.comparison) == ["lr=1.0", "lr=2.0"]
    assert report.comparison.groups[1].scores == [201.0, 202.0, 203.0]
    assert not report.silent


def test_a_silent_host_is_named_and_its_seeds_are_missing(two: ManyHosts) -> None:
    compared(two, "toy-h01", "toy-h02")
    two.without_worker("h02")
    report = compared(two, "toy-h01", "toy-h02")
    assert [contact.host for contact in report.silent] == ["h02"]
    assert len(report.comparison.groups[1].missing) == 3
    text = "\n".join(compare_lines(report.comparison))
    assert "toy-h02.1 (no answer from h02)" in text and "What is not known is not counted." in text
    assert document(report)["hosts"][0]["name"] == "h02"
    two.without_worker("h01")
    with pytest.raises(ProvisionError, match="h01|h02"):
        compared(two, "toy-h01", "toy-h02")


def test_runs_of_a_sweep_that_were_deleted_are_named(two: ManyHosts) -> None:
    gone = two.workspace("h01") / "runs" / "toy-h01.2"
    gone.rename(two.folder / "gone")
    report = compared(two, "toy-h01", "toy-h02")
    assert report.comparison.gone == ("toy-h01.2",)
    text = "\n".join(compare_lines(report.comparison))
    assert "Not there any more, and not counted: toy-h01.2." in text
    assert "Fewer than 3 seeds give no interval." in text


def test_the_table_fits_a_terminal(two: ManyHosts) -> None:
    found = compared(two, "toy-h01", "toy-h02").comparison
    for columns in (80, 60):
        assert max(map(width, compare_lines(found, columns))) <= columns


def test_metrics_that_are_not_the_same_are_refused(two: ManyHosts) -> None:
    two.put_run("h02", "toy-x", "ended", params={}, job="toy", metric="other")
    row = {"step": 1, "metrics": {"other": 1.0}}
    two.write(two.workspace("h02") / "logs/toy-x/progress.jsonl", json.dumps(row) + "\n")
    with pytest.raises(SpecError, match="no metric in common") as caught:
        compared(two, "toy-h01", "toy-x")
    assert "other: toy-x" in caught.value.advice
