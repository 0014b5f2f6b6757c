"""Odd bytes through everything there is: a shell, ssh, a jump host, `docker exec`, and back."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.odd import (
    ODD,
    SAYS_ENV,
    SAYS_TREE,
    SAYS_WORDS,
    TALKS,
    WRITES,
    lay,
    odd_word,
    tree_of,
)
from tests.helpers.pinned import pin_base
from tests.rig.engine import RigEngine
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator

HOST = 'ssh = "{alias}"\nimage = "cpu"\nworkspace = "~/odd  \'bytes\' $HOME"\nslots = 3\n'
SEED = 11


@pytest.fixture(scope="module")
def far(
    make_operator: Callable[[], Operator], jump_host: RigHost, docker: RigEngine
) -> Iterator[Operator]:
    """An operator with host `far`, whose workspace has blanks and quotes in its name."""
    operator = make_operator()
    done(operator, "init")
    pin_base(operator.project, docker)
    (operator.project / "hosts").mkdir(exist_ok=True)
    (operator.project / "hosts" / "far.toml").write_text(HOST.format(alias=jump_host.alias))
    done(operator, "provision", "host=far", limit_s=400)
    yield operator
    docker.remove_containers()


def done(operator: Operator, *words: str, limit_s: float = 120) -> bytes:
    """`runner WORDS`, which must go well; its stdout."""
    said = operator.runner(*words, limit_s=limit_s)
    assert said.returncode == 0, (words[:3], said.stdout[-500:], said.stderr[-500:])
    return bytes(said.stdout)


def submitted(operator: Operator, *words: str) -> str:
    run = done(operator, "submit", "host=far", *words).decode().strip()
    done(operator, "wait", run)
    return run


def test_words_and_variables(far: Operator) -> None:
    draw = random.Random(SEED)
    words = [odd_word(draw) for _ in range(60)]
    run = submitted(far, "--", "python", "-c", SAYS_WORDS, *map(os.fsdecode, words))
    assert done(far, "tail", run) == b"\0".join(words)
    values = {f"FUZZ_{number:02}": odd_word(draw) for number in range(20)}
    given = [f"env.{name}={os.fsdecode(value)}" for name, value in values.items()]
    run = submitted(far, *given, "--", "python", "-c", SAYS_ENV)
    told = dict(item.split(b"=", 1) for item in done(far, "tail", run).split(b"\0")[:-1])
    assert {name.decode(): value for name, value in told.items()} == values


def test_files_up_and_down(far: Operator) -> None:
    top = far.project / "tree"
    lay(top, random.Random(SEED))
    (far.project / "odd.py").write_text(ODD)
    run = submitted(far, "--", "python", "-c", SAYS_TREE)
    there = json.loads(done(far, "tail", run))
    assert {key: there.get((b"tree/" + bytes.fromhex(key)).hex()) for key in tree_of(top)} == (
        tree_of(top)
    )
    run = submitted(far, "env.FUZZ_HELP=.", "--", "python", "-c", WRITES, str(SEED))
    done(far, "pull", run)
    results = far.project / "results" / run
    expected = wanted(far.home / "expected")
    assert tree_of(results / "checkpoints" / "step-1") == expected["step-1"]
    assert tree_of(results / "logs" / "more") == expected["more"]
    assert tree_of(results / "work" / "out") == expected["out"]


def wanted(top: Path) -> dict[str, dict[str, str]]:
    """What the job writes, written here."""
    space: dict[str, Callable[[bytes, random.Random], None]] = {}
    exec(ODD, space)
    draw = random.Random(SEED)
    found = {}
    for name in ("step-1", "more", "out"):
        (top / name).mkdir(parents=True)
        space["lay_files"](os.fsencode(top / name), draw)
        found[name] = tree_of(top / name)
    return found


def test_bytes_of_a_log(far: Operator) -> None:
    run = done(far, "submit", "host=far", "--", "python", "-c", TALKS, str(SEED)).decode().strip()
    followed = done(far, "tail", run)
    done(far, "wait", run)
    assert done(far, "tail", run, "--from", "1000", "--no-follow") == followed[1000:]
    done(far, "pull", run)
    assert (far.project / "results" / run / "logs/rank-0.log").read_bytes() == followed
