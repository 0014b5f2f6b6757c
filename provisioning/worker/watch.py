"""Watching an attempt while its ranks run: its limits, whether it moves, its logs and checkpoints.

`look` is asked about once a second and says why the ranks are to be stopped, or None. All times
are of the monotonic clock: the attempt's own time goes on while a job is stopped, and no change of
the wall clock ends a run.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Optional, Tuple

import causes
import evidence
import plain
import ranklogs
import records
import retention
import scalars
import stacks
from paths import RunPaths, Workspace

BEAT_S = 5.0
LOGS_S = 1.0
LONGEST_LOOK_S = 30.0
"""More between two looks means that we were stopped or frozen ourselves, and the job likely too."""

Cause = Dict[str, Any]


class Watch:
    """What is looked at while one attempt runs."""

    def __init__(
        self,
        workspace: Workspace,
        paths: RunPaths,
        spec: Dict[str, Any],
        state: Dict[str, Any],
        marks: evidence.Marks,
        *,
        reserve_bytes: int = 0,
        ranks: Callable[[], Dict[int, int]] = dict,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """ranks: the living ranks' processes."""
        self._workspace = workspace
        self._paths = paths
        self._attempt = int(state["attempt"])
        self._folder = paths.attempt(self._attempt)
        self._now = now
        self._marks = marks
        self._reserve_bytes = reserve_bytes
        self._limit_s = spec.get("time_limit_s")
        self._ran_before_s = float(state.get("ran_s") or 0.0)
        self._scalars = scalars.Reader(
            paths, spec.get("metric"), lambda text: self._note("event-files", text=text), now
        )
        self._motion = Motion(spec, marks, lambda: self._scalars.size)
        limit_bytes = spec.get("log_limit_bytes")
        self._logs = ranklogs.Logs(paths, marks.nproc, limit_bytes, self._note, ranks)
        self._keeper = retention.Keeper(
            paths.checkpoints, spec, lambda text: self._note("checkpoints", text=text)
        )
        self._began: Optional[float] = None
        self._ended: Optional[float] = None
        self._looked_at = 0.0
        self._beat_at = self._logs_at = -BEAT_S
        self._stuck_path = os.path.join(self._folder, "stuck.json")
        self._is_told = False

    @property
    def ran_s(self) -> float:
        """Seconds that the ranks have run; 0 when they never began."""
        if self._began is None:
            return 0.0
        return (self._now() if self._ended is None else self._ended) - self._began

    def used_up(self) -> Optional[Cause]:
        """The cause when the run's time is over, as it may be before an attempt begins."""
        if self._limit_s is None or self._ran_before_s + self.ran_s < float(self._limit_s):
            return None
        return causes.time_limit(float(self._limit_s))

    def pause_s(self, longest_s: float) -> float:
        """How long one may sleep before the next look."""
        if self._limit_s is None:
            return longest_s
        left = float(self._limit_s) - self._ran_before_s - self.ran_s
        return max(0.0, min(longest_s, left))

    @property
    def of_logs(self) -> Dict[str, Any]:
        """{"log_problem": what became of them or None, "logs": [[device, inode] of each rank's]}"""
        return {"log_problem": self._logs.problem, "logs": self._logs.own}

    def begin(self) -> None:
        """The ranks are about to be started."""
        self._logs.begin()
        self._began = self._looked_at = self._now()

    def look(self) -> Optional[Cause]:
        """Why the ranks are to be stopped now, or None."""
        now = self._now()
        passed, self._looked_at = now - self._looked_at, now
        if now - self._logs_at >= LOGS_S:
            self._logs_at = now
            if self._logs.look():
                self._beat_at = -BEAT_S
            self._keeper.look()
            self._scalars.look()
        if now - self._beat_at >= BEAT_S:
            self._beat_at = now
            self._beat()
        return (
            self.used_up() or self._no_room() or self._look_for_motion(min(passed, LONGEST_LOOK_S))
        )

    def end(self, hurried: bool) -> None:
        """The ranks have ended; the last of what is done for the attempt.

        hurried: somebody waits for its end.
        """
        self._ended = self._now()
        self._forget_stuck()
        self._logs.look()
        self._scalars.finish(hurried)
        limits = (retention.LAST_PASS_S, retention.HURRIED_PASS_S)
        self._keeper.finish(limits[hurried])

    # -- parts --------------------------------------------------------------------------------

    def _beat(self) -> None:
        """What counts when this launcher is lost."""
        body: Dict[str, Any] = {"ran_s": round(self.ran_s, 3), "step": self._marks.step()}
        body.update(self.of_logs)
        try:
            records.write(os.path.join(self._folder, "beat.json"), body, sync=False)
        except OSError:
            pass  # the next one may find room

    def _no_room(self) -> Optional[Cause]:
        reserve = self._reserve_bytes
        if not reserve or evidence.disk_free(self._workspace.root) >= reserve:
            return None
        return causes.reserve_reached(reserve)

    def _look_for_motion(self, passed_s: float) -> Optional[Cause]:
        motion = self._motion
        motion.look(passed_s)
        if not motion.is_stuck:
            if self._is_told:
                self._forget_stuck()
                self._note("moving")
            return None
        if self._is_told:
            return None
        self._is_told = True
        final = motion.action == "stop"
        cause = causes.stuck(motion.idle_s, self._marks.step(), motion.by_steps, final)
        self._note("stuck", text=cause["text"], action=motion.action)
        try:
            body = {"since": time.time() - motion.idle_s, "action": motion.action}
            records.write(self._stuck_path, dict(body, text=cause["text"]), sync=False)
        except OSError:
            pass
        if motion.action == "tell":
            return None
        taken = stacks.take(self._workspace, self._paths, self._attempt, self._marks.nproc)
        stacks.write(self._folder, taken)
        return cause

    def _forget_stuck(self) -> None:
        if self._is_told:
            self._is_told = False
            try:
                os.unlink(self._stuck_path)
            except OSError:
                pass  # the disk was full when it was to be written

    def _note(self, event: str, **more: Any) -> None:
        records.append_line(self._paths.events, dict(more, event=event, attempt=self._attempt))


class Motion:
    """Whether a job moves: by its progress lines, and while it writes none by the bytes of its logs
    and event files: SummaryWriter keeps back what it has for two minutes, so that neither alone
    tells enough."""

    def __init__(
        self,
        spec: Dict[str, Any],
        marks: evidence.Marks,
        event_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        after = spec.get("stuck_after_s")
        self._after_s = None if after is None else float(after)
        self.action: Optional[str] = None if after is None else str(spec.get("on_stuck") or "tell")
        self._marks = marks
        self._event_bytes = event_bytes
        self._seen: Optional[Tuple[Any, ...]] = None
        self.by_steps = False
        self.idle_s = 0.0

    @property
    def is_stuck(self) -> bool:
        return self._after_s is not None and self.idle_s >= self._after_s

    def look(self, passed_s: float) -> None:
        """Count the time since the last look, or begin to count anew when something moved."""
        if self._after_s is None:
            return
        paths, nproc = self._marks.paths, self._marks.nproc
        progress = [plain.size(paths.progress(rank)) or 0 for rank in range(nproc)]
        self.by_steps = self.by_steps or any(
            size > before for size, before in zip(progress, self._marks.progress)
        )
        logs = [] if self.by_steps else [plain.size(paths.log(rank)) for rank in range(nproc)]
        seen = (progress, logs, 0 if self.by_steps else self._event_bytes())
        self.idle_s = 0.0 if seen != self._seen else self.idle_s + passed_s
        self._seen = seen
