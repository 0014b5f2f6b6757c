from __future__ import annotations

from pathlib import Path

import pytest

from runner import content
from runner.app.init import init
from runner.errors import SpecError
from runner.inventory import find_project, read_hosts


def test_an_empty_folder_becomes_a_project(tmp_path: Path) -> None:
    report = init(tmp_path / "cart pole")
    project = find_project(tmp_path / "cart pole")
    assert project.root == tmp_path / "cart pole"
    assert project.name == "cart-pole"
    assert project.id.startswith("p-")
    assert set(read_hosts(project)) == {"local"}
    assert {"runner.toml", ".runnerignore"} <= set(report.made)
    assert report.left == ()


def test_agents_and_examples_are_copies_of_the_shipped_ones(tmp_path: Path) -> None:
    init(tmp_path)
    for shipped in (
        *content.agents_folder().glob("*.*"),
        *content.hosts_folder().glob("*.example"),
    ):
        copy = tmp_path / shipped.parent.name / shipped.name
        assert copy.read_bytes() == shipped.read_bytes()
    assert not list(tmp_path.rglob("__pycache__"))


def test_two_projects_never_have_the_same_id(tmp_path: Path) -> None:
    init(tmp_path / "a")
    init(tmp_path / "b" / "a")
    assert find_project(tmp_path / "a").id != find_project(tmp_path / "b" / "a").id


def test_repeating_it_changes_nothing_and_brings_back_what_is_missing(tmp_path: Path) -> None:
    first = init(tmp_path)
    (tmp_path / "runner.toml").write_text('name = "mine"\n')
    (tmp_path / ".runnerignore").unlink()
    second = init(tmp_path)
    assert second.made == (".runnerignore",)
    assert set(second.left) == set(first.made) - {".runnerignore"}
    assert (tmp_path / "runner.toml").read_text() == 'name = "mine"\n'


def test_a_link_is_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/runner.toml").symlink_to(tmp_path / "elsewhere")
    assert "runner.toml" in init(tmp_path / "p").left
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("")
    with pytest.raises(SpecError, match=f"{tmp_path}/hosts: File exists"):
        init(tmp_path)
