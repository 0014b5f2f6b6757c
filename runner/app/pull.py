"""Bringing a run's artifacts here: new and changed ones, verified, nothing of anyone's lost."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner import manifest, states
from runner.app.context import Context, seen_one
from runner.app.results import PullReport
from runner.app.runs import RunRef
from runner.endpoint import Worker
from runner.errors import IntegrityError, NotFound, SpecError, WorkerError
from runner.manifest import Fetch, Known, LocalFile
from runner.transfer import fetch

ROUNDS = 3
"""How often a file that changes while it is read is tried."""


def pull(ctx: Context, ref: RunRef, to: Path | None = None) -> PullReport:
    """Bring what is new of a run into `results/RUN` (or `to`): checkpoints/, logs/, work/.

    Files that no pull made, or that were edited here since, are kept and named. Raises
    IntegrityError, HostError, SpecError (no room here); what was there before is still there.
    Another pull of the run into the same folder is waited for.
    """
    top = (to or ctx.project.root / "results" / ref.id).absolute()
    _check_folder(top)

    def say_wait() -> None:
        ctx.report.step(f"{ref.id}: another pull is under way; waiting for it")

    with ctx.store.pull_locked(ref.id, str(top.resolve()), say_wait):
        return _pull(ctx, ref, top)


def _pull(ctx: Context, ref: RunRef, top: Path) -> PullReport:
    began = time.monotonic()
    progress = _Progress(ctx)
    with ctx.connect(ctx.host(ref.host)) as worker:
        book = _Book(ctx, ref.id, top)
        files = count_bytes = 0
        afresh: set[str] = set()
        for _ in range(ROUNDS):
            listing, rows = worker.call("list", run=ref.id)
            remote, refused = manifest.read_listing(rows)
            if refused:
                raise WorkerError(
                    f"{ref.host}: the worker sent names that are no files: {refused[0]}"
                )
            plan = manifest.plan_pull(
                remote, book.known, _local(top, [f.name for f in remote]), book.parts(remote)
            )
            wanted = [Fetch(item.file) if item.file.name in afresh else item for item in plan.fetch]
            progress.plan(wanted)
            done, changed = fetch.fetch(worker, ref.id, wanted, top, on_bytes=progress.on_bytes)
            afresh |= {item.file.name for item in changed}
            book.add(done)
            files += len(done)
            count_bytes += sum(item.fetch.file.size - item.fetch.offset for item in done)
            if not changed:
                break
        _write_records(top, listing)
        run = _status(ctx, worker, ref)
        left_out = _left_out(listing)
        attempt = _ended_attempt(listing) if run.status.state == states.ENDED else None
        whole = attempt == run.status.attempt and not changed and not plan.kept
        book.save(complete=whole, attempt=attempt)
    ctx.report.done()
    return PullReport(
        run=ref.id,
        path=top,
        files=files,
        bytes=count_bytes,
        seconds=time.monotonic() - began,
        unchanged=len(plan.unchanged),
        pending=tuple(item.file.name for item in changed),
        kept=plan.kept,
        left_out=left_out,
    )


def _left_out(listing: Mapping[str, Any]) -> tuple[str, ...]:
    """What its worker named as no plain file."""
    names = listing.get("skipped")
    return tuple(str(name)[:300] for name in names) if isinstance(names, list) else ()


def _ended_attempt(listing: Mapping[str, Any]) -> int | None:
    """The attempt with which the run had ended before its files were listed."""
    try:
        state = json.loads(str(listing.get("state")))
        attempt = state["attempt"] if state["state"] == states.ENDED else None
    except (KeyError, TypeError, ValueError):
        return None
    return attempt if isinstance(attempt, int) else None


def _status(ctx: Context, worker: Worker, ref: RunRef) -> Any:
    _, rows = worker.call("runs", ids=[ref.id], full=True)
    run = seen_one(ctx, worker, ref.id, rows)
    if run is None:
        raise NotFound(f"{ref.host}: {ref.id} went away while it was pulled")
    return run


class _Book:
    """What pulls made here, kept in the project's records."""

    def __init__(self, ctx: Context, run: str, top: Path) -> None:
        self._ctx = ctx
        self._run = run
        self._top = top
        places = ctx.store.pulled(run).get("places")
        rows = places.get(str(top)) if isinstance(places, dict) else None
        self.known: dict[str, Known] = {
            name: Known(*row)
            for name, row in (rows if isinstance(rows, dict) else {}).items()
            if _is_known(row)
        }

    def add(self, done: list[fetch.Fetched]) -> None:
        for item in done:
            file = item.fetch.file
            known = Known(file.size, file.mtime_ns, item.sha256, item.local_mtime_ns)
            self.known[file.name] = known
        self.save(complete=False)

    def save(self, complete: bool, attempt: int | None = None) -> None:
        rows = {
            name: [known.size, known.mtime_ns, known.sha256, known.local_mtime_ns]
            for name, known in self.known.items()
        }
        facts = {"complete": complete, "attempt": attempt}
        self._ctx.store.put_pulled(self._run, str(self._top), rows, facts)

    def parts(self, remote: list[manifest.RemoteFile]) -> Mapping[str, int]:
        """Bytes here of files whose last pull was cut; only what never changes can go on."""
        found = {}
        for file in remote:
            part = fetch.part_path(self._top, file.name)
            if file.kind != "work" and part.is_file() and not part.is_symlink():
                found[file.name] = part.stat().st_size
        return found


def _is_known(row: Any) -> bool:
    """Whether a row of the book is one that `save` writes."""
    return (
        isinstance(row, list)
        and len(row) == 4
        and isinstance(row[2], str)
        and all(isinstance(row[i], int) for i in (0, 1, 3))
    )


class _Progress:
    """Says how far a pull is."""

    def __init__(self, ctx: Context) -> None:
        self._report = ctx.report
        self._whole = self._done = 0
        self._began = time.monotonic()
        self._said = 0.0

    def plan(self, wanted: Sequence[Fetch]) -> None:
        self._whole = sum(item.file.size - item.offset for item in wanted)
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
        self._report.step(
            f"{item.file.name}  {percent}%  {self._done / 1e9:.1f}/{self._whole / 1e9:.1f} GB  "
            f"{rate / 1e6:.0f} MB/s  {left:.0f}s left"
        )


def _check_folder(top: Path) -> None:
    try:
        top.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(f"{top} cannot be made: {error.strerror}") from error


def _local(top: Path, names: list[str]) -> dict[str, LocalFile]:
    found = {}
    for name in names:
        path = top / name
        try:
            seen_here = path.lstat()
        except OSError:
            continue
        found[name] = LocalFile(seen_here.st_size, seen_here.st_mtime_ns)
    return found


def _write_records(top: Path, listing: Mapping[str, Any]) -> None:
    """spec.json and state.json as the host holds them, environment values left out."""
    for key in ("spec", "state"):
        try:
            body = json.loads(str(listing.get(key, "{}")))
        except ValueError as error:
            raise IntegrityError(f"{key}.json of the run cannot be read") from error
        if isinstance(body, dict) and "env" in body:
            body["env"] = dict.fromkeys(body["env"], "…")
        temporary = top / f".{key}.json.part"
        try:
            temporary.write_text(json.dumps(body, indent=2, sort_keys=True) + "\n")
            temporary.replace(top / f"{key}.json")
        except OSError as error:
            raise SpecError(f"{top / key}.json cannot be written: {error.strerror}") from error
