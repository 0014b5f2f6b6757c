"""What a real worker tells each command, noted once, to be told again with lies in it."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner import wire
from tests.helpers.link import make_link, program_size
from tests.helpers.local_worker import LocalWorker
from tests.helpers.typed import typed

HOST = "bad"
HEAD = struct.Struct(">IBI")
JOB = 'command = ["python", "job.py"]\nmetric = "return"\nresumable = ["lr"]\n[params]\nlr = 0.1\n'
JOB_CODE = """
import json, os, time
c, l = os.environ["RUNNER_CHECKPOINTS"], os.environ["RUNNER_LOGS"]
os.makedirs(c + "/step-1")
open(c + "/step-1/model.pt", "wb").write(bytes(range(256)) * 40)
os.makedirs("out"); open("out/result", "w").write("made here")
with open(os.environ["RUNNER_PROGRESS"], "a") as file:
    for step in range(1, 4):
        file.write(json.dumps({"step": step, "metrics": {"return": step * 1.5}}) + "\\n")
print("said", flush=True)
time.sleep(0 if "{wait}" == "" else 600)
"""

Answer = list[tuple[int, bytes]]
"""Frames of one request's stream."""


@dataclass(frozen=True)
class Told:
    """A project with two runs on host `bad`, and what its worker answered to each command."""

    project: Path
    done: str
    running: str
    commands: dict[str, tuple[str, ...]]
    answers: dict[str, dict[str, list[Answer]]]
    """By command and verb, one for each time it was asked."""


def make_told(set_env: Callable[[str, str], None], chdir: Callable[[Path], None]) -> Told:
    """Note it all; the worker is gone afterwards, its project is still there."""
    worker = LocalWorker(set_env)
    worker.file(f"hosts/{HOST}.toml", 'runtime = "docker"\nssh = "local"\nslots = 4\n')
    worker.file("hosts/local.toml", 'runtime = "local"\nslots = 4\n')
    worker.file("agents/j.toml", JOB)
    worker.file("job.py", JOB_CODE.replace("{wait}", ""))
    chdir(worker.project)
    try:
        worker.wait(worker.submit("true", words=("host=local",)))
        (worker.project / "hosts/local.toml").unlink()
        link = make_link(worker.root / "link", set_env)
        done = typed("submit", f"host={HOST}", "job=j").text.strip()
        worker.until(done, "ended")
        worker.file("job.py", JOB_CODE.replace("{wait}", "long"))
        running = typed("submit", f"host={HOST}", "job=j").text.strip()
        worker.until_logged(running, "said")
        commands = _commands(done, running)
        answers = {}
        for name, words in commands.items():
            link.forget()
            said = typed(*words, limit_s=60)
            assert said.status in (0, 1, 7), (name, said)
            answers[name] = _answers(link.talks)
    except BaseException:
        worker.close()
        raise
    # its folder is kept for the project in it
    kept = worker.root.with_name(worker.root.name + "-kept")
    worker.project.rename(kept)
    shutil.rmtree(kept / "results", ignore_errors=True)
    shutil.rmtree(kept / ".runner" / "pulls", ignore_errors=True)
    worker.close()
    return Told(kept, done, running, commands, answers)


def _commands(done: str, running: str) -> dict[str, tuple[str, ...]]:
    host = f"host={HOST}"
    return {
        "submit": ("submit", host, "name=a", "--", "true"),
        "submit sweep": ("submit", host, "job=j", "lr=1..3"),
        "ps": ("ps", host),
        "ps --all": ("ps", host, "--all"),
        "top": ("top", host, "--once"),
        "status": ("status", done),
        "status running": ("status", running),
        "why": ("why", done),
        "why running": ("why", running),
        "tail": ("tail", done),
        "tail --no-follow": ("tail", done, "--no-follow"),
        "pull": ("pull", done),
        "plot": ("plot", done),
        "wait": ("wait", done),
        "stack": ("stack", running),
        "du": ("du", host),
        "version": ("version", host),
        "gc": ("gc", host, "--dry-run"),
        "resume": ("resume", done),
        "reproduce": ("reproduce", done),
        "fork": ("fork", done),
        "drain": ("drain", host),
        "undrain": ("undrain", host),
        "rm": ("rm", done, "--dry-run"),
        "cancel": ("cancel", running, "--now"),
    }


def _answers(talks: list[tuple[bytes, bytes]]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = {}
    for up, down in talks:
        streams: dict[int, Answer] = {}
        for kind, stream, payload in wire.FrameReader().feed(up[program_size(up) :]):
            if kind == wire.REQ:
                streams[stream] = []
                found.setdefault(wire.read_json(payload)["verb"], []).append(streams[stream])
        for kind, stream, payload in wire.FrameReader().feed(down.partition(wire.MAGIC)[2]):
            if stream in streams:
                streams[stream].append((kind, bytes(payload)))
    return found


def paths_in(body: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in a JSON value, itself aside."""
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(body, dict):
        items = iter(body.items())
    elif isinstance(body, list):
        items = iter(enumerate(body))
    for key, value in items:
        yield (*here, key)
        yield from paths_in(value, (*here, key))


def changed(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value there."""
    body = json.loads(json.dumps(body))
    here = body
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    return body
