"""Bringing a run's artifacts here: new and changed ones, verified, nothing of anyone's lost."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner import manifest, states
from runner.app import retrying
from runner.app.book import Book
from runner.app.context import Context, seen_one
from runner.app.reports import PullReport
from runner.app.results import RunOnHost
from runner.app.runs import RunRef
from runner.endpoint import Worker
from runner.errors import IntegrityError, NotFound, SpecError, WorkerError
from runner.manifest import Fetch, RemoteFile
from runner.show.units import duration, size
from runner.transfer import fetch, lanes, parts
from runner.transfer.arrivals import Fetched
from runner.transfer.places import Places, can_be_named

ROUNDS = 3
"""How often a file that changes while it is read is tried."""
MOST_DIFF_BYTES = 8 << 20
RETRY_WAITS_S = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Wish:
    """What is wanted of a run."""

    what: tuple[str, ...] = ()
    """Of `manifest.PARTS_OF_RUNS`; all without."""
    mirror: bool = False
    """Also remove here the checkpoints that `keep` rules removed there."""


@dataclass(frozen=True)
class Round:
    """One look at a run and what it brought."""

    report: PullReport
    run: RunOnHost
    is_over: bool
    """The run had ended before its files were listed, and everything wanted is here."""
    look_s: float = 0.0
    """How long it took to see what is new."""


def pull(ctx: Context, ref: RunRef, to: Path | None = None, wish: Wish | None = None) -> PullReport:
    """Bring what is new of a run into `results/RUN` (or `to`): checkpoints/, logs/, work/.

    Files that no pull made, or that were edited here since, are kept and named. Raises
    IntegrityError, HostError, SpecError (no room here), NotFound (the run ended without what is
    wished); what was there before is still there. A link that is lost is made again a few times,
    and what has come need not come again. Another pull of the run into the same folder is waited
    for.
    """
    top = folder_of(ctx, ref, to)
    connect = functools.partial(ctx.connect, ctx.host(ref.host))

    def bring(worker: Worker) -> PullReport:
        return pull_round(ctx, worker, ref, top, wish or Wish()).report

    with locked(ctx, ref, top):
        return retrying.look(ctx.report, connect, bring, RETRY_WAITS_S)


def folder_of(ctx: Context, ref: RunRef, to: Path | None) -> Path:
    """Where a run's files go; it is there now. Raises SpecError."""
    top = (to or ctx.project.root / "results" / ref.id).absolute()
    other = _run_in(top)
    if other not in (None, ref.id):
        raise SpecError(
            f"{top} holds what was pulled of {other}; two runs do not go into one folder",
            f"runner pull {ref.id} --to {shlex.quote(str(top / ref.id))}",
        )
    try:
        top.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(f"{top} cannot be made: {error.strerror}") from error
    return top


def _run_in(top: Path) -> str | None:
    """Which run's records lie in a folder; None for none."""
    try:
        found = json.loads((top / "spec.json").read_bytes())
    except (OSError, ValueError):
        return None
    run = found.get("id") if isinstance(found, dict) else None
    return run if isinstance(run, str) else None


@contextlib.contextmanager
def locked(ctx: Context, ref: RunRef, top: Path) -> Iterator[None]:
    """No other pull of the run into this folder meanwhile; waits for one."""

    def say_wait() -> None:
        ctx.report.step(f"{ref.id}: another pull is under way; waiting for it")

    with ctx.store.pull_locked(ref.id, str(top.resolve()), say_wait):
        yield


def pull_round(
    ctx: Context,
    worker: Worker,
    ref: RunRef,
    top: Path,
    wish: Wish,
    window: int | None = None,
) -> Round:
    """Bring what is new now, over a conversation that is there; see `pull`.

    window: of logs that grew verify only what is new and so many bytes before it; they are to be
    verified whole by a later round.
    """
    try:
        top.mkdir(mode=0o755, parents=True, exist_ok=True)  # with --watch it may be gone by now
        with Places(top) as places:
            return _Pull(ctx, worker, ref, wish, places).run(window)
    except OSError as error:
        raise SpecError(f"{top}: {error.strerror}; what was there before is untouched") from error
    finally:
        ctx.report.done()


class _Pull:
    """One round."""

    def __init__(
        self, ctx: Context, worker: Worker, ref: RunRef, wish: Wish, places: Places
    ) -> None:
        self._ctx = ctx
        self._worker = worker
        self._ref = ref
        self._wish = wish
        self._places = places
        self._book = Book(ctx, ref.id, places)
        self._progress = _Progress(ctx)
        self._listing: Mapping[str, Any] = {}
        self._round_trip_s = self._look_s = 0.0
        self._too_long: tuple[str, ...] = ()

    def run(self, window: int | None) -> Round:
        began = time.monotonic()
        files = count_bytes = 0
        afresh: set[str] = set()
        gone: set[str] = set()
        replaced: set[str] = set()
        for _ in range(ROUNDS):
            remote = self._list()
            chosen = self._choose(remote)
            plan = self._plan(chosen, afresh, window)
            parts.sweep(self._places, remote)
            found = self._fetch(plan)
            self._book.add(found.done)
            files += len(found.done)
            count_bytes += found.bytes
            afresh |= {item.file.name for item in found.changed}
            gone |= {item.file.name for item in found.gone}
            replaced |= set(found.kept)
            if not found.changed and not found.gone:
                break
        run = self._seen()
        mirrored = self._mirror(remote) if self._wish.mirror else 0
        self._write_records()
        kept = tuple(sorted({*plan.kept, *replaced}))
        pending = tuple(item.file.name for item in (*found.changed, *found.gone))
        attempt = self._ended_attempt() if run.status.state == states.ENDED else None
        is_over = attempt == run.status.attempt and not pending
        # of a log appended to in rounds only the end is verified so far
        verified = all(
            known.sha256 for file in chosen if (known := self._book.known.get(file.name))
        )
        is_whole = is_over and verified and not kept and not self._too_long
        self._save(attempt, is_whole)
        nothing = not chosen and not self._book.known and run.status.state != states.ENDED
        if not chosen and self._wish.what and run.status.state == states.ENDED:
            raise NotFound(
                f"{self._ref.id} ended without {' or '.join(self._wish.what)}",
                *self._why_no_best(),
                "what there is: runner pull " + self._ref.id,
            )
        report = PullReport(
            run=self._ref.id,
            path=self._places.top,
            files=files,
            bytes=count_bytes,
            seconds=time.monotonic() - began,
            unchanged=len(plan.unchanged),
            pending=pending,
            kept=kept,
            left_out=_left_out(self._listing),
            too_long=self._too_long,
            gone=tuple(sorted(gone - set(pending))),
            mirrored=mirrored,
            nothing_yet=run.status.state if nothing else None,
        )
        return Round(report, run, is_over, self._look_s)

    def _list(self) -> list[RemoteFile]:
        began = time.monotonic()
        has_diff = self._places.look("code.diff") is not None
        self._listing, rows = self._worker.call(
            "list", run=self._ref.id, best="best" in self._wish.what, without_diff=has_diff
        )
        took_s: Any = self._listing.get("took_s")
        there_s = took_s if isinstance(took_s, float) else 0.0
        self._look_s = time.monotonic() - began
        self._round_trip_s = self._look_s - there_s
        remote, refused = manifest.read_listing(rows)
        if refused:
            raise WorkerError(
                f"{self._ref.host}: the worker sent names that are no files: {refused[0]}"
            )
        self._too_long = tuple(file.name for file in remote if not can_be_named(file.name))
        return [file for file in remote if can_be_named(file.name)]

    def _choose(self, remote: Sequence[RemoteFile]) -> list[RemoteFile]:
        best, last = (
            name if isinstance(name, str) else None
            for name in (self._listing.get("best"), self._listing.get("last"))
        )
        chosen = manifest.select(remote, self._wish.what, best, last)
        # what is looked at while it grows comes first
        return sorted(chosen, key=lambda file: file.kind != manifest.APPEND_ONLY)

    def _plan(
        self, chosen: Sequence[RemoteFile], afresh: set[str], window: int | None
    ) -> manifest.PullPlan:
        look = self._places.look
        local = {file.name: here for file in chosen if (here := look(file.name)) is not None}
        plan = manifest.plan_pull(
            chosen,
            self._book.known,
            local,
            parts.read_gathered(self._places, chosen),
            afresh=afresh,
            doubtful=self._book.doubtful,
            window=window,
        )
        need, free = manifest.room_needed(plan.fetch), self._places.room
        if need > free:
            raise SpecError(
                f"{self._places.top}: no room for {size(need)}; {size(free)} are free",
                "nothing was fetched, and what was there before is untouched",
            )
        return plan

    def _fetch(self, plan: manifest.PullPlan) -> Fetched:
        self._progress.plan(plan.fetch)
        missing = sum(item.missing for item in plan.fetch)
        count = lanes.lanes_for(missing, self._round_trip_s)
        if count > 1:
            # the listing may have been slow for another reason
            count = lanes.lanes_for(missing, min(self._round_trip_s, self._ping()))
        done = parts.read_done(self._places) if plan.ready else {}
        return fetch.fetch(
            self._worker,
            self._ref.id,
            plan.fetch,
            self._places,
            ready=[(item, done[item.file.name]) for item in plan.ready],
            lanes=count,
            connect=lambda lane: Worker(self._worker.host, lane=lane),
            on_bytes=self._progress.on_bytes,
        )

    def _ping(self) -> float:
        began = time.monotonic()
        request = self._worker.open("files", run=self._ref.id)
        request.end()
        request.finish()
        return time.monotonic() - began

    def _seen(self) -> RunOnHost:
        run = seen_one(self._ctx, self._worker, self._ref.id, [self._listing.get("run")])
        if run is None:
            raise NotFound(f"{self._ref.host}: {self._ref.id} went away while it was pulled")
        return run

    def _ended_attempt(self) -> int | None:
        """The attempt with which the run had ended before its files were listed."""
        try:
            state = json.loads(str(self._listing.get("state")))
            attempt = state["attempt"] if state["state"] == states.ENDED else None
        except (KeyError, TypeError, ValueError, RecursionError):
            return None
        return attempt if isinstance(attempt, int) else None

    def _mirror(self, remote: Sequence[RemoteFile]) -> int:
        spec = _table(self._listing, "spec", self._ref.host)
        if spec.get("keep") is None:
            return 0
        look = self._places.look
        known = self._book.known
        local = {name: here for name in known if (here := look(name)) is not None}
        going = manifest.plan_mirror(remote, known, local)
        for name in going:
            self._places.unlink(name)
            del known[name]
            folder = name.rpartition("/")[0]
            while "/" in folder and self._places.remove_empty(folder):
                folder = folder.rpartition("/")[0]
        return len(going)

    def _why_no_best(self) -> list[str]:
        if "best" not in self._wish.what:
            return []
        has_metric = _table(self._listing, "spec", self._ref.host).get("metric")
        return [] if has_metric else ["its job names no metric, by which one would be best"]

    def _save(self, attempt: int | None, is_whole: bool) -> None:
        if self._wish.what:
            self._book.save()
        else:
            self._book.save({"complete": is_whole, "attempt": attempt})
        parts.settle(self._places, self._book.doubtful)

    def _write_records(self) -> None:
        """spec.json and state.json as the host holds them, environment values left out."""
        for key in ("spec", "state"):
            body = _table(self._listing, key, self._ref.host)
            if isinstance(body.get("env"), dict):
                body["env"] = dict.fromkeys(body["env"], "…")
            text = json.dumps(body, indent=2, sort_keys=True) + "\n"
            self._write_record(f"{key}.json", text.encode("utf-8", "surrogateescape"))
        diff = self._listing.get("diff")
        if isinstance(diff, str) and len(diff) <= MOST_DIFF_BYTES:
            with contextlib.suppress(ValueError):
                self._write_record("code.diff", base64.b64decode(diff, validate=True))

    def _write_record(self, name: str, data: bytes) -> None:
        if self._places.read(name, len(data) + 1) == data:
            return
        try:
            self._places.write(name, data)
        except OSError as error:
            where = self._places.top / name
            raise SpecError(f"{where} cannot be written: {error.strerror}") from error


def _table(listing: Mapping[str, Any], key: str, host: str) -> dict[str, Any]:
    try:
        body = json.loads(str(listing.get(key, "{}")))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{host}: {key}.json of the run cannot be read") from error
    return body if isinstance(body, dict) else {}


def _left_out(listing: Mapping[str, Any]) -> tuple[str, ...]:
    """What its worker named as no plain file."""
    names = listing.get("skipped")
    return tuple(str(name)[:300] for name in names) if isinstance(names, list) else ()


class _Progress:
    """Says how far a pull is."""

    def __init__(self, ctx: Context) -> None:
        self._report = ctx.report
        self._whole = self._done = 0
        self._began = time.monotonic()
        self._said = 0.0

    def plan(self, wanted: Sequence[Fetch]) -> None:
        self._whole = sum(item.missing for item in wanted)
        self._done = 0
        self._began = time.monotonic()

    def on_bytes(self, item: Fetch, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._said < 0.1:
            return
        self._said = now
        rate = self._done / max(0.001, now - self._began)
        left = (self._whole - self._done) / max(1.0, rate)
        percent = 100 * self._done // max(1, self._whole)
        scale, unit = (1e9, "GB") if self._whole >= 1e9 else (1e6, "MB")
        self._report.step(
            f"{item.file.name}  {percent}%  {self._done / scale:.1f}/{self._whole / scale:.1f} "
            f"{unit}  {rate / 1e6:.0f} MB/s  {duration(left)} left"
        )
