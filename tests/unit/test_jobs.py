from __future__ import annotations

from pathlib import Path

import pytest

from runner.app.init import init
from runner.app.jobs import list_jobs, one_job
from runner.errors import SpecError


def test_jobs_are_found_from_anywhere_in_the_project(tmp_path: Path) -> None:
    (tmp_path / "hosts").mkdir()
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/dqn.toml").write_text('command = ["true"]\n[params]\nlr = 1e-3\n')
    assert [job.name for job in list_jobs(tmp_path / "agents")] == ["dqn"]
    assert one_job(tmp_path, "dqn").params == {"lr": 1e-3}
    with pytest.raises(SpecError, match="did you mean dqn"):
        one_job(tmp_path, "dqnn")


def test_every_shipped_job_can_be_read(tmp_path: Path) -> None:
    init(tmp_path)
    files = sorted(path.stem for path in (tmp_path / "agents").glob("*.toml"))
    assert [job.name for job in list_jobs(tmp_path)] == files
