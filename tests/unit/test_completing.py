"""Completion without a shell: lines cut, places read from help, what is offered where."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from runner.cli import commands
from runner.completing.answer import answer
from runner.completing.known import PATIENCE_S, Known
from runner.completing.line import Line, parse_line
from runner.completing.offers import Answer, complete
from runner.completing.places import place_of
from runner.completing.scripts import SHELLS, script
from runner.grammar.words import RESERVED
from runner.model import Project
from runner.store import Store
from runner.wire import RunStatus

BREAKS = " \t\n\"'@><=;|&(:"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("hosts", "agents", "home"):
        (tmp_path / folder).mkdir()
    (tmp_path / "hosts" / "gpu1.toml").write_text('ssh = "drl@10.0.0.7"\n')
    (tmp_path / "hosts" / "bad.toml").write_text("not toml")
    (tmp_path / "agents" / "dqn.toml").write_text(
        '# Learns.\ncommand = ["x"]\nresumable = ["steps"]\n[params]\nsteps = 5\namp = true\n'
        'sizes = [1, 2]\nname = "n"\nloss = "huber"  # needed; one of huber, squared or $(x)\n'
        'path = ""\n'
    )
    (tmp_path / "agents" / "broken.toml").write_text("[")
    return tmp_path


def put(root: Path, run: str, **status: object) -> None:
    known = {"state": "running", **status}
    body = RunStatus(id=run, **known).to_json()  # type: ignore[arg-type]
    Store(Project(root, "p", "p")).put("gpu1", body, 1.0)


def found(root: Path | None, *words: str) -> Answer:
    return complete(commands, words[:-1], words[-1], Known(root), ["WANDB_API_KEY", "HOME", "RANK"])


def texts(root: Path | None, *words: str) -> list[str]:
    return [offer.text for offer in found(root, *words).offers]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("runner ", Line(["runner"])),
        ("runner submit host=g", Line(["runner", "submit"], "host=g", 5)),
        ("runner status name:", Line(["runner", "status"], "name:", 5)),
        ("runner x=@f", Line(["runner"], "x=@f", 2)),
        ("runner 'a b' \"host=g", Line(["runner", "a b"], "host=g", 0, '"')),
        ('runner h="gp"u', Line(["runner"], "h=gpu", 4)),
        (r"runner a\ b\=c", Line(["runner"], "a b=c", 0)),
        ("runner ps 2>&1 > f", Line(["runner", "ps"], "f", 0, "", True)),
        ("runner ps > f x", Line(["runner", "ps"], "x")),
        ("runner $(touch x", Line(["touch"], "x")),
        ("a; runner p", Line(["runner"], "p")),
        ("runner '' ", Line(["runner", ""])),
        ("runner a\\", Line(["runner"], "a")),
    ],
)
def test_a_line_is_cut_as_bash_would_and_never_expanded(text: str, line: Line) -> None:
    assert parse_line(text, BREAKS) == line


def test_a_line_is_cut_nowhere_that_bash_does_not_break_words() -> None:
    assert parse_line("runner host=g", " \t\n") == Line(["runner"], "host=g", 0)


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            if not each.hidden:
                yield from leaves(each, (*path, name))
    else:
        yield path


@pytest.mark.parametrize("path", [*leaves(commands, ())], ids=" ".join)
def test_every_command_has_its_options_but_hidden_ones(root: Path, path: tuple[str, ...]) -> None:
    assert "--help" in texts(root, *path, "--")
    assert "--follow" not in texts(root, *path, "--")


def test_hidden_commands_are_not_offered(root: Path) -> None:
    offered = texts(root, "")
    assert {"submit", "ps", "completion"} <= set(offered)
    assert not {"ssh-stream", "__complete"} & set(offered)
    assert texts(root, "schedule", "f") == []


def test_a_new_command_is_completed_by_what_its_help_says() -> None:
    @click.command()
    @click.argument("words", metavar="RUN [host=H] [-- CMD ARG…]", nargs=-1)
    @click.option("--deep", "deep", is_flag=True)
    def new() -> None: ...

    place = place_of(new, "new")
    assert (place.before, place.keys, place.command) == (("run",), ("host",), True)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("submit", "host="), ["host=local", "host=bad", "host=gpu1"]),
        (("submit", "host=g"), ["host=gpu1"]),
        (("submit", "job="), ["job=broken", "job=dqn"]),
        (("jobs", "d"), ["dqn"]),
        (("submit", "launcher=t"), ["launcher=torchrun"]),
        (("submit", "job=dqn", "amp="), ["amp=true", "amp=false"]),
        (("submit", "job=dqn", "loss="), ["loss=huber", "loss=squared"]),
        (("submit", "job=dqn", "steps="), ["steps=5"]),
        (("submit", "job=dqn", "siz"), ["sizes:="]),
        (("submit", "job=dqn", "sizes:="), ["sizes:=[1, 2]"]),
        (("submit", "job=dqn", "param."), ["param.name="]),
        (("submit", "job=broken", "ste"), []),
        (("submit", "job=../dqn", "ste"), []),
        (("submit", "host=a", "hos"), []),
        (("submit", "env."), ["env.WANDB_API_KEY="]),
        (("submit", "secret."), ["secret.WANDB_API_KEY"]),
        (("submit", "secret.X="), ["secret.X=@"]),
        (("submit", "eac"), ["each."]),
        (("host", "remove", ""), ["bad", "gpu1"]),
        (("drain", "host=g"), ["host=gpu1"]),
        (("down", ""), ["host=", "image="]),
        (("schedule", "add", "n", "0 1 * * *", "over"), ["overlap="]),
        (("schedule", "add", "n", "0 1 * * *", "code="), ["code=fixed", "code=tree", "code=git:"]),
        (("schedule", "add", "n", "0 1 * * *", "job=dqn", "st"), ["stuck_after=", "steps="]),
        (("schedule", "update", "n", "mis"), ["missed="]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("ps", "--color", "n"), ["never"]),
        (("ps", "--color=n"), ["--color=never"]),
        (("pull", "--what", "logs,wor"), ["logs,work"]),
        (("submit", "--dry-run", "--d"), []),
        (("submit", "nothing="), []),
        (("nothing", ""), []),
    ],
)
def test_what_is_offered(root: Path, words: tuple[str, ...], offered: list[str]) -> None:
    assert texts(root, *words) == offered


def test_all_keys_of_a_submit_are_offered(root: Path) -> None:
    assert {f"{key}=" for key in RESERVED} <= set(texts(root, "submit", ""))


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("submit", "--", "x", ""), Answer(files="file")),
        (("submit", "secret.X=@a"), Answer(files="file", skip=10)),
        (("submit", "job=dqn", "path=a"), Answer(files="file", skip=5)),
        (("pull", "--to", "a"), Answer(files="folder")),
        (("pull", "--to=a"), Answer(files="folder", skip=5)),
        (("job", "add", "a"), Answer(files="file")),
        (("init", ""), Answer(files="folder")),
    ],
)
def test_where_files_are_meant(root: Path, words: tuple[str, ...], answer: Answer) -> None:
    answered = found(root, *words)
    assert (answered.files, answered.skip) == (answer.files, answer.skip)
    assert list(answered.offers) == []


def test_runs_sweeps_names_and_tags(root: Path) -> None:
    put(root, "dqn-1aaaa", name="base", tags=["night"])
    put(root, "dqn-2bbbb.1", sweep="dqn-2bbbb", state="ended", outcome="done")
    put(root, "dqn-2bbbb.2", sweep="dqn-2bbbb")
    others = ["latest", "name:", "tag:"]
    assert sorted(texts(root, "wait", "")) == sorted(["dqn-1aaaa", "dqn-2bbbb", *others])
    assert sorted(texts(root, "status", "")) == sorted(["dqn-1aaaa", "dqn-2bbbb.", *others])
    assert sorted(texts(root, "status", "dqn-2bbbb.")) == ["dqn-2bbbb.1", "dqn-2bbbb.2"]
    assert texts(root, "cancel", "dqn-2bbbb.") == ["dqn-2bbbb.2"]
    assert texts(root, "resume", "dqn-2bbbb.") == ["dqn-2bbbb.1"]
    assert texts(root, "cancel", "dqn-1aaaa", "dqn-1") == []
    assert texts(root, "cancel", "name:") == ["name:base"]
    assert texts(root, "submit", "tags=x,n") == ["tags=x,night"]
    assert texts(root, "submit", "after=dqn-1aaaa,dqn") == ["after=dqn-1aaaa,dqn-2bbbb"]
    assert texts(root, "cancel", "host=g") == ["host=gpu1"]
    assert found(root, "status", "dqn-1").offers[0].about == "running on gpu1, base"


def test_what_a_run_may_be_changed_in(root: Path) -> None:
    put(root, "dqn-1aaaa", job="dqn", params={"steps": 5, "amp": True}, secrets=["TOKEN"])
    assert texts(root, "resume", "dqn-1", "") == ["secret.TOKEN", "steps=", "env.", "secret."]
    assert texts(root, "fork", "dqn-1aaaa", "amp=f") == ["amp=false"]
    assert "priority=" in texts(root, "fork", "dqn-1aaaa", "")
    assert texts(root, "reproduce", "dqn-1aaaa", "") == ["secret.TOKEN", "secret."]
    assert texts(root, "resume", "other", "ste") == []


def test_records_that_are_damaged_or_hostile_offer_nothing(root: Path) -> None:
    put(root, "dqn-1aaaa")
    runs = root / ".runner" / "runs"
    hostile = {"id": "dqn-3cccc", "name": "$(x)", "tags": [1, "`x`"], "state": [], "params": 3}
    (runs / "dqn-3cccc.json").write_text(json.dumps({"run": hostile, "host": ["\x1b[2J"]}))
    (runs / "$(touch x).json").write_text("{}")
    (runs / "dqn-4dddd.json").write_text("[" * 100_000)
    (runs / "dqn-5eeee.json").symlink_to("/dev/zero")
    assert "$(touch x)" not in texts(root, "status", "")
    assert texts(root, "cancel", "name:") == texts(root, "cancel", "tag:") == []
    assert texts(root, "fork", "dqn-3cccc", "ste") == []


def test_reading_runs_ends_in_time(root: Path) -> None:
    for number in range(5):
        put(root, f"dqn-{number}aaaa", name=f"n{number}")
    ticks = itertools.count(0, PATIENCE_S)
    known = Known(root, lambda: next(ticks))
    assert len(list(known.runs(known.ids()))) == 2
    assert len(known.ids()) == 5


def test_without_a_project_commands_and_this_machine_are_left(tmp_path: Path) -> None:
    for root in (tmp_path, None):
        assert texts(root, "submit", "host=") == ["host=local"]
        assert texts(root, "submit", "job=") == texts(root, "submit", "image=") == []
        assert texts(root, "schedule", "run", "") == ["--json", "--color", "--help"]
    (tmp_path / "runner.toml").write_text("broken [")
    assert texts(tmp_path, "submit", "host=") == ["host=local"]


def test_zones(root: Path) -> None:
    line = ("schedule", "add", "n", "0 1 * * *")
    assert "tz=Europe/" in texts(root, *line, "tz=Eu")
    assert texts(root, *line, "tz=Europe/Berl") == ["tz=Europe/Berlin"]
    assert texts(root, *line, "tz=../") == texts(root, *line, "tz=/etc/") == []


@pytest.mark.parametrize(
    ("default", "typed", "line"),
    [
        ("a b$(x)", "text=", "'a b$(x)'"),
        ("it's", "text=", "'it'\"'\"'s'"),
        ("a b", '"text=', "text=a b"),
        ("$(x)", '"text=', None),
        ("a\nb\x1b[2J\u202e", "text=", None),
    ],
)
def test_bash_is_handed_what_it_takes_as_it_stands(
    root: Path, default: str, typed: str, line: str | None
) -> None:
    text = f'command = ["x"]\n[params]\ntext = {json.dumps(default)}\n'
    (root / "agents" / "odd.toml").write_text(text)
    lines = answer(["bash", BREAKS, f"runner submit job=odd {typed}"], root, []).splitlines()
    assert lines[1:] == ([] if line is None else [line])


def test_descriptions_are_one_line_without_what_plays_with_a_terminal(root: Path) -> None:
    (root / "agents" / "odd.toml").write_text("# a\tb\x1b[2J" + "c" * 100 + "\n")
    line = answer(["zsh", "jobs", "odd"], root, []).splitlines()[1]
    assert line.startswith("odd\ta\\tb\\x1b[2Jccc")
    assert line.endswith("…\t")


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_evaluate_nothing(shell: str) -> None:
    text = script(shell)
    assert "__complete" in text
    assert f"runner completion {shell} > " in text
    assert "eval" not in text
    assert "compgen -W" not in text
