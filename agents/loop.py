"""The loop around every algorithm: progress, evaluation, checkpoints, stopping in good order."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import gpu_memory
from metrics import Reporter
from runtime import Fault, Run, Stopped

LOSSES_A_LINE = 10  # points of the losses' curves for each progress line, at most


class Playing(Protocol):
    """Environments in the middle of their episodes (episodes.Episodes)."""

    exact: bool

    def take_ended(self) -> list[tuple[float, int]]:
        """(return, length) of the episodes that ended since the last call."""

    def close(self) -> None:
        """End them."""


class Training(Protocol):
    """One algorithm's parts. step: environment steps made so far over all ranks."""

    step: int
    ticks: int
    """How often `advance` was called, the same on every rank, also in a resumed training."""
    asks_every: int
    """Ticks after which the ranks ask each other whether to stop: a second or less of work."""

    @property
    def envs(self) -> Playing:
        """The environments of this rank."""

    def advance(self) -> dict[str, float]:
        """Collect some steps and learn from them: the newest losses by their tags."""

    def evaluate(self) -> dict[str, float]:
        """`eval/return` of these parameters on rank 0; empty elsewhere."""

    def save(self, metrics: dict[str, float]) -> None:
        """Write a checkpoint. metrics: what was measured for exactly these parameters."""


def drive(t: Training, o: Any, run: Run, *, name: str, more: str = "") -> None:
    """Train to the end of `o.steps`, or until a signal. Raises Fault, Stopped.

    o: with env, seed, steps and the common *_every options. more: what the first line also says.
    """
    reporter = Reporter(run, step=t.step)
    reporter.say(
        f"{name}  device {run.describe_device()}  env {o.env}  seed {o.seed}  ranks {run.world}"
        + (f"  {more}" if more else "")
        + (f"  resumed from step {t.step}" if run.resume else "")
    )
    if run.hand_folder:
        reporter.say(f"writing to {run.hand_folder}")
    if not t.envs.exact:
        reporter.say(f"{o.env} cannot be kept in a checkpoint: a resume begins new episodes")
    losses: dict[str, float] = {}
    fresh, told = False, t.step  # whether `losses` are in no event file yet; when others were
    recent: list[float] = []

    def due(every: int) -> bool:
        return every > 0 and t.step // every > before // every

    with contextlib.closing(t.envs), contextlib.closing(reporter):
        while t.step < o.steps:
            before, tick = t.step, t.ticks
            try:
                new = t.advance()
            except Fault as fault:
                fault.step = t.step if fault.step < 0 else fault.step
                raise
            for total, length in t.envs.take_ended():
                recent.append(total)
                reporter.scalars({"reward": total, "episode_length": length}, t.step)
            losses, fresh = (new, True) if new else (losses, fresh)
            if fresh and t.step - told >= o.log_every // LOSSES_A_LINE:
                reporter.scalars(losses, t.step)
                told, fresh = t.step, False
            last, evaluated = t.step >= o.steps, {}
            if due(o.eval_every) or (last and o.eval_every):
                evaluated = t.evaluate()
                gpu_memory.give_back(run.device)
                reporter.scalars(evaluated, t.step)
            stopping = run.agree_to_stop(tick=tick, every=t.asks_every)
            if due(o.log_every) or last or reporter.overdue():
                reward = {"reward": sum(recent) / len(recent)} if recent else {}
                reporter.line(t.step, {**reward, **losses, **evaluated})
                recent.clear()
            if due(o.checkpoint_every) or last or stopping:
                t.save(evaluated)
                reporter.flush()
            if stopping and not last:
                reporter.say(f"stopped at step {t.step}, state saved")
                raise Stopped
