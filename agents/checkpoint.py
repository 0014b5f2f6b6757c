"""Checkpoints: folders that appear by rename and never change, as the runner wants them.

Shipped agents write `step-000050000/`:

    manifest.json    {"format":1,"step":n,"metrics":{"eval/return":487.2},
                      "files":{name:{"bytes":n,"sha256":hex}}}, every other file in it
    model.pt         tensors, numbers, strings, lists, dicts: torch.load(weights_only=True)
    env-rank0.bin    what only the agent that wrote it reads back, one a rank (a pickle)
    replay-rank0-…   segments of replay memory, hard-linked from checkpoint to checkpoint
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from options import Refused
from runtime import Fault, Run
from seeds import rng_from_text, rng_text


@dataclass(frozen=True)
class StoredFile:
    """What the manifest says of one file."""

    bytes: int
    sha256: str


def write_file(path: Path, data: bytes | memoryview) -> StoredFile:
    """Write and fsync a new file; its size and digest."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return StoredFile(len(data), hashlib.sha256(data).hexdigest())


def digest_file(path: Path) -> StoredFile:
    """What the manifest should say of a file."""
    data = path.read_bytes()
    return StoredFile(len(data), hashlib.sha256(data).hexdigest())


def digest(vector: torch.Tensor) -> str:
    """SHA-256 of a CPU vector's bytes."""
    return hashlib.sha256(vector.numpy().tobytes()).hexdigest()


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def canonical(value: Any) -> Any:
    """An equal value whose equal strings are one object.

    Pickle writes an object it has met as a reference: without this a resumed training, with its
    strings read from a file, would write other bytes for the same state.
    """
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, dict):
        return {canonical(k): canonical(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(canonical(v) for v in value)
    return value


class Segmented(Protocol):
    """Memory kept in files that later checkpoints link (replay.Replay)."""

    def save(self, folder: Path) -> dict[str, StoredFile]:
        """Write or link the files into `folder`."""

    def kept_in(self, folder: Path, files: dict[str, StoredFile]) -> None:
        """Know that they lie there now."""


def write(
    run: Run,
    memory: Segmented | None,
    *,
    step: int,
    metrics: dict[str, float],
    state: dict[str, Any],
    own: dict[str, bytes],
) -> Path:
    """Write `step-000000123/` and return its path; a collective call.

    state: rank 0's part, becomes model.pt. own: contents of this rank's files by name, beside
    those of its memory. A checkpoint that is already there stays as it is. Raises OSError, nothing
    left behind.
    """
    final = run.checkpoints / f"step-{step:09d}"
    part = run.checkpoints / f"step-{step:09d}.tmp"
    try:
        if run.rank == 0:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        run.gather(None)
        segments = memory.save(part) if memory else {}
        stored = {**segments, **{n: write_file(part / n, data) for n, data in own.items()}}
        if run.rank == 0:
            buffer = io.BytesIO()
            torch.save(canonical(state), buffer)
            stored["model.pt"] = write_file(part / "model.pt", buffer.getbuffer())
        everyone, placed = run.gather(stored), True
        if run.rank == 0:
            files = {n: asdict(f) for each in everyone for n, f in sorted(each.items())}
            manifest = {"format": 1, "step": step, "metrics": metrics, "files": files}
            write_file(
                part / "manifest.json", json.dumps(manifest, indent=1, allow_nan=False).encode()
            )
            sync_folder(part)
            try:
                part.rename(final)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                shutil.rmtree(part)
                placed = False
            sync_folder(run.checkpoints)
        placed = run.gather(placed)[0]
    except BaseException:
        if run.rank == 0:
            shutil.rmtree(part, ignore_errors=True)
        raise
    if memory and placed:  # what lies there already need not be the same bytes
        memory.kept_in(final, segments)
    return final


class Environments(Protocol):
    """Those of one rank, in the middle of their episodes (episodes.Episodes, teams.Teams)."""

    def save(self) -> bytes:
        """All of it; empty where the state cannot be kept."""

    def load(self, data: bytes, *, step: int) -> None:
        """Go on with what `save` returned, or begin new episodes."""


class Training(Protocol):
    """What every agent's training has for a checkpoint, beside what it has learned."""

    o: Any
    run: Run
    step: int
    rng: np.random.Generator

    @property
    def envs(self) -> Environments:
        """The environments of this rank."""


def save(
    t: Training, state: dict[str, Any], metrics: dict[str, float],
    *, memory: Segmented | None = None, own: dict[str, bytes] | None = None,
) -> None:  # fmt: skip
    """Write a checkpoint of a training as it is at this step; a collective call.

    state: what more model.pt says: `params`, `agent`, `format`, what its policy needs. metrics:
    measured for exactly these parameters. memory, own: as of `write`. Raises Fault when the ranks'
    parameters are not the same.
    """
    run = t.run
    if len(set(run.gather(digest(state["params"])))) > 1:
        raise Fault("ranks-differ", "the ranks hold different parameters", step=t.step)
    state = {
        **state, "step": t.step, "env": t.o.env, "ranks": run.world, "options": asdict(t.o),
        "rng": run.gather(rng_text(t.rng)),
    }  # fmt: skip
    own = {f"env-rank{run.rank}.bin": t.envs.save(), **(own or {})}
    write(run, memory, step=t.step, metrics=metrics, state=state, own=own)


def go_on(
    t: Training, folder: Path, state: dict[str, Any], *, fits: str, **more: Any
) -> bool:  # fmt: skip
    """Have a training go on where `save` left it: step, generator, environments.

    state: model.pt. fits: names of options that must be as they were, as must the number of ranks.
    more: what else model.pt must say just so. Returns whether the environments go on, too; else
    they have begun new episodes. Raises Refused.
    """
    more = {"ranks": t.run.world, **more}
    made_with = {**state["options"], **{name: state[name] for name in more}}
    check_fits(folder, made_with, {**asdict(t.o), **more}, " ".join([fits, "seed", *more]))
    t.step, asked = state["step"], t.o.steps
    if t.step > asked != made_with["steps"]:  # whole rollouts may go beyond what was asked for
        raise Refused(f"steps is {asked}, but {t.step} are made already in {folder}; ask for more")
    t.rng = rng_from_text(state["rng"][t.run.rank])
    playing = (folder / f"env-rank{t.run.rank}.bin").read_bytes()
    t.envs.load(playing, step=t.step)
    return bool(playing)


def check_fits(folder: Path, made_with: dict[str, Any], now: dict[str, Any], keys: str) -> None:
    """Raise Refused when an option that shapes the state differs; keys: their names."""
    for key in keys.split():
        if made_with[key] != now[key]:
            raise Refused(f"{key} is {now[key]}, but {folder} was made with {made_with[key]}")


@contextlib.contextmanager
def own_folder(run: Run) -> Iterator[None]:
    """The folder of checkpoints is this training's alone, as long as the context lasts.

    What an attempt that was killed left unfinished there is deleted. A collective call. Raises
    Refused where it cannot be written, another training writes there, or another's checkpoints
    lie there.
    """
    with contextlib.ExitStack() as held:
        problem = run.gather(_take(run, held) if run.rank == 0 else "")[0]
        if problem:
            raise Refused(f"{run.checkpoints}: {problem}")
        yield


def _take(run: Run, held: contextlib.ExitStack) -> str:
    try:
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        handle = os.open(run.checkpoints, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        return f"nothing can be written there ({error.strerror})"
    held.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "another training writes there; wait for its end, or choose another folder"
    except OSError:  # some network file systems know no locks
        pass
    for part in run.checkpoints.glob("step-*.tmp"):
        shutil.rmtree(part, ignore_errors=True)
    try:
        (run.checkpoints / "step-.tmp").mkdir()
        (run.checkpoints / "step-.tmp").rmdir()
    except OSError as error:
        return f"nothing can be written there ({error.strerror})"
    there = sorted(path.parent.name for path in run.checkpoints.glob("step-*/manifest.json"))
    if there and not run.resume:
        lie = f"checkpoints of another training lie there, up to {there[-1]}"
        return f"{lie}; go on from one with RUNNER_RESUME, or choose another folder"
    return ""


def read_manifest(checkpoint: Path) -> dict[str, StoredFile]:
    """The files of a checkpoint as its manifest has them. Raises Refused."""
    try:
        manifest = json.loads((checkpoint / "manifest.json").read_text("utf-8"))
        return {name: StoredFile(**entry) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(f"{checkpoint}: its manifest cannot be read: {error}") from error


def read_model(checkpoint: Path) -> dict[str, Any]:
    """model.pt on the CPU, whatever device wrote it. Raises Refused."""
    try:
        state: dict[str, Any] = torch.load(
            checkpoint / "model.pt", map_location="cpu", weights_only=True
        )
    except Exception as error:  # torch raises many kinds for a file that is none of its own
        told = str(error).split("\n")[0] or type(error).__name__
        raise Refused(f"{checkpoint}: model.pt cannot be read ({told})") from error
    return state


def read_own(folder: Path, agent: str, *, format: int = 1) -> dict[str, Any]:
    """model.pt of a checkpoint that `agent` is to go on from, whole and its own.

    Replay memory is only measured, the rest read and compared. Raises Refused.
    """
    for name, told in read_manifest(folder).items():
        path = folder / name
        try:
            whole = (
                path.stat().st_size == told.bytes
                if name.startswith("replay-")
                else digest_file(path) == told
            )
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}; go on from another checkpoint") from error
        if not whole:
            raise Refused(f"{path} is not what its manifest says; go on from another checkpoint")
    state = read_model(folder)
    if not isinstance(state, dict) or not {"agent", "format", "options"} <= state.keys():
        raise Refused(f"{folder}: not a checkpoint of {agent}")
    if state["agent"] != agent:
        raise Refused(f"{folder}: a checkpoint of {state['agent']}, not of {agent}")
    if state["format"] != format:
        raise Refused(f"{folder}: made by a version whose checkpoints cannot be gone on from")
    return state


def best_checkpoint(folder: Path, metric: str) -> Path:
    """`folder` itself if it is a checkpoint, else the one in it with the highest `metric`.

    Of equals the latest; without any measured one the latest. Raises Refused when there is none.
    """
    if (folder / "manifest.json").is_file():
        return folder
    found = []
    for path in folder.glob("step-*/manifest.json"):
        if not path.parent.name.endswith(".tmp"):
            manifest = json.loads(path.read_text("utf-8"))
            score = manifest["metrics"].get(metric, -math.inf)
            found.append((score, manifest["step"], path.parent))
    if not found:
        raise Refused(f"{folder}: no checkpoint there")
    return max(found)[2]
