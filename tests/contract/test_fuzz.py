"""Any bytes, anywhere a person or a job may put them, come through as they are.

Words of a command, parameters, variables, names and contents of files either way, and the log: all
random, from fixed seeds that stand in the name of each case; a run with them ends done.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.local_worker import LocalWorker
from tests.helpers.odd import (
    ODD,
    SAYS_ENV,
    SAYS_PARAMS,
    SAYS_TREE,
    SAYS_WORDS,
    TALKS,
    TOLD_NAMES,
    WRITES,
    lay,
    odd_word,
    tree_of,
)
from tests.helpers.typed import Said, typed

SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 20))]
WORDS = 60_000


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalWorker]:
    with pytest.MonkeyPatch.context() as patch:
        made = LocalWorker(patch.setenv)
        try:
            made.host(slots=4)
            made.file("agents/j.toml", 'command = ["python", "-c", ""]\npass = "file"\n')
            patch.chdir(made.project)
            yield made
        finally:
            made.close()


def done(worker: LocalWorker, said: Said) -> str:
    """The run that was submitted, once it has ended done."""
    assert said.status == 0, said
    run = said.text.strip()
    ended = typed("wait", run)
    assert ended.status == 0, (ended, worker.log(run)[-500:])
    return run


def log_of(run: str) -> bytes:
    """The log by way of tail."""
    said = typed("tail", run)
    assert said.status == 0, said
    return said.out


@pytest.mark.parametrize("seed", SEEDS)
def test_words_of_a_command(worker: LocalWorker, seed: int) -> None:
    draw = random.Random(seed)
    words = [odd_word(draw) for _ in range(50)]
    line = ("python", "-c", SAYS_WORDS, *map(os.fsdecode, words))
    run = done(worker, typed("submit", "--", *line))
    assert log_of(run) == b"\0".join(words)


def test_very_many_words(worker: LocalWorker) -> None:
    words = [str(number) for number in range(WORDS)]
    run = done(worker, typed("submit", "--", "python", "-c", SAYS_WORDS, *words))
    assert log_of(run).split(b"\0") == [word.encode() for word in words]


def test_words_that_other_programs_take_for_their_own(worker: LocalWorker) -> None:
    """And the run after it is not hurt."""
    run = done(worker, typed("submit", "--", "python", "-c", SAYS_WORDS, *TOLD_NAMES))
    assert log_of(run) == "\0".join(TOLD_NAMES).encode()
    after = done(worker, typed("submit", "--", "echo", "fine"))
    assert log_of(after) == b"fine\n"


def odd_value(draw: random.Random, depth: int = 0) -> Any:
    """Any JSON value."""
    kinds = 8 if depth < 4 else 6
    kind = draw.randrange(kinds)
    if kind == 6:
        return [odd_value(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 7:
        return {odd_text(draw): odd_value(draw, depth + 1) for _ in range(draw.randrange(4))}
    plain = (None, draw.random() < 0.5, draw.randrange(-(2**53), 2**53), draw.uniform(-1e9, 1e9))
    return (*plain, odd_text(draw), draw.choice((1e-300, -0.0, 1e300, 0.1)))[kind]


def odd_text(draw: random.Random) -> str:
    some = "=,:{}[]\"'\\%#;$`\n\t\x1b\u202e\u2028\U0001f600ab c"
    return "".join(draw.choice(some) for _ in range(draw.randrange(20)))


@pytest.mark.parametrize("seed", SEEDS)
def test_values_of_parameters(worker: LocalWorker, seed: int) -> None:
    draw = random.Random(seed)
    values = {f"p{number}": odd_value(draw) for number in range(12)}
    texts = {f"t{number}": odd_text(draw) for number in range(4)}
    job = {**dict.fromkeys(texts, "")}
    lines = [f"{key} = {json.dumps(value)}" for key, value in job.items()]
    kinds = {key: value for key, value in values.items() if _is_parameter(value)}
    lines += [f"{key} = {_default(value)}" for key, value in kinds.items()]
    command = f'command = ["python", "-c", {json.dumps(SAYS_PARAMS)}]\npass = "file"\n[params]\n'
    worker.file(f"agents/f{seed}.toml", command + "\n".join(lines) + "\n")
    words = [f"{key}:={json.dumps(value)}" for key, value in {**kinds, **texts}.items()]
    run = done(worker, typed("submit", f"job=f{seed}", *words))
    assert json.loads(log_of(run)) == {**kinds, **texts}


def _is_parameter(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str, list)) and value is not None


def _default(value: Any) -> str:
    """A default of the same type, as TOML."""
    if isinstance(value, bool):
        return "false"
    if isinstance(value, (int, float)):
        return "0" if isinstance(value, int) else "0.0"
    return '""' if isinstance(value, str) else "[]"


@pytest.mark.parametrize("seed", SEEDS)
def test_values_of_the_environment(worker: LocalWorker, seed: int) -> None:
    draw = random.Random(seed)
    values = {f"FUZZ_{number:02}": odd_word(draw) for number in range(20)}
    words = [f"env.{name}={os.fsdecode(value)}" for name, value in values.items()]
    run = done(worker, typed("submit", *words, "--", "python", "-c", SAYS_ENV))
    said = dict(item.split(b"=", 1) for item in log_of(run).split(b"\0")[:-1])
    assert {name.decode(): value for name, value in said.items()} == values


@pytest.mark.parametrize("seed", SEEDS)
def test_names_of_runs_are_taken_or_refused(worker: LocalWorker, seed: int) -> None:
    """By a rule, before anything is sent, in a line."""
    draw = random.Random(seed)
    for _ in range(12):
        text = os.fsdecode(odd_word(draw))
        for key in ("name", "tags", "after", "image", "host", "gpus", text):
            said = typed("submit", f"{key}={text}", "--", "true")
            assert said.status in (0, 2, 6), (text, said)
            assert said.status == 0 or said.err, text
            assert said.err.isprintable() or "\n" in said.err
            shown = said.err.replace("\n", "")
            assert all(char.isprintable() for char in shown), said.err
            assert len(said.err) < 5000


@pytest.mark.parametrize("seed", SEEDS)
def test_files_of_the_project(worker: LocalWorker, seed: int) -> None:
    top = worker.project / f"tree-{seed}"
    lay(top, random.Random(seed))
    inside = os.fsencode(top.name) + b"/"
    expected = {(inside + bytes.fromhex(key)).hex(): what for key, what in tree_of(top).items()}
    run = done(worker, typed("submit", "--", "python", "-c", SAYS_TREE))
    told = json.loads(log_of(run)).items()
    there = {key: what for key, what in told if bytes.fromhex(key).startswith(inside)}
    assert there == expected
    assert typed("submit", "--", "true").status == 0, "unchanged, once more"


@pytest.mark.parametrize("seed", SEEDS)
def test_files_that_a_job_makes(worker: LocalWorker, seed: int, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    words = (f"env.FUZZ_HELP={tmp_path}", "--", "python", "-c", WRITES, str(seed))
    run = done(worker, typed("submit", *words))
    said = typed("pull", run)
    assert said.status == 0, said
    results = worker.project / "results" / run
    for kind, place, folder in (
        ("checkpoints", worker.workspace / "checkpoints" / run, "step-1"),
        ("logs", worker.workspace / "logs" / run, "more"),
        ("work", worker.workspace / "code" / run, "out"),
    ):
        there = tree_of(place / folder)
        assert there, kind
        assert tree_of(results / kind / folder) == there, kind
    again = typed("pull", run)
    assert again.status == 0
    assert tree_of(results / "work" / "out") == tree_of(worker.workspace / "code" / run / "out")


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_of_a_log(worker: LocalWorker, seed: int) -> None:
    """Followed while it is written, and read from anywhere once it is."""
    draw = random.Random(seed)
    submitted = typed("submit", "--", "python", "-c", TALKS, str(seed))
    run = submitted.text.strip()
    followed = typed("tail", run)
    assert followed.status == 0, followed.err
    log = worker.log(run)
    assert followed.out == log
    for _ in range(5):
        start = draw.randrange(len(log) + 1)
        assert typed("tail", run, "--from", str(start), "--no-follow").out == log[start:]
    assert done(worker, submitted) == run
    assert typed("pull", run).status == 0
    assert (worker.project / "results" / run / "logs/rank-0.log").read_bytes() == log
