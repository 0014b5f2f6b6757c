from __future__ import annotations

import re
from typing import Any

import pytest

from runner.errors import SpecError
from runner.grammar.recipes import parse_job, parse_requirements


def parse(**table: Any) -> Any:
    return parse_job("dqn", table, where="agents/dqn.toml")


def test_an_entry_starts_python_from_the_root() -> None:
    job = parse(
        entry="dqn.py", nproc=2, grace="1m", metric="reward", params={"lr": 1e-3, "on": True}
    )
    assert job.command == ("python", "agents/dqn.py")
    assert (job.entry, job.nproc, job.grace_s, job.metric) == ("dqn.py", 2, 60.0, "reward")
    assert job.params == {"lr": 1e-3, "on": True}


def test_a_command_is_taken_as_it_is() -> None:
    job = parse(command=["python", "train.py", ""], **{"pass": "file"})
    assert job.command == ("python", "train.py", "")
    assert (job.entry, job.gpus, job.launcher, job.grace_s) == (None, "auto", "auto", 25.0)


def test_limits_are_read() -> None:
    job = parse(
        entry="dqn.py",
        time_limit="12h",
        restarts=0,
        stuck_after="30m",
        on_stuck="restart",
        log_limit="1g",
        keep=3,
        keep_best=1,
        metric="eval/return",
        resumable=["lr"],
        params={"lr": 1e-3},
    )
    assert (job.time_limit_s, job.restarts, job.stuck_after_s) == (43200.0, 0, 1800.0)
    assert (job.on_stuck, job.log_limit_bytes) == ("restart", 10**9)
    assert (job.keep, job.keep_best, job.resumable) == (3, 1, ("lr",))


def test_without_limits_there_are_none_but_restarts() -> None:
    job = parse(entry="dqn.py")
    assert (job.time_limit_s, job.restarts, job.stuck_after_s) == (None, 3, None)
    assert (job.on_stuck, job.log_limit_bytes) == ("tell", None)
    assert (job.keep, job.keep_best, job.resumable) == (None, None, ())


def test_parameters_may_be_words() -> None:
    job = parse(
        command=["python", "train.py"],
        params={"lr": 1e-3, "cuda": True, "env": "", "layers": [64]},
        flags={"cuda": "--cuda/--no-cuda", "env": 1, "layers": "--layer*"},
        **{"pass": "flags"},
    )
    assert job.how == "flags"
    assert job.flags == {"cuda": "--cuda/--no-cuda", "env": "1", "layers": "--layer*"}
    assert parse(entry="a.py", params={"model.lr": 1.0}, **{"pass": "hydra"}).how == "hydra"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"params": {"cuda": True}}, 'params.cuda is true or false; .* "--cuda/--no-cuda"'),
        ({"params": {"t": {"a": 1}}}, "params.t is a table"),
        ({"params": {"env": "a"}, "flags": {"envs": "--e"}}, r"flags.envs .*mean 'env'"),
        ({"params": {"lr": 1}, "flags": {"lr": "lr"}}, "flags.lr is 'lr'; it must be as '--name'"),
        ({"params": {"lr": 1}, "flags": {"lr": True}}, "flags.lr is True"),
        ({"params": {"lr": 1}, "flags": {"lr": "--a/--b"}}, "is a pair of words"),
        ({"params": {"lr": 1}, "flags": {"lr": "--a*"}}, "is no list"),
        ({"params": {"lr": 1}, "flags": {"lr": "--a?"}}, "never empty"),
        ({"pass": "file", "params": {"lr": 1}, "flags": {"lr": "--lr"}}, "of no use"),
        ({"pass": "none", "params": {"lr": 1}}, "would reach nobody"),
        ({"pass": "shell"}, "must be one of file, flags, hydra, none"),
    ],
)
def test_parameters_that_cannot_be_said_are_refused(table: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(**{"entry": "a.py", "pass": "flags", **table})
    assert re.search(says, "\n".join([caught.value.message, *caught.value.advice]))


def test_packages() -> None:
    job = parse(entry="a.py", setup={"requirements": ["wandb", "tyro  >= 1"]})
    assert (job.requirements, job.requirements_file) == (("wandb", "tyro >= 1"), None)
    job = parse(entry="a.py", setup={"requirements": "requirements.txt"})
    assert (job.requirements, job.requirements_file) == ((), "requirements.txt")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (["-r x"], "has '-r x', which is an option of pip"),
        (["x @ https://u:p@h/x"], "…@h/x', which has a name or password"),
        (["a", "a==1"], "has a twice"),
        (1, "must be a list of packages"),
        ("../x", "must be a file of the project"),
    ],
)
def test_packages_that_are_refused(value: Any, says: str) -> None:
    with pytest.raises(SpecError, match=re.escape(says)):
        parse(entry="a.py", setup={"requirements": value})


def test_every_line_of_a_file_is_looked_at() -> None:
    assert parse_requirements("wandb\ntyro\n", where="r.txt") == ("wandb", "tyro")
    with pytest.raises(SpecError) as caught:
        parse_requirements("wandb\n-e .\n--pre\n", where="r.txt")
    assert caught.value.message.startswith("r.txt:2: '-e .' is an option")
    assert caught.value.advice[0].startswith("r.txt:3: ")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "entry is missing"),
        ({"entry": "a.py", "command": ["b"]}, "command and entry are two ways"),
        ({"entry": "../a.py"}, "entry is '../a.py'; it must be a file beside this one"),
        ({"entry": "/a.py"}, "it must be a file beside this one"),
        ({"command": "python x"}, "command is 'python x'; it must be a list of texts"),
        ({"command": []}, "it must be a list that begins with a program"),
        ({"entry": "a.py", "nproc": 0}, "nproc is 0; it must be at least 1"),
        ({"entry": "a.py", "nproc": 1025}, "nproc is 1025; it must be at most 1024"),
        ({"entry": "a.py", "gpus": True}, "gpus is True; it must be 'auto' or a whole number"),
        ({"entry": "a.py", "gpus": -1}, "gpus is -1"),
        (
            {"entry": "a.py", "launcher": "mpiexec"},
            "launcher is 'mpiexec'; it must be one of auto, direct, torchrun, mpirun",
        ),
        (
            {"entry": "a.py", "launcher": "direct", "nproc": 2},
            "launcher is 'direct', which starts one",
        ),
        ({"entry": "a.py", "grace": 25}, "grace is 25; it must be a duration such as '25s'"),
        ({"entry": "a.py", "metric": ""}, "metric is ''; it must be a text"),
        ({"entry": "a.py", "params": 3}, "params is 3; it must be a table"),
        ({"entry": "a.py", "params": {"a b": 1}}, "params.'a b' is no name for a parameter"),
        ({"entry": "a.py", "params": {"x": float("nan")}}, "params.x is nan"),
        ({"entry": "a.py", "params": {"x": [float("inf")]}}, "params.x is [inf]"),
        ({"entry": "a.py", "params": {"x": object()}}, "it must be what JSON can hold"),
        ({"entry": "a.py", "time_limit": 12}, "time_limit is 12; it must be a duration"),
        ({"entry": "a.py", "time_limit": "12"}, "time_limit is '12'; a bare number has no unit"),
        ({"entry": "a.py", "time_limit": "0h"}, "time_limit is '0h'; it must be longer than no"),
        ({"entry": "a.py", "stuck_after": "0s"}, "stuck_after is '0s'; it must be longer"),
        ({"entry": "a.py", "restarts": -1}, "restarts is -1; it must be at least 0"),
        ({"entry": "a.py", "restarts": 1001}, "restarts is 1001; it must be at most 1000"),
        ({"entry": "a.py", "restarts": True}, "restarts is True; it must be a whole number"),
        ({"entry": "a.py", "on_stuck": "stp"}, "on_stuck is 'stp'; it must be one of tell, rest"),
        ({"entry": "a.py", "log_limit": "0g"}, "log_limit is '0g'; it must be more than nothing"),
        ({"entry": "a.py", "log_limit": 5}, "log_limit is 5; it must be a size"),
        ({"entry": "a.py", "keep": 0}, "keep is 0; it must be at least 1"),
        ({"entry": "a.py", "keep_best": 1, "keep": 1}, "keep_best needs metric"),
        ({"entry": "a.py", "keep_best": 1, "metric": "r"}, "keep_best needs keep"),
        ({"entry": "a.py", "resumable": "lr"}, "resumable is 'lr'; it must be a list of"),
        ({"entry": "a.py", "resumable": [1]}, "resumable is [1]; it must be a list of"),
        (
            {"entry": "a.py", "resumable": ["stps"], "params": {"steps": 1}},
            "resumable has 'stps', which is not in [params] (did you mean 'steps'?)",
        ),
        ({"entry": "a.py", "time_limits": "1h"}, "time_limits is not known here (did you mean"),
        ({"entry": "a.py", "nprocs": 2}, "nprocs is not known here (did you mean 'nproc'?)"),
    ],
)
def test_a_wrong_recipe_is_refused_with_the_place(table: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(**table)
    assert caught.value.message.startswith("agents/dqn.toml: ")
    assert says in caught.value.message
