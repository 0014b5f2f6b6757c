"""What is kept of a run's event files, and who reads on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import eventfiles
import progress
import pytest
import records
import scalars
from paths import RunPaths, Workspace

from tests.helpers import event_writers
from tests.helpers.event_writers import scalar, version

NOTHING = {"step": None, "metrics": {}, "t": None}


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    workspace = Workspace(str(tmp_path / "ws"))
    workspace.make()
    paths = workspace.run("r-1")
    for folder in (paths.logs, paths.code, paths.folder):
        os.makedirs(folder)
    return paths


def put(
    run: RunPaths,
    *steps: int,
    name: str = "runs/x/tfevents.1",
    tag: str = "r",
    since: float = 1000.0,
) -> Path:
    path = Path(run.code, name)
    events = [] if path.exists() else [version(since)]
    told = [scalar(tag, step / 2, step, since + step) for step in steps]
    return event_writers.write(path, *events, *told)


class Scene:
    """A live attempt's reader, with a clock of its own."""

    def __init__(self, run: RunPaths, metric: str | None = None) -> None:
        self.now = 1000.0
        self.told: list[str] = []
        self.reader = scalars.Reader(run, metric, self.told.append, lambda: self.now)

    def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.reader.look(60.0)


def curve(run: RunPaths, is_live: bool = False, names: Any = None) -> list[list[Any]]:
    return scalars.curve(run, 1000, names, metric=None, is_live=is_live, limit_s=60.0)


def test_a_live_run_is_read_on_and_shown(run: RunPaths) -> None:
    scene = Scene(run)
    scene.pass_s(3)
    assert progress.said(run) == NOTHING
    put(run, 0, 10)
    scene.pass_s(10)
    assert progress.said(run) == {"step": 10, "metrics": {"r": 5.0}, "t": 1010.0}
    put(run, 20)
    scene.pass_s(5)
    assert progress.said(run)["step"] == 20
    assert not os.path.exists(run.curves), "what is long is written seldom"
    assert curve(run, is_live=True) == [[s, {"r": s / 2}, 1000.0 + s] for s in (0, 10, 20)]
    assert not os.path.exists(run.curves), "a live run's launcher alone writes it"
    put(run, 30)
    scene.reader.finish(hurried=False)
    assert progress.said(run)["step"] == 30
    assert os.path.exists(run.curves)


def test_the_next_attempt_goes_on_where_the_last_one_was(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(run, *range(0, 1000, 10))
    Scene(run).reader.finish(hurried=True)
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(
        eventfiles.os, "pread", lambda fd, size, at: read.append(at) or pread(fd, size, at)
    )
    before = curve(run)
    assert read == [], "what was kept is not read again"
    put(run, 500, 510, name="runs/y/tfevents.2", since=9000.0)
    scene = Scene(run)
    scene.pass_s(1)
    assert read == [0]
    assert progress.said(run)["step"] == 510
    assert curve(run)[:50] == before[:50]
    assert [row[0] for row in curve(run)[50:]] == [500, 510]


def test_what_was_kept_is_read_anew_if_it_is_not_ours(run: RunPaths) -> None:
    put(run, 1, 2)
    for body in ({"format": 9}, {"format": 1, "files": []}, {"format": 1, "files": {"x": {}}}):
        records.write(run.curves, body)
        assert [row[0] for row in curve(run)] == [1, 2]
    Path(run.curves).write_bytes(b"\xff{")
    assert [row[0] for row in curve(run)] == [1, 2]
    records.write(run.scalars, {"step": "x", "metrics": [1], "t": None})
    assert progress.said(run) == NOTHING


def test_of_an_ended_run_much_is_kept_by_who_reads_it(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(run, 1, 2)
    curve(run)
    assert not os.path.exists(run.curves)
    monkeypatch.setattr(scalars, "WORTH_KEEPING_BYTES", 10)
    curve(run, is_live=True)
    assert not os.path.exists(run.curves)
    curve(run)
    assert os.path.exists(run.curves)


def test_progress_lines_win(run: RunPaths) -> None:
    put(run, 5)
    scene = Scene(run)
    scene.reader.finish(hurried=False)
    Path(run.progress(0)).write_text('{"fault": "nan"}\n')
    assert progress.said(run)["step"] == 5, "a fault alone is no progress"
    line = {"step": 3, "t": 7.0, "metrics": {"reward": 1.0}}
    Path(run.progress(0)).write_text(json.dumps(line) + "\n")
    assert progress.said(run) == {"step": 3, "t": 7.0, "metrics": {"reward": 1.0}}
    assert curve(run) == [[3, {"reward": 1.0}, 7.0]]
    assert curve(run, names=["r"]) == []
    put(run, 6)
    scene.pass_s(20)
    scene.reader.finish(hurried=False)
    assert (records.read(run.scalars) or {})["step"] == 5, "its event files are not read any more"


def test_a_damaged_file_is_told_of_once(run: RunPaths) -> None:
    path = put(run, 1, 2)
    size = path.stat().st_size
    with open(path, "ab") as out:
        out.write(bytes(50))
    scene = Scene(run)
    scene.pass_s(30)
    scene.reader.finish(hurried=False)
    name = "work/runs/x/tfevents.1"
    text = f"damaged at byte {size}, and not read behind it"
    assert scene.told == [f"{name}: {text}"]
    assert (records.read(run.scalars) or {})["problems"] == {name: text}
    assert progress.said(run)["step"] == 2


def test_many_metrics_share_the_room(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalars, "MOST_POINTS_IN_ALL", 2000)
    monkeypatch.setattr(scalars, "MOST_TAGS", 30)
    for n in range(5):
        for tag in range(10):
            put(run, *range(600), name=f"{n}/tfevents", tag=f"{n}/{tag}")
    scene = Scene(run)
    scene.pass_s(1)
    scene.reader.finish(hurried=False)
    files = (records.read(run.curves) or {})["files"].values()
    assert sum(len(file["series"]) for file in files) == 30
    names = {name for row in curve(run) for name in row[1]}
    assert len(names) == 30
    assert sum(len(row[1]) for row in curve(run)) < 2 * 2000 + 30 * 2 * scalars.LEAST_POINTS


@pytest.mark.parametrize(
    ("metric", "name", "tag", "shown"),
    [
        ("eval/score", "runs/x/tfevents", "eval/score", "eval/score"),
        (None, "runs/x/tfevents", "charts/episodic_return", "charts/episodic_return"),
        ("eval/score", "runs/x/eval/tfevents", "score", "eval/score"),
    ],
)
def test_what_is_shown_is_kept_behind_any_number_of_others(
    run: RunPaths, metric: str | None, name: str, tag: str, shown: str
) -> None:
    path = Path(run.code, "runs/x/tfevents")
    many = [scalar(f"layer/{n}", 1.0, 0, 1000.0) for n in range(scalars.MOST_TAGS + 20)]
    event_writers.write(path, version(1000.0), *many)
    put(run, 10, 20, name=name, tag=tag)
    put(run, 10, 20, tag="other")
    scene = Scene(run, metric)
    scene.pass_s(1)
    scene.reader.finish(hurried=False)
    said = progress.said(run)
    assert (said["step"], said["metrics"].get(shown)) == (20, 10.0)
    assert next(iter(said["metrics"])) == shown
    assert [row[:2] for row in curve(run, names=[shown])] == [
        [10, {shown: 5.0}],
        [20, {shown: 10.0}],
    ]
    assert len({tag for row in curve(run) for tag in row[1]}) == scalars.MOST_TAGS + 1
    os.unlink(run.curves)
    assert len(scalars.curve(run, 100, [shown], metric=metric, is_live=False, limit_s=60.0)) == 2


def test_a_full_disk_is_no_trouble(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    put(run, 1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    scene = Scene(run)
    monkeypatch.setattr(scalars.records, "write", full)
    scene.pass_s(400)
    scene.reader.finish(hurried=False)
    monkeypatch.undo()
    assert progress.said(run) == NOTHING
    scene.pass_s(400)
    assert progress.said(run)["step"] == 1


def test_files_that_the_job_removed_have_said_what_they_said(run: RunPaths) -> None:
    path = put(run, 1, 2)
    scene = Scene(run)
    scene.pass_s(1)
    path.unlink()
    scene.pass_s(30)
    scene.reader.finish(hurried=False)
    assert progress.said(run)["step"] == 2
    assert [row[0] for row in curve(run)] == [1, 2]


def test_its_size_is_what_all_files_hold(run: RunPaths) -> None:
    scene = Scene(run)
    assert scene.reader.size == 0
    one, two = put(run, 1), put(run, 2, name="b/tfevents")
    scene.pass_s(1)
    assert scene.reader.size == one.stat().st_size + two.stat().st_size
