"""What every shipped agent shares: options, ranks, seeds, stop signals, metrics.

An agent is a plain script. The runner tells it what to do by RUNNER_* variables; without them
(by hand) the same script writes below `results/by-hand/`.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import errno
import json
import math
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

# Small networks lose 5 to 7 times the CPU to spinning threads on a shared host, so one thread
# unless the user says otherwise; numpy reads this when it is first imported.
os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or "1"
os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ["OMP_NUM_THREADS"])

import gpu_memory  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

SEEDS_TRAIN, SEEDS_EVALUATION, SEEDS_FRESH, SEEDS_AGENT = range(4)
LINE_BYTES = 4096  # a progress line is one write; longer ones could interleave or be cut
AGREE_TICKS = 16
FLUSH_S = 20.0  # event files are flushed at least this often while steps are made

T = TypeVar("T")
Floats = NDArray[np.float32]


class Refused(Exception):
    """The options, the environment or the device cannot be used: one line, exit status 2."""


class Fault(Exception):
    """Training cannot go on; `kind` is the cause the runner shows ("nan", "cuda-oom", …)."""

    def __init__(self, kind: str, text: str, *, step: int) -> None:
        super().__init__(text)
        self.kind, self.step = kind, step


class Stopped(Exception):
    """A signal asked for the end; the state has been saved."""


# options


def read_options(cls: type[T], words: Sequence[str]) -> T:
    """Options from the JSON file named by RUNNER_PARAMS, else from `key=value` words.

    cls: a dataclass whose defaults give each option's type (int, float, bool, str). Raises
    Refused with every problem, one a line, and the nearest known name.
    """
    defaults = {field.name: field.default for field in fields(cls)}  # type: ignore[arg-type]
    path = os.environ.get("RUNNER_PARAMS")
    if path:
        if words:
            raise Refused(f"options come from RUNNER_PARAMS={path}; '{words[0]}' is not read")
        try:
            given = json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise Refused(f"RUNNER_PARAMS={path} cannot be read: {error}") from error
        if not isinstance(given, dict):
            raise Refused(f"RUNNER_PARAMS={path} must hold a JSON object")
        pairs = list(given.items())
    else:
        pairs = []
        for word in words:
            key, equals, text = word.partition("=")
            if not equals:
                raise Refused(f"'{word}' is not key=value")
            if key in dict(pairs):
                raise Refused(f"{key} is given twice")
            pairs.append((key, text))
    values, problems = {}, []
    for key, value in pairs:
        try:
            values[key] = convert(key, value, defaults, from_text=not path)
        except Refused as problem:
            problems.append(str(problem))
    if problems:
        raise Refused("\n".join(problems))
    return cls(**values)


def convert(key: str, value: Any, defaults: dict[str, Any], *, from_text: bool) -> Any:
    """`value` as the type of the option's default. Raises Refused."""
    if key not in defaults:
        raise Refused(f"{key} is not an option here{near(key, defaults)}")
    default = defaults[key]
    if isinstance(default, str):
        if isinstance(value, str):
            return value
        raise Refused(f"{key} is {value!r}; it must be text")
    if from_text:
        words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
        try:
            value = words[value.lower()] if value.lower() in words else ast.literal_eval(value)
        except (ValueError, SyntaxError):
            pass  # stays text, and is refused below
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        raise Refused(f"{key} is {value!r}; it must be true or false")
    if isinstance(default, int):
        if number and math.isfinite(value) and value == int(value):
            return int(value)
        raise Refused(f"{key} is {value!r}; it must be a whole number")
    if number and math.isfinite(value):
        return float(value)
    raise Refused(f"{key} is {value!r}; it must be a number")


def check_ranges(options: Any, **limits: tuple[float, float]) -> None:
    """Raise Refused, naming each number outside its limits, which are 0 and none by default."""
    bad = []
    for field in fields(options):
        value = getattr(options, field.name)
        lowest, highest = limits.get(field.name, (0, math.inf))
        if isinstance(value, (int, float)) and not lowest <= value <= highest:
            below = "" if highest == math.inf else f" and at most {highest:g}"
            bad.append(f"{field.name} is {value}; it must be at least {lowest:g}{below}")
    if bad:
        raise Refused("\n".join(bad))


def near(name: str, known: Any) -> str:
    """` (did you mean 'lr'?)`, or nothing when no known name resembles `name`."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(repr(c) for c in close)}?)" if close else ""


# ranks and signals


class Run:
    """Where this process stands: folders, rank, device, and whether it was asked to stop.

    Raises Refused when the device asked for is not there. `name` is the agent's, used by hand.
    """

    def __init__(self, name: str, *, device: str) -> None:
        env = os.environ
        self.rank, self.world = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        self.local_rank = int(env.get("LOCAL_RANK", "0"))
        self.device = choose_device(device, self.local_rank)
        by_hand = not (env.get("RUNNER_CHECKPOINTS") and env.get("RUNNER_LOGS"))
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

    def agree_to_stop(self, *, tick: int) -> bool:
        """Whether to stop at this tick, the same on every rank.

        A collective call at each AGREE_TICKS-th tick only, for it takes longer than a CartPole
        step does.
        """
        if self.world > 1 and tick % AGREE_TICKS:
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

    def write_progress(self, record: dict[str, Any]) -> None:
        """Append one line of JSON to this rank's progress file."""
        append_line(self._progress, record)


def open_progress() -> int:
    """This rank's progress file, or /dev/null where nobody reads one."""
    path = os.environ.get("RUNNER_PROGRESS") or os.devnull
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
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = "has no CUDA" if torch.version.cuda is None else "sees no usable GPU"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
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


def unique_folder(name: str) -> Path:
    """A new folder below results/by-hand, which no other run has."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ["", *(f"-{n}" for n in range(2, 1000))]:
        folder = Path("results", "by-hand", f"{name}-{stamp}{suffix}").absolute()
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            continue
    raise Refused(f"no free name below {folder.parent}")


@contextlib.contextmanager
def edge(run: Run) -> Iterator[None]:
    """Turn what ends a training into a fault line and an exit status.

    A signal: 143 or 130 after the save. A fault: 1, one line on stderr. Anything else: traceback.
    """
    try:
        yield
        close(run)
    except Stopped:
        close(run)
        sys.exit(128 + (run.received or signal.SIGTERM))
    except Fault as fault:
        report(run, fault)
    except torch.OutOfMemoryError as error:
        report(run, Fault("cuda-oom", str(error).split("\n")[0], step=-1))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        report(run, Fault("disk-full", str(error), step=-1))
    except RuntimeError as error:
        # When a peer dies the survivors must not bury its traceback under their own.
        lost = re.search(r"gloo|nccl|closed by peer|Connection reset", str(error), re.IGNORECASE)
        if run.world == 1 or not lost:
            raise
        sys.exit(f"rank {run.rank}: lost another rank: {str(error).splitlines()[0][:200]}")


def close(run: Run) -> None:
    """Leave the group of ranks, once all have come this far."""
    if run.world > 1:
        dist.barrier()
        dist.destroy_process_group()


def report(run: Run, fault: Fault) -> None:
    """Write the fault line and exit with status 1; a fault of another rank is only said."""
    if fault.kind:
        step = {"step": fault.step} if fault.step >= 0 else {}
        run.write_progress({"fault": fault.kind, **step, "text": str(fault)})
    sys.exit(f"rank {run.rank}: {fault.kind + ': ' if fault.kind else ''}{fault}")


# seeds


def derive_seed(seed: int, stream: int, *index: int) -> int:
    """A 32-bit seed; those of different streams (SEEDS_…) are never equal.

    The two low bits name the stream, so evaluation never sees an episode training has seen.
    """
    word = int(np.random.SeedSequence([seed, stream, *index]).generate_state(1)[0])
    return word // 4 * 4 + stream


def seed_everything(seed: int, rank: int) -> None:
    """Seed the global generators, which environments may draw from, differently on each rank."""
    word = derive_seed(seed, SEEDS_AGENT, rank)
    random.seed(word)
    np.random.seed(word)
    torch.manual_seed(word)


def first_not_finite(vectors: dict[str, Any]) -> str | None:
    """Name of the first tensor that holds NaN or infinity."""
    return next((n for n, v in vectors.items() if not bool(torch.isfinite(v).all())), None)


def rng_text(rng: np.random.Generator) -> str:
    """The generator's whole state; `rng_from_text` makes an equal generator.

    Text, for the weights-only loader of torch 2.4 reads no bytes.
    """
    return json.dumps(rng.bit_generator.state)


def rng_from_text(state: str | bytes) -> np.random.Generator:
    """The generator whose state `rng_text` took; older checkpoints have it as bytes."""
    rng = np.random.default_rng()
    rng.bit_generator.state = json.loads(state)
    return rng


# parameters


def flatten_parameters(module: torch.nn.Module) -> torch.nn.Parameter:
    """One vector holding all parameters of `module`, which become views of it.

    Its `.grad` is one vector too, which backward() fills. One fused Adam step, one norm and one
    all-reduce then serve any number of layers: 1.3 to 1.9 times quicker on a CPU.
    """
    parameters = list(module.parameters())
    flat = torch.nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = flat.data[start:end].view(parameter.shape)
        parameter.grad = flat.grad[start:end].view(parameter.shape)
        start = end
    return flat


class NumpyNetwork:
    """A multilayer perceptron with ReLUs, of a flat vector: 7 times quicker for one observation.

    flat: the parameters in the order of torch's Linear layers, read anew at each call. sizes:
    (numbers in, width, …, numbers out).
    """

    def __init__(self, flat: Floats, sizes: Sequence[int]) -> None:
        self.layers: list[tuple[Floats, Floats]] = []
        start = 0
        for inward, outward in zip(sizes[:-1], sizes[1:], strict=True):
            middle = start + inward * outward
            weight = flat[start:middle].reshape(outward, inward).T
            start = middle + outward
            self.layers.append((weight, flat[middle:start]))

    def __call__(self, x: Floats) -> Floats:
        """(n, numbers in) to (n, numbers out)."""
        for weight, bias in self.layers[:-1]:
            x = np.maximum(x @ weight + bias, 0)
        weight, bias = self.layers[-1]
        return x @ weight + bias


# metrics


class Reporter:
    """Metrics to TensorBoard and stdout (rank 0) and to the progress file (every rank).

    step: environment steps made so far over all ranks; what an earlier attempt wrote beyond it
    is hidden from TensorBoard by its purge step.
    """

    def __init__(self, run: Run, *, step: int, every_s: float = 10.0) -> None:
        self.run, self.every_s = run, every_s
        self.latest: dict[str, float] = {}
        self._since, self._since_step = time.monotonic(), step
        self._flushed = self._since
        self._warned = False
        self._writer: Any = None
        if run.rank == 0:
            run.logs.mkdir(parents=True, exist_ok=True)
            try:
                from torch.utils.tensorboard import SummaryWriter

                self._writer = SummaryWriter(str(run.logs), purge_step=step + 1 if step else 0)
            except ImportError as error:
                print(f"no event files: {error}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """One line on stdout, from rank 0."""
        if self.run.rank == 0:
            print(text, flush=True)

    def scalar(self, tag: str, value: float, step: int) -> None:
        """One point of a curve."""
        if self._writer is not None:
            self._writer.add_scalar(tag, value, step)

    def overdue(self) -> bool:
        """Whether the last line is `every_s` old; slow environments still show life."""
        return time.monotonic() - self._since >= self.every_s

    def line(self, step: int, metrics: dict[str, float]) -> None:
        """One progress line; adds steps per second since the last one, and GPU memory."""
        now = time.monotonic()
        rate = (step - self._since_step) / max(now - self._since, 1e-9)
        self._since, self._since_step = now, step
        extra = {"perf/steps_per_s": rate}
        use = gpu_memory.read(self.run.device)
        if use is not None:
            extra.update(use.tags())
            self._warn_once(gpu_memory.warning(use), step)
        for tag, value in extra.items():
            self.scalar(tag, value, step)
        metrics = {**metrics, **extra}
        finite = {tag: round(v, 6) for tag, v in metrics.items() if math.isfinite(v)}
        self.run.write_progress({"t": round(time.time(), 3), "step": step, "metrics": finite})
        self.latest.update(metrics)
        shown = {"reward": "return", "eval/return": "eval"}
        parts = [f"{w} {self.latest[t]:.1f}" for t, w in shown.items() if t in self.latest]
        self.say("  ".join([f"step {step}", *parts, f"sps {rate:.0f}"]))
        if now - self._flushed >= FLUSH_S:
            self.flush()

    def _warn_once(self, text: str | None, step: int) -> None:
        """On this rank's own log and in its progress file: each rank has a card of its own."""
        if text is None or self._warned:
            return
        self._warned = True
        print(text, file=sys.stderr, flush=True)
        self.run.write_progress({"t": round(time.time(), 3), "step": step, "warning": text})

    def flush(self) -> None:
        """Bring the event file to the disk."""
        self._flushed = time.monotonic()
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flush and end the event file."""
        if self._writer is not None:
            self._writer.close()
