"""The host's data, as jobs of this machine see it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import given

from tests.helpers.local_worker import LocalWorker

LOOK = (
    "import os, pathlib; top = pathlib.Path(os.environ['RUNNER_DATA'])\n"
    "print(sorted(p.name for p in top.iterdir()), (top / 'atari' / 'rom').read_text())"
)


def data(worker: LocalWorker, **folders: Path) -> None:
    rows = [f"{name} = {json.dumps(str(path))}" for name, path in folders.items()]
    worker.file("hosts/local.toml", "\n".join(["[data]", *rows]) + "\n")


def test_a_job_finds_the_folders_by_their_names(local_worker: LocalWorker, tmp_path: Path) -> None:
    (tmp_path / "roms").mkdir()
    (tmp_path / "roms" / "rom").write_text("pong")
    (tmp_path / "more").mkdir()
    data(local_worker, atari=tmp_path / "roms", more=tmp_path / "more")
    run = local_worker.python(LOOK)
    assert local_worker.wait(run).status.outcome == "done"
    assert local_worker.log(run) == b"['atari', 'more'] pong\n"


def test_a_folder_that_is_not_there_is_named(local_worker: LocalWorker, tmp_path: Path) -> None:
    data(local_worker, atari=tmp_path / "gone")
    run = local_worker.python("print('ran')")
    cause = local_worker.wait(run).status.cause
    assert cause is not None and cause["kind"] == "setup"
    assert cause["text"] == f"data: atari is {tmp_path}/gone, which is no folder on this host"
    assert local_worker.log(run) == b""


def test_without_data_nothing_is_told(local_worker: LocalWorker) -> None:
    run = local_worker.python("import os; print(repr(os.environ['RUNNER_DATA']))")
    local_worker.wait(run)
    assert local_worker.log(run) == b"''\n"


def test_a_container_has_them_mounted(tmp_path: Path) -> None:
    assert given.provide("docker", {"a": "/data/a"}, str(tmp_path)) == given.MOUNTED
    assert given.provide("docker", {}, str(tmp_path)) == ""
    assert given.provide("local", None, str(tmp_path)) == ""
    assert os.listdir(tmp_path) == []
    assert given.provide("venv", {"a": str(tmp_path)}, str(tmp_path)) == f"{tmp_path}/data"
    assert given.missing({"a": str(tmp_path), "b": __file__}) is not None
