"""Where an agent runs: its folders, ranks, device, progress file, stop signals and exit status.

An agent is a plain script. The runner tells it what to do by RUNNER_* variables; without them
(by hand) the same script writes below `results/by-hand/`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

# Small networks lose 5 to 7 times the CPU to spinning threads on a shared host, so one thread
# unless the user says otherwise; numpy reads this when it is first imported.
os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or "1"
os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ["OMP_NUM_THREADS"])

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from options import Refused  # noqa: E402

_FULL = (errno.ENOSPC, errno.EDQUOT)
LINE_BYTES = 4096  # a progress line is one write; longer ones could interleave or be cut

T = TypeVar("T")


class Fault(Exception):
    """Training cannot go on; `kind` is the cause the runner shows ("nan", "cuda-oom", …)."""

    def __init__(self, kind: str, text: str, *, step: int) -> None:
        super().__init__(text)
        self.kind, self.step = kind, step


class Stopped(Exception):
    """A signal asked for the end; the state has been saved."""


class Run:
    """Where this process stands: folders, rank, device, and whether it was asked to stop.

    Raises Refused when the device asked for is not there, or a folder cannot be written. `name` is
    the agent's, used by hand.
    """

    def __init__(self, name: str, *, device: str) -> None:
        env = os.environ
        self.rank, self.world = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        self.local_rank = int(env.get("LOCAL_RANK", "0"))
        self.device = choose_device(device, self.local_rank)
        by_hand = not (env.get("RUNNER_CHECKPOINTS") and env.get("RUNNER_LOGS"))
        above = Path("results", "by-hand").absolute()
        self._parents = [folder for folder in (above, above.parent) if not folder.exists()]
        self.hand_folder = unique_folder(name) if by_hand and self.rank == 0 else None
        torch.set_num_threads(int(env["OMP_NUM_THREADS"].split(",")[0]))
        for kind in (np.float32, np.float64):
            np.finfo(kind)  # numpy 1 looks at it once, and warns when denormals are gone
        # Adam's averages of gradients that stay zero fade into denormals: 7 times slower a step
        torch.set_flush_denormal(True)
        self.received: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if self.world > 1:
            if env.get("MASTER_ADDR", "") in ("127.0.0.1", "localhost"):
                # the host's own name need not resolve, and nothing may listen elsewhere
                env.setdefault("GLOO_SOCKET_IFNAME", "lo")
                env.setdefault("NCCL_SOCKET_IFNAME", "lo")
            backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
            # rank 0 evaluates and writes while the others wait in a collective
            dist.init_process_group(backend, timeout=timedelta(hours=1))
        folder = Path(self.gather(str(self.hand_folder or ""))[0])
        self.checkpoints = Path(env.get("RUNNER_CHECKPOINTS") or folder / "checkpoints")
        self.logs = Path(env.get("RUNNER_LOGS") or folder / "logs")
        self.resume = Path(env["RUNNER_RESUME"]) if env.get("RUNNER_RESUME") else None
        self._progress = open_progress()

    def tidy(self) -> None:
        """Remove what this run made by hand and never wrote to; what is not empty stays."""
        if self.hand_folder:
            for folder in (self.checkpoints, self.logs, self.hand_folder, *self._parents):
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _on_signal(self, number: int, _frame: Any) -> None:
        self.received = number

    def asked_to_stop(self) -> bool:
        """Whether this rank has received SIGTERM or SIGINT."""
        return self.received is not None

    def describe_device(self) -> str:
        """`cpu, 1 thread` or `cuda:0, NVIDIA H200`."""
        if self.device.type == "cuda":
            return f"{self.device}, {torch.cuda.get_device_name(self.device)}"
        threads = torch.get_num_threads()
        return f"cpu, {threads} thread{'s' if threads > 1 else ''}"

    def agree(self, flag: bool) -> bool:
        """Whether any rank says so; a collective call."""
        if self.world == 1:
            return flag
        told = torch.tensor(int(flag))
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return bool(told)

    def agree_to_stop(self, *, tick: int, every: int) -> bool:
        """Whether to stop at this tick, the same on every rank.

        A collective call at each `every`-th tick only, for it takes longer than a CartPole step
        does.
        """
        if self.world > 1 and tick % every:
            return False
        return self.agree(self.asked_to_stop())

    def agree_healthy(self, fault: Fault | None, *, step: int) -> None:
        """Raise this rank's fault, or say that another rank has one; a collective call."""
        if self.agree(fault is not None):
            raise fault or Fault("", "stopped: another rank met a fault", step=step)

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of ranks; a collective call."""
        if self.world == 1:
            return [value]
        everyone: list[Any] = [None] * self.world
        dist.all_gather_object(everyone, value)
        return everyone

    def average(self, vector: torch.Tensor) -> None:
        """Replace `vector` by its mean over the ranks, the same bits on each; a collective call."""
        if self.world > 1:
            dist.all_reduce(vector)
            vector.div_(self.world)

    def reduce_sum(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of these numbers over the ranks, the same on each; a collective call."""
        if self.world == 1:
            return numbers
        total = torch.from_numpy(np.array(numbers, np.float64))
        dist.all_reduce(total)
        return total.numpy()

    def write_progress(self, record: dict[str, Any]) -> None:
        """Append one line of JSON to this rank's progress file."""
        append_line(self._progress, record)


def open_progress() -> int:
    """This rank's progress file, or /dev/null where nobody reads one. Raises Refused."""
    path = os.environ.get("RUNNER_PROGRESS") or os.devnull
    with writable(Path(path), "set RUNNER_PROGRESS to another file"):
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def append_line(file: int, record: dict[str, Any]) -> None:
    """Append one line of JSON, at most LINE_BYTES, in a single write."""
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    if len(line) > LINE_BYTES and "text" in record:  # escapes: six bytes a character
        record = {**record, "text": record["text"][: LINE_BYTES // 8] + " …"}
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
    os.write(file, line)


def choose_device(asked: str, local_rank: int) -> torch.device:
    """The torch device for this rank. asked: auto, cpu or cuda. Raises Refused."""
    if asked not in ("auto", "cpu", "cuda"):
        raise Refused(f"device is {asked!r}; it must be auto, cpu or cuda")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        if asked == "auto" and visible:
            print(
                f"WARNING: a GPU is leased (CUDA_VISIBLE_DEVICES={visible}), but torch "
                f"{torch.__version__} sees none: training on the CPU",
                file=sys.stderr,
                flush=True,
            )
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = "has no CUDA" if torch.version.cuda is None else "sees no usable GPU"
        raise Refused(
            f"device=cuda is asked for, but torch {torch.__version__} {built} here "
            f"(CUDA_VISIBLE_DEVICES is {'not set' if visible is None else repr(visible)}); "
            "use device=cpu, or lease a GPU with gpus=1"
        )
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise Refused(f"rank {local_rank} of this host has no GPU of its own: {count} visible")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


_ELSEWHERE = "go to another folder, or set RUNNER_CHECKPOINTS and RUNNER_LOGS"


def unique_folder(name: str) -> Path:
    """A new folder below results/by-hand, which no other run has. Raises Refused."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ["", *(f"-{n}" for n in range(2, 1000))]:
        folder = Path("results", "by-hand", f"{name}-{stamp}{suffix}").absolute()
        with writable(folder.parent, _ELSEWHERE):
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                continue
    raise Refused(f"no free name below {folder.parent}")


@contextlib.contextmanager
def writable(path: Path, way_out: str) -> Iterator[None]:
    """Raises Refused, with a way out, where `path` cannot be written. A full disk passes."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise
        text = f"{path}: nothing can be written there ({error.strerror}); {way_out}"
        raise Refused(text) from error


@contextlib.contextmanager
def edge(run: Run) -> Iterator[None]:
    """Turn what ends a training into a fault line and an exit status.

    A signal: 143 or 130 after the save. A fault: 1, one line on stderr. Anything else: traceback.
    """
    threading.excepthook = _quiet_about_disks
    # health.check finds it, and says more
    warnings.filterwarnings("ignore", "overflow encountered in cast", RuntimeWarning)
    try:
        yield
        close(run)
    except Stopped:
        close(run)
        sys.exit(128 + (run.received or signal.SIGTERM))
    except Fault as fault:
        report(run, fault)
    except SystemExit as asked:  # of an environment's own code: the training is not done
        text = f"the program was ended from within, with status {asked.code!r}"
        report(run, Fault("environment", text, step=-1))
    except torch.OutOfMemoryError as error:
        report(run, Fault("cuda-oom", str(error).split("\n")[0], step=-1))
    except MemoryError as error:
        report(run, Fault("oom", out_of_memory(error), step=-1))
    except OSError as error:
        if error.errno not in _FULL:
            raise
        places = f"checkpoints go to {run.checkpoints}, logs to {run.logs}"
        where = "" if error.filename else f" ({places})"
        text = f"{error}{where}; make room, then go on from the last checkpoint"
        report(run, Fault("disk-full", text, step=-1))
    except (RuntimeError, ValueError, OverflowError) as error:
        if _NO_MEMORY.search(str(error)):
            report(run, Fault("oom", out_of_memory(error), step=-1))
        # When a peer dies the survivors must not bury its traceback under their own.
        lost = re.search(r"gloo|nccl|closed by peer|Connection reset", str(error), re.IGNORECASE)
        if run.world == 1 or not lost:
            raise
        sys.exit(f"rank {run.rank}: lost another rank: {str(error).splitlines()[0][:200]}")


_NO_MEMORY = re.compile(
    "can't allocate memory|Storage size calculation overflowed|array is too big"
    "|Maximum allowed dimension exceeded|integer multiplication overflow"
)
"""How torch and numpy say it, where that is no MemoryError."""


def out_of_memory(error: BaseException) -> str:
    """In one line what could not be had, and what to lower."""
    lines = str(error).splitlines() or ["no memory is left"]
    said = re.sub(r"^\[.*?\] .*?: ", "", lines[0])[:200]
    return f"{said}; lower what takes memory (num_envs, rollout, batch_size, updates, hidden)"


def _quiet_about_disks(problem: threading.ExceptHookArgs) -> None:
    """What the event files' thread meets at the disk the training meets, too, and it is said once.

    Tensorboard's thread hands its error on to whoever writes next.
    """
    ours = type(problem.thread).__module__.startswith("tensorboard")
    if not (ours and isinstance(problem.exc_value, OSError)):
        threading.__excepthook__(problem)


def close(run: Run) -> None:
    """Leave the group of ranks, once all have come this far."""
    if run.world > 1:
        dist.barrier()
        dist.destroy_process_group()


def end_joined(error: BaseException | None) -> None:
    """End this process by its error at once, where it is still joined with other ranks.

    An exit as usual would destroy the group's threads while they run, and C++ aborts then, now and
    then: a signal instead of the status, and its words below ours.
    """
    if error is None or not dist.is_initialized():
        return
    code: Any = 1
    if isinstance(error, SystemExit):
        code = error.code
        if not isinstance(code, int) and code is not None:
            print(code, file=sys.stderr)
            code = 1
    else:
        sys.excepthook(type(error), error, error.__traceback__)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code or 0)


def report(run: Run, fault: Fault) -> None:
    """Write the fault line and exit with status 1; a fault of another rank is only said."""
    if fault.kind:
        step = {"step": fault.step} if fault.step >= 0 else {}
        run.write_progress({"fault": fault.kind, **step, "text": str(fault)})
    sys.exit(f"rank {run.rank}: {fault.kind + ': ' if fault.kind else ''}{fault}")
