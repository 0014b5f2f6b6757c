"""Every command that the documentation shows is typed here, as it stands.

Blocks of code are run against a real `local` worker (tests/helpers/doc_world.py says what stands
for what). What needs a host of another kind is typed all the same, with a host file that leads
nowhere: it must end where it would connect (3), after its words, options and files were read.
`make` targets must exist; commands within sentences must be commands, with options they have.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import click
import pytest

from runner.cli import commands as tree
from runner.grammar.words import RESERVED
from runner.schedule.definition import OWN_KEYS
from tests.helpers.doc_pages import ROOT, Command, mentions, name_of, pages, typed
from tests.helpers.doc_world import DocWorld
from tests.helpers.local_worker import LocalWorker

PAGES = {name_of(path): path.read_text(encoding="utf-8") for path in pages()}
NO_SESSION = 3

ELSEWHERE = (
    (r"runner host (add|rekey) ", "a real sshd: test_hosts.py, test_rekey.py"),
    (r"runner (provision|down) ", "makes a worker: test_venv.py, tests/system/"),
    (r"runner (shell|ssh-config) ", "an ssh session: test_ways_in.py"),
    (r"runner (lab|tensorboard) .*host=", "goes on until Ctrl-C: test_ways_in.py"),
    (r".* gpus=[1-9]", "a GPU: test_worker_gpus.py"),
    (r".* image=\S", "an image: tests/system/test_side_by_side.py"),
    (r"runner doctor\b", "torch is tried for long: test_doctor_local.py"),
)
"""What is not run on this machine, and why; and where it is."""

OTHERWISE = ((r"runner tensorboard( port=\d+)?$", 130, "it ends with Ctrl-C"),)
"""Commands that end with another status than 0 here, and why."""


def place_of(command: Command) -> str | None:
    """Why a command cannot be run on this machine alone; None where it can."""
    return next((why for pattern, why in ELSEWHERE if re.match(pattern, command.text)), None)


def status_of(command: Command) -> int:
    """What a command ends with on this machine."""
    return next((at for pattern, at, _ in OTHERWISE if re.match(pattern, command.text)), 0)


def of_runner(page: str) -> list[Command]:
    return [each for each in typed(page, PAGES[page]) if each.words[0] == "runner"]


@pytest.fixture(scope="module")
def world(shared_worker: LocalWorker) -> Iterator[DocWorld]:
    here = os.getcwd()
    made = DocWorld(shared_worker)
    yield made
    os.chdir(here)


@pytest.mark.parametrize("page", [page for page in PAGES if of_runner(page)])
def test_commands_of_a_page_do_what_they_say(world: DocWorld, page: str) -> None:
    world.begin(page)
    wrong = []
    for command in of_runner(page):
        if place_of(command) is None:
            said, status = world.type(command), status_of(command)
        else:
            said, status = world.type_to_nowhere(command), NO_SESSION
        if said.status != status:
            wrong.append(f"{command}: {said.status}, not {status}: {said.err}")
    assert not wrong, "\n".join(wrong)


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) \?=", makefile, re.MULTILINE))
    for page, text in PAGES.items():
        for command in (*typed(page, text), *mentions(page, text)):
            if command.words[0] == "make":
                names = {word for word in command.words[1:] if "=" not in word}
                given = {word.partition("=")[0] for word in command.words[1:] if "=" in word}
                assert names <= targets and given <= variables, str(command)


def test_figures_name_programs_that_exist() -> None:
    text = PAGES["docs/figures.md"]
    named = set(re.findall(r"benchmarks/\w+\.py", text))
    assert len(named) > 10 and not [name for name in named if not (ROOT / name).is_file()]
    for title in re.findall(r"^##+ (.+)$", text, re.MULTILINE):
        assert "`" in title, f"{title}: which command makes these figures?"


@pytest.mark.parametrize("page", PAGES)
def test_commands_within_sentences_exist(page: str) -> None:
    wrong = []
    for command in mentions(page, PAGES[page]):
        if command.words[0] == "runner" and (problem := problem_of(command)):
            wrong.append(f"{command}: {problem}")
    assert not wrong, "\n".join(wrong)


def problem_of(mention: Command) -> str | None:
    """What is wrong with a command that leaves things out; None for nothing."""
    words = list(mention.words[1:])
    words = words[: words.index("--")] if "--" in words else words
    found: click.Command = tree
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        if words[0] not in found.commands:
            return f"{words[0]} is no command"
        found = found.commands[words.pop(0)]
    options = {name for each in found.params for name in (*each.opts, *each.secondary_opts)}
    options |= {"--help", "--version"}
    metavars = " ".join(str(each.metavar) for each in found.params)
    takes_any = "key=value" in metavars
    known = {*re.findall(r"(\w+)=", metavars), *(RESERVED if takes_any else ())}
    known |= set(OWN_KEYS) if "CRON" in metavars else set()
    for word in words:
        if word.startswith("-") and word.partition("=")[0] not in options:
            return f"{word} is no option of it"
        key, sign, _ = word.partition("=")
        if sign and re.fullmatch(r"[a-z_.]+", key) and not takes_any and key not in known:
            return f"{key}= is no word of it"
    return None


def test_everything_that_is_left_out_has_a_command() -> None:
    """A pattern that no command of the pages meets any more is to go."""
    commands = [command.text for page in PAGES for command in of_runner(page)]
    for pattern, *_ in (*ELSEWHERE, *OTHERWISE):
        assert any(re.match(pattern, text) for text in commands), pattern


def test_a_page_is_read_as_it_is_typed() -> None:
    text = """\
```
$ runner submit host=gpu1 job=dqn   # a comment
dqn-7k3fa
$ cd x && runner tail dqn-7k3fa | head
step 1
```
```sh
runner pull dqn-7k3fa \\
    --what last >pulled.txt
# runner ps
```
```toml
runner = "x"
```
`runner why RUN`
"""
    found = typed("p", text)
    assert [each.text for each in found] == [
        "runner submit host=gpu1 job=dqn",
        "runner tail dqn-7k3fa",
        "runner pull dqn-7k3fa --what last",
    ]
    assert found[0].answer == ("dqn-7k3fa",) and found[1].answer == ("step 1",)
    assert [each.text for each in mentions("p", text)] == ["runner why RUN"]
