"""Scripts of many shapes, read and never run; what is read must mean what the script means."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

import pytest

from runner.errors import SpecError
from runner.grammar.job_file import job_text
from runner.grammar.recipes import parse_job
from runner.grammar.script_packages import Packages
from runner.grammar.script_values import Option
from runner.grammar.scripts import Script, read_script
from runner.inventory import tomllib
from runner.passing import passed_words

NOTHING = Packages((), (), ())


def read(text: str, **modules: str) -> Script:
    return read_script("train.py", textwrap.dedent(text), modules.get)


def by_name(script: Script) -> dict[str, Option]:
    return {each.name: each for each in script.options}


def words_of(script: Script, **changed: Any) -> list[str]:
    """The words a run of the made job would have, by way of the job's file."""
    text = job_text(script, ["python", "train.py"], NOTHING, "train.py")
    job = parse_job("train", tomllib.loads(text), where="agents/train.toml")
    assert set(changed) <= set(job.params), job.params
    return passed_words({"how": job.how, "flags": dict(job.flags)}, {**job.params, **changed})


ARGPARSE = """
    import argparse
    from pathlib import Path
    SIZES = [32, 32]
    raise SystemExit("this script was run")
    def build():
        parser = argparse.ArgumentParser()
        parser.add_argument("task", help="what to learn")
        parser.add_argument("extra", nargs="*", default=["x"])
        parser.add_argument("--lr", "-l", type=float, default=1, help="the  rate,\\n 100%%")
        parser.add_argument("--total-steps", type=int, default=50_000)
        parser.add_argument("--seed", type=int, default=None)
        parser.add_argument("--name", default="a b")
        parser.add_argument("--env", dest="environment", choices=["a", "b"], default="a")
        parser.add_argument("--out", type=Path, default="runs")
        group = parser.add_argument_group("more")
        either = group.add_mutually_exclusive_group()
        either.add_argument("--cuda", action="store_true")
        either.add_argument("--cpu", action="store_true")
        group.add_argument("--no-cache", dest="cache", action="store_false")
        group.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
        group.add_argument("--track", type=lambda x: x in ("true", "1"), default=False, nargs="?",
                           const=True)
        group.add_argument("--naive", type=bool, default=True)
        group.add_argument("--sizes", type=int, nargs="+", default=SIZES)
        group.add_argument("--layers", type=int, nargs="*", default=[8])
        group.add_argument("--tag", action="append")
        group.add_argument("--clip", type=float, default=-0.5)
        group.add_argument("-v", "--verbose", action="count", default=0)
        group.add_argument("--version", action="version", version="1")
        group.add_argument("--note", default="--odd", required=False)
        return parser
"""


def real_parser() -> argparse.ArgumentParser:
    space: dict[str, Any] = {}
    exec(textwrap.dedent(ARGPARSE).replace('raise SystemExit("this', 'str("this'), space)
    made = space["build"]()
    assert isinstance(made, argparse.ArgumentParser)
    return made


def test_argparse_options_become_parameters() -> None:
    script = read(ARGPARSE)
    assert script.kind == "argparse"
    options = by_name(script)
    assert options["lr"] == Option("lr", 1.0, "--lr", "the rate, 100%%")
    assert options["environment"].choices == ("a", "b")
    assert options["task"].spelling == "1!"
    assert options["seed"].spelling == "--seed?"
    assert options["compile"].spelling == "--compile/--no-compile"
    assert options["cache"].default is True
    assert [(each.name, each.why) for each in script.left] == [
        ("verbose", "its action count is not read")
    ]
    assert "version" not in options


def test_saying_the_defaults_means_what_saying_nothing_means() -> None:
    words = words_of(read(ARGPARSE), task="t")
    parsed, alone = real_parser().parse_args(words), real_parser().parse_args(["t"])
    assert vars(parsed) == vars(alone)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", -3e-05),
        ("total_steps", -1),
        ("name", "-x --y"),
        ("name", ""),
        ("environment", "b"),
        ("cuda", True),
        ("cache", False),
        ("compile", False),
        ("track", True),
        ("naive", False),
        ("sizes", [1, 2, 3]),
        ("layers", []),
        ("layers", [1]),
        ("tag", ["a", "-b"]),
        ("note", "plain"),
        ("extra", ["y", "z"]),
    ],
)
def test_every_value_arrives_as_it_was_meant(name: str, value: Any) -> None:
    parsed = real_parser().parse_args(words_of(read(ARGPARSE), task="t", **{name: value}))
    assert getattr(parsed, name) == value


def test_an_empty_list_that_cannot_be_said_is_marked() -> None:
    options = by_name(read(ARGPARSE))
    spellings = {name: options[name].spelling for name in ("sizes", "extra", "layers", "tag")}
    assert spellings == {"sizes": "--sizes!", "extra": "2!", "layers": "--layers", "tag": "--tag*?"}


def test_what_no_job_file_or_command_line_can_hold_is_left_to_the_script() -> None:
    script = read("""
        import argparse
        p = argparse.ArgumentParser()
        p.add_argument("--0x", type=int, default=1)
        p.add_argument("--\u00fcber", default="a")
        p.add_argument("--half", default="\\ud800")
        p.add_argument("--nul", default="a\\0b")
        p.add_argument("--words", nargs="*", default=["\\udfff"])
        p.add_argument("--added", action="extend", nargs="+", default=["a"])
        p.add_argument("--good", default="a")
    """)
    assert list(by_name(script)) == ["good"]
    left = {each.name for each in script.left}
    assert left == {"0x", "\u00fcber", "half", "nul", "words", "added"}


def test_several_parsers_and_defaults_set_later() -> None:
    script = read(
        """
        from argparse import ArgumentParser
        base = ArgumentParser(add_help=False)
        base.add_argument("--seed", type=int, default=1)
        p = ArgumentParser(parents=[base])
        p.add_argument("--lr", type=float)
        p.add_argument("--root", default=os.environ["HOME"])
        p.add_argument(*FLAGS, default=1)
        p.add_argument("--odd", **settings)
        p.set_defaults(lr=0.5)
        """
    )
    assert {each.name: each.default for each in script.options} == {"seed": 1, "lr": 0.5}
    assert {each.name for each in script.left} == {"root", "odd"}


def test_subcommands_are_told_and_not_read() -> None:
    script = read(
        """
        import argparse
        p = argparse.ArgumentParser()
        p.add_subparsers().add_parser("fit").add_argument("--lr", default=1.0)
        """
    )
    assert (script.kind, script.options) == ("argparse with subcommands", ())


CLEAN = '''
    import os
    from dataclasses import dataclass, field
    from typing import Literal, Optional
    import tyro

    @dataclass
    class Optimizer:
        lr: float = 1
        """the rate"""
        nesterov: bool = False

    @dataclass
    class Base:
        seed: int = 1

    @dataclass
    class Args(Base):
        exp_name: str = os.path.basename(__file__)
        env_id: str = "CartPole-v1"
        """the id of
        the environment"""
        wandb_entity: str = None
        target_kl: Optional[float] = None
        "stop early"
        anneal: bool = True
        mode: Literal["a", "b"] = "a"
        hidden: list[int] = field(default_factory=lambda: [64, 64])
        tags: tuple[str, ...] = ()
        needed: int | None
        data: str
        optimizer: Optimizer = field(default_factory=Optimizer)
        other: Optimizer = Optimizer()
        _hidden: int = 1

    if __name__ == "__main__":
        args = tyro.cli(Args)
        writer.add_scalar("charts/episodic_return", 1, 1)
'''


def test_a_dataclass_for_tyro() -> None:
    script = read(CLEAN)
    options = by_name(script)
    assert (script.kind, script.metric) == ("tyro", "charts/episodic_return")
    assert options["env_id"] == Option(
        "env_id", "CartPole-v1", "--env-id", "the id of the environment"
    )
    assert options["wandb_entity"].spelling == "--wandb-entity?"
    assert options["target_kl"] == Option("target_kl", "", "--target-kl?", "stop early")
    assert options["anneal"].spelling == "--anneal/--no-anneal"
    assert options["mode"].choices == ("a", "b")
    assert options["hidden"].default == [64, 64]
    assert options["data"].spelling == "--data!"
    assert options["optimizer.lr"].default == 1.0
    assert options["optimizer.nesterov"].spelling == "--optimizer.nesterov/--optimizer.no-nesterov"
    assert options["other.lr"].spelling == "--other.lr"
    assert options["seed"].default == 1
    assert "_hidden" not in options
    assert [each.name for each in script.left] == ["exp_name"]


def test_words_for_tyro() -> None:
    words = words_of(read(CLEAN), anneal=False, target_kl="0.02", data="d")
    joined = " ".join(words)
    assert "--no-anneal" in words and "--target-kl 0.02" in joined and "--data d" in joined
    assert "--hidden 64 64" in joined and "--optimizer.lr 1.0" in joined
    assert "wandb" not in joined


def test_a_class_of_another_module_of_the_project() -> None:
    script = read(
        "from config import Args\nimport tyro\nargs = tyro.cli(Args)\n",
        config="from dataclasses import dataclass\n@dataclass\nclass Args:\n    lr: float = 0.1\n",
    )
    assert by_name(script)["lr"].default == 0.1
    assert script.own == ("config",)


def test_a_function_for_tyro() -> None:
    script = read(
        """
        import tyro
        def main(env: str, lr: float = 3e-4, *, track: bool = False) -> None: ...
        tyro.cli(main)
        """
    )
    assert [(each.name, each.spelling) for each in script.options] == [
        ("env", "--env!"),
        ("lr", "--lr"),
        ("track", "--track/--no-track"),
    ]


def test_options_that_stand_in_a_module_of_the_project() -> None:
    script = read(
        "from options import parse\nargs = parse()\n",
        options="from argparse import *\np = ArgumentParser()\np.add_argument('--lr', default=1)\n",
    )
    assert (script.kind, by_name(script)["lr"].default) == ("argparse", 1)


def test_hydra_is_told_by_its_file() -> None:
    script = read(
        """
        import hydra
        @hydra.main(config_path="conf", config_name="ppo", version_base=None)
        def main(cfg): ...
        """
    )
    assert script.kind == "hydra" and script.hydra is not None
    assert script.hydra.file == "conf/ppo.yaml"
    assert 'pass = "hydra"' in job_text(script, ["python", "t.py"], NOTHING, "t.py")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import click\n@click.command()\ndef main(): ...\n", "click"),
        ("from absl import app, flags\n", "absl"),
        ("import fire\nfire.Fire(main)\n", "fire"),
        ("print('nothing')\n", None),
    ],
)
def test_others_are_told_and_not_read(text: str, kind: str | None) -> None:
    script = read(text)
    assert (script.kind, script.options) == (kind, ())
    assert 'pass = "none"' in job_text(script, ["python", "t.py"], NOTHING, "t.py")


def test_imports_and_whether_they_are_always_needed() -> None:
    script = read(
        """
        from __future__ import annotations
        import numpy as np, torch.nn as nn
        from typing import TYPE_CHECKING
        from . import sibling
        import helper
        if TYPE_CHECKING:
            import pandas
        try:
            import envpool
        except ImportError:
            envpool = None
        def save():
            import imageio
        class Agent:
            import einops
        if __name__ == "__main__":
            import tyro
            if args.track:
                import wandb
                from tools.upload import push
        """,
        helper="import tqdm\n",
        tools="",
        **{"tools.upload": "import boto3\n"},
    )
    always = {name for name, needed in script.imports.items() if needed}
    assert always >= {"numpy", "torch", "imageio", "einops", "tyro", "tqdm"}
    assert {n for n, needed in script.imports.items() if not needed} == {
        "envpool",
        "wandb",
        "boto3",
    }
    assert not {"pandas", "helper", "tools", "sibling"} & set(script.imports)


def test_what_it_writes_outside_is_found() -> None:
    script = read(
        """
        torch.save(model, f"/scratch/{name}.pt")
        torch.save(model, "runs/model.pt")
        writer = SummaryWriter(log_dir="~/logs")
        open("/etc/hosts").read()
        open("../notes.txt", "w")
        os.makedirs(Path("/data/out") / name)
        """
    )
    assert script.outside == (
        (2, "/scratch/"),
        (4, "~/logs"),
        (6, "../notes.txt"),
        (7, "/data/out"),
    )


def test_sb3_and_old_gymnasium() -> None:
    script = read("from stable_baselines3 import PPO\n")
    assert (script.metric, script.old_gymnasium) == ("rollout/ep_rew_mean", False)
    assert read("import gymnasium\nx = infos['final_observation']\n").old_gymnasium


def test_whether_it_goes_on() -> None:
    assert read("import os\nold = os.environ['RUNNER_RESUME']\n").resumes
    assert not read("import os\n# RUNNER_RESUME\n").resumes


@pytest.mark.parametrize("text", ["def f(:\n", "x = 1\0", "print 'python 2'\n"])
def test_what_is_no_python_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"train\.py"):
        read(text)


def test_two_modules_that_import_each_other_end() -> None:
    assert read("import a\n", a="import b\n", b="import a\nimport tqdm\n").imports == {"tqdm": True}
