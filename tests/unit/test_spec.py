from __future__ import annotations

import dataclasses
import random
import shlex

import pytest

from runner.errors import SpecError
from runner.grammar.sweeps import Member, filled
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
    assert (request.tags, request.env) == (("a", "b"), {"TOKEN": "s=3"})
    assert request.images == ("torch-2.6",)
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
        (["job=dqn", "launcher=torchrn"], "launcher is 'torchrn'; it must be auto, direct,"),
        (["job=dqn", "launcher=direct", "nproc=2"], "launcher=direct starts one rank, not 2"),
        (["job=dqn", "grace=25"], "grace is '25'; a bare number has no unit"),
        (["job:=1"], "job takes job=VALUE, not JSON"),
        (["job=dqn", "env.1A=x"], "env.1A is no name for an environment variable"),
        (["job=dqn", "env.RUNNER_RUN=x"], "env.RUNNER_RUN is set by the runner itself"),
        (["job=dqn", "env.RANK=0"], "env.RANK is set by the runner itself"),
        (["job=dqn", "env.MASTER_PORT=0"], "env.MASTER_PORT is set by the runner itself"),
        (["job=dqn", "env.CUDA_VISIBLE_DEVICES="], "env.CUDA_VISIBLE_DEVICES is set by"),
        (["job=dqn,ppo"], "job is 'dqn,ppo'; a sweep has one job"),
        (["job=dqn", "host=a,b"], "host is 'a,b'; a sweep has one host"),
        (["job=dqn", "steps=5..1"], "steps is '5..1'; a..b counts up: 1..5"),
        (["job=dqn", "steps=1,,5"], "steps is '1,,5'; a value between its commas is empty"),
        (["job=dqn", "steps=1,x"], "steps is 'x'; it must be a whole number"),
        (["job=dqn", "steps=1,2,1e0"], "steps is '1,2,1e0'; 1 is there twice"),
        (["job=dqn", "lr=0.1..0.5"], "lr is '0.1..0.5'; a..b counts whole numbers"),
        (["job=dqn", "lr=1..5,0.5,1e400"], "lr is '1e400'; it must be a number that 64 bits"),
        (["job=dqn", "steps=1..100001"], "this is a sweep of 100,001 runs; at most 100,000"),
        (["job=dqn", "steps=1..99999999999999999"], "runs; at most 100,000"),
        (["job=dqn", "steps=1..1001"], "a sweep of 1,001 runs; more than 1,000 need --yes"),
        (["job=dqn", "steps=1..100", "lr=1..11"], "a sweep of 1,100 runs; more than 1,000"),
        (["job=dqn", "each.seed=1..5"], "each.seed fills in a command after --; with job=dqn"),
        (["job=dqn", "time_limit=12"], "time_limit is '12'; a bare number has no unit"),
        (["job=dqn", "time_limit=0h"], "time_limit is '0h'; it must be longer than nothing"),
        (["job=dqn", "restarts=1001"], "restarts is '1001'; it must be a whole number from 0"),
        (["job=dqn", "restarts=-1"], "restarts is '-1'; it must be a whole number from 0 to 1000"),
        (["job=dqn", "priority=-1001"], "priority is '-1001'; it must be a whole number from -10"),
        (["job=dqn", "priority=high"], "priority is 'high'; it must be a whole number"),
        (["job=dqn", "on_stuck=kill"], "on_stuck is 'kill'; it must be tell, restart or stop"),
        (["job=dqn", "on_stuck=stop"], "on_stuck=stop needs stuck_after=30m or the like"),
        (["job=dqn", "stuck_after=0m"], "stuck_after is '0m'; it must be longer than nothing"),
        (["job=dqn", "log_limit=1"], "log_limit is '1'; a bare number has no unit"),
        (["job=dqn", "log_limit=0g"], "log_limit is '0g'; it must be more than nothing"),
        (["job=dqn", "after="], "after is ''; it takes RUN or RUN,RUN"),
        (["job=dqn", "after=a,,b"], "after is 'a,,b'; it takes RUN"),
        (["job=dqn", "after=nam:x"], "after is 'nam:x'; it takes RUN"),
        (["job=dqn", "time_limt=1h"], "time_limt is not a parameter of dqn (did you mean time_l"),
        (["job=dqn", "keep=3"], "keep stands in the job's file, not in words"),
        (["job=dqn", "secrets.A=@f"], "secrets.A is not a parameter of dqn (did you mean secret.A"),
        (["job=dqn", "secrets.A"], "secrets.A is not key=value (did you mean secret.A?)"),
        (["job=dqn", "nodes=2"], "nodes is not in this version yet"),
        (["job=dqn", "image=a,,b"], "image is 'a,,b'; a name has"),
        (["job=dqn", "image=a,b,a"], "image is 'a,b,a'; a is there twice"),
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


def test_limits_of_the_words_win_over_those_of_the_job() -> None:
    job = dataclasses.replace(
        JOB, time_limit_s=60.0, stuck_after_s=5.0, on_stuck="stop", keep=3, resumable=("steps",)
    )
    typed = ["time_limit=12h", "restarts=0", "priority=-5", "log_limit=1g", "stuck_after=30m"]
    planned = resolve(parse_submit(["job=dqn", *typed], None), job, LOCAL)
    assert (planned.time_limit_s, planned.restarts, planned.priority) == (43200.0, 0, -5)
    assert (planned.log_limit_bytes, planned.stuck_after_s) == (10**9, 1800.0)
    assert (planned.on_stuck, planned.keep, planned.resumable) == ("stop", 3, ("steps",))
    plain = resolve(parse_submit(["job=dqn"], None), job, LOCAL)
    assert (plain.time_limit_s, plain.restarts, plain.priority) == (60.0, 3, 0)


def test_a_command_is_not_repeated_for_its_own_faults_unless_asked() -> None:
    assert resolve(parse_submit([], ["true"]), None, LOCAL).restarts == 0
    assert resolve(parse_submit(["restarts=2"], ["true"]), None, LOCAL).restarts == 2


def test_secrets_are_names_and_places() -> None:
    request = parse_submit(["secret.A", "secret.B=@some/file", "job=dqn"], None)
    assert request.secrets == {"A": None, "B": "some/file"}
    assert resolve(request, JOB, LOCAL).secrets == ("A", "B")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["secret.A=s3cr3t"], "secret.A takes no value here"),
        (["secret.A="], "secret.A takes no value here"),
        (["secret.A:=s3cr3t"], "secret.A takes no value here"),
        (["secret.A=@"], "secret.A=@ names no file"),
        (["secret.A", "secret.A=@f"], "secret.A is given twice"),
        (["secret.A", "env.A=s3cr3t"], "A is given as env.A and secret.A"),
        (["secret.RANK"], "secret.RANK is set by the runner itself"),
        (["secret.RUNNER_SECRETS"], "secret.RUNNER_SECRETS is set by the runner itself"),
        (["secret.1A"], "secret.1A is no name for an environment variable"),
        (["secret." + "A" * 200], "a longer name than any"),
    ],
)
def test_a_secret_is_refused_without_its_value(words: list[str], says: str) -> None:
    error = refused("job=dqn", *words)
    assert says in error.message
    assert "s3cr3t" not in repr(error) + " ".join(error.advice)
    assert error.advice[-1] == "nothing was sent"


def members(*words: str, command: list[str] | None = None) -> list[Member]:
    request = parse_submit([*words, *([] if command else ["job=dqn"])], command)
    return list(resolve(request, None if command else JOB, LOCAL).members)


def test_a_sweep_is_the_product_in_the_order_typed() -> None:
    assert [member.params for member in members("lr=1e-3,3e-4", "steps=1..2,5")] == [
        {"lr": lr, "steps": steps} for lr in (1e-3, 3e-4) for steps in (1, 2, 5)
    ]
    assert [member.params for member in members("double_q=yes,no")] == [
        {"double_q": True},
        {"double_q": False},
    ]
    assert [member.params["env"] for member in members("env=A-v1,B-v1")] == ["A-v1", "B-v1"]
    assert [member.params["name"] for member in members("param.name=1..2")] == ["1", "2"]


@pytest.mark.parametrize("word", ["steps=5..5", "steps=5", 'env:="a,b"', "env=../x", "env=a..b"])
def test_one_value_is_no_sweep(word: str) -> None:
    assert members(word) == []


def test_one_value_of_a_range_is_taken() -> None:
    assert resolve(parse_submit(["job=dqn", "steps=5..5"], None), JOB, LOCAL).params["steps"] == 5


def test_a_command_is_swept_by_each() -> None:
    command = ["./go{seed}", "--x={lr}", "{other}", "{seed}{seed}"]
    found = members("each.seed=1..2", "each.lr={seed},2", command=command)
    assert [filled(command, member.each) for member in found] == [
        ("./go1", "--x={seed}", "{other}", "11"),
        ("./go1", "--x=2", "{other}", "11"),
        ("./go2", "--x={seed}", "{other}", "22"),
        ("./go2", "--x=2", "{other}", "22"),
    ]
    planned = resolve(parse_submit(["each.n=7"], ["go", "{n}"]), None, LOCAL)
    assert (planned.argv, planned.members) == (("go", "7"), ())


def test_what_is_alike_in_a_swept_command_is_filled_in_too() -> None:
    found = members("each.a={b}", "each.b=1,2", command=["{a}", "{b}"])
    assert [filled(["{a}", "{b}"], member.each) for member in found] == [("{b}", "1"), ("{b}", "2")]


@pytest.mark.parametrize(
    ("words", "command", "says"),
    [
        (["each.n=1..2"], ["go", "n"], "each.n fills in {n}, which is nowhere in the command"),
        (["each.n=2..1"], ["{n}"], "each.n is '2..1'; a..b counts up: 1..2"),
        (["each.n=1,1"], ["{n}"], "each.n is '1,1'; '1' is there twice"),
        (["each.a b=1"], ["x"], "each.a b is no name for a value"),
        (["each.n:=[1]"], ["{n}"], "each.n takes each.n=VALUE, not JSON"),
        (["seed=1..5"], ["x"], "seed is not a key of submit"),
        (["each.n=1..2"], ["a {n} | b"], "is no program; no shell reads"),
        (["eahc.n=1"], ["{n}"], "eahc.n is not a key of submit (did you mean each.n?)"),
    ],
)
def test_a_wrong_sweep_of_a_command(words: list[str], command: list[str], says: str) -> None:
    assert says in refused(*words, command=command).message


def test_a_program_named_by_each_is_no_line_for_a_shell() -> None:
    assert parse_submit(["each.n=1,2"], ["./go{n}"]).command == ("./go{n}",)


def test_images_are_swept() -> None:
    host = Host("gpu1", ssh="gpu1")
    planned = resolve(parse_submit(["job=dqn", "image=a,b", "lr=1,2"], None), JOB, host)
    assert [(member.image, member.params["lr"]) for member in planned.members] == [
        ("a", 1.0),
        ("a", 2.0),
        ("b", 1.0),
        ("b", 2.0),
    ]
    assert planned.image is None


def test_a_drawn_seed_may_stand_there_often() -> None:
    job = dataclasses.replace(JOB, params={"seed": -1})
    planned = resolve(parse_submit(["job=dqn", "seed=-1,-1,7"], None), job, LOCAL)
    assert [member.params["seed"] for member in planned.members] == [-1, -1, 7]


def test_very_large_sweeps_are_made_when_they_are_meant() -> None:
    request = parse_submit(["job=dqn", "steps=1..1001"], None)
    assert resolve(request, JOB, LOCAL, many=True).count == 1001
    assert resolve(parse_submit(["job=dqn", "steps=1..1000"], None), JOB, LOCAL).count == 1000
    with pytest.raises(SpecError, match="at most 100,000"):
        over = parse_submit(["job=dqn", "steps=1..1001", "lr=1..100"], None)
        resolve(over, JOB, LOCAL, many=True)


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
    keys += ["after", "priority", "time_limit", "restarts", "log_limit", "each.x", "each.a\nb"]
    keys += ["stuck_after", "on_stuck", "secret.A", "secret.a\nb"]
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
