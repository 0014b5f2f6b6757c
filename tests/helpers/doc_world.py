"""A project and a worker in which the commands of the documentation are typed as they stand.

The worker is a real `local` one. Where a page speaks of a host, this machine takes its place:
`host=gpu1` is typed as `host=local`. The project is what `runner init` writes, but for the programs
of its jobs: these report progress and write a checkpoint as the shipped ones do, and learn nothing,
so that any number of steps is done in an instant. Ids of a page become those of runs that were
really made: what its own submit printed, else one in a state that suits the command.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence

from runner import notify_file
from tests.helpers.cron_desk import CronDesk
from tests.helpers.doc_pages import ID, Command
from tests.helpers.local_worker import LocalWorker
from tests.helpers.typed import Said, typed

HOSTS = re.compile(r"^host=(gpu[0-9]|box|H|cpu[0-9])$")
PORT = re.compile(r"^port=[0-9]+$")
"""It becomes one that is free."""
NOTIFY = 'on = ["ended"]\n[command]\nargv = ["/bin/true"]\n'
NOWHERE = "ssh://nobody@127.0.0.1:1"
"""Nobody listens there, so that a command ends where it would connect."""
LIMIT_S = 120.0
JOB = '''\
"""Stands for an agent: tells steps and writes one checkpoint, and learns nothing."""

import hashlib
import json
import os
import random
import time
from pathlib import Path

params = json.loads(Path(os.environ["RUNNER_PARAMS"]).read_text())
steps = int(params.get("steps", params.get("episodes", 100)))
luck = random.Random(repr(sorted(params.items())))
with open(os.environ["RUNNER_PROGRESS"], "a") as progress:
    for part in range(1, 6):
        values = {"reward": part * luck.random(), "eval/return": part * luck.random()}
        line = {"t": time.time(), "step": steps * part // 5, "metrics": values}
        progress.write(json.dumps(line) + "\\n")
        print("step", line["step"], flush=True)
if os.environ["RANK"] == "0":
    folder = Path(os.environ["RUNNER_CHECKPOINTS"]) / f"step-{steps:09d}.tmp"
    if not folder.with_suffix("").exists():
        folder.mkdir()
        data = b"parameters"
        (folder / "model.pt").write_bytes(data)
        facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest = {"format": 1, "step": steps, "metrics": values, "files": {"model.pt": facts}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        folder.rename(folder.with_suffix(""))
'''
TRAIN = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--steps", type=int, default=100)
print(parser.parse_args())
"""
FILES = {"train.py": TRAIN, "scripts/dqn.py": TRAIN, "scripts/train.py": TRAIN, "report.py": ""}
"""What pages take for granted in a project."""
SLEEP = ("python", "-c", "import time; print('up', flush=True); time.sleep(600)")


class DocWorld:
    """Who types, and what became of it."""

    def __init__(self, worker: LocalWorker) -> None:
        self.worker = worker
        self.desk = CronDesk(worker)
        self.project = worker.project
        self._base = worker.root / "base"
        self._ids: dict[str, str] = {}
        """Of this page: an id as it is printed there, and the real one."""
        self._made: dict[str, str] = {}
        self._lives: list[str] = []
        worker.set_env("HOME", str(self.desk.home))
        worker.set_env("PATH", f"{self.desk.bin}:{os.environ['PATH']}")
        worker.set_env("WANDB_API_KEY", "x")
        self._lay_base()

    def _lay_base(self) -> None:
        os.chdir(self.project)
        assert typed("init").status == 0
        for path in (self.project / "agents").glob("*.toml"):
            entry = re.search(r'^entry = "(.+)"', path.read_text(), re.MULTILINE)
            assert entry is not None, path
            (self.project / "agents" / entry[1]).write_text(JOB)
        for name, text in FILES.items():
            self.worker.file(name, text)
        self.worker.host(slots=4, gpus="none")
        shutil.copytree(self.project, self._base, ignore=shutil.ignore_patterns(".runner"))

    def begin(self, page: str) -> None:
        """A new page: the project as it was, no schedule, nothing drained."""
        os.chdir(self.worker.root)
        for path in self.project.iterdir():
            if path.name != ".runner":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self._base, self.project, dirs_exist_ok=True)
        if page == "docs/jobs.md":  # there `job add` makes the job of that name
            (self.project / "agents/dqn.toml").unlink()
        os.chdir(self.project)
        self._ids = {}
        for folder in self.desk.shelf_folders():
            self.desk.run("schedule", "remove", folder.rpartition("-")[0])
        if self.worker.workspace.exists():
            typed("undrain", "host=local")
        if self._lives:  # or they fill the slots
            typed("cancel", "--now", *self._lives)
        self._lives = []

    # what is typed

    def type(self, command: Command) -> Said:
        """The command, with what a page cannot know put in."""
        words = self._words(command)
        if words[:1] == ["tensorboard"]:
            return self._until_interrupted(*words)
        if words[:2] == ["notify", "test"]:
            return self._with_settings(*words)
        if words[:2] == ["host", "remove"]:
            (self.project / "hosts" / f"{words[2]}.toml").write_text(f'ssh = "{NOWHERE}"\n')
        if words[:1] == ["schedule"]:
            self._see_schedule(words)
            done = self.desk.run(*words)
            said = Said(done.returncode, done.stdout.encode(), done.stderr)
        else:
            said = typed(*words, limit_s=LIMIT_S)
        self._learn(command, said.text)
        if "nproc=2" in words and (match := ID.search(said.text + said.err)):
            self._made["ranks"] = match[0]
        return said

    def _until_interrupted(self, *words: str) -> Said:
        """What goes on until Ctrl-C, which it gets once it has said where it is to be seen."""
        started = subprocess.Popen(
            [str(self.desk.python), "-m", "runner", *words],
            cwd=self.project,
            env=self.desk.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert started.stdout is not None
        first = started.stdout.readline()
        started.send_signal(signal.SIGINT)
        rest, err = started.communicate(timeout=LIMIT_S)
        return Said(started.returncode, (first + rest).encode(), err)

    def _with_settings(self, *words: str) -> Said:
        """What needs a notify.toml, which is there for as long as it takes."""
        path = notify_file.path_of()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(NOTIFY)
        try:
            return typed(*words, limit_s=LIMIT_S)
        finally:
            path.unlink()

    def type_to_nowhere(self, command: Command) -> Said:
        """The command as it stands, with hosts that exist and that nobody answers for."""
        folder = self.project / "hosts"
        for name in {"gpu1", *re.findall(r"\bhost=([a-z]+[0-9]*)", command.text)} - {"local"}:
            rest = 'runtime = "venv"\n' if "--at-boot" in command.words else ""
            (folder / f"{name}.toml").write_text(f'ssh = "{NOWHERE}"\n{rest}')
        words = [PORT.sub("port=0", word) for word in command.words[1:]]
        if words[:2] == ["host", "add"]:
            (folder / f"{words[2]}.toml").unlink(missing_ok=True)
            words[3] = NOWHERE
            words = [NOWHERE if before == "--jump" else word for before, word in _pairs(words)]
        try:
            return typed(*words, limit_s=LIMIT_S)
        finally:
            for path in folder.glob("*.toml"):
                if path.name != "local.toml":
                    path.unlink()

    def _words(self, command: Command) -> list[str]:
        words = list(command.words[1:])
        cut = words.index("--") if "--" in words else len(words)
        number = 0
        for at, word in enumerate(words):
            if at < cut and HOSTS.match(word):
                words[at] = "host=local"
            elif at < cut and PORT.match(word):
                words[at] = "port=0"
            elif word == "latest" and words[0] == "stack":
                words[at] = self._live()
            elif word == "latest" and {"--rank", "--merged"} & {*words}:
                words[at] = self._once("ranks", self._two_ranks)
            elif word.startswith("/data/"):
                words[at] = str(self.worker.root) + word
            elif match := ID.search(word):
                real = self._real(words, match, number)
                words[at] = word[: match.start()] + real + word[match.end() :]
                number += 1
            elif word.startswith("name:"):
                self._once(word, functools.partial(self._named, word[5:], len(self._made)))
        if words == ["plot"]:  # the latest run, which shows something
            self._done()
        if (
            words[0] == "tail" and "--rank" in words and words[1].startswith("-")
        ):  # a page that speaks of ranks has a run of several in mind
            words.insert(1, self._once("ranks", self._two_ranks))
        return words

    def _learn(self, command: Command, out: str) -> None:
        """Which real id stands for the one that the page shows as this command's answer."""
        shown = [match for line in command.answer if (match := ID.fullmatch(line.strip()))]
        real = [match for line in out.split("\n") if (match := ID.fullmatch(line.strip()))]
        for page, here in zip(shown, real, strict=False):
            self._ids[page[1]] = here[1]

    # the runs that a page takes for granted

    def _real(self, words: Sequence[str], match: re.Match[str], number: int) -> str:
        """The run that a page's id stands for, given what is done with it."""
        verb, name, member = words[0], match[1], match[2] or ""
        if verb in ("cancel", "stack"):
            return self._live()
        if verb == "resume":
            more = any(word.startswith("steps=") for word in words)
            return self._done() if more else self._stopped()
        if verb == "rm":
            return self._pulled()
        if name in self._ids:
            return self._ids[name] + member
        if verb == "compare":
            return self._once(f"sweep {number}", functools.partial(self._sweep, number))
        if member or any(word.startswith("after=") for word in words):
            return self._once("sweep 0", functools.partial(self._sweep, 0)) + member
        return self._once(f"run {number}", self._done)

    def _once(self, key: str, make: Callable[[], str]) -> str:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _submit(self, *words: str) -> str:
        said = typed("submit", *words, limit_s=LIMIT_S)
        assert said.status == 0, said.err
        return said.text.split("\n")[0]

    def _done(self) -> str:
        return self._submit("--wait", "job=ppo", "seed=1", "steps=50")

    def _sweep(self, number: int) -> str:
        lr = f"lr={10.0 ** -(number + 3)}"
        return self._submit("--wait", "job=ppo", "seed=1..5", lr).rpartition(".")[0]

    def _named(self, name: str, number: int) -> str:
        words = (f"name={name}", f"lr={10.0 ** -(number + 3)}", "seed=1..2")
        return self._submit("--wait", "job=ppo", *words)

    def _live(self) -> str:
        run = self._submit("--", *SLEEP)
        self._lives.append(run)
        self.worker.until_logged(run, "up")
        return run

    def _stopped(self) -> str:
        run = self._live()
        assert typed("cancel", run, "--now").status == 0
        return run

    def _pulled(self) -> str:
        run = self._done()
        assert typed("pull", run).status == 0
        return run

    def _two_ranks(self) -> str:
        return self._submit("--wait", "job=ppo", "seed=1", "nproc=2")

    def _see_schedule(self, words: Sequence[str]) -> None:
        """A page that goes on with a schedule has added it before."""
        if words[1] in ("add", "list") or len(words) < 3:
            return
        if not any(name.startswith(f"{words[2]}-") for name in self.desk.shelf_folders()):
            self.desk.done("schedule", "add", words[2], "30 2 * * *", "job=ppo")


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """Each word with the one before it."""
    return list(zip(["", *words], words, strict=False))
