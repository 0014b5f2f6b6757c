"""The job under test: a deterministic "training" that can be checked to the last byte.

Copied into a project as a job's program; the standard library alone. Its model is a chain of
digests, so that the parameters after the last step tell whether every step was taken once and in
order. What it does it also notes in a folder outside the run: a line of log is first written, then
noted; each start takes a lock there that a second attempt at the same time would not get. At each
of `POINTS` it waits until `go-POINT` lies there, and says that it does by `at-POINT-RANK`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

STEPS = 20
EVERY = 5
"""Steps between two checkpoints."""
POINTS = {"early": 2, "running": 7, "checkpointing": 10, "ending": STEPS}
"""Where it can be held: the step that was taken last."""
PAUSE_S = 0.005
TALK = b"x" * 1000


def advance(model: bytes, step: int) -> bytes:
    """The model after one more step."""
    return hashlib.sha512(model + b"%d" % step).digest()


def model_after(steps: int) -> bytes:
    """The model of a run that nothing has disturbed."""
    model = b""
    for step in range(1, steps + 1):
        model = advance(model, step)
    return model


def parameters(model: bytes) -> bytes:
    """What a checkpoint holds of it."""
    return model * 128


class Training:
    """One rank of one attempt."""

    def __init__(self, environ: dict[str, str], params: dict[str, Any]) -> None:
        self.attempt, self.rank = int(environ["RUNNER_ATTEMPT"]), int(environ["RANK"])
        self.outside = Path(params["outside"])
        self.talks = bool(params["talks"])
        self.patient = bool(params["patient"])
        self.saves = bool(params["saves"])
        self.save_s = float(params["save_s"])
        self.checkpoints = Path(environ["RUNNER_CHECKPOINTS"])
        self.progress = environ["RUNNER_PROGRESS"]
        self.asked = False
        self.lines = 0
        self.step, self.model = 0, b""
        found = environ["RUNNER_RESUME"]
        if found:
            manifest = json.loads(Path(found, "manifest.json").read_text())
            self.step = int(manifest["step"])
            self.model = Path(found, "model.bin").read_bytes()[:64]
        signal.signal(signal.SIGTERM, self.on_term)

    def on_term(self, *_: Any) -> None:
        self.asked = True
        self.note("terms")

    # -- what it says, here and outside -------------------------------------------------------

    def note(self, name: str, *words: Any) -> None:
        """A line in a file outside."""
        line = " ".join(map(str, (self.attempt, self.rank, *words, time.monotonic()))) + "\n"
        fd = os.open(self.outside / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(fd, line.encode())
        os.close(fd)

    def say(self, *words: Any) -> None:
        """A numbered line of log, noted outside once it was written."""
        self.lines += 1
        line = " ".join(map(str, (f"{self.attempt}.{self.lines}", *words))) + "\n"
        self.write(1, line.encode())
        with open(self.outside / f"log-{self.rank}", "ab", buffering=0) as file:
            file.write(line.encode())

    def write(self, fd: int, data: bytes) -> None:
        """All of it; on a full disk it waits for room, if it is patient."""
        while data:
            try:
                data = data[os.write(fd, data) :]
            except OSError as error:
                self.bear(error)

    def bear(self, error: OSError) -> None:
        """Wait a moment for room on the disk, or give up."""
        if not self.patient or error.errno != errno.ENOSPC:
            raise error
        self.note("full")
        self.beat()

    def beat(self) -> None:
        self.note("beats", os.getpid())
        time.sleep(PAUSE_S)

    def hold(self, point: str) -> None:
        """Wait here until the test lets it go, or until it is asked to stop."""
        if not self.asked:
            (self.outside / f"at-{point}-{self.rank}").touch()
        while not (self.outside / f"go-{point}").exists() and not self.asked:
            if self.talks:
                self.say("held", TALK.decode())
            self.beat()

    # -- what it does -------------------------------------------------------------------------

    def run(self) -> None:
        alone = os.open(self.outside / f"alone-{self.rank}", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.note("double")
        self.note("starts", os.getpid(), os.stat("/proc/self/ns/pid").st_ino, self.step)
        self.say("begun", self.step)
        points = {step: point for point, step in POINTS.items() if point != "checkpointing"}
        while self.step < STEPS:
            self.step += 1
            self.model = advance(self.model, self.step)
            self.note("steps", self.step)
            self.say("step", self.step)
            if self.step % EVERY == 0:
                self.save()
            if self.step in points:
                self.hold(points[self.step])
            if self.asked:
                self.leave()
        self.say("end")

    def save(self) -> None:
        """A checkpoint, by rename; rank 0 alone makes it."""
        held = self.step == POINTS["checkpointing"]
        if self.rank:
            if held:
                self.hold("checkpointing")
            return
        place = self.checkpoints / f"step-{self.step:09d}"
        part = Path(f"{place}.tmp")
        data = parameters(self.model)
        facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest = {"format": 1, "step": self.step, "metrics": {}, "files": {"model.bin": facts}}
        files = {"model.bin": data, "manifest.json": json.dumps(manifest).encode()}
        self.make(part, files)
        if held:
            self.hold("checkpointing")
        if not place.exists():
            part.rename(place)
        line = {"t": time.time(), "step": self.step, "metrics": {"steps": self.step}}
        fd = os.open(self.progress, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.write(fd, json.dumps(line).encode() + b"\n")
        os.close(fd)

    def make(self, part: Path, files: dict[str, bytes]) -> None:
        """The files of a checkpoint, whole."""
        while True:
            try:
                part.mkdir(exist_ok=True)
                for name, data in files.items():
                    (part / name).write_bytes(data)
                return
            except OSError as error:
                self.bear(error)

    def leave(self) -> None:
        """Save as long as it takes, deaf to whatever comes, and end as a stopped program does."""
        (self.outside / f"at-stopping-{self.rank}").touch()
        self.say("TERM")
        until = time.monotonic() + self.save_s
        while time.monotonic() < until and not (self.outside / "go-stopping").exists():
            self.beat()
        if self.saves and self.step % EVERY:
            self.save()
        self.say("left", self.step)
        sys.exit(143)


if __name__ == "__main__":
    with open(os.environ["RUNNER_PARAMS"]) as file:
        Training(dict(os.environ), json.load(file)).run()
