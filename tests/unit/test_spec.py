from __future__ import annotations

import dataclasses
import random
import shlex

import pytest

from runner.errors import SpecError
from runner.model import Host, JobSpec
from runner.spec import SubmitRequest, parse_keys, parse_submit, resolve
from runner.usage import split_argv

LOCAL = Host("local", runtime="local")
JOB = JobSpec(
    name="dqn",
    command=("python", "agents/dqn.py"),
    entry="dqn.py",
    metric="eval/return",
    params={"lr": 1e-3, "steps": 50_000, "env": "CartPole-v1", "double_q": True, "name": "x"},
)


def refused(*words: str, command: list[str] | None = None) -> SpecError:
    with pytest.raises(SpecError) as caught:
        request = parse_submit(words, command)
        resolve(request, JOB if request.job else None, LOCAL)
    return caught.value


def plan(*words: str) -> dict[str, object]:
    return dataclasses.asdict(resolve(parse_submit(["job=dqn", *words], None), JOB, LOCAL))


def test_argv_is_cut_at_the_first_dashes() -> None:
    assert split_argv(["submit", "a=1", "--", "x", "--", "--help"]) == (
        ["submit", "a=1"],
        ["x", "--", "--help"],
    )
    assert split_argv(["ps"]) == (["ps"], None)
    assert split_argv(["submit", "--"]) == (["submit"], [])


def test_words_become_a_request() -> None:
    words = ["host=gpu1", "job=dqn", "lr=1e-5", "nproc=2", "gpus=auto", "launcher=torchrun"]
    words += ["grace=1m", "name=base", "tags=a,b,a", "env.TOKEN=s=3", "image=torch-2.6"]
    request = parse_submit(words, None)
    assert (request.host, request.job, request.nproc, request.gpus) == ("gpu1", "dqn", 2, "auto")
    assert (request.launcher, request.grace_s, request.name) == ("torchrun", 60.0, "base")
    assert (request.tags, request.env, request.image) == (("a", "b"), {"TOKEN": "s=3"}, "torch-2.6")
    assert request.words == tuple(words)


def test_without_a_host_it_is_local() -> None:
    assert parse_submit(["job=dqn"], None).host == "local"


def test_values_of_variables_stay_out_of_repr_and_of_shown_words() -> None:
    request = parse_submit(["env.TOKEN=s3cr3t", "job=dqn"], None)
    planned = resolve(request, JOB, LOCAL)
    assert "s3cr3t" not in repr(request) + repr(planned) + " ".join(request.shown_words)
    assert planned.env == {"TOKEN": "s3cr3t"}


def test_a_command_is_kept_as_it_was_typed() -> None:
    command = ["python3", "-c", "print(1)", "a b", "*", ";x", "", "--help", "host=z", "\udcff"]
    request = parse_submit(["host=gpu1"], command)
    assert request.command == tuple(command)
    assert resolve(request, None, LOCAL).argv == tuple(command)


def test_parameters_are_typed_and_the_rest_keeps_its_default() -> None:
    params = plan("lr=1e-5", "steps=1e6", "double_q=False", "env=a=b=c", "param.name=y", "name=z")
    assert params["params"] == {
        "lr": 1e-5,
        "steps": 1_000_000,
        "env": "a=b=c",
        "double_q": False,
        "name": "y",
    }
    assert params["name"] == "z"
    assert params["argv"] == ("python", "agents/dqn.py")


def test_a_mistyped_parameter_is_refused_with_the_near_name() -> None:
    error = refused("job=dqn", "learnig_rate=1e-3")
    assert error.message == "learnig_rate is not a parameter of dqn (did you mean lr?)"
    assert error.advice == ("all of them: runner jobs dqn", "nothing was sent")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["job=dqn", "lr=1", "lr=2"], "lr is given twice"),
        (["job=dqn", "lr=1", "param.lr=2"], "lr is given twice"),
        (["job=dqn", "job=ppo"], "job is given twice"),
        (["job=dqn", "env.A=1", "env.A=2"], "env.A is given twice"),
        (["job=dqn", "dqn"], "dqn is not key=value (did you mean job=dqn?)"),
        (["job"], "job needs a value: job=VALUE"),
        (["job=dqn", "=5"], "'' is not a parameter's name"),
        (["job=dqn", "a b=5"], "'a b' is not a parameter's name"),
        (["job=a/b"], "job is 'a/b'; a name has"),
        (["job=dqn", "host=-oProxyCommand=x"], "host is '-oProxyCommand=x'; a name has"),
        (["job=dqn", "name=a b"], "name is 'a b'; a name has"),
        (["job=dqn", "tags=a,,b"], "tag '' is not a name"),
        (["job=dqn", "nproc=0"], "nproc is '0'; it must be a whole number from 1 to 1024"),
        (["job=dqn", "nproc=1025"], "nproc is '1025'; it must be a whole number from 1 to 1024"),
        (["job=dqn", "nproc=99999999999"], "it must be a whole number from 1 to 1024"),
        (["job=dqn", "env.HOME="], "env.HOME is set by the runner itself"),
        (["job=dqn", "nproc=2.5"], "nproc is '2.5'"),
        (["job=dqn", "gpus=-1"], "gpus is '-1'; it must be auto or a whole number"),
        (["job=dqn", "launcher=torchrn"], "launcher is 'torchrn'; it must be auto, direct or"),
        (["job=dqn", "launcher=mpirun"], "launcher mpirun is not in this version yet"),
        (["job=dqn", "launcher=direct", "nproc=2"], "launcher=direct starts one rank, not 2"),
        (["job=dqn", "grace=25"], "grace is '25'; a bare number has no unit"),
        (["job:=1"], "job takes job=VALUE, not JSON"),
        (["job=dqn", "env.1A=x"], "env.1A is no name for an environment variable"),
        (["job=dqn", "env.RUNNER_RUN=x"], "env.RUNNER_RUN is set by the runner itself"),
        (["job=dqn", "env.RANK=0"], "env.RANK is set by the runner itself"),
        (["job=dqn", "env.MASTER_PORT=0"], "env.MASTER_PORT is set by the runner itself"),
        (["job=dqn", "env.CUDA_VISIBLE_DEVICES="], "env.CUDA_VISIBLE_DEVICES is set by"),
        (["job=dqn,ppo"], "job is 'dqn,ppo'; sweeps are not in this version yet"),
        (["job=dqn", "steps=1..5"], "a..b means a sweep, which is not in this version yet"),
        (["job=dqn", "steps=1,5"], "a comma means a sweep, which is not in this version yet"),
        (["job=dqn", "image=torch-2.6"], "local runs this machine's own Python; it has no images"),
        ([], "submit needs job=JOB, or -- CMD at the end"),
    ],
)
def test_wrong_words_are_refused_by_name(words: list[str], says: str) -> None:
    error = refused(*words)
    assert error.message.startswith(says) or says in error.message
    assert error.status == 2
    assert error.advice[-1] == "nothing was sent"


@pytest.mark.parametrize(
    "name",
    [
        *("RUNNER_GRACE_S", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        *("MASTER_ADDR", "TORCHELASTIC_RUN_ID", "CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED"),
    ],
)
def test_variables_the_launcher_sets_cannot_be_given(name: str) -> None:
    assert "is set by the runner itself" in refused("job=dqn", f"env.{name}=x").message


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MY_RANK", "RANKS", "_X"])
def test_other_variables_can(name: str) -> None:
    assert parse_submit([f"env.{name}=x"], ["true"]).env == {name: "x"}


@pytest.mark.parametrize(
    "word",
    [
        "time_limit=1h",
        "restarts=3",
        "priority=1",
        "after=x",
        "nodes=2",
        "secret.A=x",
        "each.seed=1",
    ],
)
def test_keys_of_later_versions_are_refused_by_name(word: str) -> None:
    error = refused("job=dqn", word)
    assert error.message == word.split("=")[0] + " is not in this version yet"


def test_a_command_takes_reserved_keys_only() -> None:
    error = refused("lr=1", "host=gpu1", command=["python", "train.py"])
    assert error.message == "lr is not a key of submit"
    assert "options of the program go after its name" in error.advice


def test_job_and_command_together_are_refused() -> None:
    assert "two ways" in refused("job=dqn", command=["true"]).message


@pytest.mark.parametrize("command", [[], [""], ["", "x"]])
def test_an_empty_command_is_refused(command: list[str]) -> None:
    assert refused(command=command).message == "there is no command after --"


@pytest.mark.parametrize("word", ["a | b", "echo $HOME", "python train.py", "x;y", "a&&b", "ls *"])
def test_a_line_for_a_shell_is_refused_with_the_line_to_use(word: str) -> None:
    error = refused("host=gpu1", "env.TOKEN=s3cr3t", command=[word])
    assert shlex.split(error.advice[0]) == [
        *("runner", "submit", "host=gpu1", "env.TOKEN=…", "--"),
        *("bash", "-o", "pipefail", "-c", word),
    ]


def test_a_program_with_an_odd_name_is_taken() -> None:
    request = parse_submit([], ["my train.sh"], is_program=lambda word: word == "my train.sh")
    assert request.command == ("my train.sh",)


def test_several_words_may_hold_shell_signs() -> None:
    assert parse_submit([], ["echo", "a | b"]).command == ("echo", "a | b")


@pytest.mark.parametrize(("words", "launcher"), [((), "direct"), (("nproc=2",), "torchrun")])
def test_the_launcher_follows_the_ranks(words: tuple[str, ...], launcher: str) -> None:
    assert plan(*words)["launcher"] == launcher


def test_words_win_over_the_job_and_the_job_over_the_defaults() -> None:
    job = dataclasses.replace(JOB, nproc=2, gpus=0, grace_s=5.0)
    planned = resolve(parse_submit(["job=dqn", "grace=1m"], None), job, LOCAL)
    assert (planned.nproc, planned.gpus, planned.grace_s) == (2, 0, 60.0)
    assert (planned.launcher, planned.metric) == ("torchrun", "eval/return")
    assert resolve(parse_submit([], ["true"]), None, LOCAL).grace_s == 25.0


@pytest.mark.parametrize(("gpus", "given"), [("none", 1), ((0, 1), 3)])
def test_gpus_the_host_never_has_are_refused(gpus: str | tuple[int, ...], given: int) -> None:
    host = Host("gpu1", ssh="gpu1", gpus=gpus)
    with pytest.raises(SpecError, match=f"gpus is {given}; gpu1 gives"):
        resolve(parse_submit([f"gpus={given}", "job=dqn"], None), JOB, host)


def test_keys_of_other_commands() -> None:
    assert parse_keys(["host=gpu1"], ("host",)) == {"host": "gpu1"}
    for words in (["gpu1"], ["hots=gpu1"], ["host=a", "host=b"], ["host=a b"], ["host="]):
        with pytest.raises(SpecError):
            parse_keys(words, ("host",))


def random_word(rng: random.Random) -> str:
    keys = ["job", "lr", "steps", "env", "double_q", "env.A", "param.name", "secret.x", "gpus"]
    keys += ["nproc", "grace", "tags", "name", "host", "", "é", "a\nb", "image", "launcher"]
    values = [
        "",
        "0",
        "1e5",
        "1..3",
        "a,b",
        "true",
        "[1]",
        '"x"',
        "{",
        "\x1b[2J",
        "\udcff",
        "-",
        "auto",
    ]
    values += ["dqn", "2", "90s", "NaN", "1e9999", "'", "$(x)", "日本", "torchrun", "x" * 300]
    return rng.choice(keys) + rng.choice(["=", "=", "=", ":=", "", "=="]) + rng.choice(values)


def test_any_words_give_a_plan_or_one_clear_error() -> None:
    rng = random.Random(7)
    plans = 0
    for _ in range(4000):
        words = [random_word(rng) for _ in range(rng.randint(0, 4))]
        words += ["job=dqn"] if rng.random() < 0.7 else []
        command = [rng.choice(["true", "", "a b", "\udcff"])] if rng.random() < 0.2 else None
        try:
            request = parse_submit(words, command)
            planned = resolve(request, JOB if request.job else None, LOCAL)
        except SpecError as error:
            lines = [error.message, *error.advice]
            assert error.message
            assert not any("\n" in line or "\x1b" in line for line in lines), (words, lines)
        else:
            assert isinstance(request, SubmitRequest)
            assert set(planned.params) == (set(JOB.params) if request.job else set())
            plans += 1
    assert plans > 100
