"""A user's own script, from `job add` to runs of it: read, never run, and nothing of it edited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.app import again, submit
from runner.app.job_add import add_job
from runner.errors import NotFound, SpecError
from runner.grammar.changes import parse_changes
from runner.inventory import read_job
from runner.spec import parse_submit
from tests.helpers.local_worker import LocalWorker
from tests.helpers.typed import typed

TRAIN = """
import argparse, json, pathlib, sys

def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--seed", type=int, default=1, help="of the experiment")
    parser.add_argument("--lr", type=float, default=2.5e-4)
    parser.add_argument("--cuda", type=lambda x: x == "true", default=True, nargs="?", const=True)
    parser.add_argument("--track", action="store_true")
    parser.add_argument("--entity", default=None)
    return parser.parse_args()

if __name__ == "__main__":
    args = parse_args()
    pathlib.Path("runs").mkdir(exist_ok=True)
    pathlib.Path("runs/seed.txt").write_text(str(args.seed))
    print(json.dumps([vars(args), sys.argv[1:]]))
"""
TYRO = '''
"""Reads a dataclass's options as tyro does, as far as the tests need it."""
import argparse, dataclasses, typing

def cli(cls):
    parser = argparse.ArgumentParser()
    for field in dataclasses.fields(cls):
        flag, kind = "--" + field.name.replace("_", "-"), typing.get_type_hints(cls)[field.name]
        how = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind}
        parser.add_argument(flag, dest=field.name, default=field.default, **how)
    return cls(**vars(parser.parse_args()))
'''
CLEAN = '''
import os
from dataclasses import dataclass
import tyro

@dataclass
class Args:
    exp_name: str = os.path.basename(__file__)[: -len(".py")]
    seed: int = 1
    """seed of the experiment"""
    torch_deterministic: bool = True
    wandb_entity: str = None
    total_timesteps: int = 500000

if __name__ == "__main__":
    print(tyro.cli(Args))
'''


@pytest.fixture
def worker(local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch) -> LocalWorker:
    monkeypatch.chdir(local_worker.project)
    local_worker.file("src/train.py", TRAIN)
    return local_worker


def begin(worker: LocalWorker, *words: str) -> list[str]:
    return submit.submit(worker.ctx, parse_submit(words, None), lambda run: None)


def printed(worker: LocalWorker, run: str) -> Any:
    assert worker.wait(run).status.outcome == "done", worker.log(run)
    return json.loads(worker.log(run).splitlines()[-1])


def test_from_the_script_to_a_sweep_over_seeds(worker: LocalWorker, tmp_path: Path) -> None:
    said = typed("job", "add", "src/train.py", "name=mine", terminal=True)
    assert (said.status, said.text) == (
        0,
        "agents/mine.toml\r\n",
    ) or said.text == "agents/mine.toml\n"
    assert "runner submit job=mine seed=1..3" in said.err
    assert "6 parameters by argparse" in said.err
    runs = begin(worker, "job=mine", "seed=1..3", "cuda=false", "env_id=a b; $(c)")
    assert len(runs) == 3
    for seed, run in enumerate(runs, 1):
        args, argv = printed(worker, run)
        assert args == {
            "seed": seed,
            "cuda": False,
            "env_id": "a b; $(c)",
            "lr": 2.5e-4,
            "track": False,
            "entity": None,
        }
        status = worker.status(run).status
        assert status.argv == ["python", "src/train.py", *argv]
        assert status.params["seed"] == seed
    worker.pull(runs[0], tmp_path / "pulled")
    assert (tmp_path / "pulled" / "work" / "runs" / "seed.txt").read_text() == "1"


def test_resume_fork_and_reproduce_say_the_parameters_anew(worker: LocalWorker) -> None:
    add_job(worker.project, "src/train.py", "mine")
    path = worker.project / "agents" / "mine.toml"
    path.write_text(path.read_text().replace("restarts = 0", 'restarts = 0\nresumable = ["lr"]'))
    worker.file("src/train.py", TRAIN + '    import os; sys.exit(int(os.environ["CODE"]))\n')
    (run,) = begin(worker, "job=mine", "seed=-1", "lr=0.5", "env.CODE=3")
    assert worker.wait(run).status.outcome == "failed"
    drawn = worker.status(run).status.params["seed"]
    assert drawn != -1
    changes = parse_changes("resume", ["lr=-0.25", "env.CODE=0"])
    again.resume(worker.ctx, worker.ref(run), changes, lambda run: None)
    assert worker.wait(run).status.outcome == "done", worker.log(run)
    last = worker.log(run).decode().splitlines()[-1]
    assert f'"--seed", "{drawn}"' in last and '"--lr=-0.25"' in last
    assert "--lr=-0.25" in worker.status(run).status.argv
    fork = parse_changes("fork", ["track=true", "entity=me"])
    made = again.fork(worker.ctx, worker.ref(run), fork, lambda run: None, fresh=True).run.id
    args, _ = printed(worker, made)
    assert (args["track"], args["entity"], args["lr"]) == (True, "me", -0.25)
    same = parse_changes("reproduce", [])
    once_more = again.reproduce(worker.ctx, worker.ref(made), same, lambda run: None).run.id
    assert printed(worker, once_more)[0] == args


def test_a_dataclass_as_cleanrl_has_it(worker: LocalWorker) -> None:
    worker.file("clean/dqn.py", CLEAN)
    worker.file("clean/tyro.py", TYRO)
    added = add_job(worker.project, "clean/dqn.py", None)
    assert (added.job.name, added.seeded) == ("dqn", True)
    assert [each.name for each in added.script.left] == ["exp_name"]
    runs = begin(worker, "job=dqn", "seed=7,8", "torch_deterministic=false")
    for seed, run in zip((7, 8), runs, strict=True):
        assert worker.wait(run).status.outcome == "done"
        assert worker.log(run).decode().strip() == (
            f"Args(exp_name='dqn', seed={seed}, torch_deterministic=False,"
            " wandb_entity=None, total_timesteps=500000)"
        )


def test_overrides_travel_as_words_of_their_own(worker: LocalWorker) -> None:
    worker.file("show.py", "import json, sys; print(json.dumps(sys.argv[1:]))\n")
    worker.file(
        "agents/h.toml",
        'command = ["python", "show.py"]\npass = "hydra"\nrestarts = 0\n'
        '[params]\n"opt.lr" = 0.1\nuser = "x"\n[flags]\nuser = "+db.user"\n',
    )
    runs = begin(worker, "job=h", "opt.lr=0.1,0.2", "user=it's a; b")
    for rate, run in zip(("0.1", "0.2"), runs, strict=True):
        assert printed(worker, run) == [f"opt.lr={rate}", "+db.user='it\\'s a; b'"]


def test_modules_found_from_the_root_make_it_a_module(worker: LocalWorker) -> None:
    worker.file("algos/ppo.py", "from shared.net import Net\nprint(Net, __name__)\n")
    worker.file("shared/net.py", "Net = 'net'\nimport numpy\n")
    added = add_job(worker.project, "algos/ppo.py", None)
    assert added.job.command == ("python", "-m", "algos.ppo")
    (run,) = begin(worker, "job=ppo")
    assert worker.wait(run).status.outcome == "done"
    assert worker.log(run) == b"net __main__\n"


def test_what_could_not_be_read_is_said(worker: LocalWorker) -> None:
    worker.file("clicky.py", "import click, mystery_kit\nopen('/tmp/x', 'w')\n")
    said = typed("job", "add", "clicky.py")
    assert said.status == 0
    assert "mystery_kit" in said.err and "clicky.py:2 writes to '/tmp/x'" in said.err
    job = read_job(worker.ctx.project, "clicky")
    assert (job.how, dict(job.params), job.requirements) == ("none", {}, ("click",))
    notes = add_job(worker.project, "clicky.py", "other").notes
    assert "setup   click; yours to set: the version of click" in notes
    told = "\n".join(notes)
    assert 'pass = "flags" and [params]' in told and "-- python FILE --NAME VALUE" in told


def test_a_version_of_the_projects_own_list_is_not_asked_for(worker: LocalWorker) -> None:
    worker.file("requirements.txt", "tyro==1.0.1\n")
    worker.file("t.py", "import tyro\nprint('charts/episodic_return')\n")
    assert "setup   tyro==1.0.1" in add_job(worker.project, "t.py", None).notes
    text = (worker.ctx.project.root / "agents" / "t.toml").read_text()
    assert 'metric = "charts/episodic_return"  # a tag of its event files' in text


def test_nothing_is_overwritten_unasked(worker: LocalWorker) -> None:
    worker.file("agents/mine.toml", "# mine\n")
    said = typed("job", "add", "src/train.py", "name=mine")
    assert said.status == 2 and "agents/mine.toml is there already" in said.err
    assert (worker.project / "agents" / "mine.toml").read_text() == "# mine\n"
    assert typed("job", "add", "src/train.py", "name=mine", "--replace").status == 0
    assert "[params]" in (worker.project / "agents" / "mine.toml").read_text()
    assert [path.name for path in (worker.project / "agents").iterdir()] == ["mine.toml"]


@pytest.mark.parametrize(
    ("script", "error", "says"),
    [
        ("none.py", NotFound, "no such file"),
        ("../outside.py", SpecError, "outside of the project"),
        ("bad.py", SpecError, r"bad\.py:1: not Python"),
        ("train.sh", SpecError, "no Python script"),
        ("folder.py", SpecError, "folder.py: Is a directory"),
        ("latin.py", SpecError, "not text in the encoding"),
        ("a b.py", SpecError, "is not a job's name"),
    ],
)
def test_what_cannot_be_a_job_is_refused(
    worker: LocalWorker, script: str, error: type[Exception], says: str
) -> None:
    for name in ("../outside.py", "bad.py", "train.sh", "a b.py"):
        worker.file(name, "x = (\n" if name == "bad.py" else "x = 1\n")
    (worker.project / "folder.py").mkdir()
    (worker.project / "latin.py").write_bytes(b"x = '\xe9'\n")
    with pytest.raises(error, match=says):
        add_job(worker.project, script, None)
    assert not (worker.project / "agents").exists()


def test_a_needed_parameter_is_asked_for_before_anything(worker: LocalWorker) -> None:
    lines = ["import argparse", "p = argparse.ArgumentParser()", "p.add_argument('env')"]
    worker.file("needs.py", "\n".join([*lines, "print(p.parse_args())", ""]))
    added = add_job(worker.project, "needs.py", None)
    assert added.line == "runner submit job=needs env=…"
    with pytest.raises(SpecError, match="env is needed"):
        begin(worker, "job=needs")
    (run,) = begin(worker, "job=needs", "env=CartPole-v1")
    assert worker.wait(run).status.outcome == "done"
    assert worker.log(run) == b"Namespace(env='CartPole-v1')\n"


def test_a_script_that_would_not_travel_is_refused(worker: LocalWorker) -> None:
    add_job(worker.project, "src/train.py", "mine")
    worker.file(".runnerignore", "src/\n")
    with pytest.raises(SpecError, match=r"src/train\.py is left out by an ignore rule"):
        begin(worker, "job=mine")


def test_the_argv_shows_before_anything_is_sent(worker: LocalWorker) -> None:
    add_job(worker.project, "src/train.py", "mine")
    said = typed("submit", "job=mine", "seed=5", "--dry-run", "--json")
    assert said.status == 0
    assert '"--seed",\n    "5"' in said.text
