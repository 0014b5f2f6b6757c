"""Metrics: to TensorBoard and stdout from rank 0, to the progress file from every rank."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import gpu_memory
from runtime import Run, writable

FLUSH_S = 20.0  # event files are flushed at least this often while steps are made


class Reporter:
    """Metrics to TensorBoard and stdout (rank 0) and to the progress file (every rank).

    step: environment steps made so far over all ranks; what an earlier attempt wrote beyond it
    is hidden from TensorBoard by its purge step. Raises Refused where nothing can be written.
    """

    def __init__(self, run: Run, *, step: int, every_s: float = 10.0) -> None:
        self.run, self.every_s = run, every_s
        self.latest: dict[str, float] = {}
        self._since, self._since_step = time.monotonic(), step
        self._flushed = self._since
        self._warned = False
        self._writer: Any = None
        if run.rank == 0:
            with writable(run.logs, "set RUNNER_LOGS to another"):
                run.logs.mkdir(parents=True, exist_ok=True)
            try:
                from tensorboard.compat.proto.summary_pb2 import Summary
                from torch.utils.tensorboard import SummaryWriter

                self._points, self._point = Summary, Summary.Value
                with writable(run.logs, "set RUNNER_LOGS to another"):
                    self._writer = SummaryWriter(str(run.logs), purge_step=step + 1 if step else 0)
            except ImportError as error:
                print(f"no event files: {error}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """One line on stdout, from rank 0."""
        if self.run.rank == 0:
            print(text, flush=True)

    def scalars(self, values: dict[str, float], step: int) -> None:
        """One point of each curve, by their tags."""
        if self._writer is not None and values:
            # one event for all of them: what an event costs is Python and its checksum
            points = [self._point(tag=tag, simple_value=v) for tag, v in values.items()]
            self._writer.file_writer.add_summary(self._points(value=points), step)

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
        self.scalars(extra, step)
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
