"""What a word means, and what is told of runs whose host is silent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.app import context, results, runs
from runner.app.runs import RunRef
from runner.errors import HostError, NotFound, SpecError
from tests.helpers.link import Link, make_link
from tests.helpers.local_worker import LocalWorker

ROOT = Path(__file__).parents[2]
LINKED = 'runtime = "docker"\nssh = "local"\n'
POINTS = """
import json, os
with open(os.environ["RUNNER_LOGS"] + "/progress.jsonl", "w") as file:
    for step in range(5):
        file.write(json.dumps({"step": step, "t": 1.0, "metrics": {"reward": step * 2}}) + "\\n")
"""


@pytest.fixture(scope="module")
def made(shared_worker: LocalWorker) -> dict[str, str]:
    """A few runs: two of one name, two of one tag."""
    ids = {
        "one": shared_worker.submit("true", words=("name=base", "tags=old,x")),
        "two": shared_worker.submit("true", words=("name=base", "tags=x")),
        "three": shared_worker.submit("true", words=("name=last",)),
    }
    for run in ids.values():
        shared_worker.wait(run)
    return ids


def found(worker: LocalWorker, word: str | None) -> list[str]:
    return [ref.id for ref in runs.find(worker.ctx, word)]


def forget(worker: LocalWorker) -> None:
    """Delete what the project remembers."""
    for path in (worker.project / ".runner" / "runs").glob("*.json"):
        path.unlink()


@pytest.mark.parametrize("remembered", [True, False])
def test_what_a_word_means(
    shared_worker: LocalWorker, made: dict[str, str], remembered: bool
) -> None:
    one, two, three = made.values()
    expected: dict[str | None, list[str]] = {
        one: [one],
        two: [two],
        three[:-1]: [three],
        None: [three],
        "latest": [three],
        "name:base": [one, two],
        "name:last": [three],
        "tag:x": [one, two],
        "tag:old": [one],
    }
    for word, ids in expected.items():
        if not remembered:
            forget(shared_worker)
        assert found(shared_worker, word) == ids, word


@pytest.mark.parametrize("word", ["zzz", "name:bas", "name:", "tag:", "tag:ol", "../runs/x"])
def test_word_that_means_nothing(
    shared_worker: LocalWorker, made: dict[str, str], word: str
) -> None:
    with pytest.raises(NotFound, match=f"no run {word}") as caught:
        found(shared_worker, word)
    assert caught.value.status == 6


def test_empty_word_means_no_run(shared_worker: LocalWorker, made: dict[str, str]) -> None:
    """`runner cancel "$ID"` with ID unset must not cancel the latest."""
    with pytest.raises(SpecError, match="an empty word means no run"):
        found(shared_worker, "")
    with pytest.raises(SpecError):
        runs.find_all(shared_worker.ctx, [made["one"], ""])


def test_beginning_that_several_share_is_refused_by_their_names(
    shared_worker: LocalWorker, made: dict[str, str]
) -> None:
    with pytest.raises(SpecError, match="cmd- means 3 runs") as caught:
        found(shared_worker, "cmd-")
    assert list(caught.value.advice) == sorted(made.values())


def test_one_and_all(shared_worker: LocalWorker, made: dict[str, str]) -> None:
    one, two, three = made.values()
    with pytest.raises(SpecError, match="name:base means 2 runs"):
        runs.find_one(shared_worker.ctx, "name:base")
    assert runs.find_one(shared_worker.ctx, "name:last") == RunRef(three, "local")
    refs = runs.find_all(shared_worker.ctx, ["tag:old", "name:base", "latest", one])
    assert [ref.id for ref in refs] == [one, two, three]


def test_no_run_yet(local_worker: LocalWorker) -> None:
    with pytest.raises(NotFound, match="no run of this project yet"):
        found(local_worker, None)


def test_runs_of_other_projects_are_listed_on_demand(
    shared_worker: LocalWorker, made: dict[str, str]
) -> None:
    toml = shared_worker.project / "runner.toml"
    before = toml.read_text()
    toml.write_text('name = "q"\nid = "q-1"\n')
    try:
        assert runs.list_runs(shared_worker.ctx).runs == ()
        assert len(runs.list_runs(shared_worker.ctx, everyone=True).runs) == 3
        with pytest.raises(NotFound):
            found(shared_worker, "latest")
        assert found(shared_worker, made["one"]) == [made["one"]], "a whole id is enough"
    finally:
        toml.write_text(before)


def test_only_one_host_is_asked_when_it_is_named(
    shared_worker: LocalWorker, made: dict[str, str]
) -> None:
    listing = runs.list_runs(shared_worker.ctx, "local")
    assert [contact.host for contact in listing.hosts] == ["local"]
    assert {run.id for run in listing.runs} == set(made.values())
    with pytest.raises(NotFound, match="nowhere"):
        runs.list_runs(shared_worker.ctx, "nowhere")


def test_curves(shared_worker: LocalWorker, made: dict[str, str]) -> None:
    run = shared_worker.python(POINTS, words=("name=curvy",))
    shared_worker.wait(run)
    refs = [shared_worker.ref(run), shared_worker.ref(made["one"])]
    first, second = runs.curves(shared_worker.ctx, refs)
    by_run = {first.run: first, second.run: second}
    assert by_run[run].label == f"{run} curvy"
    assert by_run[run].points == tuple((step, {"reward": 2.0 * step}) for step in range(5))
    assert by_run[made["one"]].points == ()


@pytest.fixture
def silent(local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch) -> Link:
    """Host `far`, whose run `r` was seen running before it went silent."""
    local_worker.submit("true")
    local_worker.file("hosts/far.toml", LINKED)
    link = make_link(local_worker.root / "link", monkeypatch.setenv)
    local_worker.submit("sleep", "600", words=("host=far", "name=r"))
    (ref,) = runs.find(local_worker.ctx, "name:r")
    local_worker.until(ref.id, "running")
    runs.list_runs(local_worker.ctx)
    link.take_down()
    return link


def test_silent_host_shows_what_was_last_seen_and_ps_ends_with_3(
    local_worker: LocalWorker, silent: Link
) -> None:
    (ref,) = runs.find(local_worker.ctx, "name:r")
    record = local_worker.ctx.store.record(ref.id)
    assert record is not None
    # the workspace is one, so `local` told of the run too; which of the two came last is chance
    local_worker.ctx.store.put("far", record.run, record.seen_at)
    listing = runs.list_runs(local_worker.ctx, "far")
    (contact,) = listing.hosts
    assert (contact.host, contact.state) == ("far", "unreachable")
    assert contact.at is not None and contact.error is not None
    assert "far" in contact.error
    (run,) = [run for run in listing.runs if run.id == ref.id]
    assert run.status.state == "running"
    assert run.contact.state == "unreachable"
    # of many that ended it lists as few as a host that answers
    for number in range(runs.RECENT + 5):
        old = {**record.run, "id": f"cmd-0000{number}", "submitted_at": 1.0 + number}
        old.update(name=None, state="ended", outcome="done", ended_at=2.0 + number)
        local_worker.ctx.store.put("far", old, record.seen_at)
    listing = runs.list_runs(local_worker.ctx, "far")
    shown = {run.id for run in listing.runs if run.status.state == "ended"}
    assert len(shown) == runs.RECENT and "cmd-000024" in shown and "cmd-00000" not in shown
    assert ref.id in {run.id for run in listing.runs}
    everything = runs.list_runs(local_worker.ctx, "far", everyone=True).runs
    assert len(everything) == len(listing.runs) + listing.hidden and listing.hidden >= 5
    argv = [sys.executable, "-m", "runner", "ps", "host=far"]
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run(
        argv, cwd=local_worker.project, env=env, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 3, done.stderr
    assert ref.id.encode() in done.stdout
    assert b"far" in done.stderr
    with pytest.raises(HostError, match="no run zzz where somebody answered.*far"):
        found(local_worker, "zzz")


def test_relative_workspace_is_refused(
    shared_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_WORKSPACE", "here")
    with pytest.raises(SpecError, match="RUNNER_WORKSPACE is 'here'; it must begin with /"):
        runs.list_runs(shared_worker.ctx)


def test_points_without_numbers_one_can_draw_are_left_out() -> None:
    rows: list[object] = [
        *([10**400, {"r": 1}, 1.0], [1, {"r": 10**400, "s": "x", "t": 2}, -1.0], 7, [2]),
        [0, {"r": 3}, 2],
    ]
    assert runs._points(rows) == (((0, {"r": 3.0}), (1, {"t": 2.0})), (2.0, None))


def test_a_run_of_another_project_is_told_apart_from_none(
    local_worker: LocalWorker, tmp_path: Path
) -> None:
    run = local_worker.submit("true")
    local_worker.wait(run)
    (tmp_path / "runner.toml").write_text('name = "q"\nid = "q-1"\n')
    with pytest.raises(NotFound, match=f"{run} is a run of another project, p"):
        runs.find(context.open_context(local_worker.report, tmp_path), run)


def test_a_host_file_that_is_wrong_stops_no_other_host(local_worker: LocalWorker) -> None:
    local_worker.file("hosts/bad.toml", "x = [\n")
    run = local_worker.submit("true")
    local_worker.wait(run)
    listing = runs.list_runs(local_worker.ctx)
    assert [found.id for found in listing.runs] == [run]
    told = {contact.host: contact for contact in listing.hosts}
    assert told["bad"].state == "unreachable"
    assert "hosts/bad.toml" in str(told["bad"].error)
    with pytest.raises(SpecError, match=r"hosts/bad\.toml"):
        local_worker.ctx.host("bad")


def test_what_ended_since(shared_worker: LocalWorker, made: dict[str, str]) -> None:
    ends = [float(shared_worker.state(run)["ended_at"]) for run in made.values()]
    live = shared_worker.python("import time; time.sleep(600)")
    shared_worker.until(live, "running")

    def listed(**chosen: Any) -> set[str]:
        chosen_runs = results.Chosen(**chosen)
        found = runs.list_runs(shared_worker.ctx, "local", chosen=chosen_runs)
        return {run.id for run in found.runs} & {*made.values(), live}

    assert listed() == {*made.values(), live}
    assert listed(ended=True) == set(made.values())
    assert listed(since=max(ends) + 1.0) == {live}
    # the clocks are the same, and their difference is only estimated
    assert listed(since=min(ends) - 1.0, ended=True) == set(made.values())
    shared_worker.cancel(live)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--since", "soon"), "--since is 'soon'; it takes yesterday, mon, 02:30"),
        (("--since", "2199-01-01"), "--since is '2199-01-01'; that is still to come"),
    ],
)
def test_ps_takes_a_time_people_type(
    shared_worker: LocalWorker, words: tuple[str, ...], text: str
) -> None:
    argv = [sys.executable, "-m", "runner", "ps", *words]
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run(
        argv, cwd=shared_worker.project, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and done.stderr.startswith(text), done.stderr
    assert done.stdout == ""
